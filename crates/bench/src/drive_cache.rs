//! Whether a drive gets faster for a file it has read before, and whether it reads ahead by itself.
//!
//! The page-fault study saw its disk faults fall from 200 to 50 µs while it went on, and took that for the drive copying the
//! file into its own memory. Direct reads ask the drive itself. A part of a file is read twice; then its pages and those of a
//! part that nothing had read since the caches of drive and host were filled with other data take turns, so that whatever
//! else makes the drive slow meets both alike. If the hypothesis holds, the pages read before come faster.
//!
//! The study's other guess was that the drive reads ahead. If it does, pages of 4 KiB come faster in order than at random; and
//! reads of 128 KiB and 1 MiB show what a larger read costs. These too take turns, and no page is read twice.

use std::io;
use std::path::Path;
use std::time::Instant;

use prepage_core::random::SplitMix;
use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_simulate::model::FILE_PAGES;

use crate::direct::DirectFile;
use crate::statistics::{median_ratio, quantile};

/// A page that the drive has read ahead comes from its memory: in far less than this part of what a page at random takes.
const READ_AHEAD_RATIO: f64 = 0.9;

/// Pages of the largest reads: 1 MiB.
const LARGEST_PAGES: u64 = 256;

/// The shortest file: each way of [`sizes`] has an eighth of it, which holds one of the largest reads.
pub const FILE_BYTES_MIN: u64 = 8 * LARGEST_PAGES * PAGE_SIZE;

/// How often each way of [`sizes`] has its turn.
const TURNS: u64 = 32;

/// Latencies of reading a part of the file, in microseconds, in the order of the reads.
#[derive(Clone, Debug)]
pub struct Pass {
    /// Of [`passes`]: `first`, `second`, and, in turns with each other, `again` and `other`: the same part, and one that nothing had
    /// read. Of [`sizes`]: `in order` and `at random`.
    pub name: &'static str,
    /// Pages that each read asks for.
    pub read_pages: u64,
    /// Of each read.
    pub latencies_us: Vec<f64>,
}

impl Pass {
    /// The median of each tenth of the pass.
    pub fn tenths_us(&self) -> Vec<f64> {
        let tenth = self.latencies_us.len().div_ceil(10).max(1);
        self.latencies_us.chunks(tenth).map(|part| quantile(part, 0.5)).collect()
    }

    /// The `q`-quantile of all.
    pub fn quantile_us(&self, q: f64) -> f64 {
        quantile(&self.latencies_us, q)
    }

    /// Bytes a second, in millions, at the median latency.
    pub fn megabytes_a_second(&self) -> f64 {
        (self.read_pages * PAGE_SIZE) as f64 / self.quantile_us(0.5)
    }

    /// 64 of the small reads, 4 of the largest.
    fn reads_a_turn(&self) -> u64 {
        (2 * LARGEST_PAGES / self.read_pages).clamp(4, 64)
    }
}

/// Pages of the part that [`passes`] reads twice, as long as the study's file, or shorter where the file is; the other part is as
/// long.
fn part_pages(file_pages: u64) -> u64 {
    FILE_PAGES.min(file_pages / 4)
}

/// Reads `file`, and says how long that took.
fn read_us(file: &mut DirectFile, start: u64, pages: u64) -> io::Result<f64> {
    let begun = Instant::now();
    file.read(PageRange::new(PageIndex(start), PageIndex(start + pages)))?;
    Ok(begun.elapsed().as_secs_f64() * 1e6)
}

fn too_short() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the file is too short")
}

/// Reads the pages of one part of the file in `path` in random order, twice, and then in turns with those of another part.
/// The parts lie at the file's beginning, which was written longest ago.
///
/// # Errors
/// Where the file has no direct reads, or is shorter than eight pages.
pub fn passes(path: &Path, pages: u64) -> io::Result<[Pass; 4]> {
    let part = part_pages(pages);
    if part < 2 {
        return Err(too_short());
    }
    let mut file = DirectFile::open(path, 1)?;
    let mut passes = ["first", "second", "again", "other"].map(|name| Pass {
        name,
        read_pages: 1,
        latencies_us: Vec::new(),
    });
    let shuffled = |pass| SplitMix::new(pass).shuffled(part);
    for pass in 0..2 {
        for page in shuffled(pass) {
            passes[pass as usize].latencies_us.push(read_us(&mut file, page, 1)?);
        }
    }
    for (again, other) in shuffled(2).into_iter().zip(shuffled(3)) {
        passes[2].latencies_us.push(read_us(&mut file, again, 1)?);
        passes[3].latencies_us.push(read_us(&mut file, part + other, 1)?);
    }
    Ok(passes)
}

