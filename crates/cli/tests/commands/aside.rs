//! What runs beside a program takes nothing that the program needs: no name, file system, memory or process.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::control_group::ControlGroup;
use crate::support::{Sandbox, can_learn, evict, helpers, is_root, make_old, text, wait_for};
use prepage_core::PAGE_SIZE;
use prepage_core::profile::{Profile, ProfiledFile};
use prepage_profiles::identity::{open_to_read, profiled};
use prepage_profiles::{Layer, ProgramKey, Stores};
use prepage_sys::process_status::ProcessStatus;
use prepage_testing::{Need, copy_program, has, write_program};
use rustix::process::{Pid, Signal, kill_process};

/// A program that says a line, waits for one, and ends.
const WAITS: &str = "echo up; read line";

/// Looks up so many names that nobody has, none of them twice.
const LOOKS_UP: &str = "import os, sys\n\
    def look(count):\n\
    \x20   for number in range(count):\n\
    \x20       try: os.stat(f'/nonexistent/{number:060}')\n\
    \x20       except OSError: pass\n";

/// Starts `command`, whose standard input is a pipe, and waits until it has said a line.
fn up(command: &mut Command) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut program = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(program.stdout.take().unwrap());
    let mut said = String::new();
    out.read_line(&mut said).unwrap();
    assert_eq!(said, "up\n");
    (program, out)
}

/// Lets a program go on that waits for a line.
fn go_on(program: &mut Child) {
    program.stdin.take().unwrap().write_all(b"\n").unwrap();
}

/// The one process that runs beside a program.
fn helper(sandbox: &Sandbox) -> Pid {
    let beside = helpers(sandbox);
    assert_eq!(beside.len(), 1, "one process beside the program");
    beside[0]
}

/// Scripts that are to run once at a time look for others of their name (pgrep, pidof), and who restarts a program ends all of its name.
#[test]
fn what_runs_beside_a_program_has_a_name_of_its_own() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) {
        return;
    }
    let [links, programs] = ["links", "programs"].map(|name| sandbox.path().join(name));
    fs::create_dir(&links).unwrap();
    fs::create_dir(&programs).unwrap();
    let path = format!("{}:{}:/usr/bin:/bin", links.display(), programs.display());
    let link = |name: &str| {
        let program = programs.join(name);
        write_program(&program, format!("#!/bin/sh\n{WAITS}\n"));
        symlink(env!("CARGO_BIN_EXE_prepage"), links.join(name)).unwrap();
        let mut command = Command::new(links.join(name));
        command.arg0(name).env("PREPAGE_STORE", sandbox.store()).env("PREPAGE_LAYERS", "").env("PATH", &path);
        command
    };
    let plain = sandbox.prepage(&["run", "--", "sh", "-c", WAITS]);
    for (mut command, shown) in
        [(plain, &b"prepage\0"[..]), (link("tool-of-a-test"), b"prepage\0"), (link("pt"), b"\0\0\0")]
    {
        let shown_now = wait_for("what runs beside to be looked at while it does", || {
            // A known start has nothing beside it.
            let _ = fs::remove_dir_all(sandbox.store());
            let (mut program, _out) = up(&mut command);
            let of_each = helpers(&sandbox).into_iter().map(names_of).collect::<Vec<_>>();
            // What has been quiet for a second ends beside a program that goes on.
            let is_there = !helpers(&sandbox).is_empty();
            go_on(&mut program);
            assert!(program.wait().unwrap().success());
            sandbox.wait_for_helpers();
            is_there.then_some(of_each)
        });
        let [(arguments, threads)] = &shown_now[..] else { panic!("{shown_now:?}") };
        assert_eq!(arguments, shown, "{}", text(arguments));
        assert!(threads.iter().all(|name| name == "prepage\n"), "{threads:?}");
    }
}

