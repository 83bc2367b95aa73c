//! Profiles that travel: in files, beside them, from store to store; and whose word is followed.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support::{Sandbox, can_learn, is_root, json, make_old, text, wait_for};
use prepage_core::profile::file::{FORMAT_VERSION, encode};
use prepage_core::profile::{Extent, Profile, ProfiledFile};
use prepage_core::{PageIndex, PageRange};
use prepage_profiles::bundle;
use prepage_profiles::identity::{content_of, open_to_read};
use prepage_testing::{Need, copy_program, has, wait_until_written};
use serde_json::Value;

/// A copy of `program` in the sandbox that `prepage run` has learned, and its name.
fn learned(sandbox: &Sandbox, program: &str, args: &[&str]) -> PathBuf {
    // What lies beside files, and what is exported, is of those that everybody may read.
    fs::set_permissions(sandbox.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = sandbox.path().join(Path::new(program).file_name().unwrap());
    fs::copy(program, &path).unwrap();
    make_old(&path);
    wait_until_written(&path);
    let command = [&["run", "-q", "--", path.to_str().unwrap()], args].concat();
    sandbox.learned_by(|| assert!(sandbox.output(&command).status.success()));
    path
}

/// A place for sidecars. Not in the build tree: others may be allowed to write to the directories above it.
fn maps_place() -> (tempfile::TempDir, PathBuf) {
    let place = tempfile::tempdir().unwrap();
    let maps = place.path().canonicalize().unwrap().join("maps");
    (place, maps)
}

/// `prepage ARGS` with a store in which nothing was learned, and sidecars in `maps` alone.
fn fresh(sandbox: &Sandbox, maps: &Path, args: &[&str]) -> Output {
    let store = sandbox.path().join("fresh-store");
    sandbox.prepage(args).env("PREPAGE_STORE", store).env("PREPAGE_LAYERS", maps).output().unwrap()
}

fn as_text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_first_start_follows_the_map_in_the_file_and_the_one_beside_it() {
    let sandbox = Sandbox::new();
    let (_place, maps) = maps_place();
    if !can_learn(&sandbox) {
        return;
    }
    let program = learned(&sandbox, "/usr/bin/sleep", &["0"]);
    let run = ["run", "-v", "--no-learn", "--", as_text(&program), "0.3"];
    let evicted = |run: &dyn Fn() -> Output| {
        let start = || {
            assert!(sandbox.output(&["evict", as_text(&program)]).status.success());
            run()
        };
        text(&sandbox.in_time(start).stderr)
    };
    let none = evicted(&|| fresh(&sandbox, &maps, &run));
    assert!(none.contains("no page maps came with"), "{none}");

    let beside = sandbox.output(&["profile", "embed", "--sidecar", as_text(&maps), as_text(&program)]);
    assert!(beside.status.success(), "{}", text(&beside.stderr));
    let followed = evicted(&|| fresh(&sandbox, &maps, &run));
    assert!(followed.contains("page maps: prefetched") && followed.contains(" of 1 file"), "{followed}");

    fs::remove_dir_all(&maps).unwrap();
    let embedded = sandbox.output(&["profile", "embed", "--json", as_text(&program)]);
    assert_eq!(json(&embedded)["files"][0]["changed"], true, "{}", text(&embedded.stderr));
    let followed = evicted(&|| fresh(&sandbox, &maps, &run));
    assert!(followed.contains("page maps: prefetched"), "{followed}");
    // Learning goes on beside it, and from then on the user's own profile is followed.
    let own = wait_for("a profile of the user's own", || {
        let learning = fresh(&sandbox, &maps, &["run", "-q", "--", as_text(&program), "0.1"]);
        assert!(learning.status.success());
        let told = evicted(&|| fresh(&sandbox, &maps, &["run", "-v", "--", as_text(&program), "0.3"]));
        (!told.contains("page maps") && told.contains("prefetched")).then_some(told)
    });
    assert!(own.lines().all(|line| line.starts_with("prepage: ")), "{own}");
}

/// What is said of a file's length and place before and after it got a section is what the file system says.
fn assert_layout(program: &Path, size_bytes_before: u64, embedded: &Value) {
    let [before, after] = ["before", "after"].map(|when| &embedded[when]);
    let size_bytes = fs::metadata(program).unwrap().len();
    let sizes = [before, after].map(|layout| layout["size_bytes"].as_u64());
    assert_eq!(sizes, [Some(size_bytes_before), Some(size_bytes)]);
    // Its map, and a copy of its section headers: a page at most for a small program.
    let growth_bytes = size_bytes - size_bytes_before;
    assert!((1..=4096).contains(&growth_bytes), "{growth_bytes}");
    if has(Need::Extents(program.parent().unwrap().to_owned())) && has(Need::Tool("filefrag".into())) {
        let filefrag = Command::new("filefrag").arg("-s").arg(program).env("LC_ALL", "C").output().unwrap();
        let told = text(&filefrag.stdout);
        // PATH: 1 extent found
        let found =
            told.trim_end().rsplit_once(": ").and_then(|(_, count)| count.split(' ').next()?.parse().ok());
        assert!(
            found.is_some_and(|pieces: u64| pieces > 0) && after["pieces"].as_u64() == found,
            "{told}: {after}"
        );
        assert!(before["pieces"].as_u64() > Some(0), "{before}");
    }
}

#[test]
fn what_is_shown_is_what_is_in_the_file() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) {
        return;
    }
    let program = learned(&sandbox, "/usr/bin/sleep", &["0"]);
    let before = fs::read(&program).unwrap();
    let embedded = json(&sandbox.output(&["profile", "embed", "--json", as_text(&program)]));
    let pages = &embedded["files"][0]["pages"];
    assert_layout(&program, before.len() as u64, &embedded["files"][0]);
    let shown = json(&sandbox.output(&["profile", "sections", "--json", as_text(&program)]));
    assert_eq!(&shown["in_section"]["map"]["pages"], pages);
    assert_eq!(shown["in_section"], shown["followed"]);
    let sections = shown["sections"].as_array().unwrap();
    assert_eq!(sections.last().unwrap()["name"], ".prepage");
    if has(Need::Tool("readelf".into())) {
        let readelf = Command::new("readelf").args(["-SW", as_text(&program)]).output().unwrap();
        let told = text(&readelf.stdout);
        assert!(readelf.stderr.is_empty(), "{}", text(&readelf.stderr));
        let named = |name: &str| told.contains(name.trim_end_matches('\0'));
        assert!(sections.iter().all(|section| named(section["name"].as_str().unwrap())), "{told}");
        assert!(told.contains(&format!("are {} section headers", sections.len())), "{told}");
    }
    let verified = sandbox.output(&["profile", "verify", as_text(&program)]);
    assert!(verified.status.success() && text(&verified.stdout).contains("1 of 1 fit"), "{verified:?}");
    assert!(sandbox.output(&["profile", "strip", as_text(&program)]).status.success());
    assert_eq!(fs::read(&program).unwrap(), before);
    let nothing = sandbox.output(&["profile", "strip", as_text(&program)]);
    assert_eq!(nothing.status.code(), Some(1));
    assert!(text(&nothing.stderr).contains("has no page map in it"), "{}", text(&nothing.stderr));
}

