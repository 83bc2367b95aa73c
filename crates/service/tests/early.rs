//! A boot from its initramfs on, on the real kernel: a directory takes the part of the root file system, and becomes the root of
//! `prepaged` before /proc is there.

mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use prepage_core::profile::{Profile, file as profile_file};
use prepage_profiles::key::is_of_subject;
use prepage_service::period::PeriodReport;
use prepage_service::subject::Subject;
use prepage_testing::{Need, has};

use support::Mounted;

/// Longer than anything takes here, on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// Of a root file system.
const WANTED: &str = "etc/systemd/system/sysinit.target.wants/prepage-boot.service";
const LAYER: &str = "var/lib/prepage";

/// A root file system with a program that is used, and with the unit; `None`, and a skip, where this machine does not allow the tests.
fn root() -> Option<tempfile::TempDir> {
    let on_disk = PathBuf::from("/var/tmp");
    if !has(Need::Root) || !has(Need::Mounts) || !has(Need::Eviction(on_disk.clone())) {
        return None;
    }
    let root = tempfile::tempdir_in(on_disk).unwrap();
    fill(root.path());
    Some(root)
}

fn fill(root: &Path) {
    fs::set_permissions(root, fs::Permissions::from_mode(0o755)).unwrap();
    for directory in [WANTED.rsplit_once('/').unwrap().0, LAYER, "proc", "sys", "dev"] {
        fs::create_dir_all(root.join(directory)).unwrap();
    }
    symlink("/usr/lib/systemd/system/prepage-boot.service", root.join(WANTED)).unwrap();
    fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n").unwrap();
    fs::write(root.join("needed"), [1; 8192]).unwrap();
}

/// Follows a boot of `root` for some seconds, in a mount namespace of its own: with this command line of the kernel, where one is
/// given. /proc comes to the root later, and somebody uses a file of it then. What is `moved` is there before.
fn boot(root: &Path, command_line: Option<&str>, moved: &str) -> Option<PeriodReport> {
    boot_that_uses(&["needed"], root, command_line, moved)
}

/// The same where somebody uses the files `used`.
fn boot_that_uses(
    used: &[&str],
    root: &Path,
    command_line: Option<&str>,
    moved: &str,
) -> Option<PeriodReport> {
    let words = root.join("command-line");
    let script = r#"
set -e
mount --bind "$ROOT" "$ROOT"
[ ! -e "$WORDS" ] || mount --bind "$WORDS" /proc/cmdline
(
    for one in $MOVED; do mount --move "$one" "$ROOT$one"; done
    exec "$PREPAGED" boot --root "$ROOT" --quiet 1000 --at-most 5
) &
sleep 0.2
mount -t proc proc "$ROOT/proc"
while kill -0 $! 2>&-; do
    for one in $USED; do exec 3<"$ROOT/$one"; read -r line <&3 || true; done
    sleep 0.1
done
wait $!
"#;
    if let Some(command_line) = command_line {
        fs::write(&words, command_line).unwrap();
    }
    let status = Command::new("unshare")
        .args(["--mount", "sh", "-c", script])
        .envs([("ROOT", root), ("WORDS", &words), ("PREPAGED", Path::new(env!("CARGO_BIN_EXE_prepaged")))])
        .envs([("MOVED", moved), ("USED", &used.join(" "))])
        .env("PREPAGE_LAYERS", Path::new("/").join(LAYER))
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
    let _ = fs::remove_file(words);
    PeriodReport::of_last_boot(&Subject::Boot.stores(Some(vec![root.join(LAYER)])).unwrap())
}

/// Has the next boot learned, as one of which nothing is known.
fn forget(root: &Path) {
    let _ = fs::remove_file(root.join(LAYER).join(Subject::Boot.key().file_name()));
}

/// Whether the file that somebody used is in the profile of the boot.
fn knows_the_file(root: &Path) -> bool {
    let path = root.join(LAYER).join(Subject::Boot.key().file_name());
    let Ok(bytes) = fs::read(path) else { return false };
    let profile = profile_file::decode(&bytes).unwrap();
    is_of_subject(&profile.program, &profile.role) && profile.files.iter().any(|file| file.path == "/needed")
}

#[test]
fn a_boot_is_followed_from_the_initramfs_on() {
    let Some(root) = root() else { return };
    let until = Instant::now() + PATIENCE;
    // Where memory is short the kernel takes back its notes of what was used: tried again.
    while !knows_the_file(root.path()) {
        assert!(Instant::now() < until, "not learned");
        forget(root.path());
        let report = boot(root.path(), None, "").expect("a report");
        assert!(!report.is_quiet && report.began_s > 0.0, "{report:?}");
    }
}

