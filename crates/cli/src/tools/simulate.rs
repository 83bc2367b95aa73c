//! `prepage simulate`: would another clustering policy do better on this trace?

pub(crate) mod arguments;
mod forks;
mod json;
mod text;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use prepage_core::policy::Policy;
use prepage_core::policy::choice::{GRAMMAR, MOST_AHEAD};
use prepage_core::profile::extent::union;
use prepage_core::profile::file::{self as profile_file, PAYLOAD_BYTES_MAX, ProfileFileError};
use prepage_core::profile::worth::worthwhile;
use prepage_core::profile::{Extent, Fingerprint, Profile, ProfiledFile};
use prepage_core::{BuildId, DeviceFigures, PageRange, TraceFacts};
use prepage_prefetch::calibrate::cache::Cache;
use prepage_prefetch::calibrate::device::Device as DeviceUnder;
use prepage_simulate::input::TextOptions;
use prepage_simulate::layout::ObjectLayout;
use prepage_simulate::memory::{MemoryFaults, Rule};
use prepage_simulate::model::Model;
use prepage_simulate::page::Page;
use prepage_simulate::pages::MOST_PAGES;
use prepage_simulate::{Contender, CostModel, Input, Options, compare, rows, sweep, tables};
use prepage_simulate::{DescriptionError, DeviceModel, device as devices};
use prepage_trace::parquet::TraceFile;

use crate::calibrate;
use crate::newest;
use crate::profile::{find, only};
use crate::remedy::Try;
use crate::stores::stores;
use crate::usage;

/// Policies compared unless others are named; first, for all others are compared with it, what Linux does today.
const USUAL: [&str; 8] =
    ["linux", "none", "obl", "sequential", "around:8:7", "aligned:16", "adaptive", "context"];

/// Options that change nothing about a script of forks.
const NOT_OF_FORKS: [&str; 18] = [
    "trace",
    "touches",
    "model",
    "max_readahead",
    "header_read",
    "policy",
    "sweep",
    "train",
    "device",
    "soft_fault",
    "hard_fault",
    "runs",
    "advise",
    "cost",
    "memory",
    "histogram",
    "by_object",
    "html",
];

/// What is replayed in place of touches. An option that requires these is to say so itself: clap drops the requirement where something is
/// given that excludes what is required.
const NOT_TOUCHES: [&str; 3] = ["trace", "model", "forks"];

