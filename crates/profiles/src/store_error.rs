//! What can go wrong with a store of profiles.

use std::io;
use std::path::PathBuf;

use prepage_core::profile::file::ProfileFileError;

use crate::public::Private;
use crate::trust::Refused;

/// Why a store could not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Neither `$PREPAGE_STORE`, `$XDG_STATE_HOME` nor `$HOME` says where: relative paths of the latter two do not count.
    #[error(
        "no place for profiles: PREPAGE_STORE is not set, and neither XDG_STATE_HOME nor HOME is an absolute path"
    )]
    Nowhere,
    /// A directory or file belongs to somebody else or is open to others.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// A file in the store is not a profile that this version reads.
    #[error("{}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: ProfileFileError,
    },
    /// A newer prepage wrote it. It is neither used nor replaced.
    #[error("{} was written by a newer prepage (profile format {version})", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format version.
        version: u32,
    },
    /// What is private to a user has no place where all may read it.
    #[error("{role}: {why}")]
    Private {
        /// The role.
        role: String,
        /// Why it is private.
        why: Private,
    },
    /// Another writer holds the lock, or writes the same profile again and again.
    #[error("{}: another prepage has been writing for too long", path.display())]
    Busy {
        /// The directory.
        path: PathBuf,
    },
    /// The configuration leaves no room for profiles, or for this one.
    #[error("store-max in the configuration is {bytes_max} bytes, which the profile does not fit into")]
    Capped {
        /// `store-max`.
        bytes_max: u64,
    },
    /// The operating system refused.
    #[error("{}", path.display())]
    Io {
        /// What it was about.
        path: PathBuf,
        /// Its reason.
        source: io::Error,
    },
}

impl StoreError {
    /// What helps, as one line.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Unreadable { .. } => "prepage learn -- CMD, which replaces it",
            Self::Newer { .. } => "prepage profile rm, or the newer prepage",
            Self::Private { .. } => "--layer user, or a program that is installed for all",
            Self::Busy { .. } => "end the prepage that holds the lock (fuser DIRECTORY/lock)",
            Self::Capped { .. } => "a larger store-max, or learn = no (prepage config says where it stands)",
            Self::Nowhere | Self::Refused(_) | Self::Io { .. } => {
                "set PREPAGE_STORE to a directory of your own (mode 0700) on a disk with room"
            }
        }
    }
}

/// An error with its causes, in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
