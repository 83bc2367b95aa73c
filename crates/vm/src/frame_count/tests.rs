use std::sync::atomic::AtomicBool;

use prepage_testing::unless_late;

use super::*;

#[test]
fn the_low_watermark_rises_where_reads_wait_and_falls_where_none_does() {
    unless_late(SILENCE / 2, || {
        let count = FrameCount::new(64 * 256);
        assert_eq!(count.watermarks(), (LEAST_LOW, 2 * LEAST_LOW));
        let after = falls_after(count.limit());
        for expected in [64, 128, 256, 256] {
            wait_once(&count);
            count.fit_low(after);
            assert_eq!(count.watermarks().0, expected);
        }
        // Rounds take few.
        (0..10 * 64).for_each(|_| count.fit_low(after / 64));
        assert!((256 * 2 / 3..256 * 3 / 4).contains(&count.watermarks().0), "{:?}", count.watermarks());
        (0..1000).for_each(|_| count.fit_low(after));
        assert_eq!(count.watermarks().0, LEAST_LOW);
        // The limit may be lowered, and be tiny.
        for (limit, low) in [(1024, 8), (256, 4), (64, 4), (16, 1), (1, 0)] {
            count.set_limit(limit);
            (0..100).for_each(|_| count.fit_low(after));
            assert_eq!(count.watermarks(), (low, 2 * low));
        }
        // And large: then rounds are few.
        assert_eq!(FrameCount::new(1 << 20).watermarks(), (LEAST_LOW, LEAST_LOW + SPARE));
    });
}

/// Somebody finds no frame, and waits until some are taken away.
fn wait_once(count: &FrameCount) {
    assert_eq!(count.reserve(count.limit() - count.reserved()), Reserve::Got);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| count.reserve_or_wait(1, 1, PATIENCE));
        while !count.is_waited_for() {
            std::thread::yield_now();
        }
        count.release(count.wanted());
        assert_eq!(waits.join().unwrap(), (Ok(1), true));
    });
}

/// Frames that are free for the sake of waits long ago hold nothing.
#[test]
fn memory_is_looked_at_once_when_half_of_what_may_be_taken_is_however_little_that_is() {
    for few in [1, 2, 64, 200] {
        let count = FrameCount::new(1 << 20);
        // No step of `AHEAD_STEP` lies in what follows.
        assert_eq!(count.reserve(AHEAD_STEP * 200), Reserve::Got);
        count.set_limit_for_now(count.reserved() + LEAST_LOW + few, true);
        let before = count.calls();
        (0..few.div_ceil(2) - 1).for_each(|_| assert_eq!(count.reserve_ahead(1, 1), Some(1)));
        assert_eq!(count.calls(), before, "{few}");
        while count.reserve_ahead(1, 1).is_some() {}
        assert_eq!(count.calls(), before + 1, "{few}");
    }
    // Many steps lie in this.
    let count = FrameCount::new(1 << 20);
    count.set_limit_for_now(AHEAD_STEP * 200, true);
    let before = count.calls();
    while count.reserved() < AHEAD_STEP * 140 {
        assert_eq!(count.reserve_ahead(16, 16), Some(16));
    }
    assert_eq!(count.calls(), before + 1);
}

#[test]
fn what_a_few_waits_raised_is_down_again_before_half_of_all_frames_was_taken() {
    unless_late(SILENCE / 2, || {
        for limit in [1 << 13, 30_000, 1 << 17] {
            let count = FrameCount::new(limit);
            (0..4).for_each(|_| {
                wait_once(&count);
                count.fit_low(1);
            });
            assert!(count.watermarks().0 >= 4 * LEAST_LOW, "{:?}", count.watermarks());
            let mut taken = 0;
            while taken < limit / 2 {
                // As the reclaimer does: as many as lead from one watermark to the other.
                let (low, high) = count.watermarks();
                count.fit_low(high - low);
                taken += high - low;
            }
            assert!(count.watermarks().0 <= 2 * LEAST_LOW, "of {limit}: {:?}", count.watermarks());
        }
    });
}

