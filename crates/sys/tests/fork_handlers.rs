//! Handlers of fork(3) that a program registers may use what no thread may use while it forks: they run before this crate's lock is
//! taken, and after it is given back.
//!
//! Alone in its process: handlers of fork(3) stay for good.

use prepage_sys::made_once::MadeOnce;

/// One for each handler.
static MADE: [MadeOnce<i32>; 3] = [const { MadeOnce::new() }; 3];

extern "C" fn before() {
    MADE[0].get_or_make(|| 1);
}

extern "C" fn in_parent() {
    MADE[1].get_or_make(|| 2);
}

extern "C" fn in_child() {
    // SAFETY: a child that waits for ever is ended.
    unsafe { libc::alarm(60) };
    MADE[2].get_or_make(|| 3);
}

#[test]
fn handlers_make_values() {
    // SAFETY: whoever waits for ever is ended.
    unsafe { libc::alarm(60) };
    // Before the crate's first use: its own handlers are registered before main.
    // SAFETY: the handlers take a lock that is free then.
    assert_eq!(unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) }, 0);
    prepage_sys::fork::generation();
    // SAFETY: the child looks at a value and leaves by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let status = MADE[2].get().copied().unwrap_or(0);
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(status) };
    }
    let mut status = -1;
    // SAFETY: `status` is a valid place for the result.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(libc::WEXITSTATUS(status), 3);
    assert_eq!(MADE.each_ref().map(|made| made.get().copied()), [Some(1), Some(2), None]);
}
