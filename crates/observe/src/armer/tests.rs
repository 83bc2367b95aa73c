use std::io::{BufRead, BufReader, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use prepage_core::Permissions;
use prepage_sys::agent::Log;
use prepage_sys::mounts::{Mount, mounts};
use prepage_sys::proc_file;
use prepage_sys::process_stat::ProcessStat;
use prepage_testing::{Need, has, is_child, passes_as_child, this_test, wait_until};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};

use super::*;

/// A program that waits, and may be visited.
fn sleeping() -> Child {
    let child = Command::new("sleep").arg("100").spawn().unwrap();
    // While it is loaded no visit begins.
    reaches(child.id(), b'S');
    child
}

fn reaches(pid: u32, state: u8) {
    wait_until(|| ProcessStat::of(pid).unwrap().state == state, "it does not stop");
}

fn ended(mut child: Child) -> u32 {
    child.kill().unwrap();
    child.wait().unwrap();
    child.id()
}

/// What takes the visit's place where an agent sends it.
fn sent_by(pid: u32) -> FirstTouches {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let mut visit = Visit::begin(pid).unwrap();
        let ended = loop {
            match visit.end(|touches| touches) {
                Some(touches) => break touches,
                None => std::thread::sleep(PAUSE),
            }
        };
        // It may get no processor when it is to make the call.
        match ended {
            Err(VisitError::Busy) if Instant::now() < until => {}
            ended => return ended.unwrap(),
        }
    }
}

/// Visits made by `visit`, a few times until they have armed what they are to, as `are_armed` says: the visited process may get no processor in time.
fn visited(armer: &mut Armer, visit: impl Fn(&mut Armer), are_armed: impl Fn(&Armer) -> bool) {
    for _ in 0..5 {
        visit(armer);
        armer.end_all_visits();
        if are_armed(armer) {
            return;
        }
    }
}

fn mapping(path: &str) -> Mapped {
    Mapped {
        start: 0x7000_0000_0000,
        end: 0x7000_0000_0000 + 100 * 4096,
        offset_bytes: 2 * 4096,
        inode: Some((8 << 20 | 1, 7)),
        permissions: Permissions::READ,
        path: path.into(),
    }
}

/// An armer for an exact recording.
fn telling() -> Armer {
    let mut armer = Armer::new(None, Ok(()));
    armer.tell_times();
    armer.ranges.now().keep_pages_only();
    armer
}

/// The files of which it is told that pages could not be armed.
fn told(armer: &Armer) -> Vec<(Arc<str>, u64, u64)> {
    armer.ranges.now().take_unarmed().into_iter().collect()
}

#[test]
fn of_processes_that_were_never_armed_nothing_is_kept_for_long() {
    for may_be_armed in [Ok(()), Err("refused".into())] {
        let mut armer = Armer::new(None, may_be_armed);
        armer.executed(1, 1);
        armer.let_go(1);
        assert!(armer.ranges.now().forgets(1));
    }
}

/// Nobody takes them while a recording's disk is full.
#[test]
fn pages_that_many_processes_have_mapped_before_they_were_armed_are_kept_once() {
    let ranges = SharedRanges::default();
    ranges.now().keep_pages_only();
    let mapped = mapping("/library");
    for is_of_agent in [false, true].repeat(1000) {
        ranges.now().mapped_before(&mapped, &[(mapped.start, mapped.start + 4096)], is_of_agent);
    }
    let mut ranges = ranges.now();
    assert!(ranges.take_unarmed().into_iter().eq([("/library".into(), 2, 3)]));
    assert!(ranges.take_mapped_before().is_empty());
}

/// One that is frozen as its exec ends, or gets no processor.
#[test]
fn a_process_that_could_not_be_entered_at_its_exec_is_visited_behind_it() {
    for is_reported in [true, false] {
        let mut armer = Armer::new(None, Ok(()));
        if is_reported {
            armer.half_entered.insert(1);
        }
        armer.visit_again(1, VisitError::Busy, Visited::AtExec).unwrap();
        if !is_reported {
            armer.executed(1, 1);
        }
        assert!(armer.is_waiting() && armer.half_entered.is_empty(), "{is_reported}");
    }

    // Its next exec is another.
    let mut armer = Armer::new(None, Ok(()));
    armer.half_entered.insert(1);
    assert!(armer.visit_again(1, VisitError::Sandboxed, Visited::AtExec).is_err());
    armer.executed(1, 1);
    assert!(armer.is_waiting());
}

