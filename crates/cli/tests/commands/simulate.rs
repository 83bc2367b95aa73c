//! `prepage simulate` as its user meets it.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use prepage_core::profile::file::encode;
use prepage_core::profile::{Counts, Extent, FileIdentity, Fingerprint, Profile, ProfiledFile};
use prepage_core::{
    BuildId, Fault, FaultClass, Object, ObjectId, PageIndex, PageRange, Permissions, Thread, ThreadIndex,
    Trace, TraceFacts,
};
use prepage_trace::parquet::write_trace;
use serde_json::Value;

use crate::support::{self, Sandbox, text};

const VECTORS: &str = include_str!("../../../simulate/tests/vectors/clustering.json");

fn simulate(dir: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_prepage-tools"));
    command.current_dir(dir).arg("simulate").args(arguments).output().expect("prepage-tools runs")
}

fn json(dir: &Path, arguments: &[&str]) -> Value {
    let output = simulate(dir, &[&["--json"], arguments].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn trace(name: &str) -> String {
    format!("{}/../simulate/tests/traces/{name}.parquet", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_newest_trace_is_replayed_where_none_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let said = text(&simulate(dir.path(), &[]).stderr);
    assert!(said.contains("try: prepage record"), "{said}");
    fs::copy(trace("gcc-huf_decompress"), dir.path().join("prepage.parquet")).expect("copied");
    assert_eq!(json(dir.path(), &[]), json(dir.path(), &["prepage.parquet"]));
}

#[test]
fn every_vector_comes_out_of_the_command_line() {
    let dir = tempfile::tempdir().expect("a directory");
    let vectors: Value = serde_json::from_str(VECTORS).expect("JSON");
    for (name, vector) in vectors.as_object().expect("vectors") {
        let expected = vector["expect"].as_object().expect("policies");
        let policies = expected.keys().map(String::as_str).collect::<Vec<_>>().join(",");
        let mut arguments = vec!["--policy".to_owned(), policies];
        if name == "CLANG1" {
            arguments.extend(["--model", "code:1"].map(str::to_owned));
        } else {
            let lines = |values: &Value| {
                let values = values.as_array().into_iter().flatten();
                values.map(ToString::to_string).collect::<Vec<_>>()
            };
            fs::write(dir.path().join("touches"), lines(&vector["touches"]).join("\n")).expect("written");
            arguments.extend(["--touches", "touches"].map(str::to_owned));
            arguments.extend(["--object-pages".to_owned(), vector["object_pages"].to_string()]);
            let options = &vector["options"];
            for (field, option) in
                [("e_off", "--entry-offset"), ("e_pages", "--entry-pages"), ("maxra", "--max-readahead")]
            {
                if let Some(value) = options.get(field) {
                    arguments.extend([option.to_owned(), value.to_string()]);
                }
            }
            if !lines(&options["resident"]).is_empty() {
                arguments.extend(["--resident".to_owned(), lines(&options["resident"]).join(",")]);
            }
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let found = json(dir.path(), &arguments);
        for (policy, fields) in expected {
            for (field, value) in fields.as_object().expect("fields") {
                assert_eq!(&found["policies"][policy][field], value, "{name}, {policy}, {field}");
            }
        }
    }
}

#[test]
fn what_cannot_be_replayed_is_reported_with_its_line() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("other"), "elsewhere,1\n").expect("written");
    let said = |touches: &str, arguments: &[&str]| {
        fs::write(dir.path().join("t"), touches).expect("written");
        let output = simulate(dir.path(), &[&["--touches", "t"], arguments].concat());
        assert!(
            !output.status.success() && output.stdout.is_empty(),
            "{touches:?}: {}",
            text(&output.stdout)
        );
        text(&output.stderr)
    };
    for (touches, arguments, expected) in [
        ("1\n2\n40\n", &["--object-pages", "32"][..], "line 3: page 40 is past the end"),
        ("1\n99999999999999999999999\n", &[], "line 2: page 99999999999999999999999 is beyond"),
        ("1\n-2\n", &[], "line 2: `-2` is not a page index"),
        ("1\nlib,2\n", &[], "line 2: lines with and without an object are mixed"),
        ("# nothing\n\n", &[], "no touches"),
        ("1\n", &["--policy", "alinged:16"], "aligned"),
        ("1\n", &["--policy", "aligned:0"], "aligned"),
        ("1\n", &["--device", "floppy"], "there are hdd"),
        ("1\n", &["--sweep", "aligned:16"], "aligned:4..512"),
        ("1\n", &["--memory", "5-3"], "ends before it starts"),
        (
            "1\n",
            &["--memory", "5", "--replacement", "random"],
            "expected one of fifo, clock, 2q, s3-fifo, dont-need",
        ),
        ("1\n", &["--replacement", "lru"], "--memory"),
        ("1\n", &["--cost", "2us"], "fault=2us,io=100us,page=4us"),
        ("1\n", &["--advise", "lib=none"], "no file called lib"),
        ("lib,1\n", &["--advise", "lib=alinged:3"], "did you mean `aligned`?"),
        ("1\n", &["--resident", "99999999999999"], "beyond what can be mapped"),
        ("1\n", &["--memory", ","], "is not a number"),
        ("1\n", &["--object-pages", "99999999999999"], "99999999999999"),
        ("1\n", &["--entry-pages", "99999999999999"], "99999999999999"),
        ("68719476735\n", &["--entry-offset", "1"], "past the end"),
        ("1\n", &["--policy", "predicted"], "--train"),
        ("lib,1\n", &["--policy", "predicted", "--train", "other"], "contains none of the files"),
    ] {
        let said = said(touches, arguments);
        assert!(said.contains(expected), "{touches:?} {arguments:?}: {said}");
    }
    for wrong in [
        ["--policy", "alinged:16"],
        ["--sweep", "aligned:16"],
        ["--device", "floppy"],
        ["--advise", "lib"],
        ["--advise", "lib=alinged:3"],
    ] {
        let output = simulate(dir.path(), &[&["--touches", "t"], &wrong[..]].concat());
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {}", text(&output.stderr));
    }
    let absent = simulate(dir.path(), &["--touches", "absent"]);
    assert!(text(&absent.stderr).contains("absent"));
}

#[test]
fn a_damaged_trace_and_one_of_another_version_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let whole = fs::read(trace("python")).expect("a trace");
    let mut newer = whole.clone();
    let place_after = |bytes: &[u8], key: &[u8]| {
        // In Thrift's compact form a value follows its key after a type and a length.
        bytes.windows(key.len()).position(|window| window == key).expect("the key") + key.len() + 2
    };
    let version = place_after(&newer, b"prepage.format_version");
    newer[version] = b'9';
    let checksum = place_after(&newer, b"prepage.crc32");
    newer[checksum..checksum + 8].copy_from_slice(b"unsealed");
    for (bytes, expected) in [
        (&whole[..whole.len() / 2], "cut short"),
        (&newer[..], "trace format 9; this prepage reads formats up to 1"),
        (&b"1\n2\n"[..], "not a prepage trace"),
    ] {
        fs::write(dir.path().join("bad"), bytes).expect("written");
        let output = simulate(dir.path(), &["bad"]);
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains(expected) && said.contains("  try: "), "{said}");
        let learned = simulate(dir.path(), &["--policy", "predicted", "--train", "bad", &trace("python")]);
        assert!(text(&learned.stderr).contains("  try: "), "{}", text(&learned.stderr));
    }
    let forks = simulate(dir.path(), &["--forks", "."]);
    assert!(text(&forks.stderr).contains("reading failed: Is a directory"), "{}", text(&forks.stderr));
}

