//! A trace that lacks something says so wherever it is used, and is compared with no complete one.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use prepage_core::{
    ExactFacts, Fault, FaultClass, ImportFacts, Object, ObjectId, PageIndex, Thread, ThreadIndex, Trace,
    TraceFacts,
};
use prepage_testing::{Doctor, Need, has};
use prepage_trace::Tables;
use prepage_trace::parquet::{TraceWriter, write_trace};

use crate::support::{may, text};

fn tools(dir: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_prepage-tools"));
    command.current_dir(dir).args(arguments).output().expect("prepage-tools runs")
}

fn trace(faults: u64, facts: TraceFacts) -> Trace {
    let fault = |at: u64| Fault {
        cost_ns: Some(1000),
        object: Some(ObjectId(0)),
        page: Some(PageIndex(at % 500)),
        ..Fault::new(at * 1000, ThreadIndex(0), at << 12, FaultClass::Cached)
    };
    Trace {
        facts: TraceFacts { command: vec!["cat".into()], ..facts },
        objects: vec![Object::new("/usr/lib/a.so", Some((1, 1)))],
        threads: vec![Thread { pid: 7, tid: 7, comm: "cat".into() }],
        faults: (0..faults).map(fault).collect(),
        ..Trace::default()
    }
}

/// Asserts that `incomplete`, a file in `dir`, says `gap` (in JSON of kind `what`) to everybody who uses it.
fn says_what_it_lacks(dir: &Path, incomplete: &str, what: &str, gap: &str) {
    write_trace(&dir.join("complete.parquet"), &trace(1000, TraceFacts::default())).expect("written");
    let page = |name: &str| std::fs::read_to_string(dir.join(name)).expect("written");
    let said = |arguments: &[&str]| {
        let output = tools(dir, arguments);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        (text(&output.stdout), text(&output.stderr))
    };
    let (out, _) = said(&["report", incomplete]);
    assert!(out.contains(&format!("incomplete: {gap}")) && !out.contains("nothing lost"), "{out}");
    let (_, warned) = said(&["report", "--by", "file", incomplete]);
    assert!(warned.contains(&format!("is incomplete: {gap}")), "{warned}");
    let (out, _) = said(&["report", "--json", incomplete]);
    let json: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(json["missing"][0]["what"], what, "{}", json["missing"]);
    assert!(json["missing"][0]["text"].as_str().expect("text").starts_with(gap));
    said(&["report", "--html", "report.html", incomplete]);
    // Above the tables and in the footer.
    assert!(page("report.html").matches(gap).count() >= 2 && !page("report.html").contains("nothing lost"));
    for format in ["perfetto", "firefox", "folded", "csv"] {
        let (_, warned) = said(&["export", "-f", format, "-o", "exported", incomplete]);
        assert!(warned.contains(&format!("is incomplete: {gap}")), "{format}: {warned}");
    }
    let (out, _) = said(&["simulate", incomplete]);
    assert!(out.contains(gap) && !out.contains("nothing lost"), "{out}");
    let (out, _) = said(&["simulate", "--json", incomplete]);
    let json: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(json["missing"][0]["what"], what, "{}", json["missing"]);
    let (_, warned) = said(&["simulate", "-p", "predicted", "--train", incomplete, incomplete]);
    assert!(warned.contains(&format!("is incomplete: {gap}")), "{warned}");
    said(&["simulate", "--html", "simulate.html", incomplete]);
    assert!(page("simulate.html").contains(gap));

    for (before, after) in [("complete.parquet", incomplete), (incomplete, "complete.parquet")] {
        let refused = tools(dir, &["diff", "--of", "count", "--threshold", "1000000", before, after]);
        let warned = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(125), "{warned}");
        assert!(warned.contains(gap) && warned.contains("try: ") && refused.stdout.is_empty(), "{warned}");
        let limit = ["--of", "count", "--threshold", "1000000"];
        let arguments = [&["diff", "--allow-incomplete"], &limit[..], &["--json", before, after]].concat();
        let (out, _) = said(&arguments);
        let json: serde_json::Value = serde_json::from_str(&out).expect("JSON");
        let side = if before == incomplete { "before" } else { "after" };
        assert_eq!((&json["missing"][side][0]["what"], &json["comparable"]), (&what.into(), &false.into()));
    }
}

