//! Which frame holds a page of a process (Documentation/admin-guide/mm/pagemap.rst).

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use crate::given::number;
use crate::process_status::ProcessStatus;

const PAGE_BYTES: u64 = 4096;
const ENTRY_BYTES: u64 = 8;
const PRESENT: u64 = 1 << 63;
const FRAME: u64 = (1 << 55) - 1;
const PROTECTED: u64 = 1 << 57;
const OF_FILE: u64 = 1 << 61;
const SWAPPED: u64 = 1 << 62;

/// struct pm_scan_arg
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    regions: u64,
    regions_len: u64,
    pages_max: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// struct page_region
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

// include/uapi/linux/fs.h
const _: () = assert!(size_of::<Scan>() == 96 && size_of::<Region>() == 24);
const IS_ARMED: u64 = 1 << 0;
const IS_FILE: u64 = 1 << 2;
const IS_PRESENT: u64 = 1 << 3;
const IS_SWAPPED: u64 = 1 << 4;
const IOC_SCAN: libc::Ioctl =
    (3 << 30 | (size_of::<Scan>() as u64) << 16 | (b'f' as u64) << 8 | 16) as libc::Ioctl;
/// Regions told at once.
const REGIONS: usize = 1024;
/// One past the last address of programs, but for the last page: 2^47 on x86-64, 2^48 or 2^39 on arm64, as the kernel was built. A program
/// gets more where it asks for it alone. The stack lies below.
fn user_end() -> u64 {
    let on_stack = rustix::param::linux_execfn().as_ptr() as u64;
    on_stack.next_power_of_two() - PAGE_BYTES
}

/// Entries that are read at once.
const ENTRIES: usize = 64;
/// Entries that are read at once where many are.
const MANY_ENTRIES: u64 = 4096;

