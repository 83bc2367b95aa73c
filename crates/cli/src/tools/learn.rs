//! `prepage learn`: learns a program in one run of it.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use prepage_core::PAGE_SIZE;
use prepage_core::profile::observation::{Coverage, Observation};
use prepage_core::quantity::counted;
use prepage_prefetch::learn::learn;
use prepage_prefetch::persist::{Shown, persist};
use prepage_profiles::call::Call;
use prepage_profiles::public::known_to_all;
use prepage_profiles::{Layer, ProgramKey, StoreError, Stores};

use crate::child::{OWN_FAILURE, exit_code_of, not_started};
use crate::stores::{of_layer, stores};

/// Options of `prepage learn`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Say nothing but errors
    #[arg(short, long)]
    quiet: bool,
    /// For whom to learn: this user, all users of the machine (machine), or a distribution's packages (vendor). The latter two
    /// take only files that everybody may read, and change this user's own profile of the program, too, if there is one
    #[arg(long, value_enum, default_value_t, value_name = "LAYER")]
    layer: LayerChoice,
    /// The command to learn
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// A layer of the stores, or the one that suits.
#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum LayerChoice {
    /// The machine's for root; the user's for other users, and if PREPAGE_STORE names a directory.
    #[default]
    Auto,
    User,
    Machine,
    Vendor,
}

impl LayerChoice {
    fn layer(self) -> Layer {
        let is_root = rustix::process::geteuid().is_root();
        let names_store = std::env::var_os("PREPAGE_STORE").is_some_and(|store| !store.is_empty());
        match self {
            Self::Auto if is_root && !names_store => Layer::Machine,
            Self::Auto | Self::User => Layer::User,
            Self::Machine => Layer::Machine,
            Self::Vendor => Layer::Vendor,
        }
    }
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    let call = Call::in_the_end_of(&args.command).map_err(|error| not_started(&args.command, error))?;
    let (key, places) = call.key_and_places();
    let stores = stores()?;
    let layer = args.layer.layer();
    let not_kept = |error| of_layer(layer, error).context("the profile could not be kept");
    if layer != Layer::User {
        // Not each of them need be seen among what the program uses.
        places.iter().try_for_each(|place| {
            let private = |why| not_kept(StoreError::Private { role: key.role.clone(), why });
            known_to_all(place).map_err(private)
        })?;
    }
    stores.room(layer).map_err(not_kept)?;
    let learned = learn(&args.command)?;
    let code = exit_code_of(&args.command, learned.how)?;
    if learned.observation.files.is_empty() {
        say!("prepage: nothing could be learned of {}", key.role);
        tell_unseen(&learned.observation);
        return Ok(if code == ExitCode::SUCCESS { OWN_FAILURE.into() } else { code });
    }
    if !args.quiet {
        tell(&key.role, &learned.observation);
        tell_unseen(&learned.observation);
    }
    let shown = Shown { observation: Some(learned.observation), ..Shown::default() };
    persist(&stores, &key, layer, &shown).map_err(not_kept)?;
    if layer != Layer::User
        && let Err(error) = learn_own(&stores, &key, &shown)
    {
        // All others have theirs.
        say!(
            "prepage: learned for all users; your own profile, which is followed first, could not be changed: {error:#}"
        );
    }
    Ok(code)
}

/// This user's own profile is followed first where there is one: without what was learned now, `run` would go by what it was.
fn learn_own(stores: &Stores, key: &ProgramKey, shown: &Shown) -> Result<()> {
    // What cannot be read is the user's own, and may be damaged: `persist` replaces that.
    if stores.read(key).map_or(true, |found| found.is_some_and(|found| found.layer == Layer::User)) {
        persist(stores, key, Layer::User, shown)?;
    }
    Ok(())
}

fn tell(role: &str, observation: &Observation) {
    let used = || observation.files.iter().flat_map(|file| &file.pages);
    let pages: u64 = used().map(|used| used.range.len()).sum();
    let unsure = match used().filter(|used| !used.is_sure).map(|used| used.range.len()).sum::<u64>() {
        0 => String::new(),
        unsure => format!("; {unsure} of the pages may only be neighbours of those that were used"),
    };
    let missing = match observation.coverage {
        Coverage::Partial => "; others may have been used too",
        Coverage::Exact | Coverage::Superset => "",
    };
    say!(
        "prepage: learned {role}: {} ({:.1} MB) of {}, {} looked up{unsure}{missing}",
        counted(pages as usize, "page"),
        pages as f64 * PAGE_SIZE as f64 / 1e6,
        counted(observation.files.len(), "file"),
        counted(observation.names.len(), "name"),
    );
}

fn tell_unseen(observation: &Observation) {
    for line in &observation.unseen {
        say!("prepage: not seen: {line}");
    }
}
