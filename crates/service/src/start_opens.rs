//! What an observed start opens and looks up, where no agent tells: names, and the files that it read.
//!
//! Names come from the kernel where it tells of all that are looked up ([`crate::start_names`]), else those of what is opened. The kernel reports each open ([`crate::opened`]), but no read. So if the start opened a file and did not map it, those pages count as read that are in memory and
//! that anybody has used. Of a small file these are mostly all pages, and a program that opens a small file mostly reads all of it. Of a large file nothing
//! counts: who used which part of it is not known.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use prepage_core::PageRange;
use prepage_core::profile::observation::Coverage;
use prepage_observe::Follower;
use prepage_observe::asks::Asks;
use prepage_observe::sightings::Sightings;
use prepage_profiles::identity::{identity_at, identity_of, open_to_read};
use prepage_sys::file_handle::FileHandle;
use prepage_sys::page_flags::PageFlags;
use prepage_sys::processor_time::of_this_process;
use prepage_sys::rights::Rights;
use prepage_sys::root::{self, Root};
use rustix::fs::OFlags;

use crate::askers::{Askers, leave_to_ask};
use crate::line::{Line, News};
use crate::opened::{Open, Opened, pages_of};
use crate::process::Process;
use crate::start_names::{StartNames, may_look_up};
use crate::watch::Watch;

/// A larger file is not looked at.
const READ_BYTES_MAX: u64 = 16 << 20;
/// After so many opens by other processes the start's own are followed no further: each costs processor time.
const OTHERS_MAX: usize = 1 << 16;
/// Where of one in so many of the files that were read, and of so many at least, nothing is in memory any more, somebody has sent them out meanwhile.
const GONE_SHARE: usize = 10;
const GONE_MIN: usize = 4;

/// The opens of a start that is observed.
#[derive(Debug)]
pub struct StartOpens {
    opened: Option<Opened>,
    /// Where the service is asked what the start looks up, if the kernel tells.
    line: Option<&'static Line>,
    /// What it looks up, as the service said last.
    names: Option<StartNames>,
    rights: Rights,
    /// The root below which it looks names up, in a container.
    root: Option<Arc<Root>>,
    /// What it looks at, but below a root of its own, where no other mount is on the way.
    asks: Asks,
    /// Processor time of this process after which no more is looked at.
    spent_max: Duration,
    coverage: Coverage,
    names_coverage: Coverage,
}

impl StartOpens {
    /// Those of `process` and of what it starts, on the file systems of `watch`, and its `names`, for which the service is [asked](Self::ask_by). Files are opened
    /// again with [the rights to read for it](Process::rights_to_read), below its root, until this process has had processor time `spent_max`.
    pub fn follow(process: &Process, watch: &Watch, names: Option<&StartNames>, spent_max: Duration) -> Self {
        let (pid, rights, root) = (process.context.pid, process.rights_to_read(), process.root.clone());
        let opened = Opened::of_start(pid, watch).ok();
        // What it has opened before was not seen.
        let is_early = process.moment.is_loading(pid);
        let coverage = if is_early && opened.is_some() { Coverage::Superset } else { Coverage::Partial };
        let sees_all_names = names.is_some_and(StartNames::is_early);
        let names_coverage = if sees_all_names { Coverage::Exact } else { Coverage::Partial };
        let asks = Asks::by(root.is_none().then_some(leave_to_ask));
        let (line, names) = (None, None);
        Self { opened, line, names, rights, root, asks, spent_max, coverage, names_coverage }
    }

    /// What a process needs that follows them.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.opened.as_ref().map_or_else(Vec::new, Opened::descriptors)
    }

    /// From now on `line` leads to the service, which follows the names.
    pub(crate) fn ask_by(&mut self, line: &'static Line) {
        self.line = Some(line);
    }
}

impl Follower for StartOpens {
    fn look(&mut self, last: bool, sightings: &mut Sightings) {
        let mut opened = self.opened.take();
        opened.iter_mut().for_each(|opened| opened.look(sightings));
        let is_over = last || opened.as_ref().is_some_and(|opened| opened.others() > OTHERS_MAX);
        if is_over {
            self.look_at_names(last, sightings);
        }
        let Some(opened) = opened else { return };
        if !last && is_over || opened.is_lost() {
            self.coverage = Coverage::Partial;
        }
        if !is_over {
            self.opened = Some(opened);
        } else if !self.note_opens(&opened, sightings).is_ok_and(|is_all_there| is_all_there) {
            self.coverage = Coverage::Partial;
        }
    }

