//! In which order frames are unwired and reclaimed: decisions alone, no frame is touched here.
//!
//! ```text
//!              unwire            reclaim
//!   new ─► wired ───► idle ─┬──────────► remembered by a stamp ─► kept, when it comes back soon
//!            │              └ touched ─┐
//!            │ unwire                  ▼
//!   kept ─► wired ──► idle ── touched: back to the end of `wired` ── else reclaimed
//! ```
//! Idle frames are unwired: a touch of one is seen, and costs a fault. Frames that come are new, a tenth of all: what is
//! touched once, or a few times at once, goes again and leaves what is kept alone (as 2Q and S3-FIFO do; that a frame is
//! watched for the second half of its time as a new one alone takes the place of their counts). What is kept goes around as
//! under CLOCK.

use std::collections::VecDeque;

/// One in so many frames may be new before new ones are reclaimed first.
const NEW_PART: usize = 10;
/// One in so many new frames is watched before it is reclaimed, and one in so many kept ones.
const NEW_IDLE_PART: usize = 2;
const KEPT_IDLE_PART: usize = 8;
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
pub(crate) enum Stage {
    /// Behind the other idle frames that are new, and before them.
    New,
    NewHead,
    /// Behind those that are kept.
    Kept,
}

#[derive(Debug, Default)]
struct Queue {
    wired: VecDeque<Entry>,
    /// With whether a touch of the frame can be seen.
    idle: VecDeque<(Entry, bool)>,
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

    /// A page came into memory; `again` where it was reclaimed not long ago.
    pub(crate) fn arrive(&mut self, entry: Entry, again: bool) {
        let queue = match self.replacement {
            Replacement::TwoQueues if again => &mut self.kept,
            _ => &mut self.new,
        };
        queue.wired.push_back(entry);
    }

    /// The next frame to reclaim; `look` tells what became of one, and is told whether its touches can be seen. Where
    /// `forced`, every frame is looked at, idle or not, before there is none.
    pub(crate) fn next(&mut self, forced: bool, look: impl Fn(Entry, bool) -> Look) -> Next {
        let len = self.len();
        for turn in 0..=2 * len {
            // Where one queue holds nothing that may go, the other's turn comes.
            let from_new = self.takes_new() != (forced && turn > len);
            let queue = if from_new { &mut self.new } else { &mut self.kept };
            let of_wired = |entry| (entry, false);
            let popped = match self.replacement {
                Replacement::Static => queue.wired.pop_front().map(of_wired),
                _ if forced => queue.idle.pop_front().or_else(|| queue.wired.pop_front().map(of_wired)),
                _ => queue.idle.pop_front(),
            };
            let Some((entry, watched)) = popped else {
                match forced {
                    true => continue,
                    false if len == 0 => return Next::Nothing,
                    false => return Next::Unwire,
                }
            };
            self.looks += 1;
            let stays = match self.replacement {
                Replacement::TwoQueues => &mut self.kept,
                _ => &mut self.new,
            };
            match look(entry, watched) {
                Look::Gone => return Next::Forget(entry),
                Look::Held | Look::Touched => stays.wired.push_back(entry),
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
    pub(crate) fn next_to_unwire(&mut self) -> Option<(Stage, Entry)> {
        let new_part = match self.replacement {
            Replacement::TwoQueues => NEW_IDLE_PART,
            Replacement::DontNeed => DONT_NEED_IDLE_PART,
            Replacement::Static => return None,
        };
        while self.new.lacks_idle(new_part) > 0 {
            let entry = self.new.wired.pop_front()?;
            if self.replacement != Replacement::DontNeed {
                return Some((Stage::New, entry));
            }
            match self.dont_need() {
                Some(stage) => return Some((stage, entry)),
                None => self.new.wired.push_back(entry),
            }
        }
        // What is kept costs faults to watch: only where one of it goes next.
        if !self.takes_new() && self.kept.lacks_idle(KEPT_IDLE_PART) > 0 {
            return self.kept.wired.pop_front().map(|entry| (Stage::Kept, entry));
        }
        None
    }

    /// A frame was unwired, or could not be: `watched` tells whether its touches are seen from now on.
    pub(crate) fn unwired(&mut self, stage: Stage, entry: Entry, watched: bool) {
        match stage {
            Stage::New => self.new.idle.push_back((entry, watched)),
            Stage::NewHead => self.new.idle.push_front((entry, watched)),
            Stage::Kept => self.kept.idle.push_back((entry, watched)),
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
