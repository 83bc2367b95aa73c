//! The faults that the HTML report draws, packed for the browser.

use std::collections::HashMap;
use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use indexmap::IndexSet;
use prepage_core::{Fault, Object, ObjectId, PAGE_SIZE, Thread};
use prepage_trace::parquet::{TraceFile, TraceFileError, Wanted};
use serde_json::{Value, json};

use crate::choice::Choice;
use crate::filter::Sieve;
use crate::report::{Report, UNKNOWN};

/// Touched pages further apart than this are drawn as different regions of memory.
const REGION_GAP_PAGES: u64 = 512;
/// Room drawn between two regions.
const REGION_SPACE_PAGES: u64 = 64;

/// Faults to draw, in the order they began.
#[derive(Debug)]
pub struct Points {
    faults: Vec<Fault>,
    /// What the faults' numbers point into. Other readings of the file number in other orders.
    objects: Vec<Object>,
    threads: Vec<Thread>,
    /// The number of each among all faults that pass the filter.
    numbers: Vec<u32>,
    choice: Choice,
}

impl Points {
    /// Takes the faults that `report` counts from `file`: all of a class, or, where all classes together would be more
    /// than `limit`, some of it.
    ///
    /// # Errors
    /// What cannot be read or decoded.
    pub fn read(file: &TraceFile, report: &Report, limit: u64) -> Result<Self, TraceFileError> {
        let choice = Choice::of(&report.classes, limit);
        let points = Wanted::START | Wanted::THREAD | Wanted::ADDRESS | Wanted::OBJECT | Wanted::PAGE;
        let wanted = report.filter.wanted() | points;
        let new = || (Sieve::new(&report.filter), Vec::new());
        let (parts, names) = file.fold(wanted, new, |(sieve, batches), batch| {
            let (mut passed, mut kept) = (0_u64, Vec::new());
            for (fault, row) in batch.faults.iter().zip(batch.first_row..) {
                if sieve.passes(fault, batch.names) {
                    if choice.takes(fault.class, row) {
                        kept.push((*fault, passed));
                    }
                    passed += 1;
                }
            }
            batches.push((batch.first_row, passed, kept));
        })?;
        let mut batches: Vec<_> = parts.into_iter().flat_map(|(_, batches)| batches).collect();
        batches.sort_unstable_by_key(|(first_row, ..)| *first_row);
        let (mut before, mut kept) = (0, Vec::new());
        for (_, passed, of_batch) in batches {
            kept.extend(of_batch.into_iter().map(|(fault, place)| (fault, before + place)));
            before += passed;
        }
        // Rows stand nearly in the order of the starts. Where all are drawn, the places are exact.
        let numbers = kept.iter().map(|(_, place)| u32::try_from(*place).unwrap_or(u32::MAX)).collect();
        kept.sort_unstable_by_key(|(fault, place)| (fault.start_ns, *place));
        let faults = kept.into_iter().map(|(fault, _)| fault).collect();
        let (objects, threads) = (names.objects.all(), names.threads.all());
        Ok(Self { faults, objects, threads, numbers, choice })
    }

    /// What of each class is drawn, where it is not all.
    pub fn left_out(&self) -> Vec<String> {
        self.choice.left_out()
    }

    /// The faults as the page's script reads them: columns of little-endian numbers, each written as its lowest bytes, then
    /// its next, and so on, all compressed together; and the tables that they point into.
    pub fn packed(&self, report: &Report) -> Value {
        let (regions, ranks) = regions(&self.faults);
        // Numbered in the order in which they are met.
        let (mut objects, mut threads) = (IndexSet::new(), IndexSet::new());
        let mut columns = Columns::default();
        let faults = || self.faults.iter();
        columns.u8(faults().map(|fault| fault.class as u8));
        columns.u32(steps(self.numbers.iter().copied()));
        let scale = f64::from(u32::MAX) / report.end_ns.max(1) as f64;
        columns.u32(steps(faults().map(|fault| (fault.start_ns as f64 * scale) as u32)));
        columns.u32(faults().map(|fault| objects.insert_full(fault.object).0 as u32));
        let page =
            |fault: &Fault| fault.page.map_or(u32::MAX, |page| u32::try_from(page.0).unwrap_or(u32::MAX));
        columns.u32(faults().map(page));
        columns.u32(ranks.iter().copied());
        columns.u16(faults().map(|fault| fault.cost_ns.map_or(0, packed_cost)));
        columns.u32(faults().map(|fault| threads.insert_full(fault.thread).0 as u32));
        let pages = touched_pages(&self.faults);
        json!({
            "count": self.faults.len(),
            "zlib_base64": columns.packed(),
            "objects": objects.iter().map(|object| {
                let path = object.map_or(UNKNOWN, |id| &self.objects[id.0 as usize].path);
                json!({ "path": path, "pages": pages.get(object).copied().unwrap_or(0) })
            }).collect::<Vec<_>>(),
            "threads": threads.iter().map(|index| {
                let thread = &self.threads[index.0 as usize];
                format!("{} {}", thread.comm, thread.tid)
            }).collect::<Vec<_>>(),
            "regions": regions,
        })
    }
}

