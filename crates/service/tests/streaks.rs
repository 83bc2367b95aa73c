//! A program that a build calls in many ways, again and again.

mod support;

use std::fs;
use std::process::Command;
use std::time::Duration;

use support::*;

/// In this time a busy machine has looked at a start.
const LIFE: Duration = Duration::from_millis(60);
/// Fewer than the service remembers as the last ones.
const STARTS: usize = 60;

#[test]
fn a_program_that_needs_nothing_however_it_is_called_is_passed_over_in_its_session_alone() {
    let Some(place) = Place::new() else { return };
    let (program, file) = place.known("known");
    place.profile_another_role(&program);
    fs::read(&file).unwrap();
    let service = Prepaged::start(&place, &["--no-learn", "--idle-after", "0"]);
    service.wait_until("its file is known", || service.count("name_rounds") > 0);
    let looked_at = || service.status()["last_starts"].as_array().unwrap().len();
    for _ in 0..STARTS {
        let _running = Running::start(&program);
        std::thread::sleep(LIFE);
    }
    let before = looked_at();
    assert!((1..=STARTS / 2).contains(&before), "{before} of {STARTS} starts: {}", service.status());
    let _running = Running(Command::new("setsid").arg(&program).arg("60").spawn().unwrap());
    service.wait_until("that of another session is looked at", || looked_at() > before);
}
