//! Pages that came with files: of a program and of the libraries it is linked to.
//!
//! For the first start of a program that this user has not learned yet. They are looked for among the sidecars
//! ([`crate::sidecar`]), then in the file itself: in a note segment (`note`) or a section; in each a *page map*, a profile
//! of that file alone with one bit a page. A file that others could have written is not looked into at all.
//!
//! Of each file are read: its first page and what it is linked to, which the loader reads as well, and one piece of up to 8 KiB at its end, where section headers stand and, in a file that `prepage profile embed` wrote, the profile before them.
//! What the loader is likely to need of each is asked for on the way: the first 128 KiB and [`Elf::linked_pages`]. Nobody waits for that but the thread that looks
//! further; what a library is linked to is looked at as soon as it is known, for the loader comes right behind, and its end when no library waits to be
//! looked at.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock};

use prepage_core::profile::bounds::bound;
use prepage_core::profile::file::{self, HEADER_BYTES, ProfileFileError, encoded_bytes};
use prepage_core::profile::{FileIdentity, Fingerprint, Profile, ProfiledFile};
use prepage_core::{PageIndex, PageRange};
use prepage_sys::sync::Anyway;
use rustix::fs::Advice;

use crate::bytes::Bytes;
use crate::elf::{Elf, ElfError, Links};
use crate::identity::{Skipped, content_of, identity_of, open_to_read};
use crate::libraries::{Cache, candidates};
use crate::note::{self, Room};
use crate::sidecar::Sidecars;
use crate::trust::{Refused, Untrusted, is_trusted};

/// Name of the section that holds what a file carries.
pub const SECTION_NAME: &str = ".prepage";

/// Its type, of the range that the ELF specification leaves to applications (`SHT_LOUSER` to `SHT_HIUSER`): "pre" in ASCII.
pub const SECTION_TYPE: u32 = 0x8070_7265;

/// The most that a file carries: one bit for each page of 128 GiB.
pub const CARRIED_BYTES_MAX: u64 = 4 << 20;

/// Libraries looked at for one program. Large desktop programs have two hundred.
const LIBRARIES_MAX: usize = 512;
/// What is asked for of them at most. ffmpeg and its 210 libraries come to half of that.
const BYTES_MAX: u64 = 64 << 20;
/// Libraries looked at at once.
const THREADS: usize = 8;
/// Maps looked for at once while there are libraries to look at: next to no file carries one, and each look waits for the device while the program does.
const MAP_THREADS: usize = 2;
/// Libraries that stay open at most until their maps are looked for, but for those that are looked at just then.
const OPEN_MAX: usize = 32;
/// The piece at the end of a file that is read at once.
const TAIL_BYTES: u64 = 8 << 10;
/// What is asked for of a file before anything is known of it: as much as the kernel's read-ahead brings to the loader.
const HEAD_BYTES: u64 = 128 << 10;
/// What one request asks for.
const PIECE_PAGES: usize = 32;
const STACK_BYTES: usize = 128 << 10;

