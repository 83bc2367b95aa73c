//! Bytes of pinned pages, given to system calls.

use std::io::{self, ErrorKind, Write};

use rustix::io::Errno;

/// Writes all of `bytes`, which lie in pinned pages of a map, by system calls. Pins hold against the VM, not against the kernel: where the machine has swap
/// space, a page that a call does not find in the map may have been written out. It is touched then, and the call repeated.
///
/// # Errors
/// Those of `to`: EFAULT, for pages that are not in the map, only where there is no swap space.
pub fn write_pinned(mut to: impl Write, mut bytes: &[u8]) -> io::Result<()> {
    const FAULT: i32 = Errno::FAULT.raw_os_error();
    while !bytes.is_empty() {
        match to.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.raw_os_error() == Some(FAULT) && has_swap() => {
                for byte in bytes.iter().step_by(4096).chain(bytes.last()) {
                    std::hint::black_box(*byte);
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether /proc/swaps has more than its heading.
fn has_swap() -> bool {
    std::fs::read_to_string("/proc/swaps").is_ok_and(|swaps| swaps.lines().count() > 1)
}
