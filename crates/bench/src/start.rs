//! One start of a program, measured: time, processor, memory, faults, what was read from the disk and for whom.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use prepage_profiles::ProgramKey;
use prepage_profiles::{Layer, Stores};
use prepage_residency::cold::Chill;
use prepage_sys::clock::now_ns;
use prepage_sys::disk_stat::DiskStat;
use prepage_sys::reap::{Reap, Reaped, reap};

use crate::block_reads::{BlockReads, Seen};
use crate::early_fault::{EarlyFault, MappedAhead, advise_random};
use crate::error::{BenchError, failed};
use crate::head_start::{HeadStart, Made, Tuning};

/// Pause between making the cache cold and the start: the kernel has freed memory to sort and to hand back to the host.
const SETTLING: Duration = Duration::from_millis(200);
/// How long what a start leaves running is waited for.
const AFTERMATH: Duration = Duration::from_secs(10);

/// How the program is started.
#[derive(Clone, Copy, Debug)]
pub enum Way {
    /// As it is.
    Plain,
    /// By `prepage run`.
    Run,
    /// After or with a prefetch; with `early_fault` it maps its pages before its first instruction.
    Ahead {
        /// The prefetch.
        tuning: Tuning,
        /// Whether pages are mapped ahead.
        early_fault: bool,
    },
}

impl Way {
    /// The name in tables and JSON.
    pub fn name(&self) -> String {
        match self {
            Self::Plain => "plain".into(),
            Self::Run => "prepage run".into(),
            Self::Ahead { tuning, early_fault } => {
                let with = if *early_fault { ", early fault" } else { "" };
                format!("{}{with}", tuning.mode.name())
            }
        }
    }
}

/// The phases the study wanted timed, in nanoseconds. Of `prepage run` they are not known.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Phases {
    /// Finding and reading the profile, for which the program waits.
    pub profile_read_ns: u64,
    /// Starting the reads, for which the program waits: in synchronous modes until all is in memory.
    pub reads_started_ns: u64,
    /// From their start until all is in memory, or the program ended before.
    pub reads_done_ns: u64,
    /// Mapping pages and filling .bss, for which the program waits.
    pub mapping_ns: u64,
}

/// Figures of one start.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Measured {
    /// From before reading the profile to the end of the program.
    pub wall_ns: u64,
    /// Of the program and of what prefetches for it, user and kernel.
    pub cpu_ns: u64,
    /// The largest resident set of the program's processes.
    pub resident_bytes_max: u64,
    /// Page faults of the program, and of these from disk; those within system calls are counted.
    pub faults: u64,
    /// Of these, those that read from a device.
    pub disk_faults: u64,
    /// What the disk of /usr was asked to read, by whomever, in requests (diskstats); `None` where /usr has no disk of its own (overlay).
    pub disk_reads: Option<u64>,
    /// The same in bytes.
    pub disk_read_bytes: Option<u64>,
    /// The phases.
    pub phases: Phases,
    /// Pages that the prefetch asked for.
    pub prefetched_pages: u64,
    /// What was mapped ahead.
    pub mapped: MappedAhead,
    /// Every read of a block device for this start and its phase, where they can be seen (root).
    #[serde(skip)]
    pub io: Option<PhasedReads>,
}

/// Reads of one start, by who asked for them.
#[derive(Clone, Debug, Default)]
pub struct PhasedReads {
    /// When the start began, nanoseconds of CLOCK_MONOTONIC.
    pub began_ns: u64,
    /// Process that measures: it reads the profile.
    pub bench_pid: u32,
    /// Processes that prefetch.
    pub prefetch_pids: Vec<u32>,
    /// What was read.
    pub seen: Seen,
}

prepage_core::named! {
    /// For whom a read was made.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Phase {
        /// The profile, and finding the program.
        Profile = "profile",
        /// Prefetching.
        Prefetch = "prefetch",
        /// The program itself.
        Program = "program",
    }
}

impl PhasedReads {
    /// For whom the read by process `pid` was made.
    pub fn phase_of(&self, pid: u32) -> Phase {
        if self.prefetch_pids.contains(&pid) {
            Phase::Prefetch
        } else if pid == self.bench_pid {
            Phase::Profile
        } else {
            Phase::Program
        }
    }

