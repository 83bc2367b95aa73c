//! The service beside real programs on the real kernel. Each test has a service of its own that serves the programs of one directory.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use prepage_core::launches::{Launched, Launches};
use prepage_core::profile::{Lookup, Profile, ProfiledFile, Touches, file as profile_file};
use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_profiles::identity::{content_of, identity_of, open_to_read};
use prepage_profiles::{Layer, ProgramKey, StartContextPaths, Stores};
use prepage_service::socket::ask;
use prepage_sys::cachestat::{cached_pages, evict};
use prepage_testing::{Need, has};
use rustix::process::{Pid, Signal, kill_process};

/// Longer than anything takes here, on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(60);
const PAGES: u64 = 256;

/// A directory on a disk, that everybody may read and that is nobody's home.
struct Place(tempfile::TempDir);

impl Place {
    /// `None`, and a skip, where this machine does not allow the tests.
    fn new() -> Option<Self> {
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

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn layer(&self) -> PathBuf {
        self.path("layer")
    }

    fn stores(&self) -> Stores {
        let layers = Some(vec![self.layer()]);
        Stores::for_uid(0, &StartContextPaths { layers, ..StartContextPaths::default() }).unwrap()
    }

    /// A program of its own: a copy of sleep(1).
    fn program(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::copy(fs::canonicalize("/bin/sleep").unwrap(), &path).unwrap();
        path
    }

    /// A file on the disk and not in memory.
    fn cold_file(&self, name: &str, mode: u32) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, vec![1; (PAGES * PAGE_SIZE) as usize]).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let file = File::open(&path).unwrap();
        file.sync_all().unwrap();
        evict(file.as_fd(), PATIENCE).unwrap();
        assert_eq!(pages_in_memory(&path), 0);
        path
    }

    /// So many files that can be executed, and whose interpreter is missing.
    fn scripts(&self, count: usize) -> Vec<PathBuf> {
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

    /// Puts a profile into the machine's layer, whatever is in it: pages 8, 9 and 200 of each of the files.
    fn profile(&self, program: &Path, files: &[&Path]) {
        let key = ProgramKey::of(&[program.into(), "60".into()]).unwrap();
        let file = |path: &&Path| {
            let file = open_to_read(path).unwrap();
            let mut touches = Touches::default();
            [8, 9, 200].iter().enumerate().for_each(|(at, page)| touches.touch(PageIndex(*page), at as u32));
            ProfiledFile {
                path: path.to_str().unwrap().into(),
                identity: identity_of(&file).unwrap(),
                fingerprint: content_of(&file).unwrap(),
                learned_unix_s: 1,
                extents: touches.extents(),
            }
        };
        let mut profile = Profile {
            program: key.program.clone(),
            role: key.role.clone(),
            files: files.iter().map(file).collect(),
            lookups: vec![Lookup { path: "/no/such/name".into(), list: false, counts: Default::default() }],
            ..Profile::default()
        };
        // Learned often, and nothing is due.
        profile.history.observations = 8;
        let path = self.stores().path_of(&key, Layer::Machine).unwrap();
        fs::write(&path, profile_file::encode(&profile)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        // What tells the contents has been read.
        files.iter().for_each(|path| evict(File::open(path).unwrap().as_fd(), PATIENCE).unwrap());
    }
}

fn pages_in_memory(path: &Path) -> u64 {
    let all = PageRange::new(PageIndex(0), PageIndex(PAGES));
    cached_pages(File::open(path).unwrap().as_fd(), all).unwrap()
}

/// The file is opened to be executed, and then there is nothing to run it with: this process goes on.
fn execute_in_vain(script: &Path) {
    let error = Command::new(script).exec();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}");
}

/// Unmounted on every way out.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

