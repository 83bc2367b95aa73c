//! Unix sockets whose other end may never answer: whoever uses one waits until a time, and no longer.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

/// A stream that is read from and written to until a time. After that, and where the other end lets it wait for so long, it fails with TimedOut.
#[derive(Debug)]
pub struct TimedStream {
    stream: UnixStream,
    /// `None` where no clock reaches it.
    until: Option<Instant>,
}

impl TimedStream {
    /// `stream`, for `patience` from now on.
    pub fn now_and(patience: Duration, stream: UnixStream) -> Self {
        Self { stream, until: Instant::now().checked_add(patience) }
    }

    /// Connects to `address`, and goes on for `patience` in all. The kernel keeps so many callers that nobody has answered yet, and lets the next one
    /// wait: by itself for ever.
    ///
    /// # Errors
    /// Those of connect(2); TimedOut.
    pub fn connect(address: &SocketAddrUnix, patience: Duration) -> io::Result<Self> {
        let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        set_socket_timeout(&stream, Timeout::Send, Some(patience))?;
        let connecting = Self::now_and(patience, stream.into());
        retry_on_intr(|| rustix::net::connect(&connecting.stream, address)).map_err(|error| match error {
            Errno::AGAIN => io::ErrorKind::TimedOut.into(),
            error => io::Error::from(error),
        })?;
        Ok(connecting)
    }

    fn left(&self) -> io::Result<Option<Duration>> {
        match self.until.map(|until| until.saturating_duration_since(Instant::now())) {
            Some(Duration::ZERO) => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(left),
        }
    }
}

impl Read for TimedStream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(bytes).map_err(timed_out)
    }
}

impl Write for TimedStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes).map_err(timed_out)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for TimedStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// What waited for as long as it may says that it would have to wait.
fn timed_out(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock { io::ErrorKind::TimedOut.into() } else { error }
}
