//! Pages of a chain that no map sees any more.

use rangemap::RangeMap;

use super::link::page_range;
use super::{Chains, LinkId};
use crate::page::PageRange;

impl Chains {
    /// Finds the pages that no map sees any more, because every link above their own holds another version, and forgets
    /// them; returns which, by link.
    pub fn destroy_shadowed(&mut self) -> Vec<(LinkId, PageRange)> {
        let mut seen: Vec<Option<RangeMap<u64, ()>>> = vec![None; self.links.len()];
        let mut destroyed = Vec::new();
        for id in self.links().collect::<Vec<_>>() {
            self.see(id, &mut seen);
            let seen = seen[id.0 as usize].as_ref().expect("just seen");
            let hidden = self
                .own_pages(id)
                .flat_map(|own| seen.gaps(&(own.start().0..own.end().0)).collect::<Vec<_>>());
            destroyed.extend(hidden.map(|pages| (id, page_range(&pages))));
        }
        for &(id, pages) in &destroyed {
            self.counts.destroyed += pages.len();
            self.link_mut(id).extents.remove(pages.start().0..pages.end().0);
            self.rename(id, pages, id, None);
        }
        destroyed
    }

    /// Notes which pages of `id` some map sees: all where a map looks at it directly, else what the links above let
    /// through. Depth first, so that every link above is noted before.
    fn see(&self, id: LinkId, seen: &mut [Option<RangeMap<u64, ()>>]) {
        if seen[id.0 as usize].is_some() {
            return;
        }
        let link = self.link(id);
        let mut mine = RangeMap::new();
        if link.maps > 0 {
            mine.insert(0..link.pages, ());
        }
        for &above in &link.above {
            self.see(above, seen);
            let through = seen[above.0 as usize].as_ref().expect("noted just now").iter();
            let mut through: RangeMap<u64, ()> = through.map(|(pages, ())| (pages.clone(), ())).collect();
            for own in self.own_pages(above) {
                through.remove(own.start().0..own.end().0);
            }
            through.iter().for_each(|(pages, ())| mine.insert(pages.clone(), ()));
        }
        seen[id.0 as usize] = Some(mine);
    }
}
