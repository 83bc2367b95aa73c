//! The first version of the profile format: no counters, ranks of names by their place. Read, not written.

use serde::Deserialize;

use crate::page::PageIndex;
use crate::profile::{Evidence, Extent, FileIdentity, Fingerprint, History, Profile, ProfiledFile};
use crate::profile_file::{ProfileFileError, WireLookup, decode_lookups, decode_range};

#[derive(Deserialize)]
struct Wire {
    program: String,
    role: String,
    command: Vec<String>,
    history: WireHistory,
    files: Vec<WireFile>,
    lookups: Vec<WireLookupV1>,
}

#[derive(Deserialize)]
struct WireHistory {
    created_unix_s: u64,
    updated_unix_s: u64,
    exact_runs: u32,
    refining_runs: u32,
}

#[derive(Deserialize)]
struct WireFile {
    path: String,
    identity: FileIdentity,
    fingerprint: Fingerprint,
    extents: Vec<WireExtent>,
}

#[derive(Deserialize)]
struct WireExtent {
    gap: u64,
    len: u64,
    rank: u32,
    evidence: Evidence,
}

#[derive(Deserialize)]
struct WireLookupV1 {
    shared_bytes: u16,
    rest: String,
    list: bool,
}

/// The profile in a payload of version 1. Its pages count as seen once, or not at all where they were only near.
pub(crate) fn decode(payload: &[u8]) -> Result<Profile, ProfileFileError> {
    let wire: Wire = postcard::from_bytes(payload).map_err(|_| ProfileFileError::Malformed("encoding"))?;
    let WireHistory { created_unix_s, updated_unix_s, exact_runs, refining_runs } = wire.history;
    let lookups: Vec<WireLookup> = wire
        .lookups
        .into_iter()
        .enumerate()
        .map(|(at, WireLookupV1 { shared_bytes, rest, list })| WireLookup {
            shared_bytes,
            rest,
            list,
            rank_step: u32::from(at > 0),
        })
        .collect();
    Ok(Profile {
        program: wire.program,
        role: wire.role,
        command: wire.command,
        history: History { created_unix_s, updated_unix_s, exact_runs, refining_runs, ..History::default() },
        files: wire
            .files
            .into_iter()
            .map(|file| decode_file(file, updated_unix_s))
            .collect::<Result<_, _>>()?,
        lookups: decode_lookups(&lookups)?,
        starts: Vec::new(),
    })
}

fn decode_file(file: WireFile, learned_unix_s: u64) -> Result<ProfiledFile, ProfileFileError> {
    let mut end = PageIndex(0);
    let mut extents = Vec::with_capacity(file.extents.len());
    for extent in file.extents {
        let range = decode_range(end, extent.gap, extent.len)?;
        end = range.end();
        extents.push(Extent::new(range, extent.rank, extent.evidence));
    }
    let WireFile { path, identity, fingerprint, .. } = file;
    Ok(ProfiledFile { path, identity, fingerprint, learned_unix_s, extents })
}
