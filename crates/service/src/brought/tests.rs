use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use prepage_core::PAGE_SIZE;
use prepage_sys::cachestat::evict;
use prepage_testing::{Need, assert_passed, child_command, child_output, has};

use super::*;
use crate::needed_file::needed_file;

const PAGES: u64 = 64;
const PATIENCE: Duration = Duration::from_secs(60);

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Option<Self> {
        let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        (has(Need::Root) && has(Need::Eviction(directory.clone())))
            .then(|| Self(tempfile::tempdir_in(directory).unwrap()))
    }

    /// A file on the disk and not in memory, and what a profile says of it: four of its pages.
    fn file(&self, name: &str) -> ProfiledFile {
        let path = self.0.path().join(name).canonicalize().unwrap_or_else(|_| self.0.path().join(name));
        let (file, profiled) = needed_file(&path, PAGES, &[8, 9, 10, 40]);
        fadvise(&file, 0, None, Advice::Random).unwrap();
        evict(file.as_fd(), PATIENCE).unwrap();
        profiled
    }
}

fn profile(files: &[&ProfiledFile]) -> Profile {
    Profile { files: files.iter().map(|file| (*file).clone()).collect(), ..Profile::default() }
}

fn bring(profile: &Profile, spare_bytes: u64) -> Option<Brought> {
    let rights = Rights::of_process(std::process::id()).unwrap();
    Brought::bring(profile, &rights, spare_bytes, &Reader::default()).unwrap()
}

fn open_by_another(file: &ProfiledFile) {
    assert!(Command::new("cat").arg(&file.path).output().unwrap().status.success());
}

/// What the kernel keeps of the pages is its own affair: only what was decided is looked at.
#[test]
fn what_somebody_else_has_opened_is_used_and_the_rest_is_sent_out() {
    let Some(place) = Place::new() else { return };
    let [a, b] = ["a", "b"].map(|name| place.file(name));
    let brought = bring(&profile(&[&a, &b]), u64::MAX).unwrap();
    assert_eq!(brought.bytes(), 2 * 4 * PAGE_SIZE);
    open_by_another(&a);
    // This process itself does not count.
    drop(File::open(&b.path).unwrap());
    let expected =
        Settled { used_bytes: 4 * PAGE_SIZE, unused_bytes: 4 * PAGE_SIZE, sent_out_bytes: 4 * PAGE_SIZE };
    assert_eq!(brought.settle(false, &Round::default()), expected);
}

/// Who has opened what is looked at before the next one reads.
#[test]
fn a_reader_whose_time_is_up_leaves_the_rest_to_the_next() {
    let Some(place) = Place::new() else { return };
    let profile = profile(&[&place.file("a")]);
    let rights = Rights::of_process(std::process::id()).unwrap();
    let mut reader = Reader::new(true, Arc::default());
    assert!(reader.until.is_some_and(|until| until > Instant::now()));
    reader.until = Some(Instant::now());
    let brought = Brought::bring(&profile, &rights, u64::MAX, &reader).unwrap();
    assert!(brought.is_none() && reader.is_stopped(), "{brought:?}");
    assert_eq!(bring(&profile, u64::MAX).unwrap().bytes(), 4 * PAGE_SIZE);
}

fn events(brought: &Brought) -> usize {
    let mut events = 0;
    while brought.watch.read(&mut |_| events += 1).unwrap() {}
    events
}

/// Other programs may use them all the time: more events than the kernel has room for count as a use of everything.
#[test]
fn only_files_that_something_was_brought_in_of_are_watched_and_each_until_it_is_used() {
    let Some(place) = Place::new() else { return };
    let [a, b] = ["a", "b"].map(|name| place.file(name));
    std::fs::read(&b.path).unwrap();
    let mut brought = bring(&profile(&[&b, &a]), u64::MAX).unwrap();
    assert_eq!(brought.bytes(), 4 * PAGE_SIZE);
    // This process's own.
    events(&brought);
    open_by_another(&b);
    assert_eq!(events(&brought), 0, "all of it was in memory");
    open_by_another(&a);
    let seen = brought.look();
    assert_eq!(seen.len(), 1);
    assert!(brought.look().is_empty(), "it was seen before");
    seen.iter().for_each(|seen| seen.end(&Round::default()));
    events(&brought);
    open_by_another(&a);
    assert_eq!(events(&brought), 0, "it is known to be used");
    let Settled { used_bytes, unused_bytes, .. } = brought.settle(true, &Round::default());
    assert_eq!((used_bytes, unused_bytes), (4 * PAGE_SIZE, 0));
}

