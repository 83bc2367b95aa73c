//! Shadow chains: the worked examples, and any sequence of maps, writes, forks and exits against plain copies of the bytes.

use std::collections::HashMap;

use prepage_core::PageIndex;
use prepage_core::chain::{ChainCounts, Chains, DEPTH_MAX, LinkId, Source, Transfer, Transfers};
use proptest::prelude::*;

/// What a parent does after each of its forks.
struct Forks {
    chains: Chains,
    parent: LinkId,
    collapsed_at: Vec<(u64, u64)>,
}

impl Forks {
    fn of(chains: Chains, parent: LinkId) -> Self {
        Self { chains, parent, collapsed_at: Vec::new() }
    }

    fn write(&mut self, fork: u64, page: u64) {
        let before = self.chains.counts();
        self.parent = self.chains.write(self.parent, PageIndex(page)).top;
        let after = self.chains.counts();
        if after.collapses > before.collapses {
            self.collapsed_at.push((fork, after.collapse_copies - before.collapse_copies));
        }
    }

    /// An anonymous object of which every page was written.
    fn anonymous(pages: u64) -> Self {
        let mut chains = Chains::default();
        let parent = chains.add_anonymous(pages);
        let mut forks = Self::of(chains, parent);
        (0..pages).for_each(|page| forks.write(0, page));
        assert_eq!(forks.chains.counts(), ChainCounts { zeros: pages, ..ChainCounts::default() });
        forks
    }

    fn copies(&self) -> u64 {
        let counts = self.chains.counts();
        counts.write_copies + counts.collapse_copies
    }
}

#[test]
fn children_that_stay_let_the_chain_collapse_every_fifth_fork() {
    let mut forks = Forks::anonymous(8);
    for fork in 1..=20 {
        forks.chains.hold(forks.parent);
        forks.write(fork, 0);
    }
    assert_eq!(forks.collapsed_at, [(6, 7), (11, 7), (16, 7)]);
    assert_eq!((forks.copies(), forks.chains.counts().depth_max), (41, DEPTH_MAX));
}

#[test]
fn a_parent_that_writes_everything_collapses_for_nothing() {
    let mut forks = Forks::anonymous(8);
    for fork in 1..=20 {
        forks.chains.hold(forks.parent);
        (0..8).for_each(|page| forks.write(fork, page));
    }
    assert!(
        forks.collapsed_at.iter().copied().eq((2..=20).map(|fork| (fork, 0))),
        "{:?}",
        forks.collapsed_at
    );
    assert_eq!((forks.chains.counts().collapse_copies, forks.chains.counts().depth_max), (0, 1));
}

#[test]
fn children_that_exit_before_the_write_leave_no_trace() {
    let mut forks = Forks::anonymous(8);
    for fork in 1..=20 {
        forks.chains.hold(forks.parent);
        assert_eq!(forks.chains.release(forks.parent), Transfers::default());
        forks.write(fork, 0);
    }
    assert_eq!((forks.copies(), forks.chains.counts().depth_max, forks.chains.links().count()), (0, 0, 1));
}

/// 24 page copies where the file is the terminal link; 210 where its pages are copied up like any others.
#[test]
fn the_terminal_object_is_kept() {
    let mut chains = Chains::default();
    let file = chains.add_terminal(100);
    let kept = Forks::of(chains, file);
    for (mut forks, copies) in [(kept, 24), (Forks::anonymous(100), 210)] {
        for fork in 1..=12 {
            forks.chains.hold(forks.parent);
            forks.write(fork, fork % 10);
        }
        assert_eq!(forks.copies(), copies, "{:?}", forks.collapsed_at);
        assert_eq!(forks.chains.counts().depth_max, DEPTH_MAX);
    }
}

/// Every child writes the page the parent had; nobody sees that version any more.
#[test]
fn what_every_map_shadows_is_destroyed() {
    let mut chains = Chains::default();
    let file = chains.add_terminal(16);
    let base = chains.write(file, PageIndex(3)).top;
    chains.write(base, PageIndex(4));
    for _ in 0..2 {
        chains.hold(base);
        chains.write(base, PageIndex(3));
    }
    assert_eq!(chains.destroy_shadowed(), [], "the parent still sees all");
    let parent = chains.write(base, PageIndex(3)).top;
    let destroyed = chains.destroy_shadowed();
    assert_eq!(
        destroyed.iter().map(|(link, pages)| (*link, pages.start().0, pages.len())).collect::<Vec<_>>(),
        [(base, 3, 1)]
    );
    assert_eq!(chains.counts().destroyed, 1);
    assert_eq!(chains.holder(parent, PageIndex(4)), Some(base));
    assert_eq!(chains.destroy_shadowed(), []);
}

