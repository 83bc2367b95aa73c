//! The option `--read-ahead`: the kernel's read-ahead, set for as long as a measurement takes.

use anyhow::{Result, ensure};
use prepage_sys::readahead::{self, ReadAhead};

use crate::remedy::{Remedied, Try};
use crate::size::size;

/// `128k`, `4M` or `0`, in KiB: as the kernel has it. A number without a unit is refused, for it is KiB to some tools and bytes to others.
pub fn read_ahead_kib(text: &str) -> Result<u64, String> {
    let bytes = size(text)?;
    let has_unit = text.bytes().any(|letter| letter.is_ascii_alphabetic());
    if bytes > 0 && (!has_unit || !bytes.is_multiple_of(1024)) {
        return Err(format!("{text:?} is not a whole number of KiB with its unit: 128k, 4M or 0"));
    }
    Ok(bytes / 1024)
}

/// Refuses to begin where this user may not set the read-ahead of all disks.
pub fn check_read_ahead() -> Result<()> {
    ensure!(readahead::can_be_set(), cannot_be_set());
    Ok(())
}

/// Sets the read-ahead of all disks, until what this returns is dropped. To be called before there are threads: the setting's guardian is
/// a process beside this one.
pub fn set_read_ahead(kib: u64) -> Result<ReadAhead> {
    ReadAhead::set(kib).or_try(cannot_be_set)
}

fn cannot_be_set() -> Remedied {
    Remedied::new("the read-ahead cannot be set", "as root, or without --read-ahead")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_ahead_is_whole_kib_with_a_unit() {
        for (text, kib) in [("128k", 128), ("4M", 4096), ("0", 0), ("0.5M", 512), ("4096B", 4)] {
            assert_eq!(read_ahead_kib(text), Ok(kib), "{text}");
        }
        for text in ["128", "4096", "1.5B", "1000B", "0.3k", "many", "-1"] {
            assert!(read_ahead_kib(text).is_err(), "{text}");
        }
    }
}
