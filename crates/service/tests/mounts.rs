//! The service where file systems come, go, hang, and are many.

mod support;

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use prepage_core::profile::file as profile_file;
use prepage_profiles::{Layer, ProgramKey};
use prepage_sys::cachestat::evict;
use prepage_sys::clock::unix_s;
use prepage_testing::{Hung, Need, has, is_child, passes_as_child, this_test};
use rustix::process::Signal;

use support::*;

#[test]
fn file_systems_are_watched_as_they_come_and_go() {
    let Some(place) = Place::new() else { return };
    if !has(Need::LoopDevice) {
        return;
    }
    let (image, point) = file_system(&place);
    let service = Prepaged::start(&place, &["--no-learn"]);
    quiet(Command::new("mount").args(["-o", "loop"]).args([&image, &point]));
    let mounted = Mounted(&point);
    let is_watched = || is_watched(&service, &point);
    service.wait_until("it is watched", is_watched);
    // The service keeps it from nobody.
    rustix::mount::unmount(&point, NO_FLAGS).unwrap();
    drop(mounted);
    service.wait_until("it is gone", || !is_watched());
}

/// Nobody else learns why the service is gone, and systemd starts it a few times only.
#[test]
fn a_service_that_cannot_read_the_mounts_for_a_moment_goes_on() {
    let Some(place) = Place::new() else { return };
    if !has(Need::LoopDevice) {
        return;
    }
    let (image, point) = file_system(&place);
    let mut service = Prepaged::start(&place, &["--no-learn"]);
    let pid = Some(rustix::process::Pid::from_child(&service.child));
    let open_files = rustix::process::Resource::Nofile;
    let before = rustix::process::getrlimit(open_files);
    let limit = |current| {
        let limit = rustix::process::Rlimit { current, ..before };
        rustix::process::prlimit(pid, open_files, limit).unwrap()
    };
    // poll(2) is refused where more files are asked for than may be open.
    let usual = limit(Some(4)).current;
    quiet(Command::new("mount").args(["-o", "loop"]).args([&image, &point]));
    let _mounted = Mounted(&point);
    std::thread::sleep(Duration::from_secs(2));
    assert!(service.child.try_wait().unwrap().is_none(), "it has ended");
    limit(usual);
    service.wait_until("the file system is watched", || is_watched(&service, &point));
}

#[test]
fn what_lies_on_a_file_system_is_fetched_when_it_is_mounted_otherwise_and_anew() {
    let Some(place) = Place::new() else { return };
    if !has(Need::LoopDevice) {
        return;
    }
    let (image, point) = file_system(&place);
    quiet(Command::new("mount").args(["-o", "loop"]).args([&image, &point]));
    let _mounted = Mounted(&point);
    let (program, file) = place.known("mounted/known");
    let service = Prepaged::start(&place, &["--no-learn"]);
    let is_fetched = || {
        evict(File::open(&file).unwrap().as_fd(), PATIENCE).unwrap();
        let life = Duration::from_millis(20);
        starts_until(&service, "it is fetched", &program, life, || pages_in_memory(&file) >= 3);
    };
    is_fetched();
    quiet(Command::new("mount").args(["-o", "remount,ro"]).arg(&point));
    is_fetched();
    // What is fetched keeps it from nobody for longer than that takes.
    service.wait_until("it is unmounted", || rustix::mount::unmount(&point, NO_FLAGS).is_ok());
    service.wait_until("it is gone", || !is_watched(&service, &point));
    // A namespace of mounts that another test has made meanwhile may hold it, to be read only, until that test ends.
    let is_mounted =
        || Command::new("mount").args(["-o", "loop"]).args([&image, &point]).stderr(Stdio::null()).status();
    service.wait_until("it is mounted anew", || is_mounted().unwrap().success());
    service.wait_until("it is watched", || is_watched(&service, &point));
    is_fetched();
}

const NO_FLAGS: rustix::mount::UnmountFlags = rustix::mount::UnmountFlags::empty();

/// An image with a file system, and a directory to mount it at.
fn file_system(place: &Place) -> (PathBuf, PathBuf) {
    let [image, point] = ["image", "mounted"].map(|name| place.path(name));
    File::create(&image).unwrap().set_len(16 << 20).unwrap();
    quiet(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image));
    fs::create_dir(&point).unwrap();
    (image, point)
}

