//! The service beside real programs on the real kernel. Each test has a service of its own that serves the programs of one directory.

mod support;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use prepage_core::launches::Launches;
use prepage_core::profile::{Lookup, Profile, ProfiledFile, Touches};
use prepage_core::{PAGE_SIZE, PageIndex};
use prepage_profiles::{Layer, ProgramKey, StartContextPaths, Stores};
use prepage_sys::clock::unix_s;
use prepage_sys::perf::{Observed, PerfError, PerfEvent, Setup, Source, online_cpus};
use prepage_testing::{Doctor, Hung, Need, has, unless_caches_dropped, unless_refused};
use rustix::process::{Pid, Signal, kill_process_group};

use support::*;

#[test]
fn a_known_program_has_its_pages_brought_in_and_nothing_that_not_everybody_may_read() {
    let Some(place) = Place::new() else { return };
    let program = place.program("known");
    let (open, secret) = (place.cold_file("open", 0o644), place.cold_file("secret", 0o600));
    place.profile(&program, &[&secret, &open]);
    let key = ProgramKey::of(&[program.clone().into(), "60".into()]).unwrap();
    let profile = File::open(place.stores().path_of(&key, Layer::Machine).unwrap()).unwrap();
    profile.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    let service = Prepaged::start(&place, &["--no-learn"]);
    assert_eq!(service.status()["machine_profiles"], 1);
    let running = Running::start(&program);
    service.wait_until("it is fetched", || service.count("fetched_bytes") > 0);
    let in_memory = pages_in_memory(&open);
    assert!((3..PAGES / 2).contains(&in_memory), "{in_memory} pages");
    assert_eq!(pages_in_memory(&secret), 0);
    // Its pages come first.
    service.wait_until("it is told", || service.status()["last_starts"][0].is_object());
    let status = service.status();
    let last = status["last_starts"].as_array().unwrap().last().unwrap();
    assert_eq!((&last["program"], &last["pid"]), (&program.to_str().unwrap().into(), &running.0.id().into()));
    // What was fetched, and when.
    assert_eq!(last["fetched_bytes"], 3 * PAGE_SIZE, "{last}");
    assert!(
        last["fetch_after_ms"].as_f64().unwrap() > 0.0 && last["fetch_ms"].as_f64().unwrap() > 0.0,
        "{last}"
    );
    let modified = || profile.metadata().unwrap().modified().unwrap();
    service.wait_until("it is marked as used", || modified() != SystemTime::UNIX_EPOCH);
}

#[test]
fn a_program_that_is_executed_again_and_again_is_not_looked_at_each_time() {
    let Some(place) = Place::new() else { return };
    let (program, _) = place.known("known");
    let service = Prepaged::start(&place, &["--no-learn"]);
    service.wait_until("starts are passed over", || {
        let _running = Running::start(&program);
        service.count("passed") > 0
    });
}

