//! Which processors are watched.

use std::time::Duration;

/// How often to look: that costs an interrupt to each processor.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Looks that follow each other sooner tell nothing: an event that is enabled may show the same time in both.
const LOOK_AFTER: Duration = Duration::from_millis(100);

/// How many processors were online and not watched.
///
/// One that comes online later has no events. One that goes offline, as all but the first do when the machine is suspended, loses those of the
/// whole machine for good (kernel/events/core.c, `perf_event_exit_cpu_context`), and they only show that in the time for which they were enabled:
/// it stands still. Those of threads stay.
#[derive(Debug, Default)]
pub(super) struct WatchedCpus {
    looked: Option<Look>,
    /// At the look with the most.
    unwatched: u64,
}

/// What was found at a time.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) at_ns: u64,
    pub(super) online: Vec<u32>,
    /// Of each processor with events, for how long they were enabled; `None` for those of threads.
    pub(super) enabled_ns: Vec<(u32, Option<u64>)>,
}

impl WatchedCpus {
    /// Whether it is time to look again.
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        self.looked_before(now_ns, LOOK_EVERY)
    }

    /// Takes a look into account.
    pub(super) fn look(&mut self, look: Look) {
        let before = self.looked.as_ref().filter(|_| self.looked_before(look.at_ns, LOOK_AFTER));
        let is_watched = |cpu: &&u32| {
            let now = look.enabled_ns.iter().find(|(of, _)| of == *cpu);
            let has_stopped = |now| before.is_some_and(|before| before.enabled_ns.contains(now));
            now.is_some_and(|now| now.1.is_none() || !has_stopped(now))
        };
        let unwatched = look.online.iter().filter(|cpu| !is_watched(cpu)).count();
        self.unwatched = self.unwatched.max(unwatched as u64);
        if self.looked.is_none() || before.is_some() {
            self.looked = Some(look);
        }
    }

    /// How many there were at once.
    pub(super) fn unwatched(&self) -> u64 {
        self.unwatched
    }

    fn looked_before(&self, now_ns: u64, time: Duration) -> bool {
        self.looked.as_ref().is_none_or(|look| now_ns.saturating_sub(look.at_ns) >= time.as_nanos() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unwatched_after(looks: &[(&[u32], [Option<u64>; 2])]) -> u64 {
        let mut watched = WatchedCpus::default();
        for (second, (online, [first, second_cpu])) in (1..).zip(looks) {
            let at_ns = second * LOOK_EVERY.as_nanos() as u64;
            assert!(watched.is_due(at_ns));
            let enabled_ns = vec![(0, *first), (1, *second_cpu)];
            watched.look(Look { at_ns, online: online.to_vec(), enabled_ns });
        }
        watched.unwatched()
    }

    #[test]
    fn a_processor_that_returns_is_no_longer_watched() {
        let (both, first): (&[u32], &[u32]) = (&[0, 1], &[0]);
        assert_eq!(unwatched_after(&[(both, [Some(5), Some(5)]), (both, [Some(9), Some(8)])]), 0);
        let away = [(both, [Some(5), Some(5)]), (first, [Some(9), Some(7)]), (first, [Some(13), Some(7)])];
        assert_eq!(unwatched_after(&away), 0, "nothing happens on one that is offline");
        assert_eq!(unwatched_after(&[&away[..], &[(both, [Some(17), Some(7)])]].concat()), 1);
        // In a suspension nobody looks.
        assert_eq!(unwatched_after(&[away[0], (both, [Some(9), Some(7)]), (both, [Some(13), Some(7)])]), 1);
        // Events of threads go with the threads, and stand still with them.
        assert_eq!(unwatched_after(&[(both, [None; 2]), (first, [None; 2]), (both, [None; 2])]), 0);
    }

    #[test]
    fn a_processor_that_came_and_went_is_told() {
        let watched = [Some(5), Some(5)];
        assert_eq!(
            unwatched_after(&[
                (&[0, 1], watched),
                (&[0, 1, 2], [Some(9), Some(9)]),
                (&[0, 1], [Some(13); 2])
            ]),
            1
        );
    }

    #[test]
    fn two_looks_at_once_tell_nothing() {
        let mut watched = WatchedCpus::default();
        for at_ns in [0, 1] {
            watched.look(Look { at_ns, online: vec![0], enabled_ns: vec![(0, Some(5))] });
        }
        assert_eq!(watched.unwatched(), 0);
    }
}
