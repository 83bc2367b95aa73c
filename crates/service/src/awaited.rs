//! Execs that were told before they were done: the file is open, and the process still runs what it ran before.
//!
//! A program that is found once its arguments lie elsewhere, or its executable is the file, is done. Until then it is looked at
//! again and again, at growing intervals. What is waited for is bounded; looking waits for nothing.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use prepage_sys::file_handle::FileHandle;
use prepage_sys::process_stat::ProcessStat;

use crate::moment::Moment;

/// The first look comes this long after the exec was told, the next ones at twice the time each. A warm program takes about as long, and needs nothing;
/// a cold one takes longer.
const PAUSE_MIN: Duration = Duration::from_micros(400);
/// The first look after the kernel has come to the loader.
const HURRIED: Duration = Duration::from_micros(50);
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// An exec that takes longer than this waits for a device or a server that gives nobody a chance.
const WAIT_MAX: Duration = Duration::from_secs(3);
/// More than machines start while they wait for their disks; few enough that looking at all of them costs little.
const AWAITED_MAX: usize = 256;
/// Those of one user but root: a process whose execs fail is awaited in vain, and nobody may crowd out all others.
const OF_A_USER_MAX: usize = 32;
/// Files that one process is about to execute: a script, its interpreter, what that is itself interpreted by.
const OF_A_PROCESS_MAX: usize = 4;
/// Processes whose last exec is remembered: more than start in the seconds in which one may execute again.
const REMEMBERED_MAX: usize = 4096;

/// Execs that are not done.
#[derive(Debug, Default)]
pub struct Awaited {
    /// Oldest first.
    all: Vec<One>,
    /// By process, where it was found to have executed a program: the same program may be about to be executed again.
    done: HashMap<u32, Image>,
    next_number: u64,
}

/// What a process runs, until it executes something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Image {
    started_ticks: u64,
    arguments_at: u64,
}

#[derive(Debug)]
struct One {
    /// Ascending.
    number: u64,
    pid: u32,
    uid: u32,
    file: FileHandle,
    /// Where the arguments of the process's parent lie: a process that was forked and executes nothing has them there too.
    parents_arguments_at: u64,
    /// Where its own lay when it was looked at first.
    arguments_at: u64,
    pause: Duration,
    next: Instant,
    moment: Moment,
    until: Instant,
}

/// What is said of an exec when it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// The process runs the file.
    Done,
    /// It does not yet.
    Awaited,
    /// It is gone.
    Gone,
    /// Too many are awaited.
    Crowded,
}

/// What became of an exec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Done(Image),
    /// The process executes something else, as that of a script does, or is gone.
    Other,
    NotYet,
}

impl Awaited {
    /// At this `moment` process `pid` was about to execute `file`; `starter` says whose it is, where that has to be known. Returns what is to be said of that now; of what is not done
    /// yet, [`Self::look`] tells.
    pub fn begin(
        &mut self,
        pid: u32,
        moment: Moment,
        starter: impl FnOnce() -> Option<u32>,
        file: FileHandle,
    ) -> Begun {
        let Some((stat, is_file)) = look_at(pid, &file) else { return Begun::Gone };
        // One that does not run the file yet, and does later, has executed it. Else its parent tells whether it has.
        let parent = if is_file { ProcessStat::of(stat.parent).ok() } else { None };
        let now = moment.at;
        self.next_number += 1;
        let one = One {
            number: self.next_number,
            pid,
            uid: 0,
            file,
            parents_arguments_at: parent.map_or(0, |parent| parent.arguments_at),
            arguments_at: stat.arguments_at,
            pause: PAUSE_MIN,
            next: now + PAUSE_MIN,
            moment,
            until: now + WAIT_MAX,
        };
        match one.state_of(&stat, is_file, self.done.get(&pid)) {
            State::Done(image) => {
                self.settle(pid, one.number, image);
                Begun::Done
            }
            State::NotYet => {
                // One that tries many files has executed none of those before.
                while self.all.iter().filter(|other| other.pid == pid).count() >= OF_A_PROCESS_MAX {
                    let oldest = self.all.iter().position(|other| other.pid == pid).expect("there are some");
                    self.all.remove(oldest);
                }
                let Some(uid) = starter() else { return Begun::Gone };
                let of_user = self.all.iter().filter(|other| other.uid == uid).count();
                if self.all.len() >= AWAITED_MAX || uid != 0 && of_user >= OF_A_USER_MAX {
                    return Begun::Crowded;
                }
                self.all.push(One { uid, ..one });
                Begun::Awaited
            }
            State::Other => Begun::Gone,
        }
    }

