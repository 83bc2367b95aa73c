//! What processes have mapped, as /proc/PID/maps tells it.

use std::io;
use std::sync::Arc;

use prepage_core::Permissions;

use crate::proc_file;
use crate::processes::living_thread;

/// A mapping as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// First address.
    pub start: u64,
    /// One past the last address.
    pub end: u64,
    /// Offset in the file, in bytes.
    pub offset_bytes: u64,
    /// The file's device (`major << 20 | minor`) and inode; `None` for memory of no file.
    pub inode: Option<(u64, u64)>,
    /// What it allows, and whether it is shared.
    pub permissions: Permissions,
    /// The file's path, or `[anon]`, `[heap]`, `[stack]`, `[vdso]`. Bytes that are not UTF-8 are replaced.
    pub path: Arc<str>,
}

/// What process `pid` has mapped.
///
/// # Errors
/// When it is gone or its maps may not be read.
pub fn mappings(pid: u32) -> io::Result<Vec<Mapped>> {
    let read = |tid: u32| proc_file::read_text(format!("/proc/{tid}/maps"));
    let mut maps = read(pid)?;
    // The first thread has no memory any more once it has ended, others may.
    if maps.is_empty()
        && let Some(other) = living_thread(pid).filter(|&tid| tid != pid)
    {
        maps = read(other)?;
    }
    Ok(maps.lines().filter_map(parse_maps_line).collect())
}

/// One line of /proc/PID/maps (proc_pid_maps(5)):
/// `7f0c1a200000-7f0c1a228000 r--p 00000000 fe:00 1234   /usr/lib/libc.so.6`
pub fn parse_maps_line(line: &str) -> Option<Mapped> {
    let mut rest = line;
    let mut word = || {
        let (word, tail) = rest.split_once(' ').unwrap_or((rest, ""));
        rest = tail;
        word
    };
    let (start, end) = word().split_once('-')?;
    let permissions = Permissions::from_text(word())?;
    let offset = word();
    let (major, minor) = word().split_once(':')?;
    let inode: u64 = word().parse().ok()?;
    let path = match rest.trim_start() {
        "" => "[anon]",
        path => path,
    };
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let device = hex(major)? << 20 | hex(minor)?;
    Some(Mapped {
        start: hex(start)?,
        end: hex(end)?,
        offset_bytes: hex(offset)?,
        // The first segment of System V shared memory has the inode 0. What is of no file has no device either.
        inode: (inode != 0 || device != 0).then_some((device, inode)),
        permissions,
        path: path.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_proc_maps() {
        let line = "7f0c1a200000-7f0c1a228000 rw-p 00002000 fe:01 1234                     /usr/lib/a b.so";
        let mapped = parse_maps_line(line).expect("a mapping");
        assert_eq!(
            (mapped.start, mapped.end, mapped.offset_bytes),
            (0x7f0c_1a20_0000, 0x7f0c_1a22_8000, 0x2000)
        );
        assert_eq!(mapped.inode, Some((0xfe << 20 | 1, 1234)));
        assert_eq!(
            (mapped.permissions, mapped.path.as_ref()),
            (Permissions::of_mapping(3, 2), "/usr/lib/a b.so")
        );
        let anonymous = parse_maps_line("1000-2000 rw-s 00000000 00:00 0 ").expect("a mapping");
        assert_eq!(
            (anonymous.inode, anonymous.permissions.text(), anonymous.path.as_ref()),
            (None, "rw-s", "[anon]")
        );
        let first =
            parse_maps_line("1000-2000 rw-s 00000000 00:01 0 /SYSV00000000 (deleted)").expect("a mapping");
        assert_eq!(first.inode, Some((1, 0)), "the first segment of System V shared memory");
        assert_eq!(parse_maps_line("nonsense"), None);
    }
}
