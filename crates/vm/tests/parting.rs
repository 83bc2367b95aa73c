//! Sources that panic when they are dropped, by whichever thread that happens.

mod support;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use prepage_core::PAGE_SIZE;
use prepage_vm::{MapOptions, Source, SourceError, Vm, VmOptions, viewed};

/// A source that panics where a thread of the library drops it.
struct Parting;

impl Source for Parting {
    fn len_bytes(&self) -> u64 {
        64 * PAGE_SIZE
    }

    fn read(&self, _: u64, into: &mut [u8]) -> Result<(), SourceError> {
        into.fill(7);
        Ok(())
    }
}

impl Drop for Parting {
    fn drop(&mut self) {
        let is_of_library = thread::current().name().is_some_and(|name| name.starts_with("prepage-"));
        assert!(!is_of_library, "a source that panics, as it should in this test");
    }
}

#[test]
fn threads_that_others_wait_for_outlive_sources_that_go() {
    let vm = Vm::new(VmOptions::default().free_shadowed_after(Duration::ZERO)).unwrap();
    let zeros = vm.anonymous(PAGE_SIZE).unwrap();
    let snapshot_of = |map: &mut prepage_vm::Map| {
        support::write(map, 0, 1);
        map.snapshot().unwrap()
    };
    // The more maps there are the longer is looked.
    let idle: Vec<_> = (0..500)
        .map(|_| {
            let mut map = vm.map(&zeros, &MapOptions::private()).unwrap();
            (snapshot_of(&mut map), map)
        })
        .collect();
    let own = viewed::sockets().unwrap().into_iter().find(|socket| socket.pid() == std::process::id());
    let own = own.expect("it is shown");
    let (stop, asked) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let object = vm.source("parting", Parting).unwrap();
                    let mut map = vm.map(&object, &MapOptions::private()).unwrap();
                    drop((snapshot_of(&mut map), object));
                }
            });
        }
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(3) && own.ask(Duration::from_secs(10)).is_ok() {
            asked.fetch_add(1, Ordering::Relaxed);
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(own.ask(Duration::from_secs(30)).is_ok(), "after {asked:?} answers");
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let names = threads
        .map(|thread| std::fs::read_to_string(thread.unwrap().path().join("comm")).unwrap_or_default());
    assert!(
        names.into_iter().any(|name| name.starts_with("prepage-shadow")),
        "nobody frees what is shadowed"
    );
    drop(idle);
}
