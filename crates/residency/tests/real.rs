//! Against the kernel, and against the tools people know: vmtouch and fincore.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use prepage_core::profile::Profile;
use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_profiles::identity::profiled;
use prepage_residency::cold::resident_share;
use prepage_residency::{Residency, Spot, Stopped, Users, Walk, evict, warm};
use prepage_testing::{Doctor, Need, assert_passed, child_command, child_output, has, skip};

/// On a disk: the system's temporary directory may be in memory.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn write(path: &Path, pages: u64) {
    fs::write(path, vec![7; (pages * PAGE_SIZE) as usize]).unwrap();
    fs::File::open(path).unwrap().sync_all().unwrap();
}

fn resident(path: &Path) -> Vec<PageRange> {
    Residency::of(&Spot::file(path).open().unwrap()).unwrap().resident
}

fn range(start: u64, end: u64) -> PageRange {
    PageRange::new(PageIndex(start), PageIndex(end))
}

fn spots(path: &Path, bytes: &str) -> Vec<Spot> {
    let mut walk = Walk::default();
    walk.add(Path::new(&format!("{}:{bytes}", path.display())));
    walk.spots
}

/// Evicts `path`; false, counted as a skip, where files of its directory cannot be evicted at all.
fn can_evict(path: &Path) -> bool {
    if !has(Need::Eviction(path.parent().unwrap().into())) {
        return false;
    }
    evict(&[Spot::file(path)]);
    assert_eq!(resident(path), []);
    true
}

#[test]
fn what_is_warmed_is_in_memory_and_nothing_else() {
    let dir = directory();
    let path = dir.path().join("f");
    write(&path, 1000);
    if !can_evict(&path) {
        return;
    }
    let asked = spots(&path, "1M-2M");
    let warmed = warm(&asked, None);
    assert_eq!((warmed.files[0].before, warmed.files[0].after), (Some(0), Some(256)));
    assert_eq!((warmed.read_bytes, warmed.stopped), (1 << 20, None));
    assert_eq!(resident(&path), [range(256, 512)]);
    assert_eq!(warm(&asked, None).read_bytes, 0, "nothing is read twice");

    let evicted = evict(&spots(&path, "1536k-"));
    assert_eq!((evicted.files[0].before, evicted.files[0].after), (Some(128), Some(0)));
    assert_eq!(resident(&path), [range(256, 384)]);
}

#[test]
fn dirty_pages_are_written_back_and_dropped() {
    let dir = directory();
    let path = dir.path().join("f");
    write(&path, 10);
    if !can_evict(&path) {
        return;
    }
    fs::write(&path, vec![8; 100 * PAGE_SIZE as usize - 5]).unwrap();
    let evicted = evict(&[Spot::file(&path)]);
    assert_eq!((evicted.files[0].before, evicted.files[0].after), (Some(100), Some(0)));
    assert!(evicted.files[0].stay.is_none());
    assert_eq!(fs::read(&path).unwrap(), vec![8; 100 * PAGE_SIZE as usize - 5]);
}

#[test]
fn pages_in_use_stay_and_their_user_is_named() {
    use std::os::fd::AsFd;

    let dir = directory();
    let path = dir.path().join("f");
    write(&path, 64);
    if !can_evict(&path) {
        return;
    }
    warm(&[Spot::file(&path)], None);
    let file = fs::File::open(&path).unwrap();
    let mapping = prepage_sys::mapping::FileMapping::new(file.as_fd(), range(0, 64)).unwrap();
    assert_eq!(mapping.byte(0), 7);
    let evicted = evict(&[Spot::file(&path)]);
    let after = evicted.files[0].after.unwrap();
    assert!(after > 0, "a mapped page cannot be dropped");
    let stay = evicted.files[0].stay.as_ref().unwrap();
    let me = stay.users.iter().find(|user| user.pid == std::process::id()).expect("named");
    assert!(me.mapped_bytes >= PAGE_SIZE && me.locked_bytes == 0);
    drop(mapping);
    assert_eq!(evict(&[Spot::file(&path)]).files[0].after, Some(0));
}

/// A process that maps a file, does something to its pages, and lives until it is dropped.
struct Mapper(Child);

