//! `prepage report`, `export` and `diff` as their users meet them; and the trace in the hands of other tools.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use prepage_core::{
    CodePlace, ExactFacts, Fault, FaultClass, FilePages, ImportFacts, Object, ObjectId, PageCacheFacts,
    PageIndex, ReadWait, Stack, StackId, Thread, ThreadIndex, Trace, TraceFacts,
};
use prepage_testing::{Need, has, write_program};
use prepage_trace::parquet::write_trace;

use crate::support::text;

fn trace(faults: u64, cost_ns: u64) -> Trace {
    let facts =
        TraceFacts { command: vec!["cat".into()], duration_ns: faults * 10_000, ..TraceFacts::default() };
    let objects = vec![Object::new("/usr/lib/a.so", Some((1, 1))), Object::new("[heap]", None)];
    let threads =
        vec![Thread { pid: 7, tid: 7, comm: "cat".into() }, Thread { pid: 7, tid: 8, comm: "io".into() }];
    let fault = |at: u64| Fault {
        cost_ns: Some(cost_ns),
        object: Some(ObjectId((at % 2) as u32)),
        page: at.is_multiple_of(2).then_some(PageIndex(at)),
        ..Fault::new(
            at * 10_000,
            ThreadIndex((at % 2) as u32),
            at << 12,
            FaultClass::ALL[(at % 2 * 3) as usize],
        )
    };
    Trace { facts, objects, threads, faults: (0..faults).map(fault).collect(), ..Trace::default() }
}

fn written(dir: &Path, name: &str, trace: &Trace) -> PathBuf {
    let path = dir.join(name);
    write_trace(&path, trace).expect("written");
    path
}

fn prepage(arguments: &[&str], path: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_prepage-tools"))
        .args(arguments)
        .arg(path)
        .output()
        .expect("prepage-tools runs")
}

/// The Python that has the packages, by `make setup-test` or the system's; `None`, counted as a skip, where none has.
fn python(packages: &str) -> Option<Command> {
    if !has(Need::Python(packages.into())) {
        return None;
    }
    prepage_testing::python(packages)
}

#[test]
fn the_overview_fits_a_screen_and_answers_which_where_and_how_long() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = written(dir.path(), "t.parquet", &trace(1000, 5000));
    let output = prepage(&["report"], &path);
    let said = text(&output.stdout);
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
    assert!(said.lines().count() <= 40, "{said}");
    for expected in
        ["1000 page faults", "\n disk         500 ", "/usr/lib/a.so", "waited over time", "slowest µs"]
    {
        assert!(said.contains(expected), "{expected} is missing: {said}");
    }
    let said = text(&prepage(&["report", "--by", "thread", "--columns", "count,p99"], &path).stdout);
    assert!(said.contains("io      7    8    500    5.00"), "{said}");
    let output = prepage(&["report", "--json", "--class", "disk", "--by", "file"], &path);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&json["schema_version"], &json["by"]["file"]["rows"][0]["count"]), (&2.into(), &500.into()));
}

#[test]
fn percentiles_of_many_groups_take_little_memory() {
    let dir = tempfile::tempdir().expect("a directory");
    const STACKS: u32 = 200_000;
    let mut trace = trace(STACKS.into(), 5000);
    let place = |at: u32| CodePlace { object: Some(ObjectId(0)), offset: u64::from(at) * 16 };
    trace.stacks = (0..STACKS).map(|at| Stack { places: vec![place(at)] }).collect();
    trace.faults.iter_mut().zip(0..).for_each(|(fault, at)| fault.stack = Some(StackId::new(at)));
    let path = written(dir.path(), "t.parquet", &trace);
    let limited = "ulimit -v 1000000; exec \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", limited, "sh", env!("CARGO_BIN_EXE_prepage-tools")]);
    let output = command.args(["report", "--json", "--by", "stack"]).arg(&path).output().expect("sh runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let row = &json["by"]["stack"]["rows"][0];
    assert_eq!((&row["count"], row["p99_us"].as_f64()), (&STACKS.into(), Some(5.0)), "{row}");
}

