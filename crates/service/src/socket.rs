//! Answers to who asks: a Unix socket that everybody may connect to.
//!
//! A line `status` is answered by a document (`crate::status::Status`), an HTTP request for `/metrics` by metrics in Prometheus'
//! format. Whoever asks is told by the kernel who that is, and sees the starts of this user alone.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use prepage_sys::processor_time::of_this_thread;
use prepage_sys::timed_stream::TimedStream;
use prepage_sys::user_namespace::maker_of;
use rustix::net::SocketAddrUnix;
use rustix::net::sockopt::socket_peercred;

use crate::crew::Priority;
use crate::fair_crew::FairCrew;
use crate::owner::Owner;
use crate::service::Service;
use crate::status::{Status, metrics};

/// Where the machine's service answers.
pub const USUAL: &str = "/run/prepage/service";
/// A question is a line or a small request.
const QUESTION_BYTES_MAX: usize = 4096;
/// Whoever has not asked and listened by then is answered no further.
const PATIENCE: Duration = Duration::from_millis(500);
/// Threads that answer: one user holds up two of them.
const THREADS: usize = 6;
/// Whoever is not root waits for the next answer this many times as long as the last one took the processor: with two threads, the answers to one user
/// take no more than a tenth of one.
const PAUSES: u32 = 19;
const ROOT: u32 = 0;

/// The socket, as long as the service runs.
#[derive(Debug)]
pub struct Socket {
    path: PathBuf,
    _owner: Owner,
}

impl Socket {
    /// Answers for `service` at `path`, which is `owner`'s. A socket that an earlier service left there is replaced.
    ///
    /// # Errors
    /// As bind(2).
    pub fn open(path: &Path, owner: Owner, service: Arc<Service>) -> io::Result<Self> {
        if fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket()) {
            fs::remove_file(path)?;
        }
        let listener = UnixListener::bind(path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
        let crew = Arc::new(FairCrew::new("answer", THREADS));
        let accept = move || {
            for stream in listener.incoming() {
                let asks = stream.and_then(|stream| {
                    let who = socket_peercred(&stream)?;
                    let uid = who.uid.as_raw();
                    Ok((stream, uid, account_of(who.pid.as_raw_pid() as u32, uid)))
                });
                let Ok((stream, uid, account)) = asks else {
                    std::thread::sleep(PATIENCE);
                    continue;
                };
                let service = service.clone();
                // Whoever hangs up early, or asks too often at once, hears nothing.
                let work = move || drop(answer(stream, uid, &service));
                crew.lend(account, Priority::Start, Box::new(move |_at_work| paced(account, work)));
            }
        };
        std::thread::Builder::new().name("accept".into()).spawn(accept)?;
        Ok(Self { path: path.to_owned(), _owner: owner })
    }
}

/// On whose account process `pid` of user `uid` asks: of the user who has made the user namespace that it is in. All that are gone, or cannot be
/// looked at, share the account of nobody.
fn account_of(pid: u32, uid: u32) -> u32 {
    maker_of(pid).map_or(u32::MAX, |maker| maker.unwrap_or(uid))
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Does `work` on the account of user `account`, and returns when the next one may be done.
fn paced(account: u32, work: impl FnOnce()) {
    let before = of_this_thread();
    work();
    std::thread::sleep(pause_after(account, of_this_thread().saturating_sub(before)));
}

/// How long an answer to user `account` is followed by none, that `took` the processor so long.
fn pause_after(account: u32, took: Duration) -> Duration {
    if account == ROOT { Duration::ZERO } else { PAUSES * took }
}

fn answer(stream: UnixStream, uid: u32, service: &Service) -> io::Result<()> {
    let mut stream = TimedStream::now_and(PATIENCE, stream);
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
        ["GET", "/metrics", _] => ("200 OK", metrics(service, uid)),
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
/// NotFound or ConnectionRefused where none runs; TimedOut where it takes too long; ConnectionAborted where it hangs up.
pub fn ask(path: &Path) -> io::Result<serde_json::Value> {
    let mut stream = TimedStream::connect(&SocketAddrUnix::new(path)?, 10 * PATIENCE)?;
    let mut answer = Vec::new();
    let asked = stream.write_all(b"status\n").and_then(|()| stream.read_to_end(&mut answer));
    let hung_up = || io::Error::new(io::ErrorKind::ConnectionAborted, "it hung up without an answer");
    match asked {
        Ok(0) => Err(hung_up()),
        Ok(_) => Ok(serde_json::from_slice(&answer)?),
        Err(error) => Err(match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => hung_up(),
            _ => error,
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use prepage_testing::{Need, has};

    use super::*;

    #[test]
    fn nobody_waits_for_ever_where_more_call_than_are_answered() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let _caller = UnixStream::connect(&path).unwrap();
        let (done, answers) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send(ask(&path).map_err(|error| error.kind())));
        let answer = answers.recv_timeout(60 * PATIENCE).expect("an end");
        assert_eq!(answer, Err(io::ErrorKind::TimedOut));
    }

    /// As one does that is being stopped. To a program that writes, a broken pipe would say that nobody reads what it says.
    #[test]
    fn a_service_that_hangs_up_is_told_from_a_reader_that_leaves() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        std::thread::spawn(move || listener.incoming().for_each(drop));
        for _ in 0..100 {
            assert_eq!(ask(&path).unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
        }
    }

    #[test]
    fn who_asks_all_the_time_takes_a_part_of_a_processor_and_root_is_not_kept_waiting() {
        let work = || {
            let before = of_this_thread();
            while of_this_thread() - before < Duration::from_millis(5) {}
        };
        let (began, before) = (std::time::Instant::now(), of_this_thread());
        (0..4).for_each(|_| paced(7, work));
        let part = (of_this_thread() - before).as_secs_f64() / began.elapsed().as_secs_f64();
        assert!(part < 0.06, "{part}");
        assert_eq!(pause_after(ROOT, Duration::from_secs(1)), Duration::ZERO);
    }

    #[test]
    fn who_asks_by_an_id_of_a_namespace_asks_on_the_account_of_its_maker() {
        assert_eq!(account_of(std::process::id(), 7), 7);
        assert_eq!(account_of(u32::MAX, 7), u32::MAX, "it is gone");
        if !has(Need::Root) || !has(Need::UserNamespace) {
            return;
        }
        let mut child = Command::new("setpriv")
            .args(["--reuid=54321", "--regid=54321", "--clear-groups", "unshare", "--map-root-user"])
            .args(["sh", "-c", "echo; read line"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let account = account_of(child.id(), 7);
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(account, 54321);
    }
}
