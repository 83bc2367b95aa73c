//! What an observation asks the service for while it goes on, and what it tells at its end.
//!
//! The observation is a copy of the service ([`prepage_sys::copied`]) with memory of its own. What all observations and starts share is the service's alone: who
//! waits for which file system ([`crate::askers`]), and the names that the kernel tells of ([`crate::start_names`]). Whoever stops or kills the service has the
//! observation do without: no question is waited for longer than [`PATIENCE`].
//!
//! ```text
//!  observation  NEWS, LAST_NEWS ─►         service   points of mounts and names
//!               MAY_ASK path    ─►                   whether it may
//!               HAS_ANSWER      ─►
//!               GIVEN_UP        ─►                   an answer came too late: it asks no more
//!               ENDED           ─►
//! ```
//! Each message is a byte that says which it is, the length of what follows, and that.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use prepage_profiles::Layer;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::askers::{Askers, Asking};
use crate::start_names::StartNames;

/// The service answers within microseconds, and within a tenth of a second where it waits for a file system itself.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often the kernel's names are taken while nothing is asked: it keeps some 5,000.
const ROUND: Duration = Duration::from_millis(50);

const NEWS: u8 = 1;
const LAST_NEWS: u8 = 2;
const MAY_ASK: u8 = 3;
const HAS_ANSWER: u8 = 4;
const ENDED: u8 = 5;
const POINTS: u8 = 6;
const NAMES: u8 = 7;
const YES: u8 = 8;
const NO: u8 = 9;
const GIVEN_UP: u8 = 10;

/// What became of an observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// There was nobody to observe any more.
    NotBegun,
    /// Nothing was seen.
    Nothing,
    /// Nothing of what was seen may be kept.
    Refused,
    /// It was to be written.
    Written {
        layer: Layer,
        is_kept: bool,
        /// Whether nothing was missed that another observation may see.
        is_whole: bool,
        /// Checksums of the versions that a user's store had before and afterwards.
        versions: [u64; 2],
    },
}

impl Ended {
    fn to_bytes(self) -> Vec<u8> {
        let (what, layer, is_whole, versions) = match self {
            Self::NotBegun => (0, Layer::User, false, [0; 2]),
            Self::Nothing => (1, Layer::User, false, [0; 2]),
            Self::Refused => (2, Layer::User, false, [0; 2]),
            Self::Written { layer, is_kept, is_whole, versions } => {
                (3 + u8::from(is_kept), layer, is_whole, versions)
            }
        };
        let mut bytes = vec![what, u8::from(layer == Layer::Machine), u8::from(is_whole)];
        versions.iter().for_each(|version| bytes.extend(version.to_ne_bytes()));
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (&[what, is_machines, is_whole], versions) = bytes.split_first_chunk()?;
        let (before, after) = versions.split_first_chunk()?;
        let versions = [*before, after.try_into().ok()?].map(u64::from_ne_bytes);
        Some(match what {
            0 => Self::NotBegun,
            1 => Self::Nothing,
            2 => Self::Refused,
            3 | 4 => {
                let layer = if is_machines == 1 { Layer::Machine } else { Layer::User };
                Self::Written { layer, is_kept: what == 4, is_whole: is_whole == 1, versions }
            }
            _ => return None,
        })
    }
}

/// What the service knows, and an observation asks for.
#[derive(Debug)]
pub(crate) struct News {
    /// The mounts that may not answer.
    pub points: Arc<[PathBuf]>,
    /// What the start has looked up, where the kernel tells.
    pub names: Option<StartNames>,
}

/// The observation's end of the line. Used by one thread at a time.
#[derive(Debug)]
pub(crate) struct Line {
    stream: UnixStream,
    /// Atomic: an answer did not come in time. If it comes later it would be taken for another's.
    is_given_up: AtomicBool,
}

impl Line {
    pub fn new(stream: UnixStream) -> Self {
        Self { stream, is_given_up: AtomicBool::new(false) }
    }

