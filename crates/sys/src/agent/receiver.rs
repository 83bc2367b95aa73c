//! Userfaultfds that programs send, through which their first touches become visible.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::Log;
use crate::call_filter::inherited_filters;
use crate::first_touches;
use crate::userfaultfd::OpenError;

/// Where agents send their userfaultfds. Abstract, no file; its name holds the log's secret.
#[derive(Debug)]
pub struct Receiver {
    listener: UnixListener,
}

/// What an agent sends.
#[derive(Debug)]
pub enum Sent {
    /// The process can be armed.
    FirstTouches(FirstTouches),
    /// The process is about to end.
    Ending(Ending),
}

/// A process that is about to end. It waits until this is dropped, 20 ms at most.
#[derive(Debug)]
pub struct Ending {
    pid: u32,
    _connection: UnixStream,
}

impl Ending {
    /// Which process.
    pub fn pid(&self) -> u32 {
        self.pid
    }
}

/// An address space in which each page's first touch is a fault of its own, in the mappings registered.
///
/// Dropped, it ends: fault-around works there again.
#[derive(Debug)]
pub struct FirstTouches {
    userfaultfd: OwnedFd,
    pid: u32,
    sent_ns: u64,
}

impl Receiver {
    /// The receiver of the agents that write to `log`.
    ///
    /// # Errors
    /// When this process cannot have a socket.
    pub fn bind(log: &Log) -> io::Result<Self> {
        let address = SocketAddr::from_abstract_name(format!("prepage-{}", log.token()))?;
        let listener = UnixListener::bind_addr(&address)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener })
    }

    /// The next one sent; `None` where none waits. Readable ([`AsFd`]) when one does.
    ///
    /// # Errors
    /// EMFILE when this process has too many files open: those of processes that have ended can be dropped.
    pub fn receive(&self) -> io::Result<Option<Sent>> {
        loop {
            let sender = match self.listener.accept() {
                Ok((sender, _)) => sender,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            };
            if let Some(sent) = sent_by(sender) {
                return Ok(Some(sent));
            }
        }
    }
}

impl AsFd for Receiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// What `sender` sent: a userfaultfd, or nothing but the time.
fn sent_by(sender: UnixStream) -> Option<Sent> {
    let pid = rustix::net::sockopt::socket_peercred(&sender).ok()?.pid.as_raw_nonzero().get() as u32;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut time_ns = [0; 8];
    // Connected and not sent yet: the program is a few instructions before it.
    let flags = RecvFlags::CMSG_CLOEXEC;
    sender.set_read_timeout(Some(std::time::Duration::from_millis(20))).ok()?;
    let received = recvmsg(&sender, &mut [IoSliceMut::new(&mut time_ns)], &mut control, flags).ok()?;
    let (mut found, mut has_rights) = (None, false);
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            for descriptor in descriptors {
                has_rights = true;
                found = is_userfaultfd(&descriptor).then_some(descriptor);
            }
        }
    }
    let is_ending = !has_rights && received.bytes == time_ns.len();
    if is_ending {
        return Some(Sent::Ending(Ending { pid, _connection: sender }));
    }
    let sent_ns = u64::from_ne_bytes(time_ns);
    found.map(|userfaultfd| Sent::FirstTouches(FirstTouches { userfaultfd, pid, sent_ns }))
}

fn is_userfaultfd(descriptor: &OwnedFd) -> bool {
    let link = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    std::fs::read_link(link).is_ok_and(|name| name.as_os_str() == "anon_inode:[userfaultfd]")
}

impl FirstTouches {
    /// One that was taken out of process `pid` by other means. Its features were agreed on already.
    pub fn of(userfaultfd: OwnedFd, pid: u32) -> Self {
        Self { userfaultfd, pid, sent_ns: 0 }
    }

    /// The process whose address space this is.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// When the agent sent it (CLOCK_MONOTONIC): it had registered what was mapped until then. 0 where nobody did.
    pub fn sent_ns(&self) -> u64 {
        self.sent_ns
    }

    /// Makes each page of that process's `[start, start + len)` fault of its own when it is touched first. All mappings
    /// there are registered; holes are not.
    ///
    /// # Errors
    /// EPERM for a shared mapping of a file that is not open for writing; EBUSY where another userfaultfd has it; ESRCH
    /// once the process has ended or executed another program.
    pub fn register(&self, start: u64, len: u64) -> io::Result<()> {
        first_touches::register_first_touches(self.userfaultfd.as_fd(), start, len)
    }
}

/// Whether agents may ask for userfaultfds: this process asks for one. Where it has seccomp filters, which may kill who
/// asks, a child process does in its place.
///
/// # Errors
/// When none can be had, with what would help.
pub fn may_arm() -> Result<(), OpenError> {
    match inherited_filters() {
        0 => first_touches::probe_first_touches(),
        _ => first_touches::probe_first_touches_in_child(),
    }
}
