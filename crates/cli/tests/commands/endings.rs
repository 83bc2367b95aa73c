//! How what runs beside a program ends: asked to end, killed with the container, called again within the minute. What was
//! observed is kept.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::support::{Sandbox, can_learn, evict, helpers, make_old, wait_for};
use prepage_core::profile::{ColdStart, History, Profile};
use prepage_profiles::{Layer, ProgramKey, Stores};
use prepage_testing::{Need, has};
use rustix::process::{Signal, kill_process};

/// A program that touches a page of its first argument's file every 50 ms for 20 seconds, which is no quiet moment, and
/// says so before. SIGTERM does not end it.
const RESTLESS: &str = "import mmap, os, signal, sys, time\n\
    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n\
    fd = os.open(sys.argv[1], os.O_RDONLY)\n\
    memory = mmap.mmap(fd, 0, prot=mmap.PROT_READ)\n\
    for page in range(400):\n\
    \x20   memory[page * 4096]\n\
    \x20   if page == 3: print('up', flush=True)\n\
    \x20   time.sleep(0.05)\n";

/// A file of `pages` pages, in memory.
fn data(sandbox: &Sandbox, name: &str, pages: usize) -> PathBuf {
    let path = sandbox.path().join(name);
    fs::write(&path, vec![7u8; pages * 4096]).unwrap();
    make_old(&path);
    path
}

/// The file `path` in what is known of python3.
fn known(sandbox: &Sandbox, path: &Path) -> Option<serde_json::Value> {
    let shown = sandbox.output(&["profile", "show", "--json", "python3"]);
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).ok()?;
    shown["files"].as_array()?.iter().find(|file| file["path"] == path.to_str().unwrap()).cloned()
}

/// What is known of python3; null where that is nothing.
fn shown(sandbox: &Sandbox) -> serde_json::Value {
    let shown = sandbox.output(&["profile", "show", "--json", "python3"]);
    serde_json::from_slice(&shown.stdout).unwrap_or_default()
}

fn observations(sandbox: &Sandbox) -> Option<u64> {
    let listed = sandbox.output(&["profile", "list", "--json"]);
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).ok()?;
    listed["profiles"][0]["observations"].as_u64()
}

/// Starts `command`, and waits until it says a line.
fn up(command: &mut Command) -> Child {
    let mut program = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(program.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "up\n");
    program
}

fn ended(mut program: Child) {
    program.kill().unwrap();
    program.wait().unwrap();
}

#[test]
fn what_was_seen_until_everything_is_asked_to_end_is_kept() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) {
        return;
    }
    let data = data(&sandbox, "data", 400);
    let arguments = ["run", "--", "python3", "-c", RESTLESS, data.to_str().unwrap()];
    for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
        let file = wait_for("what runs beside to be asked to end while it does", || {
            let _ = fs::remove_dir_all(sandbox.store());
            let program = up(&mut sandbox.prepage(&arguments));
            // As service managers, containers and CI runners do: everything that a job has left.
            let beside = helpers(&sandbox);
            assert!(beside.len() <= 1, "{beside:?} beside the program");
            // A program that gets no processor for a second has been quiet, and what runs beside it ends.
            let is_asked = beside.into_iter().any(|beside| kill_process(beside, signal).is_ok());
            // The program runs on, and is not quiet.
            sandbox.wait_for_helpers();
            let file = is_asked.then(|| known(&sandbox, &data)).flatten();
            ended(program);
            file
        });
        let pages = file["pages"].as_u64().unwrap();
        assert!((4..300).contains(&pages), "{file}");
        assert_eq!(observations(&sandbox), Some(1));
    }
}

#[test]
fn a_start_cut_short_says_nothing_about_what_it_did_not_come_to() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) {
        return;
    }
    let [early, late] = ["early", "late"].map(|name| data(&sandbox, name, 64));
    // The first start comes to both files at once, the second one never to the second. They stay mapped: before Linux 6.11 nobody tells what was
    // touched of a file that is not any more.
    let script = "import mmap, os, sys, time\n\
        kept = []\n\
        def touch(path):\n\
        \x20   kept.append(mmap.mmap(os.open(path, os.O_RDONLY), 0, prot=mmap.PROT_READ))\n\
        \x20   [kept[-1][page * 4096] for page in range(64)]\n\
        touch(os.environ['EARLY'])\n\
        if os.environ['WAIT'] == 'yes':\n\
        \x20   print('up', flush=True)\n\
        \x20   time.sleep(60)\n\
        touch(os.environ['LATE'])\n";
    let start = |wait: &str| {
        let mut command = sandbox.prepage(&["run", "--no-hold-out", "--", "python3", "-c", script]);
        command.env("EARLY", &early).env("LATE", &late).env("WAIT", wait);
        command
    };
    let key = ProgramKey::of(&["python3", "-c", script].map(Into::into)).unwrap();
    let owe = |profile: Option<Profile>| {
        profile.map(|profile| Profile { history: History { due: 1, ..profile.history }, ..profile })
    };
    let before_and_after = || {
        let before = wait_for("the first start's profile", || {
            let _ = fs::remove_dir_all(sandbox.store());
            assert!(start("no").status().unwrap().success());
            sandbox.wait_for_helpers();
            known(&sandbox, &late)
        });
        // The next start is to be observed, however short after the last writing.
        Stores::at(sandbox.store()).update(&key, Layer::User, owe).unwrap();
        let program = up(&mut start("yes"));
        let is_cut_short = helpers(&sandbox).iter().any(|&helper| kill_process(helper, Signal::TERM).is_ok());
        sandbox.wait_for_helpers();
        let is_written = observations(&sandbox) == Some(2);
        ended(program);
        (is_cut_short && is_written).then(|| (Some(before), known(&sandbox, &late)))
    };
    // On a busy machine what runs beside has been quiet for a second before it is asked to end: then the start is a whole one.
    let found: Vec<_> = (0..5)
        .map(|_| before_and_after())
        .take_while(|found| !found.as_ref().is_some_and(|(before, after)| before == after))
        .collect();
    assert!(found.len() < 5, "not come to is not unused: {found:?}");
}

