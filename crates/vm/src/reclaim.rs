//! Frames are taken from pages that are idle, so that others can come: by a thread of the pool, or by who asks for it.

use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use prepage_core::{PageIndex, PageRange};

use crate::cleaner::{CLEAN_MOST, Cleaner};
use crate::evict::{Claimed, swapped_out};
use crate::give_back;
use crate::object::ObjectCore;
use crate::order::{Entry, Look, Next, Order, Queued, Replacement, Unwiring};
use crate::pages::{Idleness, Stamp, Unwire};
use crate::pool::PoolCore;
use crate::statistics::{Account, Tally};
use crate::sync::{Anyway, Ordering};

/// Frames that are taken away together while somebody waits for one, and while nobody does.
const BATCH: u64 = 64;
const LONG_BATCH: u64 = 1024;
/// Runs of frames of one object that are claimed together: who touches a page of them waits for as many to be taken.
const CLAIM_RUNS: usize = 64;
/// The most frames that are unwired at a time, in the order of their pages. To take them out of the page table interrupts the CPUs that may know them,
/// once for each run within a table of 2 MiB: the more at once, the fewer times.
pub(crate) const UNWIRE_MOST: usize = 1024;
/// By one call: a read that waits for a frame waits for no more.
const UNWIRE_BATCH: usize = 128;
/// After each batch the pool's thread rests for as long as that took, up to this: a fault that needs its processor waits for one batch, not for the
/// milliseconds that all of them take.
const MOST_REST: Duration = Duration::from_millis(1);
/// Entries of frames that are gone are passed by in their turn until there are as many as of others, and so many more.
const MOST_GONE: usize = 1024;
/// A class goes before the next ones while it holds more than one in so many of their frames and its own.
const CLASS_PART: usize = 8;
/// Where too few frames are idle, so many are unwired for each that lacks, since some will be touched. Idle ones are taken, and others unwired, for so long
/// at most: memory is to be looked at again soon.
const WATCHED_EACH: u64 = 2;
const MOST_WATCH: Duration = Duration::from_millis(500);
/// Frames of the first class that could give some are unwired so many times, and looked at, before one of another class goes.
const UNWIRINGS_OF_FIRST: u32 = 2;
/// A page that is used again before as many frames were reclaimed as the pool holds was reclaimed too early. Time is counted in so many
/// parts of that.
const MEMORY_PARTS: u16 = 64;
/// A tick of that time is counted in so many parts of its own, since few frames are reclaimed at once.
const TICK: u64 = 1 << 16;

/// What files and sources have, memory that goes to a swap file, and code.
const DATA: usize = 0;
const MEMORY: usize = 1;
const CODE: usize = 2;

/// What is known of all frames of a pool.
#[derive(Debug)]
pub(crate) struct Reclaim {
    /// By class; all in the first where the replacement knows none.
    orders: [Order; 3],
    has_classes: bool,
    cleaner: Cleaner,
    /// The time of stamps and of the orders, in parts of [`TICK`]: a frame that is reclaimed counts for more where the pool holds fewer.
    time: u64,
}

/// A frame to take away.
#[derive(Clone, Copy, Debug)]
struct Victim {
    queued: Queued,
    class: usize,
}

/// One search for frames to take away.
#[derive(Debug, Default)]
struct Search {
    /// The objects that it met: each is looked up once.
    objects: HashMap<u64, Option<Arc<ObjectCore>>>,
    /// Frames that could not be written: they are not tried once more, and others go instead.
    refused: HashSet<Entry>,
    /// The class that the last frames were taken from.
    class: Option<usize>,
    /// When its last batch began, if it rests between batches: the one that somebody waits for does not.
    began: Option<Instant>,
    /// Whether it takes what was unwired before it, and nothing else.
    is_of_idle: bool,
}

