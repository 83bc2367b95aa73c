//! What is known of a boot or a session, on its way into memory: first the blocks of the file system itself, in the order of the
//! device, then the pages of files, in the order in which they are used.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use prepage_core::profile::Profile;
use prepage_core::profile::observation::Observation;
use prepage_core::profile::plan::{self, PlanOptions, plan};
use prepage_core::{PAGE_SIZE, PageIndex};
use prepage_prefetch::choose::Choice;
use prepage_prefetch::engine::{Engine, Work};
use prepage_prefetch::launch::LaunchOptions;
use prepage_prefetch::memory::Budget;
use prepage_sys::rights::Rights;

use crate::blocks::{Blocks, Device};
use crate::opened::OwnUses;

/// Holes up to this many pages are read over, among files' pages and among blocks: 64 KiB. A machine on which a boot waits for the disk has
/// one that counts reads (a volume, a spinning disk: 20 to 200 KiB come in the time of another read); on others it costs next to nothing.
const GAP_PAGES: u64 = 16;
/// The longest read, where one WILLNEED may be that long: 256 KiB. For the same reason, and no longer, for whatever else the boot waits
/// for stands behind it.
const READ_PAGES_MAX: u64 = 64;
/// Reads at once, for the same reason: few, so that the device is never idle while one of them looks for its next.
const READERS: u32 = 3;

/// How reads are formed on a device of which one WILLNEED loads so many pages.
pub fn plan_for(willneed_pages: u64) -> PlanOptions {
    PlanOptions {
        gap_pages_max: GAP_PAGES,
        read_pages_max: willneed_pages.clamp(plan::READ_PAGES_MAX, READ_PAGES_MAX),
    }
}

/// A prefetch under way, on threads of its own.
pub struct Replay {
    files: Option<(Engine, Choice)>,
    blocks: Option<Engine>,
    is_begun: Arc<AtomicBool>,
    plan: PlanOptions,
}

/// What is to be brought in.
#[derive(Debug)]
pub struct Known<'a> {
    /// How reads of it are formed.
    pub plan: PlanOptions,
    /// The files of the last ones.
    pub profile: Option<Profile>,
    /// What of the root's device.
    pub blocks: Option<(&'a Device, Blocks)>,
}

impl Replay {
    /// Begins to bring in what is `known`, with `rights` where they decide.
    ///
    /// # Errors
    /// Where no thread can be had.
    pub fn begin(known: Known<'_>, rights: &Rights, mut budget: impl FnMut() -> Budget) -> io::Result<Self> {
        let options = known.plan;
        let blocks = known.blocks.and_then(|(device, blocks)| device.profile(&blocks).ok());
        let blocks = blocks.map(|(profile, opened)| {
            let mut engine = Engine::with(profile, options, READERS);
            engine.give(0, opened);
            engine.keep_within(budget());
            engine
        });
        let files = known.profile.map(|profile| {
            // A boot is not tried without: it is worth more than what is learned from that.
            let choice = Choice::new(&profile, &LaunchOptions::default(), false);
            let mut engine = Engine::with(choice.planned.clone(), options, READERS);
            engine.keep_within(budget());
            (engine, choice)
        });
        let replay = Self { files, blocks, is_begun: Arc::default(), plan: options };
        let (rights, is_begun) = (rights.clone(), replay.is_begun.clone());
        let [blocks, files] =
            [replay.blocks.as_ref(), replay.files.as_ref().map(|one| &one.0)].map(|engine| engine.cloned());
        thread(move || {
            // Names and inodes come with them: whoever opens files finds them there.
            if let Some(blocks) = blocks {
                blocks.run();
            }
            if let Some(files) = files {
                files.start_on(&mut |work| thread(with(&rights, work)).is_ok());
            }
            is_begun.store(true, Ordering::Release);
        })?;
        Ok(replay)
    }

    /// Whether it goes on.
    pub fn is_at_work(&self) -> bool {
        !self.is_begun.load(Ordering::Acquire) || self.engines().any(Engine::is_at_work)
    }

    /// Ends it early.
    pub fn cancel(&self) {
        self.engines().for_each(Engine::cancel);
    }

    /// Pages asked for so far: of the device itself, and of files.
    pub fn fetched_pages(&self) -> (u64, u64) {
        let pages =
            |engine: Option<&Engine>| engine.map_or(0, |engine| engine.outcome().requested_bytes / PAGE_SIZE);
        (pages(self.blocks.as_ref()), pages(self.files.as_ref().map(|one| &one.0)))
    }

    /// The last page of each read of a file: reading it is how the engine waits for the others.
    pub fn own_uses(&self) -> OwnUses {
        let mut own = OwnUses::new();
        let Some((_, Choice { planned, .. })) = &self.files else { return own };
        for read in plan(planned, self.plan) {
            let PageIndex(end) = read.range.end();
            own.entry(planned.files[read.file].path.clone()).or_default().insert(end - 1);
        }
        own
    }

    /// Of the pages of files that are known, how many were used.
    pub fn used_pages(&self, observation: &Observation) -> Option<u64> {
        let (_, choice) = self.files.as_ref()?;
        let unused = choice.pages_unused_in(observation);
        Some(choice.planned.pages().saturating_sub(unused.into()))
    }

    fn engines(&self) -> impl Iterator<Item = &Engine> {
        [self.blocks.as_ref(), self.files.as_ref().map(|one| &one.0)].into_iter().flatten()
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