#[test]
fn what_no_longer_fits_is_told_and_pruned() {
    let sandbox = Sandbox::new();
    let (_place, maps) = maps_place();
    if !can_learn(&sandbox) {
        return;
    }
    let program = learned(&sandbox, "/usr/bin/sleep", &["0"]);
    let written = sandbox.output(&["profile", "embed", "--sidecar", as_text(&maps), as_text(&program)]);
    assert!(written.status.success(), "{}", text(&written.stderr));
    let verify = |more: &[&str]| sandbox.output(&[&["profile", "verify", as_text(&maps)], more].concat());
    assert!(verify(&[]).status.success());
    fs::remove_file(&program).unwrap();
    fs::copy("/usr/bin/ls", &program).unwrap();
    let stale = verify(&["--json"]);
    assert_eq!(stale.status.code(), Some(1));
    assert_eq!(json(&stale)["verified"][0]["state"], "stale");
    // JavaScript's source maps are not prepage's.
    fs::write(maps.join("app.js.map"), "{}").unwrap();
    // The profile knows the old file as well.
    assert_eq!(sandbox.output(&["profile", "verify", "sleep"]).status.code(), Some(1));
    let pruned = verify(&["--prune"]);
    assert!(pruned.status.success() && text(&pruned.stdout).contains("removed"), "{}", text(&pruned.stdout));
    assert!(text(&verify(&[]).stdout).contains("0 of 0") && maps.join("app.js.map").exists());
}

