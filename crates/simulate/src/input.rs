//! Touches, held in memory or read from their file as often as they are replayed.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use prepage_core::profile::{Extent, Touches};
use prepage_core::{PageIndex, PageRange, TraceFacts};
use prepage_trace::parquet::{TraceFile, TraceFileError};

use crate::layout::{EntryLayout, Layout, ObjectLayout};
use crate::model::Model;
use crate::pages::{MOST_AT_ONCE, MOST_PAGES};
use crate::replay::{EntryIndex, Touch};
use crate::touch_text::{Names, TextError, read_touches};
use crate::trace_touches::{each_touch, survey};

/// Touches handed over at once: 1 MiB of them.
const PART_TOUCHES: usize = 1 << 16;

/// How text without a trace around it is to be understood.
#[derive(Clone, Debug, Default)]
pub struct TextOptions {
    /// Pages of each object; without it, as many as are touched.
    pub object_pages: Option<u64>,
    /// First page of the object that its entry shows.
    pub entry_offset: u64,
    /// Pages of the entry; without it, up to the object's end.
    pub entry_pages: Option<u64>,
    /// Pages of each object that are resident before the first touch.
    pub resident: Vec<PageRange>,
}

/// Touches and what they touch.
#[derive(Debug)]
pub struct Input {
    /// What is touched.
    pub layout: Layout,
    /// How many touches there are.
    pub count: u64,
    /// How long the program computes after the last of them, in nanoseconds.
    pub rest_ns: u64,
    /// For models of a file that is read: sweeps over it until all its pages are touched.
    pub sweeps: Option<u64>,
    /// For traces: median cost of a fault that read nothing, in nanoseconds.
    pub soft_fault_ns: Option<u64>,
    /// For traces: threads that touched. Their touches are replayed one after the other.
    pub threads: usize,
    /// Touches that are missing.
    pub unseen: Unseen,
    /// For traces: faults left out because they are on memory that no disk holds (heap, stack and shared memory among it), or on
    /// prepage's agent.
    pub others: u64,
    /// For traces: touches whose fault has no cost. What it waited for in the recording counts as computing.
    pub without_cost: u64,
    /// For traces: what is known of the recording.
    pub facts: Option<TraceFacts>,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Memory(Vec<Touch>),
    Text(PathBuf),
    Trace(Box<TraceFile>),
}

/// What an input lacks of its program's touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unseen {
    /// All touches are there.
    Nothing,
    /// So many pages of the files touched may have been touched unseen: other programs kept them in memory, or
    /// fault-around could not be switched off for their mappings in time. Pages of folios of 2 MiB, which one fault maps whole, are
    /// not counted.
    AtMost(u64),
    /// Pages that read-ahead brought in and fault-around mapped: the trace, or a program in it, was not recorded exactly.
    Unknown,
}

/// There is nothing to replay.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// The file cannot be read.
    #[error("cannot read {}", .0.display())]
    Read(PathBuf, #[source] io::Error),
    /// A line of the file cannot be used.
    #[error("{}", .0.display())]
    Text(PathBuf, #[source] TextError),
    /// A touch lies outside of its entry.
    #[error("{}: line {line}: page {page} is past the end: the entry has {pages} pages", path.display())]
    PastEnd {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// The page.
        page: u64,
        /// Pages of the entry.
        pages: u64,
    },
    /// So many pages of an object would be in memory at once, which takes time and memory page by page.
    #[error(
        "{object}: {pages} pages in memory at once are more than can be simulated ({MOST_AT_ONCE} pages)"
    )]
    TooMany {
        /// The object's name.
        object: String,
        /// The pages.
        pages: u64,
    },
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceFileError),
    /// The file has no touches.
    #[error("{}: no touches of files' pages in it", .0.display())]
    Empty(PathBuf),
    /// The file was changed between two looks at it.
    #[error("{}: it changed while it was read", .0.display())]
    Changed(PathBuf),
}

