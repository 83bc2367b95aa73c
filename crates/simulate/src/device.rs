//! What a device can do, in the few numbers its speed follows from.

use std::fmt;
use std::str::FromStr;

use prepage_core::DeviceFigures;
use prepage_core::quantity::{parse_ns, parse_size};

use crate::description::DescriptionError;

/// A device, in the few numbers its speed follows from.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceModel {
    /// Its name, as it was given.
    pub name: String,
    /// From a request to its first byte, head movement not included.
    pub latency_ns: u64,
    /// How fast bytes come, of all requests together.
    pub bytes_per_s: u64,
    /// How many requests are served at once. Seeks and its own read-ahead are only modelled for 1.
    pub depth: u32,
    /// How many requests it takes a second; 0 where that is not limited.
    pub requests_per_s: u64,
    /// Moving the head, where there is one.
    pub seek: Option<Seek>,
    /// What the device reads by itself after each request, into a buffer of its own.
    pub ahead: Option<Ahead>,
}

/// The time to move a head: `least_ns` to the next track, growing with the root of the distance up to `most_ns` for all
/// of `span_bytes`; and half a turn of the platter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seek {
    /// To the next track.
    pub least_ns: u64,
    /// From edge to edge.
    pub most_ns: u64,
    /// Bytes from edge to edge.
    pub span_bytes: u64,
    /// Half a turn.
    pub half_turn_ns: u64,
}

/// A device's own read-ahead: a track, or what a host reads ahead for its guest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ahead {
    /// How much from a request's first byte on is read while nothing else is asked for.
    pub unit_bytes: u64,
    /// How many such units it remembers, at least 1.
    pub units: usize,
    /// How fast bytes come out of the buffer.
    pub bytes_per_s: u64,
    /// From a request to its first byte, when it comes out of the buffer.
    pub latency_ns: u64,
}

/// The devices that have a name, and what they are.
pub const NAMES: [(&str, &str); 5] = [
    ("hdd", "a hard disk of 2008: 80 MB/s, 1 to 15 ms seeks, 7200 rpm, 8 MB buffer of 1 MB tracks"),
    ("flash", "a solid state drive: 80 µs, 1 GB/s, 32 requests at once"),
    ("network", "a network volume: 1 ms, 1 GB/s, 64 requests at once"),
    ("capped", "a small cloud volume: 0.5 ms, 3000 requests and 125 MB a second, 64 at once"),
    (
        "hosted",
        "the virtual disk of the fault logging study: 250 µs, its host reads 776 KiB ahead and keeps what it reads",
    ),
];

/// The options a device takes after its name.
pub const OPTIONS: &str = "latency=TIME, bandwidth=SIZE, depth=N, iops=N, and for hdd and hosted units=N, how many of the parts they read \
    ahead they keep (say network:latency=2ms,bandwidth=100M)";

impl FromStr for DeviceModel {
    type Err = DescriptionError;

    fn from_str(text: &str) -> Result<Self, DescriptionError> {
        let (name, options) = text.split_once(':').unwrap_or((text, ""));
        let unknown = || {
            let names = NAMES.map(|(name, _)| name).join(", ");
            DescriptionError(format!("no device is called `{name}`; there are {names} and calibrated"))
        };
        let mut device = Self::named(name).ok_or_else(unknown)?;
        device.name = text.to_owned();
        for option in options.split(',').filter(|option| !option.is_empty()) {
            device.set(option).ok_or_else(|| {
                DescriptionError(format!("device option `{option}` is not understood; there are {OPTIONS}"))
            })?;
        }
        Ok(device)
    }
}

impl fmt::Display for DeviceModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl DeviceModel {
    /// A device of independent requests.
    pub fn new(name: &str, latency_ns: u64, bytes_per_s: u64, depth: u32) -> Self {
        Self {
            name: name.to_owned(),
            latency_ns,
            bytes_per_s,
            depth,
            requests_per_s: 0,
            seek: None,
            ahead: None,
        }
    }

