//! Writes a launch log in which the last four days began with a command: `expect FILE -- CMD…`. For bench/predicted.

use std::ffi::OsString;

use prepage_core::launches::{Launched, Launches};
use prepage_profiles::ProgramKey;
use prepage_sys::clock::unix_s;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const USAGE: &str = "expect FILE -- CMD...";
    let mut args = std::env::args_os().skip(1);
    let file = args.next().ok_or(USAGE)?;
    let command: Vec<OsString> = args.skip(1).collect();
    let key = ProgramKey::of(&command)?;
    let what = Launched { program: key.program, role: key.role };
    let mut launches = Launches::default();
    for days in (1..5).rev() {
        let then = unix_s() - days * 86_400;
        launches.launched(&what, false, then);
        launches.tick(then + 3000);
    }
    std::fs::write(file, launches.encode())?;
    Ok(())
}
