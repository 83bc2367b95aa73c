//! Which programs an agent can go into, and the variables that bring it there.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, Mode, OFlags, StatVfsMountFlags, access, fgetxattr, fstatvfs, open};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid, getgid, getuid};

use super::Carrying;

/// The agent's file name.
pub const LIBRARY: &str = "libprepage-agent.so";
const LOG: &str = "PREPAGE_AGENT";
/// Set only to make two variables: the agent takes out two, see `clean` in crates/sys/agent/audit.c.
const EVEN: &str = "PREPAGE_AGENT_EVEN";
const AUDIT: &str = "LD_AUDIT";
/// As deep as the kernel goes (BINPRM_BUF_SIZE's loop in fs/exec.c).
const SCRIPTS_DEEP: u32 = 4;

#[cfg(target_arch = "x86_64")]
const MACHINE: (u16, &[u8]) = (62, b"ld-linux-x86-64.so.2");
#[cfg(target_arch = "aarch64")]
const MACHINE: (u16, &[u8]) = (183, b"ld-linux-aarch64.so.1");

/// The agent: beside this process's executable, in `../lib/prepage` from there, or in `/usr/lib/prepage`.
pub fn find_library() -> Option<PathBuf> {
    let executable = std::env::current_exe().ok();
    let beside = executable.as_deref().and_then(Path::parent);
    let places = beside.into_iter().flat_map(|dir| [dir.to_owned(), dir.join("../lib/prepage")]);
    places
        .chain([PathBuf::from("/usr/lib/prepage")])
        .filter_map(|place| place.join(LIBRARY).canonicalize().ok())
        .find(|path| path.is_absolute() && !path.as_os_str().as_bytes().contains(&b':'))
}

/// The variables to set at the exec of a program that [`would_load`] the agent. `log` is [`super::Log::variable`]'s.
///
/// They should be the last ones of the environment, in this order ([`crate::exec::exec_with`] does so): the program then
/// finds nothing of them in /proc/PID/environ but zeros at the end. `own_audit` is the LD_AUDIT of the user, which is kept.
pub fn variables(library: &Path, log: &str, own_audit: Option<&OsStr>) -> Vec<(&'static str, OsString)> {
    let log = OsString::from(log);
    match own_audit {
        None => vec![(AUDIT, library.into()), (LOG, log)],
        Some(own) => {
            let mut own = own.to_owned();
            own.push(":");
            own.push(library);
            vec![(AUDIT, own), (LOG, log), (EVEN, OsString::new())]
        }
    }
}

/// Whether `program` (a path), executed by a process with the rights of this one, will load the agent `library` without a word.
pub fn would_load(program: &Path, library: &Path) -> Carrying {
    match look_at(program, 0) {
        Ok(Carrying::Carried) if has_rights() => Carrying::Rights,
        Ok(Carrying::Carried) if !is_loadable(library) => Carrying::LibraryOutOfReach,
        Ok(found) => found,
        Err(_) => Carrying::NotFound,
    }
}

/// Whether what this process executes is told AT_SECURE: ld.so ignores LD_AUDIT for it.
fn has_rights() -> bool {
    getuid() != geteuid() || getgid() != getegid()
}

/// ld.so maps it executable, and complains where it may not.
fn is_loadable(library: &Path) -> bool {
    // access(2) leaves out capabilities, which another user than root loses by the exec.
    let (Ok(()), Ok(file)) = (access(library, Access::READ_OK), File::open(library)) else { return false };
    fstatvfs(&file).is_ok_and(|fs| !fs.f_flag.contains(StatVfsMountFlags::NOEXEC))
}

fn look_at(program: &Path, depth: u32) -> io::Result<Carrying> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(open(program, flags, Mode::empty())?);
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Ok(Carrying::NotFound);
    }
    let mut value = [0u8; 64];
    // ENODATA: none. Others (not supported) mean that there can be none.
    let capable = match fgetxattr(&file, c"security.capability", &mut value[..]) {
        Ok(_) | Err(Errno::RANGE) => true,
        Err(_) => false,
    };
    if metadata.mode() & 0o6000 != 0 || capable {
        return Ok(Carrying::Rights);
    }
    let mut head = [0; 512];
    let got = file.read_at(&mut head, 0)?;
    let head = &head[..got];
    if let Some(line) = head.strip_prefix(b"#!") {
        let interpreter = line.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii_start();
        let end =
            interpreter.iter().position(|byte| matches!(byte, b' ' | b'\t')).unwrap_or(interpreter.len());
        return match depth {
            SCRIPTS_DEEP.. => Ok(Carrying::NotDynamic),
            _ => look_at(Path::new(OsStr::from_bytes(&interpreter[..end])), depth + 1),
        };
    }
    if !head.starts_with(b"\x7fELF") {
        // Text that the kernel does not execute, the shell does (execvp(3)).
        let is_shells = depth == 0 && !head.contains(&0);
        return if is_shells { look_at(Path::new("/bin/sh"), 1) } else { Ok(Carrying::NotDynamic) };
    }
    Ok(elf(&file, head))
}

fn elf(file: &File, head: &[u8]) -> Carrying {
    const HEADER: usize = 64;
    const PHDR: u64 = 56;
    const INTERPRETER: u32 = 3;
    if head.len() < HEADER || head[4] != 2 || half(head, 18) != MACHINE.0 || u64::from(half(head, 54)) != PHDR
    {
        return Carrying::OtherLoader;
    }
    let (at, count) = (word(head, 32), half(head, 56));
    for index in 0..u64::from(count) {
        let mut phdr = [0; PHDR as usize];
        let Some(place) = at.checked_add(index * PHDR) else { return Carrying::NotDynamic };
        if file.read_exact_at(&mut phdr, place).is_err() {
            return Carrying::NotDynamic;
        }
        if u32::from_ne_bytes([phdr[0], phdr[1], phdr[2], phdr[3]]) != INTERPRETER {
            continue;
        }
        let mut name = vec![0; word(&phdr, 32).min(4096) as usize];
        if file.read_exact_at(&mut name, word(&phdr, 8)).is_err() || name.pop() != Some(0) {
            return Carrying::OtherLoader;
        }
        let path = PathBuf::from(OsString::from_vec(name));
        let known = path.file_name().is_some_and(|name| name.as_bytes() == MACHINE.1);
        return if known { Carrying::Carried } else { Carrying::OtherLoader };
    }
    Carrying::NotDynamic
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]])
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
