//! Programs that `prepage enable` has started through links, and the configuration files, as their user meets them.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use prepage_testing::{Need, copy_program, has, write_program};
use prepage_trace::parquet::read_trace;

use crate::support::{Sandbox, json, text};

/// A user's home with a directory of programs, and the link directory of `prepage enable` (made by hand where root's is
/// everybody's).
struct Home {
    sandbox: Sandbox,
    links: PathBuf,
    programs: PathBuf,
}

impl Home {
    fn new() -> Self {
        let sandbox = Sandbox::new();
        let (links, programs) = (sandbox.path().join("links"), sandbox.path().join("programs"));
        fs::create_dir(&links).unwrap();
        fs::create_dir(&programs).unwrap();
        Self { sandbox, links, programs }
    }

    fn script(&self, directory: &Path, name: &str, text: &str) -> PathBuf {
        let path = directory.join(name);
        write_program(&path, format!("#!/bin/sh\n{text}\n"));
        path
    }

    fn link(&self, name: &str) -> PathBuf {
        let link = self.links.join(name);
        symlink(env!("CARGO_BIN_EXE_prepage"), &link).unwrap();
        link
    }

    /// A command in a shell whose PATH has the links in front.
    fn shell(&self, line: &str) -> Output {
        let path = format!("{}:{}:/usr/bin:/bin", self.links.display(), self.programs.display());
        let mut command = self.sandbox.command("/bin/sh", &["-c", line]);
        command.env("PATH", path).env("XDG_CONFIG_HOME", self.sandbox.path().join("config"));
        command.output().unwrap()
    }

    fn config(&self, text: &str) {
        fs::create_dir_all(self.sandbox.path().join("config/prepage")).unwrap();
        fs::write(self.sandbox.path().join("config/prepage/config"), text).unwrap();
    }
}

