//! What the file system had to read of the root's device by itself while a boot was followed: inodes and directories that nobody opened. Failing
//! lookups, links and names of which somebody only asks what they are lead there, and no event tells of those.
//!
//! What was missed in two boots one after the other is brought in by the next ones. Nothing tells whether it was used then, so it is
//! left out now and then, and missed again where it is needed.

use std::collections::BTreeMap;

use prepage_core::PAGE_SIZE;
use prepage_sys::device_number;
use prepage_sys::disk_stat::DiskStat;
use prepage_sys::perf::{
    BlockTracepoint, Observed, PerfError, PerfEvent, Record, RecordKind, Ring, Tracefs, online_cpus,
};

/// A CPU's reads of a twentieth of a second.
const RING_BYTES: usize = 32 << 10;
/// Boots that bring in what was missed in two.
const BOOTS: u8 = 8;
/// More than the directories and inodes of any boot.
pub const PAGES_MAX: usize = 1 << 12;

/// The file system's own reads of a device, from now on.
#[derive(Debug)]
pub struct MissedReads {
    tracepoint: BlockTracepoint,
    /// As the tracepoint has it, and where it begins on its disk.
    device: u64,
    first_sector: u64,
    cpus: Vec<(Ring, PerfEvent)>,
    /// By page: the rank of what was noted last before it was missed.
    pages: BTreeMap<u64, u32>,
}

/// What was missed: a page of the device, the rank of what was needed next, and how many boots more bring it in: none yet where it was missed once.
pub type Missed = (u64, u32, u8);

impl MissedReads {
    /// Begins to watch the device with number `number` (`st_dev`).
    ///
    /// # Errors
    /// Needs root and a kernel with block tracepoints.
    pub fn watch(number: u64) -> Result<Self, PerfError> {
        let other = |action| move |source: std::io::Error| PerfError::Other { action, source };
        let tracefs = Tracefs::open().map_err(other("opening tracefs"))?;
        let tracepoint = BlockTracepoint::of(&tracefs, "block_bio_queue")?;
        let of_cpu = |cpu| {
            let event = tracepoint.watch(Observed::System, cpu, RING_BYTES)?;
            Ok((Ring::map(&event, RING_BYTES).map_err(other("mapping a ring"))?, event))
        };
        let cpus = online_cpus().map_err(other("listing the CPUs"))?;
        let cpus = cpus.into_iter().map(of_cpu).collect::<Result<_, PerfError>>()?;
        let known = DiskStat::directory(number);
        std::fs::metadata(&known).map_err(other("finding the device"))?;
        // A partition's; other devices begin where they begin.
        let start = std::fs::read_to_string(known.join("start"));
        let first_sector = start.ok().and_then(|start| start.trim().parse().ok()).unwrap_or(0);
        let device = device_number::of_kernel(number);
        Ok(Self { tracepoint, device, first_sector, cpus, pages: BTreeMap::new() })
    }

    /// Notes what processes missed since the last look that `counts` says yes of, when `noted_pages` pages of files were noted: what prepage itself
    /// looks up, the service among others, it looks up ahead of need.
    pub fn look(&mut self, noted_pages: usize, counts: &mut dyn FnMut(u32) -> bool) {
        let rank = u32::try_from(noted_pages).unwrap_or(u32::MAX);
        let own = std::process::id();
        for (ring, _) in &mut self.cpus {
            ring.drain(|bytes| {
                let Ok(Record { pid, kind: RecordKind::Sample(sample), .. }) = Record::decode(bytes) else {
                    return;
                };
                let Some(read) = sample.raw().and_then(|raw| self.tracepoint.read(raw)) else { return };
                let start = read.sector.checked_sub(self.first_sector).map(|sector| sector * 512);
                let Some(start) = start.filter(|_| read.device == self.device && read.is_metadata) else {
                    return;
                };
                if pid == own || !counts(pid) {
                    return;
                }
                for page in start / PAGE_SIZE..(start + read.bytes).div_ceil(PAGE_SIZE) {
                    if self.pages.len() < PAGES_MAX {
                        self.pages.entry(page).or_insert(rank);
                    }
                }
            });
        }
    }

