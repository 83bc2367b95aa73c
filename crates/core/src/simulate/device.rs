//! What reads cost.

use std::fmt;
use std::str::FromStr;

use super::replay::ObjectIndex;
use crate::device_figures::DeviceFigures;
use crate::page::{PageIndex, PageRange};

/// Where objects lie: each from a multiple of this many bytes on, one after the other.
const OBJECT_SPACING_BYTES: u64 = 1 << 30;

/// A device, in the few numbers its speed follows from.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// What it was called.
    pub name: String,
    /// From a request to its first byte, head movement not included.
    pub latency_ns: u64,
    /// How fast bytes come, of all requests together.
    pub bytes_per_s: u64,
    /// How many requests are served at once. Seeks and its own read-ahead are only modelled for 1.
    pub depth: u32,
    /// How many requests it takes a second; 0 where that is not limited.
    pub requests_per_s: u64,
    /// Largest request; longer reads are split.
    pub request_bytes: u64,
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
    /// How many such units it remembers.
    pub units: usize,
    /// How fast bytes come out of the buffer.
    pub bytes_per_s: u64,
    /// From a request to its first byte, when it comes out of the buffer.
    pub latency_ns: u64,
}

/// The devices that have a name, and what they are.
pub const NAMES: [(&str, &str); 5] = [
    ("hdd", "a hard disk of 2008: 80 MB/s, 1 to 15 ms seeks, 7200 turns, 8 MB buffer of 1 MB tracks"),
    ("flash", "a solid state drive: 80 µs, 1 GB/s, 32 requests at once"),
    ("network", "a network volume: 1 ms, 1 GB/s, 64 requests at once"),
    ("capped", "a small cloud volume: 0.5 ms, 3000 requests and 125 MB a second, 64 at once"),
    ("hosted", "the virtual disk of the fault logging study: 250 µs, its host reads 776 KiB ahead"),
];

/// The options a device takes after its name.
pub const OPTIONS: &str =
    "latency=TIME, bandwidth=SIZE, depth=N, iops=N (say network:latency=2ms,bandwidth=100M)";

/// A string that describes no device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// Nothing is called so.
    #[error("no device is called `{name}`; there are {} and calibrated", NAMES.map(|(name, _)| name).join(", "))]
    Unknown {
        /// What was given.
        name: String,
    },
    /// An option is none, or its value is none.
    #[error("device option `{option}` is not understood; there are {OPTIONS}")]
    Option {
        /// What was given.
        option: String,
    },
}

