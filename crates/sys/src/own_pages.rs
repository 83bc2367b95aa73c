//! Reading a small program's own file in one go, before it begins.
//!
//! From a cold disk, a static binary of a few hundred KiB starts with dozens of page faults one after the other,
//! each a read of its own. Asked for as a whole by the first code that runs, the file arrives in one transfer, and
//! the faults only wait for their part of it.

/// Files up to this size are read whole. It is more than the starter binary has, and little enough to cost no time
/// where it is not needed.
const WHOLE_BYTES_MAX: libc::off_t = 2 << 20;

extern "C" fn read_own_file() {
    // SAFETY: plain system calls on a path constant, a descriptor that only this function holds, and a zeroed stat,
    // which is a valid value of it. Each may fail; then nothing was asked for.
    unsafe {
        let file = libc::open(c"/proc/self/exe".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if file < 0 {
            return;
        }
        let mut stat: libc::stat = std::mem::zeroed();
        if libc::fstat(file, &mut stat) == 0 && stat.st_size <= WHOLE_BYTES_MAX {
            // One call loads at most the device's largest transfer or read-ahead, which is at least 128 KiB.
            for start in (0..stat.st_size).step_by(128 << 10) {
                libc::posix_fadvise(file, start, 128 << 10, libc::POSIX_FADV_WILLNEED);
            }
        }
        libc::close(file);
    }
}

// SAFETY: .init_array holds pointers to functions of the C calling convention, which libc runs once before main.
// The function makes system calls only and needs no initialised runtime.
#[used]
#[unsafe(link_section = ".init_array.00001")]
static READ_OWN_FILE: extern "C" fn() = read_own_file;

/// Does nothing. A binary that calls it is sure to be linked with this module, whose work is done before `main`; in
/// others, which may be linked with it too, it leaves files above its limit alone.
pub fn are_read_at_start() {}
