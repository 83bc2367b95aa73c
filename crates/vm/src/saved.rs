//! A directory with a saved snapshot: a manifest, and images that hold pages at their own offsets.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_sys::new_file::NewFile;
use prepage_sys::regular_file::open_regular;
use rustix::fs::{Access, AtFlags, CWD, Dir, FlockOperation, Mode, OFlags, accessat, openat, unlinkat};

use crate::error::SavedError;
use crate::manifest::Manifest;
use crate::source::{Source, SourceError};

const MANIFEST: &str = "manifest";
/// Says that images are this directory's although it has no manifest yet: the first save is under way, or was cut short.
const FIRST_SAVE: &str = "manifest.next";
/// As far as the user's umask allows, also of images.
const MODE: u32 = 0o666;
const IMAGE: &str = ".image";

/// The directory, which nobody else saves to while this lives.
#[derive(Debug)]
pub(crate) struct Directory {
    /// What it was called when it was opened, for messages.
    path: PathBuf,
    /// Holds the lock. All files are found from it: another directory may have the path by now.
    file: File,
}

/// An image that no manifest names yet. Dropped, it is removed.
#[derive(Debug)]
pub(crate) struct NewImage<'a> {
    directory: &'a Directory,
    file: File,
    name: String,
    keep: bool,
}

