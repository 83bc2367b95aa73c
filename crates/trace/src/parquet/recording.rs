//! Recording into a file.

use std::path::Path;
use std::time::Duration;

use prepage_sys::spawn::HowEnded;

use super::{TraceFileError, TraceWriter};
use crate::pairing::Pairing;
use crate::recorder::{RecordError, RecordOptions, Recorded, Recorder, Scope};
use crate::summary::Summary;

/// A recording that has ended.
#[derive(Debug)]
pub struct Recording {
    /// The run. [`prepage_core::TraceFacts::unsaved`] is right; of a long recording the threads and stacks are only the
    /// last ones.
    pub recorded: Recorded,
    /// Its faults in a few numbers.
    pub summary: Summary,
    /// Whether there is a file.
    pub saved: bool,
    /// Why it ended before its time. What was recorded until then is saved.
    pub failure: Option<RecordError>,
}

/// Something to report to the user immediately.
#[derive(Debug)]
#[non_exhaustive]
pub enum Notice<'a> {
    /// A recording that was killed left an unfinished file, which is kept under this name.
    Rescued(&'a Path),
    /// The recording goes on. Said a few times a second.
    Progress {
        /// How long it took so far.
        duration: Duration,
        /// Faults until now.
        faults: u64,
        /// Records lost until now.
        lost: u64,
    },
    /// The file takes no more. A command goes on, and is recorded further; without one the recording ends.
    Unsaved {
        /// Why.
        error: &'a TraceFileError,
        /// Where what it took until then is.
        kept: Option<&'a Path>,
        /// Whether there is a command that goes on.
        command_runs: bool,
    },
}

/// Tables of threads and stacks are begun anew when they take more than this.
pub(super) const TABLES_BYTES_MAX: usize = 64 << 20;

/// Bounds the memory of `pairing`: once faults are encoded in the file, the tables that their numbers point into are not
/// needed any more.
pub(crate) fn bound_tables(
    pairing: &mut Pairing,
    writer: Option<&mut TraceWriter>,
) -> Result<(), TraceFileError> {
    if pairing.table_bytes() <= TABLES_BYTES_MAX {
        return Ok(());
    }
    let settled = writer.map_or(Ok(()), |writer| writer.settle(pairing.tables()));
    pairing.forget_tables();
    settled
}

/// Records `scope` into file `path`. `tell` is called with what happens on the way.
///
/// An error after the beginning does not discard what was recorded: it ends up in the file and in
/// [`Recording::failure`]. A command that could not be executed leaves no file.
pub fn record(
    scope: &Scope,
    options: &RecordOptions,
    path: &Path,
    mut tell: impl FnMut(Notice<'_>),
) -> Result<Recording, RecordError> {
    let (mut recorder, writer) = Recorder::start_with(scope, options, || Ok(TraceWriter::create(path)?))?;
    if let Some(kept) = writer.rescued() {
        tell(Notice::Rescued(kept));
    }
    let mut writer = Some(writer);
    let mut summary = Summary::default();
    let mut failure = None;
    let mut faults = Vec::new();
    let mut told = false;
    loop {
        let more = recorder.next_faults(&mut faults).unwrap_or_else(|error| {
            failure = Some(error);
            false
        });
        faults.iter().for_each(|fault| summary.add(fault));
        let written = match &mut writer {
            Some(open) => {
                let written = open.write(recorder.tables(), &faults, || recorder.facts());
                written.and(bound_tables(&mut recorder.pairing, Some(open)))
            }
            // Faults that go into no file need no tables.
            None => bound_tables(&mut recorder.pairing, None),
        };
        if let Err(error) = written {
            let command_runs = matches!(scope, Scope::Command(_)) && more;
            let kept = writer.as_ref().and_then(TraceWriter::left_behind);
            tell(Notice::Unsaved { error: &error, kept, command_runs });
            told = true;
            if !command_runs {
                recorder.end();
            }
            if !matches!(error, TraceFileError::Full(..)) {
                writer = None;
            }
        }
        faults.clear();
        let (duration, lost) = recorder.progress();
        tell(Notice::Progress { duration, faults: summary.total().count, lost });
        if !more {
            break;
        }
    }
    let mut recorded = recorder.finish();
    failure = failure.or(recorded.failure.take());
    let mut saved = false;
    if !matches!(recorded.how_ended, Some(HowEnded::NotExecuted(_)))
        && let Some(writer) = writer
    {
        let kept = writer.left_behind().map(Path::to_owned);
        match writer.finish(recorded.tables(), &recorded.facts) {
            Ok(unsaved) => {
                recorded.facts.unsaved = unsaved;
                saved = true;
            }
            Err(_) if told => {}
            Err(error) => {
                let command_runs = recorded.left_running.is_some();
                tell(Notice::Unsaved { error: &error, kept: kept.as_deref(), command_runs });
            }
        }
    }
    // They asked again for the end that has come, and would have lost the trace.
    if let Some(signals) = recorded.signals.take() {
        while let Ok(Some(_)) = signals.next() {}
    }
    Ok(Recording { recorded, summary, saved, failure })
}
