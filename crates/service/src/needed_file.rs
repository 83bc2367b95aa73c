//! For tests: a file on the disk, and what a profile says of it.

use std::fs::File;
use std::path::Path;

use prepage_core::PAGE_SIZE;
use prepage_core::profile::ProfiledFile;
use prepage_profiles::identity::{open_to_read, profiled};

/// Writes `pages` pages to a file at `path`, and that to the disk; they stay in memory. Returns the file, to be read, and how a profile has it of
/// which a start needs the pages `needed`, in this order.
pub(crate) fn needed_file(path: &Path, pages: u64, needed: &[u64]) -> (File, ProfiledFile) {
    std::fs::write(path, vec![1; (pages * PAGE_SIZE) as usize]).unwrap();
    let file = open_to_read(path).unwrap();
    file.sync_all().unwrap();
    (file, profiled(path, needed.iter().copied()).unwrap())
}
