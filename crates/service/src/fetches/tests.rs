use std::os::fd::AsFd;

use prepage_core::PAGE_SIZE;
use prepage_core::profile::ProfiledFile;
use prepage_sys::cachestat::evict;
use prepage_sys::mounts::mount_of;
use prepage_testing::{Need, has, skip, unless_late, wait_until};

use super::*;
use crate::needed_file::needed_file;

/// Longer than anything takes here, on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// What was done longer ago is done again, and work that hangs for a second longer has others refused.
const IN_TIME: Duration = Duration::from_millis(900);

fn start(uid: u32, pid: u32, seen_at: Instant) -> Start<'static> {
    let gives_way = &|| {};
    Start { uid, pid, seen_at, executed_at: seen_at, parents: &Vec::new, root: None, starter: uid, gives_way }
}

fn own_rights() -> Rights {
    Rights::of_process(std::process::id()).unwrap()
}

/// `None`, and a skip, where nothing can be sent out of memory.
fn on_a_disk() -> Option<tempfile::TempDir> {
    let directory = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    has(Need::Eviction(directory.clone())).then(|| tempfile::tempdir_in(directory).unwrap())
}

/// Of a new file at `path`.
fn profile_of(path: &std::path::Path) -> Profile {
    let (_, profiled) = needed_file(path, 64, &[8, 9, 10, 11]);
    Profile { program: "x".into(), files: vec![profiled], ..Profile::default() }
}

/// Nothing of it is fetched, as if all of it was in memory.
#[test]
fn a_program_that_was_upgraded_is_learned_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().canonicalize().unwrap().join("file");
    let known = Known::new(&profile_of(&path), own_rights());
    let (known, fetches) = (Arc::new(known), Fetches::new(Arc::default()));
    let fetch = |uid| fetches.fetch(&known, &start(uid, 1, Instant::now()), Turn::Prefetch);
    fetch(7);
    assert!(!known.has_changed());
    std::fs::write(&path, [2; 64 * PAGE_SIZE as usize]).unwrap();
    fetch(8);
    assert!(known.has_changed());
}

#[test]
fn a_user_whose_files_never_answer_leaves_readers_to_others() {
    let Some(directory) = on_a_disk() else { return };
    let path = directory.path().canonicalize().unwrap().join("file");
    let known = Known::new(&profile_of(&path), own_rights());
    evict(open_to_read(&path).unwrap().as_fd(), PATIENCE).unwrap();
    let fetches = Fetches::new(Arc::default());
    let (gate, closed) = std::sync::mpsc::sync_channel::<()>(0);
    let closed = Arc::new(Mutex::new(closed));
    for _ in 0..2 * READERS {
        let closed = closed.clone();
        let hangs = move |_at_work| _ = closed.lock().anyway().recv();
        fetches.readers_of(known.device).lend(12345, Priority::Start, Box::new(hangs));
    }
    let done = fetches.fetch(&Arc::new(known), &start(7, 1, Instant::now()), Turn::Prefetch);
    assert_eq!(done, Done::Fetched);
    wait_until(|| fetches.look().0, "it never ends");
    assert_eq!(fetches.counters.fetched_bytes.get(), 4 * PAGE_SIZE);
    drop(gate);
}

/// A program that answers for a file system may never answer whoever closes a file there.
#[test]
fn a_prefetch_that_has_ended_is_put_away_by_somebody_who_may_wait() {
    let Some(directory) = on_a_disk() else { return };
    let path = directory.path().canonicalize().unwrap().join("file");
    let profile = profile_of(&path);
    evict(open_to_read(&path).unwrap().as_fd(), PATIENCE).unwrap();
    let rights = own_rights();
    let known = Arc::new(Known::new(&profile, rights.clone()));
    let fetches = Fetches::new(Arc::default());
    let done = fetches.fetch(&known, &start(7, 1, Instant::now()), Turn::Prefetch);
    assert_eq!(done, Done::Fetched);
    let is_open = || {
        let mut open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        open.any(|one| std::fs::read_link(one.path()).is_ok_and(|at| at == path))
    };
    wait_until(|| fetches.look().0, "it never ends");
    let users = || fetches.look().1;
    assert_eq!([users(), users()], [[rights.uid]; 2], "until somebody has closed them");
    fetches.close(rights.uid);
    // A thread that has read something may be about to end.
    wait_until(|| !is_open(), "it stays open");
    assert!(users().is_empty());
}

