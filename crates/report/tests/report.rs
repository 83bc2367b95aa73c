//! Reports, exports and comparisons of a small trace of which every figure is known.

use prepage_core::{
    CodePlace, Fault, FaultClass, ImportFacts, Object, ObjectId, PageIndex, Permissions, Stack, StackId,
    Thread, ThreadIndex, Trace, TraceFacts,
};
use prepage_report::export::{Format, Weight, export};
use prepage_report::{By, Column, Diff, Filter, Measure, Options, Report, html, json, text};
use prepage_trace::parquet::{TraceFile, write_trace};
use serde_json::Value;

/// Faults enough for two row groups, so that two workers meet.
const FAULTS: u64 = 300_000;

fn trace(faults: u64) -> Trace {
    let facts = TraceFacts {
        command: vec!["make".into(), "</script><script>alert(1)</script>".into()],
        kernel: "6.18.0".into(),
        duration_ns: FAULTS * 1000,
        lost: 3,
        lost_by_second: vec![(0, 3)],
        ..TraceFacts::default()
    };
    let objects = vec![
        Object::new("/bin/<make>", Some((1, 1))),
        Object::new("/lib/libc.so", Some((1, 2))),
        Object::new("[anon]", None),
    ];
    let thread = |pid, tid, comm: &str| Thread { pid, tid, comm: comm.into() };
    let threads = vec![thread(7, 7, "make"), thread(7, 8, "make"), thread(9, 9, "c;c")];
    let stacks = vec![Stack {
        places: vec![
            CodePlace { object: Some(ObjectId(1)), offset: 16 },
            CodePlace { object: Some(ObjectId(0)), offset: 32 },
        ],
    }];
    let fault = |at: u64| Fault {
        cost_ns: (at % 6 != 5).then_some(1000 + at % 1000),
        object: [Some(ObjectId(0)), Some(ObjectId(1)), Some(ObjectId(2)), None][(at % 4) as usize],
        page: (at % 4 < 2).then_some(PageIndex(at % 100)),
        permissions: Permissions::READ.with(Permissions::PRIVATE),
        stack: at.is_multiple_of(2).then_some(StackId::new(0)),
        code_offset: u64::MAX,
        ip: u64::MAX,
        ..Fault::new(at * 1000, ThreadIndex((at % 3) as u32), at * 4096, FaultClass::ALL[(at % 6) as usize])
    };
    Trace { facts, objects, threads, stacks, faults: (0..faults).map(fault).collect() }
}

fn written(trace: &Trace) -> (tempfile::TempDir, TraceFile) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("t.parquet");
    write_trace(&path, trace).expect("written");
    let file = TraceFile::open(&path).expect("a trace");
    (dir, file)
}

fn read(file: &TraceFile, by: &[By], filter: Filter) -> Report {
    let options = Options { by: by.to_vec(), filter, ..Options::default() };
    Report::read(file, &options).expect("read")
}

#[test]
fn every_grouping_adds_up_to_all_faults_and_all_costs() {
    let trace = trace(FAULTS);
    let (_dir, file) = written(&trace);
    let report = read(&file, &By::ALL, Filter::default());
    let cost_ns: u64 = trace.faults.iter().filter_map(|fault| fault.cost_ns).sum();
    for by in By::ALL {
        let rows = report.grouped(by, usize::MAX).rows;
        assert_eq!(rows.iter().map(|row| row.costs.tally.count).sum::<u64>(), FAULTS, "{by:?}");
        assert_eq!(rows.iter().map(|row| row.costs.tally.cost_ns).sum::<u64>(), cost_ns, "{by:?}");
        assert!(rows.iter().all(|row| row.labels.len() == by.labels().len()), "{by:?}");
    }
    let rows = |by| report.grouped(by, usize::MAX).rows.len();
    assert_eq!(
        [By::Class, By::File, By::Thread, By::Process, By::Comm, By::Stack].map(rows),
        [6, 4, 3, 2, 2, 2]
    );
    for (class, tally) in FaultClass::ALL.iter().zip(&report.classes) {
        let of_class = || trace.faults.iter().filter(|fault| fault.class == *class);
        assert_eq!(tally.tally.count, of_class().count() as u64);
        assert_eq!(tally.tally.cost_ns, of_class().filter_map(|fault| fault.cost_ns).sum::<u64>());
    }
    assert_eq!(report.cost_bins(4).iter().map(|bin| bin.count()).sum::<u64>(), FAULTS * 5 / 6);
    assert!(report.slowest.iter().all(|fault| fault.cost_ns == Some(1999)));
    assert!(report.slowest.is_sorted_by_key(|fault| fault.start_ns), "of equal ones the earliest");
}

