//! What of a start all users of the machine may be told.
//!
//! Everybody may read the machine's profiles. What another user than root may have put in the place of a file, and what a user typed, stay that user's own.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use prepage_core::profile::observation::Observation;
use prepage_core::profile::role::{given, is_at, is_private};
use prepage_profiles::public;
use prepage_sys::root;

use crate::process::Process;

/// Where root installs programs, and what git runs for a subcommand.
const INSTALLED: [&str; 8] = [
    "/usr/local/bin",
    "/usr/local/sbin",
    "/usr/bin",
    "/usr/sbin",
    "/bin",
    "/sbin",
    "/usr/lib/git-core",
    "/usr/libexec/git-core",
];
/// Accounts of no people: those of the system, those that systemd makes for a service as it starts, and nobody's.
const OF_NOBODY: [RangeInclusive<u32>; 3] = [0..=999, 61_184..=65_519, 65_534..=65_534];
/// An ending of a name that is longer is a name itself, as in roles.
const ENDING_BYTES_MAX: usize = 5;
const ENDINGS_MAX: usize = 2;

/// Whether what a start shows may be told to all users of the machine: the program, and the files that its role names. What another user
/// than root may have put there is for that user alone.
pub(crate) fn is_for_all(process: &Process) -> bool {
    let is_for_all = |path: &Path| public::is_for_all(path) && Owners::of(process).is_of_root(path);
    !is_private(&process.context.key.role)
        && is_for_all(process.program())
        && process.places.iter().all(|place| is_for_all(place))
}

/// Whether root has called the program so: as root, or in a unit that the machine's first process runs for an account that is nobody's.
pub(crate) fn is_called_by_root(process: &Process) -> bool {
    const FIRST: u32 = 1;
    let uid = process.rights.uid;
    let is_of_nobody = OF_NOBODY.iter().any(|range| range.contains(&uid));
    uid == 0 || is_of_nobody && process.parents.first() == Some(&FIRST)
}

/// Whether words of the call stand in the role that are not the names of files which root has installed: they may say what its user works on.
pub(crate) fn has_words_of_its_own(process: &Process) -> bool {
    let mut owners = Owners { by_root: false, root_uid: 0, directories: HashMap::new() };
    let directories = process.program().parent().into_iter().chain(INSTALLED.map(Path::new));
    let directories: Vec<&Path> = directories.collect();
    let mut is_installed = |name: &str| {
        let is_there = |directory: &&Path| {
            let path = directory.join(name);
            path.is_file() && owners.is_of_root(&path)
        };
        !name.contains('/') && directories.iter().any(is_there)
    };
    let role = &process.context.key.role;
    let program = role.split(' ').next().unwrap_or_default();
    given(role).any(|word| {
        // A shell that is a login's has a dash in front of its name.
        let name = if word == program { word.trim_start_matches('-') } else { word };
        if is_installed(name) || is_installed(&format!("{program}-{word}")) {
            return false;
        }
        // The file has been found to be for all.
        let Some((name, _)) = word.rsplit_once('@') else { return true };
        let is_it = |place: &PathBuf| place.to_str().is_some_and(|path| is_at(word, path));
        let place = process.places.iter().find(|place| is_it(place));
        place.is_none_or(|place| place.file_name() != Some(name.as_ref()) && !is_installed(name))
    })
}

/// Who decides what lies where, for one start. A start looks up many names in few directories.
pub(crate) struct Owners {
    /// Whether root has started it. Root in a container may be anybody.
    by_root: bool,
    /// Who is root: in a container whoever owns its root directory.
    root_uid: u32,
    /// Whether root alone decides what a directory is.
    directories: HashMap<PathBuf, bool>,
}

impl Owners {
    pub(crate) fn of(process: &Process) -> Self {
        let root = process.root.as_ref();
        Self {
            by_root: root.is_none() && process.rights.uid == 0,
            root_uid: root.map_or(0, |root| root.owner()),
            directories: HashMap::new(),
        }
    }

    /// Whether root alone decides what lies at `path`; of what root has started, whether it is root's, wherever root has put it.
    fn is_of_root(&mut self, path: &Path) -> bool {
        let found = root::symlink_metadata(path);
        let is_link = found.as_ref().is_ok_and(std::fs::Metadata::is_symlink);
        let followed = if is_link { root::metadata(path) } else { found };
        if self.by_root && followed.as_ref().is_ok_and(|file| file.uid() == 0) {
            return true;
        }
        let (Some(directory), Some(_), false) = (path.parent(), path.file_name(), is_link) else {
            return public::is_of(self.root_uid, path);
        };
        let is_of_root_here = match followed {
            Ok(file) => file.uid() == self.root_uid && file.mode() & 0o022 == 0,
            Err(error) => matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory),
        };
        is_of_root_here && self.is_directory_of_root(directory)
    }

    fn is_directory_of_root(&mut self, directory: &Path) -> bool {
        match self.directories.get(directory) {
            Some(is_of_root) => *is_of_root,
            None => {
                *self.directories.entry(directory.into()).or_insert(public::is_of(self.root_uid, directory))
            }
        }
    }
}

