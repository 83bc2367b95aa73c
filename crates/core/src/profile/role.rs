//! Roles: one executable, several ways of being called, several working sets.
//!
//! The role is a short line of text made from the command line and the places of the files it names. Calls that need the
//! same pages should get the same role, or every call would start unlearned; calls that need others should get another:
//!
//! - a **tool** is told by its name, its subcommand where it has such, and the *kinds* of its options and of the files it is
//!   given: `gcc -O2 -Iinclude -c a.c -o a.o` is `gcc -I -O -c -o *.c *.o`, whatever it compiles; `git -C x status` is
//!   `git status -C`;
//! - an **interpreter** is told by the program it interprets, and that by its name and place: `python3 main.py` in two projects
//!   is `python3 main.py@1f0c2b7a` and another; `java -cp LONG Main` is `java -cp @5b1d40c2 Main`. A program that stands in the
//!   call itself is told by a checksum of its text, and settings by their names, for texts and values may be secrets:
//!   `python3 -c 'print(1)'` is `python3 -c #ed90a708`, which never leaves its user's store ([`is_private`]);
//!   A script with an interpreter's name or a tool's with subcommands (pyenv's `python3`, `npm`) is told by its own call, too;
//! - a **wrapper** (`env`, `sudo`, `nice`, `timeout` …) is looked through ([`called`]): the call is what it runs.

mod programs;

use super::file::checksum;
use programs::{INTERPRETERS, Interpreter, RUNNERS, SUBCOMMANDS, Value, WRAPPERS};

/// Longest role kept. Of a longer one a checksum stands for the rest, so that what differs there still differs.
const ROLE_BYTES_MAX: usize = 400;
/// Calls with more kinds of files than this are told by their options alone.
const FILE_KINDS_MAX: usize = 4;
/// As many scripts deep a call is looked into: what it is given is anybody's.
const SCRIPTS_DEEP: u32 = 2;
/// The longest ending of a file name that counts as its kind; longer ones are names.
const FILE_KIND_BYTES_MAX: usize = 5;

/// Says where a file is: its absolute path, free of links, or `None` where there is none.
pub type Locate<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The role of a call, from its arguments (the program's own name first). `place` looks names up from the directory in which
/// the call is made.
///
/// ```
/// use prepage_core::profile::role;
/// let role = |call: &[&str]| role::role(call, &|_| None);
/// assert_eq!(role(&["/usr/bin/gcc", "-O2", "-DX=1", "-S", "a.c"]), "gcc -D -O -S *.c");
/// assert_eq!(role(&["gcc", "-S", "-O3", "-DY", "b.c"]), "gcc -D -O -S *.c");
/// assert_eq!(role(&["gcc", "-S", "-O3", "-DY", "b.cc"]), "gcc -D -O -S *.cc");
/// assert_eq!(role(&["clang", "--std=c17", "--version"]), "clang --std --version");
/// assert_eq!(role(&["git", "-C", "/x", "log", "--oneline"]), "git log --oneline -C");
/// assert_eq!(role(&["python3.11", "-X", "dev", "tool.py", "x"]), "python3.11 -X dev tool.py");
/// assert_eq!(role(&["python3", "-c", "print(1)"]), "python3 -c #ed90a708");
/// assert_eq!(role(&["node", "-e", "1", "x"]), "node -e #83dcefb7");
/// ```
pub fn role<S: AsRef<str>>(argv: &[S], place: Locate<'_>) -> String {
    role_and_places(argv, None, place).0
}

/// The [`role`] of a call and the places that its checksums are of: where a file was found its place, else the name as it was given. Where the
/// kernel put a script at `script` in `argv` behind what runs it (execve(2)), the role of an interpreter that is known is the same, and that of any
/// other program tells the script by its name and place, too.
///
/// ```
/// use prepage_core::profile::role::{role, role_and_places};
/// let place = |name: &str| ["tool.py", "a.jar"].contains(&name).then(|| format!("/opt/{name}"));
/// let call = ["python3", "-s", "tool.py", "x.txt"];
/// assert_eq!(role_and_places(&call, Some(2), &place), (role(&call, &place), vec!["/opt/tool.py".into()]));
/// let (_, places) = role_and_places(&["java", "-cp", "a.jar:lib/*", "Main"], None, &place);
/// assert_eq!(places, ["/opt/a.jar", "lib/*"]);
///
/// let role = |call: &[&str], script| role_and_places(call, Some(script), &|_| None).0;
/// assert_eq!(role(&["/usr/bin/make", "-f", "rules", "clean"], 2), "make -f rules");
/// assert_eq!(role(&["node", "/opt/npm", "run", "build"], 1), "node /opt/npm run build");
/// assert_eq!(role(&["bash", "shims/python3", "-Bm", "pip"], 1), "bash shims/python3 -Bm pip");
/// ```
pub fn role_and_places<S: AsRef<str>>(
    argv: &[S],
    script: Option<usize>,
    place: Locate<'_>,
) -> (String, Vec<String>) {
    let (called, of_script) = argv.split_at(script.unwrap_or(argv.len()));
    let mut args = called.iter().map(AsRef::as_ref);
    let name = args.next().map_or("", base_name);
    let mut role = Role { text: name.into(), places: Vec::new(), place, depth: 0 };
    role.add_call(name, &mut args);
    role.text = shortened(role.text);
    if script.is_some() {
        role.depth = 1;
        let mut args = of_script.iter().map(AsRef::as_ref);
        role.add_script(args.next().unwrap_or_default(), &mut args);
        role.text = shortened(role.text);
    }
    (role.text, role.places)
}

/// A role that is being put together.
struct Role<'a> {
    text: String,
    /// The places that it has checksums of.
    places: Vec<String>,
    place: Locate<'a>,
    /// How many scripts deep it is.
    depth: u32,
}

