//! The page tables of a process tree, where perf is forbidden: which pages are there, looked at in growing intervals.
//!
//! In an armed mapping only pages that were touched are there. Order is known as far as the intervals tell, and what is
//! touched between the last look and the end of a process is not seen.

mod process;

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use prepage_core::profile::observation::Coverage;
use prepage_core::{PageIndex, PageRange};
use prepage_sys::pagemap::PageMap;
use prepage_trace::now_ns;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::armed::SharedRanges;
use crate::armer::Armer;
use crate::arming::Entry;
use crate::runs::{joined, within, without};
use crate::sightings::Sightings;
use crate::until::Until;
use process::{Mapping, Process};

/// Shortest and longest interval between looks; between these, a tenth of the time since the beginning.
const INTERVAL_MIN: Duration = Duration::from_micros(500);
const INTERVAL_MAX: Duration = Duration::from_millis(50);

/// Page tables, and what was seen in them.
#[derive(Debug)]
pub struct PageTables {
    root: u32,
    armer: Armer,
    executed: bool,
    began_ns: u64,
    processes: HashMap<u32, Process>,
    has_windows: bool,
    /// Whether a program has ended: what it touched since the last look was not seen.
    has_ended: bool,
    unreadable: u32,
}

impl PageTables {
    /// Looks at process `pid`, which is entered as `entry` says, and all that it starts. To be used by this thread alone.
    pub fn attach(pid: u32, entry: Entry, mut armer: Armer) -> Self {
        if entry == Entry::AtExec {
            armer.visit_at_exec(pid);
        }
        Self {
            root: pid,
            armer,
            executed: entry == Entry::Executed,
            began_ns: now_ns(),
            processes: HashMap::new(),
            has_windows: false,
            has_ended: false,
            unreadable: 0,
        }
    }

    /// Waits for the next look. Returns whether `until` is over.
    pub fn wait(&mut self, until: &Until) -> bool {
        let since = Duration::from_nanos(now_ns().saturating_sub(self.began_ns));
        let interval = (since / 10).clamp(INTERVAL_MIN, INTERVAL_MAX).min(until.remaining());
        let ends = until.descriptors();
        let all = ends.iter().copied().chain(self.armer.descriptor());
        let mut fds: Vec<PollFd<'_>> = all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let _ = poll(&mut fds, Timespec::try_from(interval).ok().as_ref());
        let ready: Vec<bool> = fds[..ends.len()].iter().map(|fd| !fd.revents().is_empty()).collect();
        until.note(&ready)
    }

    /// Looks at every process there is.
    pub fn look(&mut self, sightings: &mut Sightings, last_touch_ns: &mut u64) {
        loop {
            let sent = self.armer.receive();
            let tree: Vec<u32> = tree(self.root)
                .into_iter()
                .filter(|&(pid, parent)| self.notice(pid, parent, last_touch_ns))
                .map(|(pid, _)| pid)
                .collect();
            self.armer.go_on(sent);
            self.armer.judge();
            let endings = self.armer.take_endings();
            for pid in tree {
                self.look_at(pid, sightings, last_touch_ns);
            }
            for ending in &endings {
                // One that lives still was looked at while it waited.
                match self.processes.get_mut(&ending.pid()).filter(|process| process.map.is_alive()) {
                    Some(process) => process.was_seen_last = true,
                    None => self.has_ended = true,
                }
            }
            self.processes.retain(|&pid, process| {
                let lives = process.map.is_alive();
                if !lives {
                    self.has_ended |= !process.was_seen_last;
                    self.armer.ended(pid);
                }
                lives
            });
            // Others may have waited meanwhile.
            if endings.is_empty() {
                return;
            }
        }
    }

    /// Whether `pid` is a process to look at; one that executes another program than before is known by it afterwards.
    fn notice(&mut self, pid: u32, parent: u32, last_touch_ns: &mut u64) -> bool {
        let Ok(program) = fs::read(format!("/proc/{pid}/auxv")) else { return false };
        if program.is_empty() {
            return false;
        }
        // A child of vfork(2) has its parent's address space, which lives on when it executes another program.
        if self.processes.get(&pid).is_some_and(|known| known.program == program) {
            return true;
        }
        if !self.executed {
            // The starter, as long as it is what this process is.
            self.executed =
                fs::read(format!("/proc/{}/auxv", std::process::id())).is_ok_and(|own| own != program);
            if !self.executed {
                return false;
            }
            *last_touch_ns = now_ns();
        }
        // A child that has not executed anything uses what its parent uses, but is not armed.
        let is_fork =
            pid != self.root && self.processes.get(&parent).is_some_and(|known| known.program == program);
        let Ok(map) = PageMap::of(pid) else {
            self.unreadable += 1;
            return false;
        };
        self.processes.insert(pid, Process::new(program, map));
        if !is_fork {
            self.armer.executed(pid, now_ns());
        }
        true
    }

