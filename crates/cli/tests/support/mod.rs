//! A store of its own for each test, and the commands run on it.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime};

/// A directory on a disk (the system's temporary one may be in memory) with a profile store in it.
pub struct Sandbox {
    directory: tempfile::TempDir,
}

impl Sandbox {
    pub fn new() -> Self {
        Self { directory: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap() }
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn store(&self) -> PathBuf {
        self.path().join("store")
    }

    /// `prepage ARGS`, with this sandbox's store and nothing on standard input.
    pub fn prepage(&self, args: &[&str]) -> Command {
        self.command(env!("CARGO_BIN_EXE_prepage"), args)
    }

    /// The same, ended by signals that the tests themselves may have been started to ignore (nohup, a shell's background).
    pub fn mortal(&self, args: &[&str]) -> Command {
        self.command("env", &[&["--default-signal", env!("CARGO_BIN_EXE_prepage")], args].concat())
    }

    /// `PROGRAM ARGS`, in the same way.
    pub fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(args).env("PREPAGE_STORE", self.store()).stdin(Stdio::null());
        command
    }

    pub fn output(&self, args: &[&str]) -> Output {
        self.prepage(args).output().unwrap()
    }

    /// The profiles in the store. `prepage run` writes them after the program has ended, so tests wait for them.
    pub fn profiles(&self) -> Vec<PathBuf> {
        let Ok(entries) = std::fs::read_dir(self.store()) else { return Vec::new() };
        let paths = entries.map(|entry| entry.unwrap().path());
        paths.filter(|path| path.extension().is_some_and(|extension| extension == "profile")).collect()
    }

    pub fn wait_for_profile(&self) -> PathBuf {
        wait_for("a profile in the store", || self.profiles().pop())
    }
}

/// Waits until `look` finds something.
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Whether page faults can be watched here; says loudly why a test is skipped where not.
pub fn can_learn(sandbox: &Sandbox) -> bool {
    can(sandbox, "page faults (record, learning)")
}

/// Whether the doctor finds `name` to work, fully or with less than it could.
pub fn can(sandbox: &Sandbox, name: &str) -> bool {
    let output = sandbox.output(&["doctor", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["name"] == name).unwrap();
    if check["state"] == "missing" {
        eprintln!("SKIPPED: {name}: {} (try: {})", check["found"], check["remedy"]);
    }
    check["state"] != "missing"
}

pub fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: needs root");
    }
    root
}

/// Dates a file an hour back, and lets the clock of file times go on: what changed in the very moment a program starts
/// counts as changed by it.
pub fn make_old(path: &Path) {
    let hour_ago = SystemTime::now() - Duration::from_secs(3600);
    std::fs::File::options().write(true).open(path).unwrap().set_modified(hour_ago).unwrap();
    std::thread::sleep(Duration::from_millis(20));
}

/// Sends a file's pages out of memory.
pub fn evict(file: &std::fs::File) {
    prepage_sys::cachestat::evict(std::os::fd::AsFd::as_fd(file), Duration::from_secs(1)).unwrap();
}

/// What a command printed as JSON.
pub fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", text(&output.stderr)))
}
