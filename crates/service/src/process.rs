//! A process that has executed a program, as /proc tells it: only what is the kernel's own, in bounded pieces.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use prepage_core::profile::role::{called, role_and_places};
use prepage_prefetch::config::is_off;
use prepage_prefetch::start::StartContext;
use prepage_profiles::ProgramKey;
use prepage_profiles::key::readable;
use prepage_profiles::program::is_stand_in;
use prepage_sys::clock::now_ns;
use prepage_sys::file_handle::FileHandle;
use prepage_sys::proc_file;
use prepage_sys::process_stat::{NAME_BYTES_MAX, ProcessStat};
use prepage_sys::processes::processes;
use prepage_sys::rights::Rights;
use prepage_sys::root::{self, Root};
use prepage_sys::user_namespace::maker_of;
use rustix::time::{ClockId, clock_gettime};

use crate::askers::Askers;
use crate::moment::Moment;
use crate::place::Place;
use crate::tree::WINDOW_MAX;

/// Of longer command lines the beginning is read. A role holds 400 bytes.
const ARGUMENTS_BYTES_MAX: usize = 64 << 10;
/// Of larger environments the beginning is read.
const ENVIRONMENT_BYTES_MAX: usize = 128 << 10;
/// What systemd(1) starts for each unit (since version 255), and what becomes the unit's program: all of them by one file, called in one way.
const EXECUTOR: &str = "systemd/systemd-executor";
/// A longer PATH is not kept.
const SEARCH_BYTES_MAX: usize = 4096;
/// So many parents are asked for: a build's compilers are some levels below it.
const PARENTS_MAX: usize = 12;

/// A start, and what decides what is done for it.
#[derive(Debug)]
pub struct Process {
    /// For the four steps.
    pub context: StartContext,
    /// By what rights it opens files.
    pub rights: Rights,
    /// The root below which it looks names up, where it is in a container.
    pub root: Option<Arc<Root>>,
    /// The path of its program, as it has it.
    pub(crate) program: PathBuf,
    /// On whose account it runs ([`starter_of`]).
    pub starter: u32,
    /// What its role names the places of, whether anything is there or not.
    pub places: Vec<PathBuf>,
    /// Directories in which whoever started it looks for programs.
    pub search: Vec<PathBuf>,
    /// The home directory that its environment names: its user's, or whatever the user says.
    pub home: Option<PathBuf>,
    /// Its parent, the parent's parent and so on ([`recent_parents`]).
    pub parents: Vec<u32>,
    /// When its exec was told; where nobody was told, when it was looked at.
    pub moment: Moment,
}

/// Why a process is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftAlone {
    /// It is gone, or executes something else.
    Gone,
    /// It looks names up elsewhere than this process, and is not served there.
    Elsewhere(Elsewhere),
    /// Its environment says so.
    SwitchedOff,
    /// It is prepage itself, which serves the program that it becomes.
    Prepage,
    /// It only runs another program, which will be seen.
    Wrapper,
    /// A file system that its role names does not answer.
    Unanswered,
}

/// Why a process that looks names up elsewhere is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elsewhere {
    /// Its root cannot be opened.
    Hidden,
    /// Its program lies on another mount than its root, or has no name there.
    OnAnotherMount,
    /// Its exec was missed, so it is not known which file it has executed.
    NotTold,
}

impl Process {
    /// Process `pid`, which has executed its program: that in `file`, where that is said. With the rights of its user are looked
    /// up only the places that its role names.
    ///
    /// # Errors
    /// Why it is left alone. Gone where it executes something else meanwhile: that is told by an event of its own.
    pub fn of(pid: u32, file: Option<&FileHandle>) -> Result<Self, LeftAlone> {
        let stat = || ProcessStat::of(pid).map_err(|_| LeftAlone::Gone);
        // What changes when it executes a program, or another process has its number.
        let image = |stat: &ProcessStat| (stat.started_ticks, stat.arguments_at);
        let before = stat()?;
        let process = Self::now(pid, &before, file)?;
        // What was read is of one program only where it is still the same.
        if image(&stat()?) == image(&before) { Ok(process) } else { Err(LeftAlone::Gone) }
    }

