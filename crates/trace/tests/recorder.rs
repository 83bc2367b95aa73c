//! The recorder on the real kernel: what it records is what getrusage counts.

use std::hint::black_box;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;
use std::{env, fs};

use prepage_core::{Fault, FaultClass, Missing};
use prepage_sys::maps::parse_maps_line;
use prepage_sys::spawn::HowEnded;
use prepage_sys::sync::Anyway;
use prepage_testing::{Need, child_command, copy_program, has, is_child, skip, unless_refused};
use prepage_trace::{PerfError, RecordError, RecordOptions, Recorded, Recorder, Scope};

mod support;

use support::{FAULTS, MACHINE, is_recording_refused, is_refused, record_for_a_while, recorded_in_time};

/// Set for the copy of this program that [`no_record_is_lost_at_full_speed`] records.
const TOUCH: &str = "PREPAGE_TEST_TOUCH";
const TOUCH_ROUNDS: usize = 8;
const TOUCH_BYTES: usize = 64 << 20;

fn start(scope: &Scope) -> Result<Recorder, RecordError> {
    Recorder::start(scope, &RecordOptions::default())
}

/// Records a command. `None`, counted as a skip, where this user may record nothing.
fn record(command: &[&str]) -> Option<(Vec<Fault>, Recorded)> {
    let _machine = MACHINE.lock().anyway();
    let command: Vec<_> = command.iter().map(Into::into).collect();
    let mut recorder = unless_refused(start(&Scope::Command(command)), FAULTS, is_recording_refused)?;
    let mut faults = Vec::new();
    while recorder.next_faults(&mut faults).expect("faults") {}
    let recorded = recorder.finish();
    assert!(!matches!(recorded.how_ended, Some(HowEnded::NotExecuted(_))), "{:?}", recorded.how_ended);
    Some((faults, recorded))
}

/// Every fault that getrusage counts is recorded, or lost, or was taken inside the kernel: about one an exec.
fn assert_complete(faults: &[Fault], recorded: &Recorded) {
    let facts = &recorded.facts;
    let ended = faults.iter().filter(|fault| fault.class != FaultClass::Failed).count() as u64;
    let (minor, major) = facts.counted.expect("counts");
    assert!(ended <= minor + major, "{ended} recorded: {facts:?}");
    assert!(minor + major - ended <= facts.lost, "{ended} recorded: {facts:?}");
    let disk = faults.iter().filter(|fault| fault.class == FaultClass::Disk).count() as u64;
    assert!(facts.lost > 0 || disk == major, "{disk} from disk: {facts:?}");
    let inside = facts.inside_kernel().expect("both counts");
    assert!(inside >= 0, "{facts:?}");
    if !facts.system_calls_hidden {
        assert!(inside as u64 <= 4 * facts.execs, "{facts:?}");
    }
    assert!(!faults.is_empty(), "{facts:?}");
}

fn loses_nothing(_: &[Fault], recorded: &Recorded) -> bool {
    recorded.facts.lost == 0
}

fn assert_command_is_complete(command: &[&str]) {
    if let Some((faults, recorded)) = record(command) {
        assert!(matches!(recorded.how_ended, Some(HowEnded::Exited(0))), "{:?}", recorded.how_ended);
        assert_complete(&faults, &recorded);
    }
}

