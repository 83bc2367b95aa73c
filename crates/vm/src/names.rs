//! Names of objects, kept for as long as lists of failures and faults may name them; and those lists, with names.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Weak};

use prepage_core::{Fault, ObjectId, PageIndex, Thread, ThreadIndex, Trace, TraceFacts};
use prepage_sys::clock::now_ns;
use prepage_sys::signals::Masked;

use crate::failure::{Failure, KEPT};
use crate::object::ObjectCore;
use crate::record::Taken;
use crate::sync::{Anyway, AtomicUsize, Mutex, Ordering};
use crate::vm::{Vm, VmCore};

/// The objects that exist, and those that lists name, by their numbers.
///
/// Lock legend: (a) atomic; one lock for all else, held for a look or to take a list; never taken by faults.
#[derive(Debug, Default)]
pub(crate) struct Names {
    named: Mutex<HashMap<u64, Named>>,
    /// (a) With so many names it is time to look for those that no failure needs any more. Changed with `named` held.
    look_at: AtomicUsize,
}

/// What is known of an object, also after it went.
#[derive(Debug)]
struct Named {
    object: prepage_core::Object,
    core: Weak<ObjectCore>,
    /// Whether its pages are not zeros that each map makes for itself.
    has_frames: bool,
    /// Whether the object is gone, and which lists may name it still.
    gone: Option<Unread>,
}

/// Lists that were not taken since an object went.
#[derive(Clone, Copy, Debug)]
struct Unread {
    /// How many failures there had been by then; `None` when the list was taken.
    failures: Option<u64>,
    trace: bool,
}

impl Unread {
    /// Whether a list may name the object, now that there have been `failures`.
    fn is_needed(&self, failures: u64) -> bool {
        self.trace || self.failures.is_some_and(|before| failures < before + KEPT as u64)
    }
}

impl Names {
    pub(crate) fn insert(&self, object: prepage_core::Object, core: &Arc<ObjectCore>) {
        let has_frames = core.frames().is_some();
        let named = Named { object, core: Arc::downgrade(core), has_frames, gone: None };
        self.named.lock().anyway().insert(core.id, named);
    }

    /// The objects that exist. Whoever drops an object last takes the lock: it is free again while these live.
    pub(crate) fn alive(&self) -> Vec<Arc<ObjectCore>> {
        self.named.lock().anyway().values().filter_map(|named| named.core.upgrade()).collect()
    }
}

impl VmCore {
    /// An object has gone, which records may name.
    pub(crate) fn object_is_gone(&self, object: &ObjectCore, mentioned: bool) {
        if self.check_process().is_err() {
            return;
        }
        let _masked = Masked::asynchronous();
        if object.frames().is_some() {
            self.pool.core().leave(object);
        }
        let id = object.id;
        let mut names = self.names.named.lock().anyway();
        let failures = self.failures.count();
        let has_failures = !self.failures.is_empty();
        let unread = Unread { failures: has_failures.then_some(failures), trace: self.records.is_some() };
        if !mentioned || !unread.is_needed(failures) {
            names.remove(&id);
        } else if let Some(named) = names.get_mut(&id) {
            named.gone = Some(unread);
        }
        // Nobody may ever take the lists.
        if names.len() > self.names.look_at.load(Ordering::Relaxed) {
            forget_read(&mut names, failures, |_| ());
            self.names.look_at.store(2 * names.len() + 2 * KEPT, Ordering::Relaxed);
        }
    }
}

impl Vm {
    /// The touches that ended in SIGBUS since the last call, the last 256 of them. None in a child of fork(2).
    pub fn take_failures(&self) -> Vec<Failure> {
        if self.core.check_process().is_err() {
            return Vec::new();
        }
        let _masked = Masked::asynchronous();
        // Whoever drops an object last takes the lock: these live until it is free again.
        let mut alive = Vec::new();
        let mut names = self.core.names.named.lock().anyway();
        let mut failures = Vec::new();
        while let Some(kept) = self.core.failures.take() {
            let page = PageIndex(kept.page);
            let named = names.get(&kept.object);
            let object = named.and_then(|named| named.core.upgrade());
            failures.push(Failure {
                object: named.map_or_else(String::new, |named| named.object.path.clone()),
                page,
                address: kept.address,
                reason: match &object {
                    Some(object) => object.reason(page, kept.code),
                    None => crate::reason::Reason::of(kept.code, None),
                },
            });
            alive.extend(object);
        }
        forget_read(&mut names, 0, |unread| unread.failures = None);
        drop(names);
        failures
    }

