//! prepage's own: aligned clusters that heed what lies around them.

use super::{Cluster, FaultAt, Residency};
use crate::page::{PageIndex, PageRange};

/// Pages in a block.
const BLOCK: u64 = 16;

/// How far from its block, in pages, a fault looks to see whether it lies in a part that is much used.
const SURROUNDINGS: u64 = 64;

/// Longest read of a stream.
const STREAM_MAX: u64 = 512;

/// Longest read of a stream that arrives at the start of a block.
const STREAM_AT_START_MAX: u64 = 256;

/// Resident pages before the fault that make it a stream, where it does not start a block.
const STREAM_MIN: u64 = 8;

/// How far a read goes from its fault, in pages.
#[derive(Clone, Copy, Debug)]
struct Reach {
    /// At most so many behind, and never out of the block.
    behind: u64,
    /// At least so many, the fault's own included, and never less than the block.
    ahead: u64,
}

const fn reach(behind: u64, ahead: u64) -> Reach {
    Reach { behind, ahead }
}

/// By how much of the surroundings is resident (less than 30 %, less than 60 %, more), whether the block before is, and
/// whether the block after is.
///
/// Programs run forward through their pages: a page after a touched one is touched in 84 of 100 cases, one before it in
/// 61. So the read goes over the block's end rather than back to its start, and further the more is used around it.
const REACH: [[[Reach; 2]; 2]; 3] = [
    [[reach(15, 4), reach(6, 0)], [reach(15, 10), reach(15, 0)]],
    [[reach(15, 12), reach(6, 0)], [reach(15, 10), reach(15, 0)]],
    [[reach(2, 12), reach(10, 0)], [reach(8, 10), reach(15, 0)]],
];

/// Reads the aligned block around the fault, a little less behind and a little more ahead according to which of the
/// blocks beside it are resident and how much of the surroundings is; and where the pages before the fault are resident
/// and the next block is not, it takes the fault for a stream and reads as far ahead as memory reaches back.
///
/// It remembers nothing: all it goes by is what is resident, so any number of streams in one entry are distinguished, and
/// entries of one object help each other. The numbers were fitted to some of the recorded traces and tried on others;
/// `docs/policies.md` has both.
pub(super) fn cluster(fault: &FaultAt, memory: &impl Residency) -> Cluster {
    let page = fault.page.0;
    let window = fault.window;
    let start = (page - page % BLOCK).max(window.start().0);
    let end = (page - page % BLOCK + BLOCK).min(window.end().0);
    let before = start > window.start().0 && memory.is_resident(PageIndex(start - 1));
    let after = end == window.end().0 || memory.is_resident(PageIndex(end));
    if !after && let Some(ahead) = stream(fault, page == start, memory) {
        // To the end of a block, so that the next fault of the stream begins one.
        let last = end.max(page + ahead);
        return read(page, page, if last - last % BLOCK > page { last - last % BLOCK } else { last });
    }
    let near = PageRange::new(
        PageIndex(start.saturating_sub(SURROUNDINGS).max(window.start().0)),
        PageIndex((end + SURROUNDINGS).min(window.end().0)),
    );
    let percent = 100 * memory.resident_in(near) / near.len();
    let level = usize::from(percent >= 30) + usize::from(percent >= 60);
    let reach = REACH[level][usize::from(before)][usize::from(after)];
    read(page, start.max(page.saturating_sub(reach.behind)), end.max(page + reach.ahead))
}

/// How far ahead to read, if the fault at `fault` continues a run of resident pages.
fn stream(fault: &FaultAt, at_start: bool, memory: &impl Residency) -> Option<u64> {
    let most = if at_start { STREAM_AT_START_MAX } else { STREAM_MAX };
    let behind = (fault.page.0 - fault.window.start().0).min(most);
    let resident = |distance: &u64| memory.is_resident(PageIndex(fault.page.0 - distance));
    let run = (1..=behind).take_while(resident).count() as u64;
    match at_start {
        true if run > 0 => Some(run / 2),
        false if run >= STREAM_MIN => Some(run),
        _ => None,
    }
}

fn read(page: u64, start: u64, end: u64) -> Cluster {
    Cluster::around(PageIndex(page), page - start, end - 1 - page)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    struct Resident(HashSet<u64>);

    impl Residency for Resident {
        fn is_resident(&self, page: PageIndex) -> bool {
            self.0.contains(&page.0)
        }
    }

    /// What a fault at `page` of 4096 reads when `resident` pages are there.
    fn reads(page: u64, resident: std::ops::Range<u64>) -> (u64, u64) {
        let window = PageRange::new(PageIndex(0), PageIndex(4096));
        let fault = FaultAt { page: PageIndex(page), window };
        let memory = Resident(resident.collect());
        let run = cluster(&fault, &memory).clip(&fault, &memory);
        (run.start().0, run.end().0)
    }

    #[test]
    fn alone_it_reads_its_block_and_a_little_over_its_end() {
        assert_eq!(reads(1000, 0..0), (992, 1008));
        assert_eq!(reads(1006, 0..0), (992, 1010));
    }

    #[test]
    fn a_stream_doubles_and_a_longer_one_stops_to_grow() {
        assert_eq!(reads(1040, 1008..1040), (1040, 1056));
        assert_eq!(reads(1136, 1008..1136), (1136, 1200));
        assert_eq!(reads(1044, 1000..1044), (1044, 1088));
        assert_eq!(reads(2048, 0..2048), (2048, 2048 + 128));
        assert_eq!(reads(2049, 0..2049), (2049, 2560));
    }

    #[test]
    fn where_the_next_block_is_resident_it_reads_less_behind() {
        assert_eq!(reads(1000, 1008..1100), (994, 1008));
    }
}
