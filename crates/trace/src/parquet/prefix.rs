//! The readable part of a trace file that was not completed.
//!
//! While a trace is written, a footer is put after its row groups from time to time. A file that ends with one is whole
//! as it is; in any other, what lies before the last footer is.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use ::parquet::errors::Result;
use ::parquet::file::metadata::ParquetMetaDataReader;
use ::parquet::file::reader::{ChunkReader, Length};
use bytes::Bytes;

use super::schema::VERSION_KEY;

const MAGIC: &[u8; 4] = b"PAR1";
/// Length of the footer and magic bytes.
const TRAILER_BYTES: u64 = 8;
/// Looked through at a time, from the end.
const PORTION_BYTES: u64 = 1 << 20;

/// The first `len` bytes of a file. Clones share the file.
#[derive(Clone, Debug)]
pub(super) struct Prefix {
    file: Arc<File>,
    len: u64,
}

/// A place in a file, without moving the file's own.
#[derive(Debug)]
pub(super) struct PrefixReader {
    file: Arc<File>,
    at: u64,
    end: u64,
}

impl Prefix {
    pub(super) fn whole(file: File) -> io::Result<Self> {
        let len = file.metadata()?.len();
        Ok(Self { file: Arc::new(file), len })
    }

    /// Up to the last footer of a trace that `file` holds, if there is one.
    pub(super) fn readable(file: File) -> io::Result<Option<Self>> {
        let len = file.metadata()?.len();
        let mut prefix = Self { file: Arc::new(file), len };
        let mut end = len;
        let mut portion = Vec::new();
        while end > TRAILER_BYTES {
            let start = end.saturating_sub(PORTION_BYTES);
            // Magic bytes across two portions are found in the lower one.
            let over = (len - end).min(MAGIC.len() as u64 - 1);
            portion.resize((end - start + over) as usize, 0);
            prefix.file.read_exact_at(&mut portion, start)?;
            let places: Vec<usize> = places_of_magic(&portion).collect();
            for place in places.into_iter().rev() {
                prefix.len = start + place as u64 + MAGIC.len() as u64;
                if prefix.ends_with_footer() {
                    return Ok(Some(prefix));
                }
            }
            end = start;
        }
        Ok(None)
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Whether it ends as a trace does. Chance makes the magic bytes appear in other places.
    fn ends_with_footer(&self) -> bool {
        let Ok(metadata) = ParquetMetaDataReader::new().parse_and_finish(self) else { return false };
        let entries = metadata.file_metadata().key_value_metadata();
        entries.is_some_and(|entries| entries.iter().any(|entry| entry.key == VERSION_KEY))
    }
}

fn places_of_magic(bytes: &[u8]) -> impl Iterator<Item = usize> + '_ {
    bytes.windows(MAGIC.len()).enumerate().filter(|(_, window)| window == MAGIC).map(|(at, _)| at)
}

impl Length for Prefix {
    fn len(&self) -> u64 {
        self.len
    }
}

impl ChunkReader for Prefix {
    type T = BufReader<PrefixReader>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        let reader = PrefixReader { file: Arc::clone(&self.file), at: start, end: self.len };
        Ok(BufReader::new(reader))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        if start.checked_add(length as u64).is_none_or(|end| end > self.len) {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, start)?;
        Ok(bytes.into())
    }
}

impl Read for PrefixReader {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let wanted = bytes.len().min(left);
        let read = self.file.read_at(&mut bytes[..wanted], self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}