/// The reclaimer.
pub(crate) fn work(pool: &PoolCore) {
    loop {
        // Taken before anything is looked at: who changes it calls afterwards.
        let calls = pool.frames.calls();
        if pool.is_stopped() {
            return;
        }
        let wanted = pool.frames.wanted();
        if (wanted > 0 || pool.frames.is_near()) && give_back::look_again(pool) {
            continue;
        }
        // A source that panics when it is dropped does not end the thread.
        let search = Search { began: Some(Instant::now()), ..Search::default() };
        let taken = catch_unwind(AssertUnwindSafe(|| search.take(pool, wanted))).unwrap_or(1);
        if wanted > 0 {
            pool.frames.fit_low(taken);
        }
        // What hangs may still come to an end: who waits for a frame is told nothing, and has some beyond the limit after a while.
        if wanted > 0 && taken == 0 && pool.hung_writes.load(Ordering::SeqCst) == 0 {
            if pool.frames.is_waited_for() {
                // A read fails after two searches in vain: the second one asks the disk in any case.
                pool.swap.ask_again();
            }
            pool.frames.has_nothing();
        }
        if wanted == 0 || taken == 0 {
            pool.frames.sleep(calls);
        }
    }
}

/// Takes up to `wanted` frames away, and unwires some ahead; gives how many went. 0 where every frame is pinned or being filled.
pub(crate) fn take(pool: &PoolCore, wanted: u64) -> u64 {
    Search::default().take(pool, wanted)
}

/// Takes up to `wanted` frames away that were unwired before this call and not touched since, as many as it comes to in [`MOST_WATCH`]. If these are too few,
/// unwires others for the next call. Frames that cannot be unwired stay: dirty ones, for example. Gives how many went.
pub(crate) fn take_idle(pool: &PoolCore, wanted: u64) -> u64 {
    // Nothing tells which of them are idle, and to find none takes a look at each.
    if !pool.reclaim.lock().anyway().orders[DATA].watches() {
        return 0;
    }
    let began = Instant::now();
    let search = || Search { began: Some(Instant::now()), is_of_idle: true, ..Search::default() };
    let (mut of_idle, mut taken) = (search(), 0);
    loop {
        let step = LONG_BATCH.min(wanted - taken);
        // Others may take frames between two steps. What goes first may have to be written.
        let went = pool.reclaim.lock().anyway().take(pool, step, &mut of_idle);
        taken += went;
        if went < step || taken == wanted || began.elapsed() >= MOST_WATCH {
            break;
        }
    }
    of_idle.let_go();
    let mut left = WATCHED_EACH * wanted.saturating_sub(taken);
    while left > 0 && began.elapsed() < MOST_WATCH && !pool.frames.is_waited_for() {
        let mut search = search();
        let unwired = pool.reclaim.lock().anyway().watch(pool, &mut search, left.min(UNWIRE_MOST as u64));
        search.let_go();
        if unwired == 0 {
            break;
        }
        left = left.saturating_sub(unwired);
    }
    taken
}

impl Search {
    fn take(mut self, pool: &PoolCore, wanted: u64) -> u64 {
        let taken = {
            let mut reclaim = pool.reclaim.lock().anyway();
            let taken = reclaim.take(pool, wanted, &mut self);
            if pool.frames.fills_up() {
                let first = || first_class(reclaim.orders.each_ref().map(Order::len));
                // What goes first may hold nothing that can go.
                let class = self.class.unwrap_or_else(first);
                // Not while somebody waits.
                if reclaim.orders[class].lacks_idle() && !pool.frames.is_waited_for() {
                    reclaim.unwire_some(pool, &mut self, class, UNWIRE_MOST);
                }
            }
            taken
        };
        self.let_go();
        taken
    }

    /// A batch is done, and nothing is held that a fault waits for.
    fn rest(&mut self, pool: &PoolCore) {
        if let Some(began) = &mut self.began {
            pool.frames.rest(began.elapsed().min(MOST_REST));
            *began = Instant::now();
        }
    }

    fn object(&mut self, pool: &PoolCore, id: u64) -> Option<&Arc<ObjectCore>> {
        self.objects.entry(id).or_insert_with(|| pool.object(id)).as_ref()
    }