#[test]
fn what_is_no_trace_is_told_with_a_remedy() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = written(dir.path(), "t.parquet", &trace(1000, 5000));
    let whole = std::fs::read(&path).expect("read");
    let bad = dir.path().join("bad");
    let mut changed = whole.clone();
    changed[whole.len() / 3] ^= 1;
    for (bytes, expected) in [
        (&whole[..whole.len() / 2], "cut short"),
        (&changed[..], "damaged"),
        (&b"start_ns,cost_ns\n1,2\n"[..], "not a prepage trace"),
        (&b""[..], "not a prepage trace"),
    ] {
        std::fs::write(&bad, bytes).expect("written");
        for command in [&["report"][..], &["export", "-f", "csv"], &["report", "--html", "/dev/null"]] {
            let output = prepage(command, &bad);
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(125), "{said}");
            assert!(said.contains(expected) && said.contains("try: "), "{command:?}: {said}");
        }
    }
    let said = text(&prepage(&["report"], &dir.path().join("absent")).stderr);
    assert!(said.contains("cannot open") && said.contains("try: prepage record"), "{said}");
    let said = text(&prepage(&["report", "--by", "nothing"], &path).stderr);
    assert!(said.contains("one of class,") && said.contains("cost, slowest"), "{said}");
}

#[test]
fn a_page_that_cannot_be_written_leaves_the_old_one() {
    let dir = tempfile::tempdir().expect("a directory");
    let old = dir.path().join("t.html");
    std::fs::write(&old, "old").expect("written");
    let html = old.to_str().expect("text");
    let output = prepage(&["report", "--html", html], &dir.path().join("absent"));
    assert_eq!(output.status.code(), Some(125));
    assert_eq!(std::fs::read(&old).expect("read"), b"old");
    let path = written(dir.path(), "t.parquet", &trace(1000, 5000));
    assert!(prepage(&["report", "--html", html], &path).status.success());
    assert!(text(&std::fs::read(&old).expect("read")).starts_with("<!doctype html>"));
    assert_eq!(std::fs::read_dir(dir.path()).expect("listed").count(), 2);
}

#[test]
fn what_is_read_is_not_written_over() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = written(dir.path(), "t.parquet", &trace(1000, 5000));
    let before = std::fs::read(&path).expect("read");
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&path, &link).expect("linked");
    for output in [&path, &link].map(|output| output.to_str().expect("text")) {
        for command in [
            &["export", "-f", "csv", "-o", output][..],
            &["report", "--html", output],
            &["simulate", "--html", output],
        ] {
            let refused = prepage(command, &path);
            let said = text(&refused.stderr);
            assert_eq!(refused.status.code(), Some(125), "{command:?}: {said}");
            assert!(said.contains("not written: it is the file that is read"), "{said}");
            assert!(std::fs::read(&path).expect("read") == before, "{command:?}");
        }
    }
}

#[test]
fn what_cannot_be_written_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = written(dir.path(), "t.parquet", &trace(1000, 5000));
    for (command, name) in [
        (&["report"][..], "standard output"),
        (&["report", "--json"], "standard output"),
        (&["report", "--html", "-"], "standard output"),
        (&["export", "-f", "csv"], "standard output"),
        (&["residency"], "standard output"),
        (&["simulate"], "standard output"),
        (&["report", "--html", "/dev/full"], "/dev/full"),
        (&["export", "-f", "csv", "-o", "/dev/full"], "/dev/full"),
    ] {
        let mut tools = Command::new(env!("CARGO_BIN_EXE_prepage-tools"));
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("there");
        let output = tools.args(command).arg(&path).stdout(full).output().expect("prepage-tools runs");
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{command:?}: {said}");
        assert!(said.contains(&format!("{name}: cannot be written: No space left")), "{command:?}: {said}");
    }
}

#[test]
fn the_newest_trace_is_reported_and_shown_in_the_browser() {
    let dir = tempfile::tempdir().expect("a directory");
    let report = |arguments: &[&str], browser: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_prepage-tools"));
        command.current_dir(dir.path()).arg("report").args(arguments).env("BROWSER", browser);
        command.env("TMPDIR", dir.path()).output().expect("prepage-tools runs")
    };
    let said = text(&report(&[], "").stderr);
    assert!(said.contains("cannot open") && said.contains("try: prepage record"), "{said}");
    for (name, faults, age_s) in [("old.parquet", 1, 100), ("new.parquet", 2, 10), ("prepage.parquet", 3, 50)]
    {
        let path = written(dir.path(), name, &trace(faults, 5000));
        let time = std::time::SystemTime::now() - std::time::Duration::from_secs(age_s);
        std::fs::File::options().write(true).open(path).expect("there").set_modified(time).expect("set");
    }
    std::fs::write(dir.path().join("other.parquet"), "no trace").expect("written");
    let output = report(&[], "");
    assert!(text(&output.stdout).contains("\n2 page faults"), "{}", text(&output.stdout));
    assert!(text(&output.stderr).contains("newest trace here is new.parquet"), "{}", text(&output.stderr));

    let browser = dir.path().join("browser");
    write_program(&browser, "#!/bin/sh\ncp \"$1\" shown.part && mv shown.part shown\n");
    let output = report(&["--open"], browser.to_str().expect("text"));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let shown = dir.path().join("shown");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !shown.exists() {
        assert!(std::time::Instant::now() < deadline, "the browser was not started");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(std::fs::read_to_string(shown).expect("read").starts_with("<!doctype html>"));
    let output = report(&["--html", "t.html", "--open"], "/no/such/browser");
    let said = text(&output.stderr);
    assert!(output.status.code() == Some(125) && said.contains("try: BROWSER=firefox"), "{said}");
    assert!(dir.path().join("t.html").exists());
}

