//! A trace in a few numbers.

use prepage_core::{Fault, FaultClass, ObjectId};

/// Counts and costs of faults, by class and by object. Its memory does not grow with the number of faults.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    classes: [Tally; FaultClass::ALL.len()],
    objects: Vec<ObjectTally>,
}

/// Faults of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many.
    pub count: u64,
    /// Of how many the cost is known.
    pub timed: u64,
    /// The cost of those, together.
    pub cost_ns: u64,
}

/// Faults on one object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectTally {
    /// All.
    pub all: Tally,
    /// Those that read from a device.
    pub disk: u64,
}

impl Summary {
    /// Counts `fault`.
    pub fn add(&mut self, fault: &Fault) {
        self.classes[fault.class as usize].add(fault);
        if let Some(ObjectId(number)) = fault.object {
            let number = number as usize;
            if number >= self.objects.len() {
                self.objects.resize(number + 1, ObjectTally::default());
            }
            let object = &mut self.objects[number];
            object.all.add(fault);
            object.disk += u64::from(fault.class == FaultClass::Disk);
        }
    }

    /// The faults of `class`.
    pub fn class(&self, class: FaultClass) -> Tally {
        self.classes[class as usize]
    }

    /// All faults.
    pub fn total(&self) -> Tally {
        self.classes.iter().fold(Tally::default(), |sum, class| Tally {
            count: sum.count + class.count,
            timed: sum.timed + class.timed,
            cost_ns: sum.cost_ns + class.cost_ns,
        })
    }

    /// How many objects had faults.
    pub fn objects(&self) -> usize {
        self.objects.iter().filter(|tally| tally.all.count > 0).count()
    }

    /// The objects that cost most, at most `count` of them, dearest first.
    pub fn dearest_objects(&self, count: usize) -> Vec<(ObjectId, ObjectTally)> {
        let numbered = self.objects.iter().enumerate().map(|(at, tally)| (ObjectId(at as u32), *tally));
        let mut objects: Vec<_> = numbered.filter(|(_, tally)| tally.all.count > 0).collect();
        objects.sort_by_key(|(_, tally)| std::cmp::Reverse((tally.all.cost_ns, tally.all.count)));
        objects.truncate(count);
        objects
    }
}

impl Tally {
    /// The mean cost in nanoseconds, of those whose cost is known.
    pub fn mean_ns(self) -> Option<f64> {
        (self.timed > 0).then(|| self.cost_ns as f64 / self.timed as f64)
    }

    fn add(&mut self, fault: &Fault) {
        self.count += 1;
        if let Some(cost_ns) = fault.cost_ns {
            self.timed += 1;
            self.cost_ns += cost_ns;
        }
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
        assert_eq!(summary.total(), Tally { count: 4, timed: 2, cost_ns: 400 });
        let dearest = summary.dearest_objects(9);
        assert_eq!(summary.objects(), dearest.len());
        let seen: Vec<_> = dearest.iter().map(|(id, tally)| (id.0, tally.all.count, tally.disk)).collect();
        assert_eq!(seen, [(2, 1, 1), (0, 2, 1)]);
    }
}
