//! Memory of zeros, each page written to once.

use std::thread;

use prepage_sys::region::{Contents, Region};
use prepage_vm::{MapOptions, Vm, VmOptions};

use crate::rounds::{Aim, compare, seconds, way};

const BYTES: u64 = 512 << 20;

fn write_all(slice: &mut [u8], threads: usize) -> f64 {
    let pages = slice.len() / 4096;
    let part = slice.len() / threads;
    let took = seconds(|| {
        thread::scope(|scope| {
            for part in slice.chunks_mut(part) {
                scope.spawn(move || {
                    for page in part.chunks_mut(4096) {
                        std::hint::black_box(page)[0] = 1;
                    }
                });
            }
        });
    });
    pages as f64 / took
}

/// The second of two turns: memory that the guest has not touched of late is slow for whoever touches it first, for the host
/// has to find it, and the kernel gives again what the same kind of allocation has just given back.
fn second(turn: impl Fn() -> f64) -> f64 {
    turn();
    turn()
}

fn kernel(contents: impl Fn() -> Contents<'static>, threads: usize) -> f64 {
    second(|| {
        let mut region = Region::map(BYTES, contents()).unwrap();
        write_all(region.as_mut_slice(), threads)
    })
}

fn ours(vm: &Vm, options: &MapOptions, threads: usize) -> f64 {
    second(|| {
        let object = vm.anonymous(BYTES).unwrap();
        let mut map = vm.map(&object, options).unwrap();
        write_all(map.as_mut_slice(), threads)
    })
}

pub fn measure() -> Vec<Aim> {
    let mut aims = Vec::new();
    let vm = Vm::new(VmOptions::default()).unwrap();
    let vm = &vm;
    for threads in [1, 2] {
        let small = |cluster| MapOptions::private().zero_cluster(cluster);
        let ways = vec![
            way("kernel, 4 KiB pages", move || kernel(|| Contents::Anonymous, threads)),
            way("ours, cluster 16", move || ours(vm, &small(16), threads)),
            way("ours, cluster 64", move || ours(vm, &small(64), threads)),
            way("ours, cluster 512", move || ours(vm, &small(512), threads)),
            way("kernel, transparent huge pages", move || kernel(|| Contents::AnonymousHuge, threads)),
            way("ours, huge pages", move || ours(vm, &MapOptions::private().huge_pages(), threads)),
        ];
        let scores = compare(
            &format!("zeros, 512 MiB, {threads} thread(s)"),
            "pages/s; ratio to the kernel's 4 KiB pages",
            ways,
        );
        let of = |what: &str| format!("zeros, {threads} thread(s): {what}");
        aims.extend(Aim::at_least(
            &of("cluster 64 to the kernel's 4 KiB pages"),
            scores.ratio("ours, cluster 64", "kernel, 4 KiB pages"),
            1.3,
        ));
        aims.extend(Aim::at_least(
            &of("huge pages to the kernel's"),
            scores.ratio("ours, huge pages", "kernel, transparent huge pages"),
            0.95,
        ));
    }
    aims
}
