//! Real starts, observed on the real kernel.

use std::collections::HashSet;
use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use prepage_core::profile::observation::{
    Coverage, Observation, ObservedFile, ObservedName, Order, UsedPages,
};
use prepage_core::{Missing, ObjectId, PageIndex};
use prepage_observe::sightings::Sightings;
use prepage_observe::{Exact, Follower, ObserveOptions, Observer, Until};
use prepage_sys::cachestat::evict;
use prepage_sys::call_filter::{When, refuse};
use prepage_sys::spawn::{Child, HowEnded, spawn_waiting};
use prepage_sys::sync::Anyway;
use prepage_testing::{Doctor, Need, assert_passed, child, has, is_child, skip, this_test, unless_refused};
use prepage_trace::{PerfError, RecordError, RecordOptions, Recorder, Scope};

/// Maps a file privately, waits until the mapping is armed (VmFlags of /proc/self/smaps) and touches some pages. After `fork` a child
/// that executes nothing does the last two.
const MAP_AND_TOUCH: &str = r"
import mmap, os, sys, time
path, *pages = sys.argv[1:]
file = open(path, 'rb')
mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
if pages[0] == 'fork':
    pages.pop(0)
    if child := os.fork():
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
def is_armed():
    found = False
    for line in open('/proc/self/smaps'):
        found = path in line if '-' in line.split()[0] else found
        if found and line.startswith('VmFlags:'):
            return ' uw' in line
patience = time.monotonic() + 60
while not is_armed():
    if time.monotonic() > patience:
        sys.exit('it is never armed')
    time.sleep(0.001)
for page in pages:
    mapped[int(page) * 4096]
# Page tables are looked at while they are there.
time.sleep(0.3)
";

/// A directory in the build tree, for the system's temporary directory may be in memory.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap()
}

/// Whether the kernel shows each page's first touch; counts a skip where not. Before Linux 6.7 pages are seen with their neighbours.
#[track_caller]
fn is_exact_here() -> bool {
    has(Need::Linux(6, 7))
}

/// What changed in the very moment in which observing begins counts as changed since.
fn grow_old() {
    std::thread::sleep(Duration::from_millis(20));
}

/// A file of so many pages in `dir`, older than the start.
fn data_in(dir: &Path, pages: usize) -> PathBuf {
    let path = dir.join("data");
    fs::write(&path, vec![1; pages * 4096]).unwrap();
    grow_old();
    path
}

/// The same in a directory of its own.
fn data(pages: usize) -> (tempfile::TempDir, PathBuf) {
    let dir = directory();
    let path = data_in(dir.path(), pages);
    (dir, path)
}

/// A fork while another test's thread holds a lock of the allocator would wait for ever.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The agent, built once for this test binary.
fn agent() -> PathBuf {
    static AGENT: OnceLock<PathBuf> = OnceLock::new();
    let agent = AGENT.get_or_init(|| {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("agent-{}.so", std::process::id()));
        let build = concat!(env!("CARGO_MANIFEST_DIR"), "/../sys/agent/build");
        assert!(Command::new(build).arg(&path).status().unwrap().success(), "the agent does not build");
        path
    });
    agent.clone()
}

/// The ways in which a start can be seen.
fn ways(program: &str) -> [ObserveOptions; 4] {
    let with_agent = ObserveOptions {
        program: Some(program.into()),
        agent: Some(agent()),
        is_patient: true,
        // With very many, perf is not asked.
        cpus: Some(1),
        ..ObserveOptions::default()
    };
    let by_visits = ObserveOptions::default();
    [false, true]
        .map(|without_perf| {
            [&with_agent, &by_visits].map(|options| ObserveOptions { without_perf, ..options.clone() })
        })
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .try_into()
        .expect("four")
}

/// Begins to observe a command, and lets it go. Others wait until the last part is dropped.
fn start(command: &[&str], options: &ObserveOptions) -> (Observer, Until, Child, MutexGuard<'static, ()>) {
    let one_at_a_time = ONE_AT_A_TIME.lock().anyway();
    let command: Vec<_> = command.iter().map(Into::into).collect();
    let waiting = spawn_waiting(&command).unwrap();
    let observer = Observer::attach(waiting.pid(), options).unwrap();
    let until = Until::ended_or(waiting.pid(), Duration::from_secs(30)).unwrap();
    let child = waiting.go_with(&observer.program_arguments()).unwrap();
    (observer, until, child, one_at_a_time)
}

/// Observes a command. Returns how it ended, too: its exit code, or the negative signal.
fn observe(command: &[&str], options: &ObserveOptions) -> (Observation, i32) {
    let (observer, until, child, _one_at_a_time) = start(command, options);
    let observation = observer.follow(&until);
    (observation, end_of(child))
}

/// The same of a command that ends well.
#[track_caller]
fn observed(command: &[&str], options: &ObserveOptions) -> Observation {
    let (observation, code) = observe(command, options);
    assert_eq!(code, 0, "{command:?} {options:?}: {:?}", observation.unseen);
    observation
}

/// As [`observe`] with an observer who comes only when the program has ended.
fn observe_late(command: &[&str], options: &ObserveOptions) -> Observation {
    let (observer, until, child, _one_at_a_time) = start(command, options);
    assert_eq!(end_of(child), 0);
    observer.follow(&until)
}

/// ld.so may not have loaded it, or the log could not be opened.
#[test]
fn names_of_a_program_whose_agent_never_speaks_are_not_taken_for_seen() {
    let options = &ways("/bin/cat")[0];
    let (all, code) = observe(&["/bin/cat", "/etc/hostname"], options);
    assert_eq!((code, all.names_coverage), (0, Coverage::Exact), "{:?}", all.unseen);
    let _one_at_a_time = ONE_AT_A_TIME.lock().anyway();
    let waiting = spawn_waiting(&["/bin/cat", "/etc/hostname"].map(Into::into)).unwrap();
    let observer = Observer::attach(waiting.pid(), options).unwrap();
    let until = Until::ended_or(waiting.pid(), Duration::from_secs(30)).unwrap();
    let child = waiting.go().unwrap();
    let nothing = observer.follow(&until);
    assert_eq!(end_of(child), 0);
    assert_eq!((nothing.names_coverage, nothing.reads_coverage), (Coverage::Partial, Coverage::Partial));
}

/// Runs a command without observing it. Returns how it ended.
fn unobserved(command: &[&str]) -> i32 {
    let _one_at_a_time = ONE_AT_A_TIME.lock().anyway();
    let command: Vec<_> = command.iter().map(Into::into).collect();
    end_of(spawn_waiting(&command).unwrap().go().unwrap())
}

fn end_of(child: Child) -> i32 {
    match child.wait().unwrap().how {
        HowEnded::Exited(code) => code,
        HowEnded::Killed(signal) => -signal,
        other => panic!("{other:?}"),
    }
}

fn file<'a>(observation: &'a Observation, path: &Path) -> &'a ObservedFile {
    let path = path.canonicalize().unwrap();
    let found = observation.files.iter().find(|file| Path::new(&file.path) == path);
    found.unwrap_or_else(|| panic!("{} is not in {observation:#?}", path.display()))
}

/// The runs of `used`, each with whether that is sure.
fn runs(used: &[UsedPages]) -> Vec<(u64, u64, bool)> {
    used.iter().map(|used| (used.range.start().0, used.range.end().0, used.is_sure)).collect()
}

/// The pages of the file at `path` that are seen; none where the file is not.
fn pages_if_seen(observation: &Observation, path: &Path) -> Vec<UsedPages> {
    let path = path.canonicalize().unwrap();
    let found = observation.files.iter().find(|file| Path::new(&file.path) == path);
    found.map_or(Vec::new(), |file| file.pages.clone())
}

/// Looks a few times until what is seen `is_so`: on a busy machine who observes may get no processor in time.
#[track_caller]
fn seen_in_time<T: std::fmt::Debug>(is_so: impl Fn(&T) -> bool, mut look: impl FnMut() -> T) {
    let mut seen = Vec::new();
    while seen.len() < 5 {
        let now = look();
        if is_so(&now) {
            return;
        }
        seen.push(now);
    }
    panic!("each time another: {seen:#?}");
}

/// The same of the runs of pages of the file at `path`, where `command` is observed; it has to succeed.
#[track_caller]
fn runs_are_seen_in_time(
    command: &[&str],
    options: &ObserveOptions,
    path: &Path,
    expected: &[(u64, u64, bool)],
) {
    let seen = || {
        let observation = observed(command, options);
        (runs(&pages_if_seen(&observation, path)), observation.unseen)
    };
    seen_in_time(|(runs, _)| runs == expected, seen);
}

/// Whether `is_told`, unless the observer came too late, and says so.
fn is_told_or_late(observation: &Observation, is_told: bool) -> bool {
    is_told || observation.coverage == Coverage::Partial
}

fn has_page(used: &[UsedPages], page: u64) -> bool {
    rank_of(used, page).is_some()
}

fn rank_of(used: &[UsedPages], page: u64) -> Option<u32> {
    used.iter().find(|used| used.range.contains(PageIndex(page))).map(|used| used.rank)
}

fn pages_of(used: &[UsedPages]) -> u64 {
    used.iter().map(|used| used.range.len()).sum()
}

#[test]
fn pages_touched_are_told_from_their_neighbours_in_memory() {
    if !is_exact_here() {
        return;
    }
    let (_dir, data) = data(64);
    let touched = ["40", "3", "4", "17", "63"];
    for options in ways("/usr/bin/python3") {
        let mut command = vec!["/usr/bin/python3", "-c", MAP_AND_TOUCH, data.to_str().unwrap()];
        command.extend(touched);
        // One after the other: a look may come between two touches.
        let pages = |used: &[UsedPages]| -> Vec<u64> {
            used.iter().flat_map(|used| used.range.start().0..used.range.end().0).collect()
        };
        let seen = || {
            let observation = observed(&command, &options);
            // Page tables tell no order within a look.
            let expected = if options.without_perf { Order::Rough } else { Order::Exact };
            assert_eq!(observation.order, expected, "{options:?}");
            (pages_if_seen(&observation, &data), options.clone())
        };
        let is_so = |(used, options): &(Vec<UsedPages>, ObserveOptions)| {
            let mut in_order = used.clone();
            in_order.sort_by_key(|used| used.rank);
            used.iter().all(|used| used.is_sure && !used.by_read)
                && pages(used) == [3, 4, 17, 40, 63]
                && (options.without_perf || pages(&in_order) == [40, 3, 4, 17, 63])
        };
        seen_in_time(is_so, seen);
    }
}

