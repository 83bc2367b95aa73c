//! A pool that gives memory back while its control group is short of it.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use prepage_core::PAGE_SIZE;
use prepage_testing::{Need, has, unless_refused};
use prepage_vm::{MapOptions, Pool, PoolOptions, Vm, VmOptions};
use support::{Words, child_command, is_child, touch, word};

const HELD_BYTES: u64 = 48 << 20;

/// A control group of version 1, which is removed in the end.
struct Group(PathBuf);

impl Drop for Group {
    fn drop(&mut self) {
        // A process that has just ended may be in it for a moment.
        let began = Instant::now();
        while std::fs::remove_dir(&self.0).is_err() && began.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Group {
    fn set_limit(&self, bytes: u64) -> std::io::Result<()> {
        std::fs::write(self.0.join("memory.limit_in_bytes"), bytes.to_string())
    }

    fn usage(&self) -> u64 {
        std::fs::read_to_string(self.0.join("memory.usage_in_bytes")).unwrap().trim().parse().unwrap()
    }
}

#[test]
fn a_limit_that_shrinks_is_followed() {
    let groups = Path::new("/sys/fs/cgroup/memory");
    let need = Need::Path(groups.join("memory.limit_in_bytes"));
    if !has(need.clone()) {
        return;
    }
    let directory = groups.join(format!("prepage-give-back-{}", std::process::id()));
    let made = std::fs::create_dir(&directory);
    let refused = |error: &std::io::Error| {
        use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
        matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem)
    };
    if unless_refused(made, need, refused).is_none() {
        return;
    }
    let group = Group(directory);
    group.set_limit(256 << 20).unwrap();
    let processes = group.0.join("cgroup.procs");
    let before = ["sh", "-c", "echo $$ > \"$0\" && exec \"$@\"", processes.to_str().unwrap()];
    let mut child =
        child_command("child_holds", &before).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.ends_with("holds all\n") {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "the child ended");
    }
    // The kernel takes no limit below what cannot be taken away: it is lowered as far as the pool lets it.
    let wanted = group.usage() - (4 << 20);
    let began = Instant::now();
    while group.set_limit(wanted).is_err() {
        assert!(began.elapsed() < Duration::from_secs(240), "nothing is given back");
        let _ = group.set_limit(group.usage() + (1 << 20));
        std::thread::sleep(Duration::from_millis(100));
    }
    group.set_limit(256 << 20).unwrap();
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert!(child.wait().unwrap().success(), "{rest}");
    assert!(rest.contains("gave back"), "{rest}");
}

#[test]
fn child_holds() {
    if !is_child("child_holds") {
        return;
    }
    let pool = Pool::with(&PoolOptions::default().gives_back(1 << 20)).unwrap();
    let vm = Vm::new(VmOptions::default().pool(&pool)).unwrap();
    let object = vm.source("words", Words { len_bytes: HELD_BYTES, ..Words::default() }).unwrap();
    let map = vm.map(&object, &MapOptions::shared()).unwrap();
    map.populate(map.window()).unwrap();
    println!("holds all");
    std::io::stdin().read_exact(&mut [0]).unwrap();
    let given = vm.statistics().counted.pages_reclaimed;
    // All of it is still to be had.
    for page in 0..HELD_BYTES / PAGE_SIZE {
        assert_eq!(touch(&map, page), word(page * PAGE_SIZE));
    }
    assert!(given > 0);
    println!("gave back {given} pages");
}