impl Mapper {
    /// `does` is Python, with the mapping `memory` of the file's `size` bytes.
    fn new(python: &mut Command, path: &Path, flags: &str, does: &str) -> Self {
        let script = format!(
            "import ctypes, mmap, os, sys\n\
             fd = os.open(sys.argv[1], os.O_RDWR)\n\
             size = os.fstat(fd).st_size\n\
             memory = mmap.mmap(fd, size, flags=mmap.{flags})\n\
             {does}\n\
             print('up', flush=True)\n\
             sys.stdin.read()"
        );
        let mut child = python.arg("-c").arg(script).arg(path);
        child = child.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = child.spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "up\n");
        Self(child)
    }
}

impl Drop for Mapper {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

/// Each has all of them in its page tables, and the one that has locked them has locked them all.
#[test]
fn pages_that_several_use_count_whole_for_each() {
    let Some(mut python) = prepage_testing::python("ctypes,mmap") else {
        return skip(Need::Python("ctypes,mmap".into()), "no Python");
    };
    let dir = directory();
    let path = dir.path().join("f");
    write(&path, 64);
    let locks = "address = ctypes.addressof(ctypes.c_char.from_buffer(memory))\n\
                 assert ctypes.CDLL(None).mlock(ctypes.c_void_p(address), ctypes.c_size_t(size)) == 0";
    let locker = Mapper::new(&mut python, &path, "MAP_SHARED", locks);
    let mut python = prepage_testing::python("ctypes,mmap").unwrap();
    let other = Mapper::new(&mut python, &path, "MAP_SHARED", "memory[:]");
    let users = Users::now().of(&Spot::file(&path).open().unwrap());
    let of = |mapper: &Mapper| {
        let user = users.iter().find(|user| user.pid == mapper.0.id()).expect("named");
        (user.mapped_bytes / PAGE_SIZE, user.locked_bytes / PAGE_SIZE)
    };
    assert_eq!((of(&locker), of(&other)), ((64, 64), (64, 0)));
}

#[test]
fn pages_of_which_a_process_has_copies_alone_are_not_in_use_by_it() {
    let Some(mut python) = prepage_testing::python("ctypes,mmap") else {
        return skip(Need::Python("ctypes,mmap".into()), "no Python");
    };
    let dir = directory();
    let path = dir.path().join("f");
    write(&path, 64);
    let writes = "for at in range(0, size, 4096): memory[at] = 1";
    let _writer = Mapper::new(&mut python, &path, "MAP_PRIVATE", writes);
    assert_eq!(Users::now().of(&Spot::file(&path).open().unwrap()), []);
}

/// Logs are: what was added meanwhile was not asked for.
#[test]
fn a_file_that_grows_is_warmed_as_it_was_found() {
    let dir = directory();
    let path = dir.path().join("f");
    write(&path, 1000);
    let asked = [Spot::file(&path)];
    let pages = || fs::metadata(&path).unwrap().len() / PAGE_SIZE;
    // By so much meanwhile, whichever of the two threads gets the processor for longer.
    const MORE_PAGES: u64 = 1000;
    let (is_over, most) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut file = fs::File::options().append(true).open(&path).unwrap();
            while !is_over.load(Ordering::Relaxed) {
                match pages() < most.load(Ordering::Relaxed) {
                    true => file.write_all(&[7; PAGE_SIZE as usize]).unwrap(),
                    false => std::thread::yield_now(),
                }
            }
        });
        let until = Instant::now() + Duration::from_secs(60);
        let mut grown = None;
        while grown.is_none() && Instant::now() < until {
            most.store(pages() + MORE_PAGES, Ordering::Relaxed);
            let found = warm(&asked, None).files.pop().unwrap();
            grown = (found.after.is_some() && pages() > found.pages).then_some(found);
        }
        is_over.store(true, Ordering::Relaxed);
        let grown = grown.expect("it grows while it is warmed");
        assert_eq!((grown.after, grown.error.is_none()), (Some(grown.pages), true));
    });
}

