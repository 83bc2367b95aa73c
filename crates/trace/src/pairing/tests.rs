use super::*;
use prepage_sys::maps::Mapped;

/// Feeds events (time, thread, what) of process 1.
fn feed(pairing: &mut Pairing, events: Vec<(u64, u32, EventKind)>) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (time_ns, tid, kind) in events {
        pairing.feed(&Event { time_ns, pid: 1, tid, kind, is_time_borrowed: false }, &mut faults);
    }
    faults
}

fn begin(address: u64) -> EventKind {
    EventKind::FaultBegin { address, ip: 9, calls: None }
}

fn end(address: u64) -> EventKind {
    EventKind::FaultEnd { address, ip: 9, disk: false }
}

fn map(start: u64, end: u64, file: bool, protection: u32, flags: u32) -> EventKind {
    let (inode, path) = if file { (Some((1, 2)), "/f") } else { (None, "[anon]") };
    let path = path.into();
    let permissions = Permissions::of_mapping(protection, flags);
    EventKind::Map(Box::new(Mapped { start, end, offset_bytes: 0x3000, inode, permissions, path }))
}

#[test]
fn an_end_completes_the_beginning_of_its_thread() {
    let mut pairing = Pairing::new(100);
    let faults = feed(
        &mut pairing,
        vec![
            (110, 1, begin(0x1000)),
            (115, 2, begin(0x1000)),
            (120, 2, end(0x1000)),
            (150, 1, EventKind::FaultEnd { address: 0x1000, ip: 9, disk: true }),
        ],
    );
    let seen: Vec<_> = faults.iter().map(|fault| (fault.start_ns, fault.cost_ns, fault.class)).collect();
    assert_eq!(seen, [(15, Some(5), FaultClass::ZeroFill), (10, Some(40), FaultClass::Disk)]);
    assert_eq!(pairing.tables().threads[faults[1].thread.0 as usize].tid, 1);
}

/// The records of one's end and of the other's start were lost.
#[test]
fn a_thread_id_that_another_process_has_now_is_that_process() {
    let mut pairing = Pairing::new(0);
    feed(&mut pairing, vec![(1, 7, end(0x1000)), (2, 7, EventKind::Lost { records: 2 })]);
    let mut faults = Vec::new();
    pairing
        .feed(&Event { time_ns: 3, pid: 2, tid: 7, kind: end(0x1000), is_time_borrowed: false }, &mut faults);
    let Tables { threads, .. } = pairing.tables();
    assert_eq!(threads[faults[0].thread.0 as usize].pid, 2);
    assert_eq!(faults[0].class, FaultClass::ZeroFill, "the other process has touched nothing");
}

/// As of a program that catches SIGSEGV and jumps out of the handler: what it does in between is no part of a fault.
#[test]
fn a_fault_begun_again_is_another() {
    let mut events: Vec<_> = (1..=1000).map(|time_ns| (time_ns, 1, begin(0x1000))).collect();
    events.push((1009, 1, end(0x1000)));
    let mut faults = feed(&mut Pairing::new(0), events);
    let last = faults.pop().expect("a fault");
    assert_eq!((last.start_ns, last.cost_ns, last.class), (1000, Some(9), FaultClass::ZeroFill));
    assert_eq!(faults.len(), 999);
    assert!(faults.iter().all(|fault| (fault.class, fault.cost_ns) == (FaultClass::Failed, None)));
}

/// The kernel waits for the read to end, and then for the program to handle the signal.
#[test]
fn a_wait_for_a_files_page_that_a_signal_interrupts_is_one_fault() {
    let file = (0, 1, map(0x1000, 0x3000, true, 1, 2));
    let anonymous = (0, 1, map(0x1000, 0x3000, false, 3, 2));
    // Made accessible by the handler of the signal that it ended in.
    let protect = (4, 1, map(0x1000, 0x2000, true, 1, 2));
    let elsewhere = (4, 1, map(0x2000, 0x3000, true, 1, 2));
    let one = vec![(1, Some(8))];
    let two = vec![(1, None), (5, Some(4))];
    for (before, between, expected) in [
        (file.clone(), None, &one),
        (file.clone(), Some(elsewhere), &one),
        (file, Some(protect), &two),
        (anonymous, None, &two),
    ] {
        let begins = [Some((1, 1, begin(0x1000))), between.clone(), Some((5, 1, begin(0x1000)))];
        let events = std::iter::once(before).chain(begins.into_iter().flatten()).chain([(9, 1, end(0x1000))]);
        let faults = feed(&mut Pairing::new(0), events.collect());
        let seen: Vec<_> = faults.iter().map(|fault| (fault.start_ns, fault.cost_ns)).collect();
        assert_eq!(seen, *expected, "{between:?}");
    }
}

