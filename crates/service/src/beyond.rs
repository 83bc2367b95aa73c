//! What of a profile nobody brings in yet.
//!
//! A process that executes one program after the other (Rscript, the shell script that it becomes, R) has a profile for each of them, and the first
//! one's holds what the others need. So does that of a script of what it starts. Each page is asked for once.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use prepage_core::PageRange;
use prepage_core::profile::{Extent, FileIdentity, Profile, ProfiledFile};

/// What `wanted` holds beyond those that are `on_their_way`: pages of the same file with the same content, and names.
pub fn beyond(wanted: &Profile, on_their_way: &[Arc<Profile>]) -> Profile {
    let mut taken: HashMap<(&str, FileIdentity), Vec<PageRange>> = HashMap::new();
    let mut names = HashSet::new();
    for profile in on_their_way {
        for file in &profile.files {
            let ranges = file.extents.iter().map(|extent| extent.range);
            taken.entry((&file.path, file.identity)).or_default().extend(ranges);
        }
        names.extend(profile.lookups.iter().map(|name| (name.path.as_str(), name.list)));
    }
    taken.values_mut().for_each(|ranges| {
        ranges.sort_unstable_by_key(|range| range.start());
        ranges.dedup_by(|next, last| {
            let overlaps = next.start() <= last.end();
            if overlaps {
                *last = PageRange::new(last.start(), last.end().max(next.end()));
            }
            overlaps
        });
    });
    let left = |file: &ProfiledFile| {
        let extents = match taken.get(&(file.path.as_str(), file.identity)) {
            Some(taken) => without(&file.extents, taken),
            None => file.extents.clone(),
        };
        (!extents.is_empty()).then(|| ProfiledFile { extents, ..file.clone() })
    };
    let is_left =
        |path: &str, list| !names.contains(&(path, list)) && (list || !names.contains(&(path, true)));
    Profile {
        program: wanted.program.clone(),
        role: wanted.role.clone(),
        files: wanted.files.iter().filter_map(left).collect(),
        lookups: wanted.lookups.iter().filter(|name| is_left(&name.path, name.list)).cloned().collect(),
        ..Profile::default()
    }
}

/// `extents` without the pages that are `taken`. Both lie one behind the other, apart, and a profile may have very many of either.
fn without(extents: &[Extent], taken: &[PageRange]) -> Vec<Extent> {
    let mut left = Vec::new();
    let mut next = 0;
    for extent in extents {
        let mut start = extent.range.start();
        next += taken[next..].iter().take_while(|range| range.end() <= start).count();
        while let Some(range) = taken.get(next).filter(|range| range.start() < extent.range.end()) {
            if range.start() > start {
                left.push(Extent { range: PageRange::new(start, range.start()), ..*extent });
            }
            start = range.end();
            // What reaches further takes pages of the next extent, too.
            if start >= extent.range.end() {
                break;
            }
            next += 1;
        }
        if start < extent.range.end() {
            left.push(Extent { range: PageRange::new(start, extent.range.end()), ..*extent });
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use prepage_core::PageIndex;
    use prepage_core::profile::{Lookup, Touches};
    use prepage_core::random::SplitMix;

    use super::*;

    fn file(path: &str, inode: u64, pages: &[u64]) -> ProfiledFile {
        let mut touches = Touches::default();
        (0..).zip(pages).for_each(|(rank, page)| touches.touch(PageIndex(*page), rank));
        let identity = FileIdentity { inode, ..FileIdentity::default() };
        ProfiledFile { path: path.into(), identity, extents: touches.extents(), ..ProfiledFile::default() }
    }

    fn profile(files: &[ProfiledFile], names: &[(&str, bool)]) -> Profile {
        let name = |(path, list): &(&str, bool)| Lookup {
            path: (*path).into(),
            list: *list,
            counts: Default::default(),
        };
        Profile { files: files.to_vec(), lookups: names.iter().map(name).collect(), ..Profile::default() }
    }

    #[test]
    fn each_page_and_each_name_is_asked_for_once() {
        let wanted = profile(
            &[file("/a", 1, &[0, 1, 2, 3, 8, 9]), file("/b", 2, &[4, 5]), file("/c", 3, &[7])],
            &[("/x", false), ("/y", true), ("/z", false)],
        );
        let first =
            profile(&[file("/a", 1, &[1, 2, 9, 10]), file("/c", 4, &[7])], &[("/x", false), ("/y", false)]);
        let second = profile(&[file("/a", 1, &[2, 3]), file("/b", 2, &[3, 4, 5, 6])], &[("/z", true)]);
        let left = beyond(&wanted, &[first.into(), second.into()]);
        let pages = |file: &ProfiledFile| {
            file.extents.iter().flat_map(|one| one.range.iter()).map(|page| page.0).collect()
        };
        let left_pages: Vec<(&str, Vec<u64>)> =
            left.files.iter().map(|file| (file.path.as_str(), pages(file))).collect();
        // Another file lies at that place by now.
        assert_eq!(left_pages, [("/a", vec![0, 8]), ("/c", vec![7])]);
        let names: Vec<_> = left.lookups.iter().map(|name| (name.path.as_str(), name.list)).collect();
        assert_eq!(names, [("/y", true)], "to list a directory takes more than to look it up");
        assert!(
            left.files[0]
                .extents
                .iter()
                .all(|one| wanted.files[0].extents.iter().any(|was| was.rank == one.rank))
        );
    }

    /// Of what one start has on its way, the next one leaves out all in one go.
    #[test]
    fn very_many_pages_are_soon_compared() {
        const PAGES: u64 = 200_000;
        let pages = |first: u64| (0..PAGES).map(|at| 2 * at + first).collect::<Vec<_>>();
        let wanted = profile(&[file("/a", 1, &pages(0))], &[]);
        let others = profile(&[file("/a", 1, &pages(1))], &[]);
        let left = beyond(&wanted, &[others.into()]);
        assert_eq!(left.files, wanted.files);
        assert!(beyond(&wanted, &[Arc::new(wanted.clone())]).files.is_empty());
    }

    /// Against the plain way: page by page.
    #[test]
    fn what_is_left_agrees_with_single_pages() {
        let mut random = SplitMix::new(7);
        for _ in 0..2000 {
            // Runs of some length, so that extents are longer than a page.
            let mut pages = || -> BTreeSet<u64> {
                let starts = (0..random.below(8)).map(|_| random.below(60)).collect::<Vec<_>>();
                starts.iter().flat_map(|start| *start..*start + 1 + start % 7).collect()
            };
            let (wanted, first, second) = (pages(), pages(), pages());
            let of = |pages: &BTreeSet<u64>| {
                profile(&[file("/a", 1, &pages.iter().copied().collect::<Vec<_>>())], &[])
            };
            let left = beyond(&of(&wanted), &[of(&first).into(), of(&second).into()]);
            let extents = left.files.iter().flat_map(|file| &file.extents);
            let left: Vec<u64> = extents.flat_map(|one| one.range.iter()).map(|page| page.0).collect();
            let plain: Vec<u64> =
                wanted.into_iter().filter(|page| !first.contains(page) && !second.contains(page)).collect();
            assert_eq!(left, plain);
        }
    }
}
