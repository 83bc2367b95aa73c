//! Copies of a process whose other threads are in the middle of something.

use std::collections::HashMap;
use std::fs::read_dir;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use prepage_sys::copied::Copied;
use prepage_sys::sync::spawn;
use prepage_testing::this_test;

/// What takes more than the lists of free pieces hold that each thread has for itself.
fn allocate() {
    let pieces: Vec<Vec<u8>> = (1..64_usize).map(|piece| vec![1; 1500 * (1 + piece % 40)]).collect();
    assert!(std::hint::black_box(pieces).iter().all(|piece| piece[0] == 1));
}

#[test]
fn copies_of_a_process_whose_threads_never_rest_wait_for_nobody() {
    const COPIES: usize = 1000;
    /// A copy that takes longer is ended.
    const PATIENCE_S: u32 = 30;
    let is_over = AtomicBool::new(false);
    let never_rests = || {
        while !is_over.load(Ordering::Relaxed) {
            allocate();
            std::thread::spawn(allocate).join().unwrap();
            assert!(read_dir("/proc/self/task").unwrap().count() > 0);
            drop((1..100).map(|key| (key, key.to_string())).collect::<HashMap<_, _>>());
        }
    };
    std::thread::scope(|scope| {
        (0..2).for_each(|_| drop(scope.spawn(never_rests)));
        for copy in 0..COPIES {
            let (mut read, write) = std::io::pipe().unwrap();
            let copied = Copied::start(
                "copied",
                write,
                |write| vec![write.as_fd()],
                |mut write| {
                    // SAFETY: takes a number.
                    unsafe { libc::alarm(PATIENCE_S) };
                    allocate();
                    let own = spawn("of a copy", || {
                        allocate();
                        assert!(read_dir("/proc/self/fd").unwrap().count() > 0);
                    });
                    own.unwrap().join().unwrap();
                    write.write_all(b".").unwrap();
                },
            );
            let mut said = Vec::new();
            let is_read = read.read_to_end(&mut said);
            let ended = copied.unwrap().wait();
            if said != b"." {
                is_over.store(true, Ordering::Relaxed);
                panic!("copy {copy}: {is_read:?}, {ended:?}");
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

/// The lock of glibc's heap that is held by a thread which stands still, made on purpose.
#[cfg(target_env = "gnu")]
mod heap {
    use std::os::unix::thread::JoinHandleExt;
    use std::process::{Child, Stdio};
    use std::sync::mpsc::channel;

    use prepage_testing::{child_command, is_child};
    use rustix::process::{Pid, Signal, kill_process};
    use rustix::stdio::{stderr, stdin};

    use super::*;

    /// What it says once a thread stands still in the middle of malloc(3), and what its copy says.
    const HELD: &[u8] = b"\x01";
    const GOES_ON: &[u8] = b"\x02";

    static IS_TO_STAND: AtomicBool = AtomicBool::new(false);
    static STANDS: AtomicBool = AtomicBool::new(false);

    extern "C" fn stand(_: libc::c_int) {
        STANDS.store(true, Ordering::SeqCst);
        while IS_TO_STAND.load(Ordering::SeqCst) {
            // SAFETY: sleeps.
            unsafe { libc::usleep(1000) };
        }
        STANDS.store(false, Ordering::SeqCst);
    }

    /// Its copy allocates for each byte of standard input, and says so. A thread of its own comes to stand still with the lock.
    fn hold_the_lock() -> ! {
        static IS_ASKED: AtomicBool = AtomicBool::new(false);
        let copied = Copied::start(
            "copied",
            (),
            |()| Vec::new(),
            |()| {
                let mut byte = [0];
                while rustix::io::read(stdin(), &mut byte).is_ok_and(|read| read == 1) {
                    allocate();
                    rustix::io::write(stderr(), GOES_ON).unwrap();
                }
            },
        );
        assert!(copied.is_ok());
        // SAFETY: the handler makes one call that handlers may make.
        unsafe { libc::signal(libc::SIGUSR1, stand as *const () as libc::sighandler_t) };
        let allocates = std::thread::spawn(|| {
            loop {
                allocate();
            }
        });
        let thread = allocates.as_pthread_t();
        let _asks = std::thread::spawn(|| {
            loop {
                if IS_ASKED.load(Ordering::SeqCst) {
                    allocate();
                    IS_ASKED.store(false, Ordering::SeqCst);
                }
                std::thread::yield_now();
            }
        });
        let wait = |condition: &dyn Fn() -> bool, most: Duration| {
            let began = std::time::Instant::now();
            while !condition() && began.elapsed() < most {
                std::thread::yield_now();
            }
            condition()
        };
        let long = Duration::from_secs(60);
        loop {
            IS_TO_STAND.store(true, Ordering::SeqCst);
            // SAFETY: the thread never ends.
            unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
            assert!(wait(&|| STANDS.load(Ordering::SeqCst), long));
            // From here on this thread allocates nothing.
            IS_ASKED.store(true, Ordering::SeqCst);
            if !wait(&|| !IS_ASKED.load(Ordering::SeqCst), Duration::from_millis(500)) {
                break;
            }
            IS_TO_STAND.store(false, Ordering::SeqCst);
            while STANDS.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        }
        rustix::io::write(stderr(), HELD).unwrap();
        loop {
            std::thread::park();
        }
    }

    struct Killed(Child);

    impl Drop for Killed {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_lock_that_is_held_when_the_process_is_stopped_or_killed_keeps_no_copy_waiting() {
        let test = this_test();
        if is_child(&test) {
            hold_the_lock();
        }
        for signal in [Signal::STOP, Signal::KILL] {
            let mut command = child_command(&test, &[]);
            command.env("MALLOC_ARENA_MAX", "1").stdin(Stdio::piped());
            let mut process = Killed(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
            let (tell, told) = channel();
            let mut says = process.0.stderr.take().unwrap();
            std::thread::spawn(move || {
                let mut byte = [0];
                while says.read_exact(&mut byte).is_ok() && tell.send(byte).is_ok() {}
            });
            let hears = |what: &[u8]| {
                let until = std::time::Instant::now() + Duration::from_secs(30);
                let left = || until.saturating_duration_since(std::time::Instant::now());
                std::iter::from_fn(|| told.recv_timeout(left()).ok()).any(|byte| byte == what)
            };
            assert!(hears(HELD), "no thread comes to stand still in malloc(3)");
            kill_process(Pid::from_child(&process.0), signal).unwrap();
            process.0.stdin.as_mut().unwrap().write_all(b".").unwrap();
            assert!(hears(GOES_ON), "{signal:?}: its copy waits for the lock");
        }
    }
}
