//! A script has one profile, whoever starts it and however: that of what its process becomes (crates/profiles).

use std::fs;
use std::os::unix::fs::symlink;

use prepage_profiles::ProgramKey;
use prepage_testing::{Need, copy_program, has, write_program};

use crate::support::{Sandbox, can_learn, text};

/// A script in the sandbox, by its path.
fn script(sandbox: &Sandbox, name: &str, first_line: &str) -> String {
    let path = sandbox.path().join(name);
    write_program(&path, format!("{first_line}\nread line </etc/passwd\n"));
    path.to_str().unwrap().to_owned()
}

/// What `run -v` says of a start.
fn said(sandbox: &Sandbox, command: &[&str]) -> String {
    let start = || sandbox.output(&[&["run", "-v", "--no-hold-out", "--"], command].concat());
    let said = text(&sandbox.in_time(start).stderr);
    sandbox.wait_for_helpers();
    said
}

#[test]
fn what_run_learns_of_a_script_is_found_by_whoever_sees_its_process() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) {
        return;
    }
    let tool = script(&sandbox, "tool", "#!/usr/bin/env sh");
    let first = said(&sandbox, &[&tool, "x"]);
    assert!(first.contains("no profile of sh tool@"), "{first}");
    sandbox.wait_for_profile();
    // A service sees `sh TOOL x`.
    let seen = ProgramKey::of(&["sh", &tool, "x"].map(Into::into)).unwrap();
    assert_eq!(sandbox.profiles(), [sandbox.store().join(seen.file_name())]);
    for command in [&[&*tool][..], &["sh", &tool], &["nice", &tool]] {
        let shown = text(&sandbox.output(&[&["profile", "show", "--"], command].concat()).stdout);
        assert_eq!(shown.lines().next(), Some(&*seen.role), "{command:?}");
    }
    let again = said(&sandbox, &[&tool]);
    assert!(!again.contains("no profile"), "{again}");
    let links = sandbox.path().join("links");
    fs::create_dir(&links).unwrap();
    symlink(env!("CARGO_BIN_EXE_prepage"), links.join("tool")).unwrap();
    let path = format!("{}:{}:/usr/bin:/bin", links.display(), sandbox.path().display());
    assert!(sandbox.command("/bin/sh", &["-c", "tool"]).env("PATH", path).status().unwrap().success());
    sandbox.wait_for_helpers();
    assert_eq!(sandbox.profiles().len(), 1, "{:?}", sandbox.profiles());
    assert!(sandbox.output(&["profile", "rm", "tool"]).status.success());
    assert!(sandbox.profiles().is_empty());
}

#[test]
fn what_a_service_has_learned_of_a_script_is_used_by_run() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) {
        return;
    }
    let [one, other] = ["one", "other"].map(|name| script(&sandbox, name, "#!/bin/sh -e"));
    // As it sees a start of the script.
    assert!(sandbox.output(&["learn", "-q", "--", "/bin/sh", "-e", &one]).status.success());
    let said_of = [&one, &other].map(|script| said(&sandbox, &[script]));
    assert!(!said_of[0].contains("no profile"), "{}", said_of[0]);
    assert!(said_of[1].contains("no profile of sh -e other@"), "{}", said_of[1]);
    sandbox.wait_for_profile();
    assert_eq!(sandbox.profiles().len(), 2);
}

/// What runs a script is what is excluded, as where a service sees it.
#[test]
fn a_script_of_an_excluded_interpreter_is_left_alone() {
    let sandbox = Sandbox::new();
    let tool = script(&sandbox, "tool", "#!/bin/sh");
    fs::create_dir_all(sandbox.path().join("prepage")).unwrap();
    fs::write(sandbox.path().join("prepage/config"), "exclude = sh\n").unwrap();
    let mut run = sandbox.prepage(&["run", "-v", "--", &tool]);
    run.env("XDG_CONFIG_HOME", sandbox.path());
    let output = sandbox.in_time(|| run.output().unwrap());
    assert!(text(&output.stderr).contains("excluded by the configuration"), "{}", text(&output.stderr));
}