impl Directory {
    /// Waits until nobody saves to `path`, nor, where this is to be `written`, reads its manifest.
    pub(crate) fn lock(path: &Path, written: bool) -> Result<Self, SavedError> {
        let failed = |source| SavedError::Read { path: path.to_owned(), source };
        let file = open_directory(CWD, path).map_err(failed)?;
        let operation = if written { FlockOperation::LockExclusive } else { FlockOperation::LockShared };
        loop {
            match rustix::fs::flock(&file, operation) {
                Ok(()) => return Ok(Self { path: path.to_owned(), file }),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(failed(error.into())),
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// What is saved there; `None` where nothing is.
    pub(crate) fn manifest(&self) -> Result<Option<Manifest>, SavedError> {
        let path = self.path.join(MANIFEST);
        let read = self.open(MANIFEST).and_then(|mut file| {
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).map(|_| bytes)
        });
        match read {
            Ok(bytes) => match Manifest::decode(&bytes) {
                Ok(manifest) => Ok(Some(manifest)),
                Err(source) => Err(SavedError::Manifest { path, source }),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(SavedError::Read { path, source }),
        }
    }

    /// The pages that `manifest`, which was read here, says are saved.
    pub(crate) fn pages(&self, manifest: Manifest) -> Result<SavedPages, SavedError> {
        let images = self.images_of(&manifest)?;
        Ok(SavedPages { manifest: Arc::new(manifest), images })
    }

    /// The images that `manifest` names.
    ///
    /// # Errors
    /// Where one is not there, or is not as long as it was made.
    pub(crate) fn images_of(&self, manifest: &Manifest) -> Result<Vec<(PathBuf, File)>, SavedError> {
        let open = |number: &u64| {
            let name = image_name(*number);
            let path = self.path.join(&name);
            let failed = |source| SavedError::Read { path: path.clone(), source };
            let file = self.open(&name).map_err(failed)?;
            let found_bytes = file.metadata().map_err(failed)?.len();
            let len_bytes = manifest.pages() * PAGE_SIZE;
            if found_bytes != len_bytes {
                return Err(SavedError::Image { path, found_bytes, len_bytes });
            }
            Ok((path, file))
        };
        manifest.images.iter().map(open).collect()
    }

    /// Opens a file to be read. Whatever has its name, nobody is waited for.
    fn open(&self, name: &str) -> io::Result<File> {
        open_regular(self.file.as_fd(), name.as_ref(), OFlags::empty()).map(|(file, _)| file)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        Ok(unlinkat(&self.file, name, AtFlags::empty())?)
    }

    /// What a save that was cut short left goes, and the next one may be: `manifest` is what is saved here.
    ///
    /// # Errors
    /// Where nothing is saved or was about to be, and files have names of images: they are others'.
    pub(crate) fn begin(&self, manifest: Option<&Manifest>) -> Result<(), SavedError> {
        if manifest.is_none() {
            self.sync_name().map_err(|error| unwritten(&self.path, error))?;
            if accessat(&self.file, FIRST_SAVE, Access::EXISTS, AtFlags::empty()).is_err() {
                if let Some(name) = self.images(None).next() {
                    return Err(SavedError::Foreign { path: self.path.join(name) });
                }
                // From here on images are this directory's.
                let placed = self.place(FIRST_SAVE, b"");
                placed.map_err(|error| unwritten(&self.path.join(FIRST_SAVE), error))?;
            }
        }
        self.sweep(manifest);
        Ok(())
    }

    /// The directory may be new: that it is there is on the disk when this returns.
    fn sync_name(&self) -> io::Result<()> {
        let parent = open_directory(self.file.as_fd(), "..".as_ref());
        match parent.and_then(|parent| parent.sync_all()) {
            Ok(()) => Ok(()),
            // Not for this user to read, or on a file system that syncs no directory alone.
            Err(_) => Ok(rustix::fs::syncfs(&self.file)?),
        }
    }

    /// The save has failed, and its image has gone.
    pub(crate) fn give_up(&self) {
        let _ = self.remove(FIRST_SAVE);
    }

    pub(crate) fn new_image(&self, number: u64, len_bytes: u64) -> Result<NewImage<'_>, SavedError> {
        let name = image_name(number);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = openat(&self.file, &name, flags, Mode::from_raw_mode(MODE));
        let file = file.map_err(|error| unwritten(&self.path.join(&name), error.into()))?.into();
        let image = NewImage { directory: self, file, name, keep: false };
        image.file.set_len(len_bytes).map_err(|error| image.unwritten(error))?;
        Ok(image)
    }

    /// `manifest` is what is saved from now on, and `image`, if there is a new one, is a part of it. Whenever the machine stops, the one or the other is there.
    pub(crate) fn replace(&self, manifest: &Manifest, image: Option<NewImage<'_>>) -> Result<(), SavedError> {
        let mut image = image;
        if let Some(image) = &image {
            image.file.sync_all().map_err(|error| image.unwritten(error))?;
        }
        // The image's name before the manifest that names it.
        let replaced = self.file.sync_all().and_then(|()| self.place(MANIFEST, &manifest.encode()));
        replaced.map_err(|error| unwritten(&self.path.join(MANIFEST), error))?;
        if let Some(image) = &mut image {
            image.keep = true;
        }
        // And that before images go that only the last manifest names.
        self.file.sync_all().map_err(|error| unwritten(&self.path, error))?;
        self.give_up();
        Ok(())
    }

    /// Nobody else writes here: this directory is locked.
    fn place(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let name = Path::new(name);
        let new = NewFile::of_only_writer(self.file.as_fd(), name, MODE)?;
        new.file().write_all_at(bytes, 0)?;
        new.place(name)
    }

    /// Removes the images that `manifest` does not name: of a save that was cut short, or no more used. Who reads them has them open.
    pub(crate) fn sweep(&self, manifest: Option<&Manifest>) {
        // What cannot be removed now is the next save's to remove.
        self.images(manifest).for_each(|name| drop(self.remove(&name)));
    }

    /// The files whose names are those of images, but for what `manifest` names.
    fn images(&self, manifest: Option<&Manifest>) -> impl Iterator<Item = String> {
        let is_named = move |number| manifest.is_some_and(|manifest| manifest.images.contains(&number));
        let entries = Dir::read_from(&self.file).into_iter().flatten().flatten();
        entries.filter_map(move |entry| {
            let number = entry.file_name().to_str().ok()?.strip_suffix(IMAGE)?.parse().ok()?;
            let name = image_name(number);
            (name.as_bytes() == entry.file_name().to_bytes() && !is_named(number)).then_some(name)
        })
    }
}

fn open_directory(at: BorrowedFd<'_>, path: &Path) -> io::Result<File> {
    Ok(openat(at, path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?.into())
}

fn image_name(number: u64) -> String {
    format!("{number}{IMAGE}")
}

impl NewImage<'_> {
    pub(crate) fn write(&self, page: PageIndex, bytes: &[u8]) -> Result<(), SavedError> {
        self.file.write_all_at(bytes, page.offset_bytes()).map_err(|error| self.unwritten(error))
    }

    fn unwritten(&self, source: io::Error) -> SavedError {
        unwritten(&self.directory.path.join(&self.name), source)
    }
}

impl Drop for NewImage<'_> {
    fn drop(&mut self) {
        if !self.keep {
            let _ = self.directory.remove(&self.name);
        }
    }
}

fn unwritten(path: &Path, source: io::Error) -> SavedError {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    let path = path.to_owned();
    match source.kind() {
        FileTooLarge | QuotaExceeded | StorageFull => SavedError::NoRoom { path, source },
        _ => SavedError::Write { path, source },
    }
}

/// The pages of a saved snapshot, as an object's bytes; those that were not saved read as zeros, and no map shows them.
#[derive(Debug)]
pub(crate) struct SavedPages {
    pub(crate) manifest: Arc<Manifest>,
    images: Vec<(PathBuf, File)>,
}

impl Source for SavedPages {
    fn len_bytes(&self) -> u64 {
        self.manifest.pages() * PAGE_SIZE
    }