/// The directories of a container that has ended can be mounted for the next one once nobody holds its root.
#[test]
fn the_root_of_a_container_is_let_go_of_when_the_last_reader_has_ended_and_its_prefetch_ends_with_its_process()
 {
    unless_late(IN_TIME, || {
        let Some(directory) = on_a_disk() else { return };
        let path = directory.path().canonicalize().unwrap().join("file");
        if mount_of(&path).is_none_or(|mount| mount.point != std::path::Path::new("/")) {
            return skip(
                Need::Path("/".into()),
                "no mount is crossed below a root, and this directory is on another",
            );
        }
        let known = Arc::new(Known::new(&profile_of(&path), own_rights()));
        let root = Arc::new(Root::of_process(std::process::id()).unwrap());
        let fetches = Fetches::new(Arc::default());
        let fetch = |uid, pid| {
            evict(open_to_read(&path).unwrap().as_fd(), PATIENCE).unwrap();
            let start = Start { root: Some(&root), starter: 8, ..start(uid, pid, Instant::now()) };
            fetches.fetch(&known, &start, Turn::Prefetch)
        };
        assert_eq!(fetch(7, std::process::id()), Done::Fetched);
        wait_until(|| Arc::strong_count(&root) == 1, "nobody has looked, and nobody needs to");
        fetches.look();
        let _gate = keep_busy(&fetches, 0, 8);
        assert_eq!([fetch(8, u32::MAX), fetch(9, std::process::id())], [Done::Fetched; 2]);
        fetches.look();
        let prefetches = fetches.prefetches.lock().anyway();
        let are_ending: Vec<_> = prefetches.under_way.iter().map(|one| (one.pid, one.is_cut_short)).collect();
        assert_eq!(are_ending, [(u32::MAX, true), (std::process::id(), false)]);
    });
}

/// A user's profile may name any number of files, and each is open until the prefetch has ended.
#[test]
fn what_has_more_files_than_may_be_open_is_left_alone() {
    let Some(directory) = on_a_disk() else { return };
    let directory = directory.path().canonicalize().unwrap();
    let profiles = ["many", "one"].map(|name| profile_of(&directory.join(name)));
    let files = |count| {
        // What is read for others at the moment would be found in memory.
        let profile = &profiles[usize::from(count == 1)];
        let files = std::iter::repeat_n(profile.files[0].clone(), count).collect();
        let profile = Profile { files, ..profile.clone() };
        Arc::new(Known::new(&profile, own_rights()))
    };
    let counters = Arc::new(Counters::default());
    let fetches = Fetches { holdings: Arc::new(Holdings::new(5)), ..Fetches::new(counters.clone()) };
    let fetch = |known: &Arc<Known>, uid| {
        evict(open_to_read(known.planned.files[0].path.as_ref()).unwrap().as_fd(), PATIENCE).unwrap();
        fetches.fetch(known, &start(uid, uid, Instant::now()), Turn::Prefetch)
    };
    assert_eq!([fetch(&files(6), 7), fetch(&files(5), 8)], [Done::LeftAlone, Done::Fetched]);
    assert_eq!((fetch(&files(1), 9), counters.crowded.get()), (Done::LeftAlone, 2));
    wait_until(|| fetches.look().0, "it never ends");
    assert_eq!(fetch(&files(1), 10), Done::LeftAlone, "its files are still open");
    fetches.close(rustix::process::geteuid().as_raw());
    assert_eq!(fetch(&files(1), 11), Done::Fetched);
}

