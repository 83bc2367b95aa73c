//! The checksum of a trace file.
//!
//! Parquet has none that covers the footer, and its readers trust what the footer says. The footer therefore
//! carries, as the value of key `prepage.crc32`, the CRC-32 of the whole file with that value's eight digits
//! replaced by [`UNSEALED`]: they are written last.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Key of the checksum.
const KEY: &[u8] = b"prepage.crc32";
/// Stands in place of the eight digits until they are known; stays where the file cannot be written twice.
pub(super) const UNSEALED: &str = "unsealed";
/// What the footer's `created_by` begins with. Tools that rewrite a trace copy its keys and not this.
pub(super) const CREATOR: &str = "prepage-trace version ";

/// What a file's checksum says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seal {
    /// The checksum is right.
    Whole,
    /// The file has no checksum.
    Absent,
    /// The checksum is wrong.
    Broken,
}

/// The key as text, for the writer.
pub(super) fn key() -> String {
    String::from_utf8_lossy(KEY).into_owned()
}

/// Puts `crc`, the checksum of the unsealed `file`, in its place.
pub(super) fn seal(file: &File, crc: u32) -> io::Result<()> {
    let (start, footer) = read_footer(file)?;
    let missing = || io::Error::new(io::ErrorKind::InvalidData, "no place for the checksum");
    let digits = place_of_digits(&footer).ok_or_else(missing)?;
    file.write_all_at(format!("{crc:08x}").as_bytes(), start + digits as u64)
}

/// Compares `file` with its checksum.
pub(super) fn check(file: &File) -> io::Result<Seal> {
    let (start, mut footer) = read_footer(file)?;
    let Some(at) = place_of_digits(&footer) else { return Ok(Seal::Absent) };
    let ours = footer.windows(CREATOR.len()).any(|window| window == CREATOR.as_bytes());
    let digits = &mut footer[at..at + UNSEALED.len()];
    if !ours || digits == UNSEALED.as_bytes() {
        return Ok(Seal::Absent);
    }
    let expected = std::str::from_utf8(digits).ok().and_then(|digits| u32::from_str_radix(digits, 16).ok());
    digits.copy_from_slice(UNSEALED.as_bytes());
    let mut hasher = crc32fast::Hasher::new();
    let mut portion = vec![0; 1 << 20];
    let mut at = 0;
    while at < start {
        let len = portion.len().min((start - at) as usize);
        file.read_exact_at(&mut portion[..len], at)?;
        hasher.update(&portion[..len]);
        at += len as u64;
    }
    hasher.update(&footer);
    Ok(if expected == Some(hasher.finalize()) { Seal::Whole } else { Seal::Broken })
}

/// The footer with what follows it, and where it starts. The file ends in the footer's length and four magic bytes.
fn read_footer(file: &File) -> io::Result<(u64, Vec<u8>)> {
    let file_bytes = file.metadata()?.len();
    let mut len = [0; 4];
    file.read_exact_at(&mut len, file_bytes.saturating_sub(8))?;
    // A length beyond the file is damage; whatever is read instead has no right checksum.
    let bytes = (u64::from(u32::from_le_bytes(len)) + 8).min(file_bytes);
    let mut footer = vec![0; bytes as usize];
    file.read_exact_at(&mut footer, file_bytes - bytes)?;
    Ok((file_bytes - bytes, footer))
}

/// After the key stand the field's header and the value's length, a byte each (Thrift's compact protocol).
fn place_of_digits(footer: &[u8]) -> Option<usize> {
    let at = footer.windows(KEY.len()).rposition(|window| window == KEY)? + KEY.len() + 2;
    (at + UNSEALED.len() <= footer.len()).then_some(at)
}
