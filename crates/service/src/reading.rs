//! What the machine does, as /proc and /sys tell it, between two looks.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::time::Instant;

use prepage_core::idle::Reading;
use prepage_sys::proc_file;

/// Looks at the machine now and then.
#[derive(Debug, Default)]
pub struct Sampler {
    last: Option<Sample>,
}

#[derive(Debug)]
struct Sample {
    at: Instant,
    /// Milliseconds in which each disk had something to do.
    disks_ms: HashMap<String, u64>,
    /// Processor time used at no low priority, and all of it, in clock ticks.
    processor_ticks: (u64, u64),
    io_stalled_us: Option<u64>,
    memory_stalled_us: Option<u64>,
}

impl Sampler {
    /// What the machine did since the last look; `None` at the first.
    pub fn look(&mut self) -> Option<Reading> {
        let now = Sample::now();
        let last = self.last.replace(now)?;
        self.last.as_ref().map(|now| now.since(&last, Path::new("/sys/class/power_supply")))
    }

    /// The next look is the first: what was done since the last is this process's own doing.
    pub fn forget(&mut self) {
        self.last = None;
    }
}

impl Sample {
    fn now() -> Self {
        let read = |path| proc_file::read_text(path).unwrap_or_default();
        Self {
            at: Instant::now(),
            disks_ms: disks_ms(&read("/proc/diskstats")),
            processor_ticks: processor_ticks(&read("/proc/stat")),
            io_stalled_us: stalled_us(&read("/proc/pressure/io")),
            memory_stalled_us: stalled_us(&read("/proc/pressure/memory")),
        }
    }

    fn since(&self, last: &Self, power: &Path) -> Reading {
        let elapsed_us = self.at.duration_since(last.at).as_micros().max(1) as f64;
        let disk = |(name, ms): (&String, &u64)| {
            let before = last.disks_ms.get(name).unwrap_or(ms);
            ms.saturating_sub(*before) as f64 * 1000.0 / elapsed_us
        };
        let share =
            |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before?) as f64 / elapsed_us);
        let used = self.processor_ticks.0.saturating_sub(last.processor_ticks.0);
        let all = self.processor_ticks.1.saturating_sub(last.processor_ticks.1);
        let (free_bytes, total_bytes) = memory_bytes();
        Reading {
            disk_busy: self.disks_ms.iter().map(disk).fold(0.0, f64::max),
            processor_busy: used as f64 / all.max(1) as f64,
            io_stalled: share(self.io_stalled_us, last.io_stalled_us),
            memory_stalled: share(self.memory_stalled_us, last.memory_stalled_us),
            is_on_battery: is_on_battery(power),
            free_bytes,
            total_bytes,
        }
    }
}

/// Whether so little memory is free that guesses are to be given up.
pub fn memory_is_short() -> bool {
    let (free_bytes, total_bytes) = memory_bytes();
    Reading { free_bytes, total_bytes, ..Reading::default() }.is_short()
}

/// What all guesses may take now, of which `taken_bytes` are guesses already.
pub fn guesses_bytes_max(taken_bytes: u64) -> u64 {
    let (free_bytes, total_bytes) = memory_bytes();
    let now = Reading { free_bytes, total_bytes, ..Reading::default() };
    taken_bytes + now.spare_bytes(taken_bytes)
}

/// Free memory, and all of it.
fn memory_bytes() -> (u64, u64) {
    let memory = rustix::system::sysinfo();
    let bytes = |units: u64| units.saturating_mul(memory.mem_unit.into());
    (bytes(memory.freeram as u64), bytes(memory.totalram as u64))
}

/// The thirteenth field of each line (Documentation/admin-guide/iostats.rst).
fn disks_ms(text: &str) -> HashMap<String, u64> {
    let disk = |line: &str| {
        let mut fields = line.split_ascii_whitespace().skip(2);
        Some((fields.next()?.to_owned(), fields.nth(9)?.parse().ok()?))
    };
    text.lines().filter_map(disk).collect()
}

