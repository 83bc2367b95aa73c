//! Objects that shadow one another: where each page of a copy-on-write map is, and what keeps such chains short.
//!
//! ```text
//!  map ─► link: pages written since ─► link: pages written before ─► … ─► terminal link: a file, all its pages
//!           └ extents: page ─► the link that holds it                     (or nothing: zeros)
//! ```
//!
//! A *link* is one object of a chain. A write to a link that others look at too makes a new link, which shadows it and
//! gets a copy of the page. Each link has one flat map of extents that says which link of its chain holds a page, so that a
//! read never walks the chain. Three things bound what chains cost:
//!
//! - *Collapse*: before a link is put on a chain of [`DEPTH_MAX`], the top gets copies of what the links below hold for it,
//!   and lets go of them. The terminal link stays, and what only it holds is never copied. Where the top holds all of those
//!   pages already, the collapse is free and made at once.
//! - *Merge*: a link that nothing but one other link looks at gives that one its pages.
//! - *Shadowed pages*: pages of a link that every map above shadows are found and destroyed on request.
//!
//! Sources: Mach and BSD (`vm_object_collapse`), and DragonFly's map backings of 2019, whose limit of five links and whose
//! wish to keep the terminal object are followed here.
//!
//! This module keeps no bytes: it returns what their keeper has to copy and move ([`Transfers`]).
//!
//! ```
//! use prepage_core::PageIndex;
//! use prepage_core::chain::{Chains, Source};
//!
//! let mut chains = Chains::default();
//! let file = chains.add_terminal(100);
//! let written = chains.write(file, PageIndex(7)); // a private map of the file
//! assert_eq!(written.source, Source::Copy(file));
//! chains.hold(written.top); // fork: the child looks at what the parent has
//! let child = chains.write(written.top, PageIndex(7));
//! assert_eq!(child.source, Source::Copy(written.top));
//! assert_eq!(chains.holder(child.top, PageIndex(7)), Some(child.top));
//! assert_eq!(chains.holder(child.top, PageIndex(8)), Some(file));
//! assert_eq!(chains.depth(child.top), 2);
//! ```

mod link;
mod shadowed;

use crate::page::{PageIndex, PageRange};
use link::{Link, page_range, parts};

/// Links below the top of a chain, at most.
pub const DEPTH_MAX: u32 = 5;

/// Names a link. Those of links that are gone are given out again, by a later call than the one that had them go: until it returns
/// whoever keeps the links' bytes knows them by these names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(u32);

/// What the links' bytes have to follow: first the copies, then the moves, each in order; then links are gone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transfers {
    /// Pages that a collapse copies into the top of a chain.
    pub copied: Vec<Transfer>,
    /// Pages that links give to the one link that looked at them, and are gone.
    pub moved: Vec<Transfer>,
    /// The links that are gone.
    pub gone: Vec<LinkId>,
}

/// Pages that go from one link to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The pages.
    pub pages: PageRange,
    /// The link that held them.
    pub from: LinkId,
    /// The link that holds them now.
    pub to: LinkId,
}

/// Where the page that is written comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The top holds it, for this map alone.
    InPlace,
    /// It is copied from this link.
    Copy(LinkId),
    /// It is a page of zeros.
    Zero,
}

/// What a write did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The link the map looks at from now on.
    pub top: LinkId,
    /// Where the page comes from.
    pub source: Source,
    /// What is copied and moved before that.
    pub transfers: Transfers,
}

/// What was done since the chains were made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChainCounts {
    /// Pages copied because they were written.
    pub write_copies: u64,
    /// Pages of zeros made because they were written.
    pub zeros: u64,
    /// Chains collapsed, the free ones among them.
    pub collapses: u64,
    /// Pages copied by collapses.
    pub collapse_copies: u64,
    /// Links merged into the one link above them.
    pub merges: u64,
    /// Pages that merges moved.
    pub moved: u64,
    /// Pages destroyed because every map above shadowed them.
    pub destroyed: u64,
    /// The greatest depth of any chain.
    pub depth_max: u32,
}

/// Links, their chains, and what was done with them.
#[derive(Clone, Debug, Default)]
pub struct Chains {
    links: Vec<Option<Link>>,
    free: Vec<LinkId>,
    counts: ChainCounts,
}

impl Chains {
    /// A link that holds all of its `pages` pages from the beginning, as a file does, and that nobody writes. One map or
    /// handle looks at it.
    pub fn add_terminal(&mut self, pages: u64) -> LinkId {
        let id = self.add(Link::new(pages));
        self.link_mut(id).terminal = Some(id);
        id
    }