/// As of `perf record -e page-faults,minor-faults`, and of `minor-faults` alone.
#[test]
fn nothing_is_said_of_disk_faults_that_were_not_recorded() {
    for both in [true, false] {
        let imported = ImportFacts { disk_unknown: both, major_missing: !both, ..ImportFacts::default() };
        let mut trace = trace(6);
        trace.facts.imported = Some(imported);
        trace.faults[0].class = FaultClass::Unseen;
        let (_dir, file) = written(&trace);
        let report = read(&file, &[By::Class], Filter::default());
        let head = text::facts_lines(&report).join("\n");
        assert!(head.contains("ms for 5 of them") && !head.contains("for the disk"), "{head}");
        let diff = Diff::of(&report, &report);
        assert_eq!(diff.percent(Measure::Disk), None);
        let columns = [Column::Disk, Column::DiskTotal];
        let all = &json::json(&report, &[By::Class], 9, &columns);
        let rows = diff.json(Measure::Count, None);
        for figures in [&all["all"], &all["by"]["class"]["rows"][0], &rows["all"]["before"]] {
            assert_eq!([&figures["disk_count"], &figures["disk_total_ms"]], [&Value::Null; 2], "{figures}");
        }
        let mut table = Vec::new();
        text::grouped(&report, By::File, 9, &columns, None, &mut table).expect("written");
        diff.print(Measure::Count, 9, None, &mut table).expect("written");
        let table = String::from_utf8(table).expect("text");
        let all = table.lines().filter(|line| line.trim_start().starts_with("all ")).collect::<Vec<_>>();
        let [of_report, of_diff] = &all[..] else { panic!("{table}") };
        assert_eq!(of_report.split_whitespace().collect::<Vec<_>>(), ["all", "-", "-"]);
        assert_eq!(
            of_diff.split_whitespace().skip(4).take(3).collect::<Vec<_>>(),
            ["-", "-", "-"],
            "{of_diff}"
        );
    }
}

#[test]
fn percentiles_by_time_are_known_where_they_are_asked_for() {
    let (_dir, file) = written(&trace(FAULTS));
    let by = vec![By::Time];
    let options = Options { by, group_percentiles: true, slices: 7, ..Options::default() };
    let report = Report::read(&file, &options).expect("read");
    let rows = report.grouped(By::Time, usize::MAX).rows;
    assert_eq!(rows.iter().map(|row| row.costs.tally.count).sum::<u64>(), FAULTS);
    for row in rows {
        let [p50, p99] = [50.0, 99.0].map(|percent| row.costs.percentile_ns(percent).expect("known"));
        assert!((1000..p99).contains(&p50) && p99 < 2020, "{p50} {p99}");
    }
}

#[test]
fn costs_beyond_all_reason_are_reported() {
    let mut trace = trace(600);
    trace.faults.iter_mut().for_each(|fault| fault.cost_ns = Some(u64::MAX));
    let (_dir, file) = written(&trace);
    let report = read(&file, &By::ALL, Filter::default());
    let mut out = Vec::new();
    text::overview(&report, None, &mut out).expect("written");
    text::histogram(&report, None, &mut out).expect("written");
    assert!(page(&file).contains("18446744073709"));
    for format in Format::ALL {
        export(&file, &Filter::default(), format, Weight::Cost, &mut out).expect("exported");
    }
}

#[test]
fn costs_that_are_not_known_are_not_0() {
    let mut trace = trace(600);
    trace.faults.iter_mut().for_each(|fault| fault.cost_ns = None);
    let (_dir, file) = written(&trace);
    let report = read(&file, &[By::File], Filter::default());
    for row in report.grouped(By::File, usize::MAX).rows {
        let figures = [Column::Total, Column::DiskTotal, Column::TotalPercent]
            .map(|column| column.text(&row.costs, &report.total(), None));
        assert_eq!(figures, ["-", "-", "-"]);
    }
    let mut overview = Vec::new();
    text::overview(&report, None, &mut overview).expect("written");
    assert!(!String::from_utf8_lossy(&overview).contains("waited"), "{}", String::from_utf8_lossy(&overview));
    let lines = text::facts_lines(&report);
    assert!(
        lines.iter().any(|line| line.ends_with("600 page faults in 300.0 ms; their costs are not known")),
        "{lines:?}"
    );
}

