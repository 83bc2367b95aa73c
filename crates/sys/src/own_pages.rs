//! Reading a small program's own file before it begins, what it needs first in one go.
//!
//! From a cold disk, a static binary of a megabyte starts with a dozen page faults one after the other, each a read of
//! its own. Asked for by its first instructions, what they lead to arrives in one transfer, and the faults only wait for that. What
//! is needed later, which the program's linker has put together (`crates/cli/src/starter/layout.ld`), is asked for when there is time ([`ask_for_rest`]).
//!
//! A seccomp filter may kill who asks. So those instructions ask prctl(2) first whether this process is under filters, and note it for
//! [`crate::call_filter`]. /proc/self/status says the same, and fewer filters kill who looks there, but a look costs a fifth of a warm start: the kernel
//! makes inodes and names for it, and takes them down when the program ends. Filters that kill prctl alone are rare: systemd has it in one set with the calls
//! that start processes (`@process`), without which no filter can be asked about. A filter that makes prctl return 0 hides itself, and so does a
//! supervisor that answers 0 for it.

use std::fs::File;

use rustix::fs::Advice;
use rustix::io::{ReadWriteFlags, preadv2};

// Where a program that is linked with `--entry=prepage_entry` begins: asks for its own file up to `prepage_first_end` and for its
// last pages, with the data, and goes on as usual. The first call asks for what runs before the program's helper does, up to `prepage_warm_end`: no page of a
// request is there before its last one is. The next asks for the whole, which a device takes in one request more, or in few; others for what
// a call is sure to load, 128 KiB. Of what is on its way already the kernel reads nothing more. Where the last page of that is in memory, so is
// the rest, mostly: the first was read to execute the file. Should a call fail, nothing was asked for; nor where
// the kernel does not say that this process is under no filter (EINVAL: it has none at all).
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .text.prepage_entry, \"ax\", @progbits",
    ".globl prepage_entry",
    ".weak prepage_first_end, prepage_warm_end",
    "prepage_entry:",
    "mov byte ptr [rip + prepage_entered], 1",
    // What `_start` expects in rdx stays there; of the rest it uses only the stack.
    "mov r12, rdx",
    "mov eax, 157", // prctl(PR_GET_SECCOMP)
    "mov edi, 21",
    "syscall",
    "test eax, eax",
    "jnz 3f",
    "mov byte ptr [rip + prepage_unfiltered], 1",
    // The path by which the kernel executed the file (AT_EXECFN, 31) stands behind the arguments and the environment. /proc knows it as well, but
    // makes a file of it first, for which a warm start has no time.
    "mov rax, [rsp]",
    "lea rsi, [rsp + 8 * rax + 16]",
    "5:",
    "mov rax, [rsi]",
    "add rsi, 8",
    "test rax, rax",
    "jnz 5b",
    "6:",
    "mov rax, [rsi]",
    "mov rdi, [rsi + 8]",
    "add rsi, 16",
    "test rax, rax",
    "jz 3f",
    "cmp rax, 31",
    "jne 6b",
    "mov eax, 257", // openat(AT_FDCWD, path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)
    "mov rsi, rdi",
    "mov rdi, -100",
    "mov edx, 0x80900",
    "syscall",
    "test eax, eax",
    "js 3f",
    "mov r13d, eax",
    "lea rax, [rip + __executable_start]",
    "xor r14d, r14d",
    "lea r15, [rip + prepage_first_end]",
    "sub r15, rax",
    // preadv2(file, {byte, 1}, 1, first_end - 1, 0, RWF_NOWAIT)
    "sub rsp, 24",
    "lea rsi, [rsp]",
    "lea rax, [rsp + 16]",
    "mov [rsp], rax",
    "mov qword ptr [rsp + 8], 1",
    "mov eax, 327",
    "mov edi, r13d",
    "mov edx, 1",
    "lea r10, [r15 - 1]",
    "xor r8d, r8d",
    "mov r9d, 8",
    "syscall",
    "add rsp, 24",
    "cmp rax, 1",
    "je 2f",
    "lea rdx, [rip + prepage_warm_end]",
    "lea rax, [rip + __executable_start]",
    "sub rdx, rax",
    "mov eax, 221", // fadvise64(file, 0, warm_end, POSIX_FADV_WILLNEED)
    "mov edi, r13d",
    "xor esi, esi",
    "mov r10d, 3",
    "syscall",
    "mov rdx, r15",
    "1:",
    "mov eax, 221", // fadvise64(file, offset, length, POSIX_FADV_WILLNEED)
    "mov edi, r13d",
    "mov rsi, r14",
    "mov r10d, 3",
    "syscall",
    "mov edx, 0x20000",
    "add r14, rdx",
    "cmp r14, r15",
    "jl 1b",
    "mov eax, 8", // lseek(file, -16384, SEEK_END)
    "mov edi, r13d",
    "mov rsi, -0x4000",
    "mov edx, 2",
    "syscall",
    "mov rsi, rax",
    "mov eax, 221", // to the end
    "mov edi, r13d",
    "xor edx, edx",
    "syscall",
    "2:",
    "mov eax, 3", // close(file)
    "mov edi, r13d",
    "syscall",
    "3:",
    "mov rdx, r12",
    "jmp _start",
    ".popsection",
    ".pushsection .bss.prepage_unfiltered, \"aw\", @nobits",
    ".globl prepage_unfiltered, prepage_entered",
    "prepage_unfiltered:",
    ".zero 1",
    "prepage_entered:",
    ".zero 1",
    ".popsection",
);

