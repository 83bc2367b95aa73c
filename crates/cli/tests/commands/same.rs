//! Programs and surroundings of every odd kind: started by `prepage run`, observed and known, they print, exit, and have the
//! signals and descriptors that they have without.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::support::place::{LOOK, Place, seen};
use crate::support::{can_learn, is_root, text};
use prepage_core::profile::{History, Profile};
use prepage_profiles::{Layer, ProgramKey, Stores};
use prepage_testing::{Need, copy_program, has, write_program};

fn built(place: &Place, compiler: &[&str], name: &str, source: &str) -> Option<String> {
    if !has(Need::Tool(compiler[0].into())) {
        return None;
    }
    let (from, to) = (place.sandbox.path().join(format!("{name}.c")), place.sandbox.path().join(name));
    fs::write(&from, source).unwrap();
    let status =
        Command::new(compiler[0]).args(&compiler[1..]).arg(&from).arg("-o").arg(&to).status().unwrap();
    assert!(status.success(), "{compiler:?}");
    Some(to.to_str().unwrap().into())
}

/// Refuses system calls by a filter, as containers do.
fn denying(calls: &[&str]) -> Option<Place> {
    let place = Place::new();
    let deny = denier(&place)?;
    let prefix = [&[deny.as_str()], calls, &["--"]].concat();
    Some(place.behind(&prefix))
}

fn denier(place: &Place) -> Option<String> {
    let deny = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/deny.c");
    built(place, &["cc"], "deny", &fs::read_to_string(deny).unwrap())
}

#[test]
fn a_program_finds_its_world_as_it_is() {
    let place = Place::new();
    place.same(&["/usr/bin/python3", "-c", LOOK]);
    // With what it may have been given.
    let given =
        "ulimit -n 64; umask 027; trap '' HUP USR1; exec 7</etc/hostname; cd /tmp; export LD_AUDIT= X='a\nb'";
    Place::new().after(given).same(&["/usr/bin/python3", "-c", LOOK]);
}

#[test]
fn programs_end_as_they_end() {
    let place = Place::new();
    for script in
        ["exit 3", "kill -TERM $$", "kill -SEGV $$", "kill -KILL $$", "echo out; echo err >&2; false"]
    {
        place.same(&["sh", "-c", script]);
    }
}

/// What cannot be seen without a system call, as `run -v` says it. Without ptrace the agent goes in all the same, and without perf page
/// tables tell.
const NOT_SEEN_WITHOUT: [(&str, &str); 2] = [
    ("userfaultfd", "programs whose pages are seen with their neighbours only"),
    ("perf_event_open", "the order of pages, and those touched last: perf_event_open is not available"),
];

#[test]
fn where_the_kernel_refuses_to_show_anything() {
    for calls in [
        &["userfaultfd"][..],
        &["perf_event_open"],
        &["ptrace"],
        &["perf_event_open", "userfaultfd"],
        &["perf_event_open", "ptrace", "userfaultfd"],
    ] {
        let Some(place) = denying(calls) else { return };
        place.same(&["/usr/bin/python3", "-c", LOOK]);
        place.same(&["sh", "-c", "cat /etc/hostname; ls /usr/lib | wc -l; exit 5"]);
        let is_told = |told: &str, what: &str| {
            told.split_once("not seen: ").is_some_and(|(_, unseen)| unseen.contains(what))
        };
        // With very many CPUs perf is not asked.
        let is_not_asked = |told: &str, call: &str| {
            call == "perf_event_open" && told.contains("would pay for it with each CPU")
        };
        let refused = NOT_SEEN_WITHOUT.iter().filter(|(call, _)| calls.contains(call));
        let is_all_told = |told: &String| {
            refused.clone().all(|(call, what)| is_told(told, what) || is_not_asked(told, call))
        };
        let mut tries = (0..5).map(|_| {
            // A known start is not observed.
            let _ = fs::remove_dir_all(place.sandbox.store());
            // Longer than it takes to find out that perf is refused, unless who does gets no processor.
            let told = place.said(&["sh", "-c", "ls /; sleep 1"]);
            eprintln!("{calls:?}: {told}");
            place.sandbox.wait_for_helpers();
            told
        });
        let told = tries.find(is_all_told).expect("what is refused is told");
        // Others may be refused the call without a filter.
        if is_root() && can_learn(&place.sandbox) {
            let mut allowed = NOT_SEEN_WITHOUT.iter().filter(|(call, _)| !calls.contains(call));
            assert!(!allowed.any(|(_, what)| is_told(&told, what)), "{calls:?}: {told}");
        }
    }
}

