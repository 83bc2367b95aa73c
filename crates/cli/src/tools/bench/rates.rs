//! `prepage bench rates`: starts of programs, pages of zeros and a build, a second.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use prepage_bench::rates::build::{Built, build, generate};
use prepage_bench::rates::starts::{self, Linked};
use prepage_bench::rates::{PUBLISHED, Rate, zeros};
use prepage_core::PAGE_SIZE;
use prepage_core::quantity::counted;
use prepage_sys::start_ways::StartWay;
use prepage_vm::{Vm, VmOptions};
use serde_json::json;

use crate::output::print_json;
use crate::remedy::{Remedied, Try};
use crate::size::size_above_zero;
use crate::table::table;

/// Options of `prepage bench rates`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Measurements of each rate, and builds
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Numbers of workers that do each concurrently, which may be more than there are processors [default: 1, and one for each processor]
    #[arg(short, long, value_name = "NUMBERS", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: Vec<u16>,
    /// How long programs are started in each measurement, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    milliseconds: u64,
    /// Memory that is touched
    #[arg(short, long, value_name = "SIZE", value_parser = size_above_zero, default_value = "256M")]
    size: u64,
    /// C files of the project that is built
    #[arg(long, default_value_t = 48, value_parser = clap::value_parser!(u16).range(1..))]
    files: u16,
    /// Directory for programs and the build: in memory, so that no disk is measured
    #[arg(short, long, value_name = "DIR", default_value = "/dev/shm")]
    directory: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A start, as `prepage bench starts` counts it.
#[derive(Debug, clap::Args)]
pub struct StartsArgs {
    /// fork, vfork or posix_spawn
    #[arg(value_parser = way)]
    way: StartWay,
    /// For how long
    milliseconds: u64,
    /// What is started, without arguments
    program: PathBuf,
}

/// Counts starts in this process: a worker of [`run`].
pub fn count(args: &StartsArgs) -> Result<ExitCode> {
    let duration = Duration::from_millis(args.milliseconds);
    starts::work(args.way, args.program.clone(), duration, std::io::stdin(), crate::output::text())
        .with_context(|| args.program.display().to_string())?;
    Ok(ExitCode::SUCCESS)
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    let scratch = tempfile::tempdir_in(&args.directory)
        .or_try(|| Remedied::new("cannot write programs and the build", "--directory DIR"))?;
    let cpus = std::thread::available_parallelism()?.get();
    let mut workers: Vec<usize> = args.workers.iter().map(|&workers| workers.into()).collect();
    if workers.is_empty() {
        workers = vec![1, cpus];
    }
    workers.sort_unstable();
    workers.dedup();
    let most = workers.iter().copied().max().unwrap_or(1);
    if args.size / PAGE_SIZE < most as u64 {
        let bytes = most as u64 * PAGE_SIZE;
        bail!(Remedied::new(
            format!("--size is too small: {most} workers need a page each"),
            format!("--size {bytes}, or fewer --workers")
        ));
    }
    let mut rates = Vec::new();
    let worker: [OsString; 3] = [std::env::current_exe()?.into(), "bench".into(), "starts".into()];
    let duration = Duration::from_millis(args.milliseconds);
    for linked in [Linked::SharedDynamic, Linked::OwnStatic] {
        let programs = starts::programs(scratch.path(), linked, most)
            .or_try(|| Remedied::new("no program to start", "apt-get install gcc libc6-dev"))?;
        for way in StartWay::ALL {
            for &workers in &workers {
                let what = format!("starts of {} by {}", linked.name(), way.name());
                let once = || starts::concurrently(&worker, way, &programs, workers, duration);
                rates.push(Rate::measure(&what, workers, args.rounds, once)?);
            }
        }
    }
    let mut without_vm = None;
    let vm = Vm::new(VmOptions::default());
    for &workers in &workers {
        let mut add = |what: &str, once: &mut dyn FnMut() -> Result<f64>| {
            // The first turn is the host's, who has to find memory that was not used of late.
            once()?;
            rates.push(Rate::measure(what, workers, args.rounds, once)?);
            anyhow::Ok(())
        };
        add("pages of zeros of the kernel", &mut || Ok(zeros::of_kernel(args.size, workers)?))?;
        match &vm {
            Ok(vm) => add("pages of zeros of the VM, 64 a fault", &mut || {
                Ok(zeros::of_vm(vm, args.size, workers, 64)?)
            })?,
            Err(error) => without_vm = Some(error.to_string()),
        }
        add("bound: pages overwritten in memory", &mut || Ok(zeros::bound(args.size, workers)?))?;
    }
    let sources = generate(scratch.path(), args.files.into())?;
    let builds = (0..args.rounds).map(|_| build(&sources, cpus)).collect::<std::io::Result<Vec<_>>>()?;
    print(args, &rates, &builds, cpus, without_vm.as_deref())
}

