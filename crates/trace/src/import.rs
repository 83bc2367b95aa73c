//! Faults that perf(1) recorded.
//!
//! ```text
//! perf.data ─► records in order ─► Events ─► Pairing ─ Fault
//!               (linux-perf-data)
//! ```
//!
//! perf writes a sample of `page-faults` when a fault begins, and of `minor-faults` or `major-faults` when it ends. With
//! all three a fault has a class and a cost as in prepage's own recordings, with less it lacks one or both
//! ([`TraceFacts::missing`]).

mod error;
mod limits;
mod record;
mod samples;
mod whole;

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, BufReader};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use linux_perf_data::linux_perf_event_reader::{AttrFlags, RecordType, SampleFormat, SamplingPolicy};
use linux_perf_data::{Endianness, PerfFile, PerfFileReader, PerfFileRecord, PerfRecordIter};
use prepage_core::{BuildId, Fault, ImportFacts, Trace, TraceFacts};

use crate::build_id::open_at_once;
use crate::event::{Event, EventKind};
use crate::pairing::{Ends, Pairing};
#[cfg(feature = "parquet")]
use crate::parquet::{TraceFileError, TraceWriter, bound_tables};
use crate::tables::Tables;
pub use error::{ImportError, PERF_COMMAND};
use record::{Taken, take};
use samples::{Kind, Sample};

/// Records taken in one go, so that memory stays bounded.
const ROUND_RECORDS: usize = 1 << 16;

/// Reads the page faults of a file that perf(1) wrote.
///
/// ```no_run
/// use prepage_trace::import::Importer;
///
/// let mut importer = Importer::open("perf.data".as_ref())?;
/// let mut faults = Vec::new();
/// while importer.next_faults(&mut faults)? {
///     // take what is in `faults`, and clear it, to keep memory bounded
/// }
/// println!("{} faults of {}", faults.len(), importer.finish().facts.kernel);
/// # Ok::<(), prepage_trace::import::ImportError>(())
/// ```
pub struct Importer {
    path: PathBuf,
    file: PerfFile,
    records: PerfRecordIter<BufReader<File>>,
    /// What each event of the file counts, by its number.
    kinds: Vec<Option<Kind>>,
    ends: Option<Ends>,
    /// Only beginnings of faults are recorded, or only ends.
    one_sided: bool,
    /// Made with the first time that is known: faults are counted from there.
    pairing: Option<Pairing>,
    /// Events from before: the state of the machine when perf started.
    early: Vec<Event>,
    origin_ns: u64,
    last_ns: u64,
    facts: TraceFacts,
    /// Records lost: by the kernel's notes of it, and by what perf counted for each event. The same ones, as far as both are
    /// known.
    lost: [u64; 2],
    /// Those of the kernel's notes, which alone say when.
    lost_by_second: BTreeMap<u64, u64>,
    /// Files for which perf noted no inode, by path, with the number they got.
    without_inode: HashMap<Vec<u8>, u64>,
    build_ids: HashMap<String, BuildId>,
}

impl Importer {
    /// Begins to read `path`.
    ///
    /// # Errors
    /// When the file is not a perf.data file, is cut short, or has no page-fault samples with address, thread and time.
    pub fn open(path: &Path) -> Result<Self, ImportError> {
        let io = |source| ImportError::Io(path.to_owned(), source);
        let file = open_at_once(path).map_err(io)?;
        whole::check(path, &file)?;
        let malformed = |source| ImportError::malformed(path, source);
        let reader = BufReader::new(file);
        let PerfFileReader { perf_file: file, record_iter: records } =
            guarded(|| PerfFileReader::parse_file(reader)).map_err(malformed)?;
        let kinds = samples::kinds(path, &file)?;
        let facts = guarded(|| Ok(facts(path, &file, &kinds))).map_err(malformed)?;
        let sampled = facts.imported.as_ref().is_some_and(|from| from.sampled.is_some());
        let ends = samples::ends(&kinds, sampled);
        let one_sided = ends.is_none() || !kinds.contains(&Some(Kind::Any));
        let mut build_ids = HashMap::new();
        for info in guarded(|| file.build_ids()).map_err(malformed)?.into_values() {
            let path = String::from_utf8_lossy(&info.path).into_owned();
            build_ids.extend(BuildId::new(&info.build_id).map(|id| (path, id)));
        }
        Ok(Self {
            path: path.to_owned(),
            file,
            records,
            kinds,
            ends,
            one_sided,
            pairing: None,
            early: Vec::new(),
            origin_ns: 0,
            last_ns: 0,
            facts,
            lost: [0; 2],
            lost_by_second: BTreeMap::new(),
            without_inode: HashMap::new(),
            build_ids,
        })
    }

