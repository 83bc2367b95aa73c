//! `prepage profile verify`: does what was learned still speak of the files that are there?

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow};
use prepage_profiles::elf::Elf;
use prepage_profiles::identity::{content_of, identity_of, open_to_read};
use prepage_profiles::sidecar::name_of;
use prepage_profiles::stored::Listed;
use prepage_profiles::trust::Refused;
use prepage_profiles::verify::{self, Verdict, Verified};
use prepage_profiles::{Layer, StoreError, Stores};
use serde_json::json;

use crate::child::OWN_FAILURE;
use crate::output::{print_json, shown};
use crate::remedy;
use crate::table::table;

/// What to verify.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Executables and libraries, sidecars or directories of them, exported files, or names of `list` [default: this user's
    /// profiles (root: all) and all sidecars]
    what: Vec<PathBuf>,
    /// Remove sidecars whose files are gone or have another content: those of the machine, and those named
    #[arg(long)]
    prune: bool,
    /// Also show what fits
    #[arg(short, long)]
    verbose: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Something is stale, damaged or missing, and all could be checked.
const STALE: u8 = 1;

/// Runs the command.
pub fn run(stores: &Stores, args: &Args, out: &mut impl Write) -> Result<ExitCode> {
    let mut found = Vec::new();
    if args.what.is_empty() {
        // What others learned may be of files that this user may not look at.
        let listed = if stores.uid() == 0 { super::all(stores)? } else { stores.list(Layer::User)? };
        of_store(&listed, &mut found);
        for directory in shared(stores).filter(|directory| directory.is_dir()) {
            of_directory(stores, directory, &mut found)?;
        }
    }
    let mut all_checked = true;
    for name in &args.what {
        if let Err(error) = of_name(stores, name, &mut found) {
            remedy::say("", &error);
            all_checked = false;
        }
    }
    let mut pruned = Vec::new();
    if args.prune {
        for one in found.iter().filter(|one| one.may_be_pruned() && is_to_prune(stores, args, &one.holder)) {
            std::fs::remove_file(&one.holder).with_context(|| one.holder.display().to_string())?;
            pruned.push(one.holder.clone());
        }
    }
    print(args, &found, &pruned, out)?;
    if !all_checked || found.iter().any(|one| matches!(one.verdict, Verdict::Unknown(_))) {
        return Ok(OWN_FAILURE.into());
    }
    // What was removed is not stale any more.
    let stale = found.iter().any(|one| one.verdict != Verdict::Fits && !pruned.contains(&one.holder));
    Ok(if stale { STALE.into() } else { ExitCode::SUCCESS })
}

/// Whether the sidecar `holder` is the machine's, or was named, itself or by a directory: what packages bring is theirs.
fn is_to_prune(stores: &Stores, args: &Args, holder: &Path) -> bool {
    let mut of_machine = stores.directories().filter(|(layer, _)| *layer == Layer::Machine);
    let is_named = |name: &PathBuf| match name.is_dir() {
        true => holder.starts_with(name),
        false => name.canonicalize().is_ok_and(|file| file == holder),
    };
    of_machine.any(|(_, directory)| holder.starts_with(directory)) || args.what.iter().any(is_named)
}

/// The sidecar at `path`. That of a package may be of a file that is not installed, or elsewhere.
fn of_sidecar(stores: &Stores, path: &Path) -> Verified {
    let mut shipped = stores.directories().filter(|(layer, _)| *layer == Layer::Vendor);
    verify::sidecar(path, shipped.any(|(_, directory)| path.starts_with(directory)))
}

/// Directories in which sidecars may lie.
fn shared(stores: &Stores) -> impl Iterator<Item = &Path> {
    stores.directories().filter(|(layer, _)| *layer != Layer::User).map(|(_, directory)| directory)
}

fn of_store(listed: &[Listed], found: &mut Vec<Verified>) {
    for (path, loaded) in listed {
        match loaded {
            Ok(profile) => found.extend(verify::profile(path, profile)),
            Err(error) => found.push(Verified {
                kind: "profile",
                holder: path.clone(),
                file: path.parent().unwrap_or(Path::new("/")).into(),
                pages: 0,
                verdict: match error {
                    StoreError::Newer { .. }
                    | StoreError::Refused(Refused::Io { .. })
                    | StoreError::Io { .. } => Verdict::Unknown(super::what_is_wrong(error)),
                    // What no start follows is of no use to anybody.
                    _ => Verdict::Damaged(super::what_is_wrong(error)),
                },
            }),
        }
    }
}