/// Waits until `is` is so. Returns whether it came to be.
fn is_so_in_time(mut is: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + PATIENCE;
    while !is() {
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

/// A service.
struct Prepaged {
    child: Child,
    socket: PathBuf,
}

impl Prepaged {
    fn start(place: &Place, options: &[&str]) -> Self {
        let socket = place.path("socket");
        let mut child = Command::new(env!("CARGO_BIN_EXE_prepaged"))
            .args(["--socket".as_ref(), socket.as_os_str(), "--below".as_ref(), place.0.path().as_os_str()])
            .args(options)
            .env("PREPAGE_LAYERS", place.layer())
            .env("PREPAGE_STORE", place.path("own-store"))
            .env_remove("PREPAGE")
            .spawn()
            .unwrap();
        let answers = is_so_in_time(|| {
            assert!(child.try_wait().unwrap().is_none(), "the service has ended");
            ask(&socket).is_ok()
        });
        assert!(answers, "the service never answers");
        Self { child, socket }
    }

    fn status(&self) -> serde_json::Value {
        ask(&self.socket).unwrap()
    }

    fn count(&self, name: &str) -> u64 {
        self.status()["counts"][name].as_u64().unwrap()
    }

    /// Waits until `is` is so; says what the service says of itself where it never is.
    #[track_caller]
    fn wait_until(&self, what: &str, is: impl FnMut() -> bool) {
        if !is_so_in_time(is) {
            panic!("{what}: not within {PATIENCE:?}; {}", self.status());
        }
    }

    fn signal(&self, signal: Signal) {
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
struct Running(Child);

impl Running {
    fn start(program: &Path) -> Self {
        Self(Command::new(program).arg("60").spawn().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_known_program_has_its_pages_brought_in_and_nothing_that_not_everybody_may_read() {
    let Some(place) = Place::new() else { return };
    let program = place.program("known");
    let (open, secret) = (place.cold_file("open", 0o644), place.cold_file("secret", 0o600));
    place.profile(&program, &[&secret, &open]);
    let service = Prepaged::start(&place, &["--no-learn"]);
    assert_eq!(service.status()["machine_profiles"], 1);
    let _running = Running::start(&program);
    service.wait_until("it is fetched", || service.count("fetched_bytes") > 0);
    let in_memory = pages_in_memory(&open);
    assert!((3..PAGES / 2).contains(&in_memory), "{in_memory} pages");
    assert_eq!(pages_in_memory(&secret), 0);
    let status = service.status();
    let last = status["last_starts"].as_array().unwrap().last().unwrap();
    assert_eq!(last["program"], program.to_str().unwrap());
}

#[test]
fn a_program_that_is_executed_again_and_again_is_not_looked_at_each_time() {
    let Some(place) = Place::new() else { return };
    let program = place.program("known");
    place.profile(&program, &[&place.cold_file("open", 0o644)]);
    let service = Prepaged::start(&place, &["--no-learn"]);
    service.wait_until("starts are passed over", || {
        let _running = Running::start(&program);
        service.count("passed") > 0
    });
}

#[test]
fn a_program_of_several_roles_gets_that_of_its_arguments_and_an_unknown_role_what_they_share() {
    let Some(place) = Place::new() else { return };
    let program = place.program("known");
    let [a, b] = ["a", "b"].map(|name| place.cold_file(name, 0o644));
    place.profile(&program, &[&a]);
    let stores = place.stores();
    let key = ProgramKey::of(&[(&program).into(), "60".into()]).unwrap();
    let learned =
        stores.at_path(Layer::Machine, &stores.path_of(&key, Layer::Machine).unwrap()).unwrap().unwrap();
    place.profile(&program, &[&b]);
    let other = ProgramKey { role: format!("{} --other", key.role), ..key };
    let bytes = profile_file::encode(&Profile { role: other.role.clone(), ..learned });
    let path = stores.path_of(&other, Layer::Machine).unwrap();
    fs::write(&path, bytes).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let service = Prepaged::start(&place, &["--no-learn"]);
    assert_eq!(service.status()["machine_profiles"], 2);
    let _running = Running::start(&program);
    service.wait_until("it is fetched", || service.count("fetched_bytes") > 0);
    assert!(pages_in_memory(&b) >= 3 && pages_in_memory(&a) == 0);
}

/// setsid(1), env(1) and shells become the program within microseconds.
#[test]
fn a_program_that_another_one_becomes_is_fetched_for() {
    let Some(place) = Place::new() else { return };
    let ways = [
        &["setsid"][..],
        &["env", "A=b"],
        &["sh", "-c", "exec \"$0\" \"$1\""],
        &["setsid", "env", "sh", "-c", "exec \"$0\" 60"],
    ];
    let names = ["one", "two", "three", "four"];
    let known = names.map(|name| {
        let (program, file) = (place.program(name), place.cold_file(&format!("{name}.file"), 0o644));
        place.profile(&program, &[&file]);
        (program, file)
    });
    let service = Prepaged::start(&place, &["--no-learn"]);
    for (at, (way, (program, _))) in (1..).zip(ways.iter().zip(&known)) {
        let _running = Running(Command::new(way[0]).args(&way[1..]).arg(program).arg("60").spawn().unwrap());
        service.wait_until("it is told as itself", || {
            let status = service.status();
            let starts = status["last_starts"].as_array().unwrap();
            let name = program.file_name().unwrap().to_str().unwrap();
            let is_role = |role: &str| role.split(' ').next() == Some(name);
            starts.last().is_some_and(|last| {
                last["program"] == program.to_str().unwrap() && is_role(last["role"].as_str().unwrap())
            })
        });
        service.wait_until("it is fetched", || service.count("fetched") >= at);
    }
}

#[test]
fn what_is_expected_is_brought_in_and_its_use_is_counted() {
    let Some(place) = Place::new() else { return };
    let program = place.program("known");
    let file = place.cold_file("file", 0o644);
    place.profile(&program, &[&file]);
    let key = ProgramKey::of(&[(&program).into(), "60".into()]).unwrap();
    let what = Launched { program: key.program, role: key.role };
    // The last four days began with it.
    let mut launches = Launches::default();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    for days in (1..5).rev() {
        let then = now - days * 86_400;
        launches.launched(&what, false, then);
        launches.tick(then + 3000);
    }
    let log = place.layer().join("launches");
    fs::create_dir(&log).unwrap();
    fs::write(log.join("0"), launches.encode()).unwrap();
    let mut service = Prepaged::start(&place, &["--no-learn", "--idle-after", "0"]);
    service.wait_until("it is brought in", || service.count("predicted") > 0);
    // Whatever else is started on this machine stops it.
    let bytes = service.count("predicted_bytes");
    assert!((1..=3 * PAGE_SIZE).contains(&bytes), "{bytes}");
    let idle = &service.status()["idle"];
    assert_eq!((&idle["brought_programs"], &idle["expected"][0]["is_brought"]), (&1.into(), &true.into()));
    // The program itself is sleep(1): this process opens the file in its place.
    File::open(&file).unwrap();
    let _running = Running::start(&program);
    service.wait_until("it is counted", || service.count("predicted_used_bytes") > 0);
    let counts =
        ["predicted_starts", "predicted_used_bytes", "predicted_unused_bytes", "predicted_sent_out_bytes"];
    assert_eq!(counts.map(|name| service.count(name)), [1, bytes, 0, 0]);
    service.signal(Signal::TERM);
    assert!(service.child.wait().unwrap().success());
    assert_eq!(fs::metadata(log.join("0")).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(Launches::decode(&fs::read(log.join("0")).unwrap()).unwrap().programs() == 1);
}

#[test]
fn a_program_that_nobody_knows_is_learned_and_then_known() {
    let Some(place) = Place::new() else { return };
    let program = place.program("unknown");
    let mut service = Prepaged::start(&place, &[]);
    service.wait_until("it is learned", || {
        let before = service.count("observed");
        let _running = Running::start(&program);
        service.wait_until("it is observed", || service.count("observed") > before);
        service.count("learned") > 0
    });
    let listed = place.stores().list(Layer::Machine).unwrap();
    let [(path, Ok(profile))] = &listed[..] else { panic!("{listed:?}") };
    assert_eq!(profile.program, program.to_str().unwrap());
    assert!(profile.files.iter().any(|file| file.path == profile.program), "{:?}", profile.files);
    assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o644);
    assert_eq!(service.status()["machine_profiles"], 1);
    service.signal(Signal::TERM);
    assert!(service.child.wait().unwrap().success());
    assert!(!service.socket.exists());
}

#[test]
fn what_is_not_for_everybody_is_learned_for_its_user_alone() {
    let Some(place) = Place::new() else { return };
    let program = place.program("own");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
    let service = Prepaged::start(&place, &[]);
    service.wait_until("it is learned", || {
        let before = service.count("observed");
        let _running = Running::start(&program);
        service.wait_until("it is observed", || service.count("observed") > before);
        service.count("learned") > 0
    });
    assert!(place.stores().list(Layer::Machine).unwrap().is_empty());
    let own = Stores::at(place.path("own-store")).list(Layer::User).unwrap();
    let [(path, Ok(profile))] = &own[..] else { panic!("{own:?}") };
    assert_eq!(profile.program, program.to_str().unwrap());
    assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn nobody_waits_for_a_service_that_is_stopped_or_killed_and_another_takes_its_place() {
    let Some(place) = Place::new() else { return };
    let program = place.program("known");
    let file = place.cold_file("file", 0o644);
    place.profile(&program, &[&file]);
    let service = Prepaged::start(&place, &["--no-learn"]);
    service.signal(Signal::STOP);
    let run_some = || {
        for _ in 0..20 {
            assert!(Command::new(&program).arg("0").status().unwrap().success());
        }
    };
    run_some();
    service.signal(Signal::KILL);
    run_some();
    drop(service);
    assert!(place.path("socket").exists(), "it could not tidy up");
    let service = Prepaged::start(&place, &["--no-learn"]);
    let _running = Running::start(&program);
    service.wait_until("it is fetched", || service.count("fetched_bytes") > 0);
    assert!(pages_in_memory(&file) >= 3);
}

/// What the kernel says of a process's rights.
fn rights_of(service: &Prepaged, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", service.child.id())).unwrap();
    let value =
        status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("no {name}"));
    u64::from_str_radix(value.trim(), 16).unwrap()
}

#[test]
fn the_service_keeps_few_rights_and_filters_its_own_calls() {
    let Some(place) = Place::new() else { return };
    let own = fs::read_to_string("/proc/self/status").unwrap();
    let filters = |status: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix("Seccomp_filters:")).unwrap_or("0");
        value.trim().parse::<u32>().unwrap()
    };
    let service = Prepaged::start(&place, &["--no-learn"]);
    let confined = service.status()["confined"].clone();
    assert_eq!(confined["capabilities"], serde_json::Value::Null);
    assert_eq!(rights_of(&service, "NoNewPrivs:"), 1);
    // CAP_SYS_MODULE, CAP_NET_ADMIN, CAP_SYS_RAWIO, CAP_SYS_BOOT, CAP_SYS_TIME, CAP_MKNOD, CAP_SETPCAP
    for capability in [16, 12, 17, 22, 25, 27, 8] {
        for set in ["CapEff:", "CapPrm:", "CapInh:", "CapAmb:"] {
            assert_eq!(rights_of(&service, set) >> capability & 1, 0, "{set} {capability}");
        }
    }
    // fanotify(7) needs CAP_SYS_ADMIN.
    assert_eq!(rights_of(&service, "CapEff:") >> 21 & 1, 1);
    if confined["system_calls"].is_null() {
        let status = fs::read_to_string(format!("/proc/{}/status", service.child.id())).unwrap();
        assert_eq!(filters(&status), filters(&own) + 1);
    }
}

/// More files than the kernel keeps events are opened to be executed while the service is stopped.
#[test]
fn what_was_lost_in_a_storm_of_execs_is_counted_and_looked_for() {
    const EVENTS_MAX: usize = 20_000;
    let Some(place) = Place::new() else { return };
    let kept = fs::read_to_string("/proc/sys/fs/fanotify/max_queued_events").unwrap_or_default();
    let storm = kept.trim().parse::<usize>().map_or(EVENTS_MAX, |kept| kept + 100);
    if storm > EVENTS_MAX {
        return prepage_testing::skip(
            Need::Path("/proc/sys/fs/fanotify/max_queued_events of 16384".into()),
            format!("it says {kept}"),
        );
    }
    let program = place.program("known");
    let file = place.cold_file("file", 0o644);
    place.profile(&program, &[&file]);
    let scripts = place.scripts(storm);
    let service = Prepaged::start(&place, &["--no-learn"]);
    service.signal(Signal::STOP);
    scripts.iter().for_each(|script| execute_in_vain(script));
    let _running = Running::start(&program);
    service.signal(Signal::CONT);
    service.wait_until("the loss is counted", || service.count("lost") > 0);
    service.wait_until("the program is found", || service.count("fetched_bytes") > 0);
    assert!(pages_in_memory(&file) >= 3);
    let status = service.status();
    assert!(status["counts"]["rescanned"].as_u64().unwrap() > 0);
    let resident = status["resident_bytes"].as_u64().unwrap();
    assert!(resident < 64 << 20, "{resident} bytes after {storm} files");
}

#[test]
fn a_hundred_thousand_executables_take_bounded_memory() {
    const EXECUTABLES: usize = 100_000;
    let Some(place) = Place::new() else { return };
    let program = place.program("known");
    let file = place.cold_file("file", 0o644);
    place.profile(&program, &[&file]);
    let scripts = place.scripts(EXECUTABLES);
    let service = Prepaged::start(&place, &[]);
    let before = service.status()["resident_bytes"].as_u64().unwrap();
    // Unless others execute so much meanwhile that the kernel has no room.
    let sees = |executed| service.count("execs") >= executed as u64 || service.count("lost") > 0;
    for (at, script) in scripts.iter().enumerate() {
        execute_in_vain(script);
        // What the kernel has no room for would not be seen.
        if at % 8192 == 8191 {
            service.wait_until("they are seen", || sees(at));
        }
    }
    service.wait_until("all are seen", || sees(EXECUTABLES));
    let after = service.status()["resident_bytes"].as_u64().unwrap();
    assert!(after < before + (20 << 20), "{before} bytes before, {after} after");
    let _running = Running::start(&program);
    service.wait_until("it is fetched", || service.count("fetched") > 0);
}

#[test]
fn a_full_disk_keeps_nothing_and_is_used_again_when_there_is_room() {
    let Some(place) = Place::new() else { return };
    let program = place.program("unknown");
    let flags = rustix::mount::MountFlags::empty();
    let options = c"size=256k,mode=755";
    match rustix::mount::mount("none", place.layer(), "tmpfs", flags, Some(options)) {
        Ok(()) => {}
        Err(error @ rustix::io::Errno::PERM) => return prepage_testing::skip(Need::Mounts, error),
        Err(error) => panic!("{error}"),
    }
    let layer = place.layer();
    let _mounted = Mounted(&layer);
    let filler = layer.join("filler");
    let mut file = File::create(&filler).unwrap();
    while std::io::Write::write_all(&mut file, &[0; 4096]).is_ok() {}
    let mut service = Prepaged::start(&place, &[]);
    let start_until = |service: &Prepaged, what: &str, count: &str| {
        let before = service.count(count);
        service.wait_until(what, || {
            let observed = service.count("observed");
            let _running = Running::start(&program);
            service.wait_until("it is observed", || service.count("observed") > observed);
            service.count(count) > before
        });
    };
    start_until(&service, "nothing can be kept", "not_kept");
    assert!(place.stores().list(Layer::Machine).unwrap().is_empty());
    fs::remove_file(&filler).unwrap();
    drop(file);
    start_until(&service, "it is learned", "learned");
    assert_eq!(place.stores().list(Layer::Machine).unwrap().len(), 1);
    service.signal(Signal::TERM);
    assert!(service.child.wait().unwrap().success());
}

#[test]
fn file_systems_are_watched_as_they_come_and_go() {
    let Some(place) = Place::new() else { return };
    if !has(Need::LoopDevice) {
        return;
    }
    let image = place.path("image");
    File::create(&image).unwrap().set_len(16 << 20).unwrap();
    let quiet = |command: &mut Command| {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    quiet(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image));
    let service = Prepaged::start(&place, &["--no-learn"]);
    let point = place.path("mounted");
    fs::create_dir(&point).unwrap();
    let is_watched = || {
        let status = service.status();
        let all = status["file_systems"].as_array().unwrap().clone();
        all.iter().any(|one| one["point"] == point.to_str().unwrap() && one["is_watched"] == true)
    };
    quiet(Command::new("mount").args(["-o", "loop"]).args([&image, &point]));
    let mounted = Mounted(&point);
    service.wait_until("it is watched", is_watched);
    // The service keeps it from nobody.
    rustix::mount::unmount(&point, rustix::mount::UnmountFlags::empty()).unwrap();
    drop(mounted);
    service.wait_until("it is gone", || !is_watched());
}

/// A file system that never answers, mounted until this is dropped.
struct Hung<'a> {
    point: &'a Path,
    /// Whoever answers for it. Closed, all that wait are told so.
    device: Option<File>,
}

impl<'a> Hung<'a> {
    fn mount(point: &'a Path) -> Self {
        let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
        let options = std::ffi::CString::new(options).unwrap();
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("hung", point, "fuse", flags, Some(&*options)).unwrap();
        Self { point, device: Some(device) }
    }
}

impl Drop for Hung<'_> {
    fn drop(&mut self) {
        self.device.take();
        let _ = rustix::mount::unmount(self.point, rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
fn a_file_system_that_does_not_answer_holds_up_nobody_else() {
    let Some(place) = Place::new() else { return };
    if !has(Need::Path("/dev/fuse".into())) {
        return;
    }
    let [hanging, known] = ["hanging", "known"].map(|name| place.program(name));
    let [file, hung] = ["file", "hung"].map(|name| place.cold_file(name, 0o644));
    place.profile(&hanging, &[&hung]);
    place.profile(&known, &[&file]);
    // What its profile names lies on another file system by now.
    let point = place.path("point");
    fs::create_dir(&point).unwrap();
    let (stores, key) = (place.stores(), ProgramKey::of(&[(&hanging).into(), "60".into()]).unwrap());
    let path = stores.path_of(&key, Layer::Machine).unwrap();
    let mut profile = stores.at_path(Layer::Machine, &path).unwrap().unwrap();
    profile.files[0].path = point.join("hung").to_str().unwrap().into();
    fs::write(&path, profile_file::encode(&profile)).unwrap();
    let _hung = Hung::mount(&point);
    let mut service = Prepaged::start(&place, &["--no-learn"]);
    // More than there are threads to look at starts.
    let _hanging: Vec<Running> = (0..20).map(|_| Running::start(&hanging)).collect();
    let _running = Running::start(&known);
    service.wait_until("it is fetched", || service.count("fetched_bytes") > 0);
    assert!(pages_in_memory(&file) >= 3);
    service.signal(Signal::TERM);
    assert!(service.child.wait().unwrap().success());
}

#[test]
fn metrics_are_told_in_prometheus_format_and_starts_to_their_users_alone() {
    let Some(place) = Place::new() else { return };
    let program = place.program("program");
    let service = Prepaged::start(&place, &["--no-learn"]);
    let _running = Running::start(&program);
    service.wait_until("it is told", || {
        service.status()["last_starts"].as_array().is_some_and(|all| !all.is_empty())
    });
    let mut stream = std::os::unix::net::UnixStream::connect(&service.socket).unwrap();
    std::io::Write::write_all(&mut stream, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.0 200 OK\r\n"), "{text}");
    assert!(text.contains("\n# TYPE prepage_execs_total counter\nprepage_execs_total "), "{text}");
    assert!(!text.contains(program.to_str().unwrap()), "{text}");
    // Another user.
    let asked = Command::new("python3")
        .args([
            "-c",
            "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\n\
            s.sendall(b'status\\n')\nwhile part := s.recv(65536): sys.stdout.buffer.write(part)",
        ])
        .arg(&service.socket)
        .uid(54321)
        .stderr(Stdio::inherit())
        .output();
    if !has(Need::Tool("python3".into())) {
        return;
    }
    let asked = asked.unwrap();
    if !asked.status.success() {
        // A python in a place that this user may not enter.
        return prepage_testing::skip(Need::Tool("python3 for all users".into()), asked.status);
    }
    let status: serde_json::Value = serde_json::from_slice(&asked.stdout).unwrap();
    assert_eq!(status["last_starts"], serde_json::json!([]));
}
