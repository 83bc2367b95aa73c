//! Where pages go that were written to.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use prepage_core::PageIndex;

/// What takes the bytes of dirty pages, and gives them again when the object's pages are read.
pub(crate) trait Home: Send + Sync + std::fmt::Debug {
    /// Writes all of `bytes` at `offset_bytes`.
    fn write(&self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()>;

    /// Where it ends now: bytes beyond are not to be written.
    fn len_bytes(&self) -> io::Result<u64>;

    /// Returns once all that was written will outlive the machine. An error is told once.
    fn sync(&self) -> io::Result<()>;

    /// Whether it may take `page`: what it surely refuses need not be tried.
    fn takes(&self, _page: PageIndex) -> bool {
        true
    }

    /// Whether it is a swap file: what goes there is of no use to anybody else, and only goes there to make room.
    fn is_swap(&self) -> bool {
        false
    }
}

impl Home for File {
    fn write(&self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, offset_bytes)
    }

    fn len_bytes(&self) -> io::Result<u64> {
        // A file system in user space may end the call for a signal.
        Ok(rustix::io::retry_on_intr(|| rustix::fs::fstat(self))?.st_size as u64)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}
