//! Rules that a memory manager can follow: they know only what was touched.

use std::collections::{HashMap, VecDeque};

/// Faults when the page that came first goes first.
pub fn fifo(touches: &[u64], memory_pages: u64) -> u64 {
    in_turn(touches, memory_pages, false)
}

/// Faults under CLOCK, also called second chance: as FIFO, but a page touched since it came or was last spared is spared
/// once more (Corbató, "A paging experiment with the Multics system", 1968).
pub fn clock(touches: &[u64], memory_pages: u64) -> u64 {
    in_turn(touches, memory_pages, true)
}

/// Faults where pages go in the order they came, those touched again once later where that `spares` them.
fn in_turn(touches: &[u64], memory_pages: u64, spares: bool) -> u64 {
    let mut queue = VecDeque::new();
    // Of each resident page, whether it was touched again.
    let mut referenced: HashMap<u64, bool> = HashMap::new();
    let mut faults = 0;
    for &page in touches {
        if let Some(again) = referenced.get_mut(&page) {
            *again = spares;
            continue;
        }
        faults += 1;
        if memory_pages == 0 {
            continue;
        }
        while queue.len() as u64 >= memory_pages
            && let Some(oldest) = queue.pop_front()
        {
            match referenced.get_mut(&oldest) {
                Some(again) if *again => {
                    *again = false;
                    queue.push_back(oldest);
                }
                _ => {
                    referenced.remove(&oldest);
                }
            }
        }
        queue.push_back(page);
        referenced.insert(page, false);
    }
    faults
}

/// Faults under 2Q: a page enters a FIFO of a quarter of memory; only one touched again soon after it left that (the names
/// of half as many pages as memory holds are remembered) enters the LRU list that has the rest (Johnson and Shasha, "2Q: a
/// low overhead high performance buffer management replacement algorithm", 1994, full version).
pub fn two_q(touches: &[u64], memory_pages: u64) -> u64 {
    let (first_most, names_most) = ((memory_pages / 4).max(1), (memory_pages / 2).max(1));
    let (mut first, mut names, mut often) = (Recency::default(), Recency::default(), Recency::default());
    let mut faults = 0;
    for &page in touches {
        if often.contains(page) {
            often.touch(page);
            continue;
        }
        if first.contains(page) {
            continue;
        }
        faults += 1;
        if memory_pages == 0 {
            continue;
        }
        // Asked before room is made, as the paper has it: that may push out this name.
        let is_remembered = names.contains(page);
        if first.len() + often.len() >= memory_pages {
            if first.len() > first_most || often.len() == 0 {
                let out = first.pop_oldest().expect("memory is full, and not of the others");
                names.touch(out);
                if names.len() > names_most {
                    names.pop_oldest();
                }
            } else {
                often.pop_oldest();
            }
        }
        names.remove(page);
        if is_remembered { often.touch(page) } else { first.touch(page) }
    }
    faults
}

/// Faults under S3-FIFO: a tenth of memory is a FIFO for new pages, and of those that leave it only the ones touched more
/// than once enter the main FIFO, where a page is spared as often as it was touched, three times at most; pages whose
/// names are remembered from the small FIFO come straight into the main one (Yang and others, "FIFO queues are all you
/// need for cache eviction", SOSP 2023).
pub fn s3_fifo(touches: &[u64], memory_pages: u64) -> u64 {
    let small_most = (memory_pages / 10).max(1);
    let names_most = memory_pages - small_most.min(memory_pages);
    let (mut small, mut main) = (VecDeque::new(), VecDeque::new());
    let mut names = Recency::default();
    // Of each resident page, how often it was touched again, up to 3.
    let mut touched: HashMap<u64, u8> = HashMap::new();
    let mut faults = 0;
    for &page in touches {
        if let Some(times) = touched.get_mut(&page) {
            *times = (*times + 1).min(3);
            continue;
        }
        faults += 1;
        if memory_pages == 0 {
            continue;
        }
        while touched.len() as u64 >= memory_pages {
            let small_is_full = small.len() as u64 >= small_most || main.is_empty();
            let oldest = if small_is_full { small.pop_front() } else { main.pop_front() };
            let oldest = oldest.expect("memory is full, and not of the other queue");
            let times = touched.get_mut(&oldest).expect("what is queued is resident");
            match *times {
                2.. if small_is_full => {
                    *times = 0;
                    main.push_back(oldest);
                }
                1.. if !small_is_full => {
                    *times -= 1;
                    main.push_back(oldest);
                }
                _ => {
                    touched.remove(&oldest);
                    if small_is_full {
                        names.touch(oldest);
                        if names.len() > names_most {
                            names.pop_oldest();
                        }
                    }
                }
            }
        }
        if names.remove(page) {
            main.push_back(page)
        } else {
            small.push_back(page)
        }
        touched.insert(page, 0);
    }
    faults
}

