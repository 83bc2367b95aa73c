//! Profiles that lie, files that change, devices that fail, limits that bite: the program runs all the same, and `-v` says
//! what was left out.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::control_group::ControlGroup;
use crate::support::{Sandbox, evict, is_root, text, wait_for};
use crate::vm_top::{POOLS, answered};
use prepage_core::profile::{Counts, Extent, FileIdentity, Fingerprint, Lookup, Profile, ProfiledFile};
use prepage_core::{
    Fault, FaultClass, Object, ObjectId, PAGE_SIZE, PageIndex, PageRange, Thread, ThreadIndex, Trace,
};
use prepage_profiles::identity::{identity_of, open_to_read, profiled};
use prepage_profiles::{Layer, ProgramKey, Stores};
use prepage_sys::sync::Anyway;
use prepage_testing::{Hung, Need, copy_program, has};
use prepage_trace::parquet::write_trace;
use prepage_vm::{Pool, Vm, VmOptions};

/// Goes on until its standard input ends, 20 seconds at most: a prefetch ends with its program.
const PROGRAM: [&str; 3] = ["sh", "-c", "timeout 20 cat; echo ran"];

/// Which profile [`PROGRAM`] has.
fn key() -> ProgramKey {
    ProgramKey::of(&PROGRAM.map(Into::into)).unwrap()
}

/// The profile of [`PROGRAM`] with these files and names, in the sandbox's store. The files are evicted.
fn store(sandbox: &Sandbox, files: Vec<ProfiledFile>, lookups: &[&str]) {
    let key = key();
    let names =
        lookups.iter().map(|path| Lookup { path: (*path).into(), list: true, counts: Counts::default() });
    let profile = Profile { files, lookups: names.collect(), ..key.empty_profile() };
    evict_files(sandbox, &profile);
    Stores::at(sandbox.store()).update(&key, Layer::User, |_| Some(profile.clone())).unwrap();
}

/// Sends the files of `profile` that lie in the sandbox out of memory.
fn evict_files(sandbox: &Sandbox, profile: &Profile) {
    for file in profile.files.iter().filter(|file| Path::new(&file.path).starts_with(sandbox.path())) {
        if let Ok(file) = open_to_read(Path::new(&file.path))
            && identity_of(&file).is_ok()
        {
            evict(&file);
        }
    }
}

/// What is told on standard error of a start of [`PROGRAM`].
fn run(sandbox: &Sandbox) -> String {
    let command = [&["run", "-v", "--no-learn", "--"], &PROGRAM[..]].concat();
    run_by(sandbox, &mut sandbox.prepage(&command))
}

/// The same of a start by `command`. The program ends once something was told.
fn run_by(sandbox: &Sandbox, command: &mut Command) -> String {
    for _ in 0..4 {
        let told = run_once_by(command);
        if !told.contains(LATE) {
            return told;
        }
        sandbox.wait_for_helpers();
        if let Ok(Some(found)) = Stores::at(sandbox.store()).find(&key()) {
            evict_files(sandbox, &found.profile);
        }
    }
    run_once_by(command)
}

/// What is told where what serves a start got no processor for half a second.
const LATE: &str = "the program does not wait";

fn run_once_by(command: &mut Command) -> String {
    let began = Instant::now();
    let mut program =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = BufReader::new(program.stderr.take().unwrap());
    let mut told = String::new();
    stderr.read_line(&mut told).unwrap();
    let output = program.wait_with_output().unwrap();
    assert!(began.elapsed() < Duration::from_secs(28), "the program waited for its prefetch");
    stderr.read_to_string(&mut told).unwrap();
    assert_eq!(text(&output.stdout), "ran\n", "{told}");
    assert!(output.status.success(), "{told}");
    told
}

/// The file at `path`, which exists, with pages `start` to `end`.
fn of_file(path: &Path, start: u64, end: u64) -> ProfiledFile {
    ProfiledFile { extents: lying(path, start, end, 0).extents, ..profiled(path, []).unwrap() }
}

