//! Why no userfaultfd can be had, on kernels that lack it or forbid it: a filter of system calls stands in for them.

use std::process::Command;

use prepage_sys::userfaultfd::{Delivery, OpenError, Userfaultfd};

const CHILD: &str = "PREPAGE_TEST_CHILD";
const UFFDIO_API: u32 = 0xc018_aa3f;

/// Lets `syscall`, where its second argument is `argument` if one is given, fail with `errno` in this process.
fn forbid(syscall: libc::c_long, argument: Option<u32>, errno: i32) {
    let step = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let done = libc::BPF_RET | libc::BPF_K;
    let error = step(done, libc::SECCOMP_RET_ERRNO | errno as u32, 0, 0);
    let allow = step(done, libc::SECCOMP_RET_ALLOW, 0, 0);
    // The number stands at offset 0 of seccomp_data, the low half of the second argument at 24.
    let mut program = match argument {
        None => vec![step(load, 0, 0, 0), step(equal, syscall as u32, 0, 1), error, allow],
        Some(argument) => vec![
            step(load, 0, 0, 0),
            step(equal, syscall as u32, 0, 3),
            step(load, 24, 0, 0),
            step(equal, argument, 0, 1),
            error,
            allow,
        ],
    };
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the program lives through the call, which copies it.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let done = libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program);
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }
}

#[test]
fn what_is_missing_is_named() {
    for (name, expected) in [
        ("no userfaultfd", "this kernel has no userfaultfd (CONFIG_USERFAULTFD)"),
        ("old", "this kernel's userfaultfd lacks minor faults of memfds, or poison; Linux 6.6 has it"),
        (
            "sandbox",
            "run with CAP_SYS_PTRACE, set the sysctl vm.unprivileged_userfaultfd to 1, or give this user",
        ),
        ("no descriptors", "cannot open a userfaultfd: Too many open files"),
    ] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture", "--test-threads=1"])
            .env(CHILD, name)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains(expected), "{name}: {said}");
    }
}

#[test]
fn child() {
    let Ok(name) = std::env::var(CHILD) else { return };
    match name.as_str() {
        "no userfaultfd" => forbid(libc::SYS_userfaultfd, None, libc::ENOSYS),
        "old" => forbid(libc::SYS_ioctl, Some(UFFDIO_API), libc::EINVAL),
        // As container runtimes do; and they hide the device.
        "sandbox" => forbid(libc::SYS_userfaultfd, None, libc::EPERM),
        _ => {
            let limit = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
            rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
        }
    }
    for delivery in [Delivery::Signal, Delivery::MessageUserOnly] {
        match Userfaultfd::open(delivery).unwrap_err() {
            OpenError::Other(error) => eprintln!("cannot open a userfaultfd: {error}"),
            error => eprintln!("{error}"),
        }
    }
}
