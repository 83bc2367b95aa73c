//! What fetching gains: how long cold starts took for which a profile was fetched, and a few that were held out.
//!
//! The model is that of `prepage run` ([`prepage_core::profile::gain`]): it draws the starts that are held out, compares medians of
//! the last few of each kind, and has a program left alone where nothing is gained. A start counts from the moment at which the service saw the
//! exec, to the end of the program; where one of the compared starts ran for 5 s and more, to the last fault that waited for the disk
//! ([`Progress`]). Starts that found their pages in memory teach nothing and are not kept. What a user starts is kept for each user in a file that root alone can read.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use prepage_core::profile::gain::{Gain, Turn};
use prepage_core::profile::start::newest;
use prepage_core::profile::{ColdStart, Profile};
use prepage_observe::Until;
use prepage_prefetch::engine::Amounts;
use prepage_prefetch::progress::Progress;
use prepage_profiles::{ProgramKey, bundle};
use prepage_sys::clock::unix_s;
use prepage_sys::processor_time::of_this_thread;
use prepage_sys::random::random;
use prepage_sys::sync::Anyway;
use serde::Serialize;

use crate::counters::Counters;
use crate::known::Known;
use crate::pages::{Keep, Kept, Users, write_changed};
use crate::process::Process;

/// Programs of a user that are kept; the one that was started cold the longest ago makes room.
const PROGRAMS_MAX: usize = 128;
/// Starts that are followed at once, and those of one user.
pub(crate) const FOLLOWED_MAX: usize = 8;
const FOLLOWED_OF_A_USER_MAX: usize = 4;
/// How long a start is followed: less than makes a thread of a crew one that hangs.
const WINDOW: Duration = Duration::from_secs(15);
/// Programs that are reported, those with a known gain first.
const REPORTED_MAX: usize = 64;

/// The cold starts of all users. Lock order: `writing`, `state`; `state` is held over nothing that waits.
#[derive(Debug)]
pub struct Gains {
    counters: Arc<Counters>,
    state: Mutex<State>,
    /// As [`write_changed`] has it.
    writing: Mutex<()>,
}

/// Protected by `Gains::state`.
#[derive(Debug)]
struct State {
    /// A sample is enough: where there are more users, the others are not held out.
    users: Users<Programs>,
    /// The user of each start that is followed.
    followed: Vec<u32>,
}

/// With the cold starts of each program in a role, and nothing else of it.
type Programs = HashMap<ProgramKey, Profile>;

impl Keep for Programs {
    fn encode(&self) -> Vec<u8> {
        // More than is read again is forgotten.
        bundle::write(&self.values().cloned().collect::<Vec<_>>()).unwrap_or_default()
    }
}

impl AsMut<Users<Programs>> for State {
    fn as_mut(&mut self) -> &mut Users<Programs> {
        &mut self.users
    }
}

/// A start that is to be followed.
#[derive(Debug)]
pub struct Followed {
    /// The profile.
    pub known: Arc<Known>,
    /// What is fetched for it; `None` where it is held out.
    pub fetched: Option<Arc<Amounts>>,
}

/// What fetching gains, as it is reported.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GainsStatus {
    /// Whether starts are held out.
    pub is_on: bool,
    /// Cold starts that are kept of those that were fetched.
    pub prefetched_starts: usize,
    /// Cold starts that are kept of those that were held out.
    pub held_out_starts: usize,
    /// Programs of which there are enough of both to compare.
    pub compared_programs: usize,
    /// Time with prefetch ÷ time without: of each of these programs, and of these ratios the geometric mean. `None` without such programs.
    pub ratio: Option<f64>,
    /// Programs of whoever asks; of all users for root.
    pub programs: Vec<ProgramGain>,
}

/// What fetching gains in the starts of one program by one user.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProgramGain {
    pub uid: u32,
    pub program: String,
    pub role: String,
    /// Cold starts that were fetched, of the last ones: of those that the service followed, and those that the profile remembers.
    pub prefetched_starts: usize,
    /// The same of those that were held out.
    pub held_out_starts: usize,
    /// Median time of the fetched ones: to the end, or to the last wait if one of either kind ran for 5 s or more.
    pub prefetched_us: Option<u32>,
    /// Median of the held-out ones.
    pub held_out_us: Option<u32>,
    /// The first ÷ the second; `None` before there are enough of each.
    pub ratio: Option<f64>,
    /// Whether it is not fetched any more, because that gains nothing.
    pub is_off: bool,
}

