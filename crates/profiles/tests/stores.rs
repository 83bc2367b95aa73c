//! Layers of stores on a real file system: who is read first, what is followed, what makes room, what others may see.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use prepage_core::PageIndex;
use prepage_core::profile::file::{FORMAT_VERSION, Glance, HEADER_BYTES, checksum, decode, encode};
use prepage_core::profile::{Counts, Extent, FileIdentity, History, Lookup, Profile, ProfiledFile};
use prepage_profiles::room::{PROFILES_OF_A_NAME_MAX, taken_in};
use prepage_profiles::store::ReadMax;
use prepage_profiles::trust::Refused;
use prepage_profiles::verify::{Verdict, sidecar, sidecars_below};
use prepage_profiles::{Layer, ProgramKey, StartContextPaths, StoreError, Stores};
use prepage_sys::forked::Forked;
use prepage_testing::{Hung, Need, has, is_child, passes_as_child, skip, this_test};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount_bind, mount_remount, unmount};

fn key(role: &str) -> ProgramKey {
    ProgramKey { program: format!("/usr/bin/{}", role.split(' ').next().unwrap()), role: role.into() }
}

fn profile(key: &ProgramKey) -> Profile {
    Profile { sources: vec![1], ..key.empty_profile() }
}

/// A user's, a machine's and a vendor's layer.
fn place() -> (tempfile::TempDir, Stores) {
    let dir = tempfile::tempdir().unwrap();
    let paths = StartContextPaths {
        store: Some(dir.path().join("user")),
        layers: Some(vec![dir.path().join("machine"), dir.path().join("vendor")]),
        ..StartContextPaths::default()
    };
    let stores = Stores::for_uid(rustix::process::geteuid().as_raw(), &paths).unwrap();
    (dir, stores)
}

fn write(stores: &Stores, key: &ProgramKey, layer: Layer) {
    stores.update(key, layer, |_| Some(profile(key))).unwrap();
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.retain(|name| name != "lock");
    names.sort();
    names
}

fn set_age(path: &Path, hours: u64) {
    let file = File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(3600 * hours)).unwrap();
}

fn make_pipe(path: &Path) {
    rustix::fs::mkfifoat(rustix::fs::CWD, path, rustix::fs::Mode::RWXU).unwrap();
}

#[test]
fn the_first_layer_that_has_a_profile_decides() {
    let (dir, stores) = place();
    let key = key("x");
    let mut found = Vec::new();
    for layer in [Layer::Vendor, Layer::Machine, Layer::User] {
        assert!(stores.room(layer).is_ok());
        write(&stores, &key, layer);
        found.push(stores.find(&key).unwrap().unwrap().layer);
    }
    assert_eq!(found, [Layer::Vendor, Layer::Machine, Layer::User]);
    let mode = |name: &str| fs::metadata(dir.path().join(name)).unwrap().mode() & 0o7777;
    assert_eq!((mode("user"), mode("machine")), (0o700, 0o755));
    let file = |layer| fs::metadata(stores.path_of(&key, layer).unwrap()).unwrap().mode() & 0o777;
    assert_eq!((file(Layer::User), file(Layer::Machine)), (0o600, 0o644));
    assert_eq!(stores.list(Layer::Machine).unwrap().len(), 1);
}

#[test]
fn a_umask_closes_nothing_that_all_are_to_read() {
    let (dir, stores) = place();
    let machine = dir.path().join("new/machine");
    let paths = StartContextPaths {
        layers: Some(vec![machine.clone()]),
        store: Some(dir.path().join("user")),
        ..StartContextPaths::default()
    };
    let stores = Stores::for_uid(stores.uid(), &paths).unwrap();
    let in_child = || {
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
        write(&stores, &key("x"), Layer::Machine);
        write(&stores, &key("x"), Layer::User);
        0
    };
    assert_eq!(Forked::new(in_child).unwrap().wait().unwrap().exit_status(), Some(0));
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    let of = |layer| mode(&stores.path_of(&key("x"), layer).unwrap());
    assert_eq!((mode(machine.parent().unwrap()), mode(&machine), of(Layer::Machine)), (0o755, 0o755, 0o644));
    assert_eq!((mode(&dir.path().join("user")), of(Layer::User)), (0o700, 0o600));
}

