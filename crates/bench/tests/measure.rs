//! Measuring waits for every child of its process: it has this one for itself.

use std::ffi::OsString;

use prepage_bench::measure::{Measurement, measure};
use prepage_core::profile::Profile;
use prepage_residency::cold::Chill;

#[test]
fn a_program_whose_output_changes_is_noticed() {
    let measurement = Measurement {
        command: ["sh", "-c", "echo same; exit 3"].map(OsString::from).to_vec(),
        // `env run --quiet --no-hold-out --` stands in for a starter that does something else than the program.
        starter: "/usr/bin/env".into(),
        rounds: 1,
        cold: false,
        chill: Chill::OwnFiles,
        others: vec![],
    };
    let figures = measure(&measurement, &Profile::default(), &mut |_, _| ()).unwrap();
    assert_eq!(figures.differing_starts, 2);
    assert_eq!(figures.warm.plain.wall_ms.len(), 1);
    assert!(figures.cold.is_none());
    // Both ways fail, `env` by itself.
    assert_eq!((figures.exit_status, figures.failed_starts), (3, 4));
    // The profile names no file: of what device reads are counted is not known.
    assert_eq!(figures.warm.plain.device_read_bytes, [None]);
    assert_eq!(figures.warm.plain.exit_status, [3]);
}
