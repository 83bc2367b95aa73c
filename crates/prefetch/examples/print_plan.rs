//! Prints the reads that a profile is turned into, for `read_backends`: offset, length and path of each.
//!
//! ```text
//! print_plan PROFILE_FILE
//! ```
use std::error::Error;
use std::io::{self, BufWriter, Write};

use prepage_core::profile::file::decode;
use prepage_core::profile::plan::{PlanOptions, plan};
use prepage_prefetch::engine::device_of;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: print_plan PROFILE_FILE")?;
    let profile = decode(&std::fs::read(path)?)?;
    let mut out = BufWriter::new(io::stdout().lock());
    for read in plan(&profile, PlanOptions::for_device(&device_of(&profile))) {
        let path = &profile.files[read.file].path;
        writeln!(out, "{} {} {path}", read.range.start().offset_bytes(), read.range.bytes())?;
    }
    Ok(())
}
