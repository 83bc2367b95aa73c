//! A boot or a session from its beginning until the machine is quiet: what the last ones needed is brought in, in their order, and what
//! this one needs is learned.

use std::fs;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use prepage_core::profile::observation::{Coverage, Observation};
use prepage_core::profile::{Profile, ProfiledFile};
use prepage_observe::sightings::Sightings;
use prepage_prefetch::config::Config;
use prepage_prefetch::memory::{Budget, available_kib};
use prepage_prefetch::persist::{Shown, persist};
use prepage_profiles::trust::read_in;
use prepage_profiles::{StoreError, Stores};
use prepage_sys::alarm::Alarm;
use prepage_sys::clock::unix_s;
use prepage_sys::fault_around::FaultAroundOff;
use prepage_sys::new_file::write_at;
use prepage_sys::open_files::allow_many;
use prepage_sys::processor_time::of_this_process;
use prepage_sys::rights::Assumed;
use prepage_sys::signals::Signals;
use prepage_sys::thread_reads::are_counted;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::blocks::{self, BlockDevice, Blocks, Ends, needed, willneed_pages};
use crate::due::{CHANGED_WITH_UNITS, is_due};
use crate::early::{self, Early};
use crate::homes::{home, of_user};
use crate::missed::MissedReads;
use crate::notify;
use crate::opened::{Opened, Whose};
use crate::options::ServiceError;
use crate::quiet::{End, Manager, Quiet, is_short_of_memory};
use crate::reading::Sampler;
use crate::replay::{Known, Replay, plan_for};
use crate::subject::Subject;
use crate::turn::Turn;

/// How often is looked at what was opened: a file is looked up by its number while the kernel still has it in memory. Which pages were used is
/// looked at after a second, and whenever twice that time has passed: what the beginning needs of a library goes before the rest of it.
const LOOK_EVERY: Duration = Duration::from_millis(50);
const SECOND: Duration = Duration::from_secs(1);
/// Fault-around is on again so long after the time is up, whatever holds this up.
const FAULT_AROUND_LONGER: Duration = Duration::from_secs(60);
/// To look at all files once more takes some seconds, on a slow disk more.
const LOOK_LONGER: Duration = Duration::from_secs(30);
/// The report on the last boot, below the machine's profiles.
pub(crate) const REPORT: &str = "boot.json";
const REPORT_BYTES_MAX: u64 = 4096;
/// Who writes it.
const ROOT: u32 = 0;

/// How it is to run.
#[derive(Clone, Debug)]
pub struct PeriodOptions {
    /// Directories of profiles for all users, the machine's first, in place of the usual ones.
    pub layers: Option<Vec<PathBuf>>,
    /// Whether to learn.
    pub learn: bool,
    /// It is over after so many quiet seconds, once systemd has started all.
    pub quiet_s: u32,
    /// It is over after this long in any case.
    pub at_most: Duration,
    /// Where the root file system is mounted, in an initramfs.
    pub root: Option<PathBuf>,
}

