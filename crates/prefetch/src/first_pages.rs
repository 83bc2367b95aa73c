//! What every program needs first, whoever knows it: brought in while `prepage run` waits for word.
//!
//! From a cold disk that takes a millisecond or two, for profiles are looked up meanwhile. The kernel then reads the program's head, the loader that
//! it names and what the loader begins with, one after the other.

use std::num::NonZeroU64;
use std::path::Path;

use prepage_core::PageIndex;
use prepage_profiles::elf::Elf;
use prepage_trace::build_id::open_regular;
use rustix::fs::Advice;

use crate::resident::is_resident;

/// What one call is sure to load: of the program its head, with the tables of symbols and relocations, and of a loader most.
const BYTES: NonZeroU64 = NonZeroU64::new(128 << 10).expect("it is not 0");

/// Where glibc's loader finds libraries.
const LOADER_CACHE: &str = "/etc/ld.so.cache";

/// Asks for the head of `program`, and where that names a loader, for the loader and its cache. Waits for nothing that the start of the
/// program would not wait for. Where the head is in memory, so is the rest, mostly.
pub(crate) fn ask_for(program: &Path) {
    let Ok((file, _)) = open_regular(program) else { return };
    if is_resident(&file, PageIndex(0)) {
        return;
    }
    let ask = |file: &std::fs::File| _ = rustix::fs::fadvise(file, 0, Some(BYTES), Advice::WillNeed);
    ask(&file);
    let loader = Elf::parse(&file).and_then(|elf| elf.interpreter(&file));
    let Ok(Some(loader)) = loader else { return };
    for path in [&loader, LOADER_CACHE] {
        if let Ok((file, _)) = open_regular(Path::new(path)) {
            ask(&file);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::process::Command;
    use std::time::{Duration, Instant};

    use prepage_core::PageRange;
    use prepage_sys::cachestat::{cached_pages, evict};
    use prepage_testing::{Need, has};

    use super::*;

    #[test]
    fn the_head_of_a_program_and_its_loader_are_asked_for() {
        if !has(Need::Eviction(env!("CARGO_MANIFEST_DIR").into())) || !has(Need::Tool("cc".into())) {
            return;
        }
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let [source, program, loader] = ["program.c", "program", "loader"].map(|name| dir.path().join(name));
        std::fs::write(&source, "int main(void) { return 0; }").unwrap();
        std::fs::write(&loader, vec![1; 100 << 10]).unwrap();
        let named = format!("-Wl,--dynamic-linker={}", loader.display());
        assert!(
            Command::new("cc").arg("-o").args([&program, &source]).arg(named).status().unwrap().success()
        );
        let files = [&program, &loader].map(|path| File::open(path).unwrap());
        let missing = |file: &File| {
            let pages = PageRange::covering(0, file.metadata().unwrap().len());
            pages.len() - cached_pages(file.as_fd(), pages).unwrap()
        };
        for file in &files {
            file.sync_all().unwrap();
            evict(file.as_fd(), Duration::from_secs(1)).unwrap();
        }
        ask_for(&program);
        let since = Instant::now();
        while files.iter().any(|file| missing(file) > 0) {
            assert!(
                since.elapsed() < Duration::from_secs(10),
                "{:?} pages missing",
                files.each_ref().map(missing)
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        // A warm start asks for nothing.
        evict(files[1].as_fd(), Duration::from_secs(1)).unwrap();
        ask_for(&program);
        assert!(missing(&files[1]) > 0);
        // What is no program is passed over.
        ask_for(&source);
        ask_for(dir.path());
        ask_for(Path::new("/no/such/program"));
    }
}
