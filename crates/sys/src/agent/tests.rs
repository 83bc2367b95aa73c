//! Logs that no agent wrote: a program can put anything into the memory it shares.

use std::io::{BufRead, BufReader, IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};

use super::record::SLOT_BYTES;
use super::{Event, Log, Lookup, Receiver, Record, Sent, TouchedRun};
use crate::userfaultfd::{OpenError, Userfaultfd};
use crate::userfaultfd_abi::USER_MODE_ONLY;
use prepage_core::{PageIndex, PageRange};
use prepage_testing::{Need, has, is_child, passes_as_child, this_test};
use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, sendmsg, socket_with,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const SLOTS_AT: u64 = 4096;

fn log_of(bytes: &[u8], cursor: u64) -> Log {
    let log = Log::create(64 * SLOT_BYTES).unwrap();
    log.write(SLOTS_AT, bytes);
    log.write(64, &cursor.to_ne_bytes());
    log
}

/// The slots of a record of `path`, as an agent writes them.
fn opened(path: &str) -> Vec<u8> {
    let (head, rest) = path.as_bytes().split_at(path.len().min(44));
    let more: Vec<&[u8]> = rest.chunks(60).collect();
    let mut bytes = vec![0x51, 3];
    bytes.extend((1 + more.len() as u16).to_ne_bytes());
    bytes.extend(7u32.to_ne_bytes());
    bytes.extend(9u64.to_ne_bytes());
    bytes.extend((path.len() as u16).to_ne_bytes());
    bytes.extend([0, 0]);
    bytes.extend(head);
    for text in more {
        bytes.resize(bytes.len().next_multiple_of(64), 0);
        bytes.extend([0x52, 0, 0, 0]);
        bytes.extend(text);
    }
    bytes.resize(bytes.len().next_multiple_of(64), 0);
    bytes
}

fn record(path: &str) -> Record {
    let event = Event::Name { path: Path::new(path).to_owned(), lookup: Lookup::Open };
    Record { time_ns: 9, pid: 7, event }
}

#[test]
fn names_of_any_length_come_out_as_they_went_in() {
    let names: Vec<String> = [1, 43, 44, 45, 104, 105, 164, 165].map(|len| "/".repeat(len)).to_vec();
    let bytes: Vec<u8> = names.iter().flat_map(|name| opened(name)).collect();
    let mut log = log_of(&bytes, bytes.len() as u64 / SLOT_BYTES);
    assert_eq!(log.read().unwrap(), names.iter().map(|name| record(name)).collect::<Vec<_>>());
    assert_eq!(log.read().unwrap(), []);
    assert_eq!(log.lost().unwrap(), Default::default());
}

/// Four in the first slot, and seven in each that follows.
#[test]
fn runs_of_pages_come_out_as_they_went_in() {
    for count in [0, 1, 4, 5, 11, 12, 64] {
        let runs = (1..=count).map(|at| {
            let pages = PageRange::new(PageIndex(at << 33), PageIndex((at << 33) + (at << 16)));
            TouchedRun { pages, is_armed: at % 3 != 0 }
        });
        let runs: Vec<TouchedRun> = runs.collect();
        let words: Vec<u8> = runs
            .iter()
            .map(|run| run.pages.start().0 | run.pages.len() << 40 | u64::from(run.is_armed) << 63)
            .flat_map(u64::to_ne_bytes)
            .collect();
        let (head, rest) = words.split_at(words.len().min(32));
        let more: Vec<&[u8]> = rest.chunks(56).collect();
        let mut bytes = vec![0x51, 10];
        bytes.extend((1 + more.len() as u16).to_ne_bytes());
        bytes.extend(7u32.to_ne_bytes());
        bytes.extend([9u64, 3, 4].into_iter().flat_map(u64::to_ne_bytes));
        bytes.extend(head);
        for words in more {
            bytes.resize(bytes.len().next_multiple_of(64), 0);
            bytes.extend(0x52u64.to_ne_bytes());
            bytes.extend(words);
        }
        bytes.resize(bytes.len().next_multiple_of(64), 0);
        let mut log = log_of(&bytes, bytes.len() as u64 / SLOT_BYTES);
        let event = Event::Touched { device: 3, inode: 4, runs };
        assert_eq!(log.read().unwrap(), [Record { time_ns: 9, pid: 7, event }], "{count} runs");
        assert_eq!(log.lost().unwrap(), Default::default());
    }
}

