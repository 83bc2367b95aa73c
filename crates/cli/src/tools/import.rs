//! `prepage import`: page faults that perf(1) recorded, as a trace.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, anyhow};
use prepage_core::{FaultClass, TraceFacts};
use prepage_trace::Summary;
use prepage_trace::import::{ImportError, Importer, PERF_COMMAND};
use prepage_trace::parquet::{TraceFileError, TraceWriter};

use crate::table::table;

/// Options of `prepage import`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A perf.data with samples of page-faults, minor-faults or major-faults, recorded with -c 1 -d
    #[arg(default_value = "perf.data")]
    file: PathBuf,
    /// The trace to write; an older one becomes FILE.old
    #[arg(short, long, value_name = "FILE", default_value = "prepage.parquet")]
    output: PathBuf,
    /// Say nothing but errors and losses
    #[arg(short, long)]
    quiet: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    let mut importer = Importer::open(&args.file).map_err(refused)?;
    let mut writer = TraceWriter::create(&args.output).map_err(unwritten)?;
    let mut summary = Summary::default();
    let mut faults = Vec::new();
    loop {
        let more = importer.next_faults(&mut faults).map_err(refused)?;
        faults.iter().for_each(|fault| summary.add(fault));
        writer.write(importer.tables(), &faults, || importer.facts()).map_err(unwritten)?;
        faults.clear();
        if !more {
            break;
        }
    }
    if summary.total().count == 0 {
        let file = args.file.clone();
        return Err(refused(ImportError::NoPageFaults {
            path: file,
            events: "no samples at all".to_owned(),
        }));
    }
    let imported = importer.finish();
    let unsaved = writer.finish(imported.tables(), &imported.facts).map_err(unwritten)?;
    if unsaved > 0 {
        return Err(unwritten(TraceFileError::Full { path: args.output.clone() }));
    }
    warn(&imported.facts);
    if !args.quiet {
        tell(&summary, &imported.facts);
        eprintln!("prepage: written to {}", args.output.display());
    }
    Ok(ExitCode::SUCCESS)
}

fn refused(error: ImportError) -> anyhow::Error {
    let remedy = error.remedy();
    let text = format!("{:#}", anyhow!(error));
    match remedy {
        Some(remedy) => anyhow!("{text}\n  try: {remedy}"),
        None => anyhow!(text),
    }
}

fn unwritten(error: TraceFileError) -> anyhow::Error {
    let remedy = error.remedy();
    anyhow!("{:#}\n  try: {remedy}", anyhow!(error))
}

/// What the trace lacks because of how it was recorded.
fn warn(facts: &TraceFacts) {
    if facts.lost > 0 {
        eprintln!("prepage: perf lost {} records: some faults or mappings are missing", facts.lost);
        eprintln!("  try: perf record -m 16M …");
    }
    let Some(imported) = &facts.imported else { return };
    if let Some(sampled) = &imported.sampled {
        eprintln!("prepage: perf sampled {sampled}: the others are missing");
        eprintln!("  try: {PERF_COMMAND}");
    }
    if imported.disk_unknown {
        eprintln!("prepage: perf did not record which faults read from disk: they stand among the others");
        eprintln!("  try: {PERF_COMMAND}");
    }
}

fn tell(summary: &Summary, facts: &TraceFacts) {
    let all = summary.total();
    let imported = facts.imported.clone().unwrap_or_default();
    eprintln!("\n{} page faults by {} ({})\n", all.count, imported.tool, imported.events.join(", "));
    let mut table = table(&["class", "count", "share %", "mean µs", "total ms"], &[1, 2, 3, 4]);
    let mut add = |name: &str, tally: prepage_trace::Tally| {
        let known = tally.timed > 0;
        table.add_row([
            name.to_owned(),
            tally.count.to_string(),
            format!("{:.1}", 100.0 * tally.count as f64 / all.count.max(1) as f64),
            tally.mean_ns().map_or_else(|| "-".to_owned(), |ns| format!("{:.2}", ns / 1e3)),
            if known { format!("{:.2}", tally.cost_ns as f64 / 1e6) } else { "-".to_owned() },
        ]);
    };
    for class in FaultClass::ALL {
        let tally = summary.class(class);
        if tally.count > 0 {
            add(class.name(), tally);
        }
    }
    add("all", all);
    eprintln!("{}\n", table.trim_fmt());
}
