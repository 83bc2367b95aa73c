//! Which executable a command means.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, accessat, openat};
use rustix::io::Errno;

use crate::at_hand::{at_hand, at_hand_without_links, is_absent, reach, resolved, without_upwards};

/// Links that lead from one to the next at the end of a program's path, as far as they are followed one by one: alternatives take two.
const LINKS_FOLLOWED: usize = 4;

/// The executable that execvp(3) would run for `name`: the name itself where it has a slash, else the first
/// executable file of that name in PATH. Links that `prepage enable` made are passed over: they stand for what comes
/// behind them.
///
/// # Errors
/// NotFound, or PermissionDenied where there is such a file but none may be executed.
pub fn find(name: &OsStr) -> io::Result<PathBuf> {
    find_past(name).map(|(path, _)| path)
}

/// The same, and whether links that `prepage enable` made were passed over.
///
/// # Errors
/// As [`find`].
pub fn find_past(name: &OsStr) -> io::Result<(PathBuf, bool)> {
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        if is_stand_in(&path) {
            return find(path.file_name().unwrap_or_default()).map(|path| (path, true));
        }
        return executable(&path).map(|()| (path, false));
    }
    // As the kernel would say it: an `ErrorKind` alone reads "entity not found".
    let mut reason = Errno::NOENT.into();
    let mut has_passed = false;
    for candidate in candidates(name) {
        match executable(&candidate) {
            Ok(()) if is_stand_in(&candidate) => has_passed = true,
            Ok(()) => return Ok((candidate, has_passed)),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => reason = error,
            Err(_) => {}
        }
    }
    Err(reason)
}

/// The same as far as it is in memory ([`crate::at_hand`]). `None` where [`find`] is to be asked, which may wait for a file system or say why
/// there is no such program; and where a link that `prepage enable` made stands in front of the program. Links at the end of a path are read whether or not they are in
/// memory, and of whatever file system: exec follows them in any case.
pub fn find_at_hand(name: &OsStr) -> Option<ProgramAtHand> {
    if name.as_bytes().contains(&b'/') {
        return ProgramAtHand::at(name.into())?;
    }
    candidates(name).find_map(ProgramAtHand::at)?
}

/// A program that was found in memory.
#[derive(Clone, Debug)]
pub struct ProgramAtHand {
    /// Where it was found.
    pub path: PathBuf,
    /// A path to its file that leads through no symbolic link; `None` where a directory on the way is one.
    file: Option<PathBuf>,
}

impl ProgramAtHand {
    /// `None` where there is none, `Some(None)` where memory does not tell.
    fn at(path: PathBuf) -> Option<Option<Self>> {
        let found = match at_hand_without_links(&path) {
            Err(Errno::LOOP) => behind_links(&path),
            found => found.map(|found| (!found.is_directory()).then(|| Some(path.clone()))),
        };
        match found {
            // What is in memory is soon asked.
            Ok(Some(file)) => Some(may_be_executed(&path).is_ok().then_some(Self { path, file })),
            Err(error) if is_absent(error) => None,
            _ => Some(None),
        }
    }

    /// The absolute path by which it was called, and that of its file, free of symbolic links.
    ///
    /// # Errors
    /// As realpath(3).
    pub fn paths(&self) -> io::Result<(PathBuf, PathBuf)> {
        let called = std::path::absolute(&self.path)?;
        let file = match &self.file {
            Some(file) => without_upwards(&std::path::absolute(file)?),
            None => resolved(&called)?,
        };
        Ok((called, file))
    }
}

/// [`ProgramAtHand::file`] of the program at `path`, on which links lie; `None` where there is no program, or a link that `prepage enable` made. The kernel could
/// tell by /proc, which takes longer than all of these calls.
fn behind_links(path: &Path) -> Result<Option<Option<PathBuf>>, Errno> {
    let mut file = path.to_owned();
    for _ in 0..LINKS_FOLLOWED {
        // Else a directory on the way is the link.
        let Ok(target) = std::fs::read_link(&file) else { break };
        if stands_in(&file, &target) {
            return Ok(None);
        }
        file = file.parent().unwrap_or(Path::new("")).join(target);
        match at_hand_without_links(&file) {
            Err(Errno::LOOP) => {}
            found => return found.map(|found| (!found.is_directory()).then_some(Some(file.clone()))),
        }
    }
    at_hand(path).map(|found| (!found.is_directory()).then_some(None))
}

/// All executables called `name` in PATH that [`find`] would take if those before were not there, each file once. The program of this process is left out: what
/// stands in for `name` would find itself by a link to a link of `prepage enable`, or in a copy of it.
pub fn find_all(name: &OsStr) -> Vec<PathBuf> {
    find_up_to(name, |_| false).0
}

