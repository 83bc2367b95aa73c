//! When a read for a guess may begin on a device that others use, too: not while they do, and never often enough to be in their way.
//!
//! Decisions about numbers that somebody else has read ([`crate::device_use`]), at times that somebody else tells.

use std::time::Duration;

/// After somebody else's last read or write the device is left alone for this long: who reads on and off goes on soon.
const QUIET: Duration = Duration::from_millis(250);
/// How often somebody looks meanwhile.
const LOOK: Duration = Duration::from_millis(20);
/// Where others leave no such pause for this long, the machine is no longer idle.
const PATIENCE: Duration = Duration::from_secs(5);
/// Reads for guesses take one in this of the device's time. Who comes after a pause finds one under way so seldom that the slowest hundredth of
/// his reads are none of those that wait for it.
const SHARE: u32 = 128;
/// No pause between reads is longer, so that slow devices are done some day.
const REST_MAX: Duration = Duration::from_millis(100);

/// How much a device and a thread have read and written so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// Bytes read from the device and written to it, by anybody, as far as they have arrived.
    pub device_bytes: u64,
    /// Bytes that this thread has asked devices for.
    pub own_bytes: u64,
    /// Reads and writes that the device is at.
    pub in_flight: u64,
}

/// What is to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Read.
    Read,
    /// Wait for so long, and ask again.
    Rest(Duration),
    /// Stop: others need the device.
    Leave,
}

/// What was seen of the others. Times are counted from any moment.
#[derive(Debug, Default)]
pub struct Courtesy {
    /// The most bytes of others so far. Where some of this thread's own are still on their way, they seem to be fewer.
    others_bytes: Option<i128>,
    /// When somebody else was last seen, and since when without a pause.
    others: Option<(Duration, Duration)>,
    /// When a read was last allowed, and until when the device is then left to others.
    read: Option<Duration>,
    not_before: Option<Duration>,
}

impl Courtesy {
    /// At `now` the device had been used so much. To be asked before each read.
    pub fn next(&mut self, now: Duration, seen: Use) -> Next {
        let bytes = i128::from(seen.device_bytes) - i128::from(seen.own_bytes);
        let before = self.others_bytes.replace(self.others_bytes.map_or(bytes, |most| most.max(bytes)));
        // The pause that follows a read is as long as the read was, times so many.
        if let Some(began) = self.read.take() {
            self.not_before = Some(now + (now.saturating_sub(began) * (SHARE - 1)).min(REST_MAX));
        }
        // A first look tells nothing of what others did until then: they count as just seen.
        if seen.in_flight > 0 || before.is_none_or(|before| bytes > before) {
            let since = self.others.map_or(now, |(_, since)| since);
            self.others = Some((now, since));
        }
        if let Some((last, since)) = self.others {
            if now.saturating_sub(last) < QUIET {
                return if now.saturating_sub(since) < PATIENCE { Next::Rest(LOOK) } else { Next::Leave };
            }
            self.others = None;
        }
        match self.not_before.map(|until| until.saturating_sub(now)) {
            Some(left) if !left.is_zero() => Next::Rest(left),
            _ => {
                (self.read, self.not_before) = (Some(now), None);
                Next::Read
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: Duration = Duration::from_micros(200);
    const BYTES: u64 = 128 << 10;

    /// A device of which a clock and all figures are told.
    #[derive(Default)]
    struct Device {
        courtesy: Courtesy,
        now: Duration,
        seen: Use,
    }

    impl Device {
        fn ask(&mut self) -> Next {
            let next = self.courtesy.next(self.now, self.seen);
            match next {
                Next::Read => {
                    self.now += READ;
                    self.seen.own_bytes += BYTES;
                    self.seen.device_bytes += BYTES;
                }
                Next::Rest(pause) => self.now += pause,
                Next::Leave => {}
            }
            next
        }

        /// Reads until `end`, and how many there were; while somebody else reads each time that it rests, where `beside`.
        fn reads_until(&mut self, end: Duration, beside: bool) -> u32 {
            let mut reads = 0;
            while self.now < end {
                match self.ask() {
                    Next::Read => reads += 1,
                    Next::Rest(_) => self.seen.device_bytes += if beside { 4096 } else { 0 },
                    Next::Leave => break,
                }
            }
            reads
        }
    }

    #[test]
    fn alone_it_takes_its_share_of_the_device_and_no_more() {
        let mut device = Device::default();
        let reads = device.reads_until(Duration::from_secs(10), false);
        let share = READ.as_secs_f64() * f64::from(reads) / 10.0;
        assert!((0.9..1.1).contains(&(share * f64::from(SHARE))), "{share}");
    }

    /// Between two of somebody's reads nothing is in flight.
    #[test]
    fn beside_somebody_who_was_there_before_it_reads_nothing() {
        let mut device =
            Device { seen: Use { device_bytes: 1 << 30, ..Use::default() }, ..Device::default() };
        assert_eq!(device.reads_until(Duration::from_secs(60), true), 0);
        assert_eq!(device.ask(), Next::Leave);
    }

    #[test]
    fn beside_somebody_it_reads_no_more_and_leaves_in_the_end() {
        let mut device = Device::default();
        while device.ask() != Next::Read {}
        assert_eq!(device.reads_until(Duration::from_secs(60), true), 0);
        assert_eq!(device.ask(), Next::Leave);
        assert!((PATIENCE..2 * PATIENCE).contains(&device.now));
        device.now += QUIET;
        assert_eq!(device.ask(), Next::Read, "and would go on, were it asked");
    }

    #[test]
    fn it_goes_on_once_others_have_paused() {
        let mut device = Device::default();
        while device.ask() != Next::Read {}
        for _ in 0..100 {
            assert!(device.reads_until(device.now + Duration::from_millis(200), false) > 0);
            device.seen.device_bytes += 4096;
            let came = device.now;
            while device.ask() != Next::Read {}
            assert!(device.now - READ >= came + QUIET);
        }
    }

    #[test]
    fn what_is_in_flight_is_somebody_elses_and_what_of_its_own_has_not_arrived_is_nobodys() {
        let mut device = Device { seen: Use { in_flight: 1, ..Use::default() }, ..Device::default() };
        assert_eq!(device.ask(), Next::Rest(LOOK));
        device.seen.in_flight = 0;
        while device.ask() != Next::Read {}
        // The last read arrives late, and there is no more of it than there was.
        device.seen.device_bytes -= BYTES;
        let Next::Rest(rest) = device.ask() else { panic!("reads on") };
        assert!(rest > LOOK);
        device.seen.device_bytes += BYTES;
        assert_eq!(device.ask(), Next::Read);
        assert_eq!(device.courtesy.others, None);
    }

    #[test]
    fn slow_devices_and_clocks_that_stand_still_are_borne() {
        let mut device = Device::default();
        while device.ask() != Next::Read {}
        device.now += Duration::from_secs(10);
        assert_eq!(device.ask(), Next::Rest(REST_MAX));
        device.now = Duration::ZERO;
        assert!(matches!(device.ask(), Next::Rest(_)));
    }
}