/// Kills who makes a system call, by a filter, as units do that list what their program calls (SystemCallFilter= of systemd.exec(5)). Children's ends are
/// kept from the process, or not.
fn killing(call: i64, children: &str) -> Option<Place> {
    let place = Place::new();
    let kill = killer(&place)?;
    Some(place.behind(&[&kill, children, &call.to_string()]))
}

fn killer(place: &Place) -> Option<String> {
    let source = "#include <linux/filter.h>\n#include <linux/seccomp.h>\n#include <signal.h>\n#include <stdlib.h>\n\
        #include <sys/prctl.h>\n#include <unistd.h>\n\
        int main(int argc, char **argv) {\n\
        struct sock_filter filter[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),\n\
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, atoi(argv[2]), 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),\n\
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};\n\
        struct sock_fprog program = {4, filter};\n\
        signal(SIGCHLD, argv[1][0] == 'i' ? SIG_IGN : SIG_DFL);\n\
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 125;\n\
        execvp(argv[3], argv + 3);\n\
        return 125;\n}\n";
    built(place, &["cc"], "kill", source)
}

/// A probe that is killed, in a process whose children's ends are kept from it.
#[test]
fn where_a_filter_kills_who_asks() {
    for children in ["ignored", "default"] {
        let Some(place) = killing(libc::SYS_userfaultfd, children) else { return };
        place.same(&["/bin/true"]);
        place.same(&["/usr/bin/python3", "-c", LOOK]);
    }
}

/// What the starter calls before it is the program, and the program does not. On x86-64 prctl(2) tells whether there is a filter: those that kill for that
/// kill the start.
const STARTERS: &[(&str, i64)] = &[
    // Not yet in the crate libc for each C library.
    ("cachestat", 451),
    ("mincore", libc::SYS_mincore),
    ("openat2", libc::SYS_openat2),
    ("preadv2", libc::SYS_preadv2),
    ("fadvise64", libc::SYS_fadvise64),
    ("statx", libc::SYS_statx),
    ("faccessat2", libc::SYS_faccessat2),
    ("pipe2", libc::SYS_pipe2),
    #[cfg(not(target_arch = "x86_64"))]
    ("prctl", libc::SYS_prctl),
    #[cfg(target_arch = "x86_64")]
    ("readlink", libc::SYS_readlink),
    #[cfg(not(target_arch = "x86_64"))]
    ("readlinkat", libc::SYS_readlinkat),
    ("pidfd_open", libc::SYS_pidfd_open),
    ("close_range", libc::SYS_close_range),
];

#[test]
fn where_a_filter_kills_starters() {
    for &(name, call) in STARTERS {
        let Some(place) = killing(call, "default") else { return };
        place.same(&["/bin/true"]);
        place.same(&["true"]);
        let told = place.said(&["true"]);
        assert!(told.contains("a seccomp filter kills"), "{name}: {told}");
        assert!(place.sandbox.profiles().is_empty(), "{name}");
    }
}

/// The call that tells of filters may be refused itself.
#[test]
fn where_a_filter_that_kills_is_not_told_of() {
    let place = Place::new();
    let (Some(kill), Some(deny)) = (killer(&place), denier(&place)) else { return };
    let place = place.behind(&[&kill, "default", "451", &deny, "prctl", "--"]);
    place.same(&["/bin/true"]);
    let told = place.said(&["true"]);
    assert!(told.contains("a seccomp filter kills"), "{told}");
}

