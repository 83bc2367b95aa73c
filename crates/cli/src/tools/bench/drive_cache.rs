//! `prepage bench drive-cache`: whether the drive gets faster for what it has read, and whether it reads ahead.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use prepage_bench::Subject;
use prepage_bench::drive_cache::{FILE_BYTES_MIN, Pass, passes, read_ahead_verdict, sizes, verdict};
use prepage_core::PAGE_SIZE;
use serde_json::json;

use crate::output::print_json;
use crate::remedy::{Remedied, Try};
use crate::size::size;
use crate::table::table;

/// Options of `prepage bench drive-cache`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Size of the file: larger than the drive's cache
    #[arg(short, long, value_name = "SIZE", value_parser = file_size, default_value = "1G")]
    size: u64,
    /// Directory for the file, on the drive to be measured
    #[arg(short, long, value_name = "DIR", default_value = "/var/tmp")]
    directory: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The size of a file in which all reads find pages of their own.
fn file_size(text: &str) -> Result<u64, String> {
    let bytes = size(text)?;
    let too_short = || format!("the file has at least {} MiB", FILE_BYTES_MIN >> 20);
    if bytes < FILE_BYTES_MIN { Err(too_short()) } else { Ok(bytes) }
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    let file = Subject::create(&args.directory, args.size)?;
    let refused = || Remedied::new("direct reads", "--directory DIR on a disk's own file system");
    let passes = passes(file.path(), file.pages()).or_try(refused)?;
    let sizes = sizes(file.path(), file.pages()).or_try(refused)?;
    let mut out = crate::output::text();
    if args.json {
        let pass = |pass: &Pass| {
            json!({ "pass": pass.name, "reads": pass.latencies_us.len(), "p10_us": pass.quantile_us(0.1),
                "p50_us": pass.quantile_us(0.5), "p90_us": pass.quantile_us(0.9), "p50_us_by_tenths": pass.tenths_us() })
        };
        let size = |pass: &Pass| {
            json!({ "order": pass.name, "read_bytes": pass.read_pages * PAGE_SIZE, "reads": pass.latencies_us.len(),
                "p10_us": pass.quantile_us(0.1), "p50_us": pass.quantile_us(0.5), "p90_us": pass.quantile_us(0.9) })
        };
        let passes_json: Vec<_> = passes.iter().map(pass).collect();
        let sizes_json: Vec<_> = sizes.iter().map(size).collect();
        print_json(
            &json!({ "schema_version": 1, "file_bytes": args.size, "passes": passes_json, "verdict": verdict(&passes),
                "sizes": sizes_json, "read_ahead_verdict": read_ahead_verdict(&sizes) }),
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(
        out,
        "direct reads of 4 KiB in random order, µs; \"again\" are the same pages, in turns with \"other\", which nothing had read\n"
    )?;
    let mut of_passes =
        table(&["pass", "reads", "p10", "median", "p90", "medians of its tenths"], &[1, 2, 3, 4]);
    let quantiles = |pass: &Pass| [0.1, 0.5, 0.9].map(|q| format!("{:.1}", pass.quantile_us(q)));
    for pass in &passes {
        let tenths: Vec<String> = pass.tenths_us().iter().map(|us| format!("{us:.0}")).collect();
        let [low, middle, high] = quantiles(pass);
        of_passes.add_row([
            pass.name.to_owned(),
            pass.latencies_us.len().to_string(),
            low,
            middle,
            high,
            tenths.join(" "),
        ]);
    }
    writeln!(out, "{}\n\n{}\n", of_passes.lines(crate::output::width()), verdict(&passes))?;
    writeln!(out, "direct reads of other pages, each read once, in turns, µs\n")?;
    let mut of_sizes = table(&["reads of", "reads", "p10", "median", "p90", "MB/s"], &[1, 2, 3, 4, 5]);
    for pass in &sizes {
        let [low, middle, high] = quantiles(pass);
        of_sizes.add_row([
            format!("{} KiB {}", pass.read_pages * PAGE_SIZE / 1024, pass.name),
            pass.latencies_us.len().to_string(),
            low,
            middle,
            high,
            format!("{:.0}", pass.megabytes_a_second()),
        ]);
    }
    writeln!(out, "{}\n\n{}", of_sizes.lines(crate::output::width()), read_ahead_verdict(&sizes))?;
    Ok(ExitCode::SUCCESS)
}
