//! `prepage report`: what a trace says.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use prepage_core::FaultClass;
use prepage_report::{By, Column, Filter, Options, Report, html, json, text};
use prepage_trace::parquet::TraceFile;

/// Rows of a table, where nothing else is asked for.
const TOP: usize = 20;
/// Columns of the overview's time line.
const OVERVIEW_SLICES: usize = 60;
/// Rows of the table by time, where nothing else is asked for.
const TABLE_SLICES: usize = 20;

/// Options of `prepage report`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The trace that `prepage record` wrote
    #[arg(value_name = "TRACE", default_value = "prepage.parquet")]
    trace: PathBuf,
    /// Only a table by this; may be given more than once or as a list: class, file, mapping, thread, process, comm, time,
    /// code, symbol, stack, cost, dearest
    #[arg(long, value_name = "WHAT", value_delimiter = ',', value_parser = what)]
    by: Vec<What>,
    /// Figures of the tables: count, percent, disk, mean, p50, p90, p99, p999, max, disk-total, total, total-percent
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = column)]
    columns: Vec<Column>,
    /// Rows of a table, dear faults of a list
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    /// Slices of the time, for --by time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    slices: Option<u32>,
    #[command(flatten)]
    filter: FilterArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write a page for the browser instead: plots and all tables, in one file that needs no network
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "by", "columns", "top", "slices"])]
    html: Option<PathBuf>,
}

/// Which faults are of interest.
#[derive(Debug, clap::Args)]
pub struct FilterArgs {
    /// Only faults of these classes: disk, short, cached, zero-fill, copy-on-write, failed
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = class)]
    class: Vec<FaultClass>,
    /// Only faults on files whose path contains this; may be given more than once
    #[arg(long, value_name = "TEXT")]
    file: Vec<String>,
    /// Only faults of threads with this name; may be given more than once
    #[arg(long, value_name = "NAME")]
    comm: Vec<String>,
    /// Only faults of this process; may be given more than once
    #[arg(long, value_name = "PID")]
    pid: Vec<u32>,
}

impl From<&FilterArgs> for Filter {
    fn from(args: &FilterArgs) -> Self {
        Self {
            classes: args.class.clone(),
            files: args.file.clone(),
            comms: args.comm.clone(),
            pids: args.pid.clone(),
        }
    }
}

/// A table of its own.
#[derive(Clone, Copy, Debug)]
enum What {
    By(By),
    Cost,
    Dearest,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    if let Some(path) = &args.html {
        return write_html(args, path);
    }
    let by: Vec<By> =
        args.by.iter().filter_map(|what| if let What::By(by) = what { Some(*by) } else { None }).collect();
    let time_table = by.contains(&By::Time);
    let slices = args.slices.map_or(if time_table { TABLE_SLICES } else { OVERVIEW_SLICES }, |n| n as usize);
    let top = args.top.unwrap_or(TOP);
    let options = Options {
        filter: Filter::from(&args.filter),
        by: by.clone(),
        group_percentiles: args.columns.iter().any(|column| column.is_percentile()),
        slices,
        dearest: top,
    };
    let report = Report::read(&TraceFile::open(&args.trace)?, &options)?;
    tell_replaced(&report);
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    if args.json {
        let by = if by.is_empty() { vec![By::Class, By::File] } else { by };
        let columns = if args.columns.is_empty() { &Column::ALL[..] } else { &args.columns };
        serde_json::to_writer_pretty(&mut out, &json::json(&report, &by, top, columns))?;
        writeln!(out)?;
    } else if args.by.is_empty() {
        text::overview(&report, &mut out)?;
    }
    if !args.json {
        for (place, what) in args.by.iter().enumerate() {
            if place > 0 {
                writeln!(out)?;
            }
            match what {
                What::Cost => text::histogram(&report, &mut out)?,
                What::Dearest => text::dearest_faults(&report, &mut out)?,
                What::By(by) => {
                    let default: &[Column] =
                        if *by == By::Class { &text::CLASS_COLUMNS } else { &text::TABLE_COLUMNS };
                    let columns = if args.columns.is_empty() { default } else { &args.columns };
                    text::grouped(&report, *by, top, columns, &mut out)?;
                }
            }
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn write_html(args: &Args, path: &Path) -> Result<ExitCode> {
    let file = TraceFile::open(&args.trace)?;
    let report = Report::read(&file, &html::options(Filter::from(&args.filter)))?;
    let points = html::Points::read(&file, &report, html::POINTS_MAX)?;
    crate::output::replace(path, |out| html::write(&report, &points, out))?;
    tell_replaced(&report);
    eprintln!("prepage: written to {}", path.display());
    Ok(ExitCode::SUCCESS)
}

/// Says whose names are missing because the files are no longer those that were recorded.
fn tell_replaced(report: &Report) {
    for path in report.symbols.replaced() {
        eprintln!("prepage: {path} was replaced since the recording: its functions have no names");
    }
}

fn what(name: &str) -> Result<What, String> {
    let by = By::ALL.iter().map(|by| (by.name(), What::By(*by)));
    one_of(by.chain([("cost", What::Cost), ("dearest", What::Dearest)]), name)
}

fn column(name: &str) -> Result<Column, String> {
    one_of(Column::ALL.iter().map(|column| (column.name(), *column)), name)
}

fn class(name: &str) -> Result<FaultClass, String> {
    one_of(FaultClass::ALL.iter().map(|class| (class.name(), *class)), name)
}

pub fn one_of<T>(choices: impl Iterator<Item = (&'static str, T)>, name: &str) -> Result<T, String> {
    let mut names = Vec::new();
    for (choice, value) in choices {
        if choice == name {
            return Ok(value);
        }
        names.push(choice);
    }
    Err(format!("one of {}", names.join(", ")))
}
