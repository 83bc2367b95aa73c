//! Page maps in copies of real programs: they run as before, and exactly the pages of their maps come in.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use prepage_core::profile::Profile;
use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_profiles::carried::{MapError, Search};
use prepage_profiles::elf::Elf;
use prepage_profiles::embed::{EmbedError, embed, read_embedded, strip, write_beside};
use prepage_profiles::identity::profiled;
use prepage_profiles::section::SectionError;
use prepage_profiles::sidecar::Sidecars;
use prepage_profiles::{StartContextPaths, Stores};
use prepage_testing::{Need, has, skip};

/// A directory on a disk: the system's temporary one may be in memory.
fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    // What lies beside files is of those that everybody may read.
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    directory
}

/// A copy of the program or library at `path`; `None` where there is none.
fn copy(directory: &Path, path: &str) -> Option<PathBuf> {
    let from = Path::new(path).canonicalize().ok()?;
    let to = directory.join(Path::new(path).file_name()?);
    fs::copy(from, &to).ok()?;
    File::open(&to).unwrap().sync_all().unwrap();
    Some(to)
}

/// A profile that knows these pages of the file at `path`.
fn profile(path: &Path, pages: &[u64]) -> Profile {
    Profile { files: vec![profiled(path, pages.iter().copied()).unwrap()], ..Profile::default() }
}

/// What `command` gives. While other tests of this process start programs, these hold for a moment what this one has open.
fn output(command: &mut Command) -> (Option<i32>, Vec<u8>, Vec<u8>) {
    loop {
        match command.output() {
            Ok(output) => return (output.status.code(), output.stdout, output.stderr),
            Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => std::thread::yield_now(),
            Err(error) => panic!("{command:?}: {error}"),
        }
    }
}

/// What readelf says of the loaded part; nothing, counted as a skip, where there is no readelf.
fn loaded_part(path: &Path) -> Vec<u8> {
    if !has(Need::Tool("readelf".into())) {
        return Vec::new();
    }
    Command::new("readelf").arg("-lW").arg(path).output().unwrap().stdout
}

/// Embeds into `path`, compares what `run` gives before, with the map and after it was taken out.
fn runs_as_before(path: &Path, run: impl Fn() -> (Option<i32>, Vec<u8>, Vec<u8>)) {
    let original = fs::read(path).unwrap();
    let before = run();
    let loaded = loaded_part(path);
    let embedded = embed(path, &[profile(path, &[0, 2])]).unwrap();
    assert!(embedded.replaced.is_some(), "{}", path.display());
    assert_eq!(embedded.after.size_bytes - embedded.before.size_bytes, {
        fs::metadata(path).unwrap().len() - original.len() as u64
    });
    assert_eq!(run(), before, "{}", path.display());
    assert_eq!(loaded_part(path), loaded);
    let (_, map) = read_embedded(path).unwrap();
    assert_eq!(map.unwrap().pages(), 2);
    let again = embed(path, &[profile(path, &[0, 2])]).unwrap();
    assert!(again.replaced.is_none(), "the same map is not written again");
    strip(path).unwrap();
    assert_eq!(fs::read(path).unwrap(), original, "{}", path.display());
}

#[test]
fn programs_run_as_before() {
    let dir = directory();
    let programs: [(&str, &[&str]); 4] = [
        ("/usr/bin/ls", &["-l", "/etc/passwd"]),
        ("/usr/bin/python3", &["-c", "import json, sys; print(sys.version)"]),
        ("/bin/sh", &["-c", "echo $0; exit 7"]),
        ("/usr/bin/perl", &["-e", "print 6 * 7"]),
    ];
    for (program, args) in programs {
        match copy(dir.path(), program) {
            Some(path) => runs_as_before(&path, || output(Command::new(&path).args(args))),
            None => skip(Need::Path(program.into()), "it cannot be copied"),
        }
    }
    let compiler = Command::new("gcc").arg("-print-prog-name=cc1").output();
    let cc1 = compiler.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    match cc1.ok().and_then(|cc1| copy(dir.path(), &cc1)) {
        Some(path) => {
            let source = dir.path().join("a.c");
            fs::write(&source, "int main(void) { return 42; }\n").unwrap();
            runs_as_before(&path, || output(Command::new(&path).arg(&source).args(["-quiet", "-o", "-"])));
        }
        None => skip(Need::Tool("gcc".into()), "no cc1"),
    }
}

