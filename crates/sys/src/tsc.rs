//! The processor's time stamp counter: how many of its cycles a time takes.

use std::fs;

use rustix::time::{ClockId, clock_gettime};

/// A moment by both the time stamp counter and CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    cycles: u64,
    ns: u64,
    suspended: Suspended,
}

/// For how long the machine was suspended since it was started: at least and at most so many nanoseconds, as no two clocks are read at once.
#[derive(Clone, Copy, Debug)]
struct Suspended {
    least_ns: u64,
    most_ns: u64,
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

    /// The counter's frequency, from how far it went since. `None` where the machine was suspended meanwhile: the counter may run on then,
    /// and CLOCK_MONOTONIC does not.
    pub fn hz(&self) -> Option<u64> {
        self.hz_until(Self::read()?)
    }

    fn hz_until(&self, now: Self) -> Option<u64> {
        if now.suspended.least_ns > self.suspended.most_ns {
            return None;
        }
        let ns = now.ns.checked_sub(self.ns).filter(|&ns| ns > 0)?;
        let cycles = now.cycles.checked_sub(self.cycles)?;
        Some((cycles as f64 * 1e9 / ns as f64).round() as u64)
    }

    fn read() -> Option<Self> {
        let ns = |clock| {
            let now = clock_gettime(clock);
            now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
        };
        let (cycles, before_ns) = (counter()?, ns(ClockId::Monotonic));
        let (with_suspension_ns, after_ns) = (ns(ClockId::Boottime), ns(ClockId::Monotonic));
        let suspended = Suspended {
            least_ns: with_suspension_ns.saturating_sub(after_ns),
            most_ns: with_suspension_ns.saturating_sub(before_ns),
        };
        Some(Self { cycles, ns: before_ns, suspended })
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
        let looks = || {
            let start = Moment::now().expect("a steady counter");
            std::thread::sleep(std::time::Duration::from_millis(20));
            [start.hz().expect("later"), start.hz().expect("later")].map(|hz| hz as f64)
        };
        // No two clocks are read at once: on a busy machine a while may lie between.
        let agree =
            |[first, second]: [f64; 2]| (first / second - 1.0).abs() < 0.01 && (1e8..1e10).contains(&first);
        assert!((0..5).any(|_| agree(looks())), "{:?}", looks());
    }

    #[test]
    fn no_frequency_is_told_across_a_suspension() {
        let at =
            |cycles, ns, least_ns, most_ns| Moment { cycles, ns, suspended: Suspended { least_ns, most_ns } };
        let begun = at(5_000, 1_000_000_000, 70_000, 72_000);
        // Suspended before it began, for a time that the two looks find between different bounds.
        assert_eq!(begun.hz_until(at(2_000_005_000, 2_000_000_000, 71_000, 90_000)), Some(2_000_000_000));
        // For a minute since, in which the counter ran on.
        assert_eq!(begun.hz_until(at(122_000_005_000, 2_000_000_000, 60_000_071_000, 60_000_090_000)), None);
    }
}
