//! The files that `residency`, `warm` and `evict` are asked about.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use prepage_core::PAGE_SIZE;
use prepage_prefetch::clock;
use prepage_profiles::{Stores, chain};
use prepage_residency::{ByteRange, Passed, Spot, Walk, parse_size};
use serde_json::{Value, json};

use crate::profile;

/// Which files, and which of their pages.
#[derive(Debug, clap::Args)]
pub struct Targets {
    /// Files, FILE:RANGE, or directories with all regular files below them
    #[arg(value_name = "PATH", required_unless_present = "profile")]
    paths: Vec<PathBuf>,
    /// Only these bytes of each file: FROM-TO, FROM- or -TO, as in 4k-100M
    #[arg(
        short,
        long,
        value_name = "RANGE",
        default_value = "0-",
        hide_default_value = true,
        allow_hyphen_values = true
    )]
    range: ByteRange,
    /// The pages that a learned program needs: a name of `prepage profile list`
    #[arg(short, long, value_name = "PROFILE", conflicts_with = "range")]
    profile: Vec<String>,
    /// Stay on the file system of each PATH
    #[arg(short = 'x', long)]
    one_file_system: bool,
}

/// The files that targets stand for.
pub struct TargetFiles {
    pub spots: Vec<Spot>,
    /// Passed over already.
    pub passed: Vec<Passed>,
    pub directories: u64,
}

impl Targets {
    /// Looks for the files.
    pub fn find(&self) -> Result<TargetFiles> {
        let mut walk = Walk::new(self.range, self.one_file_system);
        self.paths.iter().for_each(|path| walk.add(path));
        if !self.profile.is_empty() {
            let stores = Stores::of_user()?;
            for name in &self.profile {
                for (path, loaded) in profile::find(&stores, name)? {
                    match loaded {
                        Ok(profile) => walk.add_profile(&profile),
                        Err(error) => bail!("{}: {}", path.display(), profile::what_is_wrong(&error)),
                    }
                }
            }
        }
        let Walk { spots, passed, directories, .. } = walk;
        if spots.is_empty() && passed.is_empty() {
            say!("prepage: no regular file is there");
        }
        Ok(TargetFiles { spots, passed, directories })
    }
}

/// A size as an argument: `4k`, `100M`.
pub fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| error.to_string())
}

/// Says on standard error what was passed over, and gives the same for JSON.
pub fn tell_passed(passed: &[Passed]) -> Vec<Value> {
    for one in passed {
        say!("prepage: {}: {}", one.path.display(), chain(&one.error));
    }
    let entry = |one: &Passed| json!({ "path": shown(&one.path), "reason": chain(&one.error) });
    passed.iter().map(entry).collect()
}

/// A path as text; bytes that are not UTF-8 are replaced.
pub fn shown(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Pages as a size with its unit: `1.5M`, units of 1024 as in arguments.
pub fn pages_as_size(pages: u64) -> String {
    let bytes = pages * PAGE_SIZE;
    let units = [("T", 1u64 << 40), ("G", 1 << 30), ("M", 1 << 20), ("k", 1 << 10)];
    match units.into_iter().find(|(_, unit)| bytes >= *unit) {
        Some((name, unit)) if bytes.is_multiple_of(unit) => format!("{}{name}", bytes / unit),
        Some((name, unit)) => format!("{:.1}{name}", bytes as f64 / unit as f64),
        None => format!("{bytes}"),
    }
}

/// How long ago that was.
pub fn age(since_unix_s: u64) -> String {
    let seconds = clock::unix_s().saturating_sub(since_unix_s);
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// `part` of `all` in percent; all of nothing is 100.
pub fn percent(part: u64, all: u64) -> f64 {
    if all == 0 { 100.0 } else { 100.0 * part as f64 / all as f64 }
}

/// Cells of a strip of pages: as many as fit beside the numbers.
pub fn strip_cells(beside: usize) -> usize {
    crate::output::width().unwrap_or(80).saturating_sub(beside).clamp(20, 64)
}

/// A strip of pages, one character a cell: empty, and the darker the more of the cell is in memory.
pub fn strip(shares: &[f64]) -> String {
    let shade = |&share: &f64| match share {
        share if share <= 0.0 => '·',
        share if share >= 1.0 => '█',
        share if share < 1.0 / 3.0 => '░',
        share if share < 2.0 / 3.0 => '▒',
        _ => '▓',
    };
    shares.iter().map(shade).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_written_as_arguments_are() {
        let shown: Vec<String> = [0, 1, 256, 384, 1 << 20].into_iter().map(pages_as_size).collect();
        assert_eq!(shown, ["0", "4k", "1M", "1.5M", "4G"]);
    }

    #[test]
    fn only_a_full_cell_is_drawn_full_and_only_an_empty_one_empty() {
        assert_eq!(strip(&[0.0, 0.001, 0.5, 0.999, 1.0]), "·░▒▓█");
    }
}
