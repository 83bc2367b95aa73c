//! `prepage bench rates`, small.

use std::process::{Command, Output};

use prepage_testing::{Need, has};

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_prepage-tools")).arg("bench").args(arguments).output().unwrap()
}

#[test]
fn every_rate_is_measured_and_stands_beside_the_published_ones() {
    if !has(Need::Tool("gcc".into())) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().to_str().unwrap();
    let small =
        ["rates", "--rounds", "1", "--milliseconds", "20", "--size", "4M", "--files", "2", "-d", directory];
    let output = bench(&[&small[..], &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rates = report["rates"].as_array().unwrap();
    let of = |part: &str| rates.iter().filter(|rate| rate["what"].as_str().unwrap().contains(part)).count();
    let counts = if report["cpus"] == 1 { 1 } else { 2 };
    assert_eq!(
        ["fork", "vfork", "posix_spawn", "dynamic", "static"].map(of),
        [4, 2, 2, 3, 3].map(|ways| ways * counts)
    );
    assert_eq!((of("of the kernel"), of("bound")), (counts, counts));
    assert_eq!(of("of the VM"), if report["vm_missing"].is_null() { counts } else { 0 });
    assert!(rates.iter().all(|rate| rate["per_second"][0].as_f64().unwrap() > 0.0), "{rates:?}");
    assert!(report["builds"][0]["user_s"].as_f64().unwrap() > 0.0);
    assert_eq!(std::fs::read_dir(directory).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn more_workers_than_processors_are_measured_too() {
    if !has(Need::Tool("gcc".into())) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().to_str().unwrap();
    let more = std::thread::available_parallelism().unwrap().get() + 3;
    let workers = format!("2,{more}");
    let small = ["rates", "--rounds", "1", "--milliseconds", "20", "--size", "4M", "--files", "1"];
    let small = [&small[..], &["--workers", &workers, "-d", directory]].concat();
    let output = bench(&[&small[..], &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rates = report["rates"].as_array().unwrap();
    let with = |count: usize| rates.iter().filter(|rate| rate["workers"] == count).count();
    assert_eq!((with(2), with(more)), (rates.len() / 2, rates.len() / 2), "{rates:?}");
    let table = String::from_utf8(bench(&small).stdout).unwrap();
    assert!(table.contains("per worker"), "{table}");
}

#[test]
fn what_cannot_be_started_is_an_error() {
    for (arguments, expected) in [
        (["starts", "fork", "20", "/bin/false"], "ended with status"),
        (["starts", "posix_spawn", "20", "/no/such/program"], "/no/such/program"),
        (["starts", "exec", "20", "/bin/true"], "fork, vfork and posix_spawn"),
        (["rates", "--directory", "/no/such/directory", "--json"], "try: --directory"),
        (["rates", "--workers", "0", "--json"], "--workers"),
        (["rates", "--workers=2", "--size", "4k"], "2 workers need a page each"),
    ] {
        let output = bench(&arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(expected), "{arguments:?}: {said}");
        assert!(said.matches("/no/such/directory").count() <= 1, "{arguments:?}: {said}");
    }
}
