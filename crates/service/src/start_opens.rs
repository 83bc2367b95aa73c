//! What an observed start opens and looks up, where no agent tells: names, and the files that it read.
//!
//! Names come from the kernel where it tells of all that are looked up ([`crate::start_names`]), else those of what is opened. The kernel reports each open ([`crate::opened`]), but no read. So if the start opened a file and did not map it, those pages count as read that are in memory and
//! that anybody has used. Of a small file these are mostly all pages, and a program that opens a small file mostly reads all of it. Of a large file nothing
//! counts: who used which part of it is not known.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use prepage_core::profile::observation::Coverage;
use prepage_core::{PageIndex, PageRange};
use prepage_observe::Follower;
use prepage_observe::sightings::Sightings;
use prepage_profiles::identity::{identity_of, open_to_read};
use prepage_sys::page_flags::PageFlags;
use prepage_sys::processor_time::of_this_process;
use prepage_sys::rights::Rights;

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
    /// What it looks up, where the kernel tells.
    names: Option<StartNames>,
    rights: Rights,
    /// Processor time of this process after which no more is looked at.
    spent_max: Duration,
    coverage: Coverage,
    names_coverage: Coverage,
}

impl StartOpens {
    /// Those of `process` and of what it starts, on the file systems of `watch`, and its `names`. Files are opened again with its rights, until this process
    /// has had processor time `spent_max`.
    pub fn follow(process: &Process, watch: &Watch, names: Option<StartNames>, spent_max: Duration) -> Self {
        let (pid, rights) = (process.context.pid, process.rights.clone());
        let opened = Opened::of_start(pid, watch).ok();
        // What it has opened before was not seen.
        let is_early = process.moment.is_loading(pid);
        let coverage = if is_early && opened.is_some() { Coverage::Superset } else { Coverage::Partial };
        let sees_all_names = names.as_ref().is_some_and(StartNames::is_early);
        let names_coverage = if sees_all_names { Coverage::Exact } else { Coverage::Partial };
        Self { opened, names, rights, spent_max, coverage, names_coverage }
    }
}

impl Follower for StartOpens {
    fn look(&mut self, last: bool, sightings: &mut Sightings) {
        self.look_at_names(last, sightings);
        let Some(mut opened) = self.opened.take() else { return };
        opened.look(sightings);
        let is_over = last || opened.others() > OTHERS_MAX;
        if !last && is_over || opened.is_lost() {
            self.coverage = Coverage::Partial;
        }
        if !is_over {
            self.opened = Some(opened);
        } else if !note_opens(&opened, &self.rights, self.spent_max, sightings)
            .is_ok_and(|is_all_there| is_all_there)
        {
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
        let Some(names) = &mut self.names else { return };
        names.look();
        if last && names.note(&self.rights, sightings).is_err() || !names.is_whole() {
            self.names_coverage = Coverage::Partial;
        }
    }
}

/// Notes as names what was opened, as far as `rights` may look it up, and what is used of files that were not mapped, as far as they may read it. Returns
/// whether all were looked at, and are still in memory.
fn note_opens(
    opened: &Opened,
    rights: &Rights,
    spent_max: Duration,
    sightings: &mut Sightings,
) -> std::io::Result<bool> {
    let is_spent = || of_this_process() >= spent_max;
    let flags = PageFlags::open()?;
    let mapped: HashSet<_> = sightings.mapped().into_iter().map(Path::to_path_buf).collect();
    let is_read = |open: &&Open| !open.is_directory && !mapped.contains(&open.path);
    {
        let _assumed = rights.assume()?;
        for open in opened.opens().iter().filter(|open| may_look_up(&open.path)) {
            if is_spent() {
                return Ok(false);
            }
            sightings.lookup(open.time_ns, &open.path, open.is_directory);
        }
    }
    let (mut looked_at, mut gone) = (0, 0);
    for Open { time_ns, path, .. } in opened.opens().iter().filter(is_read) {
        if is_spent() {
            return Ok(false);
        }
        let file = {
            let _assumed = rights.assume()?;
            open_to_read(path)
        };
        let Ok(file) = file else { continue };
        let Ok(identity) = identity_of(&file) else { continue };
        if identity.size_bytes <= READ_BYTES_MAX {
            let (used, others) =
                pages_of(&flags, &file, PageRange::covering(0, identity.size_bytes), &|_| true);
            looked_at += 1;
            gone += usize::from(used.is_empty() && others.is_empty() && identity.size_bytes > 0);
            for page in used {
                let inode = (identity.device, identity.inode);
                sightings.read(*time_ns, path, inode, PageRange::new(page, PageIndex(page.0 + 1)));
            }
        }
    }
    Ok(gone < GONE_MIN || GONE_SHARE * gone < looked_at)
}
