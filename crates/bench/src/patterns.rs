//! Three patterns of I/O with writes and metadata, by read(2) and write(2), by the kernel's mmap(2) and by writable maps of the user-space VM:
//! what the author of FreeBSD's dynamic buffers named as the better yardsticks (bonnie, iozone, postmark).
//!
//! ```text
//! large    blocks of 16 KiB of one file: write all, read and write all, read all, seek and read (one in ten written)      (bonnie)
//! records  pages of that file: write and read at random, read backwards, read every 17th                                  (iozone)
//! small    many small files: create, then transactions of { read or append } and { create, delete or rename }, delete all (postmark)
//! ```
//!
//! A block is used as a program uses what it holds: a byte of each line of 64. Who maps reads and writes there; who calls read(2) and
//! write(2) takes the block through a buffer. Phases that write to the large file end when all is on the disk. Small files are closed, as postmark
//! does: what was written to them is in the kernel's hands then, by every way.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Instant;

use prepage_core::random::SplitMix;
use prepage_core::{PAGE_SIZE, PageRange};
use prepage_sys::mapping::WritableMapping;
use prepage_vm::{Map, MapOptions, Pool, Vm, VmOptions};

use crate::error::BenchError;
use crate::pool;

/// Bytes that the pattern `large` reads and writes at once, as bonnie does.
pub const BLOCK_BYTES: u64 = 16 << 10;
const RECORD_BYTES: u64 = PAGE_SIZE;
const LINE_BYTES: u64 = 64;
/// iozone's usual stride, in records.
const STRIDE: u64 = 17;
/// Sizes of small files, and of what is appended, in bytes: from the first to the first and the second.
const SMALL: (u64, u64) = (512, 16 << 10);
const APPENDED: (u64, u64) = (512, 4 << 10);

prepage_core::named! {
    /// Who reads and writes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Way {
        /// read(2) and write(2).
        Calls = "read-write",
        /// The kernel's shared mapping.
        Mmap = "mmap",
        /// A writable map of the VM.
        Vm = "vm",
    }
}

/// One phase of a pattern.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Phase {
    /// large, records or small.
    pub pattern: String,
    /// What is done again and again.
    pub name: String,
    /// How often: blocks, records, files or transactions.
    pub operations: u64,
    /// For all, with what makes them durable.
    pub seconds: f64,
    /// Of all bytes that were read: the same by every way.
    pub sum: u64,
}

/// A file that is open in one way.
enum Open {
    Calls(File, Vec<u8>),
    Mmap(WritableMapping),
    Vm(Map),
}

/// The files of a run, and who opens them.
struct Files {
    directory: PathBuf,
    way: Way,
    vm: Option<Vm>,
    random: SplitMix,
}

/// Runs the three patterns in `directory`, which holds nothing afterwards that was not there before, with a large file of `size_bytes`, so many
/// small `files`, and for the VM a pool of `pool_bytes`.
///
/// # Errors
/// See [`BenchError`].
pub fn run(
    directory: &Path,
    way: Way,
    size_bytes: u64,
    files: u64,
    pool_bytes: u64,
) -> Result<Vec<Phase>, BenchError> {
    let own = tempfile::tempdir_in(directory)?;
    let vm = match way {
        Way::Vm => {
            let pool = Pool::new(pool_bytes)?;
            Some(Vm::new(VmOptions::default().pool(&pool))?)
        }
        Way::Calls | Way::Mmap => None,
    };
    let random = SplitMix::new(0x9e37_79b9_7f4a_7c15);
    let mut files_of_run = Files { directory: own.path().to_owned(), way, vm, random };
    let mut phases = files_of_run.large(size_bytes)?;
    phases.extend(files_of_run.small(files)?);
    Ok(phases)
}

/// What `work` takes, which says how many operations it was and what it read.
fn timed(
    pattern: &str,
    name: &str,
    work: impl FnOnce() -> Result<(u64, u64), BenchError>,
) -> Result<Phase, BenchError> {
    let began = Instant::now();
    let (operations, sum) = work()?;
    let seconds = began.elapsed().as_secs_f64();
    Ok(Phase { pattern: pattern.to_owned(), name: name.to_owned(), operations, seconds, sum })
}

