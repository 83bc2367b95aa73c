//! Plots as SVG: dots between two axes. Each set of dots is one path, so that tens of thousands stay light.

use std::fmt::Write;

use crate::html::escaped;

/// A plot's height, in pixels.
const HEIGHT: f64 = 300.0;
/// Where a plot's field begins, and how large it is.
const LEFT: f64 = 62.0;
const TOP: f64 = 24.0;
const FIELD_WIDTH: f64 = 396.0;
const FIELD_HEIGHT: f64 = 230.0;
/// From one plot to the next.
const STEP: f64 = 486.0;
/// Right of the last plot.
const MARGIN: f64 = 12.0;

/// An axis: its name, and the values at its ends.
#[derive(Clone, Debug)]
pub struct Axis {
    /// What it shows, with the unit.
    pub name: &'static str,
    /// The value at its beginning.
    pub low: f64,
    /// The value at its end.
    pub high: f64,
    /// Whether each step is ten times the last.
    pub logarithmic: bool,
}

/// Dots of one colour.
#[derive(Clone, Debug)]
pub struct Dots {
    /// A CSS colour.
    pub colour: &'static str,
    /// Values on both axes. Those beyond the ends are drawn at the ends.
    pub at: Vec<(f64, f64)>,
}

/// Dots between two axes.
#[derive(Clone, Debug)]
pub struct Plot {
    /// From left to right.
    pub across: Axis,
    /// From bottom to top.
    pub up: Axis,
    /// Later ones are drawn over earlier ones.
    pub dots: Vec<Dots>,
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

/// One picture of `plots` beside each other; `label` is what it is called where it cannot be seen.
pub fn picture(label: &str, plots: &[Plot]) -> String {
    let width = STEP * plots.len() as f64 - MARGIN;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"11\" role=\"img\" aria-label=\"{}\">\n<rect width=\"{width}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n",
        escaped(label)
    );
    for (place, plot) in plots.iter().enumerate() {
        draw(&mut svg, STEP * place as f64, plot);
    }
    svg + "</svg>"
}

fn draw(svg: &mut String, shift: f64, Plot { across, up, dots }: &Plot) {
    let (left, bottom) = (shift + LEFT, TOP + FIELD_HEIGHT);
    let x = |at: f64| left + across.place(at) * FIELD_WIDTH;
    let y = |at: f64| bottom - up.place(at) * FIELD_HEIGHT;
    // Writing to a string cannot fail.
    for tick in across.ticks() {
        let (x, below) = (x(tick), bottom + 16.0);
        let _ = writeln!(
            svg,
            "<path d=\"M{x:.1} {bottom}v4\" stroke=\"#888\"/><text x=\"{x:.1}\" y=\"{below}\" text-anchor=\"middle\">{tick}</text>"
        );
    }
    for tick in up.ticks() {
        let (y, beside) = (y(tick), left - 6.0);
        let _ = writeln!(
            svg,
            "<path d=\"M{left} {y:.1}h{FIELD_WIDTH}\" stroke=\"#ddd\"/><text x=\"{beside}\" y=\"{:.1}\" text-anchor=\"end\">{tick}</text>",
            y + 4.0
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text><text x=\"{}\" y=\"14\">{}</text>",
        left + FIELD_WIDTH / 2.0,
        bottom + 34.0,
        escaped(across.name),
        left - 40.0,
        escaped(up.name)
    );
    for Dots { colour, at } in dots {
        let half_pixels = |value: f64| (value * 2.0).round() as i64;
        let mut dots: Vec<(i64, i64)> =
            at.iter().map(|&(across, up)| (half_pixels(x(across)), half_pixels(y(up)))).collect();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dots_lie_where_the_axes_say() {
        let axis = |logarithmic| Axis { name: "a < b", low: 1.0, high: 100.0, logarithmic };
        let dots = vec![Dots { colour: "#111", at: vec![(1.0, 1.0), (100.0, 10.0), (100.0, 10.01)] }];
        let svg = picture("dots", &[Plot { across: axis(false), up: axis(true), dots }]);
        let middle = TOP + FIELD_HEIGHT / 2.0;
        let expected =
            format!("d=\"M{LEFT} {}h0m{FIELD_WIDTH} {}h0\"", TOP + FIELD_HEIGHT, middle - TOP - FIELD_HEIGHT);
        assert!(svg.contains(&expected), "{expected}: {svg}");
        assert!(svg.contains("a &lt; b") && !svg.contains("a < b"));
    }
}
