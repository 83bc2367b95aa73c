//! What the agent costs.
//!
//! `agent ROUNDS names|all LIBRARY CMD…` runs CMD without and with the agent, in turns, which sees names and reads, or first
//! touches as well. It prints milliseconds without and with, and their ratio: medians of the wall time, then the least
//! processor time, which other work on the machine disturbs least.
//!
//! `bench/agent` calls it.

use std::error::Error;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use prepage_sys::agent::{Log, Receiver, may_arm, variables};
use prepage_sys::reap::{Reap, reap};

const LOG_BYTES: u64 = 64 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args_os().skip(1);
    let rounds = args.next().and_then(|text| text.to_str()?.parse().ok()).ok_or("how many rounds?")?;
    let arm = args.next().is_some_and(|what| what == "all");
    cost(rounds, arm, &args.collect::<Vec<_>>())
}

/// What one run took.
struct Took {
    wall: Duration,
    cpu: Duration,
}

/// Runs `command` (a library and what to run) once. `with_agent` says whether it registers mappings.
#[allow(clippy::zombie_processes, reason = "it is reaped")]
fn run(command: &[OsString], with_agent: Option<bool>) -> Result<Took, Box<dyn Error>> {
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
    let began = Instant::now();
    command.spawn()?;
    let Reap::Ended(child) = reap(true)? else { return Err("somebody else waited for it".into()) };
    let took = Took { wall: began.elapsed(), cpu: child.cpu };
    while receiver.receive()?.is_some() {}
    Ok(took)
}

fn cost(rounds: usize, arm: bool, command: &[OsString]) -> Result<(), Box<dyn Error>> {
    let mut times = [(Vec::new(), f64::INFINITY), (Vec::new(), f64::INFINITY)];
    run(command, None)?;
    for round in 0..2 * rounds {
        // Now the one first, now the other.
        let with_agent = (round + round / 2) % 2 == 1;
        let took = run(command, with_agent.then_some(arm))?;
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
