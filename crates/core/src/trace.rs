//! A stored sequence of faults.

use serde::{Deserialize, Serialize};

use crate::fault::Fault;

/// Names an [`Object`] of its trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId(pub u32);

/// Names a [`Thread`] of its trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadIndex(pub u32);

/// Something mapped: a file, or a kind of anonymous memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Object {
    /// The file's path as the kernel names it, or `[heap]`, `[stack]`, `[anon]`, `[vdso]` for memory of no file.
    pub path: String,
    /// The file's device (`major << 20 | minor`) and inode; `None` for memory of no file.
    pub inode: Option<(u64, u64)>,
}

impl Object {
    /// Whether pages of this object are pages of a file.
    pub fn is_file(&self) -> bool {
        self.inode.is_some()
    }
}

/// A thread that faulted. A thread that changes its name (exec, prctl) appears once for each name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Thread {
    /// Process id.
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
    /// The thread's name when it faulted.
    pub comm: String,
}

/// What is known of the run a trace came from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TraceFacts {
    /// The command line recorded, each argument by itself.
    pub command: Vec<String>,
    /// Kernel release, as `uname -r` prints it.
    pub kernel: String,
    /// Wall-clock start, nanoseconds since 1970 (UTC).
    pub started_unix_ns: u64,
    /// How long the recording ran.
    pub duration_ns: u64,
    /// Records the kernel dropped because a ring was full. Each is a fault begun, a fault ended or a mapping.
    pub lost: u64,
    /// Minor and major faults with an address that the kernel counted, whether or not it found room to report
    /// them; `None` where it was not asked.
    pub counted: Option<(u64, u64)>,
    /// Minor and major faults of the same processes by getrusage, as far as they were waited for; `None` where the
    /// recorder did not start the program.
    pub rusage: Option<(u64, u64)>,
    /// How many programs were executed.
    pub execs: u64,
    /// Processes that were still running when the recording ended.
    pub survivors: u64,
    /// Whether faults that system calls took on the program's memory are missing, because the user may not see
    /// them.
    pub system_calls_hidden: bool,
    /// Faults recorded that the trace file had no room for.
    pub unsaved: u64,
}

impl TraceFacts {
    /// Faults the kernel took on the program's behalf without an address of it: the argument pages of an exec,
    /// MAP_POPULATE, mlock and other uses of get_user_pages. getrusage counts them and no record tells of them.
    ///
    /// Negative when processes that nobody waited for, and getrusage so leaves out, took more.
    pub fn inside_kernel(&self) -> Option<i64> {
        let sum = |(minor, major): (u64, u64)| (minor + major) as i64;
        Some(sum(self.rusage?) - sum(self.counted?))
    }
}

/// Faults in the order they began, with the tables their indices point into.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// The run.
    pub facts: TraceFacts,
    /// Indexed by [`ObjectId`].
    pub objects: Vec<Object>,
    /// Indexed by [`ThreadIndex`].
    pub threads: Vec<Thread>,
    /// Sorted by `start_ns`.
    pub faults: Vec<Fault>,
}

impl Trace {
    /// The object a fault touched.
    pub fn object(&self, fault: &Fault) -> Option<&Object> {
        fault.object.map(|id| &self.objects[id.0 as usize])
    }

    /// The thread that faulted.
    pub fn thread(&self, fault: &Fault) -> &Thread {
        &self.threads[fault.thread.0 as usize]
    }
}