    fn now(pid: u32, stat: &ProcessStat, file: Option<&FileHandle>) -> Result<Self, LeftAlone> {
        let gone = |_: io::Error| LeftAlone::Gone;
        if let Some(file) = file
            && !file.is_numbered_like(Path::new(&format!("/proc/{pid}/exe"))).map_err(gone)?
        {
            return Err(LeftAlone::Gone);
        }
        let found = Place::of(pid)?;
        let name = found.program.file_name().unwrap_or_default();
        if ["prepage", "prepage-tools", "prepaged"].iter().any(|own| name == *own)
            || found.root.is_none() && is_stand_in(&found.program)
        {
            return Err(LeftAlone::Prepage);
        }
        let argv = strings(&format!("/proc/{pid}/cmdline"), ARGUMENTS_BYTES_MAX).map_err(gone)?;
        let environment = environment(pid).map_err(gone)?;
        if is_switched_off_in(&environment) {
            return Err(LeftAlone::SwitchedOff);
        }
        let words = readable(&argv);
        if words.is_empty() {
            return Err(LeftAlone::Gone);
        }
        if called(&words) > 0 || found.program.ends_with(EXECUTOR) {
            return Err(LeftAlone::Wrapper);
        }
        let rights = Rights::of_process(pid).map_err(gone)?;
        let starter = starter(pid, || Some(rights.uid)).ok_or(LeftAlone::Gone)?;
        let directory = || {
            let directory = fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default();
            found.name_of(&directory).unwrap_or_default()
        };
        let is_unanswered = std::cell::Cell::new(false);
        let place = |name: &str| {
            let path = directory().join(name);
            // Below another root no other mount is asked.
            let asking = found.root.is_none().then(|| Askers::of_machine().ask(&path)).transpose();
            is_unanswered.set(is_unanswered.get() || asking.is_err());
            let (_asking, _assumed) = (asking.ok()?, rights.assume().ok()?);
            let _entered = found.root.as_ref().map(Root::enter);
            root::canonicalize(&path).ok()?.to_str().map(str::to_owned)
        };
        let (role, places) = role_and_places(&words, script_in(&argv, stat), &place);
        let places = places.iter().map(|place| directory().join(place)).collect();
        if is_unanswered.get() {
            return Err(LeftAlone::Unanswered);
        }
        let key = ProgramKey { program: found.key(file)?, role };
        let executable = Some(found.program.clone());
        let context = StartContext { pid, uid: rights.uid, executable, key, began_ns: now_ns() };
        Ok(Self {
            context,
            rights,
            root: found.root,
            program: found.program,
            starter,
            places,
            search: search(&environment),
            home: home(&environment),
            parents: recent_parents(Some(stat)),
            moment: Moment::after_exec(),
        })
    }

    /// The login that it belongs to.
    pub fn login(&self) -> Login {
        let text = |name| proc_file::read_text(format!("/proc/{}/{name}", self.context.pid));
        login_in(&text("sessionid").unwrap_or_default(), &text("cgroup").unwrap_or_default())
    }

    /// The program's file, as the process has it.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// By what rights files are read for it: what is known of a container's program is for all containers of the image.
    pub fn rights_to_read(&self) -> Rights {
        if self.root.is_some() { Rights::of_everybody() } else { self.rights.clone() }
    }
}

/// Where in the arguments of the process of `stat` the script stands that the kernel was given, with what runs it in front of it
/// ([`prepage_profiles`]): the process has the name of the file that it was told to execute, unless it calls itself something else by now.
fn script_in(argv: &[OsString], stat: &ProcessStat) -> Option<usize> {
    /// What runs a script is followed by one argument at most, and four scripts run each other at most (fs/exec.c).
    const AT_MAX: usize = 8;
    let name_of = |word: &OsString| {
        let path = word.as_bytes();
        let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        std::array::from_fn::<u8, NAME_BYTES_MAX, _>(|at| name.get(at).copied().unwrap_or(0))
    };
    let is_it = |word: &OsString| name_of(word) == stat.name;
    if argv.first().is_none_or(is_it) {
        return None;
    }
    argv.iter().take(AT_MAX + 1).position(is_it)
}

