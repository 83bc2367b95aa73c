//! Snapshots in files: saved, opened in this and in other processes, changed and saved again; damage, no room, and the machine stopping.

use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use prepage_core::PAGE_SIZE;
use prepage_vm::manifest::{Manifest, ManifestError};
use prepage_vm::{AccessError, Map, MapOptions, Object, SavedError, Vm, VmOptions};
use proptest::prelude::*;
use rustix::process::{Resource, Rlimit, setrlimit};
use support::{Words, at, keeps_to, left_in, modes, of_file, pages, read, vm, write};

mod support;

fn private(vm: &Vm, object: &Object) -> Map {
    vm.map(object, &MapOptions::private()).unwrap()
}

fn manifest_of(directory: &Path) -> Manifest {
    Manifest::decode(&std::fs::read(directory.join("manifest")).unwrap()).unwrap()
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn what_was_saved_comes_back() {
    let file = support::file(40 * PAGE_SIZE + 100);
    let probe = vm();
    for mode in modes(&probe, &probe.file(file.path()).unwrap()) {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path().join("saved");
        {
            let vm = vm();
            let object = vm.file(file.path()).unwrap();
            let mut map = vm.map(&object, &MapOptions::private().mode(mode)).unwrap();
            (3..30).for_each(|page| write(&mut map, page, 1000 + page));
            write(&mut map, 40, 7);
            let saved = map.snapshot().unwrap().save(&directory).unwrap();
            assert_eq!((saved.pages, saved.pages_written, saved.images), (28, 28, 1));
            // What was written since alone.
            write(&mut map, 4, 8);
            write(&mut map, 33, 9);
            let snapshot = map.snapshot().unwrap();
            let saved = snapshot.save(&directory).unwrap();
            assert_eq!((saved.pages, saved.pages_written, saved.images), (29, 2, 2));
            let again = snapshot.save(&directory).unwrap();
            assert_eq!((again.pages, again.pages_written, again.images), (29, 0, 2));
        }
        assert_eq!(names_in(&directory), ["1.image", "2.image", "manifest"]);
        let vm = vm();
        let opened = vm.open_snapshot(&directory).unwrap();
        assert_eq!(opened.len_bytes(), 40 * PAGE_SIZE + 100);
        let clone_of = |object: &Object| vm.map(object, &MapOptions::private().mode(mode)).unwrap();
        let (mut map, other) = (clone_of(&opened), clone_of(&opened));
        let expected = [0, 3, 4, 29, 30, 33, 40].map(|page| match page {
            4 => 8,
            33 => 9,
            40 => 7,
            3..30 => 1000 + page,
            _ => of_file(page),
        });
        assert_eq!([0, 3, 4, 29, 30, 33, 40].map(|page| read(&other, page)), expected);
        // A clone of it goes on, and is saved where it came from, and elsewhere.
        write(&mut map, 5, 10);
        write(&mut map, 30, 11);
        let next = map.snapshot().unwrap();
        let elsewhere = directory.with_extension("2");
        assert_eq!(next.save(&elsewhere).unwrap().pages_written, 30);
        let saved = next.save(&directory).unwrap();
        assert_eq!((saved.pages, saved.pages_written, saved.images), (30, 2, 3));
        drop((map, next));
        for directory in [&directory, &elsewhere] {
            let map = clone_of(&vm.open_snapshot(directory).unwrap());
            assert_eq!([4, 5, 6, 30, 31].map(|page| read(&map, page)), [8, 10, 1006, 11, of_file(31)]);
        }
        assert_eq!([0, 3, 4, 29, 30, 33, 40].map(|page| read(&other, page)), expected);
        drop((opened, other));
        assert_eq!(left_in(&vm), (0, 0, 0, 0));
    }
}

#[test]
fn images_are_as_sparse_as_what_was_written() {
    const PAGES: u64 = 1 << 18;
    let directory = tempfile::tempdir().unwrap();
    let vm = vm();
    let zeros = vm.anonymous(PAGES * PAGE_SIZE).unwrap();
    let mut map = private(&vm, &zeros);
    write(&mut map, 7, 1);
    write(&mut map, PAGES - 1, 2);
    let first = map.snapshot().unwrap().save(directory.path()).unwrap();
    assert_eq!(first.pages_written, 2);
    let facts = std::fs::metadata(directory.path().join("1.image")).unwrap();
    assert_eq!(facts.len(), PAGES * PAGE_SIZE);
    assert!(facts.blocks() * 512 <= 16 * PAGE_SIZE, "{} blocks for two pages", facts.blocks());
    assert!(std::fs::metadata(directory.path().join("manifest")).unwrap().len() < 300);
    // Written over by what was there before: nothing new. By zeros: no room is taken.
    write(&mut map, 7, 1);
    write(&mut map, PAGES - 1, 0);
    let second = map.snapshot().unwrap().save(directory.path()).unwrap();
    assert_eq!((second.pages, second.pages_written), (2, 1));
    assert_eq!(std::fs::metadata(directory.path().join("2.image")).unwrap().blocks(), 0);
    let opened = private(&vm, &vm.open_snapshot(directory.path()).unwrap());
    assert_eq!([6, 7, PAGES - 1].map(|page| read(&opened, page)), [0, 1, 0]);
}

#[test]
fn images_of_which_nothing_is_left_go_and_many_become_one() {
    let directory = tempfile::tempdir().unwrap();
    let vm = vm();
    let zeros = vm.anonymous(64 * PAGE_SIZE).unwrap();
    let mut map = private(&vm, &zeros);
    let mut most = 0;
    for round in 1..=50 {
        // Page 0 each time, and another.
        write(&mut map, 0, round);
        write(&mut map, round, round);
        let saved = map.snapshot().unwrap().save(directory.path()).unwrap();
        assert_eq!(saved.pages, 1 + round);
        assert!(saved.images <= 16, "{saved:?}");
        assert_eq!(names_in(directory.path()).len() as u64, saved.images + 1);
        most = most.max(saved.images);
        // However many there are, what has not changed is not written again.
        let again = map.snapshot().unwrap().save(directory.path()).unwrap();
        assert_eq!((again.pages_written, again.images), (0, saved.images));
    }
    assert_eq!(most, 16);
    let opened = private(&vm, &vm.open_snapshot(directory.path()).unwrap());
    assert_eq!([0, 1, 20, 50, 51].map(|page| read(&opened, page)), [50, 1, 20, 50, 0]);
    // All pages anew: one image.
    (0..51).for_each(|page| write(&mut map, page, 100 + page));
    assert_eq!(map.snapshot().unwrap().save(directory.path()).unwrap().images, 1);
    assert_eq!(names_in(directory.path()).len(), 2);
    // Who has the earlier one open keeps it.
    assert_eq!([2, 30, 49].map(|page| read(&opened, page)), [2, 30, 49]);
}

#[test]
fn objects_of_ones_own_are_given_again() {
    let directory = tempfile::tempdir().unwrap();
    let file = support::file(8 * PAGE_SIZE);
    let words = || Words { len_bytes: 8 * PAGE_SIZE, ..Words::default() };
    {
        let vm = vm();
        let (mine, object) = (vm.source("mine", words()).unwrap(), vm.file(file.path()).unwrap());
        let pieces = [
            prepage_vm::Piece::new(&object, pages(4, 8)),
            prepage_vm::Piece::new(&mine, pages(1, 5)),
            prepage_vm::Piece::new(&vm.anonymous(PAGE_SIZE).unwrap(), pages(0, 1)),
        ];
        let mut map = vm.map_pieces(&pieces, &MapOptions::private()).unwrap();
        [0, 4, 5].into_iter().for_each(|page| write(&mut map, page, page));
        map.snapshot().unwrap().save(directory.path()).unwrap();
    }
    let vm = vm();
    match vm.open_snapshot(directory.path()) {
        Err(SavedError::NoBase { name }) => assert_eq!(name, "mine"),
        other => panic!("{other:?}"),
    }
    let too_short = vm.source("mine", Words { len_bytes: PAGE_SIZE, ..Words::default() }).unwrap();
    assert!(vm.open_snapshot_on(directory.path(), &[too_short]).is_err());
    // Its faults would be served by threads that know nothing of maps of this VM.
    let of_another = support::vm().source("mine", words()).unwrap();
    match vm.open_snapshot_on(directory.path(), &[of_another]) {
        Err(SavedError::OtherVm { object }) => assert_eq!(object, "mine"),
        other => panic!("{other:?}"),
    }
    let given = [vm.source("mine", words()).unwrap(), vm.file(file.path()).unwrap()];
    let opened = vm.open_snapshot_on(directory.path(), &given).unwrap();
    let map = private(&vm, &opened);
    let expected = [0, of_file(5), of_file(6), of_file(7), 4, 5, of_file(3), of_file(4), 0];
    assert_eq!([0, 1, 2, 3, 4, 5, 6, 7, 8].map(|page| read(&map, page)), expected);
    assert!(given[1].resident_pages() > 0, "its frames are shared");
}

/// A saved snapshot of a file of eight pages, of which the pages 2 and 5 were written.
fn saved(file: &Path, directory: &Path) {
    let vm = vm();
    let mut map = private(&vm, &vm.file(file).unwrap());
    write(&mut map, 2, 20);
    write(&mut map, 5, 50);
    map.snapshot().unwrap().save(directory).unwrap();
}

#[test]
fn damage_is_named_and_refused() {
    let file = support::file(8 * PAGE_SIZE);
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let vm = vm();
    assert!(matches!(vm.open_snapshot(directory), Err(SavedError::Nothing { .. })));
    assert!(matches!(vm.open_snapshot(directory.join("none")), Err(SavedError::Read { .. })));
    let object = vm.file(file.path()).unwrap();
    assert!(matches!(object.save(directory), Err(SavedError::NotASnapshot { .. })));
    saved(file.path(), directory);
    let (manifest, image) = (directory.join("manifest"), directory.join("1.image"));
    // The manifest: neither opened nor written over.
    let sound = std::fs::read(&manifest).unwrap();
    let mut damaged = sound.clone();
    *damaged.last_mut().unwrap() ^= 1;
    std::fs::write(&manifest, &damaged).unwrap();
    let snapshot = private(&vm, &object).snapshot().unwrap();
    for error in [vm.open_snapshot(directory).unwrap_err(), snapshot.save(directory).unwrap_err()] {
        match error {
            SavedError::Manifest { path, source } => {
                assert_eq!((path, source), (manifest.clone(), ManifestError::Checksum));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(std::fs::read(&manifest).unwrap(), damaged);
    std::fs::write(&manifest, &sound).unwrap();
    // A page of an image: the others can be had.
    let mut bytes = std::fs::read(&image).unwrap();
    bytes[at(5) + 4000] ^= 1;
    std::fs::write(&image, &bytes).unwrap();
    let map = private(&vm, &vm.open_snapshot(directory).unwrap());
    let mut word = [0; 8];
    map.read_at(at(2) as u64 + 16, &mut word).unwrap();
    assert_eq!(u64::from_le_bytes(word), 20);
    match map.read_at(at(5) as u64 + 16, &mut word) {
        Err(AccessError::Unavailable { page, reason, .. }) => {
            assert_eq!(page.0, 5);
            assert_eq!(reason.to_string(), format!("page 5 of {} is damaged", image.display()));
        }
        other => panic!("{other:?}"),
    }
    // A save has to read it, too.
    let elsewhere = tempfile::tempdir().unwrap();
    let unread = map.snapshot().unwrap().save(elsewhere.path());
    assert!(matches!(unread, Err(SavedError::Unread { .. })), "{unread:?}");
    assert_eq!(names_in(elsewhere.path()), [""; 0]);
    // An image that was cut off, and one that is not there.
    std::fs::OpenOptions::new().write(true).open(&image).unwrap().set_len(5 * PAGE_SIZE).unwrap();
    assert!(matches!(vm.open_snapshot(directory), Err(SavedError::Image { path, .. }) if path == image));
    std::fs::remove_file(&image).unwrap();
    assert!(matches!(vm.open_snapshot(directory), Err(SavedError::Read { path, .. }) if path == image));
}

#[test]
fn a_file_below_that_changed_is_refused() {
    let file = support::file(8 * PAGE_SIZE);
    let directory = tempfile::tempdir().unwrap();
    saved(file.path(), directory.path());
    let vm = vm();
    // Touched, with the same bytes: nobody knows that.
    file.as_file().set_modified(std::time::UNIX_EPOCH).unwrap();
    for given in [vec![], vec![vm.file(file.path()).unwrap()]] {
        match vm.open_snapshot_on(directory.path(), &given) {
            Err(SavedError::BaseChanged { path }) => assert_eq!(path, file.path()),
            other => panic!("{other:?}"),
        }
    }
    drop(file);
    assert!(matches!(vm.open_snapshot(directory.path()), Err(SavedError::Make(_))));
}

#[test]
fn a_file_below_that_changed_before_the_save_is_refused() {
    let file = support::file(8 * PAGE_SIZE);
    let directory = tempfile::tempdir().unwrap();
    saved(file.path(), directory.path());
    let vm = vm();
    let object = vm.file(file.path()).unwrap();
    let mut map = private(&vm, &object);
    assert_eq!(read(&map, 3), of_file(3));
    write(&mut map, 1, 77);
    let snapshot = map.snapshot().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    snapshot.save(elsewhere.path()).unwrap();
    file.as_file().write_all_at(&[9; 8], 3 * PAGE_SIZE + 16).unwrap();
    file.as_file().set_modified(std::time::UNIX_EPOCH).unwrap();
    let refused = tempfile::tempdir().unwrap();
    match snapshot.save(refused.path()) {
        Err(SavedError::BaseChanged { path }) => assert_eq!(path, file.path()),
        other => panic!("{other:?}"),
    }
    assert_eq!(names_in(refused.path()), [""; 0]);
    // Nor is an object that shows what the file was taken for what it is.
    let other = support::vm();
    let now = other.file(file.path()).unwrap();
    let mut map = private(&other, &now);
    write(&mut map, 1, 78);
    map.snapshot().unwrap().save(refused.path()).unwrap();
    let opened = vm.open_snapshot_on(refused.path(), &[object]);
    assert!(matches!(opened, Err(SavedError::BaseChanged { .. })), "{opened:?}");
}

#[test]
fn a_file_below_that_cannot_be_found_again_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let (path, moved, directory) =
        (home.path().join("image"), home.path().join("moved"), home.path().join("saved"));
    std::fs::write(&path, vec![1; at(8)]).unwrap();
    let vm = vm();
    let object = vm.file(&path).unwrap();
    let mut map = private(&vm, &object);
    write(&mut map, 1, 77);
    let snapshot = map.snapshot().unwrap();
    std::fs::rename(&path, &moved).unwrap();
    snapshot.save(&directory).unwrap();
    support::vm().open_snapshot(&directory).unwrap();
    // Replaced, as an atomic update does, and removed.
    std::fs::write(&path, vec![2; at(8)]).unwrap();
    std::fs::rename(&path, &moved).unwrap();
    for _ in 0..2 {
        match snapshot.save(&directory) {
            Err(SavedError::BaseGone { name }) => assert_eq!(Path::new(&name), path),
            other => panic!("{other:?}"),
        }
        let _ = std::fs::remove_file(&moved);
    }
}

#[test]
fn without_room_the_old_one_stays() {
    if !support::is_child("without_room_the_old_one_stays") {
        let ignoring = ["sh", "-c", "trap '' XFSZ; exec \"$@\"", "sh"];
        let child = support::child("without_room_the_old_one_stays", &ignoring);
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
        return;
    }
    let file = support::file(8 * PAGE_SIZE);
    let directory = tempfile::tempdir().unwrap();
    saved(file.path(), directory.path());
    let sound = std::fs::read(directory.path().join("manifest")).unwrap();
    let vm = vm();
    let mut map = private(&vm, &vm.open_snapshot(directory.path()).unwrap());
    (0..8).for_each(|page| write(&mut map, page, 100 + page));
    let snapshot = map.snapshot().unwrap();
    let limited = |pages: u64| {
        // In a process of its own nobody else writes files.
        let limit = Rlimit { current: Some(pages * PAGE_SIZE), maximum: None };
        setrlimit(Resource::Fsize, limit).unwrap();
    };
    limited(4);
    let refused = snapshot.save(directory.path());
    limited(1 << 20);
    assert!(matches!(refused, Err(SavedError::NoRoom { .. })), "{refused:?}");
    assert_eq!(names_in(directory.path()), ["1.image", "manifest"]);
    assert_eq!(std::fs::read(directory.path().join("manifest")).unwrap(), sound);
    let opened = private(&vm, &vm.open_snapshot(directory.path()).unwrap());
    assert_eq!([1, 2, 5].map(|page| read(&opened, page)), [of_file(1), 20, 50]);
    // With room again.
    assert_eq!(snapshot.save(directory.path()).unwrap().pages_written, 8);
    assert_eq!(names_in(directory.path()), ["2.image", "manifest"]);
}

#[test]
fn what_a_cut_save_left_is_removed_by_the_next() {
    let file = support::file(8 * PAGE_SIZE);
    let directory = tempfile::tempdir().unwrap();
    saved(file.path(), directory.path());
    for name in ["2.image", "3.image", "manifest.next", "mine.txt", "not.image"] {
        std::fs::write(directory.path().join(name), "left").unwrap();
    }
    let vm = vm();
    let mut map = private(&vm, &vm.open_snapshot(directory.path()).unwrap());
    assert_eq!([1, 2, 5].map(|page| read(&map, page)), [of_file(1), 20, 50]);
    write(&mut map, 1, 10);
    assert_eq!(map.snapshot().unwrap().save(directory.path()).unwrap().pages_written, 1);
    assert_eq!(names_in(directory.path()), ["1.image", "2.image", "manifest", "mine.txt", "not.image"]);
}

#[test]
fn files_that_no_save_wrote_are_left_alone() {
    let vm = vm();
    let mut map = private(&vm, &vm.anonymous(4 * PAGE_SIZE).unwrap());
    write(&mut map, 1, 1);
    let snapshot = map.snapshot().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    // Nothing is saved here yet: these are somebody's.
    for name in ["12.image", "007.image", "+7.image", "a.image"] {
        std::fs::write(path(name), "mine").unwrap();
    }
    match snapshot.save(directory.path()) {
        Err(SavedError::Foreign { path: found }) => assert_eq!(found, path("12.image")),
        other => panic!("{other:?}"),
    }
    assert_eq!(names_in(directory.path()), ["+7.image", "007.image", "12.image", "a.image"]);
    std::fs::remove_file(path("12.image")).unwrap();
    // What a link with a name of ours leads to is somebody's, too.
    std::os::unix::fs::symlink(path("a.image"), path("manifest.next")).unwrap();
    snapshot.save(directory.path()).unwrap();
    assert_eq!(names_in(directory.path()), ["+7.image", "007.image", "1.image", "a.image", "manifest"]);
    assert_eq!(std::fs::read(path("a.image")).unwrap(), b"mine");
}

#[test]
fn a_first_save_that_fails_or_is_cut_short_does_not_keep_the_next_from_it() {
    let vm = vm();
    let file = support::file(4 * PAGE_SIZE);
    let mut map = private(&vm, &vm.file(file.path()).unwrap());
    write(&mut map, 1, 1);
    let snapshot = map.snapshot().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let moved = file.path().with_extension("moved");
    std::fs::rename(file.path(), &moved).unwrap();
    std::fs::write(file.path(), "another").unwrap();
    std::fs::remove_file(&moved).unwrap();
    assert!(snapshot.save(directory.path()).is_err());
    assert!(names_in(directory.path()).is_empty(), "{:?}", names_in(directory.path()));
    // As a process leaves it that is killed.
    std::fs::write(directory.path().join("manifest.next"), "").unwrap();
    std::fs::write(directory.path().join("1.image"), "a part").unwrap();
    let mut map = private(&vm, &vm.anonymous(4 * PAGE_SIZE).unwrap());
    write(&mut map, 1, 1);
    map.snapshot().unwrap().save(directory.path()).unwrap();
    assert_eq!(names_in(directory.path()), ["1.image", "manifest"]);
}

#[test]
fn nobody_is_waited_for_at_the_other_end_of_a_fifo() {
    let fifo = |path: &Path| {
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    };
    let vm = vm();
    let mut map = private(&vm, &vm.anonymous(4 * PAGE_SIZE).unwrap());
    write(&mut map, 1, 1);
    let snapshot = map.snapshot().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fifo(&path("fifo"));
    for outcome in [vm.open_snapshot(path("fifo")).map(drop), snapshot.save(path("fifo")).map(drop)] {
        assert!(
            matches!(&outcome, Err(SavedError::Read { path: found, .. }) if *found == path("fifo")),
            "{outcome:?}"
        );
    }
    fifo(&path("manifest.next"));
    snapshot.save(directory.path()).unwrap();
    for name in ["1.image", "manifest"] {
        std::fs::remove_file(path(name)).unwrap();
        fifo(&path(name));
        let outcome = vm.open_snapshot(directory.path());
        assert!(
            matches!(&outcome, Err(SavedError::Read { path: found, .. }) if *found == path(name)),
            "{outcome:?}"
        );
    }
}

/// A source that is full of one byte.
struct Full(u8);

impl prepage_vm::Source for Full {
    fn len_bytes(&self) -> u64 {
        4 * PAGE_SIZE
    }

    fn read(&self, _: u64, into: &mut [u8]) -> Result<(), prepage_vm::SourceError> {
        into.fill(self.0);
        Ok(())
    }
}

#[test]
fn two_objects_of_one_name_are_never_taken_for_each_other() {
    let vm = vm();
    let directory = tempfile::tempdir().unwrap();
    let twice = |outcome: Result<(), SavedError>| {
        assert!(matches!(&outcome, Err(SavedError::BaseTwice { name }) if name == "disk"), "{outcome:?}");
    };
    let [one, other] = [1, 2].map(|byte| vm.source("disk", Full(byte)).unwrap());
    let pieces = [&one, &other].map(|disk| prepage_vm::Piece::new(disk, pages(0, 4)));
    let mut both = vm.map_pieces(&pieces, &MapOptions::private()).unwrap();
    write(&mut both, 0, 7);
    twice(both.snapshot().unwrap().save(directory.path()).map(drop));
    let mut map = private(&vm, &other);
    write(&mut map, 0, 7);
    map.snapshot().unwrap().save(directory.path()).unwrap();
    twice(vm.open_snapshot_on(directory.path(), &[one, other.clone()]).map(drop));
    // The same object twice is no other.
    let opened = vm.open_snapshot_on(directory.path(), &[other.clone(), other]).unwrap();
    assert_eq!(private(&vm, &opened).as_slice()[PAGE_SIZE as usize], 2);
}

/// Saves for ever, to the directory that is given.
fn save_for_ever(directory: &Path) {
    let vm = vm();
    let mut map = match vm.open_snapshot(directory) {
        Ok(snapshot) => private(&vm, &snapshot),
        Err(SavedError::Nothing { .. }) => private(&vm, &vm.anonymous(KILLED_PAGES * PAGE_SIZE).unwrap()),
        Err(error) => panic!("{error:?}"),
    };
    let begun = read(&map, 0);
    let parent = std::os::unix::process::parent_id();
    for round in begun + 1.. {
        // Not for ever, where the one that is to kill this died.
        assert_eq!(std::os::unix::process::parent_id(), parent);
        // All pages of a snapshot show the same round, but for those that are of one of the three before.
        let is_written = |page: &u64| *page == 0 || page % 4 == round % 4;
        (0..KILLED_PAGES).filter(is_written).for_each(|page| write(&mut map, page, round));
        map.snapshot().unwrap().save(directory).unwrap();
    }
}

const KILLED_PAGES: u64 = 64;

/// A process that ends with this.
struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process is killed while it saves; whatever it came to, one of its snapshots is there, and whole.
#[test]
fn a_killed_process_leaves_a_whole_snapshot() {
    const NAME: &str = "a_killed_process_leaves_a_whole_snapshot";
    const DIRECTORY: &str = "PREPAGE_TEST_DIRECTORY";
    if support::is_child(NAME) {
        return save_for_ever(Path::new(&std::env::var_os(DIRECTORY).unwrap()));
    }
    let directory = tempfile::tempdir().unwrap();
    let manifest = directory.path().join("manifest");
    let came_to = || std::fs::read(&manifest).ok();
    let mut last = 0;
    for round in 0..8 {
        let child = support::child_command(NAME, &[])
            .env(DIRECTORY, directory.path())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let mut child = Killed(child);
        // It came a little further; then anywhere in a save.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
        let (mut seen, mut changes) = (came_to(), 0);
        while changes < 2 {
            assert!(std::time::Instant::now() < deadline, "the child saves nothing");
            assert!(child.0.try_wait().unwrap().is_none(), "the child ended by itself");
            if came_to() != seen {
                (seen, changes) = (came_to(), changes + 1);
            }
            std::thread::sleep(std::time::Duration::from_micros(100 + 370 * round));
        }
        drop(child);
        let vm = vm();
        let map = private(&vm, &vm.open_snapshot(directory.path()).unwrap());
        let now = read(&map, 0);
        assert!(now > last, "{now} after {last}");
        for page in 1..KILLED_PAGES {
            let lag = (now % 4 + 4 - page % 4) % 4;
            assert_eq!(read(&map, page), now.saturating_sub(lag), "page {page} at {now}");
        }
        last = now;
    }
}

#[test]
fn a_directory_that_is_moved_meanwhile_gets_the_whole_save() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    std::fs::create_dir(path("saved")).unwrap();
    let held = std::fs::File::open(path("saved")).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let inode = format!(":{} ", held.metadata().unwrap().ino());
    std::thread::scope(|scope| {
        let saving = scope.spawn(|| {
            let vm = vm();
            let mut map = private(&vm, &vm.anonymous(4 * PAGE_SIZE).unwrap());
            write(&mut map, 1, 1);
            map.snapshot().unwrap().save(path("saved"))
        });
        // It has the directory open, and waits for the lock.
        support::until(|| {
            let locks = std::fs::read_to_string("/proc/locks").unwrap();
            locks.lines().any(|line| line.contains("-> FLOCK") && line.contains(&inode))
        });
        std::fs::rename(path("saved"), path("moved")).unwrap();
        std::fs::create_dir(path("saved")).unwrap();
        rustix::fs::flock(&held, rustix::fs::FlockOperation::Unlock).unwrap();
        assert_eq!(saving.join().unwrap().unwrap().pages, 1);
    });
    assert_eq!(names_in(&path("moved")), ["1.image", "manifest"]);
    assert!(names_in(&path("saved")).is_empty(), "{:?}", names_in(&path("saved")));
    let vm = vm();
    assert_eq!(read(&private(&vm, &vm.open_snapshot(path("moved")).unwrap()), 1), 1);
}

#[test]
fn an_image_that_was_deleted_or_cut_is_written_anew() {
    let file = support::file(8 * PAGE_SIZE);
    for is_deleted in [true, false] {
        for is_opened in [true, false] {
            let directory = tempfile::tempdir().unwrap();
            let vm = vm();
            let object = vm.file(file.path()).unwrap();
            let mut map = private(&vm, &object);
            write(&mut map, 2, 20);
            write(&mut map, 5, 50);
            map.snapshot().unwrap().save(directory.path()).unwrap();
            if is_opened {
                map = private(&vm, &vm.open_snapshot(directory.path()).unwrap());
                assert_eq!([2, 5].map(|page| read(&map, page)), [20, 50]);
            }
            let image = directory.path().join("1.image");
            if is_deleted {
                std::fs::remove_file(image).unwrap();
            } else {
                std::fs::File::options().write(true).open(image).unwrap().set_len(PAGE_SIZE).unwrap();
            }
            write(&mut map, 3, 30);
            let saved = map.snapshot().unwrap().save(directory.path());
            // What was cut is damaged for who has it open.
            if is_opened && !is_deleted {
                assert!(matches!(saved, Err(SavedError::Unread { .. })), "{saved:?}");
                continue;
            }
            assert_eq!(saved.unwrap().pages_written, 3);
            let vm = support::vm();
            let map = private(&vm, &vm.open_snapshot(directory.path()).unwrap());
            let expected = [of_file(1), 20, 30, of_file(4), 50];
            assert_eq!([1, 2, 3, 4, 5].map(|page| read(&map, page)), expected);
        }
    }
}

#[test]
fn the_name_of_a_new_directory_is_on_the_disk_before_its_snapshot() {
    const NAME: &str = "the_name_of_a_new_directory_is_on_the_disk_before_its_snapshot";
    const DIRECTORY: &str = "PREPAGE_TEST_DIRECTORY";
    if support::is_child(NAME) {
        let vm = vm();
        let mut map = private(&vm, &vm.anonymous(4 * PAGE_SIZE).unwrap());
        write(&mut map, 1, 1);
        map.snapshot().unwrap().save(std::env::var_os(DIRECTORY).unwrap()).unwrap();
        return;
    }
    if !prepage_testing::has(prepage_testing::Need::Tool("strace".to_owned())) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (path, calls) = (directory.path().canonicalize().unwrap(), directory.path().join("calls"));
    let words = ["-f", "-y", "-e", "trace=fsync,fdatasync,renameat,renameat2", "-o"];
    let assigned = format!("{DIRECTORY}={}", path.join("new").display());
    let mut before = vec!["env", &assigned, "strace"];
    before.extend(words);
    before.push(calls.to_str().unwrap());
    let child = support::child(NAME, &before);
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
    let calls = std::fs::read_to_string(calls).unwrap();
    let place = |what: &str| calls.find(what);
    let synced = place(&format!("<{}>)", path.display()));
    let placed = place(", \"manifest\")");
    assert!(placed.is_some() && synced.is_some_and(|synced| Some(synced) < placed), "{calls}");
}

#[test]
fn several_save_to_one_directory_at_once() {
    let directory = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for saver in 1..=3 {
            let directory = directory.path();
            scope.spawn(move || {
                let vm = vm();
                let mut map = private(&vm, &vm.anonymous(32 * PAGE_SIZE).unwrap());
                for round in 0..8 {
                    (0..32).for_each(|page| write(&mut map, page, saver << 32 | round));
                    map.snapshot().unwrap().save(directory).unwrap();
                    let opened = private(&vm, &vm.open_snapshot(directory).unwrap());
                    let first = read(&opened, 0);
                    (0..32).for_each(|page| assert_eq!(read(&opened, page), first, "page {page}"));
                }
            });
        }
    });
    assert_eq!(
        names_in(directory.path()).len() as u64,
        1 + manifest_of(directory.path()).images.len() as u64
    );
}

