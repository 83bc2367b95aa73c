//! Records of the log, and how they lie in its slots (crates/sys/agent/log.c).

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use prepage_core::{PageIndex, PageRange};

pub(super) const SLOT_BYTES: u64 = 64;
const SLOT: usize = SLOT_BYTES as usize;
const TAG_FIRST: u8 = 0x51;
const TAG_MORE: u8 = 0x52;
const FIRST_TEXT_AT: usize = 20;
const MORE_TEXT_AT: usize = 4;
const FIRST_RUNS_AT: usize = 32;
const MORE_RUNS_AT: usize = 8;

/// What an agent saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// CLOCK_MONOTONIC; 0 where a sandboxed program has no vDSO.
    pub time_ns: u64,
    /// The process, by the number it has for itself.
    pub pid: u32,
    /// What.
    pub event: Event,
}

/// See [`Record`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An agent was loaded with this program, named as the kernel was asked to execute it.
    Started {
        /// As given to execve(2); for a script, its interpreter.
        path: PathBuf,
        /// Whether its pages' first touches can be seen.
        arming: Arming,
    },
    /// A name was looked up, whether it exists or not.
    Name {
        /// Absolute, otherwise as the program wrote it (`..` and symbolic links as they are).
        path: PathBuf,
        /// What for.
        lookup: Lookup,
    },
    /// A program is about to be executed, by this process or a child of its.
    Executed {
        /// Absolute, else as written.
        path: PathBuf,
        /// Whether an agent went along.
        carrying: Carrying,
    },
    /// Bytes of a regular file were asked for by read(2) or its like.
    Read {
        /// st_dev of the open file.
        device: u64,
        /// st_ino.
        inode: u64,
        /// The first byte.
        offset: u64,
        /// How many; they ended within the file then.
        len: u64,
    },
    /// The file, by the path at which it is mapped, of which the process tells next what is [`Self::Touched`].
    Mapped {
        /// As /proc/PID/maps shows it.
        path: PathBuf,
    },
    /// These pages of the file that the process has named last are mapped, as it tells before its page table, or a library's part of that, goes.
    Touched {
        /// Device of the file as /proc/PID/maps shows it, as [`rustix::fs::makedev`] encodes it.
        device: u64,
        /// Inode as it is shown there.
        inode: u64,
        /// Which pages. One file may have several records.
        runs: Vec<TouchedRun>,
    },
    /// All that the process has touched is told: it ends next, or executes another program in its own place.
    Told,
    /// That program could not be executed: the process goes on, and what it touches from here on is not told.
    GoesOn,
}

/// Pages side by side in [`Event::Touched`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TouchedRun {
    /// The pages, of the file.
    pub pages: PageRange,
    /// Whether their mapping is armed. Where it was before it was used, they were touched.
    pub is_armed: bool,
}

/// What a name was looked up for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lookup {
    /// stat, access, readlink, chdir and the like.
    Metadata,
    /// To be opened. What is read of it comes as [`Event::Read`].
    Open,
    /// fopen. What is read of it comes as [`Event::Read`] when the stream seeks, is closed, or the program ends in order.
    Stream,
    /// To list a directory.
    List,
    /// ld.so looks for a library here.
    Library,
}

/// Whether first touches of a program can be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arming {
    /// Its objects were registered before they were relocated, and the userfaultfd was sent.
    Armed,
    /// The kernel has no userfaultfd for this user, or not the feature.
    RefusedByKernel,
    /// The variable did not ask for it, or the program is in a sandbox of its own.
    NotAsked,
}

/// Whether an agent goes along with an exec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrying {
    /// It does.
    Carried,
    /// There is no such file, or it cannot be executed.
    NotFound,
    /// The file has rights of its own: set-user-id, set-group-id or capabilities. Or the process has, whose effective ids are
    /// not its real ones. ld.so ignores LD_AUDIT for it. Or the file may be executed and not read.
    Rights,
    /// A static program, or no program.
    NotDynamic,
    /// Its loader is not that of glibc 2.35 or newer for this machine.
    OtherLoader,
    /// The agent cannot be loaded from there: other root or mounts, or one without exec.
    LibraryOutOfReach,
    /// A debugger or tracer watches the process, or nobody can tell (no /proc).
    Traced,
    /// The process has other seccomp filters than the observer.
    Sandboxed,
    /// Its environment is too large to copy.
    TooLarge,
    /// The child may change its directory first, and the name is relative: it may be another file there.
    Relative,
    /// The program's libraries need more static thread-local memory than ld.so has for them beside an auditing library. It is
    /// executed once more, without the agent.
    StaticTls,
    /// system(3) or popen(3) starts the shell with the environment of the process, which other threads may look at meanwhile: it stays as it is.
    SeveralThreads,
    /// The program's environment has LD_DEBUG, with which ld.so would tell of the agent, or another observer's agent.
    Environment,
}

/// Takes records out of a run of slots.
#[derive(Debug)]
pub(super) struct Slots<'a> {
    tags: &'a [u8],
    bytes: Vec<u8>,
    at: usize,
    torn: u64,
    stopped: bool,
}

impl<'a> Slots<'a> {
    /// `tags` are the same slots as `bytes`, as they were a moment earlier.
    pub(super) fn new(tags: &'a [u8], bytes: Vec<u8>) -> Self {
        Self { tags, bytes, at: 0, torn: 0, stopped: false }
    }

