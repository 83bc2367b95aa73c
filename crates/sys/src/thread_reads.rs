//! What devices have read for one thread.

use std::mem::MaybeUninit;
use std::path::Path;

use crate::made_once::MadeOnce;

/// The unit of `ru_inblock`.
const BLOCK_BYTES: u64 = 512;

/// Whether the kernel counts what devices read for a thread (CONFIG_TASK_IO_ACCOUNTING), as far as /proc shows.
pub fn are_counted() -> bool {
    static COUNTED: MadeOnce<bool> = MadeOnce::new();
    *COUNTED.get_or_make(|| Path::new("/proc/self/io").exists())
}

/// Bytes that the calling thread has had read from devices since it began (getrusage(2)); 0 where the kernel does not [count](are_counted) them.
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

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::time::Duration;

    use prepage_testing::{Need, has};

    use super::*;
    use crate::cachestat::evict;

    #[test]
    fn what_a_device_reads_for_this_thread_is_counted_and_what_is_in_memory_is_not() {
        const BYTES: u64 = 1 << 20;
        if !has(Need::Eviction(env!("CARGO_MANIFEST_DIR").into())) {
            return;
        }
        let mut file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all(&[7; BYTES as usize]).unwrap();
        file.as_file().sync_all().unwrap();
        evict(file.as_file().as_fd(), Duration::from_secs(1)).unwrap();
        let read = || {
            let before = bytes_read_by_this_thread();
            File::open(file.path()).unwrap().read_to_end(&mut Vec::new()).unwrap();
            bytes_read_by_this_thread() - before
        };
        assert!(are_counted() && (BYTES..2 * BYTES).contains(&read()));
        assert_eq!(read(), 0);
    }
}
