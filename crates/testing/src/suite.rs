//! `suite`: compiles all tests as `cargo test` does with its own arguments and runs their programs, some beside others; and a test that
//! failed some times more, alone.
//!
//! Many tests wait more than they work. So programs whose tests keep to themselves ([`Program::is_to_itself`]), and the examples in
//! documentation, run beside those whose tests look at the machine. Of these none runs beside another. So do commands of their own that
//! run tests: `--beside 'NUMBER COMMAND'`, of which as many have to pass. What has to run alone ([`Program::turn`]) comes last.
//!
//! Most tests here ask the real kernel and share the machine with others that run meanwhile. A test that fails among
//! others and passes alone each time is *unsteady*: it is listed at the end, to be mended, and does not fail the run. What fails the run is
//! a test that fails alone too, more than [`UNSTEADY_MAX`], which chance does not explain, a program of tests that a signal ended or that
//! does not say which tests failed, and silence: what hangs is ended after [`SILENCE_MAX`].

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, PipeReader, Write};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use prepage_testing::{Failed, Failures, Program};
use rustix::process::{Pid, Signal, kill_process};

/// More than these failed for one reason.
const UNSTEADY_MAX: usize = 5;
/// So often the tests of a target are run alone: of those that fail every second time one in 256 passes each time.
const RUNS_ALONE: u32 = 8;
/// After so long none is run a second time: all of a run has to end in time.
const ALONE_MAX: Duration = Duration::from_secs(120);
/// Longer than any compilation or test says nothing. `PREPAGE_SUITE_SILENCE_S` is another time, in seconds.
const SILENCE_MAX: Duration = Duration::from_secs(600);
/// How often it is looked whether a program has ended whose pipe others hold: what its tests have left behind.
const LOOK: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    match Arguments::of(std::env::args().skip(1)).and_then(|arguments| run(&arguments)) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("suite: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What is to be run.
#[derive(Default)]
struct Arguments {
    /// Arguments of `cargo test`.
    cargo: Vec<String>,
    beside: Vec<Beside>,
}

/// A command that runs tests, and how many have to pass.
struct Beside {
    passes_min: usize,
    words: Vec<String>,
}

impl Arguments {
    fn of(mut arguments: impl Iterator<Item = String>) -> io::Result<Self> {
        let mut all = Self::default();
        while let Some(argument) = arguments.next() {
            if argument != "--beside" {
                all.cargo.push(argument);
                continue;
            }
            let text = arguments.next().unwrap_or_default();
            let mut words = text.split_whitespace().map(str::to_owned);
            let passes_min = words.next().and_then(|number| number.parse().ok());
            let words: Vec<String> = words.collect();
            let (Some(passes_min), false) = (passes_min, words.is_empty()) else {
                return Err(io::Error::other(format!("--beside needs a number and a command, not '{text}'")));
            };
            all.beside.push(Beside { passes_min, words });
        }
        Ok(all)
    }
}

fn run(arguments: &Arguments) -> io::Result<ExitCode> {
    let Some(programs) = compile(&arguments.cargo)? else { return Ok(ExitCode::FAILURE) };
    let (to_themselves, mut machine): (Vec<_>, Vec<_>) =
        programs.iter().partition(|program| program.is_to_itself());
    machine.sort_by_key(|program| program.turn());
    let (machine, last) = machine.split_at(machine.partition_point(|program| program.turn() == 0));
    let tests = Tests::default();
    let (first, second) = std::thread::scope(|scope| {
        let second = scope.spawn(|| {
            let examples = documentation(&arguments.cargo)?;
            tests.run_all(&to_themselves)?;
            let mut all_pass = true;
            for beside in &arguments.beside {
                all_pass &= passes(beside)?;
            }
            Ok::<_, io::Error>((examples, all_pass))
        });
        (tests.run_all(machine), second.join().expect("it does not panic"))
    });
    first?;
    let (examples, all_pass) = second?;
    tests.run_all(last)?;
    let (Some(examples), Some(tests), true) = (examples, tests.failed(), all_pass) else {
        println!("\nnot all that failed is known by its tests, or may be run once more");
        return Ok(ExitCode::FAILURE);
    };
    alone(&[tests, examples].concat())
}

/// Compiles all tests; their programs. `None` where something cannot be compiled.
fn compile(arguments: &[String]) -> io::Result<Option<Vec<Program>>> {
    let mut cargo = cargo_test(arguments);
    // Examples have no tests; lints compile them.
    cargo.args(["--no-run", "--tests", "--message-format=json-render-diagnostics"]);
    let mut programs = Vec::new();
    let status = watch(cargo, Streams::Out, |line| {
        programs.extend(Program::from_message(&String::from_utf8_lossy(line)));
    })?;
    if status.success() && programs.is_empty() {
        return Err(io::Error::other("cargo names no program of tests"));
    }
    Ok(status.success().then_some(programs))
}

/// Runs the examples in documentation. Those that failed; `None` where something failed of which no example is known.
fn documentation(arguments: &[String]) -> io::Result<Option<Vec<Failed>>> {
    let mut cargo = politely(&cargo_test(arguments));
    cargo.args(["--doc", "--no-fail-fast"]);
    let (mut failures, mut lines) = (Failures::default(), Vec::new());
    let status = watch(cargo, Streams::Both, |line| {
        failures.line(&String::from_utf8_lossy(line));
        lines.push(line.to_owned());
    })?;
    print(&lines);
    Ok(if status.success() { Some(Vec::new()) } else { failures.all().map(<[Failed]>::to_vec) })
}

/// Runs a command of tests. Whether it succeeds and as many pass as have to.
fn passes(beside: &Beside) -> io::Result<bool> {
    let mut command = Command::new(&beside.words[0]);
    command.args(&beside.words[1..]);
    let (mut passed, mut lines) = (0, vec![format!("     Running {}", beside.words.join(" ")).into_bytes()]);
    let status = watch(politely(&command), Streams::Both, |line| {
        passed += passed_by(line);
        lines.push(line.to_owned());
    })?;
    if !status.success() || passed < beside.passes_min {
        lines.push(
            format!("error: {passed} tests passed, of at least {}: {status}", beside.passes_min).into(),
        );
    }
    print(&lines);
    Ok(status.success() && passed >= beside.passes_min)
}

/// How many tests have passed, by this line of what a program of tests prints.
fn passed_by(line: &[u8]) -> usize {
    let line = String::from_utf8_lossy(line);
    let count = line.strip_prefix("test result: ok. ").and_then(|rest| rest.split(' ').next()?.parse().ok());
    count.unwrap_or(0)
}

/// The same command, which takes what processor time others leave.
fn politely(command: &Command) -> Command {
    let mut polite = Command::new("nice");
    polite.args(["-n", "10"]).arg(command.get_program()).args(command.get_args());
    polite
}

/// Runs what failed some times more, alone, and lists it if it passes each time.
fn alone(failed: &[Failed]) -> io::Result<ExitCode> {
    let count: usize = failed.iter().map(|failed| failed.tests.len()).sum();
    if count == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    if count > UNSTEADY_MAX {
        return Ok(ExitCode::FAILURE);
    }
    println!("\n{count} failed among others; once more, alone:");
    let (began, mut runs) = (Instant::now(), Vec::new());
    for failed in failed {
        let mut times = 0;
        while times == 0 || times < RUNS_ALONE && began.elapsed() <= ALONE_MAX {
            if !passes_alone(failed)? {
                return Ok(ExitCode::FAILURE);
            }
            times += 1;
        }
        runs.push(times);
    }
    println!("unsteady tests: {count}");
    for (failed, times) in failed.iter().zip(runs) {
        println!("  {}: {} (passed alone: {times})", failed.target.join(" "), failed.tests.join(", "));
    }
    Ok(ExitCode::SUCCESS)
}

fn passes_alone(failed: &Failed) -> io::Result<bool> {
    // Of the workspace, where `-p` would choose other features of its dependencies and compile them anew.
    let mut cargo = cargo_test(&["--locked".into(), "--workspace".into()]);
    cargo.args(failed.target.iter().skip_while(|argument| *argument != "-p").skip(2));
    cargo.args(["--", "--test-threads=1", "--exact"]).args(&failed.tests);
    // A name that no longer fits runs no test, and proves nothing.
    let mut passed = 0;
    let status = watch(cargo, Streams::Both, |line| {
        print(&[line.to_owned()]);
        passed += passed_by(line);
    })?;
    Ok(status.success() && passed >= failed.tests.len())
}

fn cargo_test(arguments: &[String]) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.arg("test").args(arguments);
    cargo
}

