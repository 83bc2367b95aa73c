//! `prepage measure`: what prefetching gains for a command, on this machine.

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use prepage_bench::measure::{
    Comparison, Figures, MeasureError, Measurement, Starts, measure, medians, planned_bytes, untouched_bytes,
};
use prepage_bench::modes::silently;
use prepage_bench::statistics::{Estimate, median_ratio};
use prepage_core::profile::Profile;
use prepage_core::profile::observation::{Coverage, Observation};
use prepage_core::quantity::counted;
use prepage_display::number::known;
use prepage_prefetch::config::Config;
use prepage_prefetch::launch;
use prepage_prefetch::learn::learn;
use prepage_prefetch::persist::{Shown, persist};
use prepage_profiles::key::readable;
use prepage_profiles::{Layer, ProgramKey, Stores};
use prepage_residency::cold::Chill;
use prepage_sys::readahead;
use serde::Serialize;

use crate::child::not_started;
use crate::output::print_json;
use crate::read_ahead::{check_read_ahead, read_ahead_kib, set_read_ahead};
use crate::remedy::Remedied;
use crate::starter::starter;
use crate::stores::stores;
use crate::table::{Table, table};

/// Options of `prepage measure`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Starts of each kind
    #[arg(short = 'n', long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Measure warm starts only
    #[arg(long)]
    warm: bool,
    /// Read-ahead of all disks during the measurement, as in 128k; restored afterwards (root) [default: as found]
    #[arg(long, value_name = "SIZE", value_parser = read_ahead_kib)]
    read_ahead: Option<u64>,
    /// Also measure cold starts in another way: by a shell command in which "$@" stands for the command, in the environment as it is
    /// (PREPAGE=off in it keeps prepage from serving them); repeatable
    #[arg(long, value_name = "NAME=SHELL", value_parser = other_way, conflicts_with = "warm")]
    also: Vec<(String, String)>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The command to measure; its output is compared between starts, and not shown
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    measured(args).or_else(|error| match error.downcast_ref() {
        Some(MeasureError::AskedToEnd { signal }) => {
            if std::io::stderr().is_terminal() {
                crate::say::write(format_args!("\r\x1b[K"));
            }
            Ok(ExitCode::from(128 + *signal as u8))
        }
        _ => Err(error),
    })
}

fn measured(args: &Args) -> Result<ExitCode> {
    let not_started = |error| not_started(&args.command, error);
    let key = ProgramKey::of(&args.command).map_err(not_started)?;
    if !launch::wants(&Config::load(), &args.command).map_err(not_started)? {
        let role = &key.role;
        let what =
            format!("{role}: excluded or switched off by the configuration: nothing would be prefetched");
        bail!(Remedied::new(what, "prepage config"));
    }
    // What would fail later fails before the command is run.
    if args.read_ahead.is_some() {
        check_read_ahead()?;
    }
    let stores = stores()?;
    let profile = match stores.find(&key)? {
        Some(found) => found.profile,
        None => learn_first(args, &stores, &key)?,
    };
    let chill = Chill::best();
    if let Some(warm) = chill.leaves_warm().filter(|_| !args.warm) {
        say!("prepage: {warm}");
    }
    let measurement = Measurement {
        command: args.command.clone(),
        starter: starter()?,
        rounds: args.rounds,
        cold: !args.warm,
        chill,
        others: args
            .also
            .iter()
            .map(|(name, shell)| (name.clone(), by_shell(shell, &args.command)))
            .collect(),
    };
    let set = match args.read_ahead {
        Some(kib) => Some(set_read_ahead(kib)?),
        None => None,
    };
    let read_ahead_kib = readahead::in_force();
    let figures = measure(&measurement, &profile, &mut progress());
    drop(set);
    let figures = figures?;
    // What was prefetched is what the store holds now; what was touched, one more observed run shows.
    let profile = stores.find(&key)?.map_or(profile, |found| found.profile);
    let untouched = if !args.warm { untouched(args, &profile)? } else { None };
    let bytes = (planned_bytes(&profile), untouched);
    let report = Report::new(args, &key, chill, read_ahead_kib, &figures, bytes, measurement.starts());
    let mut out = crate::output::text();
    if args.json {
        print_json(&report)?;
    } else {
        report.print(&mut out)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Says on a terminal which start comes next, in a line that is written over and in the end wiped.
fn progress() -> impl FnMut(u32, u32) {
    let is_shown = std::io::stderr().is_terminal();
    move |start, starts| {
        if is_shown {
            crate::say::write(format_args!("\r\x1b[Kprepage: start {start} of {starts}"));
            if start == starts {
                crate::say::write(format_args!("\r\x1b[K"));
            }
        }
    }
}

fn other_way(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, shell)) if !name.is_empty() && !shell.is_empty() => Ok((name.into(), shell.into())),
        _ => Err("wanted: NAME=SHELL, say 'whole=cat /usr/bin/emacs >/dev/null; exec \"$@\"'".into()),
    }
}

