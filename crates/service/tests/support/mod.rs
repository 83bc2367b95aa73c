//! A service of a test's own that serves the programs of one directory.
#![allow(dead_code, reason = "each test program uses a part")]

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use prepage_core::launches::{Launched, Launches};
use prepage_core::profile::{ColdStart, Lookup, Profile, file as profile_file};
use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_profiles::identity::{identity_at, profiled};
use prepage_profiles::{Layer, ProgramKey, StartContextPaths, Stores};
use prepage_service::socket::ask;
use prepage_sys::cachestat::{cached_pages, evict};
use prepage_sys::clock::unix_s;
use prepage_testing::{Need, has, skip, unless_late};
use rustix::process::{Pid, Signal, kill_process};

/// Longer than anything takes here, on the slowest machine.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// The service hangs up on whoever has not asked and heard all half a second after it took the call, whichever of the two was held up: what fails
/// after a little less is asked again.
pub const HANGS_UP: Duration = Duration::from_millis(400);
pub const PAGES: u64 = 256;

/// A directory on a disk, that everybody may read and that is nobody's home.
pub struct Place(pub tempfile::TempDir);

impl Place {
    /// `None`, and a skip, where this machine does not allow the tests.
    pub fn new() -> Option<Self> {
        let directory = PathBuf::from("/var/tmp");
        if !has(Need::Root) || !has(Need::Eviction(directory.clone())) {
            return None;
        }
        let place = Self(tempfile::tempdir_in(directory).unwrap());
        fs::set_permissions(place.0.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(place.layer()).unwrap();
        fs::set_permissions(place.layer(), fs::Permissions::from_mode(0o755)).unwrap();
        Some(place)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn layer(&self) -> PathBuf {
        self.path("layer")
    }

    pub fn stores(&self) -> Stores {
        let layers = Some(vec![self.layer()]);
        Stores::for_uid(0, &StartContextPaths { layers, ..StartContextPaths::default() }).unwrap()
    }

    /// A program of its own: a copy of sleep(1).
    pub fn program(&self, name: &str) -> PathBuf {
        copy(Path::new("/bin/sleep"), &self.path(name));
        self.path(name)
    }

    /// A copy of sh(1).
    pub fn shell(&self, name: &str) -> PathBuf {
        copy(Path::new("/bin/sh"), &self.path(name));
        self.path(name)
    }

    /// A copy of sleep(1) that the machine has a profile of, and the cold file that the profile names.
    pub fn known(&self, name: &str) -> (PathBuf, PathBuf) {
        let (program, file) = (self.program(name), self.cold_file(&format!("{name}.file"), 0o644));
        self.profile(&program, &[&file]);
        (program, file)
    }

    /// A home whose user has this configuration.
    pub fn home(&self, config: &str) -> PathBuf {
        fs::create_dir_all(self.path("home/.config/prepage")).unwrap();
        fs::write(self.path("home/.config/prepage/config"), config).unwrap();
        self.path("home")
    }

    /// A file on the disk and not in memory.
    pub fn cold_file(&self, name: &str, mode: u32) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, vec![1; (PAGES * PAGE_SIZE) as usize]).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        File::open(&path).unwrap().sync_all().unwrap();
        chill(&path);
        path
    }

    /// So many files that can be executed, and whose interpreter is missing.
    pub fn scripts(&self, count: usize) -> Vec<PathBuf> {
        let directory = self.path("scripts");
        fs::create_dir(&directory).unwrap();
        let script = |at: usize| {
            let path = directory.join(at.to_string());
            fs::write(&path, "#!/no/such/interpreter\n").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            path
        };
        (0..count).map(script).collect()
    }

    /// Writes root's launch log: the last four days before `until_unix_s` began with `program`. Returns where the log lies.
    pub fn expect(&self, program: &Path, until_unix_s: u64) -> PathBuf {
        self.expect_all(&[program], until_unix_s)
    }

