//! A stored sequence of faults.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use crate::fault::Fault;
use crate::stack::{BuildId, Stack};

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
    /// The build-id, of ELF files whose code or data faulted or ran and that could be read.
    pub build_id: Option<BuildId>,
    /// The file's length when the trace ended, where it could be asked for.
    pub size_bytes: Option<u64>,
}

impl Object {
    /// An object of no known build-id.
    pub fn new(path: impl Into<String>, inode: Option<(u64, u64)>) -> Self {
        Self { path: path.into(), inode, build_id: None, size_bytes: None }
    }

    /// Whether pages of this object are pages of a file.
    pub fn is_file(&self) -> bool {
        self.inode.is_some()
    }
}

/// A thread that faulted. A thread that changes its name (exec, prctl) appears once for each name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
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
    /// Whether the recording ended before the command, or the last of the processes that it was of: after a set time, by a signal, or with its recorder.
    pub ended_early: bool,
    /// Programs executed that the kernel lets nobody observe who observes their process: set-user-ID and set-group-ID ones,
    /// those with file capabilities, and those that the user may not read.
    pub unobserved_programs: u64,
    /// Whether faults that system calls took on the program's memory are missing, because the user may not see
    /// them.
    pub system_calls_hidden: bool,
    /// Faults recorded that the trace file had no room for.
    pub unsaved: u64,
    /// Faults of a VM in user space for which its own record had no room.
    pub unrecorded: u64,
    /// Processes that were running already and were recorded by their id.
    pub pids: Vec<u32>,
    /// Of these, those whose mappings could not be read: what was mapped before the recording is unknown.
    pub unread_maps: Vec<u32>,
    /// Mappings of files that the recorder no longer kept apart, for it had met too many different ones.
    pub unnamed_mappings: u64,
    /// Files whose size and build-id are not known because their file systems did not answer when the trace ended.
    pub unanswered_files: u64,
    /// Faults of processes outside the recorder's PID namespace, which are no part of the trace.
    pub outside_faults: u64,
    /// Children that the processes of `pids` were forking while they were attached to, and of which no fault was seen until the end, though they had
    /// some and still run.
    pub unseen_children: u64,
    /// Beginnings and ends of faults whose times are not believed: the kernel gave these, or others near them, the time of another observer's clock. Their
    /// faults have no costs, begin where the fault before them ended, and may bear the number of their process in the other's PID namespace.
    pub borrowed_times: u64,
    /// Processors that were online and not watched: perf was told to leave them out, or they came online while the
    /// recording ran.
    pub unwatched_cpus: u64,
    /// Whether every process of the machine was recorded.
    pub system_wide: bool,
    /// `lost` by the second of the recording in which the loss was found: second, records. A second without a loss is
    /// left out.
    pub lost_by_second: Vec<(u64, u64)>,
    /// What the observation itself adds to a fault, on average: measured at the start, and taken off every cost;
    /// `None` where it was not measured.
    pub probe_cost_ns: Option<u64>,
    /// What the observation adds to a fault altogether: that much longer the program ran for each.
    pub probe_total_ns: Option<u64>,
    /// The frequency of the processor's time stamp counter, by which costs are given in cycles too; `None` where the
    /// kernel does not tell.
    pub tsc_hz: Option<u64>,
    /// Whether the recorder was killed before the end, or the file is not copied to its end: the facts are those of the last part of the file that was
    /// complete, and what came after is missing.
    pub cut_short: bool,
    /// Which faults were asked for, as the command line had it (`--file /a`, `--address 1000-2000`, `--comm gcc`). Empty
    /// for all.
    pub filters: Vec<String>,
    /// Faults that were seen and are no part of the trace, because a filter excluded them.
    pub filtered_out: u64,
    /// What became of files' pages, where it was asked for (root).
    pub page_cache: Option<PageCacheFacts>,
    /// Where touches were recorded exactly: what hid some nevertheless.
    pub exact: Option<ExactFacts>,
    /// Where it comes from, when another tool recorded it.
    pub imported: Option<ImportFacts>,
}

/// Where a trace comes from that another tool recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ImportFacts {
    /// The tool and its version.
    pub tool: String,
    /// The file it wrote.
    pub file: String,
    /// The events that were recorded.
    pub events: Vec<String>,
    /// Whether faults that read nothing from disk are missing, because the others alone were recorded.
    pub minor_missing: bool,
    /// Whether faults that read from disk are missing, because the others alone were recorded.
    pub major_missing: bool,
    /// Whether it is not known which faults read from disk: they have the classes of others, or are unseen.
    pub disk_unknown: bool,
    /// Whether the faults of the program's own instructions are missing, because the kernel's alone were recorded.
    pub program_hidden: bool,
    /// Whether what was recorded ran already, as with `-a` and `-p`, or the command was not recorded from its start.
    pub of_running: bool,
    /// Whether the faults of what was started meanwhile are missing, because the command or the processes alone were recorded.
    pub descendants_hidden: bool,
    /// Whether no fault has a cost, because only beginnings or only ends of faults were recorded.
    pub costs_unknown: bool,
    /// Whether only the latest records were kept, in a ring that was written over.
    pub overwritten: bool,
    /// Options of the tool's that limited what it recorded, to a time or to a control group: `-D 100`.
    pub limits: Vec<String>,
    /// Which faults were recorded, where it was not every one.
    pub sampled: Option<String>,
}

