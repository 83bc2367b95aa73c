//! How many pages each fault maps: the kernel maps cached neighbours along with the page that was touched
//! (fault-around), and the program never faults on those.
//!
//! /proc/self/pagemap tells after each fault which pages the process has mapped. Looking takes time between faults, so
//! this is a run of its own, whose costs are not measured.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use prepage_core::{PAGE_SIZE, PageRange};
use prepage_sys::mapping::FileMapping;

use crate::experiment::Experiment;
use crate::subject::{Subject, SubjectError};

/// Pages looked at around a fault: what one page table covers, which fault-around never leaves.
const TABLE_PAGES: u64 = 512;
/// The bit of a pagemap entry that says "mapped" (Documentation/admin-guide/mm/pagemap.rst).
const PRESENT: u64 = 1 << 63;

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
}

/// Why the pages could not be counted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MappedError {
    /// The file is not in the state it should be in.
    #[error("the file cannot be prepared")]
    Subject(#[from] SubjectError),
    /// Which pages are mapped cannot be seen.
    #[error("which pages are mapped cannot be seen (/proc/self/pagemap)")]
    Pagemap(#[source] io::Error),
}

/// Repeats `experiment` in this process and counts the pages each fault maps.
pub fn mapped_pages(
    experiment: Experiment,
    subject: &Subject,
    seed: u64,
) -> Result<MappedPages, MappedError> {
    subject.prepare(experiment.cache)?;
    count(experiment, subject, seed).map_err(MappedError::Pagemap)
}

fn count(experiment: Experiment, subject: &Subject, seed: u64) -> io::Result<MappedPages> {
    let file = File::open(subject.path())?;
    let pagemap = File::open("/proc/self/pagemap")?;
    let pages = subject.pages();
    let mapping = FileMapping::new(file.as_fd(), PageRange::covering(0, subject.size_bytes()))?;
    let first_page = mapping.address() / PAGE_SIZE;
    let mut mapped = vec![false; pages as usize];
    let mut counts = MappedPages::default();
    let mut failure = None;
    experiment.pattern.each(subject.size_bytes(), seed, |offset| {
        let page = offset / PAGE_SIZE;
        if mapped[page as usize] || failure.is_some() {
            mapping.byte(offset);
            return;
        }
        let mut look = || -> io::Result<()> {
            let before = disk_faults()?;
            mapping.byte(offset);
            let disk = disk_faults()? > before;
            // Tables are aligned in the address space.
            let table = (first_page + page) / TABLE_PAGES * TABLE_PAGES;
            let from = table.max(first_page);
            let to = (table + TABLE_PAGES).min(first_page + pages);
            let mut entries = vec![0; ((to - from) * 8) as usize];
            pagemap.read_exact_at(&mut entries, from * 8)?;
            let flags = &mut mapped[(from - first_page) as usize..(to - first_page) as usize];
            let mut fresh = 0;
            for (flag, entry) in flags.iter_mut().zip(entries.as_chunks::<8>().0) {
                let present = u64::from_ne_bytes(*entry) & PRESENT != 0;
                fresh += u64::from(present && !*flag);
                *flag |= present;
            }
            let (faults, pages) = match disk {
                true => (&mut counts.disk_faults, &mut counts.disk_pages),
                false => (&mut counts.cached_faults, &mut counts.cached_pages),
            };
            *faults += 1;
            *pages += fresh;
            Ok(())
        };
        failure = look().err();
    });
    failure.map_or(Ok(counts), Err)
}

/// Faults of this thread that read from a device (proc_pid_stat(5), field 12).
fn disk_faults() -> io::Result<u64> {
    let stat = fs::read_to_string("/proc/thread-self/stat")?;
    let behind_name = stat.rsplit(')').next().unwrap_or_default();
    let field = behind_name.split_ascii_whitespace().nth(12 - 3).and_then(|field| field.parse().ok());
    field.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("not a stat line: {stat:?}")))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::pattern::Pattern;
    use crate::subject::Cache;

    /// Whatever the kernel does, all pages are mapped in the end, and each once.
    #[test]
    fn faults_map_every_page_once() {
        let subject = Subject::create(Path::new(env!("CARGO_MANIFEST_DIR")), 1000 * PAGE_SIZE - 5).unwrap();
        for pattern in Pattern::STUDY {
            for cache in [Cache::Cold, Cache::Warm] {
                let counted = match mapped_pages(Experiment { pattern, cache }, &subject, 1) {
                    Err(MappedError::Subject(error)) => return eprintln!("SKIPPED: {error}"),
                    counted => counted.unwrap(),
                };
                assert_eq!(counted.disk_pages + counted.cached_pages, 1000, "{pattern} {counted:?}");
                match cache {
                    Cache::Cold => assert!(counted.disk_faults > 0, "{pattern} {counted:?}"),
                    Cache::Warm => assert_eq!(counted.disk_faults, 0, "{pattern} {counted:?}"),
                }
            }
        }
    }
}
