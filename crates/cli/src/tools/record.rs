//! `prepage record`: every page fault of a command, of running processes or of the machine, in a file.

use std::collections::BTreeMap;
use std::error::Error;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::builder::{PathBufValueParser, TypedValueParser};
use prepage_core::quantity::{counted, parse_ns};
use prepage_core::{ExactFacts, Object, Tally, TraceFacts};
use prepage_display::number::{known, ms};
use prepage_observe::Exact;
use prepage_profiles::program;
use prepage_report::by::name_of_files;
use prepage_report::{UNKNOWN, page_cache};
use prepage_trace::parquet::{Notice, Recording, record};
use prepage_trace::{Filters, NotARange, RecordOptions, Scope, Summary};

use crate::child::{OWN_FAILURE, exit_code_of};
use crate::table::{Table, classes, table};

/// How many files the summary names.
const TOP_FILES: usize = 10;
/// How many files that are not recorded exactly.
const TOP_UNARMED: usize = 3;
/// How many waits for another's read.
const TOP_WAITS: usize = 5;

/// Options of `prepage record`.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("scope").required(true).args(["command", "pid", "all"]))]
pub struct Args {
    /// Record this running process, and all that it starts, until it ends or Ctrl-C; repeatable
    #[arg(short, long, value_name = "PID", value_delimiter = ',', value_parser = crate::usage::pid)]
    pid: Vec<u32>,
    /// Record every process of the machine until Ctrl-C (root)
    #[arg(short, long)]
    all: bool,
    /// The file to write; an older one becomes FILE.old
    #[arg(short, long, value_name = "FILE", default_value = "prepage.parquet", value_parser = crate::output::trace())]
    output: PathBuf,
    /// End the recording after this time, in seconds or with a unit: 10, 1.5s, 200ms, 5m. The command keeps running
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    duration: Option<Duration>,
    /// Keep faults on this file only; repeatable
    #[arg(long, value_name = "PATH", value_parser = PathBufValueParser::new().try_map(file))]
    file: Vec<PathBuf>,
    /// Keep faults at these addresses only, hexadecimal, the end not included; repeatable
    #[arg(long, value_name = "A-B", value_parser = address)]
    address: Vec<String>,
    /// Keep faults of threads of this name only; repeatable
    #[arg(long, value_name = "NAME")]
    comm: Vec<String>,
    /// Record the call stack of each fault, by frame pointers
    #[arg(short = 'g', long)]
    stacks: bool,
    /// Record the frame (physical page) of each fault (root)
    #[arg(long)]
    frames: bool,
    /// Also record what happens to pages of files: read in, asked for by read(), never touched, waited for (root)
    #[arg(long)]
    page_cache: bool,
    /// Record every first touch of a file's page as a fault of its own, for `prepage simulate`; the cache may be warm or
    /// cold. Each process ends up to 20 ms later
    #[arg(long, requires = "command", conflicts_with_all = ["pid", "all"])]
    exact: bool,
    /// Say nothing but errors and losses
    #[arg(short, long)]
    quiet: bool,
    /// The command to record
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    let scope = if args.all {
        Scope::System
    } else if args.pid.is_empty() {
        // A link would be recorded as prepage's own start, and the program as one more.
        Scope::Command(program::past_stand_ins(&args.command))
    } else {
        Scope::Processes(args.pid.clone())
    };
    for path in args.file.iter().filter(|path| !path.exists()) {
        say!("prepage: --file {}: no such file, or not yet", path.display());
    }
    let mut options = options(args)?;
    if args.exact {
        let exact = Exact::new();
        options.exact = Some(exact.facts());
        options.prepare = Some(exact.prepare(program::find(&args.command[0]).ok()));
    }
    let mut progress = Progress::of(args);
    let Recording { recorded, summary, saved, failure } =
        record(&scope, &options, &args.output, |notice| progress.tell(&notice))?;
    progress.end();
    if let Some(exact) = &recorded.facts.exact {
        tell_inexact(exact);
    }
    let how_ended = recorded.how_ended.map(|how| exit_code_of(&args.command, how)).transpose()?;
    crate::missing::tell_new(&recorded.facts);
    if !args.quiet {
        // A closed standard error is no reason to fail.
        let _ = tell(&summary, &recorded.objects, &recorded.facts);
        if saved {
            let path = args.output.display();
            let but = match recorded.facts.unsaved {
                0 => String::new(),
                unsaved => format!(" without the last {}", counted(unsaved as usize, "fault")),
            };
            say!("prepage: written to {path}{but}; `prepage report {path}` says more");
        }
    }
    if let Some(failure) = failure {
        let kept = if saved { "; what was recorded until then is saved" } else { "" };
        return Err(anyhow::Error::new(failure).context(format!("the recording ended early{kept}")));
    }
    let code = match (how_ended, recorded.left_running) {
        (Some(code), _) => code,
        (None, Some(command)) => exit_code_of(&args.command, command.wait()?)?,
        (None, None) => ExitCode::SUCCESS,
    };
    // What could not be written, and why, was said. Who goes on with the trace is to know; a command's own failure says more.
    let is_whole = saved && recorded.facts.unsaved == 0;
    Ok(if code == ExitCode::SUCCESS && !is_whole { OWN_FAILURE.into() } else { code })
}

