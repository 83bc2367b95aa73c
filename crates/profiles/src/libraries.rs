//! The shared libraries of a program before its loader asks for them.
//!
//! Looked for where ld.so(8) looks: the directories that the file itself names, the loader's cache, the usual
//! directories. What LD_LIBRARY_PATH and dlopen(3) bring in is not known beforehand. A wrong guess costs a read.

use std::fs;
use std::path::{Path, PathBuf};

use crate::elf::Links;

/// The cache that ldconfig(8) writes. Every dynamic program reads it.
const CACHE: &str = "/etc/ld.so.cache";
/// A cache of this size holds 100,000 libraries.
const CACHE_BYTES_MAX: u64 = 16 << 20;
const DIRECTORIES: [&str; 4] = ["/lib64", "/usr/lib64", "/lib", "/usr/lib"];

/// Magic of the only format that glibc writes since 2.32 (sysdeps/generic/dl-cache.h).
const MAGIC: &[u8; 20] = b"glibc-ld.so.cache1.1";
const HEADER_BYTES: usize = 48;
const ENTRY_BYTES: usize = 24;
/// Older ones write it behind the format before it, at a multiple of 8.
const OLD_MAGIC: &[u8] = b"ld.so-1.7.0";
const OLD_HEADER_BYTES: usize = 16;
const OLD_ENTRY_BYTES: usize = 12;

/// The loader's cache: the files that may be meant by each name, the loader's first choice first. It is searched as it is: of some thousand
/// names, a program asks for a few.
#[derive(Debug, Default)]
pub struct Cache {
    bytes: Vec<u8>,
    count: usize,
}

impl Cache {
    /// Reads it; empty where there is none, as with other C libraries.
    pub fn read() -> Self {
        let small = fs::metadata(CACHE).is_ok_and(|metadata| metadata.len() <= CACHE_BYTES_MAX);
        Self::parse(if small { fs::read(CACHE).unwrap_or_default() } else { Vec::new() })
    }

    fn parse(mut bytes: Vec<u8>) -> Self {
        if bytes.starts_with(OLD_MAGIC) {
            let entries = word(&bytes, OLD_HEADER_BYTES - 4).unwrap_or_default() as usize;
            let old_bytes = (OLD_HEADER_BYTES + entries * OLD_ENTRY_BYTES).next_multiple_of(8);
            // What the new format says of places in it counts from its own beginning.
            bytes.drain(..old_bytes.min(bytes.len()));
        }
        let count = if bytes.starts_with(MAGIC) { word(&bytes, 20).unwrap_or_default() as usize } else { 0 };
        Self { count: count.min(bytes.len() / ENTRY_BYTES), bytes }
    }

    /// The files that may be meant by the library `name`. They may be of other architectures.
    fn paths(&self, name: &str) -> Vec<PathBuf> {
        let bytes = &*self.bytes;
        let path = |at: usize| {
            let entry = HEADER_BYTES + at * ENTRY_BYTES;
            let found = bytes.get(word(bytes, entry + 4)? as usize..)?;
            // Where the name would end, few others do.
            let is_named = found.get(name.len()) == Some(&0) && found.starts_with(name.as_bytes());
            // Builds for newer processors come first and may not run on this one.
            let is_plain = is_named && bytes.get(entry + 16..entry + 24)? == [0; 8];
            if is_plain { text(bytes, word(bytes, entry + 8)?) } else { None }
        };
        (0..self.count).filter_map(path).map(PathBuf::from).collect()
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4).map(|bytes| u32::from_le_bytes(bytes.try_into().expect("four bytes")))
}

/// The text that begins at `at` and ends with a zero.
fn text(bytes: &[u8], at: u32) -> Option<&str> {
    /// No path is longer (PATH_MAX); a cache that lies costs no more.
    const BYTES_MAX: usize = 4096;
    let from = bytes.get(at as usize..)?;
    let end = from.iter().take(BYTES_MAX).position(|&byte| byte == 0)?;
    std::str::from_utf8(&from[..end]).ok()
}

