//! What is known of a file, into that file and beside it: a profile of it alone, one bit a page.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use prepage_core::profile::extent::{simplified, union};
use prepage_core::profile::{Extent, FileIdentity, Fingerprint, Profile, ProfiledFile, file};
use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_sys::extents::extents;
use prepage_sys::new_file::NewFile;
use rustix::fs::Mode;

use crate::bytes::Bytes;
use crate::carried::{self, CARRIED_BYTES_MAX, MapError, carried_in};
use crate::elf::{Elf, ElfError};
use crate::identity::{Skipped, content_of, identity_of, open_to_read};
use crate::note::{self, Room};
use crate::public::may_be_read_by_all;
use crate::replacement::{self, ReplaceError, Replaced};
use crate::section::{self, Change, SectionError};
use crate::sidecar::name_of;
use crate::trust::{self, Refused};

/// Why a map was not put into a file or beside it. Whatever the reason, the file is as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmbedError {
    /// It cannot be replaced.
    #[error(transparent)]
    Replace(#[from] ReplaceError),
    /// It cannot get a section, or lose it.
    #[error(transparent)]
    Section(#[from] SectionError),
    /// Nothing in it tells its builds apart.
    #[error("has no build-id: a map in it could not tell this build from another")]
    NoBuildId,
    /// None of the profiles knows the file as it is now.
    #[error("no profile knows this file as it is now")]
    Unknown,
    /// Pages of a file that not everybody may read are not for everybody to know.
    #[error("may not be read by everybody, as what stands beside it may")]
    Secret,
    /// It is too large.
    #[error("is larger than 128 GiB")]
    TooLarge,
    /// The directory for sidecars would not be trusted.
    #[error(transparent)]
    Directory(#[from] Refused),
    /// The system refused.
    #[error("{}", path.display())]
    Io {
        /// About which file.
        path: PathBuf,
        /// Its reason.
        source: io::Error,
    },
}

/// How a file lies on its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Its size.
    pub size_bytes: u64,
    /// Pieces it lies in, as far as the file system tells.
    pub pieces: Option<usize>,
}

impl Layout {
    fn of(file: &File) -> Self {
        let pieces = extents(file.as_fd()).ok().map(|extents| {
            let goes_on = |pair: &[prepage_sys::extents::FileExtent]| {
                pair[0].physical_bytes + pair[0].len_bytes == pair[1].physical_bytes
            };
            extents.len() - extents.windows(2).filter(|pair| goes_on(pair)).count()
        });
        Self { size_bytes: file.len_bytes(), pieces }
    }
}

/// What a file is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// The file, with the pages that are needed of it.
    pub file: ProfiledFile,
    /// Profiles that know it.
    pub profiles: usize,
}

impl Made {
    /// Pages of a file of `size_bytes` that holds `content`, as `profiles` know it: all that any of them has, for what is
    /// carried serves roles that nobody learned. `None` where none knows it.
    fn of(profiles: &[Profile], content: &Fingerprint, size_bytes: u64) -> Option<Self> {
        let of_content = |profile: &Profile| -> Vec<ProfiledFile> {
            profile.files.iter().filter(|file| file.fingerprint == *content).cloned().collect()
        };
        let known: Vec<Vec<ProfiledFile>> =
            profiles.iter().map(of_content).filter(|files| !files.is_empty()).collect();
        let mut files = known.iter().flatten();
        let first = files.next()?.clone();
        // A mean over many would lose what one of them alone uses.
        let all = files.fold(first.extents, |all, file| union(&all, &file.extents));
        let end = PageIndex(size_bytes.div_ceil(PAGE_SIZE));
        let within = |extent: &Extent| {
            let range = PageRange::new(extent.range.start().min(end), extent.range.end().min(end));
            (!range.is_empty()).then(|| Extent::new(range, 0))
        };
        let extents = simplified(&all.iter().filter_map(within).collect::<Vec<_>>());
        let identity = FileIdentity { size_bytes, ..FileIdentity::default() };
        let learned_unix_s = known.iter().flatten().map(|file| file.learned_unix_s).max().unwrap_or(0);
        let file = ProfiledFile {
            path: String::new(),
            identity,
            fingerprint: content.clone(),
            learned_unix_s,
            extents,
        };
        (!file.extents.is_empty()).then_some(Self { file, profiles: known.len() })
    }

    fn encode(&self) -> Result<Vec<u8>, EmbedError> {
        let bytes = file::encode(&Profile { files: vec![self.file.clone()], ..Profile::default() });
        if bytes.len() as u64 > CARRIED_BYTES_MAX { Err(EmbedError::TooLarge) } else { Ok(bytes) }
    }