#[test]
fn a_trace_is_compared_in_a_table_and_on_a_page() {
    let dir = tempfile::tempdir().expect("a directory");
    let output = simulate(
        dir.path(),
        &[&trace("python"), "-p", "around:8:7,context", "--sweep", "aligned:8..32", "-d", "hdd;flash"],
    );
    let said = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for expected in [
        "1110 touches of 842 pages",
        "aligned:8 ",
        "aligned:32",
        "hdd ms",
        "flash ms",
        "may have been touched unseen, not counting folios of 2 MiB",
    ] {
        assert!(said.contains(expected), "{expected} is missing: {said}");
    }
    let output = simulate(
        dir.path(),
        &[&trace("python"), "-p", "none,context", "--html", "page.html", "--memory", "all"],
    );
    assert!(output.status.success() && output.stdout.is_empty(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("written to page.html"), "{}", text(&output.stderr));
    let page = fs::read_to_string(dir.path().join("page.html")).expect("the page");
    assert!(!page.contains(" src=") && !page.contains("<link"), "the page asks for something");
    for expected in
        ["<td>context</td>", "Hard faults by file", "/usr/bin/python3", "\"never_percent\"", REUSE]
    {
        assert!(page.contains(expected), "{expected} is missing");
    }
}

const REUSE: &str = "a trace has each page&#39;s first touch in a process: re-use is not in it";

#[test]
fn memory_too_small_for_a_trace_is_said_to_lack_reuse() {
    let dir = tempfile::tempdir().expect("a directory");
    let said = text(&simulate(dir.path(), &[&trace("python"), "-p", "none", "--memory", "all"]).stdout);
    assert!(said.contains(&REUSE.replace("&#39;", "'")), "{said}");
    fs::write(dir.path().join("t"), "1\n2\n1\n").expect("written");
    let said = text(&simulate(dir.path(), &["--touches", "t", "-p", "none", "--memory", "all"]).stdout);
    assert!(said.contains("too little memory") && !said.contains("re-use"), "{said}");
}

#[test]
fn waits_for_reads_in_the_background_are_told_without_a_device_and_counted_with_one() {
    let dir = tempfile::tempdir().expect("a directory");
    let linux = "linux-data:ra=32,map=1";
    let policies = format!("{linux},aligned:16");
    let arguments = ["--model", "file:stride-4k", "-p", &policies];
    let said = text(&simulate(dir.path(), &arguments).stdout);
    let note = format!("read in the background by {linux}: waits for these show only with --device\n");
    assert!(said.contains(&note), "{said}");
    let with_device = [&arguments[..], &["-d", "hosted"]].concat();
    let logged = json(dir.path(), &with_device)["policies"][linux]["devices"]["hosted"]["logged"][0].clone();
    assert!(logged.as_u64().is_some_and(|waits| waits > 1), "{logged}");
    let said = text(&simulate(dir.path(), &with_device).stdout);
    assert!(!said.contains("only with --device"), "{said}");
    let heading = said.lines().find(|line| line.contains("pages read")).expect("a heading");
    assert!(heading.trim_end().ends_with(" waits"), "{said}");
    let row = said.lines().find(|line| line.trim_start().starts_with(linux));
    let waits = row.and_then(|row| row.split_whitespace().last()).expect("a row");
    assert_eq!(waits, logged.to_string(), "{said}");
}

/// Two faults of one process on pages of one file, without costs.
fn small_trace(dir: &Path, facts: TraceFacts, object: Object) {
    let mut trace = Trace { facts, objects: vec![object], ..Trace::default() };
    trace.threads.push(Thread { pid: 7, tid: 7, comm: "a".into() });
    for page in [1, 40] {
        trace.faults.push(Fault {
            object: Some(ObjectId(0)),
            page: Some(PageIndex(page)),
            permissions: Permissions::READ,
            ..Fault::new(page * 1_000_000, ThreadIndex(0), 0x1000 + page * 4096, FaultClass::Disk)
        });
    }
    write_trace(&dir.join("t.parquet"), &trace).expect("written");
}

fn a_file() -> Object {
    Object {
        size_bytes: Some(1 << 20),
        build_id: BuildId::new(&[1; 20]),
        ..Object::new("/lib/a.so", Some((0xfe << 20, 7)))
    }
}

#[test]
fn times_that_hold_waits_of_the_recording_are_told() {
    let dir = tempfile::tempdir().expect("a directory");
    small_trace(dir.path(), TraceFacts::default(), a_file());
    let note = "times hold the recording's own waits: 2 faults without a cost";
    let said = text(&simulate(dir.path(), &["t.parquet", "-d", "flash"]).stdout);
    assert!(said.contains(note), "{said}");
    let said = text(&simulate(dir.path(), &["t.parquet"]).stdout);
    assert!(said.contains("touches of 2 pages") && !said.contains(note), "{said}");
    assert_eq!(json(dir.path(), &["t.parquet"])["touches_without_cost"], 2);
}

#[test]
fn what_running_processes_had_touched_before_is_told_as_missing() {
    let dir = tempfile::tempdir().expect("a directory");
    let said = |facts: TraceFacts| {
        small_trace(dir.path(), facts, a_file());
        text(&simulate(dir.path(), &["t.parquet"]).stdout)
    };
    let note = "pages touched before the recording are missing: never and pages read are too high";
    for facts in [
        TraceFacts { pids: vec![7], ..TraceFacts::default() },
        TraceFacts { system_wide: true, ..TraceFacts::default() },
    ] {
        let said = said(facts);
        assert!(said.contains(note) && !said.contains("record --exact"), "{said}");
    }
    let said = said(TraceFacts::default());
    assert!(!said.contains(note) && said.contains("record --exact"), "{said}");
}

#[test]
fn of_a_profile_only_what_a_start_would_prefetch_is_predicted() {
    let dir = tempfile::tempdir().expect("a directory");
    small_trace(dir.path(), TraceFacts::default(), a_file());
    let extent =
        |start, pages| Extent::new(PageRange::new(PageIndex(start), PageIndex(start + pages)), start as u32);
    let read = |fingerprint: &[u8], size_bytes: u64, device: &[&str]| {
        let unused = Extent { counts: Counts::unused_in(5), ..extent(40, 8) };
        let by_read = Extent { by_read: true, ..extent(100, 8) };
        // Worth it on a disk of this machine's kind, and not where bytes come slowly.
        let seldom = Extent { counts: Counts::from_sixteenths(16, 128), ..extent(200, 4) };
        let file = ProfiledFile {
            path: "/lib/a.so".into(),
            fingerprint: Fingerprint::BuildId(fingerprint.to_vec()),
            identity: FileIdentity { size_bytes, ..FileIdentity::default() },
            extents: vec![extent(1, 1), unused, by_read, seldom],
            ..ProfiledFile::default()
        };
        let profile = Profile { files: vec![file], ..Profile::default() };
        fs::write(dir.path().join("profile"), encode(&profile)).expect("written");
        let arguments = ["--json", "t.parquet", "-p", "predicted:1", "--train", "profile"];
        let output = simulate(dir.path(), &[&arguments[..], device].concat());
        (output.status.success(), text(&output.stdout), text(&output.stderr))
    };
    let pages = |found: (bool, String, String)| {
        let found: Value = serde_json::from_str(&found.1).unwrap_or_else(|_| panic!("{}", found.2));
        found["policies"]["predicted:1"]["read"].as_u64().expect("a count")
    };
    // The same file, one that was stripped, one of which nothing more is known.
    for (fingerprint, size_bytes) in [(&[1; 20][..], 1 << 20), (&[1; 20], 4096), (&[], 0), (&[], 1 << 20)] {
        assert_eq!(pages(read(fingerprint, size_bytes, &[])), 2 + 4, "{fingerprint:?} {size_bytes}");
    }
    let slow = ["-d", "network:bandwidth=1M"];
    assert_eq!(pages(read(&[], 0, &slow)), 2);
    for (fingerprint, size_bytes) in [(&[2; 20][..], 1 << 20), (&[], 4096)] {
        let (success, _, said) = read(fingerprint, size_bytes, &[]);
        assert!(!success && said.contains("/lib/a.so: not the file of profile that was touched"), "{said}");
        assert!(said.contains("contains none of the files that are touched"), "{said}");
    }
}

#[test]
fn a_trace_teaches_nothing_of_another_file_of_the_same_path() {
    let dir = tempfile::tempdir().expect("a directory");
    let learned_of = |object: Object| {
        small_trace(dir.path(), TraceFacts::default(), object);
        fs::rename(dir.path().join("t.parquet"), dir.path().join("trained")).expect("renamed");
        small_trace(dir.path(), TraceFacts::default(), a_file());
        simulate(dir.path(), &["--json", "t.parquet", "-p", "predicted:1", "--train", "trained"])
    };
    // The same file, one that was stripped, and one of which nothing more is known.
    for (build_id, size_bytes) in [(Some([1; 20]), Some(1 << 20)), (Some([1; 20]), Some(4096)), (None, None)]
    {
        let build_id = build_id.and_then(|id| BuildId::new(&id));
        let output = learned_of(Object { build_id, size_bytes, ..a_file() });
        assert_eq!(
            support::json(&output)["policies"]["predicted:1"]["read"],
            2,
            "{build_id:?} {size_bytes:?}"
        );
        assert!(!text(&output.stderr).contains("left out"), "{}", text(&output.stderr));
    }
    for (build_id, size_bytes) in [(BuildId::new(&[2; 20]), Some(1 << 20)), (None, Some(4096))] {
        let output = learned_of(Object { build_id, size_bytes, ..a_file() });
        let said = text(&output.stderr);
        assert!(said.contains("/lib/a.so: not the file of trained that was touched"), "{said}");
        assert!(said.contains("contains none of the files that are touched"), "{said}");
    }
}

#[test]
fn advice_to_predict_needs_and_uses_what_was_learned() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("t"), "a,0\na,100\nb,0\n").expect("written");
    let arguments = ["--touches", "t", "-p", "none", "--advise", "a=predicted"];
    let refused = simulate(dir.path(), &arguments);
    let said = text(&refused.stderr);
    assert!(refused.status.code() == Some(2) && said.contains("needs --train FILE"), "{said}");
    let found = json(dir.path(), &[&arguments[..], &["--train", "t"]].concat());
    let counts = &found["policies"]["none"];
    assert_eq!((&counts["hard"], &counts["read"], &counts["never"]), (&2.into(), &3.into(), &0.into()));
}