#[test]
fn the_reclaimer_rests_only_while_nobody_waits_and_frames_are_free() {
    unless_late(SILENCE / 2, || {
        const LONG: Duration = Duration::from_secs(600);
        let count = FrameCount::new(64 * 256);
        // Two ways to end it: it never begins, or who waits ends it.
        let began = Instant::now();
        assert_eq!(count.reserve(count.limit() - LEAST_LOW / 2 + 1), Reserve::Got);
        count.rest(LONG);
        count.release(LEAST_LOW);
        std::thread::scope(|scope| {
            let rests = scope.spawn(|| count.rest(LONG));
            while count.resting.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            let waits = scope.spawn(|| count.reserve_or_wait(LEAST_LOW * 2, LEAST_LOW * 2, PATIENCE));
            rests.join().unwrap();
            count.rest(LONG);
            count.release(LEAST_LOW * 2);
            assert_eq!(waits.join().unwrap(), (Ok(LEAST_LOW * 2), true));
        });
        assert!(began.elapsed() < LONG);
        count.rest(Duration::from_millis(1));
    });
}

#[test]
fn who_comes_takes_no_frame_of_those_who_wait_longer() {
    let count = FrameCount::new(64);
    assert_eq!(count.reserve(54), Reserve::Got);
    count.asked.store(8, Ordering::SeqCst);
    assert_eq!((count.reserve_spare(3), count.reserve_spare(1)), (Reserve::Wait, Reserve::Got));
    assert_eq!(count.reserve_or_wait(1, 4, PATIENCE), (Ok(1), false));
    assert_eq!(count.reserve_now(1, 1, 8), None);
    assert_eq!(count.reserve_some(count.limit(), 1, 8), Some(8));
}

/// The thread that fills frames may be interrupted before it publishes them.
#[test]
fn who_finds_no_frame_waits_for_those_that_are_filled_and_not_yet_published() {
    let count = FrameCount::new(64);
    assert_eq!(count.reserve(64), Reserve::Got);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| count.reserve_or_wait(1, 1, PATIENCE));
        while !count.is_waited_for() {
            std::thread::yield_now();
        }
        count.claim(64);
        count.fill(64);
        // It looks after each of these.
        for _ in 0..5 {
            count.has_nothing();
            std::thread::sleep(Duration::from_millis(10));
        }
        count.may_go();
        count.let_go(64);
        count.empty(1);
        count.release(1);
        assert_eq!(waits.join().unwrap(), (Ok(1), true));
    });
}

/// Its ask was counted before theirs was taken back.
#[test]
fn frames_are_left_to_those_who_wait_and_not_to_those_who_did() {
    unless_late(SILENCE / 2, || {
        let count = FrameCount::new(2);
        assert_eq!(count.reserve(1), Reserve::Got);
        count.asked.store(1, Ordering::SeqCst);
        count.waiting.store(1, Ordering::SeqCst);
        let began = Instant::now();
        assert_eq!(count.wait_counted(1, 1, 1, PATIENCE), Ok(1));
        assert!(began.elapsed() < SILENCE, "it waits while a frame is free");
    });
}

#[test]
fn who_needs_many_frames_waits_for_all_and_is_not_passed_by() {
    unless_late(SILENCE * 3 / 2, || {
        let count = FrameCount::new(4096);
        assert_eq!(count.reserve(4096), Reserve::Got);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| count.reserve_or_wait(200, 256, PATIENCE));
            while !count.is_waited_for() {
                std::thread::yield_now();
            }
            // The reclaimer takes as many away, however low the watermarks are.
            assert!(count.wanted() >= 200);
            count.release(150);
            assert_eq!(count.reserve_spare(1), Reserve::Wait);
            assert!(count.wanted() >= 50);
            count.release(50);
            assert_eq!(waits.join().unwrap(), (Ok(200), true));
        });
        // Where they never come, one is enough.
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| count.reserve_or_wait(200, 256, PATIENCE));
            while !count.is_waited_for() {
                std::thread::yield_now();
            }
            count.release(10);
            assert_eq!(waits.join().unwrap(), (Ok(10), true));
        });
        assert_eq!((count.asked(), count.waiting.load(Ordering::SeqCst)), (0, 0));
    });
}