/// Numbers of devices change from boot to boot, and profiles come from other machines.
#[test]
fn others_are_asked_for_the_disk_that_the_file_lies_on_now() {
    let Some(place) = Place::new() else { return };
    let mut learned_elsewhere = place.file("file");
    let device = learned_elsewhere.identity.device;
    learned_elsewhere.identity.device = device + 1;
    let rights = Rights::of_process(std::process::id()).unwrap();
    let reader = Reader::new(true, Arc::default());
    let _ = Brought::bring(&profile(&[&learned_elsewhere]), &rights, u64::MAX, &reader);
    let asked = reader.turn.lock().unwrap().as_ref().map(|turn| turn.device);
    assert_eq!(asked, Some(device));
}

/// A session that begins opens all that the last ones needed, and looks again at what it has seen.
#[test]
fn what_prepage_itself_has_opened_is_not_used() {
    let Some(place) = Place::new() else { return };
    let [a, b] = ["a", "b"].map(|name| place.file(name));
    let mut brought = bring(&profile(&[&a, &b]), u64::MAX).unwrap();
    // A program of that name that opens a file and goes on.
    let prepaged = place.0.path().join("prepaged");
    // By another process: while this one writes it, a child that another test makes has it open too, and nobody can execute it.
    assert!(Command::new("cp").arg("/usr/bin/tail").arg(&prepaged).status().unwrap().success());
    let mut follows = Command::new(&prepaged).args(["-f", &a.path]).stdout(Stdio::piped()).spawn().unwrap();
    let mut first = [0];
    follows.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    open_by_another(&b);
    brought.look();
    follows.kill().unwrap();
    follows.wait().unwrap();
    let settled = brought.settle(true, &Round::default());
    assert_eq!((settled.used_bytes, settled.unused_bytes), (4 * PAGE_SIZE, 4 * PAGE_SIZE));
}

#[test]
fn pages_in_memory_are_not_missing() {
    let Some(place) = Place::new() else { return };
    let file = place.file("file");
    let opened = File::open(&file.path).unwrap();
    let all = PageRange::new(PageIndex(0), PageIndex(PAGES));
    let mut found = Vec::new();
    missing(opened.as_fd(), all, &mut |range| found.push(range)).unwrap();
    assert!(found.iter().map(|range| range.len()).sum::<u64>() >= PAGES - 4, "{found:?}");
    // What was just written is in memory.
    let written = place.0.path().join("written");
    std::fs::write(&written, vec![2; (PAGES * PAGE_SIZE) as usize]).unwrap();
    let mut found = Vec::new();
    missing(File::open(&written).unwrap().as_fd(), all, &mut |range| found.push(range)).unwrap();
    assert_eq!(found, []);
    assert!(bring(&Profile::default(), u64::MAX).is_none());
}

/// Where a copy of this program finds the layers that it is to look at.
const LAYERS: &str = "PREPAGE_TEST_LAYERS";

/// What others have brought in would be sent out again where nobody comes.
#[test]
fn pages_of_a_file_in_layers_are_not_missing_where_they_are_in_memory_below() {
    let Some(place) = Place::new() else { return };
    if !has(Need::Mounts) {
        return;
    }
    let script = "mkdir lower upper work merged &&
        mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work overlay merged &&
        exec \"$@\"";
    let mut inside =
        child_command("brought::tests::inside_layers", &["unshare", "--mount", "sh", "-c", script, "sh"]);
    assert_passed(&child_output(inside.current_dir(&place.0).env(LAYERS, place.0.path())));
}

/// No test by itself: what the one above starts.
#[test]
fn inside_layers() {
    let Some(place) = std::env::var_os(LAYERS).map(PathBuf::from) else { return };
    let opened = |name: &str| File::open(place.join(name)).unwrap();
    std::fs::write(place.join("lower/file"), vec![2; (PAGES * PAGE_SIZE) as usize]).unwrap();
    let all = PageRange::new(PageIndex(0), PageIndex(PAGES));
    let found = || {
        let mut found = Vec::new();
        missing(opened("merged/file").as_fd(), all, &mut |range| found.push(range)).unwrap();
        found
    };
    assert_eq!(found(), [], "it was just written");
    let below = opened("lower/file");
    below.sync_all().unwrap();
    evict(below.as_fd(), PATIENCE).unwrap();
    assert_eq!(found(), [all]);
    let first = std::num::NonZeroU64::new(PAGE_SIZE);
    fadvise(&below, 8 * PAGE_SIZE, first, Advice::WillNeed).unwrap();
    let is_missing = || found().iter().any(|range| range.contains(PageIndex(8)));
    let until = std::time::Instant::now() + PATIENCE;
    while is_missing() && std::time::Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(!is_missing());
}

