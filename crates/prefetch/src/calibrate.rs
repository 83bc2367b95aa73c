//! Measuring a device: how long one read takes, how fast large ones come, and how many at once are worth asking for.
//!
//! Random 4 KiB reads one after the other; large reads, eight at once; then random 4 KiB reads 2, 4 … 64 at once.
//! All go past the page cache to a file of our own (or to the largest there are), so that the device alone is measured:
//! with whatever the device, its host or its network caches. Two seconds in all, and the time to write the file.

pub mod cache;
pub mod device;
mod sample;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::RwLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use prepage_core::random::SplitMix;
use prepage_core::{DeviceFigures, PAGE_SIZE};
use prepage_sys::clock;
use sample::{Buffer, Sample};

/// Reads at once that are tried, beside one alone.
const DEPTHS: [u32; 6] = [2, 4, 8, 16, 32, DeviceFigures::DEPTH_MAX];
/// How long each kind of reads goes on.
const PHASE: Duration = Duration::from_millis(200);
/// Reads that a median and a 99th percentile are taken of, if they do not take longer than a phase or two.
const LATENCY_READS: usize = 1000;
/// Large reads: as long as the longest of a prefetch, and longer.
const LARGE_BYTES: [usize; 2] = [128 << 10, sample::READ_BYTES_MAX];
/// Large reads at once.
const LARGE_DEPTH: u32 = 8;

/// What was measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calibration {
    /// The numbers that plans are made with.
    pub figures: DeviceFigures,
    /// 99 of 100 single random 4 KiB reads took no longer, nanoseconds.
    pub latency_p99_ns: u64,
    /// Random 4 KiB reads a second by how many there were at once. Of one at once they are those whose median is the latency: where few are much slower
    /// than most, there are fewer a second than that promises.
    pub rates: Vec<(u32, u64)>,
    /// When, in seconds since 1970.
    pub measured_unix_s: u64,
}

/// Why a device was not measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrateError {
    /// There is no device.
    #[error("{} is on {system}, which has no device", path.display())]
    Memory {
        /// What was to be measured.
        path: PathBuf,
        /// The file system.
        system: &'static str,
    },
    /// The file to be read does not fit.
    #[error("{} has room for {} MB, and {} MB are needed for a moment", path.display(), room_bytes / 1_000_000, needed_bytes / 1_000_000)]
    NoSpace {
        /// Where.
        path: PathBuf,
        /// How much is written.
        needed_bytes: u64,
        /// How much there is room for.
        room_bytes: u64,
    },
    /// Too small a file to read at random from.
    #[error("{} has {} kB, and at least {} kB are needed", path.display(), bytes / 1000, needed_bytes / 1000)]
    TooSmall {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The size needed.
        needed_bytes: u64,
    },
    /// Nothing would be read where it has holes.
    #[error("{} has holes, or is compressed", path.display())]
    Holes {
        /// The file.
        path: PathBuf,
    },
    /// Memory would be measured.
    #[error("{} stays in the page cache, and its file system has no direct reads", path.display())]
    StaysInMemory {
        /// What was to be measured.
        path: PathBuf,
    },
    /// The operating system refused.
    #[error("{}", path.display())]
    Io {
        /// What it was about.
        path: PathBuf,
        /// Its reason.
        source: io::Error,
    },
}

impl CalibrateError {
    /// What helps, as one line.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Memory { .. } => "name a directory on a disk: prepage calibrate /usr",
            Self::NoSpace { .. } => "make room, or name a large file on the same disk instead",
            Self::TooSmall { .. } => "name a larger file, or a directory that you may write to",
            Self::Holes { .. } => "name a file without holes, or a directory that you may write to",
            Self::StaysInMemory { .. } => "name a large file that no running program uses",
            Self::Io { .. } => {
                "name a directory on the disk that you may write to, or a large file that you may read"
            }
        }
    }
}

/// Measures the device under `path`: by a file written in that directory for as long as it takes, or, where this user may
/// not write, by the largest files below it. Of a file, by reading it.
pub fn calibrate(path: &Path) -> Result<Calibration, CalibrateError> {
    let sample = Sample::on(path)?;
    let io = |source| CalibrateError::Io { path: path.into(), source };
    let mut latencies_ns = latencies(&sample).map_err(io)?;
    latencies_ns.sort_unstable();
    let quantile = |share: f64| latencies_ns[((latencies_ns.len() - 1) as f64 * share) as usize];
    let mut bytes_per_second = 0;
    for len in LARGE_BYTES {
        let (_, rate) = rate(&sample, len, LARGE_DEPTH, spawn).map_err(io)?;
        bytes_per_second = bytes_per_second.max(rate * len as u64);
    }
    let mut rates = rates(&sample, spawn).map_err(io)?;
    rates.insert(0, (1, rate_alone(&latencies_ns)));
    let (depth, operations_per_second) = useful_depth(&rates);
    let figures = DeviceFigures {
        latency_ns: quantile(0.5).max(1_000),
        bytes_per_second,
        depth,
        operations_per_second,
    };
    Ok(Calibration { figures, latency_p99_ns: quantile(0.99), rates, measured_unix_s: clock::unix_s() })
}

