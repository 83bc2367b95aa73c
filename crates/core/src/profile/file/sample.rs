//! Some pages of a profile, which stand in front of all else in its bytes: whoever wants to know whether a start is warm reads the beginning, and asks after a
//! few of them.
//!
//! They are chosen in two steps. When the profile is written, [`encoded`] keeps places among the reads of a cold start, each as far behind the one before, and of each file
//! that has such places, reads that lie as far apart. For each start [`Kept::drawn`] draws some of these places, and pages of their files. So a file has as large a part of
//! the places as of the reads, however few pages it has: many small files together are looked at as often as a large one.

use minicbor::decode::Error as Malformed;
use minicbor::{Decoder, Encoder};

use super::{Room, checksum, count, extents, glance, list, pass_over};
use crate::page::PageIndex;
use crate::profile::{Extent, FileIdentity, Fingerprint, Profile, ProfiledFile};
use crate::random::{SplitMix, mix};

/// The field's number.
pub(super) const FIELD: i64 = 7;

/// As much of a profile as holds the sample, and what stands around it, unless the program's path is very long: a page of the file.
pub const SAMPLE_BYTES: usize = 4096;

/// The field takes so many bytes at most, of [`SAMPLE_BYTES`].
const FIELD_BYTES_MAX: usize = 3000;

/// So many places are kept, and of each so many pages: the first of these that the paths leave room for.
const KEPT: [(u64, u64); 4] = [(12, 8), (12, 4), (6, 4), (3, 4)];

/// A read of a cold start brings in as many pages at most (128 KiB).
const READ_PAGES: u64 = 32;

/// One page is drawn for so many reads: where what a page stands for is missing unseen, a local disk has it back in two milliseconds.
const READS_A_PAGE: u64 = 32;

/// So many pages are drawn at least, and at most.
const DRAWN_PAGES: std::ops::RangeInclusive<u64> = 8..=24;

/// Pages that are drawn of a place, and so of most files: to look for a page takes a microsecond, and to open a file five times as long.
const DRAWN_A_PLACE: u64 = 4;

/// So many places are drawn, however few pages that takes.
const DRAWN_PLACES_MIN: u64 = 4;

/// Pages of a file, to be asked after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample<'b> {
    /// [`ProfiledFile::path`].
    pub path: &'b str,
    /// [`ProfiledFile::identity`].
    pub identity: FileIdentity,
    /// The pages.
    pub pages: Vec<PageIndex>,
    /// How many of the places that are kept are its.
    places: u64,
    content: &'b [u8],
}

impl Sample<'_> {
    /// [`ProfiledFile::fingerprint`], where it makes sense.
    pub fn fingerprint(&self) -> Option<Fingerprint> {
        minicbor::decode(self.content).ok()
    }
}

/// What a profile keeps to draw samples from.
#[derive(Debug)]
pub(super) struct Kept<'b> {
    /// What a cold start reads in all.
    reads: u64,
    pub(super) files: Vec<Sample<'b>>,
}

impl<'b> Kept<'b> {
    /// Some of them for a start of `program`, as `random` chooses.
    pub(super) fn drawn(&self, program: &str, random: u64) -> Vec<Sample<'b>> {
        let pages = (self.reads / READS_A_PAGE).clamp(*DRAWN_PAGES.start(), *DRAWN_PAGES.end());
        let places = pages.div_ceil(DRAWN_A_PLACE).max(DRAWN_PLACES_MIN);
        let kept = self.files.iter().map(|file| (file.places, file.pages.len() as u64));
        let chosen = self.files.iter().zip(chosen(kept, places, pages.div_ceil(places), random));
        chosen
            .filter(|(file, (_, at))| !at.is_empty() || file.path == program)
            .map(|(file, (_, at))| {
                let pages = at.into_iter().map(|at| file.pages[at as usize]).collect();
                Sample { pages, ..*file }
            })
            .collect()
    }

    pub(super) fn decode(d: &mut Decoder<'b>, room: &mut Room) -> Result<Self, Malformed> {
        let more = count(d)?.checked_sub(2).ok_or_else(|| Malformed::message("a sample without files"))?;
        let (reads, mut files) = (d.u64()?, Vec::new());
        for _ in 0..count(d)? {
            room.take::<Sample<'_>>(1)?;
            files.push(file(d, room)?);
        }
        (0..more).try_for_each(|_| pass_over(d))?;
        Ok(Self { reads, files })
    }
}

fn file<'b>(d: &mut Decoder<'b>, room: &mut Room) -> Result<Sample<'b>, Malformed> {
    let mut file =
        Sample { path: "", identity: FileIdentity::default(), pages: Vec::new(), places: 0, content: &[] };
    for _ in 0..glance::fields(d)? {
        match d.i64()? {
            0 => file.path = d.str()?,
            1 => file.identity = d.decode()?,
            2 => {
                // Looked at of a file that is another one than was learned.
                file.content = d.input().get(d.position()..).unwrap_or_default();
                pass_over(d)?;
            }
            3 => file.places = d.u64()?,
            4 => extents::each(d, room, |extent| file.pages.push(extent.range.start()))?,
            _ => pass_over(d)?,
        }
    }
    // Each place has a page of its own.
    file.places = file.places.min(file.pages.len() as u64);
    Ok(file)
}

