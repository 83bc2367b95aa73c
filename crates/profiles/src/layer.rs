//! The layers of stores, and what says where they lie.

use std::path::PathBuf;
use std::sync::OnceLock;

/// Whose knowledge it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Layer {
    /// That of the user.
    User,
    /// That of all users of this machine.
    Machine,
    /// What came with packages.
    Vendor,
}

/// What of a start's environment says where its user's profiles are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StartContextPaths {
    /// `$PREPAGE_STORE`.
    pub store: Option<PathBuf>,
    /// `$XDG_STATE_HOME`.
    pub state_home: Option<PathBuf>,
    /// `$HOME`.
    pub home: Option<PathBuf>,
    /// `$PREPAGE_LAYERS`: the machine's directory, then the vendors'.
    pub layers: Option<Vec<PathBuf>>,
}

impl StartContextPaths {
    /// Those of this process.
    pub fn of_environment() -> Self {
        // Made absolute once: what learns beside a program works in another directory later.
        static FIRST: OnceLock<StartContextPaths> = OnceLock::new();
        FIRST.get_or_init(Self::made_absolute).clone()
    }

    fn made_absolute() -> Self {
        let variable = |name| {
            let value = std::env::var_os(name).filter(|value| !value.is_empty())?;
            std::path::absolute(value).ok()
        };
        let layers = std::env::var_os("PREPAGE_LAYERS")
            .map(|value| std::env::split_paths(&value).filter(|path| path.is_absolute()).collect::<Vec<_>>());
        Self {
            store: variable("PREPAGE_STORE"),
            state_home: variable("XDG_STATE_HOME"),
            home: variable("HOME"),
            layers,
        }
    }
}
