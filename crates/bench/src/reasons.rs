//! Why today's kernel counts otherwise than the study. What is said of a run's numbers is taken from the run.

use prepage_core::FaultClass;
use prepage_core::quantity::counted;
use prepage_simulate::pattern::Pattern;

use crate::STUDY_PAGES;
use crate::page::{Facts, Shown};
use crate::subject::Cache;

/// Pages that fault-around maps at most by default: 64 KiB (mm/memory.c, `fault_around_bytes`).
const AROUND_PAGES: f64 = 16.0;
/// Read-ahead from which a file of the study's size is in memory after a few reads.
const LARGE_KIB: u64 = 1024;

/// One paragraph on the table of an experiment.
pub fn reason(facts: &Facts, one: &Shown) -> String {
    let run = &one.run;
    let is_of_study = facts.pages == STUDY_PAGES;
    let (disk, cached) = (run.tally(Some(FaultClass::Disk)), run.tally(Some(FaultClass::Cached)));
    let faults = run.tally(None).count;
    let each = facts.pages as f64 / faults.max(1) as f64;
    let [pages, of_faults] =
        [(facts.pages, "page"), (faults, "fault")].map(|(count, noun)| counted(count as usize, noun));
    let mapped = format!("{pages} in {of_faults}, {each:.1} each");
    let read_ahead_kib = facts.read_ahead_kib.iter().copied().max().unwrap_or(0);
    let folios = if each > AROUND_PAGES + 0.5 {
        " More than 16 are mapped where they lie in one folio: read-ahead reads into folios of many pages, and \
         those are mapped whole."
    } else {
        ""
    };
    let waits = cached.mean_us().map_or_else(String::new, |mean_us| {
        format!(
            " A touch of a page that is still being read waits for it and counts as no disk fault; that is in the mean \
             of {mean_us:.1} µs of the faults on pages in memory."
        )
    });
    match (run.experiment.pattern, run.experiment.cache) {
        (_, Cache::Warm) if disk.count > 0 => format!(
            "No warm run: {} had to read, for something emptied the page cache or took the file's memory \
             meanwhile. {mapped}.",
            counted(disk.count as usize, "fault")
        ),
        (_, Cache::Cold) if read_ahead_kib == 0 => format!(
            "Without read-ahead a disk fault reads the page touched and no other, whatever the order: {mapped}. The \
             study read ahead by 128 KiB."
        ),
        (pattern, Cache::Warm) => {
            let study = match pattern {
                Pattern::Random if is_of_study => "The study counts 9412 faults, nearly one a page. ",
                _ => "",
            };
            format!(
                "Nothing is read. {study}Since Linux 3.15 a fault also maps the cached pages around it (fault-around, \
                 up to 16 in a neighbourhood aligned to 64 KiB): {mapped}.{folios} Each fault costs more for it, and \
                 there are fewer."
            )
        }
        (Pattern::Random, Cache::Cold) => format!(
            "A disk fault reads around the page touched, half of the read-ahead before it and half behind. {} \
             Fault-around maps the neighbours that came along, and the kernel takes each page so mapped for a hit: \
             its count of misses (mmap_miss) stays low, and it goes on reading around. One page a fault, as in the \
             study, makes random touches mostly misses: after 100 more misses than hits the kernel reads single pages \
             only, and about half of all pages become disk faults. Here: {mapped}.",
            amount(read_ahead_kib)
        ),
        (Pattern::Sequential, Cache::Cold) => format!(
            "As in the study, the kernel reads ahead of the program: touching a marked page starts the next read before \
             the last one is used up. Fault-around maps what came: {mapped}.{folios}{waits}"
        ),
        (Pattern::Stride { pages: 1 }, Cache::Cold) => {
            let study = if is_of_study { " In the study there are 58." } else { "" };
            // Within a sweep page numbers only rise.
            let first_sweep =
                1 + run.faults.windows(2).take_while(|pair| pair[0].page <= pair[1].page).count();
            let sweeps = match run.faults.len().saturating_sub(first_sweep) {
                0 => "Only the first of the 4096 sweeps faults.".to_owned(),
                later => format!("{} came after the first of the 4096 sweeps.", counted(later, "fault")),
            };
            format!(
                "The pages are touched in the order of the sequential run, but one at every access instead of one in 4096, so that the disk can fall behind. Touches of pages whose read had not begun are \
                 disk faults, here {}.{study} {mapped}.{folios}{waits} {sweeps}",
                disk.count
            )
        }
        (Pattern::Stride { pages }, Cache::Cold) => {
            let reach = read_ahead_kib / 4;
            let around = if reach < pages {
                format!(
                    "The next touch lies beyond what a disk fault reads ({} pages around it), so that every touch of \
                     the first sweep is one; later sweeps find most of their pages read or marked for read-ahead",
                    reach
                )
            } else {
                format!("The next touch lies within what is read around or ahead ({reach} pages)")
            };
            let study = match pages {
                64 if is_of_study => {
                    " The study's 7224 disk faults brought about half a page each beside their own: without fault-around \
                     the first sweep has more than 100 misses in a row, after which nothing is read around."
                }
                _ => "",
            };
            format!(
                "{around}: {}. {}{study} {mapped}.{folios}",
                counted(disk.count as usize, "disk fault"),
                amount(read_ahead_kib)
            )
        }
    }
}

