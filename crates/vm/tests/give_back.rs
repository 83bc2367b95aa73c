//! A pool that gives memory back while its control group is short of it.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use prepage_core::PAGE_SIZE;
use prepage_core::random::SplitMix;
use prepage_sys::psi::Trigger;
use prepage_testing::{Need, Swap, has, unless_refused};
use prepage_vm::{Map, MapOptions, Pool, PoolOptions, Source, SourceError, Vm, VmOptions};
use support::{Words, child_command, is_child, touch, word};

const HELD_BYTES: u64 = 48 << 20;

/// Where control groups of one version are, and their files.
struct Groups {
    parent: &'static str,
    limit: &'static str,
    usage: &'static str,
}

const VERSION_1: Groups = Groups {
    parent: "/sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
};
const VERSION_2: Groups = Groups { parent: "/sys/fs/cgroup", limit: "memory.max", usage: "memory.current" };

/// A control group, which is removed in the end.
struct Group {
    directory: PathBuf,
    of: Groups,
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process that has just ended may be in it for a moment.
        let began = Instant::now();
        while std::fs::remove_dir(&self.directory).is_err() && began.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Group {
    /// `None`, and a skip, where this user or this machine has none that limits memory.
    fn new(name: &str) -> Option<Self> {
        let has_first = Path::new(VERSION_1.parent).join(VERSION_1.limit).exists();
        let of = if has_first { VERSION_1 } else { VERSION_2 };
        let directory = Path::new(of.parent).join(format!("prepage-{name}-{}", std::process::id()));
        let need = Need::Path(directory.join(of.limit));
        let refused = |error: &std::io::Error| {
            use std::io::ErrorKind::{NotFound, PermissionDenied, ReadOnlyFilesystem};
            matches!(error.kind(), NotFound | PermissionDenied | ReadOnlyFilesystem)
        };
        unless_refused(std::fs::create_dir(&directory), need.clone(), refused)?;
        let group = Self { directory, of };
        has(need).then_some(group)
    }

    fn set_limit(&self, bytes: u64) -> std::io::Result<()> {
        std::fs::write(self.directory.join(self.of.limit), bytes.to_string())
    }

    /// One of this program's tests in a process of its own, which is in the group.
    fn command(&self, child: &str) -> Command {
        let processes = self.directory.join("cgroup.procs");
        child_command(child, &["sh", "-c", "echo $$ > \"$0\" && exec \"$@\"", processes.to_str().unwrap()])
    }

    fn usage(&self) -> u64 {
        std::fs::read_to_string(self.directory.join(self.of.usage)).unwrap().trim().parse().unwrap()
    }

    /// Pages that the kernel swapped out and brought back.
    fn came_back(&self) -> u64 {
        let counts = std::fs::read_to_string(self.directory.join("memory.stat")).unwrap();
        let count = counts.lines().find_map(|line| line.strip_prefix("workingset_refault_anon "));
        count.expect("the kernel tells it").parse().unwrap()
    }
}

#[test]
fn a_limit_that_shrinks_is_followed() {
    let Some(group) = Group::new("give-back") else { return };
    group.set_limit(256 << 20).unwrap();
    let mut child =
        group.command("child_holds").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = wait_until_it_holds_all(&mut child);
    // The kernel takes no limit below what cannot be taken away, or kills: it is lowered as far as the pool lets it. A MiB is less than
    // the pool leaves free.
    let wanted = group.usage() - (4 << 20);
    let began = Instant::now();
    loop {
        let usage = group.usage();
        if usage <= wanted {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(240), "nothing is given back");
        let _ = group.set_limit(usage + (1 << 20));
        std::thread::sleep(Duration::from_millis(100));
    }
    group.set_limit(256 << 20).unwrap();
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert!(child.wait().unwrap().success(), "{rest}");
    assert!(rest.contains("gave back"), "{rest}");
}

/// It lies in swap space, takes no memory, and would take some on its way out.
#[test]
fn what_the_kernel_has_swapped_out_stays_there_while_memory_is_short() {
    if !has(Need::Swap) {
        return;
    }
    let Some(group) = Group::new("swapped-out") else { return };
    group.set_limit(256 << 20).unwrap();
    let _swap = Swap::on(256 << 20);
    let mut child =
        group.command("child_is_swapped").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = wait_until_it_holds_all(&mut child);
    let before = group.came_back();
    // Less than is to stay free is left.
    group.set_limit(group.usage() + (1 << 20)).unwrap();
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    let came_back = group.came_back() - before;
    assert!(child.wait().unwrap().success(), "{rest}");
    let given = rest.lines().find_map(|line| line.strip_prefix("gave back ")?.parse::<u64>().ok());
    assert!(given.is_some_and(|given| came_back < given / 2), "{came_back} pages came back: {rest}");
}

/// What the child says afterwards.
fn wait_until_it_holds_all(child: &mut Child) -> BufReader<ChildStdout> {
    let mut said = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.ends_with("holds all\n") {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "the child ended");
    }
    said
}

/// A map in a pool that gives back, all of it in memory.
fn holds_all() -> (Vm, Map) {
    let pool = Pool::with(&PoolOptions::default().gives_back(1 << 20)).unwrap();
    let vm = Vm::new(VmOptions::default().pool(&pool)).unwrap();
    let object = vm.source("words", Words { len_bytes: HELD_BYTES, ..Words::default() }).unwrap();
    let map = vm.map(&object, &MapOptions::shared()).unwrap();
    map.populate(map.window()).unwrap();
    (vm, map)
}