/// Pages whose touches an exact recording may not show: where a fault nearby mapped them, they have none of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExactFacts {
    /// Path of each file that other programs kept in memory when a recording with dropped caches began, and how many of its
    /// pages.
    pub resident_pages: Vec<(String, u64)>,
    /// Where fault-around was switched off instead: by path, the pages of mappings that it could not be switched off for, and
    /// those that were mapped before it was. Each first page, and one past the last.
    pub unarmed_pages: Vec<(String, Vec<(u64, u64)>)>,
    /// Programs that it was not switched off for, and why, a line each.
    pub unarmed_programs: Vec<String>,
    /// Records of mappings and execs for which the kernel had no room: these may have been armed late.
    pub lost_records: u64,
}

impl ExactFacts {
    /// What concerns these objects.
    pub fn of(&self, objects: &[Object]) -> Self {
        let paths: HashSet<&str> = objects.iter().map(|object| object.path.as_str()).collect();
        let is_of_object = |path: &str| paths.contains(path);
        let mut exact = self.clone();
        exact.resident_pages.retain(|(path, _)| is_of_object(path));
        exact.unarmed_pages.retain(|(path, _)| is_of_object(path));
        exact
    }
}

/// What became of files' pages during a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PageCacheFacts {
    /// By file, those with most pages read first.
    pub files: Vec<FilePages>,
    /// Who waited for whose read, the longest waits first.
    pub waits: Vec<ReadWait>,
}

/// What became of one file's pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FilePages {
    /// The file's path, or the first of several; empty where only its inode is known.
    pub path: String,
    /// Its other paths by which it was mapped, some of them; or those of files that the kernel's events do not tell from it.
    pub other_paths: Vec<String>,
    /// Its device, `major << 20 | minor`.
    pub device: u64,
    /// Its inode.
    pub inode: u64,
    /// Pages that were read into memory for the recorded threads, read-ahead included; not those made by writing.
    pub pages_read_in: u64,
    /// Pages that they asked for by read(), pread() and the like, each counted as often as it was asked for.
    pub pages_by_read: u64,
    /// Of `pages_read_in`, those that no recorded thread faulted on, had mapped by a fault nearby or asked for by
    /// read().
    pub pages_untouched: u64,
    /// Of `pages_read_in`, those that a fault nearby mapped and of which no more is known: they may have been touched
    /// or not.
    pub pages_mapped_nearby: u64,
    /// Of `pages_read_in`, those of which the use is not known, because there were too many pages to watch them all.
    pub pages_forgotten: u64,
    /// Faults that had to wait until another's read was complete.
    pub read_waits: u64,
    /// How long those took together.
    pub read_wait_ns: u64,
}

impl FilePages {
    /// The file's paths, or its inode and device where no path is known.
    pub fn name(&self) -> String {
        match self.path.as_str() {
            "" => format!("inode {} of device {}:{}", self.inode, self.device >> 20, self.device & 0xf_ffff),
            path => std::iter::once(path)
                .chain(self.other_paths.iter().map(String::as_str))
                .collect::<Vec<&str>>()
                .join(" or "),
        }
    }
}

/// Faults of one thread that waited for pages that another thread (or its own earlier read-ahead) was reading.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadWait {
    /// Who waited.
    pub waiter: Thread,
    /// Who had asked for the pages.
    pub reader: Thread,
    /// How many faults.
    pub count: u64,
    /// How long they took together.
    pub wait_ns: u64,
}

impl TraceFacts {
    /// Whether what was recorded ran already: what it had touched before is not known, nor when it ends.
    pub fn is_of_running(&self) -> bool {
        !self.pids.is_empty()
            || self.system_wide
            || self.imported.as_ref().is_some_and(|from| from.of_running)
    }

    /// Faults the kernel took on the program's behalf without an address of it: the argument pages of an exec,
    /// MAP_POPULATE, mlock and other uses of get_user_pages. getrusage counts them and no record shows them.
    ///
    /// Programs that could not be observed ([`Self::unobserved_programs`]) took some of these as well.
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
    /// Indexed by [`crate::StackId`].
    pub stacks: Vec<Stack>,
    /// Sorted by `start_ns`.
    pub faults: Vec<Fault>,
}
