//! Linux's policies against the kernel itself: patterns of touches on a real cold file, whose faults the kernel counts,
//! beside what the simulator counts for them.
//!
//! The file lies on a loop device of its own, whose read-ahead is set; the kernel forgets the setting with the device, and
//! the device goes with the mount namespace in which it is mounted, however the process ends ([`on_own_volume`]).
//! After each touch the device is waited for, so that no count depends on its speed.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use prepage_core::policy::Policy;
use prepage_core::policy::linux::{Linux, Mapping};
use prepage_core::{PAGE_SIZE, PageRange};
use prepage_simulate::model::{Random, code_section};
use prepage_simulate::pattern::Pattern;
use prepage_simulate::{Replay, Touch};
use prepage_sys::mapping::FileMapping;

use crate::mapped::{Faults, faults_of_thread};

/// Pages of the file.
pub const PAGES: u64 = 4096;

/// Read-ahead settings that are tried, in KiB.
pub const READ_AHEAD_KIB: [u64; 3] = [32, 128, 512];

/// How often the file is evicted before its pages count as staying.
const EVICTIONS_MOST: u32 = 100;

/// Where the volume is mounted, for the process inside.
const VOLUME: &str = "PREPAGE_BENCH_VOLUME";

/// One pattern under one setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compared {
    /// The pattern.
    pub pattern: &'static str,
    /// The read-ahead in force, in KiB.
    pub read_ahead_kib: u64,
    /// Whether the mapping was executable.
    pub executable: bool,
    /// What the kernel counted.
    pub kernel: Faults,
    /// What the simulator counts.
    pub model: Faults,
}

impl Compared {
    /// How many percent the model's disk faults are off the kernel's.
    pub fn off_percent(&self) -> f64 {
        let (kernel, model) = (self.kernel.disk as f64, self.model.disk as f64);
        100.0 * (model - kernel) / kernel.max(1.0)
    }
}

/// The patterns: twelve ways in which programs walk through a file.
pub fn patterns() -> Vec<(&'static str, Vec<u64>)> {
    let strided = |pages| Pattern::Stride { pages }.first_touches(PAGES * PAGE_SIZE, 1);
    let in_order = |pages| strided(pages).touches.into_iter().map(|(page, _)| page.0).collect::<Vec<_>>();
    let mut random = Random(1);
    let mut shuffled: Vec<u64> = (0..PAGES).collect();
    random.shuffle(&mut shuffled);
    let hot = shuffled[..200].to_vec();
    let hot_and_cold = (0..PAGES).map(|_| match random.next() % 5 {
        0 => random.next() % PAGES,
        _ => hot[random.next() as usize % hot.len()],
    });
    vec![
        ("sequential", (0..PAGES).collect()),
        ("backward", (0..PAGES).rev().collect()),
        ("every second page", (0..PAGES).step_by(2).collect()),
        ("every eighth page", (0..PAGES).step_by(8).collect()),
        ("eight of 32 pages", (0..PAGES).filter(|page| page % 32 < 8).collect()),
        ("sweeps of 256 KiB", in_order(64)),
        ("two streams", (0..PAGES / 2).flat_map(|page| [page, PAGES / 2 + page]).collect()),
        ("from both ends", (0..PAGES / 2).flat_map(|page| [page, PAGES - 1 - page]).collect()),
        ("hot and cold", hot_and_cold.collect()),
        ("random", shuffled.clone()),
        ("a tenth, random", shuffled[..PAGES as usize / 10].to_vec()),
        ("code", code_section(1).into_iter().filter(|page| *page < PAGES).collect()),
    ]
}

/// What the simulator counts.
pub fn modelled(touches: &[u64], read_ahead_kib: u64, executable: bool) -> Faults {
    let mapping = if executable { Mapping::Exec } else { Mapping::Data };
    let read_ahead = (read_ahead_kib * 1024 / PAGE_SIZE) as u32;
    let mut replay = Replay::new();
    let object = replay.add_object(PAGES);
    let policy = Policy::Linux(Linux { read_ahead, mapping, fault_around: 16 });
    let entry = replay.add_entry(object, 0, PAGES, policy);
    touches.iter().for_each(|&page| replay.touch(Touch::new(entry, page)));
    let outcome = replay.outcome();
    Faults { disk: outcome.hard, cached: outcome.soft }
}

