//! Visits to programs that are about anything: none of them notices.
#![cfg(target_arch = "x86_64")]

mod support;

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use prepage_sys::arm::{Visit, VisitError};
use prepage_testing::{Need, has};
use rustix::process::{Pid, Signal, kill_process};

use support::built;

/// How often a program was visited, and how many visits got a userfaultfd.
#[derive(Default)]
struct Visits {
    begun: u32,
    armed: u32,
}

/// Visits `child` again and again until it ends. Returns its output.
fn visited(mut child: Child, visits: &mut Visits) -> String {
    while child.try_wait().unwrap().is_none() {
        let Ok(mut visit) = Visit::begin(child.id()) else { continue };
        visits.begun += 1;
        let since = Instant::now();
        let ended = loop {
            match visit.end(|_| ()) {
                Some(ended) => break ended,
                None if since.elapsed() > Duration::from_secs(60) => panic!("it never stops"),
                None => std::thread::yield_now(),
            }
        };
        assert!(!matches!(ended, Err(VisitError::Kernel(_))), "{:?}", ended.unwrap_err());
        visits.armed += u32::from(ended.is_ok());
    }
    let output = child.wait_with_output().unwrap();
    format!("{}{}", String::from_utf8_lossy(&output.stdout), output.status)
}

/// The program of `source`, which says so once it is ready to be visited.
fn started(source: &str) -> Option<Child> {
    let program = built(&["-O1"], source)?;
    // Its directory may go.
    let mut child = Command::new(&*program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = [0; 6];
    child.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
    assert_eq!(&said, b"ready\n");
    Some(child)
}

const HEAD: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <linux/seccomp.h>
#include <time.h>
#include <unistd.h>
static void ready(void) { puts("ready"); fflush(stdout); }
static void work(long us) {
    struct timespec a, b;
    syscall(SYS_clock_gettime, 1, &a);
    do syscall(SYS_clock_gettime, 1, &b);
    while ((b.tv_sec - a.tv_sec) * 1000000 + (b.tv_nsec - a.tv_nsec) / 1000 < us);
}
"#;

#[test]
fn no_call_of_a_program_that_is_visited_fails() {
    let source = r#"
int main(void) {
    int s[2], e = epoll_create1(0), failed = 0;
    socketpair(AF_UNIX, SOCK_STREAM, 0, s);
    struct timeval limit = {0, 2000};
    setsockopt(s[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    ready();
    for (int i = 0; i < 200; i++) {
        struct epoll_event event;
        char byte;
        work(i % 7 * 30);
        failed += epoll_wait(e, &event, 1, 1) != 0;
        work(i % 5 * 30);
        failed += recv(s[0], &byte, 1, 0) != -1 || errno != EAGAIN;
    }
    printf("%d calls failed, ", failed);
    return 7;
}
"#;
    let Some(child) = started(&format!("{HEAD}{source}")) else { return };
    let mut visits = Visits::default();
    assert_eq!(visited(child, &mut visits), "0 calls failed, exit status: 7");
    assert!(visits.armed > 10, "{} visits", visits.armed);
}

/// A call that the visit makes it make would be answered with SIGSYS.
#[test]
fn a_program_that_answers_its_system_calls_itself_is_left_alone() {
    let source = r#"
int main(void) {
    unsigned long start = 0, end = 0;
    char line[512], mode[8];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps)) {
        if (strstr(line, "libc.so") && sscanf(line, "%lx-%lx %7s", &start, &end, mode) == 3 && mode[2] == 'x')
            break;
        start = 0;
    }
    fclose(maps);
    static char block = 1;
    ready();
    work(300000);
    if (!start || prctl(59, 1, start, end - start, &block))
        return 9;
    for (volatile long i = 0; i < 300000000; i++);
    return 7;
}
"#;
    let Some(child) = started(&format!("#include <string.h>\n{HEAD}{source}")) else { return };
    let mut visits = Visits::default();
    assert_eq!(visited(child, &mut visits), "exit status: 7");
    assert!(visits.armed > 0 && visits.begun > visits.armed, "{} of {} visits", visits.armed, visits.begun);
}

/// As sigsuspend(2), ppoll(2) and pselect(2) do, until they return.
#[test]
fn a_program_that_waits_with_other_signals_blocked_gets_none_of_them() {
    let source = r#"
#include <pthread.h>
#include <signal.h>
static volatile int wanted, got;
static pthread_t waits;
static void taken(int number) { wanted |= number == SIGUSR1; got += number == SIGUSR1; }
static void *sends(void *none) {
    for (int i = 0; i < 40; i++) {
        while (wanted || got < i);
        work(2000);
        pthread_kill(waits, SIGUSR2);
        work(5000);
        pthread_kill(waits, SIGUSR1);
        work(2000);
    }
    return none;
}
int main(void) {
    int early = 0;
    pthread_t thread;
    sigset_t both, only;
    signal(SIGUSR1, taken);
    signal(SIGUSR2, taken);
    sigemptyset(&both);
    sigaddset(&both, SIGUSR1);
    sigemptyset(&only);
    sigaddset(&only, SIGUSR2);
    sigprocmask(SIG_BLOCK, &both, NULL);
    waits = pthread_self();
    ready();
    pthread_create(&thread, NULL, sends, NULL);
    for (int i = 0; i < 40; i++) {
        sigsuspend(&only);
        early += !wanted;
        while (!wanted)
            sigsuspend(&only);
        wanted = 0;
    }
    printf("%d early, ", early);
    return 7;
}
"#;
    let Some(child) = started(&format!("{HEAD}{source}")) else { return };
    assert_eq!(visited(child, &mut Visits::default()), "0 early, exit status: 7");
}

#[test]
fn a_program_with_rights_of_others_is_left_alone() {
    if !has(Need::Root) {
        return;
    }
    // One that has the rights of two users, and one that nobody but root may look at.
    for ids in ["seteuid(54321)", "setuid(54321)"] {
        let source = format!("int main(void) {{ {ids}; ready(); work(100000); return 7; }}");
        let Some(child) = started(&format!("{HEAD}{source}")) else { return };
        let mut visits = Visits::default();
        assert_eq!(visited(child, &mut visits), "exit status: 7");
        assert_eq!(visits.armed, 0, "{ids}");
    }
}

#[test]
fn a_program_that_waits_for_its_child_of_vfork_is_left_alone() {
    let source = r#"
int main(void) {
    ready();
    if (!vfork()) {
        char byte;
        read(0, &byte, 1);
        _exit(0);
    }
    return 7;
}
"#;
    let Some(mut child) = started(&format!("{HEAD}{source}")) else { return };
    let is_waiting = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        status.contains("State:\tD")
    };
    while !is_waiting() {
        std::thread::yield_now();
    }
    assert!(matches!(Visit::begin(child.id()), Err(VisitError::Busy)));
    drop(child.stdin.take());
    assert_eq!(visited(child, &mut Visits::default()), "exit status: 7");
}