/// Whether `service` sees what is executed on the file system mounted at `point`.
fn is_watched(service: &Prepaged, point: &Path) -> bool {
    let status = service.status();
    let mut all = status["file_systems"].as_array().unwrap().iter();
    all.any(|one| one["point"] == point.to_str().unwrap() && one["is_watched"] == true)
}

#[test]
fn a_file_system_that_does_not_answer_holds_up_nobody_else() {
    let Some(place) = Place::new() else { return };
    if !has(Need::Path("/dev/fuse".into())) {
        return;
    }
    let (hanging, (known, file)) = (place.program("hanging"), place.known("known"));
    let point = hanging_point(&place, &hanging);
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

/// None of them was slow before: all of one user's come before any of them is.
#[test]
fn a_burst_of_starts_on_a_file_system_that_has_died_holds_up_nobody_else() {
    const NOBODY: u32 = 65534;
    let Some(place) = Place::new() else { return };
    if !has(Need::Path("/dev/fuse".into())) {
        return;
    }
    let (known, _) = place.known("known");
    let point = place.path("point");
    fs::create_dir(&point).unwrap();
    let mut hanging = Vec::new();
    let service = Prepaged::start(&place, &["--no-learn"]);
    // Dropped before those who wait for it: some wait until others do not, whoever kills them.
    let _hung = Hung::mount(&point);
    for _ in 0..40 {
        let mut script = Command::new("/bin/sh");
        script.arg(point.join("x")).uid(NOBODY).stderr(Stdio::null());
        hanging.push(Running(script.spawn().unwrap()));
    }
    service.wait_until("they are seen", || service.count("starts") >= 2);
    let _running = Running::start(&known);
    service.wait_until("it is fetched", || service.count("fetched_bytes") > 0);
    let passed_over = || service.count("hung") + service.count("crowded");
    service.wait_until("those that wait are passed over", || passed_over() >= 30);
}

/// Gives `program` a profile whose file lies on a file system that is still to be mounted. Returns where.
fn hanging_point(place: &Place, program: &Path) -> PathBuf {
    let point = place.path("point");
    fs::create_dir(&point).unwrap();
    name_hung_file(place, program, &point);
    point
}

/// Gives `program` a profile with a file below `point`.
fn name_hung_file(place: &Place, program: &Path, point: &Path) {
    place.profile(program, &[&place.cold_file("hung", 0o644)]);
    let mut profile = place.profile_of(program);
    profile.files[0].path = point.join("hung").to_str().unwrap().into();
    write_profile(&place.layer(), &profile);
}

#[test]
fn a_file_system_that_goes_away_while_somebody_waits_for_it_is_waited_for_no_longer() {
    let Some(place) = Place::new() else { return };
    if !has(Need::Path("/dev/fuse".into())) {
        return;
    }
    let program = place.program("hanging");
    let point = hanging_point(&place, &program);
    let hung = Hung::mount(&point);
    let service = Prepaged::start(&place, &["--no-learn"]);
    let life = Duration::from_millis(20);
    let finds_it_so = || service.count("hung") > 0;
    starts_until(&service, "one start waits, and another finds it so", &program, life, finds_it_so);
    drop(hung);
    // The same file, where nothing is mounted any more.
    let file = place.cold_file("point/hung", 0o644);
    starts_until(&service, "it is fetched", &program, life, || pages_in_memory(&file) >= 3);
}

#[test]
fn one_thread_waits_for_a_file_system_that_does_not_answer_whoever_starts_whatever_program() {
    const STARTS: u64 = 20;
    let Some(place) = Place::new() else { return };
    if !has(Need::Path("/dev/fuse".into())) {
        return;
    }
    let programs = ["first", "second", "third"].map(|name| place.program(name));
    let point = hanging_point(&place, &programs[0]);
    programs[1..].iter().for_each(|program| name_hung_file(&place, program, &point));
    let connections = place.path("connections");
    fs::create_dir(&connections).unwrap();
    rustix::mount::mount("none", &connections, "fusectl", rustix::mount::MountFlags::empty(), None).unwrap();
    let _mounted = Mounted(&connections);
    let _hung = Hung::mount(&point);
    let service = Prepaged::start(&place, &["--no-learn"]);
    let mut running = Vec::new();
    service.wait_until("all but one are passed over", || {
        for (uid, program) in (65_000..).zip(&programs) {
            running.push(Running(Command::new(program).arg("60").uid(uid).spawn().unwrap()));
        }
        std::thread::sleep(std::time::Duration::from_millis(200));
        service.count("hung") >= STARTS
    });
    // The kernel's own question, when it was mounted, is one.
    assert_eq!(waiting(&connections, &point), 2);
}

/// Nobody starts any of them: what is waited for in vain is read ahead.
#[test]
fn a_file_system_that_does_not_answer_holds_up_nothing_else_that_is_expected_and_is_asked_once() {
    let Some(place) = Place::new() else { return };
    if !has(Need::Path("/dev/fuse".into())) {
        return;
    }
    let [first, second] = ["first", "second"].map(|name| place.program(name));
    let (known, _) = place.known("known");
    let point = hanging_point(&place, &first);
    name_hung_file(&place, &second, &point);
    place.expect_all(&[&first, &second, &known], unix_s());
    let _hung = Hung::mount(&point);
    let mut service = Prepaged::start(&place, &["--no-learn", "--idle-after", "0"]);
    service.wait_until("the one behind them is brought in", || service.count("predicted") > 0);
    service.wait_until("names are looked up", || service.count("name_rounds") > 0);
    // By whoever came first of the two: the other has passed it over.
    assert_eq!((service.count("hung"), &service.status()["hanging_threads"]), (1, &1.into()));
    service.signal(Signal::TERM);
    assert!(service.child.wait().unwrap().success());
}

/// What somebody expected looks for first: a file system that does not answer stands in PATH before another.
#[test]
fn a_directory_of_path_that_does_not_answer_is_asked_once_and_those_behind_it_are_asked() {
    let Some(place) = Place::new() else { return };
    if !has(Need::Path("/dev/fuse".into())) {
        return;
    }
    let points = ["first", "second", "connections"].map(|name| place.path(name));
    points.iter().for_each(|point| fs::create_dir(point).unwrap());
    let [first, second, connections] = points;
    rustix::mount::mount("none", &connections, "fusectl", rustix::mount::MountFlags::empty(), None).unwrap();
    let _mounted = Mounted(&connections);
    let _hung = [Hung::mount(&first), Hung::mount(&second)];
    // One after the other: some are still to come when the service has seen where somebody looks for programs.
    let file = place.cold_file("file", 0o644);
    let expected: Vec<PathBuf> = (0..8).map(|at| place.program(&format!("expected{at}"))).collect();
    expected.iter().for_each(|program| place.profile(program, &[&file]));
    place.expect_all(&expected.iter().map(PathBuf::as_path).collect::<Vec<_>>(), unix_s());
    // Only what has a profile says where its user looks for programs.
    let other = place.program("other");
    place.profile(&other, &[&file]);
    let service = Prepaged::start(&place, &["--no-learn", "--idle-after", "0"]);
    let path = std::env::join_paths([&first, &second]).unwrap();
    let _running = Running(Command::new(other).arg("60").env("PATH", path).spawn().unwrap());
    // The kernel's own question, when it was mounted, is one.
    service.wait_until("the second is asked", || waiting(&connections, &second) == 2);
    assert_eq!(waiting(&connections, &first), 2);
}

/// Whether this is a process whose mounts nobody else sees. If not, the calling test is run in one; what it does goes with it.
fn has_own_mounts() -> bool {
    if is_child(&this_test()) {
        return true;
    }
    if has(Need::Root) && has(Need::Mounts) {
        passes_as_child(&["unshare", "--mount", "--propagation", "private"]);
    }
    false
}

/// Half of each: other file systems, and other places of one that is watched.
fn mount_many(place: &Place, below: &Path, count: usize) {
    let flags = rustix::mount::MountFlags::empty();
    for at in 0..count {
        let point = below.join(at.to_string());
        fs::create_dir_all(&point).unwrap();
        match at % 2 {
            0 => rustix::mount::mount("none", &point, "tmpfs", flags, None).unwrap(),
            _ => rustix::mount::mount_bind(place.layer(), &point).unwrap(),
        }
    }
}

#[test]
fn ten_thousand_mounts_take_bounded_memory_and_hide_no_program() {
    const MOUNTS: usize = 10_000;
    const EXECS: usize = 2_000;
    if !has_own_mounts() {
        return;
    }
    let Some(place) = Place::new() else { return };
    let (program, _) = place.known("known");
    let scripts = place.scripts(EXECS);
    let many = place.path("many");
    fs::create_dir(&many).unwrap();
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("none", &many, "tmpfs", flags, None).unwrap();
    // With all that lies on it.
    let _mounted = Mounted(&many);
    let few = Prepaged::start(&place, &["--no-learn"]);
    let before = few.status()["resident_bytes"].as_u64().unwrap();
    drop(few);
    let [first, second] = ["first", "second"].map(|name| many.join(name));
    mount_many(&place, &first, MOUNTS / 2);
    let service = Prepaged::start(&place, &["--no-learn"]);
    // Programs are executed while mounts come.
    std::thread::scope(|scope| {
        let execs = scope.spawn(|| scripts.iter().for_each(|script| execute_in_vain(script)));
        mount_many(&place, &second, MOUNTS / 2);
        execs.join().unwrap();
    });
    let sees = || service.count("execs") >= EXECS as u64 || service.count("lost") > 0;
    service.wait_until("all execs are seen", sees);
    let _running = Running::start(&program);
    service.wait_until("it is fetched", || service.count("fetched_bytes") > 0);
    let after = service.status()["resident_bytes"].as_u64().unwrap();
    assert!(after < before + (20 << 20), "{before} bytes before, {after} after");
}

#[test]
fn the_machines_profiles_take_what_its_configuration_says_from_a_reload_on() {
    const SIZE: u64 = 100 << 10;
    if !has_own_mounts() {
        return;
    }
    let Some(place) = Place::new() else { return };
    let _mounted = configured(&place, "");
    (0..40).for_each(|at| {
        let junk = File::create(place.layer().join(format!("{at}.profile"))).unwrap();
        junk.set_len(SIZE).unwrap();
    });
    let taken = || prepage_profiles::room::taken_in(&place.layer()).1;
    let service = Prepaged::start(&place, &[]);
    // Each another one: what is known is hardly ever learned again.
    let mut programs = (0..).map(|number| place.program(&format!("program-{number}")));
    let mut learn = || {
        let (program, before) = (programs.next().unwrap(), service.count("learned"));
        // One that is killed at once has used nothing.
        let life = Duration::from_millis(50);
        starts_until(&service, "it is learned", &program, life, || service.count("learned") > before);
    };
    learn();
    assert!(taken() >= 40 * SIZE, "{}", taken());
    fs::write("/etc/prepage.conf", "store-max = 1M\n").unwrap();
    service.signal(Signal::HUP);
    service.wait_until("there is room", || {
        learn();
        taken() <= 1 << 20
    });
}

#[test]
fn of_a_user_who_wants_nothing_done_nothing_is_remembered() {
    if !has_own_mounts() {
        return;
    }
    let Some(place) = Place::new() else { return };
    let _mounted = configured(&place, "");
    let home = place.home("enabled = no\n");
    fs::write("/etc/passwd", format!("root:x:0:0::{}:/bin/sh\n", home.display())).unwrap();
    let program = place.program("known");
    let log = place.expect(&program, unix_s());
    let service = Prepaged::start(&place, &["--no-learn"]);
    let _running = Running::start(&program);
    service.wait_until("it is forgotten", || !log.exists());
}

/// As on a machine that asks a directory of the network who its users are: no service waits for that.
#[test]
fn what_a_user_who_is_not_in_etc_passwd_wants_is_read_where_the_process_says_that_it_is_at_home() {
    const USER: u32 = 54_321;
    let Some(place) = Place::new() else { return };
    let [first, second] = ["first", "second"].map(|name| place.program(name));
    let home = place.home("enabled = no\n");
    let log = place.layer().join(format!("launches/{USER}"));
    fs::copy(place.expect(&first, unix_s()), &log).unwrap();
    let service = Prepaged::start(&place, &["--no-learn"]);
    let start = |program: &Path| {
        Running(Command::new(program).arg("60").uid(USER).env("HOME", &home).spawn().unwrap())
    };
    // A directory of somebody else's says nothing.
    let _first = start(&first);
    let is_seen = || service.status()["last_starts"].as_array().unwrap().iter().any(|one| one["uid"] == USER);
    service.wait_until("it is served", is_seen);
    assert!(log.exists());
    std::os::unix::fs::chown(&home, Some(USER), Some(USER)).unwrap();
    let _second = start(&second);
    service.wait_until("it is forgotten", || !log.exists());
}

/// What such a user wants is not known.
#[test]
fn of_a_user_who_is_not_in_etc_passwd_and_whose_home_does_not_answer_no_start_is_served() {
    const USER: u32 = 54_321;
    let Some(place) = Place::new() else { return };
    if !has(Need::Path("/dev/fuse".into())) {
        return;
    }
    let (first, (known, _)) = (place.program("first"), place.known("known"));
    let point = place.path("point");
    fs::create_dir(&point).unwrap();
    let _hung = Hung::mount(&point);
    let service = Prepaged::start(&place, &["--no-learn"]);
    let start = |program: &Path| {
        Running(Command::new(program).arg("60").uid(USER).env("HOME", point.join("home")).spawn().unwrap())
    };
    // One of the two asks for it, and the other does without.
    let _first = start(&first);
    service.wait_until("the first is looked at", || service.count("starts") > 0);
    let _known = start(&known);
    service.wait_until("a start is left alone", || service.count("left_alone") > 0);
    assert_eq!(service.count("fetched_bytes"), 0);
}

#[test]
fn nothing_is_kept_of_an_account_that_is_removed() {
    if !has_own_mounts() {
        return;
    }
    let Some(place) = Place::new() else { return };
    let _mounted = configured(&place, "");
    let (passwd, root) = (place.path("etc/passwd"), "root:x:0:0::/root:/bin/sh\n");
    fs::write(&passwd, format!("{root}user:x:54321:54321::/no/such/home:/bin/sh\n")).unwrap();
    let program = place.program("known");
    let log = place.expect(&program, unix_s());
    place.gained(&[&program], &[100_000; 3], &[50_000; 3]);
    let kept = |directory: &str| place.layer().join(directory).join("54321");
    let all = [kept("launches"), kept("gains")];
    fs::copy(&log, &all[0]).unwrap();
    fs::copy(place.layer().join("gains/0"), &all[1]).unwrap();
    let service = Prepaged::start(&place, &[]);
    service.wait_until("the accounts are known", || place.layer().join("accounts").exists());
    assert!(all.iter().all(|file| file.exists()));
    let _running = Running(Command::new(&program).arg("60").uid(54321).spawn().unwrap());
    let is_told =
        || service.status()["last_starts"].as_array().unwrap().iter().any(|one| one["uid"] == 54321);
    service.wait_until("its start is told", is_told);
    fs::write(place.path("etc/new"), root).unwrap();
    fs::rename(place.path("etc/new"), &passwd).unwrap();
    service.wait_until("it is removed", || !all.iter().any(|file| file.exists()));
    service.wait_until("nobody is told of its starts", || !is_told());
    assert!(log.exists(), "that of root is kept");
}

/// There it is another file that has the program's name, and so may others be that the profile names.
#[test]
fn a_start_in_a_mount_namespace_in_which_the_program_is_another_file_is_left_alone() {
    let Some(place) = Place::new() else { return };
    if !has(Need::Mounts) {
        return;
    }
    let ((known, file), other) = (place.known("known"), place.program("unknown"));
    // Of two roles: what it is called by decides, which is looked at once it runs.
    place.profile_another_role(&known);
    let service = Prepaged::start(&place, &[]);
    assert_eq!(service.status()["machine_profiles"], 2);
    for (at, program) in (1..).zip([&known, &other]) {
        let mut inside = Command::new("unshare");
        inside.args(["--mount", "sh", "-c", "mount --bind \"$1\" \"$0\"; exec \"$0\" 60"]);
        let _running =
            Running(inside.arg(program).arg(place.program(&format!("another{at}"))).spawn().unwrap());
        service.wait_until("it is seen", || service.count("elsewhere") >= at);
    }
    assert_eq!((service.count("fetched"), pages_in_memory(&file), service.count("observed")), (0, 0, 0));
    let _running = Running::start(&known);
    service.wait_until("it is fetched", || service.count("fetched_bytes") > 0);
}

#[test]
fn a_program_on_an_overlay_is_served_or_the_overlay_is_said_not_to_be_watched() {
    if !has_own_mounts() {
        return;
    }
    is_served_or_said_not_to_be_watched("index=off,nfs_export=off");
    // By which its files can be told apart.
    is_served_or_said_not_to_be_watched("index=on,nfs_export=on");
}

fn is_served_or_said_not_to_be_watched(features: &str) {
    let Some(place) = Place::new() else { return };
    let [lower, upper, work, merged] = ["lower", "upper", "work", "merged"].map(|name| place.path(name));
    [&lower, &upper, &work, &merged].iter().for_each(|one| fs::create_dir(one).unwrap());
    place.program("lower/known");
    let options = format!(
        "lowerdir={},upperdir={},workdir={},{features}",
        lower.display(),
        upper.display(),
        work.display()
    );
    let mut mount = Command::new("mount");
    let output = mount.args(["-t", "overlay", "overlay", "-o", &options]).arg(&merged).output().unwrap();
    if !output.status.success() {
        return prepage_testing::skip(Need::Mounts, String::from_utf8_lossy(&output.stderr));
    }
    let _mounted = Mounted(&merged);
    let (program, file) = (merged.join("known"), place.cold_file("file", 0o644));
    place.profile(&program, &[&file]);
    let service = Prepaged::start(&place, &["--no-learn"]);
    // It is asked for longer where the machine is busy.
    let mut system = serde_json::Value::Null;
    service.wait_until("it answers", || {
        let status = service.status();
        let systems = status["file_systems"].as_array().unwrap();
        system = systems.iter().find(|one| one["point"] == merged.to_str().unwrap()).unwrap().clone();
        system["reason"] != "it has not answered yet"
    });
    if system["is_watched"] == false {
        return assert!(system["reason"].is_string() && !features.contains("=on"), "{system}");
    }
    let _running = Running::start(&program);
    service.wait_until("it is fetched", || service.count("fetched_bytes") > 0);
    assert!(pages_in_memory(&file) >= 3);
}

/// Has the machine's configuration exclude the program `name`.
fn excluding(place: &Place, name: &str) -> Mounted<'static> {
    configured(place, &format!("exclude = {name}\n"))
}

