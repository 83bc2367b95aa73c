//! The rule of `trial` against simple ageing, on programs that keep, change, alternate and vary what they use.
//!
//! The simple ways are told which pages each run touched. The rule is told only what a real start can tell: which of the
//! pages that were not prefetched were waited for, and on a look, around which pages nothing faulted.

use std::collections::BTreeSet;

use prepage_core::ageing::{Ageing, Round};
use prepage_core::device_figures::DeviceFigures;
use prepage_core::extent::{Extent, Touches};
use prepage_core::plan::Read;
use prepage_core::profile::{Evidence, FileIdentity, Fingerprint, Profile, ProfiledFile};
use prepage_core::trial::{
    Budget, Outcome, PageOf, choose_tests, expected_waste, leave_out, miss_ns, settle, threshold, worthwhile,
};
use prepage_core::{PAGE_SIZE, PageIndex, PageRange};

type Pages = BTreeSet<u64>;

/// SplitMix64: the same numbers in each run of the test.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// `count` pages in runs of up to `longest` among the first `span`.
    fn pages(&mut self, count: usize, longest: u64, span: u64) -> Pages {
        let mut pages = Pages::new();
        while pages.len() < count {
            let (start, len) = (self.below(span), 1 + self.below(longest));
            pages.extend((start..start + len).take(count - pages.len()));
        }
        pages
    }
}

const COLD_START_NS: u64 = 60_000_000;

const FIGURES: DeviceFigures = DeviceFigures {
    latency_ns: 100_000,
    bytes_per_second: 1_000_000_000,
    depth: 16,
    operations_per_second: Some(60_000),
};

fn found(touched: &Pages, except: &Pages) -> Vec<ProfiledFile> {
    let mut touches = Touches::default();
    for (rank, &page) in touched.difference(except).enumerate() {
        touches.touch(PageIndex(page), rank as u32, Evidence::Seen);
    }
    let file = ProfiledFile {
        path: "/lib/x".into(),
        identity: FileIdentity { device: 0, inode: 0, size_bytes: 1 << 30, mtime_ns: 0, ctime_ns: 0 },
        fingerprint: Fingerprint::Ends(0),
        learned_unix_s: 0,
        extents: touches.extents(),
    };
    if touches.is_empty() { vec![] } else { vec![file] }
}

fn pages_of(profile: &Profile) -> Pages {
    profile
        .files
        .iter()
        .flat_map(|file| &file.extents)
        .flat_map(|extent| extent.range.iter())
        .map(|p| p.0)
        .collect()
}

struct Starts {
    rounds: Vec<Round>,
    /// Pages that were left out and then missed.
    tested: u64,
    profile: Profile,
}

/// Each run from a cold cache, with the rule. Read-ahead is none, so each missed page is one wait.
fn rule(runs: &[Pages], random: &mut Random) -> Starts {
    let mut starts = Starts { rounds: Vec::new(), tested: 0, profile: Profile::default() };
    for touched in runs {
        let profile = &mut starts.profile;
        let planned = worthwhile(profile, &FIGURES);
        let budget = Budget { cold_start_ns: COLD_START_NS, read_ahead_pages: 0 };
        let tests = choose_tests(&planned, &FIGURES, budget, || random.next());
        let mut prefetched = pages_of(&planned);
        let known = pages_of(profile);
        for test in &tests {
            assert!(prefetched.remove(&test.page.0), "only planned pages are tested, each once");
        }
        starts.rounds.push(Round::new(&prefetched, touched));
        starts.tested += tests.iter().filter(|test| touched.contains(&test.page.0)).count() as u64;

        let one = |page: u64| PageRange::new(PageIndex(page), PageIndex(page + 1));
        let mut outcome = Outcome {
            tests: tests.iter().map(|&test| (test, touched.contains(&test.page.0))).collect(),
            looked: profile.history.looks_due > 0,
            ..Outcome::default()
        };
        let tested: Pages = tests.iter().map(|test| test.page.0).collect();
        for &page in known.iter().filter(|page| !prefetched.contains(page) && !tested.contains(page)) {
            let into = if touched.contains(&page) { &mut outcome.used } else { &mut outcome.unused };
            into.push((0, one(page)));
        }
        if outcome.looked {
            // One fault for each window of 16 pages in which one is touched; the others of the window are in doubt.
            let windows: Pages = touched.iter().map(|page| page / 16).collect();
            for &page in prefetched.iter().filter(|page| !windows.contains(&(*page / 16))) {
                outcome.unused.push((0, one(page)));
            }
        }
        let news = found(touched, &known);
        outcome.new_pages = news.iter().map(ProfiledFile::pages).sum();
        settle(profile, &outcome);
        profile.absorb(news, vec![]);
    }
    starts
}

