//! `prepage enable`, `prepage disable`: links that stand in front of programs in PATH, as ccache has them.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use prepage_profiles::program::{find_all, is_stand_in};
use prepage_profiles::trust;

use crate::desktop;
use crate::remedy::{self, Remedied, Try};
use crate::starter::{check_is_of_root, starter};
use crate::table::table;

/// Everybody's links.
const OF_ROOT: &str = "/usr/local/lib/prepage/bin";
/// A user's, below the home directory.
const IN_HOME: &str = ".local/lib/prepage/bin";

/// Options of `prepage enable`.
#[derive(Debug, clap::Args)]
pub struct EnableArgs {
    /// Also prefetch when they are started from menus or by opening files (copies their .desktop files)
    #[arg(long)]
    desktop: bool,
    /// Show which programs are enabled, and what each link starts
    #[arg(long, exclusive = true)]
    list: bool,
    /// Programs, by name
    #[arg(required_unless_present = "list", value_name = "PROGRAM")]
    programs: Vec<String>,
}

/// Options of `prepage disable`.
#[derive(Debug, clap::Args)]
pub struct DisableArgs {
    /// Disable all enabled programs
    #[arg(long, conflicts_with = "programs")]
    all: bool,
    /// Programs, by name
    #[arg(required_unless_present = "all", value_name = "PROGRAM")]
    programs: Vec<String>,
}

