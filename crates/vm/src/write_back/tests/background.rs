//! What is written behind everybody's back, and what of it is slow.

use super::*;

#[test]
fn a_write_that_hangs_holds_up_no_other_file_in_the_background() {
    let vm = quiet(VmOptions::default());
    let (file, home, hanging, map) = failing_of(&vm, PAGES);
    let (_other_file, _other_home, other, other_map) = failing_of(&vm, PAGES);
    let writer = &vm.core.writer;
    let hangs = home.writes.lock().unwrap();
    for object in [&hanging, &other] {
        writer.enter(&object.core, Duration::from_millis(5)).unwrap();
    }
    map.write_at(0, &[1]).unwrap();
    other_map.write_at(0, &[1]).unwrap();
    assert!(is_clean_soon(&other));
    // Also while the first is known to hang.
    other_map.write_at(0, &[2]).unwrap();
    assert!(is_clean_soon(&other));
    map.write_at(PAGE_SIZE, &[3]).unwrap();
    assert_eq!(hanging.dirty_pages(), 2);
    drop(hangs);
    assert!(is_clean_soon(&hanging), "it is called once the write has ended");
    assert_eq!(std::fs::read(file.path()).unwrap()[PAGE_SIZE as usize], 3);
}

#[test]
fn a_slow_file_holds_up_no_other_in_the_background() {
    const MANY: u64 = 2 * BATCH_PAGES as u64;
    let vm = quiet(VmOptions::default());
    let (_file, home, slow, map) = failing_of(&vm, MANY);
    let (_other_file, other_home, other, other_map) = failing_of(&vm, PAGES);
    map.write_at(0, &vec![1; (MANY * PAGE_SIZE) as usize]).unwrap();
    other_map.write_at(0, &[1]).unwrap();
    for object in [&slow, &other] {
        vm.core.writer.enter(&object.core, Duration::from_secs(1 << 20)).unwrap();
    }
    let mut cleaner = Cleaner::default();
    // More than once where a busy machine takes it to hang.
    while slow.dirty_pages() + other.dirty_pages() > 0 {
        vm.core.writer.write(&mut cleaner);
    }
    let last = |home: &Failing| home.last.load(Ordering::SeqCst);
    assert!(last(&other_home) < last(&home), "it waited for all of the slow one");
}

/// As a server that takes 200 ms for each write, and has the file that is written to here and there.
#[test]
fn scattered_pages_of_a_slow_file_hold_up_no_other_in_the_background() {
    const RUNS: u64 = 64;
    let vm = quiet(VmOptions::default());
    let (_file, home, slow, map) = failing_of(&vm, 2 * RUNS);
    let (_other_file, _other_home, other, other_map) = failing_of(&vm, PAGES);
    (0..RUNS).for_each(|run| map.write_at(2 * run * PAGE_SIZE, &[7]).unwrap());
    home.write_ms.store(200, Ordering::SeqCst);
    other_map.write_at(0, &[1]).unwrap();
    for object in [&slow, &other] {
        vm.core.writer.enter(&object.core, Duration::from_millis(5)).unwrap();
    }
    assert!(is_clean_soon(&other));
    let tries = home.tries.load(Ordering::SeqCst);
    assert!(tries < RUNS, "it waited for all that is slow");
    home.write_ms.store(0, Ordering::SeqCst);
    assert!(is_clean_soon(&slow), "it goes on");
}

#[test]
fn scattered_pages_of_a_slow_file_hold_up_reclaim_for_some_seconds() {
    const RUNS: u64 = 256;
    let (_file, home, object, map) = failing_with(VmOptions::default(), 2 * RUNS);
    (0..RUNS).for_each(|run| map.write_at(2 * run * PAGE_SIZE, &[7]).unwrap());
    home.write_ms.store(50, Ordering::SeqCst);
    let reclaimed = object.core.vm.pool.reclaim(RUNS);
    let tries = home.tries.load(Ordering::SeqCst);
    assert!(tries < RUNS, "it waited for all of them");
    assert!(reclaimed < RUNS, "{reclaimed}");
    home.write_ms.store(0, Ordering::SeqCst);
    assert!(soon(|| {
        object.core.vm.pool.reclaim(RUNS);
        object.dirty_pages() == 0
    }));
}

