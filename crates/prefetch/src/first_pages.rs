//! What every program needs first, whoever knows it: brought in while `prepage run` waits for word.
//!
//! From a cold disk that takes a millisecond or two, for profiles are looked up meanwhile. The kernel then reads the program's head, the loader that
//! it names and what the loader begins with, one after the other.

use std::fs::File;
use std::num::NonZeroU64;
use std::path::Path;

use prepage_core::PageIndex;
use prepage_profiles::elf::Elf;
use prepage_profiles::script::interpreters;
use prepage_sys::regular_file;
use rustix::fs::Advice;

use crate::resident::is_resident;

/// What one call is sure to load: of the program its head, with the tables of symbols and relocations.
const BYTES: NonZeroU64 = NonZeroU64::new(128 << 10).expect("it is not 0");

/// Calls for a loader: of glibc's, which takes 210 KiB, an observer reads the table at its end before the program goes.
const LOADER_CALLS: u64 = 2;

/// Which loader most programs name.
#[cfg(target_arch = "x86_64")]
pub(crate) const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";
#[cfg(target_arch = "aarch64")]
pub(crate) const LOADER: &str = "/lib/ld-linux-aarch64.so.1";

/// Where glibc's loader finds libraries.
pub(crate) const LOADER_CACHE: &str = "/etc/ld.so.cache";

/// As deep as the kernel goes (fs/exec.c).
const SCRIPTS_DEEP: u32 = 4;

/// Asks for the head of `program`, and where that names a loader, for the loader and its cache; of a script, for those of its interpreter,
/// and of the program that env(1) is to look for. Waits for nothing that the start of the program would not wait for. Where the head is in memory,
/// so is the rest, mostly.
pub(crate) fn ask_for(program: &Path) {
    ask_for_at(program, 0);
}

fn ask_for_at(program: &Path, depth: u32) {
    let Ok((file, _)) = regular_file::open(program) else { return };
    let is_there = is_resident(&file, PageIndex(0));
    let ask = |file: &File, calls: u64| {
        for at in 0..calls {
            let _ = rustix::fs::fadvise(file, at * BYTES.get(), Some(BYTES), Advice::WillNeed);
        }
    };
    if !is_there {
        ask(&file, 1);
    }
    let interpreters = interpreters(&file);
    if depth < SCRIPTS_DEEP {
        interpreters.iter().for_each(|interpreter| ask_for_at(interpreter, depth + 1));
    }
    if is_there || !interpreters.is_empty() {
        return;
    }
    let loader = Elf::parse(&file).and_then(|elf| elf.interpreter(&file));
    let Ok(Some(loader)) = loader else { return };
    for (path, calls) in [(&*loader, LOADER_CALLS), (LOADER_CACHE, 1)] {
        if let Ok((file, _)) = regular_file::open(Path::new(path)) {
            ask(&file, calls);
        }
    }
}

#[cfg(test)]
mod tests {
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
        std::fs::write(&loader, vec![1; 240 << 10]).unwrap();
        let named = format!("-Wl,--dynamic-linker={}", loader.display());
        assert!(
            Command::new("cc").arg("-o").args([&program, &source]).arg(named).status().unwrap().success()
        );
        let files = [&program, &loader].map(|path| File::open(path).unwrap());
        let missing = |file: &File| {
            let pages = PageRange::covering(0, file.metadata().unwrap().len());
            pages.len() - cached_pages(file.as_fd(), pages).unwrap()
        };
        // Scripts, which may be in memory themselves.
        let script = |name: &str, text: String| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let direct = script("direct", format!("#! {} -x\n", program.display()));
        let through = script("through", format!("#!/usr/bin/env {}\n", program.display()));
        let nested = script("nested", format!("#!{}", through.display()));
        let itself = script("itself", format!("#!{}\n", dir.path().join("itself").display()));
        for asked in [&program, &direct, &through, &nested] {
            for file in &files {
                file.sync_all().unwrap();
                evict(file.as_fd(), Duration::from_secs(60)).unwrap();
            }
            ask_for(asked);
            let since = Instant::now();
            while files.iter().any(|file| missing(file) > 0) {
                assert!(
                    since.elapsed() < Duration::from_secs(60),
                    "{}: {:?} pages missing",
                    asked.display(),
                    files.each_ref().map(missing)
                );
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        ask_for(&itself);
        // A warm start asks for nothing.
        evict(files[1].as_fd(), Duration::from_secs(60)).unwrap();
        ask_for(&program);
        assert!(missing(&files[1]) > 0);
        // What is no program is passed over.
        ask_for(&source);
        ask_for(dir.path());
        ask_for(Path::new("/no/such/program"));
    }
}