/// Others may write there, and can guess the name of a trace and the number of a process.
#[test]
fn a_page_in_the_temporary_directory_is_written_through_no_link_and_for_nobody_else() {
    let dir = tempfile::tempdir().expect("a directory");
    let (path, temporary) = (written(dir.path(), "t.parquet", &trace(2, 5000)), dir.path().join("temporary"));
    std::fs::create_dir(&temporary).expect("made");
    let mine = dir.path().join("mine");
    std::fs::write(&mine, "mine").expect("written");
    let planted = "umask 022; ln -s ../mine \"$TMPDIR/prepage-t-$$.html\"; exec \"$@\"";
    let output = Command::new("sh")
        .args(["-c", planted, "sh", env!("CARGO_BIN_EXE_prepage-tools"), "report", "--open"])
        .arg(&path)
        .env("TMPDIR", &temporary)
        .env("BROWSER", "true")
        .output()
        .expect("sh runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(std::fs::read_to_string(mine).expect("read"), "mine");
    let files = std::fs::read_dir(&temporary).expect("listed").map(|entry| entry.expect("listed"));
    let pages: Vec<_> = files.filter(|entry| entry.file_type().expect("known").is_file()).collect();
    let mode = std::os::unix::fs::PermissionsExt::mode(&pages[0].metadata().expect("known").permissions());
    assert_eq!((pages.len(), mode & 0o777), (1, 0o600));
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let dir = tempfile::tempdir().expect("a directory");
    // 2 MB of text, of which a pipe holds 64 KiB.
    let path = written(dir.path(), "t.parquet", &trace(20_000, 5000));
    let script = "\"$0\" export -f csv \"$1\" | head -n 1; exit ${PIPESTATUS[0]}";
    let output = Command::new("bash")
        .args(["-c", script, env!("CARGO_BIN_EXE_prepage-tools")])
        .arg(&path)
        .output()
        .expect("bash runs");
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
}

#[test]
fn diff_fails_when_it_is_worse_than_allowed() {
    let dir = tempfile::tempdir().expect("a directory");
    let before = written(dir.path(), "a.parquet", &trace(1000, 5000));
    let after = written(dir.path(), "b.parquet", &trace(1000, 6000));
    let before = before.to_str().expect("text");
    let diff = |more: &[&str]| {
        let output = prepage(&[&["diff"], more, &[before]].concat(), &after);
        (output.status.code(), text(&output.stdout))
    };
    assert_eq!(diff(&[]).0, Some(0));
    assert_eq!(diff(&["--threshold", "25"]).0, Some(0));
    let (code, said) = diff(&["--threshold", "15"]);
    assert_eq!(code, Some(1));
    assert!(
        said.contains("ms waited for faults: 5.00 before, 6.00 after, +20.0 %, more than the 15 % allowed"),
        "{said}"
    );
    assert_eq!(diff(&["--threshold", "0", "--of", "count"]).0, Some(0));
}

#[test]
fn diff_says_where_the_traces_are_not_of_the_same_command() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut other = trace(1000, 5000);
    other.facts.command = vec!["dd".into(), "if=a b".into()];
    let before = written(dir.path(), "a.parquet", &trace(1000, 5000));
    let after = written(dir.path(), "b.parquet", &other);
    let diff = |more: &[&str], after: &Path| {
        let output = prepage(&[&["diff"], more, &[before.to_str().expect("text")]].concat(), after);
        assert!(output.status.success(), "{}", text(&output.stderr));
        (text(&output.stdout), text(&output.stderr))
    };
    let (equal, said) = diff(&[], &before);
    // There is no table of the files that have changed.
    assert!(said.is_empty() && equal.contains("class") && !equal.contains("file"), "{equal}");
    let mut by_perf = trace(1000, 5000);
    by_perf.facts.command = ["perf", "record", "--", "cat"].map(Into::into).to_vec();
    assert_eq!(diff(&[], &written(dir.path(), "c.parquet", &by_perf)).1, "");
    assert!(diff(&[], &after).1.contains("not of the same: before: cat; after: dd 'if=a b'"));
    let json: serde_json::Value = serde_json::from_str(&diff(&["--json"], &after).0).expect("JSON");
    assert_eq!(json["subjects"], serde_json::json!({ "before": "cat", "after": "dd 'if=a b'" }));
}

