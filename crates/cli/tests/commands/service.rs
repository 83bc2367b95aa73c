//! `prepage service` and `prepage status`, as far as they need no systemd and no root.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};

use prepage_testing::{Need, copy_program, has, write_program};

use crate::support::text;

/// In a mount namespace of its own, a shell takes this machine's units away.
const NO_UNITS: &str = "for units in /etc /usr/local/lib /usr/lib /lib; do\n\
    [ ! -d $units/systemd/system ] || mount -t tmpfs none $units/systemd/system || exit; done\n";

#[test]
fn the_unit_names_the_binary_that_is_installed_and_goes_again() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = |name: &str| directory.path().join(name);
    // Of another copy, as /usr/sbin is seen from /usr/local/bin.
    fs::create_dir_all(path("usr/local/bin")).unwrap();
    fs::create_dir(path("usr/sbin")).unwrap();
    fs::write(path("usr/sbin/prepaged"), "").unwrap();
    let path = |name: &str| directory.path().join("usr/local/bin").join(name);
    fs::hard_link(env!("CARGO_BIN_EXE_prepage-tools"), path("prepage-tools")).unwrap();
    let units = path("units");
    fs::create_dir(&units).unwrap();
    let run = |args: &[&str]| -> Output {
        Command::new(path("prepage-tools")).args(args).arg("--units").arg(&units).output().unwrap()
    };
    let refused = run(&["service", "install", "--no-start"]);
    assert_eq!(refused.status.code(), Some(125), "{}", text(&refused.stderr));
    assert!(text(&refused.stderr).contains("no `prepaged` next to"), "{}", text(&refused.stderr));
    fs::write(path("prepaged"), "").unwrap();
    fs::rename(&units, path("elsewhere")).unwrap();
    let refused = text(&run(&["service", "install", "--no-start"]).stderr);
    assert_eq!(refused.matches(units.to_str().unwrap()).count(), 1, "{refused}");
    fs::rename(path("elsewhere"), &units).unwrap();
    let installed = run(&["service", "install", "--no-start"]);
    assert!(installed.status.success(), "{}", text(&installed.stderr));
    let listed = text(&installed.stdout);
    assert_eq!(listed.lines().count(), 4, "what `remove` lists, it wrote: {listed}");
    assert!(listed.ends_with("user@.service.wants/prepage-session@.service\n"), "{listed}");
    let unit = fs::read_to_string(units.join("prepage.service")).unwrap();
    let line = format!("ExecStart={}", path("prepaged").canonicalize().unwrap().display());
    assert!(unit.lines().any(|one| one == line), "{unit}");
    assert!(!unit.contains('@'), "{unit}");
    let prepaged = path("prepaged").canonicalize().unwrap();
    for (name, (begin, end)) in [
        (
            "prepage-boot.service",
            ("ExecStart=-:/bin/sh -c '", format!("exec \"$0\" boot' {}", prepaged.display())),
        ),
        ("prepage-session@.service", ("ExecStart=", format!("ExecStart=-{} session %i", prepaged.display()))),
    ] {
        let unit = fs::read_to_string(units.join(name)).unwrap();
        assert!(unit.lines().any(|line| line.starts_with(begin) && line.ends_with(&end)), "{unit}");
        // So would one that has failed: the next one may do better, and until then it is over.
        // Later logins, or starts of sysinit.target, want it too: one that had ended would begin again all day.
        assert!(unit.lines().any(|one| one == "RemainAfterExit=yes"), "{unit}");
    }
    let session = fs::read_to_string(units.join("prepage-session@.service")).unwrap();
    assert!(
        session.lines().any(|one| one == "BindsTo=user@%i.service"),
        "the next first login begins it again"
    );
    let wanted = units.join("user@.service.wants/prepage-session@.service");
    assert_eq!(
        wanted.canonicalize().unwrap(),
        units.join("prepage-session@.service").canonicalize().unwrap()
    );
    // Again, and it is replaced.
    assert!(run(&["service", "install", "--no-start"]).status.success());
    // What stands in the way is named.
    fs::remove_dir_all(wanted.parent().unwrap()).unwrap();
    fs::write(wanted.parent().unwrap(), "").unwrap();
    let refused = run(&["service", "install", "--no-start"]);
    assert!(text(&refused.stderr).contains(wanted.to_str().unwrap()), "{}", text(&refused.stderr));
    fs::remove_file(wanted.parent().unwrap()).unwrap();
    assert!(run(&["service", "install", "--no-start"]).status.success());
    let removed = run(&["service", "remove"]);
    assert!(removed.status.success() && removed.stderr.is_empty(), "{}", text(&removed.stderr));
    assert_eq!(fs::read_dir(&units).unwrap().count(), 0);
    assert_eq!(run(&["service", "remove"]).status.code(), Some(125), "there is none");
}

