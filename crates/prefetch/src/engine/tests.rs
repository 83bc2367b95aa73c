use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use prepage_core::profile::{Counts, Lookup, ProfiledFile};
use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_observe::Until;
use prepage_profiles::identity::profiled;
use prepage_sys::extents::place_of;
use prepage_testing::{
    Need, assert_passed, child_command, child_output, has, is_child, passes_as_child, this_test,
    unless_refused, wait_until,
};
use rustix::process::{Resource, Rlimit, setrlimit};

use super::*;
use crate::account::account;
use crate::calibrate::Calibration;
use crate::calibrate::device::Device;
use crate::progress::Progress;

const PAGES: u64 = 512;

fn file_of_pages(dir: &Path) -> std::path::PathBuf {
    let path = dir.join("object");
    std::fs::write(&path, vec![1u8; (PAGES * PAGE_SIZE) as usize]).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    path
}

fn profile(path: &Path, pages: &[u64]) -> Profile {
    Profile { files: vec![profiled(path, pages.iter().copied()).unwrap()], ..Default::default() }
}

#[test]
fn nothing_is_read_any_more_once_a_read_may_not_begin() {
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let path = file_of_pages(dir.path());
    let asked = Arc::new(AtomicUsize::new(0));
    let mut engine = Engine::with(profile(&path, &[1, 10, 20, 30]), PlanOptions::EXACT, 1);
    let count = asked.clone();
    engine.ask_before_reads(Box::new(move || count.fetch_add(1, Ordering::Relaxed) < 2));
    engine.run();
    while engine.is_at_work() {
        std::thread::yield_now();
    }
    assert_eq!((engine.outcome().requested_bytes, asked.load(Ordering::Relaxed)), (2 * PAGE_SIZE, 3));
}

/// Evicts the file, prefetches `pages` of it, and says which pages are in memory then.
fn resident_after(pages: &[u64], joined_pages: u64) -> Vec<u64> {
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let path = file_of_pages(dir.path());
    let profile = profile(&path, pages);
    let file = File::open(&path).unwrap();
    prepage_sys::cachestat::evict(file.as_fd(), Duration::from_secs(60)).unwrap();
    let cached = |page| {
        let one = PageRange::new(PageIndex(page), PageIndex(page + 1));
        prepage_sys::cachestat::cached_pages(file.as_fd(), one).unwrap() > 0
    };
    assert!(!cached(PAGES / 2), "it was evicted");
    let mut engine = Engine::with(profile, PlanOptions::EXACT, 16);
    engine.join_neighbours(joined_pages);
    assert!(!engine.is_warm());
    let outcome = engine.run();
    assert!(outcome.skipped.is_empty());
    assert_eq!(outcome.requested_bytes, pages.len() as u64 * PAGE_SIZE);
    assert!(engine.is_warm(), "a second prefetch would find everything in memory");
    (0..PAGES).filter(|&page| cached(page)).collect()
}

#[test]
fn a_sample_tells_how_much_is_in_memory() {
    if !has(Need::Eviction(env!("CARGO_MANIFEST_DIR").into())) {
        return;
    }
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let path = file_of_pages(dir.path());
    let pages: Vec<u64> = (0..8).map(|at| at * 64).collect();
    let engine = Engine::with(profile(&path, &pages), PlanOptions::EXACT, 1);
    let file = Arc::new(File::open(&path).unwrap());
    prepage_sys::cachestat::evict(file.as_fd(), Duration::from_secs(60)).unwrap();
    for read in 0..=pages.len() {
        let expected = match read {
            0..=4 => Residency::Little,
            5..=7 => Residency::Most,
            _ => Residency::All,
        };
        // Where the kernel can tell, to ask reads nothing.
        for _ in 0..2 {
            engine.open_sample();
            assert_eq!(engine.residency(), expected, "{read} pages are in memory");
        }
        assert_eq!(engine.is_warm(), expected == Residency::All);
        pages.get(read).into_iter().for_each(|&page| {
            let range = PageRange::new(PageIndex(page), PageIndex(page + 1));
            bring_in(&[Piece { file: file.clone(), range, is_hole: false }], true, None);
        });
    }
}

