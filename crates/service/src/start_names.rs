//! What an observed start looks up, found or not: names that nobody opens, among them.
//!
//! The kernel tells of each name ([`prepage_sys::lookups`]) as the program gave it. One that is not absolute means something in the working directory
//! that its process had, which is followed as well.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use prepage_observe::asks::Asks;
use prepage_observe::sightings::Sightings;
use prepage_sys::lookups::{Followed, LookedUp, Lookups, RelativeTo};
use prepage_sys::rights::Rights;
use prepage_sys::root::{self, Root};

use crate::moment::Moment;
use crate::place::root_of;

/// After so many lookups the start is followed no further: each costs processor time.
const LOOKUPS_MAX: usize = 1 << 17;

/// Names that are kept: what the kernel may keep of all programs is less.
const NAMES_MAX: usize = 1 << 14;

/// Bytes of their paths, and of those of working directories, with what each takes beside.
const BYTES_MAX: usize = 4 << 20;
const ENTRY_BYTES: usize = 64;

/// The names of a start that is observed.
#[derive(Debug)]
pub struct StartNames {
    /// Until it is over.
    followed: Option<Followed>,
    /// What is known of working directories, by process.
    directories: HashMap<u32, Option<PathBuf>>,
    /// That of the first process when it began, which others have mostly, too.
    first: Option<PathBuf>,
    /// The root directory that the first process had then, where that is not the machine's.
    root: Option<(u64, u64)>,
    /// When each was looked up first.
    names: HashMap<PathBuf, u64>,
    /// What names and directories take.
    bytes: usize,
    looked_up: usize,
    is_whole: bool,
    /// Whether it was followed before it could look up names of its own.
    is_early: bool,
}

impl StartNames {
    /// Those of process `pid`, whose exec was told at this `moment`, and of what it starts, from now on.
    pub fn follow(pid: u32, moment: Moment, lookups: &Arc<Lookups>) -> Self {
        let first = directory_of(pid);
        let followed = lookups.follow(pid).ok();
        let is_whole = followed.is_some();
        let is_early = moment.is_loading(pid);
        let (root, first_of) = (root_of(pid), Self::of_nobody(first.clone()));
        let mut names = Self { followed, root, is_whole, is_early, ..first_of };
        names.enter(pid, first);
        names
    }

    /// Whether process `pid`, the first one, has the root that it had when it was followed first: of one that has entered another, as nsenter(1) and
    /// chroot(8) do for others, no names are seen since then, and those before mean other files.
    pub fn has_stayed(&self, pid: u32) -> bool {
        self.root == root_of(pid)
    }

    fn of_nobody(first: Option<PathBuf>) -> Self {
        Self {
            followed: None,
            directories: HashMap::new(),
            first,
            root: None,
            names: HashMap::new(),
            bytes: 0,
            looked_up: 0,
            is_whole: true,
            is_early: false,
        }
    }

    /// All of it, for [`Self::from_bytes`] in another process: whether it is whole and early, and each name with the time before it and a zero byte behind.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![u8::from(self.is_whole), u8::from(self.is_early)];
        for (path, time_ns) in &self.names {
            bytes.extend(time_ns.to_ne_bytes());
            bytes.extend(path.as_os_str().as_bytes());
            bytes.push(0);
        }
        bytes
    }

    /// The names that another process has followed. `None` where these are no such bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (&[is_whole, is_early], mut rest) = bytes.split_first_chunk()?;
        let mut names = Self { is_whole: is_whole == 1, is_early: is_early == 1, ..Self::of_nobody(None) };
        while let Some((time, others)) = rest.split_first_chunk() {
            let end = others.iter().position(|byte| *byte == 0)?;
            names.names.insert(OsString::from_vec(others[..end].to_vec()).into(), u64::from_ne_bytes(*time));
            rest = &others[end + 1..];
        }
        rest.is_empty().then_some(names)
    }

    /// Takes what was looked up since the last look.
    pub fn look(&mut self) {
        let Some(followed) = &self.followed else { return };
        let all = followed.take();
        self.looked_up += all.len();
        self.is_whole &= !followed.is_lost();
        all.into_iter().for_each(|one| self.see(one));
        if self.looked_up > LOOKUPS_MAX || self.bytes > BYTES_MAX {
            (self.followed, self.is_whole) = (None, false);
        }
    }

    fn see(&mut self, looked_up: LookedUp) {
        let LookedUp { time_ns, pid, relative_to, path, result } = looked_up;
        if self.bytes > BYTES_MAX {
            self.is_whole = false;
            return;
        }
        if !self.directories.contains_key(&pid) {
            self.enter(pid, directory_of(pid).or_else(|| self.first.clone()));
        }
        let path = PathBuf::from(OsString::from_vec(path));
        let path = match (relative_to, self.directories.get(&pid).and_then(Option::as_ref)) {
            (RelativeTo::EntersDescriptor, _) => {
                if result >= 0 {
                    self.enter(pid, directory_of(pid));
                }
                return;
            }
            (_, _) if path.is_absolute() => path,
            (RelativeTo::WorkingDirectory | RelativeTo::Enters, Some(directory)) => directory.join(path),
            // If it was opened, [`crate::opened`] has it.
            (RelativeTo::Descriptor | RelativeTo::WorkingDirectory | RelativeTo::Enters, _) => return,
        };
        if relative_to == RelativeTo::Enters && result >= 0 {
            self.enter(pid, Some(path.clone()));
        }
        if self.names.contains_key(&path) {
            return;
        }
        if self.names.len() < NAMES_MAX {
            self.bytes += ENTRY_BYTES + path.as_os_str().len();
            self.names.insert(path, time_ns);
        } else {
            self.is_whole = false;
        }
    }

    /// The working directory of process `pid` is this one from now on.
    fn enter(&mut self, pid: u32, directory: Option<PathBuf>) {
        let bytes_of =
            |one: &Option<PathBuf>| ENTRY_BYTES + one.as_ref().map_or(0, |path| path.as_os_str().len());
        self.bytes += bytes_of(&directory);
        self.bytes -= self.directories.insert(pid, directory).as_ref().map_or(0, bytes_of);
    }

    /// Adds to `sightings` what whoever has `rights` can look up as well, below `root` where there is one: a program with rights of its own may have
    /// looked elsewhere. What `asks` passes over is left out.
    ///
    /// # Errors
    /// Where the rights cannot be taken on.
    pub fn note(
        &self,
        rights: &Rights,
        root: Option<&Arc<Root>>,
        asks: &Asks,
        sightings: &mut Sightings,
    ) -> std::io::Result<()> {
        let _entered = root.map(Root::enter);
        let _assumed = rights.assume()?;
        let names = self.names.iter().filter(|(path, _)| may_look_up(path, asks));
        names.for_each(|(path, time_ns)| sightings.lookup(*time_ns, path, false));
        Ok(())
    }

    /// What was looked up, and when first.
    pub fn all(&self) -> impl Iterator<Item = (&Path, u64)> {
        self.names.iter().map(|(path, time_ns)| (path.as_path(), *time_ns))
    }

    /// Whether the start was followed from its beginning.
    pub fn is_early(&self) -> bool {
        self.is_early
    }

    /// Whether all was seen that the start has looked up since it is followed.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }
}

