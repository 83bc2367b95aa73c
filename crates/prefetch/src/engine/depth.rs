//! How many readers of a prefetch ask at once, where the device is to show how many it serves.
//!
//! A device that counts requests or bytes takes as much longer for each request as there are more of them under way: more readers gain nothing there, and
//! whatever else the machine reads stands behind theirs. A volume far away takes the same time for each, however many it is asked for. So a few readers and
//! all of them take turns at the beginning, and the times that their requests took decide:
//!
//! ```text
//! few ─► all ─► few ─► all ─► few ─► all ─► from now on all of them, if the requests of many took no longer
//!         └──────┬──────┘
//!                └─ from now on a few, if they took much longer
//! ```
//! They take turns because requests differ: a boot reads inodes first, and programs later. Worked out for devices of several kinds, with requests of
//! one page to 128, noise, and up to ten others that read: limits of 40 to 300 requests a second are seen as such after the first 40 requests, and a volume of 20 ms as
//! far after 140. Where only bytes are limited and ten others read all the time, one try in five goes wrong.

use std::sync::{Condvar, Mutex};
use std::time::Duration;

use prepage_core::DeviceFigures;
use prepage_sys::sync::Anyway;

/// Requests in a turn that count: those that begin and end in it. Of a few readers, and of all of them.
const REQUESTS: [usize; 2] = [12, 24];
/// Turns of all readers.
const TURNS_OF_ALL: u32 = 3;
/// So many times as long as those of a few may the requests of all readers take, in percent: in the end, and before that.
const LONGER_PERCENT: u32 = 130;
const LONGER_AT_FIRST_PERCENT: u32 = 160;

/// Which readers ask.
///
/// Lock legend: `turns` is the only lock, never held over a system call but to sleep with `changed`, which is told whenever another reader may ask.
#[derive(Debug)]
pub(super) struct Depth {
    few: u32,
    turns: Mutex<Turns>,
    changed: Condvar,
}

/// Where the readers' turns stand.
#[derive(Debug, Default)]
struct Turns {
    /// Readers that have a number.
    readers: u32,
    /// That of a few if even.
    turn: u32,
    /// How long requests took, those of a few readers and those of all.
    took: [Vec<Duration>; 2],
    /// How many of them were made in this turn.
    made: usize,
    /// Who asks from now on.
    outcome: Option<Readers>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Readers {
    Few,
    All,
}

impl Depth {
    /// Between so `few` readers and all there are.
    pub(super) fn of(few: u32) -> Self {
        Self { few, turns: Mutex::default(), changed: Condvar::new() }
    }

    /// The number of one more reader.
    pub(super) fn number(&self) -> u32 {
        let mut turns = self.turns.lock().anyway();
        turns.readers += 1;
        turns.readers - 1
    }

    /// Waits until reader `number` may ask, as long as there is something to do. Returns whether it may.
    pub(super) fn may_ask(&self, number: u32, is_something_to_do: impl Fn() -> bool) -> bool {
        let waits = |turns: &mut Turns| {
            turns.who_asks() == Readers::Few
                && number >= self.few
                && turns.outcome.is_none()
                && is_something_to_do()
        };
        let turns = self.changed.wait_while(self.turns.lock().anyway(), waits).anyway();
        number < self.few || turns.who_asks() == Readers::All
    }

    /// Has those who wait look again whether there is something to do.
    pub(super) fn wake(&self) {
        // Whoever waits holds the lock between the look and the sleep.
        drop(self.turns.lock());
        self.changed.notify_all();
    }

    /// Which turn it is; `None` once it is known who asks.
    pub(super) fn turn(&self) -> Option<u32> {
        let turns = self.turns.lock().anyway();
        turns.outcome.is_none().then_some(turns.turn)
    }

    /// A request that reader `number` made in this `turn`, and that the device has read for, `took` so long.
    pub(super) fn note(&self, number: u32, turn: u32, took: Duration) {
        // One of many that still has some of its own to ask for when their turn is over.
        if turn.is_multiple_of(2) && number >= self.few {
            return;
        }
        let mut turns = self.turns.lock().anyway();
        if turns.outcome.is_none() && turns.turn == turn && turns.is_over_with(took) {
            drop(turns);
            self.changed.notify_all();
        }
    }
}

impl Turns {
    fn who_asks(&self) -> Readers {
        self.outcome.unwrap_or(if self.turn.is_multiple_of(2) { Readers::Few } else { Readers::All })
    }