/// Where it counts none, that is all there is to tell a cold start by.
#[test]
fn a_sample_is_looked_at_as_it_is_read_until_the_kernel_counts_a_read() {
    if !has(Need::Eviction(env!("CARGO_MANIFEST_DIR").into())) {
        return;
    }
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let path = file_of_pages(dir.path());
    let profile = profile(&path, &[1, 100, 300]);
    prepage_sys::cachestat::evict(File::open(&path).unwrap().as_fd(), Duration::from_secs(60)).unwrap();
    let were_missing = || {
        let engine = Engine::with(profile.clone(), PlanOptions::EXACT, 1);
        engine.run();
        engine.amounts().were_missing()
    };
    assert_eq!([(); 2].map(|()| were_missing()), [true, false]);
}

#[test]
fn a_sample_is_no_larger_than_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let path = file_of_pages(dir.path());
    for reads in 0..40 {
        let pages: Vec<u64> = (0..reads).map(|at| at * 8).collect();
        let engine = Engine::with(profile(&path, &pages), PlanOptions::EXACT, 1);
        let sampled = engine.state.sample().count();
        assert!(sampled <= PROBES && sampled >= (reads as usize).min(PROBES / 2), "{sampled} of {reads}");
    }
}

#[test]
fn exactly_the_pages_of_the_profile_come_in() {
    let pages: Vec<u64> = (0..PAGES).filter(|page| page % 37 == 3 || (100..180).contains(page)).collect();
    if has(Need::Eviction(env!("CARGO_MANIFEST_DIR").into())) {
        for joined_pages in [0, 8, 64] {
            assert_eq!(resident_after(&pages, joined_pages), pages);
        }
    }
}

/// How many times is asked for `pages` of one file, and for how many bytes; `None` where the device has it elsewhere than side by side, or does not tell.
fn asked_for(
    pages: &[u64],
    options: PlanOptions,
    prepare: impl FnOnce(&mut Engine, &Path),
) -> Option<(usize, u64)> {
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let path = file_of_pages(dir.path());
    let file = File::open(&path).unwrap();
    let need = Need::Extents(env!("CARGO_MANIFEST_DIR").into());
    let first = unless_refused(place_of(file.as_fd(), 0), need, |_| true)?;
    assert_eq!(
        place_of(file.as_fd(), 100 * PAGE_SIZE).unwrap(),
        first.map(|at| at + 100 * PAGE_SIZE),
        "in one piece"
    );
    let asked = Arc::new(AtomicUsize::new(0));
    let mut profile = profile(&path, pages);
    // One that can be the device.
    profile.files.push(ProfiledFile { extents: Vec::new(), ..profile.files[0].clone() });
    let mut engine = Engine::with(profile, options, 1);
    prepare(&mut engine, &path);
    let count = asked.clone();
    engine.ask_before_reads(Box::new(move || count.fetch_add(1, Ordering::Relaxed) < usize::MAX));
    let outcome = engine.run();
    Some((asked.load(Ordering::Relaxed), outcome.requested_bytes / PAGE_SIZE))
}

#[test]
fn what_is_awaited_without_a_note_is_not_taken_for_used() {
    let place = env!("CARGO_MANIFEST_DIR");
    if !has(Need::Root) || !has(Need::Eviction(place.into())) {
        return;
    }
    let dir = tempfile::tempdir_in(place).unwrap();
    let path = file_of_pages(dir.path());
    let profile = profile(&path, &[3, 4, 200]);
    let file = File::open(&path).unwrap();
    let flags = prepage_sys::page_flags::PageFlags::open().unwrap();
    let used_after = |leaves_notes: bool| {
        prepage_sys::cachestat::evict(file.as_fd(), Duration::from_secs(60)).unwrap();
        let mut engine = Engine::with(profile.clone(), PlanOptions::EXACT, 1);
        if !leaves_notes {
            engine.leave_no_notes().unwrap();
        }
        engine.run();
        let (mut brought, mut used) = (Vec::new(), Vec::new());
        let pages = PageRange::new(PageIndex(0), PageIndex(PAGES));
        flags
            .of(file.as_fd(), pages, &|_| true, &mut |page, is_used| {
                brought.push(page.0);
                used.extend(is_used.then_some(page.0));
            })
            .unwrap();
        assert_eq!(brought, [3, 4, 200]);
        used
    };
    assert_eq!(used_after(true), [4, 200]);
    assert_eq!(used_after(false), [0; 0]);
}

