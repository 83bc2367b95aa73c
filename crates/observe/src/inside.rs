//! What agents tell from inside the programs: names looked up, and bytes read.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use prepage_core::PageRange;
use prepage_core::profile::observation::Coverage;
use prepage_sys::agent::{
    Arming, Carrying, Event, Last, Log, Lookup, Reading, Receiver, Record, find_library, variables,
};
use prepage_sys::clock::now_ns;

use crate::arming::Entry;
use crate::elsewhere::Elsewhere;
use crate::observer::ObserveOptions;
use crate::sightings::Sightings;
use crate::target::would_load;

/// Room for some 300,000 records; memory is used as they come, the program's.
const LOG_BYTES: u64 = 32 << 20;

/// The names of a process that is gone wait at most this long until it is known whether the process was elsewhere. News of execs comes every
/// four milliseconds, and later on a busy machine.
const UNDECIDED_NS: u64 = 100_000_000;

/// An agent sends word as soon as its program is loaded. It may be one that ld.so could not load, or that came too late for the log.
const LOADING_NS: u64 = 100_000_000;

/// How a program that has not been executed yet is entered; `with_agent`: there is an [`Inside`] for it.
pub fn entry(options: &ObserveOptions, with_agent: bool) -> Entry {
    let is_static = |program: &PathBuf| would_load(program, program) == Carrying::NotDynamic;
    match options.program.as_ref().filter(|_| !with_agent) {
        Some(program) if is_static(program) => Entry::AtExec,
        _ => Entry::AfterExec,
    }
}

/// The log of the agents in a process tree.
#[derive(Debug)]
pub struct Inside {
    log: Log,
    library: PathBuf,
    variables: Vec<(&'static str, OsString)>,
    /// Programs that no agent went into.
    without: u32,
    /// Processes that executed a program whose agent has not sent word, and when.
    silent: HashMap<u32, u64>,
    /// Programs whose pages' first touches are not seen.
    approximate: u32,
    /// Names left out, for they mean other files here.
    elsewhere: u32,
    /// What was read of the log and not looked at yet; names among it wait until it is known whether they mean other files here.
    records: Vec<Record>,
}

impl Inside {
    /// A log, and where agents send their userfaultfds, where programs `may_be_armed`. An agent is expected in the program of process `pid`.
    /// `Err` says why none goes into it.
    pub fn open(pid: u32, options: &ObserveOptions, may_be_armed: bool) -> Result<(Self, Receiver), String> {
        let program = options.program.as_deref().ok_or("the program is not known beforehand")?;
        let said = |error: io::Error| error.to_string();
        let library = match &options.agent {
            Some(agent) => agent.canonicalize().map_err(said)?,
            None => find_library().ok_or("libprepage-agent.so is not installed")?,
        };
        // The program's ld.so would wait for its pages one after the other.
        if let Ok(file) = File::open(&library) {
            let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::WillNeed);
        }
        // ld.so would tell of the agent.
        if std::env::var_os("LD_DEBUG").is_some_and(|what| !what.is_empty()) {
            return Err("LD_DEBUG is set".into());
        }
        match would_load(program, &library) {
            Carrying::Carried => {}
            Carrying::NotDynamic => return Err("a static program".into()),
            Carrying::Rights => return Err("the program has rights of its own".into()),
            Carrying::OtherLoader => {
                return Err("its loader is not that of glibc 2.35 or newer for this machine".into());
            }
            Carrying::LibraryOutOfReach => return Err("libprepage-agent.so cannot be loaded".into()),
            Carrying::NotFound => return Err("there is no such program, or it cannot be read".into()),
            other => return Err(format!("{other:?}")),
        }
        let log = Log::create(LOG_BYTES).map_err(said)?;
        let receiver = Receiver::bind(&log).map_err(said)?;
        let variable = log.variable(may_be_armed);
        let variables = variables(&library, &variable, options.own_audit.as_deref());
        let (without, approximate, elsewhere, records) = (0, 0, 0, Vec::new());
        // However soon it ends.
        let silent = HashMap::from([(pid, 0)]);
        let inside = Self { log, library, variables, without, silent, approximate, elsewhere, records };
        Ok((inside, receiver))
    }

    pub fn library(&self) -> &Path {
        &self.library
    }

