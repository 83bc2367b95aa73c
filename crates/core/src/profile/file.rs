//! A profile as bytes: small, checked, open to fields of other versions.
//!
//! ```text
//! offset  size  what
//!      0     8  magic "PREPAGE\n"
//!      8     4  format version, little-endian
//!     12     4  CRC-32 (IEEE) of the payload
//!     16     8  length of the payload
//!     24     …  payload: CBOR (RFC 8949), a map from field numbers to fields
//! ```
//! docs/profile-format.md lists the fields. A field that a reader does not know is skipped, one that a writer did not know
//! is empty. The version changes only when that is not enough; a newer one is refused and left alone. What travels with one
//! file, in it or beside it, is a profile of that file alone: one bit a page.

use minicbor::data::Type;
use minicbor::decode::Error as Malformed;
use minicbor::encode::{Error as Unwritable, Write};
use minicbor::{Decode, Decoder, Encode, Encoder};

use super::{Counts, Extent, Lookup, Profile};
use crate::page::{PAGE_SIZE, PageIndex, PageRange};

mod glance;
mod sample;

pub use glance::{Glance, WHOSE_BYTES, whose};
pub use sample::{SAMPLE_BYTES, Sample};

/// The version this crate writes, and the only one it reads.
pub const FORMAT_VERSION: u32 = 3;

/// The largest payload that is read: a bound on what a damaged length can make us allocate. The profile of
/// chromium is a hundred times smaller.
pub const PAYLOAD_BYTES_MAX: u64 = 64 << 20;

/// What a decoded profile may take in memory, whatever its payload says.
const DECODED_BYTES_MAX: usize = 64 << 20;

/// Bytes before the payload.
pub const HEADER_BYTES: usize = 24;

const MAGIC: [u8; 8] = *b"PREPAGE\n";

/// Why bytes are not a profile.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProfileFileError {
    /// The magic is missing.
    #[error("not a prepage profile (it does not start with the profile magic)")]
    Foreign,
    /// The file has this other version of the format.
    #[error("profile format version {0}, this prepage reads version {FORMAT_VERSION}")]
    Version(u32),
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
    Malformed(String),
}

/// The bytes of `profile`.
pub fn encode(profile: &Profile) -> Vec<u8> {
    let mut payload = Vec::new();
    minicbor::encode_with(profile, &mut payload, &mut Room(0)).expect("writing to memory does not fail");
    enclose(FORMAT_VERSION, &sample::with_sample(profile, payload))
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
    decode_in(bytes, &mut Room(DECODED_BYTES_MAX))
}

/// The profile in `bytes`, where several share the room.
pub fn decode_in(bytes: &[u8], room: &mut Room) -> Result<Profile, ProfileFileError> {
    let malformed = |error: Malformed| ProfileFileError::Malformed(error.to_string());
    minicbor::decode_with(check(bytes)?, room).map_err(malformed)
}

/// Whether `bytes` are a whole and sound profile of the version that is read here; returns the payload. Much cheaper than
/// [`decode`].
pub fn check(bytes: &[u8]) -> Result<&[u8], ProfileFileError> {
    let total = encoded_bytes(bytes)?;
    if total != bytes.len() as u64 {
        return Err(ProfileFileError::Length { found_bytes: bytes.len() as u64, promised_bytes: total });
    }
    let (header, payload) = bytes.split_at(HEADER_BYTES);
    if checksum(&[payload]) != u32_at(header, 12) {
        return Err(ProfileFileError::Checksum);
    }
    Ok(payload)
}

/// Length of the profile that begins with `bytes`, of which only the first [`HEADER_BYTES`] need to be there.
pub fn encoded_bytes(bytes: &[u8]) -> Result<u64, ProfileFileError> {
    if !bytes.starts_with(&MAGIC) {
        return Err(ProfileFileError::Foreign);
    }
    let cut_off =
        |promised_bytes| ProfileFileError::Length { found_bytes: bytes.len() as u64, promised_bytes };
    if bytes.len() < HEADER_BYTES {
        return Err(cut_off(HEADER_BYTES as u64));
    }
    let found = u32_at(bytes, 8);
    if found != FORMAT_VERSION {
        return Err(ProfileFileError::Version(found));
    }
    let promised = u64::from_le_bytes(bytes[16..24].try_into().expect("eight bytes"));
    let total = promised.saturating_add(HEADER_BYTES as u64);
    if promised > PAYLOAD_BYTES_MAX { Err(cut_off(total)) } else { Ok(total) }
}