    /// What became of a frame that was queued.
    fn look(&mut self, pool: &PoolCore, entry: Entry, watched: bool) -> Look {
        let is_refused = self.refused.contains(&entry);
        match look(self.object(pool, entry.object).map(|object| &**object), entry, watched, is_refused) {
            // A dirty page cannot be unwired, so nothing tells whether it is in use. A new one is kept from here on, without having been judged: back
            // among the new ones it would keep the kept ones from their turn, and none would go.
            Look::Idle if self.is_of_idle && !watched => Look::Held,
            look => look,
        }
    }

    /// Nobody else may hold an object by now.
    fn let_go(self) {
        self.objects.into_values().flatten().for_each(ObjectCore::let_go);
    }
}

impl Reclaim {
    pub(crate) fn new(replacement: Replacement) -> Self {
        Self {
            orders: [replacement; 3].map(Order::new),
            has_classes: replacement == Replacement::TwoQueues,
            cleaner: Cleaner::default(),
            time: 0,
        }
    }

    fn take(&mut self, pool: &PoolCore, wanted: u64, search: &mut Search) -> u64 {
        let mut taken = 0;
        // What comes meanwhile is not asked for.
        let wanted = wanted.min(pool.frames.reserved());
        // Frames looked at since one was taken. What is touched as fast as it is unwired goes in the second round.
        let mut began = self.looks();
        let mut forced = false;
        loop {
            self.drain(pool, search);
            self.forget_gone(pool, search);
            if taken >= wanted {
                return taken;
            }
            let before = self.looks();
            let most = if pool.frames.is_waited_for() { BATCH } else { LONG_BATCH };
            let victims = self.choose(pool, search, (wanted - taken).min(most), forced);
            let got = self.take_away(pool, search, victims, forced);
            taken += got;
            let is_round = self.looks() - began > self.len() || self.looks() == before;
            match (got, is_round) {
                (0, true) if forced || search.is_of_idle => return taken,
                (0, true) => {
                    if !pool.reclaims() {
                        self.find_lost(pool, search);
                    }
                    (began, forced) = (self.looks(), true);
                }
                (0, false) => {}
                _ => (began, forced) = (self.looks(), false),
            }
        }
    }

    /// How many frames are known.
    pub(crate) fn len(&self) -> usize {
        self.orders.iter().map(Order::len).sum()
    }

    /// How many frames were looked at so far.
    pub(crate) fn looks(&self) -> usize {
        self.orders.iter().map(Order::looks).sum()
    }

    /// Queues what came.
    fn drain(&mut self, pool: &PoolCore, search: &mut Search) {
        if pool.lost.swap(0, Ordering::SeqCst) != 0 {
            self.find_lost(pool, search);
        }
        while let Some(arrival) = pool.next_arrival() {
            if let Some(object) = search.object(pool, arrival.object) {
                let object = Arc::clone(object);
                self.queue(&object, arrival.range);
            }
        }
    }

    /// Forgets frames that went with their objects, where these are many.
    fn forget_gone(&mut self, pool: &PoolCore, search: &mut Search) {
        if self.len() <= 2 * pool.frames.held().0 as usize + MOST_GONE {
            return;
        }
        for order in &mut self.orders {
            order.retain(|entry| {
                let is_gone = search.look(pool, entry, false) == Look::Gone;
                if is_gone {
                    unqueue(search.object(pool, entry.object), entry);
                }
                !is_gone
            });
        }
    }

    fn queue(&mut self, object: &ObjectCore, range: PageRange) {
        let Some(frames) = object.frames() else { return };
        let class = self.class_of(object);
        let room = object.vm.pool.core().frames.has_room();
        let is_of_buffer = kind_of(object) == DATA;
        let now = self.now();
        let mut refaulted = 0;
        for page in range.iter() {
            let Some(stamp) = frames.pages.queue(page) else { continue };
            let before = stamp.map(|stamp| (since(stamp, now), stamp.count));
            refaulted += u64::from(before.is_some_and(|(interval, _)| interval <= MEMORY_PARTS));
            let entry = Entry { object: object.id, page: page.0 };
            self.orders[class].arrive(Queued::coming(entry, before, now), room, is_of_buffer);
        }
        if refaulted > 0 {
            object.vm.pool.core().refaulted.fetch_add(refaulted, Ordering::SeqCst);
            let tally = Tally { pages_refaulted: refaulted, ..Tally::default() };
            object.vm.figures.add(Account::here().cpu, &tally);
        }
    }

