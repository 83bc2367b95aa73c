//! What has a profile and is no program: the boot of the machine, and a login session of a user.

use std::path::PathBuf;

use prepage_profiles::key::{BOOT, INIT, SESSION};
use prepage_profiles::{Layer, ProgramKey, StartContextPaths, StoreError, Stores};
use prepage_sys::rights::Rights;

use crate::homes::{home, stores_of_user};

/// A boot or a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// From the first units until the machine is quiet. Its profile is the machine's.
    Boot,
    /// From the login of this user until the machine is quiet. Its profile is the user's own.
    Session(u32),
}

impl Subject {
    /// What its profile is filed under.
    pub fn key(self) -> ProgramKey {
        let role = match self {
            Self::Boot => BOOT,
            Self::Session(_) => SESSION,
        };
        ProgramKey { program: INIT.into(), role: role.into() }
    }

    /// The layer with its profile.
    pub fn layer(self) -> Layer {
        match self {
            Self::Boot => Layer::Machine,
            Self::Session(_) => Layer::User,
        }
    }

    /// With which rights what it lists is opened.
    pub fn rights(self) -> Rights {
        match self {
            Self::Boot => Rights::of_everybody(),
            Self::Session(uid) => {
                let gid = home(uid).map_or(Rights::of_everybody().gid, |(_, gid)| gid);
                Rights { uid, gid, groups: [].into() }
            }
        }
    }

    /// Where its profile lies. `layers` are directories to use in place of the usual ones.
    ///
    /// # Errors
    /// Nowhere where the user has no home.
    pub fn stores(self, layers: Option<Vec<PathBuf>>) -> Result<Stores, StoreError> {
        match self {
            // The machine's profiles need no home: not every image has an /etc/passwd.
            Self::Boot => Stores::for_uid(0, &StartContextPaths { layers, ..StartContextPaths::default() }),
            Self::Session(uid) => Ok(stores_of_user(uid, layers).ok_or(StoreError::Nowhere)?.0),
        }
    }
}