#[test]
fn enabled_programs_start_where_a_filter_kills_starters() {
    for &(name, call) in STARTERS {
        let Some(place) = killing(call, "default") else { return };
        let directory = |name: &str| {
            let path = place.sandbox.path().join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let [links, more_links, wrappers, others] =
            ["links", "more-links", "wrappers", "others"].map(directory);
        for links in [&links, &more_links] {
            std::os::unix::fs::symlink(&place.prepage, links.join("echo")).unwrap();
            std::os::unix::fs::symlink(&place.prepage, links.join("no-such-program")).unwrap();
        }
        // As ccache does, which finds the next of its name in PATH that is not ccache itself.
        let wrapper = wrappers.join("echo");
        let next = links.join("echo");
        write_program(&wrapper, format!("#!/bin/sh\nexec '{}' wrapped \"$@\"\n", next.display()));
        // It may not be executed.
        fs::write(others.join("echo"), "").unwrap();
        let output = |places: &[&Path], words: &[&str]| {
            let path = std::env::join_paths(places.iter().chain(&[Path::new("/usr/bin"), Path::new("/bin")]));
            let path = format!("PATH={}", path.unwrap().to_str().unwrap());
            // In time, or in a circle.
            let timed = ["timeout", "-s", "KILL", "60", "env", &path];
            seen(&place.output(&[&timed[..], words].concat()))
        };
        let ended = |code, out: &str, err: &str| (Some(code), None, out.to_owned(), err.to_owned());
        for places in [&[&*links, &more_links][..], &[&links], &[&links, &others]] {
            assert_eq!(output(places, &["echo", "a"]), ended(0, "a\n", ""), "{name} {places:?}");
        }
        let started = output(&[&links, &wrappers], &["echo", "a"]);
        assert_eq!(started, ended(0, "wrapped a\n", ""), "{name}");
        let by_path = links.join("echo");
        let started = output(&[&links], &[by_path.to_str().unwrap(), "a"]);
        assert_eq!(started, ended(0, "a\n", ""), "{name}");
        let (code, _, _, said) = output(&[&links], &["no-such-program"]);
        assert_eq!(code, Some(127), "{name}: {said}");
    }
}

/// The first child of who has asked for a new namespace of processes is process 1 there, and no more can be started once it has
/// ended: it is the program's.
#[test]
fn who_has_asked_for_a_new_namespace_of_processes_starts_its_first() {
    let place = Place::new();
    if !has(Need::Mounts) {
        return;
    }
    let place = place.behind(&["unshare", "-p"]);
    place.same(&["sh", "-c", "sleep 0.2 & wait; echo done"]);
    place.same(&["sh", "-c", "sh -c 'sh -c \"echo \\$\\$\"; true'"]);
    let told = place.said(&["true"]);
    assert!(told.contains("another namespace of processes"), "{told}");
}

#[test]
fn static_programs() {
    let source = "#include <stdio.h>\n#include <unistd.h>\nint main(int c, char **v, char **e) { while (*e) puts(*e++); return 5; }\n";
    for compiler in
        [&["gcc", "-static"][..], &["musl-gcc", "-static"], &["musl-gcc"], &["gcc", "-static-pie"]]
    {
        let place = Place::new();
        if let Some(program) = built(&place, compiler, "program", source) {
            place.same(&[&program]);
            place.same(&["sh", "-c", &format!("{program}; {program}; exit 4")]);
        }
    }
}

/// Visited at its exec by the thread that looks at its page tables.
#[test]
fn a_static_program_is_learned_where_perf_is_forbidden() {
    let Some(place) = denying(&["perf_event_open"]) else { return };
    // One that ends within a millisecond of its visit may be gone before anybody looks (ADR 9).
    let source = "#include <unistd.h>\nint main(void) { usleep(300000); return 5; }\n";
    let Some(program) = built(&place, &["gcc", "-static"], "program", source) else { return };
    let learn = ["timeout", "-s", "KILL", "60", env!("CARGO_BIN_EXE_prepage"), "learn", "--", &program];
    // On a busy machine who looks may get no processor while it runs: nothing could be learned then.
    let is_learned = |_| {
        let learned = place.output(&learn);
        let said = text(&learned.stderr);
        eprintln!("{said}");
        assert!(learned.status.code() == Some(5) || said.contains("nothing could be learned"));
        said.contains("learned program")
    };
    assert!((0..5).any(is_learned));
}

/// A static one that lies in memory: it uses nothing of a disk, and what it looks up nobody tells.
#[test]
fn a_program_of_which_nothing_is_seen_is_not_learned() {
    let Some(place) = denying(&["perf_event_open", "ptrace", "userfaultfd"]) else { return };
    let Some(program) = built(&place, &["gcc", "-static"], "program", "int main(void) { return 0; }\n")
    else {
        return;
    };
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let in_memory = memory.path().join("program");
    copy_program(program, &in_memory);
    let in_memory = in_memory.to_str().unwrap();
    let learned = place.output(&[env!("CARGO_BIN_EXE_prepage"), "learn", "-q", "--", in_memory]);
    let said = text(&learned.stderr);
    assert_eq!(learned.status.code(), Some(125), "{said}");
    assert!(said.contains("nothing could be learned of program\nprepage: not seen: "), "{said}");
    assert!(place.sandbox.profiles().is_empty());
}

#[test]
fn a_go_program() {
    let place = Place::new();
    if !has(Need::Tool("go".into())) {
        return;
    }
    let source = place.sandbox.path().join("main.go");
    // What it imports is compiled with it: without fmt and os, in two thirds of the time.
    let text = r#"package main
import "syscall"
func main() {
    file, _ := syscall.Open("/etc/hostname", syscall.O_RDONLY, 0)
    bytes := make([]byte, 4096)
    length, _ := syscall.Read(file, bytes)
    syscall.Write(1, bytes[:length])
    syscall.Exit(6)
}
"#;
    fs::write(&source, text).unwrap();
    let program = place.sandbox.path().join("program");
    let cache = place.sandbox.path().join("cache");
    let mut build = Command::new("go");
    // Go's runtime is compiled too: without optimization, in three quarters of the time.
    build.args(["build", "-gcflags=all=-N -l", "-o"]).arg(&program).arg(&source);
    build.env("GOCACHE", cache).env("GOFLAGS", "-mod=mod");
    assert!(build.status().unwrap().success());
    place.same(&[program.to_str().unwrap()]);
}

#[test]
fn debuggers_and_tracers_as_the_program() {
    let place = Place::new();
    if has(Need::Tool("gdb".into())) {
        let quit = "quit $_exitcode";
        place.same(&[
            "gdb",
            "-nx",
            "-batch",
            "-ex",
            "run",
            "-ex",
            quit,
            "--args",
            "/bin/sh",
            "-c",
            "echo in; exit 11",
        ]);
    }
    if has(Need::Tool("strace".into())) {
        place.same(&[
            "strace",
            "-f",
            "-qq",
            "-e",
            "trace=execve,exit_group",
            "-o",
            "/dev/null",
            "sh",
            "-c",
            "/bin/true; exit 10",
        ]);
        // The calls themselves are those that the program makes.
        let of_true = [
            "strace",
            "-qq",
            "-e",
            "trace=!brk,mmap,munmap",
            "-e",
            "abbrev=all",
            "-o",
            "|cut -d'(' -f1",
            "/bin/true",
        ];
        place.same(&of_true);
    }
}

#[test]
fn hundreds_of_execs_closed_descriptors_and_an_empty_environment() {
    let place = Place::new();
    place.same(&["sh", "-c", "for i in $(seq 300); do /bin/true || exit 1; done; echo done; exit 4"]);
    let close = "import os, sys\n\
        os.write(1, b'before')\n\
        os.closerange(0, 4096)\n\
        import json, email, decimal\n\
        fd = os.open('/', os.O_RDONLY)\n\
        os._exit(fd * 8 + len(os.listdir('/proc/self/fd')))\n";
    place.same(&["/usr/bin/python3", "-c", close]);
    place.same(&["/usr/bin/env", "-i", "/bin/sh", "-c", "/usr/bin/env; exit 6"]);
    let clear = "import os, ctypes\n\
        ctypes.CDLL(None).clearenv()\n\
        os.execve('/usr/bin/env', ['env'], {})\n";
    place.same(&["/usr/bin/python3", "-c", clear]);
    // Every descriptor is taken.
    let all = "import os, resource\n\
        resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))\n\
        fds = []\n\
        try:\n\
        \x20   while True: fds.append(os.open('/', os.O_RDONLY))\n\
        except OSError as error: print(len(fds), error.errno)\n";
    place.same(&["/usr/bin/python3", "-c", all]);
}

#[test]
fn what_outlives_its_start() {
    let place = Place::new();
    // Its own output comes after a quiet second, and that of what it left behind, too.
    place.same(&["sh", "-c", "echo first; sleep 1.5; echo later; exit 2"]);
    place.same(&["sh", "-c", "(sleep 1.3; echo orphan) & echo parent; exit 9"]);
}

#[test]
fn signals_that_come_all_the_time() {
    let ticks = "import signal, sys, time\n\
        count = 0\n\
        def tick(*_):\n\
        \x20   global count\n\
        \x20   count += 1\n\
        signal.signal(signal.SIGALRM, tick)\n\
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)\n\
        import json, email, decimal, http.client\n\
        while count < 50: time.sleep(0.001)\n\
        print('all', flush=True)\n\
        raise SystemExit(8)\n";
    Place::new().same(&["/usr/bin/python3", "-c", ticks]);
}

#[test]
fn rights_of_programs_in_the_tree_stay_theirs() {
    let place = Place::new();
    if !is_root() {
        return;
    }
    // Where nobody may reach it; in a directory of the build tree they may not.
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let id = directory.path().join("id");
    copy_program("/usr/bin/id", &id);
    fs::set_permissions(&id, fs::Permissions::from_mode(0o4755)).unwrap();
    let own = directory.path().join("own");
    for binary in ["prepage", "prepage-tools"] {
        let built = Path::new(env!("CARGO_BIN_EXE_prepage")).with_file_name(binary);
        copy_program(built, directory.path().join(binary));
    }
    fs::copy(crate::support::agent(), directory.path().join("libprepage-agent.so")).unwrap();
    fs::create_dir(&own).unwrap();
    std::os::unix::fs::chown(&own, Some(65534), Some(65534)).unwrap();
    fs::set_permissions(&own, fs::Permissions::from_mode(0o700)).unwrap();
    let id = id.to_str().unwrap();
    let as_nobody = |words: &[&str]| {
        let mut command = Command::new(words[0]);
        command
            .args(&words[1..])
            .env("PREPAGE_STORE", own.join("store"))
            .uid(65534)
            .gid(65534)
            .current_dir("/");
        command.output().unwrap()
    };
    let prepage = directory.path().join("prepage");
    for program in [vec![id], vec!["sh", "-c", "\"$0\"; \"$0\" -u; exit 3", id]] {
        let plain = as_nobody(&program);
        assert!(text(&plain.stdout).contains("euid=0"), "{}", text(&plain.stdout));
        for start in 0..3 {
            let started = as_nobody(&[&[prepage.to_str().unwrap(), "run", "--"], &program[..]].concat());
            assert_eq!(seen(&started), seen(&plain), "start {start} of {program:?}");
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    }
    drop(place);
}

#[test]
fn places_that_cannot_be_written_or_executed() {
    if !has(Need::Root) || !has(Need::Mounts) {
        return;
    }
    let look = ["/usr/bin/python3", "-c", LOOK];
    let place = Place::new();
    let temporary = place.sandbox.path().join("temporary");
    fs::create_dir(&temporary).unwrap();
    let noexec = format!("mount -t tmpfs -o noexec none '{0}'; export TMPDIR='{0}'", temporary.display());
    place.behind(&["unshare", "-m", "sh", "-c", &format!("{noexec}; exec \"$@\""), "sh"]).same(&look);
    let place = Place::new();
    fs::create_dir(place.sandbox.store()).unwrap();
    let read_only = format!("mount -t tmpfs -o ro,mode=700 none '{}'", place.sandbox.store().display());
    let place = place.behind(&["unshare", "-m", "sh", "-c", &format!("{read_only}; exec \"$@\""), "sh"]);
    place.same(&look);
    assert!(place.said(&look).contains("not learning"), "{}", place.said(&look));
    let place = Place::new();
    fs::create_dir(place.sandbox.store()).unwrap();
    let full = format!("mount -t tmpfs -o size=64k,mode=700 none '{}'", place.sandbox.store().display());
    let place = place.behind(&["unshare", "-m", "sh", "-c", &format!("{full}; exec \"$@\""), "sh"]);
    place.same(&look);
    assert!(place.said(&look).contains("not learning"), "{}", place.said(&look));
}

/// It has room, and takes nothing: as with a quota, or a lock that the file system does not know.
#[test]
fn a_store_that_cannot_be_written_has_no_start_observed_for_ever() {
    let limited = Place::new().after("ulimit -f 0");
    for _start in 0..2 {
        let told = limited.said(&["true"]);
        assert!(told.contains("not learning: ") && !told.contains("learning from this start"), "{told}");
        limited.sandbox.wait_for_helpers();
    }
    if !can_learn(&limited.sandbox) {
        return;
    }
    // Nor where a known one is to be observed again.
    let known = limited.behind(&[]);
    known.said(&["true"]);
    known.sandbox.wait_for_profile();
    let key = ProgramKey::of(&["true".into()]).unwrap();
    let due = |profile: Option<Profile>| {
        profile.map(|profile| Profile { history: History { due: 1, ..profile.history }, ..profile })
    };
    Stores::at(known.sandbox.store()).update(&key, Layer::User, due).unwrap();
    let limited = known.after("ulimit -f 0");
    for _start in 0..2 {
        let told = limited.said(&["true"]);
        assert!(told.contains("not learning: "), "{told}");
        limited.sandbox.wait_for_helpers();
    }
}

#[test]
fn as_the_first_process_of_a_container() {
    let place = Place::new();
    if !has(Need::Mounts) || !can_learn(&place.sandbox) {
        return;
    }
    let place = place.behind(&["unshare", "-pf", "--kill-child", "--mount-proc"]);
    // It sees what runs beside among its children, and may not meet it where it waits for one.
    let look: String =
        LOOK.lines().filter(|line| !line.contains("children")).map(|line| format!("{line}\n")).collect();
    place.same(&["/usr/bin/python3", "-c", &look]);
    let wait_for_all = "import os\n\
        pid = os.fork() or os._exit(7)\n\
        print(os.wait()[1])\n\
        try: os.wait()\n\
        except ChildProcessError: print('no child')\n";
    place.same(&["/usr/bin/python3", "-c", wait_for_all]);
    // Nor hear of its end, once the start is over.
    let sleep = "import signal, time\n\
        ended = []\n\
        signal.signal(signal.SIGCHLD, lambda *_: ended.append(1))\n\
        time.sleep(2.5)\n\
        print(ended)\n";
    place.same(&["/usr/bin/python3", "-c", sleep]);
}
