//! What the machine's administrator and the user want of prepage, from two small files.
//!
//! `/etc/prepage.conf`, then `$XDG_CONFIG_HOME/prepage/config` (`~/.config/prepage/config`): lines of `key = value`; `#` begins a
//! comment. What is said later counts, but patterns of `exclude` add up. `$PREPAGE=off` then switches everything off. A start
//! reads the files in one open each, and mistakes in them never keep a program from starting: they are kept as
//! [`Mistake`]s for `run -v` and `prepage config`.
//!
//! The starter asks [`Config::load`] once before it prepares a start, leaves the program alone where [`Config::wants`] says no, and
//! takes `learn`, `hold_outs` and `verbose` for what the command line does not say. Who writes into a store bounds it by
//! [`Config::store_bytes_max`].

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use prepage_core::quantity::parse_size;
use prepage_profiles::at_hand::{at_hand, is_absent};
use prepage_profiles::room;
use prepage_sys::regular_file;

/// The machine's file.
const OF_MACHINE: &str = "/etc/prepage.conf";
/// Longer ones are cut off: nobody writes them by hand.
const BYTES_MAX: u64 = 64 << 10;
/// All patterns of a user's file: the service compares each start of the user with them, which costs at most so many bytes times those of a path.
const PATTERNS_BYTES_MAX: usize = 8 << 10;
const PATTERN_CHARS_SHOWN: usize = 40;
/// Mistakes that are kept: a file may have one in each line.
const MISTAKES_MAX: usize = 100;

/// The keys, as files and `prepage config` name them.
pub const KEYS: [&str; 8] =
    ["enabled", "exclude", "store-max", "hold-outs", "learn", "verbose", "exclude-cgroup", "predict"];

/// What each of [`KEYS`] is for, in the same order, for help and manual pages.
pub const MEANINGS: [&str; KEYS.len()] = [
    "no: `prepage run` and enabled programs start as without prepage [default: yes]",
    "Programs that are left alone, separated by spaces: names, or with a slash paths; * and ? stand for any text and character",
    "Bytes that the profiles of each store take at most, with k, M or G [default: 64M]",
    "no: every start prefetches, also those that would measure what it gains [default: yes]",
    "no: profiles stay as they are, except for those of `prepage learn` and `prepage measure` [default: yes]",
    "yes: `prepage run` says what it does, as with -v [default: no]",
    "Control groups whose processes are left alone, with the groups below them: paths, or patterns of them",
    "no: the service remembers no launches, and reads nothing ahead of them [default: yes]",
];

/// What is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Whether anything is done at all: without, `prepage run` only becomes the program.
    pub enabled: bool,
    /// Programs that are left alone: by name, or with a slash by path; `*` and `?` stand for any text and character.
    pub exclude: Vec<String>,
    /// Bytes that all profiles of a user may take together, and those of the machine.
    pub store_bytes_max: u64,
    /// Whether a few starts go without prefetch, to see what it gains.
    pub hold_outs: bool,
    /// Whether starts are learned from.
    pub learn: bool,
    /// Whether `run` says what it does.
    pub verbose: bool,
    /// Control groups whose processes are left alone, with those below them: patterns of their paths.
    pub exclude_cgroup: Vec<String>,
    /// Whether the service remembers which programs are started when, and brings the likeliest in while the machine is idle.
    pub predict: bool,
    /// Where each of [`KEYS`] was said last; `None` for what nobody said.
    pub origins: [Option<Origin>; KEYS.len()],
    /// What could not be understood.
    pub mistakes: Vec<Mistake>,
}

/// Where something was said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// In a file, at this line (from 1).
    File(PathBuf, usize),
    /// In the environment variable of this name.
    Variable(&'static str),
}

/// Something in a file that makes no sense. It is passed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The file.
    pub path: PathBuf,
    /// The line, from 1; `None` where the file cannot be read.
    pub line: Option<usize>,
    /// What is wrong, and what would be right.
    pub text: String,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path, line) => write!(f, "{}:{line}", path.display()),
            Self::Variable(name) => write!(f, "${name}"),
        }
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.path.display(), self.text),
            None => write!(f, "{}: {}", self.path.display(), self.text),
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: true,
            exclude: Vec::new(),
            store_bytes_max: room::BYTES_MAX,
            hold_outs: true,
            learn: true,
            verbose: false,
            exclude_cgroup: Vec::new(),
            predict: true,
            origins: Default::default(),
            mistakes: Vec::new(),
        }
    }
}

impl Config {
    /// What the machine's administrator wants of everybody.
    pub fn of_machine() -> Self {
        Self::default().and(OF_MACHINE.as_ref())
    }

