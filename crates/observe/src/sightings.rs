//! What was seen of a program's needs while it ran, however it was seen, made into an [`Observation`].
//!
//! ```text
//!  faults, page tables ───────┐
//!  the agent's log, stalls ───┴─► Sightings (file, page, first use) ─► by time ─► ranks ─► ObservedFile, ObservedName
//! ```

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use prepage_core::profile::extent::are_used_together;
use prepage_core::profile::observation::{
    Coverage, Observation, ObservedFile, ObservedName, Order, UsedPages,
};
use prepage_core::quantity::counted;
use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_sys::clock::unix_s;
use prepage_sys::file_system::{BTRFS, OVERLAYFS, kind_of, without_device};
use prepage_sys::root;
use rustc_hash::FxHashMap;

use crate::asks::{Ask, Asks};
use crate::began::{Began, is_of_this_run_only};
use crate::loads::{Loads, loader_cache};
use prepage_profiles::identity::{content_of, identity_at, identity_of, open_to_read};

/// Places whose contents are made up by the kernel or live in memory: nothing there comes from a device.
const NOT_ON_A_DEVICE: [&str; 4] = ["/proc", "/sys", "/dev", "/run"];

/// What ld.so of glibc looks for first, before the agent is there. Hardly any machine has it.
const LOADER_PRELOAD: &str = "/etc/ld.so.preload";

/// Device (as [`rustix::fs::makedev`] encodes it) and inode, as the kernel's events tell them.
pub type Inode = (u64, u64);

/// Pages noted at most, 2 GiB of files, in some 30 MB of memory. A start that uses more reads its files as a whole.
pub const PAGES_MAX: usize = 1 << 19;
/// Names noted at most.
pub const NAMES_MAX: usize = 1 << 16;
/// How often pages are looked up at most, each some nanoseconds: a build of ten thousand programs that use as many pages each. Programs may tell of
/// all their pages in each record of the agents' log, and have them looked up for hours.
const LOOKUPS_MAX: u64 = 1 << 28;
/// What a page takes that is noted, when all are put in order: some 50 bytes until then, and 75 to 110 while that is done. And what a name takes, twice as
/// one that was opened.
const PAGE_NOTE_BYTES: u64 = 128;
const NAME_NOTE_BYTES: u64 = 512;

/// Bytes of all paths that are noted, of files and of names.
const PATHS_BYTES_MAX: usize = 16 << 20;

/// A file, as it was seen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Seen {
    /// The path by which it was mapped or read. Empty if it is not known.
    pub path: PathBuf,
    /// Its identity, if known.
    pub inode: Option<Inode>,
}

/// First use of a page.
#[derive(Clone, Copy, Debug)]
struct Use {
    time_ns: u64,
    /// Where that is an estimate: when the page was seen to have been touched.
    until_ns: Option<u64>,
    by_read: bool,
    is_sure: bool,
}

/// By page: rank and first use.
type RankedUses = FxHashMap<u64, (u32, Use)>;

/// A file that pages are noted of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileIndex(usize);

/// Pages of one file in use.
#[derive(Debug)]
struct Uses {
    of: Seen,
    /// By page. Noted for each fault of the start, on a processor that the program may need.
    pages: FxHashMap<u64, Use>,
    /// Whether some of them were used where neighbours of a fault do not fault.
    has_windows: bool,
}

/// Pages and names seen in use, in any order.
#[derive(Debug)]
pub struct Sightings {
    began: Began,
    places: HashMap<Seen, FileIndex>,
    files: Vec<Uses>,
    pages: usize,
    /// Pages of mappings that are new since they were last taken, where somebody takes them.
    new: Option<Vec<(FileIndex, PageIndex)>>,
    names: HashMap<String, Name>,
    /// Files that were opened to be read, by name.
    opened: HashSet<PathBuf>,
    loads: Loads,
    /// Processes of the start.
    processes: HashSet<u32>,
    /// A file that only observed starts use.
    agent: Option<PathBuf>,
    /// Bytes of paths that may still be noted.
    paths_bytes_left: usize,
    is_full: bool,
    lookups_left: u64,
    /// How many pages and names are noted at most.
    pages_max: usize,
    names_max: usize,
    /// Who gives leave to ask for files.
    leave: Option<Ask>,
}

