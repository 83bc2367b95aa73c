//! What a prefetch has to say of itself: on `prepage run -v`, beside the program, once.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use prepage_core::profile::Profile;
use prepage_core::profile::bounds::LeftOut;
use prepage_core::profile::observation::Observation;
use prepage_core::quantity::counted;
use prepage_sys::sync::Anyway;

use crate::engine::Prefetched;
use prepage_profiles::identity::Skipped;

/// Files named in one message; of more, the number is told.
const NAMED: usize = 5;

/// How long the threads of a start that is over are given at most to say what they did: they end after the read that they are at, and where a
/// file system does not answer, whoever reads the stream to its end does not wait for that.
const OTHERS_WAIT: Duration = Duration::from_millis(100);

/// Who wants to know. Told once, the stream is let go: whoever reads it to its end must not wait for a prefetch.
///
/// Threads have clones. The process ends soon after the first one is dropped, which therefore waits for a moment until the clones have said what
/// they have to say, or are dropped: a program may have ended before they got round to it.
#[derive(Debug)]
pub struct Listener {
    shared: Arc<Shared>,
    is_kept: bool,
    /// How long it waits for the others: not at all if it is a clone.
    others_wait: Duration,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Notified when the stream was let go, or a listener was dropped.
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// Written to without the lock: a full pipe holds up its writer alone.
    stream: Option<Arc<File>>,
    /// How many listeners there are.
    listeners: usize,
}

impl Listener {
    /// The stream `to`, or nobody.
    pub fn to(to: Option<OwnedFd>) -> Self {
        let state = State { stream: to.map(File::from).map(Arc::new), listeners: 1 };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        Self { shared, is_kept: false, others_wait: OTHERS_WAIT }
    }

    pub fn is_heard(&self) -> bool {
        self.shared.state.lock().anyway().stream.is_some()
    }

    /// Says `text` in one write, so that the program's own lines stay whole, and lets the stream go.
    pub fn say(&self, text: &str) {
        self.note(text);
        if !self.is_kept {
            self.shared.state.lock().anyway().stream.take();
            self.shared.changed.notify_all();
        }
    }

    /// Says `text`, and keeps the stream: more is to come.
    pub fn note(&self, text: &str) {
        let stream = self.shared.state.lock().anyway().stream.clone();
        if let Some(stream) = stream {
            // Nobody may read it any more.
            let _ = (&*stream).write_all(format!("prepage: {text}\n").as_bytes());
        }
    }

    /// For somebody who says one thing of several: the stream is kept.
    pub fn kept(&self) -> Self {
        let mut kept = self.clone();
        kept.is_kept = true;
        kept
    }
}

impl Clone for Listener {
    fn clone(&self) -> Self {
        self.shared.state.lock().anyway().listeners += 1;
        Self { shared: Arc::clone(&self.shared), is_kept: self.is_kept, others_wait: Duration::ZERO }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock().anyway();
        if !self.others_wait.is_zero() {
            let waits = |state: &mut State| state.stream.is_some() && state.listeners > 1;
            let waited = self.shared.changed.wait_timeout_while(state, self.others_wait, waits);
            (state, _) = waited.anyway();
        }
        state.listeners -= 1;
        drop(state);
        self.shared.changed.notify_all();
    }
}

/// What of `profile` was left out: `cut` before its reads were planned, and files that turned out to be others.
pub fn left_out(profile: &Profile, skipped: &[(usize, Skipped)], cut: &[LeftOut]) -> Vec<(String, String)> {
    let cut = cut.iter().map(|left| (left.path.clone(), left.reason.to_owned()));
    let skipped = skipped.iter().map(|&(at, why)| {
        (profile.files.get(at).map_or(String::new(), |file| file.path.clone()), why.to_string())
    });
    cut.chain(skipped).collect()
}

/// One line: what was asked for, and what was left out and why.
pub fn account(profile: &Profile, outcome: &Prefetched, left: &[(String, String)]) -> String {
    let megabytes = outcome.requested_bytes as f64 / 1e6;
    let files = profile.files.len() - outcome.skipped.len().min(profile.files.len());
    let short = if outcome.memory_was_short { "; ended early, for memory got short" } else { "" };
    let kept_out = match outcome.left_out_bytes {
        0 => String::new(),
        bytes => format!("; {:.1} MB left out, for little memory is left", bytes as f64 / 1e6),
    };
    with_left_out(
        &format!("prefetched {megabytes:.1} MB of {}{kept_out}{short}", counted(files, "file")),
        left,
    )
}