/// The arguments of a process as all see them, and the names of its threads.
fn names_of(pid: Pid) -> (Vec<u8>, Vec<String>) {
    let process = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
    let threads = fs::read_dir(process.join("task")).into_iter().flatten().flatten();
    // One may end meanwhile.
    let names = threads.filter_map(|thread| fs::read_to_string(thread.path().join("comm")).ok());
    (fs::read(process.join("cmdline")).unwrap_or_default(), names.collect())
}

#[test]
fn a_file_system_can_be_unmounted_by_the_program_that_used_it() {
    let sandbox = Sandbox::new();
    if !has(Need::Mounts) || !has(Need::Eviction(env!("CARGO_TARGET_TMPDIR").into())) {
        return;
    }
    let [from, to] = ["from", "to"].map(|name| sandbox.path().canonicalize().unwrap().join(name));
    fs::create_dir(&from).unwrap();
    fs::create_dir(&to).unwrap();
    let data = from.join("data");
    fs::write(&data, vec![7u8; 64 * PAGE_SIZE as usize]).unwrap();
    make_old(&data);
    let file = open_to_read(&data).unwrap();
    file.sync_all().unwrap();
    // What was read ahead a moment later than by the program itself may still be at it.
    let script = format!(
        "cat {0}/data | wc -c\nfor i in 1 2 3; do sleep 0.2; umount {0} && exit 0; done\nexit 32",
        to.display()
    );
    let command = ["sh", "-c", &script];
    let key = ProgramKey::of(&command.map(Into::into)).unwrap();
    let path = to.join("data").to_str().unwrap().into();
    let known = ProfiledFile { path, ..profiled(&data, 0..64).unwrap() };
    let profile = Profile { files: vec![known], ..key.empty_profile() };
    Stores::at(sandbox.store()).update(&key, Layer::User, |_| Some(profile.clone())).unwrap();
    let mount = format!("mount --bind {} {} && exec \"$@\"", from.display(), to.display());
    let options = ["run", "--no-learn", "--no-hold-out", "--"];
    let start =
        [&["--mount", "sh", "-c", &mount, "sh", env!("CARGO_BIN_EXE_prepage")], &options[..], &command];
    for _ in 0..2 {
        // On a busy machine what reads ahead may get no processor for longer than the program tries.
        let is_let_go = (0..5).any(|_| {
            evict(&file);
            let output = sandbox.command("unshare", &start.concat()).output().unwrap();
            eprint!("{}", text(&output.stderr));
            assert_eq!(text(&output.stdout), "262144\n");
            sandbox.wait_for_helpers();
            output.status.success()
        });
        assert!(is_let_go);
    }
}

#[test]
fn a_program_with_little_memory_is_not_killed_for_what_observes_it() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) {
        return;
    }
    let program = format!("{LOOKS_UP}kept = b'x' * int(sys.argv[1])\nlook(150000)\nprint('done')");
    // Too little to observe anything, and enough for the program and a part of what it does.
    for (limit_mb, kept_mb) in [(30, 2), (100, 60)] {
        let Some(group) = ControlGroup::of_memory(limit_mb << 20) else { return };
        let mut command = group.command(&sandbox);
        command.args([env!("CARGO_BIN_EXE_prepage"), "run", "-v", "--"]);
        command.args(["python3", "-c", &program, &(kept_mb << 20).to_string()]);
        let output = command.output().unwrap();
        let told = text(&output.stderr);
        assert!(output.status.success(), "{limit_mb} MB: {:?}, {told}", output.status);
        assert_eq!(text(&output.stdout), "done\n");
        assert_eq!(told.contains("MB of memory are left to the program"), limit_mb == 30, "{told}");
        sandbox.wait_for_helpers();
        let killed = group.read("memory.oom_control");
        assert!(killed.lines().any(|line| line == "oom_kill 0"), "{limit_mb} MB: {killed}");
    }
}

