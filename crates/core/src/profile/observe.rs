//! Learning: what a profile becomes by the observation of one start.
//!
//! What was seen is counted as used. What was not seen is counted as unused where its absence means something: a page of
//! a file whose use was seen whole, a file of a start that was seen whole. All else stays as it is.

use std::collections::{HashMap, HashSet};

use super::bounds::bound;
use super::counts::{Counts, Use};
use super::extent::{overlay, simplified};
use super::observation::{Coverage, Observation, ObservedFile, Order, UsedPages};
use super::start::{ColdStart, Draw, median, newest};
use super::{Extent, History, Lookup, Profile, ProfiledFile};

/// Starts observed after a sign of change: as many as it takes to drop what is no longer used.
const DUE_AFTER_CHANGE: u8 = 5;
/// Starts observed after one that waited for more pages than others do: of several inputs in turn one may be new.
const DUE_AFTER_MISSES: u8 = 3;
/// Observed starts after those in which a sign of change is not followed: programs that need other pages in each start
/// are not worth observing each time.
const REST: u8 = 4;
/// The same after those that misses began. Another number, which tells such a series from one that a change began.
const REST_AFTER_MISSES: u8 = 3;
/// Pages that are a sign of change when they are new, missed or unexpectedly unused: one in this many.
const CHANGE_SHARE: u64 = 10;
/// Pages that one wait for the device stands for: the kernel's read-ahead brings 32, of which some are used.
pub const PAGES_A_MISS: u64 = 8;
/// Misses are a sign of change where they are more than so many times the usual.
const MORE_MISSES: u32 = 2;
/// Fewer pages than these are not one.
const CHANGE_PAGES_MIN: u64 = 8;
/// Probability from which a page is believed in.
const BELIEVED: f64 = 0.5;
/// Observations are counted up to this: a program that never changes has a profile that never changes.
pub const OBSERVATIONS_MAX: u8 = 8;

impl Profile {
    /// Learns from one start.
    pub fn observe(&mut self, seen: &Observation) {
        self.observe_beyond(seen, &Counted::default());
    }

    fn observe_beyond(&mut self, seen: &Observation, counted: &Counted<'_>) {
        let is_first = self.history.observations == 0;
        let before = (self.files.clone(), self.lookups.clone());
        let known_pages = self.pages();
        let mut surprise = Surprise::default();
        let by_path: HashMap<&str, &ObservedFile> =
            seen.files.iter().map(|file| (file.path.as_str(), file)).collect();
        let mut learned: HashMap<&str, bool> = HashMap::new();
        for file in &mut self.files {
            let Some(&observed) = by_path.get(file.path.as_str()) else {
                if counted.pages_of(file).is_empty() {
                    file.absent(seen, &mut surprise);
                }
                continue;
            };
            // Another content of the path is not there any more.
            let is_it = file.fingerprint == observed.content;
            *learned.entry(&observed.path).or_default() |= is_it;
            if is_it {
                if file.path == self.program && file.identity.is_same(&observed.identity) {
                    // The very file: where its device has another number since a boot, what starts showed there holds here.
                    let there = self.starts.iter_mut().filter(|start| start.device == file.identity.device);
                    there.for_each(|start| start.device = observed.identity.device);
                }
                file.observe(observed, counted.pages_of(file), seen, &mut surprise);
            } else {
                file.extents.clear();
            }
        }
        for file in
            seen.files.iter().filter(|file| !learned.get(file.path.as_str()).is_some_and(|known| *known))
        {
            self.files.push(ProfiledFile::new(file, seen.unix_s));
            surprise.new += self.files.last().map_or(0, ProfiledFile::pages);
        }
        self.files.retain(|file| !file.extents.is_empty());
        if seen.order != Order::Rough {
            self.files.sort_by_key(ProfiledFile::rank);
        }
        self.observe_names(seen, counted);
        bound(self);
        if (&before.0, &before.1) != (&self.files, &self.lookups) {
            self.history.updated_unix_s = seen.unix_s;
        }
        self.history.observations = self.history.observations.saturating_add(1).min(OBSERVATIONS_MAX);
        self.history.due = self.history.due.saturating_sub(1);
        self.history.rest = self.history.rest.saturating_sub(1);
        if is_first {
            self.history.created_unix_s = seen.unix_s;
        } else {
            self.expect_change(surprise.pages(), known_pages);
        }
    }