/// Perf tells of the mapping once it is ready, and page tables show what is touched in it.
#[test]
fn what_is_mapped_later_is_armed_as_perf_tells_it() {
    if !is_exact_here() {
        return;
    }
    let (_dir, data) = data(64);
    let [with_agent, ..] = ways("/usr/bin/python3");
    let options = ObserveOptions { is_patient: false, ..with_agent };
    // The second mapping lies where the first one was, and shows the same.
    for again in [String::new(), format!("mapped.close()\n{MAP_AND_TOUCH}")] {
        let program = format!("import time\ntime.sleep(0.3)\n{MAP_AND_TOUCH}{again}");
        let command =
            ["/usr/bin/python3", "-c", &program, data.to_str().unwrap(), "40", "3", "4", "17", "63"];
        let refused = std::cell::OnceCell::new();
        let seen = || {
            let observation = observed(&command, &options);
            let why = observation.unseen.iter().find(|why| why.starts_with("the order of pages"));
            why.into_iter().for_each(|why| _ = refused.set(why.clone()));
            observation.files.into_iter().find(|file| Path::new(&file.path) == data.canonicalize().unwrap())
        };
        let expected = [(3, 5, true), (17, 18, true), (40, 41, true), (63, 64, true)];
        let is_exact =
            |file: &ObservedFile| runs(&file.pages) == expected && file.coverage == Coverage::Exact;
        let is_so =
            |file: &Option<ObservedFile>| refused.get().is_some() || file.as_ref().is_some_and(is_exact);
        seen_in_time(is_so, seen);
        if let Some(refused) = refused.get() {
            return skip(Need::Doctor(Doctor::Faults), refused);
        }
    }
}

/// Each process of the program would pay for perf's events on each CPU.
#[test]
fn with_many_cpus_perf_is_not_asked_where_an_agent_is() {
    let [with_agent, by_visits, ..] = ways("/bin/sleep");
    let impatient = ObserveOptions { is_patient: false, ..with_agent };
    let sees_order = |options: &ObserveOptions, cpus| {
        let options = ObserveOptions { cpus: Some(cpus), ..options.clone() };
        let observation = observed(&["/bin/sleep", "0.3"], &options);
        !observation.unseen.iter().any(|why| why.contains("would pay for it with each CPU"))
    };
    assert_eq!([32, 33].map(|cpus| sees_order(&impatient, cpus)), [true, false]);
    assert!(sees_order(&by_visits, 33));
}

/// Such a child is still listed when perf is ready.
#[test]
fn a_child_that_has_ended_does_not_keep_perf_from_the_others() {
    let [with_agent, ..] = ways("/bin/sh");
    let options = ObserveOptions { is_patient: false, ..with_agent };
    let (observation, code) = observe(&["/bin/sh", "-c", "/bin/true & exec /bin/sleep 0.3"], &options);
    let gone = observation.unseen.iter().find(|why| why.contains("there is no process"));
    assert_eq!((code, gone), (0, None));
}

/// Perf is ready when the program has run for a while.
#[test]
fn names_that_a_child_without_agent_waits_for_are_seen_if_it_was_there_before_perf() {
    let dir = directory();
    let pipe = dir.path().canonicalize().unwrap().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::from(0o600)).unwrap();
    grow_old();
    let script = "(sleep 0.3; : < \"$0\") & echo; sleep 0.8; : > \"$0\"; wait";
    let seen = || {
        let mut shell = Command::new("/bin/sh");
        let mut shell = shell.args(["-c", script]).arg(&pipe).stdout(Stdio::piped()).spawn().unwrap();
        // Until it is a shell, and its child is there.
        shell.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
        let observer = Observer::attach(shell.id(), &ObserveOptions::default()).unwrap();
        let until = Until::ended_or(shell.id(), Duration::from_secs(30)).unwrap();
        let observation = observer.follow(&until);
        assert!(shell.wait().unwrap().success());
        if let Some(refused) = observation.unseen.iter().find(|why| why.starts_with("the order of pages")) {
            skip(Need::Doctor(Doctor::Faults), refused);
            return None;
        }
        Some(observation.names)
    };
    let is_pipe = |name: &ObservedName| Path::new(&name.path) == pipe;
    seen_in_time(|names| names.as_ref().is_none_or(|names: &Vec<_>| names.iter().any(is_pipe)), seen);
}

/// Maps the file that it is given 20,000 times, faster than anybody hears of it, and touches two pages of each mapping once all are armed.
const MAP_OFTEN: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
static const volatile char *mapped[20000];
static int count_armed(const char *path)
{
    FILE *smaps = fopen("/proc/self/smaps", "r");
    char line[8192], name[256];
    int is_of_file = 0, armed = 0;
    snprintf(name, sizeof name, "%s\n", strrchr(path, '/'));
    while (fgets(line, sizeof line, smaps)) {
        is_of_file |= strstr(line, name) != 0;
        if (!strncmp(line, "VmFlags:", 8)) {
            armed += is_of_file && strstr(line, " uw");
            is_of_file = 0;
        }
    }
    fclose(smaps);
    return armed;
}
int main(int count, char **arguments)
{
    int file = open(arguments[count - 1], O_RDONLY);
    /* It is visited by then. */
    usleep(300000);
    for (int nth = 0; nth < 20000; nth++)
        if ((mapped[nth] = mmap(0, 16 * 4096, PROT_READ, MAP_PRIVATE, file, 0)) == MAP_FAILED)
            return 1;
    for (int waited = 0; count_armed(arguments[count - 1]) < 20000; waited++) {
        if (waited == 600)
            return 2;
        usleep(100000);
    }
    for (int nth = 0; nth < 20000; nth++)
        (void)(mapped[nth][5 * 4096] + mapped[nth][9 * 4096]);
    return 0;
}
"#;

/// How many touches of [`MAP_OFTEN`] are recorded, and what the recording lacks. `None`, counted as a skip, where nobody may record.
fn touches_of_many_mappings() -> Option<(usize, Vec<Missing>)> {
    let (dir, data) = data(16);
    let program = compile(dir.path(), "program", MAP_OFTEN, &[]);
    let _one_at_a_time = ONE_AT_A_TIME.lock().anyway();
    let exact = Exact::new();
    let options = RecordOptions {
        prepare: Some(exact.prepare(Some(program.clone()))),
        exact: Some(exact.facts()),
        ..RecordOptions::default()
    };
    let is_refused = |error: &RecordError| {
        matches!(error, RecordError::Perf(PerfError::SwitchedOff { .. } | PerfError::Unavailable { .. }))
    };
    let started = Recorder::start(&Scope::Command(vec![program.into(), data.into()]), &options);
    let mut recorder = unless_refused(started, Need::Doctor(Doctor::Faults), is_refused)?;
    let mut faults = Vec::new();
    while recorder.next_faults(&mut faults).unwrap() {}
    let recorded = recorder.finish();
    let data = recorded.objects.iter().position(|object| object.path.ends_with("/data")).unwrap();
    let of_data = faults.iter().filter(|fault| fault.object == Some(ObjectId(data as u32)));
    let is_touched = |page| [5, 9].map(PageIndex).contains(&page);
    // A disk fault is told twice.
    let touched: HashSet<u64> =
        of_data.filter(|fault| fault.page.is_some_and(is_touched)).map(|fault| fault.address).collect();
    Some((touched.len(), recorded.facts.missing()))
}

/// The kernel has room for the news of some hundred mappings.
#[test]
fn mappings_that_the_kernel_had_no_room_to_tell_of_are_armed_and_told() {
    // Who reads them may keep up.
    let is_lossy = (0..10).any(|_| {
        let Some((found, missing)) = touches_of_many_mappings() else { return true };
        assert_eq!(found, 40_000, "lacking {missing:?}");
        missing.iter().any(|gap| matches!(gap, Missing::LostMappings { .. }))
    });
    assert!(is_lossy, "no loss is told");
}

/// Maps files and touches pages of them at once: nobody has time to arm anything from outside.
const MAP_AND_USE: &str = r"
import mmap, sys, time
# Perf is ready by then.
time.sleep(0.1)
for path in sys.argv[1:]:
    file = open(path, 'rb')
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    for page in (40, 3, 4, 17, 63, 0):
        if page * 4096 < len(mapped):
            mapped[page * 4096]
# Page tables are looked at while they are there.
time.sleep(0.3)
";

/// Of a file of so many pages those that [`MAP_AND_USE`] is seen to use are `expected`, each run with whether that is sure: with perf and an agent, and
/// without perf.
#[track_caller]
fn is_mapped_and_used(pages: usize, expected: &[(u64, u64, bool)]) {
    let (_dir, data) = data(pages);
    let [with_agent, _, without_perf, _] = ways("/usr/bin/python3");
    let impatient = ObserveOptions { is_patient: false, ..with_agent };
    let command = ["/usr/bin/python3", "-c", MAP_AND_USE, data.to_str().unwrap()];
    for options in [impatient, without_perf] {
        runs_are_seen_in_time(&command, &options, &data, expected);
    }
}

#[test]
fn what_is_used_as_soon_as_it_is_mapped_is_told_as_surely() {
    if !is_exact_here() {
        return;
    }
    let touched = [(0, 1, true), (3, 5, true), (17, 18, true), (40, 41, true), (63, 64, true)];
    is_mapped_and_used(64, &touched);
}

/// A fault maps no page of another file along.
#[test]
fn the_only_page_of_a_file_was_touched_if_it_is_mapped() {
    is_mapped_and_used(1, &[(0, 1, true)]);
}

/// A fork inherits no registration.
#[test]
fn a_child_that_executes_nothing_is_seen_page_by_page() {
    // Observers without CAP_SYS_PTRACE visit none.
    if !has(Need::Tracing) || !is_exact_here() {
        return;
    }
    let (_dir, data) = data(64);
    for options in ways("/usr/bin/python3") {
        let command = ["/usr/bin/python3", "-c", MAP_AND_TOUCH, data.to_str().unwrap(), "fork", "3", "40"];
        runs_are_seen_in_time(&command, &options, &data, &[(3, 4, true), (40, 41, true)]);
    }
}