/// An image of a disk may be a few pages in a terabyte.
#[test]
fn holes_are_not_read() {
    let dir = directory();
    let path = dir.path().join("f");
    write(&path, 1);
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_len(PAGE_SIZE + (64 << 20)).unwrap();
    file.sync_all().unwrap();
    if !can_evict(&path) {
        return;
    }
    let asked = [Spot::file(&path)];
    let in_memory = || Residency::of(&asked[0].open().unwrap()).unwrap().resident_pages();
    let warmed = warm(&asked, None);
    assert_eq!((warmed.read_bytes, in_memory()), (PAGE_SIZE, 1));
    let found = &warmed.files[0];
    assert_eq!((found.pages, found.after, found.hole_pages), (1, Some(1), 64 << 8));
    // Of a page that is in memory all the same nothing is left out.
    let mut byte = [0];
    fs::File::open(&path).unwrap().read_exact_at(&mut byte, 32 << 20).unwrap();
    let warmed = warm(&asked, None);
    let found = &warmed.files[0];
    assert_eq!((found.before, found.after, warmed.read_bytes), (Some(found.pages), Some(found.pages), 0));
}

#[test]
fn reading_stops_at_the_limit() {
    let dir = directory();
    let path = dir.path().join("f");
    write(&path, 256);
    if !can_evict(&path) {
        return;
    }
    let asked = [Spot::file(&path)];
    let warmed = warm(&asked, Some(256 << 10));
    assert_eq!(warmed.stopped, Some(Stopped::Limit { limit_bytes: 256 << 10 }));
    assert_eq!((warmed.read_bytes, warmed.files[0].after), (256 << 10, Some(64)));
    // The rest of it, and then part of another.
    let other = dir.path().join("other");
    write(&other, 256);
    if !can_evict(&other) {
        return;
    }
    let asked = [Spot::file(&path), Spot::file(&other)];
    let warmed = warm(&asked, Some((192 << 12) + (256 << 10)));
    let read_bytes: Vec<u64> = warmed.files.iter().map(|file| file.read_bytes).collect();
    assert_eq!(read_bytes, [192 << 12, 256 << 10], "of each its own");
}

#[test]
fn a_file_in_memory_only_is_said_to_be_one() {
    if !has(Need::Path("/dev/shm".into())) {
        return;
    }
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("f");
    fs::write(&path, [1; 5000]).unwrap();
    let evicted = evict(&[Spot::file(&path)]);
    assert!(evicted.files[0].stay.as_ref().unwrap().in_memory_file_system);
}

#[test]
fn an_empty_file_and_a_range_behind_the_end_are_no_pages() {
    let dir = directory();
    let path = dir.path().join("f");
    fs::write(&path, "").unwrap();
    for bytes in ["0-", "1M-2M"] {
        let asked = spots(&path, bytes);
        let residency = Residency::of(&asked[0].open().unwrap()).unwrap();
        assert_eq!((residency.asked_pages(), residency.resident_pages()), (0, 0));
        assert_eq!(warm(&asked, None).files[0].after, Some(0));
        assert_eq!(evict(&asked).files[0].after, Some(0));
    }
}

/// A profile that has the first `pages` of one file.
fn profile_of(path: &Path, pages: u64) -> Profile {
    Profile { files: vec![profiled(path, 0..pages).unwrap()], ..Profile::default() }
}

/// Where a copy of this program finds the layers that it is to look at.
const LAYERS: &str = "PREPAGE_TEST_LAYERS";

/// The pages of a file in an overlay are those of the file below: counted, dropped and written back there.
#[test]
fn pages_of_a_file_in_layers_are_those_of_its_layer() {
    let dir = directory();
    if !has(Need::Mounts) || !has(Need::Eviction(dir.path().into())) {
        return;
    }
    fs::create_dir(dir.path().join("lower")).unwrap();
    write(&dir.path().join("lower/a"), 50);
    let script = "mkdir upper work merged &&
        mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work overlay merged &&
        exec \"$@\"";
    let mut inside = child_command("inside_layers", &["unshare", "--mount", "sh", "-c", script, "sh"]);
    assert_passed(&child_output(inside.current_dir(dir.path()).env(LAYERS, dir.path())));
}