    /// The same of several programs, which are brought in in this order.
    pub fn expect_all(&self, programs: &[&Path], until_unix_s: u64) -> PathBuf {
        let mut launches = Launches::default();
        for days in (1..5).rev() {
            let then = until_unix_s - days * 86_400;
            for program in programs {
                let key = ProgramKey::of(&[(*program).into(), "60".into()]).unwrap();
                launches.launched(&Launched { program: key.program, role: key.role }, false, then);
            }
            launches.tick(then + 3000);
        }
        let log = self.layer().join("launches");
        fs::create_dir_all(&log).unwrap();
        fs::write(log.join("0"), launches.encode()).unwrap();
        log.join("0")
    }

    /// Writes what fetching gained in cold starts of root's of each of `programs`: how long held-out ones took, and after them fetched ones.
    pub fn gained(&self, programs: &[&Path], held_out_us: &[u32], prefetched_us: &[u32]) {
        let device = identity_at(programs[0]).unwrap().device;
        let start =
            |held_out| move |&took_us: &u32| ColdStart { device, held_out, took_us, ..ColdStart::default() };
        let starts = held_out_us.iter().map(start(true)).chain(prefetched_us.iter().map(start(false)));
        let starts: Vec<_> = (1..).zip(starts).map(|(unix_s, start)| ColdStart { unix_s, ..start }).collect();
        let gains = programs.iter().flat_map(|program| {
            let ProgramKey { program, role } = ProgramKey::of(&[(*program).into(), "60".into()]).unwrap();
            profile_file::encode(&Profile { program, role, starts: starts.clone(), ..Profile::default() })
        });
        fs::create_dir_all(self.layer().join("gains")).unwrap();
        fs::write(self.layer().join("gains/0"), gains.collect::<Vec<u8>>()).unwrap();
    }

    /// Puts a profile into the machine's layer, whatever is in it: pages 8, 9 and 200 of each of the files.
    pub fn profile(&self, program: &Path, files: &[&Path]) {
        self.profile_in(&self.layer(), program, files);
    }

    /// The same into `directory`.
    pub fn profile_in(&self, directory: &Path, program: &Path, files: &[&Path]) {
        let key = ProgramKey::of(&[program.into(), "60".into()]).unwrap();
        let mut profile = Profile {
            program: key.program.clone(),
            role: key.role,
            files: files.iter().map(|path| profiled(path, [8, 9, 200]).unwrap()).collect(),
            lookups: vec![Lookup { path: "/no/such/name".into(), list: false, counts: Default::default() }],
            ..Profile::default()
        };
        // Learned often, nothing is due, and no sample is drawn of what was learned from in this minute: the programs use none of the files.
        profile.history.observations = 8;
        profile.history.updated_unix_s = unix_s() + 55;
        write_profile(directory, &profile);
        // What tells the contents has been read.
        files.iter().for_each(|path| evict(File::open(path).unwrap().as_fd(), PATIENCE).unwrap());
    }

    /// The profile that the machine's layer has of `program`.
    pub fn profile_of(&self, program: &Path) -> Profile {
        let key = ProgramKey::of(&[program.into(), "60".into()]).unwrap();
        let stores = self.stores();
        let path = stores.path_of(&key, Layer::Machine).unwrap();
        stores.at_path(Layer::Machine, &path).unwrap().unwrap()
    }

    /// Puts the same profile there for another role of `program`.
    pub fn profile_another_role(&self, program: &Path) {
        let profile = self.profile_of(program);
        write_profile(&self.layer(), &Profile { role: format!("{} --other", profile.role), ..profile });
    }
}

/// Has a process of its own write the file `to`: while this one had it open, another thread's child would have it open too, and nobody could
/// execute it.
pub fn copy(from: &Path, to: &Path) {
    quiet(Command::new("cp").args([from, to]));
}

