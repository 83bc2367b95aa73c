//! How far the machine's time zone is from UTC.

use std::mem::MaybeUninit;

unsafe extern "C" {
    /// tzset(3): looks at `TZ` and /etc/localtime, which somebody may have changed since.
    fn tzset();
}

/// Seconds that clocks on the wall are ahead of UTC at `unix_s`, in the zone of this process: `TZ`, else /etc/localtime. Zero where
/// there is none.
pub fn utc_offset_s(unix_s: u64) -> i64 {
    // As wide as `time_t` is, whose name is to change its meaning for musl.
    let Ok(time) = unix_s.try_into() else { return 0 };
    let mut wall = MaybeUninit::<libc::tm>::zeroed();
    // SAFETY: tzset takes nothing, locks what it changes, and reads the environment, which no part of this workspace changes while
    // threads run; localtime_r reads the number and fills the structure, or returns null and leaves zeros.
    let is_known = unsafe {
        tzset();
        !libc::localtime_r(&time, wall.as_mut_ptr()).is_null()
    };
    // SAFETY: zeros are a valid value of the structure, whose zone alone is a pointer.
    let wall = unsafe { wall.assume_init() };
    if is_known { wall.tm_gmtoff } else { 0 }
}

#[cfg(test)]
mod tests {
    use prepage_testing::{child_command, child_output, this_test};

    use super::*;

    const ASKED: &str = "PREPAGE_TEST_UTC_OFFSET";

    /// The environment belongs to the whole process: another one has the zones.
    #[test]
    fn the_zone_is_that_of_the_environment_with_its_summer_time() {
        if let Ok(unix_s) = std::env::var(ASKED) {
            // Not on a line with what the test harness says.
            println!("\noffset {}\n", utc_offset_s(unix_s.parse().unwrap()));
            return;
        }
        const JANUARY: u64 = 1_768_478_400;
        const JULY: u64 = 1_784_116_800;
        // Zones that name their rules themselves need no database (tzset(3)); signs are the other way round.
        for (zone, unix_s, expected) in [
            ("UTC0", JULY, 0),
            ("IST-5:30", JANUARY, 19_800),
            ("CET-1CEST,M3.5.0,M10.5.0/3", JANUARY, 3600),
            ("CET-1CEST,M3.5.0,M10.5.0/3", JULY, 7200),
            ("EST5EDT,M3.2.0,M11.1.0", JULY, -14_400),
        ] {
            let mut child = child_command(&this_test(), &[]);
            let output = child_output(child.env("TZ", zone).env(ASKED, unix_s.to_string()));
            let text = String::from_utf8(output.stdout).unwrap();
            let offset = text.lines().find_map(|line| line.strip_prefix("offset "));
            assert_eq!(offset, Some(expected.to_string().as_str()), "{zone} {text}");
        }
    }
}
