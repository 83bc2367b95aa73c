//! What the kernel takes for each part of a fault that its own thread serves: the signal, the call that maps, the return;
//! and what it takes to map the same pages without userfaultfd.
//!
//! `cargo run --release -p prepage-sys --example fault_costs`

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use prepage_sys::memfd::Memfd;
use prepage_sys::region::{Contents, Region};
use prepage_sys::sigbus::{self, BusFault, Verdict};
use prepage_sys::userfaultfd::{Delivery, Served, Userfaultfd, Writes};

const PAGES: u64 = 1 << 14;

static UFFD: OnceLock<Userfaultfd> = OnceLock::new();
static BEGAN: OnceLock<Instant> = OnceLock::new();
static CLUSTER_BYTES: AtomicU64 = AtomicU64::new(0);
/// One region after the other, and which of them is touched now.
static REGIONS: [OnceLock<Region>; 8] = [const { OnceLock::new() }; 8];
static NOW: AtomicUsize = AtomicUsize::new(0);
/// When the handler of the last fault began and ended.
static HANDLED: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

fn now_ns() -> u64 {
    BEGAN.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

fn resolve(fault: &BusFault) -> Verdict {
    HANDLED[0].store(now_ns(), Ordering::Relaxed);
    let bytes = CLUSTER_BYTES.load(Ordering::Relaxed);
    let region = REGIONS[NOW.load(Ordering::Relaxed)].get().expect("set before it is touched");
    let offset = (fault.address - region.start()) & !(bytes - 1);
    let mapped = UFFD.get().map(|uffd| uffd.map_resident(region.span(), offset, bytes, Writes::Free));
    HANDLED[1].store(now_ns(), Ordering::Relaxed);
    if matches!(mapped, Some(Ok(_))) { Verdict::Resolved } else { Verdict::Failed }
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}

fn private(memfd: &Memfd) -> Region {
    Region::map(PAGES * 4096, Contents::Private(memfd, 0)).expect("address space")
}

fn touch(region: &Region, page: u64) {
    std::hint::black_box(std::hint::black_box(region.as_slice())[(page * 4096) as usize]);
}

/// Nanoseconds of the signal, the call and the return, by the median fault of `cluster` pages.
fn parts(memfd: &Memfd, uffd: &Userfaultfd, cluster: u64) -> [u64; 3] {
    CLUSTER_BYTES.store(cluster * 4096, Ordering::Relaxed);
    let now = NOW.load(Ordering::Relaxed) + 1;
    let region = REGIONS[now].get_or_init(|| private(memfd));
    NOW.store(now, Ordering::Relaxed);
    uffd.register(region.span(), Served::MissingAndUnmapped).expect("a memfd");
    let mut parts = [(); 3].map(|()| Vec::new());
    for page in (0..PAGES).step_by(cluster as usize) {
        let began = now_ns();
        touch(region, page);
        let ended = now_ns();
        let [entered, left] = [0, 1].map(|which| HANDLED[which].load(Ordering::Relaxed));
        for (times, took) in parts.iter_mut().zip([entered - began, left - entered, ended - left]) {
            times.push(took);
        }
    }
    parts.map(median)
}

/// Nanoseconds a page to map all of a memfd without userfaultfd, by one call and by touching it.
fn without(memfd: &Memfd) -> [f64; 2] {
    let per_page = |work: &dyn Fn(&Region)| {
        let region = private(memfd);
        let began = now_ns();
        work(&region);
        (now_ns() - began) as f64 / PAGES as f64
    };
    let call = per_page(&|region| {
        let advice = rustix::mm::Advice::LinuxPopulateRead;
        // SAFETY: the range is the region's; filling its page table changes no contents.
        unsafe { rustix::mm::madvise(region.start() as *mut _, region.len() as usize, advice) }
            .expect("Linux 5.14");
    });
    [call, per_page(&|region| (0..PAGES).for_each(|page| touch(region, page)))]
}

fn main() {
    let uffd = UFFD.get_or_init(|| Userfaultfd::open(Delivery::Signal).expect("permitted to every user"));
    sigbus::install(resolve).expect("a handler");
    let memfd = Memfd::create("costs", PAGES * 4096).expect("a memfd");
    for page in 0..PAGES {
        memfd.write_at(&[7; 4096], page * 4096).expect("memory");
    }
    // Once for the caches.
    parts(&memfd, uffd, 64);
    println!(
        "{:>8} {:>12} {:>18} {:>12} {:>12}",
        "cluster", "signal, ns", "UFFDIO_CONTINUE", "a page", "return, ns"
    );
    for cluster in [1, 16, 64, 512] {
        let [signal, call, back] = parts(&memfd, uffd, cluster);
        println!("{cluster:>8} {signal:>12} {call:>18} {:>12} {back:>12}", call / cluster);
    }
    let [call, touched] = without(&memfd);
    println!("without userfaultfd: MADV_POPULATE_READ {call:.0} ns a page, touched in order {touched:.0}");
}