#[test]
fn a_threshold_needs_faults_to_compare() {
    let dir = tempfile::tempdir().expect("a directory");
    let before = written(dir.path(), "a.parquet", &trace(1000, 5000));
    let mut other = trace(1000, 5000);
    other.threads.iter_mut().for_each(|thread| thread.pid = 8);
    let after = written(dir.path(), "b.parquet", &other);
    let diff = |more: &[&str]| {
        let output = prepage(&[&["diff"], more, &[before.to_str().expect("text")]].concat(), &after);
        (output.status.code(), text(&output.stderr))
    };
    for filter in [["--comm", "nobody"], ["--file", "no-such"], ["--pid", "7"], ["--pid", "8"]] {
        let (code, said) = diff(&[&filter[..], &["--threshold", "5"]].concat());
        assert_eq!(code, Some(125), "{filter:?}");
        assert!(said.contains("none of its 1000 faults passes the filter"), "{said}");
        assert_eq!(diff(&filter).0, Some(0));
    }
    // To have no faults of a class is a result.
    assert_eq!(diff(&["--class", "failed", "--threshold", "5"]).0, Some(0));
    assert_eq!(diff(&["--class", "failed", "--comm", "cat", "--threshold", "5"]).0, Some(0));
}

#[test]
fn exact_recordings_are_compared_with_exact_ones_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut exact = trace(1000, 5000);
    exact.facts.exact = Some(ExactFacts::default());
    let exact = written(dir.path(), "a.parquet", &exact);
    let plain = written(dir.path(), "b.parquet", &trace(1000, 5000));
    for (before, after) in [(&exact, &plain), (&plain, &exact)] {
        let output = prepage(&["diff", "--threshold", "5", before.to_str().expect("text")], after);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{said}");
        assert!(said.contains("b.parquet is incomplete: recorded without --exact"), "{said}");
    }
    let output = prepage(&["diff", "--threshold", "5", exact.to_str().expect("text")], &exact);
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn costs_with_what_recording_added_are_not_compared_with_costs_without() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut recorded = trace(1000, 5000);
    recorded.facts.probe_cost_ns = Some(600);
    let mut imported = trace(1000, 5600);
    imported.facts.imported = Some(ImportFacts::default());
    let recorded = written(dir.path(), "recorded.parquet", &recorded);
    let imported = written(dir.path(), "imported.parquet", &imported);
    let diff = |more: &[&str], before: &Path, after: &Path| {
        prepage(&[&["diff"], more, &[before.to_str().expect("text")]].concat(), after)
    };
    for (before, after) in [(&recorded, &imported), (&imported, &recorded)] {
        for of in ["total", "disk-total"] {
            let refused = diff(&["--threshold", "10", "--of", of], before, after);
            let said = text(&refused.stderr);
            assert_eq!(refused.status.code(), Some(125), "{said}");
            assert!(
                said.contains("imported.parquet is incomplete: costs hold what recording added"),
                "{said}"
            );
            assert!(said.contains("try: --of count"), "{said}");
        }
        for of in ["count", "disk"] {
            let allowed = diff(&["--threshold", "0", "--of", of], before, after);
            assert_eq!(allowed.status.code(), Some(0), "{}", text(&allowed.stderr));
        }
        let json = text(&diff(&["--json", "--of", "count"], before, after).stdout);
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(json["comparable"], true);
        let tables = text(&diff(&["--of", "count"], before, after).stdout);
        let has_change_of_ms = |line: &str| line.starts_with(" all ") && !line.trim_end().ends_with(" -");
        assert!(!tables.lines().any(has_change_of_ms), "{tables}");
        assert!(!tables.contains("a.so"), "the numbers of its faults are equal: {tables}");
        let tables = diff(&["--allow-incomplete", "--of", "total"], before, after);
        assert!(text(&tables.stdout).contains("a.so"), "that is asked for");
    }
    let allowed = diff(&["--allow-incomplete", "--threshold", "10", "--json"], &recorded, &imported);
    let json: serde_json::Value = serde_json::from_slice(&allowed.stdout).expect("JSON");
    assert_eq!((allowed.status.code(), &json["comparable"]), (Some(1), &false.into()));
    for alike in [&recorded, &imported] {
        let equal = diff(&["--threshold", "0"], alike, alike);
        assert!(equal.status.success() && equal.stderr.is_empty(), "{}", text(&equal.stderr));
    }
}

