//! Faults on an object that is in memory: the cost of the fault path alone.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use prepage_core::policy::Neighbours;
use prepage_core::{PageIndex, PageRange};
use prepage_sys::memfd::Memfd;
use prepage_sys::region::{Contents, Region};
use prepage_vm::{Map, MapOptions, Mode, Object, Source, SourceError, Vm, VmOptions};

use crate::bare::bare;
use crate::plain::plain;
use crate::rounds::{Aim, compare, median, seconds, way};

const PAGES: u64 = 1 << 16;
const BARE: &str = "bare SIGBUS and UFFDIO_CONTINUE";
const KERNEL: &str = "kernel, memfd mapped, fault-around 16 pages";
/// Faults by a handler are slow: a part of the object is enough.
const PART: u64 = PAGES / 16;

/// So many maps are touched one after the other, and stay: what tells the kernel of a frame comes into the CPU's caches with the
/// first, of ours as of bare calls.
pub const MAPS: usize = 4;

/// Pages of one byte each.
pub struct Bytes(pub u64);

impl Source for Bytes {
    fn len_bytes(&self) -> u64 {
        self.0
    }

    fn read(&self, _: u64, into: &mut [u8]) -> Result<(), SourceError> {
        into.fill(7);
        Ok(())
    }
}

/// Touches every page of `slice`, spread over `threads` threads, and returns pages a second.
pub fn touch_all(slice: &[u8], threads: usize) -> f64 {
    let pages = slice.len() / 4096;
    let took = seconds(|| {
        thread::scope(|scope| {
            for part in slice.chunks(slice.len() / threads) {
                scope.spawn(move || {
                    let mut sum = 0_u64;
                    for page in part.chunks(4096) {
                        sum += u64::from(std::hint::black_box(page)[0]);
                    }
                    assert_ne!(sum, 0);
                });
            }
        });
    });
    pages as f64 / took
}

/// As `touch_all` by one thread, by the median of pieces of 256 pages: a piece is shorter than the time for which other
/// programs take the CPU away, and so tells what faults cost on a machine that is shared.
pub fn touch_pieces(slice: &[u8]) -> f64 {
    let rates = slice.chunks_exact(256 * 4096).map(|piece| {
        let took = seconds(|| {
            let sum: u64 = piece.chunks(4096).map(|page| u64::from(std::hint::black_box(page)[0])).sum();
            assert_ne!(sum, 0);
        });
        256.0 / took
    });
    median(rates.collect())
}

/// Which neighbours a fault of ours maps.
#[derive(Clone, Copy, PartialEq)]
enum Shape {
    Cluster(u64),
    /// As they are without a word of the program.
    Default,
}

/// By one thread, in its signal handler, as bare calls.
fn ours_kept(vm: &Vm, object: &Object, shape: Shape) -> f64 {
    let on_map = |_| ours(vm, object, Mode::Inline, shape, PAGES, touch_pieces);
    let (rates, _maps): (Vec<f64>, Vec<Map>) = (0..MAPS).map(on_map).unzip();
    rates.iter().sum::<f64>() / MAPS as f64
}

/// What touching shows, and the map.
fn ours(
    vm: &Vm,
    object: &Object,
    mode: Mode,
    shape: Shape,
    pages: u64,
    touch: impl FnOnce(&[u8]) -> f64,
) -> (f64, Map) {
    let options =
        MapOptions::private().mode(mode).every_fault().window(PageRange::new(PageIndex(0), PageIndex(pages)));
    let options = match shape {
        Shape::Cluster(cluster) => {
            options.policy("none".parse().expect("a policy")).neighbours(Neighbours::Block(cluster))
        }
        Shape::Default => options,
    };
    let map = vm.map(object, &options).unwrap();
    let before = vm.statistics().counted;
    let rate = touch(map.as_slice());
    let least = match shape {
        Shape::Cluster(cluster) => pages / cluster,
        Shape::Default => pages / 16,
    };
    let faults = || vm.statistics().counted.soft - before.soft;
    // A handler thread counts a fault after it let the thread go on.
    (0..1000).take_while(|_| faults() < least).for_each(|_| thread::sleep(Duration::from_millis(1)));
    assert!(faults() >= least, "every page faulted");
    (rate, map)
}

/// A map that is left to the kernel.
fn given(vm: &Vm, object: &Object, threads: usize) -> f64 {
    let before = vm.statistics().counted;
    let map = vm.map(object, &MapOptions::private()).unwrap();
    let rate = touch_all(map.as_slice(), threads);
    let after = vm.statistics().counted;
    assert_eq!((after.maps_given - before.maps_given, after.soft - before.soft), (1, 0));
    rate
}

fn kernel(memfd: &Memfd, threads: usize) -> f64 {
    let region = Region::map(PAGES * 4096, Contents::Private(memfd, 0)).unwrap();
    touch_all(region.as_slice(), threads)
}

pub fn measure() -> Vec<Aim> {
    let vm = Vm::new(VmOptions::default()).unwrap();
    let object = vm.source("bytes", Bytes(PAGES * 4096)).unwrap();
    let filled = vm.map(&object, &MapOptions::shared()).unwrap();
    filled.populate(filled.window()).unwrap();
    let path = frames();
    let memfd = Memfd::open(&path).unwrap();
    let mut aims = inline(&vm, &object, &path);
    aims.extend(handler(&vm, &object, &memfd));
    aims.extend(complete(&vm, &object, &memfd));
    aims
}

