//! A process that has given up system calls visits others as before. A process of its own: what is given up is so for good.
#![cfg(target_arch = "x86_64")]

use std::io::{ErrorKind, Read};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use prepage_sys::arm::{Visit, VisitError};
use prepage_sys::call_filter::{When, inherited_filters, refuse};
use prepage_testing::{Need, unless_refused};

/// Longer than a process needs to stop anywhere.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn a_process_that_filters_its_own_calls_still_visits_others() {
    let mut child =
        Command::new("sh").args(["-c", "echo; while :; do :; done"]).stdout(Stdio::piped()).spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    let before = inherited_filters();
    // What the visited process is made to call is its own affair, and so it is allowed userfaultfd(2).
    let refused = [libc::SYS_execve, libc::SYS_userfaultfd].map(|call| (call, When::Always));
    let filter = refuse(&refused);
    let denied = |error: &std::io::Error| error.kind() == ErrorKind::PermissionDenied;
    if unless_refused(filter, Need::Path("/proc/sys/kernel/seccomp".into()), denied).is_some() {
        assert_eq!(inherited_filters(), before);
        assert_eq!(Command::new("true").status().unwrap_err().kind(), ErrorKind::PermissionDenied);
        let mut visit = Visit::begin(child.id()).unwrap();
        let until = Instant::now() + PATIENCE;
        let ended = loop {
            if let Some(ended) = visit.end(|_| ()) {
                break ended;
            }
            assert!(Instant::now() < until, "it never stops");
            std::thread::sleep(Duration::from_millis(1));
        };
        // Kernels before 6.7 have no first touches to agree on.
        assert!(
            matches!(ended, Ok(()) | Err(VisitError::Kernel(_) | VisitError::NoUserfaultfd(_))),
            "{ended:?}"
        );
    }
    child.kill().unwrap();
    child.wait().unwrap();
}
