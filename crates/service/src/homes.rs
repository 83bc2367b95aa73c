//! Where a user's own profiles and configuration lie.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use prepage_prefetch::config::Config;
use prepage_profiles::{StartContextPaths, Stores};

use crate::askers::{Askers, Unanswered};
use crate::process::Process;

/// Where a user's own profiles lie, and the user's home. `layers` are directories to use in place of the usual ones.
pub(crate) fn stores_of_user(uid: u32, layers: Option<Vec<PathBuf>>) -> Option<(Stores, PathBuf)> {
    stores_at(uid, layers, home(uid)?.0)
}

pub(crate) fn stores_at(uid: u32, layers: Option<Vec<PathBuf>>, home: PathBuf) -> Option<(Stores, PathBuf)> {
    // Of all users' environments this process knows its own.
    let own = StartContextPaths::of_environment().store;
    let store = own.filter(|_| uid == rustix::process::geteuid().as_raw());
    let paths = StartContextPaths { store, home: Some(home.clone()), layers, ..StartContextPaths::default() };
    Some((Stores::for_uid(uid, &paths).ok()?, home))
}

/// The home directory that `process` names, if that is its user's. The ids that a user has in a user namespace beside the own one have no home: each
/// would take the place of a user whose profiles are in memory.
pub(crate) fn home_told_by(process: &Process) -> Result<Option<PathBuf>, Unanswered> {
    let rights = &process.rights;
    let Some(told) = process.home.clone().filter(|_| process.starter == rights.uid) else { return Ok(None) };
    let _asking = Askers::of_machine().ask(&told)?;
    let Ok(_assumed) = rights.assume() else { return Ok(None) };
    Ok(std::fs::metadata(&told).is_ok_and(|home| home.uid() == rights.uid).then_some(told))
}

/// `config` with what the user whose home directory this is has said. To be called with the user's rights.
pub(crate) fn of_user(config: Config, home: &Path) -> Config {
    config.and(&home.join(".config/prepage/config"))
}

/// The home directory and the group that /etc/passwd says. Other sources of users may ask a network.
pub(crate) fn home(uid: u32) -> Option<(PathBuf, u32)> {
    let passwd = std::fs::read_to_string("/etc/passwd").ok()?;
    let line = passwd.lines().find(|line| line.split(':').nth(2) == Some(&uid.to_string()))?;
    let fields: Vec<&str> = line.split(':').collect();
    let home = PathBuf::from(*fields.get(5)?);
    Some((home, fields[3].parse().ok()?)).filter(|(home, _)| home.is_absolute())
}