impl Default for PeriodOptions {
    fn default() -> Self {
        Self { layers: None, learn: true, quiet_s: 10, at_most: Duration::from_secs(300), root: None }
    }
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PeriodReport {
    /// Of which run of the kernel (random(4)); empty where nobody knows.
    #[serde(default)]
    pub boot_id: String,
    /// When it ended, seconds since 1970.
    pub unix_s: u64,
    /// When it began, seconds since the kernel did.
    #[serde(default)]
    pub began_s: f64,
    /// Pages of files that were asked for.
    pub fetched_pages: u64,
    /// Pages of the root's device that were asked for.
    #[serde(default)]
    pub fetched_blocks: u64,
    /// Pages of it that hold what was used.
    #[serde(default)]
    pub seen_blocks: u64,
    /// Of the pages that are known, those that were used, where that was seen.
    pub used_pages: Option<u64>,
    /// How long fetching took.
    pub fetched_s: f64,
    /// How long it took until the machine was quiet.
    pub quiet_s: f64,
    /// Whether it became quiet in time.
    pub is_quiet: bool,
    /// Pages that were seen in use, where that could be seen.
    pub seen_pages: Option<u64>,
    /// In so many files.
    pub seen_files: usize,
    /// Whether it was learned, or was to be: of boots that are known only some are. An earlier version has learned each.
    #[serde(default = "always")]
    pub is_observed: bool,
    /// Processor time that it took, of prepage alone.
    #[serde(default)]
    pub processor_s: f64,
    /// Whether only pages that were touched count, not their neighbours as well ([`prepage_sys::fault_around`]).
    #[serde(default)]
    pub is_exact: bool,
}

impl PeriodReport {
    /// That of this machine's last boot; `None` where nothing has followed it, an earlier version has, or something still does: then an earlier boot's report
    /// may lie there.
    pub fn of_last_boot(stores: &Stores) -> Option<Self> {
        let directory = stores.directory(Subject::Boot.layer()).ok()?;
        let report = read_in(directory, Path::new(REPORT), REPORT_BYTES_MAX, ROOT).ok()??;
        // Earlier versions did not say of which boot it was.
        let is_of_it = |report: &Self| !report.boot_id.is_empty() && report.boot_id == boot_id();
        serde_json::from_slice(&report).ok().filter(is_of_it)
    }
}

/// Runs from now on until the machine is quiet.
///
/// # Errors
/// [`ServiceError`]; where nothing can be learned, at the end, after what is known was brought in.
pub fn run(subject: Subject, options: &PeriodOptions) -> Result<PeriodReport, ServiceError> {
    // A file of a boot stays open until its last page has come in.
    allow_many();
    // A session that is over is kept as far as it came: most of those of `ssh HOST COMMAND` end before the machine was quiet for long. Before any thread begins.
    let is_session = subject != Subject::Boot;
    let ending = is_session.then(|| Signals::take_over(&[Signal::TERM.as_raw()])).transpose()?;
    let fault_around = || FaultAroundOff::set(options.at_most + FAULT_AROUND_LONGER).ok();
    // Of /proc, which moves.
    are_counted();
    let enter = |root| {
        let known = subject
            .stores(options.layers.clone())
            .map_or_else(|_| Vec::new(), |stores| looked_at(subject, &stores));
        Early::enter(root, known, || options.learn.then(fault_around).flatten())
    };
    let mut early = options.root.as_deref().map(enter).transpose()?;
    // What sets fault-around begins a process, and may not be called beside a thread: in the boot's unit it comes first.
    let sets_fault_around = options.learn && subject == Subject::Boot && early.is_none();
    let longest = 2 * options.at_most + LOOK_LONGER;
    let alarm = sets_fault_around.then(|| Alarm::after(longest));
    if !sets_fault_around {
        end_after(longest)?;
    }
    let config = config(subject);
    let is_off = !config.enabled || early.as_ref().is_some_and(|early| !early.is_wanted);
    let nothing_to_do = || {
        notify::say("READY=1");
        Ok(PeriodReport::default())
    };
    if is_off {
        return nothing_to_do();
    }
    let stores = subject.stores(options.layers.clone())?.keeping(config.store_bytes_max);
    let turn = match subject {
        Subject::Boot => {
            let is_there = early.as_ref().is_none_or(|early| early.var_is_there);
            let directory = stores.directory(subject.layer()).ok().filter(|_| is_there);
            Turn::at_boot(directory, early.is_some())
        }
        Subject::Session(_) => Some(Turn::alone()),
    };
    let Some(_turn) = turn else { return nothing_to_do() };
    if let Some(early) = &early {
        early.take_the_units_turn();
    }
    // A profile that cannot be followed is as good as none.
    let known_before = profile(subject, &stores).ok().flatten();
    let may_learn = options.learn && config.learn;
    let device = match &mut early {
        Some(early) => early.device.take(),
        None if subject == Subject::Boot => BlockDevice::of(Path::new("/")).ok().flatten(),
        None => None,
    };
    let known_blocks =
        device.as_ref().and_then(|device| device.known(stores.directory(subject.layer()).ok()?));
    // A profile may have come along to another file system, without what is known of this one.
    let lacks_blocks = device.is_some() && known_blocks.is_none();
    let is_learning = may_learn && (lacks_blocks || is_due(subject, &stores, known_before.as_ref()));
    let fault_around = match &mut early {
        Some(early) => early.fault_around.take().filter(|_| is_learning),
        // Where it cannot be switched off, more pages are learned than were touched.
        None if is_learning && sets_fault_around => fault_around(),
        None => None,
    };
    if let Some(alarm) = alarm {
        end_after(longest)?;
        drop(alarm);
    }
    let began = Instant::now();
    let mut report =
        PeriodReport { began_s: uptime_s(), is_observed: is_learning, ..PeriodReport::default() };
    let rights = subject.rights();
    let willneed_pages =
        early.as_ref().map_or_else(|| willneed_pages(Path::new("/")), |early| early.willneed_pages);
    let known = Known {
        plan: plan_for(willneed_pages),
        profile: known_before,
        blocks: device.as_ref().zip(known_blocks),
    };
    let has_blocks = known.blocks.is_some();
    let missed_before = known.blocks.as_ref().map_or_else(Vec::new, |(_, blocks)| blocks.missed().to_vec());
    let (budget, opens) = early.map(|early| (early.budget, early.opens)).unzip();
    let mut replay = Replay::begin(known, &rights, &budget.unwrap_or_else(Budget::of_process))?;
    // What is known is brought in also where nothing can be learned.
    let mut opened = (is_learning && opens.is_none()).then(|| Opened::watch(of(subject)));
    notify::say("READY=1");
    if let Some(opens) = opens {
        // Who does not learn holds up nobody's opens.
        let opens = is_learning.then_some(opens);
        early::wait_for_proc()?;
        opened = opens.map(|opens| Opened::over(opens?, of(subject)));
    }
    // Where that cannot be seen, no more is brought in than what names lead to.
    let watched = device.as_ref().filter(|_| is_learning);
    let mut missed = watched.and_then(|device| MissedReads::watch(device.number()).ok());
    let (mut sightings, mut ends) = (Sightings::default(), Ends::default());
    let (mut quiet, mut sampler) = (Quiet::new(options.quiet_s, options.at_most), Sampler::default());
    let mut manager = Manager::default();
    let mut next = began + SECOND;
    let mut pages_next = SECOND;
    let mut was_short = false;
    let is_asked_to_end = || ending.as_ref().is_some_and(|ending| matches!(ending.next(), Ok(Some(_))));
    let (end, goes_on) = loop {
        std::thread::sleep(LOOK_EVERY);
        if let Some(Ok(opened)) = &mut opened {
            opened.look(&mut sightings);
            let noted = sightings.pages();
            missed.iter_mut().for_each(|missed| missed.look(noted, &mut |pid| opened.is_counted(pid)));
            if began.elapsed() >= pages_next {
                pages_next *= 2;
                // Who cannot look now cannot at the end, and it is said then.
                let _ = opened.look_at_pages(&mut sightings, &rights);
                device.iter().for_each(|device| ends.look(device, sightings.pages()));
            }
        }
        let is_fetching = replay.is_at_work();
        if is_fetching {
            report.fetched_s = began.elapsed().as_secs_f64();
        }
        if is_asked_to_end() || is_session && !is_learning && !is_fetching {
            break (End::CutShort, false);
        }
        if Instant::now() < next {
            continue;
        }
        // Who was asked may have taken seconds: these are no seconds in which the machine was seen to be quiet.
        let is_late = next.elapsed() > SECOND;
        next = if is_late { Instant::now() } else { next } + SECOND;
        let reading = sampler.look();
        // Without /proc/meminfo nothing says so.
        let available_bytes = available_kib().map_or(u64::MAX, |kib| kib * 1024);
        was_short |= reading.is_some_and(|reading| is_short_of_memory(reading, available_bytes));
        let mut leave_out = |asker| opened.iter_mut().flatten().for_each(|opened| opened.leave_out(asker));
        let mut may_go_on = || match subject {
            Subject::Boot => manager.may_go_on(&mut leave_out),
            // What the machine still starts says nothing of a session.
            Subject::Session(_) => None,
        };
        if let Some(end) = quiet.see(reading, is_fetching, began.elapsed(), &mut may_go_on) {
            // What is still started needs what is still to come.
            break (end, end == End::CutShort);
        }
    };
    report.is_exact = fault_around.is_some();
    drop(fault_around);
    report.quiet_s = began.elapsed().as_secs_f64();
    (report.is_quiet, report.unix_s, report.boot_id) = (end == End::Quiet, unix_s(), boot_id());
    if !goes_on {
        replay.cancel();
    }
    let seen = |opened: std::io::Result<Opened>| {
        let opened = opened?;
        let opens = opened.opens().to_vec();
        Ok((opens, opened.observation(sightings, &rights)?))
    };
    let seen = opened.map(seen).transpose();
    let (seen, refused) = seen.map_or_else(|error| (None, Some(error)), |seen| (seen, None));
    let mut kept = Ok(());
    if let Some((opens, mut observation)) = seen {
        // Whatever comes later: what leads to all that was opened so far is known.
        let is_whole = observation.coverage != Coverage::Partial;
        // What was not waited for may have been used later, and what has left memory is not seen.
        if end == End::CutShort || was_short {
            observation = observation.cut_short();
        }
        report.seen_files = observation.files.len();
        report.seen_pages = Some(pages(&observation));
        report.used_pages = replay.used_pages(&observation);
        let shown = Shown { observation: Some(observation), ..Shown::default() };
        kept = keep(subject, &stores, &shown);
        let known = device.as_ref().and_then(|device| Some((device, profile(subject, &stores).ok()??)));
        let used = known.map(|(device, profile)| {
            ends.look(device, 0);
            let opened = opens.iter().map(|open| (open.path.as_path(), open.is_directory));
            let named = device.holding(&device.names(needed(opened, &profile)), ends.pages(), &profile);
            let missed = missed.map(|missed| missed.remember(&missed_before, |page| named.holds(page)));
            named.with_missed(missed.unwrap_or(missed_before))
        });
        // The place for it is there now.
        report.seen_blocks = used.as_ref().map_or(0, Blocks::pages);
        if let Some(used) = used.filter(|_| is_whole || !has_blocks) {
            // Nobody waits for them: what cannot be written is not there.
            let _ = used.write(stores.directory(subject.layer())?);
        }
    }
    let write_report = |report: &PeriodReport| {
        if subject == Subject::Boot {
            write(report, stores.directory(subject.layer())?);
        }
        Ok::<(), ServiceError>(())
    };
    if replay.is_at_work() {
        // The machine may be stopped meanwhile.
        report.processor_s = of_this_process().as_secs_f64();
        write_report(&report)?;
    }
    while replay.is_at_work() && began.elapsed() < 2 * options.at_most && !is_asked_to_end() {
        report.fetched_s = began.elapsed().as_secs_f64();
        std::thread::sleep(LOOK_EVERY);
    }
    replay.cancel();
    (report.fetched_blocks, report.fetched_pages) = replay.fetched_pages();
    if may_learn && !is_learning && is_much(replay.changed(), replay.planned_pages()) {
        kept = have_next_learned(subject, &stores);
    }
    report.processor_s = of_this_process().as_secs_f64();
    write_report(&report)?;
    kept?;
    refused.map_or(Ok(report), |error| Err(ServiceError::Watch(error)))
}

/// Ends this process after `time`, if it has not ended by then: mostly it waits for a file system that does not answer, and nobody else would end it.
fn end_after(time: Duration) -> std::io::Result<()> {
    let end = move || {
        std::thread::sleep(time);
        // Whether somebody reads it or not.
        let _ = writeln!(
            std::io::stderr(),
            "prepaged: given up after {} s: a file system does not answer, or is very slow\n  try: findmnt, for mounts whose servers are gone; what this boot or \
             session used may not have been learned",
            time.as_secs()
        );
        std::process::exit(1);
    };
    std::thread::Builder::new().name("end".into()).spawn(end).map(drop)
}

/// Adds what was `shown` to the profile, whose time [`crate::due`] goes by.
fn keep(subject: Subject, stores: &Stores, shown: &Shown) -> Result<(), ServiceError> {
    let _assumed = assumed(subject)?;
    Ok(persist(stores, &subject.key(), subject.layer(), shown)?)
}

/// Has the next one learned. The files that have changed stay until then: what is used of them now is not known.
fn have_next_learned(subject: Subject, stores: &Stores) -> Result<(), ServiceError> {
    let _assumed = assumed(subject)?;
    let with_one_due = |known: Option<Profile>| {
        let mut known = known?;
        known.history.due = known.history.due.max(1);
        Some(known)
    };
    stores.update(&subject.key(), subject.layer(), with_one_due)?;
    Ok(())
}

/// What is looked at before anything is brought in: what is known of it, and by what is told whether it is learned.
fn looked_at(subject: Subject, stores: &Stores) -> Vec<PathBuf> {
    let Ok(profile) = stores.path_of(&subject.key(), subject.layer()) else { return Vec::new() };
    let [blocks, report] = [blocks::NAME, REPORT].map(|name| profile.with_file_name(name));
    [profile, blocks, report].into_iter().chain(CHANGED_WITH_UNITS.map(PathBuf::from)).collect()
}

/// Whether so much of what is known is no longer what it was that the next one is to be learned: one page in a hundred. Some small file changes with each boot.
fn is_much(changed: &[ProfiledFile], known_pages: u64) -> bool {
    let pages: u64 = changed.iter().map(ProfiledFile::pages).sum();
    pages > 0 && 100 * pages >= known_pages
}

fn always() -> bool {
    true
}

/// The kernel's number of this boot; empty without /proc.
fn boot_id() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim_end().into()
}

