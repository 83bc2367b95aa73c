//! Touches in a trace: the faults on files' pages, read from its file as often as they are replayed.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use hdrhistogram::Histogram;
use prepage_core::{Fault, FaultClass, Object, PageIndex, PageRange, Permissions, TraceFacts};
use prepage_trace::AGENT_LIBRARY;
use prepage_trace::parquet::{Names, TraceFile, Wanted};

use crate::input::{InputError, Unseen};
use crate::layout::{EntryLayout, Layout, ObjectLayout};
use crate::pages::{MOST_PAGES, Pages, bit};
use crate::replay::{EntryIndex, Touch};

/// What of each fault is read.
const WANTED: Wanted =
    Wanted::START.union(Wanted::THREAD).union(Wanted::OBJECT).union(Wanted::PAGE).union(Wanted::PERMISSIONS);

/// Calls `each` for each fault that is a touch of a file's page, in the order of the file, with the number of the object
/// and the touch, which names the object's page.
pub(crate) fn each_touch(
    file: &TraceFile,
    mut each: impl FnMut(&Fault, usize, Touch) -> Result<(), InputError>,
) -> Result<Numbering, InputError> {
    let mut numbering = Numbering::new(file.facts());
    file.for_each(WANTED, |batch| {
        for fault in batch.faults {
            if let Some((object, touch)) = numbering.touch(fault, batch.names) {
                each(fault, object, touch)?;
            }
        }
        Ok::<_, InputError>(())
    })?;
    Ok(numbering)
}

/// Objects and entries, numbered in the order in which a trace's faults name them.
#[derive(Debug, Default)]
pub(crate) struct Numbering {
    pub layout: Layout,
    /// Faults on memory that no disk holds, and on prepage's agent.
    pub others: u64,
    /// By the trace's number of the object; `None` for those that are no file of the program's.
    objects: HashMap<u32, Option<usize>>,
    /// By program that a process executes, object, and whether it may be executed.
    entries: HashMap<(u32, usize, bool), u32>,
    /// Programs that processes execute, by the trace's number of the thread: one for each name that a thread had.
    programs: HashMap<u32, u32>,
    /// By process: the program that it executes, and whether its main thread was met.
    running: HashMap<u32, (u32, bool)>,
    /// Whether a process may have executed another program in its own place.
    may_exec: bool,
    /// Processes and threads, by their ids.
    threads: HashSet<(u32, u32)>,
    /// When all faults until now were over, what observing them took included.
    over_ns: u64,
    /// What observing adds to each fault.
    probe_ns: u64,
    /// What it added to faults that are no touches, since the last that is one.
    probes_ns: u64,
}

impl Numbering {
    fn new(facts: &TraceFacts) -> Self {
        // The faults that a command's process took before its own exec are no part of a recording of prepage's.
        let begins_with_exec = facts.pids.is_empty() && !facts.system_wide && facts.imported.is_none();
        Self {
            may_exec: facts.execs > u64::from(begins_with_exec),
            probe_ns: facts.probe_total_ns.unwrap_or(0),
            ..Self::default()
        }
    }

    fn touch(&mut self, fault: &Fault, names: &Names) -> Option<(usize, Touch)> {
        let Some((object, page)) = self.place(fault, names) else {
            self.probes_ns = self.probes_ns.saturating_add(self.probe_ns);
            return None;
        };
        let think_ns = self.computed_ns(fault.start_ns);
        self.probes_ns = 0;
        let end_ns = fault.start_ns.saturating_add(fault.cost_ns.unwrap_or(0)).saturating_add(self.probe_ns);
        self.over_ns = self.over_ns.max(end_ns);
        let pages = &mut self.layout.objects[object].pages;
        *pages = (*pages).max(page.0 + 1);
        let program = self.program(fault.thread.0, names);
        let executable = fault.permissions.contains(Permissions::EXECUTE);
        let entry = *self.entries.entry((program, object, executable)).or_insert_with(|| {
            self.layout.entries.push(EntryLayout { executable, ..EntryLayout::whole(object) });
            self.layout.entries.len() as u32 - 1
        });
        let think_ns = u32::try_from(think_ns).unwrap_or(u32::MAX);
        Some((object, Touch { page: page.0, entry: EntryIndex(entry), think_ns }))
    }

