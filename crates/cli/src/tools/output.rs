//! Files that commands write, and standard output. Errors of writing name what could not be written.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufWriter, LineWriter, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::builder::{PathBufValueParser, TypedValueParser};
use prepage_display::terminal::{self, Lines, printable_json};
use prepage_sys::exec::was_closed;
use prepage_sys::new_file::{NewFile, led_to};
use prepage_sys::random::random;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::Serialize;

use crate::remedy::Remedied;

const STDOUT: &str = "standard output";

/// Writes `path` with `write`, standard output where that is `-`. An older file of this name stays until the new one is
/// complete, and stays on failure.
pub fn replace<E>(path: &Path, write: impl FnOnce(&mut dyn Write) -> Result<(), E>) -> Result<()>
where
    E: Into<anyhow::Error>,
{
    let name = path.display().to_string();
    let context = || cannot_be_written(&name);
    let fill = |file: &mut dyn Write| fill(file, write);
    if is_stdout(path) {
        return fill(&mut stdout());
    }
    // Pipes and devices are written to as they are.
    if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
        return fill(&mut Named { file: File::create(path).with_context(context)?, name: &name });
    }
    // What a link points to is replaced, not the link, and made where it is missing.
    let path = &led_to(path).with_context(context)?;
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    // A directory may be one to put files in and not to list.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(directory.unwrap_or(Path::new(".")), flags, Mode::empty());
    let directory = directory.with_context(context)?;
    // As any new file: as far as the user's umask allows.
    let new = NewFile::create(directory.as_fd(), 0o666).with_context(context)?;
    fill(&mut Named { file: new.file(), name: &name })?;
    new.replace(Path::new(path.file_name().unwrap_or_default())).with_context(context)
}

/// Writes a new file in the temporary directory, where others may write too, with `write`: under a name that begins with `begin`, ends with `end`,
/// and nobody can know before, for this user alone to read. Returns where.
pub fn temporary<E>(
    begin: &str,
    end: &str,
    write: impl FnOnce(&mut dyn Write) -> Result<(), E>,
) -> Result<PathBuf>
where
    E: Into<anyhow::Error>,
{
    let path = std::env::temp_dir().join(format!("{begin}-{:016x}{end}", random()));
    let name = path.display().to_string();
    let file = File::options().write(true).create_new(true).mode(0o600).open(&path);
    let mut named = Named { file: file.with_context(|| cannot_be_written(&name))?, name: &name };
    let written = fill(&mut named, write).inspect_err(|_| drop(fs::remove_file(&path)));
    written.map(|()| path)
}

fn fill<E>(file: &mut dyn Write, write: impl FnOnce(&mut dyn Write) -> Result<(), E>) -> Result<()>
where
    E: Into<anyhow::Error>,
{
    let mut out = BufWriter::new(file);
    write(&mut out).map_err(Into::into)?;
    Ok(out.flush()?)
}

/// Refuses to write `output` where that is the file `input` itself, by whatever name: `input` would be lost.
///
/// # Errors
/// Where both are one regular file.
pub fn keep_input(output: &Path, input: &Path) -> Result<()> {
    let inode = |path: &Path| {
        let metadata = path.metadata().ok().filter(fs::Metadata::is_file)?;
        Some((metadata.dev(), metadata.ino()))
    };
    if !is_stdout(output) && inode(output).is_some_and(|output| inode(input) == Some(output)) {
        let what = format!("{}: not written: it is the file that is read", output.display());
        bail!(Remedied::new(what, "another name"));
    }
    Ok(())
}

/// Standard output, for what programs read. Its errors say that it could not be written.
///
/// Each line is written with its end. Whoever ends with an unfinished line flushes it: on drop that is written as well, but an error
/// of it is not told.
pub fn stdout() -> impl Write {
    Named { file: LineWriter::new(Given), name: STDOUT }
}

/// What this process was given as standard output. The standard library writes to one that was closed, or may only be read, as if all
/// went well.
struct Given;

