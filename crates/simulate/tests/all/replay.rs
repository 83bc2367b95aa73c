//! What a replay counts besides the vectors' figures.

use prepage_core::policy::Policy;
use prepage_core::policy::cluster::ClusterCount;
use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_simulate::device::DeviceModel;
use prepage_simulate::model::code_section;
use prepage_simulate::{Input, Outcome, Replay, Timeline, Touch};

fn policy(text: &str) -> Policy {
    text.parse().expect("a policy")
}

/// Touches of an object of `pages` pages through one entry.
fn touched(pages: u64, text: &str, touches: &[u64]) -> Outcome {
    let mut replay = Replay::new();
    let object = replay.add_object(pages);
    let entry = replay.add_entry(object, 0, pages, policy(text));
    touches.iter().for_each(|&page| replay.touch(Touch::new(entry, page)));
    replay.outcome()
}

#[test]
fn a_cluster_cut_by_the_objects_start_is_truncated() {
    let outcome = touched(32, "around:8:7", &[4, 28, 16]);
    assert_eq!((outcome.hard, outcome.full_and_truncated()), (3, (0, 3)));
    assert!(
        outcome
            .clusters
            .iter()
            .eq([(8, ClusterCount { full: 0, truncated: 1 }), (12, ClusterCount { full: 0, truncated: 2 }),])
    );
    let full = touched(32, "around:8:7", &[8, 24, 16]);
    assert_eq!((full.hard, full.full_and_truncated()), (2, (2, 0)));
    assert_eq!(touched(32, "aligned:16", &[4, 28, 16]).full_and_truncated(), (2, 0));
}

/// "In general, truncated clusters are more common than full clusters", of 8 pages behind and 7 ahead.
#[test]
fn truncated_clusters_are_the_rule_with_fixed_windows_and_the_exception_with_aligned_ones() {
    let pages = prepage_simulate::model::CODE_PAGES;
    let (full, truncated) = touched(pages, "around:8:7", &code_section(1)).full_and_truncated();
    assert!(truncated > full, "{truncated} {full}");
    assert_eq!(touched(pages, "aligned:16", &code_section(1)).full_and_truncated(), (679, 0));
}

#[test]
fn every_entry_of_an_object_has_a_policy_of_its_own() {
    let mut replay = Replay::new();
    let object = replay.add_object(256);
    let sequential = replay.add_entry(object, 0, 64, policy("sequential:31"));
    let random = replay.add_entry(object, 64, 64, policy("none"));
    let default = replay.add_entry(object, 128, 128, policy("aligned:16"));
    let mut hard_of = |entry, touches: &[u64]| {
        let before = replay.progress();
        touches.iter().for_each(|&page| replay.touch(Touch::new(entry, page)));
        let after = replay.progress();
        (after.hard - before.hard, after.read - before.read)
    };
    assert_eq!(hard_of(sequential, &(0..64).collect::<Vec<_>>()), (2, 64));
    assert_eq!(hard_of(random, &[5, 40, 6, 41]), (4, 4));
    assert_eq!(hard_of(default, &[5, 40, 6, 41]), (2, 32));
    // What one entry read is there for the others of its object.
    let whole = replay.add_entry(object, 0, 256, policy("none"));
    let read = replay.progress().read;
    replay.touch(Touch::new(whole, 0));
    assert_eq!(replay.progress().read, read);
}

#[test]
fn a_timeline_may_come_after_the_objects() {
    let mut replay = Replay::new();
    let object = replay.add_object(32);
    let entry = replay.add_entry(object, 0, 32, policy("none"));
    let mut replay = replay.with_timeline(Timeline::new("flash".parse().expect("a device"), 0, 0));
    let second = replay.add_object(32);
    let other = replay.add_entry(second, 0, 32, policy("none"));
    replay.replay(&[Touch::new(entry, 3), Touch::new(other, 3)]);
    assert!(replay.outcome().stall_ns >= 160_000);
}

