//! What the service gives up before it begins: whoever takes it over by a bug can do less than root.
//!
//! - **Capabilities**: all but those that `KEPT` gives reasons for.
//! - **System calls**: it never makes those of `REFUSED`, which fail with EPERM from then on. CAP_SYS_ADMIN, which fanotify asks for,
//!   is good for little without them. What it makes other programs call (visits) is not concerned.
//! - **Writing**, of the threads that read what profiles name ([`prepage_sys::landlock`]). Not of the whole process: Landlock forbids to
//!   look at processes outside it, and a mount namespace of its own would show the service other files than programs have.

use std::io;

use prepage_sys::bpf::RUN_AT_TRACEPOINT;
use prepage_sys::call_filter::{When, refuse};
use prepage_sys::landlock;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};
use serde::Serialize;

/// Capabilities that it keeps, where it has them.
const KEPT: CapabilitySet = CapabilitySet::SYS_ADMIN // fanotify(7), frames of pages
    .union(CapabilitySet::SYS_PTRACE) // what other users' processes are, visits
    .union(CapabilitySet::PERFMON) // perf events of other users' processes
    .union(CapabilitySet::IPC_LOCK) // rings of perf beyond what a user may have
    .union(CapabilitySet::SETUID) // threads that open files as a user
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::DAC_OVERRIDE) // the machine's profiles, whoever owns them
    .union(CapabilitySet::DAC_READ_SEARCH);

/// What it never calls. A list of all that it does call would refuse more, and break with the next libc.
const REFUSED: &[&[i64]] = &[
    // Programs: it runs none.
    &[libc::SYS_execve, libc::SYS_execveat],
    // Mounts and namespaces.
    &[
        libc::SYS_mount,
        libc::SYS_umount2,
        libc::SYS_pivot_root,
        libc::SYS_chroot,
        libc::SYS_setns,
        libc::SYS_unshare,
    ],
    &[libc::SYS_open_tree, libc::SYS_move_mount, libc::SYS_mount_setattr],
    &[libc::SYS_fsopen, libc::SYS_fsconfig, libc::SYS_fsmount, libc::SYS_fspick],
    // The kernel, the machine and its clocks.
    &[libc::SYS_init_module, libc::SYS_finit_module, libc::SYS_delete_module],
    &[libc::SYS_kexec_load, libc::SYS_kexec_file_load, libc::SYS_reboot, libc::SYS_syslog, libc::SYS_acct],
    &[libc::SYS_swapon, libc::SYS_swapoff, libc::SYS_quotactl, libc::SYS_quotactl_fd],
    &[libc::SYS_sethostname, libc::SYS_setdomainname, libc::SYS_vhangup, libc::SYS_personality],
    &[libc::SYS_settimeofday, libc::SYS_clock_settime, libc::SYS_clock_adjtime, libc::SYS_adjtimex],
    // Users: setfsuid(2) and setgroups(2) do for threads.
    &[libc::SYS_setuid, libc::SYS_setreuid, libc::SYS_setresuid],
    &[libc::SYS_setgid, libc::SYS_setregid, libc::SYS_setresgid],
    // Other processes' memory, keys, devices, and calls that no filter sees.
    &[libc::SYS_process_vm_writev, libc::SYS_shmat, libc::SYS_mknodat],
    &[libc::SYS_add_key, libc::SYS_request_key, libc::SYS_keyctl],
    &[libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register],
];
/// What only x86-64 has.
#[cfg(target_arch = "x86_64")]
const REFUSED_HERE: &[i64] = &[libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_mknod, libc::SYS_modify_ldt];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_HERE: &[i64] = &[];
/// What makes a process look at other mounts, processes, users and so on than this one. CLONE_NEWTIME exists only for clone3(2) and unshare(2).
const NEW_NAMESPACES: i32 = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;
/// New code, of its own and for the kernel to run, new namespaces, and sockets other than the one that it answers at.
const REFUSED_WHERE: [(i64, When); 7] = [
    (libc::SYS_bpf, When::Not(0, RUN_AT_TRACEPOINT)),
    (libc::SYS_mmap, When::Bits(2, libc::PROT_EXEC as u32)),
    (libc::SYS_mprotect, When::Bits(2, libc::PROT_EXEC as u32)),
    (libc::SYS_pkey_mprotect, When::Bits(2, libc::PROT_EXEC as u32)),
    (libc::SYS_clone, When::Bits(0, NEW_NAMESPACES as u32)),
    // What it would create a filter cannot see. Threads are made by clone(2) then.
    (libc::SYS_clone3, When::AsMissing),
    (libc::SYS_socket, When::Not(0, libc::AF_UNIX as u32)),
];

