//! Processes for which a name may mean another file than here: in a mount namespace or below a root of their own.
//!
//! What they map and read is known by inode, and is told where the same name means the same inode here, from where the next
//! start is prefetched. The names they look up say nothing here, and are left out.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

use prepage_sys::process_status::ProcessStatus;

/// Where a process looks names up.
#[derive(Clone, Debug, PartialEq, Eq)]
struct View {
    namespace: PathBuf,
    root: PathBuf,
}

impl View {
    /// That of process `pid` (a number or `self`); `None` where it is gone, or not this user's to see.
    fn of(pid: &str) -> Option<Self> {
        let link = |name: &str| fs::read_link(format!("/proc/{pid}/{name}")).ok();
        Some(Self { namespace: link("ns/mnt")?, root: link("root")? })
    }
}

/// Whether process `pid` looks names up elsewhere than this process; `None` where it is gone, or not this user's to see.
pub fn is_elsewhere(pid: u32) -> Option<bool> {
    static OWN: OnceLock<Option<View>> = OnceLock::new();
    let own = OWN.get_or_init(|| View::of("self")).as_ref()?;
    Some(View::of(&pid.to_string())? != *own)
}

/// Looks up what observers look up once: to be called before this process is [copied](prepage_sys::copied), for a copy that observes.
pub fn get_ready() {
    let _ = is_elsewhere(std::process::id());
    prepage_sys::arm::get_ready();
    prepage_sys::perf::get_ready();
}

/// Which processes of a tree are elsewhere, also once they are gone.
#[derive(Debug, Default)]
pub struct Elsewhere {
    /// By process: each looked at when it executed a program, or when it was asked for first.
    known: HashMap<u32, bool>,
    /// The numbers that those elsewhere have for themselves: in a namespace of process ids they are others.
    own_numbers: HashSet<u32>,
    /// Those asked for that were gone, and had not been seen before.
    gone: HashSet<u32>,
}

impl Elsewhere {
    /// Process `pid` has executed a program: from where, it may have changed before.
    pub fn executed(&mut self, pid: u32) {
        let Some(is) = is_elsewhere(pid) else { return };
        self.known.insert(pid, is);
        if is {
            self.own_numbers.extend(numbers(pid));
        }
    }

    /// Whether the process with the number `own_number` for itself is elsewhere. One that is gone and was never seen is, where
    /// any other of its tree is: a child of it, most likely. `None` where no other is elsewhere yet: news of a parent's exec may come
    /// after the names that its child looked up.
    pub fn contains(&mut self, own_number: u32) -> Option<bool> {
        if self.own_numbers.contains(&own_number) {
            return Some(true);
        }
        if let Some(&is) = self.known.get(&own_number) {
            return Some(is);
        }
        if !self.gone.contains(&own_number) {
            if let Some(is) = is_elsewhere(own_number) {
                self.known.insert(own_number, is);
                return Some(is);
            }
            self.gone.insert(own_number);
        }
        self.known.values().any(|is| *is).then_some(true)
    }
}

/// The numbers of a process in its namespaces, from here inwards (proc_pid_status(5)).
pub(crate) fn numbers(pid: u32) -> Vec<u32> {
    let Ok(status) = ProcessStatus::of(pid) else { return Vec::new() };
    let numbers = status.field("NSpid").unwrap_or_default();
    numbers.split_ascii_whitespace().filter_map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::{Command, Stdio};

    use prepage_testing::{Need, has};

    use super::*;

    #[test]
    fn a_mount_namespace_and_a_root_are_elsewhere_and_a_child_is_not() {
        assert_eq!((is_elsewhere(std::process::id()), is_elsewhere(0)), (Some(false), None));
        let mut ways = vec![(vec!["sh"], false)];
        if has(Need::Mounts) {
            ways.push((vec!["unshare", "-m", "sh"], true));
            ways.push((vec!["unshare", "-mpf", "--kill-child", "sh"], true));
        }
        for (command, expected) in ways {
            let mut child = Command::new(command[0])
                .args(&command[1..])
                .args(["-c", "echo; exec sleep 60"])
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            child.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
            let children = format!("/proc/{0}/task/{0}/children", child.id());
            let children = fs::read_to_string(children).unwrap();
            let pid = children.trim().parse().unwrap_or(child.id());
            let mut elsewhere = Elsewhere::default();
            elsewhere.executed(pid);
            assert_eq!(elsewhere.contains(pid), Some(expected), "{command:?}");
            assert_eq!(elsewhere.contains(*numbers(pid).last().unwrap()), Some(expected), "{command:?}");
            assert_eq!(elsewhere.contains(u32::MAX), expected.then_some(true), "gone before it was seen");
            // The names of the child came before the exec of its parent.
            let mut elsewhere = Elsewhere::default();
            assert_eq!(elsewhere.contains(u32::MAX), None);
            elsewhere.executed(pid);
            assert_eq!(elsewhere.contains(u32::MAX), expected.then_some(true));
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