/// What `sudo prepage learn` writes, other users read; what is private does not get there.
#[test]
fn the_machines_layer_helps_other_users_and_holds_nothing_private() {
    let (dir, stores) = place();
    write(&stores, &key("x"), Layer::Machine);
    let paths = StartContextPaths {
        home: Some(dir.path().join("home/ann")),
        layers: Some(vec![dir.path().join("machine")]),
        ..StartContextPaths::default()
    };
    let uid = rustix::process::geteuid().as_raw();
    let ann = Stores::for_uid(if uid == 0 { 4242 } else { uid }, &paths).unwrap();
    assert_eq!(ann.find(&key("x")).unwrap().map(|found| found.layer), Some(Layer::Machine));
    let text = key("sh -c #0badcafe");
    let refused = stores.update(&text, Layer::Machine, |_| Some(profile(&text)));
    assert!(matches!(refused, Err(StoreError::Private { .. })));
    assert_eq!(names(&dir.path().join("machine")).len(), 1);
}

#[test]
fn what_others_could_have_written_is_not_followed_and_a_pipe_not_waited_for() {
    let (_dir, stores) = place();
    let key = key("x");
    write(&stores, &key, Layer::User);
    let path = stores.path_of(&key, Layer::User).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o622)).unwrap();
    assert!(matches!(stores.find(&key), Err(StoreError::Refused(Refused::Untrusted { .. }))));
    fs::remove_file(&path).unwrap();
    make_pipe(&path);
    assert!(matches!(stores.find(&key), Err(StoreError::Refused(Refused::NotRegular { .. }))));
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
    assert!(matches!(stores.find(&key), Err(StoreError::Refused(Refused::NotRegular { .. }))));
}

#[test]
fn a_damaged_profile_is_learned_anew_and_a_newer_one_is_left_alone() {
    let (_dir, stores) = place();
    let key = key("x");
    write(&stores, &key, Layer::User);
    let path = stores.path_of(&key, Layer::User).unwrap();
    fs::write(&path, "damaged").unwrap();
    assert!(matches!(stores.find(&key), Err(StoreError::Unreadable { .. })));
    write(&stores, &key, Layer::User);
    assert!(stores.find(&key).unwrap().is_some());
    let mut newer = encode(&profile(&key));
    newer[8] = FORMAT_VERSION as u8 + 1;
    fs::write(&path, &newer).unwrap();
    let refused = stores.update(&key, Layer::User, |_| panic!("nothing to change"));
    assert!(matches!(refused, Err(StoreError::Newer { version, .. }) if version == FORMAT_VERSION + 1));
    assert_eq!(fs::read(&path).unwrap(), newer);
}

#[test]
fn what_is_the_same_is_not_written_again_and_writers_leave_no_litter() {
    let (dir, stores) = place();
    let key = key("x");
    write(&stores, &key, Layer::User);
    let path = stores.path_of(&key, Layer::User).unwrap();
    let first = fs::metadata(&path).unwrap().ino();
    stores.update(&key, Layer::User, |before| before).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().ino(), first, "each write makes a file");
    // A writer that was killed leaves its file; the next one takes its place.
    let left = path.with_file_name(format!(".{}.new", path.file_name().unwrap().to_str().unwrap()));
    fs::write(&left, "half a profile").unwrap();
    let change = |before: Option<Profile>| before.map(|one| Profile { sources: vec![1, 2], ..one });
    stores.update(&key, Layer::User, change).unwrap();
    assert_ne!(fs::metadata(&path).unwrap().ino(), first);
    assert_eq!(names(&dir.path().join("user")), [path.file_name().unwrap().to_str().unwrap()]);
}

/// Nothing new will ever be learned of many a program, and without a sample each of its starts has a helper.
#[test]
fn a_profile_without_a_field_that_is_written_now_gets_it_once() {
    let (_dir, stores) = place();
    let key = key("x");
    let file = ProfiledFile {
        path: "/lib/y".into(),
        identity: FileIdentity { size_bytes: 4096, ..FileIdentity::default() },
        extents: vec![Extent::new(PageIndex(0).alone(), 0)],
        ..ProfiledFile::default()
    };
    let known = Profile { files: vec![file], ..profile(&key) };
    // What has no program has no sample, and is the same but for the program's name.
    let mut payload = encode(&Profile { program: String::new(), ..known.clone() }).split_off(HEADER_BYTES);
    assert_eq!(payload[1..3], [0, 0x60], "field 0, an empty text");
    let name = [&[0x60 + key.program.len() as u8], key.program.as_bytes()].concat();
    payload.splice(2..3, name);
    let mut old = encode(&known)[..12].to_vec();
    old.extend(checksum(&[&payload]).to_le_bytes());
    old.extend((payload.len() as u64).to_le_bytes());
    old.extend(payload);
    write(&stores, &key, Layer::User);
    let path = stores.path_of(&key, Layer::User).unwrap();
    fs::write(&path, &old).unwrap();
    assert_eq!(decode(&old).unwrap(), known);
    assert!(Glance::of(&old).unwrap().sample(1).is_empty());
    stores.update(&key, Layer::User, |before| before).unwrap();
    let written = fs::read(&path).unwrap();
    assert!(written == encode(&known) && !Glance::of(&written).unwrap().sample(1).is_empty());
    let inode = fs::metadata(&path).unwrap().ino();
    stores.update(&key, Layer::User, |before| before).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().ino(), inode);
}

