//! A local file that is not in memory.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use prepage_core::policy::predicted::Predicted;
use prepage_core::policy::{Neighbours, Policy};
use prepage_core::profile::Extent;
use prepage_core::{PageIndex, PageRange};
use prepage_simulate::model::Random;
use prepage_sys::mapping::FileMapping;
use prepage_vm::{Advice, MapOptions, Mode, Vm, VmOptions};

use crate::bare::bare_reads;
use crate::rounds::{Aim, Way, compare, compare_pieces, seconds, way};
use crate::umap::Umap;

const KERNEL: &str = "kernel mmap, read-ahead 128 KiB";
const KERNEL_RANDOM: &str = "kernel mmap, MADV_RANDOM";
const BARE: &str = "bare SIGBUS, preadv2 and UFFDIO_COPY, cached";

// What is held against a bound.
const IN_ORDER: (&str, f64) = ("cold file in order", 1.0);
const TO_RANDOM: (&str, f64) = ("cold file at random: to kernel mmap, MADV_RANDOM", 1.05);
const TO_UMAP: (&str, f64) = ("cold file at random: to UMap", 1.4);
const CACHED_TO_UMAP: (&str, f64) = ("file in the page cache at random, cluster 1: to UMap", 12.0);
const CACHED_TO_BARE: (&str, f64) =
    ("file in the page cache at random, cluster 1: to bare kernel calls", 0.9);
const PREDICTED: (&str, f64) = ("cold file, predicted working set: to kernel mmap", 3.0);

/// The file, removed when this is dropped.
pub struct Data {
    pub path: PathBuf,
    pub pages: u64,
}

impl Data {
    /// As large as FILE_MIB says.
    fn new() -> Self {
        Self::of(std::env::var("FILE_MIB").ok().and_then(|text| text.parse().ok()).unwrap_or(1024))
    }

    pub fn of(mib: u64) -> Self {
        let directory = std::env::var("DIRECTORY").unwrap_or_else(|_| ".".to_owned());
        let path = PathBuf::from(directory).join(format!(".bench-vm-{}", std::process::id()));
        let data = Self { path, pages: mib * 256 };
        let mut file = File::create(&data.path).unwrap();
        let mut block = vec![0_u8; 1 << 20];
        for number in 0..mib {
            let mut random = Random(number + 1);
            for bytes in block.chunks_exact_mut(8) {
                random.next();
                bytes.copy_from_slice(&(random.0 | 1).to_le_bytes());
            }
            file.write_all(&block).unwrap();
        }
        file.sync_all().unwrap();
        data
    }

    /// Takes the file out of the page cache.
    pub fn cool(&self) {
        let file = File::open(&self.path).unwrap();
        // Pages that are being read ahead for who was here before stay until they are there.
        prepage_sys::cachestat::evict(file.as_fd(), Duration::from_secs(2)).unwrap();
        let all = PageRange::new(PageIndex(0), PageIndex(self.pages));
        let cached = prepage_sys::cachestat::cached_pages(file.as_fd(), all).unwrap();
        assert_eq!(cached, 0, "pages stayed in memory");
    }

    pub fn kernel(&self) -> FileMapping {
        let file = File::open(&self.path).unwrap();
        FileMapping::new(file.as_fd(), PageRange::new(PageIndex(0), PageIndex(self.pages))).unwrap()
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Pages in the order in which they are touched.
type Order = Arc<[u64]>;

/// Touches a byte of each line of all pages of `order`, as a reader would.
pub fn walk(byte: impl Fn(u64) -> u8, order: &[u64]) -> f64 {
    let mut sum = 0_u64;
    let took = seconds(|| {
        for &page in order {
            sum += (0..64).map(|line| u64::from(byte(page * 4096 + line * 64))).sum::<u64>();
        }
    });
    assert_ne!(sum, 0);
    order.len() as f64 / took
}

/// One in `part` of so many pages, in a random order.
pub fn at_random(pages: u64, part: u64) -> Vec<u64> {
    let mut order: Vec<u64> = (0..pages).collect();
    Random(1).shuffle(&mut order);
    order.truncate((pages / part) as usize);
    order
}

/// What is touched, and how: in one piece after the other, each from a cold file.
struct Cold<'a> {
    data: &'a Data,
    pieces: Arc<[Order]>,
}

/// A file in order and at random is touched in so many pieces.
const PIECES: usize = 8;

/// Gives one piece after the other, over and over.
fn turns(pieces: &Arc<[Order]>) -> impl FnMut() -> Order + use<> {
    let pieces = Arc::clone(pieces);
    let mut turn = 0;
    move || {
        turn += 1;
        Arc::clone(&pieces[(turn - 1) % pieces.len()])
    }
}

impl<'a> Cold<'a> {
    fn kernel(&self, name: &str, random: bool) -> Way<'a> {
        let (data, mut next) = (self.data, turns(&self.pieces));
        way(name, move || {
            let order = next();
            data.cool();
            let region = data.kernel();
            if random {
                region.expect_random().unwrap();
            }
            walk(|at| region.byte(at), &order)
        })
    }

