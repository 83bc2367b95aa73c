//! Help, manual pages and completion: what a stranger meets first.

use std::process::Command;

use crate::support::{Sandbox, text};

/// What bash would offer for the last of `words`, without options.
fn completed(sandbox: &Sandbox, words: &[&str]) -> Vec<String> {
    let output = sandbox
        .command(env!("CARGO_BIN_EXE_prepage"), &[&["--", "prepage"], words].concat())
        .current_dir(sandbox.path())
        .env("COMPLETE", "bash")
        .env("_CLAP_COMPLETE_INDEX", words.len().to_string())
        .env("_CLAP_IFS", "\n")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).lines().filter(|word| !word.starts_with('-')).map(Into::into).collect()
}

#[test]
fn commands_traces_profiles_and_programs_are_completed() {
    let sandbox = Sandbox::new();
    for name in ["a.parquet", "b.txt"] {
        std::fs::write(sandbox.path().join(name), "").unwrap();
    }
    assert_eq!(completed(&sandbox, &["re"]), ["record", "report", "residency"]);
    for verb in [&["report"][..], &["export"], &["diff"], &["diff", "a.parquet"], &["simulate"]] {
        assert_eq!(completed(&sandbox, &[verb, &[""]].concat()), ["a.parquet"], "{verb:?}");
    }
    assert_eq!(completed(&sandbox, &["profile", "show", ""]), Vec::<String>::new());
    let profile = prepage_core::profile::Profile {
        program: "/usr/bin/some-program-1.2".into(),
        role: "some-role --option".into(),
        ..Default::default()
    };
    let store = sandbox.store();
    std::fs::create_dir(&store).unwrap();
    let bytes = prepage_core::profile::file::encode(&profile);
    std::fs::write(store.join("some-role-0000000000000000.profile"), bytes).unwrap();
    for verb in [["profile", "show"], ["profile", "rm"]] {
        let offered = completed(&sandbox, &[&verb[..], &["some"]].concat());
        assert_eq!(offered, ["some-role", "some-role-0000000000000000"], "{verb:?}");
    }
    // What lies behind the names, nobody waits for while a shell completes.
    let mut bytes = prepage_core::profile::file::encode(&profile);
    bytes.push(0);
    *bytes.last_mut().unwrap() = 0xff;
    std::fs::write(store.join("some-role-0000000000000000.profile"), &bytes).unwrap();
    assert!(!sandbox.output(&["profile", "show", "some-role-0000000000000000"]).status.success());
    let offered = completed(&sandbox, &["profile", "rm", "some"]);
    assert_eq!(offered, ["some-role", "some-role-0000000000000000"], "of a damaged profile");
    bytes.pop();
    std::fs::write(store.join("some-role-0000000000000000.profile"), bytes).unwrap();
    for offered in ["some-role", "some-role-0000000000000000", "some-role-0000000000000000.profile"] {
        let shown = sandbox.output(&["profile", "show", offered]);
        assert!(shown.status.success(), "{offered}: {}", text(&shown.stderr));
    }
    let listed = [&["report", "--by", "cl"][..], &["report", "--class", "disk,ca"], &["export", "-f", "pe"]];
    let names = listed.map(|words| completed(&sandbox, words));
    assert_eq!(names, [["class"], ["disk,cached"], ["perfetto"]]);
    let programs = completed(&sandbox, &["run", "--", "set"]);
    assert!(programs.contains(&"setpriv".to_owned()), "{programs:?}");
}

#[test]
fn shells_get_their_script() {
    for shell in ["bash", "zsh", "fish"] {
        let output = Command::new(env!("CARGO_BIN_EXE_prepage")).env("COMPLETE", shell).output().unwrap();
        let script = text(&output.stdout);
        assert!(output.status.success() && script.contains("prepage"), "{shell}: {output:?}");
        if shell == "zsh" {
            let complete = "_clap_dynamic_completer_prepage";
            let ending = format!("[[ ${{funcstack[1]}} != _prepage ]] || {complete}\n");
            assert!(
                script.contains(&format!("function {complete}()")) && script.ends_with(&ending),
                "{script}"
            );
        }
    }
    let unknown = Command::new(env!("CARGO_BIN_EXE_prepage")).env("COMPLETE", "tcsh").output().unwrap();
    let said = text(&unknown.stderr);
    assert!(said.starts_with("prepage: COMPLETE: unknown shell `tcsh`, expected one of `bash`"), "{said}");
}

#[test]
fn what_is_asked_for_and_cannot_be_printed_is_an_error() {
    let sandbox = Sandbox::new();
    let pages = sandbox.path().join("man");
    let silent = ["man", pages.to_str().unwrap()];
    let asked = [
        &["--help"][..],
        &["-h"],
        &["help", "-h"],
        &["--version"],
        &["help", "report"],
        &["run", "--help"],
        &["profile", "list"],
        &["doctor"],
        &["config", "--json"],
        &["enable", "--list"],
    ];
    for (redirected, why) in [
        (">/dev/full", "No space left"),
        (">&-", "Bad file descriptor"),
        ("1</dev/null", "Bad file descriptor"),
    ] {
        let script = format!("exec \"$@\" {redirected}");
        let redirected = |args: &[&str]| {
            let shell = ["-c", &script, "sh", env!("CARGO_BIN_EXE_prepage")];
            sandbox.command("sh", &[&shell[..], args].concat())
        };
        let completions = ["bash", "zsh", "fish"].map(|shell| {
            let mut command = redirected(&[]);
            command.env("COMPLETE", shell);
            command
        });
        for mut command in asked.map(redirected).into_iter().chain(completions) {
            let output = command.output().unwrap();
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(125), "{command:?}: {said}");
            let expected = format!("standard output: cannot be written: {why}");
            assert!(said.contains(&expected), "{command:?}: {said}");
        }
        let output = redirected(&silent).output().unwrap();
        assert!(output.status.success(), "what has nothing to print: {}", text(&output.stderr));
    }
    // A reader that has closed its pipe gets no message.
    for args in asked {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = sandbox.prepage(args).stdout(writer).output().unwrap();
        assert!(output.status.code() < Some(2) && output.stderr.is_empty(), "{args:?}: {output:?}");
    }
}

