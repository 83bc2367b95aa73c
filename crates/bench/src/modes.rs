//! Starts of one program in many ways, in turns: the study's table, and what it left open.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use prepage_core::FaultClass;
use prepage_core::quantity::counted;
use prepage_sys::spawn::HowEnded;
use serde::Serialize;

use crate::error::{BenchError, failed};
use crate::experiment::record;
use crate::head_start::{HeadStart, Tuning};
use crate::mode::Mode;
use crate::start::{Bench, Measured, Way};

/// All ways of [`compare`]: as it is, by `prepage run`, and each mode with and without pages mapped ahead.
pub fn ways(early_fault: bool) -> Vec<Way> {
    let ahead = |early_fault| {
        move |mode: Mode| Way::Ahead { tuning: Tuning { mode, readers_and_holes: None }, early_fault }
    };
    let mut ways = vec![Way::Plain, Way::Run];
    ways.extend(Mode::ALL.map(ahead(false)));
    if early_fault {
        ways.extend(Mode::ALL.map(ahead(true)));
    }
    ways
}

/// What the starts in one way showed.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The way's name.
    pub name: String,
    /// One entry a start, in the order they were made.
    pub starts: Vec<Measured>,
    /// What was counted in one more start, which is not timed; `None` where faults cannot be recorded.
    pub counted: Option<Counted>,
}

/// Counts of one start.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Counted {
    /// Its page faults by what each had to do.
    pub faults: Classes,
    /// Pages that the prefetch asked for.
    pub prefetched_pages: u64,
    /// System calls of the prefetch; `None` where they cannot be counted (not root) or there was no prefetch.
    pub prefetch_system_calls: Option<u64>,
}

/// Page faults that a program took outside of system calls' own needs, by what each had to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Classes {
    /// Read from the device.
    pub disk: u64,
    /// A page of a file that was in memory, mapped.
    pub cached: u64,
    /// A fresh page of zeros.
    pub zero_fill: u64,
    /// A private copy.
    pub copy_on_write: u64,
}

impl Classes {
    /// Those on pages of files.
    pub fn of_files(self) -> u64 {
        self.disk + self.cached
    }
}

/// Starts the program of `bench` in each of the `ways`, in an order that changes from round to round; the first round is
/// thrown away. `tell` hears before each start what comes.
pub fn compare(
    bench: &mut Bench,
    ways: &[Way],
    rounds: u32,
    mut tell: impl FnMut(&str),
) -> Result<Vec<Row>, BenchError> {
    let row = |way: &Way| Row { name: way.name(), starts: Vec::new(), counted: None };
    let mut rows: Vec<Row> = ways.iter().map(row).collect();
    for round in 0..=rounds as usize {
        for turn in 0..ways.len() {
            let at = (round + turn) % ways.len();
            tell(&format!("round {round} of {rounds}: {}", rows[at].name));
            let measured = bench.start(&ways[at])?;
            if round > 0 {
                rows[at].starts.push(measured);
            }
        }
    }
    Ok(rows)
}

/// Counts the faults, by class, that the program takes when it is started in this way, from a cold cache, and the system calls
/// of its prefetch. Pages mapped ahead by a system call take no such fault, so the difference shows what was avoided.
///
/// # Errors
/// Where faults cannot be recorded, or the program cannot be started.
pub fn count(bench: &Bench, way: &Way) -> Result<Counted, BenchError> {
    bench.make_cold()?;
    let variables = bench.variables(way);
    let mut command = bench.argv(way);
    if !variables.is_empty() {
        let variable = |(name, value): &(&str, OsString)| {
            let mut text = OsString::from(format!("{name}="));
            text.push(value);
            text
        };
        let env = std::iter::once("env".into()).chain(variables.iter().map(variable));
        command = env.chain(command).collect();
    }
    let (head_start, _) = bench.begin(way, true)?;
    let recorded =
        silently(|| record_classes(command)).map_err(failed("standard streams cannot be redirected"))?;
    let made = head_start.and_then(HeadStart::end);
    if let Some(early) = &bench.early_fault {
        // Of this start only the faults count.
        early.take_report()?;
    }
    Ok(Counted {
        faults: recorded?,
        prefetched_pages: made.map_or(0, |made| made.pages),
        prefetch_system_calls: made.and_then(|made| made.system_calls),
    })
}

fn record_classes(command: Vec<OsString>) -> Result<Classes, BenchError> {
    /// What starts the program, and is not part of it.
    const STARTERS: [&str; 2] = ["env", "prepage"];
    let (faults, recorded) = record(command)?;
    if !matches!(recorded.how_ended, Some(HowEnded::Exited(0))) {
        return Err(BenchError::Void("the program failed while its faults were recorded".into()));
    }
    if recorded.facts.lost > 0 {
        let lost = counted(recorded.facts.lost as usize, "record");
        return Err(BenchError::Void(format!("the kernel dropped {lost} of faults")));
    }
    let mut classes = Classes::default();
    for fault in faults {
        if STARTERS.contains(&&*recorded.threads[fault.thread.0 as usize].comm) {
            continue;
        }
        match fault.class {
            FaultClass::Disk => classes.disk += 1,
            FaultClass::Cached | FaultClass::Short => classes.cached += 1,
            FaultClass::ZeroFill => classes.zero_fill += 1,
            FaultClass::CopyOnWrite => classes.copy_on_write += 1,
            FaultClass::Failed | FaultClass::Unseen => {}
        }
    }
    Ok(classes)
}

/// Runs `work`, whose children get /dev/null as standard streams.
///
/// # Errors
/// Where descriptors cannot be had.
pub fn silently<T>(work: impl FnOnce() -> T) -> io::Result<T> {
    let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
    // The children get no copies of the streams.
    let saved = |stream: BorrowedFd<'_>| rustix::io::fcntl_dupfd_cloexec(stream, 0);
    let saved = [
        saved(std::io::stdin().as_fd())?,
        saved(std::io::stdout().as_fd())?,
        saved(std::io::stderr().as_fd())?,
    ];
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    let done = work();
    rustix::stdio::dup2_stdin(&saved[0])?;
    rustix::stdio::dup2_stdout(&saved[1])?;
    rustix::stdio::dup2_stderr(&saved[2])?;
    Ok(done)
}