#[test]
fn the_verdict_stands_where_nobody_reads_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let before = written(dir.path(), "a.parquet", &trace(1000, 5000));
    let after = written(dir.path(), "b.parquet", &trace(1000, 6000));
    for more in [&[][..], &["--json"]] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_prepage-tools"));
        command.args(["diff", "--threshold", "15"]).args(more).args([&before, &after]).stdout(writer);
        assert_eq!(command.status().expect("it runs").code(), Some(1), "{more:?}");
    }
}

#[test]
fn options_of_tables_need_a_table() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = written(dir.path(), "t.parquet", &trace(1000, 5000));
    for option in [["--columns", "p99"], ["--top", "3"]] {
        let code = |more: &[&str]| prepage(&[&["report"], &option[..], more].concat(), &path).status.code();
        assert_eq!(code(&[]), Some(2), "{option:?}");
        assert_eq!((code(&["--json"]), code(&["--by", "file"])), (Some(0), Some(0)), "{option:?}");
    }
}

#[test]
fn json_has_the_percentiles_of_groups() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = written(dir.path(), "t.parquet", &trace(1000, 5000));
    let output = prepage(&["report", "--json", "--by", "file,thread"], &path);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    for by in ["file", "thread"] {
        let p99 = json["by"][by]["rows"][0]["p99_us"].as_f64().expect("known");
        assert!((4.9..5.1).contains(&p99), "{p99}");
    }
}

#[test]
fn duckdb_and_pandas_read_traces_and_what_they_rewrite_is_reported() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = written(dir.path(), "t.parquet", &trace(300_000, 5000));
    let Some(mut python) = python("duckdb, pandas, pyarrow") else { return };
    let script = "
