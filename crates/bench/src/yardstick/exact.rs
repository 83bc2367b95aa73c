//! The conditions under which every first touch of a file's page shows as a fault of its own.
//!
//! Read-ahead brings in pages nobody asked for and fault-around maps those without a fault. With the read-ahead 0 and the
//! caches dropped, only pages that were touched are resident, so that there is nothing around a fault to be mapped along,
//! but for what other programs keep in memory by having it mapped.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;

use prepage_core::{ExactFacts, PageRange};
use prepage_sys::cachestat::cached_pages;

use prepage_prefetch::cold::drop_caches;
use prepage_sys::readahead::ReadAhead;

/// The conditions cannot be made. Nothing stays changed then.
#[derive(Debug, thiserror::Error)]
#[error("touches cannot be recorded exactly: this user may not change the read-ahead and drop the caches")]
pub struct ExactError(#[source] io::Error);

/// The conditions, until this is dropped.
#[derive(Debug)]
pub struct Exact {
    /// What is resident nevertheless.
    pub facts: ExactFacts,
    _restored_when_dropped: ReadAhead,
}

impl Exact {
    /// Sets the read-ahead of all devices to 0 and drops all caches. Only root may.
    ///
    /// To be called while the process has one thread.
    ///
    /// # Errors
    /// When either is not allowed.
    pub fn begin() -> Result<Self, ExactError> {
        let restored_when_dropped = ReadAhead::set(0).map_err(ExactError)?;
        drop_caches().map_err(ExactError)?;
        Ok(Self {
            facts: ExactFacts { resident_pages: resident(), ..ExactFacts::default() },
            _restored_when_dropped: restored_when_dropped,
        })
    }
}

/// The files that running programs have mapped, with the number of their pages that are in memory.
fn resident() -> Vec<(String, u64)> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let maps = processes.filter_map(|process| fs::read_to_string(process.path().join("maps")).ok());
    let paths: BTreeSet<String> = maps
        .flat_map(|maps| {
            let path = |line: &str| line.find('/').map(|start| line[start..].to_owned());
            maps.lines().filter_map(path).collect::<Vec<_>>()
        })
        .collect();
    let pages = |path: String| {
        // Devices are mapped too, and some do something when they are opened.
        fs::metadata(&path).ok().filter(fs::Metadata::is_file)?;
        let file = File::open(&path).ok()?;
        let len = file.metadata().ok().filter(fs::Metadata::is_file)?.len();
        let pages = cached_pages(file.as_fd(), PageRange::covering(0, len)).ok()?;
        (pages > 0).then_some((path, pages))
    };
    paths.into_iter().filter_map(pages).collect()
}