/// Rscript becomes a shell, and that becomes R: what the first one's profile holds, the others need.
#[test]
fn what_is_on_its_way_for_the_process_or_its_parents_is_not_asked_for_again() {
    let Some(directory) = on_a_disk() else { return };
    let directory = directory.path().canonicalize().unwrap();
    let files = ["a", "b"].map(|name| profile_of(&directory.join(name)).files.remove(0));
    let known = |role: &str, files: &[ProfiledFile]| {
        let profile = Profile { role: role.into(), files: files.to_vec(), ..Profile::default() };
        Arc::new(Known::new(&profile, own_rights()))
    };
    let fetches = Fetches::new(Arc::default());
    let fetch = |role: &str, of: &[ProfiledFile], pid, parents: &dyn Fn() -> Vec<u32>| {
        // What is being read comes back.
        let is_at_work =
            || fetches.prefetches.lock().anyway().under_way.iter().any(|one| one.engine.is_at_work());
        wait_until(|| !is_at_work(), "it never ends");
        files
            .iter()
            .for_each(|file| evict(open_to_read(file.path.as_ref()).unwrap().as_fd(), PATIENCE).unwrap());
        let start = Start { parents, ..start(7, pid, Instant::now()) };
        let done = fetches.fetch(&known(role, of), &start, Turn::Prefetch);
        let planned = fetches.prefetches.lock().anyway().under_way.last().map(|one| one.planned.pages());
        (done, planned)
    };
    let none: &dyn Fn() -> Vec<u32> = &Vec::new;
    assert_eq!(fetch("first", &files[..1], 1, none), (Done::Fetched, Some(4)));
    assert_eq!(fetch("becomes", &files[..1], 1, none).0, Done::Recent);
    assert_eq!(fetch("child", &files, 2, &|| vec![1]), (Done::Fetched, Some(4)), "the other file alone");
    assert_eq!(fetch("other", &files, 3, none), (Done::Fetched, Some(8)), "of no relative's");
    let root = Arc::new(Root::of_process(std::process::id()).unwrap());
    let below = Start { root: Some(&root), ..start(7, 1, Instant::now()) };
    let done = fetches.fetch(&known("in a container", &files[..1]), &below, Turn::Prefetch);
    assert_ne!(done, Done::Recent, "below another root these are other names");
    // What is cancelled may never come.
    fetches.cancel(1, Instant::now());
    assert_eq!(fetch("again", &files[..1], 1, none), (Done::Fetched, Some(4)));
}

#[test]
fn no_user_is_told_what_was_done_for_another() {
    unless_late(IN_TIME, || {
        let fetches = Fetches::new(Arc::default());
        let key = ProgramKey { program: "/bin/program".into(), role: "program".into() };
        let name = |uid| name_of(uid, &key);
        let then = Instant::now();
        let recent = |name: &_, pid| fetches.recent(name, &start(7, pid, then));
        assert_eq!(recent(&name(7), 1), None);
        assert_eq!(recent(&name(8), 2), None);
        assert_eq!(recent(&name(7), 3), Some(Done::Recent));
        fetches.note(&name(8), 2, Done::HeldOut);
        assert_eq!(recent(&name(8), 2), Some(Done::HeldOut));
        for pid in [3, 4, 3] {
            let done = recent(&name(8), pid);
            assert_eq!(done, Some(Done::LeftAlone), "nothing was fetched a moment before");
        }
        assert_eq!(recent(&name(8), 2), Some(Done::HeldOut));
        fetches.note(&name(8), 2, Done::Fetched);
        let again = start(7, 2, then + Duration::from_millis(1));
        let done = (recent(&name(8), 2), fetches.recent(&name(8), &again));
        assert_eq!(done, (Some(Done::Fetched), Some(Done::Recent)), "it executes itself again");
        (0..3 * RECENT_MAX as u32).for_each(|uid| _ = recent(&name(uid), uid));
        assert!(fetches.recent.lock().anyway().len() <= RECENT_MAX, "more at once than fit");
    });
}

