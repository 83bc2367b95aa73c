//! The programs that run in the kernel, and the words that they share with this process.

use std::os::unix::fs::MetadataExt;

use crate::bpf::{
    Code, Helper, If, Label, Op, Operand, Queue, R0, R1, R2, R3, R4, R6, R7, R8, R9, R10, Register, Values,
};
use crate::device_number;

use super::FOLLOWED_MAX;

/// Processes that are followed: of two with the same remainder the older one is followed no further.
pub(super) const PROCESSES: usize = 1 << 12;
/// A longer path is not reported.
pub(super) const PATH_BYTES_MAX: i32 = 400;

// Words of the values. Where somebody is to be followed who has not made a system call yet:
pub(super) const IS_ANYBODY_WANTED: usize = 0;
/// Names that found no room, and processes whose place another one took.
pub(super) const LOST: usize = 1;
/// Who is to be followed: a number in the high half, and the process as this namespace counts it.
pub(super) const WANTED: usize = 2;
/// Who is: the number, and the process as the first namespace counts it.
pub(super) const PROCESS: usize = 16;
pub(super) const WORDS: usize = PROCESS + PROCESSES;

// Kinds of system calls that take a name.
/// From the working directory on.
const PATH: i32 = 0;
/// The same, and it becomes the working directory.
pub(super) const ENTERS: i32 = 1;
/// The working directory becomes another one, which has no name here.
pub(super) const ENTERS_DESCRIPTOR: i32 = 2;
/// From a directory on that has no name here.
pub(super) const PATH_AT: i32 = 3;

/// What system calls mean, by number.
struct Calls {
    /// Their first argument is a path.
    of_paths: &'static [i64],
    /// Their second one is, behind a directory.
    of_paths_at: &'static [i64],
    chdir: i64,
    fchdir: i64,
    execve: i64,
    /// Names mean other files afterwards.
    elsewhere: &'static [i64],
}

const NATIVE: Calls = Calls {
    #[cfg(target_arch = "x86_64")]
    of_paths: &[libc::SYS_open, libc::SYS_stat, libc::SYS_lstat, libc::SYS_access, libc::SYS_readlink],
    #[cfg(not(target_arch = "x86_64"))]
    of_paths: &[],
    of_paths_at: &[
        libc::SYS_openat,
        libc::SYS_newfstatat,
        libc::SYS_faccessat,
        libc::SYS_faccessat2,
        libc::SYS_readlinkat,
        libc::SYS_statx,
        libc::SYS_openat2,
    ],
    chdir: libc::SYS_chdir,
    fchdir: libc::SYS_fchdir,
    execve: libc::SYS_execve,
    elsewhere: &[
        libc::SYS_chroot,
        libc::SYS_pivot_root,
        libc::SYS_mount,
        libc::SYS_umount2,
        libc::SYS_move_mount,
        libc::SYS_setns,
    ],
};

/// Those of 32-bit programs (arch/x86/entry/syscalls/syscall_32.tbl).
#[cfg(target_arch = "x86_64")]
const OF_32_BITS: Calls = Calls {
    // open, access, readlink, stat, lstat, stat64, lstat64
    of_paths: &[5, 33, 85, 106, 107, 195, 196],
    // openat, fstatat64, readlinkat, faccessat, statx, openat2, faccessat2
    of_paths_at: &[295, 300, 305, 307, 383, 437, 439],
    chdir: 12,
    fchdir: 133,
    execve: 11,
    // mount, umount, umount2, chroot, pivot_root, setns, move_mount
    elsewhere: &[21, 22, 52, 61, 217, 346, 429],
};

/// Where a thread's registers have the number of the system call that it has made, and the first two arguments (struct pt_regs of
/// arch/*/include/asm/ptrace.h), of so many bytes.
#[cfg(target_arch = "x86_64")]
mod registers {
    pub const BYTES: i32 = 144;
    pub const CALL: i16 = 120;
    /// rdi and rsi.
    pub const ARGUMENTS: [i16; 2] = [112, 104];
    /// rbx and rcx.
    pub const ARGUMENTS_32: [i16; 2] = [40, 88];
    pub const CS: i16 = 136;
    /// What the low half of cs is where 32-bit code runs (arch/x86/include/asm/segment.h).
    pub const USER32_CS: i32 = 0x23;
}
#[cfg(target_arch = "aarch64")]
mod registers {
    pub const BYTES: i32 = 288;
    pub const CALL: i16 = 280;
    /// The first one as it was before the result took its place, and x1.
    pub const ARGUMENTS: [i16; 2] = [272, 8];
}