/// Where the object's frames can be had. Whoever it is compared with shows the same: a call that maps 64 pages took 14 µs where
/// they lay one after the other in memory, and 20 where they lay as they came.
fn frames() -> PathBuf {
    let is_of_object = |path: &PathBuf| {
        fs::read_link(path).is_ok_and(|name| name.to_string_lossy().starts_with("/memfd:prepage "))
            && fs::metadata(path).is_ok_and(|file| file.blocks() * 512 >= PAGES * 4096)
    };
    let own = PathBuf::from(format!("/proc/{}/fd", std::process::id()));
    let mut open = fs::read_dir(own).unwrap().map(|entry| entry.unwrap().path());
    open.find(is_of_object).expect("the object's frames")
}

/// By the thread that touches, to the same calls of the kernel and nothing else.
fn inline(vm: &Vm, object: &Object, frames: &Path) -> Vec<Aim> {
    let mut ways = Vec::new();
    for cluster in [1, 64] {
        ways.push(way(format!("{BARE}, cluster {cluster}"), move || bare(frames, PAGES, cluster)));
        ways.push(way(format!("inline, cluster {cluster}"), move || {
            ours_kept(vm, object, Shape::Cluster(cluster))
        }));
        ways.push(way(format!("inline, cluster {cluster}, 2 threads"), move || {
            ours(vm, object, Mode::Inline, Shape::Cluster(cluster), PAGES, |slice| touch_all(slice, 2)).0
        }));
    }
    for (name, shape) in
        [("inline, blocks of 16", Shape::Cluster(16)), ("inline, default options", Shape::Default)]
    {
        ways.push(way(name, move || ours_kept(vm, object, shape)));
    }
    let title =
        "resident object of 256 MiB, every fault served by its thread, in order; median pieces of 256 pages";
    let scores = compare(title, "pages/s; ratio to bare calls of cluster 1", ways);
    let bare = |cluster| format!("{BARE}, cluster {cluster}");
    [
        scores.aim("inline, cluster 1: to bare kernel calls", "inline, cluster 1", &bare(1), 0.9),
        scores.aim("inline, cluster 64: to bare kernel calls", "inline, cluster 64", &bare(64), 0.95),
        scores.aim(
            "default options, in order: to blocks of 16",
            "inline, default options",
            "inline, blocks of 16",
            0.9,
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// By threads of the VM, to a plain handler where that is at its best, touchers pinned there and free here.
fn handler(vm: &Vm, object: &Object, memfd: &Memfd) -> Vec<Aim> {
    let mut ways = Vec::new();
    for cluster in [1, 64] {
        let pages = if cluster == 1 { PART } else { PAGES };
        for pinned in [true, false] {
            let name =
                format!("plain handler, cluster {cluster}, {}", if pinned { "pinned" } else { "free" });
            ways.push(way(name, move || plain(memfd, pages, cluster, pinned, touch_pieces)));
        }
        for threads in [1, 2] {
            ways.push(way(format!("handler, cluster {cluster}, {threads} free"), move || {
                ours(vm, object, Mode::Handler, Shape::Cluster(cluster), pages, |slice| match threads {
                    1 => touch_pieces(slice),
                    _ => touch_all(slice, threads),
                })
                .0
            }));
        }
    }
    let title = "the same, served by threads; one toucher: median pieces of 256 pages, two: all";
    let scores = compare(title, "pages/s; ratio to the plain handler on the toucher's CPU, cluster 1", ways);
    let fault_us = |what: &str, name: &str, threads: f64| {
        let us = |rate| threads * 1e6 / rate;
        Some(Aim::at_most(what, scores.median(name).map(us), 7.0)?.best(scores.best(name).map(us)))
    };
    let [one, wide] = [1, 64].map(|cluster| format!("plain handler, cluster {cluster}, pinned"));
    [
        scores.aim(
            "handler, cluster 1: to the plain handler, pinned",
            "handler, cluster 1, 1 free",
            &one,
            0.85,
        ),
        scores.aim(
            "handler, cluster 64: to the plain handler, pinned",
            "handler, cluster 64, 1 free",
            &wide,
            0.9,
        ),
        fault_us("handler, one toucher, free: microseconds a fault", "handler, cluster 1, 1 free", 1.0),
        fault_us("handler, two touchers, free: microseconds a fault each", "handler, cluster 1, 2 free", 2.0),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// By the kernel, which maps what is wholly there.
fn complete(vm: &Vm, object: &Object, memfd: &Memfd) -> Vec<Aim> {
    let ways = vec![
        way(KERNEL, || kernel(memfd, 1)),
        way("ours, complete", || given(vm, object, 1)),
        way("kernel, 2 threads", || kernel(memfd, 2)),
        way("ours, complete, 2 threads", || given(vm, object, 2)),
    ];
    let scores = compare("a complete object, default options", "pages/s", ways);
    [
        scores.aim("complete object: to the kernel's map of a memfd", "ours, complete", KERNEL, 0.95),
        scores.aim(
            "complete object, 2 threads: the same",
            "ours, complete, 2 threads",
            "kernel, 2 threads",
            0.95,
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}
