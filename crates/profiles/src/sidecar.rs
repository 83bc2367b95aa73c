//! Profiles of single files in files of their own: nothing about the file they speak of changes, not its checksum nor its
//! package.
//!
//! A sidecar's name is made from the content of its file, not from its path: `build-id/ab/cdef….profile`, or
//! `ends/CRC-SIZE.profile` where there is no build-id. So it fits the same build wherever that is installed, and a new build
//! never meets the sidecar of the old one. Sidecars lie in the layers that all read ([`crate::store`]).

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use prepage_core::profile::Fingerprint;

use crate::carried::CARRIED_BYTES_MAX;
use crate::layer::Layer;
use crate::room::SUFFIX;
use crate::store::Stores;
use crate::trust::{self, Refused};

/// The name of the sidecar, below a layer's directory, of the file that holds `content`.
pub fn name_of(content: &Fingerprint) -> PathBuf {
    match content {
        Fingerprint::BuildId(id) => {
            let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
            let (first, rest) = hex.split_at(2.min(hex.len()));
            PathBuf::from(format!("build-id/{first}/{rest}.{SUFFIX}"))
        }
        Fingerprint::Ends { crc, size_bytes } => format!("ends/{crc:08x}-{size_bytes}.{SUFFIX}").into(),
    }
}

/// The directories, open: those that exist.
#[derive(Debug)]
pub struct Sidecars {
    uid: u32,
    directories: Vec<OwnedFd>,
}

impl Sidecars {
    /// Those of the layers that all read. Those that cannot be trusted are left out, and told.
    pub fn of(stores: &Stores) -> (Self, Vec<Refused>) {
        let (mut sidecars, mut refused) = (Self { uid: stores.uid(), directories: Vec::new() }, Vec::new());
        for (_, directory) in stores.directories().filter(|(layer, _)| *layer != Layer::User) {
            match trust::open_directory(directory, stores.uid()) {
                Ok(opened) => sidecars.directories.extend(opened),
                Err(error) => refused.push(error),
            }
        }
        (sidecars, refused)
    }

    /// None, for the user this process runs as.
    pub fn none() -> Self {
        Self { uid: rustix::process::geteuid().as_raw(), directories: Vec::new() }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.directories.is_empty()
    }

    /// In whose name they are read.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// The bytes of the sidecar of the file that holds `content`: of the first directory that has one.
    ///
    /// # Errors
    /// Why the first one found is not followed.
    pub fn read(&self, content: &Fingerprint) -> Result<Option<Vec<u8>>, Refused> {
        let name = name_of(content);
        for directory in &self.directories {
            if let Some(bytes) = trust::read_below(directory.as_fd(), &name, CARRIED_BYTES_MAX, self.uid)? {
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }
}

/// Whether `path` is where the sidecar of a file that holds `content` would lie, below whatever directory.
pub fn is_named_for(path: &Path, content: &Fingerprint) -> bool {
    path.ends_with(name_of(content))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_made_of_the_content() {
        let id = Fingerprint::BuildId(vec![0xab, 0xcd, 0x01]);
        assert_eq!(name_of(&id), Path::new("build-id/ab/cd01.profile"));
        let ends = Fingerprint::Ends { crc: 0x1f, size_bytes: 7 };
        assert_eq!(name_of(&ends), Path::new("ends/0000001f-7.profile"));
        assert!(is_named_for(Path::new("/x/build-id/ab/cd01.profile"), &id));
        assert!(!is_named_for(Path::new("/x/app.js.map"), &id));
    }
}