#[test]
fn whoever_asks_byte_by_byte_keeps_nobody_else_from_an_answer() {
    const NOBODY: u32 = 65534;
    let Some(place) = Place::new() else { return };
    if !has(Need::Tool("python3".into())) {
        return;
    }
    let service = Prepaged::start(&place, &["--no-learn"]);
    // Where the machine stops somebody for a while, one answer may be late.
    assert!((0..5).any(|_| is_answered_soon_beside_who_asks_byte_by_byte(&service, NOBODY)));
    // A connection is over after a while, however it goes on.
    let mut one = UnixStream::connect(&service.socket).unwrap();
    let began = Instant::now();
    while one.write_all(b"x").is_ok() {
        assert!(began.elapsed() < PATIENCE, "it is answered for ever");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Whether each answer comes within two seconds while user `uid` asks so.
fn is_answered_soon_beside_who_asks_byte_by_byte(service: &Prepaged, uid: u32) -> bool {
    // A byte each 0.4 s, on as many connections as one can have.
    let script = "import socket, sys, time\n\
                  all = []\n\
                  for _ in range(100):\n    \
                      one = socket.socket(socket.AF_UNIX); one.connect(sys.argv[1]); all.append(one)\n\
                  print(flush=True)\n\
                  while True:\n    \
                      for one in all:\n        \
                          try: one.send(b'x')\n        \
                          except OSError: pass\n    \
                      time.sleep(0.4)\n";
    let slow = Command::new("python3")
        .args(["-c", script])
        .arg(&service.socket)
        .uid(uid)
        .stdout(Stdio::piped())
        .spawn();
    let mut slow = Running(slow.unwrap());
    slow.0.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    (0..5).all(|_| {
        let asked = Instant::now();
        service.status();
        asked.elapsed() < Duration::from_secs(2)
    })
}

/// Its pages are looked for before it is known how it is called, and then there is nothing left to do.
#[test]
fn a_program_of_one_role_that_is_in_memory_is_said_to_be_and_looked_at_less_and_less() {
    unless_caches_dropped(is_said_to_be_in_memory_and_rests);
}

fn is_said_to_be_in_memory_and_rests() {
    let Some(place) = Place::new() else { return };
    let (program, file) = place.known("known");
    fs::read(&file).unwrap();
    let service = Prepaged::start(&place, &["--no-learn", "--idle-after", "0"]);
    service.wait_until("its file is known", || service.count("name_rounds") > 0);
    let until = Instant::now() + Duration::from_secs(6);
    let mut made = 0;
    while Instant::now() < until {
        // It lives until a busy machine has come to look at it.
        let _running = Running::start(&program);
        made += 1;
        std::thread::sleep(Duration::from_millis(100));
    }
    let status = service.status();
    let starts = status["last_starts"].as_array().unwrap();
    let how = |done: &str| starts.iter().filter(|start| start["done"] == done).count();
    // Those that begin while another is still looked at, on a busy machine, are left alone, or said to be as that one.
    let all = ["in memory", "left alone", "fetched a moment before"].map(how);
    assert!(all[0] > 0 && all.iter().sum::<usize>() == starts.len(), "{starts:?}");
    assert_eq!(service.count("fetched_bytes"), 0);
    // After rests of 1, 2 and 4 s: three, and those left alone.
    assert!((1..=made / 2).contains(&starts.len()), "{made} starts, {starts:?}");
}

#[test]
fn a_program_of_several_roles_gets_that_of_its_arguments_and_an_unknown_role_what_they_share() {
    let Some(place) = Place::new() else { return };
    let program = place.program("known");
    let [a, b] = ["a", "b"].map(|name| place.cold_file(name, 0o644));
    place.profile(&program, &[&a]);
    place.profile_another_role(&program);
    place.profile(&program, &[&b]);
    let service = Prepaged::start(&place, &["--no-learn"]);
    assert_eq!(service.status()["machine_profiles"], 2);
    let _running = Running::start(&program);
    service.wait_until("it is fetched", || service.count("fetched_bytes") > 0);
    assert!(pages_in_memory(&b) >= 3 && pages_in_memory(&a) == 0);
}

/// As a plain start of `prepage measure`, whose file is read from a cold disk for so long: here the loader never comes.
#[test]
fn nothing_is_read_for_what_prepages_tools_start_before_it_is_seen_whether_they_switch_that_off() {
    let Some(place) = Place::new() else { return };
    if !has(Need::Path("/dev/fuse".into())) {
        return;
    }
    // Short enough for its name to stand in place of the usual loader's.
    let point = tempfile::tempdir_in("/tmp").unwrap();
    let known = ["first", "second", "third"].map(|name| {
        let known = place.known(name);
        set_loader(&known.0, &point.path().join("l"));
        known
    });
    let (shell, tools) = (fs::canonicalize("/bin/sh").unwrap(), place.shell("prepage-tools"));
    let service = Prepaged::start(&place, &["--no-learn"]);
    // From their first starts on it is known which files the programs are in, and what their user wants.
    for (at, (program, _)) in (1..).zip(&known) {
        let _running = Running::start(program);
        service.wait_until("it is fetched", || service.count("fetched") >= at);
    }
    let _hung = Hung::mount(point.path());
    let start = |parent: &Path, program: &Path| {
        // In a process of its own.
        let script = "export PREPAGE=off; \"$0\" 60; :";
        Running(Command::new(parent).args(["-c", script]).arg(program).process_group(0).spawn().unwrap())
    };
    service.wait_until("what others start is fetched before it is executed", || {
        // What was fetched in the last second is not fetched again.
        std::thread::sleep(Duration::from_millis(1500));
        // One after the other: who waits for the file system's lock, behind another, cannot be killed.
        let parents = [&shell, &tools, &shell];
        let fetched = std::array::from_fn(|at| {
            let (program, file) = &known[at];
            chill(file);
            let running = start(parents[at], program);
            std::thread::sleep(Duration::from_millis(300));
            let pages = pages_in_memory(file);
            kill_process_group(Pid::from_child(&running.0), Signal::KILL).unwrap();
            pages
        });
        let [first, second, third] = fetched;
        assert_eq!(second, 0);
        first >= 3 && third >= 3
    });
}

/// Has the kernel load `program` (an ELF file of 64 bits) by a copy of its loader at `loader`.
fn set_loader(program: &Path, loader: &Path) {
    const PT_INTERP: usize = 3;
    let mut bytes = fs::read(program).unwrap();
    let number = |at: usize, len: usize| {
        bytes[at..at + len].iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte))
    };
    // e_phoff, e_phentsize, e_phnum; p_offset and p_filesz (elf(5)).
    let mut headers = (0..number(56, 2)).map(|header| number(32, 8) + header * number(54, 2));
    let header = headers.find(|at| number(*at, 4) == PT_INTERP).unwrap();
    let (at, len) = (number(header + 8, 8), number(header + 32, 8));
    let own = OsStr::from_bytes(&bytes[at..at + len - 1]);
    copy(Path::new(own), loader);
    let loader = loader.as_os_str().as_bytes();
    assert!(loader.len() < len, "{len} bytes");
    bytes[at..at + len].fill(0);
    bytes[at..at + loader.len()].copy_from_slice(loader);
    // Nobody could execute what this process, or a child of another thread's, has open to write.
    let other = program.with_extension("other");
    fs::write(&other, bytes).unwrap();
    copy(&other, program);
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
    let known = names.map(|name| place.known(name));
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

/// systemd(1) has each unit set up by a program that becomes the unit's.
#[test]
fn what_systemd_starts_for_a_unit_is_learned_by_itself() {
    let Some(place) = Place::new() else { return };
    fs::create_dir(place.path("systemd")).unwrap();
    let (program, executor) = (place.program("unknown"), place.shell("systemd/systemd-executor"));
    let service = Prepaged::start(&place, &[]);
    let script = "sleep 0.1; exec \"$0\" 60";
    service.learn(|| Running(Command::new(&executor).args(["-c", script]).arg(&program).spawn().unwrap()));
    let learned = place.stores().list(Layer::Machine).unwrap();
    let learned: Vec<String> = learned.into_iter().map(|(_, profile)| profile.unwrap().program).collect();
    assert_eq!(learned, [program.to_str().unwrap()]);
}

/// Programs of containers, and of some distributions, have loaders of their own.
#[test]
fn a_loader_is_one_wherever_it_lies() {
    let Some(place) = Place::new() else { return };
    let is_loader = |part: &[u8]| part.windows(4).any(|part| part == b"/ld-") && part.starts_with(b"/");
    let mut program = fs::read("/bin/sleep").unwrap();
    let usual = program.split(|byte| *byte == 0).find(|part| is_loader(part)).unwrap().to_vec();
    let own = place.path("ld.so");
    let mut path = own.as_os_str().as_encoded_bytes().to_vec();
    assert!(path.len() <= usual.len(), "{}", own.display());
    path.resize(usual.len(), 0);
    let at = program.windows(usual.len()).position(|part| part == usual).unwrap();
    program[at..][..usual.len()].copy_from_slice(&path);
    fs::write(place.path("bytes"), program).unwrap();
    let copies =
        [(Path::new(OsStr::from_bytes(&usual)), &own), (&place.path("bytes"), &place.program("own"))];
    copies.into_iter().for_each(|(from, to)| copy(from, to));
    let service = Prepaged::start(&place, &["--no-learn"]);
    service.wait_until("it is passed over", || {
        // They live until they are looked at.
        let _running = [(); 8].map(|()| Running::start(&place.path("own")));
        std::thread::sleep(Duration::from_millis(20));
        service.is_passed_over(&own)
    });
}

#[test]
fn without_prediction_nothing_is_remembered_that_was() {
    let Some(place) = Place::new() else { return };
    let log = place.expect(&place.program("known"), unix_s());
    assert!(log.exists());
    let _service = Prepaged::start(&place, &["--no-learn", "--no-predict"]);
    assert!(!log.exists());
}

#[test]
fn what_is_expected_is_brought_in_and_its_use_is_counted() {
    let Some(place) = Place::new() else { return };
    let (program, file) = place.known("known");
    let log = place.expect(&program, unix_s());
    let mut service = Prepaged::start(&place, &["--no-learn", "--idle-after", "0"]);
    service.wait_until("it is brought in", || service.count("predicted") > 0);
    // Whatever else is started on this machine stops it, and it goes on later.
    service.wait_until("all of it is", || service.count("predicted_bytes") >= 3 * PAGE_SIZE);
    let bytes = service.count("predicted_bytes");
    // While it is gone on with it is not among them.
    service.wait_until("it is told", || {
        let idle = &service.status()["idle"];
        (&idle["brought_programs"], &idle["expected"][0]["is_brought"]) == (&1.into(), &true.into())
    });
    // The program itself is sleep(1): this process opens the file in its place.
    File::open(&file).unwrap();
    let _running = Running::start(&program);
    service.wait_until("it is counted", || service.count("predicted_used_bytes") > 0);
    let counts =
        ["predicted_starts", "predicted_used_bytes", "predicted_unused_bytes", "predicted_sent_out_bytes"];
    assert_eq!(counts.map(|name| service.count(name)), [1, bytes, 0, 0]);
    service.signal(Signal::TERM);
    assert!(service.child.wait().unwrap().success());
    assert_eq!(fs::metadata(&log).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(Launches::decode(&fs::read(&log).unwrap()).unwrap().programs() == 1);
}

#[test]
fn a_program_that_nobody_knows_is_learned_and_then_known() {
    let Some(place) = Place::new() else { return };
    let program = place.program("unknown");
    let mut service = Prepaged::start(&place, &[]);
    service.learn(|| Running::start(&program));
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

/// A file that is read is mapped nowhere, and no fault tells of it.
#[test]
fn what_a_program_that_nobody_knows_reads_is_learned_too() {
    let Some(place) = Place::new() else { return };
    let mut shell = place.shell("reader");
    let (read, large) = (place.path("read"), place.path("large"));
    fs::write(&read, b"a line\n".repeat(1000)).unwrap();
    fs::write(&large, vec![b'\n'; 17 << 20]).unwrap();
    let looks = "cd /usr; test -e read; (test -e /usr/lib/large); test -e /usr/typed";
    let script = format!("sleep 0.5; read -r line <read; read -r line <large; {looks}; sleep 60");
    let service = Prepaged::start(&place, &[]);
    let mut profile = Profile::default();
    // Where nobody had begun to look before it read, it is learned without that, and another copy is tried.
    service.wait_until("what it has read is learned", || {
        let learned = service.count("learned");
        let mut command = Command::new(&shell);
        command.args(["-c", &script]).current_dir(place.0.path());
        service.learn(|| Running(command.spawn().unwrap()));
        let all = place.stores().list(Layer::Machine).unwrap().into_iter().map(|(_, one)| one.unwrap());
        let of_shell = |one: &Profile| one.program == shell.to_str().unwrap();
        profile = all.into_iter().find(of_shell).expect("it was learned");
        let has_read = profile.files.iter().any(|file| file.path == read.to_str().unwrap());
        shell = place.shell(&format!("reader-{learned}"));
        has_read
    });
    let of = |path: &Path| profile.files.iter().find(|file| file.path == path.to_str().unwrap());
    let extents = &of(&read).expect("it was read").extents;
    assert_eq!((extents[0].range.start(), extents[0].by_read), (PageIndex(0), true));
    assert!(of(&large).is_none(), "who used which part of it is not known");
    let named: Vec<&str> = profile.lookups.iter().map(|lookup| lookup.path.as_str()).collect();
    assert!([&read, &large].iter().all(|path| named.contains(&path.to_str().unwrap())), "{named:?}");
    if let Some(why) = service.status()["names_unseen"].as_str() {
        return prepage_testing::skip(Need::Root, why);
    }
    // Whoever starts it next waits for the directories in which nothing is found.
    assert!(["/usr/read", "/usr/lib/large"].iter().all(|path| named.contains(path)), "{named:?}");
    // Root may go on as a user, and everybody may read this.
    assert!(!named.contains(&"/usr/typed"), "{named:?}");
}

/// The shell reads files, and has the kernel send them out of memory before anybody has looked which of their pages were used.
#[test]
fn a_program_of_which_something_was_missed_is_observed_again_although_it_is_known() {
    let Some(place) = Place::new() else { return };
    let script = place.path("script");
    for at in 0..20 {
        let mut file = File::create(place.path(&format!("file{at}"))).unwrap();
        file.write_all(b"a line\n").unwrap();
        // What is not on the disk stays.
        file.sync_all().unwrap();
    }
    let reads = "for file in file*; do read -r line <$file; done";
    let sends_out = "for file in file*; do dd if=$file iflag=nocache count=0 status=none; done";
    fs::write(&script, format!("cd {}; {reads}; {sends_out}; sleep 60\n", place.0.path().display())).unwrap();
    let service = Prepaged::start(&place, &[]);
    let is_observed = |shell: &Path, most| {
        let before = service.count("observed");
        let _running = Running(Command::new(shell).arg(&script).spawn().unwrap());
        is_so_within(most, || service.count("observed") > before)
    };
    // Where somebody looked in the moment in which they were in memory, nothing was missed: another copy is tried.
    let is_observed_again = (0..4).any(|at| {
        let shell = place.shell(&format!("reader{at}"));
        let known = service.status()["machine_profiles"].as_u64().unwrap();
        assert!(is_observed(&shell, PATIENCE), "{}", service.status());
        service.wait_until("it is known", || service.status()["machine_profiles"] == known + 1);
        is_observed(&shell, Duration::from_secs(15))
    });
    assert!(is_observed_again, "{}", service.status());
}

/// What the process has computed before says nothing of how much of the program was missed.
#[test]
fn a_program_that_is_executed_by_who_has_computed_for_long_is_observed_once() {
    let Some(place) = Place::new() else { return };
    let service = Prepaged::start(&place, &[]);
    let script = "i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done; exec \"$0\" 60";
    let execute =
        |program: &Path| Running(Command::new("sh").args(["-c", script]).arg(program).spawn().unwrap());
    let mut programs = 0;
    // On a busy machine a program may be loaded before anybody looks.
    service.wait_until("one is observed once", || {
        programs += 1;
        let program = place.program(&format!("unknown{programs}"));
        service.observe(|| execute(&program));
        let observed = service.count("observed");
        let running = execute(&program);
        service.wait_until("it is seen again", || {
            let status = service.status();
            let starts = status["last_starts"].as_array().unwrap().iter();
            starts.filter(|start| start["program"] == program.to_str().unwrap()).count() == 2
        });
        // Long enough for an observation to begin; it ends with its program.
        std::thread::sleep(Duration::from_secs(1));
        drop(running);
        std::thread::sleep(Duration::from_secs(1));
        service.count("observed") == observed
    });
}

#[test]
fn what_is_not_for_everybody_is_learned_for_its_user_alone() {
    let Some(place) = Place::new() else { return };
    let program = place.program("own");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
    let service = Prepaged::start(&place, &[]);
    service.learn(|| Running::start(&program));
    assert!(place.stores().list(Layer::Machine).unwrap().is_empty());
    let own = Stores::at(place.path("own-store")).list(Layer::User).unwrap();
    let [(path, Ok(profile))] = &own[..] else { panic!("{own:?}") };
    assert_eq!(profile.program, program.to_str().unwrap());
    assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
}

/// nobody, and accounts whose home is root's: jobs of cron and of monitors begin all the time.
#[test]
fn of_a_user_who_has_no_place_for_profiles_one_start_is_observed_however_programs_are_called() {
    const USER: u32 = 54321;
    let Some(place) = Place::new() else { return };
    let program = place.program("own");
    std::os::unix::fs::chown(&program, Some(USER), None).unwrap();
    let service = Prepaged::start(&place, &[]);
    let start = |name: &str| {
        // While two starts are observed it is passed over.
        let looked_at = || service.count("unknown") + service.count("passed");
        let before = looked_at();
        let mut command = Command::new(&program);
        let running =
            Running(command.arg0(name).arg("60").env("HOME", "/nonexistent").uid(USER).spawn().unwrap());
        service.wait_until("it is looked at", || looked_at() > before);
        running
    };
    // One that ends before it is observed says nothing.
    let observed = service.count("observed");
    service.wait_until("it is observed", || {
        drop(start("own"));
        (0..200).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            service.count("not_kept") > 0 && service.count("observed") > observed
        })
    });
    let counts = || ["observed", "not_kept"].map(|count| service.count(count));
    // An earlier start may be observed late.
    wait_for_observations(&service);
    let before = counts();
    let running: Vec<_> = ["own", "another", "third"].into_iter().map(start).collect();
    // Long enough for an observation to begin; it ends with its program.
    std::thread::sleep(Duration::from_secs(1));
    drop(running);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(counts(), before);
}

/// What one user has put there is not for all others to read.
#[test]
fn of_a_users_start_the_machine_learns_what_is_roots() {
    const USER: u32 = 54321;
    let Some(place) = Place::new() else { return };
    // Below directories of root's alone, which /var/tmp is not.
    let directory = tempfile::tempdir_in("/usr/share").unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = directory.path().join("program");
    let sleep = fs::canonicalize("/bin/sleep").unwrap();
    assert!(Command::new("cp").args([&sleep, &program]).status().unwrap().success());
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let library =
        maps.lines().find_map(|line| Some(&line[line.find('/').filter(|_| line.contains("libgcc_s"))?..]));
    let chosen = place.path("chosen.so");
    fs::copy(library.expect("Rust links it"), &chosen).unwrap();
    std::os::unix::fs::chown(&chosen, Some(USER), None).unwrap();
    let service = Prepaged::start(&place, &["--below", directory.path().to_str().unwrap()]);
    let mut command = Command::new(&program);
    command.arg("60").env("LD_PRELOAD", &chosen).uid(USER);
    service.learn(|| Running(command.spawn().unwrap()));
    let (_, profile) = place.stores().list(Layer::Machine).unwrap().remove(0);
    let files: Vec<_> = profile.unwrap().files.into_iter().map(|file| file.path).collect();
    assert!(files.iter().any(|file| *file == program.to_str().unwrap()), "{files:?}");
    assert!(!files.iter().any(|file| *file == chosen.to_str().unwrap()), "{files:?}");
}

/// Everybody may read the machine's profiles.
#[test]
fn what_a_user_has_typed_is_learned_for_that_user_and_for_all_once_another_types_it() {
    const USERS: [u32; 2] = [54321, 54322];
    let Some(place) = Place::new() else { return };
    let directory = tempfile::tempdir_in("/usr/share").unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = directory.path().join("program");
    copy(Path::new("/bin/sh"), &program);
    let service = Prepaged::start(&place, &["--below", directory.path().to_str().unwrap()]);
    let learned_of = |uid: u32| {
        let home = place.path(&uid.to_string());
        fs::create_dir(&home).unwrap();
        std::os::unix::fs::chown(&home, Some(uid), None).unwrap();
        let mut command = Command::new(&program);
        command.args(["-c", "read line", "--project-x"]).env("HOME", &home).uid(uid).stdin(Stdio::piped());
        service.learn(|| Running(command.spawn().unwrap()));
        // As `prepage run` of this user looks for it.
        let paths = StartContextPaths {
            home: Some(home),
            layers: Some(vec![place.layer()]),
            ..StartContextPaths::default()
        };
        let key =
            ProgramKey { program: program.to_str().unwrap().into(), role: "program --project-x -c".into() };
        Stores::for_uid(uid, &paths).unwrap().find(&key).unwrap().expect("it is there").layer
    };
    assert_eq!(learned_of(USERS[0]), Layer::User);
    assert!(place.stores().list(Layer::Machine).unwrap().is_empty());
    assert_eq!(learned_of(USERS[1]), Layer::Machine);
}

/// Everybody may ask a service that root starts from a shell of its own.
#[test]
fn the_directory_of_the_socket_is_open_to_all_whatever_the_umask_takes_away() {
    let Some(place) = Place::new() else { return };
    let socket = place.path("run/socket");
    let mut command = Command::new("sh");
    command.args([
        "-c",
        "umask 077; exec \"$@\"",
        "sh",
        env!("CARGO_BIN_EXE_prepaged"),
        "--no-learn",
        "--socket",
    ]);
    command.arg(&socket).arg("--below").arg(place.0.path()).env("PREPAGE_LAYERS", place.layer());
    let service = Prepaged { child: command.spawn().unwrap(), socket };
    service.wait_until("it answers", || UnixStream::connect(&service.socket).is_ok());
    assert_eq!(fs::metadata(place.path("run")).unwrap().permissions().mode() & 0o777, 0o755);
}

/// The unit says that a service that ends so is not to be started again.
#[test]
fn a_service_that_cannot_run_says_so_by_an_exit_code_of_its_own() {
    const CODE: Option<i32> = Some(69);
    let unit = include_str!("../units/prepage.service");
    assert!(unit.lines().any(|line| line == "RestartPreventExitStatus=69"), "{unit}");
    let Some(place) = Place::new() else { return };
    // What the one that runs keeps stays, also where the other is to keep nothing.
    let program = place.program("known");
    let kept = [place.expect(&program, unix_s()), place.layer().join("gains/0")];
    place.gained(&[&program], &[1000; 3], &[3_000_000; 3]);
    let service = Prepaged::start(&place, &[]);
    let run = |command: &mut Command| {
        let command = command
            .args(["--no-learn", "--no-predict"])
            .arg("--socket")
            .arg(&service.socket)
            .env("PREPAGE_LAYERS", place.layer());
        command.output().unwrap()
    };
    let prepaged = env!("CARGO_BIN_EXE_prepaged");
    let output = run(&mut Command::new(prepaged));
    assert_eq!(output.status.code(), CODE, "another answers at its socket: {output:?}");
    assert!(kept.iter().all(|file| file.exists()));
    let mut confined = Command::new("setpriv");
    let output = run(confined.args(["--bounding-set", "-sys_admin", prepaged]));
    assert_eq!(output.status.code(), CODE, "it may not watch: {output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot watch"), "{output:?}");
    assert!(kept.iter().all(|file| file.exists()));
}

