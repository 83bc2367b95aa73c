//! Snapshots that outlive the process.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_sys::signals::Masked;

use crate::book::{Base, Book};
use crate::error::SavedError;
use crate::manifest::{Below, Manifest, SavedBase, SavedRun};
use crate::object::{Bytes, Contents, Handle, Object, ObjectCore};
use crate::saved::{Directory, NewImage};
use crate::segment::{Install, Parts, Segment};
use crate::snapshot::new_store;
use crate::source::{FileVersion, Source};
use crate::vm::Vm;

/// Pages that are read, summed and written at once.
const PIECE_PAGES: u64 = 64;
/// Where there are so many images, a save that has to write a page writes one image with all pages: each is an open file of whoever opens the snapshot.
const IMAGES_MAX: usize = 16;

/// What [`Object::save`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Saved {
    /// The pages that the directory holds for the snapshot; all others are those of the objects it began on.
    pub pages: u64,
    /// Those of them that were not there before, or not with these bytes.
    pub pages_written: u64,
    /// The files in which they are.
    pub images: u64,
}

impl Object {
    /// Saves a snapshot to the directory `path`, which is created if it does not exist. [`Vm::open_snapshot`] opens it again, in any process.
    ///
    /// If the directory has an earlier snapshot, only the changes since then are written. The new snapshot replaces the earlier one when it
    /// is whole and on the disk: if the machine stops, the directory has one or the other. A process that has the earlier one
    /// open keeps it. Files that the snapshot began on are not copied: they have to be there, unchanged, when it is opened. A directory that is
    /// renamed meanwhile gets the snapshot under its new name.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use prepage_vm::{MapOptions, Vm, VmOptions};
    ///
    /// let directory = tempfile::tempdir()?;
    /// let vm = Vm::new(VmOptions::default())?;
    /// let image = vm.file(std::env::current_exe()?)?;
    /// let mut map = vm.map(&image, &MapOptions::private())?;
    /// map.as_mut_slice()[0] = 1;
    /// assert_eq!(map.snapshot()?.save(directory.path())?.pages_written, 1);
    /// drop((vm, image, map));
    ///
    /// let vm = Vm::new(VmOptions::default())?;
    /// let snapshot = vm.open_snapshot(directory.path())?;
    /// let mut map = vm.map(&snapshot, &MapOptions::private())?;
    /// assert_eq!(&map.as_slice()[..4], b"\x01ELF");
    /// map.as_mut_slice()[5000] = 2;
    /// let saved = map.snapshot()?.save(directory.path())?;
    /// assert_eq!((saved.pages, saved.pages_written), (2, 1));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`SavedError`]. After an error the directory holds what it held before, or, if nothing but the sync of the directory itself failed, the new
    /// snapshot.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<Saved, SavedError> {
        let path = path.as_ref();
        self.core.vm.check_process().map_err(|_| SavedError::Forked)?;
        let Some(hold) = &self.hold else {
            return Err(SavedError::NotASnapshot { object: self.name().to_owned() });
        };
        let (shown, _watched) = {
            // A signal handler that wrote to a map would wait for what this thread holds.
            let _masked = Masked::asynchronous();
            hold.shown()
        };
        match std::fs::create_dir(path) {
            Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
                return Err(SavedError::Write { path: path.to_owned(), source });
            }
            _ => {}
        }
        let directory = Directory::lock(path, true)?;
        let before = directory.manifest()?;
        directory.begin(before.as_ref())?;
        self.save_to(&directory, before.as_ref(), &shown).inspect_err(|_| directory.give_up())
    }

    fn save_to(
        &self,
        directory: &Directory,
        before: Option<&Manifest>,
        shown: &[Segment],
    ) -> Result<Saved, SavedError> {
        let number = before.and_then(|before| before.images.last()).map_or(1, |last| last + 1);
        // Where an image is not as it was left, all pages are written anew.
        let kept = before.filter(|before| {
            before.pages() == self.len_bytes().div_ceil(PAGE_SIZE) && directory.images_of(before).is_ok()
        });
        let save = |kept| Saving::new(directory, kept, number, self.len_bytes()).all(shown);
        let saving = match save(kept)? {
            Some(saving) => saving,
            None => save(None)?.expect("no image is kept"),
        };
        let Saving { manifest, image, pages_written, .. } = saving;
        let pages = manifest.runs.iter().map(|run| run.sums.len() as u64).sum();
        let images = manifest.images.len() as u64;
        if before != Some(&manifest) {
            directory.replace(&manifest, image)?;
            directory.sweep(Some(&manifest));
        }
        Ok(Saved { pages, pages_written, images })
    }
}