/// The arguments of a program on a slow disk cannot be read for seconds after its exec was told.
#[test]
fn what_was_done_for_a_start_is_told_however_long_its_exec_takes() {
    let fetches = Fetches::new(Arc::default());
    let name = name_of(7, &ProgramKey { program: "/bin/program".into(), role: "program".into() });
    let recent = |executed_at| fetches.recent(&name, &start(7, 1, executed_at));
    let grow_old = || fetches.recent.lock().anyway().get_mut(&name).unwrap().at -= 2 * APART;
    let executed_at = Instant::now();
    assert_eq!(recent(executed_at), None);
    fetches.note(&name, 1, Done::HeldOut);
    grow_old();
    assert_eq!(recent(executed_at), Some(Done::HeldOut));
    grow_old();
    assert_eq!(recent(executed_at + APART), None, "the process executes it again");
}

/// A build calls the shell in another role for each file, and to put a guess together takes long.
#[test]
fn what_the_roles_of_a_program_have_in_common_is_asked_for_once_a_second() {
    unless_late(IN_TIME, || {
        let fetches = Fetches::new(Arc::default());
        let asked = std::cell::Cell::new(0);
        let fetch = |guess: Option<Profile>, uid, pid| {
            let ask = || {
                asked.set(asked.get() + 1);
                guess
            };
            fetches.fetch_guess("/bin/program", ask, &start(uid, pid, Instant::now()))
        };
        assert_eq!([fetch(None, 7, 1), fetch(None, 7, 2)], [Done::Unknown; 2]);
        assert_eq!(asked.get(), 1);
        let warm = || Some(Profile::default());
        assert_eq!([fetch(warm(), 8, 3), fetch(warm(), 8, 4)], [Done::Warm; 2]);
        assert_eq!(asked.get(), 2);
    });
}

/// A program that has no profile yet.
#[test]
fn a_guess_is_told_from_a_profile_that_was_fetched() {
    let place = std::path::PathBuf::from("/var/tmp");
    if !has(Need::Root) || !has(Need::Eviction(place.clone())) {
        return;
    }
    let directory = tempfile::tempdir_in(place).unwrap();
    let path = directory.path().canonicalize().unwrap().join("file");
    let profile = profile_of(&path);
    // What is guessed is fetched with the rights of everybody.
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(directory.path(), everybody).unwrap();
    evict(open_to_read(&path).unwrap().as_fd(), PATIENCE).unwrap();
    let fetches = Fetches::new(Arc::default());
    let guess =
        |guess: Profile, uid| fetches.fetch_guess("/bin/x", || Some(guess), &start(uid, uid, Instant::now()));
    assert_eq!([guess(profile, 7), guess(Profile::default(), 8)], [Done::Guessed, Done::Warm]);
}

/// A program is executed while files of it are looked at.
#[test]
fn what_is_under_way_for_a_process_is_waited_for() {
    unless_late(LOOK_HANGS_AFTER / 2, || {
        let fetches = Fetches::new(Arc::default());
        let name = name_of(7, &ProgramKey { program: "/bin/program".into(), role: "program".into() });
        let (now, given_way) = (Instant::now(), std::sync::atomic::AtomicU32::new(0));
        let recent = |pid| {
            let gives_way = &|| _ = given_way.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            fetches.recent(&name, &Start { gives_way, ..start(7, pid, now) })
        };
        assert_eq!(recent(1), None);
        let done = std::thread::scope(|scope| {
            let launched = scope.spawn(|| recent(1));
            assert_eq!(recent(2), Some(Done::Recent), "no process waits for what is another's");
            let until = Instant::now() + PATIENCE;
            while given_way.load(std::sync::atomic::Ordering::Relaxed) == 0 && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(50));
            assert!(!launched.is_finished());
            fetches.note(&name, 1, Done::HeldOut);
            launched.join().unwrap()
        });
        assert_eq!(
            (done, given_way.into_inner()),
            (Some(Done::HeldOut), 1),
            "others are looked at meanwhile"
        );
    });
}

#[test]
fn what_is_left_alone_is_not_said_to_be_fetched_and_only_what_takes_long_to_hang() {
    let counters = Arc::new(Counters::default());
    let fetches = Fetches::new(counters.clone());
    let known = Arc::new(Known::new(&Profile::default(), Rights::of_everybody()));
    let now = Instant::now();
    let looked = known.look_at(|| fetches.fetch(&known, &start(7, 1, now), Turn::Prefetch));
    assert_eq!(looked, Ok(Done::LeftAlone), "somebody looks already");
    assert_eq!(counters.hung.get(), 0);
    known.leave_alone(LEFT_ALONE);
    assert_eq!(fetches.fetch(&known, &start(8, 2, now), Turn::Prefetch), Done::LeftAlone);
}

