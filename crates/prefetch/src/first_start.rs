//! The first start of a program: nothing was learned yet, but its files may have brought page maps.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::account::account;
use crate::engine::{Engine, Prefetched, device_of};
use crate::memory::Budget;
use prepage_profiles::Stores;
use prepage_profiles::carried::{FoundMaps, Search};
use prepage_profiles::sidecar::Sidecars;
use prepage_sys::scheduling;

/// Prefetches what the page maps of `program` and of its libraries name, with some of so many `threads` to spare, until `over` is set: each thread
/// ends after the read it is at then. This one gives way from here on. Returns what is to be said of it.
pub fn prefetch(program: &Path, stores: &Stores, threads: u32, over: &Arc<AtomicBool>) -> String {
    // Most libraries bring no map, and the program that starts wants the processors. Where that is refused, they share them.
    let _ = scheduling::leave_at_once();
    let (sidecars, refused) = Sidecars::of(stores);
    let mut left: Vec<(String, String)> =
        refused.iter().map(|refused| (String::new(), refused.to_string())).collect();
    let (search, own) = Search::of_program(program, sidecars);
    let mut total = Prefetched::default();
    let mut all = FoundMaps::default();
    // The program's own pages need not wait for its libraries to be looked at.
    std::thread::scope(|scope| {
        let first = (!own.files.is_empty())
            .then(|| std::thread::Builder::new().spawn_scoped(scope, || bring_in(&own, program, over)));
        if !over.load(Ordering::Relaxed) {
            all = search.libraries(threads, &|| !over.load(Ordering::Relaxed));
            total = bring_in(&all, program, over);
        }
        // Where no thread can be started, the program's own pages come last instead of not at all.
        let first = match first {
            Some(Ok(first)) => first.join().unwrap_or_default(),
            _ => bring_in(&own, program, over),
        };
        total.requested_bytes += first.requested_bytes;
        total.left_out_bytes += first.left_out_bytes;
        total.memory_was_short |= first.memory_was_short;
    });
    all.files.extend(own.files);
    all.left.extend(own.left);
    left.extend(
        all.left
            .iter()
            .map(|(path, why)| (path.to_string_lossy().into_owned(), prepage_profiles::chain(why))),
    );
    if all.files.is_empty() && left.is_empty() {
        return "no page maps came with the program or its libraries: nothing prefetched".into();
    }
    format!("page maps: {}", account(&all.profile(program), &total, &left))
}

fn bring_in(found: &FoundMaps, program: &Path, over: &Arc<AtomicBool>) -> Prefetched {
    if found.files.is_empty() {
        return Prefetched::default();
    }
    let profile = found.profile(program);
    let mut engine = Engine::new(profile.clone(), &device_of(&profile));
    engine.keep_within(Budget::of_process());
    let over = over.clone();
    engine.ask_before_reads(Box::new(move || !over.load(Ordering::Relaxed)));
    if engine.is_warm() { Prefetched::default() } else { engine.run() }
}
