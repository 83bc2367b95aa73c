//! `prepage import`: page faults that perf(1) recorded, as a trace.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use prepage_core::TraceFacts;
use prepage_core::quantity::counted;
use prepage_trace::Summary;
use prepage_trace::import::{ImportError, Importer};
use prepage_trace::parquet::{TraceFileError, TraceWriter};

use crate::table::classes;

/// Options of `prepage import`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A perf.data with samples of page-faults, minor-faults or major-faults, recorded with -c 1 -d
    #[arg(default_value = "perf.data")]
    file: PathBuf,
    /// The trace to write; an older one becomes FILE.old
    #[arg(short, long, value_name = "FILE", default_value = "prepage.parquet", value_parser = crate::output::trace())]
    output: PathBuf,
    /// Say nothing but errors and losses
    #[arg(short, long)]
    quiet: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    let mut importer = Importer::open(&args.file)?;
    let mut writer = TraceWriter::create(&args.output)?;
    writer.rescued().into_iter().for_each(crate::record::tell_rescued);
    let summary = match copy(&mut importer, &mut writer) {
        Ok(summary) => summary,
        // The perf.data is still there: a part of it in a file of its own would be taken for a recording that was killed.
        Err(error) => {
            writer.discard();
            return Err(error);
        }
    };
    if summary.total().count == 0 {
        let events = "no samples at all".to_owned();
        return Err(ImportError::NoPageFaults(args.file.clone(), events).into());
    }
    let imported = importer.finish();
    let unsaved = writer.finish((&imported).into(), &imported.facts)?;
    if unsaved > 0 {
        let unsaved = counted(unsaved as usize, "fault");
        say!("prepage: written to {} without the last {unsaved}", args.output.display());
        return Err(TraceFileError::Full(args.output.clone()).into());
    }
    crate::missing::tell_new(&imported.facts);
    if !args.quiet {
        tell(&summary, &imported.facts);
        say!("prepage: written to {}", args.output.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Hands all faults to `writer`, which counts those that a full disk has no room for.
fn copy(importer: &mut Importer, writer: &mut TraceWriter) -> Result<Summary> {
    let mut summary = Summary::default();
    let mut faults = Vec::new();
    loop {
        let more = importer.next_faults(&mut faults)?;
        faults.iter().for_each(|fault| summary.add(fault));
        let written = writer.write(importer.tables(), &faults, || importer.facts());
        match written.and_then(|()| importer.bound_tables(writer)) {
            Ok(()) | Err(TraceFileError::Full(..)) => {}
            Err(error) => return Err(error.into()),
        }
        faults.clear();
        if !more {
            return Ok(summary);
        }
    }
}

fn tell(summary: &Summary, facts: &TraceFacts) {
    let imported = facts.imported.clone().unwrap_or_default();
    let faults = counted(summary.total().count as usize, "page fault");
    say!("");
    say!("{faults} by {} ({})", imported.tool, imported.events.join(", "));
    say!("");
    crate::say::table(&classes(summary));
}
