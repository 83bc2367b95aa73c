//! The log: a memfd to which agents append and from which the observer reads.

use std::fmt::Write;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use super::record::{Record, SLOT_BYTES, Slots, slots_of};
use crate::call_filter::inherited_filters;

/// Changes when agents and observers could no longer read each other.
const VERSION: u32 = 2;
const MAGIC: &[u8; 8] = b"prepage\0";
const ENDED_AT: u64 = 12;
/// What is wanted of a process before its page table goes ([`Last`]).
const LAST_AT: u64 = 40;
const CURSOR_AT: u64 = 64;
const SLOTS_AT: u64 = 4096;
const TOKEN_BYTES: usize = 16;
/// Slots read at a time.
const BATCH: u64 = 4096;
/// So often a slot whose writer has not finished is found again before it is passed over: its writer was killed, or waits for a processor.
const PATIENCE: u32 = 3;
/// Of slots that were passed over so many are looked at again. Only a program that means harm leaves more.
const PASSED_OVER_MAX: usize = 256;

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
    passed_over: Vec<u64>,
    torn: u64,
}

/// What a process does before its page table goes, at its end or when it executes another program in its own place. The agent knows the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Last {
    /// Nothing.
    Nothing,
    /// It waits until an [`super::Ending`] is dropped, 20 ms at most.
    Wait,
    /// It tells what it has touched ([`super::Event::Touched`]), libraries that are unmapped too. Before Linux 6.11, and when the log is half
    /// full, it waits.
    Tell,
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
    /// When no memfd can be made.
    pub fn create(bytes: u64) -> io::Result<Self> {
        let slots = (bytes / SLOT_BYTES).max(1);
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
        memfd.write_all_at(&slots.to_ne_bytes(), 32)?;
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

    /// The records that came since the last call, in the order in which they were begun; what was passed over and is finished now comes first.
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
                if self.passed_over.len() < PASSED_OVER_MAX {
                    self.passed_over.push(self.at);
                }
                // Slots that follow say by their tags where the next record begins.
                self.at += 1;
                self.torn += 1;
            }
        }
        Ok(records)
    }

    /// The records that begin in slots that were passed over and have a tag by now, and end before slot `end`.
    fn read_passed_over(&mut self, end: u64) -> io::Result<Vec<Record>> {
        let mut records = Vec::new();
        for slot in std::mem::take(&mut self.passed_over) {
            let tags = self.bytes(slot, 1)?;
            match slots_of(&tags) {
                None => self.passed_over.push(slot),
                Some(count) if slot + count <= end => {
                    let tags = self.bytes(slot, count)?;
                    if let Some(Some(record)) = Slots::new(&tags, self.bytes(slot, count)?).next() {
                        records.push(record);
                        self.torn = self.torn.saturating_sub(self.at.min(slot + count) - slot);
                        self.at = self.at.max(slot + count);
                    }
                }
                Some(_) => {}
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
