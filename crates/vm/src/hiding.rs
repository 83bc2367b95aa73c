//! Pages that the reclaimer takes out of a map are taken out by faults of that map, where that costs less.
//!
//! ```text
//!   reclaimer: offers places ─► rests while faults take some ─► takes those that are left
//!                 └─► a fault takes some while the device reads its page, on the CPU that may know them
//! ```
//! A page that a userfaultfd mapped passes for written to, and to take such a page out of a page table interrupts every other CPU on which a thread of the
//! process runs, for each page anew (Linux 6.18). Where one thread touches pages, and the reclaimer runs beside it, that is 10 µs of the one and 5 of the other
//! for each page; the thread that touches them needs 1 µs, which costs no time while it waits for its device. Where several threads touch pages nothing is gained,
//! and the reclaimer does it alone (`between`).

use std::io;
use std::time::{Duration, Instant};

use crate::map::MapCore;
use crate::pool::PoolCore;
use crate::sync::{AtomicU32, AtomicU64, Ordering, wait, wake};

/// Places that are offered at once at most.
pub(crate) const MOST_PLACES: usize = 128;
/// A fault takes so many: they take as long as the fault itself.
const PLACES_A_FAULT: usize = 8;
/// Others are interrupted where a place takes longer; then so many offers are left out.
const DEAR: Duration = Duration::from_micros(4);
const DEAR_OFFERS: u32 = 16;
/// From one round to the next, which are some hundred faults, a single thread changes its CPU so often at most; several do all the time.
const MOST_MOVES: u32 = 8;
/// The reclaimer waits so long for faults to take some before it goes on by itself.
pub(crate) const MOST_WAIT: Duration = Duration::from_millis(1);

/// What is to be taken out of a map.
///
/// Lock legend: (a) atomic; (f) atomic, slept on; (o) atomic, written by who offers while nothing is on offer. A fault may read what is of an older offer: then it
/// fails to take the place.
#[derive(Debug)]
pub(crate) struct Hiding {
    /// (a) The map of the last fault that read a page, and its CPU.
    faulted: AtomicU64,
    cpu: AtomicU32,
    /// (a) How many such faults since the last round were on another CPU than the one before, up to one more than [`MOST_MOVES`]: then the faults of several threads
    /// write here no more. A hint: what two threads count at once may be lost.
    moves: AtomicU32,
    /// (a) Whether the round that is under way has pages of a map with such faults.
    asked: AtomicU32,
    /// (a) So many threads wait, or are about to, for what the reclaimer holds while it rests.
    hurried: AtomicU32,
    /// (a) Places that faults took out.
    taken: AtomicU64,
    /// (a) Offers to be left out.
    dear: AtomicU32,
    /// (a) The number of the offer, how many places it has, and the first of them that nobody took.
    turn: AtomicU64,
    /// (o) The map that the places are of, each with its length, in bytes.
    map: AtomicU64,
    places: Box<[(AtomicU64, AtomicU64)]>,
    /// (f) Places that are not done.
    left: AtomicU32,
    /// (a) The number of the last error, or 0.
    error: AtomicU32,
}

/// The number of none.
const NO_MAP: u64 = 0;
/// Bits of `turn`.
const NEXT: u64 = 0xffff;
const COUNT: u32 = 16;
const NUMBER: u32 = 32;

impl Hiding {
    pub(crate) fn new() -> Self {
        Self {
            faulted: AtomicU64::new(NO_MAP),
            cpu: AtomicU32::new(0),
            moves: AtomicU32::new(0),
            asked: AtomicU32::new(0),
            hurried: AtomicU32::new(0),
            taken: AtomicU64::new(0),
            dear: AtomicU32::new(0),
            turn: AtomicU64::new(0),
            map: AtomicU64::new(0),
            places: (0..MOST_PLACES).map(|_| (AtomicU64::new(0), AtomicU64::new(0))).collect(),
            left: AtomicU32::new(0),
            error: AtomicU32::new(0),
        }
    }

    /// A fault of `map` on `cpu` waits for the device, or has read its page: it takes some places, if there are any of this map. True where these were the last.
    pub(crate) fn help(&self, map: &MapCore, cpu: usize) -> bool {
        let moves = self.moves.load(Ordering::Relaxed);
        if moves <= MOST_MOVES && self.cpu.load(Ordering::Relaxed) != cpu as u32 {
            self.cpu.store(cpu as u32, Ordering::Relaxed);
            self.moves.store(moves + 1, Ordering::Relaxed);
        }
        if self.faulted.load(Ordering::Relaxed) != map.id() {
            self.faulted.store(map.id(), Ordering::Relaxed);
        }
        self.take_out(map)
    }

