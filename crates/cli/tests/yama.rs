//! Programs under each setting of Yama, which is the whole machine's.

mod support;

use std::fs;

use prepage_testing::{Need, has};
use support::place::{LOOK, Place};

#[test]
fn under_each_setting_of_yama() {
    const SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";
    if !has(Need::Root) || !has(Need::Path(SCOPE.into())) {
        return;
    }
    /// Puts back what was there, unless it was 3, which stays.
    struct Restored(String);
    impl Drop for Restored {
        fn drop(&mut self) {
            let _ = fs::write(SCOPE, &self.0);
        }
    }
    let before = Restored(fs::read_to_string(SCOPE).unwrap());
    // Once it is 3 it stays so until the machine is started again: only where it is already.
    let scopes = if before.0.trim() == "3" { 3..=3 } else { 0..=2 };
    for scope in scopes {
        fs::write(SCOPE, scope.to_string()).unwrap();
        Place::new().same(&["/usr/bin/python3", "-c", LOOK]);
        Place::new().same(&["sh", "-c", "/bin/true; ls /; exit 3"]);
    }
}
