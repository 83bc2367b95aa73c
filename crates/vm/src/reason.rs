//! Why a page could not be brought in, as it fits into the page's word.

use std::fmt;
use std::io;

/// Codes below are errnos of the system.
const OWN: u16 = 4096;
pub(crate) const SHORT: u16 = OWN;
pub(crate) const AGAIN: u16 = OWN + 1;
pub(crate) const PANICKED: u16 = OWN + 2;
pub(crate) const REFUSED: u16 = OWN + 3;
pub(crate) const NO_FRAMES: u16 = OWN + 4;
pub(crate) const CHANGED: u16 = OWN + 5;
pub(crate) const TIMED_OUT: u16 = OWN + 6;
pub(crate) const DROPPED: u16 = OWN + 7;
/// ENOMEM: no memory for a page table.
pub(crate) const NO_MEMORY: u16 = 12;
/// What a claim is dropped with when nobody says more: its owner panicked.
pub(crate) const ABANDONED: u16 = 0;

/// Why a page could not be brought in.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The system's error: of the file, or ENOMEM where there was no memory for a frame.
    System(i32),
    /// The source holds fewer bytes than it said; a file was truncated.
    Short,
    /// The source asked to try again until the tries ran out.
    Again,
    /// The source panicked.
    Panicked,
    /// The source's own words, where they are still known.
    Refused(Option<String>),
    /// The limit of frames is reached, and none can be taken back: all are pinned, or held by reads that do not end.
    NoFrames,
    /// The page was evicted, and its bytes are no longer what they were: a map that showed them may not show others.
    Changed,
    /// The source took longer than [`VmOptions::read_deadline`](crate::VmOptions::read_deadline).
    TimedOut,
    /// The source dropped the request without an answer.
    Dropped,
}

impl Reason {
    pub(crate) fn of(code: u16, message: Option<String>) -> Self {
        match code {
            SHORT => Self::Short,
            AGAIN => Self::Again,
            PANICKED | ABANDONED => Self::Panicked,
            REFUSED => Self::Refused(message),
            NO_FRAMES => Self::NoFrames,
            CHANGED => Self::Changed,
            TIMED_OUT => Self::TimedOut,
            DROPPED => Self::Dropped,
            errno => Self::System(errno.into()),
        }
    }
}

pub(crate) fn of_errno(errno: Option<i32>) -> u16 {
    errno
        .and_then(|errno| u16::try_from(errno).ok())
        .filter(|errno| (1..OWN).contains(errno))
        .unwrap_or(REFUSED)
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System(errno) => io::Error::from_raw_os_error(*errno).fmt(f),
            Self::Short => f.write_str("the source ended early; was its file truncated?"),
            Self::Again => f.write_str("the source asked to try again too often"),
            Self::Panicked => f.write_str("the source panicked"),
            Self::Refused(Some(message)) => f.write_str(message),
            Self::Refused(None) => f.write_str("the source failed"),
            Self::NoFrames => f.write_str(
                "the limit of frames is reached, and all are pinned or being read; raise it, or pin less",
            ),
            Self::Changed => {
                f.write_str("its bytes changed since they were first shown; was its file written to?")
            }
            Self::TimedOut => f.write_str("the source took longer than VmOptions::read_deadline"),
            Self::Dropped => f.write_str("the source dropped the request without an answer"),
        }
    }
}
