//! Whether page maps and profiles still speak of the files that are there.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use prepage_core::PAGE_SIZE;
use prepage_core::profile::file::{self, ProfileFileError};
use prepage_core::profile::{Profile, ProfiledFile};

use crate::bytes::Bytes;
use crate::carried::MapError;
use crate::elf::ElfError;
use crate::embed::{read_embedded, read_sidecar};
use crate::identity::{Skipped, open_if_same};
use crate::room::SUFFIX;
use crate::sidecar::is_named_for;
use crate::store_error::chain;

/// Whether something is as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It speaks of what is there.
    Fits,
    /// It does not; why.
    Stale(String),
    /// It cannot be used at all; why.
    Damaged(String),
    /// There is none.
    Missing,
    /// It, or what it speaks of, cannot be looked at; why. Nothing follows from that.
    Unknown(String),
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

impl Verified {
    /// Whether it is a sidecar of prepage's, under its own name, whose file is surely gone or another: nobody misses it.
    pub fn may_be_pruned(&self) -> bool {
        self.kind == "sidecar" && matches!(self.verdict, Verdict::Stale(_))
    }
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
        Ok((_, Some(carried))) => {
            let verdict = within(&carried, fs::metadata(path)?.len());
            Ok(verified(carried.pages(), verdict))
        }
        Err(error @ MapError::Other) => Ok(verified(0, Verdict::Stale(error.to_string()))),
        Err(error @ (MapError::Map(_) | MapError::Elf(_))) => {
            Ok(verified(0, Verdict::Damaged(chain(&error))))
        }
        Err(error) => Err(error),
    }
}

/// The sidecar at `path` against the file it was made of. Where it `is_shipped`, by a package, that file may be elsewhere, or not installed here.
pub fn sidecar(path: &Path, is_shipped: bool) -> Verified {
    let verified = |file: &str, pages, verdict| Verified {
        kind: "sidecar",
        holder: path.into(),
        file: file.into(),
        pages,
        verdict,
    };
    let bytes = match read_sidecar(path) {
        Ok(bytes) => bytes,
        Err(error) => return verified("", 0, Verdict::Unknown(error.to_string())),
    };
    match file::decode(&bytes) {
        Ok(Profile { files, .. }) if files.len() == 1 => {
            let verdict = if is_named_for(path, &files[0].fingerprint) {
                judge(&files[0], is_shipped)
            } else {
                Verdict::Damaged("it stands under the name of another content: nobody will find it".into())
            };
            verified(&files[0].path, files[0].pages(), verdict)
        }
        Ok(_) => verified("", 0, Verdict::Damaged("it is not of one file".into())),
        Err(error @ ProfileFileError::Version(_)) => verified("", 0, Verdict::Unknown(error.to_string())),
        Err(error) => verified("", 0, Verdict::Damaged(error.to_string())),
    }
}

/// Compares a profiled file with the one at its path. If there is none, and the file `may_be_elsewhere`, the state is unknown.
fn judge(file: &ProfiledFile, may_be_elsewhere: bool) -> Verdict {
    match open_if_same(file) {
        Ok(open) => within(file, open.len_bytes()),
        Err(skipped @ (Skipped::Denied | Skipped::TooMany | Skipped::Failed)) => {
            Verdict::Unknown(skipped.to_string())
        }
        Err(skipped @ Skipped::Missing) if may_be_elsewhere => Verdict::Unknown(skipped.to_string()),
        Err(skipped) => Verdict::Stale(skipped.to_string()),
    }
}

/// Every sidecar below `directory`.
///
/// # Errors
/// When it cannot be listed.
pub fn sidecars_below(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let list = |directory: PathBuf| match fs::read_dir(&directory) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    };
    let mut directories = vec![directory.join("ends")];
    directories.extend(list(directory.join("build-id"))?.into_iter().filter(|path| path.is_dir()));
    let mut found: Vec<PathBuf> = Vec::new();
    for directory in directories {
        found.extend(list(directory)?);
    }
    let is_file = |path: &PathBuf| fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file());
    found.retain(|path| path.extension().is_some_and(|end| end == SUFFIX) && is_file(path));
    found.sort();
    Ok(found)
}

/// Each file of the profile in `holder`.
pub fn profile(holder: &Path, profile: &Profile) -> Vec<Verified> {
    let verified = |file: &ProfiledFile| Verified {
        kind: "profile",
        holder: holder.into(),
        file: PathBuf::from(&file.path),
        pages: file.pages(),
        verdict: judge(file, false),
    };
    profile.files.iter().map(verified).collect()
}

fn within(file: &ProfiledFile, size_bytes: u64) -> Verdict {
    let end = file.extents.last().map_or(0, |last| last.range.end().0);
    if end > size_bytes.div_ceil(PAGE_SIZE) {
        return Verdict::Stale("pages past the end of the file".into());
    }
    Verdict::Fits
}
