//! What /proc/PID/stat counts of a process.

use std::ffi::CStr;
use std::io;
use std::io::Write;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};

/// Some fifty numbers of at most twenty digits, and a name of at most 64 bytes.
const LINE_BYTES_MAX: usize = 1280;

/// As much of a program's name as the kernel keeps (`TASK_COMM_LEN`, without the zero at the end).
pub const NAME_BYTES_MAX: usize = 15;

/// Counts of a process, from its start until now (proc_pid_stat(5)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessStat {
    /// The beginning of the name of the file that it was told to execute, of a script its own and not that of what runs it; until it calls
    /// itself something else. Zeros follow.
    pub name: [u8; NAME_BYTES_MAX],
    /// What it does, as a letter: [`RUNS`], [`WAITS`] or another.
    pub state: u8,
    /// The process that started it, or took it over.
    pub parent: u32,
    /// Faults without a read from a device.
    pub minor_faults: u64,
    /// Faults that read from a device.
    pub major_faults: u64,
    /// Faults that read from a device, of children that were waited for.
    pub children_major_faults: u64,
    /// Time in its own code, in clock ticks (`sysconf(_SC_CLK_TCK)`).
    pub user_ticks: u64,
    /// Time in the kernel, in clock ticks.
    pub system_ticks: u64,
    /// Time in their own code, in clock ticks, of children that were waited for.
    pub children_user_ticks: u64,
    /// Time in the kernel, in clock ticks, of children that were waited for.
    pub children_system_ticks: u64,
    /// When it was started, in clock ticks since the machine was.
    pub started_ticks: u64,
    /// Where its arguments lie in its address space, which an exec changes; 0 where this is not this user's to see.
    pub arguments_at: u64,
    /// Where they end.
    pub arguments_end: u64,
    /// Where its environment ends; 0 while the kernel still sets up a program, and where this is not this user's to see.
    pub environment_end: u64,
}

/// It runs, or would if it had a processor.
pub const RUNS: u8 = b'R';
/// It sleeps in a way that no signal interrupts, as whoever waits for a device does.
pub const WAITS: u8 = b'D';
/// It sleeps until something happens, or a signal comes.
pub const SLEEPS: u8 = b'S';
/// A signal has stopped it, until another one lets it go on.
pub const STOPPED: u8 = b'T';
/// It has ended: its end is still to be heard of, or is being.
pub const ENDED: [u8; 2] = [b'Z', b'X'];

impl ProcessStat {
    /// The counts of process `pid`.
    ///
    /// # Errors
    /// When there is no such process, or its line is not understood.
    pub fn of(pid: u32) -> io::Result<Self> {
        Self::read(&format!("/proc/{pid}/stat"))
    }

    /// The counts of thread `tid` of process `pid`.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub fn of_thread(pid: u32, tid: u32) -> io::Result<Self> {
        Self::read(&format!("/proc/{pid}/task/{tid}/stat"))
    }

    /// The counts of the calling thread.
    ///
    /// # Errors
    /// When /proc is not mounted.
    pub fn of_this_thread() -> io::Result<Self> {
        Self::read("/proc/thread-self/stat")
    }

    fn read(path: &str) -> io::Result<Self> {
        // One line, which the kernel gives as a whole.
        let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mut stat = [0; LINE_BYTES_MAX];
        let read = rustix::io::read(&file, &mut stat)?;
        let invalid = || io::Error::new(io::ErrorKind::InvalidData, format!("{path} has an unknown form"));
        Self::parse(&stat[..read]).ok_or_else(invalid)
    }

    fn parse(stat: &[u8]) -> Option<Self> {
        let fields: Vec<&str> = fields(stat)?.collect();
        let field = |number: usize| fields.get(number - 3)?.parse().ok();
        let name = stat.get(stat.iter().position(|&byte| byte == b'(')? + 1..)?;
        let name = &name[..name.iter().rposition(|&byte| byte == b')')?];
        Some(Self {
            name: std::array::from_fn(|at| name.get(at).copied().unwrap_or(0)),
            state: *fields.first()?.as_bytes().first()?,
            parent: field(4)? as u32,
            minor_faults: field(10)?,
            major_faults: field(12)?,
            children_major_faults: field(13)?,
            user_ticks: field(14)?,
            system_ticks: field(15)?,
            children_user_ticks: field(16)?,
            children_system_ticks: field(17)?,
            started_ticks: field(22)?,
            arguments_at: field(48)?,
            arguments_end: field(49)?,
            environment_end: field(51)?,
        })
    }
}

