//! Roles: one executable, several ways of being called, several working sets.
//!
//! The role is a short line of text made from the command line alone. Calls that need the same pages should get
//! the same role, or every call would start unlearned; calls that need others should get another:
//!
//! - a **tool** is told by its name, the *kinds* of its options and of the files it is given: `gcc -O2 -Iinclude -c a.c
//!   -o a.o` is `gcc -I -O -c -o *.c *.o`, whatever it compiles, and for C++ it is another;
//! - an **interpreter** is told by the program it interprets: `python3 tool.py --fast x` is `python3 tool.py`,
//!   `java -cp a.jar Main` is `java -cp a.jar Main`. A program that stands in the call itself is told by a checksum of its
//!   text, and settings by their names, for texts and values may be secrets, and roles travel with profiles: `python3 -c
//!   'print(1)'` is `python3 -c #ed90a708`, `java -Ddb.password=x Main` is `java -Ddb.password= Main`.

use crate::profile_file::checksum;

/// Options of interpreters. The lists hold the options that matter for finding the program among the
/// arguments; others are taken as they stand, without the value behind a `=`.
#[derive(Clone, Copy)]
struct Interpreter {
    /// The name without its version: `python3.11` is `python`.
    name: &'static str,
    /// Letters of options whose value is the program itself.
    text: &'static str,
    /// Letters of options whose value names the program; what follows are the program's own arguments.
    program: &'static str,
    /// Letters of options that take a value, in the same argument or the next.
    value: &'static str,
    /// Letters of options whose value, if any, stands in the same argument.
    attached: &'static str,
    /// Long options, and those told by more than a letter.
    words: &'static [(&'static str, Value)],
    /// Whether letters may follow that of the program itself: `sh -cx TEXT`.
    is_shell: bool,
}

/// What the value of an option is.
#[derive(Clone, Copy, PartialEq)]
enum Value {
    /// The program itself.
    Text,
    /// The name of the program.
    Program,
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

const INTERPRETERS: &[Interpreter] = &[
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
            ("-cp", Value::Other),
            ("-classpath", Value::Other),
            ("--class-path", Value::Other),
            ("-p", Value::Other),
            ("--module-path", Value::Other),
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

/// Longest role kept; the rest of a longer one adds nothing that tells calls apart.
const ROLE_BYTES_MAX: usize = 400;
/// Calls with more kinds of files than this are told by their options alone.
const FILE_KINDS_MAX: usize = 4;
/// The longest ending of a file name that counts as its kind; longer ones are names.
const FILE_KIND_BYTES_MAX: usize = 5;

/// The role of a call, from its arguments (the program's own name first).
///
/// ```
/// use prepage_core::role::role;
/// assert_eq!(role(&["/usr/bin/gcc", "-O2", "-DX=1", "-S", "a.c"]), "gcc -D -O -S *.c");
/// assert_eq!(role(&["gcc", "-S", "-O3", "-DY", "b.c"]), "gcc -D -O -S *.c");
/// assert_eq!(role(&["gcc", "-S", "-O3", "-DY", "b.cc"]), "gcc -D -O -S *.cc");
/// assert_eq!(role(&["clang", "--std=c17", "--version"]), "clang --std --version");
/// assert_eq!(role(&["python3.11", "-X", "dev", "tool.py", "x"]), "python3.11 -X dev tool.py");
/// assert_eq!(role(&["python3", "-c", "print(1)"]), "python3 -c #ed90a708");
/// assert_eq!(role(&["node", "-e", "1", "x"]), "node -e #83dcefb7");
/// ```
pub fn role<S: AsRef<str>>(argv: &[S]) -> String {
    let mut args = argv.iter().map(AsRef::as_ref);
    let name = args.next().map_or("", |path| path.rsplit('/').next().unwrap_or(path));
    let mut role = String::from(name);
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    if let Some(interpreter) = INTERPRETERS.iter().find(|interpreter| interpreter.name == stem) {
        for arg in interpreted(interpreter, args) {
            role.push(' ');
            role.push_str(&arg);
        }
    } else {
        let mut options: Vec<&str> = Vec::new();
        let mut files: Vec<&str> = Vec::new();
        let mut past_options = false;
        for arg in args {
            match option_kind(arg).filter(|_| !past_options) {
                Some(kind) => options.push(kind),
                None if arg == "--" => past_options = true,
                None => files.extend(file_kind(arg)),
            }
        }
        for kinds in [&mut options, &mut files] {
            kinds.sort_unstable();
            kinds.dedup();
        }
        if files.len() > FILE_KINDS_MAX {
            files.clear();
        }
        options.iter().for_each(|kind| role.extend([" ", kind]));
        files.iter().for_each(|kind| role.extend([" *.", kind]));
    }
    let mut end = role.len().min(ROLE_BYTES_MAX);
    while !role.is_char_boundary(end) {
        end -= 1;
    }
    role.truncate(end);
    role
}

/// The arguments up to and with the interpreted program.
fn interpreted<'a>(interpreter: &Interpreter, mut args: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut kept = Vec::new();
    while let Some(arg) = args.next() {
        let Some((option, attached, value)) = option_with_value(interpreter, arg) else {
            if !arg.starts_with('-') || arg == "-" {
                kept.push(arg.into());
                break;
            }
            kept.push(name_alone(arg).into());
            continue;
        };
        kept.push(option.into());
        if let Some(text) = attached.or_else(|| args.next()) {
            kept.push(match value {
                Value::Text => told_by_checksum(text),
                Value::Program => text.into(),
                Value::Other => name_alone(text).into(),
            });
        }
        if value != Value::Other {
            break;
        }
    }
    kept
}

/// An option, its value where that stands in the same argument, and what the value is; `None` for what takes none.
fn option_with_value<'a>(
    interpreter: &Interpreter,
    arg: &'a str,
) -> Option<(&'a str, Option<&'a str>, Value)> {
    let (word, attached) = match arg.split_once('=') {
        Some((word, attached)) => (word, Some(attached)),
        None => (arg, None),
    };
    if let Some(&(_, value)) = interpreter.words.iter().find(|(known, _)| *known == word) {
        return Some((word, attached, value));
    }
    let letters = arg.strip_prefix('-').filter(|letters| !letters.starts_with('-'))?;
    for (at, letter) in letters.char_indices() {
        let (option, rest) = arg.split_at(1 + at + letter.len_utf8());
        let value = if interpreter.text.contains(letter) {
            // More letters of options, and not yet the text: `sh -cx TEXT`, `node -pe TEXT`.
            let is_option = |letter: char| {
                interpreter.text.contains(letter) || interpreter.is_shell && letter.is_ascii_alphabetic()
            };
            if rest.chars().all(is_option) {
                return Some((arg, None, Value::Text));
            }
            Value::Text
        } else if interpreter.program.contains(letter) {
            Value::Program
        } else if interpreter.value.contains(letter) {
            return rest.is_empty().then_some((option, None, Value::Other));
        } else if interpreter.attached.contains(letter) {
            return None;
        } else {
            continue;
        };
        return Some((option, Some(rest).filter(|rest| !rest.is_empty()), value));
    }
    None
}

