//! Parts of a region that are left to the kernel's huge pages one by one.
//!
//! userfaultfd has no call that makes a huge page in place, and the kernel makes no good one where it asks user space first:
//! with huge pages on it clears one before it asks, and throws it away; with huge pages off it makes a page table, which
//! a huge page cannot replace. So a memfd that holds nothing stands where memory will be: its faults make neither. The
//! first of them has plain anonymous memory put in its place, by one mremap(2) of a range that is always empty.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::thread::futex::{self, Flags};

use crate::given::{check, mapping};
use crate::region::{Contents, REGION_ALIGN, Region, Span};
use crate::words::Words;

/// The least that is given at once: a fault and a piece cost a hundredth of what it takes to clear so much. The kernel
/// makes what is touched of it, and no more.
const PIECE_BYTES: u64 = 8 * REGION_ALIGN;
/// A region is given in so many pieces at most, since each may take a mapping (vm.max_map_count).
const PIECES: u64 = 4096;

/// A piece's word while it is given, and once it is.
const GIVING: u32 = 1;
const GIVEN: u32 = 2;

/// The whole huge pages of a region, which stays mapped while this value lives.
///
/// Lock legend: all constant but `pieces`, atomic words that go from 0 to `GIVING` to `GIVEN`, and back from `GIVING`
/// where the kernel refuses.
#[derive(Debug)]
pub struct HugeBlocks {
    span: Arc<Span>,
    start: u64,
    end: u64,
    piece_bytes: u64,
    pieces: Words,
    /// Empty memory as it is to be, put in place of pieces.
    empty: Region,
}

/// A piece that has been given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Given {
    /// Its first address.
    pub start: u64,
    /// Its bytes.
    pub len: u64,
    /// Whether it was given by this call.
    pub now: bool,
}

impl HugeBlocks {
    /// For the first `len` bytes of a region, of which no page exists.
    pub(crate) fn new(span: Arc<Span>, len: u64) -> io::Result<Self> {
        let start = span.start();
        let piece_bytes = PIECE_BYTES.max((len / PIECES).next_multiple_of(REGION_ALIGN));
        Ok(Self {
            span,
            start,
            end: start + len,
            piece_bytes,
            pieces: Words::zeroed(len.div_ceil(piece_bytes) as usize)?,
            empty: Region::map(piece_bytes.min(len), Contents::AnonymousHuge)?,
        })
    }

    /// What is given from here on can be used as the region can.
    pub(crate) fn show(&self, executable: bool) -> io::Result<()> {
        self.empty.show(executable)
    }

    /// Whether `address` lies in one of them.
    pub fn hold(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }

    /// Has the kernel serve the piece of `address`, once. May be called in signal handlers.
    ///
    /// # Errors
    /// ENOMEM when there are too many mappings; the piece can be given later.
    ///
    /// # Panics
    /// Where `address` lies in none of the blocks.
    pub fn give(&self, address: u64) -> io::Result<Given> {
        assert!(self.hold(address), "not a huge block");
        self.give_piece((address - self.start) / self.piece_bytes)
    }

    /// Has the kernel make what is missing of `[address, address + len)`, which lies in a piece that was given.
    ///
    /// # Errors
    /// ENOMEM when there is no memory.
    ///
    /// # Panics
    /// Where the piece was not given, or the range leaves it.
    pub fn populate(&self, address: u64, len: u64) -> io::Result<()> {
        assert!(len > 0 && self.hold(address) && self.hold(address + len - 1), "not huge blocks");
        let [first, last] = [address, address + len - 1].map(|at| (at - self.start) / self.piece_bytes);
        let word = self.pieces[first as usize].load(Ordering::Acquire);
        assert!(first == last && word == GIVEN, "not a piece that was given");
        let start = self.span.at(address - self.start, len);
        // SAFETY: the range is the region's, which is mapped while this value lives. Zeros come where there was nothing,
        // which read as zeros before; the rest stays.
        check(unsafe { libc::madvise(start.cast(), len as usize, libc::MADV_POPULATE_WRITE) })
    }

    fn give_piece(&self, index: u64) -> io::Result<Given> {
        let start = self.start + index * self.piece_bytes;
        let len = self.piece_bytes.min(self.end - start);
        let word = &self.pieces[index as usize];
        loop {
            match word.compare_exchange(0, GIVING, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => {
                    let moved = self.put_in_place(start, len);
                    word.store(if moved.is_ok() { GIVEN } else { 0 }, Ordering::Release);
                    let _ = futex::wake(word, Flags::PRIVATE, u32::MAX >> 1);
                    return moved.map(|()| Given { start, len, now: true });
                }
                Err(GIVEN) => return Ok(Given { start, len, now: false }),
                // Whoever gives it may need this CPU.
                Err(_) => drop(futex::wait(word, Flags::PRIVATE, GIVING, None)),
            }
        }
    }

