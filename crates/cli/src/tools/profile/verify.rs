//! `prepage profile verify`: does what was learned still speak of the files that are there?

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use prepage_prefetch::elf::Elf;
use prepage_prefetch::identity::{fingerprint, open_to_read};
use prepage_prefetch::sidecar::{SUFFIX, directories, name_of};
use prepage_prefetch::store::Store;
use prepage_travel::verify::{self, Verdict, Verified};
use serde_json::json;

use crate::table::table;
use crate::targets::shown;

/// What to verify.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Executables and libraries, sidecars, directories of sidecars, files of `export`, or names of `list`; nothing:
    /// all profiles and all sidecars
    what: Vec<String>,
    /// Remove sidecars that speak of no file that is there
    #[arg(long)]
    prune: bool,
    /// Show what fits as well
    #[arg(short, long)]
    verbose: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Something is stale or damaged.
const STALE: u8 = 1;

/// Runs the command.
pub fn run(store: &Store, args: &Args, out: &mut impl Write) -> Result<ExitCode> {
    let mut found = Vec::new();
    if args.what.is_empty() {
        of_store(store, &store.list()?, &mut found);
        for directory in directories().iter().filter(|directory| directory.is_dir()) {
            of_directory(directory, &mut found)?;
        }
    }
    for name in &args.what {
        let path = Path::new(name);
        if path.is_dir() {
            of_directory(path, &mut found)?;
        } else if path.is_file() {
            of_file(path, &mut found)?;
        } else if name.contains('/') {
            bail!("{name}: no such file");
        } else {
            of_store(store, &super::find(store, name)?, &mut found);
        }
    }
    let mut pruned = Vec::new();
    if args.prune {
        for one in found.iter().filter(|one| one.kind == "sidecar" && one.verdict != Verdict::Fits) {
            std::fs::remove_file(&one.holder).with_context(|| one.holder.display().to_string())?;
            pruned.push(one.holder.clone());
        }
    }
    print(args, &found, &pruned, out)?;
    // What was removed is not stale any more.
    let stale = found.iter().any(|one| one.verdict != Verdict::Fits && !pruned.contains(&one.holder));
    Ok(if stale { STALE.into() } else { ExitCode::SUCCESS })
}

fn of_store(store: &Store, listed: &[prepage_prefetch::store::Listed], found: &mut Vec<Verified>) {
    for (path, loaded) in listed {
        match loaded {
            Ok(profile) => found.extend(verify::profile(path, profile)),
            Err(error) => found.push(Verified {
                kind: "profile",
                holder: path.clone(),
                file: store.directory().into(),
                pages: 0,
                verdict: Verdict::Damaged(super::what_is_wrong(error)),
            }),
        }
    }
}

fn of_directory(directory: &Path, found: &mut Vec<Verified>) -> Result<()> {
    let sidecars = verify::sidecars_below(directory).with_context(|| directory.display().to_string())?;
    found.extend(sidecars.iter().map(|path| verify::sidecar(path)));
    Ok(())
}

/// A sidecar, an ELF file with what is in it and beside it, or profiles.
fn of_file(path: &Path, found: &mut Vec<Verified>) -> Result<()> {
    let context = || path.display().to_string();
    if path.extension().is_some_and(|end| end == SUFFIX) {
        found.push(verify::sidecar(path));
        return Ok(());
    }
    let file = std::fs::File::open(path).with_context(context)?;
    let Ok(_) = Elf::parse(&file) else {
        for profile in super::carry::read_bundle(path)? {
            found.extend(verify::profile(path, &profile));
        }
        return Ok(());
    };
    let before = found.len();
    found.extend(verify::section(path).with_context(context)?);
    if let Ok(file) = open_to_read(&path.canonicalize()?) {
        let size_bytes = file.metadata()?.len();
        let name = name_of(&fingerprint(&file, size_bytes)?, size_bytes);
        let beside = directories().into_iter().map(|directory| directory.join(&name));
        found.extend(beside.filter(|path| path.is_file()).map(|path: PathBuf| verify::sidecar(&path)));
    }
    if found.len() == before {
        eprintln!("prepage: {}: no page map in it or beside it", path.display());
    }
    Ok(())
}

fn print(args: &Args, found: &[Verified], pruned: &[PathBuf], out: &mut impl Write) -> Result<()> {
    let words = |verdict: &Verdict| match verdict {
        Verdict::Fits => ("fits", String::new()),
        Verdict::Stale(why) => ("stale", why.clone()),
        Verdict::Damaged(why) => ("damaged", why.clone()),
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
        serde_json::to_writer_pretty(&mut *out, &report)?;
        return Ok(writeln!(out)?);
    }
    let shown_rows: Vec<&Verified> =
        found.iter().filter(|one| args.verbose || one.verdict != Verdict::Fits).collect();
    if !shown_rows.is_empty() {
        let mut rows = table(&["state", "in", "pages", "file", "reason", "stands in"], &[2]);
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
        writeln!(out, "{}", rows.trim_fmt())?;
    }
    let fitting = found.iter().filter(|one| one.verdict == Verdict::Fits).count();
    Ok(writeln!(out, "{fitting} of {} fit the files that are there", found.len())?)
}
