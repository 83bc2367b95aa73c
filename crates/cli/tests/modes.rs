//! `prepage bench modes`, `sweep` and `yardstick` on a small real program: every way to start it, and the library that maps
//! pages ahead.

mod support;

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard};

use prepage_sys::sync::Anyway;
use serde_json::Value;
use support::{Sandbox, can_learn, is_root, json, make_old, text};

/// Cold starts of the same small program, linked with the same libraries: one test would bring in what another has just evicted.
static CACHES: Mutex<()> = Mutex::new(());

fn caches() -> MutexGuard<'static, ()> {
    CACHES.lock().anyway()
}

/// Builds `crates/bench/preload` into the sandbox.
fn library(sandbox: &Sandbox) -> PathBuf {
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/../bench/preload");
    let library = sandbox.path().join("early-fault.so");
    let built = Command::new("cc")
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"])
        .args([
            library.to_str().unwrap().into(),
            format!("{sources}/early_fault.c"),
            format!("{sources}/advise_random.c"),
        ])
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", text(&built.stderr));
    library
}

/// A program with pages of .bss that it touches: 64 pages of 1 MiB.
fn program(sandbox: &Sandbox) -> PathBuf {
    let source = "static char zeros[1 << 20];\n\
         int main(void) { for (int at = 0; at < 1 << 20; at += 1 << 14) zeros[at] = 1; return 0; }\n";
    compiled(sandbox, "program", source)
}

fn compiled(sandbox: &Sandbox, name: &str, source: &str) -> PathBuf {
    let (source_path, program) = (sandbox.path().join(name).with_extension("c"), sandbox.path().join(name));
    std::fs::write(&source_path, source).unwrap();
    let built = Command::new("cc").arg("-o").args([&program, &source_path]).output().unwrap();
    assert!(built.status.success(), "{}", text(&built.stderr));
    program
}

#[test]
fn the_program_starts_in_every_mode_and_what_is_mapped_ahead_is_no_fault_any_more() {
    let _caches = caches();
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) {
        return;
    }
    let (library, program) = (library(&sandbox), program(&sandbox));
    let trace = sandbox.path().join("io.csv");
    let [library, traced, program] = [&library, &trace, &program].map(|path| path.to_str().unwrap());
    let measured = || {
        let options = ["bench", "modes", "-n", "1", "--json", "--library", library, "--io-trace", traced];
        let output = sandbox.output(&[&options[..], &["--", program]].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        json(&output)
    };
    // On a busy machine who watches the disk may get no processor for long.
    let has_seen_all =
        |report: &Value| report["ways"].as_array().unwrap().iter().all(|way| way["lost_records"] == 0);
    let seen = (0..3).map(|_| measured()).find(has_seen_all);
    let report = seen.expect("no reads of the disk that nobody has seen");
    let ways = report["ways"].as_array().unwrap();
    let names: Vec<&str> = ways.iter().map(|way| way["name"].as_str().unwrap()).collect();
    let modes = ["async", "sync", "slurp", "slurp-async"];
    let early = modes.map(|mode| format!("{mode}, early fault"));
    let expected: Vec<&str> =
        ["plain", "prepage run"].into_iter().chain(modes).chain(early.iter().map(String::as_str)).collect();
    assert_eq!(names, expected);
    for way in ways {
        let name = &way["name"];
        let maps_ahead = name.as_str().unwrap().ends_with("early fault");
        let start = &way["starts"][0];
        assert!(start["wall_ns"].as_u64() > Some(0) && start["cpu_ns"].as_u64() > Some(0), "{name}");
        let phases = &start["phases"];
        let is_ahead = *name != "plain" && *name != "prepage run";
        for phase in ["profile_read_ns", "reads_started_ns", "reads_done_ns"] {
            assert_eq!(phases[phase].as_u64() > Some(0), is_ahead, "{name}: {phase}");
        }
        assert_eq!(phases["mapping_ns"].as_u64() > Some(0), maps_ahead, "{name}");
        // The program touches 64 pages of .bss. Mapped ahead, it takes none of these faults, but some of the library's own.
        let avoided = way["avoided"]["zero_fill_faults"].as_i64().unwrap();
        assert_eq!(avoided >= 40, maps_ahead, "{name}: {avoided} zero-fill faults avoided");
        assert_eq!(start["mapped"]["zero_pages"].as_u64() >= Some(256), maps_ahead, "{name}");
        assert_eq!(start["mapped"]["file_pages"].as_u64() > Some(0), maps_ahead, "{name}");
    }
    if !is_root() {
        return;
    }
    for way in ways {
        let counted = &way["counted"];
        let has_calls = counted["prefetch_system_calls"].as_u64() > Some(0);
        assert_eq!(has_calls, counted["prefetched_pages"].as_u64() > Some(0), "{way}");
    }
    let trace = std::fs::read_to_string(trace).unwrap();
    let of = |way: &str, phase: &str| {
        trace.lines().filter(|line| line.starts_with(&format!("{way},{phase},"))).count()
    };
    assert!(of("plain", "program") > 0 && of("plain", "prefetch") == 0, "{trace}");
    assert!(of("sync", "prefetch") > 0, "{trace}");
}