fn of_name(stores: &Stores, path: &Path, found: &mut Vec<Verified>) -> Result<()> {
    let name = || path.display().to_string();
    if path.is_dir() {
        of_directory(stores, path, found)
    } else if path.is_file() {
        of_file(stores, &path.canonicalize().with_context(name)?, found)
    } else if path.as_os_str().as_encoded_bytes().contains(&b'/') {
        Err(anyhow!("{}: no such file", name()))
    } else {
        of_store(&super::find(stores, &name())?, found);
        Ok(())
    }
}

fn of_directory(stores: &Stores, directory: &Path, found: &mut Vec<Verified>) -> Result<()> {
    let sidecars = verify::sidecars_below(directory).with_context(|| directory.display().to_string())?;
    found.extend(sidecars.iter().map(|path| of_sidecar(stores, path)));
    Ok(())
}

/// A sidecar, an ELF file with what is in it and beside it, or profiles.
fn of_file(stores: &Stores, path: &Path, found: &mut Vec<Verified>) -> Result<()> {
    let context = || path.display().to_string();
    let file = open_to_read(path).map_err(anyhow::Error::from).with_context(context)?;
    identity_of(&file).map_err(anyhow::Error::from).with_context(context)?;
    let Ok(_) = Elf::parse(&file) else {
        for profile in super::carry::read_bundle(path)? {
            // What is of one file alone names no program.
            if profile.program.is_empty() {
                found.push(of_sidecar(stores, path));
            } else {
                found.extend(verify::profile(path, &profile));
            }
        }
        return Ok(());
    };
    let before = found.len();
    found.extend(verify::section(path).with_context(context)?);
    let name = name_of(&content_of(&file)?);
    let beside = shared(stores).map(|directory| directory.join(&name));
    found.extend(beside.filter(|path| path.is_file()).map(|path: PathBuf| of_sidecar(stores, &path)));
    if found.len() == before {
        found.push(Verified {
            kind: "section",
            holder: path.into(),
            file: path.into(),
            pages: 0,
            verdict: Verdict::Missing,
        });
    }
    Ok(())
}

fn print(args: &Args, found: &[Verified], pruned: &[PathBuf], out: &mut impl Write) -> Result<()> {
    let words = |verdict: &Verdict| match verdict {
        Verdict::Fits => ("fits", String::new()),
        Verdict::Stale(why) => ("stale", why.clone()),
        Verdict::Damaged(why) => ("damaged", why.clone()),
        Verdict::Missing => ("missing", "no page map in it or beside it".into()),
        Verdict::Unknown(why) => ("unknown", why.clone()),
    };
    if args.json {
        let one = |one: &Verified| {
            let (state, reason) = words(&one.verdict);
            json!({
                "kind": one.kind,
                "holder": shown(&one.holder),
                "file": shown(&one.file),
                "pages": one.pages,
                "state": state,
                "reason": reason,
                "removed": pruned.contains(&one.holder),
            })
        };
        let verified: Vec<_> = found.iter().map(one).collect();
        let report = json!({ "schema_version": 1, "verified": verified });
        return Ok(print_json(&report)?);
    }
    let shown_rows: Vec<&Verified> =
        found.iter().filter(|one| args.verbose || one.verdict != Verdict::Fits).collect();
    if !shown_rows.is_empty() {
        let mut rows = table(&["state", "in", "pages", "file", "reason", "stands in"], &[2]).whole(4);
        for one in shown_rows {
            let (state, reason) = words(&one.verdict);
            let state = if pruned.contains(&one.holder) { "removed" } else { state };
            rows.add_row(vec![
                state.to_owned(),
                one.kind.into(),
                one.pages.to_string(),
                shown(&one.file),
                reason,
                shown(&one.holder),
            ]);
        }
        writeln!(out, "{}", rows.lines(crate::output::width()))?;
    }
    let fitting = found.iter().filter(|one| one.verdict == Verdict::Fits).count();
    Ok(writeln!(out, "{fitting} of {} fit the files that are there", found.len())?)
}