    /// Inline, inline past the page cache, inline by faults that sleep while they wait, and by a handler.
    fn ours(&self, name: &str, policy: &Policy, advice: Advice) -> [Way<'a>; 4] {
        let usual = VmOptions::default();
        let sleeping = VmOptions::default().read_spin(Duration::ZERO);
        [
            ("inline", Mode::Inline, false, &usual),
            ("inline, direct", Mode::Inline, true, &usual),
            ("inline, sleeping", Mode::Inline, false, &sleeping),
            ("handler", Mode::Handler, false, &usual),
        ]
        .map(|(mode_name, mode, direct, vm_options)| {
            let vm_options = vm_options.clone();
            let (data, mut next, policy) = (self.data, turns(&self.pieces), policy.clone());
            way(format!("ours, {name}, {mode_name}"), move || {
                let order = next();
                data.cool();
                let vm = Vm::new(vm_options.clone()).unwrap();
                let object = if direct { vm.file_direct(&data.path) } else { vm.file(&data.path) }.unwrap();
                // A piece in order ends where its map does: what is read ahead is of use to it.
                let pages = order.iter().max().map_or(0, |&last| last + 1);
                let window = PageRange::new(PageIndex(0), PageIndex(pages));
                let options = MapOptions::shared().mode(mode).policy(policy.clone()).window(window);
                let map = vm.map(&object, &options).unwrap();
                map.advise(advice).unwrap();
                {
                    let slice = map.as_slice();
                    walk(|at| slice[at as usize], &order)
                }
            })
        })
    }
}

pub fn measure(chosen: impl Fn(&str) -> bool) -> Vec<Aim> {
    let data = &Data::new();
    let mut aims = Vec::new();
    let umap = (chosen("random") || chosen("cached")).then(Umap::given);
    let umap = match &umap {
        Some(Ok(umap)) => Ok(umap),
        Some(Err(why)) => Err(why.as_str()),
        None => Err("not asked for"),
    };
    if chosen("sequential") {
        aims.extend(sequential(data));
    }
    if chosen("random") {
        aims.extend(random(data, umap));
    }
    if chosen("cached") {
        aims.extend(cached(data, umap));
    }
    if chosen("predicted") {
        aims.extend(predicted(data));
    }
    aims
}

/// What is not measured where the kernel's read-ahead cannot be set.
pub fn not_run(why: &str) -> Vec<Aim> {
    let in_order = (&*format!("{}: to {KERNEL}", IN_ORDER.0), IN_ORDER.1);
    [in_order, TO_RANDOM, TO_UMAP, CACHED_TO_UMAP, CACHED_TO_BARE, PREDICTED]
        .map(|(what, bound)| Aim::not_run(what, bound, why))
        .into()
}

/// In order, to the kernel with the read-ahead that the machine has.
pub fn as_found() -> Vec<Aim> {
    let data = &Data::new();
    in_order(data, "kernel mmap, read-ahead as found", "cold file in order, as found").into_iter().collect()
}

fn sequential(data: &Data) -> Vec<Aim> {
    in_order(data, KERNEL, IN_ORDER.0)
}

fn in_order(data: &Data, kernel: &str, what: &str) -> Vec<Aim> {
    let all: Vec<u64> = (0..data.pages).collect();
    let cold = Cold { data, pieces: cut(&all) };
    let mut ways = vec![cold.kernel(kernel, false)];
    ways.extend(cold.ours("sequential", &none(), Advice::Sequential));
    let scores = compare_pieces(&format!("{what}, every page"), "pages/s", PIECES, ways);
    [("", "inline"), (", past the page cache", "inline, direct")]
        .into_iter()
        .filter_map(|(how, way)| {
            scores.aim(
                &format!("{what}{how}: to {kernel}"),
                &format!("ours, sequential, {way}"),
                kernel,
                IN_ORDER.1,
            )
        })
        .collect()
}