/// Text that a user may have meant for nobody else, as what tells it from others.
fn told_by_checksum(text: &str) -> String {
    format!("#{:08x}", checksum(&[text.as_bytes()]))
}

/// A setting without what it is set to.
fn name_alone(arg: &str) -> &str {
    arg.find('=').map_or(arg, |at| &arg[..=at])
}

/// What kind of option it is, its value left out: `-O2` is `-O`, `--std=c17` is `--std`. `None` for operands.
fn option_kind(arg: &str) -> Option<&str> {
    let letters = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')).filter(|rest| !rest.is_empty())?;
    if arg.starts_with("--") {
        return arg.split('=').next();
    }
    // One dash: either a letter with its value attached (-O2, -Iinclude, -DX=1) or a long word (-batch, -static).
    // They cannot be told apart without knowing the program, so the first letter stands for both.
    let first = letters.chars().next()?;
    Some(&arg[..1 + first.len_utf8()])
}

/// What kind of file an operand names: the ending of its name. `None` where it has none that looks like one.
fn file_kind(arg: &str) -> Option<&str> {
    let (stem, kind) = arg.rsplit('/').next()?.rsplit_once('.')?;
    let is_kind = (1..=FILE_KIND_BYTES_MAX).contains(&kind.len())
        && kind.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'+')
        && kind.bytes().any(|byte| byte.is_ascii_alphabetic());
    (is_kind && !stem.is_empty()).then_some(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(role(&["java", "-cp", "x.jar", "-Xmx1g", "Main", "arg"]), "java -cp x.jar -Xmx1g Main");
        assert_eq!(role(&["bash", "-e", "build.sh", "all"]), "bash -e build.sh");
        assert_eq!(role(&["perl"]), "perl");
        assert_eq!(role(&["/bin/busybox", "ls", "-l"]), "busybox ls");
        assert_ne!(role(&["python3", "a.py"]), role(&["python3", "b.py"]));
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
            (
                &["python3", "-X", "presite=SECRET", "-Xy=SECRET", "-m", "mod"],
                "python3 -X presite= -Xy= -m mod",
            ),
        ] {
            assert_eq!(role(argv), expected.replace("{}", &told("SECRET")));
        }
        assert_ne!(role(&["sh", "-c", "ls"]), role(&["sh", "-c", "pwd"]));
    }

    #[test]
    fn odd_arguments_are_no_trouble() {
        assert_eq!(role::<&str>(&[]), "");
        assert_eq!(role(&["x", "", "-", "--", "-q"]), "x");
        assert_eq!(role(&["sh", "-c"]), "sh -c");
        assert_eq!(role(&["python3", "-é", "--", "", "x"]), "python3 -é -- ");
        assert!(role(&["python3".to_string(), "é".repeat(900)]).len() <= ROLE_BYTES_MAX);
    }
}
