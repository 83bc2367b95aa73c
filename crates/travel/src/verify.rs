//! Whether page maps and profiles still speak of the files that are there.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use prepage_core::PAGE_SIZE;
use prepage_core::page_map::PageMap;
use prepage_core::profile::{Fingerprint, Profile};
use prepage_prefetch::elf::{Bytes, ElfError};
use prepage_prefetch::embedded::MapError;
use prepage_prefetch::identity::{Skipped, fingerprint, open_if_same};
use prepage_prefetch::sidecar::{SUFFIX, name_of};

use crate::embed::{read_embedded, read_map};

/// Whether something is as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It speaks of what is there.
    Fits,
    /// It does not; why.
    Stale(String),
    /// It cannot be used at all; why.
    Damaged(String),
}

/// One section, sidecar or file of a profile that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// What holds the pages: `section`, `sidecar`, or `profile`.
    pub kind: &'static str,
    /// The file in which it stands.
    pub holder: PathBuf,
    /// The file it speaks of.
    pub file: PathBuf,
    /// Pages it names.
    pub pages: u64,
    /// The judgement.
    pub verdict: Verdict,
}

/// The section of the ELF file at `path`; `None` where it has none.
///
/// # Errors
/// When it cannot be read at all.
pub fn section(path: &Path) -> Result<Option<Verified>, MapError> {
    let verified = |pages, verdict| {
        Some(Verified { kind: "section", holder: path.into(), file: path.into(), pages, verdict })
    };
    match read_embedded(path) {
        Ok((_, None)) | Err(MapError::Elf(ElfError::Foreign)) => Ok(None),
        Ok((_, Some(map))) => {
            let verdict = if past_end(&map, fs::metadata(path)?.len()) {
                Verdict::Stale("pages past the end of the file".into())
            } else {
                Verdict::Fits
            };
            Ok(verified(map.page_count(), verdict))
        }
        Err(error @ MapError::OtherBuild) => Ok(verified(0, Verdict::Stale(error.to_string()))),
        Err(error @ (MapError::Map(_) | MapError::Elf(_))) => {
            Ok(verified(0, Verdict::Damaged(chain(&error))))
        }
        Err(error) => Err(error),
    }
}

/// The sidecar at `path` against the file it was made of.
pub fn sidecar(path: &Path) -> Verified {
    match read_map(path) {
        Ok(map) => Verified {
            kind: "sidecar",
            holder: path.into(),
            file: PathBuf::from(&map.path),
            pages: map.page_count(),
            verdict: judge(path, &map),
        },
        Err(error) => Verified {
            kind: "sidecar",
            holder: path.into(),
            file: PathBuf::new(),
            pages: 0,
            verdict: Verdict::Damaged(error.to_string()),
        },
    }
}

fn judge(path: &Path, map: &PageMap) -> Verdict {
    if !path.ends_with(name_of(&map.fingerprint, map.size_bytes)) {
        return Verdict::Damaged("it stands under the name of another content: nobody will find it".into());
    }
    let content = || -> io::Result<(u64, Fingerprint)> {
        let file = File::open(&map.path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("no regular file"));
        }
        let size_bytes = file.len_bytes();
        Ok((size_bytes, fingerprint(&file, size_bytes)?))
    };
    match content() {
        Ok((size_bytes, found)) if found == map.fingerprint && !past_end(map, size_bytes) => Verdict::Fits,
        Ok(_) => Verdict::Stale(Skipped::Changed.to_string()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Verdict::Stale(Skipped::Missing.to_string()),
        Err(error) => Verdict::Stale(error.to_string()),
    }
}

/// Every sidecar below `directory`.
///
/// # Errors
/// When it cannot be listed.
pub fn sidecars_below(directory: &Path) -> io::Result<Vec<PathBuf>> {
    /// `DIRECTORY/build-id/ab/…` is as deep as it gets.
    const DEPTH: usize = 3;
    let (mut waiting, mut found) = (vec![(directory.to_owned(), 0)], Vec::new());
    while let Some((directory, depth)) = waiting.pop() {
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() && depth < DEPTH {
                waiting.push((entry.path(), depth + 1));
            } else if kind.is_file() && entry.path().extension().is_some_and(|end| end == SUFFIX) {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Each file of the profile in `holder`.
pub fn profile(holder: &Path, profile: &Profile) -> Vec<Verified> {
    let verified = |file: &prepage_core::profile::ProfiledFile| {
        let end = file.extents.last().map_or(0, |extent| extent.range.end().0);
        let verdict = match open_if_same(file) {
            Ok(open) if end > open.len_bytes().div_ceil(PAGE_SIZE) => {
                Verdict::Stale("pages past the end of the file".into())
            }
            Ok(_) => Verdict::Fits,
            Err(skipped) => Verdict::Stale(skipped.to_string()),
        };
        Verified {
            kind: "profile",
            holder: holder.into(),
            file: PathBuf::from(&file.path),
            pages: file.pages(),
            verdict,
        }
    };
    profile.files.iter().map(verified).collect()
}

fn past_end(map: &PageMap, size_bytes: u64) -> bool {
    map.pages.last().is_some_and(|last| last.end().0 > size_bytes.div_ceil(PAGE_SIZE))
}

/// An error with its causes, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
