//! Call stacks, each kept once.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use prepage_core::{CodePlace, Stack, StackId};

use crate::space::AddressSpaces;

/// The stacks seen so far. Their memory grows with how many different ones there are.
#[derive(Debug, Default)]
pub(super) struct Stacks {
    all: Vec<Stack>,
    /// By hash; one whose place is taken by another is found under the next number that is free.
    ids: HashMap<u64, StackId>,
    hasher: RandomState,
    places: usize,
}

impl Stacks {
    /// The number of the stack of these `calls`, addresses in process `pid`, innermost first.
    pub(super) fn number(&mut self, pid: u32, calls: &[u64], spaces: &AddressSpaces) -> StackId {
        let places: Vec<CodePlace> = calls.iter().map(|&address| spaces.code_place(pid, address)).collect();
        let mut hash = self.hasher.hash_one(&places);
        while let Some(&id) = self.ids.get(&hash) {
            if self.all[id.index()].places == places {
                return id;
            }
            hash = hash.wrapping_add(1);
        }
        let id = StackId::new(u32::try_from(self.all.len()).expect("stacks fit in memory"));
        self.places += places.len();
        self.all.push(Stack { places });
        self.ids.insert(hash, id);
        id
    }

    /// What they take in memory, about.
    pub(super) fn bytes(&self) -> usize {
        self.places * size_of::<CodePlace>() + self.all.len() * (size_of::<Stack>() + 64)
    }

    pub(super) fn all(&self) -> &[Stack] {
        &self.all
    }

    pub(super) fn into_all(self) -> Vec<Stack> {
        self.all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_stacks_have_one_number() {
        let (mut stacks, spaces) = (Stacks::default(), AddressSpaces::default());
        let mut number = |calls: &[u64]| stacks.number(1, calls, &spaces).index();
        assert_eq!([number(&[1, 2]), number(&[1, 3]), number(&[]), number(&[1, 2])], [0, 1, 2, 0]);
        assert_eq!(stacks.all()[1].places[1], CodePlace { object: None, offset: 3 });
    }
}