#[test]
fn a_sampled_perf_data() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    if !has(Need::Tool("perf".into())) || !may(Doctor::Faults) {
        return;
    }
    let events = "page-faults,minor-faults,major-faults";
    let perf = Command::new("perf")
        .current_dir(dir.path())
        .args(["record", "-q", "-o", "perf.data", "-e", events, "-c", "20", "-d", "--"])
        .args(["sh", "-c", "for i in 1 2 3 4 5 6 7 8 9; do ls / >/dev/null; done"])
        .output()
        .expect("perf runs");
    assert!(perf.status.success(), "{}", text(&perf.stderr));
    let output = tools(dir.path(), &["import", "-o", "sampled.parquet"]);
    assert!(text(&output.stderr).contains("perf recorded only one event in 20"), "{}", text(&output.stderr));
    says_what_it_lacks(dir.path(), "sampled.parquet", "sampled", "perf recorded only one event in 20");
    // A sampled beginning has no end, and a sampled end no beginning: nothing is known of one by the other.
    let trace = prepage_trace::parquet::read_trace(&dir.path().join("sampled.parquet")).expect("read");
    assert!(!trace.faults.is_empty() && trace.faults.iter().all(|fault| fault.cost_ns.is_none()));
    assert!(trace.faults.iter().all(|fault| fault.class != FaultClass::Failed));
}

#[test]
fn a_filtered_recording() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    if !may(Doctor::Faults) {
        return;
    }
    // The shell's own faults are left out.
    let command = ["sh", "-c", "ls / >/dev/null; true"];
    let record = ["record", "-o", "filtered.parquet", "--comm", "ls", "--"];
    let output = tools(dir.path(), &[&record[..], &command].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let trace = prepage_trace::parquet::read_trace(&dir.path().join("filtered.parquet")).expect("read");
    let gap = format!("{} faults left out by --comm ls", trace.facts.filtered_out);
    says_what_it_lacks(dir.path(), "filtered.parquet", "filtered", &gap);
}

#[test]
fn a_recording_cut_short() {
    let dir = tempfile::tempdir().expect("a directory");
    let trace = trace(1000, TraceFacts::default());
    let mut writer = TraceWriter::create(&dir.path().join("cut.parquet")).expect("created");
    // After so long a row group is put into the file however short it is.
    std::thread::sleep(Duration::from_secs(5));
    writer.write(Tables::from(&trace), &trace.faults, || trace.facts.clone()).expect("written");
    let left: PathBuf = writer.left_behind().expect("a row group is complete").to_owned();
    // What a recorder that is killed leaves.
    drop(writer);
    let left = left.to_str().expect("text");
    let gap = "the recorder was killed, or this is an incomplete copy";
    says_what_it_lacks(dir.path(), left, "cut_short", gap);
    let warned = text(&tools(dir.path(), &["report", "--by", "file", left]).stderr);
    assert!(warned.contains("try: take another copy"), "{warned}");
}

#[test]
fn a_lossy_recording() {
    let dir = tempfile::tempdir().expect("a directory");
    let facts = TraceFacts { lost: 7, lost_by_second: vec![(0, 7)], ..TraceFacts::default() };
    write_trace(&dir.path().join("lossy.parquet"), &trace(1000, facts)).expect("written");
    says_what_it_lacks(dir.path(), "lossy.parquet", "lost", "7 records lost by the kernel");
}

#[test]
fn an_exact_recording_that_was_not_told_of_all_mappings() {
    let dir = tempfile::tempdir().expect("a directory");
    let exact = Some(ExactFacts { lost_records: 700, ..ExactFacts::default() });
    let facts = TraceFacts { exact, ..TraceFacts::default() };
    write_trace(&dir.path().join("lossy.parquet"), &trace(1000, facts)).expect("written");
    let gap = "mappings and execs: the kernel had no room for 700 records";
    says_what_it_lacks(dir.path(), "lossy.parquet", "lost_mappings", gap);
    let simulated = text(&tools(dir.path(), &["simulate", "lossy.parquet"]).stdout);
    assert!(!simulated.contains("not exact") && !simulated.contains("unseen"), "{simulated}");
}

