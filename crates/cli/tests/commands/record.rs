//! `prepage record` as its user meets it.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use prepage_sys::call_filter::{When, fail};
use prepage_testing::{Doctor, Need, copy_program, has, unless_refused};
use prepage_trace::parquet::read_trace;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{may, text};

fn record(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_prepage-tools"));
    command.current_dir(dir).arg("record").args(arguments);
    command
}

fn output(dir: &Path, arguments: &[&str]) -> Output {
    record(dir, arguments).output().expect("prepage-tools runs")
}

/// Waits until a recorder takes signals that ask it to end for what they are meant: holds back these, and not all, as every process does
/// while it makes a thread.
fn wait_for_signals(recorder: u32) {
    const SIGINT_AND_SIGTERM: u64 = 1 << 1 | 1 << 14;
    const SIGUSR1: u64 = 1 << 9;
    let status = format!("/proc/{recorder}/status");
    let deadline = Instant::now() + Duration::from_secs(60);
    let is_ready = || {
        let status = fs::read_to_string(&status).expect("it runs");
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t")).expect("a mask");
        let blocked = u64::from_str_radix(blocked, 16).expect("a number");
        blocked & (SIGINT_AND_SIGTERM | SIGUSR1) == SIGINT_AND_SIGTERM
    };
    while !is_ready() {
        assert!(Instant::now() < deadline, "it never began");
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_commands_exit_code_and_output_pass_through() {
    let dir = tempfile::tempdir().expect("a directory");
    if !may(Doctor::Faults) {
        return;
    }
    let output = output(dir.path(), &["--", "sh", "-c", "echo out; exit 7"]);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(7), b"out\n".as_slice()));
    let summary = String::from_utf8_lossy(&output.stderr);
    for expected in ["page faults in", "zero-fill", "getrusage", "records lost", "in kernel"] {
        assert!(summary.contains(expected), "{expected} is missing: {summary}");
    }
    let trace = read_trace(&dir.path().join("prepage.parquet")).expect("a trace");
    assert_eq!(trace.facts.command, ["sh", "-c", "echo out; exit 7"]);
    assert!(!trace.faults.is_empty());
}

#[test]
fn a_trace_does_not_go_to_standard_output() {
    let dir = tempfile::tempdir().expect("a directory");
    for arguments in [&["record", "-o", "-", "--", "true"][..], &["import", "-o", "-"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_prepage-tools"));
        let output = command.current_dir(dir.path()).args(arguments).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("cannot be written to standard output") && said.contains("./-"), "{said}");
        assert!(!dir.path().join("-").exists());
    }
}

/// What is outside a PID namespace has no number in it.
#[test]
fn in_a_container_the_machine_is_recorded_in_part() {
    let dir = tempfile::tempdir().expect("a directory");
    if !has(Need::Root) || !may(Doctor::Faults) {
        return;
    }
    let script = "while :; do ls / > /dev/null; done";
    let is_told = |_| {
        let mut outside = Command::new("sh").args(["-c", script]).spawn().expect("sh runs");
        let recorded = Command::new("unshare")
            .current_dir(dir.path())
            .args(["--pid", "--fork", "--mount-proc", "--kill-child", env!("CARGO_BIN_EXE_prepage-tools")])
            .args(["record", "--all", "--duration", "300ms"])
            .output();
        outside.kill().expect("it runs");
        outside.wait().expect("an end");
        let said = text(&recorded.expect("unshare runs").stderr);
        eprintln!("{said}");
        let trace = read_trace(&dir.path().join("prepage.parquet")).expect("a trace");
        // A recorder outside, of another test, lends its numbers: the kernel fills one sample for all (`Sample::id`).
        let has_none = |thread: &prepage_core::Thread| [0, u32::MAX].contains(&thread.pid);
        assert!(!trace.threads.iter().any(has_none), "{:?}", trace.threads);
        said.contains("outside this container") && said.contains("--pid=host")
    };
    // What is outside may get no processor meanwhile.
    assert!((0..5).any(is_told));
}