    /// Learns what `seen` shows of a start beyond `earlier`, which was seen of the same start before, [cut short](Observation::cut_short), and
    /// is counted already.
    pub fn observe_further(&mut self, seen: &Observation, earlier: &Observation) {
        let before = self.history;
        self.observe_beyond(seen, &Counted::in_(earlier));
        self.history.observations = before.observations;
        self.history.due = self.history.due.max(before.due);
        self.history.rest = self.history.rest.max(before.rest);
    }

    /// Remembers a cold start. If an unobserved one waited for more pages than others do, the next few are observed: the
    /// program has changed, or the machine was busy.
    pub fn record(&mut self, mut start: ColdStart) {
        if self.history.rest == 0 && self.is_suspect(&start) {
            self.history.due = DUE_AFTER_MISSES;
            self.history.rest = DUE_AFTER_MISSES + REST_AFTER_MISSES;
        }
        let last = self.starts.last().map_or(0, |last| last.unix_s);
        start.unix_s = start.unix_s.max(last.saturating_add(1));
        self.starts = newest(&self.starts, &[start]);
    }

    /// Has the next starts observed: files of the profile are not there as they were learned. Where signs of change are not followed for
    /// now, the next one alone, once between two others that are observed.
    pub fn expect_changed_files(&mut self) {
        self.expect_change(u64::MAX, 0);
        let History { due, rest, .. } = &mut self.history;
        if *due == 0 && *rest <= REST {
            (*due, *rest) = (1, *rest + 2);
        }
    }

    /// Whether the next start is to be observed. `draw` is `None` where no sample is to be taken: then only what is new or has
    /// changed is observed.
    ///
    /// A program is observed in its first start, in five after a change was seen, in three after a start that waited for more
    /// pages than others did, and else in so many that observing takes 0.5 % of its time.
    pub fn observation_due(&self, draw: Option<Draw>) -> bool {
        self.history.observations == 0
            || self.history.due > 0
            || draw.is_some_and(|draw| draw.is_drawn(&self.starts))
    }

    fn is_suspect(&self, start: &ColdStart) -> bool {
        let is_alike = |one: &ColdStart| {
            one.device == start.device && !one.observed && !one.held_out && one.prefetched_pages > 0
        };
        let misses = self.starts.iter().filter(|one| is_alike(one)).map(|one| one.missed_pages).collect();
        let usual = median(misses, 1).unwrap_or(0);
        // What is known and was not brought in was in memory, or the program waited for it before it was.
        let overtaken = self.pages().saturating_sub(start.prefetched_pages.into());
        let unknown = (PAGES_A_MISS * u64::from(start.missed_pages)).saturating_sub(overtaken);
        is_alike(start)
            && is_change(unknown, self.pages())
            && start.missed_pages > usual.saturating_mul(MORE_MISSES)
    }

    fn expect_change(&mut self, surprise: u64, known_pages: u64) {
        let History { due, rest, .. } = self.history;
        // What misses announced shows in the first observed start after them.
        let is_after_misses = due > 1 && rest.checked_sub(due) == Some(REST_AFTER_MISSES);
        if is_change(surprise, known_pages) && (rest == 0 || is_after_misses) {
            self.history.due = DUE_AFTER_CHANGE;
            self.history.rest = DUE_AFTER_CHANGE + REST;
        }
    }

    fn observe_names(&mut self, seen: &Observation, counted: &Counted<'_>) {
        let mut unknown: HashMap<&str, bool> =
            seen.names.iter().map(|name| (name.path.as_str(), name.list)).collect();
        for name in &mut self.lookups {
            let used = unknown.remove(name.path.as_str());
            name.list |= used == Some(true);
            match used {
                _ if counted.names.contains(name.path.as_str()) => {}
                Some(_) => name.counts = name.counts.after(Use::Sure),
                None if seen.coverage_of_name(&name.path) != Coverage::Partial => {
                    name.counts = name.counts.after(Use::None);
                }
                None => {}
            }
        }
        self.lookups.retain(|name| !name.counts.is_forgotten());
        for name in &seen.names {
            if let Some(list) = unknown.remove(name.path.as_str()) {
                self.lookups.push(Lookup { path: name.path.clone(), list, counts: Counts::once(Use::Sure) });
            }
        }
    }
}

/// Whether so many pages of those known are a sign of change.
fn is_change(surprise: u64, known_pages: u64) -> bool {
    surprise >= CHANGE_PAGES_MIN.max(known_pages / CHANGE_SHARE)
}