#[test]
fn filters_leave_what_all_of_them_let_pass() {
    let trace = trace(FAULTS);
    let (_dir, file) = written(&trace);
    let filter = Filter {
        classes: vec![FaultClass::Disk, FaultClass::Cached],
        files: vec!["libc".into(), "make".into()],
        comms: vec!["make".into()],
        pids: vec![7],
    };
    let expected = trace.faults.iter().filter(|fault| {
        matches!(fault.class, FaultClass::Disk | FaultClass::Cached)
            && fault.object.is_some_and(|id| id.0 < 2)
            && fault.thread.0 < 2
    });
    let report = read(&file, &[], filter);
    assert_eq!(report.total().tally.count, expected.count() as u64);
    assert_eq!(report.faults_in_file, FAULTS);
}

#[test]
fn memory_of_no_known_mapping_is_filtered_by_the_name_it_has_in_tables() {
    let mut trace = trace(FAULTS);
    trace.faults.iter_mut().step_by(10).for_each(|fault| fault.object = None);
    let (_dir, file) = written(&trace);
    let filter = |name: &str| Filter { files: vec![name.into()], ..Filter::default() };
    let unknown = trace.faults.iter().filter(|fault| fault.object.is_none()).count() as u64;
    assert_eq!(read(&file, &[], filter("[unknown]")).total().tally.count, unknown);
}

#[test]
fn an_empty_trace_is_reported_as_such() {
    let (_dir, file) = written(&Trace::default());
    let report = read(&file, &By::ALL, Filter::default());
    let mut out = Vec::new();
    text::overview(&report, None, &mut out).expect("written");
    assert!(String::from_utf8_lossy(&out).contains("no page faults: the trace holds none"));
    for by in By::ALL {
        text::grouped(&report, by, 5, &Column::ALL, None, &mut out).expect("written");
    }
    text::histogram(&report, None, &mut out).expect("written");
    let value = json::json(&report, &By::ALL, 5, &Column::ALL);
    assert_eq!((&value["all"]["count"], &value["all"]["mean_us"]), (&Value::from(0), &Value::Null));
    assert_eq!(Diff::of(&report, &report).percent(Measure::Total), Some(0.0));
    page(&file);
    for format in Format::ALL {
        export(&file, &Filter::default(), format, Weight::Count, &mut out).expect("exported");
    }
}

fn page(file: &TraceFile) -> String {
    let report = Report::read(file, &html::options(Filter::default())).expect("read");
    let points = html::Points::read(file, &report, 1000).expect("read");
    let mut out = Vec::new();
    html::write(&report, &points, &mut out).expect("written");
    String::from_utf8(out).expect("text")
}

