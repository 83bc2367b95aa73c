//! A userfaultfd and the maps that it serves.

use std::sync::Arc;

use prepage_sys::userfaultfd::Userfaultfd;

use crate::addresses::Addresses;
use crate::options::Mode;

/// One descriptor, how its faults come in, and where to find the map of an address. All constant.
#[derive(Debug)]
pub(crate) struct Space {
    pub(crate) uffd: Userfaultfd,
    pub(crate) mode: Mode,
    pub(crate) addresses: &'static Addresses,
}

impl Space {
    pub(crate) fn new(uffd: Userfaultfd, mode: Mode, addresses: &'static Addresses) -> Arc<Self> {
        Arc::new(Self { uffd, mode, addresses })
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        if self.mode == Mode::Handler {
            self.addresses.give_back();
        }
    }
}
