//! Processor time, exact also of who runs.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Processor time that this process has had, in all its threads.
pub fn of_this_process() -> Duration {
    of_clock(ClockId::ProcessCPUTime)
}

/// Processor time that this thread has had.
pub fn of_this_thread() -> Duration {
    of_clock(ClockId::ThreadCPUTime)
}

fn of_clock(clock: ClockId) -> Duration {
    Duration::try_from(clock_gettime(clock)).unwrap_or_default()
}

/// Processor time that process `pid` has had in all its threads since it was forked: executing a program does not set it back. `None` where there is
/// no such process (clock_getcpuclockid(3)).
pub fn processor_time(pid: u32) -> Option<Duration> {
    // `MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED)` of include/linux/posix-timers_types.h. For 0 it is the clock of the calling process.
    let pid = libc::pid_t::try_from(pid).ok().filter(|pid| *pid > 0)?;
    let clock = !pid << 3 | 2;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec, which outlives the call.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    (result == 0).then(|| Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};
    use std::time::Instant;

    use super::*;

    /// Ends with the test, however that ends.
    struct Spinning(Child);

    impl Drop for Spinning {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn what_a_process_computes_is_seen_while_it_computes() {
        let child = Spinning(Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap());
        let pid = child.0.id();
        let until = Instant::now() + Duration::from_secs(60);
        let mut last = processor_time(pid).unwrap();
        // More often than the kernel's tick comes.
        let mut steps = 0;
        while steps < 100 && Instant::now() < until {
            std::thread::sleep(Duration::from_micros(200));
            let now = processor_time(pid).unwrap();
            assert!(now >= last);
            steps += u32::from(now > last && now - last < Duration::from_millis(1));
            last = now;
        }
        drop(child);
        assert_eq!(steps, 100);
        assert_eq!((processor_time(pid), processor_time(0), processor_time(u32::MAX)), (None, None, None));
    }
}
