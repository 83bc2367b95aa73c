//! The log: a memfd to which agents append and from which the observer reads.

use std::fmt::Write;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use super::reader::Reader;
use super::record::{Record, SLOT_BYTES, Slots, slots_of};
use crate::call_filter::inherited_filters;
use crate::memfd::check_len;

/// Changes when agents and observers could no longer read each other.
const VERSION: u32 = 2;
const MAGIC: &[u8; 8] = b"prepage\0";
const ENDED_AT: u64 = 12;
/// What is wanted of a process before its page table goes ([`Last`]).
const LAST_AT: u64 = 40;
/// How many slots may be used.
const MOST_AT: u64 = 32;
const CURSOR_AT: u64 = 64;
const SLOTS_AT: u64 = 4096;
const TOKEN_BYTES: usize = 16;
/// Slots read at a time.
const BATCH: u64 = 4096;
/// So often a slot whose writer has not finished is found again before it is passed over: its writer was killed, or waits for a processor.
const PATIENCE: u32 = 3;
/// So many runs of slots that were passed over are looked at again, each with one read. A killed writer leaves one, a suspended one as well.
const PASSED_OVER_MAX: usize = 256;
/// Such a run has at most so many slots: a name of 4 KiB takes 69.
const RUN_SLOTS_MAX: u64 = 128;
/// So often slots that were passed over are looked at again, once each time that the log is read: for half a second at least. A writer that only
/// waits for a processor finishes before that; slots of a killed one make room for those of others.
const LOOKS_MAX: u32 = 1000;

/// The log of one observation. Agents find it as long as this process lives and holds it.
#[derive(Debug)]
pub struct Log {
    memfd: File,
    token: String,
    slots: u64,
    /// The next slot to read.
    at: u64,
    /// How often that slot was found unfinished, while later ones were there.
    unfinished: u32,
    /// Slots without a tag that were passed over, and count as torn until their writers finish.
    passed_over: Vec<PassedOver>,
    torn: u64,
}

/// The calling thread as the one that reads a log ([`Log::read_here`]).
#[must_use = "agents take the log for ended when this thread ends with it"]
pub struct Reading(#[expect(dead_code, reason = "it is held")] Reader);

impl std::fmt::Debug for Reading {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reading").finish_non_exhaustive()
    }
}

/// Slots side by side that were passed over.
#[derive(Debug)]
struct PassedOver {
    slots: Range<u64>,
    /// How often they were looked at again.
    looks: u32,
}

/// What a process does before its page table goes, at its end or when it executes another program in its own place. The agent knows the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Last {
    /// Nothing.
    Nothing,
    /// It waits until an [`super::Ending`] is dropped, 20 ms at most. At its end it does not where it has other
    /// threads: these would run on behind its destructors.
    Wait,
    /// It tells what it has touched ([`super::Event::Touched`]), libraries that are unmapped too. Before Linux 6.11, and when the log is half
    /// full, it waits.
    Tell,
    /// As [`Self::Tell`]; process 1 of a namespace then waits in any case, 200 ms at most, since the observer ends with it. At its end it does not
    /// where it has other threads.
    TellAndWait,
}

/// What a log does not hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Calls of which no record was made, or none whole, since no room was left or the process had locked its memory,
    /// or limited its address space.
    pub dropped: u64,
    /// Names and reads that an agent saw and could not tell: a sandbox, and relative names in it, reads beyond its limit.
    pub missed: u64,
    /// Slots of records that were never finished, or make no sense.
    pub torn: u64,
}

