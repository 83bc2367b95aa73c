//! Ways to prefetch: in which order with the program, and how much.
//!
//! The usual one is asynchronous. The others are those of a study of 2008, kept to be compared with it
//! (docs/results.md): it read its bitmap's pages, or whole mappings, before it let the program run.

use std::borrow::Cow;
use std::str::FromStr;

use prepage_core::plan::READ_PAGES_MAX;
use prepage_core::profile::{Evidence, Extent, Fingerprint, Profile, ProfiledFile};
use prepage_core::{PageIndex, PageRange};

/// How a start is prefetched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The pages of the profile, while the program runs.
    #[default]
    Async,
    /// The pages of the profile; the program starts when they are in memory.
    Sync,
    /// Executables and libraries as a whole, of other files their pages; the program starts when they are in memory.
    Slurp,
    /// The same, while the program runs.
    SlurpAsync,
}

impl Mode {
    /// Every mode, by the name it has as an option.
    pub const NAMES: [(&str, Self); 4] = [
        ("async", Self::Async),
        ("sync", Self::Sync),
        ("slurp", Self::Slurp),
        ("slurp-async", Self::SlurpAsync),
    ];

    /// Whether the program waits for the end of the prefetch.
    pub fn is_synchronous(self) -> bool {
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

/// A name of no mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no mode `{name}`; there are {}", Mode::NAMES.map(|(name, _)| name).join(", "))]
pub struct UnknownMode {
    /// What was given.
    name: String,
}

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(name: &str) -> Result<Self, UnknownMode> {
        let found = Self::NAMES.iter().find(|(known, _)| *known == name);
        found.map(|&(_, mode)| mode).ok_or_else(|| UnknownMode { name: name.into() })
    }
}

/// All pages of an executable or a library, which a build-id tells; data files are as large as they like and stay as
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
        Extent::new(range, rank, Evidence::Near)
    };
    let extents = (0..pages).step_by(READ_PAGES_MAX as usize).map(piece).collect();
    ProfiledFile { extents, ..file.clone() }
}

#[cfg(test)]
mod tests {
    use prepage_core::profile::FileIdentity;

    use super::*;

    fn file(fingerprint: Fingerprint, size_bytes: u64) -> ProfiledFile {
        let extent = Extent::new(PageRange::new(PageIndex(3), PageIndex(4)), 7, Evidence::Exact);
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
        let data = file(Fingerprint::Ends(1), 1 << 40);
        let profile = Profile { files: vec![library, data.clone()], ..Profile::default() };
        let reads = Mode::Slurp.reads(&profile);
        assert_eq!(reads.files[0].pages(), 101);
        assert_eq!(reads.files[1], data);
        assert_eq!(Mode::Async.reads(&profile).into_owned(), profile);
    }

    #[test]
    fn every_mode_has_a_name_and_others_are_refused() {
        for (name, mode) in Mode::NAMES {
            assert_eq!(name.parse(), Ok(mode));
        }
        let error = "fast".parse::<Mode>().unwrap_err();
        assert!(error.to_string().contains("slurp-async"), "{error}");
        assert!(Mode::Slurp.is_synchronous() && !Mode::SlurpAsync.is_synchronous());
    }
}
