//! The recorder on the real kernel: what it records is what getrusage counts.

use std::env;
use std::hint::black_box;
use std::sync::{Mutex, PoisonError};
use std::thread;

use prepage_core::{Fault, FaultClass};
use prepage_sys::spawn::HowEnded;
use prepage_trace::{RecordError, RecordOptions, Recorded, Recorder, Subject};

/// One recording at a time: the rate test needs the machine for itself.
static MACHINE: Mutex<()> = Mutex::new(());

/// Set for the copy of this program that [`no_record_is_lost_at_full_speed`] records.
const TOUCH: &str = "PREPAGE_TEST_TOUCH";
const TOUCH_ROUNDS: usize = 8;
const TOUCH_BYTES: usize = 64 << 20;

fn start(subject: &Subject) -> Result<Recorder, RecordError> {
    Recorder::start(subject, &RecordOptions::default())
}

/// Records a command. `None`, said loudly, where it cannot be.
fn record(command: &[&str]) -> Option<(Vec<Fault>, Recorded)> {
    let _machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let program = command[0];
    let command: Vec<_> = command.iter().map(Into::into).collect();
    let mut recorder = match start(&Subject::Command(command)) {
        Ok(recorder) => recorder,
        Err(RecordError::Perf(error)) => {
            eprintln!("SKIPPED: {error}; try: {}", error.remedy().unwrap_or("another kernel"));
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    let mut faults = Vec::new();
    while recorder.next_faults(&mut faults).expect("faults") {}
    let recorded = recorder.finish();
    if let Some(HowEnded::NotExecuted(error)) = &recorded.how_ended {
        eprintln!("SKIPPED: {program}: {error}");
        return None;
    }
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

fn assert_command_is_complete(command: &[&str]) {
    if let Some((faults, recorded)) = record(command) {
        assert!(matches!(recorded.how_ended, Some(HowEnded::Exited(0))), "{:?}", recorded.how_ended);
        assert_complete(&faults, &recorded);
    }
}

#[test]
fn a_compiler_and_its_children() {
    let dir = tempfile::tempdir().expect("a directory");
    let source = dir.path().join("a.c");
    std::fs::write(&source, "#include <stdio.h>\nint main(void) { return printf(\"x\"); }\n")
        .expect("written");
    let source = source.to_str().expect("plain");
    assert_command_is_complete(&["gcc", "-O2", "-S", source, "-o", "/dev/null"]);
}

#[test]
fn an_interpreter() {
    assert_command_is_complete(&["python3", "-c", "import json, decimal"]);
}

#[test]
fn a_program_of_many_threads() {
    assert_command_is_complete(&["java", "-version"]);
}

#[test]
fn a_storm_of_forks_and_execs() {
    let script = "i=0; while [ $i -lt 2000 ]; do /bin/true; i=$((i + 1)); done";
    let Some((faults, recorded)) = record(&["sh", "-c", script]) else { return };
    assert_complete(&faults, &recorded);
    assert_eq!(recorded.facts.execs, 2001);
    let paths: Vec<_> = recorded.objects.iter().map(|object| object.path.as_str()).collect();
    assert!(paths.iter().any(|path| path.ends_with("/true") || path.contains("coreutils")), "{paths:?}");
}

#[test]
fn a_command_killed_and_one_that_leaves_a_child_behind() {
    let Some((_, recorded)) = record(&["sh", "-c", "kill -9 $$"]) else { return };
    assert!(matches!(recorded.how_ended, Some(HowEnded::Killed(9))), "{:?}", recorded.how_ended);
    let Some((_, recorded)) = record(&["sh", "-c", "sleep 1 > /dev/null 2>&1 &"]) else { return };
    assert_eq!(recorded.facts.survivors, 1);
}

#[test]
fn no_record_is_lost_at_full_speed() {
    let this = env::current_exe().expect("this program");
    let this = this.to_str().expect("plain");
    let touch = format!("{TOUCH}=1");
    let command = ["env", &touch, this, "--exact", "touched_by_two_threads", "--test-threads=1"];
    let Some((faults, recorded)) = record(&command) else { return };
    let seconds = recorded.facts.duration_ns as f64 / 1e9;
    println!("{:.0} faults a second, {} lost", faults.len() as f64 / seconds, recorded.facts.lost);
    assert_complete(&faults, &recorded);
    assert_eq!(recorded.facts.lost, 0, "{:?}", recorded.facts);
    let huge = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    if huge.is_ok_and(|huge| huge.contains("[always]")) {
        eprintln!("SKIPPED: huge pages make few faults of many pages here");
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
    match start(&Subject::Command(command)) {
        Ok(mut recorder) => {
            while recorder.next_faults(&mut Vec::new()).expect("no faults") {}
            let Some(HowEnded::NotExecuted(error)) = recorder.finish().how_ended else {
                panic!("it was executed");
            };
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
        }
        Err(error) => eprintln!("SKIPPED: {error}"),
    }
}