/// The machine's configuration says this, as long as the answer is kept.
fn configured(place: &Place, text: &str) -> Mounted<'static> {
    let etc = place.path("etc");
    fs::create_dir(&etc).unwrap();
    fs::copy("/etc/passwd", etc.join("passwd")).unwrap();
    fs::write(etc.join("prepage.conf"), text).unwrap();
    rustix::mount::mount_bind(&etc, "/etc").unwrap();
    Mounted(Path::new("/etc"))
}

/// They would cost what others cost otherwise.
#[test]
fn where_nothing_or_not_this_is_wanted_the_kernel_passes_over_programs_that_are_executed_all_the_time() {
    if !has_own_mounts() {
        return;
    }
    for wants_nothing in [true, false] {
        let Some(place) = Place::new() else { return };
        let excluded = format!("exclude = {}/*\n", place.0.path().display());
        let _mounted = configured(&place, if wants_nothing { "enabled = no\n" } else { &excluded });
        let program = place.program("program");
        let service = Prepaged::start(&place, &["--no-learn"]);
        service.wait_until("it is passed over", || {
            // It lives until a busy machine has come to look at it.
            let _running = Running::start(&program);
            std::thread::sleep(Duration::from_millis(60));
            service.is_passed_over(&program)
        });
    }
}

