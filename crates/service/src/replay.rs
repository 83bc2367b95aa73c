//! What is known of a boot or a session, on its way into memory: first the blocks of the file system itself, in the order of the
//! device, then the pages of files, in the order in which they are used.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use prepage_core::profile::observation::{Coverage, Observation};
use prepage_core::profile::plan::{self, PlanOptions, plan};
use prepage_core::profile::{Extent, Profile, ProfiledFile};
use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_prefetch::choose::Choice;
use prepage_prefetch::engine::{Engine, Work};
use prepage_prefetch::launch::LaunchOptions;
use prepage_prefetch::memory::Budget;
use prepage_sys::rights::Rights;

use crate::blocks::{BlockDevice, Blocks};
use crate::opened::OwnUses;

/// Holes up to this many pages are read over, among files' pages and among blocks: 64 KiB. A machine on which a boot waits for the disk has
/// one that counts reads (a volume, a spinning disk: 20 to 200 KiB come in the time of another read); on others it costs next to nothing.
const GAP_PAGES: u64 = 16;
/// The longest read, where one WILLNEED may be that long: 256 KiB. For the same reason, and no longer, for whatever else the boot waits
/// for stands behind it.
const READ_PAGES_MAX: u64 = 64;
/// Reads at once, for the same reason: few, so that the device is never idle while one of them looks for its next.
const READERS: u32 = 3;
/// Of files, long reads and short ones at once: a device that counts reads and bytes serves one kind by what the other leaves.
const READERS_OF_EACH: u32 = 2;

/// How reads are formed on a device of which one WILLNEED loads so many pages.
pub fn plan_for(willneed_pages: u64) -> PlanOptions {
    PlanOptions {
        gap_pages_max: GAP_PAGES,
        read_pages_max: willneed_pages.clamp(plan::READ_PAGES_MAX, READ_PAGES_MAX),
    }
}

/// A prefetch under way, on threads of its own.
pub struct Replay {
    files: Option<Files>,
    blocks: Option<Engine>,
    is_begun: Arc<AtomicBool>,
    plan: PlanOptions,
}

/// Those of files, in two lists, each in the order of need.
struct Files {
    short: Engine,
    long: Engine,
    choice: Choice,
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
            let [short, long] = apart(&choice.planned, options).map(|profile| {
                let mut engine = Engine::with(profile, options, READERS_OF_EACH);
                engine.keep_within(budget());
                engine
            });
            Files { short, long, choice }
        });
        let replay = Self { files, blocks, is_begun: Arc::default(), plan: options };
        let (rights, is_begun) = (rights.clone(), replay.is_begun.clone());
        let blocks = replay.blocks.clone();
        let files: Vec<Engine> = replay.files().cloned().collect();
        thread(move || {
            // Names and inodes come with them: whoever opens files finds them there.
            if let Some(blocks) = blocks {
                blocks.run();
            }
            for files in files {
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
        let pages = |engine: &Engine| engine.outcome().requested_bytes / PAGE_SIZE;
        (self.blocks.iter().map(pages).sum(), self.files().map(pages).sum())
    }

    /// The last page of each read of a file: reading it is how the engine waits for the others.
    pub fn own_uses(&self) -> OwnUses {
        let mut own = OwnUses::new();
        let Some(Files { choice: Choice { planned, .. }, .. }) = &self.files else { return own };
        for part in apart(planned, self.plan) {
            for read in plan(&part, self.plan) {
                let PageIndex(end) = read.range.end();
                own.entry(part.files[read.file].path.clone()).or_default().insert(end - 1);
            }
        }
        own
    }

    /// Of the pages of files that are known, how many were used; `None` where that was seen in part.
    pub fn used_pages(&self, observation: &Observation) -> Option<u64> {
        if observation.coverage == Coverage::Partial {
            return None;
        }
        let choice = &self.files.as_ref()?.choice;
        let unused = choice.pages_unused_in(observation);
        Some(choice.planned.pages().saturating_sub(unused.into()))
    }

    fn engines(&self) -> impl Iterator<Item = &Engine> {
        self.blocks.iter().chain(self.files())
    }

    fn files(&self) -> impl Iterator<Item = &Engine> {
        self.files.iter().flat_map(|files| [&files.short, &files.long])
    }
}

/// The same pages in two profiles: those of short reads, with all names, and those of reads that take a device longer for their bytes than for
/// being reads.
fn apart(profile: &Profile, options: PlanOptions) -> [Profile; 2] {
    let mut long_reads = vec![Vec::new(); profile.files.len()];
    for read in plan(profile, options).into_iter().filter(|read| read.range.len() > GAP_PAGES) {
        long_reads[read.file].push(read.range);
    }
    let part = |is_long: bool| {
        let file = |(file, reads): (&ProfiledFile, &Vec<PageRange>)| {
            let mut extents = file.extents.clone();
            extents.retain(|Extent { range, .. }| {
                reads.iter().any(|read| (read.start()..read.end()).contains(&range.start())) == is_long
            });
            (!extents.is_empty()).then(|| ProfiledFile { extents, ..file.clone() })
        };
        profile.files.iter().zip(&long_reads).filter_map(file).collect::<Vec<_>>()
    };
    let long = Profile { files: part(true), ..Profile::default() };
    [Profile { files: part(false), ..profile.clone() }, long]
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
    use prepage_core::profile::{FileIdentity, Fingerprint, Touches};

    use super::*;

    #[test]
    fn what_was_used_is_not_said_where_it_was_seen_in_part() {
        let known = Known { plan: plan_for(READ_PAGES_MAX), profile: Some(Profile::default()), blocks: None };
        let replay = Replay::begin(known, &Rights::of_everybody(), Budget::of_process).unwrap();
        let seen = prepage_observe::sightings::Sightings::default().observation();
        let used = |coverage| replay.used_pages(&Observation { coverage, ..seen.clone() });
        assert_eq!([Coverage::Superset, Coverage::Partial].map(used), [Some(0), None]);
    }

    #[test]
    fn long_reads_and_short_ones_are_apart_and_together_all_that_there_is() {
        let file = |path: &str, touched: &[(u64, u64)]| {
            let mut touches = Touches::default();
            let pages = touched.iter().flat_map(|&(start, end)| start..end);
            pages.for_each(|page| touches.touch(PageIndex(page), page as u32));
            ProfiledFile {
                path: path.into(),
                identity: FileIdentity::default(),
                fingerprint: Fingerprint::default(),
                learned_unix_s: 0,
                extents: touches.extents(),
            }
        };
        let files = vec![
            file("short", &[(0, 1)]),
            file("both", &[(0, 40), (100, 102), (200, 300)]),
            file("long", &[(0, 64)]),
        ];
        let profile = Profile { files, ..Profile::default() };
        let parts = apart(&profile, plan_for(READ_PAGES_MAX));
        let reads = parts.each_ref().map(|part| plan(part, plan_for(READ_PAGES_MAX)));
        let names =
            parts.each_ref().map(|part| part.files.iter().map(|file| &*file.path).collect::<Vec<_>>());
        assert_eq!(names, [vec!["short", "both"], vec!["both", "long"]]);
        assert!(reads[0].iter().all(|read| read.range.len() <= GAP_PAGES));
        assert_eq!(parts.iter().map(Profile::pages).sum::<u64>(), profile.pages());
    }
}
