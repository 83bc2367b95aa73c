//! Swap space for a test.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// A device in memory that the kernel swaps to while this lives. It goes with the process too, however that ends: a shell takes it away as soon as nobody can
/// write to it any more. Needs [`Need::Swap`](crate::Need::Swap).
#[derive(Debug)]
pub struct Swap(Child);

const HOLDS: &str = "number=$(cat /sys/class/zram-control/hot_add) || exit\n\
    device=/dev/zram$number\n\
    trap '' INT TERM HUP\n\
    trap 'swapoff $device; echo $number > /sys/class/zram-control/hot_remove' EXIT\n\
    echo $0 > /sys/block/zram$number/disksize && mkswap $device > /dev/null && swapon $device && echo on && read _";

impl Swap {
    /// Of so many bytes.
    ///
    /// # Panics
    /// When the kernel refuses it.
    pub fn on(bytes: u64) -> Self {
        let mut shell = Command::new("sh")
            .args(["-c", HOLDS, &bytes.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        let mut said = String::new();
        BufReader::new(shell.stdout.take().expect("piped")).read_line(&mut said).expect("a pipe can be read");
        let swap = Self(shell);
        assert_eq!(said, "on\n", "the kernel makes no swap space");
        swap
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Need, has};

    #[test]
    fn swap_space_is_there_as_long_as_it_is_held() {
        if !has(Need::Swap) {
            return;
        }
        let swaps = || std::fs::read_to_string("/proc/swaps").unwrap().lines().count();
        let before = swaps();
        let swap = Swap::on(16 << 20);
        assert_eq!(swaps(), before + 1);
        drop(swap);
        assert_eq!(swaps(), before);
    }
}
