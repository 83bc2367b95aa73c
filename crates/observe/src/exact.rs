//! A command whose every first touch of a file's page is a fault, for those who record faults themselves.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use prepage_core::ExactFacts;
use prepage_sys::agent::{Last, may_arm};
use prepage_sys::sync::Anyway;
use prepage_trace::{Callback, ExactSource, Prepare};

use crate::armer::Armer;
use crate::arming::Arming;
use crate::inside::{Inside, entry};
use crate::observer::ObserveOptions;
use crate::runs::{Run, joined};

/// The arming of a command's process tree. Its one lock is held while the command is armed and disarmed: who asks for the facts waits.
#[derive(Debug, Default)]
pub struct Exact(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    inside: Option<Inside>,
    arming: Option<Arming>,
    /// What is known of [`ExactFacts`].
    pages: BTreeMap<Arc<str>, Vec<Run>>,
    programs: Vec<String>,
    lost_records: u64,
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
        Callback(Arc::new(move |pid| state.lock().anyway().begin(pid, &options)))
    }

    /// For [`prepage_trace::RecordOptions::exact`]: what was seen approximately. Disarms the command when the recording has
    /// ended.
    pub fn facts(&self) -> ExactSource {
        let state = Arc::clone(&self.0);
        Callback(Arc::new(move |ended| {
            let mut state = state.lock().anyway();
            if ended {
                state.end();
            }
            state.facts()
        }))
    }
}

impl State {
    fn begin(&mut self, pid: u32, options: &ObserveOptions) -> Vec<(&'static str, OsString)> {
        let may_be_armed = may_arm().map_err(|error| error.to_string());
        // Where no agent goes, visits do.
        let (inside, receiver) = Inside::open(pid, options, may_be_armed.is_ok())
            .map_or((None, None), |(inside, receiver)| (Some(inside), Some(receiver)));
        let entry = entry(options, inside.is_some());
        if let Some(inside) = &inside {
            // What it has mapped last is armed, or told, before it is gone.
            inside.ask_for(Last::Wait);
        }
        let armer = Armer::new(receiver, may_be_armed);
        armer.ranges().now().keep_pages_only();
        match Arming::listen(vec![pid]).and_then(|stream| Arming::begin(stream, pid, entry, armer)) {
            Ok(arming) => self.arming = Some(arming),
            Err(error) => {
                self.programs.push(format!("first touches: the kernel does not report mappings: {error}"));
                return Vec::new();
            }
        }
        let variables = inside.as_ref().map_or_else(Vec::new, |inside| inside.variables().to_vec());
        self.inside = inside;
        variables
    }

    fn end(&mut self) {
        if let Some(inside) = self.inside.take() {
            inside.end();
        }
        if let Some(mut arming) = self.arming.take() {
            self.programs.extend(arming.end());
            self.look_at(&arming);
        }
    }

    /// Takes note of what could not be armed, or was too late.
    fn look_at(&mut self, arming: &Arming) {
        let mut ranges = arming.ranges();
        self.lost_records = ranges.lost_records;
        for (path, start, end) in ranges.take_unarmed() {
            let pages = self.pages.entry(path).or_default();
            *pages = joined(pages, &[(start, end)]);
        }
    }

    fn facts(&mut self) -> ExactFacts {
        if let Some(arming) = self.arming.take() {
            self.look_at(&arming);
            self.arming = Some(arming);
        }
        ExactFacts {
            unarmed_pages: self.pages.iter().map(|(path, pages)| (path.to_string(), pages.clone())).collect(),
            unarmed_programs: self.programs.clone(),
            lost_records: self.lost_records,
            ..ExactFacts::default()
        }
    }
}