#[test]
fn what_lies_side_by_side_on_the_device_is_asked_for_together() {
    let pages: Vec<u64> = (0..64).chain([100]).collect();
    for (joined_pages, request_pages_max, expected) in [(0, 64, 3), (63, 64, 3), (64, 64, 2), (64, 32, 3)] {
        let prepare = |engine: &mut Engine, _: &Path| {
            engine.join_neighbours(joined_pages);
            engine.prepared().options.read_pages_max = request_pages_max;
        };
        let asked = asked_for(&pages, PlanOptions::EXACT, prepare);
        assert!(
            asked.is_none_or(|asked| asked == (expected, 65)),
            "{asked:?}, {joined_pages}, {request_pages_max}"
        );
    }
}

#[test]
fn a_small_hole_between_neighbours_is_read_over_on_its_own_device() {
    for (gap_pages_max, is_own, expected) in [(4, true, (1, 2)), (3, true, (2, 2)), (4, false, (2, 2))] {
        let prepare = |engine: &mut Engine, path: &Path| {
            engine.join_neighbours(64);
            engine.prepared().options = PlanOptions { gap_pages_max, read_pages_max: 64 };
            // Long enough to stand for a device.
            let device = File::open(path).unwrap();
            let number = rustix::fs::fstat(&device).unwrap().st_dev;
            engine.give_device(1, if is_own { number } else { number + 1 }, device);
        };
        let asked = asked_for(&[0, 5], PlanOptions::EXACT, prepare);
        assert!(asked.is_none_or(|asked| asked == expected), "{asked:?}, {gap_pages_max}, {is_own}");
    }
}

/// As where all is in memory, where this file lies.
#[test]
fn no_more_readers_ask_than_a_few_until_the_device_has_shown_that_it_serves_more() {
    if !has(Need::Path("/dev/shm".into())) {
        return;
    }
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = file_of_pages(dir.path());
    let pages: Vec<u64> = (0..PAGES).step_by(4).collect();
    let mut engine = Engine::with(profile(&path, &pages), PlanOptions::EXACT, 3);
    engine.ask_deeper_where_far(16);
    let (asking, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let at_most = most.clone();
    engine.ask_before_reads(Box::new(move || {
        most.fetch_max(asking.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(1));
        asking.fetch_sub(1, Ordering::Relaxed) > 0
    }));
    assert_eq!(engine.run().requested_bytes, pages.len() as u64 * PAGE_SIZE);
    assert!((1..=3).contains(&at_most.load(Ordering::Relaxed)), "{at_most:?}");
}

#[test]
fn what_is_used_last_is_left_out_when_memory_is_short() {
    let dir = tempfile::tempdir().unwrap();
    let profile = profile(&file_of_pages(dir.path()), &[400, 10, 200]);
    let engine = Engine::with(profile, PlanOptions::EXACT, 16);
    let limit_bytes = engine.planned_bytes() - 1;
    engine.state.limit_bytes(limit_bytes);
    let first_pages: Vec<u64> = engine.state.reads().iter().map(|read| read.range.start().0).collect();
    assert_eq!(first_pages, [400, 10]);
}

#[test]
fn threads_are_kept_within_what_there_is_to_spare() {
    let profile = Profile::default();
    let threads = |to_spare| {
        let mut engine = Engine::new(profile.clone(), &DeviceFigures::default());
        engine.keep_within(Budget::of_threads(to_spare));
        (engine.state.readers, engine.state.name_threads)
    };
    assert_eq!(threads(u32::MAX), threads(1000));
    for (to_spare, expected) in [(0, (1, 0)), (1, (2, 0)), (5, (4, 2))] {
        assert_eq!(threads(to_spare), expected);
    }
}

#[test]
fn a_prefetch_ends_where_memory_gets_short_and_when_it_is_cancelled() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("object");
    let pages = 16 * MEMORY_CHECK_BYTES / PAGE_SIZE;
    File::create(&path).unwrap().set_len(pages * PAGE_SIZE).unwrap();
    let profile = profile(&path, &(0..pages).collect::<Vec<_>>());
    std::fs::write(dir.path().join("memory.max"), "1000000000").unwrap();
    std::fs::write(dir.path().join("memory.current"), "0").unwrap();
    let mut engine = Engine::new(profile.clone(), &DeviceFigures::default());
    engine.keep_within(Budget::in_directory(dir.path()));
    assert_eq!(engine.planned_bytes(), pages * PAGE_SIZE);
    // Another program takes what there was.
    std::fs::write(dir.path().join("memory.current"), "999000000").unwrap();
    let outcome = engine.run();
    assert!(outcome.memory_was_short);
    // Each reader may be at a read when the first of them sees it.
    let most = MEMORY_CHECK_BYTES + (32 + 1) * prepage_core::profile::plan::READ_PAGES_MAX * PAGE_SIZE;
    assert!((MEMORY_CHECK_BYTES..=most).contains(&outcome.requested_bytes), "{}", outcome.requested_bytes);
    // How long such a start takes says nothing about prefetching, however cold it is.
    let mut program = std::process::Command::new("true").spawn().unwrap();
    let until = Until::ended_or(program.id(), Duration::from_secs(30)).unwrap();
    let mut progress = Progress::new(program.id(), &until);
    progress.follow(u64::MAX);
    progress.disk_faults = pages;
    assert_eq!(progress.cold_start(7, prepage_sys::clock::now_ns(), Some(&engine.amounts())), None);
    program.wait().unwrap();
    let engine = Engine::new(profile, &DeviceFigures::default());
    engine.cancel();
    assert_eq!(engine.run().requested_bytes, 0);
}

