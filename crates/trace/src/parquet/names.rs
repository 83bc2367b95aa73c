//! The objects, threads and stacks that a scan has met so far.

use std::hash::Hash;
use std::sync::Mutex;

use ::parquet::errors::ParquetError;
use indexmap::IndexSet;
use prepage_core::{Object, Stack, Thread};
use prepage_sys::sync::Anyway;
use rustc_hash::FxBuildHasher;

/// What the numbers in the faults of one scan mean. Grows while the scan runs, from several threads.
#[derive(Debug, Default)]
pub struct Names {
    /// By [`prepage_core::ObjectId`].
    pub objects: Numbered<Object>,
    /// By [`prepage_core::ThreadIndex`].
    pub threads: Numbered<Thread>,
    /// By [`prepage_core::StackId`].
    pub stacks: Numbered<Stack>,
}

/// Entries numbered in the order they were first met. The lock is taken once a worker meets an entry for the first
/// time, not once a fault.
#[derive(Debug)]
pub struct Numbered<T>(Mutex<IndexSet<T, FxBuildHasher>>);

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone + Eq + Hash> Numbered<T> {
    /// The entry with this number.
    ///
    /// # Panics
    /// When the number is of another scan.
    pub fn get(&self, number: u32) -> T {
        self.0.lock().anyway()[number as usize].clone()
    }

    /// All entries, indexed by their numbers.
    pub fn all(&self) -> Vec<T> {
        self.0.lock().anyway().iter().cloned().collect()
    }

    pub(super) fn number(&self, entry: &T) -> Result<u32, ParquetError> {
        let mut table = self.0.lock().anyway();
        let number = table.get_index_of(entry).unwrap_or_else(|| table.insert_full(entry.clone()).0);
        // The last number is left to "none".
        let number = u32::try_from(number).ok().filter(|&number| number < u32::MAX);
        number.ok_or_else(|| ParquetError::General("too many different entries".into()))
    }
}
