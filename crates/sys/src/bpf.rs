//! Small programs that the kernel runs at its tracepoints (bpf(2)). They are put together here, checked by the kernel before it runs any, and
//! speak to this process through memory that both have mapped (Linux 5.8; CAP_BPF and CAP_PERFMON, or CAP_SYS_ADMIN).
//!
//! A process that gives bpf(2) up, but for [`RUN_AT_TRACEPOINT`], keeps the programs that it has made: they run where [`Program::run_at`] and
//! [`crate::perf::PerfEvent::run`] say so.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use prepage_core::PAGE_SIZE;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::given::descriptor;

// include/uapi/linux/bpf.h
const MAP_CREATE: libc::c_long = 0;
const PROG_LOAD: libc::c_long = 5;
const MAP_TYPE_ARRAY: u32 = 2;
const MAP_TYPE_RINGBUF: u32 = 27;
/// Command of bpf(2) that has a program run which is there already.
pub const RUN_AT_TRACEPOINT: u32 = 17;
const F_MMAPABLE: u32 = 1 << 10;
const PSEUDO_MAP_FD: u8 = 1;
const PSEUDO_MAP_VALUE: u8 = 2;
/// The kernel gives some helpers to programs of this licence alone.
const LICENSE: &CStr = c"Dual MIT/GPL";

/// `union bpf_attr` of BPF_MAP_CREATE, up to what is used here.
#[repr(C)]
struct MapCreate {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries_max: u32,
    flags: u32,
}

/// The same of BPF_PROG_LOAD.
#[repr(C)]
struct ProgLoad {
    kind: u32,
    instructions_len: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
}

/// The same of BPF_RAW_TRACEPOINT_OPEN.
#[repr(C)]
struct RawTracepointOpen {
    name: u64,
    program: u32,
    _padding: u32,
}

const _: () = assert!(
    size_of::<MapCreate>() == 20 && size_of::<ProgLoad>() == 40 && size_of::<RawTracepointOpen>() == 16
);

/// A register: [`R0`] has results, [`R1`] to `R5` what helpers are given, [`R6`] to [`R9`] stay, [`R10`] is the end of the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register(u8);

/// Results.
pub const R0: Register = Register(0);
/// The first argument, and the context at the beginning.
pub const R1: Register = Register(1);
/// The second argument.
pub const R2: Register = Register(2);
/// The third argument.
pub const R3: Register = Register(3);
/// The fourth argument.
pub const R4: Register = Register(4);
/// Kept by helpers, as the next ones.
pub const R6: Register = Register(6);
/// See [`R6`].
pub const R7: Register = Register(7);
/// See [`R6`].
pub const R8: Register = Register(8);
/// See [`R6`].
pub const R9: Register = Register(9);
/// The end of the stack of 512 bytes; read only.
pub const R10: Register = Register(10);

/// What an operation takes beside its register.
#[derive(Clone, Copy, Debug)]
pub enum Operand {
    /// Another register.
    Of(Register),
    /// A number.
    Is(i32),
}

/// Calculations, of 64 bits.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// Sum.
    Add = 0x00,
    /// Bits of either.
    Or = 0x40,
    /// Bits of both.
    And = 0x50,
    /// Towards the high bits.
    ShiftLeft = 0x60,
    /// Towards the low bits; zeros come in.
    ShiftRight = 0x70,
    /// The operand itself.
    Set = 0xb0,
}

/// Comparisons.
#[derive(Clone, Copy, Debug)]
pub enum If {
    /// Of all 64 bits.
    Equal = 0x15,
    /// Of all 64 bits.
    NotEqual = 0x55,
    /// As numbers with a sign.
    AtMost = 0xd5,
    /// As numbers with a sign.
    AtLeast = 0x75,
    /// Of the low 32 bits.
    LowEqual = 0x16,
}

