//! In which order frames are unwired and reclaimed: decisions alone, no frame is touched here.
//!
//! ```text
//!            unwire          its turn
//!   new ─► wired ───► idle ─┬ used once ─────────────────────────► reclaimed: its count stays in the page's word
//!     room │                ├ beats an idle kept frame ─► kept     ▲
//!          ▼ unwire         └ loses ──────────────────────────────┤ (touched in its time: tried once more)
//!   kept ─► wired ──► idle ─┬ loses to a new one ─────────────────┘
//!                           └ touched: back to the end of `wired`
//! ```
//! Idle frames are unwired: a touch of one is seen, and costs a fault. A page counts how often it came into memory and how often it was
//! found touched, and keeps that count while it is away. While there is room all frames are kept. After that frames that come are new, a sixteenth of all.
//! A new one whose time is over takes the place of an idle kept frame that counts less, or goes itself (as TinyLFU admits; Einziger,
//! Friedman and Manes, 2017): a scan or a loop that does not fit leaves what is kept alone. A kept frame that has been idle for longer than the
//! new one was between its uses goes for it whatever they count: what was used often and is not used any more makes room. That interval begins
//! with the last use that is known, not with the reclaim: in a loop the kept frame that has been idle longest is used next, and if it
//! goes it comes back at once. It would beat the next one, and so on, until every page goes just before it is used.
//! A frame tells something only if it was watched for a while: unwiring goes on ahead of reclaim, from before memory is full.

use std::collections::VecDeque;

/// One in so many frames may be new before new ones are reclaimed first; with more room than that, what comes is kept.
pub(crate) const NEW_PART: usize = 16;
/// One in so many frames is watched before it is reclaimed, of new and of kept ones. A fault a round for each that is used costs less than the
/// reads that are saved (docs/results.md, against parts of 3 and 4).
const IDLE_PART: usize = 2;
/// Kept frames that were touched and are passed by for one new frame at most: others wait for the lock of who looks.
const MOST_TOUCHED: usize = 64;
/// A page counts so far.
pub(crate) const MOST_COUNT: u8 = 15;
/// Frames are unwired once one in so many of all lacks: the more at once, the less it costs.
const LACK_PART: usize = 64;

/// How a [`Pool`](crate::Pool) chooses the frames that it reclaims. The last two rules are for comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Replacement {
    /// New frames are kept apart at first. A new frame that is used more often than a kept one takes its place. Data goes before code.
    #[default]
    TwoQueues,
    /// As FreeBSD does with pages of idle buffers: the oldest frames of files are unwired before all others, and go before them by
    /// `vm_page_dontneed`: 28 of 32 next, 3 after these, and 1 is left alone. Code and memory of processes are unwired and go where no frame of a file is idle.
    DontNeed,
    /// A pool of frames that stay wired until another page takes their place: the oldest first, touched or not.
    Static,
}

/// A page of an object, by the number that the object has in its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Entry {
    pub(crate) object: u64,
    pub(crate) page: u64,
}

/// What became of a frame since it was queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// It is not in memory any more, or pinned: once it is not, it comes anew.
    Gone,
    /// It is being filled, or what was written to it has nowhere to go; or it may be in use, and only idle frames are to go.
    Held,
    /// It was touched since it was unwired.
    Touched,
    /// Nobody is known to have touched it.
    Idle,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Reclaim this frame.
    Reclaim(Queued),
    /// Forget this page, which cannot go any more.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Queued {
    pub(crate) entry: Entry,
    /// When it came, was found touched or was unwired, whichever was last, in the time of who asks: it may have been used until then.
    pub(crate) used: u32,
    /// How long before it came it had been used last.
    interval: u16,
    /// How often it came and was found touched.
    pub(crate) count: u8,
    /// Whether a touch of it can be seen.
    pub(crate) watched: bool,
}