#[test]
fn a_file_whose_turn_comes_late_is_tried_all_the_same() {
    let (_file, _home, object, map) = failing();
    let mut cleaner = Cleaner::default();
    // More than once: a busy machine may take longer than it has.
    let is_tried = (0..3).any(|_| {
        map.write_at(0, &[1]).unwrap();
        let came = cleaner.clean(&object.core, vec![PageIndex(0)], true, Duration::ZERO, Instant::now());
        assert!(soon(|| !object.core.dirty().unwrap().hangs()));
        came.is_some()
    });
    assert!(is_tried);
}

/// Nobody waits any more for what came of that.
#[test]
fn what_was_left_and_is_refused_is_told_of() {
    if !is_child(&this_test()) {
        let output = child(&this_test(), &["timeout", "60"]);
        assert_passed(&output);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said.matches("it is tried again").count(), 1, "{said}");
        return;
    }
    let never = Duration::from_secs(1 << 20);
    let vm = Vm::new(VmOptions::default().explain(true).write_back_after(never)).unwrap();
    let (_file, home, object, map) = failing_of(&vm, PAGES);
    let pages = vec![PageIndex(0), PageIndex(2)];
    pages.iter().for_each(|page| map.write_at(page.offset_bytes(), &[1]).unwrap());
    *home.refused.lock().unwrap() = vec![PageIndex(0)];
    let writes = home.writes.lock().unwrap();
    let came = Cleaner::default().clean(&object.core, pages, true, Duration::ZERO, later());
    drop(writes);
    assert!(came.is_none());
    assert!(soon(|| !object.core.dirty().unwrap().hangs()));
    assert_eq!(object.dirty_pages(), 1);
    home.refused.lock().unwrap().clear();
}

/// The writer would look for it all the time.
#[test]
fn the_writer_rests_while_all_that_is_dirty_is_in_a_flush() {
    let vm = quiet(VmOptions::default());
    let (_file, home, object, map) = failing_of(&vm, PAGES);
    let writer = &vm.core.writer;
    writer.enter(&object.core, Duration::from_secs(1 << 20)).unwrap();
    map.write_at(0, &[1]).unwrap();
    let (frames, dirty) = (object.core.frames().unwrap(), object.core.dirty().unwrap());
    let writes = home.writes.lock().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| object.flush(object.pages()).unwrap());
        while dirty.first(&frames.pages, object.pages()).is_some() {
            std::thread::yield_now();
        }
        let could_all = writer.write(&mut Cleaner::default());
        drop(writes);
        assert!(!could_all);
    });
    assert!(writer.write(&mut Cleaner::default()));
}

#[test]
fn what_hangs_in_the_background_does_not_keep_reclaim_from_writing() {
    let vm = quiet(VmOptions::default());
    let hung = [(); MOST_HUNG].map(|()| failing_of(&vm, PAGES));
    let (_file, _home, object, map) = failing_of(&vm, PAGES);
    let first = || vec![PageIndex(0)];
    let mut background = Cleaner::default();
    let writes = hung.each_ref().map(|(_, home, ..)| home.writes.lock().unwrap());
    for (_, _, object, map) in &hung {
        map.write_at(0, &[1]).unwrap();
        assert!(background.clean(&object.core, first(), true, Duration::ZERO, later()).is_none());
    }
    map.write_at(0, &[1]).unwrap();
    let came = background.clean(&object.core, first(), true, Duration::ZERO, later());
    assert!(came.is_none() && !object.core.dirty().unwrap().hangs(), "it has as many threads as it may");
    // A write of its own that takes long it gives up.
    assert!(soon(|| vm.core.pool.reclaim(PAGES * 9) > 0));
    assert!(is_clean_soon(&object));
    drop(writes);
    assert!(hung.iter().all(|(_, _, object, _)| is_clean_soon(object)));
    // Nor itself, once they are done.
    map.write_at(0, &[2]).unwrap();
    assert!(soon(|| background.clean(&object.core, first(), true, Duration::ZERO, later()).is_some()));
}

/// Without it a thread would do nothing else, and say so each time.
#[test]
fn what_cannot_be_written_is_tried_again_after_a_pause() {
    let (_file, home, object, map) = failing();
    home.writes_fail.store(true, Ordering::SeqCst);
    let began = Instant::now();
    object.core.vm.writer.enter(&object.core, Duration::ZERO).unwrap();
    map.write_at(0, &[1]).unwrap();
    let failed = || object.core.vm.figures.counted().write_backs_failed;
    while failed() < 2 {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(began.elapsed() >= Duration::from_secs(1));
    home.writes_fail.store(false, Ordering::SeqCst);
    assert!(is_clean_soon(&object));
}
