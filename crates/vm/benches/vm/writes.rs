//! Writes to a file through a shared map: the first write to each page, and a flush of all that was written; beside a mapping of
//! the kernel's. And memory without a file, twice as much as fits.

use std::cell::Cell;
use std::io::Write;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_sys::mapping::WritableMapping;
use prepage_vm::{Map, MapOptions, Mode, Pool, PoolOptions, Vm, VmOptions};

use crate::rounds::{Aim, compare, seconds, way};

const PAGES: u64 = 1 << 13;
const KERNEL: &str = "kernel, mmap(2)";
const OURS: &str = "ours";

pub fn measure() -> Vec<Aim> {
    let directory = std::env::var("DIRECTORY").unwrap_or_else(|_| ".".to_owned());
    let file = || {
        let mut file = tempfile::NamedTempFile::new_in(&directory).expect("a file");
        file.write_all(&vec![7; (PAGES * PAGE_SIZE) as usize]).expect("room for it");
        file.as_file().sync_all().expect("room for it");
        file
    };
    let (kernels, own) = (file(), file());
    let all = PageRange::new(PageIndex(0), PageIndex(PAGES));
    let kernel = WritableMapping::new(kernels.as_file().as_fd(), all).expect("a mapping");
    // What is written back by itself would be protected again in the middle.
    let vm = Vm::new(VmOptions::default().write_back_after(std::time::Duration::from_secs(3600))).unwrap();
    let object = vm.file_writable(own.path()).unwrap();
    let mut modes = vec![(OURS, Mode::Inline)];
    if vm.map(&object, &MapOptions::writable().mode(Mode::Handler)).is_ok() {
        modes.push(("ours, faults served by a handler", Mode::Handler));
    }
    let maps: Vec<(&str, Map)> = modes
        .into_iter()
        .map(|(name, mode)| {
            let map = vm.map(&object, &MapOptions::writable().mode(mode)).unwrap();
            map.populate(all).unwrap();
            (name, map)
        })
        .collect();
    let mut aims = Vec::new();
    for apart in [1, 8] {
        let written = || (0..PAGES).step_by(apart).map(|page| page * PAGE_SIZE);
        let count = PAGES as f64 / apart as f64;
        let of = |what: &str| format!("{what}, one page in {apart} of {} MiB", (PAGES * PAGE_SIZE) >> 20);
        // Another value each time: what is as it was is not written back.
        let value = Cell::new(0_u8);
        let next = || {
            value.set(value.get().wrapping_add(1));
            value.get()
        };
        let write = |map: &Map| {
            let value = next();
            written().for_each(|at| map.as_atomics()[at as usize].store(value, Ordering::Relaxed));
        };
        let kernel_writes = || {
            let value = next();
            written().for_each(|at| kernel.set_byte(at, value));
        };
        // Each round ends with clean pages.
        let mut firsts = vec![way(KERNEL, || {
            let took = seconds(kernel_writes);
            kernel.sync().unwrap();
            count / took
        })];
        firsts.extend(maps.iter().map(|(name, map)| {
            way(*name, move || {
                let took = seconds(|| write(map));
                map.flush(all).unwrap();
                count / took
            })
        }));
        let first = compare(&of("first writes"), "pages/s; ratio to the kernel", firsts);
        let mut flushes = vec![way(KERNEL, || {
            kernel_writes();
            count / seconds(|| kernel.sync().unwrap())
        })];
        flushes.extend(maps.iter().map(|(name, map)| {
            way(*name, move || {
                write(map);
                count / seconds(|| map.flush(all).unwrap())
            })
        }));
        let flush = compare(&of("flush (msync(2))"), "pages/s; ratio to the kernel", flushes);
        aims.extend(Aim::at_least(&of("first writes to the kernel's"), first.ratio(OURS, KERNEL), 0.5));
        aims.extend(Aim::at_least(&of("flush to msync(2)"), flush.ratio(OURS, KERNEL), 1.0));
    }
    swap(&directory);
    aims
}

/// Memory without a file that takes turns in half as many frames.
fn swap(directory: &str) {
    let options = PoolOptions::default().limit_bytes(PAGES / 2 * PAGE_SIZE);
    let pool = Pool::with(&options.swap(directory, PAGES * PAGE_SIZE)).unwrap();
    let vm = Vm::new(VmOptions::default().pool(&pool)).unwrap();
    let object = vm.memory(PAGES * PAGE_SIZE).unwrap();
    let map = vm.map(&object, &MapOptions::writable()).unwrap();
    let bytes = || (0..PAGES).map(|page| &map.as_atomics()[(page * PAGE_SIZE) as usize]);
    let value = Cell::new(0_u8);
    let written = way("each page written to, in order", || {
        value.set(value.get() % u8::MAX + 1);
        PAGES as f64 / seconds(|| bytes().for_each(|byte| byte.store(value.get(), Ordering::Relaxed)))
    });
    let read = way("each page read, in order", || {
        PAGES as f64
            / seconds(|| {
                let sum = bytes().map(|byte| u64::from(byte.load(Ordering::Relaxed))).sum::<u64>();
                assert_eq!(sum, PAGES * u64::from(value.get()));
            })
    });
    compare("memory without a file, half of it swapped out", "pages/s; ratio to writes", vec![written, read]);
    let counted = vm.statistics().counted;
    println!("  {} pages were written to the swap file, {} came back", counted.pages_swapped, counted.hard);
}