#[test]
fn what_is_left_out_for_little_memory_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("object");
    File::create(&path).unwrap().set_len(64_000_000).unwrap();
    let pages = 64_000_000 / PAGE_SIZE;
    let profile = profile(&path, &(0..pages).collect::<Vec<_>>());
    std::fs::write(dir.path().join("memory.max"), "1000000000").unwrap();
    std::fs::write(dir.path().join("memory.current"), "980000000").unwrap();
    let mut engine = Engine::new(profile.clone(), &DeviceFigures::default());
    let planned_bytes = engine.planned_bytes();
    engine.keep_within(Budget::in_directory(dir.path()));
    let outcome = engine.run();
    assert!(outcome.requested_bytes < 2_000_000 && !outcome.memory_was_short, "{outcome:?}");
    assert_eq!(outcome.requested_bytes + outcome.left_out_bytes, planned_bytes);
    let told = account(&profile, &outcome, &[]);
    assert!(told.ends_with("of 1 file; 62.4 MB left out, for little memory is left"), "{told}");
}

#[test]
fn listed_directories_are_not_taken_for_pages_that_were_fetched() {
    let dir = tempfile::tempdir().unwrap();
    let path = file_of_pages(dir.path());
    let mut profile = profile(&path, &[1]);
    for at in 0..100 {
        let directory = dir.path().join(at.to_string());
        std::fs::create_dir(&directory).unwrap();
        ["a", "b", "c"].iter().for_each(|name| drop(File::create(directory.join(name)).unwrap()));
        let path = directory.to_str().unwrap().to_owned();
        profile.lookups.push(Lookup { path, list: true, counts: Counts::default() });
    }
    assert_eq!(Engine::new(profile, &DeviceFigures::default()).run().requested_bytes, PAGE_SIZE);
}