#[test]
fn where_ends_are_not_recorded_each_beginning_is_a_fault() {
    let mut pairing = Pairing { ends: Ends::Some, ..Pairing::new(0) };
    let mut events = vec![(0, 1, map(0x1000, 0x3000, true, 1, 2))];
    events.extend((1..4).map(|time_ns| (time_ns, 1, begin(0x1000))));
    let mut faults = feed(&mut pairing, events);
    pairing.finish(&mut faults);
    assert_eq!(faults.len(), 3);
}

/// As beyond the end of a file, by a program that catches SIGBUS.
#[test]
fn what_begins_at_a_files_page_and_never_ends_is_counted_one_by_one() {
    let mut events = vec![(0, 1, map(0x1000, 0x3000, true, 1, 2))];
    events.extend((1..=1000).map(|time_ns| (time_ns, 1, begin(0x1000))));
    events.push((2000, 1, begin(0x2000)));
    events.push((2001, 1, end(0x2000)));
    let mut faults = feed(&mut Pairing::new(0), events);
    assert_eq!(faults.pop().map(|fault| fault.cost_ns), Some(Some(1)));
    assert_eq!(faults.len(), 1000);
    assert!(faults.iter().all(|fault| fault.class == FaultClass::Failed));
}

/// A thread that moved to another processor has there the time of that one's last record.
#[test]
fn beginnings_and_ends_out_of_order_by_anothers_clock_make_no_fault_fail() {
    let (ours, others) = (false, true);
    let cases = [
        // The beginning of the later fault comes before that of the earlier one, or before its end.
        [
            (3, begin(0x2000), others),
            (5, begin(0x1000), ours),
            (6, end(0x1000), ours),
            (9, end(0x2000), ours),
        ],
        [
            (2, begin(0x1000), ours),
            (3, begin(0x2000), others),
            (4, end(0x1000), ours),
            (9, end(0x2000), ours),
        ],
        // The end comes before its beginning.
        [
            (3, end(0x1000), others),
            (5, begin(0x1000), ours),
            (8, begin(0x2000), ours),
            (9, end(0x2000), ours),
        ],
        [
            (1, begin(0x2000), ours),
            (2, end(0x2000), ours),
            (3, end(0x1000), others),
            (5, begin(0x1000), ours),
        ],
    ];
    for events in cases {
        let (mut pairing, mut faults) = (Pairing::new(0), Vec::new());
        for (time_ns, kind, is_time_borrowed) in events.clone() {
            pairing.feed(&Event { time_ns, pid: 1, tid: 1, kind, is_time_borrowed }, &mut faults);
        }
        pairing.finish(&mut faults);
        assert_eq!(faults.len(), 2, "{events:?}: {faults:?}");
        assert!(faults.iter().all(|fault| fault.class == FaultClass::ZeroFill), "{events:?}: {faults:?}");
    }
}

#[test]
fn times_of_another_observers_clock_give_no_cost() {
    for borrowed in 0..2 {
        let mut faults = Vec::new();
        let mut pairing = Pairing::new(0);
        for (nth, kind) in [begin(0x1000), end(0x1000)].into_iter().enumerate() {
            let is_time_borrowed = nth == borrowed;
            let event = Event { time_ns: nth as u64, pid: 1, tid: 1, kind, is_time_borrowed };
            pairing.feed(&event, &mut faults);
        }
        let [fault] = faults.try_into().expect("one fault");
        assert_eq!((fault.class, fault.cost_ns), (FaultClass::ZeroFill, None));
    }
}