/// On a busy machine a program has ended by the time that perf's report of its last mappings is read.
#[test]
fn what_a_process_mapped_that_has_ended_is_told_as_not_armed() {
    if !has(Need::Linux(6, 7)) {
        return;
    }
    let whole = |path: &str| [(Arc::from(path), 2, 102)];
    let at_once = [mapping("/late"), mapping("/dev/zero")];

    // It was armed, and has ended since.
    let child = sleeping();
    let mut armer = telling();
    let sent = Sent::FirstTouches(sent_by(child.id()));
    armer.executed(child.id(), 1);
    assert!(armer.go_on(vec![sent]) && armer.arms(child.id()));
    armer.judge();
    told(&armer);
    let pid = ended(child);
    at_once.iter().for_each(|mapped| _ = armer.mapped(pid, mapped, 2));
    assert_eq!(told(&armer), whole("/late"));
    armer.ended(pid);
    assert!(!armer.arms(pid) && told(&armer).is_empty());

    // Its exec, its mappings, its end and word of its agent are read together.
    let child = sleeping();
    let mut armer = telling();
    let sent = Sent::FirstTouches(sent_by(child.id()));
    let pid = ended(child);
    armer.executed(pid, 1);
    at_once.iter().for_each(|mapped| _ = armer.mapped(pid, mapped, 2));
    armer.ended(pid);
    armer.go_on(vec![sent]);
    armer.judge();
    assert_eq!(told(&armer), whole("/late"));
    assert!(!armer.arms(pid), "its descriptor is let go");

    // Nothing came of it.
    let mut armer = telling();
    armer.executed(pid, 1);
    at_once.iter().for_each(|mapped| _ = armer.mapped(pid, mapped, 2));
    armer.go_on(Vec::new());
    armer.judge();
    armer.ended(pid);
    assert_eq!(told(&armer), whole("/late"));
}

/// Nobody saw them while they ran, and nobody tells of their end.
#[test]
fn of_processes_that_have_ended_by_the_time_of_their_word_no_descriptor_is_kept() {
    for knows_times in [false, true] {
        let child = sleeping();
        let mut armer = Armer::new(None, Ok(()));
        armer.knows_times = knows_times;
        let sent = Sent::FirstTouches(sent_by(child.id()));
        let pid = ended(child);
        assert!(armer.go_on(vec![sent]));
        armer.judge();
        assert!(!armer.arms(pid), "{knows_times}");
    }
}

/// A child of a fork loads a library or maps a file, as workers do.
#[test]
fn a_child_that_goes_on_with_its_parents_program_is_armed_by_word_of_its_own_agent_and_not_visited() {
    if !has(Need::Linux(6, 7)) {
        return;
    }
    for knows_times in [false, true] {
        let child = sleeping();
        let pid = child.id();
        let mut armer = Armer::new(None, Ok(()));
        (armer.knows_times, armer.visits_forked) = (knows_times, true);
        let before = now_ns();
        armer.forked(pid, 1, before);
        armer.go_on(vec![Sent::FirstTouches(sent_by(pid))]);
        armer.judge();
        std::thread::sleep(2 * FORKED_WAIT);
        armer.go_on(Vec::new());
        let is_visited = !armer.visits.is_empty();
        let mapped = mappings(pid).unwrap();
        ended(child);
        let of_library = mapped.into_iter().filter(|mapped| mapped.path.contains("/libc.so"));
        let starts: Vec<u64> = of_library.map(|mapped| mapped.start).collect();
        assert!(!starts.is_empty() && !is_visited, "{knows_times}");
        let mut ranges = armer.ranges.now();
        for start in starts {
            assert!(ranges.contains(pid, start, now_ns()), "{knows_times}");
            assert!(!ranges.contains(pid, start, before), "{knows_times}: it was not armed before");
        }
        let has_windows = !ranges.take_mapped_before().is_empty();
        assert_eq!(has_windows, knows_times, "its pages were there before, and page tables are looked at");
    }
}

