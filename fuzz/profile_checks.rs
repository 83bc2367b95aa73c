//! What must hold of any bytes whatever: each function panics where it does not.
//!
//! Driven by cargo-fuzz (`fuzz_targets`), by `cargo test -p prepage-testing --test corpus`, and with damaged real files by
//! `cargo test -p prepage-profiles --test robust`.
#![allow(dead_code, reason = "each fuzz target uses its part")]

use prepage_core::profile::bounds::{EXTENTS_MAX, FILES_MAX, LOOKUPS_MAX, PAGES_MAX, bound};
use prepage_core::profile::file::{FORMAT_VERSION, Glance, checksum, decode, encode};
use prepage_core::profile::merge::{merge, shared};
use prepage_core::profile::plan::{PlanOptions, plan};
use prepage_profiles::bundle;
use prepage_profiles::carried::carried_in;
use prepage_profiles::elf::Elf;
use prepage_profiles::section::{Change, Original, append, take_out};

/// A profile's file, and the same bytes as the payload of a sound one: a checksum would keep out all that follows.
pub fn profile(bytes: &[u8]) {
    check_profile(bytes);
    check_profile(&enclosed(FORMAT_VERSION, bytes));
}

fn check_profile(bytes: &[u8]) {
    for glance in [Glance::of(bytes), Glance::of_beginning(bytes)].into_iter().flatten() {
        glance.sample(7).iter().for_each(|sample| drop(sample.fingerprint()));
    }
    let Ok(read) = decode(bytes) else { return };
    assert_eq!(decode(&encode(&read)).as_ref(), Ok(&read), "what is written is read again");
    let mut bounded = read;
    bound(&mut bounded);
    let extents: usize = bounded.files.iter().map(|file| file.extents.len()).sum();
    assert!(bounded.files.len() <= FILES_MAX && bounded.lookups.len() <= LOOKUPS_MAX);
    assert!(extents <= EXTENTS_MAX && bounded.pages() <= PAGES_MAX);
    assert!(bound(&mut bounded.clone()).is_empty(), "what was cut down needs no more of it");
    // Plans of many GiB take long and say nothing more.
    if bounded.pages() <= 1 << 16 {
        let planned: u64 = plan(&bounded, PlanOptions::EXACT).iter().map(|read| read.range.len()).sum();
        assert_eq!(planned, bounded.pages());
        bounded.sources = vec![1];
        assert_eq!(merge(&[&bounded, &bounded]), bounded, "a host speaks once");
        let mut other = bounded.clone();
        other.sources = vec![2];
        assert!(merge(&[&bounded, &other]).pages() <= planned);
        assert!(shared(&[bounded, other]).pages() <= planned);
    }
}

/// `payload` behind a header that promises it.
pub fn enclosed(version: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = b"PREPAGE\n".to_vec();
    bytes.extend_from_slice(&version.to_le_bytes());
    bytes.extend_from_slice(&checksum(&[payload]).to_le_bytes());
    bytes.extend_from_slice(&(payload.len() as u64).to_le_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// An ELF file: read, given a section, and given back as it was.
pub fn elf(bytes: &[u8]) {
    let Ok(elf) = Elf::parse(bytes) else { return };
    let dynamic = elf.dynamic(bytes).unwrap_or_default();
    let _ = (elf.sections(bytes), elf.links(&dynamic, bytes), carried_in(bytes, &elf));
    let _ = take_out(bytes);
    let Ok(original) = Original::of(bytes) else { return };
    let before =
        changed(bytes, &Change { head: Vec::new(), keep_bytes: original.len_bytes, tail: Vec::new() });
    let Ok(change) = append(&original, b"a payload") else { return };
    let after = changed(&before, &change);
    let parsed = Elf::parse(&after[..]).expect("it was one before");
    assert_eq!(parsed.segments, elf.segments, "what is loaded stays");
    assert!(
        parsed.sections(&after[..]).expect("it has some").iter().any(|section| section.name == ".prepage")
    );
    let restored = changed(&after, &take_out(&after[..]).expect("it was just put in"));
    assert_eq!(restored.len() as u64, original.len_bytes);
    assert_eq!(restored[64.min(restored.len())..], before[64.min(before.len())..]);
}

fn changed(bytes: &[u8], change: &Change) -> Vec<u8> {
    let mut after = bytes[..change.keep_bytes as usize].to_vec();
    after[..change.head.len()].copy_from_slice(&change.head);
    after.extend_from_slice(&change.tail);
    after
}

/// Several profiles in one file.
pub fn bundle(bytes: &[u8]) {
    let Ok(profiles) = bundle::read(bytes) else { return };
    assert_eq!(bundle::read(&bundle::write(&profiles).expect("just read")).expect("just written"), profiles);
    let programs = profiles.len();
    assert!(bundle::merge([profiles]).len() <= programs);
}
