//! Faults on an object that is in memory: the cost of the fault path alone.

use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::Duration;

use prepage_core::policy::Neighbours;
use prepage_core::{PageIndex, PageRange};
use prepage_sys::region::{Contents, Region};
use prepage_vm::{MapOptions, Mode, Object, Source, SourceError, Vm, VmOptions};

use crate::bare::bare;
use crate::plain::Plain;
use crate::rounds::{Aim, compare, median, seconds, way};

const PAGES: u64 = 1 << 16;
const BARE: &str = "bare SIGBUS and UFFDIO_CONTINUE";
const PLAIN_PIECE: &str = "plain poll-based handler, median piece";
const PLAIN: &str = "plain poll-based handler, 1 page a fault";

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

fn ours(vm: &Vm, object: &Object, mode: Mode, cluster: u64, touch: impl FnOnce(&[u8]) -> f64) -> f64 {
    // A part at cluster 1, where faults are slow; all at larger ones.
    let pages = if cluster == 1 && mode == Mode::Handler { PAGES / 16 } else { PAGES };
    let options = MapOptions::private()
        .mode(mode)
        .policy("none".parse().expect("a policy"))
        .neighbours(Neighbours::Block(cluster))
        .window(PageRange::new(PageIndex(0), PageIndex(pages)));
    let map = vm.map(object, &options).unwrap();
    let before = vm.statistics().counted;
    let rate = touch(map.as_slice());
    let faults = || vm.statistics().counted.soft - before.soft;
    // A handler thread counts a fault after it let the thread go on.
    (0..1000)
        .take_while(|_| faults() < pages / cluster)
        .for_each(|_| thread::sleep(Duration::from_millis(1)));
    assert!(faults() >= pages / cluster, "every page faulted");
    rate
}

fn plain(memfd: &OwnedFd, touch: impl FnOnce(&[u8]) -> f64) -> f64 {
    let plain = Plain::start();
    let region = Region::map(PAGES / 16 * 4096, Contents::Private(memfd.as_fd(), 0)).unwrap();
    plain.register(region.start(), region.len());
    touch(region.as_slice())
}

fn kernel(memfd: &OwnedFd, threads: usize) -> f64 {
    let region = Region::map(PAGES * 4096, Contents::Private(memfd.as_fd(), 0)).unwrap();
    touch_all(region.as_slice(), threads)
}

pub fn measure() -> Vec<Aim> {
    let vm = Vm::new(VmOptions::default()).unwrap();
    let object = vm.source("bytes", Bytes(PAGES * 4096)).unwrap();
    let filled = vm.map(&object, &MapOptions::shared()).unwrap();
    filled.populate(filled.window()).unwrap();
    let memfd = rustix::fs::memfd_create("kernel", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    for page in 0..PAGES {
        rustix::io::pwrite(&memfd, &[7; 4096], page * 4096).unwrap();
    }
    let mut ways = vec![
        way(PLAIN, || plain(&memfd, |slice| touch_all(slice, 1))),
        way(PLAIN_PIECE, || plain(&memfd, touch_pieces)),
        way("kernel, memfd mapped, fault-around 16 pages, 1 thread", || kernel(&memfd, 1)),
        way("kernel, 2 threads", || kernel(&memfd, 2)),
    ];
    for cluster in [1, 64] {
        ways.push(way(format!("{BARE}, cluster {cluster}, median piece"), move || bare(cluster, 0)));
        for threads in [1, 2] {
            ways.push(way(format!("{BARE}, cluster {cluster}, {threads} thread"), move || {
                bare(cluster, threads)
            }));
        }
    }
    for mode in [Mode::Inline, Mode::Handler] {
        for cluster in [1, 16, 64, 512] {
            for threads in [1, 2] {
                if mode == Mode::Handler && threads == 2 {
                    continue;
                }
                let (vm, object) = (&vm, &object);
                let name = format!("{mode:?}, cluster {cluster}, {threads} thread").to_lowercase();
                ways.push(way(name, move || {
                    ours(vm, object, mode, cluster, |slice| touch_all(slice, threads))
                }));
                if threads == 1 && [1, 64].contains(&cluster) {
                    let name = format!("{mode:?}, cluster {cluster}, median piece").to_lowercase();
                    ways.push(way(name, move || ours(vm, object, mode, cluster, touch_pieces)));
                }
            }
        }
    }
    let scores =
        compare("resident object of 256 MiB, private map", "pages/s; ratio to the plain handler", ways);
    let cost_us = |name: &str| scores.median(name).map(|rate| 1e6 / rate);
    let piece = |start| format!("{start}, median piece");
    let [one_piece, wide_piece] = ["inline, cluster 1", "inline, cluster 64"].map(piece);
    let [handler_piece, handler_wide] = ["handler, cluster 1", "handler, cluster 64"].map(piece);
    let one = "inline, cluster 1, 1 thread";
    let wide = "inline, cluster 64, 1 thread";
    let ratio = |name: &str, to: &str| scores.ratio(name, to);
    [
        Aim::at_most("inline, cluster 1: microseconds a fault", cost_us(&one_piece), 2.5),
        Aim::at_least("inline, cluster 64: pages/s", scores.median(&wide_piece), 5e6),
        Aim::at_least("inline, cluster 1: 2 threads to 1", ratio("inline, cluster 1, 2 thread", one), 1.4),
        Aim::at_least("inline, cluster 64: 2 threads to 1", ratio("inline, cluster 64, 2 thread", wide), 1.6),
        Aim::at_least("inline, cluster 1: to the plain handler", ratio(&one_piece, PLAIN_PIECE), 8.0),
        Aim::at_most("handler, cluster 1: microseconds a fault", cost_us(&handler_piece), 25.0),
        Aim::at_least("handler, cluster 64: pages/s", scores.median(&handler_wide), 2.5e6),
    ]
    .into_iter()
    .flatten()
    .collect()
}
