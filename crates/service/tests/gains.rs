//! What fetching gains, as the service measures it in starts of real programs.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use prepage_core::profile::ColdStart;
use rustix::process::Signal;
use serde_json::Value;

use support::*;

/// Longer than the service leaves a program alone that it has just seen.
const APART: Duration = Duration::from_millis(1100);
/// In this time a busy machine has looked at a start.
const LIFE: Duration = Duration::from_millis(60);

/// Starts `program` cold, and ends it after a moment.
fn start_cold(program: &Path, file: &Path) {
    chill(file);
    let _running = Running::start(program);
    std::thread::sleep(LIFE);
}

#[test]
fn a_fetched_cold_start_is_compared_with_those_that_were_held_out() {
    let Some(place) = Place::new() else { return };
    let (program, file) = place.known("known");
    // One more is needed.
    place.gained(&[&program], &[3_000_000; 3], &[1000, 2000]);
    let mut service = Prepaged::start(&place, &[]);
    let before = service.status()["gains"].clone();
    assert_eq!(
        (&before["ratio"], &before["prefetched_starts"], &before["held_out_starts"]),
        (&Value::Null, &2.into(), &3.into())
    );
    assert!(!service.metrics().contains("prepage_gain_ratio"), "nothing is known yet");
    service.wait_until("a start is kept", || {
        start_cold(&program, &file);
        std::thread::sleep(APART);
        // Of two that are kept late the times would be others.
        is_so_within(Duration::from_secs(2), || service.status()["gains"]["prefetched_starts"] == 3)
    });
    let after = service.status()["gains"].clone();
    let [one] = after["programs"].as_array().unwrap().as_slice() else { panic!("{after}") };
    assert_eq!((&one["program"], &one["uid"]), (&program.to_str().unwrap().into(), &0.into()));
    assert_eq!((&one["prefetched_us"], &one["held_out_us"]), (&2000.into(), &3_000_000.into()));
    assert_eq!((&after["compared_programs"], &one["ratio"]), (&1.into(), &after["ratio"]));
    let text = service.metrics();
    assert!(
        text.contains("\nprepage_gain_ratio 0.000666") && !text.contains(program.to_str().unwrap()),
        "{text}"
    );
    service.signal(Signal::TERM);
    assert!(service.child.wait().unwrap().success());
    let mode = |name: &str| fs::metadata(place.layer().join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode("gains/0"), 0o600);
    drop(service);
    assert_eq!(Prepaged::start(&place, &[]).status()["gains"], after, "after a restart");
}

#[test]
fn a_program_that_gains_nothing_is_left_alone_and_only_its_starts_that_are_held_out_are_kept_as_such() {
    const LEFT_ALONE: usize = 6;
    let Some(place) = Place::new() else { return };
    let (program, file) = place.known("known");
    place.gained(&[&program], &[1000; 3], &[3_000_000; 3]);
    let service = Prepaged::start(&place, &[]);
    assert_eq!(service.status()["gains"]["programs"][0]["is_off"], true);
    service.wait_until("starts are left alone", || {
        let before = service.count("fetched");
        start_cold(&program, &file);
        // It is said a moment after they are read.
        let is_fetched = || service.count("fetched") > before;
        let pages = pages_in_memory(&file);
        assert!(
            pages == 0 || is_so_in_time(is_fetched),
            "{pages} pages were read, and it is not said to be fetched"
        );
        std::thread::sleep(APART);
        // A start is counted before it is followed to its end. What one that is left alone starts is fetched: it says nothing.
        let kept = service.status()["gains"]["held_out_starts"].as_u64().unwrap();
        let held_out = service.count("held_out");
        assert!(kept <= 3 + held_out, "{kept} are kept, and {held_out} were held out beside the first three");
        // One in eight is fetched, and one held out.
        let status = service.status();
        let starts = status["last_starts"].as_array().unwrap().iter();
        starts.filter(|start| start["done"] == "left alone").count() >= LEFT_ALONE
    });
}