/// A file that is in the page cache, at random, a page a fault: pages a second, to hold against other user-space handlers.
fn cached(data: &Data, umap: Result<&Umap, &str>) -> Vec<Aim> {
    let order: Order = at_random(data.pages, 8).into();
    std::io::copy(&mut File::open(&data.path).unwrap(), &mut std::io::sink()).unwrap();
    let kernel = || {
        let mapping = data.kernel();
        mapping.expect_random().unwrap();
        walk(|at| mapping.byte(at), &order)
    };
    let ours = |mode| {
        let vm = Vm::new(VmOptions::default()).unwrap();
        let object = vm.file(&data.path).unwrap();
        let options = MapOptions::shared().mode(mode).policy(none()).neighbours(Neighbours::Block(1));
        let map = vm.map(&object, &options).unwrap();
        let slice = map.as_slice();
        walk(|at| slice[at as usize], &order)
    };
    let mut ways = vec![
        way("kernel mmap, MADV_RANDOM, cached", kernel),
        way(BARE, || bare_reads(&data.path)),
        way("ours, cached, inline", || ours(Mode::Inline)),
        way("ours, cached, handler", || ours(Mode::Handler)),
    ];
    // It takes ages: a part is enough.
    let part = &order[..order.len() / 8];
    ways.extend(umap.ok().map(|umap| way("UMap, cached", || umap.walk(&data.path, part, None))));
    let scores =
        compare("file in the page cache, 1/8 of its pages at random, a page a fault", "pages/s", ways);
    let (what, bound) = CACHED_TO_UMAP;
    let ours = "ours, cached, inline";
    let to_bare = scores.aim(CACHED_TO_BARE.0, ours, BARE, CACHED_TO_BARE.1);
    let others = match umap {
        Ok(_) => [scores.aim(what, ours, "UMap, cached", bound), None],
        // UMap's published sources gave 15 to 17 thousand pages a second on a machine of two cores.
        Err(why) => {
            let rate = "file in the page cache at random: pages/s";
            let rate = Aim::at_least(rate, scores.median(ours), bound * 17e3);
            let rate = rate.map(|rate| rate.best(scores.best(ours)));
            [Some(Aim::not_run(what, bound, why)), rate]
        }
    };
    others.into_iter().chain([to_bare]).flatten().collect()
}

fn random(data: &Data, umap: Result<&Umap, &str>) -> Vec<Aim> {
    let order = at_random(data.pages, 16);
    let cold = Cold { data, pieces: cut(&order) };
    let mut ways = vec![cold.kernel(KERNEL_RANDOM, true)];
    ways.extend(cold.ours("cluster 1", &none(), Advice::Random));
    let mut next = turns(&cold.pieces);
    ways.extend(umap.ok().map(|umap| {
        way("UMap, cold", move || {
            data.cool();
            umap.walk(&data.path, &next(), None)
        })
    }));
    let scores = compare_pieces("cold file, 1/16 of its pages in random order", "pages/s", PIECES, ways);
    let ours = "ours, cluster 1, inline";
    [
        scores.aim(TO_RANDOM.0, ours, KERNEL_RANDOM, TO_RANDOM.1),
        match umap {
            Ok(_) => scores.aim(TO_UMAP.0, ours, "UMap, cold", TO_UMAP.1),
            Err(why) => Some(Aim::not_run(TO_UMAP.0, TO_UMAP.1, why)),
        },
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// A tenth of the pages, in runs of 1 to 8, touched in an order of its own.
fn predicted(data: &Data) -> Option<Aim> {
    let mut runs = Vec::new();
    let (mut page, mut random) = (0, Random(7));
    while page < data.pages {
        let number = random.next();
        let (len, gap) = (1 + number % 8, (number >> 7) % 81);
        runs.push((page, (page + len).min(data.pages)));
        page += len + gap;
    }
    let mut ranks: Vec<u64> = (0..runs.len() as u64).collect();
    Random(3).shuffle(&mut ranks);
    let order: Order = ranks.iter().flat_map(|&rank| runs[rank as usize].0..runs[rank as usize].1).collect();
    let extents: Vec<Extent> = ranks
        .iter()
        .enumerate()
        .map(|(rank, &run)| {
            let (start, end) = runs[run as usize];
            let range = PageRange::new(PageIndex(start), PageIndex(end));
            Extent::new(range, rank as u32)
        })
        .collect();
    let policy = Policy::Predicted(Predicted::new(&extents, 16));
    let percent = 100 * order.len() as u64 / data.pages;
    let cold = Cold { data, pieces: [order].into() };
    let mut ways = vec![cold.kernel(KERNEL, false), cold.kernel(KERNEL_RANDOM, true)];
    ways.extend(cold.ours("predicted", &policy, Advice::Normal));
    let title = format!("cold file, a working set of {percent} % in {} runs", runs.len());
    let scores = compare(&title, "pages/s", ways);
    scores.aim(PREDICTED.0, "ours, predicted, inline", KERNEL, PREDICTED.1)
}

fn cut(order: &[u64]) -> Arc<[Order]> {
    order.chunks(order.len().div_ceil(PIECES)).map(Order::from).collect()
}

pub fn none() -> Policy {
    "none".parse().expect("a policy")
}
