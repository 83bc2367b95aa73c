//! Files that the real perf wrote, whole and damaged.
#![cfg(feature = "import")]

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use prepage_core::random::SplitMix;
use prepage_core::{Fault, FaultClass, Missing, Trace};
use prepage_testing::{Need, has};
use prepage_trace::import::{ImportError, Importer};

mod support;

/// What perf records of `command` with `options`; `None`, counted as a skip, where there is no perf or it may record
/// nothing.
fn record(dir: &Path, options: &[&str], command: &[&str]) -> Option<PathBuf> {
    if !has(Need::Tool("perf".into())) || !support::may_record() {
        return None;
    }
    let path = dir.join("perf.data");
    let mut perf = Command::new("perf");
    perf.args(["record", "-q", "-o"]).arg(&path).args(options).arg("--").args(command);
    let output = perf.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(path)
}

fn import(path: &Path) -> Result<(Vec<Fault>, Trace), ImportError> {
    let mut importer = Importer::open(path)?;
    let mut faults = Vec::new();
    while importer.next_faults(&mut faults)? {}
    Ok((faults, importer.finish()))
}

/// How many samples of `event` perf itself finds in the file.
fn samples(path: &Path, event: &str) -> usize {
    let output = Command::new("perf").args(["script", "-F", "event", "-i"]).arg(path).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().filter(|line| line.trim().trim_end_matches(':') == event).count()
}

const ALL: [&str; 5] = ["-e", "page-faults,minor-faults,major-faults", "-c", "1", "-d"];

#[test]
fn all_three_events_give_every_fault_its_class_and_cost() {
    let dir = tempfile::tempdir().unwrap();
    let Some(path) = record(dir.path(), &ALL, &["sh", "-c", "ls / | cat"]) else { return };
    let (faults, imported) = import(&path).unwrap();
    assert_eq!(faults.len(), samples(&path, "page-faults"));
    assert!(faults.len() > 100, "{}", faults.len());
    let disk = faults.iter().filter(|fault| fault.class == FaultClass::Disk).count();
    assert_eq!(disk, samples(&path, "major-faults"));
    let timed = faults.iter().filter(|fault| fault.cost_ns.is_some_and(|cost_ns| cost_ns > 0)).count();
    assert!(timed * 100 >= faults.len() * 98, "{timed} of {} have a cost", faults.len());
    let facts = &imported.facts;
    let from = facts.imported.as_ref().unwrap();
    assert!(from.tool.starts_with("perf ") && !from.disk_unknown && from.sampled.is_none(), "{from:?}");
    assert_eq!(from.events, ["page-faults", "minor-faults", "major-faults"]);
    assert!(facts.command.iter().any(|word| word == "ls / | cat"), "{:?}", facts.command);
    assert_eq!(facts.kernel, rustix::system::uname().release().to_string_lossy());
    assert!(facts.execs >= 3 && facts.duration_ns > 0 && facts.lost == 0, "{facts:?}");
    // Pages of libc, with what the mapping allowed and whose code touched them.
    let libc = |fault: &&Fault| {
        let object = fault.object.map(|id| &imported.objects[id.0 as usize]);
        object.is_some_and(|object| object.path.contains("libc.so") && object.is_file())
    };
    let in_libc: Vec<&Fault> = faults.iter().filter(libc).collect();
    assert!(!in_libc.is_empty());
    let size = fs::metadata(&imported.objects[in_libc[0].object.unwrap().0 as usize].path).unwrap().len();
    assert!(in_libc.iter().all(|fault| fault.page.is_some_and(|page| page.offset_bytes() < size)));
    assert!(in_libc.iter().any(|fault| fault.permissions.to_string() == "r-xp"));
    assert!(faults.iter().filter(|fault| fault.code.is_some()).count() * 2 > faults.len());
    assert!(
        faults.iter().map(|fault| fault.thread).all(|thread| (thread.0 as usize) < imported.threads.len())
    );
    assert!(
        ["sh", "ls", "cat"].iter().all(|name| imported.threads.iter().any(|thread| thread.comm == *name))
    );
}

#[test]
fn the_build_id_is_that_of_the_file_that_perf_saw() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("program");
    prepage_testing::copy_program("/bin/true", &program);
    let program = program.to_str().unwrap();
    let Some(path) = record(dir.path(), &ALL, &[program]) else { return };
    let imported = || {
        let (_, trace) = import(&path).unwrap();
        trace.objects.into_iter().find(|object| object.path == program).unwrap().build_id.unwrap()
    };
    let recorded = imported();
    // Written in place: the inode stays.
    let mut bytes = fs::read(program).unwrap();
    let id = recorded.as_bytes();
    let at = bytes.windows(id.len()).position(|window| window == id).unwrap();
    bytes[at] ^= 1;
    fs::write(program, bytes).unwrap();
    assert_eq!(imported(), recorded);
}

