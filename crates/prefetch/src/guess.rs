//! What a program without a profile is likely to use: looked up beside its start, which waits for none of it.
//!
//! To read what is known of the executable's other roles takes a cold disk several milliseconds.

use std::mem;
use std::sync::{Arc, Mutex};
use std::thread::Builder;

use prepage_core::profile::Profile;
use prepage_core::profile::merge::shared;
use prepage_profiles::{ProgramKey, Stores};
use prepage_sys::sync::Anyway;

use crate::account::Listener;
use crate::engine::{Engine, device_of};
use crate::first_start::{self, FirstStart};
use crate::memory::Budget;

/// The profiles of the same executable in other roles that a start without a profile goes by: those written last, enough to
/// show what most have in common, and soon read.
const RELATIVES_MAX: usize = 8;

/// A guess, which is on its way into memory.
#[derive(Debug)]
pub(crate) enum Guess {
    /// What the executable's other roles have in common.
    Roles(Profile, Engine),
    /// The page maps that came with the program's files, if any did.
    Maps(FirstStart),
}

/// A guess that is being made by a thread of its own. Dropped before it was [taken](Self::take), it comes to nothing.
#[derive(Debug)]
pub(crate) struct Guessing(Arc<Mutex<State>>);

#[derive(Debug)]
enum State {
    UnderWay,
    Made(Guess),
    /// Taken, or not wanted any more.
    Over,
}

impl Guessing {
    /// Begins to look up what the program of `key` is likely to use, with so many `threads` to spare. Page maps are told to `listener`.
    pub(crate) fn begin(stores: &Stores, key: &ProgramKey, threads: u32, listener: &Listener) -> Self {
        let state = Arc::new(Mutex::new(State::UnderWay));
        let work = {
            let (state, stores, key, listener) =
                (state.clone(), stores.clone(), key.clone(), listener.clone());
            move || make(&state, &stores, &key, threads, &listener)
        };
        // A user without a thread to spare waits.
        if Builder::new().spawn(work).is_err() {
            make(&state, stores, key, threads, listener);
        }
        Self(state)
    }

    /// One that is never made.
    #[cfg(test)]
    pub(crate) fn under_way() -> Self {
        Self(Arc::new(Mutex::new(State::UnderWay)))
    }

    /// The guess, once, when it is made.
    pub(crate) fn take(&self) -> Option<Guess> {
        let mut state = self.0.lock().anyway();
        match mem::replace(&mut *state, State::Over) {
            State::Made(guess) => Some(guess),
            other => {
                *state = other;
                None
            }
        }
    }
}

impl Drop for Guessing {
    fn drop(&mut self) {
        if let State::Made(Guess::Roles(_, engine)) = mem::replace(&mut *self.0.lock().anyway(), State::Over)
        {
            engine.cancel();
        }
    }
}

fn make(state: &Mutex<State>, stores: &Stores, key: &ProgramKey, threads: u32, listener: &Listener) {
    let profile = shared(&stores.relatives(key, RELATIVES_MAX));
    if profile.files.is_empty() {
        let maps = first_start::begin(&key.program, stores, threads, listener);
        made(state, || Guess::Maps(maps));
        return;
    }
    let mut engine = Engine::new(profile.clone(), &device_of(&profile));
    engine.keep_within(Budget::of_process());
    // Nobody who asks for it waits for its reads, where there are no threads for these.
    if made(state, || Guess::Roles(profile, engine.clone())) {
        engine.start();
    }
}

/// Returns whether the guess is still wanted.
fn made(state: &Mutex<State>, guess: impl FnOnce() -> Guess) -> bool {
    let mut state = state.lock().anyway();
    let is_wanted = matches!(*state, State::UnderWay);
    if is_wanted {
        *state = State::Made(guess());
    }
    is_wanted
}
