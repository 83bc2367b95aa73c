//! Where what a start has shown is written, for a process that has no part of the [library](crate::library).

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;

use prepage_profiles::{Layer, StoreError, Stores};

use crate::askers::{Askers, Unanswered};
use crate::homes::{home, home_told_by, of_user, stores_at};
use crate::process::Process;
use crate::shelf::{OF_USER, Shelf, version};

/// The stores as the library had them. All of it never changes.
#[derive(Debug)]
pub(crate) struct Writing {
    pub machine: Stores,
    pub containers: Option<Stores>,
    /// Directories to use in place of the usual ones.
    pub layers: Option<Vec<PathBuf>>,
    /// With what the machine's administrator wants.
    pub shelf: Arc<Shelf>,
}

impl Writing {
    /// Has `write` change the profile for starts as that of `process` in its `layer`: of a container's in the containers' store, the user's own with the rights of
    /// the user and no others. Returns checksums of the [versions](checksum) that a user's store had before and afterwards.
    ///
    /// # Errors
    /// As `write`; Nowhere where there is no place for it.
    pub fn write(
        &self,
        process: &Process,
        layer: Layer,
        write: impl FnOnce(&Stores, Layer) -> Result<(), StoreError>,
    ) -> Result<[u64; 2], StoreError> {
        match (&process.root, layer) {
            (Some(_), _) => write(self.containers.as_ref().ok_or(StoreError::Nowhere)?, Layer::User)?,
            (None, Layer::User) => return self.write_own(process, |stores| write(stores, layer)),
            (None, layer) => write(&self.machine, layer)?,
        }
        Ok([0; 2])
    }

    fn write_own(
        &self,
        process: &Process,
        write: impl FnOnce(&Stores) -> Result<(), StoreError>,
    ) -> Result<[u64; 2], StoreError> {
        let found = stores_of(process, self.layers.clone());
        let (stores, home) = found.ok().flatten().ok_or(StoreError::Nowhere)?;
        let _asking = Askers::of_machine().ask(&home).map_err(|_| StoreError::Nowhere)?;
        let _assumed = process.rights.assume().map_err(|_| StoreError::Nowhere)?;
        let stores = stores.keeping(of_user(self.shelf.config.clone(), &home).store_bytes_max);
        let before = version(&stores, &OF_USER);
        write(&stores)?;
        Ok([before, version(&stores, &OF_USER)].map(|version| checksum(&version)))
    }
}

/// What tells one value from another, versions of a store among them, in all processes of one service.
pub(crate) fn checksum(value: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Where the own profiles of the user for whom `process` runs lie, and the user's home; `layers` are directories to use in place of the usual ones. Of a user
/// who is not in /etc/passwd the process says where that is: whoever is asked else may be a server that does not answer.
///
/// # Errors
/// Where the file system of the home that the process names does not answer.
pub(crate) fn stores_of(
    process: &Process,
    layers: Option<Vec<PathBuf>>,
) -> Result<Option<(Stores, PathBuf)>, Unanswered> {
    let uid = process.rights.uid;
    let home = match home(uid) {
        Some((home, _)) => Some(home),
        None => home_told_by(process)?,
    };
    Ok(home.and_then(|home| stores_at(uid, layers, home)))
}
