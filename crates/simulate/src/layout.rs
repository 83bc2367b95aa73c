//! What is touched: objects, the entries that map them, and what is resident at the start.

use prepage_core::policy::Policy;
use prepage_core::{BuildId, PageIndex, PageRange};

use crate::pages::MOST_PAGES;
use crate::replay::Replay;

/// Objects and entries.
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
#[derive(Clone, Debug, Default)]
pub struct ObjectLayout {
    /// A file's path, or what the text calls it.
    pub name: String,
    /// How long it is.
    pub pages: u64,
    /// Of a trace's file: its build-id, where the trace has it.
    pub build_id: Option<BuildId>,
    /// Of a trace's file: its length, where the trace has it.
    pub size_bytes: Option<u64>,
}

/// One map entry.
#[derive(Clone, Debug)]
pub struct EntryLayout {
    /// Its place in [`Layout::objects`].
    pub object: usize,
    /// First page of the object that it shows.
    pub offset: u64,
    /// How many pages it shows.
    pub pages: u64,
    /// Whether they may be executed.
    pub executable: bool,
    /// The policy that serves its faults whichever policy is tried on the others, as madvise(2) would choose one.
    pub advised: Option<Policy>,
}

impl EntryLayout {
    /// An entry that shows all of an object, which may not be executed.
    pub fn whole(object: usize) -> Self {
        Self { object, offset: 0, pages: MOST_PAGES, executable: false, advised: None }
    }
}

impl Layout {
    /// An object of `pages` pages with an entry that shows all of it.
    pub fn of_one(name: &str, pages: u64) -> Self {
        let objects = vec![ObjectLayout { name: name.to_owned(), pages, ..ObjectLayout::default() }];
        Self { objects, entries: vec![EntryLayout::whole(0)], resident: Vec::new() }
    }

    /// Lets `policy` serve the entries of the objects called `name`, or whose path ends in `/name`; returns how many
    /// entries there are.
    pub fn advise(&mut self, name: &str, policy: &Policy) -> usize {
        let objects = &self.objects;
        let meant = |object: &ObjectLayout| {
            let directory = object.name.strip_suffix(name);
            directory.is_some_and(|directory| directory.is_empty() || directory.ends_with('/'))
        };
        let entries = self.entries.iter_mut().filter(|entry| meant(&objects[entry.object]));
        entries.map(|entry| entry.advised = Some(policy.clone())).count()
    }

    /// The object, and how many pages of it, with most pages in memory at once: resident at the start, or read by `policy` or
    /// by advice as soon as one is touched.
    pub fn most_at_once(&self, policy: &Policy) -> Option<(&str, u64)> {
        let read = self
            .entries
            .iter()
            .filter(|entry| matches!(entry.advised.as_ref().unwrap_or(policy), Policy::Slurp));
        let read = read.map(|entry| {
            let object = &self.objects[entry.object];
            (object, object.pages.saturating_sub(entry.offset).min(entry.pages))
        });
        let resident = self.resident.iter().map(|(object, range)| {
            let object = &self.objects[*object];
            (object, range.end().0.min(object.pages).saturating_sub(range.start().0))
        });
        let most = read.chain(resident).max_by_key(|(_, pages)| *pages);
        most.map(|(object, pages)| (object.name.as_str(), pages))
    }

    /// Adds these objects and entries to `replay`. An entry is served by its advice, else by `policy`: by what `of_object` makes
    /// of either for its object.
    pub fn build(
        &self,
        mut replay: Replay,
        policy: &Policy,
        of_object: impl Fn(&Policy, &ObjectLayout) -> Policy,
    ) -> Replay {
        let objects: Vec<_> = self.objects.iter().map(|object| replay.add_object(object.pages)).collect();
        for &(object, range) in &self.resident {
            let end = range.end().min(PageIndex(self.objects[object].pages));
            replay.give(objects[object], PageRange::new(range.start().min(end), end));
        }
        for entry in &self.entries {
            let policy = of_object(entry.advised.as_ref().unwrap_or(policy), &self.objects[entry.object]);
            let index = replay.add_entry(objects[entry.object], entry.offset, entry.pages, policy);
            if entry.executable {
                replay.make_executable(index);
            }
        }
        replay
    }
}