/// Whether pages of `object` are in no file but that of a saved snapshot.
fn is_saved(object: &ObjectCore) -> bool {
    object.is_frozen() || object.saved().is_some()
}

/// A snapshot on its way into a directory.
struct Saving<'a> {
    directory: &'a Directory,
    /// What was saved before, where its pages stay where they are.
    kept: Option<&'a Manifest>,
    manifest: Manifest,
    /// The objects of the manifest's bases.
    bases: Vec<Arc<ObjectCore>>,
    image: Option<NewImage<'a>>,
    /// The new image's number.
    number: u64,
    pages_written: u64,
    /// So many pages before this one are saved, and nothing below them is seen.
    gap: u64,
    /// A page would take an image more than there may be: it and those behind it are not saved.
    is_full: bool,
    bytes: Vec<u8>,
}

impl<'a> Saving<'a> {
    fn new(directory: &'a Directory, kept: Option<&'a Manifest>, number: u64, len_bytes: u64) -> Self {
        // Those of before stay known, so that their pages are, and go at the end where nothing of them is left.
        let mut images = kept.map_or_else(Vec::new, |kept| kept.images.clone());
        images.push(number);
        let seed =
            || std::hash::BuildHasher::hash_one(&std::collections::hash_map::RandomState::new(), number);
        let manifest = Manifest {
            len_bytes,
            seed: kept.map_or_else(seed, |kept| kept.seed),
            bases: Vec::new(),
            below: Vec::new(),
            images,
            runs: Vec::new(),
        };
        Self {
            directory,
            kept,
            manifest,
            bases: Vec::new(),
            image: None,
            number,
            pages_written: 0,
            gap: 0,
            is_full: false,
            bytes: vec![0; (PIECE_PAGES * PAGE_SIZE) as usize],
        }
    }

    /// All of the snapshot, which `shown` is; `None` where that takes more images than there may be, beside those that are kept.
    fn all(mut self, shown: &[Segment]) -> Result<Option<Self>, SavedError> {
        for segment in shown {
            if is_saved(&segment.object) {
                self.save(&segment.object, segment.pages, segment.first)?;
                if self.is_full {
                    return Ok(None);
                }
                self.gap += segment.pages.len();
            } else {
                self.leave(segment)?;
            }
        }
        Ok(Some(self.end()))
    }

    /// The snapshot's `pages`, which are those of `object` from `first` on.
    fn save(&mut self, object: &ObjectCore, pages: PageRange, first: PageIndex) -> Result<(), SavedError> {
        let mut from = pages.start();
        while from < pages.end() && !self.is_full {
            let piece = PageRange::new(from, PageIndex(pages.end().0.min(from.0 + PIECE_PAGES)));
            let source = PageIndex(first.0 + (from.0 - pages.start().0));
            if !self.is_known(object, piece, source) {
                self.save_piece(object, piece, source)?;
            }
            from = piece.end();
        }
        Ok(())
    }

    /// Whether the pages of `piece` were read from this very directory, which then names them again.
    fn is_known(&mut self, object: &ObjectCore, piece: PageRange, source: PageIndex) -> bool {
        let (Some(kept), Some(saved)) = (self.kept, object.saved()) else { return false };
        if kept.seed != saved.manifest.seed || piece.start() != source {
            return false;
        }
        let known: Option<Vec<_>> = piece
            .iter()
            .map(|page| {
                kept.saved(page).filter(|(_, sum)| saved.manifest.saved(page).is_some_and(|of| of.1 == *sum))
            })
            .collect();
        let Some(known) = known else { return false };
        piece.iter().zip(known).for_each(|(page, (image, sum))| self.enter(page, image, sum));
        true
    }

