//! `prepage bench file` as its user meets it.

use std::path::Path;
use std::process::{Command, Output};

use prepage_testing::{Doctor, Need, has, unless_caches_dropped};
use serde_json::Value;

mod support;

use support::{may, text};

fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_prepage-tools")).arg("bench").args(args).output().unwrap()
}

/// On a disk: the system's temporary directory may be in memory.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Whether `bench file` may record faults and files here can be made cold; records a skip where not.
fn is_permitted() -> bool {
    may(Doctor::Faults) && has(Need::Eviction(env!("CARGO_TARGET_TMPDIR").into()))
}

/// What `bench file` says as JSON of a file of 300 pages.
fn report(dir: &Path, args: &[&str]) -> Value {
    let fixed = ["file", "--json", "--rounds", "1", "--size", "1200k", "--directory", dir.to_str().unwrap()];
    let output = bench(&[&fixed[..], args].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn runs_are_cold_and_warm_as_they_should_be_and_count_every_page() {
    if is_permitted() {
        unless_caches_dropped(cold_and_warm_runs);
    }
}

fn cold_and_warm_runs() {
    let dir = directory();
    let html = dir.path().join("report.html");
    let svg = dir.path().join("figures");
    let files = ["--html", html.to_str().unwrap(), "--svg", svg.to_str().unwrap(), "--fault-around"];
    let report = report(dir.path(), &files);
    assert_eq!((&report["pages"], &report["accesses"]), (&300.into(), &(300 * 4096).into()));
    let experiments = report["experiments"].as_array().unwrap();
    assert_eq!(experiments.len(), 8);
    for experiment in experiments {
        let count = |class: &str| experiment[class]["count"].as_u64().unwrap();
        let what = format!("{} {}", experiment["pattern"], experiment["cache"]);
        if experiment["cache"] == "cold" {
            assert!(count("disk") >= 1, "{what}");
        } else {
            assert_eq!(count("disk"), 0, "{what}");
        }
        // At least one fault for what fault-around maps, at most one a page.
        assert!(
            (1..=300).contains(&(count("all") - count("short")))
                && count("disk") + count("short") + count("cached") == count("all"),
            "{what}"
        );
        let faults = experiment["faults"].as_array().unwrap();
        assert_eq!(faults.len() as u64, count("all"), "{what}");
        assert!(faults.iter().all(|fault| fault[0].as_u64().unwrap() < 300), "{what}");
        let mapped = &experiment["mapped"];
        let pages = ["pages_mapped_by_disk_faults", "pages_mapped_by_cached_faults"];
        assert_eq!(pages.iter().map(|name| mapped[name].as_u64().unwrap()).sum::<u64>(), 300, "{what}");
        assert_eq!(experiment["records_lost"], 0, "{what}");
    }
    let sequential = &experiments[2];
    let pages = sequential["faults"].as_array().unwrap().iter().map(|fault| fault[0].as_u64().unwrap());
    assert!(pages.clone().is_sorted() && pages.min() == Some(0), "faults of a sequence are one");
    let page = std::fs::read_to_string(&html).unwrap();
    assert_eq!(page.matches("<svg").count(), 8);
    for expected in ["11300 pages, are left out", "stride-256k, cold cache", "records lost", "short"] {
        assert!(page.contains(expected), "{expected} is missing");
    }
    assert!(!page.contains("src=") && !page.contains("href="), "the file needs others");
    assert_eq!(std::fs::read_dir(&svg).unwrap().count(), 8);
}

/// What other disks are set to is nothing to the file.
#[test]
fn the_read_ahead_is_that_of_the_files_own_disk() {
    let has_volume = has(Need::LoopDevice) && has(Need::Mounts) && has(Need::Tool("mkfs.ext4".into()));
    if !has_volume || !is_permitted() {
        return;
    }
    let dir = directory();
    let script =
        "truncate -s 16M image && mkfs.ext4 -q image && mkdir volume && mount -o loop image volume || exit 99
        disk=/sys/dev/block/$(stat -c %Hd:%Ld volume)/queue/read_ahead_kb
        found=$(cat $disk); echo 68 > $disk
        \"$0\" bench file --json --rounds 1 --size 400k --cache warm -p sequential -d \"$1\"
        code=$?; echo $found > $disk; umount volume; exit $code";
    let of_file_in = |place: &str| {
        let output = Command::new("unshare")
            .args(["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_prepage-tools"), place])
            .current_dir(dir.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        for left in ["image", "volume"] {
            let path = dir.path().join(left);
            let _ = std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir(&path));
        }
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        report["read_ahead_kib"].as_array().unwrap().clone()
    };
    assert_eq!(of_file_in("volume"), [68]);
    let beside = of_file_in(".");
    assert!(beside.len() == 1 && beside[0] != 68, "{beside:?}");
}

#[test]
fn the_tables_of_another_size_stand_alone() {
    if !is_permitted() {
        return;
    }
    let dir = directory();
    let arguments = ["file", "--rounds", "1", "--size", "400k", "--cache", "cold", "-p", "random,stride-8k"];
    let output = bench(&[&arguments[..], &["-d", dir.path().to_str().unwrap()]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let told = text(&output.stdout);
    for expected in ["random, cold cache", "in disk", "stride-8k, cold cache", "as found", "are left out"] {
        assert!(told.contains(expected), "{expected} is missing: {told}");
    }
    for unexpected in ["6198", "17497", "study  "] {
        assert!(!told.contains(unexpected), "{unexpected}: {told}");
    }
    assert!(told.lines().all(|line| line.chars().count() <= 100), "{told}");
}

#[test]
fn what_cannot_be_measured_is_told_with_a_remedy() {
    let fails = |args: &[&str], code, expected: &str| {
        let output = bench(args);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(expected), "{expected} is missing: {said}");
    };
    fails(&["file", "-d", "/no/such/directory"], 125, "try: --directory");
    fails(&["file", "--file", "/no/such/file"], 125, "/no/such/file");
    fails(&["file", "--file", "/dev/null"], 125, "is empty");
    fails(&["file", "--pattern", "backwards"], 2, "is not a pattern: random, sequential");
    fails(&["file", "--size", "many"], 2, "is not a size");
    for share in ["1/1024", "1023/1024"] {
        fails(&["workload", "--static-share", share], 2, "--static-share");
    }
    fails(&["file", "--size", "0"], 2, "0 bytes are nothing to measure");
    fails(&["file", "--read-ahead", "128"], 2, "whole number of KiB with its unit");
    fails(&["sweep", "--read-ahead", "1000B", "--", "true"], 2, "whole number of KiB with its unit");
    if Path::new("/dev/shm").is_dir() {
        fails(&["file", "-s", "40k", "-d", "/dev/shm", "-c", "cold"], 125, "in memory (tmpfs)");
    }
    let file = env!("CARGO_MANIFEST_PATH");
    fails(&["access", "--expect-sum", "0", file], 125, "add up to");
}

#[test]
fn the_drive_is_asked_for_what_it_has_read_and_for_reads_of_each_size() {
    let dir = directory();
    if !has(Need::DirectReads(dir.path().to_owned())) {
        return;
    }
    let drive_cache = |more: &[&str]| {
        bench(&[&["drive-cache", "--size", "8M", "--directory", dir.path().to_str().unwrap()], more].concat())
    };
    let output = drive_cache(&["--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let count = |of: &str| report[of].as_array().unwrap().iter().map(|row| row["reads"].as_u64().unwrap());
    assert_eq!(count("passes").collect::<Vec<_>>(), [512; 4]);
    let sizes = report["sizes"].as_array().unwrap().iter();
    let sizes: Vec<_> = sizes.map(|row| (row["order"].as_str(), row["read_bytes"].as_u64())).collect();
    let random = |bytes| (Some("at random"), Some(bytes));
    assert_eq!(sizes, [(Some("in order"), Some(4096)), random(4096), random(128 << 10), random(1 << 20)]);
    let said = drive_cache(&[]);
    let said = text(&said.stdout);
    assert!(said.contains("1024 KiB at random") && said.contains("In order a page takes"), "{said}");
    let short = bench(&["drive-cache", "--size", "7M"]);
    assert_eq!(short.status.code(), Some(2), "{}", text(&short.stderr));
    assert!(text(&short.stderr).contains("at least 8 MiB"), "{}", text(&short.stderr));
}
