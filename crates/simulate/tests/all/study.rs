//! The page-fault study's counts from the model of its file, its kernel and its disk.

use prepage_simulate::{Contender, Input, Options, Outcome, compare};

/// Linux as it was: 32 pages of read-ahead, no fault-around; on the study's disk, with its costs.
fn as_in_the_study(model: &str) -> Outcome {
    let mut contender = Contender::new("linux-data:ra=32,map=1").expect("a policy");
    contender.device = Some("hosted".parse().expect("a device"));
    let options = Options { soft_fault_ns: 1800, ..Options::default() };
    let input = Input::model(model.parse().expect("a model"));
    compare(&input, &[contender], &options).expect("simulated").remove(0).outcome
}

/// Published: 1 disk fault, 1 short, 11,299 cached.
#[test]
fn the_sequential_file_takes_one_disk_fault() {
    assert_eq!(as_in_the_study("file:sequential").logged(), [1, 1, 11_299]);
}

/// Published: 58, 58, 11,242. All but the first wait for a read under way, which the study's log counts as disk faults.
#[test]
fn the_4_kib_stride_waits_for_the_hosts_read_ahead() {
    let outcome = as_in_the_study("file:stride-4k");
    let [disk, short, cached] = outcome.logged();
    assert_eq!((outcome.hard, short, disk + cached), (1, disk, 11_300));
    assert!((56..=60).contains(&disk), "{disk}");
}

/// Published: 7224, 7224, 4075, which are 11,299 faults of first touches. The count depends on where each sweep begins,
/// and so on the file's exact length, which is not published: the model's counts of lengths about 11,300 lie on both sides of 7224.
#[test]
fn the_256_kib_stride_stops_reading_around() {
    assert_eq!(as_in_the_study("file:stride-256k").logged(), [4830, 4830, 6470]);
    let disk = |pages| as_in_the_study(&format!("file:stride-256k,pages={pages}")).logged()[0];
    assert_eq!([11_295, 11_296, 11_297, 11_298, 11_299].map(disk), [3425, 5032, 7793, 6401, 7007]);
    for model in ["file:stride-256k", "file:stride-256k,pages=11299"] {
        assert_eq!(Input::model(model.parse().expect("a model")).sweeps, Some(64), "{model}");
    }
}

/// Published: 6198; models without time: 5839.
#[test]
fn the_random_file_takes_six_thousand_disk_faults() {
    let mut disk: Vec<u64> =
        (1..=30).map(|seed| as_in_the_study(&format!("file:random:{seed}")).logged()[0]).collect();
    disk.sort_unstable();
    assert!((5700..=6200).contains(&disk[15]), "{disk:?}");
}

/// Published: the whole fault cost of the 4 KiB stride is 1.49 of that of the sequence, and that of the 256 KiB stride 0.90
/// of that of a random order. The model gives 1.63, and for the lengths whose disk faults are nearest the published 7224 (7007 and
/// 7793) 0.76 and 0.96, if its host keeps what it has read as the study's drive seems to. Its costs are lower: 57 µs a disk fault in random
/// order, and 148 in the study. The computing between faults is the same in all orders and no part of it.
#[test]
fn columns_of_the_orders_compare() {
    let orders = [
        ("file:sequential", 11_300),
        ("file:stride-4k", 11_300),
        ("file:stride-256k,pages=11299", 11_299),
        ("file:stride-256k,pages=11297", 11_297),
        ("file:random:7", 11_300),
    ];
    let outcomes = orders.map(|(model, pages)| {
        let outcome = as_in_the_study(model);
        assert_eq!(outcome.time_ns - outcome.fault_ns, pages * 4096 * 20, "{model}");
        assert!(outcome.stall_ns < outcome.fault_ns, "{model}");
        outcome
    });
    let [sequential, narrow, wide, widest, random] = &outcomes;
    let ratio = |of: &Outcome, to: &Outcome| format!("{:.2}", of.fault_ns as f64 / to.fault_ns as f64);
    let ratios = [ratio(narrow, sequential), ratio(wide, random), ratio(widest, random)];
    assert_eq!(ratios, ["1.63", "0.76", "0.96"]);
    assert_eq!(random.stall_ns / random.hard / 1000, 57, "µs a disk fault");
}

/// Today's kernel maps 16 pages at a fault.
#[test]
fn fault_around_leaves_one_fault_for_sixteen_resident_pages() {
    let input = Input::model("file:random:1".parse().expect("a model"));
    let contender = Contender::new("linux-data").expect("a policy");
    let twice = Options { runs: 2, ..Options::default() };
    let soft = |options| {
        compare(&input, std::slice::from_ref(&contender), options).expect("simulated").remove(0).outcome.soft
    };
    assert_eq!(soft(&twice) - soft(&Options::default()), 707);
}
