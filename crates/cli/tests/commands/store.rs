//! What all profiles may take together (`store-max` of the configuration), and layers.

use std::fs;
use std::path::Path;

use crate::support::{Sandbox, can_learn, json, make_old, text, wait_for};
use prepage_core::profile::file::encode;
use prepage_core::profile::{ColdStart, Counts, Extent, History, Lookup, Profile};
use prepage_core::{PageIndex, PageRange};
use prepage_profiles::identity::profiled;
use prepage_profiles::{Layer, ProgramKey, StartContextPaths, Stores, bundle};
use prepage_testing::{Need, copy_program, has};

#[test]
fn steady_profiles_stay_within_the_cap_and_those_of_single_starts_make_room() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) {
        return;
    }
    let config = sandbox.path().join("prepage");
    fs::create_dir(&config).unwrap();
    fs::write(config.join("config"), "store-max = 64k\n").unwrap();
    let configured = |args: &[&str]| {
        let mut command = sandbox.prepage(args);
        command.env("XDG_CONFIG_HOME", sandbox.path());
        command.output().unwrap()
    };
    let listed = || json(&configured(&["profile", "list", "--json"]));
    let of = |name: &str| {
        let listed = listed();
        let one = listed["profiles"].as_array().unwrap().iter().find(|one| one["role"] == name).cloned();
        one.map(|one| one["observations"].as_u64().unwrap())
    };
    let cat = ["cat", "/etc/hostname"];
    wait_for("a start to be learned", || {
        assert!(configured(&[&["run", "--"], &cat[..]].concat()).status.success());
        sandbox.wait_for_helpers();
        of("cat").or(of("cat FILE"))
    });
    // Known for long.
    let key = ProgramKey::of(&cat.map(Into::into)).unwrap();
    let known = |profile: Option<Profile>| {
        profile.map(|profile| Profile { history: History { observations: 3, ..profile.history }, ..profile })
    };
    Stores::at(sandbox.store()).update(&key, Layer::User, known).unwrap();
    // Programs that somebody tries once, each with a profile of some kilobytes.
    for at in 0..40 {
        let program = sandbox.path().join(format!("tried{at}"));
        copy_program("/bin/ls", &program);
        let name = program.to_str().unwrap();
        wait_for("its profile", || {
            assert!(configured(&["run", "--", name, "/usr/lib"]).status.success());
            // Room is made when a profile is there.
            sandbox.wait_for_helpers();
            let files: Vec<String> = fs::read_dir(sandbox.store())
                .unwrap()
                .map(|f| f.unwrap().file_name().into_string().unwrap())
                .collect();
            files.iter().any(|file| file.starts_with(&format!("tried{at}-"))).then_some(())
        });
    }
    let listed = listed();
    let layer = &listed["layers"][0];
    assert_eq!((&layer["layer"], &layer["bytes_max"]), (&"user".into(), &(64 << 10).into()), "{layer}");
    assert!((32 << 10..=64 << 10).contains(&layer["bytes"].as_u64().unwrap()), "{layer}");
    assert!(layer["profiles"].as_u64().unwrap() < 41, "{layer}");
    assert!(of("cat").or(of("cat FILE")).is_some(), "what is started again and again stays");
    let shown = text(&configured(&["profile", "list"]).stdout);
    assert!(shown.lines().last().unwrap().starts_with("user: "), "{shown}");
    assert!(shown.contains("k of 64k in "), "{shown}");
}

/// What is measured is learned first, and written as by any other start.
#[test]
fn a_measurement_leaves_the_room_that_the_configuration_gives() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) {
        return;
    }
    let config = sandbox.path().join("prepage");
    fs::create_dir(&config).unwrap();
    fs::write(config.join("config"), "store-max = 1G\n").unwrap();
    assert!(sandbox.output(&["learn", "-q", "--", "true"]).status.success());
    // More than there is room for where nothing is configured.
    for at in 0..2 {
        let large = fs::File::create(sandbox.store().join(format!("large{at}-0.profile"))).unwrap();
        large.set_len(40 << 20).unwrap();
    }
    let mut measure = sandbox.prepage(&["measure", "--warm", "-n", "1", "--", "cat", "/etc/hostname"]);
    let measured = measure.env("XDG_CONFIG_HOME", sandbox.path()).output().unwrap();
    assert!(measured.status.success(), "{}", text(&measured.stderr));
    sandbox.wait_for_helpers();
    assert_eq!(sandbox.profiles().len(), 4);
}

