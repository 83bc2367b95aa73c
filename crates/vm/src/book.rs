//! The book of shadow chains: which object of a chain holds each page of a snapshot, and what of it lies where in a map.
//!
//! ```text
//!  Map ─ Hold ─► link ─► store: an object with the pages that were frozen         ┐
//!                 │ └──► elsewhere: stores of links that were merged into this one ├ by page: what the map shows
//!                 └────► base: what the chain began on, a file or zeros            ┘
//! ```
//!
//! The links and what becomes of them are `prepage_core::chain`'s, the same that `prepage simulate --forks` replays. Here their
//! bytes are kept: a link's *store* is an object of its own at the same offsets. A link that is merged into another leaves its
//! store to that one, and a collapse takes over pages where they are: nothing is copied. A store that others have pages in is written to
//! no more, and none is written to over a page that it has: where a snapshot fails, what was frozen before is seen again. Where a link has
//! pages in more than 64 stores of others, those of the smallest are copied to its own.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Weak};

use prepage_core::chain::{ChainCounts, Chains, LinkId, Transfer, Transfers};
use prepage_core::{PageIndex, PageRange};
use prepage_sys::signals::Masked;
use rangemap::RangeMap;

use crate::error::AccessError;
use crate::evict;
use crate::going::let_go;
use crate::map::MapCore;
use crate::object::ObjectCore;
use crate::piece::Piece;
use crate::segment::{Install, Parts, Segment, Segments, placed};
use crate::statistics::{Account, Tally};
use crate::sync::{Anyway, Mutex, MutexGuard};
use crate::vm::{Vm, VmCore};

/// Runs of so many frozen pages are shown from their own frames: a mapping takes as long to make as five pages to copy, and
/// copies take memory in each clone.
const DENSE_PAGES: u64 = 16;
/// As many runs of a map have a mapping of their own at most, the longest first: each takes two of vm.max_map_count, and 3 µs
/// of the time until a clone is ready.
const DENSE_RUNS: usize = 16;
/// A link has pages in so many stores of others at most: each is a descriptor of the process.
pub(crate) const STORES_MOST: usize = 64;

/// All chains of a VM.
///
/// Lock legend: one lock for all, never taken by faults. No object and no hold goes while it is held, for each takes locks when it
/// does.
#[derive(Debug, Default)]
pub(crate) struct Book {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
pub(crate) struct Inner {
    pub(crate) chains: Chains,
    links: HashMap<LinkId, Link>,
    /// All stores by number, also those of links that have gone, which maps may still show.
    stores: HashMap<u64, Weak<ObjectCore>>,
    /// The maps that show pages of stores, once or more often.
    maps: Vec<Weak<MapCore>>,
    /// What else shows some: what chains began on, and what is behind maps that are being made.
    shown: Vec<Weak<Watched>>,
}

#[derive(Debug)]
struct Link {
    /// Where its own pages are.
    store: Option<Arc<ObjectCore>>,
    /// Those of its pages that are in stores of others: of links that were merged into it, and of those that a collapse let go of.
    elsewhere: RangeMap<u64, Store>,
    /// Others have pages in `store`, which is written to no more.
    is_lent: bool,
    base: Arc<Base>,
    /// What maps of it show, the two parts of a [`View`], while a map or a handle has it.
    view: (Weak<Segments>, Weak<Segments>),
}

/// What a chain began on. Its pages are counted from 0.
#[derive(Debug)]
pub(crate) struct Base {
    laid: Segments,
    shown: Arc<Segments>,
    watched: Option<Arc<Watched>>,
    /// What keeps it as it is.
    _holds: Box<[Arc<Hold>]>,
}

/// What maps of a link show. Its pages are counted from 0.
#[derive(Clone, Debug)]
struct View {
    laid: Arc<Segments>,
    shown: Arc<Segments>,
}

/// Pages of stores that somebody uses who is no map.
#[derive(Debug)]
pub(crate) struct Watched(Arc<Segments>);

/// What is looked at for pages that nobody sees, to be dropped once the book is free.
#[derive(Debug, Default)]
struct LookedAt {
    maps: Vec<Arc<MapCore>>,
    others: Vec<Arc<Watched>>,
    stores: Vec<Arc<ObjectCore>>,
}

impl LookedAt {
    /// Nobody else may hold a part of it by now. A thread that does nothing but look for these pages runs this.
    fn let_go(self, vm: &Arc<VmCore>) {
        self.maps.into_iter().for_each(MapCore::let_go);
        self.others.into_iter().for_each(|watched| let_go(watched, |_| Arc::clone(vm)));
    }
}

#[derive(Clone, Debug)]
struct Store(Arc<ObjectCore>);

impl PartialEq for Store {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Store {}

/// A map or a handle looks at a link, which stays as it is until this is dropped.
#[derive(Debug)]
pub(crate) struct Hold {
    vm: Arc<VmCore>,
    pub(crate) link: LinkId,
    /// Of a handle, what it showed when it was mapped or saved last: maps that follow are made of the same. Locked before the book.
    kept: Mutex<Option<(View, Arc<Watched>)>>,
}

/// What is behind a new map.
#[derive(Debug)]
pub(crate) struct Behind {
    /// What lies there.
    pub(crate) laid: Arc<Segments>,
    /// What is shown.
    pub(crate) shown: Arc<Segments>,
    pub(crate) holds: Box<[Arc<Hold>]>,
    /// The link that the map looks at: that of the snapshot of which it shows all.
    pub(crate) chain: Option<Hold>,
    /// What the map is made of stays until the book knows the map.
    pub(crate) making: Vec<Arc<Watched>>,
}

impl Book {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().anyway()
    }

