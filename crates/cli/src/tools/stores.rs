//! The stores that commands write to: this user's, bounded as the configuration says.

use prepage_prefetch::config::Config;
use prepage_profiles::{StoreError, Stores};

/// The stores of this user.
pub fn stores() -> Result<Stores, StoreError> {
    Ok(Stores::of_user()?.keeping(Config::load().store_bytes_max))
}
