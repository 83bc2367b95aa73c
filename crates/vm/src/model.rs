//! The fault path under schedulers that try its interleavings: shuttle at random, all of it; loom every schedule of the
//! words and the sections alone.
//!
//! Under shuttle everything is as it is in a program, and on the real kernel, but for who touches: a thread here looks at
//! the page table and calls what a signal handler or a handler thread would call.

#[cfg(feature = "shuttle")]
mod whole_path {
    use std::os::unix::fs::FileExt;

    use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
    use prepage_sys::region::{is_present, try_copy};
    use prepage_sys::sigbus::{BusFault, Verdict};
    use prepage_sys::signals::Endings;
    use prepage_sys::userfaultfd::Message;
    use shuttle::sync::Arc;
    use shuttle::sync::atomic::{AtomicU32, Ordering};
    use shuttle::thread;

    use crate::{Advice, Map, MapOptions, Mode, Object, Source, SourceError, Vm, VmOptions, handler, inline};

    const PAGES: u64 = 4;

    /// Gives each page its number, a half at a time; fails as often as it is told.
    struct Halves {
        failures: AtomicU32,
    }

    fn byte(page: u64) -> u8 {
        page as u8 + 1
    }

    impl Source for Halves {
        fn len_bytes(&self) -> u64 {
            PAGES * PAGE_SIZE
        }