#[test]
fn those_that_learn_at_once_add_to_one_another() {
    let (_dir, stores) = place();
    let key = key("x");
    std::thread::scope(|scope| {
        for source in 0..8 {
            let (stores, key) = (&stores, &key);
            scope.spawn(move || {
                let add = |before: Option<Profile>| {
                    let mut profile = before.unwrap_or_else(|| Profile { sources: vec![], ..profile(key) });
                    profile.sources.push(source);
                    Some(profile)
                };
                // Who has the lock may get no processor for longer than it is waited for.
                let until = Instant::now() + Duration::from_secs(60);
                while let Err(error) = stores.update(key, Layer::User, add) {
                    let is_busy = matches!(error, StoreError::Busy { .. });
                    assert!(is_busy && Instant::now() < until, "{error:?}");
                }
            });
        }
    });
    assert_eq!(stores.find(&key).unwrap().unwrap().profile.sources.len(), 8);
}

#[test]
fn a_change_begins_again_where_the_profile_was_written_meanwhile_and_not_for_ever() {
    let (_dir, stores) = place();
    let key = key("x");
    let of = |sources: Vec<u64>| Profile { sources, ..profile(&key) };
    let sources = || stores.find(&key).unwrap().unwrap().profile.sources;
    let other_writes = |source| {
        stores.update(&key, Layer::User, |_| Some(of(vec![source]))).unwrap();
    };
    let mut seen = Vec::new();
    let add = |before: Option<Profile>| {
        let mut sources = before.map(|profile| profile.sources).unwrap_or_default();
        seen.push(sources.clone());
        if seen.len() == 1 {
            other_writes(7);
        }
        sources.push(8);
        Some(of(sources))
    };
    stores.update(&key, Layer::User, add).unwrap();
    assert_eq!((seen, sources()), (vec![vec![], vec![7]], vec![7, 8]));
    let mut last = 8;
    let refused = stores.update(&key, Layer::User, |_| {
        last += 1;
        other_writes(last);
        Some(of(vec![1]))
    });
    assert!(matches!(refused, Err(StoreError::Busy { .. })), "{refused:?}");
    assert_eq!(sources(), [last], "nothing was written");
}

#[test]
fn a_lock_that_is_never_let_go_is_not_waited_for() {
    let (_dir, stores) = place();
    write(&stores, &key("x"), Layer::User);
    let lock = File::open(stores.directory(Layer::User).unwrap().join("lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let refused = stores.update(&key("x"), Layer::User, |_| Some(Profile::default()));
    assert!(matches!(refused, Err(StoreError::Busy { .. })));
}

/// As of headers on a network's file system whose server is gone.
#[test]
fn who_waits_for_a_file_system_that_does_not_answer_keeps_nobody_from_writing() {
    if !(has(Need::Root) && has(Need::Path("/dev/fuse".into()))) {
        return;
    }
    let (dir, stores) = place();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let point = dir.path().join("point");
    fs::create_dir(&point).unwrap();
    let name = Lookup {
        path: point.join("header").to_str().unwrap().into(),
        list: false,
        counts: Counts::default(),
    };
    let [far, near] = ["far", "near"].map(key);
    let hung = Hung::mount(&point);
    let (waits, waiting) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let far_away = scope.spawn(|| {
            stores.update(&far, Layer::Machine, |_| {
                waits.send(()).unwrap();
                Some(Profile { lookups: vec![name.clone()], ..profile(&far) })
            })
        });
        waiting.recv().unwrap();
        let other = stores.update(&near, Layer::Machine, |_| Some(profile(&near)));
        drop(hung);
        far_away.join().unwrap().unwrap();
        assert!(other.is_ok(), "{other:?}");
    });
    assert!(stores.find(&far).unwrap().is_some() && stores.find(&near).unwrap().is_some());
}

