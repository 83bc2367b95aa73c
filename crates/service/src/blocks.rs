//! What a boot reads of the root's device beside files: inodes, directories, maps of extents.
//!
//! ext2, ext3 and ext4 read these through the page cache of their block device, so that one long read of the device spares the
//! kernel many short ones of its own. Which of its pages they used cannot be seen (the kernel notes what is up to date there block by
//! block, and does not report it), so they are worked out at the end of a boot: of each inode, directory and map of extents that it used, or of a
//! profile before the first boot of an image ([`crate::image`]). At both ends of a device programs look for what lies on it (blkid(8)): what
//! they read there is seen. All is kept beside the boot's profile, each with the place in the order of need of what is found by it, and with it where the
//! profile's files lie on the device; for one file system alone: the last boot's replaces what was there before.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};

use prepage_core::profile::{Extent, FileIdentity, Fingerprint, Profile, ProfiledFile};
use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_profiles::identity::{identity_at, identity_of, open_directory, open_to_read};
use prepage_profiles::trust::read_in;
use prepage_sys::disk_stat::DiskStat;
use prepage_sys::extents::{FileExtent, extents, place_of};
use prepage_sys::new_file::write_at;
use prepage_sys::page_flags::PageFlags;
use prepage_sys::rights::Rights;
use serde::{Deserialize, Serialize};

use crate::askers::Askers;
use crate::early;
use crate::ext4::Layout;
use crate::missed::Missed;
use crate::opened::pages_of;

/// The file below the machine's profiles.
pub(crate) const NAME: &str = "boot.blocks";
const FILE_BYTES_MAX: u64 = 4 << 20;
const SCHEMA_VERSION: u32 = 4;
/// 64 MiB: more than the inodes and directories of any boot.
const PAGES_MAX: u64 = 16 << 10;
/// Pieces of files: more than the files of any boot are in.
const PLACES_MAX: usize = 1 << 14;
/// Of one piece of a directory.
const DIRECTORY_BYTES_MAX: u64 = 1 << 20;
/// At either end of a device: marks of file systems, volumes and partition tables.
const END_PAGES: u64 = (16 << 20) / PAGE_SIZE;
/// Of a directory that was listed.
const ENTRIES_MAX: usize = 4096;
/// Who writes it.
const ROOT: u32 = 0;
/// `EXT4_SUPER_MAGIC`, which ext2 and ext3 have too (statfs(2)).
const EXT4: u64 = 0xEF53;

/// The device of a file system whose own blocks it caches.
#[derive(Debug)]
pub struct BlockDevice {
    file: File,
    path: PathBuf,
    pages: u64,
    file_system: u64,
    /// `st_dev` of what lies on it.
    number: u64,
}

/// The pages of a device that were used, and where files lie on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocks {
    schema_version: u32,
    /// The file system's own number.
    file_system: u64,
    /// Ascending and apart: half-open by number of page, and the rank in the profile of what is needed next.
    ranges: Vec<(u64, u64, u32)>,
    /// Ascending, each file once.
    places: Vec<Placed>,
    /// Ascending: what no name leads to.
    missed: Vec<Missed>,
}

/// Where a file lies: its inode and when that last changed, for the number may belong to another file by the next boot, and on another file
/// system it does; and, ascending, one of its pages and the page of the device where it lies with those behind it.
type Placed = (u64, i64, Vec<(u64, u64)>);

/// A name that was opened.
#[derive(Clone, Copy, Debug)]
pub struct Needed<'a> {
    /// Where it lies.
    pub path: &'a Path,
    /// Whether it is a directory that was listed.
    pub is_listed: bool,
    /// The rank in the profile of what is needed next.
    pub rank: u32,
}