/// Seconds since the kernel began.
fn uptime_s() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// What the administrator wants, and the user, whose file is read with the user's rights.
fn config(subject: Subject) -> Config {
    let config = Config::of_machine();
    let Subject::Session(uid) = subject else { return config };
    let why = match (subject.rights().assume(), home(uid)) {
        (Ok(_assumed), Some((home, _))) => return of_user(config, &home),
        (_, None) => "/etc/passwd has no home of that user".into(),
        (Err(error), _) => error.to_string(),
    };
    eprintln!("prepaged: nothing is done for the session of user {uid}: {why}");
    Config { enabled: false, ..config }
}

/// Whose opens count.
fn of(subject: Subject) -> Whose {
    match subject {
        Subject::Boot => Whose::Everybody,
        Subject::Session(uid) => Whose::User(uid),
    }
}

/// The rights with which its profile is read and written: root's, or a user's and no others.
pub(crate) fn assumed(subject: Subject) -> std::io::Result<Option<Assumed>> {
    match subject {
        Subject::Boot => Ok(None),
        Subject::Session(_) => subject.rights().assume().map(Some),
    }
}

/// What is known of it.
pub(crate) fn profile(subject: Subject, stores: &Stores) -> Result<Option<Profile>, StoreError> {
    let path = stores.path_of(&subject.key(), subject.layer())?;
    let _assumed = assumed(subject).map_err(|_| StoreError::Nowhere)?;
    Ok(stores.at_path(subject.layer(), &path)?.filter(|profile| subject.key().is_of(profile)))
}

/// Nobody waits for the report: one that cannot be written is not there.
fn write(report: &PeriodReport, directory: &Path) {
    let Ok(bytes) = serde_json::to_vec(report) else { return };
    let Ok(directory) = fs::File::open(directory) else { return };
    let _ = write_at(directory.as_fd(), Path::new(REPORT), 0o644, &bytes);
}

fn pages(observation: &Observation) -> u64 {
    observation.files.iter().flat_map(|file| &file.pages).map(|used| used.range.len()).sum()
}
