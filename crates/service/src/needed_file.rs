//! For tests: a file on the disk, and what a profile says of it.

use std::fs::File;
use std::path::Path;

use prepage_core::profile::{ProfiledFile, Touches};
use prepage_core::{PAGE_SIZE, PageIndex};
use prepage_profiles::identity::{content_of, identity_of, open_to_read};

/// Writes `pages` pages to a file at `path`, and that to the disk; they stay in memory. Returns the file, to be read, and how a profile has it of
/// which a start needs the pages `needed`, in this order.
pub(crate) fn needed_file(path: &Path, pages: u64, needed: &[u64]) -> (File, ProfiledFile) {
    std::fs::write(path, vec![1; (pages * PAGE_SIZE) as usize]).unwrap();
    let file = open_to_read(path).unwrap();
    file.sync_all().unwrap();
    let mut touches = Touches::default();
    (0..).zip(needed).for_each(|(at, page)| touches.touch(PageIndex(*page), at));
    let profiled = ProfiledFile {
        path: path.to_str().unwrap().into(),
        identity: identity_of(&file).unwrap(),
        fingerprint: content_of(&file).unwrap(),
        learned_unix_s: 1,
        extents: touches.extents(),
    };
    (file, profiled)
}
