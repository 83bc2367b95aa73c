//! `prepage service`: has systemd run the resident prefetcher, or takes that back.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, ExitCode};

use anyhow::{Context, Result, bail};

const UNIT: &str = include_str!("../../../service/units/prepage.service");
const UNIT_NAME: &str = "prepage.service";

/// What to do.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Write the unit, start the service and have it started at boot (root)
    Install(InstallArgs),
    /// Stop the service and remove the unit; what was learned stays (root)
    Remove(Place),
}

/// Options of `prepage service install`.
#[derive(Debug, clap::Args)]
pub struct InstallArgs {
    /// Write the unit, and start nothing
    #[arg(long)]
    no_start: bool,
    #[command(flatten)]
    place: Place,
}

/// Where units lie.
#[derive(Debug, clap::Args)]
pub struct Place {
    /// The directory of units
    #[arg(long, value_name = "DIR", default_value = "/etc/systemd/system")]
    units: PathBuf,
}

/// Runs the command.
pub fn run(command: &Command) -> Result<ExitCode> {
    match command {
        Command::Install(args) => install(args),
        Command::Remove(place) => remove(place),
    }
}

fn install(args: &InstallArgs) -> Result<ExitCode> {
    let prepaged = prepaged()?;
    let unit = UNIT.replace("@PREPAGED@", &prepaged.to_string_lossy());
    let path = args.place.units.join(UNIT_NAME);
    fs::write(&path, unit).with_context(|| format!("cannot write {}\n  try: as root", path.display()))?;
    println!("{}", path.display());
    if args.no_start {
        return Ok(ExitCode::SUCCESS);
    }
    systemctl(&["daemon-reload"])?;
    systemctl(&["enable", "--now", UNIT_NAME])?;
    Ok(ExitCode::SUCCESS)
}

fn remove(place: &Place) -> Result<ExitCode> {
    let path = place.units.join(UNIT_NAME);
    if !path.exists() {
        bail!("there is no {}", path.display());
    }
    // What does not run need not be stopped.
    let stopped = systemctl(&["disable", "--now", UNIT_NAME]);
    match fs::remove_file(&path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("cannot remove {}", path.display())),
    }
    println!("removed {}", path.display());
    let reloaded = systemctl(&["daemon-reload"]);
    if let Err(error) = stopped.and(reloaded) {
        eprintln!("prepage: {error:#}");
    }
    Ok(ExitCode::SUCCESS)
}

fn systemctl(args: &[&str]) -> Result<()> {
    const TRY: &str = "try: where systemd does not run, have your init run `prepaged` in the foreground";
    let status = Process::new("systemctl").args(args).status();
    let status = status.with_context(|| format!("cannot run systemctl\n  {TRY}"))?;
    if !status.success() {
        bail!("systemctl {} failed ({status})\n  {TRY}", args.join(" "));
    }
    Ok(())
}

/// Beside this binary, or where distributions put what users do not call.
fn prepaged() -> Result<PathBuf> {
    let me = std::env::current_exe().context("/proc is not mounted")?;
    let directory = me.parent().unwrap_or(Path::new("/"));
    let places = [directory.join("prepaged"), directory.join("../../sbin/prepaged")];
    let found = places.iter().find(|place| place.is_file()).and_then(|place| place.canonicalize().ok());
    found.with_context(|| format!("no `prepaged` beside {}\n  try: make install", me.display()))
}
