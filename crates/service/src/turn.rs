//! Who follows a boot: one process does, from the initramfs or from the unit, whichever comes first.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The turn to follow a boot, for as long as it is held.
#[derive(Debug)]
pub struct Turn(#[expect(dead_code, reason = "the lock goes with it")] Option<File>);

impl Turn {
    /// Of what has no other that could do the same.
    pub fn alone() -> Self {
        Self(None)
    }

    /// Of a boot whose profile lies in `directory`. A boot that another process follows is waited for, `at_most` so long, and
    /// there is nothing left to do after it: `None`; `say_so` is called before. In an initramfs (`is_early`) nobody else is waited for, and where the directory
    /// is not there yet, neither is the file system that it lies on: the unit has its turn.
    pub fn at_boot(
        directory: Option<&Path>,
        is_early: bool,
        at_most: Duration,
        say_so: impl FnOnce(),
    ) -> Option<Self> {
        let Some(directory) = directory.and_then(|directory| File::open(directory).ok()) else {
            return (!is_early).then_some(Self::alone());
        };
        let lock = || rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive);
        match lock() {
            Ok(()) => return Some(Self(Some(directory))),
            Err(Errno::WOULDBLOCK) => {}
            // A file system without locks.
            Err(_) => return Some(Self::alone()),
        }
        say_so();
        let until = Instant::now() + at_most;
        while !is_early && Instant::now() < until && lock().is_err() {
            std::thread::sleep(LOOK_EVERY);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn the_unit_waits_for_the_end_of_a_boot_that_began_in_the_initramfs_and_does_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let early = Turn::at_boot(Some(directory.path()), true, HOUR, || ()).unwrap();
        let path = directory.path().to_owned();
        let (say_so, waits) = std::sync::mpsc::channel();
        let unit = std::thread::spawn(move || {
            Turn::at_boot(Some(&path), false, HOUR, || say_so.send(()).unwrap()).is_none()
        });
        waits.recv().unwrap();
        // Another in the initramfs waits for nobody, and neither does a unit whose time is up.
        assert!(Turn::at_boot(Some(directory.path()), true, HOUR, || ()).is_none());
        assert!(Turn::at_boot(Some(directory.path()), false, Duration::ZERO, || ()).is_none());
        assert!(!unit.is_finished());
        drop(early);
        assert!(unit.join().unwrap());
        // A process that another test is just starting still has the lock open.
        let until = Instant::now() + Duration::from_secs(60);
        while Turn::at_boot(Some(directory.path()), true, HOUR, || ()).is_none() {
            assert!(Instant::now() < until, "the next boot has no turn");
        }
    }

    #[test]
    fn without_a_place_for_profiles_the_turn_is_the_units() {
        let directory = tempfile::tempdir().unwrap();
        for none in [None, Some(directory.path().join("none"))] {
            assert!(Turn::at_boot(none.as_deref(), true, HOUR, || ()).is_none());
            assert!(Turn::at_boot(none.as_deref(), false, HOUR, || ()).is_some());
        }
    }
}