    /// Begins a chain.
    pub(crate) fn begin(vm: &Arc<VmCore>, mut base: Base) -> Hold {
        let pages = base.shown.last().expect("a map has a segment").pages.end().0;
        let is_zeros = base.shown.iter().all(|segment| segment.install == Install::Zero);
        let mut inner = vm.book.lock();
        base.watched = Some(inner.watch(&base.shown));
        let link =
            if is_zeros { inner.chains.add_anonymous(pages) } else { inner.chains.add_terminal(pages) };
        let elsewhere = RangeMap::new();
        let base = Arc::new(base);
        inner
            .links
            .insert(link, Link { store: None, elsewhere, is_lent: false, base, view: Default::default() });
        Hold::new(vm, link)
    }

    /// One more looks at `link`.
    pub(crate) fn hold(vm: &Arc<VmCore>, link: LinkId) -> Hold {
        vm.book.lock().chains.hold(link);
        Hold::new(vm, link)
    }
}

impl Inner {
    /// What `shown` has of stores stays there while the value returned lives.
    fn watch(&mut self, shown: &Arc<Segments>) -> Arc<Watched> {
        let watched = Arc::new(Watched(Arc::clone(shown)));
        if self.shown.len() == self.shown.capacity() {
            self.shown.retain(|shown| shown.strong_count() > 0);
        }
        self.shown.push(Arc::downgrade(&watched));
        watched
    }

    /// What `map` shows of stores stays there while it shows it.
    pub(crate) fn watch_map(&mut self, map: &Arc<MapCore>) {
        if self.maps.len() == self.maps.capacity() {
            self.maps.retain(|map| map.strong_count() > 0);
        }
        self.maps.push(Arc::downgrade(map));
    }

    /// Where frozen pages of `link` are, and whether more may go there as long as nobody else looks at it.
    pub(crate) fn store(&self, link: LinkId) -> (Option<Arc<ObjectCore>>, bool) {
        let known = &self.links[&link];
        (known.store.clone(), !known.is_lent)
    }

