//! Ways to prefetch: in which order with the program, and how much.
//!
//! A study of 2008 (predictive bitmaps) read its bitmap's pages, or whole mappings, before it let the program run. The
//! usual way today is asynchronous: [`Mode::Async`], as `prepage run` has it.

use std::borrow::Cow;

use prepage_core::profile::plan::READ_PAGES_MAX;
use prepage_core::profile::{Extent, Fingerprint, Profile, ProfiledFile};
use prepage_core::{PageIndex, PageRange};

prepage_core::named! {
    /// How a start is prefetched.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Mode {
        /// The pages of the profile, while the program runs.
        Async = "async",
        /// The pages of the profile; the program starts when they are in memory.
        Sync = "sync",
        /// Executables and libraries as a whole, of other files their pages; the program starts when they are in memory.
        Slurp = "slurp",
        /// The same, while the program runs.
        SlurpAsync = "slurp-async",
    }
}

impl Mode {
    /// Whether the program waits for the end of the prefetch.
    pub const fn is_synchronous(self) -> bool {
        matches!(self, Self::Sync | Self::Slurp)
    }

    /// What of `profile` is prefetched.
    pub fn reads(self, profile: &Profile) -> Cow<'_, Profile> {
        match self {
            Self::Async | Self::Sync => Cow::Borrowed(profile),
            Self::Slurp | Self::SlurpAsync => {
                let files = profile.files.iter().map(whole);
                Cow::Owned(Profile { files: files.collect(), ..profile.clone() })
            }
        }
    }
}

/// All pages of an executable or a library, known by its build-id; data files are as large as they like and stay as
/// they are.
fn whole(file: &ProfiledFile) -> ProfiledFile {
    let pages = PageRange::covering(0, file.identity.size_bytes).end().0;
    if !matches!(file.fingerprint, Fingerprint::BuildId(_)) || pages == 0 || file.extents.is_empty() {
        return file.clone();
    }
    let rank = file.rank();
    // A read each, so that what is used first still comes first among the files.
    let piece = |start: u64| {
        let range = PageRange::new(PageIndex(start), PageIndex(pages.min(start + READ_PAGES_MAX)));
        Extent::new(range, rank)
    };
    let extents = (0..pages).step_by(READ_PAGES_MAX as usize).map(piece).collect();
    ProfiledFile { extents, ..file.clone() }
}

#[cfg(test)]
mod tests {
    use prepage_core::profile::FileIdentity;

    use super::*;

    fn file(fingerprint: Fingerprint, size_bytes: u64) -> ProfiledFile {
        let extent = Extent::new(PageRange::new(PageIndex(3), PageIndex(4)), 7);
        ProfiledFile {
            path: "/a".into(),
            identity: FileIdentity { device: 0, inode: 0, size_bytes, mtime_ns: 0, ctime_ns: 0 },
            fingerprint,
            learned_unix_s: 0,
            extents: vec![extent],
        }
    }

    #[test]
    fn only_executables_are_read_as_a_whole() {
        let library = file(Fingerprint::BuildId(vec![1]), 100 * 4096 + 1);
        let data = file(Fingerprint::Ends { crc: 1, size_bytes: 1 << 40 }, 1 << 40);
        let profile = Profile { files: vec![library, data.clone()], ..Profile::default() };
        let reads = Mode::Slurp.reads(&profile);
        assert_eq!(reads.files[0].pages(), 101);
        assert_eq!(reads.files[1], data);
        assert_eq!(Mode::Async.reads(&profile).into_owned(), profile);
    }
}
