//! A fixed amount of work like that of compilers, by few workers or by many, under three ways to manage memory: what a change of
//! FreeBSD's buffer cache was measured by ("dynamic buffers", freebsd-current: `make -jN kernel` with 160 MB of memory).
//!
//! ```text
//! job: 16 steps of ─┬ write the next part of its own memory, use what there is of it   (a pool's frames, swapped where these are short)
//!                   ├ execute: pages of a program that all jobs share, by Zipf         (text)
//!                   ├ headers: pages of a file that all jobs read, by Zipf             (file data, hot)
//!                   └ its source: pages of a file that no other job reads, in order    (file data, used once)
//! ```
//!
//! The source's baseline frees buffers only when the kernel's *address space* is fragmented, and never since memory is short. The VM has no such
//! map: frames lie in sparse memfds, from which any single page can be punched, so nothing can fragment, and that way is not to be had apart from
//! [`Management::Static`], which it amounts to. (How large that share is was tuned by hand, as `NBUF`: more for files leaves less for processes.)

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_sys::process_stat::ProcessStat;
use prepage_vm::{Counted, Map, MapOptions, Pool, PoolOptions, Replacement, Vm, VmOptions};

use crate::error::BenchError;
use crate::pool::Order;

/// How many jobs there are where nothing else is asked for, however many workers do them.
pub const JOBS: u64 = 120;
const STEPS: u64 = 16;
/// Pages of each kind that a step uses.
const USES: u64 = 64;
/// So often what a step uses is gone through: 5 µs a page.
const PASSES: u64 = 8;
/// Parts of memory: the program, headers, a worker's own memory, and a job's source.
const TEXT_PART: u64 = 8;
const HEADERS_PARTS: (u64, u64) = (3, 8);
const OWN_PART: u64 = 32;
const SOURCE_PART: u64 = 64;

/// How memory is managed. As text `static:3/8`, `dont-need` or `classes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Management {
    /// The source's baseline: file data has a share of memory for itself, wired, and nobody else gets any of it.
    Static(Share),
    /// The source's patch: one pool, idle file data is unwired and goes by `vm_page_dontneed`, no page before another by what it is.
    DontNeed,
    /// One pool, two queues, file data before own memory before text.
    Classes,
}

/// A part of memory, as `3/8`: from 1/16 to 15/16, so that either side has frames to work with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    parts: u64,
    of: u64,
}

impl Share {
    /// In whole pages, of so many bytes.
    fn of_bytes(self, bytes: u64) -> u64 {
        bytes / PAGE_SIZE * self.parts / self.of * PAGE_SIZE
    }
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text
            .split_once('/')
            .and_then(|(parts, of)| Some((parts.parse::<u64>().ok()?, of.parse::<u64>().ok()?)));
        match numbers {
            // What is multiplied by pages stays far below 64 bits.
            Some((parts, of @ ..=1024)) if parts < of && (of..=15 * of).contains(&(16 * parts)) => {
                Ok(Self { parts, of })
            }
            _ => {
                Err("expected a part of memory like 3/8, from 1/16 to 15/16, of 1024 parts at most"
                    .to_owned())
            }
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.parts, self.of)
    }
}

impl FromStr for Management {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "dont-need" => Ok(Self::DontNeed),
            "classes" => Ok(Self::Classes),
            _ => {
                let share =
                    text.strip_prefix("static:").ok_or("expected static:SHARE, dont-need or classes")?;
                share.parse().map(Self::Static)
            }
        }
    }
}

impl fmt::Display for Management {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Static(share) => write!(f, "static:{share}"),
            Self::DontNeed => f.write_str("dont-need"),
            Self::Classes => f.write_str("classes"),
        }
    }
}

/// What the work took.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Took {
    /// By the clock.
    pub real_s: f64,
    /// On processors, in the process's own code.
    pub user_s: f64,
    /// On processors, in the kernel.
    pub system_s: f64,
    /// Pages that were written to swap files.
    pub swaps: u64,
    /// Uses of headers and sources that found their page in memory, as a share. One that waited for another's read did not.
    pub hit_ratio: f64,
}

