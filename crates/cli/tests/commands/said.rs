//! Command lines that are refused instead of ignored, and what is said where something is not there or switched off.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

use crate::support::{Sandbox, can_learn, is_root, text};
use prepage_testing::{copy_program, write_program};

fn tools(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_prepage-tools")).args(arguments).output().unwrap()
}

#[test]
fn options_that_would_change_nothing_are_refused() {
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/../simulate/tests/traces/python.parquet");
    for of_touches in ["--resident", "--object-pages", "--entry-offset", "--entry-pages"] {
        for input in [&[trace][..], &["--model", "code:1"], &["--forks", trace], &[]] {
            let refused = tools(&[&["simulate", of_touches, "3"], input].concat());
            let said = text(&refused.stderr);
            assert_eq!(refused.status.code(), Some(2), "{of_touches} {input:?}: {said}");
            assert!(said.contains(of_touches) || said.contains("--touches"), "{said}");
        }
    }
    for (arguments, why) in [
        (&["export", "-f", "csv", "--weight", "cost", trace][..], "--format folded"),
        (&["record", "-q", "--file", "libc.so.6", "--", "true"][..], "`prepage report --file TEXT`"),
    ] {
        let refused = tools(arguments);
        let said = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(why), "{said}");
    }
}

/// The command may make it.
#[test]
fn a_file_that_is_not_there_yet_is_recorded_and_told() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) {
        return;
    }
    let file = sandbox.path().join("later");
    let (later, output) = (file.to_str().unwrap(), sandbox.path().join("trace"));
    let recorded =
        tools(&["record", "-q", "-o", output.to_str().unwrap(), "--file", later, "--", "touch", later]);
    assert!(recorded.status.success() && file.exists(), "{}", text(&recorded.stderr));
    let said = text(&recorded.stderr);
    assert!(said.contains("later: no such file, or not yet"), "{said}");
}

#[test]
fn an_option_whose_value_is_wrong_is_named() {
    let refused = Sandbox::new().output(&["run", "--write-interval", "x", "--", "true"]);
    let said = text(&refused.stderr);
    assert!(refused.status.code() == Some(125) && said.contains("--write-interval: "), "{said}");
}

#[test]
fn a_configuration_that_cannot_be_read_was_not_read() {
    let sandbox = Sandbox::new();
    // Named like the one in a home, which it is not.
    let directory = sandbox.path().join("else/.config");
    fs::create_dir_all(directory.join("prepage/config")).unwrap();
    let shown = sandbox.prepage(&["config"]).env("XDG_CONFIG_HOME", directory).output().unwrap();
    let told = text(&shown.stdout);
    assert_eq!(shown.status.code(), Some(1));
    assert!(told.contains("prepage/config: cannot be read\n"), "{told}");
    assert!(told.contains("The service does not know XDG_CONFIG_HOME"), "{told}");
}

#[test]
fn where_learning_is_switched_off_run_says_so_and_learn_learns() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) {
        return;
    }
    fs::create_dir(sandbox.path().join("prepage")).unwrap();
    fs::write(sandbox.path().join("prepage/config"), "learn = no\n").unwrap();
    let configured = |args: &[&str]| {
        let start = || sandbox.prepage(args).env("XDG_CONFIG_HOME", sandbox.path()).output().unwrap();
        text(&sandbox.in_time(start).stderr)
    };
    let said = configured(&["run", "-v", "--", "true"]);
    assert!(said.contains("nothing is learned: learn = no"), "{said}");
    sandbox.wait_for_helpers();
    assert!(sandbox.profiles().is_empty());
    configured(&["learn", "--", "true"]);
    assert_eq!(sandbox.profiles().len(), 1);
}

/// The kernel tells of the rights that are missing before it tells that there is no such process.
#[test]
fn a_process_that_has_ended_is_not_said_to_be_anothers() {
    let sandbox = Sandbox::new();
    if !is_root() || !can_learn(&sandbox) {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let tools = place.path().join("prepage-tools");
    copy_program(env!("CARGO_BIN_EXE_prepage-tools"), &tools);
    let mut ended = Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    let mut command = Command::new(&tools);
    command.args(["record", "-p", &ended.id().to_string()]).current_dir(place.path());
    let recorded = command.uid(65534).gid(65534).output().unwrap();
    let said = text(&recorded.stderr);
    assert!(!recorded.status.success() && said.contains("there is no process"), "{said}");
}

/// The kernel does not execute them.
#[test]
fn a_script_without_an_interpreters_name_is_observed() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) {
        return;
    }
    let script = sandbox.path().join("script");
    write_program(&script, "cat /etc/hostname\n");
    let started = sandbox.in_time(|| sandbox.output(&["run", "-v", "--", script.to_str().unwrap()]));
    let said = text(&started.stderr);
    assert!(said.contains("observed ") && !said.contains("observed 0 pages"), "{said}");
    assert!(!said.contains("a static program"), "{said}");
}
