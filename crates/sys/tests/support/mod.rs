//! Programs run with the agent in them.

#![allow(dead_code)] // Each test binary uses its part.

pub mod strace;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use prepage_testing::{Need, has};

use prepage_sys::agent::{
    Ending, Event, FirstTouches, Log, Lookup, Receiver, Record, Sent, may_arm, variables,
};

const LOG_BYTES: u64 = 16 << 20;

/// The agent, built once for this test binary.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("{}/libprepage-agent.so", std::process::id()));
        std::fs::create_dir_all(path.parent().expect("below the target directory")).unwrap();
        let build = concat!(env!("CARGO_MANIFEST_DIR"), "/agent/build");
        let status = Command::new(build).arg(&path).status().expect("agent/build is a script");
        assert!(status.success(), "the agent does not build");
        path
    })
}

/// A log, a receiver, and what came of them.
pub struct Observation {
    log: Log,
    receiver: Receiver,
}

/// What a program left in both.
pub struct Observed {
    pub output: Output,
    pub records: Vec<Record>,
    pub received: Vec<FirstTouches>,
    pub lost: prepage_sys::agent::Lost,
}

impl Observation {
    pub fn new() -> Self {
        let log = Log::create(LOG_BYTES).unwrap();
        let receiver = Receiver::bind(&log).unwrap();
        Self { log, receiver }
    }

    /// Adds the agent to `command`, behind all its other variables.
    pub fn enter<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let explicit: Vec<_> =
            command.get_envs().map(|(name, value)| (name.to_owned(), value.map(ToOwned::to_owned))).collect();
        let audit = explicit.iter().find(|(name, _)| name == "LD_AUDIT").and_then(|(_, value)| value.clone());
        let log = self.log.variable(may_arm().is_ok());
        command.envs(variables(library(), &log, audit.or_else(|| std::env::var_os("LD_AUDIT")).as_deref()))
    }

    pub fn log(&self) -> &Log {
        &self.log
    }

    /// What came so far.
    pub fn take(&mut self, output: Output) -> Observed {
        let records = self.log.read_last().unwrap();
        let received = std::iter::from_fn(|| self.receive()).collect();
        Observed { output, records, received, lost: self.log.lost().unwrap() }
    }

    /// A process that waits at its end by now.
    pub fn ending(&mut self) -> Option<Ending> {
        loop {
            match self.receiver.receive().unwrap()? {
                Sent::Ending(ending) => return Some(ending),
                Sent::FirstTouches(_) => {}
            }
        }
    }

    pub fn receive(&mut self) -> Option<FirstTouches> {
        match self.receiver.receive().unwrap()? {
            Sent::FirstTouches(touches) => Some(touches),
            ending @ Sent::Ending(_) => panic!("nobody asked for {ending:?}"),
        }
    }
}

/// Runs `command` to its end with the agent in it.
pub fn observe(command: &mut Command) -> Observed {
    let mut observation = Observation::new();
    let output = observation.enter(command).stdin(Stdio::null()).output().unwrap();
    observation.take(output)
}

impl Observed {
    /// Names looked up, each once.
    pub fn names(&self) -> BTreeSet<PathBuf> {
        let name = |record: &Record| match &record.event {
            Event::Name { path, .. } | Event::Executed { path, .. } | Event::Started { path, .. } => {
                Some(path.clone())
            }
            Event::Read { .. }
            | Event::Mapped { .. }
            | Event::Touched { .. }
            | Event::Told
            | Event::GoesOn => None,
        };
        self.records.iter().filter_map(name).collect()
    }

    /// Whether `path` was looked up that way.
    pub fn has(&self, path: &str, how: Lookup) -> bool {
        self.records.iter().any(|record| match &record.event {
            Event::Name { path: name, lookup } => name == Path::new(path) && *lookup == how,
            _ => false,
        })
    }

    /// Programs that the agent entered.
    pub fn started(&self) -> Vec<&Path> {
        let path = |record: &'_ Record| matches!(record.event, Event::Started { .. });
        self.records
            .iter()
            .filter(|record| path(record))
            .filter_map(|record| match &record.event {
                Event::Started { path, .. } => Some(path.as_path()),
                _ => None,
            })
            .collect()
    }
}

pub fn command(program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    // An environment in a known order, with and without the agent.
    command.args(args).env("PREPAGE_TEST", "kept").env_remove("LD_AUDIT");
    command
}

/// Compiles `source` to a file in `dir`.
pub fn compile(dir: &Path, flags: &[&str], source: &str) -> PathBuf {
    let (input, output) = (dir.join("test.c"), dir.join("test"));
    std::fs::write(&input, source).unwrap();
    let built = Command::new("gcc").args(flags).arg(&input).arg("-o").arg(&output).status().unwrap();
    assert!(built.success(), "{source}");
    output
}

/// A program of one test, and the directory it lies in.
pub struct Built {
    pub dir: tempfile::TempDir,
    program: PathBuf,
}

impl std::ops::Deref for Built {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.program
    }
}

/// `source`, compiled; `None` where there is no compiler.
pub fn built(flags: &[&str], source: &str) -> Option<Built> {
    let dir = tool("gcc").then(|| tempfile::tempdir().unwrap())?;
    Some(Built { program: compile(dir.path(), flags, source), dir })
}

pub fn tool(name: &str) -> bool {
    has(Need::Tool(name.to_owned()))
}

/// Runs `command` with the agent and without, compares what comes out, and returns what the agent saw.
pub fn same_with_and_without(program: &str, args: &[&str]) -> Observed {
    let plain = command(program, args).stdin(Stdio::null()).output().unwrap();
    let observed = observe(&mut command(program, args));
    assert_eq!(observed.output.status, plain.status, "{program} {args:?}");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(text(&observed.output.stdout), text(&plain.stdout), "{program} {args:?}");
    assert_eq!(text(&observed.output.stderr), text(&plain.stderr), "{program} {args:?}");
    assert!(!observed.started().is_empty(), "the agent was not in {program}");
    assert_eq!(observed.lost.dropped, 0);
    observed
}