#[test]
fn page_faults_alone_are_counted_and_said_to_be_less() {
    let dir = tempfile::tempdir().unwrap();
    let options = ["-e", "page-faults", "-c", "1", "-d", "-g"];
    let Some(path) = record(dir.path(), &options, &["ls", "/"]) else { return };
    let (faults, imported) = import(&path).unwrap();
    assert_eq!(faults.len(), samples(&path, "page-faults"));
    assert!(faults.iter().all(|fault| fault.cost_ns.is_none() && fault.class != FaultClass::Disk));
    assert!(imported.facts.imported.as_ref().unwrap().disk_unknown);
    let stacks: Vec<_> = faults.iter().filter_map(|fault| fault.stack).collect();
    assert!(stacks.len() * 2 > faults.len(), "{} of {} have a stack", stacks.len(), faults.len());
    assert!(stacks.iter().all(|id| id.index() < imported.stacks.len()));
}

#[test]
fn ends_of_faults_alone_keep_their_calls() {
    let dir = tempfile::tempdir().unwrap();
    let options = ["-e", "minor-faults,major-faults", "-c", "1", "-d", "-g"];
    let Some(path) = record(dir.path(), &options, &["ls", "/"]) else { return };
    let (faults, imported) = import(&path).unwrap();
    assert_eq!(faults.len(), samples(&path, "minor-faults") + samples(&path, "major-faults"));
    assert!(faults.iter().all(|fault| fault.cost_ns.is_none() && fault.class != FaultClass::Failed));
    assert!(imported.facts.imported.as_ref().unwrap().costs_unknown);
    let stacks = faults.iter().filter(|fault| fault.stack.is_some()).count();
    assert!(stacks * 2 > faults.len(), "{stacks} of {} have a stack", faults.len());
}

#[test]
fn events_of_one_kind_of_fault_lack_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let facts = |events: &str| {
        let path = record(dir.path(), &["-e", events, "-c", "1", "-d"], &["ls", "/"])?;
        Some(import(&path).unwrap().1.facts)
    };
    let Some(both) = facts("minor-faults,major-faults") else { return };
    assert_eq!(both.missing(), [Missing::Costs]);
    for (event, gap) in [("minor-faults", Missing::MajorFaults), ("major-faults", Missing::MinorFaults)] {
        let alone = facts(event).unwrap();
        assert_eq!(alone.unequal_gaps(&both), std::slice::from_ref(&gap), "{event}");
        assert_eq!(alone.missing(), [gap, Missing::Costs]);
    }
}

#[test]
fn events_of_the_program_alone_hide_faults_in_system_calls() {
    let dir = tempfile::tempdir().unwrap();
    let events = ["-e", "page-faults:u,minor-faults:u,major-faults:u", "-c", "1", "-d"];
    let Some(path) = record(dir.path(), &events, &["ls", "/"]) else { return };
    let (_, imported) = import(&path).unwrap();
    assert_eq!(imported.facts.missing(), [Missing::SystemCalls]);
    let Some(path) = record(dir.path(), &ALL, &["ls", "/"]) else { return };
    let hidden = import(&path).unwrap().1.facts.system_calls_hidden;
    assert!(!hidden || rustix::process::geteuid().as_raw() != 0);
}

#[test]
fn events_that_are_only_counted_have_no_samples() {
    let dir = tempfile::tempdir().unwrap();
    let events = ["-e", "{page-faults,minor-faults,major-faults}:S", "-c", "1", "-d"];
    let Some(path) = record(dir.path(), &events, &["ls", "/"]) else { return };
    let (faults, imported) = import(&path).unwrap();
    assert_eq!(faults.len(), samples(&path, "page-faults"));
    assert!(faults.iter().all(|fault| fault.class != FaultClass::Unseen));
    let from = imported.facts.imported.unwrap();
    assert_eq!((from.events.as_slice(), from.sampled), (&["page-faults".to_owned()][..], None));
    assert!(from.disk_unknown && from.costs_unknown);
}