/// As `make uninstall` of one copy calls it, and the removal of a package.
#[test]
fn the_service_of_another_copy_stays() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = |name: &str| directory.path().join(name);
    for copy in ["\"a\" 100%", "b"] {
        fs::create_dir(path(copy)).unwrap();
        fs::hard_link(env!("CARGO_BIN_EXE_prepage-tools"), path(copy).join("prepage-tools")).unwrap();
        fs::write(path(copy).join("prepaged"), "").unwrap();
    }
    let units = path("units");
    fs::create_dir(&units).unwrap();
    let run = |copy: &str, args: &[&str]| -> Output {
        let mut command = Command::new(path(copy).join("prepage-tools"));
        command.args(args).arg("--units").arg(&units).output().unwrap()
    };
    let names = ["prepage.service", "prepage-boot.service", "prepage-session@.service"];
    let are_there = |wanted: [bool; 3]| assert_eq!(names.map(|name| units.join(name).exists()), wanted);
    assert!(run("\"a\" 100%", &["service", "install", "--no-start"]).status.success());
    let refused = run("b", &["service", "remove"]);
    are_there([true; 3]);
    assert!(units.join("user@.service.wants/prepage-session@.service").exists());
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(125), "{said}");
    assert!(said.contains("\"a\" 100%/prepaged, of another copy of prepage"), "{said}");
    // Of two copies each one's own goes, and the other's is named.
    fs::remove_file(units.join(names[0])).unwrap();
    let boot = fs::read_to_string(units.join(names[1])).unwrap();
    fs::remove_file(units.join(names[1])).unwrap();
    fs::remove_file(units.join(names[2])).unwrap();
    assert!(run("b", &["service", "install", "--no-start"]).status.success());
    fs::write(units.join(names[1]), &boot).unwrap();
    let removed = run("b", &["service", "remove"]);
    assert!(removed.status.success(), "{}", text(&removed.stderr));
    assert!(text(&removed.stderr).contains("prepage-boot.service starts "), "{}", text(&removed.stderr));
    are_there([false, true, false]);
    // What starts nothing any more, whoever removes.
    fs::remove_file(path("\"a\" 100%/prepaged")).unwrap();
    assert!(run("b", &["service", "remove"]).status.success());
    are_there([false; 3]);
}

