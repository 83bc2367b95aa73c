use std::os::unix::fs::{PermissionsExt, chown};

use prepage_core::DeviceFigures;
use prepage_core::profile::{ProfiledFile, Touches, file as profile_file};
use prepage_prefetch::calibrate::Calibration;
use prepage_prefetch::calibrate::cache::Cache;
use prepage_prefetch::calibrate::device::Device;
use prepage_prefetch::start::StartContext;
use prepage_testing::{Need, assert_passed, child_command, child_output, has};

use super::*;
use crate::moment::Moment;

/// The first of users who are in no list.
const FIRST_UID: u32 = 7001;

fn key(name: &str) -> ProgramKey {
    ProgramKey { program: format!("/bin/{name}"), role: name.into() }
}

/// Of one page of a file on `device`.
fn profile_of(key: &ProgramKey, device: u64) -> Profile {
    let mut touches = Touches::default();
    touches.touch(prepage_core::PageIndex(1), 1);
    let mut file =
        ProfiledFile { path: "/file".into(), extents: touches.extents(), ..ProfiledFile::default() };
    file.identity.device = device;
    let ProgramKey { program, role } = key.clone();
    Profile { program, role, files: vec![file], ..Profile::default() }
}

/// Writes a profile into a store's `directory`.
fn write(directory: &Path, profile: &Profile) {
    std::fs::create_dir_all(directory).unwrap();
    let key = ProgramKey::of_profile(profile);
    std::fs::write(directory.join(key.file_name()), profile_file::encode(profile)).unwrap();
}

