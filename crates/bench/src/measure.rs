//! Measuring what prefetching gains: the same program, with and without, from a cold and from a warm cache.
//!
//! Starts with and without alternate, in an order that changes from round to round, so that what drifts (clock
//! speed, other load, the host's cache) hits both alike. The first round of each kind is thrown away.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use prepage_core::PAGE_SIZE;
use prepage_core::profile::Profile;
use prepage_core::profile::plan::{PlanOptions, Read as PlannedRead, plan};
use prepage_core::profile::worth::worthwhile;
use prepage_prefetch::engine::device_of;
use prepage_profiles::program::past_stand_ins;
use prepage_residency::cold::{Chill, resident_share};
use prepage_sys::beside::adopt_orphans;
use prepage_sys::disk_stat::DiskStat;
use prepage_sys::exec::give_inherited;
use prepage_sys::process_stat::ProcessStat;
use prepage_sys::signals::{Signals, endings};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::Serialize;

use crate::statistics::{Estimate, known_median, median, median_ratio};

/// How long to wait for what a start leaves running before the next one.
const AFTERMATH: Duration = Duration::from_secs(40);
/// The same, once something did not end within that time.
const AFTERMATH_OF_DAEMONS: Duration = Duration::from_secs(1);

/// Pause before each start. Emptying the caches leaves the kernel with freed memory to sort and to hand back to the
/// host, on the CPUs that the start needs.
const SETTLING: Duration = Duration::from_millis(200);

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MeasureError {
    /// The program could not be run.
    #[error("cannot run {program}")]
    Run {
        /// The program, or prepage.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// The caches could not be emptied.
    #[error("cannot make the cache cold")]
    Chill(#[source] io::Error),
    /// A signal asked this process to end. The program, where it ran still, got it too and has ended.
    #[error("ended by signal {signal}")]
    AskedToEnd {
        /// Its number.
        signal: i32,
    },
    /// Too much of the program stayed in memory for a start to count as cold.
    #[error("{:.0} % of the program's pages stay in memory, because it is running already: no start is cold", .share * 100.0)]
    NotCold {
        /// Share of the profile's pages in memory right after emptying the caches.
        share: f64,
    },
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// The command.
    pub command: Vec<OsString>,
    /// The `prepage` binary.
    pub starter: PathBuf,
    /// Counted rounds of each kind.
    pub rounds: u32,
    /// Whether cold starts are measured too, not only warm ones.
    pub cold: bool,
    /// How the cache is made cold.
    pub chill: Chill,
    /// Other ways to start the program, measured from a cold cache too: a name and what is run instead.
    pub others: Vec<(String, Vec<OsString>)>,
}

/// Starts of one kind. One entry a start, in the order they were made.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Starts {
    /// From before the start to the end of the program.
    pub wall_ms: Vec<f64>,
    /// Page faults of the program and the children it waited for that read from a device.
    pub disk_faults: Vec<u64>,
    /// Bytes read from the devices of the program's files, by whomever; `None` where none of them is a block device, whose reads are counted.
    pub device_read_bytes: Vec<Option<u64>>,
    /// Exit status: the program's own, or 128 and the signal that killed it.
    pub exit_status: Vec<i32>,
}

/// Starts without and with prefetch.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Comparison {
    /// Without.
    pub plain: Starts,
    /// With.
    pub prefetched: Starts,
}

impl Comparison {
    /// Wall time with prefetch ÷ without, of the medians, with its 95 % interval.
    pub fn ratio(&self) -> Estimate {
        median_ratio(&self.prefetched.wall_ms, &self.plain.wall_ms)
    }
}

/// Figures of a measurement.
#[derive(Clone, Debug)]
pub struct Figures {
    /// From a cold cache.
    pub cold: Option<Comparison>,
    /// The same of the other ways, by name.
    pub others: Vec<(String, Starts)>,
    /// From a warm cache.
    pub warm: Comparison,
    /// The share of the profile's pages that stayed in memory when the cache was made cold, see [`resident_share`]; `None`
    /// where this user may not know.
    pub resident_share: Option<f64>,
    /// Starts whose exit status or output differed from the first plain start's.
    pub differing_starts: u32,
    /// The exit status of the first plain start.
    pub exit_status: i32,
    /// Starts without and with prefetch whose exit status was not 0, those that are thrown away counted.
    pub failed_starts: u32,
}

