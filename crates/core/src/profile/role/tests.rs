use super::*;

fn role<S: AsRef<str>>(argv: &[S]) -> String {
    super::role(argv, &|_| None)
}

/// Calls made in `directory`, where every file is that has an ending.
fn role_in(directory: &str, call: &str) -> String {
    let place =
        |name: &str| (name.contains('.') || name.contains('/')).then(|| format!("{directory}/{name}"));
    super::role(&call.split(' ').collect::<Vec<_>>(), &place)
}

#[test]
fn calls_that_differ_in_what_they_run_have_roles_of_their_own() {
    for (one, other) in [
        (role_in("/a", "python3 main.py"), role_in("/b", "python3 main.py")),
        (role_in("/a", "python3 -m main"), role_in("/b", "python3 -m main")),
        (role_in("/a", "java -jar x.jar"), role_in("/b", "java -jar x.jar")),
        (role(&["git", "status"]), role(&["git", "clone", "x"])),
        (role(&["git", "-C", "status", "log"]), role(&["git", "-C", "status", "diff"])),
        (role(&["cargo", "build"]), role(&["cargo", "--version"])),
        (role(&["npm", "run", "build"]), role(&["npm", "run", "test"])),
        (role(&["flatpak", "run", "--arch=x", "org.a"]), role(&["flatpak", "run", "org.b"])),
    ] {
        assert_ne!(one, other);
    }
    assert_eq!(role(&["cargo", "+nightly", "build", "--release"]), "cargo build --release");
    assert_eq!(role(&["flatpak", "run", "org.a", "file.odt"]), "flatpak run org.a *.odt");
    assert!(role_in("/a", "python3 main.py x").starts_with("python3 main.py@"));
    assert_eq!(role_in("/a", "busybox ls.x"), "busybox ls.x");
}

#[test]
fn a_long_class_path_leaves_the_class_and_two_of_them_differ() {
    let classes = |last: &str| format!("{}:{last}", ["/opt/some/library/of/many.jar"; 40].join(":"));
    let call = |path: &str, class| role(&["java", "-cp", &classes(path), class]);
    assert!(call("x", "A").ends_with(" A") && call("x", "A").len() < 40);
    assert_ne!(call("x", "A"), call("x", "B"));
    assert_ne!(call("x", "A"), call("y", "A"));
    let long = |last: &str| role(&["python3".to_string(), "x".repeat(500) + last]);
    assert!(long("a").len() <= ROLE_BYTES_MAX && long("a") != long("b"));
}

#[test]
fn wrappers_are_looked_through() {
    for wrapper in [
        "env",
        "env -i A=b C=d",
        "env -u X -C /tmp --",
        "sudo -u ann -E",
        "sudo -n A=b",
        "nice -n 5",
        "nice -5",
        "nohup",
        "setsid -w",
        "stdbuf -oL -e 0",
        "ionice -c 2 -n 7",
        "ionice -c3",
        "chrt -f 10",
        "taskset -c 0-3",
        "taskset 0x3",
        "timeout 5",
        "timeout -k 3 --foreground 5s",
        "timeout -s INT -- 5",
        "sudo nice -n 3 env A=b",
        "/usr/bin/time -v",
        "env - A=b",
        "env -iu HOME",
        "env -uHOME",
        "env --unset HOME --chdir /tmp",
        "env --unset=HOME --ignore-environment",
        "nice --adjustment 5",
        "nice --adjustment=5",
        "timeout --signal KILL 5",
        "timeout --kill-after=3 --preserve-status 5",
        "stdbuf --output L -i0",
        "sudo --user ann --preserve-env=HOME",
        "sudo -Hu ann",
        "sudo -uelvis",
        "ionice --class 2 --classdata=7",
        "chrt --sched-runtime 5 -d 0",
        "time --format %e -po out",
    ] {
        let call: Vec<&str> = wrapper.split(' ').chain(["gcc", "-c", "a.c"]).collect();
        assert_eq!(call[called(&call)], "gcc", "{wrapper}");
    }
    for alone in [
        "env",
        "sudo -l",
        "sudo -ne /etc/fstab",
        "env -iS gcc",
        "ionice -p 7",
        "taskset -p 7",
        "timeout 5",
        "gcc env",
    ] {
        let call: Vec<&str> = alone.split(' ').collect();
        assert_eq!(called(&call), 0, "{alone}");
    }
}

#[test]
fn what_stands_in_the_call_is_private() {
    assert!(is_private(&role(&["sh", "-c", "SECRET"])));
    assert!(is_private(&role(&[
        "python3".into(),
        "-X".into(),
        "x".repeat(500),
        "-c".to_string(),
        "SECRET".into()
    ])));
    assert!(!is_private(&role(&["gcc", "-c", "a.c"])));
}

