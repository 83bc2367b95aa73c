//! Files of an image that are laid out for its boot, on the real kernel: where their pages lie, and that nothing else of them changes.

mod support;

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use prepage_core::profile::{Extent, FileIdentity, Profile, ProfiledFile};
use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_profiles::identity::{content_of, identity_of};
use prepage_service::subject::Subject;
use prepage_sys::extents::place_of;
use prepage_testing::{Need, has};

use support::Mounted;

const PREPAGED: &str = env!("CARGO_BIN_EXE_prepaged");
/// Nobody waits so long for a program: others may keep the machine busy.
const HELD_MAX: Duration = Duration::from_secs(2);

/// A tree, and the image that is made of it and mounted.
struct Image {
    place: tempfile::TempDir,
}

impl Image {
    /// `None`, and a skip, where this machine does not allow the tests.
    fn new() -> Option<Self> {
        if !has(Need::Root) || !has(Need::LoopDevice) {
            return None;
        }
        // A loop device reads its image from a disk's file system.
        let image = Self { place: tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap() };
        for directory in [image.in_tree("usr/lib"), image.in_tree("var/lib/prepage"), image.point()] {
            fs::create_dir_all(directory).unwrap();
        }
        Some(image)
    }

    fn in_tree(&self, name: &str) -> PathBuf {
        self.place.path().join("tree").join(name)
    }

    fn point(&self) -> PathBuf {
        self.place.path().join("mounted")
    }

    fn file(&self) -> PathBuf {
        self.place.path().join("image")
    }

    /// What a profile has of a file of the tree.
    fn profiled(&self, name: &str, extents: Vec<Extent>) -> ProfiledFile {
        let file = fs::File::open(self.in_tree(name)).unwrap();
        ProfiledFile {
            path: format!("/{name}"),
            identity: FileIdentity { size_bytes: file.metadata().unwrap().len(), ..FileIdentity::default() },
            fingerprint: content_of(&file).unwrap(),
            learned_unix_s: 0,
            extents,
        }
    }

    /// All of it.
    fn profiled_whole(&self, name: &str, rank: u32) -> ProfiledFile {
        let bytes = fs::metadata(self.in_tree(name)).unwrap().len();
        self.profiled(name, vec![Extent::new(PageRange::covering(0, bytes), rank)])
    }

    /// Makes and mounts it, with the profile of a boot that needs `files`.
    fn mount(&self, files: Vec<ProfiledFile>) {
        let key = Subject::Boot.key();
        let learned = Profile { files, ..key.empty_profile() };
        let stores = Subject::Boot.stores(Some(vec![self.in_tree("var/lib/prepage")])).unwrap();
        stores.update(&key, Subject::Boot.layer(), |_| Some(learned.clone())).unwrap();
        fs::File::create(self.file()).unwrap().set_len(160 << 20).unwrap();
        let made = Command::new("mkfs.ext4")
            .args(["-q", "-b", "4096", "-d"])
            .args([self.in_tree(""), self.file()])
            .status();
        assert!(made.unwrap().success());
        let mounted = Command::new("mount").args(["-o", "loop"]).args([self.file(), self.point()]).status();
        assert!(mounted.unwrap().success());
    }

    /// Copies a program of this machine to `name`, and what it is loaded by and linked to to their own places.
    fn add_program(&self, program: &Path, name: &str) {
        copy(program, &self.in_tree(name));
        let linked = Command::new("ldd").arg(program).output().unwrap();
        for path in String::from_utf8(linked.stdout).unwrap().split_whitespace() {
            if path.starts_with('/') && !self.in_tree(&path[1..]).exists() {
                copy(Path::new(path), &self.in_tree(&path[1..]));
            }
        }
    }

    /// Has the image as the machine that runs arrange its own files, once [`Self::add_program`] has put `prepaged` there.
    fn arrange_from_inside(&self) -> Child {
        let script = "cd \"$1\" && mount -t proc none proc && mount --rbind /sys sys && mount --rbind /dev dev && \
                      exec chroot . /prepaged image --arrange --programs /";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script, "sh"]).arg(self.point()).env_remove("PREPAGE_LAYERS");
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

/// Written by a process of its own: while this one had it open, another thread's child would have it open too, and nobody could execute it.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    assert!(Command::new("cp").arg("--dereference").args([from, to]).status().unwrap().success());
}

fn identity(path: &Path) -> (FileIdentity, u32) {
    let file = fs::File::open(path).unwrap();
    (identity_of(&file).unwrap(), file.metadata().unwrap().permissions().mode())
}

/// Where a page of a file lies on the device, in pages.
fn place(path: &Path, page: u64) -> u64 {
    let file = fs::File::open(path).unwrap();
    place_of(file.as_fd(), page * PAGE_SIZE).unwrap().unwrap() / PAGE_SIZE
}

