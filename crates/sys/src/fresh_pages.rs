//! Page faults on demand: memory that nobody has touched yet, touched.

use std::io;
use std::ptr;
use std::time::{Duration, Instant};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

const PAGE_BYTES: usize = 4096;

/// Maps `pages` fresh pages, writes a byte to each, one fault a page, and gives them back. Returns how long the
/// writing took.
///
/// # Errors
/// ENOMEM when there is no memory to map.
pub fn touch(pages: usize) -> io::Result<Duration> {
    let len = pages.checked_mul(PAGE_BYTES).ok_or(rustix::io::Errno::NOMEM)?;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
    let base = unsafe { mmap_anonymous(ptr::null_mut(), len, protection, MapFlags::PRIVATE)? };
    // Huge pages would make one fault of many. Without them in the kernel there is nothing to switch off.
    // SAFETY: advice on the mapping just made; it changes no contents.
    let _ = unsafe { madvise(base, len, Advice::LinuxNoHugepage) };
    let begin = Instant::now();
    for page in 0..pages {
        // SAFETY: within the mapping, which is writable and known to nobody else.
        unsafe { base.cast::<u8>().add(page * PAGE_BYTES).write_volatile(1) };
    }
    let took = begin.elapsed();
    // SAFETY: the whole mapping made above; no pointer into it is left.
    unsafe { munmap(base, len)? };
    Ok(took)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_is_a_fault() {
        let faults = || crate::process_stat::ProcessStat::of_this_thread().expect("a stat line").minor_faults;
        let before = faults();
        touch(1000).expect("memory");
        assert!(faults() - before >= 1000);
    }

    #[test]
    fn more_pages_than_there_are_addresses_are_refused() {
        for pages in [usize::MAX, usize::MAX / PAGE_BYTES + 2] {
            assert_eq!(touch(pages).unwrap_err().raw_os_error(), Some(libc::ENOMEM), "{pages}");
        }
    }
}