#[derive(Clone, Copy, Debug)]
struct Name {
    time_ns: u64,
    list: bool,
}

impl Default for Sightings {
    fn default() -> Self {
        Self {
            began: Began::now(),
            places: HashMap::new(),
            files: Vec::new(),
            pages: 0,
            new: None,
            names: HashMap::new(),
            opened: HashSet::new(),
            loads: Loads::default(),
            processes: HashSet::new(),
            agent: None,
            paths_bytes_left: PATHS_BYTES_MAX,
            is_full: false,
            lookups_left: LOOKUPS_MAX,
            pages_max: PAGES_MAX,
            names_max: NAMES_MAX,
            leave: None,
        }
    }
}

impl Sightings {
    /// Nothing yet, and never anything of the file `agent`.
    pub fn without(agent: Option<PathBuf>) -> Self {
        Self { agent, ..Self::default() }
    }

    /// Has [`Self::observation`] ask for those files alone that `leave` is given for; for all where there is nobody to give it.
    pub fn ask_by(&mut self, leave: Option<Ask>) {
        self.leave = leave;
    }

    /// Has no more pages and names noted than some `bytes` of memory hold of each, and of their paths.
    pub fn keep_within(&mut self, bytes: u64) {
        let most = |bytes_each: u64| usize::try_from(bytes / bytes_each).unwrap_or(usize::MAX);
        self.pages_max = self.pages_max.min(most(PAGE_NOTE_BYTES));
        self.names_max = self.names_max.min(most(NAME_NOTE_BYTES));
        self.paths_bytes_left = self.paths_bytes_left.min(most(1));
    }

    /// The file mapped as `path`; `None` where nothing is noted of it: what is on no device, the agent, and what there is no room for.
    pub fn place(&mut self, path: &Path, inode: Option<Inode>) -> Option<FileIndex> {
        let is_noted = is_on_a_device(path) && self.agent.as_deref() != Some(path);
        if !is_noted {
            return None;
        }
        let seen = Seen { path: path.into(), inode };
        (self.places.contains_key(&seen) || self.takes_room(path)).then(|| self.at(seen))
    }

    /// Whether the page `page` of the file at `place` is noted.
    pub fn holds(&self, place: FileIndex, page: PageIndex) -> bool {
        self.files[place.0].pages.contains_key(&page.0)
    }

    /// The file at `place`.
    pub fn file(&self, place: FileIndex) -> &Seen {
        &self.files[place.0].of
    }

    /// Whether new pages of mappings are kept for [`Self::take_new`] from now on.
    pub fn keep_new(&mut self, is_wanted: bool) {
        self.new = is_wanted.then(|| self.new.take().unwrap_or_default());
    }

