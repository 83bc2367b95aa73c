//! The prefetch before or beside a program, in the study's first two phases: the profile is read, its reads are started.
//!
//! The third phase, mapping the pages, only the program itself can do: [`crate::early_fault`].

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use prepage_core::PAGE_SIZE;
use prepage_core::profile::Profile;
use prepage_core::profile::plan::PlanOptions;
use prepage_prefetch::engine::{Engine, device_of};
use prepage_prefetch::memory::Budget;
use prepage_sys::beside::run_beside_with;
use prepage_sys::perf::{Observed, PerfEvent, Setup, Source, Tracefs, online_cpus};
use prepage_sys::processor_time::of_this_process;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use serde::{Deserialize, Serialize};

use crate::mode::Mode;

/// A program waits no longer than this for its prefetch: a device that hangs must not keep it from failing by itself.
const SYNC_WAIT: Duration = Duration::from_secs(120);
/// A prefetch beside a program is done by then, and its process ends although the program goes on.
const WATCH: Duration = Duration::from_secs(600);

/// What and how is prefetched.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// What is read, and whether the program waits for it.
    pub mode: Mode,
    /// Readers at once and pages of a hole that is read over; `None` for what suits the device, as `prepage run` has it.
    pub readers_and_holes: Option<(u32, u64)>,
}

/// A prefetch that goes on beside this process until it is done or [`Self::end`] is called.
#[derive(Debug)]
pub struct HeadStart {
    answer: OwnedFd,
    /// Closed when the program has ended.
    program: OwnedFd,
}

/// What a prefetch did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    /// The process that made it.
    pub pid: u32,
    /// From its start until all was in memory, or it was cancelled.
    pub took_ns: u64,
    /// Pages asked for.
    pub pages: u64,
    /// Processor time of this process. wait(2) does not report it to the benchmark, which does not wait for this process.
    pub cpu_ns: u64,
    /// System calls that it took; `None` where they were not counted or cannot be (not root, or a kernel without the
    /// tracepoint).
    pub system_calls: Option<u64>,
}

impl HeadStart {
    /// Starts to prefetch `profile`. Returns at once, or when all is in memory if the mode is synchronous.
    ///
    /// System calls are counted where `counts_calls`: that costs tens of milliseconds, in starts that are not timed.
    ///
    /// To be called while the process has one thread.
    ///
    /// # Errors
    /// Where no process can be started.
    pub fn begin(profile: &Profile, tuning: Tuning, counts_calls: bool) -> io::Result<Self> {
        let (answer, to_bench) = pipe_with(PipeFlags::CLOEXEC)?;
        let (program_ended, program) = pipe_with(PipeFlags::CLOEXEC)?;
        run_beside_with(vec![to_bench, program_ended], |kept| {
            let Ok([to_bench, program_ended]) = <[OwnedFd; 2]>::try_from(kept) else { return };
            let made = prefetch(profile, tuning, counts_calls, &program_ended);
            // Nobody reads it where the benchmark was ended meanwhile.
            let _ = serde_json::to_writer(File::from(to_bench), &made);
        })?;
        if tuning.mode.is_synchronous() {
            // Readable when all is in memory, or when the process ended for whatever reason.
            wait_for(&answer, SYNC_WAIT);
        }
        Ok(Self { answer, program })
    }

    /// To be called when the program has ended: what is still to be read is left out. Returns what was done; `None` where
    /// the process was killed.
    pub fn end(self) -> Option<Made> {
        drop(self.program);
        serde_json::from_reader(File::from(self.answer)).ok()
    }
}

fn prefetch(profile: &Profile, tuning: Tuning, counts_calls: bool, program_ended: &OwnedFd) -> Made {
    let calls = counts_calls.then(CallCounter::of_this_process).flatten();
    let began = Instant::now();
    let reads = tuning.mode.reads(profile);
    let mut engine = match tuning.readers_and_holes {
        None => Engine::new(reads.into_owned(), &device_of(profile)),
        Some((readers, gap_pages_max)) => {
            Engine::with(reads.into_owned(), PlanOptions { gap_pages_max, ..PlanOptions::EXACT }, readers)
        }
    };
    engine.keep_within(Budget::of_process());
    if tuning.mode.is_synchronous() {
        engine.wait_for_reads();
    }
    let run = || {
        let requested_bytes = engine.run().requested_bytes;
        (requested_bytes, began.elapsed())
    };
    let (requested_bytes, took) = if tuning.mode.is_synchronous() {
        run()
    } else {
        std::thread::scope(|scope| {
            // Where no thread can be had, the prefetch goes on to its own end.
            let _watcher = std::thread::Builder::new().spawn_scoped(scope, || {
                wait_for(program_ended, WATCH);
                engine.cancel();
            });
            run()
        })
    };
    Made {
        pid: std::process::id(),
        took_ns: took.as_nanos() as u64,
        pages: requested_bytes / PAGE_SIZE,
        cpu_ns: of_this_process().as_nanos() as u64,
        system_calls: calls.and_then(|calls| calls.count()),
    }
}

/// Waits until something can be read from `pipe` or its other end is closed.
fn wait_for(pipe: &OwnedFd, at_most: Duration) {
    let timeout = Timespec { tv_sec: at_most.as_secs() as i64, tv_nsec: 0 };
    let _ = poll(&mut [PollFd::new(pipe, PollFlags::IN)], Some(&timeout));
}

/// Counts the system calls of this process.
struct CallCounter(Vec<PerfEvent>);

impl CallCounter {
    /// To be called before threads are started: those are counted too.
    fn of_this_process() -> Option<Self> {
        let tracepoint = Tracefs::open().ok()?.tracepoint("raw_syscalls", "sys_enter").ok()?;
        let setup = Setup::new(Source::Tracepoint(tracepoint.id));
        let of_cpu = |cpu| PerfEvent::open(&setup, Observed::Thread(std::process::id()), cpu).ok();
        Some(Self(online_cpus().ok()?.into_iter().map(of_cpu).collect::<Option<_>>()?))
    }

    fn count(&self) -> Option<u64> {
        self.0.iter().map(|event| event.counted().ok().map(|counted| counted.times)).sum()
    }
}

#[cfg(test)]
mod tests {
    use prepage_profiles::identity::profiled;
    use prepage_testing::{Need, has};

    use super::*;

    /// Whatever is read, threads are made and files opened; each read is asked for, waited for, and its bytes are asked after.
    #[test]
    fn each_read_takes_three_system_calls_and_nothing_else_is_counted_as_one() {
        if !has(Need::Root) {
            return;
        }
        const READS: u64 = 1000;
        let file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        // Holes on the disk: nothing is waited for.
        file.as_file().set_len(2 * READS * PAGE_SIZE).unwrap();
        let made = |reads: u64| {
            let files = vec![profiled(file.path(), (0..reads).map(|at| 2 * at)).unwrap()];
            let profile = Profile { files, ..Profile::default() };
            let tuning = Tuning { mode: Mode::Sync, readers_and_holes: Some((1, 0)) };
            let made = HeadStart::begin(&profile, tuning, true).unwrap().end().unwrap();
            assert_eq!(made.pages, reads);
            made.system_calls.unwrap()
        };
        let (none, all) = (made(1), made(1 + READS));
        // A thread more takes thirty calls, and threads wait for one another more or less often.
        assert!((all - none).abs_diff(3 * READS) < READS / 10, "{none}, {all}");
    }
}
