//! The service where it is stopped for a while, and where clocks are set.

mod support;

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use prepage_core::launches::Launches;
use prepage_service::socket::ask;
use prepage_sys::clock::unix_s;
use prepage_sys::process_status::ProcessStatus;
use prepage_testing::{Need, child_command, has, this_test};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Pid, Signal, kill_process};

use support::*;

#[test]
fn what_was_started_while_the_service_was_stopped_is_served_when_it_goes_on() {
    let Some(place) = Place::new() else { return };
    let (program, file) = place.known("known");
    let service = Prepaged::start(&place, &["--no-learn"]);
    service.signal(Signal::STOP);
    let _running = Running::start(&program);
    service.signal(Signal::CONT);
    service.wait_until("it is fetched", || service.count("fetched_bytes") > 0);
    assert!(pages_in_memory(&file) >= 3);
    assert_eq!(service.count("lost"), 0);
}

/// Callers that hang up stay in line. Once as many are there as the kernel keeps, a call fails as if nobody were there.
#[test]
fn a_service_that_is_stopped_keeps_its_socket_however_many_have_called() {
    let Some(place) = Place::new() else { return };
    let service = Prepaged::start(&place, &["--no-learn"]);
    service.signal(Signal::STOP);
    let address = SocketAddrUnix::new(&service.socket).unwrap();
    let call = || {
        let caller = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None);
        connect(caller.unwrap(), &address)
    };
    while call().is_ok() {}
    assert_eq!(ask(&service.socket).unwrap_err().kind(), ErrorKind::TimedOut);
    let mut second = Command::new(env!("CARGO_BIN_EXE_prepaged"));
    second.arg("--no-learn").arg("--socket").arg(&service.socket).env("PREPAGE_LAYERS", place.layer());
    let mut second = Running(second.spawn().unwrap());
    let mut code = None;
    let ends = is_so_in_time(|| {
        code = second.0.try_wait().unwrap();
        code.is_some()
    });
    assert!(ends, "another service has taken its socket");
    assert_eq!(code.unwrap().code(), Some(69));
    service.signal(Signal::CONT);
    let is_the_first = || ask(&service.socket).is_ok_and(|status| status["pid"] == service.child.id());
    assert!(is_so_in_time(is_the_first));
}

/// The observation of the tracer would hold it still, and wait for it.
#[test]
fn whoever_traces_the_service_is_not_held_still() {
    let Some(place) = Place::new() else { return };
    if !has(Need::Tool("strace".into())) {
        return;
    }
    let found = Command::new("sh").args(["-c", "command -v strace"]).output().unwrap().stdout;
    let (strace, own) = (place.path("strace"), String::from_utf8(found).unwrap());
    copy(Path::new(own.trim()), &strace);
    let service = Prepaged::start(&place, &[]);
    let pid = service.child.id().to_string();
    // It traces the service before the service comes to observe it.
    let mut first = Command::new("chrt");
    first.args(["-f", "50"]).arg(strace).args(["-f", "-qq", "-o", "/dev/null", "-p", &pid]);
    let tracer = Running(first.spawn().unwrap());
    let id = tracer.0.id().to_string();
    let is_traced = || ProcessStatus::of(&pid).unwrap().field("TracerPid") == Some(&id);
    assert!(is_so_in_time(is_traced), "strace does not trace it");
    // Nothing is touched for a second: the start is over.
    service.wait_until("strace is observed", || service.count("observed") > 0);
    assert!(is_traced());
}

/// Starts a program that nobody knows, and returns it with the process that observes it for the service. One that came and went before this process
/// looked is followed by that of another program.
fn observed(place: &Place, service: &Prepaged) -> (Running, PathBuf) {
    let (mut observed, mut programs) = (None, 0);
    let is_there = || {
        programs += 1;
        let running = Running::start(&place.program(&format!("unknown-{}-{programs}", service.child.id())));
        let mut observer = None;
        is_so_within(Duration::from_secs(5), || {
            observer = observers(service).pop();
            observer.is_some()
        });
        observed = observer.map(|observer| (running, PathBuf::from(format!("/proc/{observer}"))));
        observed.is_some()
    };
    assert!(is_so_in_time(is_there), "no process of its own observes");
    observed.unwrap()
}

