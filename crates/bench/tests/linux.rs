//! Linux's policies against the kernel that runs this test.

use std::ffi::OsString;

use prepage_bench::linux::{Compared, Volume, on_own_volume};
use prepage_testing::{Need, has};

/// Runs this test program again on a volume of its own.
#[test]
fn the_model_counts_the_disk_faults_of_the_kernel() {
    if !(has(Need::LoopDevice) && has(Need::Mounts)) {
        return;
    }
    let program = [std::env::current_exe().expect("this program").into(), "--exact".into(), "inside".into()];
    let program: Vec<OsString> = program.into_iter().chain(["--nocapture".into()]).collect();
    let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let status = on_own_volume(directory, &program).expect("a volume");
    assert!(status.success(), "{status}");
}

#[test]
fn inside() {
    let Some(mut volume) = Volume::inside().expect("a file on the volume") else { return };
    // Somebody who empties the page cache meanwhile adds disk faults: a pattern that is off is counted again.
    let mut off: Vec<Compared> = volume.compare().expect("counted");
    for _ in 0..3 {
        off.retain(|one| one.off_percent().abs() > 2.0);
        for one in &mut off {
            let (_, touches) = prepage_bench::linux::patterns()
                .into_iter()
                .find(|(name, _)| *name == one.pattern)
                .expect("a pattern");
            one.kernel = volume.count(&touches, one.read_ahead_kib, one.executable).expect("counted");
        }
    }
    off.retain(|one| one.off_percent().abs() > 2.0);
    assert!(off.is_empty(), "{off:#?}");
}
