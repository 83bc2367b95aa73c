//! `prepage simulate`: would another clustering policy do better on this trace?

mod arguments;
mod json;
mod text;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use prepage_core::PageRange;
use prepage_core::policy::Policy;
use prepage_core::policy::choice::{GRAMMAR, MOST_AHEAD};
use prepage_core::profile::{Extent, Profile};
use prepage_core::profile_file::{self, PAYLOAD_BYTES_MAX, ProfileFileError};
use prepage_core::simulate::model::Model;
use prepage_core::simulate::pages::MOST_PAGES;
use prepage_core::simulate::{Device, device as devices};
use prepage_prefetch::calibrate::{self, cache::Cache};
use prepage_simulate::input::TextOptions;
use prepage_simulate::memory::MemoryFaults;
use prepage_simulate::page::Page;
use prepage_simulate::{Contender, Input, Options, compare, rows, sweep};

/// Policies compared unless others are named; first, for all others are compared with it, what Linux does today.
const USUAL: [&str; 8] =
    ["linux", "none", "obl", "sequential", "around:8:7", "aligned:16", "adaptive", "context"];

/// Options of `prepage simulate`.
#[derive(Debug, clap::Args)]
#[command(after_help = help())]
pub struct Args {
    /// A trace of `prepage record`; each fault on a file's page counts as a touch of it
    #[arg(required_unless_present_any = ["touches", "model"], conflicts_with_all = ["touches", "model"])]
    trace: Option<PathBuf>,
    /// Touches as text: one page index a line, or `object,page`
    #[arg(long, value_name = "FILE", conflicts_with = "model")]
    touches: Option<PathBuf>,
    /// Touches that are generated: `code:SEED`, a compiler's code section; a 45 MB file read byte by byte, `file:sequential`,
    /// `file:random:SEED`, `file:stride-4k`, `file:stride-256k`
    #[arg(long, value_name = "MODEL")]
    model: Option<Model>,
    /// With --touches: pages of each object; unless given, as many as are touched
    #[arg(long, value_name = "N", requires = "touches", value_parser = clap::value_parser!(u64).range(1..=MOST_PAGES))]
    object_pages: Option<u64>,
    /// With --touches: first page of the object that its map entry shows
    #[arg(long, value_name = "N", requires = "touches", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=MOST_PAGES))]
    entry_offset: u64,
    /// With --touches: pages of the map entry; unless given, up to the object's end
    #[arg(long, value_name = "N", requires = "touches", value_parser = clap::value_parser!(u64).range(1..=MOST_PAGES))]
    entry_pages: Option<u64>,
    /// With --touches: pages that are resident at the start, as in `3,10,16-31`
    #[arg(long, value_name = "LIST", requires = "touches", value_parser = arguments::pages)]
    resident: Option<arguments::Pages>,
    /// Most pages that `sequential` and `adaptive` read ahead, unless they name a number themselves
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=1 << 18))]
    max_readahead: Option<u32>,
    /// Let page 0 of every object be resident at the start, as after a look at its ELF header
    #[arg(long)]
    header_read: bool,
    /// Policies to compare, separated by commas; see below
    #[arg(short, long, value_name = "POLICIES")]
    policy: Vec<String>,
    /// A policy with sizes that double: `aligned:4..512`
    #[arg(long, value_name = "SWEEP")]
    sweep: Vec<String>,
    /// What `predicted` knows: another trace, a profile, or touches as text where the touches are text
    #[arg(long, value_name = "FILE")]
    train: Vec<PathBuf>,
    /// Estimate times on these devices, separated by semicolons or named again; see below
    #[arg(short, long, value_name = "DEVICES", value_delimiter = ';')]
    device: Vec<String>,
    /// What a fault costs besides waiting, without a read; unless given, the trace's mean, or 700ns
    #[arg(long, value_name = "TIME", value_parser = arguments::time)]
    soft_fault: Option<u64>,
    /// What a fault costs besides waiting, with a read
    #[arg(long, value_name = "TIME", default_value = "2us", value_parser = arguments::time)]
    hard_fault: u64,
    /// Run the program so often, each run finding in memory what those before left; counts superpage mappings
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Faults with too little memory (FIFO, LRU, OPT, DPMIN, working set): sizes in pages as in `1-5,100`, or `all`
    #[arg(long, value_name = "SIZES", value_parser = arguments::sizes)]
    memory: Option<arguments::Sizes>,
    /// Show how many reads had which size
    #[arg(long)]
    histogram: bool,
    /// Show hard faults object by object
    #[arg(long)]
    by_object: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write a page that shows which faults each policy saves, by object and over time
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "histogram", "by_object"])]
    html: Option<PathBuf>,
}