/// Why the map of a file is not followed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The file cannot be opened.
    #[error(transparent)]
    Skipped(Skipped),
    /// It is no ELF file, or a malformed one.
    #[error(transparent)]
    Elf(#[from] ElfError),
    /// Others could have written the file, and so the map in it.
    #[error("it {0}")]
    Untrusted(Untrusted),
    /// There is something else where the map should be.
    #[error("what it carries")]
    Map(#[source] ProfileFileError),
    /// It speaks of another file.
    #[error("its page map is of another file")]
    Other,
    /// Its sidecar cannot be followed.
    #[error(transparent)]
    Sidecar(#[from] Refused),
    /// It cannot be read.
    #[error("cannot be read")]
    Io(#[from] io::Error),
}

/// Maps found for a program.
#[derive(Debug, Default)]
pub struct FoundMaps {
    /// Files with the pages that their maps name.
    pub files: Vec<ProfiledFile>,
    /// Files whose maps are not followed, and why.
    pub left: Vec<(PathBuf, MapError)>,
}

impl FoundMaps {
    /// As a profile of `program`, to be prefetched.
    pub fn profile(&self, program: &Path) -> Profile {
        Profile {
            program: program.to_string_lossy().into_owned(),
            files: self.files.clone(),
            ..Profile::default()
        }
    }

    fn add(&mut self, path: &Path, result: Result<Option<ProfiledFile>, MapError>) {
        match result {
            Ok(file) => self.files.extend(file),
            Err(error) => self.left.push((path.into(), error)),
        }
    }
}

/// The search for maps of one program.
///
/// Lock legend: `progress` is the one lock, held to take or to add, and slept on with `more`; never over a read.
#[derive(Debug)]
pub struct Search {
    sidecars: Sidecars,
    cache: OnceLock<Cache>,
    machine: u16,
    progress: Mutex<Progress>,
    more: Condvar,
}

/// How far a search has come.
#[derive(Debug, Default)]
struct Progress {
    /// Libraries to look at: the files that may be meant by each, best first.
    next: VecDeque<Vec<PathBuf>>,
    /// All that was ever in `next`: a library that many are linked to is looked for once.
    asked: HashSet<Vec<PathBuf>>,
    /// Files that were looked at, and whether each is a library of this machine.
    seen: HashMap<PathBuf, bool>,
    /// Threads that look at a library, and may add more.
    at_work: usize,
    /// Libraries whose maps are still to be looked for: once nothing else is to be done, for the loader needs none of them.
    maps: VecDeque<Looked>,
    /// Threads that look for one.
    at_maps: usize,
    /// What was asked for of them.
    bytes: u64,
    found: FoundMaps,
}

/// A thread that is at work on one library until this is dropped, be it by a panic.
struct AtWork<'a>(&'a Search);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        let mut progress = self.0.progress();
        progress.at_work -= 1;
        if progress.at_work == 0 {
            self.0.more.notify_all();
        }
    }
}

/// What a thread does next.
enum Work<'a> {
    /// It looks at the library that may be at one of these places.
    Library(Vec<PathBuf>, AtWork<'a>),
    /// It looks for the map of this one.
    Map(Box<Looked>),
}

/// What became of one place where a library may be.
enum Place {
    /// No library for this machine is there.
    Nothing,
    /// It was looked at already, by another name.
    Known,
    Found(Looked),
    Unusable(PathBuf, MapError),
}

impl Search {
    /// Begins with the executable itself. The second value is what was found of it.
    pub fn of_program(program: &Path, sidecars: Sidecars) -> (Self, FoundMaps) {
        let mut search = Self {
            sidecars,
            cache: OnceLock::new(),
            machine: 0,
            progress: Mutex::default(),
            more: Condvar::new(),
        };
        let mut found = FoundMaps::default();
        match Looked::at(program, &search.sidecars) {
            Ok(looked) => {
                search.machine = looked.elf.machine;
                search.progress().seen.extend([(program.to_owned(), true), (looked.path.clone(), true)]);
                search.follow(&looked);
                let (path, map) = looked.map(&search.sidecars);
                found.add(&path, map);
            }
            // Nothing that is loaded.
            Err(MapError::Elf(ElfError::Foreign)) => {}
            Err(error) => found.left.push((program.into(), error)),
        }
        (search, found)
    }

    /// The libraries, and the libraries of these, several at once with so many `threads` to spare, for as long as the search `is_wanted`: each costs a few reads one after the other, and
    /// the loader comes right behind.
    pub fn libraries(self, threads: u32, is_wanted: &(dyn Fn() -> bool + Sync)) -> FoundMaps {
        // Each may name more. This thread is one of them.
        let threads = THREADS.min(2 * self.progress().next.len()).min((threads as usize).saturating_add(1));
        std::thread::scope(|scope| {
            for _ in 1..threads {
                // One that cannot be started is one fewer at work.
                let builder = std::thread::Builder::new().stack_size(STACK_BYTES);
                let _ = builder.spawn_scoped(scope, || self.look_at_all(is_wanted));
            }
            self.look_at_all(is_wanted);
        });
        let progress = self.progress.into_inner().anyway();
        let mut found = progress.found;
        for (rank, file) in found.files.iter_mut().enumerate() {
            file.extents.iter_mut().for_each(|extent| extent.rank = rank as u32);
        }
        found
    }

    fn look_at_all(&self, is_wanted: &(dyn Fn() -> bool + Sync)) {
        while let Some(work) = self.next(is_wanted) {
            self.work(work);
        }
    }