/// CRC-32 over `parts` one after the other: the checksum of profiles and of [`super::Fingerprint::Ends`].
pub fn checksum(parts: &[&[u8]]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    parts.iter().for_each(|part| hasher.update(part));
    hasher.finalize()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// Memory that decoding may still take: a few bytes can ask for a lot of it (a list of empty strings, a bitmap of every
/// other page).
#[derive(Debug)]
pub struct Room(usize);

impl AsMut<Self> for Room {
    fn as_mut(&mut self) -> &mut Self {
        self
    }
}

impl Room {
    /// Room for what takes so many bytes.
    pub fn of(bytes: usize) -> Self {
        Self(bytes)
    }

    fn take<T>(&mut self, count: usize) -> Result<(), Malformed> {
        let left = count.checked_mul(size_of::<T>()).and_then(|bytes| self.0.checked_sub(bytes));
        self.0 = left.ok_or_else(|| Malformed::message("larger than any profile"))?;
        Ok(())
    }
}

/// Strings.
pub(super) mod text {
    use super::*;

    pub fn encode<C, W: Write>(
        text: &str,
        e: &mut Encoder<W>,
        _: &mut C,
    ) -> Result<(), Unwritable<W::Error>> {
        e.str(text)?.ok()
    }

    pub fn decode<C: AsMut<Room>>(d: &mut Decoder<'_>, room: &mut C) -> Result<String, Malformed> {
        let text = d.str()?;
        room.as_mut().take::<u8>(text.len())?;
        Ok(text.into())
    }
}

/// Lists of anything.
pub(super) mod list {
    use super::*;

    pub fn encode<C, W: Write, T: Encode<C>>(
        list: &[T],
        e: &mut Encoder<W>,
        room: &mut C,
    ) -> Result<(), Unwritable<W::Error>> {
        e.array(list.len() as u64)?;
        list.iter().try_for_each(|one| one.encode(e, room))
    }

    pub fn decode<'b, C: AsMut<Room>, T: Decode<'b, C>>(
        d: &mut Decoder<'b>,
        room: &mut C,
    ) -> Result<Vec<T>, Malformed> {
        let mut list = Vec::new();
        for _ in 0..count(d)? {
            room.as_mut().take::<T>(1)?;
            list.push(d.decode_with(room)?);
        }
        Ok(list)
    }
}

fn count(d: &mut Decoder<'_>) -> Result<u64, Malformed> {
    d.array()?.ok_or_else(|| Malformed::message("a list without length"))
}

/// CBOR of known lengths, one item behind the other. A decoder of whatever comes takes five times as long for each, and of these a profile has
/// thousands, which a program waits for.
struct Items<'b>(&'b [u8]);

impl Items<'_> {
    /// The kind of the next item, and its number: of a list or a text, how long it is.
    #[inline(always)]
    fn next(&mut self) -> Option<(u8, u64)> {
        let (&first, rest) = self.0.split_first()?;
        let (number, rest) = match (first & 0x1f, rest) {
            (small @ ..24, rest) => (small.into(), rest),
            (24, [number, rest @ ..]) => ((*number).into(), rest),
            (width @ 25..28, rest) => {
                let (bytes, rest) = rest.split_at_checked(1 << (width - 24))?;
                (bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)), rest)
            }
            _ => return None,
        };
        self.0 = rest;
        Some((first >> 5, number))
    }

    #[inline(always)]
    fn unsigned(&mut self) -> Option<u64> {
        self.next().and_then(|(kind, number)| (kind == 0).then_some(number))
    }

    #[inline(always)]
    fn byte(&mut self) -> Option<u8> {
        self.unsigned()?.try_into().ok()
    }

    #[inline(always)]
    fn signed(&mut self) -> Option<i64> {
        let (kind, number) = self.next()?;
        let number = i64::try_from(number).ok()?;
        match kind {
            0 => Some(number),
            1 => Some(-1 - number),
            _ => None,
        }
    }

    /// Passes over one item, whatever it is, and what it holds.
    fn pass_over(&mut self) -> Option<()> {
        let mut items = 1u64;
        while items > 0 {
            let (kind, number) = self.next()?;
            items -= 1;
            match kind {
                2 | 3 => self.0 = self.0.get(usize::try_from(number).ok()?..)?,
                4 => items = items.checked_add(number)?,
                5 => items = number.checked_mul(2).and_then(|number| items.checked_add(number))?,
                6 => items += 1,
                _ => {}
            }
        }
        Some(())
    }
}

