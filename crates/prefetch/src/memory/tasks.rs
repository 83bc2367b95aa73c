//! How many tasks (processes and threads) the limits leave.

use std::fs;
use std::os::unix::fs::MetadataExt;

use rustix::process::{Resource, geteuid, getrlimit};

use prepage_sys::cgroup::{Group, Memberships};
use prepage_sys::processes::processes;

/// The share of them that a prefetch may have: 1 in this. A program that may not fork fails; a prefetch with fewer threads is
/// slower.
const SHARE: u64 = 4;
/// Tasks that are not shared: as many as a large program begins with.
const RESERVE: u64 = 32;
/// Tasks that are left below which nothing at all is begun beside a program: a script needs them.
const LEAST: u64 = 16;

/// Limits on a user's tasks below which these are counted: one call for each process of the machine. Above, there is room for a
/// prefetch many times over.
const COUNTED_MAX: u64 = 4096;

/// So many that are left are enough for any prefetch: they need not be counted.
const ENOUGH: u64 = RESERVE + SHARE * 64;

/// The user namespace in which root is limited by nothing (PROC_USER_INIT_INO of include/linux/proc_ns.h).
const FIRST_NAMESPACE: &str = "user:[4026531837]";

/// How many tasks are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tasks(u64);

impl Tasks {
    /// Those below the nearest limit of a control group, and below that of the user.
    pub(crate) fn left(memberships: &Memberships) -> Self {
        let of_groups = memberships.of("pids").filter_map(|group| left(&group));
        Self(of_groups.min().unwrap_or(u64::MAX).min(Self::left_to_user().0))
    }

    /// Those below the limit of the user. Where that is far away, one system call tells.
    pub(crate) fn left_to_user() -> Self {
        match getrlimit(Resource::Nproc).current {
            None => Self(u64::MAX),
            // Mostly: to ask who this is takes longer.
            Some(limit) if limit > COUNTED_MAX => Self(limit),
            Some(_) if is_unlimited() => Self(u64::MAX),
            Some(limit) => {
                // No more than all tasks of the machine are this user's.
                let at_least = limit.saturating_sub(rustix::system::sysinfo().procs.into());
                Self(if at_least >= ENOUGH { at_least } else { limit.saturating_sub(tasks_of_user()) })
            }
        }
    }

    /// So many that `threads` may be started.
    #[cfg(test)]
    pub(super) fn sparing(threads: u32) -> Self {
        Self(RESERVE + SHARE * u64::from(threads))
    }

    /// Whether the program may need each of them.
    pub(crate) fn are_few(self) -> bool {
        self.0 < LEAST
    }

    /// How many threads may be started.
    pub(crate) fn to_spare(self) -> u32 {
        u32::try_from(self.0.saturating_sub(RESERVE) / SHARE).unwrap_or(u32::MAX)
    }
}

/// Whether no limit on a user's tasks holds for this process.
fn is_unlimited() -> bool {
    geteuid().is_root()
        && fs::read_link("/proc/self/ns/user").is_ok_and(|own| own.as_os_str() == FIRST_NAMESPACE)
}

/// How many tasks this user has, as far as this process may see.
fn tasks_of_user() -> u64 {
    /// A directory has two names besides those that its subdirectories have for it: one of these is a thread's.
    const OWN_LINKS: u64 = 2;
    let uid = geteuid().as_raw();
    let tasks = processes().filter_map(|pid| fs::metadata(format!("/proc/{pid}/task")).ok());
    tasks.filter(|tasks| tasks.uid() == uid).map(|tasks| tasks.nlink().saturating_sub(OWN_LINKS)).sum()
}

fn left(group: &Group) -> Option<u64> {
    Some(group.number("pids.max")?.saturating_sub(group.number("pids.current")?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use prepage_sys::cgroup::Version;

    #[test]
    fn threads_of_this_user_are_counted() {
        const THREADS: u64 = 40;
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let stopped = std::sync::Arc::new(std::sync::Mutex::new(stopped));
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                let stopped = stopped.clone();
                std::thread::spawn(move || drop(stopped.lock().map(|stopped| stopped.recv())))
            })
            .collect();
        assert!(tasks_of_user() > THREADS);
        drop(stop);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }

    #[test]
    fn of_few_tasks_none_is_taken() {
        let tasks = [0, 10, 16, 36, 132, 1 << 40].map(Tasks);
        assert_eq!(tasks.map(Tasks::to_spare), [0, 0, 0, 1, 25, u32::MAX]);
        assert_eq!(tasks.map(Tasks::are_few), [true, true, false, false, false, false]);
    }

    #[test]
    fn what_is_left_is_told_where_there_is_a_limit() {
        let dir = tempfile::tempdir().unwrap();
        let group = Group { directory: dir.path().into(), version: Version::Two };
        let write = |file: &str, text: &str| std::fs::write(dir.path().join(file), text).unwrap();
        assert_eq!(left(&group), None);
        write("pids.current", "70\n");
        for (max, expected) in [("max\n", None), ("100\n", Some(30)), ("50\n", Some(0))] {
            write("pids.max", max);
            assert_eq!(left(&group), expected, "{max}");
        }
    }
}