#[test]
fn units_that_others_wrote_and_masks_stay_as_they_are() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = |name: &str| directory.path().join(name);
    let bin = path("100% \"mine\"");
    fs::create_dir(&bin).unwrap();
    fs::hard_link(env!("CARGO_BIN_EXE_prepage-tools"), bin.join("prepage-tools")).unwrap();
    fs::write(bin.join("prepaged"), "").unwrap();
    // Called instead of systemd's, if anything is.
    write_program(path("systemctl"), "#!/bin/sh\necho \"$@\" >>\"${0%/*}/called\"\n");
    let units = path("units");
    fs::create_dir(&units).unwrap();
    let run = |args: &[&str]| -> Output {
        let mut command = Command::new(bin.join("prepage-tools"));
        command.args(args).arg("--units").arg(&units).env("PATH", directory.path()).output().unwrap()
    };
    let [unit, boot, session] =
        ["prepage.service", "prepage-boot.service", "prepage-session@.service"].map(|name| units.join(name));
    symlink("/dev/null", &boot).unwrap();
    fs::write(&session, "[Service]\n").unwrap();
    let installed = run(&["service", "install"]);
    assert!(installed.status.success(), "{}", text(&installed.stderr));
    assert!(
        text(&installed.stderr).contains("prepage-boot.service was not written by"),
        "{}",
        text(&installed.stderr)
    );
    let line = format!(
        "ExecStart=\"{}/100%% \\\"mine\\\"/prepaged\"",
        directory.path().canonicalize().unwrap().display()
    );
    let written = fs::read_to_string(&unit).unwrap();
    assert!(written.lines().any(|one| one == line), "{line}\n{written}");
    assert!(!units.join("user@.service.wants").exists());
    assert!(run(&["service", "remove"]).status.success());
    assert!(!unit.exists());
    assert_eq!(fs::read_link(&boot).unwrap(), Path::new("/dev/null"));
    assert_eq!(fs::read_to_string(&session).unwrap(), "[Service]\n");
    // One that is masked is neither installed nor removed.
    symlink("/dev/null", &unit).unwrap();
    for command in ["install", "remove"] {
        let refused = run(&["service", command]);
        assert_eq!(refused.status.code(), Some(125), "{}", text(&refused.stderr));
        assert_eq!(fs::read_link(&unit).unwrap(), Path::new("/dev/null"));
    }
    assert!(!path("called").exists(), "systemd does not read units there");
}

/// A directory with a copy of prepage, and a systemctl that notes in the file `called` what it was called with.
fn copy_with_systemctl() -> tempfile::TempDir {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::hard_link(env!("CARGO_BIN_EXE_prepage-tools"), path("prepage-tools")).unwrap();
    fs::write(path("prepaged"), "").unwrap();
    write_program(path("systemctl"), "#!/bin/sh\necho \"$@\" >>\"${0%/*}/called\"\n");
    directory
}

/// In a mount namespace of its own, where systemd would read units from a directory of this test's.
#[test]
fn an_installed_service_is_started_anew_and_a_removed_one_leaves_nothing_that_runs() {
    if !has(Need::Root) || !has(Need::Mounts) {
        return;
    }
    let directory = copy_with_systemctl();
    let path = |name: &str| directory.path().join(name);
    let script = "mount -t tmpfs none /run && mkdir -p /run/systemd/system && cd \"$0\" &&\n\
        PATH=$0:$PATH && ./prepage-tools service install --units /run/systemd/system && echo >>called &&\n\
        ./prepage-tools service remove --units /run/systemd/system && echo >>called && mv called kept &&\n\
        ./prepage-tools service install --units /run/systemd/system >/dev/null && echo 'exit 1' >>systemctl &&\n\
        { ./prepage-tools service remove --units /run/systemd/system >/dev/null 2>said; echo $? >>said; ls /run/systemd/system >>said; } &&\n\
        { ./prepage-tools status 2>absent; ./prepage-tools service install --units /run/systemd/system >/dev/null 2>failed;\n\
        ./prepage-tools status 2>stopped; mv called kept2; mount -t tmpfs none /run; mount -t tmpfs none /usr/local/lib;\n\
        mkdir -p /usr/local/lib/systemd/system; ./prepage-tools service install --no-start --units /usr/local/lib/systemd/system >/dev/null;\n\
        ./prepage-tools service remove --units /usr/local/lib/systemd/system >/dev/null 2>unbooted; echo $? >>unbooted; }";
    let mut inside = Command::new("unshare");
    inside.args(["--mount", "--propagation", "private", "sh", "-c"]);
    let output = inside.arg([NO_UNITS, script].concat()).arg(directory.path()).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
    // What cannot be stopped is said, once the units are gone.
    let said = fs::read_to_string(path("said")).unwrap();
    assert!(said.contains("systemctl disable --now") && !said.contains("try:"), "{said}");
    assert!(said.ends_with("\n1\n"), "{said}");
    // What has been written stays, and that is said.
    let [absent, failed, stopped] =
        ["absent", "failed", "stopped"].map(|name| fs::read_to_string(path(name)).unwrap());
    assert!(
        failed.contains("is written") && failed.contains("service remove") && failed.contains("--no-start"),
        "{failed}"
    );
    assert!(stopped.ends_with("  try: sudo systemctl start prepage\n"), "{stopped}");
    assert!(absent.ends_with("  try: sudo prepage service install\n"), "{absent}");
    // Where systemd does not run there is nothing to stop.
    assert_eq!(fs::read_to_string(path("unbooted")).unwrap(), "0\n");
    let called = fs::read_to_string(path("called")).unwrap();
    assert_eq!(called, "disable prepage.service prepage-boot.service\n");
    let called = fs::read_to_string(path("kept")).unwrap();
    let (installed, removed) = called.trim_end().split_once("\n\n").unwrap();
    assert_eq!(
        installed.lines().collect::<Vec<_>>(),
        ["daemon-reload", "enable prepage.service", "restart prepage.service", "enable prepage-boot.service"]
    );
    assert_eq!(
        removed.lines().collect::<Vec<_>>(),
        [
            "disable --now prepage.service prepage-boot.service",
            "stop prepage-session@*.service",
            "daemon-reload"
        ]
    );
}

