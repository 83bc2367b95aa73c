//! The kernel facilities prepage stands on: thin and safe, one file a facility.
//!
//! This is the only crate with `unsafe`. What rustix offers safely is used from there directly; here stands the
//! rest. Structures shared with the kernel are checked against its layout at compile time.
//!
//! A few safe calls are sound only where their caller keeps to a rule that no type shows, and each tells its rule: those that change what a
//! [`region::Region`] lends as a slice ([`memfd::Memfd::write_at`], [`memfd::Memfd::write_from`], [`memfd::Memfd::punch`],
//! [`direct_fill::DirectFill::read`], stores to [`region::Region::as_atomics`],
//! [`region::Region::unpoison`], [`region::Span::unmap_protected_ranges`], [`region::Span::free_empty_tables`]), and [`sigbus::install`], whose resolver
//! runs in signal handlers. `prepage-vm`, which has no unsafe code, is their one caller but for tests and benches. Another is `copied::Copied::start`, whose
//! work may use and drop no descriptors but those it keeps; `prepage-service` calls it in one place.
//!
//! | module        | facility                                                        | needs           |
//! |---------------|-----------------------------------------------------------------|-----------------|
//! | [`agent`]     | what a program uses, seen from inside it                        | glibc 2.35      |
//! | [`alarm`]     | an end of this process that needs no thread                     |                 |
//! | [`arm`]       | a userfaultfd taken out of another process                      | Linux 6.7, ptrace |
//! | `apart`       | a process beside this one, in its memory, with other namespaces |                 |
//! | [`beside`]    | a process beside this one that nobody has to wait for           | Linux 5.9       |
//! | [`block`]     | 2 MiB of a memfd made in one piece, to be read to               | Linux 5.14      |
//! | [`bpf`]       | small programs that the kernel runs at its tracepoints          | root, Linux 5.8 |
//! | [`cachestat`] | how many pages of a range are in memory                         | Linux 6.5       |
//! | [`copied`]    | a copy of this process that outlives it                         |                 |
//! | [`exec`]      | becoming another program, everything as it was inherited        |                 |
//! | [`exec_watch`] | which files are executed, by which process                      | root            |
//! | [`extents`]   | where a file's bytes lie on its device                          | a disk          |
//! | [`device_number`] | what devices are called                                     |                 |
//! | [`direct_fill`] | a part of a memfd as the place of one read                     | Linux 5.14      |
//! | [`disk_stat`] | what a block device has read and written                        |                 |
//! | [`file_handle`] | a file told by a number, without opening it                    |                 |
//! | [`file_system`] | which kind of file system a file lies in                     |                 |
//! | [`fork`]      | telling a process from its parent                               | Linux 4.14      |
//! | [`forked`]    | a child that goes on in this program, for tests                  |                 |
//! | [`fresh_pages`] | page faults on demand                                         |                 |
//! | [`heap`]      | one heap for many short threads                                 | glibc           |
//! | [`heaps`]     | an allocator of several heaps, for threads that wait for each other |             |
//! | [`huge_blocks`] | memory left to the kernel's huge pages piece by piece           | Linux 5.7       |
//! | [`adjoining`] | pages of several files asked for in one call                     |                 |
//! | [`fault_around`] | fault-around of the whole machine off for a while            | root, debugfs   |
//! | [`guarded`]   | settings of the kernel changed for a while, and restored        | root            |
//! | [`inode`]     | opening a file by device and inode                              | root            |
//! | [`page_flags`] | whether pages of files in memory were used                      | root            |
//! | [`pagemap`]   | which frame holds a page of a process                           | root            |
//! | [`memfd`]     | memory without a name, shown by any number of regions           | Linux 6.3       |
//! | `own_tmpfs`   | a file system in memory that nobody else sees, for memfds of huge pages | Linux 5.2 |
//! | [`made_once`] | a value made when it is needed first, whatever forks             |                 |
//! | [`mapping`]   | a file mapped to be read, and which pages of it are in memory   |                 |
//! | [`maps`]      | what processes have mapped                                      |                 |
//! | [`mounts`]    | the mounted file systems                                        |                 |
//! | [`move_extents`] | pages of a file given another place on the device            | ext4            |
//! | [`new_file`]  | a file replaced as a whole                                      |                 |
//! | [`proc_file`] | a file of /proc read in few calls                            |                 |
//! | [`process_status`] | fields of /proc/PID/status                                  |                 |
//! | [`auxv`]      | the auxiliary vector of a program                               |                 |
//! | [`process_stat`] | faults and times of a process                                |                 |
//! | [`processes`] | which processes and threads there are                           |                 |
//! | [`processor_time`] | processor time of this process, this thread and others     |                 |
//! | [`perf`]      | page faults, mappings and context switches of processes         | paranoid <= 2   |
//! | [`readahead`] | the read-ahead of all disks, set for a while and restored     | root            |
//! | [`reap`]      | waiting for children, and what each used                        |                 |
//! | [`call_filter`] | system calls that a process gives up                     | seccomp         |
//! | [`uncommon_calls`] | whether a filter kills who serves a start                      | seccomp         |
//! | [`landlock`]  | a thread that only reads                                        | Linux 5.13      |
//! | [`local_time`] | how far the time zone is from UTC                              |                 |
//! | [`bare_main`](mod@bare_main) | a process that begins without Rust's start-up code             |                 |
//! | [`clock`]     | the time of day, and the time that nobody sets                  |                 |
//! | [`cgroup`], [`memory_left`], [`psi`] | control groups; what is left of memory, and who waits for it | Linux 6.5 for triggers |
//! | [`lookups`]   | which names a process and what it starts look up                | root, Linux 5.8 |
//! | [`regular_file`] | a file opened where something else may stand                 |                 |
//! | [`region`]    | address space of one's own, aligned, not inherited over fork    |                 |
//! | [`random`]    | numbers that tell one thing from another                        |                 |
//! | [`rights`]    | what one thread may open: as a user, as anybody                 | root            |
//! | [`root`]      | names as another process has them, below its root               | Linux 5.6       |
//! | [`sections`]  | waiting for who may still use what is taken away                |                 |
//! | [`sigbus`]    | SIGBUS, resolved here or passed on                              |                 |
//! | [`slot`]      | a value used in signal handlers while others take it away       |                 |
//! | [`syscalls`]  | numbers of the calls that concern files                         |                 |
//! | [`open_files`] | how many files this process may have open                     |                 |
//! | [`own_pages`] | a small program's own file read in one go when it starts        |                 |
//! | [`ptrace`]    | stopping a process tree at its system calls                     | ptrace allowed  |
//! | [`session_id`] | the session of processes that one belongs to                   |                 |
//! | [`signals`]   | receiving signals as data, and keeping them away for a while    |                 |
//! | [`sync`]      | what threads share, real, modelled or counted                   |                 |
//! | [`start_ways`] | programs started by fork, vfork and posix_spawn                |                 |
//! | [`scheduling`] | how eagerly a thread is given a processor                      |                 |
//! | [`spawn`]     | a child that waits for leave to execute its program             | Linux 5.3       |
//! | [`thread`]    | threads that the standard library keeps no list of               |                 |
//! | [`thread_reads`] | what devices have read for one thread                        | Linux 2.6.26    |
//! | [`tsc`]       | the time stamp counter, to give times in cycles                 | x86-64          |
//! | [`versions`]  | a value replaced while signal handlers use it                   |                 |
//! | [`words`]     | many atomic words of zero that cost nothing until used          |                 |
//! | [`timed_stream`] | Unix sockets whose other end may never answer                   |                 |
//! | [`user_namespace`] | who is behind the user ids of a user namespace             | Linux 4.9       |
//! | [`userfaultfd`] | missing pages served by their own process                     | Linux 6.6       |

