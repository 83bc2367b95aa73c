//! Sources that answer requests by a thread of their own: the one that is needed most first, each once it looks at it, and late, after asking for
//! patience, or never where nobody needs it any more. One of them has a deadline, which some of its reads miss.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use prepage_core::random::SplitMix as Random;
use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_vm::{
    AccessError, Advice, Map, MapOptions, Mode, Object, Pool, Reason, Request, Source, SourceError, Vm,
    VmOptions,
};

use super::{PAGES, check, fill};

/// The deadline, and what misses it.
const DEADLINE: Duration = Duration::from_millis(100);
const LATE: Duration = Duration::from_millis(150);
/// One request in so many is late, or tried again. A read fails that is to be tried again seven times in a row: that is not to happen.
const SELDOM: u64 = 97;

/// Requests that nobody needed any more, and reads that came too late.
pub static UNNEEDED: AtomicU64 = AtomicU64::new(0);
pub static TOO_LATE: AtomicU64 = AtomicU64::new(0);

/// Hands its requests to the thread that answers them, which ends with it.
struct Asked(Sender<Request>);

impl Source for Asked {
    fn len_bytes(&self) -> u64 {
        PAGES * PAGE_SIZE
    }

    fn grain_bytes(&self) -> u64 {
        8 * PAGE_SIZE
    }

    fn begin(&self, request: Request) {
        self.0.send(request).expect("who answers ends last");
    }
}

fn answer(requests: &Receiver<Request>, is_late: bool) {
    let mut random = Random::new(1 << 40);
    let mut waiting: Vec<Request> = Vec::new();
    loop {
        match requests.recv_timeout(Duration::from_micros(random.below(200))) {
            Ok(request) => waiting.push(request),
            Err(RecvTimeoutError::Disconnected) if waiting.is_empty() => return,
            Err(_) => {}
        }
        let first = (0..waiting.len()).max_by_key(|&index| waiting[index].priority());
        let Some(mut request) = first.map(|index| waiting.swap_remove(index)) else { continue };
        if request.is_cancelled() {
            UNNEEDED.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        match random.below(SELDOM) {
            0 => ask_for_patience(request),
            1 if is_late => {
                thread::sleep(LATE);
                waiting.push(request);
            }
            _ => {
                fill(request.offset_bytes(), request.bytes());
                request.complete(Ok(()));
            }
        }
    }
}

fn ask_for_patience(mut request: Request) {
    request.bytes().fill(0xbb);
    request.complete(Err(SourceError::Again));
}

/// An object of such a source in `vm`.
pub fn object(vm: &Vm, is_late: bool) -> Object {
    let (send, requests) = channel();
    thread::spawn(move || answer(&requests, is_late));
    vm.source("asked", Asked(send)).expect("a small object")
}

/// A VM whose reads have a deadline.
pub fn late_vm(pool: &Pool) -> Vm {
    Vm::new(VmOptions::default().explain(false).pool(pool).read_deadline(DEADLINE)).expect("a VM")
}

/// Touches pages of `object`, of which others are read ahead for a map that goes before they come.
pub fn step(vm: &Vm, object: &Object, is_late: bool, options: MapOptions, random: &mut Random) {
    let some = |random: &mut Random| {
        let start = random.below(PAGES);
        PageRange::new(PageIndex(start), PageIndex((start + 1 + random.below(256)).min(PAGES)))
    };
    // A touch of a map of handler mode that fails fails again, and in inline mode raises a signal.
    let options = if is_late { options.mode(Mode::Inline) } else { options };
    let map = vm.map(object, &options).expect("a map");
    for _ in 0..16 {
        let ahead = vm.map(object, &MapOptions::shared()).expect("a map");
        let range = some(random);
        ahead.advise(Advice::WillNeed(range)).expect("a range within");
        if random.below(2) == 0 {
            drop(ahead);
        }
        for _ in 0..4 {
            let page = range.start().0 + random.below(range.len());
            if is_late { copy(&map, page) } else { check(&map, page, false) }
        }
        match map.populate(some(random)) {
            Err(error) if is_late => assert_late(&error),
            populated => populated.expect("good pages"),
        }
        object.evict(some(random)).expect("holes can be punched");
    }
}

fn copy(map: &Map, page: u64) {
    let (mut bytes, mut expected) = ([0; PAGE_SIZE as usize], [0; PAGE_SIZE as usize]);
    fill(page * PAGE_SIZE, &mut expected);
    match map.read_at(page * PAGE_SIZE, &mut bytes) {
        Ok(()) => assert!(bytes == expected, "wrong bytes in page {page}"),
        Err(error) => assert_late(&error),
    }
}

/// A read fails for being late alone, or for having waited as long for frames.
fn assert_late(error: &AccessError) {
    let AccessError::Unavailable { reason, .. } = error else { panic!("{error}") };
    assert!(matches!(reason, Reason::TimedOut | Reason::NoFrames), "{error}");
    TOO_LATE.fetch_add(1, Ordering::Relaxed);
}
