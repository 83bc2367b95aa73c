//! The fault path under schedulers that try its interleavings: shuttle at random, loom all of a small one.
//!
//! The kernel and the source are modelled: a frame is two words that are written one after the other, so that a frame
//! seen while it is filled, or after it was taken away, shows.

use std::sync::PoisonError;

use prepage_core::{PageIndex, PageRange};

use crate::grace::Grace;
use crate::pages::{Pages, Seen};
use crate::sync::{AtomicU32, Mutex, Ordering};

struct Model {
    pages: Pages,
    grace: Grace,
    frames: Vec<[AtomicU32; 2]>,
    /// Faults that wait for somebody else's fill.
    listed: Mutex<Vec<PageIndex>>,
    served: AtomicU32,
}

/// What a fault's source does.
#[derive(Clone, Copy, PartialEq)]
enum Mood {
    Fine,
    Fails,
}

impl Model {
    fn new(count: u64) -> Self {
        Self {
            pages: Pages::new(count).expect("a few words"),
            grace: Grace::default(),
            frames: (0..count).map(|_| [AtomicU32::new(0), AtomicU32::new(0)]).collect(),
            listed: Mutex::new(Vec::new()),
            served: AtomicU32::new(0),
        }
    }

    fn all(&self) -> PageRange {
        PageRange::new(PageIndex(0), PageIndex(self.frames.len() as u64))
    }

    /// As `fault::resolve`; true when the page was seen, false when it failed.
    fn fault(&self, page: PageIndex, mood: Mood) -> bool {
        let mut waited = false;
        loop {
            match self.pages.see(page) {
                Seen::Resident { .. } => {
                    let _section = self.grace.enter(0);
                    if let Some(run) = self.pages.resident_run(page, self.all()) {
                        run.iter().for_each(|page| self.look(page));
                        return true;
                    }
                }
                Seen::Filling => {
                    waited = true;
                    if let Seen::Failed(_) = self.pages.wait(page) {
                        return false;
                    }
                }
                Seen::Failed(_) if waited => return false,
                Seen::Failed(code) => {
                    if let Some(claim) = self.pages.claim_failed(page, code) {
                        self.fill(claim, page, mood);
                        waited = true;
                    }
                }
                Seen::Absent => {
                    if let Some(mut claim) = self.pages.claim(page) {
                        claim.extend(self.all());
                        self.fill(claim, page, mood);
                        waited = true;
                    }
                }
            }
        }
    }

    /// As a handler thread's: does not wait for others.
    fn fault_listed(&self, page: PageIndex) {
        loop {
            if self.pages.see(page) != Seen::Filling {
                self.fault(page, Mood::Fine);
                self.served.fetch_add(1, Ordering::SeqCst);
                return;
            }
            self.listed().push(page);
            if self.pages.list(page) {
                return;
            }
            let mut listed = self.listed();
            match listed.iter().position(|&entry| entry == page) {
                Some(index) => drop(listed.swap_remove(index)),
                None => return,
            }
        }
    }

    fn serve_listed(&self) {
        loop {
            let next = {
                let mut listed = self.listed();
                let ready = listed.iter().position(|&page| !self.pages.list(page));
                ready.map(|index| listed.swap_remove(index))
            };
            let Some(page) = next else { return };
            self.fault_listed(page);
        }
    }

    fn fill(&self, mut claim: crate::pages::Claim<'_>, needed: PageIndex, mood: Mood) {
        let mut told = crate::pages::Told::default();
        if mood == Mood::Fails {
            told.listed |= claim.narrow(PageRange::new(needed, PageIndex(needed.0 + 1))).listed;
            told.listed |= claim.fail(9).listed;
        } else {
            let range = claim.range();
            for page in range.iter() {
                let frame = &self.frames[page.0 as usize];
                assert_eq!(frame[1].load(Ordering::SeqCst), 0, "a frame is filled once");
                frame[0].store(7, Ordering::SeqCst);
                frame[1].store(7, Ordering::SeqCst);
            }
            told.listed |= claim.publish(range.len(), None).listed;
        }
        if told.listed {
            self.serve_listed();
        }
    }

