//! Profiles for the Firefox Profiler: each fault is a marker as long as it took, and a sample with its stack.

use std::io::{self, Write};
use std::time::Duration;

use fxprof_processed_profile::{
    CategoryColor, CategoryHandle, CpuDelta, Frame, FrameFlags, FrameInfo, MarkerFieldFlags,
    MarkerFieldFormat, MarkerLocations, MarkerTiming, ProcessHandle, Profile, ReferenceTimestamp,
    SamplingInterval, StaticSchemaMarker, StaticSchemaMarkerField, StringHandle, ThreadHandle, Timestamp,
};
use prepage_core::{Fault, FaultClass, ThreadIndex};
use prepage_display::run::subject;
use prepage_trace::parquet::{TraceFile, Wanted};
use rustc_hash::FxHashMap;

use super::ExportError;
use super::process_names::ProcessNames;
use crate::choice::Choice;
use crate::filter::{Filter, Sieve};
use crate::report::{Options, Report, UNKNOWN, place_path};
use crate::symbols::{Symbols, nameless, places_of_calls};

/// Faults in a profile at most. The profiler has all of a profile in memory at once, and so has this.
const FAULTS_MAX: u64 = 500_000;

/// Writes a profile of at most about [`FAULTS_MAX`] faults. Returns which were chosen, where it was not all.
pub fn write(file: &TraceFile, filter: &Filter, out: &mut dyn Write) -> Result<Vec<String>, ExportError> {
    let counted = Options { filter: filter.clone(), slowest: 0, slices: 1, ..Options::default() };
    let choice = Choice::of(&Report::read(file, &counted)?.classes, FAULTS_MAX);
    let mut sieve = Sieve::new(filter);
    let mut faults: Vec<Fault> = Vec::new();
    let names = file.for_each::<ExportError>(Wanted::all().difference(Wanted::FRAME), |batch| {
        let rows = batch.faults.iter().zip(batch.first_row..);
        let chosen =
            rows.filter(|(fault, row)| choice.takes(fault.class, *row) && sieve.passes(fault, batch.names));
        faults.extend(chosen.map(|(fault, _)| fault));
        Ok(())
    })?;
    faults.sort_by_key(|fault| fault.start_ns);
    let (objects, threads, stacks) = (names.objects.all(), names.threads.all(), names.stacks.all());
    let places = stacks.iter().flat_map(|stack| places_of_calls(&stack.places));
    let symbols = Symbols::of(&objects, places.chain(faults.iter().map(Fault::code_place)));

    let facts = file.facts();
    let started =
        ReferenceTimestamp::from_duration_since_unix_epoch(Duration::from_nanos(facts.started_unix_ns));
    // Nothing is sampled by time; the least interval keeps the profiler from widening the samples.
    let mut product: Vec<String> = subject(facts).into_iter().collect();
    product.extend(facts.missing().iter().map(|gap| format!("incomplete: {gap}")));
    product.extend(choice.left_out());
    let mut profile = Profile::new(&product.join("; "), started, SamplingInterval::from_nanos(1000));
    profile.set_os_name(&format!("Linux {}", facts.kernel));
    profile.set_symbolicated(true);
    let classes = FaultClass::ALL.map(|class| Class {
        name: profile.intern_string(class.name()),
        category: profile.add_category(class.name(), colour(class)),
    });
    let mut last_ns: FxHashMap<ThreadIndex, u64> = FxHashMap::default();
    // In the order of their starts.
    last_ns.extend(faults.iter().map(|fault| (fault.thread, fault.start_ns)));
    let mut process_names = ProcessNames::default();
    last_ns.iter().for_each(|(index, last_ns)| process_names.note(&threads[index.0 as usize], *last_ns));
    let mut processes: FxHashMap<u32, ProcessHandle> = FxHashMap::default();
    let mut tracks: FxHashMap<(u32, u32), ThreadHandle> = FxHashMap::default();
    for fault in &faults {
        let thread = &threads[fault.thread.0 as usize];
        let start = Timestamp::from_nanos_since_reference(fault.start_ns);
        let process = *processes
            .entry(thread.pid)
            .or_insert_with(|| profile.add_process(process_names.of(thread.pid), thread.pid, start));
        let track = *tracks.entry((thread.pid, thread.tid)).or_insert_with(|| {
            let track = profile.add_thread(process, thread.tid, start, thread.pid == thread.tid);
            profile.set_thread_show_markers_in_timeline(track, true);
            track
        });
        // The name it had last is the name of what it became.
        profile.set_thread_name(track, &thread.comm);
        let class = &classes[fault.class as usize];
        let place = fault.code_place();
        let leaf_first = fault
            .stack
            .map_or_else(|| vec![place], |id| places_of_calls(&stacks[id.index()].places).collect());
        let frames: Vec<FrameInfo> = leaf_first
            .into_iter()
            .rev()
            .map(|place| {
                let name =
                    symbols.name(place).map_or_else(|| nameless(place_path(&objects, place)), str::to_owned);
                let frame = Frame::Label(profile.intern_string(&name));
                FrameInfo { frame, category_pair: class.category.into(), flags: FrameFlags::empty() }
            })
            .collect();
        let stack = profile.intern_stack_frames(track, frames.into_iter());
        profile.add_sample(track, start, stack, CpuDelta::ZERO, choice.stands_for(fault.class));
        let path = fault.object.map_or(UNKNOWN, |id| &objects[id.0 as usize].path);
        let page = fault.page.map_or_else(String::new, |page| page.to_string());
        let marker = FaultMarker {
            name: class.name,
            category: class.category,
            file: profile.intern_string(path),
            page: profile.intern_string(&page),
            address: profile.intern_string(&format!("{:#x}", fault.address)),
        };
        let end = |cost_ns| Timestamp::from_nanos_since_reference(fault.start_ns.saturating_add(cost_ns));
        let timing = fault
            .cost_ns
            .map_or(MarkerTiming::Instant(start), |cost_ns| MarkerTiming::Interval(start, end(cost_ns)));
        let marker = profile.add_marker(track, timing, marker);
        profile.set_marker_stack(track, marker, stack);
    }
    serde_json::to_writer(out, &profile).map_err(io::Error::from)?;
    Ok(choice.left_out())
}

