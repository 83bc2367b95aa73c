//! A boot and a session on the real kernel: what is used while it lasts is learned, what is only brought in is not, and the next one brings it in.

mod support;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime};

use prepage_core::profile::{Extent, FileIdentity, Fingerprint, History, Profile, ProfiledFile, Touches};
use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_profiles::Stores;
use prepage_profiles::identity::profiled;
use prepage_profiles::key::is_of_subject;
use prepage_service::period::PeriodReport;
use prepage_service::subject::Subject;
use prepage_sys::cachestat::{cached_pages, evict};
use prepage_testing::{Hung, Need, has};
use rustix::fs::{Advice, fadvise};
use rustix::process::{Pid, Signal, kill_process};

use support::Place;

/// Longer than anything takes here, on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(120);
const PAGES: u64 = 64;
/// The page that somebody uses.
const USED: u64 = 8;
/// Pages that are brought in and used by nobody.
const UNUSED: PageRange = PageRange::new(PageIndex(40), PageIndex(44));

const PREPAGED: &str = env!("CARGO_BIN_EXE_prepaged");

/// A `prepaged` that watches a boot or a session of root's.
fn begin(subject: Subject, directory: &Path, options: &[&str]) -> Child {
    begin_as(&[PREPAGED], subject, directory, options)
}

fn begin_as(program: &[&str], subject: Subject, directory: &Path, options: &[&str]) -> Child {
    begin_as_told(program, subject, directory, options, Stdio::inherit())
}

fn begin_as_told(
    program: &[&str],
    subject: Subject,
    directory: &Path,
    options: &[&str],
    errors: Stdio,
) -> Child {
    let socket = directory.join("notify");
    let _ = fs::remove_file(&socket);
    let ready = UnixDatagram::bind(&socket).unwrap();
    ready.set_read_timeout(Some(PATIENCE)).unwrap();
    let child = Command::new(program[0])
        .args(&program[1..])
        .args(match subject {
            Subject::Boot => vec!["boot".into()],
            Subject::Session(uid) => vec!["session".into(), uid.to_string()],
        })
        // It never becomes quiet: the time is up after some seconds.
        .args(["--quiet", "1000", "--at-most", "4"])
        .args(options)
        .env("PREPAGE_LAYERS", directory.join("layer"))
        .env("PREPAGE_STORE", directory.join("layer"))
        .env("NOTIFY_SOCKET", &socket)
        .stderr(errors)
        .spawn()
        .unwrap();
    let mut said = [0; 64];
    let len = ready.recv(&mut said).unwrap();
    assert_eq!(&said[..len], b"READY=1");
    child
}

fn stores(subject: Subject, directory: &Path) -> Stores {
    match subject {
        Subject::Boot => subject.stores(Some(vec![directory.join("layer")])).unwrap(),
        Subject::Session(_) => Stores::at(directory.join("layer")),
    }
}

/// `profile`, which asks for the next one to be learned.
fn with_one_due(profile: Profile) -> Profile {
    let history = History { due: 1, ..profile.history };
    Profile { history, ..profile }
}

fn learned(subject: Subject, stores: &Stores) -> Option<Profile> {
    stores.at_path(subject.layer(), &stores.path_of(&subject.key(), subject.layer()).unwrap()).unwrap()
}

#[test]
fn what_a_boot_uses_is_learned_and_the_next_one_brings_it_in() {
    is_learned_and_brought_in(Subject::Boot);
}

#[test]
fn what_a_session_uses_is_learned_and_the_next_one_brings_it_in() {
    is_learned_and_brought_in(Subject::Session(0));
}