/// What login a process belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Login {
    /// The one with this number.
    Number(u32),
    /// None: it is of a job (cron, at), of a unit of systemd's, or of a command by ssh that systemd knows no login of.
    Job,
    /// Nobody says.
    Untold,
}

/// The login of a process by its audit session (/proc/PID/sessionid) and its control groups (/proc/PID/cgroup). Each job of cron has an audit session too,
/// and what systemd starts for a service has none: where systemd has put processes into units, one in none of a login or of a user belongs to no login.
/// Without an audit session that is said of services alone: systemd starts those itself, and scopes are made by others, also for containers that people
/// work in.
pub(crate) fn login_in(session: &str, groups: &str) -> Login {
    let number = session.trim().parse().ok().filter(|session| *session != u32::MAX);
    let units = || groups.split(['/', '\n']).filter(|name| name.contains('.'));
    let is = |name: &str, begin: &str, end: &str| name.starts_with(begin) && name.ends_with(end);
    let is_unit = |name: &str| {
        name.ends_with(".service")
            || number.is_some() && [".scope", ".slice"].iter().any(|kind| name.ends_with(kind))
    };
    let is_of_login = |name: &str| is(name, "session-", ".scope") || is(name, "user@", ".service");
    if units().any(is_unit) && !units().any(is_of_login) {
        return Login::Job;
    }
    number.map_or(Login::Untold, Login::Number)
}

/// Whether process `pid` has an environment, and that does not say that prepage is to leave the process alone. While the kernel replaces the
/// process's program, there is none for a moment.
pub fn is_switched_on(pid: u32) -> bool {
    environment(pid).is_ok_and(|environment| !environment.is_empty() && !is_switched_off_in(&environment))
}

fn is_switched_off_in(environment: &[OsString]) -> bool {
    variable(environment, b"PREPAGE=").is_some_and(is_off)
}

/// The directories of PATH, but for those that depend on where it is started.
fn search(environment: &[OsString]) -> Vec<PathBuf> {
    let path = variable(environment, b"PATH=").filter(|path| path.len() <= SEARCH_BYTES_MAX);
    let directories = path.map(std::env::split_paths).into_iter().flatten();
    directories.filter(|directory| directory.is_absolute()).collect()
}

fn home(environment: &[OsString]) -> Option<PathBuf> {
    let home = variable(environment, b"HOME=").filter(|home| home.len() <= SEARCH_BYTES_MAX);
    home.map(PathBuf::from).filter(|home| home.is_absolute())
}

fn environment(pid: u32) -> io::Result<Vec<OsString>> {
    strings(&format!("/proc/{pid}/environ"), ENVIRONMENT_BYTES_MAX)
}

/// The value of the variable that begins with `name`, which ends in an equals sign.
fn variable<'a>(environment: &'a [OsString], name: &[u8]) -> Option<&'a OsStr> {
    environment.iter().find_map(|one| one.as_bytes().strip_prefix(name)).map(OsStr::from_bytes)
}

/// Strings that each end in a zero byte, of the first `bytes_max` bytes of a file.
fn strings(path: &str, bytes_max: usize) -> io::Result<Vec<OsString>> {
    let mut bytes = proc_file::read_first(path, bytes_max)?;
    // What was cut is not whole.
    let end = bytes.iter().rposition(|&byte| byte == 0).unwrap_or(0);
    bytes.truncate(end);
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    Ok(bytes.split(|&byte| byte == 0).map(|one| OsString::from_vec(one.to_vec())).collect())
}

/// The user that the kernel shows the process's directory as; a process that is gone has none.
pub fn user_of(pid: u32) -> Option<u32> {
    fs::metadata(format!("/proc/{pid}")).map(|process| process.uid()).ok()
}