/// What a package brings may be of a program that is not installed, or of one that another machine has elsewhere.
#[test]
fn sidecars_of_packages_are_neither_stale_nor_removed() {
    let sandbox = Sandbox::outside_homes();
    if !can_learn(&sandbox) {
        return;
    }
    let program = learned(&sandbox, "/usr/bin/sleep", &["0"]);
    let (_places, [machine, vendor]) = {
        let (place, maps) = maps_place();
        (place, ["machine", "vendor"].map(|name| maps.join(name)))
    };
    for maps in [&machine, &vendor] {
        let written = sandbox.output(&["profile", "embed", "--sidecar", as_text(maps), as_text(&program)]);
        assert!(written.status.success(), "{}", text(&written.stderr));
    }
    sandbox.profiles().iter().for_each(|profile| fs::remove_file(profile).unwrap());
    let layers = std::env::join_paths([&machine, &vendor]).unwrap();
    let verify = |more: &[&str]| {
        let mut command = sandbox.prepage(&[&["profile", "verify", "--json"], more].concat());
        let output = command.env("PREPAGE_LAYERS", &layers).output().unwrap();
        let verified = json(&output)["verified"].as_array().unwrap().clone();
        let states = verified.iter().map(|one| (one["state"].clone(), one["removed"].clone()));
        (output.status.code(), states.collect::<Vec<_>>())
    };
    let state = |state: &str, removed: bool| (Value::from(state), Value::from(removed));
    fs::remove_file(&program).unwrap();
    let found = verify(&[]);
    assert_eq!(found, (Some(125), vec![state("stale", false), state("unknown", false)]));
    // Another build in its place: the machine's own is of no use any more, and the package's is the package's.
    fs::copy("/usr/bin/ls", &program).unwrap();
    let pruned = verify(&["--prune"]);
    assert_eq!(pruned, (Some(1), vec![state("stale", true), state("stale", false)]));
    let named = verify(&["--prune", as_text(&vendor)]);
    assert_eq!(named, (Some(0), vec![state("stale", true)]));
}

