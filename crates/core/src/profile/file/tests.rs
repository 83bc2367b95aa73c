use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::counts::Use;
use super::super::observation::Observation;
use super::super::{ColdStart, FileIdentity, Fingerprint, History, OBSERVATIONS_MAX, ProfiledFile};
use super::*;

pub(in super::super) fn profiles() -> impl Strategy<Value = Profile> {
    let extent = (1u64..9, 1u64..40, any::<u32>(), any::<(u8, u8, bool)>());
    let extents = (prop::collection::vec(extent, 0..20), any::<bool>()).prop_map(|(raw, is_map)| {
        let mut end = 0;
        let mut extent = |(gap, len, rank, (used, observed, by_read))| {
            let range = PageRange::new(PageIndex(end + gap), PageIndex(end + gap + len));
            end = range.end().0;
            let known = Extent { range, rank, counts: Counts::from_sixteenths(used, observed), by_read };
            if is_map { Extent::new(range, 0) } else { known }
        };
        raw.into_iter().map(&mut extent).collect::<Vec<_>>()
    });
    let file = ("[/a-zé]{1,20}", any::<(u64, u64, u64, i64, i64)>(), any::<u32>(), extents).prop_map(
        |(path, (device, inode, size_bytes, mtime_ns, ctime_ns), crc, extents)| ProfiledFile {
            path,
            identity: FileIdentity { device, inode, size_bytes, mtime_ns, ctime_ns },
            fingerprint: if crc % 2 == 0 {
                Fingerprint::Ends { crc, size_bytes }
            } else {
                Fingerprint::BuildId(crc.to_le_bytes().to_vec())
            },
            learned_unix_s: u64::from(crc),
            extents,
        },
    );
    let lookup = ("/usr/(lib/)?[a-zéß]{0,9}", any::<bool>(), any::<(u8, u8)>()).prop_map(
        |(path, list, (used, observed))| Lookup {
            path,
            list,
            counts: Counts::from_sixteenths(used, observed),
        },
    );
    let start = any::<(u64, u64, bool, u32)>().prop_map(|(unix_s, device, held_out, took_us)| ColdStart {
        unix_s,
        device,
        held_out,
        took_us,
        ..ColdStart::default()
    });
    let [files, lookups, starts] = [0..6, 0..30, 0..5];
    let lists = (
        prop::collection::vec(file, files),
        prop::collection::vec(lookup, lookups),
        prop::collection::vec(start, starts),
        prop::collection::vec(any::<u64>(), 0..3),
    );
    lists.prop_map(|(files, lookups, starts, sources)| Profile {
        program: "/usr/bin/gcc".into(),
        role: "gcc -O -S".into(),
        history: History { created_unix_s: 1, updated_unix_s: 2, observations: 3, due: 4, rest: 5 },
        files,
        lookups,
        starts,
        sources,
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(profile in profiles()) {
        prop_assert_eq!(decode(&encode(&profile)), Ok(profile));
    }

    #[test]
    fn one_flipped_bit_never_goes_unnoticed(profile in profiles(), at in any::<prop::sample::Index>(), bit in 0..8) {
        let mut bytes = encode(&profile);
        let at = at.index(bytes.len());
        bytes[at] ^= 1u8 << bit;
        prop_assert!(decode(&bytes).is_err());
    }

    #[test]
    fn a_cut_file_is_an_error(profile in profiles(), keep in any::<prop::sample::Index>()) {
        let bytes = encode(&profile);
        prop_assert!(decode(&bytes[..keep.index(bytes.len())]).is_err());
    }

    #[test]
    fn any_payload_with_a_right_checksum_is_read_or_refused(payload in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = decode(&enclose(FORMAT_VERSION, &payload));
    }
}

proptest! {
    #[test]
    fn a_glance_sees_what_decoding_does(profile in profiles(), random in any::<u64>()) {
        let bytes = encode(&profile);
        let glance = Glance::of(&bytes).unwrap();
        let Profile { history, starts, .. } = profile.clone();
        prop_assert_eq!((glance.program, glance.role), (&*profile.program, &*profile.role));
        let beginning = &bytes[..bytes.len().min(WHOSE_BYTES)];
        prop_assert_eq!(whose(beginning).unwrap(), (&*profile.program, &*profile.role));
        prop_assert_eq!(&glance.past, &Profile { history, starts, ..Profile::default() });
        let mut files = profile.files.iter();
        for sample in glance.sample(random) {
            let found = files.find(|file| file.path == sample.path && file.identity == sample.identity);
            let known = found.expect("files come in their order");
            prop_assert!(sample.pages.iter().all(|page| known.contains(*page)) && !sample.pages.is_empty());
            prop_assert_eq!(sample.fingerprint(), Some(known.fingerprint.clone()));
        }
        // The rest may not be in memory.
        let first = Glance::of_beginning(&bytes[..bytes.len().min(SAMPLE_BYTES)]).unwrap();
        prop_assert_eq!((first.program, first.role, first.past.history), (glance.program, glance.role, history));
        prop_assert_eq!(first.sample(random), glance.sample(random));
    }

    #[test]
    fn a_glance_at_any_payload_is_had_or_refused(payload in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = whose(&enclose(FORMAT_VERSION, &payload));
        let bytes = enclose(FORMAT_VERSION, &payload);
        for glance in [Glance::of, Glance::of_beginning] {
            if let Ok(glance) = glance(&bytes) {
                glance.sample(7).iter().for_each(|sample| drop(sample.fingerprint()));
            }
        }
    }
}

/// A profile that some start is served from.
fn profile_of(files: Vec<ProfiledFile>) -> Profile {
    Profile { program: "/program".into(), files, ..Profile::default() }
}

/// Whoever finds one part of a program out of memory is not to take the start for a warm one.
#[test]
fn what_takes_a_larger_part_of_the_reads_is_in_every_sample() {
    let file = |name: &str, extents: &[(u64, u64, Counts)]| ProfiledFile {
        path: name.into(),
        extents: extents
            .iter()
            .map(|&(start, len, counts)| Extent {
                counts,
                ..Extent::new(PageRange::new(PageIndex(start), PageIndex(start + len)), 0)
            })
            .collect(),
        ..ProfiledFile::default()
    };
    let used = Counts::once(Use::Sure);
    let scattered: Vec<_> = (0..100).map(|at| (3 * at, 1, used)).collect();
    let files = [
        file("/scattered", &scattered),
        file("/small", &[(0, 1, used)]),
        file("/whole", &[(7, 32 * 50, used)]),
        file("/rarely", &[(0, 32 * 50, used.after(Use::None))]),
    ];
    let bytes = encode(&profile_of(files.to_vec()));
    let glance = Glance::of(&bytes).unwrap();
    let samples: Vec<_> = (0..100).map(|random| glance.sample(random)).collect();
    for sample in &samples {
        let count =
            |path: &str| sample.iter().filter(|file| file.path == path).flat_map(|file| &file.pages).count();
        assert!(count("/scattered") >= 4 && count("/whole") >= 2 && count("/rarely") == 0, "{sample:?}");
        assert_eq!(count("/scattered") + 2 * count("/small") + count("/whole"), 8, "{sample:?}");
    }
    assert!(samples.windows(2).any(|two| two[0] != two[1]), "other starts ask after other pages");
    assert!(Glance::of(&encode(&Profile::default())).unwrap().sample(1).is_empty());
}

/// As of an interpreter whose libraries other programs keep in memory, and whose modules nobody has used for long.
#[test]
fn of_a_library_and_many_small_files_with_as_many_reads_both_are_in_every_sample() {
    let file = |at: u64, reads: u64| ProfiledFile {
        path: format!("/usr/lib/python3/{at}.py"),
        extents: vec![Extent::new(PageRange::new(PageIndex(0), PageIndex(32 * reads)), 0)],
        ..ProfiledFile::default()
    };
    // Of few reads a file has less than it has places for.
    for (library, small) in [(8, 16), (30, 20), (150, 150), (300, 300), (600, 400), (500, 500), (400, 600)] {
        let files = (1..=small).map(|at| file(at, 1));
        let bytes = encode(&profile_of([file(0, library)].into_iter().chain(files).collect()));
        let glance = Glance::of(&bytes).unwrap();
        for sample in (0..100).map(|random| glance.sample(random)) {
            let of_library = sample.iter().filter(|file| file.path.ends_with("/0.py")).count();
            assert!(of_library == 1 && sample.len() > 1, "{library} and {small}: {sample:?}");
        }
    }
}

/// To open a file takes longer than to look for a page of it.
#[test]
fn of_many_files_few_are_in_a_sample_each_with_several_pages() {
    let files = |count: u64, path_bytes: usize| {
        let file = |at: u64| ProfiledFile {
            path: format!("/{at:0path_bytes$}"),
            extents: vec![Extent::new(PageRange::new(PageIndex(at), PageIndex(at + 32 * 20)), 0)],
            ..ProfiledFile::default()
        };
        encode(&profile_of((0..count).map(file).collect()))
    };
    // Long paths take pages first, and then places.
    for (count, path_bytes, kept) in
        [(100, 80, 12), (5000, 80, 12), (100, 180, 12), (100, 300, 6), (100, 600, 3)]
    {
        let bytes = files(count, path_bytes);
        let glance = Glance::of_beginning(&bytes[..SAMPLE_BYTES]).unwrap();
        let samples: Vec<_> = (0..100).map(|random| glance.sample(random)).collect();
        let paths: BTreeSet<&str> = samples.iter().flatten().map(|file| file.path).collect();
        assert_eq!(paths.len(), kept, "{count} paths of {path_bytes} bytes");
        for sample in samples {
            assert!((3..=6).contains(&sample.len()), "{sample:?}");
            let pages = sample.iter().map(|file| file.pages.len()).sum::<usize>();
            assert_eq!(pages, 4 * kept.min(6), "{sample:?}");
            assert!(sample.iter().all(|file| file.pages.is_sorted_by(|one, next| one < next)), "{sample:?}");
        }
    }
    let bytes = files(100, 3900);
    assert!(Glance::of(&bytes).unwrap().sample(1).is_empty(), "there is no room for paths that long");
}

/// Something else may stand in its place by now.
#[test]
fn the_program_itself_is_in_every_sample() {
    let used = Counts::once(Use::Sure);
    let file = |path: &str, inode, counts| ProfiledFile {
        path: path.into(),
        identity: FileIdentity { inode, ..FileIdentity::default() },
        extents: vec![Extent { counts, ..Extent::new(PageRange::new(PageIndex(0), PageIndex(1)), 0) }],
        ..ProfiledFile::default()
    };
    let files = vec![file("/program", 7, used.after(Use::None)), file("/library", 8, used)];
    let bytes = encode(&profile_of(files));
    let glance = Glance::of(&bytes).unwrap();
    assert_eq!(glance.program_identity().map(|identity| identity.inode), Some(7));
    let sample = glance.sample(1);
    let pages: Vec<_> = sample.iter().map(|file| (file.path, file.pages.len())).collect();
    assert_eq!(pages, [("/program", 0), ("/library", 1)]);
}

/// Bytes of a profile with these fields, made by hand.
fn made(write: impl FnOnce(&mut Encoder<&mut Vec<u8>>)) -> Vec<u8> {
    let mut payload = Vec::new();
    write(&mut Encoder::new(&mut payload));
    enclose(FORMAT_VERSION, &payload)
}

#[test]
fn fields_of_other_versions_are_skipped_and_missing_ones_are_empty() {
    let bytes = made(|e| {
        e.map(4).unwrap().u8(0).unwrap().str("/bin/x").unwrap();
        // A start before it was kept when it last waited.
        let start = e.u8(5).unwrap().array(1).unwrap().map(8).unwrap();
        for number in 0..8 {
            let field = start.u8(number).unwrap();
            if [2, 3].contains(&number) { field.bool(true) } else { field.u8(7) }.unwrap();
        }
        e.u8(200).unwrap().array(2).unwrap().str("from the future").unwrap().bool(true).unwrap();
        let file = e.u8(3).unwrap().array(1).unwrap().map(4).unwrap();
        file.u8(0).unwrap().str("/lib/y").unwrap().u8(2).unwrap();
        file.encode(Fingerprint::BuildId(vec![7])).unwrap().u8(99).unwrap().null().unwrap();
        // One number more an extent than this version knows.
        let numbers = file.u8(4).unwrap().array(15).unwrap().u8(7).unwrap();
        for number in [2, 1, 5, 16, 16, 1, 9, 3, 2, 1, 16, 16, 0, 9] {
            numbers.u8(number).unwrap();
        }
    });
    let profile = decode(&bytes).unwrap();
    assert_eq!((profile.program.as_str(), profile.role.as_str()), ("/bin/x", ""));
    assert_eq!((profile.starts[0].took_us, profile.starts[0].waited_us), (7, 0));
    let shape = |e: &Extent| (e.range.start().0, e.range.end().0, e.rank, e.by_read);
    let extents: Vec<_> = profile.files[0].extents.iter().map(shape).collect();
    assert_eq!(extents, [(2, 3, 5, true), (6, 8, 6, false)]);
}

#[test]
fn a_list_of_extents_without_its_first_number_is_refused() {
    let bytes = made(|e| {
        let file = e.map(1).unwrap().u8(3).unwrap().array(1).unwrap().map(2).unwrap();
        file.u8(4).unwrap().array(0).unwrap().u8(6).unwrap().u8(0).map(drop).unwrap();
    });
    let refused = decode(&bytes).unwrap_err();
    assert!(
        matches!(&refused, ProfileFileError::Malformed(why) if why.contains("numbers of an extent")),
        "{refused}"
    );
}

#[test]
fn a_few_bytes_that_ask_for_gigabytes_are_refused() {
    let strings = made(|e| {
        let names = e.map(1).unwrap().u8(4).unwrap().array(8 << 20).unwrap();
        (0..8 << 20).for_each(|_| {
            let name = names.array(4).unwrap().u8(0).unwrap().str("").unwrap();
            name.bool(false).unwrap().array(2).unwrap().u8(0).unwrap().u8(0).map(drop).unwrap();
        });
    });
    let every_other = made(|e| {
        let file = e.map(1).unwrap().u8(3).unwrap().array(1).unwrap().map(1).unwrap();
        file.u8(4).unwrap().bytes(&vec![0x55; 60 << 20]).map(drop).unwrap();
    });
    let long = made(|e| {
        let names = e.map(1).unwrap().u8(4).unwrap().array(1 << 20).unwrap();
        let text = "x".repeat(4000);
        (0..1 << 20).for_each(|at| {
            let (shared, rest) = if at == 0 { (0, text.as_str()) } else { (4000, "") };
            let name = names.array(4).unwrap().u16(shared).unwrap().str(rest).unwrap();
            name.bool(false).unwrap().array(2).unwrap().u8(0).unwrap().u8(0).map(drop).unwrap();
        });
    });
    for bytes in [strings, every_other, long] {
        assert!(bytes.len() <= PAYLOAD_BYTES_MAX as usize + HEADER_BYTES);
        let refused = decode(&bytes).map(|profile| profile.lookups.len()).unwrap_err().to_string();
        assert!(refused.contains("larger than any profile"), "{refused}");
    }
}

#[test]
fn a_mebibyte_of_file_takes_at_most_32_bytes() {
    let profile = |mebibytes: u64| {
        let page = |page| Extent::new(PageRange::new(PageIndex(page), PageIndex(page + 1)), 0);
        let file = ProfiledFile {
            path: String::new(),
            identity: FileIdentity { device: 0, inode: 0, size_bytes: 0, mtime_ns: 0, ctime_ns: 0 },
            fingerprint: Fingerprint::BuildId(vec![7; 20]),
            learned_unix_s: 0,
            extents: (0..mebibytes * 128).map(|half| page(2 * half + 1)).collect(),
        };
        Profile { files: vec![file], ..Profile::default() }
    };
    let [small, large] = [1, 181].map(|mebibytes| encode(&profile(mebibytes)).len());
    assert!((32 * 180..32 * 180 + 4).contains(&(large - small)), "{}", large - small);
    assert!(small < 32 + 128, "{small}");
}

#[test]
fn other_versions_are_named() {
    let mut bytes = encode(&Profile::default());
    bytes[8] = FORMAT_VERSION as u8 + 1;
    assert_eq!(decode(&bytes), Err(ProfileFileError::Version(FORMAT_VERSION + 1)));
    assert_eq!(decode(b"#!/bin/sh\n"), Err(ProfileFileError::Foreign));
}

#[test]
fn counters_that_no_starts_led_to_are_cut_down() {
    let counts: Counts = minicbor::decode(&[0x82, 0x18, 0xff, 0x00]).unwrap();
    let lying = Profile {
        lookups: vec![Lookup { path: "/a".into(), list: false, counts }],
        history: History { observations: u8::MAX, ..History::default() },
        ..Profile::default()
    };
    let mut read = decode(&encode(&lying)).unwrap();
    assert!(read.lookups[0].counts.probability() < 1.0, "{:?}", read.lookups);
    read.observe(&Observation::of_nothing(1));
    assert_eq!(read.history.observations, OBSERVATIONS_MAX);
}
