//! Profiles as files and as lattices: what older versions wrote is read, and merging is a join.

use prepage_core::cold_start::ColdStart;
use prepage_core::counts::Counts;
use prepage_core::profile::{
    Evidence, Extent, FileIdentity, Fingerprint, History, Lookup, Profile, ProfiledFile,
};
use prepage_core::profile_file::{decode, encode};
use prepage_core::{PageIndex, PageRange};
use proptest::prelude::*;

fn extents() -> impl Strategy<Value = Vec<Extent>> {
    let piece = (0u64..3, 1u64..6, 0u32..4, 0usize..3, any::<(bool, bool)>(), 0u32..3);
    prop::collection::vec(piece, 0..8).prop_map(|pieces| {
        let mut end = 0;
        pieces
            .into_iter()
            .map(|(gap, len, rank, evidence, (by_read, used), observations)| {
                let start = end + gap;
                end = start + len;
                let evidence = [Evidence::Exact, Evidence::Seen, Evidence::Near][evidence];
                let extent = Extent::new(PageRange::new(PageIndex(start), PageIndex(end)), rank, evidence);
                let counts = extent.counts;
                let counts = if used { counts.touch(observations) } else { counts.spare(observations) };
                Extent { by_read, counts, ..extent }
            })
            .collect()
    })
}

fn profiles() -> impl Strategy<Value = Profile> {
    let file =
        (0u32..3, 0u32..3, 0u64..9, extents()).prop_map(|(path, content, time, extents)| ProfiledFile {
            path: format!("/lib/{path}"),
            identity: FileIdentity { device: time, inode: 7, size_bytes: 1 << 20, mtime_ns: 3, ctime_ns: 4 },
            fingerprint: Fingerprint::Ends(content),
            learned_unix_s: time,
            extents,
        });
    let lookup = (0u32..9, 0u32..5, any::<bool>()).prop_map(|(rank, path, list)| Lookup {
        rank,
        path: format!("/usr/{path}"),
        list,
    });
    let start = (0u64..20, 0u64..3, any::<bool>()).prop_map(|(unix_s, device, held_out)| ColdStart {
        unix_s,
        device,
        held_out,
        ..ColdStart::default()
    });
    let history = (0u64..3, 0u64..9, 0u32..3, 0u32..3, 0u32..3).prop_map(
        |(created_unix_s, updated_unix_s, exact_runs, refining_runs, looks_due)| History {
            created_unix_s,
            updated_unix_s,
            exact_runs,
            refining_runs,
            looks_due,
            looks_rest: looks_due,
        },
    );
    let lists = (
        prop::collection::vec(file, 0..6),
        prop::collection::vec(lookup, 0..9),
        prop::collection::vec(start, 0..30),
    );
    (history, "[ab]", lists).prop_map(|(history, command, (files, lookups, starts))| {
        let raw = Profile {
            program: "/usr/bin/x".into(),
            role: "x".into(),
            command: vec![command],
            history,
            files,
            lookups,
            starts,
        };
        // Each file and each name once and in order, as profiles are.
        raw.merge(&Profile::default())
    })
}

proptest! {
    #[test]
    fn a_merge_depends_neither_on_order_nor_on_repetition(a in profiles(), b in profiles(), c in profiles()) {
        let ab = a.merge(&b);
        prop_assert_eq!(&ab, &b.merge(&a));
        prop_assert_eq!(&ab, &ab.merge(&ab));
        prop_assert_eq!(&ab, &ab.merge(&a));
        prop_assert_eq!(ab.merge(&c), a.merge(&b.merge(&c)));
        prop_assert_eq!(&a, &a.merge(&a));
        prop_assert_eq!(decode(&encode(&ab)), Ok(ab));
    }

    #[test]
    fn a_merge_loses_no_page_and_no_content(a in profiles(), b in profiles()) {
        let merged = a.merge(&b);
        for file in a.files.iter().chain(&b.files) {
            let kept = merged.files.iter().find(|kept| kept.is_same_content(file)).expect("each content stays");
            for extent in &file.extents {
                for page in extent.range.iter() {
                    let kept = kept.extent_of(page).expect("each page stays");
                    prop_assert!(kept.rank <= extent.rank && kept.evidence <= extent.evidence);
                    prop_assert_eq!(kept.counts.join(extent.counts), kept.counts);
                }
            }
        }
    }
}

#[test]
fn one_content_of_a_file_is_left_the_one_learned_last() {
    let file = |content, learned_unix_s| ProfiledFile {
        path: "/lib/x".into(),
        identity: FileIdentity { device: 1, inode: 2, size_bytes: 3, mtime_ns: 4, ctime_ns: 5 },
        fingerprint: Fingerprint::Ends(content),
        learned_unix_s,
        extents: vec![],
    };
    let mut profile = Profile { files: vec![file(1, 9), file(2, 3), file(3, 4)], ..Profile::default() };
    profile.keep_latest_contents();
    assert_eq!(profile.files, [file(1, 9)]);
}

/// Written by the first release of the format: `prepage learn -- true`.
#[test]
fn what_version_1_wrote_is_read() {
    let profile = decode(include_bytes!("fixtures/profile-v1.profile")).unwrap();
    assert_eq!(profile.role, "true");
    assert_eq!(profile.history.exact_runs, 1);
    let libc = profile.files.iter().find(|file| file.path.ends_with("/libc.so.6")).unwrap();
    assert!(libc.pages() > 20, "{}", libc.pages());
    assert!(libc.extents.iter().any(|extent| extent.counts == Counts::EXACT));
    assert!(libc.learned_unix_s > 0 && profile.lookups.is_sorted_by_key(|lookup| lookup.rank));
    assert_eq!(decode(&encode(&profile)), Ok(profile));
}