impl Role<'_> {
    /// Adds how the program `name` is called.
    fn add_call(&mut self, name: &str, args: &mut dyn Iterator<Item = &str>) {
        match interpreter(name) {
            Some(interpreter) => self.add_interpreted(interpreter, args),
            None => self.add_tool(stem(name), args),
        }
    }

    /// Adds the script at `path`, and how it is called where its name is that of an interpreter or of a tool with subcommands: `npm`,
    /// and what stands in front of the versions of python3.
    fn add_script(&mut self, path: &str, args: &mut dyn Iterator<Item = &str>) {
        self.text.push(' ');
        self.add_program(path);
        let name = base_name(path);
        let is_known = interpreter(name).is_some() || SUBCOMMANDS.iter().any(|(tool, _)| *tool == stem(name));
        if is_known && self.depth < SCRIPTS_DEEP {
            self.depth += 1;
            self.add_call(name, args);
        }
    }

    /// Adds how a tool is called: its subcommand, and the kinds of its options and files.
    fn add_tool(&mut self, stem: &str, args: &mut dyn Iterator<Item = &str>) {
        let mut options: Vec<&str> = Vec::new();
        let mut files: Vec<&str> = Vec::new();
        let mut past_options = false;
        // Operands to come that say which program it is.
        let subcommand = SUBCOMMANDS.iter().find(|(tool, _)| *tool == stem);
        let (mut words, mut is_first) = (usize::from(subcommand.is_some()), true);
        while let Some(arg) = args.next() {
            match option_kind(arg).filter(|_| !past_options) {
                Some(kind) => {
                    options.push(kind);
                    let takes_value =
                        arg.len() == 2 && subcommand.is_some_and(|(_, letters)| letters.contains(&arg[1..]));
                    if words > 0 && takes_value {
                        args.next();
                    }
                }
                None if arg == "--" => past_options = true,
                None if words > 0 && !arg.starts_with('+') => {
                    self.text.extend([" ", arg]);
                    words -= 1;
                    // The name that a runner is given.
                    words += usize::from(is_first && RUNNERS.contains(&stem) && arg.starts_with("run"));
                    is_first = false;
                }
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
        options.iter().for_each(|kind| self.text.extend([" ", kind]));
        files.iter().for_each(|kind| self.text.extend([" *.", kind]));
    }

    /// Adds the arguments of an interpreter up to and with the program that it interprets.
    fn add_interpreted(&mut self, interpreter: &Interpreter, args: &mut dyn Iterator<Item = &str>) {
        while let Some(arg) = args.next() {
            let Some((option, attached, value)) = option_with_value(interpreter, arg) else {
                if arg.starts_with('-') && arg != "-" {
                    self.text.extend([" ", name_alone(arg)]);
                    continue;
                }
                return match interpreter.name {
                    // What it is given names a program of its own.
                    "busybox" => self.text.extend([" ", arg]),
                    _ => self.add_script(arg, args),
                };
            };
            self.text.extend([" ", option]);
            let text = attached.or_else(|| args.next());
            if let Some(text) = text.filter(|_| value != Value::Setting) {
                self.text.push(' ');
                match value {
                    Value::Text => self.text.push_str(&format!("#{:08x}", checksum(&[text.as_bytes()]))),
                    Value::Program => self.add_program(text),
                    Value::Places => {
                        let place = |one: &str| (self.place)(one).unwrap_or_else(|| one.into());
                        let places: Vec<String> = text.split(':').map(place).collect();
                        self.text.push_str(&mark(&places.join(":")));
                        self.places.extend(places);
                    }
                    Value::Setting => {}
                    Value::Other => self.text.push_str(name_alone(text)),
                }
            }
            if matches!(value, Value::Text | Value::Program) {
                return;
            }
        }
    }

    /// Adds a program by its name and a checksum of where it is; a module (`package.main`) is looked for as a file.
    fn add_program(&mut self, program: &str) {
        let (module, place) = (program.replace('.', "/"), self.place);
        match place(program).or_else(|| place(&format!("{module}.py"))).or_else(|| place(&module)) {
            Some(path) => {
                self.text.extend([base_name(program), &mark(&path)]);
                self.places.push(path);
            }
            None => {
                self.text.push_str(program);
                // A module's name has no slash, and is not a path.
                if program.contains('/') {
                    self.places.push(program.into());
                }
            }
        }
    }
}

/// What stands for a place in a role.
fn mark(place: &str) -> String {
    format!("@{:08x}", checksum(&[place.as_bytes()]))
}

/// The interpreter of this name, whatever its version.
fn interpreter(name: &str) -> Option<&'static Interpreter> {
    INTERPRETERS.iter().find(|interpreter| interpreter.name == stem(name))
}

