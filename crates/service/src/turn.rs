//! Who follows a boot: one process does, from the initramfs or from the unit, whichever comes first.

use std::fs::File;
use std::path::Path;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

/// The turn to follow a boot, for as long as it is held.
#[derive(Debug)]
pub struct Turn(#[expect(dead_code, reason = "the lock goes with it")] Option<File>);

impl Turn {
    /// Of what has no other that could do the same.
    pub fn alone() -> Self {
        Self(None)
    }

    /// Of a boot whose profile lies in `directory`; `None` where another process follows it. In an initramfs (`is_early`) it is the unit's turn
    /// where the directory is not there yet: neither is the file system that it lies on.
    pub fn at_boot(directory: Option<&Path>, is_early: bool) -> Option<Self> {
        let Some(directory) = directory.and_then(|directory| File::open(directory).ok()) else {
            return (!is_early).then_some(Self::alone());
        };
        match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Some(Self(Some(directory))),
            Err(Errno::WOULDBLOCK) => None,
            // A file system without locks.
            Err(_) => Some(Self::alone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use prepage_testing::wait_until;

    use super::*;

    #[test]
    fn a_boot_that_is_followed_has_no_turn_left() {
        let directory = tempfile::tempdir().unwrap();
        let directory = Some(directory.path());
        let early = Turn::at_boot(directory, true).unwrap();
        assert!(Turn::at_boot(directory, true).is_none() && Turn::at_boot(directory, false).is_none());
        drop(early);
        // A process that another test is just starting still has the lock open.
        wait_until(|| Turn::at_boot(directory, true).is_some(), "the next boot has no turn");
    }

    #[test]
    fn without_a_place_for_profiles_the_turn_is_the_units() {
        let directory = tempfile::tempdir().unwrap();
        for none in [None, Some(directory.path().join("none"))] {
            assert!(Turn::at_boot(none.as_deref(), true).is_none());
            assert!(Turn::at_boot(none.as_deref(), false).is_some());
        }
    }
}