    /// Whether `present` says the same, whenever it was made.
    fn is_said_by(&self, present: &ProfiledFile) -> bool {
        let said = |file: &ProfiledFile| (file.path.clone(), file.fingerprint.clone(), file.extents.clone());
        said(present) == said(&self.file)
    }
}

/// A file that was given a map, or lost one.
#[derive(Debug)]
pub struct Embedded {
    /// The file, free of symbolic links.
    pub path: PathBuf,
    /// The map; `None` where it was taken out.
    pub made: Option<Made>,
    /// Its layout before.
    pub before: Layout,
    /// Its layout after.
    pub after: Layout,
    /// What else happened; `None` where the file had this map already and was left alone.
    pub replaced: Option<Replaced>,
}

/// A sidecar that was written.
#[derive(Debug)]
pub struct Beside {
    /// The file it speaks of.
    pub path: PathBuf,
    /// The sidecar.
    pub sidecar: PathBuf,
    /// The map.
    pub made: Made,
    /// Whether it was there already, with the same pages.
    pub unchanged: bool,
}

/// Puts the map that `profiles` make of the file at `path` into it: into the room that its linker left, else into a section.
///
/// # Errors
/// Why not; the file is as it was.
pub fn embed(path: &Path, profiles: &[Profile]) -> Result<Embedded, EmbedError> {
    let file = replacement::Original::open(path)?;
    let original = section::Original::of(&file.file)?;
    let build_id = original.elf.build_id.clone().ok_or(EmbedError::NoBuildId)?;
    let content = Fingerprint::BuildId(build_id);
    let made = Made::of(profiles, &content, original.len_bytes).ok_or(EmbedError::Unknown)?;
    let before = Layout::of(&file.file);
    let elf = Elf::parse(&file.file).map_err(SectionError::from)?;
    if carried_in(&file.file, &elf).is_ok_and(|present| present.is_some_and(|one| made.is_said_by(&one))) {
        return Ok(Embedded { path: file.path, made: Some(made), before, after: before, replaced: None });
    }
    let map = made.encode()?;
    let change = match note::room(&original, &original.elf).map_err(SectionError::from)? {
        Some(room) if room.size_bytes >= map.len() as u64 => fill(&original, room, &map)?,
        // An older map that had room there would be found first.
        Some(room) => {
            let emptied = fill(&original, room, &[])?;
            section::append(&original.beginning_with(emptied.head), &map)?
        }
        None => section::append(&original, &map)?,
    };
    let replaced = Some(file.replace(&change)?);
    let after = layout_at(&file.path)?;
    Ok(Embedded { path: file.path, made: Some(made), before, after, replaced })
}

/// Takes the map out of the file at `path`, which has then the very bytes it had before.
///
/// # Errors
/// Why not; the file is as it was.
pub fn strip(path: &Path) -> Result<Embedded, EmbedError> {
    let file = replacement::Original::open(path)?;
    let before = Layout::of(&file.file);
    let change = without_map(&file.file)?;
    let replaced = Some(file.replace(&change)?);
    let after = layout_at(&file.path)?;
    Ok(Embedded { path: file.path, made: None, before, after, replaced })
}

/// What writes `map` into the room that the linker left.
fn fill<B: Bytes + ?Sized>(
    original: &section::Original<'_, B>,
    room: Room,
    map: &[u8],
) -> Result<Change, SectionError> {
    let mut head = vec![0; (room.offset_bytes + room.size_bytes) as usize];
    if original.read_at(0, &mut head)? < head.len() {
        return Err(ElfError::Malformed("a note past the end of the file").into());
    }
    let into = &mut head[room.offset_bytes as usize..];
    into.fill(0);
    into[..map.len()].copy_from_slice(map);
    Ok(Change { head, keep_bytes: original.len_bytes, tail: Vec::new() })
}

/// What takes the section out and empties the room.
fn without_map(file: &File) -> Result<Change, SectionError> {
    let original = section::Original::of(file)?;
    let Some(room) = note::room(&original, &original.elf)? else { return section::take_out(file) };
    let change = fill(&original, room, &[])?;
    let mut before = vec![0; change.head.len()];
    original.read_at(0, &mut before)?;
    let has_none = before == change.head && original.len_bytes == file.len_bytes();
    if has_none { Err(SectionError::None) } else { Ok(change) }
}