#[test]
fn what_is_cancelled_before_it_is_under_way_is_not_fetched_and_the_next_start_of_the_process_is() {
    let Some(directory) = on_a_disk() else { return };
    let path = directory.path().canonicalize().unwrap().join("file");
    let profile = profile_of(&path);
    let file = open_to_read(&path).unwrap();
    let known = Arc::new(Known::new(&profile, own_rights()));
    let fetches = Fetches::new(Arc::default());
    let fetch = |uid, seen_at| {
        evict(file.as_fd(), PATIENCE).unwrap();
        fetches.fetch(&known, &start(uid, 1, seen_at), Turn::Prefetch)
    };
    let before = Instant::now();
    std::thread::sleep(Duration::from_millis(1));
    let seen_at = Instant::now();
    fetches.cancel(1, seen_at);
    assert_eq!(fetch(7, seen_at), Done::LeftAlone);
    // For another user: what was done for one a moment ago is not done again.
    assert_eq!(fetch(8, Instant::now()), Done::Fetched);
    // A shell that became this program is cancelled late.
    fetches.cancel(2, before);
    assert!(!fetches.prefetches.lock().anyway().is_cancelled(2, seen_at));
    (0..2 * CANCELLED_MAX as u32).for_each(|pid| fetches.cancel(pid, Instant::now()));
    assert!(fetches.prefetches.lock().anyway().cancelled.len() <= CANCELLED_MAX);
}

/// Work for the readers that waits for as long as what is returned is not dropped, as many pieces as user `uid` may have there at once.
fn keep_busy(fetches: &Fetches, device: u64, uid: u32) -> std::sync::mpsc::SyncSender<()> {
    let (gate, closed) = std::sync::mpsc::sync_channel::<()>(0);
    let closed = Arc::new(Mutex::new(closed));
    let (began, begun) = std::sync::mpsc::channel();
    for _ in 0..READERS_OF_A_USER {
        let (closed, began) = (closed.clone(), began.clone());
        let hangs = move |_at_work| {
            began.send(()).unwrap();
            let _ = closed.lock().anyway().recv();
        };
        assert!(fetches.readers_of(device).lend(uid, Priority::Start, Box::new(hangs)));
    }
    (0..READERS_OF_A_USER).for_each(|_| begun.recv_timeout(PATIENCE).unwrap());
    gate
}

/// Nobody reads then: a moment later the next start of the program is to be fetched for.
#[test]
fn what_no_reader_has_room_for_is_left_alone_and_a_dozen_prefetches_of_one_user_have_room() {
    unless_late(IN_TIME, || {
        let Some(directory) = on_a_disk() else { return };
        let path = directory.path().canonicalize().unwrap().join("file");
        let profile = profile_of(&path);
        let fetches = Fetches::new(Arc::default());
        let known = || Arc::new(Known::new(&profile, own_rights()));
        let (device, uid) = (known().device, known().rights.uid);
        let gate = keep_busy(&fetches, device, uid);
        let wait = || fetches.readers_of(device).lend(uid, Priority::Start, Box::new(|_at_work| {}));
        // As many as one prefetch lends that reads from a disk, and looks up names.
        assert!((0..12 * 24).all(|_| wait()));
        while wait() {}
        evict(open_to_read(&path).unwrap().as_fd(), PATIENCE).unwrap();
        let done = fetches.fetch(&known(), &start(7, 1, Instant::now()), Turn::Prefetch);
        assert_eq!((done, fetches.counters.crowded.get()), (Done::LeftAlone, 1));
        assert!(fetches.account_of(1, &known().key).is_none(), "nothing of it was fetched");
        assert_eq!(fetches.look_at(Instant::now()), (true, vec![uid]), "its files are to be closed");
        drop(gate);
    });
}

