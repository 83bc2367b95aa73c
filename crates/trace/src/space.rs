//! Address spaces: what each process has mapped where.

mod mappings;
mod touched;

use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::Range;
use std::sync::Arc;

use prepage_core::{CodePlace, Object, ObjectId, PageIndex, PageRange, Permissions};
use prepage_sys::maps::{Mapped, mappings};
use prepage_sys::pagemap::PageMap;
use prepage_sys::processes::{living_thread, threads_of};

use crate::build_id::look_at_files;
use crate::event::{Event, EventKind};
pub use mappings::{Mapping, Mappings};
use touched::TouchedPages;

/// The mappings of all observed processes, kept up to date by [`AddressSpaces::apply`].
///
/// A fork shares its parent's mappings until one of the two changes them, so that ten thousand processes cost
/// little. Two things the kernel does not report: unmapping (an address of a range unmapped and not mapped again still
/// resolves) and moves by mremap(2): addresses of the new place do not resolve, or to what was mapped there before and then
/// unmapped, even to a file. realloc(3) moves large blocks so.
#[derive(Debug, Default)]
pub struct AddressSpaces {
    processes: HashMap<u32, Process>,
    objects: Vec<Object>,
    ids: HashMap<Object, ObjectId>,
    /// Files of which something was ever mapped to be executed.
    executable: HashSet<ObjectId>,
    /// Mappings of files beyond [`OBJECTS_MAX`].
    unnamed: u64,
    /// Programs of which no more is known than that they were executed.
    unobserved: u64,
    /// How often records were lost so far.
    losses: u64,
}

/// Different files kept apart at most: some 30 MB. A machine has some ten thousand that are mapped; only a day of made
/// and removed ones has more.
const OBJECTS_MAX: usize = 1 << 17;
/// The path of all files beyond.
const OTHER_FILES: &str = "[other files]";

#[derive(Debug, Default)]
struct Process {
    mappings: Arc<Mappings>,
    touched: TouchedPages,
    /// Those that have not ended.
    threads: HashSet<u32>,
    program: Program,
    /// The file of its program: what was mapped first since it was executed. And where that ends, with the zeroed data that
    /// adjoins it.
    program_file: Option<ObjectId>,
    program_end: u64,
}

/// How much of a process's program can be observed.
///
/// The kernel ends the observation of a process that executes a program with others' rights, or that the user may not
/// read (Linux 6.18, fs/exec.c, `begin_new_exec`): it reports an exit after the new name and before any mapping. Where
/// the whole machine is observed, mappings and the real exit follow nevertheless.
#[derive(Debug, Default)]
enum Program {
    #[default]
    Observed,
    /// Executed a moment ago, when records had been lost so often. Nothing is mapped yet.
    Begun { losses: u64 },
    /// No longer observed since it was executed.
    Unobserved,
}

impl Process {
    /// Whether `mapped` is the heap (brk(2)) as it begins. The kernel notes where the heap ends, by which it tells it from other
    /// memory, only after it has reported the mapping: that report has no name.
    ///
    /// The heap lies by chance up to a gibibyte behind the program, with nothing in between.
    fn is_first_heap(&self, mapped: &Mapped) -> bool {
        const GAP_BYTES_MAX: u64 = 1 << 30;
        let gap_bytes = mapped.start.checked_sub(self.program_end);
        is_own(mapped)
            && self.program_file.is_some()
            && gap_bytes.is_some_and(|bytes| (1..=GAP_BYTES_MAX).contains(&bytes))
            && self.mappings.is_free(self.program_end..mapped.start)
    }
}

/// Where an address points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolved<'a> {
    /// The mapping it lies in.
    pub mapping: &'a Mapping,
    /// The addresses of that.
    pub addresses: &'a Range<u64>,
    /// What is mapped there.
    pub object: &'a Object,
    /// The file's page; `None` for memory of no file.
    pub page: Option<PageIndex>,
}

impl AddressSpaces {
    /// Learns what process `pid` has mapped already. To be called after attaching to it and before its events are applied.
    ///
    /// # Errors
    /// When the process is gone or its maps may not be read. Its threads are known nevertheless.
    pub fn seed(&mut self, pid: u32) -> io::Result<()> {
        self.processes.entry(pid).or_default().threads = threads_of(pid)?.collect();
        mappings(pid)?.iter().for_each(|mapped| self.map(pid, mapped));
        Ok(())
    }

