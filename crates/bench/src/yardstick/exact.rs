//! The conditions under which every first touch of a file's page shows as a fault of its own.
//!
//! Read-ahead brings in pages nobody asked for and fault-around maps those without a fault. With the read-ahead 0 and the
//! caches dropped, only pages that were touched are resident, so that there is nothing around a fault to be mapped along,
//! but for what other programs keep in memory by having it mapped.

use prepage_prefetch::cold::drop_caches;
use prepage_sys::readahead::ReadAhead;

use crate::error::BenchError;

/// Sets the read-ahead of all devices to 0, until what this returns is dropped, and drops all caches. Only root may.
///
/// To be called while the process has one thread.
///
/// # Errors
/// [`BenchError::Exact`] when either is not allowed.
pub fn begin() -> Result<ReadAhead, BenchError> {
    let restored_when_dropped = ReadAhead::set(0).map_err(BenchError::Exact)?;
    drop_caches().map_err(BenchError::Exact)?;
    Ok(restored_when_dropped)
}
