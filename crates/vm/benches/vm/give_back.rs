//! A process with an idle half in a control group that another process fills, while tasks of a third one wait for memory: how much its pool gives back, and
//! what that costs its busy half. Where the kernel tells of pressure (PSI), the pool hears of it before memory is missing in the group.
//!
//! The busy half takes turns of 40 µs with as much memory of the process's own, which nobody takes away: only the ratio of both counts, for what else runs on the machine, and its host,
//! slows down both. So do interrupts of unwiring, which it hides: what is left are the busy half's own faults. Where all memory is in huge pages (THP `always`), the
//! process's own is, too.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use prepage_core::PAGE_SIZE;
use prepage_vm::{MapOptions, Pool, PoolOptions, Vm, VmOptions};

use crate::resident::Bytes;
use crate::rounds::Aim;

/// The arguments that make this program one of the three processes.
pub const HOLDER: &str = "give-back-holder";
pub const HOG: &str = "give-back-hog";
pub const WAITER: &str = "give-back-waiter";

const MIB: u64 = 1 << 20;
const LIMIT_MIB: u64 = 1280;
/// What stays free for others in the group, by the pool's rule.
const RESERVE_MIB: u64 = LIMIT_MIB / 32;
/// The waiter reads a file again and again for which its own group has no room: in reclaim it waits for 130 ms of each second.
const WAITER_LIMIT_MIB: u64 = 16;
const WAITER_FILE_MIB: u64 = 64;
const HELD_MIB: u64 = 512;
/// What the other process takes: at once, and MiB by MiB. With what is held, and half as much to compare with, it is 40 % of that beyond the limit less its
/// reserve of a 32nd.
const HOG_FAST_MIB: u64 = 380;
const HOG_SLOW_MIB: u64 = 297;
const HOG_STEP: Duration = Duration::from_millis(40);
/// A line of the holder comes after so long.
const LINE: Duration = Duration::from_millis(500);
/// Lines before the other process begins, and once it has all.
const CALM_LINES: usize = 12;

/// What is held against a bound: the first at least, the others at most.
const AIMS: [(&str, f64); 3] = [
    ("give-back: share of what is held", 0.32),
    ("give-back: slow-down of the busy half, meanwhile", 0.01),
    ("give-back: slow-down of the busy half, after", 0.01),
];

/// Removed with this.
struct Group(PathBuf);

/// Killed with this.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let began = Instant::now();
        while std::fs::remove_dir(&self.0).is_err() && began.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Group {
    fn new(name: &str, limit_mib: u64) -> std::io::Result<Self> {
        let one = Path::new("/sys/fs/cgroup/memory");
        let (parent, limit) = if one.join("memory.limit_in_bytes").exists() {
            (one, "memory.limit_in_bytes")
        } else {
            (Path::new("/sys/fs/cgroup"), "memory.max")
        };
        let directory = parent.join(format!("prepage-bench-{name}-{}", std::process::id()));
        std::fs::create_dir(&directory)?;
        let group = Self(directory);
        std::fs::write(group.0.join(limit), (limit_mib * MIB).to_string())?;
        Ok(group)
    }

    /// The most that it has used; `None` where the kernel does not keep that.
    fn most_mib(&self) -> Option<f64> {
        let files = ["memory.max_usage_in_bytes", "memory.peak"].map(|file| self.0.join(file));
        let text = files.iter().find_map(|file| std::fs::read_to_string(file).ok())?;
        Some(text.trim().parse::<u64>().ok()? as f64 / MIB as f64)
    }

    fn start(&self, what: &str) -> Ends {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.arg(what).arg(&self.0).stdin(Stdio::piped()).stdout(Stdio::piped());
        Ends(command.spawn().expect("it runs"))
    }
}

fn enter(group: &str) {
    std::fs::write(Path::new(group).join("cgroup.procs"), std::process::id().to_string()).expect("root");
}