/// What the source reports of `make -jN kernel`: its baseline and its patch. It has no hit ratios.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Published {
    /// N.
    pub workers: u64,
    /// Without the patch.
    pub baseline: Took,
    /// With it.
    pub patch: Took,
}

impl Took {
    /// How much of the time that this saves against `before` is the kernel's processor time, as a share; `None` where it saves none. With several
    /// processors it may be more than all.
    pub fn system_share_of_gain(&self, before: &Self) -> Option<f64> {
        let gain_s = before.real_s - self.real_s;
        (gain_s > 0.0).then(|| (before.system_s - self.system_s) / gain_s)
    }
}

const fn took(real_s: f64, user_s: f64, system_s: f64, swaps: u64) -> Took {
    Took { real_s, user_s, system_s, swaps, hit_ratio: f64::NAN }
}

/// The source's tables.
pub const PUBLISHED: [Published; 4] = [
    Published {
        workers: 1,
        baseline: took(1608.21, 1387.94, 125.96, 0),
        patch: took(1577.88, 1391.02, 100.90, 0),
    },
    Published {
        workers: 10,
        baseline: took(1576.10, 1360.17, 132.76, 0),
        patch: took(1531.79, 1347.30, 103.60, 0),
    },
    Published {
        workers: 20,
        baseline: took(1568.01, 1280.89, 133.22, 141),
        patch: took(1509.36, 1276.75, 104.69, 77),
    },
    Published {
        workers: 30,
        baseline: took(1923.42, 1215.00, 155.50, 530),
        patch: took(1865.13, 1219.07, 113.43, 465),
    },
];

/// How large the file is that so many jobs read, for so much memory.
pub const fn file_bytes(memory_bytes: u64, jobs: u64) -> u64 {
    let memory = memory_bytes / PAGE_SIZE;
    (memory / TEXT_PART + memory * HEADERS_PARTS.0 / HEADERS_PARTS.1 + jobs * (memory / SOURCE_PART))
        * PAGE_SIZE
}

/// What the jobs share.
struct Shared<'a> {
    /// Of what processes have.
    rest: &'a Vm,
    own_bytes: u64,
    text: Map,
    headers: Map,
    sources: Map,
    /// Of each job.
    source_pages: u64,
    text_uses: Vec<u64>,
    header_uses: Vec<u64>,
    own_uses: Vec<u64>,
}

