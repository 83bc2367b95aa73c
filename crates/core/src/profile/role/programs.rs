//! Programs whose calls are told by more than the kinds of options and files: interpreters, tools with subcommands, wrappers.

/// Options of interpreters. The lists hold the options that matter for finding the program among the
/// arguments; others are taken as they stand, without the value behind a `=`.
#[derive(Clone, Copy)]
pub(super) struct Interpreter {
    /// The name without its version: `python3.11` is `python`.
    pub(super) name: &'static str,
    /// Letters of options whose value is the program itself.
    pub(super) text: &'static str,
    /// Letters of options whose value names the program; what follows are the program's own arguments.
    pub(super) program: &'static str,
    /// Letters of options that take a value, in the same argument or the next.
    pub(super) value: &'static str,
    /// Letters of options whose value, if any, stands in the same argument.
    pub(super) attached: &'static str,
    /// Long options, and those told by more than a letter.
    pub(super) words: &'static [(&'static str, Value)],
    /// Whether letters may follow that of the program itself: `sh -cx TEXT`.
    pub(super) is_shell: bool,
}

/// What the value of an option is.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Value {
    /// The program itself.
    Text,
    /// The name of the program.
    Program,
    /// Files and directories, with colons between them.
    Places,
    /// What is no matter of pages, and may be nobody else's to know: it is left out.
    Setting,
    /// Something else.
    Other,
}

const NONE: Interpreter =
    Interpreter { name: "", text: "", program: "", value: "", attached: "", words: &[], is_shell: false };
const NODE: Interpreter = Interpreter {
    name: "node",
    text: "ep",
    value: "rC",
    words: &[
        ("--eval", Value::Text),
        ("--print", Value::Text),
        ("--require", Value::Other),
        ("--import", Value::Other),
        ("--conditions", Value::Other),
        ("--loader", Value::Other),
        ("--experimental-loader", Value::Other),
        ("--env-file", Value::Setting),
        ("--title", Value::Setting),
    ],
    ..NONE
};
const SHELL: Interpreter = Interpreter {
    name: "sh",
    text: "c",
    value: "Oo",
    words: &[("--rcfile", Value::Other), ("--init-file", Value::Other)],
    is_shell: true,
    ..NONE
};

pub(super) const INTERPRETERS: &[Interpreter] = &[
    Interpreter {
        name: "python",
        text: "c",
        program: "m",
        value: "WX",
        words: &[("--check-hash-based-pycs", Value::Other)],
        ..NONE
    },
    Interpreter { name: "pypy", text: "c", program: "m", value: "WX", ..NONE },
    Interpreter {
        name: "java",
        words: &[
            ("-jar", Value::Program),
            ("-m", Value::Program),
            ("--module", Value::Program),
            ("-cp", Value::Places),
            ("-classpath", Value::Places),
            ("--class-path", Value::Places),
            ("-p", Value::Places),
            ("--module-path", Value::Places),
            ("--add-modules", Value::Other),
        ],
        ..NONE
    },
    NODE,
    Interpreter { name: "nodejs", ..NODE },
    Interpreter { name: "perl", text: "eE", value: "I", attached: "CDFMVdimx", ..NONE },
    Interpreter { name: "ruby", text: "e", value: "CIr", attached: "EFKTWix", ..NONE },
    Interpreter { name: "php", text: "BERr", program: "Ff", value: "Scdtz", ..NONE },
    Interpreter { name: "lua", text: "e", value: "l", ..NONE },
    Interpreter { name: "guile", text: "c", program: "s", value: "Llex", ..NONE },
    Interpreter { name: "Rscript", text: "e", ..NONE },
    // One executable, many programs: the first argument says which.
    Interpreter { name: "busybox", ..NONE },
    SHELL,
    Interpreter { name: "bash", ..SHELL },
    Interpreter { name: "dash", ..SHELL },
    Interpreter { name: "zsh", ..SHELL },
    Interpreter { name: "ksh", ..SHELL },
];

/// Tools whose first operand says which of many programs they are, and the letters of options before it that take a value
/// in the next argument.
pub(super) const SUBCOMMANDS: &[(&str, &str)] = &[
    ("git", "Cc"),
    ("cargo", "CZ"),
    ("npm", "C"),
    ("pnpm", "C"),
    ("yarn", ""),
    ("bun", ""),
    ("pip", ""),
    ("uv", ""),
    ("poetry", "CP"),
    ("conda", ""),
    ("go", "C"),
    ("rustup", ""),
    ("gh", "R"),
    ("hg", "R"),
    ("svn", ""),
    ("docker", "Hcl"),
    ("podman", ""),
    ("kubectl", "nsv"),
    ("helm", "n"),
    ("terraform", ""),
    ("systemctl", "HMnopt"),
    ("apt", "coqt"),
    ("apt-get", "coqt"),
    ("dnf", "cx"),
    ("brew", ""),
    ("dotnet", ""),
    ("flatpak", ""),
    ("snap", ""),
];
/// Tools that run a program of a name of their own: `flatpak run org.example.App`, `npm run build`.
pub(super) const RUNNERS: &[&str] = &["flatpak", "snap", "npm", "pnpm", "yarn", "bun"];

/// Programs that run the command they are given.
pub(super) struct Wrapper {
    pub(super) name: &'static str,
    /// Letters of options that take a value, in the same argument or the next.
    pub(super) values: &'static str,
    /// Long options that do.
    pub(super) words: &'static [&'static str],
    /// How many operands stand before the command.
    pub(super) operands: usize,
    /// Letters of options with which it runs none.
    pub(super) none: &'static str,
}

const PLAIN: Wrapper = Wrapper { name: "", values: "", words: &[], operands: 0, none: "" };

pub(super) const WRAPPERS: &[Wrapper] = &[
    Wrapper { name: "env", values: "uCa", words: &["--unset", "--chdir", "--argv0"], none: "S", ..PLAIN },
    Wrapper {
        name: "sudo",
        values: "ugpCDRTUhrt",
        words: &[
            "--user",
            "--group",
            "--prompt",
            "--close-from",
            "--chdir",
            "--chroot",
            "--command-timeout",
            "--other-user",
            "--host",
            "--role",
            "--type",
        ],
        none: "elvKV",
        ..PLAIN
    },
    Wrapper { name: "doas", values: "uC", ..PLAIN },
    Wrapper { name: "nice", values: "n", words: &["--adjustment"], ..PLAIN },
    Wrapper { name: "nohup", ..PLAIN },
    Wrapper { name: "setsid", ..PLAIN },
    Wrapper { name: "stdbuf", values: "ioe", words: &["--input", "--output", "--error"], ..PLAIN },
    Wrapper { name: "ionice", values: "cn", words: &["--class", "--classdata"], none: "pPu", ..PLAIN },
    Wrapper {
        name: "chrt",
        values: "TPD",
        words: &["--sched-runtime", "--sched-period", "--sched-deadline"],
        operands: 1,
        none: "pm",
    },
    Wrapper { name: "taskset", operands: 1, none: "p", ..PLAIN },
    Wrapper { name: "timeout", values: "ks", words: &["--kill-after", "--signal"], operands: 1, ..PLAIN },
    Wrapper { name: "time", values: "fo", words: &["--format", "--output"], ..PLAIN },
];