impl Input {
    /// The touches in a text file (see [`crate::touch_text`]).
    ///
    /// # Errors
    /// Unreadable files, lines that are no touch, touches past the end, no touches at all.
    pub fn read_text(path: &Path, options: &TextOptions) -> Result<Self, InputError> {
        let mut names = Names::default();
        let mut largest: Vec<u64> = Vec::new();
        let mut count = 0;
        // A pipe can be read only once.
        let lasting = path.is_file();
        let mut kept = Vec::new();
        let limit = options.entry_limit();
        each_line(path, &mut names, |object, page, line| {
            if page >= limit {
                return Err(InputError::PastEnd { path: path.into(), line, page, pages: limit });
            }
            let at = object as usize;
            if at == largest.len() {
                largest.push(page);
            }
            largest[at] = largest[at].max(page);
            count += 1;
            if !lasting {
                kept.push(Touch::new(EntryIndex(object), page));
            }
            Ok(())
        })?;
        if count == 0 {
            return Err(InputError::Empty(path.into()));
        }
        let mut layout = Layout::default();
        for (at, name) in names.names.into_iter().enumerate() {
            let entry_pages = options.entry_pages.unwrap_or(largest[at] + 1);
            let pages = options.object_pages.unwrap_or(options.entry_offset.saturating_add(entry_pages));
            let pages = pages.min(MOST_PAGES);
            layout.objects.push(ObjectLayout { name, pages, ..ObjectLayout::default() });
            let pages = options.entry_pages.unwrap_or(MOST_PAGES);
            let offset = options.entry_offset;
            layout.entries.push(EntryLayout { offset, pages, ..EntryLayout::whole(at) });
            layout.resident.extend(options.resident.iter().map(|&range| (at, range)));
        }
        let source = if lasting { Source::Text(path.to_owned()) } else { Source::Memory(kept) };
        Ok(Self { count, source, ..Self::from_touches(layout, Vec::new()) })
    }

    /// The faults on files' pages in a trace, each taken as a touch: of a page of the file, through one of two entries of
    /// the process that faulted, for pages that may be executed and for others. A process that executes another program has new
    /// ones. What the program did between them is kept as time, without what observing it took, 4.29 s at most each.
    ///
    /// # Errors
    /// A file that is not a trace, and a trace without faults on files.
    pub fn read_trace(path: &Path) -> Result<Self, InputError> {
        Self::of_trace(TraceFile::open(path)?)
    }

    /// The same of a trace that is open already.
    ///
    /// # Errors
    /// As [`Input::read_trace`].
    pub fn of_trace(file: TraceFile) -> Result<Self, InputError> {
        let found = survey(&file)?;
        if found.count == 0 {
            return Err(InputError::Empty(file.path().into()));
        }
        let facts = file.facts();
        // Only of a command, recorded to its end, it is known how long it ran on after its last touch.
        let is_whole = !facts.is_of_running() && !facts.cut_short;
        Ok(Self {
            count: found.count,
            rest_ns: if is_whole { found.numbering.computed_ns(facts.duration_ns) } else { 0 },
            soft_fault_ns: found.soft_fault_ns,
            threads: found.numbering.threads(),
            unseen: found.unseen,
            others: found.numbering.others,
            without_cost: found.without_cost,
            facts: Some(facts.clone()),
            source: Source::Trace(Box::new(file)),
            ..Self::from_touches(found.numbering.layout, Vec::new())
        })
    }

    /// Touches of a model.
    pub fn model(model: Model) -> Self {
        let found = model.touches();
        let touch =
            |(page, think_ns): (PageIndex, u32)| Touch { page: page.0, entry: EntryIndex(0), think_ns };
        let touches = found.touches.into_iter().map(touch).collect();
        let layout = Layout::of_one(&model.to_string(), model.pages());
        Self { rest_ns: found.rest_ns, sweeps: found.sweeps, ..Self::from_touches(layout, touches) }
    }

    /// Touches made by the caller.
    pub fn from_touches(layout: Layout, touches: Vec<Touch>) -> Self {
        Self {
            layout,
            count: touches.len() as u64,
            rest_ns: 0,
            sweeps: None,
            soft_fault_ns: None,
            threads: 1,
            unseen: Unseen::Nothing,
            others: 0,
            without_cost: 0,
            facts: None,
            source: Source::Memory(touches),
        }
    }

    /// Makes the first page of every object resident before the first touch, as after a look at its ELF header.
    pub fn with_headers_read(mut self) -> Self {
        let first = PageRange::new(PageIndex(0), PageIndex(1));
        self.layout.resident.extend((0..self.layout.objects.len()).map(|object| (object, first)));
        self
    }

