//! What is known of a boot or a session, on its way into memory: the blocks of the file system itself and the pages of files, in one list, in
//! the order in which they are used.
//!
//! ```text
//! Blocks  ─► reads of the device ─┐
//! Profile ─► reads of files ──────┴─► by need, each with its neighbours on the device ─► readers ─► a request for each piece, up to 512 KiB
//! ```
//! Machines keep thousands of small files that a boot reads, mostly side by side on the device, as they were installed. A device that
//! counts requests takes as long for each of them as for 100 KiB.

use std::io;

use prepage_core::PAGE_SIZE;
use prepage_core::profile::observation::{Coverage, Observation};
use prepage_core::profile::plan::{self, PlanOptions};
use prepage_core::profile::{Profile, ProfiledFile};
use prepage_prefetch::choose::Choice;
use prepage_prefetch::engine::{Engine, Work};
use prepage_prefetch::launch::LaunchOptions;
use prepage_prefetch::memory::Budget;
use prepage_profiles::identity::Skipped;
use prepage_sys::rights::Rights;
use prepage_sys::thread_reads::are_counted;

use crate::blocks::{BlockDevice, Blocks};

/// Holes up to this many pages are read over, in files, between them, and among blocks: 32 KiB. A machine on which a boot waits for the disk
/// has one that counts reads (a volume, a spinning disk: 20 to 200 KiB come in the time of another read); on others it costs next to nothing.
const GAP_PAGES: u64 = 8;
/// The longest read, where one WILLNEED may be that long: 512 KiB. For the same reason, and no longer, for whatever else the boot waits
/// for stands behind it.
pub(crate) const READ_PAGES_MAX: u64 = 128;
/// What comes in by its place on the device, not in the order of use: 512 KiB.
const JOINED_PAGES: u64 = 128;
/// Reads at once: few, so that whatever else the boot waits for does not stand behind many, and more than one, so that the device
/// is never idle while one of them looks for its next.
const READERS: u32 = 3;
/// Reads at once from a volume far away, behind which nobody waits longer. More were not tried.
const READERS_FAR: u32 = 16;

/// How reads are formed on a device of which one WILLNEED loads so many pages.
pub fn plan_for(willneed_pages: u64) -> PlanOptions {
    PlanOptions {
        gap_pages_max: GAP_PAGES,
        read_pages_max: willneed_pages.clamp(plan::READ_PAGES_MAX, READ_PAGES_MAX),
    }
}

/// A prefetch under way, on threads of its own.
pub struct Replay {
    /// Until it has ended: it holds files open.
    engine: Option<Engine>,
    choice: Option<Choice>,
    /// Where the files of the choice begin among those of the engine: behind the device, where that is one.
    first_file: usize,
    /// Pages that were asked for: of the device itself, and of files.
    fetched_pages: (u64, u64),
    /// Files that hold something else now.
    changed: Vec<ProfiledFile>,
}

/// What is to be brought in.
#[derive(Debug)]
pub struct Known<'a> {
    /// How reads of it are formed.
    pub plan: PlanOptions,
    /// The files of the last ones.
    pub profile: Option<Profile>,
    /// What of the root's device.
    pub blocks: Option<(&'a BlockDevice, Blocks)>,
}

impl Replay {
    /// Begins to bring in what is `known`, with `rights` where they decide.
    ///
    /// # Errors
    /// Where no thread can be had.
    pub fn begin(known: Known<'_>, rights: &Rights, budget: &Budget) -> io::Result<Self> {
        let mut result = Ok(());
        let replay = Self::begin_on(known, budget, &mut |work| {
            result = thread(with(rights, work));
            result.is_ok()
        });
        result.and(replay)
    }

    /// The same on threads that `lend` finds ([`Engine::start_on`]).
    fn begin_on(known: Known<'_>, budget: &Budget, lend: &mut dyn FnMut(Work) -> bool) -> io::Result<Self> {
        // A boot is not tried without: it is worth more than what is learned from that.
        let choice = known.profile.map(|profile| Choice::new(&profile, &LaunchOptions::default(), false));
        let mut planned =
            choice.as_ref().map_or_else(Profile::default, |choice| Profile::clone(&choice.planned));
        let blocks = known.blocks.and_then(|(device, blocks)| Some((device, device.opened().ok()?, blocks)));
        if let Some((device, _, blocks)) = &blocks {
            // Before the files that are needed at the same time.
            planned.files.insert(0, device.profiled(blocks));
        }
        let first_file = usize::from(blocks.is_some());
        if planned.files.is_empty() {
            return Ok(Self {
                engine: None,
                choice,
                first_file: 0,
                fetched_pages: (0, 0),
                changed: Vec::new(),
            });
        }
        let is_far = choice.as_ref().is_some_and(|choice| choice.figures.is_far());
        let mut engine = Engine::with(planned, known.plan, if is_far { READERS_FAR } else { READERS });
        // Where files are read apart, small ones would come in one by one while that is tried; and where nothing is counted it would not end.
        if !is_far && blocks.is_some() && are_counted() {
            engine.ask_deeper_where_far(READERS_FAR);
        }
        engine.join_neighbours(JOINED_PAGES);
        engine.open_files_when_read();
        if let Some((device, opened, blocks)) = blocks {
            engine.bring_neighbours_along(|file, page| device.place_of(&blocks, file, page));
            engine.give_device(0, device.number(), opened);
        }
        engine.leave_no_notes()?;
        engine.keep_within(budget.clone());
        engine.start_on(lend);
        Ok(Self { engine: Some(engine), choice, first_file, fetched_pages: (0, 0), changed: Vec::new() })
    }