#[test]
fn a_compiler_and_its_children() {
    if !has(Need::Tool("gcc".into())) {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let source = dir.path().join("a.c");
    fs::write(&source, "#include <stdio.h>\nint main(void) { return printf(\"x\"); }\n").expect("written");
    let source = source.to_str().expect("plain");
    assert_command_is_complete(&["gcc", "-O2", "-S", source, "-o", "/dev/null"]);
}

#[test]
fn the_heap_of_a_small_program_has_its_name() {
    let dir = tempfile::tempdir().expect("a directory");
    let maps = dir.path().join("maps");
    let script = format!("exec cat /proc/self/maps > {}", maps.display());
    let Some((faults, recorded)) = record(&["sh", "-c", &script]) else { return };
    let maps = fs::read_to_string(maps).expect("written");
    let heap = maps.lines().filter_map(parse_maps_line).find(|mapped| &*mapped.path == "[heap]");
    let heap = heap.unwrap_or_else(|| panic!("cat has no heap: {maps}"));
    let of_cat = |fault: &&Fault| recorded.threads[fault.thread.0 as usize].comm == "cat";
    let path = |fault: &Fault| fault.object.map(|id| recorded.objects[id.0 as usize].path.as_str());
    let in_heap = |fault: &&Fault| (heap.start..heap.end).contains(&fault.address);
    let paths: Vec<_> = faults.iter().filter(of_cat).filter(in_heap).map(path).collect();
    assert!(!paths.is_empty() && paths.iter().all(|path| *path == Some("[heap]")), "{paths:?}");
    let mut bss_or_data = faults.iter().filter(of_cat).filter(|fault| fault.address < heap.start).map(path);
    assert!(bss_or_data.all(|path| path != Some("[heap]")), "{maps}");
}

#[test]
fn an_interpreter() {
    if !has(Need::Tool("python3".into())) {
        return;
    }
    assert_command_is_complete(&["python3", "-c", "import json, decimal"]);
}

#[test]
fn a_program_of_many_threads() {
    if !has(Need::Tool("java".into())) {
        return;
    }
    assert_command_is_complete(&["java", "-version"]);
}

#[test]
fn a_storm_of_forks_and_execs() {
    let script = "i=0; while [ $i -lt 10000 ]; do /bin/true; i=$((i + 1)); done";
    let recorded = recorded_in_time(loses_nothing, || record(&["sh", "-c", script]));
    let Some((faults, recorded)) = recorded else { return };
    assert_complete(&faults, &recorded);
    assert_eq!((recorded.facts.execs, recorded.facts.lost), (10_001, 0));
    let paths: Vec<_> = recorded.objects.iter().map(|object| object.path.as_str()).collect();
    assert!(paths.iter().any(|path| path.ends_with("/true") || path.contains("coreutils")), "{paths:?}");
}

#[test]
fn a_command_killed_and_one_that_leaves_a_child_behind() {
    let Some((_, recorded)) = record(&["sh", "-c", "kill -9 $$"]) else { return };
    assert!(matches!(recorded.how_ended, Some(HowEnded::Killed(9))), "{:?}", recorded.how_ended);
    let Some((_, recorded)) = record(&["sh", "-c", "sleep 20 > /dev/null 2>&1 &"]) else { return };
    assert_eq!((recorded.facts.survivors, recorded.facts.ended_early), (1, false));
}

/// A copy of true(1) that takes over its group, so that the kernel ends the observation of who executes it, even of root.
fn with_foreign_group(dir: &Path) -> PathBuf {
    let program = dir.join("of-daemons");
    copy_program("/bin/true", &program);
    chown(&program, None, Some(1)).expect("root may");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o2755)).expect("root may");
    program
}

#[test]
fn programs_that_may_not_be_observed_are_counted() {
    if !has(Need::Root) {
        return;
    }
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let program = with_foreign_group(dir.path());
    let script = format!("{0}; /bin/true; {0}; exec {0}", program.display());
    let Some((_, recorded)) = record(&["sh", "-c", &script]) else { return };
    assert_eq!(recorded.facts.missing(), [Missing::UnobservedPrograms { programs: 3 }]);
}

#[test]
fn of_the_whole_machine_every_program_is_seen() {
    if !has(Need::Root) {
        return;
    }
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let program = with_foreign_group(dir.path());
    let _machine = MACHINE.lock().anyway();
    // Faults come in the order in which they ended: once the second program's come, all of the first one's have.
    let marker = dir.path().join("comes-after");
    copy_program("/bin/true", &marker);
    let options = RecordOptions { duration: Some(Duration::from_secs(60)), ..RecordOptions::default() };
    let started = unless_refused(Recorder::start(&Scope::System, &options), FAULTS, is_recording_refused);
    let Some(mut recorder) = started else { return };
    for program in [&program, &marker] {
        assert!(Command::new(program).status().expect("it runs").success());
    }
    let mut faults: Vec<Fault> = Vec::new();
    let mut goes_on = true;
    while goes_on {
        let before = faults.len();
        goes_on = recorder.next_faults(&mut faults).expect("faults");
        let threads = recorder.tables().threads;
        goes_on &=
            !faults[before..].iter().any(|fault| threads[fault.thread.0 as usize].comm == "comes-after");
    }
    let recorded = recorder.finish();
    let is_of_program = |fault: &&Fault| recorded.threads[fault.thread.0 as usize].comm == "of-daemons";
    let of_program: Vec<&Fault> = faults.iter().filter(is_of_program).collect();
    let placed = of_program.iter().filter(|fault| fault.object.is_some()).count();
    assert!(placed * 2 > of_program.len(), "{placed} of {}", of_program.len());
    assert_eq!(recorded.facts.unobserved_programs, 0);
}