/// The same up to the first that `is_wanted`, and whether there may be more. Behind the one that is wanted no other file system is waited for: without the link
/// nobody would look there, and it may not answer.
pub fn find_up_to(name: &OsStr, is_wanted: impl Fn(&Path) -> bool) -> (Vec<PathBuf>, bool) {
    let file_at = |path: &Path| rustix::fs::stat(path).ok().map(|file| (file.st_dev, file.st_ino));
    let own = file_at(Path::new("/proc/self/exe"));
    let mut found: Vec<((u64, u64), PathBuf)> = Vec::new();
    let (mut has_wanted, mut may_be_more) = (false, false);
    for candidate in candidates(name) {
        match has_wanted.then(|| is_there(&candidate)) {
            Some(Ok(false)) => continue,
            Some(Err(_)) => {
                may_be_more = true;
                break;
            }
            Some(Ok(true)) | None => {}
        }
        if executable(&candidate).is_err() || is_stand_in(&candidate) {
            continue;
        }
        let Some(file) = file_at(&candidate).filter(|file| Some(*file) != own) else { continue };
        if found.iter().any(|(known, _)| *known == file) {
            continue;
        }
        if has_wanted {
            may_be_more = true;
            break;
        }
        has_wanted = is_wanted(&candidate);
        found.push((file, candidate));
    }
    (found.into_iter().map(|(_, path)| path).collect(), may_be_more)
}

/// Whether there is a file at `path` that this process may reach.
///
/// # Errors
/// Where a file system is to be asked that may not answer ([`reach`]).
fn is_there(path: &Path) -> Result<bool, Errno> {
    match reach(path) {
        Ok(()) => Ok(true),
        Err(error) if is_absent(error) || error == Errno::ACCESS => Ok(false),
        Err(error) => Err(error),
    }
}

/// What is there under `name`, found by openat(2) alone, which every loader makes, for processes that may be killed for other calls: the name itself where it
/// has a slash, else each file of that name in PATH behind the last that is `executed`. The caller finds out which may be executed, and which are links
/// that `prepage enable` made: those look further behind themselves.
pub fn there(name: &OsStr, executed: Option<&Path>) -> Vec<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return vec![name.into()];
    }
    let all: Vec<PathBuf> = candidates(name).collect();
    let own = executed.and_then(|executed| all.iter().rposition(|path| path == executed));
    let is_there = |path: &PathBuf| openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).is_ok();
    all.into_iter().skip(own.map_or(0, |own| own + 1)).filter(is_there).collect()
}

/// Whether `path` is a link to a file called `prepage`, as `prepage enable` makes them.
pub fn is_stand_in(path: &Path) -> bool {
    std::fs::read_link(path).is_ok_and(|target| stands_in(path, &target))
}

/// The same where the link leads to `target`.
fn stands_in(path: &Path, target: &Path) -> bool {
    target.file_name() == Some("prepage".as_ref()) && path.file_name() != Some("prepage".as_ref())
}

/// `command` as it is to be started where prepage itself is not to serve the start: if a link that `prepage enable` made stands for its
/// program, the program is called by its path.
pub fn past_stand_ins(command: &[OsString]) -> Vec<OsString> {
    let mut command = command.to_vec();
    if let Some(name) = command.first_mut()
        && let Ok((program, true)) = find_past(name)
    {
        *name = program.into();
    }
    command
}

/// Where PATH says that `name` may be, always with a slash in it.
pub fn candidates(name: &OsStr) -> impl Iterator<Item = PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let directories: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let name = name.to_owned();
    directories.into_iter().map(move |directory| match directory.as_os_str().is_empty() {
        true => Path::new(".").join(&name),
        false => directory.join(&name),
    })
}

fn executable(path: &Path) -> io::Result<()> {
    // Asked first: most places of PATH have no such name.
    may_be_executed(path)?;
    if path.is_dir() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(())
}

fn may_be_executed(path: &Path) -> io::Result<()> {
    match accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS) {
        // Filters that do not know faccessat2(2) answer so, too (libseccomp before 2.5). Who has the rights that it began with may ask the older call.
        Err(Errno::PERM | Errno::NOSYS) if has_own_rights() => {
            Ok(accessat(CWD, path, Access::EXEC_OK, AtFlags::empty())?)
        }
        asked => Ok(asked?),
    }
}

