//! A start of a program, as every step from choosing to persisting knows it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use prepage_profiles::ProgramKey;
use prepage_trace::now_ns;

/// A start. `prepage run` makes one of the process that is about to become the program; a service makes them of the execs
/// it sees.
#[derive(Clone, Debug)]
pub struct StartContext {
    /// Process id of the program.
    pub pid: u32,
    /// The user whose rights decide what may be read for it, and whose profiles are believed.
    pub uid: u32,
    /// The program and its arguments.
    pub argv: Vec<OsString>,
    /// The program's file, absolute: what runs beside it works in another directory.
    pub executable: Option<PathBuf>,
    /// Whose profile it is.
    pub key: ProgramKey,
    /// About when it is executed, on the clock of [`now_ns`]; 0 where that is not known yet.
    pub began_ns: u64,
}

impl StartContext {
    /// Of process `pid`, whose working directory and rights this one has, and which is about to execute `program` as `argv`.
    ///
    /// # Errors
    ///
    /// Where there is no such program, or none that it would run.
    pub fn of(pid: u32, program: &Path, argv: &[OsString]) -> std::io::Result<Self> {
        let executable = program.canonicalize()?;
        let key = ProgramKey::of_found(&executable, argv)?;
        let mut context = Self::with(pid, executable, key, argv);
        context.begin();
        Ok(context)
    }

    /// The same as far as memory tells ([`prepage_profiles::at_hand`]), of the program whose file is `executable`, free of symbolic links. It has
    /// not begun: a clock takes longer to ask than all else.
    pub(crate) fn at_hand(pid: u32, executable: PathBuf, argv: &[OsString]) -> Option<Self> {
        let key = ProgramKey::of_found_at_hand(&executable, argv)?;
        Some(Self::with(pid, executable, key, argv))
    }

    /// Notes that it is about to be executed.
    pub(crate) fn begin(&mut self) {
        self.began_ns = now_ns();
    }

    fn with(pid: u32, executable: PathBuf, key: ProgramKey, argv: &[OsString]) -> Self {
        let uid = rustix::process::geteuid().as_raw();
        Self { pid, uid, argv: argv.to_vec(), executable: Some(executable), key, began_ns: 0 }
    }
}