#[test]
fn the_low_watermark_rises_where_a_long_read_gets_less_than_it_asks_for() {
    let count = FrameCount::new(64 * 256);
    let free = |pages: u64| {
        count.release(count.reserved());
        assert_eq!(count.reserve(count.limit() - pages), Reserve::Got);
    };
    let low_then = || {
        count.fit_low(1);
        count.watermarks().0
    };
    free(40);
    assert_eq!(count.reserve_or_wait(1, 256, PATIENCE), (Ok(40), false));
    assert_eq!(low_then(), 64);
    // Ahead: what there is above the watermark, or nothing.
    free(164);
    assert_eq!((count.reserve_ahead(200, 200), count.reserve_ahead(16, 200)), (None, Some(100)));
    assert_eq!(low_then(), 128);
    assert_eq!(count.reserve_ahead(16, 16), None);
    (0..64).for_each(|_| count.fit_low(1));
    assert!(low_then() < 128, "so few are there soon");
}

#[test]
fn what_could_not_go_when_the_limit_fell_is_tried_again_with_each_look() {
    let count = FrameCount::new(1000);
    let is_called = |limit| {
        let calls = count.calls();
        count.set_limit(limit);
        count.calls() != calls
    };
    assert_eq!(count.reserve(1000), Reserve::Got);
    assert!(is_called(500) && is_called(500));
    count.release(1000);
    assert!(!is_called(500), "nothing is to go");
}

#[test]
fn who_needs_a_frame_waits_for_a_part_of_what_is_to_go() {
    unless_late(SILENCE / 2, || {
        let count = FrameCount::new(10_000);
        assert_eq!(count.reserve(10_000), Reserve::Got);
        count.set_limit(100);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| count.reserve_or_wait(2, 16, PATIENCE));
            while !waits.is_finished() && count.reserved() > 9_000 {
                std::thread::sleep(Duration::from_millis(10));
                count.release(2);
            }
            assert_eq!(waits.join().unwrap(), (Ok(2), true));
            assert!(count.reserved() > 9_000, "{}", count.reserved());
        });
        // Nor is the rest waited for where nothing goes.
        let began = Instant::now();
        assert_eq!(count.reserve_or_wait(1, 1, PATIENCE), (Ok(1), true));
        assert!(began.elapsed() < PATIENCE / 3, "{:?}", began.elapsed());
        // Growing helps who waits, however much is to go.
        assert!(count.grow(1));
        assert_eq!(count.reserve(1), Reserve::Got);
    });
}

/// As where it waits for an allocator whose lock is held by a thread that waits for a frame.
#[test]
fn where_the_reclaimer_is_silent_the_limit_gives_way_to_all_who_wait_however_many_read() {
    let count = FrameCount::new(1);
    // As many as are given out in the first second.
    count.reserve_some(1 + BEYOND, 1 + BEYOND, 1 + BEYOND).expect("all are free");
    let began = Instant::now();
    let (reads, is_over) = (AtomicBool::new(true), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let began = Instant::now();
            while !is_over.load(Ordering::Relaxed) && began.elapsed() < PATIENCE {
                // Reads of frames beyond the limit end.
                count.may_go();
                std::thread::sleep(SILENCE / 50);
            }
            reads.store(false, Ordering::Relaxed);
        });
        let waits = || count.reserve_or_wait(1, 1, PATIENCE).0;
        let all: Vec<_> = (0..2).map(|_| scope.spawn(waits)).collect();
        all.into_iter().for_each(|one| assert_eq!(one.join().unwrap(), Ok(1)));
        assert!(reads.load(Ordering::Relaxed), "somebody had to wait until nobody read");
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!((count.reserved(), count.beyond()), (3 + BEYOND, 2));
    assert!(began.elapsed() >= 2 * SILENCE, "who comes later does not begin anew: {:?}", began.elapsed());
}
