//! A start of a program, as every step from choosing to persisting knows it.

use std::path::PathBuf;

use prepage_profiles::ProgramKey;
use prepage_sys::clock::now_ns;

/// A start. `prepage run` makes one of the process that is about to become the program; a service makes them of the execs
/// it sees.
#[derive(Clone, Debug)]
pub struct StartContext {
    /// Process id of the program.
    pub pid: u32,
    /// The user whose rights decide what may be read for it, and whose profiles are believed.
    pub uid: u32,
    /// The program's file, absolute: what runs beside it works in another directory.
    pub executable: Option<PathBuf>,
    /// Whose profile it is.
    pub key: ProgramKey,
    /// About when it is executed, on the clock of [`now_ns`]; 0 where that is not known yet.
    pub began_ns: u64,
}

impl StartContext {
    /// Of process `pid`, which has the rights of this one and is about to execute `executable`, a file's path free of symbolic links. It has
    /// not begun: a clock takes longer to ask than all else.
    pub(crate) fn new(pid: u32, executable: PathBuf, key: ProgramKey) -> Self {
        let uid = rustix::process::geteuid().as_raw();
        Self { pid, uid, executable: Some(executable), key, began_ns: 0 }
    }

    /// Notes that it is about to be executed.
    pub(crate) fn begin(&mut self) {
        self.began_ns = now_ns();
    }
}