/// What of a start is counted as used already.
#[derive(Debug, Default)]
struct Counted<'a> {
    files: HashMap<&'a str, &'a ObservedFile>,
    names: HashSet<&'a str>,
}

impl<'a> Counted<'a> {
    fn in_(earlier: &'a Observation) -> Self {
        Self {
            files: earlier.files.iter().map(|file| (file.path.as_str(), file)).collect(),
            names: earlier.names.iter().map(|name| name.path.as_str()).collect(),
        }
    }

    fn pages_of(&self, file: &ProfiledFile) -> &'a [UsedPages] {
        let counted =
            self.files.get(file.path.as_str()).filter(|counted| counted.content == file.fingerprint);
        counted.map_or(&[], |counted| &counted.pages)
    }
}

/// How far a start was other than was to be expected, in pages.
#[derive(Debug, Default)]
struct Surprise {
    /// Used, and not known.
    new: u64,
    /// Believed in and unused, less what is unused by chance.
    unused: f64,
}

impl Surprise {
    /// Compares `pages` of an extent that were used, or not, with what is believed of it.
    fn judge(&mut self, known: &Extent, pages: u64, used: bool) {
        let probability = known.counts.probability();
        if probability >= BELIEVED {
            self.unused += (probability - f64::from(u8::from(used))) * pages as f64;
        }
    }

    fn pages(&self) -> u64 {
        self.new + self.unused.max(0.0) as u64
    }
}

impl ProfiledFile {
    fn new(seen: &ObservedFile, unix_s: u64) -> Self {
        Self {
            path: seen.path.clone(),
            identity: seen.identity,
            fingerprint: seen.content.clone(),
            learned_unix_s: unix_s,
            extents: simplified(&seen.pages.iter().map(Extent::from).collect::<Vec<_>>()),
        }
    }

    /// Counts `start`, which used `seen` of the file, of which these pages are `counted`.
    fn observe(
        &mut self,
        seen: &ObservedFile,
        counted: &[UsedPages],
        start: &Observation,
        surprise: &mut Surprise,
    ) {
        let ranges = (|extent: &Extent| extent.range, |used: &UsedPages| used.range);
        let known = overlay(&self.extents, counted, &ranges, |range, known, counted| {
            known.map(|known| (Extent { range, ..known }, counted.is_some()))
        });
        let ranges = (|(extent, _): &(Extent, bool)| extent.range, |used: &UsedPages| used.range);
        let extents = overlay(&known, &seen.pages, &ranges, |range, known, used| {
            let (known, is_counted) = known.unzip();
            match (known, used) {
                (Some(known), _) if is_counted == Some(true) => Some(Extent { range, ..known }),
                (Some(known), Some(used)) => {
                    let how = if used.is_sure { Use::Sure } else { Use::Half };
                    let by_read = known.by_read || used.by_read;
                    surprise.judge(&known, range.len(), true);
                    let rank = match start.order {
                        Order::Exact => used.rank,
                        // Looks may be far apart, as those of a boot before anything is fetched for it: the order comes nearer to what several show.
                        Order::ByLooks => known.rank.midpoint(used.rank),
                        Order::Rough => known.rank,
                    };
                    Some(Extent { range, rank, counts: known.counts.after(how), by_read })
                }
                (None, Some(used)) => {
                    surprise.new += if used.is_sure { range.len() } else { 0 };
                    Some(Extent { range, ..Extent::from(&used) })
                }
                (known, None) if seen.coverage == Coverage::Partial => {
                    known.map(|known| Extent { range, ..known })
                }
                (known, None) => known.and_then(|known| unused(Extent { range, ..known }, surprise)),
            }
        });
        let extents = simplified(&extents);
        if extents != self.extents || self.identity != seen.identity {
            self.learned_unix_s = start.unix_s;
        }
        (self.extents, self.identity) = (extents, seen.identity);
    }

    /// Counts a start in which no use of the file was seen.
    fn absent(&mut self, seen: &Observation, surprise: &mut Surprise) {
        let counted = |known: Extent| match seen.coverage_of(&self.path, known.by_read) {
            Coverage::Partial => Some(known),
            _ => unused(known, surprise),
        };
        self.extents = self.extents.drain(..).filter_map(counted).collect();
    }
}

/// What is left of an extent that a start did not use.
fn unused(known: Extent, surprise: &mut Surprise) -> Option<Extent> {
    surprise.judge(&known, known.range.len(), false);
    let counts = known.counts.after(Use::None);
    (!counts.is_forgotten()).then_some(Extent { counts, ..known })
}
