use super::*;

const READ: Permissions = Permissions::of_mapping(1, 2);
const WRITE: Permissions = Permissions::of_mapping(3, 2);

fn event(pid: u32, tid: u32, kind: EventKind) -> Event {
    Event { time_ns: 0, pid, tid, kind, is_time_borrowed: false }
}

fn file(start: u64, end: u64, offset_bytes: u64, path: &str) -> EventKind {
    let inode = Some((7, path.len() as u64));
    let mapped = Mapped { start, end, offset_bytes, inode, permissions: READ, path: path.into() };
    EventKind::Map(Box::new(mapped))
}

fn anonymous(start: u64, end: u64, permissions: Permissions) -> EventKind {
    let path = "[anon]".into();
    let mapped = Mapped { start, end, offset_bytes: 0, inode: None, permissions, path };
    EventKind::Map(Box::new(mapped))
}

fn fork(parent_pid: u32, pid: u32) -> Event {
    event(pid, pid, EventKind::Fork { parent_pid, parent_tid: parent_pid })
}

fn path_and_page(spaces: &AddressSpaces, pid: u32, address: u64) -> Option<(String, Option<u64>)> {
    let place = spaces.resolve(pid, address)?;
    Some((place.object.path.clone(), place.page.map(|page| page.0)))
}

#[test]
fn a_mapping_over_the_middle_of_another_splits_it() {
    let mut spaces = AddressSpaces::default();
    spaces.apply(&event(1, 1, file(0x10_000, 0x20_000, 0x4000, "/lib")));
    spaces.apply(&event(1, 1, anonymous(0x14_000, 0x16_000, WRITE)));
    assert_eq!(path_and_page(&spaces, 1, 0x13_fff), Some(("/lib".into(), Some(7))));
    assert_eq!(path_and_page(&spaces, 1, 0x14_000), Some(("[anon]".into(), None)));
    assert_eq!(path_and_page(&spaces, 1, 0x16_000), Some(("/lib".into(), Some(10))));
    assert_eq!(path_and_page(&spaces, 1, 0x20_000), None);
    assert_eq!(path_and_page(&spaces, 1, 0xffff), None);
}

#[test]
fn a_mapping_swallows_all_it_covers() {
    let mut spaces = AddressSpaces::default();
    for at in 0..8 {
        spaces.apply(&event(1, 1, file(at * 0x2000, at * 0x2000 + 0x1000, 0, "/small")));
    }
    spaces.apply(&event(1, 1, file(0x800, 0xc800, 0, "/wide")));
    assert_eq!(path_and_page(&spaces, 1, 0x7ff), Some(("/small".into(), Some(0))));
    for address in [0x800, 0x2000, 0x9000, 0xc7ff] {
        assert_eq!(path_and_page(&spaces, 1, address).expect("mapped").0, "/wide");
    }
    assert_eq!(path_and_page(&spaces, 1, 0xc800), Some(("/small".into(), Some(0))));
}

#[test]
fn a_fork_shares_until_one_side_changes() {
    let mut spaces = AddressSpaces::default();
    spaces.apply(&event(1, 1, file(0x1000, 0x2000, 0, "/a")));
    for child in 2..10_000 {
        spaces.apply(&fork(1, child));
    }
    assert!(Arc::ptr_eq(&spaces.processes[&1].mappings, &spaces.processes[&9_999].mappings));
    spaces.apply(&event(2, 2, file(0x1000, 0x2000, 0, "/bb")));
    assert_eq!(path_and_page(&spaces, 2, 0x1000).expect("mapped").0, "/bb");
    assert_eq!(path_and_page(&spaces, 1, 0x1000).expect("mapped").0, "/a");
    spaces.apply(&event(3, 3, EventKind::Name { name: "x".into(), exec: true }));
    assert_eq!(path_and_page(&spaces, 3, 0x1000), None);
}

