//! Which faults stand for all, where all would be too many.

use prepage_core::FaultClass;
use prepage_core::random::mix;

use crate::costs::Costs;

/// Of each class all faults, or one in so many, chosen by a hash of their row: no pattern in the order of faults can leave
/// out a class or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    one_in: [u64; FaultClass::ALL.len()],
}

impl Choice {
    /// About `limit` faults of those counted in `classes`. Rare classes stay whole.
    pub fn of(classes: &[Costs; FaultClass::ALL.len()], limit: u64) -> Self {
        let counts: [u64; FaultClass::ALL.len()] = std::array::from_fn(|class| classes[class].tally.count);
        let mut order: Vec<usize> = (0..counts.len()).collect();
        order.sort_by_key(|&class| counts[class]);
        let mut left = limit.max(1);
        let mut one_in = [1; FaultClass::ALL.len()];
        for (place, &class) in order.iter().enumerate() {
            let share = (left / (counts.len() - place) as u64).max(1);
            one_in[class] = counts[class].div_ceil(share).max(1);
            left = left.saturating_sub(counts[class] / one_in[class]);
        }
        Self { one_in }
    }

    /// Whether the fault in this row of the file, of this class, is chosen.
    pub fn takes(&self, class: FaultClass, row: u64) -> bool {
        let one_in = self.one_in[class as usize];
        one_in == 1 || mix(row).is_multiple_of(one_in)
    }

    /// How many faults one that is chosen stands for.
    pub fn stands_for(&self, class: FaultClass) -> i32 {
        i32::try_from(self.one_in[class as usize]).unwrap_or(i32::MAX)
    }

    /// What is chosen of each class, where it is not all.
    pub fn left_out(&self) -> Vec<String> {
        let thinned = FaultClass::ALL.iter().zip(self.one_in).filter(|(_, one_in)| *one_in > 1);
        thinned.map(|(class, one_in)| format!("one in {one_in} {} faults", class.name())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alternating_classes_all_keep_their_share() {
        const ROWS: u64 = 140_000;
        let classes = FaultClass::ALL;
        let of_row = |row: u64| classes[row as usize % classes.len()];
        let mut costs = Costs::default();
        costs.tally.count = ROWS / 7;
        let choice = Choice::of(&std::array::from_fn(|_| costs.clone()), 14_000);
        assert_eq!(choice.one_in, [10; 7]);
        for class in classes {
            let taken = (0..ROWS).filter(|&row| of_row(row) == class && choice.takes(class, row)).count();
            // Of 20,000, 2,000 by chance: five times the deviation of such a draw.
            assert!(taken.abs_diff(2000) < 5 * 43, "{}: {taken}", class.name());
        }
        assert_eq!(choice.left_out().len(), classes.len());
    }

    #[test]
    fn rare_classes_stay_whole() {
        let mut classes: [Costs; FaultClass::ALL.len()] = Default::default();
        (classes[0].tally.count, classes[2].tally.count) = (10, 1_000_000);
        let choice = Choice::of(&classes, 1000);
        assert!((0..100).all(|row| choice.takes(FaultClass::Disk, row)));
        assert_eq!(choice.left_out(), ["one in 1011 cached faults"]);
    }
}