impl Log {
    /// An empty log with room for `bytes`; a record of a name takes 64 to 192. Memory is used as records come.
    ///
    /// # Errors
    /// When no memfd can be made; EFBIG where this process may not make files so large.
    pub fn create(bytes: u64) -> io::Result<Self> {
        let slots = (bytes / SLOT_BYTES).max(1);
        check_len(SLOTS_AT + slots * SLOT_BYTES)?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Linux 6.3 asks to be told; older ones do not know the flag.
        let memfd: OwnedFd = memfd_create("prepage-log", flags | MemfdFlags::NOEXEC_SEAL)
            .or_else(|_| memfd_create("prepage-log", flags))?;
        rustix::fs::ftruncate(&memfd, SLOTS_AT + slots * SLOT_BYTES)?;
        // The program has it mapped: neither side may make the other's memory vanish.
        fcntl_add_seals(&memfd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let mut secret = [0; TOKEN_BYTES];
        rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty())?;
        let memfd = File::from(memfd);
        memfd.write_all_at(&secret, 16)?;
        memfd.write_all_at(&slots.to_ne_bytes(), MOST_AT)?;
        memfd.write_all_at(&VERSION.to_ne_bytes(), 8)?;
        memfd.write_all_at(MAGIC, 0)?;
        let token = secret.iter().fold(String::new(), |mut token, byte| {
            let _ = write!(token, "{byte:02x}");
            token
        });
        Ok(Self { memfd, token, slots, at: 0, unfinished: 0, passed_over: Vec::new(), torn: 0 })
    }

    /// The value of the variable by which an agent finds this log in this process, for [`super::variables`].
    ///
    /// `arm` as [`super::may_arm`] found it, by which agents register mappings. A program under other seccomp filters than
    /// this process began with gets no agent.
    pub fn variable(&self, arm: bool) -> String {
        let (memfd, filters) = (self.memfd.as_raw_fd(), inherited_filters());
        format!("1:{}:{memfd}:{}:{filters}:{}", std::process::id(), self.token, u8::from(arm))
    }

    /// The inode by which /proc/PID/maps shows it.
    pub(super) fn inode(&self) -> io::Result<u64> {
        Ok(self.memfd.metadata()?.ino())
    }

    pub(super) fn token(&self) -> &str {
        &self.token
    }

    /// Has agents use no more than `bytes` from now on, or what they have used by now. Calls that they would tell of then count as dropped.
    ///
    /// # Errors
    /// Only when the memfd cannot be read or written.
    pub fn limit(&self, bytes: u64) -> io::Result<()> {
        let most = (bytes / SLOT_BYTES).max(self.word(CURSOR_AT)?).min(self.slots);
        self.memfd.write_all_at(&most.to_ne_bytes(), MOST_AT)
    }

    /// Notes that the calling thread reads the log, until what this returns is dropped, on the same thread. Where the thread ends before, killed
    /// or by a panic, agents do as after [`Self::end`], from their process's next call on that they would tell of.
    ///
    /// # Errors
    /// Where the log cannot be mapped, or the kernel does not tell who has died (CONFIG_FUTEX).
    pub fn read_here(&self) -> io::Result<Reading> {
        Reader::new(&self.memfd).map(Reading)
    }

