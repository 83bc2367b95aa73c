//! The fewest faults possible, by rules that know what will be touched.

use std::collections::{BinaryHeap, HashMap, HashSet};

/// Fewest faults possible when pages come one at a time: the page needed last goes first (Belady, 1966).
pub fn opt(touches: &[u64], memory_pages: u64) -> u64 {
    const NEVER: usize = usize::MAX;
    let mut next = vec![NEVER; touches.len()];
    let mut later: HashMap<u64, usize> = HashMap::new();
    for (now, &page) in touches.iter().enumerate().rev() {
        next[now] = later.insert(page, now).unwrap_or(NEVER);
    }
    // When each resident page is needed next; the heap may hold older, wrong times, which are skipped.
    let mut needed: HashMap<u64, usize> = HashMap::new();
    let mut latest_needed: BinaryHeap<(usize, u64)> = BinaryHeap::new();
    let mut faults = 0;
    for (now, &page) in touches.iter().enumerate() {
        if let Some(when) = needed.get_mut(&page) {
            *when = next[now];
            latest_needed.push((next[now], page));
            continue;
        }
        faults += 1;
        if memory_pages == 0 {
            continue;
        }
        while needed.len() as u64 >= memory_pages
            && let Some((when, candidate)) = latest_needed.pop()
        {
            if needed.get(&candidate) == Some(&when) {
                needed.remove(&candidate);
            }
        }
        needed.insert(page, next[now]);
        latest_needed.push((next[now], page));
    }
    faults
}

/// Fewest faults possible when a fault may load as many pages as fit: it loads the next different pages that will be
/// touched (DPMIN; Trivedi, "Prepaging and applications to array algorithms", 1976).
pub fn dpmin(touches: &[u64], memory_pages: u64) -> u64 {
    if memory_pages == 0 {
        return touches.len() as u64;
    }
    let mut loaded = HashSet::new();
    let mut faults = u64::from(!touches.is_empty());
    for &page in touches {
        if !loaded.contains(&page) {
            if loaded.len() as u64 == memory_pages {
                faults += 1;
                loaded.clear();
            }
            loaded.insert(page);
        }
    }
    faults
}