#[test]
fn libraries_with_thread_local_storage_are_loaded_as_before() {
    let dir = directory();
    let cache = fs::read_to_string("/proc/self/maps").unwrap();
    let libc =
        cache.lines().find_map(|line| line.split_whitespace().nth(5).filter(|p| p.contains("/libc.so")));
    let Some(path) = libc.and_then(|libc| copy(dir.path(), libc)) else {
        panic!("this test has no libc.so mapped");
    };
    let elf = Elf::parse(&File::open(&path).unwrap()).unwrap();
    let kinds: BTreeSet<u32> = elf.segments.iter().map(|segment| segment.kind).collect();
    assert!(kinds.contains(&7) && kinds.contains(&4) && kinds.contains(&0x6474_e552), "TLS, notes, RELRO");
    runs_as_before(&path, || {
        output(Command::new("/usr/bin/ls").args(["-d", "/"]).env("LD_LIBRARY_PATH", dir.path()))
    });
}

#[test]
fn static_programs_stripped_and_not_run_as_before() {
    let dir = directory();
    let source = dir.path().join("main.rs");
    fs::write(&source, "fn main() { println!(\"{:?}\", std::env::args().nth(1)); }").unwrap();
    for (name, options) in [
        ("static-pie", &["-Ctarget-feature=+crt-static"][..]),
        ("fixed", &["-Ctarget-feature=+crt-static", "-Crelocation-model=static", "-Cstrip=symbols"][..]),
    ] {
        let path = dir.path().join(name);
        // Linkers add a build-id where they are told to, and some by themselves.
        let rustc = Command::new("rustc")
            .args(["-Clink-arg=-Wl,--build-id=sha1", "-o", path.to_str().unwrap()])
            .args(options)
            .arg(&source)
            .output();
        let rustc = rustc.unwrap();
        assert!(rustc.status.success(), "{name}: {}", String::from_utf8_lossy(&rustc.stderr));
        runs_as_before(&path, || output(Command::new(&path).arg("x")));
    }
}

/// A program whose linker left so much room for a map, and with so many bytes of data.
fn with_room(directory: &Path, room_bytes: u32, data_bytes: u32) -> PathBuf {
    // The lines that the documentation gives.
    let assembler = format!(
        "
        .section .note.prepage, \"a\", @note
        .balign 4
        .long 8, 1f - 0f, 1
        .asciz \"prepage\"
    0:  .zero {room_bytes}
    1:
        .section .note.GNU-stack, \"\", @progbits
        .data
        .fill {data_bytes}, 1, 7
        .globl main
        .text
    main: xor %eax, %eax
        ret
    "
    );
    let (source, path) = (directory.join("main.s"), directory.join("program"));
    fs::write(&source, assembler).unwrap();
    let linked = Command::new("gcc").args(["-Wl,--build-id", "-o"]).arg(&path).arg(&source).output();
    let linked = linked.unwrap();
    assert!(linked.status.success(), "{}", String::from_utf8_lossy(&linked.stderr));
    path
}

#[test]
fn a_map_that_outgrows_its_room_leaves_no_older_one_there() {
    let dir = directory();
    // Of a bit for each of 1600 pages, not enough.
    let path = with_room(dir.path(), 160, 1640 * PAGE_SIZE as u32);
    let original = fs::read(&path).unwrap();
    embed(&path, &[profile(&path, &[0])]).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), original.len() as u64, "the first has room");
    let larger = profile(&path, &(0..1600).step_by(2).collect::<Vec<_>>());
    for is_written in [true, false] {
        assert_eq!(embed(&path, std::slice::from_ref(&larger)).unwrap().replaced.is_some(), is_written);
        assert!(fs::metadata(&path).unwrap().len() > original.len() as u64);
        assert_eq!(read_embedded(&path).unwrap().1.unwrap().pages(), 800);
        assert_eq!(Search::of_program(&path, Sidecars::none()).1.files[0].pages(), 800);
        assert_eq!(output(&mut Command::new(&path)).0, Some(0));
    }
    strip(&path).unwrap();
    assert!(fs::read(&path).unwrap() == original, "what the linker made");
    assert!(matches!(strip(&path), Err(EmbedError::Section(SectionError::None))));
}

#[test]
fn room_that_the_linker_left_is_filled_and_nothing_grows() {
    let dir = directory();
    let path = with_room(dir.path(), 1024, 0);
    let size = fs::metadata(&path).unwrap().len();
    runs_as_before(&path, || {
        assert_eq!(fs::metadata(&path).unwrap().len(), size);
        output(&mut Command::new(&path))
    });
    embed(&path, &[profile(&path, &[0, 2])]).unwrap();
    let found = Search::of_program(&path, Sidecars::none()).1;
    assert_eq!(found.files[0].pages(), 2, "{found:?}");
}