    /// Reads on and appends the faults found to `faults`, in the order they ended. False when these are the last.
    ///
    /// # Errors
    /// When the file cannot be read or understood further; what came before is good.
    pub fn next_faults(&mut self, faults: &mut Vec<Fault>) -> Result<bool, ImportError> {
        for _ in 0..ROUND_RECORDS {
            let read =
                guarded(|| self.read()).map_err(|source| ImportError::malformed(&self.path, source))?;
            let Some((attr_index, time_ns, taken)) = read else {
                self.end(faults);
                return Ok(false);
            };
            self.last_ns = self.last_ns.max(time_ns);
            match taken {
                Some(Taken::Lost { records, by_event }) => {
                    let lost = &mut self.lost[usize::from(by_event)];
                    *lost = lost.saturating_add(records);
                    self.facts.lost = self.lost[0].max(self.lost[1]);
                    let after_ns = time_ns.checked_sub(self.origin_ns).filter(|_| self.pairing.is_some());
                    if let Some(after_ns) = after_ns.filter(|_| !by_event) {
                        let of_second = self.lost_by_second.entry(after_ns / 1_000_000_000).or_default();
                        *of_second = of_second.saturating_add(records);
                    }
                    self.event(
                        Event {
                            time_ns,
                            pid: 0,
                            tid: 0,
                            kind: EventKind::Lost { records },
                            is_time_borrowed: false,
                        },
                        faults,
                    );
                }
                Some(Taken::Event { pid, tid, kind }) => {
                    self.event(Event { time_ns, pid, tid, kind, is_time_borrowed: false }, faults)
                }
                Some(Taken::Sample(sample)) => {
                    if let Some(kind) = self.kind(attr_index) {
                        self.sample(kind, time_ns, sample, faults);
                    }
                }
                Some(Taken::Outside) => {
                    // Each fault once: where beginnings were recorded, by these.
                    let counted = self
                        .kind(attr_index)
                        .filter(|&kind| kind == Kind::Any || !self.kinds.contains(&Some(Kind::Any)));
                    self.facts.outside_faults += u64::from(counted.is_some());
                }
                None => {}
            }
        }
        Ok(true)
    }

    /// What the event of this number counts.
    fn kind(&self, attr_index: usize) -> Option<Kind> {
        self.kinds.get(attr_index).copied().flatten()
    }

    /// The next record: the number of its event, its time, and what it means here. `None` at the end.
    fn read(&mut self) -> Result<Option<(usize, u64, Option<Taken>)>, linux_perf_data::Error> {
        let Some(record) = self.records.next_record(&mut self.file)? else { return Ok(None) };
        // perf's own records are about the file, not about the program.
        let PerfFileRecord::EventRecord { attr_index, record } = record else {
            return Ok(Some((0, 0, None)));
        };
        let time_ns = record.timestamp().unwrap_or(0);
        let taken = if record.record_type == RecordType::LOST_SAMPLES {
            let bytes = record.data.as_slice();
            let number = match record.parse_info.endian {
                Endianness::LittleEndian => u64::from_le_bytes,
                Endianness::BigEndian => u64::from_be_bytes,
            };
            let records = bytes.first_chunk().map(|count| number(*count));
            records.map(|records| Taken::Lost { records, by_event: true })
        } else {
            take(&record.parse()?, &mut self.without_inode, &mut self.build_ids)
        };
        Ok(Some((attr_index, time_ns, taken)))
    }

    /// What the faults' numbers mean, so far.
    pub fn tables(&self) -> Tables<'_> {
        self.pairing.as_ref().map_or_else(Tables::default, Pairing::tables)
    }

    /// Bounds the memory of the tables: once all faults until now are in `writer`, the numbers in them are not needed any
    /// more.
    ///
    /// # Errors
    /// As [`TraceWriter::write`].
    #[cfg(feature = "parquet")]
    pub fn bound_tables(&mut self, writer: &mut TraceWriter) -> Result<(), TraceFileError> {
        self.pairing.as_mut().map_or(Ok(()), |pairing| bound_tables(pairing, Some(writer)))
    }

    /// What is known of the run, so far.
    pub fn facts(&self) -> TraceFacts {
        let duration_ns = self.last_ns.saturating_sub(self.origin_ns);
        let lost_by_second =
            self.lost_by_second.iter().map(|(&second, &records)| (second, records)).collect();
        let facts = TraceFacts { duration_ns, lost_by_second, ..self.facts.clone() };
        match &self.pairing {
            Some(pairing) => pairing.noticed(facts),
            None => facts,
        }
    }

    /// The end: the trace, but for its faults, which were handed out.
    pub fn finish(self) -> Trace {
        let mut facts = self.facts();
        let Self { pairing, build_ids, .. } = self;
        let tables = pairing.map(|pairing| pairing.into_tables(&mut facts));
        let (mut objects, threads, stacks) = tables.unwrap_or_default();
        for object in &mut objects {
            // This machine's file of that path and inode may be another: perf may have seen a clone's, and files are written in place.
            object.build_id = build_ids.get(&object.path).copied().or(object.build_id);
        }
        Trace { facts, objects, threads, stacks, faults: Vec::new() }
    }

    fn event(&mut self, event: Event, faults: &mut Vec<Fault>) {
        if matches!(event.kind, EventKind::Name { exec: true, .. }) {
            self.facts.execs += 1;
        }
        if self.pairing.is_none() {
            // perf begins with the state of the machine, at no time.
            if event.time_ns == 0 {
                self.early.push(event);
                return;
            }
            self.begin(event.time_ns);
        }
        if let Some(pairing) = &mut self.pairing {
            pairing.feed(&event, faults);
        }
    }

    fn sample(&mut self, kind: Kind, time_ns: u64, sample: Sample, faults: &mut Vec<Fault>) {
        if self.pairing.is_none() {
            self.begin(time_ns);
        }
        if let Some(pairing) = &mut self.pairing {
            sample.feed(kind, time_ns, self.one_sided, pairing, faults);
        }
    }

    fn begin(&mut self, time_ns: u64) {
        self.origin_ns = time_ns;
        let mut pairing = Pairing::new(time_ns);
        pairing.ends = self.ends.unwrap_or_default();
        let mut none = Vec::new();
        self.early.drain(..).for_each(|event| pairing.feed(&event, &mut none));
        self.pairing = Some(pairing);
    }

    fn end(&mut self, faults: &mut Vec<Fault>) {
        if let Some(pairing) = &mut self.pairing {
            pairing.finish(faults);
            let from = self.facts.imported.as_ref();
            // Who is not observed is not seen to end, nor is who ends in records that are gone.
            let sees_ends =
                |from: &ImportFacts| !from.of_running && !from.descendants_hidden && !from.overwritten;
            if from.is_some_and(sees_ends) && self.facts.lost == 0 {
                self.facts.survivors = pairing.spaces().processes() as u64;
            }
        }
    }
}

