//! Which tests of a run failed, as `cargo test --no-fail-fast` prints them.

/// The tests of one target that failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failed {
    /// Arguments of `cargo test` that run this target alone: `-p prepage-vm --test pool`.
    pub target: Vec<String>,
    /// The tests' names; none where they cannot be told: the program that runs them was killed.
    pub tests: Vec<String>,
}

/// Finds the failed tests in a run's lines, one by one.
#[derive(Debug, Default)]
pub struct Failures {
    /// The names of the last list of failures, of a program of tests or of one that a test has run.
    listed: Vec<String>,
    /// Whether lines of such a list come.
    lists: bool,
    /// How many failed by the last result.
    counted: usize,
    by_target: Vec<Failed>,
    /// How many targets failed, as is said in the end.
    targets: Option<usize>,
}

impl Failures {
    /// Takes the next line of what `cargo test` prints, on either stream.
    pub fn line(&mut self, line: &str) {
        // Not the line of each test: what programs print that a test starts stands before it or in it.
        if line == "failures:" {
            self.lists = true;
            self.listed.clear();
            return;
        }
        self.lists &= line.starts_with("    ");
        if self.lists {
            self.listed.push(line.trim().to_owned());
        } else if let Some(result) = line.strip_prefix("test result: ") {
            let failed = result.split("; ").find_map(|count| count.strip_suffix(" failed"));
            self.counted = failed.and_then(|count| count.parse().ok()).unwrap_or(0);
        } else if let Some(error) = line.strip_prefix("error: ") {
            if let Some((_, target)) = error.split_once("to rerun pass `") {
                let target = target.trim_end().trim_end_matches('`').split(' ').map(str::to_owned).collect();
                let tests = std::mem::take(&mut self.listed);
                let tests = if tests.len() == self.counted { tests } else { Vec::new() };
                self.by_target.push(Failed { target, tests });
            } else if error.ends_with(" failed:") {
                self.targets = error.split(' ').next().and_then(|count| count.parse().ok());
            }
        } else if line.starts_with("  process didn't exit successfully: ") {
            // Killed, or gone by an exit of its own: what it had said by then is not all.
            self.by_target.iter_mut().last().into_iter().for_each(|failed| failed.tests.clear());
        } else if line.trim_start().starts_with("Running ") || line.trim_start().starts_with("Doc-tests ") {
            self.listed.clear();
            self.counted = 0;
        }
    }

    /// All that failed, by target, in the order of the run; `None` where something failed of which no test is known.
    pub fn all(&self) -> Option<&[Failed]> {
        let is_known = self.by_target.iter().all(|failed| !failed.tests.is_empty());
        (is_known && self.targets == Some(self.by_target.len())).then_some(&self.by_target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(printed: &str) -> Failures {
        let mut failures = Failures::default();
        printed.lines().for_each(|line| failures.line(line));
        failures
    }

    fn failed(target: &str, tests: &[&str]) -> Failed {
        Failed {
            target: target.split(' ').map(str::to_owned).collect(),
            tests: tests.iter().map(|&test| test.to_owned()).collect(),
        }
    }

    /// As cargo 1.95 prints it. One test has run another program of tests, and one a program that ends no line.
    const PRINTED: &str = "     Running tests/idle.rs (target/debug/deps/idle-36e8)\n\
        test one ... ok\nno line endtest other::two ... FAILED\ntest three ... ignored\n\
        test four - should panic ... FAILED\n\
        \nfailures:\n\n---- other::two stdout ----\n\nfailures:\n    nested\n\ntest result: FAILED. 0 passed; 1 failed; \
        0 ignored; 0 measured; 0 filtered out; finished in 0.05s\n\n\
        \nfailures:\n    four\n    other::two\n\ntest result: FAILED. 1 passed; 2 failed; 1 ignored; 0 measured; \
        0 filtered out; finished in 0.05s\n\n\
        error: test failed, to rerun pass `-p prepage-service --test idle`\n\
        \x20  Doc-tests prepage_vm\ntest crates/vm/src/lib.rs - (line 45) ... FAILED\n\
        \nfailures:\n    crates/vm/src/lib.rs - (line 45)\n\ntest result: FAILED. 0 passed; 1 failed; 0 ignored\n\
        error: doctest failed, to rerun pass `-p prepage-vm --doc`\n";

    #[test]
    fn failed_tests_are_found_by_target() {
        let failures = after(&format!(
            "{PRINTED}error: 2 targets failed:\n    `-p prepage-service --test idle`\n    `-p prepage-vm --doc`\n"
        ));
        assert_eq!(
            failures.all(),
            Some(
                &[
                    failed("-p prepage-service --test idle", &["four", "other::two"]),
                    failed("-p prepage-vm --doc", &["crates/vm/src/lib.rs - (line 45)"]),
                ][..]
            )
        );
    }

    #[test]
    fn what_is_not_all_is_nothing() {
        let target = "error: test failed, to rerun pass `-p prepage-vm --lib`\n";
        let crashed = "\nCaused by:\n  process didn't exit successfully: `vm-1` (signal: 11, SIGSEGV: invalid memory \
             reference)\n";
        let third = "error: 3 targets failed:\n";
        for (printed, why) in [
            (format!("{PRINTED}{target}{crashed}{third}"), "one was killed"),
            (
                format!("{PRINTED}error: 2 targets failed:\n{crashed}"),
                "one was killed after it had listed some",
            ),
            (format!("{PRINTED}{third}"), "one could not be executed"),
            (PRINTED.to_owned(), "cargo has not come to its end"),
            (
                format!("{}error: 2 targets failed:\n", PRINTED.replace("    four\n", "")),
                "a list is cut short",
            ),
            (
                "error: could not compile `prepage-vm` (lib test) due to 1 previous error".into(),
                "no test ran",
            ),
        ] {
            assert_eq!(after(&printed).all(), None, "{why}");
        }
    }
}