/// Writes the map that `profiles` make of the file at `path` below `directory`, under the name of its content. The file
/// itself is only read.
///
/// # Errors
/// Why not.
pub fn write_beside(directory: &Path, path: &Path, profiles: &[Profile]) -> Result<Beside, EmbedError> {
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| EmbedError::Io { path, source }
    };
    let file = replacement::Original::open(path)?;
    // What lies beside is read by all users.
    if !may_be_read_by_all(&file.path) {
        return Err(EmbedError::Secret);
    }
    let content = content_of(&file.file).map_err(io(&file.path))?;
    let identity = identity_of(&file.file).map_err(|_| EmbedError::Unknown)?;
    let mut made = Made::of(profiles, &content, identity.size_bytes).ok_or(EmbedError::Unknown)?;
    (made.file.path, made.file.identity) = (file.path.to_string_lossy().into_owned(), identity);
    let sidecar = directory.join(name_of(&content));
    let parent = sidecar.parent().unwrap_or(directory);
    trust::create_directory(directory, 0o755).map_err(io(directory))?;
    // What nobody would follow is not worth writing, nor are directories for it.
    let uid = rustix::process::geteuid().as_raw();
    trust::open_directory(directory, uid)?;
    trust::create_directory(parent, 0o755).map_err(io(parent))?;
    let opened = trust::open_directory(parent, uid)?.ok_or(EmbedError::Unknown)?;
    let present = read_sidecar(&sidecar).ok().and_then(|bytes| carried::decode(&bytes, &content).ok());
    let unchanged = present.is_some_and(|present| made.is_said_by(&present));
    if !unchanged {
        let name = Path::new(sidecar.file_name().unwrap_or_default());
        let bytes = made.encode()?;
        // Under a name of its own until it is whole: whoever writes the same sidecar meanwhile does not wait.
        let write = || {
            let new = NewFile::create(opened.as_fd(), 0o600)?;
            rustix::fs::fchmod(new.file(), Mode::from_raw_mode(0o644))?;
            new.file().write_all(&bytes)?;
            new.replace(name)
        };
        write().map_err(io(&sidecar))?;
    }
    Ok(Beside { path: file.path, sidecar, made, unchanged })
}

/// The bytes of the sidecar at `path`, whoever wrote it.
///
/// # Errors
/// As the file system says; InvalidData where it is no regular file, or larger than any.
pub fn read_sidecar(path: &Path) -> io::Result<Vec<u8>> {
    let refused = |skipped: Skipped| io::Error::new(io::ErrorKind::InvalidData, skipped.to_string());
    let file = open_to_read(path).map_err(refused)?;
    identity_of(&file).map_err(refused)?;
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(file, CARRIED_BYTES_MAX + 1), &mut bytes)?;
    Ok(bytes)
}

/// The map in the file at `path`, whoever wrote it.
///
/// # Errors
/// When it is no ELF file, or what is there is no map of it.
pub fn read_embedded(path: &Path) -> Result<(Elf, Option<ProfiledFile>), MapError> {
    let file = open_to_read(path).map_err(MapError::Skipped)?;
    identity_of(&file).map_err(|_| ElfError::Foreign)?;
    let elf = Elf::parse(&file)?;
    let carried = carried_in(&file, &elf)?;
    Ok((elf, carried))
}

fn layout_at(path: &Path) -> Result<Layout, EmbedError> {
    let file = File::open(path).map_err(|source| EmbedError::Io { path: path.into(), source })?;
    Ok(Layout::of(&file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_has_each_page_that_any_profile_knows_however_many_do_not() {
        let content = Fingerprint::BuildId(vec![1; 20]);
        let range = |start, end| PageRange::new(PageIndex(start), PageIndex(end));
        let profile = |pages: &[PageRange]| {
            let extents = pages.iter().map(|&pages| Extent::new(pages, 7)).collect();
            let file = ProfiledFile {
                path: "/usr/lib/library".into(),
                fingerprint: content.clone(),
                extents,
                ..ProfiledFile::default()
            };
            Profile { files: vec![file], ..Profile::default() }
        };
        let mut profiles = vec![profile(&[range(0, 4)]); 32];
        profiles.push(profile(&[range(2, 3), range(9, 10)]));
        profiles.push(Profile::default());
        let made = Made::of(&profiles, &content, 12 * PAGE_SIZE).unwrap();
        assert_eq!(made.file.extents, [Extent::new(range(0, 4), 0), Extent::new(range(9, 10), 0)]);
        assert_eq!((made.profiles, &*made.file.path), (33, ""));
    }
}