fn is_learned_and_brought_in(subject: Subject) {
    let Some(place) = Place::new() else { return };
    let (directory, path) = (place.0.path(), place.path("needed"));
    let mut file = File::create(&path).unwrap();
    file.write_all(&vec![1; (PAGES * PAGE_SIZE) as usize]).unwrap();
    file.sync_all().unwrap();
    let file = File::open(&path).unwrap();
    fadvise(&file, 0, None, Advice::Random).unwrap();
    let stores = stores(subject, directory);
    // What was made while it lasts is left out: the clock of files stands still for some milliseconds.
    std::thread::sleep(Duration::from_millis(50));
    // A session is not learned again at once: what was learned before is made old.
    let let_time_pass = || {
        if let Ok(known) = File::open(stores.path_of(&subject.key(), subject.layer()).unwrap()) {
            known.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        }
    };
    // Where memory is short the kernel takes back its notes: tried again.
    let until = Instant::now() + PATIENCE;
    let found: ProfiledFile = loop {
        evict(file.as_fd(), PATIENCE).unwrap();
        let_time_pass();
        let mut child = begin(subject, directory, &[]);
        // Another process opens and reads a page.
        let read = format!("exec 3<'{}'; echo; read -r line", path.display());
        let mut reader =
            Command::new("sh").args(["-c", &read]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let reader = reader.as_mut().unwrap();
        BufReader::new(reader.stdout.as_mut().unwrap()).read_line(&mut String::new()).unwrap();
        file.read_exact_at(&mut [0; PAGE_SIZE as usize], USED * PAGE_SIZE).unwrap();
        fadvise(&file, UNUSED.start().offset_bytes(), NonZeroU64::new(UNUSED.bytes()), Advice::WillNeed)
            .unwrap();
        assert!(child.wait().unwrap().success());
        reader.kill().unwrap();
        reader.wait().unwrap();
        let profile =
            learned(subject, &stores).filter(|profile| is_of_subject(&profile.program, &profile.role));
        let file = profile.and_then(|profile| {
            profile.files.into_iter().find(|file| Path::new(&file.path) == path.canonicalize().unwrap())
        });
        match file {
            Some(file) if file.contains(PageIndex(USED)) => break file,
            file => assert!(Instant::now() < until, "not learned: {file:?}"),
        }
        // What it has of the rest would be brought in.
        let _ = fs::remove_file(stores.path_of(&subject.key(), subject.layer()).unwrap());
    };
    assert!(UNUSED.iter().all(|page| !found.contains(page)), "{found:?}");
    if subject == Subject::Boot {
        let report = PeriodReport::of_last_boot(&stores).unwrap();
        assert!(!report.is_quiet && report.seen_pages > Some(0) && report.fetched_pages == 0, "{report:?}");
    }

    // Whatever else this machine did meanwhile is not for this test to bring in.
    let only = |profile: Option<Profile>| {
        let mut profile = profile?;
        profile.files.retain(|file| file.path == found.path);
        profile.lookups.clear();
        // A boot that is known is learned now and then.
        profile.history.due = 1;
        Some(profile)
    };
    stores.update(&subject.key(), subject.layer(), only).unwrap();
    let in_memory = |page| {
        let page = PageRange::new(PageIndex(page), PageIndex(page + 1));
        cached_pages(file.as_fd(), page).is_ok_and(|count| count > 0)
    };
    // Where somebody waits for memory a prefetch steps back: tried again.
    loop {
        evict(file.as_fd(), PATIENCE).unwrap();
        assert!(begin(subject, directory, &["--no-learn"]).wait().unwrap().success());
        // Nobody but the boot has read it.
        assert!(!in_memory(UNUSED.start().0));
        if in_memory(USED) {
            break;
        }
        assert!(Instant::now() < until, "not fetched");
    }
    // One that may not watch what is opened learns nothing, and says so.
    let confined = ["setpriv", "--bounding-set", "-sys_admin", PREPAGED];
    loop {
        evict(file.as_fd(), PATIENCE).unwrap();
        let_time_pass();
        assert!(!begin_as(&confined, subject, directory, &[]).wait().unwrap().success());
        if in_memory(USED) {
            break;
        }
        assert!(Instant::now() < until, "not fetched");
    }
    if subject == Subject::Boot {
        assert_eq!(PeriodReport::of_last_boot(&stores).unwrap().seen_pages, None);
    }
}

/// As one of a directory on the network.
#[test]
fn of_a_user_whom_nobody_knows_a_session_is_ready_and_over_at_once_and_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let child = begin_as_told(&[PREPAGED], Subject::Session(54321), directory.path(), &[], Stdio::piped());
    let ended = child.wait_with_output().unwrap();
    assert!(ended.status.success());
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(said.contains("user 54321") && said.contains("/etc/passwd"), "{said}");
}

