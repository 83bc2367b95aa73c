//! Where the `prepage` binary is, which starts programs.

use std::path::PathBuf;

use anyhow::{Context, Result};

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
