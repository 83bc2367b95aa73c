//! Processes that run already and that are hard to attach to.

use std::collections::HashMap;
use std::fs;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread::sleep;
use std::time::{Duration, Instant};

use prepage_core::{Fault, FaultClass, PAGE_SIZE};
use prepage_sys::sync::Anyway;
use prepage_testing::{Hung, Need, copy_program, has, passes_as_child, unless_refused};
use prepage_trace::{RecordOptions, Recorded, Recorder, Scope};

mod support;

use support::{FAULTS, MACHINE, is_recording_refused, record_for_a_while, recorded_in_time};

/// Forks children, which fault for some 50 ms, and says so once the first have ended.
const FORKS: &str = "
import mmap, os, time
def child():
    end = time.monotonic() + 0.05
    while time.monotonic() < end:
        memory = mmap.mmap(-1, 16 * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for at in range(0, len(memory), 4096): memory[at] = 1
        memory.close()
        time.sleep(0.001)
    os._exit(0)
running = forked = 0
while True:
    if os.fork() == 0: child()
    running += 1
    forked += 1
    if forked == 20: print(flush=True)
    time.sleep(0.002)
    while running > 8 or running and os.waitpid(-1, os.WNOHANG)[0]:
        if running > 8: os.wait()
        running -= 1
";

/// A program that would go on for ever.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A child inherits the events of its parent that there are as it is forked.
#[test]
fn children_forked_while_their_parent_is_attached_to_are_recorded_in_full() {
    /// Faults that may be seen in part as the recording begins and ends.
    const AT_EDGES: usize = 40;
    if !has(Need::Tool("python3".into())) {
        return;
    }
    let (mut in_part, mut rounds) = (Vec::new(), 0);
    for round in 0..20 {
        let python = Command::new("python3").args(["-c", FORKS]).stdout(Stdio::piped()).spawn();
        let mut python = Killed(python.expect("started"));
        python.0.stdout.take().expect("a pipe").read_exact(&mut [0]).expect("a line");
        let scope = Scope::Processes(vec![python.0.id()]);
        let options =
            RecordOptions { duration: Some(Duration::from_millis(100)), ..RecordOptions::default() };
        let recorded = record_for_a_while(&scope, &options);
        drop(python);
        let Some((faults, Recorded { threads, facts, .. })) = recorded else { return };
        let mut by_process: HashMap<u32, Vec<&Fault>> = HashMap::new();
        for fault in &faults {
            by_process.entry(threads[fault.thread.0 as usize].pid).or_default().push(fault);
        }
        // What is lost on a busy machine may be the faults with a cost, and there the processes may get no processor.
        if facts.lost > 0 || by_process.len() < 2 {
            continue;
        }
        rounds += 1;
        for (pid, faults) in by_process {
            let costless = faults.iter().filter(|fault| fault.cost_ns.is_none()).count();
            if faults.len() > AT_EDGES && costless == faults.len() {
                in_part.push((round, pid, costless));
            }
        }
    }
    assert!(rounds >= 5, "{rounds}");
    // On a busy machine a fork may now and then take longer than it is waited for.
    assert!(in_part.len() <= 3, "none of their faults has a cost: {in_part:?}");
}

/// The first thread ends; the second touches a file that was mapped before.
const FIRST_THREAD_ENDS: &str = r"
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>
static volatile char *pages;
static void *touch(void *none) {
    for (;;) {
        for (int page = 0; page < 16; page++) (void)pages[page * 4096];
        madvise((void *)pages, 16 * 4096, MADV_DONTNEED);
        usleep(1000);
    }
    return none;
}
int main(int argc, char **argv) {
    pthread_t second;
    pages = mmap(0, 16 * 4096, PROT_READ, MAP_PRIVATE, open(argv[argc - 1], O_RDONLY), 0);
    pthread_create(&second, 0, touch, 0);
    pthread_exit(0);
}";

#[test]
fn a_process_whose_first_thread_has_ended_is_recorded_with_its_files() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let [source, program, data] = ["a.c", "a", "data"].map(|name| dir.path().join(name));
    if !has(Need::Tool("gcc".into())) {
        return;
    }
    fs::write(&source, FIRST_THREAD_ENDS).expect("written");
    fs::write(&data, vec![1; 16 * 4096]).expect("written");
    let built = Command::new("gcc").args(["-pthread", "-o"]).args([&program, &source]).status();
    assert!(built.expect("gcc runs").success());
    let child = Killed(Command::new(&program).arg(&data).spawn().expect("started"));
    let pid = child.0.id();
    let has_ended = || fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs").contains(") Z ");
    let deadline = Instant::now() + Duration::from_secs(60);
    while !has_ended() && Instant::now() < deadline {
        sleep(Duration::from_millis(5));
    }
    let mut scopes = vec![Scope::Processes(vec![pid])];
    if has(Need::Root) {
        scopes.push(Scope::System);
    }
    for scope in &scopes {
        let is_of_data = |faults: &[Fault], Recorded { threads, objects, .. }: &Recorded| {
            let of_it = |fault: &&Fault| threads[fault.thread.0 as usize].pid == pid;
            let path = |fault: &Fault| fault.object.map(|id| objects[id.0 as usize].path.as_str());
            let mut of_data = faults.iter().filter(of_it).filter(|fault| path(fault) == data.to_str());
            of_data.any(|fault| fault.class == FaultClass::Cached)
        };
        let record = || record_for_a_while(scope, &RecordOptions::default());
        let Some((faults, recorded)) = recorded_in_time(is_of_data, record) else { return };
        assert!(is_of_data(&faults, &recorded), "{:?}", recorded.facts);
    }
}

