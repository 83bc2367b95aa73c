//! A file that is twice as large as memory, touched in orders that memory managers are compared by: through mmap(2) in a memory
//! control group, and through the user-space VM with a pool in a group of the same limit.
//!
//! Each run is a process of its own, which enters the group before it opens the file. The VM reads past the page cache, so that
//! its frames, its words and its page tables are all the memory that it takes.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Instant;

use prepage_core::policy::Policy;
use prepage_core::random::SplitMix;
use prepage_core::{FaultClass, PAGE_SIZE, PageRange};
use prepage_simulate::replacement;
use prepage_sys::guarded::Guarded;
use prepage_sys::mapping::FileMapping;
use prepage_sys::process_stat::ProcessStat;
use prepage_sys::processor_time::of_this_process;
use prepage_vm::{MapOptions, Pool, PoolOptions, Replacement, Vm, VmOptions};

use crate::error::BenchError;

/// Memory of a worker that is not the VM's frames, in bytes, for a file of `size_bytes` and so many touches: the program and buffers (5.4 MiB were
/// measured, by memory.max_usage_in_bytes less what the others are told to take; up to 5 MiB more are pages of the program's file, of which the kernel keeps
/// what is used), words, sums and page tables, and the list of touches.
pub const fn overhead_bytes(size_bytes: u64, touches: u64) -> u64 {
    (6 << 20) + size_bytes / 128 + (touches + size_bytes / PAGE_SIZE) * size_of::<u64>() as u64
}

prepage_core::named! {
    /// An order of touches.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Order {
        /// Every page as likely as any other.
        Uniform = "uniform",
        /// The page of rank r as likely as r to the power of −0.99, ranks scattered over the file (YCSB's default).
        Zipf = "zipf",
        /// A quarter of memory at random, every other touch; between them a scan around the rest of the file.
        Scan = "scan",
    }
}

prepage_core::named! {
    /// Who serves the touches.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Way {
        /// The kernel after MADV_RANDOM: it reads one page a fault.
        KernelRandom = "kernel-random",
        /// The kernel, which reads around as its read-ahead says.
        Kernel = "kernel",
        /// The VM, one page a read.
        Vm = "vm",
        /// The VM, 16 pages a read.
        VmClusters = "vm-clusters",
        /// The VM by its default policy, which reads far ahead where pages are touched in order.
        VmDefault = "vm-default",
        /// The VM, one page a read, by the rule of [`Replacement::DontNeed`].
        VmDontNeed = "vm-dont-need",
        /// The VM, one page a read, by the rule of [`Replacement::Static`].
        VmStatic = "vm-static",
        /// The VM without a limit, one page a read, each page touched once: what a fault takes where nothing is reclaimed.
        VmUnlimited = "vm-unlimited",
    }
}

impl Order {
    /// `count` touches of a file of `pages` pages, of which half fit into memory. The same each time.
    pub fn touches(self, pages: u64, count: u64) -> Vec<u64> {
        let mut random = SplitMix::new(0x9e37_79b9_7f4a_7c15);
        match self {
            Self::Uniform => (0..count).map(|_| random.below(pages)).collect(),
            Self::Zipf => {
                let mut sums = Vec::with_capacity(pages as usize);
                let mut total = 0.0;
                for rank in 1..=pages {
                    total += (rank as f64).powf(-0.99);
                    sums.push(total);
                }
                // Every number once: 2654435761 is a prime, and larger than any file's pages.
                let scattered = |rank: usize| (rank as u64).wrapping_mul(2_654_435_761) % pages;
                let at = |part: f64| sums.partition_point(|&sum| sum < part * total).min(sums.len() - 1);
                let share = |random: &mut SplitMix| (random.next() >> 16) as f64 / (1_u64 << 48) as f64;
                (0..count).map(|_| scattered(at(share(&mut random)))).collect()
            }
            Self::Scan => {
                let hot = (pages / 8).max(1);
                let rest = (pages - hot).max(1);
                (0..count)
                    .map(|turn| if turn % 2 == 0 { random.below(hot) } else { hot + turn / 2 % rest })
                    .collect()
            }
        }
    }
}

/// One run, from when memory was full.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Served {
    /// For all touches.
    pub seconds: f64,
    /// Of these on a processor, of the whole process.
    pub cpu_seconds: f64,
    /// Faults that read: hard faults of the VM, major faults of the kernel. These leave out touches that waited for read-ahead
    /// under way, which are minor faults.
    pub misses: u64,
    /// Of the VM: pages that were unwired and wired again, by faults that read nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rewired: Option<u64>,
    /// Of the VM: reads that had to wait for a frame.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frame_waits: Option<u64>,
    /// Of the VM: 99 of 100 faults that read took no longer, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_us: Option<f64>,
}

