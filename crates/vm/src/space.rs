//! A userfaultfd and the maps that it serves.

use std::sync::Arc;

use prepage_sys::fork;
use prepage_sys::userfaultfd::Userfaultfd;

use crate::addresses::Addresses;
use crate::options::Mode;

/// One descriptor, how its faults come in, and where to find the map of an address. All constant.
#[derive(Debug)]
pub(crate) struct Space {
    /// The process that it was opened in.
    generation: u64,
    pub(crate) uffd: Userfaultfd,
    pub(crate) mode: Mode,
    pub(crate) addresses: &'static Addresses,
}

impl Space {
    pub(crate) fn new(uffd: Userfaultfd, mode: Mode, addresses: &'static Addresses) -> Arc<Self> {
        Arc::new(Self { generation: fork::generation(), uffd, mode, addresses })
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        // In a child of fork(2) the table has the parent's maps, and may be locked for good.
        if self.mode == Mode::Handler && self.generation == fork::generation() {
            self.addresses.give_back();
        }
    }
}
