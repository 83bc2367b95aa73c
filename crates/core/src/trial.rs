//! What a start tries out beside prefetching, and what that showed.
//!
//! Pages that were prefetched look used whether anybody used them or not, so each cold start puts some of what it
//! believes to the test:
//!
//! | way | what | how often | what it shows |
//! |---|---|---|---|
//! | test | a few predicted pages, drawn at random, are left out | every cold start, within a [`Budget`] | each by itself, and by sample those of which the same was known |
//! | look | every page fault is watched | some starts after the program seems to have changed | mapped pages around which nothing faulted were not used |
//! | hold-out | nothing is prefetched | 1 start in 32 | all pages; and what prefetching is worth |
//!
//! [`worthwhile`] says what to prefetch, [`choose_tests`] what to leave out of that, [`settle`] what to believe after it.

use crate::counts::Counts;
use crate::device_figures::DeviceFigures;
use crate::extent::{Evidence, Extent, simplified};
use crate::page::{PAGE_SIZE, PageIndex, PageRange};
use crate::plan::Read;
use crate::profile::{Profile, ProfiledFile};

/// A wasted page also takes the place of another in memory, which one time in this many will be missed in its turn.
const EVICTION_PRICE: f64 = 0.1;

/// What a page itself showed counts as this many observations. Pages keep their ways, and what is tested once in dozens
/// of starts must be believed before the program changes again.
const OWN_OBSERVATIONS: u32 = 4;
/// The same on a look, which is taken because something changed. Three looks are then enough to drop what was seen used
/// for long, and one is not enough to drop what is used every other time.
const LOOK_OBSERVATIONS: u32 = 8;

/// Tests in one start at most. Far more would cut the reads of the prefetch into pieces.
const TESTS_MAX: usize = 96;

/// Pages surely used and pages in doubt are drawn for tests in the proportion of this to 1: what changes must show
/// there too.
const SURE_WEIGHT: f64 = 0.05;

/// Taken for sure to be used; that it is not is a sign of change.
const SURE: f64 = 0.85;

/// Looks that follow a sign of change.
const LOOKS: u32 = 3;
/// Cold starts after the last look in which no sign of change is followed: programs that need other pages in each
/// start are not worth looking at each time.
const LOOKS_REST: u32 = 12;
/// New pages that are a sign of change: one in this many of those known.
const CHANGE_SHARE: u64 = 20;
/// Fewer new pages than these are not one.
const CHANGE_PAGES_MIN: u64 = 8;

/// What tests may cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    /// How long a cold start takes with prefetch.
    pub cold_start_ns: u64,
    /// The kernel's read-ahead. Each miss reads as much, and tests of one file stand that far apart, so that one that is
    /// missed does not bring in another.
    pub read_ahead_pages: u64,
}

impl Budget {
    /// Tests cost this share of a cold start at most, on average.
    pub const SHARE: f64 = 0.01;
}

/// Of a start of which nothing is known: shorter than most, so that the budget holds. And the usual read-ahead of 128 KiB.
impl Default for Budget {
    fn default() -> Self {
        Self { cold_start_ns: 50_000_000, read_ahead_pages: 32 }
    }
}

/// A page of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageOf {
    /// Index into the profile's files.
    pub file: usize,
    /// The page.
    pub page: PageIndex,
}

/// What a page that was not prefetched costs when it is used: its read, behind those that are under way.
pub fn miss_ns(figures: &DeviceFigures) -> f64 {
    let queue_ns = f64::from(figures.depth) * 1e9 / figures.reads_per_second() as f64;
    figures.latency_ns as f64 + queue_ns
}

/// The probability from which a page is worth its prefetch: where what is saved when it is used, p × miss, outweighs what
/// is lost when it is not, (1 − p) × (transfer + a tenth of a miss).
pub fn threshold(figures: &DeviceFigures) -> f64 {
    let miss = miss_ns(figures);
    let waste = transfer_ns(figures, 1) + EVICTION_PRICE * miss;
    waste / (miss + waste)
}

fn transfer_ns(figures: &DeviceFigures, pages: u64) -> f64 {
    pages as f64 * PAGE_SIZE as f64 * 1e9 / figures.bytes_per_second.max(1) as f64
}

/// The part of `profile` that is worth a prefetch on a device with these figures. Files keep their places.
pub fn worthwhile(profile: &Profile, figures: &DeviceFigures) -> Profile {
    let threshold = threshold(figures);
    let files = profile.files.iter().map(|file| {
        let worth = |extent: &&Extent| extent.counts.probability() >= threshold;
        ProfiledFile { extents: file.extents.iter().filter(worth).copied().collect(), ..file.clone() }
    });
    Profile { files: files.collect(), ..profile.clone() }
}

