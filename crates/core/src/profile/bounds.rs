//! What a profile may ask for at most.
//!
//! A profile that was learned keeps far below every bound here. One that was damaged, or made by somebody who means
//! harm, must not cost more memory, time or input than a large program's would. Where there is too much, the least
//! probable goes.

use std::collections::HashSet;

use super::{Profile, ProfiledFile};
use crate::page::{PAGE_SIZE, PageIndex, PageRange};

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
    profile.lookups.retain(|lookup| is_plain(&lookup.path) || lookup_is_odd(&lookup.path, &mut leave));
    profile.files.retain_mut(|file| {
        if !is_plain(&file.path) {
            leave(&file.path, "no absolute path without `.` and `..`");
            return false;
        }
        if cut_to_file(file) {
            leave(&file.path, "pages past its end");
        }
        true
    });
    if keep_likeliest(&mut profile.lookups, LOOKUPS_MAX, |name| name.counts.probability()) {
        leave("", "more names than any program looks up");
    }
    if keep_likeliest(&mut profile.files, FILES_MAX, ProfiledFile::probability) {
        leave("", "more files than any program has");
    }
    for path in cut_pages(profile) {
        leave(&path, "more pages than any program needs");
    }
    left
}

/// Leaves the `most` likeliest, in their order. Returns whether there were more.
fn keep_likeliest<T>(items: &mut Vec<T>, most: usize, probability: impl Fn(&T) -> f64) -> bool {
    if items.len() <= most {
        return false;
    }
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_by(|&a, &b| probability(&items[b]).total_cmp(&probability(&items[a])));
    let mut stays = vec![false; items.len()];
    order[..most].iter().for_each(|&at| stays[at] = true);
    let mut stays = stays.into_iter();
    items.retain(|_| stays.next() == Some(true));
    true
}

/// Leaves the likeliest extents, as many as there may be of them and of their pages. Returns which files lost some.
fn cut_pages(profile: &mut Profile) -> Vec<String> {
    let extents = || profile.files.iter().flat_map(|file| &file.extents);
    let pages = |total: u64, extent: &super::Extent| total.saturating_add(extent.range.len());
    if extents().count() <= EXTENTS_MAX && extents().fold(0, pages) <= PAGES_MAX {
        return Vec::new();
    }
    let mut order: Vec<(usize, u64, f64)> =
        extents().enumerate().map(|(at, e)| (at, e.range.len(), e.counts.probability())).collect();
    order.sort_by(|a, b| b.2.total_cmp(&a.2));
    let mut left = PAGES_MAX;
    let fits = order.into_iter().filter(|&(_, len, _)| {
        let fits = len <= left;
        left -= if fits { len } else { 0 };
        fits
    });
    let stays: HashSet<usize> = fits.take(EXTENTS_MAX).map(|(at, ..)| at).collect();
    let mut at = 0..;
    let mut cut = Vec::new();
    profile.files.retain_mut(|file| {
        let before = file.extents.len();
        file.extents.retain(|_| at.next().is_some_and(|at| stays.contains(&at)));
        cut.extend((file.extents.len() < before).then(|| file.path.clone()));
        before == 0 || !file.extents.is_empty()
    });
    cut
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
    use super::super::counts::{Counts, Use};
    use super::super::file::{decode, encode};
    use super::super::plan::{PlanOptions, plan};
    use super::super::{Extent, FileIdentity, Fingerprint, Lookup};
    use super::*;

    fn file(path: &str, size_bytes: u64, ranges: &[(u64, u64)]) -> ProfiledFile {
        let extent = |&(start, end)| Extent::new(PageRange::new(PageIndex(start), PageIndex(end)), 0);
        ProfiledFile {
            path: path.into(),
            identity: FileIdentity { device: 1, inode: 1, size_bytes, mtime_ns: 0, ctime_ns: 0 },
            fingerprint: Fingerprint::BuildId(vec![1]),
            learned_unix_s: 0,
            extents: ranges.iter().map(extent).collect(),
        }
    }

    fn name(path: &str, list: bool) -> Lookup {
        Lookup { path: path.into(), list, counts: Counts::once(Use::Sure) }
    }

    fn names(profile: &Profile) -> Vec<&str> {
        profile.files.iter().map(|file| file.path.as_str()).collect()
    }

    #[test]
    fn a_sound_profile_stays_as_it_is() {
        let sound = Profile {
            files: vec![file("/usr/lib/libc.so.6", 3 * PAGE_SIZE + 1, &[(0, 2), (3, 4)])],
            lookups: vec![name("/", true), name("/usr/../lib//x", false)],
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
            lookups: vec![name("relative", false)],
            ..Profile::default()
        };
        assert_eq!(bound(&mut odd).len(), paths.len());
        assert_eq!(names(&odd), ["/good"]);
        assert!(odd.lookups.is_empty());
    }

    #[test]
    fn of_too_many_the_least_probable_go_and_not_the_newest() {
        let unlikely = Counts::once(Use::Sure).after(Use::None);
        let mut many = Profile {
            files: (0..FILES_MAX + 5).map(|at| file(&format!("/{at}"), PAGE_SIZE, &[(0, 1)])).collect(),
            lookups: (0..=LOOKUPS_MAX).map(|at| name(&format!("/{at}"), false)).collect(),
            ..Profile::default()
        };
        many.files[..5].iter_mut().for_each(|file| file.extents[0].counts = unlikely);
        many.lookups[7].counts = unlikely;
        assert_eq!(bound(&mut many).len(), 2);
        assert_eq!((many.files.len(), many.lookups.len()), (FILES_MAX, LOOKUPS_MAX));
        assert_eq!((many.files[0].path.as_str(), many.lookups[7].path.as_str()), ("/5", "/8"));
    }

    #[test]
    fn of_too_many_pages_the_least_probable_go() {
        let mut old = file("/old", u64::MAX / 2, &[(0, PAGES_MAX - 1)]);
        old.extents[0].counts = Counts::once(Use::Sure).after(Use::None);
        let files = vec![old, file("/new", PAGE_SIZE, &[(0, 1)]), file("/newer", 9 * PAGE_SIZE, &[(0, 9)])];
        let mut many = Profile { files, ..Profile::default() };
        assert_eq!(bound(&mut many).len(), 1);
        assert_eq!(names(&many), ["/new", "/newer"]);
    }
}
