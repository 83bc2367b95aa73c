//! Faults that have another observer's time.

use std::collections::HashMap;
use std::ops::Range;

use crate::event::{Event, EventKind};

/// By how much the kernel's clock may seem to go back (Linux 6.18, kernel/time/timekeeping.c, `ktime_get_mono_fast_ns`).
const BACK_NS_MAX: u64 = 10_000;
/// How much older than the last round a record may be: its processor may be interrupted, or taken away by a host, between the record's time and its
/// place in the ring.
const DELAYED_NS_MAX: u64 = 1_000_000_000;
/// Once two of the last eight beginnings (or ends) of a process had another's time, none of its is believed for so long: where faults are rare, a
/// wrong time may look right. A single one may be of another that only samples.
const DOUBTED_NS: u64 = 10_000_000_000;
const WRONG_MIN: u32 = 2;
/// Processes with wrong times, beyond which those are forgotten that are not in doubt.
const DOUBTED_MAX: usize = 1 << 10;

/// A process id, and whether it is about the ends of its faults or their beginnings: the kernel's events of these are two, and another may
/// observe one of them alone.
type Side = (u32, bool);

/// Tells which samples of faults have the time of another observer's clock.
///
/// Since Linux 6.3 the kernel fills one sample for all that observe a fault (kernel/events/core.c, `do_perf_sw_event`): the event that was
/// opened last gives it its time, and perf(1) has a clock of its own. What is certain is the order of a ring's records, which is that in which they happened on its
/// processor, and that a record is not much older than what was complete before it and no newer than its reading.
#[derive(Debug, Default)]
pub(super) struct Clocks {
    doubts: HashMap<Side, Doubt>,
    /// Samples that were given the time of the record before.
    pub(super) borrowed: u64,
}

#[derive(Debug, Default)]
struct Doubt {
    /// The last eight, the latest in the lowest bit: which were wrong.
    wrong: u8,
    /// By CLOCK_MONOTONIC; 0 where there is none.
    until_ns: u64,
}

/// The last record of a ring whose time was believed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Latest {
    time_ns: u64,
    side: Option<Side>,
}

impl Clocks {
    /// Sees to it that `event` is no older than the events of its ring before it, of which `before` are the last. It happened within
    /// `bounds`.
    pub(super) fn settle(
        &mut self,
        event: &mut Event,
        latest: &mut Latest,
        before: &mut [Event],
        bounds: Range<u64>,
    ) {
        let side = side(event);
        let oldest_ns = if side.is_some() {
            latest.time_ns.max(bounds.start.saturating_sub(DELAYED_NS_MAX))
        } else {
            latest.time_ns
        };
        let is_early = event.time_ns.saturating_add(BACK_NS_MAX) < oldest_ns;
        let is_late = side.is_some() && event.time_ns > bounds.end.saturating_add(BACK_NS_MAX);
        let mut is_wrong = false;
        if is_early || is_late {
            // Of a beginning and an end that contradict each other, the beginning: it is what others mostly observe.
            let is_earlier_wrong = match (side, latest.side) {
                (None, _) => true,
                (Some((_, true)), Some((_, false))) => {
                    event.time_ns.saturating_add(BACK_NS_MAX) >= bounds.start
                }
                _ => false,
            };
            is_wrong = is_late || !is_earlier_wrong;
            if !is_wrong && latest.side != side {
                for earlier in before.iter_mut().rev().take_while(|earlier| earlier.time_ns > event.time_ns) {
                    let is_wrong = self::side(earlier) == latest.side;
                    self.borrowed += u64::from(is_wrong && !earlier.is_time_borrowed);
                    earlier.is_time_borrowed |= is_wrong;
                    earlier.time_ns = event.time_ns;
                }
                latest.time_ns = event.time_ns;
                latest.side.into_iter().for_each(|wrong| self.note_wrong(wrong, event.time_ns));
            }
        }
        let oldest_ns = latest.time_ns.max(bounds.start);
        event.is_time_borrowed = side.is_some_and(|side| self.is_doubted(side, is_wrong, oldest_ns));
        if event.is_time_borrowed {
            event.time_ns = oldest_ns;
        } else {
            event.time_ns = event.time_ns.max(latest.time_ns);
            // A loss is told of in front of the next record, on old kernels with a time from behind that one's: see below.
            if !matches!(event.kind, EventKind::Lost { .. }) {
                *latest = Latest { time_ns: event.time_ns, side };
            }
        }
        let is_loss = |earlier: &&mut Event| matches!(earlier.kind, EventKind::Lost { .. });
        for loss in before.iter_mut().rev().take_while(is_loss) {
            loss.time_ns = loss.time_ns.min(event.time_ns);
        }
    }