#[test]
fn a_process_is_forgotten_with_its_last_thread() {
    let mut spaces = AddressSpaces::default();
    spaces.apply(&fork(1, 2));
    spaces.apply(&event(2, 5, EventKind::Fork { parent_pid: 2, parent_tid: 2 }));
    spaces.apply(&event(2, 2, file(0x1000, 0x2000, 0, "/a")));
    spaces.apply(&event(2, 2, EventKind::Exit));
    assert!(spaces.resolve(2, 0x1000).is_some());
    spaces.apply(&event(2, 5, EventKind::Exit));
    assert!(spaces.resolve(2, 0x1000).is_none());
}

fn exec(pid: u32) -> Event {
    event(pid, pid, EventKind::Name { name: "program".into(), exec: true })
}

#[test]
fn an_exit_before_anything_is_mapped_is_no_end() {
    let mut spaces = AddressSpaces::default();
    let map = || event(1, 1, file(0x1000, 0x2000, 0, "/a"));
    let exit = || event(1, 1, EventKind::Exit);
    spaces.apply(&exec(1));
    spaces.apply(&exit());
    assert_eq!((spaces.unobserved_programs(), spaces.processes()), (1, 0));
    spaces.apply(&map());
    assert_eq!((spaces.unobserved_programs(), spaces.processes()), (0, 1), "the whole machine is observed");
    spaces.apply(&exit());
    assert_eq!((spaces.unobserved_programs(), spaces.processes()), (0, 0));
    // What was killed between the two is not missing.
    [exec(1), exit(), exit()].iter().for_each(|event| spaces.apply(event));
    assert_eq!((spaces.unobserved_programs(), spaces.processes()), (0, 0));
    // Its mappings may have been lost.
    [exec(1), event(0, 0, EventKind::Lost { records: 9 }), exit()]
        .iter()
        .for_each(|event| spaces.apply(event));
    assert_eq!((spaces.unobserved_programs(), spaces.processes()), (0, 0));
}

/// perf(1) begins with the names and mappings of a process that runs already, and without forks.
#[test]
fn a_process_whose_threads_are_known_by_their_names_lives_until_the_last_ends() {
    let mut spaces = AddressSpaces::default();
    for tid in [1, 2] {
        spaces.apply(&event(1, tid, EventKind::Name { name: "server".into(), exec: false }));
    }
    spaces.apply(&event(1, 1, file(0x1000, 0x2000, 0, "/a")));
    for tid in [77, 2] {
        spaces.apply(&event(1, tid, EventKind::Exit));
        assert!(spaces.resolve(1, 0x1000).is_some(), "{tid}");
    }
    spaces.apply(&event(1, 1, EventKind::Exit));
    assert!(spaces.resolve(1, 0x1000).is_none());
}

#[test]
fn the_first_memory_a_little_way_behind_the_program_is_its_heap() {
    let mut spaces = AddressSpaces::default();
    let name = |spaces: &AddressSpaces, pid, address| path_and_page(spaces, pid, address).expect("mapped").0;
    spaces.apply(&exec(1));
    spaces.apply(&event(1, 1, file(0x10_000, 0x20_000, 0, "/program")));
    spaces.apply(&event(1, 1, anonymous(0x20_000, 0x22_000, WRITE)));
    spaces.apply(&event(1, 1, file(0x9000_0000, 0x9001_0000, 0, "/lib")));
    spaces.apply(&event(1, 1, anonymous(0x9003_0000, 0x9004_0000, WRITE)));
    assert_eq!([0x20_000, 0x9003_0000].map(|at| name(&spaces, 1, at)), ["[anon]", "[anon]"]);
    for (child, start, permissions, expected) in [
        (2, 0x23_000, WRITE, "[heap]"),
        (3, 0x22_000, WRITE, "[anon]"),
        (4, 0x1f_000, WRITE, "[anon]"),
        (5, 0x23_000, READ, "[anon]"),
        (6, 0x5000_0000, WRITE, "[anon]"),
    ] {
        spaces.apply(&fork(1, child));
        spaces.apply(&event(child, child, anonymous(start, start + 0x1000, permissions)));
        assert_eq!(name(&spaces, child, start), expected, "{start:x} {permissions:?}");
    }
    spaces.apply(&event(2, 2, anonymous(0x30_000, 0x31_000, WRITE)));
    assert_eq!(name(&spaces, 2, 0x30_000), "[anon]", "behind the heap");
}

