//! The agent's library, and the variables that bring it into a program.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The agent's file name.
pub const LIBRARY: &str = "libprepage-agent.so";
const LOG: &str = "PREPAGE_AGENT";
/// Set only to make two variables: the agent takes out two, see `clean` in crates/sys/agent/audit.c.
const EVEN: &str = "PREPAGE_AGENT_EVEN";
const AUDIT: &str = "LD_AUDIT";

/// The agent: beside this process's executable, in `../lib/prepage` from there, or in `/usr/lib/prepage`.
pub fn find_library() -> Option<PathBuf> {
    let executable = std::env::current_exe().ok();
    let beside = executable.as_deref().and_then(Path::parent);
    let places = beside.into_iter().flat_map(|dir| [dir.to_owned(), dir.join("../lib/prepage")]);
    places
        .chain([PathBuf::from("/usr/lib/prepage")])
        .filter_map(|place| place.join(LIBRARY).canonicalize().ok())
        .find(|path| path.is_absolute() && !path.as_os_str().as_bytes().contains(&b':'))
}

/// The variables to set at the exec of a program that will load the agent. `log` is [`super::Log::variable`]'s.
///
/// They should be the last ones of the environment, in this order ([`crate::exec::exec_with`] does so): the program then
/// finds nothing of them in /proc/PID/environ but zeros at the end. `own_audit` is the LD_AUDIT of the user, which is kept.
pub fn variables(library: &Path, log: &str, own_audit: Option<&OsStr>) -> Vec<(&'static str, OsString)> {
    let log = OsString::from(log);
    match own_audit {
        None => vec![(AUDIT, library.into()), (LOG, log)],
        Some(own) => {
            let mut own = own.to_owned();
            own.push(":");
            own.push(library);
            vec![(AUDIT, own), (LOG, log), (EVEN, OsString::new())]
        }
    }
}
