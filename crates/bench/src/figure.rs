//! The study's two plots of a run: the order of the faults, and the cost of each. As SVG, in which each class is one
//! path of dots, so that tens of thousands stay light.

use std::fmt::Write;

use crate::experiment::{Class, FileFault, Run};

/// Size of both plots together, in pixels.
const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 300.0;
/// Of one plot: where its field begins, and how large it is.
const LEFT: f64 = 62.0;
const TOP: f64 = 24.0;
const FIELD_WIDTH: f64 = 396.0;
const FIELD_HEIGHT: f64 = 230.0;
/// From one plot to the next.
const STEP: f64 = 486.0;

/// Colours that stay apart for all eyes, and in grey.
const DISK: &str = "#111";
const CACHED: &str = "#e69f00";

/// An axis: its name, and what lies at its ends.
struct Axis {
    name: &'static str,
    low: f64,
    high: f64,
    logarithmic: bool,
}

impl Axis {
    /// Where `value` lies, from 0 to 1.
    fn place(&self, value: f64) -> f64 {
        let scale = |value: f64| if self.logarithmic { value.log10() } else { value };
        ((scale(value) - scale(self.low)) / (scale(self.high) - scale(self.low))).clamp(0.0, 1.0)
    }

    /// Where numbers stand: powers of ten, or five or so round steps.
    fn ticks(&self) -> Vec<f64> {
        if self.logarithmic {
            let (low, high) = (self.low.log10().round() as i32, self.high.log10().round() as i32);
            return (low..=high).map(|power| 10f64.powi(power)).collect();
        }
        let rough = (self.high - self.low) / 5.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|times| times * power).into_iter().find(|step| *step >= rough);
        let step = step.unwrap_or(rough);
        (0..).map(|at| at as f64 * step).take_while(|value| *value <= self.high).collect()
    }
}

/// Both plots of `run`, whose file has `pages` pages.
pub fn pair(run: &Run, pages: u64) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"11\" role=\"img\" aria-label=\"{} {}: order and cost of the faults\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n",
        run.experiment.pattern,
        run.experiment.cache.name(),
    );
    let number = Axis { name: "fault", low: 0.0, high: run.faults.len().max(1) as f64, logarithmic: false };
    let page = Axis { name: "page of the file", low: 0.0, high: pages as f64, logarithmic: false };
    plot(&mut svg, 0.0, run, &number, &page, |fault| Some(fault.page.0 as f64));
    let costs = run.faults.iter().filter_map(|fault| fault.cost_ns).max().unwrap_or(0) as f64 / 1e3;
    let cost = Axis {
        name: "cost, µs",
        low: 0.1,
        high: 10f64.powf(costs.max(10.0).log10().ceil()),
        logarithmic: true,
    };
    // What took less than the clock can tell is drawn at the lower edge.
    let microseconds = |fault: &FileFault| fault.cost_ns.map(|ns| (ns as f64 / 1e3).max(0.1));
    plot(&mut svg, STEP, run, &number, &cost, microseconds);
    svg + "</svg>"
}

fn plot(
    svg: &mut String,
    shift: f64,
    run: &Run,
    across: &Axis,
    up: &Axis,
    value: impl Fn(&FileFault) -> Option<f64>,
) {
    let (left, bottom) = (shift + LEFT, TOP + FIELD_HEIGHT);
    let x = |at: f64| left + across.place(at) * FIELD_WIDTH;
    let y = |at: f64| bottom - up.place(at) * FIELD_HEIGHT;
    // Writing to a string cannot fail.
    for tick in across.ticks() {
        let _ = writeln!(
            svg,
            "<path d=\"M{:.1} {bottom}v4\" stroke=\"#888\"/><text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{tick}</text>",
            x(tick),
            x(tick),
            bottom + 16.0
        );
    }
    for tick in up.ticks() {
        let _ = writeln!(
            svg,
            "<path d=\"M{left} {:.1}h{FIELD_WIDTH}\" stroke=\"#ddd\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{tick}</text>",
            y(tick),
            left - 6.0,
            y(tick) + 4.0
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text><text x=\"{}\" y=\"14\">{}</text>",
        left + FIELD_WIDTH / 2.0,
        bottom + 34.0,
        across.name,
        left - 40.0,
        up.name
    );
    // Rare disk faults are drawn over the others.
    for (class, colour) in [(Class::Cached, CACHED), (Class::Disk, DISK)] {
        let mut dots: Vec<(i64, i64)> = run
            .faults
            .iter()
            .enumerate()
            .filter(|(_, fault)| fault.class == class)
            .filter_map(|(at, fault)| Some((x(at as f64), y(value(fault)?))))
            .map(|(x, y)| ((x * 2.0).round() as i64, (y * 2.0).round() as i64))
            .collect();
        // Dots at the same half pixel are one.
        dots.sort_unstable();
        dots.dedup();
        if dots.is_empty() {
            continue;
        }
        let _ = write!(svg, "<path stroke=\"{colour}\" stroke-width=\"1.6\" stroke-linecap=\"round\" d=\"");
        let mut from = (0, 0);
        for (at, (x, y)) in dots.into_iter().enumerate() {
            let (dx, dy) = (x - from.0, y - from.1);
            let command = if at == 0 { 'M' } else { 'm' };
            let _ = write!(svg, "{command}{} {}h0", half(dx), half(dy));
            from = (x, y);
        }
        let _ = writeln!(svg, "\"/>");
    }
    let _ = writeln!(
        svg,
        "<rect x=\"{left}\" y=\"{TOP}\" width=\"{FIELD_WIDTH}\" height=\"{FIELD_HEIGHT}\" fill=\"none\" stroke=\"#888\"/>"
    );
}

/// Half of `value`, without a needless ".0".
fn half(value: i64) -> String {
    if value % 2 == 0 { (value / 2).to_string() } else { (value as f64 / 2.0).to_string() }
}