/// A cost in 1/1000 of an octave, which is exact to 0.04 %; 0 means that no cost is known.
fn packed_cost(cost_ns: u64) -> u16 {
    ((cost_ns.max(1) as f64).log2() * 1000.0).round() as u16 + 1
}

/// One more than the last page touched, by object.
fn touched_pages(faults: &[Fault]) -> HashMap<Option<ObjectId>, u64> {
    let mut pages = HashMap::new();
    for fault in faults {
        if let Some(page) = fault.page {
            let end = pages.entry(fault.object).or_insert(0);
            *end = page.0.saturating_add(1).max(*end);
        }
    }
    pages
}

/// Memory drawn without the gaps between what was touched: for each region where it is drawn, its first page and its
/// pages; and for each fault where it is drawn.
fn regions(faults: &[Fault]) -> (Vec<[u64; 3]>, Vec<u32>) {
    let page = |fault: &Fault| fault.address / PAGE_SIZE;
    let mut pages: Vec<u64> = faults.iter().map(page).collect();
    pages.sort_unstable();
    pages.dedup();
    let mut regions: Vec<[u64; 3]> = Vec::new();
    for page in pages {
        match regions.last_mut() {
            Some([_, first, pages]) if page - *first <= *pages + REGION_GAP_PAGES => {
                *pages = page - *first + 1
            }
            last => {
                let drawn = last.map_or(0, |[drawn, _, pages]| *drawn + *pages + REGION_SPACE_PAGES);
                regions.push([drawn, page, 1]);
            }
        }
    }
    let rank = |fault: &Fault| {
        let after = regions.partition_point(|[_, first, _]| *first <= page(fault));
        let [drawn, first, _] = regions[after - 1];
        u32::try_from(drawn + page(fault) - first).unwrap_or(u32::MAX)
    };
    let ranks = faults.iter().map(rank).collect();
    (regions, ranks)
}

/// Each number as its distance from the one before.
fn steps(numbers: impl Iterator<Item = u32>) -> impl Iterator<Item = u32> {
    let mut last = 0;
    numbers.map(move |number| std::mem::replace(&mut last, number).wrapping_neg().wrapping_add(number))
}

#[derive(Default)]
struct Columns(Vec<u8>);

impl Columns {
    fn u8(&mut self, values: impl Iterator<Item = u8>) {
        self.0.extend(values);
    }

    fn u16(&mut self, values: impl Iterator<Item = u16>) {
        self.planes(&values.map(u16::to_le_bytes).collect::<Vec<_>>());
    }

    fn u32(&mut self, values: impl Iterator<Item = u32>) {
        self.planes(&values.map(u32::to_le_bytes).collect::<Vec<_>>());
    }

    /// The lowest byte of all, then the next: similar bytes stand together and compress.
    fn planes<const N: usize>(&mut self, values: &[[u8; N]]) {
        for plane in 0..N {
            self.0.extend(values.iter().map(|bytes| bytes[plane]));
        }
    }

