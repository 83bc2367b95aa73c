//! Which names a process and what it starts look up, found or not, as the kernel is asked for them (Linux 5.8; CAP_SYS_ADMIN, or CAP_BPF and
//! CAP_PERFMON).
//!
//! Three small programs run at tracepoints ([`crate::bpf`]). One sees each system call that is done, and copies the path of those that have one: before
//! that the path may lie in a page of the program's file that is not in memory yet. Two follow forks and exits. While anybody is followed each system
//! call of the machine takes longer (docs/adr/0012-the-service.md). Whoever changes what names mean, by chroot(2) or mount(2), is followed no further;
//! so is, before Linux 6.16, a process whose first thread ends before the others.

use std::collections::HashMap;
use std::ffi::CStr;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::bpf::{At, Program, Queue, RunsAt, Values};
use crate::perf::{Observed, PerfEvent, Setup, Source, Tracefs, online_cpus};
use crate::sync::Anyway;

mod programs;

use programs::{
    ENTERS, ENTERS_DESCRIPTOR, IS_ANYBODY_WANTED, LOST, PATH_AT, PROCESS, PROCESSES, WANTED, WORDS, calls,
    exits, forks,
};

/// Starts that are followed at once.
const FOLLOWED_MAX: usize = 12;
/// Names that are kept of one start until somebody looks.
const NAMES_MAX: usize = 1 << 16;
/// Some 5,000 names: more than are looked up between two reads.
const QUEUE_BYTES: u32 = 512 << 10;

/// A name that was looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookedUp {
    /// When, nanoseconds of CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// By which process.
    pub pid: u32,
    /// What the path is relative to.
    pub relative_to: RelativeTo,
    /// The path; without one of [`RelativeTo::EntersDescriptor`].
    pub path: Vec<u8>,
    /// What the system call gave: 0 or more, or an error number less than 0.
    pub result: i32,
}

/// What a path that is not absolute is relative to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelativeTo {
    /// In the working directory.
    WorkingDirectory,
    /// There as well, and if it was found it is the working directory from then on.
    Enters,
    /// Nothing is looked up: a directory that the process had open is its working directory from then on.
    EntersDescriptor,
    /// In a directory that the process had open.
    Descriptor,
}

