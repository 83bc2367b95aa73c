//! Examples of the main commands, as their help and the manual pages have them.

use std::fmt::Write;

use clap::Command;

/// By command: command lines, and what they do.
const EXAMPLES: [(&str, &[(&str, &str)]); 22] = [
    (
        "",
        &[
            ("prepage run -- emacs", "Start emacs, and prefetch what its last starts needed"),
            ("sudo prepage service install", "Prefetch every program of the machine, however it is started"),
            ("prepage measure -- emacs", "Compare cold, prefetched and warm starts of emacs"),
            ("prepage record -- gcc -c main.c", "Record the page faults of a compiler, for `prepage report`"),
        ],
    ),
    (
        "run",
        &[
            ("prepage run -- emacs", "Start emacs with prefetch, and learn from the start"),
            ("prepage run -v -- python3 app.py", "Say what was prefetched, what was left out, and why"),
            ("prepage run --no-learn --no-hold-out -- make", "Prefetch in any case, and learn nothing"),
        ],
    ),
    (
        "enable",
        &[
            ("prepage enable gcc python3", "Prefetch both whenever a shell or make starts them by name"),
            ("prepage enable --desktop firefox", "Prefetch firefox when a menu starts it, too"),
            ("prepage enable --list", "Show what is enabled"),
        ],
    ),
    (
        "learn",
        &[
            (
                "prepage learn -- emacs --batch",
                "Learn from one run, and prefetch in the first start of this kind",
            ),
            ("sudo prepage learn --layer machine -- git status", "Learn git for all users"),
        ],
    ),
    (
        "measure",
        &[
            (
                "sudo prepage measure -- python3 -c pass",
                "Compare starts from caches that are dropped each time",
            ),
            ("prepage measure --warm -n 50 -- git status", "What prepage costs a start that reads nothing"),
            (
                "sudo prepage measure --read-ahead 128k -- emacs --batch",
                "The same with the kernel's usual read-ahead",
            ),
        ],
    ),
    ("profile list", &[("prepage profile list", "What was learned, and for which programs")]),
    (
        "profile show",
        &[
            ("prepage profile show emacs", "What prefetching gains emacs, and the files that it needs"),
            ("prepage profile show -- gcc -c main.c", "The profile that this command would use"),
        ],
    ),
    (
        "profile export",
        &[("prepage profile export -o tools.profile gcc make", "Write two programs' profiles into a file")],
    ),
    (
        "profile import",
        &[("prepage profile import --dry-run tools.profile", "Show what this machine could use of the file")],
    ),
    (
        "service install",
        &[
            ("sudo prepage service install", "Install the service, and start it now and at each boot"),
            ("prepage service install --no-start --units /tmp/units", "Look at what would be written"),
        ],
    ),
    (
        "status",
        &[
            ("prepage status", "What the service has fetched, and what that gained"),
            ("prepage status --json", "The same for programs"),
        ],
    ),
    (
        "record",
        &[
            (
                "prepage record -- gcc -c main.c",
                "Record a command; `prepage report` shows what it waited for",
            ),
            ("sudo prepage record --all --duration 10s", "Record the whole machine for ten seconds"),
            (
                "prepage record -g -p 1234 -o live.parquet",
                "Record a running process with call stacks, until Ctrl-C",
            ),
            ("prepage record --exact -- python3 app.py", "Record every first touch, for `prepage simulate`"),
        ],
    ),
    (
        "report",
        &[
            ("prepage report", "Summarize the newest trace in this directory"),
            ("prepage report --by file,thread --top 50 live.parquet", "Two tables of this trace"),
            ("prepage report --class disk --by slowest", "The faults that waited longest for the disk"),
            ("prepage report --open", "Show plots in the browser"),
        ],
    ),
    (
        "diff",
        &[
            ("prepage diff before.parquet after.parquet", "What changed, by class and by file"),
            (
                "prepage diff --threshold 5 --of disk before.parquet after.parquet",
                "Fail where disk faults grew by more than 5 %",
            ),
        ],
    ),
    (
        "export",
        &[
            ("prepage export -f perfetto -o trace.pftrace", "Open the newest trace at ui.perfetto.dev"),
            ("prepage export -f folded --weight cost", "Stacks for flame graphs, by the time waited"),
        ],
    ),
    (
        "residency",
        &[
            ("prepage residency /usr/bin", "How much of a directory's files is in memory"),
            ("prepage residency -p emacs", "How much of what emacs needs"),
        ],
    ),
    (
        "warm",
        &[
            ("prepage warm -p emacs", "Read what emacs needs into memory"),
            ("prepage warm --limit 1G data.db:0-512M", "Read half a gigabyte of a file"),
        ],
    ),
    ("evict", &[("prepage evict data.db", "Drop a file from memory, and say which pages stay")]),
    (
        "vm top",
        &[
            ("prepage vm top", "Watch the pools of your programs that use prepage-vm"),
            ("prepage vm top --once --objects 5 -p 1234", "The five largest objects of one process"),
        ],
    ),
    (
        "simulate",
        &[
            ("prepage simulate", "Replay the newest trace in this directory under the usual policies"),
            (
                "prepage simulate -p linux,aligned:16,adaptive -d flash trace.parquet",
                "Compare three policies in time on an SSD",
            ),
            (
                "prepage simulate --model code:1 --sweep aligned:4..512",
                "How large clusters should be, for generated touches",
            ),
            (
                "prepage simulate --memory 100,200,400,800 --replacement lru,opt trace.parquet",
                "Count faults in memories of many sizes",
            ),
        ],
    ),
    (
        "bench file",
        &[
            ("prepage bench file --html faults.html", "Repeat the study, and write tables and figures"),
            (
                "sudo prepage bench file --read-ahead 128k -c cold",
                "With the study's read-ahead, from cold caches",
            ),
        ],
    ),
    (
        "calibrate",
        &[
            ("prepage calibrate", "Measure the disk of /usr, or show what was measured"),
            ("prepage calibrate --force /home", "Measure the disk of /home anew"),
        ],
    ),
];