/// The steadiest profile is not written for years, and used every day.
#[test]
fn what_was_not_used_for_the_longest_time_makes_room() {
    let (_dir, stores) = place();
    let keys: Vec<ProgramKey> =
        (0..PROFILES_OF_A_NAME_MAX).map(|at| key(&format!("sh -c #{at:08x}"))).collect();
    let others = [key("bash -c #0"), key("sh-x -c")];
    let path = |key: &ProgramKey| stores.path_of(key, Layer::User).unwrap();
    for (at, key) in keys.iter().chain(&others).enumerate() {
        write(&stores, key, Layer::User);
        set_age(&path(key), 1000 - at as u64);
    }
    let size = fs::metadata(path(&keys[0])).unwrap().len();
    let inode = fs::metadata(path(&keys[0])).unwrap().ino();
    assert!(stores.find(&keys[0]).unwrap().is_some());
    let after = fs::metadata(path(&keys[0])).unwrap();
    assert!(after.modified().unwrap().elapsed().unwrap() < Duration::from_secs(3600), "it was used");
    assert_eq!((after.len(), after.ino()), (size, inode), "and not written");
    write(&stores, &key("sh -c #new"), Layer::User);
    let gone =
        || -> Vec<&ProgramKey> { keys.iter().chain(&others).filter(|key| !path(key).exists()).collect() };
    let first: Vec<&ProgramKey> = keys[1..18].iter().collect();
    assert_eq!(gone(), first);
    // Not each new one makes room.
    write(&stores, &key("sh -c #newer"), Layer::User);
    assert_eq!(gone(), first);
}

/// It is observed now and then, and shows nothing new.
#[test]
fn what_is_learned_from_without_news_outlives_what_was_written_later() {
    let (_dir, stores) = place();
    for layer in [Layer::User, Layer::Machine] {
        let keys: Vec<ProgramKey> = (0..PROFILES_OF_A_NAME_MAX).map(|at| key(&format!("x --{at}"))).collect();
        for key in &keys {
            write(&stores, key, layer);
            set_age(&stores.path_of(key, layer).unwrap(), if *key == keys[0] { 1000 } else { 500 });
        }
        stores.update(&keys[0], layer, |before| before).unwrap();
        write(&stores, &key("x --new"), layer);
        let is_there = |key: &ProgramKey| stores.path_of(key, layer).unwrap().exists();
        assert!(is_there(&keys[0]) && !keys.iter().all(is_there), "{layer:?}");
    }
}

/// What does not compete for the room is not looked at: it may be thousands of files, and others wait for the lock meanwhile.
#[test]
fn too_many_profiles_of_one_name_have_no_others_read() {
    if !has(Need::Path("/proc/thread-self/io".into())) {
        return;
    }
    let (_dir, stores) = place();
    (0..PROFILES_OF_A_NAME_MAX).for_each(|at| write(&stores, &key(&format!("x --{at}")), Layer::User));
    const OTHERS_BYTES: u64 = 8 << 20;
    let other = File::create(stores.path_of(&key("other"), Layer::User).unwrap()).unwrap();
    other.set_len(OTHERS_BYTES).unwrap();
    let read_bytes = || -> u64 {
        let io = fs::read_to_string("/proc/thread-self/io").unwrap();
        io.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
    };
    let before = read_bytes();
    write(&stores, &key("x --new"), Layer::User);
    assert!(!stores.path_of(&key("x --0"), Layer::User).unwrap().exists());
    let read = read_bytes() - before;
    assert!(read < OTHERS_BYTES, "{read} bytes");
}

/// As of /usr/local, which others than root may write to on some machines.
#[test]
fn a_directory_that_is_not_followed_hides_none_behind_it() {
    let (dir, stores) = place();
    let [open, vendor] = ["open", "vendor"].map(|name| dir.path().join(name));
    write(&stores, &key("x"), Layer::Vendor);
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    let paths = StartContextPaths {
        store: Some(dir.path().join("user")),
        layers: Some(vec![dir.path().join("machine"), open.clone(), vendor]),
        ..StartContextPaths::default()
    };
    let stores = Stores::for_uid(stores.uid(), &paths).unwrap();
    let (mut roles, mut keys) = (Vec::new(), Vec::new());
    let each = stores.each(Layer::Vendor, ReadMax::ALL, &mut |(_, profile)| {
        roles.push(profile.unwrap().role);
        true
    });
    let listed = stores.keys(Layer::Vendor, |_, key| keys.extend(key.map(|key| key.role)));
    assert_eq!((&*roles, &*keys), (&["x".to_owned()][..], &["x".to_owned()][..]));
    for refused in [each.map(drop), listed] {
        let Err(StoreError::Refused(Refused::Untrusted { path, .. })) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!(path, open);
    }
}

