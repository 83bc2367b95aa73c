//! A command whose every first touch of a file's page is a fault, for those who record faults themselves.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use prepage_trace::Prepare;

use crate::armer::Armer;
use crate::arming::Arming;
use crate::inside::{Inside, entry};
use crate::observer::ObserveOptions;

/// The arming of a command's process tree.
#[derive(Debug, Default)]
pub struct Exact(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    inside: Option<Inside>,
    arming: Option<Arming>,
    unseen: Vec<String>,
}

impl Exact {
    /// Nothing is armed yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// For [`prepage_trace::RecordOptions::prepare`]: arms the command, whose executable is `program` where that is known.
    pub fn prepare(&self, program: Option<PathBuf>) -> Prepare {
        let state = Arc::clone(&self.0);
        let own_audit = std::env::var_os("LD_AUDIT");
        let options = ObserveOptions { program, own_audit, ..ObserveOptions::default() };
        Prepare(Arc::new(move |pid| {
            state.lock().unwrap_or_else(PoisonError::into_inner).begin(pid, &options)
        }))
    }

    /// Disarms the command. Returns what was seen approximately, a line each.
    pub fn end(&self) -> Vec<String> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(inside) = state.inside.take() {
            inside.end();
        }
        let mut unseen = std::mem::take(&mut state.unseen);
        if let Some(mut arming) = state.arming.take() {
            unseen.extend(arming.end());
        }
        unseen
    }
}

impl State {
    fn begin(&mut self, pid: u32, options: &ObserveOptions) -> Vec<(&'static str, OsString)> {
        // Where no agent goes, visits do.
        let (inside, receiver) =
            Inside::open(options).map_or((None, None), |(inside, receiver)| (Some(inside), Some(receiver)));
        let entry = entry(options, inside.is_some());
        match Arming::listen(vec![pid])
            .and_then(|stream| Arming::begin(stream, pid, entry, Armer::new(receiver)))
        {
            Ok(arming) => self.arming = Some(arming),
            Err(error) => {
                self.unseen.push(format!("first touches, for mappings are not told: {error}"));
                return Vec::new();
            }
        }
        let variables = inside.as_ref().map_or_else(Vec::new, |inside| inside.variables().to_vec());
        self.inside = inside;
        variables
    }
}