/// One line: what an observed start was seen to use, and what could not be seen.
pub fn observed(observation: &Observation) -> String {
    let pages: u64 = observation.files.iter().flat_map(|file| &file.pages).map(|used| used.range.len()).sum();
    let (files, names) = (counted(observation.files.len(), "file"), counted(observation.names.len(), "name"));
    let unseen = match &observation.unseen[..] {
        [] => String::new(),
        unseen => format!("; not seen: {}", unseen.join("; ")),
    };
    format!("observed {} of {files}, {names}{unseen}", counted(pages as usize, "page"))
}

/// `text`, and what was left out and why.
pub fn with_left_out(text: &str, left: &[(String, String)]) -> String {
    if left.is_empty() {
        return text.to_owned();
    }
    let named = left.iter().take(NAMED).map(|(path, why)| match path.as_str() {
        "" => why.clone(),
        path => format!("{} ({why})", path.escape_debug()),
    });
    let more = if left.len() > NAMED { format!(" and {} more", left.len() - NAMED) } else { String::new() };
    format!("{text}; left out: {}{more}", named.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn much_that_was_left_out_is_still_one_line() {
        let outcome = Prefetched { requested_bytes: 2_500_000, ..Prefetched::default() };
        let left: Vec<_> = (0..8).map(|at| (format!("/a\n{at}"), "why".to_owned())).collect();
        let line = account(&Profile::default(), &outcome, &left);
        assert_eq!(line.lines().count(), 1);
        assert!(line.starts_with("prefetched 2.5 MB of 0 files; left out: /a\\n0 (why), "), "{line}");
        assert!(line.ends_with("and 3 more"), "{line}");
    }

    /// When the first listener is dropped, the process ends.
    #[test]
    fn what_a_thread_has_still_to_say_is_waited_for() {
        for is_kept in [true, false] {
            let (mut read, write) = std::io::pipe().unwrap();
            let mut listener = Listener::to(Some(write.into()));
            listener.others_wait = Duration::from_secs(60);
            let others = if is_kept { listener.kept() } else { listener.clone() };
            // One that has nothing to say.
            let silent = listener.clone();
            let (go, gone) = std::sync::mpsc::channel::<()>();
            let thread = std::thread::spawn(move || {
                let _ = gone.recv();
                std::thread::sleep(Duration::from_millis(20));
                drop(silent);
                others.say("late");
                drop(others);
                // Not before it is known what had been said by the time at which the process would have ended.
                let _ = gone.recv();
            });
            go.send(()).unwrap();
            drop(listener);
            let mut heard = [0; 64];
            rustix::io::ioctl_fionbio(&read, true).unwrap();
            let len = std::io::Read::read(&mut read, &mut heard).unwrap();
            assert_eq!(&heard[..len], b"prepage: late\n");
            drop(go);
            thread.join().unwrap();
        }
    }

    #[test]
    fn who_says_nothing_is_not_waited_for_long_and_nobody_where_nobody_listens() {
        let (_read, write) = std::io::pipe().unwrap();
        for to in [Some(write.into()), None] {
            let is_heard = to.is_some();
            let mut listener = Listener::to(to);
            let _silent = listener.clone();
            listener.others_wait = Duration::from_millis(if is_heard { 1 } else { 1 << 40 });
            drop(listener);
        }
    }

    #[test]
    fn the_stream_is_let_go_after_the_last_line() {
        let (mut read, write) = std::io::pipe().unwrap();
        let listener = Listener::to(Some(write.into()));
        assert!(listener.is_heard());
        listener.kept().say("one of several");
        assert!(listener.is_heard());
        listener.say("first");
        listener.say("second");
        assert!(!listener.is_heard());
        let mut heard = String::new();
        std::io::Read::read_to_string(&mut read, &mut heard).unwrap();
        assert_eq!(heard, "prepage: one of several\nprepage: first\n");
    }
}