#[test]
fn a_running_program_is_replaced_and_runs_on() {
    let dir = directory();
    let path = copy(dir.path(), "/usr/bin/sleep").expect("sleep");
    output(Command::new(&path).arg("0"));
    let mut running = Command::new(&path).arg("60").spawn().unwrap();
    assert!(File::options().write(true).open(&path).is_err(), "a running program cannot be written to");
    embed(&path, &[profile(&path, &[1])]).unwrap();
    assert!(running.try_wait().unwrap().is_none());
    assert_eq!(output(Command::new(&path).arg("0")).0, Some(0));
    running.kill().unwrap();
    running.wait().unwrap();
}

#[test]
fn a_program_of_another_content_is_refused_and_stays() {
    let dir = directory();
    let path = copy(dir.path(), "/usr/bin/sleep").expect("sleep");
    let other = copy(dir.path(), "/usr/bin/ls").expect("ls");
    assert!(matches!(embed(&path, &[profile(&other, &[1])]), Err(EmbedError::Unknown)));
    assert!(matches!(strip(&path), Err(EmbedError::Section(SectionError::None))));
    let script = dir.path().join("script");
    fs::write(&script, "#!/bin/sh\n").unwrap();
    assert!(matches!(embed(&script, &[profile(&script, &[0])]), Err(EmbedError::Section(_))));
    assert_eq!(fs::read(&script).unwrap(), b"#!/bin/sh\n");
}

/// Evicts `path`, looks for what it carries, and returns the pages that are in memory then and those that were found.
fn resident_after(path: &Path, sidecars: Sidecars) -> (BTreeSet<u64>, BTreeSet<u64>) {
    let file = File::open(path).unwrap();
    file.sync_all().unwrap();
    prepage_sys::cachestat::evict(file.as_fd(), Duration::from_secs(60)).unwrap();
    let pages = file.metadata().unwrap().len().div_ceil(PAGE_SIZE);
    let cached = |page| {
        let one = PageRange::new(PageIndex(page), PageIndex(page + 1));
        prepage_sys::cachestat::cached_pages(file.as_fd(), one).unwrap() > 0
    };
    assert!(!cached(pages / 2), "it was evicted");
    let (_, found) = Search::of_program(path, sidecars);
    assert!(found.left.is_empty(), "{found:?}");
    let named = found.files.iter().flat_map(|file| &file.extents).flat_map(|extent| extent.range.iter());
    ((0..pages).filter(|&page| cached(page)).collect(), named.map(|page| page.0).collect())
}

#[test]
fn what_is_carried_is_found_with_a_few_pages_read_beyond_what_the_loader_reads() {
    let dir = directory();
    let evicts = Need::Eviction(dir.path().into());
    if !has(evicts) || !has(Need::Path("/usr/bin/python3".into())) {
        return;
    }
    let path = copy(dir.path(), "/usr/bin/python3").expect("python3");
    let wanted = BTreeSet::from([3, 9, 10, 11, 12, 60, 61, 250, 499]);
    let known = [profile(&path, &wanted.iter().copied().collect::<Vec<_>>())];
    let pages = fs::metadata(&path).unwrap().len().div_ceil(PAGE_SIZE);
    let elf = Elf::parse(&File::open(&path).unwrap()).unwrap();
    let loaders: BTreeSet<u64> =
        (0..32).chain(elf.linked_pages().flat_map(PageRange::iter).map(|page| page.0)).collect();

    let maps = dir.path().join("maps");
    let beside = write_beside(&maps, &path, &known).unwrap();
    assert!(!beside.unchanged && write_beside(&maps, &path, &known).unwrap().unchanged);
    let uid = rustix::process::geteuid().as_raw();
    let paths = StartContextPaths {
        store: Some(dir.path().join("own")),
        layers: Some(vec![maps]),
        ..StartContextPaths::default()
    };
    let (sidecars, refused) = Sidecars::of(&Stores::for_uid(uid, &paths).unwrap());
    assert!(refused.is_empty(), "{refused:?}");
    let (resident, found) = resident_after(&path, sidecars);
    assert_eq!(found, wanted);
    assert!(resident.is_subset(&loaders), "{resident:?}");

    embed(&path, &known).unwrap();
    let (resident, found) = resident_after(&path, Sidecars::none());
    assert_eq!(found, wanted);
    // And the end of the file, where the pages are named.
    let named: Vec<_> = resident.difference(&loaders).collect();
    assert!(named.len() <= 4 && named.iter().all(|&&page| page + 4 >= pages), "{named:?} of {pages}");
}

