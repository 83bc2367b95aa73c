//! Traces as touches.

use std::path::PathBuf;

use prepage_core::{
    Fault, FaultClass, Object, ObjectId, PageIndex, PageRange, Permissions, Thread, ThreadIndex, Trace,
    TraceFacts,
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

fn think_ns(input: &Input) -> Vec<u32> {
    let mut touches = Vec::new();
    input.each_part(|part| touches.extend(part.iter().map(|touch| touch.think_ns))).expect("read again");
    touches
}

#[test]
fn what_observing_takes_is_no_time_of_the_program() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut trace = trace(&[0, 1, 2].map(|page| (page, FaultClass::Cached, 500, 0)));
    trace.facts.probe_total_ns = Some(300);
    // Of memory of no file: its cost is the program's own, and what observing added is not.
    (trace.faults[1].object, trace.faults[1].page) = (None, None);
    let input = Input::read_trace(&written(&dir, &trace)).expect("read");
    // 1000 before each fault, the anonymous one and its 500, less 300 for each of two faults before.
    assert_eq!(think_ns(&input), [1000, 1000 + 500 + 1000 - 2 * 300]);
}

#[test]
fn a_command_runs_on_after_its_last_touch() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut trace = trace(&[0, 1].map(|page| (page, FaultClass::Disk, 500, 0)));
    trace.facts.duration_ns = 10_000_000_000;
    let time_ns = |trace: &Trace| {
        let input = Input::read_trace(&written(&dir, trace)).expect("read");
        let device = Some("flash".parse().expect("a device"));
        let contender = Contender { device, ..Contender::new("none").expect("a policy") };
        compare(&input, &[contender], &Options::default()).expect("simulated").remove(0).outcome.time_ns
    };
    assert!(time_ns(&trace) >= 9_999_000_000, "{}", time_ns(&trace));
    // How long others ran on is not known.
    for facts in [
        TraceFacts { cut_short: true, ..trace.facts.clone() },
        TraceFacts { pids: vec![7], ..trace.facts.clone() },
        TraceFacts { system_wide: true, ..trace.facts.clone() },
    ] {
        let trace = Trace { facts, ..trace.clone() };
        assert!(time_ns(&trace) < 10_000_000, "{}", time_ns(&trace));
    }
}

#[test]
fn faults_on_no_file_are_counted_as_left_out() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut trace = trace(&[0, 1, 2].map(|page| (page, FaultClass::ZeroFill, 500, 0)));
    trace.objects.push(Object::new("[heap]", None));
    (trace.faults[1].object, trace.faults[1].page) = (Some(ObjectId(1)), None);
    (trace.faults[2].object, trace.faults[2].page) = (None, None);
    let input = Input::read_trace(&written(&dir, &trace)).expect("read");
    assert_eq!((input.count, input.others), (1, 2));
}

#[test]
fn touches_without_a_cost_are_counted() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut trace = trace(&[0, 1].map(|page| (page, FaultClass::Disk, 1_000_000, 0)));
    trace.faults[1].cost_ns = None;
    assert_eq!(Input::read_trace(&written(&dir, &trace)).expect("read").without_cost, 1);
}

/// A process that executes another program in its own place maps everything anew.
#[test]
fn an_exec_leaves_nothing_mapped() {
    let dir = tempfile::tempdir().expect("a directory");
    let soft = |execs: u64, main: bool, facts: TraceFacts| {
        let mut trace = trace(&[(1, FaultClass::Disk, 500, 0), (1, FaultClass::Cached, 500, 1)]);
        let tid = if main { 7 } else { 8 };
        trace.threads = ["a", "b"].map(|comm| Thread { pid: 7, tid, comm: comm.into() }).to_vec();
        trace.facts = TraceFacts { execs, ..facts };
        let input = Input::read_trace(&written(&dir, &trace)).expect("read");
        let contenders = [Contender::new("none").expect("a policy")];
        compare(&input, &contenders, &Options::default()).expect("simulated").remove(0).outcome.soft
    };
    let running = || TraceFacts { pids: vec![7], ..TraceFacts::default() };
    assert_eq!(soft(2, true, TraceFacts::default()), 1);
    assert_eq!(soft(1, true, running()), 1);
    // The command's own exec, none at all, and another thread: they only got another name.
    assert_eq!(soft(1, true, TraceFacts::default()), 0);
    assert_eq!(soft(0, true, running()), 0);
    assert_eq!(soft(2, false, TraceFacts::default()), 0);
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
fn advice_to_predict_uses_what_was_learned() {
    let mut input = Input::from_touches(
        Layout::of_one("a", 640),
        vec![0, 100, 200].into_iter().map(|page| Touch::new(EntryIndex(0), page)).collect(),
    );
    let learned = prepage_simulate::input::learn(std::slice::from_ref(&input), |_| true).expect("learned");
    assert_eq!(input.layout.advise("a", &"predicted".parse().expect("a policy")), 1);
    let contenders = [Contender::new("none").expect("a policy")];
    let options = Options { profile: learned, ..Options::default() };
    let outcome = compare(&input, &contenders, &options).expect("simulated").remove(0).outcome;
    assert_eq!((outcome.hard, outcome.read, outcome.never), (1, 3, 0));
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
