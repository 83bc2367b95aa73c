//! Memory that is too small: how many faults a sequence of touches takes when only so many pages fit.
//!
//! Pages come one by one here, without clusters. [`lru`] and [`working_set`] give every size in one pass, for what a
//! smaller memory holds, a larger one holds too (Mattson, Gecsei, Slutz and Traiger, "Evaluation techniques for storage
//! hierarchies", 1970). The others are asked for one size at a time: FIFO, CLOCK, 2Q, S3-FIFO and FreeBSD's dont-need have no such order, and
//! finding OPT's for all sizes takes a pass over the stack for each touch where one size takes a heap.

mod offline;
mod online;

use std::collections::HashMap;

pub use offline::{dpmin, opt};
pub use online::{clock, dont_need, fifo, s3_fifo, two_q};

/// Numbers of faults by memory size, or by window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Distances {
    /// At `[d]`: touches whose page was touched before at distance `d`; `[0]` is unused.
    by_distance: Vec<u64>,
    /// Touches of pages never touched before.
    first: u64,
}

impl Distances {
    fn new() -> Self {
        Self { by_distance: vec![0], first: 0 }
    }

    fn add(&mut self, distance: usize) {
        if self.by_distance.len() <= distance {
            self.by_distance.resize(distance + 1, 0);
        }
        self.by_distance[distance] += 1;
    }

    /// Faults where touches up to `reach` away are hits: memory of `reach` pages for [`lru`], a window of `reach`
    /// touches for [`working_set`].
    pub fn faults(&self, reach: u64) -> u64 {
        let beyond = usize::try_from(reach).unwrap_or(usize::MAX).saturating_add(1);
        self.first + self.by_distance.iter().skip(beyond).sum::<u64>()
    }
}

/// LRU stack distances: how many different pages were touched since a page was touched before, itself included. O(n log n).
pub fn lru(touches: &[u64]) -> Distances {
    let mut distances = Distances::new();
    // A tree of sums over time, 1 where some page was touched last.
    let mut latest = Sums::new(touches.len());
    let mut last: HashMap<u64, usize> = HashMap::new();
    for (now, &page) in touches.iter().enumerate() {
        match last.insert(page, now) {
            None => distances.first += 1,
            Some(before) => {
                distances.add(latest.up_to(now) - latest.up_to(before));
                latest.add(before, -1);
            }
        }
        latest.add(now, 1);
    }
    distances
}

/// Distances in touches, whatever was touched between: a page is in memory for the window's length after each touch
/// (Denning, "The working set model for program behavior", 1968).
pub fn working_set(touches: &[u64]) -> Distances {
    let mut distances = Distances::new();
    let mut last: HashMap<u64, usize> = HashMap::new();
    for (now, &page) in touches.iter().enumerate() {
        match last.insert(page, now) {
            None => distances.first += 1,
            Some(before) => distances.add(now - before),
        }
    }
    distances
}

/// Memory sizes to look at up to `pages`: one, and then about four for each doubling.
pub fn sizes(pages: u64) -> Vec<u64> {
    let mut sizes = Vec::new();
    let mut size = 1.0_f64;
    while (size as u64) < pages {
        sizes.push(size as u64);
        size *= std::f64::consts::SQRT_2.sqrt();
    }
    sizes.push(pages);
    sizes.dedup();
    sizes
}

/// A Fenwick tree: sums of prefixes under changes, both in O(log n).
struct Sums {
    tree: Vec<i64>,
}

impl Sums {
    fn new(len: usize) -> Self {
        Self { tree: vec![0; len + 1] }
    }

    fn add(&mut self, at: usize, change: i64) {
        let mut node = at + 1;
        while node < self.tree.len() {
            self.tree[node] += change;
            node += node & node.wrapping_neg();
        }
    }

