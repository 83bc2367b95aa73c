//! `prepage bench modes`: the ways a study of 2008 started programs, beside today's and beside its printed table.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use prepage_bench::modes::{Row, compare, count, ways};
use prepage_bench::start::Way;
use prepage_sys::readahead;

use super::bench_start::{Prepared, prepare};
use super::modes_report::Report;
use crate::output::{print_json, replace};
use crate::read_ahead::{check_read_ahead, read_ahead_kib, set_read_ahead};

/// Options of `prepage bench modes`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Starts in each mode
    #[arg(short = 'n', long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Read-ahead of all disks during the starts, as in 128k; restored afterwards (root) [default: as found]
    #[arg(short, long, value_name = "SIZE", value_parser = read_ahead_kib)]
    read_ahead: Option<u64>,
    /// The library that maps pages ahead [default: libprepage-early-fault.so next to this binary]
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
    /// Write every read of a block device in the last start of each mode to FILE (CSV; root)
    #[arg(long, value_name = "FILE")]
    io_trace: Option<PathBuf>,
    /// Print JSON, with every single start
    #[arg(long)]
    json: bool,
    /// The program and its arguments; its streams are /dev/null
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    if args.read_ahead.is_some() {
        // Before the program is run to learn it.
        check_read_ahead()?;
    }
    let Prepared { mut bench, mut missing, directory: _directory } =
        prepare(&args.command, args.library.as_deref(), true)?;
    // Before the first thread is started, and in force until all is done.
    let set = args.read_ahead.map(set_read_ahead).transpose()?;
    let read_ahead_kib = readahead::in_force();
    let ways = ways(bench.early_fault.is_some());
    let mut rows = compare(&mut bench, &ways, args.rounds, |what| say!("prepage: {what}"))?;
    for (way, row) in ways.iter().zip(&mut rows) {
        say!("prepage: counting: {}", row.name);
        match count(&bench, way) {
            Ok(counted) => row.counted = Some(counted),
            Err(error) => missing.push(format!(
                "faults by class and system calls of {}: {:#}",
                row.name,
                anyhow::Error::from(error)
            )),
        }
    }
    drop(set);
    if let Some(path) = &args.io_trace {
        let text = io_trace(&ways, &rows);
        replace(path, |out| out.write_all(text.as_bytes()))?;
    }
    let report = Report::new(&args.command, read_ahead_kib, bench.chill, rows, missing);
    let mut out = crate::output::text();
    if args.json {
        print_json(&report)?;
    } else {
        report.print(&mut out)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// One line a read: way, phase, when, by whom, where, how much.
fn io_trace(ways: &[Way], rows: &[Row]) -> String {
    let mut text = String::from("way,phase,ms_since_start,pid,sector,bytes\n");
    for (way, row) in ways.iter().zip(rows) {
        let Some(io) = row.starts.last().and_then(|start| start.io.as_ref()) else { continue };
        for read in &io.seen.reads {
            let since_ms = read.time_ns.saturating_sub(io.began_ns) as f64 / 1e6;
            let phase = io.phase_of(read.pid).name();
            let name = way.name().replace(", ", "+");
            text += &format!("{name},{phase},{since_ms:.3},{},{},{}\n", read.pid, read.sector, read.bytes);
        }
    }
    text
}
