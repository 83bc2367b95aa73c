//! Files that commands write.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::builder::{PathBufValueParser, TypedValueParser};

/// Writes `path` with `write`, standard output where that is `-`. An older file of this name stays until the new one is
/// complete, and stays on failure.
pub fn replace<E>(path: &Path, write: impl FnOnce(&mut dyn Write) -> Result<(), E>) -> Result<()>
where
    E: Into<anyhow::Error>,
{
    let context = || format!("{}: cannot be written", path.display());
    let fill = |file: &mut dyn Write| -> Result<()> {
        let mut out = BufWriter::new(file);
        write(&mut out).map_err(Into::into)?;
        out.flush().with_context(context)
    };
    if is_stdout(path) {
        return fill(&mut std::io::stdout().lock());
    }
    // Pipes and devices are written to as they are.
    if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
        return fill(&mut File::create(path).with_context(context)?);
    }
    // What a link points to is replaced, not the link.
    let path = &path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    let mut builder = tempfile::Builder::new();
    builder.prefix(".prepage-").suffix(".partial");
    // As any new file: as far as the user's umask allows.
    let partial = builder.make_in(directory.unwrap_or(Path::new(".")), |path| File::create_new(path));
    let partial = partial.with_context(context)?;
    fill(&mut partial.as_file())?;
    partial.persist(path).map_err(|failed| failed.error).with_context(context)?;
    Ok(())
}

/// Whether `path` means standard output.
pub fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

/// Where a trace is to be written, as an argument: not standard output, which belongs to the command recorded.
pub fn trace() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| match is_stdout(&path) {
        true => Err("a trace cannot be written to standard output; ./- is a file of this name"),
        false => Ok(path),
    })
}

/// Says that `path` was written, where that is a file.
pub fn tell(path: &Path) {
    if !is_stdout(path) {
        say!("prepage: written to {}", path.display());
    }
}