/// Loads the library that it is given, and touches three pages of a table in it.
const LOAD_AND_TOUCH: &str = r#"
#include <dlfcn.h>
#include <unistd.h>
int main(int count, char **arguments)
{
    void *library = dlopen(arguments[count - 1], RTLD_NOW);
    const volatile char *table = library ? dlsym(library, "table") : 0;
    if (!table)
        return 1;
    (void)(table[20 * 4096] + table[100 * 4096] + table[230 * 4096]);
    /* Page tables are looked at while they are there. */
    usleep(300000);
    return 0;
}
"#;

/// Whether the pages of the table that [`LOAD_AND_TOUCH`] touches are among those `used` of the library. The table lies behind its headers and code.
fn table_is_told(used: &[UsedPages]) -> bool {
    [20, 100, 230].into_iter().all(|page| (page..page + 4).any(|page| has_page(used, page)))
}

/// Compiles a program or library called `name` in `dir`.
fn compile(dir: &Path, name: &str, source: &str, options: &[&str]) -> PathBuf {
    let (source_path, built) = (dir.join(name).with_extension("c"), dir.join(name));
    fs::write(&source_path, source).unwrap();
    let compiler =
        Command::new("cc").args(["-O1", "-o"]).arg(&built).arg(&source_path).args(options).status();
    assert!(compiler.unwrap().success());
    built
}

/// Compiles a program beside `library` that loads that, and does nothing for a moment in which it can be looked at.
fn program_with(library: &Path) -> PathBuf {
    let dir = library.parent().unwrap();
    let (path, place) = (library.to_str().unwrap(), format!("-Wl,-rpath,{}", dir.display()));
    let source = "#include <unistd.h>\nint main(void) { return usleep(100000); }";
    compile(dir, "program", source, &["-Wl,--no-as-needed", path, &place])
}

/// A library with a table of 256 pages, and a program of `source` that is told to load it.
fn library_and_program(source: &str) -> (tempfile::TempDir, PathBuf, PathBuf) {
    let dir = directory();
    let table = "const char table[256 * 4096] = {1};";
    let library = compile(dir.path(), "library.so", table, &["-shared", "-fPIC"]);
    let program = compile(dir.path(), "program", source, &[]);
    grow_old();
    (dir, library, program)
}

#[test]
fn what_is_loaded_later_is_told_as_surely() {
    if !is_exact_here() {
        return;
    }
    let (_dir, library, program) = library_and_program(LOAD_AND_TOUCH);
    let [perf, _, page_tables, _] = ways(program.to_str().unwrap());
    for options in [perf, page_tables] {
        let mut surely = 0;
        for _ in 0..5 {
            let observation = observed(&[program.to_str().unwrap(), library.to_str().unwrap()], &options);
            let used = &pages_if_seen(&observation, &library);
            assert!(is_told_or_late(&observation, table_is_told(used)), "{options:?}: {used:?}");
            // Those three, and what ld.so looks at. The observer, who looks at any moment, may find the library before the agent does, and then
            // knows its pages with their neighbours.
            surely += u32::from(used.iter().all(|used| used.is_sure) && (4..16).contains(&pages_of(used)));
        }
        assert!(surely >= 3, "{options:?}: {surely} of 5");
    }
}

/// Loads the libraries that it is given by a thread of its own, one after the other, and touches three pages of a table in each.
const LOAD_MANY: &str = r#"
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>
static void *load(void *paths)
{
    for (char **path = paths; *path; path++) {
        void *library = dlopen(*path, RTLD_NOW);
        const volatile char *table = library ? dlsym(library, "table") : 0;
        if (!table)
            _exit(1);
        (void)(table[20 * 4096] + table[100 * 4096] + table[230 * 4096]);
    }
    return 0;
}
int main(int count, char **arguments)
{
    pthread_t thread;
    if (pthread_create(&thread, 0, load, arguments + 1))
        return count;
    pthread_join(thread, 0);
    /* Page tables are looked at while they are there. */
    usleep(50000);
    return 0;
}
"#;

/// The same with 32 libraries.
fn libraries_and_program(source: &str) -> (tempfile::TempDir, Vec<PathBuf>, PathBuf) {
    let (dir, library, program) = library_and_program(source);
    let copy = |number: u32| {
        let copy = dir.path().join(format!("library{number}.so"));
        fs::copy(&library, &copy).unwrap();
        copy
    };
    let libraries = (0..32).map(copy).collect();
    grow_old();
    (dir, libraries, program)
}

/// The observer, who looks at any moment, finds one library of a hundred before the agent does, or while ld.so maps its pieces.
#[test]
fn what_ld_so_maps_along_of_a_library_that_the_observer_finds_first_is_not_taken_for_touched() {
    if !is_exact_here() {
        return;
    }
    const STARTS: usize = 20;
    let (_dir, libraries, program) = libraries_and_program(LOAD_MANY);
    let command: Vec<&str> =
        std::iter::once(&program).chain(&libraries).map(|path| path.to_str().unwrap()).collect();
    let [perf, _, page_tables, _] = ways(program.to_str().unwrap());
    let impatient = ObserveOptions { is_patient: false, ..perf.clone() };
    let (mut beyond, mut late) = (Vec::new(), 0);
    for options in [perf, impatient, page_tables].iter().flat_map(|options| [options; STARTS]) {
        let observation = observed(&command, options);
        late += u32::from(observation.coverage == Coverage::Partial);
        for library in &libraries {
            let used = &pages_if_seen(&observation, library);
            assert!(is_told_or_late(&observation, table_is_told(used)), "{options:?}: {used:?}");
            beyond.extend((pages_of(used) >= 16).then(|| (options.clone(), used.clone())));
        }
    }
    assert!(beyond.len() <= 2, "{} of {}: {beyond:?}", beyond.len(), 3 * STARTS * libraries.len());
    assert!(late < STARTS as u32 / 2, "{late} of {} were not seen", 3 * STARTS);
}

/// Loads the libraries that it is given but for the last file by a thread of its own, while it forks: each child touches a page of that file and
/// leaves, or executes another program.
const LOAD_AND_FORK: &str = r#"
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
static char **last;
static volatile int is_loaded;
static void *load(void *paths)
{
    for (char **path = paths; path < last; path++) {
        void *library = dlopen(*path, RTLD_NOW);
        const volatile char *table = library ? dlsym(library, "table") : 0;
        if (!table)
            _exit(1);
        (void)(table[20 * 4096] + table[100 * 4096] + table[230 * 4096]);
    }
    is_loaded = 1;
    return 0;
}
static void child(int number)
{
    int file = open(*last, O_RDONLY);
    const volatile char *data = mmap(0, 64 * 4096, PROT_READ, MAP_PRIVATE, file, 0);
    if (data == MAP_FAILED || data[40 * 4096] != 1)
        _exit(2);
    if (number % 2)
        execl("/bin/true", "true", (char *)0);
    _exit(0);
}
int main(int count, char **arguments)
{
    int failed = 0;
    pthread_t thread;
    last = arguments + count - 1;
    if (pthread_create(&thread, 0, load, arguments + 1))
        return 3;
    for (int number = 0; number < 20 || !is_loaded; number++) {
        int status, pid = fork();
        if (!pid)
            child(number);
        failed |= waitpid(pid, &status, 0) != pid || status;
    }
    pthread_join(thread, 0);
    /* Page tables are looked at while they are there. */
    usleep(300000);
    return failed ? 4 : 0;
}
"#;

/// A child that is made in the middle has neither the agent's descriptor for its own, nor locks that nobody lets go.
#[test]
fn a_program_that_forks_while_it_loads_libraries_is_seen_and_its_children_run() {
    let (dir, libraries, program) = libraries_and_program(LOAD_AND_FORK);
    let data = data_in(dir.path(), 64);
    let files = std::iter::once(&program).chain(&libraries).chain([&data]);
    let command: Vec<&str> = files.map(|path| path.to_str().unwrap()).collect();
    let [perf, _, page_tables, _] = ways(program.to_str().unwrap());
    let impatient = ObserveOptions { is_patient: false, ..perf.clone() };
    let began = std::time::Instant::now();
    assert_eq!(unobserved(&command), 0);
    let most = Duration::from_secs(10) + 10 * began.elapsed();
    for options in [perf, impatient, page_tables] {
        let is_seen = || {
            let began = std::time::Instant::now();
            let observation = observed(&command, &options);
            assert!(began.elapsed() < most, "{options:?}: {:?}", began.elapsed());
            let table_is_told = |library: &PathBuf| table_is_told(&pages_if_seen(&observation, library));
            let is_told =
                libraries.iter().all(table_is_told) && has_page(&pages_if_seen(&observation, &data), 40);
            assert!(is_told_or_late(&observation, is_told), "{options:?}: {observation:#?}");
            is_told
        };
        seen_in_time(|&is_seen| is_seen, is_seen);
    }
}

/// Waits for a byte before all else, in a call that would fail if it were disturbed. Then maps its argument, waits until that is armed,
/// and touches a page.
const READ_AND_TOUCH: &str = r#"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
static long call(long number, long a, long b, long c, long d, long e)
{
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = 0;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}
void begin(char **stack)
{
    char byte;
    call(SYS_read, 0, (long)&byte, 1, 0, 0);
    long file = call(SYS_open, (long)stack[2], O_RDONLY, 0, 0, 0);
    const volatile char *pages = (void *)call(SYS_mmap, 0, 64 * 4096, PROT_READ, MAP_PRIVATE, file);
    struct timespec moment = {0, 300000000};
    call(SYS_nanosleep, (long)&moment, 0, 0, 0, 0);
    (void)pages[40 * 4096];
    call(SYS_nanosleep, (long)&moment, 0, 0, 0, 0);
    call(SYS_exit_group, 0, 0, 0, 0, 0);
}
__asm__(".globl _start\n_start: mov %rsp, %rdi\nand $-16, %rsp\ncall begin");
"#;

