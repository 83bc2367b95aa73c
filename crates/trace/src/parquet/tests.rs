use std::fs;
use std::num::NonZeroU32;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::PathBuf;
use std::time::Duration;

use prepage_core::random::SplitMix;
use prepage_core::{
    BuildId, CodePlace, ExactFacts, Fault, FaultClass, FilePages, FrameNumber, ImportFacts, Object, ObjectId,
    PageCacheFacts, PageIndex, Permissions, ReadWait, Stack, StackId, Thread, ThreadIndex, Trace, TraceFacts,
};
use prepage_testing::{Need, has, passes_as_child};
use rustix::fs::{CWD, FileType, OFlags, mknodat};

use super::*;
use crate::tables::Tables;

fn trace(faults: u64) -> Trace {
    let facts = TraceFacts {
        unanswered_files: 6,
        command: vec!["gcc".into(), "a \"b\"\n".into()],
        kernel: "6.18.0".into(),
        started_unix_ns: 1_700_000_000_000_000_000,
        duration_ns: 5_000_000,
        lost: 3,
        counted: Some((10, 2)),
        rusage: Some((11, 2)),
        execs: 1,
        survivors: 0,
        ended_early: true,
        unobserved_programs: 2,
        outside_faults: 6,
        system_calls_hidden: true,
        unsaved: 0,
        unrecorded: 9,
        borrowed_times: 14,
        unseen_children: 15,
        pids: vec![7],
        unread_maps: vec![7],
        probe_total_ns: Some(300),
        tsc_hz: Some(2_100_000_000),
        unnamed_mappings: 4,
        cut_short: false,
        unwatched_cpus: 1,
        system_wide: true,
        lost_by_second: vec![(3, 2), (9, 1)],
        probe_cost_ns: Some(180),
        filters: vec!["--comm gcc".into()],
        filtered_out: 12,
        exact: Some(ExactFacts {
            resident_pages: vec![("/lib/x".into(), 3)],
            unarmed_pages: vec![("/lib/y".into(), vec![(1, 4)])],
            unarmed_programs: vec!["1 (why)".into()],
            lost_records: 5,
        }),
        page_cache: Some(PageCacheFacts {
            files: vec![FilePages { path: "/a".into(), pages_read_in: 9, ..FilePages::default() }],
            waits: vec![ReadWait {
                waiter: Thread { pid: 7, tid: 8, comm: "a".into() },
                reader: Thread { pid: 7, tid: 7, comm: "b".into() },
                count: 2,
                wait_ns: 100,
            }],
        }),
        imported: Some(ImportFacts {
            of_running: true,
            tool: "perf 6.1".into(),
            file: "perf.data".into(),
            events: vec!["page-faults".into()],
            minor_missing: true,
            major_missing: true,
            disk_unknown: true,
            costs_unknown: true,
            program_hidden: true,
            limits: vec!["-D 100".into()],
            descendants_hidden: true,
            overwritten: true,
            sampled: Some("one fault in 3".into()),
        }),
    };
    let objects = vec![
        Object {
            build_id: BuildId::new(&[0xab; 20]),
            size_bytes: Some(12_345),
            ..Object::new("/usr/lib/ü;\n.so", Some((0xfe << 20, u64::MAX)))
        },
        Object::new("[heap]", None),
    ];
    let place = |object, offset| CodePlace { object, offset };
    let stacks = vec![
        Stack { places: vec![place(Some(ObjectId(0)), 0x10), place(None, 0x20)] },
        Stack { places: vec![place(Some(ObjectId(1)), u64::MAX)] },
    ];
    let thread = |tid, comm: &str| Thread { pid: 7, tid, comm: comm.into() };
    let threads = vec![thread(7, "gcc"), thread(8, "gcc"), thread(7, "cc1")];
    let fault = |at: u64| Fault {
        start_ns: at * 1000,
        cost_ns: (!at.is_multiple_of(5)).then_some(at % 977),
        thread: ThreadIndex((at % 3) as u32),
        ip: 0xffff_ffff_ffff_0000 + at % 64,
        address: 0x7f00_0000_0000 + (at * 7919 % 4096) * 4096,
        object: [Some(ObjectId(0)), Some(ObjectId(1)), None][(at % 3) as usize],
        page: at.is_multiple_of(3).then_some(PageIndex(at)),
        class: FaultClass::ALL[(at % 7) as usize],
        permissions: Permissions::all().nth((at % 17) as usize).expect("17 of them"),
        code: at.is_multiple_of(4).then_some(ObjectId((at % 3 / 2) as u32)),
        code_offset: if at.is_multiple_of(4) { at } else { 0xffff_ffff_ffff_0000 + at % 64 },
        stack: [Some(StackId::new(0)), Some(StackId::new(1)), None][(at % 3) as usize],
        frame: FrameNumber::new(at % 5),
        cluster_pages: NonZeroU32::new(at as u32 % 17),
    };
    Trace { facts, objects, threads, stacks, faults: (0..faults).map(fault).collect() }
}

