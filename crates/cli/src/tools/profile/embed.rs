//! `prepage profile embed` and `strip`: page maps into files and beside them.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use prepage_core::PAGE_SIZE;
use prepage_core::profile::Profile;
use prepage_core::quantity::counted;
use prepage_display::terminal::printable;
use prepage_profiles::Stores;
use prepage_profiles::elf::Elf;
use prepage_profiles::embed::{self, Beside, EmbedError, Embedded, Layout};
use prepage_profiles::identity::open_to_read;
use prepage_profiles::replacement::ReplaceError;
use prepage_profiles::section::SectionError;
use serde_json::{Value, json};

use crate::output::{print_json, shown};
use crate::remedy::Remedied;
use prepage_profiles::chain;

/// What to embed, and where from.
#[derive(Debug, clap::Args)]
pub struct EmbedArgs {
    /// Executables and shared libraries
    #[arg(required_unless_present = "all")]
    files: Vec<PathBuf>,
    /// Take the pages from these: names of `prepage profile list`, or files of `prepage profile export`
    #[arg(long, value_name = "PROFILE")]
    from: Vec<PathBuf>,
    /// Leave the files unchanged: write sidecars below DIR
    #[arg(long, value_name = "DIR")]
    sidecar: Option<PathBuf>,
    /// All executables and libraries that the profiles know (with --sidecar)
    #[arg(long, requires = "sidecar", conflicts_with = "files")]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What to take out.
#[derive(Debug, clap::Args)]
pub struct StripArgs {
    /// Executables and shared libraries
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `prepage profile embed`.
pub fn embed(stores: &Stores, args: &EmbedArgs, out: &mut impl Write) -> Result<ExitCode> {
    let mut results = Results::default();
    let profiles = profiles(stores, &args.from, &mut results)?;
    let files = if args.all { known_files(&profiles) } else { args.files.clone() };
    for path in &files {
        match &args.sidecar {
            None => match embed::embed(path, &profiles) {
                Ok(embedded) => results.embedded(&embedded),
                Err(error) => results.failed(path, &error),
            },
            Some(directory) => match embed::write_beside(directory, path, &profiles) {
                Ok(beside) => results.beside(&beside),
                Err(error) => results.failed(path, &error),
            },
        }
    }
    results.print(args.json, out)
}

/// Runs `prepage profile strip`.
pub fn strip(args: &StripArgs, out: &mut impl Write) -> Result<ExitCode> {
    let mut results = Results::default();
    for path in &args.files {
        match embed::strip(path) {
            Ok(embedded) => results.embedded(&embedded),
            Err(error) => results.failed(path, &error),
        }
    }
    results.print(args.json, out)
}

/// The profiles that `names` mean, of the store or of files. Without names all of the store; those that cannot be read are put into `results`.
fn profiles(stores: &Stores, names: &[PathBuf], results: &mut Results) -> Result<Vec<Profile>> {
    if names.is_empty() {
        let mut loaded = Vec::new();
        for (path, profile) in super::all(stores)? {
            match profile {
                Ok(profile) => loaded.push(profile),
                Err(error) => results.left_out(&path, super::what_is_wrong(&error)),
            }
        }
        if loaded.is_empty() {
            bail!(Remedied::new("no profiles", "prepage learn -- CMD"));
        }
        return Ok(loaded);
    }
    let mut found = Vec::new();
    for name in names {
        if name.is_file() {
            found.extend(super::carry::read_bundle(name)?);
            continue;
        }
        for (path, loaded) in super::find(stores, &name.to_string_lossy())? {
            found.push(loaded.with_context(|| path.display().to_string())?);
        }
    }
    Ok(found)
}

/// All ELF files that `profiles` know and that are there.
fn known_files(profiles: &[Profile]) -> Vec<PathBuf> {
    let paths: BTreeSet<&str> =
        profiles.iter().flat_map(|profile| &profile.files).map(|file| file.path.as_str()).collect();
    let is_elf = |path: &&str| open_to_read(Path::new(path)).is_ok_and(|file| Elf::parse(&file).is_ok());
    paths.into_iter().filter(is_elf).map(PathBuf::from).collect()
}

/// What there is to tell.
#[derive(Default)]
struct Results {
    lines: Vec<String>,
    json: Vec<Value>,
    failures: usize,
}

impl Results {
    fn embedded(&mut self, embedded: &Embedded) {
        let (before, after) = (embedded.before, embedded.after);
        let path = embedded.path.display();
        let what = match (&embedded.made, &embedded.replaced) {
            (Some(made), None) => {
                format!("has this map already ({})", counted(made.file.pages() as usize, "page"))
            }
            (Some(made), Some(_)) => format!(
                "{} of {} pages, from {}",
                made.file.pages(),
                before.size_bytes.min(made.file.identity.size_bytes).div_ceil(PAGE_SIZE),
                counted(made.profiles, "profile"),
            ),
            (None, _) => "map taken out".into(),
        };
        self.lines.push(match &embedded.replaced {
            Some(_) => format!("{path}: {what}; {}", change(before, after)),
            None => format!("{path}: {what}"),
        });
        if let Some(replaced) = &embedded.replaced {
            if replaced.other_names > 0 {
                say!(
                    "prepage: {path}: {} other {} the old file",
                    replaced.other_names,
                    if replaced.other_names == 1 { "name keeps" } else { "names keep" }
                );
            }
            for attribute in &replaced.lost_attributes {
                say!("prepage: {path}: lost its extended attribute {attribute}");
            }
        }
        let layout = |layout: Layout| json!({ "size_bytes": layout.size_bytes, "pieces": layout.pieces });
        self.json.push(json!({
            "path": shown(&embedded.path),
            "pages": embedded.made.as_ref().map(|made| made.file.pages()),
            "profiles": embedded.made.as_ref().map(|made| made.profiles),
            "changed": embedded.replaced.is_some(),
            "before": layout(before),
            "after": layout(after),
            "other_names": embedded.replaced.as_ref().map(|replaced| replaced.other_names),
            "lost_attributes": embedded.replaced.as_ref().map(|replaced| replaced.lost_attributes.clone()),
        }));
    }

