//! A program that a build calls in many ways, again and again.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use prepage_core::profile::{Profile, file as profile_file};
use prepage_profiles::{Layer, ProgramKey};

use support::*;

/// In this time a busy machine has looked at a start.
const LIFE: Duration = Duration::from_millis(60);
/// Fewer than the service remembers as the last ones.
const STARTS: usize = 60;

#[test]
fn a_program_that_needs_nothing_however_it_is_called_is_passed_over_in_its_session_alone() {
    let Some(place) = Place::new() else { return };
    let program = place.program("known");
    let file = place.cold_file("file", 0o644);
    place.profile(&program, &[&file]);
    let stores = place.stores();
    let key = ProgramKey::of(&[(&program).into(), "60".into()]).unwrap();
    let path = stores.path_of(&key, Layer::Machine).unwrap();
    let learned = stores.at_path(Layer::Machine, &path).unwrap().unwrap();
    let other = ProgramKey { role: format!("{} --other", key.role), ..key };
    let path = stores.path_of(&other, Layer::Machine).unwrap();
    fs::write(&path, profile_file::encode(&Profile { role: other.role, ..learned })).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
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
