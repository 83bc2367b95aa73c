//! A profile as bytes: small, checked, versioned.
//!
//! ```text
//! offset  size  what
//!      0     8  magic "PREPAGE\n"
//!      8     4  format version, little-endian
//!     12     4  CRC-32 of the payload
//!     16     8  length of the payload
//!     24     …  payload: postcard (varints) of `Wire`
//! ```
//! Extents are stored as gaps and lengths, lookups as the length of the prefix shared with the one before and
//! the rest: a thousand lookups and ten thousand pages fit in a few dozen KiB, so a cold start reads the
//! profile in one or two transfers.

use serde::{Deserialize, Serialize};

use crate::page::{PageIndex, PageRange};
use crate::profile::{Evidence, Extent, FileIdentity, Fingerprint, History, Lookup, Profile, ProfiledFile};

/// The version this crate writes, and the only one it reads.
pub const FORMAT_VERSION: u32 = 1;

/// The largest payload that is read: a bound on what a damaged length can make us allocate. The profile of
/// chromium is a hundred times smaller.
pub const PAYLOAD_BYTES_MAX: u64 = 64 << 20;

const MAGIC: [u8; 8] = *b"PREPAGE\n";
const HEADER_BYTES: usize = 24;

/// Why bytes are not a profile.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProfileFileError {
    /// The magic is missing.
    #[error("not a prepage profile (it does not start with the profile magic)")]
    Foreign,
    /// Another version of the format.
    #[error("profile format version {found}, this prepage reads version {FORMAT_VERSION}")]
    Version {
        /// The version in the file.
        found: u32,
    },
    /// Fewer or more bytes than the header promises.
    #[error(
        "profile is {found_bytes} bytes long, its header promises {promised_bytes}: it was cut off or overwritten"
    )]
    Length {
        /// Bytes there are.
        found_bytes: u64,
        /// Bytes there should be.
        promised_bytes: u64,
    },
    /// The checksum differs.
    #[error("profile checksum does not match: the file is damaged")]
    Checksum,
    /// The checksum holds but the content makes no sense.
    #[error("profile content is malformed: {0}")]
    Malformed(&'static str),
}

#[derive(Serialize, Deserialize)]
struct Wire {
    program: String,
    role: String,
    command: Vec<String>,
    history: History,
    files: Vec<WireFile>,
    lookups: Vec<WireLookup>,
}

#[derive(Serialize, Deserialize)]
struct WireFile {
    path: String,
    identity: FileIdentity,
    fingerprint: Fingerprint,
    extents: Vec<WireExtent>,
}

#[derive(Serialize, Deserialize)]
struct WireExtent {
    /// Pages between the end of the extent before and the start of this one.
    gap: u64,
    len: u64,
    rank: u32,
    evidence: Evidence,
}

#[derive(Serialize, Deserialize)]
struct WireLookup {
    shared_bytes: u16,
    rest: String,
    list: bool,
}

