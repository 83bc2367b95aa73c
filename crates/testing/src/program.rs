//! A program of tests, as cargo names it when it has compiled it.

use std::path::{Path, PathBuf};

use serde::Deserialize;

/// Packages whose tests ask nothing of the machine that tests of others change: each looks at its own memory, files and processes. The
/// tests of the rest watch the programs of the whole machine, or set what all of it goes by, or look at how soon something is so.
const TO_THEMSELVES: [&str; 9] = [
    "prepage-core",
    "prepage-display",
    "prepage-profiles",
    "prepage-report",
    "prepage-simulate",
    "prepage-sys",
    "prepage-testing",
    "prepage-trace",
    "prepage-vm",
];
/// A program of tests of another package that is like these.
const ALSO_TO_ITSELF: &str = "-p prepage --test bench_patterns";
/// Programs of tests in these packages that are of the other kind: they set what the whole machine goes by or swaps to, record at full speed,
/// wait until memory is short, want a file in memory, or take a processor for themselves.
const NOT_TO_THEMSELVES: [&str; 9] = [
    "-p prepage-sys --lib",
    "-p prepage-sys --test visits",
    "-p prepage-testing --lib",
    "-p prepage-trace --test recorder",
    "-p prepage-trace --test stream",
    "-p prepage-vm --test cold_file",
    "-p prepage-vm --test give_back",
    "-p prepage-vm --test process",
    "-p prepage-vm --test real_time",
];
/// Programs whose tests mostly wait, for what takes its time: so many run at once.
const WAITING: [(&str, usize); 4] = [
    ("-p prepage --test commands", 4),
    ("-p prepage-service --test containers", 4),
    ("-p prepage-service --test mounts", 4),
    ("-p prepage-service --test period", 4),
];
/// Programs of tests that run last, when nothing else does: they count what is lost at full speed, or how late something is, or each read
/// of the disk.
const LAST: [&str; 5] = [
    "-p prepage --test modes",
    "-p prepage-vm --test give_back",
    "-p prepage-service --test disturbances",
    "-p prepage-trace --test stream",
    "-p prepage-trace --test recorder",
];

/// A program of tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Its file.
    pub path: PathBuf,
    /// Its package's directory, in which it runs.
    pub directory: PathBuf,
    /// What it was compiled from.
    pub source: PathBuf,
    /// Arguments of `cargo test` that run this program alone: `-p prepage-vm --test pool`.
    pub target: Vec<String>,
}

#[derive(Deserialize)]
struct Message {
    package_id: String,
    manifest_path: PathBuf,
    target: Target,
    profile: Profile,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    name: String,
    src_path: PathBuf,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

impl Program {
    /// The program of tests that a line of `cargo test --no-run --message-format=json` tells of. `None` where it tells of something else.
    pub fn from_message(line: &str) -> Option<Self> {
        let message: Message = serde_json::from_str(line).ok()?;
        let path = message.executable.filter(|_| message.profile.test)?;
        let kind = message.target.kind.first()?;
        let mut target = vec!["-p".to_owned(), package(&message.package_id).to_owned()];
        match kind.as_str() {
            "bin" | "test" | "bench" | "example" => target.extend([format!("--{kind}"), message.target.name]),
            _ => target.push("--lib".into()),
        }
        let directory = message.manifest_path.parent()?.to_owned();
        Some(Self { path, directory, source: message.target.src_path, target })
    }

    /// Whether its tests look at nothing that tests of other programs change.
    pub fn is_to_itself(&self) -> bool {
        let arguments = self.arguments();
        let is_of_these = TO_THEMSELVES.contains(&self.target[1].as_str());
        arguments == ALSO_TO_ITSELF || is_of_these && !NOT_TO_THEMSELVES.contains(&arguments.as_str())
    }

    /// Its place among all: what runs last has the highest.
    pub fn turn(&self) -> usize {
        LAST.iter().position(|last| *last == self.arguments()).map_or(0, |place| place + 1)
    }

