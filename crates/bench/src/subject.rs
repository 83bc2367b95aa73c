//! The file that is read, made cold or warm before each run.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use prepage_core::PAGE_SIZE;
use prepage_core::random::SplitMix;
use prepage_residency::evict::EvictedFile;
use prepage_residency::warm::WarmedFile;
use prepage_residency::{Spot, evict, warm};
use prepage_sys::device_number;

prepage_core::named! {
    /// What the cache holds of the file when a run begins.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Cache {
        /// Nothing.
        Cold = "cold",
        /// All of it.
        Warm = "warm",
    }
}

/// Why there is nothing to read, or not in the state it should be in.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubjectError {
    /// No file could be made in this directory.
    #[error("no file can be written in {}", .0.display())]
    Create(PathBuf, #[source] io::Error),
    /// The file cannot be read.
    #[error("{}", .0.display())]
    Read(PathBuf, #[source] io::Error),
    /// The file has no bytes.
    #[error("{} is empty", .0.display())]
    Empty(PathBuf),
    /// Pages stay in memory, so that no run is cold.
    #[error("{stay} of {pages} pages stay in memory: no run is cold")]
    NotCold {
        /// How many stay.
        stay: u64,
        /// Of how many.
        pages: u64,
        /// Whether the file's file system has no other place for them.
        in_memory_file_system: bool,
    },
    /// Not all pages come into memory, so that no run is warm.
    #[error("{absent} of {pages} pages are not in memory: no run is warm")]
    NotWarm {
        /// How many are missing.
        absent: u64,
        /// Of how many.
        pages: u64,
    },
    /// The kernel does not say which pages are in memory.
    #[error(
        "the kernel says whether a run is cold or warm only to the file's owner and those who may write it"
    )]
    Unknown,
}

impl SubjectError {
    /// What helps, as one line; `None` where nothing is known to.
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Create(..) => Some("--directory DIR, with a directory of yours on a disk with room"),
            Self::NotCold { in_memory_file_system: true, .. } => {
                Some("--directory DIR or a file on a disk, not one in memory (tmpfs)")
            }
            Self::NotCold { .. } => Some("end the programs that have the file mapped, or --cache warm"),
            Self::NotWarm { .. } => Some("a smaller --size, or less else in memory"),
            Self::Unknown => Some("a file of your own, or as root"),
            Self::Read { .. } | Self::Empty { .. } => None,
        }
    }
}

/// A file to read.
#[derive(Debug)]
pub struct Subject {
    /// Kept open: a file made here has no name, and is gone with the process however that ends.
    file: File,
    path: PathBuf,
    size_bytes: u64,
    byte_sum: u64,
}

