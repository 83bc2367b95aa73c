//! Userfaultfds that programs send, through which their first touches become visible.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, UCred, recvmsg};

use super::Log;
use crate::first_touches;
use crate::proc_file;
use crate::userfaultfd::OpenError;

/// Connections taken in one call, so that whoever makes them faster than they are taken keeps nobody from going on.
const TAKEN_MAX: usize = 64;
/// Connections kept of which nothing was heard yet. An agent sends a few instructions after it has connected.
const SILENT_MAX: usize = 64;

/// Connections that wait to be taken at most: a quarter of the descriptors under way that a user may have, or others of the user's programs
/// could not pass on any (ETOOMANYREFS). An agent that finds no place steps back.
const WAITING_MAX: i32 = 256;

/// Where agents send their userfaultfds. Abstract, no file; anybody can read its name in /proc/net/unix and connect, so that who
/// connects is looked at.
#[derive(Debug)]
pub struct Receiver {
    listener: UnixListener,
    /// Where processes connect that wait at their end.
    endings: UnixListener,
    /// An epoll of `endings` and of those that were silent there.
    ready: OwnedFd,
    /// Connections of which nothing was heard yet, oldest first.
    silent: VecDeque<UnixStream>,
    /// The log's inode.
    log: u64,
}

/// What an agent sends.
#[derive(Debug)]
pub enum Sent {
    /// The process can be armed.
    FirstTouches(FirstTouches),
    /// The process is about to end.
    Ending(Ending),
}

impl Sent {
    /// By which process.
    pub fn pid(&self) -> u32 {
        match self {
            Self::FirstTouches(touches) => touches.pid(),
            Self::Ending(ending) => ending.pid(),
        }
    }
}