    fn save_piece(
        &mut self,
        object: &ObjectCore,
        piece: PageRange,
        source: PageIndex,
    ) -> Result<(), SavedError> {
        let mut bytes = std::mem::take(&mut self.bytes);
        let read = &mut bytes[..piece.bytes() as usize];
        let outcome = match object.saved() {
            Some(saved) => saved.read(source.offset_bytes(), read).map_err(io::Error::other),
            None => {
                object.frames().expect("frozen pages are frames").memfd.read_at(read, source.offset_bytes())
            }
        };
        outcome.map_err(|source| SavedError::Unread { object: object.name.clone(), source })?;
        // The pages before this one that are to be written with it.
        let mut begun: Option<PageIndex> = None;
        for (page, page_bytes) in piece.iter().zip(read.chunks(PAGE_SIZE as usize)) {
            let sum = self.manifest.sum(page_bytes);
            let kept = self.kept.and_then(|kept| kept.saved(page)).filter(|(_, old)| *old == sum);
            let image = kept.map_or(self.manifest.images.len() as u32 - 1, |(image, _)| image);
            self.enter(page, image, sum);
            let is_written = kept.is_none() && page_bytes.iter().any(|&byte| byte != 0);
            if kept.is_none() {
                self.pages_written += 1;
                if self.image.is_none() {
                    if self.kept.is_some_and(|kept| kept.images.len() >= IMAGES_MAX) {
                        self.is_full = true;
                        return Ok(());
                    }
                    let len_bytes = self.manifest.pages() * PAGE_SIZE;
                    self.image = Some(self.directory.new_image(self.number, len_bytes)?);
                }
            }
            match (begun, is_written) {
                (None, true) => begun = Some(page),
                (Some(start), false) => {
                    self.write(piece, start, page, read)?;
                    begun = None;
                }
                _ => {}
            }
        }
        if let Some(start) = begun {
            self.write(piece, start, piece.end(), read)?;
        }
        self.bytes = bytes;
        Ok(())
    }

    /// Writes the pages from `start` to `end`; `bytes` are those of `piece`.
    fn write(
        &self,
        piece: PageRange,
        start: PageIndex,
        end: PageIndex,
        bytes: &[u8],
    ) -> Result<(), SavedError> {
        let at = |page: PageIndex| ((page.0 - piece.start().0) * PAGE_SIZE) as usize;
        self.image.as_ref().expect("made for the first of them").write(start, &bytes[at(start)..at(end)])
    }

    fn enter(&mut self, page: PageIndex, image: u32, sum: u128) {
        match self.manifest.runs.last_mut() {
            Some(last) if last.image == image && last.pages().end() == page => last.sums.push(sum),
            _ => self.manifest.runs.push(SavedRun { start: page.0, image, sums: vec![sum] }),
        }
    }

    /// The pages of `segment` are not saved. Below those before it that are, whatever makes one run is said to be.
    fn leave(&mut self, segment: &Segment) -> Result<(), SavedError> {
        let (gap, pages) = (std::mem::take(&mut self.gap), segment.pages.len());
        let base = match segment.install {
            Install::Zero => None,
            _ => Some((self.base(&segment.object)?, segment.first.0)),
        };
        let below = &mut self.manifest.below;
        let follows = below.last().is_some_and(|last| match (last.base, base) {
            (Some((one, first)), Some((other, next))) => one == other && first + last.pages + gap == next,
            (one, other) => one.is_none() && other.is_none(),
        });
        match (below.last_mut(), base) {
            (Some(last), _) if follows => last.pages += gap + pages,
            (_, Some((base, first))) if first >= gap => {
                below.push(Below { pages: gap + pages, base: Some((base, first - gap)) });
            }
            (_, None) => below.push(Below { pages: gap + pages, base: None }),
            (_, Some(_)) => {
                below.push(Below { pages: gap, base: None });
                below.push(Below { pages, base });
            }
        }
        Ok(())
    }

