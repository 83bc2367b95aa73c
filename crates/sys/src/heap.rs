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

/// Gives pages of the heap that hold nothing back to the kernel: after work that took much. Where the heap ends with something that stays,
/// the memory below it otherwise remains the process's.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes a number, and each heap's lock.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    #[test]
    fn what_lies_below_something_that_stays_is_given_back() {
        // Pieces that malloc(3) makes no mapping of their own for.
        const PIECES: usize = 512;
        const PIECE_BYTES: usize = 32 << 10;
        let anonymous = || {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
            line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() << 10
        };
        let pieces: Vec<Vec<u8>> = (0..PIECES).map(|_| vec![1; PIECE_BYTES]).collect();
        let stays = vec![1_u8; PIECE_BYTES];
        drop(pieces);
        let before = anonymous();
        give_back();
        assert!(
            before - anonymous() > PIECES * PIECE_BYTES / 2,
            "{before} bytes before, {} after",
            anonymous()
        );
        drop(stays);
    }
}