/// Options of `prepage simulate`.
#[derive(Debug, clap::Args)]
#[command(after_help = help())]
pub struct Args {
    /// A trace of `prepage record`; each fault on a file's page counts as a touch of it [default: the newest in this directory]
    #[arg(value_name = "TRACE", conflicts_with_all = ["touches", "model"])]
    trace: Option<PathBuf>,
    /// Touches as text: one page index a line, or `object,page`
    #[arg(long, value_name = "FILE", conflicts_with = "model")]
    touches: Option<PathBuf>,
    /// Touches that are generated: `code:SEED`, a compiler's code section; a 45 MB file read byte by byte, `file:sequential`,
    /// `file:random:SEED`, `file:stride-4k`, `file:stride-256k`, each with `,pages=N` behind it for a file of N pages
    #[arg(long, value_name = "MODEL")]
    model: Option<Model>,
    /// Instead of touches: a script of processes that map, fork, write and exit, on shadow chains; see below
    #[arg(long, value_name = "SCRIPT", conflicts_with_all = NOT_OF_FORKS)]
    forks: Option<PathBuf>,
    /// With --touches: pages of each object [default: up to the last page touched]
    #[arg(long, value_name = "N", requires = "touches", conflicts_with_all = NOT_TOUCHES, value_parser = clap::value_parser!(u64).range(1..=MOST_PAGES))]
    object_pages: Option<u64>,
    /// With --touches: page of the object at which its map entry begins
    #[arg(long, value_name = "N", requires = "touches", conflicts_with_all = NOT_TOUCHES, default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=MOST_PAGES))]
    entry_offset: u64,
    /// With --touches: pages of the map entry [default: up to the object's end]
    #[arg(long, value_name = "N", requires = "touches", conflicts_with_all = NOT_TOUCHES, value_parser = clap::value_parser!(u64).range(1..=MOST_PAGES))]
    entry_pages: Option<u64>,
    /// With --touches: pages that are resident at the start, as in `3,10,16-31`
    #[arg(long, value_name = "LIST", requires = "touches", conflicts_with_all = NOT_TOUCHES, value_parser = arguments::pages)]
    resident: Option<arguments::Pages>,
    /// Most pages that `sequential` and `adaptive` read ahead, where the policy names no number
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=1 << 18))]
    max_readahead: Option<u32>,
    /// Begin with page 0 of every object resident, as after its ELF header was read
    #[arg(long)]
    header_read: bool,
    /// Policies to compare, separated by commas; see below
    #[arg(short, long, value_name = "POLICIES", value_parser = arguments::known_policies)]
    policy: Vec<Names>,
    /// A policy with sizes that double: `aligned:4..512`
    #[arg(long, value_name = "SWEEP", value_parser = |text: &str| sweep(text))]
    sweep: Vec<Names>,
    /// What `predicted` has learned from: another trace, a profile (its file, or a name of `prepage profile list`; of it what `prepage
    /// run` would prefetch on the first --device, without what read(2) uses), or, with --touches, touches as text
    #[arg(long, value_name = "FILE")]
    train: Vec<PathBuf>,
    /// Estimate times on these devices, separated by semicolons; see below
    #[arg(short, long, value_name = "DEVICES", value_delimiter = ';', value_parser = device)]
    device: Vec<Device>,
    /// Cost of a fault that reads nothing [default: the trace's median, else 700ns]
    #[arg(long, value_name = "TIME", value_parser = arguments::time)]
    soft_fault: Option<u64>,
    /// Cost of a fault that reads, without the wait for the read
    #[arg(long, value_name = "TIME", default_value = "2us", value_parser = arguments::time)]
    hard_fault: u64,
    /// Run the program N times, each time with the pages in memory that earlier runs left; counts superpage mappings
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Serve the map entries of the file NAME by POLICY under every policy compared, as madvise(2) would:
    /// `libc.so.6=sequential`, `/usr/lib/big.so=none`
    #[arg(long, value_name = "NAME=POLICY", value_parser = arguments::advice)]
    advise: Vec<(String, String)>,
    /// Add a column with the sum of these costs: of each hard fault, each read and each page read, as in
    /// `fault=2us,io=100us,page=4us`
    #[arg(long, value_name = "COST")]
    cost: Option<CostModel>,
    /// Count faults in memories of these sizes, in pages: `1-5,100`, or `all`. For --model and --touches: a trace has each page's first
    /// touch in a process, and re-use is not in it
    #[arg(long, value_name = "SIZES", value_parser = arguments::sizes)]
    memory: Option<arguments::Sizes>,
    /// With --memory: replacement rules [default: all] fifo, clock, 2q, s3-fifo, dont-need, lru, opt, dpmin, ws
    #[arg(long, value_name = "RULES", requires = "memory", value_delimiter = ',')]
    replacement: Vec<Rule>,
    /// Show a histogram of the sizes of reads
    #[arg(long)]
    histogram: bool,
    /// Show hard faults by object
    #[arg(long)]
    by_object: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write a page that shows which faults each policy saves, by object and over time, and print no table
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "histogram", "by_object"])]
    html: Option<PathBuf>,
}

/// Policies of one list.
type Names = Vec<String>;

/// A device as it is named.
#[derive(Clone, Debug)]
enum Device {
    Known(DeviceModel),
    /// What is measured of the disk of `path`, by its whole name.
    Calibrated {
        name: String,
        path: PathBuf,
    },
}

