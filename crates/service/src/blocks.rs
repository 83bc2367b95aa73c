//! What a boot reads of the root's device beside files: inodes, directories, maps of extents.
//!
//! ext2, ext3 and ext4 read these through the page cache of their block device, so that one long read of the device spares the
//! kernel many short ones of its own. Which of its pages were used cannot be seen (the kernel notes what is up to date there block by
//! block, and does not report it), so they are worked out at the end of a boot: of each inode and of each directory that it used, or of a
//! profile before the first boot of an image ([`crate::image`]). They are kept beside the boot's profile, for one file system alone: the last boot's replace those before.

use std::collections::{BTreeSet, HashSet};
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use prepage_core::profile::{Extent, FileIdentity, Fingerprint, Profile, ProfiledFile};
use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_profiles::identity::open_directory;
use prepage_sys::extents::extents;
use prepage_sys::new_file::write_at;
use serde::{Deserialize, Serialize};

use crate::early;
use crate::ext4::Layout;

/// The file below the machine's profiles.
const NAME: &str = "boot.blocks";
const FILE_BYTES_MAX: u64 = 1 << 20;
const SCHEMA_VERSION: u32 = 1;
/// 64 MiB: more than the inodes and directories of any boot.
const PAGES_MAX: u64 = 16 << 10;
/// Of one piece of a directory.
const DIRECTORY_BYTES_MAX: u64 = 1 << 20;
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

/// The pages of a device that were used, in its order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocks {
    schema_version: u32,
    /// The file system's own number.
    file_system: u64,
    /// Half-open, by number of page.
    ranges: Vec<(u64, u64)>,
}

/// Where names of a file system lead.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// Numbers of inodes.
    inodes: BTreeSet<u64>,
    /// Where directories lie: the first byte, and how many.
    directories: Vec<(u64, u64)>,
}

impl Names {
    /// Adds what lies at `path`, if it is on device `number`.
    fn add(&mut self, path: &Path, number: u64) {
        let Ok(metadata) = fs::symlink_metadata(path) else { return };
        if metadata.dev() != number || !self.inodes.insert(metadata.ino()) || !metadata.is_dir() {
            return;
        }
        let extents =
            open_directory(path).and_then(|directory| extents(directory.as_fd())).unwrap_or_default();
        self.directories.extend(extents.iter().map(|extent| (extent.physical_bytes, extent.len_bytes)));
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

    /// The pages that hold the inodes and directories of `names`; none where the file system's layout is not understood.
    pub fn holding(&self, names: &Names) -> Blocks {
        let Some(layout) = Layout::of(&self.file) else {
            return Blocks::of(self.file_system, BTreeSet::new());
        };
        let mut pages: BTreeSet<u64> =
            names.inodes.iter().filter_map(|&inode| layout.page_of(&self.file, inode)).collect();
        for &(first_bytes, len_bytes) in &names.directories {
            let end = first_bytes.saturating_add(len_bytes.min(DIRECTORY_BYTES_MAX)).div_ceil(PAGE_SIZE);
            pages.extend(first_bytes / PAGE_SIZE..end);
        }
        pages.retain(|&page| page < self.pages);
        Blocks::of(self.file_system, pages)
    }

    /// What the files and directories of these names are found by, on this device.
    pub fn names<'a>(
        &self,
        files: impl Iterator<Item = &'a Path>,
        listed: impl Iterator<Item = &'a Path>,
    ) -> Names {
        let mut names = Names::default();
        let mut seen = HashSet::new();
        for path in files {
            names.add(path, self.number);
            path.ancestors().skip(1).take_while(|parent| seen.insert(parent.to_owned())).for_each(|parent| {
                names.add(parent, self.number);
            });
        }
        for path in listed.chain([Path::new("/")]) {
            names.add(path, self.number);
            // Who lists a directory mostly looks at what is in it.
            let entries = fs::read_dir(path).into_iter().flatten().flatten();
            names
                .inodes
                .extend(entries.take(ENTRIES_MAX).map(|entry| std::os::unix::fs::DirEntryExt::ino(&entry)));
        }
        names
    }

    /// The device as a file of a profile, with the pages of `blocks` in its order, and the opened device itself.
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
            extents: blocks.ranges.iter().enumerate().map(extent).collect(),
        };
        let opened = self.file.try_clone()?;
        rustix::fs::fadvise(&opened, 0, None, rustix::fs::Advice::Random)?;
        Ok((Profile { files: vec![file], ..Profile::default() }, opened))
    }

    /// What was written below `directory` of this device; nothing where that is of another file system, or cannot be believed.
    pub fn known(&self, directory: &Path) -> Option<Blocks> {
        let path = directory.join(NAME);
        let metadata = fs::symlink_metadata(&path).ok()?;
        let is_believed = metadata.is_file() && metadata.uid() == 0 && metadata.len() <= FILE_BYTES_MAX;
        let blocks = Blocks::parse(&fs::read(&path).ok().filter(|_| is_believed)?)?;
        let fits = blocks.ranges.last().is_none_or(|last| last.1 <= self.pages);
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
    fn of(file_system: u64, pages: BTreeSet<u64>) -> Self {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for page in pages.into_iter().take(PAGES_MAX as usize) {
            match ranges.last_mut() {
                Some(last) if last.1 == page => last.1 += 1,
                _ => ranges.push((page, page + 1)),
            }
        }
        Self { schema_version: SCHEMA_VERSION, file_system, ranges }
    }

    /// `None` for what no boot has written.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let blocks: Self = serde_json::from_slice(bytes).ok()?;
        let is_in_order = blocks.ranges.windows(2).all(|two| two[0].1 < two[1].0);
        let is_filled = blocks.ranges.iter().all(|&(start, end)| start < end);
        let is_so = blocks.schema_version == SCHEMA_VERSION && is_in_order && is_filled;
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
        let blocks = device.holding(&device.names([&*file].into_iter(), [].into_iter()));
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
        let blocks = Blocks::of(7, BTreeSet::from([9, 3, 4, 5]));
        assert_eq!((&blocks.ranges, blocks.pages()), (&vec![(3, 6), (9, 10)], 4));
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
        assert!(parse("[[1,2],[3,4]]", 1).is_some());
        let bad = ["[[3,4],[1,2]]", "[[1,3],[2,4]]", "[[2,2]]", "[[4,3]]", "[[0,16385]]", "[[1,2],[2,3]]"];
        let huge = format!("[[0,{}]]", u64::MAX);
        for ranges in bad.into_iter().chain([&*huge]) {
            assert_eq!(parse(ranges, 1), None, "{ranges}");
        }
        assert_eq!(parse("[]", 2), None);
    }
}