/// What the page tables of this process take in memory, in bytes, but for those of huge pages and the upper levels.
///
/// # Errors
/// When /proc is not mounted.
pub fn page_table_bytes() -> io::Result<u64> {
    let status = ProcessStatus::of("self")?;
    let kib = status.field("VmPTE").and_then(|size| size.strip_suffix(" kB")?.parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// What a page table says of one page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageEntry(u64);

impl PageEntry {
    /// The page is mapped to memory.
    pub fn is_present(self) -> bool {
        self.0 & PRESENT != 0
    }

    /// The page is in memory, and of a file or memfd.
    pub fn is_of_file(self) -> bool {
        self.is_present() && self.0 & OF_FILE != 0
    }

    /// The page may be a private copy: one in memory or on a swap device, or a mark that the kernel keeps of a page that was
    /// there, which looks the same.
    pub fn may_be_private(self) -> bool {
        if self.is_present() { self.0 & OF_FILE == 0 } else { self.0 & SWAPPED != 0 }
    }

    /// A write to the page is told by a userfaultfd before it happens.
    pub fn is_protected(self) -> bool {
        self.0 & PROTECTED != 0
    }
}

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

    /// Whether the process has not ended or executed another program since this was opened.
    pub fn is_alive(&self) -> bool {
        let mut entry = [0; ENTRY_BYTES as usize];
        self.file.read_at(&mut entry, 0).is_ok_and(|read| read > 0)
    }

    /// The runs of addresses (start, end) whose pages are mapped to memory now, in order. Needs Linux 6.7.
    ///
    /// # Errors
    /// ENOTTY before Linux 6.7; ESRCH where the process has ended, or executed another program, before it was looked at.
    pub fn present(&self) -> io::Result<Vec<(u64, u64)>> {
        self.scan(0..user_end(), Scan { category_mask: IS_PRESENT, ..Scan::default() })
    }

    /// The same, and those of the runs whose pages are a file's or shared memory's, not private copies.
    ///
    /// # Errors
    /// As [`Self::present`].
    #[expect(clippy::type_complexity, reason = "runs as everywhere here")]
    pub fn present_and_of_files(&self) -> io::Result<(Vec<(u64, u64)>, Vec<(u64, u64)>)> {
        let what = Scan { category_mask: IS_PRESENT, return_mask: IS_PRESENT | IS_FILE, ..Scan::default() };
        let (mut present, mut of_files): (Vec<(u64, u64)>, Vec<(u64, u64)>) = Default::default();
        self.scan_each(0..user_end(), what, |region| {
            // The kernel begins another run where the kind of page changes.
            match present.last_mut().filter(|last| last.1 == region.start) {
                Some(last) => last.1 = region.end,
                None => present.push((region.start, region.end)),
            }
            if region.categories & IS_FILE != 0 {
                of_files.push((region.start, region.end));
            }
        })?;
        Ok((present, of_files))
    }

    /// As [`Self::present`], in mappings alone that are registered for first touches ([`crate::agent::FirstTouches`]). The kernel walks no
    /// other: a program's own memory may have ten times as many pages.
    ///
    /// # Errors
    /// As [`Self::present`].
    pub fn present_and_armed(&self) -> io::Result<Vec<(u64, u64)>> {
        self.scan(0..user_end(), Scan { category_mask: IS_PRESENT | IS_ARMED, ..Scan::default() })
    }

    /// As [`Self::present`], of the pages at `addresses`, which are to be few: before Linux 6.7 the entry of each is read.
    ///
    /// # Errors
    /// ESRCH as [`Self::present`].
    pub fn present_in(&self, addresses: Range<u64>) -> io::Result<Vec<(u64, u64)>> {
        match self.scan(addresses.clone(), Scan { category_mask: IS_PRESENT, ..Scan::default() }) {
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => self.read_present(addresses),
            found => found,
        }
    }

    /// The same, entry by entry.
    fn read_present(&self, addresses: Range<u64>) -> io::Result<Vec<(u64, u64)>> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        let mut bytes = [0; (MANY_ENTRIES * ENTRY_BYTES) as usize];
        let (mut page, end) = (addresses.start / PAGE_BYTES, addresses.end.div_ceil(PAGE_BYTES));
        while page < end {
            let wanted = MANY_ENTRIES.min(end - page) * ENTRY_BYTES;
            let read = self.file.read_at(&mut bytes[..wanted as usize], page * ENTRY_BYTES)?;
            let words = bytes[..read].as_chunks().0;
            if words.is_empty() {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            for word in words {
                let start = page * PAGE_BYTES;
                page += 1;
                if !PageEntry(u64::from_ne_bytes(*word)).is_present() {
                    continue;
                }
                match runs.last_mut().filter(|last| last.1 == start) {
                    Some(last) => last.1 += PAGE_BYTES,
                    None => runs.push((start, start + PAGE_BYTES)),
                }
            }
        }
        Ok(runs)
    }

    /// Whether all of `addresses` is registered for first touches, whatever is in memory there.
    ///
    /// # Errors
    /// As [`Self::present`].
    pub fn is_armed(&self, addresses: Range<u64>) -> io::Result<bool> {
        let mut end = addresses.start;
        let what = Scan { category_mask: IS_ARMED, return_mask: IS_ARMED, ..Scan::default() };
        self.scan_each(addresses.clone(), what, |region| {
            end = if region.start == end { region.end } else { end };
        })?;
        Ok(end == addresses.end)
    }

    /// The runs of `addresses` whose pages are no file's or memfd's: private copies, and marks that the kernel keeps of
    /// pages that were there.
    ///
    /// # Errors
    /// As [`Self::present`].
    pub fn private_in(&self, addresses: Range<u64>) -> io::Result<Vec<(u64, u64)>> {
        let not_of_file = Scan { category_inverted: IS_FILE, category_mask: IS_FILE, ..Scan::default() };
        self.scan(addresses, Scan { category_anyof_mask: IS_PRESENT | IS_SWAPPED, ..not_of_file })
    }

    /// The runs of `addresses` of which the page table holds anything: pages in memory or on a swap device, and marks that the kernel
    /// keeps.
    ///
    /// # Errors
    /// As [`Self::present`].
    pub fn occupied_in(&self, addresses: Range<u64>) -> io::Result<Vec<(u64, u64)>> {
        let mut runs = Vec::new();
        self.each_occupied(addresses, |start, end| runs.push((start, end)))?;
        Ok(runs)
    }

    /// As [`Self::occupied_in`], one run after the other. Allocates nothing.
    ///
    /// # Errors
    /// As [`Self::present`].
    pub fn each_occupied(&self, addresses: Range<u64>, mut each: impl FnMut(u64, u64)) -> io::Result<()> {
        let what =
            Scan { category_anyof_mask: IS_PRESENT | IS_SWAPPED, return_mask: IS_PRESENT, ..Scan::default() };
        self.scan_each(addresses, what, |region| each(region.start, region.end))
    }

    fn scan(&self, addresses: Range<u64>, what: Scan) -> io::Result<Vec<(u64, u64)>> {
        let mut runs = Vec::new();
        let what = Scan { return_mask: IS_PRESENT, ..what };
        self.scan_each(addresses, what, |region| runs.push((region.start, region.end)))?;
        Ok(runs)
    }

    fn scan_each(&self, addresses: Range<u64>, what: Scan, mut each: impl FnMut(&Region)) -> io::Result<()> {
        let mut regions = [Region::default(); REGIONS];
        let mut start = addresses.start;
        while start < addresses.end {
            let mut scan = Scan {
                size: size_of::<Scan>() as u64,
                start,
                end: addresses.end,
                regions: regions.as_mut_ptr() as u64,
                regions_len: REGIONS as u64,
                ..what
            };
            // SAFETY: the struct has the kernel's layout and lives through the call; `regions` has room for as many as
            // it says. Without flags nothing of the other process changes.
            let found = number(unsafe { libc::ioctl(self.file.as_raw_fd(), IOC_SCAN, &mut scan) })?;
            let found = &regions[..found as usize];
            found.iter().for_each(&mut each);
            // With room left, the walk came to its end. Its `walk_end` may lie before that: where the kernel's own buffer
            // had been full once (512 runs, Linux 6.18), it keeps the place of that.
            match found.last().filter(|_| found.len() == REGIONS) {
                Some(last) => start = scan.walk_end.max(last.end),
                None => break,
            }
        }
        Ok(())
    }

    /// What the page table says of the pages from `address` on, one entry each. May be called in signal handlers.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn entries(&self, address: u64, into: &mut [PageEntry]) -> io::Result<()> {
        for (number, entries) in (0..).zip(into.chunks_mut(ENTRIES)) {
            let mut bytes = [0; ENTRIES * ENTRY_BYTES as usize];
            let bytes = &mut bytes[..entries.len() * ENTRY_BYTES as usize];
            let first = address / PAGE_BYTES + number * ENTRIES as u64;
            self.file.read_exact_at(bytes, first * ENTRY_BYTES)?;
            for (entry, word) in entries.iter_mut().zip(bytes.as_chunks().0) {
                *entry = PageEntry(u64::from_ne_bytes(*word));
            }
        }
        Ok(())
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
    use std::os::fd::AsFd;

    use super::*;
    use crate::first_touches::{agree_on_first_touches, register_first_touches};
    use crate::memfd::Memfd;
    use crate::region::{Contents, Region};
    use crate::userfaultfd::Userfaultfd;
    use crate::userfaultfd_abi::USER_MODE_ONLY;

    #[test]
    fn a_touched_page_is_present_and_its_neighbours_are_not() {
        if !prepage_testing::has(prepage_testing::Need::Linux(6, 7)) {
            return;
        }
        let map = PageMap::of(std::process::id()).expect("our own");
        let len = 64 << 20;
        // Large enough to be a mapping of its own, aligned so that no huge page brings in the neighbours of what is touched.
        let pages: Vec<u8> = Vec::with_capacity(len);
        let page = (pages.as_ptr() as u64).next_multiple_of(PAGE_BYTES) + PAGE_BYTES;
        let is_present = || map.present().unwrap().iter().any(|run| run.0 <= page && page < run.1);
        assert!(!is_present());
        // SAFETY: within the capacity; the write makes no claim about what the vector holds.
        unsafe { std::ptr::write_volatile(page as *mut u8, 1) };
        assert!(is_present() && map.is_alive());
    }

    #[test]
    fn all_addresses_of_a_program_are_looked_at() {
        if !prepage_testing::has(prepage_testing::Need::Linux(6, 7)) {
            return;
        }
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let stack = maps.lines().find(|line| line.ends_with("[stack]")).unwrap();
        let end =
            u64::from_str_radix(stack.split_once(' ').unwrap().0.split_once('-').unwrap().1, 16).unwrap();
        let present = PageMap::of(std::process::id()).unwrap().present().unwrap();
        assert!(present.iter().any(|run| run.1 == end), "{end:x} {present:x?}");
        assert!(user_end() < 2 * end);
    }

    /// More runs than the kernel tells at once, and than it keeps while it walks.
    #[test]
    fn many_runs_are_told_once_each_and_in_order() {
        let map = PageMap::of(std::process::id()).expect("our own");
        for runs in [400, 600, REGIONS, REGIONS + 1, 2 * REGIONS + 700] {
            // Memory that nobody had before, in small pages.
            let mut pages = Region::map((2 * runs + 1) as u64 * PAGE_BYTES, Contents::Anonymous).unwrap();
            let touched: Vec<(u64, u64)> = (0..runs as u64)
                .map(|run| pages.start() + (2 * run + 1) * PAGE_BYTES)
                .map(|start| (start, start + PAGE_BYTES))
                .collect();
            pages
                .as_mut_slice()
                .chunks_mut(PAGE_BYTES as usize)
                .skip(1)
                .step_by(2)
                .for_each(|page| page[0] = 1);
            let (first, end) = (pages.start(), pages.start() + pages.len());
            assert_eq!(map.present_in(first..end).unwrap(), touched);
            assert_eq!(map.read_present(first..end).unwrap(), touched, "as before Linux 6.7");
        }
    }

    /// Whoever takes it for one that has touched nothing loses what it has.
    #[test]
    fn the_page_table_of_a_process_that_has_ended_is_not_taken_for_an_empty_one() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let map = PageMap::of(child.id()).expect("a child of ours");
        child.kill().unwrap();
        child.wait().unwrap();
        let gone = Some(libc::ESRCH);
        assert_eq!(map.present_in(0..PAGE_BYTES).unwrap_err().raw_os_error(), gone);
        assert_eq!(map.read_present(0..PAGE_BYTES).unwrap_err().raw_os_error(), gone);
        if !prepage_testing::has(prepage_testing::Need::Linux(6, 7)) {
            return;
        }
        assert_eq!(map.present().unwrap_err().raw_os_error(), gone);
        assert_eq!(map.present_and_of_files().unwrap_err().raw_os_error(), gone);
    }

    #[test]
    fn pages_of_mappings_that_are_not_armed_are_not_among_the_armed() {
        if !prepage_testing::has(prepage_testing::Need::Linux(6, 7)) {
            return;
        }
        let userfaultfd = Userfaultfd::descriptor(USER_MODE_ONLY).expect("every user may have one");
        agree_on_first_touches(userfaultfd.as_fd()).unwrap();
        let pages = 64;
        let memfd = Memfd::create("pagemap", pages * PAGE_BYTES).unwrap();
        memfd.write_at(&vec![1; (pages * PAGE_BYTES) as usize], 0).unwrap();
        let [armed, other] =
            [(); 2].map(|()| Region::map(pages * PAGE_BYTES, Contents::Private(&memfd, 0)).unwrap());
        register_first_touches(userfaultfd.as_fd(), armed.start(), armed.len()).unwrap();
        let touched = [3, 4, 40].map(|page| page * PAGE_BYTES);
        for region in [&armed, &other] {
            touched.iter().for_each(|&at| assert_eq!(region.as_slice()[at as usize], 1));
        }
        let map = PageMap::of(std::process::id()).expect("our own");
        let lies_in = |region: &Region, run: &(u64, u64)| {
            run.0 < region.start() + region.len() && region.start() < run.1
        };
        let present = map.present().unwrap();
        assert!(present.iter().any(|run| lies_in(&other, run)));
        let found = map.present_and_armed().unwrap();
        let page = |page: u64| armed.start() + page * PAGE_BYTES;
        assert_eq!(found, [(page(3), page(5)), (page(40), page(41))]);
    }

    #[test]
    fn a_touched_page_has_a_frame() {
        if !prepage_testing::has(prepage_testing::Need::Root) {
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
