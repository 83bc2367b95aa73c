//! `prepage learn` and `prepage measure`: exact, and nothing stays changed.

mod support;

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard};

use prepage_profiles::{ProgramKey, Stores};
use prepage_sys::process_stat::ProcessStat;
use prepage_sys::sync::Anyway;
use prepage_testing::{Need, copy_program, has, write_program};
use rustix::process::{Pid, Signal, kill_process};
use support::control_group::ControlGroup;
use support::{Sandbox, can_learn, is_root, json, make_old, text, wait_for};

/// Settings of the machine are looked at: one test at a time.
static MACHINE: Mutex<()> = Mutex::new(());

fn machine() -> MutexGuard<'static, ()> {
    MACHINE.lock().anyway()
}

fn read_ahead() -> Vec<(PathBuf, String)> {
    let devices = fs::read_dir("/sys/class/bdi").unwrap();
    let mut values: Vec<_> = devices
        .map(|device| device.unwrap().path().join("read_ahead_kb"))
        .map(|file| (file.clone(), fs::read_to_string(file).unwrap()))
        .collect();
    values.sort();
    values
}

/// A file of 400 pages, and a program that touches some of them: mapped pages 3 and 301, once the mapping is armed (VmFlags of
/// /proc/self/smaps), and by read() 50 to 59.
fn touching_program(sandbox: &Sandbox) -> (PathBuf, String) {
    let data = sandbox.path().join("data");
    fs::write(&data, vec![7u8; 400 * 4096]).unwrap();
    make_old(&data);
    // Of what is touched between the arming and the moment at which the observer notes it, neighbours count as unsure.
    let script = format!(
        "import mmap, os, time\n\
         fd = os.open('{0}', os.O_RDONLY)\n\
         memory = mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)\n\
         def is_armed():\n\
         \x20   found = False\n\
         \x20   for line in open('/proc/self/smaps'):\n\
         \x20       found = '{0}' in line if '-' in line.split()[0] else found\n\
         \x20       if found and line.startswith('VmFlags:'): return ' uw' in line\n\
         while not is_armed(): pass\n\
         time.sleep(0.5)\n\
         memory[3 * 4096], memory[301 * 4096]\n\
         os.pread(fd, 10 * 4096, 50 * 4096)\n\
         os.path.exists('/no/such/name/anywhere')\n",
        data.display()
    );
    (data, script)
}

#[test]
fn the_touched_pages_are_learned_from_a_warm_cache_and_nothing_is_changed() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) || !has(Need::Linux(6, 7)) {
        return;
    }
    let _machine = machine();
    let before = read_ahead();
    let (data, script) = touching_program(&sandbox);
    let learned = || {
        let _ = fs::remove_dir_all(sandbox.store());
        // All of it is in memory: neither read-ahead nor fault-around may hide what is touched.
        fs::read(&data).unwrap();
        let learned = sandbox.output(&["learn", "--", "python3", "-c", &script]);
        assert!(learned.status.success(), "{}", text(&learned.stderr));
        assert_eq!(read_ahead(), before);
        json(&sandbox.output(&["profile", "show", "--json", "python3"]))
    };
    // On a busy machine the observer may note only after the touches that the mapping is armed.
    let mut tries = (0..5).map(|_| learned()).filter(|shown| {
        let files = shown["files"].as_array().unwrap();
        let file = files.iter().find(|file| file["path"] == data.to_str().unwrap()).expect("the data file");
        eprintln!("{file}");
        file["pages"] == 12 && file["read_pages"] == 10
    });
    let shown = tries.next().expect("each page that was touched and no other");
    let files = shown["files"].as_array().unwrap();
    let key = ProgramKey::of(&["python3", "-c", &script].map(Into::into)).unwrap();
    let found = Stores::at(sandbox.store()).find(&key).unwrap().expect("the profile");
    let looked_up = |name: &str| found.profile.lookups.iter().any(|lookup| lookup.path == name);
    assert!(looked_up("/no/such/name/anywhere"), "a name that is not there is looked up as well");
    assert!(looked_up(data.to_str().unwrap()) && found.profile.lookups.len() > 10);
    let agent = support::agent().canonicalize().unwrap();
    assert!(
        !files.iter().any(|file| file["path"] == agent.to_str().unwrap()),
        "ours, and no need of the program"
    );
}