    /// Moves events of faults that stand before the start of their thread behind it: their time is certainly another's, or borrowed of an event that came
    /// before on another processor. A start that was delivered in an earlier round is older than all of `pending`.
    pub(super) fn keep_behind_forks(&mut self, pending: &mut [Event]) {
        if self.borrowed == 0 {
            return;
        }
        let forks = pending.iter().filter(|event| matches!(event.kind, EventKind::Fork { .. }));
        let forked: HashMap<(u32, u32), u64> =
            forks.map(|event| ((event.pid, event.tid), event.time_ns)).collect();
        if forked.is_empty() {
            return;
        }
        for event in pending.iter_mut().filter(|event| event.kind.is_of_fault()) {
            let forked_ns = forked.get(&(event.pid, event.tid));
            if let Some(&forked_ns) = forked_ns.filter(|&&forked_ns| event.time_ns <= forked_ns) {
                self.borrowed += u64::from(!event.is_time_borrowed);
                event.is_time_borrowed = true;
                event.time_ns = forked_ns + 1;
            }
        }
    }

    /// Whether a time of `side` is another's: as it `is_wrong`, or as too many before it were.
    fn is_doubted(&mut self, side: Side, is_wrong: bool, now_ns: u64) -> bool {
        if is_wrong {
            self.note_wrong(side, now_ns);
        } else if let Some(doubt) = self.doubts.get_mut(&side) {
            doubt.wrong <<= 1;
            return now_ns < doubt.until_ns;
        }
        is_wrong
    }

    fn note_wrong(&mut self, side: Side, now_ns: u64) {
        if self.doubts.len() >= DOUBTED_MAX {
            self.doubts.retain(|_, doubt| now_ns < doubt.until_ns);
        }
        let doubt = self.doubts.entry(side).or_default();
        doubt.wrong = doubt.wrong << 1 | 1;
        if doubt.wrong.count_ones() >= WRONG_MIN {
            doubt.until_ns = now_ns.saturating_add(DOUBTED_NS);
        }
    }
}

