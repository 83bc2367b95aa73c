//! Several profiles in one file: their files, one behind the other.
//!
//! Each says how long it is, so nothing stands between them, a bundle of one profile is that profile's file, and
//! `cat` makes a bundle of bundles.

use std::collections::BTreeMap;

use prepage_core::profile::Profile;
use prepage_core::profile_file::{self, PAYLOAD_BYTES_MAX, ProfileFileError};

/// The largest bundle that is read.
pub const BUNDLE_BYTES_MAX: u64 = 256 << 20;
/// Profiles in one bundle.
pub const PROFILES_MAX: usize = 1 << 14;

/// Bytes of a profile's header, and where in it the length of the rest stands; see [`profile_file`].
const HEADER_BYTES: usize = 24;
const LENGTH_AT: usize = 16;

/// Why bytes are not a bundle.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BundleError {
    /// One of the profiles cannot be read. Nothing of the bundle is used.
    #[error("profile {number} of the file")]
    Profile {
        /// Which, from 1.
        number: usize,
        /// What is wrong with it.
        source: ProfileFileError,
    },
    /// There is nothing in it.
    #[error("the file is empty")]
    Empty,
    /// There is more in it than is read.
    #[error("more than {PROFILES_MAX} profiles, or more than 256 MiB of them")]
    TooLarge,
}

/// The profiles in `bytes`.
///
/// # Errors
/// When any of them cannot be read: half of what somebody meant to hand over is worse than none.
pub fn read(mut bytes: &[u8]) -> Result<Vec<Profile>, BundleError> {
    if bytes.is_empty() {
        return Err(BundleError::Empty);
    }
    if bytes.len() as u64 > BUNDLE_BYTES_MAX {
        return Err(BundleError::TooLarge);
    }
    let mut profiles = Vec::new();
    while !bytes.is_empty() {
        if profiles.len() == PROFILES_MAX {
            return Err(BundleError::TooLarge);
        }
        let (one, rest) = bytes.split_at(length(bytes).min(bytes.len()));
        let number = profiles.len() + 1;
        profiles.push(profile_file::decode(one).map_err(|source| BundleError::Profile { number, source })?);
        bytes = rest;
    }
    Ok(profiles)
}

/// Length of the profile that `bytes` begin with, as far as they tell. What is wrong with it is for the decoder to say.
fn length(bytes: &[u8]) -> usize {
    let Some(payload) = bytes.get(LENGTH_AT..HEADER_BYTES) else { return bytes.len() };
    let payload = u64::from_le_bytes(payload.try_into().expect("eight bytes"));
    if payload > PAYLOAD_BYTES_MAX { bytes.len() } else { HEADER_BYTES + payload as usize }
}

/// `profiles` as a bundle.
pub fn write(profiles: &[Profile]) -> Vec<u8> {
    profiles.iter().flat_map(profile_file::encode).collect()
}

/// All profiles of all `bundles`, those of one program and role merged, sorted by program and role. The order of the
/// bundles does not matter, nor how often one is among them.
pub fn merge(bundles: impl IntoIterator<Item = Vec<Profile>>) -> Vec<Profile> {
    let mut merged: BTreeMap<(String, String), Profile> = BTreeMap::new();
    for profile in bundles.into_iter().flatten() {
        let key = (profile.program.clone(), profile.role.clone());
        merged
            .entry(key)
            .and_modify(|known| *known = known.merge(&profile))
            // Merged with nothing, it gets the form that merged profiles have.
            .or_insert_with(|| profile.merge(&profile));
    }
    merged.into_values().collect()
}

/// What of `profile` is for others to have: not the command line, which may hold names and secrets, nor what it was worth
/// on the devices of this machine.
pub fn for_others(mut profile: Profile) -> Profile {
    profile.command.clear();
    profile.starts.clear();
    profile.history.looks_due = 0;
    profile.history.looks_rest = 0;
    profile
}

#[cfg(test)]
mod tests {
    use prepage_core::cold_start::ColdStart;
    use prepage_core::profile::{Evidence, Extent, FileIdentity, Fingerprint, History, ProfiledFile};
    use prepage_core::{PageIndex, PageRange};
    use proptest::prelude::*;

    use super::*;

    fn profiles() -> impl Strategy<Value = Profile> {
        let file =
            (0u32..3, 0u32..2, 0u64..5, 0u32..4).prop_map(|(path, content, start, rank)| ProfiledFile {
                path: format!("/lib/{path}"),
                identity: FileIdentity { device: 1, inode: 2, size_bytes: 1 << 20, mtime_ns: 3, ctime_ns: 4 },
                fingerprint: Fingerprint::Ends(content),
                learned_unix_s: u64::from(content),
                extents: vec![Extent::new(
                    PageRange::new(PageIndex(start), PageIndex(start + 3)),
                    rank,
                    Evidence::Seen,
                )],
            });
        ("[ab]", "[xy]", prop::collection::vec(file, 0..4)).prop_map(|(program, role, files)| Profile {
            program: format!("/bin/{program}"),
            role,
            files,
            ..Profile::default()
        })
    }

    fn bundles() -> impl Strategy<Value = Vec<Profile>> {
        prop::collection::vec(profiles(), 0..5)
    }

    proptest! {
        #[test]
        fn a_bundle_is_read_again(bundle in prop::collection::vec(profiles(), 1..5)) {
            prop_assert_eq!(read(&write(&bundle)).unwrap(), bundle);
        }

        #[test]
        fn merged_files_are_the_same_in_any_order_and_however_often(a in bundles(), b in bundles(), c in bundles()) {
            let bytes = |bundles: Vec<Vec<Profile>>| write(&merge(bundles));
            let ab = merge([a.clone(), b.clone()]);
            let bc = merge([b.clone(), c.clone()]);
            prop_assert_eq!(write(&ab), bytes(vec![b, a.clone()]));
            prop_assert_eq!(bytes(vec![ab.clone(), c]), bytes(vec![a.clone(), bc]));
            prop_assert_eq!(bytes(vec![ab.clone(), ab.clone(), a]), write(&ab));
        }

        #[test]
        fn a_cut_bundle_is_told(bundle in prop::collection::vec(profiles(), 1..4), keep in any::<prop::sample::Index>()) {
            let bytes = write(&bundle);
            let kept = keep.index(bytes.len());
            let whole = (0..bundle.len()).map(|count| write(&bundle[..count]).len()).any(|len| len == kept);
            prop_assert_eq!(read(&bytes[..kept]).is_ok(), whole && kept > 0);
        }
    }

    #[test]
    fn what_belongs_to_this_machine_stays_here() {
        let history = History { looks_due: 2, looks_rest: 9, exact_runs: 1, ..History::default() };
        let (command, starts) = (vec!["x".into(), "--password=y".into()], vec![ColdStart::default()]);
        let given = for_others(Profile { command, starts, history, ..Profile::default() });
        let kept = History { exact_runs: 1, ..History::default() };
        assert_eq!(given, Profile { history: kept, ..Profile::default() });
    }

    #[test]
    fn which_profile_is_damaged_is_told() {
        let one = Profile::default();
        let mut bytes = write(&[one.clone(), one.clone(), one]);
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        assert!(matches!(read(&bytes), Err(BundleError::Profile { number: 3, .. })));
        assert!(matches!(read(b""), Err(BundleError::Empty)));
        assert!(matches!(
            read(b"#!/bin/sh"),
            Err(BundleError::Profile { number: 1, source: ProfileFileError::Foreign })
        ));
    }
}