#[test]
fn a_pool_reclaims_what_was_opened() {
    const PAGES: u64 = 1024;
    let directory = tempfile::tempdir().unwrap();
    {
        let vm = vm();
        let mut map = private(&vm, &vm.anonymous(PAGES * PAGE_SIZE).unwrap());
        (0..PAGES).for_each(|page| write(&mut map, page, page + 1));
        map.snapshot().unwrap().save(directory.path()).unwrap();
    }
    let vm = Vm::new(VmOptions::default().frame_limit_bytes(256 * PAGE_SIZE)).unwrap();
    let opened = vm.open_snapshot(directory.path()).unwrap();
    let map = private(&vm, &opened);
    for _ in 0..2 {
        (0..PAGES).for_each(|page| assert_eq!(read(&map, page), page + 1));
    }
    assert!(keeps_to(256, &vm));
}

const PAGES: u64 = 70;

#[derive(Clone, Debug)]
enum Step {
    Write { page: u64, run: u64, value: u64 },
    Save { to: usize },
    Open { from: usize },
    Snapshot,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..PAGES, prop_oneof![3 => 1..3_u64, 1 => 16..40_u64], 0..4_u64)
            .prop_map(|(page, run, value)| Step::Write { page, run, value }),
        3 => (0..2_usize).prop_map(|to| Step::Save { to }),
        2 => (0..2_usize).prop_map(|from| Step::Open { from }),
        1 => Just(Step::Snapshot),
    ];
    prop::collection::vec(step, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn saved_snapshots_hold_what_maps_held(steps in steps(), zeros in any::<bool>()) {
        let file = support::file(PAGES * PAGE_SIZE);
        let directory = tempfile::tempdir().unwrap();
        let directories = ["one", "other"].map(|name| directory.path().join(name));
        let mut saved: [Option<Vec<u64>>; 2] = [None, None];
        let mut vm = vm();
        let base = |vm: &Vm| {
            if zeros { vm.anonymous(PAGES * PAGE_SIZE).unwrap() } else { vm.file(file.path()).unwrap() }
        };
        let mut map = private(&vm, &base(&vm));
        let mut now: Vec<u64> = (0..PAGES).map(|page| if zeros { 0 } else { of_file(page) }).collect();
        for step in steps {
            match step {
                Step::Write { page, run, value } => {
                    for page in page..(page + run).min(PAGES) {
                        write(&mut map, page, value);
                        now[page as usize] = value;
                    }
                }
                Step::Save { to } => {
                    map.snapshot().unwrap().save(&directories[to]).unwrap();
                    saved[to] = Some(now.clone());
                }
                Step::Open { from } => {
                    if let Some(bytes) = &saved[from] {
                        drop(map);
                        vm = Vm::new(VmOptions::default()).unwrap();
                        map = private(&vm, &vm.open_snapshot(&directories[from]).unwrap());
                        now.clone_from(bytes);
                    }
                }
                Step::Snapshot => drop(map.snapshot().unwrap()),
            }
            let differs = (0..PAGES).find(|page| read(&map, *page) != now[*page as usize]);
            prop_assert_eq!(differs, None);
        }
        for (directory, bytes) in directories.iter().zip(&saved) {
            if let Some(bytes) = bytes {
                let map = private(&vm, &vm.open_snapshot(directory).unwrap());
                (0..PAGES).for_each(|page| assert_eq!(read(&map, page), bytes[page as usize]));
            }
        }
    }
}