#[test]
fn a_learner_that_is_stopped_keeps_what_it_saw_and_lets_the_program_go() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) {
        return;
    }
    let end = sandbox.path().join("end");
    // For a minute at most.
    let waits =
        "echo up; for i in $(seq 600); do if [ -e \"$0\" ]; then break; fi; sleep 0.1; done; echo over";
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::KILL] {
        let mut learner = sandbox
            .mortal(&["learn", "-q", "--", "sh", "-c", waits, end.to_str().unwrap()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = learner.stdout.take().unwrap();
        stdout.read_exact(&mut [0; 3]).unwrap();
        kill_process(Pid::from_child(&learner), signal).unwrap();
        learner.wait().unwrap();
        if signal == Signal::KILL {
            fs::write(&end, "").unwrap();
        }
        let mut rest = String::new();
        stdout.read_to_string(&mut rest).unwrap();
        let mut profiles = sandbox.profiles();
        if signal == Signal::KILL {
            assert_eq!(rest, "over\n", "let go, the program runs on");
            assert!(profiles.is_empty());
        } else {
            assert_eq!(rest, "", "the program gets the signal that was meant for it");
            fs::remove_file(profiles.pop().expect("what was seen until then is kept")).unwrap();
        }
    }
}

#[test]
fn the_exit_code_is_the_programs() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) {
        return;
    }
    assert_eq!(sandbox.output(&["learn", "-q", "--", "sh", "-c", "exit 9"]).status.code(), Some(9));
    let killed = sandbox.output(&["learn", "-q", "--", "sh", "-c", "kill -KILL $$"]);
    assert_eq!(killed.status.code(), Some(137));
    let missing = sandbox.output(&["learn", "--", "no-such-program"]);
    assert_eq!(missing.status.code(), Some(127));
    // In the words of `run` and `record`.
    assert!(text(&missing.stderr).contains("no-such-program: No such file"), "{}", text(&missing.stderr));
}

#[test]
fn a_program_with_little_memory_is_not_learned_and_ends_as_it_does() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) {
        return;
    }
    let Some(group) = ControlGroup::of_memory(60 << 20) else { return };
    let mut command = group.command(&sandbox);
    command.args([env!("CARGO_BIN_EXE_prepage"), "learn", "--", "sh", "-c", "sleep 0.2; exit 9"]);
    let output = command.output().unwrap();
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(9), "{told}");
    assert!(told.contains("MB of memory are left to the program"), "{told}");
}

/// Each process of the program takes some of them.
#[test]
fn a_learner_has_as_many_files_open_as_it_may_and_the_program_no_more_than_before() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) {
        return;
    }
    let script = "ulimit -Sn; grep 'open files' /proc/$PPID/limits";
    let limited = r#"ulimit -Sn 60; exec "$0" "$@""#;
    let command = [limited, env!("CARGO_BIN_EXE_prepage"), "learn", "-q", "--", "sh", "-c", script];
    let output = sandbox.command("sh", &[&["-c"], &command[..]].concat()).output().unwrap();
    let said = text(&output.stdout);
    let words: Vec<&str> = said.split_whitespace().collect();
    let ["60", "Max", "open", "files", soft, hard, "files"] = words[..] else { panic!("{said}") };
    assert_eq!(soft, hard);
}

#[test]
fn what_cannot_be_executed_is_told_and_not_kept() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) {
        return;
    }
    let script = sandbox.path().join("script");
    write_program(&script, "#!/no/such/interpreter\n");
    for command in [&["learn", "--"][..], &["measure", "--warm", "-n", "1", "--"]] {
        let learned = sandbox.output(&[command, &[script.to_str().unwrap()]].concat());
        // As of `run` and `record`.
        assert_eq!(learned.status.code(), Some(127), "{command:?}");
        assert!(text(&learned.stderr).contains("script: No such file"), "{}", text(&learned.stderr));
    }
    assert!(sandbox.profiles().is_empty());
}