#[test]
fn a_threshold_of_what_is_not_known_of_either_trace() {
    let dir = tempfile::tempdir().expect("a directory");
    let imported = ImportFacts { costs_unknown: true, disk_unknown: true, ..ImportFacts::default() };
    let mut trace = trace(1000, TraceFacts { imported: Some(imported), ..TraceFacts::default() });
    trace.faults.iter_mut().for_each(|fault| fault.cost_ns = None);
    write_trace(&dir.path().join("a.parquet"), &trace).expect("written");
    let diff = |more: &[&str]| {
        let output = tools(dir.path(), &[&["diff", "a.parquet", "a.parquet"], more].concat());
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    for of in ["total", "disk-total", "disk"] {
        let (code, out, said) = diff(&["--threshold", "10", "--of", of]);
        assert!(
            code == Some(125) && said.contains("not known") && said.contains("try: --of count"),
            "{said}"
        );
        assert!(out.is_empty(), "{out}");
        let (code, out, _) = diff(&["--of", of]);
        assert!(code == Some(0) && out.contains(": not known") && !out.contains("0.00"), "{out}");
    }
    assert_eq!(diff(&["--threshold", "10", "--of", "count"]).0, Some(0));
    for threshold in ["nan", "inf", "x"] {
        let (code, _, said) = diff(&["--threshold", threshold]);
        assert!(code == Some(2) && said.contains("invalid value"), "{said}");
    }
}

/// Of running programs there are as many faults as there is time.
#[test]
fn recordings_of_running_programs_for_different_times() {
    let dir = tempfile::tempdir().expect("a directory");
    let write = |name: &str, seconds: u64, facts: TraceFacts| {
        let facts = TraceFacts { duration_ns: seconds * 1_000_000_000, ..facts };
        write_trace(&dir.path().join(name), &trace(100 * seconds, facts)).expect("written");
    };
    let system = || TraceFacts { system_wide: true, ..TraceFacts::default() };
    write("long", 60, system());
    write("short", 10, system());
    write("as-long", 62, system());
    let diff = |arguments: &[&str]| tools(dir.path(), &[&["diff", "--of", "count"], arguments].concat());
    let told = "recorded 60.0 s and 10.0 s";
    let plain = diff(&["long", "short"]);
    assert!(plain.status.success() && text(&plain.stderr).contains(told), "{}", text(&plain.stderr));
    let refused = diff(&["--threshold", "10", "long", "short"]);
    assert_eq!(refused.status.code(), Some(125));
    assert!(text(&refused.stderr).contains("try: ") && refused.stdout.is_empty());
    let compared = diff(&["--threshold", "10", "--allow-incomplete", "--json", "long", "short"]);
    let json: serde_json::Value = serde_json::from_slice(&compared.stdout).expect("JSON");
    assert_eq!((compared.status.code(), &json["comparable"]), (Some(0), &false.into()));
    assert_eq!(json["duration_ms"], serde_json::json!({ "before": 60_000.0, "after": 10_000.0 }));
    let equal = diff(&["--threshold", "10", "long", "as-long"]);
    assert!(equal.status.success() && !text(&equal.stderr).contains("recorded"), "{}", text(&equal.stderr));
    // Nobody knows how long they had run before.
    write("late", 10, TraceFacts { pids: vec![7], ..TraceFacts::default() });
    assert_eq!(diff(&["--threshold", "10", "long", "late"]).status.code(), Some(125));
    // How long a command takes is a result.
    write("slow", 60, TraceFacts::default());
    write("fast", 10, TraceFacts::default());
    assert!(diff(&["--threshold", "10", "slow", "fast"]).status.success());
    // It is, too, where it leaves a server running; not where its recording ends before it.
    for (ended_early, code) in [(false, 0), (true, 125)] {
        for (name, seconds) in [("slow", 60), ("fast", 10)] {
            write(name, seconds, TraceFacts { survivors: 1, ended_early, ..TraceFacts::default() });
        }
        assert_eq!(diff(&["--threshold", "10", "slow", "fast"]).status.code(), Some(code));
    }
}

#[test]
fn an_import_of_what_ran_already_is_no_run_from_its_start() {
    let dir = tempfile::tempdir().expect("a directory");
    let imported = Some(ImportFacts { of_running: true, ..ImportFacts::default() });
    write_trace(&dir.path().join("t"), &trace(1000, TraceFacts { imported, ..TraceFacts::default() }))
        .expect("written");
    let said = text(&tools(dir.path(), &["simulate", "t"]).stdout);
    assert!(said.contains("pages touched before the recording are missing"), "{said}");
}