#[test]
fn what_a_page_says_of_its_trace_is_apart() {
    let dir = tempfile::tempdir().expect("a directory");
    let output = simulate(dir.path(), &[&trace("node"), "-p", "none", "-d", "flash", "--html", "-"]);
    let page = text(&output.stdout);
    assert!(
        page.contains("</p>\n<p>faults of ") && page.contains(" threads are replayed"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn other_runs_teach_what_is_predicted() {
    let dir = tempfile::tempdir().expect("a directory");
    let policies =
        json(dir.path(), &[&trace("node"), "-p", "predicted,aligned:16", "--train", &trace("node")]);
    let hard = |policy: &str| policies["policies"][policy]["hard"].as_u64().expect("a count");
    assert!(hard("predicted") * 10 < hard("aligned:16"), "{policies}");
}

#[test]
fn a_profile_of_the_store_teaches_what_is_predicted() {
    let sandbox = Sandbox::new();
    let replay = |name: &str| {
        let output =
            sandbox.output(&["simulate", "--json", &trace("python"), "-p", "predicted", "--train", name]);
        output.status.success().then(|| support::json(&output)).ok_or_else(|| text(&output.stderr))
    };
    let said = replay("some").expect_err("nothing of this name");
    assert!(said.contains("cannot learn from some: no such file: no profile some in "), "{said}");
    let file = ProfiledFile {
        path: "/usr/bin/python3.11".into(),
        extents: vec![Extent::new(PageRange::new(PageIndex(0), PageIndex(1500)), 0)],
        ..ProfiledFile::default()
    };
    let profile = |role: &str| Profile { role: role.into(), files: vec![file.clone()], ..Profile::default() };
    let store = |nth: u32, role: &str| {
        let path = sandbox.store().join(format!("some-{nth:016x}.profile"));
        fs::create_dir_all(sandbox.store()).expect("made");
        fs::write(path, encode(&profile(role))).expect("written");
    };
    store(1, "some one");
    let policies = replay("some").expect("learned");
    assert!(policies["policies"]["predicted"]["hard"].is_u64(), "{policies}");
    store(2, "some two");
    let said = replay("some").expect_err("two roles");
    assert!(said.contains("2 profiles match") && said.contains("try: name one of them"), "{said}");
    assert!(replay("some two").is_ok() && replay("some-0000000000000001").is_ok());
}

#[test]
fn objects_that_are_not_shown_are_counted() {
    let dir = tempfile::tempdir().expect("a directory");
    let touches: String = (0..25).map(|object| format!("lib{object},1\n")).collect();
    fs::write(dir.path().join("t"), touches).expect("written");
    let shown = simulate(dir.path(), &["--touches", "t", "-p", "none", "--by-object"]);
    assert!(text(&shown.stdout).contains("\n and 5 more (--json has all)\n"), "{}", text(&shown.stdout));
}

#[test]
fn several_profiles_teach_together_in_any_order() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = |name: &str, pages: [u64; 2]| {
        let range = PageRange::new(PageIndex(pages[0]), PageIndex(pages[1]));
        let file = ProfiledFile {
            path: "/usr/bin/python3.11".into(),
            extents: vec![Extent::new(range, 0)],
            ..ProfiledFile::default()
        };
        let profile = Profile { role: name.into(), files: vec![file], ..Profile::default() };
        fs::write(dir.path().join(name), encode(&profile)).expect("written");
    };
    store("low", [0, 700]);
    store("high", [700, 1500]);
    let hard = |trained: &[&str]| {
        let trace = trace("python");
        let mut arguments = vec![trace.as_str(), "-p", "predicted"];
        trained.iter().for_each(|name| arguments.extend(["--train", name]));
        json(dir.path(), &arguments)["policies"]["predicted"]["hard"].as_u64().expect("a count")
    };
    let [low, high] = [hard(&["low"]), hard(&["high"])];
    let both = [hard(&["low", "high"]), hard(&["high", "low"])];
    assert!(both[0] == both[1] && both[0] < low.min(high), "{low} {high} {both:?}");
}

#[test]
fn memory_that_is_too_small_is_as_published() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("t"), "1\n2\n3\n4\n1\n2\n5\n1\n2\n3\n4\n5\n").expect("written");
    let memory = &json(dir.path(), &["--touches", "t", "--memory", "1-5"])["memory"];
    for (rule, faults) in [
        ("fifo", [12, 12, 9, 10, 5]),
        ("lru", [12, 12, 10, 8, 5]),
        ("opt", [12, 9, 7, 6, 5]),
        ("dpmin", [12, 6, 4, 3, 1]),
        ("ws", [12, 12, 10, 8, 7]),
    ] {
        for (size, faults) in (1..).zip(faults) {
            assert_eq!(memory[rule][size.to_string()], faults, "{rule}, {size}");
        }
    }
    for rule in ["clock", "2q", "s3-fifo", "dont-need"] {
        let faults = memory[rule]["3"].as_u64().expect("a count");
        assert!((7..=12).contains(&faults), "{rule}: {faults}");
    }
    let chosen =
        &json(dir.path(), &["--touches", "t", "--memory", "3", "--replacement", "opt,dont-need"])["memory"];
    assert_eq!(chosen.as_object().expect("rules").keys().collect::<Vec<_>>(), ["dont-need", "opt"]);
}

