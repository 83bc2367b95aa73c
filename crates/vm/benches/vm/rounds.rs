//! Interleaved rounds, their table, and the aims they are held against.

use std::time::Instant;

/// One way to do the work: its name, and what does it once and returns its score.
pub struct Way<'a> {
    pub name: String,
    pub run: Box<dyn FnMut() -> f64 + 'a>,
}

pub fn way<'a>(name: impl Into<String>, run: impl FnMut() -> f64 + 'a) -> Way<'a> {
    Way { name: name.into(), run: Box::new(run) }
}

/// The scores of all rounds, by way.
pub struct Scores {
    by_way: Vec<(String, Vec<f64>)>,
}

/// A figure that the VM was built to reach: by the median of the rounds, and by the best of each way; or why it was not
/// measured.
pub struct Aim {
    what: String,
    measured: Result<f64, String>,
    best: Option<f64>,
    at_least: bool,
    bound: f64,
}

/// Runs all ways in turn, round after round, and prints each with the ratio of its score to that of the first way, the
/// median of the rounds' ratios. With ONLY set, ways whose names do not hold its text are left out.
pub fn compare(title: &str, unit: &str, ways: Vec<Way<'_>>) -> Scores {
    compare_pieces(title, unit, 1, ways)
}

/// As `compare`, with so many times as many rounds: for ways that do a part of the work each time. What a disk gives
/// changes from one second to the next.
pub fn compare_pieces(title: &str, unit: &str, pieces: usize, mut ways: Vec<Way<'_>>) -> Scores {
    let rounds: usize = std::env::var("ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(7);
    if let Ok(only) = std::env::var("ONLY") {
        ways.retain(|way| way.name.contains(&only));
    }
    let mut by_way: Vec<_> = ways.iter().map(|way| (way.name.clone(), Vec::new())).collect();
    for round in 0..rounds * pieces {
        // Every other round backwards: nobody always runs after the same.
        let order: Vec<usize> =
            if round % 2 == 0 { (0..ways.len()).collect() } else { (0..ways.len()).rev().collect() };
        for index in order {
            by_way[index].1.push((ways[index].run)());
        }
    }
    let scores = Scores { by_way };
    println!("\n{title}, {unit}");
    for (name, of_way) in &scores.by_way {
        let least = of_way.iter().copied().fold(f64::INFINITY, f64::min);
        let most = of_way.iter().copied().fold(0.0, f64::max);
        println!(
            "  {name:<56} {:>12} {:>18} {:>8.2}",
            number(median(of_way.clone())),
            format!("{}..{}", number(least), number(most)),
            scores.ratio(name, &scores.by_way[0].0).expect("both ran")
        );
    }
    scores
}

impl Scores {
    /// The median of a way's scores; `None` where it was left out.
    pub fn median(&self, name: &str) -> Option<f64> {
        self.of(name).map(|scores| median(scores.clone()))
    }

    /// The median of the rounds' ratios of one way to another.
    pub fn ratio(&self, name: &str, to: &str) -> Option<f64> {
        let ratios = self.of(name)?.iter().zip(self.of(to)?).map(|(own, other)| own / other).collect();
        Some(median(ratios))
    }

    /// A way's best score.
    pub fn best(&self, name: &str) -> Option<f64> {
        self.of(name)?.iter().copied().reduce(f64::max)
    }

    /// Holds the ratio of one way to another against a bound, by the median of the rounds' ratios and by the best of each.
    pub fn aim(&self, what: &str, name: &str, to: &str, bound: f64) -> Option<Aim> {
        let best = self.best(name)? / self.best(to)?;
        Some(Aim::at_least(what, self.ratio(name, to), bound)?.best(Some(best)))
    }

    /// As `aim`, for a ratio that is to be small.
    pub fn aim_at_most(&self, what: &str, name: &str, to: &str, bound: f64) -> Option<Aim> {
        let best = self.best(name)? / self.best(to)?;
        Some(Aim::at_most(what, self.ratio(name, to), bound)?.best(Some(best)))
    }

    fn of(&self, name: &str) -> Option<&Vec<f64>> {
        self.by_way.iter().find(|(way, _)| way == name).map(|(_, scores)| scores)
    }
}

impl Aim {
    pub fn at_least(what: &str, measured: Option<f64>, bound: f64) -> Option<Self> {
        measured.map(|measured| Self {
            what: what.to_owned(),
            measured: Ok(measured),
            best: None,
            at_least: true,
            bound,
        })
    }

    pub fn at_most(what: &str, measured: Option<f64>, bound: f64) -> Option<Self> {
        Some(Self { at_least: false, ..Self::at_least(what, measured, bound)? })
    }

    /// A figure to reach at least, that could not be measured.
    pub fn not_run(what: &str, bound: f64, why: &str) -> Self {
        Self { what: what.to_owned(), measured: Err(why.to_owned()), best: None, at_least: true, bound }
    }

    /// The same of a figure that is to be small.
    pub fn not_run_at_most(what: &str, bound: f64, why: &str) -> Self {
        Self { at_least: false, ..Self::not_run(what, bound, why) }
    }

    pub fn best(self, best: Option<f64>) -> Self {
        Self { best, ..self }
    }
}

pub fn print_aims(aims: &[Aim]) {
    println!("\n{:<64} {:>12} {:>12} {:>12}", "aims", "median", "best", "aim");
    for aim in aims {
        let verdict = match &aim.measured {
            Ok(measured) if aim.at_least && *measured >= aim.bound => "met".to_owned(),
            Ok(measured) if !aim.at_least && *measured <= aim.bound => "met".to_owned(),
            Ok(_) => "missed".to_owned(),
            Err(why) => format!("not run: {why}"),
        };
        println!(
            "  {:<62} {:>12} {:>12} {:>12}  {verdict}",
            aim.what,
            aim.measured.as_ref().map_or_else(|_| "-".to_owned(), |measured| number(*measured)),
            aim.best.map_or_else(|| "-".to_owned(), number),
            format!("{} {}", if aim.at_least { ">=" } else { "<=" }, number(aim.bound)),
        );
    }
}

/// What `work` takes, in seconds.
pub fn seconds(work: impl FnOnce()) -> f64 {
    let began = Instant::now();
    work();
    began.elapsed().as_secs_f64()
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}

fn number(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{:.2} M", value / 1e6),
        value if value >= 1e4 => format!("{:.0} k", value / 1e3),
        value if value >= 100.0 => format!("{value:.0}"),
        value => format!("{value:.2}"),
    }
}
