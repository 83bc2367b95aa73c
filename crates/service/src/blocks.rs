//! What a boot reads of the root's device beside files: inodes, directories, maps of extents.
//!
//! ext2, ext3 and ext4 read these through the page cache of their block device, so that one long read of the device spares the
//! kernel many short ones of its own. Which of its pages they used cannot be seen (the kernel notes what is up to date there block by
//! block, and does not report it), so they are worked out at the end of a boot: of each inode and of each directory that it used, or of a
//! profile before the first boot of an image ([`crate::image`]). At both ends of a device programs look for what lies on it (blkid(8)): what
//! they read there is seen. All is kept in the order of need beside the boot's profile, for one file system alone: the last boot's replaces
//! what was there before.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};

use prepage_core::profile::{Extent, FileIdentity, Fingerprint, Profile, ProfiledFile};
use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_profiles::identity::open_directory;
use prepage_sys::extents::{FileExtent, extents};
use prepage_sys::new_file::write_at;
use prepage_sys::page_flags::PageFlags;
use serde::{Deserialize, Serialize};

use crate::early;
use crate::ext4::Layout;
use crate::opened::pages_of;

/// The file below the machine's profiles.
const NAME: &str = "boot.blocks";
const FILE_BYTES_MAX: u64 = 1 << 20;
const SCHEMA_VERSION: u32 = 2;
/// 64 MiB: more than the inodes and directories of any boot.
const PAGES_MAX: u64 = 16 << 10;
/// Of one piece of a directory.
const DIRECTORY_BYTES_MAX: u64 = 1 << 20;
/// At either end of a device: marks of file systems, volumes and partition tables.
const END_PAGES: u64 = (16 << 20) / PAGE_SIZE;
/// Of a directory that was listed.
const ENTRIES_MAX: usize = 4096;
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

/// The pages of a device that were used, in the order of need.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocks {
    schema_version: u32,
    /// The file system's own number.
    file_system: u64,
    /// Half-open, by number of page.
    ranges: Vec<(u64, u64)>,
}

/// What one name leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Led {
    /// The number of an inode.
    Inode(u64),
    /// A piece of a directory: its first byte on the device, and how many.
    Directory(u64, u64),
}

/// Where names of a file system lead, in the order of need.
#[derive(Clone, Debug)]
pub struct Names {
    /// `st_dev` of the file system.
    device: u64,
    led: Vec<Led>,
    inodes: HashSet<u64>,
    directories: HashSet<u64>,
}

impl Names {
    fn of(device: u64) -> Self {
        Self { device, led: Vec::new(), inodes: HashSet::new(), directories: HashSet::new() }
    }

    fn add_inode(&mut self, number: u64) {
        let is_new = self.inodes.insert(number);
        self.led.extend(is_new.then_some(Led::Inode(number)));
    }