#[test]
fn a_beginning_without_end_failed() {
    let mut pairing = Pairing::new(0);
    let mut faults =
        feed(&mut pairing, vec![(1, 1, begin(0x1000)), (2, 1, begin(0x2000)), (3, 1, EventKind::Exit)]);
    pairing.finish(&mut faults);
    let seen: Vec<_> = faults.iter().map(|fault| (fault.address, fault.class, fault.cost_ns)).collect();
    let failed = |address| (address, FaultClass::Failed, None);
    assert_eq!(seen, [failed(0x1000), failed(0x2000)]);
}

#[test]
fn a_fault_that_goes_on_at_the_end_is_unseen() {
    let mut pairing = Pairing::new(0);
    let mut faults = feed(&mut pairing, vec![(1, 1, begin(0x1000))]);
    pairing.finish(&mut faults);
    assert_eq!((faults.len(), faults[0].class, faults[0].cost_ns), (1, FaultClass::Unseen, None));
}

#[test]
fn after_a_loss_an_end_is_unseen_and_a_cost_unknown() {
    let lost = || EventKind::Lost { records: 1 };
    let mut pairing = Pairing::new(0);
    let disk_end = EventKind::FaultEnd { address: 0x3000, ip: 9, disk: true };
    let mut faults = feed(
        &mut pairing,
        vec![
            (1, 1, begin(0x1000)),
            (1, 2, begin(0x3000)),
            (1, 3, begin(0x4000)),
            (1, 4, begin(0x5000)),
            (2, 1, lost()),
            // The end of the first was lost: the thread is in another fault already, or in the same one again.
            (3, 1, begin(0x2000)),
            (4, 1, end(0x2000)),
            (5, 4, begin(0x5000)),
            (6, 4, end(0x5000)),
            // It may have ended and begun again unseen: two seconds are not its cost.
            (2_000_000_000, 2, disk_end),
        ],
    );
    pairing.finish(&mut faults);
    let seen: Vec<_> = faults.iter().map(|fault| (fault.address, fault.class, fault.cost_ns)).collect();
    use FaultClass::{Disk, Unseen, ZeroFill};
    assert_eq!(
        seen,
        [
            (0x1000, Unseen, None),
            (0x2000, ZeroFill, Some(1)),
            (0x5000, Unseen, None),
            (0x5000, ZeroFill, Some(1)),
            (0x3000, Disk, None),
            (0x4000, Unseen, None),
        ]
    );
}

#[test]
fn who_jumps_out_of_a_signal_handler_begins_another_fault() {
    let other_place = EventKind::FaultBegin { address: 0x1000, ip: 77, calls: None };
    let other_end = EventKind::FaultEnd { address: 0x1000, ip: 77, disk: false };
    let faults = feed(
        &mut Pairing::new(0),
        vec![
            (1, 1, begin(0x1000)),
            (20, 1, other_place),
            (30, 1, other_end),
            (40, 1, begin(0x1000)),
            (50, 1, begin(0x1000)),
            (59, 1, end(0x1000)),
        ],
    );
    let seen: Vec<_> = faults.iter().map(|fault| (fault.start_ns, fault.class, fault.cost_ns)).collect();
    use FaultClass::{CopyOnWrite, Failed, ZeroFill};
    assert_eq!(
        seen,
        [(1, Failed, None), (20, ZeroFill, Some(10)), (40, Failed, None), (50, CopyOnWrite, Some(9))]
    );
}

#[test]
fn the_retry_after_a_read_is_short() {
    let disk = |address| EventKind::FaultEnd { address, ip: 9, disk: true };
    let mut pairing = Pairing::new(0);
    let faults = feed(
        &mut pairing,
        vec![
            (1, 1, map(0x1_0000, 0x2_0000, true, 1, 2)),
            (2, 1, disk(0x1_1000)),
            (3, 2, end(0x1_1000)),
            (4, 1, end(0x1_1008)),
            (5, 1, end(0x1_1000)),
            (6, 1, disk(0x1_2000)),
            (7, 1, end(0x1_3000)),
            (8, 1, end(0x1_2000)),
        ],
    );
    let classes: Vec<_> = faults.iter().map(|fault| fault.class).collect();
    use FaultClass::{Cached, Disk, Short};
    assert_eq!(classes, [Disk, Cached, Short, Cached, Disk, Cached, Cached]);
}