/// `prepage run PROGRAM` as the first process of a container, which ends with it.
fn inside(sandbox: &Sandbox, program: &[&str]) -> Command {
    let prepage = env!("CARGO_BIN_EXE_prepage");
    let run = [prepage, "run", "--no-hold-out", "--"];
    let container = ["-pf", "--kill-child", "--mount-proc"];
    sandbox.command("unshare", &[&container[..], &run, program].concat())
}

#[test]
fn what_the_first_process_of_a_container_uses_last_is_known_after_one_start() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) || !has(Need::Mounts) {
        return;
    }
    let data = data(&sandbox, "data", 64);
    let script = "import mmap, os, sys\n\
        memory = mmap.mmap(os.open(sys.argv[1], os.O_RDONLY), 0, prot=mmap.PROT_READ)\n\
        [memory[page * 4096] for page in range(64)]\n";
    let path = data.to_str().unwrap();
    // The former ends before anything is written while it runs.
    for (program, command) in [("cat", &["cat", path][..]), ("python3", &["python3", "-c", script, path])] {
        // On a busy machine the program does not wait long enough.
        let is_known = (0..10).any(|_| {
            let mut container = inside(&sandbox, command);
            assert!(container.stdout(Stdio::null()).status().unwrap().success());
            sandbox.wait_for_helpers();
            let shown = sandbox.output(&["profile", "show", "--json", program]);
            let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap_or_default();
            let _ = fs::remove_dir_all(sandbox.store());
            let mut files = shown["files"].as_array().into_iter().flatten();
            let is_known = files.any(|file| file["path"] == path && file["pages"] == 64);
            // Whether something comes behind it nobody can tell.
            is_known && shown["observations_due"] == 1
        });
        assert!(is_known, "{program}");
    }
}

#[test]
fn a_cold_start_of_a_containers_first_process_is_kept_when_it_gets_quiet() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) || !has(Need::Mounts) || !has(Need::Eviction(env!("CARGO_TARGET_TMPDIR").into()))
    {
        return;
    }
    // Most of what is fetched.
    let large = data(&sandbox, "large", 8192);
    fs::File::open(&large).unwrap().sync_all().unwrap();
    let script = "import os, sys, time\n\
        time.sleep(0.5)\n\
        fd = os.open(sys.argv[1], os.O_RDONLY)\n\
        while os.read(fd, 1 << 17): pass\n\
        time.sleep(2.5)\n";
    let start = || {
        let mut container = inside(&sandbox, &["python3", "-c", script, large.to_str().unwrap()]);
        assert!(container.status().unwrap().success());
        sandbox.wait_for_helpers();
    };
    let observer = Path::new(env!("CARGO_BIN_EXE_prepage")).canonicalize().unwrap();
    let stores = Stores::at(sandbox.store());
    // On a busy machine the program may end before its quiet moment is over.
    let is_kept = (0..10).any(|_| {
        let _ = fs::remove_dir_all(sandbox.store());
        sandbox.learned_by(start);
        assert!(known(&sandbox, &observer).is_none(), "a child of the program by then, and none of it");
        let has_come_to_quiet = shown(&sandbox)["observations_due"] == 0;
        // As long after the first start as samples are taken, and cold starts kept.
        make_old(&sandbox.profiles()[0]);
        evict(&fs::File::open(&large).unwrap());
        start();
        let starts = stores.list(Layer::User).unwrap().remove(0).1.unwrap().starts;
        let is_cold = |start: &ColdStart| start.waited_us > 0 && start.prefetched_pages >= 4096;
        has_come_to_quiet && starts.len() == 1 && is_cold(&starts[0])
    });
    assert!(is_kept, "{}", shown(&sandbox));
}