/// `R`, `S` and so on (proc_pid_stat(5)).
fn state(process: &Path) -> Option<char> {
    let stat = fs::read_to_string(process.join("stat")).ok()?;
    stat.rsplit(')').next()?.trim_start().chars().next()
}

/// Waits until it has, and until `program`, which sleeps, is as it was. One that ends while its parent is stopped is a zombie.
fn ends_and_lets_go(observer: &Path, program: &Running, signal: Signal) {
    assert!(is_so_in_time(|| matches!(state(observer), None | Some('Z'))), "{signal:?}: it goes on");
    let program = PathBuf::from(format!("/proc/{}", program.0.id()));
    // On a busy machine it may not be asleep yet.
    assert!(is_so_in_time(|| state(&program) == Some('S')), "{signal:?}: {:?}", state(&program));
}

/// A program stands still for a moment when it is observed: whoever stops or kills the service in that moment would leave it so.
#[test]
fn an_observation_goes_on_to_its_end_while_the_service_is_stopped_and_when_it_is_killed() {
    for signal in [Signal::STOP, Signal::KILL] {
        let Some(place) = Place::new() else { return };
        let mut service = Prepaged::start(&place, &[]);
        let (running, observer) = observed(&place, &service);
        service.signal(signal);
        if signal == Signal::KILL {
            service.child.wait().unwrap();
        }
        ends_and_lets_go(&observer, &running, signal);
        if signal == Signal::STOP {
            let files = fs::read_dir(place.layer()).unwrap().flatten();
            let names: Vec<_> = files.map(|file| file.file_name()).collect();
            // The service may have been stopped while it wrote another file.
            let is_profile =
                |name: &OsString| Path::new(name).extension().is_some_and(|kind| kind == "profile");
            assert!(names.iter().any(is_profile), "what was seen is not written: {names:?}");
            service.signal(Signal::CONT);
            service.wait_until("what was written is read", || service.count("learned") > 0);
        }
    }
}

/// Threads that hold a lock as they end have nobody wait for it.
#[test]
fn whenever_a_busy_service_is_killed_its_observation_ends_and_lets_the_program_go() {
    const KILLS: u32 = 12;
    let Some(place) = Place::new() else { return };
    let scripts = place.scripts(2000);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Whoever panics has the others end, too.
        struct Over<'a>(&'a AtomicBool);
        impl Drop for Over<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _over = Over(&is_over);
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                scripts.iter().for_each(|script| execute_in_vain(script));
            }
        });
        for kill in 0..KILLS {
            let mut service = Prepaged::start(&place, &[]);
            let (running, observer) = observed(&place, &service);
            std::thread::sleep(Duration::from_millis(u64::from(kill)));
            service.signal(Signal::KILL);
            service.child.wait().unwrap();
            ends_and_lets_go(&observer, &running, Signal::KILL);
        }
    });
}

#[test]
fn a_service_whose_observation_is_killed_goes_on_and_learns_the_next_start() {
    let Some(place) = Place::new() else { return };
    let service = Prepaged::start(&place, &[]);
    let mut program = PathBuf::new();
    service.wait_until("it is told", || {
        let (running, observer) = observed(&place, &service);
        program = fs::read_link(format!("/proc/{}/exe", running.0.id())).unwrap();
        let pid = observer.file_name().unwrap().to_str().unwrap().parse().unwrap();
        // It may have come to its end.
        let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
        is_so_within(Duration::from_secs(5), || service.count("not_kept") > 0)
    });
    let learned = service.count("learned");
    let is_learned = || service.count("learned") > learned;
    starts_until(&service, "it is learned", &program, Duration::from_millis(100), is_learned);
}

#[test]
fn a_service_that_is_stopped_while_it_observes_a_start_learns_again_when_it_goes_on() {
    let Some(place) = Place::new() else { return };
    let program = place.program("unknown");
    let service = Prepaged::start(&place, &[]);
    let mut running = Running::start(&program);
    service.wait_until("the start is seen", || service.count("starts") > 0);
    service.signal(Signal::STOP);
    // It ends while nobody looks.
    running.0.kill().unwrap();
    service.signal(Signal::CONT);
    drop(running);
    let is_learned = || service.count("learned") > 0;
    starts_until(&service, "it is learned", &program, Duration::from_millis(100), is_learned);
}

