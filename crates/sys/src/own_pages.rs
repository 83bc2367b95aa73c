//! Reading a small program's own file in one go, before it begins.
//!
//! From a cold disk, a static binary of a megabyte starts with a dozen page faults one after the other, each a read of
//! its own. Asked for as a whole by its first instructions, the file arrives in one transfer, and the faults only wait
//! for their part of it.

// Where a program that is linked with `--entry=prepage_entry` begins: asks for the first 2 MiB of its own file, which is
// more than it has, and goes on as usual. Each call asks for what one is sure to load, 128 KiB. Should one fail,
// nothing was asked for.
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .text.prepage_entry, \"ax\", @progbits",
    ".globl prepage_entry",
    "prepage_entry:",
    // What `_start` expects in rdx stays there; of the rest it uses only the stack.
    "mov r12, rdx",
    "mov eax, 2", // open(path, O_RDONLY | O_CLOEXEC)
    "lea rdi, [rip + 3f]",
    "mov esi, 0x80000",
    "syscall",
    "test eax, eax",
    "js 2f",
    "mov r13d, eax",
    "xor r14d, r14d",
    "1:",
    "mov eax, 221", // fadvise64(file, offset, length, POSIX_FADV_WILLNEED)
    "mov edi, r13d",
    "mov esi, r14d",
    "mov edx, 0x20000",
    "mov r10d, 3",
    "syscall",
    "add r14d, 0x20000",
    "cmp r14d, 0x200000",
    "jb 1b",
    "mov eax, 3", // close(file)
    "mov edi, r13d",
    "syscall",
    "2:",
    "mov rdx, r12",
    "jmp _start",
    "3:",
    ".asciz \"/proc/self/exe\"",
    ".popsection",
);

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    fn prepage_entry();
}

/// Does nothing. A binary that calls it has `prepage_entry` to be linked with.
pub fn are_read_at_start() {
    #[cfg(target_arch = "x86_64")]
    std::hint::black_box(prepage_entry as *const ());
}