#[test]
fn a_link_starts_the_program_behind_it_with_its_name_arguments_and_exit_code() {
    let home = Home::new();
    home.link("tool");
    home.script(&home.programs, "tool", "echo \"$0\" \"$@\"; env | grep -c PREPAGE_PASSED; exit 7");
    let output = home.shell("tool 'a b' c");
    let expected = format!("{} a b c\n0\n", home.programs.join("tool").display());
    assert_eq!((text(&output.stdout), output.status.code()), (expected, Some(7)), "{}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "", "a program that is enabled says nothing of its own");
    // prepage as a login shell is prepage.
    let own = Command::new(env!("CARGO_BIN_EXE_prepage")).arg0("-prepage").arg("--version").output().unwrap();
    assert!(own.status.success(), "{}", text(&own.stderr));
    // If the caller used the link's path, the program gets its own path as argv[0].
    home.link("bash");
    let output = Command::new(home.links.join("bash"))
        .args(["-c", "echo $0"])
        .env("PATH", format!("{}:/usr/bin:/bin", home.links.display()))
        .env("PREPAGE_STORE", home.sandbox.store())
        .output()
        .unwrap();
    assert_eq!(text(&output.stdout), "/usr/bin/bash\n");
}

/// Wrappers give the program their own name (`exec -a "$0" node …`), by which the link would find the wrapper.
#[test]
fn a_caller_may_give_a_program_another_name_than_its_own() {
    let home = Home::new();
    home.link("bash");
    let wrapper = home.script(&home.programs, "wrapper", "exit 9");
    let path = format!("{}:{}:/usr/bin:/bin", home.links.display(), home.programs.display());
    let started = |file: &Path, name: &Path, args: &[&str]| {
        let mut command = Command::new(file);
        command.arg0(name).args(args).env("PATH", &path).env("PREPAGE_STORE", home.sandbox.store());
        let output = command.output().unwrap();
        (text(&output.stdout), text(&output.stderr), output.status.code())
    };
    // Also none, what is no name, and prepage's own.
    let names = ["no-such-program", "/", "prepage-tools"].map(Path::new);
    for name in names.into_iter().chain([&*wrapper]) {
        let expected = (format!("{}\n", name.display()), String::new(), Some(7));
        assert_eq!(started(&home.links.join("bash"), name, &["-c", "echo $0; exit 7"]), expected);
        let own = started(env!("CARGO_BIN_EXE_prepage").as_ref(), name, &["run", "--", "sh", "-c", "exit 7"]);
        assert_eq!(own, (String::new(), String::new(), Some(7)), "prepage is prepage, whatever it is called");
    }
    assert_eq!(started(&home.links.join("bash"), "".as_ref(), &["-c", "exit 7"]).2, Some(7));
}

#[test]
fn a_compiler_finds_what_lies_beside_it_and_not_beside_the_link() {
    let home = Home::new();
    home.link("gcc");
    fs::write(home.sandbox.path().join("a.c"), "int main(void) { return 0; }\n").unwrap();
    let source = home.sandbox.path().join("a.c");
    for how in ["gcc", &format!("{} run -- gcc", env!("CARGO_BIN_EXE_prepage"))] {
        let output = home.shell(&format!("{how} -S -o /dev/null {}", source.display()));
        assert!(output.status.success() && output.stderr.is_empty(), "{how}: {}", text(&output.stderr));
    }
}

#[test]
fn a_link_behind_the_program_changes_nothing() {
    let home = Home::new();
    home.link("bash");
    let run = format!("{} run bash -c 'echo $0'", env!("CARGO_BIN_EXE_prepage"));
    for (path, name) in [("/usr/bin:/bin:$PATH", "bash\n"), ("$PATH", "/usr/bin/bash\n")] {
        let output = home.shell(&format!("PATH={path}; {run}"));
        assert_eq!(text(&output.stdout), name, "{}", text(&output.stderr));
    }
}

#[test]
fn a_link_whose_program_is_gone_says_what_to_do() {
    let home = Home::new();
    home.link("gone");
    let output = home.shell("gone");
    assert_eq!(output.status.code(), Some(127));
    assert!(text(&output.stderr).contains("prepage disable gone"), "{}", text(&output.stderr));
}

/// Links to links, as people make them in ~/bin, and copies of links that copying has followed.
#[test]
fn a_link_that_leads_to_nothing_but_itself_is_no_program() {
    let home = Home::new();
    for name in ["linked", "copied"] {
        home.link(name);
    }
    symlink(home.links.join("linked"), home.programs.join("linked")).unwrap();
    copy_program(home.links.join("copied"), home.programs.join("copied"));
    let run = format!("{} run --", env!("CARGO_BIN_EXE_prepage"));
    for (name, before) in [("linked", ""), ("copied", ""), ("linked", &*run)] {
        let output = home.shell(&format!("timeout 60 {before} {name}"));
        assert_eq!(output.status.code(), Some(127), "{before} {name}: {}", text(&output.stderr));
        assert!(
            text(&output.stderr).contains(&format!("prepage disable {name}")),
            "{}",
            text(&output.stderr)
        );
    }
    // What lies behind it is found.
    let behind = home.sandbox.path().join("behind");
    fs::create_dir(&behind).unwrap();
    home.script(&behind, "linked", "echo ran");
    let output = home.shell(&format!("PATH=$PATH:{}; timeout 60 linked", behind.display()));
    assert_eq!(text(&output.stdout), "ran\n", "{}", text(&output.stderr));
}

#[test]
fn wrappers_that_look_for_the_program_in_the_path_again_end_at_the_last_one() {
    let home = Home::new();
    home.link("tool");
    // As ccache does: the next in PATH, which is the link again.
    let wrapper = home.sandbox.path().join("wrappers");
    fs::create_dir(&wrapper).unwrap();
    home.script(&wrapper, "tool", "echo wrapper; tool \"$@\"");
    home.script(&home.programs, "tool", "echo real \"$1\"");
    let output = home.shell(&format!("PATH=$(echo $PATH | sed 's,:,:{}:,'); tool x", wrapper.display()));
    assert_eq!(text(&output.stdout), "wrapper\nreal x\n", "{}", text(&output.stderr));
    // Two installations with links of their own do not lead to each other.
    let other = home.sandbox.path().join("other");
    fs::create_dir(&other).unwrap();
    copy_program(env!("CARGO_BIN_EXE_prepage"), other.join("prepage"));
    symlink(other.join("prepage"), other.join("tool")).unwrap();
    let output = home.shell(&format!("PATH={}:$PATH; tool y", other.display()));
    assert_eq!(text(&output.stdout), "real y\n", "{}", text(&output.stderr));
    // Nor does `prepage run` take a link for the program.
    let run = home.shell(&format!("{} run -v tool z", env!("CARGO_BIN_EXE_prepage")));
    assert_eq!(text(&run.stdout), "real z\n", "{}", text(&run.stderr));
}

#[test]
fn a_program_that_starts_its_own_name_gets_the_first_in_the_path_as_without_the_link() {
    let home = Home::new();
    home.link("tool");
    let first = home.sandbox.path().join("first");
    fs::create_dir(&first).unwrap();
    home.script(&first, "tool", "if [ \"$1\" ]; then tool; else echo first; fi");
    home.script(&home.programs, "tool", "echo second");
    let in_front = format!("PATH=$(echo $PATH | sed 's,:,:{}:,')", first.display());
    let output = home.shell(&format!("{in_front}; tool nested"));
    assert_eq!(text(&output.stdout), "first\n", "{}", text(&output.stderr));
    // A wrapper calls what it finds by its path, with other arguments, and be it in a subshell.
    let find = "for next in $(which -a tool); do [ $next -ef $0 ] || break; done";
    home.script(&first, "tool", &format!("{find}; echo wrapper $($next other | cat)"));
    let output = home.shell(&format!("{in_front}; tool x"));
    assert_eq!(text(&output.stdout), "wrapper second\n", "{}", text(&output.stderr));
    // Two of them, one behind the other, end as well.
    let twice = home.sandbox.path().join("twice");
    fs::create_dir(&twice).unwrap();
    home.script(&twice, "tool", &format!("{find}; exec $next more"));
    let output = home.shell(&format!(
        "PATH=$(echo $PATH | sed 's,:,:{}:{}:,'); tool x",
        twice.display(),
        first.display()
    ));
    assert_eq!(text(&output.stdout), "wrapper second\n", "{}", text(&output.stderr));
}

#[test]
fn what_is_excluded_or_switched_off_is_started_and_nothing_else() {
    let home = Home::new();
    home.script(&home.programs, "tool", "cat /etc/passwd | wc -l >/dev/null; echo ran");
    let run_as = |name: &str| format!("{} run -v {name}", env!("CARGO_BIN_EXE_prepage"));
    let run = run_as("tool");
    for (config, word) in [("exclude = gdb to*l\n", "excluded"), ("enabled = no\n", "switched off")] {
        home.config(config);
        let output = home.sandbox.in_time(|| home.shell(&run));
        assert_eq!(text(&output.stdout), "ran\n");
        assert!(text(&output.stderr).contains(word), "{config}: {}", text(&output.stderr));
    }
    // A path holds for a program that is called by a relative one, too.
    home.config(&format!("exclude = {}/*\n", home.programs.display()));
    let relative = format!("cd {}; {}", home.programs.display(), run_as("./tool"));
    let output = home.sandbox.in_time(|| home.shell(&relative));
    assert!(text(&output.stderr).contains("excluded"), "{}", text(&output.stderr));
    fs::remove_file(home.sandbox.path().join("config/prepage/config")).unwrap();
    let output = home.shell(&format!("PREPAGE=off {run}"));
    assert!(text(&output.stdout) == "ran\n" && text(&output.stderr).contains("switched off"));
    assert!(home.sandbox.profiles().is_empty());
}

#[test]
fn a_file_full_of_mistakes_was_read_all_the_same() {
    let home = Home::new();
    home.config(&format!("{}learn = no\n", "x\n".repeat(150)));
    let shown = |home: &Home| {
        let config = home.shell(&format!("{} config", env!("CARGO_BIN_EXE_prepage")));
        let line = |line: &&str| line.contains("prepage/config: ");
        text(&config.stdout).lines().find(line).unwrap().rsplit(": ").next().unwrap().to_owned()
    };
    assert_eq!(shown(&home), "read");
    fs::remove_file(home.sandbox.path().join("config/prepage/config")).unwrap();
    fs::create_dir(home.sandbox.path().join("config/prepage/config")).unwrap();
    assert_eq!(shown(&home), "cannot be read");
}

#[test]
fn mistakes_in_the_configuration_are_told_to_who_asks_and_keep_nothing_from_starting() {
    let home = Home::new();
    home.script(&home.programs, "tool", "echo ran");
    home.config("lern = no\nlearn = no\nhold-outs = perhaps\n");
    let run = home.shell(&format!("{} run tool", env!("CARGO_BIN_EXE_prepage")));
    assert_eq!((text(&run.stdout).as_str(), text(&run.stderr).as_str()), ("ran\n", ""));
    let verbose = format!("{} run -v tool", env!("CARGO_BIN_EXE_prepage"));
    let verbose = home.sandbox.in_time(|| home.shell(&verbose));
    assert!(text(&verbose.stderr).contains("config:1: no such key: `lern`"), "{}", text(&verbose.stderr));
    let config = home.shell(&format!("{} config --json", env!("CARGO_BIN_EXE_prepage")));
    assert_eq!(config.status.code(), Some(1));
    let report = json(&config);
    assert_eq!(report["mistakes"].as_array().unwrap().len(), 2, "{report}");
    assert_eq!(report["values"]["learn"]["value"], "no");
    assert!(report["values"]["learn"]["origin"].as_str().unwrap().ends_with("prepage/config:2"));
    assert_eq!(report["values"]["store-max"], serde_json::json!({ "value": "64M", "origin": "default" }));
}

/// As a user without rights, who has a home of their own.
fn as_user(home: &Home, line: &str) -> Output {
    let directory = home.sandbox.path();
    fs::set_permissions(directory, fs::Permissions::from_mode(0o777)).unwrap();
    let script = format!(
        "export HOME={0} PATH={1}:/usr/bin:/bin PREPAGE_STORE={0}/store; unset XDG_CONFIG_HOME XDG_DATA_HOME; {line}",
        directory.display(),
        home.programs.display(),
    );
    let mut command = match rustix::process::geteuid().is_root() {
        true => home
            .sandbox
            .command("setpriv", &["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", &script]),
        false => home.sandbox.command("sh", &["-c", &script]),
    };
    command.output().unwrap()
}

#[test]
fn enable_makes_links_and_copies_for_menus_and_disable_takes_them_back() {
    let home = Home::new();
    home.script(&home.programs, "tool", "echo ran");
    let data = home.sandbox.path().join("data");
    fs::create_dir_all(data.join("applications")).unwrap();
    fs::write(
        data.join("applications/tool.desktop"),
        "[Desktop Entry]\nName=Tool\nExec=tool %f\n[Desktop Action a]\nExec=other\n",
    )
    .unwrap();
    // By another path than that in PATH, as /bin/ls where /bin is a link to /usr/bin.
    let merged = home.sandbox.path().join("merged");
    symlink(&home.programs, &merged).unwrap();
    fs::write(
        data.join("applications/by-path.desktop"),
        format!("[Desktop Entry]\nName=Tool\nExec = {}/tool %f\n", merged.display()),
    )
    .unwrap();
    let prepage = env!("CARGO_BIN_EXE_prepage");
    let enable = format!("XDG_DATA_DIRS={} {prepage} enable", data.display());
    let enabled = as_user(&home, &format!("{enable} --desktop tool"));
    assert!(enabled.status.success(), "{}", text(&enabled.stderr));
    // PATH does not have the links yet.
    assert!(text(&enabled.stderr).contains(".local/lib/prepage/bin:$PATH"), "{}", text(&enabled.stderr));
    let link = home.sandbox.path().join(".local/lib/prepage/bin/tool");
    assert_eq!(fs::read_link(&link).unwrap(), Path::new(prepage).canonicalize().unwrap());
    let copy = home.sandbox.path().join(".local/share/applications/tool.desktop");
    let menu = fs::read_to_string(&copy).unwrap();
    assert!(menu.contains(" run -- tool %f\n") && menu.contains("\nExec=other\n"), "{menu}");
    let by_path = fs::read_to_string(copy.with_file_name("by-path.desktop")).unwrap();
    assert!(by_path.contains(&format!(" run -- {}/tool %f\n", merged.display())), "{by_path}");
    let started = as_user(&home, "PATH=$HOME/.local/lib/prepage/bin:$PATH tool");
    assert_eq!(text(&started.stdout), "ran\n", "{}", text(&started.stderr));
    // The same file starts another program, which comes and goes.
    let other = home.programs.join("other");
    copy_program(home.programs.join("tool"), &other);
    assert!(as_user(&home, &format!("{enable} --desktop other")).status.success());
    let both = fs::read_to_string(&copy).unwrap();
    assert!(both.contains(" run -- tool %f\n") && both.contains(" run -- other\n"), "{both}");
    assert!(as_user(&home, &format!("{prepage} disable other")).status.success());
    assert_eq!(fs::read_to_string(&copy).unwrap(), menu);
    let listed = as_user(&home, &format!("{prepage} enable --list"));
    assert!(
        text(&listed.stdout).contains(home.programs.join("tool").to_str().unwrap()),
        "{}",
        text(&listed.stdout)
    );
    for (wrong, word) in [
        ("/usr/bin/sh", "without a directory"),
        ("no-such-program", "no such program"),
        ("prepage", "cannot have this name"),
    ] {
        let refused = as_user(&home, &format!("{enable} {wrong}"));
        assert!(
            !refused.status.success() && text(&refused.stderr).contains(word),
            "{}",
            text(&refused.stderr)
        );
    }
    // What others put there stays.
    let foreign = link.with_file_name("sh");
    symlink("/bin/sh", &foreign).unwrap();
    let refused = as_user(&home, &format!("{enable} sh"));
    let said = text(&refused.stderr);
    assert!(!refused.status.success() && !said.contains("in front"), "there is no link to sh: {said}");
    assert!(as_user(&home, &format!("{prepage} disable --all")).status.success());
    assert!(!link.exists() && !copy.exists() && foreign.exists());
    // Copies whose link somebody has removed are taken back as well.
    assert!(as_user(&home, &format!("{enable} --desktop tool")).status.success());
    fs::remove_file(&link).unwrap();
    assert!(copy.exists() && as_user(&home, &format!("{prepage} disable --all")).status.success());
    assert!(!copy.exists() && !copy.with_file_name("by-path.desktop").exists());
    let again = as_user(&home, &format!("{prepage} disable tool"));
    assert!(!again.status.success() && text(&again.stderr).contains("is not enabled"));
}

/// The program notes how it is started.
#[test]
fn an_enabled_program_is_learned_alone_and_measured_against_starts_without_prefetch() {
    let home = Home::new();
    if !crate::support::can_learn(&home.sandbox) {
        return;
    }
    home.link("tool");
    let notes = home.sandbox.path().join("notes");
    let note = format!("if [ \"$PREPAGE\" = off ]; then echo off; else echo on; fi >> '{}'", notes.display());
    home.script(&home.programs, "tool", &note);
    let prepage = env!("CARGO_BIN_EXE_prepage");
    let learned = home.shell(&format!("{prepage} learn -q -- tool; {prepage} profile show --json -- tool"));
    let shown = json(&learned);
    let files = shown["files"].as_array().unwrap().iter().map(|file| file["path"].as_str().unwrap());
    let own: Vec<&str> = files.filter(|path| path.ends_with("/prepage")).collect();
    assert!(own.is_empty(), "{own:?}");
    fs::remove_file(&notes).unwrap();
    let measure = format!("{prepage} measure --warm -n 1 -- tool");
    let measured = home.shell(&measure);
    assert!(measured.status.success(), "{}", text(&measured.stderr));
    assert_eq!(fs::read_to_string(&notes).unwrap(), "off\non\non\noff\n", "without, with; with, without");
}

/// As `run` leaves it alone.
#[test]
fn what_is_excluded_is_not_measured_however_it_is_called() {
    let home = Home::new();
    home.script(&home.programs, "tool", "exit");
    symlink("tool", home.programs.join("alternative")).unwrap();
    let prepage = env!("CARGO_BIN_EXE_prepage");
    let programs = home.programs.display();
    let by_directory = format!("exclude = {programs}/t*");
    for (config, command) in [
        ("exclude = tool", "tool"),
        ("exclude = true", "env true"),
        (&by_directory, "./tool"),
        (&by_directory, "alternative"),
        ("exclude = sh", "tool"),
        ("exclude-cgroup = *", "tool"),
        ("enabled = no", "tool"),
        ("", "PREPAGE=off tool"),
    ] {
        home.config(config);
        let (before, command) =
            command.split_once("off ").map_or(("", command), |(_, tool)| ("PREPAGE=off ", tool));
        let refused =
            home.shell(&format!("cd {programs}; {before}{prepage} measure --warm -n 1 -- {command}"));
        let said = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(125), "{config} {command}: {said}{}", text(&refused.stdout));
        assert!(said.contains("try: prepage config"), "{config} {command}: {said}");
    }
}