        fn read(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), SourceError> {
            for (page, bytes) in (offset_bytes / PAGE_SIZE..).zip(into.chunks_mut(PAGE_SIZE as usize)) {
                let (first, second) = bytes.split_at_mut(2048);
                first.fill(byte(page));
                thread::yield_now();
                second.fill(byte(page));
            }
            match self.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)) {
                Ok(_) => Err(SourceError::Other("as it should in this test".to_owned())),
                Err(_) => Ok(()),
            }
        }
    }

    fn check(address: u64, page: u64) {
        let mut bytes = [0; PAGE_SIZE as usize];
        assert_eq!(try_copy(address, &mut bytes).unwrap(), bytes.len());
        assert!(bytes.iter().all(|&found| found == byte(page)), "page {page} shows {:?}", &bytes[..4]);
    }

    /// As a program's touch in inline mode; false where it ends in SIGBUS.
    fn touch_inline(map: &Map, page: u64) -> bool {
        // No other thread of the model runs between the last look and the next.
        let came = bring_inline(map, page);
        if came {
            check(map.address() + page * PAGE_SIZE, page);
        }
        came
    }

    fn bring_inline(map: &Map, page: u64) -> bool {
        let address = map.address() + page * PAGE_SIZE;
        loop {
            if is_present(address).unwrap() {
                return true;
            }
            let fault = BusFault {
                address,
                ip: 0,
                write: Some(false),
                protected: false,
                endings: Endings::default(),
            };
            match inline::serve(map.core.space.addresses, &fault) {
                Verdict::Resolved => {}
                Verdict::Failed => return false,
                Verdict::NotOurs => panic!("the map is there"),
            }
        }
    }

    /// As a program's touch in handler mode by thread `tid`, which has no other fault.
    fn touch_by_handler(vm: &Vm, map: &Map, page: u64, tid: u32) -> bool {
        let address = map.address() + page * PAGE_SIZE;
        loop {
            if is_present(address).unwrap() {
                check(address, page);
                return true;
            }
            handler::serve_message(
                &map.core.space,
                &Message { address, tid, write: false, protected: false },
            );
            // Until the fault is recorded: nobody may forget it.
            let recorded = loop {
                let faults = vm.core.records.as_ref().expect("asked for").take().faults;
                match faults.into_iter().find(|fault| fault.tid == tid) {
                    Some(fault) => break fault,
                    None => thread::yield_now(),
                }
            };
            if recorded.cluster_pages == 0 {
                return false;
            }
        }
    }

    fn all() -> PageRange {
        PageRange::new(PageIndex(0), PageIndex(PAGES))
    }

    struct Model {
        vm: Vm,
        object: Object,
        inline: Map,
        by_handler: Map,
    }

    impl Model {
        fn new(policy: &str, failures: u32) -> Arc<Self> {
            Self::limited(policy, failures, u64::MAX)
        }

        fn limited(policy: &str, failures: u32, frame_limit_bytes: u64) -> Arc<Self> {
            let options = VmOptions::default().explain(false).fill_threads(1).record_faults(64);
            let options = options.frame_limit_bytes(frame_limit_bytes);
            let vm = Vm::new(options).unwrap();
            let object = vm.source("halves", Halves { failures: AtomicU32::new(failures) }).unwrap();
            let map = |mode| {
                let options = MapOptions::shared().mode(mode).policy(policy.parse().unwrap());
                vm.map(&object, &options).unwrap()
            };
            let (inline, by_handler) = (map(Mode::Inline), map(Mode::Handler));
            Arc::new(Self { vm, object, inline, by_handler })
        }

        fn run(self: &Arc<Self>, work: &[fn(&Self)]) {
            let threads: Vec<_> = work
                .iter()
                .map(|&work| {
                    let model = Arc::clone(self);
                    thread::spawn(move || work(&model))
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        }

        /// Everything is as it should be once nobody is at work.
        fn end(self: Arc<Self>) {
            let vm = self.vm.clone();
            let Ok(model) = Arc::try_unwrap(self) else { panic!("threads have ended") };
            assert!(vm.core.jobs.listed.lock().unwrap().is_empty(), "a listed fault was forgotten");
            drop((model.inline, model.by_handler));
            while vm.core.pool.core().frames.reserved() != model.object.resident_pages() {
                // Reads ahead end.
                thread::yield_now();
            }
            // What the reclaimer is just taking goes by it. A frame that is lost ends this by the bound on steps.
            while vm.core.pool.core().frames.reserved() != 0 {
                model.object.evict(all()).unwrap();
                thread::yield_now();
            }
        }
    }

    fn random(schedules: usize, body: impl Fn() + Send + Sync + 'static) {
        let mut config = shuttle::Config::new();
        config.stack_size = 1 << 20;
        let scheduler = shuttle::scheduler::RandomScheduler::new(schedules);
        shuttle::Runner::new(scheduler, config).run(body);
    }

    #[test]
    fn model_faults_fills_and_evictions_agree() {
        random(2_000, || {
            let model = Model::new("aligned:4", 0);
            model.run(&[
                |model| assert!(touch_inline(&model.inline, 1)),
                |model| assert!(touch_by_handler(&model.vm, &model.by_handler, 1, 7)),
                |model| _ = model.object.evict(all()).unwrap(),
                |model| model.inline.populate(all()).unwrap(),
            ]);
            model.end();
        });
    }

    #[test]
    fn model_failures_are_told_to_those_who_wait_and_to_no_others() {
        random(1_500, || {
            let model = Model::new("none", 1);
            model.run(&[
                |model| _ = touch_inline(&model.inline, 1),
                |model| _ = touch_by_handler(&model.vm, &model.by_handler, 1, 7),
                |model| _ = model.object.evict(all()).unwrap(),
            ]);
            assert!(touch_inline(&model.inline, 1), "a failed page can be tried again");
            assert!(touch_inline(&model.inline, 2));
            model.end();
        });
    }

    #[test]
    fn model_reads_ahead_agree_with_touches_and_end_with_their_map() {
        random(1_500, || {
            let model = Model::new("none", 0);
            model.run(&[
                |model| model.inline.advise(Advice::WillNeed(all())).unwrap(),
                |model| (0..PAGES).for_each(|page| assert!(touch_inline(&model.inline, page))),
                |model| {
                    let map = model.vm.map(&model.object, &MapOptions::private()).unwrap();
                    map.advise(Advice::WillNeed(all())).unwrap();
                },
                |model| _ = model.object.evict(all()).unwrap(),
            ]);
            model.end();
        });
    }

    #[test]
    fn model_faults_and_the_reclaimer_agree() {
        random(2_000, || {
            let model = Model::limited("none", 0, 2 * PAGE_SIZE);
            model.run(&[
                |model| (0..PAGES).for_each(|page| assert!(touch_inline(&model.inline, page))),
                |model| assert!(touch_by_handler(&model.vm, &model.by_handler, 1, 7)),
                |model| _ = model.object.unwire(all()).unwrap(),
                |model| assert!(touch_inline(&model.inline, 1)),
            ]);
            model.end();
        });
    }

    #[test]
    fn model_what_is_pinned_stays_mapped() {
        random(1_500, || {
            let model = Model::limited("aligned:2", 0, 3 * PAGE_SIZE);
            model.run(&[
                |model| {
                    let range = PageRange::new(PageIndex(1), PageIndex(2));
                    let pinned = model.inline.pin(range).unwrap();
                    assert!(is_present(model.inline.address() + PAGE_SIZE).unwrap());
                    check(model.inline.address() + PAGE_SIZE, 1);
                    thread::yield_now();
                    assert!(is_present(model.inline.address() + PAGE_SIZE).unwrap());
                    drop(pinned);
                },
                |model| _ = model.object.unwire(all()).unwrap(),
                |model| (0..PAGES).for_each(|page| assert!(touch_inline(&model.inline, page))),
                |model| _ = model.object.evict(all()).unwrap(),
            ]);
            model.end();
        });
    }

    /// Where written pages go in a model.
    #[derive(Debug)]
    struct Kept(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

    impl crate::home::Home for Kept {
        fn write(&self, offset_bytes: u64, bytes: &[u8]) -> std::io::Result<()> {
            self.0.lock().unwrap()[offset_bytes as usize..][..bytes.len()].copy_from_slice(bytes);
            thread::yield_now();
            Ok(())
        }

        fn len_bytes(&self) -> std::io::Result<u64> {
            Ok(PAGES * PAGE_SIZE)
        }

        fn sync(&self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl Source for Kept {
        fn len_bytes(&self) -> u64 {
            PAGES * PAGE_SIZE
        }

        fn read(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), SourceError> {
            into.copy_from_slice(&self.0.lock().unwrap()[offset_bytes as usize..][..into.len()]);
            Ok(())
        }
    }

    /// As a program's write of one byte in inline mode.
    fn write_inline(map: &Map, page: u64, value: u8) {
        let address = map.address() + page * PAGE_SIZE;
        loop {
            let mut entry = [prepage_sys::pagemap::PageEntry::default()];
            map.core.vm.page_map().unwrap().entries(address, &mut entry).unwrap();
            if entry[0].is_present() && !entry[0].is_protected() {
                // Of private maps no slice can be written to by several threads.
                let memory = std::fs::File::options().write(true).open("/proc/self/mem").unwrap();
                memory.write_all_at(&[value], address).unwrap();
                return;
            }
            let fault = BusFault {
                address,
                ip: 0,
                write: Some(true),
                protected: entry[0].is_present(),
                endings: Endings::default(),
            };
            assert_eq!(inline::serve(map.core.space.addresses, &fault), Verdict::Resolved);
        }
    }

    #[test]
    fn model_a_write_is_written_back_or_its_page_is_dirty() {
        writes_are_kept(2);
    }

    #[test]
    fn model_a_write_ahead_of_which_pages_are_open_is_kept_too() {
        writes_are_kept(PAGES);
    }

    fn writes_are_kept(limit_pages: u64) {
        random(1_000, move || {
            let options = VmOptions::default().explain(false).fill_threads(1);
            let vm = Vm::new(options.frame_limit_bytes(limit_pages * PAGE_SIZE)).unwrap();
            let bytes = std::sync::Arc::new(std::sync::Mutex::new(vec![0; (PAGES * PAGE_SIZE) as usize]));
            let [source, home] = [(); 2].map(|()| Kept(std::sync::Arc::clone(&bytes)));
            let object = vm.object("kept".to_owned(), PAGES * PAGE_SIZE, None, |len| {
                let source = crate::object::Bytes::Custom(Box::new(source));
                let frames =
                    crate::object::Frames::written(len, source, Box::new(home), vm.core.pool.core())?;
                Ok(crate::object::Contents::Frames(Box::new(frames)))
            });
            let object = object.unwrap();
            let maps = [(); 2]
                .map(|()| vm.map(&object, &MapOptions::writable().policy("none".parse().unwrap())).unwrap());
            // What is in memory is let be written to ahead of its own fault.
            (0..PAGES).for_each(|page| assert!(bring_inline(&maps[0], page)));
            let model = Arc::new((object, maps));
            let works: [fn(&(Object, [Map; 2])); 4] = [
                |(_, maps)| (1..4).for_each(|value| write_inline(&maps[0], 1, value)),
                |(_, maps)| (0..PAGES).for_each(|page| write_inline(&maps[1], page, 9)),
                |(object, _)| (0..2).for_each(|_| object.flush(all()).unwrap()),
                |(object, _)| _ = object.evict(all()).unwrap(),
            ];
            let threads = works.map(|work| {
                let model = Arc::clone(&model);
                thread::spawn(move || work(&model))
            });
            threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
            model.0.flush(all()).unwrap();
            assert_eq!(model.0.dirty_pages(), 0);
            let kept = bytes.lock().unwrap().clone();
            assert!([3, 9].contains(&kept[PAGE_SIZE as usize]), "a write is lost");
            assert!([0, 2, 3].iter().all(|page| kept[page * PAGE_SIZE as usize] == 9));
        });
    }

    #[test]
    fn model_a_page_table_goes_only_when_nothing_is_in_it() {
        random(400, || {
            let vm = Vm::new(VmOptions::default().explain(false).fill_threads(1)).unwrap();
            let zeros = vm.anonymous(2 << 20).unwrap();
            let map = vm.map(&zeros, &MapOptions::private()).unwrap();
            let model = Arc::new((vm, map));
            let works: [fn(&(Vm, Map)); 3] = [
                |(_, map)| (1..3).for_each(|page| write_inline(map, page, byte(page))),
                |(_, map)| write_inline(map, 2, byte(2)),
                |(vm, _)| (0..2).for_each(|_| _ = vm.prune_page_tables().unwrap()),
            ];
            let threads = works.map(|work| {
                let model = Arc::clone(&model);
                thread::spawn(move || work(&model))
            });
            threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
            for page in 1..3 {
                let kept = model.1.as_slice()[(page * PAGE_SIZE) as usize];
                assert_eq!(kept, byte(page), "what was written to page {page} is lost");
            }
        });
    }

    #[test]
    fn model_an_object_is_left_to_the_kernel_only_while_it_is_whole() {
        random(1_500, || {
            let vm = Vm::new(VmOptions::default().explain(false).fill_threads(1)).unwrap();
            let object = vm.source("halves", Halves { failures: AtomicU32::new(0) }).unwrap();
            let first = vm.map(&object, &MapOptions::shared()).unwrap();
            first.populate(all()).unwrap();
            let model = Arc::new((object, first));
            let evicting = Arc::clone(&model);
            // Twice: by then touches may have made it whole again.
            let evictor = thread::spawn(move || (0..2).for_each(|_| _ = evicting.0.evict(all()).unwrap()));
            let map = vm.map(&model.0, &MapOptions::private()).unwrap();
            // What the kernel shows by itself is right at every moment.
            for page in [0, 3, 1, 2, 0] {
                let mut bytes = [0; PAGE_SIZE as usize];
                let address = map.address() + page * PAGE_SIZE;
                if try_copy(address, &mut bytes).unwrap() == 0 {
                    assert!(touch_inline(&map, page));
                } else {
                    check(address, page);
                }
            }
            evictor.join().unwrap();
        });
    }
}

#[cfg(all(feature = "loom", not(feature = "shuttle")))]
mod words_and_sections {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU32, Ordering};
    use loom::thread;
    use prepage_core::{PageIndex, PageRange};
    use prepage_sys::sections::Sections;
    use prepage_sys::signals::Endings;

    use crate::pages::{Pages, Seen};

    const PAGE: PageIndex = PageIndex(0);

    /// One page, and a frame of two words that are written one after the other: one that is seen while it is filled, or
    /// after it was taken away, shows.
    struct Model {
        pages: std::sync::Arc<Pages>,
        sections: Sections,
        frame: [AtomicU32; 2],
    }

    impl Model {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                pages: Pages::new(1).expect("a word"),
                sections: Sections::default(),
                frame: [AtomicU32::new(0), AtomicU32::new(0)],
            })
        }

        fn touch(&self) {
            loop {
                match self.pages.see(PAGE) {
                    Seen::Resident { .. } => {
                        let _section = self.sections.enter(0);
                        if self.pages.resident_run(PAGE, PageRange::new(PAGE, PageIndex(1))).is_some() {
                            let seen = [0, 1].map(|word: usize| self.frame[word].load(Ordering::SeqCst));
                            assert_eq!(seen, [7, 7], "mapped while it is filled or taken away");
                            return;
                        }
                    }
                    Seen::Filling => drop(self.pages.wait(PAGE, Endings::default())),
                    Seen::Absent | Seen::Failed(_) => {
                        if let Some(mut claim) = self.pages.claim(PAGE) {
                            assert_eq!(self.frame[1].load(Ordering::SeqCst), 0, "a frame is filled once");
                            self.frame.iter().for_each(|word| word.store(7, Ordering::SeqCst));
                            let _ = claim.publish(1, None, PAGE);
                        }
                    }
                }
            }
        }

        fn evict(&self) {
            let Some((claim, _)) = self.pages.claim_resident(PAGE, PageIndex(1)) else { return };
            self.sections.wait();
            self.frame.iter().for_each(|word| word.store(0, Ordering::SeqCst));
            let _ = claim.release();
        }
    }

    #[test]
    fn model_one_claims_and_the_other_wakes() {
        loom::model(|| {
            let model = Model::new();
            let other = Arc::clone(&model);
            let thread = thread::spawn(move || other.touch());
            model.touch();
            thread.join().expect("no panic");
        });
    }

    #[test]
    fn model_a_frame_goes_only_when_nobody_maps_it() {
        let mut bounded = loom::model::Builder::new();
        bounded.preemption_bound = Some(3);
        bounded.check(|| {
            let model = Model::new();
            model.touch();
            let other = Arc::clone(&model);
            let thread = thread::spawn(move || other.touch());
            model.evict();
            thread.join().expect("no panic");
        });
    }

    #[test]
    fn model_a_mark_and_a_listing_have_one_taker() {
        loom::model(|| {
            let model = Model::new();
            let mut claim = model.pages.claim(PAGE).expect("absent");
            let other = Arc::clone(&model);
            let thread = thread::spawn(move || other.pages.list(PAGE));
            let told = claim.publish(1, Some(PAGE), PAGE);
            let listed = thread.join().expect("no panic");
            assert_eq!(listed, told.listed, "told exactly when somebody was listed");
            let other = Arc::clone(&model);
            let thread = thread::spawn(move || other.pages.take_mark(PAGE));
            let here = model.pages.take_mark(PAGE);
            assert!(here != thread.join().expect("no panic"), "one of the two");
        });
    }
}
