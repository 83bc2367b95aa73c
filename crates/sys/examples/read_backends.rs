//! Ways to bring the same reads into memory, compared: time and processor time of each, from a cold cache, in turns.
//!
//! ```text
//! print_plan PROFILE_FILE | read_backends ROUNDS
//! ```
//! Lines of offset, length and path come in. Each round evicts the files (POSIX_FADV_DONTNEED) before each way. The
//! product has one of these ways; the others are here to be compared with it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use prepage_sys::processor_time::of_this_process;

/// One read.
struct Piece {
    file: usize,
    offset: u64,
    bytes: usize,
}

struct Reads {
    files: Vec<File>,
    pieces: Vec<Piece>,
}

type Way = fn(&Reads, usize);

const LONGEST_BYTES: usize = 1 << 20;

fn main() -> io::Result<()> {
    let rounds: usize = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(5);
    let reads = parse()?;
    let megabytes = reads.pieces.iter().map(|piece| piece.bytes).sum::<usize>() as f64 / 1e6;
    println!(
        "{} reads of {} files, {megabytes:.1} MB, medians of {rounds}",
        reads.pieces.len(),
        reads.files.len()
    );
    let ways: [(&str, Way, usize); 11] = [
        ("WILLNEED, then one byte; 8 threads", willneed_and_wait, 8),
        ("WILLNEED, then one byte; 16 threads", willneed_and_wait, 16),
        ("WILLNEED, then one byte; 32 threads", willneed_and_wait, 32),
        ("pread of all; 16 threads", pread, 16),
        ("pread of all; 32 threads", pread, 32),
        ("readahead(2), then one byte; 16 threads", readahead_and_wait, 16),
        ("WILLNEED of everything, then wait; 16 threads", willneed_all, 16),
        ("MADV_POPULATE_READ; 16 threads", populate, 16),
        ("io_uring reads; 1 thread, 16 at once", uring, 16),
        ("io_uring reads; 1 thread, 32 at once", uring, 32),
        ("io_uring reads; 1 thread, 64 at once", uring, 64),
    ];
    let mut taken: Vec<Vec<(f64, f64)>> = vec![Vec::new(); ways.len()];
    for round in 0..=rounds {
        for turn in 0..ways.len() {
            let at = (round + turn) % ways.len();
            for file in &reads.files {
                advise(file, 0, 0, libc::POSIX_FADV_DONTNEED);
            }
            let (began, cpu) = (Instant::now(), of_this_process());
            ways[at].1(&reads, ways[at].2);
            // The first round finds memory that was never used, and is slow for that.
            if round > 0 {
                let cpu = of_this_process().saturating_sub(cpu);
                taken[at].push((began.elapsed().as_secs_f64() * 1e3, cpu.as_secs_f64() * 1e3));
            }
        }
    }
    println!("{:48} {:>8} {:>8} {:>8}", "", "ms", "MB/s", "CPU ms");
    for ((name, _, _), taken) in ways.iter().zip(&taken) {
        let wall_ms = median(taken.iter().map(|pair| pair.0));
        let cpu_ms = median(taken.iter().map(|pair| pair.1));
        println!("{name:48} {wall_ms:8.1} {:8.0} {cpu_ms:8.1}", megabytes / wall_ms * 1e3);
    }
    Ok(())
}