#[test]
fn every_command_in_the_help_has_a_manual_page() {
    let sandbox = Sandbox::new();
    let help = text(&sandbox.output(&["--help"]).stdout);
    let commands: Vec<&str> = help
        .lines()
        .skip_while(|line| !line.ends_with("faster:"))
        .take_while(|line| !line.starts_with("Options"))
        .filter_map(|line| line.strip_prefix("  ")?.split(' ').next())
        .collect();
    assert!(commands.contains(&"run") && commands.contains(&"calibrate"), "{help}");
    let pages = sandbox.path().join("man");
    assert!(sandbox.output(&["man", pages.to_str().unwrap()]).status.success());
    for command in commands {
        let page = std::fs::read_to_string(pages.join(format!("prepage-{command}.1"))).unwrap();
        assert!(page.contains(".SH OPTIONS") || page.contains(".SH SUBCOMMANDS"), "{command}");
    }
    for command in ["run", "record", "report", "simulate", "learn", "status", "profile-show", "vm-top"] {
        let page = std::fs::read_to_string(pages.join(format!("prepage-{command}.1"))).unwrap();
        let words: Vec<&str> = command.split('-').chain(["--help"]).collect();
        let (before, examples) = page.split_once(".SH EXAMPLES").expect(command);
        assert!(before.contains(".SH OPTIONS") && examples.contains("prepage"), "{command}: {page}");
        assert!(text(&sandbox.output(&words).stdout).contains("Examples:"), "{command}");
    }
    let record = std::fs::read_to_string(pages.join("prepage-record.1")).unwrap();
    let synopsis = record.split(".SH").find(|part| part.starts_with(" SYNOPSIS")).unwrap();
    assert!(
        synopsis.contains(r"\fBprepage record\fR [\-\-output <FILE>]"),
        "options have values: {synopsis}"
    );
    let simulate = std::fs::read_to_string(pages.join("prepage-simulate.1")).unwrap();
    for part in [".SH POLICIES", "aligned:N", ".SH DEVICES", "flash", "map NAME PAGES"] {
        assert!(simulate.contains(part), "options say `see below` of {part}: {simulate}");
    }
    let whole = std::fs::read_to_string(pages.join("prepage.1")).unwrap();
    let title = whole.lines().find(|line| line.starts_with(".TH")).unwrap();
    let version = concat!(r#"PREPAGE 1 " " "prepage "#, env!("CARGO_PKG_VERSION"), r#"" "prepage manual""#);
    assert!(title.contains(version), "{title}");
    for part in [".SH FILES", "/var/lib/prepage", ".SH EXAMPLES"] {
        assert!(whole.contains(part), "{part}: {whole}");
    }
    // The page that the machine's configuration names explains each key, and the file shows each.
    let config = std::fs::read_to_string(pages.join("prepage-config.1")).unwrap();
    let (_, keys) = config.split_once(".SH CONFIGURATION").expect("its section");
    let file = include_str!("../../../../packaging/deb/prepage.conf");
    assert!(file.contains("prepage-config(1)"), "{file}");
    for key in prepage_prefetch::config::KEYS {
        assert!(keys.contains(&format!("\\fB{}\\fR", key.replace('-', r"\-"))), "{key}: {keys}");
        assert!(file.contains(&format!("\n#{key} = ")), "{key}: {file}");
    }
    // The page that the service's units name says what the service is.
    let service = std::fs::read_to_string(pages.join("prepage-service.1")).unwrap();
    for part in [".SH \"THE SERVICE\"", ".SH FILES", ".SH \"SEE ALSO\""] {
        assert!(service.contains(part), "{part}: {service}");
    }
    for part in ["ENVIRONMENT", "PREPAGE_STORE", "EXIT STATUS", "126"] {
        assert!(
            whole.contains(part) && (help.contains(part) || part == "EXIT STATUS" || part == "ENVIRONMENT"),
            "{part}"
        );
    }
}

/// The help of a subcommand is that of its variant: what the structure of its options says is lost.
#[test]
fn what_long_help_is_to_say_it_says() {
    let sandbox = Sandbox::new();
    let help = text(&sandbox.output(&["vm", "top", "--help"]).stdout);
    assert!(help.contains("drawn again every second"), "{help}");
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/src/tools");
    let found = Command::new("grep").args(["-rl", "long_about", sources]).output().unwrap();
    assert_eq!(text(&found.stdout), "", "the paragraphs above a command's variant are its long help");
}

#[test]
fn a_wrong_command_line_ends_with_the_documented_code() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.output(&["recrod"]).status.code(), Some(2));
    assert_eq!(sandbox.output(&["run", "--no-such-option"]).status.code(), Some(125));
    assert_eq!(sandbox.output(&["run", "no-such-program"]).status.code(), Some(127));
    assert_eq!(sandbox.output(&["run", "/etc/passwd"]).status.code(), Some(126));
}