/// A machine that keeps no time has dates of its first day after each boot.
#[test]
fn where_there_is_room_dates_stay_as_they_are() {
    let (_dir, stores) = place();
    for layer in [Layer::User, Layer::Machine] {
        write(&stores, &key("x"), layer);
        let path = stores.path_of(&key("x"), layer).unwrap();
        let ahead = SystemTime::now() + Duration::from_secs(1_000_000);
        File::options().write(true).open(&path).unwrap().set_modified(ahead).unwrap();
        write(&stores, &key("y"), layer);
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), ahead, "{layer:?}");
    }
}

/// Profiles may come with an image that is read alone: each start would be served by a process of its own, for good.
#[test]
fn what_nobody_can_mark_as_used_is_at_hand_however_old_it_is() {
    if !is_child(&this_test()) {
        if has(Need::Root) && has(Need::Mounts) {
            passes_as_child(&["unshare", "--mount"]);
        }
        return;
    }
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let (stores, key) = (Stores::at(dir.path().into()), key("x"));
    write(&stores, &key, Layer::User);
    set_age(&stores.path_of(&key, Layer::User).unwrap(), 48);
    let is_at_hand = || stores.read_at_hand(&key).map(|stored| stored.is_some());
    assert_eq!(is_at_hand(), Err(Errno::STALE), "to be marked by who may wait");
    mount_bind(dir.path(), dir.path()).unwrap();
    mount_remount(dir.path(), MountFlags::BIND | MountFlags::RDONLY, "").unwrap();
    let found = is_at_hand();
    // Else nobody could remove the directory.
    unmount(dir.path(), UnmountFlags::DETACH).unwrap();
    assert_eq!(found, Ok(true));
}

/// The boot is observed once, and what it uses is looked up once a boot: of a machine that runs for months nothing is older.
#[test]
fn what_boots_and_sessions_use_makes_no_room() {
    let (_dir, stores) = place();
    let add = |stores: &Stores, key: &ProgramKey, observations| {
        let history = History { observations, ..History::default() };
        let sources = (0..500).map(|at| u64::MAX - at).collect();
        let learned = Profile { history, sources, ..profile(key) };
        stores.update(key, Layer::Machine, |_| Some(learned.clone())).unwrap();
        stores.path_of(key, Layer::Machine).unwrap()
    };
    let of_init =
        ["boot", "session"].map(|role| ProgramKey { program: "/sbin/init".into(), role: role.into() });
    let kept = of_init.map(|key| add(&stores, &key, 1));
    // Of a program that is called so nobody knows more than of others.
    let other = add(&stores, &key("boot"), 1);
    kept.iter().chain([&other]).for_each(|path| set_age(path, 4000));
    let size = fs::metadata(&kept[0]).unwrap().len();
    let capped = stores.keeping(10 * size);
    (0..40).for_each(|at| drop(add(&capped, &key(&format!("steady{at}")), 5)));
    assert_eq!(kept.each_ref().map(|path| path.exists()), [true, true]);
    assert!(!other.exists());
}

/// A clock that was ahead for a while has marked profiles as used in years to come.
#[test]
fn what_was_marked_by_a_clock_that_was_ahead_is_as_old_as_the_next_use_and_makes_room_in_time() {
    const YEARS: Duration = Duration::from_secs(10 * 365 * 86_400);
    let (_dir, stores) = place();
    let set = |path: &Path, time| File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
    let modified = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
    let of = |key: &ProgramKey, layer| stores.path_of(key, layer).unwrap();
    let used = key("used");
    write(&stores, &used, Layer::User);
    set(&of(&used, Layer::User), SystemTime::now() + YEARS);
    assert!(stores.find(&used).unwrap().is_some());
    assert!(modified(&of(&used, Layer::User)) <= SystemTime::now(), "it is used now");
    for layer in [Layer::User, Layer::Machine] {
        let keys: Vec<ProgramKey> = (0..PROFILES_OF_A_NAME_MAX).map(|at| key(&format!("x --{at}"))).collect();
        keys.iter().for_each(|key| write(&stores, key, layer));
        set(&of(&keys[5], layer), SystemTime::now() + YEARS);
        // Room is made: from now on it ages as others do.
        write(&stores, &key("x --first"), layer);
        assert!(modified(&of(&keys[5], layer)) <= SystemTime::now(), "{layer:?}");
        let left: Vec<&ProgramKey> = keys.iter().filter(|key| of(key, layer).exists()).collect();
        let later = SystemTime::now() + Duration::from_secs(10);
        left.iter().filter(|key| ***key != keys[5]).for_each(|key| set(&of(key, layer), later));
        for at in 0..PROFILES_OF_A_NAME_MAX - left.len() {
            assert!(of(&keys[5], layer).exists(), "{layer:?}");
            write(&stores, &key(&format!("x --new{at}")), layer);
        }
        assert!(!of(&keys[5], layer).exists(), "{layer:?}");
    }
}

