//! Reading a file through mmap, one byte at a time.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use prepage_core::PageRange;
use prepage_sys::mapping::FileMapping;

use crate::error::{BenchError, failed};
use prepage_simulate::pattern::Pattern;

/// Maps the file and reads each of its bytes once in the order of `pattern`. Returns their sum, which is the same for
/// every order.
pub fn access(path: &Path, pattern: Pattern, seed: u64) -> Result<u64, BenchError> {
    let unmapped = || failed(format!("{} cannot be mapped", path.display()));
    let file = File::open(path).map_err(unmapped())?;
    let size_bytes = file.metadata().map_err(unmapped())?.len();
    let mapping = FileMapping::new(file.as_fd(), PageRange::covering(0, size_bytes)).map_err(unmapped())?;
    let mut sum = 0u64;
    pattern.each(size_bytes, seed, |offset| sum += u64::from(mapping.byte(offset)));
    Ok(sum)
}