/// Processes with so many mappings that it takes a while to read them; one of them faults for ever. They end with it.
const MANY_MAPPINGS: &str = "
import mmap, os
private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
def mapped(at):
    # Neighbours with the same permission would be one mapping.
    prot = mmap.PROT_READ | (mmap.PROT_WRITE if at % 2 else 0)
    return mmap.mmap(-1, 4096, flags=private, prot=prot)
kept = [mapped(at) for at in range(30000)]
ends, parent = os.pipe()
for child in range(8):
    if os.fork() == 0:
        os.close(parent)
        os.read(ends, 1)
        os._exit(0)
memory = mmap.mmap(-1, 16 << 20, flags=private)
data = bytes(len(memory))
print(flush=True)
while True:
    memory[:] = data
    memory.madvise(mmap.MADV_DONTNEED)
";

#[test]
fn nothing_is_lost_while_the_processes_of_a_busy_machine_are_looked_at() {
    if !has(Need::Root) || !has(Need::Tool("python3".into())) {
        return;
    }
    // Who records may itself get no processor for too long.
    let loses_nothing = |page_cache| {
        let python = Command::new("python3").args(["-c", MANY_MAPPINGS]).stdout(Stdio::piped()).spawn();
        let mut python = Killed(python.expect("started"));
        python.0.stdout.take().expect("a pipe").read_exact(&mut [0]).expect("a line");
        let _machine = MACHINE.lock().anyway();
        let started =
            Recorder::start(&Scope::System, &RecordOptions { page_cache, ..RecordOptions::default() });
        drop(python);
        let recorder = unless_refused(started, FAULTS, is_recording_refused);
        recorder.is_none_or(|recorder| recorder.finish().facts.lost == 0)
    };
    for page_cache in [false, true] {
        assert!((0..5).any(|_| loses_nothing(page_cache)), "{page_cache}");
    }
}

/// Set for the copy of this program that may mount: a directory with a file system of its own.
const OVER: &str = "PREPAGE_TEST_OVER";

