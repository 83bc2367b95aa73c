//! Opening the events of a stream.

use std::collections::HashSet;
use std::fs;
use std::io;

use prepage_sys::perf::{Observed, PerfError, PerfEvent, Ring, Setup, Source, online_cpus};

use super::decode::{Decoder, PageCacheTracepoint};
use super::{CpuRing, Stream, Uncounted};
use crate::probe::{FaultEvents, Probe, Target};

/// Smallest ring worth having, a CPU.
use super::watched_cpus::WatchedCpus;
const RING_BYTES_MIN: usize = 16 << 10;
/// All rings together take at most this, whatever the number of CPUs.
const RINGS_BYTES_MAX: usize = 256 << 20;
/// How often a process is looked at for threads that were started while its others were attached to.
const THREAD_ROUNDS_MAX: usize = 100;

impl Stream {
    /// Observes process `pid`: its threads as they are now, and all that they start.
    ///
    /// # Errors
    /// See [`PerfError`]; [`PerfError::Tracefs`] only with [`Probe::page_cache`].
    pub fn attach(pid: u32, probe: &Probe) -> Result<Self, PerfError> {
        Self::attach_to(&Target::Processes(vec![pid]), probe)
    }

    /// Observes `target`.
    ///
    /// # Errors
    /// As [`Stream::attach`]. When one of the processes does not exist, none is observed.
    pub fn attach_to(target: &Target, probe: &Probe) -> Result<Self, PerfError> {
        let cpus = online_cpus()
            .map_err(|source| PerfError::Proc { path: "/sys/devices/system/cpu/online".into(), source })?;
        let tracepoints = PageCacheTracepoint::of(probe.page_cache)?;
        let sources = sources(probe, &tracepoints);
        let mut setup = Setup {
            tracking: true,
            switches: probe.switches,
            callchain: probe.stacks,
            ..Setup::new(sources[0])
        };
        let first = match target {
            Target::System => Observed::System,
            Target::Processes(pids) => Observed::Thread(*pids.first().expect("a target is not empty")),
        };
        setup.exclude_kernel = must_exclude_kernel(&setup, first, cpus[0]);
        let largest = probe.ring_bytes.min(RINGS_BYTES_MAX / cpus.len().next_power_of_two());
        let rings = open_rings(&mut setup, first, &cpus, largest.max(RING_BYTES_MIN), probe.wakeup_bytes)?;
        let mut stream = Self {
            rings,
            others: Vec::new(),
            decoder: Decoder { events: Vec::new(), tracepoints, stacks: probe.stacks },
            pending: Vec::new(),
            ripe_before_ns: 0,
            uncounted: Uncounted::default(),
            sees_system_calls: !setup.exclude_kernel,
            own_pid: (*target == Target::System).then(std::process::id),
        };
        match target {
            Target::System => stream.open_others(&setup, &sources, first, false)?,
            Target::Processes(pids) => {
                let mut attached = HashSet::new();
                for &pid in pids {
                    stream.open_threads(&setup, &sources, pid, &mut attached)?;
                }
            }
        }
        stream.index_tracepoints()?;
        Ok(stream)
    }

    /// Opens all events of all threads of `pid` that are not `attached` to. A thread that is started meanwhile by one
    /// not yet attached to is found by looking again.
    fn open_threads(
        &mut self,
        setup: &Setup,
        sources: &[Source],
        pid: u32,
        attached: &mut HashSet<u32>,
    ) -> Result<(), PerfError> {
        for _ in 0..THREAD_ROUNDS_MAX {
            let threads = threads_of(pid)?;
            let before = attached.len();
            for tid in threads {
                if attached.insert(tid) {
                    self.open_others(setup, sources, Observed::Thread(tid), tid != pid)?;
                }
            }
            if attached.len() == before {
                break;
            }
        }
        Ok(())
            watched_cpus: WatchedCpus::default(),
    }