    /// Gives `link` its store, and where it is new what it began on: that of `below`. What is in a store that it had stays there.
    pub(crate) fn put(&mut self, link: LinkId, below: LinkId, store: &Arc<ObjectCore>) {
        if self.stores.len() == self.stores.capacity() {
            self.stores.retain(|_, store| store.strong_count() > 0);
        }
        self.stores.insert(store.id, Arc::downgrade(store));
        let base = Arc::clone(&self.links[&below].base);
        let Some(known) = self.links.get_mut(&link) else {
            let (store, elsewhere) = (Some(Arc::clone(store)), RangeMap::new());
            self.links
                .insert(link, Link { store, elsewhere, is_lent: false, base, view: Default::default() });
            return;
        };
        let before = known.store.replace(Arc::clone(store));
        if let Some(before) = before.filter(|before| !Arc::ptr_eq(before, store)) {
            for run in self.chains.own_pages(link) {
                let gaps: Vec<_> = known.elsewhere.gaps(&(run.start().0..run.end().0)).collect();
                gaps.into_iter().for_each(|gap| known.elsewhere.insert(gap, Store(Arc::clone(&before))));
            }
            known.is_lent = false;
        }
    }

    /// What a collapse into `top` takes over, and where that is.
    pub(crate) fn collapsing(&self, top: LinkId) -> Vec<(PageRange, Arc<ObjectCore>)> {
        let taken = self.chains.would_copy(top);
        taken.iter().flat_map(|taken| self.stores(taken.from, taken.pages)).collect()
    }

    /// After a collapse, whose `transfers` were, those pages of `top` are where they were.
    pub(crate) fn lend(
        &mut self,
        top: LinkId,
        transfers: &[Transfer],
        taken: Vec<(PageRange, Arc<ObjectCore>)>,
    ) {
        for transfer in transfers {
            self.links.get_mut(&transfer.from).expect("it goes later").is_lent = true;
        }
        let known = self.links.get_mut(&top).expect("the link exists");
        for (pages, store) in taken {
            known.elsewhere.insert(pages.start().0..pages.end().0, Store(store));
            known.view = Default::default();
        }
    }

    /// The pages of `link` in those stores of others that hold the fewest, as far as there are more such stores than there may be.
    pub(crate) fn scattered(&self, link: LinkId) -> Vec<(PageRange, Arc<ObjectCore>)> {
        let mut by_store: HashMap<u64, Vec<_>> = HashMap::new();
        for (run, Store(store)) in self.links[&link].elsewhere.iter() {
            by_store.entry(store.id).or_default().push((page_range(run.start, run.end), Arc::clone(store)));
        }
        let more = by_store.len().saturating_sub(STORES_MOST);
        let mut stores: Vec<_> = by_store.into_values().collect();
        stores.sort_by_key(|runs| runs.iter().map(|(pages, _)| pages.len()).sum::<u64>());
        stores.into_iter().take(more).flatten().collect()
    }

    /// The stores that hold `pages` of what `link` itself holds.
    pub(crate) fn stores(&self, link: LinkId, pages: PageRange) -> Vec<(PageRange, Arc<ObjectCore>)> {
        let known = &self.links[&link];
        let range = pages.start().0..pages.end().0;
        if let Some((part, Store(store))) = known.elsewhere.get_key_value(&range.start)
            && part.end >= range.end
        {
            return vec![(pages, Arc::clone(store))];
        }
        let own = known.store.as_ref();
        let gaps = known.elsewhere.gaps(&range);
        let own = gaps.map(|gap| (gap, Arc::clone(own.expect("a link that holds pages has a store"))));
        let overlapping = known.elsewhere.overlapping(range.clone());
        let others = overlapping.map(|(part, store)| {
            (part.start.max(range.start)..part.end.min(range.end), Arc::clone(&store.0))
        });
        let mut stores: Vec<_> = own.chain(others).collect();
        stores.sort_unstable_by_key(|(part, _)| part.start);
        stores.into_iter().map(|(part, store)| (page_range(part.start, part.end), store)).collect()
    }

    /// `pages` of `link` are in its own store from now on.
    pub(crate) fn bring_home(&mut self, link: LinkId, pages: PageRange) {
        let known = self.links.get_mut(&link).expect("the link exists");
        known.elsewhere.remove(pages.start().0..pages.end().0);
        known.view = Default::default();
    }