    fn work(&self, work: Work<'_>) {
        match work {
            Work::Library(places, _at_work) => {
                let mut found = places.iter().map(|path| self.look_at_library(path));
                match found.find(|place| !matches!(place, Place::Nothing)) {
                    Some(Place::Found(looked)) => {
                        self.follow(&looked);
                        self.progress().maps.push_back(looked);
                    }
                    Some(Place::Unusable(path, error)) => self.progress().found.add(&path, Err(error)),
                    Some(Place::Nothing | Place::Known) | None => {}
                }
            }
            Work::Map(looked) => {
                let (path, map) = looked.map(&self.sidecars);
                let mut progress = self.progress();
                progress.found.add(&path, map);
                progress.at_maps -= 1;
            }
        }
    }

    /// What is to be done next, once there is something: libraries before maps. `None` when nobody is at work that could still name a library, and
    /// others look for the maps that are left.
    fn next(&self, is_wanted: &(dyn Fn() -> bool + Sync)) -> Option<Work<'_>> {
        let mut progress = self.progress();
        loop {
            if !is_wanted() {
                break;
            }
            let is_enough = progress.seen.len() > LIBRARIES_MAX || progress.bytes > BYTES_MAX;
            let are_many_open = progress.maps.len() >= OPEN_MAX;
            if !is_enough
                && !are_many_open
                && let Some(next) = progress.next.pop_front()
            {
                progress.at_work += 1;
                return Some(Work::Library(next, AtWork(self)));
            }
            let is_last = is_enough || progress.at_work == 0;
            if (are_many_open || is_last || progress.at_maps < MAP_THREADS)
                && let Some(looked) = progress.maps.pop_front()
            {
                progress.at_maps += 1;
                return Some(Work::Map(Box::new(looked)));
            }
            if is_last {
                break;
            }
            progress = self.more.wait(progress).anyway();
        }
        self.more.notify_all();
        None
    }

    fn follow(&self, looked: &Looked) {
        let directory = looked.path.parent().unwrap_or(Path::new("/"));
        let links = candidates(&looked.links, directory, self.cache.get_or_init(Cache::read));
        let mut progress = self.progress();
        for one in links {
            if progress.asked.insert(one.clone()) {
                progress.next.push_back(one);
                self.more.notify_one();
            }
        }
    }

    fn look_at_library(&self, path: &Path) -> Place {
        let Ok(path) = path.canonicalize() else { return Place::Nothing };
        match self.progress().seen.entry(path.clone()) {
            Entry::Occupied(seen) => return if *seen.get() { Place::Known } else { Place::Nothing },
            Entry::Vacant(new) => _ = new.insert(true),
        }
        match Looked::at(&path, &self.sidecars) {
            Ok(looked) if looked.elf.machine == self.machine => {
                self.progress().bytes += looked.asked_bytes;
                Place::Found(looked)
            }
            Ok(_) | Err(MapError::Skipped(Skipped::Missing) | MapError::Elf(ElfError::Foreign)) => {
                self.progress().seen.insert(path, false);
                Place::Nothing
            }
            Err(error) => Place::Unusable(path, error),
        }
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().anyway()
    }
}

/// What one file told.
#[derive(Debug)]
struct Looked {
    path: PathBuf,
    identity: FileIdentity,
    file: File,
    elf: Elf,
    links: Links,
    asked_bytes: u64,
}

impl Looked {
    /// Asks for what the loader is sure to read of the file at `path`, and reads what that is linked to.
    fn at(path: &Path, sidecars: &Sidecars) -> Result<Self, MapError> {
        let file = open_to_read(path).map_err(MapError::Skipped)?;
        let identity = identity_of(&file).map_err(MapError::Skipped)?;
        // Before anything of it is understood.
        is_trusted(file.as_fd(), sidecars.uid())?.map_err(MapError::Untrusted)?;
        // What is read is named exactly: no read-ahead.
        let _ = rustix::fs::fadvise(&file, 0, None, Advice::Random);
        let head = PageRange::covering(0, identity.size_bytes.min(HEAD_BYTES));
        ask_for(&file, head);
        let elf = Elf::parse(&file)?;
        let mut asked_bytes = head.bytes();
        for pages in elf.linked_pages() {
            ask_for(&file, pages);
            asked_bytes += pages.bytes();
        }
        let dynamic = elf.dynamic(&file).unwrap_or_default();
        let links = elf.links(&dynamic, &file).unwrap_or_default();
        Ok(Self { path: path.into(), identity, file, elf, links, asked_bytes })
    }

