//! What every start looks up, looked up at once.
//!
//! Whoever goes through PATH, and asks for the configuration and for each layer of profiles in turn, waits for a cold disk two dozen times, one after the other.
//! Asked for by a few threads, the places are waited for together.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::Builder;

use prepage_profiles::at_hand::reach;
use prepage_profiles::program::candidates;
use prepage_profiles::{ProgramKey, Stores};
use prepage_sys::signals::Masked;
use prepage_sys::sync::Anyway;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2, stat};
use rustix::io::Errno;

use crate::calibrate::cache::name_of;
use crate::config::Config;
use crate::first_pages::{LOADER, LOADER_CACHE};

/// Each takes some 50 µs to begin, and by then the first of them are done.
const THREADS: usize = 8;

/// A system call and its path.
const STACK_BYTES: usize = 16 << 10;

/// Looks up, as far as the kernel would have to ask a file system, the program called `name` where that is still to be found, with what most programs are
/// loaded by, the profiles of `key`, where it is known, in the layers of `stores`, and the configuration: in threads that nobody waits for.
pub(crate) fn look_up(stores: Option<&Stores>, key: Option<&ProgramKey>, name: Option<&OsStr>) {
    // A name in each layer, so that the same thread reads the directory's block, too: of a large directory each name may be in another.
    let file = key.map_or("lock".into(), ProgramKey::file_name);
    let mut layers = stores.into_iter().flat_map(Stores::directories).map(|(_, layer)| layer.join(&file));
    // It lies deepest, and is waited for longest.
    let of_user = layers.next();
    let in_path = name.filter(|name| !name.as_bytes().contains(&b'/')).into_iter().flat_map(candidates);
    // This process is about to leave the working directory. And what comes behind the program in PATH nobody else would look at.
    let of_own: fn(&Path) = |path| _ = reach(path);
    let in_path = in_path.filter(|path| path.is_absolute()).map(|path| (path, of_own));
    let loaders = name.into_iter().flat_map(|_| [LOADER, LOADER_CACHE]).map(PathBuf::from);
    let anywhere = |path| (path, of_any as fn(&Path));
    // Programs lie on the same device, mostly, and what was measured of it is asked for next.
    let of_store: fn(&Path) = |path| {
        of_any(path);
        if let Some(store) = path.parent()
            && let Ok(found) = stat(store)
        {
            of_any(&store.join(name_of(found.st_dev)));
        }
    };
    let others = loaders.chain(Config::paths()).chain(layers).map(anywhere);
    let all = of_user.map(|path| (path, of_store)).into_iter().chain(in_path).chain(others);
    // Before Linux 5.12 nothing is asked for ahead.
    let unknown: Vec<_> = all.filter(|(path, _)| error_from_memory(path) == Some(Errno::AGAIN)).collect();
    let threads = unknown.len().min(THREADS);
    let unknown = Arc::new(Mutex::new(unknown.into_iter()));
    for _ in 0..threads {
        let unknown = unknown.clone();
        let next = move || unknown.lock().anyway().next();
        // What none can be started for is looked up later.
        let _ = aside(STACK_BYTES, move || {
            while let Some((path, ask)) = next() {
                ask(&path);
            }
        });
    }
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
    matches!(error_from_memory(path), Some(Errno::NOENT | Errno::NOTDIR))
}

fn of_any(path: &Path) {
    let _ = error_of(path, ResolveFlags::empty());
}

fn error_from_memory(path: &Path) -> Option<Errno> {
    error_of(path, ResolveFlags::CACHED)
}

/// Why there is nothing at `path`, looked for so. Nothing is mounted at `path` itself for that; a directory on the way to it may be.
fn error_of(path: &Path, how: ResolveFlags) -> Option<Errno> {
    openat2(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), how).err()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use prepage_profiles::at_hand::at_hand;
    use prepage_sys::process_status::ProcessStatus;
    use prepage_sys::signals::ENDING;
    use prepage_testing::{
        Need, assert_passed, child_command, child_output, is_child, skip, this_test, wait_until,
    };

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

    /// A tmpfs remembers no names that are not there, and what lies on a network is not asked.
    fn is_told_from_memory(directory: &Path) -> bool {
        let none = directory.join("none");
        let is_told = !none.exists() && at_hand(directory).is_ok() && is_absent(&none);
        if !is_told {
            let here = Need::Path(env!("CARGO_MANIFEST_DIR").into());
            skip(here, "its file system, or the kernel, does not tell from memory");
        }
        is_told
    }

    #[test]
    fn figures_of_the_device_are_asked_for_with_the_profile() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        if !is_told_from_memory(dir.path()) {
            return;
        }
        let stores = Stores::at(dir.path().into());
        let figures = dir.path().join(name_of(stat(dir.path()).unwrap().st_dev));
        let key = ProgramKey { program: "/no/such/program".into(), role: "program".into() };
        assert_eq!(error_from_memory(&figures), Some(Errno::AGAIN));
        look_up(Some(&stores), Some(&key), None);
        wait_until(|| is_absent(&figures), "they are never asked for");
    }

    #[test]
    fn the_directories_of_path_are_asked_before_anybody_looks_for_the_program() {
        let test = this_test();
        if !is_child(&test) {
            let here = env!("CARGO_MANIFEST_DIR");
            let dir = tempfile::tempdir_in(here).unwrap();
            let places: Vec<PathBuf> = (0..20).map(|at| dir.path().join(at.to_string())).collect();
            places.iter().for_each(|place| std::fs::create_dir(place).unwrap());
            if !is_told_from_memory(dir.path()) {
                return;
            }
            let path = std::env::join_paths(places).unwrap();
            return assert_passed(&child_output(child_command(&test, &[]).env("PATH", path)));
        }
        let name = OsStr::new("program");
        let is_unknown = |path: &PathBuf| error_from_memory(path) == Some(Errno::AGAIN);
        assert!(candidates(name).all(|path| is_unknown(&path)));
        look_up(None, None, None);
        look_up(None, None, Some("./program".as_ref()));
        assert!(candidates(name).all(|path| is_unknown(&path)), "it is not looked for there");
        look_up(None, None, Some(name));
        wait_until(|| candidates(name).all(|path| is_absent(&path)), "they are never asked");
    }
}