    /// Finds the frozen pages that no map and no handle sees any more; forgets them, and returns where they are. Puts into
    /// `looked_at` what must not go while the book is locked.
    fn take_shadowed(&mut self, looked_at: &mut LookedAt) -> Vec<(Arc<ObjectCore>, PageRange)> {
        let mut settled = self.settled();
        looked_at.stores.extend(settled.values().map(|(store, _)| Arc::clone(store)));
        for (link, pages) in self.chains.destroy_shadowed() {
            self.bring_home(link, pages);
        }
        for (&id, link) in &self.links {
            let elsewhere = link.elsewhere.iter().map(|(run, Store(store))| (store, run.clone()));
            let own = link.store.iter().filter(|_| !self.chains.is_held(id)).flat_map(|store| {
                let own = self.chains.own_pages(id);
                let home = own
                    .flat_map(|run| link.elsewhere.gaps(&(run.start().0..run.end().0)).collect::<Vec<_>>());
                home.map(move |run| (store, run))
            });
            for (store, run) in elsewhere.chain(own) {
                if let Some((_, held)) = settled.get_mut(&store.id) {
                    held.push(run);
                }
            }
        }
        // Maps go on showing what their link held when they were made, also where a copy of it was made since.
        let mut shown: HashMap<u64, RangeMap<u64, ()>> = HashMap::new();
        let mut look = |used: &[Segment]| {
            for segment in used.iter().filter(|segment| segment.object.is_frozen()) {
                let pages = segment.of_object();
                shown.entry(segment.object.id).or_default().insert(pages.start().0..pages.end().0, ());
            }
        };
        // What is held is all that is there: nothing of that store is hidden.
        let resident = |store: &ObjectCore| store.frames().map_or(0, crate::object::Frames::resident);
        settled.retain(|_, (store, held)| resident(store) > unite(held));
        if settled.is_empty() {
            return Vec::new();
        }
        looked_at.maps.extend(self.maps.iter().filter_map(Weak::upgrade));
        looked_at.others.extend(self.shown.iter().filter_map(Weak::upgrade));
        looked_at.maps.iter().for_each(|map| look(&map.shown.current()));
        looked_at.others.iter().for_each(|watched| look(&watched.0));
        let hidden = settled.into_values().flat_map(|(store, held)| {
            let mut seen = shown.remove(&store.id).unwrap_or_default();
            held.into_iter().for_each(|run| seen.insert(run, ()));
            let gaps: Vec<_> = seen.gaps(&(0..store.pages().end().0)).collect();
            gaps.into_iter().map(move |gap| (Arc::clone(&store), page_range(gap.start, gap.end)))
        });
        hidden.collect()
    }

    /// The stores that nobody writes to any more, since no map looks at their link or that is gone; with room for their runs of pages
    /// that are held.
    fn settled(&self) -> HashMap<u64, (Arc<ObjectCore>, Vec<Range<u64>>)> {
        let there = self.stores.iter().filter_map(|(&id, store)| Some((id, store.upgrade()?)));
        let mut settled: HashMap<_, _> = there.map(|(id, store)| (id, (store, Vec::new()))).collect();
        let written = self.links.iter().filter(|(id, _)| self.chains.is_held(**id));
        for store in written.filter_map(|(_, link)| link.store.as_ref()) {
            settled.remove(&store.id);
        }
        settled
    }

    /// What is behind each page of a map that looks at `link`, by pages counted from 0.
    pub(crate) fn wanted(&self, link: LinkId) -> Vec<Segment> {
        let base = &self.links[&link].base.shown;
        let end = base.last().expect("a base has a segment").pages.end();
        let mut wanted = Vec::new();
        let mut below = Parts::of(base);
        let mut from = PageIndex(0);
        for (pages, holder) in self.chains.extents(link) {
            below.append(PageRange::new(from, pages.start()), &mut wanted);
            let frozen =
                |pages, object| Segment { pages, object, first: pages.start(), install: Install::Copy };
            match &self.links[&holder] {
                Link { store: Some(store), elsewhere, .. } if elsewhere.is_empty() => {
                    wanted.push(frozen(pages, Arc::clone(store)));
                }
                _ => {
                    let stores = self.stores(holder, pages).into_iter();
                    wanted.extend(stores.map(|(pages, store)| frozen(pages, store)));
                }
            }
            from = pages.end();
        }
        below.append(PageRange::new(from, end), &mut wanted);
        wanted
    }

