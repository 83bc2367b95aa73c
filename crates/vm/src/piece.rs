//! A part of an object, as maps of several are put together from.

use std::sync::Arc;

use prepage_core::PageRange;

use crate::book::Hold;
use crate::error::MapError;
use crate::object::{Contents, Object, ObjectCore};
use crate::segment::Install;

/// Pages of an object that become a part of a map: see [`Vm::map_pieces`](crate::Vm::map_pieces).
#[derive(Clone, Debug)]
pub struct Piece {
    pub(crate) object: Arc<ObjectCore>,
    pub(crate) pages: PageRange,
    pub(crate) copied: bool,
    /// Of a snapshot.
    pub(crate) hold: Option<Arc<Hold>>,
}

impl Piece {
    /// `pages` of `object`. The map shows the object's frames of them.
    pub fn new(object: &Object, pages: PageRange) -> Self {
        Self { object: Arc::clone(&object.core), pages, copied: false, hold: object.hold.clone() }
    }

    /// The pages are copied when they are touched. They then take memory of the map, but no mapping (vm.max_map_count).
    pub fn copied(self) -> Self {
        Self { copied: true, ..self }
    }

    /// A piece that lies within its object.
    pub(crate) fn checked(object: &Object, pages: PageRange) -> Result<Self, MapError> {
        Self::new(object, pages).check()
    }

    pub(crate) fn check(self) -> Result<Self, MapError> {
        let (name, all) = (&self.object.name, self.object.pages());
        if self.pages.is_empty() {
            return Err(MapError::Empty { object: name.clone() });
        }
        if self.pages.end() > all.end() {
            return Err(MapError::Beyond { object: name.clone(), window: self.pages, pages: all.len() });
        }
        Ok(self)
    }

    pub(crate) fn install(&self) -> Install {
        match &self.object.contents {
            Contents::Zero => Install::Zero,
            Contents::Frames(_) if self.copied => Install::Copy,
            Contents::Frames(_) => Install::Continue,
        }
    }
}
