use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use prepage_core::profile::{Profile, ProfiledFile};
use prepage_core::{PageIndex, PageRange};
use prepage_sys::cachestat::{cached_pages, evict};
use prepage_sys::disk_stat::DiskStat;
use prepage_sys::rights::Rights;
use prepage_testing::{Need, has, wait_until};

use super::*;
use crate::needed_file::needed_file;
use crate::process::Login;

/// Longer than anything takes here, on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(60);
const PAGES: u64 = 16;

/// A file on the disk, and up to four pages of it, brought in for user 7 a moment ago.
fn brought(path: &Path, what: &Launched) -> Entry {
    let (file, profiled) = needed_file(path, PAGES, &[4, 5, 6, 7]);
    brought_of(&file, profiled, what)
}

/// The same of such a file that is there.
fn brought_of(file: &File, profiled: ProfiledFile, what: &Launched) -> Entry {
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

/// `None`, and a skip, where this machine does not allow the tests.
fn on_a_disk() -> Option<tempfile::TempDir> {
    let place = Path::new(env!("CARGO_MANIFEST_DIR"));
    (has(Need::Root) && has(Need::Eviction(place.into()))).then(|| tempfile::tempdir_in(place).unwrap())
}

/// One that remembers user 7.
fn idle_in(directory: &Path) -> Idle {
    let layers = vec![directory.join("layer")];
    let library = Arc::new(Library::open(Some(layers)).unwrap());
    let idle = Idle::new(library, Arc::default(), directory.join("log"), Duration::ZERO);
    idle.log.lock().anyway().launched(7, &what("program"), Login::Untold, 100);
    idle
}

fn what(name: &str) -> Launched {
    Launched { program: format!("/bin/{name}"), role: name.into() }
}

fn expects(uid: u32, name: &str) -> (u32, Expected) {
    (uid, Expected { what: what(name), probability: 1.0 })
}

#[test]
fn one_user_leaves_room_for_what_others_expect() {
    let Some(directory) = on_a_disk() else { return };
    let idle = idle_in(directory.path());
    for at in 0..BROUGHT_OF_A_USER_MAX {
        let name = format!("program{at}");
        let path = directory.path().canonicalize().unwrap().join(&name);
        idle.state.lock().anyway().brought.push(brought(&path, &what(&name)));
    }
    let (more, of_another) = (expects(7, "more"), expects(8, "other"));
    assert_eq!(
        idle.next(std::slice::from_ref(&more)),
        Some((7, what("more"))),
        "nobody else expects anything"
    );
    assert_eq!(idle.next(&[more.clone(), of_another]), Some((8, what("other"))));
    // One that is begun has its place.
    idle.state.lock().anyway().brought[3].is_whole = false;
    let begun = [expects(7, "program3"), expects(8, "other")];
    assert_eq!(idle.next(&begun), Some((7, what("program3"))));
    idle.state.lock().anyway().brought.pop();
    assert_eq!(idle.next(&[more, expects(8, "other")]), Some((7, what("more"))));
}

#[test]
fn who_has_taken_all_places_alone_gives_half_of_them_back() {
    let Some(directory) = on_a_disk() else { return };
    let idle = idle_in(directory.path());
    let names: Vec<String> = (0..BROUGHT_MAX).map(|at| format!("program{at}")).collect();
    for name in &names {
        let path = directory.path().canonicalize().unwrap().join(name);
        idle.state.lock().anyway().brought.push(brought(&path, &what(name)));
    }
    let mut expected: Vec<_> = names.iter().map(|name| expects(7, name)).collect();
    let left = |expected: &[_]| {
        idle.settle(expected, false, 100, &Round::default());
        idle.state.lock().anyway().brought.iter().map(|entry| entry.what.clone()).collect::<Vec<_>>()
    };
    assert_eq!(left(&expected).len(), BROUGHT_MAX, "nobody else expects anything");
    expected.push(expects(7, "more"));
    assert_eq!(idle.next(&expected), None, "all places are taken");
    idle.state.lock().anyway().brought[3].is_whole = false;
    assert_eq!(idle.next(&expected), Some((7, what(&names[3]))), "the rest of one that is begun");
    idle.state.lock().anyway().brought[3].is_whole = true;
    expected.insert(0, expects(8, "other"));
    let likeliest: Vec<_> = names.iter().take(BROUGHT_OF_A_USER_MAX).map(|name| what(name)).collect();
    assert_eq!(left(&expected), likeliest);
    assert_eq!(idle.next(&expected), Some((8, what("other"))));
}

/// Programs share libraries.
#[test]
fn what_is_sent_out_with_one_program_is_looked_for_again_for_another() {
    let Some(directory) = on_a_disk() else { return };
    let idle = idle_in(directory.path());
    let path = directory.path().canonicalize().unwrap().join("file");
    let (file, profiled) = needed_file(&path, PAGES, &[4, 5, 6, 7]);
    for name in ["first", "second"] {
        let entry = brought_of(&file, profiled.clone(), &what(name));
        idle.state.lock().anyway().brought.push(entry);
    }
    let expected = [expects(7, "second")];
    assert_eq!(idle.next(&expected), None, "it is there");
    idle.settle(&expected, false, 100, &Round::default());
    assert!(idle.counters.predicted_sent_out_bytes.get() > 0);
    assert_eq!(idle.next(&expected), Some((7, what("second"))));
}

#[test]
fn nothing_more_is_brought_in_for_a_user_in_the_round_in_which_the_pause_begins() {
    // Where memory is short nothing is brought in either.
    wait_until(|| is_tried_after(2) != Some(false), "it is not brought in where no pause begins");
    assert_ne!(is_tried_after(3), Some(true));
}

/// Whether something that is expected is brought in, or found in memory, in a round that settles one vain guess after so many others. `None` where that
/// cannot be tried.
fn is_tried_after(vain: usize) -> Option<bool> {
    let directory = on_a_disk()?;
    let directory = directory.path().canonicalize().unwrap();
    let idle = idle_in(&directory);
    let (_, profiled) = needed_file(&directory.join("expected"), PAGES, &[4, 5, 6, 7]);
    know(&idle, &directory, &what("expected"), vec![profiled]);
    let now_unix_s = unix_s();
    {
        let mut log = idle.log.lock().anyway();
        for day in (1..9).rev() {
            for name in ["program", "expected"] {
                log.launched(7, &what(name), Login::Untold, now_unix_s - day * 86_400);
            }
            log.tick(now_unix_s - day * 86_400 + 3599, 0);
        }
        log.launched(7, &what("program"), Login::Untold, now_unix_s);
        (0..vain).for_each(|_| log.settle(7, 1, 0, now_unix_s));
    }
    let started = Instant::now().checked_sub(START);
    let entry = Entry { started, ..brought(&directory.join("vain"), &what("vain")) };
    idle.state.lock().anyway().brought.push(entry);
    // The first look says nothing.
    idle.sampler.lock().anyway().look();
    idle.round(true, &Arc::default());
    assert_eq!(idle.status(7).is_paused, vain == 3);
    let state = idle.state.lock().anyway();
    Some(!(state.brought.is_empty() && state.in_memory.is_empty()))
}

/// Nobody could start it.
#[test]
fn what_was_expected_before_the_machine_slept_does_not_count_as_a_bad_guess() {
    let Some(directory) = on_a_disk() else { return };
    let path = directory.path().canonicalize().unwrap().join("file");
    let idle = idle_in(directory.path());
    for (has_slept, used_share) in [(true, None), (false, Some(0.0))] {
        let entry = brought(&path, &what("program"));
        {
            let mut state = idle.state.lock().anyway();
            state.brought.push(entry);
            state.has_slept = has_slept;
        }
        idle.settle(&[], false, 100, &Round::default());
        assert!(idle.state.lock().anyway().brought.is_empty());
        assert_eq!(idle.status(7).used_share, used_share);
    }
}

/// That memory is short says nothing of the guess, which may still come true.
#[test]
fn what_is_still_expected_is_sent_out_when_memory_gets_short_and_does_not_count_as_a_bad_guess() {
    let Some(directory) = on_a_disk() else { return };
    let path = directory.path().canonicalize().unwrap().join("file");
    let idle = idle_in(directory.path());
    let (what, expected) = (what("program"), [expects(7, "program")]);
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
        assert_eq!(idle.counters.predicted_sent_out_bytes.get(), brought_bytes);
        let status = idle.status(7);
        assert_eq!((status.used_share, status.is_paused), (None, false));
        if in_memory() == 0 {
            break;
        }
        assert!(Instant::now() < until, "its pages stay");
    }
    // Of one that was started, how much was used is known.
    let started = Entry { started: Some(Instant::now()), ..brought(&path, &what) };
    idle.state.lock().anyway().brought.push(started);
    idle.settle(&expected, true, 100, &Round::default());
    assert_eq!(idle.status(7).used_share, Some(0.0));
}

