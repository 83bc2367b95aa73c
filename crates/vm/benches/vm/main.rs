//! The VM against the kernel doing the same on the same data, and against a plain handler, interleaved in one run.
//!
//! `cargo bench -p prepage-vm --bench vm -- [resident] [zeros] [cold] [waits] [clones] [records]
//! [snapshots] [writes] [half] [give-back]`; all without arguments.
//! Parts of `cold` are `sequential`, `as-found`, `random`, `cached` and `predicted`.
//! ROUNDS (default 7) rounds of each measurement, DIRECTORY (default .) for the cold file of FILE_MIB (default 1024),
//! UMAP for the sources of LLNL's UMap to compare with, ONLY for the ways whose names hold its text (to profile one).

mod bare;
mod clones;
mod cold;
mod give_back;
mod half;
mod plain;
mod records;
mod reflink;
mod resident;
mod rounds;
mod snapshots;
mod umap;
mod waits;
mod writes;
mod zeros;

fn main() {
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    if wanted.first().is_some_and(|first| first == bare::CHILD) {
        return bare::child(&wanted[1..]);
    }
    match &wanted[..] {
        [first, group] if first == give_back::HOLDER => return give_back::holder(group),
        [first, group] if first == give_back::HOG => return give_back::hog(group),
        [first, group] if first == give_back::WAITER => return give_back::waiter(group),
        _ => {}
    }
    let chosen = |name: &str| wanted.is_empty() || wanted.iter().any(|wanted| wanted == name);
    // Before there are threads: the guardian of the setting is a process beside this one.
    let parts = ["sequential", "random", "cached", "predicted"];
    let cold = chosen("cold") || parts.iter().any(|part| chosen(part));
    let read_ahead = cold.then(|| prepage_sys::readahead::ReadAhead::set(128));
    println!("{:<58} {:>12} {:>18} {:>8}", "", "median", "spread", "ratio");
    let mut aims = Vec::new();
    if chosen("resident") {
        aims.extend(resident::measure());
    }
    if chosen("zeros") {
        aims.extend(zeros::measure());
    }
    if cold {
        match read_ahead.as_ref().expect("set above") {
            Ok(_) => aims.extend(cold::measure(|part| chosen("cold") || chosen(part))),
            Err(error) => aims.extend(cold::not_run(&format!("the read-ahead cannot be set: {error}"))),
        }
    }
    // With the read-ahead as the machine has it.
    drop(read_ahead);
    if chosen("cold") || chosen("as-found") {
        aims.extend(cold::as_found());
    }
    if chosen("waits") {
        aims.extend(waits::measure());
    }
    if chosen("clones") {
        aims.extend(clones::measure());
    }
    if chosen("records") {
        aims.extend(records::measure());
    }
    if chosen("snapshots") {
        aims.extend(snapshots::measure());
    }
    if chosen("writes") {
        aims.extend(writes::measure());
    }
    if chosen("half") {
        aims.extend(half::measure());
    }
    if chosen("give-back") {
        aims.extend(give_back::measure());
    }
    rounds::print_aims(&aims);
}
