//! The objects, threads and stacks that a scan has met so far.

use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ::parquet::errors::ParquetError;
use prepage_core::{Object, ObjectId, Stack, StackId, Thread, ThreadIndex};
use rustc_hash::FxHashMap;

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
        self.objects.lock().0.clone()
    }

    /// All threads, indexed by [`ThreadIndex`].
    pub fn threads(&self) -> Vec<Thread> {
        self.threads.lock().0.clone()
    }

    /// All stacks, indexed by [`StackId`].
    pub fn stacks(&self) -> Vec<Stack> {
        self.stacks.lock().0.clone()
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
struct Table<T>(Mutex<(Vec<T>, FxHashMap<T, u32>)>);

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone + Eq + Hash> Table<T> {
    fn lock(&self) -> MutexGuard<'_, (Vec<T>, FxHashMap<T, u32>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn entry(&self, number: u32) -> T {
        self.lock().0[number as usize].clone()
    }

    fn number(&self, entry: &T) -> Result<u32, ParquetError> {
        let mut table = self.lock();
        if let Some(&number) = table.1.get(entry) {
            return Ok(number);
        }
        // The last number is left to "none".
        let number = u32::try_from(table.0.len()).ok().filter(|&number| number < u32::MAX);
        let number = number.ok_or_else(|| ParquetError::General("too many different entries".into()))?;
        table.0.push(entry.clone());
        table.1.insert(entry.clone(), number);
        Ok(number)
    }
}
