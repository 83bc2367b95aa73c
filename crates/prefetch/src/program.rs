//! Which executable a command means, and which profile belongs to it.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use prepage_core::role::role;
use rustix::fs::{Access, AtFlags, CWD};

use crate::store::ProfileKey;

/// The executable that execvp(3) would run for `name`: the name itself where it has a slash, else the first
/// executable file of that name in PATH.
///
/// # Errors
/// NotFound, or PermissionDenied where there is such a file but none may be executed.
pub fn find(name: &OsStr) -> io::Result<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return executable(&path).map(|()| path);
    }
    let mut reason = io::ErrorKind::NotFound.into();
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    for directory in std::env::split_paths(&path) {
        let candidate = directory.join(name);
        match executable(&candidate) {
            Ok(()) => return Ok(candidate),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => reason = error,
            Err(_) => {}
        }
    }
    Err(reason)
}

fn executable(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(rustix::fs::accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS)?)
}

/// The profile of `command` (the program first).
///
/// # Errors
/// As [`find`], and where the executable's links cannot be resolved.
pub fn key(command: &[OsString]) -> io::Result<ProfileKey> {
    let name = command.first().ok_or(io::ErrorKind::InvalidInput)?;
    let program = find(name)?.canonicalize()?;
    Ok(ProfileKey { program: program.to_string_lossy().into_owned(), role: role(&readable(command)) })
}

/// The command line as text; what is not UTF-8 is replaced.
pub fn readable(command: &[OsString]) -> Vec<String> {
    command.iter().map(|arg| arg.to_string_lossy().into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_as_the_shell_finds_them() {
        assert!(find("sh".as_ref()).unwrap().is_absolute());
        assert_eq!(find("/bin/sh".as_ref()).unwrap(), Path::new("/bin/sh"));
        assert_eq!(find("no-such-program".as_ref()).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(find("/etc".as_ref()).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn links_to_one_executable_share_it_but_not_the_role() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("applet");
        std::os::unix::fs::symlink("/bin/sh", &link).unwrap();
        let (a, b) = (key(&[link.into()]).unwrap(), key(&["/bin/sh".into()]).unwrap());
        assert_eq!(a.program, b.program);
        assert_eq!((a.role.as_str(), b.role.as_str()), ("applet", "sh"));
    }
}
