//! Snapshots: how long writers are held, what a snapshot and a clone take, and what many clones take in memory; beside fork(2)
//! and a private mapping of the same file.

use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_sys::forked::Forked;
use prepage_sys::mapping::FileMapping;
use prepage_vm::{Map, MapOptions, Object, Vm, VmOptions};

use crate::clones::memory;
use crate::reflink::Reflinks;
use crate::resident::Bytes;
use crate::rounds::{Aim, compare, median, seconds, way};

const MIB: u64 = 1 << 20;

pub fn measure() -> Vec<Aim> {
    let small = freeze(256 * MIB, 1024);
    let large = freeze(4096 * MIB, 4096 * MIB / PAGE_SIZE / 100);
    let mut aims = vec![
        Aim::at_most("256 MiB, 1,024 pages written: writers held, ms", Some(small.0), 1.0),
        Aim::at_most("256 MiB, 1,024 pages written: snapshot, ms", Some(small.1), 10.0),
        Aim::at_most("4 GiB, 1 % written: writers held, ms", Some(large.0), 10.0),
    ];
    aims.push(depth());
    aims.push(shadowed());
    aims.push(tables());
    aims.extend(clones());
    aims.into_iter().flatten().collect()
}

/// A map of `len_bytes` that are all there.
fn whole(vm: &Vm, len_bytes: u64) -> Map {
    let object = vm.source("image", Bytes(len_bytes)).unwrap();
    let map = vm.map(&object, &MapOptions::private()).unwrap();
    map.populate(map.window()).unwrap();
    map
}

/// Writes to `count` pages spread over the map, others each time.
fn scatter(bytes: &mut [u8], count: u64, round: u64) {
    for page in scattered(bytes.len() as u64, count, round) {
        bytes[(page * PAGE_SIZE) as usize] = round as u8 | 1;
    }
}

/// `count` pages of `len_bytes`, others each round.
fn scattered(len_bytes: u64, count: u64, round: u64) -> impl Iterator<Item = u64> {
    let pages = len_bytes / PAGE_SIZE;
    let apart = pages / count;
    (0..count).map(move |index| {
        // Somewhere in each stretch.
        let within = (index + round).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        (index * apart + within % apart) % pages
    })
}

fn rounds() -> u64 {
    std::env::var("ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(7)
}

/// How long writers are held and what a snapshot takes, in milliseconds: medians.
fn freeze(len_bytes: u64, count: u64) -> (f64, f64) {
    let vm = Vm::new(VmOptions::default()).unwrap();
    let mut map = whole(&vm, len_bytes);
    let mut plain = vec![1_u8; len_bytes as usize];
    let (mut held, mut took, mut forked, mut kept) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut written, mut written_after_fork) = (Vec::new(), Vec::new());
    scatter(map.as_mut_slice(), count, 0);
    let before = vm.statistics().counted.freeze_ns;
    let first = seconds(|| kept.push(map.snapshot().unwrap())) * 1e3;
    let first_held = (vm.statistics().counted.freeze_ns - before) as f64 / 1e6;
    for round in 1..=rounds() {
        let microseconds = |seconds: f64| seconds * 1e6 / count as f64;
        written.push(microseconds(seconds(|| scatter(map.as_mut_slice(), count, round))));
        let before = vm.statistics().counted.freeze_ns;
        took.push(seconds(|| kept.push(map.snapshot().unwrap())) * 1e3);
        held.push((vm.statistics().counted.freeze_ns - before) as f64 / 1e6);
        let mut child = None;
        forked.push(
            seconds(|| {
                child = Some(Forked::new(|| {
                    loop {
                        std::thread::park();
                    }
                }));
            }) * 1e3,
        );
        let child = child.expect("made just now").expect("fork(2) failed");
        written_after_fork.push(microseconds(seconds(|| scatter(&mut plain, count, round))));
        child.kill().expect("the child of just now");
    }
    let spread = |values: &[f64]| {
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        format!("{least:.2}..{:.2}", values.iter().copied().fold(0.0, f64::max))
    };
    println!("\n{} MiB, {count} scattered pages written before each snapshot, milliseconds", len_bytes / MIB);
    for (name, values) in
        [("writers held", &held), ("snapshot", &took), ("fork(2) of as much memory", &forked)]
    {
        println!("  {name:<56} {:>12.2} {:>18}", median(values.clone()), spread(values));
    }
    println!("  {:<56} {first_held:>12.2}", "writers held by the first snapshot");
    println!("  {:<56} {first:>12.2}", "the first snapshot, which begins to watch the map");
    println!("  first write to a page after it, microseconds:");
    for (name, values) in [("after a snapshot", &written), ("after fork(2)", &written_after_fork)] {
        println!("  {name:<56} {:>12.2} {:>18}", median(values.clone()), spread(values));
    }
    (median(held), median(took))
}