#[test]
fn what_an_excluded_program_starts_is_not_remembered_as_started_by_its_user() {
    if !has_own_mounts() {
        return;
    }
    let Some(place) = Place::new() else { return };
    let _mounted = excluding(&place, "shell");
    let shell = place.shell("shell");
    let [program, other] = ["known", "other"].map(|name| place.program(name));
    let file = place.cold_file("file", 0o644);
    [&program, &other].iter().for_each(|program| place.profile(program, &[&file]));
    let service = Prepaged::start(&place, &["--no-learn", "--idle-after", "0"]);
    let remembered = || service.status()["idle"]["remembered_programs"].as_u64().unwrap();
    service.wait_until("its file is known", || service.count("name_rounds") > 0);
    let mut command = Command::new(&shell);
    command.args(["-c", "sleep 0.5; \"$0\" 60 & wait"]).arg(&program).process_group(0);
    let in_group = Group(command.spawn().unwrap());
    service.wait_until("it is fetched", || service.count("fetched") > 0);
    assert_eq!(remembered(), 0, "{}", service.status());
    drop(in_group);
    let _running = Running::start(&other);
    service.wait_until("it is remembered", || remembered() == 1);
}

/// A user whose account is removed leaves nothing behind, also where that takes more than one try, or another service.
#[test]
fn an_account_counts_as_removed_once_nothing_is_kept_of_its_user() {
    if !has_own_mounts() {
        return;
    }
    let Some(place) = Place::new() else { return };
    let _mounted = excluding(&place, "nothing");
    let (passwd, without) = (place.path("etc/passwd"), place.path("etc/without"));
    fs::copy(&passwd, &without).unwrap();
    let with = format!("{}gone:x:54321:54321::/nonexistent:/bin/sh\n", fs::read_to_string(&passwd).unwrap());
    fs::write(&passwd, with).unwrap();
    let log = place.expect(&place.program("known"), unix_s()).with_file_name("54321");
    fs::copy(log.with_file_name("0"), &log).unwrap();
    let service = Prepaged::start(&place, &["--no-learn"]);
    let is_known = || {
        let accounts = fs::read_to_string(place.layer().join("accounts")).unwrap_or_default();
        accounts.lines().any(|line| line == "54321:gone")
    };
    service.wait_until("the account is known", is_known);
    // What something is mounted at cannot be removed.
    rustix::mount::mount_bind(&log, &log).unwrap();
    let pinned = Mounted(&log);
    fs::rename(&without, &passwd).unwrap();
    service.wait_until("its log cannot be removed", || service.count("log_not_written") > 1);
    assert!(is_known(), "{}", service.status());
    drop(pinned);
    service.wait_until("nothing is left", || !log.exists() && !is_known());
}