    fn reads_coverage(&self) -> Coverage {
        self.coverage
    }

    fn names_coverage(&self) -> Coverage {
        self.names_coverage
    }
}

impl StartOpens {
    fn look_at_names(&mut self, last: bool, sightings: &mut Sightings) {
        let news = self.line.and_then(|line| line.news(last));
        if let Some(News { points, names }) = news {
            // What was mounted meanwhile may not answer either.
            Askers::of_machine().know_points(points);
            self.names = names;
        } else {
            self.names_coverage = Coverage::Partial;
        }
        let (Some(names), asks) = (&self.names, &self.asks) else { return };
        let is_noted = !last || names.note(&self.rights, self.root.as_ref(), asks, sightings).is_ok();
        if !is_noted || !names.is_whole() || asks.has_passed_over() {
            self.names_coverage = Coverage::Partial;
        }
    }

    /// Notes as names what was opened, as far as the rights may look it up, and what is used of files that were not mapped, as far as they may read it. Returns
    /// whether all were looked at, and are still in memory.
    fn note_opens(&self, opened: &Opened, sightings: &mut Sightings) -> std::io::Result<bool> {
        let is_spent = || of_this_process() >= self.spent_max;
        let flags = PageFlags::open()?;
        let mapped: HashSet<_> = sightings.mapped().into_iter().map(Path::to_path_buf).collect();
        let opens = {
            let _entered = self.root.as_ref().map(Root::enter);
            let _assumed = self.rights.assume()?;
            match (&self.root, &self.names) {
                (None, _) => {
                    for open in opened.opens().iter().filter(|open| may_look_up(&open.path, &self.asks)) {
                        if is_spent() {
                            return Ok(false);
                        }
                        sightings.lookup(open.time_ns, &open.path, open.is_directory);
                    }
                    Cow::Borrowed(opened.opens())
                }
                (Some(_), Some(names)) => match named_below(opened.opens(), names, is_spent) {
                    Some(opens) => Cow::Owned(opens),
                    None => return Ok(false),
                },
                // Their paths are those of the machine, and nothing tells others.
                (Some(_), None) => return Ok(false),
            }
        };
        let is_read = |open: &&Open| !open.is_directory && !mapped.contains(&open.path);
        let (mut looked_at, mut gone) = (0, 0);
        for Open { time_ns, path, .. } in opens.iter().filter(is_read) {
            if is_spent() {
                return Ok(false);
            }
            let file = {
                let _entered = self.root.as_ref().map(Root::enter);
                let _assumed = self.rights.assume()?;
                self.asks.at(path, || {
                    // Before it is opened: opening a pipe lets go whoever waits at its other end.
                    identity_at(path).ok()?;
                    let file = open_to_read(path).ok()?;
                    Some((identity_of(&file).ok()?, file))
                })
            };
            let Some(Some((identity, file))) = file else { continue };
            if identity.size_bytes <= READ_BYTES_MAX {
                let (used, others) =
                    pages_of(&flags, &file, PageRange::covering(0, identity.size_bytes), &|_| true)?;
                looked_at += 1;
                gone += usize::from(used.is_empty() && others.is_empty() && identity.size_bytes > 0);
                for page in used {
                    let inode = (identity.device, identity.inode);
                    sightings.read(*time_ns, path, inode, page.alone());
                }
            }
        }
        Ok((gone < GONE_MIN || GONE_SHARE * gone < looked_at) && !self.asks.has_passed_over())
    }
}

/// What was opened, by its names below the root that was entered. The kernel tells of the file below an overlay, by a name that containers do not have: which
/// of the names that were looked up is this file's, its number tells. `None` where the time for it `is_spent`.
fn named_below(opens: &[Open], names: &StartNames, is_spent: impl Fn() -> bool) -> Option<Vec<Open>> {
    let by_number: HashMap<_, _> = opens.iter().map(|open| (open.file.number(), open)).collect();
    let opened = |(path, time_ns): (&Path, u64)| {
        let place = root::open(path, OFlags::PATH).ok()?;
        let numbers = FileHandle::numbers_of(place.as_fd()).ok()?;
        let open = numbers.iter().find_map(|number| by_number.get(number))?;
        let path = root::canonicalize(path).ok()?;
        Some(Open { time_ns, path, ..(*open).clone() })
    };
    let mut found = Vec::new();
    for name in names.all() {
        if is_spent() {
            return None;
        }
        found.extend(opened(name));
    }
    Some(found)
}
