//! `prepage`: starts programs (`prepage run`), and hands every other command to `prepage-tools`.
//!
//! This binary is run before every program that `prepage run` starts, from a cold disk too, so it is small, static
//! and touches little: docs/adr/0002-two-binaries.md.
//!
//! Called by another name, through a link that `prepage enable` made, it starts the program of that name: [`stand_in`].
#![forbid(unsafe_code)]
#![no_main]

mod stand_in;

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use lexopt::{Arg, ValueExt};
use prepage_prefetch::launch::{LaunchOptions, Launched, begin};
use prepage_profiles::program;
use prepage_sys::exec::{exec, exec_with, executed, keep_streams};
use prepage_sys::heaps::Heaps;
use prepage_sys::uncommon_calls::are_deadly;
use rustix::io::Errno;

// musl's own takes a lock and a system call too many.
#[global_allocator]
static ALLOCATOR: Heaps = Heaps;

/// A failure of our own, as env(1), nohup(1) and timeout(1) report it.
const OWN_FAILURE: u8 = 125;
const CANNOT_EXECUTE: u8 = 126;
const NOT_FOUND: u8 = 127;

prepage_sys::bare_main!(starter);

fn starter(args: &[OsString]) -> u8 {
    prepage_sys::own_pages::are_read_at_start();
    if let Some(name) = stand_in::name(args) {
        return stand_in::start(&name, args);
    }
    if args.get(1).is_some_and(|verb| verb == "run") {
        match parse(&args[2..]) {
            Ok(Some(run)) => return start(run),
            Ok(None) => {}
            Err(error) => {
                say(&format!("{error}\n  try: prepage run --help"));
                return OWN_FAILURE;
            }
        }
    }
    hand_over(args)
}

struct Run {
    options: LaunchOptions,
    command: Vec<OsString>,
}

/// The options of `prepage run`; `None` when help is wanted, which the tools give. The first argument that is no
/// option begins the command.
fn parse(args: &[OsString]) -> Result<Option<Run>, lexopt::Error> {
    let mut run = Run { options: LaunchOptions::default(), command: Vec::new() };
    let mut parser = lexopt::Parser::from_args(args);
    while let Some(arg) = parser.next()? {
        match arg {
            Arg::Short('q') | Arg::Long("quiet") => run.options.quiet = true,
            Arg::Short('v') | Arg::Long("verbose") => run.options.verbose = true,
            Arg::Long("no-learn") => run.options.learn = false,
            Arg::Long("no-prefetch") => run.options.prefetch = false,
            Arg::Long("no-hold-out") => run.options.hold_out = false,
            Arg::Long("write-interval") => {
                let seconds = parser.value()?.parse();
                let seconds = seconds.map_err(|error| format!("--write-interval: {error}"))?;
                run.options.write_interval = Duration::from_secs(seconds);
            }
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

fn start(run: Run) -> u8 {
    let Run { options, command: mut argv } = run;
    let launched = begin(&argv, &argv[0], &options);
    let name = argv[0].clone();
    let ways = if are_deadly() {
        let way = |program| Way { program, argv: argv.clone(), variables: Vec::new() };
        program::there(&name, None).into_iter().map(way).collect()
    } else {
        let program = launched.program().unwrap_or_else(|| {
            // What is no program gets its message from the exec that fails.
            let found = program::find_past(&name);
            let (program, is_past_link) = found.unwrap_or_else(|_| (PathBuf::from(&name), false));
            if is_past_link {
                stand_in::name_by_path(&mut argv, &program);
            }
            program
        });
        vec![Way { program, argv, variables: Vec::new() }]
    };
    become_first(&ways, &name, launched)
}

/// An executable, and the arguments and variables that it is to get.
struct Way {
    program: PathBuf,
    argv: Vec<OsString>,
    variables: Vec<(OsString, OsString)>,
}

/// Becomes the first of `ways` that there is, called `name`, once what serves the start has given word.
fn become_first(ways: &[Way], name: &OsStr, launched: Launched) -> u8 {
    let prepared = launched.wait(ways.first().map_or(Path::new(name), |way| &way.program));
    // Configure scripts compare standard error, and an extra line breaks them: there are messages with `-v` alone.
    prepared.messages.iter().for_each(|message| say(message));
    let mut failed = io::Error::from(Errno::NOENT);
    for Way { program, argv, variables } in ways {
        let own = variables.iter().filter_map(|(name, value)| Some((name.to_str()?, value.as_os_str())));
        let observer = prepared.variables.iter().map(|(name, value)| (name.as_str(), value.as_os_str()));
        let variables: Vec<(&str, &OsStr)> = own.chain(observer).collect();
        let error = exec_with(program.as_os_str(), argv, &variables);
        let (is_passed_over, is_told) = match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => (true, false),
            io::ErrorKind::PermissionDenied => (true, true),
            _ => (false, true),
        };
        if is_told || ways.len() == 1 {
            failed = error;
        }
        if !is_passed_over {
            break;
        }
    }
    say(&format!("{}: {}", name.display(), reason(&failed)));
    if failed.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { CANNOT_EXECUTE }
}

fn hand_over(args: &[OsString]) -> u8 {
    let mut tried = Vec::new();
    for tools in tools_places() {
        let mut argv = vec![OsStr::new("prepage")];
        argv.extend(args.iter().skip(1).map(OsString::as_os_str));
        let error = exec(tools.as_os_str(), &argv);
        tried.push(format!("{}: {}", tools.display(), reason(&error)));
    }
    say(&format!("cannot start prepage-tools, which has all commands but `run`:\n  {}", tried.join("\n  ")));
    say("try: install prepage and prepage-tools into one directory (make build && sudo make install)");
    OWN_FAILURE
}

/// Beside this binary (a build or an install of both), or where distributions put helpers of a command.
fn tools_places() -> Vec<PathBuf> {
    // Without a /proc, what was executed: mostly no link, and better than nothing.
    let me = std::env::current_exe().unwrap_or_else(|_| executed().into());
    // What was found without a directory says nothing of where: least of all in the working directory.
    let directory = me.parent().filter(|directory| !directory.as_os_str().is_empty());
    let Some(directory) = directory else { return Vec::new() };
    vec![directory.join("prepage-tools"), directory.join("../libexec/prepage/prepage-tools")]
}

/// The system's words for an error, without the number.
fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

fn say(text: &str) {
    // Names in it are not to command the terminal.
    let shown: String = text.chars().map(|c| if c.is_control() && c != '\n' { '?' } else { c }).collect();
    keep_streams();
    // Nobody may be there to read it; the program is started all the same.
    let _ = writeln!(io::stderr(), "prepage: {shown}");
}
