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

/// Where control groups of one version are, and their files.
struct Groups {
    parent: &'static str,
    limit: &'static str,
    usage: &'static str,
}

const VERSION_1: Groups = Groups {
    parent: "/sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
};
const VERSION_2: Groups = Groups { parent: "/sys/fs/cgroup", limit: "memory.max", usage: "memory.current" };

/// A control group, which is removed in the end.
struct Group {
    directory: PathBuf,
    of: Groups,
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process that has just ended may be in it for a moment.
        let began = Instant::now();
        while std::fs::remove_dir(&self.directory).is_err() && began.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Group {
    /// `None`, and a skip, where this user or this machine has none that limits memory.
    fn new() -> Option<Self> {
        let has_first = Path::new(VERSION_1.parent).join(VERSION_1.limit).exists();
        let of = if has_first { VERSION_1 } else { VERSION_2 };
        let directory = Path::new(of.parent).join(format!("prepage-give-back-{}", std::process::id()));
        let need = Need::Path(directory.join(of.limit));
        let refused = |error: &std::io::Error| {
            use std::io::ErrorKind::{NotFound, PermissionDenied, ReadOnlyFilesystem};
            matches!(error.kind(), NotFound | PermissionDenied | ReadOnlyFilesystem)
        };
        unless_refused(std::fs::create_dir(&directory), need.clone(), refused)?;
        let group = Self { directory, of };
        has(need).then_some(group)
    }

    fn set_limit(&self, bytes: u64) -> std::io::Result<()> {
        std::fs::write(self.directory.join(self.of.limit), bytes.to_string())
    }

    fn usage(&self) -> u64 {
        std::fs::read_to_string(self.directory.join(self.of.usage)).unwrap().trim().parse().unwrap()
    }
}

#[test]
fn a_limit_that_shrinks_is_followed() {
    let Some(group) = Group::new() else { return };
    group.set_limit(256 << 20).unwrap();
    let processes = group.directory.join("cgroup.procs");
    let before = ["sh", "-c", "echo $$ > \"$0\" && exec \"$@\"", processes.to_str().unwrap()];
    let mut child =
        child_command("child_holds", &before).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.ends_with("holds all\n") {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "the child ended");
    }
    // The kernel takes no limit below what cannot be taken away, or kills: it is lowered as far as the pool lets it. A MiB is less than
    // the pool leaves free.
    let wanted = group.usage() - (4 << 20);
    let began = Instant::now();
    loop {
        let usage = group.usage();
        if usage <= wanted {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(240), "nothing is given back");
        let _ = group.set_limit(usage + (1 << 20));
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