/// What the kernel does for a program (`enum bpf_func_id`).
#[derive(Clone, Copy, Debug)]
pub enum Helper {
    /// The time of CLOCK_MONOTONIC, nanoseconds.
    Time = 5,
    /// The process in the high half and the thread in the low one, as the first namespace counts them.
    ProcessAndThread = 14,
    /// Copies memory of the kernel's.
    CopyKernel = 113,
    /// Copies a string of user memory that is present.
    CopyUserString = 114,
    /// The same as `ProcessAndThread` in a namespace that is named, into memory.
    ProcessAndThreadOf = 120,
    /// Puts bytes into a queue.
    Put = 130,
}

/// A place in a program that is jumped to.
#[derive(Clone, Copy, Debug)]
pub struct Label(usize);

/// A program that is being put together.
#[derive(Debug, Default)]
pub struct Code {
    instructions: Vec<u64>,
    /// Where each label is, once it is placed.
    labels: Vec<Option<usize>>,
    jumps: Vec<(usize, Label)>,
}

impl Code {
    fn push(&mut self, op: u8, to: Register, from: u8, offset: i16, number: i32) {
        let [low, high] = offset.to_le_bytes();
        let [a, b, c, d] = number.to_le_bytes();
        self.instructions.push(u64::from_le_bytes([op, to.0 | from << 4, low, high, a, b, c, d]));
    }

    fn push_wide(&mut self, to: Register, from: u8, low: u32, high: u32) {
        self.push(0x18, to, from, 0, low as i32);
        self.push(0, R0, 0, 0, high as i32);
    }

    /// A new label, to be [placed](Self::place) once.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// What follows is at `label`.
    pub fn place(&mut self, label: Label) {
        self.labels[label.0] = Some(self.instructions.len());
    }

    /// Calculates in `to`.
    pub fn calc(&mut self, to: Register, op: Op, operand: Operand) {
        match operand {
            Operand::Is(number) => self.push(op as u8 | 0x07, to, 0, 0, number),
            Operand::Of(from) => self.push(op as u8 | 0x0f, to, from.0, 0, 0),
        }
    }

    /// Sets `to` to the low 32 bits of `from`.
    pub fn low(&mut self, to: Register, from: Register) {
        self.push(0xbc, to, from.0, 0, 0);
    }

    /// Sets `to` to a number of 64 bits.
    pub fn wide(&mut self, to: Register, number: u64) {
        self.push_wide(to, 0, number as u32, (number >> 32) as u32);
    }

    /// Sets `to` to where `values` are.
    pub fn values(&mut self, to: Register, values: &Values) {
        self.push_wide(to, PSEUDO_MAP_VALUE, values.map.as_raw_fd() as u32, 0);
    }

    /// Sets `to` to `queue`, for [`Helper::Put`].
    pub fn queue(&mut self, to: Register, queue: &Queue) {
        self.push_wide(to, PSEUDO_MAP_FD, queue.map.as_raw_fd() as u32, 0);
    }

    /// Loads 64 bits from `offset` bytes behind `from`.
    pub fn load(&mut self, to: Register, from: Register, offset: i16) {
        self.push(0x79, to, from.0, offset, 0);
    }

    /// Loads 32 bits.
    pub fn load_low(&mut self, to: Register, from: Register, offset: i16) {
        self.push(0x61, to, from.0, offset, 0);
    }

    /// Stores 64 bits at `offset` bytes behind `to`.
    pub fn store(&mut self, to: Register, offset: i16, from: Register) {
        self.push(0x7b, to, from.0, offset, 0);
    }

    /// Adds `from` to the 64 bits at `offset` bytes behind `to`, as one step.
    pub fn add_to(&mut self, to: Register, offset: i16, from: Register) {
        self.push(0xdb, to, from.0, offset, 0);
    }

    /// Jumps to `label`, which comes later.
    pub fn jump(&mut self, label: Label) {
        self.jumps.push((self.instructions.len(), label));
        self.push(0x05, R0, 0, 0, 0);
    }

    /// The same where `left` compares so.
    pub fn jump_if(&mut self, left: Register, compare: If, right: Operand, label: Label) {
        self.jumps.push((self.instructions.len(), label));
        match right {
            Operand::Is(number) => self.push(compare as u8, left, 0, 0, number),
            Operand::Of(right) => self.push(compare as u8 | 0x08, left, right.0, 0, 0),
        }
    }

