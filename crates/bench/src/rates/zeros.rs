//! How many new pages of zeros memory gives a second, and how fast memory itself is.

use std::io;
use std::thread;

use prepage_core::PAGE_SIZE;
use prepage_sys::region::{Contents, Region};
use prepage_vm::{MapOptions, Vm};

use super::seconds;
use crate::error::BenchError;

/// How often each byte is written to measure memory itself.
const PASSES: u32 = 4;

/// Pages a second that `threads` threads touch first, of `bytes` bytes of anonymous memory of the kernel's 4 KiB pages.
///
/// # Errors
/// When there is no such memory.
pub fn of_kernel(bytes: u64, threads: usize) -> io::Result<f64> {
    Ok(touched(Region::map(bytes, Contents::Anonymous)?.as_mut_slice(), threads))
}

/// The same of an anonymous object of the user-space VM, in clusters of `cluster` pages.
///
/// # Errors
/// When the VM cannot map it.
pub fn of_vm(vm: &Vm, bytes: u64, threads: usize, cluster: u64) -> Result<f64, BenchError> {
    let object = vm.anonymous(bytes)?;
    let mut map = vm.map(&object, &MapOptions::private().zero_cluster(cluster))?;
    Ok(touched(map.as_mut_slice(), threads))
}

/// Pages a second that `threads` threads overwrite, of memory they have already: no one can clear pages faster.
///
/// # Errors
/// When there is no such memory.
pub fn bound(bytes: u64, threads: usize) -> io::Result<f64> {
    let mut region = Region::map(bytes, Contents::Anonymous)?;
    let memory = region.as_mut_slice();
    touched(memory, threads);
    let took = seconds(|| {
        on_threads(memory, threads, |part| {
            for pass in 0..PASSES {
                std::hint::black_box(&mut *part).fill(pass as u8);
            }
        });
    });
    Ok(f64::from(PASSES) * (bytes / PAGE_SIZE) as f64 / took)
}

/// Pages a second that are written to once, by `threads` threads.
fn touched(memory: &mut [u8], threads: usize) -> f64 {
    let pages = memory.len() as u64 / PAGE_SIZE;
    let took = seconds(|| {
        on_threads(memory, threads, |part| {
            for page in part.chunks_mut(PAGE_SIZE as usize) {
                std::hint::black_box(page)[0] = 1;
            }
        });
    });
    pages as f64 / took
}

/// Gives each of `threads` threads some whole pages of `memory`.
fn on_threads(memory: &mut [u8], threads: usize, work: impl Fn(&mut [u8]) + Copy + Send) {
    let pages = memory.len().div_ceil(PAGE_SIZE as usize);
    let part = pages.div_ceil(threads) * PAGE_SIZE as usize;
    thread::scope(|scope| {
        for part in memory.chunks_mut(part) {
            scope.spawn(move || work(part));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_touched_by_one_thread() {
        let mut region = Region::map(1 << 20, Contents::Anonymous).expect("memory");
        assert!(touched(region.as_mut_slice(), 3) > 0.0);
        let written = region.as_slice().iter().filter(|&&byte| byte == 1).count();
        assert_eq!(written, 256);
        assert!(of_kernel(1 << 20, 2).expect("memory") > 0.0 && bound(1 << 20, 2).expect("memory") > 0.0);
    }
}