/// Does `jobs` jobs by `workers` threads with `memory_bytes` for frames, swap files in `swap`, and the file at `path` that is
/// [`file_bytes`] long, which is read past the kernel's page cache.
///
/// # Errors
/// When the file cannot be mapped, or no VM can be made.
pub fn build(
    path: &Path,
    swap: &Path,
    management: Management,
    workers: u64,
    jobs: u64,
    memory_bytes: u64,
) -> Result<Took, BenchError> {
    let with = |limit_bytes: u64, replacement| {
        let swap_bytes = 4 * memory_bytes + 2 * workers * memory_bytes / OWN_PART;
        Pool::with(
            &PoolOptions::default().limit_bytes(limit_bytes).replacement(replacement).swap(swap, swap_bytes),
        )
    };
    // Two VMs, so that file data is counted apart.
    let (buffers, rest) = match management {
        Management::Static(share) => {
            let buffers_bytes = share.of_bytes(memory_bytes);
            // What processes have is managed alike in the baseline and in the patch.
            let rest = with(memory_bytes - buffers_bytes, Replacement::DontNeed)?;
            (with(buffers_bytes, Replacement::Static)?, rest)
        }
        Management::DontNeed => {
            let one = with(memory_bytes, Replacement::DontNeed)?;
            (one.clone(), one)
        }
        Management::Classes => {
            let one = with(memory_bytes, Replacement::TwoQueues)?;
            (one.clone(), one)
        }
    };
    let [buffers, rest] = [buffers, rest].map(|pool| Vm::new(VmOptions::default().pool(&pool)));
    let (buffers, rest) = (buffers?, rest?);
    let memory = memory_bytes / PAGE_SIZE;
    let mut at = 0;
    let mut map = |vm: &Vm, pages: u64, options: MapOptions| -> Result<Map, BenchError> {
        let window = PageRange::new(PageIndex(at), PageIndex(at + pages));
        at += pages;
        Ok(vm.map(&vm.file_direct(path)?, &options.window(window))?)
    };
    let headers = memory * HEADERS_PARTS.0 / HEADERS_PARTS.1;
    let shared = Shared {
        rest: &rest,
        own_bytes: memory / OWN_PART * PAGE_SIZE,
        text: map(&rest, memory / TEXT_PART, MapOptions::shared().executable())?,
        headers: map(&buffers, headers, MapOptions::shared())?,
        sources: map(&buffers, jobs * (memory / SOURCE_PART), MapOptions::shared())?,
        text_uses: Order::Zipf.touches(memory / TEXT_PART, jobs * STEPS * USES),
        header_uses: Order::Zipf.touches(headers, jobs * STEPS * USES),
        source_pages: memory / SOURCE_PART,
        own_uses: Order::Uniform.touches(memory / OWN_PART, STEPS * USES),
    };
    let before = ProcessStat::of(std::process::id())?;
    let began = Instant::now();
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let work = || -> Result<(), BenchError> {
            loop {
                let job = next.fetch_add(1, Ordering::Relaxed);
                if job >= jobs {
                    return Ok(());
                }
                std::hint::black_box(shared.compile(job)?);
            }
        };
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panics"))
    })?;
    let real_s = began.elapsed().as_secs_f64();
    let after = ProcessStat::of(std::process::id())?;
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    let uses = jobs * STEPS * USES + shared.sources.window().len();
    Ok(Took {
        real_s,
        user_s: (after.user_ticks - before.user_ticks) as f64 / ticks,
        system_s: (after.system_ticks - before.system_ticks) as f64 / ticks,
        swaps: rest.statistics().counted.pages_swapped,
        hit_ratio: hit_ratio(&buffers.statistics().counted, uses),
    })
}

/// How many of so many uses found their page in memory: a little fewer than did. A use that meets a page while it is taken away waits, and then reads it if it
/// went: two misses of one use. If it stays, that use counts as a miss too.
fn hit_ratio(counted: &Counted, uses: u64) -> f64 {
    1.0 - (counted.hard + counted.waits) as f64 / uses as f64
}

impl Shared<'_> {
    fn compile(&self, job: u64) -> Result<u64, BenchError> {
        let memory = self.rest.memory(self.own_bytes)?;
        let own = self.rest.map(&memory, &MapOptions::writable())?;
        let bytes = own.as_atomics();
        let own_pages = self.own_bytes / PAGE_SIZE;
        let source_pages = self.source_pages;
        let mut sum = job;
        for step in 0..STEPS {
            let grown = own_pages * (step + 1) / STEPS;
            for page in own_pages * step / STEPS..grown {
                bytes[(page * PAGE_SIZE) as usize].store(sum as u8, Ordering::Relaxed);
            }
            let of_step = ((job * STEPS + step) * USES) as usize..((job * STEPS + step + 1) * USES) as usize;
            for at in of_step {
                sum = through(page_of(&self.text, self.text_uses[at]), sum);
                sum = through(page_of(&self.headers, self.header_uses[at]), sum);
                let page = self.own_uses[at % self.own_uses.len()] % grown.max(1);
                // A byte of each line, as a program that uses it.
                let page = &bytes[(page * PAGE_SIZE) as usize..][..PAGE_SIZE as usize];
                for byte in page.iter().step_by(64) {
                    sum = sum.rotate_left(5) ^ u64::from(byte.load(Ordering::Relaxed));
                }
                page[64].store(sum as u8, Ordering::Relaxed);
            }
            for page in source_pages * step / STEPS..source_pages * (step + 1) / STEPS {
                sum = through(page_of(&self.sources, job * source_pages + page), sum);
            }
        }
        Ok(sum)
    }
}