/// A fault of such a policy maps all of its cluster, so it waits for all of it, however many requests that takes.
#[test]
fn nothing_is_mapped_before_the_device_can_have_read_it() {
    const PAGES: u64 = 4096;
    let device: DeviceModel = "flash".parse().expect("a device");
    let transfer_ns = PAGES * PAGE_SIZE * 1_000_000_000 / device.bytes_per_s;
    for name in ["slurp", "aligned:512", "sequential:511", "context", "predicted"] {
        let mut replay = Replay::new().with_timeline(Timeline::new(device.clone(), 0, 0));
        let object = replay.add_object(PAGES);
        let entry = replay.add_entry(object, 0, PAGES, policy(name));
        (0..PAGES).for_each(|page| replay.touch(Touch::new(entry, page)));
        let outcome = replay.outcome();
        assert!(outcome.time_ns >= transfer_ns, "{name}: {} ns", outcome.time_ns);
    }
}

#[test]
fn linux_maps_what_it_waited_for_by_a_second_short_fault() {
    let mut replay = Replay::new().with_timeline(Timeline::new("flash".parse().expect("a device"), 0, 0));
    let object = replay.add_object(256);
    let entry = replay.add_entry(object, 0, 256, policy("linux-data:ra=32,map=1"));
    (0..64).for_each(|page| replay.touch(Touch::new(entry, page)));
    let outcome = replay.outcome();
    assert!(outcome.late > 0);
    assert_eq!(
        outcome.logged(),
        [outcome.hard + outcome.late, outcome.hard + outcome.late, 64 - outcome.hard - outcome.late]
    );
    assert_eq!(touched(32, "aligned:16", &[4]).short, 0);
}

#[test]
fn a_header_that_was_read_is_resident_and_counts_as_neither_read_nor_wasted() {
    let input = Input::model("code:1".parse().expect("a model")).with_headers_read();
    assert_eq!(input.layout.resident, [(0, PageRange::new(PageIndex(0), PageIndex(1)))]);
    let replay = input.layout.build(Replay::new(), &policy("around:8:7"), |policy, _| policy.clone());
    assert!(replay.is_resident(prepage_simulate::ObjectIndex(0), PageIndex(0)));
    let mut replay = replay;
    replay.touch(Touch::new(prepage_simulate::EntryIndex(0), 4));
    let outcome = replay.outcome();
    // Pages 1 to 11: page 0 ends the read behind.
    assert_eq!((outcome.hard, outcome.read, outcome.never), (1, 11, 10));
}

/// Superpages mapped by each of `runs` runs of the modelled compiler, which find in memory what the runs before left
/// there; with `seeds`, each run uses other parts of its code.
fn superpages(text: &str, runs: u64, seeds: bool) -> Vec<u64> {
    let pages = prepage_simulate::model::CODE_PAGES;
    let mut replay = Replay::new().with_superpages();
    let object = replay.add_object(pages);
    let entry = replay.add_entry(object, 0, pages, policy(text));
    let mut mapped = Vec::new();
    for run in 1..=runs {
        let before = replay.outcome().superpages;
        let touches = code_section(if seeds { run } else { 1 });
        touches.into_iter().for_each(|page| replay.touch(Touch::new(entry, page)));
        mapped.push(replay.outcome().superpages - before);
        replay.next_run();
    }
    mapped
}

/// What one exec of a compiler adds to the count of superpage mappings, of which the published change saw 29,000 more
/// over a whole buildworld.
#[test]
fn aligned_clusters_let_every_run_map_superpages() {
    assert_eq!(superpages("around:8:7", 3, false), [0, 0, 0]);
    assert_eq!(superpages("aligned:16", 3, false), [7, 7, 7]);
    let (fixed, aligned) = (superpages("around:8:7", 4, true), superpages("aligned:16", 4, true));
    assert_eq!((fixed, aligned), (vec![0, 3, 13, 21], vec![7, 20, 22, 22]));
    // Linux has no reservations, so its policies map none.
    assert_eq!(superpages("linux", 2, false), [0, 0]);
}