    fn put_in_place(&self, start: u64, len: u64) -> io::Result<()> {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        // SAFETY: `empty` holds at least `len` bytes and keeps its mapping; nobody touches it. The range at `start` lies
        // in the region, which is mapped while this value lives, and holds no page: it shows a memfd that is
        // never written to, and its word lets it be replaced once.
        let moved = unsafe {
            libc::mremap(
                self.empty.start() as *mut libc::c_void,
                len as usize,
                len as usize,
                flags,
                self.span.at(start - self.start, len).cast::<libc::c_void>(),
            )
        };
        mapping(moved).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memfd::Memfd;

    #[test]
    fn pieces_are_given_once_and_keep_what_is_written() {
        let memfd = Memfd::create("blocks", 1 << 30).unwrap();
        // Two pieces and a half, and a rest that is no huge page.
        let half = PIECE_BYTES / 2;
        let len = 2 * PIECE_BYTES + half + 4096;
        let mut region = Region::map(len, Contents::HugeBlocks(&memfd)).unwrap();
        let blocks = region.blocks().unwrap();
        let start = region.start();
        let third = start + 2 * PIECE_BYTES;
        assert!(blocks.hold(third + half - 1) && !blocks.hold(third + half));
        let nows: Vec<bool> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..4).map(|_| scope.spawn(|| blocks.give(start + 4096).unwrap().now)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(nows.iter().filter(|&&now| now).count(), 1);
        region.as_mut_slice()[4096] = 7;
        assert_eq!(blocks.give(start).unwrap(), Given { start, len: PIECE_BYTES, now: false });
        let last = blocks.give(third + REGION_ALIGN).unwrap();
        assert_eq!(last, Given { start: third, len: half, now: true });
        assert_eq!(region.as_slice()[4096], 7);
        blocks.populate(third + REGION_ALIGN, REGION_ALIGN).unwrap();
        let present = |address| crate::region::is_present(address).unwrap();
        assert!(present(third + REGION_ALIGN + 8192) && !present(third) && present(start + 4096));
        // Of a region that holds code pieces can be executed.
        region.show(true).unwrap();
        let fourth = start + PIECE_BYTES;
        assert!(blocks.give(fourth).unwrap().now);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let executable = maps.lines().filter(|line| line.contains(" rwxp ")).filter_map(|line| {
            let (from, to) = line.split_once(' ')?.0.split_once('-')?;
            Some(u64::from_str_radix(from, 16).ok()?..u64::from_str_radix(to, 16).ok()?)
        });
        assert!(executable.into_iter().any(|range| range.contains(&fourth)), "{maps}");
        // Whoever holds the blocks may still give them.
        drop(region);
        assert!(!blocks.give(fourth).unwrap().now);
    }

    #[test]
    fn who_finds_a_piece_being_given_sleeps() {
        let memfd = Memfd::create("blocks", 1 << 30).unwrap();
        let region = Region::map(PIECE_BYTES, Contents::HugeBlocks(&memfd)).unwrap();
        let blocks = region.blocks().unwrap();
        // As if another thread were in the middle of it.
        blocks.pieces[0].store(GIVING, Ordering::SeqCst);
        std::thread::scope(|scope| {
            let (tell, told) = std::sync::mpsc::channel();
            let giver = scope.spawn(|| {
                let tell = tell;
                tell.send(rustix::thread::gettid().as_raw_nonzero()).unwrap();
                blocks.give(region.start()).unwrap()
            });
            let stat = format!("/proc/self/task/{}/stat", told.recv().unwrap());
            let is_asleep = || std::fs::read_to_string(&stat).unwrap().contains(") S ");
            let began = std::time::Instant::now();
            // It may sleep for other reasons on its way, and then runs again.
            let mut in_a_row = 0;
            while in_a_row < 20 {
                in_a_row = if is_asleep() { in_a_row + 1 } else { 0 };
                assert!(began.elapsed().as_secs() < 60, "it keeps its CPU busy");
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            blocks.pieces[0].store(0, Ordering::SeqCst);
            let _ = futex::wake(&blocks.pieces[0], Flags::PRIVATE, 1);
            assert!(giver.join().unwrap().now);
        });
    }
}