/// Programs of tests that have run.
#[derive(Default)]
struct Tests {
    failures: Mutex<Failures>,
    /// Programs that failed.
    failed: AtomicUsize,
    /// A program hangs: nothing more is begun.
    is_over: AtomicBool,
}

impl Tests {
    fn run_all(&self, programs: &[&Program]) -> io::Result<()> {
        for program in programs {
            if self.is_over.load(Ordering::Relaxed) {
                break;
            }
            self.run(program).inspect_err(|_| self.is_over.store(true, Ordering::Relaxed))?;
        }
        Ok(())
    }

    /// What the program prints is printed when it has ended, so that lines of two do not mix.
    fn run(&self, program: &Program) -> io::Result<()> {
        let mut command = Command::new(&program.path);
        command.current_dir(&program.directory).env("CARGO_MANIFEST_DIR", &program.directory);
        if let (Some(threads), None) = (program.threads(), std::env::var_os("RUST_TEST_THREADS")) {
            command.env("RUST_TEST_THREADS", threads.to_string());
        }
        let mut lines = vec![program.heading().into_bytes()];
        let status = watch(command, Streams::Both, |line| lines.push(line.to_owned()));
        let status = status.inspect_err(|_| print(&lines))?;
        if !status.success() {
            self.failed.fetch_add(1, Ordering::Relaxed);
            let target = program.target.join(" ");
            lines.push(format!("error: test failed, to rerun pass `{target}`").into_bytes());
            // It ends with 101 when it has said which tests failed.
            if status.code() != Some(101) {
                let path = program.path.display();
                lines.push(format!("  process didn't exit successfully: `{path}` ({status})").into_bytes());
            }
        }
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().for_each(|line| failures.line(&String::from_utf8_lossy(line)));
        print(&lines);
        Ok(())
    }