    /// How many of its tests run at once, where that is not one for each processor.
    pub fn threads(&self) -> Option<usize> {
        let arguments = self.arguments();
        WAITING.iter().find(|(waiting, _)| *waiting == arguments).map(|(_, threads)| *threads)
    }

    fn arguments(&self) -> String {
        self.target.join(" ")
    }

    /// What cargo says when it runs the program.
    pub fn heading(&self) -> String {
        let source = self.source.strip_prefix(&self.directory).unwrap_or(&self.source);
        let is_of_a_package = self.target.iter().any(|argument| argument == "--lib" || argument == "--bin");
        let unit = if is_of_a_package { "unittests " } else { "" };
        let target = self.directory.ancestors().nth(2).unwrap_or(Path::new(""));
        let path = self.path.strip_prefix(target).unwrap_or(&self.path);
        format!("     Running {unit}{} ({})", source.display(), path.display())
    }
}

/// The package's name in cargo's identifier of it, `path+file:///work/crates/cli#prepage@0.1.0`, where the name is left out if the
/// directory has it.
fn package(id: &str) -> &str {
    let (place, rest) = id.rsplit_once('#').unwrap_or((id, ""));
    let named = rest.split_once('@').map(|(name, _)| name);
    named.unwrap_or_else(|| place.rsplit('/').next().unwrap_or(place))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As cargo 1.95 says it, shortened.
    fn message(package_id: &str, kind: &str, name: &str, is_test: bool) -> String {
        format!(
            r#"{{"reason":"compiler-artifact","package_id":"{package_id}","manifest_path":"/w/crates/vm/Cargo.toml","target":{{"kind":["{kind}"],"name":"{name}","src_path":"/w/crates/vm/tests/{name}.rs"}},"profile":{{"opt_level":"1","test":{is_test}}},"executable":"/w/target/debug/deps/{name}-36e8","fresh":true}}"#
        )
    }

    fn program(package_id: &str, kind: &str, name: &str) -> Program {
        Program::from_message(&message(package_id, kind, name, true)).expect("a program of tests")
    }

    #[test]
    fn programs_of_tests_are_told_from_all_else() {
        let pool = program("path+file:///w/crates/vm#prepage-vm@0.1.0", "test", "pool");
        assert_eq!(pool.target.join(" "), "-p prepage-vm --test pool");
        assert_eq!(pool.directory, Path::new("/w/crates/vm"));
        assert_eq!(pool.heading(), "     Running tests/pool.rs (target/debug/deps/pool-36e8)");
        let unit = program("path+file:///w/crates/prepage-vm#0.1.0", "lib", "prepage_vm");
        assert_eq!(unit.target.join(" "), "-p prepage-vm --lib");
        for other in [
            message("path+file:///w/crates/vm#prepage-vm@0.1.0", "bin", "prepage", false),
            message("path+file:///w/crates/vm#prepage-vm@0.1.0", "lib", "vm", true)
                .replace("\"/w/target/debug/deps/vm-36e8\"", "null"),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
            "   Compiling prepage-vm".to_owned(),
        ] {
            assert_eq!(Program::from_message(&other), None, "{other}");
        }
    }

    #[test]
    fn what_looks_at_the_machine_runs_with_nothing_of_its_kind_beside_it() {
        let of = |package: &str, name| program(&format!("path+file:///w#{package}@0.1.0"), "test", name);
        assert!(of("prepage", "bench_patterns").is_to_itself());
        assert!(of("prepage-vm", "pool").is_to_itself() && of("prepage-core", "all").is_to_itself());
        assert!(!of("prepage-vm", "give_back").is_to_itself() && !of("prepage", "commands").is_to_itself());
        assert!(!of("prepage-vm", "real_time").is_to_itself());
        assert!(of("prepage", "commands").threads() > of("prepage-service", "gains").threads());
        assert!(of("prepage-trace", "recorder").turn() > of("prepage-service", "disturbances").turn());
        assert_eq!(of("prepage", "commands").turn(), 0);
    }
}
