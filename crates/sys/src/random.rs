//! Numbers that tell one host, start or file from another.

use std::time::SystemTime;

use prepage_core::random::SplitMix;
use rustix::rand::{GetRandomFlags, getrandom};

/// A number that no other call gives, in any process. No secret, so that nobody waits for it early in a boot.
pub fn random() -> u64 {
    let mut bytes = [0; 8];
    match getrandom(&mut bytes, GetRandomFlags::INSECURE) {
        Ok(8) => u64::from_ne_bytes(bytes),
        // Before Linux 5.6.
        _ => {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            SplitMix::new(now.as_nanos() as u64 ^ u64::from(std::process::id()) << 32).next()
        }
    }
}