/// NVMe disks come in another order after some boots.
#[test]
fn figures_are_those_of_the_number_that_a_device_has_now() {
    let test = this_test();
    if !is_child(&test) {
        let store = tempfile::tempdir().unwrap();
        let mut child = child_command(&test, &[]);
        return assert_passed(&child_output(child.env("PREPAGE_STORE", store.path())));
    }
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let path = file_of_pages(dir.path());
    let mut profile = profile(&path, &[1]);
    let number = profile.files[0].identity.device;
    let measured = |device: &Device, latency_ns| {
        let figures = DeviceFigures { latency_ns, ..DeviceFigures::default() };
        let calibration = Calibration { figures, latency_p99_ns: 1, rates: Vec::new(), measured_unix_s: 1 };
        Cache::of_user().unwrap().store(device, &calibration).unwrap();
        figures
    };
    let device = Device::under(&path).unwrap();
    let learned = rustix::fs::makedev(4000, 2);
    profile.files[0].identity.device = learned;
    let figures = measured(&Device { number: learned, ..device.clone() }, 5_000_000);
    assert_eq!(device_of(&profile), figures, "not measured since it has another number");
    measured(&Device { number, identity: "another".into() }, 6_000_000);
    assert_eq!(device_of(&profile), figures, "another disk had its number");
    let figures = measured(&device, 7_000_000);
    assert_eq!(device_of(&profile), figures, "measured since");
    profile.files[0].identity.device = number;
    assert_eq!(device_of(&profile), figures);
    profile.files[0].identity.device += 1;
    assert_eq!(device_of(&profile), figures);
    measured(&Device { number: number + 1, identity: "another".into() }, 9_000_000);
    assert_eq!(device_of(&profile), figures, "by now this is another disk");
    // Another file lies there.
    profile.files[0].identity.ctime_ns += 1;
    assert_eq!(device_of(&profile).latency_ns, 9_000_000);
}

/// The usual hard limit is high, and some users have a lower one.
#[test]
fn more_files_than_may_be_open_are_all_read() {
    if !is_child(&this_test()) {
        return passes_as_child(&[]);
    }
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let mut profile = Profile::default();
    for at in 0..200 {
        let path = dir.path().join(at.to_string());
        std::fs::write(&path, [7; PAGE_SIZE as usize]).unwrap();
        let mut file = self::profile(&path, &[0]).files.remove(0);
        file.extents[0].rank = at;
        profile.files.push(file);
    }
    let limit = Rlimit { current: Some(64), maximum: Some(64) };
    setrlimit(Resource::Nofile, limit).unwrap();
    let outcome = Engine::with(profile, PlanOptions::EXACT, 16).run();
    assert_eq!((outcome.skipped, outcome.requested_bytes), (vec![], 200 * PAGE_SIZE));
}

/// Others of the machine may have them all.
#[test]
fn where_no_file_can_be_opened_one_wait_is_enough() {
    if !is_child(&this_test()) {
        return passes_as_child(&[]);
    }
    const FILES: usize = 50;
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let mut profile = self::profile(&file_of_pages(dir.path()), &[0]);
    profile.files = vec![profile.files[0].clone(); FILES];
    setrlimit(Resource::Nofile, Rlimit { current: Some(3), maximum: Some(3) }).unwrap();
    let began = Instant::now();
    let outcome = Engine::with(profile, PlanOptions::EXACT, 1).run();
    assert!(outcome.skipped.iter().all(|(_, why)| *why == Skipped::TooMany), "{outcome:?}");
    assert_eq!(outcome.skipped.len(), FILES);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[test]
fn a_missing_file_and_a_missing_name_are_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let path = file_of_pages(dir.path());
    let mut profile = profile(&path, &[1, 2]);
    profile.lookups = vec![
        Lookup { path: "/no/such/name".into(), list: false, counts: Counts::default() },
        Lookup { path: "/no/such/directory".into(), list: true, counts: Counts::default() },
        Lookup { path: "/".into(), list: true, counts: Counts::default() },
    ];
    std::fs::remove_file(&path).unwrap();
    let engine = Engine::new(profile, &DeviceFigures::default());
    assert_eq!(engine.run().skipped, [(0, Skipped::Missing)]);
}

#[test]
fn work_that_others_do_later_or_never_is_a_prefetch_all_the_same() {
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let path = file_of_pages(dir.path());
    let pages: Vec<u64> = (0..30).map(|at| 10 * at).collect();
    let engine = Engine::with(profile(&path, &pages), PlanOptions::EXACT, 8);
    let mut lent: Vec<Work> = Vec::new();
    let readers = engine.start_on(&mut |work| {
        lent.push(work);
        true
    });
    assert_eq!(readers, 8);
    assert!(!engine.wait_for(Duration::ZERO) && engine.outcome().requested_bytes == 0);
    // One reader does all of it; who finds nothing to do may as well not come.
    lent.truncate(2);
    lent.into_iter().for_each(|work| work());
    assert!(engine.wait_for(Duration::ZERO));
    assert_eq!(engine.outcome().requested_bytes, 30 * PAGE_SIZE);
    assert_eq!(engine.start_on(&mut |_| false), 0);
    assert!(engine.wait_for(Duration::ZERO), "nobody is at work");
}