/// Runs `prepage enable`.
pub fn enable(args: &EnableArgs) -> Result<ExitCode> {
    let links = Links::of_user()?;
    if args.list {
        return links.list();
    }
    let starter = starter()?;
    // Root's links are everybody's.
    check_is_of_root(&starter)?;
    let (mut failed, mut linked) = (false, Vec::new());
    for name in &args.programs {
        let done = links.add(name, &starter).and_then(|()| {
            linked.push(name.clone());
            if args.desktop { desktop::enable(name, &starter) } else { Ok(()) }
        });
        if let Err(error) = done {
            remedy::say(&format!("{name}: "), &error);
            failed = true;
        }
    }
    links.tell_path(&linked);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Runs `prepage disable`.
pub fn disable(args: &DisableArgs) -> Result<ExitCode> {
    let links = Links::of_user()?;
    let names = if args.all { all_enabled(&links)? } else { args.programs.clone() };
    let mut failed = false;
    for name in &names {
        let done = links.remove(name).and_then(|was_enabled| {
            let was_in_menus = desktop::disable(name)?;
            match was_enabled || was_in_menus {
                true => Ok(()),
                false => bail!("is not enabled (prepage enable --list)"),
            }
        });
        if let Err(error) = done {
            remedy::say(&format!("{name}: "), &error);
            failed = true;
        }
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The programs that have a link or are started from menus, or both: links go by other ways than this one, too.
fn all_enabled(links: &Links) -> Result<Vec<String>> {
    let names: BTreeSet<String> = links.names()?.into_iter().chain(desktop::enabled()).collect();
    Ok(names.into_iter().collect())
}

/// The directory of links.
pub struct Links(PathBuf);

impl Links {
    /// Root's is everybody's.
    pub fn of_user() -> Result<Self> {
        if rustix::process::geteuid().is_root() {
            return Ok(Self(OF_ROOT.into()));
        }
        let home = std::env::var_os("HOME").filter(|home| Path::new(home).is_absolute());
        let no_home =
            || Remedied::new("HOME is not set: no place for links", "HOME=/home/you prepage enable …");
        let home = home.or_try(no_home)?;
        Ok(Self(Path::new(&home).join(IN_HOME)))
    }

    fn add(&self, name: &str, starter: &Path) -> Result<()> {
        if name.is_empty() || name.contains('/') {
            bail!("wanted: the name of a program in PATH, without a directory");
        }
        if name.starts_with("prepage") || name.starts_with('-') {
            bail!("a link cannot have this name");
        }
        if find_all(name.as_ref()).is_empty() {
            bail!("no such program in PATH");
        }
        let made = match rustix::process::geteuid().is_root() {
            // Everybody's.
            true => trust::create_directory(&self.0, 0o755),
            false => fs::create_dir_all(&self.0),
        };
        made.with_context(|| self.0.display().to_string())?;
        let link = self.0.join(name);
        if link.symlink_metadata().is_ok() && !is_stand_in(&link) {
            bail!("{} is not a link to prepage, and stays as it is", link.display());
        }
        // Made beside and renamed: who starts the program meanwhile finds the old link or the new one.
        let new = self.0.join(format!(".{name}.{}", std::process::id()));
        symlink(starter, &new)
            .and_then(|()| fs::rename(&new, &link).inspect_err(|_| drop(fs::remove_file(&new))))
            .with_context(|| link.display().to_string())
    }

    /// Returns whether there was a link.
    fn remove(&self, name: &str) -> Result<bool> {
        let link = self.0.join(name);
        if name.contains('/') || !is_stand_in(&link) {
            return Ok(false);
        }
        fs::remove_file(&link).with_context(|| link.display().to_string())?;
        // Stays while there are others.
        let _ = fs::remove_dir(&self.0);
        Ok(true)
    }

    /// The programs with a link, sorted.
    pub fn names(&self) -> Result<Vec<String>> {
        let entries = match fs::read_dir(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.with_context(|| self.0.display().to_string())?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.with_context(|| self.0.display().to_string())?;
            if is_stand_in(&entry.path()) {
                names.extend(entry.file_name().into_string());
            }
        }
        names.sort();
        Ok(names)
    }

    fn list(&self) -> Result<ExitCode> {
        let names = self.names()?;
        if names.is_empty() {
            writeln!(crate::output::text(), "no program is enabled in {}", self.0.display())?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut table = table(&["program", "starts", "menus"], &[]).whole(1);
        let mut end = ExitCode::SUCCESS;
        for name in &names {
            let starts = match find_all(name.as_ref()).first() {
                // What the link leads to.
                _ if !self.0.join(name).exists() => {
                    end = ExitCode::FAILURE;
                    format!("nothing: prepage is not there any more (prepage enable {name})")
                }
                Some(program) => program.display().to_string(),
                None => format!("nothing: not in PATH (prepage disable {name})"),
            };
            let menus = if desktop::is_enabled(name) { "yes" } else { "" };
            table.add_row([name, &starts, menus]);
        }
        writeln!(crate::output::text(), "{}", table.lines(crate::output::width()))?;
        self.tell_path(&names);
        Ok(end)
    }

    /// Says what to add to the shell's profile where PATH does not have the links in front of the programs.
    fn tell_path(&self, names: &[String]) {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let directories: Vec<PathBuf> = std::env::split_paths(&path).collect();
        let place = |directory: &Path| directories.iter().position(|entry| entry == directory);
        let own = place(&self.0);
        let is_behind = |name: &String| {
            let program = find_all(OsStr::new(name)).into_iter().next();
            let place = program.as_deref().and_then(Path::parent).and_then(place);
            place.is_some_and(|place| own.is_none_or(|own| own > place))
        };
        if names.iter().any(is_behind) {
            say!("prepage: the links are not in front of the programs in PATH");
            let shell = std::env::var_os("SHELL").unwrap_or_default();
            let home = std::env::var_os("HOME").unwrap_or_default();
            // Root's links are everybody's.
            let remedy = match rustix::process::geteuid().is_root() {
                true => export(OF_ROOT, "/etc/profile.d/prepage.sh"),
                false => in_front(&shell, Path::new(&home)),
            };
            say!("  try: {remedy}");
        }
    }
}

/// How the login shell `shell` of the user at `home` gets the links in front of the programs in PATH.
fn in_front(shell: &OsStr, home: &Path) -> String {
    /// Of these bash reads the first that is there.
    const OF_BASH: [&str; 2] = ["~/.bash_profile", "~/.bash_login"];
    let is_there = |name: &&str| home.join(&name[2..]).exists();
    let links = format!("$HOME/{IN_HOME}");
    match Path::new(shell).file_name().and_then(OsStr::to_str) {
        Some("fish") => format!("fish_add_path --move \"{links}\""),
        Some("zsh") => export(&links, "\"${ZDOTDIR:-$HOME}/.zprofile\""),
        Some("bash") => export(&links, OF_BASH.into_iter().find(is_there).unwrap_or("~/.profile")),
        None | Some("sh" | "ash" | "dash" | "ksh" | "mksh") => export(&links, "~/.profile"),
        Some(_) => format!("put {} in front of the other directories of PATH", home.join(IN_HOME).display()),
    }
}

/// Has shells that read `profile` look into `directory` first.
fn export(directory: &str, profile: &str) -> String {
    format!("echo 'export PATH=\"{directory}:$PATH\"' >> {profile}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_login_shell_has_a_way_of_its_own() {
        let home = tempfile::tempdir().unwrap();
        let told = |shell: &str| in_front(shell.as_ref(), home.path());
        for (shell, end) in [
            ("/bin/bash", ">> ~/.profile"),
            ("/usr/bin/zsh", ">> \"${ZDOTDIR:-$HOME}/.zprofile\""),
            ("/bin/dash", ">> ~/.profile"),
            ("", ">> ~/.profile"),
        ] {
            let export = "echo 'export PATH=\"$HOME/.local/lib/prepage/bin:$PATH\"' ";
            assert_eq!(told(shell), format!("{export}{end}"));
        }
        assert_eq!(told("/bin/fish"), "fish_add_path --move \"$HOME/.local/lib/prepage/bin\"");
        assert!(told("/bin/tcsh").starts_with(&format!("put {}/", home.path().display())));
        for name in [".bash_login", ".bash_profile"] {
            fs::write(home.path().join(name), "").unwrap();
            assert!(told("/bin/bash").ends_with(&format!(">> ~/{name}")));
        }
    }
}
