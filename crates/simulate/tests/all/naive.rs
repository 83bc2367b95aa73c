//! The replay against a plain model of its rules.

use std::collections::HashSet;

use prepage_core::policy::{FaultAt, NothingResident, Policy};
use prepage_core::{PageIndex, PageRange};
use prepage_simulate::{Replay, Touch};
use proptest::prelude::*;

/// Policies given by two numbers, with the state that the adaptive one needs.
struct Naive {
    name: &'static str,
    next: i64,
    window: i64,
}

const NAIVE: [&str; 7] =
    ["none", "around:8:7", "aligned:16", "sequential", "obl", "readaround:32", "adaptive"];

impl Naive {
    /// Pages behind and ahead for a fault at page `page` of the object.
    fn wish(&mut self, page: i64) -> (i64, i64) {
        match self.name {
            "none" => (0, 0),
            "around:8:7" => (8, 7),
            "aligned:16" => (page % 16, 15 - page % 16),
            "sequential" => (0, 31),
            "obl" => (0, 1),
            "readaround:32" => {
                let start = 0.max(page - 16);
                (page - start, start + 31 - page)
            }
            _ if page == self.next => {
                self.window = if self.window == 0 { 7 } else { 31.min(7 + self.window + 1) };
                (0, self.window)
            }
            _ => {
                self.window = 0;
                (page % 16, 15 - page % 16)
            }
        }
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    hard: u64,
    soft: u64,
    read: u64,
    never: u64,
    full512: u64,
}

/// One entry, from `start` to `end`, of one object.
fn naive(name: &'static str, object: i64, start: i64, end: i64, given: &[i64], touches: &[i64]) -> Counts {
    let mut policy = Naive { name, next: start, window: 15 };
    let mut resident: HashSet<i64> = given.iter().copied().collect();
    let (mut mapped, mut read, mut touched) = (HashSet::new(), HashSet::new(), HashSet::new());
    let mut counts = Counts::default();
    for page in touches.iter().map(|touch| touch + start) {
        touched.insert(page);
        if mapped.contains(&page) {
            continue;
        }
        let (behind, ahead) = if resident.contains(&page) {
            counts.soft += 1;
            (4, 4)
        } else {
            counts.hard += 1;
            let (mut behind, mut ahead) = policy.wish(page);
            behind = behind.min(page - start);
            ahead = ahead.min(end - 1 - page);
            behind = (0..behind).find(|distance| resident.contains(&(page - distance - 1))).unwrap_or(behind);
            ahead = (0..ahead).find(|distance| resident.contains(&(page + distance + 1))).unwrap_or(ahead);
            for new in page - behind..=page + ahead {
                assert!((start..end).contains(&new) && new < object);
                resident.insert(new);
                read.insert(new);
            }
            policy.next = page + ahead + 1;
            (behind, ahead)
        };
        mapped.insert(page);
        'spiral: for distance in 1..=behind.max(ahead) {
            for (neighbour, reach) in [(page - distance, behind), (page + distance, ahead)] {
                if distance > reach || neighbour < start || neighbour >= end {
                    continue;
                }
                if !resident.contains(&neighbour) {
                    break 'spiral;
                }
                mapped.insert(neighbour);
            }
        }
    }
    counts.read = read.len() as u64;
    counts.never = read.difference(&touched).count() as u64;
    let full = |block: &i64| (block * 512..block * 512 + 512).all(|page| resident.contains(&page));
    counts.full512 = (0..object / 512).filter(full).count() as u64;
    counts
}

/// An object with an entry in it, what is resident, and touches that come in short runs.
fn cases() -> impl Strategy<Value = (i64, i64, i64, Vec<i64>, Vec<i64>)> {
    (1_i64..1500).prop_flat_map(|object| {
        (0..object).prop_flat_map(move |start| {
            (1..=object - start).prop_flat_map(move |pages| {
                let run = (0..pages, 1_i64..30);
                (
                    Just((object, start, start + pages)),
                    prop::collection::vec(0..object, 0..20),
                    prop::collection::vec(run, 1..40),
                )
                    .prop_map(move |((object, start, end), given, runs)| {
                        let pages_of = |(first, len): (i64, i64)| first..(first + len).min(pages);
                        (object, start, end, given, runs.into_iter().flat_map(pages_of).collect())
                    })
            })
        })
    })
}

fn page_range(first: i64, len: u64) -> PageRange {
    PageRange::new(PageIndex(first as u64), PageIndex(first as u64 + len))
}

proptest! {
    #[test]
    fn the_replay_does_what_the_rules_say((object, start, end, given, touches) in cases()) {
        for name in NAIVE {
            let mut replay = Replay::new();
            let index = replay.add_object(object as u64);
            given.iter().for_each(|&page| replay.give(index, page_range(page, 1)));
            let policy = name.parse().unwrap();
            let entry = replay.add_entry(index, start as u64, (end - start) as u64, policy);
            touches.iter().for_each(|&page| replay.touch(Touch::new(entry, page as u64)));
            let outcome = replay.outcome();
            let found = Counts {
                hard: outcome.hard,
                soft: outcome.soft,
                read: outcome.read,
                never: outcome.never,
                full512: outcome.full512,
            };
            prop_assert_eq!(found, naive(name, object, start, end, &given, &touches), "{}", name);
            prop_assert_eq!(outcome.io, outcome.hard, "{}", name);
        }
    }

    #[test]
    fn no_policy_reads_outside_of_the_entry(
        (object, start, end, given, touches) in cases(),
        policy in prop::sample::select(vec![
            "none", "around:40:90", "aligned:64", "sequential:255", "adaptive:max=63", "linux-data", "linux-exec",
            "linux-data:ra=2048", "context", "slurp", "predicted",
        ]),
    ) {
        let policy: Policy = policy.parse().unwrap();
        let mut replay = Replay::new();
        let index = replay.add_object(object as u64);
        given.iter().for_each(|&page| replay.give(index, page_range(page, 1)));
        let entry = replay.add_entry(index, start as u64, (end - start) as u64, policy);
        touches.iter().for_each(|&page| replay.touch(Touch::new(entry, page as u64)));
        // What was not given and lies outside must still be missing.
        for page in (0..start).chain(end..object) {
            let expected = given.contains(&page);
            prop_assert_eq!(replay.is_resident(index, PageIndex(page as u64)), expected, "page {}", page);
        }
        let outcome = replay.outcome();
        prop_assert!(outcome.read <= (end - start) as u64);
        prop_assert!(outcome.never <= outcome.read && outcome.hard <= outcome.io);
    }

    #[test]
    fn a_clipped_cluster_is_one_run_of_missing_pages_around_the_fault(
        page in 0_u64..200,
        start in 0_u64..200,
        len in 1_u64..200,
        policy in prop::sample::select(vec!["around:8:7", "aligned:16", "readaround:32", "slurp", "linux-data", "context"]),
    ) {
        let window = PageRange::new(PageIndex(start), PageIndex(start + len));
        let fault = FaultAt { page: PageIndex(start + page % len), window };
        let policy: Policy = policy.parse().unwrap();
        let run = policy.hard(&mut policy.entry(window), &fault, &NothingResident).clip(&fault, &NothingResident);
        prop_assert!(run.contains(fault.page) && run.start() >= window.start() && run.end() <= window.end());
    }
}
