//! `prepage bench drive-cache`: whether the drive gets faster for what it has read.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use prepage_bench::Subject;
use prepage_bench::drive_cache::{Pass, passes, verdict};
use serde_json::json;

use crate::output::print_json;
use crate::remedy::{Remedied, Try};
use crate::size::size_above_zero;
use crate::table::table;

/// Options of `prepage bench drive-cache`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Size of the file: larger than the drive's cache
    #[arg(short, long, value_name = "SIZE", value_parser = size_above_zero, default_value = "1G")]
    size: u64,
    /// Directory for the file, on the drive to be measured
    #[arg(short, long, value_name = "DIR", default_value = "/var/tmp")]
    directory: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    let file = Subject::create(&args.directory, args.size)?;
    let refused = || Remedied::new("direct reads", "--directory DIR on a disk's own file system");
    let passes = passes(file.path(), file.pages()).or_try(refused)?;
    let mut out = crate::output::text();
    if args.json {
        let pass = |pass: &Pass| {
            json!({ "pass": pass.name, "reads": pass.latencies_us.len(), "p10_us": pass.quantile_us(0.1),
                "p50_us": pass.quantile_us(0.5), "p90_us": pass.quantile_us(0.9), "p50_us_by_tenths": pass.tenths_us() })
        };
        let passes_json: Vec<_> = passes.iter().map(pass).collect();
        print_json(
            &json!({ "schema_version": 1, "file_bytes": args.size, "passes": passes_json, "verdict": verdict(&passes) }),
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(
        out,
        "direct reads of 4 KiB in random order, µs; \"again\" are the same pages, in turns with \"other\", which nothing had read\n"
    )?;
    let mut table = table(&["pass", "reads", "p10", "median", "p90", "medians of its tenths"], &[1, 2, 3, 4]);
    for pass in &passes {
        let tenths: Vec<String> = pass.tenths_us().iter().map(|us| format!("{us:.0}")).collect();
        let quantiles = [0.1, 0.5, 0.9].map(|q| format!("{:.1}", pass.quantile_us(q)));
        let [low, middle, high] = quantiles;
        table.add_row([
            pass.name.to_owned(),
            pass.latencies_us.len().to_string(),
            low,
            middle,
            high,
            tenths.join(" "),
        ]);
    }
    writeln!(out, "{}\n\n{}", table.lines(crate::output::width()), verdict(&passes))?;
    Ok(ExitCode::SUCCESS)
}