    /// A device of measured figures.
    pub fn measured(name: &str, figures: &DeviceFigures) -> Self {
        Self {
            requests_per_s: figures.operations_per_second.unwrap_or(0),
            ..Self::new(name, figures.latency_ns, figures.bytes_per_second.max(1), figures.depth)
        }
    }

    /// What `prepage calibrate` would measure of it, about: between random places a head moves half of the way from its shortest to
    /// its longest seek.
    pub fn figures(&self) -> DeviceFigures {
        let seek_ns = self
            .seek
            .map_or(0, |seek| seek.least_ns.midpoint(seek.most_ns).saturating_add(seek.half_turn_ns));
        DeviceFigures {
            latency_ns: self.latency_ns.saturating_add(seek_ns),
            bytes_per_second: self.bytes_per_s,
            depth: self.depth.max(1),
            operations_per_second: (self.requests_per_s > 0).then_some(self.requests_per_s),
        }
    }

    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "hdd" => Self {
                seek: Some(Seek {
                    least_ns: 1_000_000,
                    most_ns: 15_000_000,
                    span_bytes: 500_000_000_000,
                    half_turn_ns: 4_166_667,
                }),
                ahead: Some(Ahead {
                    unit_bytes: 1 << 20,
                    units: 8,
                    bytes_per_s: 300_000_000,
                    latency_ns: 100_000,
                }),
                ..Self::new(name, 100_000, 80_000_000, 1)
            },
            "flash" => Self::new(name, 80_000, 1_000_000_000, 32),
            "network" => Self::new(name, 1_000_000, 1_000_000_000, 64),
            "capped" => Self { requests_per_s: 3000, ..Self::new(name, 500_000, 125_000_000, 64) },
            "hosted" => Self {
                ahead: Some(Ahead {
                    unit_bytes: 776 << 10,
                    // All of the study's file, be it read page by page: a host has memory for it.
                    units: 12_000,
                    bytes_per_s: 5_000_000_000,
                    latency_ns: 20_000,
                }),
                ..Self::new(name, 250_000, 4_000_000_000, 1)
            },
            _ => return None,
        })
    }

    fn set(&mut self, option: &str) -> Option<()> {
        let (key, value) = option.split_once('=')?;
        match key {
            "latency" => {
                self.latency_ns = parse_ns(value, "ns").filter(|&ns| ns <= DeviceFigures::LATENCY_NS_MAX)?;
            }
            "bandwidth" => self.bytes_per_s = parse_size(value).filter(|&bytes| bytes > 0)?,
            // A disk with a head, or one that reads ahead by itself, serves one request at a time.
            "depth" if self.ahead.is_none() => self.depth = value.parse().ok().filter(|&depth| depth > 0)?,
            "iops" => {
                self.requests_per_s = value.parse().ok().filter(|&requests| requests <= 1_000_000_000)?
            }
            "units" => self.ahead.as_mut()?.units = value.parse().ok().filter(|&units| units > 0)?,
            _ => return None,
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_change_a_device_and_mistakes_are_reported() {
        let device: DeviceModel = "network:latency=2ms,bandwidth=100M,depth=8,iops=500".parse().unwrap();
        assert_eq!((device.latency_ns, device.bytes_per_s), (2_000_000, 100 << 20));
        assert_eq!((device.depth, device.requests_per_s), (8, 500));
        let device: DeviceModel = "hosted:units=64".parse().unwrap();
        assert_eq!(device.ahead.map(|ahead| ahead.units), Some(64));
        assert!("floppy".parse::<DeviceModel>().unwrap_err().to_string().contains("flash"));
        for text in [
            "flash:speed=3",
            "flash:depth=0",
            "flash:latency=-1",
            "flash:latency=ms",
            "flash:latency=11s",
            "flash:bandwidth=0",
            "hdd:depth=8",
            "hdd:units=0",
            "flash:units=8",
            "flash:iops=9999999999",
        ] {
            assert!(text.parse::<DeviceModel>().is_err(), "{text}");
        }
    }
}
