//! `prepage run`: the program notices nothing, and the next start knows it.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Sandbox, can_learn, evict, is_root, json, make_old, text, wait_for};
use prepage_core::profile::{History, Profile};
use prepage_profiles::{Layer, ProgramKey, Stores};
use prepage_testing::{Need, copy_program, has, wait_until_written, write_program};
use rustix::process::{Pid, Signal, kill_process_group};

/// A program that maps and reads something.
const PROGRAM: [&str; 3] = ["sh", "-c", "ls /usr/lib >/dev/null; cat /etc/passwd >/dev/null"];

fn run<'a>(options: &[&'a str], command: &[&'a str]) -> Vec<&'a str> {
    [&["run"], options, &["--"], command].concat()
}

#[test]
fn exit_codes_are_the_programs_own() {
    let sandbox = Sandbox::new();
    for code in [0, 1, 77, 255] {
        let status = sandbox.prepage(&run(&["-q"], &["sh", "-c", &format!("exit {code}")])).status().unwrap();
        assert_eq!(status.code(), Some(code));
    }
    let status = sandbox.prepage(&run(&["-q"], &["sh", "-c", "kill -TERM $$"])).status().unwrap();
    assert_eq!(status.signal(), Some(15), "killed, as its parent sees it, not an exit code that says so");
}

#[test]
fn what_cannot_be_started_is_told_with_the_customary_codes() {
    let sandbox = Sandbox::new();
    let missing = sandbox.output(&["run", "--", "no-such-program"]);
    assert_eq!(missing.status.code(), Some(127));
    assert!(text(&missing.stderr).contains("no-such-program: No such file"), "{}", text(&missing.stderr));
    let directory = sandbox.output(&["run", "--", "/etc"]);
    assert_eq!(directory.status.code(), Some(126));
    let nothing = sandbox.output(&["run"]);
    assert_eq!(nothing.status.code(), Some(125));
    let option = sandbox.output(&["run", "--no-such-option", "true"]);
    assert_eq!(option.status.code(), Some(125));
    assert!(text(&option.stderr).contains("try: prepage run --help"));
    assert!(sandbox.profiles().is_empty());
}

#[test]
fn help_names_every_option_the_starter_takes() {
    let sandbox = Sandbox::new();
    let help = text(&sandbox.output(&["run", "--help"]).stdout);
    for option in
        ["--quiet", "--verbose", "--no-learn", "--no-prefetch", "--no-hold-out", "--write-interval=9"]
    {
        assert!(help.contains(option.split('=').next().unwrap()), "{option} is not in the help");
        let taken = sandbox.prepage(&["run", "--quiet", option, "true"]).status().unwrap();
        assert!(taken.success(), "{option} is not taken");
    }
}

#[test]
fn a_script_that_names_no_interpreter_is_the_shells() {
    let sandbox = Sandbox::new();
    let script = sandbox.path().join("script");
    write_program(&script, "echo $0 $1\n");
    let name = script.to_str().unwrap();
    for _ in 0..2 {
        let output = sandbox.output(&run(&[], &[name, "first"]));
        assert_eq!((text(&output.stdout), text(&output.stderr)), (format!("{name} first\n"), String::new()));
    }
}

#[test]
fn an_observed_start_has_all_of_the_environment_and_as_many_arguments() {
    let sandbox = Sandbox::new();
    if !has(Need::Tool("python3".into())) {
        return;
    }
    // What fills the room for arguments to the last page of it, and what is no variable: execve(2) by hand.
    let script = "import ctypes, os, sys\n\
        libc = ctypes.CDLL(None)\n\
        def strings(of): return (ctypes.c_char_p * (len(of) + 1))(*of, None)\n\
        kept = [os.fsencode(f'{name}={value}') for name, value in os.environ.items()]\n\
        odd = [b'NOEQUALS', b'=lead', b'']\n\
        command = [os.fsencode(word) for word in sys.argv[1:]]\n\
        for bytes in range(2097152, 0, -64):\n\
        \x20   longest = [b'x' * 100000] * (bytes // 100001) + [b'x' * (bytes % 100001)]\n\
        \x20   libc.execve(command[0], strings(command + longest), strings(odd + kept))\n";
    // Where what the starter's own name took is enough room, the agent was there, and leaves zeros at the end.
    let look = "tr '\\0' '\\n' </proc/$$/environ | head -n 3 | grep -c -e '^NOEQUALS$' -e '^=lead$' -e '^$'";
    let starter = env!("CARGO_BIN_EXE_prepage");
    let output = sandbox
        .command("python3", &["-c", script, starter, "run", "--", "/bin/sh", "-c", look])
        .output()
        .unwrap();
    assert_eq!((text(&output.stdout), text(&output.stderr)), ("3\n".into(), String::new()));
}

/// What they have in common is looked up beside its start.
#[test]
fn a_program_without_a_profile_waits_for_none_of_its_other_roles() {
    let sandbox = Sandbox::new();
    fs::create_dir(sandbox.store()).unwrap();
    fs::set_permissions(sandbox.store(), fs::Permissions::from_mode(0o700)).unwrap();
    // Of as many bytes as a profile may have, and no profiles: all of them are looked at.
    let named = |number: u32| sandbox.store().join(format!("sh-{number:016x}.profile"));
    let damaged = fs::File::create(named(0)).unwrap();
    damaged.set_len(60 << 20).unwrap();
    damaged.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
    (1..200).for_each(|number| fs::hard_link(named(0), named(number)).unwrap());
    let output = sandbox.in_time(|| sandbox.output(&run(&["-v"], &["sh", "-c", "exit 7"])));
    let told = text(&output.stderr);
    assert!(output.status.code() == Some(7) && !told.contains("does not wait"), "{told}");
}

#[test]
fn what_is_learned_is_complete_and_its_owners_whatever_the_program_is_limited_by() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) {
        return;
    }
    let limits = format!("umask 777; ulimit -c unlimited; exec {} \"$@\"", env!("CARGO_BIN_EXE_prepage"));
    sandbox.learned_by(|| {
        let mut start = sandbox.command("sh", &["-c", &limits, "sh", "run", "--", "cat", "/etc/passwd"]);
        assert!(start.status().unwrap().success());
    });
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o700;
    assert_eq!(mode(&sandbox.store()), 0o700);
    assert_eq!(sandbox.profiles().iter().map(|path| mode(path)).collect::<Vec<_>>(), [0o600]);
}