    /// What the service knows now, for the `last` time; `None` where it does not answer.
    pub fn news(&self, last: bool) -> Option<News> {
        let kind = if last { LAST_NEWS } else { NEWS };
        self.ask(|stream| {
            send(stream, kind, &[])?;
            let (_, points) = receive(stream)?;
            let (kind, names) = receive(stream)?;
            let points = points.split(|byte| *byte == 0).filter(|point| !point.is_empty());
            let points = points.map(|point| PathBuf::from(OsString::from_vec(point.to_vec()))).collect();
            let names = if kind == NAMES { StartNames::from_bytes(&names) } else { None };
            Ok(News { points, names })
        })
    }

    /// Whether nobody else waits for a file system on the way to `path`. From now on this process does, until it [has its answer](Self::has_answer).
    pub fn may_ask(&self, path: &Path) -> bool {
        self.ask(|stream| {
            send(stream, MAY_ASK, path.as_os_str().as_bytes())?;
            Ok(receive(stream)?.0 == YES)
        })
        .unwrap_or(false)
    }

    /// The file system that was asked last of those that have not answered has done so.
    pub fn has_answer(&self) {
        let _ = self.ask(|stream| send(stream, HAS_ANSWER, &[]));
    }

    /// What became of it.
    pub fn tell(&self, ended: Ended) {
        // Where nobody is there, nobody wants to know.
        let _ = send(&self.stream, ENDED, &ended.to_bytes());
    }

