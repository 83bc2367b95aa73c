//! What the tests share.
#![allow(dead_code, unused_imports)]

use std::fs::Metadata;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use prepage_core::random::SplitMix;
use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_testing::{Doctor, Need, has, unless_refused};
pub use prepage_testing::{child, child_command, is_child};
use prepage_vm::{
    AccessError, Map, MapError, MapOptions, Mode, Object, Reason, Source, SourceError, Statistics, Vm,
    VmOptions,
};

/// A word that tells where it stands.
pub fn word(offset_bytes: u64) -> u64 {
    (offset_bytes / 8 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Ends the threads that look at it, also where the test fails.
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Frames of the VM's pool that hold a page or are promised to a read.
pub fn frames(vm: &Vm) -> u64 {
    held(&vm.statistics())
}

/// Of `now`.
pub fn held(now: &Statistics) -> u64 {
    now.pool.resident_pages + now.pool.promised_pages
}

/// Objects, maps, records of maps and frames that are left when everything was dropped: a read under way keeps its object a while.
pub fn left_in(vm: &Vm) -> (u64, u64, u64, u64) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    loop {
        let now = vm.statistics();
        let left = (now.objects, now.maps, now.backings, held(&now));
        if left == (0, 0, 0, 0) || std::time::Instant::now() > deadline {
            return left;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// The memfds that hold frames of this process's VMs, by their paths below /proc/self/fd, and what the kernel says of each.
pub fn memfds() -> Vec<(PathBuf, Metadata)> {
    let paths = std::fs::read_dir("/proc/self/fd").unwrap().flatten().map(|entry| entry.path());
    let of_frames = paths
        .filter(|path| std::fs::read_link(path).is_ok_and(|to| to.starts_with("/memfd:prepage (deleted)")));
    // One of another thread's may be closed meanwhile.
    of_frames.filter_map(|path| std::fs::metadata(&path).ok().map(|facts| (path, facts))).collect()
}

/// Pages that the kernel holds in them.
pub fn memfd_pages() -> u64 {
    memfds().iter().map(|(_, facts)| facts.blocks() * 512 / PAGE_SIZE).sum()
}

/// Numbers below a limit, the same in each run.
pub fn random() -> impl FnMut(u64) -> u64 {
    let mut random = SplitMix::new(0);
    move |limit| random.below(limit)
}

/// Whether the pool keeps to `limit` frames, but for those that a slow machine gets beyond it.
pub fn keeps_to(limit: u64, vm: &Vm) -> bool {
    let now = vm.statistics();
    held(&now) <= limit + now.pool.beyond_pages_total
}

/// Whether there is no frame for `work`. Where the machine keeps the reclaimer from its processor for a second, the limit gives way, and that is counted.
#[track_caller]
pub fn has_no_frame<T>(vm: &Vm, work: impl FnOnce() -> Result<T, AccessError>) -> bool {
    let beyond = || vm.statistics().pool.beyond_pages_total;
    let before = beyond();
    match work() {
        Ok(_) => beyond() > before,
        Err(AccessError::Unavailable { reason: Reason::NoFrames, .. }) => true,
        Err(other) => panic!("{other}"),
    }
}

/// Waits for what comes soon: a handler counts after it has let the thread go on, a reclaimer once it rests.
#[track_caller]
pub fn until(condition: impl Fn() -> bool) {
    let began = std::time::Instant::now();
    while !condition() {
        assert!(began.elapsed().as_secs() < 60, "it never comes");
        std::thread::yield_now();
    }
}

/// Waits until nothing is read any more; gives how many pages are there.
pub fn settled(object: &Object) -> u64 {
    let mut before = 0;
    while std::mem::replace(&mut before, object.resident_pages()) < object.resident_pages() {
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    before
}

/// Where a page begins in a slice.
pub fn at(page: u64) -> usize {
    (page * PAGE_SIZE) as usize
}

/// Writes a word to a page.
pub fn write(map: &mut Map, page: u64, value: u64) {
    let start = at(page) + 16;
    map.as_mut_slice()[start..start + 8].copy_from_slice(&value.to_le_bytes());
}

/// The word that [`write`] writes.
pub fn read(map: &Map, page: u64) -> u64 {
    let start = at(page) + 16;
    u64::from_le_bytes(std::hint::black_box(map.as_slice())[start..start + 8].try_into().unwrap())
}

/// What a page of [`file`] holds there.
pub fn of_file(page: u64) -> u64 {
    u64::from_le_bytes(page_bytes(page)[16..24].try_into().unwrap())
}

/// What every page holds.
pub fn page_bytes(page: u64) -> Vec<u8> {
    (0..PAGE_SIZE / 8).flat_map(|at| word(page * PAGE_SIZE + at * 8).to_le_bytes()).collect()
}

/// A file of such bytes.
pub fn file(len_bytes: u64) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let mut left = len_bytes;
    for page in 0..len_bytes.div_ceil(PAGE_SIZE) {
        let bytes = page_bytes(page);
        file.write_all(&bytes[..left.min(PAGE_SIZE) as usize]).unwrap();
        left = left.saturating_sub(PAGE_SIZE);
    }
    file
}

/// A source of such bytes that counts its reads.
#[derive(Default)]
pub struct Words {
    pub len_bytes: u64,
    pub reads: std::sync::Arc<AtomicU64>,
}

impl Source for Words {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn read(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), SourceError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let pages = PageRange::covering(offset_bytes, into.len() as u64);
        let bytes: Vec<u8> = pages.iter().flat_map(|page| page_bytes(page.0)).collect();
        into.copy_from_slice(&bytes[..into.len()]);
        Ok(())
    }
}

pub fn pages(start: u64, end: u64) -> PageRange {
    PageRange::new(PageIndex(start), PageIndex(end))
}

/// Reads the first word of the map's page number `page`, by touching it.
pub fn touch(map: &Map, page: u64) -> u64 {
    let at = (page * PAGE_SIZE) as usize;
    let slice = std::hint::black_box(map.as_slice());
    u64::from_le_bytes(slice[at..at + 8].try_into().unwrap())
}

/// The word at `offset_bytes` of a private map, which threads write to without borrowing the map, as programs do that have a pointer.
pub fn shared_word(map: &Map, offset_bytes: u64) -> &AtomicU64 {
    assert!(offset_bytes.is_multiple_of(8) && offset_bytes + 8 <= map.len_bytes());
    // SAFETY: the word lies in the map, which outlives it, and all who look at it meanwhile do so by atomic operations.
    unsafe { &*((map.address() + offset_bytes) as *const AtomicU64) }
}

/// Both ways of serving faults; counts a skip for each that is not permitted here.
pub fn modes(vm: &Vm, object: &Object) -> Vec<Mode> {
    let modes = [(Mode::Inline, Doctor::ServedFaults), (Mode::Handler, Doctor::ServedFaultsInSystemCalls)];
    let permitted = modes.into_iter().filter(|&(mode, facility)| {
        let map = vm.map(object, &MapOptions::shared().mode(mode));
        unless_refused(map, Need::Doctor(facility), |error| matches!(error, MapError::Userfaultfd(_)))
            .is_some()
    });
    permitted.map(|(mode, _)| mode).collect()
}

/// Where swap files may be; `None`, and a skip, where that lies in memory.
#[track_caller]
pub fn swap_directory() -> Option<&'static str> {
    let directory = env!("CARGO_TARGET_TMPDIR");
    has(Need::Eviction(directory.into())).then_some(directory)
}

/// One that frees nothing by itself that tests count.
pub fn vm() -> Vm {
    Vm::new(VmOptions::default().free_shadowed_after(std::time::Duration::MAX)).unwrap()
}
