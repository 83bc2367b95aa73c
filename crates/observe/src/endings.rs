//! What processes tell of the pages that they have touched, before their page tables go.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use prepage_sys::agent::{Event, Record, TouchedRun};
use prepage_sys::clock::now_ns;

use crate::elsewhere::numbers;
use crate::sightings::Sightings;

/// The ends of page tables in a process tree: a process ends, or executes another program in its own place.
#[derive(Debug, Default)]
pub(crate) struct Endings {
    /// The numbers that processes have for themselves, and tell, where these are others: in a namespace of process ids.
    own_numbers: HashMap<u32, u32>,
    /// The process that was the last to have each number for itself.
    processes: HashMap<u32, u32>,
    /// Numbers that two processes had for themselves at one time: which of them has told is not known.
    shared: HashSet<u32>,
    /// How many page tables of each process went without a last look. By its own number, as the next two.
    unseen: HashMap<u32, u32>,
    /// By process: how many page tables it told everything of, before they went. This may rise before `unseen` does, or after.
    told: HashMap<u32, u32>,
    /// The file that each process has named last.
    mapped: HashMap<u32, PathBuf>,
    is_missed: bool,
    has_windows: bool,
}

impl Endings {
    /// Process `pid` is looked at from now on.
    pub(crate) fn begun(&mut self, pid: u32) {
        let numbers_of_it = numbers(pid);
        let own = numbers_of_it.last().copied().unwrap_or(pid);
        match numbers_of_it.len() {
            2.. => self.own_numbers.insert(pid, own),
            _ => self.own_numbers.remove(&pid),
        };
        let before = self.processes.insert(own, pid).filter(|before| *before != pid);
        if before.is_some_and(|before| numbers(before).last() == Some(&own)) {
            self.shared.insert(own);
        }
    }

    /// The page table of process `pid` is gone, and nobody looked at it last.
    pub(crate) fn unseen(&mut self, pid: u32) {
        let own = self.own_numbers.get(&pid).copied().unwrap_or(pid);
        *self.unseen.entry(own).or_default() += 1;
    }

    /// A process has ended that nobody knew.
    pub(crate) fn missed(&mut self) {
        self.is_missed = true;
    }

    /// Notes the pages that processes say they have touched. Returns when the last page that was not known before was touched, if there is one.
    pub(crate) fn take_in(&mut self, told: &[Record], sightings: &mut Sightings) -> Option<u64> {
        let now = now_ns();
        let mut last_touch_ns = None;
        for record in told {
            // Programs may write anything there.
            let time_ns = if record.time_ns == 0 { now } else { record.time_ns.min(now) };
            match record.event {
                Event::Mapped { ref path } => drop(self.mapped.insert(record.pid, path.clone())),
                Event::Touched { device, inode, ref runs } => {
                    let path = self.mapped.get(&record.pid);
                    let place = path.and_then(|path| sightings.place(path, Some((device, inode))));
                    let Some(place) = place else { continue };
                    for &TouchedRun { pages, is_armed } in runs {
                        // What was there when its mapping was armed was noted then, with neighbours.
                        let is_new = match is_armed {
                            true => sightings.touch_all_unless_near(time_ns, place, pages),
                            false => sightings.window(time_ns, place, pages),
                        };
                        self.has_windows |= !is_armed;
                        last_touch_ns = last_touch_ns.max(is_new.then_some(time_ns));
                    }
                }
                Event::Told => *self.told.entry(record.pid).or_default() += 1,
                Event::GoesOn => {
                    let told = self.told.entry(record.pid).or_default();
                    *told = told.saturating_sub(1);
                }
                _ => {}
            }
        }
        last_touch_ns
    }

    /// Whether neighbours of pages are taken for touched.
    pub(crate) fn has_windows(&self) -> bool {
        self.has_windows
    }

    /// Whether touched pages may be unknown. So it is where a page table went after a last touch that nobody had looked at, and that its process did not tell.
    pub(crate) fn has_missed(&self) -> bool {
        let told = |pid| self.told.get(pid).copied().unwrap_or_default();
        self.is_missed
            || self.unseen.iter().any(|(pid, count)| self.shared.contains(pid) || *count > told(pid))
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};
    use std::time::{Duration, Instant};

    use prepage_sys::proc_file;
    use prepage_testing::{Need, has};
    use rustix::process::{Pid, Signal, kill_process};

    use super::*;

    /// A process that is the first of a namespace of process ids, and who has started it.
    fn first_of_a_namespace() -> (Child, u32) {
        let child = Command::new("unshare").args(["--pid", "--fork", "--kill-child", "sleep", "60"]).spawn();
        let child = child.unwrap();
        let children = format!("/proc/{0}/task/{0}/children", child.id());
        let until = Instant::now() + Duration::from_secs(20);
        let first = || proc_file::read_text(&children).unwrap().split_whitespace().next()?.parse().ok();
        let mut pid = None;
        while pid.is_none() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
            pid = first();
        }
        (child, pid.expect("it starts one"))
    }

    #[test]
    fn who_goes_on_after_an_exec_that_failed_has_not_told_all() {
        let pid = 7;
        let told = |events: &[Event]| {
            let record = |event: &Event| Record { time_ns: 1, pid, event: event.clone() };
            let records: Vec<Record> = events.iter().map(record).collect();
            let mut endings = Endings::default();
            endings.take_in(&records, &mut Sightings::default());
            endings.unseen(pid);
            !endings.has_missed()
        };
        assert!(told(&[Event::Told]));
        assert!(!told(&[Event::Told, Event::GoesOn]));
        assert!(told(&[Event::Told, Event::GoesOn, Event::Told]));
    }

    #[test]
    fn what_is_told_by_one_of_two_processes_with_the_same_number_counts_for_neither() {
        // Whoever may mount may make a namespace of process ids.
        if !has(Need::Root) || !has(Need::Mounts) || !has(Need::Tool("unshare".into())) {
            return;
        }
        for at_one_time in [true, false] {
            let mut endings = Endings::default();
            let end = |(mut child, pid): (Child, u32)| {
                kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
                child.wait().unwrap();
            };
            let one = first_of_a_namespace();
            endings.begun(one.1);
            endings.unseen(one.1);
            let mut one = Some(one);
            if !at_one_time {
                one.take().map(end);
            }
            let other = first_of_a_namespace();
            endings.begun(other.1);
            one.map(end);
            end(other);
            // By one of them, or by the first.
            endings.told.insert(1, 1);
            assert_eq!(endings.has_missed(), at_one_time);
        }
    }
}