impl FromStr for Device {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<Self, DeviceError> {
        let (name, options) = text.split_once(':').unwrap_or((text, ""));
        let mut device = Self::named(name).ok_or_else(|| DeviceError::Unknown { name: name.to_owned() })?;
        device.name = text.to_owned();
        for option in options.split(',').filter(|option| !option.is_empty()) {
            device.set(option).ok_or_else(|| DeviceError::Option { option: option.to_owned() })?;
        }
        Ok(device)
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Device {
    /// A device of independent requests.
    pub fn new(name: &str, latency_ns: u64, bytes_per_s: u64, depth: u32) -> Self {
        Self {
            name: name.to_owned(),
            latency_ns,
            bytes_per_s,
            depth,
            requests_per_s: 0,
            request_bytes: 1 << 20,
            seek: None,
            ahead: None,
        }
    }

    /// A device as it was measured.
    pub fn measured(name: &str, figures: &DeviceFigures) -> Self {
        Self {
            requests_per_s: figures.operations_per_second.unwrap_or(0),
            ..Self::new(name, figures.latency_ns, figures.bytes_per_second.max(1), figures.depth)
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
                    units: 64,
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
            "latency" => self.latency_ns = time_ns(value)?,
            "bandwidth" => self.bytes_per_s = size_bytes(value).filter(|&bytes| bytes > 0)?,
            // A disk with a head, or one that reads ahead by itself, serves one request at a time.
            "depth" if self.ahead.is_none() => self.depth = value.parse().ok().filter(|&depth| depth > 0)?,
            "iops" => {
                self.requests_per_s = value.parse().ok().filter(|&requests| requests <= 1_000_000_000)?
            }
            _ => return None,
        }
        Some(())
    }
}

/// Time as it passes for the program and the device.
#[derive(Clone, Debug)]
pub struct Timeline {
    device: Device,
    now_ns: u64,
    soft_fault_ns: u64,
    hard_fault_ns: u64,
    /// When each of the device's servers is free.
    free_ns: Vec<u64>,
    /// When the wire is free, and when the next request may begin.
    wire_free_ns: u64,
    next_request_ns: u64,
    /// What the device's buffer holds, the unit being read last.
    units: Vec<Unit>,
    head_bytes: u64,
    /// Where each object begins, and where the next one would.
    bases: Vec<u64>,
    next_base: u64,
    /// Reads that may not have arrived.
    under_way: Vec<(ObjectIndex, PageRange, u64)>,
}

/// A part of the device in its own buffer.
#[derive(Clone, Copy, Debug)]
struct Unit {
    start: u64,
    /// How far it had been read at `since_ns`.
    end: u64,
    limit: u64,
    since_ns: u64,
}

impl Timeline {
    /// Time on a device nothing was asked of. Faults cost the program `soft_fault_ns` and `hard_fault_ns` besides
    /// waiting.
    pub fn new(device: Device, soft_fault_ns: u64, hard_fault_ns: u64) -> Self {
        let servers = if device.ahead.is_some() { 1 } else { device.depth.max(1) as usize };
        Self {
            device,
            now_ns: 0,
            soft_fault_ns,
            hard_fault_ns,
            free_ns: vec![0; servers],
            wire_free_ns: 0,
            next_request_ns: 0,
            units: Vec::new(),
            head_bytes: 0,
            bases: Vec::new(),
            next_base: 0,
            under_way: Vec::new(),
        }
    }

    /// Gives the next object its place.
    pub fn place(&mut self, pages: u64) {
        self.bases.push(self.next_base);
        let bytes = (pages * crate::page::PAGE_SIZE).next_multiple_of(OBJECT_SPACING_BYTES);
        self.next_base = self.next_base.saturating_add(bytes);
    }

    /// What time it is for the program.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// The program does something else.
    #[inline]
    pub fn think(&mut self, think_ns: u64) {
        self.now_ns += think_ns;
    }

    /// A soft fault's own time.
    pub fn spend_soft_fault(&mut self) {
        self.now_ns += self.soft_fault_ns;
    }

    /// A hard fault's own time.
    pub fn spend_hard_fault(&mut self) {
        self.now_ns += self.hard_fault_ns;
    }

    /// Asks for pages now. They arrive later.
    pub fn read(&mut self, object: ObjectIndex, run: PageRange) {
        let now_ns = self.now_ns;
        self.under_way.retain(|&(_, _, arrival_ns)| arrival_ns > now_ns);
        let request_pages = (self.device.request_bytes / crate::page::PAGE_SIZE).max(1);
        let mut start = run.start();
        while start < run.end() {
            let end = PageIndex((start.0 + request_pages).min(run.end().0));
            let part = PageRange::new(start, end);
            let position = self.bases[object.0 as usize] + start.offset_bytes();
            let arrival_ns = self.serve(position, part.bytes());
            self.under_way.push((object, part, arrival_ns));
            start = end;
        }
    }

    /// Lets the program wait until `page` has arrived; for how long.
    pub fn wait(&mut self, object: ObjectIndex, page: PageIndex) -> u64 {
        let waited_ns = self.arrival(object, page).map_or(0, |arrival_ns| arrival_ns - self.now_ns);
        self.now_ns += waited_ns;
        waited_ns
    }

    /// Whether nothing is to wait for at `page`.
    pub fn has_arrived(&self, object: ObjectIndex, page: PageIndex) -> bool {
        self.arrival(object, page).is_none()
    }

    /// When `page` arrives, if it is still under way.
    fn arrival(&self, object: ObjectIndex, page: PageIndex) -> Option<u64> {
        let mut under_way = self.under_way.iter().rev();
        let found = under_way.find(|(of, range, _)| *of == object && range.contains(page))?;
        (found.2 > self.now_ns).then_some(found.2)
    }

