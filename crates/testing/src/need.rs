//! What a test may need that a machine may lack, and how to find out whether it does.

use std::fmt;
use std::fs::{self, File};
use std::io::{IoSliceMut, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::{Access, Advice, Mode, OFlags, access, fadvise, statfs};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::thread::{CapabilitySet, capabilities};
use serde::{Deserialize, Serialize};

use crate::skipped::log_path;

/// A facility that a check of `prepage doctor` looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Doctor {
    /// Page faults of one's own programs can be recorded.
    Faults,
    /// Residency of files can be asked for.
    Residency,
    /// The user-space VM can serve faults of this process's own instructions.
    ServedFaults,
    /// The user-space VM can serve faults inside system calls as well.
    ServedFaultsInSystemCalls,
}

impl Doctor {
    /// The check's name in `prepage doctor`, and whether the facility needs it to be fully "ok".
    fn check(self) -> (&'static str, bool) {
        match self {
            Self::Faults => ("page faults (record, learning)", false),
            Self::Residency => ("residency of files (measure)", true),
            Self::ServedFaults => ("faults served in user space (vm)", false),
            Self::ServedFaultsInSystemCalls => ("faults served in user space (vm)", true),
        }
    }

    /// What `prepage doctor --json` reports as missing for this facility; `None` where the machine has it.
    ///
    /// # Panics
    /// When these are not the doctor's bytes, or it has no such check.
    pub fn lacks(self, doctor_json: &[u8]) -> Option<String> {
        let report: serde_json::Value = serde_json::from_slice(doctor_json).expect("JSON of prepage doctor");
        let (name, fully) = self.check();
        let checks = report["checks"].as_array().expect("the doctor's checks");
        let check = checks.iter().find(|check| check["name"] == name);
        let check = check.unwrap_or_else(|| panic!("prepage doctor has no check named {name}"));
        let state = check["state"].as_str().expect("a state");
        let has = state == "ok" || (state == "limited" && !fully);
        (!has).then(|| format!("{state}: {}", check["found"].as_str().unwrap_or_default()))
    }
}

/// What a test needs and some machines lack.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Need {
    /// The rights of root.
    Root,
    /// CAP_SYS_PTRACE: the right to trace processes with rights of their own.
    Tracing,
    /// What a check of `prepage doctor` looks at. [`Need::probe`] leaves it to the doctor.
    Doctor(Doctor),
    /// A program in PATH.
    Tool(String),
    /// A Python with these modules (comma-separated): of `make setup-test`, or the system's.
    Python(String),
    /// A file or directory that exists.
    Path(PathBuf),
    /// A mount namespace of one's own.
    Mounts,
    /// A user namespace that an ordinary user makes; looked at by root.
    UserNamespace,
    /// Landlock, as far as securityfs tells.
    Landlock,
    /// That no seccomp filter is in force. Containers have one.
    NoFilter,
    /// Threads that are scheduled in real time.
    RealTime,
    /// The kernel's delay accounting can be switched on and asked: by root, outside containers.
    DelayAccounting,
    /// To be told when tasks wait for memory.
    Pressure,
    /// A processor with this flag in /proc/cpuinfo.
    CpuFlag(String),
    /// The setting of fault-around, in a debugfs that root can mount.
    FaultAround,
    /// A loop device: root's, with `/dev/loop-control`.
    LoopDevice,
    /// Swap space can be added: by root, in memory (zram).
    Swap,
    /// A control group that limits tasks can be made.
    TaskGroup,
    /// A control group that limits memory can be made.
    MemoryGroup,
    /// A control group of version 2 can be made, which freezes processes.
    FreezingGroup,
    /// Processes that dump core leave a file in their working directory.
    CoreFiles,
    /// The kernel does not use huge pages unasked.
    SmallPages,
    /// So many bytes of available memory.
    MemoryBytes(u64),
    /// So many processors that the test may run on.
    Processors(usize),
    /// This version of Linux, or a later one.
    Linux(u32, u32),
    /// Pages of files in this directory can be evicted.
    Eviction(PathBuf),
    /// Files in this directory can be read with O_DIRECT.
    DirectReads(PathBuf),
    /// The file system of this path reports where its files lie on the disk.
    Extents(PathBuf),
    /// Root may open files of this path's file system by inode number alone.
    InodeHandles(PathBuf),
}

