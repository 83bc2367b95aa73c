//! Which programs an agent goes into.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use prepage_profiles::elf::{Elf, ElfError};
use prepage_profiles::script::{HEAD_BYTES, Kind, interpreters};
use prepage_sys::agent::Carrying;
use prepage_sys::regular_file::open_regular;
use rustix::fs::{Access, CWD, OFlags, StatVfsMountFlags, access, fgetxattr, fstatvfs};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid, getgid, getuid};

/// As deep as the kernel goes (BINPRM_BUF_SIZE's loop in fs/exec.c).
const SCRIPTS_DEEP: u32 = 4;

/// `e_machine`, and the loader of glibc.
#[cfg(target_arch = "x86_64")]
const MACHINE: (u16, &str) = (62, "ld-linux-x86-64.so.2");
#[cfg(target_arch = "aarch64")]
const MACHINE: (u16, &str) = (183, "ld-linux-aarch64.so.1");

/// A version that ld.so defines since glibc 2.35. Older ones give the agent nothing to do, and with any auditing library they resolve each call of
/// a library's function anew.
const VERSION: &str = "GLIBC_2.35";

/// Whether `program` (a path), executed by a process with the rights of this one, will load the agent `library` without a word.
pub(crate) fn would_load(program: &Path, library: &Path) -> Carrying {
    match look_at(program, 0) {
        Ok(Carrying::Carried) if has_rights() => Carrying::Rights,
        Ok(Carrying::Carried) if !is_loadable(library) => Carrying::LibraryOutOfReach,
        Ok(found) => found,
        Err(_) => Carrying::NotFound,
    }
}

/// Whether the kernel executes programs of this process in secure mode (AT_SECURE), in which ld.so ignores LD_AUDIT.
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
    let (file, metadata) = open_regular(CWD, program, OFlags::RDONLY)?;
    // ENODATA: none. Others (not supported) mean that there can be none.
    let capable =
        matches!(fgetxattr(&file, c"security.capability", &mut [0u8; 64][..]), Ok(_) | Err(Errno::RANGE));
    if metadata.mode() & 0o6000 != 0 || capable {
        return Ok(Carrying::Rights);
    }
    if let Some(interpreter) = interpreters(&file).first() {
        return if depth < SCRIPTS_DEEP { look_at(interpreter, depth + 1) } else { Ok(Carrying::NotDynamic) };
    }
    let elf = match Elf::parse(&file) {
        Ok(elf) => elf,
        Err(ElfError::Io(error)) => return Err(error),
        // Text that the kernel does not execute, the shell does (execvp(3)).
        Err(ElfError::Foreign) if depth == 0 && is_script(&file)? => return look_at(Path::new("/bin/sh"), 1),
        Err(_) => return Ok(Carrying::NotDynamic),
    };
    Ok(match elf.interpreter(&file) {
        _ if !elf.is_64 || elf.machine != MACHINE.0 => Carrying::OtherLoader,
        Ok(None) => Carrying::NotDynamic,
        Ok(Some(loader)) if audits(Path::new(&loader)) => Carrying::Carried,
        _ => Carrying::OtherLoader,
    })
}

/// Whether `loader` is an ld.so under which the agent works.
fn audits(loader: &Path) -> bool {
    let has_version = || {
        let (file, _) = open_regular(CWD, loader, OFlags::RDONLY).ok()?;
        let elf = Elf::parse(&file).ok()?;
        elf.has_name(&elf.dynamic(&file).ok()?, VERSION, &file).ok()
    };
    loader.file_name() == Some(MACHINE.1.as_ref()) && has_version() == Some(true)
}

fn is_script(file: &File) -> io::Result<bool> {
    let mut head = [0; HEAD_BYTES];
    let got = file.read_at(&mut head, 0)?;
    Ok(matches!(Kind::of(&head[..got]), Kind::Script(_)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Has a 64-bit program loaded by `loader`.
    fn set_interpreter(program: &mut Vec<u8>, loader: &Path) {
        const INTERPRETER: [u8; 4] = 3u32.to_ne_bytes();
        let headers = u64::from_ne_bytes(program[32..40].try_into().unwrap()) as usize;
        let header = (headers..).step_by(56).find(|&at| program[at..at + 4] == INTERPRETER).unwrap();
        let at = program.len() as u64;
        program.extend_from_slice(loader.as_os_str().as_encoded_bytes());
        program.push(0);
        program[header + 8..header + 16].copy_from_slice(&at.to_ne_bytes());
        let len = program.len() as u64 - at;
        program[header + 32..header + 40].copy_from_slice(&len.to_ne_bytes());
    }

    #[test]
    fn programs_that_do_not_take_it_get_none() {
        let dir = tempfile::tempdir().unwrap();
        let library = std::env::current_exe().unwrap();
        let dynamic = std::fs::read("/bin/true").unwrap();
        let look = |name: &str, change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = dynamic.clone();
            change(&mut bytes);
            let path = dir.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            would_load(&path, &library)
        };
        let interpreter = b"/lib64/ld-linux-x86-64.so.2";
        let musl = |bytes: &mut Vec<u8>| {
            let at = bytes.windows(interpreter.len()).position(|part| part == interpreter);
            if let Some(at) = at {
                bytes[at..at + interpreter.len()].copy_from_slice(b"/lib/ld-musl-x86_64.so.1\0\0\0");
            }
        };
        assert_eq!(look("dynamic", &|_| ()), Carrying::Carried);
        // As before glibc 2.35.
        let old = dir.path().join("ld-linux-x86-64.so.2");
        let mut loader = std::fs::read("/lib64/ld-linux-x86-64.so.2").unwrap();
        let at = loader.windows(VERSION.len()).position(|part| part == VERSION.as_bytes()).unwrap();
        loader[at + VERSION.len() - 1] = b'4';
        std::fs::write(&old, loader).unwrap();
        let with_old = |bytes: &mut Vec<u8>| set_interpreter(bytes, &old);
        assert_eq!(look("old", &with_old), Carrying::OtherLoader);
        std::fs::copy("/lib64/ld-linux-x86-64.so.2", &old).unwrap();
        assert_eq!(look("new", &with_old), Carrying::Carried);
        assert_eq!(look("musl", &musl), Carrying::OtherLoader);
        assert_eq!(look("32 bit", &|bytes| bytes[4] = 1), Carrying::OtherLoader);
        assert_eq!(look("short", &|bytes| bytes.truncate(70)), Carrying::NotDynamic);
        assert_eq!(look("text", &|bytes| *bytes = b"#!/bin/sh\n".to_vec()), Carrying::Carried);
        let (itself, program) = (dir.path().join("loop"), dir.path().join("dynamic"));
        let runs_itself = format!("#!{}\n", itself.display());
        assert_eq!(look("loop", &|bytes| *bytes = runs_itself.clone().into()), Carrying::NotDynamic);
        assert_eq!(would_load(Path::new("/nowhere"), &library), Carrying::NotFound);
        assert_eq!(would_load(&program, Path::new("/nowhere")), Carrying::LibraryOutOfReach);
        assert_eq!(would_load(dir.path(), &library), Carrying::NotFound);
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755)).unwrap();
        assert_eq!(would_load(&program, &library), Carrying::Rights);
    }
}