#[test]
fn child_is_swapped() {
    if !is_child("child_is_swapped") {
        return;
    }
    let (vm, map) = holds_all();
    // What came first goes first.
    // SAFETY: the kernel writes the pages out; what the map shows stays the same.
    let swapped = unsafe {
        libc::madvise(map.address() as *mut libc::c_void, HELD_BYTES as usize / 2, libc::MADV_PAGEOUT)
    };
    assert_eq!(swapped, 0, "{}", std::io::Error::last_os_error());
    println!("holds all");
    std::io::stdin().read_exact(&mut [0]).unwrap();
    let began = Instant::now();
    while vm.statistics().counted.pages_reclaimed < 256 {
        assert!(began.elapsed() < Duration::from_secs(120), "nothing is given back");
        std::thread::sleep(Duration::from_millis(10));
    }
    println!("gave back {}", vm.statistics().counted.pages_reclaimed);
}

#[test]
fn child_holds() {
    if !is_child("child_holds") {
        return;
    }
    let (vm, map) = holds_all();
    println!("holds all");
    std::io::stdin().read_exact(&mut [0]).unwrap();
    let given = vm.statistics().counted.pages_reclaimed;
    // All of it is still to be had.
    for page in 0..HELD_BYTES / PAGE_SIZE {
        assert_eq!(touch(&map, page), word(page * PAGE_SIZE));
    }
    assert!(given > 0);
    println!("gave back {given} pages");
}

/// Far more than its group may hold.
const FILLED_BYTES: u64 = 1 << 30;

#[test]
fn a_pool_that_fills_at_full_speed_stays_within_its_group() {
    let Some(group) = Group::new("fills") else { return };
    group.set_limit(128 << 20).unwrap();
    let output = group.command("child_fills").output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Each page is filled with a byte of its own.
struct Fast;

fn byte(page: u64) -> u8 {
    (page % 251) as u8
}

impl Source for Fast {
    fn len_bytes(&self) -> u64 {
        FILLED_BYTES
    }

    fn read(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), SourceError> {
        for (nth, page) in into.chunks_mut(PAGE_SIZE as usize).enumerate() {
            page.fill(byte(offset_bytes / PAGE_SIZE + nth as u64));
        }
        Ok(())
    }
}

#[test]
fn child_fills() {
    if !is_child("child_fills") {
        return;
    }
    let pool = Pool::with(&PoolOptions::default().gives_back(1 << 20)).unwrap();
    let vm = Vm::new(VmOptions::default().pool(&pool)).unwrap();
    let map = vm.map(&vm.source("fast", Fast).unwrap(), &MapOptions::shared()).unwrap();
    map.populate(map.window()).unwrap();
    for page in (0..FILLED_BYTES / PAGE_SIZE).rev() {
        assert_eq!(map.as_slice()[(page * PAGE_SIZE) as usize], byte(page), "page {page}");
    }
    // It took most of what there is.
    let figures = pool.figures();
    assert!(figures.resident_pages > figures.limit_pages / 2, "{figures:?}");
}

/// A process, which ends with this.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// More than the page cache of its group may hold, read again and again.
const READ_BYTES: u64 = 96 << 20;
const THRASHES: Duration = Duration::from_secs(120);

#[test]
fn tasks_that_wait_for_memory_are_told_of() {
    // Elsewhere (tmpfs) nothing of what is read goes, and nobody waits.
    if !has(Need::Eviction(env!("CARGO_TARGET_TMPDIR").into())) {
        return;
    }
    let Some(group) = Group::new("thrash") else { return };
    // The machine's where groups tell nothing of themselves (version 1).
    let own = group.directory.join("memory.pressure");
    let pressure = if own.exists() { own } else { PathBuf::from("/proc/pressure/memory") };
    let trigger = Trigger::open(&pressure, Duration::from_millis(100));
    let refused = |error: &std::io::Error| {
        const OLD_OR_OFF: [i32; 4] = [libc::ENOENT, libc::EOPNOTSUPP, libc::EACCES, libc::EINVAL];
        error.raw_os_error().is_some_and(|code| OLD_OR_OFF.contains(&code))
    };
    let Some(trigger) = unless_refused(trigger, Need::Pressure, refused) else { return };
    let mut triggers = vec![trigger];
    group.set_limit(24 << 20).unwrap();
    let _thrashes = Ends(group.command("child_thrashes").spawn().unwrap());
    let began = Instant::now();
    let mut is_told = false;
    while !is_told && began.elapsed() < THRASHES {
        is_told = Trigger::wait(&mut triggers, Duration::from_secs(1)).unwrap();
    }
    assert!(is_told, "{}", std::fs::read_to_string(&pressure).unwrap());
}

#[test]
fn child_thrashes() {
    if !is_child("child_thrashes") {
        return;
    }
    let file = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let bytes = vec![7; 1 << 20];
    for at in (0..READ_BYTES).step_by(bytes.len()) {
        file.write_all_at(&bytes, at).unwrap();
    }
    file.sync_all().unwrap();
    let began = Instant::now();
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let file = &file;
            scope.spawn(move || {
                let mut random = SplitMix::new(seed);
                while began.elapsed() < THRASHES {
                    // Some of it more often than the rest.
                    let most = if random.below(2) == 0 { READ_BYTES / 3 } else { READ_BYTES };
                    file.read_exact_at(&mut [0], random.below(most)).unwrap();
                }
            });
        }
    });
}
