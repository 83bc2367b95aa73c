//! Programs started from menus: copies of .desktop files whose Exec lines go through prepage.
//!
//! The copies lie in `$XDG_DATA_HOME/applications`, root's in `/usr/local/share/applications`, which desktops prefer to those of packages (XDG Base
//! Directory, Desktop Entry Specification). A key of ours in each says that it is a copy and of what; others are never touched.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use prepage_profiles::program::find_all;
use prepage_profiles::trust;

use crate::output;

const KEY: &str = "X-Prepage-Copy-Of";
/// For which programs, with `;` between them.
const PROGRAMS_KEY: &str = "X-Prepage-Programs";
const EXEC: &str = "Exec";
const SECTION: &str = "[Desktop Entry]";

/// Makes copies of the .desktop files that start the program `name`.
pub fn enable(name: &str, starter: &Path) -> Result<()> {
    let own = own_directory()?;
    let mut made = 0;
    for (original, text) in originals() {
        let Some(file) = original.file_name() else { continue };
        let copy = own.join(file);
        let old = fs::read_to_string(&copy).unwrap_or_default();
        let mut names = programs(&old);
        names.extend((!names.contains(&name)).then_some(name));
        let Some(text) = rewritten(&text, &names, starter, &original).filter(|text| is_for(text, name))
        else {
            continue;
        };
        if copy.exists() && !is_copy(&old) {
            say!("prepage: {} is your own, and stays as it is", copy.display());
            continue;
        }
        let made_directory = match is_root() {
            true => trust::create_directory(&own, 0o755),
            false => fs::create_dir_all(&own),
        };
        made_directory.with_context(|| own.display().to_string())?;
        write(&copy, &text)?;
        made += 1;
    }
    if made == 0 {
        bail!("is enabled in PATH, but no .desktop file starts it directly");
    }
    Ok(())
}

/// Removes the copies for the program `name`; those that others need as well let it start by itself. Returns whether there were any.
pub fn disable(name: &str) -> Result<bool> {
    let copies: Vec<_> = copies().filter(|(_, text)| is_for(text, name)).collect();
    for (copy, text) in &copies {
        match without(text, name) {
            Some(text) => write(copy, &text)?,
            None => fs::remove_file(copy).with_context(|| copy.display().to_string())?,
        }
    }
    Ok(!copies.is_empty())
}

/// As a whole: desktops watch the directory.
fn write(copy: &Path, text: &str) -> Result<()> {
    output::replace(copy, |out| out.write_all(text.as_bytes()))?;
    if is_root() {
        // One that others may not read would hide the program from their menus.
        fs::set_permissions(copy, Permissions::from_mode(0o644))
            .with_context(|| copy.display().to_string())?;
    }
    Ok(())
}

/// Whether the copies are everybody's.
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The programs that there are copies for.
pub fn enabled() -> Vec<String> {
    copies()
        .flat_map(|(_, text)| programs(&text).into_iter().map(str::to_owned).collect::<Vec<_>>())
        .collect()
}

/// Whether there are copies for the program `name`.
pub fn is_enabled(name: &str) -> bool {
    copies().any(|(_, text)| is_for(&text, name))
}

/// All of them, with their text.
fn copies() -> impl Iterator<Item = (PathBuf, String)> {
    let files = own_directory().map_or_else(|_| Vec::new(), |own| files_in(&own)).into_iter();
    let texts = files.filter_map(|path| fs::read_to_string(&path).ok().map(|text| (path, text)));
    texts.filter(|(_, text)| is_copy(text))
}

fn is_copy(text: &str) -> bool {
    text.lines().any(|line| line.starts_with(KEY))
}

/// Whether a copy is for the program `name`, which may be gone by now.
fn is_for(text: &str, name: &str) -> bool {
    programs(text).contains(&name)
}

/// The programs that a copy is for.
fn programs(text: &str) -> Vec<&str> {
    let value = text.lines().find_map(|line| value_of(line, PROGRAMS_KEY));
    value.map_or_else(Vec::new, |names| names.split(';').collect())
}

/// A copy whose program `name` starts by itself; `None` where it is for no other.
fn without(text: &str, name: &str) -> Option<String> {
    let mut names = programs(text);
    names.retain(|other| *other != name);
    let of_its_own = |line: &str| {
        let (_, exec) = value_of(line, EXEC)?.split_once(" run -- ")?;
        starts(exec, name).then(|| format!("Exec={exec}"))
    };
    let line = |line: &str| match line.starts_with(PROGRAMS_KEY) {
        true => format!("{PROGRAMS_KEY}={}\n", names.join(";")),
        false => of_its_own(line).unwrap_or_else(|| line.to_owned()) + "\n",
    };
    (!names.is_empty()).then(|| text.lines().map(line).collect())
}

/// The text with all Exec lines of the programs `names` going through prepage; `None` where it has no such line.
fn rewritten(text: &str, names: &[&str], starter: &Path, original: &Path) -> Option<String> {
    let is_started =
        |name: &&str| text.lines().filter_map(|line| value_of(line, EXEC)).any(|exec| starts(exec, name));
    let names: Vec<&str> = names.iter().copied().filter(is_started).collect();
    let mut copy = String::new();
    for line in text.lines() {
        match value_of(line, EXEC) {
            Some(exec) if names.iter().any(|name| starts(exec, name)) => {
                copy += &format!("Exec={} run -- {exec}\n", quoted(&starter.to_string_lossy()));
            }
            // Of a program that is started over D-Bus, Exec would not be looked at.
            _ if value_of(line, "DBusActivatable").is_some() => {}
            _ => copy += &format!("{line}\n"),
        }
        if line.trim_end() == SECTION {
            copy += &format!("{KEY}={}\n{PROGRAMS_KEY}={}\n", original.display(), names.join(";"));
        }
    }
    (!names.is_empty()).then_some(copy)
}

