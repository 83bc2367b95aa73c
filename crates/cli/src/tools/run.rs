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
    /// Do not let this start be one of the few in which nothing is prefetched, to see what prefetching is worth
    #[arg(long)]
    no_hold_out: bool,
    /// Write a known profile at most once in this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    write_interval: u64,
    /// async: prefetch the pages of the profile while the program runs; sync: before it runs; slurp, slurp-async: whole
    /// executables and libraries, before it runs or meanwhile. In other modes than async nothing is learned
    #[arg(long, value_parser = ["async", "sync", "slurp", "slurp-async"], default_value = "async")]
    mode: String,
    /// Have the program map its pages, and fill its .bss, before its first instruction (not static or setuid programs)
    #[arg(long)]
    early_fault: bool,
    /// Say how long reading the profile and prefetching took; with --early-fault also mapping pages
    #[arg(long)]
    timing: bool,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}
