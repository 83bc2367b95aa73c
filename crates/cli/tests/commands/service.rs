//! `prepage service` and `prepage status`, as far as they need no systemd and no root.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_unit_names_the_binary_that_is_installed_and_goes_again() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::hard_link(env!("CARGO_BIN_EXE_prepage-tools"), path("prepage-tools")).unwrap();
    let units = path("units");
    fs::create_dir(&units).unwrap();
    let run = |args: &[&str]| -> Output {
        Command::new(path("prepage-tools")).args(args).arg("--units").arg(&units).output().unwrap()
    };
    let refused = run(&["service", "install", "--no-start"]);
    assert_eq!(refused.status.code(), Some(125), "{}", text(&refused.stderr));
    assert!(text(&refused.stderr).contains("no `prepaged` next to"), "{}", text(&refused.stderr));
    fs::write(path("prepaged"), "").unwrap();
    let installed = run(&["service", "install", "--no-start"]);
    assert!(installed.status.success(), "{}", text(&installed.stderr));
    let unit = fs::read_to_string(units.join("prepage.service")).unwrap();
    let line = format!("ExecStart={}", path("prepaged").canonicalize().unwrap().display());
    assert!(unit.lines().any(|one| one == line), "{unit}");
    assert!(!unit.contains('@'), "{unit}");
    for (name, line) in [("prepage-boot.service", "boot"), ("prepage-session@.service", "session %i")] {
        let unit = fs::read_to_string(units.join(name)).unwrap();
        let line = format!("ExecStart={} {line}", path("prepaged").canonicalize().unwrap().display());
        assert!(unit.lines().any(|one| one == line), "{unit}");
    }
    let wanted = units.join("user@.service.wants/prepage-session@.service");
    assert_eq!(
        wanted.canonicalize().unwrap(),
        units.join("prepage-session@.service").canonicalize().unwrap()
    );
    // Again, and it is replaced.
    assert!(run(&["service", "install", "--no-start"]).status.success());
}

#[test]
fn where_no_service_runs_that_is_said() {
    let output = Command::new(env!("CARGO_BIN_EXE_prepage-tools"))
        .args(["status", "--socket"])
        .arg(Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-such-socket"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(125));
    let said = text(&output.stderr);
    assert!(
        said.contains("no service answers at") && said.contains("try: prepage service install"),
        "{said}"
    );
}

#[test]
fn a_service_that_runs_and_does_not_answer_is_not_to_be_installed() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let socket = directory.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let output =
        Command::new(env!("CARGO_BIN_EXE_prepage-tools")).args(["status", "--socket"]).arg(&socket).output();
    let output = output.unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(125));
    assert!(said.contains("did not answer in time") && !said.contains("install"), "{said}");
}