/// A shell that runs, with what its agent sent, to [`replace`].
fn replaceable() -> (Child, FirstTouches) {
    // It waits in no call that a visit would disturb, and not for good where this test fails.
    let script = "ulimit -t 60; trap 'exec sleep 100' USR1; echo; while :; do :; done";
    let mut child = Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    let first = sent_by(child.id());
    assert!(!first.is_gone());
    (child, first)
}

/// Has the shell execute sleep(1) in its own place.
fn replace(child: &Child) {
    let comm = || proc_file::read_text(format!("/proc/{}/comm", child.id())).unwrap();
    kill_process(Pid::from_child(child), Signal::USR1).unwrap();
    wait_until(|| comm() == "sleep\n", "it executes nothing");
    reaches(child.id(), b'S');
}

/// A script executes another program in its own place before word of its own agent is read.
#[test]
fn word_of_a_program_that_is_over_is_not_taken_for_that_of_the_next() {
    if !has(Need::Linux(6, 7)) {
        return;
    }
    let (child, first) = replaceable();
    let pid = child.id();
    replace(&child);
    let mut armer = Armer::new(None, Ok(()));
    armer.tell_times();
    [1, 2].into_iter().for_each(|time_ns| armer.executed(pid, time_ns));
    let second = sent_by(pid);
    assert!(first.is_gone() && !second.is_gone());
    assert!(armer.go_on(vec![Sent::FirstTouches(first), Sent::FirstTouches(second)]));
    let armed = armer.unjudged[0].mapped.len();
    let kept = armer.spaces[&pid].touches.len();
    ended(child);
    assert!(armed > 0, "nothing of the next program is armed");
    assert_eq!(kept, 1, "a descriptor of what is gone is kept");
}

/// The kernel had no room to tell of its exec.
#[test]
fn a_program_of_whose_exec_nothing_is_told_is_armed() {
    if !has(Need::Linux(6, 7)) {
        return;
    }
    for has_agent in [true, false] {
        let (child, first) = replaceable();
        let pid = child.id();
        // How many mappings of the C library are armed, and how many there are.
        let are_armed = |armer: &Armer| {
            let mut mapped = mappings(pid).ok()?;
            mapped.retain(|mapped| mapped.path.contains("/libc.so"));
            let is_armed = |mapped: &&Mapped| {
                let map = PageMap::of(pid);
                map.is_ok_and(|map| map.is_armed(mapped.start..mapped.end).unwrap())
                    && armer.ranges.now().contains(pid, mapped.start, now_ns())
            };
            Some((mapped.iter().filter(is_armed).count(), mapped.len()))
        };
        let mut armer = telling();
        armer.executed(pid, 1);
        armer.go_on(vec![Sent::FirstTouches(first)]);
        armer.judge();
        replace(&child);
        if has_agent {
            assert!(armer.go_on(vec![Sent::FirstTouches(sent_by(pid))]));
            armer.judge();
        } else {
            let visit = |armer: &mut Armer| {
                armer.arm_untold();
                armer.go_on(Vec::new());
            };
            visited(&mut armer, visit, |armer| are_armed(armer).is_some_and(|(armed, all)| armed == all));
        }
        let (armed, all) = are_armed(&armer).unwrap();
        let kept = armer.spaces[&pid].touches.len();
        ended(child);
        assert!(armed > 0 && armed == all, "{armed} of {all}");
        assert_eq!(kept, 1, "a descriptor of what is gone is kept");
    }
}

#[test]
fn file_systems_of_a_process_that_has_ended_are_those_that_this_process_sees() {
    // No file system has it.
    const UNSEEN: u64 = 0xf_ffff;
    let pid = ended(sleeping());
    let mut armer = Armer::new(None, Ok(()));
    assert!(!armer.file_systems.is_in_memory(pid, UNSEEN));
    assert!(!armer.file_systems.in_memory.contains_key(&UNSEEN), "a process that runs may see it");
    for mount in mounts().unwrap().iter().filter(|mount| mount.device >> 20 == 0) {
        let is_in_memory = matches!(mount.kind.as_str(), "tmpfs" | "hugetlbfs");
        assert_eq!(armer.file_systems.is_in_memory(pid, mount.device), is_in_memory, "{mount:?}");
    }
    assert!(!armer.file_systems.is_in_memory(std::process::id(), UNSEEN));
    assert_eq!(armer.file_systems.in_memory.get(&UNSEEN), Some(&false));
}