    fn read(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), SourceError> {
        self.bring(offset_bytes, into).map_err(|bad| match bad {
            Bad::Unread(error) => SourceError::Io(error),
            Bad::Damaged(page, image) => {
                let path = image.display();
                SourceError::Other(format!("page {page} of {path} is damaged"))
            }
        })
    }
}

/// Why bytes of a saved snapshot cannot be had.
pub(crate) enum Bad<'a> {
    Unread(io::Error),
    /// The page of the image has other bytes than were saved.
    Damaged(PageIndex, &'a Path),
}

impl SavedPages {
    /// As [`Source::read`], in any context: nothing here allocates.
    pub(crate) fn bring(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), Bad<'_>> {
        let wanted = PageRange::covering(offset_bytes, into.len() as u64);
        let runs = &self.manifest.runs;
        let first = runs.partition_point(|run| run.pages().end() <= wanted.start());
        for run in runs[first..].iter().take_while(|run| run.pages().start() < wanted.end()) {
            let pages = crate::object::clip(run.pages(), wanted);
            let (path, image) = &self.images[run.image as usize];
            let within = (pages.start().0 - wanted.start().0) * PAGE_SIZE;
            let bytes = &mut into[within as usize..(within + pages.bytes()) as usize];
            image.read_exact_at(bytes, pages.start().offset_bytes()).map_err(Bad::Unread)?;
            for (page, bytes) in pages.iter().zip(bytes.chunks(PAGE_SIZE as usize)) {
                if self.manifest.sum(bytes) != run.sums[(page.0 - run.start) as usize] {
                    return Err(Bad::Damaged(page, path));
                }
            }
        }
        Ok(())
    }
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests {
    use std::time::Duration;

    use prepage_core::PAGE_SIZE;
    use prepage_sys::call_filter::When;
    use prepage_sys::sigbus::{BusFault, Verdict};
    use prepage_sys::signals::Endings;

    use crate::inline::on_fault;
    use crate::snapshot::tests::while_failing;
    use crate::{MapOptions, Vm, VmOptions};

    const EIO: i32 = 5;

    #[test]
    fn a_touch_of_a_saved_page_waits_for_no_thread() {
        const PAGES: u64 = 64;
        let directory = tempfile::tempdir().unwrap();
        let vm = Vm::new(VmOptions::default()).unwrap();
        let zeros = vm.anonymous(PAGES * PAGE_SIZE).unwrap();
        let mut map = vm.map(&zeros, &MapOptions::private()).unwrap();
        map.as_mut_slice()[..16 * PAGE_SIZE as usize].fill(7);
        map.snapshot().unwrap().save(directory.path()).unwrap();
        let vm = Vm::new(VmOptions::default()).unwrap();
        let opened = vm.map(&vm.open_snapshot(directory.path()).unwrap(), &MapOptions::private()).unwrap();
        vm.core.jobs.stop();
        vm.core.jobs.wait_for_threads();
        let bytes = opened.as_slice().chunks(PAGE_SIZE as usize).map(|page| page[5]);
        assert!(bytes.eq((0..PAGES).map(|page| if page < 16 { 7 } else { 0 })));
    }

    /// A read that hangs in the touching thread itself would be ended by no deadline.
    #[test]
    fn with_a_deadline_a_touch_of_a_saved_page_leaves_the_read_to_a_thread() {
        let directory = tempfile::tempdir().unwrap();
        let vm = Vm::new(VmOptions::default()).unwrap();
        let zeros = vm.anonymous(4 * PAGE_SIZE).unwrap();
        let mut map = vm.map(&zeros, &MapOptions::private()).unwrap();
        map.as_mut_slice().fill(7);
        map.snapshot().unwrap().save(directory.path()).unwrap();
        let options = || VmOptions::default().explain(false);
        for (options, verdict) in [
            (options(), Verdict::Resolved),
            (options().read_deadline(Duration::from_secs(60)), Verdict::Failed),
        ] {
            // The VM's threads can read no file: they are those of a thread that cannot.
            let made = while_failing(EIO, (libc::SYS_pread64, When::Always), || Vm::new(options).unwrap());
            let Some(vm) = made else { return };
            let opened = vm.open_snapshot(directory.path()).unwrap();
            let map = vm.map(&opened, &MapOptions::private()).unwrap();
            let touch = BusFault {
                address: map.address(),
                ip: 0,
                write: Some(false),
                protected: false,
                endings: Endings::default(),
            };
            assert_eq!(on_fault(&touch), verdict);
        }
    }
}