/// A package's, say.
#[test]
fn a_unit_that_another_directory_has_goes_on_in_place_of_a_removed_one() {
    if !has(Need::Root) || !has(Need::Mounts) {
        return;
    }
    let directory = copy_with_systemctl();
    let path = |name: &str| directory.path().join(name);
    let script = "mount -t tmpfs none /run && mount -t tmpfs none /usr/local/lib || exit\n\
        of_package=/usr/local/lib/systemd/system; mkdir -p /run/systemd/system $of_package && cd \"$0\" || exit\n\
        for unit in $1; do echo '[Service]' >$of_package/$unit; done\n\
        PATH=$0:$PATH; ./prepage-tools service install --units /run/systemd/system >/dev/null && rm called &&\n\
        ./prepage-tools service remove --units /run/systemd/system && ls /run/systemd/system";
    let remove = |of_package: &str| -> (Output, String) {
        let mut inside = Command::new("unshare");
        inside.args(["--mount", "--propagation", "private", "sh", "-c"]);
        inside.arg([NO_UNITS, script].concat()).arg(directory.path());
        let output = inside.arg(of_package).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
        (output, fs::read_to_string(path("called")).unwrap())
    };
    let (output, called) = remove("prepage.service prepage-boot.service");
    assert_eq!(called, "stop prepage-session@*.service\ndaemon-reload\nrestart prepage.service\n");
    let said = text(&output.stdout);
    assert!(said.contains("in force now: /usr/local/lib/systemd/system/prepage.service\n"), "{said}");
    let (_, called) = remove("prepage.service");
    assert!(called.starts_with("disable --now prepage-boot.service\n"), "{called}");
    assert!(called.ends_with("daemon-reload\nrestart prepage.service\n"), "{called}");
}

/// Whether the boot's unit does anything is decided by a shell: after `uptime_s` seconds, where systemd says `state`. It succeeds in either case, so that it is
/// not started again.
#[test]
fn a_boot_is_one_however_long_it_takes_and_an_installation_is_none() {
    if !has(Need::Root) || !has(Need::Mounts) {
        return;
    }
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = |name: &str| directory.path().join(name);
    let script = |name: &str, text: &str| write_program(path(name), format!("#!/bin/sh\n{text}\n"));
    let unit = include_str!("../../../service/units/prepage-boot.service");
    assert!(!unit.contains("ExecCondition="), "one that is not met leaves a unit that is started again");
    let command = unit.lines().find_map(|line| line.strip_prefix("ExecStart=-:/bin/sh -c '")).unwrap();
    // As systemd.unit(5) has it read; the colon has `$` stand for itself.
    let command = command.strip_suffix("' @PREPAGED@").unwrap().replace("%%", "%");
    script("prepaged called \"so\"", "echo $* >\"${0%/*}/begun\"");
    let begins = |uptime_s: u32, state: &str| {
        fs::write(path("uptime"), format!("{uptime_s}.25 1.00\n")).unwrap();
        script("systemctl", &format!("echo {state}\nexit 1"));
        let mut inside = Command::new("unshare");
        inside.args(["--mount", "--propagation", "private", "sh", "-c"]);
        inside
            .arg("mount --bind \"$0/uptime\" /proc/uptime && PATH=$0:$PATH && exec /bin/sh -c \"$1\" \"$2\"");
        inside.arg(directory.path()).arg(&command).arg(path("prepaged called \"so\""));
        assert!(inside.status().unwrap().success(), "{uptime_s} {state}");
        let begun = fs::read_to_string(path("begun"));
        let _ = fs::remove_file(path("begun"));
        begun.ok()
    };
    for (uptime_s, state) in [(7, "offline"), (3000, "starting"), (3000, "initializing")] {
        assert_eq!(begins(uptime_s, state).as_deref(), Some("boot\n"), "{uptime_s} {state}");
    }
    assert_eq!(["running", "degraded"].map(|state| begins(3000, state)), [None, None]);
}

