//! What a block device has done: the file `stat` of its directory below /sys/dev/block (Documentation/block/stat.rst).

use std::path::{Path, PathBuf};

use crate::device_number;

const SECTOR_BYTES: u64 = 512;

/// Counters of a device since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStat {
    /// Reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Requests that are under way now.
    pub in_flight: u64,
}

impl DiskStat {
    /// The directory of the device with this number (`st_dev`). File systems without a device of their own (overlay, Btrfs,
    /// NFS) have none.
    pub fn directory(device: u64) -> PathBuf {
        Path::new("/sys/dev/block").join(device_number::name(device))
    }

    /// The number (`st_dev`) of the block device that has this inode for itself, to which the disk's own pages (directories, inodes)
    /// belong. The inode is given with its file system's device, `major << 20 | minor`: a block device's inode lies on a file system without
    /// a device (major number 0), and its number is the block device's, of 32 bits. `None` for any other. Inodes of files may have such
    /// numbers too: only [`Self::directory`] shows whether there is a block device of that number.
    pub fn device_of_inode((device, inode): (u64, u64)) -> Option<u64> {
        // Overlayfs puts the layer's number into the high bits of an inode.
        let number = u32::try_from(inode).ok().filter(|_| device >> 20 == 0)?;
        Some(device_number::of_stat(number.into()))
    }

    /// The counters of the device with this number; `None` where it is not a block device's.
    pub fn of(device: u64) -> Option<Self> {
        Self::parse(&std::fs::read_to_string(Self::directory(device).join("stat")).ok()?)
    }

    /// The counters in the text of such a file.
    pub fn parse(text: &str) -> Option<Self> {
        let fields: Vec<u64> = text.split_ascii_whitespace().map_while(|field| field.parse().ok()).collect();
        let &[reads, _, read, _, _, _, written, _, in_flight, ..] = fields.as_slice() else { return None };
        let [read_bytes, written_bytes] = [read, written].map(|sectors| sectors * SECTOR_BYTES);
        Some(Self { reads, read_bytes, written_bytes, in_flight })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_understood() {
        let stat = DiskStat { reads: 10, read_bytes: 80 * 512, written_bytes: 40 * 512, in_flight: 5 };
        assert_eq!(DiskStat::parse("  10 1 80 3   20 2 40 7   5 9 9 0 0\n"), Some(stat));
        assert_eq!(DiskStat::parse("10 1"), None);
        assert_eq!(DiskStat::of(0), None);
    }

    #[test]
    fn only_inodes_with_numbers_of_devices_are_block_devices() {
        let disk = rustix::fs::makedev(259, 3);
        assert_eq!(DiskStat::device_of_inode((7, 259 << 20 | 3)), Some(disk));
        assert_eq!(DiskStat::device_of_inode((8 << 20, 259 << 20 | 3)), None, "a file on a disk");
        // As overlayfs numbers them with xino.
        assert_eq!(DiskStat::device_of_inode((7, 1 << 63 | 259 << 20 | 3)), None);
        assert_eq!(DiskStat::device_of_inode((7, 1 << 32 | 3)), None);
    }
}
