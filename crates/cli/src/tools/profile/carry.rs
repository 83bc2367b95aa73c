//! `prepage profile export`, `import` and `merge`: profiles from machine to machine.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use prepage_core::PAGE_SIZE;
use prepage_core::profile::Profile;
use prepage_core::quantity::counted;
use prepage_display::terminal::printable;
use prepage_profiles::bundle::{self, BUNDLE_BYTES_MAX, BundleError};
use prepage_profiles::import::{Imported, Places, import as import_one};
use prepage_profiles::public::{explained, for_elsewhere};
use prepage_profiles::{ProgramKey, Stores, chain};
use serde_json::json;

use crate::output;
use crate::remedy::Remedied;
use crate::stores::of_layer;

/// What to export.
#[derive(Debug, clap::Args)]
pub struct ExportArgs {
    /// File names or roles of `list`, or programs' names
    #[arg(required_unless_present = "all", value_name = "PROFILE", value_parser = super::name())]
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
    /// For whom to import: this user, all users of the machine, or packages
    #[arg(long, value_enum, default_value_t, value_name = "LAYER")]
    layer: super::LayerName,
    /// Report what would be imported, and write nothing
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
pub fn export(stores: &Stores, args: &ExportArgs, out: &mut impl Write) -> Result<ExitCode> {
    let mut found = Vec::new();
    let mut end = ExitCode::SUCCESS;
    if args.all {
        for (path, loaded) in super::all(stores)? {
            match loaded {
                Ok(profile) => found.push(profile),
                Err(error) => {
                    say!("prepage: {}: left out: {}", path.display(), super::what_is_wrong(&error));
                    end = super::PARTLY.into();
                }
            }
        }
    }
    for name in &args.profiles {
        for (path, loaded) in super::find(stores, name)? {
            match loaded {
                Ok(profile) => found.push(profile),
                Err(error) => bail!("{}: {}", path.display(), super::what_is_wrong(&error)),
            }
        }
    }
    let mut given = Vec::new();
    let mut remedies = BTreeSet::new();
    for profile in found {
        let role = profile.role.clone();
        match explained(&profile).and_then(|()| for_elsewhere(profile)) {
            Ok(profile) => given.push(profile),
            Err(why) => {
                say!("prepage: {role}: left out: {why}");
                remedies.insert(why.remedy());
                // All means all that may be exported.
                if !args.all {
                    end = super::PARTLY.into();
                }
            }
        }
    }
    if given.is_empty() {
        let remedies: Vec<&str> = remedies.into_iter().collect();
        let remedy = if remedies.is_empty() { "prepage learn -- CMD".into() } else { remedies.join("; or ") };
        bail!(Remedied::new("no profile may be exported", remedy));
    }
    let profiles = bundle::merge([given]);
    write_bundle(&args.output, &profiles, out)?;
    Ok(end)
}

/// Runs `prepage profile merge`.
pub fn merge(args: &MergeArgs, out: &mut impl Write) -> Result<ExitCode> {
    let bundles = args.files.iter().map(|path| read_bundle(path)).collect::<Result<Vec<_>>>()?;
    write_bundle(&args.output, &bundle::merge(bundles), out)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `prepage profile import`.
pub fn import(stores: &Stores, args: &ImportArgs, out: &mut impl Write) -> Result<ExitCode> {
    let profiles = bundle::merge([read_bundle(&args.file)?]);
    let places = Places::of_machine();
    let (mut imported, mut failed) = (Vec::new(), Vec::new());
    for profile in profiles {
        let (role, program) = (profile.role.clone(), profile.program.clone());
        match import_one(stores, args.layer.into(), profile, &places, args.dry_run) {
            Ok(one) => imported.push(one),
            Err(error) => {
                failed.push(json!({ "role": role, "program": program, "reason": chain(&error) }));
                super::say_failed(&role, "not imported", &of_layer(args.layer.into(), error));
            }
        }
    }
    let removed: BTreeSet<&Path> =
        imported.iter().flat_map(|one| &one.removed).map(PathBuf::as_path).collect();
    let is_kept = |one: &Imported| {
        let Profile { program, role, .. } = &one.profile;
        let key = ProgramKey { program: program.clone(), role: role.clone() };
        stores.path_of(&key, args.layer.into()).is_ok_and(|path| !removed.contains(&*path))
    };
    let is_nothing = imported.iter().all(|one| one.profile.files.is_empty());
    let is_whole = !is_nothing && failed.is_empty() && imported.iter().all(is_kept);
    let end = if is_whole { ExitCode::SUCCESS } else { super::PARTLY.into() };
    for path in &removed {
        say!("prepage: {}: removed to make room for others", printable(&super::file_name(path)));
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
                "kept": imported.news && !args.dry_run && is_kept(imported),
                "left_out": imported.left.iter()
                    .map(|left| json!({ "path": left.path, "reason": left.reason }))
                    .collect::<Vec<_>>(),
            })
        };
        let profiles: Vec<_> = imported.iter().map(one).collect();
        let report = json!({
            "schema_version": 1,
            "dry_run": args.dry_run,
            "profiles": profiles,
            "failed": failed,
        });
        output::print_json(&report)?;
        return Ok(end);
    }
    for one in &imported {
        let profile = &one.profile;
        let verdict = match (profile.files.is_empty(), one.news, args.dry_run) {
            (true, ..) => "nothing of it can be taken",
            (false, false, _) => "nothing new",
            (false, true, true) => "would be taken",
            (false, true, false) if is_kept(one) => "taken",
            (false, true, false) => "taken, and removed to make room for others",
        };
        let megabytes = (profile.pages() * PAGE_SIZE) as f64 / 1e6;
        writeln!(
            out,
            "{}: {verdict}: {}, {megabytes:.1} MB, {}",
            printable(&profile.role),
            counted(profile.files.len(), "file"),
            counted(profile.lookups.len(), "name"),
        )?;
        for left in &one.left {
            writeln!(out, "  left out: {}: {}", printable(&left.path), left.reason)?;
        }
    }
    Ok(end)
}

fn write_bundle(path: &Path, profiles: &[Profile], out: &mut impl Write) -> Result<()> {
    let bytes = bundle::write(profiles).map_err(|error| match error {
        BundleError::TooLarge => Remedied::new(error.to_string(), "name fewer profiles").into(),
        error => anyhow::Error::from(error),
    })?;
    output::replace(path, |file| file.write_all(&bytes))?;
    if !output::is_stdout(path) {
        let profiles = counted(profiles.len(), "profile");
        writeln!(out, "{}: {profiles}, {} bytes", printable(&output::shown(path)), bytes.len())?;
    }
    Ok(())
}