pub fn quiet(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Writes a profile into `directory`, which others may not write to.
pub fn write_profile(directory: &Path, profile: &Profile) {
    fs::create_dir_all(directory).unwrap();
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).unwrap();
    let key = ProgramKey::of_profile(profile);
    let path = directory.join(key.file_name());
    fs::write(&path, profile_file::encode(profile)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
}

/// Sends a file out of memory. What somebody still reads comes back, and is sent out once more.
pub fn chill(path: &Path) {
    let is_out = || {
        evict(File::open(path).unwrap().as_fd(), PATIENCE).unwrap();
        pages_in_memory(path) == 0
    };
    assert!(is_so_in_time(is_out), "{} pages stay in memory", pages_in_memory(path));
}

pub fn pages_in_memory(path: &Path) -> u64 {
    let all = PageRange::new(PageIndex(0), PageIndex(PAGES));
    cached_pages(File::open(path).unwrap().as_fd(), all).unwrap()
}

/// The file is opened to be executed, and then there is nothing to run it with: this process goes on.
pub fn execute_in_vain(script: &Path) {
    let mut kind = None;
    // A child that another test has just made may still have it open to write.
    is_so_in_time(|| {
        kind = Some(Command::new(script).exec().kind());
        kind != Some(ErrorKind::ExecutableFileBusy)
    });
    assert_eq!(kind, Some(ErrorKind::NotFound));
}

/// Unmounted on every way out.
pub struct Mounted<'a>(pub &'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

/// How many questions the FUSE file system at `point` has not answered; `connections` is a file system of the kernel that tells.
pub fn waiting(connections: &Path, point: &Path) -> u32 {
    let mount = prepage_sys::mounts::mount_of(point).unwrap();
    let minor = mount.device & 0xf_ffff;
    fs::read_to_string(connections.join(format!("{minor}/waiting"))).unwrap().trim().parse().unwrap()
}

/// The processes that observe for the service.
pub fn observers(service: &Prepaged) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", service.child.id())).unwrap().flatten();
    let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    children.flat_map(|pids| pids.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// Waits until no start is observed any more, and the last one is counted.
pub fn wait_for_observations(service: &Prepaged) {
    let counts = || ["observed", "not_kept"].map(|name| service.count(name));
    let mut last = (counts(), Instant::now());
    service.wait_until("nothing is observed any more", || {
        let now = counts();
        if now != last.0 || !observers(service).is_empty() {
            last = (now, Instant::now());
        }
        last.1.elapsed() >= Duration::from_secs(2)
    });
}

/// Waits until `is` is so. Returns whether it came to be.
pub fn is_so_in_time(is: impl FnMut() -> bool) -> bool {
    is_so_within(PATIENCE, is)
}

/// The same for so long.
pub fn is_so_within(most: Duration, mut is: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + most;
    while !is() {
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

/// A service.
pub struct Prepaged {
    pub child: Child,
    pub socket: PathBuf,
}

impl Prepaged {
    pub fn start(place: &Place, options: &[&str]) -> Self {
        Self::start_with(place, options, |_| {})
    }

    /// The same after `prepare`.
    pub fn start_with(place: &Place, options: &[&str], prepare: impl FnOnce(&mut Command)) -> Self {
        let socket = place.path("socket");
        let mut command = Command::new(env!("CARGO_BIN_EXE_prepaged"));
        command
            .args(["--socket".as_ref(), socket.as_os_str(), "--below".as_ref(), place.0.path().as_os_str()])
            .args(options)
            .env("PREPAGE_LAYERS", place.layer())
            .env("PREPAGE_STORE", place.path("own-store"))
            .env_remove("PREPAGE");
        prepare(&mut command);
        let mut child = command.spawn().unwrap();
        let answers = is_so_in_time(|| {
            assert!(child.try_wait().unwrap().is_none(), "the service has ended");
            ask(&socket).is_ok()
        });
        assert!(answers, "the service never answers");
        Self { child, socket }
    }

    /// What it says to root.
    pub fn status(&self) -> serde_json::Value {
        unless_late(HANGS_UP, || ask(&self.socket).unwrap())
    }

    /// What it says to user `uid`; `None`, and a skip, where nothing can ask as that user.
    pub fn status_for(&self, uid: u32) -> Option<serde_json::Value> {
        let python = Need::Tool("python3 that all users may run".into());
        match Command::new("python3").args(["-c", ""]).uid(uid).status() {
            Ok(status) if status.success() => {}
            other => {
                skip(python, format!("{other:?}"));
                return None;
            }
        }
        // Asked again where it was hung up on late, as [`Self::status`] does.
        let asks = "import json, socket, sys, time\n\
            for again in reversed(range(5)):\n  \
              called = time.monotonic()\n  \
              try:\n    \
                s = socket.socket(socket.AF_UNIX)\n    \
                s.connect(sys.argv[1])\n    \
                s.sendall(b'status\\n')\n    \
                said = b''.join(iter(lambda: s.recv(65536), b''))\n    \
                json.loads(said)\n    \
                break\n  \
              except (BrokenPipeError, ConnectionResetError, ValueError):\n    \
                if not again or time.monotonic() - called < 0.4: raise\n\
            sys.stdout.buffer.write(said)";
        let mut command = Command::new("python3");
        command.args(["-c", asks]).arg(&self.socket).uid(uid).stderr(Stdio::inherit());
        let asked = command.output().unwrap();
        assert!(asked.status.success(), "every user may ask: {}", asked.status);
        Some(serde_json::from_slice(&asked.stdout).unwrap())
    }

    /// What it says to who scrapes it.
    pub fn metrics(&self) -> String {
        unless_late(HANGS_UP, || {
            let mut stream = UnixStream::connect(&self.socket).unwrap();
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            assert!(text.starts_with("HTTP/1.0 200 OK\r\n"), "{text}");
            text
        })
    }

    pub fn count(&self, name: &str) -> u64 {
        self.status()["counts"][name].as_u64().unwrap()
    }

    /// Whether the kernel tells the service of no executions of the file at `path` (proc_pid_fdinfo(5)).
    pub fn is_passed_over(&self, path: &Path) -> bool {
        let inode = format!(" ino:{:x} ", fs::metadata(path).unwrap().ino());
        let is_meant = |line: &str| {
            line.starts_with("fanotify ") && line.contains(&inode) && !line.contains(" ignored_mask:0 ")
        };
        // The service closes others meanwhile.
        let open = fs::read_dir(format!("/proc/{}/fdinfo", self.child.id())).unwrap().flatten();
        open.filter_map(|one| fs::read_to_string(one.path()).ok()).any(|text| text.lines().any(is_meant))
    }

    /// Waits until `is` is so; says what the service says of itself where it never is.
    #[track_caller]
    pub fn wait_until(&self, what: &str, is: impl FnMut() -> bool) {
        if !is_so_in_time(is) {
            panic!("{what}: not within {PATIENCE:?}; {}", self.status());
        }
    }

    /// Has what `start` starts observed.
    #[track_caller]
    pub fn observe(&self, start: impl FnOnce() -> Running) {
        let before = self.count("observed");
        let _running = start();
        self.wait_until("it is observed", || self.count("observed") > before);
    }

    /// Has what `start` starts observed, as often as it takes until something is learned.
    #[track_caller]
    pub fn learn(&self, mut start: impl FnMut() -> Running) {
        let before = self.count("learned");
        self.wait_until("it is learned", || {
            self.observe(&mut start);
            self.count("learned") > before
        });
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Prepaged {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program under way.
pub struct Running(pub Child);

impl Running {
    pub fn start(program: &Path) -> Self {
        Self(Command::new(program).arg("60").spawn().unwrap())
    }
}

/// Starts `program` again and again until `is` is so, which its starts bring about: it lives for `life`, and each time longer, so that also a slow machine
/// comes to look at one of them.
pub fn starts_until(service: &Prepaged, what: &str, program: &Path, life: Duration, is: impl Fn() -> bool) {
    let mut life = life;
    service.wait_until(what, || {
        let _running = Running::start(program);
        std::thread::sleep(life);
        life = (life + life / 4).min(Duration::from_millis(500));
        is()
    });
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
