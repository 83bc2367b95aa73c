//! `prepage profile sections`: the headers of an ELF file, and the page map in it or beside it.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use prepage_core::profile::ProfiledFile;
use prepage_core::{PAGE_SIZE, PageRange};
use prepage_display::number::{age, known, percent};
use prepage_display::terminal::printable;
use prepage_profiles::carried::{MapError, carried_by, carried_in};
use prepage_profiles::elf::Elf;
use prepage_profiles::identity::{identity_of, open_to_read};
use prepage_profiles::sidecar::Sidecars;
use prepage_profiles::trust::is_trusted;
use prepage_profiles::{Stores, elf_names as names};
use prepage_sys::clock;
use serde_json::{Value, json};

use crate::output::{print_json, shown};
use crate::table::table;
use prepage_profiles::chain;

/// Which file.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// An executable or shared library
    file: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(stores: &Stores, args: &Args, out: &mut impl Write) -> Result<ExitCode> {
    let context = || args.file.display().to_string();
    let file = args.file.canonicalize().with_context(context)?;
    let file = open_to_read(&file).map_err(anyhow::Error::from).with_context(context)?;
    identity_of(&file).map_err(anyhow::Error::from).with_context(context)?;
    let elf = Elf::parse(&file).with_context(context)?;
    let sections = elf.sections(&file).with_context(context)?;
    let in_file = carried_in(&file, &elf);
    let (sidecars, refused) = Sidecars::of(stores);
    refused.iter().for_each(|refused| say!("prepage: {refused}"));
    let followed = match is_trusted(&file, stores.uid())? {
        Ok(()) => carried_by(&file, &elf, &sidecars),
        Err(by) => Err(MapError::Untrusted(by)),
    };
    if args.json {
        let map = |map: &ProfiledFile| {
            json!({
                "pages": map.pages(),
                "file_pages": map.identity.size_bytes.div_ceil(PAGE_SIZE),
                "made_unix_s": map.learned_unix_s,
                "ranges": runs(map).map(|run| [run.start().0, run.end().0]).collect::<Vec<_>>(),
            })
        };
        let told = |found: &Result<Option<ProfiledFile>, _>| match found {
            Ok(found) => json!({ "map": found.as_ref().map(map) }),
            Err(error) => json!({ "error": chain(error) }),
        };
        let report = json!({
            "schema_version": 1,
            "path": shown(&args.file),
            "bits": if elf.is_64 { 64 } else { 32 },
            "kind": names::kind(&elf),
            "build_id": elf.build_id.as_deref().map(hex),
            "segments": elf.segments.iter().map(|segment| json!({
                "kind": names::segment(&elf, segment.kind),
                "offset_bytes": segment.offset_bytes,
                "address": segment.address,
                "file_bytes": segment.file_bytes,
                "memory_bytes": segment.memory_bytes,
                "permissions": names::permissions(segment.flags),
                "align_bytes": segment.align_bytes,
            })).collect::<Vec<Value>>(),
            "sections": sections.iter().map(|section| json!({
                "name": section.name,
                "kind": names::section(&elf, section.kind),
                "address": section.address,
                "offset_bytes": section.offset_bytes,
                "size_bytes": section.size_bytes,
                "flags": names::section_flags(&elf, section.flags),
            })).collect::<Vec<Value>>(),
            "in_section": told(&in_file),
            "followed": told(&followed),
        });
        print_json(&report)?;
        return Ok(ExitCode::SUCCESS);
    }

    let endian = if elf.endian == Default::default() { "little" } else { "big" };
    let bits = if elf.is_64 { 64 } else { 32 };
    let id = elf.build_id.as_deref().map_or("none".into(), hex);
    writeln!(
        out,
        "{}: ELF of {bits} bits, {endian}-endian, {}",
        printable(&shown(&args.file)),
        names::kind(&elf)
    )?;
    writeln!(out, "entry {:#x}, build-id {id}\n\nprogram headers", elf.entry)?;
    let headings = ["type", "offset", "address", "file bytes", "memory bytes", "flags", "align"];
    let mut segments = table(&headings, &[1, 2, 3, 4, 6]);
    for segment in &elf.segments {
        segments.add_row(vec![
            names::segment(&elf, segment.kind),
            format!("{:#x}", segment.offset_bytes),
            format!("{:#x}", segment.address),
            segment.file_bytes.to_string(),
            segment.memory_bytes.to_string(),
            names::permissions(segment.flags),
            format!("{:#x}", segment.align_bytes),
        ]);
    }
    writeln!(out, "{}\n\nsection headers", segments.lines(crate::output::width()))?;
    let mut listed = table(&["nr", "name", "type", "address", "offset", "bytes", "flags"], &[0, 3, 4, 5]);
    for (at, section) in sections.iter().enumerate() {
        listed.add_row(vec![
            at.to_string(),
            section.name.clone(),
            names::section(&elf, section.kind),
            format!("{:#x}", section.address),
            format!("{:#x}", section.offset_bytes),
            section.size_bytes.to_string(),
            names::section_flags(&elf, section.flags),
        ]);
    }
    writeln!(out, "{}\n", listed.lines(crate::output::width()))?;
    match &in_file {
        Ok(None) => writeln!(out, "no page map in it")?,
        Ok(Some(map)) => print_map("page map in it", map, out)?,
        Err(error) => writeln!(out, "page map in it: {}", chain(error))?,
    }
    match (&followed, &in_file) {
        (Ok(Some(map)), Ok(in_file)) if in_file.as_ref() == Some(map) => {}
        (Ok(None), _) => {}
        (Ok(Some(map)), _) => print_map("page map beside it", map, out)?,
        (Err(error), _) => writeln!(out, "not followed: {}", chain(error))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn runs(file: &ProfiledFile) -> impl Iterator<Item = PageRange> {
    file.extents.iter().map(|extent| extent.range)
}

fn print_map(title: &str, map: &ProfiledFile, out: &mut impl Write) -> Result<()> {
    /// Runs in one line.
    const IN_LINE: usize = 12;
    let (pages, of) = (map.pages(), map.identity.size_bytes.div_ceil(PAGE_SIZE));
    let share = known(percent(pages, of), |share| format!("{share:.0}"));
    writeln!(
        out,
        "{title}: {pages} of {of} pages ({share} %), made {} ago",
        age(clock::unix_s().saturating_sub(map.learned_unix_s))
    )?;
    let run = |run: PageRange| match run.len() {
        1 => run.start().to_string(),
        _ => format!("{}-{}", run.start(), run.end().0 - 1),
    };
    let runs: Vec<String> = runs(map).map(run).collect();
    for line in runs.chunks(IN_LINE) {
        writeln!(out, "  {}", line.join(" "))?;
    }
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