/// No test by itself: the program that [`pages_of_a_file_in_layers_are_those_of_its_layer`] starts.
#[test]
fn inside_layers() {
    let Some(dir) = std::env::var_os(LAYERS) else { return };
    let at = |name: &str| Path::new(&dir).join(name);
    // Dirty until it is evicted.
    fs::write(at("merged/b"), vec![7; 50 * PAGE_SIZE as usize]).unwrap();
    for (layer, in_overlay) in [("lower/a", "merged/a"), ("upper/b", "merged/b")] {
        assert_eq!(resident(&at(in_overlay)), [range(0, 50)], "{in_overlay}");
        let profile = profile_of(&at(in_overlay), 50);
        let evicted = &evict(&[Spot::file(at(in_overlay))]).files[0];
        assert_eq!((evicted.before, evicted.after), (Some(50), Some(0)), "{in_overlay}");
        assert_eq!(resident(&at(layer)), [], "{layer}");
        let asked = spots(&at(in_overlay), "40k-");
        let warmed = &warm(&asked, None).files[0];
        assert_eq!((warmed.before, warmed.after), (Some(0), Some(40)), "{in_overlay}");
        assert_eq!(resident(&at(layer)), [range(10, 50)], "{layer}");
        assert_eq!(resident_share(&profile), Some(0.8), "{in_overlay}");
    }
}

/// Page by page, this would take days, and GiB by GiB half an hour.
#[test]
fn holes_cost_nothing() {
    if !has(Need::Path("/dev/shm".into())) {
        return;
    }
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("f");
    let file = fs::File::create(&path).unwrap();
    file.set_len(7 << 60).unwrap();
    let states = Residency::of(&spots(&path, "0-4k")[0].open().unwrap()).unwrap().states;
    if states.is_none() {
        return skip(Need::Doctor(Doctor::Residency), "no states of pages");
    }
    assert!(resident(&path).is_empty());
    // At both ends as well, and on both sides of a border of GiB.
    let last = (7 << 48) - 1;
    let pages = [0, (3 << 48) - 1, 3 << 48, last];
    for page in pages {
        file.write_all_at(&[1], page * PAGE_SIZE).unwrap();
    }
    let found = Residency::of(&Spot::file(&path).open().unwrap()).unwrap();
    assert_eq!(found.resident, [range(0, 1), range((3 << 48) - 1, (3 << 48) + 1), range(last, last + 1)]);
    assert_eq!(found.states.unwrap().cached, 4);
}

/// A directory with files in all states: partly, wholly and not in memory, with links and a fifo among them.
fn mixture() -> tempfile::TempDir {
    let dir = directory();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("deep/deeper")).unwrap();
    for (name, pages) in [("a", 300), ("deep/b", 77), ("deep/deeper/c", 1), ("d", 512)] {
        write(&at(name), pages);
        evict(&[Spot::file(at(name))]);
    }
    warm(&spots(&at("a"), "100k-500k"), None);
    warm(&spots(&at("d"), "1M-"), None);
    warm(&spots(&at("deep/deeper/c"), "0-"), None);
    fs::hard_link(at("a"), at("deep/a-again")).unwrap();
    std::os::unix::fs::symlink(at("d"), at("deep/link")).unwrap();
    dir
}

fn output(tool: &str, args: &[&str]) -> Option<String> {
    if !has(Need::Tool(tool.into())) {
        return None;
    }
    let output = Command::new(tool).args(args).output().unwrap();
    assert!(output.status.success(), "{tool}: {}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn counts_are_those_of_vmtouch() {
    let dir = mixture();
    let Some(told) = output("vmtouch", &[dir.path().to_str().unwrap()]) else { return };
    let spots = spots(dir.path(), "0-");
    let residencies: Vec<Residency> =
        spots.iter().map(|spot| Residency::of(&spot.open().unwrap()).unwrap()).collect();
    let resident: u64 = residencies.iter().map(Residency::resident_pages).sum();
    let pages: u64 = residencies.iter().map(Residency::asked_pages).sum();
    assert_eq!((resident > 0, pages), (true, 300 + 77 + 1 + 512));
    let expected = format!("Resident Pages: {resident}/{pages}");
    assert!(told.contains(&expected) && told.contains("Files: 4"), "{expected} expected: {told}");
}

#[test]
fn counts_are_those_of_fincore() {
    let dir = mixture();
    for spot in spots(dir.path(), "0-") {
        let path = spot.path.to_str().unwrap();
        let Some(told) = output("fincore", &["-n", "-o", "PAGES", path]) else { return };
        let residency = Residency::of(&spot.open().unwrap()).unwrap();
        assert_eq!(told.trim(), residency.resident_pages().to_string(), "{path}");
    }
}
