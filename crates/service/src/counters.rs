//! What the service has done since it began, in numbers.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use prepage_sys::sync::Anyway;

/// Others than root are told of so many bytes at once ...
const TOLD_BYTES: u64 = 64 << 20;
/// ... and of nothing that is younger.
const TOLD_EVERY: Duration = Duration::from_secs(60);
const ROOT: u32 = 0;

/// By name, with what it counts.
type Counts = Vec<(&'static str, String, u64)>;

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Each only grows.
        #[derive(Debug, Default)]
        pub struct Counters { $($(#[doc = $doc])+ pub $name: Counter,)+ reported: Reported }

        impl Counters {
            /// All of them: name, what it counts, value.
            pub fn all(&self) -> Counts {
                vec![$((stringify!($name), [$($doc),+].join(" ").trim().to_owned(), self.$name.get())),+]
            }
        }
    };
}

counters! {
    /// Files opened to be executed, loaders included; not those of programs that are executed all the time and need nothing, which the kernel passes over.
    execs,
    /// Times that the kernel had no room for more execs; each is followed by a look at all processes.
    lost,
    /// Execs found by such looks.
    rescanned,
    /// Starts of programs that were looked at.
    starts,
    /// Starts whose profile was fetched.
    fetched,
    /// Starts with a profile that were held out: nothing was fetched, to see what fetching gains.
    held_out,
    /// Starts for which was fetched what the program's other roles have in common.
    guessed,
    /// Starts with a profile whose pages were in memory already.
    warm,
    /// Starts that were seen and not looked at: the program was seen to a moment before, is part of another start, or is unknown while nothing can be learned.
    passed,
    /// Starts without a profile, guessed ones included.
    unknown,
    /// Starts that the configuration, the environment or their own prefix leaves alone.
    left_alone,
    /// Starts in containers that were looked at: below another root than the service's.
    in_containers,
    /// Starts in another mount namespace or below another root that were left alone.
    elsewhere,
    /// Of them, those whose program lies on another mount than their root, or has no name there.
    elsewhere_mount,
    /// Of them, those whose root cannot be opened.
    elsewhere_hidden,
    /// Of them, those in containers whose exec was missed.
    elsewhere_missed,
    /// Starts passed over because too many came at once, because looks at their user's take too much of the processor, or because prefetches hold too many files open.
    crowded,
    /// Bytes asked for, guesses included.
    fetched_bytes,
    /// Starts observed.
    observed,
    /// Observations that went into profiles.
    learned,
    /// Observations that are one user's own, and went into that user's profiles if into any.
    private,
    /// Observations that could not be kept.
    not_kept,
    /// Times that the launch log could not be written.
    log_not_written,
    /// Times that what fetching gains could not be written.
    gains_not_written,
    /// Rounds in which names were looked up.
    name_rounds,
    /// Rounds that have begun, those included that are under way or did not come to an end.
    name_rounds_begun,
    /// Programs of which pages were brought in because they were expected.
    predicted,
    /// Bytes brought in for them.
    predicted_bytes,
    /// Starts of such programs.
    predicted_starts,
    /// Of the bytes, those in files that somebody opened.
    predicted_used_bytes,
    /// Of the bytes, those in files that nobody opened.
    predicted_unused_bytes,
    /// Of the unused bytes, those that were sent out again.
    predicted_sent_out_bytes,
    /// Prefetches and starts given up because a file system did not answer.
    hung,
}

impl Counters {
    /// All of them as user `uid` may know them. What is fetched for a start has the size of a profile that everybody may read: who saw each byte as it is
    /// fetched would know what others start, and when. So others than root see numbers of the last minute, and bytes [roughly](roughly_for).
    pub fn all_for(&self, uid: u32) -> Counts {
        if uid == ROOT { self.all() } else { self.reported.at(Instant::now(), || self.all()) }
    }
}

/// `bytes` as user `uid` may know them: in steps of 64 MiB, but for root.
pub fn roughly_for(uid: u32, bytes: u64) -> u64 {
    if uid == ROOT { bytes } else { bytes - bytes % TOLD_BYTES }
}

/// What others than root are told, and since when.
#[derive(Debug, Default)]
struct Reported(Mutex<Option<(Instant, Counts)>>);

impl Reported {
    fn at(&self, now: Instant, all: impl FnOnce() -> Counts) -> Counts {
        let mut told = self.0.lock().anyway();
        let is_old = |since: Instant| now.saturating_duration_since(since) >= TOLD_EVERY;
        if told.as_ref().is_none_or(|(since, _)| is_old(*since)) {
            let mut all = all();
            for (_, _, bytes) in all.iter_mut().filter(|(name, ..)| name.ends_with("_bytes")) {
                *bytes = roughly_for(u32::MAX, *bytes);
            }
            *told = Some((now, all));
        }
        told.as_ref().map_or_else(Vec::new, |(_, all)| all.clone())
    }
}

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// One more.
    pub fn count(&self) {
        self.add(1);
    }

    /// So many more.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// How many.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Profiles of programs are smaller by far, and hardly two are equally large.
    #[test]
    fn others_than_root_do_not_see_what_is_fetched_for_a_start_when_it_is() {
        let counters = Counters::default();
        let told = |name: &str, after_s: u64, began: Instant| {
            let all = counters.reported.at(began + Duration::from_secs(after_s), || counters.all());
            all.into_iter().find(|(other, ..)| *other == name).unwrap().2
        };
        let began = Instant::now();
        counters.fetched_bytes.add(TOLD_BYTES + 4096);
        assert_eq!((told("fetched_bytes", 0, began), told("fetched", 0, began)), (TOLD_BYTES, 0));
        counters.fetched_bytes.add(2 * TOLD_BYTES);
        counters.fetched.count();
        assert_eq!((told("fetched_bytes", 59, began), told("fetched", 59, began)), (TOLD_BYTES, 0));
        assert_eq!((told("fetched_bytes", 60, began), told("fetched", 60, began)), (3 * TOLD_BYTES, 1));
        let bytes =
            |uid: u32| counters.all_for(uid).into_iter().find(|one| one.0 == "fetched_bytes").unwrap().2;
        assert_eq!((bytes(ROOT), bytes(7)), (3 * TOLD_BYTES + 4096, 3 * TOLD_BYTES));
        assert_eq!((roughly_for(ROOT, 4096), roughly_for(7, 4096)), (4096, 0));
    }
}