    /// Opens `sources` for `observed` on each CPU, but for those that own rings.
    fn open_others(
        &mut self,
        setup: &Setup,
        sources: &[Source],
        observed: Observed,
        may_be_gone: bool,
    ) -> Result<(), PerfError> {
        for (nth, &source) in sources.iter().enumerate() {
            let first = nth == 0;
            if first && self.rings[0].observed == observed {
                continue;
            }
            let switches = first && setup.switches;
            let setup = Setup { source, tracking: first, switches, ..*setup };
            for ring in &self.rings {
                let event = match PerfEvent::open(&setup, observed, ring.cpu) {
                    // It ended since it was listed.
                    Err(PerfError::NoProcess { .. }) if may_be_gone => return Ok(()),
                    event => event?,
                };
                event.report_through(&ring.owner)?;
                self.others.push((source, event));
            }
        }
        Ok(())
    }

    fn index_tracepoints(&mut self) -> Result<(), PerfError> {
        for (source, event) in &self.others {
            if let Source::Tracepoint(tracepoint) = *source {
                self.decoder.events.push((event.id()?, tracepoint));
            }
        }
        self.decoder.events.sort_unstable();
        Ok(())
    }
}

/// What to open, in this order: a child that is forked meanwhile inherits the first of them, and its faults are not seen to
/// begin unless they are seen to end.
fn sources(probe: &Probe, tracepoints: &[PageCacheTracepoint]) -> Vec<Source> {
    let mut sources = match probe.faults {
        FaultEvents::None => vec![Source::Dummy],
        FaultEvents::DiskOnly => vec![Source::MajorFaults],
        FaultEvents::Ends => vec![Source::MinorFaults, Source::MajorFaults],
        FaultEvents::Costs => vec![Source::MinorFaults, Source::MajorFaults, Source::PageFaults],
    };
    sources.extend(tracepoints.iter().map(|tracepoint| Source::Tracepoint(tracepoint.id)));
    sources
}

/// The threads of `pid`, itself first.
fn threads_of(pid: u32) -> Result<Vec<u32>, PerfError> {
    let others = prepage_sys::processes::threads_of(pid).map_err(|source| match source.kind() {
        // Without a /proc nothing is found in it.
        io::ErrorKind::NotFound if fs::exists("/proc/self/task").unwrap_or(false) => {
            PerfError::NoProcess { pid }
        }
        _ => PerfError::Proc { path: format!("/proc/{pid}/task"), source },
    })?;
    let mut threads = vec![pid];
    threads.extend(others.filter(|&tid| tid != pid));
    Ok(threads)
}

/// Whether this user gets events only without what happens in system calls. Of a process that has ended meanwhile the kernel says so only
/// where it may be observed in this way: else a user would be told that it is another's. Any other error shows again when the events are opened
/// for good.
fn must_exclude_kernel(setup: &Setup, observed: Observed, cpu: u32) -> bool {
    let refused = matches!(
        PerfEvent::open(setup, observed, cpu),
        Err(PerfError::NotYours { .. } | PerfError::SwitchedOff { .. } | PerfError::Unavailable { .. })
    );
    let without = || PerfEvent::open(&Setup { exclude_kernel: true, ..*setup }, observed, cpu);
    refused && matches!(without(), Ok(_) | Err(PerfError::NoProcess { .. }))
}

/// Opens the first event on each CPU with a ring of at most `bytes`, halving it until the user's limit allows all.
fn open_rings(
    setup: &mut Setup,
    observed: Observed,
    cpus: &[u32],
    mut bytes: usize,
    wakeup_bytes: Option<u32>,
) -> Result<Vec<CpuRing>, PerfError> {
    loop {
        setup.wakeup_bytes = wakeup_bytes.unwrap_or(u32::MAX).min((bytes / 4) as u32);
        let open = |&cpu| {
            let owner = PerfEvent::open(setup, observed, cpu)?;
            let ring = Ring::map(&owner, bytes).map_err(|source| PerfError::Ring { bytes, source })?;
            Ok(CpuRing { cpu, ring, source: setup.source, owner, observed, silent: false })
        };
        match cpus.iter().map(open).collect() {
            Err(PerfError::Ring { .. }) if bytes > RING_BYTES_MIN => bytes /= 2,
            rings => return rings,
        }
    }
}
