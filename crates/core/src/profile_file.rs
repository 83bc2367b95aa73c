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
//! Extents are stored as gaps and lengths and share what is known of them by a table per file; names as the length of
//! the prefix shared with the one before and the rest. A thousand names and ten thousand pages fit in a few dozen KiB,
//! so a cold start reads the profile in one or two transfers.
//!
//! Version 1, which had no counters, is read too ([`crate::profile_file_v1`]).

use serde::{Deserialize, Serialize};

use crate::cold_start::ColdStart;
use crate::counts::Counts;
use crate::page::{PAGE_SIZE, PageIndex, PageRange};
use crate::profile::{Evidence, Extent, FileIdentity, Fingerprint, History, Lookup, Profile, ProfiledFile};
use crate::profile_file_v1;

/// The version this crate writes. It reads this and the ones before.
pub const FORMAT_VERSION: u32 = 2;

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
    #[error("profile format version {found}, this prepage reads versions 1 to {FORMAT_VERSION}")]
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
    starts: Vec<ColdStart>,
}

#[derive(Serialize, Deserialize)]
struct WireFile {
    path: String,
    identity: FileIdentity,
    fingerprint: Fingerprint,
    learned_unix_s: u64,
    knowledge: Vec<Knowledge>,
    extents: Vec<WireExtent>,
}

/// What the extents of a file that point here have in common.
#[derive(Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Knowledge {
    evidence: Evidence,
    by_read: bool,
    touched_sixteenths: u8,
    spared_sixteenths: u8,
}

#[derive(Serialize, Deserialize)]
struct WireExtent {
    /// Pages between the end of the extent before and the start of this one.
    gap: u64,
    len: u64,
    rank: u32,
    /// Index into the file's knowledge.
    knowledge: u32,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct WireLookup {
    pub(crate) shared_bytes: u16,
    pub(crate) rest: String,
    pub(crate) list: bool,
    /// How far behind the rank of the name before; ranks of names ascend.
    pub(crate) rank_step: u32,
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
        starts: profile.starts.clone(),
    };
    let payload = postcard::to_allocvec(&wire).expect("writing to memory does not fail");
    enclose(FORMAT_VERSION, &payload)
}

