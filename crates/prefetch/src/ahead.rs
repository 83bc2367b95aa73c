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
/// nobody waits for.
pub(crate) fn look_up(stores: Option<&Stores>) {
    let layers = stores.into_iter().flat_map(Stores::directories).map(|(_, directory)| directory.to_owned());
    for path in Config::paths().into_iter().chain(layers).filter(|path| is_unknown(path)) {
        look_up_one(path);
    }
}

fn look_up_one(path: PathBuf) {
    let look = move || {
        let _ = rustix::fs::statx(CWD, &path, AtFlags::NO_AUTOMOUNT, StatxFlags::TYPE);
    };
    // One that cannot be started is a path looked up later.
    let _ = Builder::new().stack_size(STACK_BYTES).spawn(look);
}

/// Whether the kernel cannot say from memory what is at `path`. Before Linux 5.12 nothing is asked for ahead.
fn is_unknown(path: &Path) -> bool {
    error_from_memory(path) == Some(Errno::AGAIN)
}

/// Whether the kernel knows, without asking a file system, that nothing is at `path`.
pub(crate) fn is_absent(path: &Path) -> bool {
    matches!(error_from_memory(path), Some(Errno::NOENT | Errno::NOTDIR))
}

fn error_from_memory(path: &Path) -> Option<Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    openat2(CWD, path, flags, Mode::empty(), ResolveFlags::CACHED).err()
}