/// `count` files below `dir`, of which so many pages each are read, in turns.
fn profile_of_files(dir: &Path, count: u32, pages: u32) -> Profile {
    let mut profile = Profile::default();
    for at in 0..count {
        let path = dir.join(at.to_string());
        std::fs::write(&path, vec![7; (2 * pages) as usize * PAGE_SIZE as usize]).unwrap();
        let every_second: Vec<u64> = (0..u64::from(pages)).map(|page| 2 * page).collect();
        let mut file = self::profile(&path, &every_second).files.remove(0);
        file.extents.iter_mut().for_each(|extent| extent.rank = extent.rank * count + at);
        profile.files.push(file);
    }
    profile
}

/// It may lie on a file system that does not answer.
#[test]
fn reads_of_files_that_are_open_do_not_wait_for_one_that_is_being_opened() {
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let engine = Engine::with(profile_of_files(dir.path(), 3, 2), PlanOptions::EXACT, 1);
    let pages = || engine.outcome().requested_bytes / PAGE_SIZE;
    let opening = engine.state.files.opening(0);
    let reader = engine.work(State::read_pages);
    let reader = std::thread::spawn(reader);
    wait_until(|| pages() == 4, "they are not read");
    assert!(engine.state.has_reads_left() && !reader.is_finished());
    drop(opening);
    reader.join().unwrap();
    assert_eq!((pages(), engine.state.has_reads_left()), (6, false));
}

#[test]
fn names_are_looked_up_while_it_is_found_out_how_much_memory_there_is() {
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let mut engine = Engine::with(profile_of_files(dir.path(), 3, 1), PlanOptions::EXACT, 16);
    let names = engine.start_names(100);
    let are_open = || [0, 1, 2].map(|at| engine.state.files.is_open(at));
    wait_until(|| are_open() == [true; 3], "they are not opened");
    assert_eq!(engine.outcome().requested_bytes, 0);
    // For two of them.
    let limit = dir.path().join("memory.max");
    std::fs::write(dir.path().join("memory.current"), "0").unwrap();
    std::fs::write(&limit, ((16 << 20) + 4 * PAGE_SIZE).to_string()).unwrap();
    engine.keep_to_memory(Budget::in_directory(dir.path()));
    assert_eq!(are_open(), [true, true, false]);
    std::fs::write(&limit, "1000000000").unwrap();
    engine.start();
    drop(names);
    let outcome = engine.wait();
    assert_eq!((outcome.requested_bytes, outcome.left_out_bytes), (2 * PAGE_SIZE, PAGE_SIZE));
    wait_until(|| are_open() == [false; 3], "some stay open");
}

/// The one that begins them, and the program, would wait for each.
#[test]
fn no_more_threads_are_begun_than_there_is_work_for() {
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let path = file_of_pages(dir.path());
    let lent = |pages: &[u64], is_done_at_once: bool| {
        let engine = Engine::with(profile(&path, pages), PlanOptions::EXACT, 16);
        let mut count = 0;
        engine.start_on(&mut |work| {
            count += 1;
            if is_done_at_once {
                work();
            }
            true
        });
        (count, engine.outcome().requested_bytes / PAGE_SIZE)
    };
    assert_eq!(lent(&[1, 50, 100], false), (4, 0), "a read each, for the device may be slow");
    let pages: Vec<u64> = (0..60).map(|at| 5 * at).collect();
    assert_eq!(lent(&pages, false).0, 17);
    assert_eq!(lent(&pages, true), (2, 60), "the first of them have done it all");
}

/// Threads take their time to begin.
#[test]
fn what_is_open_is_asked_for_before_any_thread_begins() {
    if !has(Need::Eviction(env!("CARGO_MANIFEST_DIR").into())) || !has(Need::Path("/proc/self/io".into())) {
        return;
    }
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let path = file_of_pages(dir.path());
    let engine = Engine::with(profile(&path, &[1, 100]), PlanOptions::EXACT, 8);
    let file = File::open(&path).unwrap();
    prepage_sys::cachestat::evict(file.as_fd(), Duration::from_secs(60)).unwrap();
    let bytes = || engine.amounts().read_bytes();
    engine.state.ask_for_first();
    assert_eq!(bytes(), 0, "a file that is to be opened is not waited for");
    engine.open_sample();
    // Readers find nothing to do.
    engine.state.cursor.lock().unwrap().take(2, |_| 2);
    engine.run();
    assert!(bytes() > 0);
    assert_eq!(engine.outcome().requested_bytes, 0, "as much as readers make of it");
}

