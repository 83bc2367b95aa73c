//! Which page of which object a map shows where, and how it gets there.

use std::sync::Arc;

use prepage_core::{PAGE_SIZE, PageIndex, PageRange};

use crate::object::{Contents, Frames, ObjectCore};

/// How a page of a segment gets into the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Install {
    /// The object's own frame is shown: the mapping lies over its memfd (UFFDIO_CONTINUE).
    Continue,
    /// The bytes are copied into a private page (UFFDIO_COPY).
    Copy,
    /// Zeros are made (UFFDIO_COPY or UFFDIO_ZEROPAGE).
    Zero,
}

/// A run of a map's pages that one object is behind. Constant.
#[derive(Debug)]
pub(crate) struct Segment {
    /// The map's pages.
    pub(crate) pages: PageRange,
    pub(crate) object: Arc<ObjectCore>,
    /// The object's page behind the first of them.
    pub(crate) first: PageIndex,
    pub(crate) install: Install,
}

/// What is behind one page of a map.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub(crate) object: &'a Arc<ObjectCore>,
    /// The object's page.
    pub(crate) page: PageIndex,
    pub(crate) install: Install,
    /// The object's pages that the map shows in one piece, `page` among them.
    pub(crate) window: PageRange,
    /// Where the first page of `window` lies, in bytes from the map's start.
    pub(crate) offset_bytes: u64,
}

impl Segment {
    /// All of it, seen from the map's page `page`. `first` is the map's first page.
    fn place(&self, page: PageIndex, first: PageIndex) -> Place<'_> {
        let window = PageRange::new(self.first, PageIndex(self.first.0 + self.pages.len()));
        Place {
            object: &self.object,
            page: PageIndex(self.first.0 + (page.0 - self.pages.start().0)),
            install: self.install,
            window,
            offset_bytes: (self.pages.start().0 - first.0) * PAGE_SIZE,
        }
    }
}

impl<'a> Place<'a> {
    /// The frames of a segment that is not made of zeros.
    pub(crate) fn frames(&self) -> Option<&'a Frames> {
        match &self.object.contents {
            Contents::Frames(frames) if self.install != Install::Zero => Some(frames),
            _ => None,
        }
    }

    /// Where the object's page `page`, which lies in the window, is in the map, in bytes from its start.
    pub(crate) fn offset_of(&self, page: PageIndex) -> u64 {
        self.offset_bytes + (page.0 - self.window.start().0) * PAGE_SIZE
    }
}

/// The place of the map's page `page`, which is one of those that `segments` are of.
pub(crate) fn lookup(segments: &[Segment], page: PageIndex) -> Place<'_> {
    let first = segments[0].pages.start();
    let at =
        if segments.len() == 1 { 0 } else { segments.partition_point(|segment| segment.pages.end() <= page) };
    segments[at].place(page, first)
}

/// The places of `range`, one for each segment that it meets, with how many pages of it from `page` on lie there.
pub(crate) fn places(segments: &[Segment], range: PageRange) -> impl Iterator<Item = (Place<'_>, u64)> {
    let first = segments[0].pages.start();
    segments.iter().filter_map(move |segment| {
        let start = range.start().max(segment.pages.start());
        let end = range.end().min(segment.pages.end());
        (start < end).then(|| (segment.place(start, first), end.0 - start.0))
    })
}