/// A user has 65,536 of them where others have one.
#[test]
fn of_starts_by_subordinate_user_ids_nothing_is_remembered() {
    const USER: u32 = 54321;
    const SUBORDINATE: u32 = 70_000;
    let Some(place) = Place::new() else { return };
    if !has(Need::UserNamespace) {
        return;
    }
    let (program, _) = place.known("known");
    // It may have a directory of its own that looks like a home.
    let home = place.path("home");
    let key = ProgramKey::of(&[(&program).into(), "60".into()]).unwrap();
    let known = place.stores().path_of(&key, Layer::Machine).unwrap();
    let own = Stores::at(home.join(".local/state/prepage")).path_of(&key, Layer::User).unwrap();
    fs::create_dir_all(own.parent().unwrap()).unwrap();
    fs::copy(known, own).unwrap();
    std::os::unix::fs::chown(&home, Some(SUBORDINATE + 5), None).unwrap();
    let mut service = Prepaged::start(&place, &["--no-learn"]);
    let mut maker = Command::new("unshare");
    maker.args(["--user", "sh", "-c", "echo; read line"]).uid(USER).gid(USER);
    let mut maker = Running(maker.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    maker.0.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    let pid = maker.0.id().to_string();
    for map in ["uid_map", "gid_map"] {
        fs::write(format!("/proc/{pid}/{map}"), format!("0 {SUBORDINATE} 10")).unwrap();
    }
    let start = |command: &mut Command| Running(command.arg(&program).arg("60").spawn().unwrap());
    let ids = ["--user", "--setuid", "5", "--setgid", "5", "--target", &pid];
    let _by_user = Running(Command::new(&program).arg("60").uid(USER).spawn().unwrap());
    let _by_other = start(Command::new("nsenter").args(ids).env("HOME", &home));
    service.wait_until("both are told", || {
        let status = service.status();
        let starts = status["last_starts"].as_array().unwrap();
        [USER, SUBORDINATE + 5].iter().all(|uid| starts.iter().any(|start| start["uid"] == *uid))
    });
    assert_eq!(service.status()["user_profiles"], 0, "it would take the place of those of users");
    service.signal(Signal::TERM);
    assert!(service.child.wait().unwrap().success());
    let logs = fs::read_dir(place.layer().join("launches")).unwrap();
    let logs: Vec<_> = logs.map(|log| log.unwrap().file_name()).collect();
    assert_eq!(logs, [std::ffi::OsString::from(USER.to_string())]);
}

/// As of su(1).
#[test]
fn of_a_set_user_id_program_the_machine_learns_what_is_roots() {
    what_one_maps_who_was_root_is_not_learned(0o4755, A_USER);
}

/// As of sshd(8).
#[test]
fn of_a_program_of_roots_that_goes_on_as_a_user_the_machine_learns_what_is_roots() {
    what_one_maps_who_was_root_is_not_learned(0o755, 0);
}

const A_USER: u32 = 54321;

/// A program begins as root, started by `starter`, and goes on as a user, who chooses what it maps. It waits as for a password: until it is observed.
fn what_one_maps_who_was_root_is_not_learned(mode: u32, starter: u32) {
    const SOURCE: &str = "#include <fcntl.h>\n#include <stdlib.h>\n#include <sys/mman.h>\n#include <unistd.h>\n\
        int main(void) {\n\
        char *map = mmap(0, 4096, PROT_READ, MAP_PRIVATE, open(getenv(\"CHOSEN\"), O_RDONLY), 0);\n\
        return read(0, &(char){0}, 1) || setuid(54321) || *(volatile char *)map != 1 || sleep(60);\n\
        }\n";
    if !has(Need::Tool("cc".into())) {
        return;
    }
    let Some(place) = Place::new() else { return };
    // Below directories of root's alone, which /var/tmp is not.
    let directory = tempfile::tempdir_in("/usr/share").unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let [program, source] = ["program", "program.c"].map(|name| directory.path().join(name));
    fs::write(&source, SOURCE).unwrap();
    assert!(Command::new("cc").arg("-o").args([&program, &source]).status().unwrap().success());
    fs::set_permissions(&program, fs::Permissions::from_mode(mode)).unwrap();
    let chosen = place.path("chosen");
    fs::write(&chosen, [1; PAGE_SIZE as usize]).unwrap();
    std::os::unix::fs::chown(&chosen, Some(A_USER), None).unwrap();
    let service = Prepaged::start(&place, &["--below", directory.path().to_str().unwrap()]);
    service.wait_until("it is learned", || {
        let before = service.count("observed");
        let mut command = Command::new(&program);
        command.env("CHOSEN", &chosen).uid(starter).stdin(Stdio::piped());
        let mut running = Running(command.spawn().unwrap());
        let is_observed = || service.count("observed") > before;
        service.wait_until("it is being observed", || !observers(&service).is_empty() || is_observed());
        drop(running.0.stdin.take());
        service.wait_until("it is observed", is_observed);
        service.count("learned") > 0
    });
    let (_, profile) = place.stores().list(Layer::Machine).unwrap().remove(0);
    let files: Vec<_> = profile.unwrap().files.into_iter().map(|file| file.path).collect();
    assert!(files.iter().any(|file| *file == program.to_str().unwrap()), "{files:?}");
    assert!(!files.iter().any(|file| *file == chosen.to_str().unwrap()), "{files:?}");
    // On the account of whoever started it.
    let starts = service.status()["last_starts"].clone();
    assert!(starts.as_array().unwrap().iter().all(|start| start["uid"] == starter), "{starts}");
}

#[test]
fn nobody_waits_for_a_service_that_is_stopped_or_killed_and_another_takes_its_place() {
    let Some(place) = Place::new() else { return };
    let (program, file) = place.known("known");
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

/// An exec that is heard of goes on meanwhile, and waits for nobody who looks at it in its place.
#[test]
fn who_hears_of_execs_takes_a_processor_from_nobody_and_who_fetches_gives_no_way() {
    const OTHER: &str = "0";
    const BATCH: &str = "3";
    let Some(place) = Place::new() else { return };
    let (program, _) = place.known("known");
    let service = Prepaged::start(&place, &["--no-learn"]);
    let _running = Running::start(&program);
    service.wait_until("it is fetched", || service.count("fetched_bytes") > 0);
    let first = service.child.id().to_string();
    // proc_pid_stat(5), behind the name.
    let policy =
        |stat: &str| stat.rsplit(')').next().unwrap().split_whitespace().nth(41 - 3).unwrap().to_owned();
    service.wait_until("those that were just started do not either", || {
        let mut tasks = fs::read_dir(format!("/proc/{first}/task")).unwrap().flatten();
        let is_right = |task: fs::DirEntry| {
            let wanted = if task.file_name() == *first { BATCH } else { OTHER };
            fs::read_to_string(task.path().join("stat")).is_ok_and(|stat| policy(&stat) == wanted)
        };
        tasks.all(is_right)
    });
}

/// An event of perf that tells of mappings costs each mmap(2) of the machine time, and threads that are started inherit what is observed.
#[test]
fn while_nothing_is_observed_the_service_has_one_event_of_perf_and_no_ring() {
    let Some(place) = Place::new() else { return };
    let (setup, own) = (Setup::new(Source::Dummy), Observed::Thread(std::process::id()));
    let opened = PerfEvent::open(&setup, own, online_cpus().unwrap()[0]);
    let refused = |error: &PerfError| {
        use PerfError::{NotYours, SwitchedOff, Unavailable};
        matches!(error, NotYours { .. } | SwitchedOff { .. } | Unavailable { .. })
    };
    if unless_refused(opened, Need::Doctor(Doctor::Faults), refused).is_none() {
        return;
    }
    let service = Prepaged::start(&place, &[]);
    let of_service = |name: &str| format!("/proc/{}/{name}", service.child.id());
    // What else the machine executes may be expected to be observed.
    service.wait_until("there is one", || {
        let open = fs::read_dir(of_service("fd")).unwrap().flatten();
        let is_event = |path: &PathBuf| path.as_os_str() == "anon_inode:[perf_event]";
        let events = open.filter_map(|one| fs::read_link(one.path()).ok()).filter(is_event).count();
        let maps = fs::read_to_string(of_service("maps")).unwrap();
        events == 1 && !maps.contains("[perf_event]")
    });
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
    let (program, file) = place.known("known");
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

/// `EXECUTABLES=1000000` tries more, which takes minutes and 4 GiB of the disk.
#[test]
fn a_hundred_thousand_executables_take_bounded_memory() {
    let executables =
        std::env::var("EXECUTABLES").map_or(100_000, |count| count.parse().expect("EXECUTABLES is a number"));
    let Some(place) = Place::new() else { return };
    let (program, _) = place.known("known");
    let scripts = place.scripts(executables);
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
    service.wait_until("all are seen", || sees(executables));
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
        let (before, observed) = (service.count(count), service.count("observed"));
        service.wait_until(what, || {
            let _running = Running::start(&program);
            // A signal ends pauses a little later: then a start has come too early.
            (0..200).any(|_| {
                std::thread::sleep(Duration::from_millis(10));
                service.count(count) > before && service.count("observed") > observed
            })
        });
    };
    start_until(&service, "nothing can be kept", "not_kept");
    assert!(place.stores().list(Layer::Machine).unwrap().is_empty());
    // Nor is it observed again and again.
    wait_for_observations(&service);
    let observed = service.count("observed");
    let start = |_| {
        let starts = service.count("starts");
        let running = Running::start(&program);
        service.wait_until("it is looked at", || service.count("starts") > starts);
        running
    };
    let running: Vec<_> = (0..3).map(start).collect();
    // Long enough for an observation to begin; it ends with its program, and is counted then.
    std::thread::sleep(Duration::from_secs(1));
    drop(running);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(service.count("observed"), observed);
    fs::remove_file(&filler).unwrap();
    drop(file);
    service.signal(Signal::HUP);
    start_until(&service, "it is learned", "learned");
    assert_eq!(place.stores().list(Layer::Machine).unwrap().len(), 1);
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
    let text = service.metrics();
    assert!(text.contains("\n# TYPE prepage_execs_total counter\nprepage_execs_total "), "{text}");
    assert!(!text.contains(program.to_str().unwrap()), "{text}");
    // Another user.
    let Some(status) = service.status_for(54321) else { return };
    assert_eq!(status["last_starts"], serde_json::json!([]));
}

/// A build executes the same few programs all the time: the kernel does not tell of each.
#[test]
fn programs_that_are_executed_all_the_time_and_need_nothing_are_passed_over_and_looked_at_again() {
    let Some(place) = Place::new() else { return };
    let program = place.program("unknown");
    let service = Prepaged::start(&place, &["--no-learn"]);
    // How many events there are says nothing: others execute programs, too.
    service.wait_until("it is passed over", || {
        let status = Command::new(&program).arg("0").status().unwrap();
        status.success() && service.is_passed_over(&program)
    });
    let file = place.cold_file("file", 0o644);
    place.profile(&program, &[&file]);
    let is_used = || service.count("fetched_bytes") > 0;
    starts_until(&service, "its profile is used", &program, Duration::from_millis(20), is_used);
}

/// A known program rests for a second at first. One that is executed many times within it costs no event each time, also where it is due to be
/// observed and nobody observes.
#[test]
fn a_known_program_that_is_in_memory_is_passed_over_before_it_has_rested_for_long() {
    // The service passes over it by itself between these.
    const LOOKS_MAX: usize = 3;
    for is_due in [false, true] {
        // Where a busy machine executes it too seldom, it rests for long first: then another one is tried.
        let until = Instant::now() + PATIENCE;
        loop {
            let Some(place) = Place::new() else { return };
            let looks = looks_until_passed_over(&place, is_due);
            if looks.len() <= LOOKS_MAX {
                break;
            }
            assert!(Instant::now() < until, "{looks:?}");
        }
    }
}

/// The starts of a known program that are looked at before the kernel passes over it.
fn looks_until_passed_over(place: &Place, is_due: bool) -> Vec<serde_json::Value> {
    let (program, file) = place.known("known");
    if is_due {
        write_profile(&place.layer(), &Profile { history: Default::default(), ..place.profile_of(&program) });
    }
    fs::read(&file).unwrap();
    let service = Prepaged::start(place, &["--no-learn", "--idle-after", "0"]);
    service.wait_until("its file is known", || service.count("name_rounds") > 0);
    service.wait_until("it is passed over", || {
        (0..8).for_each(|_| assert!(Command::new(&program).arg("0").status().unwrap().success()));
        service.is_passed_over(&program)
    });
    service.status()["last_starts"].as_array().unwrap().clone()
}

/// What nobody knew a moment ago may have been learned meanwhile, by `prepage learn` for one.
#[test]
fn a_profile_that_a_user_gets_is_used_though_the_program_was_unknown_before() {
    let Some(place) = Place::new() else { return };
    let program = place.program("known");
    let service = Prepaged::start(&place, &["--no-learn"]);
    // They go on: what is gone by the time that it is looked at is not said to be unknown.
    let mut running = Vec::new();
    let mut start_until = |what: &str, is_done: &dyn Fn() -> bool| {
        service.wait_until(what, || {
            running.push(Running::start(&program));
            std::thread::sleep(Duration::from_millis(20));
            is_done()
        });
    };
    start_until("it is unknown", &|| service.count("unknown") > 0);
    // By others' programs, too: each makes some more starts.
    for _ in 0..3 {
        let passed = service.count("passed");
        start_until("it is not looked at again", &|| service.count("passed") > passed);
    }
    drop(running);
    service.wait_until("what is not looked at is no start that was", || {
        let status = service.status();
        status["last_starts"].as_array().unwrap().len() as u64
            == status["counts"]["unknown"].as_u64().unwrap()
    });
    let file = place.cold_file("file", 0o644);
    place.profile_in(&place.path("own-store"), &program, &[&file]);
    let is_fetched = || service.count("fetched_bytes") > 0;
    starts_until(&service, "it is fetched", &program, Duration::from_millis(100), is_fetched);
}

/// Of git one role is known, and somebody calls it in another.
#[test]
fn a_start_in_another_way_than_the_only_one_that_is_known_is_not_told_as_a_start_of_that_one() {
    let Some(place) = Place::new() else { return };
    let (program, file) = place.known("known");
    let service = Prepaged::start(&place, &["--no-learn", "--idle-after", "0"]);
    service.wait_until("its file is known", || service.count("name_rounds") > 0);
    let roles = |status: &serde_json::Value| {
        let starts = status["last_starts"].as_array().unwrap().iter();
        starts.map(|start| start["role"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    // Once it is known what the user wants. What has not come early comes as a guess.
    service.wait_until("it is fetched early", || {
        let before = ["unknown", "guessed", "fetched_bytes"].map(|name| service.count(name));
        chill(&file);
        let _called = Running(Command::new(&program).arg0("called").arg("60").spawn().unwrap());
        service.wait_until("it is looked at", || service.count("unknown") > before[0]);
        // Bytes are counted each second.
        std::thread::sleep(Duration::from_millis(2100));
        service.count("guessed") == before[1] && service.count("fetched_bytes") > before[2]
    });
    let status = service.status();
    assert_eq!(status["counts"]["fetched"], 0);
    assert!(roles(&status).iter().all(|role| role == "called"), "{status}");
}

/// A build calls the shell with another text for each file, and none of them ever again.
#[test]
fn a_text_that_stands_in_the_call_is_learned_and_remembered_when_it_is_started_again() {
    let Some(place) = Place::new() else { return };
    let shell = place.shell("sh");
    let service = Prepaged::start(&place, &[]);
    let start = |text: &str| {
        let before = service.count("unknown");
        let running = Running(Command::new(&shell).args(["-c", text]).spawn().unwrap());
        service.wait_until("it is unknown", || service.count("unknown") > before);
        running
    };
    let execute = |text: &str| {
        let _running = start(text);
        std::thread::sleep(Duration::from_millis(50));
    };
    (0..10).for_each(|at| execute(&format!("sleep 1; : {at}")));
    // What is learned is what an observation at its end has counted.
    std::thread::sleep(Duration::from_secs(2));
    let remembered = || service.status()["idle"]["remembered_programs"].as_u64().unwrap();
    assert_eq!((service.count("observed"), remembered()), (0, 0));
    // Where it was observed too late, or not because another one was, the next is tried.
    let learned = (0..10).map(|at| format!("sleep 1; : {at}")).find(|text| {
        let _running = start(text);
        is_so_within(Duration::from_secs(10), || service.count("learned") > 0)
    });
    let learned = learned.unwrap_or_else(|| panic!("none is learned: {}", service.status()));
    assert_eq!(remembered(), 0, "nothing could be brought in");
    let _running = Running(Command::new(&shell).args(["-c", &learned]).spawn().unwrap());
    service.wait_until("it is remembered", || remembered() == 1);
}

/// A build makes programs, and starts each of them once.
#[test]
fn a_program_that_nobody_has_learned_is_not_remembered() {
    let Some(place) = Place::new() else { return };
    let ((known, _), unknown) = (place.known("known"), place.program("unknown"));
    let service = Prepaged::start(&place, &["--no-learn"]);
    let _running = [&unknown, &known].map(|program| Running::start(program));
    // What is remembered of a start is before that.
    let last_starts = || service.status()["last_starts"].as_array().unwrap().len();
    service.wait_until("both are looked at", || last_starts() == 2);
    assert_eq!(service.status()["idle"]["remembered_programs"], 1);
}

/// A profile that takes about so many bytes in memory, of a program that nobody starts.
fn large(name: &str, bytes: usize) -> Profile {
    let path = |at: usize| format!("/no/such/name/{at:0>86}");
    let lookups =
        (0..bytes / 164).map(|at| Lookup { path: path(at), list: false, counts: Default::default() });
    Profile {
        program: format!("/no/such/{name}"),
        role: name.into(),
        lookups: lookups.collect(),
        ..Profile::default()
    }
}

#[test]
fn of_a_user_who_has_more_profiles_than_fit_those_that_do_not_fit_are_used_too() {
    let Some(place) = Place::new() else { return };
    let (program, own) = (place.program("known"), place.path("own-store"));
    let file = place.cold_file("file", 0o644);
    place.profile_in(&own, &program, &[&file]);
    ["one", "other"].iter().for_each(|name| write_profile(&own, &large(name, 1200 << 10)));
    let service = Prepaged::start(&place, &["--no-learn"]);
    let _running = Running::start(&program);
    service.wait_until("it is fetched", || service.count("fetched_bytes") > 0);
    let bytes = service.status()["profile_bytes"].as_u64().unwrap();
    assert!((1 << 20..2 << 20).contains(&bytes), "{bytes}");
}

/// It is followed with the user's rights, and what stands in the place of a file holds up no thread.
#[test]
fn a_users_own_profile_that_lies_has_nothing_read_that_its_user_may_not() {
    unless_caches_dropped(follows_a_profile_that_lies);
}

fn follows_a_profile_that_lies() {
    const OTHER: u32 = A_USER + 1;
    let Some(place) = Place::new() else { return };
    let [lied_about, known] = ["lied-about", "known"].map(|name| place.program(name));
    let [own, others] = ["own", "others"].map(|name| place.cold_file(name, 0o600));
    let all = place.cold_file("all", 0o644);
    place.profile(&known, &[&all]);
    for (file, uid) in [(&own, A_USER), (&others, OTHER)] {
        std::os::unix::fs::chown(file, Some(uid), None).unwrap();
    }
    let (home, pipe, link, way) =
        (place.path("home"), place.path("pipe"), place.path("link"), place.path("way"));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    std::os::unix::fs::symlink(&others, &link).unwrap();
    std::os::unix::fs::symlink(place.0.path(), &way).unwrap();
    // Whoever lies knows what tells the files.
    let directory = home.join(".local/state/prepage");
    place.profile_in(&directory, &lied_about, &[&others, &own]);
    let (_, learned) = Stores::at(directory.clone()).list(Layer::User).unwrap().remove(0);
    let mut profile = learned.unwrap();
    let mut touches = Touches::default();
    [8, PAGES - 1, PAGES, PAGES + 100, 1 << 40]
        .into_iter()
        .for_each(|page| touches.touch(PageIndex(page), 0));
    profile.files[1].extents = touches.extents();
    for path in [pipe, link, way.join("others"), "/dev/zero".into()] {
        let path = path.to_str().unwrap().into();
        profile.files.push(ProfiledFile { path, ..profile.files[0].clone() });
    }
    write_profile(&directory, &profile);
    assert!(Command::new("chown").args(["-R", &A_USER.to_string()]).arg(&home).status().unwrap().success());
    let service = Prepaged::start(&place, &["--no-learn"]);
    let mut start = Command::new(&lied_about);
    let _running = Running(start.arg("60").uid(A_USER).env("HOME", &home).spawn().unwrap());
    // That is counted at its end.
    service.wait_until("it is fetched", || service.count("fetched_bytes") > 0);
    assert_eq!(service.status()["user_profiles"], 1);
    assert_eq!((pages_in_memory(&own), pages_in_memory(&others)), (2, 0));
    assert_eq!((service.count("hung"), &service.status()["hanging_threads"]), (0, &0.into()));
    let _other = Running::start(&known);
    service.wait_until("another user's start is fetched", || pages_in_memory(&all) >= 3);
}

#[test]
fn profiles_of_packages_are_used_and_those_of_the_machine_before_them() {
    let Some(place) = Place::new() else { return };
    let [shipped, learned] = ["shipped", "learned"].map(|name| place.program(name));
    let [a, b, c] = ["a", "b", "c"].map(|name| place.cold_file(name, 0o644));
    let vendor = place.path("vendor");
    place.profile_in(&vendor, &shipped, &[&a]);
    place.profile_in(&vendor, &learned, &[&b]);
    place.profile(&learned, &[&c]);
    let layers = format!("{}:{}", place.layer().display(), vendor.display());
    let service =
        Prepaged::start_with(&place, &["--no-learn"], |command| _ = command.env("PREPAGE_LAYERS", layers));
    let _running = [&shipped, &learned].map(|program| Running::start(program));
    service.wait_until("both are fetched", || service.count("fetched_bytes") >= 6 * PAGE_SIZE);
    assert!([&a, &c].iter().all(|file| pages_in_memory(file) >= 3) && pages_in_memory(&b) == 0);
}
