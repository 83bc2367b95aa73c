//! Comma-separated values: the trace's columns, a line for each fault, in the order of the file.

use std::io::{self, Write};

use prepage_core::{FrameNumber, Object, ObjectId, StackId, Thread, ThreadIndex};
use prepage_trace::parquet::{TraceFile, Wanted, column_names, stack_text};
use rustc_hash::FxHashMap;

use super::ExportError;
use crate::filter::{Filter, Sieve};

pub fn write(file: &TraceFile, filter: &Filter, out: &mut dyn Write) -> Result<(), ExportError> {
    let mut rows = csv::Writer::from_writer(out);
    rows.write_record(column_names()).map_err(failed)?;
    let mut sieve = Sieve::new(filter);
    // What the numbers mean, once each was met.
    let mut objects: FxHashMap<ObjectId, Object> = FxHashMap::default();
    let mut threads: FxHashMap<ThreadIndex, Thread> = FxHashMap::default();
    let mut stacks: FxHashMap<StackId, String> = FxHashMap::default();
    file.for_each::<ExportError>(Wanted::all(), |batch| {
        let names = batch.names;
        for fault in batch.faults.iter().filter(|fault| sieve.passes(fault, names)) {
            for id in fault.object.into_iter().chain(fault.code) {
                objects.entry(id).or_insert_with(|| names.objects.get(id.0));
            }
            let text = |number: Option<u64>| number.map_or_else(String::new, |number| number.to_string());
            let object = fault.object.map(|id| &objects[&id]);
            let inode = object.and_then(|object| object.inode);
            let thread = threads.entry(fault.thread).or_insert_with(|| names.threads.get(fault.thread.0));
            let code = fault.code.map(|id| objects[&id].path.as_str());
            let stack = fault.stack.map(|id| {
                let text =
                    || stack_text(&names.stacks.get(id.index() as u32), |id| names.objects.get(id.0).path);
                stacks.entry(id).or_insert_with(text).as_str()
            });
            rows.write_record([
                fault.start_ns.to_string().as_str(),
                &text(fault.cost_ns),
                &thread.pid.to_string(),
                &thread.tid.to_string(),
                &thread.comm,
                fault.class.name(),
                &fault.ip.to_string(),
                &fault.address.to_string(),
                object.map_or("", |object| &object.path),
                &text(inode.map(|(device, _)| device)),
                &text(inode.map(|(_, inode)| inode)),
                &text(fault.page.map(|page| page.0)),
                fault.permissions.text(),
                code.unwrap_or(""),
                &text(code.map(|_| fault.code_offset)),
                &text(fault.frame.map(FrameNumber::get)),
                stack.unwrap_or(""),
                &text(fault.cluster_pages.map(|pages| pages.get().into())),
            ])
            .map_err(failed)?;
        }
        Ok(())
    })?;
    Ok(rows.flush()?)
}

/// The error of the output itself, whose kind distinguishes a reader who left from a full disk.
fn failed(error: csv::Error) -> ExportError {
    ExportError::Output(match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        other => io::Error::other(format!("{other:?}")),
    })
}
