//! Threads that the standard library keeps no list of.
//!
//! It enters its own threads in a list as they begin and takes them out as they end, under a lock, to tell which stack has overflowed. A child of
//! fork(2) finds that lock held for good if a thread of its parent was just beginning or ending. Then every thread that the standard library starts in the
//! child waits for it, and so does whoever waits for that thread. libc's own locks are free in children of fork(3).
//!
//! The price: where the stack of such a thread overflows, the process ends by SIGSEGV without a message.

use std::ffi::{CString, c_void};
use std::io;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use crate::scheduling;
use crate::signals::Masked;

/// What the standard library gives its threads.
const STACK_BYTES: usize = 2 << 20;
/// What a thread that panicked ends with.
const PANICKED: *mut c_void = ptr::without_provenance_mut(1);

/// A thread, which goes on where this is dropped.
#[derive(Debug)]
pub struct Thread(libc::pthread_t);

// SAFETY: any thread may join another, once, as whoever has this does; musl's numbers of threads are pointers that libc alone follows.
unsafe impl Send for Thread {}

/// What a thread is called and does.
struct Main {
    name: CString,
    /// Taken when it begins.
    work: Option<Box<dyn FnOnce() + Send>>,
}

impl Thread {
    /// Starts a thread called `name` (15 bytes of it) in which all signals that come from outside are blocked. It is not scheduled in real time where the
    /// calling thread is: it may have much to do.
    ///
    /// # Errors
    /// EAGAIN where no thread is left; EINVAL for a name that has a zero byte.
    pub fn start(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let main = Box::new(Main { name: CString::new(name)?, work: Some(Box::new(work)) });
        let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
        let mut thread = MaybeUninit::<libc::pthread_t>::uninit();
        // A thread is born with the mask of who starts it.
        let _masked = Masked::asynchronous();
        let main = Box::into_raw(main);
        // SAFETY: the attributes are initialised before they are used and destroyed once. `begin` takes what `main` points to, alone: here it is taken back
        // only where no thread began.
        unsafe {
            let mut error = libc::pthread_attr_init(attributes.as_mut_ptr());
            if error == 0 {
                error = libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), STACK_BYTES);
                if error == 0 {
                    error =
                        libc::pthread_create(thread.as_mut_ptr(), attributes.as_ptr(), begin, main.cast());
                }
                libc::pthread_attr_destroy(attributes.as_mut_ptr());
            }
            if error != 0 {
                drop(Box::from_raw(main));
                return Err(io::Error::from_raw_os_error(error));
            }
            Ok(Self(thread.assume_init()))
        }
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// If it panicked.
    pub fn join(self) -> io::Result<()> {
        let this = ManuallyDrop::new(self);
        let mut ended_with = ptr::null_mut();
        // SAFETY: the thread was neither joined nor detached before, and will not be again: `this` is not dropped.
        match unsafe { libc::pthread_join(this.0, &raw mut ended_with) } {
            0 if ended_with.is_null() => Ok(()),
            0 => Err(io::Error::other("the thread panicked")),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // SAFETY: the thread was neither joined nor detached before.
        unsafe { libc::pthread_detach(self.0) };
    }
}

/// Does `work` in a thread called `name`, as [`Thread::start`] has it, and waits for its end.
///
/// # Errors
/// As there; if it panicked.
pub(crate) fn within(name: &str, work: impl FnOnce() + Send) -> io::Result<()> {
    let work: Box<dyn FnOnce() + Send + '_> = Box::new(work);
    // SAFETY: what it borrows lives until this returns, and it is done by then: where a thread began, its end is waited for.
    let work: Box<dyn FnOnce() + Send> = unsafe { std::mem::transmute(work) };
    Thread::start(name, work)?.join()
}

extern "C" fn begin(main: *mut c_void) -> *mut c_void {
    // SAFETY: whoever started this thread leaves the box to it.
    let mut main = unsafe { Box::from_raw(main.cast::<Main>()) };
    // SAFETY: a string that ends with a zero byte.
    unsafe { libc::prctl(libc::PR_SET_NAME, main.name.as_ptr()) };
    scheduling::leave_real_time();
    // The box is given back when all is done: before, whoever holds the allocator's lock may wait for what is to be done here.
    let work = main.work.take().expect("it begins once");
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(()) => ptr::null_mut(),
        Err(_) => PANICKED,
    }
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests {
    use std::io;
    use std::sync::mpsc::channel;

    use prepage_testing::{Need, unless_refused};

    use crate::sync::spawn;

    #[test]
    fn a_thread_that_a_thread_in_real_time_starts_is_not_in_real_time() {
        let priority: libc::c_int = 1;
        let started = std::thread::spawn(move || {
            // SAFETY: as in `scheduling`.
            let set = unsafe {
                libc::syscall(libc::SYS_sched_setscheduler, 0, libc::SCHED_FIFO, &raw const priority)
            };
            let set = if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
            let refused = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
            unless_refused(set, Need::RealTime, refused)?;
            let (tell, told) = channel();
            // SAFETY: asks for a number, of the calling thread.
            let policy = || unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) } as i32;
            assert_eq!(policy(), libc::SCHED_FIFO);
            spawn("usual", move || tell.send(policy()).unwrap()).unwrap().join().unwrap();
            told.recv().ok()
        });
        let policy = started.join().unwrap();
        assert!(policy.is_none_or(|policy| policy == libc::SCHED_OTHER));
    }

    #[test]
    fn a_thread_has_its_name_and_tells_a_panic() {
        let (tell, told) = channel();
        let name = || std::fs::read_to_string("/proc/thread-self/comm").unwrap();
        spawn("prepage-reclaim", move || tell.send(name()).unwrap()).unwrap().join().unwrap();
        assert_eq!(told.recv().unwrap(), "prepage-reclaim\n");
        let panics = spawn("panics", || panic!("as it should in this test")).unwrap();
        assert!(panics.join().is_err());
    }
}
