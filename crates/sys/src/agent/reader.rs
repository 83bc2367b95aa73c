//! The thread that reads a log, in a word by which agents see that it was killed.
//!
//! The word is a robust futex (set_robust_list(2)): when the thread ends, however it does, the kernel marks each such word that still has
//! its number. So a log whose reader was killed is not written to until it is full, and agents need no system call to find that out.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::given::check;

/// Where the word stands in a log.
pub(super) const READER_AT: usize = 44;
const HEAD_BYTES: usize = 4096;

/// `struct robust_list` of include/uapi/linux/futex.h.
#[repr(C)]
struct Entry {
    next: *mut Entry,
}

/// `struct robust_list_head`.
#[repr(C)]
struct Head {
    list: Entry,
    /// From an entry to its word, in bytes.
    futex_offset: libc::c_long,
    pending: *mut Entry,
}
const _: () = assert!(size_of::<Head>() == 24);

/// What the kernel walks through when the thread ends.
struct List {
    head: Head,
    entry: Entry,
}

/// The calling thread as the reader of a log, until this is dropped, on the same thread.
pub(super) struct Reader {
    /// The first page of the log.
    page: NonNull<libc::c_void>,
    /// Made by a box, and known to the kernel.
    list: *mut List,
    /// What libc had there.
    before: (*mut Head, usize),
}

impl Reader {
    /// Notes in `log` that the calling thread reads it.
    ///
    /// # Errors
    /// Those of mmap(2), and where the kernel has no robust futexes: ENOSYS.
    pub(super) fn new(log: &File) -> io::Result<Self> {
        let this_thread: libc::c_long = 0;
        let mut before = (null_mut(), 0);
        let (head, len) = (&raw mut before.0, &raw mut before.1);
        // SAFETY: the call writes a pointer and a length to valid places.
        check(unsafe { libc::syscall(libc::SYS_get_robust_list, this_thread, head, len) })?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the place, so that no memory in use changes.
        let page = unsafe { mmap(null_mut(), HEAD_BYTES, protection, MapFlags::SHARED, log.as_fd(), 0) }?;
        let page = NonNull::new(page).expect("mmap gives no null without MAP_FIXED");
        let head = Head { list: Entry { next: null_mut() }, futex_offset: 0, pending: null_mut() };
        let list = Box::into_raw(Box::new(List { head, entry: Entry { next: null_mut() } }));
        // From here on, dropped on the way out.
        let reader = Self { page, list, before };
        // SAFETY: the list is this function's own until the kernel knows it, and stays as it is from then on. Its one entry leads back to its
        // head, and from the entry to the word, which is in the page above.
        unsafe {
            (*list).head.list.next = &raw mut (*list).entry;
            (*list).entry.next = &raw mut (*list).head.list;
            let (word, entry) = (reader.word().as_ptr().addr(), (&raw const (*list).entry).addr());
            (*list).head.futex_offset = word.wrapping_sub(entry) as libc::c_long;
            check(libc::syscall(libc::SYS_set_robust_list, &raw mut (*list).head, size_of::<Head>()))?;
        }
        let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        reader.word().store(thread, Ordering::Relaxed);
        Ok(reader)
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: it is aligned and within the page, which is mapped as long as this is; other processes change it as one word, too.
        unsafe { self.page.byte_add(READER_AT).cast().as_ref() }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.word().store(0, Ordering::Relaxed);
        let (before, len) = self.before;
        // SAFETY: the kernel gets back what it had, and knows this list no more before that is freed; where it never got this one, that changes nothing.
        // The page is mapped by this value alone, and goes with it.
        unsafe {
            libc::syscall(libc::SYS_set_robust_list, before, len);
            drop(Box::from_raw(self.list));
            let _ = munmap(self.page.as_ptr(), HEAD_BYTES);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FUTEX_OWNER_DIED of include/uapi/linux/futex.h.
    const DIED: u32 = 0x4000_0000;

    fn word(log: &File) -> u32 {
        let mut word = [0; 4];
        std::os::unix::fs::FileExt::read_exact_at(log, &mut word, READER_AT as u64).unwrap();
        u32::from_ne_bytes(word)
    }

    #[test]
    fn a_reader_that_ends_without_a_word_has_died() {
        let memfd = rustix::fs::memfd_create("reader", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let log = File::from(memfd);
        log.set_len(HEAD_BYTES as u64).unwrap();
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| {
                let reader = Reader::new(&log).unwrap();
                assert_eq!(word(&log), rustix::thread::gettid().as_raw_nonzero().get() as u32);
                drop(reader);
                assert_eq!(word(&log), 0, "one that has ended reading may go on with other things");
                // As one that is killed.
                std::mem::forget(Reader::new(&log).unwrap());
            });
            reading.join().unwrap();
        });
        // What joins may be told before the kernel has come to it.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while word(&log) != DIED {
            assert!(std::time::Instant::now() < until, "{:#x}", word(&log));
            std::thread::yield_now();
        }
    }
}
