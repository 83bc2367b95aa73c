//! The layers of stores, and what says where they lie.

use std::ffi::OsString;
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
        FIRST.get_or_init(|| Self::made_absolute(|name| std::env::var_os(name))).clone()
    }

    /// As the variables of an environment say, which `variable` gives.
    fn made_absolute(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let store = variable("PREPAGE_STORE").filter(|value| !value.is_empty());
        let store = store.and_then(|value| std::path::absolute(value).ok());
        let layers = variable("PREPAGE_LAYERS")
            .map(|value| std::env::split_paths(&value).filter(|path| path.is_absolute()).collect::<Vec<_>>());
        // A relative one is ignored: each directory would have a store of its own.
        let home = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
        Self { store, state_home: home("XDG_STATE_HOME"), home: home("HOME"), layers }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Such paths are invalid (XDG Base Directory Specification), and would lead elsewhere from each directory.
    #[test]
    fn a_relative_home_of_states_is_ignored_and_a_relative_store_is_not() {
        let of = |name: &'static str, value: &'static str| {
            let variables = [(name, value), ("HOME", "/home/x")];
            StartContextPaths::made_absolute(|wanted| {
                variables.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value.into())
            })
        };
        let place = |paths: &StartContextPaths| {
            crate::Stores::for_uid(7, paths).unwrap().directory(crate::Layer::User).unwrap().to_owned()
        };
        let state_home = of("XDG_STATE_HOME", "/state");
        assert_eq!(place(&state_home), PathBuf::from("/state/prepage"));
        for relative in ["state", "./state", ""] {
            assert_eq!(place(&of("XDG_STATE_HOME", relative)), PathBuf::from("/home/x/.local/state/prepage"));
        }
        assert_eq!(place(&of("PREPAGE_STORE", "store")), std::env::current_dir().unwrap().join("store"));
        for relative in ["home", ""] {
            assert!(crate::Stores::for_uid(7, &of("HOME", relative)).is_err(), "{relative}");
        }
    }
}