/// Faults under FreeBSD's rule for the pages of idle buffers (`vm_page_dontneed` of `sys/vm/vm_page.c`), as the VM's pool follows it. The oldest
/// pages are unwired until half of all are idle; from then on a touch of one is seen, and wires it again. Where an idle page goes
/// is not asked of its use but counted, in runs of 16 pages: of 512 pages 448 go next, 48 behind all that are idle, and 16 stay wired.
pub fn dont_need(touches: &[u64], memory_pages: u64) -> u64 {
    let (mut wired, mut idle) = (VecDeque::new(), VecDeque::new());
    // Of each resident page, whether it was touched again.
    let mut touched: HashMap<u64, bool> = HashMap::new();
    let (mut turn, mut faults) = (0_u32, 0);
    for &page in touches {
        if let Some(again) = touched.get_mut(&page) {
            *again = true;
            continue;
        }
        faults += 1;
        if memory_pages == 0 {
            continue;
        }
        while touched.len() as u64 >= memory_pages {
            while idle.len() < touched.len().div_ceil(2)
                && let Some(oldest) = wired.pop_front()
            {
                turn = turn.wrapping_add(1);
                if turn & 0x1f0 == 0 {
                    wired.push_back(oldest);
                    continue;
                }
                touched.insert(oldest, false);
                if turn & 0x70 == 0 { idle.push_back(oldest) } else { idle.push_front(oldest) }
            }
            let next = idle.pop_front().expect("half of memory is idle");
            if touched[&next] {
                wired.push_back(next);
            } else {
                touched.remove(&next);
            }
        }
        wired.push_back(page);
        touched.insert(page, false);
    }
    faults
}

/// Pages from the one touched longest ago to the one touched last.
#[derive(Debug, Default)]
struct Recency {
    /// With the moment of the touch. A page that was touched again or removed stands here at a moment that is not
    /// [`Recency::latest`]'s, and is skipped.
    queue: VecDeque<(u64, u64)>,
    latest: HashMap<u64, u64>,
    now: u64,
}

impl Recency {
    fn len(&self) -> u64 {
        self.latest.len() as u64
    }

    fn contains(&self, page: u64) -> bool {
        self.latest.contains_key(&page)
    }

    /// Puts `page` last.
    fn touch(&mut self, page: u64) {
        self.now += 1;
        self.latest.insert(page, self.now);
        self.queue.push_back((page, self.now));
        if self.queue.len() > 2 * self.latest.len() + 64 {
            let latest = &self.latest;
            self.queue.retain(|(page, moment)| latest.get(page) == Some(moment));
        }
    }

    fn remove(&mut self, page: u64) -> bool {
        self.latest.remove(&page).is_some()
    }

