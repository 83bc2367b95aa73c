//! What a mapping allows.

use std::fmt;

/// What a mapping allows and whether it is shared, in one byte; written as in /proc/PID/maps: `r-xp`.
///
/// [`Permissions::NONE`], the default, is that of no mapping, and is written as nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Permissions(u8);

impl Permissions {
    /// No mapping.
    pub const NONE: Self = Self(0);
    /// May be read.
    pub const READ: Self = Self(1);
    /// May be written.
    pub const WRITE: Self = Self(2);
    /// May be executed.
    pub const EXECUTE: Self = Self(4);
    /// What is written reaches the object and all who map it.
    pub const SHARED: Self = Self(8);
    /// A write makes a copy of one's own.
    pub const PRIVATE: Self = Self(16);

    /// What a mapping with these PROT_ and MAP_ flags of mmap(2) allows.
    pub const fn of_mapping(protection: u32, flags: u32) -> Self {
        const MAP_SHARED: u32 = 1;
        // PROT_READ, PROT_WRITE and PROT_EXEC are the bits of this type.
        let letters = Self((protection & 7) as u8);
        letters.with(if flags & MAP_SHARED == 0 { Self::PRIVATE } else { Self::SHARED })
    }

    /// As a number, in five bits.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// From what [`Self::bits`] gave.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits & 31)
    }

    /// Whether there is no mapping.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether all of `other` is here.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// What either of the two has.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Every combination that a mapping can have, and the one of no mapping.
    pub fn all() -> impl Iterator<Item = Self> {
        let of = |sharing: Self| (0..8).map(move |bits| Self(bits).with(sharing));
        std::iter::once(Self::default()).chain(of(Self::SHARED)).chain(of(Self::PRIVATE))
    }

    /// The four letters; nothing where there is no mapping.
    pub fn text(self) -> &'static str {
        // One string each, so that tables of a million faults need no allocation.
        const PRIVATE: [&str; 8] = ["---p", "r--p", "-w-p", "rw-p", "--xp", "r-xp", "-wxp", "rwxp"];
        const SHARED: [&str; 8] = ["---s", "r--s", "-w-s", "rw-s", "--xs", "r-xs", "-wxs", "rwxs"];
        if self.is_empty() {
            return "";
        }
        let letters = usize::from(self.0 & 7);
        if self.contains(Self::SHARED) { SHARED[letters] } else { PRIVATE[letters] }
    }

    /// The permissions written as `text`.
    pub fn from_text(text: &str) -> Option<Self> {
        Self::all().find(|permissions| permissions.text() == text)
    }
}

impl fmt::Display for Permissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_is_read_as_it_is_written() {
        assert_eq!(Permissions::all().count(), 17);
        for permissions in Permissions::all() {
            assert_eq!(Permissions::from_text(permissions.text()), Some(permissions));
        }
        assert_eq!(Permissions::READ.with(Permissions::EXECUTE).with(Permissions::PRIVATE).text(), "r-xp");
        for (protection, flags, text) in [(0, 2, "---p"), (1, 1, "r--s"), (2, 2, "-w-p"), (4, 3, "--xs")] {
            assert_eq!(Permissions::of_mapping(protection | 1 << 24, flags | 0x20).text(), text);
        }
        for text in ["r", "rwx", "rwxy", "xwrp", "r-xpp", "ü-"] {
            assert_eq!(Permissions::from_text(text), None, "{text}");
        }
    }
}
