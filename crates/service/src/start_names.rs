//! What an observed start looks up, found or not: names that nobody opens, among them.
//!
//! The kernel tells of each name ([`prepage_sys::lookups`]) as the program gave it. One that is not absolute means something in the working directory
//! that its process had, which is followed as well.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
        let (directories, names) = (HashMap::from([(pid, first.clone())]), HashMap::new());
        let root = root_of(pid);
        Self { followed, directories, first, root, names, looked_up: 0, is_whole, is_early }
    }

    /// Whether process `pid`, the first one, has the root that it had when it was followed first: of one that has entered another, as nsenter(1) and
    /// chroot(8) do for others, no names are seen since then, and those before mean other files.
    pub fn has_stayed(&self, pid: u32) -> bool {
        self.root == root_of(pid)
    }

    /// Takes what was looked up since the last look.
    pub fn look(&mut self) {
        let Some(followed) = &self.followed else { return };
        let all = followed.take();
        self.looked_up += all.len();
        let is_too_much = self.looked_up > LOOKUPS_MAX;
        self.is_whole &= !followed.is_lost() && !is_too_much;
        if is_too_much {
            self.followed = None;
        }
        all.into_iter().for_each(|one| self.see(one));
    }

    fn see(&mut self, looked_up: LookedUp) {
        let LookedUp { time_ns, pid, relative_to, path, result } = looked_up;
        let path = PathBuf::from(OsString::from_vec(path));
        let first = &self.first;
        let directory =
            self.directories.entry(pid).or_insert_with(|| directory_of(pid).or_else(|| first.clone()));
        let path = match (relative_to, directory.as_ref()) {
            (RelativeTo::EntersDescriptor, _) => {
                if result >= 0 {
                    *directory = directory_of(pid);
                }
                return;
            }
            (_, _) if path.is_absolute() => path,
            (RelativeTo::WorkingDirectory | RelativeTo::Enters, Some(directory)) => directory.join(path),
            // If it was opened, [`crate::opened`] has it.
            (RelativeTo::Descriptor | RelativeTo::WorkingDirectory | RelativeTo::Enters, _) => return,
        };
        if relative_to == RelativeTo::Enters && result >= 0 {
            *directory = Some(path.clone());
        }
        if self.names.len() < NAMES_MAX || self.names.contains_key(&path) {
            self.names.entry(path).or_insert(time_ns);
        } else {
            self.is_whole = false;
        }
    }

    /// Adds to `sightings` what whoever has `rights` can look up as well, below `root` where there is one: a program with rights of its own may have
    /// looked elsewhere.
    ///
    /// # Errors
    /// Where the rights cannot be taken on.
    pub fn note(
        &self,
        rights: &Rights,
        root: Option<&Arc<Root>>,
        sightings: &mut Sightings,
    ) -> std::io::Result<()> {
        let _entered = root.map(Root::enter);
        let _assumed = rights.assume()?;
        let names = self.names.iter().filter(|(path, _)| may_look_up(path));
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

/// Whether the calling thread may look `path` up, whether or not it is there.
pub fn may_look_up(path: &Path) -> bool {
    let found = root::symlink_metadata(path).map_err(|error| error.kind());
    matches!(found, Ok(_) | Err(ErrorKind::NotFound | ErrorKind::NotADirectory))
}
