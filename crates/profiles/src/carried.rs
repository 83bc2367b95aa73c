//! Pages that came with files: of a program and of the libraries it is linked to.
//!
//! For the first start of a program that this user has not learned yet. They are looked for among the sidecars
//! ([`crate::sidecar`]), then in the file itself: in a note segment ([`crate::note`]) or a section; in each a *page map*, a profile
//! of that file alone with one bit a page. A file that others could have written is not looked into at all.
//!
//! Of each file are read: its first page and what it is linked to, which the loader reads as well, and one piece of up to 8 KiB at its end, where section headers stand and, in a file that `prepage profile embed` wrote, the profile before them.
//! Of a file without a map, what the loader is sure to need is asked for ([`crate::elf::Dynamic::loaded`]). Requests are few: a program that starts waits
//! for its own behind these.

use std::cell::OnceCell;
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use prepage_core::PageRange;
use prepage_core::profile::bounds::bound;
use prepage_core::profile::file::{self, HEADER_BYTES, ProfileFileError, encoded_bytes};
use prepage_core::profile::{FileIdentity, Fingerprint, Profile, ProfiledFile};
use rustix::fs::Advice;

use crate::bytes::Bytes;
use crate::elf::{Elf, ElfError, Links};
use crate::identity::{Skipped, content_of, identity_of, open_to_read};
use crate::libraries::{Cache, candidates};
use crate::note::{self, Room};
use crate::script::interpreters;
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
/// Libraries looked at at once.
const THREADS: usize = 8;
/// The piece at the end of a file that is read at once.
const TAIL_BYTES: u64 = 8 << 10;
/// A smaller file is read as a whole: the kernel's read-ahead brings no less of it to the loader.
const SMALL_BYTES_MAX: u64 = 256 << 10;
/// From the dynamic table to the end of a larger one, all is read by one request where it is no more: linkers put the data between.
const END_BYTES_MAX: u64 = 128 << 10;

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
#[derive(Debug)]
pub struct Search {
    sidecars: Sidecars,
    cache: OnceCell<Cache>,
    seen: HashSet<PathBuf>,
    /// All that was ever in `next`: a library that many are linked to is looked at once.
    asked: HashSet<Vec<PathBuf>>,
    /// Libraries to look at: the files that may be meant by each, best first.
    next: Vec<Vec<PathBuf>>,
    machine: u16,
}

impl Search {
    /// Begins with the executable itself. The second value is what was found of it.
    pub fn of_program(program: &Path, sidecars: Sidecars) -> (Self, FoundMaps) {
        let mut search = Self {
            sidecars,
            cache: OnceCell::new(),
            seen: HashSet::from([program.to_owned()]),
            asked: HashSet::new(),
            next: Vec::new(),
            machine: 0,
        };
        let mut found = FoundMaps::default();
        let looked = match Looked::at(program, &search.sidecars) {
            // A script: the pages are those of what runs it.
            Err(MapError::Elf(ElfError::Foreign)) => match interpreter(program) {
                Some(interpreter) => Looked::at(&interpreter, &search.sidecars),
                None => return (search, found),
            },
            looked => looked,
        };
        match looked {
            Ok(looked) => {
                search.machine = looked.machine;
                search.follow(&looked);
                search.seen.insert(looked.path.clone());
                found.add(&looked.path, looked.map);
            }
            // A script that a script runs: the kernel follows that further than is worth while here.
            Err(MapError::Elf(ElfError::Foreign)) => {}
            Err(error) => found.left.push((program.into(), error)),
        }
        (search, found)
    }

    /// The libraries, and the libraries of these.
    pub fn libraries(mut self) -> FoundMaps {
        let mut found = FoundMaps::default();
        while !self.next.is_empty() && self.seen.len() <= LIBRARIES_MAX {
            let level = std::mem::take(&mut self.next);
            for looked in self.look_at_all(&level) {
                match looked {
                    Ok(looked) if self.seen.insert(looked.path.clone()) => {
                        self.follow(&looked);
                        found.add(&looked.path, looked.map);
                    }
                    Ok(_) => {}
                    Err((path, error)) => found.left.push((path, error)),
                }
            }
        }
        for (rank, file) in found.files.iter_mut().enumerate() {
            file.extents.iter_mut().for_each(|extent| extent.rank = rank as u32);
        }
        found
    }

    fn follow(&mut self, looked: &Looked) {
        let directory = looked.path.parent().unwrap_or(Path::new("/"));
        let cache = self.cache.get_or_init(Cache::read);
        let new = candidates(&looked.links, directory, cache);
        self.next.extend(new.into_iter().filter(|one| self.asked.insert(one.clone())));
    }

    /// Looks at the first file of each list that there is, several at once: each costs a few reads one after the other.
    fn look_at_all(&self, level: &[Vec<PathBuf>]) -> Vec<Result<Looked, (PathBuf, MapError)>> {
        let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let (sidecars, machine) = (&self.sidecars, self.machine);
        let work = || {
            while let Some(paths) = level.get(next.fetch_add(1, Ordering::Relaxed)) {
                let at = paths.iter().find_map(|path| look_at_library(path, sidecars, machine));
                results.lock().expect("no holder of the lock panics").extend(at);
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..THREADS.min(level.len()) {
                // One that cannot be started is one fewer at work.
                let _ = std::thread::Builder::new().stack_size(128 << 10).spawn_scoped(scope, work);
            }
            work();
        });
        results.into_inner().expect("no holder of the lock panics")
    }
}

