//! `prepaged`: the resident prefetcher. Stays in the foreground, says READY to systemd where that listens, ends on SIGTERM, reads
//! profiles and configuration again on SIGHUP.
#![forbid(unsafe_code)]

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use lexopt::{Arg, ValueExt};
use prepage_profiles::StartContextPaths;
use prepage_service::arrange::{Arranged, Programs};
use prepage_service::image;
use prepage_service::options::{Options, ServiceError};
use prepage_service::period::{self, PeriodOptions};
use prepage_service::service::Service;
use prepage_service::subject::Subject;

const HELP: &str = "\
The service of prepage: prefetches and learns every program of this machine

Usage: prepaged [OPTIONS]
       prepaged boot [--no-learn] [--quiet SECONDS] [--at-most SECONDS]
                     [--root DIR]
       prepaged session UID [--no-learn] [--quiet SECONDS] [--at-most SECONDS]
       prepaged image [--arrange [--programs]] DIR

Commands:
  (none)   Run the service in the foreground, until SIGTERM (root)
  boot     Prefetch what the last boots needed, learn what this boot needs, and
           end when the machine is quiet
  session  The same for the session of user UID, who has just logged in
  image    Prepare the next boot of the image mounted at DIR, which has the
           profile of a boot, its own or an imported one: find the inodes and
           directories of its files on its device (ext2, ext3 and ext4; root)

Options of the service:
      --socket PATH         Unix socket that answers `prepage status`
                            [default: /run/prepage/service]
      --below DIR           Serve only programs below this directory
      --no-predict          Remember no launches, and read nothing ahead of them
      --idle-after SECONDS  Read expected programs ahead once the machine was
                            idle for this long; 0: at any time [default: 30]

Options of boot and session:
      --quiet SECONDS       End when the machine was quiet for this long, a boot
                            not before all units are started [default: 10]
      --at-most SECONDS     End after this time in any case [default: 300]

Options of boot:
      --root DIR            In an initramfs: where the root file system is
                            mounted

Options of the service, boot and session:
      --no-learn            Prefetch what is known, and learn nothing

Options of image:
      --arrange             Move what a boot needs side by side on the device,
                            in the order of need (ext4, blocks of 4 KiB). On the
                            running machine programs stay where they are
      --programs            With --arrange, move programs of the running machine
                            too. Those in use stay; starting another one while a
                            piece of it is moved, some milliseconds, may fail

Options of all:
  -h, --help                Print help
  -V, --version             Print version

Exit code: 69 where it would fail again (no right to watch what is executed,
another service has the socket), 2 for wrong options, 1 for other errors
";

/// EX_UNAVAILABLE of sysexits.h(3head). The unit says that such a service is not to be restarted.
const CANNOT_RUN_HERE: u8 = 69;

fn main() -> ExitCode {
    let task = match parse(lexopt::Parser::from_env()) {
        Ok(task) => task,
        Err(error) => {
            eprintln!("prepaged: {error}\n  try: prepaged --help");
            return ExitCode::from(2);
        }
    };
    let nothing_to_say = String::new();
    let ended = match task {
        Task::Say(text) => Ok(text),
        Task::Serve(options) => Service::run(&options).map(|()| nothing_to_say),
        Task::Period(subject, options) => period::run(subject, &options).map(|_| nothing_to_say),
        Task::Prepare(root, programs) => image::prepare(&root, programs).map(|prepared| {
            let (root, pages) = (root.display(), prepared.pages);
            let moved = prepared.arranged.map(|Arranged { pages, files, left, held_max }| {
                let held = held_max.map(|held| {
                    let ms = held.as_secs_f64() * 1e3;
                    format!("; no program was held up for longer than {ms:.1} ms at once")
                });
                format!(
                    "prepaged: {pages} pages of {files} files have moved, {left} files stay as they are{}\n",
                    held.unwrap_or_default()
                )
            });
            format!(
                "{}prepaged: {pages} pages of inodes and directories are known for the next boot of {root}\n",
                moved.unwrap_or_default()
            )
        }),
    };
    match ended {
        Ok(text) => say(&text),
        Err(error) => {
            eprint!("prepaged: {error}");
            let mut source = std::error::Error::source(&error);
            while let Some(error) = source {
                eprint!(": {error}");
                source = error.source();
            }
            eprintln!();
            if matches!(error, ServiceError::Watch(_)) && error.will_recur() {
                eprintln!("  try: run it as root; in a container: --cap-add SYS_ADMIN (Linux 5.1 or newer)");
            }
            ExitCode::from(if error.will_recur() { CANNOT_RUN_HERE } else { 1 })
        }
    }
}

