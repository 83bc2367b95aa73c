use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use prepage_core::profile::Profile;
use prepage_core::{PageIndex, PageRange};
use prepage_sys::cachestat::{cached_pages, evict};
use prepage_sys::rights::Rights;
use prepage_testing::{Need, has};

use super::*;
use crate::needed_file::needed_file;

/// Longer than anything takes here, on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(60);
const PAGES: u64 = 16;

/// A file on the disk, and up to four pages of it, brought in for user 7 a moment ago.
fn brought(path: &Path, what: &Launched) -> Entry {
    let (file, profiled) = needed_file(path, PAGES, &[4, 5, 6, 7]);
    let profile = Profile { files: vec![profiled], ..Profile::default() };
    let rights = Rights::of_process(std::process::id()).unwrap();
    let until = Instant::now() + PATIENCE;
    // The kernel may keep a page in memory, or drop one as soon as it is read.
    loop {
        evict(file.as_fd(), PATIENCE).unwrap();
        if let Some(brought) = Brought::bring(&profile, &rights, u64::MAX, &Reader::default()).unwrap() {
            return Entry { uid: 7, what: what.clone(), brought, is_whole: true, started: None };
        }
        assert!(Instant::now() < until, "nothing of the file is brought in");
    }
}

/// That memory is short says nothing of the guess, which may still come true.
#[test]
fn what_is_still_expected_is_sent_out_when_memory_gets_short_and_does_not_count_as_a_bad_guess() {
    let place = Path::new(env!("CARGO_MANIFEST_DIR"));
    if !has(Need::Root) || !has(Need::Eviction(place.into())) {
        return;
    }
    let directory = tempfile::tempdir_in(place).unwrap();
    let path = directory.path().canonicalize().unwrap().join("file");
    let layers = vec![directory.path().join("layer")];
    let (library, counters) = (Arc::new(Library::open(Some(layers)).unwrap()), Arc::<Counters>::default());
    let idle = Idle::new(library, counters.clone(), directory.path().join("log"), Duration::ZERO);
    let what = Launched { program: "/bin/program".into(), role: "program".into() };
    let expected = [(7, Expected { what: what.clone(), probability: 1.0 })];
    let in_memory = || {
        let all = PageRange::new(PageIndex(0), PageIndex(PAGES));
        cached_pages(File::open(&path).unwrap().as_fd(), all).unwrap()
    };
    let until = Instant::now() + PATIENCE;
    let mut brought_bytes = 0;
    // While the kernel is at a page for a reason of its own, it does not drop it.
    loop {
        let entry = brought(&path, &what);
        brought_bytes += entry.brought.bytes();
        idle.state.lock().anyway().brought.push(entry);
        idle.settle(&expected, false, 100, &Round::default());
        assert_eq!(idle.state.lock().anyway().brought.len(), 1, "it is expected, and there is room");
        idle.settle(&expected, true, 100, &Round::default());
        assert!(idle.state.lock().anyway().brought.is_empty());
        assert_eq!(counters.predicted_sent_out_bytes.get(), brought_bytes);
        let worth = idle.state.lock().anyway().worth;
        assert_eq!((worth.used_share(), worth.is_paused(100)), (None, false));
        if in_memory() == 0 {
            break;
        }
        assert!(Instant::now() < until, "its pages stay");
    }
    // Of one that was started, how much was used is known.
    let started = Entry { started: Some(Instant::now()), ..brought(&path, &what) };
    idle.state.lock().anyway().brought.push(started);
    idle.settle(&expected, true, 100, &Round::default());
    assert_eq!(idle.state.lock().anyway().worth.used_share(), Some(0.0));
}