/// To read ten thousand mounts takes tens of milliseconds.
#[test]
fn which_file_systems_are_in_memory_is_known_before_a_process_stands_still() {
    let child = sleeping();
    let mut armer = Armer::new(None, Ok(()));
    let before = mounts().unwrap();
    armer.visit(child.id(), Instant::now());
    let is_begun = !armer.visits.is_empty();
    armer.end_all_visits();
    ended(child);
    assert!(is_begun, "{:?}", armer.ranges.now().refusals());
    let is_known = |mount: &&Mount| armer.file_systems.in_memory.contains_key(&mount.device);
    // Other tests mount and unmount.
    let mounts = mounts().unwrap();
    let mut stayed = before.iter().filter(|mount| mounts.contains(mount));
    assert_eq!(stayed.find(|mount| !is_known(mount)), None);
}

/// Its mounts are read once it goes on.
#[test]
fn what_a_visited_process_has_mapped_of_file_systems_that_it_alone_sees_is_armed_but_what_is_in_memory() {
    if !has(Need::Root) || !has(Need::Mounts) || !has(Need::Linux(6, 7)) {
        return;
    }
    for (mount, is_armed) in [
        ("-t overlay none -o lowerdir=lower,upperdir=upper,workdir=work merged", true),
        ("-t tmpfs none merged", false),
    ] {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let script = format!(
            "mkdir lower upper work merged && mount {mount} && cp /bin/sleep merged/program && exec merged/program 100"
        );
        let mut command = Command::new("unshare");
        let child = command.args(["--mount", "sh", "-ec", &script]).current_dir(&directory).spawn().unwrap();
        let (pid, until) = (child.id(), Instant::now() + Duration::from_secs(60));
        let of_program = || {
            let of_program = |mapped: &Mapped| mapped.path.ends_with("/merged/program");
            mappings(pid).ok()?.into_iter().find(of_program)
        };
        while of_program().is_none() {
            assert!(ProcessStat::of(pid).unwrap().state != b'Z' && Instant::now() < until, "{mount}");
            std::thread::sleep(PAUSE);
        }
        reaches(pid, b'S');
        let mut armer = Armer::new(None, Ok(()));
        armer.ranges.now().executed(pid, 1);
        let mapped = of_program().unwrap();
        let (device, start) = (mapped.inode.unwrap().0, mapped.start);
        let is_visited = |armer: &Armer| {
            armer.file_systems.in_memory.contains_key(&device)
                && armer.ranges.now().contains(pid, start, now_ns()) == is_armed
        };
        visited(&mut armer, |armer| armer.visit(pid, Instant::now()), is_visited);
        ended(child);
        assert_eq!(armer.file_systems.in_memory.get(&mapped.inode.unwrap().0), Some(&!is_armed), "{mount}");
        assert_eq!(armer.ranges.now().contains(pid, mapped.start, now_ns()), is_armed, "{mount}");
        assert!(armer.unknown.is_empty());
    }
}

/// What no descriptor can come for is not kept for it.
#[test]
fn only_mappings_that_may_come_to_be_judged_are_kept() {
    let pid = ended(sleeping());
    let anonymous = Mapped { inode: None, ..mapping("[anon]") };
    let mut armer = Armer::new(None, Ok(()));
    armer.executed(pid, 1);
    armer.mapped(pid, &anonymous, 2);
    assert!(armer.mapped_at.is_empty());
    armer.mapped(pid, &mapping("/file"), 2);
    assert_eq!(armer.mapped_at[&pid].len(), 1);
    let mut armer = Armer::new(None, Err("not allowed".into()));
    armer.executed(pid, 1);
    armer.mapped(pid, &mapping("/file"), 2);
    assert!(armer.mapped_at.is_empty());
}

/// As a program of 32 bits, in a sandbox, or the child of an ordinary user's process.
#[test]
fn mappings_of_a_process_that_nobody_arms_are_told_at_once_and_not_kept() {
    let mut armer = telling();
    let [refused, child] = [0; 2].map(|_| ended(sleeping()));
    armer.executed(refused, 1);
    armer.mapped(refused, &mapping("/file"), 2);
    armer.go_on(Vec::new());
    armer.judge();
    for pid in [refused, child] {
        for time_ns in 3..100_003 {
            armer.mapped(pid, &mapping("/file"), time_ns);
        }
        assert!(armer.mapped_at.is_empty());
        assert_eq!(told(&armer), [(Arc::from("/file"), 2, 102)]);
    }
}