#[test]
fn a_record_whose_writer_was_killed_is_passed_over() {
    let mut bytes = vec![0; 64];
    bytes.extend(opened("/after"));
    let mut log = log_of(&bytes, 2);
    for _ in 0..3 {
        assert_eq!(log.read().unwrap(), [], "the writer may still come");
    }
    assert_eq!(log.read().unwrap(), [record("/after")]);
    assert_eq!(log.lost().unwrap().torn, 1);
    let mut log = log_of(&bytes, 2);
    assert_eq!(log.read_last().unwrap(), [record("/after")]);
}

#[test]
fn a_record_that_is_finished_late_is_read_then() {
    let mut log = log_of(&[0; 64], 1);
    assert_eq!(log.read().unwrap(), []);
    log.write(SLOTS_AT, &opened("/late"));
    assert_eq!(log.read().unwrap(), [record("/late")]);
    assert_eq!(log.lost().unwrap().torn, 0);
}

/// On a busy machine a writer loses its processor for longer than anybody waits.
#[test]
fn a_record_that_is_finished_after_it_was_passed_over_is_read_then() {
    let path = "/late".repeat(20);
    let late = opened(&path);
    let mut log = log_of(&[vec![0; late.len()], opened("/after")].concat(), 3);
    let read: Vec<Record> = (0..8).flat_map(|_| log.read().unwrap()).collect();
    assert_eq!((read, log.lost().unwrap().torn), (vec![record("/after")], 2));
    log.write(SLOTS_AT, &late);
    assert_eq!(log.read().unwrap(), [record(&path)]);
    assert_eq!((log.read().unwrap(), log.lost().unwrap().torn), (vec![], 0));
}

/// They took all the room once: each slot of a long name was kept for itself.
#[test]
fn killed_writers_of_long_names_leave_room_for_late_ones() {
    // A name of 4 KiB takes 69 slots.
    const KILLED: usize = 4 * 69;
    let bytes = [vec![0; (KILLED + 1) * 64], opened("/after")].concat();
    let mut log = Log::create(bytes.len() as u64).unwrap();
    log.write(SLOTS_AT, &bytes);
    log.write(64, &(KILLED as u64 + 2).to_ne_bytes());
    assert_eq!(log.read_last().unwrap(), [record("/after")]);
    log.write(SLOTS_AT + KILLED as u64 * SLOT_BYTES, &opened("/late"));
    assert_eq!(log.read().unwrap(), [record("/late")]);
    assert_eq!(log.lost().unwrap().torn, KILLED as u64);
}

#[test]
fn slots_of_killed_writers_are_given_up_in_the_end() {
    // As many as are looked at again.
    let killed = [vec![0; 64], opened("/x")].concat().repeat(256);
    let slots = killed.len() as u64 / SLOT_BYTES;
    let mut log = Log::create((slots + 2) * SLOT_BYTES).unwrap();
    log.write(SLOTS_AT, &killed);
    log.write(64, &slots.to_ne_bytes());
    assert_eq!(log.read_last().unwrap().len(), 256);
    for _ in 0..=1000 {
        assert_eq!(log.read().unwrap(), []);
    }
    log.write(SLOTS_AT + (slots + 1) * SLOT_BYTES, &opened("/after"));
    log.write(64, &(slots + 2).to_ne_bytes());
    assert_eq!(log.read_last().unwrap(), [record("/after")]);
    log.write(SLOTS_AT, &opened("/too-late"));
    log.write(SLOTS_AT + slots * SLOT_BYTES, &opened("/late"));
    assert_eq!(log.read().unwrap(), [record("/late")]);
}