impl Need {
    /// Whether this machine has it; else, what was found instead. Facilities of [`Need::Doctor`] are not looked at here:
    /// the doctor is asked after the run.
    ///
    /// # Errors
    /// One line on what is missing.
    pub fn probe(&self) -> Result<(), String> {
        match self {
            Self::Root => is(rustix::process::geteuid().is_root(), || "an ordinary user".into()),
            Self::Tracing => {
                let held =
                    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_PTRACE));
                is(held, || "without CAP_SYS_PTRACE".into())
            }
            Self::Doctor(_) => Ok(()),
            Self::Tool(name) => is(in_path(name).is_some(), || format!("no {name} in PATH")),
            Self::Python(modules) => is(python(modules).is_some(), || format!("no Python has {modules}")),
            Self::Path(path) => is(path.exists(), || format!("no {}", path.display())),
            Self::Mounts => is(succeeds("unshare", &["--mount", "true"]), || "unshare --mount fails".into()),
            Self::UserNamespace => {
                let made = ["--reuid=54321", "--regid=54321", "--clear-groups", "unshare", "--user", "true"];
                is(succeeds("setpriv", &made), || "unshare --user fails for a user".into())
            }
            Self::Landlock => {
                let modules = fs::read_to_string("/sys/kernel/security/lsm").unwrap_or_default();
                is(modules.trim().split(',').any(|name| name == "landlock"), || format!("only {modules:?}"))
            }
            Self::NoFilter => {
                let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
                let filter = status.lines().find(|line| line.starts_with("Seccomp:")).unwrap_or_default();
                is(matches!(filter, "" | "Seccomp:\t0"), || filter.into())
            }
            Self::RealTime => is(succeeds("chrt", &["--fifo", "1", "true"]), || "chrt --fifo fails".into()),
            Self::DelayAccounting => {
                Self::Root.probe()?;
                is_writable(Path::new("/proc/sys/kernel/task_delayacct"))?;
                // taskstats answers in the first one alone, whose number is PROC_PID_INIT_INO (include/linux/proc_ns.h).
                let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
                is(namespace == Path::new("pid:[4026531836]"), || format!("in {}", namespace.display()))
            }
            Self::Pressure => {
                let asked = File::options().read(true).write(true).open("/proc/pressure/memory");
                let asked = asked.and_then(|mut file| file.write_all(b"some 1900000 2000000\0"));
                asked.map_err(|error| error.to_string())
            }
            Self::CpuFlag(flag) => {
                let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
                let flags = cpu.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
                is(flags.split(' ').any(|word| word == flag), || format!("no {flag}"))
            }
            Self::FaultAround => {
                let looks = "mount -t debugfs none /sys && cat /sys/fault_around_bytes";
                is(succeeds("unshare", &["--mount", "sh", "-c", looks]), || "no fault_around_bytes".into())
            }
            Self::LoopDevice => {
                Self::Root.probe()?;
                Self::Path("/dev/loop-control".into()).probe()?;
                Self::Tool("mkfs.ext4".into()).probe()
            }
            Self::Swap => {
                Self::Root.probe()?;
                is_writable(Path::new("/sys/class/zram-control/hot_remove"))?;
                Self::Tool("mkswap".into()).probe()?;
                Self::Tool("swapon".into()).probe()
            }
            Self::TaskGroup => is_writable(task_groups()),
            Self::MemoryGroup => is_writable(memory_groups()),
            Self::FreezingGroup => {
                Self::Path(freezing_groups().join("cgroup.procs")).probe()?;
                is_writable(freezing_groups())
            }
            Self::CoreFiles => {
                let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
                is(!pattern.starts_with(['|', '@']) && !pattern.contains('/'), || format!("{pattern:?}"))
            }
            Self::SmallPages => {
                let huge =
                    fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
                is(!huge.contains("[always]"), || "transparent huge pages are always used".into())
            }
            Self::Linux(major, minor) => {
                let release = rustix::system::uname().release().to_string_lossy().into_owned();
                let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|n| n.parse().ok());
                let found: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
                is(found >= (*major, *minor), || format!("Linux {release}"))
            }
            Self::MemoryBytes(wanted) => {
                let available = available_bytes();
                is(available >= *wanted, || format!("{available} bytes are available, {wanted} are needed"))
            }
            Self::Processors(wanted) => {
                let allowed = std::thread::available_parallelism().map_or(1, usize::from);
                is(allowed >= *wanted, || format!("{allowed} of them"))
            }
            Self::Eviction(directory) => {
                evicts(directory).map_err(|error| error.to_string()).and_then(|evicted| {
                    is(evicted, || format!("files in {} stay in memory", directory.display()))
                })
            }
            Self::DirectReads(directory) => reads_directly(directory)
                .map_err(|error| format!("no O_DIRECT in {}: {error}", directory.display())),
            Self::Extents(path) => is(is_on(path, &[EXT4, XFS, BTRFS]), || "not ext4, XFS or Btrfs".into()),
            // XFS wants to know the generation too, and Btrfs has handles of its own kind.
            Self::InodeHandles(path) => {
                Self::Root.probe()?;
                is(is_on(path, &[EXT4]), || "not ext4".into())
            }
        }
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => f.write_str("root"),
            Self::Tracing => f.write_str("CAP_SYS_PTRACE"),
            Self::Doctor(doctor) => write!(f, "\"{}\" of prepage doctor", doctor.check().0),
            Self::Tool(name) => f.write_str(name),
            Self::Python(modules) => write!(f, "Python with {modules}"),
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Mounts => f.write_str("a mount namespace"),
            Self::UserNamespace => f.write_str("user namespaces for users"),
            Self::Landlock => f.write_str("Landlock"),
            Self::NoFilter => f.write_str("no seccomp filter"),
            Self::RealTime => f.write_str("scheduling in real time"),
            Self::DelayAccounting => f.write_str("delay accounting"),
            Self::Pressure => f.write_str("/proc/pressure/memory"),
            Self::CpuFlag(flag) => write!(f, "a processor with {flag}"),
            Self::FaultAround => f.write_str("fault_around_bytes in debugfs"),
            Self::LoopDevice => f.write_str("a loop device"),
            Self::Swap => f.write_str("swap space of zram"),
            Self::TaskGroup => f.write_str("a control group that limits tasks"),
            Self::MemoryGroup => f.write_str("a control group that limits memory"),
            Self::FreezingGroup => f.write_str("a control group that freezes processes"),
            Self::CoreFiles => f.write_str("files of core dumps"),
            Self::SmallPages => f.write_str("huge pages not always used"),
            Self::MemoryBytes(bytes) => write!(f, "{} MiB of memory", bytes >> 20),
            Self::Processors(count) => write!(f, "{count} processors"),
            Self::Linux(major, minor) => write!(f, "Linux {major}.{minor}"),
            Self::Eviction(directory) => write!(f, "files in {} that can be evicted", directory.display()),
            Self::DirectReads(directory) => write!(f, "O_DIRECT in {}", directory.display()),
            Self::Extents(path) => write!(f, "extents of {}", path.display()),
            Self::InodeHandles(path) => write!(f, "inode handles of {}", path.display()),
        }
    }
}