#[test]
fn a_cost_weighs_faults_reads_and_pages() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("t"), "4\n28\n16\n").expect("written");
    let arguments = ["--touches", "t", "--object-pages", "32", "--cost", "fault=1us,io=100us,page=3us"];
    let found = json(dir.path(), &[&arguments[..], &["-p", "around:8:7,aligned:16"]].concat());
    let cost = |policy: &str| found["policies"][policy]["cost_ns"].as_u64().expect("a cost");
    assert_eq!(cost("around:8:7"), 3 * 1000 + 3 * 100_000 + 32 * 3000);
    assert_eq!(cost("aligned:16"), 2 * 1000 + 2 * 100_000 + 32 * 3000);
    let said = text(&simulate(dir.path(), &[&arguments[..], &["--histogram"]].concat()).stdout);
    assert!(said.contains("cost ms") && said.contains("truncated"), "{said}");
}

#[test]
fn the_clusters_of_the_worked_example_are_all_truncated() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("t"), "4\n28\n16\n").expect("written");
    let arguments = ["--touches", "t", "--object-pages", "32", "-p", "around:8:7,aligned:16"];
    let found = json(dir.path(), &arguments);
    let clusters = |policy: &str| found["policies"][policy]["clusters"].clone();
    assert_eq!(clusters("around:8:7"), serde_json::json!({ "8": [0, 1], "12": [0, 2] }));
    assert_eq!(clusters("aligned:16"), serde_json::json!({ "16": [2, 0] }));
    let said = text(&simulate(dir.path(), &[&arguments[..], &["--histogram"]].concat()).stdout);
    assert!(said.contains("0 + 2") && said.contains("2 + 0"), "{said}");
}