impl Files {
    fn path(&self, name: u64) -> PathBuf {
        self.directory.join(name.to_string())
    }

    /// The file `name`, with this length from here on.
    fn open(&self, name: u64, len_bytes: u64) -> Result<Open, BenchError> {
        let path = self.path(name);
        let file = File::options().read(true).write(true).create(true).truncate(false).open(&path)?;
        file.set_len(len_bytes)?;
        Ok(match &self.vm {
            Some(vm) => {
                let object = vm.file_writable(&path)?;
                Open::Vm(vm.map(&object, &MapOptions::writable())?)
            }
            None if self.way == Way::Mmap => {
                Open::Mmap(WritableMapping::new(file.as_fd(), PageRange::covering(0, len_bytes))?)
            }
            None => Open::Calls(file, vec![0; BLOCK_BYTES.max(SMALL.0 + SMALL.1) as usize]),
        })
    }

    fn large(&mut self, size_bytes: u64) -> Result<Vec<Phase>, BenchError> {
        let mut file = self.open(0, size_bytes)?;
        let blocks = size_bytes / BLOCK_BYTES;
        let records = size_bytes / RECORD_BYTES;
        let random = &mut self.random;
        let mut phases = Vec::new();
        let mut phase = |pattern, name, file: &mut Open, each: &mut dyn FnMut(&mut Open) -> Counted| {
            phases.push(timed(pattern, name, || each(file))?);
            Ok::<(), BenchError>(())
        };
        phase("large", "write", &mut file, &mut |file| {
            (0..blocks).try_for_each(|block| file.write(block * BLOCK_BYTES, BLOCK_BYTES, block as u8))?;
            file.sync()?;
            Ok((blocks, 0))
        })?;
        phase("large", "rewrite", &mut file, &mut |file| {
            let mut sum = 0;
            for block in 0..blocks {
                let read = file.read(block * BLOCK_BYTES, BLOCK_BYTES)?;
                file.write(block * BLOCK_BYTES, BLOCK_BYTES, read as u8 ^ block as u8)?;
                sum += read;
            }
            file.sync()?;
            Ok((blocks, sum))
        })?;
        phase("large", "read", &mut file, &mut |file| file.read_each(BLOCK_BYTES, 0..blocks))?;
        phase("large", "seek", &mut file, &mut |file| {
            let mut sum = 0;
            for turn in 0..blocks {
                let at = random.below(blocks) * BLOCK_BYTES;
                sum += file.read(at, BLOCK_BYTES)?;
                if turn % 10 == 0 {
                    file.write(at, BLOCK_BYTES, turn as u8)?;
                }
            }
            file.sync()?;
            Ok((blocks, sum))
        })?;
        phase("records", "write at random", &mut file, &mut |file| {
            for turn in 0..records / 2 {
                file.write(random.below(records) * RECORD_BYTES, RECORD_BYTES, turn as u8)?;
            }
            file.sync()?;
            Ok((records / 2, 0))
        })?;
        phase("records", "read at random", &mut file, &mut |file| {
            let order: Vec<u64> = (0..records / 2).map(|_| random.below(records)).collect();
            file.read_each(RECORD_BYTES, order.into_iter())
        })?;
        phase("records", "read backwards", &mut file, &mut |file| {
            file.read_each(RECORD_BYTES, (0..records).rev())
        })?;
        phase("records", "read every 17th", &mut file, &mut |file| {
            let order = (0..STRIDE).flat_map(|first| (first..records).step_by(STRIDE as usize));
            file.read_each(RECORD_BYTES, order)
        })?;
        drop(file);
        fs::remove_file(self.path(0))?;
        Ok(phases)
    }