#[test]
fn an_end_without_beginning_has_no_cost() {
    let faults = feed(&mut Pairing::new(0), vec![(7, 1, end(0x1000))]);
    assert_eq!((faults[0].start_ns, faults[0].cost_ns), (7, None));
}

#[test]
fn classes_follow_the_mapping() {
    let (read, write, shared, private) = (1, 3, 1, 2);
    let mut pairing = Pairing::new(0);
    let faults = feed(
        &mut pairing,
        vec![
            (1, 1, map(0x1_0000, 0x2_0000, true, read, private)),
            (1, 1, map(0x2_0000, 0x3_0000, true, write, private)),
            (1, 1, map(0x3_0000, 0x4_0000, true, write, shared)),
            (1, 1, map(0x4_0000, 0x5_0000, false, write, private)),
            (2, 1, end(0x1_1000)),
            (3, 1, end(0x2_1000)),
            (4, 1, end(0x3_1000)),
            (5, 1, end(0x4_1000)),
            // Written to, what was read.
            (6, 1, end(0x4_1008)),
            // It was given back (MADV_DONTNEED).
            (7, 1, end(0x4_1008)),
            (8, 1, end(0x4_1000)),
        ],
    );
    let classes: Vec<_> = faults.iter().map(|fault| fault.class).collect();
    use FaultClass::{Cached, CopyOnWrite, ZeroFill};
    assert_eq!(classes, [Cached, CopyOnWrite, Cached, ZeroFill, CopyOnWrite, ZeroFill, ZeroFill]);
    let page = faults[0].page.expect("a file's page");
    assert_eq!(page.offset_bytes(), 0x4000);
}

#[test]
fn private_memory_that_the_kernel_calls_a_file_is_new_when_it_is_first_touched() {
    for path in ["/anon_hugepage (deleted)", "/dev/zero"] {
        let mapped = Mapped {
            start: 0x20_0000,
            end: 0x40_0000,
            offset_bytes: 0,
            inode: Some((14, 5)),
            permissions: Permissions::from_text("rw-p").expect("four letters"),
            path: path.into(),
        };
        let map = EventKind::Map(Box::new(mapped));
        let faults =
            feed(&mut Pairing::new(0), vec![(1, 1, map), (2, 1, end(0x20_0000)), (3, 1, end(0x20_0000))]);
        let classes: Vec<_> = faults.iter().map(|fault| fault.class).collect();
        assert_eq!(classes, [FaultClass::ZeroFill, FaultClass::CopyOnWrite], "{path}");
    }
}

#[test]
fn after_a_fork_both_copy_what_was_touched_before_it_once() {
    let mut pairing = Pairing::new(0);
    let mut faults = feed(&mut pairing, vec![(1, 1, map(0x1000, 0x9000, false, 3, 2)), (2, 1, end(0x1000))]);
    let fork = EventKind::Fork { parent_pid: 1, parent_tid: 1 };
    pairing.feed(&Event { time_ns: 3, pid: 8, tid: 8, kind: fork, is_time_borrowed: false }, &mut faults);
    let touches = [(8, 0x1000), (8, 0x2000), (8, 0x1000), (1, 0x1000), (1, 0x2000), (1, 0x1000)];
    for (time_ns, (pid, address)) in (4..).zip(touches) {
        pairing.feed(
            &Event { time_ns, pid, tid: pid, kind: end(address), is_time_borrowed: false },
            &mut faults,
        );
    }
    let classes: Vec<_> = faults.iter().map(|fault| fault.class).collect();
    use FaultClass::{CopyOnWrite, ZeroFill};
    assert_eq!(classes, [ZeroFill, CopyOnWrite, ZeroFill, ZeroFill, CopyOnWrite, ZeroFill, ZeroFill]);
}