/// Each piece of shared memory is a file of its own and of the same name.
#[test]
fn the_summary_names_each_path_once() {
    let dir = tempfile::tempdir().expect("a directory");
    if !may(Doctor::Faults) || !has(Need::Tool("python3".into())) {
        return;
    }
    let script = "import mmap\nfor _ in range(3):\n m = mmap.mmap(-1, 1 << 20)\n for at in range(0, 1 << 20, 4096): m[at] = 1";
    let output = output(dir.path(), &["--", "python3", "-c", script]);
    let summary = String::from_utf8_lossy(&output.stderr);
    assert_eq!(summary.matches("/dev/zero (deleted)").count(), 1, "{summary}");
}

#[test]
fn exit_codes_of_failures_are_those_of_env() {
    let dir = tempfile::tempdir().expect("a directory");
    if !may(Doctor::Faults) {
        return;
    }
    let code = |arguments: &[&str]| output(dir.path(), arguments).status.code();
    assert_eq!(code(&["-q", "--", "sh", "-c", "kill -9 $$"]), Some(137));
    assert_eq!(code(&["--", "no-such-program"]), Some(127));
    assert_eq!(code(&["--", "/etc/passwd"]), Some(126));
    assert_eq!(code(&["-o", "no/such/directory/file", "--", "true"]), Some(125));
}

#[test]
fn a_program_that_was_not_executed_leaves_the_old_file_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    if !may(Doctor::Faults) {
        return;
    }
    output(dir.path(), &["-q", "true"]);
    let before = fs::read(dir.path().join("prepage.parquet")).expect("a trace");
    output(dir.path(), &["-q", "no-such-program"]);
    assert_eq!(fs::read(dir.path().join("prepage.parquet")).expect("a trace"), before);
    assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 1);
}

#[test]
fn what_was_recorded_is_saved_when_asked_to_end() {
    let dir = tempfile::tempdir().expect("a directory");
    if !may(Doctor::Faults) {
        return;
    }
    let mut recorder =
        record(dir.path(), &["-q", "sleep", "60"]).stderr(Stdio::null()).spawn().expect("started");
    wait_for_signals(recorder.id());
    let pid = recorder.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill").success());
    assert_eq!(recorder.wait().expect("an end").code(), Some(128 + 15));
    assert!(read_trace(&dir.path().join("prepage.parquet")).is_ok());
}

/// A terminal that is closed sends SIGHUP twice, and users press Ctrl-C again.
#[test]
fn what_was_recorded_is_saved_when_asked_to_end_again_and_again() {
    let dir = tempfile::tempdir().expect("a directory");
    if !may(Doctor::Faults) {
        return;
    }
    let mut busy = Command::new("sh").args(["-c", "while :; do /bin/true; done"]).spawn().expect("started");
    let mut recorder = record(dir.path(), &["-q", "-p", &busy.id().to_string()])
        .stderr(Stdio::null())
        .spawn()
        .expect("started");
    wait_for_signals(recorder.id());
    let path = dir.path().join("prepage.parquet");
    while recorder.try_wait().expect("a child").is_none() && !path.exists() {
        kill_process(Pid::from_child(&recorder), Signal::INT).expect("it is not waited for yet");
        sleep(Duration::from_millis(1));
    }
    let ended = recorder.wait().expect("an end");
    busy.kill().expect("killed");
    busy.wait().expect("an end");
    assert!(!read_trace(&path).expect("a whole trace").facts.cut_short);
    // The last one may have come behind the trace, where it ends this program as any other.
    assert!(ended.code() == Some(0) || ended.signal() == Some(2), "{ended:?}");
}

