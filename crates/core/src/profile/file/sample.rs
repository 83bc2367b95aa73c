//! Some pages of a profile, which stand in front of all else in its bytes: whoever wants to know whether a start is warm reads the beginning, and asks after a
//! few of them.
//!
//! They are chosen in two steps, here when the profile is written and in [`Kept::drawn`] for each start: places among the reads of a cold start, each as far behind the
//! one before, and of each file that has such places, reads that lie as far apart. So a file has as many of the pages as of the reads.

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

/// So many places are kept, or as few as their paths leave room for.
const PLACES_KEPT: [u64; 3] = [12, 6, 3];

/// Pages that are kept of a place.
const KEPT_A_PLACE: u64 = 8;

/// A read of a cold start brings in as many pages at most (128 KiB).
const READ_PAGES: u64 = 32;

/// One page is taken for so many reads: where what a page stands for is missing unseen, a local disk has it back in two milliseconds.
const READS_A_PAGE: u64 = 32;

/// So many pages are taken at least, and at most.
const PAGES: std::ops::RangeInclusive<u64> = 6..=24;

/// Pages of a place, and so of most files: to look for a page takes a microsecond, and to open a file five times as long.
const PAGES_A_PLACE: u64 = 4;

/// So many places are looked at, however few pages that takes.
const PLACES_MIN: u64 = 4;

/// Pages of a file, to be asked after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample<'b> {
    /// [`ProfiledFile::path`].
    pub path: &'b str,
    /// [`ProfiledFile::identity`].
    pub identity: FileIdentity,
    /// The pages.
    pub pages: Vec<PageIndex>,
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
        let pages = (self.reads / READS_A_PAGE).clamp(*PAGES.start(), *PAGES.end());
        let places = pages.div_ceil(PAGES_A_PLACE).max(PLACES_MIN);
        let kept = self.files.iter().map(|file| file.pages.len() as u64);
        let chosen = self.files.iter().zip(chosen(kept, places, pages.div_ceil(places), random));
        let drawn = chosen.filter(|(file, at)| !at.is_empty() || file.path == program);
        drawn
            .map(|(file, at)| {
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
    let mut file = Sample { path: "", identity: FileIdentity::default(), pages: Vec::new(), content: &[] };
    for _ in 0..glance::fields(d)? {
        match d.i64()? {
            0 => file.path = d.str()?,
            1 => file.identity = d.decode()?,
            2 => {
                // Looked at of a file that is another one than was learned.
                file.content = d.input().get(d.position()..).unwrap_or_default();
                pass_over(d)?;
            }
            4 => extents::each(d, room, |extent| file.pages.push(extent.range.start()))?,
            _ => pass_over(d)?,
        }
    }
    Ok(file)
}

/// Puts the sample of `profile` in front of its other fields, which `payload` holds. There is none of what travels with a file, nor of a profile without pages.
pub(super) fn with_sample(profile: &Profile, payload: Vec<u8>) -> Vec<u8> {
    // One that was written again has other pages in it.
    let random = u64::from(checksum(&[&payload]));
    let fitting = PLACES_KEPT.into_iter().filter_map(|places| encoded(profile, places, random));
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

/// The field of a sample of so many `places`; `None` where there is nothing to choose from.
fn encoded(profile: &Profile, places: u64, random: u64) -> Option<Vec<u8>> {
    let reads = profile.files.iter().map(|file| likely(file).map(reads_of).sum());
    let all = reads.clone().fold(0, u64::saturating_add);
    if profile.program.is_empty() || all == 0 {
        return None;
    }
    let with_pages = profile.files.iter().zip(chosen(reads, places, KEPT_A_PLACE, random));
    let kept = with_pages.filter(|(file, at)| !at.is_empty() || file.path == profile.program);
    let kept: Vec<ProfiledFile> = kept
        .map(|(file, at)| ProfiledFile {
            path: file.path.clone(),
            identity: file.identity,
            fingerprint: file.fingerprint.clone(),
            learned_unix_s: 0,
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

/// Which of its reads are chosen of each file, of which these are the numbers: so many `places` among all, and of each file `each` for a place in it, or all that
/// it has.
fn chosen(
    reads: impl Iterator<Item = u64> + Clone,
    places: u64,
    each: u64,
    random: u64,
) -> impl Iterator<Item = Vec<u64>> {
    let all = reads.clone().fold(0, u64::saturating_add);
    let mut places = apart(all, places, random).peekable();
    let mut end = 0;
    reads.map(move |reads| {
        end = u64::saturating_add(end, reads);
        let count = std::iter::from_fn(|| places.next_if(|place| *place < end)).count() as u64;
        apart(reads, count * each, mix(random ^ end)).collect()
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