fn written(trace: &Trace) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("t.parquet");
    write_trace(&path, trace).expect("written");
    (dir, path)
}

#[test]
fn what_is_written_is_read() {
    for faults in [0, 1, 5, 20_000] {
        let mut trace = trace(faults);
        let (_dir, path) = written(&trace);
        if faults == 0 {
            // Tables hold what faults speak of.
            (trace.objects, trace.threads, trace.stacks) = Default::default();
        } else if faults == 1 {
            trace.objects.truncate(1);
            trace.threads.truncate(1);
            trace.stacks.truncate(1);
        }
        assert_eq!(read_trace(&path).expect("read"), trace, "{faults} faults");
    }
}

#[test]
fn a_day_of_new_threads_and_stacks_is_written_in_bounded_memory() {
    use super::recording::{TABLES_BYTES_MAX, bound_tables};
    use crate::event::{Event, EventKind};
    use crate::pairing::Pairing;
    use prepage_sys::maps::Mapped;

    let (mut pairing, mut faults) = (Pairing::new(0), Vec::new());
    let mut writer = TraceWriter::create(std::path::Path::new("/dev/null")).expect("created");
    let (mut most, mut rounds) = (0, 0);
    for time_ns in 0..45_000u64 {
        let pid = 1000 + time_ns as u32;
        let mut feed = |kind| {
            pairing.feed(&Event { time_ns, pid, tid: pid, kind, is_time_borrowed: false }, &mut faults)
        };
        feed(EventKind::Fork { parent_pid: 1, parent_tid: 1 });
        feed(EventKind::Map(Box::new(Mapped {
            start: 0x1000,
            end: 0x9000,
            offset_bytes: 0,
            inode: Some((1, time_ns % 100)),
            permissions: Permissions::from_text("r-xp").expect("four letters"),
            path: format!("/build/{}.o", time_ns % 100).into(),
        })));
        let calls = Some((0..200).map(|call| time_ns << 8 | call).collect());
        feed(EventKind::FaultBegin { address: 0x2000, ip: 0x3000, calls });
        feed(EventKind::FaultEnd { address: 0x2000, ip: 0x3000, disk: false });
        feed(EventKind::Exit);
        if faults.len() >= 1000 {
            writer.write(pairing.tables(), &faults, TraceFacts::default).expect("written");
            faults.clear();
            most = most.max(pairing.table_bytes());
            bound_tables(&mut pairing, Some(&mut writer)).expect("written");
            rounds += usize::from(pairing.table_bytes() == 0);
        }
    }
    // All stacks together would take 144 MB.
    assert!(rounds >= 2 && most < TABLES_BYTES_MAX + (8 << 20), "{rounds} times, {most} bytes");
    assert_eq!(pairing.spaces().processes(), 1, "only the parent that never ended");
}

#[test]
fn more_than_one_row_group_and_faults_that_ended_out_of_order() {
    let mut trace = trace(300_000);
    for pair in trace.faults.chunks_mut(2) {
        pair.reverse();
    }
    let (_dir, path) = written(&trace);
    trace.faults.sort_by_key(|fault| fault.start_ns);
    assert!(read_trace(&path).expect("read") == trace);
}

#[test]
fn the_old_file_is_kept_and_nothing_partial_stays() {
    let (dir, path) = written(&trace(1));
    write_trace(&path, &trace(2)).expect("written");
    assert_eq!(read_trace(&path).expect("read").faults.len(), 2);
    assert_eq!(read_trace(&dir.path().join("t.parquet.old")).expect("read").faults.len(), 1);
    drop(TraceWriter::create(&path).expect("created"));
    assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 2);
}