fn help() -> String {
    let devices: Vec<String> =
        devices::NAMES.iter().map(|(name, meaning)| format!("  {name:<10} {meaning}")).collect();
    let policies: Vec<String> = GRAMMAR.lines().map(|line| format!("  {line}")).collect();
    format!(
        "Policies:\n{}\n\nDevices:\n{}\n  calibrated what `prepage calibrate` measured of the disk of /usr; calibrated:PATH of another\n  Options after the name: {}",
        policies.join("\n"),
        devices.join("\n"),
        devices::OPTIONS
    )
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    let names = policies(args)?;
    let devices = args.device.iter().map(|text| device(text)).collect::<Result<Vec<_>>>()?;
    let input = input(args)?;
    let contenders = contenders(&names, &devices, args.max_readahead)?;
    let profile = profile(args)?;
    if profile.is_empty()
        && contenders.iter().any(|contender| matches!(contender.policy, Policy::Predicted(_)))
    {
        bail!("`predicted` knows nothing without --train FILE");
    }
    let soft_ns = args.soft_fault.or(input.soft_fault_ns).unwrap_or(Options::default().soft_fault_ns);
    if !profile.is_empty() && !input.layout.objects.iter().any(|object| profile.contains_key(&object.name)) {
        bail!("what --train names knows none of the files that are touched");
    }
    let options =
        Options { runs: args.runs, profile, soft_fault_ns: soft_ns, hard_fault_ns: args.hard_fault };
    let results = compare(&input, &contenders, &options)?;
    let memory = match &args.memory {
        Some(sizes) => Some(MemoryFaults::of(&input, &sizes.0)?),
        None => None,
    };
    let rows = rows(&names, &devices, &results);
    if let Some(path) = &args.html {
        let (title, facts) = (title(args), text::facts(args, &input, &rows));
        let page = Page { title: &title, facts: &facts, input: &input, rows: &rows, memory: memory.as_ref() };
        return crate::output::replace(path, |out| page.write(out)).map(|()| ExitCode::SUCCESS);
    }
    if args.json {
        json::print(args, &input, &rows, memory.as_ref())?;
    } else {
        text::print(args, &input, &rows, memory.as_ref())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What is replayed, as the user named it.
fn title(args: &Args) -> String {
    let file = args.trace.as_ref().or(args.touches.as_ref());
    file.map(|path| path.display().to_string())
        .or(args.model.map(|model| model.to_string()))
        .unwrap_or_default()
}

fn contenders(names: &[String], devices: &[Device], most_ahead: Option<u32>) -> Result<Vec<Contender>> {
    let mut contenders = Vec::new();
    for name in names {
        let contender = Contender {
            policy: Policy::parse(name, most_ahead.unwrap_or(MOST_AHEAD))?,
            name: name.clone(),
            device: None,
        };
        contenders.push(contender.clone());
        contenders.extend(
            devices.iter().map(|device| Contender { device: Some(device.clone()), ..contender.clone() }),
        );
    }
    Ok(contenders)
}

fn policies(args: &Args) -> Result<Vec<String>> {
    let mut names: Vec<String> = args.policy.iter().flat_map(|list| arguments::policies(list)).collect();
    for text in &args.sweep {
        names.extend(sweep(text)?);
    }
    if names.is_empty() {
        names = USUAL.map(str::to_owned).to_vec();
    }
    Ok(names)
}

fn device(text: &str) -> Result<Device> {
    let path = match text.strip_prefix("calibrated") {
        Some("") => "/usr",
        Some(path) if path.starts_with(':') => &path[1..],
        _ => return Ok(text.parse()?),
    };
    let under = calibrate::device::Device::under(Path::new(path)).with_context(|| path.to_owned())?;
    let known = Cache::of_user().and_then(|cache| cache.load(&under));
    let known = known.with_context(|| {
        format!("{} has not been measured\n  try: prepage calibrate {path}", under.identity)
    })?;
    Ok(Device::measured(text, &known.figures))
}

fn input(args: &Args) -> Result<Input> {
    let input = match (&args.trace, &args.touches, args.model) {
        (Some(trace), _, _) => Input::read_trace(trace)?,
        (_, Some(touches), _) => Input::read_text(touches, &text_options(args))?,
        (_, _, Some(model)) => Input::model(model),
        _ => bail!("no touches: name a trace, --touches or --model"),
    };
    Ok(if args.header_read { input.with_headers_read() } else { input })
}

fn text_options(args: &Args) -> TextOptions {
    TextOptions {
        object_pages: args.object_pages,
        entry_offset: args.entry_offset,
        entry_pages: args.entry_pages,
        resident: args.resident.as_ref().map_or_else(Vec::<PageRange>::new, |pages| pages.0.clone()),
    }
}

/// What the runs to learn from touched.
fn profile(args: &Args) -> Result<HashMap<String, Vec<Extent>>> {
    let read = |path: &Path| match &args.touches {
        Some(_) => Input::read_text(path, &text_options(args)),
        None => Input::read_trace(path),
    };
    let (mut inputs, mut known) = (Vec::new(), HashMap::new());
    for path in &args.train {
        let context = || format!("cannot learn from {}", path.display());
        match stored_profile(path).with_context(context)? {
            Some(profile) => known.extend(profile.files.into_iter().map(|file| (file.path, file.extents))),
            None => inputs.push(read(path).with_context(context)?),
        }
    }
    known.extend(prepage_simulate::input::learn(&inputs)?);
    Ok(known)
}

/// The profile in a file; `None` where it is something else.
fn stored_profile(path: &Path) -> Result<Option<Profile>> {
    // Traces and touches can be long, and a pipe can be read only once.
    if !path.is_file() || path.metadata()?.len() > PAYLOAD_BYTES_MAX {
        return Ok(None);
    }
    match profile_file::decode(&std::fs::read(path)?) {
        Ok(profile) => Ok(Some(profile)),
        Err(ProfileFileError::Foreign) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
