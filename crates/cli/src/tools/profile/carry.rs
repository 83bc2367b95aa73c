//! `prepage profile export`, `import` and `merge`: profiles from machine to machine.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use prepage_core::PAGE_SIZE;
use prepage_core::profile::Profile;
use prepage_prefetch::store::Store;
use prepage_travel::bundle::{self, BUNDLE_BYTES_MAX, for_others};
use prepage_travel::import::{Imported, Places, import as import_one};
use serde_json::json;

use crate::output;

/// What to export.
#[derive(Debug, clap::Args)]
pub struct ExportArgs {
    /// File names of `list`, their beginnings, or programs' names
    #[arg(required_unless_present = "all")]
    profiles: Vec<String>,
    /// All profiles
    #[arg(long, conflicts_with = "profiles")]
    all: bool,
    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

/// What to import.
#[derive(Debug, clap::Args)]
pub struct ImportArgs {
    /// A file of `prepage profile export` or `merge`, or a profile of a store
    file: PathBuf,
    /// Say what would be taken, and write nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What to merge.
#[derive(Debug, clap::Args)]
pub struct MergeArgs {
    /// Files of `prepage profile export`
    #[arg(required = true, num_args = 2..)]
    files: Vec<PathBuf>,
    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

/// The profiles in the file at `path`.
pub fn read_bundle(path: &Path) -> Result<Vec<Profile>> {
    let context = || path.display().to_string();
    let file = File::open(path).with_context(context)?;
    let mut bytes = Vec::new();
    file.take(BUNDLE_BYTES_MAX + 1).read_to_end(&mut bytes).with_context(context)?;
    bundle::read(&bytes).with_context(context)
}

/// Runs `prepage profile export`.
pub fn export(store: &Store, args: &ExportArgs, out: &mut impl Write) -> Result<ExitCode> {
    let mut found = Vec::new();
    if args.all {
        for (path, loaded) in store.list()? {
            match loaded {
                Ok(profile) => found.push(profile),
                Err(error) => {
                    eprintln!("prepage: {}: left out: {}", path.display(), super::what_is_wrong(&error))
                }
            }
        }
    }
    for name in &args.profiles {
        for (path, loaded) in super::find(store, name)? {
            match loaded {
                Ok(profile) => found.push(profile),
                Err(error) => bail!("{}: {}", path.display(), super::what_is_wrong(&error)),
            }
        }
    }
    if found.is_empty() {
        bail!("no profiles in {}\n  try: prepage learn -- CMD", store.directory().display());
    }
    let profiles = bundle::merge([found.into_iter().map(for_others).collect()]);
    write_bundle(&args.output, &profiles, out)
}

/// Runs `prepage profile merge`.
pub fn merge(args: &MergeArgs, out: &mut impl Write) -> Result<ExitCode> {
    let bundles = args.files.iter().map(|path| read_bundle(path)).collect::<Result<Vec<_>>>()?;
    write_bundle(&args.output, &bundle::merge(bundles), out)
}

/// Runs `prepage profile import`.
pub fn import(store: &Store, args: &ImportArgs, out: &mut impl Write) -> Result<ExitCode> {
    let profiles = bundle::merge([read_bundle(&args.file)?]);
    let places = Places::of_machine();
    let mut imported = Vec::new();
    for profile in profiles {
        imported.push(import_one(store, profile, &places, args.dry_run)?);
    }
    if args.json {
        let one = |imported: &Imported| {
            json!({
                "role": imported.profile.role,
                "program": imported.profile.program,
                "files": imported.profile.files.len(),
                "pages": imported.profile.pages(),
                "lookups": imported.profile.lookups.len(),
                "news": imported.news,
                "left_out": imported.left.iter()
                    .map(|left| json!({ "path": left.path, "reason": left.reason }))
                    .collect::<Vec<_>>(),
            })
        };
        let profiles: Vec<_> = imported.iter().map(one).collect();
        let report = json!({ "schema_version": 1, "dry_run": args.dry_run, "profiles": profiles });
        serde_json::to_writer_pretty(&mut *out, &report)?;
        writeln!(out)?;
        return Ok(ExitCode::SUCCESS);
    }
    for one in &imported {
        let profile = &one.profile;
        let verdict = match (profile.files.is_empty(), one.news, args.dry_run) {
            (true, ..) => "nothing of it fits this machine",
            (false, false, _) => "nothing new",
            (false, true, true) => "would be taken",
            (false, true, false) => "taken",
        };
        let megabytes = (profile.pages() * PAGE_SIZE) as f64 / 1e6;
        writeln!(
            out,
            "{}: {verdict}: {} files, {megabytes:.1} MB, {} names",
            profile.role.escape_debug(),
            profile.files.len(),
            profile.lookups.len()
        )?;
        for left in &one.left {
            writeln!(out, "  left out: {}: {}", left.path.escape_debug(), left.reason)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn write_bundle(path: &Path, profiles: &[Profile], out: &mut impl Write) -> Result<ExitCode> {
    let bytes = bundle::write(profiles);
    output::replace(path, |file| file.write_all(&bytes))?;
    writeln!(out, "{}: {} profiles, {} bytes", path.display(), profiles.len(), bytes.len())?;
    Ok(ExitCode::SUCCESS)
}