/// What `line` sets `key` to; the specification allows spaces around the `=`.
fn value_of<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let (name, value) = line.split_once('=')?;
    (name.trim() == key).then(|| value.trim_start())
}

/// Whether an Exec value starts the program `name`: as its first word, by name or by its path in PATH.
fn starts(exec: &str, name: &str) -> bool {
    let exec = exec.trim_start();
    let word = match exec.strip_prefix('"') {
        Some(quoted) => quoted.split('"').next(),
        None => exec.split_ascii_whitespace().next(),
    };
    let word = word.unwrap_or_default();
    let word = Path::new(word);
    // /bin may be a link to /usr/bin: it is the file that counts. Called by another name it may do something else.
    let file = |path: &Path| path.metadata().ok().map(|found| (found.dev(), found.ino()));
    word == Path::new(name)
        || (word.is_absolute()
            && word.file_name() == Some(name.as_ref())
            && file(word)
                .is_some_and(|wanted| find_all(name.as_ref()).iter().any(|path| file(path) == Some(wanted))))
}

/// As an argument of an Exec line.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    if text.chars().all(plain) {
        return text.to_owned();
    }
    let escaped: String = text
        .chars()
        .flat_map(|c| match c {
            '"' | '`' | '$' | '\\' => vec!['\\', '\\', c],
            '%' => vec!['%', '%'],
            c => vec![c],
        })
        .collect();
    format!("\"{escaped}\"")
}

fn own_directory() -> Result<PathBuf> {
    // Read before /usr/share.
    if is_root() {
        return Ok("/usr/local/share/applications".into());
    }
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let data = variable("XDG_DATA_HOME").or_else(|| Some(variable("HOME")?.join(".local/share")));
    Ok(data.context("HOME is not set: no place for .desktop files")?.join("applications"))
}

/// The system's .desktop files with their text, those preferred first; each name once. Copies are passed over, of whomever: root's stand before the files
/// that they are copies of.
fn originals() -> Vec<(PathBuf, String)> {
    let directories = std::env::var_os("XDG_DATA_DIRS").filter(|value| !value.is_empty());
    let directories = directories.unwrap_or_else(|| "/usr/local/share:/usr/share".into());
    let mut found: Vec<(PathBuf, String)> = Vec::new();
    for directory in std::env::split_paths(&directories).map(|data| data.join("applications")) {
        for file in files_in(&directory) {
            // One that cannot be read starts nothing; desktops prefer it all the same.
            let text = fs::read_to_string(&file).unwrap_or_default();
            if !is_copy(&text) && found.iter().all(|(known, _)| known.file_name() != file.file_name()) {
                found.push((file, text));
            }
        }
    }
    found
}

fn files_in(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    paths.filter(|path| path.extension().is_some_and(|ending| ending == "desktop")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "[Desktop Entry]\nName=Shell\nExec=sh -c %u\nTryExec=sh\nDBusActivatable=true\n\n\
                        [Desktop Action new]\nExec=\"sh\" --new\n[Desktop Action other]\nExec=env A=1 sh\n";

    #[test]
    fn exec_lines_of_the_program_go_through_prepage_and_nothing_else_changes() {
        let copy =
            rewritten(TEXT, &["sh"], Path::new("/opt/a b/prepage"), Path::new("/s/sh.desktop")).unwrap();
        let expected = "[Desktop Entry]\nX-Prepage-Copy-Of=/s/sh.desktop\nX-Prepage-Programs=sh\nName=Shell\n\
                        Exec=\"/opt/a b/prepage\" run -- sh -c %u\nTryExec=sh\n\n\
                        [Desktop Action new]\nExec=\"/opt/a b/prepage\" run -- \"sh\" --new\n\
                        [Desktop Action other]\nExec=env A=1 sh\n";
        assert_eq!(copy, expected);
        assert!(is_copy(&copy) && is_for(&copy, "sh") && !is_for(&copy, "bash"));
        assert_eq!(rewritten(TEXT, &["bash"], Path::new("/p"), Path::new("/o")), None);
        let spaced = TEXT.replace("Entry]\n", "Entry] \n");
        let copy = rewritten(&spaced, &["sh"], Path::new("/p"), Path::new("/s/sh.desktop")).unwrap();
        assert!(copy.contains("\nX-Prepage-Copy-Of="), "{copy}");
        let spaced = TEXT.replace("Exec=", "Exec = ").replace("able=", "able = ");
        let copy = rewritten(&spaced, &["sh"], Path::new("/p"), Path::new("/s/sh.desktop")).unwrap();
        assert!(copy.contains("\nExec=/p run -- sh -c %u\nTryExec = sh\n\n"), "{copy}");
        assert!(copy.ends_with("\nExec = env A=1 sh\n") && !copy.contains("DBus"), "{copy}");
    }

    #[test]
    fn one_file_may_start_several_programs() {
        let rewritten = |names: &[&str]| rewritten(TEXT, names, Path::new("/p"), Path::new("/o")).unwrap();
        let both = rewritten(&["sh", "bash", "env"]);
        assert_eq!(programs(&both), ["sh", "env"]);
        assert_eq!(both.matches("=/p run -- ").count(), 3);
        let one = without(&both, "sh").unwrap();
        assert_eq!(one, rewritten(&["env"]));
        assert_eq!(without(&one, "env"), None);
    }
}