import sys, duckdb, pandas, pyarrow.parquet as pq
path, copy = sys.argv[1:]
frame = pandas.read_parquet(path)
assert len(frame) == 300000 and frame['cost_ns'].sum() == 1500000000, frame
assert frame['class'].value_counts()['disk'] == 150000
row = duckdb.sql(f\"SELECT object, count(*), sum(cost_ns) FROM '{path}' WHERE class = 'disk' GROUP BY object\").fetchall()
assert row == [('/usr/lib/a.so', 150000, 750000000)], row
table = pq.read_table(path)
pq.write_table(table.replace_schema_metadata(pq.ParquetFile(path).metadata.metadata), copy, compression='zstd')
";
    let copy = dir.path().join("copy.parquet");
    let output = python.args(["-c", script]).arg(&path).arg(&copy).output().expect("python runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let output = prepage(&["report"], &copy);
    assert!(text(&output.stdout).contains("300000 page faults"), "{}", text(&output.stderr));
}

#[test]
fn perfettos_own_definitions_read_the_export() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = written(dir.path(), "t.parquet", &trace(1000, 5000));
    let Some(mut python) = python("perfetto.protos.perfetto.trace.perfetto_trace_pb2") else { return };
    let export = dir.path().join("t.perfetto");
    let made = prepage(&["export", "-f", "perfetto", "-o", export.to_str().expect("text")], &path);
    assert!(made.status.success(), "{}", text(&made.stderr));
    let script = "
import sys
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent
trace = Trace()
trace.ParseFromString(open(sys.argv[1], 'rb').read())
tracks = {p.track_descriptor.uuid: p.track_descriptor for p in trace.packet if p.HasField('track_descriptor')}
names, files, open_at, slices = {}, {}, {}, []
for p in trace.packet:
    names.update({n.iid: n.name for n in p.interned_data.event_names})
    files.update({n.iid: n.str.decode() for n in p.interned_data.debug_annotation_string_values})
    if p.HasField('track_event'):
        e = p.track_event
        if e.type == TrackEvent.TYPE_SLICE_BEGIN:
            open_at[e.track_uuid] = (p.timestamp, names[e.name_iid], files[e.debug_annotations[0].string_value_iid])
        elif e.type == TrackEvent.TYPE_SLICE_END:
            start, name, file = open_at.pop(e.track_uuid)
            slices.append((start, p.timestamp - start, tracks[e.track_uuid].thread.thread_name, name, file))
assert len(slices) == 1000 and not open_at, len(slices)
assert slices[0] == (0, 5000, 'cat', 'disk', '/usr/lib/a.so'), slices[0]
assert slices[1] == (10000, 5000, 'io', 'zero-fill', '[heap]'), slices[1]
";
    let output = python.args(["-c", script]).arg(&export).output().expect("python runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn a_terminal_gets_no_binary_trace() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = written(dir.path(), "t.parquet", &trace(10, 5000));
    if !has(Need::Tool("script".into())) {
        return;
    }
    let on_terminal = |format: &str| {
        let command =
            format!("{} export -f {format} {}", env!("CARGO_BIN_EXE_prepage-tools"), path.display());
        let script =
            Command::new("script").args(["-qec", &command, "/dev/null"]).stdin(Stdio::null()).output();
        let output = script.expect("script runs");
        (output.status.code(), text(&output.stdout))
    };
    let (code, said) = on_terminal("perfetto");
    assert_eq!(code, Some(125), "{said}");
    assert!(said.contains("is a terminal") && said.contains("try: -o FILE"), "{said}");
    let (code, said) = on_terminal("csv");
    assert_eq!((code, said.lines().count()), (Some(0), 11), "{said}");
    // Programs get the names as they are, the terminal does not.
    let mut named = trace(10, 5000);
    named.threads[0].comm = "\x1b[31mRED".into();
    let path = written(dir.path(), "t.parquet", &named);
    for format in ["csv", "folded"] {
        let exported = text(&prepage(&["export", "-f", format], &path).stdout);
        assert!(exported.contains("\x1b[31mRED"), "{format}: {exported}");
        let (code, said) = on_terminal(format);
        assert!(
            code == Some(0) && said.contains(r"\x1b[31mRED") && !said.contains('\x1b'),
            "{format}: {said}"
        );
    }
}

/// What `prepage-tools ARGUMENTS PATH` shows on a terminal of 90 columns where COLUMNS has this value; `None`, counted as a skip, where there
/// is no script(1).
fn on_terminal(arguments: &[&str], path: &Path, columns: Option<&str>) -> Option<String> {
    if !has(Need::Tool("script".into())) {
        return None;
    }
    let (tools, arguments) = (env!("CARGO_BIN_EXE_prepage-tools"), arguments.join(" "));
    let command = format!("stty cols 90; {tools} {arguments} {}", path.display());
    let mut script = Command::new("script");
    script.args(["-qec", &command, "/dev/null"]).stdin(Stdio::null()).env_remove("COLUMNS");
    script.envs(columns.map(|columns| ("COLUMNS", columns)));
    Some(text(&script.output().expect("script runs").stdout))
}

#[test]
fn tables_fit_the_terminal_and_are_whole_elsewhere() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut trace = trace(1000, 5000);
    let long = format!("/usr/lib/{}a.so", "directory/".repeat(12));
    trace.objects[0].path = long.clone();
    let path = written(dir.path(), "t.parquet", &trace);
    for arguments in [
        &["report"][..],
        &["report", "--by", "file,mapping,slowest"],
        &["simulate", "-p", "none", "--by-object"],
    ] {
        let files = |said: &str| -> Vec<String> {
            said.lines()
                .filter(|line| line.contains("/a.so"))
                .map(|line| line.trim_end().to_owned())
                .collect()
        };
        let piped = files(&text(&prepage(arguments, &path).stdout));
        assert!(
            !piped.is_empty() && piped.iter().all(|line| line.contains(&long)),
            "{arguments:?}: {piped:?}"
        );
        let Some(shown) = on_terminal(arguments, &path, None) else { return };
        let shown = files(&shown);
        let fits = |line: &String| line.chars().count() <= 90 && line.contains("…");
        assert!(shown.len() == piped.len() && shown.iter().all(fits), "{arguments:?}: {shown:?}");
        assert!(shown.iter().any(|line| line.chars().count() == 90), "{arguments:?}: {shown:?}");
        // As ps(1) has it, COLUMNS says more than the terminal.
        assert_eq!(files(&on_terminal(arguments, &path, Some("0")).expect("as before")), piped);
    }
}

#[test]
fn bars_of_costs_fit_the_terminal() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut trace = trace(1000, 5000);
    trace.faults.iter_mut().enumerate().for_each(|(at, fault)| fault.class = FaultClass::ALL[at % 5]);
    let path = written(dir.path(), "t.parquet", &trace);
    let Some(shown) = on_terminal(&["report", "--by", "cost"], &path, None) else { return };
    let bars: Vec<usize> =
        shown.lines().filter(|line| line.contains('█')).map(|line| line.trim_end().chars().count()).collect();
    assert!(!bars.is_empty() && bars.iter().all(|width| *width <= 90), "{shown}");
}

#[test]
fn what_has_no_faults_says_so_and_why() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = written(dir.path(), "t.parquet", &trace(1000, 5000));
    for arguments in [&["report", "--pid", "1"][..], &["report", "--pid", "1", "--by", "cost,file,slowest"]] {
        let said = text(&prepage(arguments, &path).stdout);
        assert!(said.ends_with("\n\nno page faults: none passes the filter\n"), "{arguments:?}: {said}");
    }
    let page = text(&prepage(&["report", "--pid", "1", "--html", "-"], &path).stdout);
    assert!(
        page.contains("No page faults: none passes the filter.") && page.ends_with("</html>\n"),
        "{page}"
    );
    assert!(!page.contains("<script") && !page.contains("id=\"plots\""), "nothing is drawn");
}

