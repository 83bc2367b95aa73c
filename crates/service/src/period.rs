//! A boot or a session from its beginning until the machine is quiet: what the last ones needed is brought in, in their order, and what
//! this one needs is learned.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use prepage_core::profile::Profile;
use prepage_core::profile::observation::{Coverage, Observation};
use prepage_core::profile::plan::{PlanOptions, plan};
use prepage_core::{PAGE_SIZE, PageIndex};
use prepage_prefetch::choose::Choice;
use prepage_prefetch::clock::unix_s;
use prepage_prefetch::config::Config;
use prepage_prefetch::engine::{Engine, Work};
use prepage_prefetch::launch::LaunchOptions;
use prepage_prefetch::memory::Budget;
use prepage_prefetch::persist::{Shown, persist};
use prepage_profiles::{StoreError, Stores};
use prepage_sys::rights::{Assumed, Rights};
use serde::{Deserialize, Serialize};

use crate::library::home;
use crate::notify;
use crate::opened::{Opened, OwnUses};
use crate::options::ServiceError;
use crate::quiet::{End, Quiet};
use crate::reading::Sampler;
use crate::subject::Subject;

/// How often is looked at what was opened: a file is looked up by its number while the kernel still has it in memory.
const LOOK_EVERY: Duration = Duration::from_millis(50);
const SECOND: Duration = Duration::from_secs(1);
/// Where the last boot is told of, below the machine's profiles.
const REPORT: &str = "boot.json";
const REPORT_BYTES_MAX: u64 = 4096;

/// How it is to run.
#[derive(Clone, Debug)]
pub struct PeriodOptions {
    /// Directories of profiles for all users, the machine's first, in place of the usual ones.
    pub layers: Option<Vec<PathBuf>>,
    /// Whether to learn.
    pub learn: bool,
    /// It is over after so many quiet seconds.
    pub quiet_s: u32,
    /// It is over after this long in any case.
    pub at_most: Duration,
}

