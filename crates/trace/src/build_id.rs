//! The files behind objects: their sizes, and the build-ids of those that ran.

use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use object::elf::{FileHeader32, FileHeader64, NT_GNU_BUILD_ID};
use object::read::elf::{FileHeader, ProgramHeader};
use prepage_core::{BuildId, Object, ObjectId, PAGE_SIZE};
use prepage_sys::regular_file;

/// A file that takes longer is left out, and a second one of its device with all others: their server may be gone, and a trace waits to be saved. One may
/// lie below a file system that was mounted over its directory, and is another's.
const PATIENCE: Duration = Duration::from_secs(2);

/// Objects, and those of them that ran.
type Objects = (Vec<Object>, HashSet<ObjectId>);
/// The place of an object, and its file's size and build-id, if the file is there.
type Answer = (usize, Option<(u64, Option<BuildId>)>);

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

/// Opens `path` to read it. A pipe that stands there is not waited for.
#[cfg(any(feature = "import", feature = "parquet"))]
pub(crate) fn open_at_once(path: &std::path::Path) -> std::io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;

    use rustix::fs::OFlags;

    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    File::options().read(true).custom_flags(flags).open(path)
}

/// Notes the sizes of the files of `objects`, and the build-ids of those that are `executable`. Returns how many files were not looked at, because
/// their file systems do not answer.
pub(crate) fn look_at_files(objects: &mut [Object], executable: HashSet<ObjectId>) -> u64 {
    let asked = Arc::new((objects.to_vec(), executable));
    let (mut silent_devices, mut suspected_devices) = (HashSet::new(), HashSet::new());
    let (mut next, mut unanswered) = (0, 0);
    loop {
        let (tell, answers) = channel();
        let beside = (Arc::clone(&asked), silent_devices.clone(), tell.clone());
        // A thread that gets no answer is left behind.
        if thread::Builder::new().spawn(move || ask(&beside.0, next, &beside.1, &beside.2)).is_err() {
            ask(&asked, next, &silent_devices, &tell);
        }
        drop(tell);
        let is_silent = loop {
            match answers.recv_timeout(PATIENCE) {
                Ok((at, found)) => {
                    if let Some((size_bytes, build_id)) = found {
                        (objects[at].size_bytes, objects[at].build_id) = (Some(size_bytes), build_id);
                    }
                    next = at + 1;
                }
                Err(error) => break error == RecvTimeoutError::Timeout,
            }
        };
        let device = |object: &Object| object.inode.map(|(device, _)| device);
        let is_asked =
            |object: &Object| device(object).is_some_and(|device| !silent_devices.contains(&device));
        let Some(at) = objects[next..].iter().position(is_asked).filter(|_| is_silent) else {
            return unanswered;
        };
        next += at + 1;
        unanswered += 1;
        let silent = device(&objects[next - 1]).expect("it is of a file");
        if !suspected_devices.insert(silent) {
            unanswered +=
                objects[next..].iter().filter(|object| device(object) == Some(silent)).count() as u64;
            silent_devices.insert(silent);
        }
    }
}

/// Looks at the files of `objects` from the one at `first` on, but for those on the devices `left_out`, and answers for each.
fn ask((objects, executable): &Objects, first: usize, left_out: &HashSet<u64>, tell: &Sender<Answer>) {
    for (at, object) in objects.iter().enumerate().skip(first) {
        if object.inode.is_some_and(|(device, _)| !left_out.contains(&device)) {
            let found = file_of(object).map(|(file, size_bytes)| {
                let has_run = executable.contains(&ObjectId(at as u32));
                (size_bytes, has_run.then(|| build_id_of(&file)).flatten())
            });
            if tell.send((at, found)).is_err() {
                return;
            }
        }
    }
}

/// `object`'s file and its length in bytes, if the file of its path is still the one that was mapped.
fn file_of(object: &Object) -> Option<(File, u64)> {
    let (_, inode) = object.inode?;
    // What stands in the file's place by now may be a pipe.
    let (file, metadata) = regular_file::open(object.path.as_ref()).ok()?;
    // The device is not compared: stacked file systems show another one here than in the kernel's events.
    (metadata.ino() == inode).then_some((file, metadata.len()))
}

/// The build-id of the ELF file `file`.
fn build_id_of(file: &File) -> Option<BuildId> {
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