/// The dynamic section that ld.so reads before a library can be armed lies beside the data, of which a fault maps 15 pages along.
#[test]
fn what_ld_so_maps_along_of_a_library_is_not_taken_for_touched() {
    if !is_exact_here() {
        return;
    }
    let dir = directory();
    let table = "char table[256 * 4096] = {1};";
    let library = compile(dir.path(), "library.so", table, &["-shared", "-fPIC"]);
    let later = compile(dir.path(), "later", LOAD_AND_TOUCH, &[]);
    let at_start = program_with(&library);
    grow_old();
    let [with_agent, _, without_perf, _] = ways(later.to_str().unwrap());
    let impatient = ObserveOptions { is_patient: false, ..with_agent.clone() };
    for program in [&later, &at_start] {
        for options in [&with_agent, &impatient, &without_perf] {
            let options = ObserveOptions { program: Some(program.clone()), ..options.clone() };
            let command = [program.to_str().unwrap(), library.to_str().unwrap()];
            let is_exact = || {
                let observation = observed(&command, &options);
                let used = &pages_if_seen(&observation, &library);
                used.iter().all(|used| used.is_sure) && (3..12).contains(&pages_of(used))
            };
            // The observer may find a library that is loaded later before the agent does, as above, and come too late for one at the start. Without the
            // agent's part it is never exact.
            assert!((0..5).any(|_| is_exact()), "{options:?}");
        }
    }
}

/// Nothing tells of the moment in which it can be visited.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_program_that_cannot_be_disturbed_when_it_begins_is_armed_later() {
    if !is_exact_here() {
        return;
    }
    let dir = directory();
    let options = ["-static", "-nostdlib", "-fno-stack-protector"];
    let program = compile(dir.path(), "program", READ_AND_TOUCH, &options);
    let data = data_in(dir.path(), 64);
    let script = "{ sleep 0.03; echo; } | \"$0\" \"$1\"";
    let command = ["/bin/sh", "-c", script, program.to_str().unwrap(), data.to_str().unwrap()];
    let [_, perf, _, page_tables] = ways("/bin/sh");
    for options in [perf, page_tables] {
        runs_are_seen_in_time(&command, &options, &data, &[(40, 41, true)]);
    }
}

/// Whoever observes has something to do before it follows, and the program stands still at its exec until it is let go.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_static_program_is_let_go_before_it_is_followed() {
    if !is_exact_here() {
        return;
    }
    let dir = directory();
    let source = "__asm__(\".globl _start\\n_start: mov $60, %eax\\nmov $7, %edi\\nsyscall\");";
    let program = compile(dir.path(), "program", source, &["-static", "-nostdlib"]);
    let options =
        ObserveOptions { program: Some(program.clone()), without_perf: true, ..ObserveOptions::default() };
    let (mut observer, until, child, one_at_a_time) = start(&[program.to_str().unwrap()], &options);
    // On a busy machine the exec takes longer.
    (0..1000).for_each(|_| observer.enter());
    // Else it would stand still for good.
    assert_eq!(end_of(child), 7);
    observer.follow(&until);
    drop(one_at_a_time);
    // A program with an agent stops nowhere.
    let options = ObserveOptions { program: Some("/bin/sh".into()), agent: Some(agent()), ..options };
    let (mut observer, until, child, _one_at_a_time) = start(&["/bin/sh", "-c", "exit 3"], &options);
    let shortest = (0..10).map(|_| {
        let since = std::time::Instant::now();
        observer.enter();
        since.elapsed()
    });
    assert!(shortest.min() < Some(Duration::from_millis(1)));
    observer.follow(&until);
    assert_eq!(end_of(child), 3);
}

/// Executes a program in children, each of which is stopped for a moment as it begins.
const EXECUTE_AND_STOP: &str = r"
import os, signal, sys, time
children = []
for _ in range(8):
    read, write = os.pipe()
    child = os.fork() or os.execv(sys.argv[1], sys.argv[1:])
    os.close(write)
    os.read(read, 1)
    os.kill(child, signal.SIGSTOP)
    time.sleep(0.03)
    os.kill(child, signal.SIGCONT)
    children.append(child)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
";

/// Whom a signal has stopped before the visit is let go as it was.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_program_that_a_signal_stops_as_it_is_visited_is_armed_later() {
    if !is_exact_here() {
        return;
    }
    let (_dir, data) = data(64);
    let python = "/usr/bin/python3";
    let command =
        [python, "-c", EXECUTE_AND_STOP, python, "-c", MAP_AND_TOUCH, data.to_str().unwrap(), "3", "40"];
    let [_, perf, _, page_tables] = ways(python);
    for options in [perf, page_tables] {
        let seen = || {
            let observation = observed(&command, &options);
            let used = pages_if_seen(&observation, &data).into_iter();
            used.map(|used| used.range.start().0).collect::<Vec<_>>()
        };
        seen_in_time(|used| used == &[3, 40], seen);
    }
}

/// What a fault mapped along before the agent came is used without another.
#[test]
fn pages_that_ld_so_has_used_before_the_agent_came_are_told() {
    let [perf, _, page_tables, _] = ways("/bin/true");
    let of_both = || {
        [&perf, &page_tables].map(|options| {
            let observation = observed(&["/bin/true"], options);
            let is_loader =
                |file: &&ObservedFile| file.path.contains("/ld-linux") || file.path.contains("/ld-2");
            observation.files.iter().find(is_loader).map_or(0, |loader| pages_of(&loader.pages))
        })
    };
    let is_told = |&[of_perf, of_page_tables]: &[u64; 2]| of_page_tables > 0 && 2 * of_perf >= of_page_tables;
    seen_in_time(is_told, of_both);
}

/// It is over before the observer gets a processor, unless it waits for that at its end.
#[test]
fn a_program_that_ends_at_once_is_seen_page_by_page() {
    if !is_exact_here() {
        return;
    }
    let [perf, ..] = ways("/bin/true");
    let is_exact = || {
        let observation = observed(&["/bin/true"], &perf);
        let libc = observation.files.iter().find(|file| file.path.contains("libc.so"));
        let pages = |is_sure| -> u64 {
            let pages = libc.iter().flat_map(|libc| &libc.pages);
            let pages = pages.filter(|used| used.is_sure == is_sure && !used.by_read);
            pages.map(|used| used.range.len()).sum()
        };
        2 * pages(false) < pages(true)
    };
    // Of ten. On a busy machine the program does not wait for as long as it takes.
    seen_in_time(|&exactly: &usize| exactly >= 8, || (0..10).filter(|_| is_exact()).count());
}

/// Touches a page and ends at once.
const TOUCH_AND_END: &str = r"
import ctypes, mmap, sys
file = open(sys.argv[1], 'rb')
mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
# Never unmapped.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(mapped))
mapped[50 * 4096]
";

#[test]
fn where_page_tables_end_with_the_program_they_are_looked_at_before() {
    let (_dir, data) = data(64);
    let [with_agent, ..] = ways("/usr/bin/python3");
    // Perf is ready about when the program ends.
    let for_once = ObserveOptions { is_patient: false, ..with_agent.clone() };
    let for_good = ObserveOptions { without_perf: true, ..with_agent };
    let command = ["/usr/bin/python3", "-c", TOUCH_AND_END, data.to_str().unwrap()];
    let mut late = 0;
    for options in std::iter::repeat_n([for_good, for_once], 10).flatten() {
        let observation = observed(&command, &options);
        // On a busy machine the observer may come too late, and says so.
        if observation.coverage == Coverage::Partial {
            late += 1;
            continue;
        }
        assert!(has_page(&file(&observation, &data).pages, 50));
    }
    assert!(late < 10, "{late} of 20 were not seen");
}

/// Its destructor looks into its table, which nothing else does.
const ENDS_LATE: &str = r"
const volatile char table[64 * 4096] = {1};
__attribute__((destructor)) static void end(void) { (void)table[40 * 4096]; }
";

#[test]
fn page_tables_are_looked_at_after_the_destructors() {
    let dir = directory();
    let library = compile(dir.path(), "liblate.so", ENDS_LATE, &["-shared", "-fPIC"]);
    let program = program_with(&library);
    grow_old();
    let [with_agent, ..] = ways(program.to_str().unwrap());
    let options = ObserveOptions { without_perf: true, ..with_agent };
    let mut seen = 0;
    for _ in 0..10 {
        let observation = observed(&[program.to_str().unwrap()], &options);
        let used = &pages_if_seen(&observation, &library);
        seen += u32::from((40..46).any(|page| has_page(used, page)));
    }
    // On a busy machine the observer may come too late.
    assert!(seen >= 5, "{seen} of 10");
}

/// Touches a page, waits as for a device (a parent sleeps until its child of vfork executes or ends) or computes with what others
/// leave of the processors, and touches another.
const TOUCH_LATE: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
int main(int count, char **arguments)
{
    int file = open(arguments[1], O_RDONLY);
    const volatile char *data = mmap(0, 64 * 4096, PROT_READ, MAP_PRIVATE, file, 0);
    (void)data[10 * 4096];
    if (!strcmp(arguments[2], "waits")) {
        if (!vfork()) {
            usleep(1800000);
            _exit(0);
        }
    } else if (!strcmp(arguments[2], "stops")) {
        if (!fork()) {
            usleep(1800000);
            return kill(getppid(), SIGCONT);
        }
        raise(SIGSTOP);
    } else if (!strcmp(arguments[2], "is not answered")) {
        /* As an open that a server of files does not answer. */
        if (chdir(arguments[3]) || mkfifo("pipe", 0600))
            return 9;
        if (!fork()) {
            usleep(1800000);
            return open("pipe", O_WRONLY) < 0;
        }
        open("pipe", O_RDONLY);
    } else {
        struct sched_param param = {0};
        sched_setscheduler(0, SCHED_IDLE, &param);
        while (clock() < CLOCKS_PER_SEC / 20) {
        }
    }
    (void)data[50 * 4096];
    return count - 4;
}
"#;