    /// Its path, and the file with the pages it carries, if any.
    fn map(self, sidecars: &Sidecars) -> (PathBuf, Result<Option<ProfiledFile>, MapError>) {
        let carried = carried_by(&self.file, &self.elf, sidecars);
        let map = carried.map(|carried| {
            let path = self.path.to_string_lossy().into_owned();
            let known = ProfiledFile { path, identity: self.identity, ..carried? };
            let mut profile = Profile { files: vec![known], ..Profile::default() };
            bound(&mut profile);
            profile.files.pop()
        });
        (self.path, map)
    }
}

/// Has `pages` of `file` read. Does not wait for them.
fn ask_for(file: &File, pages: PageRange) {
    // No call loads more than the kernel reads at once.
    for start in (pages.start().0..pages.end().0).step_by(PIECE_PAGES) {
        let end = pages.end().0.min(start + PIECE_PAGES as u64);
        let piece = PageRange::new(PageIndex(start), PageIndex(end));
        let bytes = NonZeroU64::new(piece.bytes());
        let _ = rustix::fs::fadvise(file, piece.start().offset_bytes(), bytes, Advice::WillNeed);
    }
}

/// What an open file, which is trusted, carries: beside it, else in it.
///
/// # Errors
/// Why what is there is not followed.
pub fn carried_by(file: &File, elf: &Elf, sidecars: &Sidecars) -> Result<Option<ProfiledFile>, MapError> {
    if !sidecars.is_empty() {
        let content = match &elf.build_id {
            Some(id) => Fingerprint::BuildId(id.clone()),
            None => content_of(file)?,
        };
        if let Some(bytes) = sidecars.read(&content)? {
            return decode(&bytes, &content).map(Some);
        }
    }
    carried_in(&Tail::of(file, elf)?, elf)
}

/// What an ELF file carries, whoever wrote it: in its note segment, else in its section.
///
/// # Errors
/// When there is something that is damaged, or of another build.
pub fn carried_in<B: Bytes + ?Sized>(bytes: &B, elf: &Elf) -> Result<Option<ProfiledFile>, MapError> {
    if let Some(room) = note::room(bytes, elf)?
        && let Some(carried) = carried_at(bytes, elf, room)?
    {
        return Ok(Some(carried));
    }
    let sections = elf.sections(bytes)?;
    // Ours is put behind all others.
    let Some(section) = sections.iter().rfind(|section| section.name == SECTION_NAME) else {
        return Ok(None);
    };
    let size_bytes = section.file_end_bytes().saturating_sub(section.offset_bytes);
    let found = carried_at(bytes, elf, Room { offset_bytes: section.offset_bytes, size_bytes })?;
    found.ok_or(MapError::Map(ProfileFileError::Foreign)).map(Some)
}

/// What stands at the start of `room`; `None` where that is empty still.
fn carried_at<B: Bytes + ?Sized>(bytes: &B, elf: &Elf, room: Room) -> Result<Option<ProfiledFile>, MapError> {
    let mut head = [0; HEADER_BYTES];
    let read = bytes.read_at(room.offset_bytes, &mut head)?;
    let head = &head[..read.min(room.size_bytes.try_into().unwrap_or(usize::MAX))];
    if head.iter().all(|&byte| byte == 0) {
        return Ok(None);
    }
    let promised_bytes = encoded_bytes(head).map_err(MapError::Map)?;
    if promised_bytes > room.size_bytes.min(CARRIED_BYTES_MAX) {
        let found_bytes = room.size_bytes;
        return Err(MapError::Map(ProfileFileError::Length { found_bytes, promised_bytes }));
    }
    let mut carried = vec![0; promised_bytes as usize];
    let read = bytes.read_at(room.offset_bytes, &mut carried)?;
    let build = Fingerprint::BuildId(elf.build_id.clone().unwrap_or_default());
    decode(&carried[..read], &build).map(Some)
}