    /// Adds what lies at `path`, and of a directory that `is_listed` what is in it: who lists one mostly looks at that.
    fn add(&mut self, path: &Path, is_listed: bool) {
        let Ok(metadata) = fs::symlink_metadata(path) else { return };
        if metadata.dev() != self.device {
            return;
        }
        self.add_inode(metadata.ino());
        if metadata.is_dir() && self.directories.insert(metadata.ino()) {
            let extents = open_directory(path).and_then(|directory| extents(directory.as_fd()));
            let piece = |extent: &FileExtent| Led::Directory(extent.physical_bytes, extent.len_bytes);
            self.led.extend(extents.unwrap_or_default().iter().map(piece));
        }
        if is_listed {
            let entries = fs::read_dir(path).into_iter().flatten().flatten().take(ENTRIES_MAX);
            entries.for_each(|entry| self.add_inode(entry.ino()));
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
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let uevent = early::read(root, &format!("/sys/dev/block/{major}:{minor}/uevent"))?;
        let name =
            uevent.lines().find_map(|line| line.strip_prefix("DEVNAME=")).ok_or(io::ErrorKind::NotFound)?;
        let path = Path::new("/dev").join(name);
        let mut file = early::first(root, &path, |path| File::open(path))?;
        if file.metadata()?.rdev() != device {
            return Err(io::ErrorKind::NotFound.into());
        }
        let pages = file.seek(SeekFrom::End(0))? / PAGE_SIZE;
        Ok(Some(Self { file, path, pages, file_system: rustix::fs::statvfs(root)?.f_fsid, number: device }))
    }

    /// The pages that hold the inodes and directories of `names`, and then `others`; of names none where the file system's layout is not
    /// understood.
    pub fn holding(&self, names: &Names, others: impl IntoIterator<Item = u64>) -> Blocks {
        let mut pages = Vec::new();
        if let Some(layout) = Layout::of(&self.file) {
            for led in &names.led {
                match *led {
                    Led::Inode(number) => pages.extend(layout.page_of(&self.file, number)),
                    Led::Directory(first_bytes, len_bytes) => {
                        let end_bytes = first_bytes.saturating_add(len_bytes.min(DIRECTORY_BYTES_MAX));
                        pages.extend(first_bytes / PAGE_SIZE..end_bytes.div_ceil(PAGE_SIZE));
                    }
                }
            }
        }
        pages.extend(others);
        Blocks::of(self.file_system, pages.into_iter().filter(|&page| page < self.pages))
    }

    /// What the files and directories of these names, each with whether it was listed, are found by on this device.
    pub fn names<'a>(&self, opened: impl Iterator<Item = (&'a Path, bool)>) -> Names {
        let mut names = Names::of(self.number);
        let mut seen = HashSet::new();
        for (path, is_listed) in [(Path::new("/"), true)].into_iter().chain(opened) {
            // From the root on, as they are looked up.
            let above: Vec<_> =
                path.ancestors().skip(1).take_while(|parent| seen.insert(parent.to_owned())).collect();
            above.into_iter().rev().for_each(|parent| names.add(parent, false));
            names.add(path, is_listed);
        }
        names
    }

    /// The pages at both ends of the device that programs have read; none where the kernel keeps no notes of pages.
    pub fn used_at_its_ends(&self) -> Vec<u64> {
        let Ok(flags) = PageFlags::open() else { return Vec::new() };
        let near = END_PAGES.min(self.pages);
        let far = near.max(self.pages.saturating_sub(END_PAGES));
        let ends = [(0, near), (far, self.pages)];
        let ends = ends.map(|(start, end)| PageRange::new(PageIndex(start), PageIndex(end)));
        ends.into_iter()
            .flat_map(|end| pages_of(&flags, &self.file, end, &|_| true).0)
            .map(|page| page.0)
            .collect()
    }

    /// The device as a file of a profile, with the pages of `blocks`, and the opened device itself.
    ///
    /// # Errors
    /// When the device cannot be opened once more.
    pub fn profile(&self, blocks: &Blocks) -> io::Result<(Profile, File)> {
        let extent = |(rank, &(start, end)): (usize, &(u64, u64))| {
            Extent::new(PageRange::new(PageIndex(start), PageIndex(end)), rank as u32)
        };
        let file = ProfiledFile {
            path: self.path.to_string_lossy().into_owned(),
            identity: FileIdentity::default(),
            fingerprint: Fingerprint::default(),
            learned_unix_s: 0,
            extents: {
                let mut extents: Vec<_> = blocks.ranges.iter().enumerate().map(extent).collect();
                extents.sort_by_key(|extent| extent.range.start());
                extents
            },
        };
        Ok((Profile { files: vec![file], ..Profile::default() }, self.opened()?))
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
        let path = directory.join(NAME);
        let metadata = fs::symlink_metadata(&path).ok()?;
        let is_believed = metadata.is_file() && metadata.uid() == 0 && metadata.len() <= FILE_BYTES_MAX;
        let blocks = Blocks::parse(&fs::read(&path).ok().filter(|_| is_believed)?)?;
        let fits = blocks.ranges.iter().all(|range| range.1 <= self.pages);
        (fits && blocks.file_system == self.file_system).then_some(blocks)
    }
}