impl Queued {
    /// A page that comes in: for the first time, or again so long after it was used last, with the count that it went with.
    pub(crate) fn coming(entry: Entry, before: Option<(u16, u8)>, now: u32) -> Self {
        let (interval, count) = before.unwrap_or((u16::MAX, 0));
        Self { entry, used: now, interval, count, watched: false }.counted(now)
    }

    /// Used once more.
    pub(crate) fn counted(self, now: u32) -> Self {
        Self { count: (self.count + 1).min(MOST_COUNT), used: now, ..self }
    }

    /// Whether it is to take the place of the idle frame `kept`.
    fn beats(&self, kept: &Self, now: u32) -> bool {
        let idle = now.wrapping_sub(kept.used);
        self.count > kept.count || idle >= u32::from(self.interval.max(1))
    }
}

/// A frame that is to be unwired.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unwiring {
    queued: Queued,
    stage: Stage,
}

impl Unwiring {
    pub(crate) fn entry(&self) -> Entry {
        self.queued.entry
    }
}

#[derive(Debug, Default)]
struct Queue {
    wired: VecDeque<Queued>,
    idle: VecDeque<Queued>,
}

impl Queue {
    fn len(&self) -> usize {
        self.wired.len() + self.idle.len()
    }

    /// The first that is wired: it may be in use.
    fn pop_wired(&mut self, now: u32) -> Option<Queued> {
        self.wired.pop_front().map(|queued| Queued { used: now, watched: false, ..queued })
    }

    /// How many more are to be idle.
    fn lacks_idle(&self) -> usize {
        self.len().div_ceil(IDLE_PART).saturating_sub(self.idle.len()).min(self.wired.len())
    }
}

/// The frames of one class in the order in which they go.
#[derive(Debug)]
pub(crate) struct Order {
    replacement: Replacement,
    new: Queue,
    kept: Queue,
    /// Counts what goes through the source's rule.
    turn: u32,
    /// Frames that were looked at.
    looks: usize,
}

