//! Starts with many numbers of readers, sizes of holes read over and read-aheads of the kernel: how far to prefetch, and
//! what the kernel's own read-ahead does to it.

use std::path::PathBuf;

use prepage_sys::readahead::ReadAhead;
use serde::Serialize;

use crate::error::{BenchError, failed};
use crate::head_start::Tuning;
use crate::mode::Mode;
use crate::start::{Bench, Way};

/// What is tried: every combination.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// Readers at once.
    pub readers: Vec<u32>,
    /// Pages of a hole that is read over.
    pub holes: Vec<u64>,
    /// Read-aheads of the kernel.
    pub read_aheads: Vec<KernelReads>,
    /// The library that advises the program's reads, where one of the read-aheads asks for it.
    pub library: Option<PathBuf>,
}

/// How much the kernel reads ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KernelReads {
    /// The read-ahead of all disks in KiB; `None` as found.
    #[serde(rename = "read_ahead_kib")]
    pub kib: Option<u64>,
    /// Whether the program's files are read without it: POSIX_FADV_RANDOM and MADV_RANDOM.
    #[serde(rename = "advised_random")]
    pub random: bool,
}

impl std::fmt::Display for KernelReads {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.kib {
            Some(kib) => write!(out, "{kib} KiB")?,
            None => out.write_str("as found")?,
        }
        out.write_str(if self.random { ", random" } else { "" })
    }
}

/// One combination, and its starts. Without readers and holes: starts as the program is.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Point {
    /// The kernel's read-ahead.
    #[serde(flatten)]
    pub read_ahead: KernelReads,
    /// Readers at once, and pages of a hole that is read over.
    pub readers_and_holes: Option<(u32, u64)>,
    /// From before reading the profile to the end of the program, milliseconds; one entry a start.
    pub wall_ms: Vec<f64>,
    /// Pages that the prefetch asked for, holes that it reads over among them.
    pub requested_pages: Vec<u64>,
    /// What the disk of /usr was asked to read, bytes; `None` where it has none.
    pub disk_read_bytes: Vec<Option<u64>>,
    /// The same, requests.
    pub disk_reads: Vec<Option<u64>>,
    /// Faults of the program that read from the disk.
    pub disk_faults: Vec<u64>,
}

impl Sweep {
    /// The combinations, the starts without prefetch of each read-ahead first.
    pub fn points(&self) -> Vec<Point> {
        let point =
            |read_ahead, readers_and_holes| Point { read_ahead, readers_and_holes, ..Point::default() };
        let mut points = Vec::new();
        for &read_ahead in &self.read_aheads {
            points.push(point(read_ahead, None));
            for &readers in &self.readers {
                points.extend(self.holes.iter().map(|&holes| point(read_ahead, Some((readers, holes)))));
            }
        }
        points
    }

    /// Starts the program at every point, in an order that changes from round to round; the first round is thrown away.
    /// `tell` hears before each start what comes.
    ///
    /// To be called in a process with one thread, as [`Bench::start`].
    pub fn run(
        &self,
        bench: &mut Bench,
        rounds: u32,
        mut tell: impl FnMut(&str),
    ) -> Result<Vec<Point>, BenchError> {
        let mut points = self.points();
        let count = points.len();
        for round in 0..=rounds as usize {
            for turn in 0..count {
                let point = &mut points[(round + turn) % count];
                tell(&format!("round {round} of {rounds}: {}", point.name()));
                let way = match point.readers_and_holes {
                    None => Way::Plain,
                    readers_and_holes @ Some(_) => Way::Ahead {
                        tuning: Tuning { mode: Mode::Async, readers_and_holes },
                        early_fault: false,
                    },
                };
                bench.advise_random = self.library.clone().filter(|_| point.read_ahead.random);
                // In force until the start is over.
                let _read_ahead = point.read_ahead.kib.map(ReadAhead::set).transpose();
                let _read_ahead = _read_ahead.map_err(failed("the read-ahead cannot be set"))?;
                let measured = bench.start(&way)?;
                if round > 0 {
                    point.wall_ms.push(measured.wall_ns as f64 / 1e6);
                    point.requested_pages.push(measured.prefetched_pages);
                    point.disk_read_bytes.push(measured.disk_read_bytes);
                    point.disk_reads.push(measured.disk_reads);
                    point.disk_faults.push(measured.disk_faults);
                }
            }
        }
        Ok(points)
    }
}

impl Point {
    /// The name in progress lines.
    pub fn name(&self) -> String {
        let read_ahead = self.read_ahead;
        match self.readers_and_holes {
            None => format!("read-ahead {read_ahead}, no prefetch"),
            Some((readers, holes)) => {
                format!("read-ahead {read_ahead}, {readers} readers, holes of {holes} pages")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_is_a_point_and_each_read_ahead_has_one_without_prefetch() {
        let random = KernelReads { kib: Some(0), random: true };
        let read_aheads = vec![random, KernelReads::default()];
        let sweep = Sweep { readers: vec![8, 16], holes: vec![0, 2, 8], read_aheads, library: None };
        let points = sweep.points();
        assert_eq!(points.len(), 2 * (1 + 2 * 3));
        assert_eq!(points.iter().filter(|point| point.readers_and_holes.is_none()).count(), 2);
        assert_eq!(points[1].name(), "read-ahead 0 KiB, random, 8 readers, holes of 0 pages");
    }
}
