//! The objects, threads and stacks that a scan has met so far.

use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ::parquet::errors::ParquetError;
use indexmap::IndexSet;
use prepage_core::{Object, ObjectId, Stack, StackId, Thread, ThreadIndex};
use rustc_hash::FxBuildHasher;

/// What the numbers in the faults of one scan mean. Grows while the scan runs, from several threads.
#[derive(Debug, Default)]
pub struct Names {
    objects: Table<Object>,
    threads: Table<Thread>,
    stacks: Table<Stack>,
}

impl Names {
    /// The object with this number.
    ///
    /// # Panics
    /// When the number is of another scan.
    pub fn object(&self, id: ObjectId) -> Object {
        self.objects.entry(id.0)
    }

    /// The thread with this number.
    ///
    /// # Panics
    /// When the number is of another scan.
    pub fn thread(&self, index: ThreadIndex) -> Thread {
        self.threads.entry(index.0)
    }

    /// The stack with this number.
    ///
    /// # Panics
    /// When the number is of another scan.
    pub fn stack(&self, id: StackId) -> Stack {
        self.stacks.entry(id.index() as u32)
    }

    /// All objects, indexed by [`ObjectId`].
    pub fn objects(&self) -> Vec<Object> {
        self.objects.all()
    }

    /// All threads, indexed by [`ThreadIndex`].
    pub fn threads(&self) -> Vec<Thread> {
        self.threads.all()
    }

    /// All stacks, indexed by [`StackId`].
    pub fn stacks(&self) -> Vec<Stack> {
        self.stacks.all()
    }

    pub(super) fn object_id(&self, object: &Object) -> Result<ObjectId, ParquetError> {
        self.objects.number(object).map(ObjectId)
    }

    pub(super) fn thread_index(&self, thread: &Thread) -> Result<ThreadIndex, ParquetError> {
        self.threads.number(thread).map(ThreadIndex)
    }

    pub(super) fn stack_id(&self, stack: &Stack) -> Result<StackId, ParquetError> {
        self.stacks.number(stack).map(StackId::new)
    }
}

/// Entries numbered in the order they were first met. The lock is taken once a worker meets an entry for the first
/// time, not once a fault.
#[derive(Debug)]
struct Table<T>(Mutex<IndexSet<T, FxBuildHasher>>);

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone + Eq + Hash> Table<T> {
    fn lock(&self) -> MutexGuard<'_, IndexSet<T, FxBuildHasher>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn entry(&self, number: u32) -> T {
        self.lock()[number as usize].clone()
    }

    fn all(&self) -> Vec<T> {
        self.lock().iter().cloned().collect()
    }

    fn number(&self, entry: &T) -> Result<u32, ParquetError> {
        let mut table = self.lock();
        let number = table.get_index_of(entry).unwrap_or_else(|| table.insert_full(entry.clone()).0);
        // The last number is left to "none".
        let number = u32::try_from(number).ok().filter(|&number| number < u32::MAX);
        number.ok_or_else(|| ParquetError::General("too many different entries".into()))
    }
}
