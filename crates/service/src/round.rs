//! Rounds of idle work, and what they do not come back from: a file system that does not answer holds up the one thread that asked it, and is
//! left out afterwards.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use prepage_sys::mounts::mount_of;

use crate::askers::{Asker, Askers};

/// Opening a file, or reading a few of its pages, takes no device this long.
const HANGS_AFTER: Duration = Duration::from_secs(20);
/// A file system that did not answer is not asked again for this long, and not while somebody still waits for it.
const LEFT_OUT: Duration = Duration::from_secs(600);
/// Threads that may wait for file systems: then nothing more is begun.
pub const HANGING_MAX: usize = 8;
/// Those that may wait for what one user expects: who mounts file systems that never answer has nothing more brought in.
const OF_A_USER_MAX: usize = 2;
/// File systems that are left out at once; the oldest go first.
const HANGS_MAX: usize = 64;

/// A round: what its thread is at, for whoever looks whether it hangs.
#[derive(Debug, Default)]
pub struct Round {
    /// What lies below is not asked for.
    left_out: Vec<PathBuf>,
    /// For whom it is done.
    uid: AtomicU32,
    asker: Arc<Asker>,
}

/// Somebody looks at a file, until this is dropped.
#[derive(Debug)]
pub struct Looking<'a>(&'a Round);

impl Round {
    /// What follows is done for user `uid`.
    pub fn is_for(&self, uid: u32) {
        self.uid.store(uid, Ordering::Relaxed);
    }

    /// The file at `path` is opened or looked up now. `None` where it is to be left out: also while somebody else waits for its file system.
    pub fn look_at(&self, path: impl AsRef<Path>) -> Option<Looking<'_>> {
        let path = path.as_ref();
        if self.left_out.iter().any(|place| path.starts_with(place)) {
            return None;
        }
        Askers::of_machine().ask_as(&self.asker, path).ok()?;
        Some(Looking(self))
    }

    /// Nothing is asked of the file until [`goes_on`](Self::goes_on).
    pub fn rests(&self) {
        self.asker.has_answer();
    }

    /// The next read of the file begins now.
    pub fn goes_on(&self) {
        self.asker.asks_again();
    }
}

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        self.0.rests();
    }
}

/// The rounds: one at a time, and those that hang.
#[derive(Debug, Default)]
pub struct Rounds {
    /// The one under way.
    now: Weak<Round>,
    hangs: Vec<Hang>,
}

/// Where a round hung.
#[derive(Debug)]
struct Hang {
    below: PathBuf,
    uid: u32,
    since: Instant,
    /// Gone once its thread has come back.
    round: Weak<Round>,
}

impl Hang {
    fn is_waited_for(&self) -> bool {
        self.round.strong_count() > 0
    }
}

/// What is to be done now.
#[derive(Debug)]
pub enum Next {
    /// The round under way goes on, or too many hang.
    Wait,
    /// Another may begin. Where `hangs` says so, because that under way has been given up.
    Begin {
        /// The next one. It is under way until the last handle to it is gone.
        round: Arc<Round>,
        /// Whether one was given up.
        hangs: bool,
    },
}

impl Rounds {
    /// Whether another round is to begin at `now`.
    pub fn next(&mut self, now: Instant) -> Next {
        self.hangs
            .retain(|hang| hang.is_waited_for() || now.saturating_duration_since(hang.since) < LEFT_OUT);
        let mut hangs = false;
        if let Some(round) = self.now.upgrade() {
            let hangs_for = |since| now.saturating_duration_since(since) > HANGS_AFTER;
            let Some((path, _)) = round.asker.waits().filter(|(_, since)| hangs_for(*since)) else {
                return Next::Wait;
            };
            let uid = round.uid.load(Ordering::Relaxed);
            (hangs, self.now) = (true, Weak::new());
            if self.hangs.len() >= HANGS_MAX {
                self.hangs.remove(0);
            }
            self.hangs.push(Hang { below: place_of(&path), uid, since: now, round: Arc::downgrade(&round) });
        }
        if self.all_hanging() >= HANGING_MAX {
            return Next::Wait;
        }
        let left_out = self.hangs.iter().map(|hang| hang.below.clone()).collect();
        let round = Arc::new(Round { left_out, ..Round::default() });
        self.now = Arc::downgrade(&round);
        Next::Begin { round, hangs }
    }