/// A payload with the header before it.
fn enclose(version: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + payload.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&version.to_le_bytes());
    bytes.extend_from_slice(&checksum(&[payload]).to_le_bytes());
    bytes.extend_from_slice(&(payload.len() as u64).to_le_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// The profile in `bytes`.
pub fn decode(bytes: &[u8]) -> Result<Profile, ProfileFileError> {
    let payload = check(bytes)?;
    if version(bytes) == 1 {
        return profile_file_v1::decode(payload);
    }
    let wire: Wire = postcard::from_bytes(payload).map_err(|_| ProfileFileError::Malformed("encoding"))?;
    Ok(Profile {
        program: wire.program,
        role: wire.role,
        command: wire.command,
        history: wire.history,
        files: wire.files.into_iter().map(decode_file).collect::<Result<_, _>>()?,
        lookups: decode_lookups(&wire.lookups)?,
        starts: wire.starts,
    })
}

/// The history in `bytes` that [`check`] found sound, without decoding the rest.
pub fn history(bytes: &[u8]) -> Option<History> {
    if version(bytes) != FORMAT_VERSION {
        return None;
    }
    type Head = (String, String, Vec<String>, History);
    let (head, _) = postcard::take_from_bytes::<Head>(&bytes[HEADER_BYTES..]).ok()?;
    Some(head.3)
}

/// Whether `bytes` are a whole and sound profile of a version that is read here; returns the payload. Much cheaper than [`decode`].
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
    if !(1..=FORMAT_VERSION).contains(&found) {
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

/// The version in a header that was checked.
fn version(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes[8..12].try_into().expect("four bytes"))
}

fn encode_file(file: &ProfiledFile) -> WireFile {
    let mut end = 0;
    let mut table: Vec<Knowledge> = Vec::new();
    let extents = file
        .extents
        .iter()
        .map(|extent| {
            let gap = extent.range.start().0 - end;
            end = extent.range.end().0;
            let (touched_sixteenths, spared_sixteenths) = extent.counts.sixteenths();
            let known = Knowledge {
                evidence: extent.evidence,
                by_read: extent.by_read,
                touched_sixteenths,
                spared_sixteenths,
            };
            let at = table.iter().position(|one| *one == known).unwrap_or_else(|| {
                table.push(known);
                table.len() - 1
            });
            WireExtent { gap, len: extent.range.len(), rank: extent.rank, knowledge: at as u32 }
        })
        .collect();
    WireFile {
        path: file.path.clone(),
        identity: file.identity,
        fingerprint: file.fingerprint.clone(),
        learned_unix_s: file.learned_unix_s,
        knowledge: table,
        extents,
    }
}

fn decode_file(file: WireFile) -> Result<ProfiledFile, ProfileFileError> {
    let mut at = PageIndex(0);
    let mut extents = Vec::with_capacity(file.extents.len());
    for extent in file.extents {
        let known = file.knowledge.get(extent.knowledge as usize);
        let known = known.ok_or(ProfileFileError::Malformed("reference to knowledge"))?;
        let range = decode_range(at, extent.gap, extent.len)?;
        at = range.end();
        extents.push(Extent {
            range,
            rank: extent.rank,
            evidence: known.evidence,
            counts: Counts::from_sixteenths(known.touched_sixteenths, known.spared_sixteenths),
            by_read: known.by_read,
        });
    }
    Ok(ProfiledFile {
        path: file.path,
        identity: file.identity,
        fingerprint: file.fingerprint,
        learned_unix_s: file.learned_unix_s,
        extents,
    })
}

/// The `len` pages that begin `gap` pages behind `end`.
pub(crate) fn decode_range(end: PageIndex, gap: u64, len: u64) -> Result<PageRange, ProfileFileError> {
    let wrong = ProfileFileError::Malformed("page number");
    let start = end.0.checked_add(gap);
    let end = start.and_then(|start| start.checked_add(len));
    match (start, end) {
        // The offset of each page's last byte must be a number too.
        (Some(start), Some(end)) if end <= PAGES_MAX => Ok(PageRange::new(PageIndex(start), PageIndex(end))),
        _ => Err(wrong),
    }
}

/// Pages of the largest file there can be: offsets are signed 64-bit numbers.
const PAGES_MAX: u64 = (i64::MAX as u64) / PAGE_SIZE;

fn encode_lookups(lookups: &[Lookup]) -> Vec<WireLookup> {
    let (mut before, mut rank) = ("", 0);
    lookups
        .iter()
        .map(|lookup| {
            let mut shared = before.bytes().zip(lookup.path.bytes()).take_while(|(a, b)| a == b).count();
            shared = shared.min(usize::from(u16::MAX));
            while !lookup.path.is_char_boundary(shared) {
                shared -= 1;
            }
            before = &lookup.path;
            let rank_step = lookup.rank.saturating_sub(rank);
            rank = lookup.rank;
            WireLookup {
                shared_bytes: shared as u16,
                rest: lookup.path[shared..].into(),
                list: lookup.list,
                rank_step,
            }
        })
        .collect()
}

pub(crate) fn decode_lookups(wire: &[WireLookup]) -> Result<Vec<Lookup>, ProfileFileError> {
    let mut lookups: Vec<Lookup> = Vec::with_capacity(wire.len());
    let mut bytes = 0u64;
    let mut rank = 0u32;
    for lookup in wire {
        let before = lookups.last().map_or("", |lookup| &lookup.path);
        let shared = before
            .get(..usize::from(lookup.shared_bytes))
            .ok_or(ProfileFileError::Malformed("shared prefix of a path"))?;
        let path = format!("{shared}{}", lookup.rest);
        // A few bytes that refer to a long prefix again and again would grow beyond all bounds.
        bytes += path.len() as u64;
        if bytes > PAYLOAD_BYTES_MAX {
            return Err(ProfileFileError::Malformed("names longer than any profile"));
        }
        rank = rank.saturating_add(lookup.rank_step);
        lookups.push(Lookup { rank, path, list: lookup.list });
    }
    Ok(lookups)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn profiles() -> impl Strategy<Value = Profile> {
        let extents = prop::collection::vec((1u64..9, 1u64..40, any::<u32>(), any::<(u8, u8, u8)>()), 0..20)
            .prop_map(|raw| {
                let mut end = 0;
                raw.into_iter()
                    .map(|(gap, len, rank, (evidence, touched, spared))| {
                        let start = end + gap;
                        end = start + len;
                        let evidence_of =
                            [Evidence::Exact, Evidence::Seen, Evidence::Near][usize::from(evidence % 3)];
                        Extent {
                            counts: Counts::from_sixteenths(touched, spared),
                            by_read: evidence > 127,
                            ..Extent::new(PageRange::new(PageIndex(start), PageIndex(end)), rank, evidence_of)
                        }
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
                learned_unix_s: u64::from(crc),
                extents,
            },
        );
        let lookup = ("/usr/(lib/)?[a-zéß]{0,9}", any::<bool>(), 0u32..100)
            .prop_map(|(path, list, rank)| Lookup { rank, path, list });
        let start = any::<(u64, u64, bool, u32)>().prop_map(|(unix_s, device, held_out, took_us)| {
            ColdStart { unix_s, device, held_out, took_us, ..ColdStart::default() }
        });
        let [files, lookups, starts] = [0..6, 0..30, 0..5];
        let lists = (
            prop::collection::vec(file, files),
            prop::collection::vec(lookup, lookups),
            prop::collection::vec(start, starts),
        );
        lists.prop_map(|(files, mut lookups, starts)| {
            lookups.sort_by_key(|lookup| lookup.rank);
            Profile {
                program: "/usr/bin/gcc".into(),
                role: "gcc -O -S".into(),
                command: vec!["gcc".into(), "-O2".into()],
                history: History {
                    created_unix_s: 1,
                    updated_unix_s: 2,
                    exact_runs: 3,
                    refining_runs: 4,
                    looks_due: 5,
                    looks_rest: 6,
                },
                files,
                lookups,
                starts,
            }
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(profile in profiles()) {
            prop_assert_eq!(history(&encode(&profile)), Some(profile.history));
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
            for version in 1..=FORMAT_VERSION {
                let _ = decode(&enclose(version, &payload));
            }
        }
    }

    #[test]
    fn a_newer_version_is_named() {
        let mut bytes = encode(&Profile::default());
        bytes[8] = FORMAT_VERSION as u8 + 1;
        assert_eq!(decode(&bytes), Err(ProfileFileError::Version { found: FORMAT_VERSION + 1 }));
        bytes[8] = 0;
        assert_eq!(decode(&bytes), Err(ProfileFileError::Version { found: 0 }));
        assert_eq!(decode(b"#!/bin/sh\n"), Err(ProfileFileError::Foreign));
    }
}