/// The least depth with nearly the highest rate, and that rate where more depth does not raise it.
fn useful_depth(rates: &[(u32, u64)]) -> (u32, Option<u64>) {
    /// Each doubling of the depth makes the program's own misses wait behind twice as many reads: not for less.
    const NEARLY: f64 = 0.8;
    let most = rates.iter().map(|&(_, rate)| rate).max().unwrap_or(1).max(1);
    let is_enough = |&&(_, rate): &&(u32, u64)| rate as f64 >= NEARLY * most as f64;
    let depth = rates.iter().find(is_enough).map_or(1, |&(depth, _)| depth);
    let deepest = rates.last().map_or(1, |&(depth, _)| depth);
    (depth, (depth < deepest).then_some(most))
}

/// Nanoseconds of single random 4 KiB reads.
fn latencies(sample: &Sample) -> io::Result<Vec<u64>> {
    let mut buffer = Buffer::new();
    let page = PAGE_SIZE as usize;
    let order = SplitMix::new(1).shuffled(sample.blocks(page));
    sample.chill()?;
    // The first read of a file also reads where its blocks lie.
    sample.read(order[0], &mut buffer, page)?;
    let began = Instant::now();
    let mut taken_ns = Vec::with_capacity(LATENCY_READS);
    for &at in order.iter().skip(1).take(LATENCY_READS) {
        let start = Instant::now();
        sample.read(at, &mut buffer, page)?;
        taken_ns.push(start.elapsed().as_nanos() as u64);
        if began.elapsed() > 2 * PHASE {
            break;
        }
    }
    Ok(taken_ns)
}

/// How many reads a second they are that took so long, one after the other.
fn rate_alone(latencies_ns: &[u64]) -> u64 {
    let mean_ns = latencies_ns.iter().sum::<u64>() as f64 / latencies_ns.len().max(1) as f64;
    (1e9 / mean_ns.max(1.0)).max(1.0) as u64
}

/// Random 4 KiB reads a second by how many there are at once, several, as far as there are threads for them.
fn rates(sample: &Sample, spawn: Spawn) -> io::Result<Vec<(u32, u64)>> {
    let mut rates = Vec::new();
    for depth in DEPTHS {
        let (reached, rate) = rate(sample, PAGE_SIZE as usize, depth, spawn)?;
        // More at once than there can be is of no use to a prefetch of this user either.
        if reached < depth {
            break;
        }
        rates.push((depth, rate));
    }
    Ok(rates)
}

/// Has a thread read; `None` where no thread can be had.
type Spawn = for<'scope> fn(
    &'scope Scope<'scope, '_>,
    Box<dyn FnOnce() -> io::Result<Completed> + Send + 'scope>,
) -> Option<ScopedJoinHandle<'scope, io::Result<Completed>>>;

/// Reads that were completed, and in which time.
type Completed = (u64, Duration);

fn spawn<'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: Box<dyn FnOnce() -> io::Result<Completed> + Send + 'scope>,
) -> Option<ScopedJoinHandle<'scope, io::Result<Completed>>> {
    std::thread::Builder::new().spawn_scoped(scope, work).ok()
}

/// How many reads there were at once, `depth` where there are threads for that, and random reads of `len` bytes a second.
fn rate(sample: &Sample, len: usize, depth: u32, spawn: Spawn) -> io::Result<(u32, u64)> {
    let order = SplitMix::new(u64::from(depth)).shuffled(sample.blocks(len));
    let next = AtomicUsize::new(0);
    // Held while there are threads to be made; how many there will be is known only then.
    let gate = RwLock::new(());
    sample.chill()?;
    // Each thread gives the reads it completed within the phase, and when it ended.
    let work = || -> io::Result<Completed> {
        let mut buffer = Buffer::new();
        drop(gate.read());
        let (began, mut completed) = (Instant::now(), 0);
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= order.len() && !sample.may_be_read_again() {
                return Ok((completed, began.elapsed()));
            }
            sample.read(order[at % order.len()], &mut buffer, len)?;
            if began.elapsed() > PHASE {
                return Ok((completed, PHASE));
            }
            completed += 1;
        }
    };
    let ended: Vec<io::Result<Completed>> = std::thread::scope(|scope| {
        let closed = gate.write();
        let threads: Vec<_> = (1..depth).map_while(|_| spawn(scope, Box::new(work))).collect();
        drop(closed);
        let own = work();
        let others = threads.into_iter().map(|thread| thread.join().expect("a reader does not panic"));
        others.chain([own]).collect()
    });
    let reached = ended.len() as u32;
    let (mut completed, mut elapsed) = (0, Duration::from_nanos(1));
    for thread in ended {
        let (reads, end) = thread?;
        completed += reads;
        elapsed = elapsed.max(end);
    }
    // Of a device slower than a read a phase, as many as are under way.
    Ok((reached, (completed.max(1) as f64 / elapsed.as_secs_f64()).max(1.0) as u64))
}