fn way(text: &str) -> Result<StartWay, String> {
    let found = StartWay::ALL.into_iter().find(|way| way.name() == text);
    found.ok_or_else(|| format!("`{text}` is not a way; there are fork, vfork and posix_spawn"))
}

fn print(
    args: &Args,
    rates: &[Rate],
    builds: &[Built],
    cpus: usize,
    without_vm: Option<&str>,
) -> Result<ExitCode> {
    let mut out = crate::output::text();
    if args.json {
        let rate = |rate: &Rate| json!({ "what": rate.what, "workers": rate.workers, "per_second": rate.per_second });
        let built = |built: &Built| json!({ "real_s": built.real_s, "user_s": built.user_s, "system_s": built.system_s });
        let report = json!({
            "schema_version": 1,
            "cpus": cpus,
            "page_bytes": PAGE_SIZE,
            "rates": rates.iter().map(rate).collect::<Vec<_>>(),
            "builds": builds.iter().map(built).collect::<Vec<_>>(),
            "vm_missing": without_vm,
            "published": PUBLISHED.map(|(what, before, after)| json!({ "what": what, "before": before, "after": after })),
        });
        print_json(&report)?;
        return Ok(ExitCode::SUCCESS);
    }
    let headings = ["", "workers", "a second", "least", "greatest", "per worker", "GB/s"];
    let mut shown = table(&headings, &[1, 2, 3, 4, 5, 6]);
    for rate in rates {
        let (least, greatest) = rate.range();
        let bytes = if rate.what.contains("pages") {
            format!("{:.1}", rate.median() * PAGE_SIZE as f64 / 1e9)
        } else {
            String::new()
        };
        let numbers =
            [rate.median(), least, greatest, rate.per_worker()].map(|number| format!("{number:.0}"));
        let [median, least, greatest, per_worker] = numbers;
        shown.add_row([
            rate.what.clone(),
            rate.workers.to_string(),
            median,
            least,
            greatest,
            per_worker,
            bytes,
        ]);
    }
    writeln!(
        out,
        "rates on {}: medians of {}\n\n{}\n",
        counted(cpus, "CPU"),
        args.rounds,
        shown.lines(crate::output::width())
    )?;
    if let Some(error) = without_vm {
        writeln!(out, "the VM's rates were not measured: {error}\n")?;
    }
    let mut shown = table(&["build", "real s", "user s", "system s", "system %"], &[1, 2, 3, 4]);
    for (run, built) in builds.iter().enumerate() {
        let percent = built.system_percent();
        let numbers = [built.real_s, built.user_s, built.system_s].map(|seconds| format!("{seconds:.2}"));
        let [real, user, system] = numbers;
        shown.add_row([format!("run {}", run + 1), real, user, system, format!("{percent:.1}")]);
    }
    writeln!(
        out,
        "{} generated C files, gcc -O2, {cpus} at once, in {}\n\n{}\n",
        args.files,
        args.directory.display(),
        shown.lines(crate::output::width())
    )?;
    let mut shown = table(&["published (DragonFly, 2019)", "before", "after"], &[]);
    PUBLISHED.iter().for_each(|&(what, before, after)| {
        shown.add_row([what, before, after]);
    });
    writeln!(out, "{}", shown.lines(crate::output::width()))?;
    Ok(ExitCode::SUCCESS)
}