/// The names `opened`, in order, each with whether it is a directory that was listed, beside the pages of `profile`.
pub fn needed<'a>(
    opened: impl Iterator<Item = (&'a Path, bool)>,
    profile: &Profile,
) -> impl Iterator<Item = Needed<'a>> {
    let first = |file: &ProfiledFile| file.extents.iter().map(|extent| extent.rank).min();
    let ranks: HashMap<PathBuf, u32> =
        profile.files.iter().filter_map(|file| Some((file.path.clone().into(), first(file)?))).collect();
    let mut rank = 0;
    opened.map(move |(path, is_listed)| {
        rank = ranks.get(path).copied().unwrap_or(rank);
        Needed { path, is_listed, rank }
    })
}

/// What one name leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Led {
    /// The number of an inode.
    Inode(u64),
    /// A piece of a directory: its first byte on the device, and how many.
    Directory(u64, u64),
    /// The number of a file's inode: where the map of its extents lies.
    Map(u64),
}

/// Where names of a file system lead, in the order of need.
#[derive(Clone, Debug)]
pub struct Names {
    /// `st_dev` of the file system.
    device: u64,
    /// Each with its rank.
    led: Vec<(Led, u32)>,
    inodes: HashSet<u64>,
    directories: HashSet<u64>,
}

/// What programs were seen to read at both ends of a device.
#[derive(Debug, Default)]
pub struct Ends {
    /// By page: its rank.
    seen: BTreeMap<u64, u32>,
    /// Pages of files that were noted at the last look.
    noted_pages: usize,
}

impl Ends {
    /// Looks again, when `noted_pages` pages of files are noted: what is new is needed after those of the look before.
    pub fn look(&mut self, device: &BlockDevice, noted_pages: usize) {
        let rank = u32::try_from(self.noted_pages).unwrap_or(u32::MAX);
        for page in device.used_at_its_ends() {
            self.seen.entry(page).or_insert(rank);
        }
        self.noted_pages = noted_pages;
    }

    /// The pages, each with its rank.
    pub fn pages(&self) -> impl Iterator<Item = (u64, u32)> {
        self.seen.iter().map(|(&page, &rank)| (page, rank))
    }
}

impl Names {
    fn of(device: u64) -> Self {
        Self { device, led: Vec::new(), inodes: HashSet::new(), directories: HashSet::new() }
    }

    fn add_inode(&mut self, number: u64, rank: u32) {
        let is_new = self.inodes.insert(number);
        self.led.extend(is_new.then_some((Led::Inode(number), rank)));
    }

    /// Adds what lies at the path of `needed`, and of a directory that was listed what is in it: who lists one mostly looks at that.
    fn add(&mut self, needed: Needed<'_>, askers: &Askers) {
        let Needed { path, is_listed, rank } = needed;
        // Nothing below such a mount lies on this device, and a thread that waits there cannot be ended. A symbolic link may still lead to one.
        if askers.may_not_answer(path) {
            return;
        }
        let Ok(metadata) = fs::symlink_metadata(path) else { return };
        if metadata.dev() != self.device {
            return;
        }
        self.add_inode(metadata.ino(), rank);
        if metadata.is_dir() && self.directories.insert(metadata.ino()) {
            let extents = open_directory(path).and_then(|directory| extents(directory.as_fd()));
            let piece = |extent: &FileExtent| (Led::Directory(extent.physical_bytes, extent.len_bytes), rank);
            self.led.extend(extents.unwrap_or_default().iter().map(piece));
        }
        if metadata.is_file() {
            self.led.push((Led::Map(metadata.ino()), rank));
        }
        if is_listed {
            let entries = fs::read_dir(path).into_iter().flatten().flatten().take(ENTRIES_MAX);
            entries.for_each(|entry| self.add_inode(entry.ino(), rank));
        }
    }
}