impl Default for PeriodOptions {
    fn default() -> Self {
        Self { layers: None, learn: true, quiet_s: 10, at_most: Duration::from_secs(300) }
    }
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PeriodReport {
    /// When it ended, seconds since 1970.
    pub unix_s: u64,
    /// Pages that were asked for.
    pub fetched_pages: u64,
    /// Of the pages that are known, those that were used, where that was seen.
    pub used_pages: Option<u64>,
    /// How long fetching took.
    pub fetched_s: f64,
    /// How long it took until the machine was quiet.
    pub quiet_s: f64,
    /// Whether it became quiet in time.
    pub is_quiet: bool,
    /// Pages that were seen in use.
    pub seen_pages: u64,
    /// In so many files.
    pub seen_files: usize,
}

impl PeriodReport {
    /// That of the last boot; `None` where there was none that is known.
    pub fn of_last_boot(stores: &Stores) -> Option<Self> {
        let path = stores.directory(Subject::Boot.layer()).ok()?.join(REPORT);
        let metadata = fs::symlink_metadata(&path).ok()?;
        let is_believed = metadata.is_file() && metadata.uid() == 0 && metadata.len() <= REPORT_BYTES_MAX;
        serde_json::from_slice(&fs::read(&path).ok().filter(|_| is_believed)?).ok()
    }
}

/// Runs from now on until the machine is quiet.
///
/// # Errors
/// [`ServiceError`]; where nothing can be learned, what is known is fetched before.
pub fn run(subject: Subject, options: &PeriodOptions) -> Result<PeriodReport, ServiceError> {
    let config = config(subject);
    if !config.enabled {
        notify::say("READY=1");
        return Ok(PeriodReport::default());
    }
    let began = Instant::now();
    let stores = subject.stores(options.layers.clone())?;
    let rights = subject.rights();
    let mut opened = None;
    if options.learn && config.learn {
        opened = Some(Opened::watch(of(subject)).map_err(ServiceError::Watch)?);
    }
    // A profile that cannot be followed is as good as none.
    let replay = profile(subject, &stores).ok().flatten().map(|profile| Replay::begin(&profile, &rights));
    notify::say("READY=1");
    let mut report = PeriodReport::default();
    let (mut quiet, mut sampler) = (Quiet::new(options.quiet_s, options.at_most), Sampler::default());
    let mut next = began + SECOND;
    let (end, is_short) = loop {
        std::thread::sleep(LOOK_EVERY);
        if let Some(opened) = &mut opened {
            opened.look();
        }
        let is_fetching = replay.as_ref().is_some_and(|replay| replay.engine.is_at_work());
        if is_fetching {
            report.fetched_s = began.elapsed().as_secs_f64();
        }
        if Instant::now() < next {
            continue;
        }
        next += SECOND;
        let reading = sampler.look();
        if let Some(end) = quiet.see(reading, is_fetching, began.elapsed()) {
            break (end, reading.is_some_and(|reading| reading.is_short()));
        }
    };
    report.quiet_s = began.elapsed().as_secs_f64();
    (report.is_quiet, report.unix_s) = (end == End::Quiet, unix_s());
    if let Some(replay) = &replay {
        replay.engine.cancel();
        report.fetched_pages = replay.engine.outcome().requested_bytes / PAGE_SIZE;
    }
    if let Some(opened) = opened {
        let own = replay.as_ref().map(Replay::own_uses).unwrap_or_default();
        let mut observation = opened.observation(&rights, &own).map_err(ServiceError::Watch)?;
        // What was not waited for may have been used later, and what has left memory is not seen.
        if end == End::TimeIsUp || is_short {
            make_partial(&mut observation);
        }
        report.seen_files = observation.files.len();
        report.seen_pages = pages(&observation);
        report.used_pages = replay.as_ref().map(|replay| replay.used_pages(&observation));
        let shown = Shown { observation: Some(observation), ..Shown::default() };
        let _assumed = assumed(subject)?;
        persist(&stores, &subject.key(), subject.layer(), &shown)?;
    }
    if subject == Subject::Boot {
        write(&report, stores.directory(subject.layer())?);
    }
    Ok(report)
}

/// What the administrator wants, and the user, whose file is read with the user's rights.
fn config(subject: Subject) -> Config {
    let config = Config::of_machine();
    let Subject::Session(uid) = subject else { return config };
    match (subject.rights().assume(), home(uid)) {
        (Ok(_assumed), Some((home, _))) => config.and(&home.join(".config/prepage/config")),
        // Nothing is known of the user, and nothing can be done.
        _ => Config { enabled: false, ..config },
    }
}

/// Whose opens count; everybody's where that is `None`.
fn of(subject: Subject) -> Option<u32> {
    match subject {
        Subject::Boot => None,
        Subject::Session(uid) => Some(uid),
    }
}

/// The rights with which its profile is read and written: root's, or a user's and no others.
fn assumed(subject: Subject) -> std::io::Result<Option<Assumed>> {
    match subject {
        Subject::Boot => Ok(None),
        Subject::Session(_) => subject.rights().assume().map(Some),
    }
}

fn profile(subject: Subject, stores: &Stores) -> Result<Option<Profile>, StoreError> {
    let path = stores.path_of(&subject.key(), subject.layer())?;
    let _assumed = assumed(subject).map_err(|_| StoreError::Nowhere)?;
    Ok(stores.at_path(subject.layer(), &path)?.filter(|profile| subject.key().is_of(profile)))
}

/// Nobody waits for the report: one that cannot be written is not there.
fn write(report: &PeriodReport, directory: &Path) {
    let Ok(bytes) = serde_json::to_vec(report) else { return };
    let Ok(directory) = fs::File::open(directory) else { return };
    let _ = prepage_profiles::replacement::write_at(
        std::os::fd::AsFd::as_fd(&directory),
        Path::new(REPORT),
        0o644,
        &bytes,
    );
}

fn make_partial(observation: &mut Observation) {
    (observation.coverage, observation.names_coverage) = (Coverage::Partial, Coverage::Partial);
    observation.files.iter_mut().for_each(|file| file.coverage = Coverage::Partial);
}

fn pages(observation: &Observation) -> u64 {
    observation.files.iter().flat_map(|file| &file.pages).map(|used| used.range.len()).sum()
}

/// What is known, on its way into memory.
struct Replay {
    engine: Engine,
    choice: Choice,
}

impl Replay {
    fn begin(profile: &Profile, rights: &Rights) -> Self {
        // A boot is not tried without: it is worth more than what is learned from that.
        let choice = Choice::new(profile, &LaunchOptions::default(), false);
        let mut engine = Engine::new(choice.planned.clone(), &choice.figures);
        engine.keep_within(Budget::of_process());
        engine.start_on(&mut |work: Work| {
            let rights = rights.clone();
            let work = move || {
                // Without these rights nothing is opened.
                if let Ok(_assumed) = rights.assume() {
                    work();
                }
            };
            std::thread::Builder::new().name("read".into()).stack_size(256 << 10).spawn(work).is_ok()
        });
        Self { engine, choice }
    }

    /// The last page of each read: reading it is how the engine waits for the others.
    fn own_uses(&self) -> OwnUses {
        let planned = &self.choice.planned;
        let mut own = OwnUses::new();
        for read in plan(planned, PlanOptions::for_device(&self.choice.figures)) {
            let PageIndex(end) = read.range.end();
            own.entry(planned.files[read.file].path.clone()).or_default().insert(end - 1);
        }
        own
    }

    fn used_pages(&self, observation: &Observation) -> u64 {
        let unused = self.choice.pages_unused_in(observation);
        self.choice.planned.pages().saturating_sub(unused.into())
    }
}