    /// A link of `pages` pages of zeros. One map or handle looks at it.
    pub fn add_anonymous(&mut self, pages: u64) -> LinkId {
        self.add(Link::new(pages))
    }

    /// One more map or handle looks at `top`.
    pub fn hold(&mut self, top: LinkId) {
        self.link_mut(top).maps += 1;
    }

    /// A map or handle looks at `top` no more. Links that nothing looks at are gone then, and a link that only one other
    /// looks at is merged into that: its pages move.
    ///
    /// # Panics
    /// When none looked at it.
    pub fn release(&mut self, top: LinkId) -> Transfers {
        self.let_go(top);
        let mut transfers = Transfers::default();
        self.tidy(top, &mut transfers);
        transfers
    }

    /// Puts an empty link on `top`, and lets one map that looked at `top` look at it instead ([`Chains::hold`] it before, to
    /// go on looking). Collapses the chain below first where it is long or where that is free.
    pub fn shadow(&mut self, top: LinkId) -> (LinkId, Transfers) {
        let new = self.name();
        let transfers = self.collapse(top);
        self.let_go(top);
        let link = self.link(top);
        let (pages, extents, terminal) = (link.pages, link.extents.clone(), link.terminal);
        self.links[new.0 as usize] = Some(Link { extents, terminal, below: Some(top), ..Link::new(pages) });
        self.link_mut(top).above.push(new);
        self.counts.depth_max = self.counts.depth_max.max(self.depth(new));
        (new, transfers)
    }

    /// A map that looks at `top` writes `page`. Where others look at `top` too, or it is terminal, the page goes into a new
    /// link on it.
    ///
    /// # Panics
    /// When the link has no such page.
    pub fn write(&mut self, top: LinkId, page: PageIndex) -> Written {
        let link = self.link(top);
        assert!(page.0 < link.pages, "page {page} is past the end: the link has {} pages", link.pages);
        let (top, transfers) =
            if self.is_shared(top) { self.shadow(top) } else { (top, Transfers::default()) };
        let source = match self.holder(top, page) {
            Some(holder) if holder == top => Source::InPlace,
            Some(holder) => {
                self.counts.write_copies += 1;
                Source::Copy(holder)
            }
            None => {
                self.counts.zeros += 1;
                Source::Zero
            }
        };
        if source != Source::InPlace {
            self.link_mut(top).extents.insert(page.0..page.0 + 1, top);
        }
        Written { top, source, transfers }
    }

    /// The link that holds `page` for a map that looks at `top`; `None` where it reads as zeros.
    pub fn holder(&self, top: LinkId, page: PageIndex) -> Option<LinkId> {
        let link = self.link(top);
        link.extents.get(&page.0).copied().or(link.terminal)
    }

    /// Whether a write of a map that looks at `top` goes into a new link: others look at `top` too, or it is terminal.
    pub fn is_shared(&self, top: LinkId) -> bool {
        let link = self.link(top);
        link.terminal == Some(top) || link.maps > 1 || !link.above.is_empty()
    }

    /// Whether a map or handle looks at `link` itself. Where none does, none ever will, and its pages are those it has or fewer.
    pub fn is_held(&self, link: LinkId) -> bool {
        self.link(link).maps > 0
    }

    /// The runs of pages that links of the chain of `top` hold, and which; what is in none is held by the terminal link.
    pub fn extents(&self, top: LinkId) -> impl Iterator<Item = (PageRange, LinkId)> {
        self.link(top).extents.iter().map(|(pages, &holder)| (page_range(pages), holder))
    }

    /// What [`Chains::shadow`] of `top` would copy into it.
    pub fn would_copy(&self, top: LinkId) -> Vec<Transfer> {
        self.collapsing(top).unwrap_or_default()
    }

    /// The links below `top`.
    pub fn depth(&self, top: LinkId) -> u32 {
        std::iter::successors(self.link(top).below, |&id| self.link(id).below).count() as u32
    }

    /// The pages that `link` itself holds; of a terminal one, none.
    pub fn own_pages(&self, link: LinkId) -> impl Iterator<Item = PageRange> {
        let own = self.link(link).extents.iter().filter(move |(_, holder)| **holder == link);
        own.map(|(pages, _)| page_range(pages))
    }

    /// Every link there is.
    pub fn links(&self) -> impl Iterator<Item = LinkId> {
        let links = self.links.iter().zip(0..);
        links.filter(|(link, _)| link.is_some()).map(|(_, at)| LinkId(at))
    }

    /// What was done until now.
    pub fn counts(&self) -> ChainCounts {
        self.counts
    }