#[test]
fn what_the_first_process_of_a_container_used_is_kept_though_its_end_ends_all() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) || !has(Need::Mounts) {
        return;
    }
    let data = data(&sandbox, "data", 400);
    let mut container = up(&mut inside(&sandbox, &["python3", "-c", RESTLESS, data.to_str().unwrap()]));
    // It is never quiet, so this is not its last word.
    wait_for("what was seen so far", || {
        known(&sandbox, &data).filter(|file| file["pages"].as_u64() >= Some(4))
    });
    container.kill().unwrap();
    container.wait().unwrap();
    sandbox.wait_for_helpers();
    let file = known(&sandbox, &data).expect("what was seen before the container ended");
    assert!((4..300).contains(&file["pages"].as_u64().unwrap()), "{file}");
    assert_eq!(observations(&sandbox), Some(1), "however often it was written");
    // What comes to its quiet moment there counts as one start, too.
    let mut quiet = inside(&sandbox, &["python3", "-c", "import decimal, time\ntime.sleep(3)"]);
    sandbox.learned_by(|| assert!(quiet.status().unwrap().success()));
    assert_eq!(observations(&sandbox), Some(1));
    let listed = sandbox.output(&["profile", "list", "--json"]);
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed["profiles"].as_array().unwrap().len(), 2, "{listed}");
    assert_eq!(listed["profiles"][1]["observations"], 1, "{listed}");
}

/// A start of a program that reads `files`, and goes on for a while in which somebody can look at it.
fn reading(sandbox: &Sandbox, files: &[&Path]) -> Command {
    let script = "import os, sys, time\n\
        for name in sys.argv[1:]:\n\
        \x20   fd = os.open(name, os.O_RDONLY)\n\
        \x20   while os.read(fd, 1 << 17): pass\n\
        time.sleep(0.5)\n";
    let mut command = sandbox.prepage(&["run", "--no-hold-out", "--", "python3", "-c", script]);
    command.args(files);
    command
}

/// As after a package was upgraded whose program root has learned for all.
#[test]
fn a_changed_file_of_another_layers_profile_has_the_users_next_start_observed() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) || !has(Need::Eviction(env!("CARGO_TARGET_TMPDIR").into())) {
        return;
    }
    let [data, large] = [data(&sandbox, "data", 64), data(&sandbox, "large", 2048)];
    fs::File::open(&large).unwrap().sync_all().unwrap();
    sandbox.learned_by(|| assert!(reading(&sandbox, &[&data, &large]).status().unwrap().success()));
    let machine = sandbox.path().join("machine");
    fs::rename(sandbox.store(), &machine).unwrap();
    fs::write(&data, vec![8u8; 64 * 4096]).unwrap();
    make_old(&data);
    let start = || {
        let mut command = reading(&sandbox, &[&data, &large]);
        assert!(command.env("PREPAGE_LAYERS", &machine).status().unwrap().success());
        sandbox.wait_for_helpers();
        shown(&sandbox)
    };
    finds_it_changed(&large, start);
    assert!(known(&sandbox, &large).is_some(), "what the layer knew is kept");
    learns_it(&sandbox, &data, start);
}

/// One start, by `start`, finds a file changed, of which there is something to fetch: else nobody looks.
fn finds_it_changed(large: &Path, start: impl Fn() -> serde_json::Value) {
    let owes = |_| {
        evict(&fs::File::open(large).unwrap());
        start()["observations_due"].as_u64().is_some_and(|due| due > 0)
    };
    // On a busy machine the program may have ended before anybody looks.
    assert!((0..5).any(owes), "one start finds it changed");
}

/// The next start, by `start`, learns the changed file `data`.
fn learns_it(sandbox: &Sandbox, data: &Path, start: impl Fn() -> serde_json::Value) {
    let is_learned = |_| {
        start();
        let file = known(sandbox, data);
        file.is_some_and(|file| file["state"] == "as learned" && file["pages"] == 64)
    };
    // It is owed until an observer comes in time.
    assert!((0..5).any(is_learned), "the next one learns it: {:?}", known(sandbox, data));
}

#[test]
fn a_changed_file_has_the_next_start_observed() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) || !has(Need::Eviction(env!("CARGO_TARGET_TMPDIR").into())) {
        return;
    }
    let [data, large] = [data(&sandbox, "data", 64), data(&sandbox, "large", 2048)];
    fs::File::open(&large).unwrap().sync_all().unwrap();
    let start = || {
        assert!(reading(&sandbox, &[&data, &large]).status().unwrap().success());
        sandbox.wait_for_helpers();
        shown(&sandbox)
    };
    let shown = (0..8).map(|_| start()).find(|shown| shown["observations_due"] == 0);
    assert!(shown.is_some(), "a program that is known");
    // Another content under the same name.
    fs::write(&data, vec![8u8; 64 * 4096]).unwrap();
    make_old(&data);
    finds_it_changed(&large, start);
    learns_it(&sandbox, &data, start);
}
