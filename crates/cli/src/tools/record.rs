//! `prepage record`: every page fault of a command, in a file.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, anyhow};
use comfy_table::Table;
use prepage_core::{FaultClass, Object, TraceFacts};
use prepage_sys::spawn::HowEnded;
use prepage_trace::parquet::{TraceFileError, TraceWriter};
use prepage_trace::{Recorder, Summary};

use crate::child::not_started;
use crate::table::table;

/// How many files the summary names.
const TOP_FILES: usize = 10;

/// Options of `prepage record`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file to write; an older one becomes FILE.old
    #[arg(short, long, value_name = "FILE", default_value = "prepage.parquet")]
    output: PathBuf,
    /// Say nothing but errors and losses
    #[arg(short, long)]
    quiet: bool,
    /// The command to record
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    let mut writer =
        Some(TraceWriter::create(&args.output).map_err(|error| with_remedy(error.remedy(), error.into()))?);
    let mut recorder =
        Recorder::start(&args.command).map_err(|error| with_remedy(error.remedy(), error.into()))?;
    let mut summary = Summary::default();
    let mut faults = Vec::new();
    loop {
        let more = recorder.next_faults(&mut faults)?;
        faults.iter().for_each(|fault| summary.add(fault));
        if let Some(open) = &mut writer
            && let Err(error) = open.write(recorder.tables(), &faults)
        {
            tell_unsaved(&error);
            if !matches!(error, TraceFileError::Full { .. }) {
                writer = None;
            }
        }
        faults.clear();
        if !more {
            break;
        }
    }
    let recorded = recorder.finish()?;
    let exit_code = match recorded.how_ended {
        HowEnded::NotExecuted(error) => return Err(not_started(&args.command, error).into()),
        HowEnded::Exited(code) => ExitCode::from(code as u8),
        HowEnded::Killed(signal) => ExitCode::from(128 + signal as u8),
    };
    let (objects, facts) = (&recorded.objects, &recorded.facts);
    let mut saved = false;
    if let Some(writer) = writer {
        match writer.finish(recorded.tables(), facts) {
            Ok(0) => saved = true,
            Ok(unsaved) => {
                saved = true;
                eprintln!("prepage: the disk filled: {unsaved} of the faults are not in the file");
            }
            Err(error) => tell_unsaved(&error),
        }
    }
    tell_losses(facts);
    if !args.quiet {
        // A closed standard error is no reason to fail.
        let _ = tell(&summary, objects, facts);
        if saved {
            eprintln!("prepage: written to {}", args.output.display());
        }
    }
    Ok(exit_code)
}

fn with_remedy<'a>(remedy: impl Into<Option<&'a str>>, error: anyhow::Error) -> anyhow::Error {
    match remedy.into() {
        Some(remedy) => anyhow!("{error:#}\n  try: {remedy}"),
        None => error,
    }
}

fn tell_unsaved(error: &TraceFileError) {
    eprintln!("prepage: {error}; the command runs on");
    eprintln!("  try: {}", error.remedy());
}

fn tell_losses(facts: &TraceFacts) {
    if facts.lost > 0 {
        eprintln!(
            "prepage: the kernel had no room for {} records: some faults or their costs are missing",
            facts.lost
        );
        eprintln!("  try: as root, who gets larger rings, or while the machine has less to do");
    }
    if facts.system_calls_hidden {
        eprintln!("prepage: faults taken in system calls are not seen by this user");
        eprintln!("  try: sudo sysctl kernel.perf_event_paranoid=1, or run as root");
    }
    if facts.survivors > 0 {
        eprintln!(
            "prepage: {} processes still run; what they do from now on is not recorded",
            facts.survivors
        );
    }
}

fn tell(summary: &Summary, objects: &[Object], facts: &TraceFacts) -> std::io::Result<()> {
    let mut out = std::io::stderr().lock();
    let total = summary.total();
    let milliseconds = facts.duration_ns as f64 / 1e6;
    writeln!(
        out,
        "\n{} page faults in {milliseconds:.1} ms, programs executed: {}\n",
        total.count, facts.execs
    )?;
    writeln!(out, "{}\n", classes(summary).trim_fmt())?;
    if let Some(table) = files(summary, objects) {
        writeln!(out, "{}\n", table.trim_fmt())?;
    }
    if let (Some(rusage), Some(counted)) = (facts.rusage, facts.counted) {
        writeln!(out, "getrusage  {} minor + {} major", rusage.0, rusage.1)?;
        writeln!(out, "perf       {} minor + {} major, {} records lost", counted.0, counted.1, facts.lost)?;
    }
    match facts.inside_kernel() {
        Some(inside @ 0..) => {
            let also = if facts.system_calls_hidden { " or in system calls" } else { "" };
            writeln!(
                out,
                "in kernel  {inside} taken inside the kernel, no address (one an exec, mlock, …){also}"
            )?;
        }
        Some(more) => writeln!(
            out,
            "unwaited   {} of processes that nobody waited for, which getrusage leaves out",
            -more
        )?,
        None => {}
    }
    Ok(())
}

fn classes(summary: &Summary) -> Table {
    let mut table = table(&["class", "count", "share %", "mean µs", "total ms"], &[1, 2, 3, 4]);
    let all = summary.total();
    let share = |count: u64| format!("{:.1}", 100.0 * count as f64 / all.count.max(1) as f64);
    for class in FaultClass::ALL {
        let tally = summary.class(class);
        if tally.count > 0 {
            table.add_row([
                class.name().to_owned(),
                tally.count.to_string(),
                share(tally.count),
                microseconds(tally.mean_ns()),
                format!("{:.2}", tally.cost_ns as f64 / 1e6),
            ]);
        }
    }
    table.add_row([
        "all".to_owned(),
        all.count.to_string(),
        share(all.count),
        microseconds(all.mean_ns()),
        format!("{:.2}", all.cost_ns as f64 / 1e6),
    ]);
    table
}

fn files(summary: &Summary, objects: &[Object]) -> Option<Table> {
    let top = summary.dearest_objects(TOP_FILES);
    let mut table = table(&["file", "faults", "disk", "total ms"], &[1, 2, 3]);
    for (id, tally) in &top {
        table.add_row([
            objects[id.0 as usize].path.clone(),
            tally.all.count.to_string(),
            tally.disk.to_string(),
            format!("{:.2}", tally.all.cost_ns as f64 / 1e6),
        ]);
    }
    (!top.is_empty()).then_some(table)
}

fn microseconds(mean_ns: Option<f64>) -> String {
    mean_ns.map_or_else(|| "-".to_owned(), |ns| format!("{:.2}", ns / 1e3))
}