impl BlockDevice {
    /// That of the file system at `root`; `None` for file systems that do not read through one.
    ///
    /// # Errors
    /// Where it cannot be found or opened.
    pub fn of(root: &Path) -> io::Result<Option<Self>> {
        if rustix::fs::statfs(root)?.f_type as u64 != EXT4 {
            return Ok(None);
        }
        let device = fs::metadata(root)?.dev();
        let named = |path: &Path, error: io::Error| {
            io::Error::new(error.kind(), format!("its device: {}: {error}", path.display()))
        };
        let uevent = DiskStat::directory(device).join("uevent");
        let text = early::read(root, &uevent).map_err(|error| named(&uevent, error))?;
        let name = text.lines().find_map(|line| line.strip_prefix("DEVNAME="));
        let path =
            Path::new("/dev").join(name.ok_or_else(|| named(&uevent, io::ErrorKind::NotFound.into()))?);
        let mut file =
            early::first(root, &path, |path| File::open(path)).map_err(|error| named(&path, error))?;
        if file.metadata()?.rdev() != device {
            return Err(named(&path, io::ErrorKind::NotFound.into()));
        }
        let pages = file.seek(SeekFrom::End(0))? / PAGE_SIZE;
        Ok(Some(Self { file, path, pages, file_system: rustix::fs::statvfs(root)?.f_fsid, number: device }))
    }

    /// The pages that hold the inodes, directories and maps of extents of `names`, and `others`, each with its rank; of names none where the file system's layout
    /// is not understood. And where the files of `profile` lie.
    pub fn holding(
        &self,
        names: &Names,
        others: impl IntoIterator<Item = (u64, u32)>,
        profile: &Profile,
    ) -> Blocks {
        let mut pages = Vec::new();
        if let Some(layout) = Layout::of(&self.file) {
            for &(led, rank) in &names.led {
                match led {
                    Led::Inode(number) => {
                        pages.extend(layout.page_of(&self.file, number).map(|page| (page, rank)));
                    }
                    Led::Directory(first_bytes, len_bytes) => {
                        let end_bytes = first_bytes.saturating_add(len_bytes.min(DIRECTORY_BYTES_MAX));
                        let held = first_bytes / PAGE_SIZE..end_bytes.div_ceil(PAGE_SIZE);
                        pages.extend(held.map(|page| (page, rank)));
                    }
                    Led::Map(number) => {
                        pages.extend(layout.map_of(&self.file, number).into_iter().map(|page| (page, rank)));
                    }
                }
            }
        }
        pages.extend(others);
        let blocks = Blocks::of(self.file_system, pages.into_iter().filter(|&(page, _)| page < self.pages));
        Blocks { places: self.places(profile), ..blocks }
    }

    /// Where the files of `profile` lie, as far as it needs them and everybody may read them: by their names others may lead to something else by now, and
    /// to open a device may have effects.
    fn places(&self, profile: &Profile) -> Vec<Placed> {
        let Ok(_assumed) = Rights::of_everybody().assume() else { return Vec::new() };
        let mut placed = BTreeMap::<_, BTreeMap<_, _>>::new();
        let mut left = PLACES_MAX;
        for file in &profile.files {
            let path = Path::new(&file.path);
            if Askers::of_machine().may_not_answer(path) {
                continue;
            }
            let Ok(opened) = identity_at(path).and_then(|_is_regular| open_to_read(path)) else { continue };
            let Ok(identity) = identity_of(&opened) else { continue };
            if identity.device != self.number {
                continue;
            }
            let mut last = None;
            for page in file.extents.iter().map(|extent| extent.range.start()) {
                let Ok(Some(place)) = place_of(opened.as_fd(), page.offset_bytes()) else { continue };
                let place = place / PAGE_SIZE;
                let is_behind = |(at, there): (PageIndex, u64)| there + (page.0 - at.0) == place;
                if !last.is_some_and(is_behind) && left > 0 {
                    // A file of two names has places by both.
                    let places = placed.entry((identity.inode, identity.ctime_ns)).or_default();
                    left -= usize::from(places.insert(page.0, place).is_none());
                }
                last = Some((page, place));
            }
        }
        placed
            .into_iter()
            .map(|((inode, ctime_ns), places)| (inode, ctime_ns, places.into_iter().collect()))
            .collect()
    }

