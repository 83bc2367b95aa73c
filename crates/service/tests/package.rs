//! What the scripts of the Debian package do, and have systemd and others do.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use prepage_testing::{Need, has};

/// What such a script has called, and what there is in /run then.
struct Done {
    called: Vec<String>,
    run: Vec<String>,
}

/// Runs a script of the package as dpkg(1) would on a machine with systemd, on which the shell has done what is in `before`. /run and what the script may remove are
/// empty directories of its own; `$PLACE` is one that lasts.
fn run(script: &str, args: &[&str], before: &str, place: &Path) -> Done {
    let log = place.join("log");
    let names = [
        "systemctl",
        "deb-systemd-invoke",
        "deb-systemd-helper",
        "prepage",
        "update-initramfs",
        "dpkg-trigger",
    ];
    for name in names {
        let path = place.join(name);
        fs::write(&path, "#!/bin/sh\necho \"${0##*/} $*\" >>\"$PLACE/log\"\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    // Where it lies may be hidden.
    let packaging = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../packaging/deb");
    fs::copy(packaging.join(script), place.join(script)).unwrap();
    let around = r#"
set -e
for one in /run /var/lib /var/cache /usr/local; do mount -t tmpfs none $one; done
mkdir -p /run/systemd/system
eval "$BEFORE"
sh "$PLACE/$SCRIPT" "$@"
ls /run >"$PLACE/run"
"#;
    let path = format!("{}:/usr/bin:/bin", place.display());
    let status = Command::new("unshare")
        .args(["--mount", "sh", "-c", around, "sh"])
        .args(args)
        .envs([("PATH", &*path), ("SCRIPT", script), ("BEFORE", before)])
        .env("PLACE", place)
        .status();
    assert!(status.unwrap().success());
    let lines = |path: &Path| -> Vec<String> {
        fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
    };
    Done { called: lines(&log), run: lines(&place.join("run")) }
}

/// What such a script calls.
fn called_by(script: &str, args: &[&str]) -> Vec<String> {
    run(script, args, "", tempfile::tempdir().unwrap().path()).called
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

#[test]
fn each_kernel_s_initramfs_gets_what_is_installed_and_loses_what_is_removed() {
    if !has(Need::Mounts) {
        return;
    }
    let made = |script: &str, args: &[&str]| -> Vec<String> {
        let mut called = called_by(script, args);
        called.retain(|line| line.contains("initramfs"));
        called
    };
    assert_eq!(made("postinst", &["configure", ""]), ["update-initramfs -u -k all"]);
    assert_eq!(made("postrm", &["remove"]), ["update-initramfs -u -k all"]);
    assert_eq!(made("postrm", &["purge"]), [""; 0], "it was removed before");
    assert_eq!(made("postrm", &["upgrade", "2"]), [""; 0], "the new version does it");
}

/// A boot that an initramfs follows is in no unit.
#[test]
fn a_boot_is_followed_no_longer_once_its_package_is_removed_and_nobody_else_is_ended() {
    if !has(Need::Mounts) {
        return;
    }
    // It may be another process's number by now, the service's own say.
    for (name, args, is_ended) in
        [("prepaged", "boot --root .", true), ("prepaged", "", false), ("other", "boot --root .", false)]
    {
        let place = tempfile::tempdir().unwrap();
        let before = format!(
            "cp -L /bin/sh \"$PLACE/{name}\"; mkfifo \"$PLACE/never\"
            \"$PLACE/{name}\" -c 'read -r line <\"$0\"' \"$PLACE/never\" {args} &
            until case $(readlink /proc/$!/exe) in */{name}) ;; *) false ;; esac; do sleep 0.01; done
            echo $! | tee /run/prepage-boot >\"$PLACE/process\""
        );
        run("prerm", &["remove"], &before, place.path());
        let process = fs::read_to_string(place.path().join("process")).unwrap();
        let process = process.trim();
        let runs = || fs::read_link(format!("/proc/{process}/exe")).is_ok();
        // A signal takes a moment.
        let until = Instant::now() + Duration::from_secs(60);
        while is_ended && runs() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        let runs = runs();
        if runs {
            assert!(Command::new("kill").arg(process).status().unwrap().success());
        }
        assert_eq!(runs, !is_ended, "{name} {args}");
    }
}

#[test]
fn a_purge_leaves_nothing_that_says_who_follows_the_boot() {
    if !has(Need::Mounts) {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let before = "mkdir /run/prepage /var/lib/prepage; touch /run/prepage/service; echo 1 >/run/prepage-boot";
    let left = run("postrm", &["purge"], before, place.path()).run;
    assert!(left.iter().all(|name| !name.starts_with("prepage")), "{left:?}");
}
