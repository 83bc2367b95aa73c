//! What the kernel takes for a fault that is served by the thread that took it: SIGBUS, one UFFDIO_CONTINUE, or a read and one
//! UFFDIO_COPY, and return.
//!
//! A process has one SIGBUS handler, and here it is the VM's: this runs in a process of its own.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use prepage_sys::memfd::Memfd;
use prepage_sys::region::{Contents, Region};
use prepage_sys::sigbus::{self, BusFault, Verdict};
use prepage_sys::userfaultfd::{Delivery, Progress, Served, Userfaultfd, Writes};

use rustix::io::{ReadWriteFlags, preadv2};

use crate::cold::{at_random, walk};
use crate::resident::{MAPS, touch_pieces};

/// The argument that makes this program the child.
pub const CHILD: &str = "bare-child";
static UFFD: OnceLock<Userfaultfd> = OnceLock::new();

/// One region after the other, and which of them is touched now.
static REGIONS: [OnceLock<Region>; MAPS] = [const { OnceLock::new() }; MAPS];
static NOW: AtomicUsize = AtomicUsize::new(0);

/// Pages a call maps, in the child.
static CLUSTER_BYTES: AtomicU64 = AtomicU64::new(4096);

/// The file whose pages are read, in the child, and what they are read into.
static FILE: OnceLock<(File, Mutex<[u8; 4096]>)> = OnceLock::new();

/// Pages a second of the memfd at `path`, whose first `pages` pages are there.
pub fn bare(path: &Path, pages: u64, cluster: u64) -> f64 {
    run(&[path.to_str().expect("a path of /proc"), &pages.to_string(), &cluster.to_string()])
}

/// Pages a second of the file at `path`, which is in the page cache, an eighth of them at random, a page a fault.
pub fn bare_reads(path: &Path) -> f64 {
    run(&[path.to_str().expect("a path of the benchmark's own")])
}

fn run(words: &[&str]) -> f64 {
    let itself = std::env::current_exe().expect("this program");
    let output =
        Command::new(itself).arg(CHILD).args(words).stderr(Stdio::inherit()).output().expect("it runs");
    assert!(output.status.success(), "the child that makes bare calls: {}", output.status);
    String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number")
}

pub fn child(words: &[String]) {
    if let [path] = words {
        return child_that_reads(path);
    }
    let [pages, cluster] = [1, 2].map(|index| words[index].parse::<u64>().expect("a number"));
    CLUSTER_BYTES.store(cluster * 4096, Ordering::Relaxed);
    let uffd = UFFD.get_or_init(|| Userfaultfd::open(Delivery::Signal).expect("permitted"));
    sigbus::install(resolve).expect("a handler");
    let memfd = Memfd::open(Path::new(&words[0])).expect("a memfd of the benchmark");
    let mut rates = Vec::new();
    for (now, region) in REGIONS.iter().enumerate() {
        let region =
            region.get_or_init(|| Region::map(pages * 4096, Contents::Private(&memfd, 0)).expect("space"));
        uffd.register(region.span(), Served::MissingAndUnmapped).expect("a memfd");
        NOW.store(now, Ordering::Relaxed);
        rates.push(touch_pieces(region.as_slice()));
    }
    println!("{}", rates.iter().sum::<f64>() / rates.len() as f64);
}

fn child_that_reads(path: &str) {
    let file = File::open(path).expect("the benchmark's file");
    let pages = file.metadata().expect("known").len() / 4096;
    FILE.set((file, Mutex::new([0; 4096]))).expect("once");
    let uffd = UFFD.get_or_init(|| Userfaultfd::open(Delivery::Signal).expect("permitted"));
    sigbus::install(resolve_by_reading).expect("a handler");
    let memfd = Memfd::create("bare", pages * 4096).expect("a memfd");
    let region = Region::map(pages * 4096, Contents::Shared(&memfd, 0)).expect("space");
    let region = REGIONS[0].get_or_init(|| region);
    uffd.register(region.span(), Served::MissingAndUnmapped).expect("a memfd");
    let slice = region.as_slice();
    println!("{}", walk(|at| slice[at as usize], &at_random(pages, 8)));
}

fn resolve_by_reading(fault: &BusFault) -> Verdict {
    let (file, buffer) = FILE.get().expect("set before there are faults");
    let uffd = UFFD.get().expect("opened before there are faults");
    let region = REGIONS[0].get().expect("mapped before it is touched");
    let offset = (fault.address - region.start()) & !4095;
    let mut bytes = buffer.lock().expect("one thread");
    let into = &mut [std::io::IoSliceMut::new(&mut *bytes)];
    // A page that is in memory, but at which the kernel would read ahead, is refused where nothing may be waited for.
    let read = preadv2(file, into, offset, ReadWriteFlags::NOWAIT);
    if read.or_else(|_| preadv2(file, into, offset, ReadWriteFlags::empty())) != Ok(4096) {
        return Verdict::Failed;
    }
    match uffd.copy(region.span(), offset, &*bytes, Writes::Free) {
        Ok(Progress::Done) => Verdict::Resolved,
        _ => Verdict::Failed,
    }
}

fn resolve(fault: &BusFault) -> Verdict {
    let uffd = UFFD.get().expect("opened before there are faults");
    let region = REGIONS[NOW.load(Ordering::Relaxed)].get().expect("set before it is touched");
    let bytes = CLUSTER_BYTES.load(Ordering::Relaxed);
    let offset = (fault.address - region.start()) & !(bytes - 1);
    match uffd.map_resident(region.span(), offset, bytes, Writes::Free) {
        Ok(_) => Verdict::Resolved,
        Err(_) => Verdict::Failed,
    }
}
