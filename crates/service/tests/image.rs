//! Images before their first boot: prepared where the profile of a boot was imported, else refused, and then they stay as they are.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use prepage_core::profile::{Extent, FileIdentity, Fingerprint, Profile, ProfiledFile};
use prepage_core::{PageIndex, PageRange};
use prepage_service::blocks::BlockDevice;
use prepage_service::subject::Subject;
use prepage_testing::{Need, has};

use support::Mounted;

const PREPAGED: &str = env!("CARGO_BIN_EXE_prepaged");

/// Has `prepaged` called with `args` for an image without /etc/passwd, made by mkfs.ext4 with `options`: it has `before` in place of the blocks and, where it `has_profile`, that
/// of a boot that needs /usr/lib/deep/needed. Returns the end of the command, and the blocks that are there then.
fn prepare(
    args: &[&str],
    options: &[&str],
    has_profile: bool,
    before: &str,
) -> (Output, String, Option<u64>) {
    // A loop device reads its image from a disk's file system.
    let place = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let [tree, image, point] = ["tree", "image", "mounted"].map(|name| place.path().join(name));
    let profiles = tree.join("var/lib/prepage");
    fs::create_dir_all(&profiles).unwrap();
    fs::create_dir(&point).unwrap();
    for name in ["var", "var/lib", "var/lib/prepage"] {
        fs::set_permissions(tree.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::create_dir_all(tree.join("usr/lib/deep")).unwrap();
    fs::write(tree.join("usr/lib/deep/needed"), "text").unwrap();
    fs::write(profiles.join("boot.blocks"), before).unwrap();
    let needed = ProfiledFile {
        path: "/usr/lib/deep/needed".into(),
        identity: FileIdentity::default(),
        fingerprint: Fingerprint::default(),
        learned_unix_s: 0,
        extents: vec![Extent::new(PageRange::new(PageIndex(0), PageIndex(1)), 0)],
    };
    let stores = Subject::Boot.stores(Some(vec![profiles])).unwrap();
    let key = Subject::Boot.key();
    let learned = Profile { files: vec![needed], ..key.empty_profile() };
    if has_profile {
        stores.update(&key, Subject::Boot.layer(), |_| Some(learned.clone())).unwrap();
    }
    fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
    let made = Command::new("mkfs.ext4")
        .args(["-q", "-b", "4096"])
        .args(options)
        .arg("-d")
        .args([&tree, &image])
        .status();
    assert!(made.unwrap().success());
    let mounted = Command::new("mount").args(["-o", "loop"]).args([&image, &point]).status();
    assert!(mounted.unwrap().success());
    let _mounted = Mounted(&point);
    let ended = Command::new(PREPAGED).args(args).arg(&point).env_remove("PREPAGE_LAYERS").output().unwrap();
    let directory = point.join("var/lib/prepage");
    let blocks = BlockDevice::of(&point).unwrap().unwrap().known(&directory);
    (ended, fs::read_to_string(directory.join("boot.blocks")).unwrap(), blocks.map(|blocks| blocks.pages()))
}

#[test]
fn an_image_whose_inodes_cannot_be_found_keeps_what_it_has() {
    if !has(Need::Root) || !has(Need::LoopDevice) {
        return;
    }
    let (ended, after, _) = prepare(&["image"], &["-O", "meta_bg,^resize_inode"], true, "as before");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success() && said.contains("meta_bg"), "{ended:?}");
    assert_eq!(after, "as before");
}

/// The kernel counts in blocks what is moved.
#[test]
fn an_image_whose_blocks_are_no_pages_is_not_arranged_and_keeps_what_it_has() {
    if !has(Need::Root) || !has(Need::LoopDevice) {
        return;
    }
    for bytes in ["1024", "2048"] {
        let (ended, after, _) = prepare(&["image", "--arrange"], &["-b", bytes], true, "as before");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(!ended.status.success() && said.contains(&format!("blocks of {bytes} bytes")), "{ended:?}");
        assert_eq!(after, "as before");
        let (ended, _, pages) = prepare(&["image"], &["-b", bytes], true, "");
        assert!(ended.status.success() && pages > Some(0), "it is prepared all the same: {ended:?}");
    }
}

/// The inodes and directories of another machine's profile lie elsewhere in each image.
#[test]
fn an_image_with_an_imported_profile_is_prepared_also_where_it_lists_no_users() {
    if !has(Need::Root) || !has(Need::LoopDevice) {
        return;
    }
    let (ended, _, pages) = prepare(&["image"], &[], true, "");
    // Directories /, usr, usr/lib and deep have a page each, and their inodes and the file's share some.
    assert!(
        ended.status.success() && pages.is_some_and(|pages| (5..40).contains(&pages)),
        "{ended:?}, {pages:?}"
    );
}

#[test]
fn an_image_without_a_profile_is_told_how_it_gets_one() {
    if !has(Need::Root) || !has(Need::LoopDevice) {
        return;
    }
    let (ended, _, pages) = prepare(&["image"], &[], false, "");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success() && said.contains("profile import") && pages.is_none(), "{said}");
}

#[test]
fn an_image_may_be_called_like_a_command_and_nothing_follows_it() {
    let empty = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        let output = Command::new(PREPAGED).arg("image").args(args).current_dir(&empty).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for name in ["boot", "session", "image"] {
        let (code, said) = run(&[name]);
        assert!(code == Some(1) && said.contains(name), "it is not there: {said}");
    }
    for args in [&[][..], &["boot", "more"], &["boot", "--no-learn"], &["--no-learn", "boot"]] {
        assert_eq!(run(args).0, Some(2), "{args:?}");
    }
    assert_eq!(run(&["boot", "--help"]).0, Some(0));
}
