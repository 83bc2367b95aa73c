//! Whether all of a perf.data is there: its header says where its sections lie
//! (tools/perf/Documentation/perf.data-file-format.txt).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::ImportError;

/// Bytes of the header, which a file that was written to a pipe does not have.
const HEADER_BYTES: u64 = 104;
const PIPE_HEADER_BYTES: u64 = 16;
/// Offset and size of the attributes, the data and the event types, in words of 8 bytes from the start.
const SECTIONS: [usize; 3] = [3, 5, 7];
const DATA_SECTION: usize = 5;
/// The feature bits, 256 of them.
const FEATURES: std::ops::Range<usize> = 9..13;

/// Checks that `file` has all its header speaks of.
pub(super) fn check(path: &Path, file: &File) -> Result<(), ImportError> {
    let io = |source| ImportError::Io { path: path.to_owned(), source };
    let len_bytes = file.metadata().map_err(io)?.len();
    let truncated = |needed_bytes| ImportError::Truncated { path: path.to_owned(), len_bytes, needed_bytes };
    let mut magic = [0; 8];
    let whole_magic = read(file, &mut magic, 0).map_err(io)?;
    let swap = match &magic {
        b"PERFILE2" => false,
        b"2ELIFREP" => true,
        _ if !whole_magic
            && b"PERFILE2".starts_with(&magic[..len_bytes.min(8) as usize])
            && len_bytes > 0 =>
        {
            return Err(truncated(HEADER_BYTES));
        }
        _ => return Err(ImportError::NotPerfData { path: path.to_owned() }),
    };
    let mut header = [0; HEADER_BYTES as usize];
    let whole_header = read(file, &mut header, 0).map_err(io)?;
    let word = |at: usize| {
        let bytes = header.as_chunks::<8>().0[at];
        if swap { u64::from_be_bytes(bytes) } else { u64::from_le_bytes(bytes) }
    };
    if len_bytes >= PIPE_HEADER_BYTES && word(1) == PIPE_HEADER_BYTES {
        return Err(ImportError::Pipe { path: path.to_owned() });
    }
    if !whole_header {
        return Err(truncated(HEADER_BYTES));
    }
    let end = |at: usize| word(at).saturating_add(word(at + 1));
    let data_end = end(DATA_SECTION);
    let mut needed_bytes = SECTIONS.map(end).into_iter().max().unwrap_or(0);
    let features: u64 = FEATURES.map(|at| u64::from(word(at).count_ones())).sum();
    let table_end = data_end.saturating_add(16 * features);
    needed_bytes = needed_bytes.max(table_end);
    if word(DATA_SECTION + 1) == 0 && len_bytes > data_end {
        return Err(ImportError::Unfinished { path: path.to_owned() });
    }
    if needed_bytes > len_bytes {
        return Err(truncated(needed_bytes));
    }
    // Behind the data, one entry for each feature says where it lies.
    let mut table = vec![0; 16 * features as usize];
    read(file, &mut table, data_end).map_err(io)?;
    for entry in table.as_chunks::<16>().0 {
        let (offset, size) = (entry[..8].try_into(), entry[8..].try_into());
        let number = |bytes: Result<[u8; 8], _>| {
            let bytes = bytes.unwrap_or_default();
            if swap { u64::from_be_bytes(bytes) } else { u64::from_le_bytes(bytes) }
        };
        needed_bytes = needed_bytes.max(number(offset).saturating_add(number(size)));
    }
    if needed_bytes > len_bytes { Err(truncated(needed_bytes)) } else { Ok(()) }
}

/// Reads as much of `bytes` as there is; whether it was all.
fn read(file: &File, bytes: &mut [u8], at: u64) -> io::Result<bool> {
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], at + filled as u64) {
            Ok(0) => return Ok(false),
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}