    /// The next record; `Some(None)` where one makes no sense; `None` at the end, or where one is not finished.
    pub(super) fn next(&mut self) -> Option<Option<Record>> {
        let tag = self.tags.get(self.at * SLOT..self.at * SLOT + 4)?;
        let Some(count) = slots_of(tag) else {
            self.stopped = true;
            return None;
        };
        let count = count as usize;
        let (kind, first) = (tag[1], tag[0] == TAG_FIRST);
        // The rest of a record whose beginning was passed over, or bytes that no agent wrote.
        if !first {
            self.at += 1;
            self.torn += 1;
            return Some(None);
        }
        // It goes on in the next batch, which begins with it.
        let slots = self.bytes.get(self.at * SLOT..(self.at + count) * SLOT)?;
        let record = decode(kind, slots);
        self.at += if record.is_some() { count } else { 1 };
        self.torn += u64::from(record.is_none());
        Some(record)
    }

    /// Slots that are done with.
    pub(super) fn taken(&self) -> u64 {
        self.at as u64
    }

    /// Slots among them that are no records'.
    pub(super) fn torn(&self) -> u64 {
        self.torn
    }

    /// Whether the first slot not taken has no tag.
    pub(super) fn stopped(&self) -> bool {
        self.stopped
    }
}

/// How many slots the record takes that begins with this tag; `None` where it is not finished.
pub(super) fn slots_of(tag: &[u8]) -> Option<u64> {
    (tag[0] != 0).then(|| u64::from(u16::from_ne_bytes([tag[2], tag[3]])).max(1))
}

fn decode(kind: u8, slots: &[u8]) -> Option<Record> {
    let half = |at: usize| u16::from_ne_bytes(slots[at..at + 2].try_into().expect("two bytes"));
    let word = |at: usize| u64::from_ne_bytes(slots[at..at + 8].try_into().expect("eight bytes"));
    let pid = u32::from_ne_bytes(slots[4..8].try_into().expect("four bytes"));
    let (device, inode, offset, len) = (word(16), word(24), word(32), word(40));
    let event = if kind == 8 {
        Event::Read { device, inode, offset, len }
    } else if kind == 10 {
        Event::Touched { device, inode, runs: runs(slots)? }
    } else if kind == 11 {
        Event::Told
    } else if kind == 12 {
        Event::GoesOn
    } else {
        let (path, detail) = (path(slots, half(16).into())?, half(18));
        let name = |lookup| Some(Event::Name { path: path.clone(), lookup });
        match kind {
            1 => Event::Started { arming: arming(detail)?, path },
            2 => name(Lookup::Metadata)?,
            3 => name(Lookup::Open)?,
            4 => name(Lookup::Stream)?,
            5 => name(Lookup::List)?,
            6 => name(Lookup::Library)?,
            7 => Event::Executed { carrying: carrying(detail)?, path },
            9 => Event::Mapped { path },
            _ => return None,
        }
    };
    Some(Record { time_ns: word(8), pid, event })
}

/// Each is a word: 40 bits for the first page, 23 for how many there are, and one that says whether the mapping is armed. A word of
/// zero ends them.
fn runs(slots: &[u8]) -> Option<Vec<TouchedRun>> {
    let more = slots[SLOT..].chunks_exact(SLOT);
    if more.clone().any(|slot| slot[0] != TAG_MORE) {
        return None;
    }
    let words = std::iter::once(&slots[FIRST_RUNS_AT..SLOT]).chain(more.map(|slot| &slot[MORE_RUNS_AT..]));
    let words = words.flat_map(|bytes| bytes.as_chunks().0).map(|word| u64::from_ne_bytes(*word));
    let run = |word: u64| {
        let (first, count) = (word & 0xff_ffff_ffff, word >> 40 & 0x7f_ffff);
        let pages = PageRange::new(PageIndex(first), PageIndex(first + count));
        TouchedRun { pages, is_armed: word >> 63 != 0 }
    };
    Some(words.take_while(|word| *word != 0).map(run).collect())
}

fn path(slots: &[u8], len: usize) -> Option<PathBuf> {
    let mut text = slots[FIRST_TEXT_AT..SLOT].to_vec();
    for slot in slots[SLOT..].chunks_exact(SLOT) {
        if slot[0] != TAG_MORE {
            return None;
        }
        text.extend_from_slice(&slot[MORE_TEXT_AT..]);
    }
    if len == 0 || len > text.len() || text[..len].contains(&0) {
        return None;
    }
    text.truncate(len);
    Some(OsString::from_vec(text).into())
}

fn arming(detail: u16) -> Option<Arming> {
    use Arming::*;
    [Armed, RefusedByKernel, NotAsked].get(usize::from(detail)).copied()
}

fn carrying(detail: u16) -> Option<Carrying> {
    use Carrying::*;
    let all = [
        Carried,
        NotFound,
        Rights,
        NotDynamic,
        OtherLoader,
        LibraryOutOfReach,
        Traced,
        Sandboxed,
        TooLarge,
        Relative,
        StaticTls,
        SeveralThreads,
        Environment,
    ];
    all.get(usize::from(detail)).copied()
}
