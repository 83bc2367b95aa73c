//! `prepage man DIR`: writes the manual pages, which `make install` installs.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::help::{ENVIRONMENT, EXIT_CODES, command};

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
    write(&args.directory, all)?;
    Ok(ExitCode::SUCCESS)
}

/// The page of `command`, and those of the commands below it.
fn write(directory: &Path, command: clap::Command) -> Result<()> {
    let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    let is_whole = name == "prepage";
    for below in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        write(directory, below.clone())?;
    }
    let mut page = Vec::new();
    // The list of variables and exit codes is a section here.
    let command = command.after_long_help(None::<&str>).after_help(None::<&str>);
    Man::new(command).title(name.to_uppercase()).manual("prepage").render(&mut page)?;
    if is_whole {
        section("ENVIRONMENT", &ENVIRONMENT, &mut page)?;
        section("EXIT STATUS", &EXIT_CODES, &mut page)?;
    }
    let path = directory.join(format!("{name}.1"));
    fs::write(&path, page).with_context(|| path.display().to_string())
}

fn section(title: &str, of: &[(&str, &str)], page: &mut Vec<u8>) -> Result<()> {
    let mut roff = Roff::default();
    roff.control("SH", [title]);
    for (name, text) in of {
        roff.control("TP", []).text([bold(*name)]).text([roman(*text)]);
    }
    page.write_all(roff.to_roff().as_bytes())?;
    Ok(())
}
