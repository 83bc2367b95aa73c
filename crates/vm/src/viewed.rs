//! Other processes of this user whose VMs can be looked at: finds and asks them.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//!
//! use prepage_vm::{Vm, VmOptions, viewed};
//!
//! let vm = Vm::new(VmOptions::default())?;
//! let own = viewed::sockets()?.into_iter().find(|socket| socket.pid() == std::process::id());
//! let view = own.ok_or("not shown")?.ask(Duration::from_secs(30))?;
//! assert_eq!(view.pools[0].vms, 1);
//! # drop(vm);
//! # Ok(())
//! # }
//! ```

use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use prepage_sys::timed_stream::TimedStream;
use rustix::net::SocketAddrUnix;
use rustix::net::sockopt::socket_peercred;

use crate::view::{View, ViewError};

/// The answer to another user.
pub(crate) const REFUSAL: &str = "prepage-vm refuses\n";
/// Sockets of this beginning, and then the number of the process, and one that makes it the only one.
const PREFIX: &str = "prepage-vm/";
/// No answer is longer: 1000 objects a pool, whose names are paths.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

pub(crate) fn socket_name(pid: u32, nth: u32) -> String {
    format!("{PREFIX}{pid}/{nth}")
}

/// Where a process answers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Socket {
    pid: u32,
    name: String,
}

/// Why a process cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// The process ended after its socket was found.
    #[error("it has ended")]
    Ended,
    /// The process belongs to another user.
    #[error("it belongs to another user, uid {0}, who alone may look at it")]
    OtherUser(u32),
    /// The process did not answer in time.
    #[error("it does not answer: it is stopped, or its process is held up")]
    Silent,
    /// The answer cannot be understood.
    #[error(transparent)]
    View(#[from] ViewError),
    /// The socket fails.
    #[error("it cannot be asked")]
    Io(#[source] io::Error),
}

/// The sockets of all VMs in this network namespace, also those of other users.
///
/// # Errors
/// If /proc/net/unix cannot be read.
pub fn sockets() -> io::Result<Vec<Socket>> {
    let table = fs::read("/proc/net/unix")?;
    let mut found: Vec<Socket> = String::from_utf8_lossy(&table).lines().filter_map(listening).collect();
    found.sort();
    found.dedup();
    Ok(found)
}

/// The socket of a line of the kernel's table, which shows `@` for what begins the name of a socket without a file.
fn listening(line: &str) -> Option<Socket> {
    /// `SO_ACCEPTCON`: connections of a socket have its name too.
    const LISTENS: u32 = 0x10000;
    let mut fields = line.split_ascii_whitespace();
    let flags = u32::from_str_radix(fields.nth(3)?, 16).ok()?;
    let name = fields.nth(3)?.strip_prefix('@')?;
    let pid = name.strip_prefix(PREFIX)?.split('/').next()?.parse().ok()?;
    (flags & LISTENS != 0).then(|| Socket { pid, name: name.to_owned() })
}

impl Socket {
    /// The process id, as the process itself sees it.
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Asks, and waits `within` for the answer.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn ask(&self, within: Duration) -> Result<View, AskError> {
        let address = SocketAddrUnix::new_abstract_name(self.name.as_bytes());
        let connected =
            address.map_err(io::Error::from).and_then(|address| TimedStream::connect(&address, within));
        let stream = connected.map_err(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => AskError::Ended,
            io::ErrorKind::TimedOut => AskError::Silent,
            _ => AskError::Io(error),
        })?;
        // Anybody can take the name.
        let owner = socket_peercred(&stream).map_err(|error| AskError::Io(error.into()))?.uid;
        if owner != rustix::process::geteuid() {
            return Err(AskError::OtherUser(owner.as_raw()));
        }
        let mut answer = Vec::new();
        stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => self.silent(),
            io::ErrorKind::ConnectionReset => AskError::Ended,
            _ => AskError::Io(error),
        })?;
        if answer == REFUSAL.as_bytes() {
            return Err(AskError::OtherUser(owner.as_raw()));
        }
        Ok(View::decode(&String::from_utf8_lossy(&answer))?)
    }

    /// A child of fork(2) keeps the socket of a parent that has ended, and does not know of it.
    fn silent(&self) -> AskError {
        let is_there = Path::new("/proc").join(self.pid.to_string()).exists();
        if is_there { AskError::Silent } else { AskError::Ended }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_clock_reaches_a_wait_that_is_for_ever() {
        let socket = Socket { pid: std::process::id(), name: format!("{PREFIX}none") };
        assert!(matches!(socket.ask(Duration::MAX), Err(AskError::Ended)));
    }

    #[test]
    fn listening_sockets_of_vms_are_found_in_the_kernels_table() {
        let line = |flags: &str, name: &str| {
            format!("0000000000000000: 00000002 00000000 {flags} 0001 01 5391 {name}")
        };
        let found = |line: &str| listening(line).map(|socket| socket.pid);
        assert_eq!(found(&line("00010000", "@prepage-vm/42/0")), Some(42));
        assert_eq!(found(&line("00000000", "@prepage-vm/42/0")), None, "a connection");
        assert_eq!(found(&line("00010000", "/run/prepage-vm/42/0")), None);
        assert_eq!(found(&line("00010000", "@prepage-vm/x")), None);
        assert_eq!(found("Num       RefCount Protocol Flags    Type St Inode Path"), None);
        assert_eq!(found("0000000000000000: 00000002 00000000 00010000 0001 01 5391"), None);
    }
}
