//! The mappings of one address space.

use std::ops::Range;

use prepage_core::{ObjectId, Permissions};
use rangemap::RangeMap;

/// What is mapped at a range of addresses, of which each part is mapped alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// What is mapped.
    pub object: ObjectId,
    /// What it allows, and whether it is shared.
    pub permissions: Permissions,
    /// What to add to an address, wrapping around, for the offset in the file.
    bias: u64,
}

impl Mapping {
    /// `object` from byte `offset_bytes` on, mapped at `start`.
    pub fn new(start: u64, object: ObjectId, offset_bytes: u64, permissions: Permissions) -> Self {
        Self { object, permissions, bias: offset_bytes.wrapping_sub(start) }
    }

    /// Where in the file what is mapped at `address` lies, in bytes.
    pub fn offset_bytes(&self, address: u64) -> u64 {
        address.wrapping_add(self.bias)
    }

    /// Whether a write makes a copy of one's own.
    pub fn is_private(&self) -> bool {
        self.permissions.contains(Permissions::PRIVATE)
    }

    /// Whether the program may write.
    pub fn is_writable(&self) -> bool {
        self.permissions.contains(Permissions::WRITE)
    }
}

/// Mappings by address, each in place of what was there before. Neighbours that continue each other are one.
#[derive(Clone, Debug, Default)]
pub struct Mappings(RangeMap<u64, Mapping>);

impl Mappings {
    /// The mapping that holds `address`, with its addresses.
    pub fn at(&self, address: u64) -> Option<(&Range<u64>, &Mapping)> {
        self.0.get_key_value(&address)
    }

    /// All, from the lowest to the highest, each with its addresses.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Range<u64>, &Mapping)> {
        self.0.iter()
    }

    /// Whether nothing is mapped at these addresses.
    pub(super) fn is_free(&self, addresses: Range<u64>) -> bool {
        self.0.overlapping(addresses).next().is_none()
    }

    /// Adds a mapping in place of what was there.
    pub fn insert(&mut self, addresses: Range<u64>, new: Mapping) {
        self.0.insert(addresses, new);
    }
}
