//! What must hold of any bytes given as a trace, as perf.data or as a text of touches: each function panics where it
//! does not.
#![allow(dead_code, reason = "each fuzz target uses its part")]

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use prepage_core::Fault;
use prepage_simulate::touch_text::{Names, read_touches};
use prepage_trace::import::Importer;
use prepage_trace::parquet::{TraceFile, Wanted, read_trace, write_trace};

/// A file in memory that holds `bytes`, and its path.
fn file_of(bytes: &[u8]) -> (File, PathBuf) {
    let fd = rustix::fs::memfd_create("fuzzed", rustix::fs::MemfdFlags::CLOEXEC).expect("a file in memory");
    let mut file = File::from(fd);
    file.write_all(bytes).expect("room in memory");
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    (file, path.into())
}

/// A trace: whole, in parts, and written again, it says the same.
pub fn trace(bytes: &[u8]) {
    let (_file, path) = file_of(bytes);
    let Ok(trace) = read_trace(&path) else { return };
    for fault in &trace.faults {
        assert!((fault.thread.0 as usize) < trace.threads.len(), "{fault:?}");
        let object =
            |id: Option<prepage_core::ObjectId>| id.is_none_or(|id| (id.0 as usize) < trace.objects.len());
        assert!(object(fault.object) && object(fault.code), "{fault:?}");
        assert!(fault.stack.is_none_or(|id| id.index() < trace.stacks.len()), "{fault:?}");
    }
    let file = TraceFile::open(&path).expect("it was just read");
    let costs = Wanted::default();
    let (counts, _) =
        file.fold(costs, || 0, |count, batch| *count += batch.faults.len()).expect("read before");
    assert_eq!(counts.iter().sum::<usize>(), trace.faults.len());
    assert!(file.end_ns() >= file.facts().duration_ns);

    let directory = std::path::Path::new("/dev/shm");
    let again = directory.join(format!("prepage-fuzz-{}.parquet", std::process::id()));
    let written = write_trace(&again, &trace).map(|()| read_trace(&again));
    std::fs::remove_file(&again).expect("it was written");
    let again = written.expect("any trace can be written").expect("what was written can be read");
    let timed = |fault: &Fault| (fault.start_ns, fault.class, fault.cost_ns, fault.address, fault.page);
    assert!(again.faults.iter().map(timed).eq(trace.faults.iter().map(timed)), "faults stay");
    assert_eq!(again.facts, trace.facts);
}

/// A perf.data: whatever it is, an error or faults whose numbers mean something.
pub fn perf_data(bytes: &[u8]) {
    let (_file, path) = file_of(bytes);
    let Ok(mut importer) = Importer::open(&path) else { return };
    let mut faults = Vec::new();
    loop {
        match importer.next_faults(&mut faults) {
            Ok(true) => {}
            Ok(false) => break,
            Err(_) => return,
        }
    }
    let imported = importer.finish();
    let known = |fault: &Fault| {
        (fault.thread.0 as usize) < imported.threads.len()
            && fault.object.is_none_or(|id| (id.0 as usize) < imported.objects.len())
            && fault.stack.is_none_or(|id| id.index() < imported.stacks.len())
    };
    assert!(faults.iter().all(known));
}

/// A text of touches: read whole and in pieces it holds the same ones.
pub fn touches(bytes: &[u8]) {
    let whole = touches_in(bytes, bytes.len().max(1));
    assert_eq!(whole, touches_in(bytes, 7));
}

/// The names of the objects, and each touch with its object, page and line.
type Touches = (Vec<String>, Vec<(u32, u64, u64)>);

fn touches_in(bytes: &[u8], buffer: usize) -> Result<Touches, String> {
    let mut names = Names::default();
    let mut touches = Vec::new();
    let text = std::io::BufReader::with_capacity(buffer, bytes);
    let read = read_touches(text, &mut names, std::convert::identity, |object, page, line| {
        touches.push((object, page, line));
        Ok(())
    });
    read.map_err(|error| error.to_string())?;
    assert!(touches.is_sorted_by_key(|&(_, _, line)| line));
    Ok((names.names, touches))
}