    fn beside(&mut self, beside: &Beside) {
        let pages = beside.made.file.pages();
        let how = if beside.unchanged { "is there already: " } else { "" };
        let of = beside.made.file.identity.size_bytes.div_ceil(PAGE_SIZE);
        self.lines.push(format!(
            "{}: {how}{pages} of {of} pages in {}",
            beside.path.display(),
            beside.sidecar.display()
        ));
        self.json.push(json!({
            "path": shown(&beside.path),
            "sidecar": shown(&beside.sidecar),
            "pages": pages,
            "profiles": beside.made.profiles,
            "changed": !beside.unchanged,
        }));
    }

    fn failed(&mut self, path: &Path, error: &EmbedError) {
        self.left_out(path, chain(error));
        if let Some(remedy) = remedy(error) {
            say!("  try: {remedy}");
        }
    }

    fn left_out(&mut self, path: &Path, why: impl Display) {
        self.failures += 1;
        say!("prepage: {}: {why}", path.display());
        self.json.push(json!({ "path": shown(path), "error": why.to_string() }));
    }

    fn print(self, json: bool, out: &mut impl Write) -> Result<ExitCode> {
        if json {
            print_json(&json!({ "schema_version": 1, "files": self.json }))?;
        } else {
            for line in self.lines {
                writeln!(out, "{}", printable(&line))?;
            }
        }
        Ok(if self.failures == 0 { ExitCode::SUCCESS } else { super::PARTLY.into() })
    }
}

/// What a change did to a file's layout.
fn change(before: Layout, after: Layout) -> String {
    let bytes = after.size_bytes as i64 - before.size_bytes as i64;
    let pieces = |layout: Layout| layout.pieces.map_or("?".into(), |pieces| pieces.to_string());
    format!(
        "{bytes:+} bytes, now {}; pieces on the device: {} before, {} after",
        after.size_bytes,
        pieces(before),
        pieces(after)
    )
}

fn remedy(error: &EmbedError) -> Option<&'static str> {
    Some(match error {
        EmbedError::Unknown => "prepage learn -- CMD, with a program that uses this file",
        EmbedError::NoBuildId => "--sidecar /var/lib/prepage",
        EmbedError::Replace(ReplaceError::Signed(_)) => "--sidecar /var/lib/prepage",
        EmbedError::Section(SectionError::NotOurs) => "objcopy --remove-section .prepage FILE, and again",
        EmbedError::Section(SectionError::Trailing { .. } | SectionError::Unusual(_)) => {
            "--sidecar /var/lib/prepage"
        }
        EmbedError::Secret => "prepage profile embed FILE, into the file itself",
        EmbedError::Replace(ReplaceError::Owner { .. }) => "as the file's owner, or as root",
        EmbedError::Directory(_) => "a directory that only root or you may write to",
        _ => return None,
    })
}