    /// The faults since the last call, as a trace like that of `prepage record`. Empty without
    /// [`VmOptions::record_faults`](crate::VmOptions::record_faults). Faults for which there was no room are counted in `facts.unrecorded`.
    pub fn take_trace(&self) -> Trace {
        let mut trace = Trace {
            facts: TraceFacts {
                kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
                duration_ns: now_ns() - self.core.started_ns,
                ..TraceFacts::default()
            },
            ..Trace::default()
        };
        let Some(records) = self.core.records.as_ref().filter(|_| self.core.check_process().is_ok()) else {
            return trace;
        };
        let _masked = Masked::asynchronous();
        let mut names = self.core.names.named.lock().anyway();
        let Taken { faults, lost, all } = records.take();
        trace.facts.unrecorded = lost;
        let mut objects: HashMap<u64, (ObjectId, bool)> = HashMap::new();
        let mut threads: HashMap<u32, ThreadIndex> = HashMap::new();
        for fault in faults {
            let (object, has_pages) = *objects.entry(fault.object).or_insert_with(|| {
                let named = names.get(&fault.object).expect("names are kept while faults are");
                trace.objects.push(named.object.clone());
                (ObjectId(trace.objects.len() as u32 - 1), named.has_frames)
            });
            let thread = *threads.entry(fault.tid).or_insert_with(|| {
                trace.threads.push(thread(fault.tid));
                ThreadIndex(trace.threads.len() as u32 - 1)
            });
            let start_ns = fault.start_ns.saturating_sub(self.core.started_ns);
            trace.faults.push(Fault {
                cost_ns: Some(fault.cost_ns),
                ip: fault.ip,
                code_offset: fault.ip,
                object: Some(object),
                page: has_pages.then_some(PageIndex(fault.page)),
                permissions: fault.permissions,
                cluster_pages: NonZeroU32::new(fault.cluster_pages),
                ..Fault::new(start_ns, thread, fault.address, fault.class)
            });
        }
        // What has gone fails no more.
        let failures = self.core.failures.count();
        forget_read(&mut names, failures, |unread| unread.trace &= !all);
        trace
    }
}

/// A thread of this process, by its number; without a name where it has ended.
fn thread(tid: u32) -> Thread {
    let comm = std::fs::read_to_string(format!("/proc/self/task/{tid}/comm")).unwrap_or_default();
    Thread { pid: std::process::id(), tid, comm: comm.trim_end().to_owned() }
}

/// Objects that are gone and that no list names any more are forgotten, now that there have been `failures`.
fn forget_read(names: &mut HashMap<u64, Named>, failures: u64, read: impl Fn(&mut Unread)) {
    names.retain(|_, named| {
        let Some(unread) = &mut named.gone else { return true };
        read(unread);
        unread.is_needed(failures)
    });
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests {
    use prepage_core::{PAGE_SIZE, PageIndex};

    use crate::failure::KEPT;
    use crate::sync::Anyway;
    use crate::{MapOptions, Vm, VmOptions};

    #[test]
    fn names_of_what_has_gone_go_with_the_lists_that_name_it() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let touch = |vm: &Vm| {
            file.as_file().set_len(PAGE_SIZE).unwrap();
            let map = vm.map(&vm.file(file.path()).unwrap(), &MapOptions::shared()).unwrap();
            assert_eq!(map.as_slice()[0], 0);
        };
        let vm = Vm::new(VmOptions::default().record_faults(16)).unwrap();
        for _ in 0..3 {
            touch(&vm);
            assert_eq!(vm.core.names.named.lock().anyway().len(), 1);
            // Nobody asks for failures: there are none.
            assert_eq!(vm.take_trace().faults.len(), 1);
            assert_eq!(vm.core.names.named.lock().anyway().len(), 0);
        }
    }

    #[test]
    fn names_that_only_failures_need_go_with_them() {
        let vm = Vm::new(VmOptions::default().explain(false)).unwrap();
        for _ in 0..10 * KEPT {
            let zeros = vm.anonymous(PAGE_SIZE).unwrap();
            vm.core.failures.keep(&zeros.core, PageIndex(0), 0, crate::reason::SHORT);
            zeros.core.mention();
        }
        let kept = vm.core.names.named.lock().anyway().len();
        assert!((KEPT..4 * KEPT).contains(&kept), "{kept}");
        let failures = vm.take_failures();
        assert_eq!(failures.len(), KEPT);
        assert!(failures.iter().all(|failure| !failure.object.is_empty()));
        assert_eq!(vm.core.names.named.lock().anyway().len(), 0);
    }

    #[test]
    fn names_stay_while_faults_are_held_up_behind_another() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(PAGE_SIZE).unwrap();
        let vm = Vm::new(VmOptions::default().record_faults(16)).unwrap();
        let zeros = vm.anonymous(PAGE_SIZE).unwrap();
        let records = vm.core.records.as_ref().unwrap();
        records.hold_up();
        let map = vm.map(&vm.file(file.path()).unwrap(), &MapOptions::shared()).unwrap();
        assert_eq!(map.as_slice()[0], 0);
        drop(map);
        assert!(vm.take_trace().faults.is_empty());
        records.go_on();
        let trace = vm.take_trace();
        let names: Vec<&str> = trace.objects.iter().map(|object| object.path.as_str()).collect();
        assert!(names.contains(&file.path().to_str().unwrap()), "{names:?}");
        assert!(vm.take_trace().faults.is_empty() && vm.core.names.named.lock().anyway().len() == 1);
        drop(zeros);
    }
}
