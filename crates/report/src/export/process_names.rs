//! What processes are called, for tools that show one name for each.

use prepage_core::Thread;
use rustc_hash::FxHashMap;

/// The name of each process: the last that its first thread had, since other threads have names of their own, and a process may have
/// become another program. Where the first thread took no fault, the last name of another.
#[derive(Debug, Default)]
pub struct ProcessNames(FxHashMap<u32, Named>);

#[derive(Debug, Default)]
struct Named {
    by_first_thread: bool,
    last_ns: u64,
    comm: String,
}

impl ProcessNames {
    /// Takes into account that `thread` took its last fault under this name at `last_ns`.
    pub fn note(&mut self, thread: &Thread, last_ns: u64) {
        let by_first_thread = thread.tid == thread.pid;
        let named = self.0.entry(thread.pid).or_default();
        if (by_first_thread, last_ns) >= (named.by_first_thread, named.last_ns) {
            *named = Named { by_first_thread, last_ns, comm: thread.comm.clone() };
        }
    }

    /// The name of process `pid`; empty where no thread of it was noted.
    pub fn of(&self, pid: u32) -> &str {
        self.0.get(&pid).map_or("", |named| &named.comm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_called_as_its_first_thread_was_at_last() {
        let mut names = ProcessNames::default();
        let mut note = |pid, tid, comm: &str, last_ns| {
            names.note(&Thread { pid, tid, comm: comm.into() }, last_ns);
        };
        note(7, 8, "worker", 90);
        note(7, 7, "ls", 50);
        note(7, 7, "sh", 10);
        note(9, 10, "a", 20);
        note(9, 11, "b", 30);
        assert_eq!([7, 9, 1].map(|pid| names.of(pid)), ["ls", "b", ""]);
    }
}