#[test]
fn faults_that_perf_was_told_to_leave_out_are_missing() {
    let dir = tempfile::tempdir().unwrap();
    let kernel = ["-e", "page-faults:k,minor-faults:k,major-faults:k", "-c", "1", "-d"];
    if let Some(path) = record(dir.path(), &kernel, &["ls", "/"]) {
        assert_eq!(import(&path).unwrap().1.facts.missing(), [Missing::OutsideSystemCalls]);
    }
    let alone = [&["-i"][..], &ALL].concat();
    let Some(path) = record(dir.path(), &alone, &["sh", "-c", "ls / | cat"]) else { return };
    assert_eq!(import(&path).unwrap().1.facts.missing(), [Missing::Descendants]);
    let pid = std::process::id().to_string();
    let of_running = [&alone[..], &["-p", &pid]].concat();
    let path = record(dir.path(), &of_running, &["sleep", "0.2"]).unwrap();
    let facts = import(&path).unwrap().1.facts;
    assert!(facts.missing().contains(&Missing::Descendants) && facts.is_of_running(), "{facts:?}");
}

/// Nothing in the file but the command line says so.
#[test]
fn a_time_or_what_ran_outside_a_group_that_perf_left_out_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let late = [&["-D", "10"][..], &ALL].concat();
    // Behind the moment at which perf begins, though it may get no processor for a while.
    let command = ["sh", "-c", "sleep 3; ls /"];
    let Some(path) = record(dir.path(), &late, &command) else { return };
    let missing = import(&path).unwrap().1.facts.missing();
    assert_eq!(missing, [Missing::Limited { options: vec!["-D 10".into()] }]);
    if !has(Need::Root) {
        return;
    }
    let group = [&["-a"][..], &ALL, &["-G", "/,/,/"]].concat();
    let Some(path) = record(dir.path(), &group, &["ls", "/"]) else { return };
    let limited = Missing::Limited { options: vec!["-G /,/,/".into()] };
    assert!(import(&path).unwrap().1.facts.missing().contains(&limited));
}

/// A ring that is written over keeps the last records, and no record says what was there before.
#[test]
fn records_that_perf_wrote_over_are_missing() {
    let dir = tempfile::tempdir().unwrap();
    let latest = [&["--overwrite", "-m", "1"][..], &ALL].concat();
    let Some(path) = record(dir.path(), &latest, &["sh", "-c", "ls /; ls /; ls /"]) else { return };
    assert_eq!(import(&path).unwrap().1.facts.missing(), [Missing::Overwritten]);
}

/// What the rest of the processors did is missing, though each of perf's own counts is right.
#[test]
fn processors_that_perf_did_not_watch_are_missing() {
    if !has(Need::Root) {
        return;
    }
    let others = prepage_sys::perf::online_cpus().unwrap().len() as u64 - 1;
    let dir = tempfile::tempdir().unwrap();
    let one = [&["-C", "0"][..], &ALL].concat();
    let Some(path) = record(dir.path(), &one, &["ls", "/"]) else { return };
    let missing = |path| {
        let mut missing = import(path).unwrap().1.facts.missing();
        // A busy machine is too fast for perf.
        missing.retain(|gap| !matches!(gap, Missing::Lost { .. }));
        missing
    };
    assert_eq!(missing(&path), (others > 0).then_some(Missing::Processors { unwatched: others }).as_slice());
    let all = [&["-a"][..], &ALL].concat();
    let Some(path) = record(dir.path(), &all, &["ls", "/"]) else { return };
    assert_eq!(missing(&path), []);
}

/// perf notes what its rings lost when it finds that out, and what an event lost altogether at the end.
#[test]
fn what_was_lost_is_counted_once() {
    const LOST: u32 = 2;
    const EXIT: u32 = 4;
    const LOST_SAMPLES: u32 = 13;
    let dir = tempfile::tempdir().unwrap();
    let Some(path) = record(dir.path(), &ALL, &["sh", "-c", "ls /; ls /; ls /"]) else { return };
    let mut bytes = fs::read(&path).unwrap();
    let word = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let (mut at, end) = (word(&bytes, 40) as usize, (word(&bytes, 40) + word(&bytes, 48)) as usize);
    let mut exits = Vec::new();
    while at < end {
        let size = u16::from_le_bytes(bytes[at + 6..at + 8].try_into().unwrap());
        exits.extend((bytes[at..at + 4] == EXIT.to_le_bytes()).then_some(at));
        at += usize::from(size);
    }
    // In place of exits: the numbers lie before the times that all records end with.
    for (&at, (kind, words)) in exits.iter().zip([(LOST, [7, 5]), (LOST_SAMPLES, [8, 0]), (LOST, [7, 2])]) {
        bytes[at..at + 4].copy_from_slice(&kind.to_le_bytes());
        bytes[at + 8..at + 24].copy_from_slice(words.map(u64::to_le_bytes).as_flattened());
    }
    fs::write(&path, bytes).unwrap();
    let facts = import(&path).unwrap().1.facts;
    // Whose end was lost need not have run on.
    assert_eq!((facts.lost, facts.survivors), (8, 0));
    // The second is known of what the kernel's notes tell.
    assert_eq!(facts.lost_by_second.iter().map(|(_, records)| records).sum::<u64>(), 7);
    assert!(facts.lost_by_second.iter().all(|(second, _)| *second <= facts.duration_ns / 1_000_000_000));
}