/// Touches memory, waits for a line, and lets a child write to the memory.
const WRITES_AFTER_FORK: &str = "
import mmap, os, sys
memory = mmap.mmap(-1, 64 * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
def write():
    for at in range(0, len(memory), 4096): memory[at] = 1
write()
print(flush=True)
sys.stdin.readline()
if os.fork() == 0:
    write()
    os._exit(0)
os.wait()
";

#[test]
fn memory_touched_before_the_recording_is_copied_not_new() {
    if !has(Need::Tool("python3".into())) {
        return;
    }
    let mut python = Command::new("python3");
    python.args(["-c", WRITES_AFTER_FORK]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut python = python.spawn().expect("python3 runs");
    python.stdout.take().expect("a pipe").read_exact(&mut [0]).expect("a line");
    let _machine = MACHINE.lock().anyway();
    let scope = Scope::Processes(vec![python.id()]);
    let recorder = unless_refused(start(&scope), FAULTS, is_recording_refused);
    drop(python.stdin.take());
    let mut faults = Vec::new();
    if let Some(mut recorder) = recorder {
        while recorder.next_faults(&mut faults).expect("faults") {}
        let threads = recorder.finish().threads;
        let of_child = |fault: &&Fault| threads[fault.thread.0 as usize].pid != python.id();
        let copied = |fault: &&Fault| of_child(fault) && fault.class == FaultClass::CopyOnWrite;
        assert!(faults.iter().filter(copied).count() >= 64, "{faults:?}");
    }
    assert!(python.wait().expect("an end").success());
}

/// Since Linux 6.3 the beginnings of the faults that perf observes, too, have the time of perf's clock.
#[test]
fn a_perf_that_observes_the_same_program_makes_no_fault_fail_and_no_cost_wrong() {
    if !has(Need::Tool("perf".into())) {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("perf.data");
    let data = data.to_str().expect("plain");
    let dd = ["dd", "if=/dev/zero", "of=/dev/null", "bs=8M", "count=1"];
    let perf = ["perf", "record", "-q", "-g", "-e", "page-faults", "-c", "1", "-o", data, "--"];
    let _machine = MACHINE.lock().anyway();
    let scope = Scope::Command([&perf[..], &dd].concat().into_iter().map(Into::into).collect());
    let options = RecordOptions { stacks: true, ..RecordOptions::default() };
    let started = unless_refused(Recorder::start(&scope, &options), FAULTS, is_recording_refused);
    let Some(mut recorder) = started else { return };
    let mut faults = Vec::new();
    while recorder.next_faults(&mut faults).expect("faults") {}
    let recorded = recorder.finish();
    assert!(matches!(recorded.how_ended, Some(HowEnded::Exited(0))), "{:?}", recorded.how_ended);
    assert_complete(&faults, &recorded);
    let of_dd = |fault: &&Fault| recorded.threads[fault.thread.0 as usize].comm == "dd";
    let of_dd: Vec<&Fault> = faults.iter().filter(of_dd).collect();
    assert!(of_dd.len() >= 100, "{}", of_dd.len());
    assert!(of_dd.iter().all(|fault| fault.class != FaultClass::Failed));
    let facts = &recorded.facts;
    let timed: Vec<u64> = of_dd.iter().filter_map(|fault| fault.cost_ns).collect();
    // Two clocks may be the same: then all is known.
    let borrowed = facts.borrowed_times;
    assert!(borrowed > 0 || timed.len() == of_dd.len(), "{} of {}: {facts:?}", timed.len(), of_dd.len());
    assert_eq!(facts.missing().contains(&Missing::BorrowedTimes { times: borrowed }), borrowed > 0);
    assert!(timed.iter().sum::<u64>() < facts.duration_ns, "{facts:?}");
    let is_kernels = |place: &prepage_core::CodePlace| place.object.is_none() && place.offset >> 63 == 1;
    let calls = recorded.stacks.iter().flat_map(|stack| &stack.places);
    assert_eq!(calls.filter(|place| is_kernels(place)).count(), 0);
}

/// Touches memory a hundred times that may not be touched, leaves the signal handler by a jump each time, and touches the same address by the same
/// instruction 0.2 s later, when it may.
const JUMPS_OUT: &str = r"
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>
static sigjmp_buf out;
static void handler(int signal) { siglongjmp(out, 1); }
static void __attribute__((noinline)) touch(volatile char *page) { *page = 1; }
int main(int argc, char **argv) {
    int flags = MAP_PRIVATE | MAP_FIXED | (argc > 1 ? 0 : MAP_ANONYMOUS);
    int file = argc > 1 ? open(argv[1], O_RDONLY) : -1;
    char *page = mmap((void *)0x7e0000000000, 4096, PROT_NONE, flags, file, 0);
    signal(SIGSEGV, handler);
    for (volatile int i = 0; i < 100; i++)
        if (sigsetjmp(out, 1) == 0) touch(page);
    usleep(200000);
    mprotect(page, 4096, PROT_READ | PROT_WRITE);
    touch(page);
    return 0;
}";

#[test]
fn what_a_program_does_that_jumps_out_of_a_signal_handler_is_no_part_of_a_fault() {
    let dir = tempfile::tempdir().expect("a directory");
    let (source, program) = (dir.path().join("a.c"), dir.path().join("a"));
    fs::write(&source, JUMPS_OUT).expect("written");
    if !has(Need::Tool("gcc".into())) {
        return;
    }
    let built = Command::new("gcc").arg("-o").args([&program, &source]).status();
    assert!(built.expect("gcc runs").success());
    let program = program.to_str().expect("plain");
    // In anonymous memory and in a mapping of a file.
    for (command, class) in
        [(&[program][..], FaultClass::ZeroFill), (&[program, program], FaultClass::CopyOnWrite)]
    {
        let is_of_page = |fault: &&Fault| fault.address == 0x7e00_0000_0000;
        let is_short = |faults: &[Fault], _: &Recorded| {
            let last = faults.iter().rfind(is_of_page);
            last.is_none_or(|last| last.cost_ns.is_some_and(|cost_ns| cost_ns < 100_000_000))
        };
        let Some((faults, recorded)) = recorded_in_time(is_short, || record(command)) else { return };
        assert!(matches!(recorded.how_ended, Some(HowEnded::Exited(0))), "{:?}", recorded.how_ended);
        let of_page: Vec<&Fault> = faults.iter().filter(is_of_page).collect();
        let (last, failed) = of_page.split_last().expect("faults");
        assert_eq!((failed.len(), last.class), (100, class), "{of_page:?}");
        assert!(failed.iter().all(|fault| (fault.class, fault.cost_ns) == (FaultClass::Failed, None)));
        assert!(last.cost_ns.is_some_and(|cost_ns| cost_ns < 100_000_000), "{of_page:?}");
    }
}

#[test]
fn no_record_is_lost_at_full_speed() {
    let this = env::current_exe().expect("this program");
    let this = this.to_str().expect("plain");
    let touch = format!("{TOUCH}=1");
    let command = ["env", &touch, this, "--exact", "touched_by_two_threads", "--test-threads=1"];
    let Some((faults, recorded)) = recorded_in_time(loses_nothing, || record(&command)) else { return };
    let seconds = recorded.facts.duration_ns as f64 / 1e9;
    println!("{:.0} faults a second, {} lost", faults.len() as f64 / seconds, recorded.facts.lost);
    assert_complete(&faults, &recorded);
    assert_eq!(recorded.facts.lost, 0, "{:?}", recorded.facts);
    // Huge pages make few faults of many pages.
    if !has(Need::SmallPages) {
        return;
    }
    assert!(faults.len() >= 2 * TOUCH_ROUNDS * TOUCH_BYTES / 4096);
}

/// No test by itself: the program that [`no_record_is_lost_at_full_speed`] records.
#[test]
fn touched_by_two_threads() {
    if env::var_os(TOUCH).is_none() {
        return;
    }
    let touch = || {
        for _ in 0..TOUCH_ROUNDS {
            let mut memory = vec![0u8; TOUCH_BYTES];
            memory.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
            black_box(&memory);
        }
    };
    thread::scope(|scope| {
        scope.spawn(touch);
        scope.spawn(touch);
    });
}

#[test]
fn what_cannot_be_executed_says_why() {
    let command = vec!["/nonexistent/program".into()];
    let started = unless_refused(start(&Scope::Command(command)), FAULTS, is_recording_refused);
    let Some(mut recorder) = started else { return };
    while recorder.next_faults(&mut Vec::new()).expect("no faults") {}
    let Some(HowEnded::NotExecuted(error)) = recorder.finish().how_ended else {
        panic!("it was executed");
    };
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
}

/// Pages that each of its threads touches at once.
const BURST: usize = 64;
/// Faults, of some 27,000, that may be seen in part: the events of a running process are switched on and off one after the
/// other, while both its threads fault on.
const AT_EDGES: u64 = 16 * BURST as u64;

/// How many of `faults` were seen to end. None failed, in programs whose touches all succeed.
#[track_caller]
fn ended(faults: &[Fault]) -> u64 {
    let of_class = |class| faults.iter().filter(|fault| fault.class == class).count();
    assert_eq!(of_class(FaultClass::Failed), 0);
    (faults.len() - of_class(FaultClass::Unseen)) as u64
}

/// No test by itself: a process of two threads that fault in memory of their own, named as threads of tests are.
#[test]
fn touched_for_ever() {
    if !is_child("touched_for_ever") {
        return;
    }
    let touch = || {
        loop {
            prepage_sys::fresh_pages::touch(BURST).expect("memory");
            thread::sleep(Duration::from_millis(1));
        }
    };
    thread::Builder::new().name("second".into()).spawn(touch).expect("a thread");
    touch();
}

/// That process, while `look` looks at it.
fn beside_a_running_process(look: impl FnOnce(u32)) {
    let mut child =
        child_command("touched_for_ever", &[]).stdout(std::process::Stdio::null()).spawn().expect("started");
    let is_second = |task: std::io::Result<std::fs::DirEntry>| {
        let comm = task.and_then(|task| std::fs::read_to_string(task.path().join("comm")));
        comm.is_ok_and(|comm| comm == "second\n")
    };
    let tasks = format!("/proc/{}/task", child.id());
    let runs = || std::fs::read_dir(&tasks).expect("it runs").any(is_second);
    (0..12_000).take_while(|_| !runs()).for_each(|_| thread::sleep(Duration::from_millis(5)));
    // It runs for ever, also when what is looked for is not found.
    let looked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| look(child.id())));
    let _ = child.kill();
    child.wait().expect("an end");
    if let Err(panic) = looked {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn a_running_process_is_recorded_with_all_its_threads() {
    beside_a_running_process(|pid| {
        let options = RecordOptions { stacks: true, ..RecordOptions::default() };
        let is_seen = |faults: &[Fault], recorded: &Recorded| {
            let begun_unseen = faults.iter().filter(|fault| fault.stack.is_none()).count() as u64;
            recorded.facts.lost == 0 && begun_unseen <= AT_EDGES && recorded.threads.len() >= 2
        };
        let record = || record_for_a_while(&Scope::Processes(vec![pid]), &options);
        let Some((faults, recorded)) = recorded_in_time(is_seen, record) else { return };
        let names: Vec<_> =
            recorded.threads.iter().map(|thread| (thread.pid, thread.comm.as_str())).collect();
        assert!(names.contains(&(pid, "second")) && names.len() >= 2, "{names:?}");
        let (minor, major) = recorded.facts.counted.expect("counts");
        assert_eq!((recorded.facts.lost, ended(&faults)), (0, minor + major));
        let begun_unseen = faults.iter().filter(|fault| fault.stack.is_none());
        assert!(begun_unseen.clone().all(|fault| fault.cost_ns.is_none()));
        assert!(begun_unseen.count() as u64 <= AT_EDGES);
        // What it had mapped before is known: this program's code.
        let in_this_program = faults.iter().filter(|fault| {
            let code = fault.code.map(|id| &recorded.objects[id.0 as usize]);
            code.is_some_and(|code| code.is_file() && code.build_id.is_some())
        });
        assert!(in_this_program.count() * 2 > faults.len());
        for (fault, stack) in faults.iter().filter_map(|fault| Some((fault, fault.stack?))) {
            let stack = &recorded.stacks[stack.index()];
            assert!(fault.ip >> 63 == 1 || stack.places.first() == Some(&fault.code_place()), "{stack:?}");
        }
        assert_eq!(recorded.facts.pids, [pid]);
    });
}

#[test]
fn children_forked_while_their_parent_is_attached_to_have_no_failed_faults() {
    for _ in 0..5 {
        let record = || {
            let mut shell =
                Command::new("sh").args(["-c", "while :; do /bin/true; done"]).spawn().expect("started");
            let scope = Scope::Processes(vec![shell.id()]);
            let recorded = record_for_a_while(&scope, &RecordOptions::default());
            shell.kill().expect("it runs");
            shell.wait().expect("an end");
            recorded
        };
        let is_seen = |faults: &[Fault], recorded: &Recorded| !faults.is_empty() && recorded.facts.lost == 0;
        let recorded = recorded_in_time(is_seen, record);
        let Some((faults, Recorded { facts, .. })) = recorded else { return };
        let (minor, major) = facts.counted.expect("counts");
        // Linux 6.18 may leave the event of a child that is forked while it is disabled enabled, and counting.
        assert!(ended(&faults) > 0 && ended(&faults) <= minor + major && facts.lost == 0, "{facts:?}");
    }
}

#[test]
fn a_process_named_twice_is_recorded_once() {
    beside_a_running_process(|pid| {
        let scope = Scope::Processes(vec![pid, pid]);
        let is_seen = |faults: &[Fault], recorded: &Recorded| {
            let costless = faults.iter().filter(|fault| fault.cost_ns.is_none()).count() as u64;
            recorded.facts.lost == 0 && costless <= AT_EDGES
        };
        let record = || record_for_a_while(&scope, &RecordOptions::default());
        let Some((faults, recorded)) = recorded_in_time(is_seen, record) else { return };
        let (minor, major) = recorded.facts.counted.expect("counts");
        assert_eq!((recorded.facts.lost, ended(&faults)), (0, minor + major));
        assert!(faults.iter().filter(|fault| fault.cost_ns.is_none()).count() as u64 <= AT_EDGES);
    });
}

#[test]
fn the_whole_machine_is_recorded_without_its_recorder() {
    if !has(Need::Root) {
        return;
    }
    beside_a_running_process(|pid| {
        let is_seen =
            |_: &[Fault], recorded: &Recorded| recorded.threads.iter().any(|thread| thread.pid == pid);
        let record = || record_for_a_while(&Scope::System, &RecordOptions::default());
        let Some((faults, recorded)) = recorded_in_time(is_seen, record) else { return };
        let pids: Vec<u32> = recorded.threads.iter().map(|thread| thread.pid).collect();
        assert!(pids.contains(&pid) && !pids.contains(&std::process::id()), "{pids:?}");
        assert!(recorded.facts.system_wide && !faults.is_empty());
        let failed = |fault: &&Fault| {
            let thread = &recorded.threads[fault.thread.0 as usize];
            thread.pid == pid && fault.class == FaultClass::Failed
        };
        assert_eq!(faults.iter().filter(failed).count(), 0);
    });
}

#[test]
fn filters_keep_what_they_name_and_count_the_rest() {
    beside_a_running_process(|pid| {
        let mut options = RecordOptions::default();
        options.filters.comm("second");
        let is_seen = |faults: &[Fault], recorded: &Recorded| !faults.is_empty() && recorded.facts.lost == 0;
        let record = || record_for_a_while(&Scope::Processes(vec![pid]), &options);
        let Some((faults, recorded)) = recorded_in_time(is_seen, record) else { return };
        let facts = &recorded.facts;
        assert!(!faults.is_empty() && recorded.threads.iter().all(|thread| thread.comm == "second"));
        let (minor, major) = facts.counted.expect("counts");
        assert!(facts.filtered_out > 0 && facts.lost == 0, "{facts:?}");
        // What the filter leaves out may include a fault whose end was not seen.
        let ended = ended(&faults);
        assert!((ended + facts.filtered_out).abs_diff(minor + major) <= 2, "{ended} ended, {facts:?}");
        assert_eq!(facts.filters, ["--comm second"]);
    });
}

/// No test by itself: a process that touches new pages once its standard input ends, and keeps them all.
#[test]
fn touched_and_kept() {
    if !is_child("touched_and_kept") {
        return;
    }
    std::io::stdin().read_to_end(&mut Vec::new()).expect("a pipe");
    for round in 0.. {
        if round < 500 {
            Box::leak(vec![1u8; BURST * 4096].into_boxed_slice());
        }
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn frames_are_those_of_the_pages() {
    if !has(Need::Root) {
        return;
    }
    let mut child = child_command("touched_and_kept", &[])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("started");
    let _machine = MACHINE.lock().anyway();
    let duration = Some(Duration::from_secs(60));
    let options = RecordOptions { frames: true, duration, ..RecordOptions::default() };
    let started = Recorder::start(&Scope::Processes(vec![child.id()]), &options);
    let recorder = unless_refused(started, FAULTS, is_recording_refused);
    drop(child.stdin.take());
    let recorded = recorder.map(|mut recorder| {
        let mut faults = Vec::new();
        while faults.len() < 60 * BURST && recorder.next_faults(&mut faults).expect("faults") {}
        (faults, recorder.finish())
    });
    // Where its pages are, as proc_pid_pagemap(5) says.
    let pagemap = std::fs::File::open(format!("/proc/{}/pagemap", child.id())).expect("root may");
    let frame_of = |address: u64| {
        let mut entry = [0; 8];
        pagemap.read_exact_at(&mut entry, address / 4096 * 8).ok()?;
        let entry = u64::from_le_bytes(entry);
        (entry >> 63 == 1).then_some(entry & ((1 << 55) - 1))
    };
    let found: Vec<(u64, u64)> = recorded.as_ref().map_or(Vec::new(), |(faults, _)| {
        let of_faults =
            faults.iter().filter_map(|fault| Some((fault.frame?.get(), frame_of(fault.address)?)));
        of_faults.collect()
    });
    let _ = child.kill();
    child.wait().expect("an end");
    let Some((faults, recorded)) = recorded else { return };
    // The recorder wakes up within the faults, which no measurement beforehand tells.
    assert_eq!((recorded.facts.probe_cost_ns, recorded.facts.probe_total_ns), (None, None));
    let right = found.iter().filter(|(frame, now)| frame == now).count();
    // The kernel may have moved a page since. The frame of another page is never right: each page has its own.
    assert!(
        found.len() > 500 && right * 100 >= found.len() * 98,
        "{right} of {} of {}",
        found.len(),
        faults.len()
    );
    let mut frames: Vec<u64> = found.iter().map(|(frame, _)| *frame).collect();
    frames.sort_unstable();
    frames.dedup();
    assert!(frames.len() * 10 > found.len() * 9, "{} frames of {} faults", frames.len(), found.len());
}

#[test]
fn a_process_that_ends_meanwhile_ends_its_recording() {
    let _machine = MACHINE.lock().anyway();
    let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("started");
    let options = RecordOptions { duration: Some(Duration::from_secs(60)), ..RecordOptions::default() };
    let pid = child.id();
    let started = Recorder::start(&Scope::Processes(vec![pid]), &options);
    if let Some(mut recorder) = unless_refused(started, FAULTS, is_recording_refused) {
        drop(child.stdin.take());
        while recorder.next_faults(&mut Vec::new()).expect("faults") {}
        let recorded = recorder.finish();
        assert!(recorded.facts.duration_ns < 30_000_000_000, "{:?}", recorded.facts);
        assert!(recorded.how_ended.is_none() && recorded.left_running.is_none());
    }
    child.wait().expect("an end");
    match start(&Scope::Processes(vec![std::process::id(), pid])) {
        Err(RecordError::Perf(PerfError::NoProcess { pid: named })) => assert_eq!(named, pid),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_thread_is_told_from_a_process() {
    let (tell, told) = std::sync::mpsc::channel();
    let (stay, stayed) = std::sync::mpsc::channel::<()>();
    let other = thread::spawn(move || {
        tell.send(rustix::thread::gettid().as_raw_pid() as u32).expect("awaited");
        let _ = stayed.recv();
    });
    let tid = told.recv().expect("told");
    let Err(error) = start(&Scope::Processes(vec![tid])) else { panic!("a thread is recorded") };
    drop(stay);
    other.join().expect("an end");
    if is_recording_refused(&error) {
        return skip(FAULTS, error);
    }
    assert_eq!(error.to_string(), format!("{tid} is a thread of process {}", std::process::id()));
    assert!(error.remedy().is_some_and(|remedy| remedy.contains("-p")), "{error:?}");
}

#[test]
fn a_command_outlives_a_recording_of_limited_duration() {
    let dir = tempfile::tempdir().expect("a directory");
    let pipe = dir.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).expect("made");
    // Until nobody holds it any more.
    let held = fs::File::options().read(true).write(true).open(&pipe).expect("opened");
    let script = format!("timeout 60 cat {}; exit 7", pipe.display());
    let command = ["sh", "-c", &script].map(Into::into).to_vec();
    let options = RecordOptions { duration: Some(Duration::from_millis(200)), ..RecordOptions::default() };
    let Some((_, recorded)) = record_for_a_while(&Scope::Command(command), &options) else { return };
    assert!(recorded.how_ended.is_none() && recorded.facts.rusage.is_none());
    drop(held);
    let how = recorded.left_running.expect("it runs").wait().expect("an end");
    assert!(matches!(how, HowEnded::Exited(7)), "{how:?}");
}

#[test]
fn the_cost_of_a_fault_is_what_it_takes_when_nobody_looks() {
    // Fresh pages touched by this process, timed by itself without a probe, and as recorded.
    let took = |rounds: &mut Vec<f64>| {
        rounds.push(prepage_sys::fresh_pages::touch(512).expect("memory").as_nanos() as f64 / 512.0);
    };
    let _machine = MACHINE.lock().anyway();
    let probe = prepage_trace::Probe::default();
    let measured = prepage_trace::ProbeCost::measure(&probe);
    let Some(cost) = unless_refused(measured, FAULTS, is_refused) else { return };
    let (mut alone, mut recorded) = (Vec::new(), Vec::new());
    for _ in 0..21 {
        took(&mut alone);
        let mut stream = prepage_trace::Stream::attach(std::process::id(), &probe).expect("attached");
        prepage_sys::fresh_pages::touch(512).expect("memory");
        let mut pairing = prepage_trace::Pairing::new(0);
        pairing.probe_cost_ns = cost.inside_ns;
        let mut faults = Vec::new();
        for event in stream.finish().filter(|event| event.tid == rustix::thread::gettid().as_raw_pid() as u32)
        {
            pairing.feed(&event, &mut faults);
        }
        let costs: Vec<u64> = faults.iter().filter_map(|fault| fault.cost_ns).collect();
        assert!(costs.len() >= 512);
        recorded.push(costs.iter().sum::<u64>() as f64 / costs.len() as f64);
    }
    // In most rounds another thread may have had the processor for a while.
    let least = |rounds: Vec<f64>| rounds.into_iter().fold(f64::INFINITY, f64::min);
    let (alone, recorded) = (least(alone), least(recorded));
    println!("{alone:.0} ns a fault, recorded {recorded:.0} ns, probe {cost:?}");
    // The processor's way into the kernel and out of it lies outside of what is recorded.
    assert!(recorded < 1.25 * alone && recorded > 0.25 * alone, "{alone} {recorded} {cost:?}");
}

/// Costs in cycles are those in nanoseconds times this frequency.
#[test]
fn a_recording_has_the_frequency_of_the_processors_counter() {
    let is_steady = ["constant_tsc", "nonstop_tsc"].iter().all(|&flag| has(Need::CpuFlag(flag.into())));
    let is_frequency = |_| {
        let Some((_, recorded)) = record(&["sleep", "0.2"]) else { return true };
        assert!(recorded.facts.probe_cost_ns.is_some() && recorded.facts.probe_total_ns.is_some());
        let recorded = recorded.facts.tsc_hz;
        if !is_steady {
            assert_eq!(recorded, None);
            return true;
        }
        let begun = prepage_sys::tsc::Moment::now().expect("a steady counter");
        thread::sleep(Duration::from_millis(200));
        let [recorded, here] = [recorded, begun.hz()].map(|hz| hz.expect("a frequency") as f64);
        println!("{recorded} {here}");
        // A wrong unit is a factor of 1000. A frequency in kHz or MHz, or cycles of the whole recording, would be far outside.
        (0.5..2.0).contains(&(recorded / here)) && (1e8..1e10).contains(&recorded)
    };
    // A thread may lose the processor for long between its two looks, at the counter and at the clock.
    assert!((0..5).any(is_frequency));
}

#[test]
fn pages_read_in_and_never_touched_are_told() {
    if !has(Need::Root) {
        return;
    }
    // On a disk: the system's temporary directory may be in memory.
    let mut file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a file");
    std::io::Write::write_all(&mut file, &vec![1; 64 * 4096]).expect("written");
    file.as_file().sync_all().expect("on disk");
    prepage_sys::cachestat::evict(file.as_file().as_fd(), Duration::from_secs(60)).expect("made cold");
    let path = file.path().to_str().expect("plain");
    let script = format!("head -c 40960 {path}; head -c 4096 {path} > {path}.copy; rm {path}.copy");
    let command = ["sh", "-c", &script].map(Into::into).to_vec();
    let options = RecordOptions {
        page_cache: true,
        duration: Some(Duration::from_secs(60)),
        ..RecordOptions::default()
    };
    let Some((_, recorded)) = record_for_a_while(&Scope::Command(command), &options) else { return };
    assert_eq!((recorded.facts.probe_cost_ns, recorded.facts.probe_total_ns), (None, None));
    let facts = recorded.facts.page_cache.expect("asked for");
    let named = |path: &str| facts.files.iter().find(|file| file.path == path);
    let Some(read) = named(path) else {
        // A file system that opens no inode of any generation does not tell the path either.
        let directory = env!("CARGO_TARGET_TMPDIR").into();
        return skip(Need::InodeHandles(directory), format!("{path} is not named in {facts:?}"));
    };
    assert!((10..=64).contains(&read.pages_read_in), "{read:?}");
    assert!((2..=11).contains(&read.pages_by_read), "{read:?}");
    assert!(read.pages_untouched >= read.pages_read_in - 10, "{read:?}");
    assert!(named(&format!("{path}.copy")).is_none(), "{facts:?}");
}

/// While a process is attached to, its faults are seen in part.
#[test]
fn what_faulted_before_the_beginning_is_left_out() {
    beside_a_running_process(|pid| {
        let options = RecordOptions { duration: Some(Duration::from_millis(20)), ..RecordOptions::default() };
        for _ in 0..20 {
            let scope = Scope::Processes(vec![pid]);
            let Some((faults, _)) = record_for_a_while(&scope, &options) else { return };
            // Each of its two threads may have been in one when it began.
            let at_once = faults.iter().filter(|fault| fault.start_ns == 0).count();
            assert!(at_once <= 2, "{at_once} of {}", faults.len());
        }
    });
}

/// Rates are computed from the duration: the time it takes to read the last rings is no part of it.
#[test]
fn a_recording_lasts_until_it_stops_to_observe() {
    let _machine = MACHINE.lock().anyway();
    let dir = tempfile::tempdir().expect("a directory");
    let pipe = dir.path().join("touched");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).expect("made");
    let dd = "dd if=/dev/zero of=/dev/null bs=64M count=1 2>/dev/null";
    let script = format!("{dd}; echo >{0}; : <{0}", pipe.display());
    let scope = Scope::Command(["sh", "-c", &script].map(Into::into).to_vec());
    let options = RecordOptions { duration: Some(Duration::from_millis(1)), ..RecordOptions::default() };
    let mut found = Vec::new();
    // On a busy machine others run before the observation stops: now and then for longer than reading takes, not each time.
    while found.len() < 10 {
        let started = Recorder::start(&scope, &options);
        let Some(mut recorder) = unless_refused(started, FAULTS, is_recording_refused) else { return };
        // The rings fill.
        fs::read(&pipe).expect("it is told");
        let (before, _) = recorder.progress();
        let mut faults = Vec::new();
        assert!(!recorder.next_faults(&mut faults).expect("faults"));
        let (after, _) = recorder.progress();
        let duration = Duration::from_nanos(recorder.facts().duration_ns);
        assert!(faults.len() > 10_000, "{}", faults.len());
        let left = recorder.finish();
        fs::write(&pipe, "").expect("it is told");
        drop(left);
        if duration < (before + after) / 2 {
            return;
        }
        found.push((duration, before, after));
    }
    panic!("each lasts until the end of reading: {found:?}");
}
