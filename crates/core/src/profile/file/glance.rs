//! What a start asks of a profile before anything else, in one pass over its bytes: whose it is, its past, and a sample of its pages. Where these are in
//! memory, the others are too, most likely.

use minicbor::Decoder;
use minicbor::decode::Error as Malformed;

use super::{
    DECODED_BYTES_MAX, HEADER_BYTES, ProfileFileError, Room, count, encoded_bytes, extents, list, pass_over,
};
use crate::page::PageIndex;
use crate::profile::{ColdStart, FileIdentity, Fingerprint, History, Profile};
use crate::random::SplitMix;

/// A read of a cold start brings in as many pages at most (128 KiB).
const READ_PAGES: u64 = 32;

/// One page is taken for so many reads: where what a page stands for is missing unseen, a local disk has it back in two milliseconds.
const READS_A_PAGE: u64 = 32;

/// So many pages are taken at least, and at most: each takes some five microseconds to look for.
const PAGES: std::ops::RangeInclusive<u64> = 6..=24;

/// A profile, without most of what it holds.
#[derive(Debug, Default)]
pub struct Glance<'b> {
    /// [`Profile::program`].
    pub program: &'b str,
    /// [`Profile::role`].
    pub role: &'b str,
    /// The history and the starts. All else is empty.
    pub past: Profile,
    files: Vec<FileGlance<'b>>,
}

/// A file of the profile.
#[derive(Debug)]
struct FileGlance<'b> {
    path: &'b str,
    identity: FileIdentity,
    content: &'b [u8],
    /// The first page of each extent that most starts use, and how many reads these and those before take.
    extents: Vec<(PageIndex, u64)>,
}

/// As much of a profile as is sure to hold what [`whose`] asks for: a path has 4096 bytes at most, and a role some hundred.
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

/// Pages of a file, to be asked after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample<'b> {
    /// [`crate::profile::ProfiledFile::path`].
    pub path: &'b str,
    /// [`crate::profile::ProfiledFile::identity`].
    pub identity: FileIdentity,
    /// The pages.
    pub pages: Vec<PageIndex>,
    content: &'b [u8],
}

impl Sample<'_> {
    /// [`crate::profile::ProfiledFile::fingerprint`], where it makes sense.
    pub fn fingerprint(&self) -> Option<Fingerprint> {
        minicbor::decode(self.content).ok()
    }
}

impl FileGlance<'_> {
    fn reads(&self) -> u64 {
        self.extents.last().map_or(0, |last| last.1)
    }

    /// Where read number `at` begins.
    fn page(&self, at: u64) -> PageIndex {
        let (before, after) = self.extents.split_at(self.extents.partition_point(|extent| extent.1 <= at));
        let first = before.last().map_or(0, |last| last.1);
        PageIndex(after[0].0.0 + (at - first) * READ_PAGES)
    }
}

impl<'b> Glance<'b> {
    /// Of the profile in `bytes`. Whether they are as they were written ([`super::check`]) takes longer to find out, and a program waits: of a damaged profile,
    /// what is seen may be wrong.
    ///
    /// # Errors
    /// [`ProfileFileError::Malformed`].
    pub fn of(bytes: &'b [u8]) -> Result<Self, ProfileFileError> {
        let payload = bytes.get(HEADER_BYTES..).unwrap_or_default();
        decoded(payload).map_err(|error| ProfileFileError::Malformed(error.to_string()))
    }

    /// Which file the program was when it was learned; `None` where the profile has no pages of it.
    pub fn program_identity(&self) -> Option<FileIdentity> {
        self.files.iter().find(|file| file.path == self.program).map(|file| file.identity)
    }

    /// Pages to be asked after, in the order of files: one for so many reads, the first of them by chance. So what takes a larger part of
    /// the reads is never left out. The program's own file is among them even without pages: another one may have taken its place.
    pub fn sample(&self, random: u64) -> Vec<Sample<'b>> {
        let reads: u64 = self.files.iter().map(FileGlance::reads).sum();
        let pages = (reads / READS_A_PAGE).clamp(*PAGES.start(), *PAGES.end()).min(reads);
        let mut chosen = (0..pages).map(|at| {
            // Somewhere in the part of the reads that it stands for.
            let part = at * reads / pages..(at + 1) * reads / pages;
            part.start + SplitMix::new(random ^ at).below(part.end - part.start)
        });
        let mut next = chosen.next();
        let mut end = 0;
        let mut sampled = Vec::new();
        for file in &self.files {
            let begin = end;
            end += file.reads();
            let mut pages = Vec::new();
            while let Some(at) = next.filter(|at| *at < end) {
                pages.push(file.page(at - begin));
                next = chosen.next();
            }
            if !pages.is_empty() || (reads > 0 && file.path == self.program) {
                let FileGlance { path, identity, content, .. } = *file;
                sampled.push(Sample { path, identity, pages, content });
            }
        }
        sampled
    }
}

fn decoded(payload: &[u8]) -> Result<Glance<'_>, Malformed> {
    let (mut d, mut room) = (Decoder::new(payload), Room(DECODED_BYTES_MAX));
    let mut glance = Glance::default();
    for _ in 0..fields(&mut d)? {
        match d.i64()? {
            0 => glance.program = d.str()?,
            1 => glance.role = d.str()?,
            2 => glance.past.history = d.decode::<History>()?,
            3 => glance.files = files(&mut d, &mut room)?,
            5 => glance.past.starts = list::decode::<_, ColdStart>(&mut d, &mut room)?,
            _ => pass_over(&mut d)?,
        }
    }
    Ok(glance)
}

fn fields(d: &mut Decoder<'_>) -> Result<u64, Malformed> {
    d.map()?.ok_or_else(|| Malformed::message("a map without length"))
}

fn files<'b>(d: &mut Decoder<'b>, room: &mut Room) -> Result<Vec<FileGlance<'b>>, Malformed> {
    let mut files = Vec::new();
    for _ in 0..count(d)? {
        room.take::<FileGlance<'_>>(1)?;
        let mut file =
            FileGlance { path: "", identity: FileIdentity::default(), content: &[], extents: Vec::new() };
        for _ in 0..fields(d)? {
            match d.i64()? {
                0 => file.path = d.str()?,
                1 => file.identity = d.decode()?,
                2 => {
                    // Looked at of a file that is another one than was learned.
                    file.content = d.input().get(d.position()..).unwrap_or_default();
                    pass_over(d)?;
                }
                4 => file.extents = used_extents(d, room)?,
                _ => pass_over(d)?,
            }
        }
        files.push(file);
    }
    Ok(files)
}

fn used_extents(d: &mut Decoder<'_>, room: &mut Room) -> Result<Vec<(PageIndex, u64)>, Malformed> {
    let (mut used, mut reads) = (Vec::new(), 0u64);
    extents::each(d, room, |extent| {
        // What fewer starts use may be missing in a warm start of the others.
        if !extent.range.is_empty() && extent.counts.is_likely() {
            reads += extent.range.len().div_ceil(READ_PAGES);
            used.push((extent.range.start(), reads));
        }
    })?;
    Ok(used)
}
