//! Records made into events.

use prepage_core::{PageIndex, PageRange, Permissions};
use prepage_sys::maps::Mapped;
use prepage_sys::perf::{FieldPlace, Mmap2, PerfError, Record, RecordKind, Sample, Source, Tracefs};

use super::Uncounted;
use crate::event::EventKind;
use crate::probe::PageCacheEvents;

/// What is needed to read the samples of a stream.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    /// Events of tracepoints, sorted by id, each with its tracepoint's.
    pub(super) events: Vec<(u64, u64)>,
    pub(super) tracepoints: Vec<PageCacheTracepoint>,
    pub(super) stacks: bool,
}

/// A tracepoint about pages of the page cache, and where its fields lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageCacheTracepoint {
    pub(super) id: u64,
    /// Missing where the event names the inode alone.
    device: Option<FieldPlace>,
    inode: FieldPlace,
    page: FieldPlace,
    about: About,
}

#[derive(Clone, Copy, Debug)]
enum About {
    /// With log2 of the number of pages; missing where the kernel adds one at a time.
    Added(Option<FieldPlace>),
    /// With the last page.
    Read(FieldPlace),
    Mapped(FieldPlace),
    Sought,
    Dirtied,
}

/// System and name of the tracepoints, the first of which is all there is to [`PageCacheEvents::Added`].
const TRACEPOINTS: [(&str, &str); 5] = [
    ("filemap", "mm_filemap_add_to_page_cache"),
    ("filemap", "mm_filemap_get_pages"),
    ("filemap", "mm_filemap_map_pages"),
    ("filemap", "mm_filemap_fault"),
    ("writeback", "writeback_dirty_folio"),
];

impl PageCacheTracepoint {
    /// The tracepoints that report `events`.
    pub(super) fn of(events: PageCacheEvents) -> Result<Vec<Self>, PerfError> {
        let names = match events {
            PageCacheEvents::None => return Ok(Vec::new()),
            PageCacheEvents::Added => &TRACEPOINTS[..1],
            PageCacheEvents::All => &TRACEPOINTS,
        };
        let (system, name) = names[0];
        let tracefs = Tracefs::open()
            .map_err(|source| PerfError::Tracefs { tracepoint: format!("{system}:{name}"), source })?;
        names.iter().map(|(system, name)| Self::find(&tracefs, system, name)).collect()
    }

    fn find(tracefs: &Tracefs, system: &str, name: &str) -> Result<Self, PerfError> {
        let tracepoint = tracefs.tracepoint(system, name)?;
        let dirtied = name == "writeback_dirty_folio";
        Ok(Self {
            id: tracepoint.id,
            device: if dirtied { None } else { Some(tracepoint.field("s_dev")?) },
            inode: tracepoint.field(if dirtied { "ino" } else { "i_ino" })?,
            page: tracepoint.field("index")?,
            about: match name {
                "mm_filemap_add_to_page_cache" => About::Added(tracepoint.field("order").ok()),
                "mm_filemap_get_pages" => About::Read(tracepoint.field("last_index")?),
                "mm_filemap_map_pages" => About::Mapped(tracepoint.field("last_index")?),
                "mm_filemap_fault" => About::Sought,
                _ => About::Dirtied,
            },
        })
    }

    fn event(&self, raw: &[u8]) -> Option<EventKind> {
        let inode = self.inode.read(raw)?;
        let file = (self.device.map_or(Some(0), |device| device.read(raw))?, inode);
        let page = self.page.read(raw)?;
        let up_to = |last: FieldPlace| {
            let last = last.read(raw)?;
            let end = last.checked_add(1).filter(|&end| end >= page)?;
            Some(PageRange::new(PageIndex(page), PageIndex(end)))
        };
        Some(match self.about {
            About::Added(order) => {
                let order = order.map_or(Some(0), |order| order.read(raw))?;
                let pages = 1u32.checked_shl(order.try_into().ok()?)?;
                let end = page.saturating_add(pages.into());
                EventKind::PageCached { file, pages: PageRange::new(PageIndex(page), PageIndex(end)) }
            }
            About::Read(last) => EventKind::PagesRead { file, pages: up_to(last)? },
            About::Mapped(last) => EventKind::PagesMapped { file, pages: up_to(last)? },
            About::Sought => EventKind::PageSought { file, page: PageIndex(page) },
            About::Dirtied => EventKind::PageDirtied { inode, page: PageIndex(page) },
        })
    }
}

impl Decoder {
    /// The event that `record` reports, if any. Losses are added to `uncounted`.
    pub(super) fn event(&self, record: &Record<'_>, uncounted: &mut Uncounted) -> Option<EventKind> {
        Some(match record.kind {
            RecordKind::Sample(sample) => match self.sample(&sample) {
                Some(kind) => kind,
                None => {
                    uncounted.malformed += 1;
                    EventKind::Lost { records: 1 }
                }
            },
            RecordKind::Mmap2(map) => EventKind::Map(Box::new(mapped(&map))),
            RecordKind::Comm { name, exec } => {
                EventKind::Name { name: String::from_utf8_lossy(name).into(), exec }
            }
            RecordKind::Fork { parent_pid, parent_tid } => EventKind::Fork { parent_pid, parent_tid },
            RecordKind::Exit => EventKind::Exit,
            RecordKind::Lost { records } => {
                uncounted.lost += records;
                EventKind::Lost { records }
            }
            RecordKind::Switch { out, preempted } => EventKind::Switch { out, preempted },
            RecordKind::Other(_) => return None,
        })
    }

    fn sample(&self, sample: &Sample<'_>) -> Option<EventKind> {
        if let Ok(at) = self.events.binary_search_by_key(&sample.id, |(id, _)| *id) {
            let of_event = |tracepoint: &&PageCacheTracepoint| tracepoint.id == self.events[at].1;
            return self.tracepoints.iter().find(of_event)?.event(sample.raw()?);
        }
        let &Sample { address, ip, .. } = sample;
        Some(match sample.fault()? {
            Source::PageFaults => {
                // Zeros stand where code without frame pointers led astray.
                let known = |&address: &u64| address != 0;
                // Another observer's chain, which all get since Linux 6.3, may begin in the kernel.
                let is_programs = |&address: &u64| address >> 63 == 0;
                let calls = match self.stacks {
                    true => Some(sample.callchain()?.filter(is_programs).take_while(known).collect()),
                    false => None,
                };
                EventKind::FaultBegin { address, ip, calls }
            }
            Source::MinorFaults => EventKind::FaultEnd { address, ip, disk: false },
            Source::MajorFaults => EventKind::FaultEnd { address, ip, disk: true },
            Source::Tracepoint(_) | Source::Dummy => return None,
        })
    }
}

fn mapped(map: &Mmap2<'_>) -> Mapped {
    let path = match map.path {
        b"//anon" => "[anon]".into(),
        path => String::from_utf8_lossy(path),
    };
    let device = u64::from(map.device.0) << 20 | u64::from(map.device.1);
    Mapped {
        start: map.address,
        end: map.address.saturating_add(map.len),
        offset_bytes: map.offset,
        // The first segment of System V shared memory has the inode 0. What is of no file has no device either.
        inode: (map.inode != 0 || device != 0).then_some((device, map.inode)),
        permissions: Permissions::of_mapping(map.protection, map.flags),
        path: path.into(),
    }
}