fn options(args: &Args) -> Result<RecordOptions> {
    let mut filters = Filters::default();
    args.file.iter().for_each(|path| filters.file(path));
    args.address.iter().try_for_each(|range| filters.address(range))?;
    args.comm.iter().for_each(|name| filters.comm(name));
    let Args { stacks, frames, page_cache, duration, .. } = *args;
    let called = Some(args.command.clone());
    Ok(RecordOptions { stacks, frames, page_cache, filters, duration, called, exact: None, prepare: None })
}

/// The path of a file. The command may make it, or a container have it, by the path that is given if that is a whole one.
fn file(path: PathBuf) -> Result<PathBuf, &'static str> {
    if path.is_absolute() || path.exists() {
        return Ok(path);
    }
    Err("no such file; `prepage report --file TEXT` takes part of a path")
}

/// A range of addresses, as it is written.
fn address(text: &str) -> Result<String, NotARange> {
    Filters::default().address(text).map(|()| text.to_owned())
}

/// Seconds, or a number with its unit.
fn parse_duration(text: &str) -> Result<Duration, String> {
    let ns = parse_ns(text, "s").ok_or_else(|| format!("`{text}` is not a time; write 10s, 1.5m or 2h"))?;
    if ns == 0 { Err("no time at all".into()) } else { Ok(Duration::from_nanos(ns)) }
}

/// A line that shows how the recording goes, on a terminal that the recorded command does not write to.
#[derive(Debug)]
struct Progress {
    shown: bool,
    /// When the line was written last.
    last: Instant,
    /// Whether it stands on the terminal.
    written: bool,
}

impl Progress {
    fn of(args: &Args) -> Self {
        let undisturbed = args.command.is_empty() || !io::stdout().is_terminal();
        let shown = io::stderr().is_terminal() && !args.quiet && undisturbed;
        Self { shown, last: Instant::now(), written: false }
    }

    fn tell(&mut self, notice: &Notice<'_>) {
        if let Notice::Progress { duration, faults, lost } = notice {
            if self.shown && self.last.elapsed() >= Duration::from_secs(1) {
                crate::say::write(format_args!(
                    "\r\x1b[Kprepage: {} s, {}, {} lost",
                    duration.as_secs(),
                    counted(*faults as usize, "fault"),
                    counted(*lost as usize, "record")
                ));
                (self.last, self.written) = (Instant::now(), true);
            }
            return;
        }
        self.end();
        match notice {
            Notice::Rescued(path) => tell_rescued(path),
            Notice::Unsaved { error, kept, command_runs } => {
                let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
                say!("prepage: {error}{cause}{}", if *command_runs { "; the command runs on" } else { "" });
                if let Some(kept) = kept {
                    say!("  what was saved until then is readable: {}", kept.display());
                }
                say!("  try: {}", error.remedy());
            }
            _ => {}
        }
    }

    /// Takes the line away.
    fn end(&mut self) {
        if std::mem::take(&mut self.written) {
            crate::say::write(format_args!("\r\x1b[K"));
        }
    }
}

/// Says where what an earlier recording left is now.
pub fn tell_rescued(path: &Path) {
    say!("prepage: a recording that was killed before its end is kept as {}", path.display());
}