/// Root may record where anybody may put a link.
#[test]
fn what_others_have_put_in_the_way_is_not_written_to() {
    let dir = tempfile::tempdir().expect("a directory");
    let [path, partial, theirs] =
        ["t.parquet", "t.parquet.partial", "theirs"].map(|name| dir.path().join(name));
    fs::write(&theirs, "kept").expect("written");
    symlink(&theirs, &partial).expect("a link");
    let refused = TraceWriter::create(&path);
    assert!(
        matches!(refused, Err(TraceFileError::Io(ref refused, ..)) if *refused == partial),
        "{refused:?}"
    );
    fs::remove_file(&partial).expect("removed");
    mknodat(CWD, &partial, FileType::Fifo, 0o600.into(), 0).expect("a pipe");
    assert!(matches!(TraceWriter::create(&path), Err(TraceFileError::Io(..))));
    assert!(fs::symlink_metadata(&partial).is_ok(), "it is not this one's to remove");
    fs::remove_file(&partial).expect("removed");
    // What one's own link names is replaced.
    symlink(&theirs, &path).expect("a link");
    write_trace(&path, &trace(1)).expect("written");
    assert_eq!(read_trace(&theirs).expect("read").faults.len(), 1);
    assert_eq!(fs::read_to_string(dir.path().join("theirs.old")).expect("kept"), "kept");
    if !has(Need::Root) {
        return;
    }
    lchown(&path, Some(65534), None).expect("root may");
    write_trace(&path, &trace(2)).expect("written");
    assert_eq!([&theirs, &path].map(|path| read_trace(path).expect("read").faults.len()), [1, 2]);
    assert!(fs::symlink_metadata(dir.path().join("t.parquet.old")).expect("kept").is_symlink());
}

#[test]
fn two_writers_of_one_file_do_not_mix() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("t.parquet");
    let first = TraceWriter::create(&path).expect("created");
    assert!(matches!(TraceWriter::create(&path), Err(TraceFileError::Busy(..))));
    first.finish(Tables::default(), &TraceFacts::default()).expect("finished");
    assert!(read_trace(&path).is_ok());
}

#[test]
fn every_recording_that_was_killed_is_kept() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("t.parquet");
    let partial = dir.path().join("t.parquet.partial");
    for killed in 1..=3 {
        // A whole trace is what a killed recorder leaves up to its last footer.
        write_trace(&partial, &trace(killed)).expect("written");
        let kept = TraceWriter::create(&path).expect("created").rescued().expect("kept").to_owned();
        assert_eq!(read_trace(&kept).expect("read").faults.len() as u64, killed);
    }
    let kept = ["t.parquet.partial.old", "t.parquet.partial.old.2", "t.parquet.partial.old.3"];
    let faults = kept.map(|name| read_trace(&dir.path().join(name)).expect("read").faults.len());
    assert_eq!(faults, [1, 2, 3]);
}

/// As of a server that waits for work.
#[test]
fn few_faults_outlive_a_recorder_that_is_killed() {
    const FAULTS: usize = 5;
    let dir = tempfile::tempdir().expect("a directory");
    let trace = trace(FAULTS as u64);
    let mut writer = TraceWriter::create(&dir.path().join("t.parquet")).expect("created");
    for group in 1..=2 {
        // After so long a row group is put into the file however short it is.
        std::thread::sleep(Duration::from_secs(5));
        writer.write(Tables::from(&trace), &trace.faults, || trace.facts.clone()).expect("written");
        let left = writer.left_behind().expect("a row group is complete");
        assert_eq!(read_trace(left).expect("readable").faults.len(), group * FAULTS);
    }
}

/// One look at full rings may bring more than a row group.
#[test]
fn all_row_groups_of_one_write_outlive_a_recorder_that_is_killed() {
    const GROUPS_ROWS: u64 = 3 << 18;
    let dir = tempfile::tempdir().expect("a directory");
    let trace = trace(GROUPS_ROWS + 20_000);
    let mut writer = TraceWriter::create(&dir.path().join("t.parquet")).expect("created");
    writer.write(Tables::from(&trace), &trace.faults, || trace.facts.clone()).expect("written");
    let left = writer.left_behind().expect("row groups are complete").to_owned();
    drop(writer);
    let faults = read_trace(&left).expect("readable").faults.len() as u64;
    assert!(faults >= GROUPS_ROWS, "{faults}");
}

#[test]
fn a_file_of_the_first_prepage_is_read() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/format-1-first.trace");
    let trace = read_trace(path.as_ref()).expect("read");
    assert_eq!(trace.facts.command, ["sh", "-c", "cat /etc/hostname; true"]);
    assert_eq!((trace.facts.execs, trace.facts.lost, trace.facts.probe_cost_ns), (2, 0, None));
    let (minor, major) = trace.facts.counted.expect("counted");
    assert_eq!(trace.faults.len() as u64, minor + major);
    assert!(trace.stacks.is_empty());
    for fault in &trace.faults {
        assert_eq!((fault.code_place().offset, fault.code, fault.frame), (fault.ip, None, None));
        assert_eq!(fault.cluster_pages, None);
        assert!(fault.permissions.is_empty() && fault.stack.is_none());
    }
}

