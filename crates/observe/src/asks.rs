//! Files on file systems that may never answer, a network's or a program's: somebody else says whether they may be asked for.

use std::any::Any;
use std::cell::Cell;
use std::path::Path;

/// Says, until it is dropped, that somebody waits for the answer of a file system.
pub type Asking = Box<dyn Any>;

/// Leave to ask for the file at a path; `None` where somebody waits already, in vain, for a file system on the way to it.
pub type Ask = fn(&Path) -> Option<Asking>;

/// Asks for files where there is leave to.
#[derive(Debug, Default)]
pub struct Asks {
    leave: Option<Ask>,
    has_passed_over: Cell<bool>,
}

impl Asks {
    /// Asks for files for which there is `leave`. Where it is `None` no leave is needed.
    pub fn by(leave: Option<Ask>) -> Self {
        Self { leave, has_passed_over: Cell::new(false) }
    }

    /// The answer of `look`, which asks for the file at `path`; `None` where that is passed over.
    pub fn at<T>(&self, path: &Path, look: impl FnOnce() -> T) -> Option<T> {
        let Some(leave) = self.leave else { return Some(look()) };
        let asking = leave(path);
        if asking.is_none() {
            self.has_passed_over.set(true);
        }
        asking.map(|_asking| look())
    }

    /// Whether some file was passed over.
    pub fn has_passed_over(&self) -> bool {
        self.has_passed_over.get()
    }
}