#[test]
fn a_cap_without_room_for_a_profile_is_told() {
    let sandbox = Sandbox::new();
    let config = sandbox.path().join("prepage");
    fs::create_dir(&config).unwrap();
    fs::write(config.join("config"), "store-max = 1k\n").unwrap();
    let mut command = sandbox.prepage(&["run", "-v", "--", "echo", "ran"]);
    command.env("XDG_CONFIG_HOME", sandbox.path());
    let output = sandbox.in_time(|| command.output().unwrap());
    assert_eq!(text(&output.stdout), "ran\n");
    let told = text(&output.stderr);
    assert!(told.contains("not learning") && told.contains("try: a larger store-max"), "{told}");
}

#[test]
fn an_import_that_the_cap_leaves_no_room_for_is_told() {
    let sandbox = Sandbox::new();
    let config = sandbox.path().join("prepage");
    fs::create_dir(&config).unwrap();
    fs::write(config.join("config"), "store-max = 64k\n").unwrap();
    let (_, learned) = profile_of(&["/bin/ls"]);
    // 9 KB for 1000 hosts.
    let of_hosts = |role: &str, hosts: u64| Profile {
        program: "/usr/bin/x".into(),
        role: role.into(),
        sources: (0..hosts).map(|at| u64::MAX - at).collect(),
        ..learned.clone()
    };
    let profiles = [("x a", 3000), ("x b", 3000), ("x c", 3000), ("x d", 20_000)];
    let profiles = profiles.map(|(role, hosts)| of_hosts(role, hosts));
    let bundle = sandbox.path().join("bundle");
    fs::write(&bundle, bundle::write(&profiles).unwrap()).unwrap();
    let mut import = sandbox.prepage(&["profile", "import", bundle.to_str().unwrap()]);
    let output = import.env("XDG_CONFIG_HOME", sandbox.path()).output().unwrap();
    let (told, errors) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{told}{errors}");
    assert!(errors.contains("x d") && errors.contains("store-max"), "{errors}");
    let stores = Stores::at(sandbox.store());
    for profile in &profiles[..3] {
        let key = ProgramKey::of_profile(profile);
        let line = told.lines().find(|line| line.starts_with(&profile.role)).unwrap();
        let is_there = stores.path_of(&key, Layer::User).unwrap().exists();
        assert_eq!(line.contains("removed"), !is_there, "{told}");
    }
    assert!(told.contains(": taken:") && told.contains("removed"), "{told}");
    assert!(errors.contains("removed to make room"), "{errors}");
}

/// Roles are what somebody called a program with, and profiles come from others, too.
#[test]
fn what_a_terminal_obeys_is_shown_and_not_done() {
    let sandbox = Sandbox::new();
    let key = ProgramKey { program: "/opt/\x1b[2Jx".into(), role: "x \x1b]0;title\x07".into() };
    let profile = Profile { sources: vec![1], ..key.empty_profile() };
    Stores::at(sandbox.store()).update(&key, Layer::User, |_| Some(profile.clone())).unwrap();
    for args in [["profile", "show", "x"].as_slice(), &["profile", "list"]] {
        let output = sandbox.output(args);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let shown = text(&output.stdout);
        assert!(shown.contains("x \\x1b]0;title\\x07"), "{shown}");
        assert!(!shown.contains(|c: char| c.is_control() && c != '\n'), "{shown:?}");
    }
}

/// Names of files, too.
#[test]
fn files_whose_names_a_terminal_obeys_are_named() {
    let sandbox = Sandbox::new();
    let program = sandbox.path().join("ls \x1b[2J");
    fs::copy("/bin/ls", &program).unwrap();
    let program = program.to_str().unwrap();
    let store = sandbox.path().join("store \x1b[2J");
    let bundle = sandbox.path().join("bundle \x1b[2J");
    let (_, profile) = profile_of(&[program]);
    Stores::at(sandbox.store())
        .update(&ProgramKey::of(&[program.into()]).unwrap(), Layer::User, |_| Some(profile.clone()))
        .unwrap();
    for args in [
        &["profile", "embed", program][..],
        &["profile", "strip", program],
        &["profile", "sections", program],
        &["profile", "merge", "-o", bundle.to_str().unwrap(), program],
        &["residency", program],
        &["doctor"],
        &["profile", "list"],
        &["config"],
        &["run", "--", "no such program \x1b[2J"],
    ] {
        let output = sandbox.prepage(args).env("XDG_CONFIG_HOME", &store).output().unwrap();
        let shown = text(&output.stdout) + &text(&output.stderr);
        assert!(!shown.contains('\x1b'), "{args:?}: {shown}");
    }
}

