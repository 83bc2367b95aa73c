//! Objects, entries and the touches on them.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use prepage_core::profile::{Evidence, Extent, Touches};
use prepage_core::simulate::model::Model;
use prepage_core::simulate::pages::MOST_PAGES;
use prepage_core::simulate::{EntryIndex, Replay, Touch};
use prepage_core::{FaultClass, PageIndex, PageRange, Permissions, Trace, TraceFacts};
use prepage_trace::parquet::{TraceFileError, read_trace};

use crate::touch_text::{Names, TextError, read_touches};

/// Touches handed over at once: 1 MiB of them.
const PART_TOUCHES: usize = 1 << 16;

/// What is touched.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// The objects.
    pub objects: Vec<ObjectLayout>,
    /// The entries that map them; touches name these.
    pub entries: Vec<EntryLayout>,
    /// Pages resident before the first touch, by object.
    pub resident: Vec<(usize, PageRange)>,
}

/// One object.
#[derive(Clone, Debug)]
pub struct ObjectLayout {
    /// A file's path, or what the text calls it.
    pub name: String,
    /// How long it is.
    pub pages: u64,
}

/// One map entry.
#[derive(Clone, Copy, Debug)]
pub struct EntryLayout {
    /// Its place in [`Layout::objects`].
    pub object: usize,
    /// First page of the object that it shows.
    pub offset: u64,
    /// How many pages it shows.
    pub pages: u64,
    /// Whether they may be executed.
    pub executable: bool,
}

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
    /// For traces: mean cost of a fault that read nothing, in nanoseconds.
    pub soft_fault_ns: Option<u64>,
    /// Touches that are missing.
    pub unseen: Unseen,
    /// For traces: faults left out because they are on memory that several processes share, which no disk holds.
    pub shared_memory: u64,
    /// For traces: what is known of the recording.
    pub facts: Option<TraceFacts>,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Memory(Vec<Touch>),
    /// A text file, read again for each replay.
    Text(PathBuf),
}

/// What an input cannot tell of its program's touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unseen {
    /// All touches are there.
    Nothing,
    /// Other programs kept so many pages of the files touched in memory, beside those whose touches were seen; any of them
    /// may have been touched.
    AtMost(u64),
    /// Pages that read-ahead brought in and fault-around mapped: the trace was not recorded exactly.
    Unknown,
}

