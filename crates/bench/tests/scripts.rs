//! What stands around the benchmarks: what those below bench/ change of the machine and restore, and what sets up and calls them.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use prepage_testing::{Need, has, write_program};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const BENCH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench");

/// Has `machine` see the machine below `sys.argv[1]`.
const FAKE: &str = r"
import os, signal, sys, time
import machine
root = os.path.realpath(sys.argv[1])
machine.SYS, machine.MOUNTS = f'{root}/sys', f'{root}/mounts'
";

/// Python with the modules of bench/ and `program`, which finds `argument` in its words.
fn python(program: &str, argument: &Path) -> Command {
    let mut python = Command::new("python3");
    python.args(["-c", program]).arg(argument).env("PYTHONPATH", BENCH);
    python.env("PYTHONDONTWRITEBYTECODE", "1");
    python
}

/// The program's next line.
fn line(child: &mut Child) -> String {
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    line
}

/// Waits until `holds` says so, two minutes at most, and returns whether it does.
fn comes(mut holds: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + Duration::from_secs(120);
    while !holds() {
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}

/// A machine as sysfs and mountinfo show it: / on a partition of the disk 8:0, a Btrfs, an overlay and a tmpfs.
fn fake(root: &Path) {
    let sys = |path: &str| root.join("sys").join(path);
    for (name, kib) in [("8:0", "512"), ("btrfs-1", "256"), ("8:16", "384")] {
        let bdi = sys("devices/virtual/bdi").join(name);
        fs::create_dir_all(&bdi).unwrap();
        fs::write(bdi.join("read_ahead_kb"), format!("{kib}\n")).unwrap();
        fs::create_dir_all(sys("class/bdi")).unwrap();
        symlink(&bdi, sys("class/bdi").join(name)).unwrap();
    }
    for (disk, part, number, bdi) in [("sda", "sda1", "8:1", "8:0"), ("sdb", "sdb1", "1:3", "8:16")] {
        let disk = sys("devices/block").join(disk);
        fs::create_dir_all(disk.join(part)).unwrap();
        symlink(sys("devices/virtual/bdi").join(bdi), disk.join("bdi")).unwrap();
        fs::create_dir_all(sys("dev/block")).unwrap();
        symlink(disk.join(part), sys("dev/block").join(number)).unwrap();
    }
    let btrfs = sys("fs/btrfs/0cd5f8b0-uuid");
    fs::create_dir_all(btrfs.join("devices")).unwrap();
    symlink(sys("devices/block/sdb/sdb1"), btrfs.join("devices/sdb1")).unwrap();
    symlink(sys("devices/virtual/bdi/btrfs-1"), btrfs.join("bdi")).unwrap();
    // 1:3 is the number of /dev/null, which stands for the partition below the Btrfs.
    let mounts = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
                  23 22 0:21 / /proc rw - proc proc rw\n\
                  24 22 0:40 /home /home rw shared:2 shared:3 - btrfs /dev/null rw,subvol=/home\n\
                  25 22 0:41 / /merged rw - overlay overlay rw,lowerdir=/\n\
                  26 22 8:1 /srv /srv rw - ext4 /dev/sda1 rw\n";
    fs::write(root.join("mounts"), mounts).unwrap();
}

fn values(root: &Path) -> [String; 2] {
    ["8:0", "btrfs-1"].map(|name| {
        let setting = root.join("sys/devices/virtual/bdi").join(name).join("read_ahead_kb");
        fs::read_to_string(setting).unwrap().trim().to_owned()
    })
}

#[test]
fn the_read_ahead_of_partitions_and_of_btrfs_is_set_and_restored_on_any_way_out() {
    if !has(Need::Tool("python3".into())) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fake(dir.path());
    let program =
        format!("{FAKE}with machine.read_ahead(128):\n    print('set', flush=True)\n    time.sleep(60)\n");
    for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
        let mut child = python(&program, dir.path()).stdout(Stdio::piped()).spawn().unwrap();
        assert_eq!(line(&mut child), "set\n");
        assert_eq!(values(dir.path()), ["128", "128"]);
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(128 + signal.as_raw()));
        assert_eq!(values(dir.path()), ["512", "256"], "{signal:?}");
    }
}

