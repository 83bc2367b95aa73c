//! Answers to who asks: a Unix socket that everybody may connect to.
//!
//! A line `status` is answered by a document ([`crate::status::Status`]), an HTTP request for `/metrics` by metrics in Prometheus'
//! format. Whoever asks is told by the kernel who that is, and sees the starts of this user alone.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::service::Service;
use crate::status::{Status, metrics};

/// Where the machine's service answers.
pub const USUAL: &str = "/run/prepage/service";
/// A question is a line or a small request.
const QUESTION_BYTES_MAX: usize = 4096;
/// One is answered after the other: whoever does not ask or listen holds up the others for no longer.
const PATIENCE: Duration = Duration::from_millis(500);

/// The socket, as long as the service runs.
#[derive(Debug)]
pub struct Socket {
    path: PathBuf,
}

impl Socket {
    /// Answers for `service` at `path`. A socket that an earlier service left there is replaced.
    ///
    /// # Errors
    /// As bind(2); AddrInUse where another service answers.
    pub fn open(path: &Path, service: Arc<Service>) -> io::Result<Self> {
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)?;
        }
        if fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket()) {
            if UnixStream::connect(path).is_ok() {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            fs::remove_file(path)?;
        }
        let listener = UnixListener::bind(path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
        let answer = move || {
            for stream in listener.incoming() {
                match stream {
                    // Whoever hangs up early hears nothing.
                    Ok(mut stream) => drop(answer(&mut stream, &service)),
                    Err(_) => std::thread::sleep(PATIENCE),
                }
            }
        };
        std::thread::Builder::new().name("answer".into()).spawn(answer)?;
        Ok(Self { path: path.to_owned() })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn answer(stream: &mut UnixStream, service: &Service) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let uid = rustix::net::sockopt::socket_peercred(&*stream)?.uid.as_raw();
    let mut question = vec![0; QUESTION_BYTES_MAX];
    let mut filled = 0;
    while filled < question.len() && !question[..filled].contains(&b'\n') {
        match stream.read(&mut question[filled..])? {
            0 => break,
            read => filled += read,
        }
    }
    let line = String::from_utf8_lossy(&question[..filled]).lines().next().unwrap_or_default().to_owned();
    if line == "status" {
        let mut status = serde_json::to_vec(&Status::of(service, uid))?;
        status.push(b'\n');
        return stream.write_all(&status);
    }
    let (state, text) = match line.split(' ').collect::<Vec<_>>()[..] {
        ["GET", "/metrics", _] => ("200 OK", metrics(service)),
        _ => ("404 Not Found", "ask for `status` or GET /metrics\n".to_owned()),
    };
    let length = text.len();
    write!(
        stream,
        "HTTP/1.0 {state}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {length}\r\n\r\n{text}"
    )
}

/// Asks the service at `path` for its status.
///
/// # Errors
/// NotFound or ConnectionRefused where none runs.
pub fn ask(path: &Path) -> io::Result<serde_json::Value> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(10 * PATIENCE))?;
    stream.write_all(b"status\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(serde_json::from_slice(&answer)?)
}
