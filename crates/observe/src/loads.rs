//! What the kernel and ld.so touch of programs and libraries before anything of them is armed, in the order in which they do.
//!
//! That it was touched is seen when somebody looks at page tables for the first time, of all libraries at once. ld.so reads the head and the
//! dynamic section of each library as it loads it, long before it relocates them, the last one first; and the agent is told of each load.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_profiles::elf::Elf;
use prepage_sys::regular_file;

use crate::sightings::Inode;

/// `p_type` of the dynamic section.
const PT_DYNAMIC: u32 = 2;

/// Programs and libraries, and when each was first loaded.
#[derive(Debug, Default)]
pub(crate) struct Loads {
    programs: HashMap<PathBuf, u64>,
    libraries: HashMap<PathBuf, u64>,
}

/// By path without symbolic links: when pages of a file were touched, if they were.
#[derive(Debug, Default)]
pub(crate) struct Touched(HashMap<PathBuf, TouchedPages>);

#[derive(Clone, Debug, Default)]
pub(crate) struct TouchedPages(u64, Vec<PageRange>);

impl Touched {
    pub(crate) fn of(&self, path: &Path) -> TouchedPages {
        self.0.get(path).cloned().unwrap_or_default()
    }
}

impl TouchedPages {
    /// When `page` was touched that was seen touched at `seen_ns`.
    pub(crate) fn time_ns(&self, page: u64, seen_ns: u64) -> u64 {
        let is_known = self.1.iter().any(|pages| pages.contains(PageIndex(page)));
        if is_known { seen_ns.min(self.0) } else { seen_ns }
    }
}

/// What ld.so of glibc maps as a whole, looks into and unmaps, before anything is armed.
pub(crate) fn loader_cache() -> Option<(&'static Path, Inode, PageRange)> {
    let path = Path::new("/etc/ld.so.cache");
    let metadata = path.metadata().ok()?;
    Some((path, (metadata.dev(), metadata.ino()), PageRange::covering(0, metadata.len())))
}

impl Loads {
    /// At `time_ns` the dynamic program `path` was set up.
    pub(crate) fn program(&mut self, time_ns: u64, path: &Path) {
        first(&mut self.programs, time_ns, path);
    }

    /// At `time_ns` ld.so looked for a library here.
    pub(crate) fn library(&mut self, time_ns: u64, path: &Path) {
        first(&mut self.libraries, time_ns, path);
    }

    /// Of all that was loaded and is there.
    pub(crate) fn touched(&self) -> Touched {
        let mut touched = Touched::default();
        let mut add = |path: &Path, time_ns: u64, pages: Vec<PageRange>| {
            let Ok(path) = path.canonicalize() else { return };
            let known = touched.0.entry(path).or_insert_with(|| TouchedPages(time_ns, pages));
            known.0 = known.0.min(time_ns);
        };
        for (path, &time_ns) in &self.programs {
            let Some((elf, file)) = elf(path) else { continue };
            add(path, time_ns, heads(&elf));
            // It links itself before it looks for anything else.
            if let Ok(Some(loader)) = elf.interpreter(&file) {
                add(Path::new(&loader), time_ns, vec![PageRange::new(PageIndex(0), PageIndex(u64::MAX))]);
            }
        }
        for (path, &time_ns) in &self.libraries {
            if let Some((elf, _)) = elf(path) {
                add(path, time_ns, heads(&elf));
            }
        }
        touched
    }
}

fn first(loads: &mut HashMap<PathBuf, u64>, time_ns: u64, path: &Path) {
    match loads.get_mut(path) {
        _ if !path.is_absolute() => {}
        Some(known) => *known = time_ns.min(*known),
        None => drop(loads.insert(path.into(), time_ns)),
    }
}

fn elf(path: &Path) -> Option<(Elf, File)> {
    let (file, _) = regular_file::open(path).ok()?;
    Some((Elf::parse(&file).ok()?, file))
}

/// The head of a file, and its dynamic section.
fn heads(elf: &Elf) -> Vec<PageRange> {
    let dynamic = elf.segments.iter().filter(|segment| segment.kind == PT_DYNAMIC);
    let dynamic = dynamic.map(|segment| PageRange::covering(segment.offset_bytes, segment.file_bytes));
    std::iter::once(PageRange::covering(0, PAGE_SIZE)).chain(dynamic).collect()
}