/// Its terminal may be closed.
#[test]
fn a_recorder_that_was_started_to_ignore_a_hang_up_goes_on() {
    let dir = tempfile::tempdir().expect("a directory");
    if !may(Doctor::Faults) {
        return;
    }
    copy_program("/bin/true", dir.path().join("after-hang-up"));
    let mut child = Command::new("sh")
        .args(["-c", "read line; while ./after-hang-up; echo; do sleep 0.02; done"])
        .current_dir(dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let (mut stdin, stdout) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
    let mut recorder = Command::new("nohup")
        .arg(env!("CARGO_BIN_EXE_prepage-tools"))
        .args(["record", "-q", "-p", &child.id().to_string()])
        .current_dir(dir.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("started");
    wait_for_signals(recorder.id());
    kill_process(Pid::from_child(&recorder), Signal::HUP).expect("it is not waited for yet");
    stdin.write_all(b"\n").expect("it reads");
    // Programs that it has executed since, however slow the machine is.
    let mut lines = BufReader::new(stdout).lines();
    assert_eq!(lines.by_ref().take(50).filter(Result::is_ok).count(), 50);
    kill_process(Pid::from_child(&recorder), Signal::TERM).expect("it is not waited for yet");
    assert_eq!(recorder.wait().expect("an end").code(), Some(0));
    child.kill().expect("killed");
    child.wait().expect("an end");
    let trace = read_trace(&dir.path().join("prepage.parquet")).expect("a trace");
    assert!(trace.threads.iter().any(|thread| thread.comm == "after-hang-up"), "{:?}", trace.threads);
}

/// As a server's that is full, which says so only then.
#[test]
fn a_disk_that_takes_nothing_at_last_leaves_the_old_file_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    if !may(Doctor::Faults) {
        return;
    }
    output(dir.path(), &["-q", "true"]);
    let before = fs::read(dir.path().join("prepage.parquet")).expect("a trace");
    // A filter is a thread's own and of what that thread starts.
    let recorded = std::thread::scope(|scope| {
        let record = || {
            let filter = fail(libc::ENOSPC, &[(libc::SYS_fdatasync, When::Always)]);
            let has_none = |error: &std::io::Error| error.kind() == std::io::ErrorKind::PermissionDenied;
            unless_refused(filter, Need::Path("/proc/sys/kernel/seccomp".into()), has_none)?;
            Some(output(dir.path(), &["-q", "true"]))
        };
        scope.spawn(record).join().expect("recorded")
    });
    let Some(recorded) = recorded else { return };
    let said = text(&recorded.stderr);
    assert_eq!(recorded.status.code(), Some(125), "{said}");
    assert!(said.contains("the disk is full"), "{said}");
    assert_eq!(fs::read(dir.path().join("prepage.parquet")).expect("a trace"), before);
    assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 1);
}

#[test]
fn a_full_disk_stops_the_file_and_not_the_command() {
    let dir = tempfile::tempdir().expect("a directory");
    if !may(Doctor::Faults) || !has(Need::Mounts) {
        return;
    }
    // A small file system of our own, in a mount namespace that ends with the command. The recorded command fills
    // it, then takes more faults than a row group has: there is no room for it beside what is kept for the file's end. It runs
    // until the recorder has said so, for a minute at most.
    let faults = "import mmap\n\
        memory = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n\
        memory.madvise(mmap.MADV_NOHUGEPAGE)\n\
        for _ in range(18):\n\
        \x20   memory[::4096] = bytes(16384)\n\
        \x20   memory.madvise(mmap.MADV_DONTNEED)\n";
    let command = format!(
        "dd if=/dev/zero of=fill bs=64k; /usr/bin/python3 -c \"{faults}\"; for i in $(seq 600); do \
         if grep -q \"runs on\" \"$SAID\"; then break; fi; sleep 0.1; done; exit 7"
    );
    let script = format!(
        "mount -t tmpfs -o size=4m none . && cd . && cd \"$PWD\" || exit 99
         {} record -o t.parquet -- sh -c '{command}' 2>\"$SAID\"
         code=$?; cp t.parquet \"$1\"; exit $code",
        env!("CARGO_BIN_EXE_prepage-tools")
    );
    let outside = tempfile::tempdir().expect("a directory");
    let [copy, said] = ["copy", "said"].map(|name| outside.path().join(name));
    let run = Command::new("unshare")
        .args(["-m", "sh", "-c", &script, "sh"])
        .arg(&copy)
        .env("SAID", &said)
        .current_dir(dir.path())
        .output()
        .expect("unshare runs");
    let said = fs::read_to_string(said).expect("written") + &text(&run.stderr);
    assert_eq!(run.status.code(), Some(7), "{said}");
    assert!(said.contains("disk is full; the command runs on") && said.contains("try:"), "{said}");
    assert!(said.contains("written to t.parquet without the last "), "{said}");
    let trace = read_trace(&copy).expect("still a trace");
    assert!(trace.facts.unsaved > 0 && trace.facts.counted.is_some());
}