#[test]
fn a_program_that_waits_for_a_device_or_a_processor_or_is_stopped_has_not_started_yet() {
    let (dir, data) = data(64);
    let program = compile(dir.path(), "program", TOUCH_LATE, &[]);
    let [options, ..] = ways(program.to_str().unwrap());
    for how in ["waits", "stops", "is not answered", "starves"] {
        let seen = || {
            let is_over = std::sync::atomic::AtomicBool::new(false);
            std::thread::scope(|scope| {
                if how == "starves" {
                    for _ in 0..std::thread::available_parallelism().unwrap().get() {
                        let began = std::time::Instant::now();
                        let is_over = &is_over;
                        scope.spawn(move || {
                            while began.elapsed() < Duration::from_secs(3)
                                && !is_over.load(std::sync::atomic::Ordering::Relaxed)
                            {
                            }
                        });
                    }
                }
                let paths = [&*program, &*data, dir.path()].map(|path| path.to_str().unwrap());
                let seen = observe(&[paths[0], paths[1], how, paths[2]], &options);
                is_over.store(true, std::sync::atomic::Ordering::Relaxed);
                assert_eq!(seen.1, 0);
                (how, pages_if_seen(&seen.0, &data))
            })
        };
        seen_in_time(|(_, used)| has_page(used, 50), seen);
    }
}

/// Wants to know of pages at once.
struct Curious;

impl Follower for Curious {
    fn wants_pages(&self) -> bool {
        true
    }
}

/// Perf tells of faults before the agent sends word that they were each page's own.
#[test]
fn faults_are_judged_when_it_is_known_what_was_armed() {
    if !is_exact_here() {
        return;
    }
    let [perf, ..] = ways("/bin/sh");
    let dir = directory();
    // A library that takes a while to relocate, and of which every twentieth page is touched then.
    let source = "static char at; char *all[200000] = {[0 ... 199999] = &at};
        struct { char *one; char rest[20 * 4096 - 8]; } few[60] = {[0 ... 59] = {&at, {0}}};";
    let library = compile(dir.path(), "libslow.so", source, &["-shared", "-fPIC"]);
    let program = program_with(&library);
    grow_old();
    let script = format!("{}; exit 0", program.display());
    let mut exactly = 0;
    for _ in 0..5 {
        let (observer, until, child, _one_at_a_time) = start(&["/bin/sh", "-c", &script], &perf);
        let observation = observer.follow_with(&until, &mut Curious);
        assert_eq!(end_of(child), 0);
        // Behind the relocations, which are read in order.
        let used = pages_if_seen(&observation, &library);
        let used = used.iter().filter(|used| used.range.start().0 > 1300);
        let pages = |is_sure| -> u64 {
            used.clone().filter(|used| used.is_sure == is_sure).map(|used| used.range.len()).sum()
        };
        exactly += u32::from(pages(true) > 60 && pages(false) < 16);
    }
    // On a busy machine the observer may come too late.
    assert!(exactly >= 3, "{exactly} of 5");
}

/// It has another number there, by which it tells.
#[test]
fn what_a_process_in_a_namespace_of_process_ids_tells_is_known_to_be_of_it() {
    if !has(Need::Root) || !has(Need::Linux(6, 11)) || !has(Need::Tool("unshare".into())) {
        return;
    }
    let [.., options, _] = ways("/usr/bin/unshare");
    let script = "sleep 0.1; /bin/true";
    let is_whole = || {
        let observation = observed(&["/usr/bin/unshare", "-pf", "/bin/sh", "-c", script], &options);
        observation.coverage != Coverage::Partial
    };
    // On a busy machine the observer may come too late.
    assert!((0..5).any(|_| is_whole()));
}

/// What lives for less than a round ends unseen, and its agent has sent word all the same.
#[test]
fn of_processes_that_end_unseen_no_descriptors_pile_up() {
    struct Counting(usize);
    impl Follower for Counting {
        fn look(&mut self, _last: bool, _sightings: &mut Sightings) {
            let entries = fs::read_dir("/proc/self/fd").unwrap().flatten();
            let links = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
            let count = links.filter(|link| link.as_os_str() == "anon_inode:[userfaultfd]").count();
            self.0 = count.max(self.0);
        }
    }
    if !is_exact_here() {
        return;
    }
    let script = "for i in $(seq 400); do /bin/true; done";
    let [.., options, _] = ways("/bin/sh");
    let counted = || {
        let (observer, until, child, _one_at_a_time) = start(&["/bin/sh", "-c", script], &options);
        let mut counting = Counting(0);
        observer.follow_with(&until, &mut counting);
        assert_eq!(end_of(child), 0);
        counting.0
    };
    // Word that has come while the observer had no processor is read together.
    seen_in_time(|count| (1..100).contains(count), counted);
}

/// What it does may take long: it looks at files.
#[test]
fn no_process_stands_still_while_a_follower_works() {
    struct Slow {
        root: u32,
        works: usize,
        stopped: usize,
    }
    impl Follower for Slow {
        fn look(&mut self, _last: bool, _sightings: &mut Sightings) {
            std::thread::sleep(Duration::from_millis(5));
            let read = |path: String| fs::read_to_string(path).unwrap_or_default();
            let children = read(format!("/proc/{0}/task/{0}/children", self.root));
            // In a stop of ptrace(2).
            let is_stopped = |pid: &str| {
                let stat = read(format!("/proc/{pid}/stat"));
                stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('t'))
            };
            self.works += 1;
            self.stopped += children.split_whitespace().filter(|pid| is_stopped(pid)).count();
        }
    }
    if !has(Need::Tracing) {
        return;
    }
    let [.., options] = ways("/bin/sh");
    let script = "for i in $(seq 50); do sleep 0.03; done; exit 0";
    let stopped_of = || {
        let (observer, until, child, _one_at_a_time) = start(&["/bin/sh", "-c", script], &options);
        let mut slow = Slow { root: child.pid(), works: 0, stopped: 0 };
        let observation = observer.follow_with(&until, &mut slow);
        assert_eq!(end_of(child), 0);
        (slow.stopped, slow.works, observation.files.len())
    };
    // Whom the kernel gives no processor has not stopped within 0.1 s.
    seen_in_time(|&(stopped, works, files)| stopped == 0 && works >= 10 && files > 0, stopped_of);
}

#[test]
fn a_program_that_ended_before_it_was_looked_at_is_not_taken_for_seen() {
    let (_dir, data) = data(64);
    let [with_agent, ..] = ways("/usr/bin/python3");
    let options = ObserveOptions { without_perf: true, ..with_agent };
    let command = ["/usr/bin/python3", "-c", TOUCH_AND_END, data.to_str().unwrap()];
    let observation = observe_late(&command, &options);
    assert_eq!(observation.coverage, Coverage::Partial, "{observation:#?}");
}

