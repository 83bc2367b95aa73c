//! Prints the reads that a profile is turned into, for `read_backends`: offset, length and path of each.
//!
//! ```text
//! print_plan PROFILE_FILE
//! ```
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;

use prepage_core::plan::{PlanOptions, plan};
use prepage_prefetch::engine::device_of;
use prepage_prefetch::store::Store;

fn main() -> ExitCode {
    let Some(path) = std::env::args_os().nth(1) else {
        eprintln!("usage: print_plan PROFILE_FILE");
        return ExitCode::from(2);
    };
    let loaded = Store::of_user().and_then(|store| store.load_file(Path::new(&path)));
    let profile = match loaded {
        Ok(Some(profile)) => profile,
        Ok(None) => {
            eprintln!("print_plan: no such file");
            return ExitCode::FAILURE;
        }
        Err(error) => {
            eprintln!("print_plan: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut out = BufWriter::new(io::stdout().lock());
    for read in plan(&profile, PlanOptions::for_device(&device_of(&profile))) {
        let path = &profile.files[read.file].path;
        let (start, bytes) = (read.range.start().offset_bytes(), read.range.bytes());
        if writeln!(out, "{start} {bytes} {path}").is_err() {
            break;
        }
    }
    ExitCode::SUCCESS
}