    /// The same with what the file at `path` says.
    #[must_use]
    pub fn and(mut self, path: &Path) -> Self {
        self.read(path);
        self
    }

    /// What is in force for this process.
    pub fn load() -> Self {
        let mut config = Self::paths().iter().fold(Self::default(), |config, path| config.and(path));
        if is_switched_off() {
            config.enabled = false;
            config.origins[0] = Some(Origin::Variable("PREPAGE"));
        }
        config
    }

    /// The same, as far as it is in memory ([`prepage_profiles::at_hand`]), where this process is not switched off. `None` where it is to be loaded.
    pub(crate) fn at_hand() -> Option<Self> {
        Self::paths().iter().try_fold(Self::default(), |mut config, path| {
            match at_hand(path).and_then(|file| file.read(BYTES_MAX)) {
                Ok(text) => config.parse(path, &text),
                Err(error) if is_absent(error) => {}
                Err(_) => return None,
            }
            Some(config)
        })
    }

    /// The files that are looked for, in this order.
    pub fn paths() -> Vec<PathBuf> {
        Self::paths_by(|name| std::env::var_os(name))
    }

    /// As the variables of an environment say, which `variable` gives.
    fn paths_by(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
        // From a relative one each directory would lead elsewhere.
        let directory = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let of_user = directory("XDG_CONFIG_HOME").or_else(|| Some(directory("HOME")?.join(".config")));
        [Some(OF_MACHINE.into()), of_user.map(|directory| directory.join("prepage/config"))]
            .into_iter()
            .flatten()
            .collect()
    }

    /// Whether `program`, called as `name`, is to be prefetched and learned.
    pub fn wants(&self, name: &OsStr, program: &Path) -> bool {
        let (name, path) = (name.to_string_lossy(), program.to_string_lossy());
        let name = name.rsplit('/').next().unwrap_or_default();
        let is_meant = |pattern: &String| match pattern.contains('/') {
            true => matches(pattern.as_bytes(), path.as_bytes()),
            false => matches(pattern.as_bytes(), name.as_bytes()),
        };
        self.enabled && !self.exclude.iter().any(is_meant)
    }