#[test]
fn what_a_killed_recorder_had_saved_is_readable_and_kept() {
    let dir = tempfile::tempdir().expect("a directory");
    if !may(Doctor::Faults) {
        return;
    }
    // Until it has been looked at: a row group is put into the file after five seconds however short it is.
    let goes_on = dir.path().join("goes-on");
    fs::write(&goes_on, "").expect("written");
    let busy = "while [ -e goes-on ]; do /bin/true; sleep 0.2; done";
    let mut recorder =
        record(dir.path(), &["-q", "--", "sh", "-c", busy]).stderr(Stdio::null()).spawn().expect("started");
    let partial = dir.path().join("prepage.parquet.partial");
    let saved = |path: &Path| fs::metadata(path).is_ok_and(|metadata| metadata.len() > 1000);
    let deadline = Instant::now() + Duration::from_secs(60);
    while !saved(&partial) {
        assert!(Instant::now() < deadline, "nothing was saved");
        sleep(Duration::from_millis(100));
    }
    recorder.kill().expect("killed");
    recorder.wait().expect("an end");
    fs::remove_file(goes_on).expect("there");

    let trace = read_trace(&partial).expect("readable as it is");
    assert!(trace.facts.cut_short && !trace.faults.is_empty() && trace.facts.duration_ns > 0);
    // Killed while it wrote the next part, it would leave such an end.
    let mut bytes = fs::read(&partial).expect("read");
    bytes.extend_from_slice(&[0xd5; 12_345]);
    fs::write(&partial, &bytes).expect("written");
    assert_eq!(read_trace(&partial).expect("still readable"), trace);

    let output = output(dir.path(), &["true"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("prepage.parquet.partial.old"), "{said}");
    assert_eq!(read_trace(&dir.path().join("prepage.parquet.partial.old")).expect("a whole file"), trace);
    assert!(!read_trace(&dir.path().join("prepage.parquet")).expect("a trace").facts.cut_short);
}

#[test]
fn a_process_that_is_gone_and_a_proc_that_is_missing_are_named() {
    let dir = tempfile::tempdir().expect("a directory");
    if !may(Doctor::Faults) {
        return;
    }
    let mut child = Command::new("true").spawn().expect("started");
    child.wait().expect("an end");
    let gone = output(dir.path(), &["-p", &child.id().to_string()]);
    let said = String::from_utf8_lossy(&gone.stderr);
    assert_eq!(gone.status.code(), Some(125), "{said}");
    assert!(said.contains(&format!("there is no process {}", child.id())), "{said}");
    let word = output(dir.path(), &["-p", "word"]);
    let said = String::from_utf8_lossy(&word.stderr);
    assert!(word.status.code() == Some(2) && said.contains("not a process id"), "{said}");
    assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 0);

    if !has(Need::Mounts) {
        return;
    }
    for (hidden, kind) in [("/proc", "proc"), ("/sys", "sysfs")] {
        let script = format!(
            "mount -t tmpfs none {hidden} || exit 99; {} record -- sh -c 'exit 3'",
            env!("CARGO_BIN_EXE_prepage")
        );
        let record =
            Command::new("unshare").args(["-m", "sh", "-c", &script]).current_dir(dir.path()).output();
        let record = record.expect("unshare runs");
        let said = String::from_utf8_lossy(&record.stderr);
        assert_eq!(record.status.code(), Some(125), "{said}");
        let mount = format!("try: mount -t {kind} {kind} {hidden}");
        assert!(said.contains(&format!("{hidden}/")) && said.contains(&mount), "{said}");
    }
}