/// Bytes behind the beginning of the values.
const fn offset(word: usize) -> i32 {
    8 * word as i32
}

/// Sets R1 to the entry of the number in `of` in the table that begins at `word` and has `entries` of `1 << shift` bytes. R9 has where the values are.
fn entry(code: &mut Code, of: Register, word: usize, entries: usize, shift: i32) {
    code.calc(R1, Op::Set, Operand::Of(of));
    code.calc(R1, Op::And, Operand::Is(entries as i32 - 1));
    code.calc(R1, Op::ShiftLeft, Operand::Is(shift));
    code.calc(R1, Op::Add, Operand::Of(R9));
    code.calc(R1, Op::Add, Operand::Is(offset(word)));
}

/// Stores `process` in the entry that R1 points to, and counts whose place it takes. Changes R2; R9 has where the values are.
fn put(code: &mut Code, process: Register) {
    let was_free = code.label();
    code.load(R2, R1, 0);
    code.store(R1, 0, process);
    code.jump_if(R2, If::Equal, Operand::Is(0), was_free);
    code.calc(R2, Op::Set, Operand::Is(1));
    code.add_to(R9, offset(LOST) as i16, R2);
    code.place(was_free);
}

/// Has what this namespace calls the process in R3, and changes the registers up to R5; goes to `otherwise` where it is in another one. From the first
/// namespace processes of all others are seen, in containers too.
fn own_number(code: &mut Code, namespace: &std::fs::Metadata, otherwise: Label) {
    /// PROC_PID_INIT_INO.
    const FIRST: u64 = 0xefff_fffc;
    if namespace.ino() == FIRST {
        code.call(Helper::ProcessAndThread);
        code.calc(R3, Op::Set, Operand::Of(R0));
        return code.calc(R3, Op::ShiftRight, Operand::Is(32));
    }
    code.wide(R1, device_number::of_kernel(namespace.dev()));
    code.wide(R2, namespace.ino());
    code.calc(R3, Op::Set, Operand::Of(R10));
    code.calc(R3, Op::Add, Operand::Is(-8));
    code.calc(R4, Op::Set, Operand::Is(8));
    code.call(Helper::ProcessAndThreadOf);
    code.jump_if(R0, If::NotEqual, Operand::Is(0), otherwise);
    code.load_low(R3, R10, -4);
}

