//! The program `skips` fails on a skip that the machine allows, and only on one.

use std::process::{Command, Output};

use prepage_testing::{Need, Skipped};

/// Runs `skips` on a log of one test for each need.
fn skips(needs: &[Need]) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("skips");
    let lines = needs.iter().map(|need| {
        let [test, location, found] = ["a_test", "tests/a.rs:1", "it said so"].map(String::from);
        serde_json::to_string(&Skipped { need: need.clone(), test, location, found }).unwrap() + "\n"
    });
    std::fs::write(&log, lines.collect::<String>()).unwrap();
    Command::new(env!("CARGO_BIN_EXE_skips")).env("PREPAGE_SKIPS", log).output().unwrap()
}

#[test]
fn a_skip_that_the_machine_allows_fails_the_run() {
    let missing = Need::Tool("no-such-program".into());
    let rightly = skips(&[missing.clone(), missing.clone()]);
    let said = String::from_utf8(rightly.stdout).unwrap();
    assert!(rightly.status.success(), "{said}");
    assert!(said.contains("tests skipped: 2") && said.contains("needs no-such-program (2)"), "{said}");
    assert!(said.contains("a_test (tests/a.rs:1): it said so"), "{said}");

    let wrongly = skips(&[missing, Need::Tool("sh".into())]);
    let said = String::from_utf8(wrongly.stdout).unwrap();
    assert_eq!(wrongly.status.code(), Some(1), "{said}");
    assert!(said.contains("1 test skipped although this machine has what it needs"), "{said}");
}

#[test]
fn a_log_that_cannot_be_read_fails_the_run() {
    let log = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(log.path(), "SKIPPED: something\n").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_skips")).env("PREPAGE_SKIPS", log.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
}
