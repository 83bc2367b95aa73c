//! What the process of a command becomes: behind wrappers, and where a script is called, what runs that.

use std::cell::{Cell, OnceCell};
use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use prepage_core::profile::role::{Locate, called, role_and_places};
use rustix::io::Errno;

use crate::at_hand::{InMemory, at_hand, is_absent, without_upwards};
use crate::bytes::Bytes;
use crate::identity::open_to_read;
use crate::key::{ProgramKey, words};
use crate::program::{find, find_at_hand};
use crate::script::{HEAD_BYTES, Kind, split_for_env};

/// Scripts that run each other, and wrappers between them: more than the kernel goes along (fs/exec.c).
const SCRIPTS_DEEP: u32 = 8;

/// What one execve(2) is given: env, nice and their like are looked through, and the program is found.
#[derive(Clone, Debug)]
pub struct Call {
    /// The program as it was found, absolute: what stands at a link goes by the link's name.
    program: PathBuf,
    /// Its file, free of symbolic links.
    file: PathBuf,
    argv: Vec<OsString>,
    /// Where it is made, from which names are looked up, once that is known: see [`Self::note_directory`].
    directory: OnceCell<PathBuf>,
    /// Where in `argv` the script is that the kernel was given, with what runs it in front.
    script: Option<usize>,
}

/// Who is asked for files.
#[derive(Clone, Copy)]
enum Ask {
    FileSystems,
    /// Memory alone ([`crate::at_hand`]); what it does not know is an error.
    Memory,
}

impl Call {
    /// Of `command` (the program first), which is not looked into: a script counts as a program.
    ///
    /// # Errors
    /// As [`find`], and where the program's links cannot be resolved.
    pub fn of(command: &[OsString]) -> io::Result<Self> {
        Self::behind_wrappers(Ask::FileSystems, command.to_vec(), None, here().into())
    }

    /// The call that the process of `command` makes in the end: the beginning of the program's file is read.
    ///
    /// # Errors
    /// As [`Self::of`] and [`Self::in_the_end`].
    pub fn in_the_end_of(command: &[OsString]) -> io::Result<Self> {
        let call = Self::of(command)?;
        Ok(call.in_the_end()?.unwrap_or(call))
    }

    /// The same as [`Self::of`], where it is known that the first of `command` means `program`, an absolute path, and that this leads to `file`.
    ///
    /// # Errors
    /// As [`Self::of`], of another program that this one runs.
    pub fn of_found(program: &Path, file: &Path, command: &[OsString]) -> io::Result<Self> {
        let call = Self::found(Ask::FileSystems, program, file, command)?;
        call.note_directory();
        Ok(call)
    }

    /// The same as far as memory tells; `None` where file systems have to be asked. Most calls name no file, and are not asked where they are made: who leaves the
    /// working directory before the last question [notes](Self::note_directory) it.
    pub fn of_found_at_hand(program: &Path, file: &Path, command: &[OsString]) -> Option<Self> {
        Self::found(Ask::Memory, program, file, command).ok()
    }

    fn found(ask: Ask, program: &Path, file: &Path, command: &[OsString]) -> io::Result<Self> {
        if called(&words(command)) > 0 || split_for_env(command).is_some() {
            return Self::behind_wrappers(ask, command.to_vec(), None, OnceCell::new());
        }
        let (argv, directory) = (command.to_vec(), OnceCell::new());
        Ok(Self { program: program.into(), file: file.into(), argv, directory, script: None })
    }

    /// Takes the working directory for the one in which the call is made, unless that is known already.
    pub fn note_directory(&self) {
        self.directory();
    }

    fn directory(&self) -> &Path {
        self.directory.get_or_init(here)
    }

    fn behind_wrappers(
        ask: Ask,
        command: Vec<OsString>,
        script: Option<usize>,
        directory: OnceCell<PathBuf>,
    ) -> io::Result<Self> {
        let mut argv = split_for_env(&command).unwrap_or(command);
        let found = |name: Option<&OsString>| {
            let name = name.ok_or(io::ErrorKind::InvalidInput)?;
            let is_path = name.as_encoded_bytes().contains(&b'/');
            if is_path {
                ask.find(directory.get_or_init(here).join(name).as_os_str())
            } else {
                ask.find(name)
            }
        };
        let mut wrappers = called(&words(&argv));
        let (program, file) = match found(argv.get(wrappers)) {
            // It runs another command, by options that are not known here, or says itself that there is none.
            Err(_) if wrappers > 0 && matches!(ask, Ask::FileSystems) => {
                wrappers = 0;
                found(argv.first())?
            }
            found => found?,
        };
        argv.drain(..wrappers);
        // What a wrapper executes is another command, which nobody sees that it was a script's.
        Ok(Self { program, file, argv, directory, script: script.filter(|_| wrappers == 0) })
    }