fn help() -> String {
    let devices: Vec<String> =
        devices::NAMES.iter().map(|(name, meaning)| format!("  {name:<10}  {meaning}")).collect();
    let policies: Vec<String> = GRAMMAR.lines().map(|line| format!("  {line}")).collect();
    format!(
        "Policies:\n{}\n\nDevices:\n{}\n  calibrated  what `prepage calibrate` measured of the disk of /usr; calibrated:PATH: of the disk of PATH\n  Options after the name: {}\n\nSteps of a --forks script, one a line:\n  map NAME PAGES [file]\n  fork NAME CHILD\n  write NAME 3,0-7|all\n  exit NAME\n  destroy\n\n{RULES}\n\n{COLUMNS}",
        policies.join("\n"),
        devices.join("\n"),
        devices::OPTIONS
    )
}

/// What the rules of replacement mean that have no well-known name.
const RULES: &str = "\
Rules of --replacement, beside fifo, clock, 2q and s3-fifo:
  dont-need  FreeBSD's rule for pages of idle buffers
  lru        the page touched longest ago goes
  opt        the page needed last goes: the fewest faults possible
  dpmin      the fewest possible where a fault may load many pages, those needed next
  ws         each page goes so many touches after its last one as the size says (the working set of a window, not a memory of that size)";

/// What the columns of the table of policies mean.
const COLUMNS: &str = "\
Columns:
  hard         faults on pages that had to be read; not those that wait for a read in the background
  ±%           how many more hard faults than under the first policy
  soft         faults on pages in memory, or on their way there
  I/Os         reads, those in the background included
  pages read   by all reads; `a read`: by each, on average
  never        pages read and not touched by the end; `never %`: of the pages read
  full         reads of hard faults that got all pages that the policy wanted
  truncated    the others: an end, or pages in memory, cut them short
  2 MiB        aligned blocks of 2 MiB that are wholly in memory at the end
  DEVICE ms    the whole run there, in it faults, and in these waits for reads; of a trace of running processes, or of one
               that was cut short, until the last touch
  waits        faults there that waited for a read: hard ones, and soft ones on pages still under way";

