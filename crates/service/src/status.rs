//! What the service says of itself: a document for people and programs, and metrics.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use crate::confined::Confined;
use crate::counters::roughly_for;
use crate::fetches::Done;
use crate::gains::GainsStatus;
use crate::idle::IdleStatus;
use crate::last_starts::LastStart;
use crate::period::PeriodReport;
use crate::service::Service;
use crate::watch::State;

/// The version of [`Status`]; it grows when a field changes its meaning or goes.
pub const SCHEMA_VERSION: u32 = 1;

/// What there is to say.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    pub schema_version: u32,
    pub pid: u32,
    /// How long it runs.
    pub uptime_s: f64,
    /// Processor time that it took, all in all and to learn.
    pub processor_s: f64,
    /// Of it, to learn.
    pub learning_processor_s: f64,
    /// Processor time that is left to learn with; less than none where more was taken than there was.
    pub learning_left_s: f64,
    /// Whether starts of known programs are not observed for now, because what is left is for new ones.
    pub learning_waits: bool,
    pub resident_bytes: u64,
    /// Profiles of the machine in memory.
    pub machine_profiles: usize,
    /// Profiles of users in memory.
    pub user_profiles: usize,
    /// Profiles of containers' programs in memory.
    pub container_profiles: usize,
    /// About what the profiles take.
    pub profile_bytes: u64,
    /// About what the names that were looked up last, and their inodes, take in the kernel.
    pub names_bytes: u64,
    /// Threads that look at starts.
    pub launching_threads: usize,
    /// Threads that read.
    pub reading_threads: usize,
    pub hanging_threads: usize,
    /// Counts since it began, by name ([`crate::counters::Counters`]); but for root, up to a minute ago, and of bytes in steps of 64 MiB.
    pub counts: std::collections::BTreeMap<String, u64>,
    /// What fetching gains, in the starts of whoever asks; of all users for root.
    pub gains: GainsStatus,
    /// What is brought in while nothing else happens; nothing where that is switched off.
    pub idle: Option<IdleStatus>,
    /// The last boot, where one was replayed or learned.
    pub boot: Option<PeriodReport>,
    /// Why names that observed starts look up and never open are not seen; nothing where they are.
    pub names_unseen: Option<String>,
    /// What it has given up.
    pub confined: Confined,
    pub file_systems: Vec<FileSystem>,
    /// The last starts of whoever asks; of all users for root.
    pub last_starts: Vec<Start>,
}