/// Enters the control group in the directory `group`, for good.
///
/// # Errors
/// Those of writing there.
pub fn enter(group: &Path) -> io::Result<()> {
    std::fs::write(group.join("cgroup.procs"), std::process::id().to_string())
}

/// Limits the group in `group`, of version 1 or 2, until what is returned is dropped, or this process ends in whatever way. To be called while the
/// process has one thread.
///
/// # Errors
/// Those of reading and writing there; ResourceBusy where processes are in the group, whom the limit would harm, or groups, which processes may enter.
pub fn limit(group: &Path, bytes: u64) -> io::Result<Guarded> {
    let has_groups = std::fs::read_dir(group)?.flatten().any(|entry| entry.path().is_dir());
    if has_groups || !std::fs::read_to_string(group.join("cgroup.procs"))?.trim().is_empty() {
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, "processes or groups are in it"));
    }
    let one = group.join("memory.limit_in_bytes");
    let file = if one.exists() { one } else { group.join("memory.max") };
    let file = File::options().read(true).write(true).open(file)?;
    Guarded::set(&[file], &bytes.to_string(), None, || ())
}

/// Touches the file at `path` in this process: `before` touches until memory is full, and then all that are timed. Of `threads` each
/// does every so many-th pair of touches.
///
/// # Errors
/// When the file cannot be mapped, or no VM can be made.
pub fn serve(
    path: &Path,
    way: Way,
    pool_bytes: u64,
    touches: &[u64],
    before: usize,
    threads: usize,
) -> Result<Served, BenchError> {
    let (first, rest) = touches.split_at(before.min(touches.len()));
    let replacement = match way {
        Way::Kernel | Way::KernelRandom => {
            return Ok(by_kernel(path, way == Way::KernelRandom, first, rest, threads)?);
        }
        Way::VmDontNeed => Replacement::DontNeed,
        Way::VmStatic => Replacement::Static,
        Way::Vm | Way::VmClusters | Way::VmDefault | Way::VmUnlimited => Replacement::TwoQueues,
    };
    let limit_bytes = if way == Way::VmUnlimited { u64::MAX } else { pool_bytes };
    let vm = Vm::new(
        VmOptions::default()
            .pool(&Pool::with(&PoolOptions::default().limit_bytes(limit_bytes).replacement(replacement))?),
    )?;
    let object = vm.file_direct(path)?;
    let options = MapOptions::shared();
    let options = match way {
        Way::VmDefault => options,
        Way::VmClusters => options.policy(Policy::Aligned(16)),
        _ => options.policy(Policy::Around { behind: 0, ahead: 0 }),
    };
    let map = vm.map(&object, &options)?;
    let touch = |page: u64| u64::from(map.as_slice()[(page * PAGE_SIZE) as usize]);
    touch_all(first, threads, touch);
    let warm = vm.statistics();
    let served = timed(|| touch_all(rest, threads, touch))?;
    let now = vm.statistics();
    let [mut costs_ns, of_warm] =
        [&now, &warm].map(|statistics| statistics.costs_ns[FaultClass::Disk as usize].clone());
    costs_ns.subtract(of_warm).expect("what was counted stays counted");
    Ok(Served {
        misses: now.counted.hard - warm.counted.hard,
        rewired: Some(now.counted.pages_rewired - warm.counted.pages_rewired),
        frame_waits: Some(now.counted.frame_waits - warm.counted.frame_waits),
        p99_us: (!costs_ns.is_empty()).then(|| costs_ns.value_at_quantile(0.99) as f64 / 1e3),
        ..served
    })
}

/// What the thread `number` of `threads` touches: pairs, so that each does both halves of [`Order::Scan`].
fn share(pages: &[u64], number: usize, threads: usize) -> impl Iterator<Item = u64> {
    pages.chunks(2).skip(number).step_by(threads).flatten().copied()
}

/// Touches pages by so many threads.
fn touch_all(pages: &[u64], threads: usize, touch: impl Fn(u64) -> u64 + Sync) {
    let touch_some = |number| {
        let sum: u64 = share(pages, number, threads).map(&touch).sum();
        std::hint::black_box(sum);
    };
    std::thread::scope(|scope| {
        (1..threads).for_each(|number| drop(scope.spawn(move || touch_some(number))));
        touch_some(0);
    });
}

fn by_kernel(
    path: &Path,
    in_no_order: bool,
    first: &[u64],
    rest: &[u64],
    threads: usize,
) -> io::Result<Served> {
    let file = File::open(path)?;
    let mapping = FileMapping::new(file.as_fd(), PageRange::covering(0, file.metadata()?.len()))?;
    if in_no_order {
        mapping.expect_random()?;
    }
    let touch = |page: u64| u64::from(mapping.byte(page * PAGE_SIZE));
    touch_all(first, threads, touch);
    timed(|| touch_all(rest, threads, touch))
}