#[test]
fn a_start_says_nothing_unless_asked() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) {
        return;
    }
    // A line on standard error breaks those who compare it, as configure scripts do.
    let is_silent = || assert_eq!(text(&sandbox.output(&run(&[], &PROGRAM)).stderr), "");
    sandbox.learned_by(is_silent);
    is_silent();
    let other = Sandbox::new();
    let asked = other.in_time(|| other.output(&run(&["-v"], &PROGRAM)));
    assert!(text(&asked.stderr).contains("learning from this start"), "{}", text(&asked.stderr));
    let quiet = Sandbox::new().output(&run(&["-v", "-q"], &PROGRAM));
    assert_eq!(text(&quiet.stderr), "");
}

#[test]
fn what_was_learned_names_the_programs_files() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) {
        return;
    }
    sandbox.learned_by(|| drop(sandbox.output(&run(&["-q"], &PROGRAM))));
    let shown = text(&sandbox.output(&["profile", "show", "sh"]).stdout);
    assert!(shown.contains("libc.so") && shown.contains("as learned"), "{shown}");
    assert!(shown.contains("\ngain     not known: no cold start since it was learned\n"), "{shown}");
    let listed = sandbox.output(&["profile", "list", "--json"]);
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed["profiles"][0]["observations"], 1);
    assert!(listed["profiles"][0]["pages"].as_u64().unwrap() > 20);
    assert!(sandbox.output(&["profile", "rm", "sh"]).status.success());
    assert!(sandbox.profiles().is_empty());
    assert!(!sandbox.output(&["profile", "show", "sh"]).status.success());
}

#[test]
fn the_program_has_no_child_it_did_not_start_and_no_descriptor_it_was_not_given() {
    let sandbox = Sandbox::new();
    // How many descriptors the shell has, its executable, and its children: `cat` alone.
    let look = "set -- /proc/$$/fd/*; echo $#; readlink /proc/$$/exe; cat /proc/$$/task/$$/children";
    let seen = |output: &Output| {
        let lines = text(&output.stdout);
        let mut lines = lines.lines().map(String::from);
        let (descriptors, program) = (lines.next().unwrap(), lines.next().unwrap());
        (descriptors, program, lines.next().unwrap().split_whitespace().count())
    };
    let plain = Command::new("sh").args(["-c", look]).stdin(Stdio::null()).output().unwrap();
    assert_eq!(seen(&plain).2, 1);
    for _ in 0..2 {
        let beside = sandbox.output(&run(&["-q"], &["sh", "-c", look]));
        assert_eq!(seen(&beside), seen(&plain));
    }
}