impl Order {
    pub(crate) fn new(replacement: Replacement) -> Self {
        Self { replacement, new: Queue::default(), kept: Queue::default(), turn: 0, looks: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.new.len() + self.kept.len()
    }

    /// How many frames were looked at so far.
    pub(crate) fn looks(&self) -> usize {
        self.looks
    }

    /// A page came into memory, which FreeBSD would have in a buffer or not. Where there is `room`, nothing is tried apart.
    pub(crate) fn arrive(&mut self, page: Queued, room: bool, is_of_buffer: bool) {
        let is_kept = match self.replacement {
            Replacement::TwoQueues => room,
            Replacement::DontNeed => !is_of_buffer,
            Replacement::Static => false,
        };
        self.queue(!is_kept).wired.push_back(page);
    }

    fn queue(&mut self, is_new: bool) -> &mut Queue {
        if is_new { &mut self.new } else { &mut self.kept }
    }

    /// Whether frames are unwired before they go, so that it is seen which of them are idle.
    pub(crate) fn watches(&self) -> bool {
        self.replacement != Replacement::Static
    }

    /// Forgets all frames but those that are to be kept in mind.
    pub(crate) fn retain(&mut self, mut is_there: impl FnMut(Entry) -> bool) {
        for queue in [&mut self.new, &mut self.kept] {
            for frames in [&mut queue.wired, &mut queue.idle] {
                frames.retain(|queued| is_there(queued.entry));
                frames.shrink_to(2 * frames.len());
            }
        }
    }

    /// The next frame to reclaim; `look` tells what became of one, and is told whether its touches can be seen. Where
    /// `forced`, every frame is looked at, idle or not, before there is none.
    pub(crate) fn next(&mut self, forced: bool, now: u32, look: impl Fn(Entry, bool) -> Look) -> Next {
        let len = self.len();
        for turn in 0..=2 * len {
            // Where one queue holds nothing that may go, the other's turn comes.
            let from_new = self.takes_new() != (forced && turn > len);
            let replacement = self.replacement;
            let queue = self.queue(from_new);
            let popped = match replacement {
                Replacement::Static => queue.pop_wired(now),
                _ if forced => queue.idle.pop_front().or_else(|| queue.pop_wired(now)),
                _ => queue.idle.pop_front(),
            };
            let Some(queued) = popped else {
                match forced {
                    true => continue,
                    false if len == 0 => return Next::Nothing,
                    false => return Next::Unwire,
                }
            };
            self.looks += 1;
            let is_tried = from_new && self.replacement == Replacement::TwoQueues && !forced;
            match look(queued.entry, queued.watched) {
                Look::Gone => return Next::Forget(queued.entry),
                Look::Held => self.stays(from_new).wired.push_back(queued),
                Look::Touched if is_tried => match self.beaten_by(queued.counted(now), now, &look) {
                    Some(next) => return next,
                    None if self.keeps_too_few() => self.kept.wired.push_back(queued.counted(now)),
                    None => self.new.wired.push_back(queued.counted(now)),
                },
                Look::Touched => self.stays(from_new).wired.push_back(queued.counted(now)),
                // What came once counts no more than anything else.
                Look::Idle if is_tried && queued.count > 1 => match self.beaten_by(queued, now, &look) {
                    Some(next) => return next,
                    None if self.keeps_too_few() => self.kept.wired.push_back(queued),
                    None => return Next::Reclaim(queued),
                },
                Look::Idle => return Next::Reclaim(queued),
            }
        }
        if forced || self.replacement == Replacement::Static { Next::Nothing } else { Next::Unwire }
    }

    /// Where a frame is queued that stays.
    fn stays(&mut self, from_new: bool) -> &mut Queue {
        self.queue(from_new && self.replacement != Replacement::TwoQueues)
    }

    /// What is to become of the kept frame whose place `new` takes; `None` where the next that is idle does not go for it.
    fn beaten_by(&mut self, new: Queued, now: u32, look: impl Fn(Entry, bool) -> Look) -> Option<Next> {
        for _ in 0..=MOST_TOUCHED {
            let kept = self.kept.idle.pop_front()?;
            self.looks += 1;
            let next = match look(kept.entry, kept.watched) {
                Look::Gone => Next::Forget(kept.entry),
                Look::Idle if new.beats(&kept, now) => Next::Reclaim(kept),
                Look::Idle => {
                    self.kept.idle.push_front(kept);
                    return None;
                }
                Look::Held => {
                    self.kept.wired.push_back(kept);
                    continue;
                }
                Look::Touched => {
                    self.kept.wired.push_back(kept.counted(now));
                    continue;
                }
            };
            self.kept.wired.push_back(new);
            return Some(next);
        }
        None
    }

    /// Whether what is used may be kept though nothing goes for it: where others filled the pool, nothing was kept for want of room.
    fn keeps_too_few(&self) -> bool {
        self.new.len() > 2 * (self.len() / NEW_PART)
    }

    /// Whether the next frame to go is a new one.
    fn takes_new(&self) -> bool {
        match self.replacement {
            Replacement::DontNeed => !self.new.idle.is_empty(),
            _ => self.kept.len() == 0 || self.new.len() > self.len() / NEW_PART,
        }
    }

    /// Whether so many more are to be idle that it is time to unwire some.
    pub(crate) fn lacks_idle(&self) -> bool {
        let lacking = self.new.lacks_idle() + self.kept.lacks_idle();
        self.watches() && lacking > self.len() / LACK_PART
    }

    /// A frame that is to be unwired, until enough are; [`Order::unwired`] takes it back. `is_dirty` tells of a frame whether it has to be
    /// written first.
    pub(crate) fn next_to_unwire(&mut self, is_dirty: impl Fn(Entry) -> bool) -> Option<Unwiring> {
        if !self.watches() {
            return None;
        }
        // What goes next is watched first.
        let kept_first =
            self.replacement == Replacement::TwoQueues && !self.takes_new() && self.kept.lacks_idle() > 0;
        while !kept_first && self.new.lacks_idle() > 0 {
            let queued = self.new.wired.pop_front()?;
            if self.replacement != Replacement::DontNeed {
                return Some(Unwiring { queued, stage: Stage::New });
            }
            match self.dont_need(is_dirty(queued.entry)) {
                Some(stage) => return Some(Unwiring { queued, stage }),
                None => self.new.wired.push_back(queued),
            }
        }
        if self.kept.lacks_idle() == 0 {
            return None;
        }
        self.kept.wired.pop_front().map(|queued| Unwiring { queued, stage: Stage::Kept })
    }

    /// A frame was unwired, or could not be: `watched` tells whether its touches are seen from `now` on.
    pub(crate) fn unwired(&mut self, frame: Unwiring, watched: bool, now: u32) {
        let queued = Queued { used: now, watched, ..frame.queued };
        match frame.stage {
            Stage::New => self.new.idle.push_back(queued),
            Stage::NewHead => self.new.idle.push_front(queued),
            Stage::Kept => self.kept.idle.push_back(queued),
        }
    }

    /// A frame was not unwired after all: it is next again.
    pub(crate) fn put_back(&mut self, frame: Unwiring) {
        match frame.stage {
            Stage::New | Stage::NewHead => self.new.wired.push_front(frame.queued),
            Stage::Kept => self.kept.wired.push_front(frame.queued),
        }
    }

    /// FreeBSD's rule with its counter (`dnweight`), in runs of 16 pages: of 512 pages 16 are left alone, 48 go to the tail and
    /// 448 to the head, where nothing has to be written first.
    fn dont_need(&mut self, is_dirty: bool) -> Option<Stage> {
        self.turn = self.turn.wrapping_add(1);
        match self.turn {
            turn if turn & 0x1f0 == 0 => None,
            turn if is_dirty || turn & 0x70 == 0 => Some(Stage::New),
            _ => Some(Stage::NewHead),
        }
    }
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests {
    use std::cell::Cell;
    use std::collections::HashMap;

    use prepage_core::random::SplitMix;
    use prepage_simulate::replacement::{clock, dont_need, lru, opt, s3_fifo, two_q};

    use super::*;
    use crate::frame_count::AHEAD_PART;
    use crate::reclaim::UNWIRE_MOST;

    /// Memory of `frames` under an order, without a kernel: as a pool reclaims, below a watermark, after unwiring ahead.
    struct Memory {
        order: Order,
        frames: usize,
        /// Whether a resident page is unwired.
        resident: HashMap<u64, Cell<bool>>,
        /// Whether others fill the pool: there is never room.
        is_crowded: bool,
        /// When a page that was reclaimed had been used last, in 64ths of memory, and its count.
        stamps: HashMap<u64, (u32, u8)>,
        reclaimed: usize,
        faults: u64,
        rewired: u64,
    }

    impl Memory {
        fn new(replacement: Replacement, frames: usize) -> Self {
            Self {
                order: Order::new(replacement),
                frames,
                resident: HashMap::new(),
                is_crowded: false,
                stamps: HashMap::new(),
                reclaimed: 0,
                faults: 0,
                rewired: 0,
            }
        }

        fn now(&self) -> u32 {
            (self.reclaimed * 64 / self.frames) as u32
        }

        fn free(&self) -> usize {
            self.frames - self.resident.len()
        }

        fn touch(&mut self, page: u64) {
            if let Some(unwired) = self.resident.get(&page) {
                self.rewired += u64::from(unwired.replace(false));
                return;
            }
            self.faults += 1;
            let now = self.now();
            let before = self.stamps.remove(&page).map(|(used, count)| ((now - used) as u16, count));
            let room = !self.is_crowded && self.free() >= self.frames / NEW_PART;
            self.order.arrive(Queued::coming(Entry { object: 0, page }, before, now), room, true);
            self.resident.insert(page, Cell::new(false));
            if self.free() < LOW {
                while self.free() < HIGH {
                    self.reclaim();
                }
            }
            if self.free() < self.frames / AHEAD_PART as usize && self.order.lacks_idle() {
                self.unwire();
            }
        }

        fn unwire(&mut self) {
            for _ in 0..UNWIRE_MOST {
                let Some(frame) = self.order.next_to_unwire(|_| false) else { break };
                self.resident[&frame.entry().page].set(true);
                self.order.unwired(frame, true, self.now());
            }
        }

        fn reclaim(&mut self) {
            let resident = &self.resident;
            let look = |entry: Entry, watched: bool| {
                if watched && !resident[&entry.page].get() { Look::Touched } else { Look::Idle }
            };
            match self.order.next(false, self.now(), look) {
                Next::Reclaim(Queued { entry, used, count, .. }) => {
                    self.resident.remove(&entry.page);
                    self.reclaimed += 1;
                    self.stamps.insert(entry.page, (used, count));
                }
                _ => self.unwire(),
            }
        }
    }

    fn random(seed: u64) -> impl FnMut(u64) -> u64 {
        let mut random = SplitMix::new(seed);
        move |limit| random.below(limit)
    }

    /// Frames that are free when reclaim begins, and when it ends.
    const LOW: usize = 32;
    const HIGH: usize = 64;
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

    /// As Zipf, but what is used often is something else from each quarter to the next.
    fn moving() -> Vec<u64> {
        let touches = zipf();
        let quarter = touches.len() as u64 / 4;
        touches.iter().zip(0..).map(|(&page, turn)| (page + turn / quarter * 9973) % PAGES).collect()
    }

    /// Faults, and faults that only wire a frame again.
    fn faults(replacement: Replacement, touches: &[u64], frames: u64) -> (u64, u64) {
        let mut memory = Memory::new(replacement, frames as usize);
        touches.iter().for_each(|&page| memory.touch(page));
        (memory.faults, memory.rewired)
    }

    /// At most so many faults to those of the best rule that sees every touch. Of touches is known here only that there was one since
    /// the frame was unwired, and 32 to 64 of 16,384 frames are free.
    #[test]
    fn two_queues_fault_no_more_than_the_best_rule_that_sees_every_touch() {
        for (name, touches, most) in [
            ("uniform", uniform(), 1.01),
            ("zipf", zipf(), 1.0),
            ("scan", scan(), 0.8),
            ("moving", moving(), 1.12),
        ] {
            let frames = PAGES / 2;
            let (ours, rewired) = faults(Replacement::TwoQueues, &touches, frames);
            let [lru, clock] = [lru(&touches).faults(frames), clock(&touches, frames)];
            let [two_q, s3_fifo] = [two_q(&touches, frames), s3_fifo(&touches, frames)];
            let best = lru.min(clock).min(two_q).min(s3_fifo);
            let least = opt(&touches, frames);
            println!(
                "{name}: ours {ours} ({rewired} rewired), lru {lru}, clock {clock}, 2q {two_q}, s3-fifo {s3_fifo}, opt {least}"
            );
            assert!(ours as f64 <= best as f64 * most && ours >= least, "{name}: {ours}, best {best}");
            for baseline in [Replacement::DontNeed, Replacement::Static] {
                let (theirs, _) = faults(baseline, &touches, frames);
                println!("{name}: {baseline:?} {theirs}");
                // Nobody knows more of what is uniform, and who remembers nothing learns a change at once.
                assert!(theirs as f64 * 1.02 >= ours as f64, "{name}: {baseline:?} {theirs}, {ours}");
            }
        }
    }

    /// What is as large as two thirds of the loop stays for the loop's next round, and the rest passes it by.
    #[test]
    fn a_loop_that_does_not_fit_leaves_a_part_of_it_in_memory() {
        let (frames, pages, rounds) = (1 << 12, 3 << 11, 40);
        let touches: Vec<u64> = (0..rounds * pages).map(|turn| turn % pages).collect();
        assert_eq!([lru(&touches).faults(frames), clock(&touches, frames)], [touches.len() as u64; 2]);
        // Also where others had filled the pool before, and where the pages were touched in another order before.
        let mut random = random(4);
        let others = [
            vec![],
            (0..10 * pages).map(|_| random(pages)).collect(),
            (0..5 * pages).rev().map(|turn| turn % pages).collect::<Vec<u64>>(),
        ];
        for (is_crowded, before) in [(false, 0), (true, 0), (false, 1), (false, 2)] {
            let mut memory = Memory { is_crowded, ..Memory::new(Replacement::TwoQueues, frames as usize) };
            others[before].iter().for_each(|&page| memory.touch(page));
            let began = memory.faults;
            touches.iter().for_each(|&page| memory.touch(page));
            let (ours, all) = (memory.faults - began, touches.len() as u64);
            println!(
                "loop: ours {ours} of {all} ({} rewired), crowded: {is_crowded}, {before}",
                memory.rewired
            );
            assert!(ours * 5 < all * 3, "{ours} of {all}, at best a third; crowded: {is_crowded}, {before}");
        }
    }

    /// What was used often and is not any more goes, though what takes its place was used less.
    #[test]
    fn what_is_used_no_more_makes_room() {
        let (frames, pages) = (1 << 12, 3 << 10);
        let of = |base: u64, rounds: u64| (0..rounds * pages).map(move |turn| base + turn % pages);
        let mut memory = Memory::new(Replacement::TwoQueues, frames);
        of(0, 50).for_each(|page| memory.touch(page));
        assert_eq!(memory.faults, pages);
        let before = memory.faults;
        of(100_000, 60).for_each(|page| memory.touch(page));
        let warm = memory.faults - before;
        println!("moved: {warm} faults until {pages} others are known");
        assert!(warm < 20 * pages, "{warm} faults of {pages} pages that fit");
        let before = memory.faults;
        of(100_000, 10).for_each(|page| memory.touch(page));
        assert!(memory.faults - before < pages / 10, "{} faults still", memory.faults - before);
    }

    /// A candidate is judged under the lock that reads wait for.
    #[test]
    fn one_look_for_a_frame_passes_by_few_that_were_touched() {
        let mut order = Order::new(Replacement::TwoQueues);
        let coming = |page| Queued::coming(Entry { object: 0, page }, None, 0);
        (0..10_000).for_each(|page| order.arrive(coming(page), true, true));
        (10_000..11_000).for_each(|page| order.arrive(coming(page).counted(0), false, true));
        while let Some(frame) = order.next_to_unwire(|_| false) {
            order.unwired(frame, true, 0);
        }
        let look = |entry: Entry, _: bool| if entry.page < 10_000 { Look::Touched } else { Look::Idle };
        for _ in 0..10 {
            let before = order.looks();
            assert!(
                matches!(order.next(false, 0, look), Next::Reclaim(queued) if queued.entry.page >= 10_000)
            );
            let looks = order.looks() - before;
            assert!(looks <= 2 + MOST_TOUCHED, "{looks} looks");
        }
    }

    #[test]
    fn what_goes_next_is_unwired_first() {
        let mut order = Order::new(Replacement::TwoQueues);
        let coming = |page| Queued::coming(Entry { object: 0, page }, None, 0);
        (0..990).for_each(|page| order.arrive(coming(page), true, true));
        (990..1000).for_each(|page| order.arrive(coming(page), false, true));
        assert!(order.next_to_unwire(|_| false).unwrap().entry().page < 990);
        (1000..1100).for_each(|page| order.arrive(coming(page), false, true));
        assert!(order.next_to_unwire(|_| false).unwrap().entry().page >= 990);
    }

    /// Within so many percent: the simulator takes one page at a time, and these unwire and reclaim in batches, which tells more or less of what is used.
    #[test]
    fn by_the_sources_rule_the_pool_faults_as_often_as_the_simulator() {
        for (name, touches, most) in [("uniform", uniform(), 1), ("zipf", zipf(), 5), ("scan", scan(), 12)] {
            let frames = PAGES / 2;
            let (ours, _) = faults(Replacement::DontNeed, &touches, frames);
            let simulated = dont_need(&touches, frames);
            println!("{name}: {ours}, simulated {simulated}");
            assert!(
                ours.abs_diff(simulated) * 100 < simulated * most,
                "{name}: {ours}, simulated {simulated}"
            );
        }
    }

    #[test]
    fn the_sources_rule_sends_28_of_32_to_the_head() {
        let mut order = Order::new(Replacement::DontNeed);
        let stages: Vec<_> = (0..5120).map(|_| order.dont_need(false)).collect();
        let count = |stage| stages.iter().filter(|&&of| of == stage).count();
        let counts = [count(Some(Stage::NewHead)), count(Some(Stage::New)), count(None)];
        assert_eq!(counts, [28, 3, 1].map(|part| part * 5120 / 32));
    }

    /// Whatever came first: the source unwires the pages of a buffer as soon as it is idle, and leaves all others to the page daemon.
    #[test]
    fn by_the_sources_rule_what_is_in_no_buffer_goes_once_no_buffer_is_idle() {
        let mut order = Order::new(Replacement::DontNeed);
        let is_of_buffer = |entry: Entry| entry.page >= 512;
        for page in 0..1024 {
            let entry = Entry { object: 0, page };
            order.arrive(Queued::coming(entry, None, 0), false, is_of_buffer(entry));
        }
        let mut gone = Vec::new();
        while gone.len() < 400 {
            while let Some(frame) = order.next_to_unwire(|_| false) {
                order.unwired(frame, true, 0);
            }
            let next = std::iter::from_fn(|| match order.next(false, 0, |_, _| Look::Idle) {
                Next::Reclaim(queued) => Some(queued.entry),
                _ => None,
            });
            // A round of the pool's thread.
            gone.extend(next.take(64));
        }
        assert!(gone.iter().all(|&entry| is_of_buffer(entry)));
    }

    #[test]
    fn by_the_sources_rule_what_has_to_be_written_first_goes_to_the_tail() {
        let mut order = Order::new(Replacement::DontNeed);
        let stages = (0..5120).filter_map(|_| order.dont_need(true));
        assert!(stages.into_iter().all(|stage| stage == Stage::New));
    }

    #[test]
    fn what_is_held_never_goes_and_the_rest_does_at_last() {
        for replacement in [Replacement::TwoQueues, Replacement::DontNeed, Replacement::Static] {
            let mut order = Order::new(replacement);
            for page in 0..100 {
                order.arrive(
                    Queued::coming(Entry { object: 0, page }, None, 0),
                    page % 3 == 0,
                    page % 2 == 0,
                );
            }
            let look = |entry: Entry, _: bool| if entry.page == 63 { Look::Touched } else { Look::Held };
            // Touched whenever it is looked at: it goes where nothing else can.
            let forced = |entry: Entry, _: bool| if entry.page == 63 { Look::Idle } else { Look::Held };
            for _ in 0..4 {
                while let Some(frame) = order.next_to_unwire(|_| false) {
                    order.unwired(frame, true, 0);
                }
                assert!(!matches!(order.next(false, 0, look), Next::Reclaim(_) | Next::Forget(_)));
            }
            assert!(matches!(order.next(true, 0, forced), Next::Reclaim(queued) if queued.entry.page == 63));
            assert_eq!(order.next(true, 0, forced), Next::Nothing);
            assert_eq!(order.len(), 99);
        }
    }
}