/// The name without a version.
fn stem(name: &str) -> &str {
    name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.')
}

/// Where in `argv` the command stands that it is about: behind `sudo -u x`, `env A=b`, `nice -n 5`, `timeout 5` and their
/// like, one behind the other.
pub fn called<S: AsRef<str>>(argv: &[S]) -> usize {
    let mut start = 0;
    while let Some(within) = wrapped(&argv[start..]) {
        start += within;
    }
    start
}

/// Where the command stands that the wrapper at the beginning of `argv` runs; `None` where that is not one, or runs none.
fn wrapped<S: AsRef<str>>(argv: &[S]) -> Option<usize> {
    let arg = |at: usize| argv.get(at).map(AsRef::as_ref);
    let wrapper = WRAPPERS.iter().find(|wrapper| Some(wrapper.name) == arg(0).map(base_name))?;
    let takes_settings = matches!(wrapper.name, "env" | "sudo");
    let (mut at, mut operands) = (1, wrapper.operands);
    loop {
        let next = arg(at)?;
        at += 1;
        if next == "--" {
            at += operands;
            break;
        }
        match next.strip_prefix('-') {
            Some(long) if long.starts_with('-') => at += usize::from(wrapper.words.contains(&next)),
            Some(letters) => {
                let takes_value = |letter: char| wrapper.values.contains(letter);
                let valued = letters.find(takes_value).unwrap_or(letters.len());
                if letters[..valued].contains(|letter: char| wrapper.none.contains(letter)) {
                    return None;
                }
                // Behind the first that takes one stands its value, in this argument or the next.
                at += usize::from(letters[valued..].chars().count() == 1);
            }
            None if next.contains('=') && takes_settings => {}
            None if operands > 0 => operands -= 1,
            None => {
                at -= 1;
                break;
            }
        }
    }
    (at < argv.len()).then_some(at)
}