struct Class {
    name: StringHandle,
    category: CategoryHandle,
}

struct FaultMarker {
    name: StringHandle,
    category: CategoryHandle,
    file: StringHandle,
    page: StringHandle,
    address: StringHandle,
}

impl StaticSchemaMarker for FaultMarker {
    const UNIQUE_MARKER_TYPE_NAME: &'static str = "PageFault";
    const DESCRIPTION: Option<&'static str> = Some("A page fault, as long as the thread waited for it");
    const LOCATIONS: MarkerLocations = MarkerLocations::MARKER_CHART
        .union(MarkerLocations::MARKER_TABLE)
        .union(MarkerLocations::TIMELINE_OVERVIEW);
    const CHART_LABEL: Option<&'static str> = Some("{marker.data.file}");
    const TABLE_LABEL: Option<&'static str> = Some("{marker.data.file} {marker.data.page}");
    const FIELDS: &'static [StaticSchemaMarkerField] = &[
        field("file", "File", MarkerFieldFlags::SEARCHABLE),
        field("page", "Page", MarkerFieldFlags::empty()),
        field("address", "Address", MarkerFieldFlags::empty()),
    ];

    fn name(&self, _profile: &mut Profile) -> StringHandle {
        self.name
    }

    fn category(&self, _profile: &mut Profile) -> CategoryHandle {
        self.category
    }

    fn string_field_value(&self, field: u32) -> StringHandle {
        [self.file, self.page, self.address][field as usize]
    }

    fn number_field_value(&self, field: u32) -> f64 {
        unreachable!("field {field} is text")
    }
}

const fn field(key: &'static str, label: &'static str, flags: MarkerFieldFlags) -> StaticSchemaMarkerField {
    StaticSchemaMarkerField { key, label, format: MarkerFieldFormat::String, flags }
}

fn colour(class: FaultClass) -> CategoryColor {
    match class {
        FaultClass::Disk => CategoryColor::Orange,
        FaultClass::Short => CategoryColor::Yellow,
        FaultClass::Cached => CategoryColor::Blue,
        FaultClass::ZeroFill => CategoryColor::Green,
        FaultClass::CopyOnWrite => CategoryColor::Magenta,
        FaultClass::Failed | FaultClass::Unseen => CategoryColor::DarkGray,
    }
}