/// Reads a quarter of what [`passes`] leaves alone in each way: 4 KiB in order, and 4 KiB, 128 KiB and 1 MiB at random. The ways take
/// turns, many reads of the small ones at a time, so that a drive notices their order.
///
/// # Errors
/// Where the file has no direct reads, or is shorter than 8 MiB.
pub fn sizes(path: &Path, pages: u64) -> io::Result<[Pass; 4]> {
    let begin = 2 * part_pages(pages);
    let quarter = pages.saturating_sub(begin) / 4;
    let mut passes = [("in order", 1), ("at random", 1), ("at random", 32), ("at random", LARGEST_PAGES)]
        .map(|(name, read_pages)| Pass { name, read_pages, latencies_us: Vec::new() });
    if quarter < LARGEST_PAGES {
        return Err(too_short());
    }
    let mut file = DirectFile::open(path, LARGEST_PAGES)?;
    let mut orders = Vec::new();
    for (at, pass) in (0..).zip(&passes) {
        let reads = quarter / pass.read_pages;
        let order = if at == 0 { (0..reads).collect() } else { SplitMix::new(at).shuffled(reads) };
        orders.push(order.into_iter().take((TURNS * pass.reads_a_turn()) as usize));
    }
    for _ in 0..TURNS {
        for (at, (pass, order)) in (0..).zip(passes.iter_mut().zip(&mut orders)) {
            for read in order.take(pass.reads_a_turn() as usize) {
                let start = begin + at * quarter + read * pass.read_pages;
                pass.latencies_us.push(read_us(&mut file, start, pass.read_pages)?);
            }
        }
    }
    Ok(passes)
}

/// What the passes say about the hypothesis.
pub fn verdict([first, _, again, other]: &[Pass; 4]) -> String {
    let ratio = median_ratio(&again.latencies_us, &other.latencies_us);
    let said = if ratio.high.is_some_and(|high| high < 1.0) {
        "come faster: some cache below the kernel holds them"
    } else {
        "come no faster: nothing below the kernel holds them, or it held both"
    };
    let tenths = first.tenths_us();
    let fall = tenths.last().zip(tenths.first()).map_or(f64::NAN, |(end, begin)| end / begin);
    format!(
        "A page read before takes {:.1} µs, {:.3} ({}, 95 %) of what a page takes that nothing had read. So pages \
         read before {said}. The last tenth of the first pass took {fall:.2} of its first.",
        again.quantile_us(0.5),
        ratio.value,
        ratio.interval(3),
    )
}

/// What [`sizes`] says about a drive that reads ahead.
pub fn read_ahead_verdict([in_order, at_random, ..]: &[Pass; 4]) -> String {
    let ratio = median_ratio(&in_order.latencies_us, &at_random.latencies_us);
    let said = if ratio.high.is_some_and(|high| high < READ_AHEAD_RATIO) {
        "the drive, or its host, reads ahead"
    } else {
        "nothing below the kernel reads ahead, or as much at random"
    };
    format!(
        "In order a page takes {:.1} µs, {:.3} ({}, 95 %) of what it takes at random: {said}.",
        in_order.quantile_us(0.5),
        ratio.value,
        ratio.interval(3),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verdict_follows_the_interval() {
        let pass = |name, us: f64| Pass {
            name,
            read_pages: 1,
            latencies_us: (0..20).map(|n| us + f64::from(n % 5)).collect(),
        };
        let of =
            |again| [pass("first", 100.0), pass("second", 100.0), pass("again", again), pass("other", 100.0)];
        assert!(verdict(&of(100.0)).contains("come no faster"), "{}", verdict(&of(100.0)));
        assert!(verdict(&of(120.0)).contains("come no faster"));
        assert!(verdict(&of(50.0)).contains("come faster"), "{}", verdict(&of(50.0)));
        assert_eq!(pass("first", 100.0).tenths_us().len(), 10);
        let of = |in_order| {
            [
                pass("in order", in_order),
                pass("at random", 100.0),
                pass("at random", 200.0),
                pass("at random", 900.0),
            ]
        };
        assert!(
            read_ahead_verdict(&of(20.0)).contains("host, reads ahead"),
            "{}",
            read_ahead_verdict(&of(20.0))
        );
        assert!(read_ahead_verdict(&of(98.0)).contains("nothing below the kernel"));
        assert_eq!(Pass { read_pages: 256, ..pass("at random", 998.0) }.megabytes_a_second().round(), 1049.0);
    }

    #[test]
    fn reads_of_each_size_take_turns_and_stay_in_the_file() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
        if !prepage_testing::has(prepage_testing::Need::DirectReads(directory.to_owned())) {
            return;
        }
        let file = crate::Subject::create(directory, 8 << 20).unwrap();
        let sizes = sizes(file.path(), file.pages()).unwrap();
        // A quarter of the half that is left: 256 pages.
        assert_eq!(
            sizes.each_ref().map(|pass| (pass.read_pages, pass.latencies_us.len())),
            [(1, 256), (1, 256), (32, 8), (256, 1)]
        );
        assert!(sizes.iter().all(|pass| pass.quantile_us(0.0) > 0.0 && pass.megabytes_a_second() > 0.0));
        assert!(super::sizes(file.path(), 2040).is_err());
    }

    #[test]
    fn every_page_of_a_part_is_read_in_each_pass() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
        if !prepage_testing::has(prepage_testing::Need::DirectReads(directory.to_owned())) {
            return;
        }
        let file = crate::Subject::create(directory, 64 * PAGE_SIZE).unwrap();
        let passes = passes(file.path(), file.pages()).unwrap();
        assert!(passes.iter().all(|pass| pass.latencies_us.len() == 16 && pass.quantile_us(0.0) > 0.0));
        assert!(super::passes(file.path(), 4).is_err());
    }
}