/// What an idle machine does.
const IDLE: Reading = Reading {
    disk_busy: 0.0,
    processor_busy: 0.0,
    io_stalled: None,
    memory_stalled: None,
    is_on_battery: false,
    free_bytes: 8 << 30,
    total_bytes: 16 << 30,
};

/// Has `idle` know a program that needs `files`.
fn know(idle: &Idle, directory: &Path, what: &Launched, files: Vec<ProfiledFile>) {
    let profile =
        Profile { program: what.program.clone(), role: what.role.clone(), files, ..Profile::default() };
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    let layer = directory.join("layer");
    std::fs::create_dir_all(&layer).unwrap();
    std::fs::set_permissions(&layer, everybody).unwrap();
    let key = ProgramKey { program: what.program.clone(), role: what.role.clone() };
    std::fs::write(layer.join(key.file_name()), prepage_core::profile::file::encode(&profile)).unwrap();
    idle.library.reload();
    assert!(idle.library.expected(&key, 7).is_some());
}

/// As one with a database, which keeps its disk busy for less than would count.
#[test]
fn a_machine_on_whose_disk_others_leave_no_pause_is_not_idle_any_more() {
    let Some(directory) = on_a_disk() else { return };
    let directory = directory.path().canonicalize().unwrap();
    // overlayfs and Btrfs have no device of their own, on which others could be seen.
    let device = std::os::unix::fs::MetadataExt::dev(&directory.metadata().unwrap());
    if !has(Need::Path(DiskStat::directory(device))) {
        return;
    }
    let idle = Idle { after: Duration::from_millis(1), ..idle_in(&directory) };
    let what = what("program");
    let (file, profiled) = needed_file(&directory.join("file"), PAGES, &[4, 5, 6, 7]);
    know(&idle, &directory, &what, vec![profiled]);
    let others = File::create(directory.join("others")).unwrap();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let is_idle_after = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                std::os::unix::fs::FileExt::write_all_at(&others, &[1; 4096], 0).unwrap();
                others.sync_all().unwrap();
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let until = Instant::now() + PATIENCE;
        // On a busy machine the others may pause, and the kernel may keep a page in memory.
        let is_left = loop {
            let is_out = evict(file.as_fd(), PATIENCE).is_ok();
            while !idle.may_bring(&IDLE, true) {}
            idle.bring(7, what.clone(), &IDLE, &Arc::default());
            let mut state = idle.state.lock().anyway();
            let is_left = is_out && state.brought.is_empty() && state.in_memory.is_empty();
            if is_left || Instant::now() > until {
                break is_left;
            }
            state.brought.clear();
            state.in_memory.clear();
        };
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        is_left.then(|| idle.may_bring(&IDLE, true))
    });
    assert_eq!(is_idle_after, Some(false));
}