/// The programs that see names being looked up.
#[derive(Debug)]
pub struct Lookups {
    /// The one that follows forks, and its tracepoint.
    forks: (Program, u64),
    /// The others, each with its tracepoint.
    others: [(Program, &'static CStr); 2],
    cpu: u32,
    values: Values,
    numbers: AtomicU32,
    state: Mutex<State>,
}

/// Protected by `Lookups::state`.
#[derive(Debug)]
struct State {
    queue: Queue,
    /// By number: what was read for somebody by somebody else.
    followed: HashMap<u32, Vec<LookedUp>>,
    /// While it is there, the programs run.
    running: Option<(PerfEvent, Vec<RunsAt>)>,
}

impl State {
    /// Takes what is in the queue, and keeps it for whoever is followed. Counts in `lost` what there is no room for.
    fn take(&mut self, lost: &AtomicU64) {
        let followed = &mut self.followed;
        self.queue.take(&mut |bytes| {
            let Some((number, looked_up)) = parse(bytes) else { return };
            match followed.get_mut(&number) {
                Some(all) if all.len() < NAMES_MAX => all.push(looked_up),
                Some(_) => {
                    lost.fetch_add(1, Ordering::Relaxed);
                }
                None => {}
            }
        });
    }
}

/// A start that is followed until this is dropped.
#[derive(Debug)]
pub struct Followed {
    lookups: Arc<Lookups>,
    number: u32,
    lost: u64,
}

impl Lookups {
    /// Makes the programs; none runs yet.
    ///
    /// # Errors
    /// EPERM without the right to make them, EINVAL on older kernels, and where there are no tracepoints; EPERM where a kernel that is locked down for
    /// confidentiality lets nobody read its memory.
    pub fn new() -> io::Result<Self> {
        let values = Values::new(WORDS)?;
        let queue = Queue::new(QUEUE_BYTES)?;
        let tracefs = Tracefs::open()?;
        let namespace = std::fs::metadata("/proc/self/ns/pid")?;
        // Linux 6.16: whether the thread that ends was the last one of its process.
        let exit = tracefs.tracepoint("sched", "sched_process_exit").map_err(io::Error::other)?;
        let tells_last = exit.field("group_dead").is_ok();
        let fork = tracefs.tracepoint("sched", "sched_process_fork").map_err(io::Error::other)?;
        let child = fork.field("child_pid").map_err(io::Error::other)?.offset() as i16;
        let forks = (Program::load(forks(&values, child), At::Record)?, fork.id);
        // Who is followed is taken up by the last of them.
        let load = |code, tracepoint| Ok::<_, io::Error>((Program::load(code, At::Arguments)?, tracepoint));
        let others = [
            load(exits(&values, tells_last), c"sched_process_exit")?,
            load(calls(&values, &queue, &namespace), c"sys_exit")?,
        ];
        let cpu = online_cpus()?.first().copied().unwrap_or(0);
        let state = State { queue, followed: HashMap::new(), running: None };
        Ok(Self { forks, others, cpu, values, numbers: AtomicU32::new(1), state: Mutex::new(state) })
    }

    /// Follows process `pid` and what it starts, from its next system call on.
    ///
    /// # Errors
    /// WouldBlock where as many are followed as may be, and what perf says.
    pub fn follow(self: &Arc<Self>, pid: u32) -> io::Result<Followed> {
        let mut state = self.lock();
        if state.running.is_none() {
            state.running = Some(self.run()?);
        }
        // Who was followed before has left something, maybe.
        state.take(self.word(LOST));
        let wanted = self.wanted().find(|wanted| wanted.load(Ordering::Relaxed) == 0);
        let wanted =
            wanted.filter(|_| state.followed.len() < FOLLOWED_MAX).ok_or(io::ErrorKind::WouldBlock)?;
        let number = self.numbers.fetch_add(1, Ordering::Relaxed).max(1);
        state.followed.insert(number, Vec::new());
        wanted.store(u64::from(number) << 32 | u64::from(pid), Ordering::Release);
        self.word(IS_ANYBODY_WANTED).store(1, Ordering::Release);
        let lost = self.word(LOST).load(Ordering::Relaxed);
        Ok(Followed { lookups: self.clone(), number, lost })
    }

    /// Has the programs run no longer where nobody is followed. Takes a tenth of a second, without the lock: a service that is stopped meanwhile would keep
    /// its observations from going on.
    pub fn rest(&self) {
        let mut state = self.lock();
        let running = if state.followed.is_empty() { state.running.take() } else { None };
        drop(state);
        drop(running);
    }

    fn run(&self) -> io::Result<(PerfEvent, Vec<RunsAt>)> {
        let (program, tracepoint) = &self.forks;
        let setup = Setup::new(Source::Tracepoint(*tracepoint));
        let forks = PerfEvent::open(&setup, Observed::System, self.cpu).map_err(io::Error::other)?;
        forks.run(program).map_err(io::Error::other)?;
        let others = self.others.iter().map(|(program, tracepoint)| program.run_at(tracepoint));
        Ok((forks, others.collect::<io::Result<_>>()?))
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        &self.values.words()[at]
    }

    fn wanted(&self) -> impl Iterator<Item = &AtomicU64> {
        self.values.words()[WANTED..WANTED + FOLLOWED_MAX].iter()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().anyway()
    }
}

impl Followed {
    /// What was looked up since the last call.
    pub fn take(&self) -> Vec<LookedUp> {
        let mut state = self.lookups.lock();
        state.take(self.lookups.word(LOST));
        if self.lookups.wanted().all(|wanted| wanted.load(Ordering::Relaxed) == 0) {
            self.lookups.word(IS_ANYBODY_WANTED).store(0, Ordering::Relaxed);
        }
        state.followed.get_mut(&self.number).map(std::mem::take).unwrap_or_default()
    }

    /// Whether names or processes were lost since it is followed, its own or others'.
    pub fn is_lost(&self) -> bool {
        self.lookups.word(LOST).load(Ordering::Relaxed) != self.lost
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        let mut state = self.lookups.lock();
        let words = self.lookups.values.words();
        for word in words[WANTED..WANTED + FOLLOWED_MAX].iter().chain(&words[PROCESS..PROCESS + PROCESSES]) {
            if word.load(Ordering::Relaxed) >> 32 == u64::from(self.number) {
                word.store(0, Ordering::Relaxed);
            }
        }
        state.followed.remove(&self.number);
    }
}

/// Three words and a path.
fn parse(bytes: &[u8]) -> Option<(u32, LookedUp)> {
    let word = |at: usize| Some(u64::from_ne_bytes(bytes.get(8 * at..8 * at + 8)?.try_into().ok()?));
    let (how, who, time_ns) = (word(0)?, word(1)?, word(2)?);
    let path = bytes.get(24..)?.split(|&byte| byte == 0).next()?.to_vec();
    let relative_to = match (how >> 32) as i32 {
        ENTERS => RelativeTo::Enters,
        ENTERS_DESCRIPTOR => RelativeTo::EntersDescriptor,
        PATH_AT => RelativeTo::Descriptor,
        _ => RelativeTo::WorkingDirectory,
    };
    Some(((who >> 32) as u32, LookedUp { time_ns, pid: who as u32, relative_to, path, result: how as i32 }))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::path::{Path, PathBuf};
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use prepage_testing::{Need, has as has_need, unless_refused};

    use super::programs::PATH_BYTES_MAX;
    use super::*;

    fn lookups() -> Option<Arc<Lookups>> {
        let refused = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        unless_refused(Lookups::new(), Need::Root, refused).map(Arc::new)
    }

    /// A shell that waits for a line before it does what `script` says, and what it looked up then.
    fn of_shell(lookups: &Arc<Lookups>, script: &str) -> Vec<LookedUp> {
        let mut shell = Command::new("sh")
            .args(["-c", &format!("read -r line; {script}")])
            .current_dir("/usr")
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let followed = lookups.follow(shell.id()).unwrap();
        shell.stdin.take().unwrap().write_all(b"\n").unwrap();
        let mut all = Vec::new();
        let until = Instant::now() + Duration::from_secs(60);
        while shell.try_wait().unwrap().is_none() && Instant::now() < until {
            all.extend(followed.take());
        }
        all.extend(followed.take());
        assert!(!followed.is_lost());
        let places = lookups.values.words()[PROCESS..PROCESS + PROCESSES].iter();
        let taken = places.filter(|place| place.load(Ordering::Relaxed) >> 32 == u64::from(followed.number));
        assert_eq!(taken.count(), 0, "who has ended leaves its place");
        all
    }

    fn has(all: &[LookedUp], path: &str) -> bool {
        all.iter().any(|one| one.path == path.as_bytes())
    }

    #[test]
    fn names_that_are_not_there_are_told_and_those_of_children_and_of_nobody_else() {
        let Some(lookups) = lookups() else { return };
        let script = "test -e /no/such/name; (test -e relative/name); cat /no/such/file; cd bin; cd /no/such; /no/such/program";
        let all =
            of_shell(&lookups, &format!("({script}) 2> /dev/null; sleep 0.1; test -e /behind/children"));
        assert!(has(&all, "/behind/children"), "{all:?}");
        for path in ["/no/such/name", "relative/name", "/no/such/file", "/no/such/program"] {
            assert!(has(&all, path), "{path}: {all:?}");
        }
        let enters: Vec<_> = all.iter().filter(|one| one.relative_to == RelativeTo::Enters).collect();
        assert_eq!(enters[0].path, b"/usr/bin", "{enters:?}");
        assert!(enters[0].result == 0 && enters[1..].iter().all(|one| one.result < 0), "{enters:?}");
        assert!(all.is_sorted_by_key(|one| one.time_ns));
        // Nobody is followed any more.
        assert!(!has(&of_shell(&lookups, "true"), "/no/such/name"));
        let _ = std::fs::metadata("/no/such/own");
        assert!(!has(&of_shell(&lookups, "true"), "/no/such/own"));
        lookups.rest();
    }

    #[test]
    fn names_in_a_namespace_of_processes_below_this_one_are_told() {
        let Some(lookups) = lookups() else { return };
        let first = std::fs::read_link("/proc/self/ns/pid").unwrap();
        if !has_need(Need::Mounts) || first.to_str() != Some("pid:[4026531836]") {
            return;
        }
        let all = of_shell(&lookups, "unshare --pid --fork sh -c 'test -e /no/such/below'; test -e /behind");
        assert_eq!(["/no/such/below", "/behind"].map(|path| has(&all, path)), [true; 2], "{all:?}");
    }

    #[test]
    fn whoever_goes_where_names_mean_something_else_is_followed_no_further() {
        let Some(lookups) = lookups() else { return };
        let script = "test -e /before; chroot / test -e /behind; test -e /after";
        let all = of_shell(&lookups, script);
        assert_eq!(
            ["/before", "/behind", "/after"].map(|path| has(&all, path)),
            [true, false, true],
            "{all:?}"
        );
    }

    #[test]
    fn a_process_is_followed_until_its_last_thread_ends() {
        const SOURCE: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
static void *other(void *unused) {
    char state = 0;
    while (state != 'Z') {
        FILE *file = fopen("/proc/self/stat", "r");
        if (!file || fscanf(file, "%*d (%*[^)]) %c", &state) != 1) return 0;
        fclose(file);
    }
    access("/no/such/by/the/last", F_OK);
    return unused;
}
int main(void) {
    pthread_t thread;
    access("/no/such/by/the/first", F_OK);
    pthread_create(&thread, 0, other, 0);
    pthread_exit(0);
}
"#;
        if !has_need(Need::Tool("cc".into())) || !has_need(Need::Linux(6, 16)) {
            return;
        }
        let Some(lookups) = lookups() else { return };
        let directory = tempfile::tempdir().unwrap();
        let program = compiled(&["-O1", "-pthread"], SOURCE, directory.path());
        let all = of_shell(&lookups, program.to_str().unwrap());
        assert_eq!(["/no/such/by/the/first", "/no/such/by/the/last"].map(|path| has(&all, path)), [true; 2]);
    }

    fn compiled(options: &[&str], text: &str, directory: &Path) -> PathBuf {
        let (source, program) = (directory.join("x.c"), directory.join("x"));
        std::fs::write(&source, text).unwrap();
        let compiler = Command::new("cc").args(options).arg("-o").args([&program, &source]).status();
        assert!(compiler.unwrap().success());
        program
    }

    /// Their system calls have other numbers, and their arguments are in other registers.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn of_32_bit_programs_names_are_told_too_and_no_call_is_taken_for_one_of_64_bits() {
        const SOURCE: &str = r#"
static long call(long number, long a, long b, long c) {
    long result;
    asm volatile("int $0x80" : "=a"(result) : "a"(number), "b"(a), "c"(b), "d"(c) : "memory");
    return result;
}
void _start(void) {
    static char buffer[256];
    call(33, (long)"/no/such/access", 0, 0);
    /* getresuid(2), of 64 bits mount(2) */
    call(165, (long)buffer, (long)buffer + 4, (long)buffer + 8);
    call(195, (long)"/no/such/stat64", (long)buffer, 0);
    call(295, -100, (long)"/no/such/openat", 0);
    call(1, 0, 0, 0);
}
"#;
        let runs_them = Need::Path("/proc/sys/abi/vsyscall32".into());
        if !has_need(Need::Tool("cc".into())) || !has_need(runs_them) {
            return;
        }
        let Some(lookups) = lookups() else { return };
        let directory = tempfile::tempdir().unwrap();
        let options = ["-m32", "-O1", "-fno-pic", "-nostdlib", "-static"];
        let program = compiled(&options, SOURCE, directory.path());
        let all = of_shell(&lookups, program.to_str().unwrap());
        for path in ["/no/such/access", "/no/such/stat64", "/no/such/openat"] {
            assert!(has(&all, path), "{path}: {all:?}");
        }
    }

    #[test]
    fn who_takes_the_place_of_another_in_the_table_and_names_that_nobody_takes_are_lost_and_told() {
        let Some(lookups) = lookups() else { return };
        let mut shell = Command::new("sh")
            .args(["-c", "read -r line; read -r line; (test -e /of/a/child); read -r line; test -e /one/more; read -r line"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = shell.stdin.take().unwrap();
        let followed = lookups.follow(shell.id()).unwrap();
        let until = |condition: &dyn Fn() -> bool| {
            let since = Instant::now();
            while !condition() {
                assert!(since.elapsed() < Duration::from_secs(60), "it never comes");
                std::thread::yield_now();
            }
        };
        // It is taken up when it asks for the next line.
        stdin.write_all(b"\n").unwrap();
        until(&|| {
            followed.take();
            lookups.wanted().all(|wanted| wanted.load(Ordering::Relaxed) == 0)
        });
        assert!(!followed.is_lost());
        // Wherever the child comes to stand, another has been.
        let other = |at: usize| u64::from(followed.number) << 32 | (at + 64 * PROCESSES) as u64;
        for (at, process) in lookups.values.words()[PROCESS..PROCESS + PROCESSES].iter().enumerate() {
            let _ = process.compare_exchange(0, other(at), Ordering::Relaxed, Ordering::Relaxed);
        }
        stdin.write_all(b"\n").unwrap();
        until(&|| followed.is_lost());
        drop(followed);

        let followed = lookups.follow(shell.id()).unwrap();
        let one =
            LookedUp { time_ns: 0, pid: 0, relative_to: RelativeTo::Descriptor, path: Vec::new(), result: 0 };
        lookups.lock().followed.insert(followed.number, vec![one; NAMES_MAX]);
        stdin.write_all(b"\n").unwrap();
        until(&|| {
            lookups.lock().take(lookups.word(LOST));
            followed.is_lost()
        });
        assert_eq!(followed.take().len(), NAMES_MAX);
        drop(stdin);
        shell.wait().unwrap();
    }

    #[test]
    fn paths_that_do_not_fit_are_left_out_and_as_many_are_followed_as_may_be() {
        let Some(lookups) = lookups() else { return };
        let names = [PATH_BYTES_MAX - 2, PATH_BYTES_MAX - 1]
            .map(|bytes| format!("/{}", "x".repeat(bytes as usize - 1)));
        let all = of_shell(&lookups, &names.each_ref().map(|name| format!("test -e {name}")).join("; "));
        assert_eq!(names.map(|name| has(&all, &name)), [true, false]);
        let pid = std::process::id();
        let all: Vec<_> = (0..FOLLOWED_MAX).map(|_| lookups.follow(pid).unwrap()).collect();
        assert_eq!(lookups.follow(pid).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(all);
        assert!(lookups.follow(pid).is_ok());
    }
}
