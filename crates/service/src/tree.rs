//! Whose start a process belongs to: what a program starts itself is part of its own start, and of its profile.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use prepage_sys::sync::Anyway;

/// More processes than start in any window; where there are more, the oldest are forgotten.
const STARTS_MAX: usize = 4096;

/// No start is under way for longer. What a process started before has no part in its start.
pub const WINDOW_MAX: Duration = Duration::from_secs(30);

/// The starts under way. Lock order: none, there is one lock.
#[derive(Debug, Default)]
pub struct Tree {
    starts: Mutex<HashMap<u32, (Kind, Below, Instant)>>,
}

/// Below which root a start looks names up. What a program starts in a container has no part in its own start outside: its profile could not name
/// the container's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Below {
    /// That was not looked at: any.
    AnyRoot,
    /// This one, by device and inode; `None` for the machine's.
    Root(Option<(u64, u64)>),
}

impl Below {
    fn meets(self, other: Self) -> bool {
        self == other || [self, other].contains(&Self::AnyRoot)
    }
}

/// What is done for a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// It is fetched for by a profile that covers what it starts, or observed with all that it starts.
    Covered,
    /// Nothing is fetched for it, nor for what it starts.
    HeldOut,
    /// `prepage run` serves it.
    ByPrefix,
}

impl Tree {
    /// The start of process `pid` is under way for `window`.
    pub fn begin(&self, pid: u32, below: Below, kind: Kind, window: Duration) {
        let mut starts = self.starts.lock().anyway();
        if starts.len() >= STARTS_MAX {
            let now = Instant::now();
            starts.retain(|_, (.., until)| *until > now);
            if starts.len() >= STARTS_MAX {
                starts.clear();
            }
        }
        starts.insert(pid, (kind, below, Instant::now() + window));
    }

    /// Whether a start is held out that may be under way.
    pub fn holds_out(&self) -> bool {
        let starts = self.starts.lock().anyway();
        let now = Instant::now();
        starts.values().any(|(kind, _, until)| *kind == Kind::HeldOut && *until > now)
    }

    /// What is done for the start that process `pid`, whose parents are `parents`, belongs to.
    pub fn of(&self, pid: u32, below: Below, parents: &[u32]) -> Option<Kind> {
        let starts = self.starts.lock().anyway();
        let now = Instant::now();
        let is_meant = |(_, other, until): &&(Kind, Below, Instant)| *until > now && below.meets(*other);
        let under_way = |pid: &u32| starts.get(pid).filter(is_meant).map(|(kind, ..)| *kind);
        std::iter::once(&pid).chain(parents).filter_map(under_way).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Below = Below::Root(None);

    #[test]
    fn what_is_started_in_a_container_has_no_part_in_the_start_outside() {
        let tree = Tree::default();
        let [one, other] = [1, 2].map(|inode| Below::Root(Some((7, inode))));
        tree.begin(10, HERE, Kind::Covered, Duration::from_secs(3600));
        tree.begin(11, one, Kind::HeldOut, Duration::from_secs(3600));
        let of = |below| tree.of(12, below, &[11, 10]);
        assert_eq!([of(HERE), of(one), of(other)], [Some(Kind::Covered), Some(Kind::HeldOut), None]);
        assert_eq!(of(Below::AnyRoot), Some(Kind::HeldOut));
        tree.begin(12, Below::AnyRoot, Kind::ByPrefix, Duration::from_secs(3600));
        assert_eq!(of(other), Some(Kind::ByPrefix));
    }

    #[test]
    fn a_process_belongs_to_the_start_of_its_parents_until_that_is_over() {
        let tree = Tree::default();
        tree.begin(10, HERE, Kind::Covered, Duration::from_secs(3600));
        tree.begin(11, HERE, Kind::ByPrefix, Duration::ZERO);
        assert_eq!(tree.of(12, HERE, &[11, 10, 1]), Some(Kind::Covered));
        assert_eq!((tree.of(12, HERE, &[11, 1]), tree.of(10, HERE, &[])), (None, Some(Kind::Covered)));
        tree.begin(12, HERE, Kind::ByPrefix, Duration::from_secs(3600));
        assert_eq!(tree.of(12, HERE, &[10]), Some(Kind::ByPrefix));
        assert!(!tree.holds_out());
        tree.begin(13, HERE, Kind::HeldOut, Duration::from_secs(3600));
        assert!(tree.holds_out());
        assert_eq!(
            tree.of(14, HERE, &[10, 13]),
            Some(Kind::HeldOut),
            "a part of a start that is held out is held out"
        );
        for pid in 100..100 + 2 * STARTS_MAX as u32 {
            tree.begin(pid, HERE, Kind::Covered, Duration::from_secs(3600));
        }
        assert!(tree.starts.lock().unwrap().len() <= STARTS_MAX);
    }
}