/// A process and what it has started, killed on every way out.
struct Group(std::process::Child);

impl Drop for Group {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process_group(rustix::process::Pid::from_child(&self.0), Signal::KILL);
        let _ = self.0.wait();
    }
}

/// Its pages are on their way before it is executed, and so before it is seen how it is called.
#[test]
fn a_program_that_is_excluded_by_the_name_that_it_is_called_by_is_left_alone() {
    if !has_own_mounts() {
        return;
    }
    let Some(place) = Place::new() else { return };
    let _mounted = excluding(&place, "called");
    let ((program, file), other) = (place.known("known"), place.program("other"));
    let (stores, key) = (place.stores(), ProgramKey::of(&[(&program).into(), "60".into()]).unwrap());
    let path = stores.path_of(&key, Layer::Machine).unwrap();
    let profile = stores.at_path(Layer::Machine, &path).unwrap().unwrap();
    let role = profile.role.replacen("known", "called", 1);
    fs::write(&path, profile_file::encode(&prepage_core::profile::Profile { role, ..profile })).unwrap();
    let service = Prepaged::start(&place, &["--no-learn", "--idle-after", "0"]);
    service.wait_until("its file is known", || service.count("name_rounds") > 0);
    service.wait_until("what its user wants is known", || {
        let _running = Running::start(&other);
        service.count("unknown") > 0
    });
    // Fewer than are passed over afterwards.
    for _ in 0..15 {
        let before = service.count("left_alone");
        let _running = Running(Command::new(&program).arg0("called").arg("60").spawn().unwrap());
        service.wait_until("it is left alone", || service.count("left_alone") > before);
    }
    assert_eq!((service.count("fetched"), pages_in_memory(&file)), (0, 0));
}