/// All pages of a clone read, below a hundred snapshots and below one.
fn depth() -> Option<Aim> {
    const LEN: u64 = 64 * MIB;
    let vm = Vm::new(VmOptions::default()).unwrap();
    let mut maps = [whole(&vm, LEN), whole(&vm, LEN)];
    let pages = LEN / PAGE_SIZE;
    // The same 1,600 pages, by a hundred snapshots and by one.
    let page = |index: u64| (index * 10 * PAGE_SIZE) as usize;
    let mut snapshots: Vec<Object> = Vec::new();
    for round in 0..100 {
        (0..16).for_each(|index| maps[0].as_mut_slice()[page(round * 16 + index)] = 1);
        snapshots.push(maps[0].snapshot().unwrap());
    }
    (0..1600).for_each(|index| maps[1].as_mut_slice()[page(index)] = 1);
    snapshots.push(maps[1].snapshot().unwrap());
    let depth = vm.chains().depth_max;
    let read = |object: &Object| {
        let map = vm.map(object, &MapOptions::private()).unwrap();
        let bytes = map.as_slice();
        let took = seconds(|| {
            let sum: u64 = (0..pages).map(|page| u64::from(bytes[(page * PAGE_SIZE) as usize])).sum();
            std::hint::black_box(sum);
        });
        took * 1e6 / pages as f64
    };
    let ways = vec![
        way("below one snapshot", || read(&snapshots[100])),
        way("below a hundred", || read(&snapshots[99])),
    ];
    let scores = compare("a clone of 64 MiB read, 1,600 pages of it frozen", "µs a page", ways);
    println!("  greatest depth of a chain: {depth}");
    Aim::at_most(
        "reads below 100 snapshots to below 1",
        scores.ratio("below a hundred", "below one snapshot"),
        1.05,
    )
}

/// Pages that two maps above have written over.
fn shadowed() -> Option<Aim> {
    const LEN: u64 = 64 * MIB;
    // Nothing is freed before it is looked for.
    let vm = Vm::new(VmOptions::default().free_shadowed_after(std::time::Duration::MAX)).unwrap();
    let zeros = vm.anonymous(LEN).unwrap();
    let mut map = vm.map(&zeros, &MapOptions::private()).unwrap();
    let write = |map: &mut Map, value: u8| {
        map.as_mut_slice().iter_mut().step_by(PAGE_SIZE as usize).for_each(|byte| *byte = value);
    };
    write(&mut map, 1);
    let base = map.snapshot().unwrap();
    let mut clone = vm.map(&base, &MapOptions::private()).unwrap();
    drop(base);
    write(&mut map, 2);
    write(&mut clone, 3);
    let _tops = [map.snapshot().unwrap(), clone.snapshot().unwrap()];
    let before = memory().0;
    let mut freed = 0;
    let took = seconds(|| freed = vm.free_shadowed().unwrap());
    let pages = LEN / PAGE_SIZE;
    println!(
        "\n64 MiB shadowed by all maps above: {freed} of {pages} pages found and freed in {:.1} ms; frames {} of {}; memory {} MiB, then {} MiB",
        took * 1e3,
        vm.statistics().pool.resident_pages,
        3 * pages,
        before >> 10,
        memory().0 >> 10,
    );
    Aim::at_least("shadowed pages freed", Some(freed as f64 / pages as f64), 0.99)
}

/// What it takes to have a clone and to write to 1 % of its pages.
fn written(vm: &Vm, snapshot: &Object, plain: &mut [u8], reflinks: Option<&Reflinks>) {
    let count = snapshot.pages().len() / 100;
    let mut ways = vec![
        way("clone of a snapshot", || {
            seconds(|| {
                let mut map = vm.map(snapshot, &MapOptions::private()).unwrap();
                scatter(map.as_mut_slice(), count, 1);
            }) * 1e3
        }),
        way("fork(2) with as much memory", || {
            let child = || {
                scatter(plain, count, 1);
                0
            };
            seconds(|| {
                Forked::new(child).unwrap().wait().unwrap();
            }) * 1e3
        }),
    ];
    if let Some(reflinks) = reflinks {
        ways.push(way("a file that shares its blocks (XFS)", || {
            seconds(|| {
                let (file, _mapping) = reflinks.copy();
                for page in scattered(snapshot.len_bytes(), count, 1) {
                    file.write_all_at(&[1], page * PAGE_SIZE).unwrap();
                }
            }) * 1e3
        }));
    }
    compare("a clone of 1 GiB, 1 % of it written, and gone", "ms", ways);
}

