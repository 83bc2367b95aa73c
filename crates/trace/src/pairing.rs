//! Beginnings and ends of faults, put together.

use std::collections::HashMap;
use std::fs;
use std::sync::Arc;

use prepage_core::{Fault, FaultClass, Object, Permissions, Stack, Thread, ThreadIndex};

use crate::event::{Event, EventKind};
use crate::space::AddressSpaces;
use crate::tables::Tables;

/// Makes [`Fault`]s of a stream's events.
///
/// A thread is in one fault at a time, so what is kept of unfinished ones is bounded by the number of threads.
/// A beginning at the same address as the thread's unfinished one is the same fault once more (a signal
/// interrupted it) and keeps the first start.
///
/// The class of a fault that read nothing from a device is a rule of thumb, for the kernel says only "minor":
///
/// - in a file's private writable mapping: [`FaultClass::CopyOnWrite`], since what is written to nearly always
///   faults by being written to; in any other file mapping, shared memory and the vdso: [`FaultClass::Cached`];
/// - in anonymous memory: [`FaultClass::CopyOnWrite`] when the process, or before a fork its parent, had touched
///   the page already, else [`FaultClass::ZeroFill`]. Memory given back with MADV_DONTNEED and touched again so
///   counts as copied, and a huge page counts as touched only where it was touched first.
#[derive(Debug)]
pub struct Pairing {
    origin_ns: u64,
    spaces: AddressSpaces,
    /// Observed threads that have not ended, by thread id.
    running: HashMap<u32, Running>,
    threads: Vec<Thread>,
    stacks: Vec<Stack>,
}

#[derive(Debug)]
struct Running {
    pid: u32,
    name: Arc<str>,
    /// Its entry in the table of threads under this name, once it has faulted.
    index: Option<ThreadIndex>,
    begun: Option<Begun>,
}

/// A fault that has not ended.
#[derive(Clone, Copy, Debug)]
struct Begun {
    time_ns: u64,
    address: u64,
    ip: u64,
}

impl Pairing {
    /// Faults' starts are counted from `origin_ns` of CLOCK_MONOTONIC.
    pub fn new(origin_ns: u64) -> Self {
        Self {
            origin_ns,
            spaces: AddressSpaces::new(),
            running: HashMap::new(),
            threads: Vec::new(),
            stacks: Vec::new(),
        }
    }