/// What rounds cost the program, in pages missed: a wasted page costs its transfer and a tenth of a miss.
fn cost(rounds: &[Round]) -> f64 {
    let transfer = PAGE_SIZE as f64 * 1e9 / FIGURES.bytes_per_second as f64;
    let waste = transfer / miss_ns(&FIGURES) + 0.1;
    // The first round is the same for all: nothing is known.
    rounds[1..].iter().map(|round| round.missed as f64 + round.wasted as f64 * waste).sum()
}

/// The working sets of 40 runs.
fn scenario(name: &str, longest: u64, random: &mut Random) -> Vec<Pages> {
    let core = random.pages(600, longest, 8000);
    let [a, b] = [random.pages(400, longest, 8000), random.pages(400, longest, 8000)];
    (0..40)
        .map(|run| match name {
            "steady" => core.clone(),
            "changing" if run < 20 => &core | &a,
            "changing" => &core | &b,
            "replaced" if run < 20 => a.clone(),
            "replaced" => b.clone(),
            "shrinking" if run < 20 => &core | &a,
            "shrinking" => core.clone(),
            "alternating" if run % 2 == 0 => &core | &a,
            "alternating" => &core | &b,
            "in turns of four" if run / 4 % 2 == 0 => &core | &a,
            "in turns of four" => &core | &b,
            "noisy" => core.iter().copied().filter(|_| !random.chance(10)).collect(),
            "now and then" => {
                core.iter().copied().chain(a.iter().copied().filter(|_| random.chance(25))).collect()
            }
            _ => unreachable!("{name}"),
        })
        .collect()
}

const SCENARIOS: [&str; 8] = [
    "steady",
    "changing",
    "replaced",
    "shrinking",
    "alternating",
    "in turns of four",
    "noisy",
    "now and then",
];

#[test]
fn the_rule_costs_less_than_ageing_that_knows_more() {
    let mut sums = [0.0; 4];
    for name in SCENARIOS {
        let mut costs = [0.0; 4];
        for seed in 0..5 {
            let runs = scenario(name, 16, &mut Random(seed));
            let others = [Ageing::Accumulate, Ageing::KeepLast, Ageing::DropAfter(2)];
            for (at, policy) in others.iter().enumerate() {
                costs[at] += cost(&policy.replay(&runs));
            }
            costs[3] += cost(&rule(&runs, &mut Random(seed + 100)).rounds);
        }
        let [accumulate, last, after_2, rule] = costs.map(|cost| cost / 5.0);
        eprintln!(
            "{name:16} accumulate {accumulate:6.0}  keep-last {last:6.0}  drop-after-2 {after_2:6.0}  rule {rule:6.0}"
        );
        costs.iter().zip(&mut sums).for_each(|(cost, sum)| *sum += cost);
        if name != "steady" {
            assert!(rule < 1.4 * accumulate, "{name}: pages that come again are not given up");
        }
    }
    let [accumulate, last, after_2, rule] = sums;
    assert!(rule < accumulate && rule < last && rule < after_2, "{sums:?}");
}

#[test]
fn inputs_with_a_role_each_do_not_disturb_one_another() {
    let runs = scenario("alternating", 16, &mut Random(1));
    let of_role = |role: usize| runs.iter().skip(role).step_by(2).cloned().collect::<Vec<Pages>>();
    for role in 0..2 {
        let starts = rule(&of_role(role), &mut Random(9));
        assert_eq!(starts.rounds[1..].iter().map(|round| round.wasted).sum::<u64>(), 0);
        let missed: u64 = starts.rounds[1..].iter().map(|round| round.missed).sum();
        assert_eq!(missed, starts.tested, "only what was left out to test it was missed");
    }
    // In one role, the best that can be done is to prefetch for both.
    let mixed = rule(&runs, &mut Random(9));
    let simple = Ageing::KeepLast.replay(&runs);
    assert!(10.0 * cost(&mixed.rounds) < 2.0 * cost(&simple));
}

#[test]
fn tests_cost_no_more_than_a_hundredth_of_a_start() {
    let (mut tested, mut starts) = (0, 0);
    for seed in 0..20 {
        let outcome = rule(&scenario("steady", 16, &mut Random(seed)), &mut Random(seed + 100));
        tested += outcome.tested;
        starts += outcome.rounds.len() as u64;
    }
    let share = tested as f64 * miss_ns(&FIGURES) / (starts as f64 * COLD_START_NS as f64);
    assert!((0.005..=0.0105).contains(&share), "{share}");
}