/// The log and the profile are of a clock that was ahead, or had not been set yet.
#[test]
fn a_clock_that_was_set_between_two_runs_keeps_no_start_from_being_served_and_remembered() {
    const YEAR_S: u64 = 365 * 86_400;
    let Some(place) = Place::new() else { return };
    let (program, file) = place.known("known");
    for then in [unix_s() + 10 * YEAR_S, YEAR_S] {
        prepage_sys::cachestat::evict(std::os::fd::AsFd::as_fd(&fs::File::open(&file).unwrap()), PATIENCE)
            .unwrap();
        let log = place.expect(&program, then);
        let mut service = Prepaged::start(&place, &["--no-learn"]);
        let _running = Running::start(&program);
        service.wait_until("it is fetched", || service.count("fetched_bytes") > 0);
        // A program of one role is fetched for before it is known who started it.
        service.wait_until("its start is noted", || service.status()["last_starts"][0].is_object());
        service.signal(Signal::TERM);
        assert!(service.child.wait().unwrap().success());
        // The user is away for as long as it takes to arrive once more, by the clock that is right.
        let mut launches = Launches::decode(&fs::read(&log).unwrap()).unwrap();
        launches.tick(unix_s() + 5 * 3600);
        let expected = launches.expected(0.75);
        assert_eq!(expected[0].what.program, program.to_str().unwrap());
    }
}

/// Each time systemd wakes up, and looks who has told it.
#[test]
fn systemd_is_told_that_the_service_lives_as_often_as_it_wants_to_hear_it_and_no_more() {
    const WATCHDOG: Duration = Duration::from_secs(60);
    let Some(place) = Place::new() else { return };
    let systemd = UnixDatagram::bind(place.path("notify")).unwrap();
    systemd.set_read_timeout(Some(WATCHDOG / 12)).unwrap();
    let _service = Prepaged::start_with(&place, &["--no-learn"], |command| {
        let usec = WATCHDOG.as_micros().to_string();
        command.env("NOTIFY_SOCKET", place.path("notify")).env("WATCHDOG_USEC", usec);
    });
    let mut told = [0; 64];
    let bytes = systemd.recv(&mut told).unwrap();
    assert_eq!(&told[..bytes], b"READY=1");
    assert!(systemd.recv(&mut told).is_err(), "{:?}", String::from_utf8_lossy(&told));
}

const STORM: &str = "PREPAGE_TEST_STORM_IN";

/// The storm is this test in processes of their own, which execute what cannot be executed, again and again.
#[test]
fn in_a_storm_of_execs_the_service_says_that_it_lives_and_serves_others() {
    const SCRIPTS: usize = 20_000;
    // The service says so twice in that time, and a machine may stop it for two seconds.
    const WATCHDOG: Duration = Duration::from_secs(8);
    if let Some(scripts) = std::env::var_os(STORM) {
        let scripts: Vec<_> = fs::read_dir(scripts).unwrap().map(|entry| entry.unwrap().path()).collect();
        loop {
            scripts.iter().for_each(|script| execute_in_vain(script));
        }
    }
    let Some(place) = Place::new() else { return };
    let (program, file) = place.known("known");
    place.scripts(SCRIPTS);
    let systemd = UnixDatagram::bind(place.path("notify")).unwrap();
    systemd.set_read_timeout(Some(WATCHDOG)).unwrap();
    let service = Prepaged::start_with(&place, &["--no-learn"], |command| {
        let usec = WATCHDOG.as_micros().to_string();
        command.env("NOTIFY_SOCKET", place.path("notify")).env("WATCHDOG_USEC", usec);
    });
    let storm = || {
        let mut storm = child_command(&this_test(), &[]);
        storm.env(STORM, place.path("scripts")).stdout(Stdio::null());
        Running(storm.spawn().unwrap())
    };
    let _storms = [storm(), storm()];
    let began = Instant::now();
    let mut running = None;
    // Until it is a storm, which takes a busy machine longer.
    while began.elapsed() < 2 * WATCHDOG || service.count("execs") <= SCRIPTS as u64 {
        // A read that takes as long as systemd waits is an error.
        systemd.recv(&mut [0; 64]).expect("the service says nothing for longer than systemd waits");
        running.get_or_insert_with(|| Running::start(&program));
        assert!(began.elapsed() < 2 * PATIENCE, "no storm: {}", service.status());
    }
    service.wait_until("it is fetched", || service.count("fetched_bytes") > 0);
    assert!(pages_in_memory(&file) >= 3);
}