/// A sidecar of a newer prepage, for example.
#[test]
fn what_cannot_be_looked_at_is_not_stale() {
    let sandbox = Sandbox::new();
    let (_place, maps) = maps_place();
    fs::create_dir_all(maps.join("ends")).unwrap();
    let mut newer = encode(&Profile::default());
    let version = newer.windows(4).position(|bytes| bytes == FORMAT_VERSION.to_le_bytes()).unwrap();
    newer[version..version + 4].copy_from_slice(&(FORMAT_VERSION + 1).to_le_bytes());
    fs::write(maps.join("ends/one.profile"), newer).unwrap();
    let checked = sandbox.output(&["profile", "verify", "--json", as_text(&maps)]);
    assert_eq!(json(&checked)["verified"][0]["state"], "unknown", "{}", text(&checked.stdout));
    assert_eq!(checked.status.code(), Some(125));
    // Nor is the store of a newer prepage damaged, after that was replaced by an older one.
    let fresh = |args: &[&str]| fresh(&sandbox, &maps.join("none"), args);
    let store = sandbox.path().join("fresh-store");
    fs::create_dir(&store).unwrap();
    fs::set_permissions(&store, fs::Permissions::from_mode(0o700)).unwrap();
    fs::copy(maps.join("ends/one.profile"), store.join("one.profile")).unwrap();
    let checked = fresh(&["profile", "verify", "--json"]);
    assert_eq!(json(&checked)["verified"][0]["state"], "unknown", "{}", text(&checked.stdout));
    assert_eq!(checked.status.code(), Some(125));
    // Others may have written it: no prepage follows it, a newer one neither.
    fs::set_permissions(store.join("one.profile"), fs::Permissions::from_mode(0o622)).unwrap();
    let is_damaged = || {
        let checked = fresh(&["profile", "verify", "--json"]);
        assert_eq!(json(&checked)["verified"][0]["state"], "damaged", "{}", text(&checked.stdout));
        assert_eq!(checked.status.code(), Some(1));
    };
    is_damaged();
    fs::set_permissions(store.join("one.profile"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(store.join("one.profile"), "no profile").unwrap();
    is_damaged();
}

/// A mean over hosts would lose what one of many alone needs.
#[test]
fn a_map_from_two_exports_has_what_one_host_of_many_needs() {
    let sandbox = Sandbox::new();
    let program = sandbox.path().join("sleep");
    fs::copy("/usr/bin/sleep", &program).unwrap();
    let content = content_of(&open_to_read(&program).unwrap()).unwrap();
    let export = |name: &str, page: u64, hosts: std::ops::Range<u64>| {
        let range = PageRange::new(PageIndex(page), PageIndex(page + 1));
        let file = ProfiledFile {
            path: as_text(&program).into(),
            fingerprint: content.clone(),
            extents: vec![Extent::new(range, 0)],
            ..ProfiledFile::default()
        };
        let (role, sources) = ("sleep".to_owned(), hosts.collect());
        let profile = Profile { role, sources, files: vec![file], ..Profile::default() };
        fs::write(sandbox.path().join(name), encode(&profile)).unwrap();
        sandbox.path().join(name)
    };
    let [many, one] = [export("many", 0, 0..39), export("one", 5, 39..40)];
    let from = ["--from", as_text(&many), "--from", as_text(&one)];
    let embedded = sandbox.output(&[&["profile", "embed", "--json", as_text(&program)], &from[..]].concat());
    assert_eq!(json(&embedded)["files"][0]["pages"], 2, "{}", text(&embedded.stderr));
}

#[test]
fn a_file_without_a_map_does_not_verify_and_one_that_cannot_be_checked_stops_no_other() {
    let sandbox = Sandbox::new();
    let program = sandbox.path().join("sleep");
    fs::copy("/usr/bin/sleep", &program).unwrap();
    let link = sandbox.path().join("link");
    symlink(&program, &link).unwrap();
    let verify = |more: &[&str]| sandbox.output(&[&["profile", "verify", "--json"], more].concat());
    let states = |output: &Output| {
        let verified = json(output)["verified"].as_array().unwrap().clone();
        verified.iter().map(|one| (one["state"].clone(), one["holder"].clone())).collect::<Vec<_>>()
    };
    let missing: [(Value, Value); 1] = [("missing".into(), as_text(&program.canonicalize().unwrap()).into())];
    let checked = verify(&[as_text(&link)]);
    assert_eq!((checked.status.code(), &states(&checked)[..]), (Some(1), &missing[..]));
    let script = sandbox.path().join("script");
    fs::write(&script, "#!/bin/sh\n").unwrap();
    let checked = verify(&["/no/such/file", as_text(&script), "no-such-profile", as_text(&link)]);
    assert_eq!((checked.status.code(), &states(&checked)[..]), (Some(125), &missing[..]));
    let said = text(&checked.stderr);
    for name in ["/no/such/file: no such file", as_text(&script), "no profile no-such-profile"] {
        assert!(said.contains(name), "{said}");
    }
}

#[test]
fn why_a_profile_is_not_exported_is_said_with_what_helps() {
    for (program, role, why, remedy) in [
        ("/home/ann/tool", "tool", "below a home directory", "install the program"),
        ("/usr/bin/perl", "perl -e #0badcafe", "stands in the call", "put the text"),
        (
            "/usr/bin/java",
            "java -cp @0badcafe com.acme.Merger",
            "nothing of its profile tells",
            "prepage learn",
        ),
    ] {
        let sandbox = Sandbox::new();
        fs::create_dir(sandbox.store()).unwrap();
        let profile = Profile { program: program.into(), role: role.into(), ..Profile::default() };
        fs::write(sandbox.store().join("one-0000000000000000.profile"), encode(&profile)).unwrap();
        let refused = sandbox.output(&["profile", "export", "--all", "-o", "-"]);
        let said = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(125), "{said}");
        assert!(said.contains(why) && said.contains(&format!("  try: {remedy}")), "{said}");
    }
}

/// Its name would stand in the role, or a checksum of it, whether a start is seen to use it or not, and whether it is there or not.
#[test]
fn nothing_in_a_home_is_learned_for_all_users() {
    let sandbox = Sandbox::new();
    let [place, java, node] = ["merger", "java", "node"].map(|name| sandbox.path().join(name));
    fs::create_dir(&place).unwrap();
    [&java, &node].iter().for_each(|program| symlink("/bin/true", program).unwrap());
    let classes = format!("{}/*:no.jar", place.display());
    let absent = place.join("absent");
    let commands = [
        &["sh", as_text(&place)][..],
        &[as_text(&java), "-cp", &classes, "Merger"],
        // Node finds absent.js.
        &[as_text(&node), as_text(&absent)],
    ];
    for command in commands {
        let mut learn = sandbox.prepage(&[&["learn", "--layer", "machine", "--"], command].concat());
        learn.env("HOME", sandbox.path()).env("PREPAGE_LAYERS", sandbox.path().join("machine"));
        let refused = learn.output().unwrap();
        let said = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(125), "{command:?}: {said}");
        assert!(said.contains("below a home directory") && said.contains("--layer user"), "{said}");
    }
}