/// The first of its threads to end takes nothing from the others.
#[test]
fn a_running_process_keeps_its_files_when_a_thread_ends() {
    if !has(Need::Tool("perf".into())) || !has(Need::Tool("python3".into())) || !support::may_record() {
        return;
    }
    let script = "
import mmap, sys, threading
end = threading.Event()
thread = threading.Thread(target=end.wait, daemon=True)
thread.start()
file = open(sys.argv[1])
mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
print(flush=True)
sys.stdin.readline()
end.set()
thread.join()
sum(mapped[at] for at in range(0, len(mapped), 4096))
";
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = dir.path().join("file");
    fs::write(&file, vec![1; 8 << 20]).unwrap();
    let keeps_its_files = |_| {
        let mut python = Command::new("python3")
            .args(["-c", script])
            .arg(&file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        python.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
        let path = dir.path().join("perf.data");
        let mut perf = Command::new("perf");
        perf.args(["record", "-q", "-o"]).arg(&path).args(ALL).args(["-p", &python.id().to_string()]);
        let mut perf = perf.spawn().unwrap();
        // perf enables its events a moment after it has opened them; on a busy machine a longer one.
        let is_event = |entry: fs::DirEntry| {
            fs::read_link(entry.path()).is_ok_and(|link| link.to_string_lossy().contains("perf_event"))
        };
        while !fs::read_dir(format!("/proc/{}/fd", perf.id())).unwrap().flatten().any(is_event) {
            assert!(perf.try_wait().unwrap().is_none(), "perf failed");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        std::thread::sleep(std::time::Duration::from_secs(1));
        python.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert!(python.wait().unwrap().success());
        perf.wait().unwrap();
        let (faults, imported) = import(&path).unwrap();
        let is_of_file = |fault: &Fault| {
            fault.object.is_some_and(|id| imported.objects[id.0 as usize].path.ends_with("/file"))
        };
        // Few, where the page cache holds the file in large folios.
        faults.iter().any(is_of_file)
    };
    assert!((0..5).any(keeps_its_files));
}

/// Only what a command started is missing when it runs on; the rest of the machine always does.
#[test]
fn what_ran_before_may_run_on() {
    let dir = tempfile::tempdir().unwrap();
    let command = ["sh", "-c", "sleep 20 >/dev/null 2>&1 </dev/null & ls /"];
    let Some(path) = record(dir.path(), &ALL, &command) else { return };
    assert!(import(&path).unwrap().1.facts.survivors >= 1);
    if !has(Need::Root) {
        return;
    }
    let all = [&["-a"][..], &ALL].concat();
    let Some(path) = record(dir.path(), &all, &command) else { return };
    let (faults, imported) = import(&path).unwrap();
    assert!(!faults.is_empty() && imported.facts.is_of_running());
    assert_eq!(imported.facts.survivors, 0, "{:?}", imported.facts.missing());
    assert!(!imported.facts.missing().contains(&Missing::Descendants), "{:?}", imported.facts.missing());
}

/// perf in a container that records the machine gets no numbers of the processes outside.
#[test]
fn faults_outside_the_container_of_perf_are_counted() {
    if !has(Need::Tool("perf".into())) || !has(Need::Root) || !has(Need::Mounts) || !support::may_record() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("perf.data");
    let are_counted = |_| {
        let mut outside =
            Command::new("sh").args(["-c", "while :; do ls / >/dev/null; done"]).spawn().unwrap();
        let container = ["--pid", "--fork", "--mount-proc", "perf", "record", "-q", "-a", "-o"];
        let mut perf = Command::new("unshare");
        let recorded = perf.args(container).arg(&path).args(ALL).args(["--", "sleep", "0.5"]).status();
        outside.kill().unwrap();
        outside.wait().unwrap();
        assert!(recorded.unwrap().success());
        let (_, Trace { facts, .. }) = import(&path).unwrap();
        facts.outside_faults > 1000
            && facts.missing().contains(&Missing::Outside { faults: facts.outside_faults })
    };
    // What is outside may get no processor meanwhile.
    assert!((0..5).any(are_counted));
}

#[test]
fn a_pipe_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("perf.data");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
    assert!(matches!(import(&pipe).unwrap_err(), ImportError::NotPerfData(..)));
}

#[test]
fn what_lacks_something_is_refused_with_the_command_that_records_it() {
    let dir = tempfile::tempdir().unwrap();
    let Some(path) = record(dir.path(), &["-e", "cpu-clock"], &["true"]) else { return };
    let error = import(&path).unwrap_err();
    assert!(matches!(&error, ImportError::NoPageFaults(_, events) if events == "cpu-clock"), "{error}");
    assert!(error.remedy().unwrap().contains("-e page-faults,minor-faults,major-faults -c 1 -d"));
    let Some(path) = record(dir.path(), &["-e", "page-faults", "-c", "1"], &["true"]) else { return };
    assert!(matches!(import(&path).unwrap_err(), ImportError::Lacking(_, lacking) if lacking.contains("-d")));
    let Some(path) = record(dir.path(), &["-e", "page-faults", "-c", "3", "-d"], &["true"]) else { return };
    let (_, imported) = import(&path).unwrap();
    assert_eq!(imported.facts.imported.unwrap().sampled.as_deref(), Some("one event in 3"));
}

/// Whatever is missing at the end is reported as missing; at no length is there a panic or a trace.
#[test]
fn a_file_cut_short_is_said_to_be_one() {
    let dir = tempfile::tempdir().unwrap();
    let Some(path) = record(dir.path(), &ALL, &["true"]) else { return };
    let whole = fs::read(&path).unwrap();
    assert!(import(&path).is_ok());
    let cut = dir.path().join("cut");
    let lengths = (1..200).chain((200..whole.len()).step_by(97)).chain([whole.len() - 1]);
    for len in lengths {
        fs::write(&cut, &whole[..len]).unwrap();
        let error = import(&cut).map(drop).unwrap_err();
        assert!(matches!(error, ImportError::Truncated { .. }), "{len} of {}: {error}", whole.len());
    }
    fs::write(&cut, "").unwrap();
    assert!(matches!(import(&cut).unwrap_err(), ImportError::NotPerfData(..)));
    // perf that is killed leaves a header without the data's size.
    let mut unfinished = whole;
    unfinished[48..56].fill(0);
    fs::write(&cut, unfinished).unwrap();
    assert!(matches!(import(&cut).unwrap_err(), ImportError::Unfinished(..)));
}

/// A damaged byte gives an error or another trace, never a panic.
#[test]
fn damaged_files_do_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    let options = [&ALL[..], &["-g"]].concat();
    let Some(path) = record(dir.path(), &options, &["true"]) else { return };
    let whole = fs::read(&path).unwrap();
    let damaged = dir.path().join("damaged");
    let mut random = SplitMix::new(0);
    for round in 0..600 {
        let mut bytes = whole.clone();
        // Half of them in the header and the first records, where most of the structure is.
        let reach = if round % 2 == 0 { 1000.min(bytes.len()) } else { bytes.len() };
        for _ in 0..1 + round % 3 {
            bytes[random.below(reach as u64) as usize] ^= 1 << random.below(8);
        }
        fs::write(&damaged, bytes).unwrap();
        let _ = import(&damaged);
    }
}

