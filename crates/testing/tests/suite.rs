//! The program `suite` fails on all but tests that fail among others alone.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

/// What runs first, and what all runs after that do.
fn suite(first: &str, alone: &str) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let cargo = directory.path().join("cargo");
    let runs = directory.path().join("runs");
    let script = format!(
        "#!/bin/sh\necho run >>{0}\nruns=$(wc -l <{0})\nif [ $runs = 1 ]; then\n{first}\nelse\n{alone}\nfi\n",
        runs.display()
    );
    fs::write(&cargo, script).unwrap();
    fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).unwrap();
    let mut suite = Command::new(env!("CARGO_BIN_EXE_suite"));
    suite.env("CARGO", cargo).env("PREPAGE_SUITE_SILENCE_S", "2").output().unwrap()
}

const ONE_FAILS: &str = "cat <<'.'
     Running unittests src/lib.rs (vm-1)
test one ... FAILED

failures:
    one

test result: FAILED. 7 passed; 1 failed; 0 ignored
error: test failed, to rerun pass `-p prepage-vm --lib`
.";
const ENDS: &str = "echo 'error: 1 target failed:'; exit 101";
const PASSES: &str = "echo 'test one ... ok'; echo 'test result: ok. 1 passed; 0 failed'";

#[test]
fn what_passes_alone_each_time_is_listed() {
    let output = suite(&format!("{ONE_FAILS}\n{ENDS}"), PASSES);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success() && said.contains("unsteady tests: 1\n  -p prepage-vm --lib: one\n"),
        "{said}"
    );
}

#[test]
fn what_fails_alone_now_and_then_fails_the_run() {
    let sometimes = format!("{PASSES}; [ $runs -lt 5 ]");
    assert_eq!(suite(&format!("{ONE_FAILS}\n{ENDS}"), &sometimes).status.code(), Some(1));
    let runs_nothing = "echo 'test result: ok. 0 passed; 0 failed'";
    assert_eq!(suite(&format!("{ONE_FAILS}\n{ENDS}"), runs_nothing).status.code(), Some(1));
}

#[test]
fn what_a_signal_ended_fails_the_run() {
    const CRASHED: &str = "echo \"  process didn't exit successfully: vm-1 (signal: 11, SIGSEGV)\"";
    assert_eq!(suite(&format!("{ONE_FAILS}\n{CRASHED}\n{ENDS}"), PASSES).status.code(), Some(1));
}

#[test]
fn what_hangs_is_ended_and_fails_the_run() {
    // Another process of the test's, which holds the pipe.
    let output = suite("echo begun; sleep 1000 & wait", PASSES);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("nothing was said for 2 s") && said.contains("sleep ("), "{said}");
}