/// To bring it in takes a while, and its pages are of use to whoever has started it.
#[test]
fn what_is_started_while_it_is_brought_in_counts_as_started() {
    // On a busy machine it may be over before anything is started.
    wait_until(is_started_while_it_is_brought_in, "it is over before anything is started");
}

/// Whether it was still being brought in when it was started, which then counts. Also where that cannot be tried.
fn is_started_while_it_is_brought_in() -> bool {
    let Some(directory) = on_a_disk() else { return true };
    let directory = directory.path().canonicalize().unwrap();
    let idle = Idle { after: Duration::from_secs(1), ..idle_in(&directory) };
    let what = what("program");
    let [first, second] =
        ["first", "second"].map(|name| needed_file(&directory.join(name), PAGES, &[4, 5, 6, 7]));
    know(&idle, &directory, &what, vec![first.1.clone(), second.1]);
    let begun = brought_of(&first.0, first.1, &what);
    idle.state.lock().anyway().brought.push(Entry { is_whole: false, ..begun });
    evict(second.0.as_fd(), PATIENCE).unwrap();
    let is_there = || !idle.state.lock().anyway().brought.is_empty();
    let is_in_time = std::thread::scope(|scope| {
        // It looks at the disk for a while before it reads.
        let bringing = scope.spawn(|| idle.bring(7, what.clone(), &IDLE, &Arc::default()));
        while is_there() && !bringing.is_finished() {
            std::thread::yield_now();
        }
        let is_in_time = !bringing.is_finished();
        idle.note_start(7, &what);
        idle.give_way();
        is_in_time
    });
    if is_in_time {
        let state = idle.state.lock().anyway();
        assert!(state.brought[0].started.is_some() && state.bringing.is_empty(), "{state:?}");
        assert_eq!(idle.counters.predicted_starts.get(), 1);
    }
    is_in_time
}
