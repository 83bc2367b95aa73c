//! `prepage profile`: what is in the store, and what travels.

mod carry;
mod embed;
mod sections;
mod show;
mod verify;

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::builder::{OsStringValueParser, TypedValueParser};
use prepage_core::PAGE_SIZE;
use prepage_core::profile::Profile;
use prepage_core::quantity::counted;
use prepage_display::number::size;
use prepage_display::terminal::printable;
use prepage_profiles::room::taken_in;
use prepage_profiles::store::{ReadMax, remove};
use prepage_profiles::stored::Listed as StoreEntry;
use prepage_profiles::{Layer, ProgramKey, StoreError, Stores};
use serde::Serialize;

use crate::output::print_json;
use crate::remedy::{self, Remedied};
use crate::stores::{of_layer, stores};
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
    /// Show a profile: what it gains, how often it is right, and its files
    Show {
        /// A file name or role of `list`, or the name of a program or script, which stands for all its roles; with --json it must name one
        #[arg(required_unless_present = "command", value_name = "PROFILE", value_parser = name())]
        profile: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Show the profile that this command would use
        #[arg(last = true, value_name = "CMD", conflicts_with = "profile")]
        command: Vec<OsString>,
    },
    /// Remove profiles from one layer
    Rm {
        /// File names or roles of `list`, or names of programs and scripts, which stand for all their roles
        #[arg(required = true, value_name = "PROFILE", value_parser = name())]
        profiles: Vec<String>,
        /// From which layer: this user's, the machine's, or that of packages
        #[arg(long, value_enum, default_value_t, value_name = "LAYER")]
        layer: LayerName,
    },
    /// Record which pages of a file starts need: in the file itself, or in a sidecar
    Embed(embed::EmbedArgs),
    /// Undo `embed`: restore the file's original bytes
    Strip(embed::StripArgs),
    /// Show the ELF headers of a file, and the pages embedded in it or in its sidecar
    Sections(sections::Args),
    /// Check whether profiles, embedded pages and sidecars still fit the files on this machine
    Verify(verify::Args),
    /// Write profiles into one file, for `import` on another machine
    Export(carry::ExportArgs),
    /// Import profiles from a file, for those files that are the same on this machine
    Import(carry::ImportArgs),
    /// Merge exported files into one
    Merge(carry::MergeArgs),
}

/// A layer, as an option names it.
#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
pub enum LayerName {
    /// This user's own
    #[default]
    User,
    /// That of all users of this machine (root)
    Machine,
    /// That of packages (root)
    Vendor,
}

impl From<LayerName> for Layer {
    fn from(name: LayerName) -> Self {
        match name {
            LayerName::User => Self::User,
            LayerName::Machine => Self::Machine,
            LayerName::Vendor => Self::Vendor,
        }
    }
}

/// The name of a profile, as an argument. In the names of profiles, bytes of a program's name that are no UTF-8 are U+FFFD.
pub fn name() -> impl TypedValueParser<Value = String> {
    OsStringValueParser::new().map(|name| name.to_string_lossy().into_owned())
}