    /// When a request made now is served.
    fn serve(&mut self, position: u64, bytes: u64) -> u64 {
        let free = (0..self.free_ns.len()).min_by_key(|&server| self.free_ns[server]).unwrap_or(0);
        let start_ns = self.now_ns.max(self.free_ns[free]).max(self.next_request_ns);
        if let Some(request_ns) = 1_000_000_000_u64.checked_div(self.device.requests_per_s) {
            self.next_request_ns = start_ns + request_ns;
        }
        let end_ns = match self.device.ahead {
            Some(ahead) => self.serve_buffered(&ahead, position, bytes, start_ns),
            None => {
                let seek_ns = self.seek_ns(position);
                self.head_bytes = position + bytes;
                let first_byte_ns = start_ns + self.device.latency_ns + seek_ns;
                first_byte_ns.max(self.wire_free_ns) + transfer_ns(bytes, self.device.bytes_per_s)
            }
        };
        self.wire_free_ns = self.wire_free_ns.max(end_ns);
        self.free_ns[free] = end_ns;
        end_ns
    }

    /// A device that reads on by itself while it is idle.
    fn serve_buffered(&mut self, ahead: &Ahead, position: u64, bytes: u64, start_ns: u64) -> u64 {
        let media = self.device.bytes_per_s;
        if let Some(current) = self.units.last_mut() {
            let grown = bytes_in(start_ns.saturating_sub(current.since_ns), media);
            current.end = current.limit.min(current.end + grown);
            current.since_ns = current.since_ns.max(start_ns);
        }
        let end = position + bytes;
        let latest = self.units.len().wrapping_sub(1);
        let held = |at: usize, unit: &Unit| {
            unit.start <= position && end <= if at == latest { unit.limit } else { unit.end }
        };
        if let Some(at) = (0..self.units.len()).rev().find(|&at| held(at, &self.units[at])) {
            let unit = &mut self.units[at];
            let missing = end.saturating_sub(unit.end);
            let read_ns = transfer_ns(missing, media);
            unit.end = unit.end.max(end);
            unit.since_ns = unit.since_ns.max(start_ns + read_ns);
            return start_ns + ahead.latency_ns + read_ns.max(transfer_ns(bytes, ahead.bytes_per_s));
        }
        let seek_ns = self.seek_ns(position);
        let end_ns = start_ns + self.device.latency_ns + seek_ns + transfer_ns(bytes, media);
        self.head_bytes = end;
        if self.units.len() >= ahead.units {
            self.units.remove(0);
        }
        let limit = position + ahead.unit_bytes.max(bytes);
        self.units.push(Unit { start: position, end, limit, since_ns: end_ns });
        end_ns
    }

    fn seek_ns(&self, position: u64) -> u64 {
        let Some(seek) = self.device.seek else { return 0 };
        // A disk that reads on stands where its last unit ends.
        let head = self.units.last().map_or(self.head_bytes, |unit| unit.end);
        let distance = head.abs_diff(position);
        if distance == 0 {
            return 0;
        }
        let share = (distance as f64 / seek.span_bytes as f64).min(1.0).sqrt();
        seek.least_ns + ((seek.most_ns - seek.least_ns) as f64 * share) as u64 + seek.half_turn_ns
    }
}

fn transfer_ns(bytes: u64, bytes_per_s: u64) -> u64 {
    (u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_s)) as u64
}

fn bytes_in(time_ns: u64, bytes_per_s: u64) -> u64 {
    (u128::from(time_ns) * u128::from(bytes_per_s) / 1_000_000_000) as u64
}

/// `80us`, `0.5ms`, `2s`; a number alone is nanoseconds.
pub fn time_ns(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|unit: char| !unit.is_ascii_digit());
    let factor = match &text[digits.len()..] {
        "" | "ns" => 1.0,
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return None,
    };
    scaled(digits, factor)
}