    /// Whether faults of `map` are likely to come, from one thread, on another CPU than `here`.
    pub(crate) fn is_worth(&self, map: &MapCore, here: usize) -> bool {
        if self.faulted.load(Ordering::Relaxed) != map.id() {
            return false;
        }
        self.asked.store(1, Ordering::Relaxed);
        if self.are_of_several() || self.cpu.load(Ordering::Relaxed) == here as u32 {
            return false;
        }
        let left_out = self.dear.load(Ordering::Relaxed);
        self.dear.store(left_out.saturating_sub(1), Ordering::Relaxed);
        left_out == 0
    }

    /// Whether faults come from several threads, which take nothing out.
    pub(crate) fn are_of_several(&self) -> bool {
        self.moves.load(Ordering::Relaxed) > MOST_MOVES
    }

    /// The reclaimer has taken out all that it wanted to at a time: from here on faults show anew whether they are of one thread.
    pub(crate) fn end_round(&self) {
        if self.asked.swap(0, Ordering::Relaxed) != 0 {
            self.moves.store(0, Ordering::Relaxed);
        }
    }

    fn is_hurried(&self) -> bool {
        self.hurried.load(Ordering::SeqCst) != 0
    }

    /// Takes `places` of `map`, each an offset and a length, out of its page table; faults may do so while the caller has a `rest`, which ends early when what it is
    /// given becomes true. One at a time: the caller holds the lock of reclaim.
    pub(crate) fn hide(
        &self,
        map: &MapCore,
        places: &[(u64, u64)],
        rest: impl Fn(&dyn Fn() -> bool),
    ) -> io::Result<()> {
        let taken_before = self.taken.load(Ordering::Relaxed);
        for places in places.chunks(MOST_PLACES) {
            for (into, &(at, len)) in self.places.iter().zip(places) {
                into.0.store(at, Ordering::Relaxed);
                into.1.store(len, Ordering::Relaxed);
            }
            self.map.store(map.id(), Ordering::Relaxed);
            self.error.store(0, Ordering::Relaxed);
            self.left.store(places.len() as u32, Ordering::Relaxed);
            let number = (self.turn.load(Ordering::Relaxed) >> NUMBER) as u32;
            let turn = u64::from(number.wrapping_add(1)) << NUMBER | (places.len() as u64) << COUNT;
            self.turn.store(turn, Ordering::SeqCst);
            // As long as faults take some.
            let mut left = places.len() as u32;
            loop {
                rest(&|| self.left.load(Ordering::SeqCst) == 0 || self.is_hurried());
                let now = self.left.load(Ordering::SeqCst);
                if now == 0 || now == left || self.is_hurried() {
                    break;
                }
                left = now;
            }
            // No fault takes another one: two CPUs that do so interrupt each other.
            let closed = |turn: u64| Some(turn & !NEXT | places.len() as u64);
            let turn = self.turn.fetch_update(Ordering::SeqCst, Ordering::SeqCst, closed);
            let by_faults = turn.expect("it is closed whatever it is") & NEXT;
            self.taken.fetch_add(by_faults, Ordering::Relaxed);
            let rest = &places[by_faults as usize..];
            let taken = if rest.is_empty() { Ok(()) } else { map.span.unmap_shared_ranges(rest) };
            self.left.fetch_sub(rest.len() as u32, Ordering::SeqCst);
            loop {
                match self.left.load(Ordering::SeqCst) {
                    0 => break,
                    left => wait(&self.left, left),
                }
            }
            taken?;
            match self.error.load(Ordering::SeqCst) {
                0 => {}
                number => return Err(io::Error::from_raw_os_error(number as i32)),
            }
        }
        // The map is touched no longer, or its pages are all there: nothing is offered until another fault reads one.
        if self.taken.load(Ordering::Relaxed) == taken_before {
            self.faulted.store(NO_MAP, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Takes some places out, if they are of `map`; true where these were the last. From any context.
    fn take_out(&self, map: &MapCore) -> bool {
        let mut next = self.next_place(map);
        if next.is_none() {
            return false;
        }
        let (mut done, mut least, mut began) = (0, Duration::MAX, Instant::now());
        while let Some((at, len)) = next {
            if let Err(error) = map.span.unmap_shared(at, len) {
                self.error.store(error.raw_os_error().unwrap_or(EIO) as u32, Ordering::SeqCst);
            }
            done += 1;
            if self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
                wake(&self.left, 1);
                return true;
            }
            // The thread may be interrupted in the middle of one, and who offers them takes a moment to fall asleep.
            let now = Instant::now();
            least = least.min(now - began);
            began = now;
            next = if done < PLACES_A_FAULT { self.next_place(map) } else { None };
        }
        if done == PLACES_A_FAULT && least > DEAR {
            self.dear.store(DEAR_OFFERS, Ordering::Relaxed);
        }
        false
    }

    /// A place that is the caller's to take out: the offer stays as it is until that is done.
    fn next_place(&self, map: &MapCore) -> Option<(u64, u64)> {
        let mut turn = self.turn.load(Ordering::SeqCst);
        loop {
            let (next, count) = (turn & NEXT, turn >> COUNT & NEXT);
            if next >= count || self.map.load(Ordering::SeqCst) != map.id() {
                return None;
            }
            // It has not changed, so the map is that of the offer.
            match self.turn.compare_exchange(turn, turn + 1, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => break,
                Err(other) => turn = other,
            }
        }
        let (at, len) = &self.places[(turn & NEXT) as usize];
        Some((at.load(Ordering::Relaxed), len.load(Ordering::Relaxed)))
    }
}

/// While this lives the reclaimer does not rest over an offer.
pub(crate) struct Hurry<'a>(&'a Hiding);

impl PoolCore {
    /// A fault of `map` on `cpu` waits for the device, or has read its page: it does a part of the reclaimer's work, if there is any of this map. From any context;
    /// waits for nobody.
    pub(crate) fn help(&self, map: &MapCore, cpu: usize) {
        if self.reclaims() && self.hiding.help(map, cpu) {
            self.frames.end_rest();
        }
    }

