//! Counts and costs of faults.

use crate::fault::{Fault, FaultClass};

/// How many faults of one kind there are, and what they cost together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many faults.
    pub count: u64,
    /// Of how many the cost is known.
    pub timed: u64,
    /// The cost of those, together.
    pub cost_ns: u64,
    /// The cost of the slowest.
    pub max_ns: u64,
    /// How many read from a device.
    pub disk: u64,
    /// The cost of those that read from a device.
    pub disk_ns: u64,
}

impl Tally {
    /// One fault.
    pub fn one(class: FaultClass, cost_ns: Option<u64>) -> Self {
        let disk = u64::from(class == FaultClass::Disk);
        let timed = u64::from(cost_ns.is_some());
        let cost_ns = cost_ns.unwrap_or(0);
        Self { count: 1, timed, cost_ns, max_ns: cost_ns, disk, disk_ns: disk * cost_ns }
    }

    /// Counts `fault`.
    pub fn add(&mut self, fault: &Fault) {
        self.merge(&Self::one(fault.class, fault.cost_ns));
    }

    /// Counts the faults of `other` too.
    pub fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.timed += other.timed;
        self.cost_ns = self.cost_ns.saturating_add(other.cost_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
        self.disk += other.disk;
        self.disk_ns = self.disk_ns.saturating_add(other.disk_ns);
    }

    /// The mean cost in nanoseconds, of those whose cost is known.
    pub fn mean_ns(&self) -> Option<f64> {
        (self.timed > 0).then(|| self.cost_ns as f64 / self.timed as f64)
    }

    /// The mean cost in microseconds, of those whose cost is known.
    pub fn mean_us(&self) -> Option<f64> {
        self.mean_ns().map(|ns| ns / 1e3)
    }

    /// Whether the faults have costs to show. True also when there are no faults at all.
    pub fn is_timed(&self) -> bool {
        self.timed > 0 || self.count == 0
    }

    /// The cost of all in milliseconds.
    pub fn total_ms(&self) -> f64 {
        self.cost_ns as f64 / 1e6
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::ThreadIndex;

    #[test]
    fn means_leave_out_what_has_no_cost_and_sums_do_not_overflow() {
        let fault = |class, cost_ns| Fault { cost_ns, ..Fault::new(0, ThreadIndex(0), 0, class) };
        let faults = [
            fault(FaultClass::Disk, Some(300)),
            fault(FaultClass::Disk, None),
            fault(FaultClass::Cached, Some(100)),
        ];
        let mut tally = Tally::default();
        faults.iter().for_each(|fault| tally.add(fault));
        assert_eq!(tally.mean_ns(), Some(200.0));
        assert_eq!(tally, Tally { count: 3, timed: 2, cost_ns: 400, max_ns: 300, disk: 2, disk_ns: 300 });
        tally.add(&fault(FaultClass::Disk, Some(u64::MAX)));
        assert_eq!((tally.cost_ns, tally.disk_ns), (u64::MAX, u64::MAX));
        assert_eq!(Tally::one(FaultClass::Failed, None).mean_ns(), None);
    }
}