/// Of a child whose fork took longer than its parent was attached to nothing is reported but the fork.
#[test]
fn a_child_that_faults_unseen_is_told_by_its_silence() {
    let (mut pairing, mut faults) = (Pairing::new(0), Vec::new());
    // This process has faulted, as /proc says; there is none of the other number.
    let (here, nobody) = (std::process::id(), u32::MAX - 1);
    let mut feed = |pairing: &mut Pairing, pid, kind| {
        pairing.feed(&Event { time_ns: 1, pid, tid: pid, kind, is_time_borrowed: false }, &mut faults);
    };
    for pid in [here, nobody] {
        feed(&mut pairing, pid, EventKind::Fork { parent_pid: 1, parent_tid: 1 });
    }
    let silent = pairing.silent_children();
    assert_eq!((silent.as_slice(), pairing.still_silent(&silent)), (&[here][..], 1));
    feed(&mut pairing, here, end(0x1000));
    assert_eq!((pairing.still_silent(&silent), pairing.silent_children()), (0, vec![]));
    // A program whose faults are hidden is reported otherwise.
    for kind in [EventKind::Name { name: "su".into(), exec: true }, map(0x1000, 0x2000, true, 1, 2)] {
        feed(&mut pairing, here, EventKind::Fork { parent_pid: 1, parent_tid: 1 });
        feed(&mut pairing, here, kind);
        assert!(pairing.silent_children().is_empty());
    }
}

#[test]
fn what_was_read_back_from_swap_may_be_copied() {
    let disk = |address| EventKind::FaultEnd { address, ip: 8, disk: true };
    let events = vec![
        (1, 1, map(0x1000, 0x9000, false, 3, 2)),
        (2, 1, end(0x1000)),
        (3, 1, end(0x1000)),
        (4, 1, disk(0x1000)),
        (5, 1, end(0x1000)),
        (6, 1, end(0x1000)),
    ];
    let classes: Vec<_> = feed(&mut Pairing::new(0), events).iter().map(|fault| fault.class).collect();
    use FaultClass::{CopyOnWrite, Disk, ZeroFill};
    assert_eq!(classes, [ZeroFill, CopyOnWrite, Disk, CopyOnWrite, ZeroFill]);
}

#[test]
fn a_thread_appears_once_for_each_name_it_faulted_under() {
    let name = |name: &str| EventKind::Name { name: name.into(), exec: false };
    let mut pairing = Pairing::new(0);
    feed(
        &mut pairing,
        vec![
            (1, 1, name("unused")),
            (2, 1, name("first")),
            (3, 1, end(0x1000)),
            (4, 1, name("second")),
            (5, 1, end(0x2000)),
            (6, 1, end(0x3000)),
        ],
    );
    let names: Vec<_> = pairing.tables().threads.iter().map(|thread| thread.comm.as_str()).collect();
    assert_eq!(names, ["first", "second"]);
}

/// What the kernel reported of its last moments is read in later rounds.
#[test]
fn a_process_that_is_gone_is_known_until_its_last_events_are_read() {
    // No process has this number.
    const GONE: u32 = u32::MAX - 1;
    let mut pairing = Pairing::new(0);
    pairing.look_at = 1;
    let mut faults = Vec::new();
    let mut feed = |pairing: &mut Pairing, time_ns, kind| {
        pairing.feed(&Event { time_ns, pid: GONE, tid: GONE, kind, is_time_borrowed: false }, &mut faults);
    };
    feed(&mut pairing, 1, EventKind::Name { name: "child".into(), exec: true });
    feed(&mut pairing, 2, map(0x1000, 0x9000, true, 1, 2));
    pairing.forget_gone_of_many();
    feed(&mut pairing, 3, end(0x1000));
    pairing.forget_gone_of_many();
    feed(&mut pairing, 4, end(0x2000));
    let Tables { threads, .. } = pairing.tables();
    assert_eq!(faults.len(), 2);
    for fault in &faults {
        assert_eq!((threads[fault.thread.0 as usize].comm.as_str(), fault.page.is_some()), ("child", true));
    }
    // The record of its end was lost.
    pairing.forget_gone_of_many();
    assert_eq!((pairing.running.len(), pairing.spaces.processes()), (0, 0));
}