    /// Calls `helper`.
    pub fn call(&mut self, helper: Helper) {
        self.push(0x85, R0, 0, 0, helper as i32);
    }

    /// Ends the program: what it was run for goes on, and nothing else is reported of it.
    pub fn end(&mut self) {
        self.calc(R0, Op::Set, Operand::Is(0));
        self.push(0x95, R0, 0, 0, 0);
    }

    /// The instructions.
    ///
    /// # Panics
    /// Where a label was not placed, or lies too far away.
    fn finish(mut self) -> Vec<u64> {
        for (at, label) in self.jumps {
            let place = self.labels[label.0].expect("each label is placed");
            let offset = i16::try_from(place - at - 1).expect("programs are short");
            self.instructions[at] |= u64::from(offset as u16) << 16;
        }
        self.instructions
    }
}

/// What a program runs at, and what [`R1`] points to at its beginning.
#[derive(Clone, Copy, Debug)]
pub enum At {
    /// The record of a tracepoint, as tracefs describes it: [`crate::perf::PerfEvent::run`].
    Record = 5,
    /// What the kernel gives to its tracepoint, 64 bits each, before any record is made: [`Program::run_at`]. Takes less time.
    Arguments = 17,
}

/// A program that the kernel has checked.
#[derive(Debug)]
pub struct Program(OwnedFd);

/// A program that runs at a tracepoint, by anybody and on any CPU, until this is dropped.
#[derive(Debug)]
#[expect(dead_code, reason = "open for as long as the program is to run")]
pub struct RunsAt(OwnedFd);

impl Program {
    /// Has the kernel check the program.
    ///
    /// # Errors
    /// EPERM without the right to load programs; EINVAL and EACCES where the kernel refuses this one.
    pub fn load(code: Code, at: At) -> io::Result<Self> {
        let instructions = code.finish();
        let attr = ProgLoad {
            kind: at as u32,
            instructions_len: instructions.len() as u32,
            instructions: instructions.as_ptr() as u64,
            license: LICENSE.as_ptr() as u64,
            log_level: 0,
            log_bytes: 0,
            log: 0,
        };
        // SAFETY: the attributes and what they point to live until the call returns, and are only read.
        unsafe { bpf(PROG_LOAD, &attr) }.map(Self)
    }

    /// Has this program, one [`At::Arguments`], run at the tracepoint `name`.
    ///
    /// # Errors
    /// ENOENT where the kernel has no such tracepoint.
    pub fn run_at(&self, name: &CStr) -> io::Result<RunsAt> {
        let attr =
            RawTracepointOpen { name: name.as_ptr() as u64, program: self.0.as_raw_fd() as u32, _padding: 0 };
        // SAFETY: the attributes and the name live until the call returns, and are only read.
        unsafe { bpf(RUN_AT_TRACEPOINT.into(), &attr) }.map(RunsAt)
    }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// SAFETY: `attr` has to be what `command` takes, and what it points to has to be valid for that.
unsafe fn bpf<T>(command: libc::c_long, attr: &T) -> io::Result<OwnedFd> {
    let attr: *const T = attr;
    // SAFETY: the caller promises valid attributes; the kernel reads no more of them than the size says. The descriptor is new.
    unsafe { descriptor(libc::syscall(libc::SYS_bpf, command, attr, size_of::<T>())) }
}

fn map(kind: u32, key_bytes: u32, value_bytes: u32, entries_max: u32, flags: u32) -> io::Result<OwnedFd> {
    // SAFETY: the attributes are numbers.
    unsafe { bpf(MAP_CREATE, &MapCreate { kind, key_bytes, value_bytes, entries_max, flags }) }
}

/// A mapping of a kernel's object.
#[derive(Debug)]
struct Mapped {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to no thread, and stays until it is dropped.
unsafe impl Send for Mapped {}
// SAFETY: as above; it is used by atomics, or by whoever has its owner exclusively.
unsafe impl Sync for Mapped {}

impl Mapped {
    fn new(of: &OwnedFd, bytes: usize, rights: ProtFlags, offset: u64) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, rights, MapFlags::SHARED, of, offset) }?;
        Ok(Self { start: NonNull::new(start.cast()).expect("mmap gives no null without MAP_FIXED"), bytes })
    }

    /// The words of the mapping.
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is aligned to pages and lives as long as the borrow; this process uses it by atomics alone.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.bytes / 8) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping of this value, of which no borrow is left. It cannot fail for one that exists.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Words, all zero at first, that programs and this process read and write.
#[derive(Debug)]
pub struct Values {
    map: OwnedFd,
    mapped: Mapped,
}