/// Where the copy of this program writes that has the full file system.
const FULL: &str = "PREPAGE_TEST_FULL";

#[test]
fn a_full_disk_without_fallocate_keeps_what_was_saved() {
    if let Some(directory) = std::env::var_os(FULL) {
        return fill_up(&PathBuf::from(directory));
    }
    if !has(Need::LoopDevice) || !has(Need::Mounts) {
        return;
    }
    // ext4 without extents cannot reserve space. Mounted where only this test sees it.
    let script = r#"set -e; cd "$1"; truncate -s 8M image; mkfs.ext4 -q -F -O ^extent,^64bit,^has_journal image
        mkdir mounted; mount -o loop image mounted
        ! fallocate -l 4096 mounted/probe 2>/dev/null; rm -f mounted/probe
        export PREPAGE_TEST_FULL="$1/mounted"; shift; exec "$@""#;
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().to_str().expect("plain");
    passes_as_child(&["unshare", "--mount", "sh", "-c", script, "sh", path]);
}

fn fill_up(directory: &std::path::Path) {
    let path = directory.join("t.parquet");
    let trace = trace(4096);
    let mut writer = TraceWriter::create(&path).expect("created");
    let (mut taken, mut full) = (0, 0);
    let mut random = SplitMix::new(0);
    while full == 0 || taken < 1_000_000 {
        let mut faults = trace.faults.clone();
        for fault in &mut faults {
            // Numbers that no compression makes small.
            let number = random.below(u64::MAX);
            (fault.cost_ns, fault.address) = (Some(number), number.rotate_left(32));
        }
        taken += faults.len() as u64;
        match writer.write(Tables::from(&trace), &faults, || trace.facts.clone()) {
            Ok(()) => {}
            Err(TraceFileError::Full(..)) => full += 1,
            Err(error) => panic!("{error}"),
        }
        assert!(taken < 10_000_000, "the disk never fills");
    }
    assert_eq!(full, 1, "said once");
    let unsaved = writer.finish(Tables::from(&trace), &trace.facts).expect("finished");
    let read = read_trace(&path).expect("read");
    assert_eq!((read.faults.len() as u64 + unsaved, read.facts.unsaved), (taken, unsaved));
    assert!(unsaved > 0 && !read.faults.is_empty());
}

#[test]
fn a_device_is_written_to_and_not_replaced() {
    write_trace(std::path::Path::new("/dev/null"), &trace(1)).expect("written");
    assert!(!fs::metadata("/dev/null").expect("there").is_file());
}

#[test]
fn a_full_device_is_full() {
    let faults = write_trace("/dev/full".as_ref(), &trace(10));
    assert!(matches!(faults, Err(TraceFileError::Full(..))), "{faults:?}");
    // More than a row group, and more after that: it is said once.
    let trace = trace(300_000);
    let mut writer = TraceWriter::create("/dev/full".as_ref()).expect("created");
    let mut write = || writer.write(Tables::from(&trace), &trace.faults, || trace.facts.clone());
    let [first, second] = [write(), write()];
    assert!(matches!(first, Err(TraceFileError::Full(..))) && second.is_ok(), "{first:?} {second:?}");
}

#[test]
fn a_pipe_is_not_waited_for() {
    let directory = tempfile::tempdir().expect("a directory");
    let pipe = directory.path().join("prepage.parquet");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).expect("made");
    let read = read_trace(&pipe).map(drop);
    assert!(matches!(read, Err(TraceFileError::NotATrace(_, "no regular file"))), "{read:?}");
    let refused = TraceWriter::create(&pipe).map(drop);
    let error = refused.expect_err("nobody reads it");
    assert_eq!(std::error::Error::source(&error).expect("why").to_string(), "nobody reads this pipe");
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    let _reader = rustix::fs::open(&pipe, flags, rustix::fs::Mode::empty()).expect("it is there");
    TraceWriter::create(&pipe).expect("somebody reads it");
}