impl Gains {
    /// Those that lie in `directory`, which need not exist. A file that makes no sense is passed over, and replaced some day.
    pub fn read(directory: PathBuf, counters: Arc<Counters>) -> Self {
        let decode = |file: &Kept| {
            let programs = bundle::read(&file.bytes).ok()?.into_iter();
            let programs =
                programs.map(|one| (ProgramKey::of_profile(&one), one)).take(PROGRAMS_MAX).collect();
            Some((programs, file.written_unix_s))
        };
        let state = State { users: Users::read(directory, decode), followed: Vec::new() };
        Self { counters, state: Mutex::new(state), writing: Mutex::default() }
    }

    /// What is done for a cold start of `known` by user `uid`; only where it `may_be_held_out` is anything tried.
    pub fn turn(&self, uid: u32, known: &Known, may_be_held_out: bool) -> Turn {
        known.turn(&self.starts(uid, known), may_be_held_out.then(random))
    }

    /// The cold starts of `known` by user `uid` that are kept.
    fn starts(&self, uid: u32, known: &Known) -> Vec<ColdStart> {
        let state = self.state.lock().anyway();
        let of_program = state.users.get(uid).and_then(|programs| programs.get(&known.key));
        of_program.map_or_else(Vec::new, |program| program.starts.clone())
    }

    /// Whether one more start of user `uid` can be followed.
    pub fn has_room(&self, uid: u32) -> bool {
        self.state.lock().anyway().has_room(uid)
    }

    /// Follows a start to its end, and keeps how it fared. Returns the processor time that this took, nanoseconds.
    pub fn follow(&self, process: &Process, start: &Followed) -> u64 {
        let (pid, uid) = (process.context.pid, process.context.uid);
        let before = of_this_thread();
        let Some(_place) = Place::take(self, uid) else { return 0 };
        if let Ok(until) = Until::ended_or(pid, WINDOW) {
            let mut progress = Progress::new(pid, &until);
            progress.follow(u64::MAX);
            let fetched = start.fetched.as_deref();
            let known = &start.known;
            if let Some(start) = progress.cold_start(known.device, process.context.began_ns, fetched) {
                if needs_more(known, &self.starts(uid, known), start) {
                    known.mark_as_changed(Vec::new());
                }
                self.keep(uid, &known.key, &known.past.starts, start);
            }
        }
        (of_this_thread() - before).as_nanos() as u64
    }

    /// Keeps `start` and, as they decide with it what is done for the next one, those in the `past` of the profile.
    fn keep(&self, uid: u32, key: &ProgramKey, past: &[ColdStart], start: ColdStart) {
        let mut state = self.state.lock().anyway();
        let Some(programs) = state.users.see(uid, unix_s()) else { return };
        if programs.len() >= PROGRAMS_MAX && !programs.contains_key(key) {
            let last = |program: &Profile| program.starts.last().map(|start| start.unix_s);
            let oldest = programs.iter().min_by_key(|(_, program)| last(program));
            let oldest = oldest.map(|(key, _)| key.clone());
            oldest.and_then(|oldest| programs.remove(&oldest));
        }
        let ProgramKey { program, role } = key.clone();
        let kept = programs.entry(key.clone());
        let kept = kept.or_insert_with(|| Profile { program, role, ..Profile::default() });
        kept.starts = newest(&kept.starts, past);
        kept.record(start);
    }

    /// Forgets user `uid`, of whose starts nothing is to be kept.
    pub fn forget(&self, uid: u32) {
        self.state.lock().anyway().users.forget(uid);
    }

    /// Whether what is kept of somebody is still to be removed.
    pub fn is_forgetting(&self) -> bool {
        self.state.lock().anyway().users.is_forgetting()
    }

    /// Writes what has changed: `all` of it, or what was not written for a while.
    pub fn write(&self, all: bool) {
        write_changed(&self.writing, &self.state, all, &self.counters.gains_not_written);
    }