    fn small(&mut self, count: u64) -> Result<Vec<Phase>, BenchError> {
        // Name and length of each.
        let mut there: Vec<(u64, u64)> = Vec::new();
        let mut next = 1;
        let created = timed("small", "create", || {
            for _ in 0..count {
                self.create(&mut there, &mut next)?;
            }
            Ok((count, 0))
        })?;
        let transactions = timed("small", "transactions", || {
            let mut sum = 0;
            for _ in 0..2 * count {
                let at = self.random.below(there.len() as u64) as usize;
                let (name, len) = &mut there[at];
                if self.random.below(2) == 0 {
                    sum += self.open(*name, *len)?.read(0, *len)?;
                } else {
                    let from = *len;
                    *len += APPENDED.0 + self.random.below(APPENDED.1);
                    self.open(*name, *len)?.write(from, *len - from, from as u8)?;
                }
                let at = self.random.below(there.len() as u64) as usize;
                match self.random.below(3) {
                    0 => self.create(&mut there, &mut next)?,
                    1 if there.len() > 1 => fs::remove_file(self.path(there.swap_remove(at).0))?,
                    _ => {
                        let old = std::mem::replace(&mut there[at].0, next);
                        fs::rename(self.path(old), self.path(next))?;
                        next += 1;
                    }
                }
            }
            Ok((2 * count, sum))
        })?;
        let deleted = timed("small", "delete", || {
            for (name, _) in &there {
                fs::remove_file(self.path(*name))?;
            }
            Ok((there.len() as u64, 0))
        })?;
        Ok(vec![created, transactions, deleted])
    }

    fn create(&mut self, there: &mut Vec<(u64, u64)>, next: &mut u64) -> Result<(), BenchError> {
        let len = SMALL.0 + self.random.below(SMALL.1);
        self.open(*next, len)?.write(0, len, *next as u8)?;
        there.push((*next, len));
        *next += 1;
        Ok(())
    }
}

/// How many operations, and the sum of what they read.
type Counted = Result<(u64, u64), BenchError>;

impl Open {
    fn read(&mut self, at: u64, len: u64) -> Result<u64, BenchError> {
        let lines = (0..len).step_by(LINE_BYTES as usize);
        Ok(match self {
            Self::Calls(file, buffer) => {
                let buffer = room(buffer, len);
                file.read_exact_at(buffer, at)?;
                lines.map(|line| u64::from(buffer[line as usize])).sum()
            }
            Self::Mmap(mapping) => lines.map(|line| u64::from(mapping.byte(at + line))).sum(),
            Self::Vm(map) => {
                let bytes = &map.as_atomics()[at as usize..(at + len) as usize];
                lines.map(|line| u64::from(bytes[line as usize].load(Ordering::Relaxed))).sum()
            }
        })
    }

    fn write(&mut self, at: u64, len: u64, value: u8) -> Result<(), BenchError> {
        let lines = (0..len).step_by(LINE_BYTES as usize);
        match self {
            Self::Calls(file, buffer) => {
                let buffer = room(buffer, len);
                lines.for_each(|line| buffer[line as usize] = value);
                file.write_all_at(buffer, at)?;
            }
            Self::Mmap(mapping) => lines.for_each(|line| mapping.set_byte(at + line, value)),
            Self::Vm(map) => {
                let bytes = &map.as_atomics()[at as usize..(at + len) as usize];
                lines.for_each(|line| bytes[line as usize].store(value, Ordering::Relaxed));
            }
        }
        Ok(())
    }

    fn read_each(&mut self, len: u64, order: impl Iterator<Item = u64>) -> Counted {
        let (mut count, mut sum) = (0, 0);
        for at in order {
            sum += self.read(at * len, len)?;
            count += 1;
        }
        Ok((count, sum))
    }

    fn sync(&self) -> Result<(), BenchError> {
        match self {
            Self::Calls(file, _) => file.sync_data()?,
            Self::Mmap(mapping) => mapping.sync()?,
            Self::Vm(map) => map.flush(map.window())?,
        }
        Ok(())
    }
}

/// The first `len` bytes of `buffer`, which grows to have as many.
fn room(buffer: &mut Vec<u8>, len: u64) -> &mut [u8] {
    if buffer.len() < len as usize {
        buffer.resize(len as usize, 0);
    }
    &mut buffer[..len as usize]
}

/// What is left for frames of a limit for a whole process with a large file of `size_bytes`. The VM's writable files go through
/// the kernel's page cache, which is within the limit too: it gets a quarter.
pub const fn pool_bytes(limit_bytes: u64, size_bytes: u64) -> u64 {
    (limit_bytes / 4 * 3).saturating_sub(pool::overhead_bytes(size_bytes, 0))
}