    /// What maps of `link` show.
    fn view(&mut self, link: LinkId) -> View {
        let (laid, shown) = &self.links[&link].view;
        if let (Some(laid), Some(shown)) = (laid.upgrade(), shown.upgrade()) {
            return View { laid, shown };
        }
        let wanted = self.wanted(link);
        let laid = dense(&self.links[&link].base.laid, &wanted);
        let shown = Arc::new(placed(&laid, wanted));
        let view = View { laid: Arc::new(laid), shown };
        let known = self.links.get_mut(&link).expect("the link exists");
        known.view = (Arc::downgrade(&view.laid), Arc::downgrade(&view.shown));
        view
    }

    /// Pages that links give to the links above: their stores go with them. Returns what may go.
    pub(crate) fn follow(&mut self, transfers: &Transfers) -> Vec<impl Drop + use<>> {
        for Transfer { pages, from, to } in &transfers.moved {
            for (part, store) in self.stores(*from, *pages) {
                let known = self.links.get_mut(to).expect("the link exists");
                known.elsewhere.insert(part.start().0..part.end().0, Store(store));
                known.view = Default::default();
            }
        }
        transfers.gone.iter().filter_map(|link| self.links.remove(link)).map(Gone).collect()
    }
}

impl Vm {
    /// Counts what was done with the chains of snapshots until now. A collapse leaves pages in their frames: pages that count as copied
    /// by a collapse were taken over, not copied.
    pub fn chains(&self) -> ChainCounts {
        if self.core.check_process().is_err() {
            return ChainCounts::default();
        }
        let _masked = Masked::asynchronous();
        self.core.book.lock().chains.counts()
    }

