//! Launches as bytes: a version, a checksum, and CBOR. What does not hold together is refused as a whole.

use std::collections::BTreeMap;

use minicbor::{Decode, Encode};

use super::{Context, Counted, FOLLOWERS_MAX, Launched, Launches, NAME_BYTES_MAX, PROGRAMS_MAX, Program};
use crate::idle::worth::Worth;
use crate::profile::counts::Counts;
use crate::profile::file::checksum;

const MAGIC: [u8; 8] = *b"prelaun\x01";
/// The magic number and the checksum.
const HEADER_BYTES: usize = 12;
/// More than the largest log takes.
const BYTES_MAX: usize = 1 << 20;

/// The bytes are not a launch log.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum SavedError {
    /// Another version, or something else.
    #[error("not a launch log of this version")]
    Foreign,
    /// Cut off or changed.
    #[error("the launch log is damaged")]
    Damaged,
}

#[derive(Encode, Decode)]
struct Saved {
    /// Slot, path, role, first and last launch.
    #[n(0)]
    programs: Vec<(u16, String, String, u64, u64)>,
    #[n(1)]
    contexts: Vec<SavedContext>,
    #[n(2)]
    last_launch_unix_s: u64,
    /// None where nothing was guessed.
    #[n(3)]
    worth: Option<Worth>,
}

#[derive(Encode, Decode)]
struct SavedContext {
    /// 0 arrival, 1 hour, 2 after.
    #[n(0)]
    kind: u8,
    /// The hour, or the slot.
    #[n(1)]
    of: u16,
    #[n(2)]
    visits: u32,
    #[n(3)]
    followers: Vec<(u16, Counts)>,
}

impl Launches {
    /// What has been counted. Visits under way are not part of it.
    pub fn encode(&self) -> Vec<u8> {
        let programs = (0..).zip(&self.programs).filter_map(|(slot, program)| {
            let Program { what, first_unix_s, last_unix_s } = program.clone()?;
            Some((slot, what.program, what.role, first_unix_s, last_unix_s))
        });
        let contexts = self.counted.iter().map(|(context, counted)| {
            let (kind, of) = match *context {
                Context::Arrival => (0, 0),
                Context::Hour(hour) => (1, hour.into()),
                Context::After(slot) => (2, slot),
            };
            let followers = counted.followers.iter().map(|(slot, counts)| (*slot, *counts)).collect();
            SavedContext { kind, of, visits: counted.visits, followers }
        });
        let saved = Saved {
            programs: programs.collect(),
            contexts: contexts.collect(),
            last_launch_unix_s: self.last_launch_unix_s,
            worth: (self.worth != Worth::default()).then_some(self.worth),
        };
        let payload = minicbor::to_vec(&saved).expect("writing to memory does not fail");
        let mut bytes = MAGIC.to_vec();
        bytes.extend(checksum(&[&payload]).to_le_bytes());
        bytes.extend(payload);
        bytes
    }

    /// What [`Self::encode`] has written.
    ///
    /// # Errors
    /// [`SavedError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, SavedError> {
        if !bytes.starts_with(&MAGIC) {
            return Err(SavedError::Foreign);
        }
        let (header, payload) = bytes.split_at_checked(HEADER_BYTES).ok_or(SavedError::Damaged)?;
        if bytes.len() > BYTES_MAX || header[MAGIC.len()..] != checksum(&[payload]).to_le_bytes() {
            return Err(SavedError::Damaged);
        }
        let saved: Saved = minicbor::decode(payload).map_err(|_| SavedError::Damaged)?;
        let mut programs: Vec<Option<Program>> = Vec::new();
        for (slot, program, role, first_unix_s, last_unix_s) in saved.programs {
            let slot = usize::from(slot);
            if slot >= PROGRAMS_MAX || program.len().max(role.len()) > NAME_BYTES_MAX {
                return Err(SavedError::Damaged);
            }
            programs.resize(programs.len().max(slot + 1), None);
            programs[slot] = Some(Program { what: Launched { program, role }, first_unix_s, last_unix_s });
        }
        let is_known = |slot: u16| programs.get(usize::from(slot)).is_some_and(Option::is_some);
        let mut counted = BTreeMap::new();
        for SavedContext { kind, of, visits, followers } in saved.contexts {
            let context = match kind {
                0 if of == 0 => Context::Arrival,
                1 if of < 24 => Context::Hour(of as u8),
                2 if is_known(of) => Context::After(of),
                _ => return Err(SavedError::Damaged),
            };
            if followers.len() > FOLLOWERS_MAX || !followers.iter().all(|(slot, _)| is_known(*slot)) {
                return Err(SavedError::Damaged);
            }
            let checked = |(slot, counts): (u16, Counts)| {
                let (used, observed) = counts.sixteenths();
                (slot, Counts::from_sixteenths(used, observed))
            };
            counted
                .insert(context, Counted { visits, followers: followers.into_iter().map(checked).collect() });
        }
        let (last_launch_unix_s, worth) = (saved.last_launch_unix_s, saved.worth.unwrap_or_default());
        Ok(Self { programs, counted, last_launch_unix_s, worth, ..Self::default() })
    }
}