    /// The sum of what stands at `[0, end)`.
    fn up_to(&self, end: usize) -> usize {
        let mut node = end;
        let mut sum = 0;
        while node > 0 {
            sum += self.tree[node];
            node &= node - 1;
        }
        sum as usize
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STRING: [u64; 12] = [1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5];

    #[test]
    fn the_worked_example_comes_out() {
        let each = |faults: fn(&[u64], u64) -> u64| [1, 2, 3, 4, 5].map(|size| faults(&STRING, size));
        assert_eq!(each(fifo), [12, 12, 9, 10, 5]);
        assert_eq!(each(opt), [12, 9, 7, 6, 5]);
        assert_eq!(each(dpmin), [12, 6, 4, 3, 1]);
        assert_eq!([1, 2, 3, 4, 5].map(|size| lru(&STRING).faults(size)), [12, 12, 10, 8, 5]);
        assert_eq!([1, 2, 3, 4, 5].map(|window| working_set(&STRING).faults(window)), [12, 12, 10, 8, 7]);
        assert_eq!(lru(&STRING), Distances { by_distance: vec![0, 0, 0, 2, 2, 3], first: 5 });
    }

    #[test]
    fn sizes_rise_to_the_last() {
        assert_eq!(sizes(1), [1]);
        assert_eq!(sizes(8), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert!(sizes(1_000_000).is_sorted() && sizes(1_000_000).len() < 90);
    }

    /// LRU by a list, the page touched last in front.
    fn naive_lru(touches: &[u64], memory_pages: usize) -> u64 {
        let mut memory: Vec<u64> = Vec::new();
        let mut faults = 0;
        for &page in touches {
            match memory.iter().position(|&held| held == page) {
                Some(at) => {
                    memory.remove(at);
                }
                None => faults += 1,
            }
            memory.insert(0, page);
            memory.truncate(memory_pages);
        }
        faults
    }

    /// Fewest faults over all choices of what to throw out.
    fn best(touches: &[u64], memory: &mut Vec<u64>, memory_pages: usize) -> u64 {
        let Some((&page, rest)) = touches.split_first() else { return 0 };
        if memory.contains(&page) {
            return best(rest, memory, memory_pages);
        }
        if memory.len() < memory_pages {
            memory.push(page);
            let faults = 1 + best(rest, memory, memory_pages);
            memory.pop();
            return faults;
        }
        let choices = (0..memory.len()).map(|out| {
            let thrown = std::mem::replace(&mut memory[out], page);
            let before = memory.clone();
            let faults = 1 + best(rest, memory, memory_pages);
            *memory = before;
            memory[out] = thrown;
            faults
        });
        choices.min().unwrap_or(0)
    }

    proptest! {
        #[test]
        fn lru_in_one_pass_is_lru_size_by_size(touches in prop::collection::vec(0_u64..12, 0..80)) {
            let all = lru(&touches);
            for size in 1..14 {
                prop_assert_eq!(all.faults(size), naive_lru(&touches, size as usize));
            }
        }

        #[test]
        fn more_memory_never_hurts_lru_opt_and_dpmin(touches in prop::collection::vec(0_u64..20, 0..200)) {
            for size in 1..20 {
                prop_assert!(lru(&touches).faults(size) >= lru(&touches).faults(size + 1));
                prop_assert!(opt(&touches, size) >= opt(&touches, size + 1));
                prop_assert!(dpmin(&touches, size) >= dpmin(&touches, size + 1));
            }
        }

        #[test]
        fn nothing_beats_opt_but_prepaging(touches in prop::collection::vec(0_u64..20, 0..200), size in 1_u64..20) {
            let best = opt(&touches, size);
            prop_assert!(best <= lru(&touches).faults(size) && best <= fifo(&touches, size));
            prop_assert!(dpmin(&touches, size) <= best);
        }

        #[test]
        fn opt_is_the_best_of_all_choices(touches in prop::collection::vec(0_u64..5, 0..12), size in 1_u64..4) {
            prop_assert_eq!(opt(&touches, size), best(&touches, &mut Vec::new(), size as usize));
        }
    }
}
