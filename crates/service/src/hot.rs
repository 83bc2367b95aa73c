//! Files that are executed again and again while none of their starts needs anything: the kernel passes over them for a while.
//!
//! A build executes the same few programs all the time. To be woken for an execution costs the service more than to see that nothing is to be
//! done for it, and the program waits for the event to be made.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use prepage_sys::file_handle::FileHandle;
use prepage_sys::sync::Anyway;

/// What is passed over is looked at again after this long, as a program at rest is ([`crate::files`]).
const PERIOD: Duration = Duration::from_secs(8);
/// Files that are counted, and files that are passed over: the kernel keeps the inodes of these in memory.
const COUNTED_MAX: usize = 4096;
const PASSED_OVER_MAX: usize = 256;
/// The count of a file that is passed over.
const PASSED_OVER: u32 = u32::MAX;
/// What was passed over in the period before is passed over again after the number of executions divided by this, and after one at least.
const FEWER: u32 = 8;

/// What needed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needless {
    /// A program that needs nothing whenever it is executed.
    Always,
    /// A program at rest: once it has rested it may need something.
    ForNow,
    /// What loads programs. It tells when a program that is awaited will be there, which matters where few are executed.
    Loader,
}

impl Needless {
    /// So many executions within a period make a file hot.
    fn times(self) -> u32 {
        match self {
            Self::Always => 4,
            Self::ForNow => 16,
            Self::Loader => 64,
        }
    }
}

/// What [`Hot`] is to forget: other threads find that out, and the one that watches takes it. Lock order: none, there is one lock.
#[derive(Debug, Default)]
pub struct ToForget(Mutex<Forgotten>);

/// What is to be forgotten.
#[derive(Debug, PartialEq, Eq)]
pub enum Forgotten {
    /// These files: a start of each has needed something.
    Files(HashSet<FileHandle>),
    /// All of it: what is wanted has changed, or more files than are counted have needed something.
    All,
}

impl Default for Forgotten {
    fn default() -> Self {
        Self::Files(HashSet::new())
    }
}

impl ToForget {
    /// A start of the program in `file` has needed something.
    pub fn note(&self, file: FileHandle) {
        self.change(|forgotten| match forgotten {
            Forgotten::Files(files) if files.len() < COUNTED_MAX => _ = files.insert(file),
            other => *other = Forgotten::All,
        });
    }

    /// What is wanted has changed.
    pub fn note_all(&self) {
        self.change(|forgotten| *forgotten = Forgotten::All);
    }

    /// What was noted since the last call.
    pub fn take(&self) -> Forgotten {
        let mut taken = Forgotten::default();
        self.change(|forgotten| taken = std::mem::take(forgotten));
        taken
    }

    fn change(&self, change: impl FnOnce(&mut Forgotten)) {
        change(&mut self.0.lock().anyway());
    }
}

/// What was executed in this period, and needed nothing.
#[derive(Debug)]
pub struct Hot {
    began: Instant,
    counts: HashMap<FileHandle, u32>,
    passed_over: usize,
    /// What was passed over in the period before.
    before: HashSet<FileHandle>,
}

impl Hot {
    /// Nothing was, until `now`.
    pub fn new(now: Instant) -> Self {
        Self { began: now, counts: HashMap::new(), passed_over: 0, before: HashSet::new() }
    }

    /// An execution of `file`, which is one of `what`, needed nothing. Returns whether the kernel is to pass over the file from now on.
    pub fn see(&mut self, file: &FileHandle, what: Needless) -> bool {
        if !self.counts.contains_key(file) {
            if self.counts.len() >= COUNTED_MAX {
                return false;
            }
            self.counts.insert(file.clone(), 0);
        }
        let Some(times) = self.counts.get_mut(file) else { return false };
        // Some events of a file that is passed over may be in the queue.
        if *times == PASSED_OVER {
            return false;
        }
        *times += 1;
        let wanted = if self.before.contains(file) { what.times() / FEWER } else { what.times() };
        let is_hot = *times >= wanted && self.passed_over < PASSED_OVER_MAX;
        if is_hot {
            *times = PASSED_OVER;
            self.passed_over += 1;
        }
        is_hot
    }

    /// A start of the program in `file` has needed something: its executions are counted anew, as those of a file that was not hot before. Where the
    /// kernel passes over the file already, it does so until the period ends.
    pub fn forget(&mut self, file: &FileHandle) {
        self.before.remove(file);
        // A mark that the kernel has still counts among those that it may have.
        self.counts.remove(file);
    }