fn page_of(map: &Map, page: u64) -> &[u8] {
    &map.as_slice()[(page * PAGE_SIZE) as usize..][..PAGE_SIZE as usize]
}

/// Something to compute with a page.
fn through(page: &[u8], mut sum: u64) -> u64 {
    for _ in 0..PASSES {
        for word in page.chunks_exact(8) {
            let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
            sum = (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_gains_are_those_that_the_source_tells_of() {
        let gains: Vec<f64> = PUBLISHED
            .iter()
            .map(|level| level.baseline.real_s - level.patch.real_s)
            .map(f64::round)
            .collect();
        assert_eq!(gains, [30.0, 44.0, 59.0, 58.0]);
        let of_system = |level: &Published| 1.0 - level.patch.system_s / level.baseline.system_s;
        let shares: Vec<f64> = PUBLISHED.iter().map(|level| (100.0 * of_system(level)).round()).collect();
        assert_eq!(shares, [20.0, 22.0, 21.0, 27.0]);
        // "Mostly in system time".
        let of_gain = |level: &Published| level.patch.system_share_of_gain(&level.baseline).unwrap();
        let shares: Vec<f64> = PUBLISHED.iter().map(|level| (100.0 * of_gain(level)).round()).collect();
        assert_eq!(shares, [83.0, 66.0, 49.0, 72.0]);
        let [one, ..] = PUBLISHED;
        assert_eq!(one.baseline.system_share_of_gain(&one.patch), None, "no gain");
    }

    #[test]
    fn managements_are_what_their_names_say() {
        for name in ["static:3/8", "static:1/3", "static:1/16", "static:960/1024", "dont-need", "classes"] {
            assert_eq!(name.parse::<Management>().map(|management| management.to_string()), Ok(name.into()));
        }
        for name in [
            "static",
            "static:",
            "static:0/8",
            "static:8/8",
            "static:-1/8",
            "static:1/1025",
            "static:1/1024",
            "static:1/17",
            "static:16/17",
            "static:1023/1024",
            "static:18446744073709551615/16",
            "static:3",
            "other",
        ] {
            assert!(name.parse::<Management>().is_err(), "{name}");
        }
        let share: Share = "5/8".parse().unwrap();
        assert_eq!((share.of_bytes(64 << 20), share.of_bytes(PAGE_SIZE)), (40 << 20, 0));
    }

    #[test]
    fn who_waits_for_another_ones_read_did_not_find_the_page() {
        let mut counted = Counted::default();
        (counted.hard, counted.soft, counted.waits) = (1, 3, 1);
        assert_eq!(hit_ratio(&counted, 4), 0.5);
    }

    #[test]
    fn the_work_is_done_under_every_management() {
        const MEMORY: u64 = 8 << 20;
        const JOBS: u64 = 6;
        let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
        if !prepage_testing::has(prepage_testing::Need::DirectReads(directory.to_owned())) {
            return;
        }
        let file = crate::Subject::create(directory, file_bytes(MEMORY, JOBS)).unwrap();
        let swap = tempfile::tempdir_in(directory).unwrap();
        for management in ["static:3/8", "static:1/8", "dont-need", "classes"] {
            let management = management.parse().unwrap();
            let took = match build(file.path(), swap.path(), management, 3, JOBS, MEMORY) {
                Ok(took) => took,
                Err(BenchError::Map(error)) => {
                    let need = prepage_testing::Need::Doctor(prepage_testing::Doctor::ServedFaults);
                    return prepage_testing::skip(need, error);
                }
                Err(error) => panic!("{error}"),
            };
            assert!(took.real_s > 0.0, "{management:?} {took:?}");
            assert!(took.hit_ratio > 0.0 && took.hit_ratio < 1.0, "{management:?} {took:?}");
        }
    }
}
