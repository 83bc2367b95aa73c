//! Why no userfaultfd can be had, on kernels that lack it or forbid it: a filter of system calls stands in for them. And
//! what one reports.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use prepage_sys::call_filter::{When, fail};
use prepage_sys::forked::Forked;
use prepage_sys::region::{Contents, Region};
use prepage_sys::sigbus::{self, BusFault, Verdict};
use prepage_sys::userfaultfd::{Delivery, Event, OpenError, Progress, Served, Userfaultfd};
use prepage_testing::{Doctor, Need, child_command, child_output, is_child};
use rustix::event::{PollFd, PollFlags, poll};

/// Tells [`child`] what it is to lack.
const LACKS: &str = "PREPAGE_TEST_LACKS";
const UFFDIO_API: u32 = 0xc018_aa3f;

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
        let output = child_output(child_command("child", &[]).env(LACKS, name));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains(expected), "{name}: {said}");
    }
}

#[test]
fn child() {
    let Ok(lacks) = std::env::var(LACKS) else { return };
    match lacks.as_str() {
        "no userfaultfd" => fail(libc::ENOSYS, &[(libc::SYS_userfaultfd, When::Always)]).unwrap(),
        "old" => fail(libc::EINVAL, &[(libc::SYS_ioctl, When::Is(1, UFFDIO_API))]).unwrap(),
        // As container runtimes do; and they hide the device.
        "sandbox" => {
            fail(libc::EPERM, &[(libc::SYS_userfaultfd, When::Always), (libc::SYS_openat, When::Always)])
                .unwrap()
        }
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

#[test]
fn broken_memory_is_not_taken_for_a_page_that_is_missing() {
    let output = child_command(TOUCHES_BROKEN_MEMORY, &[]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    // A kernel without CONFIG_MEMORY_FAILURE reports poison as it reports a missing page.
    if !std::path::Path::new("/proc/sys/vm/memory_failure_recovery").exists() {
        return assert!(said.contains("asked again") && output.status.success(), "{said}");
    }
    let signal = std::os::unix::process::ExitStatusExt::signal(&output.status);
    assert_eq!(signal, Some(libc::SIGBUS), "{said}");
    assert!(said.contains("resolved the missing page") && !said.contains("came back"), "{said}");
}

const TOUCHES_BROKEN_MEMORY: &str = "child_touches_broken_memory";

#[test]
fn child_touches_broken_memory() {
    static RESOLVED: AtomicU32 = AtomicU32::new(0);
    static REGION: OnceLock<(Userfaultfd, Region)> = OnceLock::new();
    fn resolve(fault: &BusFault) -> Verdict {
        // Forever, if it were asked: what is broken stays so.
        if RESOLVED.fetch_add(1, Ordering::SeqCst) > 0 {
            eprintln!("asked again");
            std::process::exit(0);
        }
        let (uffd, region) = REGION.get().unwrap();
        let _ = uffd.map_zero(region.span(), fault.address - region.start(), 4096);
        Verdict::Resolved
    }
    if is_child(TOUCHES_BROKEN_MEMORY) {
        let (uffd, region) = REGION.get_or_init(|| {
            let uffd = Userfaultfd::open(Delivery::Signal).unwrap();
            (uffd, Region::map(4 * 4096, Contents::Anonymous).unwrap())
        });
        uffd.register(region.span(), Served::Missing).unwrap();
        sigbus::install(resolve).unwrap();
        assert_eq!(region.as_slice()[0], 0);
        assert_eq!(RESOLVED.load(Ordering::SeqCst), 1);
        eprintln!("resolved the missing page");
        // The kernel reports poison as it reports a memory error.
        assert_eq!(uffd.poison(region.span(), 4096, 4096).unwrap(), Progress::Done);
        eprintln!("came back {}", std::hint::black_box(region.as_slice())[4096]);
    }
}

#[test]
fn a_call_that_maps_says_how_far_it_came_and_none_waits_for_who_forks() {
    let refused = |error: &OpenError| matches!(error, OpenError::NotPermitted | OpenError::Missing);
    let need = Need::Doctor(Doctor::ServedFaultsInSystemCalls);
    let opened = Userfaultfd::open_with_forks(Delivery::Message);
    let Some(uffd) = prepage_testing::unless_refused(opened, need, refused) else { return };
    let mut region = Region::map(8 * 4096, Contents::Anonymous).unwrap();
    region.let_inherit().unwrap();
    let span = std::sync::Arc::clone(region.span());
    uffd.register(&span, Served::Missing).unwrap();
    assert_eq!(uffd.map_zero(&span, 0, 8 * 4096).unwrap(), Progress::Done);
    assert_eq!(uffd.map_zero(&span, 4096, 4096).unwrap(), Progress::Mapped);
    region.discard(4096, 2 * 4096).unwrap();
    assert_eq!(uffd.map_zero(&span, 0, 8 * 4096).unwrap(), Progress::Mapped);
    assert_eq!(uffd.map_zero(&span, 4096, 7 * 4096).unwrap(), Progress::Part(8192));
    assert!(region.as_slice().iter().all(|&byte| byte == 0));
    // Who forks waits until the event is read, with the allocator's locks. Until then nothing is protected, and who asks for it does not wait.
    let mut events = Vec::with_capacity(16);
    let fork = std::thread::spawn(|| Forked::new(|| 0).unwrap().wait().unwrap().exit_status());
    let is_told = poll(&mut [PollFd::new(&uffd, PollFlags::IN)], None);
    let protected = uffd.protect(&span, 0, 4096);
    uffd.sleep_in_reads().unwrap();
    match uffd.read_one(&mut events) {
        Ok(()) => {
            let none = uffd.read_one(&mut Vec::new()).unwrap_err();
            assert_eq!(none.kind(), std::io::ErrorKind::WouldBlock, "it does not sleep");
        }
        // The kernel's reads sleep always.
        Err(_) => uffd.read(&mut events).unwrap(),
    }
    assert!(is_told == Ok(1) && matches!(events[..], [Event::Forked(_)]), "{events:?}");
    assert_eq!(fork.join().unwrap(), Some(0));
    assert_eq!(protected.unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}