/// Else it could say whatever it likes.
#[test]
fn a_name_with_an_end_of_line_stays_in_one_line() {
    let sandbox = Sandbox::new();
    let path = |name: &str| sandbox.path().join(name).to_str().unwrap().to_owned();
    let (key, profile) = profile_of(&["/bin/ls"]);
    let profile = Profile { role: "ls\nforged".into(), program: "/ls\nforged".into(), ..profile };
    let stores = Stores::at(sandbox.store());
    stores.update(&key, Layer::User, |_| Some(profile.clone())).unwrap();
    let (stored, forged) = (stores.path_of(&key, Layer::User).unwrap(), "x\nforged.profile");
    fs::copy(stored, sandbox.store().join(forged)).unwrap();
    let from = sandbox.store().join(forged);
    let from = from.to_str().unwrap();
    let (program, bundle) = (path("ls\nforged"), path("bundle\nforged"));
    fs::copy("/bin/ls", &program).unwrap();
    for args in [
        &["profile", "list"][..],
        &["profile", "merge", "-o", &bundle, from, from],
        &["profile", "import", "--dry-run", &bundle],
        &["profile", "import", &bundle],
        &["profile", "embed", "--from", &bundle, &program],
        &["profile", "sections", &program],
        &["profile", "strip", &program],
        &["residency", &program],
        &["profile", "rm", forged],
    ] {
        let output = sandbox.output(args);
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(
            said.contains("\\x0aforged") && !said.lines().any(|line| line.starts_with("forged")),
            "{args:?}: {said}"
        );
    }
}

/// A profile of the command with one page of its program.
fn profile_of(command: &[&str]) -> (ProgramKey, Profile) {
    let key = ProgramKey::of(&command.iter().map(Into::into).collect::<Vec<_>>()).unwrap();
    let profile =
        Profile { files: vec![profiled(Path::new(&key.program), [0]).unwrap()], ..key.empty_profile() };
    (key, profile)
}

/// It is followed first, so what only all others got would never reach who has learned it.
#[test]
fn what_is_learned_for_all_users_reaches_the_learners_own_profile() {
    let sandbox = Sandbox::new();
    if !can_learn(&sandbox) {
        return;
    }
    let layer = sandbox.path().join("machine");
    let [first, later] = ["first", "later"].map(|name| {
        let path = sandbox.path().join(name);
        fs::write(&path, vec![1; 1 << 16]).unwrap();
        make_old(&path);
        path
    });
    let start = |words: &[&str]| {
        let mut started = sandbox.prepage(words);
        let output = started.env("PREPAGE_LAYERS", &layer).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        sandbox.wait_for_helpers();
        text(&output.stderr)
    };
    let learn = |words: &[&str]| start(&[&["learn", "-q", "--layer", "machine", "--"], words].concat());
    learn(&["true"]);
    assert!(sandbox.profiles().is_empty(), "whoever has none of their own follows the machine's");
    sandbox.learned_by(|| drop(start(&["run", "-q", "--", "cat", first.to_str().unwrap()])));
    learn(&["cat", later.to_str().unwrap()]);
    let key = ProgramKey::of(&["cat".into(), later.clone().into()]).unwrap();
    let has_later = || {
        let own = Stores::at(sandbox.store()).find(&key).unwrap().expect("the first start was learned");
        own.profile.files.iter().any(|file| Path::new(&file.path) == later)
    };
    assert!(has_later());
    // A damaged one is replaced.
    sandbox.profiles().iter().for_each(|path| fs::write(path, "junk").unwrap());
    learn(&["cat", later.to_str().unwrap()]);
    assert!(has_later());
    // All others have theirs where it cannot be changed.
    fs::remove_file(sandbox.store().join("lock")).unwrap();
    fs::create_dir(sandbox.store().join("lock")).unwrap();
    let said = learn(&["cat", later.to_str().unwrap()]);
    assert!(said.contains("your own profile, which is followed first, could not be changed"), "{said}");
}