/// What was given up; where something was not, why.
#[derive(Clone, Debug, Serialize)]
pub struct Confined {
    /// Why capabilities were not given up.
    pub capabilities: Option<String>,
    /// Why system calls are not filtered.
    pub system_calls: Option<String>,
    /// Why threads that read could write as well.
    pub readers: Option<String>,
}

impl Confined {
    /// Gives up what can be given up, for good. To be called while the process has one thread.
    pub fn begin() -> Self {
        let refused = REFUSED.iter().copied().flatten().chain(REFUSED_HERE).map(|call| (*call, When::Always));
        let refused: Vec<_> = refused.chain(REFUSED_WHERE).collect();
        let why = |result: io::Result<()>| result.err().map(|error| error.to_string());
        Self {
            capabilities: why(give_up_capabilities()),
            system_calls: why(refuse(&refused)),
            readers: why(landlock::version().map(drop)),
        }
    }
}

fn give_up_capabilities() -> io::Result<()> {
    set_no_new_privs(true)?;
    let had = capabilities(None)?;
    let kept = had.permitted & KEPT;
    // What no program may have that is executed from here. Only who may set capabilities may say so, and nothing is executed.
    if had.effective.contains(CapabilitySet::SETPCAP) {
        // Some that this list has are not known to older kernels.
        for one in CapabilitySet::all().difference(KEPT) {
            let _ = remove_capability_from_bounding_set(one);
        }
    }
    // Linux 4.3.
    let _ = clear_ambient_capability_set();
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    Ok(set_capabilities(None, sets)?)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use prepage_core::{PageIndex, PageRange};
    use prepage_sys::mapping::FileMapping;

    use super::*;

    /// A thread can do it for itself alone.
    #[test]
    fn what_was_given_up_is_refused_and_the_rest_works() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        let give_up_and_try = || {
            let confined = Confined::begin();
            assert_eq!(confined.capabilities, None);
            let has = capabilities(None).unwrap();
            assert!(KEPT.contains(has.permitted) && has.effective == has.permitted);
            // Root's files, as before.
            std::fs::write(&file, "text").unwrap();
            if confined.system_calls.is_some() {
                return prepage_testing::skip(prepage_testing::Need::Root, "no filters of system calls");
            }
            let denied =
                |result: io::Result<()>| result.unwrap_err().kind() == io::ErrorKind::PermissionDenied;
            assert!(denied(std::process::Command::new("/bin/true").status().map(drop)), "executes");
            assert!(
                denied(prepage_sys::bpf::Values::new(1).map(drop)),
                "makes what the kernel runs programs with"
            );
            assert!(denied(std::net::UdpSocket::bind("127.0.0.1:0").map(drop)), "has a network");
            let flags = rustix::mount::MountFlags::empty();
            let mounted = rustix::mount::mount("none", directory.path(), "tmpfs", flags, None);
            assert!(denied(mounted.map_err(Into::into)), "mounts");
            let pages = PageRange::new(PageIndex(0), PageIndex(1));
            let opened = std::fs::File::open(&file).unwrap();
            assert!(denied(FileMapping::executable(opened.as_fd(), pages).map(drop)), "maps code");
            assert!(FileMapping::new(opened.as_fd(), pages).is_ok());
            assert_eq!(std::thread::spawn(|| 1).join().unwrap(), 1);
            assert!(std::os::unix::net::UnixListener::bind(directory.path().join("socket")).is_ok());
        };
        std::thread::scope(|scope| scope.spawn(give_up_and_try).join().unwrap());
    }

    /// systemd and the service itself leave it the same.
    #[test]
    fn the_unit_bounds_it_to_what_it_keeps() {
        let unit = include_str!("../units/prepage.service");
        let line = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
        let bound = line.split(' ').map(|name| {
            CapabilitySet::from_name(name.strip_prefix("CAP_").unwrap()).unwrap_or_else(|| panic!("{name}"))
        });
        assert_eq!(bound.collect::<CapabilitySet>(), KEPT);
    }
}