    /// Whether it goes on.
    pub fn is_at_work(&mut self) -> bool {
        let is_at_work = self.engine.as_ref().is_some_and(Engine::is_at_work);
        if !is_at_work {
            self.cancel();
        }
        is_at_work
    }

    pub fn cancel(&mut self) {
        let Some(engine) = self.engine.take() else { return };
        engine.cancel();
        let outcome = engine.outcome();
        let of_files = outcome.requested_bytes.saturating_sub(outcome.device_bytes);
        self.fetched_pages = (outcome.device_bytes / PAGE_SIZE, of_files / PAGE_SIZE);
        let changed = outcome.skipped.iter().filter(|(_, why)| *why == Skipped::Changed);
        let known = |&(at, _): &(usize, Skipped)| {
            self.choice.as_ref()?.planned.files.get(at.checked_sub(self.first_file)?).cloned()
        };
        self.changed = changed.filter_map(known).collect();
    }

    /// Pages that were asked for until it ended: of the device itself, and of files.
    pub fn fetched_pages(&self) -> (u64, u64) {
        self.fetched_pages
    }

    /// The files that were found to hold something else than was learned, until it ended.
    pub fn changed(&self) -> &[ProfiledFile] {
        &self.changed
    }

    /// Pages of files that are known and worth their reads.
    pub fn planned_pages(&self) -> u64 {
        self.choice.as_ref().map_or(0, |choice| choice.planned.pages())
    }

    /// Of the pages of files that are known, how many were used; `None` where that was seen in part.
    pub fn used_pages(&self, observation: &Observation) -> Option<u64> {
        let choice = self.choice.as_ref()?;
        let is_unseen = |file: &ProfiledFile| observation.coverage_of(&file.path, false) == Coverage::Partial;
        if observation.coverage == Coverage::Partial || choice.planned.files.iter().any(is_unseen) {
            return None;
        }
        let unused = choice.pages_unused_in(observation);
        Some(choice.planned.pages().saturating_sub(unused.into()))
    }
}

fn thread(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name("read".into()).stack_size(256 << 10).spawn(work).map(drop)
}

fn with(rights: &Rights, work: Work) -> impl FnOnce() + Send + use<> {
    let rights = rights.clone();
    move || {
        // Without these rights nothing is opened.
        if let Ok(_assumed) = rights.assume() {
            work();
        }
    }
}

#[cfg(test)]
mod tests {
    use prepage_core::PageIndex;
    use prepage_core::profile::{Counts, Lookup, Touches};

    use super::*;

    /// As a session has none, and a boot whose root file system has no device of its own.
    #[test]
    fn without_blocks_too_one_looks_names_up_beside_the_readers() {
        let mut touches = Touches::default();
        touches.touch(PageIndex(1), 0);
        let file = |number: u32| ProfiledFile {
            path: format!("/no/such/file/{number}"),
            extents: touches.extents(),
            ..ProfiledFile::default()
        };
        let lookup = Lookup { path: "/".into(), list: false, counts: Counts::default() };
        let profile =
            Profile { files: (0..100).map(file).collect(), lookups: vec![lookup], ..Profile::default() };
        let known = Known { plan: plan_for(READ_PAGES_MAX), profile: Some(profile), blocks: None };
        let budget = Budget::of_process();
        let expected = if budget.threads() > READERS_FAR { READERS + 1 } else { 1 };
        let mut lent = 0;
        let mut lend = |_work| {
            lent += 1;
            true
        };
        Replay::begin_on(known, &budget, &mut lend).unwrap();
        assert!((expected..=READERS + 1).contains(&lent), "{lent}");
    }

    #[test]
    fn what_was_used_is_not_said_where_it_was_seen_in_part() {
        let known = Known { plan: plan_for(READ_PAGES_MAX), profile: Some(Profile::default()), blocks: None };
        let replay = Replay::begin(known, &Rights::of_everybody(), &Budget::of_process()).unwrap();
        let seen = prepage_observe::sightings::Sightings::default().observation();
        let used = |coverage| replay.used_pages(&Observation { coverage, ..seen.clone() });
        assert_eq!([Coverage::Superset, Coverage::Partial].map(used), [Some(0), None]);
    }
}