    fn packed(&self) -> String {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(&self.0).expect("memory can always be written to");
        STANDARD.encode(encoder.finish().expect("memory can always be written to"))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::ZlibDecoder;
    use prepage_core::{FaultClass, ThreadIndex, Trace};
    use prepage_trace::parquet::write_trace;

    use super::*;
    use crate::{Filter, html};

    #[test]
    fn a_sample_is_numbered_by_the_places_among_all_that_pass_the_filter() {
        const CACHED: u64 = 3000;
        let class = |at: u64| [FaultClass::Cached, FaultClass::ZeroFill][at as usize % 2];
        let trace = Trace {
            threads: vec![Thread { pid: 7, tid: 7, comm: "cc".into() }],
            faults: (0..2 * CACHED).map(|at| Fault::new(at, ThreadIndex(0), at << 12, class(at))).collect(),
            ..Trace::default()
        };
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("t.parquet");
        write_trace(&path, &trace).expect("written");
        let file = TraceFile::open(&path).expect("a trace");
        let filter = Filter { classes: vec![FaultClass::Cached], ..Filter::default() };
        let report = Report::read(&file, &html::options(filter)).expect("read");
        let points = Points::read(&file, &report, 300).expect("read");
        assert!((200..400).contains(&points.faults.len()), "{}", points.faults.len());
        let places: Vec<u64> = points.faults.iter().map(|fault| fault.start_ns / 2).collect();
        assert_eq!(points.numbers.iter().copied().map(u64::from).collect::<Vec<_>>(), places);
    }

    /// Parts of a trace are read side by side, and each reading numbers files and threads as it meets them.
    #[test]
    fn faults_are_drawn_on_their_own_files_and_threads_in_every_reading() {
        const FAULTS: u64 = 300_000;
        // First those of one half of the files and threads, then those of the other.
        let of = |at: u64| at / (FAULTS / 2) * 8 + at % 8;
        let trace = Trace {
            objects: (0..16).map(|number| Object::new(format!("/{number}"), Some((1, number)))).collect(),
            threads: (0..16).map(|number| Thread { pid: 7, tid: number, comm: "cc".into() }).collect(),
            faults: (0..FAULTS)
                .map(|at| Fault {
                    object: Some(ObjectId(of(at) as u32)),
                    page: Some(prepage_core::PageIndex(at)),
                    ..Fault::new(at, ThreadIndex(of(at) as u32), at << 12, FaultClass::Cached)
                })
                .collect(),
            ..Trace::default()
        };
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("t.parquet");
        write_trace(&path, &trace).expect("written");
        let file = TraceFile::open(&path).expect("a trace");
        for _ in 0..2 {
            let report = Report::read(&file, &html::options(Filter::default())).expect("read");
            let packed = Points::read(&file, &report, FAULTS).expect("read").packed(&report);
            let mut columns = Vec::new();
            let packed_columns =
                STANDARD.decode(packed["zlib_base64"].as_str().expect("text")).expect("base64");
            ZlibDecoder::new(&packed_columns[..]).read_to_end(&mut columns).expect("columns");
            let count = FAULTS as usize;
            // The lowest bytes of a column, behind so many bytes of a fault.
            let column = |bytes: usize| &columns[bytes * count..][..count];
            for (at, (object, thread)) in (0..FAULTS).zip(column(9).iter().zip(column(23))).step_by(97) {
                let drawn =
                    (&packed["objects"][*object as usize]["path"], &packed["threads"][*thread as usize]);
                assert_eq!(drawn, (&json!(format!("/{}", of(at))), &json!(format!("cc {}", of(at)))), "{at}");
            }
        }
    }

    #[test]
    fn steps_add_up() {
        let numbers = [3, 3, 10, 4, u32::MAX];
        let mut sum = 0_u32;
        for (step, number) in steps(numbers.into_iter()).zip(numbers) {
            sum = sum.wrapping_add(step);
            assert_eq!(sum, number);
        }
    }

    #[test]
    fn gaps_between_regions_are_not_drawn() {
        let at = |page: u64| Fault::new(0, ThreadIndex(0), page * PAGE_SIZE + 7, FaultClass::Cached);
        let (regions, ranks) = regions(&[at(1_000_000), at(5), at(1_000_010), at(7)]);
        assert_eq!(regions, [[0, 5, 3], [3 + REGION_SPACE_PAGES, 1_000_000, 11]]);
        let second = 3 + REGION_SPACE_PAGES as u32;
        assert_eq!(ranks, [second, 0, second + 10, 2]);
    }

    #[test]
    fn costs_are_packed_closely() {
        for cost_ns in [1, 7, 999, 123_456, u64::MAX] {
            let unpacked = (f64::from(packed_cost(cost_ns) - 1) / 1000.0).exp2();
            assert!((unpacked / cost_ns as f64 - 1.0).abs() < 0.0005, "{cost_ns}: {unpacked}");
        }
    }
}