    /// The number of `object` among the bases.
    fn base(&mut self, object: &Arc<ObjectCore>) -> Result<u32, SavedError> {
        if let Some(at) = self.bases.iter().position(|base| Arc::ptr_eq(base, object)) {
            return Ok(at as u32);
        }
        let (mut name, mut modified_ns) = (object.name.clone(), None);
        if let Some(Bytes::Local(file)) = object.frames().map(|frames| &frames.bytes) {
            // It may have been renamed since, and its name may have been relative.
            let path = format!("/proc/self/fd/{}", file.file().as_raw_fd());
            let failed = |source| SavedError::Base { name: object.name.clone(), source };
            let path = std::fs::read_link(path).map_err(failed)?;
            let facts = file.file().metadata().map_err(failed)?;
            if FileVersion::of(&facts) != file.version() {
                return Err(SavedError::BaseChanged { path });
            }
            match std::fs::metadata(&path) {
                Ok(found) if (found.dev(), found.ino()) == (facts.dev(), facts.ino()) => {}
                Err(source) if source.kind() != io::ErrorKind::NotFound => return Err(failed(source)),
                _ => return Err(SavedError::BaseGone { name }),
            }
            modified_ns = Some(file.version().modified_ns);
            name = path.into_os_string().into_string().map_err(|_| SavedError::BaseName { name })?;
        }
        let base = SavedBase { name, len_bytes: object.len_bytes, modified_ns };
        if modified_ns.is_none() && self.manifest.bases.contains(&base) {
            return Err(SavedError::BaseTwice { name: base.name });
        }
        self.bases.push(Arc::clone(object));
        self.manifest.bases.push(base);
        Ok(self.bases.len() as u32 - 1)
    }

    /// All pages were seen.
    fn end(mut self) -> Self {
        let (gap, manifest) = (self.gap, &mut self.manifest);
        let end_of = |base: u32| manifest.bases[base as usize].len_bytes.div_ceil(PAGE_SIZE);
        match manifest.below.last_mut() {
            Some(last) if last.base.is_none_or(|(base, first)| first + last.pages + gap <= end_of(base)) => {
                last.pages += gap;
            }
            _ if gap > 0 => manifest.below.push(Below { pages: gap, base: None }),
            _ => {}
        }
        // Images of which nothing is left go.
        let mut used = vec![false; manifest.images.len()];
        manifest.runs.iter().for_each(|run| used[run.image as usize] = true);
        let mut next = 0..;
        let places: Vec<u32> =
            used.iter().map(|used| if *used { next.next().expect("endless") } else { 0 }).collect();
        manifest.runs.iter_mut().for_each(|run| run.image = places[run.image as usize]);
        let mut used = used.into_iter();
        manifest.images.retain(|_| used.next().expect("one for each"));
        self
    }
}

impl Vm {
    /// Opens the snapshot that [`Object::save`] saved to the directory `path`. The files that it began on are opened by their paths.
    ///
    /// Pages are read when they are needed, and compared with their saved sums. A damaged page fails like a page that a [`Source`] cannot
    /// read. The frames are reclaimed like those of files.
    ///
    /// # Errors
    /// See [`SavedError`].
    pub fn open_snapshot(&self, path: impl AsRef<Path>) -> Result<Object, SavedError> {
        self.open_snapshot_on(path, &[])
    }