    /// Learns which of its own memory process `pid`, which was [seeded](Self::seed) just before, has touched.
    pub(crate) fn seed_touched(&mut self, pid: u32) {
        // Before Linux 6.7 nobody tells: all memory is taken for untouched.
        let page_map = PageMap::of(living_thread(pid).unwrap_or(pid));
        let (Ok(page_map), Some(process)) = (page_map, self.processes.get_mut(&pid)) else { return };
        for (addresses, mapping) in process.mappings.iter() {
            if !self.objects[mapping.object.0 as usize].is_file() {
                for (start, end) in page_map.occupied_in(addresses.clone()).unwrap_or_default() {
                    process.touched.add(PageRange::covering(start, end - start));
                }
            }
        }
    }

    /// Takes a mapping, fork, exec or exit into account; other events change nothing.
    pub fn apply(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Map(mapped) => self.map(event.pid, mapped),
            EventKind::Fork { parent_pid, .. } if *parent_pid == event.pid => {
                self.processes.entry(event.pid).or_default().threads.insert(event.tid);
            }
            EventKind::Fork { parent_pid, .. } => {
                let parent = self.processes.entry(*parent_pid).or_default();
                let mappings = Arc::clone(&parent.mappings);
                let touched = parent.touched.fork();
                let threads = HashSet::from([event.tid]);
                let (program_file, program_end) = (parent.program_file, parent.program_end);
                let program = Program::Observed;
                let child = Process { mappings, touched, threads, program, program_file, program_end };
                self.processes.insert(event.pid, child);
            }
            EventKind::Name { exec: true, .. } => {
                // The program is executed by the thread that is left, whatever its number was before.
                let threads = HashSet::from([event.pid]);
                let program = Program::Begun { losses: self.losses };
                self.processes.insert(event.pid, Process { threads, program, ..Process::default() });
            }
            EventKind::Name { exec: false, .. } => {
                self.processes.entry(event.pid).or_default().threads.insert(event.tid);
            }
            EventKind::Exit => {
                let ends = self.is_end(event);
                let Some(process) = self.processes.get_mut(&event.pid) else { return };
                if !ends {
                    process.program = Program::Unobserved;
                    self.unobserved += 1;
                } else if process.threads.remove(&event.tid) && process.threads.is_empty() {
                    // It was killed before it mapped anything.
                    self.unobserved -= u64::from(matches!(process.program, Program::Unobserved));
                    self.processes.remove(&event.pid);
                }
            }
            EventKind::Lost { .. } => self.losses += 1,
            _ => {}
        }
    }

    /// Whether the thread has ended that `event` reports the exit of, rather than its observation.
    pub(crate) fn is_end(&self, event: &Event) -> bool {
        let program = self.processes.get(&event.pid).map(|process| &process.program);
        !matches!(program, Some(Program::Begun { losses }) if *losses == self.losses)
    }

    /// What lies at `address` of process `pid`; `None` for memory of no known mapping.
    pub fn resolve(&self, pid: u32, address: u64) -> Option<Resolved<'_>> {
        let (addresses, mapping) = self.processes.get(&pid)?.mappings.at(address)?;
        let object = &self.objects[mapping.object.0 as usize];
        let page = object.is_file().then(|| PageIndex::containing(mapping.offset_bytes(address)));
        Some(Resolved { mapping, addresses, object, page })
    }

    /// Where the instruction at `address` of process `pid` lies in its file; [`CodePlace::offset`] is the address
    /// itself for memory of no file, and of no known mapping.
    pub fn code_place(&self, pid: u32, address: u64) -> CodePlace {
        let found = self.processes.get(&pid).and_then(|process| process.mappings.at(address));
        let Some((_, mapping)) = found else { return CodePlace { object: None, offset: address } };
        let object = &self.objects[mapping.object.0 as usize];
        let in_object = object.is_file() || object.path == "[vdso]";
        let offset = if in_object { mapping.offset_bytes(address) } else { address };
        CodePlace { object: Some(mapping.object), offset }
    }

    /// Everything ever mapped, indexed by [`Mapping::object`].
    pub fn objects(&self) -> &[Object] {
        &self.objects
    }

    /// The same, at the end, with the sizes of files and the build-ids of those that ran; and how many files were not looked at for these, because
    /// their file systems do not answer.
    pub fn into_objects(mut self) -> (Vec<Object>, u64) {
        let unanswered = look_at_files(&mut self.objects, self.executable);
        (self.objects, unanswered)
    }

    /// How many mappings are of files that are no longer kept apart, because there were too many.
    pub fn unnamed_mappings(&self) -> u64 {
        self.unnamed
    }

    /// How many programs were executed that could not be observed.
    pub fn unobserved_programs(&self) -> u64 {
        self.unobserved
    }

    /// All processes.
    pub(crate) fn pids(&self) -> impl Iterator<Item = u32> + '_ {
        self.processes.keys().copied()
    }

    /// Forgets the processes `gone`: the records of their ends were lost.
    pub(crate) fn forget(&mut self, gone: &HashSet<u32>) {
        self.processes.retain(|pid, _| !gone.contains(pid));
    }

    /// How many processes have begun and not ended, as far as they are observed.
    pub fn processes(&self) -> usize {
        let is_observed = |process: &&Process| !matches!(process.program, Program::Unobserved);
        self.processes.values().filter(is_observed).count()
    }

    /// Notes a fault of `pid` on the page of `address` in anonymous memory, and says whether it made a copy; else the page is new.
    pub(crate) fn touch(&mut self, pid: u32, address: u64) -> bool {
        self.processes.entry(pid).or_default().touched.touch(PageIndex::containing(address))
    }

    /// Notes that the page of `address` in anonymous memory of `pid` was read back from swap.
    pub(crate) fn read_back(&mut self, pid: u32, address: u64) {
        self.processes.entry(pid).or_default().touched.read_back(PageIndex::containing(address));
    }

    fn map(&mut self, pid: u32, mapped: &Mapped) {
        if mapped.end <= mapped.start {
            return;
        }
        let is_heap = self.processes.get(&pid).is_some_and(|process| process.is_first_heap(mapped));
        let object = match is_heap {
            true => self.intern(&Mapped { path: "[heap]".into(), ..mapped.clone() }),
            false => self.intern(mapped),
        };
        if mapped.inode.is_some() && mapped.permissions.contains(Permissions::EXECUTE) {
            self.executable.insert(object);
        }
        let process = self.processes.entry(pid).or_default();
        if let Program::Unobserved = std::mem::take(&mut process.program) {
            self.unobserved -= 1;
        }
        if mapped.inode.is_some() {
            process.program_file.get_or_insert(object);
        }
        let is_program = process.program_file == Some(object);
        let adjoins = mapped.start <= process.program_end && (is_program || is_own(mapped));
        if adjoins || is_program && process.program_end == 0 {
            process.program_end = process.program_end.max(mapped.end);
        }
        let mapping = Mapping::new(mapped.start, object, mapped.offset_bytes, mapped.permissions);
        if mapped.inode.is_some() || is_fresh(&process.mappings, mapped, object) {
            let pages = PageRange::covering(mapped.start, mapped.end - mapped.start);
            process.touched.forget(pages);
        }
        Arc::make_mut(&mut process.mappings).insert(mapped.start..mapped.end, mapping);
    }

    fn intern(&mut self, mapped: &Mapped) -> ObjectId {
        let object = Object::new(mapped.path.as_ref(), mapped.inode);
        if let Some(&id) = self.ids.get(&object) {
            return id;
        }
        if self.objects.len() >= OBJECTS_MAX && object.is_file() {
            self.unnamed += 1;
            return self.intern(&Mapped { path: OTHER_FILES.into(), inode: None, ..mapped.clone() });
        }
        let id = ObjectId(self.objects.len() as u32);
        self.objects.push(object.clone());
        self.ids.insert(object, id);
        id
    }
}

/// Whether `mapped` is memory of the process's own that it may write.
fn is_own(mapped: &Mapped) -> bool {
    const OWN: Permissions = Permissions::READ.with(Permissions::WRITE).with(Permissions::PRIVATE);
    mapped.inode.is_none() && &*mapped.path == "[anon]" && mapped.permissions == OWN
}

/// Whether anonymous memory that is reported as `object` is new, rather than old memory with a new size or permission,
/// which the kernel reports in the same way. A rule of thumb: new memory either lies within an old mapping of the same
/// permission (it was unmapped, unseen, and is mapped again), or may not be touched at all yet.
fn is_fresh(mappings: &Mappings, new: &Mapped, object: ObjectId) -> bool {
    if matches!(new.permissions, Permissions::PRIVATE | Permissions::SHARED) {
        return true;
    }
    mappings.at(new.start).is_some_and(|(addresses, old)| {
        addresses.end >= new.end && old.object == object && old.permissions == new.permissions
    })
}

#[cfg(test)]
mod tests;