impl Write for Given {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = if was_closed(1) { Err(Errno::BADF) } else { rustix::io::write(io::stdout(), bytes) };
        Ok(written?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What came of it that somebody else has `written` through the standard library.
pub fn by_others(written: io::Result<()>) -> io::Result<()> {
    // The kernel takes nothing at all only for what can be written.
    let written = written.and_then(|()| io::stdout().flush()).and_then(|()| Given.write(b"").map(drop));
    written.map_err(|error| named(STDOUT, &error))
}

/// Standard output, for what people read: no name in it commands their terminal. As [`stdout`] it is flushed where the last line has no end.
pub fn text() -> impl Write {
    Lines(stdout())
}

/// How wide tables on standard output may be.
pub fn width() -> Option<usize> {
    terminal::width(std::io::stdout())
}

/// A file whose errors of writing have its name.
struct Named<'a, W> {
    file: W,
    name: &'a str,
}

impl<W: Write> Write for Named<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes).map_err(|error| named(self.name, &error))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush().map_err(|error| named(self.name, &error))
    }
}

/// `error` of writing `name`.
fn named(name: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), Unwritten(format!("{}: {error}", cannot_be_written(name))))
}

/// What commands print, or a file, could not be written.
#[derive(Debug)]
struct Unwritten(String);

impl fmt::Display for Unwritten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unwritten {}

/// Whether `error` only says that nobody reads on what a command prints.
pub fn is_unread(error: &anyhow::Error) -> bool {
    let is_of_writing = |error: &io::Error| error.get_ref().is_some_and(|inner| inner.is::<Unwritten>());
    let mut reasons = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    reasons.any(|reason| reason.kind() == io::ErrorKind::BrokenPipe && is_of_writing(reason))
}

fn cannot_be_written(name: &str) -> String {
    format!("{name}: cannot be written")
}

/// Prints `value` as JSON. No name in it commands a terminal.
pub fn print_json(value: &impl Serialize) -> io::Result<()> {
    let mut out = BufWriter::new(stdout());
    writeln!(out, "{}", printable_json(&serde_json::to_string_pretty(value)?))?;
    out.flush()
}

/// A path as text; bytes that are not UTF-8 are replaced.
pub fn shown(path: &Path) -> String {
    path.to_string_lossy().into_owned()
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, lchown, symlink};

    use prepage_prefetch::learn::LearnError;
    use prepage_testing::{Need, has};

    use super::*;

    #[test]
    fn only_who_writes_hears_that_nobody_reads_on() {
        let broken = || io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(is_unread(&anyhow::Error::from(named(STDOUT, &broken())).context("the table")));
        assert!(!is_unread(&named(STDOUT, &io::ErrorKind::StorageFull.into()).into()));
        // Its process was killed while it waited to begin.
        let not_begun = LearnError::Start { program: "cat".into(), source: broken() };
        assert!(!is_unread(&not_begun.into()));
    }

    fn written(path: &Path) -> Result<(), Option<i32>> {
        let written = replace(path, |file| file.write_all(b"new"));
        written.map_err(|error| error.downcast_ref::<Errno>().map(|error| error.raw_os_error()))
    }

    #[test]
    fn what_a_link_leads_to_is_written_and_links_that_lead_nowhere_are_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        for (link, to) in [("first", "second"), ("second", "made"), ("round", "and"), ("and", "round")] {
            symlink(to, path(link)).unwrap();
        }
        assert_eq!(written(&path("first")), Ok(()));
        assert_eq!(fs::read(path("made")).unwrap(), b"new");
        assert!(path("first").is_symlink() && path("second").is_symlink());
        assert_eq!(written(&path("round")), Err(Some(Errno::LOOP.raw_os_error())));
    }

    /// As in /tmp, where anybody may put a link to a file that root is to make.
    #[test]
    fn a_link_that_somebody_else_put_where_everybody_may_is_not_followed() {
        if !has(Need::Root) {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let mode = |mode| fs::set_permissions(directory.path(), fs::Permissions::from_mode(mode)).unwrap();
        symlink(path("made"), path("link")).unwrap();
        let outcome = || {
            let written = written(&path("link"));
            written.map(|()| fs::remove_file(path("made")).unwrap())
        };
        mode(0o1777);
        assert_eq!(outcome(), Ok(()), "it is root's own");
        lchown(path("link"), Some(54321), None).unwrap();
        assert_eq!(outcome(), Err(Some(Errno::ACCESS.raw_os_error())));
        assert!(!path("made").exists());
        mode(0o777);
        assert_eq!(outcome(), Ok(()), "everybody may write there anyway");
        mode(0o1777);
        lchown(directory.path(), Some(54321), None).unwrap();
        assert_eq!(outcome(), Ok(()), "whose directory it is");
    }
}