/// Used and all, of the first line of /proc/stat. What has a low priority (nice(1)) leaves the processors to others.
fn processor_ticks(text: &str) -> (u64, u64) {
    let line = text.lines().next().unwrap_or_default();
    let fields: Vec<u64> =
        line.split_ascii_whitespace().skip(1).filter_map(|field| field.parse().ok()).collect();
    // What guests use is part of what users use.
    let all: u64 = fields.iter().take(8).sum();
    let free: u64 = [1, 3, 4].iter().filter_map(|at| fields.get(*at)).sum();
    (all - free, all)
}

/// Microseconds that somebody waited (Documentation/accounting/psi.rst).
fn stalled_us(text: &str) -> Option<u64> {
    text.lines().next()?.split("total=").nth(1)?.trim().parse().ok()
}

/// Whether a battery is discharged and nothing else feeds the machine.
fn is_on_battery(power: &Path) -> bool {
    let supplies = fs::read_dir(power).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut discharges = false;
    for supply in supplies {
        let text = |name: &str| fs::read_to_string(supply.join(name)).unwrap_or_default().trim().to_owned();
        // Batteries of mice and the like are a device's.
        match (&*text("type"), &*text("scope")) {
            (_, "Device") => {}
            ("Battery", _) => discharges |= text("status") == "Discharging",
            _ if text("online") == "1" => return false,
            _ => {}
        }
    }
    discharges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_proc_says_is_understood() {
        let disks = disks_ms(
            " 254       0 vda 100 0 800 30 5 0 40 2 0 77 32 0 0 0 0 0 0\n 7 0 loop0 0 0 0 0 0 0 0 0 0 5 0\nshort 1\n",
        );
        assert_eq!((disks["vda"], disks["loop0"], disks.len()), (77, 5, 2));
        assert_eq!(
            processor_ticks("cpu  10 7 5 74 4 0 0 0 9 9\ncpu0 1\n"),
            (15, 100),
            "nice, idle and iowait are free"
        );
        assert_eq!(processor_ticks(""), (0, 0));
        assert_eq!(
            stalled_us("some avg10=0.00 avg60=0.00 avg300=0.00 total=4711\nfull total=1\n"),
            Some(4711)
        );
        assert_eq!(stalled_us(""), None);
    }

    #[test]
    fn two_looks_make_a_reading_and_the_first_makes_none() {
        let mut sampler = Sampler::default();
        assert!(sampler.look().is_none());
        std::thread::sleep(std::time::Duration::from_millis(20));
        let reading = sampler.look().unwrap();
        assert!(reading.total_bytes > reading.free_bytes && reading.free_bytes > 0);
        assert!((0.0..=1.0).contains(&reading.processor_busy), "{reading:?}");
        sampler.forget();
        assert!(sampler.look().is_none());
    }

    #[test]
    fn a_machine_whose_battery_is_discharged_runs_on_it_unless_something_else_feeds_it() {
        let directory = tempfile::tempdir().unwrap();
        assert!(!is_on_battery(&directory.path().join("absent")) && !is_on_battery(directory.path()));
        let supply = |name: &str, files: &[(&str, &str)]| {
            let of = directory.path().join(name);
            fs::create_dir_all(&of).unwrap();
            files.iter().for_each(|(file, text)| fs::write(of.join(file), format!("{text}\n")).unwrap());
        };
        supply("mouse", &[("type", "Battery"), ("scope", "Device"), ("status", "Discharging")]);
        supply("BAT0", &[("type", "Battery"), ("status", "Charging")]);
        assert!(!is_on_battery(directory.path()));
        supply("BAT0", &[("status", "Discharging")]);
        supply("AC", &[("type", "Mains"), ("online", "0")]);
        assert!(is_on_battery(directory.path()));
        supply("AC", &[("online", "1")]);
        assert!(!is_on_battery(directory.path()));
    }
}