#[test]
fn where_the_read_ahead_cannot_be_set_a_benchmark_says_so_and_goes_on() {
    if !has(Need::Tool("python3".into())) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("sys")).unwrap();
    fs::write(dir.path().join("mounts"), "25 1 0:41 / / rw - overlay overlay rw,lowerdir=/\n").unwrap();
    let output =
        python(&format!("{FAKE}with machine.read_ahead(128):\n    print('on')\n"), dir.path()).output();
    let output = output.unwrap();
    assert_eq!(output.stdout, b"on\n");
    assert!(String::from_utf8_lossy(&output.stderr).contains("the read-ahead stays as it is"), "{output:?}");
    assert!(output.status.success());
}

#[test]
fn a_benchmark_refuses_to_run_beside_a_service() {
    if !has(Need::Tool("python3".into())) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("service");
    let program = "import machine, sys\nmachine.refuse_beside_a_service(sys.argv[1])\nprint('on')\n";
    let ask = || python(program, &path).output().unwrap();
    assert_eq!(ask().stdout, b"on\n", "no socket");
    let listens = UnixListener::bind(&path).unwrap();
    let refused = ask();
    assert!(refused.stdout.is_empty() && !refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("try: systemctl stop prepage"), "{refused:?}");
    drop(listens);
    assert_eq!(ask().stdout, b"on\n", "a socket that nobody answers");
}

#[test]
fn a_benchmark_refuses_to_run_where_caches_cannot_be_dropped() {
    if !has(Need::Tool("python3".into())) {
        return;
    }
    let program = "import machine, sys\nmachine.DROP_CACHES = sys.argv[1]\nmachine.refuse_without_cold_caches()\nprint('on')\n";
    let ask = |path: &str| python(program, Path::new(path)).output().unwrap();
    assert_eq!(ask("/dev/null").stdout, b"on\n");
    let refused = ask("/nonexistent/drop_caches");
    assert!(refused.stdout.is_empty() && !refused.status.success());
    assert!(text(&refused.stderr).contains("caches cannot be dropped here"), "{refused:?}");
}

#[test]
fn what_observes_and_hangs_does_not_keep_a_benchmark_from_ending() {
    if !has(Need::Tool("python3".into())) {
        return;
    }
    let program = "
import ctypes, os, sys, places
places.AWAITED_S = 0.2
ctypes.CDLL(None).prctl(places.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
places.exit_on_signals()
places.start(['sh', '-c', 'sleep 600 & echo >$0; exec sleep 600', sys.argv[1]], os.environ, cold=False)
";
    let dir = tempfile::tempdir().unwrap();
    let begun = dir.path().join("begun");
    let mut child = python(program, &begun).process_group(0).spawn().unwrap();
    let group = Pid::from_child(&child);
    comes(|| begun.exists() || child.try_wait().unwrap().is_some());
    kill_process(group, Signal::INT).unwrap();
    comes(|| child.try_wait().unwrap().is_some());
    let ended = child.try_wait().unwrap();
    // What hangs, before anything panics.
    let _ = kill_process_group(group, Signal::KILL);
    assert_eq!(ended.and_then(|status| status.code()), Some(130));
}

/// Stands for `prepage record -o FILE -- COMMAND`: the third run does not end.
const RECORDS: &str = r#"#!/bin/sh
echo run >>"$RUNS"
if [ "$(wc -l <"$RUNS")" -gt 2 ]; then exec sleep 60; fi
echo " disk             405     18.2   188.32     76.27" >&2
shift 4
"$@"
"#;

#[test]
fn an_ended_comparison_of_the_cost_of_faults_leaves_no_setting_and_no_group() {
    let switch = Path::new("/proc/sys/kernel/task_delayacct");
    if ![Need::DelayAccounting, Need::Tool("python3".into()), Need::Tool("gcc".into())].into_iter().all(has) {
        return;
    }
    let before = fs::read_to_string(switch).unwrap();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let [records, runs] = ["records", "runs"].map(|name| dir.path().join(name));
    write_program(&records, RECORDS);
    let mut bench = Command::new(format!("{BENCH}/disk-cost"));
    bench.current_dir(dir.path()).env("PREPAGE", &records).env("RUNS", &runs).env("ROUNDS", "1");
    bench.env("PYTHONDONTWRITEBYTECODE", "1").stdout(Stdio::null());
    let mut child = bench.spawn().unwrap();
    let third = || fs::read_to_string(&runs).is_ok_and(|runs| runs.lines().count() > 2);
    comes(|| third() || child.try_wait().unwrap().is_some());
    let began = third();
    // It is ended before anything panics.
    if child.try_wait().unwrap().is_none() {
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    }
    let code = child.wait().unwrap().code();
    assert_eq!(fs::read_to_string(switch).unwrap(), before);
    assert!(began, "the third run never begins: {code:?}");
    assert_eq!(code, Some(128 + Signal::TERM.as_raw()));
    // Version 1 of control groups, in which reads are slowed down.
    let groups = Path::new("/sys/fs/cgroup/blkio");
    if has(Need::Path(groups.into())) {
        let group = groups.join(format!("prepage-disk-cost-{}", child.id()));
        assert!(!group.exists(), "{group:?} stays");
    }
}

#[test]
fn where_a_container_has_no_taskstats_the_comparison_of_the_cost_of_faults_says_so() {
    if ![Need::DelayAccounting, Need::Mounts, Need::Tool("python3".into())].into_iter().all(has) {
        return;
    }
    let mut bench = command("unshare", &["--pid", "--fork", "bench/disk-cost"]);
    let output = bench.env("PYTHONDONTWRITEBYTECODE", "1").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("bench/disk-cost: no taskstats here"), "{output:?}");
    assert!(!text(&output.stderr).contains("Traceback"), "{output:?}");
}