#[test]
fn a_reader_of_the_output_waits_for_the_program_alone() {
    let sandbox = Sandbox::new();
    // The shell ends at once; what it left running keeps no stream of it. So does what prepage left running.
    let began = Instant::now();
    let output = sandbox.output(&run(&["-q"], &["sh", "-c", "sleep 20 >/dev/null 2>&1 & echo done"]));
    assert_eq!(text(&output.stdout), "done\n");
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[test]
fn streams_and_signal_dispositions_are_as_they_were_given() {
    let sandbox = Sandbox::new();
    let prepage = env!("CARGO_BIN_EXE_prepage");
    let look = "grep -E '^Sig(Ign|Blk|Cgt)' /proc/self/status; ls /proc/self/fd | tr '\\n' ' '";
    for setting in ["", "trap '' PIPE INT;", "exec <&-;"] {
        let shell = |start: &str| {
            let script = format!("{setting} {start} sh -c \"{look}\"");
            let output =
                Command::new("bash").args(["-c", &script]).env("PREPAGE_STORE", sandbox.store()).output();
            text(&output.unwrap().stdout)
        };
        assert_eq!(shell(&format!("{prepage} run -q --")), shell("exec"), "after {setting:?}");
    }
}

#[test]
fn what_a_start_interrupted_by_ctrl_c_showed_is_kept() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) {
        return;
    }
    // Not through a shell: a shell that has just forked may miss the signal.
    sandbox.learned_by(|| {
        let mut program = sandbox.mortal(&run(&["-q"], &["sleep", "60"])).process_group(0).spawn().unwrap();
        let comm = format!("/proc/{}/comm", program.id());
        wait_for("the program", || (fs::read_to_string(&comm).unwrap() == "sleep\n").then_some(()));
        std::thread::sleep(Duration::from_millis(50));
        kill_process_group(Pid::from_child(&program), Signal::INT).unwrap();
        assert_eq!(program.wait().unwrap().signal(), Some(2));
    });
}

#[test]
fn two_starts_at_once_both_run_and_leave_one_sound_profile() {
    let sandbox = Sandbox::new();
    let starts = || {
        let mut programs: Vec<_> =
            (0..6).map(|_| sandbox.prepage(&run(&["-q"], &PROGRAM)).spawn().unwrap()).collect();
        assert!(programs.iter_mut().all(|program| program.wait().unwrap().success()));
    };
    starts();
    if can_learn(&sandbox) {
        sandbox.wait_for_helpers();
        let _ = fs::remove_dir_all(sandbox.store());
        sandbox.learned_by(starts);
        assert_eq!(sandbox.profiles().len(), 1);
        assert!(sandbox.output(&["profile", "show", "sh"]).status.success());
    }
}

#[test]
fn a_damaged_profile_is_told_and_learned_anew() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) {
        return;
    }
    let profile = sandbox.learned_by(|| drop(sandbox.output(&run(&["-q"], &PROGRAM))));
    for damage in ["truncated", "foreign", "flipped"] {
        let mut bytes = fs::read(&profile).unwrap();
        match damage {
            "truncated" => bytes.truncate(bytes.len() / 2),
            "foreign" => bytes = b"#!/bin/sh\n".to_vec(),
            _ => bytes[100] ^= 4,
        }
        fs::write(&profile, &bytes).unwrap();
        let listed = sandbox.output(&["profile", "list"]);
        assert!(text(&listed.stdout).contains("unreadable"), "{damage}");
        let output = sandbox.in_time(|| sandbox.output(&run(&["-v"], &PROGRAM)));
        assert!(output.status.success());
        let told = text(&output.stderr);
        assert!(told.contains("learning from this start") && told.contains(".profile"), "{damage}: {told}");
        sandbox.wait_for_helpers();
        assert!(sandbox.output(&["profile", "show", "sh"]).status.success(), "{damage}");
    }
}