/// Those of the command called `path`, without `prepage`: none but of the main ones.
pub fn of(path: &str) -> &'static [(&'static str, &'static str)] {
    EXAMPLES.iter().find(|(of, _)| *of == path).map_or(&[], |(_, examples)| examples)
}

/// Adds examples to the long help of `command`, which is called `path`, and of all below it, in front of what else stands behind their options.
pub fn add(command: Command, path: &str) -> Command {
    let command = command.mut_subcommands(|below| {
        let path = format!("{path} {}", below.get_name());
        add(below, path.trim_start())
    });
    let examples = of(path);
    if examples.is_empty() {
        return command;
    }
    let styles = command.get_styles();
    let (header, literal) = (*styles.get_header(), *styles.get_literal());
    let mut help = format!("{header}Examples:{header:#}\n");
    for (line, meaning) in examples {
        writeln!(help, "  {literal}{line}{literal:#}\n          {meaning}").expect("a string takes all text");
    }
    let behind = command.get_after_long_help().or(command.get_after_help());
    if let Some(behind) = behind {
        write!(help, "\n{}", behind.ansi()).expect("a string takes all text");
    }
    command.after_long_help(help)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_are_command_lines_of_the_commands_that_have_them() {
        for (path, examples) in EXAMPLES {
            for (line, _) in examples {
                let words: Vec<&str> = line.split(' ').skip_while(|word| *word == "sudo").collect();
                let own = format!("prepage {path}");
                assert!(words.join(" ").starts_with(own.trim_end()), "{line}");
                if let Err(wrong) = crate::help::command().try_get_matches_from(words) {
                    panic!("{line}: {wrong}");
                }
            }
        }
    }

    #[test]
    fn each_of_them_is_of_a_command() {
        for (path, _) in EXAMPLES {
            let all = crate::help::command();
            let names = path.split(' ').filter(|name| !name.is_empty());
            let found = names.fold(&all, |command, name| command.find_subcommand(name).expect(path));
            let help = found.clone().render_long_help().to_string();
            assert!(help.contains("Examples:"), "{path}: {help}");
        }
    }
}