#[test]
fn rm_takes_one_layer_and_says_where_the_rest_is() {
    let sandbox = Sandbox::new();
    let machine = sandbox.path().join("machine");
    let paths = StartContextPaths {
        store: Some(sandbox.store()),
        layers: Some(vec![machine.clone()]),
        ..StartContextPaths::default()
    };
    let stores = Stores::for_uid(rustix::process::geteuid().as_raw(), &paths).unwrap();
    for (command, layer) in
        [("sleep", Layer::User), ("sleep", Layer::Machine), ("true", Layer::Machine), ("false", Layer::User)]
    {
        let (key, profile) = profile_of(&[command]);
        stores.update(&key, layer, |_| Some(profile.clone())).unwrap();
    }
    let rm = |args: &[&str]| {
        let mut command = sandbox.prepage(&[&["profile", "rm"], args].concat());
        let output = command.env("PREPAGE_LAYERS", &machine).output().unwrap();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let is_in = |command: &str, layer| stores.path_of(&profile_of(&[command]).0, layer).unwrap().exists();
    let (code, removed, said) = rm(&["sleep"]);
    assert!(code == Some(0) && said.contains("sleep is in other layers still: machine"), "{said}");
    assert!(removed.lines().count() == 1 && !is_in("sleep", Layer::User) && is_in("sleep", Layer::Machine));
    // What cannot be removed keeps nothing else.
    let (code, _, said) = rm(&["nothing", "true", "false"]);
    assert!(
        code == Some(1) && said.contains("no profile nothing") && said.contains("--layer machine"),
        "{said}"
    );
    assert!(is_in("true", Layer::Machine) && !is_in("false", Layer::User));
    assert_eq!(rm(&["--layer", "machine", "true"]).0, Some(0));
    assert!(!is_in("true", Layer::Machine));
}

#[test]
fn show_prints_all_roles_of_a_program() {
    let sandbox = Sandbox::new();
    for role in ["sleep", "sleep --help"] {
        let (mut key, mut profile) = profile_of(&["sleep"]);
        (key.role, profile.role) = (role.into(), role.into());
        profile.starts = vec![ColdStart {
            device: rustix::fs::makedev(254, 3),
            took_us: 5,
            prefetched_pages: 1,
            ..ColdStart::default()
        }];
        Stores::at(sandbox.store()).update(&key, Layer::User, |_| Some(profile.clone())).unwrap();
    }
    let shown = sandbox.output(&["profile", "show", "sleep"]);
    let said = text(&shown.stdout);
    assert!(shown.status.success(), "{}", text(&shown.stderr));
    assert!(said.starts_with("sleep\n") && said.contains("\n\nsleep --help\n"), "{said}");
    // A device has the name that others give it.
    assert!(said.contains("not known on device 254:3: 1 cold start with prefetch, 0 held out"), "{said}");
    let one = json(&sandbox.output(&["profile", "show", "--json", "sleep --help"]));
    assert_eq!(one["worth"]["gains"][0]["device"], "254:3");
    // A document is of one profile.
    let several = sandbox.output(&["profile", "show", "--json", "sleep"]);
    assert!(text(&several.stderr).contains("name one of them"), "{}", text(&several.stderr));
}

#[test]
fn show_tells_programs_which_pages_and_names_a_profile_holds() {
    let sandbox = Sandbox::new();
    let (key, mut profile) = profile_of(&["sleep"]);
    let seldom = Counts::from_sixteenths(8, 112);
    profile.files[0].extents = vec![
        Extent::new(PageRange::new(PageIndex(0), PageIndex(2)), 3),
        Extent {
            counts: seldom,
            by_read: true,
            ..Extent::new(PageRange::new(PageIndex(7), PageIndex(8)), 0)
        },
    ];
    let path = "/usr/lib/locale".to_owned();
    profile.lookups = vec![Lookup { path, list: true, counts: seldom }];
    Stores::at(sandbox.store()).update(&key, Layer::User, |_| Some(profile.clone())).unwrap();
    let shown = json(&sandbox.output(&["profile", "show", "--json", "sleep"]));
    let expected = serde_json::json!([
        { "start_page": 0, "pages": 2, "rank": 3, "by_read": false, "probability": 0.75 },
        { "start_page": 7, "pages": 1, "rank": 0, "by_read": true, "probability": 0.125 },
    ]);
    assert_eq!(shown["files"][0]["extents"], expected, "{shown}");
    let expected = serde_json::json!([{ "path": "/usr/lib/locale", "list": true, "probability": 0.125 }]);
    assert_eq!(shown["lookups"], expected, "{shown}");
}

#[test]
fn show_goes_on_behind_a_damaged_profile() {
    let sandbox = Sandbox::new();
    let (key, profile) = profile_of(&["sleep"]);
    let stores = Stores::at(sandbox.store());
    stores.update(&key, Layer::User, |_| Some(profile.clone())).unwrap();
    let (of_user, _) = stores.list(Layer::User).unwrap().remove(0);
    let machine = sandbox.path().join("machine");
    fs::create_dir(&machine).unwrap();
    let of_machine = machine.join(of_user.file_name().unwrap());
    let good = fs::read(&of_user).unwrap();
    let mut bad = good.clone();
    *bad.last_mut().unwrap() ^= 1;
    for (first, second) in [(&good, &bad), (&bad, &good)] {
        fs::write(&of_user, first).unwrap();
        fs::write(&of_machine, second).unwrap();
        let name = of_user.file_stem().unwrap().to_str().unwrap();
        let mut command = sandbox.prepage(&["profile", "show", name]);
        let shown = command.env("PREPAGE_LAYERS", &machine).output().unwrap();
        let (said, reported) = (text(&shown.stdout), text(&shown.stderr));
        assert!(said.starts_with("sleep\n") && reported.contains("not shown"), "{said}{reported}");
        assert_eq!(shown.status.code(), Some(1));
    }
}

#[test]
fn an_import_goes_on_behind_a_profile_that_cannot_be_written() {
    let sandbox = Sandbox::new();
    let stores = Stores::at(sandbox.store());
    let [(bad, first), (good, second)] = [profile_of(&["false"]), profile_of(&["sleep"])];
    fs::create_dir_all(stores.path_of(&bad, Layer::User).unwrap()).unwrap();
    let file = sandbox.path().join("bundle");
    fs::write(&file, bundle::write(&[first, second]).unwrap()).unwrap();
    let import =
        |more: &[&str]| sandbox.output(&[&["profile", "import", file.to_str().unwrap()], more].concat());
    let told = import(&["--dry-run", "--json"]);
    assert_eq!(told.status.code(), Some(1), "{}", text(&told.stderr));
    assert_eq!(json(&told)["failed"][0]["role"], "false");
    assert_eq!(json(&told)["profiles"].as_array().unwrap().len(), 1);
    let output = import(&[]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("false: not imported"), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("sleep: taken"), "{}", text(&output.stdout));
    assert!(stores.find(&good).unwrap().is_some());
}

#[test]
fn a_program_whose_name_is_no_utf8_is_found_by_it() {
    use std::os::unix::ffi::OsStrExt;
    let sandbox = Sandbox::new();
    let name = std::ffi::OsStr::from_bytes(b"caf\xe9");
    let program = sandbox.path().join(name);
    fs::copy("/bin/true", &program).unwrap();
    let key = ProgramKey::of(&[program.into()]).unwrap();
    let profile = key.empty_profile();
    Stores::at(sandbox.store()).update(&key, Layer::User, |_| Some(profile.clone())).unwrap();
    for command in ["show", "rm"] {
        let output = sandbox.prepage(&["profile", command]).arg(name).output().unwrap();
        assert!(output.status.success(), "{command}: {}", text(&output.stderr));
    }
}

#[test]
fn an_import_that_can_take_nothing_fails() {
    let sandbox = Sandbox::new();
    let (_, mut profile) = profile_of(&["sleep"]);
    profile.files[0].path = "/no/such/file".into();
    let file = sandbox.path().join("bundle");
    fs::write(&file, bundle::write(&[profile]).unwrap()).unwrap();
    let output = sandbox.output(&["profile", "import", file.to_str().unwrap()]);
    assert!(text(&output.stdout).contains("nothing of it can be taken"), "{}", text(&output.stdout));
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_file_whose_name_is_no_utf8_is_verified_and_embedded_from() {
    use std::os::unix::ffi::OsStrExt;
    let sandbox = Sandbox::new();
    let path = sandbox.path().join(std::ffi::OsStr::from_bytes(b"caf\xe9"));
    fs::write(&path, bundle::write(&[profile_of(&["sleep"]).1]).unwrap()).unwrap();
    let verified = sandbox.prepage(&["profile", "verify"]).arg(&path).output().unwrap();
    assert!(verified.status.success(), "{}", text(&verified.stderr));
    let program = sandbox.path().join("sleep");
    fs::copy("/bin/sleep", &program).unwrap();
    let mut embed = sandbox.prepage(&["profile", "embed", program.to_str().unwrap(), "--from"]);
    let embedded = embed.arg(&path).output().unwrap();
    assert!(embedded.status.success(), "{}", text(&embedded.stderr));
}

/// Packages have two directories.
#[test]
fn a_profile_is_found_by_its_beginning_in_each_directory_of_a_layer() {
    let sandbox = Sandbox::new();
    let places = ["machine", "local", "packages"].map(|name| sandbox.path().join(name));
    let encoded = |role: &str| {
        let mut bytes = encode(&Profile { role: role.into(), ..profile_of(&["sleep"]).1 });
        if role == "damaged" {
            *bytes.last_mut().unwrap() ^= 1;
        }
        bytes
    };
    let names = ["one", "two", "damaged"];
    for (place, role) in places.iter().zip(names) {
        fs::create_dir(place).unwrap();
        fs::write(place.join(format!("x-{role}.profile")), encoded(role)).unwrap();
    }
    let layers = std::env::join_paths(&places).unwrap();
    for (name, code) in names.into_iter().zip([0, 0, 125]) {
        let mut show = sandbox.prepage(&["profile", "show", name]);
        let shown = show.env("PREPAGE_LAYERS", &layers).output().unwrap();
        let (said, reported) = (text(&shown.stdout), text(&shown.stderr));
        assert_eq!(shown.status.code(), Some(code), "{name}: {said}{reported}");
        let is_told = match code {
            0 => said.starts_with(&format!("{name}\n")),
            _ => reported.contains("x-damaged.profile") && !reported.contains("no profile"),
        };
        assert!(is_told, "{name}: {said}{reported}");
    }
}

/// In a mount namespace of its own, for root's own store is that of the machine.
#[test]
fn root_learns_for_all_where_the_variable_names_no_store() {
    let sandbox = Sandbox::outside_homes();
    if !has(Need::Root) || !has(Need::Mounts) || !can_learn(&sandbox) {
        return;
    }
    let machine = sandbox.path().join("machine");
    let script =
        "mount -t tmpfs none /var/lib && \"$0\" learn -q -- /bin/true; ls /var/lib; ls \"$PREPAGE_LAYERS\"";
    let mut inside = sandbox.command("unshare", &["--mount", "--propagation", "private", "sh", "-c", script]);
    inside.arg(env!("CARGO_BIN_EXE_prepage")).env("PREPAGE_STORE", "").env("PREPAGE_LAYERS", &machine);
    let output = inside.output().unwrap();
    let learned = text(&output.stdout);
    assert!(
        learned.starts_with("lock\ntrue-") || learned.starts_with("true-"),
        "{learned}{}",
        text(&output.stderr)
    );
}

/// Many containers let root read /proc/sys alone.
#[test]
fn measure_says_what_stays_warm_and_takes_nobody_for_another() {
    let sandbox = Sandbox::new();
    if !has(Need::Root) || !has(Need::Mounts) || !can_learn(&sandbox) {
        return;
    }
    let script = "mount --bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys && exec \"$0\" measure -n 1 -- cat /etc/passwd";
    let mut inside = sandbox.command("unshare", &["--mount", "--propagation", "private", "sh", "-c", script]);
    let said = text(&inside.arg(env!("CARGO_BIN_EXE_prepage")).output().unwrap().stderr);
    assert!(said.contains("directories and inodes stay warm") && !said.contains("not root"), "{said}");
}
