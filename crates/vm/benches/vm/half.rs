//! A pool of half as many frames as the pages that are used, beside UMap with a buffer of as many pages.

use prepage_core::policy::Neighbours;
use prepage_simulate::model::Random;
use prepage_vm::{MapOptions, Vm, VmOptions};

use crate::cold::{Data, none, walk};
use crate::rounds::{Aim, compare, way};
use crate::umap::Umap;

const MIB: u64 = 64;
const OURS: &str = "ours";
const UMAP: &str = "UMap";

pub fn measure() -> Vec<Aim> {
    let data = &Data::of(MIB);
    let umap = Umap::given();
    let mut aims = Vec::new();
    let orders = [
        ("uniform", uniform(data.pages)),
        ("Zipf", zipf(data.pages)),
        ("a scan and a hot set", scan(data.pages)),
    ];
    for (order_name, order) in orders {
        for (state, bound) in [("cold", 1.3), ("in the page cache", 5.0)] {
            let ready = || match state {
                "cold" => data.cool(),
                _ => drop(std::io::copy(&mut std::fs::File::open(&data.path).unwrap(), &mut std::io::sink())),
            };
            let ours = || {
                ready();
                let options = VmOptions::default().frame_limit_bytes(MIB << 19);
                let vm = Vm::new(options).unwrap();
                let object = vm.file(&data.path).unwrap();
                let options = MapOptions::shared().policy(none()).neighbours(Neighbours::Block(1));
                let map = vm.map(&object, &options).unwrap();
                walk(|at| map.as_slice()[at as usize], &order)
            };
            let mut ways = vec![way(OURS, ours)];
            ways.extend(umap.as_ref().ok().map(|umap| {
                way(UMAP, || {
                    ready();
                    umap.walk(&data.path, &order, Some(data.pages / 2))
                })
            }));
            let title = format!("half of {MIB} MiB in frames, {order_name}, a file that is {state}");
            let scores = compare(&title, "pages/s", ways);
            let what = format!("pool of half, {order_name}, {state}: to UMap");
            aims.extend(match &umap {
                Ok(_) => scores.aim(&what, OURS, UMAP, bound),
                Err(why) => Some(Aim::not_run(&what, bound, why)),
            });
        }
    }
    aims
}

/// Twice as many touches as there are pages, each page as likely as any other.
fn uniform(pages: u64) -> Vec<u64> {
    let mut random = Random(1);
    (0..2 * pages).map(|_| random.next() % pages).collect()
}

/// As many: the page of rank r as likely as r to the power of −0.99, ranks scattered over the file (YCSB's default).
fn zipf(pages: u64) -> Vec<u64> {
    let mut random = Random(1);
    let mut total = 0.0;
    let sums: Vec<f64> = (1..=pages)
        .map(|rank| {
            total += (rank as f64).powf(-0.99);
            total
        })
        .collect();
    let rank = |part: f64| sums.partition_point(|&sum| sum < part * total) as u64;
    // Every page once: 2654435761 is a prime, and larger than the file's pages.
    let scattered = |rank: u64| rank.min(pages - 1).wrapping_mul(2_654_435_761) % pages;
    (0..2 * pages).map(|_| scattered(rank(random.share()))).collect()
}

/// As many: every other one of an eighth of the pages, between them a scan around the rest.
fn scan(pages: u64) -> Vec<u64> {
    let (hot, rest) = (pages / 8, pages - pages / 8);
    let hot_touches = uniform(pages).into_iter().map(|page| page % hot);
    hot_touches
        .enumerate()
        .map(|(turn, page)| if turn % 2 == 0 { page } else { hot + turn as u64 / 2 % rest })
        .collect()
}
