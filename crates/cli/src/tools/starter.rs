//! Where the `prepage` binary is, which starts programs.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use prepage_profiles::public;

use crate::remedy::{Remedied, Try};

/// Beside this binary (a build, or an install of both into one directory), or in the `bin` beside the `libexec` that this one
/// is in, where distributions put helpers of a command.
pub fn starter() -> Result<PathBuf> {
    let me = std::env::current_exe().context("/proc is not mounted")?;
    let directory = me.parent().unwrap_or(&me);
    let places = [directory.join("prepage"), directory.join("../../bin/prepage")];
    let found = places.iter().find(|place| place.is_file());
    let found = found.and_then(|place| place.canonicalize().ok());
    found.or_try(|| {
        let remedy = "install both binaries (make build && sudo make install)";
        Remedied::new(format!("no `prepage` next to {}", me.display()), remedy)
    })
}

/// Checks, for root, that nobody else can put another program in the place of `binary`, which all users or the system will start.
///
/// # Errors
/// Where somebody else may write to it or to a directory on the way.
pub fn check_is_of_root(binary: &Path) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let Some(at) = public::first_of_others(0, binary) else { return Ok(()) };
    let by = match at.metadata() {
        Ok(found) => format!("owner {}, mode {:04o}", found.uid(), found.mode() & 0o7777),
        Err(error) => error.to_string(),
    };
    let what = format!("others than root may replace {}: {} ({by})", binary.display(), at.display());
    let remedy = "sudo make install, or for it and the directories above it: chown root, chmod go-w";
    Err(Remedied::new(what, remedy).into())
}