#[test]
fn where_no_service_runs_that_is_said() {
    let output = Command::new(env!("CARGO_BIN_EXE_prepage-tools"))
        .args(["status", "--socket"])
        .arg(Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-such-socket"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(125));
    let said = text(&output.stderr);
    assert!(said.contains("no service answers at") && !said.contains("try:"), "{said}");
}

/// A boot is followed without it.
#[test]
fn the_last_boot_is_shown_also_where_no_service_runs() {
    if !has(Need::Root) {
        return;
    }
    let layer = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    fs::set_permissions(&layer, fs::Permissions::from_mode(0o755)).unwrap();
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let report = format!(
        r#"{{"boot_id":"{}","unix_s":1,"began_s":2.5,"fetched_pages":1000,"fetched_s":3.0,"quiet_s":40.0,"is_quiet":true,"seen_files":0}}"#,
        id.trim()
    );
    fs::write(layer.path().join("boot.json"), report).unwrap();
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_prepage-tools"));
        command.args(["status", "--socket"]).arg(layer.path().join("no-such-socket")).args(args);
        let output = command.env("PREPAGE_LAYERS", layer.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(125));
        assert!(text(&output.stderr).contains("no service answers at"), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let said = run(&[]);
    assert!(said.starts_with("last boot: 4.1 MB fetched in 3.0 s, beginning 2.5 s"), "{said}");
    assert!(said.contains("nothing could be learned"), "an earlier version has learned each: {said}");
    assert_eq!(run(&["--json"]), "", "a document of its own has the service's");
    fs::remove_file(layer.path().join("boot.json")).unwrap();
    assert!(run(&[]).starts_with("last boot: no report"));
}

#[test]
fn a_service_that_runs_and_does_not_answer_is_not_to_be_installed() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let socket = directory.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let output =
        Command::new(env!("CARGO_BIN_EXE_prepage-tools")).args(["status", "--socket"]).arg(&socket).output();
    let output = output.unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(125));
    assert!(said.contains("did not answer in time") && !said.contains("install"), "{said}");
}

#[test]
fn every_counter_is_documented() {
    let documented = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/json.md")).unwrap();
    for (name, ..) in prepage_service::counters::Counters::default().all() {
        assert!(documented.contains(&format!("\n| `{name}` | ")), "docs/json.md lacks {name}");
    }
}

/// Who may write to a directory on the way to it may put another program there, which systemd starts as root.
#[test]
fn a_service_that_others_may_replace_is_not_installed() {
    if !has(Need::Root) {
        return;
    }
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = |name: &str| directory.path().join(name);
    copy_program(env!("CARGO_BIN_EXE_prepage-tools"), path("prepage-tools"));
    fs::write(path("prepaged"), "").unwrap();
    fs::create_dir(path("units")).unwrap();
    let install = |more: &[&str]| {
        let mut command = Command::new(path("prepage-tools"));
        command.args(["service", "install", "--units"]).arg(path("units")).args(more).output().unwrap()
    };
    let refused = install(&[]);
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(125), "{said}");
    assert!(
        said.contains("others than root may replace") && said.contains("try: sudo make install"),
        "{said}"
    );
    assert_eq!(fs::read_dir(path("units")).unwrap().count(), 0);
    // For another machine, or to be looked at.
    assert!(install(&["--no-start"]).status.success());
}
