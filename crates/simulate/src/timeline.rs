//! Time as it passes for a program and the device it reads from.

use prepage_core::{PAGE_SIZE, PageIndex, PageRange};

use crate::device::{Ahead, DeviceModel};
use crate::replay::ObjectIndex;

/// Pages of the largest request; longer reads are split.
const REQUEST_PAGES: u64 = (1 << 20) / PAGE_SIZE;

/// Where objects lie: each from a multiple of this many bytes on, one after the other.
const OBJECT_SPACING_BYTES: u64 = 1 << 30;

/// Time as it passes for the program and the device.
#[derive(Clone, Debug)]
pub struct Timeline {
    device: DeviceModel,
    now_ns: u64,
    /// Of it: spent in faults.
    fault_ns: u64,
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
    pub fn new(device: DeviceModel, soft_fault_ns: u64, hard_fault_ns: u64) -> Self {
        let servers = if device.ahead.is_some() { 1 } else { device.depth.max(1) as usize };
        Self {
            device,
            now_ns: 0,
            fault_ns: 0,
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
        let bytes = (pages * PAGE_SIZE).next_multiple_of(OBJECT_SPACING_BYTES);
        self.next_base = self.next_base.saturating_add(bytes);
    }

    /// What time it is for the program.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// How much of that it spent in faults.
    pub fn fault_ns(&self) -> u64 {
        self.fault_ns
    }

    /// The program computes.
    #[inline]
    pub fn think(&mut self, think_ns: u64) {
        self.now_ns += think_ns;
    }

    /// A soft fault's own time.
    pub fn spend_soft_fault(&mut self) {
        self.spend(self.soft_fault_ns);
    }

    /// A hard fault's own time.
    pub fn spend_hard_fault(&mut self) {
        self.spend(self.hard_fault_ns);
    }

    fn spend(&mut self, fault_ns: u64) {
        self.now_ns += fault_ns;
        self.fault_ns += fault_ns;
    }

    /// Asks for pages now. They arrive later.
    pub fn read(&mut self, object: ObjectIndex, run: PageRange) {
        let now_ns = self.now_ns;
        self.under_way.retain(|&(_, _, arrival_ns)| arrival_ns > now_ns);
        let mut start = run.start();
        while start < run.end() {
            let end = PageIndex((start.0 + REQUEST_PAGES).min(run.end().0));
            let part = PageRange::new(start, end);
            let position = self.bases[object.0 as usize] + start.offset_bytes();
            let arrival_ns = self.serve(position, part.bytes());
            self.under_way.push((object, part, arrival_ns));
            start = end;
        }
    }

    /// Lets the program wait until all of `range` that is under way has arrived; returns for how long.
    pub fn wait(&mut self, object: ObjectIndex, range: PageRange) -> u64 {
        let waited_ns = self.arrival(object, range).map_or(0, |arrival_ns| arrival_ns - self.now_ns);
        self.spend(waited_ns);
        waited_ns
    }

    /// Whether touches of `range` would wait for no read.
    pub fn has_arrived(&self, object: ObjectIndex, range: PageRange) -> bool {
        self.arrival(object, range).is_none()
    }

    /// When the last of `range` arrives that is still under way.
    fn arrival(&self, object: ObjectIndex, range: PageRange) -> Option<u64> {
        let of_range = |read: &&(ObjectIndex, PageRange, u64)| read.0 == object && read.1.overlaps(range);
        let arrivals = self.under_way.iter().filter(of_range).map(|read| read.2);
        arrivals.max().filter(|&arrival_ns| arrival_ns > self.now_ns)
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
        if ahead.units == 0 {
            return end_ns;
        }
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
            time.wait(OBJECT, run(place + pages - 1, 1));
        }
        (100 * pages * 4096) as f64 / (time.now_ns() as f64 / 1e9)
    }

    #[test]
    fn a_hard_disk_reads_80_mb_a_second_in_sequence_and_under_10_scattered() {
        let mut sequential = time("hdd");
        sequential.read(OBJECT, run(0, 25_600));
        sequential.wait(OBJECT, run(25_599, 1));
        let rate = 25_600.0 * 4096.0 / (sequential.now_ns() as f64 / 1e9);
        assert!((75e6..=80e6).contains(&rate), "{rate}");
        assert!(seeky("hdd", 1) < 1e6 && seeky("hdd", 32) < 10e6);
    }

    /// Prints the table of docs/policies.md: `cargo test -p prepage-simulate --lib larger_reads -- --nocapture`.
    #[test]
    fn larger_reads_come_faster_and_half_of_the_time_is_transfer_at_the_useful_unit() {
        for (device, bandwidth, useful_kib) in [("hdd", 80e6, 900..1200), ("flash", 1e9, 76..84)] {
            // 4 KiB to 8 MiB.
            let rates: Vec<f64> = (0..12).map(|doublings| seeky(device, 1 << doublings)).collect();
            let half = (1..).find(|&pages| seeky(device, pages) >= bandwidth / 2.0).unwrap();
            let megabytes: Vec<String> = rates.iter().map(|rate| format!("{:.1}", rate / 1e6)).collect();
            println!("{device}: {} MB/s; half the bandwidth from {} KiB on", megabytes.join(" "), half * 4);
            assert!(rates.windows(2).all(|pair| pair[0] < pair[1]), "{device}: {rates:?}");
            assert!((0.8 * bandwidth..bandwidth).contains(&rates[11]), "{device}: {rates:?}");
            assert!(useful_kib.contains(&(half * 4)), "{device}: {half} pages");
        }
    }

    #[test]
    fn the_rest_of_a_track_is_free() {
        let mut time = time("hdd");
        time.read(OBJECT, run(1000, 4));
        time.wait(OBJECT, run(1003, 1));
        time.think(20_000_000);
        time.read(OBJECT, run(1100, 4));
        assert!(time.wait(OBJECT, run(1103, 1)) < 300_000);
        time.read(OBJECT, run(900_000, 4));
        assert!(time.wait(OBJECT, run(900_003, 1)) > 5_000_000);
    }

    #[test]
    fn a_buffer_of_no_units_holds_nothing() {
        let mut device: DeviceModel = "hdd".parse().unwrap();
        device.ahead.as_mut().unwrap().units = 0;
        let mut time = Timeline::new(device, 0, 0);
        time.place(1000);
        for _ in 0..2 {
            time.read(OBJECT, run(0, 4));
            // A device that does not remember the track seeks back to it.
            assert!(time.wait(OBJECT, run(3, 1)) > 0);
        }
        assert!(time.now_ns() > 5_000_000, "{}", time.now_ns());
    }

    #[test]
    fn requests_overlap_up_to_the_depth_and_the_caps_hold() {
        let mut network = time("network");
        (0..64).for_each(|read| network.read(OBJECT, run(read * 100, 1)));
        network.wait(OBJECT, run(6300, 1));
        assert!(network.now_ns() < 1_400_000, "{}", network.now_ns());
        let mut capped = time("capped");
        (0..300).for_each(|read| capped.read(OBJECT, run(read * 100, 1)));
        capped.wait(OBJECT, run(29_900, 1));
        assert!((99_000_000..102_000_000).contains(&capped.now_ns()), "{}", capped.now_ns());
    }
}