/// On whose account process `pid` runs: of the user whose files it opens, or who has made the user namespace that it is in, where that user has
/// ids without number. The kernel shows the directory of a process whose program its user may not read as root's.
pub fn starter_of(pid: u32) -> Option<u32> {
    starter(pid, || Rights::of_process(pid).ok().map(|rights| rights.uid))
}

/// The same where `own` says as whom the process opens files.
fn starter(pid: u32, own: impl FnOnce() -> Option<u32>) -> Option<u32> {
    if let Ok(Some(maker)) = maker_of(pid) {
        return Some(maker);
    }
    match user_of(pid)? {
        0 => own(),
        uid => Some(uid),
    }
}

/// Clock ticks since the machine was started, as processes' starts are counted.
pub fn boot_ticks() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    ticks(Duration::new(now.tv_sec as u64, now.tv_nsec as u32))
}

fn ticks(time: Duration) -> u64 {
    (time.as_nanos() * u128::from(rustix::param::clock_ticks_per_second()) / 1_000_000_000) as u64
}

/// The processes that were started at `since_ticks` or later and have executed something, but for this one, the newest first.
pub fn started_since(since_ticks: u64) -> Vec<u32> {
    let started = |pid: u32| {
        let stat = ProcessStat::of(pid).ok()?;
        let is_new = stat.started_ticks + 1 >= since_ticks && stat.environment_end > 0;
        is_new.then_some((stat.started_ticks, pid))
    };
    let mut found: Vec<(u64, u32)> =
        processes().filter(|pid| *pid != std::process::id()).filter_map(started).collect();
    found.sort_unstable_by_key(|one| std::cmp::Reverse(*one));
    found.into_iter().map(|(_, pid)| pid).collect()
}

/// Whether a process is one of prepage's own that read for others: what it opens, nobody has used. One that is gone is not known any more.
pub fn is_prepages(pid: u32) -> bool {
    let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let name = program.file_name().unwrap_or_default().as_bytes();
    // As that of one that the initramfs has started is, and of one that an update has replaced.
    let name = name.strip_suffix(b" (deleted)").unwrap_or(name);
    name == b"prepaged" || name == b"prepage-tools"
}

/// The parent of process `pid`, the parent's parent and so on.
pub fn parents(pid: u32) -> impl Iterator<Item = u32> {
    let parent = |pid: &u32| Some(ProcessStat::of(*pid).ok()?.parent).filter(|parent| *parent > 0);
    std::iter::successors(parent(&pid), parent).take(PARENTS_MAX)
}

