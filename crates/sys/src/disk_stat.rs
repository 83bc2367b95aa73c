//! What a block device has done: the file `stat` of its directory below /sys/dev/block (Documentation/block/stat.rst).

use std::path::PathBuf;

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
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        PathBuf::from(format!("/sys/dev/block/{major}:{minor}"))
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
}