    pub fn all_hanging(&self) -> usize {
        self.hanging(|_| true)
    }

    /// Whether as many rounds hang as may at what user `uid` expects.
    pub fn is_too_much_of(&self, uid: u32) -> bool {
        self.hanging(|hang| hang.uid == uid) >= OF_A_USER_MAX
    }

    fn hanging(&self, counts: impl Fn(&Hang) -> bool) -> usize {
        self.hangs.iter().filter(|hang| hang.is_waited_for() && counts(hang)).count()
    }
}

/// What is left out where the file at `path` was waited for: all of its mount; of the root's, which answers or nothing does, the directory, for a
/// link in it may lead elsewhere.
fn place_of(path: &Path) -> PathBuf {
    let mount = mount_of(path).map(|mount| mount.point).filter(|point| point != Path::new("/"));
    mount.unwrap_or_else(|| path.parent().unwrap_or(path).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A round that hangs at `path` from now on, and the time at which that is known.
    fn hang(rounds: &mut Rounds, uid: u32, path: &str) -> (Arc<Round>, Instant) {
        let Next::Begin { round, .. } = rounds.next(Instant::now()) else { panic!("none begins") };
        round.is_for(uid);
        std::mem::forget(round.look_at(path).unwrap());
        assert!(matches!(rounds.next(Instant::now()), Next::Wait), "it may still answer");
        (round, Instant::now() + 2 * HANGS_AFTER)
    }

    #[test]
    fn a_round_that_hangs_is_given_up_and_where_it_hangs_is_left_out_until_it_answers() {
        let mut rounds = Rounds::default();
        let (hung, later) = hang(&mut rounds, 7, "/proc/hung/file");
        let Next::Begin { round, hangs: true } = rounds.next(later) else { panic!("it is waited for") };
        assert!(round.look_at("/proc/other").is_none(), "all of the mount");
        assert!(round.look_at("/no/such/file").is_some());
        drop(round);
        let much_later = later + 2 * LEFT_OUT;
        let Next::Begin { round, hangs: false } = rounds.next(much_later) else { panic!("none begins") };
        assert!(round.look_at("/proc/other").is_none(), "somebody still waits");
        drop((hung, round));
        let Next::Begin { round, .. } = rounds.next(much_later) else { panic!("none begins") };
        assert!(round.look_at("/proc/other").is_some());
    }

    #[test]
    fn a_round_that_waits_for_its_turn_does_not_hang() {
        let mut rounds = Rounds::default();
        let Next::Begin { round, .. } = rounds.next(Instant::now()) else { panic!("none begins") };
        let looking = round.look_at("/no/such/file");
        let later = Instant::now() + 2 * HANGS_AFTER;
        round.rests();
        assert!(matches!(rounds.next(later), Next::Wait));
        round.goes_on();
        assert!(matches!(rounds.next(Instant::now()), Next::Wait));
        drop(looking);
        assert!(matches!(rounds.next(later), Next::Wait));
        drop(round);
        assert!(matches!(rounds.next(later), Next::Begin { hangs: false, .. }));
    }

    #[test]
    fn threads_that_hang_are_bounded_and_those_of_one_user_more_so() {
        let mut rounds = Rounds::default();
        let mut hanging = Vec::new();
        for at in 0..HANGING_MAX {
            let uid = (at / OF_A_USER_MAX) as u32;
            assert!(!rounds.is_too_much_of(uid));
            let (round, later) = hang(&mut rounds, uid, &format!("/no/such{at}/file"));
            hanging.push(round);
            let is_last = at + 1 == HANGING_MAX;
            assert_eq!(matches!(rounds.next(later), Next::Wait), is_last, "{at}");
        }
        assert!(rounds.is_too_much_of(0) && !rounds.is_too_much_of(HANGING_MAX as u32));
        hanging.pop();
        assert!(matches!(rounds.next(Instant::now()), Next::Begin { .. }));
    }
}
