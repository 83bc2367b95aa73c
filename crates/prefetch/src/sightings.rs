//! What was seen of a program's needs while it ran, however it was seen, made into the parts of a profile.
//!
//! ```text
//!  ptrace stops ──────────────┐
//!  page-cache events ─────────┼─► Sightings (time, file, pages) ─► by time ─► ranks ─► ProfiledFile, Lookup
//!  faults, stalled calls ─────┘
//! ```

use std::collections::{HashMap, HashSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use prepage_core::extent::{join, simplified};
use prepage_core::profile::{Evidence, Extent, Lookup, Profile, ProfiledFile, Touches};
use prepage_core::{PAGE_SIZE, PageIndex, PageRange};

use crate::clock;
use crate::identity::{fingerprint, identity_at, identity_of, open_if_same, open_to_read};

/// Places whose contents are made up by the kernel or live in memory: nothing there comes from a device.
const NOT_ON_A_DEVICE: [&str; 4] = ["/proc", "/sys", "/dev", "/run"];

/// File systems that live in memory (statfs magic numbers, include/uapi/linux/magic.h).
const MEMORY_FILE_SYSTEMS: [u64; 4] = [
    0x0102_1994, /* tmpfs */
    0x8584_58f6, /* ramfs */
    0x9fa0,      /* proc */
    0x6265_6572, /* sysfs */
];

/// Device (as [`rustix::fs::makedev`] encodes it) and inode.
pub type Inode = (u64, u64);

#[derive(Clone, Copy, Debug)]
enum Place {
    Named(usize),
    Inode(Inode),
}

#[derive(Clone, Copy, Debug)]
struct Sighting {
    time_ns: u64,
    place: Place,
    range: PageRange,
    evidence: Evidence,
    by_read: bool,
}

/// Pages and names seen in use, in any order.
#[derive(Debug)]
pub struct Sightings {
    /// As file times are stamped, nanoseconds since 1970.
    began_ns: i64,
    paths: Vec<PathBuf>,
    path_places: HashMap<PathBuf, usize>,
    inodes: HashMap<Inode, usize>,
    pages: Vec<Sighting>,
    /// Time, path, whether it was listed.
    names: Vec<(u64, String, bool)>,
}

/// What sightings come to.
#[derive(Debug, Default)]
pub struct Findings {
    /// In order of first use.
    pub files: Vec<ProfiledFile>,
    /// In order of first use, each path once.
    pub lookups: Vec<Lookup>,
    /// Pages of files whose path could not be found out.
    pub unnamed_pages: u64,
}

impl Findings {
    /// Adds what was prefetched on a guess and cannot be seen in a start that finds it in memory: reads that no longer
    /// wait, and names that were looked up before. What was seen comes last among the files, for [`Profile::absorb`] takes
    /// the last for what is there; guesses about files that are another content by now are left out.
    pub fn add_guess(&mut self, guess: Profile) {
        let parts = guess.files.into_iter().filter_map(read_part);
        let seen = std::mem::take(&mut self.files);
        self.files = parts.filter(|file| open_if_same(file).is_ok()).chain(seen).collect();
        let base = self.lookups.last().map_or(0, |last| last.rank.saturating_add(1));
        self.lookups.extend(
            guess.lookups.into_iter().map(|name| Lookup { rank: name.rank.saturating_add(base), ..name }),
        );
    }
}

/// The pages of a file that read() uses; `None` where there are none.
fn read_part(file: ProfiledFile) -> Option<ProfiledFile> {
    let extents: Vec<Extent> = file.extents.iter().filter(|extent| extent.by_read).copied().collect();
    (!extents.is_empty()).then_some(ProfiledFile { extents, ..file })
}

impl Default for Sightings {
    fn default() -> Self {
        Self {
            began_ns: clock::file_time_ns(),
            paths: Vec::new(),
            path_places: HashMap::new(),
            inodes: HashMap::new(),
            pages: Vec::new(),
            names: Vec::new(),
        }
    }
}

impl Sightings {
    /// Notes that at `time_ns` the pages `range` of the file `path` were used.
    pub fn pages(&mut self, time_ns: u64, path: &Path, range: PageRange, evidence: Evidence) {
        self.named(time_ns, path, range, evidence, false);
    }

    /// Notes that at `time_ns` a read() used the pages `range` of the file `path`.
    pub fn read(&mut self, time_ns: u64, path: &Path, range: PageRange, evidence: Evidence) {
        self.named(time_ns, path, range, evidence, true);
    }

    fn named(&mut self, time_ns: u64, path: &Path, range: PageRange, evidence: Evidence, by_read: bool) {
        if is_on_a_device(path) {
            let place = Place::Named(self.place(path));
            self.pages.push(Sighting { time_ns, place, range, evidence, by_read });
        }
    }

    /// Notes the same of a file of which only device and inode are known; [`Self::name`] may tell its path.
    pub fn inode_pages(&mut self, time_ns: u64, inode: Inode, range: PageRange, evidence: Evidence) {
        let place = Place::Inode(inode);
        self.pages.push(Sighting { time_ns, place, range, evidence, by_read: false });
    }

    /// Notes that the file with this inode is called `path`.
    pub fn name(&mut self, inode: Inode, path: &Path) {
        if !self.inodes.contains_key(&inode) && is_on_a_device(path) {
            let place = self.place(path);
            self.inodes.insert(inode, place);
        }
    }

    /// Notes that at `time_ns` the kernel was asked for `path`, or for the entries of the directory `path`.
    pub fn lookup(&mut self, time_ns: u64, path: &Path, list: bool) {
        if let Some(path) = path.to_str().filter(|path| path.starts_with('/'))
            && is_on_a_device(Path::new(path))
        {
            self.names.push((time_ns, path.into(), list));
        }
    }

    /// Forgets what was seen later than `time_ns`.
    pub fn forget_after(&mut self, time_ns: u64) {
        self.pages.retain(|sighting| sighting.time_ns <= time_ns);
        self.names.retain(|(seen_ns, ..)| *seen_ns <= time_ns);
    }

    /// Everything seen, in order of first use. Files that are gone, not regular, unreadable, in memory only, or
    /// written to or replaced since the sightings began are left out: they are not there for the next start, or not the same.
    pub fn findings(mut self) -> Findings {
        self.pages.sort_by_key(|sighting| sighting.time_ns);
        self.names.sort_by_key(|&(time_ns, ..)| time_ns);
        let mut unnamed_pages = 0;
        let mut files: Vec<(usize, Touches)> = Vec::new();
        let mut file_places: HashMap<usize, usize> = HashMap::new();
        for (rank, sighting) in self.pages.iter().enumerate() {
            let range = sighting.range;
            let place = match sighting.place {
                Place::Named(place) => Some(place),
                Place::Inode(inode) => self.place_of_inode(inode),
            };
            let Some(place) = place else {
                unnamed_pages += range.len();
                continue;
            };
            let at = *file_places.entry(place).or_insert_with(|| {
                files.push((place, Touches::default()));
                files.len() - 1
            });
            let (touches, rank) = (&mut files[at].1, u32::try_from(rank).unwrap_or(u32::MAX));
            if sighting.by_read {
                touches.read_range(range, rank, sighting.evidence);
            } else {
                touches.touch_range(range, rank, sighting.evidence);
            }
        }
        let files =
            files.into_iter().filter_map(|(place, touches)| self.profiled(&self.paths[place], touches));
        let files = merge_links(files);
        let mut lookups = unique(self.names);
        lookups.retain(|lookup| !is_of_this_run_only(Path::new(&lookup.path), self.began_ns));
        Findings { files, lookups, unnamed_pages }
    }

    fn place(&mut self, path: &Path) -> usize {
        if let Some(&place) = self.path_places.get(path) {
            return place;
        }
        self.paths.push(path.into());
        self.path_places.insert(path.into(), self.paths.len() - 1);
        self.paths.len() - 1
    }

    /// The file with this inode. Stacked file systems show a device of their own to stat, while the kernel's
    /// events name the device below; the inode number is the same, and decides where it is unmistakable.
    fn place_of_inode(&self, inode: Inode) -> Option<usize> {
        self.inodes.get(&inode).copied().or_else(|| {
            let mut same_number = self.inodes.iter().filter(|((_, number), _)| *number == inode.1);
            match (same_number.next(), same_number.next()) {
                (Some((_, &place)), None) => Some(place),
                _ => None,
            }
        })
    }

    fn profiled(&self, path: &Path, mut touches: Touches) -> Option<ProfiledFile> {
        let path = path.canonicalize().ok()?;
        // Before it is opened: opening a pipe lets go whoever waits at its other end.
        identity_at(&path).ok()?;
        let file = open_to_read(&path).ok()?;
        let identity = identity_of(&file).ok()?;
        let in_memory = rustix::fs::fstatfs(&file)
            .is_ok_and(|statfs| MEMORY_FILE_SYSTEMS.contains(&(statfs.f_type as u64)));
        // The time of the inode's change, which no program sets, tells of a file moved into the place of the one seen, too.
        if in_memory || identity.mtime_ns.max(identity.ctime_ns) >= self.began_ns {
            return None;
        }
        touches.truncate(PageIndex(identity.size_bytes.div_ceil(PAGE_SIZE)));
        if touches.is_empty() {
            return None;
        }
        let fingerprint = fingerprint(&file, identity.size_bytes).ok()?;
        Some(ProfiledFile {
            path: path.to_str()?.into(),
            identity,
            fingerprint,
            learned_unix_s: (self.began_ns / 1_000_000_000).try_into().unwrap_or(0),
            extents: touches.extents(),
        })
    }
}

/// One entry for files that were reached by several paths.
fn merge_links(files: impl Iterator<Item = ProfiledFile>) -> Vec<ProfiledFile> {
    let mut merged: Vec<ProfiledFile> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for file in files {
        match places.get(&file.path) {
            None => {
                places.insert(file.path.clone(), merged.len());
                merged.push(file);
            }
            Some(&at) => {
                merged[at].extents = simplified(&join(&merged[at].extents, &file.extents));
            }
        }
    }
    merged
}

fn unique(names: Vec<(u64, String, bool)>) -> Vec<Lookup> {
    let listed: HashSet<String> =
        names.iter().filter(|(.., list)| *list).map(|(_, path, _)| path.clone()).collect();
    let mut seen = HashSet::new();
    let mut lookups: Vec<Lookup> = Vec::new();
    for (_, path, _) in names {
        if seen.insert(path.clone()) {
            let rank = u32::try_from(lookups.len()).unwrap_or(u32::MAX);
            lookups.push(Lookup { rank, list: listed.contains(&path), path });
        }
    }
    lookups
}

/// Whether a name was made during the run, or looks like one that was and is gone: temporary files have another name
/// in each run.
fn is_of_this_run_only(path: &Path, began_ns: i64) -> bool {
    let changed_ns = |path: &Path| {
        let metadata = std::fs::symlink_metadata(path).ok()?;
        let ns = |s: i64, ns: i64| s * 1_000_000_000 + ns;
        Some((ns(metadata.ctime(), metadata.ctime_nsec()), ns(metadata.mtime(), metadata.mtime_nsec())))
    };
    match (changed_ns(path), path.parent().and_then(changed_ns)) {
        (Some((changed, _)), _) if path.is_dir() => {
            changed >= began_ns && path.read_dir().is_ok_and(|mut d| d.next().is_none())
        }
        (Some((changed, _)), _) => changed >= began_ns,
        (None, Some((_, parent_modified))) => parent_modified >= began_ns,
        (None, None) => false,
    }
}

fn is_on_a_device(path: &Path) -> bool {
    path.is_absolute() && !NOT_ON_A_DEVICE.iter().any(|place| path.starts_with(place))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    fn range(start: u64, end: u64) -> PageRange {
        PageRange::new(PageIndex(start), PageIndex(end))
    }

    /// A file in a directory of the build tree: the system's temporary directory may be in memory.
    fn old_file(dir: &Path, name: &str) -> PathBuf {
        let path = dir.join(name);
        std::fs::write(&path, vec![1u8; 10 * 4096 + 1]).unwrap();
        make_old(&path);
        path
    }

    fn make_old(path: &Path) {
        let hour_ago = SystemTime::now() - Duration::from_secs(3600);
        std::fs::File::options().write(true).open(path).unwrap().set_modified(hour_ago).unwrap();
        // What changed in the very moment in which the sightings begin counts as changed since.
        let metadata = path.metadata().unwrap();
        let changed_ns = metadata.ctime() * 1_000_000_000 + metadata.ctime_nsec();
        while clock::file_time_ns() <= changed_ns {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_file_that_took_the_place_of_the_one_seen_is_left_out() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let (seen, other) = (old_file(dir.path(), "seen"), old_file(dir.path(), "other"));
        let mut sightings = Sightings::default();
        sightings.pages(1, &seen, range(0, 1), Evidence::Seen);
        sightings.pages(1, &other, range(0, 1), Evidence::Seen);
        std::thread::sleep(Duration::from_millis(20));
        std::fs::rename(&other, &seen).unwrap();
        assert!(sightings.findings().files.is_empty());
    }

    #[test]
    fn pages_are_ranked_by_time_and_end_with_the_file() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let (a, b) = (old_file(dir.path(), "a"), old_file(dir.path(), "b"));
        let mut sightings = Sightings::default();
        sightings.pages(30, &a, range(2, 40), Evidence::Seen);
        sightings.pages(10, &b, range(0, 1), Evidence::Seen);
        sightings.inode_pages(20, (7, 8), range(9, 10), Evidence::Exact);
        sightings.inode_pages(20, (9, 9), range(0, 3), Evidence::Exact);
        sightings.name((7, 8), &a);
        let findings = sightings.findings();
        let names: Vec<_> = findings.files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(
            names,
            [b.canonicalize().unwrap().to_str().unwrap(), a.canonicalize().unwrap().to_str().unwrap()]
        );
        assert_eq!(findings.files[1].pages(), 9, "pages 2 to 10 of a file of 10 pages and a byte");
        assert_eq!(findings.unnamed_pages, 3);
    }

    #[test]
    fn links_to_one_file_are_one_entry() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let a = old_file(dir.path(), "a");
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&a, &link).unwrap();
        let mut sightings = Sightings::default();
        sightings.pages(1, &link, range(0, 1), Evidence::Seen);
        sightings.pages(2, &a, range(1, 2), Evidence::Seen);
        let findings = sightings.findings();
        assert_eq!(findings.files.len(), 1);
        assert_eq!(findings.files[0].extents[0].range, range(0, 2));
    }

    #[test]
    fn what_the_run_itself_wrote_and_what_is_no_file_is_left_out() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let mut sightings = Sightings::default();
        let written = dir.path().join("written");
        std::fs::write(&written, "new").unwrap();
        sightings.pages(1, &written, range(0, 1), Evidence::Seen);
        sightings.pages(1, Path::new("/proc/self/exe"), range(0, 1), Evidence::Seen);
        sightings.pages(1, dir.path(), range(0, 1), Evidence::Seen);
        sightings.pages(1, &dir.path().join("gone"), range(0, 1), Evidence::Seen);
        assert!(sightings.findings().files.is_empty());
    }

    #[test]
    fn a_guess_neither_replaces_what_was_seen_nor_speaks_of_what_is_gone() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let (replaced, kept) = (old_file(dir.path(), "replaced"), old_file(dir.path(), "kept"));
        let seen_in = |paths: &[&Path], page| {
            let mut sightings = Sightings::default();
            for path in paths {
                sightings.read(1, path, range(page, page + 1), Evidence::Seen);
                sightings.lookup(1, path, false);
            }
            sightings.findings()
        };
        let guess = seen_in(&[&replaced, &kept], 3);
        std::fs::write(&replaced, vec![2u8; 20 * 4096]).unwrap();
        make_old(&replaced);
        let mut findings = seen_in(&[&replaced], 5);
        let (files, lookups) = (guess.files, guess.lookups);
        findings.add_guess(Profile { files, lookups, ..Profile::default() });
        let mut profile = Profile::default();
        profile.absorb(findings.files, findings.lookups);
        let pages: Vec<_> = profile.files.iter().map(|file| file.extents[0].range).collect();
        assert_eq!(pages, [range(3, 4), range(5, 6)]);
        assert!(profile.files[1].path.ends_with("/replaced"));
        assert_eq!(profile.lookups.iter().map(|name| name.rank).collect::<Vec<_>>(), [0, 2]);
    }

    #[test]
    fn a_pipe_is_not_opened() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).unwrap();
        let (opened, is_opened) = std::sync::mpsc::channel();
        let writer = std::thread::spawn({
            let fifo = fifo.clone();
            move || {
                let _ = std::fs::File::options().write(true).open(&fifo);
                let _ = opened.send(());
            }
        });
        // The writer waits for a reader before this looks at the pipe, or comes to wait when it is over.
        std::thread::sleep(Duration::from_millis(50));
        let mut sightings = Sightings::default();
        sightings.read(1, &fifo, range(0, 1), Evidence::Seen);
        assert!(sightings.findings().files.is_empty());
        assert!(is_opened.recv_timeout(Duration::from_millis(100)).is_err(), "the writer was let go");
        drop(std::fs::File::open(&fifo).unwrap());
        writer.join().unwrap();
    }

    #[test]
    fn names_stand_once_in_order_of_first_use() {
        let mut sightings = Sightings::default();
        sightings.lookup(5, Path::new("/usr/b"), false);
        sightings.lookup(3, Path::new("/usr/a"), false);
        sightings.lookup(9, Path::new("/usr/a"), true);
        sightings.lookup(1, Path::new("relative"), false);
        sightings.lookup(1, Path::new("/dev/null"), false);
        let lookups = sightings.findings().lookups;
        let expected = [(0, "/usr/a", true), (1, "/usr/b", false)].map(|(rank, path, list)| Lookup {
            rank,
            path: path.into(),
            list,
        });
        assert_eq!(lookups, expected);
    }
}