fn parse() -> io::Result<Reads> {
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    let (mut files, mut places) = (Vec::new(), BTreeMap::new());
    let mut pieces = Vec::new();
    for line in text.lines() {
        let mut words = line.splitn(3, ' ');
        let (Some(offset), Some(bytes), Some(path)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let (Ok(offset), Ok(bytes)) = (offset.parse(), bytes.parse::<usize>()) else { continue };
        let file = match places.get(path) {
            Some(&file) => file,
            None => {
                let Ok(file) = File::open(path) else { continue };
                advise(&file, 0, 0, libc::POSIX_FADV_RANDOM);
                files.push(file);
                places.insert(path.to_owned(), files.len() - 1);
                files.len() - 1
            }
        };
        pieces.push(Piece { file, offset, bytes: bytes.min(LONGEST_BYTES) });
    }
    if pieces.is_empty() {
        Err(io::Error::other("no reads on standard input"))
    } else {
        Ok(Reads { files, pieces })
    }
}

fn advise(file: &File, offset: u64, bytes: usize, advice: i32) {
    // SAFETY: takes numbers only, and the descriptor is open.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), offset as i64, bytes as i64, advice) };
}

/// Waits for a read that is under way.
fn last_byte(file: &File, piece: &Piece) {
    // Behind the end of the file there is nothing to wait for.
    let _ = file.read_at(&mut [0], piece.offset + piece.bytes as u64 - 4096);
}

fn by_threads(reads: &Reads, threads: usize, work: impl Fn(&File, &Piece, &mut [u8]) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut buffer = vec![0; 128 << 10];
                while let Some(piece) = reads.pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
                    work(&reads.files[piece.file], piece, &mut buffer);
                }
            });
        }
    });
}

fn willneed_and_wait(reads: &Reads, threads: usize) {
    by_threads(reads, threads, |file, piece, _| {
        advise(file, piece.offset, piece.bytes, libc::POSIX_FADV_WILLNEED);
        last_byte(file, piece);
    });
}

fn readahead_and_wait(reads: &Reads, threads: usize) {
    by_threads(reads, threads, |file, piece, _| {
        // SAFETY: takes numbers only, and the descriptor is open.
        unsafe { libc::readahead(file.as_raw_fd(), piece.offset as i64, piece.bytes) };
        last_byte(file, piece);
    });
}

fn pread(reads: &Reads, threads: usize) {
    by_threads(reads, threads, |file, piece, buffer| {
        let len = piece.bytes.min(buffer.len());
        let _ = file.read_at(&mut buffer[..len], piece.offset);
    });
}

fn willneed_all(reads: &Reads, threads: usize) {
    by_threads(reads, threads, |file, piece, _| {
        advise(file, piece.offset, piece.bytes, libc::POSIX_FADV_WILLNEED);
    });
    by_threads(reads, threads, |file, piece, _| last_byte(file, piece));
}

fn populate(reads: &Reads, threads: usize) {
    by_threads(reads, threads, |file, piece, _| {
        let fd = file.as_raw_fd();
        // SAFETY: a mapping of our own, at an address that the kernel chooses, only populated and unmapped again.
        unsafe {
            let flags = libc::MAP_SHARED;
            let at = libc::mmap(
                std::ptr::null_mut(),
                piece.bytes,
                libc::PROT_READ,
                flags,
                fd,
                piece.offset as i64,
            );
            if at != libc::MAP_FAILED {
                libc::madvise(at, piece.bytes, libc::MADV_POPULATE_READ);
                libc::munmap(at, piece.bytes);
            }
        }
    });
}

fn uring(reads: &Reads, depth: usize) {
    let mut ring = io_uring::IoUring::new(depth as u32).expect("io_uring is allowed here");
    let mut buffers = vec![vec![0u8; 128 << 10]; depth];
    let (mut next, mut under_way) = (0, 0);
    let mut free: Vec<usize> = (0..depth).collect();
    while next < reads.pieces.len() || under_way > 0 {
        while let Some(slot) = free.pop_if(|_| next < reads.pieces.len()) {
            let piece = &reads.pieces[next];
            let buffer = &mut buffers[slot];
            let len = piece.bytes.min(buffer.len()) as u32;
            let file = io_uring::types::Fd(reads.files[piece.file].as_raw_fd());
            let read = io_uring::opcode::Read::new(file, buffer.as_mut_ptr(), len).offset(piece.offset);
            // SAFETY: the buffer of this slot lives until the ring is empty, and nothing else uses it meanwhile.
            unsafe {
                ring.submission().push(&read.build().user_data(slot as u64)).expect("there is a free entry")
            };
            next += 1;
            under_way += 1;
        }
        ring.submit_and_wait(1).expect("the ring works");
        for done in ring.completion() {
            free.push(done.user_data() as usize);
            under_way -= 1;
        }
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}