/// A directory that everybody may look into, and a library of the machine's profiles in `machine` there.
fn in_a_place(place: &Path) -> Library {
    std::fs::set_permissions(place, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::create_dir_all(place.join("machine")).unwrap();
    Library::open(Some(vec![place.join("machine")])).unwrap()
}

/// Makes a user with a profile of `x`, whose file lies on `device`. Returns a start of `x` by the user.
fn start_of(uid: u32, place: &Path, device: u64) -> Process {
    let home = place.join(uid.to_string());
    write(&home.join(".local/state/prepage"), &profile_of(&key("x"), device));
    chown(&home, Some(uid), Some(uid)).unwrap();
    let rights = Rights { uid, gid: uid, groups: [].into() };
    let context = StartContext { pid: std::process::id(), uid, executable: None, key: key("x"), began_ns: 0 };
    Process {
        context,
        rights,
        root: None,
        program: "/bin/x".into(),
        starter: uid,
        places: Vec::new(),
        search: Vec::new(),
        home: Some(home),
        parents: Vec::new(),
        moment: Moment::after_exec(),
    }
}

/// Only another change would have the service look for it.
#[test]
fn what_others_write_while_a_program_is_learned_is_read_and_what_is_known_of_changes_stays() {
    let directory = tempfile::tempdir().unwrap();
    let machine = directory.path().join("machine");
    let library = in_a_place(directory.path());
    // The clock of file systems ticks every 10 ms at most.
    std::thread::sleep(Duration::from_millis(20));
    let update = |own: &str, other: &str| {
        [own, other].iter().for_each(|name| write(&machine, &profile_of(&key(name), 1)));
        library.take_written(&key(own));
    };
    let find = |name: &str| library.lock().machine.find(&key(name));
    update("a", "b");
    assert!(find("a").is_some(), "the next start has it");
    find("a").unwrap().mark_as_changed(Vec::new());
    assert!(library.refresh() && find("b").is_some());
    assert!(find("a").unwrap().has_changed() && !find("b").unwrap().has_changed());
    assert!(!library.refresh());
    // Nor are all read again, and all names looked up, for what the service itself has written.
    let both = || ["a", "b"].map(|name| find(name).unwrap());
    let before = both();
    update("c", "c");
    let learned = find("c").unwrap();
    assert!(!library.refresh(), "there is nothing new in it");
    assert!(
        both()
            .iter()
            .chain(find("c").iter())
            .zip(before.iter().chain([&learned]))
            .all(|(a, b)| Arc::ptr_eq(a, b))
    );
    std::fs::remove_file(machine.join(key("b").file_name())).unwrap();
    assert!(library.refresh() && find("b").is_none() && find("c").is_some());
    assert!(!library.refresh());
}

/// An observation may end while all is read again.
#[test]
fn what_is_learned_while_profiles_are_read_stays_and_is_read_once_more() {
    let directory = tempfile::tempdir().unwrap();
    let machine = directory.path().join("machine");
    let library = in_a_place(directory.path());
    let learn = |device| {
        write(&machine, &profile_of(&key("a"), device));
        library.take_written(&key("a"));
    };
    let (stores, everybody) = (library.machine_stores(), Rights::of_everybody());
    let device = || library.lock().machine.find(&key("a")).unwrap().device;
    learn(1);
    let held = library.lock().machine.clone();
    let read = Shelf::load(&stores, &OF_ALL, &held, &everybody, BYTES_MAX, ReadMax::ALL);
    learn(2);
    let now = library.lock().machine.clone();
    library.lock().machine = Arc::new(read.with_newer(&held, &now, BYTES_MAX));
    assert_eq!(device(), 2);
    // By somebody else, who has replaced it before the next look.
    write(&machine, &profile_of(&key("a"), 3));
    assert!(library.refresh());
    assert_eq!(device(), 3);
    // Nobody waits for the file of one that is gone.
    learn(4);
    std::fs::remove_file(machine.join(key("a").file_name())).unwrap();
    library.reload();
    assert!(library.lock().machine.files.is_empty() && !library.refresh());
}

#[test]
fn of_more_users_than_fit_each_is_served_as_the_user_wants_and_stores_are_not_read_for_each_start() {
    if !has(Need::Root) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let library = in_a_place(directory.path());
    let uids = FIRST_UID..=FIRST_UID + USERS_MAX as u32;
    let starts: Vec<Process> = uids.clone().map(|uid| start_of(uid, directory.path(), 1)).collect();
    let config = directory.path().join(format!("{}/.config/prepage", uids.end()));
    std::fs::create_dir_all(&config).unwrap();
    std::fs::write(config.join("config"), "learn = no\npredict = no\n").unwrap();
    let round = || {
        let found = |start: &Process| {
            let Found { known, to_mark, wishes } = library.find(start);
            let known = known.unwrap().expect("each user has a profile");
            assert_eq!((&known.key, known.rights.uid), (&key("x"), start.rights.uid));
            (known, wishes, to_mark)
        };
        starts.iter().map(found).collect::<Vec<_>>()
    };
    let (first, second) = (round(), round());
    // What was read stays. For the last user there is no room, and what the user wants holds all the same.
    for at in 0..USERS_MAX {
        assert!(Arc::ptr_eq(&first[at].0, &second[at].0), "the profiles of user {at} were read again");
        assert_eq!(second[at].1, library.wishes(None));
    }
    let nothing = Wishes { learns: false, holds_out: true, measures: false, predicts: false };
    assert_eq!([first[USERS_MAX].1, second[USERS_MAX].1], [nothing; 2]);
    let to_mark = |of: &[(Arc<Known>, Wishes, Option<Layer>)]| of.iter().map(|one| one.2).collect::<Vec<_>>();
    let due = [[Some(Layer::User); USERS_MAX].as_slice(), &[None]].concat();
    assert_eq!(to_mark(&first), due, "reading a file for one start has marked it");
    assert_eq!(to_mark(&second), [None; USERS_MAX + 1]);
    // Whoever starts nothing for a while makes room.
    let mut state = library.lock();
    let long_ago = Instant::now().checked_sub(IN_USE);
    let first_of_all = state.users.get_mut(&FIRST_UID).unwrap();
    *first_of_all = Arc::new(Shelf { looked: long_ago, ..(**first_of_all).clone() });
    drop(state);
    let last = &starts[USERS_MAX];
    let _ = library.find(last);
    assert!(library.is_own(&key("x"), last.rights.uid) && !library.is_own(&key("x"), FIRST_UID));
}

/// Where a copy of this program finds the users that it is to look at.
const PLACE: &str = "PREPAGE_TEST_USERS";

/// What root has measured lies in a store that nobody else can look into.
#[test]
fn what_users_have_learned_is_planned_with_the_figures_of_the_device() {
    if !has(Need::Root) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut inside = child_command("library::tests::inside_with_figures", &[]);
    let store = directory.path().join("figures");
    inside.env("PREPAGE_STORE", store).env(PLACE, directory.path());
    assert_passed(&child_output(&mut inside));
}

/// No test by itself: what the one above starts.
#[test]
fn inside_with_figures() {
    let Some(place) = std::env::var_os(PLACE).map(PathBuf::from) else { return };
    let number = rustix::fs::makedev(7, 3);
    let figures = |latency_ns| DeviceFigures { latency_ns, ..DeviceFigures::default() };
    let measure = |figures| {
        let calibration = Calibration { figures, latency_p99_ns: 1, rates: Vec::new(), measured_unix_s: 1 };
        Cache::of_user().unwrap().store(&Device { number, identity: "a disk".into() }, &calibration).unwrap();
    };
    let (figures, later) = (figures(7_000_000), figures(9_000_000));
    measure(figures);
    let library = in_a_place(&place);
    let start = start_of(FIRST_UID, &place, number);
    let figures_in = || library.find(&start).known.unwrap().unwrap().figures;
    assert_eq!(figures_in(), figures, "all of the user's");
    let versions = library.writing().write(&start, Layer::User, |_, _| Ok(())).unwrap();
    library.take_written_of_user(&start, versions);
    assert_eq!(figures_in(), figures, "one that was learned");
    {
        let mut state = library.lock();
        let shelf = Shelf { is_cut: true, looked: Some(Instant::now()), ..Shelf::default() };
        state.users.insert(FIRST_UID, Arc::new(shelf));
    }
    assert_eq!(figures_in(), figures, "one that did not fit");
    assert!(!library.refresh());
    write(&place.join("machine"), &profile_of(&key("all"), number));
    assert!(library.refresh());
    let of_all = || library.expected(&key("all"), FIRST_UID).unwrap().figures;
    assert_eq!(of_all(), figures);
    measure(later);
    assert!(library.refresh(), "root has measured while the service runs");
    assert_eq!((figures_in(), of_all()), (later, later));
    assert!(!library.refresh());
    // Root's own profiles lie there as well.
    std::fs::write(Cache::of_user().unwrap().directory().join("other"), "").unwrap();
    assert!(!library.refresh());
}

#[test]
fn what_was_used_last_comes_first_also_after_all_was_read_again() {
    if !has(Need::Root) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let machine = directory.path().join("machine");
    ["a", "b", "c"].iter().for_each(|name| write(&machine, &profile_of(&key(name), 1)));
    let library = in_a_place(directory.path());
    let first = || library.all()[0].key.clone();
    for name in ["a", "c", "b"] {
        let known = library.lock().machine.find(&key(name)).unwrap();
        let _ = known.note_use();
        library.reload();
        assert_eq!(first(), key(name));
    }
    // Of somebody who has just started it.
    library.take_written(&key("c"));
    assert_eq!(first(), key("c"), "it was just learned");
    let mut own = Shelf::default();
    own.put(Arc::new(Known::new(&profile_of(&key("x"), 1), Rights::of_everybody())));
    let _ = own.find(&key("x")).unwrap().note_use();
    library.lock().users.insert(7, Arc::new(own));
    assert_eq!(first(), key("x"), "whoever it is known to");
}

/// Of what is not used for long the store makes room: also of what one serves from memory who reads it once.
#[test]
fn what_starts_are_served_from_is_marked_as_used_in_its_store_once_a_day() {
    if !has(Need::Root) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let machine = directory.path().join("machine");
    let start = |uid, name: &str| {
        let mut start = start_of(uid, directory.path(), 1);
        start.context.key = key(name);
        start
    };
    let root = prepage_sys::root::Root::of_process(std::process::id()).unwrap();
    let of_user = start(FIRST_UID, "x");
    let of_container = Process { root: Some(Arc::new(root)), ..start(FIRST_UID + 1, "contained") };
    let starts = [of_user, start(FIRST_UID + 1, "all"), of_container];
    let own = directory.path().join(format!("{FIRST_UID}/.local/state/prepage"));
    let files = [(own, "x"), (machine.clone(), "all"), (machine.join(CONTAINERS), "contained")]
        .map(|(directory, name)| directory.join(key(name).file_name()));
    write(&machine, &profile_of(&key("all"), 1));
    write(&machine.join(CONTAINERS), &profile_of(&key("contained"), 1));
    chown(&files[0], Some(FIRST_UID), Some(FIRST_UID)).unwrap();
    let long_ago = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let age = |file: &PathBuf| {
        std::fs::File::options().write(true).open(file).unwrap().set_modified(long_ago).unwrap();
    };
    let library = in_a_place(directory.path());
    for is_marked in [true, false] {
        files.iter().for_each(age);
        let are_old =
            || files.each_ref().map(|file| std::fs::metadata(file).unwrap().modified().unwrap() == long_ago);
        let found = starts.each_ref().map(|start| library.find(start));
        assert!(found.iter().all(|found| found.known.as_ref().unwrap().is_some()));
        assert_eq!(are_old(), [true; 3], "they are marked behind the fetch");
        for (start, found) in starts.iter().zip(&found) {
            found.to_mark.iter().for_each(|layer| library.mark_as_used(start, *layer));
        }
        assert_eq!(are_old(), [!is_marked; 3], "of the user, the machine, a container");
    }
}

#[test]
fn of_any_number_of_programs_no_more_files_are_remembered_than_fit() {
    let directory = tempfile::tempdir().unwrap();
    let library = Library::open(Some(vec![directory.path().into()])).unwrap();
    for number in 0..8 * HANDLES_MAX as u32 {
        let file = FileHandle { file_system: 1, kind: 1, bytes: number.to_ne_bytes().into() };
        library.note(file.clone(), "/usr/bin/program");
        assert!(library.is_known(&file));
    }
    assert!(library.lock().handles.len() <= HANDLES_MAX);
}

/// A machine has more users that only run a service than may be kept.
#[test]
fn a_user_without_profiles_makes_room_for_others_before_those_who_have_some() {
    let directory = tempfile::tempdir().unwrap();
    let library = Library::open(Some(vec![directory.path().into()])).unwrap();
    let mut state = library.lock();
    for uid in 0..2 * USERS_MAX as u32 {
        let mut shelf = Shelf { looked: Some(Instant::now()), ..Shelf::default() };
        if uid == 0 {
            shelf.put(Arc::new(Known::new(&Profile::default(), Rights::of_everybody())));
        }
        state.make_room(uid);
        state.users.insert(uid, Arc::new(shelf));
    }
    assert!(state.users.len() == USERS_MAX && state.users.contains_key(&0), "{:?}", state.users.keys());
}

#[test]
fn where_nothing_is_wanted_there_is_nothing_to_look_up() {
    let directory = tempfile::tempdir().unwrap();
    let library = Library::open(Some(vec![directory.path().into()])).unwrap();
    let all = |machine: bool, user: bool| {
        let shelf = |enabled| {
            let mut shelf = Shelf { config: Config { enabled, ..Config::default() }, ..Shelf::default() };
            shelf.put(Arc::new(Known::new(&Profile::default(), Rights::of_everybody())));
            Arc::new(shelf)
        };
        let mut state = library.lock();
        (state.machine, state.users) = (shelf(machine), HashMap::from([(7, shelf(user))]));
        drop(state);
        library.all().len()
    };
    assert_eq!([all(true, true), all(true, false), all(false, true)], [2, 1, 0]);
}

/// To look for it takes a thread.
#[test]
fn of_a_program_of_several_roles_none_is_looked_for_before_its_arguments_are_known() {
    let directory = tempfile::tempdir().unwrap();
    let library = Library::open(Some(vec![directory.path().into()])).unwrap();
    let file = FileHandle { file_system: 1, kind: 1, bytes: [1].into() };
    let with = |roles: &[&str]| {
        let mut shelf = Shelf::default();
        for role in roles {
            let profile = Profile { program: "/bin/x".into(), role: (*role).into(), ..Profile::default() };
            shelf.put(Arc::new(Known::new(&profile, Rights::of_everybody())));
        }
        library.lock().machine = Arc::new(shelf);
        (library.may_have_one_role(&file), library.only_role(&file, 7).is_some())
    };
    assert_eq!(with(&["x"]), (false, false), "nobody has said what is in the file");
    library.note(file.clone(), "/bin/x");
    assert_eq!([with(&[]), with(&["x"])], [(true, false), (true, true)], "a user may have one");
    assert_eq!(with(&["x", "x -a"]), (false, false));
}

#[test]
fn what_fetching_gains_is_measured_where_the_machine_and_the_user_want_it() {
    let directory = tempfile::tempdir().unwrap();
    let library = Library::open(Some(vec![directory.path().into()])).unwrap();
    let measures = |machine: &Config, user: &Config| {
        let shelf = |config: &Config| Arc::new(Shelf { config: config.clone(), ..Shelf::default() });
        let mut state = library.lock();
        (state.machine, state.users) = (shelf(machine), HashMap::from([(7, shelf(user))]));
        drop(state);
        (library.wishes(Some(7)).measures, library.wishes(Some(8)).measures)
    };
    let yes = Config::default();
    assert_eq!(measures(&yes, &yes), (true, true));
    for no in [
        Config { hold_outs: false, ..Config::default() },
        Config { learn: false, ..Config::default() },
        Config { enabled: false, ..Config::default() },
    ] {
        assert_eq!(measures(&yes, &no), (false, true));
        assert_eq!(measures(&no, &yes), (false, false));
    }
}