/// The profile of one file, which must hold `content`.
pub fn decode(bytes: &[u8], content: &Fingerprint) -> Result<ProfiledFile, MapError> {
    let mut files = file::decode(bytes).map_err(MapError::Map)?.files;
    match files.pop() {
        Some(file)
            if files.is_empty() && file.fingerprint == *content && *content != Fingerprint::default() =>
        {
            Ok(file)
        }
        _ => Err(MapError::Other),
    }
}

/// A file whose last bytes were read in one piece.
struct Tail<'a> {
    file: &'a File,
    start: u64,
    bytes: Vec<u8>,
}

impl<'a> Tail<'a> {
    fn of(file: &'a File, elf: &Elf) -> io::Result<Self> {
        let end = elf.section_table.end_bytes().min(file.len_bytes());
        let start = end.saturating_sub(TAIL_BYTES);
        let mut bytes = vec![0; (end - start) as usize];
        let read = Bytes::read_at(file, start, &mut bytes)?;
        bytes.truncate(read);
        Ok(Self { file, start, bytes })
    }
}

impl Bytes for Tail<'_> {
    fn len_bytes(&self) -> u64 {
        self.file.len_bytes()
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<usize> {
        let known = offset_bytes.checked_sub(self.start).and_then(|at| {
            let at = usize::try_from(at).ok()?;
            self.bytes.get(at..at.checked_add(into.len())?)
        });
        match known {
            Some(bytes) => {
                into.copy_from_slice(bytes);
                Ok(bytes.len())
            }
            None => Bytes::read_at(self.file, offset_bytes, into),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use prepage_sys::cachestat::{cached_pages, evict};
    use prepage_sys::process_status::ProcessStatus;
    use prepage_testing::{Need, has};

    use super::*;

    /// Each wait is for a request, and the program that starts waits for its own behind it.
    #[test]
    fn a_library_is_looked_at_in_a_few_waits() {
        if !has(Need::Eviction(env!("CARGO_MANIFEST_DIR").into())) {
            return;
        }
        let waits = || -> u64 {
            let status = ProcessStatus::of("thread-self").unwrap();
            status.field("voluntary_ctxt_switches").unwrap().parse().unwrap()
        };
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        for (name, waits_max) in [("libresolv.so.2", 2), ("libc.so.6", 3)] {
            let links = Links { needed: vec![name.into()], ..Links::default() };
            let places = candidates(&links, Path::new("/"), &Cache::read()).concat();
            let Some(library) = places.iter().find(|path| path.is_file()) else {
                assert!(!has(Need::Path(name.into())), "{name} is not found");
                continue;
            };
            let path = dir.path().canonicalize().unwrap().join(name);
            std::fs::copy(library, &path).unwrap();
            let file = File::open(&path).unwrap();
            file.sync_all().unwrap();
            evict(file.as_fd(), Duration::from_secs(60)).unwrap();
            let before = waits();
            let looked = Looked::at(&path, &Sidecars::none()).unwrap();
            let waited = waits() - before;
            assert!(!looked.links.needed.is_empty(), "{looked:?}");
            assert!(waited <= waits_max, "{name}: {waited} waits");
            let wanted: u64 = looked.elf.linked_pages().map(|pages| pages.len()).sum();
            let are_there = |pages| cached_pages(file.as_fd(), pages).unwrap();
            let mut there = 0;
            for _ in 0..1000 {
                there = looked.elf.linked_pages().map(are_there).sum();
                if there == wanted {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            assert_eq!(there, wanted, "{name}: what the loader needs is asked for");
            assert!(matches!(looked.map(&Sidecars::none()), (_, Ok(None))), "{name}");
        }
    }

    #[test]
    fn the_libraries_of_a_program_are_found_without_starting_it() {
        let program = Path::new("/bin/ls").canonicalize().unwrap();
        let (search, own) = Search::of_program(&program, Sidecars::none());
        assert!(own.left.is_empty(), "{own:?}");
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| search.look_at_all(&|| true));
            }
        });
        let progress = search.progress();
        let names: Vec<_> = progress.seen.keys().filter_map(|path| path.file_name()?.to_str()).collect();
        for name in ["ls", "libc.so", "ld-linux"] {
            assert!(names.iter().any(|seen| seen.starts_with(name)), "{name}: {names:?}");
        }
        assert!(progress.found.left.is_empty() && progress.next.is_empty(), "{progress:?}");
        assert_eq!(progress.at_work, 0);
    }

    /// One of which nothing is to be done yet, and a file that it can look for the map of.
    fn idle_search() -> (Search, impl Fn() -> Looked) {
        let program = Path::new("/bin/ls").canonicalize().unwrap();
        let (search, _) = Search::of_program(&program, Sidecars::none());
        search.progress().next.clear();
        (search, move || Looked::at(&program, &Sidecars::none()).unwrap())
    }

    /// The loader needs all of the libraries, and none of their maps.
    #[test]
    fn libraries_come_before_maps_which_few_look_for_while_a_library_is_looked_at() {
        let (search, looked) = idle_search();
        {
            let mut progress = search.progress();
            progress.next.push_back(Vec::new());
            progress.maps.extend((0..2 * MAP_THREADS).map(|_| looked()));
        }
        let Some(Work::Library(_, at_work)) = search.next(&|| true) else {
            panic!("the library comes first")
        };
        let mut maps = Vec::new();
        for _ in 0..MAP_THREADS {
            maps.extend(search.next(&|| true));
        }
        let next = || search.next(&|| true);
        let (more, none) = std::thread::scope(|scope| {
            let next = scope.spawn(move || (next(), next()));
            assert_eq!(search.progress().maps.len(), MAP_THREADS, "while the library is looked at");
            drop(at_work);
            next.join().unwrap()
        });
        maps.extend(more.into_iter().chain(none));
        assert_eq!(maps.len(), 2 * MAP_THREADS, "then everybody looks for them");
        assert!(maps.iter().all(|work| matches!(work, Work::Map(_))));
        maps.into_iter().for_each(|map| search.work(map));
        assert!(search.next(&|| true).is_none());
        assert_eq!(search.progress().at_maps, 0);
    }

    #[test]
    fn where_many_libraries_are_open_their_maps_come_first() {
        let (search, looked) = idle_search();
        search.progress().next.push_back(Vec::new());
        search.progress().maps.extend((0..OPEN_MAX).map(|_| looked()));
        assert!(matches!(search.next(&|| true), Some(Work::Map(_))));
        assert!(matches!(search.next(&|| true), Some(Work::Library(..))));
    }

    #[test]
    fn a_search_that_is_not_wanted_or_of_which_a_thread_panics_ends() {
        let search = || Search::of_program(&Path::new("/bin/ls").canonicalize().unwrap(), Sidecars::none()).0;
        assert!(search().libraries(8, &|| false).left.is_empty());
        let asked = AtomicUsize::new(0);
        let panics = move || {
            assert_ne!(asked.fetch_add(1, Ordering::Relaxed), 1, "as one may");
            true
        };
        let ended = std::thread::spawn(move || search().libraries(8, &panics)).join();
        assert!(ended.is_err(), "it is told");
    }

    #[test]
    fn a_file_that_is_no_library_of_this_machine_hides_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        std::fs::write(dir.join("foreign"), "no library").unwrap();
        let libc = candidates(
            &Links { needed: vec!["libc.so.6".into()], ..Links::default() },
            Path::new("/"),
            &Cache::read(),
        );
        let libc = libc.concat().into_iter().find(|path| path.is_file()).unwrap();
        let (search, _) = Search::of_program(&Path::new("/bin/ls").canonicalize().unwrap(), Sidecars::none());
        let foreign = dir.join("foreign");
        assert!(matches!(search.look_at_library(&foreign), Place::Nothing));
        assert!(matches!(search.look_at_library(&foreign), Place::Nothing), "also the second time");
        assert!(matches!(search.look_at_library(&libc), Place::Found(_)));
        assert!(matches!(search.look_at_library(&libc), Place::Known));
    }

    #[test]
    fn what_is_no_program_has_no_maps() {
        for path in ["/etc/passwd", "/dev/null", "/no/such/file"] {
            let (search, own) = Search::of_program(Path::new(path), Sidecars::none());
            assert!(own.files.is_empty() && search.libraries(0, &|| true).files.is_empty());
        }
    }
}
