//! `prepage vm top`, of this process.

use crate::support::{Sandbox, text};
use prepage_vm::{Pool, Vm, VmOptions};
use serde_json::Value;

#[test]
fn pools_of_a_process_are_shown_and_what_is_none_is_told() {
    let sandbox = Sandbox::new();
    let pid = std::process::id().to_string();
    let pool = Pool::new(64 << 20).unwrap();
    let vm = Vm::new(VmOptions::default().pool(&pool)).unwrap();
    let program = std::env::current_exe().unwrap();
    let object = vm.file_direct(&program).or_else(|_| vm.file(&program));
    let shown = sandbox.output(&["vm", "top", "--pid", &pid, "--objects"]);
    assert!(shown.status.success(), "{}", text(&shown.stderr));
    let shown = text(&shown.stdout);
    let lines: Vec<Vec<&str>> = shown.lines().map(|line| line.split_ascii_whitespace().collect()).collect();
    assert_eq!(&lines[0][..4], ["pid", "program", "limit", "resident"]);
    assert_eq!((lines[1][0], lines[1][2], lines[1][3]), (&*pid, "64M", "0"), "{shown}");
    assert!(shown.contains(program.file_name().unwrap().to_str().unwrap()), "the object's name: {shown}");
    let json = sandbox.output(&["vm", "top", "--pid", &pid, "--json"]);
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((&json["schema_version"], &json["page_bytes"]), (&1.into(), &4096.into()));
    let process = &json["processes"][0];
    assert_eq!(
        (process["pid"].to_string(), &process["pools"][0]["limit_pages"]),
        (pid.clone(), &16384.into())
    );
    assert_eq!(process["pools"][0]["hard"], 0);
    drop((object, vm));
    let shown = sandbox.output(&["vm", "top", "--once", "--pid", &pid]);
    assert!(text(&shown.stdout).contains("no process of yours uses prepage-vm"), "{shown:?}");
    // Its command line knows no VM.
    let none = sandbox.output(&["vm", "top", "--pid", "1"]);
    assert_eq!(none.status.code(), Some(125));
    assert!(text(&none.stderr).contains("process 1: it uses no prepage-vm"), "{}", text(&none.stderr));
}
