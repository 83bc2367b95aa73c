//! The conditions under which every first touch of a file's page shows as a fault of its own.
//!
//! Read-ahead brings in pages nobody asked for and fault-around maps those without a fault. With the read-ahead 0 and the
//! caches dropped, only pages that were touched are resident, so that there is nothing around a fault to be mapped along,
//! but for what other programs keep in memory by having it mapped.

use std::io;

use prepage_prefetch::cold::drop_caches;
use prepage_sys::readahead::ReadAhead;

/// The conditions cannot be made. Nothing stays changed then.
#[derive(Debug, thiserror::Error)]
#[error("touches cannot be recorded exactly: this user may not change the read-ahead and drop the caches")]
pub struct ExactError(#[source] io::Error);

/// Sets the read-ahead of all devices to 0, until what this returns is dropped, and drops all caches. Only root may.
///
/// To be called while the process has one thread.
///
/// # Errors
/// When either is not allowed.
pub fn begin() -> Result<ReadAhead, ExactError> {
    let restored_when_dropped = ReadAhead::set(0).map_err(ExactError)?;
    drop_caches().map_err(ExactError)?;
    Ok(restored_when_dropped)
}