fn by_shell(shell: &str, command: &[OsString]) -> Vec<OsString> {
    let mut argv: Vec<OsString> = ["/bin/sh", "-c", shell, "sh"].map(OsString::from).to_vec();
    argv.extend_from_slice(command);
    argv
}

/// Bytes that a prefetch by `known` brings in too much, by one more observed run, and what they are of the true number. A failure is no reason to
/// lose the figures.
fn untouched(args: &Args, known: &Profile) -> Result<Option<(u64, &'static str)>> {
    Ok(match observed(args) {
        Ok(touched) => {
            let mut profile = Profile::default();
            profile.observe(&touched);
            let bound = match touched.coverage {
                Coverage::Exact => "exactly",
                // Neighbours of the pages that were used count as used.
                Coverage::Superset => "at least",
                Coverage::Partial => "at most",
            };
            Some((untouched_bytes(known, &profile), bound))
        }
        Err(error) if error.is::<MeasureError>() => return Err(error),
        Err(error) => {
            say!("prepage: what was never touched could not be found out: {error:#}");
            None
        }
    })
}

/// What one run of the command uses.
fn observed(args: &Args) -> Result<Observation> {
    let learned = silently(|| learn(&args.command))??;
    match learned.asked_to_end {
        Some(signal) => bail!(MeasureError::AskedToEnd { signal }),
        None => Ok(learned.observation),
    }
}

fn learn_first(args: &Args, stores: &Stores, key: &ProgramKey) -> Result<Profile> {
    stores.room(Layer::User)?;
    say!("prepage: no profile of {} yet: learning it first", key.role);
    let shown = Shown { observation: Some(observed(args)?), ..Shown::default() };
    persist(stores, key, Layer::User, &shown)?;
    let found = stores.find(key)?.context("the command touched no file that could be prefetched")?;
    Ok(found.profile)
}

#[derive(Serialize)]
struct Report<'a> {
    schema_version: u32,
    command: Vec<String>,
    role: &'a str,
    kernel: String,
    processors: usize,
    read_ahead_kib: Vec<u64>,
    /// How the caches were emptied before cold starts.
    chill: Option<&'static str>,
    resident_share_after_chill: Option<f64>,
    cold: Option<Pair<'a>>,
    others: Vec<Other<'a>>,
    warm: Pair<'a>,
    planned_bytes: u64,
    untouched_bytes: Option<u64>,
    /// Whether that is so exactly, at least or at most.
    untouched_bound: Option<&'static str>,
    starts: u32,
    differing_starts: u32,
    /// The exit status of the first plain start, 128 and the signal where one killed it.
    exit_status: i32,
    /// Starts without and with prefetch whose exit status was not 0.
    failed_starts: u32,
}

#[derive(Serialize)]
struct Pair<'a> {
    #[serde(flatten)]
    starts: &'a Comparison,
    #[serde(flatten)]
    ratio: Estimate,
}

/// Another way to start the program, against a plain cold start.
#[derive(Serialize)]
struct Other<'a> {
    name: &'a str,
    #[serde(flatten)]
    starts: &'a Starts,
    #[serde(flatten)]
    ratio: Estimate,
    /// Starts that did not end as the command does.
    failed_starts: usize,
}