/// The directory in which tests make control groups that limit tasks (version 1 of control groups).
pub fn task_groups() -> &'static Path {
    Path::new("/sys/fs/cgroup/pids")
}

/// The same of those that limit memory.
pub fn memory_groups() -> &'static Path {
    Path::new("/sys/fs/cgroup/memory")
}

/// The same of control groups of version 2, alone or beside those of version 1.
pub fn freezing_groups() -> &'static Path {
    let (alone, beside_others) = (Path::new("/sys/fs/cgroup"), Path::new("/sys/fs/cgroup/unified"));
    if beside_others.exists() { beside_others } else { alone }
}

/// The first Python that can import `modules`: the one that `make setup-test` makes in the target directory, or the
/// system's.
pub fn python(modules: &str) -> Option<Command> {
    // The log lies in the directory of a profile, somewhere below cargo's target directory.
    let log = log_path();
    let own = log.ancestors().skip(2).map(|directory| directory.join("test-python/bin/python3"));
    let import = format!("import {modules}");
    let found = own.filter(|python| python.exists()).chain([PathBuf::from("python3")]).find(|python| {
        Command::new(python).args(["-c", &import]).stderr(Stdio::null()).status().is_ok_and(|s| s.success())
    });
    found.map(Command::new)
}

fn is(met: bool, found: impl FnOnce() -> String) -> Result<(), String> {
    if met { Ok(()) } else { Err(found()) }
}

