//! How many files this process may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Of these, so many are for all else that it does; a quarter of fewer than four times as many.
const OTHERS: u64 = 1024;

/// Lets this process have as many files open as its hard limit allows: the usual soft limit is 1024, for the sake of programs
/// that use select(2). Where that is refused, the limit stays, and the open that goes beyond it fails.
pub fn allow_many() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// The same until what is returned is dropped: programs that are started afterwards inherit the limit as it was.
#[must_use]
pub fn allow_many_for_now() -> AsBefore {
    let before = AsBefore(getrlimit(Resource::Nofile));
    allow_many();
    before
}

/// Dropped, it takes the limit back to what it was.
#[derive(Debug)]
pub struct AsBefore(Rlimit);

impl Drop for AsBefore {
    fn drop(&mut self) {
        let _ = setrlimit(Resource::Nofile, self.0);
    }
}

/// How many files prefetches may hold open.
pub fn for_prefetches() -> u64 {
    let all = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    all - OTHERS.min(all / 4)
}