    fn pop_oldest(&mut self) -> Option<u64> {
        while let Some((page, moment)) = self.queue.pop_front() {
            if self.latest.get(&page) == Some(&moment) {
                self.latest.remove(&page);
                return Some(page);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::replacement::{lru, opt};

    /// CLOCK with a hand that goes around over an array, as it is usually drawn.
    fn clock_with_a_hand(touches: &[u64], memory_pages: usize) -> u64 {
        let mut frames: Vec<(u64, bool)> = Vec::new();
        let (mut hand, mut faults) = (0, 0);
        for &page in touches {
            if let Some(frame) = frames.iter_mut().find(|frame| frame.0 == page) {
                frame.1 = true;
                continue;
            }
            faults += 1;
            if frames.len() < memory_pages {
                frames.push((page, false));
                continue;
            }
            while frames[hand].1 {
                frames[hand].1 = false;
                hand = (hand + 1) % memory_pages;
            }
            frames[hand] = (page, false);
            hand = (hand + 1) % memory_pages;
        }
        faults
    }

    /// 2Q with plain lists: new pages in front.
    fn two_q_with_lists(touches: &[u64], memory_pages: usize) -> u64 {
        let (mut a1_in, mut a1_out, mut am): (Vec<u64>, Vec<u64>, Vec<u64>) = Default::default();
        let mut faults = 0;
        for &page in touches {
            if let Some(at) = am.iter().position(|&held| held == page) {
                am.remove(at);
                am.insert(0, page);
            } else if !a1_in.contains(&page) {
                faults += 1;
                let is_remembered = a1_out.contains(&page);
                if a1_in.len() + am.len() == memory_pages {
                    if a1_in.len() > (memory_pages / 4).max(1) || am.is_empty() {
                        a1_out.insert(0, a1_in.pop().unwrap());
                        a1_out.truncate((memory_pages / 2).max(1));
                    } else {
                        am.pop();
                    }
                }
                a1_out.retain(|&name| name != page);
                if is_remembered { am.insert(0, page) } else { a1_in.insert(0, page) }
            }
        }
        faults
    }

    /// FreeBSD's rule with plain lists, each page with whether it was touched since it was put there.
    fn dont_need_with_lists(touches: &[u64], memory_pages: usize) -> u64 {
        let (mut wired, mut idle): (Vec<u64>, Vec<(u64, bool)>) = Default::default();
        let (mut unwired, mut faults) = (0, 0);
        for &page in touches {
            if let Some(held) = idle.iter_mut().find(|held| held.0 == page) {
                held.1 = true;
                continue;
            }
            if wired.contains(&page) {
                continue;
            }
            faults += 1;
            while wired.len() + idle.len() == memory_pages {
                while idle.len() < memory_pages.div_ceil(2) {
                    unwired += 1;
                    let oldest = wired.remove(0);
                    // Every 32nd run of 16 stays, every eighth of the others goes to the tail.
                    match unwired / 16 % 32 {
                        0 => wired.push(oldest),
                        run if run % 8 == 0 => idle.push((oldest, false)),
                        _ => idle.insert(0, (oldest, false)),
                    }
                }
                let (next, was_touched) = idle.remove(0);
                if was_touched {
                    wired.push(next);
                }
            }
            wired.push(page);
        }
        faults
    }

    /// Long enough for more than 512 pages to be unwired, so that each place where an unwired page can go is reached. A quarter of the
    /// pages gets most of the touches.
    #[test]
    fn a_long_run_of_clock_2q_and_dont_need_is_as_it_is_usually_drawn() {
        let mut state = 1_u64;
        let mut touch = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let drawn = state >> 33;
            drawn / 2 % if drawn.is_multiple_of(2) { 64 } else { 16 }
        };
        let touches: Vec<u64> = (0..3000).map(|_| touch()).collect();
        for size in [8, 24, 32] {
            assert_eq!(clock(&touches, size), clock_with_a_hand(&touches, size as usize), "{size} pages");
            assert_eq!(two_q(&touches, size), two_q_with_lists(&touches, size as usize), "{size} pages");
            let faults = dont_need(&touches, size);
            assert_eq!(faults, dont_need_with_lists(&touches, size as usize), "{size} pages");
            assert!(faults > 600, "{faults} faults of {size} pages");
        }
    }

    /// Sixteen pages wired and as many idle. What was unwired last goes first: of a loop one page larger than memory most pages stay, and FIFO
    /// keeps none.
    #[test]
    fn dont_need_takes_what_was_unwired_last() {
        let touches: Vec<u64> = (0..100 * 33).map(|turn| turn % 33).collect();
        assert_eq!(fifo(&touches, 32), touches.len() as u64);
        let faults = dont_need(&touches, 32);
        assert!(faults < fifo(&touches, 32) / 2, "{faults}");
    }

    /// Three pages of memory: one of the first queue, of which one name is remembered. Page 1 comes back when it is that name,
    /// and so stays in memory while 5, 6 and 7 pass through the first queue. FIFO has a ninth fault, on the last touch.
    #[test]
    fn two_q_keeps_a_page_whose_name_is_the_oldest_remembered() {
        let touches = [1, 2, 3, 4, 1, 5, 6, 7, 1];
        assert_eq!((two_q(&touches, 3), fifo(&touches, 3)), (8, 9));
    }

    /// A scan pushes the pages that are used again out of LRU's memory, and not out of these: S3-FIFO keeps what is touched
    /// again at once, 2Q what is touched again after it left the first queue.
    #[test]
    fn what_is_used_again_survives_a_scan() {
        for (rule, between) in [(s3_fifo as fn(&[u64], u64) -> u64, 0), (two_q, 40)] {
            let round = |round: u64| {
                let new = 1000 + round * 100;
                (0..20).chain(new..new + between).chain(0..20).chain(new + 40..new + 100)
            };
            let touches: Vec<u64> = (0..200).flat_map(round).collect();
            let (faults, by_lru) = (rule(&touches, 50), lru(&touches).faults(50));
            assert!((faults as f64) < 0.8 * by_lru as f64, "{faults}, lru {by_lru}");
        }
    }

    proptest! {
        #[test]
        fn clock_2q_and_dont_need_are_as_they_are_usually_drawn(
            touches in prop::collection::vec(0_u64..14, 0..150), size in 1_u64..16,
        ) {
            prop_assert_eq!(clock(&touches, size), clock_with_a_hand(&touches, size as usize));
            prop_assert_eq!(two_q(&touches, size), two_q_with_lists(&touches, size as usize));
            prop_assert_eq!(dont_need(&touches, size), dont_need_with_lists(&touches, size as usize));
        }

        #[test]
        fn no_rule_beats_opt_and_enough_memory_takes_each_page_once(
            touches in prop::collection::vec(0_u64..30, 0..300), size in 0_u64..40,
        ) {
            let distinct = touches.iter().collect::<HashSet<_>>().len() as u64;
            for rule in [fifo, clock, two_q, s3_fifo, dont_need] {
                let faults = rule(&touches, size);
                prop_assert!(faults >= opt(&touches, size) && faults <= touches.len() as u64);
                prop_assert_eq!(rule(&touches, 1000), distinct);
            }
        }
    }
}
