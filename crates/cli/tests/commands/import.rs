//! `prepage import` as its user meets it.

use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Output};

use prepage_core::FaultClass;
use prepage_testing::{Doctor, Need, has};
use prepage_trace::parquet::read_trace;

use crate::support::{may, text};

fn tools(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_prepage-tools")).current_dir(dir).args(args).output().unwrap()
}

/// Has perf record `prepage bench access` of a file of 200 pages into perf.data. False, counted as a skip, where it cannot.
fn record(dir: &Path, events: &str) -> bool {
    if !has(Need::Tool("perf".into())) || !may(Doctor::Faults) {
        return false;
    }
    std::fs::write(dir.join("file"), vec![1; 200 * 4096]).unwrap();
    let mut perf = Command::new("perf");
    perf.current_dir(dir).args(["record", "-q", "-o", "perf.data", "-e", events, "-c", "1", "-d", "--"]);
    perf.args([env!("CARGO_BIN_EXE_prepage-tools"), "bench", "access", "file"]);
    let output = perf.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    true
}

#[test]
fn faults_of_a_file_are_found_by_its_pages() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    if !record(dir.path(), "page-faults,minor-faults,major-faults") {
        return;
    }
    let output = tools(dir.path(), &["import"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("written to prepage.parquet"), "{}", text(&output.stderr));
    let trace = read_trace(&dir.path().join("prepage.parquet")).unwrap();
    let inode = std::fs::metadata(dir.path().join("file")).unwrap().ino();
    let is_file = |fault: &&prepage_core::Fault| {
        let object = fault.object.map(|id| &trace.objects[id.0 as usize]);
        object.is_some_and(|object| object.path.ends_with("/file") && object.inode.unwrap().1 == inode)
    };
    let faults: Vec<_> = trace.faults.iter().filter(is_file).collect();
    // In sequence, at least one fault for what fault-around maps, at most one a page and its retry where something
    // emptied the page cache meanwhile.
    assert!((1..=400).contains(&faults.len()), "{}", faults.len());
    assert!(faults.iter().map(|fault| fault.page.unwrap().0).is_sorted());
    assert_eq!(faults[0].page.unwrap().0, 0);
    // Each once: the thread takes one after the other.
    let ends_before =
        |pair: &[&prepage_core::Fault]| pair[0].start_ns + pair[0].cost_ns.unwrap_or(0) <= pair[1].start_ns;
    assert!(faults.windows(2).all(ends_before));
    let of_file = [FaultClass::Cached, FaultClass::Disk];
    assert!(faults.iter().all(|fault| of_file.contains(&fault.class) && fault.cost_ns.is_some()));
    assert!(faults.iter().all(|fault| fault.permissions.to_string() == "r--s"));
    assert!(trace.facts.imported.is_some() && trace.facts.command.iter().any(|word| word == "access"));
}

#[test]
fn what_is_missing_is_told_and_leaves_no_trace() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let fails = |expected: &str| {
        let output = tools(dir.path(), &["import"]);
        assert_eq!(output.status.code(), Some(125));
        let said = text(&output.stderr);
        assert!(said.contains(expected), "{expected} is missing: {said}");
        assert!(!dir.path().join("prepage.parquet").exists());
    };
    fails("perf.data cannot be read");
    std::fs::write(dir.path().join("perf.data"), "no such thing").unwrap();
    fails(
        "is not a perf.data file\n  try: perf record -e page-faults,minor-faults,major-faults -c 1 -d -- CMD",
    );
    if !record(dir.path(), "cpu-clock") {
        return;
    }
    fails("holds no page-fault samples, but cpu-clock\n  try: perf record -e page-faults");
    assert!(record(dir.path(), "page-faults"));
    let whole = std::fs::read(dir.path().join("perf.data")).unwrap();
    std::fs::write(dir.path().join("perf.data"), &whole[..whole.len() / 2]).unwrap();
    fails("is cut short");
    std::fs::write(dir.path().join("perf.data"), &whole).unwrap();
    let output = tools(dir.path(), &["import", "-q"]);
    assert!(output.status.success());
    let said = text(&output.stderr);
    assert!(said.contains("perf did not record which read from disk") && said.contains("no costs"), "{said}");
}

#[test]
fn a_full_disk_keeps_what_there_was_room_for_and_a_damaged_file_leaves_nothing() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    if !has(Need::Tool("perf".into())) || !may(Doctor::Faults) || !has(Need::Mounts) {
        return;
    }
    // More faults than a row group has, so that there is a footer in the file before its end.
    let faults = "import mmap\n\
        memory = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n\
        memory.madvise(mmap.MADV_NOHUGEPAGE)\n\
        for _ in range(24):\n\
        \x20   memory[::4096] = bytes(16384)\n\
        \x20   memory.madvise(mmap.MADV_DONTNEED)\n";
    let mut perf = Command::new("perf");
    perf.current_dir(dir.path()).args([
        "record",
        "-q",
        "-o",
        "perf.data",
        "-e",
        "page-faults",
        "-c",
        "1",
        "-d",
        "--",
    ]);
    let output = perf.args(["/usr/bin/python3", "-c", faults]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));

    let script = format!(
        "mount -t tmpfs -o size=1200k none . && cd . && cd \"$PWD\" || exit 99
         {} import -o t.parquet \"$1\"/perf.data
         code=$?; ls; cp t.parquet \"$1\"/copy; exit $code",
        env!("CARGO_BIN_EXE_prepage-tools")
    );
    let small = tempfile::tempdir().unwrap();
    let mut unshare = Command::new("unshare");
    unshare.args(["-m", "sh", "-c", &script, "sh"]).arg(dir.path()).current_dir(small.path());
    let output = unshare.output().unwrap();
    let said = text(&output.stderr);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(125), "t.parquet\n".into()), "{said}");
    assert!(
        said.contains("written to t.parquet without the last ") && said.contains("disk is full"),
        "{said}"
    );
    let facts = read_trace(&dir.path().join("copy")).unwrap().facts;
    assert!(facts.unsaved > 0 && !facts.cut_short, "{facts:?}");

    let data = std::fs::File::options().write(true).open(dir.path().join("perf.data")).unwrap();
    let near_the_end = data.metadata().unwrap().len() / 20 * 19;
    data.write_all_at(&[0; 1 << 16], near_the_end).unwrap();
    let output = tools(dir.path(), &["import", "-o", "damaged.parquet"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{said}");
    let names = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = names.filter(|name| name.to_string_lossy().starts_with("damaged")).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn what_a_killed_recording_left_is_kept_and_named() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    if !record(dir.path(), "page-faults") {
        return;
    }
    assert!(tools(dir.path(), &["import", "-q"]).status.success());
    // What it saved before it was killed.
    std::fs::rename(dir.path().join("prepage.parquet"), dir.path().join("prepage.parquet.partial")).unwrap();
    let output = tools(dir.path(), &["import", "-q"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(dir.path().join("prepage.parquet.partial.old").exists());
    assert!(
        text(&output.stderr).contains("is kept as prepage.parquet.partial.old"),
        "{}",
        text(&output.stderr)
    );
}