/// Loads the library that it is given, touches three pages of a table in it, and unloads it or ends, as it is told to.
const LOAD_TOUCH_AND_END: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int count, char **arguments)
{
    void *library = dlopen(arguments[1], RTLD_NOW);
    const volatile char *table = library ? dlsym(library, "table") : 0;
    if (!table)
        return 1;
    (void)(table[20 * 4096] + table[100 * 4096] + table[230 * 4096]);
    void *first = (void *)(((uintptr_t)table + 4095) & -4096ul);
    const long bytes = 255 * 4096;
    if (!strcmp(arguments[2], "drop"))
        _exit(madvise(first, bytes, MADV_DONTNEED));
    if (!strcmp(arguments[2], "shrink"))
        _exit(mremap(first, bytes, 4096, 0) != first);
    if (!strcmp(arguments[2], "map over"))
        _exit(mmap(first, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != first);
    if (!strcmp(arguments[2], "unload"))
        return dlclose(library);
    if (!strcmp(arguments[2], "execute"))
        execl("/bin/true", "true", (char *)0);
    if (!strcmp(arguments[2], "leave"))
        _exit(0);
    return 0;
}
"#;

/// However late the observer is, nobody waits for it.
#[test]
fn what_a_process_has_touched_it_tells_itself_before_its_page_table_goes() {
    if !has(Need::Tool("cc".into())) || !has(Need::Linux(6, 11)) {
        return;
    }
    let (_dir, library, program) = library_and_program(LOAD_TOUCH_AND_END);
    let [_, _, options, _] = ways(program.to_str().unwrap());
    for then in ["unload", "execute", "leave", "return", "drop", "shrink", "map over"] {
        let command = [program.to_str().unwrap(), library.to_str().unwrap(), then];
        let observation = observe_late(&command, &options);
        let used = &file(&observation, &library).pages;
        assert!(table_is_told(used), "{then}: {used:?}");
        assert!(
            used.iter().all(|used| used.is_sure) && (4..16).contains(&pages_of(used)),
            "{then}: {used:?}"
        );
    }
}

/// Writes down for how many microseconds at most it stood still, but for what it has waited for a processor (schedstat).
const STAND_STILL: &str = r"
import os, sys, time
schedstat = os.open('/proc/thread-self/schedstat', os.O_RDONLY)
def now():
    return time.monotonic() - int(os.pread(schedstat, 99, 0).split()[1]) / 1e9
last, longest = now(), 0
end = time.monotonic() + 0.15
while time.monotonic() < end:
    at = now()
    longest, last = max(longest, at - last), at
print(int(longest * 1e6), file=open(sys.argv[1], 'a'))
";

/// For how many microseconds this thread has waited for a processor.
fn waited_us() -> u64 {
    let schedstat = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    schedstat.split(' ').nth(1).unwrap().parse::<u64>().unwrap() / 1000
}

/// A while after the beginning, page tables are looked at each 50 ms.
#[test]
fn a_visited_program_does_not_stand_still_until_page_tables_are_looked_at_again() {
    let dir = directory();
    // Where the kernel does not count that, a busy machine could not be told from a defect.
    if !has(Need::Path("/proc/thread-self/schedstat".into())) {
        return;
    }
    let times = dir.path().join("times");
    let script = "sleep 0.6; for i in 0 1 2 3 4 5 6 7 8 9; do /usr/bin/python3 -c \"$0\" \"$1\"; done";
    let [.., by_visits] = ways("/bin/sh");
    let seen = || {
        let _ = fs::remove_file(&times);
        let before_us = waited_us();
        let (_, code) = observe(&["/bin/sh", "-c", script, STAND_STILL, times.to_str().unwrap()], &by_visits);
        let waited_us = waited_us() - before_us;
        assert_eq!(code, 0);
        let times = fs::read_to_string(&times).unwrap();
        (times.lines().map(|line| line.parse().unwrap()).collect::<Vec<u64>>(), waited_us)
    };
    // About every second visit cannot end at once. On a busy machine the observer may have to wait before it ends one, and a host that takes its
    // processors back has everybody wait.
    const LONG_US: u64 = 40_000;
    let goes_on = |(times, waited_us): &(Vec<u64>, u64)| {
        let long = times.iter().filter(|&&time_us| time_us > LONG_US).count() as u64;
        times.len() == 10 && long < 3 + waited_us / LONG_US
    };
    seen_in_time(goes_on, seen);
}

/// Touches a page at once and others a while later, when perf is ready.
const TOUCH_EARLY_AND_LATE: &str = r"
import mmap, sys, time
file = open(sys.argv[1], 'rb')
mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
mapped[40 * 4096]
time.sleep(0.5)
mapped[3 * 4096]
mapped[20 * 4096]
";

#[test]
fn a_program_that_waits_for_nothing_is_seen_from_its_beginning() {
    let (_dir, data) = data(64);
    let [with_agent, ..] = ways("/usr/bin/python3");
    let options = ObserveOptions { is_patient: false, ..with_agent };
    let command = ["/usr/bin/python3", "-c", TOUCH_EARLY_AND_LATE, data.to_str().unwrap()];
    let is_exact_here = is_exact_here();
    let seen = || {
        let observation = observed(&command, &options);
        assert!(!observation.files.iter().any(|file| Path::new(&file.path) == agent()), "{observation:#?}");
        observation
    };
    let is_from_its_beginning = |observation: &Observation| {
        let used = pages_if_seen(observation, &data);
        let rank = |page| used.iter().find(|used| used.range.contains(PageIndex(page))).map(|used| used.rank);
        // libc's pages were touched in the first milliseconds.
        let libc = observation.files.iter().find(|file| file.path.contains("libc.so"));
        let has_libc = libc.is_some_and(|libc| libc.pages.iter().any(|used| used.is_sure));
        rank(40).is_some()
            && rank(40) < rank(3)
            && rank(3) < rank(20)
            && observation.coverage != Coverage::Partial
            && (has_libc || !is_exact_here)
    };
    seen_in_time(is_from_its_beginning, seen);
}

/// The observer is late by as long as it likes: what is touched before a mapping is armed comes with its neighbours, and what was
/// touched is among these.
#[test]
fn pages_touched_at_once_are_all_told() {
    if !has(Need::Tool("cc".into())) {
        return;
    }
    let source = r"
#include <fcntl.h>
#include <sys/mman.h>
int main(int argc, char **argv) {
    volatile char *memory = mmap(0, 512 * 4096, PROT_READ, MAP_PRIVATE, open(argv[1], O_RDONLY), 0);
    for (int page = 0; page < 512; page++) memory[page * 4096];
    return memory == MAP_FAILED;
}
";
    let dir = directory();
    let data = dir.path().join("data");
    // Page by page: of a single write the kernel may make one folio, which one fault maps as a whole.
    let mut file_of_pages = fs::File::create(&data).unwrap();
    (0..512).for_each(|_| file_of_pages.write_all(&[1; 4096]).unwrap());
    grow_old();
    let program = compile(dir.path(), "touch", source, &["-O0"]);
    let program = program.to_str().unwrap();
    for options in ways(program).into_iter().filter(|options| !options.without_perf) {
        for _ in 0..10 {
            let (observation, code) = observe(&[program, data.to_str().unwrap()], &options);
            let pages = pages_of(&file(&observation, &data).pages);
            assert_eq!((code, pages), (0, 512), "{options:?} {:?}", observation.unseen);
        }
    }
}

/// Its page table goes with the program that it was.
#[test]
fn what_a_process_touches_before_it_executes_another_program_is_seen_without_perf() {
    if !has(Need::Tool("cc".into())) {
        return;
    }
    let source = r#"
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int argc, char **argv) {
    volatile char *memory = mmap(0, 64 * 4096, PROT_READ, MAP_PRIVATE, open(argv[1], O_RDONLY), 0);
    for (int page = 0; page < 64; page++) memory[page * 4096];
    execl("/bin/true", "true", (char *)0);
    return 1;
}
"#;
    let dir = directory();
    let data = data_in(dir.path(), 64).canonicalize().unwrap();
    let program = compile(dir.path(), "exec", source, &["-O0"]);
    let program = program.to_str().unwrap();
    let [_, _, with_agent, _] = ways(program);
    // On a busy machine it may not wait for long enough. Then that is known.
    let is_seen_as_a_whole = || {
        let (observation, code) = observe(&[program, data.to_str().unwrap()], &with_agent);
        let files = observation.files.iter().filter(|file| Path::new(&file.path) == data);
        let pages: u64 = files.map(|file| pages_of(&file.pages)).sum();
        assert_eq!(code, 0);
        assert!(pages == 64 || observation.coverage == Coverage::Partial, "{pages} pages");
        pages == 64 && observation.coverage != Coverage::Partial
    };
    assert!((0..20).any(|_| is_seen_as_a_whole()));
}

/// Programs that behave oddly.
fn odd_programs(dir: &Path) -> Vec<Vec<String>> {
    let command = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
    let shell = |script: &str| command(&["/bin/sh", "-c", script]);
    let python = |script: &str| command(&["/usr/bin/python3", "-c", script]);
    // Registers memory of its own with a userfaultfd, in a file system in memory that only it sees.
    let registers = compile(dir, "registers", REGISTERS, &[]);
    let in_memory = format!(
        "mount -t tmpfs none {} && exec {} {0}/file",
        dir.join("memory").display(),
        registers.display()
    );
    fs::create_dir(dir.join("memory")).unwrap();
    let mut programs = vec![
        command(&["unshare", "-m", "/bin/sh", "-c", &in_memory]),
        shell("exit 3"),
        shell("for i in $(seq 300); do /bin/true || exit 1; done; exit 4"),
        command(&["/usr/bin/env", "-i", "/bin/sh", "-c", "exit 6"]),
        // Says by its exit code which descriptor is the first free one, and how many are open.
        python("import os; os._exit(os.open('/', os.O_RDONLY) * 8 + len(os.listdir('/proc/self/fd')))"),
        python("import os; os.closerange(0, 4096); import json, email; os._exit(7)"),
        python(TICKS),
        // A signal that kills is the program's own end.
        shell("kill -TERM $$; exit 1"),
        // Its descendants live on.
        shell("sleep 0.5 & exit 9"),
    ];
    if has(Need::Tool("musl-gcc".into())) {
        let [musl, source] = ["musl", "musl.c"].map(|name| dir.join(name));
        fs::write(&source, "#include <stdio.h>\nint main(void) { puts(\"static\"); return 5; }\n").unwrap();
        let mut compiler = Command::new("musl-gcc");
        let built = compiler.arg("-static").arg(&source).arg("-o").arg(&musl).status();
        assert!(built.expect("musl-gcc is there").success());
        programs.push(vec![musl.to_str().unwrap().into()]);
    }
    if has(Need::Path("/usr/bin/strace".into())) {
        let traced = ["/usr/bin/strace", "-f", "-o", "/dev/null", "/bin/sh", "-c", "/bin/true; exit 10"];
        programs.push(command(&traced));
    }
    if has(Need::Path("/usr/bin/gdb".into())) {
        let run = [
            "/usr/bin/gdb",
            "-nx",
            "-batch",
            "-ex",
            "run",
            "-ex",
            "quit $_exitcode",
            "--args",
            "/bin/sh",
            "-c",
            "exit 11",
        ];
        programs.push(command(&run));
    }
    programs
}

/// Says by its exit code whether it could register a shared mapping of the file it is given.
const REGISTERS: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(int argc, char **argv) {
    int file = open(argv[1], O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, 1 << 20)) return 2;
    char *mapped = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    mapped[0] = 1;
    usleep(100000);
    int faults = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
    struct uffdio_api api = {.api = UFFD_API};
    struct uffdio_register all = {.range = {(unsigned long)mapped, 1 << 20}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    if (faults < 0 || ioctl(faults, UFFDIO_API, &api)) return 3;
    return ioctl(faults, UFFDIO_REGISTER, &all) ? 13 : 12;
}
"#;

/// Gets a signal each millisecond while it sleeps.
const TICKS: &str = r"
import signal, time
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
for _ in range(50):
    time.sleep(0.001)
raise SystemExit(8)
";

#[test]
fn odd_programs_end_as_without_being_observed() {
    let dir = directory();
    for command in odd_programs(dir.path()) {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let plain = unobserved(&words);
        for options in ways(words[0]) {
            let (observation, found) = observe(&words, &options);
            assert_eq!(found, plain, "{words:?} {options:?} {:?}", observation.unseen);
        }
    }
}

/// Registers memory that it maps from a memfd with a userfaultfd of its own; 77 where it may not have one.
const HANDLES_ITS_FAULTS: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(void)
{
    int memory = memfd_create("memory", 0), own = syscall(SYS_userfaultfd, O_CLOEXEC | 1);
    struct uffdio_api api = {.api = UFFD_API};
    if (own < 0 || ioctl(own, UFFDIO_API, &api))
        return 77;
    if (ftruncate(memory, 1 << 20))
        return 1;
    void *mapped = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE, memory, 0);
    struct uffdio_register registered = {{(unsigned long)mapped, 1 << 20}, UFFDIO_REGISTER_MODE_MISSING};
    return mapped == MAP_FAILED || ioctl(own, UFFDIO_REGISTER, &registered);
}
"#;

#[test]
fn memory_that_a_program_handles_faults_of_is_left_to_it() {
    let dir = directory();
    let program = compile(dir.path(), "program", HANDLES_ITS_FAULTS, &[]);
    let program = program.to_str().unwrap();
    let plain = unobserved(&[program]);
    assert!([0, 77].contains(&plain), "{plain}");
    for options in ways(program) {
        let (observation, found) = observe(&[program], &options);
        assert_eq!(found, plain, "{options:?} {:?}", observation.unseen);
    }
}

