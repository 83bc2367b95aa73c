//! Files laid out anew for the boot: the pages that it needs lie one behind another on the device, in the order of need.
//!
//! ```text
//! Profile ─ plan ─► runs of pages in the order of need ─► a donor in few pieces ─► each run changes places with the next part of it
//! ```
//! As they were installed, these pages lie in some thousand pieces with others between, and a disk that counts requests or bytes takes
//! half its time for that. What was moved comes in by the longest requests, and little between is read in vain. It is done only when
//! somebody asks for it: files are in more pieces afterwards, and it takes room and writes ([`prepage_sys::move_extents`]).

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant};

use prepage_core::profile::plan::{PlanOptions, plan};
use prepage_core::profile::{Extent, FileIdentity, Profile, ProfiledFile};
use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_profiles::elf::Elf;
use prepage_profiles::identity::{identity_of, open_if_same};
use prepage_sys::extents::extents;
use prepage_sys::move_extents::exchange;
use prepage_sys::rights::Rights;
use rustix::fs::{Advice, CWD, FallocateFlags, Mode, OFlags, ResolveFlags, openat2};

use crate::blocks::BlockDevice;
use crate::replay::READ_PAGES_MAX;

/// On average, pieces of free space have at least so many pages, 1 MiB: in smaller ones little is gained.
const PIECE_PAGES_MIN: u64 = 256;

/// A file of which something is among the first so many pages, 16 MiB, is moved as a whole: it is in use before prepage has come to it, and what
/// the kernel then reads around a fault would be a request for each piece.
const WHOLE_PAGES: u64 = 4096;

/// No longer file is: most of it is not needed, or is a hole.
const WHOLE_FILE_BYTES_MAX: u64 = 16 << 20;

/// Where a super block tells of features, and the one that is wanted (`s_feature_compat`, `EXT4_FEATURE_COMPAT_HAS_JOURNAL` of fs/ext4/ext4.h).
const FEATURES_AT: u64 = 1024 + 0x5c;
const HAS_JOURNAL: u32 = 1 << 2;

/// What becomes of executable files where the machine runs from the device. On any other device they move like all files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Programs {
    /// They stay.
    Stay,
    /// Those move that nobody executes at that moment. Who starts one while a piece of it changes places is refused, as ETXTBSY. What all others are
    /// loaded by (`PT_INTERP`) stays: without it nobody could start anything.
    Move,
}

/// What was moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arranged {
    /// Pages, and holes between them.
    pub pages: u64,
    /// Files that they are of.
    pub files: usize,
    /// Files of the profile that stay as they are: programs in use, files of which the kernel moves no pages (encrypted, say), on another file system,
    /// or no longer what the profile knows.
    pub left: usize,
    /// The longest time that a program could not be started while a piece of it was moved; `None` where the machine does not run from there, or programs stay.
    pub held_max: Option<Duration>,
}

/// Moves the pages of `profile` that lie on `device`, whose file system is mounted at the root directory of this process. Where the machine
/// `runs` from it, `programs` says what becomes of these: while a file is open to be moved, nobody can execute it. What `before` does is done once, just before
/// the first page moves.
///
/// # Errors
/// That of `before`;
/// where the file system cannot move pages, has other blocks than those of 4 KiB, has no journal, has no room for all of them beside what there is, or only in
/// small pieces.
pub fn arrange(
    device: &BlockDevice,
    profile: &Profile,
    runs: bool,
    programs: Programs,
    before: impl FnOnce() -> io::Result<()>,
) -> io::Result<Arranged> {
    let mut features = [0; 4];
    device.opened()?.read_exact_at(&mut features, FEATURES_AT)?;
    if u32::from_le_bytes(features) & HAS_JOURNAL == 0 {
        let what = "its file system has no journal: files could be lost if the machine stopped meanwhile";
        return Err(io::Error::other(what));
    }
    let block_bytes = rustix::fs::statvfs("/")?.f_bsize;
    if block_bytes != PAGE_SIZE {
        let what = format!(
            "its file system has blocks of {block_bytes} bytes: files are moved in blocks of {PAGE_SIZE} only"
        );
        return Err(io::Error::other(what));
    }
    // Each file needs both. Where the machine does not allow them, that is an error here, and not a file left alone for each.
    drop(Rights::of_everybody().assume()?);
    openat2(CWD, "/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::NO_SYMLINKS)?;
    let moves_programs = runs && programs == Programs::Move;
    let loaders = if moves_programs { loaders(profile) } else { HashSet::new() };
    let stays = |found: &Found| {
        runs && found.is_program && programs == Programs::Stay
            || loaders.contains(&(found.identity.device, found.identity.inode))
    };
    let find = |profiled: &ProfiledFile| Found::at(profiled, device.number()).filter(|found| !stays(found));
    let mut seen = HashSet::new();
    let mut is_to_move = |profiled: &ProfiledFile| {
        let Some(found) = find(profiled) else { return false };
        // The kernel moves what lies on the device, and of what it keeps in large folios one page a call.
        let is_written = found.file.sync_data().is_ok();
        let _ = rustix::fs::fadvise(&found.file, 0, None, Advice::DontNeed);
        // One that has two names is moved by the first.
        is_written && found.open_to_move().is_some() && seen.insert(found.identity.inode)
    };
    let is_to_move: Vec<bool> = profile.files.iter().map(&mut is_to_move).collect();
    let moved_along = with_whole_files(profile);
    let mut reads = plan(&moved_along, PlanOptions { read_pages_max: READ_PAGES_MAX, ..PlanOptions::EXACT });
    reads.retain(|read| is_to_move[read.file]);
    let donor = donor(reads.iter().map(|read| read.range.len()).sum())?;
    before()?;
    let (mut next, mut pages, mut moved, mut refused) = (PageIndex(0), 0, HashSet::new(), None);
    let mut held_max = moves_programs.then_some(Duration::ZERO);
    for read in &reads {
        let exchanged = find(&profile.files[read.file]).map_or(Ok(0), |found| {
            found.bring_in(read.range);
            let began = Instant::now();
            let Some(file) = found.open_to_move() else { return Ok(0) };
            let exchanged = exchange(file.as_fd(), read.range, donor.as_fd(), next);
            drop(file);
            held_max = held_max.map(|max| if found.is_program { max.max(began.elapsed()) } else { max });
            exchanged
        });
        match exchanged {
            Ok(0) => {}
            Ok(count) => {
                pages += count;
                moved.insert(read.file);
            }
            Err(error) if is_of_file(&error) => _ = refused.get_or_insert(error),
            Err(error) => {
                rustix::fs::syncfs(&donor)?;
                return Err(error);
            }
        }
        next.0 += read.range.len();
    }
    rustix::fs::syncfs(&donor)?;
    match refused {
        Some(error) if pages == 0 => Err(error),
        _ => {
            let (files, left) = (moved.len(), profile.files.len() - moved.len());
            Ok(Arranged { pages, files, left, held_max })
        }
    }
}

/// Whether the kernel moves no pages of this file, or not now: one that is used this moment, is shorter than it was, has a hole there, is encrypted,
/// keeps its data in the journal or in its inode, or is a swap file.
fn is_of_file(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EBUSY | libc::EINVAL | libc::ENODATA | libc::EOPNOTSUPP | libc::ETXTBSY | libc::EPERM)
    )
}

