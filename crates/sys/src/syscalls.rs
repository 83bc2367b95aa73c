//! Numbers of the system calls that name, read or list files, as the unsigned words ptrace and /proc give.
#![expect(missing_docs, reason = "each is the system call of its name")]

macro_rules! numbers {
    ($($name:ident = $call:ident),* $(,)?) => {
        $(pub const $name: u64 = libc::$call as u64;)*
    };
}

/// The directory descriptor that means "the working directory".
pub const AT_FDCWD: i32 = libc::AT_FDCWD;

#[cfg(target_arch = "x86_64")]
numbers! {
    OPEN = SYS_open,
    STAT = SYS_stat,
    LSTAT = SYS_lstat,
    ACCESS = SYS_access,
    READLINK = SYS_readlink,
}

numbers! {
    CHDIR = SYS_chdir,
    COPY_FILE_RANGE = SYS_copy_file_range,
    EXECVE = SYS_execve,
    EXECVEAT = SYS_execveat,
    FACCESSAT = SYS_faccessat,
    FACCESSAT2 = SYS_faccessat2,
    GETDENTS64 = SYS_getdents64,
    NEWFSTATAT = SYS_newfstatat,
    OPENAT = SYS_openat,
    OPENAT2 = SYS_openat2,
    PREAD64 = SYS_pread64,
    PREADV = SYS_preadv,
    PREADV2 = SYS_preadv2,
    PTRACE = SYS_ptrace,
    READ = SYS_read,
    READLINKAT = SYS_readlinkat,
    READV = SYS_readv,
    SENDFILE = SYS_sendfile,
    STATX = SYS_statx,
}

/// Request number of PTRACE_TRACEME: "my parent traces me".
pub const PTRACE_TRACEME: u64 = libc::PTRACE_TRACEME as u64;
