//! `prepage service`: has systemd run the resident prefetcher, or takes that back.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, ExitCode};

use anyhow::{Context, Result, bail, ensure};

use crate::output;
use crate::remedy::{self, Remedied, Try};
use crate::starter::check_is_of_root;

const UNIT_NAME: &str = "prepage.service";
const BOOT_NAME: &str = "prepage-boot.service";
const SESSION_NAME: &str = "prepage-session@.service";
const SESSION_INSTANCES: &str = "prepage-session@*.service";
const UNITS: [(&str, &str); 3] = [
    (UNIT_NAME, include_str!("../../../service/units/prepage.service")),
    (BOOT_NAME, include_str!("../../../service/units/prepage-boot.service")),
    (SESSION_NAME, include_str!("../../../service/units/prepage-session@.service")),
];
/// Where a unit names the service's program.
const PREPAGED: &str = "@PREPAGED@";
/// What each unit begins with that `install` writes. Others are an administrator's, masks among them (links to /dev/null).
const MARK: &str =
    "# Written by `prepage service install`, which replaces it; `prepage service remove` removes it.";
/// Where systemd looks for units (systemd.unit(5)).
const READ_BY_SYSTEMD: [&str; 5] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];
/// Is there where systemd runs.
const RUNNING_SYSTEMD: &str = "/run/systemd/system";
/// What links here is started with each user's first session.
const WANTED_BY_SESSIONS: &str = "user@.service.wants";

/// What the help of `prepage service` says behind the commands: a manual page of its own for the service, which the units name.
const HELP: &str = "\
The service:
  prepaged watches which programs are executed on the machine, reads the pages that their profiles list, and learns programs that have none. It reads what boots and logins need. While the machine is idle, it reads programs that it expects to be started. It runs as root, gives up most of root's rights, and ends on SIGTERM. SIGHUP has it read profiles and configuration again.

Files:
  /run/prepage/service   the socket that `prepage status` asks; GET /metrics on it answers in Prometheus' format
  /etc/prepage.conf      configuration of the machine: enabled, exclude, exclude-cgroup, hold-outs, learn, predict, store-max
  /var/lib/prepage       profiles of the machine, the launch log, and what the boot needs
  /etc/systemd/system    where `install` writes prepage.service, prepage-boot.service, prepage-session@.service, and a link to the last in user@.service.wants

See also:
  prepage(1), prepage-status(1), prepage-config(1); service.md and environment.md in /usr/share/doc/prepage or /usr/local/share/doc/prepage";

/// What to do.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = HELP)]
pub enum Command {
    /// Write three units, start the service, and enable it and the units of the boot and of sessions (root)
    Install(InstallArgs),
    /// Stop the service and remove what `install` of this copy of prepage wrote; what was learned stays (root)
    Remove(UnitDirectory),
}

/// Options of `prepage service install`.
#[derive(Debug, clap::Args)]
pub struct InstallArgs {
    /// Write the units and the link that starts the sessions' one, and have systemd do nothing
    #[arg(long)]
    no_start: bool,
    #[command(flatten)]
    place: UnitDirectory,
}

/// Where units lie.
#[derive(Debug, clap::Args)]
pub struct UnitDirectory {
    /// The directory of units
    #[arg(long, value_name = "DIR", default_value = "/etc/systemd/system")]
    units: PathBuf,
}

/// What lies where a unit of ours would lie.
#[derive(Clone, Copy, PartialEq, Eq)]
enum UnitFile {
    Nothing,
    /// Written by `install`.
    Own,
    Other,
}

impl UnitDirectory {
    fn found(&self, name: &str) -> UnitFile {
        let path = self.units.join(name);
        match path.symlink_metadata() {
            Err(_) => UnitFile::Nothing,
            Ok(file) if !file.is_file() => UnitFile::Other,
            Ok(_) if fs::read_to_string(&path).is_ok_and(|text| text.starts_with(MARK)) => UnitFile::Own,
            Ok(_) => UnitFile::Other,
        }
    }

