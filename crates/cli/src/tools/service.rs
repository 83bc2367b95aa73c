//! `prepage service`: has systemd run the resident prefetcher, or takes that back.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, ExitCode};

use anyhow::{Context, Result, bail};

const UNIT_NAME: &str = "prepage.service";
const BOOT_NAME: &str = "prepage-boot.service";
const SESSION_NAME: &str = "prepage-session@.service";
const UNITS: [(&str, &str); 3] = [
    (UNIT_NAME, include_str!("../../../service/units/prepage.service")),
    (BOOT_NAME, include_str!("../../../service/units/prepage-boot.service")),
    (SESSION_NAME, include_str!("../../../service/units/prepage-session@.service")),
];
/// What links here is started with each user's first session.
const WANTED_BY_SESSIONS: &str = "user@.service.wants";

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

impl Place {
    fn session_link(&self) -> PathBuf {
        self.units.join(WANTED_BY_SESSIONS).join(SESSION_NAME)
    }
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
    for (name, unit) in UNITS {
        let unit = unit.replace("@PREPAGED@", &prepaged.to_string_lossy());
        let path = args.place.units.join(name);
        fs::write(&path, unit).map_err(|error| {
            let refused = error.kind() == io::ErrorKind::PermissionDenied;
            let remedy = if refused { "\n  try: as root" } else { "" };
            anyhow::Error::new(error).context(format!("cannot write {}{remedy}", path.display()))
        })?;
        list(&path, "");
    }
    let link = args.place.session_link();
    fs::create_dir_all(link.parent().expect("it has one"))?;
    match symlink(Path::new("..").join(SESSION_NAME), &link) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("cannot write {}", link.display()));
        }
        _ => {}
    }
    if args.no_start {
        return Ok(ExitCode::SUCCESS);
    }
    systemctl(&["daemon-reload"])?;
    systemctl(&["enable", "--now", UNIT_NAME])?;
    // It has something to do from the next boot on.
    systemctl(&["enable", BOOT_NAME])?;
    Ok(ExitCode::SUCCESS)
}

/// Prints what was done to `path`. Where nobody reads, the rest is done all the same.
fn list(path: &Path, done: &str) {
    let _ = writeln!(io::stdout(), "{done}{}", path.display());
}

fn remove(place: &Place) -> Result<ExitCode> {
    let path = place.units.join(UNIT_NAME);
    if !path.exists() {
        bail!("there is no {}", path.display());
    }
    // What does not run need not be stopped.
    let stopped = systemctl(&["disable", "--now", UNIT_NAME, BOOT_NAME]);
    let units = UNITS.map(|(name, _)| place.units.join(name));
    for path in units.iter().chain([&place.session_link()]) {
        match fs::remove_file(path) {
            Ok(()) => list(path, "removed "),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("cannot remove {}", path.display())),
        }
    }
    // Others may want something there.
    let _ = fs::remove_dir(place.units.join(WANTED_BY_SESSIONS));
    let reloaded = systemctl(&["daemon-reload"]);
    if let Err(error) = stopped.and(reloaded) {
        say!("prepage: {error:#}");
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
    found.with_context(|| format!("no `prepaged` next to {}\n  try: make install", me.display()))
}
