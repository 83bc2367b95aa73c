//! A test that acts in a process of its own: this program again, asked for that test alone.

use std::process::{Command, Output};

/// Names the test for which a process was started.
const CHILD: &str = "PREPAGE_TEST_CHILD";

/// The name of the calling test, as its program lists it.
///
/// # Panics
/// In threads that tests have started.
pub fn this_test() -> String {
    let thread = std::thread::current();
    let name = thread.name().filter(|name| *name != "main");
    name.expect("tests run in threads that have their names").to_owned()
}

/// Whether this process was started for the test `name`.
pub fn is_child(name: &str) -> bool {
    std::env::var_os(CHILD).is_some_and(|child| child == name)
}

/// The command that runs the test `name` in a process of its own. The words `before`, such as `["timeout", "60"]`, stand in front of it.
pub fn child_command(name: &str, before: &[&str]) -> Command {
    let itself = std::env::current_exe().expect("this program has a name");
    let mut command = match before {
        [] => Command::new(itself),
        [first, others @ ..] => {
            let mut command = Command::new(first);
            command.args(others).arg(itself);
            command
        }
    };
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(CHILD, name);
    command
}

/// What comes of such a command.
///
/// # Panics
/// When it succeeds without having run a test: there is none of that name then.
#[track_caller]
pub fn child_output(command: &mut Command) -> Output {
    let output = command.output().expect("the test's process starts");
    let said = String::from_utf8_lossy(&output.stdout);
    let has_run = said.contains("test result: ok. 1 passed");
    assert!(has_run || !output.status.success(), "no test has run: {command:?}: {said}");
    output
}

/// Runs the test `name` in a process of its own, behind the words `before`.
///
/// # Panics
/// As [`child_output`].
#[track_caller]
pub fn child(name: &str, before: &[&str]) -> Output {
    child_output(&mut child_command(name, before))
}

/// The same, of the calling test, which has to pass.
///
/// # Panics
/// When it does not.
#[track_caller]
pub fn passes_as_child(before: &[&str]) {
    assert_passed(&child(&this_test(), before));
}

/// Says what a test's process has said, where the test has failed.
///
/// # Panics
/// Then.
#[track_caller]
pub fn assert_passed(output: &Output) {
    let said = [&output.stdout, &output.stderr].map(|said| String::from_utf8_lossy(said));
    assert!(output.status.success(), "{}: {}{}", output.status, said[0], said[1]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_does_not_exist_has_not_passed() {
        let name = this_test();
        if is_child(&name) {
            return;
        }
        assert!(child(&name, &["env"]).status.success());
        assert!(std::panic::catch_unwind(|| child("child::tests::none", &[])).is_err());
    }
}