    /// Calls `take` for the touches, in order, some at a time.
    ///
    /// # Errors
    /// A file that cannot be read any more, or not as before.
    pub fn each_part(&self, take: impl FnMut(Arc<[Touch]>)) -> Result<(), InputError> {
        let mut parts = Parts { input: self, part: Vec::with_capacity(PART_TOUCHES), count: 0, take };
        match &self.source {
            Source::Memory(touches) => {
                touches.chunks(PART_TOUCHES).for_each(|part| (parts.take)(part.into()));
                Ok(())
            }
            Source::Text(path) => {
                each_line(path, &mut Names::default(), |object, page, _| {
                    parts.push(Touch::new(EntryIndex(object), page), path)
                })?;
                parts.finish(path)
            }
            Source::Trace(file) => {
                each_touch(file, |_, _, touch| parts.push(touch, file.path()))?;
                parts.finish(file.path())
            }
        }
    }

    /// All touches as object and page of the object, in order.
    ///
    /// # Errors
    /// As [`Input::each_part`].
    pub fn pages(&self) -> Result<Vec<(usize, PageIndex)>, InputError> {
        let mut pages = Vec::with_capacity(self.count as usize);
        self.each_part(|part| {
            pages.extend(part.iter().map(|touch| {
                let entry = &self.layout.entries[touch.entry.0 as usize];
                (entry.object, PageIndex(entry.offset + touch.page))
            }));
        })?;
        Ok(pages)
    }
}

/// What a profile of these runs would predict: the pages touched of each object that `is_known`, in order of first use.
///
/// # Errors
/// As [`Input::each_part`].
pub fn learn(
    runs: &[Input],
    is_known: impl Fn(&ObjectLayout) -> bool,
) -> Result<HashMap<String, Vec<Extent>>, InputError> {
    let mut touched: HashMap<&str, Touches> = HashMap::new();
    for run in runs {
        let is_known: Vec<bool> = run.layout.objects.iter().map(&is_known).collect();
        for (rank, (object, page)) in run.pages()?.into_iter().enumerate() {
            if !is_known[object] {
                continue;
            }
            let rank = u32::try_from(rank).unwrap_or(u32::MAX);
            touched.entry(&run.layout.objects[object].name).or_default().touch(page, rank);
        }
    }
    Ok(touched.into_iter().map(|(name, touches)| (name.to_owned(), touches.extents())).collect())
}

/// Touches on their way from a file to whoever takes them.
struct Parts<'a, F> {
    input: &'a Input,
    part: Vec<Touch>,
    count: u64,
    take: F,
}

impl<F: FnMut(Arc<[Touch]>)> Parts<'_, F> {
    fn push(&mut self, touch: Touch, path: &Path) -> Result<(), InputError> {
        let layout = &self.input.layout;
        let is_there = layout.entries.get(touch.entry.0 as usize).is_some_and(|entry| {
            touch.page < entry.pages
                && entry.offset.saturating_add(touch.page) < layout.objects[entry.object].pages
        });
        if !is_there {
            return Err(InputError::Changed(path.to_owned()));
        }
        self.count += 1;
        self.part.push(touch);
        if self.part.len() == PART_TOUCHES {
            (self.take)(self.part.as_slice().into());
            self.part.clear();
        }
        Ok(())
    }

    fn finish(mut self, path: &Path) -> Result<(), InputError> {
        (self.take)(self.part.as_slice().into());
        if self.count == self.input.count { Ok(()) } else { Err(InputError::Changed(path.to_owned())) }
    }
}

impl TextOptions {
    /// How many pages the entry can have.
    fn entry_limit(&self) -> u64 {
        let entry = self.entry_pages.unwrap_or(MOST_PAGES);
        let object = self.object_pages.unwrap_or(MOST_PAGES).min(MOST_PAGES);
        entry.min(object.saturating_sub(self.entry_offset))
    }
}

fn each_line(
    path: &Path,
    names: &mut Names,
    touch: impl FnMut(u32, u64, u64) -> Result<(), InputError>,
) -> Result<(), InputError> {
    let file = File::open(path).map_err(|source| InputError::Read(path.to_owned(), source))?;
    let text = BufReader::with_capacity(1 << 20, file);
    read_touches(text, names, |source| InputError::Text(path.to_owned(), source), touch)
}
