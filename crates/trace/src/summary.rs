//! A trace in a few numbers.

use prepage_core::{Fault, FaultClass, ObjectId, Tally};

/// Counts and costs of faults, by class and by object. Its memory does not grow with the number of faults.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    classes: [Tally; FaultClass::ALL.len()],
    objects: Vec<Tally>,
    /// Of no known mapping.
    unknown: Tally,
}

impl Summary {
    /// Counts `fault`.
    pub fn add(&mut self, fault: &Fault) {
        self.classes[fault.class as usize].add(fault);
        let Some(ObjectId(number)) = fault.object else { return self.unknown.add(fault) };
        let number = number as usize;
        if number >= self.objects.len() {
            self.objects.resize(number + 1, Tally::default());
        }
        self.objects[number].add(fault);
    }

    /// The faults of `class`.
    pub fn class(&self, class: FaultClass) -> Tally {
        self.classes[class as usize]
    }

    /// All faults.
    pub fn total(&self) -> Tally {
        let mut total = Tally::default();
        self.classes.iter().for_each(|class| total.merge(class));
        total
    }

    /// The objects that had faults; `None` for memory of no known mapping.
    pub fn objects(&self) -> impl Iterator<Item = (Option<ObjectId>, Tally)> + '_ {
        let numbered = self.objects.iter().enumerate().map(|(at, tally)| (Some(ObjectId(at as u32)), *tally));
        numbered.chain([(None, self.unknown)]).filter(|(_, tally)| tally.count > 0)
    }
}

#[cfg(test)]
mod tests {
    use prepage_core::ThreadIndex;

    use super::*;

    fn fault(class: FaultClass, cost_ns: Option<u64>, object: Option<u32>) -> Fault {
        let fault = Fault::new(0, ThreadIndex(0), 0, class);
        Fault { cost_ns, object: object.map(ObjectId), ..fault }
    }

    #[test]
    fn means_leave_out_what_has_no_cost() {
        let mut summary = Summary::default();
        summary.add(&fault(FaultClass::Disk, Some(300), Some(2)));
        summary.add(&fault(FaultClass::Disk, None, Some(0)));
        summary.add(&fault(FaultClass::Cached, Some(100), Some(0)));
        summary.add(&fault(FaultClass::Failed, None, None));
        assert_eq!(summary.class(FaultClass::Disk).mean_ns(), Some(300.0));
        assert_eq!(summary.class(FaultClass::Failed).mean_ns(), None);
        let total = summary.total();
        assert_eq!((total.count, total.timed, total.cost_ns), (4, 2, 400));
        let objects = summary.objects().map(|(id, tally)| (id.map(|id| id.0), tally.count, tally.disk));
        assert_eq!(objects.collect::<Vec<_>>(), [(Some(0), 2, 1), (Some(2), 1, 1), (None, 1, 0)]);
    }
}