/// Pages of `planned` to leave out of its prefetch, so that they show whether they are used. Those in doubt are drawn most
/// often. The misses to be expected cost no more than `budget` on average. `random` gives uniform 64-bit numbers.
pub fn choose_tests(
    planned: &Profile,
    figures: &DeviceFigures,
    budget: Budget,
    mut random: impl FnMut() -> u64,
) -> Vec<PageOf> {
    let mut cumulated: Vec<(f64, usize, &Extent)> = Vec::new();
    let mut weight = 0.0;
    for (at, file) in planned.files.iter().enumerate() {
        for extent in &file.extents {
            weight += extent.range.len() as f64 * (1.0 - extent.counts.probability() + SURE_WEIGHT);
            cumulated.push((weight, at, extent));
        }
    }
    let test_ns = miss_ns(figures) + transfer_ns(figures, budget.read_ahead_pages);
    let mut uniform = || (random() >> 11) as f64 / (1u64 << 53) as f64;
    let mut left_ns = budget.cold_start_ns as f64 * Budget::SHARE;
    let mut tests: Vec<PageOf> = Vec::new();
    for _ in 0..4 * TESTS_MAX {
        let drawn = uniform() * weight;
        let at = cumulated.partition_point(|&(upto, ..)| upto <= drawn);
        let Some(&(_, file, extent)) = cumulated.get(at) else { break };
        let offset = (uniform() * extent.range.len() as f64) as u64;
        let page = PageIndex(extent.range.start().0 + offset.min(extent.range.len() - 1));
        let close = |test: &PageOf| {
            test.file == file && test.page.0.abs_diff(page.0) < budget.read_ahead_pages.max(1)
        };
        if tests.iter().any(close) {
            continue;
        }
        let probability = extent.counts.probability();
        // The prior keeps estimates off 1, and the budget is to hold where all pages are used.
        let cost_ns = if probability < SURE { probability } else { 1.0 } * test_ns;
        // The last one fits in part: it is made as often as it fits.
        if left_ns < cost_ns && uniform() * cost_ns >= left_ns {
            break;
        }
        left_ns -= cost_ns;
        tests.push(PageOf { file, page });
        if left_ns <= 0.0 || tests.len() == TESTS_MAX {
            break;
        }
    }
    tests
}

/// `reads` without the pages that are to be tested: cut in two where one lies inside.
pub fn leave_out(reads: Vec<Read>, tests: &[PageOf]) -> Vec<Read> {
    let mut tests = tests.to_vec();
    tests.sort_unstable();
    let mut kept = Vec::with_capacity(reads.len() + tests.len());
    for read in reads {
        let mut start = read.range.start();
        let first = tests.partition_point(|test| (test.file, test.page) < (read.file, start));
        for test in &tests[first..] {
            if test.file != read.file || test.page >= read.range.end() {
                break;
            }
            kept.push(Read { range: PageRange::new(start, test.page), ..read });
            start = PageIndex(test.page.0 + 1);
        }
        kept.push(Read { range: PageRange::new(start, read.range.end()), ..read });
    }
    kept.retain(|read| !read.range.is_empty());
    kept
}

/// What a cold start showed. Only of pages that were not in memory when it began.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Pages left out at random, and whether they were used.
    pub tests: Vec<(PageOf, bool)>,
    /// Other pages seen by themselves to be used.
    pub used: Vec<(usize, PageRange)>,
    /// Other pages seen not to be used.
    pub unused: Vec<(usize, PageRange)>,
    /// Pages the program waited for that the profile did not know.
    pub new_pages: u64,
    /// Whether every fault was watched, so that mapped pages that were not used are among `unused`.
    pub looked: bool,
}

/// Makes of `profile` what is to be believed after a cold start that showed `outcome`. Pages of which no sign of use is
/// left are forgotten.
pub fn settle(profile: &mut Profile, outcome: &Outcome) {
    let classes = classes(profile, &outcome.tests);
    if is_sign_of_change(profile, outcome, &classes) && profile.history.looks_rest == 0 {
        profile.history.looks_due = LOOKS;
        profile.history.looks_rest = LOOKS + LOOKS_REST;
    } else {
        profile.history.looks_due -= u32::from(outcome.looked).min(profile.history.looks_due);
        profile.history.looks_rest = profile.history.looks_rest.saturating_sub(1);
    }
    let mut seen: Vec<Vec<(PageRange, bool)>> = vec![Vec::new(); profile.files.len()];
    let mut note = |file: usize, range: PageRange, used: bool| {
        if let Some(seen) = seen.get_mut(file).filter(|_| !range.is_empty()) {
            seen.push((range, used));
        }
    };
    outcome.unused.iter().for_each(|&(file, range)| note(file, range, false));
    outcome.used.iter().for_each(|&(file, range)| note(file, range, true));
    for &(test, used) in &outcome.tests {
        note(test.file, PageRange::new(test.page, PageIndex(test.page.0.saturating_add(1))), used);
    }
    let own = if outcome.looked { LOOK_OBSERVATIONS } else { OWN_OBSERVATIONS };
    for (at, (file, seen)) in profile.files.iter_mut().zip(&seen).enumerate() {
        let of_class = |extent: &Extent| classes.iter().find(|class| class.holds(at, extent));
        let mut after = Vec::with_capacity(file.extents.len());
        for extent in &file.extents {
            for (piece, used) in pieces(extent, seen) {
                let counts = match (used, of_class(&piece)) {
                    (Some(true), _) => piece.counts.touch(own),
                    (Some(false), _) => piece.counts.spare(own),
                    (None, Some(class)) => class.observed(piece.counts),
                    (None, None) => piece.counts,
                };
                let evidence =
                    if used == Some(true) { piece.evidence.min(Evidence::Seen) } else { piece.evidence };
                after.push(Extent { counts, evidence, ..piece });
            }
        }
        after.retain(|extent| !extent.counts.is_forgotten());
        file.extents = simplified(&after);
    }
    profile.files.retain(|file| !file.extents.is_empty());
}

