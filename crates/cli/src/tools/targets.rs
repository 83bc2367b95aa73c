//! The files that `residency`, `warm` and `evict` are asked about.

use std::path::PathBuf;

use anyhow::{Result, bail};
use prepage_profiles::{Stores, chain};
use prepage_residency::{Passed, Spot, Walk};
use serde_json::{Value, json};

use crate::output::shown;
use crate::profile;

/// Which files, and which of their pages.
#[derive(Debug, clap::Args)]
pub struct Targets {
    /// Files, or directories with all regular files below them; with :RANGE behind the name only these bytes of each file: FROM-TO,
    /// FROM- or -TO, as in /usr/lib:4k-100M
    #[arg(value_name = "PATH", required_unless_present = "profile")]
    paths: Vec<PathBuf>,
    /// The pages that a learned program needs: a name of `prepage profile list`
    #[arg(short, long, value_name = "PROFILE", value_parser = profile::name())]
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
        let mut walk = Walk::new(self.one_file_system);
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

/// Says on standard error what was passed over, and gives the same for JSON.
pub fn tell_passed(passed: &[Passed]) -> Vec<Value> {
    for one in passed {
        say!("prepage: {}: {}", one.path.display(), chain(&one.error));
    }
    let entry = |one: &Passed| json!({ "path": shown(&one.path), "reason": chain(&one.error) });
    passed.iter().map(entry).collect()
}