/// The program that runs the script at `path` in the end.
fn interpreter(path: &Path) -> Option<PathBuf> {
    let file = open_to_read(path).ok()?;
    identity_of(&file).ok()?;
    interpreters(&file).pop()?.canonicalize().ok()
}

/// `None` where there is no such library for this machine.
fn look_at_library(
    path: &Path,
    sidecars: &Sidecars,
    machine: u16,
) -> Option<Result<Looked, (PathBuf, MapError)>> {
    let path = path.canonicalize().ok()?;
    match Looked::at(&path, sidecars) {
        Ok(looked) => (looked.machine == machine).then_some(Ok(looked)),
        Err(MapError::Skipped(Skipped::Missing) | MapError::Elf(ElfError::Foreign)) => None,
        Err(error) => Some(Err((path, error))),
    }
}

/// What one file told.
#[derive(Debug)]
struct Looked {
    path: PathBuf,
    machine: u16,
    links: Links,
    map: Result<Option<ProfiledFile>, MapError>,
}

impl Looked {
    fn at(path: &Path, sidecars: &Sidecars) -> Result<Self, MapError> {
        let file = open_to_read(path).map_err(MapError::Skipped)?;
        let identity = identity_of(&file).map_err(MapError::Skipped)?;
        // Before anything of it is understood.
        is_trusted(file.as_fd(), sidecars.uid())?.map_err(MapError::Untrusted)?;
        // What is read is named exactly: no read-ahead.
        let _ = rustix::fs::fadvise(&file, 0, None, Advice::Random);
        let end = identity.size_bytes;
        let is_small = end <= SMALL_BYTES_MAX;
        if is_small {
            ask_for(&file, PageRange::covering(0, end));
        }
        let elf = Elf::parse(&file)?;
        let dynamic_at = elf.dynamic_offset_bytes().filter(|at| end.saturating_sub(*at) <= END_BYTES_MAX);
        if let Some(at) = dynamic_at.filter(|_| !is_small) {
            ask_for(&file, PageRange::covering(at, end.saturating_sub(at)));
        }
        let map = mapped_file(path, identity, &file, &elf, sidecars);
        let dynamic = elf.dynamic(&file).unwrap_or_default();
        if let (Ok(None), false) = (&map, is_small) {
            // At least the loader will wait for these. They come while the next file is looked at.
            dynamic.loaded.iter().for_each(|&pages| ask_for(&file, pages));
        }
        let links = elf.links(&dynamic, &file).unwrap_or_default();
        Ok(Self { path: path.into(), machine: elf.machine, links, map })
    }
}

/// Has `pages` of `file` read. Does not wait for them.
fn ask_for(file: &File, pages: PageRange) {
    let bytes = NonZeroU64::new(pages.bytes());
    // No length would mean all.
    if bytes.is_some() {
        let _ = rustix::fs::fadvise(file, pages.start().offset_bytes(), bytes, Advice::WillNeed);
    }
}

/// The file at `path` with the pages it carries, if any.
fn mapped_file(
    path: &Path,
    identity: FileIdentity,
    file: &File,
    elf: &Elf,
    sidecars: &Sidecars,
) -> Result<Option<ProfiledFile>, MapError> {
    let Some(carried) = carried_by(file, elf, sidecars)? else { return Ok(None) };
    let known = ProfiledFile { path: path.to_string_lossy().into_owned(), identity, ..carried };
    let mut profile = Profile { files: vec![known], ..Profile::default() };
    bound(&mut profile);
    Ok(profile.files.pop())
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
    use std::time::Duration;

    use prepage_sys::cachestat::evict;
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
            evict(file.as_fd(), Duration::from_secs(1)).unwrap();
            let before = waits();
            let looked = Looked::at(&path, &Sidecars::none()).unwrap();
            let waited = waits() - before;
            assert!(matches!(looked.map, Ok(None)) && !looked.links.needed.is_empty(), "{looked:?}");
            assert!(waited <= waits_max, "{name}: {waited} waits");
        }
    }

    #[test]
    fn the_libraries_of_a_program_are_found_without_starting_it() {
        let program = Path::new("/bin/ls").canonicalize().unwrap();
        let (search, own) = Search::of_program(&program, Sidecars::none());
        assert!(own.left.is_empty(), "{own:?}");
        let level = search.next.clone();
        let looked: Vec<_> = search.look_at_all(&level).into_iter().map(Result::unwrap).collect();
        assert!(looked.iter().any(|one| one.path.to_string_lossy().contains("libc.so")), "{looked:?}");
        // Each of them is linked to libc, which is looked at already.
        let mut search = search;
        let known = search.next.len();
        looked.iter().for_each(|one| search.follow(one));
        let again = search.next.split_off(known);
        assert!(again.iter().all(|one| !level.contains(one)), "{again:?} of {level:?}");
        let found = search.libraries();
        assert!(found.left.is_empty(), "{found:?}");
    }

    #[test]
    fn what_is_no_program_has_no_maps() {
        for path in ["/etc/passwd", "/dev/null", "/no/such/file"] {
            let (search, own) = Search::of_program(Path::new(path), Sidecars::none());
            assert!(own.files.is_empty() && search.libraries().files.is_empty());
        }
    }
}