/// As in a container: of a file system that is mounted nowhere else.
#[test]
fn a_file_system_of_which_one_file_is_mounted_is_watched() {
    let Some(place) = Place::new() else { return };
    if !has(Need::LoopDevice) {
        return;
    }
    let (image, point) = file_system(&place);
    quiet(Command::new("mount").args(["-o", "loop"]).args([&image, &point]));
    let mounted = Mounted(&point);
    let (inside, alone) = (place.program("mounted/known"), place.path("alone"));
    File::create(&alone).unwrap();
    rustix::mount::mount_bind(&inside, &alone).unwrap();
    let _alone = Mounted(&alone);
    let file = place.cold_file("file", 0o644);
    place.profile(&alone, &[&file]);
    drop(mounted);
    let service = Prepaged::start(&place, &["--no-learn"]);
    service.wait_until("it is watched", || is_watched(&service, &alone));
    let _running = Running::start(&alone);
    service.wait_until("it is fetched", || service.count("fetched_bytes") > 0);
}

/// As the root of some distributions is. The kernel gives no names of its files.
#[test]
fn a_program_on_a_btrfs_subvolume_is_served() {
    let Some(place) = Place::new() else { return };
    if !has(Need::LoopDevice) || !has(Need::Tool("mkfs.btrfs".into())) {
        return;
    }
    let [image, top, point] = ["image", "top", "mounted"].map(|name| place.path(name));
    File::create(&image).unwrap().set_len(128 << 20).unwrap();
    [&top, &point].iter().for_each(|point| fs::create_dir(point).unwrap());
    quiet(Command::new("mkfs.btrfs").arg("-q").arg(&image));
    quiet(Command::new("mount").args(["-o", "loop"]).args([&image, &top]));
    let mounted = Mounted(&top);
    quiet(Command::new("btrfs").args(["subvolume", "create"]).arg(top.join("@")));
    let source = prepage_sys::mounts::mount_of(&top).unwrap().source;
    quiet(Command::new("mount").args(["-o", "subvol=@", &source]).arg(&point));
    drop(mounted);
    let mounted = Mounted(&point);
    // One that is mounted by no other name than that of the directory.
    quiet(Command::new("btrfs").args(["subvolume", "create"]).arg(point.join("within")));
    let within = place.program("mounted/within/unknown");
    let (program, file) = (place.program("mounted/known"), place.cold_file("file", 0o644));
    place.profile(&program, &[&file]);
    let service = Prepaged::start(&place, &["--no-learn"]);
    service.wait_until("it is watched", || is_watched(&service, &point));
    let running = Running::start(&program);
    service.wait_until("it is fetched", || service.count("fetched_bytes") > 0);
    assert!(pages_in_memory(&file) >= 3);
    // It is passed over like any other.
    drop(running);
    for program in [program, within] {
        service.wait_until("it is passed over", || {
            let before = service.count("execs");
            (0..300).for_each(|_| quiet(Command::new(&program).arg("0")));
            service.count("execs") < before + 300
        });
    }
    service.wait_until("nobody keeps it mounted", || rustix::mount::unmount(&point, NO_FLAGS).is_ok());
    drop(mounted);
}

/// A container that builds executes the same few programs all the time, too.
#[test]
fn a_program_that_is_started_again_and_again_elsewhere_is_not_looked_at_each_time() {
    const TIMES: u64 = 100;
    if !has(Need::Mounts) {
        return;
    }
    let until = Instant::now() + PATIENCE;
    // Where the service was held up, none of them lived until it was looked at.
    loop {
        let Some(place) = Place::new() else { return };
        let [program, another] = ["unknown", "another"].map(|name| place.program(name));
        let service = Prepaged::start(&place, &["--no-learn"]);
        let script = format!("mount --bind \"$1\" \"$0\"; for at in $(seq {TIMES}); do \"$0\" 0.02; done");
        let mut inside = Command::new("unshare");
        quiet(inside.args(["--mount", "sh", "-c", &script]).args([&program, &another]));
        let elsewhere = service.count("elsewhere");
        assert!(elsewhere < TIMES / 4, "{elsewhere}");
        if elsewhere > 0 {
            break;
        }
        assert!(Instant::now() < until, "none is looked at");
    }
}