    fn evict(&self, range: PageRange) {
        let Some(mut claim) = self.pages.claim_resident(range.start(), range.end()) else { return };
        self.grace.wait();
        let run = claim.range();
        for page in run.iter() {
            let frame = &self.frames[page.0 as usize];
            frame[0].store(0, Ordering::SeqCst);
            frame[1].store(0, Ordering::SeqCst);
        }
        if claim.release(run.len()).listed {
            self.serve_listed();
        }
    }

    /// What a mapping of the frame would show.
    fn look(&self, page: PageIndex) {
        let frame = &self.frames[page.0 as usize];
        let seen = [frame[0].load(Ordering::SeqCst), frame[1].load(Ordering::SeqCst)];
        assert_eq!(seen, [7, 7], "mapped while it is filled or taken away");
    }

    fn listed(&self) -> impl std::ops::DerefMut<Target = Vec<PageIndex>> + '_ {
        self.listed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(feature = "shuttle")]
mod shuttle_tests {
    use shuttle::sync::Arc;
    use shuttle::thread;

    use super::*;

    #[test]
    fn faults_fills_failures_and_evictions_agree() {
        shuttle::check_random(
            || {
                let model = Arc::new(Model::new(3));
                let start = |work: fn(&Model)| {
                    let model = Arc::clone(&model);
                    thread::spawn(move || work(&model))
                };
                let threads = [
                    start(|model| assert!(model.fault(PageIndex(1), Mood::Fine) || model.fails(1))),
                    start(|model| {
                        model.fault(PageIndex(1), Mood::Fails);
                        model.fault(PageIndex(2), Mood::Fine);
                    }),
                    start(|model| model.evict(model.all())),
                    start(|model| model.fault_listed(PageIndex(1))),
                ];
                threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
                assert_eq!(model.listed().len(), 0, "a listed fault was forgotten");
                assert_eq!(model.served.load(Ordering::SeqCst), 1);
                assert!(model.fault(PageIndex(1), Mood::Fine), "a failed page can be tried again");
            },
            20_000,
        );
    }

    impl Model {
        /// Whether somebody else's failure may have been told to a fault on this page.
        fn fails(&self, page: u64) -> bool {
            page == 1
        }
    }
}

#[cfg(all(feature = "loom", not(feature = "shuttle")))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    #[test]
    fn one_claims_and_the_other_wakes() {
        loom::model(|| {
            let model = Arc::new(Model::new(1));
            let other = Arc::clone(&model);
            let thread = thread::spawn(move || other.fault(PageIndex(0), Mood::Fine));
            assert!(model.fault(PageIndex(0), Mood::Fine));
            assert!(thread.join().expect("no panic"));
        });
    }

    #[test]
    fn a_frame_goes_only_when_nobody_maps_it() {
        let mut bounded = loom::model::Builder::new();
        bounded.preemption_bound = Some(3);
        bounded.check(|| {
            let model = Arc::new(Model::new(1));
            assert!(model.fault(PageIndex(0), Mood::Fine));
            let other = Arc::clone(&model);
            let thread = thread::spawn(move || other.fault(PageIndex(0), Mood::Fine));
            model.evict(model.all());
            assert!(thread.join().expect("no panic"));
        });
    }

    #[test]
    fn a_mark_and_a_listing_have_one_taker() {
        loom::model(|| {
            let model = Arc::new(Model::new(1));
            let mut claim = model.pages.claim(PageIndex(0)).expect("absent");
            let other = Arc::clone(&model);
            let thread = thread::spawn(move || other.pages.list(PageIndex(0)));
            let told = claim.publish(1, Some(PageIndex(0)));
            assert_eq!(
                thread.join().expect("no panic"),
                told.listed,
                "told exactly when somebody was listed"
            );
            let other = Arc::clone(&model);
            let thread = thread::spawn(move || other.pages.take_mark(PageIndex(0)));
            let here = model.pages.take_mark(PageIndex(0));
            assert!(here != thread.join().expect("no panic"), "one of the two");
        });
    }
}
