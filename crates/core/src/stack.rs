//! Where code was when it faulted.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use crate::trace::ObjectId;

/// Names a [`Stack`] of its trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StackId(NonZeroU32);

impl StackId {
    /// The stack at `index` of [`crate::Trace::stacks`].
    ///
    /// # Panics
    /// For index 2³² − 1, more stacks than memory holds.
    pub const fn new(index: u32) -> Self {
        match NonZeroU32::new(index.wrapping_add(1)) {
            Some(number) => Self(number),
            None => panic!("fewer than 2^32 - 1 stacks"),
        }
    }

    /// Its place in [`crate::Trace::stacks`].
    pub const fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// A place in code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CodePlace {
    /// What is mapped there; `None` for memory of no known mapping.
    pub object: Option<ObjectId>,
    /// In a file, or the vdso, the offset from its start in bytes; elsewhere the address.
    pub offset: u64,
}

/// The calls that led to a fault, the instruction that faulted first, its callers after it. The kernel's own
/// functions are left out: for a fault taken in a system call the first place is that of the call.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stack {
    /// Leaf first.
    pub places: Vec<CodePlace>,
}

/// The ELF build-id of a file: what names its contents, wherever it is copied to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BuildId {
    bytes: [u8; Self::BYTES_MAX],
    len: u8,
}

impl BuildId {
    /// The longest there is: 20 bytes are usual (SHA-1), `ld --build-id=sha256` makes 32.
    pub const BYTES_MAX: usize = 32;

    /// The build-id of these bytes; `None` for none or too many.
    pub fn new(id: &[u8]) -> Option<Self> {
        let mut bytes = [0; Self::BYTES_MAX];
        bytes.get_mut(..id.len())?.copy_from_slice(id);
        (!id.is_empty()).then_some(Self { bytes, len: id.len() as u8 })
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Display for BuildId {
    /// In hexadecimal, as file(1) and debuginfod have it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BuildId({self})")
    }
}

/// A text that is no build-id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotABuildId;

impl FromStr for BuildId {
    type Err = NotABuildId;

    fn from_str(text: &str) -> Result<Self, NotABuildId> {
        let digits = text.as_bytes();
        let pairs = digits.chunks_exact(2);
        if !pairs.remainder().is_empty() || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(NotABuildId);
        }
        let digit = |byte: u8| (byte as char).to_digit(16).unwrap_or(0) as u8;
        let bytes: Vec<u8> = pairs.map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect();
        Self::new(&bytes).ok_or(NotABuildId)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_ids_are_read_as_they_are_written() {
        for len in 1..=BuildId::BYTES_MAX {
            let bytes: Vec<u8> = (0..len as u8).map(|at| at.wrapping_mul(37)).collect();
            let id = BuildId::new(&bytes).expect("a build-id");
            assert_eq!(id.to_string().parse(), Ok(id));
            assert_eq!(id.as_bytes(), bytes);
        }
        for text in ["", "0", "0g", "+1", &"00".repeat(33)] {
            assert_eq!(text.parse::<BuildId>(), Err(NotABuildId), "{text}");
        }
    }

    #[test]
    fn stacks_are_numbered_from_zero() {
        assert_eq!(StackId::new(0).index(), 0);
        assert_eq!(size_of::<Option<StackId>>(), 4);
    }
}