/// As Ctrl-C or `kill` ask it while the program runs.
#[test]
fn a_measurement_that_is_to_end_ends_with_the_program_and_keeps_nothing() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) {
        return;
    }
    let [mark, slow, script] = ["mark", "slow", "script"].map(|name| sandbox.path().join(name));
    let text = format!("echo $$ >>'{}'\n[ ! -e '{}' ] || exec sleep 600\n", mark.display(), slow.display());
    fs::write(&script, text).unwrap();
    let command = ["sh", script.to_str().unwrap()];
    let interrupted = || {
        fs::write(&mark, "").unwrap();
        fs::write(&slow, "").unwrap();
        let mut measure = sandbox.prepage(&[&["measure", "--warm", "-n", "1", "--"][..], &command].concat());
        let mut measure = measure.stderr(Stdio::null()).spawn().unwrap();
        let program: i32 = wait_for("the program", || fs::read_to_string(&mark).ok()?.trim().parse().ok());
        kill_process(Pid::from_child(&measure), Signal::TERM).unwrap();
        let ended = wait_for("the end of the measurement", || measure.try_wait().unwrap());
        assert_eq!(ended.code(), Some(128 + 15));
        assert!(kill_process(Pid::from_raw(program).unwrap(), Signal::KILL).is_err(), "the program runs on");
    };
    // While it learns, and while it measures what is known.
    interrupted();
    assert!(sandbox.profiles().is_empty());
    fs::remove_file(&slow).unwrap();
    assert!(sandbox.output(&[&["learn", "-q", "--"][..], &command].concat()).status.success());
    interrupted();
}

/// What a start leaves running is waited for before the next.
#[test]
fn a_measurement_that_waits_for_what_a_start_has_left_is_to_end_as_well() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) {
        return;
    }
    let left = sandbox.path().join("left");
    let script = format!("sleep 600 >/dev/null 2>&1 & echo $! >>'{}'", left.display());
    let command = ["sh", "-c", &script];
    assert!(sandbox.output(&[&["learn", "-q", "--"][..], &command].concat()).status.success());
    let measure = &[&["measure", "--warm", "-n", "1", "--"][..], &command].concat();
    let mut measure = sandbox.prepage(measure).stderr(Stdio::null()).spawn().unwrap();
    let sleepers = || -> Vec<i32> {
        let text = fs::read_to_string(&left).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    };
    wait_for("what the first start leaves", || {
        let stat = ProcessStat::of(*sleepers().get(1)? as u32).ok()?;
        (stat.parent == measure.id()).then_some(())
    });
    kill_process(Pid::from_child(&measure), Signal::TERM).unwrap();
    let ended = wait_for("the end of the measurement", || measure.try_wait().unwrap());
    for sleeper in sleepers() {
        let _ = kill_process(Pid::from_raw(sleeper).unwrap(), Signal::KILL);
    }
    assert_eq!(ended.code(), Some(128 + 15));
}

#[test]
fn what_outlives_a_learned_program_is_let_go() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) {
        return;
    }
    let mark = sandbox.path().join("mark");
    let script = format!("(sleep 0.3; echo late >'{}') >/dev/null 2>&1 & exit 0", mark.display());
    assert!(sandbox.output(&["learn", "-q", "--", "sh", "-c", &script]).status.success());
    wait_for("the child that was left behind", || mark.exists().then_some(()));
}

