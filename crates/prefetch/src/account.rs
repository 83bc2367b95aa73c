//! What a prefetch has to say of itself: on `prepage run -v`, beside the program, once.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use prepage_core::profile::Profile;
use prepage_core::profile::bounds::LeftOut;
use prepage_core::profile::observation::Observation;
use prepage_core::quantity::counted;

use crate::engine::Prefetched;
use prepage_profiles::identity::Skipped;

/// Files named in one message; of more, the number is told.
const NAMED: usize = 5;

/// Who wants to know. Told once, the stream is let go: whoever reads it to its end must not wait for a prefetch.
#[derive(Clone, Debug)]
pub struct Listener {
    stream: Arc<Mutex<Option<File>>>,
    is_kept: bool,
}

impl Listener {
    /// The stream `to`, or nobody.
    pub fn to(to: Option<OwnedFd>) -> Self {
        Self { stream: Arc::new(Mutex::new(to.map(File::from))), is_kept: false }
    }

    /// Whether anybody still listens.
    pub fn is_heard(&self) -> bool {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Says `text` in one write, so that the program's own lines stay whole, and lets the stream go.
    pub fn say(&self, text: &str) {
        self.note(text);
        if !self.is_kept {
            self.stream.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
    }

    /// Says `text`, and keeps the stream: more is to come.
    pub fn note(&self, text: &str) {
        if let Some(stream) = self.stream.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            // Nobody may read it any more.
            let _ = stream.write_all(format!("prepage: {text}\n").as_bytes());
        }
    }

    /// For somebody who says one thing of several: the stream is kept.
    pub fn kept(&self) -> Self {
        Self { is_kept: true, ..self.clone() }
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
    with_left_out(&format!("prefetched {megabytes:.1} MB of {}{short}", counted(files, "file")), left)
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