fn side(event: &Event) -> Option<Side> {
    event.kind.is_of_fault().then_some((event.pid, matches!(event.kind, EventKind::FaultEnd { .. })))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGIN: EventKind = EventKind::FaultBegin { address: 0x1000, ip: 9, calls: None };
    const END: EventKind = EventKind::FaultEnd { address: 0x1000, ip: 9, disk: false };
    const SECOND: u64 = 1_000_000_000;
    /// The last round began then.
    const START: u64 = 10 * SECOND;

    /// The times of the records of a ring, read at `read_ns` (nanoseconds, process, what), and whether they are another's.
    fn settled(clocks: &mut Clocks, read_ns: u64, records: &[(u64, u32, EventKind)]) -> Vec<(u64, bool)> {
        let mut latest = Latest::default();
        let mut events: Vec<Event> = Vec::new();
        for (time_ns, pid, kind) in records {
            let kind = kind.clone();
            let mut event = Event { time_ns: *time_ns, pid: *pid, tid: *pid, kind, is_time_borrowed: false };
            clocks.settle(&mut event, &mut latest, &mut events, START..read_ns);
            events.push(event);
        }
        assert!(events.is_sorted_by_key(|event| event.time_ns), "{events:?}");
        events.iter().map(|event| (event.time_ns - START, event.is_time_borrowed)).collect()
    }

    /// Three faults of 500 ns, 40 µs apart, whose beginnings, ends or both are `off` by so many nanoseconds.
    fn faults(off: [i64; 2]) -> Vec<(u64, u32, EventKind)> {
        let fault = |nth: u64| {
            let at = |ns: u64, off: i64| (START + 5_000_000 + nth * 40_000 + ns).wrapping_add_signed(off);
            [(at(0, off[0]), 1, BEGIN), (at(500, off[1]), 1, END)]
        };
        let exit = (START + 6_000_000, 1, EventKind::Exit);
        (0..3).flat_map(fault).chain([exit]).collect()
    }

    #[test]
    fn whoever_has_another_clock_is_found_and_the_order_of_the_ring_stays() {
        let all = |begins, ends| [begins, ends, begins, ends, begins, ends, false];
        for (off, borrowed) in [
            ([0, 0], all(false, false)),
            // perf's clock is ahead or behind, by little or by days.
            ([300_000, 0], all(true, false)),
            ([-300_000, 0], [false, false, true, false, true, false, false]),
            ([86_400_000_000_000, 0], all(true, false)),
            ([-2_000_000_000, 0], all(true, false)),
            ([0, 86_400_000_000_000], all(false, true)),
            ([0, -2_000_000_000], all(false, true)),
            ([86_400_000_000_000; 2], all(true, true)),
            ([-2_000_000_000; 2], all(true, true)),
        ] {
            let mut clocks = Clocks::default();
            let settled = settled(&mut clocks, START + 7_000_000, &faults(off));
            let is_borrowed: Vec<bool> = settled.iter().map(|&(_, is_borrowed)| is_borrowed).collect();
            assert_eq!(is_borrowed, borrowed, "{off:?}: {settled:?}");
            assert!(settled.iter().all(|&(ns, _)| ns <= 6_000_000), "{off:?}: {settled:?}");
        }
    }

    #[test]
    fn the_doubt_is_of_one_process_and_ends() {
        let mut clocks = Clocks::default();
        settled(&mut clocks, START + 7_000_000, &faults([86_400_000_000_000, 0]));
        let later = |seconds: u64, pid, kind| (START + SECOND * seconds, pid, kind);
        let records = [
            later(1, 2, BEGIN),
            later(2, 1, BEGIN),
            later(2, 1, END),
            later(29, 2, EventKind::Exit),
            later(30, 1, BEGIN),
        ];
        let settled = settled(&mut clocks, START + 60 * SECOND, &records);
        let expected = [(1, false), (1, true), (2, false), (29, false), (30, false)];
        assert_eq!(settled, expected.map(|(seconds, is_borrowed)| (seconds * SECOND, is_borrowed)));
    }

    #[test]
    fn records_of_no_fault_are_never_anothers() {
        let records = [(START + 900_000, 1, EventKind::Exit), (START + 700_000, 2, EventKind::Exit)];
        let mut clocks = Clocks::default();
        assert_eq!(settled(&mut clocks, 2 * START, &records), [(900_000, false); 2]);
        assert_eq!(clocks.borrowed, 0);
    }

    /// On another processor than its parent's, a new process has the time of what ended there before it began.
    #[test]
    fn no_fault_of_a_thread_stands_before_its_start() {
        let event =
            |time_ns, tid, kind, is_time_borrowed| Event { time_ns, pid: 2, tid, kind, is_time_borrowed };
        let fork = EventKind::Fork { parent_pid: 1, parent_tid: 1 };
        let mut pending = [
            event(10, 3, BEGIN, true),
            event(20, 2, BEGIN, true),
            event(20, 2, END, true),
            event(30, 2, BEGIN, false),
            event(60, 2, END, false),
            event(50, 2, fork, false),
        ];
        let told = |pending: &[Event]| -> Vec<(u64, bool)> {
            pending.iter().map(|event| (event.time_ns, event.is_time_borrowed)).collect()
        };
        let before = told(&pending);
        Clocks::default().keep_behind_forks(&mut pending);
        assert_eq!(told(&pending), before, "nobody lends a clock");
        let mut clocks = Clocks { borrowed: 3, ..Clocks::default() };
        clocks.keep_behind_forks(&mut pending);
        let expected = [(10, true), (51, true), (51, true), (51, true), (60, false), (50, false)];
        assert_eq!((told(&pending), clocks.borrowed), (expected.to_vec(), 4));
    }

    #[test]
    fn a_clock_that_seems_to_go_back_a_little_is_ours() {
        let records = [(START + 900, 1, BEGIN), (START + 700, 1, END)];
        assert_eq!(settled(&mut Clocks::default(), 2 * START, &records), [(900, false), (900, false)]);
    }

    /// A processor may be interrupted, or taken away by a host, between a record's time and its place in the ring.
    #[test]
    fn a_record_that_came_late_is_ours() {
        let mut clocks = Clocks::default();
        let mut latest = Latest { time_ns: START - SECOND, side: None };
        let lost = EventKind::Lost { records: 1 };
        for (ns_before, kind) in [(2_000_000, BEGIN), (1_999_000, END), (0, lost), (1_000_000, BEGIN)] {
            let mut event =
                Event { time_ns: START - ns_before, pid: 1, tid: 1, kind, is_time_borrowed: false };
            clocks.settle(&mut event, &mut latest, &mut [], START..2 * START);
            assert_eq!((event.time_ns, event.is_time_borrowed), (START - ns_before, false), "{event:?}");
        }
        assert_eq!(clocks.borrowed, 0);
    }

    #[test]
    fn a_loss_stays_in_front_of_the_record_that_told_of_it() {
        let records = [
            (START + 1_000, 1, BEGIN),
            (START + 9_100, 1, EventKind::Lost { records: 1 }),
            (START + 9_000, 1, BEGIN),
        ];
        let settled = settled(&mut Clocks::default(), 2 * START, &records);
        assert_eq!(settled, [(1_000, false), (9_000, false), (9_000, false)]);
    }

    /// As `perf record -c 1000` does.
    #[test]
    fn of_another_that_samples_only_the_samples_are_wrong() {
        let fault = |nth: u64| {
            let at_ns = START + 40_000 * nth;
            let begin_ns = at_ns + if nth % 20 == 5 { 86_400 * SECOND } else { 0 };
            [(begin_ns, 1, BEGIN), (at_ns + 500, 1, END)]
        };
        let records: Vec<_> = (0..100).flat_map(fault).collect();
        let settled = settled(&mut Clocks::default(), 2 * START, &records);
        let borrowed = settled.iter().filter(|&&(_, is_borrowed)| is_borrowed);
        assert_eq!(borrowed.count(), 5, "{settled:?}");
    }
}