/// There is nothing to replay.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A line cannot be used.
    #[error("{}", path.display())]
    Text {
        /// The file.
        path: PathBuf,
        /// Which line, and why.
        source: TextError,
    },
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
    /// The file is no trace that can be read.
    #[error(transparent)]
    Trace(#[from] TraceFileError),
    /// There is no touch in it.
    #[error("{}: no touches of files' pages in it", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The file was changed between two looks at it.
    #[error("{}: it changed while it was read", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
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
        // Something that is no file can be read only once.
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
            return Err(InputError::Empty { path: path.into() });
        }
        let mut layout = Layout::default();
        for (at, name) in names.names.into_iter().enumerate() {
            let entry_pages = options.entry_pages.unwrap_or(largest[at] + 1);
            let pages = options.object_pages.unwrap_or(options.entry_offset.saturating_add(entry_pages));
            let pages = pages.min(MOST_PAGES);
            layout.objects.push(ObjectLayout { name, pages });
            let pages = options.entry_pages.unwrap_or(MOST_PAGES);
            let offset = options.entry_offset;
            layout.entries.push(EntryLayout { object: at, offset, pages, executable: false });
            layout.resident.extend(options.resident.iter().map(|&range| (at, range)));
        }
        let source = if lasting { Source::Text(path.to_owned()) } else { Source::Memory(kept) };
        Ok(Self { count, source, ..Self::from_touches(layout, Vec::new()) })
    }

    /// The faults on files' pages in a trace, each taken as a touch: of a page of the file, through one of two entries of
    /// the process that faulted, for pages that may be executed and for others. What the program did between them is kept as
    /// time, 4.29 s at most each.
    ///
    /// # Errors
    /// A file that is no trace, and a trace without faults on files.
    pub fn read_trace(path: &Path) -> Result<Self, InputError> {
        let input = Self::from_trace(&read_trace(path)?);
        if input.count == 0 { Err(InputError::Empty { path: path.into() }) } else { Ok(input) }
    }

    /// See [`Input::read_trace`].
    pub fn from_trace(trace: &Trace) -> Self {
        let mut layout = Layout::default();
        let mut objects: HashMap<u32, usize> = HashMap::new();
        let mut entries: HashMap<(u32, u32, bool), u32> = HashMap::new();
        let mut touches = Vec::new();
        let (mut soft, mut soft_ns, mut over_ns) = (0_u64, 0_u64, 0);
        let mut shared_memory = 0;
        let mut seen = HashSet::new();
        // Pages that were resident when they were first touched, by object.
        let mut found_resident: HashMap<usize, u64> = HashMap::new();
        for fault in &trace.faults {
            let end_ns = fault.start_ns.saturating_add(fault.cost_ns.unwrap_or(0));
            let think_ns = fault.start_ns.saturating_sub(over_ns);
            let (Some(id), Some(page)) = (fault.object, fault.page) else {
                continue;
            };
            if fault.class == FaultClass::Failed || page.0 >= MOST_PAGES {
                continue;
            }
            if is_shared_memory(&trace.objects[id.0 as usize].path) {
                shared_memory += 1;
                continue;
            }
            over_ns = over_ns.max(end_ns);
            if let (FaultClass::Cached, Some(cost_ns)) = (fault.class, fault.cost_ns) {
                soft += 1;
                soft_ns = soft_ns.saturating_add(cost_ns);
            }
            let object = *objects.entry(id.0).or_insert_with(|| {
                let object = &trace.objects[id.0 as usize];
                let pages = object.size_bytes.map_or(0, |bytes| PageRange::covering(0, bytes).len());
                layout.objects.push(ObjectLayout { name: object.path.clone(), pages: pages.min(MOST_PAGES) });
                layout.objects.len() - 1
            });
            if seen.insert((object, page)) && fault.class != FaultClass::Disk {
                *found_resident.entry(object).or_default() += 1;
            }
            let pages = &mut layout.objects[object].pages;
            *pages = (*pages).max(page.0 + 1);
            let pid = trace.threads[fault.thread.0 as usize].pid;
            let executable = fault.permissions.contains(Permissions::EXECUTE);
            let entry = *entries.entry((pid, id.0, executable)).or_insert_with(|| {
                layout.entries.push(EntryLayout { object, offset: 0, pages: MOST_PAGES, executable });
                layout.entries.len() as u32 - 1
            });
            let think_ns = u32::try_from(think_ns).unwrap_or(u32::MAX);
            touches.push(Touch { page: page.0, entry: EntryIndex(entry), think_ns });
        }
        let soft_fault_ns = u64::checked_div(soft_ns, soft);
        let unseen = unseen(trace, &layout, &found_resident);
        let facts = Some(trace.facts.clone());
        Self { soft_fault_ns, unseen, shared_memory, facts, ..Self::from_touches(layout, touches) }
    }

    /// Touches of a model.
    pub fn model(model: Model) -> Self {
        let touch = |(page, think_ns)| Touch { page, entry: EntryIndex(0), think_ns };
        let touches = model.touches().into_iter().map(touch).collect();
        let mut layout = Layout::default();
        layout.objects.push(ObjectLayout { name: model.to_string(), pages: model.pages() });
        layout.entries.push(EntryLayout { object: 0, offset: 0, pages: model.pages(), executable: false });
        Self::from_touches(layout, touches)
    }

    /// Touches made by the caller.
    pub fn from_touches(layout: Layout, touches: Vec<Touch>) -> Self {
        Self {
            layout,
            count: touches.len() as u64,
            soft_fault_ns: None,
            unseen: Unseen::Nothing,
            shared_memory: 0,
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
    /// A text file that cannot be read any more, or not as before.
    pub fn each_part(&self, mut take: impl FnMut(Arc<[Touch]>)) -> Result<(), InputError> {
        match &self.source {
            Source::Memory(touches) => touches.chunks(PART_TOUCHES).for_each(|part| take(part.into())),
            Source::Text(path) => {
                let mut part = Vec::with_capacity(PART_TOUCHES);
                let mut count = 0;
                let changed = || InputError::Changed { path: path.clone() };
                each_line(path, &mut Names::default(), |object, page, _| {
                    let layout = self.layout.entries.get(object as usize).ok_or_else(changed)?;
                    let object_pages = self.layout.objects[layout.object].pages;
                    if layout.offset.saturating_add(page) >= object_pages || page >= layout.pages {
                        return Err(changed());
                    }
                    count += 1;
                    part.push(Touch::new(EntryIndex(object), page));
                    if part.len() == PART_TOUCHES {
                        take(part.as_slice().into());
                        part.clear();
                    }
                    Ok(())
                })?;
                take(part.into());
                if count != self.count {
                    return Err(changed());
                }
            }
        }
        Ok(())
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

/// What a profile of these runs would predict: the pages touched of each object, in order of first use.
///
/// # Errors
/// As [`Input::each_part`].
pub fn learn(runs: &[Input]) -> Result<HashMap<String, Vec<Extent>>, InputError> {
    let mut touched: HashMap<&str, Touches> = HashMap::new();
    for run in runs {
        for (rank, (object, page)) in run.pages()?.into_iter().enumerate() {
            let rank = u32::try_from(rank).unwrap_or(u32::MAX);
            touched.entry(&run.layout.objects[object].name).or_default().touch(page, rank, Evidence::Seen);
        }
    }
    Ok(touched.into_iter().map(|(name, touches)| (name.to_owned(), touches.extents())).collect())
}

fn unseen(trace: &Trace, layout: &Layout, found_resident: &HashMap<usize, u64>) -> Unseen {
    let Some(exact) = &trace.facts.exact else { return Unseen::Unknown };
    let resident: HashMap<&str, u64> =
        exact.resident_pages.iter().map(|(path, pages)| (path.as_str(), *pages)).collect();
    let objects = layout.objects.iter().enumerate();
    let hidden = objects.map(|(at, object)| {
        let kept = resident.get(object.name.as_str()).copied().unwrap_or(0);
        kept.saturating_sub(found_resident.get(&at).copied().unwrap_or(0))
    });
    Unseen::AtMost(hidden.fold(0, u64::saturating_add))
}

/// Whether a path is that of memory, not of a file: memfd_create, shmget, MAP_SHARED|MAP_ANONYMOUS, shm_open.
fn is_shared_memory(path: &str) -> bool {
    ["/memfd:", "/SYSV", "/dev/zero", "/dev/shm/"].iter().any(|prefix| path.starts_with(prefix))
}

impl Layout {
    /// Adds these objects and entries to `replay`, each object under the policy `policy` gives it.
    pub fn build(
        &self,
        mut replay: Replay,
        policy: impl Fn(&ObjectLayout) -> prepage_core::policy::Policy,
    ) -> Replay {
        let objects: Vec<_> =
            self.objects.iter().map(|object| replay.add_object(object.pages, policy(object))).collect();
        for &(object, range) in &self.resident {
            let end = range.end().min(PageIndex(self.objects[object].pages));
            replay.give(objects[object], PageRange::new(range.start().min(end), end));
        }
        for entry in &self.entries {
            let add = if entry.executable { Replay::add_executable_entry } else { Replay::add_entry };
            add(&mut replay, objects[entry.object], entry.offset, entry.pages);
        }
        replay
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
    mut touch: impl FnMut(u32, u64, u64) -> Result<(), InputError>,
) -> Result<(), InputError> {
    /// Either kind of error, told apart after the lines.
    enum Stop {
        Text(TextError),
        Other(InputError),
    }
    impl From<TextError> for Stop {
        fn from(error: TextError) -> Self {
            Self::Text(error)
        }
    }
    let read = |source| InputError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(read)?;
    let text = BufReader::with_capacity(1 << 20, file);
    read_touches(text, names, |object, page, line| touch(object, page, line).map_err(Stop::Other)).map_err(
        |stop| match stop {
            Stop::Text(source) => InputError::Text { path: path.to_owned(), source },
            Stop::Other(error) => error,
        },
    )
}
