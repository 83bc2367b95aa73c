//! `prepage profile`: what is in the store, and what travels.

mod carry;
mod embed;
mod sections;
mod show;
mod verify;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};
use prepage_core::PAGE_SIZE;
use prepage_core::profile::Profile;
use prepage_prefetch::store::{Listed as StoreEntry, Store, StoreError};
use serde::Serialize;

use crate::table::table;

/// Commands of `prepage profile`.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List all profiles
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show a profile: what it gains, how often it is right, its files and whether they are still the ones that were
    /// learned
    Show {
        /// A file name of `list`, its beginning, or a program's name
        profile: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove profiles
    Rm {
        /// File names of `list`, their beginnings, or programs' names: all that match are removed
        #[arg(required = true)]
        profiles: Vec<String>,
    },
    /// Put the pages a file is known to need into the file itself, or beside it
    Embed(embed::EmbedArgs),
    /// Take them out again: the file has then the very bytes it had before
    Strip(embed::StripArgs),
    /// Show the headers of an executable or library, and the pages that are in it or beside it
    Sections(sections::Args),
    /// Say whether profiles, sections and sidecars still speak of the files that are there
    Verify(verify::Args),
    /// Write profiles into one file, to be imported elsewhere
    Export(carry::ExportArgs),
    /// Take from a file what fits this machine
    Import(carry::ImportArgs),
    /// Make one file of several; their order does not matter
    Merge(carry::MergeArgs),
}

/// Runs the command.
pub fn run(command: &Command) -> Result<ExitCode> {
    let store = Store::of_user()?;
    let mut out = std::io::stdout().lock();
    match command {
        Command::List { json } => list(&store, *json, &mut out)?,
        Command::Show { profile, json } => show::show(&store, profile, *json, &mut out)?,
        Command::Rm { profiles } => remove(&store, profiles, &mut out)?,
        Command::Embed(args) => return embed::embed(&store, args, &mut out),
        Command::Strip(args) => return embed::strip(args, &mut out),
        Command::Sections(args) => return sections::run(args, &mut out),
        Command::Verify(args) => return verify::run(&store, args, &mut out),
        Command::Export(args) => return carry::export(&store, args, &mut out),
        Command::Import(args) => return carry::import(&store, args, &mut out),
        Command::Merge(args) => return carry::merge(args, &mut out),
    }
    Ok(ExitCode::SUCCESS)
}

#[derive(Serialize)]
struct Listed {
    file: String,
    role: String,
    program: String,
    files: usize,
    pages: u64,
    bytes: u64,
    lookups: usize,
    exact_runs: u32,
    refining_runs: u32,
    updated_unix_s: u64,
    error: Option<String>,
}

impl Listed {
    fn new(path: &Path, loaded: &Result<Profile, StoreError>) -> Self {
        let empty = Profile::default();
        let profile = loaded.as_ref().unwrap_or(&empty);
        Self {
            file: file_name(path),
            role: profile.role.clone(),
            program: profile.program.clone(),
            files: profile.files.len(),
            pages: profile.pages(),
            bytes: profile.pages() * PAGE_SIZE,
            lookups: profile.lookups.len(),
            exact_runs: profile.history.exact_runs,
            refining_runs: profile.history.refining_runs,
            updated_unix_s: profile.history.updated_unix_s,
            error: loaded.as_ref().err().map(what_is_wrong),
        }
    }
}

fn list(store: &Store, json: bool, out: &mut impl Write) -> Result<()> {
    let listed: Vec<Listed> = store.list()?.iter().map(|(path, loaded)| Listed::new(path, loaded)).collect();
    if json {
        serde_json::to_writer_pretty(
            &mut *out,
            &serde_json::json!({ "schema_version": 1, "profiles": listed }),
        )?;
        return Ok(writeln!(out)?);
    }
    if listed.is_empty() {
        return Ok(writeln!(out, "no profiles in {}", store.directory().display())?);
    }
    let mut table = table(&["role", "files", "MB", "names", "learned", "profile"], &[1, 2, 3]);
    for one in &listed {
        let learned = format!("{} exact, {} on the way", one.exact_runs, one.refining_runs);
        let megabytes = format!("{:.1}", one.bytes as f64 / 1e6);
        let row = match &one.error {
            Some(error) => vec![format!("unreadable: {error}"), "".into(), "".into(), "".into(), "".into()],
            None => {
                vec![one.role.clone(), one.files.to_string(), megabytes, one.lookups.to_string(), learned]
            }
        };
        table.add_row([row, vec![one.file.clone()]].concat());
    }
    Ok(writeln!(out, "{}", table.trim_fmt())?)
}

fn remove(store: &Store, names: &[String], out: &mut impl Write) -> Result<()> {
    for name in names {
        for (path, _) in find(store, name)? {
            store.remove(&path)?;
            writeln!(out, "removed {}", file_name(&path))?;
        }
    }
    Ok(())
}

/// All profiles that `name` may mean; at least one.
pub fn find(store: &Store, name: &str) -> Result<Vec<StoreEntry>> {
    let means = |(path, loaded): &StoreEntry| {
        let role = loaded.as_ref().map_or("", |profile| profile.role.as_str());
        file_name(path).starts_with(name) || role == name || role.split(' ').next() == Some(name)
    };
    let found: Vec<StoreEntry> = store.list()?.into_iter().filter(means).collect();
    if found.is_empty() {
        bail!("no profile {name} in {}\n  try: prepage profile list", store.directory().display());
    }
    Ok(found)
}

/// What is wrong with a file of the store.
pub fn what_is_wrong(error: &StoreError) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn age(unix_s: u64) -> String {
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |now| now.as_secs());
    match now.saturating_sub(unix_s) {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}