/// Measures; `tell` hears before each start which one it is, from 1, and of how many. Makes the calling process adopt its orphaned descendants and waits for every child it has: it should have
/// no others. Signals that ask this process to end go to the program, while one runs, and end the measurement with it.
pub fn measure(
    measurement: &Measurement,
    profile: &Profile,
    tell: &mut dyn FnMut(u32, u32),
) -> Result<Figures, MeasureError> {
    adopt_orphans().map_err(|source| MeasureError::Run { program: "prepage".into(), source })?;
    let mut bench = Bench {
        measurement,
        devices: devices(profile),
        first: None,
        differing_starts: 0,
        failed_starts: 0,
        patience: AFTERMATH,
        started: 0,
        tell,
    };
    let mut share = None;
    let mut others = Vec::new();
    let cold = if measurement.cold {
        share = bench.check_cold(profile)?;
        let chill = || measurement.chill.apply(profile).map_err(MeasureError::Chill);
        let (cold, starts) = bench.compare(&measurement.others, chill)?;
        others = measurement.others.iter().map(|(name, _)| name.clone()).zip(starts).collect();
        Some(cold)
    } else {
        None
    };
    let (warm, _) = bench.compare(&[], || Ok(()))?;
    let Bench { first, differing_starts, failed_starts, .. } = bench;
    let (exit_status, ..) = first.expect("each kind has its first round at least");
    Ok(Figures { cold, others, warm, resident_share: share, differing_starts, exit_status, failed_starts })
}

/// What a program left behind: exit status (128 and the signal where one killed it), standard output, standard error.
type Trail = (i32, Text, Text);

/// What a program has written: how many bytes, and a number that tells them apart from any others that are not made for it.
type Text = (u64, u64);

struct Bench<'a> {
    measurement: &'a Measurement,
    /// Statistics files of the block devices that hold the program.
    devices: BTreeSet<u64>,
    first: Option<Trail>,
    differing_starts: u32,
    failed_starts: u32,
    /// How long to wait for what a start leaves running.
    patience: Duration,
    /// How many starts were begun.
    started: u32,
    tell: &'a mut dyn FnMut(u32, u32),
}

impl Measurement {
    /// All starts, those that are thrown away counted.
    pub fn starts(&self) -> u32 {
        let ways = if self.cold { 4 + self.others.len() as u32 } else { 2 };
        ways * (self.rounds + 1)
    }
}

