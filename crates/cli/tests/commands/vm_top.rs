//! `prepage vm top`, of this process.

use std::process::Output;
use std::sync::Mutex;

use crate::support::{Sandbox, text};
use prepage_sys::sync::Anyway;
use prepage_testing::{Need, python, skip};
use prepage_vm::{Pool, Vm, VmOptions};
use serde_json::Value;

/// Pools of this process are counted: one test at a time, and none that has pools beside these.
pub static POOLS: Mutex<()> = Mutex::new(());

/// What a command says that asks this process: the command is run again, a few times, where nobody answers within two seconds, for who does gets no
/// processor.
pub fn answered(mut ask: impl FnMut() -> Output) -> Output {
    for _ in 1..5 {
        let output = ask();
        if ![&output.stdout, &output.stderr].iter().any(|said| text(said).contains("it does not answer")) {
            return output;
        }
    }
    ask()
}

/// Runs what follows on a terminal of 200 columns and 10 lines, and shows the first screen.
const TERMINAL: &str = "import fcntl, os, pty, signal, struct, sys, termios\n\
    pid, terminal = pty.fork()\n\
    if pid == 0:\n\
    \x20   fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack('HHHH', 10, 200, 0, 0))\n\
    \x20   os.execv(sys.argv[1], sys.argv[1:])\n\
    shown = b''\n\
    while b'\\x1b[J' not in shown: shown += os.read(terminal, 4096)\n\
    os.kill(pid, signal.SIGKILL)\n\
    sys.stdout.buffer.write(shown.partition(b'\\x1b[J')[0])\n";

#[test]
fn a_screen_that_is_too_small_says_how_much_more_there_is() {
    let Some(mut python) = python("pty") else { return skip(Need::Python("pty".into()), "no Python") };
    let _alone = POOLS.lock().anyway();
    let pools: Vec<Pool> = (0..20).map(|_| Pool::new(64 << 20).unwrap()).collect();
    let _vms: Vec<Vm> = pools.iter().map(|pool| Vm::new(VmOptions::default().pool(pool)).unwrap()).collect();
    let pid = std::process::id().to_string();
    let top = [env!("CARGO_BIN_EXE_prepage-tools"), "vm", "top", "--pid", &pid];
    python.args(["-c", TERMINAL]).args(top).env_remove("COLUMNS");
    let shown = answered(|| python.output().unwrap());
    let shown = text(&shown.stdout);
    // The last line is left to the cursor.
    assert_eq!(shown.matches('\n').count(), 9, "{shown}");
    // A line of headings and seven of pools.
    assert!(shown.contains("\nand 13 more lines"), "{shown}");
}

#[test]
fn pools_of_a_process_are_shown_and_what_is_none_is_told() {
    let _alone = POOLS.lock().anyway();
    let sandbox = Sandbox::new();
    let pid = std::process::id().to_string();
    let pool = Pool::new(64 << 20).unwrap();
    let vm = Vm::new(VmOptions::default().pool(&pool)).unwrap();
    let program = std::env::current_exe().unwrap();
    let object = vm.file_direct(&program).or_else(|_| vm.file(&program));
    let top = |more: &[&str]| answered(|| sandbox.output(&[&["vm", "top", "--pid", &pid], more].concat()));
    let shown = top(&["--objects"]);
    assert!(shown.status.success(), "{}", text(&shown.stderr));
    let shown = text(&shown.stdout);
    let lines: Vec<Vec<&str>> = shown.lines().map(|line| line.split_ascii_whitespace().collect()).collect();
    assert_eq!(&lines[0][..4], ["pid", "program", "limit", "resident"]);
    assert!(lines[0].contains(&"dirty"), "{shown}");
    assert_eq!((lines[1][0], lines[1][2], lines[1][3]), (&*pid, "64M", "0"), "{shown}");
    assert!(shown.contains(program.file_name().unwrap().to_str().unwrap()), "the object's name: {shown}");
    let json: Value = serde_json::from_slice(&top(&["--json"]).stdout).unwrap();
    assert_eq!((&json["schema_version"], &json["page_bytes"]), (&1.into(), &4096.into()));
    let process = &json["processes"][0];
    assert_eq!(
        (process["pid"].to_string(), &process["pools"][0]["limit_pages"]),
        (pid.clone(), &16384.into())
    );
    assert_eq!((&process["pools"][0]["hard"], &process["pools"][0]["dirty_pages"]), (&0.into(), &0.into()));
    // In order, or rates would be those of two pools.
    let others: Vec<Vm> = (0..8).map(|_| Vm::new(VmOptions::default()).unwrap()).collect();
    let json: Value = serde_json::from_slice(&top(&["--json"]).stdout).unwrap();
    let pools = json["processes"][0]["pools"].as_array().unwrap();
    assert_eq!(pools.len(), 1 + others.len());
    assert!(pools.is_sorted_by_key(|pool| pool["number"].as_u64().unwrap()), "{pools:?}");
    assert_eq!(pools[1]["limit_pages"], Value::Null);
    let shown = top(&[]);
    assert_eq!(text(&shown.stdout).matches(" none ").count(), others.len(), "{shown:?}");
    drop((object, vm, others));
    let shown = top(&["--once"]);
    assert_eq!(text(&shown.stdout), format!("process {pid}: it has no VM now\n"));
    // Its command line knows no VM.
    let none = sandbox.output(&["vm", "top", "--pid", "1"]);
    assert_eq!(none.status.code(), Some(125));
    assert!(text(&none.stderr).contains("process 1: it uses no prepage-vm"), "{}", text(&none.stderr));
    assert_eq!(text(&none.stdout), "", "of others nothing is known");
}
