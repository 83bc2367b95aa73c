//! What a profile may ask for at most.
//!
//! A profile that was learned keeps far below every bound here. One that was damaged, or made by somebody who means
//! harm, must not cost more memory, time or input than a large program's would.

use crate::page::{PAGE_SIZE, PageIndex, PageRange};
use crate::profile::{Profile, ProfiledFile};

/// Files of one profile. A desktop browser has a thousand.
pub const FILES_MAX: usize = 1 << 14;
/// Names of one profile.
pub const LOOKUPS_MAX: usize = 1 << 16;
/// Extents of one profile.
pub const EXTENTS_MAX: usize = 1 << 20;
/// Pages of one profile: 64 GiB.
pub const PAGES_MAX: u64 = 1 << 24;
/// Bytes of a path (`PATH_MAX` of the kernel, less its final zero).
pub const PATH_BYTES_MAX: usize = 4095;

/// Something of a profile that is not followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// The file or name; empty for a part of the profile that has none.
    pub path: String,
    /// Why.
    pub reason: &'static str,
}

/// Cuts `profile` down to what it may ask for, and returns what was cut off.
pub fn bound(profile: &mut Profile) -> Vec<LeftOut> {
    let mut left = Vec::new();
    let mut leave = |path: &str, reason| left.push(LeftOut { path: path.into(), reason });
    if profile.files.len() > FILES_MAX {
        leave("", "more files than any program has");
        profile.files.truncate(FILES_MAX);
    }
    if profile.lookups.len() > LOOKUPS_MAX {
        leave("", "more names than any program looks up");
        profile.lookups.truncate(LOOKUPS_MAX);
    }
    profile.lookups.retain(|lookup| is_plain(&lookup.path) || lookup_is_odd(&lookup.path, &mut leave));
    let (mut extents, mut pages) = (0, 0u64);
    profile.files.retain_mut(|file| {
        if !is_plain(&file.path) {
            leave(&file.path, "no absolute path without `.` and `..`");
            return false;
        }
        if cut_to_file(file) {
            leave(&file.path, "pages past its end");
        }
        extents += file.extents.len();
        pages = pages.saturating_add(file.pages());
        let fits = extents <= EXTENTS_MAX && pages <= PAGES_MAX;
        if !fits {
            leave(&file.path, "more pages than any program needs");
        }
        fits
    });
    left
}

/// Paths with `..` in them are no harm as names: the kernel follows them for the program as well.
fn lookup_is_odd(path: &str, leave: &mut impl FnMut(&str, &'static str)) -> bool {
    let usable = path.starts_with('/') && path.len() <= PATH_BYTES_MAX && !path.contains('\0');
    if !usable {
        leave(path, "no name that can be looked up");
    }
    usable
}

/// Whether `path` names a file in one way only: absolute, and free of empty, `.` and `..` parts.
pub fn is_plain(path: &str) -> bool {
    path.len() <= PATH_BYTES_MAX
        && path.strip_prefix('/').is_some_and(|rest| {
            rest.split('/')
                .all(|part| !part.is_empty() && part != "." && part != ".." && !part.contains('\0'))
        })
}

/// Removes empty extents and what lies past the end of the file. Returns whether there was such a thing.
fn cut_to_file(file: &mut ProfiledFile) -> bool {
    let end = PageIndex(file.identity.size_bytes.div_ceil(PAGE_SIZE));
    let before = file.extents.len();
    let mut cut = false;
    file.extents.retain_mut(|extent| {
        if extent.range.end() > end {
            cut = true;
            extent.range = PageRange::new(extent.range.start().min(end), end);
        }
        !extent.range.is_empty()
    });
    cut || file.extents.len() < before
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{PlanOptions, plan};
    use crate::profile::{Evidence, Extent, FileIdentity, Fingerprint, Lookup};
    use crate::profile_file::{decode, encode};

    fn file(path: &str, size_bytes: u64, ranges: &[(u64, u64)]) -> ProfiledFile {
        ProfiledFile {
            path: path.into(),
            identity: FileIdentity { device: 1, inode: 1, size_bytes, mtime_ns: 0, ctime_ns: 0 },
            fingerprint: Fingerprint::Ends(1),
            learned_unix_s: 0,
            extents: ranges
                .iter()
                .map(|&(start, end)| {
                    Extent::new(PageRange::new(PageIndex(start), PageIndex(end)), 0, Evidence::Seen)
                })
                .collect(),
        }
    }

    fn names(profile: &Profile) -> Vec<&str> {
        profile.files.iter().map(|file| file.path.as_str()).collect()
    }

    #[test]
    fn a_sound_profile_stays_as_it_is() {
        let sound = Profile {
            files: vec![file("/usr/lib/libc.so.6", 3 * PAGE_SIZE + 1, &[(0, 2), (3, 4)])],
            lookups: vec![
                Lookup { rank: 0, path: "/".into(), list: true },
                Lookup { rank: 0, path: "/usr/../lib//x".into(), list: false },
            ],
            ..Profile::default()
        };
        let mut bounded = sound.clone();
        assert_eq!(bound(&mut bounded), []);
        assert_eq!(bounded, sound);
    }

    #[test]
    fn pages_past_the_end_are_cut_off() {
        let mut lying =
            Profile { files: vec![file("/a", 2 * PAGE_SIZE, &[(1, 9), (20, 30)])], ..Profile::default() };
        let left = bound(&mut lying);
        assert_eq!(left, [LeftOut { path: "/a".into(), reason: "pages past its end" }]);
        assert_eq!(lying.files[0], file("/a", 2 * PAGE_SIZE, &[(1, 2)]));
    }

    #[test]
    fn a_profile_of_a_few_bytes_that_asks_for_everything_gets_little() {
        let huge = (i64::MAX as u64) / PAGE_SIZE;
        let lying = Profile {
            files: vec![file("/small", PAGE_SIZE, &[(0, 1)]), file("/huge", i64::MAX as u64, &[(0, huge)])],
            ..Profile::default()
        };
        let bytes = encode(&lying);
        assert!(bytes.len() < 200, "{}", bytes.len());
        let mut read = decode(&bytes).unwrap();
        bound(&mut read);
        assert_eq!(names(&read), ["/small"]);
        assert_eq!(plan(&read, PlanOptions::default()).len(), 1);
    }

    #[test]
    fn paths_that_lead_elsewhere_are_left_out() {
        let paths = ["relative", "/a/../b", "/a/./b", "/a//b", "", "/", "/a\0b", "/good"];
        let mut odd = Profile {
            files: paths.iter().map(|path| file(path, PAGE_SIZE, &[(0, 1)])).collect(),
            lookups: vec![Lookup { rank: 0, path: "relative".into(), list: false }],
            ..Profile::default()
        };
        assert_eq!(bound(&mut odd).len(), paths.len());
        assert_eq!(names(&odd), ["/good"]);
        assert!(odd.lookups.is_empty());
    }

    #[test]
    fn too_many_are_cut_off() {
        let mut many = Profile {
            files: (0..FILES_MAX + 5).map(|at| file(&format!("/{at}"), PAGE_SIZE, &[])).collect(),
            lookups: vec![Lookup { rank: 0, path: "/x".into(), list: false }; LOOKUPS_MAX + 1],
            ..Profile::default()
        };
        assert_eq!(bound(&mut many).len(), 2);
        assert_eq!((many.files.len(), many.lookups.len()), (FILES_MAX, LOOKUPS_MAX));
    }
}
