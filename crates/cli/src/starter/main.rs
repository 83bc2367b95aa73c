//! `prepage`: starts programs (`prepage run`), and hands every other command to `prepage-tools`.
//!
//! This binary is run before every program that `prepage run` starts, from a cold disk too, so it is small, static
//! and touches little: docs/adr/0002-two-binaries.md.
#![forbid(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use lexopt::{Arg, ValueExt};
use prepage_prefetch::launch::{LaunchOptions, prepare};
use prepage_prefetch::study::{Prepared, Study};
use prepage_sys::exec::{exec, exec_with};

/// A failure of our own, as env(1), nohup(1) and timeout(1) report it.
const OWN_FAILURE: u8 = 125;
const CANNOT_EXECUTE: u8 = 126;
const NOT_FOUND: u8 = 127;

fn main() -> ExitCode {
    prepage_sys::own_pages::are_read_at_start();
    let args: Vec<OsString> = std::env::args_os().collect();
    if args.get(1).is_some_and(|verb| verb == "run") {
        match parse(&args[2..]) {
            Ok(Some(run)) => return start(&run),
            Ok(None) => {}
            Err(error) => {
                say(&format!("{error}\n  try: prepage run --help"));
                return OWN_FAILURE.into();
            }
        }
    }
    hand_over(&args)
}

struct Run {
    options: LaunchOptions,
    quiet: bool,
    /// Another way of starting than the usual one.
    study: Study,
    timing: bool,
    command: Vec<OsString>,
}

/// The options of `prepage run`; `None` when help is wanted, which the tools give. The first argument that is no
/// option begins the command.
fn parse(args: &[OsString]) -> Result<Option<Run>, lexopt::Error> {
    let mut run = Run {
        options: LaunchOptions::default(),
        quiet: false,
        study: Study::default(),
        timing: false,
        command: Vec::new(),
    };
    let mut parser = lexopt::Parser::from_args(args);
    while let Some(arg) = parser.next()? {
        match arg {
            Arg::Short('q') | Arg::Long("quiet") => run.quiet = true,
            Arg::Short('v') | Arg::Long("verbose") => run.options.verbose = true,
            Arg::Long("no-learn") => run.options.learn = false,
            Arg::Long("no-prefetch") => run.options.prefetch = false,
            Arg::Long("no-hold-out") => run.options.hold_out = false,
            Arg::Long("write-interval") => {
                run.options.write_interval = Duration::from_secs(parser.value()?.parse()?);
            }
            Arg::Long("mode") => run.study.mode = parser.value()?.parse()?,
            Arg::Long("early-fault") => run.study.early_fault = true,
            Arg::Long("timing") => run.timing = true,
            Arg::Short('h') | Arg::Long("help") => return Ok(None),
            Arg::Value(program) => {
                run.command.push(program);
                run.command.extend(parser.raw_args()?);
            }
            _ => return Err(arg.unexpected()),
        }
    }
    if run.command.is_empty() {
        return Err("run: which command?".into());
    }
    Ok(Some(run))
}

fn start(run: &Run) -> ExitCode {
    if run.study != Study::default() || run.timing {
        return start_as_studied(run);
    }
    let told = prepare(&run.command, &run.options);
    if let Some(text) = told.filter(|_| !run.quiet) {
        say(&text);
    }
    not_executed(run, &exec(&run.command[0], &run.command))
}

/// The program starts in any case: with what could be prepared for it.
fn start_as_studied(run: &Run) -> ExitCode {
    let prepared = match run.study.prepare(&run.command) {
        Ok(prepared) => prepared,
        Err(error) => {
            if !run.quiet {
                say(&format!("no prefetch: {}\n  try: {}", chain(&error), error.remedy()));
            }
            Prepared::default()
        }
    };
    if run.timing {
        let milliseconds = |time: Duration| format!("{:.2} ms", time.as_secs_f64() * 1e3);
        let prefetched = prepared.prefetched.map_or("beside the program".into(), milliseconds);
        say(&format!("profile read: {}; prefetched: {prefetched}", milliseconds(prepared.profile_read)));
    }
    let mut variables: Vec<_> =
        prepared.variables.iter().map(|(name, value)| (*name, value.as_os_str())).collect();
    if run.timing && run.study.early_fault {
        variables.push(("PREPAGE_EARLY_FAULT_TIMING", OsStr::new("1")));
    }
    not_executed(run, &exec_with(&run.command[0], &run.command, &variables))
}

fn not_executed(run: &Run, error: &io::Error) -> ExitCode {
    say(&format!("{}: {}", run.command[0].display(), reason(error)));
    if error.kind() == io::ErrorKind::NotFound { NOT_FOUND.into() } else { CANNOT_EXECUTE.into() }
}

fn hand_over(args: &[OsString]) -> ExitCode {
    let mut tried = Vec::new();
    for tools in tools_places() {
        let mut argv = vec![OsStr::new("prepage")];
        argv.extend(args.iter().skip(1).map(OsString::as_os_str));
        let error = exec(tools.as_os_str(), &argv);
        tried.push(format!("{}: {}", tools.display(), reason(&error)));
    }
    say(&format!("cannot start prepage-tools, which has all commands but `run`:\n  {}", tried.join("\n  ")));
    say("try: install prepage and prepage-tools into one directory (make install)");
    OWN_FAILURE.into()
}

/// Beside this binary (a build or an install of both), or where distributions put helpers of a command.
fn tools_places() -> Vec<PathBuf> {
    let Ok(me) = std::env::current_exe() else { return Vec::new() };
    let Some(directory) = me.parent() else { return Vec::new() };
    vec![directory.join("prepage-tools"), directory.join("../libexec/prepage/prepage-tools")]
}

/// The system's words for an error, without the number.
fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", chain(cause)),
        None => error.to_string(),
    }
}

fn say(text: &str) {
    // Nobody may be there to read it; the program is started all the same.
    let _ = writeln!(io::stderr(), "prepage: {text}");
}