/// Whether a role holds what is nobody else's to know: a checksum of a text can be tried against guesses.
pub fn is_private(role: &str) -> bool {
    role.split(' ').any(|word| word.starts_with('#'))
}

/// The words of a role that stand in it as they were given: the name by which the program was called, subcommands, long options, and names that
/// nothing was found by; among them checksums of places ([`Locate`]). Letters of options and kinds of files are too short to tell anything.
///
/// ```
/// use prepage_core::profile::role::given;
/// assert!(given("git log --oneline -C *.txt").eq(["git", "log", "--oneline"]));
/// assert!(given("sh -e build@1f0c2b7a").eq(["sh", "build@1f0c2b7a"]));
/// ```
pub fn given(role: &str) -> impl Iterator<Item = &str> {
    let is_letter = |word: &str| word.strip_prefix('-').is_some_and(|rest| rest.chars().count() <= 1);
    let is_kind = |word: &str| word.strip_prefix("*.").is_some_and(is_file_kind);
    role.split(' ').filter(move |word| !word.is_empty() && !is_letter(word) && !is_kind(word))
}

/// The words of a role that tell a program by its place ([`Locate`]).
///
/// ```
/// use prepage_core::profile::role::placed;
/// assert!(placed("java -cp @5b1d40c2 com.acme.Main ann@host").eq(["@5b1d40c2"]));
/// ```
pub fn placed(role: &str) -> impl Iterator<Item = &str> {
    let is_mark = |mark: &str| mark.len() == 8 && mark.bytes().all(|byte| byte.is_ascii_hexdigit());
    role.split(' ').filter(move |word| word.rsplit_once('@').is_some_and(|(_name, mark)| is_mark(mark)))
}

/// Whether a role tells its program by the place `path` ([`Locate`]).
///
/// ```
/// use prepage_core::profile::role::{is_at, role};
/// let role = role(&["sh", "build", "x"], &|name| Some(format!("/home/ann/{name}")));
/// assert!(is_at(&role, "/home/ann/build") && !is_at(&role, "/home/ann/x"));
/// ```
pub fn is_at(role: &str, path: &str) -> bool {
    let mark = mark(path);
    role.split(' ').any(|word| word.ends_with(&mark))
}

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// `role`, or its beginning and a checksum of all of it.
fn shortened(mut role: String) -> String {
    const CHECKSUM_BYTES: usize = 10;
    if role.len() <= ROLE_BYTES_MAX {
        return role;
    }
    let mark = if is_private(&role) { '#' } else { '~' };
    let checksum = format!(" {mark}{:08x}", checksum(&[role.as_bytes()]));
    let mut end = ROLE_BYTES_MAX - CHECKSUM_BYTES;
    while !role.is_char_boundary(end) {
        end -= 1;
    }
    role.truncate(end);
    role + &checksum
}

/// A setting without what it is set to.
fn name_alone(arg: &str) -> &str {
    arg.find('=').map_or(arg, |at| &arg[..=at])
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
    (is_file_kind(kind) && !stem.is_empty()).then_some(kind)
}

/// Whether the ending of a file's name looks like a kind of files.
fn is_file_kind(ending: &str) -> bool {
    (1..=FILE_KIND_BYTES_MAX).contains(&ending.len())
        && ending.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'+')
        && ending.bytes().any(|byte| byte.is_ascii_alphabetic())
}

#[cfg(test)]
mod tests;
