//! Streams on the real kernel, attached to a process that is already running: this one.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::os::linux::fs::MetadataExt;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use std::{fs, process, thread};

use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_sys::mapping::FileMapping;
use prepage_sys::sync::Anyway;
use prepage_testing::{Need, has, unless_refused};
use prepage_trace::{
    AddressSpaces, Event, EventKind, FaultEvents, PageCacheEvents, PerfError, Probe, Stream, Target,
};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use rustix::thread::gettid;

mod support;

use support::{FAULTS, is_refused, may_record};

/// One test at a time: a stream of this process sees the children that its other tests start.
static PROCESS: Mutex<()> = Mutex::new(());

/// Attaches to this process; `None`, counted as a skip, where that is not allowed.
fn attach(probe: &Probe) -> Option<Stream> {
    unless_refused(Stream::attach(process::id(), probe), FAULTS, is_refused)
}

#[test]
fn pages_that_enter_the_page_cache_are_named() {
    let _process = PROCESS.lock().anyway();
    if !has(Need::Root) {
        return;
    }
    let probe = Probe { faults: FaultEvents::None, page_cache: PageCacheEvents::Added, ..Probe::default() };
    let Some(mut stream) = attach(&probe) else { return };
    let mut file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a file");
    std::io::Write::write_all(&mut file, &[1; 5 * 4096]).expect("written");
    let inode = fs::metadata(file.path()).expect("there").st_ino();
    let mut pages = Vec::new();
    for event in stream.finish() {
        if let EventKind::PageCached { file: (_, found), pages: added } = event.kind
            && found == inode
        {
            pages.extend(added.iter().map(|page| page.0));
        }
    }
    pages.sort_unstable();
    assert!(pages.starts_with(&[0, 1, 2, 3, 4]), "{pages:?}");
}

/// The kernel gives the samples of a fault that two recorders see the id of the first one's event.
#[test]
fn two_streams_of_one_process_both_see_its_faults() {
    let _process = PROCESS.lock().anyway();
    let file = fs::File::open(std::env::current_exe().expect("a test")).expect("its file");
    for stacks in [false, true] {
        let probe = Probe { stacks, ..Probe::default() };
        let Some(mut one) = attach(&probe) else { return };
        let mut other = attach(&Probe::default()).expect("what is allowed once is allowed twice");
        let pages = PageRange::new(PageIndex(0), PageIndex(8));
        let mapping = FileMapping::new(file.as_fd(), pages).expect("mapped");
        let sum: u64 = pages.iter().map(|page| u64::from(mapping.byte(page.0 * PAGE_SIZE))).sum();
        std::hint::black_box(sum);
        let own = mapping.address()..mapping.address() + pages.len() * PAGE_SIZE;
        for stream in [&mut one, &mut other] {
            stream.set_enabled(false).expect("ours");
            let (mut begun, mut ended) = (0, 0);
            for event in stream.finish() {
                match event.kind {
                    EventKind::FaultBegin { address, .. } => begun += u64::from(own.contains(&address)),
                    EventKind::FaultEnd { address, .. } => ended += u64::from(own.contains(&address)),
                    _ => {}
                }
            }
            let counts = stream.counts().expect("counts");
            assert_eq!(counts.lost, 0, "{counts:?}");
            assert!(begun > 0 && ended == begun, "{begun} begun, {ended} ended");
        }
    }
}

#[test]
fn a_running_process_is_seen_with_the_threads_it_starts_and_where_they_fault() {
    let _process = PROCESS.lock().anyway();
    let probe = Probe { switches: true, ..Probe::default() };
    let Some(mut stream) = attach(&probe) else { return };
    let mut spaces = AddressSpaces::default();
    spaces.seed(process::id()).expect("our own");
    thread::spawn(|| {
        let mut memory = vec![0u8; 8 << 20];
        memory.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
        std::hint::black_box(&memory);
    })
    .join()
    .expect("a thread");
    stream.set_enabled(false).expect("ours");
    let events: Vec<Event> = stream.finish().collect();
    assert!(events.is_sorted_by_key(|event| event.time_ns));
    let mut resolved = 0;
    for event in &events {
        spaces.apply(event);
        if let EventKind::FaultEnd { address, .. } = event.kind {
            assert_eq!(event.pid, process::id());
            resolved += u64::from(spaces.resolve(event.pid, address).is_some());
        }
    }
    let counts = stream.counts().expect("counts");
    let count =
        |wanted: fn(&EventKind) -> bool| events.iter().filter(|event| wanted(&event.kind)).count() as u64;
    let ends = count(|kind| matches!(kind, EventKind::FaultEnd { .. }));
    assert!(ends > 0 && ends <= counts.minor + counts.major && counts.lost == 0, "{ends}, {counts:?}");
    assert!(resolved * 10 >= ends * 9, "{resolved} of {ends} resolved");
    assert!(count(|kind| matches!(kind, EventKind::Fork { .. })) >= 1);
    assert!(count(|kind| matches!(kind, EventKind::Switch { .. })) >= 1);
}