#[test]
fn a_running_process_is_recorded_until_asked_to_end() {
    let dir = tempfile::tempdir().expect("a directory");
    if !may(Doctor::Faults) {
        return;
    }
    let mut child = Command::new("sh")
        .args(["-c", "while :; do /bin/true; echo; sleep 0.02; done"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let mut recorder =
        record(dir.path(), &["-p", &child.id().to_string()]).stderr(Stdio::null()).spawn().expect("started");
    wait_for_signals(recorder.id());
    // Programs that it has executed since, however slow the machine is.
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    assert_eq!(lines.by_ref().take(20).filter(Result::is_ok).count(), 20);
    let pid = recorder.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill").success());
    assert_eq!(recorder.wait().expect("an end").code(), Some(0));
    child.kill().expect("killed");
    child.wait().expect("an end");
    let trace = read_trace(&dir.path().join("prepage.parquet")).expect("a trace");
    assert!(trace.facts.execs > 0 && trace.facts.rusage.is_none());
    // The children's code is resolved by the mappings they inherit and make, with the parent's from /proc.
    let named = trace.faults.iter().filter(|fault| fault.object.is_some()).count();
    assert!(named * 10 > trace.faults.len() * 9, "{named} of {}", trace.faults.len());
}

#[test]
fn wrong_arguments_are_refused_before_anything_is_started() {
    let dir = tempfile::tempdir().expect("a directory");
    for (arguments, expected) in [
        (["--address", "12", "true"].as_slice(), "not a range"),
        (&["--duration", "1x", "true"], "`1x` is not a time"),
        (&["--duration", "0", "true"], "no time"),
        (&["-p", "1", "true"], "cannot be used with"),
        (&["-a", "-p", "1"], "cannot be used with"),
        (&["--exact", "-p", "1"], "cannot be used with"),
        (&["--exact", "-a"], "cannot be used with"),
        (&[], "required"),
    ] {
        let output = output(dir.path(), arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(expected), "{arguments:?}: {said}");
    }
    assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 0);
}

#[test]
fn an_exact_recording_has_every_first_touch_in_order_from_a_warm_cache() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    if !may(Doctor::Faults) || !has(Need::Linux(6, 7)) {
        return;
    }
    // Smaller than 2 MiB: a folio of that size is mapped as a whole by one fault, armed or not.
    fs::write(dir.path().join("data"), vec![1; 490 * 4096]).expect("written");
    let touches = [5, 100, 6, 7, 300, 299, 4, 301, 489, 0, 101];
    // Until the mapping is armed, which its VmFlags say.
    let script = format!(
        r"
import mmap, time
f = open('data', 'rb')
m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY)
def is_armed():
    found = False
    for line in open('/proc/self/smaps'):
        found = '/data' in line if '-' in line.split()[0] else found
        if found and line.startswith('VmFlags:'):
            return ' uw' in line
while not is_armed():
    time.sleep(0.001)
for p in {touches:?}: m[p * 4096]
"
    );
    let output = output(dir.path(), &["--exact", "-q", "--", "python3", "-c", &script]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let trace = read_trace(&dir.path().join("prepage.parquet")).expect("a trace");
    let data = trace.objects.iter().position(|object| object.path.ends_with("/data")).expect("the file");
    assert_eq!(trace.objects[data].size_bytes, Some(490 * 4096));
    let of_data = trace.faults.iter().filter(|fault| fault.object.is_some_and(|id| id.0 as usize == data));
    let mut pages: Vec<u64> = of_data.filter_map(|fault| fault.page).map(|page| page.0).collect();
    // A fault that read is told twice: the retry that maps the page follows it.
    pages.dedup();
    assert_eq!(pages, touches);
    assert!(trace.facts.exact.is_some());
}