    /// At which page of the device page `page` of a file begins that this device holds, or that it is; as far as `blocks` says.
    pub fn place_of(&self, blocks: &Blocks, file: &ProfiledFile, page: PageIndex) -> Option<u64> {
        if Path::new(&file.path) == self.path {
            return Some(page.0);
        }
        let key = (file.identity.inode, file.identity.ctime_ns);
        let at = blocks.places.binary_search_by_key(&key, |&(inode, ctime_ns, _)| (inode, ctime_ns)).ok()?;
        let places = &blocks.places[at].2;
        let behind = places.partition_point(|&(first, _)| first <= page.0);
        let &(first, place) = places[..behind].last()?;
        Some(place.saturating_add(page.0 - first)).filter(|&place| place < self.pages)
    }

    /// What the files and directories of these names are found by on this device.
    pub fn names<'a>(&self, opened: impl Iterator<Item = Needed<'a>>) -> Names {
        let (mut names, askers) = (Names::of(self.number), Askers::of_machine());
        let mut seen = HashSet::new();
        let root = Needed { path: Path::new("/"), is_listed: true, rank: 0 };
        for needed in [root].into_iter().chain(opened) {
            // From the root on, as they are looked up.
            let above: Vec<_> =
                needed.path.ancestors().skip(1).take_while(|parent| seen.insert(parent.to_owned())).collect();
            for path in above.into_iter().rev() {
                names.add(Needed { path, is_listed: false, ..needed }, askers);
            }
            names.add(needed, askers);
        }
        names
    }

    /// The pages at both ends of the device that programs have read; none where the kernel keeps no notes of pages, or others look at them.
    fn used_at_its_ends(&self) -> Vec<u64> {
        let Ok(flags) = PageFlags::open() else { return Vec::new() };
        let near = END_PAGES.min(self.pages);
        let far = near.max(self.pages.saturating_sub(END_PAGES));
        let ends = [(0, near), (far, self.pages)];
        let ends = ends.map(|(start, end)| PageRange::new(PageIndex(start), PageIndex(end)));
        ends.into_iter()
            .filter_map(|end| pages_of(&flags, &self.file, end, &|_| true).ok())
            .flat_map(|(used, _)| used)
            .map(|page| page.0)
            .collect()
    }

    /// The device as a file of a profile, with the pages of `blocks`.
    pub fn profiled(&self, blocks: &Blocks) -> ProfiledFile {
        let extent = |&(start, end, rank): &(u64, u64, u32)| {
            Extent::new(PageRange::new(PageIndex(start), PageIndex(end)), rank)
        };
        ProfiledFile {
            path: self.path.to_string_lossy().into_owned(),
            identity: FileIdentity::default(),
            fingerprint: Fingerprint::default(),
            learned_unix_s: 0,
            extents: blocks.ranges.iter().map(extent).collect(),
        }
    }

    /// `st_dev` of what lies on it.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The device itself, to be read without read-ahead.
    ///
    /// # Errors
    /// Where this process may have no more files open.
    pub fn opened(&self) -> io::Result<File> {
        let opened = self.file.try_clone()?;
        rustix::fs::fadvise(&opened, 0, None, rustix::fs::Advice::Random)?;
        Ok(opened)
    }

    /// What was written below `directory` of this device; nothing where that is of another file system, or cannot be believed.
    pub fn known(&self, directory: &Path) -> Option<Blocks> {
        let blocks = Blocks::parse(&read_in(directory, Path::new(NAME), FILE_BYTES_MAX, ROOT).ok()??)?;
        let fits = blocks.ranges.iter().all(|range| range.1 <= self.pages);
        (fits && blocks.file_system == self.file_system).then_some(blocks)
    }
}

/// How many pages one WILLNEED loads of a file on the file system at `root`: the larger of the device's longest request and its
/// read-ahead; 0 where neither is known.
pub fn willneed_pages(root: &Path) -> u64 {
    let Ok(device) = fs::metadata(root).map(|metadata| metadata.dev()) else { return 0 };
    let directory = DiskStat::directory(device);
    // A partition's are those of the disk that it is a part of.
    let kib = |name: &str| {
        let paths = ["queue", "../queue"].map(|queue| directory.join(queue).join(name));
        paths.iter().find_map(|path| early::read(root, path).ok()?.trim().parse::<u64>().ok())
    };
    kib("max_sectors_kb").max(kib("read_ahead_kb")).unwrap_or(0) * 1024 / PAGE_SIZE
}

