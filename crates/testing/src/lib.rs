//! What tests of this workspace share; first of all how they skip: counted, with a reason, and never where the machine allows the test.
//!
//! A test that needs something a machine may lack (root, perf events, a program) names it as a [`Need`] and calls
//! [`skip`], which appends one line to `target/debug/skipped-tests`. After the tests, the program `skips` (`make test` runs it) lists
//! these lines by need, probes each need again, and asks `prepage doctor` about the kernel's facilities. It fails when
//! the machine has what a test said was missing: then it is the test, or the code it tests, that is broken.
//!
//! An error is a reason to skip only when its type says "not permitted" or "not there". Any other error fails the test:
//!
//! ```
//! use prepage_testing::{Need, unless_refused};
//! use std::io::{Error, ErrorKind};
//!
//! let read = |path| std::fs::read(path);
//! let refused = |error: &Error| error.kind() == ErrorKind::PermissionDenied;
//! let bytes = unless_refused(read("/proc/self/stat"), Need::Root, refused);
//! assert!(bytes.is_some());
//! ```
//!
//! What else tests share:
//!
//! | function               | for                                                                                       |
//! |------------------------|-------------------------------------------------------------------------------------------|
//! | [`wait_until`]         | what comes by itself, however slow the machine is                                         |
//! | [`unless_late`]        | what holds for a limited time: it runs again where it failed later than that              |
//! | [`copy_program`], [`write_program`] | programs that a test makes and executes at once                              |
//! | [`child`]              | a test in a process of its own                                                            |
//! | [`Hung`], [`SmallDisk`], [`Swap`] | a file system that does not answer, one that is soon full, swap space          |
//!
//! The program `suite` compiles and runs all tests ([`Program`] says which may run beside others).

mod caches;
mod child;
mod fresh;
mod hung;
mod late;
mod need;
mod pinned;
mod program;
mod skipped;
mod small_disk;
mod swap;
mod unsteady;
mod wait;

use std::error::Error;
use std::fmt::Display;
use std::panic::Location;

pub use caches::unless_caches_dropped;
pub use child::{assert_passed, child, child_command, child_output, is_child, passes_as_child, this_test};
pub use fresh::{copy_program, wait_until_written, write_program};
pub use hung::Hung;
pub use late::unless_late;
pub use need::{Doctor, Need, freezing_groups, memory_groups, python, task_groups};
pub use pinned::write_pinned;
pub use program::Program;
pub use skipped::{Skipped, log_path};
pub use small_disk::SmallDisk;
pub use swap::Swap;
pub use unsteady::{Failed, Failures};
pub use wait::wait_until;

/// Records that the calling test goes no further, because the machine lacks `need`; `found` says what showed it.
///
/// # Panics
/// When the skip cannot be recorded: a skip that nobody can count fails the test.
#[track_caller]
pub fn skip(need: Need, found: impl Display) {
    let skipped = Skipped::here(need, found.to_string(), Location::caller());
    eprintln!("skipped: {skipped}");
    let log = log_path();
    skipped.append_to(&log).unwrap_or_else(|error| panic!("cannot record in {}: {error}", log.display()));
}

/// Whether the machine has `need`; records a skip where it does not.
#[track_caller]
pub fn has(need: Need) -> bool {
    match need.probe() {
        Ok(()) => true,
        Err(found) => {
            skip(need, found);
            false
        }
    }
}

/// The value of `result`. Records a skip and returns `None` for an error that `refused` finds to be one of permission
/// or absence.
///
/// # Panics
/// For every other error.
#[track_caller]
pub fn unless_refused<T, E: Error>(
    result: Result<T, E>,
    need: Need,
    refused: impl FnOnce(&E) -> bool,
) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) if refused(&error) => {
            skip(need, chain(&error));
            None
        }
        Err(error) => panic!("{}", chain(&error)),
    }
}

/// An error and its causes, on one line.
fn chain(error: &dyn Error) -> String {
    let causes = std::iter::successors(error.source(), |&error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