    /// Sizes in bytes of the reads of `phase`; of all for `None`.
    pub fn sizes(&self, phase: Option<Phase>) -> Vec<u64> {
        let of_phase = |pid| phase.is_none_or(|phase| self.phase_of(pid) == phase);
        self.seen.reads.iter().filter(|read| of_phase(read.pid)).map(|read| read.bytes).collect()
    }
}

/// A program to be started in many ways.
#[derive(Debug)]
pub struct Bench {
    /// The command.
    pub command: Vec<OsString>,
    /// The `prepage` binary, for [`Way::Run`].
    pub starter: PathBuf,
    /// Where its profile is.
    pub stores: Stores,
    /// How the cache is made cold.
    pub chill: Chill,
    /// For ways with early fault.
    pub early_fault: Option<EarlyFault>,
    /// The library by which the kernel reads nothing ahead of the program's files; not together with early fault.
    pub advise_random: Option<PathBuf>,
    /// Where reads of block devices can be seen.
    pub block_reads: Option<BlockReads>,
}

impl Bench {
    /// Starts the program from a cold cache, its streams at /dev/null, and waits for its end and for what it leaves.
    ///
    /// To be called in a process with one thread and no other children, which adopts orphans
    /// ([`prepage_sys::beside::adopt_orphans`]).
    pub fn start(&mut self, way: &Way) -> Result<Measured, BenchError> {
        self.make_cold()?;
        self.block_reads.as_mut().map(BlockReads::take);
        let disk_before = disk();
        let began_ns = now_ns();
        let began = Instant::now();
        let (head_start, mut phases) = self.begin(way, false)?;
        let argv = self.argv(way);
        let name = argv[0].to_string_lossy();
        let unstarted = || failed(format!("cannot start {name}"));
        let mut command = Command::new(&argv[0]);
        command.args(&argv[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.envs(self.variables(way));
        let program = command.spawn().map_err(unstarted())?.id();
        let (ended, others) = wait_for(program).map_err(unstarted())?;
        let mut measured = Measured { wall_ns: began.elapsed().as_nanos() as u64, ..Measured::default() };
        let made = head_start.and_then(HeadStart::end);
        let others = others.collect().map_err(unstarted())?;
        let made_cpu = Duration::from_nanos(made.map_or(0, |made| made.cpu_ns));
        let cpu = ended.cpu + others.cpu + made_cpu;
        let disk = disk().zip(disk_before);
        if ended.status != 0 {
            let status = ExitStatus::from_raw(ended.status);
            return Err(BenchError::Void(format!("{name} ended with {status}")));
        }
        measured.cpu_ns = cpu.as_nanos() as u64;
        measured.resident_bytes_max = ended.resident_bytes_max;
        measured.faults = ended.minor_faults + ended.major_faults;
        measured.disk_faults = ended.major_faults;
        measured.disk_reads = disk.map(|(after, before)| after.reads - before.reads);
        measured.disk_read_bytes = disk.map(|(after, before)| after.read_bytes - before.read_bytes);
        if let Some(early) = self.early_fault.as_ref().filter(|_| way.maps_ahead()) {
            measured.mapped = early.take_report()?;
            phases.mapping_ns = measured.mapped.took_ns;
        }
        if let Some(Made { took_ns, pages, .. }) = made {
            phases.reads_done_ns = took_ns;
            measured.prefetched_pages = pages;
        }
        measured.phases = phases;
        measured.io = self.block_reads.as_mut().map(|watch| PhasedReads {
            began_ns,
            bench_pid: std::process::id(),
            // What `prepage run` leaves beside the program is adopted when it ends.
            prefetch_pids: match way {
                Way::Run => others.pids,
                _ => made.iter().map(|made| made.pid).collect(),
            },
            seen: watch.take(),
        });
        Ok(measured)
    }

    /// Makes the cache cold and waits until the machine is at rest.
    pub fn make_cold(&self) -> Result<(), BenchError> {
        let profile = match self.chill {
            Chill::System => None,
            Chill::OwnFiles => {
                ProgramKey::of(&self.command).ok().and_then(|key| Some(self.stores.find(&key).ok()??.profile))
            }
        };
        self.chill.apply(&profile.unwrap_or_default()).map_err(failed("cannot make the cache cold"))?;
        std::thread::sleep(SETTLING);
        Ok(())
    }

    /// The first two phases; the prefetch's system calls are counted where `counts_calls`.
    pub fn begin(&self, way: &Way, counts_calls: bool) -> Result<(Option<HeadStart>, Phases), BenchError> {
        let Way::Ahead { tuning, .. } = way else { return Ok((None, Phases::default())) };
        let began = Instant::now();
        let name = self.command[0].to_string_lossy();
        let key = ProgramKey::of(&self.command).map_err(failed(format!("cannot start {name}")))?;
        let no_profile = || BenchError::Void(format!("there is no profile of {name}"));
        let found = self.stores.find(&key)?.ok_or_else(no_profile)?;
        let profile_read_ns = began.elapsed().as_nanos() as u64;
        let began = Instant::now();
        let head_start = HeadStart::begin(&found.profile, *tuning, counts_calls)
            .map_err(failed("the prefetch cannot be started"))?;
        let reads_started_ns = began.elapsed().as_nanos() as u64;
        Ok((Some(head_start), Phases { profile_read_ns, reads_started_ns, ..Phases::default() }))
    }

    /// What is executed.
    pub fn argv(&self, way: &Way) -> Vec<OsString> {
        let run = ["run", "--no-learn", "--no-hold-out", "--"].map(OsString::from);
        let before = match way {
            Way::Run => [vec![self.starter.clone().into_os_string()], run.to_vec()].concat(),
            _ => Vec::new(),
        };
        [before, self.command.clone()].concat()
    }

    /// What is added to its environment.
    pub fn variables(&self, way: &Way) -> Vec<(&'static str, OsString)> {
        let mut variables = match &self.early_fault {
            Some(early) if way.maps_ahead() => early.variables(),
            _ => self.advise_random.as_deref().map(advise_random).unwrap_or_default(),
        };
        if !matches!(way, Way::Run) {
            // Neither the service nor a link of `prepage enable` is to prefetch what it starts.
            variables.push(("PREPAGE", "off".into()));
        } else if let Ok(directory) = self.stores.directory(Layer::User) {
            variables.push(("PREPAGE_STORE", directory.into()));
        }
        variables
    }
}

impl Way {
    /// Whether the program maps its pages ahead.
    pub fn maps_ahead(&self) -> bool {
        matches!(self, Self::Ahead { early_fault: true, .. })
    }
}

/// Children other than the program, adopted ones for the most part.
#[derive(Default)]
struct Others {
    cpu: Duration,
    pids: Vec<u32>,
}

impl Others {
    fn add(&mut self, other: &Reaped) {
        self.cpu += other.cpu;
        self.pids.push(other.pid);
    }

    /// Waits for the rest of them; a program that leaves something running for good is waited for a while.
    fn collect(mut self) -> io::Result<Self> {
        let deadline = Instant::now() + AFTERMATH;
        while Instant::now() < deadline {
            match reap(false)? {
                Reap::Ended(other) => self.add(&other),
                Reap::NotYet => std::thread::sleep(Duration::from_millis(1)),
                Reap::NoChildren => break,
            }
        }
        Ok(self)
    }
}

fn wait_for(program: u32) -> io::Result<(Reaped, Others)> {
    let mut others = Others::default();
    loop {
        match reap(true)? {
            Reap::Ended(ended) if ended.pid == program => return Ok((ended, others)),
            Reap::Ended(other) => others.add(&other),
            Reap::NotYet | Reap::NoChildren => return Err(io::ErrorKind::NotFound.into()),
        }
    }
}

/// What the disk with /usr has done so far; `None` where the file system has no disk of its own.
fn disk() -> Option<DiskStat> {
    rustix::fs::stat("/usr").ok().and_then(|stat| DiskStat::of(stat.st_dev))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_else_prefetches_for_a_start_that_is_compared_with_run() {
        let bench = Bench {
            command: vec!["true".into()],
            starter: "prepage".into(),
            stores: Stores::of_user().unwrap(),
            chill: Chill::OwnFiles,
            early_fault: None,
            advise_random: None,
            block_reads: None,
        };
        let off = ("PREPAGE", OsString::from("off"));
        assert!(bench.variables(&Way::Plain).contains(&off));
        assert!(!bench.variables(&Way::Run).contains(&off), "it would be switched off itself");
    }
}