pub fn measure() -> Vec<Aim> {
    let groups =
        Group::new("held", LIMIT_MIB).and_then(|group| Ok((group, Group::new("waits", WAITER_LIMIT_MIB)?)));
    let (group, waits) = match groups {
        Ok(groups) => groups,
        Err(error) => {
            let why = format!("no memory control group can be made: {error}");
            let [share, slow @ ..] = AIMS;
            let slow = slow.map(|(what, bound)| Aim::not_run_at_most(what, bound, &why));
            return std::iter::once(Aim::not_run(share.0, share.1, &why)).chain(slow).collect();
        }
    };
    // From the beginning: what it takes of the processors is in all figures.
    let mut waiter = waits.start(WAITER);
    let mut holder = group.start(HOLDER);
    let lines = BufReader::new(holder.0.stdout.take().expect("piped")).lines();
    let mut hog = None;
    // Seconds for as many touches of the busy half, of the other memory, and MiB that are held.
    let mut seen: Vec<[f64; 3]> = Vec::new();
    let filling = (HOG_STEP * HOG_SLOW_MIB as u32).as_secs_f64() / LINE.as_secs_f64();
    let full = CALM_LINES + filling as usize + 4;
    for line in lines {
        let line = line.expect("text");
        let numbers: Vec<f64> = line.split(' ').map(|number| number.parse().expect("a number")).collect();
        seen.push(numbers.try_into().expect("three numbers"));
        if seen.len() == CALM_LINES {
            hog = Some(group.start(HOG));
        }
        if seen.len() == full + CALM_LINES {
            break;
        }
    }
    assert!(seen.len() == full + CALM_LINES, "the holder was killed after {} lines", seen.len());
    let hog_lives = hog.as_mut().is_some_and(|hog| matches!(hog.0.try_wait(), Ok(None)));
    assert!(hog_lives, "the other process was killed");
    assert!(
        matches!(waiter.0.try_wait(), Ok(None)),
        "the process that waits was killed: is DIRECTORY in a tmpfs?"
    );
    let of = |lines: &[[f64; 3]]| {
        let seconds = |of: usize| lines.iter().map(|line| line[of]).sum::<f64>();
        seconds(1) / seconds(0)
    };
    let (before, meanwhile, after) =
        (of(&seen[..CALM_LINES]), of(&seen[CALM_LINES..full]), of(&seen[full..]));
    let (held, kept) = (seen[CALM_LINES - 1][2], seen[full + CALM_LINES - 1][2]);
    println!(
        "\na process that holds {held:.0} MiB, half of it idle, beside one that takes {} MiB, of {LIMIT_MIB} MiB",
        HOG_FAST_MIB + HOG_SLOW_MIB
    );
    println!("  {:<56} {:>12.0}", "MiB held in the end", kept);
    if let Some(most_mib) = group.most_mib() {
        let what = format!("MiB of both at most (beyond {} some are missing)", LIMIT_MIB - RESERVE_MIB);
        println!("  {what:<56} {most_mib:>12.0}");
    }
    for (name, rate) in [("before", before), ("meanwhile", meanwhile), ("after", after)] {
        println!(
            "  {:<56} {:>12.3} {:>18} {:>8.3}",
            format!("rate of the busy half, to memory of its own, {name}"),
            rate,
            "",
            rate / before
        );
    }
    let [share, slow_meanwhile, slow_after] = AIMS;
    [
        Aim::at_least(share.0, Some((held - kept) / held), share.1),
        Aim::at_most(slow_meanwhile.0, Some(1.0 - meanwhile / before), slow_meanwhile.1),
        Aim::at_most(slow_after.0, Some(1.0 - after / before), slow_after.1),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Holds memory by a pool, every other MiB of it idle, and touches the rest, in turns with memory of its own.
pub fn holder(group: &str) {
    enter(group);
    let pool = Pool::with(&PoolOptions::default().gives_back(32 * MIB)).unwrap();
    let vm = Vm::new(VmOptions::default().pool(&pool)).unwrap();
    let object = vm.source("held", Bytes(HELD_MIB * MIB)).unwrap();
    let map = vm.map(&object, &MapOptions::shared().every_fault()).unwrap();
    map.populate(map.window()).unwrap();
    let own = vec![1_u8; (HELD_MIB / 2 * MIB) as usize];
    let bytes = map.as_slice();
    let busy = HELD_MIB * MIB / PAGE_SIZE / 2;
    let (mut page, mut other) = (0, 0);
    loop {
        let (began, mut seconds, mut sum) = (Instant::now(), [0.0, 0.0], 0_u64);
        while began.elapsed() < LINE {
            let at = |page: u64| page / 256 * 512 + page % 256;
            seconds[0] += touch(bytes, &mut page, busy, at, &mut sum);
            seconds[1] += touch(&own, &mut other, busy, |page| page, &mut sum);
        }
        std::hint::black_box(sum);
        let held = pool.figures().resident_pages * PAGE_SIZE;
        println!("{} {} {}", seconds[0], seconds[1], held as f64 / MIB as f64);
    }
}

/// Touches 1024 of `pages`, which are `at` places in `bytes`, from `page` on. Returns how many seconds that took.
fn touch(bytes: &[u8], page: &mut u64, pages: u64, at: impl Fn(u64) -> u64, sum: &mut u64) -> f64 {
    let began = Instant::now();
    for _ in 0..1024 {
        // In no order, each once a round: the step and the count have no common factor.
        *page = (*page + 40_503) % pages;
        *sum += u64::from(bytes[(at(*page) * PAGE_SIZE) as usize]);
    }
    began.elapsed().as_secs_f64()
}

/// Takes memory until it is ended.
pub fn hog(group: &str) {
    enter(group);
    let mut taken = Vec::new();
    for taken_mib in 0..HOG_FAST_MIB + HOG_SLOW_MIB {
        taken.push(vec![1_u8; MIB as usize]);
        if taken_mib >= HOG_FAST_MIB {
            std::thread::sleep(HOG_STEP);
        }
    }
    loop {
        std::thread::park();
    }
}

/// Waits for memory now and then until it is ended.
pub fn waiter(group: &str) {
    enter(group);
    let directory = std::env::var("DIRECTORY").unwrap_or_else(|_| ".".to_owned());
    let file = tempfile::tempfile_in(directory).unwrap();
    let mut bytes = vec![1_u8; MIB as usize];
    for at_mib in 0..WAITER_FILE_MIB {
        file.write_all_at(&bytes, at_mib * MIB).unwrap();
    }
    file.sync_data().unwrap();
    loop {
        for at_mib in 0..WAITER_FILE_MIB {
            file.read_exact_at(&mut bytes, at_mib * MIB).unwrap();
        }
    }
}