    /// Whether processes in the control groups of process `pid` are to be served. One that is gone is not.
    pub fn wants_groups_of(&self, pid: u32) -> bool {
        self.exclude_cgroup.is_empty()
            || fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|text| self.wants_groups(&text))
    }

    /// `memberships` is a /proc/PID/cgroup (cgroups(7)).
    fn wants_groups(&self, memberships: &str) -> bool {
        let paths = memberships.lines().filter_map(|line| line.splitn(3, ':').nth(2));
        let mut levels = paths.flat_map(|path| Path::new(path).ancestors());
        !levels.any(|level| {
            let level = level.as_os_str().as_encoded_bytes();
            self.exclude_cgroup.iter().any(|pattern| matches(pattern.as_bytes(), level))
        })
    }

    /// The value of the key at `at` in [`KEYS`], as a file would have it.
    pub fn value(&self, at: usize) -> String {
        let switch = |on: bool| if on { "yes".into() } else { "no".into() };
        match at {
            0 => switch(self.enabled),
            1 => self.exclude.join(" "),
            2 => bytes_text(self.store_bytes_max),
            3 => switch(self.hold_outs),
            4 => switch(self.learn),
            5 => switch(self.verbose),
            6 => self.exclude_cgroup.join(" "),
            _ => switch(self.predict),
        }
    }

    fn read(&mut self, path: &Path) {
        match content(path) {
            Ok(Some(text)) => self.parse(path, &text),
            Ok(None) => {}
            Err(error) => self.mistakes.push(Mistake {
                path: path.into(),
                line: None,
                text: format!("cannot be read: {error}"),
            }),
        }
    }

    fn parse(&mut self, path: &Path, text: &[u8]) {
        let (text, is_cut) = match text.split_at_checked(BYTES_MAX as usize) {
            // A line that is cut may say something else.
            Some((first, rest)) if !rest.is_empty() => {
                (first.rsplitn(2, |&byte| byte == b'\n').nth(1).unwrap_or_default(), true)
            }
            _ => (text, false),
        };
        let text = String::from_utf8_lossy(text);
        // What the machine's are may cost, the administrator has said.
        let mut patterns_bytes_left =
            if path == Path::new(OF_MACHINE) { usize::MAX } else { PATTERNS_BYTES_MAX };
        let mut first_unlisted = None;
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let said = match line.split_once('=') {
                Some((key, value)) => self.set(key.trim(), value.trim(), &mut patterns_bytes_left),
                None => Err("wanted: key = value".into()),
            };
            match said {
                Ok(key) => self.origins[key] = Some(Origin::File(path.into(), number)),
                Err(text) if self.mistakes.len() < MISTAKES_MAX => {
                    self.mistakes.push(Mistake { path: path.into(), line: Some(number), text });
                }
                Err(_) => _ = first_unlisted.get_or_insert(number),
            }
        }
        if first_unlisted.is_some() {
            let text = format!("more than {MISTAKES_MAX} mistakes: those from here on are not listed");
            self.mistakes.push(Mistake { path: path.into(), line: first_unlisted, text });
        }
        if is_cut {
            let line = Some(1 + text.lines().count());
            let text = format!("longer than {}: what follows is not read", bytes_text(BYTES_MAX));
            self.mistakes.push(Mistake { path: path.into(), line, text });
        }
    }

    /// Returns the key's place in [`KEYS`], or what is wrong.
    fn set(&mut self, key: &str, value: &str, patterns_bytes_left: &mut usize) -> Result<usize, String> {
        let switch = || parse_switch(value).ok_or_else(|| format!("{key}: wanted yes or no, not `{value}`"));
        match key {
            "enabled" => self.enabled = switch()?,
            "hold-outs" => self.hold_outs = switch()?,
            "learn" => self.learn = switch()?,
            "verbose" => self.verbose = switch()?,
            "predict" => self.predict = switch()?,
            "exclude" => add_patterns(&mut self.exclude, value, patterns_bytes_left)?,
            "exclude-cgroup" => {
                let mut patterns = value.split_ascii_whitespace();
                if let Some(name) = patterns.find(|pattern| !pattern.starts_with(['/', '*'])) {
                    return Err(format!(
                        "exclude-cgroup: wanted paths such as /system.slice/*, not `{name}`"
                    ));
                }
                add_patterns(&mut self.exclude_cgroup, value, patterns_bytes_left)?;
            }
            "store-max" => {
                let bytes = parse_size(value);
                self.store_bytes_max =
                    bytes.ok_or_else(|| format!("store-max: wanted a size such as 64M, not `{value}`"))?;
            }
            _ => return Err(format!("no such key: `{key}`; there are {}", KEYS.join(", "))),
        }
        Ok(KEYS.iter().position(|known| *known == key).expect("each key that is set is one of them"))
    }
}

/// Adds to `list` the patterns in `value` that fit into `bytes_left`; says which do not.
fn add_patterns(list: &mut Vec<String>, value: &str, bytes_left: &mut usize) -> Result<(), String> {
    for pattern in value.split_ascii_whitespace() {
        *bytes_left = bytes_left.checked_sub(pattern.len()).ok_or_else(|| {
            let most = bytes_text(PATTERNS_BYTES_MAX as u64);
            let shown: String = pattern.chars().take(PATTERN_CHARS_SHOWN).collect();
            format!("`{shown}` and what follows it: the patterns of this file are longer than {most}")
        })?;
        list.push(pattern.to_owned());
    }
    Ok(())
}