#[test]
fn costs_that_are_not_known_are_no_zeros() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut untimed = trace(10, 5000);
    untimed.faults.iter_mut().for_each(|fault| fault.cost_ns = None);
    let path = written(dir.path(), "t.parquet", &untimed);
    let out = |arguments: &[&str]| text(&prepage(arguments, &path).stdout);
    let overview = out(&["report", "--pid", "1"]);
    let is_told = overview.contains("their costs are not known");
    assert!(is_told && !overview.contains("waited") && !overview.contains("0.00"), "{overview}");
    let json: serde_json::Value =
        serde_json::from_str(&out(&["report", "--pid", "1", "--json"])).expect("JSON");
    assert!(json["all"]["total_ms"].is_null() && json["all"]["count"] == 0, "{json}");
    let slices = out(&["report", "--by", "time", "--slices", "100"]);
    assert!(slices.lines().skip(1).all(|line| line.ends_with(" -")), "{slices}");
    for by in ["cost", "slowest"] {
        let table = out(&["report", "--by", by]);
        assert_eq!(table, "the costs of these faults are not known\n", "--by {by}");
    }
    let folded = prepage(&["export", "-f", "folded", "--weight", "cost"], &path);
    let said = text(&folded.stderr);
    assert_eq!(folded.status.code(), Some(125), "{said}");
    assert!(said.contains("costs of these faults are not known\n  try: --weight count\n"), "{said}");
    assert!(folded.stdout.is_empty());
    // Of a trace with costs, no faults cost nothing.
    let path = written(dir.path(), "timed.parquet", &trace(10, 5000));
    let overview = text(&prepage(&["report", "--pid", "1"], &path).stdout);
    assert!(overview.contains("threads waited 0.0 ms"), "{overview}");
}

#[test]
fn a_newest_trace_that_is_damaged_is_named_and_what_is_no_file_passed_over() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = written(dir.path(), "prepage.parquet", &trace(3, 5000));
    let minute_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(60);
    std::fs::File::options().write(true).open(&path).expect("there").set_modified(minute_ago).expect("set");
    let report = || {
        let mut command = Command::new("timeout");
        command.args(["60", env!("CARGO_BIN_EXE_prepage-tools"), "report"]);
        command.current_dir(dir.path()).output().expect("prepage-tools runs")
    };
    let made = Command::new("mkfifo").arg(dir.path().join("pipe.parquet")).status().expect("mkfifo runs");
    assert!(made.success());
    let output = report();
    assert!(text(&output.stdout).contains("\n3 page faults"), "{}", text(&output.stderr));
    let bytes = std::fs::read(&path).expect("read");
    // What a recorder that was killed has left, and a recording that has saved nothing yet.
    std::fs::write(dir.path().join("prepage.parquet.partial"), &bytes).expect("written");
    std::fs::write(dir.path().join("begun.parquet.partial"), &bytes[..100]).expect("written");
    let said = text(&report().stderr);
    assert!(said.contains("newest trace here is prepage.parquet.partial"), "{said}");
    std::fs::write(dir.path().join("damaged.parquet"), &bytes[..bytes.len() - 100]).expect("written");
    let output = report();
    let said = text(&output.stderr);
    assert!(output.status.code() == Some(125) && said.contains("damaged.parquet: cut short"), "{said}");
}

