//! Standing in for a program: a link called like it, in front of it in PATH (`prepage enable`), leads here.
//!
//! The program is the next executable of that name in PATH that is no such link. Where PATH has several (a compiler and ccache,
//! a program and somebody's wrapper), the first may look for the others in PATH again and so come back here: which of them were
//! started is handed down in an environment variable, and each time the next is taken. Programs that PATH has once get no such
//! variable.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use prepage_prefetch::launch::{LaunchOptions, begin};
use prepage_profiles::program::find_all;

use crate::{NOT_FOUND, become_program, program, say};

/// Executables that links led to already, as PATH separates them.
const PASSED: &str = "PREPAGE_PASSED";

/// The name of the program to stand in for; `None` where this was called by its own name.
pub fn name(args: &[OsString]) -> Option<OsString> {
    let name = Path::new(args.first()?).file_name()?;
    let own = name.as_encoded_bytes().starts_with(b"prepage");
    // Login shells are called with a dash in front.
    let name = name.to_str().and_then(|name| name.strip_prefix('-')).map_or(name, OsStr::new);
    (!own && !name.is_empty()).then(|| name.to_owned())
}

/// Whether PATH has a link called `name` that leads here.
pub fn is_in_path(name: &OsStr) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| program::is_stand_in(&directory.join(name)))
}

/// Has the program called by its path, as ccache calls compilers: gcc and python look for a bare name in PATH, to find their
/// files beside it, and would find the link. The dash that makes a shell a login shell stays.
pub fn name_by_path(argv: &mut [OsString], program: &Path) {
    if !argv[0].as_encoded_bytes().starts_with(b"-") {
        argv[0] = program.into();
    }
}

/// Becomes the program called `name`, with the arguments this process got.
pub fn start(name: &OsStr, args: &[OsString]) -> ExitCode {
    let all = find_all(name);
    let passed: Vec<PathBuf> =
        std::env::var_os(PASSED).map_or_else(Vec::new, |passed| std::env::split_paths(&passed).collect());
    // When all had their turn, the last: it is the one that the others stand in front of.
    let next = all.iter().find(|path| !passed.contains(path)).or(all.last());
    let Some(program) = next else {
        say(&format!("{0}: not in PATH, but for the link that `prepage enable {0}` made", name.display()));
        say(&format!("try: install {0}, or: prepage disable {0}", name.display()));
        return NOT_FOUND.into();
    };
    let mut argv = args.to_vec();
    name_by_path(&mut argv, program);
    let mut command = argv.clone();
    command[0] = program.clone().into_os_string();
    let launched = begin(&command, name, &LaunchOptions::default());
    let variables = if all.len() > 1 { handed_down(&passed, program) } else { Vec::new() };
    become_program(program, name, &argv, launched, &variables)
}

fn handed_down(passed: &[PathBuf], program: &Path) -> Vec<(OsString, OsString)> {
    let mut all: Vec<&Path> = passed.iter().map(PathBuf::as_path).collect();
    if !all.contains(&program) {
        all.push(program);
    }
    // A path with a colon cannot be in PATH.
    std::env::join_paths(all).map_or_else(|_| Vec::new(), |all| vec![(PASSED.into(), all)])
}