    /// What is to be remembered after this boot, of what was missed `before` and in it, without pages that are `named` otherwise.
    pub fn remember(&self, before: &[Missed], named: impl Fn(u64) -> bool) -> Vec<Missed> {
        remember(before, &self.pages, named)
    }
}

fn remember(before: &[Missed], now: &BTreeMap<u64, u32>, named: impl Fn(u64) -> bool) -> Vec<Missed> {
    let mut all: BTreeMap<u64, (u32, u8)> = now.iter().map(|(&page, &rank)| (page, (rank, 0))).collect();
    for &(page, rank, boots) in before {
        if boots > 0 {
            all.insert(page, (rank, boots - 1));
        } else if let Some(again) = all.get_mut(&page) {
            *again = (rank.min(again.0), BOOTS);
        }
    }
    all.into_iter()
        .filter(|&(page, _)| !named(page))
        .map(|(page, (rank, boots))| (page, rank, boots))
        .take(PAGES_MAX)
        .collect()
}

#[cfg(test)]
mod tests {
    use prepage_testing::{Need, has};

    use super::*;

    #[test]
    fn what_is_missed_twice_is_brought_in_for_some_boots_and_then_has_to_be_missed_again() {
        let missed = |pages: &[u64]| pages.iter().map(|&page| (page, 7)).collect::<BTreeMap<_, _>>();
        let mut known = remember(&[], &missed(&[1, 2, 3]), |page| page == 3);
        assert_eq!(known, [(1, 7, 0), (2, 7, 0)], "once, and page 3 is known by a name");
        known = remember(&known, &missed(&[1, 4]), |_| false);
        assert_eq!(known, [(1, 7, BOOTS), (4, 7, 0)]);
        for boots in (0..BOOTS).rev() {
            known = remember(&known, &missed(&[]), |_| false);
            assert_eq!(known, [(1, 7, boots)], "nothing tells whether it was used");
        }
        assert_eq!(remember(&known, &missed(&[]), |_| false), []);
        assert_eq!(remember(&known, &missed(&[1]), |_| false), [(1, 7, BOOTS)]);
    }

    #[test]
    fn a_lookup_that_fails_reads_a_directory_that_nobody_opened() {
        if !has(Need::Root) || !has(Need::LoopDevice) {
            return;
        }
        let image = crate::blocks::tests::Image::new();
        let names = ["directory", "of-prepage"];
        for name in names {
            std::fs::create_dir(image.point().join(name)).unwrap();
            // Too many for the inode itself.
            (0..200).for_each(|at| drop(std::fs::write(image.point().join(format!("{name}/{at}")), "")));
        }
        let image = image.mounted_again();
        let number = rustix::fs::stat(image.point()).unwrap().st_dev;
        assert!(MissedReads::watch(0).is_err(), "of no device is known where it begins");
        let mut missed = MissedReads::watch(number).unwrap();
        let [_, own] = names.map(|name| {
            let none = image.point().join(name).join("none");
            let mut looks = std::process::Command::new("test").arg("-e").arg(&none).spawn().unwrap();
            assert!(!looks.wait().unwrap().success() && !none.exists());
            looks.id()
        });
        missed.look(5, &mut |pid| pid != own);
        let rank = |name: &str| {
            let directory = std::fs::File::open(image.point().join(name)).unwrap();
            let extents = prepage_sys::extents::extents(std::os::fd::AsFd::as_fd(&directory)).unwrap();
            missed.pages.get(&(extents[0].physical_bytes / PAGE_SIZE)).copied()
        };
        assert_eq!(names.map(rank), [Some(5), None], "{:?}", missed.pages);
    }
}