/// What `work` takes, with the misses that the kernel counts.
fn timed(work: impl FnOnce()) -> io::Result<Served> {
    let faults = || ProcessStat::of(std::process::id()).map(|stat| stat.major_faults);
    let (faults_before, cpu_before, began) = (faults()?, of_this_process(), Instant::now());
    work();
    let seconds = began.elapsed().as_secs_f64();
    let misses = faults()? - faults_before;
    let cpu_seconds = (of_this_process() - cpu_before).as_secs_f64();
    Ok(Served { seconds, cpu_seconds, misses, ..Served::default() })
}

/// Misses of rules that a memory manager can follow, and of one that knows the future, where memory holds `frames` pages: those of
/// the touches behind the first `before`, as all less those of the first alone.
pub fn simulated(touches: &[u64], before: usize, frames: u64) -> [(&'static str, u64); 5] {
    let first = &touches[..before.min(touches.len())];
    let of = |rule: &dyn Fn(&[u64]) -> u64| rule(touches) - rule(first);
    [
        ("lru", of(&|touches| replacement::lru(touches).faults(frames))),
        ("clock", of(&|touches| replacement::clock(touches, frames))),
        ("2q", of(&|touches| replacement::two_q(touches, frames))),
        ("s3-fifo", of(&|touches| replacement::s3_fifo(touches, frames))),
        ("opt", of(&|touches| replacement::opt(touches, frames))),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn orders_reach_all_pages_and_are_what_they_say() {
        for order in Order::ALL {
            let touches = order.touches(512, 200_000);
            let pages: HashSet<u64> = touches.iter().copied().collect();
            assert_eq!((pages.len(), pages.iter().max()), (512, Some(&511)), "{}", order.name());
            assert_eq!(order.name().parse::<Order>().unwrap(), order);
        }
        let scan = Order::Scan.touches(512, 16_000);
        let shares: Vec<Vec<u64>> = (0..8).map(|number| share(&scan, number, 8).collect()).collect();
        let hot = |share: &Vec<u64>| share.iter().filter(|&&page| page < 512 / 8).count();
        assert!(shares.iter().all(|share| (hot(share), share.len()) == (1000, 2000)), "every other touch");
        let mut counts = vec![0_u64; 512];
        Order::Zipf.touches(512, 200_000).iter().for_each(|&page| counts[page as usize] += 1);
        counts.sort_unstable();
        // The most touched page comes twice as often as the next: 2 to the power of 0.99.
        assert!((1.8..2.2).contains(&(counts[511] as f64 / counts[510] as f64)), "{:?}", &counts[508..]);
    }

    #[test]
    fn every_way_serves_all_touches() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
        if !prepage_testing::has(prepage_testing::Need::DirectReads(directory.to_owned())) {
            return;
        }
        let file = crate::Subject::create(directory, 256 * PAGE_SIZE).unwrap();
        let touches = Order::Zipf.touches(256, 4096);
        for (way, threads) in Way::ALL.into_iter().flat_map(|way| [(way, 1), (way, 3)]) {
            let served = match serve(file.path(), way, 128 * PAGE_SIZE, &touches, 1024, threads) {
                Ok(served) => served,
                Err(BenchError::Map(error)) => {
                    let need = prepage_testing::Need::Doctor(prepage_testing::Doctor::ServedFaults);
                    return prepage_testing::skip(need, error);
                }
                Err(error) => panic!("{error}"),
            };
            assert!(served.seconds > 0.0, "{}", way.name());
            // What is not known of the kernel is left out, not told as 0.
            let told = serde_json::to_value(served).unwrap();
            for figure in ["rewired", "frame_waits", "p99_us"] {
                let is_of_vm = !matches!(way, Way::Kernel | Way::KernelRandom);
                assert_eq!(told.get(figure).is_some(), is_of_vm, "{}: {told}", way.name());
            }
            if matches!(way, Way::Vm | Way::VmDontNeed | Way::VmStatic) {
                assert!(served.misses > 0 && served.misses < 3072, "{}: {served:?}", way.name());
            }
        }
        let misses = simulated(&touches, 1024, 128);
        let best = misses_of(&misses, "opt");
        assert!(misses.iter().all(|(_, misses)| *misses >= best));
    }

    fn misses_of(misses: &[(&str, u64)], name: &str) -> u64 {
        misses.iter().find(|(rule, _)| *rule == name).unwrap().1
    }
}