/// FUSE and ZFS count none; here there is nothing to read. What is looked at next must not be on its way already.
#[test]
fn a_cold_start_is_told_where_the_file_system_counts_no_reads() {
    let here = env!("CARGO_MANIFEST_DIR");
    if !has(Need::Eviction(here.into())) {
        return;
    }
    let dir = tempfile::tempdir_in(here).unwrap();
    let path = dir.path().join("sparse");
    File::create(&path).unwrap().set_len(PAGES * PAGE_SIZE).unwrap();
    for pages in [&[1][..], &[1, 50, 100, 150, 200, 250, 300, 350]] {
        let engine = Engine::with(profile(&path, pages), PlanOptions::EXACT, 8);
        let file = File::open(&path).unwrap();
        prepage_sys::cachestat::evict(file.as_fd(), Duration::from_secs(60)).unwrap();
        engine.open_sample();
        engine.run();
        assert_eq!(engine.amounts().read_bytes(), 0);
        assert!(engine.amounts().were_missing(), "{pages:?}");
    }
}

/// A boot waits for other reads, too.
#[test]
fn files_that_are_opened_when_they_are_read_are_not_opened_before() {
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let path = file_of_pages(dir.path());
    let mut profile = profile(&path, &[1, 100]);
    profile.lookups = vec![Lookup { path: "/".into(), list: false, counts: Counts::default() }];
    let mut engine = Engine::with(profile, PlanOptions::EXACT, 3);
    engine.open_files_when_read();
    let mut lent: Vec<Work> = Vec::new();
    let readers = engine.start_on(&mut |work| {
        lent.push(work);
        true
    });
    assert_eq!((readers, lent.len()), (2, 3));
    lent.remove(0)();
    assert!(!engine.state.files.is_open(0), "by who looks names up");
    lent.into_iter().for_each(|work| work());
    assert_eq!(engine.outcome().requested_bytes, 2 * PAGE_SIZE);
}

#[test]
fn what_is_given_is_read_whatever_lies_at_its_path() {
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let path = file_of_pages(dir.path());
    let given = File::open(&path).unwrap();
    let in_memory = |page| {
        let one = PageRange::new(PageIndex(page), PageIndex(page + 1));
        prepage_sys::cachestat::cached_pages(given.as_fd(), one).is_ok_and(|count| count > 0)
    };
    let until = std::time::Instant::now() + Duration::from_secs(60);
    // What has come in may have left again where memory is short.
    while !(in_memory(1) && in_memory(100)) {
        assert!(std::time::Instant::now() < until, "never in memory");
        // Nothing can be opened at the path, and nothing there is like what was learned.
        let mut profile = profile(&path, &[1, 100]);
        profile.files[0].path = dir.path().join("none").to_str().unwrap().into();
        profile.files[0].identity = Default::default();
        let mut engine = Engine::with(profile.clone(), PlanOptions::EXACT, 8);
        engine.give_device(0, 0, given.try_clone().unwrap());
        let outcome = engine.run();
        assert_eq!(
            (outcome.requested_bytes, outcome.device_bytes, outcome.skipped),
            (2 * PAGE_SIZE, 2 * PAGE_SIZE, vec![])
        );
        let not_given = Engine::with(profile, PlanOptions::EXACT, 8).run();
        assert_eq!(not_given.skipped, [(0, Skipped::Missing)]);
    }
}

