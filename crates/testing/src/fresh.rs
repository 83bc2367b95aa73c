//! Programs that a test has written itself and executes at once.
//!
//! The kernel executes no file that somebody has open for writing (ETXTBSY). What another test starts meanwhile inherits what is open, and has
//! it until it executes its own program: on a busy machine for long.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::wait_until;

/// Copies the program `from` to `to`, with its rights, and waits until it can be executed there.
///
/// # Panics
/// Where it cannot be copied, and as [`wait_until_written`].
#[track_caller]
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let (from, to) = (from.as_ref(), to.as_ref());
    if let Err(error) = fs::copy(from, to) {
        panic!("{} cannot be copied to {}: {error}", from.display(), to.display());
    }
    wait_until_written(to);
}

/// Writes the script `text` to `path`, and waits until it can be executed there, by everybody.
///
/// # Panics
/// Where it cannot be written, and as [`wait_until_written`].
#[track_caller]
pub fn write_program(path: impl AsRef<Path>, text: impl AsRef<[u8]>) {
    let path = path.as_ref();
    let written = fs::write(path, text);
    if let Err(error) = written.and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o755))) {
        panic!("{} cannot be written: {error}", path.display());
    }
    wait_until_written(path);
}

/// Waits until no process has the file at `path` open for writing, as far as this one may see.
///
/// # Panics
/// When one has it for a minute.
#[track_caller]
pub fn wait_until_written(path: &Path) {
    let path = path.canonicalize().expect("it was written");
    wait_until(|| !is_being_written(&path), &format!("{} is open for writing for ever", path.display()));
}

fn is_being_written(path: &Path) -> bool {
    let processes = fs::read_dir("/proc").expect("/proc is mounted").flatten();
    processes.map(|process| process.path()).any(|process| {
        // Of another user's, or of one that has ended, nothing is seen.
        let descriptors = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        descriptors.filter(|descriptor| fs::read_link(descriptor.path()).is_ok_and(|to| to == path)).any(
            |descriptor| {
                let info = fs::read_to_string(process.join("fdinfo").join(descriptor.file_name()));
                info.is_ok_and(|info| may_write(&info))
            },
        )
    })
}

/// Whether a file is open for writing of which /proc/PID/fdinfo says this (proc_pid_fdinfo(5)).
fn may_write(info: &str) -> bool {
    const ACCESS: u32 = 0o3;
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok()).is_some_and(|flags| flags & ACCESS != 0)
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::thread::sleep;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_program_is_executed_once_nobody_writes_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("program");
        write_program(&path, "#!/bin/sh\nexit 7\n");
        let writer = fs::File::options().append(true).open(&path).unwrap();
        let is_busy = is_being_written(&path);
        let writes = std::thread::spawn(move || {
            sleep(Duration::from_millis(50));
            drop(writer);
        });
        wait_until_written(&path);
        let ended = Command::new(&path).status();
        writes.join().unwrap();
        let _reader = fs::File::open(&path).unwrap();
        let is_read_only = !is_being_written(&path);
        assert!(is_busy && is_read_only);
        assert_eq!(ended.unwrap().code(), Some(7));
    }
}