/// Passes over what is not wanted of a profile.
fn pass_over(d: &mut Decoder<'_>) -> Result<(), Malformed> {
    let mut left = Items(d.input().get(d.position()..).unwrap_or_default());
    match left.pass_over() {
        Some(()) => d.set_position(d.input().len() - left.0.len()),
        // Its length stands nowhere, or it makes no sense.
        None => d.skip()?,
    }
    Ok(())
}

/// The extents of a file: numbers a piece, `[how many of each, gap, len, rank step, used, observed, by_read, gap, …]`; or
/// where nothing more is known than that one start used them, and it is smaller, one bit a page.
pub(super) mod extents {
    use super::*;

    /// Numbers of one extent that this version writes. Others behind them are skipped.
    const NUMBERS: u64 = 6;
    /// What an extent takes as numbers, about.
    const EXTENT_BYTES: u64 = 6;

    pub fn encode<C, W: Write>(
        extents: &[Extent],
        e: &mut Encoder<W>,
        _: &mut C,
    ) -> Result<(), Unwritable<W::Error>> {
        let end = extents.last().map_or(0, |last| last.range.end().0);
        let is_plain = |extent: &Extent| !extent.range.is_empty() && *extent == Extent::new(extent.range, 0);
        let are_apart = extents.windows(2).all(|pair| pair[0].range.end() < pair[1].range.start());
        let is_map = are_apart && extents.iter().all(is_plain);
        if is_map && !extents.is_empty() && end / 8 <= EXTENT_BYTES * extents.len() as u64 {
            let mut bitmap = vec![0u8; end.div_ceil(8) as usize];
            for page in extents.iter().flat_map(|extent| extent.range.iter()) {
                bitmap[(page.0 / 8) as usize] |= 1 << (page.0 % 8);
            }
            return e.bytes(&bitmap)?.ok();
        }
        e.array(1 + NUMBERS * extents.len() as u64)?.u64(NUMBERS)?;
        let (mut end, mut rank) = (0, 0);
        for extent in extents {
            let (used, observed) = extent.counts.sixteenths();
            e.u64(extent.range.start().0 - end)?.u64(extent.range.len())?;
            e.i64(i64::from(extent.rank) - rank)?.u8(used)?.u8(observed)?.u8(extent.by_read.into())?;
            (end, rank) = (extent.range.end().0, extent.rank.into());
        }
        Ok(())
    }

    pub fn decode<C: AsMut<Room>>(d: &mut Decoder<'_>, room: &mut C) -> Result<Vec<Extent>, Malformed> {
        let mut extents = Vec::new();
        each(d, room.as_mut(), |extent| extents.push(extent))?;
        Ok(extents)
    }