    /// For who is about to wait for what the reclaimer holds while it takes pages out of maps: pins, poison, and the maps.
    pub(crate) fn hurry(&self) -> Hurry<'_> {
        // Who rests says so before it looks for this.
        self.hiding.hurried.fetch_add(1, Ordering::SeqCst);
        self.frames.end_rest();
        Hurry(&self.hiding)
    }
}

impl Drop for Hurry<'_> {
    fn drop(&mut self) {
        self.0.hurried.fetch_sub(1, Ordering::SeqCst);
    }
}

/// EIO: what an error without a number counts as.
const EIO: i32 = 5;

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests {
    use prepage_core::PAGE_SIZE;
    use prepage_sys::region::is_present;
    use prepage_testing::{Need, has};

    use super::*;
    use crate::{Map, MapOptions, Object, Vm, VmOptions};

    const PAGES: u64 = 64;

    fn whole() -> (Object, Map) {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(PAGES * PAGE_SIZE).unwrap();
        let vm = Vm::new(VmOptions::default().frame_limit_bytes(4 * PAGES * PAGE_SIZE)).unwrap();
        let object = vm.file(file.path()).unwrap();
        let map = vm.map(&object, &MapOptions::shared()).unwrap();
        map.populate(map.window()).unwrap();
        (object, map)
    }

    fn shows(map: &Map) -> Vec<u64> {
        (0..PAGES).filter(|page| is_present(map.address() + page * PAGE_SIZE).unwrap()).collect()
    }

    #[test]
    fn faults_of_the_map_take_out_what_is_offered_and_who_offers_takes_the_rest() {
        let (_object, map) = whole();
        let (_other_object, other) = whole();
        let hiding = Hiding::new();
        assert_eq!(shows(&map).len() as u64, PAGES);
        // Every other page.
        let places: Vec<(u64, u64)> =
            (0..PAGES).step_by(2).map(|page| (page * PAGE_SIZE, PAGE_SIZE)).collect();
        for helps in [0, 1, PAGES] {
            map.populate(map.window()).unwrap();
            let rest = |is_over: &dyn Fn() -> bool| {
                for help in 0..helps {
                    assert!(!hiding.help(&other.core, 0), "it has no places there");
                    let were = shows(&map).len();
                    let were_last = hiding.help(&map.core, 0);
                    assert_eq!(were_last, is_over() && were > PAGES as usize / 2, "{help}");
                    assert!(were - shows(&map).len() <= PLACES_A_FAULT);
                }
            };
            hiding.hide(&map.core, &places, rest).unwrap();
            assert_eq!(shows(&map), (0..PAGES).skip(1).step_by(2).collect::<Vec<_>>());
            assert_eq!(shows(&other).len() as u64, PAGES);
            assert!(!hiding.help(&map.core, 0), "nothing is on offer");
        }
    }

    #[test]
    fn nobody_rests_while_others_wait_for_what_is_held() {
        let (_object, map) = whole();
        let pool = map.core.vm.pool.core();
        let rests = AtomicU32::new(0);
        let rest = |is_over: &dyn Fn() -> bool| {
            rests.fetch_add(1, Ordering::SeqCst);
            assert!(!is_over());
            let hurry = pool.hurry();
            assert!(is_over());
            std::mem::forget(hurry);
            pool.hiding.help(&map.core, 0);
        };
        let places: Vec<(u64, u64)> = (0..PAGES).map(|page| (page * PAGE_SIZE, PAGE_SIZE)).collect();
        pool.hiding.hide(&map.core, &places, rest).unwrap();
        assert_eq!(rests.load(Ordering::SeqCst), 1, "faults took some, so there would be another");
        pool.hiding.hurried.store(0, Ordering::SeqCst);
    }

    /// The whole way: a thread that touches more than the pool holds takes out what the reclaimer offers.
    #[test]
    fn faults_of_one_thread_take_places_of_the_reclaimer_of_their_pool() {
        if !has(Need::Processors(2)) {
            return;
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        let pages = 8192;
        file.as_file().set_len(pages * PAGE_SIZE).unwrap();
        let vm = Vm::new(VmOptions::default().frame_limit_bytes(pages / 2 * PAGE_SIZE)).unwrap();
        let object = vm.file(file.path()).unwrap();
        let map = vm.map(&object, &MapOptions::shared()).unwrap();
        let began = Instant::now();
        // On a machine that is busy the reclaimer may have the CPU of the thread for a while.
        while vm.core.pool.core().hiding.taken.load(Ordering::Relaxed) == 0 {
            assert!(began.elapsed() < Duration::from_secs(60), "faults took nothing");
            (0..pages).for_each(|page| {
                std::hint::black_box(map.as_slice()[(page * PAGE_SIZE) as usize]);
            });
        }
    }

    #[test]
    fn threads_that_help_beside_each_other_take_each_place_once() {
        let (_object, map) = whole();
        let hiding = Hiding::new();
        for _ in 0..200 {
            map.populate(map.window()).unwrap();
            let places: Vec<(u64, u64)> = (0..PAGES).map(|page| (page * PAGE_SIZE, PAGE_SIZE)).collect();
            let last = AtomicU32::new(0);
            std::thread::scope(|scope| {
                let rest = |_: &dyn Fn() -> bool| {
                    for _ in 0..3 {
                        scope.spawn(|| {
                            while hiding.left.load(Ordering::SeqCst) > 0 {
                                last.fetch_add(u32::from(hiding.help(&map.core, 1)), Ordering::SeqCst);
                            }
                        });
                    }
                };
                hiding.hide(&map.core, &places, rest).unwrap();
                assert!(shows(&map).is_empty());
            });
            assert!(last.load(Ordering::SeqCst) <= 1);
        }
    }

    #[test]
    fn faults_are_asked_where_they_come_from_one_cpu_that_is_another() {
        let (_object, map) = whole();
        let (_other_object, other) = whole();
        let hiding = Hiding::new();
        assert!(!hiding.is_worth(&map.core, 0), "none came");
        let after = |faults: &[(&Map, usize)], here| {
            faults.iter().for_each(|(map, cpu)| _ = hiding.help(&map.core, *cpu));
            let is_worth = hiding.is_worth(&map.core, here);
            // Each is a round of its own.
            hiding.end_round();
            is_worth
        };
        assert!(after(&[(&map, 1), (&map, 1)], 0));
        assert!(!after(&[(&map, 1)], 1), "it is the CPU of who asks");
        assert!(after(&[(&map, 2); 8], 0), "it has changed its CPU");
        assert!(!after(&[(&map, 1), (&map, 2)].repeat(8), 0), "each interrupts the other");
        assert!(!after(&[(&map, 1), (&other, 1)], 0), "another map is touched");
        assert!(after(&[(&map, 1)], 0));
        // Whatever other maps there are, and however many batches a round has.
        [1, 2].repeat(8).iter().for_each(|&cpu| _ = hiding.help(&map.core, cpu));
        [&other, &map, &map].iter().for_each(|map| assert!(!hiding.is_worth(&map.core, 0)));
        hiding.end_round();
        assert!(after(&[(&map, 1)], 0));
        // What nobody took is not offered again.
        hiding.hide(&map.core, &[(0, PAGE_SIZE)], |_| ()).unwrap();
        assert!(!after(&[], 0));
        assert!(after(&[(&map, 1)], 0));
        // Where it took too long, for so many offers.
        hiding.dear.store(DEAR_OFFERS, Ordering::Relaxed);
        (0..DEAR_OFFERS).for_each(|_| assert!(!after(&[(&map, 1)], 0)));
        assert!(after(&[(&map, 1)], 0));
    }
}
