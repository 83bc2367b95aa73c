//! What a start asks of a profile before anything else: whose it is, its past, and a [sample](super::sample) of its pages. Where these are in memory, the
//! others are too, most likely.

use minicbor::Decoder;
use minicbor::decode::Error as Malformed;

use super::sample::{self, Kept, Sample};
use super::{DECODED_BYTES_MAX, HEADER_BYTES, ProfileFileError, Room, encoded_bytes, list, pass_over};
use crate::profile::{ColdStart, FileIdentity, History, Profile};

/// A profile, without most of what it holds.
#[derive(Debug, Default)]
pub struct Glance<'b> {
    /// [`Profile::program`].
    pub program: &'b str,
    /// [`Profile::role`].
    pub role: &'b str,
    /// The history and the starts. All else is empty.
    pub past: Profile,
    kept: Option<Kept<'b>>,
}

/// As much of a profile as is sure to hold what [`whose`] asks for: the sample has 3000 bytes at most, a path 4096, and a role some hundred.
pub const WHOSE_BYTES: usize = 8 << 10;

/// Program and role of the profile that begins with `bytes`, of which the first [`WHOSE_BYTES`] are enough. What comes behind is not looked at,
/// nor whether it is as it was written.
///
/// # Errors
/// [`ProfileFileError`], where it does not begin like a profile that is read here.
pub fn whose(bytes: &[u8]) -> Result<(&str, &str), ProfileFileError> {
    encoded_bytes(bytes)?;
    beginning(&bytes[HEADER_BYTES..]).map_err(|error| ProfileFileError::Malformed(error.to_string()))
}

fn beginning(payload: &[u8]) -> Result<(&str, &str), Malformed> {
    let mut d = Decoder::new(payload);
    let (mut program, mut role) = (None, None);
    for _ in 0..fields(&mut d)? {
        match d.i64()? {
            0 => program = Some(d.str()?),
            1 => role = Some(d.str()?),
            _ => pass_over(&mut d)?,
        }
        if program.is_some() && role.is_some() {
            break;
        }
    }
    Ok((program.unwrap_or_default(), role.unwrap_or_default()))
}

impl<'b> Glance<'b> {
    /// Of the profile in `bytes`. Whether they are as they were written ([`super::check`]) takes longer to find out, and a program waits: of a damaged profile,
    /// what is seen may be wrong.
    ///
    /// # Errors
    /// [`ProfileFileError::Malformed`].
    pub fn of(bytes: &'b [u8]) -> Result<Self, ProfileFileError> {
        Self::up_to(bytes, |_| false)
    }

    /// The same of a profile that begins with `bytes`, of which the first [`super::SAMPLE_BYTES`] are enough mostly. The starts are not among what is seen.
    ///
    /// # Errors
    /// [`ProfileFileError::Malformed`], also where more bytes would tell.
    pub fn of_beginning(bytes: &'b [u8]) -> Result<Self, ProfileFileError> {
        // The history is the last field that is written of those that a warm start needs.
        Self::up_to(bytes, |field| field == HISTORY)
    }

    fn up_to(bytes: &'b [u8], is_last: impl Fn(i64) -> bool) -> Result<Self, ProfileFileError> {
        let payload = bytes.get(HEADER_BYTES..).unwrap_or_default();
        decoded(payload, is_last).map_err(|error| ProfileFileError::Malformed(error.to_string()))
    }

    /// Which file the program was when it was learned; `None` where the profile has no sample, or that has no entry of the program. An older version writes no
    /// sample, and none is written where no page is likely, or paths are too long.
    pub fn program_identity(&self) -> Option<FileIdentity> {
        self.kept.as_ref()?.files.iter().find(|file| file.path == self.program).map(|file| file.identity)
    }

    /// Pages to be asked after, in the order of files, which `random` chooses: docs/adr/0001-the-program-is-the-process.md says what may be left out. The program's own
    /// file is among them even without pages: another one may have taken its place.
    pub fn sample(&self, random: u64) -> Vec<Sample<'b>> {
        self.kept.as_ref().map_or_else(Vec::new, |kept| kept.drawn(self.program, random))
    }
}

const HISTORY: i64 = 2;

fn decoded(payload: &[u8], is_last: impl Fn(i64) -> bool) -> Result<Glance<'_>, Malformed> {
    let (mut d, mut room) = (Decoder::new(payload), Room(DECODED_BYTES_MAX));
    let mut glance = Glance::default();
    for _ in 0..fields(&mut d)? {
        let field = d.i64()?;
        match field {
            0 => glance.program = d.str()?,
            1 => glance.role = d.str()?,
            HISTORY => glance.past.history = d.decode::<History>()?,
            5 => glance.past.starts = list::decode::<_, ColdStart>(&mut d, &mut room)?,
            sample::FIELD => glance.kept = Some(Kept::decode(&mut d, &mut room)?),
            _ => pass_over(&mut d)?,
        }
        if is_last(field) {
            break;
        }
    }
    Ok(glance)
}

pub(super) fn fields(d: &mut Decoder<'_>) -> Result<u64, Malformed> {
    d.map()?.ok_or_else(|| Malformed::message("a map without length"))
}