    /// Looks through the frames of all objects for what came and did not fit into the list of arrivals, or is in none.
    fn find_lost(&mut self, pool: &PoolCore, search: &mut Search) {
        for object in pool.alive() {
            // What was frozen is nowhere else.
            let Some(frames) = object.frames().filter(|_| !object.is_frozen()) else { continue };
            frames.runs().for_each(|found| self.queue(&object, found));
            search.objects.insert(object.id, Some(object));
        }
    }

    fn class_of(&self, object: &ObjectCore) -> usize {
        if self.has_classes { kind_of(object) } else { DATA }
    }

    /// The time of stamps.
    fn now(&self) -> u32 {
        (self.time / TICK) as u32
    }

    /// Which frames go next, up to `most`; where `forced` also those that were touched.
    fn choose(&mut self, pool: &PoolCore, search: &mut Search, most: u64, forced: bool) -> Vec<Victim> {
        let mut victims = Vec::new();
        let mut lens = self.orders.each_ref().map(Order::len);
        let mut is_first = true;
        while lens != [0; 3] {
            // One that gives nothing makes room for no other.
            let class = first_class(lens);
            lens[class] = 0;
            // That the idle ones of the class whose turn it is have gone is no reason to take from another: more of it are unwired for the next search.
            if search.is_of_idle && search.class.is_some_and(|first| first != class) {
                continue;
            }
            let (mut is_touched, mut unwirings) = (false, 0);
            loop {
                is_touched |= self.choose_of(pool, search, class, most, forced, &mut victims);
                if !victims.is_empty() {
                    search.class = Some(class);
                    return victims;
                }
                if search.is_of_idle {
                    break;
                }
                // Once more where nothing that was unwired is idle, and again of the first that could give some: threads that touch all that is
                // unwired of it at once are no reason to take from another.
                if unwirings == (if is_first && is_touched { UNWIRINGS_OF_FIRST } else { 1 }) {
                    break;
                }
                let most = if pool.frames.is_waited_for() { UNWIRE_BATCH } else { UNWIRE_MOST };
                self.unwire_some(pool, search, class, most);
                unwirings += 1;
            }
            is_first &= !is_touched;
        }
        victims
    }

    /// As [`Self::choose`], of one class and of what is idle; gives whether one was met that was touched.
    fn choose_of(
        &mut self,
        pool: &PoolCore,
        search: &mut Search,
        class: usize,
        most: u64,
        forced: bool,
        victims: &mut Vec<Victim>,
    ) -> bool {
        let now = self.now();
        let is_touched = std::cell::Cell::new(false);
        while (victims.len() as u64) < most {
            let search_now = std::cell::RefCell::new(&mut *search);
            let next = self.orders[class].next(forced, now, |entry, watched| {
                let look = search_now.borrow_mut().look(pool, entry, watched && !forced);
                is_touched.set(is_touched.get() || look == Look::Touched);
                look
            });
            match next {
                Next::Reclaim(queued) => {
                    unqueue(search.object(pool, queued.entry.object), queued.entry);
                    victims.push(Victim { queued, class });
                }
                Next::Forget(entry) => unqueue(search.object(pool, entry.object), entry),
                Next::Unwire | Next::Nothing => break,
            }
        }
        is_touched.get()
    }

    /// Unwires what goes next but one, up to about `most` frames, of each class as many as it has of all; gives how many.
    fn watch(&mut self, pool: &PoolCore, search: &mut Search, most: u64) -> u64 {
        let lens = self.orders.each_ref().map(|order| order.len() as u64);
        let all = lens.iter().sum::<u64>().max(1);
        let shares = lens.map(|len| (most * len).div_ceil(all) as usize);
        (0..lens.len()).map(|class| self.unwire_some(pool, search, class, shares[class]) as u64).sum()
    }