impl<'a> Report<'a> {
    fn new(
        args: &Args,
        key: &'a ProgramKey,
        chill: Chill,
        read_ahead_kib: Vec<u64>,
        figures: &'a Figures,
        (planned_bytes, untouched): (u64, Option<(u64, &'static str)>),
        starts: u32,
    ) -> Self {
        let others = figures.cold.iter().flat_map(|cold| {
            figures.others.iter().map(|(name, starts)| {
                let ratio = median_ratio(&starts.wall_ms, &cold.plain.wall_ms);
                let failed = starts.exit_status.iter().filter(|status| **status != figures.exit_status);
                Other { name, starts, ratio, failed_starts: failed.count() }
            })
        });
        let pair = |starts: &'a Comparison| Pair { starts, ratio: starts.ratio() };
        Self {
            schema_version: 1,
            command: readable(&args.command),
            role: &key.role,
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            read_ahead_kib,
            chill: figures.cold.is_some().then(|| chill.in_words()),
            resident_share_after_chill: figures.resident_share,
            cold: figures.cold.as_ref().map(pair),
            others: others.collect(),
            warm: pair(&figures.warm),
            planned_bytes,
            untouched_bytes: untouched.map(|(bytes, _)| bytes),
            untouched_bound: untouched.map(|(_, bound)| bound),
            starts,
            differing_starts: figures.differing_starts,
            exit_status: figures.exit_status,
            failed_starts: figures.failed_starts,
        }
    }

    fn print(&self, out: &mut impl Write) -> std::io::Result<()> {
        let read_ahead: Vec<String> = self.read_ahead_kib.iter().map(u64::to_string).collect();
        writeln!(out, "{}", self.command.join(" "))?;
        writeln!(
            out,
            "Linux {}, {}, read-ahead {} KiB; medians of {} each{}{}",
            self.kernel,
            counted(self.processors, "CPU"),
            read_ahead.join("/"),
            counted(self.warm.starts.plain.wall_ms.len(), "start"),
            self.chill.map_or_else(String::new, |chill| format!("; {chill}")),
            match self.resident_share_after_chill {
                Some(share) => format!(", {:.0} % of its own pages stay in memory", share * 100.0),
                None => String::new(),
            }
        )?;
        writeln!(out, "{}", self.table().lines(crate::output::width()))?;
        let figures = |ratio: &Estimate| format!("{:.2} (95 %: {})", ratio.value, ratio.interval(2));
        if let Some(cold) = &self.cold {
            writeln!(out, "prefetched / cold: {}", figures(&cold.ratio))?;
        }
        writeln!(out, "prefetched / plain, warm: {}", figures(&self.warm.ratio))?;
        for other in &self.others {
            let (name, statuses) = (other.name, &other.starts.exit_status);
            match statuses.iter().find(|status| **status != self.exit_status) {
                None => writeln!(out, "{name} / cold: {}", figures(&other.ratio))?,
                Some(status) => writeln!(
                    out,
                    "{name}: no figures, for it did not end as the command does in {} of {}: exit status {status}",
                    other.failed_starts,
                    counted(statuses.len(), "start")
                )?,
            }
        }
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        match self.untouched_bytes.zip(self.untouched_bound) {
            Some((bytes, bound)) => writeln!(
                out,
                "prefetched: {:.1} MB, of which {bound} {:.1} MB were never touched",
                megabytes(self.planned_bytes),
                megabytes(bytes)
            )?,
            None => writeln!(out, "prefetched: {:.1} MB", megabytes(self.planned_bytes))?,
        }
        match self.differing_starts {
            0 => writeln!(out, "output and exit status: the same in all {} starts", self.starts)?,
            some => writeln!(out, "output or exit status: different in {some} of {} starts", self.starts)?,
        }
        match self.failed_starts {
            0 => Ok(()),
            some => {
                let (starts, status) = (counted(some as usize, "start"), self.exit_status);
                writeln!(out, "the command failed in {starts}; exit status of the first: {status}")
            }
        }
    }

    fn table(&self) -> Table {
        let mut table = table(&["", "wall ms", "disk faults", "read MB"], &[1, 2, 3]);
        let mut row = |name: &str, starts: &Starts| {
            let (wall_ms, disk_faults, read_bytes) = medians(starts);
            let read_mb = known(read_bytes, |bytes| format!("{:.1}", bytes / 1e6));
            let cells = [format!("{wall_ms:.1}"), format!("{disk_faults:.0}"), read_mb];
            table.add_row([vec![name.to_owned()], cells.to_vec()].concat());
        };
        if let Some(cold) = &self.cold {
            row("cold", &cold.starts.plain);
            row("cold, prefetched", &cold.starts.prefetched);
        }
        for other in self.others.iter().filter(|other| other.failed_starts == 0) {
            row(&format!("cold, {}", other.name), other.starts);
        }
        row("warm", &self.warm.starts.plain);
        row("warm, prefetched", &self.warm.starts.prefetched);
        table
    }
}