    /// All that failed; `None` where something failed of which no test is known.
    fn failed(self) -> Option<Vec<Failed>> {
        let mut failures = self.failures.into_inner().unwrap_or_else(PoisonError::into_inner);
        let failed = self.failed.into_inner();
        // As cargo ends.
        failures.line(&format!("error: {failed} targets failed:"));
        failures.all().map(<[Failed]>::to_vec)
    }
}

fn print(lines: &[Vec<u8>]) {
    let mut all = lines.join(&b'\n');
    all.push(b'\n');
    // Where nobody reads it the exit code tells.
    let _ = io::stdout().lock().write_all(&all);
}

/// Which of a program's streams are looked at; the others are this program's own.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Streams {
    Out,
    Both,
}

/// Runs `command` to its end, and shows each line that it prints to `see`.
///
/// # Errors
/// TimedOut where nothing was printed for too long; all is ended then.
fn watch(mut command: Command, streams: Streams, mut see: impl FnMut(&[u8])) -> io::Result<ExitStatus> {
    let silence_max = std::env::var("PREPAGE_SUITE_SILENCE_S").ok().and_then(|text| text.parse().ok());
    let silence_max = silence_max.map_or(SILENCE_MAX, Duration::from_secs);
    let (printed, writer): (PipeReader, _) = io::pipe()?;
    if streams == Streams::Both {
        command.stderr(writer.try_clone()?);
    }
    let mut child = command.stdin(Stdio::null()).stdout(writer).spawn()?;
    // Holds the pipe's other end.
    drop(command);
    let (tell, lines) = mpsc::channel();
    std::thread::spawn(move || BufReader::new(printed).split(b'\n').try_for_each(|line| tell.send(line)));
    let (mut heard, mut ended) = (Instant::now(), None);
    loop {
        match lines.recv_timeout(LOOK.min(silence_max)) {
            Ok(line) => {
                see(&line?);
                heard = Instant::now();
            }
            Err(RecvTimeoutError::Disconnected) => return ended.map_or_else(|| child.wait(), Ok),
            Err(RecvTimeoutError::Timeout) => {
                if let Some(status) = ended {
                    return Ok(status);
                }
                ended = child.try_wait()?;
                if ended.is_none() && heard.elapsed() >= silence_max {
                    let ended = end(&mut child)?;
                    let text = format!(
                        "nothing was said for {} s; ended: {}",
                        silence_max.as_secs(),
                        ended.join(", ")
                    );
                    return Err(io::Error::new(io::ErrorKind::TimedOut, text));
                }
            }
        }
    }
}

/// Ends `child` and all that it has started; their names.
fn end(child: &mut Child) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    let mut found = vec![child.id()];
    let parents = parents()?;
    while let Some(pid) = found.pop() {
        found.extend(parents.iter().filter(|(_, parent)| **parent == pid).map(|(child, _)| *child));
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        names.push(format!("{} ({pid})", name.trim()));
        if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
    child.wait()?;
    Ok(names)
}

/// All processes, each with the one that started it or took it over.
fn parents() -> io::Result<BTreeMap<u32, u32>> {
    let parent = |pid: u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
        Some((pid, parent.trim().parse().ok()?))
    };
    let entries = std::fs::read_dir("/proc")?.map_while(Result::ok);
    Ok(entries.filter_map(|entry| parent(entry.file_name().to_str()?.parse().ok()?)).collect())
}
