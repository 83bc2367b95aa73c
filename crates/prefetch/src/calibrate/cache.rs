//! The figures of devices measured before: one small text file a device, private to its user.
//!
//! They lie among the user's profiles ([`prepage_profiles::store`]): a start reads one of those just before, and a directory of
//! their own would cost a cold start some reads, one after the other, before the first page could be asked for.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs::DirEntry;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use prepage_core::DeviceFigures;
use prepage_profiles::{Layer, StoreError, Stores};
use prepage_sys::device_number;

use super::Calibration;
use super::device::Device;

/// First line of each file.
const FORMAT: &str = "prepage device figures 1";
/// How the names of the files end.
const SUFFIX: &str = ".device";
/// No file of ours is longer.
const FILE_BYTES_MAX: u64 = 4096;

/// A user's store that figures lie in.
#[derive(Clone, Debug)]
pub struct Cache {
    stores: Stores,
}

impl Cache {
    /// That of the user this process runs as; `None` where no variable says where the user's profiles are. Nothing is created yet.
    pub fn of_user() -> Option<Self> {
        Some(Self { stores: Stores::of_user().ok()? })
    }

    /// The cache in `directory`.
    pub fn at(directory: PathBuf) -> Self {
        Self { stores: Stores::at(directory) }
    }

    /// Where it is.
    pub fn directory(&self) -> &Path {
        self.stores.directory(Layer::User).expect("a user has a layer")
    }

    /// The figures of the device with this number, whichever device that was when it was measured: what a start can
    /// afford. Whatever is wrong with the file is taken for no figures.
    pub fn figures(&self, number: u64) -> Option<DeviceFigures> {
        Some(self.read(number)?.1.figures)
    }

    /// What was measured of `device`; `None` where it was not measured, or its number was another device's then.
    pub fn load(&self, device: &Device) -> Option<Calibration> {
        let (identity, calibration) = self.read(device.number)?;
        (identity == device.identity).then_some(calibration)
    }

    /// Keeps what was measured of `device`. An older file stays until the new one is complete. Those of numbers that other devices have by
    /// now, or that this one had, go.
    ///
    /// # Errors
    /// When the store cannot be written, or others could write to it.
    pub fn store(&self, device: &Device, calibration: &Calibration) -> Result<(), StoreError> {
        self.stores.put(&name_of(device.number), encode(&device.identity, calibration).as_bytes())?;
        for (name, ..) in self.version() {
            let Some(number) = number_in(&name).filter(|number| *number != device.number) else { continue };
            let other = self.read(number).map(|(identity, _)| Device { number, identity });
            if other.is_some_and(|other| other.is_replaced() || device.is_renumbered(&other)) {
                // What stays is removed the next time.
                let _ = std::fs::remove_file(self.directory().join(name));
            }
        }
        Ok(())
    }

    /// When which of its files were written, on the clock of the file system: what changes when figures are stored.
    pub fn version(&self) -> Vec<(OsString, i64, i64)> {
        let entries = std::fs::read_dir(self.directory()).into_iter().flatten().flatten();
        let written = |entry: DirEntry| {
            let name = entry.file_name();
            let found = name.as_bytes().ends_with(SUFFIX.as_bytes()).then(|| entry.metadata().ok())??;
            Some((name, found.mtime(), found.mtime_nsec()))
        };
        let mut version: Vec<_> = entries.filter_map(written).collect();
        version.sort_unstable();
        version
    }

    /// What steers reads made in this user's name must have been written by this user, or root.
    fn read(&self, number: u64) -> Option<(String, Calibration)> {
        let bytes = self.stores.get(&name_of(number), FILE_BYTES_MAX).ok()??;
        decode(str::from_utf8(&bytes).ok()?)
    }
}

/// The file of the device with this number.
pub(crate) fn name_of(number: u64) -> PathBuf {
    format!("{}{SUFFIX}", device_number::name(number).replace(':', "-")).into()
}

/// The number of the device whose figures are in the file `name`.
fn number_in(name: &OsStr) -> Option<u64> {
    let (major, minor) = name.to_str()?.strip_suffix(SUFFIX)?.split_once('-')?;
    Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
}

fn encode(identity: &str, calibration: &Calibration) -> String {
    let Calibration { figures, latency_p99_ns, rates, measured_unix_s } = calibration;
    let mut text = format!("{FORMAT}\nidentity {identity}\nlatency_ns {}\n", figures.latency_ns);
    let _ = writeln!(text, "latency_p99_ns {latency_p99_ns}\nbytes_per_second {}", figures.bytes_per_second);
    let _ = writeln!(text, "depth {}\nmeasured_unix_s {measured_unix_s}", figures.depth);
    if let Some(most) = figures.operations_per_second {
        let _ = writeln!(text, "operations_per_second {most}");
    }
    for (depth, rate) in rates {
        let _ = writeln!(text, "rate {depth} {rate}");
    }
    text
}