    /// How long the program has computed by `now_ns` since the last touch.
    pub fn computed_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.over_ns).saturating_sub(self.probes_ns)
    }

    /// The file and the page of it that a fault touches; `None` where it touches none.
    fn place(&mut self, fault: &Fault, names: &Names) -> Option<(usize, PageIndex)> {
        if fault.class == FaultClass::Failed {
            return None;
        }
        let (Some(id), Some(page)) = (fault.object, fault.page) else {
            self.others += 1;
            return None;
        };
        if page.0 >= MOST_PAGES {
            return None;
        }
        let object = *self.objects.entry(id.0).or_insert_with(|| {
            let object = names.objects.get(id.0);
            if no_disk_holds(&object) || is_agent(&object) {
                return None;
            }
            let pages = object.size_bytes.map_or(0, |bytes| PageRange::covering(0, bytes).len());
            let Object { path: name, build_id, size_bytes, .. } = object;
            self.layout.objects.push(ObjectLayout {
                name,
                pages: pages.min(MOST_PAGES),
                build_id,
                size_bytes,
            });
            Some(self.layout.objects.len() - 1)
        });
        self.others += u64::from(object.is_none());
        Some((object?, page))
    }

    /// The program that the process of the trace's thread `number` executes. All that shows an exec is the main thread's new name:
    /// one that it gives itself shows an exec as well, where the trace has execs at all.
    fn program(&mut self, number: u32, names: &Names) -> u32 {
        if let Some(program) = self.programs.get(&number) {
            return *program;
        }
        let thread = names.threads.get(number);
        self.threads.insert((thread.pid, thread.tid));
        let is_main = thread.pid == thread.tid;
        let next = self.programs.len() as u32;
        let (program, main_met) = self.running.entry(thread.pid).or_insert((next, false));
        if is_main && std::mem::replace(main_met, true) && self.may_exec {
            *program = next;
        }
        self.programs.insert(number, *program);
        *program
    }

    /// Threads that touched.
    pub fn threads(&self) -> usize {
        self.threads.len()
    }
}

/// What one pass over a trace finds.
#[derive(Debug)]
pub(crate) struct Survey {
    pub numbering: Numbering,
    pub count: u64,
    /// Touches without a cost.
    pub without_cost: u64,
    /// The median cost of faults on resident pages. Not the mean: faults that waited for a read under way are among
    /// them, and the replay adds such waits itself.
    pub soft_fault_ns: Option<u64>,
    pub unseen: Unseen,
}