/// Names the programs and files whose touches the recording may lack.
fn tell_inexact(exact: &ExactFacts) {
    for line in &exact.unarmed_programs {
        say!("prepage: not exact: {line}");
    }
    let mut files: Vec<(u64, &str)> = exact
        .unarmed_pages
        .iter()
        .map(|(path, pages)| (pages.iter().map(|(start, end)| end - start).sum(), path.as_str()))
        .collect();
    if files.is_empty() {
        return;
    }
    files.sort_by_key(|&file| std::cmp::Reverse(file));
    let sum: u64 = files.iter().map(|(pages, _)| pages).sum();
    let top = files.iter().take(TOP_UNARMED).map(|(pages, path)| format!("{path} ({pages})"));
    let more = match files.len().saturating_sub(TOP_UNARMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let top = top.collect::<Vec<_>>().join(", ");
    let pages = counted(sum as usize, "page");
    say!(
        "prepage: not exact: {pages} could be touched while fault-around was not, or not yet, off for them: {top}{more}"
    );
}

fn tell(summary: &Summary, objects: &[Object], facts: &TraceFacts) -> std::io::Result<()> {
    let mut out = std::io::stderr().lock();
    let total = summary.total();
    let milliseconds = facts.duration_ns as f64 / 1e6;
    writeln!(
        out,
        "\n{} in {milliseconds:.1} ms, programs executed: {}\n",
        counted(total.count as usize, "page fault"),
        facts.execs
    )?;
    writeln!(out, "{}\n", classes(summary).lines(crate::say::width()))?;
    if let Some(table) = files(summary, objects) {
        writeln!(out, "{}\n", table.lines(crate::say::width()))?;
    }
    if let Some((minor, major)) = facts.counted {
        if let Some((minor, major)) = facts.rusage {
            writeln!(out, "getrusage  {minor} minor + {major} major")?;
        }
        let lost = counted(facts.lost as usize, "record");
        writeln!(out, "perf       {minor} minor + {major} major, {lost} lost")?;
    }
    match facts.inside_kernel() {
        Some(inside @ 0..) => {
            let calls = if facts.system_calls_hidden { " or in system calls" } else { "" };
            let programs = if facts.unobserved_programs > 0 { " or by programs not observed" } else { "" };
            writeln!(
                out,
                "in kernel  {inside} taken inside the kernel, no address (one an exec, mlock, …){calls}{programs}"
            )?;
        }
        Some(more) => writeln!(
            out,
            "unwaited   {} of processes that nobody waited for, which getrusage leaves out",
            -more
        )?,
        None => {}
    }
    match (facts.probe_total_ns, facts.probe_cost_ns) {
        (Some(total), Some(inside)) => {
            let (total, inside) = (total as f64 / 1e3, inside as f64 / 1e3);
            writeln!(
                out,
                "probe      {total:.2} µs added to each fault; the {inside:.2} µs of it inside the costs are taken off"
            )?;
        }
        _ => writeln!(
            out,
            "probe      costs hold what recording adds: --page-cache and --frames add more to some faults than to others"
        )?,
    }
    if !facts.filters.is_empty() {
        writeln!(
            out,
            "filtered   {} left out by {}",
            counted(facts.filtered_out as usize, "more fault"),
            facts.filters.join(" ")
        )?;
    }
    if let Some(pages) = &facts.page_cache {
        writeln!(out)?;
        page_cache::print(pages, TOP_FILES, TOP_WAITS, crate::say::width(), &mut out)?;
        writeln!(out)?;
    }
    Ok(())
}

/// The files that cost most. Files of one path, as deleted ones and those of containers may be, are one row.
fn files(summary: &Summary, objects: &[Object]) -> Option<Table> {
    let mut files: BTreeMap<&str, (usize, Tally)> = BTreeMap::new();
    for (id, tally) in summary.objects() {
        let path = id.map_or(UNKNOWN, |id| &objects[id.0 as usize].path);
        let (of_path, sum) = files.entry(path).or_default();
        *of_path += 1;
        sum.merge(&tally);
    }
    let mut files: Vec<(&str, (usize, Tally))> = files.into_iter().collect();
    files.sort_by_key(|(_, (_, tally))| std::cmp::Reverse((tally.cost_ns, tally.count)));
    let mut table = table(&["file", "faults", "disk", "total ms"], &[1, 2, 3]);
    for (path, (of_path, tally)) in files.iter().take(TOP_FILES) {
        let cost = known(tally.is_timed().then_some(tally.cost_ns), ms);
        let figures = [tally.count.to_string(), tally.disk.to_string(), cost];
        table.add_row([vec![name_of_files(path, *of_path)], figures.to_vec()].concat());
    }
    table.left_out = files.len().saturating_sub(TOP_FILES);
    (!files.is_empty()).then_some(table)
}
