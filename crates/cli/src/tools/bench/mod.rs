//! `prepage bench`: experiments with the page cache and with starts.

mod bench_start;
mod clusters;
mod drive_cache;
mod file;
mod linux;
mod maps;
mod modes;
mod modes_report;
mod patterns;
mod pool;
mod rates;
mod report;
mod sweep;
mod workload;

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::{self, ExitCode};

use anyhow::{Result, bail};
use prepage_bench::{Pattern, access};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::output::print_json;

/// Options of benchmarks that compare several ways in turns.
#[derive(Debug, clap::Args)]
struct Setting {
    /// Runs of each, in turns
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Directory for files, and for swap where there is any, on the disk to be measured
    #[arg(short, long, value_name = "DIR", default_value = "/var/tmp")]
    directory: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Commands of `prepage bench`.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Repeat a study of file access: every fault of reading a file byte by byte, in four orders
    File(file::Args),
    /// Repeat a study of prefetching at exec: cold starts of a program in each of its modes, interleaved
    Modes(modes::Args),
    /// Compare cold starts under several numbers of readers, sizes of holes read over, and read-aheads of the kernel
    Sweep(sweep::Args),
    /// Learn a program the slow, exact way: read-ahead 0, caches dropped, every system call traced. For benchmarks; disturbs
    /// the whole machine
    Yardstick {
        /// Say nothing but errors
        #[arg(short, long)]
        quiet: bool,
        /// The program and its arguments
        #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
        command: Vec<OsString>,
    },
    /// Compare clustering policies by time: the same touches of a cold file, through the user-space VM and by plain reads
    Clusters(clusters::Args),
    /// Compare the faults that `simulate` predicts for Linux's policies with those of this kernel (root)
    Linux(linux::Args),
    /// Measure whether the drive is faster for pages it has read before, and whether it reads ahead (direct reads)
    DriveCache(drive_cache::Args),
    /// Measure the memory that tracks who maps which page, per map and per page
    Maps(maps::Args),
    /// Touch a file twice as large as memory, in several orders: through mmap in a memory control group, and through the user-space
    /// VM with a pool of the same size
    Pool(pool::Args),
    /// Touch the file once in one way: a worker of `bench pool`
    #[command(hide = true)]
    PoolWorker(pool::WorkerArgs),
    /// Time work like that of compilers, by 1 to 30 workers, under three ways to manage memory: a fixed division, FreeBSD's dont-need
    /// rule, and this VM's own; prints the published figures of that rule too
    Workload(workload::Args),
    /// Do the work once: a worker of `bench workload`
    #[command(hide = true)]
    WorkloadWorker(workload::WorkerArgs),
    /// Write and read a large file, records of it and many small files under a limit of memory: by read and write, by mmap, and by
    /// the user-space VM's writable maps
    Patterns(patterns::Args),
    /// Do it once in one way: a worker of `bench patterns`
    #[command(hide = true)]
    PatternsWorker(patterns::WorkerArgs),
    /// Measure rates of the whole machine: starts of programs, new pages, a build
    Rates(rates::Args),
    /// Start a program again and again: a worker of `bench rates`
    #[command(hide = true)]
    Starts(rates::StartsArgs),
    /// Read every byte of a file once through mmap: what `bench file` records
    Access {
        /// random, sequential or stride-SIZE
        #[arg(long, default_value = "sequential")]
        pattern: Pattern,
        /// Seed of the random order
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Fail unless the bytes add up to this
        #[arg(long, value_name = "SUM")]
        expect_sum: Option<u64>,
        /// The file
        file: PathBuf,
    },
}

/// This program as the worker `name` of a benchmark, a process of its own for each run.
fn worker(name: &str) -> Result<process::Command> {
    let mut command = process::Command::new(std::env::current_exe()?);
    command.args(["bench", name]);
    Ok(command)
}

/// What the worker `command` hands over ([`hand_over`]); `what` it does is said where it fails.
fn result_of<T: DeserializeOwned>(command: &mut process::Command, what: &str) -> Result<T> {
    let worker = command.output()?;
    if !worker.status.success() {
        let said = String::from_utf8_lossy(&worker.stderr);
        let said: Vec<&str> = said.lines().map(str::trim).collect();
        bail!("{what} ended with {}: {}", worker.status, said.join("; "));
    }
    Ok(serde_json::from_slice(&worker.stdout)?)
}

/// Hands the result of a worker's one run to the process that started it.
fn hand_over(result: &impl Serialize) -> Result<ExitCode> {
    print_json(result)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs the command.
pub fn run(command: &Command) -> Result<ExitCode> {
    match command {
        Command::File(args) => file::run(args),
        Command::Maps(args) => maps::run(args),
        Command::Modes(args) => modes::run(args),
        Command::Sweep(args) => sweep::run(args),
        Command::Yardstick { quiet, command } => bench_start::yardstick(command, *quiet),
        Command::Clusters(args) => clusters::run(args),
        Command::Linux(args) => linux::run(args),
        Command::DriveCache(args) => drive_cache::run(args),
        Command::Pool(args) => pool::run(args),
        Command::PoolWorker(args) => pool::work(args),
        Command::Workload(args) => workload::run(args),
        Command::WorkloadWorker(args) => workload::work(args),
        Command::Patterns(args) => patterns::run(args),
        Command::PatternsWorker(args) => patterns::work(args),
        Command::Rates(args) => rates::run(args),
        Command::Starts(args) => rates::count(args),
        Command::Access { pattern, seed, expect_sum, file } => {
            let sum = access(file, *pattern, *seed)?;
            match expect_sum {
                None => writeln!(crate::output::text(), "{sum}")?,
                Some(expected) if *expected == sum => {}
                Some(expected) => bail!("the bytes of {} add up to {sum}, not {expected}", file.display()),
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}