    /// Unwires what goes next but one, up to `most`; fewer where somebody begins to wait for a frame. Gives how many.
    fn unwire_some(&mut self, pool: &PoolCore, search: &mut Search, class: usize, most: usize) -> usize {
        let mut asked: Vec<Unwiring> = Vec::new();
        while asked.len() < most {
            let search_now = std::cell::RefCell::new(&mut *search);
            let is_dirty = |entry: Entry| {
                let mut search = search_now.borrow_mut();
                is_dirty(search.object(pool, entry.object), entry)
            };
            let Some(next) = self.orders[class].next_to_unwire(is_dirty) else { break };
            asked.push(next);
        }
        let mut sorted: Vec<Entry> = asked.iter().map(Unwiring::entry).collect();
        sorted.sort_unstable();
        let mut unwatched: Vec<Entry> = Vec::new();
        let is_patient = search.began.is_some();
        let mut done = 0;
        for batch in sorted.chunks(UNWIRE_BATCH) {
            if done > 0 && pool.frames.is_waited_for() {
                break;
            }
            done += batch.len();
            for of_object in batch.chunk_by(|entry, next| entry.object == next.object) {
                let Some(object) = search.object(pool, of_object[0].object) else { continue };
                let Some(frames) = object.frames() else { continue };
                let pages: Vec<PageIndex> = of_object.iter().map(|entry| PageIndex(entry.page)).collect();
                match object.unwire(frames, &pages, is_patient) {
                    Ok(came) => {
                        for (entry, came) in of_object.iter().zip(came) {
                            match came {
                                Some(Unwire::Done | Unwire::Already) => {
                                    frames.pages.watch(PageIndex(entry.page));
                                }
                                _ => unwatched.push(*entry),
                            }
                        }
                    }
                    // They are reclaimed without having been watched.
                    Err(_) => unwatched.extend(of_object),
                }
            }
            search.rest(pool);
        }
        pool.hiding.end_round();
        let now = self.now();
        let (order, left) = (&mut self.orders[class], &sorted[done..]);
        let (asked, rest): (Vec<_>, Vec<_>) =
            asked.into_iter().partition(|frame| left.binary_search(&frame.entry()).is_err());
        for frame in asked {
            let watched = unwatched.binary_search(&frame.entry()).is_err();
            order.unwired(frame, watched, now);
        }
        rest.into_iter().rev().for_each(|frame| order.put_back(frame));
        done
    }