/// Where process `pid` is, as it has it itself; `None` where it is gone.
fn directory_of(pid: u32) -> Option<PathBuf> {
    let link = |name: &str| std::fs::read_link(format!("/proc/{pid}/{name}")).ok();
    let below = link("cwd")?.strip_prefix(link("root")?).ok()?.to_owned();
    Some(Path::new("/").join(below))
}

/// Whether the calling thread may look `path` up, whether or not it is there; no of what `asks` passes over.
pub fn may_look_up(path: &Path, asks: &Asks) -> bool {
    let found = asks.at(path, || root::symlink_metadata(path).map_err(|error| error.kind()));
    matches!(found, Some(Ok(_) | Err(ErrorKind::NotFound | ErrorKind::NotADirectory)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_to_another_process_as_they_are() {
        let mut names = StartNames { is_whole: false, is_early: true, ..StartNames::of_nobody(None) };
        for (path, time_ns) in [("/usr/bin/env", 7), ("/none\n", u64::MAX), ("/", 0)] {
            names.names.insert(path.into(), time_ns);
        }
        let bytes = names.to_bytes();
        let told = StartNames::from_bytes(&bytes).unwrap();
        assert_eq!((told.names, told.is_whole, told.is_early), (names.names, false, true));
        assert!(StartNames::from_bytes(&bytes[..bytes.len() - 1]).is_none());
        assert!(StartNames::from_bytes(&[1]).is_none());
    }

    /// A directory may be 4,000 bytes deep; a start may have thousands of processes there, and look up thousands of names.
    #[test]
    fn names_and_directories_take_so_many_bytes_and_what_is_beyond_is_told_as_lost() {
        const MANY: u32 = 1 << 12;
        // No processes have these numbers.
        const NOBODY: u32 = 1 << 30;
        let deep = PathBuf::from("/deep".repeat(800));
        let look_up = |names: &mut StartNames, pid: u32, path: String| {
            let relative_to = RelativeTo::WorkingDirectory;
            names.see(LookedUp { time_ns: 1, pid, relative_to, path: path.into(), result: 0 });
        };
        let names_of = |pid_of: fn(u32) -> u32, path_of: fn(u32) -> String| {
            let mut names = StartNames::of_nobody(Some(deep.clone()));
            look_up(&mut names, NOBODY, "first".into());
            assert!(names.is_whole());
            (0..MANY).for_each(|at| look_up(&mut names, pid_of(at), path_of(at)));
            let directories = names.directories.values().flatten();
            let bytes: usize = names.names.keys().chain(directories).map(|path| path.as_os_str().len()).sum();
            assert!(bytes < BYTES_MAX + 2 * deep.as_os_str().len(), "{bytes} bytes");
            assert!(names.names.contains_key(&deep.join("first")));
            names.is_whole()
        };
        assert!(!names_of(|_| NOBODY, |at| at.to_string()));
        assert!(!names_of(|at| NOBODY + at, |_| "first".into()));
        assert!(names_of(|_| NOBODY, |at| format!("/{at}")), "short ones fit");
    }
}
