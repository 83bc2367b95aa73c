//! The first of the four steps of a start: what to fetch for it, and whether to observe it.

use std::collections::HashMap;
use std::sync::Arc;

use prepage_core::DeviceFigures;
use prepage_core::profile::gain::{self, Turn};
use prepage_core::profile::observation::{Coverage, Observation, ObservedFile};
use prepage_core::profile::worth::worthwhile;
use prepage_core::profile::{Extent, Profile, ProfiledFile};
use prepage_sys::random::random;

use crate::engine::device_of;
use crate::launch::LaunchOptions;

/// What one start does with the profile it has.
#[derive(Debug)]
pub struct Choice {
    /// `st_dev` of the file system with the executable: gains are kept by device.
    pub device: u64,
    /// What the device with most of the pages can do.
    pub figures: DeviceFigures,
    /// Whether it is prefetched.
    pub turn: Turn,
    /// The part of the profile that is worth its reads.
    pub planned: Arc<Profile>,
}

impl Choice {
    /// Chooses for a start with `profile`. Only a start whose outcome is kept may be held out; one that the options do not let be held out is
    /// prefetched, whatever is known of the gain.
    pub fn new(profile: &Profile, options: &LaunchOptions, is_kept: bool) -> Self {
        let device = home(profile);
        let figures = device_of(profile);
        let turn = match (options.prefetch, options.hold_out) {
            (false, _) => Turn::Off,
            (true, false) => Turn::Prefetch,
            (true, true) => gain::turn(device, &profile.starts, is_kept.then(random)),
        };
        Self { device, figures, turn, planned: Arc::new(worthwhile(profile, &figures)) }
    }

    /// How many of the pages to be prefetched a start did not use, as far as it was seen.
    pub fn pages_unused_in(&self, observation: &Observation) -> u32 {
        let used: HashMap<&str, &ObservedFile> =
            observation.files.iter().map(|file| (file.path.as_str(), file)).collect();
        let unused = |file: &ProfiledFile| -> u64 {
            let seen = used.get(file.path.as_str()).copied();
            let is_known = |extent: &&Extent| {
                seen.map_or(observation.coverage_of(&file.path, extent.by_read), |seen| seen.coverage)
                    != Coverage::Partial
            };
            let pages = seen.map_or(&[][..], |seen| &seen.pages);
            let is_used = |page| {
                pages[..pages.partition_point(|used| used.range.start() <= page)]
                    .last()
                    .is_some_and(|used| used.range.contains(page))
            };
            let known = file.extents.iter().filter(is_known);
            known.flat_map(|extent| extent.range.iter()).filter(|&page| !is_used(page)).count() as u64
        };
        self.planned.files.iter().map(unused).sum::<u64>().try_into().unwrap_or(u32::MAX)
    }

    /// Why nothing is prefetched, for a user who wants to hear.
    pub fn turn_in_words(&self) -> &'static str {
        match self.turn {
            Turn::Prefetch => "prefetched",
            Turn::HoldOut => "nothing prefetched: this start is held out, to see what prefetching is worth",
            Turn::Off => "nothing prefetched: it gains nothing here, or was not wanted",
        }
    }
}

/// The device of the file system that holds the executable.
fn home(profile: &Profile) -> u64 {
    let executable = profile.files.iter().find(|file| file.path == profile.program);
    executable.or(profile.files.first()).map_or(0, |file| file.identity.device)
}

#[cfg(test)]
mod tests {
    use prepage_core::profile::start::ColdStart;

    use super::*;

    #[test]
    fn a_start_that_is_not_to_be_held_out_is_prefetched_whatever_is_known_of_the_gain() {
        let start = |held_out, took_us| ColdStart { held_out, took_us, ..ColdStart::default() };
        let starts = [[start(true, 90); 3], [start(false, 100); 3]].concat();
        let profile = Profile { starts, ..Profile::default() };
        let turn = |prefetch, hold_out, is_kept| {
            let options = LaunchOptions { prefetch, hold_out, ..LaunchOptions::default() };
            Choice::new(&profile, &options, is_kept).turn
        };
        for is_kept in [false, true] {
            assert_eq!(turn(true, false, is_kept), Turn::Prefetch);
            assert_eq!(turn(false, false, is_kept), Turn::Off);
        }
        assert_eq!(turn(true, true, false), Turn::Off, "it gains nothing, and nothing is tried out");
    }
}