    /// Process `pid` has executed the file of exec `number`. Its older execs go: they were scripts, or programs that it no longer runs.
    /// Newer ones stay, because setsid(1), env(1) and shells execute another program right away.
    fn settle(&mut self, pid: u32, number: u64, image: Image) {
        self.all.retain(|one| one.pid != pid || one.number > number);
        if self.done.len() >= REMEMBERED_MAX {
            self.done.clear();
        }
        self.done.insert(pid, image);
    }

    /// The kernel has come to the loader of the program that process `pid` is about to execute: it will be done soon. Returns whether one is
    /// awaited.
    pub fn hurry(&mut self, pid: u32) -> bool {
        let now = Instant::now();
        let mut is_awaited = false;
        for one in self.all.iter_mut().filter(|one| one.pid == pid) {
            (one.pause, one.next) = (HURRIED, now + HURRIED);
            is_awaited = true;
        }
        is_awaited
    }

    /// How long until something is to be looked at; `None` where nothing is awaited.
    pub fn pause(&self) -> Option<Duration> {
        let next = self.all.iter().map(|one| one.next).min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// Hands the processes that have executed their program by now to `done`, whose each is, and when its exec was told.
    pub fn look(&mut self, done: &mut dyn FnMut(u32, u32, FileHandle, Moment)) {
        let now = Instant::now();
        let mut found = Vec::new();
        self.all.retain_mut(|one| {
            if one.next > now {
                return true;
            }
            match one.state(self.done.get(&one.pid)) {
                State::Done(image) => {
                    found.push((one.pid, one.uid, one.number, one.file.clone(), one.moment, image));
                    false
                }
                State::Other => false,
                State::NotYet => {
                    one.pause = (2 * one.pause).min(PAUSE_MAX);
                    one.next = now + one.pause;
                    now < one.until
                }
            }
        });
        for (pid, uid, number, file, moment, image) in found {
            self.settle(pid, number, image);
            done(pid, uid, file, moment);
        }
    }
}

impl One {
    /// `last` is what its process was last found to have executed.
    fn state(&self, last: Option<&Image>) -> State {
        look_at(self.pid, &self.file)
            .map_or(State::Other, |(stat, is_file)| self.state_of(&stat, is_file, last))
    }

    fn state_of(&self, stat: &ProcessStat, is_file: bool, last: Option<&Image>) -> State {
        let has_executed = stat.arguments_at != self.arguments_at
            || stat.arguments_at != self.parents_arguments_at && is_file;
        let image = Image { started_ticks: stat.started_ticks, arguments_at: stat.arguments_at };
        // The file is the process's while it is still being mapped, and its arguments cannot be read.
        if stat.environment_end == 0 {
            return State::NotYet;
        }
        match (has_executed, is_file) {
            (true, true) if last == Some(&image) => State::NotYet,
            (true, true) => State::Done(image),
            (true, false) => State::Other,
            (false, _) => State::NotYet,
        }
    }
}

/// What process `pid` is, and whether it runs `file`; `None` where it is gone.
fn look_at(pid: u32, file: &FileHandle) -> Option<(ProcessStat, bool)> {
    let stat = ProcessStat::of(pid).ok()?;
    let is_file = file.is_numbered_like(Path::new(&format!("/proc/{pid}/exe"))).ok()?;
    Some((stat, is_file))
}

#[cfg(test)]
mod tests;