/// From a cold disk it would be waited for.
#[test]
fn a_start_of_a_known_program_takes_no_look_into_its_file() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) || !has(Need::Tool("strace".into())) {
        return;
    }
    let tool = script(&sandbox, "tool", "#!/bin/sh");
    let log = sandbox.path().join("calls");
    let looks = |command: &[&str]| {
        let traced = ["-f", "-qq", "-e", "trace=read,preadv2", "-o", log.to_str().unwrap()];
        let run = [env!("CARGO_BIN_EXE_prepage"), "run", "-v", "--no-learn", "--"];
        assert!(
            sandbox.command("strace", &[&traced[..], &run, command].concat()).status().unwrap().success()
        );
        sandbox.wait_for_helpers();
        let calls = fs::read_to_string(&log).unwrap();
        calls.lines().filter(|call| call.contains(", 256) = ") || call.contains("iov_len=256")).count()
    };
    for command in [&["cat", "/etc/hostname"][..], &[&*tool]] {
        assert!(sandbox.output(&[&["learn", "-q", "--"], command].concat()).status.success());
    }
    assert_eq!(looks(&["cat", "/etc/hostname"]), 0);
    assert_eq!(looks(&[&*tool]), 2, "into the script and into what runs it");
}

/// As pyenv's: what stands there runs what is given to it, which is looked for from where it was called.
#[test]
fn what_stands_in_front_of_an_interpreter_has_a_profile_for_each_script() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) {
        return;
    }
    let shim = script(&sandbox, "python3", "#!/bin/sh\nexec /bin/sh \"$@\"");
    let tool = script(&sandbox, "tool.py", "# text");
    let from_there = |arguments: &[&str]| {
        let mut command = sandbox.prepage(&[arguments, &["--", &shim, "tool.py"]].concat());
        command.current_dir(sandbox.path()).output().unwrap()
    };
    assert!(text(&sandbox.in_time(|| from_there(&["run", "-v"])).stderr).contains("no profile"));
    sandbox.wait_for_profile();
    let seen = ProgramKey::of(&["sh", &shim, &tool].map(Into::into)).unwrap();
    assert_eq!(text(&from_there(&["profile", "show"]).stdout).lines().next(), Some(&*seen.role));
    assert_eq!(sandbox.profiles(), [sandbox.store().join(seen.file_name())]);
}

/// By whatever name: what was learned of the file that stood there is not used for what stands there now.
#[test]
fn a_script_in_the_place_of_a_program_is_known_for_one_and_the_reverse() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) {
        return;
    }
    let at = |name: &str| sandbox.path().join(name).to_str().unwrap().to_owned();
    let program = |name: &str| {
        let _ = fs::remove_file(at(name));
        copy_program("/bin/cat", at(name));
    };
    program("tool");
    let other = script(&sandbox, "other", "#!/bin/sh");
    for command in [&[&*at("tool"), "/etc/hostname"][..], &[&*other]] {
        assert!(sandbox.output(&[&["learn", "-q", "--"], command].concat()).status.success());
    }
    assert_eq!(sandbox.profiles().len(), 2);
    program("other");
    fs::remove_file(at("tool")).unwrap();
    let tool = script(&sandbox, "tool", "#!/bin/sh");
    let replaced = said(&sandbox, &[&other, "/etc/hostname"]);
    assert!(replaced.contains("no profile of other yet"), "{replaced}");
    let replaced = said(&sandbox, &[&tool]);
    assert!(replaced.contains("no profile of sh tool@"), "{replaced}");
    // What is new in both is learned, each in its place.
    let learned = [&tool, &other].map(|path| ProgramKey::of(&[path.into()]).unwrap().file_name());
    sandbox.wait_for_profile();
    assert!(learned.iter().all(|name| sandbox.store().join(name).exists()), "{:?}", sandbox.profiles());
    let again = said(&sandbox, &[&tool]);
    assert!(!again.contains("no profile"), "{again}");
}