/// As one of `ssh HOST COMMAND`: systemd ends what follows it.
#[test]
fn a_session_that_is_over_before_the_machine_is_quiet_is_learned_as_is_the_next_and_then_none_for_an_hour() {
    let on_disk = Path::new("/var/tmp");
    if !has(Need::Root) || !has(Need::Eviction(on_disk.into())) {
        return;
    }
    let directory = tempfile::tempdir_in(on_disk).unwrap();
    let (subject, endless) = (Subject::Session(0), ["--at-most", "100000"]);
    let needed = directory.path().join("needed");
    fs::write(&needed, vec![1; PAGE_SIZE as usize]).unwrap();
    // What was made while it lasts is left out: the clock of files stands still for some milliseconds.
    std::thread::sleep(Duration::from_millis(50));
    let stores = stores(subject, directory.path());
    let path = needed.canonicalize().unwrap();
    let is_learned = || {
        let profile = learned(subject, &stores);
        profile.is_some_and(|profile| profile.files.iter().any(|file| Path::new(&file.path) == path))
    };
    // Where memory is short the kernel takes back its notes: tried again.
    let until = Instant::now() + PATIENCE;
    while !is_learned() {
        assert!(Instant::now() < until, "not learned");
        let _ = fs::remove_dir_all(directory.path().join("layer"));
        let mut child = begin(subject, directory.path(), &endless);
        let use_it = format!("exec 3<'{}'; read -r word <&3; echo; read -r line", path.display());
        let mut user = Command::new("sh");
        let user = user.args(["-c", &use_it]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut user = user.unwrap();
        BufReader::new(user.stdout.as_mut().unwrap()).read_line(&mut String::new()).unwrap();
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        let ended = child.wait().unwrap();
        user.kill().unwrap();
        user.wait().unwrap();
        assert!(ended.success(), "{ended}");
    }
    // What the first one did not come to may show in the next.
    let history = || learned(subject, &stores).unwrap().history;
    let observations = history().observations;
    let mut next = begin(subject, directory.path(), &endless);
    // It may have ended by itself, where it is not learned.
    let _ = kill_process(Pid::from_child(&next), Signal::TERM);
    assert!(next.wait().unwrap().success());
    assert_eq!(history().observations, observations + 1);
    let nothing_due = |profile: Option<Profile>| {
        let mut profile = profile?;
        profile.history.due = 0;
        Some(profile)
    };
    stores.update(&subject.key(), subject.layer(), nothing_due).unwrap();
    let mut next = begin(subject, directory.path(), &endless);
    let until = Instant::now() + PATIENCE;
    let ended = loop {
        match next.try_wait().unwrap() {
            None if Instant::now() < until => std::thread::sleep(Duration::from_millis(10)),
            ended => break ended,
        }
    };
    let _ = next.kill();
    assert!(ended.is_some_and(|ended| ended.success()), "it is followed again: {ended:?}");
}

/// Whoever looks whether a boot was served is not to be shown an earlier one.
#[test]
fn of_a_boot_that_could_not_be_kept_there_is_a_report_and_none_of_another_boot() {
    if !has(Need::Root) {
        return;
    }
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let (subject, layer) = (Subject::Boot, directory.path().join("layer"));
    let stores = stores(subject, directory.path());
    // In the profile's way.
    fs::create_dir_all(layer.join(subject.key().file_name())).unwrap();
    for path in [directory.path(), &layer] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    assert!(!begin(subject, directory.path(), &[]).wait().unwrap().success());
    let report = PeriodReport::of_last_boot(&stores).unwrap();
    let earlier = PeriodReport { boot_id: "1b4e28ba-2fa1-11d2-883f-b9a761bde3fb".into(), ..report };
    fs::write(layer.join("boot.json"), serde_json::to_vec(&earlier).unwrap()).unwrap();
    assert_eq!(PeriodReport::of_last_boot(&stores), None);
}

/// As after an update. Which of its pages are used now, the next one shows.
#[test]
fn of_a_file_that_was_found_changed_the_next_one_learns_and_until_then_it_stays() {
    if !has(Need::Root) {
        return;
    }
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let changed = directory.path().canonicalize().unwrap().join("changed");
    fs::write(&changed, "another text").unwrap();
    let (subject, stores) = (Subject::Session(0), stores(Subject::Session(0), directory.path()));
    let key = subject.key();
    let mut touches = Touches::default();
    touches.touch(PageIndex(0), 0);
    let file = ProfiledFile {
        path: changed.to_str().unwrap().into(),
        identity: FileIdentity { size_bytes: PAGE_SIZE, ..FileIdentity::default() },
        fingerprint: Fingerprint::BuildId(vec![1]),
        extents: touches.extents(),
        ..ProfiledFile::default()
    };
    let history = History { observations: 2, ..History::default() };
    let profile = Profile { history, files: vec![file], ..key.empty_profile() };
    let until = Instant::now() + PATIENCE;
    // Where somebody waits for memory a prefetch steps back: tried again.
    let after = loop {
        stores.update(&key, subject.layer(), |_| Some(profile.clone())).unwrap();
        assert!(begin(subject, directory.path(), &[]).wait().unwrap().success());
        let after = learned(subject, &stores).unwrap();
        if after.history.due > 0 {
            break after;
        }
        assert!(Instant::now() < until, "none is due: {after:?}");
    };
    assert_eq!(after.history, History { due: 1, ..history });
    assert_eq!(after.files, profile.files);
}

/// As on a volume whose blocks come from far away when they are first read.
#[test]
fn what_has_not_come_in_when_the_time_is_up_comes_in_all_the_same() {
    // Of a boot systemd may say that all is started.
    comes_in_after_the_time_is_up(Subject::Session(0));
}

/// Whoever stops the machine meanwhile has it.
#[test]
fn the_report_of_a_boot_is_there_also_while_what_has_not_come_in_still_comes_in() {
    if has(Need::Mounts) {
        comes_in_after_the_time_is_up(Subject::Boot);
    }
}

fn comes_in_after_the_time_is_up(subject: Subject) {
    let Some(place) = Place::new() else { return };
    if !has(Need::Path("/dev/fuse".into())) {
        return;
    }
    let directory = place.0.path().canonicalize().unwrap();
    let [layer, slow, needed] = ["layer", "slow", "needed"].map(|name| directory.join(name));
    fs::create_dir(&slow).unwrap();
    fs::set_permissions(&slow, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(&needed, vec![1; (PAGES * PAGE_SIZE) as usize]).unwrap();
    let file = File::open(&needed).unwrap();
    file.sync_all().unwrap();
    let known = profiled(&needed, [USED]).unwrap();
    let profiled = |path: &Path, rank| {
        let extents = vec![Extent { rank, ..known.extents[0] }];
        ProfiledFile { path: path.to_str().unwrap().into(), extents, ..known.clone() }
    };
    // As many readers as ask at once wait for these.
    let slow_ones = (0..3).map(|number| profiled(&slow.join(number.to_string()), number));
    let files = slow_ones.chain([profiled(&needed, 9)]).collect();
    let stores = stores(subject, &directory);
    let within = within_a_machine_that_says(&directory, "starting", &directory.join("asked"));
    let program = if subject == Subject::Boot { within } else { vec![PREPAGED.into()] };
    let program: Vec<&str> = program.iter().map(String::as_str).collect();
    let key = subject.key();
    let profile = Profile { files, ..key.empty_profile() };
    stores.update(&key, subject.layer(), |_| Some(profile.clone())).unwrap();
    let is_in_memory = || cached_pages(file.as_fd(), PageIndex(USED).alone()).is_ok_and(|pages| pages > 0);
    let until = Instant::now() + PATIENCE;
    // Where somebody waits for memory a prefetch steps back: tried again.
    loop {
        evict(file.as_fd(), PATIENCE).unwrap();
        let hung = Hung::mount(&slow);
        let _ = fs::remove_file(layer.join("boot.json"));
        let mut child = begin_as(&program, subject, &directory, &["--no-learn"]);
        // Its time is up after four.
        std::thread::sleep(Duration::from_secs(6));
        assert!(!is_in_memory());
        // Where this thread was held up as long as it goes on, it has ended: tried again.
        let goes_on = child.try_wait().unwrap().is_none();
        let is_told = subject != Subject::Boot || PeriodReport::of_last_boot(&stores).is_some();
        drop(hung);
        assert!(child.wait().unwrap().success());
        if goes_on && is_told && is_in_memory() {
            break;
        }
        assert!(Instant::now() < until, "not fetched, or goes on: {goes_on}, is told: {is_told}");
    }
}

/// What begins a program on a machine whose manager `says` how far it is, in a mount namespace of its own; `asked` is there once somebody has asked it.
fn within_a_machine_that_says(directory: &Path, says: &str, asked: &Path) -> Vec<String> {
    let (script, systemctl) = (directory.join(says), directory.join("bin/systemctl"));
    fs::write(&script, format!("#!/bin/sh\necho >'{}'; echo {says}\n", asked.display())).unwrap();
    // Another test's child may still hold what this process has written.
    let mut install = Command::new("install");
    install.args(["-D", "-m", "755"]).args([&script, &systemctl]);
    assert!(install.status().unwrap().success());
    // In place of the machine's, which is not looked for along PATH unless it has none.
    let begin = r#"for at in /usr/bin/systemctl /bin/systemctl; do test ! -e $at || mount --bind "$0" $at; done
        PATH=${0%/*}:$PATH exec "$@""#;
    ["unshare", "--mount", "sh", "-c", begin, systemctl.to_str().unwrap(), PREPAGED]
        .map(str::to_owned)
        .to_vec()
}

#[test]
fn a_boot_that_waits_for_a_file_system_in_vain_ends_by_itself() {
    if !has(Need::Root) || !has(Need::Path("/dev/fuse".into())) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let layer = directory.path().join("layer");
    fs::create_dir(&layer).unwrap();
    let mut child = begin_as_told(&[PREPAGED], Subject::Boot, directory.path(), &[], Stdio::piped());
    let hung = Hung::mount(&layer);
    let said = {
        let (said, all) = std::sync::mpsc::channel();
        let stderr = child.stderr.take().unwrap();
        std::thread::spawn(move || said.send(std::io::read_to_string(stderr)));
        all.recv_timeout(PATIENCE)
    };
    drop(hung);
    let status = child.wait().unwrap();
    assert!(said.unwrap().unwrap().contains("a file system does not answer"));
    assert_eq!(status.code(), Some(1));
}

/// As beside a database that is asked all the time.
#[test]
fn what_a_boot_has_not_used_when_its_time_is_up_fades_where_the_machine_has_started_all() {
    let Some(place) = Place::new() else { return };
    if !has(Need::Mounts) {
        return;
    }
    let directory = place.0.path();
    let unused = directory.canonicalize().unwrap().join("unused");
    fs::write(&unused, vec![1; (PAGES * PAGE_SIZE) as usize]).unwrap();
    let profiled = profiled(&unused, [USED]).unwrap();
    let (subject, stores) = (Subject::Boot, stores(Subject::Boot, directory));
    let key = subject.key();
    let profile = Profile { files: vec![profiled], ..key.empty_profile() };
    stores.update(&key, subject.layer(), |_| Some(profile.clone())).unwrap();
    let counts = || {
        let files = learned(subject, &stores).unwrap().files;
        files.iter().find(|file| Path::new(&file.path) == unused).map(|file| file.extents[0].counts)
    };
    let asked = directory.join("asked");
    let run = |subject: Subject, says: &str| {
        let within = within_a_machine_that_says(directory, says, &asked);
        let within: Vec<&str> = within.iter().map(String::as_str).collect();
        assert!(begin_as(&within, subject, directory, &[]).wait().unwrap().success());
    };
    let counts_after_boot = |says: &str| {
        run(subject, says);
        counts()
    };
    let before = counts();
    assert_eq!(counts_after_boot("starting"), before, "it may be used later");
    // Where memory is short, or opens are lost, nothing counts as unused: tried again.
    let until = Instant::now() + PATIENCE;
    while counts_after_boot("running") == before {
        assert!(Instant::now() < until, "it does not fade");
        // A boot that is known is learned now and then.
        stores.update(&key, subject.layer(), |known| known.map(with_one_due)).unwrap();
    }
    fs::remove_file(&asked).unwrap();
    run(Subject::Session(0), "running");
    assert!(!asked.exists(), "that says nothing of a session");
}

/// As one on a server that is gone: who logs in asks for it first.
#[test]
fn a_session_whose_home_does_not_answer_ends_by_itself() {
    if !has(Need::Root) || !has(Need::Mounts) || !has(Need::Path("/dev/fuse".into())) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let [home, passwd] = ["home", "passwd"].map(|name| directory.path().join(name));
    fs::create_dir(&home).unwrap();
    fs::write(&passwd, format!("root:x:0:0:root:{}:/bin/sh\n", home.display())).unwrap();
    let hung = Hung::mount(&home);
    let script = r#"mount --bind "$PASSWD" /etc/passwd && exec "$PREPAGED" session 0 --at-most 0"#;
    let mut session = Command::new("unshare");
    session.args(["--mount", "sh", "-c", script]).env_remove("PREPAGE_STORE");
    session.envs([("PASSWD", &*passwd), ("PREPAGED", Path::new(PREPAGED))]);
    let ended = wait_for_end_of([session]);
    drop(hung);
    let [(status, said)] = ended;
    assert!(said.contains("a file system does not answer"), "{said}");
    assert_eq!(status.code(), Some(1));
}

/// As one whose /var is on a server that is gone.
#[test]
fn a_boot_whose_profiles_do_not_answer_ends_by_itself_whether_it_learns_or_not() {
    if !has(Need::Root) || !has(Need::Path("/dev/fuse".into())) {
        return;
    }
    let layer = tempfile::tempdir().unwrap();
    let hung = Hung::mount(layer.path());
    let boot = |options: &[&str]| {
        let mut boot = Command::new(PREPAGED);
        boot.args(["boot", "--at-most", "0"]).args(options).env("PREPAGE_LAYERS", layer.path());
        boot
    };
    let ended = wait_for_end_of([boot(&[]), boot(&["--no-learn"])]);
    drop(hung);
    let [(learning, _), (other, said)] = ended;
    assert_eq!(learning.signal(), Some(Signal::ALARM.as_raw()), "it has no thread yet: {learning}");
    assert!(said.contains("a file system does not answer"), "{said}");
    assert_eq!(other.code(), Some(1));
}

/// How `commands` end, which run beside each other, and what they say. They are killed where they do not.
fn wait_for_end_of<const N: usize>(commands: [Command; N]) -> [(ExitStatus, String); N] {
    let mut all = commands.map(|mut command| command.stderr(Stdio::piped()).spawn().unwrap());
    let until = Instant::now() + PATIENCE;
    while all.iter_mut().any(|one| one.try_wait().unwrap().is_none()) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(100));
    }
    all.map(|mut one| {
        one.kill().unwrap();
        let output = one.wait_with_output().unwrap();
        (output.status, String::from_utf8(output.stderr).unwrap())
    })
}

#[test]
fn help_is_told_of_every_command_and_a_session_is_somebodys() {
    let run = |args: &[&str]| Command::new(PREPAGED).args(args).output().unwrap();
    for args in [&["--help"][..], &["boot", "--help"], &["session", "--help"], &["session", "0", "-h"]] {
        let output = run(args);
        assert!(
            output.status.success() && output.stdout.starts_with(b"The service of prepage"),
            "{output:?}"
        );
    }
    for args in [&["session"][..], &["session", "--no-learn"], &["session", "root"], &["boot", "0"]] {
        assert_eq!(run(args).status.code(), Some(2), "{args:?}");
    }
}
