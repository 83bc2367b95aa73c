//! `prepage calibrate`: measures the device that programs lie on.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use prepage_core::DeviceFigures;
use prepage_display::number::age;
use prepage_prefetch::calibrate::cache::Cache;
use prepage_prefetch::calibrate::device::Device;
use prepage_prefetch::calibrate::{Calibration, calibrate};
use prepage_profiles::chain;
use prepage_profiles::{Layer, Stores};
use prepage_sys::clock;

use crate::output::print_json;
use crate::remedy::Remedied;
use crate::table::table;

/// Where programs lie on most systems.
const PROGRAMS: &str = "/usr";

/// Options of `prepage calibrate`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A directory on the device (a file of 64 MB is written there for a moment), or a large file to read [default: the
    /// device of /usr]
    path: Option<PathBuf>,
    /// Measure again, even if the device was measured before
    #[arg(long, conflicts_with = "show")]
    force: bool,
    /// Show what was measured before, and measure nothing
    #[arg(long)]
    show: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    let path = args.path.clone().unwrap_or_else(|| PROGRAMS.into());
    let device = Device::under(&path).with_context(|| path.display().to_string())?;
    let cache = Cache::of_user();
    let known = cache.as_ref().and_then(|cache| cache.load(&device));
    let calibration = match known {
        Some(known) if !args.force => {
            if !args.show {
                say!("prepage: measured before; --force measures again");
            }
            known
        }
        None if args.show => bail!(unmeasured(&device, &path)),
        _ => measure(&path, &device, cache.as_ref())?,
    };
    if args.json {
        json(&path, &device, &calibration)
    } else {
        print(&path, &device, &calibration, &mut crate::output::text())
    }?;
    Ok(ExitCode::SUCCESS)
}

/// That `device`, which holds `path`, was not measured yet.
pub fn unmeasured(device: &Device, path: &Path) -> Remedied {
    let what = format!("no measurement of this device yet: {}", device.identity);
    Remedied::new(what, format!("prepage calibrate {}", path.display()))
}

fn measure(path: &Path, device: &Device, cache: Option<&Cache>) -> Result<Calibration> {
    let place = writable_place(path, device);
    let calibration = calibrate(place.as_deref().unwrap_or(path))?;
    // The figures are worth printing even where they cannot be kept.
    match cache.map(|cache| cache.store(device, &calibration)) {
        Some(Ok(())) if rustix::process::geteuid().is_root() => {}
        Some(Ok(())) => {
            say!("prepage: kept for the programs that you start; the service goes by what root has measured");
            say!("  try: sudo prepage calibrate {}", path.display());
        }
        Some(Err(error)) => {
            say!("prepage: not kept: {}", chain(&error));
            say!("  try: {}", error.remedy());
        }
        None => say!(
            "prepage: not kept: PREPAGE_STORE is not set, and neither XDG_STATE_HOME nor HOME is an absolute path"
        ),
    }
    Ok(calibration)
}

/// A directory on the same device that this user may write to, where `path` is one that they may not.
fn writable_place(path: &Path, device: &Device) -> Option<PathBuf> {
    use rustix::fs::{Access, AtFlags, CWD};
    let writable = |path: &Path| rustix::fs::accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS).is_ok();
    if !path.is_dir() || writable(path) {
        return None;
    }
    let store =
        Stores::of_user().ok().and_then(|stores| stores.directory(Layer::User).map(ToOwned::to_owned).ok());
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let places = [store, home, Some("/var/tmp".into()), Some("/tmp".into())];
    places
        .into_iter()
        .flatten()
        .find(|place| writable(place) && Device::under(place).is_ok_and(|there| there == *device))
}

fn print(
    path: &Path,
    device: &Device,
    calibration: &Calibration,
    out: &mut impl Write,
) -> std::io::Result<()> {
    let DeviceFigures { latency_ns, bytes_per_second, depth, operations_per_second } = calibration.figures;
    writeln!(out, "{}: {} ({})", path.display(), device.identity, device.name())?;
    let mut facts = table(&["", "", ""], &[1]);
    let micros = |ns: u64| format!("{:.0} µs", ns as f64 / 1e3);
    let [median, p99] = [latency_ns, calibration.latency_p99_ns].map(micros);
    let mean =
        calibration.rates.first().map_or("-".into(), |&(_, alone)| micros(1_000_000_000 / alone.max(1)));
    let megabytes = format!("{:.0} MB/s", bytes_per_second as f64 / 1e6);
    facts.add_row([
        "latency",
        &median,
        &format!("median of single random reads of 4 KiB; mean {mean}; 99 of 100 within {p99}"),
    ]);
    facts.add_row(["bandwidth", &megabytes, "large reads, 8 at once"]);
    let depth = depth.to_string();
    match operations_per_second {
        Some(most) => {
            facts.add_row(["depth", &depth, "more reads at once than this gain little"]);
            facts.add_row(["reads", &format!("{most}/s"), "random reads of 4 KiB at most"]);
        }
        None => facts.add_row(["depth", &depth, "as many reads at once as were tried: more may gain"]),
    };
    let text = facts.lines(crate::output::width());
    writeln!(out, "{}\n", text.split_once('\n').map_or(text.as_str(), |(_, rows)| rows))?;
    let headings: Vec<String> = calibration.rates.iter().map(|(depth, _)| depth.to_string()).collect();
    let headings: Vec<&str> = std::iter::once("at once").chain(headings.iter().map(String::as_str)).collect();
    let numbers: Vec<usize> = (1..headings.len()).collect();
    let mut rates = table(&headings, &numbers);
    let values = calibration.rates.iter().map(|(_, rate)| rate.to_string());
    rates.add_row(std::iter::once("reads/s".to_owned()).chain(values));
    writeln!(
        out,
        "{}\n\nmeasured {} ago",
        rates.lines(crate::output::width()),
        age(clock::unix_s().saturating_sub(calibration.measured_unix_s))
    )
}

fn json(path: &Path, device: &Device, calibration: &Calibration) -> std::io::Result<()> {
    let rate = |&(depth, rate): &(u32, u64)| serde_json::json!({ "depth": depth, "reads_per_second": rate });
    let report = serde_json::json!({
        "schema_version": 1,
        "path": path.display().to_string(),
        "device": device.name(),
        "identity": device.identity,
        "latency_ns": calibration.figures.latency_ns,
        "latency_p99_ns": calibration.latency_p99_ns,
        "bytes_per_second": calibration.figures.bytes_per_second,
        "depth": calibration.figures.depth,
        "operations_per_second": calibration.figures.operations_per_second,
        "rates": calibration.rates.iter().map(rate).collect::<Vec<_>>(),
        "measured_unix_s": calibration.measured_unix_s,
    });
    print_json(&report)
}