    /// Takes the frames of `victims` away; those that cannot go are queued again.
    fn take_away(&mut self, pool: &PoolCore, search: &mut Search, victims: Vec<Victim>, forced: bool) -> u64 {
        // Those that are to be written first go last: others may wait for one.
        let mut victims: Vec<(bool, Victim)> = victims
            .into_iter()
            .map(|victim| {
                (is_dirty(search.object(pool, victim.queued.entry.object), victim.queued.entry), victim)
            })
            .collect();
        victims.sort_unstable_by_key(|(is_dirty, victim)| (*is_dirty, victim.queued.entry));
        // While memory is short for others, what lies in swap space takes none, and would take some on its way out.
        let passes_by = search.is_of_idle || !forced && pool.frames.limit() < pool.frames.most();
        let now = self.now();
        // Of all batches together: others wait for the lock, and for frames that need no write.
        let until = Instant::now() + CLEAN_MOST;
        let mut all = 0;
        let mut rest = &victims[..];
        while !rest.is_empty() {
            let batch;
            (batch, rest) = rest.split_at(first_batch(rest));
            let is_dirty = batch[0].0;
            let batch = || batch.iter().map(|(_, victim)| victim);
            let id = batch().next().expect("one").queued.entry.object;
            let Some(object) = search.object(pool, id) else { continue };
            let Some(frames) = object.frames() else { continue };
            let mut refused = Vec::new();
            let claimed = Claimed::room_for(object, frames, batch().len());
            let taken = match (frames.whole.take_from_kernel(), claimed) {
                (Ok(_taking), Ok(mut claimed)) => {
                    if is_dirty {
                        let pages = batch().map(|victim| PageIndex(victim.queued.entry.page)).collect();
                        // Nobody can be told of an error; the next flush tells.
                        let came = self.cleaner.clean(object, pages, forced, Duration::ZERO, until);
                        refused = came.map_or(refused, |came| came.refused);
                    }
                    let pages = batch().map(|victim| PageIndex(victim.queued.entry.page));
                    let out = if passes_by { swapped_out(frames, pages) } else { Vec::new() };
                    let pins = object.hold_pins_of_blocks(frames);
                    let mut is_beside_a_pin = object.are_beside_a_pin(pins.as_deref());
                    for victim in batch() {
                        let page = PageIndex(victim.queued.entry.page);
                        if is_beside_a_pin(page) || out.binary_search(&page).is_ok() {
                            continue;
                        }
                        // One that is watched goes only if nobody has touched it since it was unwired.
                        let claim = if victim.queued.watched && !forced {
                            frames.pages.claim_unwired(page).map(|claim| (claim, 1))
                        } else {
                            frames.pages.claim_resident(page, PageIndex(page.0 + 1))
                        };
                        if let Some((claim, unwired)) = claim {
                            object.rewires(frames, unwired);
                            let Queued { used, count, .. } = victim.queued;
                            claimed.add(claim, Some(Stamp { time: used as u16, count }));
                        }
                    }
                    claimed.take().0
                }
                _ => 0,
            };
            let tally = Tally { pages_evicted: taken, pages_reclaimed: taken, ..Tally::default() };
            object.vm.figures.add(Account::here().cpu, &tally);
            for victim in batch() {
                let (queued, page) = (victim.queued, PageIndex(victim.queued.entry.page));
                // Touched, pinned or written to meanwhile, or the kernel did not let it go; one that came back meanwhile tells by itself.
                let idleness = frames.pages.idleness(page);
                if idleness != Idleness::Missing && frames.pages.queue_again(page) {
                    let was_touched = queued.watched && idleness == Idleness::Wired;
                    let queued = if was_touched { queued.counted(now) } else { queued };
                    self.orders[victim.class].arrive(queued, true, kind_of(object) == DATA);
                }
            }
            all += taken;
            search.refused.extend(refused.into_iter().map(|page| Entry { object: id, page: page.0 }));
            search.rest(pool);
        }
        // The pool may hold less than it was made for: its limit changes, or is so high that it is never reached.
        self.time += all * u64::from(MEMORY_PARTS) * TICK / (pool.frames.reserved() + all).max(1);
        all
    }
}

/// How long ago a page was used that left `stamp`, as far as that fits.
fn since(stamp: Stamp, now: u32) -> u16 {
    (now as u16).wrapping_sub(stamp.time)
}

/// The class that frames are taken from first, by how many each has.
fn first_class([data, memory, code]: [usize; 3]) -> usize {
    match () {
        () if data > (data + memory + code) / CLASS_PART => DATA,
        () if memory > (memory + code) / CLASS_PART => MEMORY,
        () if code > 0 => CODE,
        () => DATA,
    }
}

/// What became of a frame that was queued. What was written to it may have been refused.
fn look(object: Option<&ObjectCore>, entry: Entry, watched: bool, is_refused: bool) -> Look {
    let Some(frames) = object.and_then(ObjectCore::frames) else { return Look::Gone };
    let page = PageIndex(entry.page);
    let is_stuck = frames.dirty.as_ref().is_some_and(|dirty| {
        (is_refused || dirty.hangs() || !dirty.home.takes(page)) && !dirty.is_clean(&frames.pages, page)
    });
    match frames.pages.idleness(page) {
        Idleness::Missing | Idleness::Pinned => Look::Gone,
        idleness if is_stuck || idleness == Idleness::Held => {
            // It is queued anew, as one that is wired.
            frames.pages.end_watch(page);
            Look::Held
        }
        Idleness::Wired if watched => {
            frames.pages.end_watch(page);
            Look::Touched
        }
        _ => Look::Idle,
    }
}