#[test]
fn a_program_without_its_vdso_is_left_alone() {
    let source = r#"
int main(void) {
    munmap((char *)getauxval(AT_SYSINFO_EHDR), 8192);
    ready();
    work(300000);
    return 7;
}
"#;
    let Some(child) = started(&format!("{HEAD}{source}")) else { return };
    let mut visits = Visits::default();
    assert_eq!(visited(child, &mut visits), "exit status: 7");
    assert!(visits.begun > 0 && visits.armed == 0, "{} of {} visits", visits.armed, visits.begun);
}

#[test]
fn a_program_that_enters_a_sandbox_under_a_visit_is_left_alone() {
    let source = r#"
int main(int count, char **words) {
    work(atoi(words[1]));
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
    for (volatile long i = 0; i < 3000000; i++);
    syscall(SYS_exit, 7);
}
"#;
    let Some(program) = built(&["-O1"], &format!("{HEAD}{source}")) else { return };
    let mut visits = Visits::default();
    for run in 0..100 {
        let child =
            Command::new(&*program).arg((run * 37).to_string()).stdout(Stdio::piped()).spawn().unwrap();
        assert_eq!(visited(child, &mut visits), "exit status: 7", "run {run}");
    }
    // Some came before the sandbox, and some into it.
    assert!(visits.armed > 0 && visits.begun > visits.armed, "{} of {} visits", visits.armed, visits.begun);
}

#[test]
fn whoever_waits_for_a_process_that_is_killed_under_a_visit_hears_of_it() {
    let mut visits = 0;
    for run in 0..200 {
        let mut parent = Command::new("sh")
            .args(["-c", "sleep 60 & echo $!; wait"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(parent.stdout.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        let pid: u32 = line.trim().parse().unwrap();
        // The thread that visits goes on: its end would let the process go.
        let (over, until) = std::sync::mpsc::channel::<()>();
        let visitor = std::thread::spawn(move || {
            let (since, mut visits) = (Instant::now(), 0);
            while since.elapsed() < Duration::from_millis(10) {
                let Ok(mut visit) = Visit::begin(pid) else { continue };
                while visit.end(|_| ()).is_none() {}
                visits += 1;
            }
            let _ = until.recv();
            visits
        });
        std::thread::sleep(Duration::from_micros(4000 + run * 7));
        kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
        let since = Instant::now();
        while parent.try_wait().unwrap().is_none() {
            if since.elapsed() > Duration::from_secs(60) {
                parent.kill().unwrap();
                panic!("run {run}: nobody hears of its end");
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        drop(over);
        visits += visitor.join().unwrap();
    }
    assert!(visits > 0, "no visit");
}