    fn ask<T>(&self, question: impl FnOnce(&UnixStream) -> io::Result<T>) -> Option<T> {
        if self.is_given_up.load(Ordering::Relaxed) {
            return None;
        }
        let answer = question(&self.stream).ok();
        self.is_given_up.store(answer.is_none(), Ordering::Relaxed);
        if answer.is_none() {
            // Nobody says of what was asked in vain that it has its answer.
            let _ = send(&self.stream, GIVEN_UP, &[]);
        }
        answer
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// The service's end of the line.
#[derive(Debug)]
pub(crate) struct Answers(UnixStream);

/// Both ends of a line.
///
/// # Errors
/// As socketpair(2).
pub(crate) fn line() -> io::Result<(Answers, Line)> {
    let (own, other) = UnixStream::pair()?;
    for stream in [&own, &other] {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
    }
    Ok((Answers(own), Line::new(other)))
}

impl Answers {
    /// Answers until the observation has ended, and takes the kernel's `names` meanwhile, as long as they are asked for. Returns what became of it; `None` where it was
    /// killed.
    pub fn give(self, mut names: Option<StartNames>, askers: &Askers) -> Option<Ended> {
        let mut asking: Vec<Asking> = Vec::new();
        let mut ended = None;
        loop {
            names.iter_mut().for_each(StartNames::look);
            if !self.is_asked(names.is_some().then_some(ROUND)) {
                continue;
            }
            // It has ended, unless it was stopped in the middle of a message, and then it is not listened to any more.
            let Ok((kind, said)) = receive(&self.0) else { return ended };
            match kind {
                NEWS | LAST_NEWS => {
                    names.iter_mut().for_each(StartNames::look);
                    self.tell_news(names.as_ref(), askers);
                    names = names.filter(|_| kind == NEWS);
                }
                MAY_ASK => {
                    let asked = askers.ask(Path::new(&OsString::from_vec(said)));
                    let _ = send(&self.0, if asked.is_ok() { YES } else { NO }, &[]);
                    asking.extend(asked);
                }
                HAS_ANSWER => drop(asking.pop()),
                GIVEN_UP => asking.clear(),
                ENDED => ended = Ended::from_bytes(&said),
                _ => {}
            }
        }
    }

    /// Waits for a message or the end, `most` at most. Returns whether there is one.
    fn is_asked(&self, most: Option<Duration>) -> bool {
        let most = most.and_then(|most| Timespec::try_from(most).ok());
        let mut ready = [PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::IN)];
        poll(&mut ready, most.as_ref()).is_ok_and(|ready| ready > 0)
    }

    /// Where it cannot be told in time, the observation does not wait for it any more.
    fn tell_news(&self, names: Option<&StartNames>, askers: &Askers) {
        let points = askers.points();
        let points: Vec<&[u8]> = points.iter().map(|point| point.as_os_str().as_bytes()).collect();
        let told = send(&self.0, POINTS, &points.join(&0));
        let _ = told.and_then(|()| match names {
            Some(names) => send(&self.0, NAMES, &names.to_bytes()),
            None => send(&self.0, NO, &[]),
        });
    }
}

fn send(mut stream: &UnixStream, kind: u8, what: &[u8]) -> io::Result<()> {
    let mut message = Vec::with_capacity(what.len() + 5);
    message.push(kind);
    message.extend((what.len() as u32).to_ne_bytes());
    message.extend(what);
    stream.write_all(&message)
}

fn receive(mut stream: &UnixStream) -> io::Result<(u8, Vec<u8>)> {
    let mut head = [0; 5];
    stream.read_exact(&mut head)?;
    let [kind, bytes @ ..] = head;
    let mut what = vec![0; u32::from_ne_bytes(bytes) as usize];
    stream.read_exact(&mut what)?;
    Ok((kind, what))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use prepage_testing::unless_late;

    use super::*;
    use crate::askers::tests::of;

    #[test]
    fn what_became_of_an_observation_is_told_as_it_is() {
        let versions = [1, u64::MAX];
        let written = |layer, is_kept, is_whole| Ended::Written { layer, is_kept, is_whole, versions };
        for ended in [
            Ended::NotBegun,
            Ended::Nothing,
            Ended::Refused,
            written(Layer::User, true, false),
            written(Layer::Machine, false, true),
        ] {
            assert_eq!(Ended::from_bytes(&ended.to_bytes()), Some(ended));
        }
        assert_eq!(Ended::from_bytes(&[]), None);
        assert_eq!(Ended::from_bytes(&[9; 19]), None);
    }

    #[test]
    fn an_observation_asks_no_file_system_that_somebody_else_waits_for_and_others_none_that_it_waits_for() {
        unless_late(PATIENCE / 2, || {
            let askers = of(&[("nfs", "/net"), ("nfs", "/home")]);
            let (answers, line) = line().unwrap();
            std::thread::scope(|scope| {
                let served = scope.spawn(|| answers.give(None, &askers));
                let waits = askers.ask(Path::new("/home/x"));
                assert!(line.may_ask(Path::new("/net/x")) && !line.may_ask(Path::new("/home/y")));
                assert!(askers.ask(Path::new("/net/y")).is_err());
                line.has_answer();
                drop(waits);
                let news = line.news(false).unwrap();
                assert_eq!(&news.points[..], ["/net", "/home"].map(PathBuf::from));
                assert!(news.names.is_none() && line.may_ask(Path::new("/home/y")));
                line.tell(Ended::Nothing);
                drop(line);
                assert_eq!(served.join().unwrap(), Some(Ended::Nothing));
            });
            assert!(askers.ask(Path::new("/home/z")).is_ok(), "who has ended asks nothing");
        });
    }

    #[test]
    fn who_got_its_answer_too_late_holds_up_nobody_who_asks() {
        unless_late(PATIENCE * 3 / 2, || {
            let askers = of(&[("nfs", "/net")]);
            let (answers, line) = line().unwrap();
            assert!(!line.may_ask(Path::new("/net/x")));
            std::thread::scope(|scope| {
                let served = scope.spawn(|| answers.give(None, &askers));
                assert_eq!(receive(&line.stream).unwrap().0, YES);
                // Then all is heard that was said before.
                send(&line.stream, NEWS, &[]).unwrap();
                let news = [(); 2].map(|()| receive(&line.stream).unwrap().0);
                assert_eq!(news, [POINTS, NO]);
                assert!(askers.ask(Path::new("/net/y")).is_ok());
                drop(line);
                assert_eq!(served.join().unwrap(), None, "killed");
            });
        });
    }

    #[test]
    fn a_service_that_does_not_answer_is_asked_once() {
        unless_late(2 * PATIENCE, || {
            let (answers, line) = line().unwrap();
            let began = Instant::now();
            assert!(line.news(true).is_none() && !line.may_ask(Path::new("/net/x")));
            assert!(began.elapsed() < 2 * PATIENCE);
            line.tell(Ended::Refused);
            drop(line);
            // It goes on after all.
            assert_eq!(answers.give(None, &of(&[])), Some(Ended::Refused));
        });
    }
}
