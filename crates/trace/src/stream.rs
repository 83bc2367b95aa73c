//! The events of a process tree, in the order they happened.

mod attach;
mod clocks;
mod decode;
mod watched_cpus;

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use prepage_sys::clock::now_ns;
use prepage_sys::perf::{Observed, PerfError, PerfEvent, Record, RecordKind, Ring, Source, online_cpus};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::event::{Event, EventKind};
use clocks::{Clocks, Latest};
use decode::Decoder;
use watched_cpus::{Look, WatchedCpus};

/// How long to wait at most for a ring whose first thread has ended: the kernel then no longer says when it fills.
const SILENT_RING_WAIT: Duration = Duration::from_millis(10);

/// What the kernel calls a process that has no number in the observer's PID namespace (Linux 6.18, kernel/events/core.c,
/// `perf_event_pid_type`), while it runs and after its end. The idle task is called so too, and never faults.
const NO_PID: u32 = 0;
const ENDED_PID: u32 = u32::MAX;

/// The events of a process and all it starts.
///
/// The kernel writes a ring for each CPU; [`Stream::ripe`] merges them. A record may appear in its ring a little
/// later than its time says, so an event is delivered only in the round after the one in which it could first be
/// seen; [`Stream::finish`] delivers the rest.
#[derive(Debug)]
pub struct Stream {
    rings: Vec<CpuRing>,
    /// All events but those that own rings.
    others: Vec<(Source, PerfEvent)>,
    decoder: Decoder,
    pending: Vec<Event>,
    /// Events older than this are complete in `pending`.
    ripe_before_ns: u64,
    uncounted: Uncounted,
    clocks: Clocks,
    sees_system_calls: bool,
    /// This process, where it would observe itself.
    own_pid: Option<u32>,
    watched_cpus: WatchedCpus,
}

#[derive(Debug)]
struct CpuRing {
    cpu: u32,
    ring: Ring,
    source: Source,
    owner: PerfEvent,
    observed: Observed,
    /// The last event that was read from the ring, and the stamp of its record.
    last: Option<(Event, Stamp)>,
    latest: Latest,
    /// The owner's thread ended: it is always "ready" now.
    silent: bool,
}

/// By what the records of two events of one fault or tracepoint are told from those of two faults: the time that the kernel gave it, and the id
/// of its event, where it has one.
type Stamp = (u64, Option<u64>);

#[derive(Debug, Default)]
struct Uncounted {
    lost: u64,
    malformed: u64,
    /// Ends of faults that were read.
    ends: u64,
    /// Minor and major faults of this process, which are left out.
    own: (u64, u64),
    /// Those that were seen twice.
    twice: (u64, u64),
    /// Those of processes outside this one's PID namespace, which have no number in it.
    outside: (u64, u64),
}

/// What the kernel counted, whether or not a record of it found room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelCounts {
    /// Faults that ended without a read from a device.
    pub minor: u64,
    /// Faults that ended after one.
    pub major: u64,
    /// Records that found no room, or could not be read.
    pub lost: u64,
}

impl Stream {
    /// Bytes of each CPU's ring.
    pub fn ring_bytes(&self) -> usize {
        self.rings[0].ring.data_bytes()
    }

    /// Whether faults that system calls take on the program's memory are reported; an ordinary user at
    /// `perf_event_paranoid` 2 does not get them.
    pub fn sees_system_calls(&self) -> bool {
        self.sees_system_calls
    }

    /// Faults seen and left out of processes outside this one's PID namespace: their mappings and names cannot be told apart.
    pub fn outside_faults(&self) -> u64 {
        self.uncounted.outside.0 + self.uncounted.outside.1
    }

    /// Beginnings and ends of faults whose times are not believed, because another observer of the same process has another clock (Linux 6.3 and
    /// later). Their faults have no costs, and may bear the number that their process has in the other's PID namespace.
    pub fn borrowed_times(&self) -> u64 {
        self.clocks.borrowed
    }

    /// Processors that came online after the beginning, or again: what happens there is not observed. The most that
    /// [`Stream::look_at_cpus`] found at a time.
    pub(crate) fn unwatched_cpus(&self) -> u64 {
        self.watched_cpus.unwatched()
    }

    /// Finds out, while it observes, which processors are watched: from time to time, and at the end.
    pub(crate) fn look_at_cpus(&mut self, at_end: bool) {
        if !at_end && !self.watched_cpus.is_due(now_ns()) {
            return;
        }
        let Ok(online) = online_cpus() else { return };
        let enabled_ns = |ring: &CpuRing| match ring.observed {
            Observed::System => Some(ring.owner.counted().ok()?.enabled_ns),
            Observed::Thread(_) => None,
        };
        let enabled_ns = self.rings.iter().map(|ring| (ring.cpu, enabled_ns(ring))).collect();
        self.watched_cpus.look(Look { at_ns: now_ns(), online, enabled_ns });
    }

