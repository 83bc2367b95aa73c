//! The figures a table can show of a group of faults.

use prepage_display::number::percent;
use serde_json::Value;

use crate::costs::Costs;

prepage_core::named! {
    /// A figure of a group.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Column {
        /// How many faults.
        Count = "count",
        /// Their share of all faults.
        Percent = "percent",
        /// How many read from a device.
        Disk = "disk",
        /// The mean cost.
        Mean = "mean",
        /// The mean cost in cycles of the time stamp counter, where its frequency is known.
        Cycles = "cycles",
        /// The cost that half of the faults do not exceed.
        P50 = "p50",
        /// The cost that 90 % do not exceed.
        P90 = "p90",
        /// The cost that 99 % do not exceed.
        P99 = "p99",
        /// The cost that 99.9 % do not exceed.
        P999 = "p999",
        /// The cost of the slowest.
        Max = "max",
        /// The cost of those that read from a device.
        DiskTotal = "disk-total",
        /// The cost of all.
        Total = "total",
        /// Their share of the cost of all.
        TotalPercent = "total-percent",
    }
}

impl Column {
    /// The heading in tables and the field's name in JSON, both with the unit.
    const fn labels(self) -> (&'static str, &'static str) {
        match self {
            Self::Count => ("count", "count"),
            Self::Percent => ("share %", "count_percent"),
            Self::Disk => ("disk", "disk_count"),
            Self::Mean => ("mean µs", "mean_us"),
            Self::Cycles => ("mean cycles", "mean_cycles"),
            Self::P50 => ("p50 µs", "p50_us"),
            Self::P90 => ("p90 µs", "p90_us"),
            Self::P99 => ("p99 µs", "p99_us"),
            Self::P999 => ("p99.9 µs", "p999_us"),
            Self::Max => ("max µs", "max_us"),
            Self::DiskTotal => ("disk ms", "disk_total_ms"),
            Self::Total => ("total ms", "total_ms"),
            Self::TotalPercent => ("time %", "total_percent"),
        }
    }

    /// The heading, with the unit.
    pub const fn heading(self) -> &'static str {
        self.labels().0
    }

    /// The field's name in JSON, with the unit.
    pub const fn field(self) -> &'static str {
        self.labels().1
    }

    /// Whether it is the cost of several faults together.
    pub const fn is_sum_of_costs(self) -> bool {
        matches!(self, Self::DiskTotal | Self::Total | Self::TotalPercent)
    }

    /// Whether it is of the faults that read from a device.
    pub const fn is_of_disk(self) -> bool {
        matches!(self, Self::Disk | Self::DiskTotal)
    }

    /// Whether it takes a histogram to know.
    pub const fn is_percentile(self) -> bool {
        matches!(self, Self::P50 | Self::P90 | Self::P99 | Self::P999)
    }

    /// The figure of `costs` in a table over `total`, in the unit of the heading; `None` where it is not known: of a group without faults as
    /// well, where the costs of `total` are not. `tsc_hz`
    /// is [`prepage_core::TraceFacts::tsc_hz`].
    pub fn value(self, costs: &Costs, total: &Costs, tsc_hz: Option<u64>) -> Option<f64> {
        let (tally, total) = (&costs.tally, &total.tally);
        let us = |ns: Option<u64>| ns.map(|ns| ns as f64 / 1e3);
        match self {
            Self::Count => Some(tally.count as f64),
            Self::Disk => Some(tally.disk as f64),
            Self::Percent => percent(tally.count, total.count),
            Self::Mean => tally.mean_ns().map(|ns| ns / 1e3),
            Self::Cycles => tally.mean_ns().zip(tsc_hz).map(|(ns, hz)| ns * hz as f64 / 1e9),
            Self::P50 => us(costs.percentile_ns(50.0)),
            Self::P90 => us(costs.percentile_ns(90.0)),
            Self::P99 => us(costs.percentile_ns(99.0)),
            Self::P999 => us(costs.percentile_ns(99.9)),
            Self::Max => us((tally.timed > 0).then_some(tally.max_ns)),
            _ if self.is_sum_of_costs() && !(tally.is_timed() && total.is_timed()) => None,
            Self::DiskTotal => Some(tally.disk_ns as f64 / 1e6),
            Self::Total => Some(tally.cost_ns as f64 / 1e6),
            Self::TotalPercent => percent(tally.cost_ns, total.cost_ns),
        }
    }

    /// The figure as a table shows it.
    pub fn text(self, costs: &Costs, total: &Costs, tsc_hz: Option<u64>) -> String {
        let Some(value) = self.value(costs, total, tsc_hz) else { return "-".to_owned() };
        match self {
            Self::Count | Self::Disk | Self::Cycles => format!("{value:.0}"),
            Self::Percent | Self::TotalPercent => format!("{value:.1}"),
            _ => format!("{value:.2}"),
        }
    }

    /// The figure as JSON has it.
    pub fn json(self, costs: &Costs, total: &Costs, tsc_hz: Option<u64>) -> Value {
        match self {
            Self::Count => costs.tally.count.into(),
            Self::Disk => costs.tally.disk.into(),
            _ => self.value(costs, total, tsc_hz).map_or(Value::Null, Value::from),
        }
    }
}

#[cfg(test)]
mod tests {
    use prepage_core::{Fault, FaultClass, ThreadIndex};

    use super::*;

    #[test]
    fn a_group_without_faults_cost_nothing_only_where_costs_are_known() {
        let all = |cost_ns| {
            let mut costs = Costs::default();
            costs.add(&Fault { cost_ns, ..Fault::new(0, ThreadIndex(0), 0, FaultClass::Disk) });
            costs
        };
        let empty = Costs::default();
        let total = |all| [Column::Total, Column::DiskTotal].map(|column| column.text(&empty, &all, None));
        assert_eq!(total(all(Some(7))), ["0.00", "0.00"]);
        assert_eq!(total(all(None)), ["-", "-"]);
    }

    #[test]
    fn cycles_are_the_mean_cost_by_the_clock_of_the_recording() {
        let mut costs = Costs::default();
        for cost_ns in [Some(1000), Some(2000), None] {
            costs.add(&Fault { cost_ns, ..Fault::new(0, ThreadIndex(0), 0, FaultClass::Cached) });
        }
        assert_eq!(Column::Cycles.text(&costs, &costs, Some(2_400_000_000)), "3600");
        assert_eq!(Column::Cycles.text(&costs, &costs, None), "-");
    }
}
