//! How the service is to run, and why it cannot.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use prepage_profiles::StoreError;

/// A machine that was idle for this long is likely to stay so for a while.
const IDLE_AFTER: Duration = Duration::from_secs(30);

/// How it is to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directories of profiles for all users, the machine's first, in place of the usual ones.
    pub layers: Option<Vec<PathBuf>>,
    /// Where it answers questions; nowhere where this is `None`.
    pub socket: Option<PathBuf>,
    /// Whether to learn what is started.
    pub learn: bool,
    /// Only programs below this directory are served, where there is one.
    pub below: Option<PathBuf>,
    /// Once the machine was idle for this long, programs that are to be expected are brought in; zero: whatever it does. `None`:
    /// never, and nothing is remembered of launches.
    pub idle_after: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            layers: None,
            socket: Some(crate::socket::USUAL.into()),
            learn: true,
            below: None,
            idle_after: Some(IDLE_AFTER),
        }
    }
}

/// Why the service cannot run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// Execs cannot be watched.
    #[error("cannot watch what is executed on this machine")]
    Watch(#[source] io::Error),
    /// There is no place for the machine's profiles.
    #[error("the machine's profiles cannot be found")]
    Store(#[from] StoreError),
    /// It cannot be asked.
    #[error("cannot answer at {}", path.display())]
    Socket {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// An image cannot be prepared for its first boot.
    #[error("cannot prepare the image at {}", path.display())]
    Image {
        /// Where it is mounted.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Something else that it needs of the system.
    #[error("cannot wait for events")]
    Wait(#[from] io::Error),
}

impl ServiceError {
    /// Whether it will be the same next time, unless somebody changes the machine: there is no right to watch, the kernel is too old, or another
    /// service answers.
    pub fn will_recur(&self) -> bool {
        use io::ErrorKind::{AddrInUse, InvalidInput, PermissionDenied, Unsupported};
        match self {
            Self::Watch(source) => {
                matches!(source.kind(), PermissionDenied | Unsupported | InvalidInput)
            }
            Self::Socket { source, .. } => source.kind() == AddrInUse,
            Self::Store(_) | Self::Image { .. } | Self::Wait(_) => false,
        }
    }
}