impl Bench<'_> {
    /// Makes the cache cold and looks whether it is. Looking warms directories and inodes: the starts that count
    /// chill again.
    fn check_cold(&self, profile: &Profile) -> Result<Option<f64>, MeasureError> {
        /// A start that finds more than this in memory is a warm start with a few gaps.
        const RESIDENT_SHARE_MAX: f64 = 0.5;
        self.measurement.chill.apply(profile).map_err(MeasureError::Chill)?;
        match resident_share(profile) {
            Some(share) if share > RESIDENT_SHARE_MAX => Err(MeasureError::NotCold { share }),
            share => Ok(share),
        }
    }

    /// Starts without and with prefetch and in the `others` ways, in turns. In the first nothing of prepage's serves the program.
    fn compare(
        &mut self,
        others: &[(String, Vec<OsString>)],
        prepare: impl Fn() -> Result<(), MeasureError>,
    ) -> Result<(Comparison, Vec<Starts>), MeasureError> {
        let command = &self.measurement.command;
        let plain = past_stand_ins(command);
        let (run, quiet, end) = ("run".into(), "--quiet".into(), "--".into());
        // What prefetching is worth is seen here by all starts.
        let no_hold_out = "--no-hold-out".into();
        let starter = self.measurement.starter.clone().into_os_string();
        let mut prefetching = vec![&starter, &run, &quiet, &no_hold_out, &end];
        prefetching.extend(command);
        let mut ways: Vec<Vec<&OsString>> = vec![plain.iter().collect(), prefetching];
        ways.extend(others.iter().map(|(_, command)| command.iter().collect()));
        let mut counted = vec![Starts::default(); ways.len()];
        let mut thrown_away = counted.clone();
        for round in 0..=self.measurement.rounds as usize {
            let into = if round == 0 { &mut thrown_away } else { &mut counted };
            for turn in 0..ways.len() {
                self.started += 1;
                (self.tell)(self.started, self.measurement.starts());
                prepare()?;
                std::thread::sleep(SETTLING);
                let way = (round + turn) % ways.len();
                let status = self.start(&ways[way], way == 0, &mut into[way])?;
                self.failed_starts += u32::from(way < 2 && status != 0);
            }
        }
        let others = counted.split_off(2);
        let [plain, prefetched] = <[Starts; 2]>::try_from(counted).expect("the first two ways");
        Ok((Comparison { plain, prefetched }, others))
    }

    /// Returns the exit status.
    fn start(
        &mut self,
        command: &[&OsString],
        is_plain: bool,
        into: &mut Starts,
    ) -> Result<i32, MeasureError> {
        let failed = |source| MeasureError::Run { program: command[0].to_string_lossy().into(), source };
        let [out, err] = [memory_file().map_err(failed)?, memory_file().map_err(failed)?];
        let stdio = |file: &File| file.try_clone().map(Stdio::from).map_err(failed);
        let (faults_before, read_before) = (children_disk_faults(), self.read_bytes());
        let mut process = Command::new(command[0]);
        process.args(&command[1..]).stdin(Stdio::null()).stdout(stdio(&out)?).stderr(stdio(&err)?);
        if is_plain {
            // Neither the service nor a link of `prepage enable` is to prefetch what it starts.
            process.env("PREPAGE", "off");
        }
        give_inherited(&mut process);
        let signals = Signals::take_over(&endings()).map_err(failed)?;
        signals.leave_to(&mut process);
        let began = Instant::now();
        let ended = process.spawn().and_then(|child| end_of(child, &signals));
        let (status, asked_to_end) = ended.map_err(failed)?;
        if let Some(signal) = asked_to_end {
            return Err(MeasureError::AskedToEnd { signal });
        }
        into.wall_ms.push(began.elapsed().as_nanos() as f64 / 1e6);
        into.disk_faults.push(children_disk_faults() - faults_before);
        if let Some(signal) = self.await_aftermath(&signals).map_err(failed)? {
            return Err(MeasureError::AskedToEnd { signal });
        }
        let read_bytes =
            self.read_bytes().zip(read_before).map(|(after, before)| after.saturating_sub(before));
        into.device_read_bytes.push(read_bytes);
        let killed = || 128 + status.signal().expect("what did not exit was killed");
        let status = status.code().unwrap_or_else(killed);
        into.exit_status.push(status);
        self.note((status, text_in(&out), text_in(&err)));
        Ok(status)
    }

    /// Waits until everything that was started and adopted has ended: the next start shall not share the machine with
    /// the learning of the last. A program that leaves something running for good is waited for once. Returns the signal that asks this
    /// process to end meanwhile.
    fn await_aftermath(&mut self, signals: &Signals) -> io::Result<Option<i32>> {
        let deadline = Instant::now() + self.patience;
        while Instant::now() < deadline {
            if let Some(arrived) = signals.next()? {
                return Ok(Some(arrived.signal));
            }
            match rustix::process::wait(rustix::process::WaitOptions::NOHANG) {
                Ok(Some(_)) => {}
                Ok(None) => std::thread::sleep(Duration::from_millis(1)),
                Err(_) => return Ok(None),
            }
        }
        self.patience = AFTERMATH_OF_DAEMONS;
        Ok(None)
    }

    fn note(&mut self, trail: Trail) {
        match &self.first {
            None => self.first = Some(trail),
            Some(first) => self.differing_starts += u32::from(*first != trail),
        }
    }

    /// What was read from the devices so far; `None` where there is none, or one is gone.
    fn read_bytes(&self) -> Option<u64> {
        let of_devices = self.devices.iter().map(|&device| Some(DiskStat::of(device)?.read_bytes));
        of_devices.sum::<Option<u64>>().filter(|_| !self.devices.is_empty())
    }
}

/// Waits for `child`, and hands on to it the `signals` that ask this process to end; returns the last of them, too.
fn end_of(mut child: Child, signals: &Signals) -> io::Result<(ExitStatus, Option<i32>)> {
    let child_fd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).map_err(io::Error::from);
    let asked_to_end = child_fd.and_then(|child| signals.pass_on_until_end(child));
    if asked_to_end.is_err() {
        let _ = child.kill();
    }
    Ok((child.wait()?, asked_to_end?))
}

/// The reads of a start that prefetches by `profile`: of what is worth them on its device.
fn planned_reads(profile: &Profile) -> Vec<PlannedRead> {
    let figures = device_of(profile);
    plan(&worthwhile(profile, &figures), PlanOptions::for_device(&figures))
}

