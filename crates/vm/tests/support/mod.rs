//! What the tests share.
#![allow(dead_code)]

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_vm::{Map, MapOptions, Mode, Object, Source, SourceError, Vm, VmOptions};

/// A word that tells where it stands.
pub fn word(offset_bytes: u64) -> u64 {
    (offset_bytes / 8 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// What every page holds.
pub fn page_bytes(page: u64) -> Vec<u8> {
    (0..PAGE_SIZE / 8).flat_map(|at| word(page * PAGE_SIZE + at * 8).to_le_bytes()).collect()
}

/// A file of such bytes.
pub fn file(len_bytes: u64) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let mut left = len_bytes;
    for page in 0..len_bytes.div_ceil(PAGE_SIZE) {
        let bytes = page_bytes(page);
        file.write_all(&bytes[..left.min(PAGE_SIZE) as usize]).unwrap();
        left = left.saturating_sub(PAGE_SIZE);
    }
    file
}

/// A source of such bytes that counts its reads.
#[derive(Default)]
pub struct Words {
    pub len_bytes: u64,
    pub reads: std::sync::Arc<AtomicU64>,
}

impl Source for Words {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn read(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), SourceError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let pages = PageRange::covering(offset_bytes, into.len() as u64);
        let bytes: Vec<u8> = pages.iter().flat_map(|page| page_bytes(page.0)).collect();
        into.copy_from_slice(&bytes[..into.len()]);
        Ok(())
    }
}

pub fn pages(start: u64, end: u64) -> PageRange {
    PageRange::new(PageIndex(start), PageIndex(end))
}

/// Reads the first word of the map's page number `page`, by touching it.
pub fn touch(map: &Map, page: u64) -> u64 {
    let at = (page * PAGE_SIZE) as usize;
    let slice = std::hint::black_box(map.as_slice());
    u64::from_le_bytes(slice[at..at + 8].try_into().unwrap())
}

/// Both ways of serving faults; says so where one is not permitted here.
pub fn modes(vm: &Vm, object: &Object) -> Vec<Mode> {
    [Mode::Inline, Mode::Handler]
        .into_iter()
        .filter(|&mode| match vm.map(object, &MapOptions::shared().mode(mode)) {
            Ok(_) => true,
            Err(error) => {
                eprintln!("SKIPPED for {mode:?}: {error}");
                false
            }
        })
        .collect()
}

pub fn vm() -> Vm {
    Vm::new(VmOptions::default()).unwrap()
}
