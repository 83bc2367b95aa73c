//! `prepage man DIR`: writes the manual pages, which `make install` installs.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::examples;
use crate::help::{ENVIRONMENT, EXIT_CODES, FILES, command};

/// Options of `prepage man`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where to write prepage.1 and a page for each command
    directory: PathBuf,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    fs::create_dir_all(&args.directory).with_context(|| args.directory.display().to_string())?;
    let mut all = command().disable_help_subcommand(true);
    all.build();
    write(&args.directory, all, "")?;
    Ok(ExitCode::SUCCESS)
}

/// The page of `command`, which is called `path`, and those of the commands below it.
fn write(directory: &Path, command: clap::Command, path: &str) -> Result<()> {
    let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    for below in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        let path = format!("{path} {}", below.get_name());
        write(directory, below.clone(), path.trim_start())?;
    }
    let mut page = Vec::new();
    // What help says behind the options has sections of its own here: their lines would be filled to a paragraph.
    let behind = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let command = command.after_long_help(None::<&str>).after_help(None::<&str>);
    let usage = usage(command.clone());
    // An empty date would be no argument, and what follows it would take its place.
    Man::new(command.override_usage(usage))
        .title(name.to_uppercase())
        .date(" ")
        .source(concat!("prepage ", env!("CARGO_PKG_VERSION")))
        .manual("prepage manual")
        .render(&mut page)?;
    if path.is_empty() {
        section("ENVIRONMENT", &ENVIRONMENT, &mut page)?;
        section("EXIT STATUS", &EXIT_CODES, &mut page)?;
        section("FILES", &FILES, &mut page)?;
        section("EXAMPLES", examples::of(path), &mut page)?;
    } else {
        lists(&behind, &mut page)?;
        section("EXAMPLES", examples::of(path), &mut page)?;
        if !behind.contains("See also:") {
            lists("See also:\n  prepage(1)", &mut page)?;
        }
    }
    let path = directory.join(format!("{name}.1"));
    fs::write(&path, page).with_context(|| path.display().to_string())
}

/// The ways in which `command` is called, a line each, with all its options and their values.
fn usage(mut command: clap::Command) -> String {
    let usage = command.render_usage().to_string();
    let options = command.get_arguments().filter(|arg| !arg.is_positional() && !arg.is_hide_set());
    let others = options.map(ToString::to_string).filter(|option| !usage.contains(option));
    let others: Vec<String> = others.map(|option| format!("[{option}]")).collect();
    usage.replace("Usage:", "").replace("[OPTIONS]", &others.join(" "))
}

fn section(title: &str, of: &[(&str, &str)], page: &mut Vec<u8>) -> Result<()> {
    if of.is_empty() {
        return Ok(());
    }
    let mut roff = Roff::default();
    roff.control("SH", [title]);
    for (name, text) in of {
        roff.control("TP", []).text([bold(*name)]).text([roman(*text)]);
    }
    page.write_all(roff.to_roff().as_bytes())?;
    Ok(())
}

/// The lists in `text`. A line that is not indented and ends in a colon is the heading of one; two spaces stand between a word and
/// its meaning.
fn lists(text: &str, page: &mut Vec<u8>) -> Result<()> {
    let mut roff = Roff::default();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let heading = line.strip_suffix(':').filter(|heading| !heading.starts_with(' '));
        match (heading, line.trim_start().split_once("  ")) {
            (Some(heading), _) => roff.control("SH", [heading.to_uppercase().as_str()]),
            (None, Some((word, meaning))) => {
                roff.control("TP", []).text([bold(word)]).text([roman(meaning.trim_start())])
            }
            (None, None) => roff.control("PP", []).text([roman(line.trim_start())]),
        };
    }
    page.write_all(roff.to_roff().as_bytes())?;
    Ok(())
}
