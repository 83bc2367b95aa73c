//! How a pool is to be.

use std::path::PathBuf;

use crate::order::Replacement;

/// Options of a [`Pool`](crate::Pool).
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use prepage_vm::{Pool, PoolOptions, Vm, VmOptions};
///
/// // As much memory as there is, except what others need.
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
    /// The most memory that frames may take, in bytes; no limit by default.
    pub fn limit_bytes(self, limit_bytes: u64) -> Self {
        Self { limit_bytes, ..self }
    }

    /// Which frame is reclaimed next.
    pub fn replacement(self, replacement: Replacement) -> Self {
        Self { replacement, ..self }
    }

    /// When frames are short, pages of [`Vm::memory`](crate::Vm::memory) go to files without names in `directory`, `most_bytes` at most. A
    /// page keeps its place in the file until its object is dropped. The directory has to lie on a disk: in a tmpfs, as /tmp often is one, nothing would be
    /// freed, and [`Vm::memory`](crate::Vm::memory) refuses it. An overlay over a tmpfs, as live systems have, frees nothing either, and is not told from others.
    pub fn swap(self, directory: impl Into<PathBuf>, most_bytes: u64) -> Self {
        Self { swap: Some((directory.into(), most_bytes)), ..self }
    }

    /// Gives memory back while the machine, or a control group of this process, is short of memory; off by default. The pool keeps
    /// `least_bytes`, and pinned pages and snapshots besides. From one look at memory to the next, a second or less, it takes up to a quarter of what is left.
    /// If less than a 32nd of memory is left (512 MiB at most), the pool gives back its share of what is missing. While tasks wait for memory (PSI, if the
    /// kernel has it), it gives back idle pages, an eighth each time: those that nobody has touched since they were unwired, about a second before. Dirty pages, and
    /// others that cannot be unwired (see [`Object::unwire`](crate::Object::unwire)), stay until memory is missing, and so do all pages with [`Replacement::Static`], which unwires none. It may grow again once there is enough memory. If pages cannot be written back, no read fails for that: the pool grows.
    pub fn gives_back(self, least_bytes: u64) -> Self {
        Self { least_bytes: Some(least_bytes), ..self }
    }
}
