//! `prepage bench patterns` does the same by every way.

use std::process::{Command, Output};

use prepage_testing::Doctor;
use serde_json::Value;

mod support;

fn patterns(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_prepage-tools"));
    command.args(["bench", "patterns"]).args(arguments).output().unwrap()
}

#[test]
fn every_way_reads_what_it_wrote_and_leaves_nothing() {
    if !support::may(Doctor::ServedFaults) {
        return;
    }
    // On a disk: the system's temporary directory may be in memory.
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let there = directory.path().to_str().unwrap();
    let fixed = ["--json", "--rounds", "1", "--size", "36M", "--files", "40", "--directory"];
    let output = patterns(&[&fixed[..], &[there]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["schema_version"], &report["limit_bytes"]), (&1.into(), &Value::Null));
    let runs: Vec<&Value> = report["ways"].as_array().unwrap().iter().map(|way| &way["runs"][0]).collect();
    let done = |run: &Value| -> Vec<(String, u64, u64)> {
        let phases = run.as_array().unwrap().iter();
        let number = |phase: &Value, name: &str| phase[name].as_u64().unwrap();
        let name = |phase: &Value| format!("{} {}", phase["pattern"], phase["name"]);
        phases.map(|phase| (name(phase), number(phase, "operations"), number(phase, "sum"))).collect()
    };
    let calls = done(runs[0]);
    assert_eq!((calls.len(), runs.len()), (11, 3));
    assert!(calls.iter().filter(|(_, _, sum)| *sum > 0).count() >= 7, "{calls:?}");
    for run in &runs[1..] {
        assert_eq!(done(run), calls);
    }
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
}

#[test]
fn what_cannot_be_measured_says_why() {
    let output = patterns(&["--size", "1M"]);
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("--size is too small"));
    let output = patterns(&["--group", "/nowhere", "--rounds", "1"]);
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("the limit of /nowhere cannot be set"));
}

/// A group in plain files, with these processes and a limit that has as many digits as half of 36M.
fn group(processes: &str) -> tempfile::TempDir {
    let group = tempfile::tempdir().unwrap();
    std::fs::write(group.path().join("memory.max"), "99999999").unwrap();
    std::fs::write(group.path().join("cgroup.procs"), processes).unwrap();
    group
}

fn fails_in(group: &tempfile::TempDir) -> String {
    let there = group.path().to_str().unwrap();
    let output = patterns(&["--group", there, "--rounds", "1", "--size", "36M", "--directory", "/nowhere"]);
    assert!(!output.status.success());
    assert_eq!(std::fs::read_to_string(group.path().join("memory.max")).unwrap(), "99999999");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn the_limit_of_a_group_is_put_back_though_a_worker_fails() {
    let group = group("");
    let said = fails_in(&group);
    let entered = std::fs::read_to_string(group.path().join("cgroup.procs")).unwrap();
    assert!(entered.parse::<u32>().is_ok(), "a worker was in it: {entered}, {said}");
}

#[test]
fn a_group_that_others_use_is_left_alone() {
    let used = group("1\n");
    let above = group("");
    std::fs::create_dir(above.path().join("slice")).unwrap();
    for group in [used, above] {
        let said = fails_in(&group);
        assert!(said.contains("processes or groups are in it"), "{said}");
    }
}
