//! `prepage export`: a trace in the formats of other tools.

use std::io::{BufWriter, IsTerminal, LineWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use prepage_report::Filter;
use prepage_report::export::{Format, Weight, export};

use crate::newest;
use crate::remedy::Remedied;
use crate::report::FilterArgs;
use crate::usage;

/// Lines up to here reach a terminal as a whole.
const LINE_BYTES: usize = 1 << 16;

/// Options of `prepage export`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The trace that `prepage record` wrote [default: the newest in this directory]
    #[arg(value_name = "TRACE")]
    trace: Option<PathBuf>,
    /// perfetto (ui.perfetto.dev), firefox (profiler.firefox.com), folded (flame graphs), csv
    #[arg(short, long, value_name = "FORMAT")]
    format: Format,
    /// The file to write [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Weight of folded stacks: count (faults) or cost (nanoseconds) [default: count]
    #[arg(long, value_name = "WHAT")]
    weight: Option<Weight>,
    #[command(flatten)]
    filter: FilterArgs,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    if args.weight.is_some() && args.format != Format::Folded {
        usage::conflict("--weight is of --format folded only");
    }
    let weight = args.weight.unwrap_or(Weight::Count);
    let file = newest::open(args.trace.as_deref())?;
    let filter = Filter::from(&args.filter);
    crate::missing::tell(&file.facts().missing(), file.path());
    let mut chosen = Vec::new();
    let mut write = |out: &mut dyn Write| {
        chosen = export(&file, &filter, args.format, weight, out)?;
        anyhow::Ok(())
    };
    match &args.output {
        Some(path) => {
            crate::output::keep_input(path, file.path())?;
            crate::output::replace(path, write)?;
            crate::output::tell(path);
        }
        None => {
            let is_terminal = std::io::stdout().is_terminal();
            if args.format == Format::Perfetto && is_terminal {
                let what = "a Perfetto trace is no text, and standard output is a terminal";
                bail!(Remedied::new(what, "-o FILE"));
            }
            // Programs get names as they are. No name commands a terminal.
            let mut out: Box<dyn Write> = match is_terminal {
                true => Box::new(LineWriter::with_capacity(LINE_BYTES, crate::output::text())),
                false => Box::new(BufWriter::new(crate::output::stdout())),
            };
            write(&mut *out)?;
            out.flush()?;
        }
    }
    if !chosen.is_empty() {
        say!("prepage: written are {}: the tool would not open a file with all", chosen.join(", "));
    }
    Ok(ExitCode::SUCCESS)
}