/// A command in the source tree, as if no make(1) had started this test.
fn command(program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).current_dir(SOURCE).env_remove("MAKEFLAGS").env_remove("MAKELEVEL");
    command
}

/// The command finds the shell scripts `stubs` (name, text) in `directory` before other programs.
fn with_stubs(mut command: Command, directory: &Path, stubs: &[(&str, &str)]) -> Command {
    for (name, text) in stubs {
        // Not by this process: while a child that another test makes has the file open to write, nobody can execute it.
        let write = "printf '#!/bin/sh\\n%s\\n' \"$2\" >\"$1\" && chmod 755 \"$1\"";
        let written =
            Command::new("sh").args(["-c", write, "sh"]).arg(directory.join(name)).arg(text).status();
        assert!(written.unwrap().success());
    }
    let path = std::env::var("PATH").unwrap();
    command.env("PATH", format!("{}:{path}", directory.display())).env("LOG", directory.join("log"));
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_comparison_with_preload_sets_up_all_that_it_calls() {
    if !has(Need::Tool("make".into())) {
        return;
    }
    let lines = |args: &[&str]| text(&command("make", &[&["-n"], args].concat()).output().unwrap().stdout);
    let preload = lines(&["bench-preload"]);
    let service = lines(&["bench-service", "PLACES=beside"]);
    assert!(service.contains("--example expect"), "{service}");
    for line in service.lines() {
        assert!(preload.contains(line), "no {line} in {preload}");
    }
}

#[test]
fn an_optional_package_that_cannot_be_had_keeps_no_other_from_being_installed() {
    let dir = tempfile::tempdir().unwrap();
    let apt = "echo $@ >>\"$LOG\"\ncase \"$*\" in *no-such-program*) exit 100; esac";
    let packages = command("bench/packages", &["--optional", "no-such-program", "prepage-other"]);
    let output = with_stubs(packages, dir.path(), &[("id", "echo 0"), ("apt-get", apt)]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(text(&output.stdout).contains("left out: no-such-program\n"), "{output:?}");
    let log = fs::read_to_string(dir.path().join("log")).unwrap();
    assert!(log.contains("install -y -qq --no-install-recommends prepage-other\n"), "{log}");
}

#[test]
fn optional_packages_are_installed_together_and_named_where_none_can_be_had() {
    let dir = tempfile::tempdir().unwrap();
    let packages = |apt: &str| {
        let packages = command("bench/packages", &["--optional", "prepage-one", "prepage-other"]);
        let apt = format!("echo $@ >>\"$LOG\"\n{apt}");
        with_stubs(packages, dir.path(), &[("id", "echo 0"), ("apt-get", &apt)]).output().unwrap()
    };
    assert!(packages("exit 0").status.success());
    let log = fs::read_to_string(dir.path().join("log")).unwrap();
    let once = "update -qq\ninstall -y -qq --no-install-recommends prepage-one prepage-other\n";
    assert_eq!(log, once);
    let unreachable = packages("exit 100");
    assert!(unreachable.status.success(), "{unreachable:?}");
    assert_eq!(text(&unreachable.stdout), "not installed: prepage-one prepage-other\n");
}

#[test]
fn programs_are_traced_where_nothing_compiles_java() {
    let dir = tempfile::tempdir().unwrap();
    let zstd = dir.path().join("zstd/lib");
    fs::create_dir_all(&zstd).unwrap();
    let zstd = format!("echo {}", zstd.display());
    let stubs = [("cargo", "exit 0"), ("python3", zstd.as_str()), ("java", "exit 1")];
    let traces = command("bench/traces", &[dir.path().to_str().unwrap(), "java", "javac"]);
    let mut traces = with_stubs(traces, dir.path(), &stubs);
    for program in ["bash", "dirname", "mkdir", "mktemp", "rm", "cp", "cat"] {
        let found = text(&command("sh", &["-c", &format!("command -v {program}")]).output().unwrap().stdout);
        symlink(found.trim(), dir.path().join(program)).unwrap();
    }
    let output = traces.env("PATH", dir.path()).env("PREPAGE", "false").output().unwrap();
    let said = "bench/traces: java left out: no javac\nbench/traces: javac left out: no javac\n";
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), said));
}

