//! What every start looks up, looked up at once.
//!
//! Whoever asks for the configuration and for each layer of profiles in turn waits for a cold disk a dozen times, one after the other.
//! Asked for by a thread each, they are waited for together, while the program itself is looked for.

use std::io;
use std::path::{Path, PathBuf};
use std::thread::Builder;

use prepage_profiles::{ProgramKey, Stores};
use prepage_sys::signals::Masked;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags, openat2};
use rustix::io::Errno;

use crate::config::Config;

/// A system call and its path.
const STACK_BYTES: usize = 16 << 10;

/// Looks up the configuration and the profiles of `key`, where it is known, in the layers of `stores`, as far as the kernel would have to ask a file
/// system, each in a thread that nobody waits for. Returns whether the kernel knows that there is no configuration.
pub(crate) fn look_up(stores: Option<&Stores>, key: Option<&ProgramKey>) -> bool {
    let is_there = |path: PathBuf| {
        let error = error_from_memory(&path);
        // Before Linux 5.12 nothing is asked for ahead.
        if error == Some(Errno::AGAIN) {
            look_up_one(path);
        }
        !is_nothing(error)
    };
    // The user's layer first: it lies deepest, and is waited for longest. A name in it, so that the same thread reads the directory's block, too:
    // of a large directory each name may be in another.
    let name = key.map_or("lock".into(), ProgramKey::file_name);
    let layers = stores.into_iter().flat_map(Stores::directories);
    layers.for_each(|(_, directory)| _ = is_there(directory.join(&name)));
    let configured = Config::paths().into_iter().map(is_there).filter(|is_there| *is_there).count();
    configured == 0
}

fn look_up_one(path: PathBuf) {
    let look = move || {
        let _ = rustix::fs::statx(CWD, &path, AtFlags::NO_AUTOMOUNT, StatxFlags::TYPE);
    };
    // One that cannot be started is a path looked up later.
    let _ = aside(STACK_BYTES, look);
}

/// Has a thread of its own do `work` that may wait for a file system for long. It takes no signal: one that asks this process to end would
/// end it there, when what was seen of the start is still to be written.
pub(crate) fn aside(stack_bytes: usize, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    // Threads begin with the mask of the one that starts them.
    let _masked = Masked::asynchronous();
    Builder::new().stack_size(stack_bytes).spawn(work).map(drop)
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use prepage_sys::process_status::ProcessStatus;
    use prepage_sys::signals::ENDING;

    use super::*;

    /// A look-up may last as long as the start, or longer.
    #[test]
    fn no_signal_ends_the_process_in_a_thread_that_waits_for_a_file_system() {
        let blocked = || ProcessStatus::of("thread-self").unwrap().field("SigBlk").map(str::to_owned);
        let (before, (tell, told)) = (blocked(), mpsc::channel());
        aside(64 << 10, move || tell.send(blocked()).unwrap()).unwrap();
        let told = told.recv_timeout(Duration::from_secs(60)).unwrap().unwrap();
        let told = u64::from_str_radix(&told, 16).unwrap();
        assert!(ENDING.iter().all(|signal| told & 1 << (signal - 1) != 0), "{told:#x}");
        assert_eq!(blocked(), before, "the thread that starts it is as it was");
    }
}