/// A thread has made a system call.
pub(super) fn calls(values: &Values, queue: &Queue, namespace: &std::fs::Metadata) -> Code {
    /// On the stack: what [`own_number`] writes last, and before it three words and the path. The registers are there before that.
    const EVENT: i16 = -(8 + 24 + PATH_BYTES_MAX as i16);
    const REGISTERS: i16 = EVENT;
    const _: () = assert!(REGISTERS as i32 + registers::BYTES <= 0);
    let mut code = Code::default();
    let [end, take, followed] = [(); 3].map(|()| code.label());
    own_entry(&mut code, values);
    code.jump_if(R3, If::Equal, Operand::Of(R8), followed);
    code.load(R2, R9, offset(IS_ANYBODY_WANTED) as i16);
    code.jump_if(R2, If::Equal, Operand::Is(0), end);
    own_number(&mut code, namespace, end);
    code.calc(R1, Op::Set, Operand::Is(0));
    for one in 0..FOLLOWED_MAX {
        let next = code.label();
        code.load(R7, R9, offset(WANTED + one) as i16);
        code.low(R2, R7);
        code.jump_if(R2, If::NotEqual, Operand::Of(R3), next);
        code.store(R9, offset(WANTED + one) as i16, R1);
        code.jump(take);
        code.place(next);
    }
    code.jump(end);
    code.place(take);
    code.calc(R7, Op::ShiftRight, Operand::Is(32));
    code.calc(R7, Op::ShiftLeft, Operand::Is(32));
    code.calc(R7, Op::Or, Operand::Of(R8));
    entry(&mut code, R8, PROCESS, PROCESSES, 3);
    put(&mut code, R7);
    code.place(followed);
    // R7 says who is followed. R6 is the result from here on.
    code.load(R3, R6, 0);
    code.load(R6, R6, 8);
    code.calc(R1, Op::Set, Operand::Of(R10));
    code.calc(R1, Op::Add, Operand::Is(REGISTERS.into()));
    code.calc(R2, Op::Set, Operand::Is(registers::BYTES));
    code.call(Helper::CopyKernel);
    let [first, second, enters, enters_descriptor, executes, leaves, tell, put, lost] =
        [(); 9].map(|()| code.label());
    // R2 and R4 are the arguments, R3 is the number of the call.
    let tell_apart = |code: &mut Code, calls: &Calls, arguments: [i16; 2]| {
        code.load(R2, R10, REGISTERS + arguments[0]);
        code.load(R4, R10, REGISTERS + arguments[1]);
        let labels = [
            (calls.of_paths_at, second),
            (calls.of_paths, first),
            (&[calls.chdir], enters),
            (&[calls.fchdir], enters_descriptor),
            (&[calls.execve], executes),
            (calls.elsewhere, leaves),
        ];
        for (numbers, label) in labels {
            for number in numbers {
                code.jump_if(R3, If::LowEqual, Operand::Is(*number as i32), label);
            }
        }
        code.jump(end);
    };
    code.load(R3, R10, REGISTERS + registers::CALL);
    #[cfg(target_arch = "x86_64")]
    {
        let native = code.label();
        code.load(R1, R10, REGISTERS + registers::CS);
        code.calc(R1, Op::And, Operand::Is(0xffff));
        code.jump_if(R1, If::NotEqual, Operand::Is(registers::USER32_CS), native);
        tell_apart(&mut code, &OF_32_BITS, registers::ARGUMENTS_32);
        code.place(native);
    }
    tell_apart(&mut code, &NATIVE, registers::ARGUMENTS);
    code.place(leaves);
    code.jump_if(R6, If::AtMost, Operand::Is(-1), end);
    entry(&mut code, R8, PROCESS, PROCESSES, 3);
    code.calc(R2, Op::Set, Operand::Is(0));
    code.store(R1, 0, R2);
    code.jump(end);
    // R8 is the kind from here on, and R9 where the path is.
    code.place(second);
    code.calc(R9, Op::Set, Operand::Of(R4));
    code.calc(R8, Op::Set, Operand::Is(PATH));
    code.jump_if(R2, If::LowEqual, Operand::Is(libc::AT_FDCWD), tell);
    code.calc(R8, Op::Set, Operand::Is(PATH_AT));
    code.jump(tell);
    // Where the program is executed its path is gone.
    code.place(executes);
    code.jump_if(R6, If::AtLeast, Operand::Is(0), end);
    for (label, kind) in [(first, PATH), (enters, ENTERS), (enters_descriptor, ENTERS_DESCRIPTOR)] {
        code.place(label);
        code.calc(R9, Op::Set, Operand::Of(R2));
        code.calc(R8, Op::Set, Operand::Is(kind));
        code.jump(tell);
    }
    code.place(tell);
    own_number(&mut code, namespace, end);
    // Number and process.
    code.calc(R7, Op::ShiftRight, Operand::Is(32));
    code.calc(R7, Op::ShiftLeft, Operand::Is(32));
    code.calc(R7, Op::Or, Operand::Of(R3));
    code.store(R10, EVENT + 8, R7);
    code.call(Helper::Time);
    code.store(R10, EVENT + 16, R0);
    // Kind and result.
    code.calc(R1, Op::Set, Operand::Of(R8));
    code.calc(R1, Op::ShiftLeft, Operand::Is(32));
    code.low(R6, R6);
    code.calc(R1, Op::Or, Operand::Of(R6));
    code.store(R10, EVENT, R1);
    code.calc(R1, Op::Set, Operand::Of(R10));
    code.calc(R1, Op::Add, Operand::Is(i32::from(EVENT) + 24));
    code.calc(R2, Op::Set, Operand::Is(PATH_BYTES_MAX));
    code.calc(R3, Op::Set, Operand::Of(R9));
    code.call(Helper::CopyUserString);
    code.calc(R3, Op::Set, Operand::Is(24));
    code.jump_if(R8, If::Equal, Operand::Is(ENTERS_DESCRIPTOR), put);
    // None, or an empty one; one that is cut is filled up.
    code.jump_if(R0, If::AtMost, Operand::Is(1), end);
    code.jump_if(R0, If::AtLeast, Operand::Is(PATH_BYTES_MAX), end);
    code.calc(R3, Op::Add, Operand::Of(R0));
    code.place(put);
    code.queue(R1, queue);
    code.calc(R2, Op::Set, Operand::Of(R10));
    code.calc(R2, Op::Add, Operand::Is(EVENT.into()));
    // Whoever reads wakes up by itself.
    code.calc(R4, Op::Set, Operand::Is(1));
    code.call(Helper::Put);
    code.jump_if(R0, If::NotEqual, Operand::Is(0), lost);
    code.jump(end);
    code.place(lost);
    code.values(R9, values);
    code.calc(R1, Op::Set, Operand::Is(1));
    code.add_to(R9, offset(LOST) as i16, R1);
    code.place(end);
    code.end();
    code
}