/// The counts for which a reader makes room before it finds that the file ends.
#[test]
fn counts_of_more_than_there_is_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let Some(path) = record(dir.path(), &ALL, &["true"]) else { return };
    let whole = fs::read(&path).unwrap();
    let word = |at: usize| u64::from_le_bytes(whole[at..at + 8].try_into().unwrap()) as usize;
    // Behind the data: where each feature lies, in the order of their bits.
    let place = |feature: u32| {
        word(word(40) + word(48) + 16 * (word(72) & ((1 << feature) - 1)).count_ones() as usize)
    };
    let attr_bytes = u32::from_le_bytes(whole[place(12) + 4..place(12) + 8].try_into().unwrap()) as usize;
    let first_event = place(12) + 8 + attr_bytes;
    for count_at in [place(11), place(12), place(12) + 4, first_event, first_event + 4] {
        for count in [0xb000_0021u32, u32::MAX] {
            let mut bytes = whole.clone();
            bytes[count_at..count_at + 4].copy_from_slice(&count.to_le_bytes());
            fs::write(&path, bytes).unwrap();
            assert!(matches!(import(&path).unwrap_err(), ImportError::Truncated { .. }), "{count_at}");
        }
    }
    fs::write(&path, whole).unwrap();
    assert!(import(&path).is_ok());
}
