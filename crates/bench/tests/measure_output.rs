//! Measuring waits for every child of its process: it has this one for itself.

use std::ffi::OsString;

use prepage_bench::measure::{Figures, Measurement, measure};
use prepage_core::profile::Profile;
use prepage_residency::cold::Chill;
use prepage_sys::process_status::ProcessStatus;

fn measured(command: &[&str]) -> Figures {
    let measurement = Measurement {
        command: command.iter().map(OsString::from).collect(),
        // Fails, and writes something else.
        starter: "/usr/bin/env".into(),
        rounds: 1,
        cold: false,
        chill: Chill::OwnFiles,
        others: vec![],
    };
    measure(&measurement, &Profile::default(), &mut |_, _| ()).unwrap()
}

/// The most that this process has had in memory.
fn peak_kib() -> u64 {
    let status = ProcessStatus::of("self").unwrap();
    let peak = status.field("VmHWM").unwrap().trim_end_matches("kB").trim();
    peak.parse().unwrap()
}

#[test]
fn what_programs_write_is_compared_and_not_kept() {
    let before = peak_kib();
    let figures = measured(&["head", "-c", "67108864", "/dev/zero"]);
    let grown = peak_kib() - before;
    assert_eq!((figures.differing_starts, figures.exit_status), (2, 0));
    assert!(grown < 16 << 10, "{grown} KiB for two starts that write 64 MiB each");
    // The last of a million bytes, behind the same ones.
    let figures = measured(&["sh", "-c", "head -c 1000000 /dev/zero; echo $$"]);
    assert_eq!(figures.differing_starts, 3);
}
