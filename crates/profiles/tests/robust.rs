//! Any bytes, and damaged real files, through every reader: the checks that cargo-fuzz drives too.

#[path = "../../../fuzz/profile_checks.rs"]
mod checks;

use std::sync::LazyLock;

use prepage_core::profile::file::{FORMAT_VERSION, HEADER_BYTES, decode};
use prepage_core::profile::{Counts, Extent, FileIdentity, Fingerprint, Lookup, Profile, ProfiledFile};
use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_profiles::{bundle, section};
use proptest::prelude::*;
use proptest::sample::Index;

/// A small ELF file without a section, and with one.
static ELF: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let file = std::fs::read("/usr/bin/true").expect("true");
    let original = section::Original::of(&file[..]).expect("an ELF file");
    let change = section::append(&original, &bundle::write(&[carried()]).unwrap()).expect("possible");
    let mut with = file.clone();
    with[..change.head.len()].copy_from_slice(&change.head);
    with.extend_from_slice(&change.tail);
    vec![file, with]
});

fn ranges(pages: &[(u64, u64)]) -> impl Iterator<Item = PageRange> {
    pages.iter().map(|&(start, end)| PageRange::new(PageIndex(start), PageIndex(end)))
}

/// What a file carries.
fn carried() -> Profile {
    let file = ProfiledFile {
        fingerprint: Fingerprint::BuildId(vec![7; 20]),
        identity: FileIdentity { size_bytes: 40 * PAGE_SIZE, ..FileIdentity::default() },
        extents: ranges(&[(0, 3), (9, 10), (30, 40)]).map(|range| Extent::new(range, 0)).collect(),
        ..ProfiledFile::default()
    };
    Profile { files: vec![file], ..Profile::default() }
}

fn profiles() -> Vec<Profile> {
    let file = ProfiledFile {
        path: "/usr/lib/libc.so.6".into(),
        identity: FileIdentity { device: 1, inode: 2, size_bytes: 90 * PAGE_SIZE, mtime_ns: 3, ctime_ns: 4 },
        fingerprint: Fingerprint::Ends { crc: 5, size_bytes: 90 * PAGE_SIZE },
        learned_unix_s: 6,
        extents: ranges(&[(0, 2), (5, 9), (80, 90)]).map(|range| Extent::new(range, 1)).collect(),
    };
    let name =
        |path: &str| Lookup { path: path.into(), list: false, counts: Counts::from_sixteenths(16, 20) };
    let names = ["/etc", "/etc/ld.so.cache"].map(name);
    let one = |role: &str| Profile {
        program: "/usr/bin/gcc".into(),
        role: role.into(),
        files: vec![file.clone()],
        lookups: names.to_vec(),
        ..Profile::default()
    };
    vec![one("gcc -c"), one("gcc -S"), carried()]
}

/// Bits to flip, bytes to cut out, and bytes to put in their place.
type Damage = (Vec<(Index, u8)>, Option<(Index, u8)>, Vec<u8>);

/// `bytes` with some of them changed, some removed and some put in.
fn damaged(bytes: &[u8], (flips, cut, insert): &Damage) -> Vec<u8> {
    let mut damaged = bytes.to_vec();
    for (at, bit) in flips {
        let at = at.index(damaged.len());
        damaged[at] ^= 1u8 << (bit % 8);
    }
    if let Some((at, len)) = cut {
        let at = at.index(damaged.len());
        let end = (at + usize::from(*len)).min(damaged.len());
        damaged.splice(at..end, insert.iter().copied());
    }
    damaged
}

fn damage() -> impl Strategy<Value = Damage> {
    (
        prop::collection::vec(any::<(Index, u8)>(), 0..6),
        prop::option::of(any::<(Index, u8)>()),
        prop::collection::vec(any::<u8>(), 0..20),
    )
}

proptest! {
    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        checks::profile(&bytes);
        checks::bundle(&bytes);
        checks::elf(&bytes);
        checks::elf(&[b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0", &bytes[..]].concat());
        checks::elf(&[b"\x7fELF\x01\x02\x01\0\0\0\0\0\0\0\0\0", &bytes[..]].concat());
    }

    #[test]
    fn damaged_profiles(damage in damage()) {
        let bytes = bundle::write(&profiles()).unwrap();
        checks::bundle(&damaged(&bytes, &damage));
        // The payload of the first, which `profile` puts behind a right checksum again.
        let payload = &bundle::write(&profiles()[..1]).unwrap()[HEADER_BYTES..];
        checks::profile(&damaged(payload, &damage));
        let carried = &bundle::write(&[carried()]).unwrap()[HEADER_BYTES..];
        checks::profile(&damaged(carried, &damage));
    }

    #[test]
    fn damaged_elf_files(damage in damage(), which in 0usize..2, at_end in any::<bool>()) {
        let file = &ELF[which];
        // The file header and the program headers, or the section headers and what stands before them.
        let table = if at_end { file.len() - 2600..file.len() } else { 0..1000 };
        let mut bytes = file.clone();
        bytes.splice(table.clone(), damaged(&file[table], &damage));
        checks::elf(&bytes);
    }
}

#[test]
fn sound_files_pass_the_same_checks() {
    checks::bundle(&bundle::write(&profiles()).unwrap());
    checks::profile(&bundle::write(&profiles()[..1]).unwrap()[HEADER_BYTES..]);
    ELF.iter().for_each(|file| checks::elf(file));
    let payload = &bundle::write(&profiles()[..1]).unwrap()[HEADER_BYTES..];
    assert!(decode(&checks::enclosed(FORMAT_VERSION, payload)).is_ok());
}