#[test]
fn a_trace_is_for_its_user_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let [path, partial] = ["t.parquet", "t.parquet.partial"].map(|name| dir.path().join(name));
    let state = || {
        write_trace(&path, &trace(1)).expect("written");
        let metadata = fs::metadata(&path).expect("there");
        (metadata.mode() & 0o777, metadata.uid())
    };
    let ours = (0o600, rustix::process::geteuid().as_raw());
    assert_eq!(state(), ours);
    // What was left there others may have open.
    fs::write(&partial, "left").expect("written");
    fs::set_permissions(&partial, fs::Permissions::from_mode(0o644)).expect("ours");
    let mut others = fs::File::open(&partial).expect("opened");
    assert_eq!(state(), ours);
    assert_eq!(std::io::read_to_string(&mut others).expect("read"), "left");
    if !has(Need::Root) {
        return;
    }
    fs::write(&partial, "left").expect("written");
    lchown(&partial, Some(65534), None).expect("root may");
    assert_eq!(state(), ours);
}

#[test]
fn what_ones_own_link_names_is_made_where_it_is_missing() {
    let dir = tempfile::tempdir().expect("a directory");
    let [path, target] = ["t.parquet", "target"].map(|name| dir.path().join(name));
    symlink("target", &path).expect("a link");
    write_trace(&path, &trace(1)).expect("written");
    assert_eq!(read_trace(&target).expect("read").faults.len(), 1);
    assert!(path.is_symlink());
}

#[test]
fn a_file_cut_short_says_so_at_every_length() {
    let (_dir, path) = written(&trace(50));
    let whole = fs::read(&path).expect("read");
    for len in 0..whole.len() {
        fs::write(&path, &whole[..len]).expect("written");
        match read_trace(&path) {
            Err(TraceFileError::Truncated(..)) if len >= 4 => {}
            Err(TraceFileError::NotATrace(..)) if len < 4 => {}
            other => panic!("{len} bytes: {other:?}"),
        }
    }
}

#[test]
fn other_files_are_told_apart() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("x");
    assert!(matches!(read_trace(&path), Err(TraceFileError::Io(_, "open", _))));
    fs::write(&path, "#!/bin/sh\n").expect("written");
    assert!(matches!(read_trace(&path), Err(TraceFileError::NotATrace(..))));
}

/// Replaces every `from` by `to`, of the same length, and makes the file count as rewritten by another tool, whose
/// checksum is not looked at.
fn rewrite(path: &PathBuf, from: &[u8], to: &[u8]) {
    let mut bytes = fs::read(path).expect("read");
    for (from, to) in [(from, to), (seal::CREATOR.as_bytes(), b"another--tool version ".as_slice())] {
        let places: Vec<usize> =
            (0..=bytes.len() - from.len()).filter(|&at| bytes[at..].starts_with(from)).collect();
        assert!(!places.is_empty() && from.len() == to.len());
        for at in places {
            bytes[at..at + to.len()].copy_from_slice(to);
        }
    }
    fs::write(path, bytes).expect("written");
}

#[test]
fn a_later_format_is_named() {
    let (_dir, path) = written(&trace(5));
    // After the key stand a field header and the length of its value.
    rewrite(&path, b"prepage.format_version\x18\x011", b"prepage.format_version\x18\x017");
    assert!(matches!(read_trace(&path), Err(TraceFileError::Newer(_, 7))));
}

#[test]
fn a_missing_column_is_named() {
    let (_dir, path) = written(&trace(5));
    rewrite(&path, b"address", b"adresse");
    assert!(matches!(read_trace(&path), Err(TraceFileError::Column(_, "address"))));
}

#[test]
fn a_trace_rewritten_by_another_tool_is_read() {
    let trace = trace(5);
    let (_dir, path) = written(&trace);
    rewrite(&path, b"zero-fill", b"zero-fill");
    assert_eq!(read_trace(&path).expect("read"), trace);
}

#[test]
fn a_changed_byte_never_changes_what_is_read() {
    let trace = trace(300);
    let (_dir, path) = written(&trace);
    let whole = fs::read(&path).expect("read");
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        fs::write(&path, &bytes).expect("written");
        // Where the change hides the checksum itself, all else is sound.
        if let Ok(read) = read_trace(&path) {
            assert_eq!(read, trace, "byte {at}");
        }
    }
}

/// A signal that came until then left an unfinished file, as one that is killed does.
#[test]
fn no_file_is_begun_before_the_recording() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("trace");
    let partial = dir.path().join("trace.partial");
    std::fs::write(&partial, "of another").expect("written");
    let nobody = crate::Scope::Processes(vec![u32::MAX >> 1]);
    let error = super::record(&nobody, &crate::RecordOptions::default(), &path, |_| ()).expect_err("refused");
    assert!(matches!(error, crate::RecordError::Perf(_)), "{error}");
    let names: Vec<_> =
        dir.path().read_dir().expect("read").map(|entry| entry.expect("read").path()).collect();
    assert_eq!(names, [partial]);
}