/// Runs the command.
pub fn run(command: &Command) -> Result<ExitCode> {
    let stores = stores()?;
    let mut out = crate::output::text();
    match command {
        Command::List { json } => list(&stores, *json, &mut out)?,
        Command::Show { profile: Some(name), json: true, .. } => {
            show::show(&stores, &only(find(&stores, name)?)?, true, &mut out)?
        }
        Command::Show { profile: Some(name), json: false, .. } => {
            return show_all(&stores, name, &mut out);
        }
        Command::Show { json, command, .. } => {
            show::show(&stores, &of_call(&stores, command)?, *json, &mut out)?
        }
        Command::Rm { profiles, layer } => return rm(&stores, profiles, (*layer).into(), &mut out),
        Command::Embed(args) => return embed::embed(&stores, args, &mut out),
        Command::Strip(args) => return embed::strip(args, &mut out),
        Command::Sections(args) => return sections::run(&stores, args, &mut out),
        Command::Verify(args) => return verify::run(&stores, args, &mut out),
        Command::Export(args) => return carry::export(&stores, args, &mut out),
        Command::Import(args) => return carry::import(&stores, args, &mut out),
        Command::Merge(args) => return carry::merge(args, &mut out),
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows all profiles that are called `name`, and reports those that are damaged.
fn show_all(stores: &Stores, name: &str, out: &mut impl Write) -> Result<ExitCode> {
    let found = find(stores, name)?;
    let (whole, damaged): (Vec<_>, Vec<_>) = found.iter().partition(|(_, loaded)| loaded.is_ok());
    if let ([], [entry]) = (&*whole, &*damaged) {
        show::show(stores, entry, false, out)?;
    }
    for (at, entry) in whole.into_iter().enumerate() {
        if at > 0 {
            writeln!(out)?;
        }
        show::show(stores, entry, false, out)?;
    }
    out.flush()?;
    for entry in &damaged {
        if let Err(error) = show::show(stores, entry, false, out) {
            say_failed(name, "not shown", &error);
        }
    }
    Ok(if damaged.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[derive(Serialize)]
struct Listed {
    file: String,
    layer: &'static str,
    role: String,
    program: String,
    files: usize,
    pages: u64,
    bytes: u64,
    lookups: usize,
    observations: u8,
    hosts: usize,
    updated_unix_s: u64,
    error: Option<String>,
}

impl Listed {
    fn new(stores: &Stores, path: &Path, loaded: &Result<Profile, StoreError>) -> Self {
        let empty = Profile::default();
        let profile = loaded.as_ref().unwrap_or(&empty);
        Self {
            file: file_name(path),
            layer: layer_of(stores, path),
            role: profile.role.clone(),
            program: profile.program.clone(),
            files: profile.files.len(),
            pages: profile.pages(),
            bytes: profile.pages() * PAGE_SIZE,
            lookups: profile.lookups.len(),
            observations: profile.history.observations,
            hosts: profile.sources.len(),
            updated_unix_s: profile.history.updated_unix_s,
            error: loaded.as_ref().err().map(what_is_wrong),
        }
    }
}

/// What the profiles of a layer take.
#[derive(Serialize)]
struct Taken {
    layer: &'static str,
    directory: String,
    profiles: usize,
    bytes: u64,
    /// What they may take.
    bytes_max: Option<u64>,
}

impl Taken {
    /// By all layers that have any.
    fn of(stores: &Stores) -> Vec<Self> {
        let taken = stores.directories().map(|(layer, directory)| Self {
            layer: name_of(layer),
            directory: directory.display().to_string(),
            profiles: taken_in(directory).0,
            bytes: taken_in(directory).1,
            bytes_max: stores.bytes_max(layer),
        });
        taken.filter(|taken| taken.profiles > 0).collect()
    }

    fn write(&self, out: &mut impl Write) -> Result<()> {
        let most = self.bytes_max.map_or(String::new(), |most| format!(" of {}", size(most)));
        let Self { layer, directory, profiles, bytes, .. } = self;
        Ok(writeln!(
            out,
            "{layer}: {}, {}{most} in {directory}",
            counted(*profiles, "profile"),
            size(*bytes)
        )?)
    }
}

fn list(stores: &Stores, json: bool, out: &mut impl Write) -> Result<()> {
    let taken = Taken::of(stores);
    let listed: Vec<Listed> =
        all(stores)?.iter().map(|(path, loaded)| Listed::new(stores, path, loaded)).collect();
    if json {
        return Ok(print_json(
            &serde_json::json!({ "schema_version": 1, "profiles": listed, "layers": taken }),
        )?);
    }
    if listed.is_empty() {
        return Ok(writeln!(
            out,
            "no profiles in {}\n  a start is written down about a second after it ends",
            places(stores)
        )?);
    }
    let mut table =
        table(&["role", "files", "MB", "names", "observed", "layer", "profile"], &[1, 2, 3, 4]).whole(6);
    for one in &listed {
        let megabytes = format!("{:.1}", one.bytes as f64 / 1e6);
        let row = match &one.error {
            Some(error) => vec![format!("unreadable: {error}"), "".into(), "".into(), "".into(), "".into()],
            None => {
                vec![
                    one.role.clone(),
                    one.files.to_string(),
                    megabytes,
                    one.lookups.to_string(),
                    one.observations.to_string(),
                ]
            }
        };
        let name = one.file.trim_end_matches(".profile");
        table.add_row([row, vec![one.layer.into(), name.into()]].concat());
    }
    writeln!(out, "{}", table.lines(crate::output::width()))?;
    if listed.iter().any(|one| one.error.is_some()) {
        out.flush()?;
        say!("  try: prepage profile rm PROFILE, for what is unreadable");
    }
    taken.iter().try_for_each(|taken| taken.write(out))
}

/// The profiles of all layers.
pub fn all(stores: &Stores) -> Result<Vec<StoreEntry>> {
    in_all_layers(|layer, found| {
        let mut see = |one| {
            found.push(one);
            true
        };
        stores.each(layer, ReadMax::ALL, &mut see).map(drop)
    })
}

/// What `add` adds for each layer, sorted by name. Directories of others that cannot be read are passed over.
fn in_all_layers(
    add: impl Fn(Layer, &mut Vec<StoreEntry>) -> Result<(), StoreError>,
) -> Result<Vec<StoreEntry>> {
    let mut all = Vec::new();
    for layer in [Layer::User, Layer::Machine, Layer::Vendor] {
        let before = all.len();
        match add(layer, &mut all) {
            Err(error) if layer != Layer::User => say!("prepage: passed over: {error}"),
            added => added?,
        }
        all[before..].sort_by(|a, b| a.0.cmp(&b.0));
    }
    Ok(all)
}

fn layer_of(stores: &Stores, path: &Path) -> &'static str {
    let layer = stores.directories().find(|(_, directory)| path.parent() == Some(directory));
    layer.map_or("none", |(layer, _)| name_of(layer))
}

fn name_of(layer: Layer) -> &'static str {
    match layer {
        Layer::User => "user",
        Layer::Machine => "machine",
        Layer::Vendor => "vendor",
    }
}

fn places(stores: &Stores) -> String {
    let places: Vec<String> = stores.directories().map(|(_, place)| place.display().to_string()).collect();
    places.join(", ")
}

/// The profile of a call.
fn of_call(stores: &Stores, command: &[OsString]) -> Result<StoreEntry> {
    let context = || command[0].to_string_lossy().into_owned();
    let key = ProgramKey::of(command).with_context(context)?;
    let Some(stored) = stores.read(&key)? else {
        let what = format!("no profile of {} ({})", key.role, key.program);
        bail!(Remedied::new(what, "prepage run -- CMD"));
    };
    Ok((stored.path.clone(), stored.decode().map(|(profile, _)| profile)))
}

/// Says of one of several what could not be done, and what helps.
pub fn say_failed(name: &str, what: &str, error: &anyhow::Error) {
    remedy::say(&format!("{name}: {what}: "), error);
}

/// Removes every profile that can be removed, and reports the others.
fn rm(stores: &Stores, names: &[String], layer: Layer, out: &mut impl Write) -> Result<ExitCode> {
    let wanted = name_of(layer);
    let mut all_removed = true;
    let mut failed = |name: &str, error: &anyhow::Error| {
        say_failed(name, "not removed", error);
        all_removed = false;
    };
    for name in names {
        let found = match find(stores, name) {
            Ok(found) => found,
            Err(error) => {
                failed(name, &error);
                continue;
            }
        };
        let (meant, others): (Vec<_>, Vec<_>) =
            found.into_iter().map(|(path, _)| path).partition(|path| layer_of(stores, path) == wanted);
        let mut layers: Vec<_> = others.iter().map(|path| layer_of(stores, path)).collect();
        layers.dedup();
        if meant.is_empty() {
            let what = format!("it is not in the {wanted} layer");
            failed(name, &Remedied::new(what, format!("--layer {}", layers.join(", --layer "))).into());
        } else if !layers.is_empty() {
            say!("prepage: {name} is in other layers still: {}", layers.join(", "));
        }
        for path in meant {
            match remove(&path) {
                Ok(()) => writeln!(out, "removed {}", printable(&file_name(&path)))?,
                Err(error) => failed(name, &of_layer(layer, error)),
            }
        }
    }
    Ok(if all_removed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// All profiles that `name` may mean; at least one.
pub fn find(stores: &Stores, name: &str) -> Result<Vec<StoreEntry>> {
    let means = |path: &Path, role: &str| {
        file_name(path) == name || role == name || short_names(path, role).iter().any(|short| short == name)
    };
    // Of the others the beginnings are enough.
    let found = in_all_layers(|layer, found| {
        stores.keys(layer, |path, key| {
            if means(&path, key.as_ref().map_or("", |key| key.role.as_str())) {
                let loaded = stores.at_path(layer, &path).transpose();
                found.extend(loaded.map(|loaded| (path, loaded)));
            }
        })
    })?;
    if found.is_empty() {
        let remedy = "prepage profile list; a start is written down about a second after it ends";
        bail!(Remedied::new(format!("no profile {name} in {}", places(stores)), remedy));
    }
    Ok(found)
}

/// The one that was `found`.
pub fn only(mut found: Vec<StoreEntry>) -> Result<StoreEntry> {
    if found.len() == 1 {
        return Ok(found.remove(0));
    }
    let name = |(path, loaded): &StoreEntry| match loaded {
        Ok(profile) => format!("{} ({})", file_name(path), profile.role),
        Err(_) => file_name(path),
    };
    let names: Vec<String> = found.iter().map(name).collect();
    bail!(Remedied::new(format!("{} profiles match: {}", names.len(), names.join(", ")), "name one of them"))
}

/// What is wrong with a file of the store.
pub fn what_is_wrong(error: &StoreError) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// Not all was done that was asked for: some profiles or files were left out, which is said.
pub const PARTLY: u8 = 1;

/// The names that `list` and the completion of shells have for a profile: that of its file without the ending, its program's, and that of the
/// script which that runs.
pub fn short_names(path: &Path, role: &str) -> Vec<String> {
    let file = path.file_stem().unwrap_or_default().to_string_lossy();
    let program = role.split(' ').next().unwrap_or_default();
    let is_mark = |mark: &str| mark.len() == 8 && mark.bytes().all(|byte| byte.is_ascii_hexdigit());
    let of_scripts = role.split(' ').filter_map(|word| word.rsplit_once('@'));
    let scripts = of_scripts.filter(|(_, mark)| is_mark(mark)).map(|(name, _)| name);
    let names = [&*file, program].into_iter().chain(scripts);
    names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
