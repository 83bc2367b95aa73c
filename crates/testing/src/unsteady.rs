//! Which tests of a run failed, as `cargo test --no-fail-fast` prints them.

/// The tests of one target that failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failed {
    /// Arguments of `cargo test` that run this target alone: `-p prepage-vm --test pool`.
    pub target: Vec<String>,
    /// The tests' names; none where the program that runs them was killed.
    pub tests: Vec<String>,
}

/// Finds the failed tests in a run's lines, one by one.
#[derive(Debug, Default)]
pub struct Failures {
    tests: Vec<String>,
    /// By target, in the order of the run.
    pub by_target: Vec<Failed>,
}

impl Failures {
    /// Takes the next line of what `cargo test` prints, on either stream.
    pub fn line(&mut self, line: &str) {
        if let Some(name) =
            line.strip_prefix("test ").and_then(|rest| rest.trim_end().strip_suffix(" ... FAILED"))
        {
            // A test that runs itself in another process may print that one's result too.
            if !self.tests.iter().any(|known| known == name) {
                self.tests.push(name.to_owned());
            }
        } else if let Some(rerun) =
            line.strip_prefix("error: ").and_then(|rest| rest.split_once("to rerun pass `"))
        {
            let target = rerun.1.trim_end().trim_end_matches('`');
            let target = target.split(' ').map(str::to_owned).collect();
            self.by_target.push(Failed { target, tests: std::mem::take(&mut self.tests) });
        } else if line.trim_start().starts_with("Running ") {
            self.tests.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_tests_are_found_by_target() {
        let mut failures = Failures::default();
        let printed = "     Running tests/idle.rs (target/debug/deps/idle-36e8)\n\
            test one ... ok\ntest other::two ... FAILED\ntest three ... ignored\n\
            test other::two ... FAILED\n\
            failures:\n    other::two\n\
            error: test failed, to rerun pass `-p prepage-service --test idle`\n\
            \x20    Running unittests src/lib.rs (target/debug/deps/vm-1)\n\
            error: test failed, to rerun pass `-p prepage-vm --lib`\n\
            \x20  Doc-tests prepage_vm\ntest crates/vm/src/lib.rs - (line 45) ... FAILED\n\
            error: doctest failed, to rerun pass `-p prepage-vm --doc`\n\
            error: 3 targets failed:\n    `-p prepage-service --test idle`\n";
        printed.lines().for_each(|line| failures.line(line));
        let failed = |target: &str, tests: &[&str]| Failed {
            target: target.split(' ').map(str::to_owned).collect(),
            tests: tests.iter().map(|&test| test.to_owned()).collect(),
        };
        assert_eq!(
            failures.by_target,
            [
                failed("-p prepage-service --test idle", &["other::two"]),
                failed("-p prepage-vm --lib", &[]),
                failed("-p prepage-vm --doc", &["crates/vm/src/lib.rs - (line 45)"]),
            ]
        );
    }

    #[test]
    fn what_does_not_compile_names_no_test() {
        let mut failures = Failures::default();
        failures.line("error: could not compile `prepage-vm` (lib test) due to 1 previous error");
        assert_eq!(failures.by_target, []);
    }
}
