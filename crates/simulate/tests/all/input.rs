//! Traces as touches.

use std::path::PathBuf;

use prepage_core::{
    Fault, FaultClass, Object, ObjectId, PageIndex, PageRange, Permissions, Thread, ThreadIndex, Trace,
};
use prepage_simulate::pages::MOST_PAGES;
use prepage_simulate::{Contender, EntryIndex, Input, InputError, Layout, Options, Touch, compare};
use prepage_trace::parquet::write_trace;

/// Faults on one file: page, class, cost, thread.
fn trace(faults: &[(u64, FaultClass, u64, u32)]) -> Trace {
    let mut trace = Trace::default();
    trace.objects.push(Object { size_bytes: Some(1 << 20), ..Object::new("/lib/a.so", None) });
    let threads = faults.iter().map(|fault| fault.3).max().map_or(0, |last| last + 1);
    trace.threads = (0..threads).map(|tid| Thread { pid: 7, tid: 7 + tid, comm: "t".into() }).collect();
    let mut start_ns = 0;
    for &(page, class, cost_ns, thread) in faults {
        start_ns += 1000;
        let fault = Fault {
            cost_ns: Some(cost_ns),
            object: Some(ObjectId(0)),
            page: Some(PageIndex(page)),
            permissions: Permissions::READ,
            ..Fault::new(start_ns, ThreadIndex(thread), 0x1000 + page * 4096, class)
        };
        trace.faults.push(fault);
        start_ns += cost_ns;
    }
    trace
}

fn written(dir: &tempfile::TempDir, trace: &Trace) -> PathBuf {
    let path = dir.path().join("t.parquet");
    write_trace(&path, trace).expect("written");
    path
}

/// The replay adds waits for reads under way itself: they must not be in what a fault costs besides.
#[test]
fn the_cost_of_a_fault_is_not_that_of_waiting() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut faults = vec![(0, FaultClass::Disk, 90_000, 0)];
    faults.extend((1..60).map(|page| {
        let waits = page % 4 == 0;
        (page, FaultClass::Cached, if waits { 80_000 } else { 800 }, 0)
    }));
    let input = Input::read_trace(&written(&dir, &trace(&faults))).expect("read");
    let cost_ns = input.soft_fault_ns.expect("cached faults");
    assert!((750..850).contains(&cost_ns), "{cost_ns}");
    assert_eq!(input.threads, 1);
}

#[test]
fn a_thread_that_gets_another_name_is_one_thread() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut trace = trace(&[(0, FaultClass::Cached, 500, 0), (1, FaultClass::Cached, 500, 1)]);
    trace.threads = ["sh", "true"].map(|comm| Thread { pid: 7, tid: 7, comm: comm.into() }).to_vec();
    assert_eq!(Input::read_trace(&written(&dir, &trace)).expect("read").threads, 1);
}

#[test]
fn touches_come_from_the_file_as_often_as_they_are_replayed() {
    let dir = tempfile::tempdir().expect("a directory");
    let faults: Vec<_> =
        (0..200).map(|at| (at * 7 % 256, FaultClass::Cached, 500, (at % 3) as u32)).collect();
    let path = written(&dir, &trace(&faults));
    let input = Input::read_trace(&path).expect("read");
    assert_eq!((input.count, input.threads, input.layout.entries.len()), (200, 3, 1));
    for _ in 0..2 {
        let mut touches: Vec<Touch> = Vec::new();
        input.each_part(|part| touches.extend_from_slice(&part)).expect("read again");
        assert_eq!(touches.len(), 200);
        assert!(touches.iter().zip(&faults).all(|(touch, fault)| touch.page == fault.0));
        assert!(touches[1..].iter().all(|touch| touch.think_ns == 1000 && touch.entry == EntryIndex(0)));
    }
}

#[test]
fn advice_reaches_the_entries_of_the_file_it_names() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = written(&dir, &trace(&[(1, FaultClass::Disk, 500, 0)]));
    let mut input = Input::read_trace(&path).expect("read");
    let policy = "sequential:31".parse().expect("a policy");
    for (name, entries) in [("so", 0), ("a.so", 1), ("/lib/a.so", 1), ("b.so", 0), ("", 0)] {
        assert_eq!(input.layout.advise(name, &policy), entries, "{name:?}");
    }
    assert_eq!(input.layout.entries[0].advised.as_ref(), Some(&policy));
}

#[test]
fn a_trace_without_touches_of_files_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = written(&dir, &trace(&[]));
    assert!(matches!(Input::read_trace(&path), Err(InputError::Empty(..))));
}

/// It would take tens of gigabytes; other policies read as little of a far page's object as of any other.
#[test]
fn more_pages_in_memory_at_once_than_can_be_simulated_are_an_error() {
    let far = MOST_PAGES - 1;
    let input =
        || Input::from_touches(Layout::of_one("far", MOST_PAGES), vec![Touch::new(EntryIndex(0), far)]);
    let outcome = |input: &Input, policy: &str| {
        let contenders = [Contender::new(policy).expect("a policy")];
        compare(input, &contenders, &Options::default()).map(|mut simulated| simulated.remove(0).outcome)
    };
    assert_eq!(outcome(&input(), "aligned:16").expect("simulated").read, 16);
    let is_too_many = |input: &Input, policy: &str| {
        let error = outcome(input, policy).unwrap_err();
        assert!(
            matches!(&error, InputError::TooMany { object, pages: MOST_PAGES } if object == "far"),
            "{error}"
        );
    };
    is_too_many(&input(), "slurp");
    let mut advised = input();
    assert_eq!(advised.layout.advise("far", &"slurp".parse().expect("a policy")), 1);
    is_too_many(&advised, "none");
    let mut resident = input();
    resident.layout.resident.push((0, PageRange::new(PageIndex(0), PageIndex(u64::MAX))));
    is_too_many(&resident, "none");
    // An entry may show little of a large object.
    let mut entry = input();
    entry.layout.entries[0].offset = MOST_PAGES - 100;
    let touches = vec![Touch::new(EntryIndex(0), 99)];
    let entry = Input::from_touches(entry.layout, touches);
    assert_eq!(outcome(&entry, "slurp").expect("simulated").read, 100);
}