/// Page tables of an idle map whose pages were evicted.
fn tables() -> Option<Aim> {
    const LEN: u64 = 1024 * MIB;
    let vm = Vm::new(VmOptions::default()).unwrap();
    let object = vm.source("image", Bytes(LEN)).unwrap();
    let map = vm.map(&object, &MapOptions::private()).unwrap();
    map.populate(map.window()).unwrap();
    // A word of 8 bytes for each page.
    let full = (LEN / PAGE_SIZE * 8) >> 10;
    object.evict(object.pages()).unwrap();
    let mut pruned = 0;
    let took = seconds(|| pruned = vm.prune_page_tables().unwrap() >> 10);
    println!(
        "\nan idle map of 1 GiB, evicted: {pruned} of {full} KiB of page tables pruned in {:.1} ms",
        took * 1e3
    );
    Aim::at_least("page tables of an idle map pruned", Some(pruned as f64 / full as f64), 0.95)
}

/// A hundred clones of a snapshot of 1 GiB, each writing 1 %.
fn clones() -> Vec<Option<Aim>> {
    const LEN: u64 = 1024 * MIB;
    const CLONES: u64 = 100;
    let vm = Vm::new(VmOptions::default()).unwrap();
    let pages = LEN / PAGE_SIZE;
    let before = memory();
    let snapshot = {
        // Half of it is a file's, half written.
        let object = vm.source("image", Bytes(LEN)).unwrap();
        let mut map = vm.map(&object, &MapOptions::private()).unwrap();
        map.populate(map.window()).unwrap();
        let half = (LEN / 2) as usize;
        map.as_mut_slice()[half..].iter_mut().step_by(PAGE_SIZE as usize).for_each(|byte| *byte = 1);
        let snapshot = map.snapshot().unwrap();
        // What the snapshot shadows can be read again.
        object.evict(PageRange::new(PageIndex(pages / 2), PageIndex(pages))).unwrap();
        snapshot
    };
    let all = vm.map(&snapshot, &MapOptions::private()).unwrap();
    let frames = vm.statistics().pool.resident_pages;
    let mut clones: Vec<Map> = Vec::new();
    for number in 0..CLONES {
        let mut clone = vm.map(&snapshot, &MapOptions::private()).unwrap();
        scatter(clone.as_mut_slice(), pages / 100, number);
        clones.push(clone);
    }
    all.populate(PageRange::new(PageIndex(0), PageIndex(pages))).unwrap();
    let after = memory();
    let needed = (frames + CLONES * (pages / 100)) * PAGE_SIZE;
    let used = (after.0 - before.0) * 1024;
    println!(
        "\n{CLONES} clones of a snapshot of 1 GiB, each writing 1 %: memory {} MiB, image ({} MiB of frames) and written \
         pages {} MiB: {:.3}; page tables {} MiB",
        used / MIB,
        frames * PAGE_SIZE / MIB,
        needed / MIB,
        used as f64 / needed as f64,
        (after.1 - before.1) >> 10,
    );
    drop(clones);
    let file = tempfile::NamedTempFile::new_in(".").unwrap();
    file.as_file().set_len(LEN).unwrap();
    let mut plain = vec![1_u8; LEN as usize];
    let (vm, snapshot) = (&vm, &snapshot);
    let reflinks =
        Reflinks::new(LEN).inspect_err(|error| println!("\nno files that share blocks: {error}")).ok();
    let mut ways = vec![
        way("clone of a snapshot", || {
            let mut map = None;
            seconds(|| map = Some(vm.map(snapshot, &MapOptions::private()).unwrap())) * 1e6
        }),
        way("mmap(2) of a file", || {
            let pages = PageRange::covering(0, LEN);
            let mut mapping = None;
            seconds(|| mapping = Some(FileMapping::new(file.as_file().as_fd(), pages).unwrap())) * 1e6
        }),
        way("fork(2) with as much memory", || {
            std::hint::black_box(&plain);
            let mut child = None;
            let took = seconds(|| child = Some(Forked::new(|| 0).unwrap()));
            child.expect("made just now").wait().expect("the child of just now");
            took * 1e6
        }),
    ];
    if let Some(reflinks) = &reflinks {
        ways.push(way("a file that shares its blocks (XFS), mapped", || {
            let mut copy = None;
            seconds(|| copy = Some(reflinks.copy())) * 1e6
        }));
    }
    let scores = compare("a clone of 1 GiB is ready", "µs", ways);
    written(vm, snapshot, &mut plain, reflinks.as_ref());
    vec![
        Aim::at_most(
            "100 clones: memory to image and written pages",
            Some(used as f64 / needed as f64),
            1.05,
        ),
        Aim::at_most("a clone of 1 GiB is ready, µs", scores.median("clone of a snapshot"), 100.0),
    ]
}