/// What is in the file, as far as it is [read](Config::parse) and a little more; `None` where there is none.
fn content(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match regular_file::open(path) {
        Ok((file, _)) => file,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// Whether `$PREPAGE` switches everything off.
pub fn is_switched_off() -> bool {
    std::env::var_os("PREPAGE").is_some_and(|value| is_off(&value))
}

/// Whether `$PREPAGE` with this value switches everything off.
pub fn is_off(value: &OsStr) -> bool {
    parse_switch(&value.to_string_lossy()) == Some(false)
}

fn parse_switch(value: &str) -> Option<bool> {
    match value {
        "yes" | "on" | "true" | "1" => Some(true),
        "no" | "off" | "false" | "0" => Some(false),
        _ => None,
    }
}

fn bytes_text(bytes: u64) -> String {
    let units = [(30, "G"), (20, "M"), (10, "k")];
    let unit = units.iter().find(|(shift, _)| bytes > 0 && bytes.trailing_zeros() >= *shift);
    unit.map_or_else(|| bytes.to_string(), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

/// Whether `text` is what `pattern` describes: `*` any text, `?` any byte. Linear in both but for the last `*`.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p + 1, t));
                p += 1;
            }
            Some(&byte) if byte == b'?' || byte == text[t] => {
                p += 1;
                t += 1;
            }
            _ => {
                let Some((after, from)) = star else { return false };
                star = Some((after, from + 1));
                (p, t) = (after, from + 1);
            }
        }
    }
    pattern[p..].iter().all(|&byte| byte == b'*')
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use prepage_testing::{Need, assert_passed, child_command, child_output, has, this_test};

    use super::*;

    /// Such paths are invalid (XDG Base Directory Specification), and would lead elsewhere from each directory.
    #[test]
    fn a_relative_home_of_configurations_is_ignored() {
        let of_user = |directory: &'static str| {
            let variables = [("XDG_CONFIG_HOME", directory), ("HOME", "/home/x")];
            let paths = Config::paths_by(|wanted| {
                variables.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value.into())
            });
            assert_eq!(paths[0], Path::new(OF_MACHINE));
            paths[1..].to_vec()
        };
        assert_eq!(of_user("/config"), [Path::new("/config/prepage/config")]);
        for relative in ["config", "./config", ""] {
            assert_eq!(of_user(relative), [Path::new("/home/x/.config/prepage/config")]);
        }
    }

    fn parsed(texts: &[&str]) -> Config {
        let mut config = Config::default();
        for (at, text) in texts.iter().enumerate() {
            config.parse(Path::new(&format!("/{at}")), text.as_bytes());
        }
        config
    }

    #[test]
    fn what_is_said_later_counts_and_exclusions_add_up() {
        let machine = "# ours\nenabled = no\nexclude = gdb vim*\nstore-max=8M\n";
        let user =
            "predict = no\nenabled = yes # mine\n\nexclude = /opt/*\nlearn = off\nverbose=1\nhold-outs = no";
        let config = parsed(&[machine, user]);
        assert!(config.enabled && !config.predict && !config.learn && config.verbose && !config.hold_outs);
        assert_eq!(
            (config.store_bytes_max, &config.exclude[..]),
            (8 << 20, &["gdb", "vim*", "/opt/*"].map(String::from)[..])
        );
        assert_eq!(config.origins[0], Some(Origin::File("/1".into(), 2)));
        assert_eq!(config.origins[2].as_ref().unwrap().to_string(), "/0:4");
        assert!(config.mistakes.is_empty());
        let values: Vec<String> = (0..KEYS.len()).map(|at| config.value(at)).collect();
        assert_eq!(values, ["yes", "gdb vim* /opt/*", "8M", "no", "no", "yes", "", "no"]);
        for (name, path, wanted) in [
            ("gcc", "/usr/bin/gcc", true),
            ("/bin/gdb", "/usr/bin/gdb", false),
            ("vimdiff", "/usr/bin/vim.basic", false),
            ("tool", "/opt/x/bin/tool", false),
        ] {
            assert_eq!(config.wants(name.as_ref(), path.as_ref()), wanted, "{name}");
        }
    }

    #[test]
    fn a_control_group_is_excluded_with_those_below_it() {
        let config = parsed(&["exclude-cgroup = /system.slice/build*.service", "exclude-cgroup=*/docker/*"]);
        assert!(config.mistakes.is_empty());
        for (memberships, wanted) in [
            ("0::/user.slice/session-1.scope\n", true),
            ("0::/system.slice/build-7.service\n", false),
            ("0::/system.slice/build-7.service/jobs/one\n", false),
            ("0::/system.slice\n", true),
            ("5:memory:/\n1:name=systemd:/docker/abc/in\n", false),
            ("5:memory:/\n1:name=systemd:/docker\n", true),
            ("", true),
        ] {
            assert_eq!(config.wants_groups(memberships), wanted, "{memberships}");
        }
        assert!(!config.wants_groups_of(u32::MAX) && Config::default().wants_groups_of(u32::MAX));
        let config = parsed(&["exclude-cgroup = docker"]);
        assert!(config.mistakes[0].text.contains("`docker`") && config.exclude_cgroup.is_empty());
    }

    #[test]
    fn of_a_file_that_is_too_long_whole_lines_are_read_and_the_rest_is_told() {
        // Cut in the word, the last line would be another pattern.
        let text = format!("exclude = a\n{}\nexclude = word", " ".repeat(BYTES_MAX as usize - 27));
        let mut config = Config::default();
        config.parse(Path::new("/x"), text.as_bytes());
        assert_eq!(config.exclude, ["a", "word"]);
        assert!(config.mistakes.is_empty() && text.len() as u64 == BYTES_MAX);
        let mut config = Config::default();
        config.parse(Path::new("/x"), format!("{text}s").as_bytes());
        assert_eq!(config.exclude, ["a"]);
        assert_eq!(config.mistakes[0].to_string(), "/x:3: longer than 64k: what follows is not read");
    }

    #[test]
    fn mistakes_name_file_and_line_and_change_nothing() {
        let config =
            parsed(&["learn = maybe\nno sense\nfoo = 1\nstore-max = 99999999999G\nstore-max =\nlearn = no"]);
        let told: Vec<String> = config.mistakes.iter().map(Mistake::to_string).collect();
        assert_eq!(told.len(), 5, "{told:?}");
        assert!(told[0].starts_with("/0:1: learn: wanted yes or no"), "{told:?}");
        assert!(told[1].starts_with("/0:2: ") && told[2].contains("no such key: `foo`; there are enabled"));
        assert!(!config.learn, "what comes after a mistake counts");
        assert_eq!(config.store_bytes_max, Config::default().store_bytes_max);
    }

    /// The service keeps what a user's file says.
    #[test]
    fn of_a_file_full_of_mistakes_the_first_are_told() {
        let mut config = Config::default();
        config.parse(Path::new("/x"), "x\n".repeat(BYTES_MAX as usize / 2).as_bytes());
        let (last, told) = config.mistakes.split_last().unwrap();
        assert_eq!(told.len(), MISTAKES_MAX);
        assert_eq!(last.to_string(), "/x:101: more than 100 mistakes: those from here on are not listed");
    }

    #[test]
    fn the_patterns_of_a_users_file_are_bounded_and_those_of_the_machine_do_not_count() {
        let long = |first: char| format!("{first}{}", "?".repeat(PATTERNS_BYTES_MAX / 2));
        for key in ["exclude", "exclude-cgroup"] {
            let text = format!("{key} = {} /a {} /b\n{key} = /c\n", long('/'), long('*'));
            let kept = |path: &str| {
                let mut config = Config::default();
                config.parse(Path::new(OF_MACHINE), format!("{key} = /machine\n").as_bytes());
                config.parse(Path::new(path), text.as_bytes());
                let lists = [config.exclude, config.exclude_cgroup];
                let kept: Vec<usize> = lists.iter().flatten().map(String::len).collect();
                (kept, config.mistakes)
            };
            let (kept_of_user, mistakes) = kept("/home/user");
            let len = long('/').len();
            assert_eq!(kept_of_user, [8, len, 2, 2], "what fits");
            assert!(
                mistakes[0].text.contains("longer than 8k") && mistakes[0].text.len() < 200,
                "{mistakes:?}"
            );
            assert_eq!(kept(OF_MACHINE), (vec![8, len, 2, len, 2, 2], vec![]));
        }
    }

    #[test]
    fn absent_files_say_nothing_and_pipes_do_not_hold_anybody_up() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.read(&dir.path().join("absent"));
        assert_eq!(config, Config::default());
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        config.read(&pipe);
        config.read(dir.path());
        assert_eq!(config.mistakes.len(), 2, "neither a pipe nor a directory can be read");
    }

    /// A service that leads a session reads the files of users, who may put links to their terminals there.
    #[test]
    fn a_terminal_in_a_files_place_does_not_become_that_of_the_process() {
        const TERMINAL: &str = "PREPAGE_TEST_TERMINAL";
        if let Some(terminal) = std::env::var_os(TERMINAL) {
            Config::default().read(terminal.as_ref());
            let stat = fs::read_to_string("/proc/self/stat").unwrap();
            // Behind the name: state, parent, group, session, terminal (proc_pid_stat(5)).
            assert_eq!(stat.rsplit(") ").next().unwrap().split(' ').nth(4), Some("0"), "it has no terminal");
            return;
        }
        let open =
            "import os, sys; _, tty = os.openpty(); print(os.ttyname(tty), flush=True); sys.stdin.read()";
        let command = ["-c", open];
        if !has(Need::Tool("python3".into())) || !has(Need::Tool("setsid".into())) {
            return;
        }
        let mut holder = Command::new("python3")
            .args(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut name = String::new();
        BufReader::new(holder.stdout.as_mut().unwrap()).read_line(&mut name).unwrap();
        let mut leader = child_command(&this_test(), &["setsid", "--wait"]);
        let passed = child_output(leader.env(TERMINAL, name.trim_end()));
        drop(holder.stdin.take());
        holder.wait().unwrap();
        assert_passed(&passed);
    }

    #[test]
    fn patterns_stand_for_any_text() {
        for (pattern, text, wanted) in [
            ("a*b?c", "axxbyc", true),
            ("a*b?c", "axxbc", false),
            ("*", "", true),
            ("?", "", false),
            ("**x", "abx", true),
            ("*ab*ab", "abab", true),
            ("", "a", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), wanted, "{pattern} {text}");
        }
    }
}
