//! The inputs kept for fuzzing hold what they should, on a stable compiler too: one directory of `fuzz/corpus` a target.

use std::path::Path;

#[path = "../../../fuzz/argument_checks.rs"]
mod argument_checks;
#[path = "../../../fuzz/manifest_checks.rs"]
mod manifest_checks;
#[path = "../../../fuzz/profile_checks.rs"]
mod profile_checks;
#[path = "../../../fuzz/trace_checks.rs"]
mod trace_checks;

type Check = fn(&[u8]);

/// Every check, by the name of its fuzz target.
const CHECKS: [(&str, Check); 8] = [
    ("argument", argument_checks::argument),
    ("bundle", profile_checks::bundle),
    ("elf", profile_checks::elf),
    ("manifest", manifest_checks::manifest),
    ("perf_data", trace_checks::perf_data),
    ("profile", profile_checks::profile),
    ("touches", trace_checks::touches),
    ("trace", trace_checks::trace),
];

#[test]
fn every_kept_input_holds_what_it_should() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let list = |path: &Path| {
        let mut paths: Vec<_> = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths
    };
    let names = |paths: &[std::path::PathBuf]| -> Vec<String> {
        paths.iter().map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect()
    };
    assert_eq!(names(&list(&corpus)), CHECKS.map(|(name, _)| name), "a directory for each target");
    for (target, check) in CHECKS {
        let inputs = list(&corpus.join(target));
        assert!(inputs.len() >= 2, "{target} has too few inputs to be of use");
        for path in inputs {
            println!("{}", path.display());
            check(&std::fs::read(&path).unwrap());
        }
    }
}
