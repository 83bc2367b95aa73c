//! The definition of all commands, and what help and manual pages say of the whole.

use std::ffi::OsString;
use std::fmt::Write;

use clap::CommandFactory;

use crate::Command;
use crate::examples;

/// The commands by what they are for, in the order in which help lists them.
const GROUPS: [(&str, &[&str]); 3] = [
    (
        "Start programs faster",
        &["run", "enable", "disable", "config", "learn", "measure", "profile", "service", "status", "doctor"],
    ),
    (
        "Look at page faults and memory",
        &["record", "report", "diff", "export", "import", "residency", "warm", "evict", "vm"],
    ),
    ("Experiment", &["simulate", "bench", "calibrate"]),
];

/// Exit codes, as `prepage --help` and the manual page list them.
pub const EXIT_CODES: [(&str, &str); 6] = [
    ("0", "The command succeeded"),
    (
        "1",
        "diff: the threshold is exceeded; doctor: something essential is missing; config: a file has mistakes; profile verify: something is stale, damaged or missing; others: not all was done",
    ),
    ("2", "The command line is wrong"),
    (
        "125",
        "prepage failed, or the command line of `run` is wrong; profile verify: not all could be checked; record: the program succeeded, but not all of the recording could be written; learn: the program succeeded, but nothing of it could be seen",
    ),
    ("126, 127", "run, record, measure, learn, bench: the program cannot be executed, or is not found"),
    (
        "other",
        "run, record, learn, bench yardstick: the program's own exit code; if a signal killed it, 128 and the signal's number (not of run, which becomes the program)",
    ),
];

/// Environment variables, as `prepage --help` and the manual page list them.
pub const ENVIRONMENT: [(&str, &str); 8] = [
    ("PREPAGE", "`off` switches prefetching and learning off for every program started with it"),
    (
        "PREPAGE_STORE",
        "Directory of your own profiles, and of what `prepage calibrate` measured [default: /var/lib/prepage/root for root, else $XDG_STATE_HOME/prepage or ~/.local/state/prepage]",
    ),
    (
        "PREPAGE_LAYERS",
        "Directories of profiles for all users, the machine's first, then packages', separated by colons [default: /var/lib/prepage:/usr/local/share/prepage:/usr/share/prepage]",
    ),
    (
        "XDG_CONFIG_HOME, XDG_STATE_HOME, XDG_DATA_HOME, XDG_DATA_DIRS",
        "Directories as in the XDG Base Directory Specification: of prepage/config (`prepage config`), of your own profiles, and of .desktop files [default: ~/.config, ~/.local/state, ~/.local/share, /usr/local/share:/usr/share]",
    ),
    ("COMPLETE", "`bash`, `zsh` or `fish`: prepage prints the completion script of that shell and exits"),
    ("BROWSER", "The program that `prepage report --open` starts [default: xdg-open]"),
    (
        "COLUMNS",
        "How wide tables may be, in characters; 0 for any width [default: the width of the terminal, else any]",
    ),
    ("NO_COLOR", "If not empty, help and errors are printed without colors"),
];

/// Files, as the manual page lists them.
pub const FILES: [(&str, &str); 5] = [
    ("~/.local/state/prepage", "Your own profiles, and what `prepage calibrate` measured"),
    (
        "/var/lib/prepage",
        "Profiles for all users of this machine; those of root in `root`; the service's files",
    ),
    ("/usr/local/share/prepage, /usr/share/prepage", "Profiles and page maps of packages"),
    ("/etc/prepage.conf, ~/.config/prepage/config", "Configuration (`prepage config`)"),
    (
        "/usr/share/doc/prepage, /usr/local/share/doc/prepage",
        "Documents: environment.md lists all files, troubleshooting.md says what to do when programs do not get faster",
    ),
];

