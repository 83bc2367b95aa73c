//! What every start looks up, looked up at once.
//!
//! Whoever asks for the configuration and for each layer of profiles in turn waits for a cold disk a dozen times, one after the other.
//! Asked for by a thread each, they are waited for together, while the program itself is looked for.

use std::path::{Path, PathBuf};
use std::thread::Builder;

use prepage_profiles::Stores;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags, openat2};
use rustix::io::Errno;

use crate::config::Config;

/// A system call and its path.
const STACK_BYTES: usize = 16 << 10;

/// Looks up the configuration and the layers of `stores` as far as the kernel would have to ask a file system, each in a thread that
/// nobody waits for. Returns whether the kernel knows that there is no configuration.
pub(crate) fn look_up(stores: Option<&Stores>) -> bool {
    let is_there = |path: PathBuf| {
        let error = error_from_memory(&path);
        // Before Linux 5.12 nothing is asked for ahead.
        if error == Some(Errno::AGAIN) {
            look_up_one(path);
        }
        !is_nothing(error)
    };
    // The user's layer first: it lies deepest, and is waited for longest.
    let layers = stores.into_iter().flat_map(Stores::directories);
    layers.for_each(|(_, directory)| _ = is_there(directory.to_owned()));
    let configured = Config::paths().into_iter().map(is_there).filter(|is_there| *is_there).count();
    configured == 0
}

fn look_up_one(path: PathBuf) {
    let look = move || {
        let _ = rustix::fs::statx(CWD, &path, AtFlags::NO_AUTOMOUNT, StatxFlags::TYPE);
    };
    // One that cannot be started is a path looked up later.
    let _ = Builder::new().stack_size(STACK_BYTES).spawn(look);
}

/// Whether the kernel knows, without asking a file system, that nothing is at `path`.
pub(crate) fn is_absent(path: &Path) -> bool {
    is_nothing(error_from_memory(path))
}

fn is_nothing(error: Option<Errno>) -> bool {
    matches!(error, Some(Errno::NOENT | Errno::NOTDIR))
}

fn error_from_memory(path: &Path) -> Option<Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    openat2(CWD, path, flags, Mode::empty(), ResolveFlags::CACHED).err()
}