    /// What to set in the program's environment.
    pub fn variables(&self) -> &[(&'static str, OsString)] {
        &self.variables
    }

    /// Reads what came since the last time; `last`: no more will come. Returns what processes tell of the pages that they have touched.
    pub fn read(&mut self, last: bool) -> Vec<Record> {
        let records = if last { self.log.read_last() } else { self.log.read() };
        let (touched, others) = records.unwrap_or_default().into_iter().partition(|record| {
            matches!(record.event, Event::Mapped { .. } | Event::Touched { .. } | Event::Told | Event::GoesOn)
        });
        self.records.extend::<Vec<Record>>(others);
        touched
    }

    /// Notes what was read since the last look, but for the names of those `elsewhere`; `last`: no more will come. Returns when pages
    /// not read before were read last, if any were.
    pub fn look(&mut self, last: bool, elsewhere: &mut Elsewhere, sightings: &mut Sightings) -> Option<u64> {
        let now = now_ns();
        let mut last_read_ns = None;
        for record in std::mem::take(&mut self.records) {
            let is_name = !matches!(record.event, Event::Read { .. });
            let is_elsewhere = if is_name { elsewhere.contains(record.pid) } else { Some(false) };
            let is_decided = last || now.saturating_sub(record.time_ns) > UNDECIDED_NS;
            match is_elsewhere {
                Some(true) => self.elsewhere += 1,
                None if !is_decided => self.records.push(record),
                _ => last_read_ns = self.see(&record, sightings).max(last_read_ns),
            }
        }
        last_read_ns
    }

    /// Returns the time where pages were read that had not been before.
    fn see(&mut self, record: &Record, sightings: &mut Sightings) -> Option<u64> {
        let time_ns = if record.time_ns == 0 { now_ns() } else { record.time_ns };
        sightings.process(record.pid);
        // After an exec that failed it is the agent of before that goes on.
        self.silent.remove(&record.pid);
        match &record.event {
            Event::Name { path, lookup: Lookup::Library } => sightings.library(time_ns, path),
            Event::Name { path, lookup } => {
                sightings.lookup(time_ns, path, *lookup == Lookup::List);
                if matches!(lookup, Lookup::Open | Lookup::Stream) {
                    sightings.opened(path);
                }
            }
            Event::Read { device, inode, offset, len } => {
                let pages = PageRange::covering(*offset, *len);
                return sightings.read_inode(time_ns, (*device, *inode), pages).then_some(time_ns);
            }
            Event::Executed { path, carrying } => {
                sightings.lookup(time_ns, path, false);
                match carrying {
                    Carrying::Carried => drop(self.silent.insert(record.pid, time_ns)),
                    Carrying::NotFound => {}
                    _ => self.without += 1,
                }
            }
            Event::Started { path, arming } => {
                self.approximate += u32::from(*arming != Arming::Armed);
                sightings.started(time_ns, Path::new(path));
            }
            Event::Mapped { .. } | Event::Touched { .. } | Event::Told | Event::GoesOn => {}
        }
        None
    }

    /// Has agents use no more than `bytes` of the log.
    pub fn keep_within(&self, bytes: u64) {
        // Where that fails, they use what there is.
        let _ = self.log.limit(bytes);
    }

    /// Has agents do as at the end of the observation where the calling thread ends before what this returns is dropped. `None` where that
    /// cannot be: they tell a log that nobody reads until it is full.
    pub fn read_here(&self) -> Option<Reading> {
        self.log.read_here().ok()
    }

    /// What processes are to do before their page table goes.
    pub fn ask_for(&self, last: Last) {
        // Where that fails, they go on with what they were asked for before.
        let _ = self.log.ask_for(last);
    }

    /// Tells the agents that nobody listens any more. Returns how much of the names was seen, and what was not.
    pub fn end(&self) -> (Coverage, Vec<String>) {
        let _ = self.log.end();
        let lost = self.log.lost().unwrap_or_default();
        let mut unseen = Vec::new();
        let now = now_ns();
        let is_silent = |since_ns: &&u64| now.saturating_sub(**since_ns) > LOADING_NS;
        let without = self.without as usize + self.silent.values().filter(is_silent).count();
        if without > 0 {
            unseen.push(format!("programs whose names and reads are not seen: {without}"));
        }
        if self.elsewhere > 0 {
            unseen.push(format!("names looked up in another mount namespace: {}", self.elsewhere));
        }
        let missing = lost.dropped + lost.torn;
        if missing > 0 {
            unseen.push(format!("names and reads for which the log had no room: {missing}"));
        }
        if lost.missed > 0 {
            unseen.push(format!("sandboxes, names and reads that no agent could tell: {}", lost.missed));
        }
        let coverage = if unseen.is_empty() { Coverage::Exact } else { Coverage::Partial };
        if self.approximate > 0 {
            unseen.push(format!(
                "programs whose pages are seen with their neighbours only: {}",
                self.approximate
            ));
        }
        (coverage, unseen)
    }
}
