//! Page maps in files of their own: nothing about the file they speak of changes, not its checksum nor its package.
//!
//! A sidecar's name is made from the content of its file, not from its path: `build-id/ab/cdef….map`, or
//! `ends/CRC-SIZE.map` where there is no build-id. So a map fits the same build wherever it is installed, and a new build
//! never meets the map of the old one.

use std::ffi::OsString;
use std::fmt::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use prepage_core::page_map::{MAP_BYTES_MAX, PageMap, PageMapError};
use prepage_core::profile::Fingerprint;

use crate::trust::{self, Refused};

/// Where sidecars are looked for: the administrator's, those made on this machine when packages are installed, and
/// those that packages bring.
pub const DIRECTORIES: [&str; 3] = ["/usr/local/lib/prepage", "/var/cache/prepage-maps", "/usr/lib/prepage"];

/// Names other directories, with colons between them.
pub const VARIABLE: &str = "PREPAGE_MAPS";

/// The end of a sidecar's name.
pub const SUFFIX: &str = "map";

/// Why a sidecar is not followed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SidecarError {
    /// It could have been written by others, or cannot be read.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// It is no page map.
    #[error("{}", path.display())]
    Map {
        /// Its name.
        path: PathBuf,
        /// What is wrong with it.
        source: PageMapError,
    },
    /// It speaks of another file than its name says.
    #[error("{} is the map of another file", path.display())]
    Other {
        /// Its name.
        path: PathBuf,
    },
}

/// The name of the sidecar, below one of the directories, of the file that holds `fingerprint`.
pub fn name_of(fingerprint: &Fingerprint, size_bytes: u64) -> PathBuf {
    match fingerprint {
        Fingerprint::BuildId(id) => {
            let mut hex = String::with_capacity(2 * id.len());
            for byte in id {
                let _ = write!(hex, "{byte:02x}");
            }
            let (first, rest) = hex.split_at(2.min(hex.len()));
            PathBuf::from(format!("build-id/{first}/{rest}.{SUFFIX}"))
        }
        Fingerprint::Ends(crc) => PathBuf::from(format!("ends/{crc:08x}-{size_bytes}.{SUFFIX}")),
    }
}

/// The directories, open: those that exist.
#[derive(Debug, Default)]
pub struct Sidecars {
    directories: Vec<OwnedFd>,
}

impl Sidecars {
    /// Those of [`VARIABLE`], else of [`DIRECTORIES`]. Those that cannot be trusted are left out, and told.
    pub fn of_machine() -> (Self, Vec<Refused>) {
        Self::in_directories(directories().iter().map(PathBuf::as_path))
    }

    /// Those in `directories`.
    pub fn in_directories<'a>(directories: impl Iterator<Item = &'a Path>) -> (Self, Vec<Refused>) {
        let (mut sidecars, mut refused) = (Self::default(), Vec::new());
        for directory in directories {
            match trust::open_directory(directory) {
                Ok(opened) => sidecars.directories.extend(opened),
                Err(error) => refused.push(error),
            }
        }
        (sidecars, refused)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.directories.is_empty()
    }

    /// The map of the file that holds `fingerprint`: of the first directory that has one.
    ///
    /// # Errors
    /// Why the first one found is not followed.
    pub fn find(&self, fingerprint: &Fingerprint, size_bytes: u64) -> Result<Option<PageMap>, SidecarError> {
        let name = name_of(fingerprint, size_bytes);
        for directory in &self.directories {
            let Some(bytes) = trust::read_below(directory.as_fd(), &name, MAP_BYTES_MAX as u64)? else {
                continue;
            };
            let map =
                PageMap::decode(&bytes).map_err(|source| SidecarError::Map { path: name.clone(), source })?;
            if map.fingerprint != *fingerprint {
                return Err(SidecarError::Other { path: name });
            }
            return Ok(Some(map));
        }
        Ok(None)
    }
}

/// The directories in which sidecars are looked for.
pub fn directories() -> Vec<PathBuf> {
    match std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
        Some(value) => absolute(&value),
        None => DIRECTORIES.iter().map(PathBuf::from).collect(),
    }
}

/// Relative ones mean nothing to a process in another directory.
fn absolute(value: &OsString) -> Vec<PathBuf> {
    std::env::split_paths(value).filter(|path| path.is_absolute()).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn names_are_made_of_the_content() {
        let id = Fingerprint::BuildId(vec![0xab, 0xcd, 0x01]);
        assert_eq!(name_of(&id, 7), Path::new("build-id/ab/cd01.map"));
        assert_eq!(name_of(&Fingerprint::Ends(0x1f), 7), Path::new("ends/0000001f-7.map"));
        assert_eq!(name_of(&Fingerprint::BuildId(vec![]), 7), Path::new("build-id//.map"));
    }

    #[test]
    fn the_map_of_another_file_under_this_name_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let fingerprint = Fingerprint::BuildId(vec![1, 2, 3]);
        let map = |id: u8| PageMap {
            fingerprint: Fingerprint::BuildId(vec![id, 2, 3]),
            size_bytes: 0,
            made_unix_s: 0,
            path: String::new(),
            pages: vec![],
        };
        let (sidecars, refused) = Sidecars::in_directories([dir.path()].into_iter());
        assert!(refused.is_empty() && sidecars.find(&fingerprint, 0).unwrap().is_none());
        let path = dir.path().join(name_of(&fingerprint, 0));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, map(1).encode().unwrap()).unwrap();
        assert_eq!(sidecars.find(&fingerprint, 0).unwrap(), Some(map(1)));
        fs::write(&path, map(9).encode().unwrap()).unwrap();
        assert!(matches!(sidecars.find(&fingerprint, 0), Err(SidecarError::Other { .. })));
        fs::write(&path, "no map").unwrap();
        assert!(matches!(sidecars.find(&fingerprint, 0), Err(SidecarError::Map { .. })));
    }
}
