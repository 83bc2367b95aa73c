//! Standing in for a program: a link called like it, in front of it in PATH (`prepage enable`), leads here.
//!
//! The program is the next executable of that name in PATH that is no such link. Where PATH has several (a compiler and ccache,
//! a program and somebody's wrapper), the first may look for the others in PATH again and so come back here: which process was
//! started as which of them is handed down in an environment variable ([`Passed`]), and a wrapper gets the next. Programs that PATH
//! has once get no such variable, unless PATH goes on to a file system that would have to be waited for: a start from a cold disk may have it where a
//! warm one does not.

use std::collections::hash_map::DefaultHasher;
use std::ffi::{OsStr, OsString};
use std::hash::{Hash, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use prepage_prefetch::launch::{LaunchOptions, begin};
use prepage_profiles::program::{find_up_to, is_stand_in, there};
use prepage_sys::exec::executed;
use prepage_sys::process_stat::ProcessStat;
use prepage_sys::uncommon_calls::are_deadly;

use crate::{NOT_FOUND, Way, become_first, say};

/// A process, the number of its arguments ([`number_of`]), and the executables that links led to before it became the last of
/// these; separated as in PATH.
const PASSED: &str = "PREPAGE_PASSED";

/// The name of the program to stand in for; `None` where this was called by its own name.
pub fn name(args: &[OsString]) -> Option<OsString> {
    let called = Path::new(args.first()?);
    // Callers may give any name (`exec -a`), or none: which link was executed is the kernel's word.
    let executed = Path::new(executed());
    match executed.file_name() {
        Some(file) if is_own(file) => None,
        Some(file) if !is_descriptor(executed) && (are_deadly() || is_stand_in(executed)) => {
            Some(file.to_owned())
        }
        _ => {
            let called = called.file_name()?;
            // Login shells are called with a dash in front.
            let called = called.to_str().and_then(|name| name.strip_prefix('-')).map_or(called, OsStr::new);
            (!called.is_empty() && !is_own(called)).then(|| called.to_owned())
        }
    }
}

fn is_own(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b"prepage")
}

/// As execveat(2) and fexecve(3) name what is executed.
fn is_descriptor(path: &Path) -> bool {
    path.starts_with("/dev/fd") || path.starts_with("/proc")
}

/// Has the program called by its path, as ccache calls compilers: gcc and python look for a bare name in PATH, to find their
/// files beside it, and would find the link. The dash that makes a shell a login shell stays.
pub fn name_by_path(argv: &mut [OsString], program: &Path) {
    if !argv[0].as_encoded_bytes().starts_with(b"-") {
        argv[0] = program.into();
    }
}

/// Becomes the program called `name`, with the arguments this process got.
pub fn start(name: &OsStr, args: &[OsString]) -> u8 {
    let passed = Passed::before(args);
    let is_next = |path: &Path| passed.programs.iter().all(|passed| passed != path);
    let (all, may_be_more) = match are_deadly() {
        true => (there(name, Some(executed().as_ref())), false),
        false => find_up_to(name, is_next),
    };
    // When all had their turn, the last: it is the one that the others stand in front of.
    let next = all.iter().position(|path| is_next(path)).or(all.len().checked_sub(1));
    let Some(next) = next else {
        let name = name.display();
        say(&format!(
            "{name}: not in PATH, but for a link to prepage, which stands for a program of its name"
        ));
        say(&format!("try: install {name}, or: prepage disable {name}, or call prepage by its own name"));
        return NOT_FOUND;
    };
    let way = |program: &PathBuf| {
        let mut argv = args.to_vec();
        // Another name that a caller gave stays.
        if Path::new(&argv[0]).file_name() == Some(name) {
            name_by_path(&mut argv, program);
        }
        let has_others = all.len() > 1 || may_be_more;
        let variables = if has_others { passed.then(program, args) } else { Vec::new() };
        Way { program: program.clone(), argv, variables }
    };
    let mut command = args.to_vec();
    command[0] = all[next].clone().into_os_string();
    let launched = begin(&command, name, &LaunchOptions::default());
    // Only where it is not known which may be executed may another one be left.
    let ways: Vec<Way> = all[next..].iter().take(if are_deadly() { all.len() } else { 1 }).map(way).collect();
    become_first(&ways, name, launched)
}

/// Wrappers that stand in front of the program that this process is to become.
#[derive(Default)]
struct Passed {
    programs: Vec<PathBuf>,
}

impl Passed {
    /// Those that came here, one through the other. A program that starts another of its own name (node, make, bash) is not
    /// one of them: it gets the first, as without the link. A wrapper knows that it would find itself, so it calls what it finds
    /// by its path, or else with the arguments that it got: it would never end otherwise.
    fn before(args: &[OsString]) -> Self {
        Self::told(args).unwrap_or_default()
    }

    fn told(args: &[OsString]) -> Option<Self> {
        let passed = std::env::var_os(PASSED)?;
        let mut fields = std::env::split_paths(&passed);
        let pid: u32 = fields.next()?.to_str()?.parse().ok()?;
        let arguments: u64 = fields.next()?.to_str()?.parse().ok()?;
        let is_by_path = args[0].as_encoded_bytes().contains(&b'/');
        let is_wrapper = (is_by_path || arguments == number_of(args)) && is_caller(pid);
        is_wrapper.then(|| Self { programs: fields.collect() })
    }

    /// The variable for `program`, which this process becomes behind these.
    fn then(&self, program: &Path, args: &[OsString]) -> Vec<(OsString, OsString)> {
        let is_new = self.programs.iter().all(|passed| passed != program);
        let programs = self.programs.iter().map(PathBuf::as_path).chain(is_new.then_some(program));
        let numbers = [std::process::id().to_string(), number_of(args).to_string()];
        let fields = numbers.iter().map(Path::new).chain(programs);
        // A path with a colon cannot be in PATH.
        std::env::join_paths(fields).map_or_else(|_| Vec::new(), |all| vec![(PASSED.into(), all)])
    }
}

/// Whether process `pid` is this one, executed anew, or has started it: itself, or from a subshell.
fn is_caller(pid: u32) -> bool {
    if pid == std::process::id() {
        return true;
    }
    let mut caller = std::os::unix::process::parent_id();
    while caller != pid {
        let Ok(stat) = ProcessStat::of(caller) else { return false };
        // A subshell has executed nothing since the shell started it.
        let is_fork = |shell: ProcessStat| shell.arguments_at == stat.arguments_at;
        if stat.arguments_at == 0 || !ProcessStat::of(stat.parent).is_ok_and(is_fork) {
            return false;
        }
        caller = stat.parent;
    }
    true
}

/// A number that tells arguments apart, the program's name left out.
fn number_of(args: &[OsString]) -> u64 {
    let mut hasher = DefaultHasher::new();
    args[1..].hash(&mut hasher);
    hasher.finish()
}
