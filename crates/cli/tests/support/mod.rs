//! A store of its own for each test, and the commands run on it.
#![allow(dead_code, reason = "each test binary uses its part")]

pub mod control_group;
pub mod place;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use prepage_sys::file_system::{kind_of, without_device};
use prepage_testing::{Doctor, Need, has, skip};
use rustix::process::Pid;

/// So often a start is made whose observer may come too late.
const STARTS_MAX: u32 = 5;

/// A directory on a disk (the system's temporary one may be in memory) with a profile store in it.
pub struct Sandbox {
    directory: tempfile::TempDir,
}

impl Sandbox {
    pub fn new() -> Self {
        agent();
        Self { directory: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap() }
    }

    /// The same in a place that is nobody's home, which a build tree often is in: what lies in homes stays there.
    pub fn outside_homes() -> Self {
        agent();
        Self { directory: tempfile::tempdir_in("/var/tmp").unwrap() }
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
        command.args(args).env("PREPAGE_STORE", self.store()).env("PREPAGE_LAYERS", "").stdin(Stdio::null());
        command
    }

    pub fn output(&self, args: &[&str]) -> Output {
        self.prepage(args).output().unwrap()
    }

    /// What came of a start in which what serves it was in time; `start` is made again, with the store as it was, while that came too late: the program
    /// waits for it no longer than half a second, and on a busy machine it may get no processor until then. Of a start without -v nobody tells.
    pub fn in_time(&self, mut start: impl FnMut() -> Output) -> Output {
        const LATE: [&str; 3] = ["the program does not wait", "has ended already", "was over before all was"];
        let kept = self.path().join("store-before");
        let copy = |from: &Path, to: &Path| {
            let script = "rm -rf \"$1\"; [ ! -e \"$0\" ] || cp -a \"$0\" \"$1\"";
            assert!(Command::new("sh").args(["-c", script]).args([from, to]).status().unwrap().success());
        };
        copy(&self.store(), &kept);
        for _ in 1..STARTS_MAX {
            let output = start();
            let told = text(&output.stderr);
            if !LATE.iter().any(|late| told.contains(late)) {
                return output;
            }
            eprintln!("once more: {told}");
            self.wait_for_helpers();
            copy(&kept, &self.store());
        }
        start()
    }

    /// The profile that a start left in the store, where there were none or others. Starts again, by `start`, while there is none: see [`Self::in_time`].
    pub fn learned_by(&self, mut start: impl FnMut()) -> PathBuf {
        let before = self.profiles();
        let new = || self.profiles().into_iter().find(|profile| !before.contains(profile));
        for _ in 1..STARTS_MAX {
            start();
            self.wait_for_helpers();
            if let Some(profile) = new() {
                return profile;
            }
        }
        start();
        wait_for("a profile in the store", new)
    }

    /// The profiles in the store. `prepage run` writes them after the program has ended, so tests wait for them.
    pub fn profiles(&self) -> Vec<PathBuf> {
        let Ok(entries) = std::fs::read_dir(self.store()) else { return Vec::new() };
        let paths = entries.map(|entry| entry.unwrap().path());
        paths.filter(|path| path.extension().is_some_and(|extension| extension == "profile")).collect()
    }

    /// What an ended program's start left in the store, once nobody writes it any more: in containers it is written while the program runs, too.
    pub fn wait_for_profile(&self) -> PathBuf {
        self.wait_for_helpers();
        wait_for("a profile in the store", || self.profiles().pop())
    }

    /// Waits for the end of what runs beside programs started on this store.
    pub fn wait_for_helpers(&self) {
        wait_for("the end of what ran beside", || helpers(self).is_empty().then_some(()));
    }
}

/// The agent, built beside the binaries, as `make install` has it: without it, names are not seen and pages not exactly.
pub fn agent() -> &'static Path {
    static AGENT: OnceLock<PathBuf> = OnceLock::new();
    AGENT.get_or_init(|| {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sys/agent");
        let agent = Path::new(env!("CARGO_BIN_EXE_prepage")).with_file_name("libprepage-agent.so");
        let modified = |path: &Path| path.metadata().and_then(|metadata| metadata.modified());
        let is_newer = |built| {
            let mut files = std::fs::read_dir(&sources).unwrap().map(|entry| entry.unwrap().path());
            files.all(|file| modified(&file).unwrap() < built)
        };
        if !modified(&agent).is_ok_and(is_newer) {
            // Renamed when it is whole: other test binaries do the same meanwhile.
            let new = agent.with_extension(std::process::id().to_string());
            let built = Command::new(sources.join("build")).arg(&new).status().unwrap();
            assert!(built.success(), "the agent does not build");
            std::fs::rename(&new, &agent).unwrap();
        }
        agent
    })
}

/// Waits until `look` finds something.
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
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

/// Whether page faults can be watched here; counts a skip where not.
#[track_caller]
pub fn can_learn(_: &Sandbox) -> bool {
    may(Doctor::Faults)
}

/// Whether `prepage doctor` finds the facility; counts a skip where it does not.
#[track_caller]
pub fn may(facility: Doctor) -> bool {
    let output = Command::new(env!("CARGO_BIN_EXE_prepage-tools")).args(["doctor", "--json"]).output();
    let lacks = facility.lacks(&output.unwrap().stdout);
    if let Some(found) = &lacks {
        skip(Need::Doctor(facility), found);
    }
    lacks.is_none()
}

#[track_caller]
pub fn is_root() -> bool {
    has(Need::Root)
}

/// Dates a file an hour back, and lets the clock of file times go on: what changed in the very moment a program starts
/// counts as changed by it.
pub fn make_old(path: &Path) {
    let hour_ago = SystemTime::now() - Duration::from_secs(3600);
    std::fs::File::options().write(true).open(path).unwrap().set_modified(hour_ago).unwrap();
    std::thread::sleep(Duration::from_millis(20));
}

/// Sends a file's pages out of memory, unless they have no other place.
pub fn evict(file: &std::fs::File) {
    let is_in_memory = kind_of(file).is_ok_and(|kind| without_device(kind).is_some());
    let patience = Duration::from_secs(if is_in_memory { 0 } else { 60 });
    prepage_sys::cachestat::evict(std::os::fd::AsFd::as_fd(file), patience).unwrap();
}

/// What a command printed as JSON.
pub fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", text(&output.stderr)))
}

/// What runs beside programs started on this sandbox's store.
pub fn helpers(sandbox: &Sandbox) -> Vec<Pid> {
    let starter = std::fs::canonicalize(env!("CARGO_BIN_EXE_prepage")).unwrap();
    let store = format!("PREPAGE_STORE={}", sandbox.store().display());
    let is_helper = |process: &PathBuf| {
        let environment = std::fs::read(process.join("environ")).unwrap_or_default();
        std::fs::read_link(process.join("exe")).is_ok_and(|exe| exe == starter)
            && environment.split(|&byte| byte == 0).any(|variable| variable == store.as_bytes())
    };
    let processes = std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    let pid = |process: PathBuf| Pid::from_raw(process.file_name()?.to_str()?.parse().ok()?);
    processes.filter(is_helper).filter_map(pid).collect()
}