/// The worked examples of shadow chains: 20 forks of 8 pages, and 12 of a file of 100.
#[test]
fn scripts_of_forks_copy_as_many_pages_as_worked_out() {
    let dir = tempfile::tempdir().expect("a directory");
    let replayed = |script: String| {
        fs::write(dir.path().join("script"), script).expect("written");
        json(dir.path(), &["--forks", "script"])
    };
    let script = |map: &str, forks: u64, step: &dyn Fn(u64) -> String| {
        let steps = (1..=forks).map(|fork| format!("fork p c{fork}\n{}", step(fork)));
        format!("{map}\n{}", steps.collect::<String>())
    };
    let anonymous = "map p 8\nwrite p all";
    let a = replayed(script(anonymous, 20, &|_| "write p 0\n".to_owned()));
    assert_eq!((&a["copies"], &a["depth_max"]), (&41.into(), &5.into()));
    let at: Vec<_> = a["collapses"]
        .as_array()
        .expect("collapses")
        .iter()
        .map(|one| (&one["after_fork"], &one["copies"]))
        .collect();
    assert_eq!(at, [(&6.into(), &7.into()), (&11.into(), &7.into()), (&16.into(), &7.into())]);
    let b = replayed(script(anonymous, 20, &|_| "write p all\n".to_owned()));
    assert_eq!((&b["collapse_copies"], &b["depth_max"]), (&0.into(), &1.into()));
    assert_eq!(b["collapses"].as_array().expect("collapses").len(), 19);
    let c = replayed(script(anonymous, 20, &|fork| format!("exit c{fork}\nwrite p 0\n")));
    assert_eq!((&c["copies"], &c["depth_max"]), (&0.into(), &0.into()));
    let write = |fork: u64| format!("write p {}\n", fork % 10);
    assert_eq!(replayed(script("map p 100 file", 12, &write))["copies"], 24);
    assert_eq!(replayed(script("map p 100\nwrite p all", 12, &write))["copies"], 210);
    let said = text(&simulate(dir.path(), &["--forks", "script"]).stdout);
    assert!(
        said.starts_with("12 forks; left: 13 processes, and ") && said.contains("collapses after fork"),
        "{said}"
    );
    let refused = simulate(dir.path(), &["--forks", "script", "--runs", "3"]);
    assert!(text(&refused.stderr).contains("cannot be used with '--runs"), "{}", text(&refused.stderr));
    fs::write(dir.path().join("script"), "map p 8\nfork q r\n").expect("written");
    let said = text(&simulate(dir.path(), &["--forks", "script"]).stderr);
    assert!(said.contains("line 2: no process is called `q`"), "{said}");
}

