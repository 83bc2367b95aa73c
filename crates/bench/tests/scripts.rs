//! What stands around the benchmarks: what those below bench/ change of the machine and restore, and what sets up and calls them.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use prepage_testing::{Need, has};
use rustix::process::{Pid, Signal, kill_process};

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
    let needs =
        [Need::Root, Need::Path(switch.into()), Need::Tool("python3".into()), Need::Tool("gcc".into())];
    if !needs.into_iter().all(has) {
        return;
    }
    let before = fs::read_to_string(switch).unwrap();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let [records, runs] = ["records", "runs"].map(|name| dir.path().join(name));
    fs::write(&records, RECORDS).unwrap();
    fs::set_permissions(&records, fs::Permissions::from_mode(0o755)).unwrap();
    let mut bench = Command::new(format!("{BENCH}/disk-cost"));
    bench.current_dir(dir.path()).env("PREPAGE", &records).env("RUNS", &runs).env("ROUNDS", "1");
    bench.env("PYTHONDONTWRITEBYTECODE", "1").stdout(Stdio::null());
    let mut child = bench.spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(120);
    while fs::read_to_string(&runs).is_ok_and(|runs| runs.lines().count() < 3) || !runs.exists() {
        assert!(child.try_wait().unwrap().is_none() && Instant::now() < until, "the third run never begins");
        std::thread::sleep(Duration::from_millis(50));
    }
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(128 + Signal::TERM.as_raw()));
    assert_eq!(fs::read_to_string(switch).unwrap(), before);
    let group = format!("/sys/fs/cgroup/blkio/prepage-disk-cost-{}", child.id());
    assert!(!Path::new(&group).exists(), "{group} stays");
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
        let path = directory.join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
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
fn a_failed_lint_lets_the_tests_run_and_is_told_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let ci = |make: &str| {
        let make = format!("echo $1 >>\"$LOG\"\n{make}");
        let cargo = "[ $1 != deny ]";
        let output =
            with_stubs(command(".ci/run", &[]), dir.path(), &[("make", &make), ("cargo", cargo)]).output();
        let called = fs::read_to_string(dir.path().join("log")).unwrap();
        fs::remove_file(dir.path().join("log")).unwrap();
        let output = output.unwrap();
        (output.status.code(), called, text(&output.stdout).lines().last().unwrap_or_default().to_owned())
    };
    let both = "lint\ntest\n".to_owned();
    assert_eq!(ci("exit 0"), (Some(0), both.clone(), "lints: ok".into()));
    assert_eq!(ci("[ $1 = test ]"), (Some(1), both.clone(), "lints: failed".into()));
    assert_eq!(ci("[ $1 = lint ] || exit 2"), (Some(2), both, "lints: ok".into()));
}
