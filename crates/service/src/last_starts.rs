//! The last starts, as the status shows them to who may know.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use prepage_prefetch::clock::unix_s;

use crate::fetches::Done;
use crate::process::Process;

/// Starts that are told at most.
const TOLD_MAX: usize = 64;

/// The last starts of all users.
#[derive(Debug, Default)]
pub struct LastStarts(Mutex<VecDeque<Told>>);

/// A start.
#[derive(Clone, Debug)]
pub struct Told {
    /// When, seconds since 1970.
    pub unix_s: u64,
    /// Whose.
    pub uid: u32,
    /// The program.
    pub program: String,
    /// How it was called.
    pub role: String,
    /// What was done.
    pub done: Done,
}

impl LastStarts {
    /// `done` was done for a start.
    pub fn tell(&self, process: &Process, done: Done) {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() >= TOLD_MAX {
            told.pop_front();
        }
        let key = &process.context.key;
        told.push_back(Told {
            unix_s: unix_s(),
            uid: process.context.uid,
            program: key.program.clone(),
            role: key.role.clone(),
            done,
        });
    }

    /// Those of user `uid`; of all users for root.
    pub fn of(&self, uid: u32) -> Vec<Told> {
        let told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        told.iter().filter(|told| uid == 0 || told.uid == uid).cloned().collect()
    }
}
