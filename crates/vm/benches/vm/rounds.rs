//! Interleaved rounds, and the table.

use std::time::Instant;

/// One way to do the work: its name, and what does it once and returns its score.
pub struct Way<'a> {
    pub name: String,
    pub run: Box<dyn FnMut() -> f64 + 'a>,
}

pub fn way<'a>(name: impl Into<String>, run: impl FnMut() -> f64 + 'a) -> Way<'a> {
    Way { name: name.into(), run: Box::new(run) }
}

/// Runs all ways in turn, round after round, and prints each with the ratio of its score to that of the way `against`,
/// the median of the rounds' ratios. Returns the medians of the scores.
pub fn compare(title: &str, unit: &str, ways: &mut [Way<'_>], against: usize) -> Vec<f64> {
    let rounds: usize = std::env::var("ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(7);
    let mut scores = vec![Vec::new(); ways.len()];
    for round in 0..rounds {
        // Every other round backwards: nobody always runs after the same.
        let order: Vec<usize> =
            if round % 2 == 0 { (0..ways.len()).collect() } else { (0..ways.len()).rev().collect() };
        for index in order {
            let score = (ways[index].run)();
            scores[index].push(score);
        }
    }
    println!("\n{title}, {unit}");
    let medians: Vec<f64> = scores.iter().map(|scores| median(scores.clone())).collect();
    for (index, way) in ways.iter().enumerate() {
        let ratios = scores[index].iter().zip(&scores[against]).map(|(own, other)| own / other).collect();
        let least = scores[index].iter().copied().fold(f64::INFINITY, f64::min);
        let most = scores[index].iter().copied().fold(0.0, f64::max);
        println!(
            "  {:<56} {:>12} {:>12} {:>8.2}",
            way.name,
            number(medians[index]),
            format!("{}..{}", number(least), number(most)),
            median(ratios)
        );
    }
    medians
}

/// What `work` takes, in seconds.
pub fn seconds(work: impl FnOnce()) -> f64 {
    let began = Instant::now();
    work();
    began.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
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
