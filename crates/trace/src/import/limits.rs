//! Options of `perf record` that leave faults out. A file shows them only in the command line that it keeps.

/// Options of `perf record` that keep faults out of a file without a trace in it: as they are written here, and their long names.
/// Of those without a letter, chance has it what is left out: what came after a size, went to other files, or happened while the
/// events were switched off.
const LIMITS: [(&str, &str); 6] = [
    ("-D", "delay"),
    ("-G", "cgroup"),
    ("--max-size", "max-size"),
    ("--switch-output", SWITCH_OUTPUT),
    ("--control", "control"),
    ("--filter", "filter"),
];

/// The one whose value follows `=` or is missing, and is no word of its own.
const SWITCH_OUTPUT: &str = "switch-output";

/// Its other options that are followed by a value (builtin-record.c).
const SHORT_WITH_VALUE: &str = "eptrCcoFmujk";
const LONG_WITH_VALUE: [&str; 22] = [
    "event",
    "pid",
    "tid",
    "realtime",
    "cpu",
    "count",
    "output",
    "freq",
    "mmap-pages",
    "uid",
    "branch-filter",
    "clockid",
    "call-graph",
    "proc-map-timeout",
    "switch-output-event",
    "switch-max-files",
    "clang-path",
    "clang-opt",
    "vmlinux",
    "affinity",
    "num-thread-synthesize",
    "synth",
];

/// The options of a command line of perf's that limited what was recorded, as it would be written: `-D 100`.
pub(super) fn limits(command: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    // perf itself and its subcommand.
    let mut words = command.iter().copied().skip(2);
    // What is no option begins the command.
    while let Some(option) =
        words.next().filter(|word| word.len() > 1 && word.starts_with('-') && *word != "--")
    {
        let (limit, value) = match option.strip_prefix("--") {
            Some(long) => {
                let (name, value) =
                    long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
                let limit = LIMITS.iter().find(|(_, long)| *long == name).map(|(written, _)| *written);
                if limit.is_none() && !LONG_WITH_VALUE.contains(&name) {
                    continue;
                }
                (limit, value.or((name == SWITCH_OUTPUT).then_some("")))
            }
            None => {
                // Letters, up to the first with a value.
                let limit = |letter| {
                    let written = LIMITS.iter().map(|(written, _)| *written);
                    written.into_iter().find(|written| written.len() == 2 && written.ends_with(letter))
                };
                let with_value = |letter| limit(letter).is_some() || SHORT_WITH_VALUE.contains(letter);
                let Some((at, letter)) =
                    option.char_indices().skip(1).find(|(_, letter)| with_value(*letter))
                else {
                    continue;
                };
                let attached = &option[at + 1..];
                (limit(letter), (!attached.is_empty()).then_some(attached))
            }
        };
        let value = value.or_else(|| words.next()).unwrap_or_default();
        // A delay of 0 leaves nothing out.
        if let Some(limit) = limit.filter(|limit| (*limit, value) != ("-D", "0")) {
            found.push(format!("{limit} {value}").trim_end().to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_perf_are_told_from_those_of_its_command() {
        let limits = |options: &str| {
            let words: Vec<&str> = ["perf", "record"].into_iter().chain(options.split(' ')).collect();
            limits(&words)
        };
        for (options, found) in [
            ("-D 100 -- ls", &["-D 100"][..]),
            ("-qD100 ls", &["-D 100"]),
            ("--delay=-1 ls", &["-D -1"]),
            ("-c 1 --delay 10-20 -d ls", &["-D 10-20"]),
            ("-e page-faults -a -G a,b --call-graph fp --cgroup c", &["-G a,b", "-G c"]),
            ("-g -c 1 -eD -o -D ls", &[]),
            ("--event -D ls", &[]),
            ("-D 0 ls", &[]),
            ("-d ls -D 100 -G x", &[]),
            ("-- ls -D 100", &[]),
            ("-g - -D 100", &[]),
            ("-D", &["-D"]),
            ("-a --max-size=1M ls", &["--max-size 1M"]),
            ("--max-size 1M -a", &["--max-size 1M"]),
            ("--switch-output -D 5 ls", &["--switch-output", "-D 5"]),
            ("--switch-output=2s --switch-output-event -D ls", &["--switch-output 2s"]),
            ("--control fifo:a,b -c 1 ls", &["--control fifo:a,b"]),
            ("-e page-faults --filter ip>4 ls", &["--filter ip>4"]),
        ] {
            assert_eq!(limits(options), found, "{options}");
        }
    }
}
