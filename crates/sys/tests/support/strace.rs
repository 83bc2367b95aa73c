//! What strace shows of a command: the names it looks up and the pages it reads.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};

const PAGE: u64 = 4096;

#[derive(Debug, Default)]
pub struct Shown {
    /// Absolute, without `.` and `..`.
    pub names: BTreeSet<PathBuf>,
    /// Regular files that are not empty, and pages of them.
    pub pages: BTreeSet<(PathBuf, u64)>,
}

/// Runs `command` under strace.
pub fn strace(command: &[&str]) -> Shown {
    let trace = tempfile::NamedTempFile::new().unwrap();
    let calls = "trace=%file,read,pread64,readv,lseek";
    Command::new("strace")
        .args(["-f", "-y", "-s", "4096", "-e", calls, "-e", "signal=none", "-o"])
        .arg(trace.path())
        .args(command)
        .env("PREPAGE_TEST", "kept")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    let text = std::fs::read(trace.path()).unwrap();
    let mut shown = Shown::default();
    let mut positions = BTreeMap::new();
    let mut unfinished = BTreeMap::new();
    for line in String::from_utf8_lossy(&text).lines() {
        let Some((pid, rest)) = line.split_once(' ') else { continue };
        let rest = rest.trim_start();
        if let Some(begun) = rest.strip_suffix(" <unfinished ...>") {
            unfinished.insert(pid.to_owned(), begun.to_owned());
        } else if let Some(end) = rest.strip_prefix("<... ") {
            let begun = unfinished.remove(pid).unwrap_or_default();
            let end = end.split_once('>').map_or("", |(_, end)| end.strip_prefix(" resumed").unwrap_or(end));
            shown.add(pid, &(begun + end.trim_start_matches('>')), &mut positions);
        } else {
            shown.add(pid, rest, &mut positions);
        }
    }
    shown
}

impl Shown {
    /// Adds what `call`, such as `read(3</etc/passwd>, "root…", 4096) = 1204`, tells.
    fn add(&mut self, pid: &str, call: &str, positions: &mut BTreeMap<(String, String), u64>) {
        let Some((name, rest)) = call.split_once('(') else { return };
        let Some((args, result)) = rest.rsplit_once(" = ") else { return };
        let number = |text: &str| {
            let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
            digits.parse::<u64>().ok()
        };
        match name {
            "read" | "pread64" | "readv" | "lseek" => {
                let Some((fd, Some(got))) = args.split_once(['>', ',']).map(|(fd, _)| (fd, number(result)))
                else {
                    return;
                };
                let place = (pid.to_owned(), fd.to_owned());
                let last = args.trim_end_matches(')').rsplit(", ").next().and_then(number);
                let offset = match (name, last) {
                    ("lseek", _) => {
                        positions.insert(place, got);
                        return;
                    }
                    ("pread64", Some(offset)) => offset,
                    _ => positions.get(&place).copied().unwrap_or(0),
                };
                if name != "pread64" {
                    positions.insert(place, offset + got);
                }
                // ld.so looks at headers of files whose pages it then maps.
                let Some((_, path)) = fd.split_once('<').filter(|_| !args.contains("\"\\177ELF")) else {
                    return;
                };
                let mapped = name == "pread64" && offset < 1024;
                let regular = std::fs::metadata(path).is_ok_and(|of| of.is_file() && of.len() > 0);
                if regular && !mapped && got > 0 {
                    let pages = offset / PAGE..=(offset + got - 1) / PAGE;
                    self.pages.extend(pages.map(|page| (PathBuf::from(path), page)));
                }
            }
            "getcwd" => {}
            _ => {
                // A descriptor, as it stands in calls that use it.
                if let Some((opened, _)) = result.split_once('>') {
                    positions.insert((pid.to_owned(), opened.to_owned()), 0);
                }
                let Some((before, quoted)) = args.split_once('"') else { return };
                let Some((path, _)) = quoted.split_once('"').filter(|(path, _)| !path.is_empty()) else {
                    return;
                };
                let dir = before.split_once('<').and_then(|(_, dir)| Some(dir.split_once('>')?.0));
                let here = std::env::current_dir().unwrap();
                self.names.insert(plain(&dir.map_or(here, PathBuf::from).join(path)));
            }
        }
    }
}

/// `path` without `.` and `..`.
pub fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                plain.pop();
            }
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain
}
