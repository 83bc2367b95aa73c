//! What the scripts of the Debian package have systemd do.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use prepage_testing::{Need, has};

/// Runs a script of the package as dpkg(1) would on a machine with systemd, and returns what it has called.
fn called_by(script: &str, args: &[&str]) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    for name in ["systemctl", "deb-systemd-invoke", "deb-systemd-helper", "prepage"] {
        let path = directory.path().join(name);
        fs::write(&path, "#!/bin/sh\necho \"${0##*/} $*\" >>\"$LOG\"\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../packaging/deb").join(script);
    let path = format!("{}:/usr/bin:/bin", directory.path().display());
    let status = Command::new("unshare")
        .args(["--mount", "sh", "-c"])
        .arg("mount -t tmpfs none /run && mkdir -p /run/systemd/system && exec sh \"$@\"")
        .args(["sh".as_ref(), script.as_os_str()])
        .args(args)
        .envs([("PATH", Path::new(&path)), ("LOG", &log)])
        .status();
    assert!(status.unwrap().success());
    fs::read_to_string(log).unwrap_or_default().lines().map(str::to_owned).collect()
}

#[test]
fn the_service_is_started_again_where_a_removal_that_has_stopped_it_is_given_up() {
    if !has(Need::Mounts) {
        return;
    }
    let starts = |args: &[&str]| -> Vec<String> {
        let mut called = called_by("postinst", args);
        called.retain(|line| line.starts_with("deb-systemd-invoke "));
        called
    };
    assert!(called_by("prerm", &["remove"])[0].starts_with("deb-systemd-invoke stop prepage.service"));
    let [start, restart] =
        ["start", "restart"].map(|action| format!("deb-systemd-invoke {action} prepage.service"));
    assert_eq!(starts(&["abort-remove"]), [&*start]);
    assert_eq!(starts(&["abort-remove", "in-favour", "other", "1"]), [&*start]);
    assert_eq!((starts(&["configure", ""]), starts(&["configure", "0.1"])), (vec![start], vec![restart]));
    // It was not stopped.
    assert_eq!((called_by("prerm", &["upgrade", "2"]), starts(&["abort-upgrade", "2"])), (vec![], vec![]));
}