/// On which CPUs threads of this process run. The file of the thread that was asked for last stays open: to open it takes twice as long as to read it.
#[derive(Debug, Default)]
pub struct CpuOfThread {
    last: Option<(u32, OwnedFd)>,
}

impl CpuOfThread {
    /// The CPU on which thread `tid` ran last. Allocates nothing: whoever waits for the caller may be a signal handler that interrupted the
    /// allocator.
    pub fn of(&mut self, tid: u32) -> Option<usize> {
        // The file of a thread that has ended cannot be read, whoever has its number now.
        let known = self.last.as_ref().filter(|(last, _)| *last == tid);
        if let Some(cpu) = known.and_then(|(_, file)| Self::read(file)) {
            return Some(cpu);
        }
        let mut path = [0; 48];
        write!(&mut path[..], "/proc/self/task/{tid}/stat\0").ok()?;
        let path = CStr::from_bytes_until_nul(&path).ok()?;
        let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let cpu = Self::read(&file);
        self.last = Some((tid, file));
        cpu
    }

    fn read(file: &OwnedFd) -> Option<usize> {
        let mut text = [0; LINE_BYTES_MAX];
        let read = rustix::io::pread(file, &mut text, 0).ok()?;
        fields(&text[..read])?.nth(39 - 3)?.parse().ok()
    }
}

/// The fields of a process's line from the third on. The name in parentheses may hold anything, so fields are counted from its end.
fn fields(stat: &[u8]) -> Option<std::str::SplitAsciiWhitespace<'_>> {
    let behind = stat.iter().rposition(|&byte| byte == b')')? + 1;
    Some(std::str::from_utf8(&stat[behind..]).ok()?.split_ascii_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_says_on_which_cpu_it_ran() {
        let number = || rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let mut cpus = CpuOfThread::default();
        let allowed = rustix::thread::sched_getaffinity(None).unwrap();
        let first_two = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).take(2);
        for cpu in first_two {
            // The second time the file is open.
            let here = || {
                let mut one = rustix::thread::CpuSet::new();
                one.set(cpu);
                rustix::thread::sched_setaffinity(None, &one).unwrap();
                (cpus.of(number()), cpus.of(number()))
            };
            let told = std::thread::scope(|scope| scope.spawn(here).join().unwrap());
            assert_eq!(told, (Some(cpu), Some(cpu)));
        }
        // The file that is open is of a thread that has ended.
        let ended = cpus.last.as_ref().unwrap().0;
        // Who joins a thread may go on before the kernel has forgotten it.
        while cpus.of(ended).is_some() {
            std::thread::yield_now();
        }
        assert_eq!(cpus.of(u32::MAX), None);
    }

    #[test]
    fn a_name_may_hold_anything() {
        let stat = "7 (a) b (c)) R 1 2 3 4 5 6 70 8 90 10 11 12 13 14 15 16 17 18 1900 20".to_owned()
            + &" 0".repeat(24)
            + " 140000 150000 160000 170000 0";
        let expected = ProcessStat {
            name: *b"a) b (c)\0\0\0\0\0\0\0",
            state: RUNS,
            minor_faults: 70,
            major_faults: 90,
            children_major_faults: 10,
            user_ticks: 11,
            system_ticks: 12,
            children_user_ticks: 13,
            children_system_ticks: 14,
            started_ticks: 1900,
            parent: 1,
            arguments_at: 140_000,
            arguments_end: 150_000,
            environment_end: 170_000,
        };
        assert_eq!(ProcessStat::parse(stat.as_bytes()), Some(expected));
        let asleep = stat.replace(") R ", ") D ");
        assert_eq!(ProcessStat::parse(asleep.as_bytes()), Some(ProcessStat { state: WAITS, ..expected }));
        assert_eq!(ProcessStat::parse(b"7 (a) R 1"), None);
        assert!(ProcessStat::of(std::process::id()).expect("this process").minor_faults > 0);
    }
}
