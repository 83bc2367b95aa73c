//! Files that commands write.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};

/// Writes `path` with `write`. An older file of this name stays until the new one is complete, and stays on failure.
pub fn replace(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
    let context = || format!("{}: cannot be written", path.display());
    // Pipes and devices are written to as they are.
    if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
        let mut out = BufWriter::new(File::create(path).with_context(context)?);
        return write(&mut out).and_then(|()| out.flush()).with_context(context);
    }
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = Path::new(&partial);
    let mut out = BufWriter::new(File::create(partial).with_context(context)?);
    let written = write(&mut out).and_then(|()| out.flush()).and_then(|()| std::fs::rename(partial, path));
    if written.is_err() {
        // The failure itself is what the user needs to know.
        let _ = std::fs::remove_file(partial);
    }
    written.with_context(context)
}