/// Embedding changes size, inode and times of a file, and nothing that a profile knows of it.
#[test]
fn embedding_and_stripping_leave_a_profile_of_the_file_as_it_is() {
    let dir = directory();
    let path = copy(dir.path(), "/usr/bin/sleep").expect("sleep");
    let known = profile(&path, &[1, 2]);
    embed(&path, std::slice::from_ref(&known)).unwrap();
    let now = profile(&path, &[1, 2]);
    assert_ne!(now.files[0].identity.size_bytes, known.files[0].identity.size_bytes);
    assert_eq!(now.files[0].fingerprint, known.files[0].fingerprint);
    assert!(prepage_profiles::identity::open_if_same(&known.files[0]).is_ok());
}

#[test]
fn a_file_that_not_everybody_may_read_gets_nothing_beside_it() {
    let dir = directory();
    let path = copy(dir.path(), "/usr/bin/sleep").expect("sleep");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).unwrap();
    let refused = write_beside(&dir.path().join("maps"), &path, &[profile(&path, &[1])]);
    assert!(matches!(refused, Err(EmbedError::Secret)));
}

#[test]
fn where_nobody_would_follow_a_map_no_directory_is_made_for_it() {
    let dir = directory();
    let path = copy(dir.path(), "/usr/bin/sleep").expect("sleep");
    let maps = dir.path().join("maps");
    fs::create_dir(&maps).unwrap();
    fs::set_permissions(&maps, fs::Permissions::from_mode(0o777)).unwrap();
    let refused = write_beside(&maps, &path, &[profile(&path, &[1])]);
    assert!(matches!(refused, Err(EmbedError::Directory(_))), "{refused:?}");
    assert_eq!(fs::read_dir(&maps).unwrap().count(), 0);
}

#[test]
fn two_that_write_the_same_sidecar_at_once_do_not_disturb_each_other() {
    let dir = directory();
    let path = copy(dir.path(), "/usr/bin/sleep").expect("sleep");
    let maps = dir.path().join("maps");
    std::thread::scope(|scope| {
        for page in [0, 1] {
            let (path, maps) = (&path, &maps);
            scope.spawn(move || {
                for round in 0..40 {
                    let known = profile(path, &[page, 2 + round % 2]);
                    write_beside(maps, path, &[known]).unwrap();
                }
            });
        }
    });
    assert_eq!(prepage_profiles::verify::sidecars_below(&maps).unwrap().len(), 1);
    let names = fs::read_dir(maps.join("build-id")).unwrap().flatten();
    let files = names.flat_map(|name| fs::read_dir(name.path()).unwrap()).count();
    assert_eq!(files, 1, "nothing is left behind");
}

#[test]
fn a_map_in_a_file_that_others_may_write_is_not_followed() {
    let dir = directory();
    let path = copy(dir.path(), "/usr/bin/sleep").expect("sleep");
    embed(&path, &[profile(&path, &[1])]).unwrap();
    let found = || Search::of_program(&path, Sidecars::none()).1;
    assert_eq!(found().files.len(), 1);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o775)).unwrap();
    assert!(matches!(found().left[..], [(_, MapError::Untrusted(_))]));
    // It is judged before anything in it is parsed.
    let broken = dir.path().join("broken");
    fs::write(&broken, b"\x7fELF\x02").unwrap();
    fs::set_permissions(&broken, fs::Permissions::from_mode(0o666)).unwrap();
    let refused = Search::of_program(&broken, Sidecars::none()).1;
    assert!(matches!(refused.left[..], [(_, MapError::Untrusted(_))]), "{refused:?}");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    if !has(Need::Root) {
        return;
    }
    std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
    assert!(matches!(found().left[..], [(_, MapError::Untrusted(_))]), "root follows nobody");
}

#[test]
fn the_map_of_another_build_is_not_followed() {
    let dir = directory();
    let (one, other) =
        (copy(dir.path(), "/usr/bin/sleep").unwrap(), copy(dir.path(), "/usr/bin/ls").unwrap());
    embed(&one, &[profile(&one, &[1])]).unwrap();
    // Somebody moves the section from one program into another.
    let map = dir.path().join("map");
    let dump = format!(".prepage={}", map.display());
    let moved = Command::new("objcopy")
        .args(["--dump-section", &dump, one.to_str().unwrap(), "/dev/null"])
        .status()
        .and_then(|_| {
            Command::new("objcopy").args(["--add-section", &dump, other.to_str().unwrap()]).status()
        });
    assert!(moved.unwrap().success());
    let found = Search::of_program(&other, Sidecars::none()).1;
    assert!(matches!(found.left[..], [(_, MapError::Other)]), "{found:?}");
    assert!(matches!(
        embed(&other, &[profile(&other, &[1])]),
        Err(EmbedError::Section(SectionError::NotOurs))
    ));
    assert!(
        Command::new("objcopy").args(["-R", ".prepage", other.to_str().unwrap()]).status().unwrap().success()
    );
    embed(&other, &[profile(&other, &[1])]).unwrap();
}