#[test]
fn values_and_inputs_do_not_make_a_new_role() {
    assert_eq!(role(&["gcc", "-c", "a.c", "-o", "a.o"]), role(&["gcc", "-o", "b.o", "-c", "b.c", "c.c"]));
    assert_ne!(role(&["gcc", "-c", "a.c"]), role(&["gcc", "-S", "a.c"]));
    assert_ne!(role(&["clang", "--version"]), role(&["clang", "-c", "a.c"]));
    assert_eq!(role(&["ls", "-l", "/etc", "3.14", ".bashrc", "name.longending"]), "ls -l");
}

#[test]
fn kinds_of_files_make_roles_while_they_are_few() {
    assert_ne!(role(&["gcc", "-c", "a.c"]), role(&["gcc", "-c", "a.c++"]));
    assert_eq!(role(&["vim", "--", "-x.rs", "src/y.rs"]), "vim *.rs");
    assert_eq!(role(&["tar", "-c", "a.a", "b.b", "c.c", "d.d", "e.e"]), "tar -c");
}

#[test]
fn an_interpreter_is_told_by_its_program() {
    assert_eq!(role(&["python3", "-m", "pip", "list"]), "python3 -m pip");
    assert_eq!(role(&["java", "-cp", "x.jar", "-Xmx1g", "Main", "arg"]), "java -cp @c8c0801e -Xmx1g Main");
    assert_eq!(role(&["bash", "-e", "build.sh", "all"]), "bash -e build.sh");
    assert_eq!(role(&["perl"]), "perl");
    assert_eq!(role(&["/bin/busybox", "ls", "-l"]), "busybox ls");
    assert_ne!(role(&["python3", "a.py"]), role(&["python3", "b.py"]));
}

/// All scripts that are called so would be one program else.
#[test]
fn the_value_of_an_option_is_not_taken_for_the_script() {
    for option in ["-r", "-C", "--require", "--import", "--conditions", "--loader", "--experimental-loader"] {
        assert_eq!(role(&["node", option, "value", "app.js", "x"]), format!("node {option} value app.js"));
    }
    assert_eq!(role(&["node", "--import=./x.js", "app.js"]), "node --import ./x.js app.js");
    for call in [
        &["node", "--title=worker-17", "--env-file=clients/acme/.env", "app.js"][..],
        &["node", "--title", "worker-18", "--env-file", ".env", "app.js"],
    ] {
        assert_eq!(
            role(call),
            "node --title --env-file app.js",
            "neither is a matter of pages, nor others' to know"
        );
    }
}

#[test]
fn a_program_in_the_call_is_told_by_a_checksum_of_its_text() {
    let told = |text: &str| format!("#{:08x}", checksum(&[text.as_bytes()]));
    for (argv, expected) in [
        (&["sh", "-c", "SECRET", "x"][..], "sh -c {}"),
        (&["bash", "-euo", "pipefail", "-c", "SECRET"], "bash -euo pipefail -c {}"),
        (&["bash", "-lcx", "SECRET"], "bash -lcx {}"),
        (&["bash", "--rcfile", "a", "-lc", "SECRET"], "bash --rcfile a -lc {}"),
        (&["python3.11", "-X", "dev", "-W", "once", "-Ic", "SECRET"], "python3.11 -X dev -W once -Ic {}"),
        (&["python3", "-cSECRET"], "python3 -c {}"),
        (&["node", "-r", "./x.js", "-pe", "SECRET"], "node -r ./x.js -pe {}"),
        (&["node", "--eval=SECRET"], "node --eval {}"),
        (
            &["perl", "-MData::Dumper", "-I/home/lib", "-lne", "SECRET", "file"],
            "perl -MData::Dumper -I/home/lib -lne {}",
        ),
        (&["ruby", "-rset", "-e", "SECRET"], "ruby -rset -e {}"),
        (&["php", "-d", "x.key=SECRET", "-r", "SECRET"], "php -d x.key= -r {}"),
        (&["java", "-Ddb.password=SECRET", "-jar", "x.jar"], "java -Ddb.password= -jar x.jar"),
        (&["python3", "-X", "presite=SECRET", "-Xy=SECRET", "-m", "mod"], "python3 -X presite= -Xy= -m mod"),
    ] {
        assert_eq!(role(argv), expected.replace("{}", &told("SECRET")));
    }
    assert_ne!(role(&["sh", "-c", "ls"]), role(&["sh", "-c", "pwd"]));
}

/// Anybody may call a program so, and whoever watches programs has small stacks.
#[test]
fn a_call_of_interpreters_alone_is_not_followed_for_ever() {
    let call = vec!["sh"; 20_000];
    let told = std::thread::Builder::new().stack_size(128 << 10).spawn(move || role(&call)).unwrap();
    assert_eq!(told.join().unwrap(), "sh sh sh sh");
}

#[test]
fn odd_arguments_are_no_trouble() {
    assert_eq!(role::<&str>(&[]), "");
    assert_eq!(role(&["x", "", "-", "--", "-q"]), "x");
    assert_eq!(role(&["sh", "-c"]), "sh -c");
    assert_eq!(role(&["python3", "-é", "--", "", "x"]), "python3 -é -- ");
    assert!(role(&["python3".to_string(), "é".repeat(900)]).len() <= ROLE_BYTES_MAX);
}
