//! Reading a file through mmap, one byte at a time.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use prepage_core::PageRange;
use prepage_sys::mapping::FileMapping;

use prepage_simulate::pattern::Pattern;

/// The file cannot be opened or mapped.
#[derive(Debug, thiserror::Error)]
#[error("{} cannot be mapped", path.display())]
pub struct AccessError {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

/// Maps the file and reads each of its bytes once in the order of `pattern`. Returns their sum, which is the same for
/// every order.
pub fn access(path: &Path, pattern: Pattern, seed: u64) -> Result<u64, AccessError> {
    let failed = |source| AccessError { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let size_bytes = file.metadata().map_err(failed)?.len();
    let mapping = FileMapping::new(file.as_fd(), PageRange::covering(0, size_bytes)).map_err(failed)?;
    let mut sum = 0u64;
    pattern.each(size_bytes, seed, |offset| sum += u64::from(mapping.byte(offset)));
    Ok(sum)
}
