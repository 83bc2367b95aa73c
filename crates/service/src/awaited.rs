//! Execs that were told before they were done: the file is open, and the process still runs what it ran before.
//!
//! A program that is found once its arguments lie elsewhere, or its executable is the file, is done. Until then it is looked at
//! again and again, at growing intervals. What is waited for is bounded; looking waits for nothing.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use prepage_sys::file_handle::FileHandle;
use prepage_sys::process_stat::ProcessStat;

/// The first look comes this long after the exec was told, the next ones at twice the time each.
const PAUSE_MIN: Duration = Duration::from_micros(100);
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// An exec that takes longer than this waits for a device or a server that gives nobody a chance.
const WAIT_MAX: Duration = Duration::from_secs(3);
/// More than machines start while they wait for their disks; few enough that looking at all of them costs little.
const AWAITED_MAX: usize = 256;
/// Files that one process is about to execute: a script, its interpreter, what that is itself interpreted by.
const OF_A_PROCESS_MAX: usize = 4;

/// Execs that are not done.
#[derive(Debug, Default)]
pub struct Awaited {
    all: Vec<One>,
}

#[derive(Debug)]
struct One {
    pid: u32,
    file: FileHandle,
    /// Where the arguments of the process's parent lie: a process that was forked and executes nothing has them there too.
    parents_arguments_at: u64,
    /// Where its own lay when it was looked at first.
    arguments_at: u64,
    pause: Duration,
    next: Instant,
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
    Done,
    /// The process executes something else, as that of a script does, or is gone.
    Other,
    NotYet,
}

impl Awaited {
    /// Process `pid` is about to execute `file`. Returns what is to be said of that now; of what is not done yet, [`Self::look`]
    /// tells.
    pub fn begin(&mut self, pid: u32, file: FileHandle) -> Begun {
        let Ok(stat) = ProcessStat::of(pid) else { return Begun::Gone };
        let parents = ProcessStat::of(stat.parent).map_or(0, |parent| parent.arguments_at);
        let now = Instant::now();
        let one = One {
            pid,
            file,
            parents_arguments_at: parents,
            arguments_at: stat.arguments_at,
            pause: PAUSE_MIN,
            next: now + PAUSE_MIN,
            until: now + WAIT_MAX,
        };
        match one.state() {
            State::Done => {
                self.forget(pid);
                Begun::Done
            }
            State::NotYet => {
                // One that tries many files has executed none of those before.
                while self.all.iter().filter(|other| other.pid == pid).count() >= OF_A_PROCESS_MAX {
                    let oldest = self.all.iter().position(|other| other.pid == pid).expect("there are some");
                    self.all.remove(oldest);
                }
                if self.all.len() >= AWAITED_MAX {
                    return Begun::Crowded;
                }
                self.all.push(one);
                Begun::Awaited
            }
            State::Other => Begun::Gone,
        }
    }

    /// What else process `pid` was said to execute were the script and the loader of its program.
    fn forget(&mut self, pid: u32) {
        self.all.retain(|one| one.pid != pid);
    }

    /// The kernel has come to the loader of the program that process `pid` is about to execute: it will be done soon.
    pub fn hurry(&mut self, pid: u32) {
        let now = Instant::now();
        for one in self.all.iter_mut().filter(|one| one.pid == pid) {
            (one.pause, one.next) = (PAUSE_MIN / 2, now + PAUSE_MIN / 2);
        }
    }

    /// How long until something is to be looked at; `None` where nothing is awaited.
    pub fn pause(&self) -> Option<Duration> {
        let next = self.all.iter().map(|one| one.next).min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// Hands the processes that have executed their program by now to `done`.
    pub fn look(&mut self, done: &mut dyn FnMut(u32, FileHandle)) {
        let now = Instant::now();
        let mut found = Vec::new();
        self.all.retain_mut(|one| {
            if one.next > now {
                return true;
            }
            match one.state() {
                State::Done => {
                    found.push((one.pid, one.file.clone()));
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
        for (pid, file) in found {
            self.forget(pid);
            done(pid, file);
        }
    }
}

impl One {
    fn state(&self) -> State {
        let Ok(stat) = ProcessStat::of(self.pid) else { return State::Other };
        let executable = PathBuf::from(format!("/proc/{}/exe", self.pid));
        let Ok(is_file) = self.file.is_numbered_like(&executable) else { return State::Other };
        let has_executed = stat.arguments_at != self.arguments_at
            || stat.arguments_at != self.parents_arguments_at && is_file;
        // The file is the process's while it is still being mapped, and its arguments cannot be read.
        if stat.environment_end == 0 {
            return State::NotYet;
        }
        match (has_executed, is_file) {
            (true, true) => State::Done,
            (true, false) => State::Other,
            (false, _) => State::NotYet,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn an_exec_is_done_when_the_process_runs_the_file_and_a_script_never_is() {
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("script");
        std::fs::write(&script, "").unwrap();
        let sh = std::fs::canonicalize("/bin/sh").unwrap();
        let mut child = Command::new("sh")
            .args(["-c", "echo; read line; exec sleep 60"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let mut awaited = Awaited::default();
        assert_eq!(awaited.begin(child.id(), FileHandle::of(&script).unwrap()), Begun::Awaited);
        assert!(awaited.pause().is_some());
        assert_eq!(awaited.begin(child.id(), FileHandle::of(&sh).unwrap()), Begun::Done);
        assert_eq!(awaited.pause(), None, "the script is what the shell reads");
        let sleep = FileHandle::of(&std::fs::canonicalize("/bin/sleep").unwrap()).unwrap();
        assert_eq!(awaited.begin(child.id(), sleep.clone()), Begun::Awaited);
        for _ in 0..10 {
            assert_eq!(awaited.begin(child.id(), FileHandle::of(&script).unwrap()), Begun::Awaited);
        }
        assert_eq!(awaited.all.len(), OF_A_PROCESS_MAX);
        assert_eq!(awaited.begin(child.id(), sleep.clone()), Begun::Awaited);
        drop(child.stdin.take());
        let mut found = None;
        while found.is_none() && awaited.pause().is_some() {
            std::thread::sleep(awaited.pause().unwrap());
            awaited.look(&mut |pid, file| found = Some((pid, file)));
        }
        assert_eq!(found, Some((child.id(), sleep.clone())));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(awaited.begin(child.id(), sleep), Begun::Gone);
    }
}