#[test]
fn what_files_are_found_by_comes_in_before_they_are_opened() {
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let path = file_of_pages(dir.path());
    let mut profile = profile(&path, &[1, 100]);
    profile.files.push(profile.files[0].clone());
    let mut engine = Engine::with(profile, PlanOptions::EXACT, 1);
    engine.join_neighbours(64);
    engine.give_device(1, 0, File::open(&path).unwrap());
    let (itself, seen) = (Arc::new(std::sync::OnceLock::<Engine>::new()), Arc::new(Mutex::new(Vec::new())));
    let (asking, noted) = (itself.clone(), seen.clone());
    engine.ask_before_reads(Box::new(move || {
        noted.lock().unwrap().push(asking.get().unwrap().state.files.is_open(0));
        true
    }));
    itself.set(engine.clone()).unwrap();
    engine.run();
    assert_eq!(*seen.lock().unwrap(), [false, false, true, true]);
}

/// Whoever unmounts a file system, or deletes a file for its space, waits for nobody who has read it already.
#[test]
fn a_file_is_open_no_longer_than_reads_of_it_are_to_come() {
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let path = file_of_pages(dir.path());
    let mut profile = profile(&path, &[1, 100]);
    // One that nothing is read of, and one that is read last.
    let other = dir.path().join("other");
    std::fs::copy(&path, &other).unwrap();
    let last = self::profile(&other, &[50]).files.remove(0);
    profile.files.extend([ProfiledFile { extents: Vec::new(), ..profile.files[0].clone() }, last]);
    profile.files[2].extents[0].rank = 9;
    let are_open = |engine: &Engine| [0, 1, 2].map(|at| engine.state.files.is_open(at));
    let mut engine = Engine::with(profile.clone(), PlanOptions::EXACT, 1);
    let (itself, seen) = (Arc::new(std::sync::OnceLock::<Engine>::new()), Arc::new(Mutex::new(Vec::new())));
    let (asking, noted) = (itself.clone(), seen.clone());
    engine.ask_before_reads(Box::new(move || {
        noted.lock().unwrap().push(are_open(asking.get().unwrap()));
        true
    }));
    engine.look_up();
    assert_eq!(are_open(&engine), [true, false, true]);
    itself.set(engine.clone()).unwrap();
    assert_eq!(engine.run().requested_bytes, 3 * PAGE_SIZE);
    assert_eq!(*seen.lock().unwrap(), [[true, false, true], [true, false, true], [false, false, true]]);
    // Also when it ends early, as soon as nobody is at work, and who only looks leaves nothing open.
    let are_closed = |engine: &Engine| {
        wait_until(|| are_open(engine) == [false; 3], "some stay open");
    };
    are_closed(&engine);
    let mut engine = Engine::with(profile, PlanOptions::EXACT, 1);
    let asked = AtomicUsize::new(0);
    engine.ask_before_reads(Box::new(move || asked.fetch_add(1, Ordering::Relaxed) == 0));
    assert_eq!(engine.look_at_files(), []);
    are_closed(&engine);
    engine.open_sample();
    engine.residency();
    are_closed(&engine);
    assert_eq!(engine.residency(), Residency::All, "it opens nothing");
    are_closed(&engine);
    engine.open_sample();
    assert_eq!(engine.run().requested_bytes, PAGE_SIZE);
    are_closed(&engine);
}

#[test]
fn what_lies_beside_a_read_is_read_next() {
    let dir = tempfile::tempdir().unwrap();
    let path = file_of_pages(dir.path());
    let options = PlanOptions { gap_pages_max: 4, read_pages_max: 8 };
    let mut engine = Engine::with(profile(&path, &[200, 10, 300, 100]), options, 1);
    // The last page lies elsewhere in its file, and beside the first on the device.
    engine.bring_neighbours_along(|_, page| Some(if page.0 == 100 { 205 } else { page.0 }));
    let pages: Vec<u64> = engine.state.reads().iter().map(|read| read.range.start().0).collect();
    assert_eq!(pages, [200, 100, 10, 300]);
}

#[test]
fn a_file_in_pieces_is_read_piece_by_piece() {
    let dir = tempfile::tempdir().unwrap();
    let path = file_of_pages(dir.path());
    let options = PlanOptions { gap_pages_max: 4, read_pages_max: 8 };
    let mut engine = Engine::with(profile(&path, &[200, 203, 206, 209]), options, 1);
    engine.bring_neighbours_along(|_, page| Some(if page.0 < 205 { page.0 } else { 1000 + page.0 }));
    let pages: Vec<u64> = engine.state.reads().iter().map(|read| read.range.start().0).collect();
    assert_eq!(pages, [200, 206]);
}
