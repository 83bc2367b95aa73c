//! A map entry: its policy, and which pages it has mapped.

use std::collections::HashSet;

use prepage_core::policy::{EntryState, Neighbours, Policy, Residency};
use prepage_core::{PageIndex, PageRange};

use crate::pages::{Pages, groups};
use crate::replay::{Done, ObjectIndex};
use crate::resident::Resident;

/// Pages of a superpage: 2 MiB.
pub(crate) const SUPERPAGE_PAGES: u64 = 512;

#[derive(Debug)]
pub(crate) struct Entry {
    pub object: ObjectIndex,
    pub window: PageRange,
    pub policy: Policy,
    pub state: EntryState,
    /// Whether the policy's opening reads were made.
    pub opened: bool,
    pub groups: Pages<Mapped>,
    /// Blocks mapped by one superpage.
    superpages: HashSet<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mapped {
    pub mapped: u64,
    pub touched: u64,
}

impl Entry {
    pub fn new(object: ObjectIndex, window: PageRange, policy: Policy) -> Self {
        let state = policy.entry(window);
        Self {
            object,
            window,
            policy,
            state,
            opened: false,
            groups: Pages::default(),
            superpages: HashSet::new(),
        }
    }

    /// The entry as it was before the first touch.
    pub fn unmapped(&self) -> Self {
        let mut new = Self::new(self.object, self.window, self.policy.clone());
        new.state.executable = self.state.executable;
        new
    }

    /// Maps after a fault at `page` what the policy's rule of neighbours maps; returns how many pages were not mapped
    /// before, of a large folio's one.
    pub fn map_after(
        &mut self,
        page: PageIndex,
        done: &Done,
        memory: &Resident,
        arrived: &impl Fn(PageRange) -> bool,
    ) -> u64 {
        match (self.policy.neighbours(), done.read) {
            (Neighbours::Spiral(_), Some(read)) => self.map(read),
            (Neighbours::Spiral(reach), None) => {
                self.map_spiral(page, reach, |at| memory.is_resident(at) && arrived(at.alone()))
            }
            (Neighbours::Block(pages), _) => {
                // Fault-around passes marked folios over; a fault in one maps it whole.
                let marked = |at| memory.is_marked(at) || done.folio.is_some_and(|folio| folio.contains(at));
                let mapped = self.map_block(page, pages, |at| {
                    memory.is_resident(at) && !marked(at) && arrived(at.alone())
                });
                if let Some(folio) = done.folio.filter(|_| pages > 1) {
                    let start = folio.start().max(self.window.start());
                    self.map(PageRange::new(start, folio.end().min(self.window.end()).max(start)));
                }
                mapped
            }
        }
    }

    /// Maps resident pages; returns how many were not mapped before.
    fn map(&mut self, range: PageRange) -> u64 {
        let mut mapped = 0;
        self.groups.change(range, |group, bits| {
            mapped += u64::from((bits & !group.mapped).count_ones());
            group.mapped |= bits;
        });
        mapped
    }

    fn map_one(&mut self, page: PageIndex) -> u64 {
        self.map(page.alone())
    }

    /// Maps `page` and neighbours up to `reach` away, nearest first, until one is not `there`.
    fn map_spiral(&mut self, page: PageIndex, reach: u64, there: impl Fn(PageIndex) -> bool) -> u64 {
        let mut mapped = self.map_one(page);
        for distance in 1..=reach.min(self.window.len()) {
            let below = page.0.checked_sub(distance);
            for neighbour in below.into_iter().chain([page.0 + distance]).map(PageIndex) {
                if !self.window.contains(neighbour) {
                    continue;
                }
                if !there(neighbour) {
                    return mapped;
                }
                mapped += self.map_one(neighbour);
            }
        }
        mapped
    }

    /// Maps `page`, and of its aligned block of `pages` what is `there`.
    fn map_block(&mut self, page: PageIndex, pages: u64, there: impl Fn(PageIndex) -> bool) -> u64 {
        let start = PageIndex(page.0 - page.0 % pages).max(self.window.start());
        let end = PageIndex(page.0 - page.0 % pages + pages).min(self.window.end());
        let mut mapped = 0;
        for neighbour in PageRange::new(start, end).iter() {
            if neighbour == page || there(neighbour) {
                mapped += self.map_one(neighbour);
            }
        }
        mapped
    }

    /// Maps the 512-page block around `page` by one superpage and returns `true`, if FreeBSD would: the block is wholly
    /// resident, wholly in the window, not mapped so already, and either a soft fault asked for it or all its pages are
    /// mapped one by one.
    pub fn map_superpage(
        &mut self,
        page: PageIndex,
        memory: &Resident,
        arrived: &impl Fn(PageRange) -> bool,
        soft: bool,
    ) -> bool {
        let block = page.0 / SUPERPAGE_PAGES;
        let start = PageIndex(block * SUPERPAGE_PAGES);
        let range = PageRange::new(start, PageIndex(start.0 + SUPERPAGE_PAGES));
        if matches!(self.policy.neighbours(), Neighbours::Block(_))
            || range.start() < self.window.start()
            || range.end() > self.window.end()
            || self.superpages.contains(&block)
            || memory.resident_in(range) < SUPERPAGE_PAGES
            || !arrived(range)
        {
            return false;
        }
        let mapped_already = |(page, bits): (PageIndex, u64)| {
            self.groups.get(page).is_some_and(|group| group.mapped & bits == bits)
        };
        if !soft && !groups(range).all(mapped_already) {
            return false;
        }
        self.map(range);
        self.superpages.insert(block)
    }
}