/// A file that may not be what it is said to be.
fn lying(path: &Path, start: u64, end: u64, size_bytes: u64) -> ProfiledFile {
    ProfiledFile {
        path: path.to_str().unwrap().into(),
        identity: FileIdentity { device: 1, inode: 2, size_bytes, mtime_ns: 3, ctime_ns: 4 },
        fingerprint: Fingerprint::Ends { crc: 5, size_bytes },
        learned_unix_s: 0,
        extents: vec![Extent::new(PageRange::new(PageIndex(start), PageIndex(end)), 0)],
    }
}

/// A file of 64 pages.
fn data_file(sandbox: &Sandbox, name: &str) -> PathBuf {
    let path = sandbox.path().join(name);
    fs::write(&path, vec![7u8; 64 * PAGE_SIZE as usize]).unwrap();
    fs::File::open(&path).unwrap().sync_all().unwrap();
    path
}

#[test]
fn a_profile_that_lies_is_cut_down_to_what_is_there() {
    let sandbox = Sandbox::new();
    let good = data_file(&sandbox, "good");
    let mut past_end = of_file(&good, 0, 4);
    past_end.extents.push(Extent::new(PageRange::new(PageIndex(50), PageIndex(1 << 30)), 0));
    let fifo = sandbox.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR).unwrap();
    let link = sandbox.path().join("link");
    std::os::unix::fs::symlink(&good, &link).unwrap();
    let files = vec![
        past_end,
        lying(&fifo, 0, 4, 4 * PAGE_SIZE),
        lying(Path::new("/dev/zero"), 0, 4, 4 * PAGE_SIZE),
        lying(&link, 0, 4, 64 * PAGE_SIZE),
        lying(Path::new("/no/such/file"), 0, 4, 4 * PAGE_SIZE),
        lying(&sandbox.path().join("../odd"), 0, 4, 4 * PAGE_SIZE),
        lying(Path::new("/proc/kcore"), 0, 1 << 40, 1 << 52),
    ];
    store(&sandbox, files, &["/", "/no/such/name", fifo.to_str().unwrap()]);
    let told = run(&sandbox);
    assert_eq!(told.lines().count(), 1, "{told}");
    for expected in ["pages past its end", "and 2 more"] {
        assert!(told.contains(expected), "{expected}: {told}");
    }
    let file = fs::File::open(&good).unwrap();
    let cached = |start, end| {
        let range = PageRange::new(PageIndex(start), PageIndex(end));
        prepage_sys::cachestat::cached_pages(std::os::fd::AsFd::as_fd(&file), range)
    };
    assert_eq!((cached(0, 4).unwrap(), cached(50, 64).unwrap()), (4, 14));
}

#[test]
fn a_profile_of_another_program_stays_where_nothing_is_to_be_learned() {
    let sandbox = Sandbox::new();
    let file = Stores::at(sandbox.store()).path_of(&key(), Layer::User).unwrap();
    fs::create_dir(sandbox.store()).unwrap();
    fs::set_permissions(sandbox.store(), fs::Permissions::from_mode(0o700)).unwrap();
    let another = Profile { program: "/another".into(), ..Profile::default() };
    let sound = prepage_core::profile::file::encode(&another);
    // Of a sound checksum, and no profile: the length of its first string is more than there is.
    let mut malformed = sound.clone();
    malformed[24] = 0x7f;
    let checksum = prepage_core::profile::file::checksum(&[&malformed[24..]]);
    malformed[12..16].copy_from_slice(&checksum.to_le_bytes());
    for bytes in [sound, malformed] {
        fs::write(&file, &bytes).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        run(&sandbox);
        sandbox.wait_for_helpers();
        assert_eq!(fs::read(&file).unwrap(), bytes);
    }
}

#[test]
fn files_replaced_while_they_are_prefetched_are_no_trouble() {
    let sandbox = Sandbox::new();
    let paths: Vec<PathBuf> = (0..40).map(|at| data_file(&sandbox, &format!("file-{at}"))).collect();
    store(&sandbox, paths.iter().map(|path| of_file(path, 0, 64)).collect(), &[]);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                for path in &paths {
                    let other = path.with_extension("new");
                    fs::write(&other, "another content").unwrap();
                    fs::rename(&other, path).unwrap();
                    fs::File::options().write(true).open(path).unwrap().set_len(3).unwrap();
                }
            }
        });
        for _ in 0..5 {
            run(&sandbox);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let told = run(&sandbox);
    assert!(told.contains("its content differs") && told.contains("and 35 more"), "{told}");
}

