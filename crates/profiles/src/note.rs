//! Room for a page map in a note segment, which a program's linker reserved.
//!
//! A segment is found from the first page of the file, without the read at its end that a section takes; but only the
//! linker can make one. So it reserves the room (docs/profile-format.md says how), and `prepage profile embed` fills it: nothing moves, nothing grows.

use object::Endianness;
use object::elf::PT_NOTE;
use object::endian::Endian;

use crate::bytes::Bytes;
use crate::elf::{Elf, ElfError};

/// Owner and type of the note.
const NAME: &[u8; 8] = b"prepage\0";
const TYPE: u32 = 1;
/// The longest note segment that is read: longer ones hold something else.
const SEGMENT_BYTES_MAX: u64 = 1 << 20;
/// Note segments that are looked into: files have three.
const SEGMENTS_MAX: usize = 16;
/// `n_namesz`, `n_descsz`, `n_type`.
const HEADER_BYTES: u64 = 12;

/// Room for a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Where it begins in the file.
    pub offset_bytes: u64,
    /// How much there is.
    pub size_bytes: u64,
}

/// The room in `bytes`, if its linker left any.
///
/// # Errors
/// When it cannot be read.
pub fn room<B: Bytes + ?Sized>(bytes: &B, elf: &Elf) -> Result<Option<Room>, ElfError> {
    let notes = elf.segments.iter().filter(|segment| segment.kind == PT_NOTE.0);
    for segment in notes.take(SEGMENTS_MAX).filter(|segment| segment.file_bytes <= SEGMENT_BYTES_MAX) {
        let mut notes = vec![0; segment.file_bytes as usize];
        let read = bytes.read_at(segment.offset_bytes, &mut notes)?;
        let align = if segment.align_bytes == 8 { 8 } else { 4 };
        if let Some((at, size_bytes)) = find(&notes[..read], elf.endian, align) {
            return Ok(Some(Room { offset_bytes: segment.offset_bytes + at, size_bytes }));
        }
    }
    Ok(None)
}

/// Where in `notes` the content of ours begins, and how long it is.
fn find(notes: &[u8], endian: Endianness, align: u64) -> Option<(u64, u64)> {
    let mut at = 0u64;
    loop {
        let word = |at: u64| -> Option<u32> {
            let at = usize::try_from(at).ok()?;
            Some(endian.read_u32(notes.get(at..at.checked_add(4)?)?.try_into().ok()?))
        };
        let (name_bytes, size_bytes, kind) = (word(at)?, word(at + 4)?, word(at + 8)?);
        let name = at + HEADER_BYTES;
        let content = (name + u64::from(name_bytes)).checked_next_multiple_of(align)?;
        let end = content.checked_add(u64::from(size_bytes))?;
        if end > notes.len() as u64 {
            return None;
        }
        let is_ours = kind == TYPE && notes[name as usize..].starts_with(NAME);
        if is_ours && name_bytes as usize == NAME.len() {
            return Some((content, u64::from(size_bytes)));
        }
        at = end.checked_next_multiple_of(align)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(name: &[u8], kind: u32, content: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for word in [name.len() as u32, content.len() as u32, kind] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        for part in [name, content] {
            bytes.extend_from_slice(part);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    #[test]
    fn the_room_is_found_among_other_notes() {
        let other = note(b"GNU\0", 3, &[9; 20]);
        let all = [&other[..], &note(b"prepage\0", 2, &[1; 4]), &note(NAME, TYPE, &[0; 64])].concat();
        let (at, size) = find(&all, Endianness::Little, 4).unwrap();
        assert_eq!((at as usize, size), (all.len() - 64, 64));
        assert_eq!(find(&other, Endianness::Little, 4), None);
    }

    #[test]
    fn notes_that_lie_about_their_length_end_the_search() {
        let mut lying = note(NAME, TYPE, &[0; 64]);
        lying[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(find(&lying, Endianness::Little, 4), None);
        lying[0..4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(find(&lying, Endianness::Little, 8), None);
        assert_eq!(find(&lying[..7], Endianness::Little, 4), None);
    }
}
