//! The agent at the end of programs: their destructors have run, and no code of theirs is to run behind them for longer than without it.

mod support;

use std::cell::Cell;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use prepage_sys::agent::{Event, Last};
use prepage_testing::{Need, has};
use rustix::process::{Pid, Signal, kill_process};

use support::{Observation, built, command};

const TRIES: usize = 20;

/// For so long a process waits at its end.
const PATIENCE: Duration = Duration::from_millis(20);

/// Runs `program` with the agent, which is to be looked at at its end: `looked_at` does that. Returns what came of it, and whether the program waited.
fn ended(program: &Path, way: &str, looked_at: impl Fn(u32)) -> (Output, bool) {
    let mut observation = Observation::new();
    observation.log().ask_for(Last::Wait).unwrap();
    let mut command = command(program.to_str().unwrap(), &[way]);
    let command = observation.enter(&mut command).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut waited = false;
    while child.try_wait().unwrap().is_none() {
        if let Some(ending) = observation.ending() {
            looked_at(ending.pid());
            waited = true;
        }
    }
    (child.wait_with_output().unwrap(), waited)
}

/// Whether it waits in some of many runs: on a busy machine nobody may come to see that it does.
fn waits(program: &Path, way: &str) -> bool {
    (0..TRIES).any(|_| {
        let (output, waited) = ended(program, way, |_| ());
        assert!(output.status.success(), "{output:?}");
        waited
    })
}

#[test]
fn other_threads_do_not_run_on_behind_destructors_while_the_observer_is_waited_for() {
    let source = r#"
        #include <pthread.h>
        #include <stdlib.h>
        #include <unistd.h>
        static int ends[2];
        static void *work(void *way) { char byte; return *(char *)way == 'r' && read(ends[0], &byte, 1) ? way : NULL; }
        int main(int argc, char **argv) {
            pthread_t thread;
            if (pipe(ends) || pthread_create(&thread, NULL, work, argv[1])) return 9;
            return *argv[1] == 'j' ? pthread_join(thread, NULL) : 0;
        }"#;
    let Some(program) = built(&["-pthread"], source) else { return };
    assert!(!waits(&program, "runs"));
    assert!(waits(&program, "joined"));
}

/// As if the process had ended by then.
#[test]
fn a_signal_that_comes_while_the_observer_is_waited_for_finds_nobody() {
    let source = r#"
        #include <signal.h>
        #include <unistd.h>
        static void handle(int number) { write(1, "handled", number ? 7 : 0); }
        int main(void) { signal(SIGUSR1, handle); return raise(SIGUSR1); }"#;
    let Some(program) = built(&[], source) else { return };
    for number in [Signal::USR1, Signal::TERM] {
        // A start that takes long on a busy machine tells nothing.
        let (since, mut judged) = (Instant::now(), 0);
        while judged < TRIES && (judged == 0 || since.elapsed() < Duration::from_secs(10)) {
            assert!(
                since.elapsed() < Duration::from_secs(120),
                "no start and its end take less than {PATIENCE:?}"
            );
            let (began, waits_still) = (Instant::now(), Cell::new(false));
            let (output, _) = ended(&program, "", |pid| {
                let _ = kill_process(Pid::from_raw(pid as i32).unwrap(), number);
                waits_still.set(began.elapsed() < PATIENCE);
            });
            if waits_still.get() {
                assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), &b"handled"[..]));
                judged += 1;
            }
        }
    }
}

/// Whoever observes a container from outside goes on when that ends.
#[test]
fn process_1_waits_behind_what_it_tells_if_its_observer_ends_with_it() {
    if !has(Need::Linux(6, 11)) || !has(Need::Mounts) {
        return;
    }
    let Some(program) = built(&[], "int main(void) { return 0; }") else { return };
    for last in [Last::Tell, Last::TellAndWait] {
        // On a busy machine nobody may come to see that it does.
        let waits = (0..TRIES).any(|_| {
            let mut observation = Observation::new();
            observation.log().ask_for(last).unwrap();
            let mut command = command("unshare", &["--pid", "--fork", program.to_str().unwrap()]);
            let mut child = observation.enter(&mut command).stdin(Stdio::null()).spawn().unwrap();
            let mut has_waited = false;
            let status = loop {
                has_waited |= observation.ending().is_some();
                if let Some(status) = child.try_wait().unwrap() {
                    break status;
                }
            };
            assert!(status.success(), "{status}");
            has_waited
        });
        assert_eq!(waits, last == Last::TellAndWait);
    }
}

#[test]
fn a_program_with_threads_tells_what_it_has_touched() {
    if !has(Need::Linux(6, 11)) {
        return;
    }
    let source = r#"
        #include <pthread.h>
        #include <unistd.h>
        static void *work(void *none) { pause(); return none; }
        int main(void) { pthread_t thread; return pthread_create(&thread, NULL, work, NULL); }"#;
    let Some(program) = built(&["-pthread"], source) else { return };
    let mut observation = Observation::new();
    observation.log().ask_for(Last::Tell).unwrap();
    let output = observation.enter(&mut command(program.to_str().unwrap(), &[])).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let records = observation.take(output).records;
    assert!(records.iter().any(|record| matches!(record.event, Event::Told)), "{records:?}");
}

#[test]
fn a_program_that_cannot_be_executed_leaves_its_process_to_tell_once_more() {
    if !has(Need::Linux(6, 11)) {
        return;
    }
    let source = r#"
        #include <unistd.h>
        int main(int argc, char **argv) { return execl(argv[1], argv[1], (char *)0) != -1; }"#;
    let Some(program) = built(&[], source) else { return };
    // A text that may not be executed, and nothing.
    for (other, is_told_before) in [("/etc/passwd", true), ("/nowhere", false)] {
        let mut observation = Observation::new();
        observation.log().ask_for(Last::Tell).unwrap();
        let mut command = command(program.to_str().unwrap(), &[other]);
        let output = observation.enter(&mut command).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let events = observation.take(output).records.into_iter().map(|record| record.event);
        let told: Vec<_> = events.filter(|event| matches!(event, Event::Told | Event::GoesOn)).collect();
        let before = is_told_before.then_some([Event::Told, Event::GoesOn]).into_iter().flatten();
        assert_eq!(told, before.chain([Event::Told]).collect::<Vec<_>>(), "{other}");
    }
}