/// A process that is about to end. It waits until this is dropped, 20 ms at most, the first one of a container 200.
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
        let bind = |name: String| {
            let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
            rustix::net::listen(&listener, WAITING_MAX)?;
            listener.set_nonblocking(true)?;
            io::Result::Ok(listener)
        };
        let name = format!("prepage-{}", log.token());
        let (endings, listener) = (bind(format!("{name}-end"))?, bind(name)?);
        let ready = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let receiver = Self { listener, endings, ready, silent: VecDeque::new(), log: log.inode()? };
        receiver.wake_for(&receiver.endings)?;
        Ok(receiver)
    }

    /// Whether something may have been sent that was not received yet.
    pub fn is_sent_something(&self) -> bool {
        let fds = self.silent.iter().map(AsFd::as_fd).chain([self.listener.as_fd(), self.endings.as_fd()]);
        let mut fds: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }

    /// The next one sent; `None` where none waits, or after some connections of others. Readable ([`AsFd`]) when a process may wait at its
    /// end; what else is sent wakes nobody, for that would be paid by the program. Never waits for who has connected.
    ///
    /// # Errors
    /// EMFILE when this process has too many files open: those of processes that have ended can be dropped.
    pub fn receive(&mut self) -> io::Result<Option<Sent>> {
        for _ in 0..self.silent.len() {
            let Some(sender) = self.silent.pop_front() else { break };
            match sent_by(sender) {
                Heard::Sent(sent) => return Ok(Some(sent)),
                Heard::Silence(sender) => self.silent.push_back(sender),
                Heard::Nonsense => {}
            }
        }
        // To look at a process takes time, and any may connect again and again.
        let mut refused = None;
        for _ in 0..TAKEN_MAX {
            let Some((sender, is_ending)) = self.accept()? else { return Ok(None) };
            let Ok(peer) = rustix::net::sockopt::socket_peercred(&sender) else { continue };
            if refused == Some(peer) || !self.is_observed(&peer) {
                refused = Some(peer);
                continue;
            }
            match sent_by(sender) {
                Heard::Sent(sent) => return Ok(Some(sent)),
                Heard::Silence(sender) => {
                    if is_ending {
                        self.wake_for(&sender)?;
                    }
                    self.silent.push_back(sender);
                    if self.silent.len() > SILENT_MAX {
                        self.silent.pop_front();
                    }
                }
                Heard::Nonsense => {}
            }
        }
        Ok(None)
    }

    /// The next connection, if there is one, and whether it is of a process at its end.
    fn accept(&self) -> io::Result<Option<(UnixStream, bool)>> {
        let listeners = [(&self.endings, true), (&self.listener, false)];
        // To accept nothing takes ten times as long as to see that there is nothing.
        let mut fds = listeners.map(|(listener, _)| PollFd::new(listener, PollFlags::IN));
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
        for ((listener, is_ending), fd) in listeners.iter().zip(&fds) {
            if fd.revents().is_empty() {
                continue;
            }
            match listener.accept() {
                Ok((sender, _)) => return Ok(Some((sender, *is_ending))),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    fn wake_for(&self, source: impl AsFd) -> io::Result<()> {
        let data = epoll::EventData::new_u64(0);
        Ok(epoll::add(&self.ready, source, data, epoll::EventFlags::IN)?)
    }

    /// Whether `peer` can be a process with an agent. That has its observer's user, or a service of root's has given up its
    /// rights since: then it has the log mapped, which other users cannot open.
    fn is_observed(&self, peer: &UCred) -> bool {
        let own = rustix::process::geteuid();
        if peer.uid == own || !own.is_root() {
            return peer.uid == own;
        }
        let maps =
            proc_file::read_text(format!("/proc/{}/maps", peer.pid.as_raw_nonzero())).unwrap_or_default();
        let is_log = |line: &str| {
            line.ends_with("/memfd:prepage-log (deleted)")
                && line.split_ascii_whitespace().nth(4).and_then(|inode| inode.parse().ok()) == Some(self.log)
        };
        maps.lines().any(is_log)
    }
}

/// What came of a connection.
enum Heard {
    Sent(Sent),
    /// Nothing yet.
    Silence(UnixStream),
    /// Nothing that an agent sends, or not all of it.
    Nonsense,
}

impl AsFd for Receiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

/// What `sender` sent: a userfaultfd, or nothing but the time.
fn sent_by(sender: UnixStream) -> Heard {
    let Ok(peer) = rustix::net::sockopt::socket_peercred(&sender) else { return Heard::Nonsense };
    let pid = peer.pid.as_raw_nonzero().get() as u32;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut time_ns = [0; 8];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = match recvmsg(&sender, &mut [IoSliceMut::new(&mut time_ns)], &mut control, flags) {
        // This process has too many files open for what was sent along.
        Ok(received) if received.flags.contains(ReturnFlags::CTRUNC) => return Heard::Nonsense,
        Ok(received) => received.bytes,
        Err(Errno::AGAIN) => return Heard::Silence(sender),
        Err(_) => return Heard::Nonsense,
    };
    let (mut found, mut has_rights) = (None, false);
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            for descriptor in descriptors {
                has_rights = true;
                found = is_userfaultfd(&descriptor).then_some(descriptor);
            }
        }
    }
    if !has_rights && received == time_ns.len() {
        return Heard::Sent(Sent::Ending(Ending { pid, _connection: sender }));
    }
    let sent_ns = u64::from_ne_bytes(time_ns);
    let touches = |userfaultfd| Sent::FirstTouches(FirstTouches { userfaultfd, pid, sent_ns });
    found.map_or(Heard::Nonsense, |userfaultfd| Heard::Sent(touches(userfaultfd)))
}

fn is_userfaultfd(descriptor: &OwnedFd) -> bool {
    let link = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    std::fs::read_link(link).is_ok_and(|name| name.as_os_str() == "anon_inode:[userfaultfd]")
}

impl FirstTouches {
    /// One that was taken out of process `pid` by other means. Its features were agreed on already.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn of(userfaultfd: OwnedFd, pid: u32) -> Self {
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
    /// EPERM for a shared mapping of a file that is not open for writing; EBUSY where another userfaultfd has it; ENOMEM
    /// once the process has ended or executed another program.
    pub fn register(&self, start: u64, len: u64) -> io::Result<()> {
        first_touches::register_first_touches(self.userfaultfd.as_fd(), start, len)
    }

    /// Whether the address space is gone: the process has ended, or executed another program since.
    pub fn is_gone(&self) -> bool {
        first_touches::is_gone(self.userfaultfd.as_fd())
    }
}

/// Whether agents may ask for userfaultfds: this process asks for one. Where it has seccomp filters, which may kill who
/// asks, a child process does in its place.
///
/// # Errors
/// When none can be had, with what would help.
pub fn may_arm() -> Result<(), OpenError> {
    first_touches::probe_first_touches()
}