/// A file system that is looked at, to be watched.
#[derive(Clone, Debug, Serialize)]
pub struct FileSystem {
    /// Where it is mounted.
    pub point: String,
    /// Its type.
    pub kind: String,
    /// Whether what is executed on it is seen.
    pub is_watched: bool,
    /// Why not.
    pub reason: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Start {
    /// When, seconds since 1970.
    pub unix_s: u64,
    pub uid: u32,
    pub pid: u32,
    pub program: String,
    pub role: String,
    /// What was done for it.
    pub done: &'static str,
    /// How long after the exec, as the service saw it, fetching began; nothing where nothing was fetched.
    pub fetch_after_ms: Option<f64>,
    /// How long it took from then to the last read or lookup; nothing before one was done.
    pub fetch_ms: Option<f64>,
    /// Bytes asked for.
    pub fetched_bytes: Option<u64>,
    /// Of them, bytes that devices have read.
    pub read_bytes: Option<u64>,
}

impl Status {
    /// Of `service`, as user `uid` may know it.
    pub fn of(service: &Service, uid: u32) -> Self {
        let ([machine_profiles, user_profiles, container_profiles], profile_bytes) = service.library.size();
        let (launching_threads, reading_threads, hanging_threads) = service.threads();
        // Root asks for all users.
        let whose = (uid != 0).then_some(uid);
        let file_systems = service.watch.file_systems().into_iter().map(|watched| FileSystem {
            point: watched.point.to_string_lossy().into_owned(),
            kind: watched.kind,
            is_watched: watched.state == State::Watched,
            reason: match watched.state {
                State::Watched => None,
                State::Asked => Some("it has not answered yet".into()),
                State::Refused(why) => Some(why),
            },
        });
        let ms = |time: Duration| time.as_micros() as f64 / 1000.0;
        let start = |last: LastStart| Start {
            unix_s: last.unix_s,
            uid: last.uid,
            pid: last.pid,
            fetch_after_ms: last.account.as_ref().map(|account| ms(account.after())),
            fetch_ms: last.account.as_ref().map(|account| ms(account.took())).filter(|ms| *ms > 0.0),
            fetched_bytes: last.account.as_ref().map(|account| account.amounts.requested_bytes()),
            read_bytes: last.account.as_ref().map(|account| account.amounts.read_bytes()),
            program: last.key.program,
            role: last.key.role,
            done: match last.done {
                Done::Fetched => "fetched",
                Done::Warm => "in memory",
                Done::Recent => "fetched a moment before",
                Done::HeldOut => "held out",
                Done::LeftAlone => "left alone",
                Done::Guessed => "guessed from other roles",
                Done::Unknown => "unknown",
            },
        };
        let observed_s = service.learner.observed_ns() as f64 / 1e9;
        let processor_s = prepage_sys::processor_time::of_this_process().as_secs_f64() + observed_s;
        Self {
            schema_version: SCHEMA_VERSION,
            pid: std::process::id(),
            uptime_s: service.began.elapsed().as_secs_f64(),
            processor_s,
            learning_processor_s: service.learner.spent_ns() as f64 / 1e9,
            learning_left_s: service.learner.left_ns() as f64 / 1e9,
            learning_waits: service.learning_waits(),
            resident_bytes: resident_bytes(),
            machine_profiles,
            user_profiles,
            container_profiles,
            profile_bytes,
            names_bytes: service.names.bytes(),
            launching_threads,
            reading_threads,
            hanging_threads,
            counts: {
                let counts = service.counters.all_for(uid).into_iter();
                counts.map(|(name, _, value)| (name.into(), value)).collect()
            },
            gains: service.gains.status(uid, service.measures(service.library.wishes(whose))),
            idle: service.idle.as_ref().map(|idle| idle.status(uid)),
            boot: PeriodReport::of_last_boot(&service.library.machine_stores()),
            names_unseen: service.learner.names_unseen().map(str::to_owned),
            confined: service.confined.clone(),
            file_systems: file_systems.collect(),
            last_starts: service.last_starts.of(uid).into_iter().map(start).collect(),
        }
    }
}

/// The numbers in Prometheus' text format, as user `uid` may know them: of all users together, and nothing of any one.
pub fn metrics(service: &Service, uid: u32) -> String {
    let mut text = String::new();
    let mut add = |name: &str, help: &str, value: f64| {
        let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
        let _ = write!(
            text,
            "# HELP prepage_{name} {help}\n# TYPE prepage_{name} {kind}\nprepage_{name} {value}\n"
        );
    };
    for (name, help, value) in service.counters.all_for(uid) {
        add(&format!("{name}_total"), &help, value as f64);
    }
    let status = Status::of(service, 0);
    let (gains, idle) = (&status.gains, status.idle.as_ref());
    let used_share = idle.map(|idle| idle.used_share.unwrap_or(f64::NAN));
    let ratio_help =
        "Time of fetched cold starts to that of held-out ones, geometric mean of these programs.";
    let others = [
        ("processor_seconds_total", "Processor time taken.", Some(status.processor_s)),
        ("learning_processor_seconds_total", "Of it, to learn.", Some(status.learning_processor_s)),
        ("learning_left_seconds", "Processor time that is left to learn with.", Some(status.learning_left_s)),
        (
            "learning_waits",
            "Whether starts of known programs are not observed for now.",
            Some(f64::from(u8::from(status.learning_waits))),
        ),
        (
            "names_bytes",
            "About what names and inodes of known programs take in the kernel.",
            Some(status.names_bytes as f64),
        ),
        ("resident_bytes", "Resident memory.", Some(status.resident_bytes as f64)),
        ("profile_bytes", "About what the profiles in memory take.", Some(status.profile_bytes as f64)),
        ("machine_profiles", "Profiles of the machine in memory.", Some(status.machine_profiles as f64)),
        ("user_profiles", "Profiles of users in memory.", Some(status.user_profiles as f64)),
        (
            "container_profiles",
            "Profiles of containers' programs in memory.",
            Some(status.container_profiles as f64),
        ),
        (
            "gain_prefetched_starts",
            "Fetched cold starts that are kept, of the last ones.",
            Some(gains.prefetched_starts as f64),
        ),
        (
            "gain_held_out_starts",
            "Held-out cold starts that are kept, of the last ones.",
            Some(gains.held_out_starts as f64),
        ),
        (
            "gain_compared_programs",
            "Programs with enough of both to compare.",
            Some(gains.compared_programs as f64),
        ),
        ("gain_ratio", ratio_help, gains.ratio),
        (
            "predicted_resident_bytes",
            "Brought in for what is expected now.",
            idle.map(|idle| roughly_for(uid, idle.brought_bytes) as f64),
        ),
        (
            "predicted_bytes_max",
            "What may be brought in at most for what is expected.",
            idle.map(|idle| roughly_for(uid, idle.predicted_bytes_max) as f64),
        ),
        ("predicted_used_share", "Of what was brought in lately, what was used.", used_share),
        (
            "hanging_threads",
            "Threads that wait for a file system that does not answer.",
            Some(status.hanging_threads as f64),
        ),
    ];
    for (name, help, value) in others {
        value.into_iter().for_each(|value| add(name, help, value));
    }
    text
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}