/// Somebody builds and tries programs all day: what is used day by day stays, though its last use was yesterday.
#[test]
fn a_cap_lets_steady_profiles_stay_and_those_of_single_starts_go() {
    let (_dir, stores) = place();
    for layer in [Layer::User, Layer::Machine] {
        let add = |stores: &Stores, name: String, observations| {
            let key = key(&name);
            let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
            let history = History { observations, updated_unix_s: now, ..History::default() };
            // Some 4 KiB each.
            let sources = (0..500).map(|at| u64::MAX - at).collect();
            let learned = Profile { history, sources, ..profile(&key) };
            stores.update(&key, layer, |_| Some(learned.clone())).unwrap();
            stores.path_of(&key, layer).unwrap()
        };
        let steady: Vec<_> = (0..10).map(|at| add(&stores, format!("steady{at}"), 5)).collect();
        steady.iter().for_each(|path| set_age(path, 40));
        // Learned in one start long ago, and used since without a word.
        let silent = add(&stores, "silent".into(), 1);
        let bytes = fs::read(&silent).unwrap();
        let mut old = decode(&bytes).unwrap();
        old.history.updated_unix_s -= 1_000_000;
        fs::write(&silent, encode(&old)).unwrap();
        set_age(&silent, 40);
        let forgotten = add(&stores, "forgotten".into(), 5);
        set_age(&forgotten, 4000);
        let size = fs::metadata(&forgotten).unwrap().len();
        let capped = stores.clone().keeping(20 * size);
        let tried: Vec<_> = (0..60).map(|at| add(&capped, format!("tried{at:02}"), 1)).collect();
        let (_, bytes) = taken_in(stores.directory(layer).unwrap());
        assert!((15 * size..=20 * size).contains(&bytes), "{bytes} of {}", 20 * size);
        assert!(steady.iter().chain([&forgotten, &silent]).all(|path| path.exists()), "{layer:?}");
        assert!(tried.last().unwrap().exists() && !tried[0].exists(), "{layer:?}");
        // Where only steady ones are left, those not used for long.
        let narrow = stores.clone().keeping(8 * size);
        let last = stores.path_of(&key("last"), layer).unwrap();
        let removed = narrow.update(&key("last"), layer, |_| Some(profile(&key("last")))).unwrap();
        assert!(last.exists() && !forgotten.exists(), "{layer:?}");
        assert!(removed.contains(&forgotten) && removed.iter().all(|path| !path.exists()), "{removed:?}");
        // A cap that one does not fit under: it is not written to be removed, and nothing goes for it.
        let before = taken_in(stores.directory(layer).unwrap());
        let none = stores.clone().keeping(size / 2);
        let large = Profile { sources: (0..500).map(|at| u64::MAX - at).collect(), ..profile(&key("least")) };
        let refused = none.update(&key("least"), layer, |_| Some(large.clone()));
        assert!(matches!(refused, Err(StoreError::Capped { .. })), "{refused:?}");
        assert_eq!(taken_in(stores.directory(layer).unwrap()), before);
    }
    let capped = stores.keeping(1000);
    assert!(matches!(capped.room(Layer::User), Err(StoreError::Capped { bytes_max: 1000 })));
    assert!(capped.room(Layer::Vendor).is_ok(), "what packages bring is theirs to say");
}

#[test]
fn relatives_are_other_roles_of_the_program_and_those_used_last_come_first() {
    let (_dir, stores) = place();
    for (hours, role) in [(3, "x -a"), (2, "x -b"), (1, "x -q"), (0, "y -a")] {
        write(&stores, &key(role), Layer::User);
        set_age(&stores.path_of(&key(role), Layer::User).unwrap(), hours);
    }
    write(&stores, &key("x -m"), Layer::Machine);
    let roles =
        |most| stores.relatives(&key("x -q"), most).into_iter().map(|one| one.role).collect::<Vec<_>>();
    assert_eq!(roles(9), ["x -b", "x -a", "x -m"]);
    assert_eq!(roles(1), ["x -b"]);
}

#[test]
fn a_profile_is_just_written_until_the_interval_is_over() {
    let (_dir, stores) = place();
    let key = key("x");
    let just = || {
        let stored = stores.read(&key).unwrap();
        stored.is_some_and(|stored| stored.was_just_written(Duration::from_secs(3600)))
    };
    assert!(!just());
    let history = History { observations: 1, ..History::default() };
    stores.update(&key, Layer::User, |_| Some(Profile { history, ..profile(&key) })).unwrap();
    assert!(just());
    set_age(&stores.path_of(&key, Layer::User).unwrap(), 2);
    assert!(!just());
    // The first start of a day is marked as a use, which is no writing: else a program that is started once a day would
    // never be learned from.
    set_age(&stores.path_of(&key, Layer::User).unwrap(), 48);
    assert!(!just());
}

