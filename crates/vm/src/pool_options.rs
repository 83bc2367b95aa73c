//! How a pool is to be.

use std::path::PathBuf;

use crate::order::Replacement;

/// How a [`Pool`](crate::Pool) is to be.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use prepage_vm::{Pool, PoolOptions, Vm, VmOptions};
///
/// // As much as there is, but for what others need more.
/// let pool = Pool::with(&PoolOptions::default().gives_back(64 << 20))?;
/// let vm = Vm::new(VmOptions::default().pool(&pool))?;
/// # let _ = vm;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct PoolOptions {
    pub(crate) limit_bytes: u64,
    pub(crate) replacement: Replacement,
    pub(crate) least_bytes: Option<u64>,
    pub(crate) swap: Option<(PathBuf, u64)>,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self { limit_bytes: u64::MAX, replacement: Replacement::default(), least_bytes: None, swap: None }
    }
}

impl PoolOptions {
    /// The most that frames may take; without limit unless given.
    pub fn limit_bytes(self, limit_bytes: u64) -> Self {
        Self { limit_bytes, ..self }
    }

    /// What goes first.
    pub fn replacement(self, replacement: Replacement) -> Self {
        Self { replacement, ..self }
    }

    /// Pages of [`Vm::memory`](crate::Vm::memory) go to files without names in `directory` where frames are short, `most_bytes` of
    /// them. A page keeps its place there until its object goes.
    pub fn swap(self, directory: impl Into<PathBuf>, most_bytes: u64) -> Self {
        Self { swap: Some((directory.into(), most_bytes)), ..self }
    }

    /// Gives memory back while the machine, or a control group that this process is in, is short of it, down to `least_bytes`:
    /// once less than a 32nd is left (512 MiB at most), all that is missing; while tasks wait for memory (PSI, where the kernel
    /// tells), what is idle, an eighth each time. The pool may grow again once there is enough. What cannot be taken away, because
    /// it is pinned or cannot be written back, makes no read fail: the pool grows for it. It does so in no case unless asked to.
    pub fn gives_back(self, least_bytes: u64) -> Self {
        Self { least_bytes: Some(least_bytes), ..self }
    }
}