/// How many pages one WILLNEED loads of a file on the file system at `root`: the larger of the device's longest request and its
/// read-ahead; 0 where neither is known.
pub fn willneed_pages(root: &Path) -> u64 {
    let Ok(device) = fs::metadata(root).map(|metadata| metadata.dev()) else { return 0 };
    let directory = format!("/sys/dev/block/{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    // A partition's are those of the disk that it is a part of.
    let kib = |name: &str| {
        let paths = [format!("{directory}/queue/{name}"), format!("{directory}/../queue/{name}")];
        paths.iter().find_map(|path| early::read(root, path).ok()?.trim().parse::<u64>().ok())
    };
    kib("max_sectors_kb").max(kib("read_ahead_kb")).unwrap_or(0) * 1024 / PAGE_SIZE
}

impl Blocks {
    /// Of these pages in the order of need.
    fn of(file_system: u64, pages: impl Iterator<Item = u64>) -> Self {
        let mut needed = BTreeMap::new();
        for (rank, page) in pages.enumerate() {
            if needed.len() as u64 == PAGES_MAX {
                break;
            }
            needed.entry(page).or_insert(rank);
        }
        let mut ranges: Vec<(usize, (u64, u64))> = Vec::new();
        for (page, rank) in needed {
            match ranges.last_mut() {
                Some((first, (_, end))) if *end == page => (*first, *end) = (rank.min(*first), page + 1),
                _ => ranges.push((rank, (page, page + 1))),
            }
        }
        ranges.sort_unstable();
        let ranges = ranges.into_iter().map(|(_, range)| range).collect();
        Self { schema_version: SCHEMA_VERSION, file_system, ranges }
    }

    /// `None` for what no boot has written.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let blocks: Self = serde_json::from_slice(bytes).ok()?;
        let mut ranges = blocks.ranges.clone();
        ranges.sort_unstable();
        let are_apart = ranges.windows(2).all(|two| two[0].1 < two[1].0);
        let are_filled = ranges.iter().all(|&(start, end)| start < end);
        let is_so = blocks.schema_version == SCHEMA_VERSION && are_apart && are_filled;
        (is_so && blocks.pages() <= PAGES_MAX).then_some(blocks)
    }

    /// How many pages they are.
    pub fn pages(&self) -> u64 {
        self.ranges.iter().map(|&(start, end)| end - start).fold(0, u64::saturating_add)
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
mod tests {
    use std::process::Command;

    use prepage_testing::{Need, has};

    use super::*;

    struct Mounted<'a>(&'a Path);

    impl Drop for Mounted<'_> {
        fn drop(&mut self) {
            let _ = rustix::mount::unmount(self.0, rustix::mount::UnmountFlags::DETACH);
        }
    }

    #[test]
    fn the_inode_and_the_directories_of_a_file_are_found_and_known_again() {
        if !has(Need::LoopDevice) {
            return;
        }
        // A loop device reads its image from a disk's file system.
        let place = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let (image, point) = (place.path().join("image"), place.path().join("mounted"));
        File::create(&image).unwrap().set_len(16 << 20).unwrap();
        fs::create_dir(&point).unwrap();
        assert!(Command::new("mkfs.ext4").args(["-q", "-b", "4096"]).arg(&image).status().unwrap().success());
        let mount = Command::new("mount").args(["-o", "loop"]).args([&image, &point]).status();
        assert!(mount.unwrap().success());
        let _mounted = Mounted(&point);
        let (directory, file) = (point.join("directory"), point.join("directory/file"));
        fs::create_dir(&directory).unwrap();
        fs::write(&file, "text").unwrap();
        rustix::fs::sync();

        let device = BlockDevice::of(&point).unwrap().unwrap();
        let names = || device.names([(&*file, false)].into_iter());
        let blocks = device.holding(&names(), []);
        let layout = Layout::of(&device.file).unwrap();
        let inode = layout.page_of(&device.file, fs::metadata(&file).unwrap().ino()).unwrap();
        let listed = extents(File::open(&directory).unwrap().as_fd()).unwrap()[0].physical_bytes / PAGE_SIZE;
        let holds = |page: u64| blocks.ranges.iter().any(|&(start, end)| (start..end).contains(&page));
        assert!(holds(inode) && holds(listed), "{inode}, {listed}: {blocks:?}");
        assert!(blocks.pages() < 100, "{blocks:?}");

        blocks.write(&point).unwrap();
        assert_eq!(device.known(&point), Some(blocks));
        let other = Blocks { file_system: !device.file_system, ..device.known(&point).unwrap() };
        other.write(&point).unwrap();
        assert_eq!(device.known(&point), None, "of another file system");
    }

    #[test]
    fn pages_become_ranges_that_are_written_and_read_again() {
        let blocks = Blocks::of(7, [9, 4, 3, 20, 5, 4].into_iter());
        assert_eq!(
            (&blocks.ranges, blocks.pages()),
            (&vec![(9, 10), (3, 6), (20, 21)], 5),
            "in order of need"
        );
        let bytes = serde_json::to_vec(&blocks).unwrap();
        assert_eq!(Blocks::parse(&bytes), Some(blocks));
        for cut in 0..bytes.len() {
            assert_eq!(Blocks::parse(&bytes[..cut]), None);
        }
    }

    #[test]
    fn what_no_boot_has_written_is_refused() {
        let parse = |ranges: &str, version: u32| {
            Blocks::parse(
                format!(r#"{{"schema_version":{version},"file_system":7,"ranges":{ranges}}}"#).as_bytes(),
            )
        };
        assert!(parse("[[3,4],[1,2]]", SCHEMA_VERSION).is_some());
        let bad = ["[[1,3],[2,4]]", "[[2,4],[1,3]]", "[[2,2]]", "[[4,3]]", "[[0,16385]]", "[[1,2],[2,3]]"];
        let huge = format!("[[0,{}]]", u64::MAX);
        for ranges in bad.into_iter().chain([&*huge]) {
            assert_eq!(parse(ranges, SCHEMA_VERSION), None, "{ranges}");
        }
        assert_eq!(parse("[]", SCHEMA_VERSION + 1), None);
    }
}