#[test]
fn what_a_newer_prepage_wrote_is_told_and_stays() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) {
        return;
    }
    let profile = sandbox.learned_by(|| drop(sandbox.output(&run(&["-q"], &PROGRAM))));
    let mut bytes = fs::read(&profile).unwrap();
    bytes[8] = 99;
    fs::write(&profile, &bytes).unwrap();
    let output = sandbox.in_time(|| sandbox.output(&run(&["-v"], &PROGRAM)));
    assert!(output.status.success());
    assert!(text(&output.stderr).contains("newer prepage"), "{}", text(&output.stderr));
    assert_eq!(fs::read(&profile).unwrap(), bytes);
}

#[test]
fn a_replaced_file_is_passed_over() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) {
        return;
    }
    let program = sandbox.path().join("program");
    fs::copy("/bin/ls", &program).unwrap();
    make_old(&program);
    wait_until_written(&program);
    let program = program.to_str().unwrap();
    sandbox.learned_by(|| assert!(sandbox.output(&run(&["-q"], &[program, "/"])).status.success()));
    fs::remove_file(program).unwrap();
    copy_program("/bin/cat", program);
    let shown = text(&sandbox.output(&["profile", "show", "program"]).stdout);
    assert!(shown.lines().any(|line| line.contains("changed") && line.ends_with("/program")), "{shown}");
    let output = sandbox.output(&run(&[], &[program, "/etc/hostname"]));
    assert_eq!(output.stdout, fs::read("/etc/hostname").unwrap());
}

#[test]
fn a_store_that_cannot_be_written_is_told_and_the_program_runs() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.store(), "not a directory").unwrap();
    let output = sandbox.in_time(|| sandbox.output(&run(&["-v"], &["echo", "ran"])));
    assert_eq!(text(&output.stdout), "ran\n");
    let told = text(&output.stderr);
    assert!(told.contains("try: set PREPAGE_STORE"), "{told}");
}

#[test]
fn a_store_open_to_others_is_not_trusted() {
    let sandbox = Sandbox::new();
    fs::create_dir(sandbox.store()).unwrap();
    fs::set_permissions(sandbox.store(), fs::Permissions::from_mode(0o777)).unwrap();
    let output = sandbox.in_time(|| sandbox.output(&run(&["-v"], &["echo", "ran"])));
    assert_eq!(text(&output.stdout), "ran\n");
    assert!(text(&output.stderr).contains("written by others"), "{}", text(&output.stderr));
}

#[test]
fn an_ordinary_user_has_the_same_flow() {
    let sandbox = Sandbox::new();
    if !is_root() {
        return;
    }
    // Another user must be able to reach the binaries and a store of their own.
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
    for binary in [env!("CARGO_BIN_EXE_prepage"), env!("CARGO_BIN_EXE_prepage-tools")] {
        copy_program(binary, directory.path().join(binary.rsplit('/').next().unwrap()));
    }
    let store = directory.path().join("store");
    let as_nobody = |args: &[&str]| {
        let mut command = Command::new(directory.path().join("prepage"));
        command
            .args(args)
            .env("PREPAGE_STORE", &store)
            .uid(65534)
            .gid(65534)
            .current_dir("/")
            .output()
            .unwrap()
    };
    if !can_learn(&sandbox) {
        return;
    }
    wait_for("a start that is served in time", || {
        let _ = fs::remove_dir_all(&store);
        let first = text(&as_nobody(&run(&["-v"], &PROGRAM)).stderr);
        let is_late = first.contains("the program does not wait");
        assert!(is_late || first.contains("learning from this start"), "{first}");
        (!is_late).then_some(())
    });
    wait_for("a profile", || as_nobody(&["profile", "show", "sh"]).status.success().then_some(()));
    assert_eq!(text(&as_nobody(&run(&[], &PROGRAM)).stderr), "");
    let learned = as_nobody(&["learn", "--", "cat", "/etc/hostname"]);
    assert!(learned.status.success(), "{}", text(&learned.stderr));
    // Another directory of this user's own is no place for what all users are to have.
    let refused = as_nobody(&["learn", "--layer", "machine", "--", "true"]);
    let told = text(&refused.stderr);
    assert!(refused.status.code() == Some(125) && told.contains("try: as root, or --layer user"), "{told}");
    assert!(text(&learned.stderr).contains("learned cat"), "{}", text(&learned.stderr));
    let measured = as_nobody(&["measure", "-n", "2", "--json", "--", "cat", "/etc/hostname"]);
    let report: serde_json::Value = json(&measured);
    assert_eq!(report["chill"], "own files evicted");
    let with_others =
        ["measure", "-n", "1", "--also", "x=exit 7", "--also", "y=exec \"$@\"", "--", "cat", "/etc/hostname"];
    let told = text(&as_nobody(&with_others).stdout);
    assert!(told.contains("x: no figures") && told.contains("in 1 of 1 start: exit status 7"), "{told}");
    assert!(
        told.contains("\ny / cold: ") && !told.contains("cold, x") && !told.contains("the command failed"),
        "{told}"
    );
    // What nobody wrote is not followed in root's name.
    let root = || sandbox.prepage(&run(&["-v"], &PROGRAM)).env("PREPAGE_STORE", &store).output().unwrap();
    let root = sandbox.in_time(root);
    assert!(root.status.success());
    assert!(text(&root.stderr).contains("written by others"), "{}", text(&root.stderr));
}

