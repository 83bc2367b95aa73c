//! `prepage bench`: experiments with the page cache.

mod file;
mod report;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use prepage_bench::{Pattern, access};

/// Commands of `prepage bench`.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Repeat a study of file access: every fault of reading a file byte by byte, in four orders
    File(file::Args),
    /// Read every byte of a file once through mmap: what `bench file` records
    Access {
        /// random, sequential or stride-SIZE
        #[arg(long, default_value = "sequential")]
        pattern: Pattern,
        /// Which random order
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Fail where the bytes do not add up to this
        #[arg(long, value_name = "SUM")]
        expect_sum: Option<u64>,
        /// The file
        file: PathBuf,
    },
}

/// Runs the command.
pub fn run(command: &Command) -> Result<ExitCode> {
    match command {
        Command::File(args) => file::run(args),
        Command::Access { pattern, seed, expect_sum, file } => {
            let sum = access(file, *pattern, *seed)?;
            match expect_sum {
                None => println!("{sum}"),
                Some(expected) if *expected == sum => {}
                Some(expected) => bail!("the bytes of {} add up to {sum}, not {expected}", file.display()),
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}
