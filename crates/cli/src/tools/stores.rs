//! The stores that commands write to: this user's, bounded as the configuration says.

use std::io::ErrorKind;

use prepage_prefetch::config::Config;
use prepage_profiles::{Layer, StoreError, Stores, chain};

use crate::remedy::Remedied;

/// The stores of this user.
pub fn stores() -> Result<Stores, StoreError> {
    Ok(Stores::of_user()?.keeping(Config::load().store_bytes_max))
}

/// `error` of a layer, with what helps there: those of all users are root's, and no other directory stands in for them.
pub fn of_layer(layer: Layer, error: StoreError) -> anyhow::Error {
    match &error {
        StoreError::Io { source, .. }
            if layer != Layer::User && source.kind() == ErrorKind::PermissionDenied =>
        {
            Remedied::new(chain(&error), "as root, or --layer user").into()
        }
        _ => error.into(),
    }
}