#[test]
fn a_full_disk_is_told_before_the_program_runs() {
    let sandbox = Sandbox::new();
    if !has(Need::Mounts) {
        return;
    }
    fs::create_dir(sandbox.store()).unwrap();
    fs::set_permissions(sandbox.store(), fs::Permissions::from_mode(0o700)).unwrap();
    // A disk of 64 KiB, mounted for this command alone.
    let script = format!(
        "mount -t tmpfs -o size=64k,mode=700 none '{}' && exec {} run -v -- echo ran",
        sandbox.store().display(),
        env!("CARGO_BIN_EXE_prepage")
    );
    let output =
        sandbox.in_time(|| sandbox.command("unshare", &["--mount", "sh", "-c", &script]).output().unwrap());
    assert_eq!(text(&output.stdout), "ran\n");
    let told = text(&output.stderr);
    assert!(told.contains("not learning") && told.contains("No space left"), "{told}");
}

/// As in a bare chroot, or in an image that is being made.
#[test]
fn where_there_are_no_devices_a_start_is_learned_as_well() {
    let sandbox = Sandbox::new();
    if !has(Need::Mounts) || !can_learn(&sandbox) {
        return;
    }
    let script =
        format!("mount -t tmpfs none /dev && exec {} run -v -- echo ran", env!("CARGO_BIN_EXE_prepage"));
    let output =
        sandbox.in_time(|| sandbox.command("unshare", &["--mount", "sh", "-c", &script]).output().unwrap());
    assert_eq!(text(&output.stdout), "ran\n");
    let told = text(&output.stderr);
    assert!(told.contains("learning from this start") && !told.contains("failed"), "{told}");
    sandbox.wait_for_profile();
}

#[test]
fn files_that_a_profile_cannot_name_are_told() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) {
        return;
    }
    let [program, data] =
        [&b"pro\xe9gram"[..], b"dat\xe9"].map(|name| sandbox.path().join(OsStr::from_bytes(name)));
    fs::copy("/bin/cat", &program).unwrap();
    fs::write(&data, "data").unwrap();
    make_old(&data);
    make_old(&program);
    wait_until_written(&program);
    let learned = sandbox.prepage(&["learn", "--"]).arg(&program).arg(&data).output().unwrap();
    let told = text(&learned.stderr);
    assert!(told.contains("2 files with names that are no UTF-8") && told.contains("/dat\u{fffd}"), "{told}");
}

#[test]
fn a_relative_store_is_one_store() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) {
        return;
    }
    let mut start = sandbox.prepage(&run(&["-q"], &PROGRAM));
    start.env("PREPAGE_STORE", "store").current_dir(sandbox.path());
    sandbox.learned_by(|| assert!(start.status().unwrap().success()));
}