#[test]
fn a_device_that_fails_and_vanishes_costs_nothing_but_its_pages() {
    let sandbox = Sandbox::new();
    if !has(Need::LoopDevice) || !has(Need::Mounts) {
        return;
    }
    let (image, mount) = (sandbox.path().join("image"), sandbox.path().join("mount"));
    fs::create_dir(&mount).unwrap();
    fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
    let shell = |script: &str| {
        let output = Command::new("sh")
            .args(["-c", script])
            .env("IMAGE", &image)
            .env("MOUNT", &mount)
            .output()
            .unwrap();
        (output.status.success(), text(&output.stderr))
    };
    let made = shell("mkfs.ext4 -q -O ^has_journal \"$IMAGE\" && mount -o loop \"$IMAGE\" \"$MOUNT\"");
    assert!(made.0, "{}", made.1);
    let data = mount.join("data");
    fs::write(&data, vec![7u8; 8 << 20]).unwrap();
    assert!(shell("sync -f \"$MOUNT\"").0);
    store(&sandbox, vec![of_file(&data, 0, 2048)], &[mount.to_str().unwrap()]);
    // What the disk holds goes away under the file system: from here on, reads fail.
    fs::File::options().write(true).open(&image).unwrap().set_len(64 << 10).unwrap();
    let file = fs::File::open(&data).unwrap();
    evict(&file);
    drop(file);
    let told = std::panic::catch_unwind(|| run(&sandbox));
    wait_for("the mount to be let go", || shell("umount \"$MOUNT\"").0.then_some(()));
    let told = told.unwrap();
    assert!(told.contains("prefetched"), "{told}");
    // The file system is gone altogether.
    let told = run(&sandbox);
    assert!(told.contains("there is no such file"), "{told}");
}

#[test]
fn limits_on_files_and_memory_limit_the_prefetch_alone() {
    let sandbox = Sandbox::new();
    let files: Vec<ProfiledFile> =
        (0..60).map(|at| of_file(&data_file(&sandbox, &format!("file-{at}")), 0, 64)).collect();
    store(&sandbox, files, &[]);
    for limit in ["ulimit -n 12", "ulimit -v 60000", "ulimit -f 0"] {
        let script = format!("{limit} 2>/dev/null; exec \"$@\"");
        let mut command = Command::new("bash");
        command
            .args(["-c", &script, "bash", env!("CARGO_BIN_EXE_prepage"), "run", "-v", "--no-learn", "--"])
            .args(PROGRAM)
            .env("PREPAGE_STORE", sandbox.store());
        let told = run_by(&sandbox, &mut command);
        if limit == "ulimit -n 12" {
            assert!(told.contains("MB of 60 files\n"), "{told}");
        }
    }
}