    /// The program that the unit `name` starts, where `install` writes it; in a unit of another version, the word that is called like it.
    fn program(&self, name: &str) -> Option<PathBuf> {
        let unit = fs::read_to_string(self.units.join(name)).ok()?;
        let (_, template) = UNITS.iter().find(|(one, _)| *one == name)?;
        let (before, _) = template.lines().find_map(|line| line.split_once(PREPAGED))?;
        let own = unit.lines().find_map(|line| unquoted(line.strip_prefix(before)?));
        own.or_else(|| {
            let started = unit.lines().filter_map(|line| line.strip_prefix("ExecStart="));
            let words = started.flat_map(|command| command.split([' ', '"', ':', '-']));
            words.map(PathBuf::from).find(|word| word.ends_with("prepaged"))
        })
    }

    /// Whether systemd reads the units that lie here.
    fn is_read(&self) -> bool {
        READ_BY_SYSTEMD.iter().any(|one| self.is(Path::new(one)))
    }

    fn is(&self, directory: &Path) -> bool {
        directory.canonicalize().ok() == self.units.canonicalize().ok()
    }

    /// The unit `name` of another directory, a package's for example: systemd reads it once the one here is removed.
    fn below(&self, name: &str) -> Option<PathBuf> {
        let others = READ_BY_SYSTEMD.iter().map(Path::new).filter(|one| self.is_read() && !self.is(one));
        others.map(|one| one.join(name)).find(|path| path.is_file())
    }

    fn session_link(&self) -> PathBuf {
        self.units.join(WANTED_BY_SESSIONS).join(SESSION_NAME)
    }

    /// What that link is to.
    fn session_target() -> PathBuf {
        Path::new("..").join(SESSION_NAME)
    }

    /// Has systemd do something, where it reads the units that lie here.
    fn systemctl(&self, args: &[&str]) -> Result<()> {
        if self.is_read() { systemctl(args) } else { Ok(()) }
    }
}

/// Whether systemd has a unit of the service, whoever wrote it.
pub fn is_installed() -> bool {
    READ_BY_SYSTEMD.iter().any(|directory| Path::new(directory).join(UNIT_NAME).is_file())
}

/// Runs the command.
pub fn run(command: &Command) -> Result<ExitCode> {
    match command {
        Command::Install(args) => install(args),
        Command::Remove(place) => remove(place),
    }
}

fn install(args: &InstallArgs) -> Result<ExitCode> {
    let (place, prepaged) = (&args.place, prepaged()?);
    // Units that systemd does not read, and is not told of, may be for another machine.
    if place.is_read() || !args.no_start {
        check_is_of_root(&prepaged)?;
    }
    // Where `make install` puts documents for this binary.
    let documents =
        prepaged.parent().map(|bin| bin.join("../share/doc")).and_then(|path| path.canonicalize().ok());
    let prepaged = quoted(&prepaged.to_string_lossy());
    if place.found(UNIT_NAME) == UnitFile::Other {
        let path = place.units.join(UNIT_NAME);
        let what = format!("{} was not written by `prepage service install`", path.display());
        bail!(Remedied::new(what, format!("systemctl unmask {UNIT_NAME} where it is masked, else rm")));
    }
    let mut written = Vec::new();
    for (name, unit) in UNITS {
        let path = place.units.join(name);
        if place.found(name) == UnitFile::Other {
            say!(
                "prepage: {} was not written by `prepage service install`, and stays as it is",
                path.display()
            );
            continue;
        }
        let mut unit = format!("{MARK}\n{}", unit.replace(PREPAGED, &prepaged));
        if let Some(documents) =
            documents.as_deref().and_then(Path::to_str).filter(|path| is_plain(path) && !path.contains('%'))
        {
            unit = unit.replace("/usr/share/doc", documents);
        }
        output::replace(&path, |file| file.write_all(unit.as_bytes())).map_err(|error| {
            let reason = error.downcast_ref::<io::Error>().map(io::Error::kind);
            match reason {
                Some(io::ErrorKind::PermissionDenied) => {
                    Remedied::new("cannot install", "sudo prepage service install").because(error)
                }
                _ => error,
            }
        })?;
        list(&path, "");
        written.push(name);
    }
    if written.contains(&SESSION_NAME) {
        let link = place.session_link();
        let cannot_write = || format!("cannot write {}", link.display());
        fs::create_dir_all(link.parent().expect("it has one")).with_context(cannot_write)?;
        match symlink(UnitDirectory::session_target(), &link) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(error).with_context(cannot_write);
            }
            _ => {}
        }
        // Another's stays as it is.
        if fs::read_link(&link).is_ok_and(|target| target == UnitDirectory::session_target()) {
            list(&link, "");
        }
    }
    if args.no_start {
        return Ok(ExitCode::SUCCESS);
    }
    start(place, written.contains(&BOOT_NAME)).or_try(|| {
        let what = "what is listed is written, but systemd does not start the service";
        let remedy = "prepage service remove takes it back; where systemd does not run: --no-start, and have your init run `prepaged` in the foreground";
        Remedied::new(what, remedy)
    })?;
    Ok(ExitCode::SUCCESS)
}

