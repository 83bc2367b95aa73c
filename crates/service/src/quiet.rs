//! When what a boot or a session needed is over: the machine has been quiet for a while and its manager waits for nothing more, or the time is up.

use std::io::{ErrorKind, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use prepage_core::idle::{Busy, Reading};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Whoever asks systemd waits for so long: a slow disk has to read what asks.
const ANSWER_S: i64 = 5;
/// Along `PATH`, where neither is there, a directory may lie on a server that does not answer.
const SYSTEMCTL: [&str; 2] = ["/usr/bin/systemctl", "/bin/systemctl"];

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The machine is quiet.
    Quiet,
    /// The machine's manager has started all there is, and something keeps the machine busy: the time is up.
    Busy,
    /// The time is up, and what comes later may belong to it.
    CutShort,
}

/// Waits for a quiet machine; looks at one reading a second.
#[derive(Clone, Copy, Debug)]
pub struct Quiet {
    wanted: u32,
    at_most: Duration,
    seconds: u32,
}

impl Quiet {
    /// After so many quiet seconds in a row, and so long after the beginning in any case.
    pub fn new(wanted: u32, at_most: Duration) -> Self {
        Self { wanted, at_most, seconds: 0 }
    }

    /// What the machine did in the last second, `elapsed` after the beginning, and whether this process is at work itself. Before the end it is asked whether
    /// the boot `may_go_on`, and the machine only waits; the answer is `None` where nobody knows.
    pub fn see(
        &mut self,
        reading: Option<Reading>,
        is_at_work: bool,
        elapsed: Duration,
        may_go_on: &mut dyn FnMut() -> Option<bool>,
    ) -> Option<End> {
        let busy = reading.map(|reading| reading.busy_at_work());
        self.seconds = if is_at_work || busy != Some(None) { 0 } else { self.seconds + 1 };
        let (is_quiet, is_time_up) = (self.seconds >= self.wanted.max(1), elapsed >= self.at_most);
        if !is_quiet && !is_time_up {
            return None;
        }
        match may_go_on() {
            Some(true) if !is_time_up => {
                self.seconds = 0;
                None
            }
            Some(true) => Some(End::CutShort),
            _ if is_quiet => Some(End::Quiet),
            Some(false) => Some(End::Busy),
            None => Some(End::CutShort),
        }
    }
}

/// systemd, which knows whether it has started all that belongs to the boot.
#[derive(Debug, Default)]
pub struct Manager {
    /// Who asked last. It ends once it was killed, or where it waits for a disk, once that answers.
    asker: Option<Child>,
}

impl Manager {
    /// Whether the boot may go on (`is-system-running` of systemctl(1)), as it also may after a shell for emergencies, and where systemd does not
    /// answer in time; `None` where there is no systemd. `see_asker` is shown the number of the process that asks: what that opens nobody else needs.
    pub fn may_go_on(&mut self, see_asker: &mut dyn FnMut(u32)) -> Option<bool> {
        let systemctl = SYSTEMCTL.into_iter().find(|path| Path::new(path).exists());
        self.ask(Command::new(systemctl.unwrap_or("systemctl")).arg("is-system-running"), see_asker)
    }

    fn ask(&mut self, command: &mut Command, see_asker: &mut dyn FnMut(u32)) -> Option<bool> {
        if self.asker.as_mut().is_some_and(|asker| matches!(asker.try_wait(), Ok(None))) {
            return Some(true);
        }
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let asker = match command.spawn() {
            Ok(asker) => self.asker.insert(asker),
            Err(error) => return (error.kind() != ErrorKind::NotFound).then_some(true),
        };
        see_asker(asker.id());
        let mut answer = asker.stdout.take()?;
        let most = Timespec { tv_sec: ANSWER_S, tv_nsec: 0 };
        let has_answered =
            poll(&mut [PollFd::new(&answer, PollFlags::IN)], Some(&most)).is_ok_and(|ready| ready > 0);
        let mut text = [0; 64];
        let len = if has_answered { answer.read(&mut text).unwrap_or(0) } else { 0 };
        let _ = asker.kill();
        match text[..len].trim_ascii() {
            _ if !has_answered => Some(true),
            b"initializing" | b"starting" | b"maintenance" | b"stopping" | b"unknown" => Some(true),
            b"running" | b"degraded" => Some(false),
            _ => None,
        }
    }
}