    /// What user `uid` may know: of all users for root. Starts are held out if it `is_on`.
    pub fn status(&self, uid: u32, is_on: bool) -> GainsStatus {
        let mut programs: Vec<ProgramGain> = {
            let state = self.state.lock().anyway();
            let users = state.users.all().filter(|(of, _)| uid == 0 || uid == *of);
            users
                .flat_map(|(uid, programs)| {
                    programs.values().filter_map(move |one| ProgramGain::of(uid, one))
                })
                .collect()
        };
        let ratios: Vec<f64> = programs.iter().filter_map(|one| one.ratio).collect();
        let mean = (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp();
        let mut status = GainsStatus {
            is_on,
            prefetched_starts: programs.iter().map(|one| one.prefetched_starts).sum(),
            held_out_starts: programs.iter().map(|one| one.held_out_starts).sum(),
            compared_programs: ratios.len(),
            ratio: (!ratios.is_empty()).then_some(mean),
            programs: Vec::new(),
        };
        programs.sort_by_key(|one| {
            let starts = one.held_out_starts + one.prefetched_starts;
            (one.ratio.is_none(), std::cmp::Reverse(starts), one.program.clone(), one.role.clone(), one.uid)
        });
        programs.truncate(REPORTED_MAX);
        status.programs = programs;
        status
    }
}

impl State {
    fn has_room(&self, uid: u32) -> bool {
        let of_user = self.followed.iter().filter(|of| **of == uid).count();
        self.users.has_room(uid, unix_s())
            && self.followed.len() < FOLLOWED_MAX
            && of_user < FOLLOWED_OF_A_USER_MAX
    }
}

impl ProgramGain {
    /// On the device of the last start.
    fn of(uid: u32, program: &Profile) -> Option<Self> {
        let gain = Gain::on(program.starts.last()?.device, &program.starts);
        Some(Self {
            uid,
            program: program.program.clone(),
            role: program.role.clone(),
            prefetched_starts: gain.prefetched_starts,
            held_out_starts: gain.held_out_starts,
            prefetched_us: gain.prefetched_us,
            held_out_us: gain.held_out_us,
            ratio: gain.ratio(),
            is_off: gain.is_none(),
        })
    }
}

/// A place among the starts that are followed.
struct Place<'a>(&'a Gains, u32);

impl<'a> Place<'a> {
    fn take(gains: &'a Gains, uid: u32) -> Option<Self> {
        let mut state = gains.state.lock().anyway();
        state.has_room(uid).then(|| {
            state.followed.push(uid);
            Self(gains, uid)
        })
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let followed = &mut self.0.state.lock().anyway().followed;
        if let Some(at) = followed.iter().position(|uid| *uid == self.1) {
            followed.swap_remove(at);
        }
    }
}

/// Whether `start`, the next one after those `before`, waited for so many more pages than is usual that the program needs others than are known:
/// [`Profile::record`] decides, as it does where `prepage run` serves.
fn needs_more(known: &Known, before: &[ColdStart], start: ColdStart) -> bool {
    let starts = newest(&known.past.starts, before);
    let mut judged = Profile { starts, files: known.planned.files.clone(), ..Profile::default() };
    judged.record(start);
    judged.history.due > 0
}

#[cfg(test)]
mod tests {
    use prepage_core::PageIndex;
    use prepage_core::profile::{ProfiledFile, Touches};
    use prepage_sys::rights::Rights;
    use prepage_testing::{Need, has};

    use super::*;
    use crate::pages::USERS_MAX;

    fn key(name: &str) -> ProgramKey {
        ProgramKey { program: format!("/usr/bin/{name}"), role: name.into() }
    }

    fn start(unix_s: u64, held_out: bool, took_us: u32) -> ColdStart {
        ColdStart { unix_s, device: 1, held_out, took_us, ..ColdStart::default() }
    }

    fn none(directory: &std::path::Path) -> Gains {
        Gains::read(directory.join("gains"), Arc::default())
    }

