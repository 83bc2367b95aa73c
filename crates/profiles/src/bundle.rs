//! Several profiles in one file: their files, one behind the other.
//!
//! Each says how long it is, so nothing stands between them, a bundle of one profile is that profile's file, and
//! `cat` makes a bundle of bundles.

use std::collections::BTreeMap;

use prepage_core::profile::Profile;
use prepage_core::profile::file::{self, ProfileFileError, Room, encoded_bytes};
use prepage_core::profile::merge;

/// The largest bundle that is read.
pub const BUNDLE_BYTES_MAX: u64 = 256 << 20;
/// What the profiles of a bundle may take in memory.
const DECODED_BYTES_MAX: usize = 512 << 20;
/// Profiles in one bundle.
pub const PROFILES_MAX: usize = 1 << 14;

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
    #[error(
        "more than {PROFILES_MAX} profiles, or more than 256 MiB of them, or more than 512 MiB in memory"
    )]
    TooLarge,
}

/// The profiles in `bytes`.
///
/// # Errors
/// When any of them cannot be read: half of what somebody meant to hand over is worse than none.
pub fn read(bytes: &[u8]) -> Result<Vec<Profile>, BundleError> {
    read_in(bytes, Room::of(DECODED_BYTES_MAX))
}

fn read_in(mut bytes: &[u8], mut room: Room) -> Result<Vec<Profile>, BundleError> {
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
        let number = profiles.len() + 1;
        let wrong = |source| BundleError::Profile { number, source };
        let length = encoded_bytes(bytes).map_err(wrong)?.min(bytes.len() as u64);
        let (one, rest) = bytes.split_at(length as usize);
        profiles.push(decode(one, number, &mut room)?);
        bytes = rest;
    }
    Ok(profiles)
}

/// Decodes profile `number` of a bundle; all its profiles share `room`.
fn decode(bytes: &[u8], number: usize, room: &mut Room) -> Result<Profile, BundleError> {
    file::decode_in(bytes, room).map_err(|source| match file::decode(bytes) {
        // Nothing is wrong with that one.
        Ok(_) => BundleError::TooLarge,
        Err(_) => BundleError::Profile { number, source },
    })
}

/// `profiles` as a bundle.
///
/// # Errors
/// Where it would not be read.
pub fn write(profiles: &[Profile]) -> Result<Vec<u8>, BundleError> {
    write_in(profiles, Room::of(DECODED_BYTES_MAX))
}

fn write_in(profiles: &[Profile], mut room: Room) -> Result<Vec<u8>, BundleError> {
    if profiles.len() > PROFILES_MAX {
        return Err(BundleError::TooLarge);
    }
    let mut bytes = Vec::new();
    for (number, profile) in (1..).zip(profiles) {
        let one = file::encode(profile);
        // What it takes in memory is known to readers alone.
        decode(&one, number, &mut room)?;
        bytes.extend(one);
        if bytes.len() as u64 > BUNDLE_BYTES_MAX {
            return Err(BundleError::TooLarge);
        }
    }
    Ok(bytes)
}

/// All profiles of all `bundles`, those of one program and role merged ([`merge::merge`]), sorted by program and role. The
/// order of the bundles does not matter, nor how often one is among them.
pub fn merge(bundles: impl IntoIterator<Item = Vec<Profile>>) -> Vec<Profile> {
    let mut alike: BTreeMap<(String, String), Vec<Profile>> = BTreeMap::new();
    for profile in bundles.into_iter().flatten() {
        alike.entry((profile.program.clone(), profile.role.clone())).or_default().push(profile);
    }
    alike.into_values().map(|profiles| merge::merge(&profiles.iter().collect::<Vec<_>>())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(program: &str, source: u64) -> Profile {
        Profile { program: program.into(), sources: vec![source], ..Profile::default() }
    }

    #[test]
    fn a_bundle_is_read_again_and_cut_anywhere_it_is_refused() {
        let all = [profile("/bin/a", 1), profile("/bin/b", 2), profile("/bin/b", 3)];
        let bytes = write(&all).unwrap();
        assert_eq!(read(&bytes).unwrap(), all);
        let whole: Vec<usize> = (1..=all.len()).map(|count| write(&all[..count]).unwrap().len()).collect();
        for kept in 0..bytes.len() {
            assert_eq!(read(&bytes[..kept]).is_ok(), whole.contains(&kept), "{kept}");
        }
    }

    #[test]
    fn what_would_not_be_read_is_not_written() {
        let mut all: Vec<Profile> = (0..PROFILES_MAX as u64).map(|at| profile("/bin/a", at)).collect();
        assert_eq!(read(&write(&all).unwrap()).unwrap().len(), PROFILES_MAX);
        all.push(profile("/bin/a", 0));
        assert!(matches!(write(&all), Err(BundleError::TooLarge)));
    }

    /// Decoded they are about three times as large.
    #[test]
    fn what_takes_more_memory_than_readers_have_is_not_written_and_none_of_it_is_called_damaged() {
        let sources = (0..100).collect();
        let all = vec![Profile { sources, ..profile("/bin/a", 0) }; 5];
        let bytes = write(&all).unwrap();
        let room = |count: usize| Room::of(count * (size_of::<u64>() * 100 + "/bin/a".len()));
        assert_eq!(read_in(&write_in(&all, room(5)).unwrap(), room(5)).unwrap(), all);
        assert!(matches!(write_in(&all, room(4)), Err(BundleError::TooLarge)));
        assert!(matches!(read_in(&bytes, room(4)), Err(BundleError::TooLarge)));
    }

    #[test]
    fn merged_files_are_the_same_in_any_order_and_however_often() {
        let [a, b, c] = [profile("/bin/a", 1), profile("/bin/b", 2), profile("/bin/b", 3)];
        let merged = merge([vec![a.clone(), b.clone()], vec![c.clone()]]);
        assert_eq!(merged.iter().map(|one| one.sources.len()).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(merge([vec![c.clone(), b], vec![a, c], merged.clone()]), merged);
    }

    #[test]
    fn which_profile_is_damaged_is_told() {
        let one = Profile::default();
        let mut bytes = write(&[one.clone(), one.clone(), one]).unwrap();
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