/// What `prepage run` has measured is in a profile whatever the service keeps.
#[test]
fn who_wants_no_start_held_out_has_each_fetched_whatever_is_known_of_the_gain() {
    const USER: u32 = 54321;
    let Some(place) = Place::new() else { return };
    let (program, file) = place.known("known");
    let mut profile = place.profile_of(&program);
    let device = profile.files[0].identity.device;
    let start =
        |held_out, took_us| ColdStart { device, held_out, took_us, unix_s: 1, ..ColdStart::default() };
    profile.starts = [[start(true, 1000); 3], [start(false, 3_000_000); 3]].concat();
    write_profile(&place.layer(), &profile);
    let home = place.home("hold-outs = no\n");
    std::os::unix::fs::chown(&home, Some(USER), None).unwrap();
    let service = Prepaged::start(&place, &[]);
    for fetched in 1..=3 {
        chill(&file);
        let mut start = Command::new(&program);
        let _running = Running(start.arg("60").uid(USER).env("HOME", &home).spawn().unwrap());
        service.wait_until("it is fetched", || service.count("fetched") >= fetched);
        std::thread::sleep(APART);
    }
}

#[test]
fn of_many_cold_starts_few_are_held_out_and_nothing_is_read_for_these() {
    const PROGRAMS: usize = 32;
    let Some(place) = Place::new() else { return };
    let programs: Vec<(PathBuf, PathBuf)> =
        (0..PROGRAMS).map(|at| place.known(&format!("known{at}"))).collect();
    let paths: Vec<&Path> = programs.iter().map(|(program, _)| program.as_path()).collect();
    // As many as lie between two that are held out.
    place.gained(&paths, &[], &[1000; 9]);
    let service = Prepaged::start(&place, &[]);
    let held_out = || -> Option<Value> {
        let status = service.status();
        status["last_starts"].as_array().unwrap().iter().rfind(|start| start["done"] == "held out").cloned()
    };
    let (mut starts, mut last) = (0, None);
    // One that was ended before it was followed is not kept: then the next is waited for.
    service.wait_until("one is held out, and kept", || {
        programs.iter().any(|(program, file)| {
            start_cold(program, file);
            starts += 1;
            // It may be told when another was started.
            let Some(start) = held_out().filter(|start| last.as_ref() != Some(&start["pid"])) else {
                return false;
            };
            let of_start = |(program, _): &&(PathBuf, PathBuf)| start["program"] == program.to_str().unwrap();
            let (_, file) = programs.iter().find(of_start).unwrap();
            assert_eq!(pages_in_memory(file), 0, "it was held out");
            last = Some(start["pid"].clone());
            let kept = || service.status()["gains"]["held_out_starts"].as_u64().unwrap();
            is_so_within(Duration::from_secs(3), || kept() > 0)
        })
    });
    assert!(service.count("fetched") > 0 || starts < PROGRAMS, "of {starts} starts none was fetched");
}

#[test]
fn users_are_told_whether_their_own_starts_are_held_out() {
    const USER: u32 = 54321;
    let Some(place) = Place::new() else { return };
    let (program, _) = place.known("known");
    let home = place.home("hold-outs = no\n");
    std::os::unix::fs::chown(&home, Some(USER), None).unwrap();
    let service = Prepaged::start(&place, &[]);
    let mut start = Command::new(&program);
    let _running = Running(start.arg("60").uid(USER).env("HOME", &home).spawn().unwrap());
    service.wait_until("it is fetched", || service.count("fetched") > 0);
    let [Some(own), Some(others)] = [USER, USER + 1].map(|uid| service.status_for(uid)) else { return };
    let all = service.status();
    assert_eq!([&own, &others, &all].map(|status| &status["gains"]["is_on"]), [false, true, true]);
}

#[test]
fn without_learning_nothing_is_held_out_or_kept() {
    let Some(place) = Place::new() else { return };
    let (program, _) = place.known("known");
    // What was kept before is forgotten.
    place.gained(&[&program], &[1000; 3], &[3_000_000; 3]);
    let kept = |uid: &str| place.layer().join("gains").join(uid);
    // Also of a user who starts nothing.
    fs::copy(kept("0"), kept("54321")).unwrap();
    let mut service = Prepaged::start(&place, &["--no-learn"]);
    {
        let _running = Running::start(&program);
        service.wait_until("it is fetched", || service.count("fetched") > 0);
    }
    std::thread::sleep(APART);
    let gains = &service.status()["gains"];
    assert_eq!((&gains["is_on"], &gains["prefetched_starts"]), (&false.into(), &0.into()));
    service.signal(Signal::TERM);
    assert!(service.child.wait().unwrap().success());
    assert_eq!(fs::read_dir(place.layer().join("gains")).unwrap().count(), 0);
}
