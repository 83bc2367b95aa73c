//! Reads past the page cache.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use prepage_core::{PAGE_SIZE, PageRange};
use rustix::fs::{Mode, OFlags, open};

/// A file opened with O_DIRECT, and a buffer for it.
#[derive(Debug)]
pub struct DirectFile {
    file: File,
    /// Longer than what is read at once by a page, in which the aligned part lies.
    buffer: Vec<u8>,
}

impl DirectFile {
    /// Opens the file to read up to `pages_most` pages at once.
    ///
    /// # Errors
    /// EINVAL where the file system has no direct reads; what open(2) fails with.
    pub fn open(path: &Path, pages_most: u64) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
        let file = File::from(open(path, flags, Mode::empty())?);
        Ok(Self { file, buffer: vec![0; ((pages_most + 1) * PAGE_SIZE) as usize] })
    }

    /// Reads `pages`, by one system call for as many as fit the buffer.
    ///
    /// # Errors
    /// What pread(2) fails with; an end of the file before the last page.
    pub fn read(&mut self, pages: PageRange) -> io::Result<()> {
        let start = self.buffer.as_ptr().align_offset(PAGE_SIZE as usize);
        let most_bytes = self.buffer.len() as u64 - PAGE_SIZE;
        let (mut offset, end) = (pages.start().offset_bytes(), pages.end().offset_bytes());
        while offset < end {
            let len = (end - offset).min(most_bytes) as usize;
            let read = rustix::io::pread(self.file.as_fd(), &mut self.buffer[start..start + len], offset)?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            // The last page of a file may be short.
            offset += (read as u64).next_multiple_of(PAGE_SIZE);
        }
        Ok(())
    }
}