    /// Learns the threads and mappings of a process that was running before its events began.
    pub fn seed(&mut self, pid: u32) {
        self.spaces.seed(pid);
        let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return };
        for task in tasks.flatten() {
            let Some(tid) = task.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            self.running.insert(tid, Running::new(pid, name.trim_end().into()));
        }
    }

    /// Takes the next event, in order of time, and appends the fault that it completes, if any, to `faults`.
    pub fn feed(&mut self, event: &Event, faults: &mut Vec<Fault>) {
        match &event.kind {
            EventKind::FaultBegin { address, ip } => {
                let begun = Begun { time_ns: event.time_ns, address: *address, ip: *ip };
                let thread = running(&mut self.running, event);
                match thread.begun {
                    Some(earlier) if earlier.address == begun.address => {}
                    Some(earlier) => {
                        thread.begun = Some(begun);
                        faults.push(self.failed(event.tid, earlier));
                    }
                    None => thread.begun = Some(begun),
                }
            }
            EventKind::FaultEnd { address, ip, disk } => {
                let end = Begun { time_ns: event.time_ns, address: *address, ip: *ip };
                match running(&mut self.running, event).begun.take() {
                    Some(begun) if begun.address == end.address => {
                        let cost_ns = Some(end.time_ns.saturating_sub(begun.time_ns));
                        faults.push(self.ended(event, begun, cost_ns, *disk));
                    }
                    earlier => {
                        // The record of its beginning was lost, or none was asked for.
                        faults.extend(earlier.map(|earlier| self.failed(event.tid, earlier)));
                        faults.push(self.ended(event, end, None, *disk));
                    }
                }
            }
            EventKind::Name { name, .. } => {
                let thread = running(&mut self.running, event);
                thread.name = Arc::clone(name);
                thread.index = None;
            }
            EventKind::Fork { parent_tid, .. } => {
                let name =
                    self.running.get(parent_tid).map_or_else(unknown, |parent| Arc::clone(&parent.name));
                self.running.insert(event.tid, Running::new(event.pid, name));
            }
            EventKind::Exit => {
                if let Some(begun) = self.running.get_mut(&event.tid).and_then(|thread| thread.begun.take()) {
                    faults.push(self.failed(event.tid, begun));
                }
                self.running.remove(&event.tid);
            }
            EventKind::Map(_)
            | EventKind::Switch { .. }
            | EventKind::PageCached { .. }
            | EventKind::Lost { .. } => {}
        }
        self.spaces.apply(event);
    }

    /// Appends the faults that have begun and not ended, as [`FaultClass::Failed`]: for the end of the record.
    pub fn finish(&mut self, faults: &mut Vec<Fault>) {
        let unfinished: Vec<(u32, Begun)> =
            self.running.iter_mut().filter_map(|(&tid, thread)| Some((tid, thread.begun.take()?))).collect();
        faults.extend(unfinished.into_iter().map(|(tid, begun)| self.failed(tid, begun)));
    }

    /// What the faults' numbers mean, so far.
    pub fn tables(&self) -> Tables<'_> {
        Tables { objects: self.spaces.objects(), threads: &self.threads, stacks: &self.stacks }
    }

    /// The same, at the end.
    pub fn into_tables(self) -> (Vec<Object>, Vec<Thread>, Vec<Stack>) {
        (self.spaces.into_objects(), self.threads, self.stacks)
    }

    /// The mappings as of the last event.
    pub fn spaces(&self) -> &AddressSpaces {
        &self.spaces
    }

    fn ended(&mut self, event: &Event, begun: Begun, cost_ns: Option<u64>, disk: bool) -> Fault {
        let pid = event.pid;
        let mut fault = self.fault(event.tid, begun, cost_ns, FaultClass::Disk);
        let place = self.spaces.resolve(pid, begun.address);
        let memory = place.map_or(Memory::Anonymous, |place| {
            let (object, mapping) = (place.object, place.mapping);
            match object.path.as_str() {
                _ if object.is_file() && mapping.is_private() && mapping.is_writable() => Memory::PrivateFile,
                _ if object.is_file() => Memory::SharedFile,
                "[vdso]" | "[vvar]" | "[vvar_vclock]" => Memory::SharedFile,
                _ => Memory::Anonymous,
            }
        });
        let touched_before = memory == Memory::Anonymous && self.spaces.touch(pid, begun.address);
        if !disk {
            fault.class = match memory {
                Memory::PrivateFile => FaultClass::CopyOnWrite,
                Memory::SharedFile => FaultClass::Cached,
                Memory::Anonymous if touched_before => FaultClass::CopyOnWrite,
                Memory::Anonymous => FaultClass::ZeroFill,
            };
        }
        fault
    }

    fn failed(&mut self, tid: u32, begun: Begun) -> Fault {
        self.fault(tid, begun, None, FaultClass::Failed)
    }

    fn fault(&mut self, tid: u32, begun: Begun, cost_ns: Option<u64>, class: FaultClass) -> Fault {
        let thread = self.running.get_mut(&tid).expect("a thread that faults is known by its event");
        let index = *thread.index.get_or_insert_with(|| {
            self.threads.push(Thread { pid: thread.pid, tid, comm: thread.name.as_ref().to_owned() });
            ThreadIndex(self.threads.len() as u32 - 1)
        });
        let place = self.spaces.resolve(thread.pid, begun.address);
        let code = self.spaces.code_place(thread.pid, begun.ip);
        Fault {
            cost_ns,
            ip: begun.ip,
            object: place.map(|place| place.mapping.object),
            page: place.and_then(|place| place.page),
            permissions: place.map_or(Permissions::NONE, |place| place.mapping.permissions()),
            code: code.object,
            code_offset: code.offset,
            ..Fault::new(begun.time_ns.saturating_sub(self.origin_ns), index, begun.address, class)
        }
    }
}

impl Running {
    fn new(pid: u32, name: Arc<str>) -> Self {
        Self { pid, name, index: None, begun: None }
    }
}

/// What a minor fault's class depends on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Memory {
    PrivateFile,
    SharedFile,
    Anonymous,
}

/// The thread of `event`, which is new here if the record of its start was lost.
fn running<'a>(threads: &'a mut HashMap<u32, Running>, event: &Event) -> &'a mut Running {
    threads.entry(event.tid).or_insert_with(|| Running::new(event.pid, unknown()))
}

fn unknown() -> Arc<str> {
    "?".into()
}

#[cfg(test)]
mod tests;
