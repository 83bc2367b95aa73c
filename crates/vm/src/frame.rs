//! The pages of an object that are in memory, one by one.

use prepage_core::PageIndex;

use crate::object::Object;

/// A page of an object that is in memory, as it was at the moment at which it was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Frame {
    /// Which page of the object it is.
    pub page: PageIndex,
    /// Whether maps may show it.
    pub is_wired: bool,
    /// Whether a map pins it.
    pub is_pinned: bool,
    /// Whether it may hold written bytes that were not written back yet.
    pub is_dirty: bool,
}

impl Object {
    /// The pages of the object that are in memory, in ascending order. Each is looked at when the iterator comes to it, and may change afterwards. The iterator skips
    /// long runs of pages that are not in memory without looking at each. None in a child of fork(2).
    pub fn frames(&self) -> impl Iterator<Item = Frame> {
        let frames = self.core.frames().filter(|_| self.core.vm.check_process().is_ok());
        frames.into_iter().flat_map(|frames| {
            frames.runs().flat_map(|run| run.iter()).filter_map(move |page| frames.pages.frame(page))
        })
    }
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests {
    use prepage_core::{PAGE_SIZE, PageRange};

    use super::*;
    use crate::{MapOptions, Vm, VmOptions};

    #[test]
    fn frames_of_a_sparse_object_tell_their_states() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 40).unwrap();
        let vm = Vm::new(VmOptions::default()).unwrap();
        let object = vm.file_writable(file.path()).unwrap();
        assert_eq!(object.frames().count(), 0);
        let options = MapOptions::writable().policy("none".parse().unwrap());
        let map = vm.map(&object, &options).unwrap();
        // The pinned page keeps its block wired.
        let pages = [0, 7, 1 << 20, 1 << 27, (1 << 28) - 1];
        let page = |at: u64| PageRange::new(PageIndex(at), PageIndex(at + 1));
        pages.iter().for_each(|&at| map.populate(page(at)).unwrap());
        let pinned = map.pin(page(7)).unwrap();
        map.write_at((1 << 27) * PAGE_SIZE, &[1]).unwrap();
        assert_eq!(object.unwire(page(1 << 20)).unwrap(), 1);
        let frame = |at| Frame { page: PageIndex(at), is_wired: true, is_pinned: false, is_dirty: false };
        let [first, second, third, fourth, fifth] = pages.map(frame);
        let expected = [
            first,
            Frame { is_pinned: true, ..second },
            Frame { is_wired: false, ..third },
            Frame { is_dirty: true, ..fourth },
            fifth,
        ];
        assert_eq!(object.frames().collect::<Vec<_>>(), expected);
        drop(pinned);
    }
}