#[test]
fn names_in_a_trace_cannot_become_part_of_the_page() {
    let (_dir, file) = written(&trace(5000));
    let page = page(&file);
    assert!(!page.contains("alert(1)</script>") && !page.contains("<make>"));
    assert!(page.contains("/bin/&lt;make&gt;") && page.contains("3 records lost"));
    assert!(page.contains("one in") && page.contains("Losses by second"));
    // Nothing in it asks for anything else.
    for outside in ["src=", "href=", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
}

#[test]
fn csv_has_a_line_for_each_fault() {
    let trace = trace(20_000);
    let (_dir, file) = written(&trace);
    let filter = Filter { classes: vec![FaultClass::Disk], ..Filter::default() };
    let mut out = Vec::new();
    export(&file, &filter, Format::Csv, Weight::Count, &mut out).expect("exported");
    let text = String::from_utf8(out).expect("text");
    let lines: Vec<&str> = text.lines().collect();
    let disk: Vec<&Fault> = trace.faults.iter().filter(|fault| fault.class == FaultClass::Disk).collect();
    assert_eq!(lines.len(), disk.len() + 1);
    let heading: Vec<&str> = lines[0].split(',').collect();
    for (line, fault) in lines[1..].iter().zip(disk) {
        let cells: Vec<&str> = line.split(',').collect();
        let cell = |name: &str| cells[heading.iter().position(|heading| *heading == name).expect("a column")];
        assert_eq!(cell("start_ns"), fault.start_ns.to_string());
        assert_eq!(cell("address"), fault.address.to_string());
        assert_eq!(cell("cost_ns"), fault.cost_ns.map_or_else(String::new, |ns| ns.to_string()));
        assert_eq!(cell("permissions"), "r--p");
    }
}

#[test]
fn folded_stacks_weigh_faults_or_nanoseconds() {
    let trace = trace(6000);
    let (_dir, file) = written(&trace);
    let lines = |weight| {
        let mut out = Vec::new();
        export(&file, &Filter::default(), Format::Folded, weight, &mut out).expect("exported");
        String::from_utf8(out).expect("text")
    };
    let counts = lines(Weight::Count);
    assert!(counts.contains("make;[<make>];[libc.so] 2000\n"), "outermost first: {counts}");
    assert!(counts.contains("c:c;[kernel] 1000\n"), "a name cannot end a frame: {counts}");
    let sum = |text: &str| -> u64 {
        text.lines()
            .map(|line| line.rsplit(' ').next().expect("a weight").parse::<u64>().expect("a number"))
            .sum()
    };
    assert_eq!(sum(&counts), 6000);
    assert_eq!(sum(&lines(Weight::Cost)), trace.faults.iter().filter_map(|fault| fault.cost_ns).sum::<u64>());
}

#[test]
fn firefox_profiles_have_a_marker_and_a_sample_for_each_fault() {
    let (_dir, file) = written(&trace(600));
    let mut out = Vec::new();
    export(&file, &Filter::default(), Format::Firefox, Weight::Count, &mut out).expect("exported");
    let profile: Value = serde_json::from_slice(&out).expect("JSON");
    // https://github.com/firefox-devtools/profiler/blob/main/src/types/profile.ts
    assert!(profile["meta"]["preprocessedProfileVersion"].as_u64() > Some(40));
    assert_eq!(profile["meta"]["markerSchema"][0]["name"], "PageFault");
    let threads = profile["threads"].as_array().expect("threads");
    assert_eq!(threads.len(), 3);
    for thread in threads {
        let (markers, samples) = (&thread["markers"], &thread["samples"]);
        assert_eq!((&markers["length"], &samples["length"]), (&Value::from(200), &Value::from(200)));
        for column in ["name", "startTime", "endTime", "phase", "category", "data"] {
            assert_eq!(markers[column].as_array().expect(column).len(), 200, "{column}");
        }
        let intervals: Vec<usize> = (0..200).filter(|&at| markers["phase"][at] == 1).collect();
        assert!(intervals.len() >= 100);
        for at in intervals {
            let [start, end] =
                ["startTime", "endTime"].map(|column| markers[column][at].as_f64().expect("a time"));
            assert!((0.000_9..0.002_1).contains(&(end - start)), "milliseconds: {start} to {end}");
        }
    }
}

/// Of two processes: one with a thread of another name, which takes the last fault, and one that a shell began.
fn named_processes() -> Trace {
    let thread = |pid, tid, comm: &str| Thread { pid, tid, comm: comm.into() };
    let threads =
        vec![thread(7, 7, "java"), thread(7, 8, "GC Thread#0"), thread(9, 9, "sh"), thread(9, 9, "ls")];
    let fault = |at: u64| Fault {
        cost_ns: Some(1000 * (1 + at)),
        ..Fault::new(at * 1000, ThreadIndex(at as u32), at * 4096, FaultClass::ZeroFill)
    };
    let facts = TraceFacts { duration_ns: 10_000, ..TraceFacts::default() };
    Trace { facts, threads, faults: [0, 2, 1, 3].map(fault).into(), ..Trace::default() }
}

#[test]
fn a_process_has_the_name_of_its_first_thread() {
    let (_dir, file) = written(&named_processes());
    let processes = read(&file, &[By::Process], Filter::default()).grouped(By::Process, 9);
    let names: Vec<String> = processes.rows.iter().map(|row| row.labels[0].to_string()).collect();
    assert_eq!(names, ["ls, sh", "java"]);
    let exported = |format| {
        let mut out = Vec::new();
        export(&file, &Filter::default(), format, Weight::Count, &mut out).expect("exported");
        out
    };
    let profile: Value = serde_json::from_slice(&exported(Format::Firefox)).expect("JSON");
    let of_threads = profile["threads"].as_array().expect("threads").iter();
    let mut names: Vec<&str> =
        of_threads.map(|thread| thread["processName"].as_str().expect("a name")).collect();
    names.sort_unstable();
    assert_eq!(names, ["java", "java", "ls"]);
    // Field 6 of a process: the name, after its length.
    let perfetto = exported(Format::Perfetto);
    let has = |name: &[u8]| perfetto.windows(name.len()).any(|window| window == name);
    assert!(has(b"\x32\x04java") && has(b"\x32\x02ls") && !has(b"\x32\x02sh"));
}

#[test]
fn what_was_recorded_without_a_command_is_named() {
    let of = |facts: TraceFacts| {
        let (_dir, file) = written(&Trace { facts, ..trace(100) });
        let report = read(&file, &[], Filter::default());
        let mut out = Vec::new();
        text::overview(&report, None, &mut out).expect("printed");
        (String::from_utf8(out).expect("text"), page(&file))
    };
    for (facts, subject) in [
        (TraceFacts { pids: vec![12], ..TraceFacts::default() }, "process 12"),
        (TraceFacts { pids: vec![12, 34], ..TraceFacts::default() }, "processes 12, 34"),
        (TraceFacts { system_wide: true, ..TraceFacts::default() }, "every process of the machine"),
    ] {
        let (overview, page) = of(facts);
        assert!(overview.starts_with(&format!("{subject}\n100 page faults")), "{overview}");
        assert!(page.contains(&format!("<h1>{subject}</h1>")), "{subject}");
        assert!(page.contains(&format!("<footer>{subject} · ")), "{subject}");
    }
}

#[test]
fn a_difference_is_told_by_class_and_file() {
    let (_dir, before) = written(&trace(6000));
    let (_dir, after) = written(&trace(9000));
    let [before, after] = [&before, &after].map(|file| read(file, &[], Filter::default()));
    let diff = Diff::of(&before, &after);
    assert_eq!(diff.percent(Measure::Count), Some(50.0));
    assert_eq!(diff.percent(Measure::Disk), Some(50.0));
    let better = Diff::of(&after, &before);
    assert!((better.percent(Measure::Count).expect("known") + 33.33).abs() < 0.01);
    assert_eq!((diff.classes.len(), diff.files.len()), (6, 4));
    let value = diff.json(Measure::Count, Some(20.0));
    assert_eq!((&value["worse"], &value["worse_percent"]), (&true.into(), &50.0.into()));
}

/// As each container has its own.
#[test]
fn files_of_one_path_are_one_row_that_says_how_many() {
    let mut trace = trace(12);
    trace.objects[1].path = "/bin/<make>".into();
    let (_dir, file) = written(&trace);
    let report = read(&file, &[By::Mapping], Filter::default());
    let json = json::json(&report, &[By::File, By::Mapping], 9, &[Column::Count]);
    for by in [By::File, By::Mapping] {
        let mut out = Vec::new();
        text::grouped(&report, by, 9, &[Column::Count], None, &mut out).expect("written");
        let said = String::from_utf8(out).expect("text");
        assert_eq!(said.matches(" files)").count(), 1, "{said}");
        assert!(said.contains("/bin/<make> (2 files)"), "{said}");
        let rows = json["by"][by.name()]["rows"].as_array().expect("rows");
        let of = |path: &str| &rows.iter().find(|row| row["file"] == path).expect("there")["files"];
        assert_eq!((of("/bin/<make>"), of("[anon]")), (&2.into(), &Value::Null));
    }
}

#[test]
fn a_trace_of_the_first_format_without_the_later_columns_is_reported() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../trace/tests/fixtures/format-1-first.trace");
    let file = TraceFile::open(path.as_ref()).expect("a trace");
    let report = read(&file, &By::ALL, Filter::default());
    assert_eq!(report.total().tally.count, file.faults());
    assert_eq!(report.grouped(By::Stack, 9).rows.len(), 1, "no stacks");
    assert!(report.grouped(By::File, 99).rows.len() > 1 && !report.grouped(By::Code, 99).rows.is_empty());
}

#[test]
fn nameless_levels_of_the_same_code_are_one_and_stacks_stand_last() {
    let mut trace = trace(10);
    let place = |object, offset| CodePlace { object: Some(ObjectId(object)), offset };
    trace.stacks[0].places = vec![place(2, 1), place(2, 2), place(1, 3), place(2, 4)];
    let (_dir, file) = written(&trace);
    let report = read(&file, &[By::Stack], Filter::default());
    let mut out = Vec::new();
    text::grouped(&report, By::Stack, 9, &[Column::Count], None, &mut out).expect("written");
    let said = String::from_utf8(out).expect("text");
    let lines: Vec<&str> = said.lines().map(str::trim).collect();
    assert!(lines[0].ends_with("count  stack"), "{said}");
    assert!(lines.contains(&"5  [anon] < [libc.so] < [anon]") && lines.contains(&"5  [no stack]"), "{said}");
    assert_eq!(lines.last(), Some(&"10  all"), "{said}");
}