#[test]
fn only_what_is_surely_ours_and_surely_stale_may_be_pruned() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("build-id/ab")).unwrap();
    fs::create_dir_all(dir.path().join("static/js")).unwrap();
    let put = |name: &str, bytes: &[u8]| fs::write(dir.path().join(name), bytes).unwrap();
    let of = |path: &str, version: u8| {
        let file = prepage_core::profile::ProfiledFile {
            path: path.into(),
            fingerprint: prepage_core::profile::Fingerprint::BuildId(vec![0xab, 0xcd]),
            ..Default::default()
        };
        let mut bytes = encode(&Profile { files: vec![file], ..Profile::default() });
        bytes[8] = version;
        bytes
    };
    let version = FORMAT_VERSION as u8;
    put("build-id/ab/cd.profile", &of("/gone/for/good", version));
    put("build-id/ab/ce.profile", &of("/gone/for/good", version));
    put("build-id/ab/newer.profile", &of("/gone/for/good", version + 1));
    put("build-id/ab/damaged.profile", b"PREPAGE\nno profile at all, of any version");
    put("static/js/app.js.map", b"{\"version\":3}");
    put("static/js/app.profile", b"somebody's");
    put("some.profile", b"somebody's");
    make_pipe(&dir.path().join("build-id/ab/pipe.profile"));
    // A pipe in the place of the file that a sidecar speaks of is not waited for either.
    let fifo = dir.path().join("fifo");
    make_pipe(&fifo);
    put("elsewhere", &of(fifo.to_str().unwrap(), version));
    fs::create_dir_all(dir.path().join("other/build-id/ab")).unwrap();
    fs::rename(dir.path().join("elsewhere"), dir.path().join("other/build-id/ab/cd.profile")).unwrap();
    let verdict = sidecar(&dir.path().join("other/build-id/ab/cd.profile"), false).verdict;
    assert_eq!(verdict, Verdict::Stale("no regular file".into()));
    let found: Vec<PathBuf> = sidecars_below(dir.path()).unwrap();
    assert_eq!(found.len(), 4, "{found:?}");
    let pruned: Vec<&PathBuf> = found.iter().filter(|path| sidecar(path, false).may_be_pruned()).collect();
    assert_eq!(pruned, [&dir.path().join("build-id/ab/cd.profile")]);
    let verdict = |name: &str| sidecar(&dir.path().join(name), false).verdict;
    assert!(matches!(verdict("build-id/ab/newer.profile"), Verdict::Unknown(_)));
    assert!(matches!(verdict("build-id/ab/pipe.profile"), Verdict::Unknown(_)), "it is not waited for");
}

#[test]
fn of_a_layer_full_of_junk_so_much_is_read_and_no_more() {
    let (dir, stores) = place();
    let keys: Vec<ProgramKey> = ["a", "b", "c"].map(key).into();
    keys.iter().for_each(|key| write(&stores, key, Layer::User));
    let user = dir.path().join("user");
    let junk = |name: &str, bytes: u64| {
        let path = user.join(format!("{name}.profile"));
        File::create(&path).unwrap().set_len(bytes).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    };
    // Later ones are read first.
    (0..40).for_each(|at| junk(&format!("sparse{at}"), 60 << 20));
    (0..20).for_each(|at| junk(&format!("small{at}"), 100 << 10));
    let seen = |max| {
        let (mut sound, mut damaged) = (0, 0);
        let is_all = stores.each(Layer::User, max, &mut |(_, read)| {
            *(if read.is_ok() { &mut sound } else { &mut damaged }) += 1;
            true
        });
        (sound, damaged, is_all.unwrap())
    };
    let bytes = 1 << 20;
    assert_eq!(seen(ReadMax { files: 4096, bytes }), (3, 10, false), "ten of 100 KiB fit");
    let (sound, damaged, is_all) = seen(ReadMax { files: 8, bytes });
    assert!(sound + damaged <= 8 && !is_all);
    names(&user).iter().filter(|name| name.starts_with('s')).for_each(|name| {
        fs::remove_file(user.join(name)).unwrap();
    });
    assert_eq!(seen(ReadMax { files: 4096, bytes }), (3, 0, true));
    assert_eq!(seen(ReadMax { files: 4096, bytes: 8 }), (0, 0, false));
}

