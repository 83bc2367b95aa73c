//! Local files that are not in memory: their bytes go straight into frames.
//!
//! One test: it looks at all memfds of the process.

mod support;

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::time::Duration;

use prepage_core::{PageIndex, PageRange};
use prepage_sys::cachestat;
use prepage_testing::{Need, has};
use prepage_vm::{AccessError, MapOptions, Mode, Reason};
use support::{memfd_pages, modes, touch, until, vm, word};

const PAGES: u64 = 1024;
/// The last page is not whole.
const LEN_BYTES: u64 = PAGES * 4096 - 100;

/// Sends `file` out of memory, if that `is_possible`: else what reads from a cold one do is not tested.
fn cool(file: &File, is_possible: bool) {
    let all = PageRange::new(PageIndex(0), PageIndex(PAGES));
    until(|| {
        cachestat::evict(file.as_fd(), Duration::ZERO).unwrap();
        !is_possible || matches!(cachestat::cached_pages(file.as_fd(), all), Ok(0))
    });
}

/// Pages that memfds of the VM hold, and bytes of writable shared mappings of them that are in the page table.
fn held() -> (u64, u64) {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut shown_kib, mut is_view) = (0, false);
    for line in maps.lines() {
        if line.contains("/memfd:prepage") {
            is_view = line.contains("rw-s");
        } else if let Some(rss) = line.strip_prefix("Rss:").filter(|_| is_view) {
            shown_kib += rss.trim().trim_end_matches(" kB").parse::<u64>().unwrap();
            is_view = false;
        }
    }
    (memfd_pages(), shown_kib * 1024)
}

#[test]
fn a_cold_file_shows_its_bytes_in_any_order() {
    let home = env!("CARGO_TARGET_TMPDIR");
    let is_possible = has(Need::Eviction(home.into()));
    let mut file = tempfile::NamedTempFile::new_in(home).unwrap();
    let bytes: Vec<u8> = (0..PAGES * 512).flat_map(|index| word(index * 8).to_le_bytes()).collect();
    file.write_all(&bytes[..LEN_BYTES as usize]).unwrap();
    file.as_file().sync_all().unwrap();
    let vm = vm();
    let modes = modes(&vm, &vm.file(file.path()).unwrap());
    for mode in modes.iter().copied() {
        for (policy, stride) in [("none", 7), ("aligned:16", 389), ("aligned:256", 1), ("adaptive", 1)] {
            cool(file.as_file(), is_possible);
            let object = vm.file(file.path()).unwrap();
            let options = MapOptions::shared().mode(mode).policy(policy.parse().unwrap());
            let map = vm.map(&object, &options).unwrap();
            for turn in 0..PAGES {
                touch(&map, turn * stride % PAGES);
            }
            assert!(map.as_slice() == &bytes[..LEN_BYTES as usize], "{policy} of {mode:?}");
            // What is mapped by the call that makes it is counted a little later.
            until(|| (0..PAGES).all(|page| object.is_resident(PageIndex(page))));
            let (pages, shown_bytes) = held();
            assert_eq!((object.resident_pages(), pages), (PAGES, PAGES));
            assert!(shown_bytes <= 16 * 4096, "frames count twice: {shown_bytes} bytes of {policy}");
            assert_eq!(object.evict(object.pages()).unwrap(), PAGES);
            assert_eq!(held(), (0, 0));
        }
    }

    // Truncated while it is cold: the frames that were made for the read are given back.
    let object = vm.file(file.path()).unwrap();
    let map = vm.map(&object, &MapOptions::shared().mode(Mode::Inline)).unwrap();
    touch(&map, 0);
    file.as_file().set_len(20 * 4096).unwrap();
    cool(file.as_file(), is_possible);
    let beyond = map.populate(PageRange::new(PageIndex(40), PageIndex(41)));
    assert!(matches!(beyond, Err(AccessError::Unavailable { reason: Reason::Short, .. })), "{beyond:?}");
    assert_eq!((object.resident_pages(), held().0), (16, 16));
    assert!(modes.contains(&Mode::Inline), "every user may have inline maps");
}
