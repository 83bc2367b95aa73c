//! `prepage bench linux`: Linux's policies as simulated, against the kernel.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use prepage_bench::linux::{Compared, Volume, on_own_volume};
use serde_json::json;

use crate::output::print_json;
use crate::remedy::{Remedied, Try};
use crate::table::table;

/// Options of `prepage bench linux`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Directory for the image (64 MiB) of the file system that is read
    #[arg(short, long, value_name = "DIR", default_value = "/var/tmp")]
    directory: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    let remedied = |what: String| Remedied::new(what, "as root, with util-linux and e2fsprogs installed");
    if let Some(mut volume) = Volume::inside().context("the volume cannot be used")? {
        return print(args, &volume.compare().context("faults cannot be counted")?);
    }
    let program: Vec<OsString> =
        std::iter::once(std::env::current_exe()?.into()).chain(std::env::args_os().skip(1)).collect();
    let status = on_own_volume(&args.directory, &program)
        .or_try(|| remedied(format!("a volume cannot be made in {}", args.directory.display())))?;
    if !status.success() {
        bail!(remedied(format!("the volume could not be mounted, or its faults not be counted ({status})")));
    }
    Ok(ExitCode::SUCCESS)
}

fn print(args: &Args, all: &[Compared]) -> Result<ExitCode> {
    let mut out = crate::output::text();
    if args.json {
        let one = |one: &Compared| {
            json!({ "pattern": one.pattern, "read_ahead_kib": one.read_ahead_kib, "executable": one.executable,
                "kernel": { "disk": one.kernel.disk, "cached": one.kernel.cached },
                "model": { "disk": one.model.disk, "cached": one.model.cached } })
        };
        let report = json!({ "schema_version": 1, "patterns": all.iter().map(one).collect::<Vec<_>>() });
        print_json(&report)?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(out, "disk faults and others on 4096 cold pages: the kernel's, the simulator's\n")?;
    let headings =
        ["KiB", "mapping", "pattern", "kernel disk", "model disk", "±%", "kernel cached", "model cached"];
    let mut table = table(&headings, &[0, 3, 4, 5, 6, 7]);
    for one in all {
        table.add_row([
            one.read_ahead_kib.to_string(),
            if one.executable { "executable" } else { "data" }.to_owned(),
            one.pattern.to_owned(),
            one.kernel.disk.to_string(),
            one.model.disk.to_string(),
            format!("{:+.1}", one.off_percent()),
            one.kernel.cached.to_string(),
            one.model.cached.to_string(),
        ]);
    }
    let off = all.iter().filter(|one| one.off_percent().abs() > 2.0).count();
    writeln!(
        out,
        "{}\n\n{off} of {} are off by more than 2 %",
        table.lines(crate::output::width()),
        all.len()
    )?;
    Ok(ExitCode::SUCCESS)
}
