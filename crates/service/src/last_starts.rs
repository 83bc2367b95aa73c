//! The last starts, as the status shows them to who may know.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use prepage_prefetch::clock::unix_s;

use crate::fetches::Done;
use crate::process::Process;

/// Older starts are forgotten.
const STARTS_MAX: usize = 64;

/// The last starts of all users.
#[derive(Debug, Default)]
pub struct LastStarts(Mutex<VecDeque<LastStart>>);

/// A start, and what was done for it.
#[derive(Clone, Debug)]
pub struct LastStart {
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
    /// Notes what was `done` for a start.
    pub fn add(&self, process: &Process, done: Done) {
        let mut starts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if starts.len() >= STARTS_MAX {
            starts.pop_front();
        }
        let key = &process.context.key;
        starts.push_back(LastStart {
            unix_s: unix_s(),
            uid: process.context.uid,
            program: key.program.clone(),
            role: key.role.clone(),
            done,
        });
    }

    /// Forgets those of user `uid`.
    pub fn forget(&self, uid: u32) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|start| start.uid != uid);
    }

    /// Those of user `uid`; of all users for root.
    pub fn of(&self, uid: u32) -> Vec<LastStart> {
        let starts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        starts.iter().filter(|start| uid == 0 || start.uid == uid).cloned().collect()
    }
}