    /// Copies into `top` what the links below it hold for it, and lets go of them, if one more link would make the chain
    /// too long, or if nothing has to be copied.
    fn collapse(&mut self, top: LinkId) -> Transfers {
        let mut transfers = Transfers::default();
        let Some(copied) = self.collapsing(top) else { return transfers };
        let link = self.link(top);
        let (below, terminal) = (link.below.expect("a chain that collapses"), link.terminal);
        self.counts.collapses += 1;
        for copy in &copied {
            self.counts.collapse_copies += copy.pages.len();
            self.link_mut(top).extents.insert(copy.pages.start().0..copy.pages.end().0, top);
            self.rename(top, copy.pages, copy.from, Some(top));
        }
        self.link_mut(top).below = terminal;
        if let Some(terminal) = terminal {
            self.link_mut(terminal).above.push(top);
        }
        self.link_mut(below).above.retain(|&above| above != top);
        self.tidy(below, &mut transfers);
        transfers.copied = copied;
        transfers
    }

    /// What a collapse into `top` copies; `None` where it is not time for one.
    fn collapsing(&self, top: LinkId) -> Option<Vec<Transfer>> {
        let link = self.link(top);
        let below = link.below?;
        let copied: Vec<Transfer> = self
            .extents(top)
            .filter(|(_, holder)| *holder != top)
            .map(|(pages, from)| Transfer { pages, from, to: top })
            .collect();
        let is_time = link.terminal != Some(below) && (copied.is_empty() || self.depth(top) >= DEPTH_MAX);
        is_time.then_some(copied)
    }

    fn let_go(&mut self, id: LinkId) {
        let link = self.link_mut(id);
        link.maps = link.maps.checked_sub(1).expect("a map or handle looks at the link");
    }

    /// Removes `id` if nothing looks at it; merges it if only one link does.
    fn tidy(&mut self, id: LinkId, transfers: &mut Transfers) {
        let link = self.link(id);
        if link.maps > 0 {
            return;
        }
        let below = link.below;
        match link.above[..] {
            [] => {
                self.remove(id);
                transfers.gone.push(id);
                if let Some(below) = below {
                    self.link_mut(below).above.retain(|&above| above != id);
                    self.tidy(below, transfers);
                }
            }
            [above] if link.terminal != Some(id) => {
                let own: Vec<PageRange> = self.own_pages(id).collect();
                for pages in own {
                    let visible = parts(&self.link(above).extents, pages, id);
                    let kept: u64 = visible.iter().map(|part| part.len()).sum();
                    self.counts.destroyed += pages.len() - kept;
                    self.counts.moved += kept;
                    for part in visible {
                        self.link_mut(above).extents.insert(part.start().0..part.end().0, above);
                        self.rename(above, part, id, Some(above));
                        transfers.moved.push(Transfer { pages: part, from: id, to: above });
                    }
                }
                self.counts.merges += 1;
                self.link_mut(above).below = below;
                if let Some(below) = below {
                    let others = &mut self.link_mut(below).above;
                    others.iter_mut().filter(|other| **other == id).for_each(|other| *other = above);
                }
                self.remove(id);
                transfers.gone.push(id);
            }
            _ => {}
        }
    }

    /// In every link above `under`: those of `pages` that `from` held are held by `to`.
    fn rename(&mut self, under: LinkId, pages: PageRange, from: LinkId, to: Option<LinkId>) {
        let mut left = self.link(under).above.clone();
        while let Some(id) = left.pop() {
            let link = self.link_mut(id);
            for part in parts(&link.extents, pages, from) {
                let range = part.start().0..part.end().0;
                match to {
                    Some(to) => link.extents.insert(range, to),
                    None => link.extents.remove(range),
                }
            }
            left.extend_from_slice(&link.above);
        }
    }

    fn add(&mut self, link: Link) -> LinkId {
        let id = self.name();
        self.links[id.0 as usize] = Some(link);
        id
    }

    /// A name that no link has.
    fn name(&mut self) -> LinkId {
        self.free.pop().unwrap_or_else(|| {
            self.links.push(None);
            LinkId(self.links.len() as u32 - 1)
        })
    }

    fn remove(&mut self, id: LinkId) {
        self.links[id.0 as usize] = None;
        self.free.push(id);
    }

    fn link(&self, id: LinkId) -> &Link {
        self.links[id.0 as usize].as_ref().expect("links are named only while they are looked at")
    }

    fn link_mut(&mut self, id: LinkId) -> &mut Link {
        self.links[id.0 as usize].as_mut().expect("links are named only while they are looked at")
    }
}
