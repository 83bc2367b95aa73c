//! Faults as they happen, kept until somebody takes them.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use prepage_core::{FaultClass, Permissions};

use crate::sync::Anyway;

/// A fault as it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recorded {
    /// CLOCK_MONOTONIC.
    pub(crate) start_ns: u64,
    pub(crate) cost_ns: u64,
    pub(crate) ip: u64,
    pub(crate) address: u64,
    pub(crate) page: u64,
    /// Of its number the lower 48 bits, which no process uses up.
    pub(crate) object: u64,
    pub(crate) tid: u32,
    pub(crate) class: FaultClass,
    /// Of the map.
    pub(crate) permissions: Permissions,
    /// Pages resolved together; 0 where the fault failed.
    pub(crate) cluster_pages: u32,
}

/// What is taken at once.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) faults: Vec<Recorded>,
    /// How many were lost since the last time.
    pub(crate) lost: u64,
    /// Whether this is all that had been kept by then: a fault that somebody is still writing down holds up those behind it.
    pub(crate) all: bool,
}

/// Rings of faults, one for each CPU: writers of different CPUs share nothing.
///
/// Lock legend: (a) atomic; `reading` guards the tails and is held while faults are taken, never by who keeps one; no other lock is taken under it.
#[derive(Debug)]
pub(crate) struct Records {
    rings: Box<[Ring]>,
    /// (a) Faults that found no room since they were last taken.
    lost: AtomicU64,
    /// Held by the one who reads.
    reading: Mutex<()>,
}

#[derive(Debug)]
struct Ring {
    /// (a) Where the next fault goes; moved on by writers.
    head: CachePadded<AtomicU64>,
    /// (a) The oldest fault that is kept; moved on by the reader, who holds `Records::reading`.
    tail: CachePadded<AtomicU64>,
    slots: Box<[Slot]>,
}

/// A fault in words: stored before `complete` is, with release, and read after it, with acquire.
#[derive(Debug, Default)]
struct Slot {
    /// (a) One more than the position whose fault is complete here.
    complete: AtomicU64,
    words: [AtomicU64; 7],
}

impl Ring {
    /// Whether there is no room at position `at`. Others may have written past it by now, and the reader may have read that.
    fn is_full(&self, at: u64) -> bool {
        at >= self.tail.load(Ordering::Acquire) + self.slots.len() as u64
    }
}

impl Records {
    /// Room for `capacity` faults on each CPU.
    ///
    /// # Errors
    /// OutOfMemory where there is no room for so many.
    pub(crate) fn new(capacity: usize) -> io::Result<Self> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from).next_power_of_two().min(64);
        let capacity = capacity.checked_next_power_of_two().ok_or(io::ErrorKind::OutOfMemory)?;
        let ring = || {
            let mut slots = Vec::new();
            slots.try_reserve_exact(capacity).map_err(|_| io::ErrorKind::OutOfMemory)?;
            slots.resize_with(capacity, Slot::default);
            let (head, tail) = (CachePadded::default(), CachePadded::default());
            Ok(Ring { head, tail, slots: slots.into_boxed_slice() })
        };
        let rings = (0..cpus).map(|_| ring()).collect::<io::Result<_>>()?;
        Ok(Self { rings, lost: AtomicU64::new(0), reading: Mutex::new(()) })
    }

    /// Keeps `fault`, or counts it as lost where there is no room.
    pub(crate) fn keep(&self, cpu: usize, fault: &Recorded) {
        let ring = &self.rings[cpu & (self.rings.len() - 1)];
        let mut at = ring.head.load(Ordering::Relaxed);
        loop {
            if ring.is_full(at) {
                self.lost.fetch_add(1, Ordering::Relaxed);
                return;
            }
            match ring.head.compare_exchange_weak(at, at + 1, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break,
                Err(other) => at = other,
            }
        }
        let slot = &ring.slots[at as usize & (ring.slots.len() - 1)];
        let kind = fault.class as u64
            | u64::from(fault.permissions.bits()) << 8
            | (fault.object >> 32 & 0xffff) << 16
            | u64::from(fault.cluster_pages) << 32;
        let names = fault.object << 32 | u64::from(fault.tid);
        let words = [fault.start_ns, fault.cost_ns, fault.ip, fault.address, fault.page, names, kind];
        for (to, word) in slot.words.iter().zip(words) {
            to.store(word, Ordering::Relaxed);
        }
        slot.complete.store(at + 1, Ordering::Release);
    }

    /// Somebody begins to write a fault down on each CPU, and is held up.
    #[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
    pub(crate) fn hold_up(&self) {
        for ring in &self.rings {
            ring.head.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Those go on that were held up.
    #[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
    pub(crate) fn go_on(&self) {
        for ring in &self.rings {
            let at = ring.tail.load(Ordering::SeqCst);
            ring.slots[at as usize & (ring.slots.len() - 1)].complete.store(at + 1, Ordering::SeqCst);
        }
    }

    /// Takes all faults that are complete and follow no other.
    pub(crate) fn take(&self) -> Taken {
        let _reading = self.reading.lock().anyway();
        let mut faults = Vec::new();
        let mut all = true;
        for ring in &self.rings {
            let head = ring.head.load(Ordering::SeqCst);
            let mut at = ring.tail.load(Ordering::Relaxed);
            loop {
                let slot = &ring.slots[at as usize & (ring.slots.len() - 1)];
                if slot.complete.load(Ordering::Acquire) != at + 1 {
                    break;
                }
                let word = |index: usize| slot.words[index].load(Ordering::Relaxed);
                faults.push(Recorded {
                    start_ns: word(0),
                    cost_ns: word(1),
                    ip: word(2),
                    address: word(3),
                    page: word(4),
                    object: word(5) >> 32 | (word(6) >> 16 & 0xffff) << 32,
                    tid: word(5) as u32,
                    class: FaultClass::ALL[(word(6) & 0xff) as usize],
                    permissions: Permissions::from_bits((word(6) >> 8) as u8),
                    cluster_pages: (word(6) >> 32) as u32,
                });
                at += 1;
                ring.tail.store(at, Ordering::Release);
            }
            all &= at >= head;
        }
        faults.sort_by_key(|fault| fault.start_ns);
        Taken { faults, lost: self.lost.swap(0, Ordering::Relaxed), all }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(start_ns: u64) -> Recorded {
        Recorded {
            start_ns,
            cost_ns: 1,
            ip: 2,
            address: 3,
            page: 4,
            object: (1 << 48) - 2,
            tid: 5,
            class: FaultClass::Failed,
            permissions: Permissions::READ.with(Permissions::PRIVATE),
            cluster_pages: u32::MAX,
        }
    }

    #[test]
    fn who_is_overtaken_finds_the_room_there_is() {
        let records = Records::new(4).unwrap();
        (0..3).for_each(|start_ns| records.keep(0, &fault(start_ns)));
        assert_eq!(records.take().faults.len(), 3);
        // Begun before any of them was written down, and gone on with since they were read.
        assert!(!records.rings[0].is_full(0) && !records.rings[0].is_full(6) && records.rings[0].is_full(7));
    }

    #[test]
    fn a_full_ring_counts_what_it_loses() {
        let records = Records::new(4).unwrap();
        (0..6).for_each(|start_ns| records.keep(0, &fault(start_ns)));
        let taken = |faults, lost| Taken { faults, lost, all: true };
        assert_eq!(records.take(), taken((0..4).map(fault).collect(), 2));
        records.keep(0, &fault(9));
        assert_eq!(records.take(), taken(vec![fault(9)], 0));
    }
}
