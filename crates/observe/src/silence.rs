//! When a start is over: nothing is heard of it for a while, although it could go on.
//!
//! A program that waits for a slow device, or for its turn on a busy processor, is not done: what it does next belongs to its start.

use std::collections::HashMap;
use std::time::Duration;

use prepage_sys::clock::now_ns;
use prepage_sys::process_stat::{ProcessStat, RUNS, SLEEPS, STOPPED, WAITS};

use crate::calls::{Peek, Wants, wants};
use crate::page_tables::tree::{Tree, threads};

/// From this length of a silence on it is known how far each thread was at its beginning. Most silences are shorter.
const NOTED_NS: u64 = 100_000_000;

/// How often it is looked at most what the threads do.
const LOOK_NS: u64 = 50_000_000;

/// So many times the length of a silence a thread may take that is stopped, or seems to wait for a file server. Some stay so for good: a job stopped in
/// a shell, a daemon that waits for the writer of a FIFO or reads the kernel's log.
const PATIENCE: u64 = 5;

/// The kernel reports processor time in steps of this length (`USER_HZ`).
const TICK_NS: u64 = 10_000_000;

/// The silence of a process and of what it has started.
#[derive(Debug)]
pub struct Silence {
    pid: u32,
    /// When it began, on the clock of [`now_ns`].
    since_ns: u64,
    /// How much processor time each thread had had by then, about.
    ticks: HashMap<u32, u64>,
    next_ns: u64,
}

impl Silence {
    /// That of process `pid`.
    pub fn of(pid: u32) -> Self {
        Self { pid, since_ns: 0, ticks: HashMap::new(), next_ns: 0 }
    }

    /// Whether nothing was heard since `since_ns`, on the clock of [`now_ns`], for longer than `length`, while no thread waits for a device
    /// (proc_pid_stat(5), state `D`), or has run for less and would run on. For five times `length`, no thread may wait for a file server or be
    /// stopped either.
    pub fn has_lasted(&mut self, since_ns: u64, length: Duration) -> bool {
        let (now, length_ns) = (now_ns(), length.as_nanos() as u64);
        let silent_ns = now.saturating_sub(since_ns);
        if silent_ns >= NOTED_NS && since_ns != self.since_ns {
            self.since_ns = since_ns;
            self.ticks = self.threads().map(|(thread, stat)| (thread, ticks(&stat))).collect();
        }
        if silent_ns <= length_ns || now < self.next_ns {
            return false;
        }
        self.next_ns = now + LOOK_NS;
        let ran_ns = |thread, stat: &ProcessStat| {
            TICK_NS * ticks(stat).saturating_sub(self.ticks.get(&thread).copied().unwrap_or_default())
        };
        // What ran before it was noted is not known.
        let enough_ns = length_ns.saturating_sub(2 * NOTED_NS);
        let is_patient = silent_ns <= PATIENCE * length_ns;
        let goes_on = |(thread, stat): (u32, ProcessStat)| match stat.state {
            WAITS => true,
            STOPPED => is_patient,
            SLEEPS => is_patient && waits_for_a_server(thread),
            RUNS => ran_ns(thread, &stat) < enough_ns,
            _ => false,
        };
        !self.threads().any(goes_on)
    }

    fn threads(&self) -> impl Iterator<Item = (u32, ProcessStat)> + use<> {
        let pids: Vec<u32> = Tree::of(self.pid).look().iter().map(|&(pid, _)| pid).collect();
        let all = pids.into_iter().flat_map(|pid| threads(pid).map(move |thread| (pid, thread)));
        all.filter_map(|(pid, thread)| Some((thread, ProcessStat::of_thread(pid, thread).ok()?)))
    }
}

/// Whether `thread` sleeps in a call that no disk keeps waiting so, but a file system in user space does (FUSE), and some special files do: it looks
/// up a name, or lists or reads a file. Where Yama keeps this process from asking, it counts as not waiting.
fn waits_for_a_server(thread: u32) -> bool {
    let peek = Peek::at(thread);
    match peek.sleeping_in().and_then(|(number, args)| wants(number, &args)) {
        Some(Wants::Name { .. }) => true,
        Some(Wants::Read { fd, .. } | Wants::List { fd }) => peek.is_of_a_file_system(fd),
        None => false,
    }
}

fn ticks(stat: &ProcessStat) -> u64 {
    stat.user_ticks + stat.system_ticks
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// That nobody answers for good cannot be told from what a server answers late.
    #[test]
    fn who_waits_for_a_server_or_is_stopped_is_waited_for_but_not_for_good() {
        const LENGTH: Duration = Duration::from_secs(5);
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::from(0o600)).unwrap();
        let mut opens = Command::new("cat").arg(&pipe).spawn().unwrap();
        let pid = opens.id();
        let is = |state| ProcessStat::of_thread(pid, pid).unwrap().state == state;
        let wait_until = |is_so: &dyn Fn() -> bool| {
            while !is_so() {
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        let has_lasted = |lengths: u64| {
            let since_ns = now_ns().saturating_sub(lengths * LENGTH.as_nanos() as u64);
            Silence::of(pid).has_lasted(since_ns, LENGTH)
        };
        wait_until(&|| is(SLEEPS) && waits_for_a_server(pid));
        let asleep = [has_lasted(2), has_lasted(6)];
        rustix::process::kill_process(
            rustix::process::Pid::from_child(&opens),
            rustix::process::Signal::STOP,
        )
        .unwrap();
        wait_until(&|| is(STOPPED));
        let stopped = [has_lasted(2), has_lasted(6)];
        opens.kill().unwrap();
        opens.wait().unwrap();
        assert_eq!((asleep, stopped), ([false, true], [false, true]));
    }
}
