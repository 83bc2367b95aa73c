//! Which processes and threads there are, as /proc lists them.

use std::{fs, io};

use crate::process_stat::{ENDED, ProcessStat};

/// All processes; none where /proc is not mounted.
pub fn processes() -> impl Iterator<Item = u32> {
    numbers("/proc").into_iter().flatten()
}

/// The threads of process `pid`.
///
/// # Errors
/// Where there is no such process.
pub fn threads_of(pid: u32) -> io::Result<impl Iterator<Item = u32>> {
    numbers(&format!("/proc/{pid}/task"))
}

/// A thread of process `pid` that has not ended: the first, unless that ended before others. `None` where all have.
pub fn living_thread(pid: u32) -> Option<u32> {
    let lives = |tid: &u32| ProcessStat::of_thread(pid, *tid).is_ok_and(|stat| !ENDED.contains(&stat.state));
    Some(pid).filter(lives).or_else(|| threads_of(pid).ok()?.find(lives))
}

fn numbers(directory: &str) -> io::Result<impl Iterator<Item = u32> + use<>> {
    let entries = fs::read_dir(directory)?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()))
}