    /// As [`Self::open_snapshot`], for a snapshot that began on some of `bases`; they are found by name and length. Use it for objects
    /// that are not files, and for files whose frames several snapshots share.
    ///
    /// # Errors
    /// See [`SavedError`].
    pub fn open_snapshot_on(&self, path: impl AsRef<Path>, bases: &[Object]) -> Result<Object, SavedError> {
        self.core.check_process().map_err(|_| SavedError::Forked)?;
        if let Some(other) = bases.iter().find(|base| !Arc::ptr_eq(&base.core.vm, &self.core)) {
            return Err(SavedError::OtherVm { object: other.name().to_owned() });
        }
        let directory = Directory::lock(path.as_ref(), false)?;
        let Some(manifest) = directory.manifest()? else {
            return Err(SavedError::Nothing { path: path.as_ref().to_owned() });
        };
        let pages = directory.pages(manifest)?;
        let manifest = Arc::clone(&pages.manifest);
        let name = directory.path().to_string_lossy().into_owned();
        drop(directory);
        let zeros = self.anonymous(manifest.len_bytes)?;
        let below =
            manifest.bases.iter().map(|base| self.base(base, bases)).collect::<Result<Vec<_>, _>>()?;
        let mut at = PageIndex(0);
        let below = manifest.below.iter().map(|run| {
            let pages = PageRange::new(at, PageIndex(at.0 + run.pages));
            at = pages.end();
            let (object, first) = match run.base {
                Some((base, first)) => (&below[base as usize], PageIndex(first)),
                None => (&zeros, pages.start()),
            };
            let install = match &object.core.contents {
                Contents::Zero => Install::Zero,
                Contents::Frames(_) => Install::Continue,
            };
            Segment { pages, object: Arc::clone(&object.core), first, install }
        });
        let below: Vec<Segment> = below.collect();
        let wanted = if manifest.runs.is_empty() {
            below.clone()
        } else {
            over(&below, &manifest, &self.source(&name, pages)?.core)
        };
        let _masked = Masked::asynchronous();
        let link = Book::begin(&self.core, Base::saved(&below, &wanted));
        let store = new_store(self, manifest.len_bytes)?;
        self.core.book.lock().put(link.link, link.link, &store);
        Ok(Object { core: Handle::new(store), hold: Some(Arc::new(link)) })
    }

    fn base(&self, saved: &SavedBase, given: &[Object]) -> Result<Object, SavedError> {
        let is_it = |object: &&Object| {
            object.hold.is_none()
                && object.len_bytes() == saved.len_bytes
                && (object.name() == saved.name
                    || saved.modified_ns.is_some()
                        && std::fs::canonicalize(object.name())
                            .is_ok_and(|path| path == Path::new(&saved.name)))
        };
        let mut found = given.iter().filter(is_it);
        let found = found.next().map(|first| {
            let is_alone =
                saved.modified_ns.is_some() || found.all(|other| Arc::ptr_eq(&other.core, &first.core));
            if is_alone { Ok(first.clone()) } else { Err(SavedError::BaseTwice { name: saved.name.clone() }) }
        });
        let found = found.transpose()?;
        let Some(modified_ns) = saved.modified_ns else {
            return found.ok_or_else(|| SavedError::NoBase { name: saved.name.clone() });
        };
        let object = match found {
            Some(object) => object,
            None => self.file(&saved.name)?,
        };
        let changed = || SavedError::BaseChanged { path: PathBuf::from(&saved.name) };
        let Some(Bytes::Local(file)) = object.core.frames().map(|frames| &frames.bytes) else {
            return Err(changed());
        };
        let facts = file.file().metadata();
        let facts = facts.map_err(|source| SavedError::Base { name: saved.name.clone(), source })?;
        let version = FileVersion { len_bytes: saved.len_bytes, modified_ns };
        // A given object may show what was there before.
        if FileVersion::of(&facts) != version || file.version() != version {
            return Err(changed());
        }
        Ok(object)
    }
}

/// What is shown where the pages of `manifest`, which are those of `saved`, lie over `below`.
fn over(below: &[Segment], manifest: &Manifest, saved: &Arc<ObjectCore>) -> Vec<Segment> {
    let mut wanted = Vec::new();
    let mut from = PageIndex(0);
    let mut lies = Parts::of(below);
    for run in &manifest.runs {
        let pages = run.pages();
        lies.append(PageRange::new(from, pages.start()), &mut wanted);
        from = pages.end();
        match wanted.last_mut() {
            // Of another image, and for who maps it the same object.
            Some(last) if Arc::ptr_eq(&last.object, saved) && last.pages.end() == pages.start() => {
                last.pages = PageRange::new(last.pages.start(), pages.end());
            }
            _ => wanted.push(Segment {
                pages,
                object: Arc::clone(saved),
                first: pages.start(),
                install: Install::Copy,
            }),
        }
    }
    let end = below.last().expect("a manifest has pages").pages.end();
    lies.append(PageRange::new(from, end), &mut wanted);
    wanted
}