    /// The key of this call as it stands.
    pub fn key(&self) -> ProgramKey {
        self.key_and_places().0
    }

    /// The same, and the places that its role names, whether anything is there or not.
    pub fn key_and_places(&self) -> (ProgramKey, Vec<PathBuf>) {
        let (key, places) = self.placed(&|name| self.place(name));
        (key, places.iter().map(|place| self.directory().join(place)).collect())
    }

    fn place(&self, name: &str) -> Option<String> {
        self.directory().join(name).canonicalize().ok()?.to_str().map(str::to_owned)
    }

    /// The same as far as memory tells.
    pub fn key_at_hand(&self) -> Option<ProgramKey> {
        let is_told = Cell::new(true);
        let (key, _) = self.placed(&|name| {
            let path = self.directory().join(name);
            match at_hand(&path) {
                // To resolve it takes a call for each part of it.
                Ok(found) if !found.has_links() && path.is_absolute() => {
                    without_upwards(&path).to_str().map(str::to_owned)
                }
                Ok(_) => self.place(name),
                Err(error) => {
                    is_told.set(is_told.get() && is_absent(error));
                    None
                }
            }
        });
        is_told.get().then_some(key)
    }

    fn placed(&self, place: Locate<'_>) -> (ProgramKey, Vec<String>) {
        let (role, places) = role_and_places(&words(&self.argv), self.script, place);
        (ProgramKey { program: self.file.to_string_lossy().into_owned(), role }, places)
    }

    /// The call that its process makes in the end, where this one is of a script; `None` where it is of a program. The beginning of the
    /// program's file is read.
    ///
    /// # Errors
    /// Where what runs the script is not found, or is that script.
    pub fn in_the_end(&self) -> io::Result<Option<Self>> {
        self.in_the_end_by(Ask::FileSystems)
    }

    /// The same as far as memory tells.
    ///
    /// # Errors
    /// Where it does not.
    pub fn in_the_end_at_hand(&self) -> io::Result<Option<Self>> {
        self.in_the_end_by(Ask::Memory)
    }

    fn in_the_end_by(&self, ask: Ask) -> io::Result<Option<Self>> {
        let mut last: Option<Self> = None;
        for _ in 0..SCRIPTS_DEEP {
            match last.as_ref().unwrap_or(self).next(ask)? {
                Some(next) => last = Some(next),
                None => return Ok(last),
            }
        }
        Err(Errno::LOOP.into())
    }

    /// What the kernel executes in place of a script.
    fn next(&self, ask: Ask) -> io::Result<Option<Self>> {
        let Kind::Script(mut words) = ask.kind(&self.file)? else { return Ok(None) };
        let script = self.script.unwrap_or(0) + words.len();
        // The kernel does not look for it in PATH.
        if !words[0].as_encoded_bytes().contains(&b'/') {
            words[0] = Path::new(".").join(&words[0]).into();
        }
        words.push(self.program.clone().into());
        words.extend(self.argv.iter().skip(1).cloned());
        Self::behind_wrappers(ask, words, Some(script), self.directory.clone()).map(Some)
    }
}

fn here() -> PathBuf {
    std::env::current_dir().unwrap_or_default()
}

impl Ask {
    /// The program that `name` means, absolute, and its file.
    fn find(self, name: &OsStr) -> io::Result<(PathBuf, PathBuf)> {
        match self {
            Self::FileSystems => {
                let program = std::path::absolute(find(name)?)?;
                let file = program.canonicalize()?;
                Ok((program, file))
            }
            Self::Memory => find_at_hand(name).ok_or(io::ErrorKind::WouldBlock)?.paths(),
        }
    }

    fn kind(self, path: &Path) -> io::Result<Kind> {
        let mut head = [0; HEAD_BYTES];
        let count = match self {
            // What may be executed and not read is no script: who runs it could not read it either.
            Self::FileSystems => open_to_read(path).ok().and_then(|mut file| file.read(&mut head).ok()),
            Self::Memory => {
                let found = at_hand(path)?;
                let size_bytes = found.size_bytes();
                let file = found.open()?;
                Some(InMemory { file: &file, size_bytes }.read_at(0, &mut head)?)
            }
        };
        Ok(count.map_or(Kind::Program, |count| Kind::of(&head[..count])))
    }
}
