//! Roles: one executable, several ways of being called, several working sets.
//!
//! The role is a short line of text made from the command line alone. Calls that need the same pages should get
//! the same role, or every call would start unlearned; calls that need others should get another:
//!
//! - a **tool** is told by its name, the *kinds* of its options and of the files it is given: `gcc -O2 -Iinclude -c a.c
//!   -o a.o` is `gcc -I -O -c -o *.c *.o`, whatever it compiles, and for C++ it is another;
//! - an **interpreter** is told by the program it interprets: `python3 tool.py --fast x` is `python3 tool.py`,
//!   `java -cp a.jar Main` is `java -cp a.jar Main`.

/// Options of interpreters. The lists hold the options that matter for finding the program among the
/// arguments; others are taken as they stand.
struct Interpreter {
    /// The name without its version: `python3.11` is `python`.
    name: &'static str,
    /// Options whose value is the program; what follows are the program's own arguments.
    program: &'static [&'static str],
    /// Options that take the next argument as their value.
    value: &'static [&'static str],
}

const INTERPRETERS: &[Interpreter] = &[
    Interpreter { name: "python", program: &["-c", "-m"], value: &["-W", "-X", "--check-hash-based-pycs"] },
    Interpreter { name: "pypy", program: &["-c", "-m"], value: &["-W", "-X"] },
    Interpreter {
        name: "java",
        program: &["-jar", "-m", "--module"],
        value: &["-cp", "-classpath", "--class-path", "-p", "--module-path", "--add-modules"],
    },
    Interpreter {
        name: "node",
        program: &["-e", "--eval", "-p", "--print"],
        value: &["-r", "--require", "--import"],
    },
    Interpreter {
        name: "nodejs",
        program: &["-e", "--eval", "-p", "--print"],
        value: &["-r", "--require", "--import"],
    },
    Interpreter { name: "perl", program: &["-e", "-E"], value: &["-I"] },
    Interpreter { name: "ruby", program: &["-e"], value: &["-I", "-r"] },
    Interpreter { name: "php", program: &["-r"], value: &["-c", "-d"] },
    Interpreter { name: "lua", program: &["-e"], value: &["-l"] },
    Interpreter { name: "guile", program: &["-c", "-s"], value: &["-L", "-l"] },
    Interpreter { name: "Rscript", program: &["-e"], value: &[] },
    // One executable, many programs: the first argument says which.
    Interpreter { name: "busybox", program: &[], value: &[] },
    Interpreter { name: "bash", program: &["-c"], value: &["-o", "-O"] },
    Interpreter { name: "dash", program: &["-c"], value: &["-o"] },
    Interpreter { name: "sh", program: &["-c"], value: &["-o"] },
    Interpreter { name: "zsh", program: &["-c"], value: &["-o"] },
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
/// assert_eq!(role(&["node", "-e", "1", "x"]), "node -e 1");
/// ```
pub fn role<S: AsRef<str>>(argv: &[S]) -> String {
    let mut args = argv.iter().map(AsRef::as_ref);
    let name = args.next().map_or("", |path| path.rsplit('/').next().unwrap_or(path));
    let mut role = String::from(name);
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    if let Some(interpreter) = INTERPRETERS.iter().find(|interpreter| interpreter.name == stem) {
        for arg in interpreted(interpreter, args) {
            role.push(' ');
            role.push_str(arg);
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
fn interpreted<'a>(interpreter: &Interpreter, mut args: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut kept = Vec::new();
    while let Some(arg) = args.next() {
        kept.push(arg);
        if interpreter.program.contains(&arg) {
            kept.extend(args.next());
            break;
        }
        if interpreter.value.contains(&arg) {
            kept.extend(args.next());
        } else if !arg.starts_with('-') || arg == "-" {
            break;
        }
    }
    kept
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
    fn odd_arguments_are_no_trouble() {
        assert_eq!(role::<&str>(&[]), "");
        assert_eq!(role(&["x", "", "-", "--", "-q"]), "x");
        assert!(role(&["python3".to_string(), "é".repeat(900)]).len() <= ROLE_BYTES_MAX);
    }
}