/// On a slow disk ld.so has opened all libraries only seconds after the exec, and the agent sends word then. In a network namespace it never can.
#[test]
fn a_process_whose_agent_sends_no_word_for_long_is_visited_and_late_word_is_judged_all_the_same() {
    if !has(Need::Linux(6, 7)) {
        return;
    }
    let (child, sent) = replaceable();
    let pid = child.id();
    let is_of_library = |mapped: &Mapped| mapped.path.contains("/libc.so");
    let mut armer = telling();
    armer.ranges.now().executed(pid, 1);
    armer.expected.insert(pid, Instant::now().checked_sub(2 * AGENT_WAIT));
    let of_library: Vec<Mapped> = mappings(pid).unwrap().into_iter().filter(is_of_library).collect();
    of_library.iter().for_each(|mapped| _ = armer.mapped(pid, mapped, 2));
    let is_armed = |armer: &Armer, time_ns| {
        of_library.iter().all(|mapped| armer.ranges.now().contains(pid, mapped.start, time_ns))
    };
    let visit = |armer: &mut Armer| {
        armer.expected.insert(pid, Instant::now().checked_sub(2 * AGENT_WAIT));
        armer.go_on(Vec::new());
    };
    visited(&mut armer, visit, |armer| is_armed(armer, now_ns()));
    armer.go_on(Vec::new());
    let by_visit = (is_armed(&armer, now_ns()), is_armed(&armer, 2), armer.visits.len());
    told(&armer);
    armer.go_on(vec![Sent::FirstTouches(sent)]);
    armer.unjudged[0].sent_ns = now_ns();
    armer.judge();
    ended(child);
    assert_eq!(by_visit, (true, false, 0), "{:?}", armer.ranges.now().refusals());
    assert!(!of_library.is_empty() && is_armed(&armer, 2));
    let told = told(&armer);
    assert!(!told.iter().any(|(path, ..)| *path == of_library[0].path), "{told:?}");
}

/// It was given the agent, which can send no word, and is stopped by somebody else.
#[test]
fn a_process_that_cannot_be_visited_when_word_of_its_agent_is_late_is_expected_no_longer() {
    let child = Command::new("sleep").arg("100").env("PREPAGE_AGENT", "nobody").spawn().unwrap();
    let pid = child.id();
    reaches(pid, b'S');
    kill_process(Pid::from_child(&child), Signal::STOP).unwrap();
    reaches(pid, b'T');
    let log = Log::create(1 << 20).unwrap();
    let mut armer = Armer::new(Some(Receiver::bind(&log).unwrap()), Ok(()));
    armer.executed(pid, 1);
    armer.go_on(Vec::new());
    let was_expected = armer.is_expected(pid);
    // Not for as long once more. This thread may get no processor for a while.
    for _ in 0..5 {
        armer.expected.insert(pid, Instant::now().checked_sub(AGENT_WAIT));
        let until = Instant::now() + AGENT_WAIT / 2;
        while armer.ranges.now().refusals().is_empty() && Instant::now() < until {
            armer.go_on(Vec::new());
            std::thread::sleep(PAUSE);
        }
        if !armer.ranges.now().refusals().is_empty() {
            break;
        }
    }
    let (refusals, is_expected) = (armer.ranges.now().refusals(), armer.is_expected(pid));
    ended(child);
    assert!(was_expected && !is_expected && !armer.is_waiting());
    assert!(refusals[0].contains(&VisitError::Busy.to_string()), "{refusals:?}");
}

#[test]
fn of_a_process_whose_agent_sends_no_word_a_bounded_number_of_mappings_is_kept() {
    let pid = ended(sleeping());
    let mut armer = telling();
    armer.expected.insert(pid, Some(Instant::now()));
    (0..KEPT_MAX).for_each(|_| _ = armer.mapped(pid, &mapping("/kept"), 2));
    assert!(told(&armer).is_empty());
    armer.mapped(pid, &mapping("/more"), 2);
    assert_eq!((armer.mapped_at[&pid].len(), told(&armer)), (KEPT_MAX, vec![("/more".into(), 2, 102)]));
    armer.expect_no_more();
    assert_eq!((armer.mapped_at.len(), told(&armer)), (0, vec![("/kept".into(), 2, 102)]));
}