/// The parent of the process of `stat`, the parent's parent and so on, as far as each child is so young that it may be part of a start that is
/// under way: to ask for all of them takes longer than all else that is asked for a start.
pub fn recent_parents(stat: Option<&ProcessStat>) -> Vec<u32> {
    let since_ticks = boot_ticks().saturating_sub(ticks(WINDOW_MAX));
    let parent =
        |stat: &ProcessStat| (stat.started_ticks >= since_ticks && stat.parent > 0).then_some(stat.parent);
    let next = |pid: &u32| parent(&ProcessStat::of(*pid).ok()?);
    std::iter::successors(stat.and_then(parent), next).take(PARENTS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::PermissionsExt;
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A process that has said a line, and waits.
    struct Waiting(Child);

    impl Waiting {
        fn new(command: &mut Command) -> Self {
            let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
            Self(child)
        }
    }

    impl Drop for Waiting {
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    const SCRIPT: &str = "echo; read line";

    #[test]
    fn program_role_rights_and_parents_are_those_of_the_process() {
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("tool.sh");
        fs::write(&script, SCRIPT).unwrap();
        let child = Waiting::new(Command::new("sh").arg("tool.sh").current_dir(&directory));
        let process = Process::of(child.0.id(), None).unwrap();
        assert_eq!(process.program(), fs::canonicalize("/bin/sh").unwrap());
        assert!(process.context.key.role.starts_with("sh tool.sh@"), "{}", process.context.key.role);
        assert_eq!(process.places, [script.canonicalize().unwrap()]);
        assert_eq!(process.parents[0], std::process::id());
        assert_eq!(process.rights.uid, rustix::process::geteuid().as_raw());
        // The same key as that of `prepage run` for the same command.
        let of_command = ProgramKey::of(&["sh".into(), script.into()]).unwrap();
        assert_eq!(process.context.key, of_command);
    }

    /// Of each start it sees what the kernel made of the command.
    #[test]
    fn a_script_has_the_key_that_its_command_has() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        // By a process of its own: what this one has open to write, a child of another test's has open too, and nobody can execute it.
        let copy = |from: &Path, to: &Path| {
            assert!(Command::new("cp").arg("--dereference").args([from, to]).status().unwrap().success());
        };
        let script = |name: &str, line: &str| {
            let text = path(name).with_extension("text");
            fs::write(&text, format!("{line}\n{SCRIPT}\n")).unwrap();
            fs::set_permissions(&text, fs::Permissions::from_mode(0o755)).unwrap();
            copy(&text, &path(name));
        };
        copy(Path::new("/bin/sh"), &path("unknown"));
        let unknown = path("unknown").display().to_string();
        script("direct", "#!/bin/sh");
        script("with-an-option", "#!/bin/sh -e");
        script("env", "#!/usr/bin/env sh");
        script("split", "#!/usr/bin/env -S A=b sh -e");
        script("one", &format!("#!{unknown}"));
        script("other", &format!("#!{unknown} -e"));
        script("between", "#!/bin/sh");
        script("through", &format!("#!{}", path("between").display()));
        script("named-by-more-than-is-kept", &format!("#!{unknown}"));
        std::os::unix::fs::symlink("one", path("link")).unwrap();
        let direct = path("direct").display().to_string();
        let mut roles = std::collections::HashSet::new();
        for command in [
            &["direct"][..],
            &["direct", "-x", "sh"],
            &["with-an-option"],
            &["env"],
            &["split"],
            &["one", "x.c"],
            &["other"],
            &["link"],
            &["through", "x"],
            &["named-by-more-than-is-kept"],
            &["/bin/sh", direct.as_str()],
            &["nice", "-n", "1", direct.as_str()],
        ] {
            let mut words: Vec<OsString> = command.iter().map(OsString::from).collect();
            if path(command[0]).exists() {
                words[0] = path(command[0]).into();
            }
            let child = Waiting::new(Command::new(&words[0]).args(&words[1..]));
            let seen = Process::of(child.0.id(), None).unwrap().context.key;
            assert_eq!(seen, ProgramKey::of(&words).unwrap(), "{command:?}");
            roles.insert((seen.program, seen.role));
        }
        // Four are of one script, called in one way.
        assert_eq!(roles.len(), 12 - 3, "{roles:#?}");
    }

    #[test]
    fn a_process_that_runs_something_else_by_now_is_not_taken_for_what_it_ran() {
        let child = Waiting::new(Command::new("sh").args(["-c", SCRIPT]));
        let [sh, other] = ["/bin/sh", "/bin/true"].map(|path| FileHandle::of(Path::new(path)).unwrap());
        assert_eq!(Process::of(child.0.id(), Some(&other)).unwrap_err(), LeftAlone::Gone);
        assert!(Process::of(child.0.id(), Some(&sh)).is_ok());
    }

    #[test]
    fn what_was_started_last_is_found_first() {
        let since = boot_ticks();
        let children = [(); 3].map(|()| {
            let before = boot_ticks();
            let child = Waiting::new(Command::new("sh").args(["-c", SCRIPT]));
            while boot_ticks() <= before + 1 {
                std::thread::sleep(Duration::from_millis(1));
            }
            child
        });
        let mut found = started_since(since);
        found.retain(|pid| children.iter().any(|child| child.0.id() == *pid));
        assert_eq!(found, [2, 1, 0].map(|at: usize| children[at].0.id()));
    }

    #[test]
    fn what_is_switched_off_or_gone_is_left_alone() {
        let off = Waiting::new(Command::new("sh").args(["-c", SCRIPT]).env("PREPAGE", "off"));
        assert_eq!(Process::of(off.0.id(), None).unwrap_err(), LeftAlone::SwitchedOff);
        let none = Waiting::new(Command::new("/bin/sh").args(["-c", SCRIPT]).env_clear());
        let on = Waiting::new(Command::new("/bin/sh").args(["-c", SCRIPT]).env_clear().env("PREPAGE", "on"));
        assert_eq!([&off, &none, &on].map(|one| is_switched_on(one.0.id())), [false, false, true]);
        assert_eq!(Process::of(u32::MAX, None).unwrap_err(), LeftAlone::Gone);
    }

    #[test]
    fn a_job_belongs_to_no_login_where_the_control_groups_tell() {
        let login = |groups: &str| login_in("7\n", groups);
        for of_login in [
            "0::/user.slice/user-1000.slice/session-3.scope\n",
            "0::/user.slice/user-1000.slice/user@1000.service/app.slice/app-editor.scope\n",
            "2:cpu:/\n1:name=systemd:/user.slice/user-1000.slice/session-c1.scope\n0::/\n",
            // Without systemd.
            "0::/\n",
            "1:cpu:/jobs/7\n",
            "",
        ] {
            assert_eq!(login(of_login), Login::Number(7), "{of_login}");
        }
        for of_none in ["0::/system.slice/cron.service\n", "1:name=systemd:/system.slice/ssh.service\n0::/\n"]
        {
            assert_eq!(login(of_none), Login::Job, "{of_none}");
        }
        // As systemd starts it for a timer.
        let of_no_session = |groups| login_in(&u32::MAX.to_string(), groups);
        assert_eq!(of_no_session("0::/system.slice/backup.service\n"), Login::Job);
        for of_somebody in
            ["", "0::/\n", "0::/user.slice/user-7.slice/user@7.service/app.slice/editor.service\n"]
        {
            assert_eq!(of_no_session(of_somebody), Login::Untold, "{of_somebody}");
        }
        // As containers, which a login may have made.
        for of_nobody in [
            "1:name=systemd:/system.slice/docker-1f.scope\n",
            "0::/kubepods.slice/kubepods-pod2e.slice/cri-containerd-1f.scope\n",
            "0::/init.scope\n",
        ] {
            assert_eq!(of_no_session(of_nobody), Login::Untold, "{of_nobody}");
            assert_eq!(login(of_nobody), Login::Job, "{of_nobody}");
        }
    }

    #[test]
    fn programs_are_looked_for_where_its_path_says() {
        let mut command = Command::new("/bin/sh");
        let child = Waiting::new(command.args(["-c", SCRIPT]).env("PATH", "/first:relative::/second"));
        let search = Process::of(child.0.id(), None).unwrap().search;
        assert_eq!(search, [Path::new("/first"), Path::new("/second")]);
        let long = format!("/{}", "x".repeat(SEARCH_BYTES_MAX));
        let child = Waiting::new(Command::new("/bin/sh").args(["-c", SCRIPT]).env("PATH", long));
        assert!(Process::of(child.0.id(), None).unwrap().search.is_empty());
    }

    #[test]
    fn a_command_line_of_two_megabytes_is_read_in_part() {
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT]);
        // An argument has 128 KiB at most.
        let argument = "x".repeat(120 << 10);
        let count = 16;
        command.args(std::iter::repeat_n(&argument, count));
        let child = Waiting::new(&mut command);
        let process = Process::of(child.0.id(), None).unwrap();
        assert!(process.context.key.role.len() <= 400);
        let read = strings(&format!("/proc/{}/cmdline", child.0.id()), ARGUMENTS_BYTES_MAX).unwrap();
        let bytes: usize = read.iter().map(|one| one.len() + 1).sum();
        assert!(read.len() > 1 && bytes <= ARGUMENTS_BYTES_MAX, "{bytes}");
    }
}