/// Bytes that a prefetch by `profile` brings in.
pub fn planned_bytes(profile: &Profile) -> u64 {
    planned_reads(profile).iter().map(|read| read.range.bytes()).sum()
}

/// The part of them that a run that touched `touched` did not use.
pub fn untouched_bytes(profile: &Profile, touched: &Profile) -> u64 {
    let unused = |read: &PlannedRead| {
        let path = &profile.files[read.file].path;
        let file = touched.files.iter().find(|file| file.path == *path);
        read.range.iter().filter(|page| file.is_none_or(|file| !file.contains(*page))).count() as u64
    };
    planned_reads(profile).iter().map(unused).sum::<u64>() * PAGE_SIZE
}

/// Medians of one kind of starts: wall milliseconds, disk faults, bytes read where they are known of all.
pub fn medians(starts: &Starts) -> (f64, f64, Option<f64>) {
    let disk_faults: Vec<f64> = starts.disk_faults.iter().map(|&count| count as f64).collect();
    let read_bytes: Vec<Option<f64>> =
        starts.device_read_bytes.iter().map(|bytes| bytes.map(|bytes| bytes as f64)).collect();
    (median(&starts.wall_ms), median(&disk_faults), known_median(&read_bytes))
}

/// A file in memory: writing to it never waits for a reader or a disk.
fn memory_file() -> io::Result<File> {
    let fd: OwnedFd = rustix::fs::memfd_create("output", rustix::fs::MemfdFlags::CLOEXEC)?;
    Ok(File::from(fd))
}

fn text_in(file: &File) -> Text {
    let (mut hasher, mut piece, mut at) = (DefaultHasher::new(), vec![0; 64 << 10], 0);
    // What cannot be read of a memory file is not there.
    while let Ok(count @ 1..) = file.read_at(&mut piece, at) {
        hasher.write(&piece[..count]);
        at += count as u64;
    }
    (at, hasher.finish())
}

/// Disk faults of all children waited for so far.
fn children_disk_faults() -> u64 {
    ProcessStat::of(std::process::id()).map_or(0, |stat| stat.children_major_faults)
}

/// The block devices under the profile's files. File systems without one of their own (overlay, btrfs, nfs) are left out.
fn devices(profile: &Profile) -> BTreeSet<u64> {
    profile
        .files
        .iter()
        .map(|file| file.identity.device)
        .filter(|&device| DiskStat::of(device).is_some())
        .collect()
}

#[cfg(test)]
mod tests {
    use prepage_core::PageIndex;
    use prepage_core::profile::counts::Use;
    use prepage_core::profile::{FileIdentity, Fingerprint, ProfiledFile, Touches};

    use super::*;

    fn profile(pages: &[u64]) -> Profile {
        let mut touches = Touches::default();
        for &page in pages {
            touches.touch(PageIndex(page), 0);
        }
        let identity = FileIdentity { device: 0, inode: 0, size_bytes: 0, mtime_ns: 0, ctime_ns: 0 };
        let file = ProfiledFile {
            path: "/a".into(),
            identity,
            fingerprint: Fingerprint::default(),
            learned_unix_s: 0,
            extents: touches.extents(),
        };
        Profile { files: vec![file], ..Default::default() }
    }

    #[test]
    fn what_is_too_unlikely_to_be_prefetched_is_not_planned() {
        let mut known = profile(&[0, 9]);
        assert_eq!(planned_bytes(&known), 2 * PAGE_SIZE);
        let unlikely = &mut known.files[0].extents[1].counts;
        *unlikely = (0..6).fold(*unlikely, |counts, _| counts.after(Use::None));
        assert_eq!(planned_bytes(&known), PAGE_SIZE);
        assert_eq!(untouched_bytes(&known, &profile(&[0])), 0);
    }

    #[test]
    fn what_is_read_over_holes_and_what_was_not_used_counts_as_untouched() {
        assert_eq!(untouched_bytes(&profile(&[0, 2]), &profile(&[0, 2])), PAGE_SIZE);
        assert_eq!(untouched_bytes(&profile(&[0, 9]), &profile(&[0])), PAGE_SIZE);
        assert_eq!(untouched_bytes(&profile(&[0, 1]), &Profile::default()), 2 * PAGE_SIZE);
    }
}