/// Prints `text`. That nobody reads it is no failure.
fn say(text: &str) -> ExitCode {
    let mut out = std::io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            eprintln!("prepaged: standard output: cannot be written: {error}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

/// What is to be done.
enum Task {
    /// Help, or the version.
    Say(String),
    Serve(Options),
    Period(Subject, PeriodOptions),
    /// What becomes of programs, where files are to be moved.
    Prepare(PathBuf, Option<Programs>),
}

fn parse(mut parser: lexopt::Parser) -> Result<Task, lexopt::Error> {
    let layers = StartContextPaths::of_environment().layers;
    let mut options = Options { layers: layers.clone(), ..Options::default() };
    let mut period = PeriodOptions { layers, ..PeriodOptions::default() };
    let (mut subject, mut is_of_session, mut is_of_image, mut image) = (None, false, false, None);
    let (mut is_to_arrange, mut programs, mut is_to_predict) = (false, Programs::Stay, true);
    let mut given = Vec::new();
    while let Some(arg) = parser.next()? {
        if let Arg::Long(option) = arg {
            given.push(option.to_owned());
        }
        match arg {
            Arg::Short('h') | Arg::Long("help") => {
                return Ok(Task::Say(HELP.to_owned()));
            }
            Arg::Short('V') | Arg::Long("version") => {
                return Ok(Task::Say(format!("prepaged {}\n", env!("CARGO_PKG_VERSION"))));
            }
            // It may be called like a command.
            Arg::Value(root) if is_of_image && image.is_none() => image = Some(PathBuf::from(root)),
            Arg::Long("arrange") if is_of_image => is_to_arrange = true,
            Arg::Long("programs") if is_of_image => programs = Programs::Move,
            _ if is_of_image => return Err(arg.unexpected()),
            Arg::Long("socket") => options.socket = Some(PathBuf::from(parser.value()?)),
            Arg::Long("below") => options.below = Some(PathBuf::from(parser.value()?)),
            Arg::Long("no-learn") => options.learn = false,
            Arg::Value(uid) if subject.is_none() && is_of_session => {
                subject = Some(Subject::Session(uid.parse()?))
            }
            Arg::Value(word) if subject.is_none() && word == "boot" => subject = Some(Subject::Boot),
            Arg::Value(word) if subject.is_none() && word == "session" => is_of_session = true,
            Arg::Value(word) if subject.is_none() && word == "image" => is_of_image = true,
            Arg::Long("quiet") => period.quiet_s = seconds(&mut parser, "quiet")?,
            Arg::Long("at-most") => {
                period.at_most = Duration::from_secs(seconds(&mut parser, "at-most")?.into())
            }
            Arg::Long("root") => period.root = Some(PathBuf::from(parser.value()?)),
            Arg::Long("no-predict") => is_to_predict = false,
            Arg::Long("idle-after") => {
                options.idle_after = Some(Duration::from_secs(seconds(&mut parser, "idle-after")?.into()));
            }
            _ => return Err(arg.unexpected()),
        }
    }
    let is_of_boot = subject == Some(Subject::Boot);
    let is_of_period = is_of_boot || is_of_session;
    for option in given {
        let (is_had, whose) = match &*option {
            "socket" | "below" | "no-predict" | "idle-after" => {
                (!is_of_period && !is_of_image, "the service")
            }
            "quiet" | "at-most" => (is_of_period, "boot and session"),
            "root" => (is_of_boot, "boot"),
            "no-learn" => (!is_of_image, "the service, boot and session"),
            _ => continue,
        };
        if !is_had {
            return Err(format!("--{option}: an option of {whose} only").into());
        }
    }
    if programs == Programs::Move && !is_to_arrange {
        return Err("--programs: says what is moved; give --arrange too".into());
    }
    if options.below.as_deref().is_some_and(Path::is_relative) {
        return Err("--below: programs are compared by their whole paths; give one that begins with /".into());
    }
    period.learn = options.learn;
    options.idle_after = options.idle_after.filter(|_| is_to_predict);
    Ok(match subject {
        Some(subject) => Task::Period(subject, period),
        None if is_of_image => {
            let root = image.ok_or("image: where is it mounted? DIR is missing")?;
            Task::Prepare(root, is_to_arrange.then_some(programs))
        }
        None if is_of_session => return Err("session: whose? UID is missing".into()),
        None => Task::Serve(options),
    })
}

/// The value of `option`.
fn seconds(parser: &mut lexopt::Parser, option: &str) -> Result<u32, lexopt::Error> {
    parser.value()?.parse().map_err(|error| format!("--{option}: {error}").into())
}

#[cfg(test)]
mod tests {
    use super::{HELP, Task, parse};

    /// A unit's drop-in may add either.
    #[test]
    fn whatever_else_is_said_of_it_nothing_is_predicted_where_that_is_unwanted() {
        for args in [&["--no-predict", "--idle-after", "60"][..], &["--idle-after", "60", "--no-predict"]] {
            let Ok(Task::Serve(options)) = parse(lexopt::Parser::from_args(args)) else { panic!("{args:?}") };
            assert_eq!(options.idle_after, None, "{args:?}");
        }
    }

    #[test]
    fn an_option_whose_value_is_wrong_is_named() {
        for args in [["--idle-after", "x"], ["--at-most", "x"], ["--quiet", "x"]] {
            let Err(refused) = parse(lexopt::Parser::from_args(args)) else { panic!("{args:?}") };
            assert!(refused.to_string().starts_with(&format!("{}: ", args[0])), "{refused}");
        }
    }

    #[test]
    fn an_option_of_another_command_and_a_directory_in_which_nothing_can_lie_are_refused() {
        for args in [
            "--quiet 5",
            "--root /x",
            "boot --socket /x",
            "session 1000 --idle-after 3",
            "--below x",
            "image --quiet 5 /x",
            "--socket /x image /x",
            "--at-most 5 image /x",
            "--no-learn image /x",
            "image --programs /x",
            "image --no-learn /x",
            "session 1000 --root /x",
            "--root /x session 1000",
        ] {
            assert!(parse(lexopt::Parser::from_args(args.split(' '))).is_err(), "{args}");
        }
        for args in ["--below /x --no-learn", "boot --root /x --no-learn", "session 1000 --at-most 3"] {
            assert!(parse(lexopt::Parser::from_args(args.split(' '))).is_ok(), "{args}");
        }
    }

    #[test]
    fn the_manual_page_has_all_options_and_commands_of_the_help() {
        let page = include_str!("../prepaged.8").replace('\\', "");
        let words = HELP.split_whitespace().map(|word| word.trim_matches(|c: char| "[],".contains(c)));
        for option in words.filter(|word| word.starts_with("--")) {
            assert!(page.contains(option), "{option}");
        }
        let commands = HELP.split("Commands:").nth(1).and_then(|rest| rest.split("Options").next()).unwrap();
        let is_name = |line: &&str| line.starts_with("  ") && line.as_bytes()[2].is_ascii_lowercase();
        let commands: Vec<_> =
            commands.lines().filter(is_name).map(|line| line.split_whitespace().next().unwrap()).collect();
        assert!(commands.len() >= 3);
        for command in commands {
            assert!(page.contains(&format!("fB{command}fR")), "{command}");
        }
    }
}