proptest! {
    #[test]
    fn any_bytes_are_read_to_their_end(
        mut slots in prop::collection::vec(any::<[u8; 64]>(), 64),
        likely in prop::collection::vec(0..8u8, 64),
        cursor: u64,
    ) {
        for (slot, likely) in slots.iter_mut().zip(likely) {
            // Most look like something.
            slot[0] = match likely { 0 => 0, 1 => slot[0], 2 | 3 => 0x52, _ => 0x51 };
            // All kinds, and two that are none.
            slot[1] %= 13;
            slot[2] %= 4;
            slot[3] = 0;
            slot[17] = 0;
        }
        let mut log = log_of(&slots.concat(), cursor);
        log.read_last().unwrap();
        prop_assert!(log.read_last().unwrap().is_empty());
    }
}

/// Maps the log if there is one, becomes another user if there is one, connects, sends the time, and waits for the end.
const CONNECT: &str = r"
import mmap, os, socket, sys
name, log, uid = sys.argv[1:]
if log:
    mapped = mmap.mmap(os.open(log, os.O_RDWR), 4096)
if uid:
    os.setuid(int(uid))
connection = socket.socket(socket.AF_UNIX)
connection.connect('\0' + name)
connection.send(bytes(8))
print('sent', flush=True)
sys.stdin.read()
";

#[test]
fn only_processes_that_may_be_observed_are_heard() {
    if !has(Need::Root) || !has(Need::Tool("python3".into())) {
        return;
    }
    let log = Log::create(64 * SLOT_BYTES).unwrap();
    let mut receiver = Receiver::bind(&log).unwrap();
    let name = format!("prepage-{}", log.token());
    let file = format!("/proc/{}/fd/{}", std::process::id(), log.variable(false).split(':').nth(2).unwrap());
    // Ourselves, somebody else, and a service that has given up its rights.
    for (file, uid, is_heard) in [("", "", true), ("", "65534", false), (&file, "65534", true)] {
        let mut child = Command::new("python3")
            .args(["-c", CONNECT, &name, file, uid])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "sent\n");
        let sent = receiver.receive().unwrap();
        assert_eq!(matches!(&sent, Some(Sent::Ending(ending)) if ending.pid() == child.id()), is_heard);
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}

/// How often this thread has waited for something so far.
fn waits() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let waits = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    waits.unwrap().trim().parse().unwrap()
}

#[test]
fn who_connects_and_is_silent_holds_up_nobody() {
    let log = Log::create(64 * SLOT_BYTES).unwrap();
    let mut receiver = Receiver::bind(&log).unwrap();
    let to = |name: String| UnixStream::connect_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
    let connect = || to(format!("prepage-{}-end", log.token()));
    let is_readable = |receiver: &Receiver| {
        let mut fds = [PollFd::new(receiver, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).unwrap() > 0
    };
    let mut silent: Vec<UnixStream> = (0..40).map(|_| connect()).collect();
    let mut sender = connect();
    sender.write_all(&[0; 8]).unwrap();
    let before = waits();
    assert!(matches!(receiver.receive().unwrap(), Some(Sent::Ending(_))));
    assert!(receiver.receive().unwrap().is_none() && !is_readable(&receiver));
    let waited = waits() - before;
    assert!(waited < silent.len() as u64, "it waited {waited} times");
    // What comes late is heard.
    silent[7].write_all(&[0; 8]).unwrap();
    assert!(is_readable(&receiver));
    assert!(matches!(receiver.receive().unwrap(), Some(Sent::Ending(_))));
    drop(silent);
    assert!(receiver.receive().unwrap().is_none() && !is_readable(&receiver));
}

/// Leaves this process so few descriptors.
fn leave_descriptors(count: u64) {
    // Whatever other numbers are free below it.
    let next = rustix::fs::open("/", OFlags::PATH, Mode::empty()).unwrap().as_raw_fd() as u64;
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(next + count), maximum }).unwrap();
}