#[test]
fn no_more_is_brought_in_than_fits_and_nothing_once_it_is_stopped() {
    let Some(place) = Place::new() else { return };
    let [a, b] = ["a", "b"].map(|name| place.file(name));
    let brought = bring(&profile(&[&a, &b]), 7 * PAGE_SIZE).unwrap();
    assert_eq!(brought.bytes(), 4 * PAGE_SIZE);
    assert_eq!(
        brought.settle(true, &Round::default()),
        Settled { unused_bytes: 4 * PAGE_SIZE, ..Settled::default() }
    );
    let c = place.file("c");
    let current = Current::default();
    let reader = current.set(Reader::default());
    current.stop();
    let rights = Rights::of_process(std::process::id()).unwrap();
    assert!(Brought::bring(&profile(&[&c]), &rights, u64::MAX, &reader).unwrap().is_none());
}

#[test]
fn what_something_came_between_is_brought_in_later_and_counts_as_one() {
    let Some(place) = Place::new() else { return };
    let [a, b] = ["a", "b"].map(|name| place.file(name));
    let (both, reader) = (profile(&[&a, &b]), Reader::default());
    let mut brought = bring(&both, 7 * PAGE_SIZE).unwrap();
    assert_eq!(brought.bytes(), 4 * PAGE_SIZE);
    reader.stop();
    brought.go_on(&both, u64::MAX, &reader).unwrap();
    assert_eq!(brought.bytes(), 4 * PAGE_SIZE, "somebody had it stop");
    let opened = File::open(&a.path).unwrap();
    evict(opened.as_fd(), PATIENCE).unwrap();
    brought.go_on(&both, u64::MAX, &Reader::default()).unwrap();
    assert_eq!((brought.bytes(), brought.files.len()), (3 * 4 * PAGE_SIZE, 2), "one file twice");
    open_by_another(&b);
    let Settled { used_bytes, unused_bytes, .. } = brought.settle(false, &Round::default());
    assert_eq!((used_bytes, unused_bytes), (4 * PAGE_SIZE, 2 * 4 * PAGE_SIZE));
}

/// Others may use the device at any moment, and then it stops: but not each time.
#[test]
fn a_courteous_reader_brings_in_the_same_or_has_stopped() {
    let Some(place) = Place::new() else { return };
    let file = place.file("file");
    let opened = File::open(&file.path).unwrap();
    let rights = Rights::of_process(std::process::id()).unwrap();
    let until = Instant::now() + PATIENCE;
    let reader = loop {
        evict(opened.as_fd(), PATIENCE).unwrap();
        let reader = Reader::new(true, Arc::default());
        let brought = Brought::bring(&profile(&[&file]), &rights, u64::MAX, &reader).unwrap();
        let bytes = brought.map_or(0, |brought| brought.bytes());
        if bytes == 4 * PAGE_SIZE {
            break reader;
        }
        assert!(reader.is_stopped(), "{bytes}");
        assert!(Instant::now() < until, "it stops each time");
    };
    reader.stop();
    let other = place.file("other");
    assert!(Brought::bring(&profile(&[&other]), &rights, u64::MAX, &reader).unwrap().is_none());
}

#[test]
fn what_was_replaced_meanwhile_is_not_touched() {
    let Some(place) = Place::new() else { return };
    let file = place.file("file");
    let brought = bring(&profile(&[&file]), u64::MAX).unwrap();
    std::fs::remove_file(&file.path).unwrap();
    std::fs::write(&file.path, vec![3; (2 * PAGES * PAGE_SIZE) as usize]).unwrap();
    let settled = brought.settle(false, &Round::default());
    assert_eq!((settled.unused_bytes, settled.sent_out_bytes), (4 * PAGE_SIZE, 0));
    let changed = ProfiledFile { path: "/no/such/file".into(), ..file };
    assert!(bring(&profile(&[&changed]), u64::MAX).is_none());
}

/// Who stops a reader waits for nothing, and whoever closes a file may wait for a program that answers for its file system.
#[test]
fn a_reader_that_has_read_holds_no_file() {
    let Some(place) = Place::new() else { return };
    let (file, reader) = (place.file("file"), Reader::default());
    let rights = Rights::of_process(std::process::id()).unwrap();
    assert!(Brought::bring(&profile(&[&file]), &rights, u64::MAX, &reader).unwrap().is_some());
    assert!(reader.engine.lock().unwrap().is_none());
}

/// Else the round would count as under way until something is started.
#[test]
fn a_round_ends_with_its_reader_though_nobody_stopped_it() {
    let (current, round) = (Current::default(), Arc::new(Round::default()));
    let reader = current.set(Reader::new(false, round.clone()));
    drop(reader);
    assert_eq!(Arc::strong_count(&round), 1);
    current.stop();
}
