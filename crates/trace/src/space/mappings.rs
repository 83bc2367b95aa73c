//! The mappings of one address space.

use std::collections::BTreeMap;

use prepage_core::{ObjectId, Permissions};

/// What is mapped at a range of addresses. Its start is its key in [`Mappings`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// One past the last address.
    pub end: u64,
    /// Offset in the file at the mapping's start, in bytes.
    pub offset_bytes: u64,
    /// What is mapped.
    pub object: ObjectId,
    /// What it allows, and whether it is shared.
    pub permissions: Permissions,
}

impl Mapping {
    /// Whether a write makes a copy of one's own.
    pub fn is_private(&self) -> bool {
        self.permissions.contains(Permissions::PRIVATE)
    }

    /// Whether the program may write.
    pub fn is_writable(&self) -> bool {
        self.permissions.contains(Permissions::WRITE)
    }
}

/// Mappings that do not overlap, by their start.
#[derive(Clone, Debug, Default)]
pub struct Mappings(BTreeMap<u64, Mapping>);

impl Mappings {
    /// The mapping that holds `address`, with its start.
    pub fn at(&self, address: u64) -> Option<(u64, &Mapping)> {
        let (&start, mapping) = self.0.range(..=address).next_back()?;
        (address < mapping.end).then_some((start, mapping))
    }

    /// All, from the lowest to the highest, each with its start.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Mapping)> {
        self.0.iter().map(|(&start, mapping)| (start, mapping))
    }

    /// Those that begin below `address`, from the highest to the lowest, each with its start.
    pub(super) fn below(&self, address: u64) -> impl Iterator<Item = (u64, &Mapping)> {
        self.0.range(..address).rev().map(|(&start, mapping)| (start, mapping))
    }

    /// Adds a mapping in place of what was there.
    pub fn insert(&mut self, start: u64, new: Mapping) {
        // The last mapping that begins before the new one may reach into it, or even past it.
        if let Some((&left, old)) = self.0.range_mut(..start).next_back()
            && old.end > start
        {
            let whole = *old;
            old.end = start;
            self.keep_rest(left, whole, new.end);
        }
        while let Some((&inner, &old)) = self.0.range(start..new.end).next() {
            self.0.remove(&inner);
            self.keep_rest(inner, old, new.end);
        }
        self.0.insert(start, new);
    }

    /// Puts back what of `old` lies at and above `from`.
    fn keep_rest(&mut self, start: u64, old: Mapping, from: u64) {
        if old.end > from {
            self.0.insert(from, Mapping { offset_bytes: old.offset_bytes + (from - start), ..old });
        }
    }
}