/// A script that exports two programs is to hear that one of them is missing.
#[test]
fn a_named_profile_that_is_left_out_fails_and_one_of_all_does_not() {
    let sandbox = Sandbox::new();
    fs::create_dir(sandbox.store()).unwrap();
    for (at, program) in ["/usr/bin/perl", "/home/ann/tool"].into_iter().enumerate() {
        let role = program.rsplit_once('/').unwrap().1.to_owned();
        let profile = Profile { program: program.into(), role, ..Profile::default() };
        fs::write(sandbox.store().join(format!("one-000000000000000{at}.profile")), encode(&profile))
            .unwrap();
    }
    for (names, code) in [(&["perl", "tool"][..], 1), (&["perl"], 0), (&["--all"], 0)] {
        let exported = sandbox.output(&[&["profile", "export", "-o", "-"], names].concat());
        assert_eq!(exported.status.code(), Some(code), "{names:?}: {}", text(&exported.stderr));
        assert_eq!(bundle::read(&exported.stdout).unwrap().len(), 1, "{names:?}");
    }
}

#[test]
fn profiles_are_exported_merged_and_imported() {
    let sandbox = Sandbox::outside_homes();
    let (_place, maps) = maps_place();
    if !can_learn(&sandbox) {
        return;
    }
    let program = learned(&sandbox, "/usr/bin/sleep", &["0"]);
    learned(&sandbox, "/usr/bin/true", &[]);
    assert_eq!(sandbox.profiles().len(), 2);
    let at = |name: &str| sandbox.path().join(name).to_str().unwrap().to_owned();
    let [all, one, both, swapped] = ["all", "one", "both", "swapped"].map(at);
    assert!(sandbox.output(&["profile", "export", "--all", "-o", &all]).status.success());
    assert!(sandbox.output(&["profile", "export", "sleep", "-o", &one]).status.success());
    assert!(sandbox.output(&["profile", "merge", &all, &one, "-o", &both]).status.success());
    assert!(sandbox.output(&["profile", "merge", &one, &all, &one, "-o", &swapped]).status.success());
    assert_eq!(fs::read(&both).unwrap(), fs::read(&all).unwrap(), "nothing new in a part of it");
    assert_eq!(fs::read(&swapped).unwrap(), fs::read(&all).unwrap());

    fs::remove_file(&program).unwrap();
    let dry = json(&fresh(&sandbox, &maps, &["profile", "import", "--dry-run", "--json", &all]));
    let profiles = dry["profiles"].as_array().unwrap();
    assert_eq!(profiles.len(), 2);
    assert!(!sandbox.path().join("fresh-store").exists(), "a dry run writes nothing");
    let taken = fresh(&sandbox, &maps, &["profile", "import", &all]);
    let told = text(&taken.stdout);
    assert!(told.contains("taken") && told.contains("there is no such file"), "{told}");
    let again = text(&fresh(&sandbox, &maps, &["profile", "import", &all]).stdout);
    assert!(again.contains("nothing new") && !again.contains(": taken"), "{again}");
    let listed = text(&fresh(&sandbox, &maps, &["profile", "list"]).stdout);
    assert!(listed.contains("sleep") && listed.contains("true"), "{listed}");

    for (damage, expected) in [("#!/bin/sh\n", "not a prepage profile"), ("", "empty")] {
        fs::write(&one, damage).unwrap();
        let refused = fresh(&sandbox, &maps, &["profile", "import", &one]);
        assert_eq!(refused.status.code(), Some(125));
        assert!(text(&refused.stderr).contains(expected), "{}", text(&refused.stderr));
    }
}