pub mod adjoining;
pub mod agent;
pub mod alarm;
mod apart;
#[cfg_attr(not(target_arch = "x86_64"), path = "unvisited.rs")]
pub mod arm;
pub mod auxv;
pub mod bare_main;
pub mod beside;
pub mod block;
pub mod bpf;
pub mod cachestat;
pub mod call_filter;
pub mod cgroup;
pub mod clock;
#[cfg(not(any(feature = "shuttle", feature = "loom")))]
pub mod copied;
#[cfg(feature = "counted")]
pub mod counted;
pub mod device_number;
pub mod direct_fill;
pub mod disk_stat;
pub mod exec;
pub mod exec_watch;
pub mod extents;
pub mod fault_around;
pub mod file_handle;
pub mod file_system;
mod first_touches;
pub mod fork;
pub mod forked;
pub mod fresh_pages;
mod given;
pub mod guarded;
pub mod heap;
pub mod heaps;
pub mod huge_blocks;
pub mod inode;
pub mod landlock;
pub mod local_time;
pub mod lookups;
pub mod made_once;
pub mod mapping;
pub mod maps;
pub mod memfd;
pub mod memory_left;
pub mod mounts;
pub mod move_extents;
pub mod new_file;
pub mod open_files;
pub mod own_pages;
mod own_tmpfs;
pub mod page_flags;
pub mod pagemap;
pub mod part;
pub mod perf;
pub mod proc_file;
pub mod process_stat;
pub mod process_status;
pub mod processes;
pub mod processor_time;
pub mod psi;
pub mod ptrace;
pub mod random;
mod raw_lock;
pub mod readahead;
pub mod reap;
pub mod region;
pub mod regular_file;
pub mod rights;
pub mod root;
pub mod scheduling;
pub mod sections;
pub mod session_id;
pub mod sigbus;
pub mod signals;
pub mod slot;
pub mod spawn;
pub mod start_ways;
pub mod sync;
pub mod syscalls;
#[cfg(not(any(feature = "shuttle", feature = "loom")))]
pub mod thread;
pub mod thread_reads;
pub mod timed_stream;
pub mod tsc;
pub mod uncommon_calls;
pub mod user_namespace;
pub mod userfaultfd;
mod userfaultfd_abi;
pub mod versions;
mod visit_error;
pub mod words;
