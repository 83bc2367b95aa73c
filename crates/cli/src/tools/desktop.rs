//! Programs started from menus: copies of .desktop files whose Exec lines go through prepage.
//!
//! The copies lie in `$XDG_DATA_HOME/applications`, which desktops prefer to the system's (XDG Base Directory, Desktop Entry
//! Specification). A key of ours in each says that it is a copy and of what; others are never touched.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use prepage_profiles::program::find_all;

use crate::output;

const KEY: &str = "X-Prepage-Copy-Of";
/// For which program.
const PROGRAM_KEY: &str = "X-Prepage-Program";
const SECTION: &str = "[Desktop Entry]";

/// Makes copies of the .desktop files that start the program `name`.
pub fn enable(name: &str, starter: &Path) -> Result<()> {
    let own = own_directory()?;
    let mut made = 0;
    for original in originals(&own) {
        let Some(file) = original.file_name() else { continue };
        let Ok(text) = fs::read_to_string(&original) else { continue };
        let Some(text) = rewritten(&text, name, starter, &original) else { continue };
        let copy = own.join(file);
        if copy.exists() && !is_copy(&copy) {
            say!("prepage: {} is your own, and stays as it is", copy.display());
            continue;
        }
        fs::create_dir_all(&own).with_context(|| own.display().to_string())?;
        // As a whole: desktops watch the directory.
        output::replace(&copy, |out| out.write_all(text.as_bytes()))?;
        made += 1;
    }
    if made == 0 {
        bail!("is enabled in PATH, but no .desktop file starts it directly");
    }
    Ok(())
}

/// Removes the copies for the program `name`. Returns whether there were any.
pub fn disable(name: &str) -> Result<bool> {
    let copies = copies(name);
    for copy in &copies {
        fs::remove_file(copy).with_context(|| copy.display().to_string())?;
    }
    Ok(!copies.is_empty())
}

/// Whether there are copies for the program `name`.
pub fn is_enabled(name: &str) -> bool {
    !copies(name).is_empty()
}

fn copies(name: &str) -> Vec<PathBuf> {
    let Ok(own) = own_directory() else { return Vec::new() };
    let starts_it = |path: &PathBuf| {
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines().any(|line| line.starts_with(KEY)) && is_copy_for(&text, name)
    };
    files_in(&own).into_iter().filter(starts_it).collect()
}

/// Whether a copy is for the program `name`, which may be gone by now. Older copies do not say so.
fn is_copy_for(text: &str, name: &str) -> bool {
    let value = |line: &str| line.strip_prefix(PROGRAM_KEY)?.strip_prefix('=').map(|value| value == name);
    text.lines().find_map(value).unwrap_or_else(|| text.lines().any(|line| is_exec_of_copy(line, name)))
}

fn is_exec_of_copy(line: &str, name: &str) -> bool {
    let Some(words) = line.strip_prefix("Exec=").and_then(|exec| exec.split_once(" run -- ")) else {
        return false;
    };
    starts(words.1, name)
}

fn is_copy(path: &Path) -> bool {
    fs::read_to_string(path).is_ok_and(|text| text.lines().any(|line| line.starts_with(KEY)))
}

/// The text with all Exec lines of the program going through prepage; `None` where it has no such line.
fn rewritten(text: &str, name: &str, starter: &Path, original: &Path) -> Option<String> {
    let mut changed = false;
    let mut copy = String::new();
    for line in text.lines() {
        match line.strip_prefix("Exec=") {
            Some(exec) if starts(exec, name) => {
                changed = true;
                copy += &format!("Exec={} run -- {exec}\n", quoted(&starter.to_string_lossy()));
            }
            // Of a program that is started over D-Bus, Exec would not be looked at.
            _ if line.starts_with("DBusActivatable=") => {}
            _ => copy += &format!("{line}\n"),
        }
        if line.trim_end() == SECTION {
            copy += &format!("{KEY}={}\n{PROGRAM_KEY}={name}\n", original.display());
        }
    }
    changed.then_some(copy)
}

/// Whether an Exec value starts the program `name`: as its first word, by name or by its path in PATH.
fn starts(exec: &str, name: &str) -> bool {
    let exec = exec.trim_start();
    let word = match exec.strip_prefix('"') {
        Some(quoted) => quoted.split('"').next(),
        None => exec.split_ascii_whitespace().next(),
    };
    let word = word.unwrap_or_default();
    word == name || (word.contains('/') && find_all(name.as_ref()).iter().any(|path| path == Path::new(word)))
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
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let data = variable("XDG_DATA_HOME").or_else(|| Some(variable("HOME")?.join(".local/share")));
    Ok(data.context("HOME is not set: no place for .desktop files")?.join("applications"))
}

/// The system's .desktop files, those preferred first; each name once.
fn originals(own: &Path) -> Vec<PathBuf> {
    let directories = std::env::var_os("XDG_DATA_DIRS").filter(|value| !value.is_empty());
    let directories = directories.unwrap_or_else(|| "/usr/local/share:/usr/share".into());
    let mut found: Vec<PathBuf> = Vec::new();
    for directory in std::env::split_paths(&directories).map(|data| data.join("applications")) {
        if directory == own {
            continue;
        }
        for file in files_in(&directory) {
            if found.iter().all(|known| known.file_name() != file.file_name()) {
                found.push(file);
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

    #[test]
    fn exec_lines_of_the_program_go_through_prepage_and_nothing_else_changes() {
        let text = "[Desktop Entry]\nName=Shell\nExec=sh -c %u\nTryExec=sh\nDBusActivatable=true\n\n\
                    [Desktop Action new]\nExec=\"sh\" --new\n[Desktop Action other]\nExec=env A=1 sh\n";
        let copy = rewritten(text, "sh", Path::new("/opt/a b/prepage"), Path::new("/s/sh.desktop")).unwrap();
        let expected = "[Desktop Entry]\nX-Prepage-Copy-Of=/s/sh.desktop\nX-Prepage-Program=sh\nName=Shell\n\
                        Exec=\"/opt/a b/prepage\" run -- sh -c %u\nTryExec=sh\n\n\
                        [Desktop Action new]\nExec=\"/opt/a b/prepage\" run -- \"sh\" --new\n\
                        [Desktop Action other]\nExec=env A=1 sh\n";
        assert_eq!(copy, expected);
        let old = copy.replace("X-Prepage-Program=sh\n", "");
        for copy in [&copy, &old] {
            assert!(is_copy_for(copy, "sh") && !is_copy_for(copy, "bash"));
        }
        assert_eq!(rewritten(text, "bash", Path::new("/p"), Path::new("/o")), None);
        let spaced = text.replace("Entry]\n", "Entry] \n");
        let copy = rewritten(&spaced, "sh", Path::new("/p"), Path::new("/s/sh.desktop")).unwrap();
        assert!(copy.contains("\nX-Prepage-Copy-Of="), "{copy}");
    }

    #[test]
    fn a_copy_is_known_after_its_program_is_gone() {
        let text = "[Desktop Entry]\nX-Prepage-Copy-Of=/s/tool.desktop\nX-Prepage-Program=tool\n\
                    Exec=/usr/bin/prepage run -- /no/longer/there/tool %u\n";
        assert!(is_copy_for(text, "tool") && !is_copy_for(text, "there"));
    }
}
