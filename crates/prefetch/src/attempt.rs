//! What one start does with its profile: prefetch or not, what, what not, how closely watched.

use prepage_core::gain::{self, Turn};
use prepage_core::profile::Profile;
use prepage_core::trial::{self, Budget, PageOf};
use prepage_core::{DeviceFigures, PAGE_SIZE};
use prepage_trace::now_ns;

use crate::engine::device_of;
use crate::launch::LaunchOptions;
use crate::random::SplitMix;
use crate::readahead;
use crate::watch::Scope;

/// Stalls are watched in one of this many prefetched starts: looking for them takes some percent of such a start, and
/// finds little that is new.
const STALL_WATCH_EVERY: u64 = 8;

/// What a start with a profile does.
#[derive(Debug)]
pub(crate) struct Attempt {
    /// That of the file system with the executable.
    pub(crate) device: u64,
    /// What the device with most pages can do.
    pub(crate) figures: DeviceFigures,
    /// The kernel's read-ahead there.
    pub(crate) read_ahead_pages: u64,
    /// Whether it is prefetched.
    pub(crate) turn: Turn,
    /// What of the profile is worth a prefetch.
    pub(crate) planned: Profile,
    /// What of that is left out.
    pub(crate) tests: Vec<PageOf>,
    /// How closely it is watched.
    pub(crate) scope: Scope,
}

impl Attempt {
    /// Draws what it is. Where it `learns`, what it shows will be kept; on a `look`, every fault is watched.
    pub(crate) fn new(profile: &Profile, options: &LaunchOptions, learns: bool, look: bool) -> Self {
        let device = home(profile);
        let figures = device_of(profile);
        let mut random = SplitMix::new(now_ns() ^ (u64::from(std::process::id()) << 32));
        let turn = if !options.prefetch {
            Turn::Off
        } else {
            // Where nothing is learned, nothing is tried out; what was learned earlier holds all the same.
            let tries = learns && options.hold_out;
            gain::turn(device, &profile.starts, tries.then(|| random.next()))
        };
        let read_ahead_pages = readahead::of_device(device)
            .map_or(Budget::default().read_ahead_pages, |kib| kib.saturating_mul(1024) / PAGE_SIZE);
        let planned = trial::worthwhile(profile, &figures);
        let tests = if turn == Turn::Prefetch && learns {
            // The quickest: slow ones may have been slow for other reasons.
            let same = profile.starts.iter().filter(|start| start.device == device && !start.held_out);
            let mut budget = Budget { read_ahead_pages, ..Budget::default() };
            if let Some(us) = same.map(|start| start.took_us).filter(|us| *us > 0).min() {
                budget.cold_start_ns = u64::from(us).saturating_mul(1000);
            }
            trial::choose_tests(&planned, &figures, budget, || random.next())
        } else {
            Vec::new()
        };
        let scope = if look {
            Scope::EveryFault
        } else if turn == Turn::Prefetch && random.next().is_multiple_of(STALL_WATCH_EVERY) {
            Scope::DiskFaultsAndStalls
        } else {
            Scope::DiskFaults
        };
        Self { device, figures, read_ahead_pages, turn, planned, tests, scope }
    }

    /// Why nothing is prefetched, for a user who wants to hear.
    pub(crate) fn turn_in_words(&self) -> &'static str {
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
    use prepage_core::cold_start::ColdStart;

    use super::*;

    fn profile(prefetched_us: u32, held_out_us: u32) -> Profile {
        let start =
            |unix_s, held_out, took_us| ColdStart { unix_s, held_out, took_us, ..ColdStart::default() };
        let pairs = (0..3).flat_map(|at| [start(at, true, held_out_us), start(9 + at, false, prefetched_us)]);
        Profile { starts: pairs.collect(), ..Profile::default() }
    }

    #[test]
    fn what_gains_nothing_is_not_prefetched_even_where_nothing_is_learned_or_held_out() {
        let (useless, useful) = (profile(100, 90), profile(50, 90));
        for (learns, hold_out) in [(false, true), (true, false), (false, false)] {
            let options = LaunchOptions { hold_out, ..LaunchOptions::default() };
            for _ in 0..100 {
                assert_eq!(Attempt::new(&useless, &options, learns, false).turn, Turn::Off);
                assert_eq!(Attempt::new(&useful, &options, learns, false).turn, Turn::Prefetch);
            }
        }
        let off = LaunchOptions { prefetch: false, ..LaunchOptions::default() };
        assert_eq!(Attempt::new(&useful, &off, true, false).turn, Turn::Off);
    }
}