#[test]
fn a_header_that_was_read_is_resident_at_the_start() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("t"), "0\n4\n").expect("written");
    let faults = |more: &[&str]| {
        let arguments = ["--touches", "t", "--object-pages", "32", "-p", "around:8:7"];
        let found = json(dir.path(), &[&arguments[..], more].concat());
        let of = &found["policies"]["around:8:7"];
        [&of["hard"], &of["soft"], &of["read"]].map(|count| count.as_u64().expect("a count"))
    };
    assert_eq!(faults(&[]), [1, 0, 8]);
    assert_eq!(faults(&["--header-read"]), [1, 1, 11]);
}

#[test]
fn entries_keep_the_policy_they_are_advised() {
    let dir = tempfile::tempdir().expect("a directory");
    let touches: String = (0..64).flat_map(|page| [format!("a,{page}\n"), format!("b,{page}\n")]).collect();
    fs::write(dir.path().join("t"), touches).expect("written");
    let found = json(dir.path(), &["--touches", "t", "-p", "none", "--advise", "b=sequential:31"]);
    let hard: Vec<u64> = found["policies"]["none"]["objects"]
        .as_array()
        .expect("objects")
        .iter()
        .map(|object| object["hard"].as_u64().expect("a count"))
        .collect();
    assert_eq!(hard, [64, 2]);
}