#[test]
fn names_and_reads_are_seen_from_inside() {
    let (_dir, data) = data(8);
    let [options, ..] = ways("/usr/bin/head");
    let (observation, code) = observe(&["/usr/bin/head", "-c", "9000", data.to_str().unwrap()], &options);
    assert_eq!((code, observation.names_coverage), (0, Coverage::Exact), "{:?}", observation.unseen);
    // ld.so looks for the second one before the agent is there.
    for expected in [&*data, Path::new("/etc/ld.so.preload")] {
        assert!(observation.names.iter().any(|name| Path::new(&name.path) == expected), "{expected:?}");
    }
    let used = &file(&observation, &data).pages;
    assert!(used[0].by_read && used[0].range.start().0 == 0 && used[0].range.end().0 >= 3, "{used:?}");
}

/// ld.so reads its cache, and the head and the dynamic section of each library as it loads it; then it relocates the last one first.
#[test]
fn libraries_are_told_in_the_order_in_which_they_are_loaded() {
    let [options, ..] = ways("/bin/ls");
    let program = Path::new("/bin/ls");
    let orders = || {
        let observation = observed(&[program.to_str().unwrap(), "/"], &options);
        orders_of_libraries(&observation)
    };
    let are_in_order = |orders: &[Vec<Option<u32>>; 2]| {
        orders.iter().all(|order| order.is_sorted() && order.iter().all(Option::is_some))
    };
    seen_in_time(are_in_order, orders);
}

/// When the head of ld.so was used, and when that of its cache, each before those of the libraries as their names were looked up.
fn orders_of_libraries(observation: &Observation) -> [Vec<Option<u32>>; 2] {
    let ranks = |file: &ObservedFile| Some(file.pages.iter().find(|used| used.range.start().0 == 0)?.rank);
    let cache = file(observation, Path::new("/etc/ld.so.cache"));
    assert_eq!(cache.pages.last().unwrap().range.end().0, cache.identity.size_bytes.div_ceil(4096));
    let mut libraries: Vec<&ObservedFile> = Vec::new();
    for name in &observation.names {
        let Ok(path) = Path::new(&name.path).canonicalize() else { continue };
        let found =
            observation.files.iter().find(|file| Path::new(&file.path) == path && name.path.contains(".so."));
        libraries.extend(found.filter(|found| {
            found.path != cache.path && !libraries.iter().any(|known| known.path == found.path)
        }));
    }
    assert!(libraries.len() > 1, "{:?}", observation.names);
    let loader = observation
        .files
        .iter()
        .find(|file| file.path.contains("/ld-linux") || file.path.contains("/ld-2"))
        .unwrap();
    [loader, cache].map(|first| [first].into_iter().chain(libraries.iter().copied()).map(ranks).collect())
}

/// A library that touches two pages of a table while ld.so relocates it, the one behind first.
const RELOCATED: &str = r#"
static const volatile char table[64 * 4096] = {1};
static void rest(void)
{
    for (volatile long turn = 0; turn < 60000000; turn++)
        ;
}
static int nothing(void)
{
    return 0;
}
static void *resolve(void)
{
    (void)table[40 * 4096];
    rest();
    (void)table[4 * 4096];
    return nothing;
}
static int resolved(void) __attribute__((ifunc("resolve")));
int (*pointer)(void) = resolved;
"#;

/// The agent's word comes when all is relocated.
#[test]
fn what_is_used_before_the_agent_sends_word_is_told_in_its_order() {
    if !is_exact_here() {
        return;
    }
    let dir = directory();
    let library = compile(dir.path(), "librelocated.so", RELOCATED, &["-shared", "-fPIC"]);
    let program = program_with(&library);
    grow_old();
    let program = program.to_str().unwrap();
    let [perf, _, page_tables, _] = ways(program);
    for options in [ObserveOptions { is_patient: false, ..perf }, page_tables] {
        let is_in_order = |_| {
            let observation = observed(&[program], &options);
            let used = &pages_if_seen(&observation, &library);
            // The table lies behind headers and code.
            let rank_in = |pages: std::ops::Range<u64>| {
                used.iter().find(|used| pages.contains(&used.range.start().0)).map(|used| used.rank)
            };
            let [behind, before] = [rank_in(40..50), rank_in(4..14)];
            assert!(is_told_or_late(&observation, behind.is_some() && before.is_some()), "{options:?}");
            behind.is_some() && behind < before
        };
        // On a busy machine the observer may come too late.
        assert!((0..5).any(is_in_order), "{options:?}");
    }
}

/// Writes how many pages it has touched that were in memory, as the kernel counts faults, into the file that it is given.
const COUNT_FAULTS: &str = r#"
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>
int main(int count, char **arguments)
{
    struct rusage usage;
    FILE *file = fopen(arguments[1], "w");
    if (getrusage(RUSAGE_SELF, &usage) || !file)
        return count;
    fprintf(file, "%ld", usage.ru_minflt);
    fclose(file);
    /* Page tables are looked at while they are there. */
    usleep(100000);
    return 0;
}
"#;

/// ld.so reads them from their beginning to their end: it need not have a fault for each of their pages.
#[test]
fn large_tables_of_relocations_are_told_surely_and_in_order_for_few_faults() {
    if !is_exact_here() {
        return;
    }
    const RELOCATIONS: u64 = 200_000;
    /// Some pages in front of the table and within it, and one behind it.
    const TABLE: [u64; 2] = [2, RELOCATIONS * 24 / 4096];
    let dir = directory();
    let source = format!("static char at; char *all[{RELOCATIONS}] = {{[0 ... {RELOCATIONS} - 1] = &at}};");
    let unpacked = ["-shared", "-fPIC", "-Wl,-z,nopack-relative-relocs"];
    let library = compile(dir.path(), "libtable.so", &source, &unpacked);
    // What is written at once may lie in huge pages, which one fault maps.
    let written = fs::read(&library).unwrap();
    let mut in_pages = fs::File::create(&library).unwrap();
    written.chunks(4096).for_each(|page| in_pages.write_all(page).unwrap());
    drop(in_pages);
    // It is relocated next, for which it takes a while, and then uses a page of its own.
    let next = compile(dir.path(), "librelocated.so", RELOCATED, &["-shared", "-fPIC"]);
    let place = format!("-Wl,-rpath,{}", dir.path().display());
    let libraries = [&next, &library].map(|path| path.to_str().unwrap());
    let options = ["-Wl,--no-as-needed", libraries[0], libraries[1], &place];
    let program = compile(dir.path(), "program", COUNT_FAULTS, &options);
    let counted = dir.path().join("faults");
    grow_old();
    let command = [&program, &counted].map(|path| path.to_str().unwrap());
    let faults = || fs::read_to_string(&counted).unwrap().parse::<u64>().unwrap();
    assert_eq!(unobserved(&command), 0);
    let plain = faults();
    let [perf, _, page_tables, _] = ways(command[0]);
    for options in [ObserveOptions { is_patient: false, ..perf.clone() }, page_tables, perf] {
        let is_in_order = |_| {
            let observation = observed(&command, &options);
            let [first, end] = TABLE;
            let used = pages_if_seen(&observation, &library);
            let of_table = used.iter().filter(|used| used.range.start().0 < end);
            let sure: u64 = of_table.clone().filter(|used| used.is_sure).map(|used| used.range.len()).sum();
            // Where perf tells of each fault, each page needs its own.
            let more = faults().saturating_sub(plain);
            let needs_each = options.is_patient && !options.without_perf;
            let is_told = sure >= end - first && (more > (end - first) / 2) == needs_each;
            let of_table = of_table.filter(|used| used.range.end().0 > first);
            let ranks: Vec<u32> = of_table.map(|used| used.rank).collect();
            let next = pages_if_seen(&observation, &next);
            let next = next.iter().find(|used| (4..14).contains(&used.range.start().0));
            is_told
                && ranks.is_sorted()
                && next.is_some_and(|next| ranks.iter().all(|rank| *rank < next.rank))
        };
        // On a busy machine the observer may come too late.
        assert!((0..5).any(is_in_order), "{options:?}");
    }
}

/// As daemons and what shells leave in the background do: its parent ends, and it is no descendant of the program any more.
#[test]
fn a_process_whose_parent_has_ended_is_seen_by_what_its_agent_says() {
    if !is_exact_here() {
        return;
    }
    let dir = directory();
    let (data, code) = (data_in(dir.path(), 64), dir.path().join("code"));
    let script = format!(
        "( (/usr/bin/python3 -c \"$0\" '{}' 3 40; echo $? >'{code}') &) & wait; until [ -s '{code}' ]; do sleep 0.1; done",
        data.display(),
        code = code.display(),
    );
    for options in ways("/bin/sh").into_iter().filter(|options| options.program.is_some()) {
        let seen = || {
            let (observation, _) = observe(&["/bin/sh", "-c", &script, MAP_AND_TOUCH], &options);
            assert_eq!(fs::read_to_string(&code).unwrap(), "0\n", "{options:?}");
            fs::remove_file(&code).unwrap();
            (pages_if_seen(&observation, &data), observation.unseen)
        };
        seen_in_time(|(used, _)| [3, 40].iter().all(|&page| has_page(used, page)), seen);
    }
}

/// As flatpak, bwrap and containers do: another directory in the place of one of the host's.
#[test]
fn files_in_another_mount_namespace_are_not_taken_for_those_of_the_same_name_here() {
    if !has(Need::Root) || !has(Need::Mounts) || !is_exact_here() {
        return;
    }
    let dir = directory();
    let [host, inside] = ["host", "inside"].map(|name| {
        let directory = dir.path().join(name);
        fs::create_dir(&directory).unwrap();
        directory
    });
    let (at_host, shared) = (data_in(&host, 64), data_in(dir.path(), 64));
    data_in(&inside, 64);
    fs::write(host.join("read"), vec![1; 8 * 4096]).unwrap();
    fs::write(inside.join("read"), vec![2; 8 * 4096]).unwrap();
    grow_old();
    let touch = format!(
        "{MAP_AND_TOUCH}\n\
         assert open('{host}/read', 'rb').read()[0] == 2\n\
         import os\n\
         os.path.exists('{host}/only-inside')\n\
         sys.argv[1] = '{shared}'\n{MAP_AND_TOUCH}\n",
        host = host.display(),
        shared = shared.display(),
    );
    let script = format!(
        "mount --bind '{}' '{}' && /usr/bin/python3 -c \"$0\" '{}' 3 40",
        inside.display(),
        host.display(),
        at_host.display()
    );
    let command = ["/usr/bin/unshare", "-m", "/bin/sh", "-c", &script, &touch];
    for options in ways("/usr/bin/unshare") {
        let seen = || {
            let observation = observed(&command, &options);
            let here = |path: &str| Path::new(path).starts_with(&host);
            assert!(!observation.files.iter().any(|file| here(&file.path)), "{options:?} {observation:#?}");
            assert!(!observation.names.iter().any(|name| here(&name.path)), "{options:?} {observation:#?}");
            (pages_if_seen(&observation, &shared), observation.unseen)
        };
        // What is the same there is learned.
        let is_told = |(pages, unseen): &(Vec<UsedPages>, Vec<String>)| {
            has_page(pages, 40) && unseen.iter().any(|line| line.contains("mount namespace"))
        };
        seen_in_time(is_told, seen);
    }
}