/// Runs the command.
pub fn run(mut args: Args) -> Result<ExitCode> {
    if let Some(script) = &args.forks {
        return forks::run(script, args.json).map(|()| ExitCode::SUCCESS);
    }
    let is_unnamed = args.trace.is_none() && args.touches.is_none() && args.model.is_none();
    // To open a trace takes a look at all of it.
    let newest = is_unnamed.then(|| newest::open(None)).transpose()?;
    args.trace = args.trace.take().or_else(|| Some(newest.as_ref()?.path().to_owned()));
    let args = &args;
    let read = [&args.trace, &args.touches].into_iter().flatten().chain(&args.train);
    if let Some(page) = &args.html {
        read.into_iter().try_for_each(|path| crate::output::keep_input(page, path))?;
    }
    let names = policies(args);
    let devices = args.device.iter().map(Device::model).collect::<Result<Vec<_>>>()?;
    let contenders = contenders(&names, &devices, args.max_readahead)?;
    let advised = advice(args)?;
    let served = contenders.iter().map(|contender| &contender.policy);
    let mut served = served.chain(advised.iter().map(|(_, policy)| policy));
    let predicts = served.any(|policy| matches!(policy, Policy::Predicted(_)));
    // A trace can be long: this is said before it is read.
    if predicts && args.train.is_empty() {
        let what = "policy `predicted` needs --train FILE\n";
        usage::refuse(clap::Error::raw(clap::error::ErrorKind::MissingRequiredArgument, what));
    }
    let mut input = input(args, newest)?;
    for (name, policy) in &advised {
        if input.layout.advise(name, policy) == 0 {
            bail!("--advise: no file called {name} is touched");
        }
    }
    let profile = profile(args, &input, &devices.first().map(DeviceModel::figures).unwrap_or_default())?;
    let soft_ns = args.soft_fault.or(input.soft_fault_ns).unwrap_or(Options::default().soft_fault_ns);
    let is_needed = !profile.is_empty() || predicts;
    if is_needed && !input.layout.objects.iter().any(|object| profile.contains_key(&object.name)) {
        bail!("--train FILE contains none of the files that are touched");
    }
    let options =
        Options { runs: args.runs, profile, soft_fault_ns: soft_ns, hard_fault_ns: args.hard_fault };
    let results = compare(&input, &contenders, &options)?;
    let memory = match &args.memory {
        Some(sizes) => {
            let rules = if args.replacement.is_empty() { &Rule::ALL } else { args.replacement.as_slice() };
            Some(MemoryFaults::of(&input, &sizes.0, rules)?)
        }
        None => None,
    };
    let rows = rows(&names, &devices, &results);
    let policies = tables::policies(&rows, args.runs, args.cost);
    if let Some(path) = &args.html {
        let (title, facts) = (title(args), text::facts(args, &input, &rows));
        let page = Page {
            title: &title,
            facts: &facts,
            input: &input,
            rows: &rows,
            policies: &policies,
            memory: memory.as_ref(),
        };
        crate::output::replace(path, |out| page.write(out))?;
        crate::output::tell(path);
        return Ok(ExitCode::SUCCESS);
    }
    if args.json {
        json::print(args, &input, &rows, memory.as_ref())?;
    } else {
        text::print(args, &input, &rows, &policies, memory.as_ref())?;
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

fn contenders(names: &[String], devices: &[DeviceModel], most_ahead: Option<u32>) -> Result<Vec<Contender>> {
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

fn policies(args: &Args) -> Vec<String> {
    let names = [args.policy.as_slice(), &args.sweep].concat().concat();
    if names.is_empty() { USUAL.map(str::to_owned).to_vec() } else { names }
}

fn device(text: &str) -> Result<Device, DescriptionError> {
    let path = match text.strip_prefix("calibrated") {
        Some("") => "/usr",
        Some(path) if path.starts_with(':') => &path[1..],
        _ => return text.parse().map(Device::Known),
    };
    Ok(Device::Calibrated { name: text.to_owned(), path: path.into() })
}

impl Device {
    fn model(&self) -> Result<DeviceModel> {
        let (name, path) = match self {
            Self::Known(model) => return Ok(model.clone()),
            Self::Calibrated { name, path } => (name, path),
        };
        let under = DeviceUnder::under(path).with_context(|| path.display().to_string())?;
        let known = Cache::of_user().and_then(|cache| cache.load(&under));
        let known = known.or_try(|| calibrate::unmeasured(&under, path))?;
        Ok(DeviceModel::measured(name, &known.figures))
    }
}

fn input(args: &Args, newest: Option<TraceFile>) -> Result<Input> {
    let input = match (&args.touches, args.model, newest) {
        (Some(touches), ..) => Input::read_text(touches, &text_options(args))?,
        (_, Some(model), _) => Input::model(model),
        (.., Some(newest)) => Input::of_trace(newest)?,
        _ => Input::read_trace(args.trace.as_deref().expect("the newest, where nothing is named"))?,
    };
    Ok(if args.header_read { input.with_headers_read() } else { input })
}

/// The files that `--advise` names, and their policies.
fn advice(args: &Args) -> Result<Vec<(String, Policy)>> {
    let most_ahead = args.max_readahead.unwrap_or(MOST_AHEAD);
    let parsed = |(name, policy): &(String, String)| {
        Policy::parse(policy, most_ahead).map(|policy| (name.clone(), policy))
    };
    Ok(args.advise.iter().map(parsed).collect::<Result<_, _>>()?)
}

fn text_options(args: &Args) -> TextOptions {
    TextOptions {
        object_pages: args.object_pages,
        entry_offset: args.entry_offset,
        entry_pages: args.entry_pages,
        resident: args.resident.as_ref().map_or_else(Vec::<PageRange>::new, |pages| pages.0.clone()),
    }
}

/// What the runs to learn from touched of the files of `input`: of profiles what is worth a prefetch on a device of these figures.
fn profile(args: &Args, input: &Input, figures: &DeviceFigures) -> Result<HashMap<String, Vec<Extent>>> {
    let read = |path: &Path| match &args.touches {
        Some(_) => Input::read_text(path, &text_options(args)),
        None => Input::read_trace(path),
    };
    let mut touched: HashMap<&str, Vec<&ObjectLayout>> = HashMap::new();
    input.layout.objects.iter().for_each(|object| touched.entry(&*object.name).or_default().push(object));
    let is_another = |known: &Content<'_>| {
        let of_path = touched.get(known.path);
        of_path.is_some_and(|objects| !objects.iter().any(|object| known.may_be_of(object)))
    };
    let tell_left_out = |name: &str, path: &Path| {
        say!("prepage: {name}: not the file of {} that was touched, and left out", path.display());
    };
    let (mut inputs, mut known) = (Vec::new(), HashMap::new());
    let mut add = |path: String, extents: Vec<Extent>| {
        let of_path: &mut Vec<Extent> = known.entry(path).or_default();
        *of_path = if of_path.is_empty() { extents } else { union(of_path, &extents) };
    };
    for path in &args.train {
        let context = || format!("cannot learn from {}", path.display());
        match stored_profile(path).with_context(context)? {
            Some(profile) => {
                for mut file in worthwhile(&profile, figures).files {
                    if is_another(&Content::from(&file)) {
                        tell_left_out(&file.path, path);
                        continue;
                    }
                    // Touches are those of mappings: what read(2) uses would count as never touched.
                    file.extents.retain(|extent| !extent.by_read);
                    add(file.path, file.extents);
                }
            }
            None => {
                let learned = read(path).with_context(context)?;
                let gaps = learned.facts.as_ref().map(TraceFacts::missing).unwrap_or_default();
                crate::missing::tell(&gaps, path);
                for object in
                    learned.layout.objects.iter().filter(|object| is_another(&Content::from(*object)))
                {
                    tell_left_out(&object.name, path);
                }
                inputs.push(learned);
            }
        }
    }
    let learned = prepage_simulate::input::learn(&inputs, |object| !is_another(&Content::from(object)))?;
    learned.into_iter().for_each(|(path, extents)| add(path, extents));
    Ok(known)
}

/// What tells files of one path apart: build-id and size, as far as they are known.
struct Content<'a> {
    path: &'a str,
    build_id: Option<&'a [u8]>,
    size_bytes: Option<u64>,
}

impl<'a> From<&'a ObjectLayout> for Content<'a> {
    fn from(object: &'a ObjectLayout) -> Self {
        let build_id = object.build_id.as_ref().map(BuildId::as_bytes);
        Self { path: &object.name, build_id, size_bytes: object.size_bytes }
    }
}