#[test]
fn names_do_not_command_the_terminal() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut trace = trace(3, 5000);
    trace.threads[0].comm = "\x1b[31mRED\x07".into();
    let of_later_terminals = "\u{9b}31mRED\u{202e}\x7f";
    trace.threads[1].comm = of_later_terminals.into();
    trace.facts.command = vec!["a\x1b[2Jb".into()];
    trace.objects[0].path = "/tmp/two\nlines".into();
    let path = written(dir.path(), "t\x1b.parquet", &trace);
    for arguments in [&["report"][..], &["report", "--by", "comm,thread,file,slowest"]] {
        let output = prepage(arguments, &path);
        let out = text(&output.stdout) + &text(&output.stderr);
        assert!(output.status.success() && !out.contains(['\x1b', '\x07']), "{out}");
        assert!(out.contains(r"/tmp/two\x0alines"), "{out}");
    }
    let exported =
        prepage(&["export", "-f", "csv", "-o", dir.path().join("o\x1b").to_str().expect("text")], &path);
    assert!(text(&exported.stderr).contains(r"o\x1b"), "{}", text(&exported.stderr));
    // A name that ends in a remedy, or looks like what prepage says.
    for (arguments, code) in [
        (&["report", "--x\n  try: rm -rf /\nprepage: \x1b[31mdone"][..], 2),
        (&["report", "no\nprepage: \x1b[31mdone\n  try: rm -rf /"], 125),
        (&["simulate", "--sweep", "x\n  try: rm -rf /\nprepage: \x1b[31mdone"], 2),
        (&["profile", "show", "a\n  try: rm -rf /\nprepage: \x1b[31mdone"], 125),
    ] {
        let tools = Command::new(env!("CARGO_BIN_EXE_prepage-tools")).args(arguments).output();
        let output = tools.expect("prepage-tools runs");
        let said = text(&output.stderr);
        assert!(output.status.code() == Some(code) && said.contains("rm -rf"), "{arguments:?}: {said}");
        let forged =
            |line: &str| line == "  try: rm -rf /" || line.trim_start().starts_with("prepage: \\x1b");
        assert!(!said.contains('\x1b') && !said.lines().any(forged), "{arguments:?}: {said}");
    }
    let json = text(&prepage(&["report", "--json", "--by", "comm"], &path).stdout);
    assert!(json.contains(r"\u001b[31mRED\u0007"), "{json}");
    assert!(
        json.contains(r"\u009b31mRED\u202e\u007f") && !json.contains(['\u{9b}', '\u{202e}', '\x7f']),
        "{json}"
    );
    let parsed: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert!(
        parsed["slowest"].as_array().expect("a list").iter().any(|row| row["comm"] == of_later_terminals)
    );
}

#[test]
fn what_became_of_files_pages_is_in_every_report() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut trace = trace(3, 5000);
    let file = FilePages {
        path: "/usr/lib/read-in".into(),
        pages_read_in: 4321,
        pages_mapped_nearby: 77,
        pages_forgotten: 5,
        ..FilePages::default()
    };
    let [waiter, reader] = [1, 2].map(|tid| Thread { pid: 1, tid, comm: "t".into() });
    let waits = vec![ReadWait { waiter, reader, count: 3, wait_ns: 1_000_000 }];
    trace.facts.page_cache = Some(PageCacheFacts { files: vec![file], waits });
    let path = written(dir.path(), "t.parquet", &trace);
    let page = dir.path().join("t.html");
    let out = text(&prepage(&["report"], &path).stdout);
    trace.faults.clear();
    let without_faults = written(dir.path(), "empty.parquet", &trace);
    let without_faults = text(&prepage(&["report"], &without_faults).stdout);
    assert!(without_faults.contains("no page faults: the trace holds none\n\n"), "{without_faults}");
    assert!(prepage(&["report", "--html", page.to_str().expect("text")], &path).status.success());
    let page = std::fs::read_to_string(page).expect("written");
    for shown in [&out, &page, &without_faults] {
        for part in ["/usr/lib/read-in", "4321", "only mapped", "77", "for a read by", "recorder watches: 5"]
        {
            assert!(shown.contains(part), "{part}: {shown}");
        }
    }
}

#[test]
fn a_page_is_written_to_standard_output_and_dots_belong_to_a_page() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = written(dir.path(), "t.parquet", &trace(3, 5000));
    let mut command = Command::new(env!("CARGO_BIN_EXE_prepage-tools"));
    command.current_dir(dir.path()).args(["report", "--html", "-"]).arg(&path);
    let output = command.output().expect("prepage-tools runs");
    assert!(text(&output.stdout).starts_with("<!doctype html>") && output.stderr.is_empty());
    assert_eq!(std::fs::read_dir(dir.path()).expect("listed").count(), 1);
    let refused = prepage(&["report", "--points", "5"], &path);
    assert!(text(&refused.stderr).contains("--html <FILE>|--open"), "{}", text(&refused.stderr));
}

#[test]
fn a_page_on_standard_output_is_not_opened() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = written(dir.path(), "t.parquet", &trace(10, 5000));
    let refused = prepage(&["report", "--html", "-", "--open"], &path);
    assert_eq!((refused.status.code(), &*text(&refused.stdout)), (Some(2), ""), "{}", text(&refused.stderr));
}

#[test]
fn what_a_link_points_to_is_written_and_the_link_stays() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = written(dir.path(), "t.parquet", &trace(10, 5000));
    std::fs::create_dir(dir.path().join("to")).expect("made");
    let [link, next, target] = ["link", "to/next", "to/target"].map(|name| dir.path().join(name));
    std::os::unix::fs::symlink("to/next", &link).expect("linked");
    std::os::unix::fs::symlink("target", &next).expect("linked");
    for _ in ["made", "replaced"] {
        let output = prepage(&["report", "--html", link.to_str().expect("text")], &path);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(link.is_symlink() && next.is_symlink() && target.metadata().is_ok_and(|file| file.is_file()));
    }
}
