//! In which order frames are unwired and reclaimed: decisions alone, no frame is touched here.
//!
//! ```text
//!              unwire            reclaim
//!   new ─► wired ───► idle ─┬──────────► remembered by a stamp ─► kept, when it comes back soon
//!            │              └ touched ─┐
//!            │ unwire                  ▼
//!   kept ─► wired ──► idle ── touched: back to the end of `wired` ── else reclaimed
//! ```
//! Idle frames are unwired: a touch of one is seen, and costs a fault. Frames that come are new, a sixteenth of all: what is
//! touched once, or a few times at once, goes again and leaves what is kept alone (as 2Q and S3-FIFO do; that a frame is
//! watched for the second half of its time as a new one alone takes the place of their counts). What is kept goes around, as
//! often as it was found touched, three times at most (S3-FIFO). A frame tells something only if it was watched for a while:
//! unwiring goes on ahead of reclaim, from before memory is full.

use std::collections::VecDeque;

/// One in so many frames may be new before new ones are reclaimed first.
const NEW_PART: usize = 16;
/// One in so many new frames is watched before it is reclaimed; and of kept ones, from when one of them goes: a fault a round for
/// each that is used costs less than the reads that are saved (docs/results.md, against parts of 1, 2 and 8).
const NEW_IDLE_PART: usize = 2;
const KEPT_IDLE_PART: usize = 4;
/// How many rounds a kept frame that is touched no more stays at most.
const MOST_ROUNDS: u8 = 3;
/// And under [`Replacement::DontNeed`].
const DONT_NEED_IDLE_PART: usize = 2;

/// How a [`Pool`](crate::Pool) chooses the frames that it takes away. The last two are for comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Replacement {
    /// New frames are tried apart, those that are touched again are kept, and data goes before code.
    #[default]
    TwoQueues,
    /// As FreeBSD's `vm_page_dontneed` does with pages of idle buffers: the oldest frames are unwired and queued, 28 of 32 to be
    /// reclaimed next, 3 last, and 1 is left alone. Code and data are the same.
    DontNeed,
    /// A pool of frames that stay wired until another page takes their place: the oldest first, touched or not.
    Static,
}

/// A page of an object, by the number that the object has in its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Entry {
    pub(crate) object: u32,
    pub(crate) page: u64,
}

/// What became of a frame since it was queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// It is not in memory any more.
    Gone,
    /// It is pinned, or being filled.
    Held,
    /// It was touched since it was unwired.
    Touched,
    /// Nobody is known to have touched it.
    Idle,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Reclaim this frame, of which touches can be seen where `watched`, and remember that it was there where `stamped`.
    Reclaim { entry: Entry, watched: bool, stamped: bool },
    /// Forget this page, which is not in memory any more.
    Forget(Entry),
    /// Unwire some first, by [`Order::next_to_unwire`].
    Unwire,
    /// Wait: there is no frame.
    Nothing,
}

/// Where a frame goes once it is unwired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Behind the other idle frames that are new, and before them.
    New,
    NewHead,
    /// Behind those that are kept.
    Kept,
}

/// A frame in a queue.
#[derive(Clone, Copy, Debug)]
struct Queued {
    entry: Entry,
    /// Rounds that it stays, of those that are kept.
    rounds: u8,
}

/// A frame that is to be unwired.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unwiring {
    pub(crate) entry: Entry,
    stage: Stage,
    rounds: u8,
}

#[derive(Debug, Default)]
struct Queue {
    wired: VecDeque<Queued>,
    /// With whether a touch of the frame can be seen.
    idle: VecDeque<(Queued, bool)>,
}

impl Queue {
    fn len(&self) -> usize {
        self.wired.len() + self.idle.len()
    }

    /// How many more are to be idle, where one in `part` is.
    fn lacks_idle(&self, part: usize) -> usize {
        self.len().div_ceil(part).saturating_sub(self.idle.len()).min(self.wired.len())
    }
}

/// The frames of one class in the order in which they go.
#[derive(Debug)]
pub(crate) struct Order {
    replacement: Replacement,
    new: Queue,
    kept: Queue,
    /// Whether kept frames were looked at since enough of them were unwired.
    kept_go: bool,
    /// Counts what goes through the source's rule.
    turn: u32,
    /// Frames that were looked at.
    looks: usize,
}

