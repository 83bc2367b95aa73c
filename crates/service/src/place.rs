//! Where a process looks names up: where this process does, or below the root of a container.
//!
//! Of sandboxes most have the machine's own root, with some of its directories hidden or made read-only: programs there are the machine's, and
//! so are their profiles. A container has another root. Its program's profile is for all containers that have the program from the same file: the
//! kernel tells of executions in an overlay by the file below, which all containers of an image share, and which none of them can change or
//! put into its place. So no container chooses under which key others look for profiles, but for those that have the very file.

use std::fmt::Write as _;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use prepage_observe::elsewhere::is_elsewhere;
use prepage_sys::file_handle::FileHandle;
use prepage_sys::root::{self, Root};

use crate::askers::Askers;
use crate::process::{Elsewhere, LeftAlone};

/// How names of containers' programs begin in keys. Paths of the machine begin with a slash.
const PREFIX: &str = "container:";

/// Where a process looks names up, and what it runs.
#[derive(Debug)]
pub struct Place {
    /// The root below which it does; `None` where names mean what they mean here.
    pub root: Option<Arc<Root>>,
    /// The path of its program, below that root.
    pub program: PathBuf,
}

impl Place {
    /// That of process `pid`.
    ///
    /// # Errors
    /// Gone, and Elsewhere where its program cannot be found by name.
    pub fn of(pid: u32) -> Result<Self, LeftAlone> {
        let gone = |_: io::Error| LeftAlone::Gone;
        let executable = format!("/proc/{pid}/exe");
        let program = fs::read_link(&executable).map_err(gone)?;
        // One that was removed or replaced meanwhile has no name.
        if program.to_string_lossy().ends_with(" (deleted)") {
            return Err(LeftAlone::Gone);
        }
        if !is_elsewhere(pid).ok_or(LeftAlone::Gone)? {
            return Ok(Self { root: None, program });
        }
        let root = Root::of_process(pid).map_err(|_| LeftAlone::Elsewhere(Elsewhere::Hidden))?;
        let executed = fs::metadata(&executable).map_err(gone)?;
        let is_executed = |found: &Metadata| (found.dev(), found.ino()) == (executed.dev(), executed.ino());
        if root.is_own() {
            let is_here = Askers::of_machine()
                .ask(&program)
                .is_ok_and(|_asking| fs::symlink_metadata(&program).is_ok_and(|found| is_executed(&found)));
            return match is_here {
                true => Ok(Self { root: None, program }),
                false => Err(LeftAlone::Elsewhere(Elsewhere::OnAnotherMount)),
            };
        }
        let hidden = LeftAlone::Elsewhere(Elsewhere::OnAnotherMount);
        let program = root.name_below(&program).ok_or(hidden)?;
        let root = Arc::new(root);
        let found = {
            let _entered = root.enter();
            root::symlink_metadata(&program)
        };
        match found.is_ok_and(|found| is_executed(&found)) {
            true => Ok(Self { root: Some(root), program }),
            false => Err(hidden),
        }
    }

    /// What profiles of its program are filed under; `file` is the one that the kernel has told of.
    ///
    /// # Errors
    /// Elsewhere where that has to be known, and is not.
    pub fn key(&self, file: Option<&FileHandle>) -> Result<String, LeftAlone> {
        let program = self.program.to_string_lossy();
        match (&self.root, file) {
            (None, _) => Ok(program.into_owned()),
            (Some(_), Some(file)) => Ok(key_below(file, &program)),
            (Some(_), None) => Err(LeftAlone::Elsewhere(Elsewhere::NotTold)),
        }
    }

    /// The name in this place of what the kernel calls `path` (proc(5)).
    pub fn name_of(&self, path: &Path) -> Option<PathBuf> {
        match &self.root {
            Some(root) => root.name_below(path),
            None => Some(path.to_owned()),
        }
    }
}

/// The root directory of process `pid` by device and inode, where that is not the machine's.
pub fn root_of(pid: u32) -> Option<(u64, u64)> {
    let id = |path: String| fs::metadata(path).ok().map(|root| (root.dev(), root.ino()));
    id(format!("/proc/{pid}/root")).filter(|root| id("/".into()) != Some(*root))
}

/// Whether profiles that are filed under `program` are of containers.
pub fn is_of_container(program: &str) -> bool {
    program.starts_with(PREFIX)
}

/// The file that profiles filed under `program` are of, where that is a container's.
pub fn file_of(program: &str) -> Option<FileHandle> {
    let mut parts = program.strip_prefix(PREFIX)?.split_once('/')?.0.split('-');
    let mut number = || u64::from_str_radix(parts.next()?, 16).ok();
    let (file_system, kind) = (number()?, i32::try_from(number()?).ok()?);
    let digits = parts.next()?;
    let byte = |at: usize| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
    let bytes = (0..digits.len()).step_by(2).map(byte).collect::<Option<Vec<u8>>>()?;
    Some(FileHandle { file_system, kind, bytes: bytes.into() })
}

/// The path of the program, as its process has it, that profiles filed under `program` are of.
pub fn path_of(program: &str) -> &Path {
    let path =
        if is_of_container(program) { program.find('/').map_or("", |at| &program[at..]) } else { program };
    Path::new(path)
}

/// What profiles of `program` are filed under, whose file below a container is `file`.
fn key_below(file: &FileHandle, program: &str) -> String {
    let mut key = format!("{PREFIX}{:016x}-{:x}-", file.file_system, file.kind);
    file.bytes.iter().for_each(|byte| _ = write!(key, "{byte:02x}"));
    key + program
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_file_has_one_key_and_another_file_another() {
        let file = |number: u8| FileHandle { file_system: 7, kind: 1, bytes: [number, 0].into() };
        let key = key_below(&file(0xa5), "/usr/bin/x");
        assert_eq!(key, "container:0000000000000007-1-a500/usr/bin/x");
        assert!(key != key_below(&file(1), "/usr/bin/x") && is_of_container(&key));
        assert!(!is_of_container("/usr/bin/x"));
        assert_eq!((file_of(&key), file_of("/usr/bin/x")), (Some(file(0xa5)), None));
        for odd in [
            "container:",
            "container:7-1/x",
            "container:7-1-a/x",
            "container:7-fffffffff-a5/x",
            "container:x-1-a5/x",
        ] {
            assert_eq!(file_of(odd), None, "{odd}");
        }
        assert_eq!([path_of(&key), path_of("/usr/bin/x")], [Path::new("/usr/bin/x"); 2]);
    }
}