#[test]
fn a_boot_is_left_alone_in_the_initramfs_where_somebody_wants_none() {
    let Some(root) = root() else { return };
    let root = root.path();
    assert_eq!(boot(root, Some("root=/dev/vda prepage=off quiet\n"), ""), None);
    let mask = root.join("etc/systemd/system/prepage-boot.service");
    symlink("/dev/null", &mask).unwrap();
    assert_eq!(boot(root, None, ""), None);
    fs::remove_file(mask).unwrap();
    fs::write(root.join("etc/prepage.conf"), "enabled = no\n").unwrap();
    assert_eq!(boot(root, None, ""), None);
    fs::remove_file(root.join("etc/prepage.conf")).unwrap();
    fs::remove_file(root.join(WANTED)).unwrap();
    assert_eq!(boot(root, Some("root=/dev/vda quiet\n"), ""), None);
}

/// Such a root file system on a device of its own, and the directory that it is mounted in.
fn ext4() -> Option<(tempfile::TempDir, PathBuf)> {
    if !has(Need::Root) || !has(Need::Mounts) || !has(Need::LoopDevice) {
        return None;
    }
    let place = tempfile::tempdir_in("/var/tmp").unwrap();
    let [image, root] = ["image", "root"].map(|name| place.path().join(name));
    fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
    fs::create_dir(&root).unwrap();
    assert!(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image).status().unwrap().success());
    assert!(Command::new("mount").args(["-o", "loop"]).args([&image, &root]).status().unwrap().success());
    fill(&root);
    Some((place, root))
}

/// /sys and /dev: what is asked first waits for a disk, and the initramfs for nobody.
#[test]
fn the_root_s_device_is_found_wherever_what_says_so_has_moved() {
    let Some((_place, root)) = ext4() else { return };
    let _mounted = Mounted(&root);
    let until = Instant::now() + PATIENCE;
    for moved in ["", "/dev", "/sys /dev"] {
        // Where opens were lost no blocks are known: tried again.
        loop {
            forget(&root);
            let report = boot(&root, None, moved).expect("a report");
            if report.seen_blocks > 0 {
                break;
            }
            assert!(Instant::now() < until, "with {moved:?} moved: {report:?}");
        }
    }
}

/// As on a machine that is never idle.
#[test]
fn what_leads_to_new_files_is_known_also_after_boots_that_end_because_their_time_is_up() {
    let Some((_place, root)) = ext4() else { return };
    let _mounted = Mounted(&root);
    // A directory of several pages.
    let new = root.join("new");
    fs::create_dir(&new).unwrap();
    (0..400).for_each(|number| fs::write(new.join(format!("{number:0>100}")), "").unwrap());
    fs::write(new.join("file"), [1; 8192]).unwrap();
    let known_pages = || -> u64 {
        let blocks = fs::read(root.join(LAYER).join("boot.blocks")).expect("blocks");
        let blocks: serde_json::Value = serde_json::from_slice(&blocks).unwrap();
        let pages = |range: &serde_json::Value| range[1].as_u64().unwrap() - range[0].as_u64().unwrap();
        blocks["ranges"].as_array().unwrap().iter().map(pages).sum()
    };
    assert!(!boot(&root, None, "").expect("a report").is_quiet);
    let before = known_pages();
    let until = Instant::now() + PATIENCE;
    // Where opens were lost the blocks stay as they were: tried again.
    while known_pages() < before + 8 {
        assert!(Instant::now() < until, "{before} pages, and {} now", known_pages());
        forget(&root);
        assert!(!boot_that_uses(&["new/file"], &root, None, "").expect("a report").is_quiet);
    }
}

/// As on a machine that was copied to another disk: the profile and the report come along.
#[test]
fn a_boot_that_is_known_is_learned_where_it_is_not_known_what_it_needs_of_the_device() {
    let Some((_place, root)) = ext4() else { return };
    let _mounted = Mounted(&root);
    boot(&root, None, "").expect("a report");
    let until = Instant::now() + PATIENCE;
    // Where opens were lost no blocks are known: tried again.
    while !is_learned_without_blocks(&root) {
        assert!(Instant::now() < until, "its blocks are not learned");
    }
}

/// Whether the next boot of `root` learns its blocks, as one of which all else is known. It is observed in any case.
fn is_learned_without_blocks(root: &Path) -> bool {
    let stores = Subject::Boot.stores(Some(vec![root.join(LAYER)])).unwrap();
    let well_known = |profile: Option<Profile>| {
        let mut profile = profile?;
        (profile.history.observations, profile.history.due) = (8, 0);
        Some(profile)
    };
    stores.update(&Subject::Boot.key(), Subject::Boot.layer(), well_known).unwrap();
    let _ = fs::remove_file(root.join(LAYER).join("boot.blocks"));
    let report = boot(root, None, "").expect("a report");
    assert!(report.is_observed, "{report:?}");
    report.seen_blocks > 0
}
