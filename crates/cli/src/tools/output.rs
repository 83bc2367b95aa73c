//! Files that commands write.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::builder::{PathBufValueParser, TypedValueParser};
use prepage_sys::new_file::NewFile;
use rustix::fs::{Mode, OFlags};
use serde::Serialize;

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
    // A directory may be one to put files in and not to list.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(directory.unwrap_or(Path::new(".")), flags, Mode::empty());
    let directory = directory.with_context(context)?;
    // As any new file: as far as the user's umask allows.
    let new = NewFile::create(directory.as_fd(), 0o666).with_context(context)?;
    fill(&mut new.file())?;
    new.replace(Path::new(path.file_name().unwrap_or_default())).with_context(context)
}

/// Writes `value` as JSON for people and programs.
pub fn print_json(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, value)?;
    writeln!(out)
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
