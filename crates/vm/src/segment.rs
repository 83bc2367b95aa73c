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

/// What is behind a map's pages, in order and without gaps.
pub(crate) type Segments = Box<[Segment]>;

/// A run of a map's pages that one object is behind. Constant.
#[derive(Clone, Debug)]
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
    /// The part of it that lies in `pages`; `None` where none does.
    pub(crate) fn part(&self, pages: PageRange) -> Option<Self> {
        let start = self.pages.start().max(pages.start());
        let end = self.pages.end().min(pages.end());
        (start < end).then(|| Self {
            pages: PageRange::new(start, end),
            object: Arc::clone(&self.object),
            first: PageIndex(self.first.0 + (start.0 - self.pages.start().0)),
            install: self.install,
        })
    }

    /// The same behind other pages of a map: those from `start` on.
    pub(crate) fn at(self, start: PageIndex) -> Self {
        Self { pages: PageRange::new(start, PageIndex(start.0 + self.pages.len())), ..self }
    }

    /// The object's pages behind it.
    pub(crate) fn of_object(&self) -> PageRange {
        PageRange::new(self.first, PageIndex(self.first.0 + self.pages.len()))
    }

    /// All of it, seen from the map's page `page`. `first` is the map's first page.
    fn place(&self, page: PageIndex, first: PageIndex) -> Place<'_> {
        Place {
            object: &self.object,
            page: PageIndex(self.first.0 + (page.0 - self.pages.start().0)),
            install: self.install,
            window: self.of_object(),
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

/// Parts of segments, one after the other: each is looked at once.
#[derive(Debug)]
pub(crate) struct Parts<'a>(std::iter::Peekable<std::slice::Iter<'a, Segment>>);

impl<'a> Parts<'a> {
    pub(crate) fn of(segments: &'a [Segment]) -> Self {
        Self(segments.iter().peekable())
    }

    /// Appends what lies in `range`, which does not begin before the last one ended.
    pub(crate) fn append(&mut self, range: PageRange, to: &mut Vec<Segment>) {
        while let Some(segment) = self.0.peek() {
            to.extend(segment.part(range));
            if segment.pages.end() > range.end() {
                break;
            }
            self.0.next();
        }
    }
}

/// What a map shows of `wanted` where `laid` lies: an object's frames where its memfd lies there, else copies.
pub(crate) fn placed(laid: &[Segment], wanted: Vec<Segment>) -> Segments {
    let mut placed = Vec::with_capacity(wanted.len());
    let mut lies = laid.iter().peekable();
    let mut place = |pages: PageRange, part: &Segment| {
        while lies.peek().is_some_and(|lies| lies.pages.end() <= pages.start()) {
            lies.next();
        }
        let lies = lies.peek().expect("something lies behind every page");
        let rest = PageRange::new(pages.start(), pages.end().min(lies.pages.end()));
        let is_there = lies.install == Install::Continue
            && Arc::ptr_eq(&lies.object, &part.object)
            && rest.start().0 - lies.pages.start().0 + lies.first.0
                == rest.start().0 - part.pages.start().0 + part.first.0;
        let install = match &part.object.contents {
            Contents::Zero => Install::Zero,
            Contents::Frames(_) if is_there => Install::Continue,
            Contents::Frames(_) => Install::Copy,
        };
        (rest, install)
    };
    for segment in wanted {
        let mut left = segment.pages;
        let (mut rest, mut install) = place(left, &segment);
        while rest.end() < left.end() {
            placed.push(Segment { install, ..segment.part(rest).expect("not empty") });
            left = PageRange::new(rest.end(), left.end());
            (rest, install) = place(left, &segment);
        }
        let first = PageIndex(segment.first.0 + (rest.start().0 - segment.pages.start().0));
        placed.push(Segment { pages: rest, first, install, ..segment });
    }
    placed.into()
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
    let from = segments.partition_point(|segment| segment.pages.end() <= range.start());
    let meets = move |segment: &&Segment| segment.pages.start().max(range.start()) < range.end();
    segments[from..].iter().take_while(meets).map(move |segment| {
        let start = range.start().max(segment.pages.start());
        let end = range.end().min(segment.pages.end());
        (segment.place(start, first), end.0 - start.0)
    })
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests {
    use super::*;
    use crate::{Vm, VmOptions};

    #[test]
    fn places_are_those_of_the_segments_that_a_range_meets() {
        let vm = Vm::new(VmOptions::default()).unwrap();
        let zeros = vm.anonymous(64 * PAGE_SIZE).unwrap();
        let range = |start, end| PageRange::new(PageIndex(start), PageIndex(end));
        let segment = |at: u64| {
            let object = Arc::clone(&zeros.core);
            let pages = range(10 + 4 * at, 14 + 4 * at);
            Segment { pages, object, first: PageIndex(8 * at), install: Install::Zero }
        };
        let segments: Vec<Segment> = (0..5).map(segment).collect();
        for (start, end) in (10..=30).flat_map(|start| (start..=30).map(move |end| (start, end))) {
            let found = places(&segments, range(start, end)).map(|(place, count)| (place.page, count));
            let parts = segments.iter().filter_map(|segment| segment.part(range(start, end)));
            let expected = parts.map(|part| (part.first, part.pages.len()));
            assert!(found.eq(expected), "{start}..{end}");
        }
    }
}