    /// Whether the turn is over with a request that `took` so long.
    fn is_over_with(&mut self, took: Duration) -> bool {
        let kind = (self.turn % 2) as usize;
        self.took[kind].push(took);
        self.made += 1;
        if self.made < REQUESTS[kind] {
            return false;
        }
        (self.turn, self.made) = (self.turn + 1, 0);
        if kind == 1 {
            self.outcome = self.judge();
        }
        true
    }

    /// Who asks from now on, as far as that is known.
    fn judge(&mut self) -> Option<Readers> {
        let [few, all] = self.took.each_mut().map(|took| {
            let middle = took.len() / 2;
            *took.select_nth_unstable(middle).1
        });
        let is_last = self.turn == 2 * TURNS_OF_ALL;
        let longer_percent = if is_last { LONGER_PERCENT } else { LONGER_AT_FIRST_PERCENT };
        let is_far =
            few >= Duration::from_nanos(DeviceFigures::FAR_NS_MIN) && 100 * all <= longer_percent * few;
        match is_far {
            false => Some(Readers::Few),
            true => is_last.then_some(Readers::All),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Who asks in the end, and after how many requests: each takes as long as `took` says of its number, with few readers and with all.
    fn shown(took: impl Fn(usize) -> [u64; 2]) -> (Readers, usize) {
        let depth = Depth::of(3);
        let mut made = 0;
        while let Some(turn) = depth.turn() {
            depth.note(0, turn, Duration::from_micros(took(made)[turn as usize % 2]));
            made += 1;
        }
        let who = depth.turns.lock().unwrap().who_asks();
        (who, made)
    }

    #[test]
    fn all_readers_ask_where_that_takes_no_longer_and_a_few_where_it_does() {
        let of_both = REQUESTS[0] + REQUESTS[1];
        // A volume far away; its answers differ, and large ones take longer.
        assert_eq!(shown(|_| [20_000; 2]), (Readers::All, 3 * of_both));
        assert_eq!(shown(|at| [15_000 + at as u64 % 7 * 2000; 2]), (Readers::All, 3 * of_both));
        // A disk that counts requests, alone and where ten others read.
        assert_eq!(shown(|_| [50_000, 266_000]), (Readers::Few, of_both));
        assert_eq!(shown(|_| [216_000, 433_000]), (Readers::Few, of_both));
        // One that gets slower while it is asked.
        assert_eq!(shown(|_| [20_000, 28_000]), (Readers::Few, 3 * of_both));
        // A fast one has nothing to gain.
        assert_eq!(shown(|_| [100; 2]), (Readers::Few, of_both));
    }

    #[test]
    fn what_began_in_another_turn_does_not_count() {
        let depth = Depth::of(3);
        (0..100).for_each(|_| depth.note(0, 1, Duration::from_secs(1)));
        assert_eq!(depth.turn(), Some(0));
        (0..100).for_each(|_| depth.note(3, 0, Duration::from_secs(1)));
        assert_eq!(depth.turn(), Some(0), "those of a reader too many do not either");
        (0..REQUESTS[0]).for_each(|_| depth.note(0, 0, Duration::from_millis(20)));
        assert_eq!(depth.turn(), Some(1));
    }

    #[test]
    fn a_reader_too_many_waits_for_its_turn_or_until_nothing_is_to_do() {
        let depth = Depth::of(1);
        let numbers = [depth.number(), depth.number()];
        let is_something_to_do = AtomicBool::new(true);
        let may_ask = |number: u32| depth.may_ask(number, || is_something_to_do.load(Ordering::Relaxed));
        assert!(may_ask(numbers[0]));
        let note = |requests: usize, ms| {
            let turn = depth.turn().unwrap();
            (0..requests).for_each(|_| depth.note(0, turn, Duration::from_millis(ms)));
        };
        std::thread::scope(|scope| {
            let other = scope.spawn(|| may_ask(numbers[1]));
            note(REQUESTS[0], 20);
            assert!(other.join().unwrap(), "it is the turn of all");
            note(REQUESTS[1], 20);
            let other = scope.spawn(|| may_ask(numbers[1]));
            is_something_to_do.store(false, Ordering::Relaxed);
            depth.wake();
            assert!(!other.join().unwrap());
        });
        is_something_to_do.store(true, Ordering::Relaxed);
        note(REQUESTS[0], 20);
        note(REQUESTS[1], 100);
        assert!(may_ask(numbers[0]) && !may_ask(numbers[1]), "from now on a few ask");
    }
}