    /// Calls `take` with each extent, as [`decode`] returns them: for each, there is room.
    pub fn each(d: &mut Decoder<'_>, room: &mut Room, mut take: impl FnMut(Extent)) -> Result<(), Malformed> {
        if d.datatype()? == Type::Bytes {
            runs(d.bytes()?, room)?.into_iter().for_each(take);
            return Ok(());
        }
        let wrong = || Malformed::message("numbers of an extent");
        let count = count(d)?.checked_sub(1).ok_or_else(wrong)?;
        let numbers = d.u64()?;
        if numbers < NUMBERS || count % numbers != 0 {
            return Err(wrong());
        }
        let extents = count / numbers;
        room.take::<Extent>(usize::try_from(extents).map_err(|_| wrong())?)?;
        let mut left = Items(d.input().get(d.position()..).unwrap_or_default());
        let (mut end, mut rank) = (0u64, 0i64);
        for _ in 0..extents {
            let mut extent = || {
                let start = end.checked_add(left.unsigned()?)?;
                // The offset of each page's last byte must be a number too.
                end = start.checked_add(left.unsigned()?).filter(|end| *end <= PAGES_MAX)?;
                rank = rank.saturating_add(left.signed()?);
                let extent = Extent {
                    range: PageRange::new(PageIndex(start), PageIndex(end)),
                    rank: rank.try_into().ok()?,
                    counts: Counts::from_sixteenths(left.byte()?, left.byte()?),
                    by_read: left.byte()? != 0,
                };
                (NUMBERS..numbers).try_for_each(|_| left.pass_over())?;
                Some(extent)
            };
            take(extent().ok_or_else(wrong)?);
        }
        d.set_position(d.input().len() - left.0.len());
        Ok(())
    }

    /// Pages of the largest file there can be: offsets are signed 64-bit numbers.
    const PAGES_MAX: u64 = (i64::MAX as u64) / PAGE_SIZE;

    /// The runs of set bits: page i is bit i mod 8 of byte i / 8.
    fn runs(bitmap: &[u8], room: &mut Room) -> Result<Vec<Extent>, Malformed> {
        let mut runs: Vec<Extent> = Vec::new();
        for (at, &byte) in (0u64..).zip(bitmap).filter(|(_, byte)| **byte != 0) {
            for bit in (0..8).filter(|bit| byte & (1 << bit) != 0) {
                let page = PageIndex(at * 8 + bit);
                let end = PageIndex(page.0 + 1);
                match runs.last_mut() {
                    Some(last) if last.range.end() == page => {
                        last.range = PageRange::new(last.range.start(), end);
                    }
                    _ => {
                        room.take::<Extent>(1)?;
                        runs.push(Extent::new(PageRange::new(page, end), 0));
                    }
                }
            }
        }
        Ok(runs)
    }
}

/// Names, each a list: bytes shared with the name before, the rest, whether it is listed, counts.
pub(super) mod names {
    use super::*;

    const FIELDS: u64 = 4;

    pub fn encode<C, W: Write>(
        names: &[Lookup],
        e: &mut Encoder<W>,
        room: &mut C,
    ) -> Result<(), Unwritable<W::Error>> {
        e.array(names.len() as u64)?;
        let mut before = "";
        for name in names {
            let mut shared = before.bytes().zip(name.path.bytes()).take_while(|(a, b)| a == b).count();
            while !name.path.is_char_boundary(shared) {
                shared -= 1;
            }
            before = &name.path;
            e.array(FIELDS)?.u64(shared as u64)?.str(&name.path[shared..])?.bool(name.list)?;
            name.counts.encode(e, room)?;
        }
        Ok(())
    }

    pub fn decode<C: AsMut<Room>>(d: &mut Decoder<'_>, room: &mut C) -> Result<Vec<Lookup>, Malformed> {
        let mut names: Vec<Lookup> = Vec::new();
        for _ in 0..count(d)? {
            let more = count(d)?.checked_sub(FIELDS).ok_or_else(|| Malformed::message("fields of a name"))?;
            let before = names.last().map_or("", |name| &name.path);
            let shared =
                before.get(..d.u64()? as usize).ok_or_else(|| Malformed::message("start of a name"))?;
            let rest = d.str()?;
            // A few bytes that refer to a long name again and again would grow beyond all bounds.
            room.as_mut().take::<Lookup>(1)?;
            room.as_mut().take::<u8>(shared.len() + rest.len())?;
            let path = format!("{shared}{rest}");
            let (list, counts) = (d.bool()?, d.decode::<Counts>()?);
            let (used, observed) = counts.sixteenths();
            names.push(Lookup { path, list, counts: Counts::from_sixteenths(used, observed) });
            (0..more).try_for_each(|_| d.skip())?;
        }
        Ok(names)
    }
}

#[cfg(test)]
mod tests;
