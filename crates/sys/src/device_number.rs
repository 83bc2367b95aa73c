//! Numbers of devices: stat(2) encodes them in one way (`st_dev`), the kernel itself in another (`major << 20 | minor`: its events, its lists of
//! mounts and mappings, traces).

use rustix::fs::{major, makedev, minor};

/// The kernel's own number of the device that stat(2) calls `device`.
pub fn of_kernel(device: u64) -> u64 {
    u64::from(major(device)) << 20 | u64::from(minor(device))
}

/// The number by which stat(2) calls the device that the kernel itself calls `device`.
pub fn of_stat(device: u64) -> u64 {
    makedev((device >> 20) as u32, (device & 0xf_ffff) as u32)
}

/// `major:minor` of the device that stat(2) calls `device`.
pub fn name(device: u64) -> String {
    format!("{}:{}", major(device), minor(device))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_says_the_same() {
        for (number, said) in [(0, "0:0"), (259 << 20 | 3, "259:3"), (0xfff << 20 | 0xf_ffff, "4095:1048575")]
        {
            assert_eq!((of_kernel(of_stat(number)), &*name(of_stat(number))), (number, said));
        }
    }
}