    #[test]
    fn gains_are_those_of_the_user_who_asks_and_come_back_after_a_restart() {
        if !has(Need::Root) {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let gains = none(directory.path());
        assert_eq!(gains.status(0, true), GainsStatus { is_on: true, ..GainsStatus::default() });
        for at in 0..3 {
            for (uid, took_us) in [(7, 100), (8, 400)] {
                gains.keep(uid, &key("a"), &[], start(at, true, 1000));
                gains.keep(uid, &key("a"), &[], start(at, false, took_us));
            }
        }
        gains.keep(7, &key("b"), &[], start(1, true, 1000));
        let status = gains.status(7, true);
        assert_eq!((status.programs[0].ratio, status.compared_programs), (Some(0.1), 1));
        assert_eq!((status.prefetched_starts, status.held_out_starts), (3, 4));
        assert_eq!([&status.programs[0].role, &status.programs[1].role], ["a", "b"]);
        assert_eq!(status.programs[1].ratio, None, "one start tells nothing");
        let ratio = gains.status(0, true).ratio.unwrap();
        assert!((ratio - 0.2).abs() < 1e-9, "the geometric mean of 0.1 and 0.4 is not {ratio}");
        assert_eq!(gains.status(9, true).programs, []);
        gains.write(true);
        let again = none(directory.path());
        assert_eq!(again.status(0, true), gains.status(0, true));
        // Cut off by somebody.
        let file = directory.path().join("gains/7");
        std::fs::write(&file, &std::fs::read(&file).unwrap()[..50]).unwrap();
        assert_eq!(none(directory.path()).status(0, true).prefetched_starts, 3);
    }

    #[test]
    fn what_is_kept_and_followed_is_bounded() {
        let gains = none(std::path::Path::new("/no/such/directory"));
        (0..2 * PROGRAMS_MAX as u64)
            .for_each(|at| gains.keep(7, &key(&at.to_string()), &[], start(at + 1, false, 1)));
        let kept = gains.status(7, true).prefetched_starts;
        assert_eq!(kept, PROGRAMS_MAX);
        assert!(
            gains
                .state
                .lock()
                .anyway()
                .users
                .get(7)
                .unwrap()
                .contains_key(&key(&(2 * PROGRAMS_MAX - 1).to_string()))
        );
        let places: Vec<_> = (0..9).map_while(|_| Place::take(&gains, 7)).collect();
        assert_eq!(places.len(), FOLLOWED_OF_A_USER_MAX);
        assert!(gains.has_room(8));
        drop(places);
        assert!(gains.has_room(7));
        (0..USERS_MAX as u32).for_each(|uid| gains.keep(uid, &key("a"), &[], start(1, false, 1)));
        assert!(gains.has_room(7) && !gains.has_room(USERS_MAX as u32));
    }

    #[test]
    fn nothing_is_left_of_who_is_forgotten() {
        if !has(Need::Root) {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let gains = none(directory.path());
        [7, 8].into_iter().for_each(|uid| gains.keep(uid, &key("a"), &[], start(1, false, 1)));
        gains.write(false);
        assert!(directory.path().join("gains/7").exists(), "it was never written");
        gains.forget(7);
        gains.write(false);
        assert!(!directory.path().join("gains/7").exists() && directory.path().join("gains/8").exists());
        assert_eq!(none(directory.path()).status(0, true).prefetched_starts, 1);
    }

    #[test]
    fn who_writes_at_the_end_waits_for_whoever_is_writing() {
        if !has(Need::Root) {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let gains = none(directory.path());
        let file = directory.path().join("gains/7");
        std::thread::scope(|scope| {
            let writing = gains.writing.lock().unwrap();
            gains.keep(7, &key("a"), &[], start(1, false, 1));
            let last = scope.spawn(|| gains.write(true));
            std::thread::sleep(Duration::from_millis(50));
            assert!(!last.is_finished() && !file.exists());
            drop(writing);
        });
        assert!(file.exists());
    }

    /// What is fetched for it helps little: somebody has learned it badly, or it has changed.
    #[test]
    fn a_program_that_waits_for_much_that_is_not_known_is_to_be_observed_again() {
        let mut touches = Touches::default();
        (0..100).for_each(|page| touches.touch(PageIndex(page), page as u32));
        let file = ProfiledFile { extents: touches.extents(), ..ProfiledFile::default() };
        let known = Known::new(&Profile { files: vec![file], ..Profile::default() }, Rights::of_everybody());
        let cold = |unix_s, missed_pages| ColdStart {
            prefetched_pages: 100,
            missed_pages,
            ..start(unix_s, false, 1)
        };
        assert!(!needs_more(&known, &[], cold(1, 1)), "a page or two are missed in any start");
        assert!(needs_more(&known, &[], cold(1, 40)));
        assert!(
            !needs_more(&known, &[cold(1, 40)], cold(2, 41)),
            "that is usual, and others than those observed"
        );
        assert!(needs_more(&known, &[cold(1, 4)], cold(2, 41)));
        assert!(!needs_more(&known, &[], ColdStart { held_out: true, ..cold(1, 40) }));
    }

    /// Three were held out by `prepage run`, which keeps them in the profile.
    #[test]
    fn what_is_said_of_a_program_is_what_decides() {
        let gains = none(std::path::Path::new("/no/such/directory"));
        let held_out: Vec<_> = (1..4).map(|at| start(at, true, 100)).collect();
        (10..13).for_each(|at| gains.keep(7, &key("a"), &held_out, start(at, false, 200)));
        let one = gains.status(7, true).programs.remove(0);
        assert_eq!((one.held_out_starts, one.prefetched_starts), (3, 3));
        assert_eq!((one.ratio, one.is_off), (Some(2.0), true));
    }

    #[test]
    fn what_cannot_be_written_is_counted_and_kept() {
        let directory = tempfile::tempdir().unwrap();
        let in_the_way = directory.path().join("gains");
        std::fs::write(&in_the_way, "").unwrap();
        let gains = none(directory.path());
        gains.keep(7, &key("a"), &[], start(1, false, 1));
        gains.write(true);
        gains.write(true);
        assert_eq!(gains.counters.gains_not_written.get(), 2);
        assert_eq!(gains.status(7, true).prefetched_starts, 1);
    }
}