/// Has nothing known any more of what lies beside the profile in `directory`.
///
/// # Errors
/// As unlink(2), but where there is none.
pub(crate) fn forget(directory: &Path) -> io::Result<()> {
    match fs::remove_file(directory.join(NAME)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

impl Blocks {
    /// Of these pages, each with its rank: as many as are kept, those that are needed first.
    fn of(file_system: u64, pages: impl Iterator<Item = (u64, u32)>) -> Self {
        let mut by_need: Vec<_> = pages.map(|(page, rank)| (rank, page)).collect();
        by_need.sort_unstable();
        let mut needed = BTreeMap::new();
        for (rank, page) in by_need {
            if needed.len() as u64 == PAGES_MAX {
                break;
            }
            needed.entry(page).or_insert(rank);
        }
        let mut ranges: Vec<(u64, u64, u32)> = Vec::new();
        for (page, rank) in needed {
            match ranges.last_mut() {
                Some((_, end, first)) if *end == page => (*first, *end) = (rank.min(*first), page + 1),
                _ => ranges.push((page, page + 1, rank)),
            }
        }
        Self { schema_version: SCHEMA_VERSION, file_system, ranges, ..Self::default() }
    }

    /// What no name led to in the last boots.
    pub fn missed(&self) -> &[Missed] {
        &self.missed
    }

    /// Whether page `page` of the device is one of them.
    pub fn holds(&self, page: u64) -> bool {
        let behind = self.ranges.partition_point(|&(start, ..)| start <= page);
        self.ranges[..behind].last().is_some_and(|&(_, end, _)| page < end)
    }

    /// The pages, each with its rank.
    pub fn ranked(&self) -> impl Iterator<Item = (u64, u32)> {
        self.ranges.iter().flat_map(|&(start, end, rank)| (start..end).map(move |page| (page, rank)))
    }

    /// The same with what `seen` has: the pages that a boot has seen in use, and what it has missed.
    #[must_use]
    pub fn beside(self, seen: &Self) -> Self {
        let ranges = Self::of(self.file_system, self.ranked().chain(seen.ranked())).ranges;
        Self { ranges, missed: seen.missed.clone(), ..self }
    }

    /// The same with what was `missed`.
    #[must_use]
    pub fn with_missed(self, missed: Vec<Missed>) -> Self {
        let wanted = missed.iter().filter(|(.., boots)| *boots > 0).map(|&(page, rank, _)| (page, rank));
        let ranges = Self::of(self.file_system, self.ranked().chain(wanted)).ranges;
        Self { ranges, missed, ..self }
    }

    /// `None` for what no boot has written.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let blocks: Self = serde_json::from_slice(bytes).ok()?;
        let are_apart = blocks.ranges.windows(2).all(|two| two[0].1 < two[1].0);
        let are_filled = blocks.ranges.iter().all(|&(start, end, _)| start < end);
        let key = |&(inode, ctime_ns, _): &Placed| (inode, ctime_ns);
        let are_sorted = blocks.places.is_sorted_by(|one, other| key(one) < key(other))
            && blocks.places.iter().all(|(.., places)| places.is_sorted_by_key(|place| place.0));
        let is_so = blocks.schema_version == SCHEMA_VERSION && are_apart && are_filled && are_sorted;
        (is_so && blocks.pages() <= PAGES_MAX).then_some(blocks)
    }

    /// How many pages they are.
    pub fn pages(&self) -> u64 {
        self.ranges.iter().map(|&(start, end, _)| end - start).fold(0, u64::saturating_add)
    }

    /// Writes them below `directory`.
    ///
    /// # Errors
    /// Where it cannot be written to.
    pub fn write(&self, directory: &Path) -> io::Result<()> {
        let bytes = serde_json::to_vec(self)?;
        let directory = File::open(directory)?;
        write_at(directory.as_fd(), Path::new(NAME), 0o644, &bytes)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    use prepage_testing::{Need, has};

    use super::*;
    use crate::missed;

    /// A file system of its own, mounted from an image.
    pub(crate) struct Image {
        /// A loop device reads its image from a disk's file system.
        place: tempfile::TempDir,
    }

    impl Image {
        pub(crate) fn new() -> Self {
            // Below no directory that is somebody's own.
            let image = Self { place: tempfile::tempdir_in("/var/tmp").unwrap() };
            fs::set_permissions(image.place.path(), fs::Permissions::from_mode(0o755)).unwrap();
            File::create(image.file()).unwrap().set_len(16 << 20).unwrap();
            fs::create_dir(image.point()).unwrap();
            let made = Command::new("mkfs.ext4").args(["-q", "-b", "4096"]).arg(image.file()).status();
            assert!(made.unwrap().success());
            image.mount()
        }

        fn mount(self) -> Self {
            let mount = Command::new("mount").args(["-o", "loop"]).args([self.file(), self.point()]).status();
            assert!(mount.unwrap().success());
            self
        }

        /// With nothing of it in memory.
        pub(crate) fn mounted_again(self) -> Self {
            assert!(Command::new("umount").arg(self.point()).status().unwrap().success());
            self.mount()
        }

        fn file(&self) -> PathBuf {
            self.place.path().join("image")
        }

        pub(crate) fn point(&self) -> PathBuf {
            self.place.path().join("mounted")
        }
    }

    impl Drop for Image {
        fn drop(&mut self) {
            let _ = rustix::mount::unmount(self.point(), rustix::mount::UnmountFlags::DETACH);
        }
    }

    #[test]
    fn the_inode_and_the_directories_of_a_file_are_found_and_known_again() {
        if !has(Need::LoopDevice) {
            return;
        }
        let image = Image::new();
        let point = image.point();
        let (directory, file) = (point.join("directory"), point.join("directory/file"));
        fs::create_dir(&directory).unwrap();
        fs::write(&file, "text").unwrap();
        let secret = point.join("secret");
        fs::write(&secret, "text").unwrap();
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
        rustix::fs::sync();

        let device = BlockDevice::of(&point).unwrap().unwrap();
        let profiled = |path: &Path, page| ProfiledFile {
            path: path.to_str().unwrap().into(),
            identity: identity_of(&open_to_read(path).unwrap()).unwrap(),
            fingerprint: Fingerprint::default(),
            learned_unix_s: 0,
            extents: vec![Extent::new(PageRange::new(PageIndex(page), PageIndex(page + 1)), 5)],
        };
        let profile = Profile { files: vec![profiled(&file, 0), profiled(&secret, 0)], ..Profile::default() };
        let names = device.names(needed([(&*file, false)].into_iter(), &profile));
        let blocks = device.holding(&names, [], &profile);
        let layout = Layout::of(&device.file).unwrap();
        let inode = layout.page_of(&device.file, fs::metadata(&file).unwrap().ino()).unwrap();
        let listed = extents(File::open(&directory).unwrap().as_fd()).unwrap()[0].physical_bytes / PAGE_SIZE;
        let rank_of = |page: u64| {
            blocks.ranges.iter().find(|&&(start, end, _)| (start..end).contains(&page)).map(|range| range.2)
        };
        assert!(rank_of(inode).is_some_and(|rank| rank <= 5), "{inode}: {blocks:?}");
        assert_eq!(rank_of(listed), Some(5), "{listed}: {blocks:?}");
        let place = extents(File::open(&file).unwrap().as_fd()).unwrap()[0].physical_bytes / PAGE_SIZE;
        let place_of = |file: &ProfiledFile, page| device.place_of(&blocks, file, PageIndex(page));
        assert_eq!([0, 3].map(|page| place_of(&profile.files[0], page)), [Some(place), Some(place + 3)]);
        assert_eq!(place_of(&profile.files[1], 0), None, "what not everybody may read is not opened");
        assert_eq!(place_of(&device.profiled(&blocks), 7), Some(7), "the device itself");
        // Its inode's number may be that of another file now, and of any file of another file system.
        let gone = FileIdentity { ctime_ns: 1, ..profile.files[0].identity };
        assert_eq!(place_of(&ProfiledFile { identity: gone, ..profiled(&file, 0) }, 0), None);
        assert!(blocks.pages() < 100, "{blocks:?}");

        blocks.write(&point).unwrap();
        assert_eq!(device.known(&point), Some(blocks));
        let other = Blocks { file_system: !device.file_system, ..device.known(&point).unwrap() };
        other.write(&point).unwrap();
        assert_eq!(device.known(&point), None, "of another file system");
    }

    #[test]
    fn pages_become_ranges_that_are_written_and_read_again() {
        let pages = [(9, 0), (4, 11), (3, 12), (20, 13), (5, 14), (4, 15)];
        let mut blocks = Blocks::of(7, pages.into_iter());
        assert_eq!((&blocks.ranges, blocks.pages()), (&vec![(3, 6, 11), (9, 10, 0), (20, 21, 13)], 5));
        assert_eq!([2, 3, 5, 6, 20].map(|page| blocks.holds(page)), [false, true, true, false, true]);
        blocks.places = vec![(12, 5, vec![(0, 400), (8, 500)]), (13, -5, vec![(0, 900)])];
        let blocks = blocks.with_missed(vec![(6, 4, 0), (9, 4, 1), (21, 4, 8)]);
        assert_eq!(blocks.ranges, [(3, 6, 11), (9, 10, 0), (20, 22, 4)], "without what was missed once");
        let bytes = serde_json::to_vec(&blocks).unwrap();
        assert_eq!(Blocks::parse(&bytes), Some(blocks));
        for cut in 0..bytes.len() {
            assert_eq!(Blocks::parse(&bytes[..cut]), None);
        }
    }

    #[test]
    fn the_largest_that_are_kept_fit_into_the_largest_file_that_is_read() {
        let far = u64::MAX - 2 * PAGES_MAX;
        let blocks = Blocks {
            schema_version: SCHEMA_VERSION,
            file_system: u64::MAX,
            ranges: (0..PAGES_MAX).map(|at| (far + 2 * at, far + 2 * at + 1, u32::MAX)).collect(),
            places: (0..PLACES_MAX as u64)
                .map(|at| (far + at, i64::MIN, vec![(u64::MAX, u64::MAX)]))
                .collect(),
            missed: (0..missed::PAGES_MAX as u64).map(|at| (far + at, u32::MAX, u8::MAX)).collect(),
        };
        let bytes = serde_json::to_vec(&blocks).unwrap();
        assert!(bytes.len() as u64 <= FILE_BYTES_MAX, "{} bytes", bytes.len());
        assert_eq!(Blocks::parse(&bytes), Some(blocks));
    }

    #[test]
    fn what_no_boot_has_written_is_refused() {
        let parse = |ranges: &str, version: u32| {
            Blocks::parse(
                format!(r#"{{"schema_version":{version},"file_system":7,"ranges":{ranges},"places":[],"missed":[]}}"#)
                    .as_bytes(),
            )
        };
        assert!(parse("[[1,2,7],[3,4,0]]", SCHEMA_VERSION).is_some());
        let bad = [
            "[[1,3,0],[2,4,0]]",
            "[[3,4,0],[1,2,0]]",
            "[[2,2,0]]",
            "[[4,3,0]]",
            "[[0,16385,0]]",
            "[[1,2,0],[2,3,0]]",
        ];
        let huge = format!("[[0,{},0]]", u64::MAX);
        for ranges in bad.into_iter().chain([&*huge]) {
            assert_eq!(parse(ranges, SCHEMA_VERSION), None, "{ranges}");
        }
        assert_eq!(parse("[]", SCHEMA_VERSION + 1), None);
    }
}
