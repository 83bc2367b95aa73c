//! Children that wait before they execute their program.

use std::ffi::OsString;

use prepage_sys::spawn::{HowEnded, spawn_waiting};

fn shell(script: &str) -> Vec<OsString> {
    ["sh", "-c", script].map(Into::into).to_vec()
}

#[test]
fn variables_are_added_and_replaced_and_the_rest_is_inherited() {
    let script = r#"[ "$PREPAGE_TEST" = "a=b c" ] && [ "$HOME" = /nowhere ] && [ -n "$PATH" ]"#;
    let waiting = spawn_waiting(&shell(script)).unwrap();
    let variables = [("PREPAGE_TEST", "a=b c".into()), ("HOME", "/nowhere".into())];
    let ended = waiting.go_with(&variables).unwrap().wait().unwrap();
    assert!(matches!(ended.how, HowEnded::Exited(0)), "{:?}", ended.how);
}

#[test]
fn a_child_that_may_not_go_ends_without_having_run() {
    let dir = tempfile::tempdir().unwrap();
    let mark = dir.path().join("mark");
    drop(spawn_waiting(&shell(&format!("touch {}", mark.display()))).unwrap());
    assert!(!mark.exists());
}