/// The bytes of `profile`.
pub fn encode(profile: &Profile) -> Vec<u8> {
    let wire = Wire {
        program: profile.program.clone(),
        role: profile.role.clone(),
        command: profile.command.clone(),
        history: profile.history,
        files: profile.files.iter().map(encode_file).collect(),
        lookups: encode_lookups(&profile.lookups),
    };
    let payload = postcard::to_allocvec(&wire).expect("writing to memory does not fail");
    let mut bytes = Vec::with_capacity(HEADER_BYTES + payload.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    bytes.extend_from_slice(&checksum(&[&payload]).to_le_bytes());
    bytes.extend_from_slice(&(payload.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&payload);
    bytes
}

/// The profile in `bytes`.
pub fn decode(bytes: &[u8]) -> Result<Profile, ProfileFileError> {
    let payload = check(bytes)?;
    let wire: Wire = postcard::from_bytes(payload).map_err(|_| ProfileFileError::Malformed("encoding"))?;
    Ok(Profile {
        program: wire.program,
        role: wire.role,
        command: wire.command,
        history: wire.history,
        files: wire.files.into_iter().map(decode_file).collect::<Result<_, _>>()?,
        lookups: decode_lookups(&wire.lookups)?,
    })
}

/// Whether `bytes` are a whole and sound profile of this version; returns the payload. Much cheaper than [`decode`].
pub fn check(bytes: &[u8]) -> Result<&[u8], ProfileFileError> {
    if bytes.len() < MAGIC.len() || bytes[..MAGIC.len()] != MAGIC {
        return Err(ProfileFileError::Foreign);
    }
    let cut_off =
        |promised_bytes| ProfileFileError::Length { found_bytes: bytes.len() as u64, promised_bytes };
    let Some((header, payload)) = bytes.split_at_checked(HEADER_BYTES) else {
        return Err(cut_off(HEADER_BYTES as u64));
    };
    let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
    let found = word(8);
    if found != FORMAT_VERSION {
        return Err(ProfileFileError::Version { found });
    }
    let promised = u64::from_le_bytes(header[16..24].try_into().expect("eight bytes"));
    if promised != payload.len() as u64 || promised > PAYLOAD_BYTES_MAX {
        return Err(cut_off(promised.saturating_add(HEADER_BYTES as u64)));
    }
    if checksum(&[payload]) != word(12) {
        return Err(ProfileFileError::Checksum);
    }
    Ok(payload)
}

/// CRC-32 over `parts` one after the other: the checksum of profiles and of [`Fingerprint::Ends`].
pub fn checksum(parts: &[&[u8]]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    parts.iter().for_each(|part| hasher.update(part));
    hasher.finalize()
}

fn encode_file(file: &ProfiledFile) -> WireFile {
    let mut end = 0;
    let extents = file
        .extents
        .iter()
        .map(|extent| {
            let gap = extent.range.start().0 - end;
            end = extent.range.end().0;
            WireExtent { gap, len: extent.range.len(), rank: extent.rank, evidence: extent.evidence }
        })
        .collect();
    let ProfiledFile { path, identity, fingerprint, .. } = file;
    WireFile { path: path.clone(), identity: *identity, fingerprint: fingerprint.clone(), extents }
}

fn decode_file(file: WireFile) -> Result<ProfiledFile, ProfileFileError> {
    let mut end = 0u64;
    let mut extents = Vec::with_capacity(file.extents.len());
    for extent in file.extents {
        let start = end.checked_add(extent.gap).ok_or(ProfileFileError::Malformed("page number"))?;
        end = start.checked_add(extent.len).ok_or(ProfileFileError::Malformed("page number"))?;
        extents.push(Extent {
            range: PageRange::new(PageIndex(start), PageIndex(end)),
            rank: extent.rank,
            evidence: extent.evidence,
        });
    }
    Ok(ProfiledFile { path: file.path, identity: file.identity, fingerprint: file.fingerprint, extents })
}

fn encode_lookups(lookups: &[Lookup]) -> Vec<WireLookup> {
    let mut before = "";
    lookups
        .iter()
        .map(|lookup| {
            let mut shared = before.bytes().zip(lookup.path.bytes()).take_while(|(a, b)| a == b).count();
            shared = shared.min(usize::from(u16::MAX));
            while !lookup.path.is_char_boundary(shared) {
                shared -= 1;
            }
            before = &lookup.path;
            WireLookup { shared_bytes: shared as u16, rest: lookup.path[shared..].into(), list: lookup.list }
        })
        .collect()
}

fn decode_lookups(wire: &[WireLookup]) -> Result<Vec<Lookup>, ProfileFileError> {
    let mut lookups: Vec<Lookup> = Vec::with_capacity(wire.len());
    for lookup in wire {
        let before = lookups.last().map_or("", |lookup| &lookup.path);
        let shared = before
            .get(..usize::from(lookup.shared_bytes))
            .ok_or(ProfileFileError::Malformed("shared prefix of a path"))?;
        lookups.push(Lookup { path: format!("{shared}{}", lookup.rest), list: lookup.list });
    }
    Ok(lookups)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn profiles() -> impl Strategy<Value = Profile> {
        let extents =
            prop::collection::vec((1u64..9, 1u64..40, any::<u32>(), 0u8..3), 0..20).prop_map(|raw| {
                let mut end = 0;
                raw.into_iter()
                    .map(|(gap, len, rank, evidence)| {
                        let start = end + gap;
                        end = start + len;
                        let evidence =
                            [Evidence::Exact, Evidence::Seen, Evidence::Near][usize::from(evidence)];
                        Extent { range: PageRange::new(PageIndex(start), PageIndex(end)), rank, evidence }
                    })
                    .collect::<Vec<_>>()
            });
        let file = ("[/a-zé]{1,20}", any::<(u64, u64, u64, i64, i64)>(), any::<u32>(), extents).prop_map(
            |(path, (device, inode, size_bytes, mtime_ns, ctime_ns), crc, extents)| ProfiledFile {
                path,
                identity: FileIdentity { device, inode, size_bytes, mtime_ns, ctime_ns },
                fingerprint: if crc % 2 == 0 {
                    Fingerprint::Ends(crc)
                } else {
                    Fingerprint::BuildId(crc.to_le_bytes().to_vec())
                },
                extents,
            },
        );
        let lookup =
            ("/usr/(lib/)?[a-zéß]{0,9}", any::<bool>()).prop_map(|(path, list)| Lookup { path, list });
        (prop::collection::vec(file, 0..6), prop::collection::vec(lookup, 0..30)).prop_map(
            |(files, lookups)| Profile {
                program: "/usr/bin/gcc".into(),
                role: "gcc -O -S".into(),
                command: vec!["gcc".into(), "-O2".into()],
                history: History { created_unix_s: 1, updated_unix_s: 2, exact_runs: 3, refining_runs: 4 },
                files,
                lookups,
            },
        )
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
            let mut bytes = MAGIC.to_vec();
            bytes.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
            bytes.extend_from_slice(&crc32fast::hash(&payload).to_le_bytes());
            bytes.extend_from_slice(&(payload.len() as u64).to_le_bytes());
            bytes.extend_from_slice(&payload);
            let _ = decode(&bytes);
        }
    }

    #[test]
    fn a_newer_version_is_named() {
        let mut bytes = encode(&Profile::default());
        bytes[8] = 2;
        assert_eq!(decode(&bytes), Err(ProfileFileError::Version { found: 2 }));
        assert_eq!(decode(b"#!/bin/sh\n"), Err(ProfileFileError::Foreign));
    }
}