/// Whether `prepage_entry` has found that no seccomp filter was in force when this process began. Where it did not run, that is not known.
#[cfg(target_arch = "x86_64")]
pub(crate) fn began_without_filters() -> bool {
    unsafe extern "C" {
        static prepage_unfiltered: u8;
    }
    // SAFETY: a byte, defined above, which nobody writes to once the program's own code runs.
    unsafe { prepage_unfiltered != 0 }
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn began_without_filters() -> bool {
    false
}

/// Whether this process began at `prepage_entry`, as only a program with a [bare `main`](mod@crate::bare_main) does.
#[cfg(target_arch = "x86_64")]
pub(crate) fn is_entered() -> bool {
    unsafe extern "C" {
        static prepage_entered: u8;
    }
    // SAFETY: as above.
    unsafe { prepage_entered != 0 }
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn is_entered() -> bool {
    false
}

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    fn prepage_entry();
}

/// Does nothing. A binary that calls it has `prepage_entry` to be linked with.
pub fn are_read_at_start() {
    #[cfg(target_arch = "x86_64")]
    std::hint::black_box(prepage_entry as *const ());
}

// Addresses: of the file's first byte, and from where to where it holds what is needed later; 0 where it was not laid out.
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .data.rel.ro.prepage_rest, \"aw\", @progbits",
    ".balign 8",
    ".globl prepage_rest",
    ".weak prepage_later, prepage_later_end",
    "prepage_rest:",
    ".quad __executable_start",
    ".quad prepage_later",
    ".quad prepage_later_end",
    ".popsection",
);

/// Where in this program's file lies what is needed later. Of one that was not laid out, all.
#[cfg(target_arch = "x86_64")]
fn rest(file: &File) -> std::ops::Range<u64> {
    unsafe extern "C" {
        static prepage_rest: [usize; 3];
    }
    // SAFETY: three words, defined above, which nobody writes to once the program is linked.
    let [start, later, end] = unsafe { prepage_rest };
    match later {
        0 => whole(file),
        _ => (later - start) as u64..(end - start) as u64,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn rest(file: &File) -> std::ops::Range<u64> {
    whole(file)
}

fn whole(file: &File) -> std::ops::Range<u64> {
    0..file.metadata().map_or(0, |metadata| metadata.len())
}

/// Asks for what of this program's file is needed later, unless it seems to be in memory. What panics print is read where one does.
pub fn ask_for_rest() {
    /// What one call is sure to load.
    const BYTES: u64 = 128 << 10;
    let Ok(file) = File::open("/proc/self/exe") else { return };
    let rest = rest(&file);
    let mut byte = [0];
    let mut into = [std::io::IoSliceMut::new(&mut byte)];
    // In its midst: the kernel reads on behind what was asked for, and before what a page fault meets.
    let probed_at = rest.start + (rest.end - rest.start) / 2;
    if preadv2(&file, &mut into, probed_at, ReadWriteFlags::NOWAIT).is_ok() {
        return;
    }
    let ask = |at: u64, bytes: u64| {
        let _ = rustix::fs::fadvise(&file, at, std::num::NonZeroU64::new(bytes), Advice::WillNeed);
    };
    ask(rest.start, rest.end - rest.start);
    for at in rest.clone().step_by(BYTES as usize) {
        ask(at, BYTES.min(rest.end - at));
    }
}
