//! Every policy gives through real memory what it gives in the simulator.

mod support;

use std::thread::sleep;
use std::time::{Duration, Instant};

use prepage_core::PageIndex;
use prepage_core::policy::choice::MOST_AHEAD;
use prepage_core::policy::{Neighbours, Policy};
use prepage_simulate::{Replay, Touch, model};
use prepage_vm::{MapOptions, Mode, Vm, VmOptions};
use proptest::prelude::*;
use serde_json::Value;
use support::{pages, touch, vm};

/// Longer than a busy machine keeps a handler thread from counting.
const PATIENCE: Duration = Duration::from_secs(60);

const VECTORS: &str = include_str!("../../simulate/tests/vectors/clustering.json");
/// What the vectors expect: of each sequence of touches under each policy.
const VECTORS_COUNT: usize = 88;

/// Faults, and what they read.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    hard: u64,
    soft: u64,
    io: u64,
    read: u64,
}

struct Case<'a> {
    object_pages: u64,
    window: (u64, u64),
    resident: &'a [u64],
    policy: Policy,
}

/// Touches real memory.
fn touched(vm: &Vm, case: &Case<'_>, mode: Mode, touches: &[u64], wanted: &Found) -> Found {
    let source = support::Words { len_bytes: case.object_pages * 4096, ..Default::default() };
    let object = vm.source("words", source).unwrap();
    let (first, end) = (case.window.0, case.window.1.min(case.object_pages));
    let other = vm.map(&object, &MapOptions::shared()).unwrap();
    for &page in case.resident {
        other.populate(pages(page, page + 1)).unwrap();
    }
    let options = MapOptions::shared().mode(mode).policy(case.policy.clone()).window(pages(first, end));
    let options = options.neighbours_of_policy().every_fault();
    let map = vm.map(&object, &options).unwrap();
    let before = vm.statistics().counted;
    for &page in touches {
        assert_eq!(touch(&map, page), support::word((first + page) * 4096), "page {page}");
    }
    let found = || {
        let after = vm.statistics().counted;
        Found {
            hard: after.hard - before.hard,
            soft: after.soft - before.soft,
            io: after.reads - before.reads,
            read: after.pages_read - before.pages_read,
        }
    };
    if mode == Mode::Handler {
        // A handler thread counts a fault after it let the thread go on.
        let began = Instant::now();
        while found() != *wanted && began.elapsed() < PATIENCE {
            sleep(Duration::from_millis(1));
        }
    }
    assert_eq!(object.resident_pages(), found().read + case.resident.len() as u64);
    found()
}

#[test]
fn neighbours_of_any_number_end_at_the_map() {
    for mode in [Mode::Inline, Mode::Handler] {
        let (vm, object) = (vm(), support::Words { len_bytes: 16 * 4096, ..Default::default() });
        let object = vm.source("words", object).unwrap();
        let other = vm.map(&object, &MapOptions::shared()).unwrap();
        other.populate(other.window()).unwrap();
        let options = MapOptions::shared().mode(mode).neighbours(Neighbours::Spiral(u64::MAX)).every_fault();
        let map = vm.map(&object, &options).unwrap();
        for page in [5, 0, 15] {
            assert_eq!(touch(&map, page), support::word(page * 4096));
        }
        support::until(|| vm.statistics().counted.soft == 1);
    }
}

#[test]
fn every_vector_is_exact_through_real_memory() {
    let vectors: Value = serde_json::from_str(VECTORS).unwrap();
    let vm = vm();
    let probe = vm.anonymous(4096).unwrap();
    let mut compared = 0;
    let modes = support::modes(&vm, &probe);
    for &mode in &modes {
        for (name, vector) in vectors.as_object().unwrap() {
            let touches: Vec<u64> = match name.as_str() {
                "CLANG1" => model::code_section(1),
                _ => vector["touches"].as_array().unwrap().iter().filter_map(Value::as_u64).collect(),
            };
            let option = |name: &str| vector["options"][name].as_u64();
            let resident: Vec<u64> = vector["options"]["resident"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_u64)
                .collect();
            let first = option("e_off").unwrap_or(0);
            for (policy, expected) in vector["expect"].as_object().unwrap() {
                let most_ahead = option("maxra").map_or(MOST_AHEAD, |most| most as u32);
                let policy = Policy::parse(policy, most_ahead).unwrap();
                let case = Case {
                    object_pages: vector["object_pages"].as_u64().unwrap(),
                    window: (first, option("e_pages").map_or(u64::MAX, |pages| first + pages)),
                    resident: &resident,
                    policy,
                };
                let wanted = |name: &str| expected[name].as_u64().unwrap();
                let wanted = Found {
                    hard: wanted("hard"),
                    soft: wanted("soft"),
                    io: wanted("io"),
                    read: wanted("read"),
                };
                let found = touched(&vm, &case, mode, &touches, &wanted);
                assert_eq!(found, wanted, "{name} under {} in {mode:?}", case.policy);
                compared += 1;
            }
        }
    }
    assert_eq!(compared, VECTORS_COUNT * modes.len());
}

