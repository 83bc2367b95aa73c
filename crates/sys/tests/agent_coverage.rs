//! How much of what strace shows of real programs the agent sees.

mod support;

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use prepage_sys::agent::Event;
use prepage_testing::{Need, has};

use support::observe;
use support::strace::{plain, strace};

const PAGE: u64 = 4096;

/// Files that libc uses by itself, and directories below which it does, which the agent does not tell of. Which of them a program uses depends on LANG
/// and TZ as well.
const NAMES_OF_LIBC: [&str; 6] = [
    "/etc/ld.so.cache",
    "/etc/ld.so.preload",
    "/etc/locale.alias",
    "/usr/lib/locale",
    "/usr/lib/x86_64-linux-gnu/gconv/gconv-modules.cache",
    "/usr/share/zoneinfo",
];

/// The least shares of names and read pages that the agent sees of `command`. It sees hardly any that are not read.
fn sees(command: &[&str], least_names: f64, least_pages: f64) {
    if !has(Need::Tool("strace".to_owned())) || !has(Need::Tool(command[0].to_owned())) {
        return;
    }
    let shown = strace(command);
    let observed = observe(Command::new(command[0]).args(&command[1..]).env("PREPAGE_TEST", "kept"));
    assert_eq!(observed.lost.dropped, 0);
    let mut seen: BTreeSet<PathBuf> = BTreeSet::new();
    for name in observed.names() {
        let name = plain(&name);
        // Whoever looks up a name looks up the directories above it, and its symbolic links.
        let real = name.canonicalize().into_iter();
        for path in real.chain([name]) {
            seen.extend(path.ancestors().map(Path::to_owned));
        }
    }
    // The others are not on any disk, or not the same in another run.
    let counts = |name: &Path| {
        let outside = ["/proc", "/sys", "/dev", "/tmp"].iter();
        !outside.chain(&NAMES_OF_LIBC).any(|other| name.starts_with(other))
    };
    let wanted: Vec<&PathBuf> = shown.names.iter().filter(|name| counts(name)).collect();
    let missed: Vec<&&PathBuf> = wanted.iter().filter(|name| !seen.contains(**name)).collect();
    let share = |missed: usize, of: usize| 1.0 - missed as f64 / of.max(1) as f64;
    let names_seen = share(missed.len(), wanted.len());
    let mut read = BTreeSet::new();
    for record in &observed.records {
        if let Event::Read { device, inode, offset, len } = record.event {
            read.extend((offset / PAGE..=(offset + len - 1) / PAGE).map(|page| (device, inode, page)));
        }
    }
    let (mut pages, mut beyond) = (shown.pages, read.clone());
    let file = |path: &Path| std::fs::metadata(path).map(|of| (of.dev(), of.ino())).unwrap_or_default();
    // Heads of programs and libraries are not among what strace shows here.
    for (path, page) in &pages {
        let (device, inode) = file(path);
        beyond.remove(&(device, inode, *page));
    }
    beyond.retain(|(_, _, page)| *page > 0);
    pages.retain(|(path, _)| counts(path));
    let is_missed = |(path, page): &&(PathBuf, u64)| {
        let (device, inode) = file(path);
        !read.contains(&(device, inode, *page))
    };
    let pages_seen = share(pages.iter().filter(is_missed).count(), pages.len());
    println!(
        "{}: {:.3} of {} names, {:.3} of {} pages read, {} beyond",
        command[0],
        names_seen,
        wanted.len(),
        pages_seen,
        pages.len(),
        beyond.len()
    );
    assert!(wanted.len() > 5 && !pages.is_empty(), "strace showed nothing of {command:?}");
    assert!(names_seen >= least_names, "{}: {names_seen:.3} of the names, not {missed:#?}", command[0]);
    assert!(pages_seen >= least_pages, "{}: {pages_seen:.3} of the pages read", command[0]);
    assert!(beyond.len() * 20 <= pages.len(), "{}: not read are {beyond:?}", command[0]);
}

#[test]
fn gcc() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("a.c");
    std::fs::write(&source, "#include <stdio.h>\nint main(void) { puts(\"x\"); }\n").unwrap();
    sees(&["gcc", "-O2", "-c", "-o", "/dev/null", source.to_str().unwrap()], 0.95, 0.95);
}

#[test]
fn gdb() {
    sees(&["gdb", "-batch", "-ex", "info line main", "/usr/bin/gdb"], 0.95, 0.95);
}

#[test]
fn node() {
    sees(&["node", "-e", "require('http'); require('fs').readFileSync('/etc/passwd')"], 0.95, 0.95);
}

#[test]
fn emacs() {
    sees(&["emacs", "-Q", "--batch", "--eval", "(require 'org)"], 0.95, 0.95);
}

#[test]
fn php() {
    sees(&["php", "-r", "echo json_encode([1]);"], 0.95, 0.95);
}

#[test]
fn python() {
    sees(&["/usr/bin/python3", "-c", "import json, http.client, asyncio"], 0.95, 0.95);
}

#[test]
fn perl() {
    sees(&["perl", "-MPOSIX", "-MData::Dumper", "-e", "print 1"], 0.95, 0.95);
}

#[test]
fn ghostscript() {
    sees(&["gs", "-q", "-dBATCH", "-dNOPAUSE", "-sDEVICE=nullpage", "-c", "quit"], 0.95, 0.95);
}

#[test]
fn java() {
    sees(&["java", "-version"], 0.95, 0.95);
}

#[test]
fn r() {
    sees(&["R", "--vanilla", "-q", "-e", "summary(1:10)"], 0.85, 0.90);
}
