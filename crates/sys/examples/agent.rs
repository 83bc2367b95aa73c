//! Runs a command with the agent in it and prints what the agent saw, or what that cost.
//!
//! `agent log LIBRARY CMD…` prints a line a record, fields separated by tabs, and what was lost to stderr.
//! `agent cost ROUNDS names|all LIBRARY CMD…` runs CMD without and with the agent, in turns, which sees names and reads, or first
//! touches as well. It prints milliseconds without and with, and their ratio: medians of the wall time, then the least
//! processor time, which other work on the machine disturbs least.
//!
//! `bench/agent` calls it.

use std::error::Error;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use prepage_sys::agent::{Event, Log, Receiver, TouchedRun, may_arm, variables};

const LOG_BYTES: u64 = 64 << 20;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let mode = args.next().unwrap_or_default();
    let done = match mode.to_str() {
        Some("log") => log(&args.collect::<Vec<_>>()),
        Some("cost") => {
            let rounds = args.next().and_then(|text| text.to_str()?.parse().ok()).unwrap_or(0);
            let arm = args.next().is_some_and(|what| what == "all");
            cost(rounds, arm, &args.collect::<Vec<_>>())
        }
        _ => Err("say log or cost".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("agent: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What one run took.
struct Took {
    wall: Duration,
    cpu: Duration,
}

/// Runs `command` (a library and what to run) once, and returns what that took and the log. `with_agent` says whether it
/// registers mappings.
fn run(command: &[OsString], with_agent: Option<bool>) -> Result<(Took, Log), Box<dyn Error>> {
    let [library, program, args @ ..] = command else { return Err("a library and a command".into()) };
    let log = Log::create(LOG_BYTES)?;
    let mut receiver = Receiver::bind(&log)?;
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // Both have an environment that was put together here.
    command.env("PREPAGE_BENCH", "");
    if let Some(arm) = with_agent {
        let own = std::env::var_os("LD_AUDIT");
        command.envs(variables(Path::new(library), &log.variable(arm && may_arm().is_ok()), own.as_deref()));
    }
    let (began, cpu_before) = (Instant::now(), cpu_of_children());
    let mut child = command.spawn()?;
    child.wait()?;
    let took = Took { wall: began.elapsed(), cpu: cpu_of_children() - cpu_before };
    while receiver.receive()?.is_some() {}
    Ok((took, log))
}

fn log(command: &[OsString]) -> Result<(), Box<dyn Error>> {
    let (_, mut log) = run(command, Some(true))?;
    for record in log.read_last()? {
        print!("{}\t{}\t", record.time_ns, record.pid);
        match record.event {
            Event::Started { path, arming } => println!("started\t{arming:?}\t{}", escaped(&path)),
            Event::Name { path, lookup } => println!("name\t{lookup:?}\t{}", escaped(&path)),
            Event::Executed { path, carrying } => println!("executed\t{carrying:?}\t{}", escaped(&path)),
            Event::Read { device, inode, offset, len } => {
                println!("read\t{device}\t{inode}\t{offset}\t{len}")
            }
            Event::Mapped { path } => println!("mapped\t{}", escaped(&path)),
            Event::Touched { device, inode, runs } => {
                let run = |run: &TouchedRun| {
                    let (first, end) = (run.pages.start().0, run.pages.end().0);
                    format!("\t{first}-{end}{}", if run.is_armed { "" } else { "?" })
                };
                println!("touched\t{device}\t{inode}{}", runs.iter().map(run).collect::<String>());
            }
            Event::Told => println!("told"),
        }
    }
    eprintln!("{:?}", log.lost()?);
    Ok(())
}

fn escaped(path: &Path) -> impl std::fmt::Display {
    path.as_os_str().as_bytes().escape_ascii()
}

fn cost(rounds: usize, arm: bool, command: &[OsString]) -> Result<(), Box<dyn Error>> {
    let mut times = [(Vec::new(), f64::INFINITY), (Vec::new(), f64::INFINITY)];
    run(command, None)?;
    for round in 0..2 * rounds {
        // Now the one first, now the other.
        let with_agent = (round + round / 2) % 2 == 1;
        let took = run(command, with_agent.then_some(arm))?.0;
        let (walls, cpu) = &mut times[usize::from(with_agent)];
        walls.push(took.wall.as_secs_f64() * 1e3);
        *cpu = cpu.min(took.cpu.as_secs_f64() * 1e3);
    }
    let [(plain, plain_cpu), (agent, agent_cpu)] = times.map(|(mut walls, cpu)| {
        walls.sort_by(f64::total_cmp);
        (walls.get(walls.len() / 2).copied().unwrap_or(f64::NAN), cpu)
    });
    let (wall_ratio, cpu_ratio) = (agent / plain, agent_cpu / plain_cpu);
    println!("{plain:.2}\t{agent:.2}\t{wall_ratio:.3}\t{plain_cpu:.2}\t{agent_cpu:.2}\t{cpu_ratio:.3}");
    Ok(())
}

/// Processor time of all children that ended and were waited for, and of theirs.
fn cpu_of_children() -> Duration {
    // SAFETY: all-zero bytes are a valid rusage, and the call only writes it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage);
        usage
    };
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}