#[test]
fn a_measurement_compares_like_with_like() {
    let sandbox = Sandbox::new();
    if !is_root() || !can_learn(&sandbox) {
        return;
    }
    let _machine = machine();
    let before = read_ahead();
    // One of this test's own: pages that somebody else has mapped meanwhile stay in memory.
    let python = sandbox.path().join("python3");
    copy_program(fs::canonicalize("/usr/bin/python3").unwrap(), &python);
    fs::File::open(&python).unwrap().sync_all().unwrap();
    let args = [
        "measure",
        "-n",
        "3",
        "--read-ahead",
        "128k",
        "--json",
        "--",
        python.to_str().unwrap(),
        "-c",
        "import decimal, json; print(json.dumps([1]))",
    ];
    let measured = sandbox.output(&args);
    let report: serde_json::Value = json(&measured);
    assert_eq!(read_ahead(), before);
    assert_eq!(report["schema_version"], 1);
    assert_eq!(report["read_ahead_kib"], serde_json::json!([128]));
    assert_eq!(report["differing_starts"], 0);
    assert_eq!(report["starts"], 16);
    let cold = &report["cold"];
    assert_eq!(cold["plain"]["wall_ms"].as_array().unwrap().len(), 3);
    // A count is no fraction.
    assert!(cold["plain"]["disk_faults"][0].as_u64() > Some(0), "a cold start reads from the disk: {cold}");
    assert!(cold["ratio_low"].as_f64() <= cold["ratio"].as_f64());
    assert!(report["resident_share_after_chill"].as_f64().unwrap() < 0.5);
    assert!(report["untouched_bytes"].as_u64().unwrap() < report["planned_bytes"].as_u64().unwrap());
}

/// What `measure --read-ahead` has set in the file `$setting` of the disk that `mounts` has mounted: first what was found as the command was
/// learned, then that of each start, and what is left.
fn set_below(sandbox: &Sandbox, mounts: &str, unmounts: &str) -> Vec<String> {
    let script = format!(
        "{mounts}
        timeout 300 \"$0\" measure --warm -n 1 --read-ahead 68k -- sh -c 'cat \"$0\" >>seen' \"$setting\" >&2 || code=$?
        cat \"$setting\" >>seen
        {unmounts}
        exit $code"
    );
    // What hangs ends with its first process.
    let namespaces = ["--mount", "--pid", "--fork", "--mount-proc", "sh", "-ec", &script];
    let mut measure =
        sandbox.command("unshare", &[&namespaces, &[env!("CARGO_BIN_EXE_prepage-tools")][..]].concat());
    let measured = measure.current_dir(sandbox.path()).env("code", "0").output().unwrap();
    assert!(measured.status.success(), "{}: {}", measured.status, text(&measured.stderr));
    let seen = fs::read_to_string(sandbox.path().join("seen")).unwrap();
    seen.lines().map(str::to_owned).collect()
}

fn assert_set_and_restored(seen: &[String]) {
    // Two starts of each way, the ones that are thrown away counted.
    assert_eq!((seen.len(), &seen[1..5]), (6, &["68"; 4].map(String::from)[..]), "{seen:?}");
    assert!(seen[0] != "68" && seen[0] == seen[5], "{seen:?}");
}

/// Each leads to the one setting of their disk.
#[test]
fn the_read_ahead_of_a_disk_with_two_mounted_partitions_is_set_once() {
    let sandbox = Sandbox::new();
    let has_partitions = has(Need::LoopDevice) && has(Need::Tool("addpart".into()));
    if !has_partitions || !has(Need::Mounts) || !can_learn(&sandbox) {
        return;
    }
    let _machine = machine();
    // Told to the kernel, which need not know of tables of partitions; and their devices need not be in /dev.
    let mounts = "truncate -s 32M image; loop=$(losetup --find --show --partscan image); disk=${loop##*/}
        for nth in 1 2; do
            addpart $loop $nth $((nth * 16384)) 16384
            mknod part$nth b $(tr : ' ' </sys/block/$disk/${disk}p$nth/dev)
            mkfs.ext4 -q part$nth; mkdir dir$nth; mount part$nth dir$nth
        done
        setting=/sys/block/$disk/queue/read_ahead_kb";
    let seen = set_below(&sandbox, mounts, "umount dir1 dir2; losetup --detach $loop");
    assert_set_and_restored(&seen);
}

