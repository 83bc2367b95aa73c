//! Learning a program in one run of it: a start that is observed with everything on, by any user, from whatever cache
//! there is. Nothing of the machine is changed.

use std::ffi::OsString;
use std::io;
use std::time::Duration;

use prepage_core::profile::observation::Observation;
use prepage_observe::sightings::Sightings;
use prepage_observe::{ObserveError, ObserveOptions, Observer, Until};
use prepage_profiles::program;
use prepage_sys::cgroup::Memberships;
use prepage_sys::memory_left::Cgroups;
use prepage_sys::open_files::allow_many_for_now;
use prepage_sys::signals::{Signals, endings};
use prepage_sys::spawn::{HowEnded, spawn_waiting};

/// How long a run is observed at most. It ends by itself once no file was touched for a second.
const WINDOW: Duration = Duration::from_secs(600);

/// Why a program could not be learned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LearnError {
    /// Nothing of it can be observed.
    #[error("cannot observe the program")]
    Observe(#[from] ObserveError),
    /// The program could not be started.
    #[error("cannot start {program}")]
    Start {
        /// Its name.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// The program cannot be executed: what runs its script is missing, say.
    #[error("{program}")]
    NotExecuted {
        /// Its name.
        program: String,
        /// Why.
        source: io::Error,
    },
}

/// A program that was learned.
#[derive(Debug)]
pub struct Learned {
    /// What it used.
    pub observation: Observation,
    /// How it ended.
    pub how: HowEnded,
    /// The last signal that asked this process to end meanwhile.
    pub asked_to_end: Option<i32>,
}

/// Runs `command` and observes what it uses. The program's streams are this process's; signals that ask this process to end
/// go to the program, and what it used until then is kept.
///
/// To be called while the process has one thread.
pub fn learn(command: &[OsString]) -> Result<Learned, LearnError> {
    let name = || command[0].to_string_lossy().into_owned();
    let start = |source| LearnError::Start { program: name(), source };
    // A link would have prepage's own pages learned as the program's.
    let waiting = spawn_waiting(&program::past_stand_ins(command)).map_err(start)?;
    let signals = Signals::take_over(&endings()).map_err(start)?;
    // The program has inherited the limit as it was. Each of its processes takes some open files.
    let _many = allow_many_for_now();
    let until = Until::ended_or(waiting.pid(), WINDOW).map_err(start)?;
    let options = ObserveOptions {
        program: program::find(&command[0]).ok(),
        own_audit: std::env::var_os("LD_AUDIT"),
        is_patient: true,
        ..ObserveOptions::default()
    };
    let mut observer = Observer::attach(waiting.pid(), &options)?;
    let variables = observer.program_arguments();
    let child = waiting.go_with(&variables).map_err(start)?;
    let (observation, asked_to_end) = match observer.keep_within(Cgroups::of(&Memberships::of_process())) {
        Ok(()) => std::thread::scope(|scope| {
            let passing = scope.spawn(|| signals.pass_on_until_end(&child));
            // Here, where it was attached: the thread that began a visit is the one that can end it.
            let observation = observer.follow(&until);
            (observation, passing.join().expect("passing signals on does not panic"))
        }),
        // The program needs it more.
        Err(error) => {
            observer.end();
            let mut nothing = Sightings::default().observation().cut_short();
            nothing.unseen.push(format!("what it used: {error}"));
            (nothing, signals.pass_on_until_end(&child))
        }
    };
    let asked_to_end = asked_to_end.map_err(start)?;
    match child.wait().map_err(start)?.how {
        HowEnded::NotExecuted(source) => Err(LearnError::NotExecuted { program: name(), source }),
        how => Ok(Learned { observation, how, asked_to_end }),
    }
}
