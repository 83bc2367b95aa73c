//! The words of `prepage run`: the command itself is the starter's (`src/starter`), which asks for help here.

use std::ffi::OsString;

/// Options of `prepage run`, as the starter parses them.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Say nothing but errors
    #[arg(short, long)]
    quiet: bool,
    /// Say what was prefetched, what was left out, and why
    #[arg(short, long)]
    verbose: bool,
    /// Do not learn from this start
    #[arg(long)]
    no_learn: bool,
    /// Do not prefetch in this start
    #[arg(long)]
    no_prefetch: bool,
    /// Always prefetch in this start; by default a few starts go without prefetch, to measure what it gains
    #[arg(long)]
    no_hold_out: bool,
    /// Write the profile of a known and unchanged program at most once in this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    write_interval: u64,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}