/// Attaches to this process while it starts threads, each of which then does `work`. Returns what they returned, too.
fn attach_while_threads_start<T: Send>(
    probe: &Probe,
    work: impl Fn() -> T + Sync,
) -> Option<(Stream, Vec<T>)> {
    const THREADS_MAX: usize = 600;
    let (attached, started) = (AtomicBool::new(false), AtomicUsize::new(0));
    let work = || {
        started.fetch_add(1, Ordering::Release);
        while !attached.load(Ordering::Acquire) {
            thread::sleep(Duration::from_millis(1));
        }
        work()
    };
    let (stream, done) = thread::scope(|scope| {
        let start_threads = || {
            let mut threads = Vec::new();
            while threads.len() < THREADS_MAX && !attached.load(Ordering::Acquire) {
                threads.push(scope.spawn(work));
                thread::sleep(Duration::from_micros(100));
            }
            threads
        };
        let starter = scope.spawn(start_threads);
        // Some are there.
        while started.load(Ordering::Acquire) < 20 {
            thread::sleep(Duration::from_millis(1));
        }
        let stream = attach(probe);
        attached.store(true, Ordering::Release);
        let threads = starter.join().expect("a thread").into_iter();
        (stream, threads.map(|thread| thread.join().expect("a thread")).collect())
    });
    let stream = stream?;
    stream.set_enabled(false).expect("ours");
    Some((stream, done))
}

fn own_tid() -> u32 {
    gettid().as_raw_nonzero().get() as u32
}

/// Such a thread may inherit the events of the one that started it and get its own.
#[test]
fn threads_started_while_their_process_is_attached_to_are_seen_once() {
    let _process = PROCESS.lock().anyway();
    let file = fs::File::open(std::env::current_exe().expect("a test")).expect("its file");
    // Maps a page of its own and touches it.
    let touch = || {
        let mapping = FileMapping::new(file.as_fd(), PageRange::new(PageIndex(0), PageIndex(1)));
        let mapping = mapping.expect("mapped");
        std::hint::black_box(mapping.byte(0));
        (own_tid(), mapping.address())
    };
    let Some((mut stream, touched)) = attach_while_threads_start(&Probe::default(), touch) else { return };
    let mut ends = HashMap::new();
    for event in stream.finish() {
        if let EventKind::FaultEnd { address, .. } = event.kind {
            *ends.entry((event.tid, address)).or_insert(0) += 1;
        }
    }
    let counts: Vec<i32> = touched.iter().map(|place| ends.get(place).copied().unwrap_or(0)).collect();
    assert!(counts.iter().all(|&count| count == 1), "{counts:?}");
}

/// The samples of a tracepoint have a time each, and one page may be read again and again.
#[test]
fn what_such_threads_read_is_seen_once_and_each_time() {
    const READS: usize = 3;
    let _process = PROCESS.lock().anyway();
    if !has(Need::Root) {
        return;
    }
    let mut file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a file");
    std::io::Write::write_all(&mut file, &[1; 4096]).expect("written");
    let inode = fs::metadata(file.path()).expect("there").st_ino();
    let read = || {
        (0..READS).for_each(|_| file.as_file().read_exact_at(&mut [0], 0).expect("read"));
        own_tid()
    };
    let probe = Probe { page_cache: PageCacheEvents::All, ..Probe::default() };
    let Some((mut stream, readers)) = attach_while_threads_start(&probe, read) else { return };
    let mut reads = HashMap::new();
    for event in stream.finish() {
        if let EventKind::PagesRead { file: (_, found), .. } = event.kind
            && found == inode
        {
            *reads.entry(event.tid).or_insert(0) += 1;
        }
    }
    let counts: Vec<usize> = readers.iter().map(|tid| reads.get(tid).copied().unwrap_or(0)).collect();
    assert!(!counts.is_empty() && counts.iter().all(|&count| count == READS), "{counts:?}");
}

#[test]
fn a_process_that_is_gone_is_named() {
    let _process = PROCESS.lock().anyway();
    if !may_record() {
        return;
    }
    let mut child = process::Command::new("true").spawn().expect("started");
    let pid = child.id();
    child.wait().expect("an end");
    match Stream::attach(pid, &Probe::default()) {
        Err(PerfError::NoProcess { pid: named }) => assert_eq!(named, pid),
        other => panic!("{other:?}"),
    }
}

/// As a child whose parent has not waited for it yet, or has meanwhile.
#[test]
fn processes_that_have_ended_are_left_out_of_several() {
    let _process = PROCESS.lock().anyway();
    if !may_record() {
        return;
    }
    let mut child = process::Command::new("true").spawn().expect("started");
    let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(Pid::from_child(&child)), ended).expect("an end");
    let both = Target::Processes(vec![process::id(), child.id()]);
    for what in ["not waited for", "gone"] {
        let mut stream = Stream::attach_to(&both, &Probe::default()).expect(what);
        thread::spawn(|| {}).join().expect("a thread");
        assert!(stream.finish().any(|event| event.pid == process::id()), "{what}");
        child.wait().expect("an end");
    }
    let first = Target::Processes(vec![child.id(), process::id()]);
    assert!(matches!(Stream::attach_to(&first, &Probe::default()), Err(PerfError::NoProcess { .. })));
}