#[test]
fn a_known_cold_start_adds_what_it_lacked() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) {
        return;
    }
    // Two data files; the program maps the one it is told. Evicted, so that touching it is a disk fault.
    let script = "import mmap, os, sys\n\
        fd = os.open(os.environ['DATA'], os.O_RDONLY)\n\
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)\n\
        memory = mmap.mmap(fd, 0, prot=mmap.PROT_READ)\n\
        for page in range(0, 4096, 64): memory[page * 4096]\n";
    let data = ["a", "b"].map(|name| {
        let path = sandbox.path().join(name);
        fs::write(&path, vec![1u8; 16 << 20]).unwrap();
        make_old(&path);
        fs::File::open(&path).unwrap().sync_all().unwrap();
        path
    });
    let start = |data: &Path| {
        let mut program = sandbox.prepage(&run(&["-q", "--write-interval", "0"], &["python3", "-c", script]));
        assert!(program.env("DATA", data).status().unwrap().success());
    };
    let knows = |path: &Path| {
        let shown = sandbox.output(&["profile", "show", "--json", "python3"]);
        let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).ok()?;
        let files = shown["files"].as_array()?;
        files.iter().any(|file| file["path"] == path.to_str().unwrap()).then_some(())
    };
    wait_for("the first file in the profile", || {
        start(&data[0]);
        sandbox.wait_for_helpers();
        knows(&data[0])
    });
    // The profile holds the first file's pages: with these evicted, the start is a cold one.
    let first = fs::File::open(&data[0]).unwrap();
    let key = ProgramKey::of(&["python3", "-c", script].map(Into::into)).unwrap();
    // Of known starts one in twenty is observed: the next one is to be.
    let owe = |profile: Option<Profile>| {
        profile.map(|profile| Profile { history: History { due: 1, ..profile.history }, ..profile })
    };
    wait_for("a known start that finds the second file missing", || {
        evict(&first);
        Stores::at(sandbox.store()).update(&key, Layer::User, owe).unwrap();
        start(&data[1]);
        sandbox.wait_for_helpers();
        knows(&data[1])
    });
}

#[test]
fn reads_that_wait_for_the_disk_are_learned_on_the_way() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) {
        return;
    }
    let data = sandbox.path().join("data");
    fs::write(&data, vec![1u8; 32 << 20]).unwrap();
    make_old(&data);
    fs::File::open(&data).unwrap().sync_all().unwrap();
    // Every second page, without read-ahead. Evicted by the program itself.
    let script = format!(
        "import os\n\
         fd = os.open('{}', os.O_RDONLY)\n\
         os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)\n\
         os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)\n\
         for page in range(0, 8192, 2): os.pread(fd, 4096, page * 4096)\n",
        data.display()
    );
    let mut start = sandbox.prepage(&run(&["-q"], &["python3", "-c", &script]));
    sandbox.learned_by(|| assert!(start.status().unwrap().success()));
    let shown = json(&sandbox.output(&["profile", "show", "--json", "python3"]));
    let files = shown["files"].as_array().unwrap();
    match files.iter().find(|file| file["path"] == data.to_str().unwrap()) {
        Some(file) => assert!(file["pages"].as_u64().unwrap() <= 4096, "{file}"),
        None => panic!("none of four thousand reads was found waiting"),
    }
}

#[test]
fn what_a_program_does_after_its_start_is_not_learned() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) {
        return;
    }
    let [early, late] = ["early", "late"].map(|name| {
        let path = sandbox.path().join(name);
        fs::write(&path, vec![1u8; 1 << 20]).unwrap();
        make_old(&path);
        path
    });
    let script = format!(
        "import mmap, os, time\n\
         def touch(name):\n\
         \x20   fd = os.open(name, os.O_RDONLY)\n\
         \x20   memory = mmap.mmap(fd, 0, prot=mmap.PROT_READ)\n\
         \x20   memory[4096]\n\
         touch('{}')\n\
         time.sleep(0.5)\n\
         touch('{}')\n\
         time.sleep(1.5)\n\
         touch('{}')\n",
        early.display(),
        early.with_extension("gone-on").display(),
        late.display()
    );
    fs::copy(&early, early.with_extension("gone-on")).unwrap();
    make_old(&early.with_extension("gone-on"));
    let mut start = sandbox.prepage(&run(&["-q"], &["python3", "-c", &script]));
    let mut learned = || -> Vec<String> {
        let _ = fs::remove_dir_all(sandbox.store());
        sandbox.learned_by(|| assert!(start.status().unwrap().success()));
        let shown = json(&sandbox.output(&["profile", "show", "--json", "python3"]));
        let files = shown["files"].as_array().unwrap().iter();
        files.filter_map(|file| Some(file["path"].as_str()?.to_owned())).collect()
    };
    let is_its_start = |paths: &Vec<String>| {
        let knows = |name: &str| paths.iter().any(|path| path.ends_with(name));
        knows("/early") && knows("/early.gone-on") && !knows("/late")
    };
    // On a busy machine the program may rest for longer, and its observer look later.
    let learned: Vec<_> = (0..5).map(|_| learned()).take_while(|paths| !is_its_start(paths)).collect();
    assert!(learned.len() < 5, "{learned:?}");
}

