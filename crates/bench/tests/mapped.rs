//! The pages that faults map are counted one by one. A process of its own: where another test's thread forks, pages of this
//! one's memory fault once more.

use std::path::Path;

use prepage_bench::{Cache, Experiment, Pattern, Subject, mapped_pages};
use prepage_core::PAGE_SIZE;

/// Whatever the kernel does, all pages are mapped in the end, and each once.
#[test]
fn faults_map_every_page_once() {
    if !prepage_testing::has(prepage_testing::Need::Eviction(env!("CARGO_MANIFEST_DIR").into())) {
        return;
    }
    let subject = Subject::create(Path::new(env!("CARGO_MANIFEST_DIR")), 1000 * PAGE_SIZE - 5).unwrap();
    for pattern in Pattern::STUDY {
        for cache in [Cache::Cold, Cache::Warm] {
            prepage_testing::unless_caches_dropped(|| every_page_once(&subject, pattern, cache));
        }
    }
}

fn every_page_once(subject: &Subject, pattern: Pattern, cache: Cache) {
    let counted = mapped_pages(Experiment { pattern, cache }, subject, 1).unwrap();
    assert_eq!(counted.disk_pages + counted.cached_pages, 1000, "{pattern} {counted:?}");
    // The study: only the first of the sweeps by one page faults, and the first 64 of those by 64.
    let until = match pattern {
        Pattern::Random => None,
        Pattern::Sequential => Some((1, 1)),
        Pattern::Stride { pages: 1 } => Some((4096, 1)),
        Pattern::Stride { pages } => Some((4096 * pages, pages)),
    };
    let found = counted.sweeps.map(|sweeps| (sweeps.all, sweeps.until_mapped));
    assert!(found.zip(until).is_none_or(|(found, most)| found.0 == most.0 && found.1 <= most.1), "{found:?}");
    assert_eq!(found.is_some(), until.is_some(), "{pattern}");
    // What the kernel counts for reading the count is all there is.
    assert!(counted.sweeps.is_none_or(|sweeps| sweeps.later_faults < 10), "{counted:?}");
    match cache {
        Cache::Cold => assert!(counted.disk_faults > 0, "{pattern} {counted:?}"),
        Cache::Warm => assert_eq!(counted.disk_faults, 0, "{pattern} {counted:?}"),
    }
}
