//! Claimed pages get their bytes: source → buffer → frames → published.
//!
//! Bytes of local files that are not in memory skip the buffer (`view`).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use prepage_core::{PAGE_SIZE, PageIndex, PageRange};

use crate::buffers::{BUFFER_PAGES, Buffer};
use crate::object::{Bytes, Frames, ObjectCore};
use crate::pages::{Claim, Told};
use crate::reason;
use crate::source::{PAUSES, Source, SourceError};
use crate::statistics::Tally;

/// Reads of so many pages that a touch waits for go straight into frames. To map a frame takes more of the processor than
/// to copy a page: that is free only while nothing is to be done but to wait for the device.
const VIEW_PAGES: u64 = 16;

/// Why a claim is filled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// The page without which the fill has failed.
    pub(crate) needed: PageIndex,
    /// The page to mark.
    pub(crate) mark: Option<PageIndex>,
    /// Whether somebody waits for it, and this thread has nothing better to do.
    pub(crate) urgent: bool,
}

/// What became of a claim.
#[derive(Debug)]
pub(crate) struct Filled {
    /// The pages that are resident now; or why `needed` is not.
    pub(crate) outcome: Result<PageRange, u16>,
    pub(crate) told: Told,
}

/// Brings in the pages of `claim`, at most [`BUFFER_PAGES`], or where that fails the needed page alone: a bad neighbour
/// does no harm. With a [`Bytes::Local`] source nothing here allocates or locks.
pub(crate) fn fill(
    object: &ObjectCore,
    frames: &Frames,
    mut claim: Claim<'_>,
    wanted: Wanted,
    cpu: usize,
    tally: &mut Tally,
) -> Filled {
    let Wanted { needed, mark, .. } = wanted;
    debug_assert!(claim.range().len() <= BUFFER_PAGES && claim.range().contains(needed));
    let alone = PageRange::new(needed, PageIndex(needed.0 + 1));
    let mut told = Told::default();
    if !object.vm.reserve_frames(claim.range().len()) {
        told.listed |= claim.narrow(alone).listed;
        if !object.vm.reserve_frames(1) {
            told.listed |= claim.fail(reason::NO_FRAMES).listed;
            return Filled { outcome: Err(reason::NO_FRAMES), told };
        }
    }
    // A panic on the way leaves the claim failed for this reason.
    claim.will_fail(reason::PANICKED);
    let mut buffer = object.vm.buffers.take();
    loop {
        let range = claim.range();
        match read(object, frames, range, wanted, &mut buffer, tally) {
            Ok(()) => {
                tally.pages_read += range.len();
                // The words of the pages, the limit of frames, their count, and the buffer taken and given back.
                tally.shared_atomics += range.len() + 4;
                // Before others can see the pages: figures are never behind what a thread knows.
                object.vm.figures.add(cpu, &std::mem::take(tally));
                told.listed |= claim.publish(range.len(), mark).listed;
                return Filled { outcome: Ok(range), told };
            }
            Err(code) => {
                object.vm.release_frames(range.len() - 1);
                if range == alone {
                    object.vm.release_frames(1);
                    tally.pages_failed += 1;
                    object.vm.figures.add(cpu, &std::mem::take(tally));
                    told.listed |= claim.fail(code).listed;
                    return Filled { outcome: Err(code), told };
                }
                told.listed |= claim.narrow(alone).listed;
            }
        }
    }
}

/// Reads `range` into frames.
fn read(
    object: &ObjectCore,
    frames: &Frames,
    range: PageRange,
    wanted: Wanted,
    buffer: &mut Buffer<'_>,
    tally: &mut Tally,
) -> Result<(), u16> {
    let bytes = buffer.pages(range.len());
    let offset = range.start().offset_bytes();
    let valid = (object.len_bytes - offset).min(range.bytes()) as usize;
    // The last page may end beyond the file, and goes by the buffer.
    let by_view = wanted.urgent && range.len() <= VIEW_PAGES && valid == bytes.len();
    match &frames.bytes {
        Bytes::Local(file) => match frames.view.as_ref().filter(|_| by_view && !file.direct) {
            Some(view) if !file.read_cached(offset, bytes) => {
                view.fill(file.file(), range, object.vm.options.read_spin)
                    .inspect_err(|_| abandon(frames, range))?;
                frames.count(range.len());
                return Ok(());
            }
            Some(_) => {}
            None => file.read(offset, bytes)?,
        },
        Bytes::Custom(source) => {
            let outcome = read_custom(&**source, offset, &mut bytes[..valid], tally);
            if let Err((code, words)) = outcome {
                if let Some(words) = words {
                    object.remember(wanted.needed, words);
                }
                return Err(code);
            }
        }
    }
    // The rest of the last page, in which an earlier fill may have left its bytes.
    bytes[valid..].fill(0);
    debug_assert!((bytes.len() as u64).is_multiple_of(PAGE_SIZE));
    frames.write(range.start(), bytes).inspect_err(|_| abandon(frames, range))
}

/// What was written of `range` goes; failing leaves frames that the next fill overwrites.
fn abandon(frames: &Frames, range: PageRange) {
    let _ = frames.punch(range);
}

/// Reads from code of others, which may ask for patience, fail and panic.
fn read_custom(
    source: &dyn Source,
    offset_bytes: u64,
    into: &mut [u8],
    tally: &mut Tally,
) -> Result<(), (u16, Option<String>)> {
    for pause in PAUSES.into_iter().map(Some).chain([None]) {
        let outcome = catch_unwind(AssertUnwindSafe(|| source.read(offset_bytes, into)));
        return match outcome {
            Err(_) => Err((reason::PANICKED, None)),
            Ok(Ok(())) => Ok(()),
            Ok(Err(SourceError::Again)) => match pause {
                Some(pause) => {
                    tally.retries += 1;
                    thread::sleep(pause);
                    continue;
                }
                None => Err((reason::AGAIN, None)),
            },
            Ok(Err(SourceError::Short { .. })) => Err((reason::SHORT, None)),
            Ok(Err(SourceError::Io(error))) if error.raw_os_error().is_some() => {
                Err((reason::of_errno(error.raw_os_error()), None))
            }
            Ok(Err(other)) => Err((reason::REFUSED, Some(other.to_string()))),
        };
    }
    unreachable!("the last try has no pause")
}