#[test]
fn what_cannot_be_read_of_all_profiles_is_named_and_fails() {
    let sandbox = Sandbox::outside_homes();
    let (_place, maps) = maps_place();
    if !can_learn(&sandbox) {
        return;
    }
    learned(&sandbox, "/usr/bin/sleep", &["0"]);
    learned(&sandbox, "/usr/bin/true", &[]);
    assert_eq!(sandbox.profiles().len(), 2);
    let damaged = sandbox.profiles().remove(0);
    fs::write(&damaged, "damaged").unwrap();
    let bundle = sandbox.path().join("all");
    for command in
        [["export", "--all", "-o", as_text(&bundle)], ["embed", "--all", "--sidecar", as_text(&maps)]]
    {
        let output = sandbox.output(&[&["profile"][..], &command].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(as_text(damaged.file_name().unwrap().as_ref())), "{said}");
    }
    assert!(bundle.exists() && maps.exists(), "what can be read is there");
}

#[test]
fn nobodys_maps_steer_root() {
    let sandbox = Sandbox::new();
    let (_place, maps) = maps_place();
    if !is_root() || !can_learn(&sandbox) {
        return;
    }
    let program = learned(&sandbox, "/usr/bin/sleep", &["0"]);
    let written = sandbox.output(&["profile", "embed", "--sidecar", as_text(&maps), as_text(&program)]);
    assert!(written.status.success(), "{}", text(&written.stderr));
    let start = || fresh(&sandbox, &maps, &["run", "-v", "--no-learn", "--", as_text(&program), "0.2"]);
    let run = || text(&sandbox.in_time(start).stderr);
    chown(&maps, Some(65534), Some(65534)).unwrap();
    let told = run();
    assert!(told.contains("could have been written by others (owner 65534"), "{told}");
    chown(&maps, Some(0), Some(0)).unwrap();
    fs::set_permissions(&maps, fs::Permissions::from_mode(0o777)).unwrap();
    assert!(run().contains("could have been written by others"), "{}", run());
    let refused = sandbox.output(&["profile", "embed", "--sidecar", as_text(&maps), as_text(&program)]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("try: a directory that only root"), "{}", text(&refused.stderr));
    fs::set_permissions(&maps, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(run().contains("page maps: prefetched"), "{}", run());
}

#[test]
fn another_user_follows_roots_maps_but_reads_only_what_they_may() {
    let sandbox = Sandbox::new();
    if !is_root() || !can_learn(&sandbox) {
        return;
    }
    // Another user must be able to reach the binaries, the program and the maps.
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for binary in [env!("CARGO_BIN_EXE_prepage"), env!("CARGO_BIN_EXE_prepage-tools")] {
        copy_program(binary, place.path().join(binary.rsplit('/').next().unwrap()));
    }
    let program = learned(&sandbox, "/usr/bin/sleep", &["0"]);
    let theirs = place.path().join("sleep");
    copy_program(&program, &theirs);
    let maps = place.path().join("maps");
    let written = sandbox.output(&["profile", "embed", "--sidecar", as_text(&maps), as_text(&theirs)]);
    assert!(written.status.success(), "{}", text(&written.stderr));
    let run = |maps: &Path| {
        let mut command = Command::new(place.path().join("prepage"));
        command.args(["run", "-v", "--no-learn", "--", as_text(&theirs), "0.2"]).uid(65534).gid(65534);
        command.env("PREPAGE_STORE", place.path().join("none")).env("PREPAGE_LAYERS", maps).current_dir("/");
        let output = sandbox.in_time(|| command.output().unwrap());
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stderr)
    };
    assert!(run(&maps).contains("page maps: prefetched"), "{}", run(&maps));
    // A map is no key: a program that may be executed and not read stays unread.
    fs::set_permissions(&theirs, fs::Permissions::from_mode(0o711)).unwrap();
    assert!(run(&maps).contains("may not be read"), "{}", run(&maps));
    fs::set_permissions(&theirs, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&maps, fs::Permissions::from_mode(0o700)).unwrap();
    assert!(run(&maps).contains("cannot be read"), "{}", run(&maps));
}
