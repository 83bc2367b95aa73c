//! What the study counted, on a virtual machine with a solid state drive and a read-ahead of 256 sectors.

use crate::STUDY_PAGES;
use crate::experiment::{Experiment, Run};
use crate::subject::Cache;
use prepage_simulate::pattern::Pattern;

/// One class of a table of the study.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// Faults.
    pub count: u64,
    /// Mean cost in microseconds; `None` where there was none.
    pub mean_us: Option<f64>,
    /// Cost in milliseconds.
    pub total_ms: f64,
}

/// A table of the study.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Published {
    /// Page had to be read.
    pub disk: Row,
    /// The fault right after a disk fault.
    pub short: Row,
    /// "Long non-disk": the page was in memory.
    pub cached: Row,
    /// All three.
    pub all: Row,
}

/// The study's table of `experiment` with a file of `pages` pages, where it has one: it has one size of file, and warm runs of other patterns it calls
/// similar and leaves out.
pub fn published(experiment: Experiment, pages: u64) -> Option<Published> {
    if pages != STUDY_PAGES {
        return None;
    }
    let row = |count, mean_us, total_ms| Row { count, mean_us: Some(mean_us), total_ms };
    let none = Row { count: 0, mean_us: None, total_ms: 0.0 };
    Some(match (experiment.pattern, experiment.cache) {
        (Pattern::Random, Cache::Cold) => Published {
            disk: row(6198, 147.9, 916.9),
            short: row(6198, 0.3, 1.8),
            cached: row(5101, 6.5, 33.3),
            all: row(17497, 54.4, 952.0),
        },
        (Pattern::Random, Cache::Warm) => {
            Published { disk: none, short: none, cached: row(9412, 0.14, 1.3), all: row(9412, 0.14, 1.3) }
        }
        (Pattern::Sequential, Cache::Cold) => Published {
            disk: row(1, 1647.0, 1.6),
            short: row(1, 1.0, 0.0),
            cached: row(11299, 2.0, 22.2),
            all: row(11301, 2.1, 23.8),
        },
        (Pattern::Stride { pages: 1 }, Cache::Cold) => Published {
            disk: row(58, 270.2, 15.7),
            short: row(58, 0.2, 0.0),
            cached: row(11242, 1.8, 19.7),
            all: row(11358, 3.1, 35.4),
        },
        (Pattern::Stride { pages: 64 }, Cache::Cold) => Published {
            disk: row(7224, 115.3, 833.0),
            short: row(7224, 0.2, 1.8),
            cached: row(4075, 4.4, 17.8),
            all: row(18523, 46.0, 852.6),
        },
        _ => return None,
    })
}

/// How the whole fault cost of one experiment stands to that of another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostRatio {
    /// The experiment.
    pub of: Experiment,
    /// The one it is compared with.
    pub to: Experiment,
    /// Here.
    pub here: f64,
    /// In the study.
    pub study: f64,
}

/// The two comparisons that the study draws its conclusions from, as far as `runs`, of a file of `pages` pages, has their cold runs: the 4 KiB stride
/// beside the sequence, and the 256 KiB stride beside the random order.
pub fn cost_ratios(runs: &[&Run], pages: u64) -> Vec<CostRatio> {
    let cold = |pattern| Experiment { pattern, cache: Cache::Cold };
    let cost = |of: Experiment| {
        let run = runs.iter().find(|run| run.experiment == of)?;
        Some((run.tally(None).total_ms(), published(of, pages)?.all.total_ms))
    };
    let pairs = [
        (cold(Pattern::Stride { pages: 1 }), cold(Pattern::Sequential)),
        (cold(Pattern::Stride { pages: 64 }), cold(Pattern::Random)),
    ];
    let ratio = |(of, to)| {
        let ((here, study), (base_here, base_study)) = (cost(of)?, cost(to)?);
        (base_here > 0.0).then(|| CostRatio { of, to, here: here / base_here, study: study / base_study })
    };
    pairs.into_iter().filter_map(ratio).collect()
}

#[cfg(test)]
mod tests {
    use prepage_core::{FaultClass, PageIndex, TraceFacts};

    use super::*;
    use crate::experiment::FileFault;

    /// Against typing mistakes: the tables add up, to the rounding of their means and totals.
    #[test]
    fn counts_add_up() {
        let mut tables = 0;
        for pattern in Pattern::STUDY {
            for cache in [Cache::Cold, Cache::Warm] {
                let experiment = Experiment { pattern, cache };
                assert_eq!(published(experiment, STUDY_PAGES - 1), None, "of another file");
                let Some(table) = published(experiment, STUDY_PAGES) else { continue };
                tables += 1;
                let parts = [table.disk, table.short, table.cached];
                assert_eq!(parts.iter().map(|row| row.count).sum::<u64>(), table.all.count);
                let total: f64 = parts.iter().map(|row| row.total_ms).sum();
                assert!((total - table.all.total_ms).abs() < 0.2, "{pattern} {total}");
                for row in parts {
                    let product = row.count as f64 * row.mean_us.unwrap_or(0.0) / 1e3;
                    let rounding = 0.06 + row.count as f64 * 0.05 / 1e3;
                    assert!((product - row.total_ms).abs() < rounding, "{pattern} {row:?}");
                }
            }
        }
        assert_eq!(tables, 5);
    }

    #[test]
    fn the_studys_costs_are_compared_where_both_were_run() {
        let run = |pattern, cost_ns| Run {
            experiment: Experiment { pattern, cache: Cache::Cold },
            faults: vec![FileFault { page: PageIndex(0), class: FaultClass::Disk, cost_ns: Some(cost_ns) }],
            other_faults: 0,
            facts: TraceFacts::default(),
        };
        let (narrow, sequential) = (run(Pattern::Stride { pages: 1 }, 3000), run(Pattern::Sequential, 2000));
        let wide = run(Pattern::Stride { pages: 64 }, 1000);
        let ratios = cost_ratios(&[&sequential, &wide, &narrow], STUDY_PAGES);
        assert_eq!(ratios.len(), 1, "there is no random run");
        assert_eq!((ratios[0].of, ratios[0].here), (narrow.experiment, 1.5));
        assert_eq!(format!("{:.3}", ratios[0].study), "1.487");
    }
}
