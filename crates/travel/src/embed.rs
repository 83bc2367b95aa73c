//! Page maps into files and beside them.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use prepage_core::page_map::{MAP_BYTES_MAX, PageMap, PageMapError};
use prepage_core::profile::{Fingerprint, Profile};
use prepage_prefetch::elf::{Bytes, Elf, ElfError};
use prepage_prefetch::embedded::{MapError, map_in};
use prepage_prefetch::identity::fingerprint;
use prepage_prefetch::note::{self, Room};
use prepage_prefetch::sidecar::name_of;
use prepage_prefetch::trust::{self, Refused};
use prepage_sys::extents::extents;

use crate::map::{self, Made};
use crate::replacement::{self, ReplaceError, Replaced};
use crate::section::{self, Change, SectionError};

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
    /// The map has no place in its format.
    #[error(transparent)]
    Map(#[from] PageMapError),
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
    let made = map::make(profiles, "", &Fingerprint::BuildId(build_id), original.len_bytes, unix_s())
        .ok_or(EmbedError::Unknown)?;
    let before = Layout::of(&file.file);
    let elf = Elf::parse(&file.file).map_err(SectionError::from)?;
    if let Ok(Some(present)) = map_in(&file.file, &elf)
        && says_the_same(&present, &made.map)
    {
        return Ok(Embedded { path: file.path, made: Some(made), before, after: before, replaced: None });
    }
    let map = made.map.encode()?;
    let change = match note::room(&original, &original.elf).map_err(SectionError::from)? {
        Some(room) if room.size_bytes >= map.len() as u64 => fill(&original, room, &map)?,
        _ => section::append(&original, &map)?,
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
    let change = match section::take_out(&file.file) {
        Err(SectionError::None) => empty(&file.file)?,
        change => change?,
    };
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

/// What empties the room again.
fn empty(file: &File) -> Result<Change, SectionError> {
    let original = section::Original::of(file)?;
    let Some(room) = note::room(&original, &original.elf)? else { return Err(SectionError::None) };
    let change = fill(&original, room, &[])?;
    let mut before = vec![0; change.head.len()];
    original.read_at(0, &mut before)?;
    if before == change.head { Err(SectionError::None) } else { Ok(change) }
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
    let size_bytes = file.file.len_bytes();
    let content = fingerprint(&file.file, size_bytes).map_err(io(&file.path))?;
    let named = file.path.to_string_lossy();
    let made = map::make(profiles, &named, &content, size_bytes, unix_s()).ok_or(EmbedError::Unknown)?;
    let sidecar = directory.join(name_of(&content, size_bytes));
    let parent = sidecar.parent().unwrap_or(directory);
    DirBuilder::new().recursive(true).mode(0o755).create(parent).map_err(io(parent))?;
    // A map that nobody would follow is not worth writing.
    trust::open_directory(parent)?;
    if read_map(&sidecar).is_ok_and(|present| says_the_same(&present, &made.map)) {
        return Ok(Beside { path: file.path, sidecar, made, unchanged: true });
    }
    let partial = sidecar.with_extension(format!("{}.new", std::process::id()));
    let written = File::options()
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(&partial)
        .and_then(|mut out| {
            io::Write::write_all(&mut out, &made.map.encode().map_err(io::Error::other)?)?;
            out.sync_data()
        })
        .and_then(|()| fs::rename(&partial, &sidecar));
    if let Err(error) = written {
        let _ = fs::remove_file(&partial);
        return Err(io(&sidecar)(error));
    }
    Ok(Beside { path: file.path, sidecar, made, unchanged: false })
}

/// The map in the sidecar at `path`.
///
/// # Errors
/// InvalidData where it holds none.
pub fn read_map(path: &Path) -> io::Result<PageMap> {
    let file = File::open(path)?;
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(file, MAP_BYTES_MAX as u64 + 1), &mut bytes)?;
    PageMap::decode(&bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// The map in the file at `path`, whoever wrote it.
///
/// # Errors
/// When it is no ELF file, or what is there is no map of it.
pub fn read_embedded(path: &Path) -> Result<(Elf, Option<PageMap>), MapError> {
    let file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(ElfError::Foreign.into());
    }
    let elf = Elf::parse(&file)?;
    let map = map_in(&file, &elf)?;
    Ok((elf, map))
}

/// Whether both maps say the same, whenever they were made.
fn says_the_same(one: &PageMap, other: &PageMap) -> bool {
    (&one.fingerprint, one.size_bytes, &one.path, &one.pages)
        == (&other.fingerprint, other.size_bytes, &other.path, &other.pages)
}

fn layout_at(path: &Path) -> Result<Layout, EmbedError> {
    let file = File::open(path).map_err(|source| EmbedError::Io { path: path.into(), source })?;
    Ok(Layout::of(&file))
}

fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs())
}
