//! The processor's time stamp counter: how many of its cycles a time takes.

use std::fs;

use rustix::time::{ClockId, clock_gettime};

/// A moment by both the time stamp counter and CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    cycles: u64,
    ns: u64,
}

impl Moment {
    /// Now; `None` where the processor has no counter that always runs at the same rate.
    pub fn now() -> Option<Self> {
        let cpu = fs::read_to_string("/proc/cpuinfo").ok()?;
        let flags = cpu.lines().find(|line| line.starts_with("flags"))?;
        let steady =
            ["constant_tsc", "nonstop_tsc"].iter().all(|flag| flags.split(' ').any(|word| word == *flag));
        steady.then(Self::read)?
    }

    /// The counter's frequency, from how far it went since.
    pub fn hz(&self) -> Option<u64> {
        let now = Self::read()?;
        let ns = now.ns.checked_sub(self.ns).filter(|&ns| ns > 0)?;
        let cycles = now.cycles.checked_sub(self.cycles)?;
        Some((cycles as f64 * 1e9 / ns as f64).round() as u64)
    }

    fn read() -> Option<Self> {
        let ns = |now: rustix::time::Timespec| now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
        Some(Self { cycles: counter()?, ns: ns(clock_gettime(ClockId::Monotonic)) })
    }
}

#[cfg(target_arch = "x86_64")]
fn counter() -> Option<u64> {
    // SAFETY: RDTSC is in every x86-64 processor and touches no memory.
    Some(unsafe { std::arch::x86_64::_rdtsc() })
}

#[cfg(not(target_arch = "x86_64"))]
fn counter() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use prepage_testing::{Need, has};

    use super::*;

    #[test]
    fn two_looks_agree_on_the_frequency() {
        if !["constant_tsc", "nonstop_tsc"].iter().all(|&flag| has(Need::CpuFlag(flag.into()))) {
            assert!(Moment::now().is_none());
            return;
        }
        let start = Moment::now().expect("a steady counter");
        std::thread::sleep(std::time::Duration::from_millis(20));
        let [first, second] = [start.hz().expect("later"), start.hz().expect("later")].map(|hz| hz as f64);
        assert!((first / second - 1.0).abs() < 0.01 && (1e8..1e10).contains(&first), "{first} {second}");
    }
}