/// Whoever keeps the bytes follows the moves by name, when the new link has its own already.
#[test]
fn a_new_link_has_the_name_of_none_that_goes_meanwhile() {
    let page = PageIndex;
    let mut chains = Chains::default();
    let first = chains.add_anonymous(4);
    for number in [0, 1] {
        chains.write(first, page(number));
    }
    chains.hold(first);
    let map = chains.write(first, page(0)).top;
    chains.write(map, page(1));
    chains.hold(first);
    let clone = chains.write(first, page(2)).top;
    chains.release(first);
    chains.hold(map);
    let (new, transfers) = chains.shadow(map);
    assert!(transfers.moved.iter().all(|moved| (moved.from, moved.to) == (first, clone)), "{transfers:?}");
    assert!(!transfers.moved.is_empty());
    assert_ne!(new, first);
}

/// What maps do.
#[derive(Clone, Debug)]
enum Step {
    File,
    Anonymous,
    Write { map: usize, page: u64 },
    Fork { map: usize },
    Exit { map: usize },
    Destroy,
}

const PAGES: u64 = 12;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        1 => Just(Step::File),
        1 => Just(Step::Anonymous),
        12 => (any::<usize>(), 0..PAGES).prop_map(|(map, page)| Step::Write { map, page }),
        6 => any::<usize>().prop_map(|map| Step::Fork { map }),
        3 => any::<usize>().prop_map(|map| Step::Exit { map }),
        1 => Just(Step::Destroy),
    ];
    prop::collection::vec(step, 1..150)
}

/// The bytes of links, moved as the chains say.
#[derive(Default)]
struct Bytes(HashMap<(LinkId, u64), u64>);

impl Bytes {
    fn transfer(&mut self, transfers: &[Transfer], moves: bool) {
        for Transfer { pages, from, to } in transfers {
            for page in pages.iter() {
                let value = if moves {
                    self.0.remove(&(*from, page.0))
                } else {
                    self.0.get(&(*from, page.0)).copied()
                };
                self.0.insert((*to, page.0), value.expect("the link holds what is taken from it"));
            }
        }
    }
}

proptest! {
    #[test]
    fn maps_read_what_they_wrote(steps in steps()) {
        let mut chains = Chains::default();
        let mut bytes = Bytes::default();
        // Each map's top, and what it should read.
        let mut maps: Vec<(LinkId, Vec<u64>)> = Vec::new();
        for (now, step) in (1_u64..).zip(steps) {
            let mut gone = Vec::new();
            match step {
                Step::File => {
                    let file = chains.add_terminal(PAGES);
                    let content: Vec<u64> = (0..PAGES).map(|page| 1_000_000 * now + page).collect();
                    bytes.0.extend((0..PAGES).map(|page| ((file, page), content[page as usize])));
                    maps.push((file, content));
                }
                Step::Anonymous => maps.push((chains.add_anonymous(PAGES), vec![0; PAGES as usize])),
                Step::Write { map, page } if !maps.is_empty() => {
                    let at = map % maps.len();
                    let written = chains.write(maps[at].0, PageIndex(page));
                    bytes.transfer(&written.transfers.copied, false);
                    bytes.transfer(&written.transfers.moved, true);
                    if let Source::Copy(from) = written.source {
                        prop_assert_eq!(bytes.0.get(&(from, page)).copied(), Some(maps[at].1[page as usize]));
                    }
                    bytes.0.insert((written.top, page), now);
                    maps[at].0 = written.top;
                    maps[at].1[page as usize] = now;
                    gone = written.transfers.gone;
                }
                Step::Fork { map } if !maps.is_empty() => {
                    let forked = maps[map % maps.len()].clone();
                    chains.hold(forked.0);
                    maps.push(forked);
                }
                Step::Exit { map } if !maps.is_empty() => {
                    let (top, _) = maps.swap_remove(map % maps.len());
                    let transfers = chains.release(top);
                    bytes.transfer(&transfers.moved, true);
                    gone = transfers.gone;
                }
                Step::Destroy => {
                    for (link, pages) in chains.destroy_shadowed() {
                        bytes.0.retain(|(of, page), _| *of != link || !pages.contains(PageIndex(*page)));
                    }
                }
                _ => {}
            }
            // Names of links that are gone are given out again.
            bytes.0.retain(|(link, _), _| !gone.contains(link));
            let there: Vec<LinkId> = chains.links().collect();
            prop_assert!(bytes.0.keys().all(|(link, _)| there.contains(link)));
            prop_assert!(!gone.iter().any(|link| there.contains(link)));
            for (top, content) in &maps {
                prop_assert!(chains.depth(*top) <= DEPTH_MAX);
                for (page, expected) in (0..PAGES).zip(content) {
                    let found = chains.holder(*top, PageIndex(page)).map_or(Some(0), |link| bytes.0.get(&(link, page)).copied());
                    prop_assert_eq!(found, Some(*expected), "page {}", page);
                }
            }
        }
        maps.into_iter().for_each(|(top, _)| drop(chains.release(top)));
        prop_assert_eq!(chains.links().count(), 0, "links outlive their maps");
    }
}