#[test]
fn touched_pages_survive_growth_and_permission_but_not_a_new_mapping() {
    let mut spaces = AddressSpaces::default();
    spaces.apply(&event(1, 1, anonymous(0x10_000, 0x20_000, WRITE)));
    // A child has all that is touched by then.
    let mut is_copied_after = |change| {
        spaces.apply(&fork(1, 2));
        spaces.apply(&change);
        spaces.touch(1, 0x11_000)
    };
    assert!(!is_copied_after(event(1, 1, anonymous(0x10_000, 0x20_000, WRITE))));
    assert!(is_copied_after(event(1, 1, anonymous(0x10_000, 0x30_000, WRITE))), "the heap grew");
    assert!(is_copied_after(event(1, 1, anonymous(0x10_000, 0x12_000, READ))), "mprotect");
    assert!(!is_copied_after(event(1, 1, anonymous(0x10_000, 0x12_000, READ))), "unmapped and mapped again");
    assert!(!is_copied_after(event(1, 1, file(0x10_000, 0x12_000, 0, "/a"))), "a file instead");
}

#[test]
fn this_process_can_be_seeded() {
    let mut spaces = AddressSpaces::default();
    let pid = std::process::id();
    spaces.seed(pid).expect("our own");
    let code = this_process_can_be_seeded as fn() as usize as u64;
    let place = spaces.resolve(pid, code).expect("our own code is mapped");
    assert!(place.object.is_file() && place.page.is_some());
    // What of its memory it has touched is looked for only where somebody asks: that takes long.
    let local = 1;
    let address = std::ptr::from_ref(&local).addr() as u64;
    assert!(!spaces.touch(pid, address));
    let mut spaces = AddressSpaces::default();
    spaces.seed(pid).expect("our own");
    spaces.seed_touched(pid);
    assert_eq!(
        spaces.touch(pid, address),
        PageMap::of(pid).is_ok_and(|map| map.occupied_in(0..4096).is_ok())
    );
}

#[test]
fn of_too_many_files_the_later_ones_are_one_object() {
    let mut spaces = AddressSpaces::default();
    let mapped = |number: u64| Mapped {
        start: 0x10_000,
        end: 0x11_000,
        offset_bytes: 0,
        inode: Some((7, number)),
        permissions: READ,
        path: format!("/build/{number}.o").into(),
    };
    let files = OBJECTS_MAX as u64 + 10;
    for number in 0..files {
        spaces.apply(&event(1, 1, EventKind::Map(Box::new(mapped(number)))));
    }
    assert_eq!((spaces.objects().len(), spaces.unnamed_mappings()), (OBJECTS_MAX + 1, 10));
    assert_eq!(path_and_page(&spaces, 1, 0x10_000), Some((OTHER_FILES.into(), None)));
    // A file that was met before is known as before.
    spaces.apply(&event(1, 1, EventKind::Map(Box::new(mapped(3)))));
    assert_eq!(path_and_page(&spaces, 1, 0x10_000), Some(("/build/3.o".into(), Some(0))));
}

#[test]
fn protections_that_change_and_change_back_leave_one_mapping() {
    let mut mappings = Mappings::default();
    let part = |start, permissions| Mapping::new(start, ObjectId(0), 0x7000 + start, permissions);
    mappings.insert(0x1000..0x9000, part(0x1000, READ));
    for start in (0x1000..0x9000).step_by(0x1000) {
        mappings.insert(start..start + 0x1000, part(start, Permissions::WRITE));
        assert_eq!(mappings.at(start).map(|(_, mapping)| mapping.permissions), Some(Permissions::WRITE));
        mappings.insert(start..start + 0x1000, part(start, READ));
    }
    assert_eq!(mappings.iter().count(), 1);
    assert_eq!(mappings.at(0x5123).map(|(_, mapping)| mapping.offset_bytes(0x5123)), Some(0xc123));
    assert!(mappings.at(0x9000).is_none());
}