fn start(place: &UnitDirectory, with_boot: bool) -> Result<()> {
    place.systemctl(&["daemon-reload"])?;
    place.systemctl(&["enable", UNIT_NAME])?;
    // One that runs already is that of an earlier version.
    place.systemctl(&["restart", UNIT_NAME])?;
    // It has something to do from the next boot on.
    if with_boot { place.systemctl(&["enable", BOOT_NAME]) } else { Ok(()) }
}

/// Prints what was done to `path`. Where nobody reads, the rest is done all the same.
fn list(path: &Path, done: &str) {
    let _ = writeln!(crate::output::text(), "{done}{}", path.display());
}

fn remove(place: &UnitDirectory) -> Result<ExitCode> {
    let (own, of_others) = own_and_of_others(place);
    let tell = |(name, program): &(&str, PathBuf)| {
        format!(
            "{} starts {}, of another copy of prepage",
            place.units.join(name).display(),
            program.display()
        )
    };
    if own.is_empty() {
        if let Some(other) = of_others.first() {
            let remedy = format!("{} service remove", other.1.with_file_name("prepage").display());
            bail!(Remedied::new(format!("{}, and stays", tell(other)), remedy));
        }
        bail!("{} has no unit that `prepage service install` wrote", place.units.display());
    }
    for other in &of_others {
        say!("prepage: {}, and stays", tell(other));
    }
    // What systemd goes on with: what enables those enables these, too.
    let below: Vec<(&str, PathBuf)> =
        own.iter().filter_map(|name| Some((*name, place.below(name)?))).collect();
    let stays = |name: &str| below.iter().any(|(one, _)| *one == name);
    // What does not run need not be stopped. A template has no instance of its own: those of all users are stopped.
    let started: Vec<&str> =
        own.iter().copied().filter(|name| *name != SESSION_NAME && !stays(name)).collect();
    // Where systemd does not run (sd_booted(3)), nothing does that would have to be stopped.
    let runs = Path::new(RUNNING_SYSTEMD).is_dir();
    let disable: &[&str] = if runs { &["disable", "--now"] } else { &["disable"] };
    let stopped = match started.is_empty() {
        true => Ok(()),
        false => place.systemctl(&[disable, &started].concat()),
    };
    let stopped = match own.contains(&SESSION_NAME) {
        true if runs => stopped.and(place.systemctl(&["stop", SESSION_INSTANCES])),
        _ => stopped,
    };
    let link = place.session_link();
    let is_own = fs::read_link(&link).is_ok_and(|target| target == UnitDirectory::session_target());
    let link = Some(link).filter(|_| is_own && own.contains(&SESSION_NAME));
    for path in own.iter().map(|name| place.units.join(name)).chain(link) {
        match fs::remove_file(&path) {
            Ok(()) => list(&path, "removed "),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("cannot remove {}", path.display())),
        }
    }
    // Others may want something there.
    let _ = fs::remove_dir(place.units.join(WANTED_BY_SESSIONS));
    below.iter().for_each(|(_, path)| list(path, "in force now: "));
    if !runs {
        // Without it systemctl changes links alone, if there is a systemctl.
        return match started.iter().find_map(|name| wanted_still(name)) {
            Some(link) => bail!("removed, but {} still names it", link.display()),
            None => Ok(ExitCode::SUCCESS),
        };
    }
    let reloaded = place.systemctl(&["daemon-reload"]);
    // The process that runs is still that of the removed unit.
    let restarted = if stays(UNIT_NAME) { place.systemctl(&["restart", UNIT_NAME]) } else { Ok(()) };
    let mut code = ExitCode::SUCCESS;
    for (what, done) in [
        ("removed, but what runs may not have been stopped: ", stopped),
        ("removed, but systemd still knows the units: ", reloaded),
        ("removed, but the service that is in force now does not start: ", restarted),
    ] {
        if let Err(error) = done {
            remedy::say(what, &error);
            code = ExitCode::FAILURE;
        }
    }
    Ok(code)
}