impl Subject {
    /// Makes a file of `size_bytes` that cannot be compressed in `directory`.
    pub fn create(directory: &Path, size_bytes: u64) -> Result<Self, SubjectError> {
        let failed = |source| SubjectError::Create(directory.to_owned(), source);
        let mut file = tempfile::tempfile_in(directory).map_err(failed)?;
        let mut random = SplitMix::new(size_bytes);
        let mut left = size_bytes;
        while left > 0 {
            let words = (0..1 << 16).flat_map(|_| random.next().to_le_bytes());
            let part: Vec<u8> = words.take(left.min(1 << 19) as usize).collect();
            file.write_all(&part).map_err(failed)?;
            left -= part.len() as u64;
        }
        file.sync_all().map_err(failed)?;
        let path = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()));
        Ok(Self { file, ..Self::open(&path)? })
    }

    /// The file at `path`, which is only read.
    pub fn open(path: &Path) -> Result<Self, SubjectError> {
        let path = path.to_owned();
        let failed = |source| SubjectError::Read(path.clone(), source);
        let mut file = File::open(&path).map_err(failed)?;
        let (mut size_bytes, mut byte_sum) = (0, 0);
        let mut buffer = vec![0; 1 << 20];
        loop {
            match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => {
                    size_bytes += read as u64;
                    byte_sum += buffer[..read].iter().map(|&byte| u64::from(byte)).sum::<u64>();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(error)),
            }
        }
        if size_bytes == 0 {
            return Err(SubjectError::Empty(path));
        }
        Ok(Self { file, path, size_bytes, byte_sum })
    }

    /// A path under which other processes can open it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its size.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Its pages.
    pub fn pages(&self) -> u64 {
        self.size_bytes.div_ceil(PAGE_SIZE)
    }

    /// The sum of its bytes: whoever has read each once has the same.
    pub fn byte_sum(&self) -> u64 {
        self.byte_sum
    }

    /// Its device (`major << 20 | minor`, as in traces) and inode.
    pub fn inode(&self) -> io::Result<(u64, u64)> {
        let metadata = self.file.metadata()?;
        Ok((device_number::of_kernel(metadata.dev()), metadata.ino()))
    }

    /// Brings the cache into the state `cache`, and looks whether it is. Tries more than once: other programs read, and
    /// empty the caches.
    pub fn prepare(&self, cache: Cache) -> Result<(), SubjectError> {
        const TRIES: usize = 5;
        let mut result = self.try_to_prepare(cache);
        for _ in 1..TRIES {
            let again = matches!(result, Err(SubjectError::NotWarm { .. } | SubjectError::NotCold { .. }));
            if !again {
                break;
            }
            result = self.try_to_prepare(cache);
        }
        result
    }

    fn try_to_prepare(&self, cache: Cache) -> Result<(), SubjectError> {
        let spots = [Spot::file(&self.path)];
        let pages = self.pages();
        match cache {
            Cache::Cold => match evict(&spots).files.first() {
                Some(EvictedFile { after: Some(0), .. }) => Ok(()),
                Some(EvictedFile { after: Some(stay), stay: why, .. }) => {
                    let in_memory_file_system = why.as_ref().is_some_and(|why| why.in_memory_file_system);
                    Err(SubjectError::NotCold { stay: *stay, pages, in_memory_file_system })
                }
                _ => Err(SubjectError::Unknown),
            },
            // Read anew, piece by piece: how the last run had it read (in folios of many pages or of one) would decide how
            // many pages a fault maps.
            Cache::Warm => match (evict(&spots), warm(&spots, None)).1.files.first() {
                // Holes have no pages to bring in.
                Some(&WarmedFile { after: Some(after), pages, .. }) if after == pages => Ok(()),
                Some(&WarmedFile { after: Some(after), pages, .. }) => {
                    Err(SubjectError::NotWarm { absent: pages - after, pages })
                }
                _ => Err(SubjectError::Unknown),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::access;
    use prepage_simulate::pattern::Pattern;

    #[test]
    fn every_pattern_reads_every_byte_of_it() {
        let subject = Subject::create(Path::new(env!("CARGO_MANIFEST_DIR")), 3 * PAGE_SIZE + 17).unwrap();
        assert_eq!((subject.size_bytes(), subject.pages()), (3 * PAGE_SIZE + 17, 4));
        for pattern in Pattern::STUDY {
            assert_eq!(access(subject.path(), pattern, 7).unwrap(), subject.byte_sum(), "{pattern}");
        }
    }

    #[test]
    fn a_file_with_holes_can_be_made_warm() {
        let mut file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all(&[7; PAGE_SIZE as usize]).unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let subject = Subject::open(file.path()).unwrap();
        subject.prepare(Cache::Warm).unwrap();
    }

    #[test]
    fn a_directory_in_memory_is_told_to_be_of_no_use_for_cold_runs() {
        if !prepage_testing::has(prepage_testing::Need::Path("/dev/shm".into())) {
            return;
        }
        let subject = Subject::create(Path::new("/dev/shm"), 2 * PAGE_SIZE).unwrap();
        let error = subject.prepare(Cache::Cold).unwrap_err();
        assert!(error.remedy().unwrap().contains("tmpfs"), "{error}");
        assert!(subject.prepare(Cache::Warm).is_ok());
    }

    #[test]
    fn what_is_no_file_is_told() {
        assert!(matches!(Subject::open(Path::new("/no/such")), Err(SubjectError::Read(..))));
        assert!(matches!(Subject::open(Path::new("/dev/null")), Err(SubjectError::Empty(..))));
        assert!(matches!(Subject::create(Path::new("/proc"), 1), Err(SubjectError::Create(..))));
    }
}