#[cfg(test)]
mod tests {
    use prepage_testing::{Need, unless_refused};

    use super::*;

    #[test]
    fn depth_is_the_least_that_nearly_reaches_the_highest_rate() {
        let flash =
            [(1, 17_000), (2, 31_000), (4, 48_000), (8, 60_000), (16, 66_000), (32, 67_000), (64, 65_000)];
        assert_eq!(useful_depth(&flash), (8, Some(67_000)));
        let far = [(1, 1_000), (2, 2_000), (4, 4_000), (8, 8_000), (16, 16_000), (32, 32_000), (64, 63_000)];
        assert_eq!(useful_depth(&far), (64, None));
        let capped = [(1, 1_900), (2, 3_000), (4, 3_010), (8, 2_990), (16, 3_000), (32, 3_000), (64, 3_000)];
        assert_eq!(useful_depth(&capped), (2, Some(3_010)));
        assert_eq!(useful_depth(&[]), (1, None));
    }

    #[test]
    fn what_has_no_device_or_is_too_small_is_told_with_a_remedy() {
        let error = calibrate(Path::new("/proc/self/status")).unwrap_err();
        assert!(matches!(error, CalibrateError::Memory { system: "proc", .. }), "{error}");
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let small = dir.path().join("small");
        std::fs::write(&small, [7; 4096]).unwrap();
        let error = calibrate(&small).unwrap_err();
        assert!(matches!(error, CalibrateError::TooSmall { bytes: 4096, .. }), "{error}");
        assert!(!error.remedy().is_empty());
        let sparse = dir.path().join("sparse");
        std::fs::File::create(&sparse).unwrap().set_len(100 << 20).unwrap();
        let error = calibrate(&sparse).unwrap_err();
        assert!(matches!(error, CalibrateError::Holes { .. }), "{error}");
        let missing = calibrate(&dir.path().join("missing")).unwrap_err();
        assert!(matches!(missing, CalibrateError::Io { .. }), "{missing}");
    }

    /// What measuring a device needs: not a file system in memory.
    fn on_a_disk() -> Need {
        Need::Eviction(env!("CARGO_MANIFEST_DIR").into())
    }

    fn is_memory(error: &CalibrateError) -> bool {
        matches!(error, CalibrateError::Memory { .. })
    }

    #[test]
    fn where_threads_run_out_no_more_reads_are_made_at_once() {
        static LEFT: AtomicUsize = AtomicUsize::new(0);
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let Some(sample) = unless_refused(Sample::on(dir.path()), on_a_disk(), is_memory) else { return };
        let page = PAGE_SIZE as usize;
        let scarce: Spawn = |scope, work| {
            let is_left = |left: usize| left.checked_sub(1);
            LEFT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, is_left).ok()?;
            spawn(scope, work)
        };
        assert_eq!(rate(&sample, page, 8, scarce).unwrap().0, 1, "one can always be made");
        // Enough for 2 and 4 at once, and not for 8.
        LEFT.store(1 + 3 + 5, Ordering::Relaxed);
        let depths: Vec<u32> = rates(&sample, scarce).unwrap().iter().map(|(depth, _)| *depth).collect();
        assert_eq!(depths, [2, 4]);
    }

    #[test]
    fn of_one_read_at_once_rate_and_latency_are_of_the_same_reads() {
        // Three of four from a cache, and a median of 40 µs.
        assert_eq!(rate_alone(&[40_000, 40_000, 40_000, 276_000]), 10_101);
        assert_eq!(rate_alone(&[100_000; 7]), 10_000);
        assert_eq!((rate_alone(&[]), rate_alone(&[u64::MAX >> 1])), (1_000_000_000, 1));
    }

    #[test]
    fn a_real_device_is_measured_and_nothing_stays_of_it() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let Some(calibration) = unless_refused(calibrate(dir.path()), on_a_disk(), is_memory) else { return };
        assert_eq!(calibration.figures.plausible(), Some(calibration.figures));
        assert!(calibration.latency_p99_ns >= calibration.figures.latency_ns);
        assert_eq!(calibration.rates.len(), 1 + DEPTHS.len());
        // Half of the reads took no less than the median: the mean is half of it at least.
        let (depth, alone) = calibration.rates[0];
        assert!(depth == 1 && alone <= 2_000_000_000 / calibration.figures.latency_ns, "{calibration:?}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
