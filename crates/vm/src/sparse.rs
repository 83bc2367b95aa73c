//! A long list of which few entries are ever made, found without a lock.

use std::sync::OnceLock;

/// Entries that one group has.
const GROUP: usize = 128;

/// Entries are made when first needed, and kept; so are the groups that they lie in. To find one takes no lock, a few loads: faults look here.
///
/// Lock legend: set once, each entry and each group.
#[derive(Debug)]
pub(crate) struct Sparse<T>(Box<[OnceLock<Group<T>>]>);

type Group<T> = Box<[OnceLock<T>]>;

impl<T> Sparse<T> {
    /// A list with room for `len` entries, rounded up to whole groups, none of them made.
    pub(crate) fn new(len: usize) -> Self {
        Self((0..len.div_ceil(GROUP)).map(|_| OnceLock::new()).collect())
    }

    /// The entry at `index`; `None` where it was not made, or lies beyond the end.
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        self.0.get(index / GROUP)?.get()?[index % GROUP].get()
    }

    /// The entry at `index`, made by `make` where there is none.
    ///
    /// # Panics
    /// Beyond the end.
    pub(crate) fn get_or_make(&self, index: usize, make: impl FnOnce() -> T) -> &T {
        let group = self.0[index / GROUP].get_or_init(|| (0..GROUP).map(|_| OnceLock::new()).collect());
        group[index % GROUP].get_or_init(make)
    }

    /// What the list takes in memory by itself, in bytes: its groups, without what the entries hold elsewhere.
    pub(crate) fn bytes(&self) -> u64 {
        let groups = self.0.iter().filter_map(OnceLock::get);
        (size_of_val(&*self.0) + groups.map(|group| size_of_val(&**group)).sum::<usize>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_made_once_and_take_one_group() {
        let list = Sparse::new(1 << 14);
        let empty = list.bytes();
        assert_eq!((list.get(5), list.get((1 << 14) - 1), list.get(1 << 14)), (None, None, None));
        assert_eq!((*list.get_or_make(5, || 7), *list.get_or_make(5, || 8)), (7, 7));
        assert_eq!(*list.get_or_make((1 << 14) - 1, || 9), 9);
        assert_eq!((list.get(5), list.get(6), list.get((1 << 14) - 1)), (Some(&7), None, Some(&9)));
        let group = (GROUP * size_of::<OnceLock<i32>>()) as u64;
        assert_eq!(list.bytes(), empty + 2 * group);
        assert!(list.bytes() < 1 << 13, "{} bytes for two of {} entries", list.bytes(), 1 << 14);
    }
}