#[test]
fn an_enabled_program_is_recorded_and_prepage_is_not() {
    let home = Home::new();
    if !crate::support::can_learn(&home.sandbox) {
        return;
    }
    home.link("cat");
    let (prepage, trace) = (env!("CARGO_BIN_EXE_prepage"), home.sandbox.path().join("trace"));
    for command in ["cat".to_owned(), format!("{}/cat", home.links.display())] {
        let recorded =
            home.shell(&format!("{prepage} record -o {} -- {command} /etc/hostname", trace.display()));
        assert!(recorded.status.success(), "{}", text(&recorded.stderr));
        let trace = read_trace(&trace).unwrap();
        assert_eq!(trace.facts.execs, 1, "{}", text(&recorded.stderr));
        assert!(!trace.objects.iter().any(|object| object.path.ends_with("/prepage")));
        assert_eq!(trace.facts.command, [&*command, "/etc/hostname"], "as the user called it");
    }
}

#[test]
fn links_to_a_prepage_that_is_gone_are_listed_as_such() {
    let home = Home::new();
    home.script(&home.programs, "tool", "exit");
    let links = home.sandbox.path().join(".local/lib/prepage/bin");
    fs::create_dir_all(&links).unwrap();
    symlink("/no/such/place/prepage", links.join("tool")).unwrap();
    let listed = as_user(&home, &format!("{} enable --list", env!("CARGO_BIN_EXE_prepage")));
    let said = text(&listed.stdout);
    assert_eq!(listed.status.code(), Some(1), "{said}");
    assert!(said.contains("prepage is not there any more (prepage enable tool)"), "{said}");
}