/// Begins a program: R6 is its argument, R8 the process that it runs in, R9 the values, R7 what is noted of the process, and R3 of which one that is.
fn own_entry(code: &mut Code, values: &Values) {
    code.calc(R6, Op::Set, Operand::Of(R1));
    code.call(Helper::ProcessAndThread);
    code.calc(R8, Op::Set, Operand::Of(R0));
    code.calc(R8, Op::ShiftRight, Operand::Is(32));
    code.values(R9, values);
    entry(code, R8, PROCESS, PROCESSES, 3);
    code.load(R7, R1, 0);
    code.low(R3, R7);
}

/// A process has made another one, or a thread.
pub(super) fn forks(values: &Values, child: i16) -> Code {
    let mut code = Code::default();
    let end = code.label();
    own_entry(&mut code, values);
    code.jump_if(R3, If::NotEqual, Operand::Of(R8), end);
    code.calc(R7, Op::ShiftRight, Operand::Is(32));
    code.calc(R7, Op::ShiftLeft, Operand::Is(32));
    code.load_low(R3, R6, child);
    code.calc(R7, Op::Or, Operand::Of(R3));
    entry(&mut code, R3, PROCESS, PROCESSES, 3);
    put(&mut code, R7);
    code.place(end);
    code.end();
    code
}

/// A thread ends: another one may get its number. That of a process is free once its last thread has ended, which the second argument of the
/// tracepoint tells if `tells_last`.
pub(super) fn exits(values: &Values, tells_last: bool) -> Code {
    let mut code = Code::default();
    let [end, thread] = [(); 2].map(|()| code.label());
    let forget = |code: &mut Code| {
        let other = code.label();
        entry(code, R8, PROCESS, PROCESSES, 3);
        code.load(R2, R1, 0);
        code.low(R3, R2);
        code.jump_if(R3, If::NotEqual, Operand::Of(R8), other);
        code.calc(R2, Op::Set, Operand::Is(0));
        code.store(R1, 0, R2);
        code.place(other);
    };
    code.calc(R6, Op::Set, Operand::Of(R1));
    code.call(Helper::ProcessAndThread);
    code.calc(R7, Op::Set, Operand::Of(R0));
    code.values(R9, values);
    if tells_last {
        code.calc(R8, Op::Set, Operand::Of(R7));
        code.calc(R8, Op::ShiftRight, Operand::Is(32));
        code.low(R3, R7);
        code.load(R6, R6, 8);
        // A bool, of which the upper bits may be anything.
        code.calc(R6, Op::And, Operand::Is(1));
        let last = code.label();
        code.jump_if(R6, If::NotEqual, Operand::Is(0), last);
        code.jump_if(R3, If::Equal, Operand::Of(R8), end);
        code.jump(thread);
        code.place(last);
        forget(&mut code);
    }
    code.place(thread);
    code.low(R8, R7);
    forget(&mut code);
    code.place(end);
    code.end();
    code
}