/// Starts `program` until `is_over`, again and again, and once after that; returns the longest time for which it was refused.
fn start_until(program: &Path, is_over: &AtomicBool) -> Duration {
    let (mut longest, mut refused) = (Duration::ZERO, None);
    loop {
        let is_last = is_over.load(Ordering::Relaxed);
        match Command::new(program).arg("0").status() {
            Ok(status) => {
                assert!(status.success(), "{status}");
                refused = None;
                if is_last {
                    return longest;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => {
                let since = *refused.get_or_insert_with(Instant::now);
                longest = longest.max(since.elapsed());
                if longest > HELD_MAX {
                    return longest;
                }
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn pages_that_a_boot_needs_are_moved_side_by_side_and_files_keep_what_they_hold() {
    let Some(image) = Image::new() else { return };
    let bytes = |first: u8| (0..64).flat_map(|page| [first + page; PAGE_SIZE as usize]).collect::<Vec<_>>();
    // Pages of both are needed in turns.
    let (one, other) = (bytes(1), bytes(101));
    let needed = [("usr/lib/one", &one, 1), ("usr/lib/other", &other, 2)].map(|(name, bytes, rank)| {
        fs::write(image.in_tree(name), bytes).unwrap();
        let page = |at: u32| {
            let page = u64::from(at) * 6 + 5;
            Extent::new(PageRange::new(PageIndex(page), PageIndex(page + 2)), 2 * at + rank)
        };
        image.profiled(name, (0..8).map(page).collect())
    });
    // What is needed before fills the place of files that are moved as a whole.
    fs::write(image.in_tree("usr/lib/first"), vec![7; 4100 * PAGE_SIZE as usize]).unwrap();
    let all_but_some = Extent::new(PageRange::new(PageIndex(4), PageIndex(4100)), 0);
    let first = image.profiled("usr/lib/first", vec![all_but_some]);
    let wanted: Vec<u64> = needed[0].extents.iter().map(|extent| extent.range.start().0).collect();
    image.mount([first].into_iter().chain(needed).collect());
    let point = image.point();
    let _mounted = Mounted(&point);
    let paths = ["one", "other"].map(|name| point.join("usr/lib").join(name));
    let before = paths.each_ref().map(|path| identity(path));

    let mut arrange = Command::new(PREPAGED);
    let ended =
        arrange.args(["image", "--arrange"]).arg(&point).env_remove("PREPAGE_LAYERS").output().unwrap();
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success() && said.contains("4128 pages of 3 files"), "{ended:?}");
    for (path, bytes) in paths.iter().zip([&one, &other]) {
        assert!(fs::read(path).unwrap() == *bytes, "{}", path.display());
    }
    assert_eq!(paths.each_ref().map(|path| identity(path)), before, "what the profile knows them by");
    let places =
        paths.each_ref().map(|path| wanted.iter().map(|page| place(path, *page)).collect::<Vec<_>>());
    let in_turns: Vec<u64> =
        places[0].iter().zip(&places[1]).flat_map(|(one, other)| [*one, *other]).collect();
    let side_by_side: Vec<u64> = (0..16).map(|at| in_turns[0] + 2 * at).collect();
    assert_eq!(in_turns, side_by_side, "in the order of need");
}

#[test]
fn programs_of_the_running_machine_move_but_those_in_use_and_what_loads_them() {
    let Some(image) = Image::new() else { return };
    if !has(Need::Mounts) {
        return;
    }
    let sleep = fs::canonicalize("/bin/sleep").unwrap();
    image.add_program(Path::new(PREPAGED), "prepaged");
    for name in ["bin/tool", "bin/given", "bin/held", "bin/often"] {
        image.add_program(&sleep, name);
    }
    fs::set_permissions(image.in_tree("bin/given"), fs::Permissions::from_mode(0o4755)).unwrap();
    ["proc", "sys", "dev"].iter().for_each(|name| fs::create_dir(image.in_tree(name)).unwrap());
    let loader = {
        let linked = Command::new("ldd").arg(&sleep).output().unwrap();
        let linked = String::from_utf8(linked.stdout).unwrap();
        let loader = linked.split_whitespace().find(|word| word.starts_with('/') && word.contains("/ld"));
        loader.expect("a loader")[1..].to_owned()
    };
    fs::write(image.in_tree("usr/lib/plain"), vec![7; 40 * PAGE_SIZE as usize]).unwrap();
    let (moving, staying) = (["bin/tool", "bin/given", "usr/lib/plain"], ["bin/held", &*loader]);
    let names: Vec<&str> = moving.into_iter().chain(staying).collect();
    // What is started again and again is in use at some moments, and moved at others.
    let needed = (0..).zip(names.iter().chain([&"bin/often"]));
    image.mount(needed.map(|(rank, name)| image.profiled_whole(name, rank)).collect());
    let point = image.point();
    let _mounted = Mounted(&point);
    let mut held = Command::new(point.join("bin/held")).arg("1000").spawn().unwrap();
    // Linux 6.11 moves what is executed, too.
    let is_refused = fs::File::options().write(true).open(point.join("bin/held")).is_err();
    let staying = if is_refused { &staying[..] } else { &staying[1..] };
    let state = || names.iter().map(|name| identity(&point.join(name))).collect::<Vec<_>>();
    let lie = |names: &[&str]| names.iter().map(|name| place(&point.join(name), 1)).collect::<Vec<_>>();
    let (before, moving_lay, staying_lay) = (state(), lie(&moving), lie(staying));

    let is_over = AtomicBool::new(false);
    let (ended, refused) = std::thread::scope(|scope| {
        let starts = scope.spawn(|| start_until(&point.join("bin/often"), &is_over));
        let ended = image.arrange_from_inside().wait_with_output().unwrap();
        is_over.store(true, Ordering::Relaxed);
        (ended, starts.join().unwrap())
    });
    held.kill().unwrap();
    held.wait().unwrap();
    let Output { status, stdout, stderr } = ended;
    let said = String::from_utf8_lossy(&stdout);
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    assert!(said.contains("held up"), "{said}");
    assert!(refused < HELD_MAX, "nobody could start it for {refused:?}");
    assert_eq!(lie(staying), staying_lay, "{said}");
    assert!(lie(&moving).iter().zip(&moving_lay).all(|(now, lay)| now != lay), "{said}");
    assert_eq!(state(), before, "modes, and what the profile knows files by");
    for name in names {
        assert!(fs::read(point.join(name)).unwrap() == fs::read(image.in_tree(name)).unwrap(), "{name}");
    }
}

/// A move is killed at the end of each of so many equal parts of the time it takes.
const PARTS: u32 = 20;

#[test]
fn programs_are_whole_wherever_their_move_is_killed() {
    let Some(image) = Image::new() else { return };
    if !has(Need::Mounts) {
        return;
    }
    image.add_program(Path::new(PREPAGED), "prepaged");
    let program = image.in_tree("bin/large");
    image.add_program(&fs::canonicalize("/bin/sleep").unwrap(), "bin/large");
    // What follows an executable is nothing to its loader.
    let script = "head -c 24000000 /dev/urandom >>\"$1\" && chmod 2755 \"$1\"";
    assert!(Command::new("sh").args(["-c", script, "sh"]).arg(&program).status().unwrap().success());
    ["proc", "sys", "dev"].iter().for_each(|name| fs::create_dir(image.in_tree(name)).unwrap());
    image.mount(vec![image.profiled_whole("bin/large", 0)]);
    let point = image.point();
    let mounted = Mounted(&point);
    let large = point.join("bin/large");
    let (before, bytes) = (identity(&large), fs::read(&program).unwrap());
    let blocks = point.join("var/lib/prepage/boot.blocks");
    let began = Instant::now();
    let whole = image.arrange_from_inside().wait_with_output().unwrap();
    let (whole, took) = (whole.status, began.elapsed());
    assert!(whole.success(), "{whole}");
    let mut killed = 0;
    // Before the first file has moved, and after all is done.
    let (mut early, mut late) = (Duration::ZERO, took);
    for part in 1..=5 * PARTS {
        // Then in between: that may be a small part of the time.
        let after = if part <= PARTS { took * part / PARTS } else { (early + late) / 2 };
        // Where the file lay before.
        fs::write(&blocks, "earlier").unwrap();
        let lay = place(&large, 1);
        let mut arranging = image.arrange_from_inside();
        std::thread::sleep(after);
        arranging.kill().unwrap();
        let ended = arranging.wait_with_output().unwrap();
        let has_moved = place(&large, 1) != lay;
        match (ended.status.success(), has_moved) {
            (true, _) => late = late.min(after),
            (false, false) => early = early.max(after),
            (false, true) => killed += 1,
        }
        if early >= late {
            (early, late) = (Duration::ZERO, took);
        }
        let is_believed = fs::read(&blocks).is_ok_and(|blocks| blocks == b"earlier");
        assert!(!(has_moved && is_believed), "killed in part {part}: places of before");
        assert_eq!(identity(&large), before, "killed in part {part}");
        // What the disk has, and not the memory alone.
        let file = fs::File::open(&large).unwrap();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        drop(file);
        assert!(fs::read(&large).unwrap() == bytes, "killed in part {part}");
        assert!(Command::new(&large).arg("0").status().unwrap().success());
        if part >= PARTS && killed > 0 {
            break;
        }
    }
    assert!(killed > 0, "no move was killed midway");
    drop(mounted);
    // What was killed midway may leave a process that is about to end, and it may keep the image mounted.
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let checked = Command::new("e2fsck").args(["-f", "-n"]).arg(image.file()).output().unwrap();
        if checked.status.success() {
            break;
        }
        assert!(Instant::now() < until, "{checked:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}
