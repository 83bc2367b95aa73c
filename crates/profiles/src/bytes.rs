//! Bytes of a file, wherever they are.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Where bytes of a file come from.
pub trait Bytes {
    /// How many there are.
    fn len_bytes(&self) -> u64;
    /// Reads at `offset_bytes`; fewer bytes than asked for only at the end.
    ///
    /// # Errors
    /// The device's or the system's.
    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<usize>;
}

impl Bytes for [u8] {
    fn len_bytes(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<usize> {
        let from = usize::try_from(offset_bytes).ok().and_then(|at| self.get(at..)).unwrap_or_default();
        let count = from.len().min(into.len());
        into[..count].copy_from_slice(&from[..count]);
        Ok(count)
    }
}

impl Bytes for File {
    fn len_bytes(&self) -> u64 {
        self.metadata().map_or(0, |metadata| metadata.len())
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < into.len() {
            match FileExt::read_at(self, &mut into[filled..], offset_bytes + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }
}
