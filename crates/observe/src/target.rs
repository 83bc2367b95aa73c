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
    let is_known = |loader: &str| Path::new(loader).file_name() == Some(MACHINE.1.as_ref());
    Ok(match elf.interpreter(&file) {
        _ if !elf.is_64 || elf.machine != MACHINE.0 => Carrying::OtherLoader,
        Ok(None) => Carrying::NotDynamic,
        Ok(Some(loader)) if is_known(&loader) => Carrying::Carried,
        _ => Carrying::OtherLoader,
    })
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