    /// The pages of mappings that are new since they were last taken.
    pub fn take_new(&mut self) -> Vec<(FileIndex, PageIndex)> {
        self.new.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Notes that at `time_ns` the page `page` of the file at `place` was touched. Returns whether that is news.
    pub fn touch(&mut self, time_ns: u64, place: FileIndex, page: PageIndex) -> bool {
        self.note(place, page.0, Use { time_ns, until_ns: None, by_read: false, is_sure: true })
    }

    /// The same, where all that is known is that it was touched by the end of `about`; its beginning is an estimate.
    pub fn touch_about(&mut self, about: RangeInclusive<u64>, place: FileIndex, page: PageIndex) -> bool {
        let (time_ns, until_ns) = about.into_inner();
        self.note(place, page.0, Use { time_ns, until_ns: Some(until_ns), by_read: false, is_sure: true })
    }

    /// Notes that at `time_ns` somebody waited for a page, whatever was estimated. Who waits for one that was seen there before, has touched it again.
    pub fn wait(&mut self, time_ns: u64, place: FileIndex, page: PageIndex) {
        /// Between the moment in which the page is there, and that in which the kernel tells of the fault.
        const TOLD_WITHIN_NS: u64 = 1_000_000;
        let is_told = |until_ns: u64| time_ns <= until_ns + TOLD_WITHIN_NS;
        let known = self.files[place.0].pages.get_mut(&page.0);
        if let Some(known) = known.filter(|known| known.until_ns.is_some_and(is_told)) {
            (known.time_ns, known.until_ns) = (time_ns, None);
        }
        self.touch(time_ns, place, page);
    }

    /// [`Self::touch`], but what was seen among the neighbours of a touched page stays so.
    pub fn touch_unless_near(&mut self, time_ns: u64, place: FileIndex, page: PageIndex) -> bool {
        let is_near = self.files[place.0].pages.get(&page.0).is_some_and(|known| !known.is_sure);
        !is_near && self.touch(time_ns, place, page)
    }

    /// [`Self::touch_unless_near`] for each of `pages` while there is room. Returns whether one of these is news.
    pub fn touch_all_unless_near(&mut self, time_ns: u64, place: FileIndex, pages: PageRange) -> bool {
        self.each(pages, |sightings, page| sightings.touch_unless_near(time_ns, place, page))
    }

    /// Notes that at `time_ns` some of `pages` may have been touched, for a fault maps them together.
    /// Returns whether one of these is new.
    pub fn window(&mut self, time_ns: u64, place: FileIndex, pages: PageRange) -> bool {
        self.files[place.0].has_windows = true;
        let used = Use { time_ns, until_ns: None, by_read: false, is_sure: false };
        self.each(pages, |sightings, page| sightings.note(place, page.0, used))
    }

    /// Notes that at `time_ns` a read() used `pages` of the file called `path` with this `inode`.
    pub fn read(&mut self, time_ns: u64, path: &Path, inode: Inode, pages: PageRange) {
        if let Some(at) = self.place(path, Some(inode)) {
            self.note_read(at, time_ns, pages);
        }
    }

    /// The same of a file of which only the inode is known; [`Self::opened`] or a mapping tells its path. Returns whether one of
    /// the pages is new.
    pub fn read_inode(&mut self, time_ns: u64, inode: Inode, pages: PageRange) -> bool {
        let at = self.at(Seen { path: PathBuf::new(), inode: Some(inode) });
        self.note_read(at, time_ns, pages)
    }

    /// Notes that the file `path` was opened.
    pub fn opened(&mut self, path: &Path) {
        let is_noted =
            self.opened.len() < self.names_max && is_on_a_device(path) && !self.opened.contains(path);
        if is_noted && self.takes_room(path) {
            self.opened.insert(path.into());
        }
    }

    /// Notes that at `time_ns` the program `path` was set up, with an ld.so that looks libraries up in its cache.
    pub fn started(&mut self, time_ns: u64, path: &Path) {
        self.lookup(time_ns, path, false);
        self.lookup(time_ns, Path::new(LOADER_PRELOAD), false);
        self.loads.program(time_ns, path);
        if let Some((path, inode, pages)) = loader_cache() {
            self.read(time_ns, path, inode, pages);
        }
    }

    /// Notes that at `time_ns` ld.so looked for a library at `path`.
    pub fn library(&mut self, time_ns: u64, path: &Path) {
        self.lookup(time_ns, path, false);
        self.loads.library(time_ns, path);
    }

    /// Notes that process `pid` is one of the start. What is named after it has another name in the next one.
    pub fn process(&mut self, pid: u32) {
        self.processes.insert(pid);
    }

    fn note_read(&mut self, at: FileIndex, time_ns: u64, pages: PageRange) -> bool {
        let used = Use { time_ns, until_ns: None, by_read: true, is_sure: true };
        self.each(pages, |sightings, page| sightings.note(at, page.0, used))
    }

    /// Notes each of `pages` while there is room, whatever length a program asked for. Returns whether one of these is news.
    fn each(&mut self, pages: PageRange, note: impl Fn(&mut Self, PageIndex) -> bool) -> bool {
        let mut is_new = false;
        for page in pages.iter() {
            self.is_full |= self.lookups_left == 0;
            if self.is_full {
                break;
            }
            self.lookups_left -= 1;
            is_new |= note(self, page);
        }
        is_new
    }

    /// Notes that at `time_ns` the kernel was asked for `path`, or for the entries of the directory `path`.
    pub fn lookup(&mut self, time_ns: u64, path: &Path, list: bool) {
        let Some(path) = path.to_str().filter(|path| is_on_a_device(Path::new(path))) else { return };
        if let Some(name) = self.names.get_mut(path) {
            name.time_ns = name.time_ns.min(time_ns);
            name.list |= list;
        } else if self.names.len() >= self.names_max {
            self.is_full = true;
        } else if self.takes_room(Path::new(path)) {
            self.names.insert(path.into(), Name { time_ns, list });
        }
    }

    /// The files that are used by mappings.
    pub fn mapped(&self) -> HashSet<&Path> {
        let is_mapped = |uses: &&Uses| uses.pages.values().any(|used| !used.by_read);
        self.files.iter().filter(is_mapped).map(|uses| uses.of.path.as_path()).collect()
    }

    /// How many pages are noted.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// What [`Self::observation`] takes for a while.
    pub(crate) fn observation_bytes(&self) -> u64 {
        self.pages as u64 * PAGE_NOTE_BYTES
    }

    /// Whether no more could be noted than was: see [`PAGES_MAX`] and [`NAMES_MAX`]; paths have 16 MiB at most, too, and pages come some
    /// 270 million times at most.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Forgets what was seen later than `time_ns`.
    pub fn forget_after(&mut self, time_ns: u64) {
        for file in &mut self.files {
            file.pages.retain(|_, used| used.time_ns <= time_ns);
        }
        self.names.retain(|_, name| name.time_ns <= time_ns);
    }

    /// Everything seen, in order of first use; coverage and reasons are the caller's to tell, but that all is [`Coverage::Partial`] where files
    /// were not asked for ([`Self::ask_by`]). Files that are gone, not
    /// regular, unreadable, in memory only, other ones than were mapped (in another mount namespace), or written to or
    /// replaced since the sightings began are left out: they are not there for the next start, or not the same.
    pub fn observation(&self) -> Observation {
        let (run, asks) = (self.began.until_now(), Asks::by(self.leave));
        let mut order: Vec<(u64, usize, u64)> = Vec::with_capacity(self.pages);
        let touched = self.loads.touched();
        for (at, uses) in self.files.iter().enumerate() {
            let loaded = touched.of(&uses.of.path);
            let pages = uses.pages.iter();
            order.extend(pages.map(|(&page, used)| (loaded.time_ns(page, used.time_ns), at, page)));
        }
        order.sort_unstable();
        let mut ranks: Vec<FxHashMap<u64, u32>> = self.files.iter().map(|_| FxHashMap::default()).collect();
        for (rank, (_, at, page)) in order.into_iter().enumerate() {
            ranks[at].insert(page, u32::try_from(rank).unwrap_or(u32::MAX));
        }
        let mut merged: HashMap<String, (ObservedFile, RankedUses)> = HashMap::new();
        let (mut unseen, mut nameless) = (Vec::new(), BTreeSet::new());
        let paths = self.paths_of_inodes(&asks);
        for (uses, ranks) in self.files.iter().zip(&ranks) {
            let Seen { path, inode } = &uses.of;
            let path = match inode {
                Some(inode) if path.as_os_str().is_empty() => paths.get(inode),
                _ => Some(path),
            };
            let look = |path: &PathBuf| asks.at(path, || observed(path, *inode, &run, &mut unseen))?;
            let Some(file) = path.and_then(look) else {
                nameless.extend(path.filter(|path| is_no_utf8(path)).map(|path| path.to_string_lossy()));
                continue;
            };
            let (file, pages) =
                merged.entry(file.path.clone()).or_insert_with(|| (file, FxHashMap::default()));
            // A page that has no neighbours was mapped for its own sake.
            let is_alone = file.identity.size_bytes <= PAGE_SIZE;
            if uses.has_windows && !is_alone {
                file.coverage = Coverage::Superset;
            }
            for (&page, &used) in &uses.pages {
                let rank = ranks[&page];
                let (first, known) = pages.entry(page).or_insert((rank, used));
                *first = rank.min(*first);
                known.by_read &= used.by_read;
                known.is_sure |= used.is_sure || is_alone;
            }
        }
        if let Some(first) = nameless.first() {
            let files = counted(nameless.len(), "file");
            unseen
                .push(format!("{files} with names that are no UTF-8, in which profiles name files: {first}"));
        }
        let mut files: Vec<ObservedFile> =
            merged.into_values().filter_map(|(file, pages)| with_pages(file, pages)).collect();
        files.sort_by_key(|file| file.pages.iter().map(|used| used.rank).min());
        let mut names: Vec<(u64, ObservedName)> = self
            .names
            .iter()
            .filter(|(path, _)| {
                let path = Path::new(path);
                asks.at(path, || is_of_this_run_only(path, &run, &self.processes)) == Some(false)
            })
            .map(|(path, name)| (name.time_ns, ObservedName { path: path.clone(), list: name.list }))
            .collect();
        names.sort();
        let mut coverage = Coverage::Exact;
        if asks.has_passed_over() {
            coverage = Coverage::Partial;
            unseen.push("files on a file system that does not answer".into());
        }
        unseen.sort();
        Observation {
            unix_s: unix_s(),
            files,
            order: Order::Rough,
            names: names.into_iter().map(|(_, name)| name).collect(),
            coverage,
            reads_coverage: Coverage::Partial,
            names_coverage: Coverage::Partial,
            unseen_below: Vec::new(),
            seen_below: Vec::new(),
            unseen,
            is_cut_short: false,
        }
    }

    /// Whether there is room for one more `path`.
    fn takes_room(&mut self, path: &Path) -> bool {
        let left = self.paths_bytes_left.checked_sub(path.as_os_str().len());
        self.is_full |= left.is_none();
        self.paths_bytes_left = left.unwrap_or(0);
        left.is_some()
    }

    fn at(&mut self, seen: Seen) -> FileIndex {
        *self.places.entry(seen).or_insert_with_key(|seen| {
            self.files.push(Uses { of: seen.clone(), pages: FxHashMap::default(), has_windows: false });
            FileIndex(self.files.len() - 1)
        })
    }

    /// What files that were opened or mapped are called.
    fn paths_of_inodes(&self, asks: &Asks) -> HashMap<Inode, PathBuf> {
        let mapped = self.files.iter().map(|uses| &uses.of.path).filter(|path| !path.as_os_str().is_empty());
        let with_inode = |path: &PathBuf| {
            let found = asks.at(path, || root::metadata(path))?;
            let metadata = found.ok().filter(std::fs::Metadata::is_file)?;
            Some(((metadata.dev(), metadata.ino()), path.clone()))
        };
        mapped.chain(&self.opened).filter_map(with_inode).collect()
    }

    /// Returns whether the page is new, or sure for the first time.
    fn note(&mut self, at: FileIndex, page: u64, used: Use) -> bool {
        let pages = &mut self.files[at.0].pages;
        match pages.get_mut(&page) {
            Some(known) => {
                let is_news = used.is_sure && !known.is_sure;
                let is_earlier = match (used.until_ns, known.until_ns) {
                    (None, _) => used.time_ns < known.time_ns,
                    (Some(until_ns), known) => known.is_some_and(|known_ns| until_ns < known_ns),
                };
                if is_earlier {
                    (known.time_ns, known.until_ns) = (used.time_ns, used.until_ns);
                }
                known.by_read &= used.by_read;
                known.is_sure |= used.is_sure;
                is_news
            }
            None if self.pages >= self.pages_max => {
                self.is_full = true;
                false
            }
            None => {
                self.pages += 1;
                pages.insert(page, used);
                if let Some(new) = self.new.as_mut().filter(|_| !used.by_read) {
                    new.push((at, PageIndex(page)));
                }
                true
            }
        }
    }
}

/// The file that was seen, without its pages; `None`, with a line in `unseen` where it is worth one, if it is of no use.
fn observed(
    path: &Path,
    inode: Option<Inode>,
    run: &RangeInclusive<i64>,
    unseen: &mut Vec<String>,
) -> Option<ObservedFile> {
    let path = root::canonicalize(path).ok()?;
    // Before it is opened: opening a pipe lets go whoever waits at its other end.
    identity_at(&path).ok()?;
    let file = open_to_read(&path).ok()?;
    let identity = identity_of(&file).ok()?;
    let kind = kind_of(&file).unwrap_or_default();
    // The time of the inode's change, which no program sets, tells of a file moved into the place of the one seen, too.
    if without_device(kind).is_some() || run.contains(&identity.ctime_ns) {
        return None;
    }
    if let Some((device, inode)) = inode {
        let same_device = device == identity.device || kind == OVERLAYFS || kind == BTRFS;
        if !same_device || inode != identity.inode {
            unseen.push(format!(
                "{}: another file than was mapped is there (a mount namespace?)",
                path.display()
            ));
            return None;
        }
    }
    let content = content_of(&file).ok()?;
    Some(ObservedFile {
        path: path.to_str()?.into(),
        identity,
        content,
        coverage: Coverage::Exact,
        pages: Vec::new(),
    })
}

/// Whether a file cannot be named in UTF-8. Where the name is that of a mapping, what is not UTF-8 was replaced when it was read.
fn is_no_utf8(path: &Path) -> bool {
    path.to_str().is_none_or(|path| path.contains(char::REPLACEMENT_CHARACTER))
}

fn with_pages(mut file: ObservedFile, pages: RankedUses) -> Option<ObservedFile> {
    let pages_in_file = file.identity.size_bytes.div_ceil(PAGE_SIZE);
    let mut pages: Vec<(u64, (u32, Use))> =
        pages.into_iter().filter(|(page, _)| *page < pages_in_file).collect();
    pages.sort_unstable_by_key(|(page, _)| *page);
    for (page, (rank, used)) in pages {
        match file.pages.last_mut() {
            Some(last)
                if last.range.end().0 == page
                    && last.by_read == used.by_read
                    && last.is_sure == used.is_sure
                    && are_used_together(last.rank, rank) =>
            {
                last.range = PageRange::new(last.range.start(), PageIndex(page + 1));
                last.rank = last.rank.min(rank);
            }
            _ => file.pages.push(UsedPages {
                range: PageIndex(page).alone(),
                rank,
                by_read: used.by_read,
                is_sure: used.is_sure,
            }),
        }
    }
    (!file.pages.is_empty()).then_some(file)
}

fn is_on_a_device(path: &Path) -> bool {
    path.is_absolute()
        && !NOT_ON_A_DEVICE.iter().any(|place| path.starts_with(place))
        && !path.to_str().is_some_and(is_name_of_memory)
}

/// Whether the kernel gives this name to memory that is mapped like a file and belongs to no file system (memfd_create(2), shmget(2), MAP_HUGETLB).
pub(crate) fn is_name_of_memory(path: &str) -> bool {
    ["/memfd:", "/SYSV", "/anon_hugepage"].iter().any(|name| path.starts_with(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_estimate_gives_way_to_an_earlier_look_and_to_what_perf_tells_of_that_time() {
        const MS: u64 = 1_000_000;
        let mut sightings = Sightings::default();
        let place = sightings.place(Path::new("/file"), None).unwrap();
        let page = PageIndex(0);
        let time_ns = |sightings: &Sightings| sightings.files[0].pages[&0].time_ns / MS;
        assert!(sightings.touch_about(50 * MS..=60 * MS, place, page));
        assert!(
            !sightings.touch_about(40 * MS..=90 * MS, place, page),
            "of another process, by a later look"
        );
        assert_eq!(time_ns(&sightings), 50);
        sightings.touch(90 * MS, place, page);
        assert_eq!(time_ns(&sightings), 50, "told at the end of the process");
        sightings.wait(5000 * MS, place, page);
        assert_eq!(time_ns(&sightings), 50, "it was evicted");
        sightings.wait(59 * MS, place, page);
        assert_eq!(time_ns(&sightings), 59);
        sightings.touch_about(10 * MS..=20 * MS, place, page);
        sightings.wait(70 * MS, place, page);
        assert_eq!(time_ns(&sightings), 59);
    }

    #[test]
    fn a_time_that_is_known_goes_before_an_estimate_that_is_later() {
        let mut sightings = Sightings::default();
        let place = sightings.place(Path::new("/file"), None).unwrap();
        sightings.touch_about(50..=60, place, PageIndex(0));
        sightings.touch_about(45..=55, place, PageIndex(0));
        assert_eq!(sightings.files[0].pages[&0].time_ns, 45, "the earlier look");
        sightings.touch(30, place, PageIndex(0));
        sightings.wait(40, place, PageIndex(0));
        assert_eq!(sightings.files[0].pages[&0].time_ns, 30);
    }

    /// A directory may be 4,000 bytes deep, and have many files.
    #[test]
    fn paths_take_so_many_bytes_and_what_was_noted_before_stays() {
        let mut sightings = Sightings { paths_bytes_left: 3000, ..Sightings::default() };
        let path = |at: u32| PathBuf::from(format!("/{}{at}", "d".repeat(998)));
        sightings.lookup(1, &path(0), false);
        assert!(sightings.place(&path(1), None).is_some());
        sightings.opened(&path(2));
        assert!(!sightings.is_full());
        for _ in 0..2 {
            sightings.lookup(2, &path(3), false);
            sightings.opened(&path(4));
            assert_eq!(sightings.place(&path(5), None), None);
            assert!(sightings.place(&path(1), None).is_some());
            assert!(sightings.is_full());
        }
        let noted = (sightings.names.len(), sightings.files.len(), sightings.opened.len());
        assert_eq!(noted, (1, 1, 1));
    }

    /// A program may write into the log whatever it likes, and as often.
    #[test]
    fn what_is_told_is_looked_up_so_often_and_no_more() {
        let lengthy = |first| PageRange::new(PageIndex(first), PageIndex(first + PAGES_MAX as u64));
        let inode = (1, 7);
        let mut sightings = Sightings { pages_max: 10, ..Sightings::default() };
        assert!(sightings.read_inode(1, inode, lengthy(0)));
        assert_eq!((sightings.pages(), LOOKUPS_MAX - sightings.lookups_left), (10, 11));
        let place = sightings.place(Path::new("/file"), Some(inode)).unwrap();
        assert!(sightings.is_full() && !sightings.window(2, place, lengthy(0)));
        assert!(!sightings.touch_all_unless_near(2, place, lengthy(0)));
        assert_eq!(LOOKUPS_MAX - sightings.lookups_left, 11);
        // Of pages that are known already, which take no room.
        let mut sightings = Sightings { lookups_left: 25, ..Sightings::default() };
        let place = sightings.place(Path::new("/file"), Some(inode)).unwrap();
        let ten = PageRange::new(PageIndex(0), PageIndex(10));
        assert!(sightings.window(1, place, ten));
        for _ in 0..2 {
            assert!(!sightings.is_full());
            assert!(!sightings.touch_all_unless_near(2, place, ten));
        }
        assert!(sightings.is_full() && sightings.lookups_left == 0);
    }

    #[test]
    fn of_memory_that_is_mapped_like_a_file_nothing_is_noted() {
        let mut sightings = Sightings::default();
        for path in ["/memfd:x (deleted)", "/SYSV00000000 (deleted)", "/anon_hugepage (deleted)", "/dev/zero"]
        {
            assert_eq!(sightings.place(Path::new(path), Some((1, 7))), None, "{path}");
        }
        assert!(sightings.place(Path::new("/memfd/x"), Some((1, 7))).is_some());
    }

    #[test]
    fn neighbours_used_long_after_one_another_stay_apart() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = dir.path().canonicalize().unwrap().join("data");
        std::fs::write(&path, vec![1; 1000 * PAGE_SIZE as usize]).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        let mut sightings = Sightings::default();
        let place = sightings.place(&path, None).unwrap();
        let touched = [0, 2].into_iter().chain(500..800).chain([1]);
        for (time_ns, page) in (1..).zip(touched) {
            sightings.touch(time_ns, place, PageIndex(page));
        }
        let observation = sightings.observation();
        let few = observation.files[0].pages.iter().filter(|used| used.range.len() == 1);
        let few: Vec<_> = few.map(|used| (used.range.start().0, used.rank)).collect();
        assert_eq!(few, [(0, 0), (1, 302), (2, 1)]);
    }

    /// Java looks for /tmp/.java_pid1234.
    #[test]
    fn a_name_that_names_a_process_of_the_start_and_is_not_there_is_left_out() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        for name in ["lib1234.so", "lib-1235.so"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
        let mut sightings = Sightings::default();
        [7, 1234].into_iter().for_each(|pid| sightings.process(pid));
        let names = ["lib1234.so", ".java_pid1234", "1234", "12345", "lib.so.7", "lib-1235.so"];
        for (time_ns, name) in (1..).zip(names) {
            sightings.lookup(time_ns, &dir.path().join(name), false);
        }
        let seen = sightings.observation().names;
        let seen: Vec<_> = seen.iter().map(|name| name.path.rsplit('/').next().unwrap()).collect();
        assert_eq!(seen, ["lib1234.so", "12345", "lib.so.7", "lib-1235.so"]);
    }

    #[test]
    fn files_that_there_is_no_leave_to_ask_for_are_passed_over_and_say_nothing_of_others() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let paths = ["near", "far"].map(|name| dir.path().canonicalize().unwrap().join(name));
        paths.iter().for_each(|path| std::fs::write(path, [1; 4096]).unwrap());
        std::thread::sleep(std::time::Duration::from_millis(20));
        let mut sightings = Sightings::default();
        for (time_ns, path) in (1..).zip(&paths) {
            let place = sightings.place(path, None).unwrap();
            sightings.touch(time_ns, place, PageIndex(0));
            sightings.lookup(time_ns, path, false);
        }
        let seen = |sightings: &Sightings| {
            let seen = sightings.observation();
            (seen.files.len(), seen.names.len(), seen.coverage, seen.unseen.len())
        };
        assert_eq!(seen(&sightings), (2, 2, Coverage::Exact, 0));
        sightings.ask_by(Some(|path| (!path.ends_with("far")).then(|| Box::new(()) as _)));
        assert_eq!(seen(&sightings), (1, 1, Coverage::Partial, 1));
    }

    #[test]
    fn a_file_dated_by_hand_is_seen_and_one_that_changes_is_not() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = dir.path().join("data");
        std::fs::write(&path, [1; 4096]).unwrap();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        let later = std::time::SystemTime::now() + std::time::Duration::from_secs(86_400);
        file.set_modified(later).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        let seen = || {
            let mut sightings = Sightings::default();
            let place = sightings.place(&path, None).unwrap();
            sightings.touch(1, place, PageIndex(0));
            sightings
        };
        assert_eq!(seen().observation().files.len(), 1);
        let sightings = seen();
        std::thread::sleep(std::time::Duration::from_millis(20));
        file.set_modified(later).unwrap();
        assert_eq!(sightings.observation().files.len(), 0);
    }
}