/// Who learns a start does not ask for them.
#[test]
fn what_could_not_be_armed_is_kept_for_those_who_take_it() {
    let ranges = SharedRanges::default();
    ranges.now().unarmed(&mapping("/file"));
    assert!(ranges.now().take_unarmed().is_empty());
}

/// A child that was to be visited since it executed nothing executes a program, and cannot be disturbed at that moment.
#[test]
fn a_visit_that_fails_in_the_next_program_is_made_again_for_that() {
    let child = sleeping();
    let (pid, until) = (child.id(), Instant::now() + Duration::from_secs(60));
    kill_process(Pid::from_child(&child), Signal::STOP).unwrap();
    reaches(pid, b'T');
    let visit = Visit::begin(pid).unwrap();
    let since = Instant::now().checked_sub(2 * BUSY_MAX).unwrap();
    let forked = Forked { pid, parent: 0, time_ns: 1, since };
    let mut armer = Armer::new(None, Ok(()));
    armer.visits.push((visit, Visited::Forked(forked)));
    armer.executed(pid, now_ns());
    while armer.is_visiting() {
        assert!(Instant::now() < until, "the visit does not end");
        std::thread::sleep(PAUSE);
        armer.end_visits();
    }
    let is_waiting = armer.loading.iter().any(|(loading, _)| *loading == pid);
    ended(child);
    assert!(is_waiting, "it is given up: {:?}", armer.ranges.now().refusals());
}

/// Who has connected waits on, and so the receiver stays readable: an observer at its limit of open files turned round and round.
#[test]
fn who_cannot_take_a_connection_does_not_wait_for_it_for_a_while() {
    if !is_child(&this_test()) {
        return passes_as_child(&[]);
    }
    let log = Log::create(1 << 20).unwrap();
    let mut armer = Armer::new(Some(Receiver::bind(&log).unwrap()), Ok(()));
    let variable = log.variable(false);
    let token = variable.split(':').nth(3).unwrap();
    let name = SocketAddr::from_abstract_name(format!("prepage-{token}-end")).unwrap();
    let mut sender = UnixStream::connect_addr(&name).unwrap();
    sender.write_all(&[0; 8]).unwrap();
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(3), ..limit }).unwrap();
    assert!(armer.receive().is_empty() && armer.refused_at.is_some());
    armer.refused_at = Some(Instant::now() + Duration::from_secs(60));
    assert!(armer.descriptor().is_none());
    assert!(!armer.is_sent_something(), "pages would wait for it for good");
    armer.refused_at = Instant::now().checked_sub(DEAF);
    assert!(armer.descriptor().is_some() && armer.is_sent_something());
    setrlimit(Resource::Nofile, limit).unwrap();
    assert!(matches!(armer.receive()[..], [Sent::Ending(_)]));
}

/// Where another file lay before, which was armed.
#[test]
fn what_is_gone_before_it_could_be_armed_is_not_judged_by_what_lay_there_before() {
    let child = sleeping();
    let pid = child.id();
    let sent = Sent::FirstTouches(sent_by(pid));
    let mut armer = telling();
    armer.executed(pid, 1);
    armer.go_on(vec![sent]);
    armer.judge();
    let before = mapping("/before");
    let part = |pages: std::ops::Range<u64>| {
        let at = |page| before.start + page * 4096;
        Mapped { start: at(pages.start), end: at(pages.end), ..mapping("/after") }
    };
    let contained = |armer: &Armer| {
        let ranges = armer.ranges.now();
        let is_armed = |page: &u64| ranges.contains(pid, before.start + page * 4096, now_ns());
        (0..100).filter(is_armed).collect::<Vec<u64>>()
    };
    armer.ranges.now().armed(pid, &before, Since::Now);
    // The process has nothing there.
    armer.mapped(pid, &part(0..10), 2);
    armer.mapped(pid, &part(50..60), 2);
    let expected: Vec<u64> = (10..50).chain(60..100).collect();
    let found = contained(&armer);
    // What is armed meanwhile takes no more than its place.
    armer.ranges.now().armed(pid, &part(70..80), Since::Mapped(u64::MAX));
    let later = contained(&armer);
    ended(child);
    assert_eq!(found, expected);
    assert!(later.into_iter().eq(expected.into_iter().filter(|page| !(70..80).contains(page))));
}
