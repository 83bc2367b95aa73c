//! An image of a machine that has a boot's profile, its own or another one's, before its next boot: where the inodes and directories of the
//! profile's files lie is worked out while somebody has the image mounted. Files have names; blocks have to be found in each image anew.

use std::io;
use std::path::Path;

use crate::arrange::{Arranged, Programs, arrange};
use crate::blocks::{BlockDevice, forget, needed};
use crate::options::ServiceError;
use crate::period::profile;
use crate::subject::Subject;

/// What an image is prepared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// Pages of inodes, directories and maps of extents that its next boot reads ahead.
    pub pages: u64,
    /// What was moved.
    pub arranged: Option<Arranged>,
}

/// Writes which blocks the next boot of the image mounted at `root` needs, beside its profile; where `programs` says what becomes of these, after its files are moved
/// ([`arrange`]), also where that fails midway. What a boot of the image itself has seen in use is kept. `root` becomes the root directory of this process.
///
/// # Errors
/// [`ServiceError::Image`] where there is no profile of a boot, or the file system has no blocks that can be read ahead, or cannot move files.
pub fn prepare(root: &Path, programs: Option<Programs>) -> Result<Prepared, ServiceError> {
    let failed = |source| ServiceError::Image { path: root.into(), source };
    let lacks = |what: &str| failed(io::Error::other(what.to_owned()));
    let device = BlockDevice::of(root).map_err(failed)?;
    let device = device
        .ok_or_else(|| lacks("its file system is not ext2, ext3 or ext4: there is nothing to prepare"))?;
    let runs = rustix::fs::stat("/").is_ok_and(|running| running.st_dev == device.number());
    rustix::process::chroot(root).map_err(|error| failed(error.into()))?;
    std::env::set_current_dir("/").map_err(failed)?;
    let stores = Subject::Boot.stores(None)?;
    let profile = profile(Subject::Boot, &stores)?.ok_or_else(|| {
        lacks("it has no profile of a boot. In the image: prepage profile import --layer machine FILE")
    })?;
    let blocks = || {
        let files = profile.files.iter().map(|file| (Path::new(&file.path), false));
        let listed = profile.lookups.iter().filter(|lookup| lookup.list);
        let listed = listed.map(|lookup| (Path::new(&lookup.path), true));
        let names = device.names(needed(beside(files, listed), &profile));
        device.holding(&names, [], &profile)
    };
    if blocks().pages() == 0 {
        return Err(lacks(
            "its file system has a feature that is not supported here (meta_bg): there is nothing to prepare",
        ));
    }
    let directory = stores.directory(Subject::Boot.layer())?;
    let known = device.known(directory).unwrap_or_default();
    let mut may_have_moved = false;
    let before = || {
        // Nobody is to believe where files lay, if this is ended midway.
        forget(directory)?;
        may_have_moved = true;
        Ok(())
    };
    let arranged = programs.map(|programs| arrange(&device, &profile, runs, programs, before)).transpose();
    let arranged = arranged.map_err(failed);
    if arranged.is_err() && !may_have_moved {
        return arranged.map(|arranged| Prepared { pages: 0, arranged });
    }
    let blocks = blocks().beside(&known);
    blocks.write(directory).map_err(failed)?;
    Ok(Prepared { pages: blocks.pages(), arranged: arranged? })
}

/// Both in one order: how far on in its list each of them stands is all that is known of when it is needed.
fn beside<T>(files: impl Iterator<Item = T>, listed: impl Iterator<Item = T>) -> impl Iterator<Item = T> {
    let place = |all: Vec<T>| {
        let len = all.len() as f64;
        all.into_iter().enumerate().map(move |(at, one)| (at as f64 / len, one))
    };
    let mut all: Vec<_> = place(files.collect()).chain(place(listed.collect())).collect();
    all.sort_by(|one, other| one.0.total_cmp(&other.0));
    all.into_iter().map(|(_, one)| one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_lists_keep_their_order_and_end_together() {
        let both = beside([1, 2, 3, 4].into_iter(), [10, 20].into_iter());
        assert_eq!(both.collect::<Vec<_>>(), [1, 10, 2, 3, 20, 4]);
        assert_eq!(beside([1].into_iter(), [].into_iter()).collect::<Vec<_>>(), [1]);
    }
}