/// With LD_DEBUG, ld.so tells of all libraries.
#[test]
fn a_program_whose_loading_is_looked_at_gets_no_agent() {
    if !is_child(&this_test()) {
        for (what, agents) in [("LD_DEBUG=unused", 0), ("LD_DEBUG=", 2)] {
            assert_passed(&child(&this_test(), &["env", what, &format!("PREPAGE_TEST_VARIABLES={agents}")]));
        }
        return;
    }
    let [options, ..] = ways("/bin/true");
    let (observer, until, child, _one_at_a_time) = start(&["/bin/true"], &options);
    let variables = observer.program_arguments().len();
    observer.follow(&until);
    assert_eq!(end_of(child), 0);
    assert_eq!(std::env::var("PREPAGE_TEST_VARIABLES"), Ok(variables.to_string()));
}

#[test]
fn a_filter_on_system_calls_is_not_provoked() {
    // Any userfaultfd kills a program under this filter; the program says by its code that it lives.
    const FILTERED: &str = r"
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
USERFAULTFD = 323
kill, allow = 0x80000000, 0x7fff0000
program = [(0x20, 0, 0, 0), (0x15, 0, 1, USERFAULTFD), (0x06, 0, 0, kill), (0x06, 0, 0, allow)]
code = b''.join(struct.pack('HBBI', *line) for line in program)
buffer = ctypes.create_string_buffer(code)
fprog = struct.pack('HxxxxxxQ', len(program), ctypes.addressof(buffer))
libc.prctl(38, 1, 0, 0, 0)
assert libc.prctl(22, 2, fprog, 0, 0) == 0, ctypes.get_errno()
os.execv('/bin/sh', ['sh', '-c', '/bin/true; exit 12'])
";
    for options in ways("/usr/bin/python3") {
        let (observation, code) = observe(&["/usr/bin/python3", "-c", FILTERED], &options);
        assert_eq!(code, 12, "{options:?}");
        assert!(observation.coverage != Coverage::Exact, "{options:?}: {:?}", observation.unseen);
    }
}

/// In a sandbox of its own a program is asked nothing more by its agent, which tells how much it could not say.
#[test]
fn names_that_a_sandbox_keeps_from_the_agent_are_told_as_missing() {
    const SANDBOXED: &str = r#"
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <string.h>
#include <sys/prctl.h>
int main(int count, char **arguments)
{
    struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {1, &allow};
    if (!strcmp(arguments[1], "sandbox") &&
        (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)))
        return 1;
    return open("relative", O_RDONLY) >= 0;
}
"#;
    let dir = directory();
    let program = compile(dir.path(), "program", SANDBOXED, &[]);
    let [with_agent, ..] = ways(program.to_str().unwrap());
    for (argument, expected) in [("none", Coverage::Exact), ("sandbox", Coverage::Partial)] {
        let observation = observed(&[program.to_str().unwrap(), argument], &with_agent);
        let found = (observation.names_coverage, observation.reads_coverage);
        assert_eq!(found, (expected, expected), "{argument}: {:?}", observation.unseen);
    }
}

/// Whether this is the process in a sandbox that refuses what observing goes by at best. Where it is not, the calling test is run in one.
fn is_in_a_sandbox() -> bool {
    let test = this_test();
    if is_child(&test) {
        return true;
    }
    // The filter is this thread's, and of all that it starts.
    let in_a_thread = move || {
        let refused = [libc::SYS_userfaultfd, libc::SYS_ptrace, libc::SYS_perf_event_open];
        let filter = refuse(&refused.map(|call| (call, When::Always)));
        let denied = |error: &std::io::Error| error.kind() == std::io::ErrorKind::PermissionDenied;
        unless_refused(filter, Need::Path("a kernel with seccomp".into()), denied)?;
        Some(child(&test, &[]))
    };
    let _one_at_a_time = ONE_AT_A_TIME.lock().anyway();
    if let Some(output) = std::thread::spawn(in_a_thread).join().unwrap() {
        assert_passed(&output);
    }
    false
}

/// Touches a page, and another a while later; page tables are looked at meanwhile.
const TOUCH_IN_TURN: &str = r"
import mmap, sys, time
file = open(sys.argv[1], 'rb')
mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
mapped[40 * 4096]
time.sleep(0.3)
mapped[3 * 4096]
time.sleep(0.3)
";

#[test]
fn in_a_sandbox_pages_come_in_their_order() {
    if !is_in_a_sandbox() {
        return;
    }
    let (_dir, data) = data(64);
    let [with_agent, ..] = ways("/usr/bin/python3");
    let command = ["/usr/bin/python3", "-c", TOUCH_IN_TURN, data.to_str().unwrap()];
    let seen = || {
        let observation = observed(&command, &with_agent);
        pages_if_seen(&observation, &data)
    };
    let is_in_order = |used: &Vec<UsedPages>| {
        let rank = |page| used.iter().find(|used| used.range.contains(PageIndex(page))).map(|used| used.rank);
        // As long as the agent was waited for, which cannot arm anything here, nothing was looked at.
        rank(40).is_some() && rank(40) < rank(3)
    };
    seen_in_time(is_in_order, seen);
}

#[test]
fn the_start_is_over_when_no_file_is_touched_any_more() {
    let [options, ..] = ways("/bin/sleep");
    let (observer, until, child, _one_at_a_time) = start(&["/bin/sleep", "60"], &options);
    let observation = observer.follow(&until);
    assert!(until.ended_ns().is_none() && !until.wait_for(Duration::ZERO), "it waited for the end");
    assert!(observation.files.iter().any(|file| file.path.ends_with("/sleep")));
    let status = fs::read_to_string(format!("/proc/{}/status", child.pid())).unwrap();
    assert!(status.contains("TracerPid:\t0"), "{status}");
    child.signal(9).unwrap();
    child.wait().unwrap();
}

/// Touches new pages of memory that is mapped like a file for three seconds, and late among these a page of the file that it is given.
const TOUCH_MEMORY: &str = r"
import mmap, os, sys, tempfile, time
shared = tempfile.TemporaryFile(dir='/dev/shm').fileno()
memory = []
for file in (os.memfd_create('memory'), shared):
    os.truncate(file, 30 * 4096)
    memory.append(mmap.mmap(file, 0))
memory.append(mmap.mmap(-1, 30 * 4096))
data = mmap.mmap(os.open(sys.argv[1], os.O_RDONLY), 0, access=mmap.ACCESS_COPY)
for page in range(30):
    time.sleep(0.1)
    for mapped in memory:
        mapped[page * 4096]
    if page == 26:
        data[7 * 4096]
";

#[test]
fn touches_of_memory_are_no_touches_of_files() {
    let (_dir, data) = data(16);
    let [options, ..] = ways("/usr/bin/python3");
    let command = ["/usr/bin/python3", "-c", TOUCH_MEMORY, data.to_str().unwrap()];
    let seen = || {
        let observation = observed(&command, &options);
        pages_if_seen(&observation, &data)
    };
    // The start was over by then.
    seen_in_time(Vec::is_empty, seen);
}

/// Touches the first page of the file that it is given, and ends with whether the last one is in memory 0.3 s later.
const TOUCH_FIRST: &str = r"
import mmap, os, sys, time
file = os.open(sys.argv[1], os.O_RDONLY)
mapped = mmap.mmap(file, 0, access=mmap.ACCESS_READ)
mapped.madvise(mmap.MADV_RANDOM)
mapped[0]
time.sleep(0.3)
try:
    sys.exit(os.preadv(file, [bytearray(1)], len(mapped) - 1, os.RWF_NOWAIT))
except BlockingIOError:
    pass
";

/// To put an observation together, the head and the end of each file are read. In a container it is handed out early.
#[test]
fn what_was_seen_so_far_is_put_together_only_for_those_who_want_it() {
    let evicts = Need::Eviction(env!("CARGO_MANIFEST_DIR").into());
    if !has(Need::Root) || !has(Need::Mounts) || !has(evicts) {
        return;
    }
    if !is_child(&this_test()) {
        return assert_passed(&child(&this_test(), &["unshare", "--pid", "--fork", "--mount-proc"]));
    }
    let (_dir, data) = data(64);
    let file = fs::File::open(&data).unwrap();
    file.sync_all().unwrap();
    evict(file.as_fd(), Duration::from_secs(60)).unwrap();
    let [options, ..] = ways("/usr/bin/python3");
    let observation = observed(&["/usr/bin/python3", "-c", TOUCH_FIRST, data.to_str().unwrap()], &options);
    assert!(has_page(&self::file(&observation, &data).pages, 0));
}

/// The program comes first, unless it waits for the observer.
#[test]
fn who_follows_gives_way_where_that_is_wanted() {
    const BATCH: &str = "3";
    let policy = || {
        let stat = fs::read_to_string("/proc/thread-self/stat").unwrap();
        stat.rsplit(')').next().unwrap().split_ascii_whitespace().nth(38).unwrap().to_owned()
    };
    let before = policy();
    for gives_way in [false, true] {
        let after = std::thread::spawn(move || {
            observe(&["/bin/true"], &ObserveOptions { gives_way, ..ObserveOptions::default() });
            policy()
        });
        let expected = if gives_way { BATCH } else { &before };
        assert_eq!(after.join().unwrap(), expected);
    }
}