impl<'a> From<&'a ProfiledFile> for Content<'a> {
    fn from(file: &'a ProfiledFile) -> Self {
        let build_id = match &file.fingerprint {
            Fingerprint::BuildId(known) if !known.is_empty() => Some(known.as_slice()),
            _ => None,
        };
        let size_bytes = Some(file.identity.size_bytes).filter(|&bytes| bytes > 0);
        Self { path: &file.path, build_id, size_bytes }
    }
}

impl Content<'_> {
    /// Whether `object` may have this content: by the build-id of both, else by their size.
    fn may_be_of(&self, object: &ObjectLayout) -> bool {
        match (self.build_id, &object.build_id) {
            (Some(known), Some(build_id)) => known == build_id.as_bytes(),
            _ => self.size_bytes.is_none_or(|known| object.size_bytes.is_none_or(|bytes| bytes == known)),
        }
    }
}

/// The profile in the file of this name. Where there is no such file, the stored profile that is called so. `None` where the file holds no profile.
fn stored_profile(path: &Path) -> Result<Option<Profile>> {
    if let Some(name) = path.to_str()
        && !path.exists()
        && !name.contains('/')
    {
        let (_, loaded) = only(find(&stores()?, name).context("no such file")?)?;
        return Ok(Some(loaded?));
    }
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