#[test]
fn without_a_static_libc_the_packages_of_other_distributions_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let packages = |compiler: &str| {
        let mut packages = command("bench/packages", &["build-essential"]);
        packages.env("CC", "compiler");
        with_stubs(packages, dir.path(), &[("id", "echo 1000"), ("compiler", compiler)]).output().unwrap()
    };
    let without = packages("exit 1");
    assert_eq!(without.status.code(), Some(1));
    assert!(text(&without.stdout).contains("Fedora: dnf install gcc glibc-static"), "{without:?}");
    let with = packages("echo \"$@\" >\"$LOG\"");
    assert!(with.status.success() && with.stdout.is_empty(), "{with:?}");
    assert!(fs::read_to_string(dir.path().join("log")).unwrap().starts_with("-static "));
}

#[test]
fn tests_come_before_lints_which_get_the_time_that_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let ci = |make: &str, seconds: &str| {
        let make = format!("echo $1 >>\"$LOG\"\n{make}");
        let cargo = "[ $1 != deny ]";
        let output = with_stubs(command(".ci/run", &[]), dir.path(), &[("make", &make), ("cargo", cargo)])
            .env("SECONDS", seconds)
            .output();
        let called = fs::read_to_string(dir.path().join("log")).unwrap();
        fs::remove_file(dir.path().join("log")).unwrap();
        let output = output.unwrap();
        (output.status.code(), called, text(&output.stdout).lines().last().unwrap_or_default().to_owned())
    };
    let both = "test\nlint\n".to_owned();
    assert_eq!(ci("exit 0", "0"), (Some(0), both.clone(), "lints: ok".into()));
    assert_eq!(ci("[ $1 = test ]", "0"), (Some(1), both.clone(), "lints: failed".into()));
    assert_eq!(ci("[ $1 = lint ] || exit 2", "0"), (Some(2), both.clone(), "lints: ok".into()));
    let late = (Some(0), "test\n".into(), "lints: none: the tests left no time".into());
    assert_eq!(ci("exit 0", "1185"), late);
    assert_eq!(ci("[ $1 = test ]", "3000"), late);
    // `timeout` ends it, and exits with 124.
    let (code, called, said) = ci("[ $1 = test ] || exec sleep 60", "1176");
    assert_eq!((code, called), (Some(0), both));
    assert!(said.starts_with("lints: not ended: the tests left "), "{said}");
}

#[test]
fn where_groups_have_no_controller_of_memory_it_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let groups = dir.path().join("groups");
    fs::create_dir(&groups).unwrap();
    fs::write(groups.join("cgroup.controllers"), "memory\n").unwrap();
    let mut limited = with_stubs(command("bench/limited", &["pool"]), dir.path(), &[("id", "echo 0")]);
    let output = limited.env("CGROUPS", &groups).env("PREPAGE", "false").output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = text(&output.stdout);
    assert!(said.contains("the controller \"memory\"") && said.contains("cgroup.subtree_control"), "{said}");
}
