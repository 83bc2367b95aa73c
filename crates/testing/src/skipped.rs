//! One skipped test, and the file in which they stand.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::panic::Location;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::Need;

/// A test that did not run to its end on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// What the machine lacks.
    pub need: Need,
    /// The test's name, as the test runner prints it.
    pub test: String,
    /// File and line of the skip.
    pub location: String,
    /// What showed that it is missing.
    pub found: String,
}

impl Skipped {
    pub(crate) fn here(need: Need, found: String, location: &Location<'_>) -> Self {
        let test = std::thread::current().name().unwrap_or("?").to_owned();
        let location = format!("{}:{}", location.file(), location.line());
        Self { need, test, location, found }
    }

    pub(crate) fn append_to(&self, log: &Path) -> io::Result<()> {
        // One write, so that lines of tests in other processes do not mix with it.
        let line = serde_json::to_string(self)? + "\n";
        File::options().create(true).append(true).open(log)?.write_all(line.as_bytes())
    }

    /// All skips recorded in `log`; none if the file does not exist.
    ///
    /// # Errors
    /// When the file cannot be read, or holds a line that is not a skip.
    pub fn read(log: &Path) -> io::Result<Vec<Self>> {
        let text = match std::fs::read_to_string(log) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            text => text?,
        };
        text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
    }
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}) needs {}: {}", self.test, self.location, self.need, self.found)
    }
}

/// Where skips are recorded: the file that the variable `PREPAGE_SKIPS` names, else `skipped-tests` in the directory of cargo's
/// profile (`target/debug`), in which tests (in `deps`), examples and programs lie.
///
/// # Panics
/// When the path of this program is unknown.
pub fn log_path() -> PathBuf {
    if let Some(path) = std::env::var_os("PREPAGE_SKIPS") {
        return path.into();
    }
    profile_directory(&std::env::current_exe().expect("the path of this program")).join("skipped-tests")
}

/// Where cargo put `program`, which it built as a test, an example or a program.
fn profile_directory(program: &Path) -> &Path {
    let directory = program.parent().expect("a program lies in a directory");
    if directory.ends_with("deps") || directory.ends_with("examples") {
        return directory.parent().expect("cargo keeps this directory in a profile's");
    }
    directory
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_and_programs_of_one_profile_share_a_log() {
        for program in ["/t/debug/deps/vm-0123", "/t/debug/examples/agent", "/t/debug/skips"] {
            assert_eq!(profile_directory(Path::new(program)), Path::new("/t/debug"), "{program}");
        }
    }

    #[test]
    fn what_is_recorded_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("skipped-tests");
        assert_eq!(Skipped::read(&log).unwrap(), []);
        let found = "no such\tprogram\nat all".to_owned();
        let skips = vec![
            Skipped::here(Need::Tool("no-such-program".into()), found, Location::caller()),
            Skipped::here(Need::Root, "user 7".into(), Location::caller()),
        ];
        for skip in &skips {
            skip.append_to(&log).unwrap();
        }
        assert!(skips[0].test.ends_with("what_is_recorded_is_read_again"), "{skips:?}");
        assert_eq!(Skipped::read(&log).unwrap(), skips);
        std::fs::write(&log, "Root\n").unwrap();
        assert_eq!(Skipped::read(&log).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