#[test]
fn a_user_without_a_thread_to_spare_gets_the_prefetch_without_them() {
    use std::os::unix::process::CommandExt;
    let sandbox = Sandbox::new();
    if !is_root() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let prepage = place.path().join("prepage");
    copy_program(env!("CARGO_BIN_EXE_prepage"), &prepage);
    let data = place.path().join("data");
    fs::write(&data, vec![7u8; 64 * PAGE_SIZE as usize]).unwrap();
    let file = fs::File::open(&data).unwrap();
    file.sync_all().unwrap();
    store(&sandbox, vec![of_file(&data, 0, 64)], &["/", "/usr"]);
    // A program that starts no process.
    let program = ["sleep", "60"];
    let its_key = ProgramKey::of(&program.map(Into::into)).unwrap();
    let from = Stores::at(sandbox.store());
    let profile = Profile {
        program: its_key.program.clone(),
        role: its_key.role.clone(),
        ..from.find(&key()).unwrap().unwrap().profile
    };
    from.update(&its_key, Layer::User, |_| Some(profile.clone())).unwrap();
    let mut user = 54_320;
    let mut told = |is_known: bool, most: u32| {
        // One that nobody has, and another each time: processes that have ended count against the limit until init has
        // taken note.
        user += 1;
        let own = place.path().join(user.to_string());
        fs::create_dir(&own).unwrap();
        fs::set_permissions(&own, fs::Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::chown(&own, Some(user), Some(user)).unwrap();
        if is_known {
            let copy = Stores::at(own.clone()).path_of(&its_key, Layer::User).unwrap();
            fs::copy(from.path_of(&its_key, Layer::User).unwrap(), &copy).unwrap();
            std::os::unix::fs::chown(&copy, Some(user), Some(user)).unwrap();
        }
        evict(&file);
        let script = format!("ulimit -u {most}; exec \"$@\"");
        let mut command = Command::new("bash");
        command.args(["-c", &script, "bash", prepage.to_str().unwrap(), "run", "-v", "--no-learn", "--"]);
        command
            .args(program)
            .env("PREPAGE_STORE", &own)
            .env("HOME", &own)
            .uid(user)
            .gid(user)
            .current_dir("/");
        let mut program = command.stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(program.stderr.take().unwrap()).lines().map(Result::unwrap);
        let told = lines.filter(|line| !line.contains(LATE)).take(1).collect::<String>();
        assert!(program.try_wait().unwrap().is_none(), "the program runs on: {told}");
        program.kill().unwrap();
        program.wait().unwrap();
        told
    };
    // From none for what runs beside the program, or fewer than a script may need, to enough for all of its threads.
    for processes in [1, 8, 16, 36, 40, 400] {
        let is_begun = processes > 16;
        let of_known = told(true, processes);
        assert_eq!(of_known.contains("prefetched 0.3 MB of 1 file"), is_begun, "{processes}: {of_known}");
        let of_unknown = told(false, processes);
        assert_eq!(of_unknown.contains("nothing prefetched"), is_begun, "{processes}: {of_unknown}");
        for told in [of_known, of_unknown] {
            assert_eq!(
                told.contains("nothing is begun beside the program"),
                !is_begun,
                "{processes}: {told}"
            );
        }
    }
}

#[test]
fn a_prefetch_leaves_tasks_to_its_program() {
    let sandbox = Sandbox::new();
    if !is_root() {
        return;
    }
    let files = (0..40).map(|at| of_file(&data_file(&sandbox, &format!("file-{at}")), 0, 64));
    store(&sandbox, files.collect(), &["/", "/usr"]);
    let Some(group) = ControlGroup::of_tasks(20) else { return };
    let mut command = group.command(&sandbox);
    command.args([env!("CARGO_BIN_EXE_prepage"), "run", "-v", "--no-learn", "--"]).args(PROGRAM);
    let told = run_by(&sandbox, &mut command);
    assert!(told.contains("of 40 files"), "{told}");
    // How often somebody met the limit.
    assert_eq!(group.read("pids.events"), "max 0\n");
}

#[test]
fn where_no_thread_can_be_made_files_are_read_and_processes_asked_by_one() {
    let sandbox = Sandbox::new();
    let data = data_file(&sandbox, "data");
    // Of two parts, which two threads would read.
    let fault = |at| Fault {
        object: Some(ObjectId(0)),
        page: Some(PageIndex(at % 50)),
        ..Fault::new(at, ThreadIndex(0), at, FaultClass::Cached)
    };
    let trace = Trace {
        objects: vec![Object::new("/f", Some((1, 1)))],
        threads: vec![Thread { pid: 7, tid: 7, comm: "t".into() }],
        faults: (0..300_000).map(fault).collect(),
        ..Trace::default()
    };
    let path = sandbox.path().join("trace");
    write_trace(&path, &trace).unwrap();
    let trace = path.to_str().unwrap();
    let exported = format!("{trace}.folded");
    let Some(group) = ControlGroup::of_tasks(1) else { return };
    let _alone = POOLS.lock().anyway();
    let vm = Vm::new(VmOptions::default().pool(&Pool::new(64 << 20).unwrap())).unwrap();
    let pid = std::process::id().to_string();
    let data = data.to_str().unwrap();
    for words in [
        &["warm", data][..],
        &["vm", "top", "--once", "--pid", &pid],
        &["report", trace],
        &["export", "-f", "folded", "-o", &exported, trace],
        &["diff", trace, trace],
        &["simulate", "--memory", "1-5", trace],
    ] {
        let mut command = group.command(&sandbox);
        command.arg(env!("CARGO_BIN_EXE_prepage-tools")).args(words);
        let output = answered(|| command.output().unwrap());
        assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
    }
    drop(vm);
}

#[test]
fn a_clock_that_jumps_changes_ages_only() {
    let sandbox = Sandbox::new();
    let good = data_file(&sandbox, "good");
    let mut file = of_file(&good, 20, 24);
    file.learned_unix_s = u64::MAX;
    file.identity.mtime_ns = i64::MIN;
    store(&sandbox, vec![file], &[]);
    Stores::at(sandbox.store())
        .update(&key(), Layer::User, |profile| {
            let mut profile = profile.unwrap();
            profile.history.created_unix_s = u64::MAX;
            profile.history.updated_unix_s = u64::MAX - 1;
            Some(profile)
        })
        .unwrap();
    let told = run(&sandbox);
    assert!(told.contains("of 1 file") && !told.contains("left out"), "{told}");
    let shown = sandbox.output(&["profile", "show", "sh"]);
    assert!(shown.status.success(), "{}", text(&shown.stderr));
    assert!(sandbox.output(&["profile", "verify", "sh"]).status.success());
}

#[test]
fn a_store_put_in_the_place_of_ones_own_is_not_followed() {
    let sandbox = Sandbox::new();
    if !is_root() {
        return;
    }
    store(&sandbox, vec![of_file(&data_file(&sandbox, "good"), 0, 4)], &[]);
    let profile = sandbox.profiles().pop().unwrap();
    // In a directory that all may write to, somebody else puts a profile of theirs under the same name.
    std::os::unix::fs::chown(&profile, Some(65534), Some(65534)).unwrap();
    let told = run(&sandbox);
    assert!(told.contains("could have been written by others") && !told.contains("prefetched"), "{told}");
    // Or a link to one.
    let theirs = sandbox.path().join("theirs");
    fs::rename(&profile, &theirs).unwrap();
    std::os::unix::fs::symlink(&theirs, &profile).unwrap();
    let told = run(&sandbox);
    assert!(told.contains("no prefetch") && !told.contains("prefetched 0"), "{told}");
}

#[test]
fn a_store_that_does_not_answer_keeps_no_program_from_starting() {
    if !has(Need::Root) || !has(Need::Mounts) || !has(Need::Path("/dev/fuse".into())) {
        return;
    }
    let sandbox = Sandbox::new();
    let point = sandbox.path().join("hung");
    fs::create_dir(&point).unwrap();
    let hung = Hung::mount(&point);
    let mut command = sandbox.prepage(&["run", "-v", "--", "sh", "-c", "echo ran; exit 7"]);
    // What serves the start keeps this one until it has said all: whoever wants to hear that waits.
    let said = sandbox.path().join("said");
    let output = command
        .env("PREPAGE_LAYERS", point.join("layer"))
        .stderr(fs::File::create(&said).unwrap())
        .output()
        .unwrap();
    assert_eq!((text(&output.stdout), output.status.code()), ("ran\n".into(), Some(7)));
    let said = fs::read_to_string(said).unwrap();
    assert!(said.contains("the program does not wait"), "{said}");
    // Who did not ask to hear anything waits for the program alone.
    let mut command = sandbox.prepage(&["run", "--", "sh", "-c", "echo ran; exit 7"]);
    command.env("XDG_CONFIG_HOME", point.join("config"));
    let (ended, end) = std::sync::mpsc::channel();
    std::thread::spawn(move || ended.send(command.output().unwrap()));
    let output = end.recv_timeout(Duration::from_secs(60));
    drop(hung);
    let output = output.expect("standard error is let go");
    assert_eq!((text(&output.stdout), output.status.code()), ("ran\n".into(), Some(7)));
}
