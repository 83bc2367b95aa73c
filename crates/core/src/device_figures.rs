//! What a device can do, in the few numbers a plan of reads depends on.

use serde::{Deserialize, Serialize};

use crate::page::PAGE_SIZE;

/// The speed of the device under a file system, as `prepage calibrate` measures it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceFigures {
    /// Median time of one random 4 KiB read while nothing else is asked for, nanoseconds.
    pub latency_ns: u64,
    /// Bytes a second of large reads, several at once.
    pub bytes_per_second: u64,
    /// How many reads at once are worth asking for: with more, the rate of random 4 KiB reads hardly grows.
    pub depth: u32,
    /// Random 4 KiB reads a second at most, where more reads at once do not help; `None` where the rate still grew at the
    /// largest depth that was tried.
    pub operations_per_second: Option<u64>,
}

/// A local flash or virtual disk: what most machines start their programs from, and what a slower device loses least by
/// being taken for.
impl Default for DeviceFigures {
    fn default() -> Self {
        Self {
            latency_ns: 100_000,
            bytes_per_second: 1_000_000_000,
            depth: 16,
            operations_per_second: Some(60_000),
        }
    }
}

impl DeviceFigures {
    /// Latencies that a device can have: 1 µs to 10 s.
    const LATENCIES_NS: std::ops::RangeInclusive<u64> = 1_000..=Self::LATENCY_NS_MAX;
    /// The longest latency that a device can have. A billion of them is a time that can be counted.
    pub const LATENCY_NS_MAX: u64 = 10_000_000_000;
    /// The shortest latency of a device that is far, nanoseconds ([`Self::is_far`]).
    pub const FAR_NS_MIN: u64 = 300_000;
    /// Most reads at once that anything is measured with.
    pub const DEPTH_MAX: u32 = 64;

    /// The figures, or `None` where no device is like that: what a damaged file says is not followed.
    pub fn plausible(self) -> Option<Self> {
        let fits = Self::LATENCIES_NS.contains(&self.latency_ns)
            && self.bytes_per_second >= PAGE_SIZE
            && (1..=Self::DEPTH_MAX).contains(&self.depth)
            && self.operations_per_second != Some(0);
        fits.then_some(self)
    }

    /// Whether it answers however many reads at once within their latency, and that is long: a volume behind a network, on which
    /// waiting for a read before asking for the next one is all that takes time. Where latencies are short, bandwidth
    /// ends before that.
    pub fn is_far(&self) -> bool {
        self.operations_per_second.is_none() && self.latency_ns >= Self::FAR_NS_MIN
    }

    /// Reads a second with [`Self::depth`] of them at once.
    pub fn reads_per_second(&self) -> u64 {
        let by_depth = u64::from(self.depth) * 1_000_000_000 / self.latency_ns.max(1);
        self.operations_per_second.map_or(by_depth, |most| most.min(by_depth)).max(1)
    }

    /// Bytes that come in the time that one more read takes: reading over a hole of less costs less than a read of its
    /// own.
    pub fn bytes_per_read(&self) -> u64 {
        self.bytes_per_second / self.reads_per_second()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_worth_as_many_bytes_as_come_meanwhile() {
        let capped = DeviceFigures {
            latency_ns: 500_000,
            bytes_per_second: 125_000_000,
            depth: 16,
            operations_per_second: Some(3_000),
        };
        assert_eq!(capped.reads_per_second(), 3_000);
        assert_eq!(capped.bytes_per_read(), 41_666);
        assert!(!capped.is_far());
        let far = DeviceFigures {
            latency_ns: 1_000_000,
            bytes_per_second: 1_000_000_000,
            depth: 32,
            operations_per_second: None,
        };
        assert!(far.is_far() && !DeviceFigures { latency_ns: 80_000, ..far }.is_far());
        assert_eq!(far.reads_per_second(), 32_000);
    }

    #[test]
    fn figures_of_no_device_are_refused() {
        let good = DeviceFigures::default();
        assert_eq!(good.plausible(), Some(good));
        for bad in [
            DeviceFigures { latency_ns: 0, ..good },
            DeviceFigures { latency_ns: u64::MAX, ..good },
            DeviceFigures { bytes_per_second: 1, ..good },
            DeviceFigures { depth: 0, ..good },
            DeviceFigures { depth: u32::MAX, ..good },
            DeviceFigures { operations_per_second: Some(0), ..good },
        ] {
            assert_eq!(bad.plausible(), None, "{bad:?}");
        }
    }
}
