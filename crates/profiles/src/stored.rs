//! A profile in a store, as those who start programs and those who list profiles get it.

use std::path::PathBuf;
use std::time::Duration;

use prepage_core::profile::Profile;
use prepage_core::profile::bounds::{LeftOut, bound};
use prepage_core::profile::file::{self, Glance, PAYLOAD_BYTES_MAX, ProfileFileError, Room};

use crate::layer::Layer;
use crate::store_error::StoreError;

/// A profile as it was found, not decoded yet: what a start can afford to wait for.
#[derive(Clone, Debug)]
pub struct Stored {
    /// Where it is.
    pub path: PathBuf,
    /// In which layer.
    pub layer: Layer,
    /// Of what [`crate::Stores::read_at_hand`] has found, the beginning alone.
    pub(crate) bytes: Vec<u8>,
    /// How long before it was read a user's own had been written or marked as used. A file from the future is of a clock that was set back, and says
    /// nothing.
    pub(crate) age: Option<Duration>,
}

impl Stored {
    /// What a start of its user asks of it first. What a profile of another layer owes is not owed by starts of a user: what they show is written to
    /// the user's own layer, and would clear no debt.
    ///
    /// # Errors
    /// When the bytes make no sense.
    pub fn glance(&self) -> Result<Glance<'_>, StoreError> {
        self.for_its_user(Glance::of(&self.bytes))
    }

    /// The same without the starts, of which the [beginning](file::SAMPLE_BYTES) is enough.
    ///
    /// # Errors
    /// When that does not tell, or makes no sense.
    pub fn first_glance(&self) -> Result<Glance<'_>, StoreError> {
        self.for_its_user(Glance::of_beginning(&self.bytes))
    }

    fn for_its_user<'b>(
        &self,
        glance: Result<Glance<'b>, ProfileFileError>,
    ) -> Result<Glance<'b>, StoreError> {
        let mut glance = glance.map_err(|source| self.unreadable(source))?;
        if self.layer != Layer::User {
            glance.past.history = glance.past.history.for_others();
        }
        Ok(glance)
    }

    /// Whether the user's own profile was written less than `interval` before it was read.
    pub fn was_just_written(&self, interval: Duration) -> bool {
        self.age.is_some_and(|age| age < interval)
    }

    /// The profile, cut to what any profile may ask for, and what was cut off.
    ///
    /// # Errors
    /// When the bytes make no sense.
    pub fn decode(&self) -> Result<(Profile, Vec<LeftOut>), StoreError> {
        self.bounded(file::decode(&self.bytes))
    }

    /// The same, where it takes at most `bytes_max` in memory.
    ///
    /// # Errors
    /// When it takes more, or the bytes make no sense.
    pub fn decode_within(&self, bytes_max: u64) -> Result<Profile, StoreError> {
        let mut room = Room::of(bytes_max.min(PAYLOAD_BYTES_MAX) as usize);
        Ok(self.bounded(file::decode_in(&self.bytes, &mut room))?.0)
    }

    fn bounded(
        &self,
        decoded: Result<Profile, ProfileFileError>,
    ) -> Result<(Profile, Vec<LeftOut>), StoreError> {
        let mut profile = decoded.map_err(|source| self.unreadable(source))?;
        let cut = bound(&mut profile);
        Ok((profile, cut))
    }

    fn unreadable(&self, source: ProfileFileError) -> StoreError {
        StoreError::Unreadable { path: self.path.clone(), source }
    }
}

/// A profile that was found.
#[derive(Clone, Debug)]
pub struct FoundProfile {
    /// The profile.
    pub profile: Profile,
    /// In which layer.
    pub layer: Layer,
}

/// A file of a store: the profile in it, or what is wrong with it.
pub type Listed = (PathBuf, Result<Profile, StoreError>);
