//! What the kernel reports twice.

use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;

use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_sys::mapping::WritableMapping;
use prepage_testing::{Doctor, Need, has, unless_refused};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::thread::gettid;

use super::*;
use crate::event::{Event, EventKind};

/// The rings are read between the two records of some faults.
#[test]
fn what_is_seen_twice_is_one_event_whenever_the_rings_are_read() {
    const PAGES: u64 = 20_000;
    let file = memfd_create("pages", MemfdFlags::CLOEXEC).expect("a file");
    ftruncate(&file, PAGES * PAGE_SIZE).expect("made long");
    let pages = PageRange::new(PageIndex(0), PageIndex(PAGES));
    let mapping = WritableMapping::new(file.as_fd(), pages).expect("mapped");
    let is_over = AtomicBool::new(false);
    let (tell, told) = channel();
    let (go, gone) = channel();
    thread::scope(|scope| {
        let (mapping, is_over) = (&mapping, &is_over);
        scope.spawn(move || {
            tell.send(gettid().as_raw_nonzero().get() as u32).expect("it waits");
            if gone.recv().is_ok() {
                (0..PAGES).for_each(|page| mapping.set_byte(page * PAGE_SIZE, 1));
            }
            is_over.store(true, Ordering::Release);
        });
        let toucher = told.recv().expect("a number");
        let opened = Stream::open(&Target::Processes(vec![std::process::id()]), &Probe::default(), false);
        let is_refused = |error: &PerfError| {
            matches!(error, PerfError::SwitchedOff { .. } | PerfError::Unavailable { .. })
        };
        let opened = unless_refused(opened, Need::Doctor(Doctor::Faults), is_refused);
        let Some((mut stream, opened)) = opened else { return drop(go) };
        stream.open_others(&opened, Observed::Thread(toucher), false).expect("opened again");
        go.send(()).expect("it waits");
        let (mut ends, mut places) = (0, HashSet::new());
        loop {
            let was_over = is_over.load(Ordering::Acquire);
            stream.collect();
            for event in stream.pending.drain(..).filter(|event| event.tid == toucher) {
                if let EventKind::FaultEnd { address, .. } = event.kind {
                    ends += 1;
                    places.insert((event.time_ns, address));
                }
            }
            if was_over {
                break;
            }
        }
        assert!(places.len() as u64 >= PAGES / 2, "{}", places.len());
        assert_eq!(ends, places.len());
    });
}

/// They would fill the rings, which nobody reads then as often as they happen.
#[test]
fn context_switches_of_the_machine_come_when_its_processes_were_looked_at() {
    if !has(Need::Root) {
        return;
    }
    let switches = |stream: &mut Stream| {
        assert!(Command::new("sleep").arg("0.02").status().expect("it runs").success());
        stream.collect();
        let is_switch = |event: &Event| matches!(event.kind, EventKind::Switch { .. });
        stream.pending.drain(..).filter(is_switch).count()
    };
    for faults in [FaultEvents::None, FaultEvents::Costs] {
        let probe = Probe { faults, switches: true, ..Probe::default() };
        let mut meanwhile = None;
        let attached = Stream::attach_to_system(&probe, |stream| meanwhile = Some(switches(stream)));
        let is_refused = |error: &PerfError| {
            matches!(error, PerfError::SwitchedOff { .. } | PerfError::Unavailable { .. })
        };
        let Some(mut stream) = unless_refused(attached, Need::Doctor(Doctor::Faults), is_refused) else {
            return;
        };
        let afterwards = switches(&mut stream);
        assert!(meanwhile == Some(0) && afterwards > 0, "{faults:?}: {meanwhile:?}, {afterwards}");
    }
}
