//! How many pages each fault maps: the kernel maps cached neighbours along with the page that was touched
//! (fault-around), and the program never faults on those.
//!
//! /proc/self/pagemap shows after each fault which pages the process has mapped. Looking takes time between faults, so
//! this is a run of its own, whose costs are not measured.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use prepage_core::{PAGE_SIZE, PageRange};
use prepage_simulate::pattern::Pattern;
use prepage_sys::mapping::FileMapping;
use prepage_sys::pagemap::{PageEntry, PageMap};
use prepage_sys::process_stat::ProcessStat;

use crate::error::{BenchError, failed};
use crate::experiment::Experiment;
use crate::subject::Subject;

/// Pages looked at around a fault: what one page table covers, which fault-around never leaves.
const TABLE_PAGES: u64 = 512;

/// Faults of a run, and the pages they mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MappedPages {
    /// Faults that read from a device.
    pub disk_faults: u64,
    /// Pages they mapped.
    pub disk_pages: u64,
    /// Faults on pages in memory.
    pub cached_faults: u64,
    /// Pages they mapped.
    pub cached_pages: u64,
    /// Of an order that goes through the file in sweeps.
    pub sweeps: Option<Sweeps>,
}

/// The times that a run went through the file, from a lower offset to a higher one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sweeps {
    /// All of them.
    pub all: u64,
    /// Those after which every page was mapped.
    pub until_mapped: u64,
    /// Faults of the rest.
    pub later_faults: u64,
}

/// Repeats `experiment` in this process and counts the pages each fault maps.
pub fn mapped_pages(experiment: Experiment, subject: &Subject, seed: u64) -> Result<MappedPages, BenchError> {
    subject.prepare(experiment.cache)?;
    count(experiment, subject, seed)
        .map_err(failed("which pages are mapped cannot be seen (/proc/self/pagemap)"))
}

fn count(experiment: Experiment, subject: &Subject, seed: u64) -> io::Result<MappedPages> {
    let file = File::open(subject.path())?;
    let pagemap = PageMap::of(std::process::id())?;
    let pages = subject.pages();
    let mapping = FileMapping::new(file.as_fd(), PageRange::covering(0, subject.size_bytes()))?;
    let first_page = mapping.address() / PAGE_SIZE;
    let mut mapped = vec![false; pages as usize];
    let mut counts = MappedPages::default();
    let mut failure = None;
    let (mut sweeps, mut before, mut absent) =
        (Sweeps { all: 1, until_mapped: 0, later_faults: 0 }, 0, pages);
    let mut when_mapped = Faults::default();
    experiment.pattern.each(subject.size_bytes(), seed, |offset| {
        sweeps.all += u64::from(offset < before);
        before = offset;
        let page = offset / PAGE_SIZE;
        if mapped[page as usize] || failure.is_some() {
            mapping.byte(offset);
            return;
        }
        let mut look = || -> io::Result<()> {
            let before = faults_of_thread()?.disk;
            mapping.byte(offset);
            let disk = faults_of_thread()?.disk > before;
            // Tables are aligned in the address space.
            let table = (first_page + page) / TABLE_PAGES * TABLE_PAGES;
            let from = table.max(first_page);
            let to = (table + TABLE_PAGES).min(first_page + pages);
            let mut entries = vec![PageEntry::default(); (to - from) as usize];
            pagemap.entries(from * PAGE_SIZE, &mut entries)?;
            let flags = &mut mapped[(from - first_page) as usize..(to - first_page) as usize];
            let mut fresh = 0;
            for (flag, entry) in flags.iter_mut().zip(entries) {
                fresh += u64::from(entry.is_present() && !*flag);
                *flag |= entry.is_present();
            }
            let (faults, pages) = match disk {
                true => (&mut counts.disk_faults, &mut counts.disk_pages),
                false => (&mut counts.cached_faults, &mut counts.cached_pages),
            };
            *faults += 1;
            *pages += fresh;
            absent -= fresh;
            if absent == 0 {
                (sweeps.until_mapped, when_mapped) = (sweeps.all, faults_of_thread()?);
            }
            Ok(())
        };
        failure = look().err();
    });
    let after = faults_of_thread()?;
    sweeps.later_faults = after.disk + after.cached - when_mapped.disk - when_mapped.cached;
    counts.sweeps = (experiment.pattern != Pattern::Random).then_some(sweeps);
    failure.map_or(Ok(counts), Err)
}

/// Faults, as the kernel counts them for a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Those that read from a device, or waited for a read.
    pub disk: u64,
    /// All others.
    pub cached: u64,
}

/// The faults of this thread until now.
pub(crate) fn faults_of_thread() -> io::Result<Faults> {
    let stat = ProcessStat::of_this_thread()?;
    Ok(Faults { disk: stat.major_faults, cached: stat.minor_faults })
}
