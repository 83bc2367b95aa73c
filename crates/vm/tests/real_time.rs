//! A thread that is scheduled in real time beside others on one processor. They get it only while that thread sleeps: one that yields instead
//! would wait for them until the kernel takes the processor away from it, which it does for 50 ms in a second.

mod support;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use prepage_core::PAGE_SIZE;
use prepage_sys::{processor_time, scheduling};
use prepage_testing::{Need, unless_late, unless_refused};
use prepage_vm::{Map, MapOptions, Object, Source, SourceError, Vm, VmOptions};
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
use support::{Stop, Words, modes, pages, random, touch, word, write};

const PAGES: u64 = 256;
const READ: Duration = Duration::from_millis(2);

/// How long `work` took a thread in real time, and for how long of that it had the processor, beside another thread there that does `others` again and again.
/// `None` where threads cannot be scheduled so.
fn in_real_time(work: impl FnOnce() + Send, mut others: impl FnMut() + Send) -> Option<[Duration; 2]> {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stop = Stop(&is_over);
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                others();
            }
        });
        let refused = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        let in_turn = scope.spawn(move || {
            let _stop = stop;
            unless_refused(scheduling::in_real_time(), Need::RealTime, refused)?;
            let (began, before) = (Instant::now(), processor_time::of_this_thread());
            work();
            Some([began.elapsed(), processor_time::of_this_thread() - before])
        });
        in_turn.join().unwrap()
    })
}

/// All threads that this one starts, those of a VM among them, run on its processor alone.
fn stay_here() {
    let mut here = CpuSet::new();
    here.set(sched_getcpu());
    sched_setaffinity(None, &here).unwrap();
}

fn touch_all(map: &Map) {
    (0..PAGES).for_each(|page| assert_eq!(touch(map, page), word(page * PAGE_SIZE)));
}

fn evict(object: &Object) {
    object.evict(pages(0, PAGES)).unwrap();
}

/// Takes a while for each read.
struct Slow(Words);

impl Source for Slow {
    fn len_bytes(&self) -> u64 {
        self.0.len_bytes()
    }

    fn read(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), SourceError> {
        std::thread::sleep(READ);
        self.0.read(offset_bytes, into)
    }
}

#[test]
fn who_waits_for_a_read_sleeps() {
    unless_late(Duration::from_secs(2), || {
        stay_here();
        let vm = Vm::new(VmOptions::default()).unwrap();
        let source = Slow(Words { len_bytes: PAGES * PAGE_SIZE, ..Words::default() });
        let object = vm.source("slow", source).unwrap();
        for mode in modes(&vm, &object) {
            let map =
                vm.map(&object, &MapOptions::shared().mode(mode).policy("none".parse().unwrap())).unwrap();
            let mut random = random();
            // Both wait for pages that the other one has read.
            let others = || _ = touch(&map, random(PAGES));
            let Some([took, computed]) = in_real_time(|| touch_all(&map), others) else { return };
            assert!(took > READ && 2 * computed < took, "{mode:?}: {computed:?} of {took:?}");
            evict(&object);
        }
    });
}

const ROUNDS: u32 = 300;
/// A round takes a second if the kernel has to take the processor away from who waits.
const ENOUGH: Duration = Duration::from_secs(60);

/// The others run.
fn pause() {
    std::thread::sleep(Duration::from_micros(200));
}

#[test]
fn who_waits_for_threads_that_have_lost_the_processor_sleeps() {
    stay_here();
    let vm = Vm::new(VmOptions::default()).unwrap();
    let file = support::file(PAGES * PAGE_SIZE);
    let object = vm.file(file.path()).unwrap();
    for mode in modes(&vm, &object) {
        let map = vm.map(&object, &MapOptions::shared().mode(mode)).unwrap();
        // Pages that the others are about to map, or to take away, when the processor is taken from them.
        let evicts = || (0..ROUNDS).for_each(|_| (evict(&object), pause()).1);
        let touches = || (0..ROUNDS).for_each(|_| (touch_all(&map), pause()).1);
        let Some([evicting, _]) = in_real_time(evicts, || touch_all(&map)) else { return };
        let Some([touching, _]) = in_real_time(touches, || evict(&object)) else { return };
        assert!(evicting < ENOUGH && touching < ENOUGH, "{mode:?}: {evicting:?}, {touching:?}");
    }
}

#[test]
fn who_writes_to_a_private_map_while_frames_are_unwired_sleeps() {
    stay_here();
    let vm = Vm::new(VmOptions::default()).unwrap();
    let file = support::file(PAGES * PAGE_SIZE);
    let object = vm.file(file.path()).unwrap();
    for mode in modes(&vm, &object) {
        let mut map = vm.map(&object, &MapOptions::private().mode(mode).every_fault()).unwrap();
        let writes = || {
            for round in 0..ROUNDS {
                map.discard(map.window()).unwrap();
                touch_all(&map);
                // The others are about to take the object's pages out of the map when the processor is taken from them.
                pause();
                (0..PAGES).for_each(|page| write(&mut map, page, round.into()));
            }
        };
        let unwires = || _ = object.unwire(pages(0, PAGES)).unwrap();
        let Some([took, _]) = in_real_time(writes, unwires) else { return };
        assert!(took < ENOUGH, "{mode:?}: {took:?}");
    }
}