/// The files that may be meant by the libraries `links` of the file in `directory`, one list a library, best first.
pub fn candidates(links: &Links, directory: &Path, cache: &Cache) -> Vec<Vec<PathBuf>> {
    let run_path: Vec<PathBuf> = links
        .run_path
        .iter()
        .flat_map(|path| path.split(':'))
        .map(|part| part.replace("${ORIGIN}", "$ORIGIN"))
        .map(|part| match part.strip_prefix("$ORIGIN") {
            Some(rest) => directory.join(rest.trim_start_matches('/')),
            None => PathBuf::from(part),
        })
        .filter(|path| path.is_absolute())
        .collect();
    let of_name = |name: &String| -> Vec<PathBuf> {
        if name.contains('/') {
            return vec![PathBuf::from(name)];
        }
        let named = run_path.iter().map(|directory| directory.join(name));
        let usual = DIRECTORIES.iter().map(|directory| Path::new(directory).join(name));
        named.chain(cache.paths(name)).chain(usual).filter(|path| path.is_absolute()).collect()
    };
    let interpreter = links.interpreter.iter().map(|path| vec![PathBuf::from(path)]);
    interpreter.chain(links.needed.iter().map(of_name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loaders_cache_knows_libc() {
        if !prepage_testing::has(prepage_testing::Need::Path(CACHE.into())) {
            return;
        }
        let cache = Cache::read();
        let found = cache.paths("libc.so.6");
        assert!(found.iter().any(|path| path.is_file()), "{found:?}");
        assert_eq!(cache.paths("no-such-library.so").len(), 0);
    }

    #[test]
    fn directories_the_file_names_come_first() {
        let links = Links {
            interpreter: Some("/lib/ld.so".into()),
            needed: vec!["liba.so".into(), "/opt/b/libb.so".into()],
            run_path: Some("$ORIGIN/../lib:/opt/lib:relative".into()),
        };
        let found = candidates(&links, Path::new("/opt/bin"), &Cache::default());
        assert_eq!(found[0], [Path::new("/lib/ld.so")]);
        assert_eq!(found[1][..2], [Path::new("/opt/bin/../lib/liba.so"), Path::new("/opt/lib/liba.so")]);
        assert_eq!(found[2], [Path::new("/opt/b/libb.so")]);
    }

    /// As ldconfig writes it on Ubuntu 20.04.
    #[test]
    fn a_cache_in_both_formats_is_read_in_the_new_one() {
        let new = {
            let mut new = [&MAGIC[..], &1u32.to_le_bytes(), &[0; HEADER_BYTES - 24]].concat();
            let names = (HEADER_BYTES + ENTRY_BYTES) as u32;
            for word in [1, names, names + 8, 0, 0, 0] {
                new.extend(u32::to_le_bytes(word));
            }
            new.extend(b"liba.so\0/opt/a/liba.so\0");
            new
        };
        // Of one entry, so that a gap is left between the two.
        let old = [OLD_MAGIC, &[0], &1u32.to_le_bytes(), &[0; OLD_ENTRY_BYTES], &[0; 4]].concat();
        for cache in [new.clone(), [old, new].concat()] {
            assert_eq!(Cache::parse(cache).paths("liba.so"), [Path::new("/opt/a/liba.so")]);
        }
    }

    #[test]
    fn a_cache_that_lies_is_no_trouble() {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&u32::MAX.to_le_bytes());
        bytes.extend_from_slice(&[0xff; 100]);
        let old = [OLD_MAGIC, &[0], &u32::MAX.to_le_bytes(), &bytes].concat();
        for lie in [bytes, old, OLD_MAGIC.to_vec()] {
            assert_eq!(Cache::parse(lie).paths("libc.so.6").len(), 0);
        }
    }
}
