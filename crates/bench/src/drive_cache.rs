//! Whether a drive gets faster for a file it has read before.
//!
//! The page-fault study saw its disk faults fall from 200 to 50 µs while it went on, and took that for the drive copying the
//! file into its own memory. Direct reads ask the drive itself. A part of a file is read twice; then its pages and those of a
//! part that nothing had read since the caches of drive and host were filled with other data take turns, so that whatever
//! else makes the drive slow meets both alike. If the hypothesis holds, the pages read before come faster.

use std::io;
use std::path::Path;
use std::time::Instant;

use prepage_core::random::SplitMix;
use prepage_core::{PageIndex, PageRange};
use prepage_prefetch::statistics::{median_ratio, quantile};
use prepage_simulate::model::FILE_PAGES;

use crate::direct::DirectFile;

/// Latencies of reading a part of the file, in microseconds, in the order of the reads.
#[derive(Clone, Debug)]
pub struct Pass {
    /// `first`, `second`, and, in turns with each other, `again` and `other`: the same part, and one that nothing had read.
    pub name: &'static str,
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
}

/// Reads the pages of one part of the file in `path` in random order, twice, and then in turns with those of another part.
/// The parts are as long as the study's file, or shorter where the file is; they lie at its beginning, which was written
/// longest ago.
///
/// # Errors
/// Where the file has no direct reads, or is shorter than eight pages.
pub fn passes(path: &Path, pages: u64) -> io::Result<[Pass; 4]> {
    let part = FILE_PAGES.min(pages / 4);
    if part < 2 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the file is too short"));
    }
    let mut file = DirectFile::open(path, 1)?;
    let mut read = |page: u64| -> io::Result<f64> {
        let begun = Instant::now();
        file.read(PageRange::new(PageIndex(page), PageIndex(page + 1)))?;
        Ok(begun.elapsed().as_secs_f64() * 1e6)
    };
    let mut passes =
        ["first", "second", "again", "other"].map(|name| Pass { name, latencies_us: Vec::new() });
    let shuffled = |pass| SplitMix::new(pass).shuffled(part);
    for pass in 0..2 {
        for page in shuffled(pass) {
            passes[pass as usize].latencies_us.push(read(page)?);
        }
    }
    for (again, other) in shuffled(2).into_iter().zip(shuffled(3)) {
        passes[2].latencies_us.push(read(again)?);
        passes[3].latencies_us.push(read(part + other)?);
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

#[cfg(test)]
mod tests {
    use prepage_core::PAGE_SIZE;

    use super::*;

    #[test]
    fn the_verdict_follows_the_interval() {
        let pass =
            |name, us: f64| Pass { name, latencies_us: (0..20).map(|n| us + f64::from(n % 5)).collect() };
        let of =
            |again| [pass("first", 100.0), pass("second", 100.0), pass("again", again), pass("other", 100.0)];
        assert!(verdict(&of(100.0)).contains("come no faster"), "{}", verdict(&of(100.0)));
        assert!(verdict(&of(120.0)).contains("come no faster"));
        assert!(verdict(&of(50.0)).contains("come faster"), "{}", verdict(&of(50.0)));
        assert_eq!(pass("first", 100.0).tenths_us().len(), 10);
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
