//! Which frame holds a page of a process (Documentation/admin-guide/mm/pagemap.rst).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

const PAGE_BYTES: u64 = 4096;
const ENTRY_BYTES: u64 = 8;
const PRESENT: u64 = 1 << 63;
const FRAME: u64 = (1 << 55) - 1;

/// The page map of a process. It stays that process's when its number is given to another.
#[derive(Debug)]
pub struct PageMap {
    file: File,
}

impl PageMap {
    /// Opens that of process `pid`.
    ///
    /// # Errors
    /// When the process is gone or another user's.
    pub fn of(pid: u32) -> io::Result<Self> {
        Ok(Self { file: File::open(format!("/proc/{pid}/pagemap"))? })
    }

    /// The number of the frame that holds the page of `address`. `None` when it is in no frame, the process has
    /// ended or is another program by now, and always for users other than root, who see 0.
    pub fn frame(&self, address: u64) -> Option<u64> {
        let mut entry = [0; ENTRY_BYTES as usize];
        self.file.read_exact_at(&mut entry, address / PAGE_BYTES * ENTRY_BYTES).ok()?;
        let entry = u64::from_ne_bytes(entry);
        (entry & PRESENT != 0 && entry & FRAME != 0).then_some(entry & FRAME)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_touched_page_has_a_frame() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: frame numbers are root's to see");
            return;
        }
        let map = PageMap::of(std::process::id()).expect("our own");
        let page = vec![1u8; 3 * PAGE_BYTES as usize];
        let address = page.as_ptr() as u64 + PAGE_BYTES;
        assert!(map.frame(address).is_some());
        assert_eq!(map.frame(0), None);
        assert_eq!(map.frame(u64::MAX), None);
    }
}
