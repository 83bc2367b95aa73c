//! The kernel facilities prepage stands on: thin and safe, one file a facility.
//!
//! This is the only crate with `unsafe`. What rustix offers safely is used from there directly; here stands the
//! rest. Structures shared with the kernel are checked against its layout at compile time.
//!
//! | module        | facility                                                        | needs           |
//! |---------------|-----------------------------------------------------------------|-----------------|
//! | [`beside`]    | a process beside this one that nobody has to wait for           | Linux 5.9       |
//! | [`cachestat`] | how many pages of a range are in memory                         | Linux 6.5       |
//! | [`exec`]      | becoming another program, everything as it was inherited        |                 |
//! | [`extents`]   | where a file's bytes lie on its device                          | a disk          |
//! | [`fill_view`] | a memfd as the place that reads go to                            | Linux 5.14      |
//! | [`fresh_pages`] | page faults on demand                                         |                 |
//! | [`heap`]      | one heap for many short threads                                 | glibc           |
//! | [`huge_blocks`] | memory left to the kernel's huge pages piece by piece           | Linux 5.7       |
//! | [`inode`]     | opening a file by device and inode                              | root            |
//! | [`pagemap`]   | which frame holds a page of a process                           | root            |
//! | [`mapping`]   | a file mapped to be read, and which pages of it are in memory   |                 |
//! | [`perf`]      | page faults, mappings and context switches of processes         | paranoid <= 2   |
//! | [`region`]    | address space of one's own, aligned, not inherited over fork    |                 |
//! | [`sigbus`]    | SIGBUS, resolved here or passed on                              |                 |
//! | [`slot`]      | a value used in signal handlers while others take it away       |                 |
//! | [`syscalls`]  | numbers of the calls that concern files                         |                 |
//! | [`own_pages`] | a small program's own file read in one go when it starts        |                 |
//! | [`ptrace`]    | stopping a process tree at its system calls                     | ptrace allowed  |
//! | [`signals`]   | receiving signals as data                                       |                 |
//! | [`spawn`]     | a child that waits for leave to execute its program             | Linux 5.3       |
//! | [`words`]     | many atomic words of zero that cost nothing until used          |                 |
//! | [`userfaultfd`] | missing pages served by their own process                     | Linux 6.6       |

pub mod beside;
pub mod cachestat;
pub mod exec;
pub mod extents;
pub mod fill_view;
pub mod fresh_pages;
pub mod heap;
pub mod huge_blocks;
pub mod inode;
pub mod mapping;
pub mod own_pages;
pub mod pagemap;
pub mod perf;
pub mod ptrace;
pub mod region;
pub mod sigbus;
pub mod signals;
pub mod slot;
pub mod spawn;
pub mod syscalls;
pub mod userfaultfd;
pub mod words;