#[test]
fn a_log_that_nobody_reads_any_more_takes_no_memory() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) {
        return;
    }
    let script = format!(
        "{LOOKS_UP}look(5000)\nprint('up', flush=True)\nsys.stdin.readline()\nlook(100000)\n\
        pages, is_log = 0, False\n\
        for line in open('/proc/self/smaps'):\n\
        \x20   if '-' in line.split(' ')[0]: is_log = 'prepage-log' in line\n\
        \x20   elif is_log and line.startswith('Rss:'): pages += int(line.split()[1])\n\
        print(pages)"
    );
    let said = wait_for("what runs beside to be killed while it does", || {
        // A known start has nothing beside it.
        let _ = fs::remove_dir_all(sandbox.store());
        let (mut program, mut out) = up(&mut sandbox.prepage(&["run", "--", "python3", "-c", &script]));
        // What has been quiet for a second ends beside a program that goes on.
        let is_killed = helpers(&sandbox).iter().any(|&helper| kill_process(helper, Signal::KILL).is_ok());
        sandbox.wait_for_helpers();
        go_on(&mut program);
        let mut said = String::new();
        out.read_to_string(&mut said).unwrap();
        assert!(program.wait().unwrap().success());
        is_killed.then_some(said)
    });
    let kib: u64 = said.trim().parse().unwrap();
    assert!(kib < 256, "{kib} KiB");
}

#[test]
fn a_user_with_few_processes_has_them_for_the_program() {
    let sandbox = Sandbox::new();
    if !is_root() || !has(Need::Tool("bash".into())) {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for file in [Path::new(env!("CARGO_BIN_EXE_prepage")), crate::support::agent()] {
        copy_program(file, place.path().join(file.file_name().unwrap()));
    }
    let prepage = place.path().join("prepage");
    // One that nobody has, and another each time: see `hostile`.
    let mut user = 54_400;
    for most in 4..=6 {
        for prefix in [&[][..], &[prepage.to_str().unwrap(), "run", "--"]] {
            user += 1;
            let own = place.path().join(user.to_string());
            fs::create_dir(&own).unwrap();
            fs::set_permissions(&own, fs::Permissions::from_mode(0o700)).unwrap();
            std::os::unix::fs::chown(&own, Some(user), Some(user)).unwrap();
            let limit = format!("ulimit -u {most}; exec \"$@\"");
            let script = "sleep 0.2 & sleep 0.2 & sleep 0.2 & wait; echo done";
            let program = ["bash", "-c", script];
            let mut command = Command::new("bash");
            command.args(["-c", &limit, "bash"]).args(prefix).args(program);
            command.env("PREPAGE_STORE", &own).env("HOME", &own).uid(user).gid(user).current_dir("/");
            let output = command.output().unwrap();
            let said = (text(&output.stdout), text(&output.stderr));
            assert_eq!(said, ("done\n".into(), String::new()), "{most} processes, {prefix:?}");
        }
    }
    drop(sandbox);
}

/// It is that program's child, and stays until the program ends, which else would hear of its end.
#[test]
fn what_waits_for_the_end_of_a_subreaper_has_given_its_memory_back() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) {
        return;
    }
    let becomes_one = "import ctypes, os, sys\n\
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\n\
        os.execv(sys.argv[1], sys.argv[1:])\n";
    let script = format!("{LOOKS_UP}look(60000)\nprint('up', flush=True)\nsys.stdin.readline()");
    let prepage = env!("CARGO_BIN_EXE_prepage");
    let words = ["-c", becomes_one, prepage, "run", "--", "python3", "-c", &script];
    let (mut program, _out) = up(&mut sandbox.command("python3", &words));
    let helper = helper(&sandbox).as_raw_nonzero().to_string();
    let own_kib = || {
        let status = ProcessStatus::of(&helper).unwrap();
        let field = status.field("RssAnon").unwrap();
        field.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    wait_for("what was learned", || sandbox.profiles().pop());
    let since = Instant::now();
    while own_kib() > 4096 {
        assert!(since.elapsed() < Duration::from_secs(60), "{} KiB", own_kib());
        std::thread::sleep(Duration::from_millis(10));
    }
    go_on(&mut program);
    assert!(program.wait().unwrap().success());
    sandbox.wait_for_helpers();
}