#[test]
fn a_file_read_in_strides_tells_its_sweeps_and_its_time_in_faults() {
    let dir = tempfile::tempdir().expect("a directory");
    let arguments = ["--model", "file:stride-256k", "-p", "linux-data:ra=32,map=1", "-d", "hosted"];
    let said = text(&simulate(dir.path(), &arguments).stdout);
    assert!(said.contains("64 sweeps until all are touched") && said.contains("faults ms"), "{said}");
    let found = json(dir.path(), &arguments);
    let times = &found["policies"]["linux-data:ra=32,map=1"]["devices"]["hosted"];
    let number = |name: &str| times[name].as_u64().expect("a number");
    assert_eq!(number("time_ns") - number("fault_ns"), 11_300 * 4096 * 20);
    assert_eq!(found["sweeps"], 64);
}

#[test]
fn a_policy_that_has_learned_nothing_is_a_wrong_command_line() {
    let dir = tempfile::tempdir().expect("a directory");
    let refused = simulate(dir.path(), &[&trace("python"), "-p", "predicted"]);
    let said = text(&refused.stderr);
    assert!(refused.status.code() == Some(2) && said.contains("needs --train FILE"), "{said}");
    // A trace that is there may take long to read.
    let refused = simulate(dir.path(), &["no-such-trace", "-p", "predicted"]);
    let said = text(&refused.stderr);
    assert!(refused.status.code() == Some(2) && said.contains("needs --train FILE"), "{said}");
}
