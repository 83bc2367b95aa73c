//! Reports for the browser: one file that needs no network, draws on canvas and reads without JavaScript as tables.

mod flame;
mod points;
mod tables;

use std::io::{self, Write};

use prepage_core::FaultClass;
use prepage_display::html::Document;
use prepage_display::run;
use serde_json::{Value, json};

use crate::by::By;
use crate::report::{Options, Report};
use crate::text;

pub use points::Points;

/// More faults are not drawn one by one but thinned.
pub const POINTS_MAX: u64 = 1_000_000;
/// Bins of the cost distribution in each octave.
const BINS_PER_OCTAVE: u32 = 4;
/// Slices of the time in which waiting is drawn.
const SLICES: usize = 240;
/// Slow faults in the table.
const SLOWEST: usize = 50;

/// In the order they build on each other.
const SCRIPTS: [&str; 6] = [
    include_str!("../assets/data.js"),
    include_str!("../assets/axes.js"),
    include_str!("../assets/faults.js"),
    include_str!("../assets/charts.js"),
    include_str!("../assets/flame.js"),
    include_str!("../assets/page.js"),
];

/// What a report has to find out to be written as HTML.
pub fn options(filter: crate::Filter) -> Options {
    Options {
        filter,
        by: vec![By::Class, By::File, By::Mapping, By::Thread, By::Symbol, By::Stack],
        group_percentiles: false,
        slices: SLICES,
        slowest: SLOWEST,
    }
}

/// Writes `report`, read with [`options`], as a page in which `points` are drawn.
pub fn write(report: &Report, points: &Points, out: &mut dyn Write) -> io::Result<()> {
    let facts = &report.facts;
    let subject = run::subject(facts);
    let title_lines = usize::from(subject.is_some());
    let title = subject.unwrap_or_else(|| "page faults".to_owned());
    let mut document = Document::begin(out, &title, "")?;
    let lines = text::facts_lines(report);
    document.header("prepage · page faults", &title, &lines[title_lines..])?;
    if let Some(why) = text::why_none(report) {
        document.paragraph("note", &format!("No page faults: {why}."))?;
        tables::body(report, &mut document)?;
        document.footer(&run::footer(facts))?;
        return document.end(&Value::Null, &[]);
    }
    tables::classes(report, &mut document)?;
    document.raw(PLOTS)?;
    let left_out = points.left_out();
    if !left_out.is_empty() {
        let drawn = left_out.join(", ");
        document
            .paragraph("note", &format!("Drawn are {drawn}; tables, costs and the flame graph count all, and when each part was touched is estimated."))?;
    }
    tables::body(report, &mut document)?;
    document.footer(&run::footer(facts))?;
    document.end(&data(report, points), &SCRIPTS)
}

fn data(report: &Report, points: &Points) -> Value {
    let slices = report
        .slices
        .iter()
        .map(|classes| classes.iter().map(|costs| costs.tally.cost_ns).collect::<Vec<_>>());
    let bins = report.cost_bins(BINS_PER_OCTAVE);
    json!({
        "classes": FaultClass::ALL.iter().zip(&report.classes).map(|(class, costs)| {
            json!({ "name": class.name(), "count": costs.tally.count, "timed": costs.tally.timed })
        }).collect::<Vec<_>>(),
        "end_ns": report.end_ns,
        "slices_ns": slices.collect::<Vec<_>>(),
        "lost_by_second": report.facts.lost_by_second,
        "cost_bins": bins.iter().map(|bin| json!([bin.from_ns, bin.to_ns, bin.counts])).collect::<Vec<_>>(),
        "points": points.packed(report),
        "flame": flame::tree(report),
    })
}

/// Where the scripts draw. Without them only the note is seen.
const PLOTS: &str = r#"<noscript><p class="note">The plots need JavaScript; the tables below say the same in numbers.</p></noscript>
<main id="plots" hidden>
<div id="controls">
<div id="legend" role="group" aria-label="classes shown"></div>
<label>Place <select id="place"></select></label>
<span class="hint">Drag to zoom in, Ctrl and wheel to zoom in and out, double click for all.</span>
</div>
<section><h2>Waiting over time</h2><div id="waiting"></div></section>
<section><h2>Order of the faults</h2><div id="order"></div></section>
<section><h2>Cost of each fault</h2><div id="cost"></div></section>
<section><h2>When each part was touched
<select id="heat-weight" aria-label="what the colour shows"><option value="count">faults</option><option value="cost">waiting</option></select></h2>
<div id="heat"></div><div id="heat-scale"></div></section>
<section><h2>How many cost how much</h2><div id="distribution"></div></section>
<section><h2><span id="flame-title">Calls that led to faults</span>
<select id="flame-weight" aria-label="what the width shows"><option value="cost">waiting</option><option value="count">faults</option></select>
<button id="flame-reset" type="button" hidden>show all</button></h2>
<p id="flame-note" class="note" hidden>No call stacks were recorded (<code>prepage record -g</code>): the files whose code touched the pages, and their functions.</p>
<div id="flame"></div></section>
</main>
<div id="tip" role="status" hidden></div>
"#;
