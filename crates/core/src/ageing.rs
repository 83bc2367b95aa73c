//! The simple ways to age a set of pages, for comparison: what [`crate::trial`] does is measured against them.
//!
//! They presume to know exactly which pages each run touched. Nobody does who prefetches: a page that was brought in
//! looks used. Without that knowledge each of them becomes [`Ageing::Accumulate`].

use std::collections::{BTreeMap, BTreeSet};

/// How long pages stay in the set that is prefetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ageing {
    /// For ever.
    Accumulate,
    /// Until a run does not touch them: the set is what the last run touched.
    KeepLast,
    /// Until this many runs in a row did not touch them.
    DropAfter(u32),
}

/// One run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Pages prefetched.
    pub prefetched: u64,
    /// Of these, not touched.
    pub wasted: u64,
    /// Pages touched that were not prefetched.
    pub missed: u64,
}

impl Round {
    /// The round of a run that touched `touched` after `prefetched` was brought in.
    pub fn new(prefetched: &BTreeSet<u64>, touched: &BTreeSet<u64>) -> Self {
        Self {
            prefetched: prefetched.len() as u64,
            wasted: prefetched.difference(touched).count() as u64,
            missed: touched.difference(prefetched).count() as u64,
        }
    }
}

impl Ageing {
    /// What becomes of `runs`, each the set of pages it touched.
    pub fn replay(self, runs: &[BTreeSet<u64>]) -> Vec<Round> {
        // By page: runs in a row that did not touch it.
        let mut idle: BTreeMap<u64, u32> = BTreeMap::new();
        let mut rounds = Vec::new();
        for touched in runs {
            rounds.push(Round::new(&idle.keys().copied().collect(), touched));
            idle.values_mut().for_each(|runs| *runs += 1);
            idle.extend(touched.iter().map(|&page| (page, 0)));
            let most = match self {
                Self::Accumulate => u32::MAX,
                Self::KeepLast => 1,
                Self::DropAfter(runs) => runs,
            };
            idle.retain(|_, runs| *runs < most);
        }
        rounds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The worked example: five runs that touch {0–9}, {0–4, 20}, {0–4, 20}, {0–4, 20, 21}, {0–4, 20}.
    #[test]
    fn the_worked_example_comes_out() {
        let with = |more: &[u64]| (0..5).chain(more.iter().copied()).collect::<BTreeSet<u64>>();
        let runs = [(0..10).collect(), with(&[20]), with(&[20]), with(&[20, 21]), with(&[20])];
        let shape = |policy: Ageing| -> Vec<(u64, u64)> {
            policy.replay(&runs).iter().map(|round| (round.prefetched, round.wasted)).collect()
        };
        assert_eq!(shape(Ageing::Accumulate), [(0, 0), (10, 5), (11, 5), (11, 5), (12, 6)]);
        assert_eq!(shape(Ageing::KeepLast), [(0, 0), (10, 5), (6, 0), (6, 0), (7, 1)]);
        assert_eq!(shape(Ageing::DropAfter(2)), [(0, 0), (10, 5), (11, 5), (6, 0), (7, 1)]);
    }
}