#[test]
fn what_an_exact_recording_cannot_see_is_told_and_simulated_as_unseen() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on a disk");
    if !may(Doctor::Faults) {
        return;
    }
    fs::write(dir.path().join("data"), vec![1; 100 * 4096]).expect("written");
    // Other tests switch fault-around off for a while. Root sees that, where debugfs is mounted.
    let is_fault_around_on = || {
        let bytes = fs::read_to_string("/sys/kernel/debug/fault_around_bytes");
        bytes.is_ok_and(|bytes| bytes.trim() == "65536")
    };
    // One that userfaultfd refuses, and one that is touched before it can be armed.
    for access in ["READ", "COPY"] {
        let script = format!(
            "import mmap; f = open('data', 'rb'); m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_{access})\n\
             for p in range(100): m[p * 4096]"
        );
        let was_on = is_fault_around_on();
        let recorded = output(dir.path(), &["--exact", "-q", "--", "python3", "-c", &script]);
        let was_on = was_on && is_fault_around_on();
        let said = String::from_utf8_lossy(&recorded.stderr);
        assert!(recorded.status.success(), "{said}");
        let trace = read_trace(&dir.path().join("prepage.parquet")).expect("a trace");
        let data = trace.objects.iter().position(|object| object.path.ends_with("/data")).expect("the file");
        let of_data =
            trace.faults.iter().filter(|fault| fault.object.is_some_and(|id| id.0 as usize == data));
        let mut pages: Vec<u64> = of_data.filter_map(|fault| fault.page).map(|page| page.0).collect();
        pages.sort_unstable();
        pages.dedup();
        let mut simulate = Command::new(env!("CARGO_BIN_EXE_prepage-tools"));
        let simulate = simulate.current_dir(dir.path()).args(["simulate", "--json", "prepage.parquet"]);
        let simulated = simulate.output().expect("prepage-tools runs");
        let simulated: serde_json::Value = serde_json::from_slice(&simulated.stdout).expect("JSON");
        let exact = trace.facts.exact.expect("recorded with --exact");
        let Some(unseen) = simulated["unseen_pages"].as_u64() else { panic!("{exact:?}") };
        assert!(pages.len() as u64 + unseen >= 100, "{access}: {} and {unseen}", pages.len());
        let unarmed = exact.unarmed_pages;
        // Only the files with the most pages are named.
        let is_told = said.contains("not exact: ") && unarmed.iter().any(|(path, _)| path.ends_with("/data"));
        // Without fault-around all pages are seen, and may be told all the same.
        match was_on {
            true => assert_eq!(is_told, pages.len() < 100, "{access}: {said}"),
            false => assert!(is_told || pages.len() == 100, "{access}: {said}"),
        }
    }
}

#[test]
fn a_standard_error_that_takes_nothing_changes_no_exit_code_and_loses_no_recording() {
    let dir = tempfile::tempdir().expect("a directory");
    let full = || fs::OpenOptions::new().write(true).open("/dev/full").expect("there");
    let mut command = Command::new(env!("CARGO_BIN_EXE_prepage-tools"));
    let missing = command.current_dir(dir.path()).args(["report", "missing"]).stderr(full()).status();
    assert_eq!(missing.expect("it runs").code(), Some(125));
    if !may(Doctor::Faults) {
        return;
    }
    let status = record(dir.path(), &["--", "sh", "-c", "exit 7"]).stderr(full()).status();
    assert_eq!(status.expect("it runs").code(), Some(7));
    assert!(!read_trace(&dir.path().join("prepage.parquet")).expect("a trace").faults.is_empty());
}

#[test]
fn a_recording_without_a_command_ends_and_fails_when_its_file_takes_no_more() {
    let dir = tempfile::tempdir().expect("a directory");
    if !may(Doctor::Faults) {
        return;
    }
    let of_a_command = output(dir.path(), &["-o", "/dev/full", "--", "sh", "-c", "exit 7"]);
    let said = String::from_utf8_lossy(&of_a_command.stderr);
    assert_eq!(of_a_command.status.code(), Some(7), "{said}");
    assert!(said.contains("the disk is full") && !said.contains("runs on"), "{said}");
    assert!(!said.contains("written to"), "{said}");
    // A command that succeeds has no code of its own to tell.
    let of_success = output(dir.path(), &["-o", "/dev/full", "--", "true"]);
    assert_eq!(of_success.status.code(), Some(125), "{}", String::from_utf8_lossy(&of_success.stderr));
    let mut child = Command::new("sh").args(["-c", "while :; do /bin/true; done"]).spawn().expect("started");
    let arguments = ["-o", "/dev/full", "--duration", "60", "-p", &child.id().to_string()];
    let of_a_process = output(dir.path(), &arguments);
    child.kill().expect("killed");
    child.wait().expect("an end");
    let said = String::from_utf8_lossy(&of_a_process.stderr);
    assert_eq!(of_a_process.status.code(), Some(125), "{said}");
    assert!(said.contains("the disk is full") && !said.contains("command"), "{said}");
}