/// The pages of `profile`, with all of the files that are moved as a whole.
fn with_whole_files(profile: &Profile) -> Profile {
    let mut files = profile.files.clone();
    let of_file = |(at, file): (usize, &ProfiledFile)| {
        file.extents.iter().map(move |extent| (extent.rank, extent.range.len(), at)).collect::<Vec<_>>()
    };
    let mut by_need: Vec<_> = profile.files.iter().enumerate().flat_map(of_file).collect();
    by_need.sort_unstable();
    let mut pages = 0;
    for (rank, len, at) in by_need {
        if pages >= WHOLE_PAGES {
            break;
        }
        pages += len;
        if files[at].identity.size_bytes > WHOLE_FILE_BYTES_MAX {
            continue;
        }
        let whole = PageRange::covering(0, files[at].identity.size_bytes);
        // The first time: what else of it is needed comes later.
        if files[at].extents.iter().any(|extent| extent.range != whole) {
            files[at].extents = vec![Extent::new(whole, rank)];
        }
    }
    Profile { files, ..Profile::default() }
}

/// A file of a profile that lies on the device, open to be read: that keeps nobody from executing it.
struct Found {
    path: String,
    file: File,
    identity: FileIdentity,
    is_program: bool,
}

impl Found {
    /// That of `profiled` on the device with number `device`.
    fn at(profiled: &ProfiledFile, device: u64) -> Option<Self> {
        let file = {
            // By its name others may lead to a device by now, and to open one may have effects.
            let _assumed = Rights::of_everybody().assume().ok()?;
            open_if_same(profiled).ok()?
        };
        let identity = identity_of(&file).ok()?;
        let is_program = file.metadata().ok()?.mode() & 0o111 != 0;
        (identity.device == device).then_some(Self {
            path: profiled.path.clone(),
            file,
            identity,
            is_program,
        })
    }

    /// Reads `pages` of it, so that nothing waits for them while it is open to be moved. In single pages: the kernel moves of what it keeps in large folios one
    /// page a call.
    fn bring_in(&self, pages: PageRange) {
        let _ = rustix::fs::fadvise(&self.file, 0, None, Advice::Random);
        let mut bytes = vec![0; (pages.len() * PAGE_SIZE) as usize];
        // What cannot be read the kernel refuses to move.
        let _ = self.file.read_at(&mut bytes, pages.start().0 * PAGE_SIZE);
    }

    /// Opens it to be moved; `None` where somebody executes it, or it is another one by now.
    fn open_to_move(&self) -> Option<File> {
        // Nobody's data changes, but the kernel moves only what may be written to.
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file =
            File::from(openat2(CWD, &self.path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS).ok()?);
        (identity_of(&file) == Ok(self.identity)).then_some(file)
    }
}

/// Device and inode of what the programs of `profile` are loaded by.
fn loaders(profile: &Profile) -> HashSet<(u64, u64)> {
    let loader = |profiled: &ProfiledFile| {
        let _assumed = Rights::of_everybody().assume().ok()?;
        let file = open_if_same(profiled).ok()?;
        let path = Elf::parse(&file).ok()?.interpreter(&file).ok()??;
        let found = std::fs::metadata(path).ok()?;
        Some((found.dev(), found.ino()))
    };
    profile.files.iter().filter_map(loader).collect()
}

/// A file without a name that has so many pages in few pieces.
fn donor(pages: u64) -> io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let donor = File::from(rustix::fs::open(Path::new("/"), flags, Mode::RUSR | Mode::WUSR)?);
    if pages > 0 {
        rustix::fs::fallocate(&donor, FallocateFlags::empty(), 0, pages * PAGE_SIZE)?;
    }
    if extents(donor.as_fd())?.len() as u64 > 1 + pages / PIECE_PAGES_MIN {
        return Err(io::Error::other("its free space is in too many pieces to arrange files"));
    }
    Ok(donor)
}