/// Waste as a share of the prefetch, by start.
fn wastes(name: &str, longest: u64, seed: u64) -> Vec<f64> {
    let starts = rule(&scenario(name, longest, &mut Random(seed)), &mut Random(seed + 100));
    starts.rounds.iter().map(|round| round.wasted as f64 / round.prefetched.max(1) as f64).collect()
}

#[test]
fn after_a_change_waste_falls_below_a_twentieth_within_five_starts() {
    const SEEDS: u64 = 20;
    // A program that merely uses less misses nothing; only a test shows that, and which start makes one is chance.
    for (name, start) in [("changing", 25), ("replaced", 25), ("shrinking", 30)] {
        // What a program uses together lies together, in stretches longer than what one fault maps.
        let (mut before, mut after) = (0.0, 0.0);
        for seed in 0..SEEDS {
            let wastes = wastes(name, 64, seed);
            before += wastes[20] / SEEDS as f64;
            after += wastes[start] / SEEDS as f64;
        }
        assert!(before > 0.3 && after < 0.05, "{name}: {before} to {after}");
        // Pages strewn among pages still used can only be told from them one by one, but never stay the most.
        for seed in 0..SEEDS {
            assert!(wastes(name, 4, seed)[39] < 0.25, "{name} {seed}");
        }
    }
}

#[test]
fn the_waste_that_is_told_is_the_waste_there_is() {
    for name in ["steady", "changing", "noisy"] {
        let starts = rule(&scenario(name, 64, &mut Random(3)), &mut Random(103));
        let told = expected_waste(&worthwhile(&starts.profile, &FIGURES));
        let last = starts.rounds.last().unwrap();
        let real = last.wasted as f64 / last.prefetched as f64;
        assert!((told - real).abs() < 0.08, "{name}: told {told}, real {real}");
    }
}

#[test]
fn thresholds_follow_from_the_device() {
    let slow_transfer = DeviceFigures { bytes_per_second: 10_000_000, ..FIGURES };
    let [fast, slow] = [threshold(&FIGURES), threshold(&slow_transfer)];
    assert!(fast < 0.15 && slow > 0.4, "{fast} {slow}");
    let far = DeviceFigures { latency_ns: 10_000_000, ..slow_transfer };
    assert!(threshold(&far) < slow, "where misses cost more, less likely pages are worth it");
}

#[test]
fn what_is_left_out_is_read_by_no_read() {
    let range = |start, end| PageRange::new(PageIndex(start), PageIndex(end));
    let read = |file, start, end| Read { file, range: range(start, end) };
    let test = |file, page| PageOf { file, page: PageIndex(page) };
    let reads = vec![read(1, 40, 44), read(0, 0, 8), read(0, 20, 21)];
    let kept = leave_out(reads, &[test(0, 3), test(0, 20), test(1, 40), test(1, 43), test(2, 1)]);
    assert_eq!(kept, [read(1, 41, 43), read(0, 0, 3), read(0, 4, 8)]);
}

#[test]
fn profiles_that_lie_are_settled_in_no_time() {
    let huge = Extent::new(PageRange::new(PageIndex(0), PageIndex(1 << 50)), 0, Evidence::Exact);
    let file = ProfiledFile { extents: vec![huge], ..found(&Pages::from([1]), &Pages::new()).remove(0) };
    let mut profile = Profile { files: vec![file], ..Profile::default() };
    profile.history.looks_due = u32::MAX;
    profile.history.looks_rest = u32::MAX;
    let mut random = Random(1);
    let tests =
        choose_tests(&profile, &FIGURES, Budget { cold_start_ns: u64::MAX, read_ahead_pages: 32 }, || {
            random.next()
        });
    assert!(!tests.is_empty());
    let outcome = Outcome {
        tests: tests.iter().map(|&test| (test, false)).collect(),
        unused: vec![(7, huge.range), (0, PageRange::new(PageIndex(1 << 49), PageIndex(u64::MAX)))],
        new_pages: u64::MAX,
        looked: true,
        ..Outcome::default()
    };
    settle(&mut profile, &outcome);
    assert!(profile.files[0].extents.len() <= 2 * tests.len() + 2);
    assert_eq!(profile.history.looks_due, u32::MAX - 1);
}
