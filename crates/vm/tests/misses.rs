//! What is read again under a limit: how a pool with its thread, its faults and its frames follows the rule that the simulation in
//! `order` follows.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prepage_core::policy::Neighbours;
use prepage_core::{PageIndex, PageRange};
use prepage_vm::{MapOptions, Pool, Source, SourceError, Vm, VmOptions};
use support::{touch, word};

/// Reads of each round of a loop through `pages` pages of a file in a pool of `frames`.
fn loop_misses(frames: u64, pages: u64, rounds: u64, is_code: bool) -> Vec<u64> {
    let pool = Pool::new(frames * 4096).unwrap();
    let vm = Vm::new(VmOptions::default().pool(&pool)).unwrap();
    let file = support::file(pages * 4096);
    let object = vm.file(file.path()).unwrap();
    let options = MapOptions::shared().policy("none".parse().unwrap()).neighbours(Neighbours::Block(1));
    let options = if is_code { options.executable() } else { options };
    let map = vm.map(&object, &options).unwrap();
    let hard = || vm.statistics().counted.hard;
    let mut before = 0;
    let round = |_| {
        (0..pages).for_each(|page| assert_eq!(touch(&map, page), word(page * 4096)));
        let now = hard();
        now - std::mem::replace(&mut before, now)
    };
    (0..rounds).map(round).collect()
}

/// At best a third of the pages; the simulated order misses two fifths.
#[test]
fn a_tight_loop_that_does_not_fit_leaves_a_part_of_it_in_memory() {
    for is_code in [false, true] {
        let misses = loop_misses(2048, 3072, 32, is_code);
        let late: u64 = misses[16..].iter().sum();
        assert!(late * 5 < 16 * 3072 * 3, "code: {is_code}, {late} of {}: {misses:?}", 16 * 3072);
    }
}

/// A source whose bytes come in grains of 1 MiB: a read of any part of one costs as much as a read of all of it.
struct Grains(Arc<AtomicU64>);

const GRAIN_PAGES: u64 = 256;
const GRAINS: u64 = 64;

impl Source for Grains {
    fn len_bytes(&self) -> u64 {
        GRAINS * GRAIN_PAGES * 4096
    }

    fn grain_bytes(&self) -> u64 {
        GRAIN_PAGES * 4096
    }

    fn read(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), SourceError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        for (page, bytes) in (offset_bytes / 4096..).zip(into.chunks_mut(4096)) {
            bytes[..8].copy_from_slice(&word(page * 4096).to_le_bytes());
        }
        Ok(())
    }
}

#[test]
fn a_full_pool_reads_a_grain_at_once() {
    for policy in ["none", "adaptive"] {
        let pool = Pool::new(32 << 20).unwrap();
        let vm = Vm::new(VmOptions::default().pool(&pool)).unwrap();
        let reads = Arc::new(AtomicU64::new(0));
        let object = vm.source("grains", Grains(Arc::clone(&reads))).unwrap();
        let map = vm.map(&object, &MapOptions::shared().policy(policy.parse().unwrap())).unwrap();
        let round = |step: usize| {
            let before = reads.load(Ordering::SeqCst);
            for page in map.window().iter().step_by(step) {
                assert_eq!(touch(&map, page.0), word(page.0 * 4096));
            }
            reads.load(Ordering::SeqCst) - before
        };
        let counts = [1, 1, 37, 37, 1, 1].map(round);
        let many =
            counts.iter().any(|&count| count >= 3 * GRAINS) || counts.iter().sum::<u64>() >= 8 * GRAINS;
        assert!(!many, "{policy}: {counts:?} reads of {GRAINS} grains");
    }
}

/// Idle pages of a grain that is read for others of its pages are not the next to go.
#[test]
fn a_grain_that_is_read_for_one_page_keeps_the_others() {
    let pool = Pool::new(16 * GRAIN_PAGES * 4096).unwrap();
    let vm = Vm::new(VmOptions::default().pool(&pool)).unwrap();
    let reads = Arc::new(AtomicU64::new(0));
    let object = vm.source("grains", Grains(Arc::clone(&reads))).unwrap();
    let map = vm.map(&object, &MapOptions::shared()).unwrap();
    let grain =
        |number: u64| PageRange::new(PageIndex(number * GRAIN_PAGES), PageIndex((number + 1) * GRAIN_PAGES));
    (0..12).for_each(|number| map.populate(grain(number)).unwrap());
    let first = grain(0);
    let missing = || first.iter().filter(|&page| !object.is_resident(page)).collect::<Vec<_>>();
    // The page that came first; those behind it are watched from then on.
    assert_eq!(pool.reclaim(1), 1);
    let page = missing()[0];
    let before = reads.load(Ordering::SeqCst);
    assert_eq!(touch(&map, page.0), word(page.0 * 4096));
    assert_eq!(reads.load(Ordering::SeqCst), before + 1);
    assert_eq!(pool.reclaim(GRAIN_PAGES), GRAIN_PAGES);
    assert_eq!(missing().len(), 0);
}
