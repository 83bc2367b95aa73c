//! The study's two plots of a run: the order of the faults, and the cost of each.

use prepage_core::FaultClass;
use prepage_display::svg::{Axis, Dots, Plot, picture};

use crate::experiment::{FileFault, Run};

/// Colours that stay apart for all eyes, and in grey.
const DISK: &str = "#111";
const CACHED: &str = "#e69f00";
const SHORT: &str = "#56b4e9";

/// Both plots of `run`, whose file has `pages` pages.
pub fn pair(run: &Run, pages: u64) -> String {
    let across =
        || Axis { name: "fault", low: 0.0, high: run.faults.len().max(1) as f64, logarithmic: false };
    let page = Axis { name: "page of the file", low: 0.0, high: pages as f64, logarithmic: false };
    let slowest_us = run.faults.iter().filter_map(|fault| fault.cost_ns).max().unwrap_or(0) as f64 / 1e3;
    let cost = Axis {
        name: "cost, µs",
        low: 0.1,
        high: 10f64.powf(slowest_us.max(10.0).log10().ceil()),
        logarithmic: true,
    };
    let label =
        format!("{} {}: order and cost of the faults", run.experiment.pattern, run.experiment.cache.name());
    // What took less than the clock can measure is drawn at the lower edge.
    let cost_us = |fault: &FileFault| fault.cost_ns.map(|ns| (ns as f64 / 1e3).max(0.1));
    let order = Plot { across: across(), up: page, dots: dots(run, |fault| Some(fault.page.0 as f64)) };
    picture(&label, &[order, Plot { across: across(), up: cost, dots: dots(run, cost_us) }])
}

/// The faults by class; the rare disk faults come last, so that they are seen.
fn dots(run: &Run, value: impl Fn(&FileFault) -> Option<f64>) -> Vec<Dots> {
    let of_class = |(class, colour)| {
        let faults = run.faults.iter().enumerate().filter(|(_, fault)| fault.class == class);
        Dots { colour, at: faults.filter_map(|(at, fault)| Some((at as f64, value(fault)?))).collect() }
    };
    [(FaultClass::Cached, CACHED), (FaultClass::Short, SHORT), (FaultClass::Disk, DISK)].map(of_class).into()
}
