//! `prepage report`: what a trace says.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::Result;
use prepage_core::FaultClass;
use prepage_report::{By, Column, Filter, Options, Report, html, json, text};

use crate::newest;
use crate::output::{is_stdout, print_json};
use crate::remedy::{Remedied, Try};
use crate::usage::conflict;

/// Rows of a table, where nothing else is asked for.
const TOP: usize = 20;
/// Columns of the overview's time line.
const OVERVIEW_SLICES: usize = 60;
/// Rows of the table by time, where nothing else is asked for.
const TABLE_SLICES: usize = 20;

/// Options of `prepage report`.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("page").args(["html", "open"]).multiple(true))]
#[command(group = clap::ArgGroup::new("tables").args(["by", "json"]).multiple(true))]
pub struct Args {
    /// The trace that `prepage record` wrote [default: the newest in this directory]
    #[arg(value_name = "TRACE")]
    trace: Option<PathBuf>,
    /// Print only this table (repeatable, or a list): class, file, mapping, thread, process, comm, time, code, symbol, stack,
    /// cost, slowest
    #[arg(long, value_name = "WHAT", value_delimiter = ',', value_parser = what)]
    by: Vec<What>,
    /// Columns of the tables: count, percent, disk, mean, cycles, p50, p90, p99, p999, max, disk-total, total, total-percent
    #[arg(long, value_name = "LIST", value_delimiter = ',', requires = "tables")]
    columns: Vec<Column>,
    /// Rows of each table
    #[arg(long, value_name = "N", requires = "tables")]
    top: Option<usize>,
    /// Slices of the time: rows of --by time, columns of the overview
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    slices: Option<u32>,
    #[command(flatten)]
    filter: FilterArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write a page for the browser instead: plots and all tables, in one file that needs no network; - for standard output
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "by", "columns", "top", "slices"])]
    html: Option<PathBuf>,
    /// Show that page in the browser ($BROWSER, else xdg-open); without --html it is written to the temporary directory
    #[arg(long, conflicts_with_all = ["json", "by", "columns", "top", "slices"])]
    open: bool,
    /// Draw at most N faults as single dots; if there are more, draw a sample of each class
    #[arg(long, value_name = "N", requires = "page", default_value_t = html::POINTS_MAX, value_parser = clap::value_parser!(u64).range(1..=20_000_000))]
    points: u64,
}