/// As of a configuration that was changed: what is there is written again, and nothing new.
#[test]
fn a_cap_that_was_lowered_is_met_in_time_although_no_profile_grows() {
    let (_dir, stores) = place();
    let keys: Vec<ProgramKey> = (0..8).map(|at| key(&format!("x{at}"))).collect();
    keys.iter().for_each(|key| write(&stores, key, Layer::User));
    let (_, bytes) = taken_in(stores.directory(Layer::User).unwrap());
    let capped = stores.keeping(bytes / 2);
    let rewrite = |created_unix_s| {
        let change = |known: Option<Profile>| {
            let mut known = known.unwrap();
            known.history.created_unix_s = created_unix_s;
            Some(known)
        };
        capped.update_unsynced(&keys[0], Layer::User, change).unwrap()
    };
    assert!((1..1000).any(|at| !rewrite(at).is_empty()));
    assert!(taken_in(capped.directory(Layer::User).unwrap()).1 <= bytes / 2);
}

#[test]
fn a_profile_of_a_year_that_no_clock_has_is_the_first_to_go() {
    let (_dir, stores) = place();
    let [odd, other] = ["odd", "other"].map(key);
    write(&stores, &odd, Layer::User);
    let path = stores.path_of(&odd, Layer::User).unwrap();
    let mut profile = decode(&fs::read(&path).unwrap()).unwrap();
    profile.history = History { updated_unix_s: u64::MAX, observations: 9, ..profile.history };
    fs::write(&path, encode(&profile)).unwrap();
    let size = fs::metadata(&path).unwrap().len();
    write(&stores.clone().keeping(size + size / 2), &other, Layer::User);
    assert!(!path.exists() && stores.path_of(&other, Layer::User).unwrap().exists());
}

#[test]
fn a_store_that_cannot_be_made_is_named_itself() {
    let wanted = Path::new("/proc/no/such/store");
    let refused = Stores::at(wanted.into()).room(Layer::User).unwrap_err();
    assert!(matches!(&refused, StoreError::Io { path, .. } if path == wanted), "{refused}");
}

/// By whom it may be written is not what is wrong with it.
#[test]
fn a_store_that_is_a_file_or_below_one_is_told_to_be_no_directory() {
    for wanted in ["/etc/passwd", "/etc/passwd/store"].map(Path::new) {
        let refused = Stores::at(wanted.into()).room(Layer::User).unwrap_err();
        let StoreError::Io { path, source } = &refused else { panic!("{refused:?}") };
        assert_eq!((&**path, source.kind()), (wanted, std::io::ErrorKind::NotADirectory));
    }
}

/// What refuses each profile says so before a program is observed for nothing, at each start anew.
#[test]
fn a_store_that_takes_no_profile_has_no_room() {
    use prepage_sys::call_filter::{When, fail};
    let (_dir, stores) = place();
    write(&stores, &key("x"), Layer::User);
    assert!(stores.room_by_trial(Layer::User).is_ok());
    assert_eq!(names(stores.directory(Layer::User).unwrap()).len(), 1, "what was tried is gone");
    let reason = |error: StoreError| match error {
        StoreError::Io { source, .. } => source.raw_os_error().unwrap_or(0),
        other => panic!("{other}"),
    };
    let child = Forked::new(|| {
        let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
        rustix::process::setrlimit(rustix::process::Resource::Fsize, none).unwrap();
        stores.room(Layer::User).map_or_else(reason, |()| 0)
    });
    assert_eq!(child.unwrap().wait().unwrap().exit_status(), Some(Errno::FBIG.raw_os_error()));
    for (call, errno) in [(libc::SYS_flock, Errno::NOLCK), (libc::SYS_fallocate, Errno::DQUOT)] {
        let child = Forked::new(|| match fail(errno.raw_os_error(), &[(call, When::Always)]) {
            // A start does not wait for a trial, but for what the last one could not write.
            Ok(()) if stores.room(Layer::User).is_err() => 254,
            Ok(()) => {
                stores.note_refused(Layer::User);
                let tried = stores.room_by_trial(Layer::User).map_or_else(reason, |()| 0);
                if stores.room(Layer::User).map_or_else(reason, |()| 0) == tried { tried } else { 253 }
            }
            Err(_) => 255,
        });
        match child.unwrap().wait().unwrap().exit_status() {
            Some(255) => return skip(Need::Path("/proc/sys/kernel/seccomp".into()), "no filters"),
            status => assert_eq!(status, Some(errno.raw_os_error()), "call {call}"),
        }
        assert!(stores.room(Layer::User).is_ok(), "it takes one again");
        assert_eq!(names(stores.directory(Layer::User).unwrap()).len(), 1, "and nothing is left of that");
    }
}