/// The units that `install` of this copy of prepage wrote, or of one that is gone; and those of other copies, with what they start.
fn own_and_of_others(place: &UnitDirectory) -> (Vec<&'static str>, Vec<(&'static str, PathBuf)>) {
    let prepaged = prepaged().ok();
    let (mut own, mut of_others) = (Vec::new(), Vec::new());
    for (name, _) in UNITS.iter().filter(|(name, _)| place.found(name) == UnitFile::Own) {
        match place.program(name).filter(|program| program.is_file()) {
            Some(program) if program.canonicalize().ok() != prepaged => of_others.push((*name, program)),
            _ => own.push(*name),
        }
    }
    (own, of_others)
}

/// A link that makes systemd want the unit `name`, as `systemctl enable` leaves it.
fn wanted_still(name: &str) -> Option<PathBuf> {
    let wants = fs::read_dir("/etc/systemd/system").ok()?.flatten();
    let wants = wants.map(|entry| entry.path()).filter(|path| path.extension() == Some("wants".as_ref()));
    wants.map(|path| path.join(name)).find(|link| link.symlink_metadata().is_ok())
}

/// As the program of an ExecStart line (systemd.service(5)).
fn quoted(path: &str) -> String {
    let escaped = path.replace('%', "%%");
    if is_plain(&escaped) {
        return escaped;
    }
    format!("\"{}\"", escaped.replace('\\', "\\\\").replace('"', "\\\""))
}

/// The program of an ExecStart line whose value is `command`, as [`quoted`] wrote it.
fn unquoted(command: &str) -> Option<PathBuf> {
    let escaped = match command.strip_prefix('"') {
        None => command.split(' ').next()?.to_owned(),
        Some(rest) => {
            let (mut text, mut chars) = (String::new(), rest.chars());
            loop {
                match chars.next()? {
                    '"' => break text,
                    '\\' => text.push(chars.next()?),
                    other => text.push(other),
                }
            }
        }
    };
    Some(escaped.replace("%%", "%").into())
}

/// Whether systemd reads `text` as it stands, with `%` doubled.
fn is_plain(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-+%".contains(c))
}

fn systemctl(args: &[&str]) -> Result<()> {
    let status = Process::new("systemctl").args(args).status().context("cannot run systemctl")?;
    ensure!(status.success(), "systemctl {} failed ({status})", args.join(" "));
    Ok(())
}

/// Beside this binary.
fn prepaged() -> Result<PathBuf> {
    let me = std::env::current_exe().context("/proc is not mounted")?;
    let place = me.with_file_name("prepaged");
    let found = place.canonicalize().ok().filter(|place| place.is_file());
    found.or_try(|| {
        let what = format!("no `prepaged` next to {}", me.display());
        Remedied::new(what, "make build && sudo make install")
    })
}
