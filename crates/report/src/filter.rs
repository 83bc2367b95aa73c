//! Which faults a report counts.

use prepage_core::{Fault, FaultClass};
use prepage_trace::filter::{kept_comm, remembered};
use prepage_trace::parquet::{Names, Wanted};
use serde::Serialize;

use crate::report::UNKNOWN;

/// Chooses faults. A fault passes when each list that is not empty contains it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Filter {
    /// Of these classes.
    #[serde(serialize_with = "class_names")]
    pub classes: Vec<FaultClass>,
    /// On objects whose path contains one of these.
    pub files: Vec<String>,
    /// By threads of one of these names. The kernel keeps 15 bytes of a thread's name: what is longer is compared up to there.
    pub comms: Vec<String>,
    /// By one of these processes.
    pub pids: Vec<u32>,
}

impl Filter {
    /// Whether it lets everything pass.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What has to be read of a fault to decide.
    pub fn wanted(&self) -> Wanted {
        let of_thread = !self.comms.is_empty() || !self.pids.is_empty();
        let object = if self.files.is_empty() { Wanted::empty() } else { Wanted::OBJECT };
        object | if of_thread { Wanted::THREAD } else { Wanted::empty() }
    }
}

fn class_names<S: serde::Serializer>(classes: &[FaultClass], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(classes.iter().map(|class| class.name()))
}

/// A filter at work in one scan: what it decided of an object or a thread it remembers.
#[derive(Clone, Debug)]
pub struct Sieve<'a> {
    filter: &'a Filter,
    objects: Vec<Option<bool>>,
    threads: Vec<Option<bool>>,
}

impl<'a> Sieve<'a> {
    /// `filter`, about to be used in a scan.
    pub fn new(filter: &'a Filter) -> Self {
        Self { filter, objects: Vec::new(), threads: Vec::new() }
    }

    /// Whether `fault`, whose numbers point into `names`, passes the filter.
    pub fn passes(&mut self, fault: &Fault, names: &Names) -> bool {
        let filter = self.filter;
        if !filter.classes.is_empty() && !filter.classes.contains(&fault.class) {
            return false;
        }
        if !filter.files.is_empty() {
            let of_wanted = |path: &str| filter.files.iter().any(|part| path.contains(part.as_str()));
            let passes = match fault.object {
                Some(id) => remembered(&mut self.objects, id.0, || of_wanted(&names.objects.get(id.0).path)),
                None => of_wanted(UNKNOWN),
            };
            if !passes {
                return false;
            }
        }
        if filter.comms.is_empty() && filter.pids.is_empty() {
            return true;
        }
        remembered(&mut self.threads, fault.thread.0, || {
            let thread = names.threads.get(fault.thread.0);
            (filter.comms.is_empty() || filter.comms.iter().any(|comm| is_named(&thread.comm, comm)))
                && (filter.pids.is_empty() || filter.pids.contains(&thread.pid))
        })
    }
}

/// Whether `wanted` means the thread name `comm`, which the kernel may have cut short.
fn is_named(comm: &str, wanted: &str) -> bool {
    comm == wanted || comm == kept_comm(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_found_by_the_whole_of_a_name_that_the_kernel_cut_short() {
        let cut = "a-name-that-is-";
        assert!(is_named(cut, cut) && is_named(cut, "a-name-that-is-long"));
        assert!(!is_named(cut, "a-name-that-is") && !is_named("a-name", "a-name-that-is-long"));
        assert!(is_named("äääääää\u{fffd}", "ääääääää"), "cut inside a letter");
    }
}