/// One read brings in 256 pages.
#[test]
fn what_is_left_of_a_long_cluster_comes_in_the_background_up_to_what_is_there() {
    const PAGES: u64 = 6000;
    let ranges = [(0, 2047), (3300, 3301)].map(|(start, end)| pages(start, end));
    for policy in ["context", "aligned:1024", "sequential:1000", "readaround:600", "around:300:2000"] {
        let policy: Policy = policy.parse().unwrap();
        let mut replay = Replay::new();
        let simulated = replay.add_object(PAGES);
        let entry = replay.add_entry(simulated, 0, PAGES, policy.clone());
        let vm = vm();
        let source = support::Words { len_bytes: PAGES * 4096, ..Default::default() };
        let object = vm.source("words", source).unwrap();
        let other = vm.map(&object, &MapOptions::shared()).unwrap();
        for range in ranges {
            replay.give(simulated, range);
            other.populate(range).unwrap();
        }
        let map = vm.map(&object, &MapOptions::shared().policy(policy.clone()).every_fault()).unwrap();
        // The last of these finds what is there on both sides.
        for page in [2047, 3000, 5500, 5990] {
            replay.touch(Touch::new(entry, page));
            assert_eq!(touch(&map, page), support::word(page * 4096));
            let wanted = |page: &u64| replay.is_resident(simulated, PageIndex(*page));
            support::until(|| (0..PAGES).all(|page| !wanted(&page) || object.is_resident(PageIndex(page))));
            support::settled(&object);
            let differ = (0..PAGES).find(|page| object.is_resident(PageIndex(*page)) != wanted(page));
            assert_eq!(differ, None, "{policy}");
        }
        assert_eq!(vm.statistics().clusters.total(), replay.outcome().clusters.total(), "{policy}");
    }
}

/// In handler mode a thread goes on once its page is there. What is mapped with it has to be there by then, also behind pages that
/// were mapped before.
#[test]
fn a_fault_ends_when_all_that_it_maps_is_there() {
    const BLOCKS: u64 = 400;
    let vm = vm();
    let source = support::Words { len_bytes: BLOCKS * 16 * 4096, ..Default::default() };
    let object = vm.source("words", source).unwrap();
    if !support::modes(&vm, &object).contains(&Mode::Handler) {
        return;
    }
    let other = vm.map(&object, &MapOptions::shared()).unwrap();
    other.populate(other.window()).unwrap();
    let options = MapOptions::shared().mode(Mode::Handler).neighbours(Neighbours::Block(16)).every_fault();
    let map = vm.map(&object, &options).unwrap();
    (0..BLOCKS).for_each(|block| map.populate(pages(block * 16 + 8, block * 16 + 9)).unwrap());
    let before = vm.statistics().counted.soft;
    for block in 0..BLOCKS {
        for page in [0, 15, 9] {
            let page = block * 16 + page;
            assert_eq!(touch(&map, page), support::word(page * 4096));
        }
    }
    // A handler thread counts a fault after it let the thread go on.
    support::until(|| vm.statistics().counted.soft - before >= BLOCKS);
    drop(map);
    assert_eq!(vm.statistics().counted.soft - before, BLOCKS);
}

/// Code is read in larger runs than data, unless the VM or the map says otherwise.
#[test]
fn a_fault_in_an_executable_map_reads_64_pages() {
    let read_by_a_fault = |vm: &Vm, options: &MapOptions| {
        let object =
            vm.source("words", support::Words { len_bytes: 256 * 4096, ..Default::default() }).unwrap();
        let map = vm.map(&object, options).unwrap();
        let before = vm.statistics().counted;
        assert_eq!(touch(&map, 130), support::word(130 * 4096));
        let after = vm.statistics().counted;
        assert_eq!(object.resident_pages(), after.pages_read - before.pages_read);
        (after.reads - before.reads, after.pages_read - before.pages_read)
    };
    let (data, code) = (MapOptions::shared(), MapOptions::shared().executable());
    let vm = vm();
    assert_eq!(read_by_a_fault(&vm, &code), (1, 64));
    assert_eq!(read_by_a_fault(&vm, &data), (1, 16));
    assert_eq!(read_by_a_fault(&vm, &code.clone().policy("aligned:8".parse().unwrap())), (1, 8));
    let vm = Vm::new(VmOptions::default().policy("aligned:32".parse().unwrap())).unwrap();
    assert_eq!(read_by_a_fault(&vm, &code), (1, 64));
    assert_eq!(read_by_a_fault(&vm, &data), (1, 32));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The simulator is the naive model of the VM.
    #[test]
    fn random_touches_fault_as_simulated(
        policy in prop::sample::select(vec![
            "none", "around:3:2", "aligned:8", "sequential:5", "readaround:6", "adaptive", "adaptive:max=60,cluster=4",
        ]),
        object_pages in 1_u64..90,
        offset in 0_u64..40,
        touches in prop::collection::vec(0_u64..90, 1..120),
    ) {
        let first = offset.min(object_pages - 1);
        let policy: Policy = policy.parse().unwrap();
        let touches: Vec<u64> = touches.into_iter().map(|page| page % (object_pages - first)).collect();
        let mut replay = Replay::new();
        let simulated = replay.add_object(object_pages);
        let entry = replay.add_entry(simulated, first, object_pages - first, policy.clone());
        touches.iter().for_each(|&page| replay.touch(Touch::new(entry, page)));
        let outcome = replay.outcome();
        let case =
            Case { object_pages, window: (first, object_pages), resident: &[], policy };
        let wanted = Found { hard: outcome.hard, soft: outcome.soft, io: outcome.io, read: outcome.read };
        let vm = vm();
        prop_assert_eq!(touched(&vm, &case, Mode::Inline, &touches, &wanted), wanted);
        prop_assert_eq!(vm.statistics().clusters, outcome.clusters);
    }
}