/// Looks through a trace.
pub(crate) fn survey(file: &TraceFile) -> Result<Survey, InputError> {
    let (mut count, mut without_cost) = (0, 0);
    let mut costs = Histogram::<u64>::new(3).expect("three digits are a precision there is");
    // By object: the pages touched, and how many of them were resident when they were first touched.
    let mut touched: Vec<(Pages<u64>, u64)> = Vec::new();
    let numbering = each_touch(file, |fault, object, touch| {
        count += 1;
        without_cost += u64::from(fault.cost_ns.is_none());
        if let (FaultClass::Cached, Some(cost_ns)) = (fault.class, fault.cost_ns) {
            costs.saturating_record(cost_ns);
        }
        if object == touched.len() {
            touched.push(Default::default());
        }
        let (pages, found_resident) = &mut touched[object];
        let group = pages.get_mut(PageIndex(touch.page));
        let mark = bit(PageIndex(touch.page));
        if *group & mark == 0 {
            *group |= mark;
            *found_resident += u64::from(fault.class != FaultClass::Disk);
        }
        Ok(())
    })?;
    let soft_fault_ns = (!costs.is_empty()).then(|| costs.value_at_quantile(0.5));
    let unseen = match &file.facts().exact {
        None => Unseen::Unknown,
        Some(exact) => {
            let resident: HashMap<&str, u64> =
                exact.resident_pages.iter().map(|(path, pages)| (path.as_str(), *pages)).collect();
            let unarmed: HashMap<&str, &[(u64, u64)]> =
                exact.unarmed_pages.iter().map(|(path, pages)| (path.as_str(), pages.as_slice())).collect();
            let objects = numbering.layout.objects.iter().zip(&touched);
            let hidden = objects.map(|(object, (pages, found_resident))| {
                let name = object.name.as_str();
                let resident = resident.get(name).copied().unwrap_or(0).saturating_sub(*found_resident);
                let unarmed = unarmed.get(name).copied().unwrap_or_default().iter().map(|&(start, end)| {
                    // A mapping may be longer than its file.
                    let range = PageRange::new(
                        PageIndex(start),
                        PageIndex(end.clamp(start, object.pages.max(start))),
                    );
                    range.len() - pages.count(range)
                });
                unarmed.fold(resident, u64::saturating_add)
            });
            match exact.unarmed_programs.is_empty() && exact.lost_records == 0 {
                true => Unseen::AtMost(hidden.fold(0, u64::saturating_add)),
                false => Unseen::Unknown,
            }
        }
    };
    Ok(Survey { numbering, count, without_cost, soft_fault_ns, unseen })
}

/// Whether an object is what `record --exact` had the loader map beside the program's own libraries.
fn is_agent(object: &Object) -> bool {
    // It may have been replaced while it was mapped.
    let path = object.path.strip_suffix(" (deleted)").unwrap_or(&object.path);
    Path::new(path).file_name() == Some(AGENT_LIBRARY.as_ref())
}

/// Whether an object is memory or a device, not a file: memfd_create, shmget, MAP_SHARED|MAP_ANONYMOUS, shm_open, huge pages,
/// buffers of a GPU.
fn no_disk_holds(object: &Object) -> bool {
    let path = object.path.as_str();
    // The kernel's own: never linked, at the root of a file system that no device has.
    let is_kernels = path.ends_with(" (deleted)")
        && path.rfind('/') == Some(0)
        && object.inode.is_some_and(|(device, _)| device >> 20 == 0);
    is_kernels
        || ["/memfd:", "/SYSV", "/anon_hugepage", "/dev/"].iter().any(|prefix| path.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_observes_a_program_is_no_file_of_it() {
        let object = |path: &str| Object::new(path, Some((0xfe << 20, 7)));
        assert!(is_agent(&object("/usr/local/lib/prepage/libprepage-agent.so")));
        assert!(is_agent(&object("/usr/lib/prepage/libprepage-agent.so (deleted)")));
        assert!(!is_agent(&object("/usr/lib/my-libprepage-agent.so")));
        assert!(!is_agent(&object("/usr/lib/libc.so.6")));
    }

    #[test]
    fn memory_and_devices_are_no_files_on_a_disk() {
        let object = |path: &str, device: u64| Object::new(path, Some((device, 7)));
        for (path, device) in [
            ("/memfd:a (deleted)", 0),
            ("/SYSV00000000 (deleted)", 0),
            ("/dev/zero (deleted)", 0),
            ("/dev/shm/a", 25),
            ("/dev/dri/renderD128", 6),
            ("/anon_hugepage (deleted)", 14),
            ("/drm mm object (deleted)", 1),
        ] {
            assert!(no_disk_holds(&object(path, device)), "{path}");
        }
        // Deleted while it was mapped, and on a file system of many disks, whose devices are numbers of the kernel's own.
        for (path, device) in [("/lib/a.so", 0), ("/lib/a.so (deleted)", 31), ("/a (deleted)", 0xfe << 20)] {
            assert!(!no_disk_holds(&object(path, device)), "{path}");
        }
    }
}
