//! Files that are executed again and again while none of their starts needs anything: the kernel passes over them for a while.
//!
//! A build executes the same few programs all the time. To be woken for an execution costs the service more than to see that nothing is to be
//! done for it, and the program waits for the event to be made.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use prepage_sys::file_handle::FileHandle;

/// What is passed over is looked at again after this long, as a program at rest is ([`crate::files`]).
const PERIOD: Duration = Duration::from_secs(8);
/// So many executions within it make a file hot.
const TIMES: u32 = 4;
/// The same of what loads programs: it tells when a program that is awaited will be there, which matters where few are executed.
const TIMES_OF_LOADERS: u32 = 64;
/// Files that are counted, and files that are passed over: the kernel keeps the inodes of these in memory.
const COUNTED_MAX: usize = 4096;
const PASSED_OVER_MAX: usize = 256;

/// What was executed in this period, and needed nothing.
#[derive(Debug)]
pub struct Hot {
    began: Instant,
    counts: HashMap<FileHandle, u32>,
    passed_over: usize,
}

impl Hot {
    /// Nothing was, until `now`.
    pub fn new(now: Instant) -> Self {
        Self { began: now, counts: HashMap::new(), passed_over: 0 }
    }

    /// An execution of `file` needed nothing. Returns whether the kernel is to pass over the file from now on.
    pub fn see(&mut self, file: &FileHandle, is_loader: bool) -> bool {
        if !self.counts.contains_key(file) {
            if self.counts.len() >= COUNTED_MAX {
                return false;
            }
            self.counts.insert(file.clone(), 0);
        }
        let Some(times) = self.counts.get_mut(file) else { return false };
        *times = times.saturating_add(1);
        let is_hot = *times == if is_loader { TIMES_OF_LOADERS } else { TIMES };
        let is_passed_over = is_hot && self.passed_over < PASSED_OVER_MAX;
        self.passed_over += usize::from(is_passed_over);
        is_passed_over
    }

    /// Begins another period where it is time for one. Returns whether it has: from then on no file is to be passed over, also where none was in
    /// this period, for the kernel may have been asked late to pass over those of the one before.
    pub fn tick(&mut self, now: Instant) -> bool {
        let is_over = now.saturating_duration_since(self.began) >= PERIOD;
        if is_over {
            *self = Self::new(now);
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
        let mut times =
            |number, is_loader, count| (0..count).filter(|_| hot.see(&file(number), is_loader)).count();
        assert_eq!(times(1, false, TIMES - 1), 0);
        assert_eq!((times(1, false, 1), times(1, false, 100)), (1, 0), "once");
        assert_eq!((times(2, true, TIMES_OF_LOADERS - 1), times(2, true, 1)), (0, 1));
        assert!(!hot.tick(began + PERIOD / 2));
        assert!(hot.tick(began + PERIOD));
        assert_eq!((0..TIMES).filter(|_| hot.see(&file(1), false)).count(), 1);
        assert!(hot.tick(began + 2 * PERIOD) && !hot.tick(began + 2 * PERIOD));
        assert!(
            hot.tick(began + 3 * PERIOD),
            "what the kernel was asked for late ends with a period without hot files"
        );
    }

    #[test]
    fn of_any_number_of_files_few_are_counted_and_passed_over() {
        let mut hot = Hot::new(Instant::now());
        let all = (0..16 * COUNTED_MAX as u32).flat_map(|number| std::iter::repeat_n(number, TIMES as usize));
        assert_eq!(all.filter(|number| hot.see(&file(*number), false)).count(), PASSED_OVER_MAX);
        assert!(hot.counts.len() <= COUNTED_MAX);
    }
}
