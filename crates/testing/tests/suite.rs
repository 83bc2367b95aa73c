//! The program `suite` fails on all but tests that fail among others alone.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

fn script(path: &Path, text: &str) {
    let written = path.with_extension("text");
    fs::write(&written, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&written, fs::Permissions::from_mode(0o755)).unwrap();
    // By a process of its own: what this one has open to write, a child of another test's has open too, and nobody can execute it.
    assert!(Command::new("cp").args([&written, path]).status().unwrap().success());
}

/// Runs `suite` with a cargo that compiles `programs` of tests, each a package (its library's tests, or those of the target named after it) and
/// what the program does in an empty directory; that finds
/// no example in documentation; and that does `alone` when it is to run tests once more, for the `$runs`-th time.
fn suite(programs: &[(&str, &str)], alone: &str) -> Output {
    suite_beside(programs, alone, &[])
}

/// The same, with these arguments.
fn suite_beside(programs: &[(&str, &str)], alone: &str, arguments: &[&str]) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().display();
    let mut messages = String::new();
    for (number, (package, does)) in programs.iter().enumerate() {
        let path = directory.path().join(format!("program-{number}"));
        script(&path, does);
        let (package, kind, name) = match package.split_once(' ') {
            Some((package, name)) => (package, "test", name),
            None => (*package, "lib", "vm"),
        };
        messages += &format!(
            "{{\"reason\":\"compiler-artifact\",\"package_id\":\"path+file:///w#{package}@0.1.0\",\
             \"manifest_path\":\"{place}/Cargo.toml\",\"target\":{{\"kind\":[\"{kind}\"],\"name\":\"{name}\",\
             \"src_path\":\"{place}/src/lib.rs\"}},\"profile\":{{\"test\":true}},\"executable\":\"{}\"}}\n",
            path.display()
        );
    }
    let cargo = directory.path().join("cargo");
    fs::write(directory.path().join("messages"), messages).unwrap();
    let does = format!(
        "case \"$*\" in\n*--no-run*) cat {place}/messages ;;\n*--doc*) ;;\n*) echo run >>{place}/runs\n\
         runs=$(wc -l <{place}/runs)\n{alone}\nesac"
    );
    script(&cargo, &does);
    let mut suite = Command::new(env!("CARGO_BIN_EXE_suite"));
    suite.args(arguments).env("CARGO", cargo).env("PREPAGE_SUITE_SILENCE_S", "20").output().unwrap()
}

const ONE_FAILS: &str = "cat <<'.'
test one ... FAILED

failures:
    one

test result: FAILED. 7 passed; 1 failed; 0 ignored
.";
const VM: &str = "prepage-vm";
const PASSES: &str = "echo 'test one ... ok'; echo 'test result: ok. 1 passed; 0 failed'";

#[test]
fn what_passes_alone_each_time_is_listed() {
    let output = suite(&[(VM, &format!("{ONE_FAILS}\nexit 101")), (VM, PASSES)], PASSES);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success()
            && said.contains("unsteady tests: 1\n  -p prepage-vm --lib: one (passed alone: 8)\n"),
        "{said}"
    );
}

#[test]
fn what_fails_alone_now_and_then_fails_the_run() {
    let fails = format!("{ONE_FAILS}\nexit 101");
    let sometimes = format!("{PASSES}; [ $runs -lt 4 ]");
    assert_eq!(suite(&[(VM, &fails)], &sometimes).status.code(), Some(1));
    let runs_nothing = "echo 'test result: ok. 0 passed; 0 failed'";
    assert_eq!(suite(&[(VM, &fails)], runs_nothing).status.code(), Some(1));
}

#[test]
fn what_a_signal_ended_or_what_does_not_say_which_tests_failed_fails_the_run() {
    for ends in ["kill -SEGV $$", "exit 1"] {
        let fails = format!("{ONE_FAILS}\n{ends}");
        assert_eq!(suite(&[(VM, PASSES), (VM, &fails)], PASSES).status.code(), Some(1), "{ends}");
    }
    assert_eq!(suite(&[(VM, "exit 101")], PASSES).status.code(), Some(1));
}

#[test]
fn no_test_at_all_fails_the_run() {
    assert_eq!(suite(&[], PASSES).status.code(), Some(1));
}

#[test]
fn what_keeps_to_itself_runs_beside_what_looks_at_the_machine() {
    let meets = |own: &str, other: &str| {
        format!(
            ">{own}; until [ -e {other} ]; do [ $((waited += 1)) -lt 200 ] || exit 1; sleep 0.05; done; {PASSES}"
        )
    };
    let [first, second] = [meets("a", "b"), meets("b", "a")];
    assert!(suite(&[(VM, &first), ("prepage", &second)], PASSES).status.success());
    let in_turn = "[ ! -e busy ] || exit 1; >busy; sleep 0.2; rm busy";
    let [first, second] = [format!("{in_turn}; {PASSES}"), format!("{in_turn}; {PASSES}")];
    assert!(suite(&[("prepage", &first), ("prepage-service", &second)], PASSES).status.success());
}

#[test]
fn what_hangs_is_ended_and_fails_the_run() {
    // Another process of the test's holds the pipe.
    let output = suite(&[(VM, "echo begun; sleep 1000 & wait")], PASSES);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("nothing was said for 20 s") && said.contains("sleep ("), "{said}");
}

#[test]
fn what_a_test_leaves_behind_is_not_waited_for() {
    let began = std::time::Instant::now();
    assert!(suite(&[(VM, &format!("{PASSES}; sleep 30 &"))], PASSES).status.success());
    assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
}

#[test]
fn of_what_runs_beside_enough_tests_have_to_pass() {
    for (beside, code) in [
        ("1 echo test result: ok. 1 passed; 0 failed", 0),
        ("2 echo test result: ok. 1 passed; 0 failed", 1),
        ("0 false", 1),
        ("echo test result: ok. 1 passed", 1),
        ("1", 1),
    ] {
        let output = suite_beside(&[(VM, PASSES)], PASSES, &["--beside", beside]);
        assert_eq!(output.status.code(), Some(code), "{beside}: {output:?}");
    }
}

#[test]
fn what_has_to_run_alone_waits_for_all_others() {
    let slow = format!("sleep 1; >done; {PASSES}");
    let last = format!("[ -e done ] || exit 1; {PASSES}");
    let programs = [(VM, slow.as_str()), ("prepage-service disturbances", last.as_str())];
    assert!(suite(&programs, PASSES).status.success());
}
