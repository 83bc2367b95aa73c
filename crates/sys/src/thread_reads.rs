//! What devices have read for one thread.

use std::mem::MaybeUninit;

/// The unit of `ru_inblock`.
const BLOCK_BYTES: u64 = 512;

/// Bytes that the calling thread has had read from devices since it began (getrusage(2)); 0 where the kernel does not count them
/// (CONFIG_TASK_IO_ACCOUNTING).
pub fn bytes_read_by_this_thread() -> u64 {
    let mut usage = MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the kernel writes one rusage, for which there is room.
    let result = unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
    if result != 0 {
        return 0;
    }
    // SAFETY: a call that succeeds has written all of it.
    let usage = unsafe { usage.assume_init() };
    usage.ru_inblock as u64 * BLOCK_BYTES
}
