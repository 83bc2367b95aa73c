//! The VM against the kernel doing the same on the same data, and against a plain handler, interleaved in one run.
//!
//! `cargo bench -p prepage-vm --bench vm -- [resident] [zeros] [cold] [clones] [records]`; all without arguments.
//! ROUNDS (default 7) rounds of each measurement, DIRECTORY (default .) for the cold file of FILE_MIB (default 1024).

mod clones;
mod cold;
mod plain;
mod records;
mod resident;
mod rounds;
mod zeros;

fn main() {
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let chosen = |name: &str| wanted.is_empty() || wanted.iter().any(|wanted| wanted == name);
    // Before there are threads: the guardian of the setting is a process beside this one.
    let read_ahead = chosen("cold").then(|| prepage_prefetch::readahead::ReadAhead::set(128));
    println!("{:<58} {:>12} {:>12} {:>8}  {}", "", "median", "spread", "ratio", "");
    if chosen("resident") {
        resident::measure();
    }
    if chosen("zeros") {
        zeros::measure();
    }
    if chosen("cold") {
        match read_ahead.as_ref().expect("set above") {
            Ok(_) => cold::measure(),
            Err(error) => println!("cold file: skipped, the read-ahead cannot be set: {error}"),
        }
    }
    if chosen("clones") {
        clones::measure();
    }
    if chosen("records") {
        records::measure();
    }
}