/// The kernel makes inodes and names for what is looked at there: a fifth of what such a start takes. Under a seccomp filter, and on other processors, whether
/// the filter kills is asked there first.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_warm_start_of_a_known_program_reads_nothing_of_proc() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) || !has(Need::Tool("strace".into())) || !has(Need::NoFilter) {
        return;
    }
    // A file of many programs takes this name for `true`, too.
    let [link, directory] = ["another-true", "directory"].map(|name| sandbox.path().join(name));
    std::os::unix::fs::symlink("/usr/bin/true", &link).unwrap();
    std::os::unix::fs::symlink("/usr/bin", &directory).unwrap();
    let below = directory.join("true");
    let trace = sandbox.path().join("trace");
    for program in ["true", link.to_str().unwrap(), below.to_str().unwrap()] {
        let mut learned = sandbox.prepage(&run(&["-q"], &[program]));
        let start = sandbox.prepage(&run(&["--no-learn"], &[program]));
        wait_for("a start with nothing beside it", || {
            assert!(learned.status().unwrap().success());
            sandbox.wait_for_helpers();
            let mut traced = sandbox.command("strace", &["-o", trace.to_str().unwrap()]);
            assert!(traced.arg(start.get_program()).args(start.get_args()).status().unwrap().success());
            let calls = fs::read_to_string(&trace).unwrap();
            // Up to the exec of the program.
            let own = calls.split("execve(").nth(1).unwrap();
            let is_alone = !own.contains("clone(");
            assert!(!is_alone || !own.contains("\"/proc/"), "{own}");
            is_alone.then_some(())
        });
    }
}

/// Runs a command and counts what it leaves behind: whoever adopts orphans meets what `prepage run` began beside the program.
const ORPHANS: &str = "import ctypes, os, subprocess, sys\n\
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\n\
    subprocess.run(sys.argv[1:], check=True)\n\
    count = 0\n\
    while True:\n\
    \x20   try: os.wait4(-1, 0)\n\
    \x20   except ChildProcessError: break\n\
    \x20   count += 1\n\
    print(count)\n";

#[test]
fn a_warm_start_of_a_known_program_begins_nothing_beside_it() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) || !has(Need::Eviction(env!("CARGO_TARGET_TMPDIR").into())) {
        return;
    }
    let data = sandbox.path().join("data");
    fs::write(&data, vec![1u8; 8 << 20]).unwrap();
    make_old(&data);
    let file = fs::File::open(&data).unwrap();
    file.sync_all().unwrap();
    let count = |options: &[&str], config: &Path| {
        let command = [&["run"][..], options, &["--", "cksum", data.to_str().unwrap()]].concat();
        let starter = sandbox.prepage(&command);
        let mut counting = sandbox.command("python3", &["-c", ORPHANS]);
        counting.arg(starter.get_program()).args(starter.get_args()).env("XDG_CONFIG_HOME", config);
        let output = counting.output().unwrap();
        text(&output.stdout).lines().last().unwrap().parse::<u32>().unwrap()
    };
    let [absent, config] = ["absent", "config"].map(|name| sandbox.path().join(name));
    assert_eq!(count(&[], &absent), 1, "a first start is observed");
    // Some of the starts after it are, too; and others may take pages away meanwhile.
    wait_for("a start with nothing beside it", || (count(&[], &absent) == 0).then_some(()));
    assert_eq!(count(&["-v"], &absent), 1, "somebody wants to hear what is done");
    // As package managers and backups do (rights, links): the file is another one, with the same content.
    fs::set_permissions(&data, fs::Permissions::from_mode(0o640)).unwrap();
    // No observation is to write which file it is now.
    let without_learning = || count(&["--no-learn"], &absent);
    wait_for("such a start with a file that was touched", || (without_learning() == 0).then_some(()));
    evict(&file);
    assert_eq!(count(&[], &absent), 1, "a file is out of memory");
    // The configuration is asked first.
    fs::create_dir_all(config.join("prepage")).unwrap();
    fs::write(config.join("prepage/config"), "exclude = cksum\n").unwrap();
    evict(&file);
    assert_eq!(count(&[], &config), 0);
}