#[test]
fn a_sweep_tries_every_combination() {
    let _caches = caches();
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) {
        return;
    }
    let (program, data) = (program_of_holes(&sandbox), sandbox.path().join("data"));
    std::fs::write(&data, vec![1; 128 << 12]).unwrap();
    make_old(&data);
    let options = ["bench", "sweep", "-n", "1", "--json", "--readers", "1,16", "--holes", "0,4", "--"];
    let command = [program.to_str().unwrap(), data.to_str().unwrap()];
    let is_all_asked_for = |_| {
        let output = sandbox.output(&[&options[..], &command].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        let report = json(&output);
        let points = report["points"].as_array().unwrap();
        assert_eq!(points.len(), 1 + 2 * 2);
        assert!(points.iter().all(|point| point["wall_ms"][0].as_f64() > Some(0.0)), "{report}");
        assert_eq!(points[4]["readers_and_holes"], serde_json::json!([16, 4]));
        let asked: Vec<u64> =
            points.iter().map(|point| point["requested_pages"][0].as_u64().unwrap()).collect();
        eprintln!("{asked:?}");
        let [none, exact, over, exact_by_many, over_by_many] = asked[..] else { panic!("{asked:?}") };
        // Each read has 32 pages at most: four of them with seven holes of three pages each.
        (none, exact, over) == (0, exact_by_many, over_by_many) && over >= exact + 4 * 7 * 3
    };
    // On a busy machine the program may end before all is read ahead.
    assert!((0..5).any(is_all_asked_for));
}

/// A program that uses every fourth page of a file, and then runs on until all of it can have been read ahead.
fn program_of_holes(sandbox: &Sandbox) -> PathBuf {
    compiled(
        sandbox,
        "holes",
        r#"#include <fcntl.h>
        #include <sys/mman.h>
        #include <unistd.h>
        int main(int count, char **words) {
            int sum = 0, fd = open(words[count - 1], O_RDONLY);
            volatile char *mapped = mmap(0, 128 << 12, PROT_READ, MAP_PRIVATE, fd, 0);
            if (mapped == MAP_FAILED) return 2;
            for (int page = 0; page < 128; page += 4) sum += mapped[page << 12];
            usleep(500000);
            return sum != 32;
        }"#,
    )
}

/// A program that fails unless its own code and what it maps are advised (VM_RAND_READ) if PREPAGE_ADVISE_RANDOM is set, and
/// not advised if it is not.
fn advised_program(sandbox: &Sandbox) -> PathBuf {
    compiled(
        sandbox,
        "advised",
        r#"#include <fcntl.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <string.h>
        #include <sys/mman.h>
        int main(int count, char **words) {
            int advised = 0, known = 0, ours = 0;
            char line[4096];
            int fd = open(words[count - 1], O_RDONLY);
            void *mapped = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
            if (mapped == MAP_FAILED) return 2;
            FILE *maps = fopen("/proc/self/smaps", "r");
            while (fgets(line, sizeof line, maps)) {
                unsigned long start, end;
                if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
                    ours = (start <= (unsigned long)mapped && (unsigned long)mapped < end)
                        || (start <= (unsigned long)main && (unsigned long)main < end);
                else if (ours && !strncmp(line, "VmFlags:", 8))
                    known++, advised += strstr(line, " rr") != NULL;
            }
            return known == 2 && advised == (getenv("PREPAGE_ADVISE_RANDOM") ? 2 : 0) ? 0 : 3;
        }"#,
    )
}

#[test]
fn a_sweep_has_the_program_read_without_read_ahead_where_that_is_asked_for() {
    let _caches = caches();
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) {
        return;
    }
    let (library, program) = (library(&sandbox), advised_program(&sandbox));
    let (library, program) = (library.to_str().unwrap(), program.to_str().unwrap());
    let mapped = sandbox.path().join("advised.c");
    let options = ["bench", "sweep", "-n", "1", "--json", "--readers", "1", "--holes", "0"];
    let output = sandbox.output(
        &[
            &options[..],
            &["--read-ahead", "random", "--library", library, "--", program, mapped.to_str().unwrap()],
        ]
        .concat(),
    );
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report = json(&output);
    let points = report["points"].as_array().unwrap();
    assert_eq!(points.len(), 2);
    assert!(
        points.iter().all(|point| point["advised_random"] == true && point["read_ahead_kib"].is_null()),
        "{report}"
    );
    let wrong = sandbox.output(&["bench", "sweep", "--read-ahead", "0:at-random", "--", "true"]);
    assert!(text(&wrong.stderr).contains("neither SIZE, SIZE:random nor random"), "{}", text(&wrong.stderr));
}

#[test]
fn a_program_that_fails_or_is_missing_is_told_and_not_measured() {
    let sandbox = Sandbox::new();
    let missing = sandbox.output(&["bench", "modes", "--", "no-such-program"]);
    assert_eq!(missing.status.code(), Some(127), "{}", text(&missing.stderr));
    if !can_learn(&sandbox) {
        return;
    }
    let failing = sandbox.output(&["bench", "modes", "-n", "1", "--", "false"]);
    assert_eq!(failing.status.code(), Some(125));
    assert!(text(&failing.stderr).contains("failed"), "{}", text(&failing.stderr));
}

#[test]
fn the_yardstick_writes_a_profile_and_passes_the_exit_code_on() {
    let _caches = caches();
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) {
        return;
    }
    let learned = |path: &str| {
        let mut command = sandbox.prepage(&["bench", "yardstick", "--", "sh", "-c", "exit 7"]);
        let output = command.env("PATH", path).output().unwrap();
        assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains("pages"));
        assert_eq!(sandbox.profiles().len(), 1);
        text(&output.stderr).rsplit_once(", ").unwrap().1.to_owned()
    };
    // Where it looks for sh itself is no name of the program's.
    let names = learned("/usr/bin:/bin");
    assert!(names.contains("names"), "{names}");
    assert_eq!(learned("/no/such/place:/no/other/place:/usr/bin:/bin"), names);
    // A link in front of it is no part of the program.
    let links = sandbox.path().join("links");
    std::fs::create_dir(&links).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_prepage"), links.join("sh")).unwrap();
    assert_eq!(learned(&format!("{}:/usr/bin:/bin", links.display())), names);
}