/// A thread that is told to stop is at its last read still.
#[test]
fn what_is_cancelled_hangs_only_where_it_does_not_end_for_long() {
    unless_late(IN_TIME, || {
        let Some(directory) = on_a_disk() else { return };
        let path = directory.path().canonicalize().unwrap().join("file");
        let profile = profile_of(&path);
        for hangs in [false, true] {
            evict(open_to_read(&path).unwrap().as_fd(), PATIENCE).unwrap();
            let known = Arc::new(Known::new(&profile, own_rights()));
            let fetches = Fetches::new(Arc::default());
            let gate = keep_busy(&fetches, known.device, known.rights.uid);
            let now = Instant::now();
            assert_eq!(fetches.fetch(&known, &start(7, 1, now), Turn::Prefetch), Done::Fetched);
            fetches.cancel(1, now);
            // Not so late that what waits is taken away.
            assert!(!fetches.look_at(now).0, "its work is not done");
            assert_eq!((known.is_left_alone(), fetches.counters.hung.get()), (false, 0));
            if hangs {
                assert!(fetches.look_at(Instant::now() + HANGS_AFTER).0);
                assert_eq!((known.is_left_alone(), fetches.counters.hung.get()), (true, 1));
                continue;
            }
            drop(gate);
            wait_until(|| fetches.look_at(now).0, "it never ends");
            assert_eq!((known.is_left_alone(), fetches.counters.hung.get()), (false, 0));
        }
    });
}

/// The thread that looks has the whole machine to see to.
#[test]
fn work_that_comes_too_late_is_dropped_by_somebody_who_may_wait() {
    unless_late(IN_TIME, || {
        struct Notes(std::sync::mpsc::Sender<std::thread::ThreadId>);
        impl Drop for Notes {
            fn drop(&mut self) {
                self.0.send(std::thread::current().id()).unwrap();
            }
        }
        let fetches = Fetches::new(Arc::default());
        let known = Known::new(&Profile::default(), Rights::of_everybody());
        let gate = keep_busy(&fetches, known.device, 7);
        let (noted, dropped) = std::sync::mpsc::channel();
        let notes = Notes(noted);
        let work = move |_at_work| drop(notes);
        assert!(fetches.readers_of(known.device).lend(7, Priority::Start, Box::new(work)));
        let users = fetches.look_at(Instant::now() + PATIENCE).1;
        assert!(dropped.try_recv().is_err(), "it is not dropped here");
        assert_eq!(users, [7]);
        let who = std::thread::scope(|scope| {
            let closes = scope.spawn(|| fetches.close(7));
            let id = closes.thread().id();
            closes.join().unwrap();
            id
        });
        assert_eq!(dropped.try_recv(), Ok(who));
        drop(gate);
    });
}

/// After a boot disks may have other numbers, and users write what they like into their profiles.
#[test]
fn readers_are_those_of_the_device_that_files_lie_on_whatever_profiles_say() {
    let Some(directory) = on_a_disk() else { return };
    let path = directory.path().canonicalize().unwrap().join("file");
    let mut profile = profile_of(&path);
    evict(open_to_read(&path).unwrap().as_fd(), PATIENCE).unwrap();
    let device = std::mem::replace(&mut profile.files[0].identity.device, 12345);
    let fetches = Fetches::new(Arc::default());
    let devices = || fetches.readers.lock().anyway().keys().copied().collect::<Vec<_>>();
    let known = Arc::new(Known::new(&profile, own_rights()));
    assert_eq!(fetches.fetch(&known, &start(7, 1, Instant::now()), Turn::Prefetch), Done::Fetched);
    assert_eq!(devices(), [device]);
    let is_of = |seen, learned| fetches.readers_on(seen, learned);
    assert!(Arc::ptr_eq(&is_of(Some(device), 12345), &is_of(None, device)));
    assert!(Arc::ptr_eq(&is_of(None, 12345), &fetches.readers_of(0)), "nobody has seen such a device");
    (0..).filter(|other| *other != device).take(DEVICES_MAX).for_each(|other| _ = fetches.readers_of(other));
    fetches.readers_of(54321);
    assert!(devices().contains(&device) && devices().contains(&54321), "others have no threads");
}
