//! Where a list of reads stands that several threads take from.

use std::collections::VecDeque;

/// Which reads nobody has taken.
#[derive(Debug, Default)]
pub(super) struct Cursor {
    /// The first one that nobody has looked at.
    next: usize,
    /// Earlier ones, which were not ready then, in order.
    passed: VecDeque<usize>,
}

impl Cursor {
    /// Whether any of `len` reads is left.
    pub(super) fn has_left(&self, len: usize) -> bool {
        self.next < len || !self.passed.is_empty()
    }

    /// Takes the first of `len` reads that `is_ready`. Where none is, the first there is: whoever takes it waits. `None` at the end.
    pub(super) fn take_ready(&mut self, len: usize, is_ready: impl Fn(usize) -> bool) -> Option<usize> {
        if let Some(at) = self.passed.iter().position(|&read| is_ready(read)) {
            return self.passed.remove(at);
        }
        while self.next < len {
            let read = self.next;
            self.next += 1;
            if is_ready(read) {
                return Some(read);
            }
            self.passed.push_back(read);
        }
        self.passed.pop_front()
    }

    /// Takes the next of `len` reads, up to where `end` says for the first of them. `None` at the end.
    pub(super) fn take(&mut self, len: usize, end: impl FnOnce(usize) -> usize) -> Option<(usize, usize)> {
        let first = self.next;
        (first < len).then(|| {
            self.next = end(first);
            (first, self.next)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_not_ready_is_passed_over_until_it_is() {
        let mut cursor = Cursor::default();
        let mut take = |ready: &[usize]| cursor.take_ready(5, |read| ready.contains(&read));
        assert_eq!(take(&[2, 3, 4]), Some(2));
        assert_eq!(take(&[1, 3, 4]), Some(1), "before what comes later");
        assert_eq!(take(&[3, 4]), Some(3));
        assert_eq!(take(&[]), Some(0), "nothing is ready");
        assert_eq!(take(&[]), Some(4));
        assert_eq!(take(&[0]), None);
    }

    proptest! {
        #[test]
        fn each_read_is_taken_once(len in 0..20_usize, ready in vec(vec(any::<bool>(), 20), 20)) {
            let (mut cursor, mut left) = (Cursor::default(), (0..len).collect::<Vec<_>>());
            for ready in ready.iter().take(len) {
                prop_assert!(cursor.has_left(len));
                let at = left.iter().position(|&read| ready[read]).unwrap_or(0);
                prop_assert_eq!(cursor.take_ready(len, |read| ready[read]), Some(left.remove(at)));
            }
            prop_assert!(!cursor.has_left(len) && cursor.take_ready(len, |_| true).is_none());
        }
    }
}