/// Puts the sample of `profile` in front of its other fields, which `payload` holds. What travels with a file gets no sample, nor does a profile
/// of which no page is likely.
pub(super) fn with_sample(profile: &Profile, payload: Vec<u8>) -> Vec<u8> {
    // One that was written again has other pages in it.
    let random = u64::from(checksum(&[&payload]));
    let fitting = KEPT.into_iter().filter_map(|(places, each)| encoded(profile, places, each, random));
    let Some(sample) = fitting.into_iter().find(|sample| sample.len() <= FIELD_BYTES_MAX) else {
        return payload;
    };
    let mut d = Decoder::new(&payload);
    let fields = glance::fields(&mut d).expect("what was just written is a map");
    let mut bytes = Vec::with_capacity(payload.len() + sample.len() + 2);
    let in_memory = "writing to memory does not fail";
    Encoder::new(&mut bytes).map(fields + 1).and_then(|e| e.i64(FIELD)).expect(in_memory);
    bytes.extend_from_slice(&sample);
    bytes.extend_from_slice(&payload[d.position()..]);
    bytes
}

/// The field of a sample of so many `places`, with `each` so many pages; `None` where there is nothing to choose from.
fn encoded(profile: &Profile, places: u64, each: u64, random: u64) -> Option<Vec<u8>> {
    let reads = profile.files.iter().map(|file| likely(file).map(reads_of).sum::<u64>());
    let all = reads.clone().fold(0, u64::saturating_add);
    if profile.program.is_empty() || all == 0 {
        return None;
    }
    let chosen = profile.files.iter().zip(chosen(reads.map(|reads| (reads, reads)), places, each, random));
    let kept: Vec<ProfiledFile> = chosen
        .filter(|(file, (_, at))| !at.is_empty() || file.path == profile.program)
        .map(|(file, (places, at))| ProfiledFile {
            path: file.path.clone(),
            identity: file.identity,
            fingerprint: file.fingerprint.clone(),
            // Here the field says how many places are the file's.
            learned_unix_s: places,
            extents: at.into_iter().map(|at| Extent::new(page(file, at).alone(), 0)).collect(),
        })
        .collect();
    let mut bytes = Vec::new();
    let mut e = Encoder::new(&mut bytes);
    let written = e.array(2).and_then(|e| e.u64(all)).map(drop);
    written
        .and_then(|()| list::encode(&kept, &mut e, &mut Room(0)))
        .expect("writing to memory does not fail");
    Some(bytes)
}

/// What most starts use of `file`: what fewer do may be missing in a warm start of the others.
fn likely(file: &ProfiledFile) -> impl Iterator<Item = &Extent> {
    file.extents.iter().filter(|extent| extent.counts.is_likely())
}

fn reads_of(extent: &Extent) -> u64 {
    extent.range.len().div_ceil(READ_PAGES)
}

/// Where read number `at` of `file` begins.
fn page(file: &ProfiledFile, mut at: u64) -> PageIndex {
    for extent in likely(file) {
        match at.checked_sub(reads_of(extent)) {
            Some(behind) => at = behind,
            None => return PageIndex(extent.range.start().0 + at * READ_PAGES),
        }
    }
    PageIndex::default()
}

/// How many of `places` fall into each file, and which numbers below `len` are chosen of it: `each` so many for a place in it, or all. Of each file `files` has its weight,
/// which is its part of the places, and `len`.
fn chosen(
    files: impl Iterator<Item = (u64, u64)> + Clone,
    places: u64,
    each: u64,
    random: u64,
) -> impl Iterator<Item = (u64, Vec<u64>)> {
    let all = files.clone().fold(0, |all: u64, (weight, _)| all.saturating_add(weight));
    let mut places = apart(all, places, random).peekable();
    let mut end = 0;
    files.map(move |(weight, len)| {
        end = u64::saturating_add(end, weight);
        let count = std::iter::from_fn(|| places.next_if(|place| *place < end)).count() as u64;
        (count, apart(len, count * each, mix(random ^ end)).collect())
    })
}

/// So many numbers below `end`, each once and as far from the one before, or all; `random` says where they begin.
fn apart(end: u64, count: u64, random: u64) -> impl Iterator<Item = u64> {
    let count = count.min(end);
    // Each of the numbers is as likely as the others.
    let (step, rest, first) = match count {
        0 => (0, 0, 0),
        _ => (end / count, end % count, SplitMix::new(random).below(end)),
    };
    (0..count).map(move |at| at * step + (at * rest + first) / count)
}