/// Whether memory was so short in the last second, with `available_bytes` left at its end (MemAvailable), that pages may have left it that were used a
/// moment before.
pub fn is_short_of_memory(reading: Reading, available_bytes: u64) -> bool {
    let busy = Reading { is_on_battery: false, free_bytes: available_bytes, ..reading }.busy();
    busy == Some(Busy::Memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn reading(disk_busy: f64) -> Option<Reading> {
        let memory = Reading { free_bytes: GIB, total_bytes: 2 * GIB, ..Reading::default() };
        Some(Reading { disk_busy, is_on_battery: true, ..memory })
    }

    #[test]
    fn quiet_seconds_count_in_a_row_and_those_of_ones_own_work_do_not() {
        let mut quiet = Quiet::new(3, Duration::from_secs(100));
        let mut see = |disk_busy, is_at_work, at| {
            quiet.see(reading(disk_busy), is_at_work, Duration::from_secs(at), &mut || None)
        };
        assert_eq!([see(0.0, false, 1), see(0.0, false, 2), see(0.5, false, 3)], [None; 3]);
        assert_eq!([see(0.0, false, 4), see(0.0, true, 5), see(0.0, false, 6)], [None; 3]);
        assert_eq!([see(0.0, false, 7), see(0.0, false, 8)], [None, Some(End::Quiet)]);
    }

    /// The page cache takes what nobody else does, on any machine that has run for a while.
    #[test]
    fn a_machine_whose_memory_is_full_of_files_is_quiet_and_one_that_waits_for_memory_is_not() {
        let full = Reading { free_bytes: GIB / 100, total_bytes: GIB, ..Reading::default() };
        let waits = Reading { memory_stalled: Some(0.1), ..full };
        let mut quiet = Quiet::new(1, Duration::from_secs(10));
        let mut see = |reading| quiet.see(Some(reading), false, Duration::ZERO, &mut || None);
        assert_eq!([see(waits), see(full)], [None, Some(End::Quiet)]);
        let is_short = |reading, bytes| is_short_of_memory(reading, bytes);
        assert_eq!(
            [is_short(full, GIB / 2), is_short(full, GIB / 100), is_short(waits, GIB / 2)],
            [false, true, true]
        );
    }

    /// As for the passphrase of a disk, or for a network.
    #[test]
    fn a_boot_that_pauses_goes_on_until_all_is_started_and_no_longer_than_the_time_there_is() {
        let mut quiet = Quiet::new(2, Duration::from_secs(6));
        let (mut asked, mut ends) = (0, Vec::new());
        for at in 1..8 {
            let mut may_go_on = || {
                asked += 1;
                Some(true)
            };
            ends.push(quiet.see(reading(0.0), false, Duration::from_secs(at), &mut may_go_on));
        }
        assert_eq!(ends[..5], [None; 5]);
        assert_eq!(ends[5..], [Some(End::CutShort); 2]);
        assert_eq!(asked, 4, "whenever it is quiet, and when the time is up");
        let mut quiet = Quiet::new(2, Duration::from_secs(6));
        let mut see = |may_go_on| quiet.see(reading(0.0), false, Duration::ZERO, &mut || may_go_on);
        assert_eq!([see(Some(true)), see(Some(true)), see(Some(false))], [None; 3], "it begins anew");
        assert_eq!(see(Some(false)), Some(End::Quiet));
    }

    /// As one with a database that is asked all the time.
    #[test]
    fn a_machine_that_never_rests_is_not_waited_for() {
        let ended = [Some(false), Some(true), None].map(|may_go_on| {
            let mut quiet = Quiet::new(3, Duration::from_secs(10));
            let mut see = |at| quiet.see(reading(1.0), true, Duration::from_secs(at), &mut || may_go_on);
            assert_eq!(see(9), None);
            see(10)
        });
        assert_eq!(ended, [End::Busy, End::CutShort, End::CutShort].map(Some));
        let mut quiet = Quiet::new(3, Duration::from_secs(10));
        let nothing = quiet.see(None, false, Duration::from_secs(9), &mut || None);
        assert_eq!(nothing, None, "nothing is known yet");
    }

    #[test]
    fn whether_the_boot_may_go_on_is_what_the_manager_says_in_time() {
        let answer = |script: &str| {
            let mut asker = None;
            let mut shell = Command::new("sh");
            let answer = Manager::default().ask(shell.args(["-c", script]), &mut |pid| asker = Some(pid));
            assert!(asker.is_some());
            answer
        };
        for (said, may_go_on) in [
            ("initializing", Some(true)),
            ("starting", Some(true)),
            ("maintenance", Some(true)),
            ("stopping", Some(true)),
            ("unknown", Some(true)),
            ("running", Some(false)),
            ("degraded", Some(false)),
            ("offline", None),
            ("", None),
        ] {
            // systemctl(1) fails with all but `running`.
            assert_eq!(answer(&format!("echo {said}; exit 1")), may_go_on, "{said}");
        }
        assert_eq!(answer("exec sleep 60"), Some(true));
        let absent = Manager::default().ask(&mut Command::new("/no/such/program"), &mut |_| unreachable!());
        assert_eq!(absent, None);
    }
}