    /// Tells all agents that nobody reads any more. They do nothing from then on and go along with no exec. The memory of the
    /// records is given back: a program that runs on has the log mapped for as long.
    pub fn end(&self) -> io::Result<()> {
        self.memfd.write_all_at(&1u32.to_ne_bytes(), ENDED_AT)?;
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(&self.memfd, punch, SLOTS_AT, self.slots * SLOT_BYTES)?)
    }

    /// Asks every process to do this from now on before its page table goes.
    pub fn ask_for(&self, last: Last) -> io::Result<()> {
        self.memfd.write_all_at(&(last as u32).to_ne_bytes(), LAST_AT)
    }

    /// The records that came since the last call: first those that earlier calls passed over and whose writers have finished since, then the
    /// others. Both are in the order in which their writers began them.
    ///
    /// # Errors
    /// Only when the memfd cannot be read.
    pub fn read(&mut self) -> io::Result<Vec<Record>> {
        self.read_with(PATIENCE)
    }

    /// The same when no more will come: what is unfinished now is passed over.
    pub fn read_last(&mut self) -> io::Result<Vec<Record>> {
        self.read_with(0)
    }

    fn read_with(&mut self, patience: u32) -> io::Result<Vec<Record>> {
        // A program can put anything there.
        let end = self.word(CURSOR_AT)?.min(self.slots);
        let mut records = self.read_passed_over(end)?;
        while self.at < end {
            let count = (end - self.at).min(BATCH);
            let tags = self.bytes(self.at, count)?;
            // Read after the tags: what a tag published is there now.
            let mut batch = Slots::new(&tags, self.bytes(self.at, count)?);
            while let Some(record) = batch.next() {
                records.extend(record);
            }
            self.torn += batch.torn();
            self.at += batch.taken();
            if batch.taken() > 0 {
                self.unfinished = 0;
            }
            if batch.taken() == 0 || (self.at < end && batch.stopped()) {
                if self.unfinished < patience {
                    self.unfinished += 1;
                    break;
                }
                self.pass_over(self.at, 0);
                // Slots that follow say by their tags where the next record begins.
                self.at += 1;
                self.torn += 1;
            }
        }
        Ok(records)
    }

    /// Has slot `slot` looked at again, which has no tag and was looked at `looks` times.
    fn pass_over(&mut self, slot: u64, looks: u32) {
        if let Some(last) = self.passed_over.last_mut() {
            let len = last.slots.end - last.slots.start;
            if last.slots.end == slot && last.looks == looks && len < RUN_SLOTS_MAX {
                last.slots.end += 1;
                return;
            }
        }
        if self.passed_over.len() < PASSED_OVER_MAX {
            self.passed_over.push(PassedOver { slots: slot..slot + 1, looks });
        }
    }

    /// The records that begin in slots that were passed over and have a tag by now, and end before slot `end`.
    fn read_passed_over(&mut self, end: u64) -> io::Result<Vec<Record>> {
        let mut records = Vec::new();
        for PassedOver { slots, looks } in std::mem::take(&mut self.passed_over) {
            let tags = self.bytes(slots.start, slots.end - slots.start)?;
            // Behind the record that was taken last.
            let mut next = slots.start;
            for (slot, tag) in slots.zip(tags.chunks_exact(SLOT_BYTES as usize)) {
                if slot < next {
                    continue;
                }
                match slots_of(tag) {
                    None if looks < LOOKS_MAX => self.pass_over(slot, looks + 1),
                    Some(count) if slot + count <= end => {
                        let tags = self.bytes(slot, count)?;
                        if let Some(Some(record)) = Slots::new(&tags, self.bytes(slot, count)?).next() {
                            records.push(record);
                            self.torn = self.torn.saturating_sub(self.at.min(slot + count) - slot);
                            self.at = self.at.max(slot + count);
                            next = slot + count;
                        }
                    }
                    _ => {}
                }
            }
        }
        Ok(records)
    }

    /// What this log lacks so far.
    pub fn lost(&self) -> io::Result<Lost> {
        Ok(Lost { dropped: self.word(CURSOR_AT + 8)?, missed: self.word(CURSOR_AT + 16)?, torn: self.torn })
    }

    fn word(&self, at: u64) -> io::Result<u64> {
        let mut word = [0; 8];
        self.memfd.read_exact_at(&mut word, at)?;
        Ok(u64::from_ne_bytes(word))
    }

    fn bytes(&self, slot: u64, count: u64) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; (count * SLOT_BYTES) as usize];
        self.memfd.read_exact_at(&mut bytes, SLOTS_AT + slot * SLOT_BYTES)?;
        Ok(bytes)
    }

    /// Blocks of 512 bytes that it takes.
    #[cfg(test)]
    pub(super) fn blocks(&self) -> u64 {
        self.memfd.metadata().expect("it is open").blocks()
    }

    /// What a hostile program may do.
    #[cfg(test)]
    pub(super) fn write(&self, at: u64, bytes: &[u8]) {
        self.memfd.write_all_at(bytes, at).expect("within the log");
    }
}
