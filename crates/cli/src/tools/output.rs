//! Files that commands write.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};

/// Writes `path` with `write`. An older file of this name stays until the new one is complete, and stays on failure.
pub fn replace<E>(path: &Path, write: impl FnOnce(&mut dyn Write) -> Result<(), E>) -> Result<()>
where
    E: Into<anyhow::Error>,
{
    let context = || format!("{}: cannot be written", path.display());
    let fill = |file: &Path| -> Result<()> {
        let mut out = BufWriter::new(File::create(file).with_context(context)?);
        write(&mut out).map_err(Into::into)?;
        out.flush().with_context(context)
    };
    // Pipes and devices are written to as they are.
    if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
        return fill(path);
    }
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = Path::new(&partial);
    let written = fill(partial).and_then(|()| std::fs::rename(partial, path).with_context(context));
    if written.is_err() {
        // The failure itself is what the user needs to know.
        let _ = std::fs::remove_file(partial);
    }
    written
}
