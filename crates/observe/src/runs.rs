//! Sets of addresses, as runs (start, end) in order that do not overlap.

/// A run of addresses: the first, and one past the last.
pub(crate) type Run = (u64, u64);

/// What of `runs` is not in `others`.
pub(crate) fn without(runs: &[Run], others: &[Run]) -> Vec<Run> {
    let mut left = Vec::new();
    let mut at = 0;
    for &(mut start, end) in runs {
        while others.get(at).is_some_and(|other| other.1 <= start) {
            at += 1;
        }
        for &(other_start, other_end) in others[at..].iter().take_while(|other| other.0 < end) {
            if start < other_start {
                left.push((start, other_start));
            }
            start = other_end;
        }
        if start < end {
            left.push((start, end));
        }
    }
    left
}

/// All of `runs` and `others`.
pub(crate) fn joined(runs: &[Run], others: &[Run]) -> Vec<Run> {
    let mut all = [runs, others].concat();
    // Two lists in order, which a stable sort merges.
    all.sort();
    all.dedup_by(|next, last| {
        let touches = next.0 <= last.1;
        if touches {
            last.1 = last.1.max(next.1);
        }
        touches
    });
    all
}

/// What of `runs` lies within `run`.
pub(crate) fn within(runs: &[Run], run: Run) -> impl Iterator<Item = Run> {
    let from = runs.partition_point(|one| one.1 <= run.0);
    let within = runs[from..].iter().take_while(move |one| one.0 < run.1);
    within.map(move |one| (one.0.max(run.0), one.1.min(run.1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_addresses_are_as_sets_of_numbers() {
        let set = |bits: u32| -> Vec<Run> {
            let bits = (0..8).filter(|bit| bits >> bit & 1 == 1);
            bits.fold(Vec::new(), |runs, bit| joined(&runs, &[(bit, bit + 1)]))
        };
        for one in 0..256 {
            for other in 0..256 {
                let (runs, others) = (set(one), set(other));
                assert_eq!(without(&runs, &others), set(one & !other));
                assert_eq!(joined(&without(&runs, &others), &others), set(one | other));
            }
            let middle: Vec<Run> = within(&set(one), (2, 6)).collect();
            assert_eq!(middle, set(one & 0b11_1100));
        }
    }
}
