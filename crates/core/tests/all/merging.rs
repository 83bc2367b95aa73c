//! Profiles of many hosts made into one.

use prepage_core::profile::counts::{Counts, Use};
use prepage_core::profile::merge::{merge, shared};
use prepage_core::profile::{Extent, Fingerprint, History, Lookup, Profile, ProfiledFile};
use prepage_core::{PageIndex, PageRange};
use proptest::prelude::*;

fn extent(start: u64, end: u64, counts: Counts) -> Extent {
    let range = PageRange::new(PageIndex(start), PageIndex(end));
    Extent { counts, ..Extent::new(range, start as u32) }
}

fn file(path: &str, content: u8, extents: Vec<Extent>) -> ProfiledFile {
    let fingerprint = Fingerprint::BuildId(vec![content]);
    ProfiledFile { path: path.into(), fingerprint, extents, ..ProfiledFile::default() }
}

fn sure(times: u32) -> Counts {
    (0..times).fold(Counts::default(), |counts, _| counts.after(Use::Sure))
}

fn name(path: &str) -> Lookup {
    Lookup { path: path.into(), list: false, counts: sure(8) }
}

fn host(source: u64, files: Vec<ProfiledFile>) -> Profile {
    let history = History { observations: 8, ..History::default() };
    Profile { sources: vec![source], history, files, lookups: vec![name("/all")], ..Profile::default() }
}

fn probability(profile: &Profile, path: &str, page: u64) -> f64 {
    let files = profile.files.iter().filter(|file| file.path == path).flat_map(|file| &file.extents);
    files.filter(|e| e.range.contains(PageIndex(page))).map(|e| e.counts.probability()).sum()
}

#[test]
fn one_host_of_a_thousand_does_not_outweigh_the_others() {
    let usual = |source| host(source, vec![file("/lib/x", 1, vec![extent(0, 9, sure(1))])]);
    let mut hosts: Vec<Profile> = (1..1000).map(usual).collect();
    let files = [("/lib/x", 5, 90), ("/odd", 0, 9)];
    let files = files.map(|(path, start, end)| file(path, 1, vec![extent(start, end, sure(60))]));
    let mut odd = host(0, files.into());
    odd.lookups.push(name("/odd"));
    hosts.push(odd);
    let all = merge(&hosts.iter().collect::<Vec<_>>());
    assert_eq!(all.sources.len(), 1000);
    assert!(probability(&all, "/lib/x", 2) > 0.7 && probability(&all, "/lib/x", 7) > 0.7);
    assert_eq!((probability(&all, "/lib/x", 50), probability(&all, "/odd", 3)), (0.0, 0.0));
    assert_eq!(all.lookups.len(), 1);
    // Nor does it when it comes later, or again.
    let early = merge(&hosts[..999].iter().collect::<Vec<_>>());
    assert_eq!(merge(&[&early, &hosts[999]]).files, all.files);
    assert_eq!(merge(&[&all, &hosts[999], &hosts[3]]), all);
}

#[test]
fn hosts_with_another_build_say_nothing_of_this_one() {
    let of = |source, content| host(source, vec![file("/lib/x", content, vec![extent(0, 9, sure(8))])]);
    let hosts = [of(1, 1), of(2, 2), of(3, 2), host(4, vec![])];
    let all = merge(&hosts.iter().collect::<Vec<_>>());
    let likely: Vec<_> = all.files.iter().map(|file| file.extents[0].counts.probability()).collect();
    assert_eq!(likely.len(), 2);
    assert!((likely[0] - 0.46).abs() < 0.06, "one of the two that have it or no other: {likely:?}");
    assert!((likely[1] - 0.61).abs() < 0.06, "two of three: {likely:?}");
}

#[test]
fn what_most_roles_want_is_a_guess_for_others() {
    let roles = [
        host(1, vec![file("/lib/x", 1, vec![extent(0, 10, sure(8)), extent(20, 30, sure(8))])]),
        host(
            2,
            vec![file("/lib/x", 1, vec![extent(5, 15, sure(8)), extent(20, 30, sure(1).after(Use::None))])],
        ),
        host(3, vec![file("/lib/x", 1, vec![extent(8, 9, sure(8))])]),
    ];
    let guess = shared(&roles);
    let ranges: Vec<_> =
        guess.files[0].extents.iter().map(|e| (e.range.start().0, e.range.end().0)).collect();
    assert_eq!(ranges, [(5, 8), (8, 9), (9, 10)]);
    assert_eq!((shared(&roles[..1]).pages(), shared(&[])), (20, Profile::default()));
}

fn profiles() -> impl Strategy<Value = Profile> {
    let pieces = prop::collection::vec((0u64..3, 1u64..6, 0u32..9, any::<(u8, u8, bool)>()), 0..6);
    let file = (0u8..3, 0u8..2, pieces).prop_map(|(path, content, pieces)| {
        let mut end = 0;
        let extents = pieces.into_iter().map(|(gap, len, rank, (used, observed, by_read))| {
            let range = PageRange::new(PageIndex(end + gap), PageIndex(end + gap + len));
            end = range.end().0;
            Extent { range, rank, counts: Counts::from_sixteenths(used, observed), by_read }
        });
        file(&format!("/lib/{path}"), content, extents.collect())
    });
    let sources = prop::collection::btree_set(0u64..5, 1..4);
    (sources, prop::collection::vec(file, 0..4), 0u8..9).prop_map(|(sources, mut files, observations)| {
        files.sort_by_key(|file| (file.path.clone(), file.fingerprint.clone()));
        files.dedup_by_key(|file| (file.path.clone(), file.fingerprint.clone()));
        let history = History { observations, ..History::default() };
        Profile { history, files, sources: sources.into_iter().collect(), ..Profile::default() }
    })
}

proptest! {
    #[test]
    fn a_merge_depends_neither_on_order_nor_on_repetition(all in prop::collection::vec(profiles(), 1..5), turn in 0usize..5) {
        let mut some: Vec<&Profile> = all.iter().collect();
        let merged = merge(&some);
        some.rotate_left(turn % all.len());
        prop_assert_eq!(&merge(&some), &merged);
        some.extend(&all);
        prop_assert_eq!(&merge(&some), &merged);
        some.push(&merged);
        prop_assert_eq!(&merge(&some), &merged);
    }
}
