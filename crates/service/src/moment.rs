//! When the kernel told of an exec: by the clock, and by the processor time of the process.

use std::time::{Duration, Instant};

use prepage_sys::processor_time::processor_time;

/// A program that has had less processor time than this since its exec is still being loaded, and has opened nothing itself.
const LOADED: Duration = Duration::from_millis(2);

/// The moment at which an exec was told. Each exec has another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// By the clock.
    pub at: Instant,
    /// What the process had computed by then: before its program, where that was not executed yet.
    spent: Duration,
}

impl Moment {
    /// Now, for process `pid`, which has not executed its program yet.
    pub fn before_exec_of(pid: u32) -> Self {
        Self { at: Instant::now(), spent: processor_time(pid).unwrap_or_default() }
    }

    /// Now, for a process that may have run its program for long: all that it has computed counts as the program's.
    pub fn after_exec() -> Self {
        Self { at: Instant::now(), spent: Duration::ZERO }
    }

    /// Whether the program that process `pid` executes since this moment is still being loaded.
    pub fn is_loading(self, pid: u32) -> bool {
        processor_time(pid).is_some_and(|spent| spent.saturating_sub(self.spent) <= LOADED)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    use prepage_testing::wait_until;

    use super::*;

    #[test]
    fn what_a_process_has_computed_before_its_exec_says_nothing_of_its_program() {
        // On a busy machine a program may take longer to be loaded than it mostly does.
        wait_until(|| has_been_loading() == [true, false], "none is ever being loaded");
    }

    /// Whether a program that has just begun is said to be loading: by the moment before its exec, and where all that its process has computed counts.
    fn has_been_loading() -> [bool; 2] {
        let script = "i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done; echo; read line; exec cat";
        let mut child = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut to, mut from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        from.read_exact(&mut [0]).unwrap();
        let moment = Moment::before_exec_of(child.id());
        // It answers once cat(1) runs, which takes much less.
        to.write_all(b"\n\n").unwrap();
        from.read_exact(&mut [0]).unwrap();
        let is_loading = [moment, Moment::after_exec()].map(|moment| moment.is_loading(child.id()));
        // It computes until it has no more to copy.
        while moment.is_loading(child.id()) {
            to.write_all(&[0; 1024]).unwrap();
            from.read_exact(&mut [0; 1024]).unwrap();
        }
        drop(to);
        child.wait().unwrap();
        assert!(!moment.is_loading(child.id()), "it is gone");
        is_loading
    }
}