/// Which faults to count.
#[derive(Debug, clap::Args)]
pub struct FilterArgs {
    /// Only faults of these classes: disk, short, cached, zero-fill, copy-on-write, failed,
    /// unseen
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    class: Vec<FaultClass>,
    /// Only faults on files whose path contains this; may be given more than once
    #[arg(long, value_name = "TEXT")]
    file: Vec<String>,
    /// Only faults of threads with this name; may be given more than once
    #[arg(long, value_name = "NAME")]
    comm: Vec<String>,
    /// Only faults of this process; may be given more than once
    #[arg(long, value_name = "PID", value_parser = crate::usage::pid)]
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
    Slowest,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    if args.open || args.html.is_some() {
        if args.open && args.html.as_deref().is_some_and(is_stdout) {
            conflict("the argument '--open' cannot be used with '--html -': what is shown is a file");
        }
        return page(args);
    }
    let by: Vec<By> =
        args.by.iter().filter_map(|what| if let What::By(by) = what { Some(*by) } else { None }).collect();
    let time_table = by.contains(&By::Time);
    let slices = args.slices.map_or(if time_table { TABLE_SLICES } else { OVERVIEW_SLICES }, |n| n as usize);
    let top = args.top.unwrap_or(TOP);
    // JSON has all figures unless some are asked for.
    let columns = if args.json && args.columns.is_empty() { &Column::ALL } else { args.columns.as_slice() };
    let options = Options {
        filter: Filter::from(&args.filter),
        by: by.clone(),
        group_percentiles: columns.iter().any(|column| column.is_percentile()),
        slices,
        slowest: top,
    };
    let file = newest::open(args.trace.as_deref())?;
    let report = Report::read(&file, &options)?;
    tell_replaced(&report);
    let mut out = std::io::BufWriter::new(crate::output::text());
    let width = crate::output::width();
    if args.json {
        let by = if by.is_empty() { vec![By::Class, By::File] } else { by };
        print_json(&json::json(&report, &by, top, columns))?;
    } else if args.by.is_empty() || text::why_none(&report).is_some() {
        text::overview(&report, width, &mut out)?;
    } else {
        // The overview and JSON say it themselves.
        crate::missing::tell(&report.facts.missing(), file.path());
        for (place, what) in args.by.iter().enumerate() {
            if place > 0 {
                writeln!(out)?;
            }
            match what {
                What::Cost => text::histogram(&report, width, &mut out)?,
                What::Slowest => text::slowest_faults(&report, width, &mut out)?,
                What::By(by) => {
                    let default = || match by {
                        By::Class => text::class_columns(&report),
                        _ => text::TABLE_COLUMNS.to_vec(),
                    };
                    let columns = if args.columns.is_empty() { default() } else { args.columns.clone() };
                    text::grouped(&report, *by, top, &columns, width, &mut out)?;
                }
            }
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the page for the browser, and shows it where that was asked for.
fn page(args: &Args) -> Result<ExitCode> {
    let file = newest::open(args.trace.as_deref())?;
    args.html.iter().try_for_each(|path| crate::output::keep_input(path, file.path()))?;
    let report = Report::read(&file, &html::options(Filter::from(&args.filter)))?;
    let points = html::Points::read(&file, &report, args.points)?;
    let write = |out: &mut dyn Write| html::write(&report, &points, out);
    let path = match &args.html {
        Some(path) => crate::output::replace(path, write).map(|()| path.clone())?,
        None => {
            let trace = file.path().file_stem().unwrap_or_default().to_string_lossy();
            crate::output::temporary(&format!("prepage-{trace}"), ".html", write)?
        }
    };
    tell_replaced(&report);
    crate::output::tell(&path);
    if args.open {
        show(&path)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens `path` in the user's browser, and does not wait for the browser.
fn show(path: &Path) -> Result<()> {
    let browser = std::env::var_os("BROWSER").filter(|browser| !browser.is_empty());
    let browser = browser.unwrap_or_else(|| "xdg-open".into());
    let silent = || Stdio::null();
    let mut command = Command::new(&browser);
    command.arg(path).stdin(silent()).stdout(silent()).stderr(silent());
    command.spawn().map(drop).or_try(|| {
        let (name, path) = (browser.to_string_lossy(), path.display());
        let remedy = format!("BROWSER=firefox, or open {path} yourself");
        Remedied::new(format!("{name} cannot be started to show {path}"), remedy)
    })
}

/// Says whose names are missing because the files may not be those that were recorded.
fn tell_replaced(report: &Report) {
    for path in report.symbols.replaced() {
        say!("prepage: {path} is not, or not known to be, the file recorded: its functions have no names");
    }
}

/// Names of the tables.
pub fn table_names() -> Vec<&'static str> {
    tables().map(|(name, _)| name).collect()
}

fn tables() -> impl Iterator<Item = (&'static str, What)> {
    let by = By::ALL.iter().map(|by| (by.name(), What::By(*by)));
    by.chain([("cost", What::Cost), ("slowest", What::Slowest)])
}

fn what(name: &str) -> Result<What, String> {
    one_of(tables(), name)
}

fn one_of<T>(choices: impl Iterator<Item = (&'static str, T)>, name: &str) -> Result<T, String> {
    let mut names = Vec::new();
    for (choice, value) in choices {
        if choice == name {
            return Ok(value);
        }
        names.push(choice);
    }
    Err(format!("one of {}", names.join(", ")))
}
