//! What shells complete. `COMPLETE=bash prepage` (or zsh, fish, elvish, powershell) prints what a shell must source; the
//! shell then runs prepage at each press of the tab key, so that traces, profiles and programs are those of the moment.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use clap::builder::ValueHint;
use clap::error::ErrorKind;
use clap::{Arg, Command};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter};
use clap_complete::env::CompleteEnv;
use prepage_core::FaultClass;
use prepage_profiles::{Layer, ProgramKey, Stores};
use prepage_report::Column;
use prepage_report::export::{Format, Weight};

use crate::enable::Links;
use crate::output;
use crate::profile::short_names;
use crate::report;

/// Answers a shell, if one asks (the variable COMPLETE is set). Returns whether one did.
pub fn answer() -> io::Result<bool> {
    // Whoever answers removes it: what is started for that would answer, too.
    let shell = std::env::var_os("COMPLETE").unwrap_or_default();
    let shells = CompleteEnv::with_factory(|| with_values(crate::help::command()));
    let shells = shells.bin("prepage").completer("prepage");
    match shells.try_complete(std::env::args_os(), std::env::current_dir().ok().as_deref()) {
        Ok(false) => Ok(false),
        Ok(true) => output::by_others(complete_at_once(Path::new(&shell))).map(|()| true),
        // It keeps the words of the system alone.
        Err(error) if error.kind() == ErrorKind::Io => {
            let why = error.to_string();
            let why = why.trim_start_matches("error: ").trim_end();
            // A shell that it does not know has the same kind as what cannot be written.
            match why.starts_with("unknown shell") {
                true => Err(io::Error::new(io::ErrorKind::InvalidInput, format!("COMPLETE: {why}"))),
                false => output::by_others(Err(io::Error::other(why))).map(|()| true),
            }
        }
        Err(error) => error.exit(),
    }
}

/// Ends the script of zsh. Where that is found by its name (`_prepage` in a directory of fpath), it is what the first press of the tab key calls, and has to
/// complete as well. Where it was sourced nothing has called it.
fn complete_at_once(shell: &Path) -> io::Result<()> {
    let is_script = std::env::args_os().all(|word| word != "--");
    if is_script && shell.file_stem() == Some(OsStr::new("zsh")) {
        writeln!(io::stdout(), "[[ ${{funcstack[1]}} != _prepage ]] || _clap_dynamic_completer_prepage")?;
    }
    Ok(())
}

/// The commands, whose arguments know what can stand for them by the names of their values.
fn with_values(command: Command) -> Command {
    let is_disable = command.get_name() == "disable";
    command.mut_args(|arg| with_value(arg, is_disable)).mut_subcommands(with_values)
}

fn with_value(arg: Arg, is_disable: bool) -> Arg {
    let (names, is_list) = match arg.get_id().as_str() {
        "by" => (report::table_names(), true),
        "class" => (FaultClass::ALL.map(FaultClass::name).to_vec(), true),
        "columns" => (Column::ALL.map(Column::name).to_vec(), true),
        "format" => (Format::ALL.map(Format::name).to_vec(), false),
        "weight" => (Weight::ALL.map(Weight::name).to_vec(), false),
        _ => (Vec::new(), false),
    };
    if !names.is_empty() {
        return arg.add(ArgValueCompleter::new(move |current: &OsStr| one_of(current, &names, is_list)));
    }
    let Some([name, ..]) = arg.get_value_names() else { return arg };
    match name.as_str() {
        "PROGRAM" if is_disable => arg.add(ArgValueCompleter::new(enabled)),
        "TRACE" | "BEFORE" | "AFTER" => arg.add(ArgValueCompleter::new(traces())),
        "PROFILE" => arg.add(ArgValueCompleter::new(profiles)),
        "CMD" | "PROGRAM" => arg.add(ArgValueCompleter::new(programs)),
        "DIR" | "DIRECTORY" => arg.value_hint(ValueHint::DirPath),
        _ => arg,
    }
}

/// Traces, and the directories in which there may be some.
fn traces() -> PathCompleter {
    PathCompleter::file().filter(|path| {
        let name = path.to_string_lossy();
        [".parquet", ".parquet.old", ".partial"].iter().any(|ending| name.ends_with(ending))
    })
}

/// One of `names`, in a list behind what is there of it.
fn one_of(current: &OsStr, names: &[&str], is_list: bool) -> Vec<CompletionCandidate> {
    let current = current.to_string_lossy();
    let (before, begun) = current.split_at(current.rfind(',').filter(|_| is_list).map_or(0, |at| at + 1));
    let offered = names.iter().filter(|name| name.starts_with(begun));
    offered.map(|name| CompletionCandidate::new(format!("{before}{name}"))).collect()
}

/// Programs that are enabled.
fn enabled(current: &OsStr) -> Vec<CompletionCandidate> {
    let names = Links::of_user().and_then(|links| links.names()).unwrap_or_default();
    beginning_with(current, names.into_iter().map(Into::into).collect())
}

/// Profiles in the stores, by the name of the file and by that of the program.
fn profiles(current: &OsStr) -> Vec<CompletionCandidate> {
    let mut names = BTreeSet::new();
    let mut see = |path: PathBuf, key: Option<ProgramKey>| {
        names.extend(short_names(&path, &key.unwrap_or_default().role).into_iter().map(Into::into));
    };
    if let Ok(stores) = Stores::of_user() {
        for layer in [Layer::User, Layer::Machine, Layer::Vendor] {
            // What cannot be read has no names.
            let _ = stores.keys(layer, &mut see);
        }
    }
    beginning_with(current, names)
}

/// Programs in PATH; where a path is begun, the programs there.
fn programs(current: &OsStr) -> Vec<CompletionCandidate> {
    if current.as_encoded_bytes().contains(&b'/') {
        return PathCompleter::file().complete(current);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let entries =
        std::env::split_paths(&path).filter_map(|directory| std::fs::read_dir(directory).ok()).flatten();
    let is_program = |entry: &std::fs::DirEntry| {
        entry.path().metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    let begun = entries.flatten().filter(|entry| starts_with(&entry.file_name(), current));
    beginning_with(current, begun.filter(is_program).map(|entry| entry.file_name()).collect())
}

fn beginning_with(current: &OsStr, names: BTreeSet<std::ffi::OsString>) -> Vec<CompletionCandidate> {
    names.into_iter().filter(|name| starts_with(name, current)).map(CompletionCandidate::new).collect()
}

fn starts_with(name: &OsStr, beginning: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(beginning.as_encoded_bytes())
}