/// Runs `program` where a file system of its own is mounted, whose image is made in `directory`; [`Volume::inside`] finds
/// it there.
///
/// # Errors
/// What cannot be made or started; without root, the exit status reports EPERM.
pub fn on_own_volume(directory: &Path, program: &[OsString]) -> io::Result<ExitStatus> {
    const SCRIPT: &str = r#"set -eu
mkfs.ext4 -q -F "$1"
loop=$(losetup --find --show "$1")
mount -o noatime "$loop" "$2"
losetup --detach "$loop"
export PREPAGE_BENCH_VOLUME="$2:$loop"
shift 2
exec "$@""#;
    let image = tempfile::NamedTempFile::new_in(directory)?;
    image.as_file().set_len(4 * PAGES * PAGE_SIZE)?;
    let mount_point = tempfile::tempdir_in(directory)?;
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", SCRIPT, "sh"]);
    command.arg(image.path()).arg(mount_point.path()).args(program);
    command.status()
}

/// The file, and the device it lies on.
#[derive(Debug)]
pub struct Volume {
    file: PathBuf,
    setting: PathBuf,
    in_flight: File,
}

impl Volume {
    /// The volume this process runs on; `None` outside of [`on_own_volume`].
    ///
    /// # Errors
    /// A device that is not there, a file that cannot be written.
    pub fn inside() -> io::Result<Option<Self>> {
        let Some(value) = std::env::var_os(VOLUME) else { return Ok(None) };
        let value = value.into_string().map_err(|_| io::ErrorKind::InvalidInput)?;
        let (mounted, device) = value.rsplit_once(":/dev/").ok_or(io::ErrorKind::InvalidInput)?;
        let file = Path::new(mounted).join("file");
        let bytes: Vec<u8> = (0..PAGES * PAGE_SIZE).map(|at| (at / 7) as u8).collect();
        let written = File::create(&file)?;
        written.write_all_at(&bytes, 0)?;
        written.sync_all()?;
        let device = Path::new("/sys/block").join(device);
        let in_flight = File::open(device.join("inflight"))?;
        Ok(Some(Self { file, setting: device.join("queue/read_ahead_kb"), in_flight }))
    }

    /// Touches the file's pages in the order of `touches` from a cold cache.
    ///
    /// # Errors
    /// A setting that cannot be made, pages that stay in memory.
    pub fn count(&mut self, touches: &[u64], read_ahead_kib: u64, executable: bool) -> io::Result<Faults> {
        fs::write(&self.setting, read_ahead_kib.to_string())?;
        let file = File::open(&self.file)?;
        let map = if executable { FileMapping::executable } else { FileMapping::new };
        let mapping = map(file.as_fd(), PageRange::covering(0, PAGES * PAGE_SIZE))?;
        // Pages on their way to the kernel's lists stay at the first try.
        for tries in 0.. {
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
            if !mapping.resident()?.contains(&true) {
                break;
            }
            if tries == EVICTIONS_MOST {
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, "pages of the file stay in memory"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let before = faults_of_thread()?;
        for &page in touches {
            mapping.byte(page * PAGE_SIZE);
            self.wait_for_device()?;
        }
        let after = faults_of_thread()?;
        Ok(Faults { disk: after.disk - before.disk, cached: after.cached - before.cached })
    }

    fn wait_for_device(&mut self) -> io::Result<()> {
        let mut text = [0; 64];
        loop {
            self.in_flight.rewind()?;
            let len = self.in_flight.read(&mut text)?;
            if text[..len].iter().all(|byte| byte.is_ascii_whitespace() || *byte == b'0') {
                return Ok(());
            }
        }
    }

    /// All patterns under all settings.
    ///
    /// # Errors
    /// As [`Volume::count`].
    pub fn compare(&mut self) -> io::Result<Vec<Compared>> {
        let mut all = Vec::new();
        for read_ahead_kib in READ_AHEAD_KIB {
            for (pattern, touches) in patterns() {
                for executable in [false, true] {
                    let kernel = self.count(&touches, read_ahead_kib, executable)?;
                    let model = modelled(&touches, read_ahead_kib, executable);
                    all.push(Compared { pattern, read_ahead_kib, executable, kernel, model });
                }
            }
        }
        Ok(all)
    }
}