impl std::fmt::Debug for Importer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Importer")
            .field("path", &self.path)
            .field("facts", &self.facts)
            .finish_non_exhaustive()
    }
}

/// Calls the parser, which panics on some damaged files.
fn guarded<T>(
    parse: impl FnOnce() -> Result<T, linux_perf_data::Error>,
) -> Result<T, linux_perf_data::Error> {
    // Nothing is used after a panic but for the faults found before.
    catch_unwind(AssertUnwindSafe(parse)).unwrap_or_else(|_| {
        Err(io::Error::new(io::ErrorKind::InvalidData, "numbers that contradict one another").into())
    })
}

fn facts(path: &Path, file: &PerfFile, kinds: &[Option<Kind>]) -> TraceFacts {
    let text = |text: Result<Option<&str>, _>| text.ok().flatten().unwrap_or_default().to_owned();
    let command = file.cmdline().ok().flatten().unwrap_or_default();
    let faults = file.event_attributes().iter().zip(kinds).filter(|(_, kind)| kind.is_some());
    let sampled = faults.clone().find_map(|(event, _)| match event.attr.sampling_policy {
        SamplingPolicy::Period(period) if period.get() == 1 => None,
        SamplingPolicy::Period(period) => Some(format!("one event in {period}")),
        SamplingPolicy::Frequency(hertz) => Some(format!("up to {hertz} events a second")),
        SamplingPolicy::NoSampling => None,
    });
    let [any, minor, major] = [Kind::Any, Kind::Minor, Kind::Major].map(|kind| kinds.contains(&Some(kind)));
    let any_has = |flag| faults.clone().any(|(event, _)| event.attr.flags.contains(flag));
    let is_of_command =
        file.event_attributes().iter().any(|event| event.attr.flags.contains(AttrFlags::ENABLE_ON_EXEC));
    let of_processors = faults.clone().any(|(event, _)| event.attr.sample_format.contains(SampleFormat::CPU));
    // An event that follows children has one number for each processor that it was opened on, or more.
    let watched = faults.clone().filter(|(event, _)| event.attr.flags.contains(AttrFlags::INHERIT));
    let watched = watched.map(|(event, _)| event.event_ids.len() as u64).filter(|ids| *ids > 0).min();
    let online = file.nr_cpus().ok().flatten().map(|cpus| u64::from(cpus.nr_cpus_online));
    TraceFacts {
        command: command.iter().copied().map(str::to_owned).collect(),
        kernel: text(file.os_release()),
        // As `:u` has it, and as perf does it for users who may not see more.
        system_calls_hidden: any_has(AttrFlags::EXCLUDE_KERNEL),
        unwatched_cpus: online.zip(watched).map_or(0, |(online, watched)| online.saturating_sub(watched)),
        imported: Some(ImportFacts {
            tool: format!("perf {}", text(file.perf_version())).trim_end().to_owned(),
            file: path.to_string_lossy().into_owned(),
            events: faults.clone().map(|(event, kind)| samples::event_name(event, *kind)).collect(),
            minor_missing: !any && !minor,
            major_missing: !any && !major,
            disk_unknown: any && !major,
            costs_unknown: !(any && (minor || major)),
            overwritten: any_has(AttrFlags::WRITE_BACKWARD),
            sampled,
            // As `:k` has it.
            program_hidden: any_has(AttrFlags::EXCLUDE_USER),
            of_running: !is_of_command,
            // Of whole processors nobody needs to inherit what records them.
            descendants_hidden: !any_has(AttrFlags::INHERIT) && (is_of_command || !of_processors),
            limits: limits::limits(&command),
        }),
        ..TraceFacts::default()
    }
}
