//! Reading a file of /proc in as few system calls as it takes.
//!
//! [`std::fs::read`] asks such a file for its size, which is 0, and then reads it in pieces of 32, 64, 128 … bytes: ten calls for
//! a page of text. Whoever looks at a process a thousand times a second has the processor for other things.

use std::io;

use rustix::buffer::spare_capacity;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::path::Arg;

/// What seq_file(9) gives at a time is a page at most; two hold nearly every file but a long list of mappings.
const BYTES: usize = 8 << 10;

/// All of the file at `path`.
///
/// # Errors
/// Those of open(2) and read(2).
pub fn read(path: impl Arg) -> io::Result<Vec<u8>> {
    read_first(path, usize::MAX)
}

/// The first `bytes_max` bytes of it; of a shorter one all.
///
/// # Errors
/// Those of open(2) and read(2).
pub fn read_first(path: impl Arg, bytes_max: usize) -> io::Result<Vec<u8>> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut bytes = Vec::with_capacity(BYTES);
    loop {
        match rustix::io::read(&file, spare_capacity(&mut bytes)) {
            Ok(read) if read == 0 || bytes.len() >= bytes_max => {
                bytes.truncate(bytes_max);
                return Ok(bytes);
            }
            Ok(_) if bytes.capacity() - bytes.len() < BYTES / 2 => bytes.reserve(bytes.capacity()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The same as text; what is no UTF-8 is replaced.
///
/// # Errors
/// As [`read`].
pub fn read_text(path: impl Arg) -> io::Result<String> {
    let bytes = read(path)?;
    Ok(String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long_files_are_read_to_their_end() {
        for path in ["/proc/self/auxv", "/proc/self/cmdline", "/proc/version"] {
            let all = std::fs::read(path).unwrap();
            assert_eq!(read(path).unwrap(), all, "{path}");
            assert_eq!(read_first(path, 3).unwrap(), all[..3], "{path}");
        }
        // Mappings of a page each, which cannot be joined: more lines than a buffer holds.
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let pages = prepage_core::PageRange::new(prepage_core::PageIndex(0), prepage_core::PageIndex(1));
        let mappings: Vec<_> = (0..500)
            .map(|_| crate::mapping::FileMapping::new(std::os::fd::AsFd::as_fd(&file), pages).unwrap())
            .collect();
        let maps = read_text("/proc/self/maps").unwrap();
        assert!(maps.len() > 4 * BYTES && maps.ends_with('\n') && maps.contains("[stack]"));
        drop(mappings);
        assert!(read("/proc/self/no-such-file").is_err());
    }
}
