//! `make install`, `make uninstall`, `make deb`, and what the package's scripts do: with files that stand for the built ones.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use prepage_testing::{Need, has};

use crate::support::text;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Whether everything in `names` is there to be called.
#[track_caller]
fn has_tools(names: &[&str]) -> bool {
    names.iter().all(|name| has(Need::Tool((*name).into())))
}

/// The source tree in a directory whose name has blanks, with what `make build` leaves there.
fn built(directory: &Path) -> PathBuf {
    let source = directory.join("my  source");
    fs::create_dir(&source).unwrap();
    for name in ["Makefile", "docs", "packaging", "crates", "Cargo.toml", "LICENSE-MIT", "CHANGELOG.md"] {
        symlink(fs::canonicalize(SOURCE).unwrap().join(name), source.join(name)).unwrap();
    }
    let build = source.join("build");
    for name in [
        "prepage",
        "prepage-tools",
        "prepaged",
        "man/prepage.1",
        "man/prepage-run.1",
        "man/prepaged.8",
        "completions/bash",
        "completions/zsh",
        "completions/fish",
        "libprepage-agent.so",
    ] {
        fs::create_dir_all(build.join(name).parent().unwrap()).unwrap();
        fs::write(build.join(name), name).unwrap();
    }
    source
}

/// `PROGRAM ARGS` in `directory`, as if no make(1) had started this test.
fn run(directory: &Path, program: &str, args: &[&str]) {
    let mut command = Command::new(program);
    command.args(args).current_dir(directory).env_remove("MAKEFLAGS").env_remove("MAKELEVEL");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}{}", text(&output.stdout), text(&output.stderr));
}

/// All that lies below `directory` and is no directory, by path from there.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![directory.to_owned()];
    while let Some(next) = left.pop() {
        for entry in fs::read_dir(next).unwrap().map(|entry| entry.unwrap()) {
            match entry.file_type().unwrap().is_dir() {
                true => left.push(entry.path()),
                false => found.push(entry.path().strip_prefix(directory).unwrap().to_owned()),
            }
        }
    }
    found.sort();
    found
}

#[test]
fn nothing_beside_a_path_with_blanks_and_quotes_is_written_or_removed() {
    if !has_tools(&["make", "install"]) {
        return;
    }
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = |name: &str| directory.path().join(name);
    let source = built(directory.path());
    // The first word of what is installed to.
    fs::write(path("to"), "").unwrap();
    let before = files(directory.path());
    let [blank, quote] = ["to my place", "it's"].map(|name| path(name).to_str().unwrap().to_owned());
    for (destdir, prefix) in [(&*blank, "/opt/my dir"), (&quote, "/opt"), ("", &blank)] {
        let [to, below] = [format!("DESTDIR={destdir}"), format!("PREFIX={prefix}")];
        run(&source, "make", &["install", &to, &below]);
        let installed = PathBuf::from(format!("{destdir}{prefix}"));
        for name in ["bin/prepage", "share/man/man1/prepage-run.1", "share/zsh/site-functions/_prepage"] {
            assert!(installed.join(name).is_file(), "{name}: {:?}", files(directory.path()));
        }
        // `make uninstall` would call it.
        fs::remove_file(installed.join("bin/prepage")).unwrap();
        run(&source, "make", &["uninstall", &to, &below]);
        assert_eq!(files(directory.path()), before);
        // What is not there need not be removed.
        run(&source, "make", &["uninstall", &to, &below]);
    }
}

#[test]
fn a_package_is_made_below_a_path_with_blanks() {
    if !has_tools(&["make", "dpkg-deb", "dpkg", "gzip", "du"]) {
        return;
    }
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let source = built(directory.path());
    let before = files(directory.path());
    run(&source, "packaging/deb/build", &[]);
    let new: Vec<PathBuf> =
        files(directory.path()).into_iter().filter(|path| !before.contains(path)).collect();
    assert_eq!(new.len(), 1, "{new:?}");
    let listed = Command::new("dpkg-deb").arg("--contents").arg(directory.path().join(&new[0])).output();
    let listed = text(&listed.unwrap().stdout);
    assert!(listed.contains("./usr/bin/prepaged\n"), "{listed}");
}

/// Runs a script of the package with `args` in a mount namespace of its own, after `before`, with `stubs` in place of the programs that it calls. Returns
/// what these were called with, a line each, and what `after` printed.
fn script(name: &str, args: &str, stubs: &[&str], before: &str, after: &str) -> (String, String) {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for stub in stubs {
        let path = directory.path().join(stub);
        fs::write(&path, "#!/bin/sh\necho \"${0##*/} $*\" >>\"${0%/*}/called\"\n").unwrap();
        run(directory.path(), "chmod", &["755", stub]);
    }
    let script =
        format!("set -e; {before}; PATH=$0:$PATH sh \"$1/packaging/deb/{name}\" {args} >&2; {after}");
    let mut inside = Command::new("unshare");
    inside
        .args(["--mount", "--propagation", "private", "sh", "-c", &script])
        .arg(directory.path())
        .arg(SOURCE);
    let output = inside.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let called = fs::read_to_string(directory.path().join("called")).unwrap_or_default();
    (called, text(&output.stdout))
}