    fn look_at(&mut self, pid: u32, sightings: &mut Sightings, last_touch_ns: &mut u64) {
        // Its pages stay where they are until it is known since when they are armed.
        if self.armer.is_expected(pid) {
            return;
        }
        // What is armed from now on may have been touched before.
        let now = now_ns();
        let Some(process) = self.processes.get_mut(&pid) else { return };
        if process.may_have_other_mappings(pid, now) {
            process.read_mappings(pid, now, &mut self.armer, sightings);
        }
        let Ok(present) = process.map.present() else { return };
        let mut new = without(&present, &process.noted);
        if process.is_of_unknown_file(&new) {
            process.read_mappings(pid, now, &mut self.armer, sightings);
            new = without(&present, &process.noted);
        }
        // An agent sends word of a mapping before the program touches it: what is not armed may have been by now.
        let may_be_armed = self.armer.is_sent_something();
        let ranges = self.armer.ranges();
        let ranges = ranges.now();
        let mut later = Vec::new();
        for Mapping { mapped, place } in &process.mappings {
            let Some(place) = *place else { continue };
            for run in within(&new, (mapped.start, mapped.end)) {
                let is_armed = ranges.contains(pid, run.0, now);
                if !is_armed && may_be_armed {
                    later.push(run);
                    continue;
                }
                let page = |address| PageIndex::containing(mapped.offset_bytes + (address - mapped.start));
                let pages = PageRange::new(page(run.0), page(run.1));
                let is_new = if is_armed {
                    pages.iter().fold(false, |is_new, page| sightings.touch(now, place, page) | is_new)
                } else {
                    self.has_windows = true;
                    sightings.window(now, place, pages)
                };
                if is_new {
                    *last_touch_ns = now;
                }
            }
        }
        process.noted = joined(&process.noted, &without(&new, &later));
    }

    /// The process and its descendants, itself first.
    pub fn pids(&self) -> Vec<u32> {
        tree(self.root).into_iter().map(|(pid, _)| pid).collect()
    }

    /// Whether some program is not armed yet that will be.
    pub fn is_arming(&self) -> bool {
        self.armer.is_waiting() || self.armer.is_expected(self.root)
    }

    /// Looks at every process there is, as far as it is armed by now.
    pub fn look_at_all(&mut self, sightings: &mut Sightings, last_touch_ns: &mut u64) {
        self.armer.expect_no_more();
        self.look(sightings, last_touch_ns);
    }

    /// Hands over what arms; nothing is armed from here any more. Visits end before: only the thread that began one can.
    pub fn take_armer(&mut self) -> Armer {
        self.armer.end_all_visits();
        std::mem::replace(&mut self.armer, Armer::new(None))
    }

    /// Whether neighbours of pages are taken for used.
    pub fn has_windows(&self) -> bool {
        self.has_windows
    }

    /// Whether pages may have been used that were not seen, in processes that have ended or may not be looked at.
    pub fn has_missed(&self) -> bool {
        let is_known = |process: &Process| process.was_seen_last || process.map.is_alive();
        self.has_ended || !self.executed || !self.processes.values().all(is_known) || self.unreadable > 0
    }

    /// Whether the program was seen to be executed.
    pub fn executed(&self) -> bool {
        self.executed
    }

    /// What the absence of a page means.
    pub fn coverage(&self) -> Coverage {
        match (self.has_missed(), self.has_windows) {
            (true, _) => Coverage::Partial,
            (false, true) => Coverage::Superset,
            (false, false) => Coverage::Exact,
        }
    }

    /// What is armed until now.
    pub fn ranges(&self) -> SharedRanges {
        self.armer.ranges()
    }

    /// Disarms everything. Returns what could not be seen.
    pub fn end(self) -> Vec<String> {
        let mut unseen = self.armer.ranges().now().refusals();
        if self.unreadable > 0 {
            unseen.push(format!("processes whose page tables this user may not read: {}", self.unreadable));
        }
        unseen
    }
}

/// `root` and its descendants, each with its parent.
fn tree(root: u32) -> Vec<(u32, u32)> {
    let mut found = vec![(root, 0)];
    let mut at = 0;
    while let Some(&(pid, _)) = found.get(at) {
        at += 1;
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        for thread in threads {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            found.extend(
                children.split_ascii_whitespace().filter_map(|child| Some((child.parse().ok()?, pid))),
            );
        }
    }
    found
}
