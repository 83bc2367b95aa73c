//! Mapping a program's pages before its first instruction: the study's `early_fault`.
//!
//! What only the program itself can do, a small library does that is preloaded into it
//! (`crates/bench/preload/early_fault.c`, which says what it cannot do).

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use prepage_core::profile::Profile;

use crate::error::{BenchError, failed};

/// The library's name. It lies beside the binary of a build, and is installed nowhere.
const LIBRARY: &str = "libprepage-early-fault.so";

/// The library, with a list of pages for it and a place for what it reports.
#[derive(Debug)]
pub struct EarlyFault {
    library: PathBuf,
    list: PathBuf,
    report: PathBuf,
}

/// What the library did in one start, in all its processes together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct MappedAhead {
    /// How long the programs waited for it.
    pub took_ns: u64,
    /// Pages of files that it asked to have mapped; some may have been.
    pub file_pages: u64,
    /// Pages of .bss that it had filled with zeros.
    pub zero_pages: u64,
    /// Page faults that this took inside its system calls.
    pub faults: u64,
    /// Calls of madvise(2).
    pub calls: u64,
}

/// The library beside the binary `program`, where it is there.
pub fn library_beside(program: &Path) -> Option<PathBuf> {
    Some(program.parent()?.join(LIBRARY)).filter(|library| library.exists())
}

/// The environment variables of a program whose files the kernel is to read nothing ahead of, by the library
/// (`crates/bench/preload/advise_random.c`, which says of which files).
pub fn advise_random(library: &Path) -> Vec<(&'static str, OsString)> {
    vec![("LD_PRELOAD", preload(library)), ("PREPAGE_ADVISE_RANDOM", "1".into())]
}

fn preload(library: &Path) -> OsString {
    let mut all = OsString::from(library);
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        all.push(":");
        all.push(others);
    }
    all
}

impl EarlyFault {
    /// Writes the list of `profile`'s pages into `directory`, which must be there as long as this is used.
    pub fn prepare(library: &Path, directory: &Path, profile: &Profile) -> io::Result<Self> {
        let (list, report) = (directory.join("pages"), directory.join("mapped"));
        let mut text = Vec::new();
        for file in &profile.files {
            for extent in &file.extents {
                writeln!(text, "{} {} {}", extent.range.start(), extent.range.end(), file.path)?;
            }
        }
        fs::write(&list, text)?;
        File::create(&report)?;
        Ok(Self { library: library.canonicalize()?, list, report })
    }

    /// The environment variables of a program that is to map ahead.
    pub fn variables(&self) -> Vec<(&'static str, OsString)> {
        vec![
            ("LD_PRELOAD", preload(&self.library)),
            ("PREPAGE_EARLY_FAULT", self.list.clone().into()),
            ("PREPAGE_EARLY_FAULT_REPORT", self.report.clone().into()),
        ]
    }

    /// What was done since the last call.
    pub fn take_report(&self) -> Result<MappedAhead, BenchError> {
        let unread = || failed("the report of what was mapped ahead cannot be read");
        let text = fs::read_to_string(&self.report).map_err(unread())?;
        File::create(&self.report).map_err(unread())?;
        Ok(text.lines().filter_map(parse).fold(MappedAhead::default(), |sum, one| MappedAhead {
            took_ns: sum.took_ns + one.took_ns,
            file_pages: sum.file_pages + one.file_pages,
            zero_pages: sum.zero_pages + one.zero_pages,
            faults: sum.faults + one.faults,
            calls: sum.calls + one.calls,
        }))
    }
}

fn parse(line: &str) -> Option<MappedAhead> {
    let numbers: Vec<u64> = line.split_ascii_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
    let [took_ns, file_pages, zero_pages, faults, calls] = numbers[..] else { return None };
    Some(MappedAhead { took_ns, file_pages, zero_pages, faults, calls })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_looked_for_where_builds_have_it() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("prepage");
        assert_eq!(library_beside(&program), None);
        fs::write(dir.path().join(LIBRARY), "").unwrap();
        assert!(library_beside(&program).unwrap().ends_with(LIBRARY));
    }

    #[test]
    fn the_lines_of_all_processes_are_added_up_and_taken_once() {
        let dir = tempfile::tempdir().unwrap();
        let library = dir.path().join(LIBRARY);
        fs::write(&library, "").unwrap();
        let early = EarlyFault::prepare(&library, dir.path(), &Profile::default()).unwrap();
        fs::write(&early.report, "10 2 3 4 5\n1 1 1 1 1\nhalf a li").unwrap();
        let sum = MappedAhead { took_ns: 11, file_pages: 3, zero_pages: 4, faults: 5, calls: 6 };
        assert_eq!(early.take_report().unwrap(), sum);
        assert_eq!(early.take_report().unwrap(), MappedAhead::default());
    }
}
