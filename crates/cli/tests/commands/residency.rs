//! `prepage residency`, `warm` and `evict` as their user meets them.

use std::process::{Command, Output};

use crate::support::{Sandbox, can_learn, is_root, json, text};
use prepage_testing::{Need, copy_program, has};

fn tools(args: &[&str]) -> Output {
    // Beside these paths the strip is as narrow as it gets: 20 cells.
    Command::new(env!("CARGO_BIN_EXE_prepage-tools")).env_remove("COLUMNS").args(args).output().unwrap()
}

#[test]
fn a_range_is_warmed_shown_and_evicted() {
    let sandbox = Sandbox::new();
    if !has(Need::Eviction(sandbox.path().into())) {
        return;
    }
    let path = sandbox.path().join("file");
    std::fs::write(&path, vec![1; 4 << 20]).unwrap();
    let path = path.to_str().unwrap();
    let evicted = json(&tools(&["evict", "--json", path]));
    assert_eq!(evicted["files"][0]["resident_pages_after"], 0, "{evicted}");
    let warmed = tools(&["warm", &format!("{path}:1M-2M")]);
    assert_eq!(text(&warmed.stdout), "1M of 1M in memory (100.0 %), 0 before: 256 of 256 pages of 1 file\n");
    assert!(warmed.status.success());
    let shown = tools(&["residency", path]);
    assert!(text(&shown.stdout).contains("256/1024  25.0"), "{}", text(&shown.stdout));
    assert!(text(&shown.stdout).contains("·····█████··········"), "{}", text(&shown.stdout));
    let found = json(&tools(&["residency", "--json", &format!("{path}:-1536k")]));
    assert_eq!(found["files"][0]["resident_ranges_pages"], serde_json::json!([[256, 384]]));
    assert_eq!((&found["schema_version"], &found["total"]["pages"]), (&1.into(), &384.into()));
    for (limit, said) in
        [("128k", "more than 128k would be read"), ("1k", "more than 1024 bytes would be read")]
    {
        let limited = tools(&["warm", "--limit", limit, path]);
        assert_eq!(limited.status.code(), Some(1));
        assert!(text(&limited.stderr).contains(said), "{}", text(&limited.stderr));
    }
}