/// What the read-ahead here means, against the study's.
fn amount(read_ahead_kib: u64) -> String {
    let study = "The study's 256 blocks of `blockdev --report` are sectors of 512 bytes: 128 KiB or 32 pages, not 1 MB.";
    match read_ahead_kib {
        128 => format!("{study} The same is in force here."),
        kib if kib >= LARGE_KIB => format!(
            "{study} Here {kib} KiB are in force, so that each read brings {} pages and takes long, and few are needed.",
            kib / 4
        ),
        kib => format!("{study} Here {kib} KiB are in force, {} pages.", kib / 4),
    }
}

#[cfg(test)]
mod tests {
    use prepage_core::{PageIndex, TraceFacts};

    use super::*;
    use crate::experiment::{Experiment, FileFault, Run};

    fn said(cache: Cache, read_ahead_kib: u64, classes: &[FaultClass]) -> String {
        let faults: Vec<_> = classes.iter().map(|&class| (0, class)).collect();
        said_of(Pattern::Sequential, cache, read_ahead_kib, &faults)
    }

    fn said_of(pattern: Pattern, cache: Cache, read_ahead_kib: u64, faults: &[(u64, FaultClass)]) -> String {
        let fault = |&(page, class)| FileFault { page: PageIndex(page), cost_ns: Some(1000), class };
        let run = Run {
            experiment: Experiment { pattern, cache },
            faults: faults.iter().map(fault).collect(),
            other_faults: 0,
            facts: TraceFacts::default(),
        };
        let facts = Facts {
            pages: 64,
            accesses: 64 << 12,
            read_ahead_kib: vec![read_ahead_kib],
            read_ahead_set: false,
            file_system: String::new(),
            probe_cost_ns: None,
        };
        reason(&facts, &Shown { run, rounds: 1, disk_counts: (0, 0), mapped: None })
    }

    #[test]
    fn a_run_is_told_as_it_was() {
        assert!(said(Cache::Warm, 128, &[FaultClass::Cached]).starts_with("Nothing is read."));
        assert!(
            said(Cache::Warm, 128, &[FaultClass::Cached, FaultClass::Disk]).contains("1 fault had to read")
        );
        assert!(said(Cache::Cold, 0, &[FaultClass::Disk]).contains("Without read-ahead"));
        assert!(said(Cache::Cold, 128, &[FaultClass::Disk, FaultClass::Cached]).contains("mean of 1.0 µs"));
        assert!(!said(Cache::Cold, 128, &[FaultClass::Disk]).contains("mean of"));
    }

    #[test]
    fn sweeps_behind_the_first_are_told_where_they_fault() {
        let of = |pages: &[u64]| {
            let faults: Vec<_> = pages.iter().map(|&page| (page, FaultClass::Cached)).collect();
            said_of(Pattern::Stride { pages: 1 }, Cache::Cold, 128, &faults)
        };
        // A disk fault and its retry are of one page.
        for first in [&[][..], &[0], &[0, 0, 16, 63]] {
            assert!(of(first).ends_with("Only the first of the 4096 sweeps faults."), "{}", of(first));
        }
        let told = of(&[0, 16, 63, 3, 5, 1]);
        assert!(told.ends_with("3 faults came after the first of the 4096 sweeps."), "{told}");
    }
}
