//! What the service has done since it began, in numbers.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Each only grows.
        #[derive(Debug, Default)]
        pub struct Counters { $($(#[doc = $doc])+ pub $name: Counter,)+ }

        impl Counters {
            /// All of them: name, what it counts, value.
            pub fn all(&self) -> Vec<(&'static str, String, u64)> {
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