/// A Btrfs has a setting of its own, whatever disks it lies on.
#[test]
fn the_read_ahead_of_a_btrfs_is_set_as_well() {
    let sandbox = Sandbox::new();
    let has_btrfs = has(Need::LoopDevice) && has(Need::Tool("mkfs.btrfs".into()));
    if !has_btrfs || !has(Need::Mounts) || !can_learn(&sandbox) {
        return;
    }
    let _machine = machine();
    let mounts = "truncate -s 128M image; id=$(cat /proc/sys/kernel/random/uuid); mkfs.btrfs -q -U $id image
        mkdir dir; mount -o loop image dir; setting=/sys/fs/btrfs/$id/bdi/read_ahead_kb";
    assert_set_and_restored(&set_below(&sandbox, mounts, "umount dir"));
}

/// What starts prepage may ignore SIGCHLD: the kernel would keep no result of a child.
#[test]
fn an_ignored_end_of_children_is_the_programs_and_loses_no_result() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) {
        return;
    }
    let _machine = machine();
    let ignoring = |arguments: &[&str]| {
        let prefix = ["--ignore-signal=CHLD", env!("CARGO_BIN_EXE_prepage")];
        sandbox.command("env", &[&prefix, arguments].concat()).current_dir(sandbox.path()).output().unwrap()
    };
    const SIGCHLD: u32 = 17;
    for command in [&["learn", "-q", "--"][..], &["record", "-q", "--"]] {
        let failed = ignoring(&[command, &["sh", "-c", "exit 3"]].concat());
        assert_eq!(failed.status.code(), Some(3), "{command:?}: {}", text(&failed.stderr));
        // Shells set it themselves.
        let output = ignoring(&[command, &["grep", "SigIgn", "/proc/self/status"]].concat());
        let ignored =
            text(&output.stdout).trim().rsplit('\t').next().map(|mask| u64::from_str_radix(mask, 16));
        assert_eq!(ignored.unwrap().unwrap() >> (SIGCHLD - 1) & 1, 1, "{command:?}");
    }
    assert_eq!(sandbox.profiles().len(), 2);
    let measured = ignoring(&["measure", "--warm", "-n", "1", "--json", "--", "sh", "-c", "exit 3"]);
    assert_eq!(measured.status.code(), Some(0), "{}", text(&measured.stderr));
    let report = json(&measured);
    // Two of each way, the ones that are thrown away counted.
    assert_eq!((&report["exit_status"], &report["failed_starts"]), (&3.into(), &4.into()), "{report}");
    assert!(report["warm"]["ratio_low"].is_null() && report["warm"]["ratio"].is_f64(), "{report}");
    let shown = ignoring(&["measure", "--warm", "-n", "1", "--", "sh", "-c", "exit 3"]);
    let shown = text(&shown.stdout);
    assert!(shown.contains("\nthe command failed in 4 starts; exit status of the first: 3\n"), "{shown}");
    assert!(shown.contains("\nprefetched / plain, warm: ") && shown.contains("(95 %: -)\n"), "{shown}");
}

#[test]
fn what_cannot_be_measured_is_said_before_the_command_is_run() {
    let sandbox = Sandbox::new();
    fs::set_permissions(sandbox.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let mark = sandbox.path().join("mark");
    let script = format!("echo run >>'{}'", mark.display());
    let measure = |variable: &str, options: &[&str]| {
        let prepage = env!("CARGO_BIN_EXE_prepage");
        let command = [
            &["env", variable, prepage, "measure", "--warm", "-n", "1"],
            options,
            &["--", "sh", "-c", &script],
        ];
        let user: &[&str] =
            if is_root() { &["--reuid=65534", "--regid=65534", "--clear-groups"] } else { &[] };
        let measured = sandbox.command("setpriv", &[user, &command.concat()].concat()).output().unwrap();
        assert!(!measured.status.success() && !mark.exists(), "{}", text(&measured.stderr));
        text(&measured.stderr)
    };
    let said = measure("A=1", &["--read-ahead", "128k"]);
    assert!(said.contains("read-ahead cannot be set\n  try: as root, or without --read-ahead\n"), "{said}");
    let said = measure("PREPAGE_STORE=/proc/no/store", &[]);
    assert!(said.contains("/proc/no/store: ") && said.contains("\n  try: set PREPAGE_STORE"), "{said}");
    let said = measure("A=1", &["--read-ahead", "128"]);
    assert!(said.contains("whole number of KiB with its unit"), "{said}");
}
