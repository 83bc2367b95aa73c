//! What `prepaged` prints where it cannot be written.

use std::fs::OpenOptions;
use std::process::Command;

#[test]
fn help_that_cannot_be_printed_is_an_error() {
    for option in ["--help", "--version"] {
        let mut prepaged = Command::new(env!("CARGO_BIN_EXE_prepaged"));
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = prepaged.arg(option).stdout(full).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{option}: {said}");
        assert!(said.contains("standard output: cannot be written: No space left"), "{option}: {said}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = prepaged.stdout(writer).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{option}: {output:?}");
    }
}
