//! Seeing from inside what a program uses: the names it looks up, the bytes it reads, and each page it touches first.
//!
//! What enters the program is a small C library without libc, `libprepage-agent.so` (`crates/sys/agent`), which ld.so loads
//! because of LD_AUDIT. Here is the observer's side of it:
//!
//! ```text
//! observer                                    program, and what it executes
//! Log::create() ── memfd ◄──── /proc/PID/fd/N ──── maps it and appends records
//!   log.variable(…)
//! Receiver::bind(&log) ◄── SCM_RIGHTS ─────────── a userfaultfd of its address space, its mappings registered
//! variables(…) ── set at the exec ──────────────► removed before the program's own code runs
//! log.read() ── typed records, while it runs
//! log.end(), drop the userfaultfds ─────────────► the agent does nothing from now on
//! ```
//!
//! A userfaultfd acts on the address space that made it, whoever holds it. So the observer registers mappings that the
//! program makes later ([`FirstTouches::register`]), and closing it ends the observation; no process has to be stopped.
//!
//! The program can write to the log: what is read from it is checked, and says no more than the program could do by
//! using files.

mod log;
mod reader;
mod receiver;
mod record;
mod target;
#[cfg(test)]
mod tests;

pub use log::{Last, Log, Lost, Reading};
pub use receiver::{Ending, FirstTouches, Receiver, Sent, may_arm};
pub use record::{Arming, Carrying, Event, Lookup, Record, TouchedRun};
pub use target::{LIBRARY, find_library, variables};