#[test]
fn a_file_system_that_does_not_answer_keeps_no_trace_from_being_saved() {
    if let Some(point) = std::env::var_os(OVER) {
        return record_below(point.as_ref());
    }
    if !has(Need::Root) || !has(Need::Mounts) || !has(Need::Path("/dev/fuse".into())) {
        return;
    }
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let script = format!(r#"set -e; mount -t tmpfs none "$1"; export {OVER}="$1"; shift; exec "$@""#);
    let path = dir.path().to_str().expect("plain");
    passes_as_child(&["unshare", "--mount", "sh", "-c", &script, "sh", path]);
}

fn record_below(point: &Path) {
    let directory = point.join("directory");
    fs::create_dir(&directory).expect("made");
    let program = directory.join("sleep");
    copy_program("/bin/sleep", &program);
    // Another file of the same file system.
    let maps = fs::read_to_string("/proc/self/maps").expect("it runs");
    let library =
        maps.lines().find_map(|line| line.split_once('/').filter(|(_, path)| path.contains("/libc.so")));
    fs::copy(Path::new("/").join(library.expect("mapped").1), point.join("libc.so.6")).expect("copied");
    let sleeper = Command::new(&program).arg("60").env("LD_LIBRARY_PATH", point).spawn();
    let sleeper = Killed(sleeper.expect("started"));
    let pid = sleeper.0.id();
    let has_begun = || fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs").contains("libc");
    let deadline = Instant::now() + Duration::from_secs(60);
    while !has_begun() && Instant::now() < deadline {
        sleep(Duration::from_millis(5));
    }
    let (begins, begun) = channel();
    let (hangs, hung) = channel();
    let (ends, ended) = channel();
    std::thread::spawn(move || {
        let started = Recorder::start(&Scope::Processes(vec![pid]), &RecordOptions::default());
        let recorder = unless_refused(started, FAULTS, is_recording_refused);
        begins.send(recorder.is_some()).expect("it waits");
        let Some(recorder) = recorder else { return };
        hung.recv().expect("a word");
        let Recorded { facts, objects, .. } = recorder.finish();
        let _ = ends.send((facts, objects));
    });
    if !begun.recv().expect("a word") {
        return;
    }
    // Over the one that has the program: its name leads there.
    let mounted = Hung::mount(&directory);
    hangs.send(()).expect("it waits");
    let saved = ended.recv_timeout(Duration::from_secs(60));
    drop(mounted);
    let (facts, objects) = saved.expect("an end");
    assert_eq!(facts.unanswered_files, 1, "{:?}", facts.missing());
    assert!(objects.iter().any(|object| point.join("libc.so.6").to_str() == Some(&object.path)));
    for object in objects.iter().filter(|object| object.is_file()) {
        assert_eq!(object.size_bytes.is_none(), program.to_str() == Some(&object.path), "{object:?}");
    }
}

/// Set for the copy of this program that has an overlay: its directory.
const OVERLAY: &str = "PREPAGE_TEST_OVERLAY";
const PAGES: u64 = 512;

/// Mappings have an overlay's own number of a file, and the page cache that of the file below.
#[test]
fn who_uses_the_pages_of_a_file_in_an_overlay_is_seen() {
    if let Some(directory) = std::env::var_os(OVERLAY) {
        return touch_in_overlay(directory.as_ref());
    }
    if !has(Need::Root) || !has(Need::Mounts) || !has(Need::Path("/sys/module/overlay".into())) {
        return;
    }
    // On a disk: the system's temporary directory may be in memory.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let script = r#"set -e; cd "$1"; mkdir lower upper work merged
        mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work overlay merged
        export PREPAGE_TEST_OVERLAY="$1"; shift; exec "$@""#;
    let path = dir.path().to_str().expect("plain");
    passes_as_child(&["unshare", "--mount", "sh", "-c", script, "sh", path]);
}

fn touch_in_overlay(directory: &Path) {
    let below = directory.join("lower/data");
    fs::write(&below, vec![1; (PAGES * PAGE_SIZE) as usize]).expect("written");
    let file = fs::File::open(&below).expect("there");
    file.sync_all().expect("on disk");
    prepage_sys::cachestat::evict(file.as_fd(), Duration::from_secs(60)).expect("made cold");
    let touch = format!(
        "import mmap, os\n\
         file = os.open('{}/merged/data', os.O_RDONLY)\n\
         memory = mmap.mmap(file, 0, prot=mmap.PROT_READ)\n\
         print(sum(memory[::4096]))",
        directory.display()
    );
    let command = ["python3", "-c", &touch].map(Into::into).to_vec();
    let options = RecordOptions {
        page_cache: true,
        duration: Some(Duration::from_secs(60)),
        ..RecordOptions::default()
    };
    let Some((_, recorded)) = record_for_a_while(&Scope::Command(command), &options) else { return };
    let inode = file.metadata().expect("there").ino();
    let facts = recorded.facts.page_cache.expect("asked for");
    let data = facts.files.iter().find(|file| file.inode == inode && file.pages_read_in >= PAGES);
    let data = data.unwrap_or_else(|| panic!("{facts:?}"));
    let unused = data.pages_untouched + data.pages_mapped_nearby + data.pages_forgotten;
    assert!(unused < data.pages_read_in, "{data:?}");
}