/// In a mount namespace of its own, where root's links are this test's.
#[test]
fn what_root_enables_is_for_all_and_can_be_replaced_by_root_alone() {
    if !has(Need::Root) || !has(Need::Mounts) {
        return;
    }
    let home = Home::new();
    home.script(&home.programs, "tool", "exit");
    fs::create_dir(home.programs.join("applications")).unwrap();
    fs::write(home.programs.join("applications/tool.desktop"), "[Desktop Entry]\nExec=tool\n").unwrap();
    let script = "umask 022; mount -t tmpfs -o mode=755 none /usr/local && cd /usr/local && mkdir bin && cp \"$1\" \"$2\" bin || exit\n\
        export HOME=\"$0\" PATH=\"$0/programs:$PATH\" XDG_DATA_DIRS=\"$0/programs\"\n\
        for mode in 777 755; do chmod $mode bin; bin/prepage enable --desktop tool >&2; echo $?; find lib share ! -type d; done\n\
        mkdir -m 777 home; user=\"setpriv --reuid=65534 --regid=65534 --clear-groups env HOME=/usr/local/home\"\n\
        export XDG_DATA_DIRS=\"/usr/local/share:$XDG_DATA_DIRS\"; $user bin/prepage enable --desktop tool >&2; echo $?\n\
        grep -h Of= home/.local/share/applications/*\n\
        bin/prepage disable tool; find lib share ! -type d; cp \"$0/programs/applications/tool.desktop\" share/applications\n\
        bin/prepage enable --desktop tool >&2; echo $?; cat share/applications/*";
    fs::set_permissions(home.sandbox.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut inside = Command::new("unshare");
    inside.args(["--mount", "--propagation", "private", "sh", "-c", script]).arg(home.sandbox.path());
    let output = inside
        .args([env!("CARGO_BIN_EXE_prepage"), env!("CARGO_BIN_EXE_prepage-tools")])
        .env_remove("XDG_DATA_HOME")
        .output()
        .unwrap();
    let (said, done) = (text(&output.stderr), text(&output.stdout));
    let original = home.programs.join("applications/tool.desktop");
    let expected = format!(
        "125\n0\nlib/prepage/bin/tool\nshare/applications/tool.desktop\n\
         0\nX-Prepage-Copy-Of={}\n\
         1\n[Desktop Entry]\nExec=tool\n",
        original.display()
    );
    assert_eq!(done, expected, "{said}");
    let refused = "others than root may replace /usr/local/bin/prepage: /usr/local/bin (owner 0, mode 0777)";
    assert!(said.contains(refused) && said.contains("try: sudo make install"), "{said}");
    assert!(said.contains("/usr/local/share/applications/tool.desktop is your own"), "{said}");
    assert!(!home.sandbox.path().join(".local").exists());
}

#[test]
fn measure_finds_the_starter_where_distributions_put_it() {
    let home = Home::new();
    let (bin, libexec) = (home.sandbox.path().join("bin"), home.sandbox.path().join("libexec/prepage"));
    fs::create_dir_all(&bin).unwrap();
    fs::create_dir_all(&libexec).unwrap();
    fs::hard_link(env!("CARGO_BIN_EXE_prepage"), bin.join("prepage"))
        .unwrap_or_else(|_| copy_program(env!("CARGO_BIN_EXE_prepage"), bin.join("prepage")));
    fs::hard_link(env!("CARGO_BIN_EXE_prepage-tools"), libexec.join("prepage-tools")).unwrap_or_else(|_| {
        copy_program(env!("CARGO_BIN_EXE_prepage-tools"), libexec.join("prepage-tools"));
    });
    if !crate::support::can_learn(&home.sandbox) {
        return;
    }
    let measure = ["measure", "--warm", "-n", "1", "--", "cat", "/etc/passwd"];
    let output = home.sandbox.command(bin.join("prepage").to_str().unwrap(), &measure).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("warm, prefetched"));
    assert!(
        !text(&output.stdout).contains("dropped"),
        "warm starts drop no caches: {}",
        text(&output.stdout)
    );
    assert!(!text(&output.stderr).contains("start 1 of"), "progress is for terminals");
}

#[test]
fn doctor_looks_at_the_configuration() {
    let home = Home::new();
    let looked = |config: &str, name: &str| {
        home.config(config);
        let report = json(&home.shell(&format!("{} doctor --json", env!("CARGO_BIN_EXE_prepage"))));
        let checks = report["checks"].as_array().unwrap();
        checks.iter().find(|check| check["name"] == name).expect("looked at").clone()
    };
    let off = looked("learn = no\n", "configuration");
    assert!(off["found"].as_str().unwrap().contains("prepage/config:1)"), "{off}");
    assert_eq!((&off["state"], &off["remedy"]), (&"limited".into(), &"prepage config".into()));
    let store = looked("store-max = 1k\n", "profile store");
    assert_eq!(store["state"], "missing", "{store}");
    assert!(store["remedy"].as_str().unwrap().contains("a larger store-max"), "{store}");
}