    /// Frees frozen pages that nobody sees any more because every map and snapshot above has another version. Returns how
    /// many these were. A thread of the VM does this by itself after a while ([`VmOptions::free_shadowed_after`](crate::VmOptions)).
    ///
    /// # Errors
    /// When the kernel refuses to free frames; in a child of fork(2).
    pub fn free_shadowed(&self) -> Result<u64, AccessError> {
        self.core.check_process().map_err(|_| AccessError::Forked)?;
        let _masked = Masked::asynchronous();
        let mut looked_at = LookedAt::default();
        let shadowed = self.core.book.lock().take_shadowed(&mut looked_at);
        looked_at.let_go(&self.core);
        self.core.free(shadowed.iter().map(|(store, pages)| (store, *pages)))
    }
}

impl VmCore {
    /// Frees frozen pages that nobody sees any more; gives how many these were.
    pub(crate) fn free<'a>(
        &self,
        mut shadowed: impl Iterator<Item = (&'a Arc<ObjectCore>, PageRange)>,
    ) -> Result<u64, AccessError> {
        let mut freed = 0;
        let outcome = shadowed.try_for_each(|(store, pages)| {
            freed += evict::take(store, pages)?;
            Ok(())
        });
        let tally = Tally { pages_shadowed: freed, ..Tally::default() };
        self.figures.add(Account::here().cpu, &tally);
        outcome.map(|()| freed)
    }
}

/// A link that has gone, to be dropped once the book is free.
#[derive(Debug)]
struct Gone(#[expect(dead_code, reason = "it is there to be dropped")] Link);

impl Drop for Gone {
    fn drop(&mut self) {}
}

impl Base {
    /// What a map shows that begins a chain, from `start` on.
    pub(crate) fn of(laid: &[Segment], shown: &[Segment], start: PageIndex, holds: Box<[Arc<Hold>]>) -> Self {
        Self {
            laid: moved_down(laid, start),
            shown: Arc::new(moved_down(shown, start)),
            watched: None,
            _holds: holds,
        }
    }

    /// What a saved snapshot begins one: `wanted`, where `below` lies behind what was not saved.
    pub(crate) fn saved(below: &[Segment], wanted: &[Segment]) -> Self {
        let laid = dense(below, wanted);
        let shown = Arc::new(placed(&laid, wanted.to_vec()));
        Self { laid, shown, watched: None, _holds: Box::default() }
    }
}

impl Hold {
    fn new(vm: &Arc<VmCore>, link: LinkId) -> Self {
        Self { vm: Arc::clone(vm), link, kept: Mutex::default() }
    }

    /// What a map that looks at the link shows, its pages counted from 0.
    fn view(&self) -> (View, Arc<Watched>) {
        let mut kept = self.kept.lock().anyway();
        let (view, watched) = {
            let mut inner = self.vm.book.lock();
            let view = inner.view(self.link);
            let watched = match &*kept {
                Some((known, watched)) if Arc::ptr_eq(&known.shown, &view.shown) => Arc::clone(watched),
                _ => inner.watch(&view.shown),
            };
            (view, watched)
        };
        *kept = Some((view.clone(), Arc::clone(&watched)));
        (view, watched)
    }

    /// The same where all frozen pages are copied.
    fn thin_view(&self) -> (View, Arc<Watched>) {
        let (mut view, watched) = self.view();
        let base = Arc::clone(&self.vm.book.lock().links[&self.link].base);
        view.laid = Arc::new(base.laid.clone());
        view.shown = Arc::new(placed(&view.laid, view.shown.to_vec()));
        (view, watched)
    }

    /// What is behind each page of the link, by pages counted from 0. It stays so while the second value lives.
    pub(crate) fn shown(&self) -> (Arc<Segments>, Arc<Watched>) {
        let (view, watched) = self.view();
        (Arc::clone(&view.shown), watched)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.vm.check_process().is_err() {
            return;
        }
        let _masked = Masked::asynchronous();
        let gone = {
            let mut inner = self.vm.book.lock();
            let transfers = inner.chains.release(self.link);
            inner.follow(&transfers)
        };
        // The keeper looks once it is called: by then all is gone that kept pages seen.
        let kept = self.kept.get_mut().anyway().take();
        drop((gone, kept));
        self.vm.keeper.bell.call();
    }
}

impl Behind {
    /// What is behind a map of `pieces`, whose first page has the number `start`.
    pub(crate) fn new(vm: &Arc<VmCore>, pieces: &[Piece], start: PageIndex) -> Self {
        Self::with(vm, pieces, start, Hold::view)
    }

    /// The same with no frozen pages over frames of their own; `None` where none are.
    pub(crate) fn thinned_out(&self, vm: &Arc<VmCore>, pieces: &[Piece], start: PageIndex) -> Option<Self> {
        let thin = Self::with(vm, pieces, start, Hold::thin_view);
        (thin.laid.len() < self.laid.len()).then_some(thin)
    }

    fn with(
        vm: &Arc<VmCore>,
        pieces: &[Piece],
        start: PageIndex,
        view: impl Fn(&Hold) -> (View, Arc<Watched>),
    ) -> Self {
        if let [Piece { hold: Some(hold), object, pages, copied: false }] = pieces
            && *pages == object.pages()
        {
            let (view, watched) = view(hold);
            let chain = Some(Book::hold(vm, hold.link));
            let (laid, shown) = (Arc::clone(&view.laid), Arc::clone(&view.shown));
            let making = vec![watched];
            return Self { laid, shown, holds: Box::default(), chain, making };
        }
        // Of a part of a snapshot the map's own chain begins there.
        let holds = pieces.iter().filter_map(|piece| piece.hold.clone()).collect();
        let (mut laid, mut shown) = (Vec::new(), Vec::new());
        let mut making = Vec::new();
        let mut at = start;
        for piece in pieces {
            match &piece.hold {
                Some(hold) => {
                    let (view, watched) = view(hold);
                    let part = |segment: &Segment| {
                        let part = segment.part(piece.pages)?;
                        let start = PageIndex(at.0 + (part.pages.start().0 - piece.pages.start().0));
                        let install = match part.install {
                            Install::Continue if piece.copied => Install::Copy,
                            install => install,
                        };
                        Some(Segment { install, ..part.at(start) })
                    };
                    laid.extend(view.laid.iter().filter_map(part));
                    shown.extend(view.shown.iter().filter_map(part));
                    making.push(watched);
                }
                None => {
                    let pages = PageRange::new(at, PageIndex(at.0 + piece.pages.len()));
                    let object = Arc::clone(&piece.object);
                    let segment =
                        Segment { pages, object, first: piece.pages.start(), install: piece.install() };
                    laid.push(segment.clone());
                    shown.push(segment);
                }
            }
            at.0 += piece.pages.len();
        }
        Self { laid: Arc::new(laid.into()), shown: Arc::new(shown.into()), holds, chain: None, making }
    }

    /// The map is made.
    pub(crate) fn made(making: Vec<Arc<Watched>>, map: &Arc<MapCore>) {
        if !making.is_empty() {
            map.vm.book.lock().watch_map(map);
        }
        drop(making);
    }

    /// Whether it is one object in its own frames, or zeros.
    pub(crate) fn is_one(&self) -> bool {
        matches!((&self.laid[..], &self.shown[..]), ([laid], [shown])
            if laid.install == shown.install && Arc::ptr_eq(&laid.object, &shown.object))
    }
}

/// `base`, but where `wanted` has long runs of frozen pages, saved ones among them, those, over their own frames.
fn dense(base: &[Segment], wanted: &[Segment]) -> Segments {
    let is_frozen = |object: &ObjectCore| object.is_frozen() || object.saved().is_some();
    let is_dense = |segment: &&Segment| segment.pages.len() >= DENSE_PAGES && is_frozen(&segment.object);
    let mut runs: Vec<&Segment> = wanted.iter().filter(is_dense).collect();
    runs.sort_by_key(|run| std::cmp::Reverse(run.pages.len()));
    runs.truncate(DENSE_RUNS);
    runs.sort_by_key(|run| run.pages.start());
    let end = base.last().expect("a base has a segment").pages.end();
    let mut laid: Vec<Segment> = Vec::new();
    let mut from = PageIndex(0);
    for run in runs {
        laid.extend(base.iter().filter_map(|segment| segment.part(PageRange::new(from, run.pages.start()))));
        laid.push(Segment { install: Install::Continue, ..run.clone() });
        from = run.pages.end();
    }
    laid.extend(base.iter().filter_map(|segment| segment.part(PageRange::new(from, end))));
    laid.into()
}

/// Segments of a map whose first page is `start`, counted from 0.
fn moved_down(segments: &[Segment], start: PageIndex) -> Segments {
    let down = |segment: &Segment| segment.clone().at(PageIndex(segment.pages.start().0 - start.0));
    segments.iter().map(down).collect()
}

/// Segments whose pages are counted from 0, as a map shows them whose first page is `start`.
pub(crate) fn moved_up(segments: Vec<Segment>, start: PageIndex) -> Vec<Segment> {
    if start.0 == 0 {
        return segments;
    }
    let up = |segment: Segment| {
        let start = PageIndex(segment.pages.start().0 + start.0);
        segment.at(start)
    };
    segments.into_iter().map(up).collect()
}

/// Makes the runs of `runs` follow each other without touching; returns how many pages they have.
fn unite(runs: &mut Vec<Range<u64>>) -> u64 {
    runs.sort_unstable_by_key(|run| run.start);
    runs.dedup_by(|next, run| {
        let touches = next.start <= run.end;
        if touches {
            run.end = run.end.max(next.end);
        }
        touches
    });
    runs.iter().map(|run| run.end - run.start).sum()
}

fn page_range(start: u64, end: u64) -> PageRange {
    PageRange::new(PageIndex(start), PageIndex(end))
}
