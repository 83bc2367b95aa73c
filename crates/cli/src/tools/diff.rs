//! `prepage diff`: what changed from one trace to another.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};
use prepage_report::{Diff, Filter, Measure, Options, Report};
use prepage_trace::parquet::TraceFile;

use crate::output::print_json;
use crate::remedy::Remedied;
use crate::report::FilterArgs;

/// The second trace is worse than allowed.
const WORSE: u8 = 1;

/// Options of `prepage diff`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The trace from before the change
    #[arg(value_name = "BEFORE")]
    before: PathBuf,
    /// The trace from after the change
    #[arg(value_name = "AFTER")]
    after: PathBuf,
    /// Exit with 1 when AFTER is worse than BEFORE by more than this
    #[arg(long, value_name = "PERCENT", value_parser = finite)]
    threshold: Option<f64>,
    /// What the threshold applies to: total (ms waited for faults), disk-total (ms waited for the disk), count, disk (faults)
    #[arg(long, value_name = "WHAT", default_value = "total")]
    of: Measure,
    /// Compare even if one trace lacks faults that the other may have, its costs hold what recording added, or running programs were
    /// recorded for different times
    #[arg(long)]
    allow_incomplete: bool,
    /// Rows of the table of files
    #[arg(long, value_name = "N", default_value_t = 20)]
    top: usize,
    #[command(flatten)]
    filter: FilterArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    let read = |path| read(path, Filter::from(&args.filter));
    let (before, after) = (read(&args.before)?, read(&args.after)?);
    let diff = Diff::of(&before, &after);
    if !diff.is_of_the_same {
        let [before, after] =
            diff.subjects.each_ref().map(|subject| subject.as_deref().unwrap_or("it is not known of what"));
        say!("prepage: the traces are not of the same: before: {before}; after: {after}");
    }
    if !diff.is_of_equal_time {
        let [before, after] = diff.durations_ns.map(|ns| ns as f64 / 1e9);
        say!("prepage: recorded {before:.1} s and {after:.1} s: counts and sums are of different times");
    }
    for (path, gaps) in [&args.before, &args.after].into_iter().zip(&diff.missing) {
        crate::missing::tell(gaps, path);
    }
    let unequal = diff.unequal_in(args.of);
    if !unequal.is_empty() && !args.allow_incomplete {
        bail!(match unequal[..] {
            ref gaps if gaps.iter().all(|gap| gap.is_of_costs()) => Remedied::new(
                "the costs of these traces cannot be compared",
                "--of count, record both in the same way while nobody else observes page faults, or --allow-incomplete"
            ),
            _ => Remedied::new(
                "these traces cannot be compared: one of them lacks faults that the other may have",
                "record both completely and in the same way, or --allow-incomplete"
            ),
        });
    }
    if args.threshold.is_some() {
        if !diff.is_of_equal_time && !args.allow_incomplete {
            bail!(Remedied::new(
                "the threshold cannot be checked: the traces are of different times",
                "record --duration with the same time for both, or --allow-incomplete"
            ));
        }
        [(&args.before, &before), (&args.after, &after)].into_iter().try_for_each(check_filter)?;
    }
    let worse = match (args.threshold, diff.percent(args.of)) {
        (None, _) => false,
        (Some(threshold), Some(percent)) => percent > threshold,
        (Some(_), None) => bail!(Remedied::new(
            format!("{}: not known for both traces, so the threshold cannot be checked", args.of.words()),
            "--of count, or record both with prepage record"
        )),
    };
    match print(args, &diff, worse) {
        // The verdict is known though nobody reads on.
        Err(error) if !crate::output::is_unread(&error) => Err(error),
        _ if worse => Ok(ExitCode::from(WORSE)),
        _ => Ok(ExitCode::SUCCESS),
    }
}

fn read(path: &Path, filter: Filter) -> Result<Report> {
    let options = Options { filter, slowest: 0, ..Options::default() };
    Ok(Report::read(&TraceFile::open(path)?, &options)?)
}

/// Refuses a filter by names that none of the faults of `report`, read from `path`, passes. To have no faults of a class is a
/// result; a name that is not there may be a mistake.
fn check_filter((path, report): (&PathBuf, &Report)) -> Result<()> {
    let of_all_classes = Filter { classes: Vec::new(), ..report.filter.clone() };
    let faults = report.faults_in_file;
    if report.total().tally.count == 0 && faults > 0 && read(path, of_all_classes)?.total().tally.count == 0 {
        let why =
            format!("none of its {faults} faults passes the filter, so the threshold cannot be checked");
        bail!(Remedied::new(
            format!("{}: {why}", path.display()),
            "prepage report --by file,comm,process, which shows what it has faults of"
        ));
    }
    Ok(())
}

fn print(args: &Args, diff: &Diff, worse: bool) -> Result<()> {
    let mut out = BufWriter::new(crate::output::text());
    if args.json {
        print_json(&diff.json(args.of, args.threshold))?;
    } else {
        diff.print(args.of, args.top, crate::output::width(), &mut out)?;
        let limit = match args.threshold {
            Some(threshold) if worse => format!(", more than the {threshold} % allowed"),
            Some(threshold) => format!(", within the {threshold} % allowed"),
            None => String::new(),
        };
        writeln!(out, "\n{}{limit}", diff.verdict(args.of))?;
    }
    Ok(out.flush()?)
}

fn finite(text: &str) -> Result<f64, String> {
    let number = text.parse().map_err(|_| "not a number")?;
    if f64::is_finite(number) { Ok(number) } else { Err("not a finite number".into()) }
}