/// All commands, with a help that groups them.
pub fn command() -> clap::Command {
    let command = Command::command();
    let header = *command.get_styles().get_header();
    let literal = *command.get_styles().get_literal();
    let mut groups = String::new();
    for (title, names) in GROUPS {
        writeln!(groups, "{header}{title}:{header:#}").expect("a string takes all text");
        for name in names {
            let about = command.find_subcommand(name).and_then(clap::Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            writeln!(groups, "  {literal}{name:10}{literal:#} {about}").expect("a string takes all text");
        }
        groups.push('\n');
    }
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}{header}Options:{header:#}\n{{options}}{{after-help}}"
    );
    let list = |title: &str, of: &[(&str, &str)]| {
        let line = |(name, text): &(&str, &str)| format!("  {literal}{name}{literal:#}\n          {text}\n");
        let lines: String = of.iter().map(line).collect();
        format!("{header}{title}:{header:#}\n{lines}")
    };
    let long = format!("{}\n{}", list("Environment", &ENVIRONMENT), list("Exit codes", &EXIT_CODES));
    let command = command
        .help_template(template)
        .after_help("`prepage COMMAND --help` explains a command.")
        .after_long_help(long);
    examples::add(command, "")
}

/// The arguments as clap takes them, which looks for a command in all that stands behind `help`: `help -h` is the help of `help`, and `help run -h` that of
/// `run`.
pub fn arguments(given: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut given: Vec<OsString> = given.collect();
    let (all, mut at) = (Command::command(), 1);
    let mut command = &all;
    while let Some(below) = given.get(at).and_then(|word| command.find_subcommand(word)) {
        (command, at) = (below, at + 1);
    }
    if command.has_subcommands() && given.get(at).is_some_and(|word| word == "help") {
        let is_asked = |word: &OsString| word == "-h" || word == "--help";
        let of = given.split_off(at + 1);
        let has_asked = of.iter().any(is_asked);
        given.extend(of.into_iter().filter(|word| !is_asked(word)));
        if has_asked && given.len() == at + 1 {
            given.push("help".into());
        }
    }
    given
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_stands_in_one_group() {
        let command = command();
        let shown = command
            .get_subcommands()
            .filter(|command| !command.is_hide_set() && command.get_name() != "help");
        let mut shown: Vec<&str> = shown.map(clap::Command::get_name).collect();
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        shown.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(shown, grouped);
    }

    /// The test reads the document when it runs: published crates have none.
    #[test]
    fn documents_list_the_same_variables_and_exit_codes() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/environment.md");
        let documents = std::fs::read_to_string(path).unwrap();
        let listed = |title: &str| -> Vec<String> {
            let section = documents.split("\n## ").find(|section| section.starts_with(title)).unwrap();
            let rows = section.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
            rows.skip(1).map(|name| name.replace('`', "")).collect()
        };
        let names = |list: &[(&str, &str)]| list.iter().map(|one| one.0.to_owned()).collect::<Vec<_>>();
        assert_eq!(listed("Environment variables"), names(&ENVIRONMENT));
        assert_eq!(listed("Exit codes"), names(&EXIT_CODES));
    }

    #[test]
    fn help_of_help_is_asked_for_as_that_of_others() {
        let taken = |line: &str| {
            let words = arguments(line.split(' ').map(OsString::from));
            words.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
        };
        for (given, expected) in [
            ("prepage help -h", "prepage help help"),
            ("prepage help --help", "prepage help help"),
            ("prepage profile help -h", "prepage profile help help"),
            ("prepage help run -h", "prepage help run"),
            ("prepage help", "prepage help"),
            ("prepage help run", "prepage help run"),
            // What another program is told is its own.
            ("prepage record help -h", "prepage record help -h"),
            ("prepage record -- help -h", "prepage record -- help -h"),
            ("prepage -h", "prepage -h"),
        ] {
            assert_eq!(taken(given), expected);
            if expected.split(' ').any(|word| word == "help") && !expected.starts_with("prepage record") {
                let asked = command().try_get_matches_from(expected.split(' ')).unwrap_err();
                assert_eq!(asked.kind(), clap::error::ErrorKind::DisplayHelp, "{given}: {asked}");
            }
        }
    }

    #[test]
    fn the_definitions_are_sound() {
        command().debug_assert();
    }
}
