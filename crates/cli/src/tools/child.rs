//! The exit codes of commands that run another, as env(1), nohup(1) and timeout(1) have them.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};

use prepage_prefetch::learn::LearnError;
use prepage_sys::spawn::HowEnded;

/// A failure of prepage itself.
pub const OWN_FAILURE: u8 = 125;
/// The command was found but cannot be executed.
const CANNOT_EXECUTE: u8 = 126;
/// There is no such command.
const NOT_FOUND: u8 = 127;

/// The exit code for a command's wait status: its own, or 128 and the signal that killed it.
pub fn exit_code(wait_status: i32) -> ExitCode {
    let status = ExitStatus::from_raw(wait_status);
    code(status.code().or_else(|| Some(128 + status.signal()?)))
}

/// The same for how `command` ended.
pub fn exit_code_of(command: &[OsString], how: HowEnded) -> Result<ExitCode, NotStarted> {
    match how {
        HowEnded::NotExecuted(error) => Err(not_started(command, error)),
        HowEnded::Exited(exited) => Ok(code(Some(exited))),
        HowEnded::Killed(signal) => Ok(code(Some(128 + signal))),
    }
}

fn code(number: Option<i32>) -> ExitCode {
    let code = number.and_then(|number| u8::try_from(number).ok());
    ExitCode::from(code.unwrap_or(OWN_FAILURE))
}

/// The exit code for an error of prepage's.
pub fn code_of(error: &anyhow::Error) -> ExitCode {
    let not_started = error.chain().find_map(|cause| match cause.downcast_ref::<LearnError>() {
        Some(LearnError::NotExecuted { source, .. }) => Some(source),
        _ => cause.downcast_ref::<NotStarted>().map(|not_started| &not_started.error),
    });
    ExitCode::from(match not_started.map(io::Error::kind) {
        None => OWN_FAILURE,
        Some(io::ErrorKind::NotFound) => NOT_FOUND,
        Some(_) => CANNOT_EXECUTE,
    })
}

/// A command that could not be started: [`code_of`] has an exit code of its own for it.
#[derive(Debug)]
pub struct NotStarted {
    program: String,
    error: io::Error,
}

impl std::fmt::Display for NotStarted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.program, self.error)
    }
}

impl std::error::Error for NotStarted {}

/// That `command` could not be started.
pub fn not_started(command: &[OsString], error: io::Error) -> NotStarted {
    NotStarted { program: command[0].to_string_lossy().into_owned(), error }
}