/// `4k`, `100M`, `2G`, in powers of 1024; a number alone is bytes.
pub fn size_bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|unit: char| !unit.is_ascii_digit());
    let factor = match &text[digits.len()..] {
        "" | "B" => 1.0,
        "k" | "K" => 1024.0,
        "m" | "M" => 1024.0 * 1024.0,
        "g" | "G" => 1024.0 * 1024.0 * 1024.0,
        "t" | "T" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    scaled(digits, factor)
}

fn scaled(digits: &str, factor: f64) -> Option<u64> {
    let value = digits.parse::<f64>().ok()? * factor;
    (0.0..1e18).contains(&value).then(|| value.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECT: ObjectIndex = ObjectIndex(0);

    fn run(start: u64, pages: u64) -> PageRange {
        PageRange::new(PageIndex(start), PageIndex(start + pages))
    }

    fn time(device: &str) -> Timeline {
        let mut time = Timeline::new(device.parse().unwrap(), 0, 0);
        time.place(1 << 28);
        time
    }

    /// Bytes a second of reads of `pages` pages, far from one another.
    fn seeky(device: &str, pages: u64) -> f64 {
        let mut time = time(device);
        for read in 0..100_u64 {
            let place = read * 7919 % 100 * 1_000_000;
            time.read(OBJECT, run(place, pages));
            time.wait(OBJECT, PageIndex(place + pages - 1));
        }
        (100 * pages * 4096) as f64 / (time.now_ns() as f64 / 1e9)
    }

    #[test]
    fn a_hard_disk_reads_80_mb_a_second_in_sequence_and_under_10_scattered() {
        let mut sequential = time("hdd");
        sequential.read(OBJECT, run(0, 25_600));
        sequential.wait(OBJECT, PageIndex(25_599));
        let rate = 25_600.0 * 4096.0 / (sequential.now_ns() as f64 / 1e9);
        assert!((75e6..=80e6).contains(&rate), "{rate}");
        assert!(seeky("hdd", 1) < 1e6 && seeky("hdd", 32) < 10e6);
        // At about a megabyte half of the time goes into the transfer: the useful unit.
        assert!((30e6..50e6).contains(&seeky("hdd", 256)), "{}", seeky("hdd", 256));
    }

    #[test]
    fn the_rest_of_a_track_is_free() {
        let mut time = time("hdd");
        time.read(OBJECT, run(1000, 4));
        time.wait(OBJECT, PageIndex(1003));
        time.think(20_000_000);
        time.read(OBJECT, run(1100, 4));
        assert!(time.wait(OBJECT, PageIndex(1103)) < 300_000);
        time.read(OBJECT, run(900_000, 4));
        assert!(time.wait(OBJECT, PageIndex(900_003)) > 5_000_000);
    }

    #[test]
    fn requests_overlap_up_to_the_depth_and_the_caps_hold() {
        let mut network = time("network");
        (0..64).for_each(|read| network.read(OBJECT, run(read * 100, 1)));
        network.wait(OBJECT, PageIndex(6300));
        assert!(network.now_ns() < 1_400_000, "{}", network.now_ns());
        let mut capped = time("capped");
        (0..300).for_each(|read| capped.read(OBJECT, run(read * 100, 1)));
        capped.wait(OBJECT, PageIndex(29_900));
        assert!((99_000_000..102_000_000).contains(&capped.now_ns()), "{}", capped.now_ns());
    }

    #[test]
    fn options_change_a_device_and_slips_are_told() {
        let device: Device = "network:latency=2ms,bandwidth=100M,depth=8,iops=500".parse().unwrap();
        assert_eq!((device.latency_ns, device.bytes_per_s), (2_000_000, 100 << 20));
        assert_eq!((device.depth, device.requests_per_s), (8, 500));
        assert!("floppy".parse::<Device>().unwrap_err().to_string().contains("flash"));
        for slip in [
            "flash:speed=3",
            "flash:depth=0",
            "flash:latency=-1",
            "flash:latency=ms",
            "flash:bandwidth=0",
            "hdd:depth=8",
            "flash:iops=9999999999",
        ] {
            assert!(slip.parse::<Device>().is_err(), "{slip}");
        }
    }
}