/// What the kernel cannot install in this process it leaves out of a message.
#[test]
fn a_userfaultfd_that_finds_no_room_is_not_taken_for_an_end() {
    if !is_child(&this_test()) {
        return passes_as_child(&[]);
    }
    let userfaultfd = match Userfaultfd::descriptor(USER_MODE_ONLY) {
        Err(OpenError::NotPermitted | OpenError::Missing) => return,
        userfaultfd => userfaultfd.unwrap(),
    };
    let log = Log::create(64 * SLOT_BYTES).unwrap();
    let mut receiver = Receiver::bind(&log).unwrap();
    let name = SocketAddr::from_abstract_name(format!("prepage-{}", log.token())).unwrap();
    let send = || {
        let sender = UnixStream::connect_addr(&name).unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = [userfaultfd.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        sendmsg(&sender, &[IoSlice::new(&[0; 8])], &mut control, SendFlags::empty()).unwrap();
        sender
    };
    let _first = send();
    assert!(matches!(receiver.receive().unwrap(), Some(Sent::FirstTouches(_))));
    let _second = send();
    // For the connection.
    leave_descriptors(1);
    let received = receiver.receive().unwrap();
    assert!(received.is_none(), "{received:?}");
}

/// Each connection may carry a descriptor, and those under way count against what the user may pass on.
#[test]
fn an_observer_that_takes_nothing_has_few_connections_wait() {
    let log = Log::create(64 * SLOT_BYTES).unwrap();
    let _receiver = Receiver::bind(&log).unwrap();
    let name = format!("prepage-{}", log.token());
    let name = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    let connect = || {
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None).unwrap();
        rustix::net::connect(&socket, &name).map(|()| socket)
    };
    let waiting: Result<Vec<_>, _> = (0..600).map(|_| connect()).collect();
    assert_eq!(waiting.err(), Some(Errno::AGAIN));
}

/// A program with a hundred libraries pays for each time that it wakes somebody.
#[test]
fn only_who_waits_wakes_the_observer() {
    let log = Log::create(64 * SLOT_BYTES).unwrap();
    let mut receiver = Receiver::bind(&log).unwrap();
    let name = SocketAddr::from_abstract_name(format!("prepage-{}", log.token())).unwrap();
    let mut sender = UnixStream::connect_addr(&name).unwrap();
    let is_readable = |receiver: &Receiver| {
        let mut fds = [PollFd::new(receiver, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).unwrap() > 0
    };
    assert!(!is_readable(&receiver) && receiver.is_sent_something());
    assert!(receiver.receive().unwrap().is_none() && !receiver.is_sent_something());
    sender.write_all(&[0; 8]).unwrap();
    assert!(!is_readable(&receiver) && receiver.is_sent_something());
    assert!(receiver.receive().unwrap().is_some());
}

#[test]
fn a_log_that_has_ended_takes_no_memory() {
    let log = log_of(&[1; 32 * SLOT_BYTES as usize], 32);
    let blocks = || log.blocks();
    assert!(blocks() > 8);
    log.end().unwrap();
    assert!(blocks() <= 8, "more than the header is left");
    assert_eq!(log.lost().unwrap(), Default::default());
}

/// The kernel would end with SIGXFSZ who makes one.
#[test]
fn who_may_not_make_files_so_large_gets_no_log() {
    if !is_child(&this_test()) {
        return passes_as_child(&[]);
    }
    let maximum = getrlimit(Resource::Fsize).maximum;
    setrlimit(Resource::Fsize, Rlimit { current: Some(1 << 20), maximum }).unwrap();
    let refused = Log::create(2 << 20).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EFBIG));
    assert!(Log::create(1 << 19).is_ok());
}
