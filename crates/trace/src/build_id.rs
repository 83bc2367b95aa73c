//! The files behind objects: their sizes, and the build-ids of those that ran.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use object::elf::{FileHeader32, FileHeader64, NT_GNU_BUILD_ID};
use object::read::elf::{FileHeader, ProgramHeader};
use prepage_core::{BuildId, Object, PAGE_SIZE};
use prepage_sys::regular_file;
use rustix::fs::{CWD, OFlags};

/// The build-id in the first page of an ELF file, where linkers put it.
pub fn build_id(page: &[u8]) -> Option<&[u8]> {
    fn of<Header: FileHeader<Endian = object::Endianness>>(page: &[u8]) -> Option<&[u8]> {
        let header = Header::parse(page).ok()?;
        let endian = header.endian().ok()?;
        for segment in header.program_headers(endian, page).ok()? {
            let Ok(Some(mut notes)) = segment.notes(endian, page) else { continue };
            while let Ok(Some(note)) = notes.next() {
                if note.name() == b"GNU" && note.n_type(endian) == NT_GNU_BUILD_ID {
                    return Some(note.desc());
                }
            }
        }
        None
    }
    of::<FileHeader64<object::Endianness>>(page).or_else(|| of::<FileHeader32<object::Endianness>>(page))
}

/// Opens the regular file `path`, which somebody else may have put there, to read it; what else stands there is neither waited
/// for nor opened: to open a device may have effects, and a pipe lets go whoever waits at its other end.
///
/// # Errors
/// As open(2), and InvalidInput for what is no regular file.
pub fn open_regular(path: &Path) -> io::Result<(File, Metadata)> {
    // The flag stays: to take it off is one more call, and reads of files on disks do not heed it.
    regular_file::open_regular(CWD, path, OFlags::NONBLOCK)
}

/// Opens `path` to read it. A pipe that stands there is not waited for.
#[cfg(any(feature = "import", feature = "parquet"))]
pub(crate) fn open_at_once(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    File::options().read(true).custom_flags(flags).open(path)
}

/// `object`'s file and its length in bytes, if the file of its path is still the one that was mapped.
pub(crate) fn file_of(object: &Object) -> Option<(File, u64)> {
    let (_, inode) = object.inode?;
    // What stands in the file's place by now may be a pipe.
    let (file, metadata) = open_regular(object.path.as_ref()).ok()?;
    // The device is not compared: stacked file systems show another one here than in the kernel's events.
    (metadata.ino() == inode).then_some((file, metadata.len()))
}

/// The build-id of the ELF file `file`.
pub(crate) fn build_id_of(file: &File) -> Option<BuildId> {
    let mut page = [0; PAGE_SIZE as usize];
    let mut len = 0;
    while let Ok(read @ 1..) = file.read_at(&mut page[len..], len as u64) {
        len += read;
    }
    BuildId::new(build_id(&page[..len])?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_replaced_has_none() {
        let path = std::env::current_exe().expect("this program");
        let inode = std::fs::metadata(&path).expect("there").ino();
        let object = |inode| Object::new(path.to_str().expect("plain"), Some((0, inode)));
        if prepage_testing::has(prepage_testing::Need::Tool("readelf".into())) {
            let notes = std::process::Command::new("readelf").arg("-n").arg(&path).output().expect("it runs");
            assert!(notes.status.success(), "{}", String::from_utf8_lossy(&notes.stderr));
            let notes = String::from_utf8_lossy(&notes.stdout);
            let expected = notes.split_once("Build ID: ").map(|(_, id)| id.split_whitespace().next());
            let (file, size_bytes) = file_of(&object(inode)).expect("the same file");
            assert_eq!(size_bytes, file.metadata().expect("open").len());
            let found = build_id_of(&file).map(|id| id.to_string());
            assert_eq!(found.as_deref(), expected.flatten());
        }
        assert!(file_of(&object(inode + 1)).is_none());
        assert_eq!(build_id(&[0x7f, b'E', b'L', b'F']), None);
    }
}
