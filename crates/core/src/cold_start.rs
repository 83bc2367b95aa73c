//! Cold starts as a profile remembers them: what it was worth, on which device.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Starts of one kind on one device that are kept.
pub const KEPT_OF_A_KIND: usize = 9;
/// Starts that are kept in all.
pub const KEPT: usize = 48;

/// One start from a cold cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ColdStart {
    /// When, seconds since 1970. Later starts have larger times, whatever the clock did.
    pub unix_s: u64,
    /// `st_dev` of the file system that holds the executable.
    pub device: u64,
    /// Whether nothing was prefetched, to see what prefetching is worth.
    pub held_out: bool,
    /// From the exec to the end of the program; where that ran for 5 s and more, to the last wait for the device before a
    /// second without one. 0 where it is not known, microseconds.
    pub took_us: u32,
    /// Pages that were brought in ahead.
    pub prefetched_pages: u32,
    /// Pages that the program had to wait for.
    pub missed_pages: u32,
    /// Predicted pages that were left out or seen by themselves and then used.
    pub tested_used_pages: u32,
    /// Predicted pages that were left out or seen by themselves and not used.
    pub tested_unused_pages: u32,
    /// Share of the prefetched pages that were not used, in thousandths, as the tests of this start tell.
    pub waste_permille: u16,
}

/// The newest starts of both lists, oldest first. Commutative, associative and idempotent.
pub fn newest(one: &[ColdStart], other: &[ColdStart]) -> Vec<ColdStart> {
    let mut all: Vec<ColdStart> = one.iter().chain(other).copied().collect();
    all.sort_unstable_by(|a, b| b.cmp(a));
    all.dedup();
    let mut kinds: BTreeMap<(u64, bool), usize> = BTreeMap::new();
    all.retain(|start| {
        let of_its_kind = kinds.entry((start.device, start.held_out)).or_default();
        *of_its_kind += 1;
        *of_its_kind <= KEPT_OF_A_KIND
    });
    all.truncate(KEPT);
    all.reverse();
    all
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn starts() -> impl Strategy<Value = Vec<ColdStart>> {
        let start =
            (0u64..40, 0u64..6, any::<bool>(), 0u32..3).prop_map(|(unix_s, device, held_out, took_us)| {
                ColdStart { unix_s, device, held_out, took_us, ..ColdStart::default() }
            });
        prop::collection::vec(start, 0..60)
    }

    proptest! {
        #[test]
        fn keeping_the_newest_is_a_join(a in starts(), b in starts(), c in starts()) {
            let ab = newest(&a, &b);
            prop_assert_eq!(&ab, &newest(&b, &a));
            prop_assert_eq!(&ab, &newest(&ab, &ab));
            prop_assert_eq!(newest(&ab, &c), newest(&a, &newest(&b, &c)));
            prop_assert!(ab.len() <= KEPT);
            prop_assert!(ab.is_sorted());
        }
    }
}
