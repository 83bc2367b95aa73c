//! Which processes and threads there are, as /proc lists them.

use std::{fs, io};

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

fn numbers(directory: &str) -> io::Result<impl Iterator<Item = u32> + use<>> {
    let entries = fs::read_dir(directory)?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()))
}