fn has_own_rights() -> bool {
    use rustix::process::{getegid, geteuid, getgid, getuid};
    getuid() == geteuid() && getgid() == getegid()
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

    /// As older container runtimes answer what their filter does not know.
    #[test]
    fn programs_are_found_where_a_filter_refuses_the_newer_call() {
        use prepage_sys::call_filter::{When, fail};
        use prepage_sys::forked::Forked;
        use prepage_testing::{Need, skip};
        for errno in [Errno::PERM, Errno::NOSYS] {
            let child = Forked::new(|| {
                if fail(errno.raw_os_error(), &[(libc::SYS_faccessat2, When::Always)]).is_err() {
                    return 2;
                }
                let refused = find("/etc/passwd".as_ref()).unwrap_err().kind();
                let is_told = refused == io::ErrorKind::PermissionDenied;
                i32::from(!(find("sh".as_ref()).is_ok() && !find_all("sh".as_ref()).is_empty() && is_told))
            });
            match child.unwrap().wait().unwrap().exit_status() {
                Some(2) => return skip(Need::Path("/proc/sys/kernel/seccomp".into()), "no filters"),
                status => assert_eq!(status, Some(0), "{errno}"),
            }
        }
    }

    #[test]
    fn links_to_prepage_stand_for_programs_and_are_none() {
        let dir = tempfile::tempdir().unwrap();
        let link = |name: &str, target: &str| {
            let link = dir.path().join(name);
            std::os::unix::fs::symlink(target, &link).unwrap();
            link
        };
        assert!(is_stand_in(&link("gcc", "/usr/local/bin/prepage")));
        assert!(!is_stand_in(&link("prepage", "/opt/prepage/bin/prepage")));
        assert!(!is_stand_in(&link("cc", "/usr/bin/gcc")) && !is_stand_in(Path::new("/bin/sh")));
        assert_eq!(find_all("sh".as_ref())[0], find("sh".as_ref()).unwrap());
        assert!(find_all("no-such-program".as_ref()).is_empty());
    }

    #[test]
    fn the_file_behind_links_is_found_in_memory_as_realpath_finds_it() {
        use prepage_testing::{Need, has};
        use std::os::unix::fs::{PermissionsExt, symlink};
        if !has(Need::Eviction(env!("CARGO_MANIFEST_DIR").into())) {
            return;
        }
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(at("bin/deep")).unwrap();
        std::fs::write(at("bin/program"), "").unwrap();
        std::fs::set_permissions(at("bin/program"), std::fs::Permissions::from_mode(0o755)).unwrap();
        let links = [
            ("relative", "bin/program".into()),
            ("absolute", at("bin/program")),
            ("twice", at("relative")),
            ("upwards", "bin/deep/../program".into()),
            ("directory", "bin".into()),
            ("bin/deep/link", "../program".into()),
            ("below", "directory/deep/link".into()),
            ("loop", "loop".into()),
            ("to-directory", "bin/deep".into()),
            ("gone", "none".into()),
            ("cc", "bin/prepage".into()),
        ];
        links.iter().for_each(|(link, target)| symlink(target, at(link)).unwrap());
        (0..8).for_each(|link| symlink(format!("chain{}", link + 1), at(&format!("chain{link}"))).unwrap());
        symlink("bin/program", at("chain8")).unwrap();
        let found = |name: &str| {
            // Memory tells what was looked up.
            let _ = at(name).metadata();
            ProgramAtHand::at(at(name))
        };
        let file = at("bin/program").canonicalize().unwrap();
        for name in [
            "bin/program",
            "bin/../bin/program",
            "relative",
            "absolute",
            "twice",
            "upwards",
            "directory/program",
            "bin/deep/link",
            "directory/deep/link",
            "below",
            "chain0",
        ] {
            let (called, told) = found(name).unwrap().unwrap().paths().unwrap();
            assert_eq!((called, told), (at(name), file.clone()), "{name}");
        }
        assert!(found("gone").is_none() && found("none").is_none());
        for name in ["loop", "to-directory", "cc"] {
            assert!(matches!(found(name), Some(None)), "{name}");
        }
    }

    /// It may be a network's, and not answer.
    #[test]
    fn no_file_system_but_the_machines_own_is_asked_for_what_comes_behind_the_program() {
        use prepage_testing::{Need, assert_passed, child_command, child_output, has, is_child, this_test};
        let test = this_test();
        let name = OsStr::new("program");
        if !is_child(&test) {
            if !has(Need::Path("/dev/shm".into())) {
                return;
            }
            let [dir, other] =
                [env!("CARGO_MANIFEST_DIR"), "/dev/shm"].map(|at| tempfile::tempdir_in(at).unwrap());
            std::fs::copy("/bin/true", dir.path().join(name)).unwrap();
            let search = |places: &[&Path]| {
                let mut child = child_command(&test, &[]);
                assert_passed(&child_output(child.env("PATH", std::env::join_paths(places).unwrap())));
            };
            search(&[dir.path(), other.path()]);
            search(&[dir.path(), other.path(), Path::new("/proc")]);
            std::fs::copy("/bin/true", other.path().join(name)).unwrap();
            return search(&[dir.path(), other.path()]);
        }
        let places: Vec<PathBuf> = candidates(name).collect();
        // In some containers nothing of /dev/shm may be executed.
        let all: Vec<PathBuf> = places.iter().filter(|path| executable(path).is_ok()).cloned().collect();
        // Which has no disk, and knows names that nobody has asked for yet.
        let has_unasked = places.last().unwrap().starts_with("/proc");
        assert_eq!(find_up_to(name, |_| true), (vec![places[0].clone()], has_unasked || all.len() > 1));
        assert_eq!(find_up_to(name, |_| false), (all, false), "as long as none is found that is wanted");
        assert_eq!(find_up_to("none".as_ref(), |_| true), (Vec::new(), false));
    }
}