/// How many of `victims`, which are in order, are claimed together.
fn first_batch(victims: &[(bool, Victim)]) -> usize {
    let (is_dirty, first) = victims[0];
    let mut runs = 0;
    let mut next = None;
    let of_batch = victims.iter().take_while(|(is, victim)| {
        let entry = victim.queued.entry;
        runs += usize::from(next != Some(entry.page));
        next = Some(entry.page + 1);
        *is == is_dirty && entry.object == first.queued.entry.object && runs <= CLAIM_RUNS
    });
    of_batch.count()
}

/// The class of an object's frames.
fn kind_of(object: &ObjectCore) -> usize {
    match object.dirty() {
        _ if object.is_code.load(Ordering::Relaxed) != 0 => CODE,
        Some(dirty) if dirty.home.is_swap() => MEMORY,
        _ => DATA,
    }
}

/// Whether a frame has to be written before it goes.
fn is_dirty(object: Option<&Arc<ObjectCore>>, entry: Entry) -> bool {
    object.and_then(|object| object.frames()).is_some_and(|frames| {
        frames.dirty.as_ref().is_some_and(|dirty| !dirty.is_clean(&frames.pages, PageIndex(entry.page)))
    })
}

fn unqueue(object: Option<&Arc<ObjectCore>>, entry: Entry) {
    if let Some(frames) = object.and_then(|object| object.frames()) {
        frames.pages.unqueue(PageIndex(entry.page));
    }
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests {
    use prepage_core::PAGE_SIZE;

    use super::*;
    use crate::{MapOptions, Pool, Vm, VmOptions};

    #[test]
    fn a_victim_that_came_back_keeps_its_stamp_for_its_arrival() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(16 * PAGE_SIZE).unwrap();
        let pool = Pool::new(1 << 20).unwrap();
        let vm = Vm::new(VmOptions::default().pool(&pool)).unwrap();
        let object = vm.file(file.path()).unwrap();
        let map = vm.map(&object, &MapOptions::shared()).unwrap();
        map.populate(map.window()).unwrap();
        assert_eq!(pool.reclaim(1), 1);
        let page = object.pages().iter().find(|&page| !object.is_resident(page)).unwrap();
        map.populate(map.window()).unwrap();
        let frames = object.core.frames().unwrap();
        // It cannot be taken away once more, and its arrival was not looked at yet.
        frames.pages.set_pinned(page, true);
        let entry = Entry { object: object.core.id, page: page.0 };
        let victim = Victim { queued: Queued::coming(entry, None, 0), class: DATA };
        let mut search = Search::default();
        let mut reclaim = pool.core().reclaim.lock().unwrap();
        assert_eq!(reclaim.take_away(pool.core(), &mut search, vec![victim], false), 0);
        assert_eq!(vm.statistics().counted.pages_refaulted, 0);
        reclaim.drain(pool.core(), &mut search);
        assert_eq!(vm.statistics().counted.pages_refaulted, 1, "it came back soon");
        drop(reclaim);
        search.let_go();
        frames.pages.set_pinned(page, false);
    }

    #[test]
    fn a_stamp_tells_when_a_page_was_used() {
        // A thousand times what the pool holds, not 64 times.
        for (left, now, is) in
            [(0, 0, 0), (5, 69, 64), (0, 64 * 64, 64 * 64), (65_530, 65_540, 10), (70_000, 134_000, 64_000)]
        {
            assert_eq!(since(Stamp { time: left as u16, count: 1 }, now), is, "{left}, {now}");
        }
    }

    #[test]
    fn files_go_before_memory_and_memory_before_code() {
        let cases = [
            ([0, 0, 0], DATA),
            ([1, 0, 0], DATA),
            ([0, 1, 0], MEMORY),
            ([0, 0, 1], CODE),
            ([30, 100, 100], DATA),
            ([28, 100, 100], MEMORY),
            ([1, 15, 100], MEMORY),
            ([1, 14, 100], CODE),
            ([13, 0, 80], DATA),
            ([11, 0, 80], CODE),
        ];
        for (lens, class) in cases {
            assert_eq!(first_class(lens), class, "{lens:?}");
        }
    }
}
