//! Private clones of one object, each writing a little.

use prepage_vm::{MapOptions, Vm, VmOptions};

use crate::resident::Bytes;
use crate::rounds::{Aim, compare, seconds, way};

const PAGES: u64 = 1 << 16;
const CLONES: u64 = 50;

pub fn measure() -> Vec<Aim> {
    let vm = Vm::new(VmOptions::default()).unwrap();
    let object = vm.source("image", Bytes(PAGES * 4096)).unwrap();
    let before = memory();
    let first = vm.map(&object, &MapOptions::shared()).unwrap();
    first.populate(first.window()).unwrap();
    let mut clones: Vec<_> = (0..CLONES).map(|_| vm.map(&object, &MapOptions::private()).unwrap()).collect();
    let written = PAGES / 100;
    for (number, clone) in clones.iter_mut().enumerate() {
        let bytes = clone.as_mut_slice();
        for index in 0..written {
            // Spread over the object, elsewhere in each clone.
            let page = (index * 100 + number as u64) % PAGES;
            bytes[(page * 4096) as usize] = number as u8;
        }
    }
    let after = memory();
    let used = (after.0 - before.0) * 1024;
    let tables = (after.1 - before.1) * 1024;
    let needed = PAGES * 4096 + CLONES * written * 4096;
    println!("\n{CLONES} private clones of 256 MiB, each writing 1 % of its pages");
    println!(
        "  memory used {} MiB, object and written pages {} MiB: {:.3}; page tables {} MiB",
        used >> 20,
        needed >> 20,
        used as f64 / needed as f64,
        tables >> 20
    );
    let counted = vm.statistics().counted;
    println!(
        "  backings put in and taken out: {}; pages mapped: {}, each a record elsewhere ({} times as many)",
        counted.backing_operations,
        counted.pages_mapped,
        counted.pages_mapped / counted.backing_operations
    );
    drop(clones);
    let options = MapOptions::private();
    let (vm, object) = (&vm, &object);
    let ways = vec![way("clone and drop", || {
        let count = 5000;
        let took = seconds(|| (0..count).for_each(|_| drop(vm.map(object, &options).unwrap())));
        f64::from(count) / took
    })];
    let scores = compare("cloning 256 MiB", "maps/s", ways);
    [
        Aim::at_most("50 clones: memory to object and written pages", Some(used as f64 / needed as f64), 1.1),
        Aim::at_least("cloning: maps/s", scores.median("clone and drop"), 20_000.0),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Memory of this process in KiB: proportional pages, and page tables.
pub fn memory() -> (u64, u64) {
    let field = |file: &str, name: &str| {
        let text = std::fs::read_to_string(file).unwrap();
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    (field("/proc/self/smaps_rollup", "Pss:"), field("/proc/self/status", "VmPTE:"))
}