#[test]
fn purging_empties_what_is_mounted_and_takes_its_own_from_where_a_link_leads() {
    if !has(Need::Root) || !has(Need::Mounts) || !has_tools(&["unshare", "find"]) {
        return;
    }
    let before = "for place in /var/lib /var/cache /run /usr/local/lib; do mount -t tmpfs none $place; done\n\
        mkdir -p /var/lib/prepage /var/lib/volume/x /var/cache/prepage /run/prepage\n\
        touch /var/lib/other /var/lib/volume/x/y /var/lib/volume/a.profile /run/prepage/x; mkdir /var/lib/volume/gains /var/lib/volume/ends; ln -s /var/lib/volume /var/cache/prepage/link\n";
    let mounted = format!("{before}mount -t tmpfs none /var/lib/prepage; touch /var/lib/prepage/x.profile");
    let list = "cd /var; find lib cache /run/prepage -mindepth 1 2>/dev/null | sort";
    let (called, left) = script("postrm", "purge", &["deb-systemd-helper", "systemctl"], &mounted, list);
    let untouched =
        "lib/volume\nlib/volume/a.profile\nlib/volume/ends\nlib/volume/gains\nlib/volume/x\nlib/volume/x/y\n";
    assert_eq!(left, format!("lib/other\nlib/prepage\n{untouched}"));
    assert!(called.contains("deb-systemd-helper purge"), "{called}");
    let linked = format!("{before}rmdir /var/lib/prepage; ln -s volume /var/lib/prepage");
    let (_, left) = script("postrm", "purge", &["deb-systemd-helper", "systemctl"], &linked, list);
    assert_eq!(left, "lib/other\nlib/volume\nlib/volume/x\nlib/volume/x/y\n", "what is of others stays");
}

/// Links in PATH are passed over by shells where they lead to nothing. Desktops show no other entry than root's copy.
#[test]
fn menu_entries_that_start_the_package_go_with_it() {
    if !has(Need::Root) || !has(Need::Mounts) || !has_tools(&["unshare", "find"]) {
        return;
    }
    let before = "for place in /var/lib /var/cache /run /usr/local; do mount -t tmpfs none $place; done\n\
        mkdir -p /usr/local/share/applications; cd /usr/local/share/applications\n\
        printf 'X-Prepage-Copy-Of=x\\nExec=/usr/bin/prepage run -- x\\n' >copy.desktop\n\
        printf 'X-Prepage-Copy-Of=x\\nExec=/usr/local/bin/prepage run -- x\\n' >of-another.desktop; echo Exec=x >own.desktop";
    for (args, expected) in [
        ("upgrade", "copy.desktop\nof-another.desktop\nown.desktop\n"),
        ("remove", "of-another.desktop\nown.desktop\n"),
        ("purge", "of-another.desktop\nown.desktop\n"),
    ] {
        let stubs = ["deb-systemd-helper", "systemctl"];
        let (_, left) = script("postrm", args, &stubs, before, "ls /usr/local/share/applications");
        assert_eq!(left, expected, "{args}");
    }
}

#[test]
fn removing_the_package_stops_its_own_units_alone() {
    if !has(Need::Root) || !has(Need::Mounts) || !has_tools(&["unshare", "sed"]) {
        return;
    }
    let stopped = |units: &str| {
        let before = format!(
            "mount -t tmpfs none /run; mkdir -p /run/systemd/system /etc/systemd/system; mount -t tmpfs none /etc/systemd/system;\n\
            cd /etc/systemd/system; {units}"
        );
        script("prerm", "remove", &["deb-systemd-invoke", "systemctl"], &before, "true").0
    };
    let all = "deb-systemd-invoke stop prepage.service\ndeb-systemd-invoke stop prepage-boot.service\n\
        systemctl stop prepage-session@*.service\n";
    assert_eq!(stopped("true"), all);
    assert_eq!(
        stopped("echo ExecStart=/usr/bin/prepaged >prepage.service; ln -s /dev/null prepage-boot.service"),
        all
    );
    let boot = concat!(env!("CARGO_MANIFEST_DIR"), "/../service/units/prepage-boot.service");
    assert_eq!(stopped(&format!("sed 's|@PREPAGED@|/usr/bin/prepaged|' {boot} >prepage-boot.service")), all);
    let of_another = "echo 'ExecStart=\"/opt/my dir/prepaged\"' >prepage.service; cp prepage.service prepage-session@.service";
    assert_eq!(stopped(of_another), "deb-systemd-invoke stop prepage-boot.service\n");
}

#[test]
fn the_unit_of_another_copy_stays_enabled_when_the_package_is_purged() {
    if !has(Need::Root) || !has(Need::Mounts) || !has_tools(&["unshare", "find"]) {
        return;
    }
    // As deb-systemd-helper leaves nothing that it knows of.
    let before = "for place in /var/lib /var/cache /run /usr/local/lib; do mount -t tmpfs none $place; done\n\
        mkdir -p /etc/systemd/system; mount -t tmpfs none /etc/systemd/system; cd /etc/systemd/system\n\
        echo '[ \"$1\" != purge ] || rm -r /etc/systemd/system/*.wants' >>$0/deb-systemd-helper\n\
        mkdir multi-user.target.wants sysinit.target.wants; echo ExecStart=/opt/prepaged >prepage.service\n\
        ln -s ../prepage.service multi-user.target.wants/; ln -s /usr/lib/x sysinit.target.wants/prepage-boot.service";
    let list = "cd /etc/systemd/system; find * -type l -printf '%p %l\\n'";
    let (_, left) = script("postrm", "purge", &["deb-systemd-helper", "systemctl"], before, list);
    assert_eq!(left, "multi-user.target.wants/prepage.service /etc/systemd/system/prepage.service\n");
}