    /// Stops observing, or goes on. What was seen stays to be read.
    pub fn set_enabled(&self, enabled: bool) -> Result<(), PerfError> {
        // In the order of `sources`, and back: at no time are a thread's faults seen to begin and not to end.
        let owners = self.rings.iter().map(|ring| &ring.owner);
        let mut events = owners.chain(self.others.iter().map(|(_, event)| event));
        match enabled {
            true => events.try_for_each(|event| event.set_enabled(true)),
            false => events.rev().try_for_each(|event| event.set_enabled(false)),
        }
    }

    /// Waits until a ring is a quarter full (or as [`crate::Probe::wakeup_bytes`] has it), one of `others` is readable or `timeout` has passed. Returns which of
    /// `others` are readable.
    pub fn wait(&mut self, others: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<Vec<bool>> {
        let silent = self.rings.iter().any(|ring| ring.silent);
        let timeout = if silent {
            Some(timeout.map_or(SILENT_RING_WAIT, |timeout| timeout.min(SILENT_RING_WAIT)))
        } else {
            timeout
        };
        let timespec = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        });
        let speaking: Vec<usize> = (0..self.rings.len()).filter(|&at| !self.rings[at].silent).collect();
        let mut fds: Vec<PollFd<'_>> =
            others.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        fds.extend(speaking.iter().map(|&at| PollFd::new(&self.rings[at].owner, PollFlags::IN)));
        match poll(&mut fds, timespec.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready: Vec<bool> = fds[..others.len()].iter().map(|fd| !fd.revents().is_empty()).collect();
        let ended: Vec<bool> =
            fds[others.len()..].iter().map(|fd| fd.revents().contains(PollFlags::HUP)).collect();
        for (at, ended) in speaking.into_iter().zip(ended) {
            self.rings[at].silent = ended;
        }
        Ok(ready)
    }

    /// The events that no event yet to come can precede, in order. Empties the rings.
    pub fn ripe(&mut self) -> impl Iterator<Item = Event> + '_ {
        let round_start_ns = now_ns();
        self.collect();
        let ripe = self.pending.partition_point(|event| event.time_ns < self.ripe_before_ns);
        self.ripe_before_ns = round_start_ns;
        self.pending.drain(..ripe)
    }

    /// All events there are until now, in order: for the end, when the observed processes are gone or no longer of
    /// interest.
    pub fn finish(&mut self) -> impl Iterator<Item = Event> + '_ {
        self.collect();
        self.pending.drain(..)
    }

    /// What the kernel counted until now. Before Linux 6.0 the last records may be lost and not counted.
    pub fn counts(&self) -> Result<KernelCounts, PerfError> {
        self.count(false)
    }

    /// The same at the end, when the stream is disabled ([`Stream::set_enabled`]) and was read ([`Stream::finish`]): what was counted and not read is
    /// lost.
    pub fn counts_at_end(&self) -> Result<KernelCounts, PerfError> {
        self.count(true)
    }

    fn count(&self, is_all_read: bool) -> Result<KernelCounts, PerfError> {
        let mut counts = KernelCounts::default();
        let mut lost_known = true;
        let owners = self.rings.iter().map(|ring| (ring.source, &ring.owner));
        for (source, event) in owners.chain(self.others.iter().map(|(source, event)| (*source, event))) {
            let counted = event.counted()?;
            match source {
                Source::MinorFaults => counts.minor += counted.times,
                Source::MajorFaults => counts.major += counted.times,
                Source::PageFaults | Source::Dummy | Source::Tracepoint(_) => {}
            }
            match counted.lost {
                Some(lost) => counts.lost += lost,
                None => lost_known = false,
            }
        }
        if !lost_known {
            let unread_ends = match is_all_read {
                true => (counts.minor + counts.major).saturating_sub(self.uncounted.ends),
                false => 0,
            };
            counts.lost = self.uncounted.lost_at_least(unread_ends);
        }
        counts.lost += self.uncounted.malformed;
        let Uncounted { own, twice, outside, .. } = self.uncounted;
        counts.minor = counts.minor.saturating_sub(own.0 + twice.0 + outside.0);
        counts.major = counts.major.saturating_sub(own.1 + twice.1 + outside.1);
        Ok(counts)
    }

    /// Moves all records from the rings to `pending` and sorts it.
    pub(crate) fn collect(&mut self) {
        let Self { rings, decoder, pending, uncounted, clocks, own_pid, ripe_before_ns, .. } = self;
        for CpuRing { ring, last, latest, .. } in rings {
            let first = pending.len();
            let mut last_stamp = last.as_ref().map(|&(_, stamp)| stamp);
            let mut read_ns = None;
            ring.drain(|bytes| {
                let Ok(record) = Record::decode(bytes) else {
                    uncounted.malformed += 1;
                    return;
                };
                let Some(kind) = decoder.event(&record, uncounted) else { return };
                let stamp = match record.kind {
                    RecordKind::Sample(sample) => (record.time_ns, Some(sample.id)),
                    _ => (record.time_ns, None),
                };
                let Record { time_ns, pid, tid, .. } = record;
                let mut event = Event { time_ns, pid, tid, kind, is_time_borrowed: false };
                // Of when the kernel was asked for what there is.
                let read_ns = *read_ns.get_or_insert_with(now_ns);
                clocks.settle(&mut event, latest, &mut pending[first..], *ripe_before_ns..read_ns);
                let (mut minor, mut major) = (0, 0);
                if let EventKind::FaultEnd { disk, .. } = event.kind {
                    *(if disk { &mut major } else { &mut minor }) = 1;
                }
                uncounted.ends += minor + major;
                let before = pending[first..].last().or(last.as_ref().map(|(event, _)| event));
                let left_out = match pid {
                    _ if matches!(event.kind, EventKind::Lost { .. }) => None,
                    pid if *own_pid == Some(pid) => Some(&mut uncounted.own),
                    NO_PID | ENDED_PID => Some(&mut uncounted.outside),
                    _ if is_again(before.zip(last_stamp), &event, stamp) => Some(&mut uncounted.twice),
                    _ => None,
                };
                match left_out {
                    Some(sum) => *sum = (sum.0 + minor, sum.1 + major),
                    None => {
                        clocks.borrowed += u64::from(event.is_time_borrowed);
                        last_stamp = Some(stamp);
                        pending.push(event);
                    }
                }
            });
            *last = pending[first..].last().cloned().or(last.take().map(|(event, _)| event)).zip(last_stamp);
        }
        clocks.keep_behind_forks(pending);
        // A stable sort that finds the rings' sorted runs and merges them.
        pending.sort_by_key(|event| event.time_ns);
    }
}

