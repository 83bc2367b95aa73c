//! The heap of a process with many short threads.

/// Lets all threads started from here on share one heap. By default each gets its own: five system calls and 64 MiB of
/// address space, for threads that allocate next to nothing; and what one heap has to spare is of no use to the others.
pub fn share_one() {
    #[cfg(target_env = "gnu")]
    {
        const M_ARENA_MAX: libc::c_int = -8; // malloc.h
        // SAFETY: mallopt takes two numbers. glibc guards its parameters with a lock.
        unsafe { libc::mallopt(M_ARENA_MAX, 1) };
    }
}
