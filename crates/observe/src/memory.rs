//! How much memory observing may take where the program has little.
//!
//! What agents tell and what is noted of a start counts against the control groups that the program is in, too, and a program that meets their
//! limit is killed. A start of which less can be noted is one that less is learned of.

use prepage_sys::clock::now_ns;
use prepage_sys::memory_left::{Cgroups, available_kib};

/// The share of the available memory that the log may take, that pages may and that names may: 1 in this for each.
const SHARE: u64 = 16;
/// Available memory below which nothing is observed: what observes a small program takes some megabytes itself.
const LEAST_BYTES: u64 = 64 << 20;
/// The same later on, when what observes is there already and the program has taken what it needs: below it, observing ends.
const SHORT_BYTES: u64 = 16 << 20;
/// So much free memory of the machine is enough for all that is ever noted.
const PLENTY_BYTES: u64 = 1 << 30;
/// How often it is looked again.
const PERIOD_NS: u64 = 50_000_000;

/// The memory that the program may use.
#[derive(Debug)]
pub(crate) struct Memory {
    groups: Cgroups,
    looked_ns: u64,
}

impl Memory {
    /// That of these control groups, which the program is in.
    pub(crate) fn of(groups: Cgroups) -> Self {
        Self { groups, looked_ns: now_ns() }
    }

    /// What the log may take, what pages may and what names may, each.
    ///
    /// # Errors
    /// What is available, where that is too little to observe anything.
    pub(crate) fn share_bytes(&self) -> Result<u64, u64> {
        let available = self.available_bytes();
        if available < LEAST_BYTES { Err(available) } else { Ok(available / SHARE) }
    }

    /// Whether there is next to none left beside `needed_bytes`. Looks from time to time.
    pub(crate) fn is_short(&mut self, needed_bytes: u64) -> bool {
        let now = now_ns();
        let is_due = now.saturating_sub(self.looked_ns) >= PERIOD_NS;
        if is_due {
            self.looked_ns = now;
        }
        is_due && !self.holds(SHORT_BYTES + needed_bytes)
    }

    /// Whether so many bytes are left.
    pub(crate) fn holds(&self, bytes: u64) -> bool {
        self.available_bytes() >= bytes
    }

    fn available_bytes(&self) -> u64 {
        let info = rustix::system::sysinfo();
        let free_bytes = (info.freeram as u64).saturating_mul(info.mem_unit.into());
        // One system call is mostly enough.
        let of_machine =
            if free_bytes >= PLENTY_BYTES { None } else { available_kib().map(|kib| kib * 1024) };
        self.groups.available_bytes().into_iter().chain(of_machine).min().unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use std::path::Path;

    use prepage_core::{PageIndex, PageRange};

    use super::*;
    use crate::sightings::Sightings;

    #[test]
    fn of_little_memory_little_is_taken_and_of_next_to_none_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let write = |file: &str, bytes: u64| fs::write(dir.path().join(file), bytes.to_string()).unwrap();
        write("memory.max", 1 << 27);
        let mut memory = Memory::of(Cgroups::in_directory(dir.path()));
        for (used, expected) in [(0, Ok(1 << 23)), (1 << 26, Ok(1 << 22)), (100 << 20, Err(28 << 20))] {
            write("memory.current", used);
            assert_eq!(memory.share_bytes(), expected, "{used} are used");
        }
        let mut is_short_with = |used, needed_bytes| {
            write("memory.current", used);
            memory.looked_ns = 0;
            [(); 2].map(|()| memory.is_short(needed_bytes))
        };
        assert_eq!(is_short_with(100 << 20, 0), [false; 2]);
        assert_eq!(is_short_with(113 << 20, 0), [true, false], "not looked at again at once");
        // To put together what was noted takes memory first.
        let mut sightings = Sightings::default();
        let place = sightings.place(Path::new("/file"), None).unwrap();
        sightings.window(1, place, PageRange::new(PageIndex(0), PageIndex(500_000)));
        assert_eq!(is_short_with(88 << 20, sightings.observation_bytes()), [true, false]);
        assert!(!memory.holds(sightings.observation_bytes()) && memory.holds(40 << 20));
    }
}