fn is_writable(path: &Path) -> Result<(), String> {
    is(access(path, Access::WRITE_OK).is_ok(), || format!("{} cannot be written", path.display()))
}

fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let is_program = |path: &PathBuf| {
        fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(is_program)
}

fn succeeds(program: &str, args: &[&str]) -> bool {
    let status = Command::new(program).args(args).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

fn available_bytes() -> u64 {
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok()).unwrap_or(0) << 10
}

// include/uapi/linux/magic.h
const EXT4: i64 = 0xef53;
const XFS: i64 = 0x5846_5342;
const BTRFS: i64 = 0x9123_683e;

/// Whether `path` lies on one of these file systems.
fn is_on(path: &Path, magic: &[i64]) -> bool {
    statfs(path).is_ok_and(|of| magic.contains(&of.f_type))
}

/// A file of one page in `directory` that has no name, written to the disk.
fn scratch(directory: &Path) -> std::io::Result<File> {
    let mode = Mode::RUSR | Mode::WUSR;
    let fd = rustix::fs::open(directory, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, mode)?;
    let mut file = File::from(fd);
    file.write_all(&[7; 4096])?;
    file.sync_all()?;
    Ok(file)
}

/// Whether a page of a file in `directory` leaves memory when the kernel is asked to drop it. It may stay for a moment, while
/// somebody else holds it, and longer where many tests keep the disk busy.
fn evicts(directory: &Path) -> std::io::Result<bool> {
    const TRIES: u32 = 300;
    let file = scratch(directory)?;
    for _ in 0..TRIES {
        fadvise(&file, 0, None, Advice::DontNeed)?;
        let mut byte = [0];
        match rustix::io::preadv2(&file, &mut [IoSliceMut::new(&mut byte)], 0, ReadWriteFlags::NOWAIT) {
            Err(Errno::AGAIN) => return Ok(true),
            Ok(_) => std::thread::sleep(Duration::from_millis(10)),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(false)
}

fn reads_directly(directory: &Path) -> std::io::Result<()> {
    #[repr(align(4096))]
    struct Page([u8; 4096]);
    let file = scratch(directory)?;
    let direct = rustix::fs::fcntl_getfl(&file)? | OFlags::DIRECT;
    rustix::fs::fcntl_setfl(&file, direct)?;
    let mut page = Page([0; 4096]);
    rustix::io::pread(&file, &mut page.0, 0).map(|_| ()).map_err(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_here_and_what_is_nowhere_are_told_apart() {
        let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let has = [
            Need::Path(here.clone()),
            Need::Tool("sh".into()),
            Need::MemoryBytes(1 << 20),
            Need::Linux(2, 6),
        ];
        let lacks = [
            Need::Path(here.join("none")),
            Need::Tool("no-such-program".into()),
            Need::MemoryBytes(1 << 60),
            Need::Processors(1 << 20),
            Need::Linux(1000, 0),
            Need::Eviction("/nonexistent".into()),
            Need::DirectReads("/proc".into()),
            Need::Extents("/proc".into()),
        ];
        assert_eq!(has.map(|need| need.probe()), [const { Ok(()) }; 4]);
        assert!(lacks.iter().all(|need| need.probe().is_err()));
    }

    #[test]
    fn files_in_memory_cannot_be_evicted() {
        let memory = PathBuf::from("/dev/shm");
        if crate::has(Need::Path(memory.clone())) {
            assert!(Need::Eviction(memory).probe().is_err());
        }
    }
}
