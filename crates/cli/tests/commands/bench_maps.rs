//! `prepage bench maps` counts what it says.

use std::process::Command;

use prepage_testing::Doctor;

use crate::support::may;

fn maps(arguments: &[&str]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_prepage-tools"));
    command.args(["bench", "maps"]).args(arguments).output().unwrap()
}

#[test]
fn a_map_costs_one_record_and_none_a_page() {
    if !may(Doctor::ServedFaults) {
        return;
    }
    let output = maps(&["--json", "--maps", "1,20", "--pages", "64,512"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["schema_version"], 1);
    let rows = report["measured"].as_array().unwrap();
    assert_eq!(rows.len(), 4);
    for row in rows {
        let number = |name: &str| row[name].as_u64().unwrap();
        let (maps, pages) = (number("maps"), number("pages"));
        assert_eq!(number("faults"), maps * pages);
        assert_eq!(number("found_maps"), maps);
        assert_eq!(number("list_operations"), 2 * maps);
        assert_eq!(number("record_operations"), 2 * maps * pages);
        assert_eq!(number("record_bytes"), maps * pages * 80);
        // A fault that meets the thread of the VM which looks whether maps can be the kernel's takes two more.
        let more = number("fault_atomics") - 4 * number("faults");
        assert!(more <= 4, "{row}");
    }
    let output = maps(&["--json", "--maps", "3", "--pages", "64", "--threads", "4,2"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let row = |at: usize| {
        let row = &report["measured"][at];
        ["threads", "children", "faults", "lock_waits"].map(|name| row[name].as_u64().unwrap())
    };
    assert_eq!([row(0), row(1)], [[4, 0, 3 * 64, 0], [2, 0, 3 * 64, 0]]);
    let table = maps(&["--maps", "2", "--pages", "16"]);
    let table = String::from_utf8_lossy(&table.stdout);
    assert!(table.contains("  tracking KiB  records KiB  times  list ops  record ops  times  "), "{table}");
}

#[test]
fn no_maps_are_no_experiment() {
    let output = maps(&["--maps", "0"]);
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--maps"));
}