impl Values {
    /// So many words.
    ///
    /// # Errors
    /// EPERM without the right to make them, EINVAL before Linux 5.5.
    pub fn new(words: usize) -> io::Result<Self> {
        let map = map(MAP_TYPE_ARRAY, 4, 8 * words as u32, 1, F_MMAPABLE)?;
        let bytes = (8 * words).next_multiple_of(PAGE_SIZE as usize);
        let mapped = Mapped::new(&map, bytes, ProtFlags::READ | ProtFlags::WRITE, 0)?;
        Ok(Self { map, mapped })
    }

    /// The words, and what fills the last page.
    pub fn words(&self) -> &[AtomicU64] {
        self.mapped.words()
    }
}

/// A queue: programs put records in, and this process takes them out. A record that finds no room is lost, and its program sees that.
#[derive(Debug)]
pub struct Queue {
    map: OwnedFd,
    /// Up to where this process has read, in the first word.
    read: Mapped,
    /// Up to where the kernel has written, in the first word, and from the second page on the bytes, twice one behind the other.
    written: Mapped,
    bytes: u64,
}

/// Flag in the length of a record that is still being written.
const BUSY: u32 = 1 << 31;
/// Flag in the length of a record that its program has given up.
const DISCARDED: u32 = 1 << 30;
const HEADER_BYTES: u64 = 8;

impl Queue {
    /// With room for `bytes`, a power of two of pages.
    ///
    /// # Errors
    /// EPERM without the right to make one, EINVAL before Linux 5.8.
    pub fn new(bytes: u32) -> io::Result<Self> {
        let map = map(MAP_TYPE_RINGBUF, 0, 0, bytes, 0)?;
        let page = PAGE_SIZE as usize;
        let read = Mapped::new(&map, page, ProtFlags::READ | ProtFlags::WRITE, 0)?;
        let written = Mapped::new(&map, page + 2 * bytes as usize, ProtFlags::READ, PAGE_SIZE)?;
        Ok(Self { map, read, written, bytes: bytes.into() })
    }

    /// Hands what was put in since the last call to `each`, the oldest first, and makes room.
    pub fn take(&mut self, each: &mut dyn FnMut(&[u8])) {
        let read = &self.read.words()[0];
        let end = self.written.words()[0].load(Ordering::Acquire);
        let mut at = read.load(Ordering::Relaxed);
        while at < end {
            let place = (PAGE_SIZE + (at & (self.bytes - 1))) as usize;
            // The length is the low half of the first word; the kernel writes it last.
            let header = self.written.words()[place / 8].load(Ordering::Acquire) as u32;
            if header & BUSY != 0 {
                break;
            }
            let len = header & !DISCARDED;
            if header & DISCARDED == 0 {
                assert!(u64::from(len) + HEADER_BYTES <= self.bytes, "a record is shorter than its queue");
                let start = place + HEADER_BYTES as usize;
                // SAFETY: the record lies within the mapping, where the bytes lie twice. The kernel has finished it and writes there again only
                // after the store below.
                each(unsafe {
                    std::slice::from_raw_parts(self.written.start.as_ptr().add(start), len as usize)
                });
            }
            at += (u64::from(len) + HEADER_BYTES).next_multiple_of(8);
            read.store(at, Ordering::Release);
        }
    }
}