/// Leaves of what a start used what would be there for all others: no user has all of them read files that the user chose, and nobody
/// learns from names what a user has, or looks for. What root has started may go on as a user, as sshd(8) and su(1) do.
pub(crate) fn keep_what_is_of_root(observation: &mut Observation, owners: &mut Owners) {
    observation.files.retain(|file| owners.is_of_root(Path::new(&file.path)));
    observation.names.retain(|name| owners.is_of_root(Path::new(&name.path)));
    keep_no_text(observation);
}

/// Leaves out names of nothing that the user may have typed, or given to the program in some other way. What stays are other places, and other
/// endings, in which a program looks for what it finds: no word in them is new, but endings as short as kinds of files.
fn keep_no_text(observation: &mut Observation) {
    let paths = observation.files.iter().map(|file| &file.path);
    let names = observation.names.iter().map(|name| &name.path).filter(|name| is_there(Path::new(name)));
    let words: HashSet<String> =
        paths.chain(names).flat_map(|path| path.split('/')).flat_map(words_of).map(str::to_owned).collect();
    let is_ending =
        |word: &str| word.len() <= ENDING_BYTES_MAX && word.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let is_known = |part: &OsStr| {
        part.to_str().is_some_and(|part| {
            let mut parts = words_of(part);
            let is_first_known = parts.next().is_some_and(|first| words.contains(first));
            // More endings than `.so.1` has may be a text in pieces.
            let new: Vec<&str> = parts.filter(|word| !words.contains(*word)).collect();
            is_first_known && new.len() <= ENDINGS_MAX && new.into_iter().all(is_ending)
        })
    };
    observation.names.retain(|name| {
        let mut missing = Path::new(&name.path).ancestors().take_while(|path| !is_there(path));
        missing.all(|path| path.file_name().is_some_and(is_known))
    });
}

fn is_there(path: &Path) -> bool {
    root::symlink_metadata(path).is_ok()
}

/// `libc`, `so` and `6` of `libc.so.6`, and `.profile` of itself.
fn words_of(name: &str) -> impl Iterator<Item = &str> {
    let first_bytes = name.chars().next().map_or(0, char::len_utf8);
    let end = name[first_bytes..].find('.').map_or(name.len(), |at| first_bytes + at);
    let endings = name.get(end + 1..).into_iter().flat_map(|endings| endings.split('.'));
    std::iter::once(&name[..end]).chain(endings)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use prepage_core::profile::observation::ObservedName;

    use super::*;

    /// A name for each way in which somebody else may decide what lies there.
    #[test]
    fn what_root_decides_is_told_as_path_by_path() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let [open, closed] = ["open", "closed"].map(|name| directory.path().join(name));
        for (path, mode) in [(&open, 0o777), (&closed, 0o755)] {
            std::fs::create_dir(path).unwrap();
            std::fs::write(path.join("file"), "").unwrap();
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        std::os::unix::fs::symlink(open.join("file"), closed.join("link")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", closed.join("good")).unwrap();
        let below = |name: &str| directory.path().join(name);
        let names = [
            "open/file",
            "open/none",
            "closed/file",
            "closed/none",
            "closed/link",
            "closed/good",
            "closed/..",
            "open/../closed/file",
        ];
        let usual = [
            "/",
            "/etc/passwd",
            "/etc/none",
            "/usr/../etc/passwd",
            "/etc/passwd/none",
            "/bin/sh",
            "/tmp/none",
        ];
        let mut owners = Owners { by_root: false, root_uid: 0, directories: HashMap::new() };
        for path in usual.map(PathBuf::from).into_iter().chain(names.map(below)) {
            assert_eq!(owners.is_of_root(&path), public::is_of_root(&path), "{}", path.display());
        }
    }

    /// Whoever reads the machine's profiles does not learn what others looked for.
    #[test]
    fn of_names_that_are_not_there_only_those_go_to_all_that_are_tried_for_one_that_is() {
        let kept = |by_root| {
            let name = |path: &str| ObservedName { path: path.into(), list: false };
            let there = ["/usr/bin/env", "/etc/passwd", "/usr/share"];
            let tried = ["/usr/local/bin/env", "/usr/share/env.so.1", "/usr/share/bin/env"];
            let typed = [
                "/project-x-offer",
                "/usr/bin/project-x",
                "/usr/no-such-directory/env",
                "/etc/.env.swp",
                "/usr/bin/env3.9-secret",
                "/usr/bin/env.secrets",
                "/usr/bin/env.proje.ctx.offer",
            ];
            let mut observation = Observation {
                names: there.into_iter().chain(tried).chain(typed).map(name).collect(),
                ..Observation::of_nothing(1)
            };
            keep_what_is_of_root(
                &mut observation,
                &mut Owners { by_root, root_uid: 0, directories: HashMap::new() },
            );
            assert!(
                observation.names.starts_with(&there.into_iter().chain(tried).map(name).collect::<Vec<_>>())
            );
            observation.names.len() - there.len() - tried.len()
        };
        // What root has started may go on as a user.
        assert_eq!((kept(false), kept(true)), (0, 0));
    }
}