impl Uncounted {
    /// How many records were lost where the kernel does not count them (before Linux 6.0), and so many ends of faults were counted and not read. A
    /// record of the loss comes with the next one that finds room: none comes of the last.
    fn lost_at_least(&self, unread_ends: u64) -> u64 {
        self.lost.max(unread_ends)
    }
}

/// Whether `event` is `before` once more: a thread that was started while its process was attached to may be observed by the events it inherited and by
/// its own. The samples of one fault are alike since Linux 6.3. Before, and of a tracepoint, they tell by their ids whose they are.
fn is_again(before: Option<(&Event, Stamp)>, event: &Event, (time_ns, id): Stamp) -> bool {
    before.is_some_and(|(before, (time_before_ns, id_before))| {
        (before.pid, before.tid, &before.kind) == (event.pid, event.tid, &event.kind)
            && (time_before_ns == time_ns || id_before != id)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Before Linux 6.3 each event of a fault has a time of its own, and of a tracepoint always.
    #[test]
    fn what_two_events_report_is_told_from_what_happens_twice() {
        let event = |kind| Event { time_ns: 0, pid: 1, tid: 2, kind, is_time_borrowed: false };
        let begin = || EventKind::FaultBegin { address: 0x1000, ip: 9, calls: None };
        let before = event(begin());
        let again = |stamp, event: &Event| is_again(Some((&before, (500, Some(7)))), event, stamp);
        assert!(again((500, Some(7)), &event(begin())), "one sample of both");
        assert!(again((520, Some(8)), &event(begin())), "of another event");
        assert!(!again((520, Some(7)), &event(begin())), "later, of the same event");
        let end = EventKind::FaultEnd { address: 0x1000, ip: 9, disk: false };
        assert!(!again((500, Some(7)), &event(end)));
        assert!(!again((500, Some(7)), &Event { tid: 3, ..event(begin()) }));
        assert!(!is_again(None, &before, (500, Some(7))));
    }

    #[test]
    fn a_loss_that_no_record_tells_of_shows_in_the_ends_that_are_missing() {
        let uncounted = Uncounted { lost: 5, ..Uncounted::default() };
        assert_eq!([0, 5, 80].map(|unread_ends| uncounted.lost_at_least(unread_ends)), [5, 5, 80]);
    }
}