/// Share (0 to 1) of the pages of `planned` that nobody will use, as far as tests told.
pub fn expected_waste(planned: &Profile) -> f64 {
    let (mut wasted, mut all) = (0.0, 0.0);
    for extent in planned.files.iter().flat_map(|file| &file.extents) {
        let (touched, spared) = (extent.counts.touched(), extent.counts.spared());
        let share = if touched + spared > 0.0 { spared / (touched + spared) } else { 0.5 };
        wasted += share * extent.range.len() as f64;
        all += extent.range.len() as f64;
    }
    if all > 0.0 { wasted / all } else { 0.0 }
}

/// Pages of one file of which the same is known: a test of some tells of all.
#[derive(Debug)]
struct Class {
    file: usize,
    evidence: Evidence,
    counts: Counts,
    used: u32,
    unused: u32,
}

impl Class {
    fn holds(&self, file: usize, extent: &Extent) -> bool {
        (self.file, self.evidence, self.counts) == (file, extent.evidence, extent.counts)
    }

    /// What the sample makes of the counters of a page that was not in it.
    fn observed(&self, mut counts: Counts) -> Counts {
        // Evenly mixed, for what comes last counts most.
        let (mut used, mut unused) = (self.used, self.unused);
        while used + unused > 0 {
            if u64::from(used) * u64::from(self.unused) >= u64::from(unused) * u64::from(self.used)
                && used > 0
            {
                counts = counts.touch(1);
                used -= 1;
            } else {
                counts = counts.spare(1);
                unused -= 1;
            }
        }
        counts
    }
}

fn classes(profile: &Profile, tests: &[(PageOf, bool)]) -> Vec<Class> {
    let mut classes: Vec<Class> = Vec::new();
    for &(test, used) in tests {
        let file = profile.files.get(test.file);
        let Some(extent) = file.and_then(|file| file.extent_of(test.page)) else { continue };
        let at = classes.iter().position(|class| class.holds(test.file, extent)).unwrap_or_else(|| {
            let Extent { evidence, counts, .. } = *extent;
            classes.push(Class { file: test.file, evidence, counts, used: 0, unused: 0 });
            classes.len() - 1
        });
        let class = &mut classes[at];
        *if used { &mut class.used } else { &mut class.unused } += 1;
    }
    classes
}

/// Whether the program used much that was not known, or did not use what was believed to be used.
fn is_sign_of_change(profile: &Profile, outcome: &Outcome, classes: &[Class]) -> bool {
    let known = profile.pages();
    let news = known > 0 && outcome.new_pages >= CHANGE_PAGES_MIN.max(known / CHANGE_SHARE);
    news || classes.iter().any(|class| class.unused > 0 && class.counts.probability() >= SURE)
}

/// `extent` cut where what was seen of its pages changes. What was noted later stands where pages were seen twice.
fn pieces(extent: &Extent, seen: &[(PageRange, bool)]) -> Vec<(Extent, Option<bool>)> {
    let (start, end) = (extent.range.start(), extent.range.end());
    let inside: Vec<&(PageRange, bool)> =
        seen.iter().filter(|(range, _)| range.start() < end && start < range.end()).collect();
    let mut cuts: Vec<PageIndex> = inside
        .iter()
        .flat_map(|(range, _)| [range.start().max(start), range.end().min(end)])
        .chain([start, end])
        .collect();
    cuts.sort_unstable();
    cuts.dedup();
    let seen_at = |page| inside.iter().rev().find(|(range, _)| range.contains(page)).map(|&&(_, used)| used);
    cuts.windows(2).map(|cut| (extent.over(cut[0], cut[1]), seen_at(cut[0]))).collect()
}
