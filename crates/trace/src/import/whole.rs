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
/// Features with counts, for which the reader of the file makes room before it reads on.
const COMMAND_LINE: u64 = 11;
const EVENTS: u64 = 12;
/// Its presence means that each attribute has the place of its identifiers in it.
const SIMPLEPERF: u64 = 128;

/// Checks that `file` has all its header speaks of.
pub(super) fn check(path: &Path, file: &File) -> Result<(), ImportError> {
    let io = |source| ImportError::Io(path.to_owned(), source);
    let metadata = file.metadata().map_err(io)?;
    if !metadata.is_file() {
        return Err(ImportError::NotPerfData(path.to_owned()));
    }
    let len_bytes = metadata.len();
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
        _ => return Err(ImportError::NotPerfData(path.to_owned())),
    };
    let mut header = [0; HEADER_BYTES as usize];
    let whole_header = read(file, &mut header, 0).map_err(io)?;
    let word = |at: usize| {
        let bytes = header.as_chunks::<8>().0[at];
        if swap { u64::from_be_bytes(bytes) } else { u64::from_le_bytes(bytes) }
    };
    if len_bytes >= PIPE_HEADER_BYTES && word(1) == PIPE_HEADER_BYTES {
        return Err(ImportError::Pipe(path.to_owned()));
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
        return Err(ImportError::Unfinished(path.to_owned()));
    }
    if needed_bytes > len_bytes {
        return Err(truncated(needed_bytes));
    }
    // Behind the data, one entry for each feature says where it lies.
    let numbers = Numbers { file, swap };
    let present = FEATURES.flat_map(|at| (0..64).map(move |bit| (at, bit)));
    let present = present.filter(|&(at, bit)| word(at) >> bit & 1 == 1);
    let mut sections = Vec::new();
    for ((at, bit), entry) in present.zip((data_end..table_end).step_by(16)) {
        let (offset, size) = numbers.section(entry).map_err(io)?;
        needed_bytes = needed_bytes.max(offset.saturating_add(size));
        sections.push(((at - FEATURES.start) as u64 * 64 + bit, offset));
    }
    if needed_bytes > len_bytes {
        return Err(truncated(needed_bytes));
    }
    let section = |feature| sections.iter().find(|(number, _)| *number == feature).map(|(_, offset)| *offset);
    if let Some(offset) = section(COMMAND_LINE) {
        // As many strings, each of which begins with its length.
        let strings = numbers.u32(offset).map_err(io)?;
        needed_bytes = needed_bytes.max(offset + 4 + 4 * strings);
    }
    let attr_bytes = word(2);
    if let Some(offset) = section(EVENTS) {
        needed_bytes = needed_bytes.max(numbers.end_of_events(offset, len_bytes).map_err(io)?);
    } else {
        // Identifiers lie where the attributes or, in old files, the event types say.
        for (at, id_at, entry_bytes) in [
            (SECTIONS[2], attr_bytes, attr_bytes.saturating_add(16)),
            (SECTIONS[0], attr_bytes.saturating_sub(16), attr_bytes),
        ] {
            let is_used = at == SECTIONS[2] || section(SIMPLEPERF).is_some();
            let entries = if is_used { word(at + 1).checked_div(entry_bytes).unwrap_or(0) } else { 0 };
            for entry in 0..entries {
                let (offset, size) = numbers.section(word(at) + entry * entry_bytes + id_at).map_err(io)?;
                needed_bytes = needed_bytes.max(offset.saturating_add(size));
            }
        }
    }
    if needed_bytes > len_bytes { Err(truncated(needed_bytes)) } else { Ok(()) }
}

/// The numbers of a file, in its byte order; what lies behind its end reads as zeros.
struct Numbers<'a> {
    file: &'a File,
    swap: bool,
}

impl Numbers<'_> {
    fn u32(&self, at: u64) -> io::Result<u64> {
        let mut bytes = [0; 4];
        read(self.file, &mut bytes, at)?;
        Ok(u64::from(if self.swap { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }))
    }

    /// Offset and size.
    fn section(&self, at: u64) -> io::Result<(u64, u64)> {
        let mut bytes = [[0; 8]; 2];
        read(self.file, bytes.as_flattened_mut(), at)?;
        let [offset, size] = bytes.map(if self.swap { u64::from_be_bytes } else { u64::from_le_bytes });
        Ok((offset, size))
    }

    /// Where the descriptions of events that begin at `offset` end by their own counts; no more than it takes to know that
    /// this is beyond `len_bytes`.
    fn end_of_events(&self, offset: u64, len_bytes: u64) -> io::Result<u64> {
        let (events, attr_bytes) = (self.u32(offset)?, self.u32(offset + 4)?);
        let mut end = offset + 8;
        let least = end.saturating_add(events.saturating_mul(attr_bytes + 8));
        for _ in 0..events {
            if least.max(end) > len_bytes {
                return Ok(least.max(end));
            }
            end += attr_bytes;
            let (ids, name_bytes) = (self.u32(end)?, self.u32(end + 4)?);
            end += 8 + name_bytes + 8 * ids;
        }
        Ok(end)
    }
}

/// Reads as much of `bytes` as there is; whether it was all.
fn read(file: &File, bytes: &mut [u8], at: u64) -> io::Result<bool> {
    match file.read_exact_at(bytes, at) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        read => read.map(|()| true),
    }
}