impl Order {
    pub(crate) fn new(replacement: Replacement) -> Self {
        Self { replacement, new: Queue::default(), kept: Queue::default(), kept_go: false, turn: 0, looks: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.new.len() + self.kept.len()
    }

    /// How many frames were looked at so far.
    pub(crate) fn looks(&self) -> usize {
        self.looks
    }

    /// A page came into memory; `again` where it was reclaimed not long ago.
    pub(crate) fn arrive(&mut self, entry: Entry, again: bool) {
        let queue = match self.replacement {
            Replacement::TwoQueues if again => &mut self.kept,
            _ => &mut self.new,
        };
        queue.wired.push_back(Queued { entry, rounds: 0 });
    }

    /// The next frame to reclaim; `look` tells what became of one, and is told whether its touches can be seen. Where
    /// `forced`, every frame is looked at, idle or not, before there is none.
    pub(crate) fn next(&mut self, forced: bool, look: impl Fn(Entry, bool) -> Look) -> Next {
        let len = self.len();
        for turn in 0..=2 * len {
            // Where one queue holds nothing that may go, the other's turn comes.
            let from_new = self.takes_new() != (forced && turn > len);
            let queue = if from_new { &mut self.new } else { &mut self.kept };
            let of_wired = |queued| (queued, false);
            let popped = match self.replacement {
                Replacement::Static => queue.wired.pop_front().map(of_wired),
                _ if forced => queue.idle.pop_front().or_else(|| queue.wired.pop_front().map(of_wired)),
                _ => queue.idle.pop_front(),
            };
            let Some((Queued { entry, rounds }, watched)) = popped else {
                match forced {
                    true => continue,
                    false if len == 0 => return Next::Nothing,
                    false => return Next::Unwire,
                }
            };
            self.looks += 1;
            self.kept_go |= !from_new;
            let stays = match self.replacement {
                Replacement::TwoQueues => &mut self.kept,
                _ => &mut self.new,
            };
            match look(entry, watched) {
                Look::Gone => return Next::Forget(entry),
                Look::Held => stays.wired.push_back(Queued { entry, rounds }),
                Look::Touched => {
                    let rounds = if from_new { 0 } else { (rounds + 1).min(MOST_ROUNDS) };
                    stays.wired.push_back(Queued { entry, rounds });
                }
                Look::Idle if rounds > 0 && !forced => {
                    stays.wired.push_back(Queued { entry, rounds: rounds - 1 });
                }
                Look::Idle => {
                    let stamped = from_new && self.replacement == Replacement::TwoQueues;
                    return Next::Reclaim { entry, watched, stamped };
                }
            }
        }
        if forced || self.replacement == Replacement::Static { Next::Nothing } else { Next::Unwire }
    }

    /// Whether the next frame to go is a new one.
    fn takes_new(&self) -> bool {
        self.kept.len() == 0 || self.new.len() > self.len() / NEW_PART
    }

    /// A frame that is to be unwired, until enough are; [`Order::unwired`] takes it back.
    pub(crate) fn next_to_unwire(&mut self) -> Option<Unwiring> {
        let new_part = match self.replacement {
            Replacement::TwoQueues => NEW_IDLE_PART,
            Replacement::DontNeed => DONT_NEED_IDLE_PART,
            Replacement::Static => return None,
        };
        while self.new.lacks_idle(new_part) > 0 {
            let queued = self.new.wired.pop_front()?;
            if self.replacement != Replacement::DontNeed {
                return Some(Unwiring { entry: queued.entry, stage: Stage::New, rounds: 0 });
            }
            match self.dont_need() {
                Some(stage) => return Some(Unwiring { entry: queued.entry, stage, rounds: 0 }),
                None => self.new.wired.push_back(queued),
            }
        }
        // What is kept costs faults to watch: only where some of it goes.
        if self.kept_go || !self.takes_new() {
            if self.kept.lacks_idle(KEPT_IDLE_PART) > 0 {
                let Queued { entry, rounds } = self.kept.wired.pop_front()?;
                return Some(Unwiring { entry, stage: Stage::Kept, rounds });
            }
            self.kept_go = false;
        }
        None
    }

    /// A frame was unwired, or could not be: `watched` tells whether its touches are seen from now on.
    pub(crate) fn unwired(&mut self, frame: Unwiring, watched: bool) {
        let queued = Queued { entry: frame.entry, rounds: frame.rounds };
        match frame.stage {
            Stage::New => self.new.idle.push_back((queued, watched)),
            Stage::NewHead => self.new.idle.push_front((queued, watched)),
            Stage::Kept => self.kept.idle.push_back((queued, watched)),
        }
    }

    /// FreeBSD's rule with its counter (`dnweight`), in runs of 16 pages: of 512 pages 16 are left alone, 48 go to the tail and
    /// 448 to the head.
    fn dont_need(&mut self) -> Option<Stage> {
        self.turn = self.turn.wrapping_add(1);
        match self.turn {
            turn if turn & 0x1f0 == 0 => None,
            turn if turn & 0x70 == 0 => Some(Stage::New),
            _ => Some(Stage::NewHead),
        }
    }
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests {
    use std::cell::Cell;
    use std::collections::HashMap;

    use prepage_simulate::replacement::{clock, lru, opt, s3_fifo, two_q};

    use super::*;

    /// Memory of `frames` under an order, without a kernel: as a pool reclaims, below a watermark, after unwiring ahead.
    struct Memory {
        order: Order,
        frames: usize,
        /// Whether a resident page is unwired.
        resident: HashMap<u64, Cell<bool>>,
        /// When a page was reclaimed, in pages reclaimed.
        stamps: HashMap<u64, usize>,
        reclaimed: usize,
        faults: u64,
    }

    impl Memory {
        fn new(replacement: Replacement, frames: usize) -> Self {
            Self {
                order: Order::new(replacement),
                frames,
                resident: HashMap::new(),
                stamps: HashMap::new(),
                reclaimed: 0,
                faults: 0,
            }
        }

        fn touch(&mut self, page: u64) {
            if let Some(unwired) = self.resident.get(&page) {
                unwired.set(false);
                return;
            }
            self.faults += 1;
            let again = self.stamps.remove(&page).is_some_and(|at| self.reclaimed - at <= self.frames / 4);
            self.order.arrive(Entry { object: 0, page }, again);
            self.resident.insert(page, Cell::new(false));
            let (free, low) = (self.frames - self.resident.len(), self.frames / 64);
            if free < low {
                self.unwire();
                while self.frames - self.resident.len() < 2 * low {
                    self.reclaim();
                }
            }
            let ahead = free < self.frames / 8 && self.resident.len().is_multiple_of(self.frames / 64);
            if free < low || ahead {
                self.unwire();
            }
        }

        fn unwire(&mut self) {
            for _ in 0..self.frames / 32 {
                let Some(frame) = self.order.next_to_unwire() else { break };
                self.resident[&frame.entry.page].set(true);
                self.order.unwired(frame, true);
            }
        }

        fn reclaim(&mut self) {
            let resident = &self.resident;
            let look = |entry: Entry, watched: bool| {
                if watched && !resident[&entry.page].get() { Look::Touched } else { Look::Idle }
            };
            match self.order.next(false, look) {
                Next::Reclaim { entry, stamped, .. } => {
                    self.resident.remove(&entry.page);
                    self.reclaimed += 1;
                    if stamped {
                        self.stamps.insert(entry.page, self.reclaimed);
                    }
                }
                _ => self.unwire(),
            }
        }
    }

    fn random(seed: u64) -> impl FnMut(u64) -> u64 {
        let mut state = 0x9e37_79b9_7f4a_7c15 ^ seed;
        move |limit| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % limit
        }
    }

    const PAGES: u64 = 1 << 15;
    const TOUCHES: usize = 600_000;

    fn uniform() -> Vec<u64> {
        let mut random = random(1);
        (0..TOUCHES).map(|_| random(PAGES)).collect()
    }

    fn zipf() -> Vec<u64> {
        let mut sums: Vec<f64> = Vec::new();
        for rank in 1..=PAGES {
            sums.push(sums.last().copied().unwrap_or(0.0) + (rank as f64).powf(-0.99));
        }
        let total = *sums.last().unwrap();
        let mut random = random(2);
        let mut pick = || {
            let at = random(1 << 40) as f64 / (1_u64 << 40) as f64 * total;
            sums.partition_point(|&sum| sum < at) as u64
        };
        (0..TOUCHES).map(|_| pick() * 2_654_435_761 % PAGES).collect()
    }

    /// A quarter of memory touched at random between the steps of a scan around all the rest.
    fn scan() -> Vec<u64> {
        let mut random = random(3);
        let hot = PAGES / 8;
        (0..TOUCHES as u64)
            .map(|turn| if turn % 2 == 0 { random(hot) } else { hot + turn / 2 % (PAGES - hot) })
            .collect()
    }

    fn faults(replacement: Replacement, touches: &[u64], frames: u64) -> u64 {
        let mut memory = Memory::new(replacement, frames as usize);
        touches.iter().for_each(|&page| memory.touch(page));
        memory.faults
    }

    #[test]
    fn two_queues_fault_little_more_than_the_best_rule_that_sees_every_touch() {
        for (name, touches, slack) in
            [("uniform", uniform(), 1.03), ("zipf", zipf(), 1.08), ("scan", scan(), 1.02)]
        {
            let frames = PAGES / 2;
            let ours = faults(Replacement::TwoQueues, &touches, frames);
            let [lru, clock] = [lru(&touches).faults(frames), clock(&touches, frames)];
            let [two_q, s3_fifo] = [two_q(&touches, frames), s3_fifo(&touches, frames)];
            let best = lru.min(clock).min(two_q).min(s3_fifo);
            let least = opt(&touches, frames);
            println!(
                "{name}: ours {ours}, lru {lru}, clock {clock}, 2q {two_q}, s3-fifo {s3_fifo}, opt {least}"
            );
            // Some frames are free, and of touches is known that there was one since the frame was unwired.
            assert!(ours as f64 <= best as f64 * slack && ours >= least, "{name}: {ours}, best {best}");
            for baseline in [Replacement::DontNeed, Replacement::Static] {
                let theirs = faults(baseline, &touches, frames);
                println!("{name}: {baseline:?} {theirs}");
                // The source's rule keeps more of a scan, of which it takes the newest first.
                assert!(theirs as f64 * 1.02 >= ours as f64, "{name}: {baseline:?}");
            }
        }
    }

    #[test]
    fn the_sources_rule_sends_28_of_32_to_the_head() {
        let mut order = Order::new(Replacement::DontNeed);
        let stages: Vec<_> = (0..5120).map(|_| order.dont_need()).collect();
        let count = |stage| stages.iter().filter(|&&of| of == stage).count();
        let counts = [count(Some(Stage::NewHead)), count(Some(Stage::New)), count(None)];
        assert_eq!(counts, [28, 3, 1].map(|part| part * 5120 / 32));
    }

    #[test]
    fn what_is_held_never_goes_and_the_rest_does_at_last() {
        for replacement in [Replacement::TwoQueues, Replacement::DontNeed, Replacement::Static] {
            let mut order = Order::new(replacement);
            for page in 0..100 {
                order.arrive(Entry { object: 0, page }, page % 3 == 0);
            }
            let look = |entry: Entry, _: bool| if entry.page == 63 { Look::Touched } else { Look::Held };
            // Touched whenever it is looked at: it goes where nothing else can.
            let forced = |entry: Entry, _: bool| if entry.page == 63 { Look::Idle } else { Look::Held };
            for _ in 0..4 {
                while let Some(frame) = order.next_to_unwire() {
                    order.unwired(frame, true);
                }
                assert!(!matches!(order.next(false, look), Next::Reclaim { .. } | Next::Forget(_)));
            }
            assert!(matches!(order.next(true, forced), Next::Reclaim { entry, .. } if entry.page == 63));
            assert_eq!(order.next(true, forced), Next::Nothing);
            assert_eq!(order.len(), 99);
        }
    }
}