fn decode(text: &str) -> Option<(String, Calibration)> {
    let lines: Vec<(&str, &str)> =
        text.strip_prefix(FORMAT)?.lines().filter_map(|line| line.split_once(' ')).collect();
    let value = |key: &str| lines.iter().find(|line| line.0 == key).map(|line| line.1);
    let number = |key: &str| value(key)?.parse::<u64>().ok();
    let figures = DeviceFigures {
        latency_ns: number("latency_ns")?,
        bytes_per_second: number("bytes_per_second")?,
        depth: number("depth")?.try_into().ok()?,
        operations_per_second: number("operations_per_second"),
    };
    let rate = |text: &str| {
        let (depth, rate) = text.split_once(' ')?;
        Some((depth.parse().ok()?, rate.parse().ok()?))
    };
    let calibration = Calibration {
        figures: figures.plausible()?,
        latency_p99_ns: number("latency_p99_ns")?,
        rates: lines.iter().filter(|line| line.0 == "rate").filter_map(|line| rate(line.1)).collect(),
        measured_unix_s: number("measured_unix_s")?,
    };
    Some((value("identity")?.into(), calibration))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn path_in(cache: &Cache, device: &Device) -> PathBuf {
        cache.directory().join(name_of(device.number))
    }

    fn measured() -> (Device, Calibration) {
        let device =
            Device { number: rustix::fs::makedev(7, 3), identity: "ext4 on /dev/loop3, 64 sectors".into() };
        let calibration = Calibration {
            figures: DeviceFigures { operations_per_second: None, ..DeviceFigures::default() },
            latency_p99_ns: 200_000,
            rates: vec![(1, 10_000), (2, 19_000)],
            measured_unix_s: 1_700_000_000,
        };
        (device, calibration)
    }

    #[test]
    fn what_is_stored_is_found_again_unless_the_number_is_another_device_s() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path().join("cache/prepage"));
        let (device, calibration) = measured();
        assert_eq!(cache.load(&device), None);
        cache.store(&device, &calibration).unwrap();
        assert_eq!(cache.load(&device), Some(calibration.clone()));
        assert_eq!(cache.figures(device.number), Some(calibration.figures));
        let other = Device { identity: "ext4 on /dev/loop3, 65 sectors".into(), ..device };
        assert_eq!(cache.load(&other), None);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode(cache.directory()), mode(&path_in(&cache, &device))), (0o700, 0o600));
        // Root's store lies in the machine's, which all are to read.
        let parents = if rustix::process::geteuid().is_root() { 0o755 } else { 0o700 };
        assert_eq!(mode(cache.directory().parent().unwrap()), parents);
        assert_eq!(
            fs::read_dir(cache.directory()).unwrap().count(),
            2,
            "it and the lock: no temporary file stays"
        );
    }

    #[test]
    fn what_was_measured_under_numbers_that_others_have_by_now_goes() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path().join("cache"));
        let (measured_now, calibration) = measured();
        let device = |number, identity: &str| Device { number, identity: identity.into() };
        let there = |number| cache.figures(number).is_some();
        let [before, overlay, absent] =
            [(4000, 2), (0, 77), (4000, 1)].map(|(major, minor)| rustix::fs::makedev(major, minor));
        cache.store(&device(before, &measured_now.identity), &calibration).unwrap();
        cache.store(&device(overlay, &measured_now.identity), &calibration).unwrap();
        cache.store(&device(absent, "ext4 on /dev/usb, 9 sectors"), &calibration).unwrap();
        // A device that is there is hardly this one.
        let block = fs::read_dir("/sys/dev/block").into_iter().flatten().flatten().next();
        let replaced = block.and_then(|block| {
            let name = block.file_name().to_str()?.replace(':', "-") + SUFFIX;
            number_in(name.as_ref()).filter(|number| *number != measured_now.number)
        });
        if let Some(replaced) = replaced {
            cache.store(&device(replaced, "ext4 on /dev/none, 1 sectors, None"), &calibration).unwrap();
        }
        assert!(there(before));
        cache.store(&measured_now, &calibration).unwrap();
        assert!(there(measured_now.number) && !there(before));
        assert!(there(overlay) && there(absent), "no number of its own, and not there now");
        assert!(replaced.is_none_or(|replaced| !there(replaced)));
    }

    #[test]
    fn a_file_that_lies_is_damaged_or_is_not_ours_alone_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path().into());
        let (device, calibration) = measured();
        cache.store(&device, &calibration).unwrap();
        let path = path_in(&cache, &device);
        let good = fs::read_to_string(&path).unwrap();
        for bad in [
            good.replace("depth 16", "depth 4000000000"),
            good.replace("latency_ns 100000", "latency_ns 0"),
            good.replace("figures 1", "figures 2"),
            good[..60].into(),
            String::new(),
            "\u{0}\u{0}".into(),
        ] {
            fs::write(&path, bad).unwrap();
            assert_eq!(cache.figures(device.number), None);
        }
        fs::write(&path, &good).unwrap();
        assert!(cache.figures(device.number).is_some());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o622)).unwrap();
        assert_eq!(cache.figures(device.number), None, "others may write it");
        fs::remove_file(&path).unwrap();
        let elsewhere = dir.path().join("elsewhere");
        fs::write(&elsewhere, &good).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        assert_eq!(cache.figures(device.number), None, "a link is not followed");
    }
}