#[test]
fn what_cannot_be_looked_at_is_named_and_the_rest_is_shown() {
    let sandbox = Sandbox::new();
    let path = sandbox.path().join("file");
    std::fs::write(&path, "x").unwrap();
    let path = path.to_str().unwrap();
    let output = tools(&["residency", "/no/such/file", "/dev/null", &format!("{path}:9-3"), path]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains(path));
    let said = text(&output.stderr);
    for expected in ["/no/such/file: cannot be opened", "/dev/null: no regular file", "9-3\" is empty"] {
        assert!(said.contains(expected), "{expected} is missing: {said}");
    }
    for wrong in [&["warm", "-l", "-3", path][..], &["evict"]] {
        assert_eq!(tools(wrong).status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn a_file_that_is_named_twice_counts_once() {
    let sandbox = Sandbox::new();
    let path = sandbox.path().join("file");
    std::fs::write(&path, vec![1; 10 * 4096]).unwrap();
    let path = path.to_str().unwrap();
    let ranges = [&format!("{path}:0-8k"), &format!("{path}:4k-12k"), &format!("{path}:20k-24k")];
    let pages = |more: &[&str]| {
        let named = ranges.map(String::as_str);
        let found = json(&tools(&[&["residency", "--json"], &named[..], more].concat()));
        (found["total"]["pages"].clone(), found["total"]["files"].clone())
    };
    assert_eq!((pages(&[]), pages(&[path])), ((4.into(), 1.into()), (10.into(), 1.into())));
    let warmed = text(&tools(&["warm", path, ranges[0]]).stdout);
    assert!(warmed.contains("10 of 10 pages of 1 file\n"), "{warmed}");
}

#[test]
fn what_is_a_hole_is_said_not_to_be_read() {
    let sandbox = Sandbox::new();
    let path = sandbox.path().join("file");
    std::fs::File::create(&path).unwrap().set_len(64 << 20).unwrap();
    let warmed = tools(&["warm", path.to_str().unwrap()]);
    assert!(warmed.status.success(), "{}", text(&warmed.stderr));
    let said = text(&warmed.stdout);
    assert!(said.ends_with("64M not read: these are holes, in which nothing is stored\n"), "{said}");
}

#[test]
fn where_no_file_can_be_used_none_is_counted() {
    let sandbox = Sandbox::new();
    for command in ["residency", "warm", "evict"] {
        let absent = tools(&[command, "/no/such/file"]);
        assert_eq!((absent.status.code(), text(&absent.stdout)), (Some(1), String::new()), "{command}");
        let nothing = tools(&[command, sandbox.path().to_str().unwrap()]);
        assert_eq!((nothing.status.code(), text(&nothing.stdout)), (Some(0), String::new()), "{command}");
        assert!(text(&nothing.stderr).contains("no regular file is there"), "{}", text(&nothing.stderr));
    }
    let empty = sandbox.path().join("empty");
    std::fs::write(&empty, "").unwrap();
    let warmed = tools(&["warm", empty.to_str().unwrap()]);
    assert!(text(&warmed.stdout).starts_with("nothing to read"), "{}", text(&warmed.stdout));
}

#[test]
fn pages_of_other_peoples_files_are_not_guessed_at() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    // A copy that an ordinary user can reach.
    let copy = std::env::temp_dir().join(format!("prepage-tools-{}", std::process::id()));
    copy_program(env!("CARGO_BIN_EXE_prepage-tools"), &copy);
    let as_nobody = |args: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&copy).args(args);
        command.current_dir(sandbox.path().ancestors().last().unwrap()).output().unwrap()
    };
    let shown = as_nobody(&["residency", "--json", "/etc/passwd"]);
    let warmed = as_nobody(&["warm", "/etc/passwd"]);
    let stopped = as_nobody(&["warm", "--limit", "0", "/etc/passwd"]);
    std::fs::remove_file(&copy).unwrap();
    assert_eq!(shown.status.code(), Some(1), "{}", text(&shown.stderr));
    assert_eq!(json(&shown)["not_allowed"], serde_json::json!(["/etc/passwd"]));
    assert!(json(&shown)["files"].as_array().unwrap().is_empty());
    assert!(text(&shown.stderr).contains("try: as root"), "{}", text(&shown.stderr));
    assert!(text(&warmed.stdout).contains("4k of 1 file read"), "{}", text(&warmed.stdout));
    assert!(text(&stopped.stdout).contains("0 of 1 file read"), "{}", text(&stopped.stdout));
}

#[test]
fn a_learned_program_is_warmed_by_its_name() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) {
        return;
    }
    let learned = sandbox.output(&["learn", "--", "ls", "/"]);
    assert!(learned.status.success(), "{}", text(&learned.stderr));
    let warmed = sandbox.output(&["warm", "--json", "--profile", "ls"]);
    assert!(warmed.status.success(), "{}", text(&warmed.stderr));
    let files = json(&warmed)["files"].as_array().unwrap().clone();
    assert!(files.iter().any(|file| file["path"].as_str().unwrap().ends_with("/ls")), "{files:?}");
    let unknown = sandbox.output(&["residency", "--profile", "no-such-program"]);
    assert_eq!(unknown.status.code(), Some(125));
    assert!(text(&unknown.stderr).contains("try: prepage profile list"), "{}", text(&unknown.stderr));
}

#[test]
fn a_reader_that_leaves_early_is_no_failure() {
    let script = format!(
        "{} residency --json /usr/bin | head -n 1; exit ${{PIPESTATUS[0]}}",
        env!("CARGO_BIN_EXE_prepage-tools")
    );
    let output = Command::new("bash").args(["-c", &script]).output().unwrap();
    assert!(matches!(output.status.code(), Some(0 | 1)), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "{\n");
    assert!(!text(&output.stderr).contains("ipe"), "{}", text(&output.stderr));
}