    /// Begins another period where it is time for one. Returns whether it has: from then on no file is to be passed over, also where none was in
    /// this period, for the kernel may have been asked late to pass over those of the one before.
    pub fn tick(&mut self, now: Instant) -> bool {
        let is_over = now.saturating_duration_since(self.began) >= PERIOD;
        if is_over {
            let passed_over = self.counts.drain().filter(|(_, times)| *times == PASSED_OVER);
            let before = passed_over.map(|(file, _)| file).collect();
            *self = Self { before, ..Self::new(now) };
        }
        is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(number: u32) -> FileHandle {
        FileHandle { file_system: 1, kind: 1, bytes: number.to_ne_bytes().into() }
    }

    #[test]
    fn what_is_executed_often_is_passed_over_until_the_period_is_over() {
        let began = Instant::now();
        let mut hot = Hot::new(began);
        let mut times = |number, what, count| (0..count).filter(|_| hot.see(&file(number), what)).count();
        for (number, what) in (1..).zip([Needless::Always, Needless::ForNow, Needless::Loader]) {
            assert_eq!(times(number, what, what.times() - 1), 0);
            assert_eq!((times(number, what, 1), times(number, what, 100)), (1, 0), "once");
        }
        // A program at rest comes to be one that needs nothing at all.
        assert_eq!(times(4, Needless::ForNow, Needless::Always.times() + 1), 0);
        assert_eq!(times(4, Needless::Always, 1), 1);
        assert!(!hot.tick(began + PERIOD / 2));
        assert!(hot.tick(began + PERIOD));
        let mut seen =
            |number, what, count| (0..count).map(|_| hot.see(&file(number), what)).collect::<Vec<_>>();
        assert_eq!(seen(1, Needless::Always, 2), [true, false], "it was hot a moment before");
        let (few, loader) = (Needless::Loader.times() / FEWER, Needless::Loader);
        assert_eq!(seen(3, loader, few).iter().position(|is_hot| *is_hot), Some(few as usize - 1));
        assert!(!seen(5, loader, few)[few as usize - 1], "it was not");
        assert!(hot.tick(began + 2 * PERIOD) && !hot.tick(began + 2 * PERIOD));
        assert!(
            hot.tick(began + 3 * PERIOD),
            "what the kernel was asked for late ends with a period without hot files"
        );
    }

    #[test]
    fn a_start_that_needs_something_begins_the_count_anew() {
        let began = Instant::now();
        let (mut hot, what) = (Hot::new(began), Needless::ForNow);
        let see = |hot: &mut Hot, number, count| (0..count).filter(|_| hot.see(&file(number), what)).count();
        assert_eq!([1, 2].map(|number| see(&mut hot, number, what.times())), [1, 1]);
        assert!(hot.tick(began + PERIOD));
        hot.forget(&file(1));
        assert_eq!([1, 2].map(|number| see(&mut hot, number, what.times() / FEWER)), [0, 1]);
        assert_eq!(see(&mut hot, 3, what.times() - 1), 0);
        hot.forget(&file(3));
        assert_eq!([what.times() - 1, 1].map(|count| see(&mut hot, 3, count)), [0, 1]);
    }

    #[test]
    fn what_is_to_be_forgotten_is_taken_once_and_bounded() {
        let to_forget = ToForget::default();
        to_forget.note(file(1));
        assert_eq!(to_forget.take(), Forgotten::Files([file(1)].into()));
        assert_eq!(to_forget.take(), Forgotten::default());
        to_forget.note_all();
        to_forget.note(file(1));
        assert_eq!(to_forget.take(), Forgotten::All);
        (0..2 * COUNTED_MAX as u32).for_each(|number| to_forget.note(file(number)));
        assert_eq!(to_forget.take(), Forgotten::All);
    }

    #[test]
    fn of_any_number_of_files_few_are_counted_and_passed_over() {
        let mut hot = Hot::new(Instant::now());
        let always = Needless::Always;
        let all = (0..16 * COUNTED_MAX as u32)
            .flat_map(|number| std::iter::repeat_n(number, always.times() as usize));
        assert_eq!(all.filter(|number| hot.see(&file(*number), always)).count(), PASSED_OVER_MAX);
        assert!(hot.counts.len() <= COUNTED_MAX);
    }
}
