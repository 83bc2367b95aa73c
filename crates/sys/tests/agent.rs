//! The agent in real programs: they do and print what they do without it, and it sees what they use.

mod support;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use prepage_sys::agent::{Arming, Carrying, Event, Last, Lookup};
use prepage_testing::{Need, has};

use support::{
    Observation, Observed, built, command, compile, library, observe, same_with_and_without, tool,
};

#[test]
fn programs_find_their_environment_as_it_was() {
    same_with_and_without("/usr/bin/env", &[]);
    same_with_and_without("/usr/bin/printenv", &["LD_AUDIT", "PREPAGE_AGENT", "PREPAGE_TEST"]);
    same_with_and_without("/bin/sh", &["-c", "env; exit 7"]);
    same_with_and_without("/usr/bin/env", &["-i", "/bin/sh", "-c", "/usr/bin/env"]);
}

#[test]
fn gcc_and_clang_build_the_agent() {
    for compiler in ["gcc", "clang"] {
        if !tool(compiler) {
            continue;
        }
        let path = library().with_file_name(format!("{compiler}.so"));
        let build = concat!(env!("CARGO_MANIFEST_DIR"), "/agent/build");
        let status = Command::new(build).arg(&path).env("CC", compiler).status();
        assert!(status.unwrap().success(), "{compiler}");
    }
}

#[test]
fn environments_cleared_on_the_way_keep_the_agent_in_children() {
    let observed =
        same_with_and_without("/usr/bin/env", &["-i", "/bin/sh", "-c", "/usr/bin/env; ls /; true"]);
    let started = observed.started();
    for program in ["/bin/sh", "/usr/bin/env"] {
        assert!(started.contains(&Path::new(program)), "{program} is not among {started:?}");
    }
    assert!(observed.has("/", Lookup::List));
}

#[test]
fn names_of_different_directories_that_read_alike_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    ["1", "12"].iter().for_each(|name| std::fs::create_dir(dir.path().join(name)).unwrap());
    let script = "cd $0/1; test -e 23; cd $0/12; test -e 3; true";
    let observed = same_with_and_without("/bin/sh", &["-c", script, dir.path().to_str().unwrap()]);
    let names = observed.names();
    for name in ["1/23", "12/3"] {
        assert!(names.contains(&dir.path().join(name)), "{name} is not among {names:?}");
    }
}

#[test]
fn the_auxiliary_vector_is_found_behind_the_environment() {
    let source = r#"
        #include <stdio.h>
        #include <sys/auxv.h>
        int main(int argc, char **argv, char **envp) {
            while (*envp) puts(*envp++);
            unsigned long *entry = (unsigned long *)(envp + 1), pages = 0;
            for (; entry[0]; entry += 2) if (entry[0] == AT_PAGESZ) pages = entry[1];
            printf("%lu %lu\n", pages, getauxval(AT_PAGESZ));
        }"#;
    let Some(program) = built(&[], source) else { return };
    let observed = same_with_and_without(program.to_str().unwrap(), &[]);
    assert!(String::from_utf8_lossy(&observed.output.stdout).contains("4096 4096"));
}

#[test]
fn a_program_with_its_own_copy_of_the_stacks_end_is_entered() {
    let source = "extern void *__libc_stack_end; int main(void) { return __libc_stack_end == 0; }";
    let Some(program) = built(&["-no-pie"], source) else { return };
    same_with_and_without(program.to_str().unwrap(), &[]);
}

#[test]
fn descriptors_are_as_without() {
    same_with_and_without("/bin/ls", &["/proc/self/fd"]);
}

/// glibc tells nobody of the end of a namespace in which nothing is left (bug 26076).
#[test]
fn a_library_that_cannot_be_loaded_leaves_no_descriptor() {
    if !tool("gcc") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let needed = dir.path().join("libneeded.so");
    std::fs::rename(compile(dir.path(), &["-shared", "-fPIC"], "int needed;"), &needed).unwrap();
    let library = dir.path().join("library.so");
    let flags = ["-shared", "-fPIC", "-Wl,--no-as-needed", needed.to_str().unwrap()];
    std::fs::rename(compile(dir.path(), &flags, "int library;"), &library).unwrap();
    std::fs::remove_file(&needed).unwrap();
    let program = compile(
        dir.path(),
        &[],
        r#"
        #define _GNU_SOURCE
        #include <dlfcn.h>
        #include <stdio.h>
        #include <unistd.h>
        int main(int argc, char **argv) {
            printf("%d %d\n", dlopen(argv[1], RTLD_NOW) == NULL, dup(0));
            printf("%d %d\n", dlmopen(LM_ID_NEWLM, argv[1], RTLD_NOW) == NULL, dup(0));
        }"#,
    );
    let observed = same_with_and_without(program.to_str().unwrap(), &[library.to_str().unwrap()]);
    assert_eq!(observed.output.stdout, b"1 3\n1 4\n");
}

/// A constructor of a library runs before la_preinit(3): the first descriptor there is 3, and what it closes stays closed.
#[test]
fn constructors_find_no_descriptor_and_keep_their_own() {
    if !tool("gcc") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let early = compile(
        dir.path(),
        &["-shared", "-fPIC"],
        r#"
        #define _GNU_SOURCE
        #include <fcntl.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <unistd.h>
        int early;
        __attribute__((constructor)) static void begin(void) {
            if (getenv("CLOSE_ALL")) close_range(3, ~0u, 0);
            early = open("/etc/passwd", O_RDONLY);
        }"#,
    );
    let library = dir.path().join("libearly.so");
    std::fs::rename(&early, &library).unwrap();
    let program = compile(
        dir.path(),
        &["-Wl,--no-as-needed", library.to_str().unwrap()],
        r#"
        #include <stdio.h>
        #include <unistd.h>
        extern int early;
        int main(void) { char byte; printf("%d %zd\n", early, read(early, &byte, 1)); }"#,
    );
    for script in ["$0", "CLOSE_ALL=1 $0"] {
        let observed = same_with_and_without("/bin/sh", &["-c", script, program.to_str().unwrap()]);
        assert_eq!(observed.output.stdout, b"3 1\n");
        assert_eq!(observed.received.len(), observed.started().len(), "each program sends its userfaultfd");
    }
}

#[test]
fn the_users_own_empty_list_of_auditing_libraries_is_kept() {
    let script = "printenv LD_AUDIT; /bin/sh -c 'printenv LD_AUDIT; echo $?'; exec /bin/sh -c 'printenv LD_AUDIT; echo $?'";
    let start = || {
        let mut command = command("/bin/sh", &["-c", script]);
        command.env("LD_AUDIT", "");
        command
    };
    let plain = start().output().unwrap();
    let observed = observe(&mut start());
    assert_eq!(observed.output, plain);
    assert_eq!(observed.started().iter().filter(|path| path.ends_with("printenv")).count(), 3);
}

#[test]
fn the_users_own_auditing_library_is_kept() {
    let source = "unsigned la_version(unsigned v) { return v; }";
    let Some(own) = built(&["-shared", "-fPIC"], source) else { return };
    let run = |with_agent: bool| {
        let mut command = command("/bin/sh", &["-c", "printenv LD_AUDIT; grep -c /test$ /proc/self/maps"]);
        command.env("LD_AUDIT", &*own);
        if with_agent { observe(&mut command).output } else { command.output().unwrap() }
    };
    assert_eq!(run(true), run(false));
    assert!(run(true).stdout.starts_with(own.as_os_str().as_encoded_bytes()));
}

#[test]
fn names_of_python_are_seen_and_what_it_reads() {
    if !tool("python3") {
        return;
    }
    let observed = same_with_and_without(
        "/usr/bin/python3",
        &["-c", "import json; print(open('/etc/hostname').read())"],
    );
    assert!(observed.has("/etc/hostname", Lookup::Open));
    let json = Path::new("json/__pycache__");
    let names = observed.names();
    assert!(names.iter().any(|name| name.to_string_lossy().contains(json.to_str().unwrap())), "{names:?}");
    use std::os::unix::fs::MetadataExt;
    let hostname = std::fs::metadata("/etc/hostname").unwrap();
    let read = Event::Read { device: hostname.dev(), inode: hostname.ino(), offset: 0, len: hostname.size() };
    assert!(observed.records.iter().any(|record| record.event == read));
}

/// libc reads these files by itself, where nothing stands before its calls.
#[test]
fn files_that_libc_reads_for_its_functions_are_seen() {
    if !tool("python3") {
        return;
    }
    let script = "import pwd, time; pwd.getpwuid(0); time.localtime()";
    let mut command = command("/usr/bin/python3", &["-c", script]);
    command.env_remove("TZ");
    let mut observation = Observation::new();
    let output = observation.enter(&mut command).output().unwrap();
    let observed = observation.take(output);
    assert!(observed.has("/etc/passwd", Lookup::Open) && observed.has("/etc/localtime", Lookup::Open));
    use std::os::unix::fs::MetadataExt;
    let passwd = std::fs::metadata("/etc/passwd").unwrap();
    let read = Event::Read { device: passwd.dev(), inode: passwd.ino(), offset: 0, len: passwd.size() };
    assert!(observed.records.iter().any(|record| record.event == read));
    command.env("TZ", "UTC");
    let mut observation = Observation::new();
    let output = observation.enter(&mut command).output().unwrap();
    let observed = observation.take(output);
    assert!(!observed.has("/etc/localtime", Lookup::Open));
}

/// Functions that want no time zone have libc read its file, too.
#[test]
fn the_file_of_the_time_zone_is_seen_whatever_time_is_asked_for() {
    let calling = |call: &str| {
        let source = format!(
            "#include <time.h>\nint main(void) {{ time_t now = 0; struct tm to = {{.tm_mday = 1}}; char text[64]; \
             (void)now, (void)to, (void)text; {call}; return 0; }}"
        );
        built(&["-D_GNU_SOURCE"], &source)
    };
    for asked in
        ["gmtime(&now)", "gmtime_r(&now, &to)", "timegm(&to)", "timelocal(&to)", "ctime_r(&now, text)"]
    {
        let Some(program) = calling(asked) else { return };
        let observed = observe(command(program.to_str().unwrap(), &[]).env_remove("TZ"));
        assert!(observed.output.status.success() && observed.has("/etc/localtime", Lookup::Open), "{asked}");
    }
}

/// Where locales lie in directories, as Debian's do, it is not there, and may be all that is looked for beside these.
#[test]
fn the_archive_of_locales_is_looked_for_where_the_environment_names_a_locale() {
    for (language, is_looked_for) in [("xx_XX.UTF-8", true), ("C", false)] {
        let mut command = command("/bin/ls", &["/"]);
        // LANG names the locale only of what no other variable names.
        for (name, _) in std::env::vars_os() {
            if name == "LOCPATH" || name.as_encoded_bytes().starts_with(b"LC_") {
                command.env_remove(name);
            }
        }
        let observed = observe(command.env("LANG", language));
        let found = observed.has("/usr/lib/locale/locale-archive", Lookup::Metadata);
        assert_eq!(found, is_looked_for, "{language}");
    }
}

/// The pages of the file `path` that are told as read.
fn pages_read(observed: &Observed, path: &Path) -> BTreeSet<u64> {
    use std::os::unix::fs::MetadataExt;
    let of = std::fs::metadata(path).unwrap();
    let mut pages = BTreeSet::new();
    for record in &observed.records {
        if let Event::Read { device, inode, offset, len } = record.event
            && (device, inode) == (of.dev(), of.ino())
        {
            pages.extend(offset / 4096..(offset + len).div_ceil(4096));
        }
    }
    pages
}

/// A file of 64 pages, and of all but a byte of one more.
fn data_in(dir: &Path) -> PathBuf {
    let path = dir.join("data");
    std::fs::write(&path, vec![1; 65 * 4096 - 1]).unwrap();
    path
}

/// stdio reads whole blocks of 4 KiB, of which it has one in memory.
#[test]
fn of_a_stream_that_seeks_what_it_reads_is_seen_and_nothing_else() {
    let source = r#"
        #include <stdio.h>
        #include <stdlib.h>
        #include <string.h>
        #include <unistd.h>
        int main(int argc, char **argv) {
            FILE *file = fopen(argv[2], "r");
            fpos_t place;
            char byte;
            for (char *step = argv[1]; *step; step += 2) {
                int page = step[1] - '0';
                switch (*step) {
                case 's': fseek(file, page * 4096, SEEK_SET); break;
                case 'c': fseeko(file, page * 4096, SEEK_CUR); break;
                case 'e': fseek(file, -page * 4096 + 1, SEEK_END); break;
                case 'w': rewind(file); break;
                case 'g': fgetpos(file, &place); break;
                case 'p': fsetpos(file, &place); break;
                case 'r': for (int at = 0; at < page * 4096; at++) getc(file); break;
                case 'b': getc(file); break;
                case 'o': file = freopen(argv[2], "r", file); break;
                case 'x': fseek(file, page * 4096, 3); break;
                case 'd': lseek(fileno(file), page * 4096, SEEK_SET); read(fileno(file), &byte, 1); break;
                }
            }
            if (strlen(argv[1]) % 4 == 2) return 0;
            return fclose(file);
        }"#;
    let Some(program) = built(&[], source) else { return };
    let data = data_in(program.dir.path());
    let steps: [(&str, &[u64]); 15] = [
        ("e0", &[]),
        ("e0w0", &[]),
        ("e0w0b0", &[0]),
        ("e1b0s9b0", &[9, 64]),
        ("b0s5b0s3b0s5b0", &[0, 3, 5]),
        ("r2c3r1", &[0, 1, 5]),
        // Where libc does not know yet where the descriptor stands, it reads from there on, and not from the beginning of a block.
        ("b0c4b0", &[0, 4, 5]),
        ("s7g0r1s2r1p0b0", &[2, 7]),
        ("s8r3s9b0", &[8, 9, 10]),
        ("r1o0s4b0", &[0, 4]),
        ("s9r1o0b0", &[0, 9]),
        ("s9r1w0", &[9]),
        ("s9b0x0b0", &[9]),
        // As std::ifstream reads.
        ("d7", &[7]),
        ("d7d3", &[3, 7]),
    ];
    for (steps, expected) in steps {
        let observed = same_with_and_without(program.to_str().unwrap(), &[steps, data.to_str().unwrap()]);
        let pages: Vec<u64> = pages_read(&observed, &data).into_iter().collect();
        assert_eq!(pages, expected, "{steps}");
        assert_eq!(observed.lost.missed, 0, "{steps}");
    }
}

/// Streams that seek, more than programs have open, and behind them one that does not.
#[test]
fn of_more_streams_than_can_be_told_apart_nothing_false_is_told() {
    let source = r#"
        #include <stdio.h>
        #include <stdlib.h>
        #include <unistd.h>
        int main(int argc, char **argv) {
            for (int left = atoi(argv[2]); left; left--) {
                FILE *file = fopen(argv[1], "r");
                fseek(file, 0, SEEK_END);
                /* The stream stays, and the next one gets the descriptor. */
                close(fileno(file));
            }
            FILE *file = fopen(argv[1], "r");
            getc(file);
            return fclose(file);
        }"#;
    let Some(program) = built(&[], source) else { return };
    let data = data_in(program.dir.path());
    for (streams, pages, misses) in [("1000", &[0][..], 0), ("9000", &[], 1)] {
        let observed = same_with_and_without(program.to_str().unwrap(), &[data.to_str().unwrap(), streams]);
        assert_eq!(pages_read(&observed, &data).into_iter().collect::<Vec<_>>(), pages, "{streams}");
        assert_eq!(observed.lost.missed, misses, "{streams}");
    }
}

#[test]
fn seeks_without_end_cost_neither_reads_nor_a_loss_where_they_stay() {
    let source = r#"
        #include <stdio.h>
        #include <stdlib.h>
        #include <unistd.h>
        int main(int argc, char **argv) {
            FILE *file = fopen(argv[1], "r");
            char byte;
            for (int times = 0; times < 20000; times++) {
                fseek(file, times % 2 * atoi(argv[2]) * 4096, SEEK_SET);
                getc(file);
            }
            return pread(fileno(file), &byte, 1, 63 * 4096) != 1;
        }"#;
    let Some(program) = built(&[], source) else { return };
    let data = data_in(program.dir.path());
    for (page, is_missed) in [("1", false), ("9", true)] {
        let observed = same_with_and_without(program.to_str().unwrap(), &[data.to_str().unwrap(), page]);
        let pages: Vec<_> = pages_read(&observed, &data).into_iter().collect();
        assert_eq!(pages, [0, page.parse().unwrap(), 63]);
        assert_eq!(observed.lost.missed, u64::from(is_missed), "{page}");
    }
}

#[test]
fn of_a_stream_that_a_librarys_destructor_closes_nothing_false_is_told() {
    let library = r#"
        #include <stdio.h>
        FILE *kept;
        __attribute__((destructor)) static void end(void) { fclose(kept); }"#;
    let source = r#"
        #include <dlfcn.h>
        #include <stdio.h>
        int main(int argc, char **argv) {
            FILE **kept = dlsym(dlopen(argv[1], RTLD_NOW), "kept");
            *kept = fopen(argv[2], "r");
            fseek(*kept, 9 * 4096, SEEK_SET);
            getc(*kept);
            return 0;
        }"#;
    let (Some(library), Some(program)) = (built(&["-shared", "-fPIC"], library), built(&[], source)) else {
        return;
    };
    let data = data_in(program.dir.path());
    let arguments = [library.to_str().unwrap(), data.to_str().unwrap()];
    let observed = same_with_and_without(program.to_str().unwrap(), &arguments);
    assert_eq!(pages_read(&observed, &data).into_iter().collect::<Vec<_>>(), [9]);
}

#[test]
fn what_does_not_come_through_the_page_cache_is_not_told_as_read() {
    let source = r#"
        #define _GNU_SOURCE
        #include <fcntl.h>
        #include <stdlib.h>
        #include <unistd.h>
        int main(int argc, char **argv) {
            void *block;
            int file = open(argv[1], O_RDONLY | O_DIRECT);
            if (file < 0) return 9;
            if (posix_memalign(&block, 4096, 8192)) return 8;
            if (read(file, block, 8192) != 8192 || pread(file, block, 4096, 20 * 4096) != 4096) return 7;
            fcntl(file, F_SETFL, 0);
            return read(file, block, 4096) != 4096;
        }"#;
    let Some(program) = built(&[], source) else { return };
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let data = data_in(dir.path());
    let observed = observe(&mut command(program.to_str().unwrap(), &[data.to_str().unwrap()]));
    assert_eq!(observed.output.status.code(), Some(0));
    assert_eq!(pages_read(&observed, &data).into_iter().collect::<Vec<_>>(), [2]);
}

#[test]
fn of_a_file_that_is_sent_as_much_is_told_as_the_socket_takes() {
    let source = r#"
        #include <sys/sendfile.h>
        #include <sys/socket.h>
        #include <fcntl.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <unistd.h>
        int main(int argc, char **argv) {
            int ends[2], file = open(argv[2], O_RDONLY), room = 4096;
            off_t offset = 3 * 4096, all = 65 * 4096;
            if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends)) return 9;
            setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
            long sent = sendfile(ends[0], file, *argv[1] == 'o' ? &offset : NULL, all);
            printf("%ld\n", sent);
            return sendfile(ends[0], file, NULL, all) > 0;
        }"#;
    let Some(program) = built(&[], source) else { return };
    let data = data_in(program.dir.path());
    for (how, first) in [("offset", 3), ("position", 0)] {
        let observed = observe(&mut command(program.to_str().unwrap(), &[how, data.to_str().unwrap()]));
        assert_eq!(observed.output.status.code(), Some(0), "{how}");
        let sent: u64 = String::from_utf8_lossy(&observed.output.stdout).trim().parse().unwrap();
        assert!((1..60 * 4096).contains(&sent), "{how}: {sent}");
        let expected: BTreeSet<u64> = (first..first + sent.div_ceil(4096)).collect();
        assert_eq!(pages_read(&observed, &data), expected, "{how}");
    }
}

/// Nobody can look which ld.so such a program has.
#[test]
fn a_program_that_may_be_executed_but_not_read_is_told_to_be_unseen() {
    let source = r#"
        #include <unistd.h>
        int main(int argc, char **argv) {
            if (setgid(1000) || setuid(1000)) return 9;
            execl(argv[1], argv[1], (char *)0);
            return 7;
        }"#;
    if !has(Need::Root) {
        return;
    }
    let Some(program) = built(&[], source) else { return };
    let mode = |path: &Path, mode| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(program.dir.path(), 0o755);
    let other = program.dir.path().join("other");
    std::fs::copy("/bin/true", &other).unwrap();
    for (how, status, expected) in [(0o711, 0, Carrying::Rights), (0o700, 7, Carrying::NotFound)] {
        mode(&other, how);
        let observed = same_with_and_without(program.to_str().unwrap(), &[other.to_str().unwrap()]);
        assert_eq!(observed.output.status.code(), Some(status), "{how:o}");
        let told = observed.records.iter().find_map(|record| match &record.event {
            Event::Executed { path, carrying } if *path == other => Some(*carrying),
            _ => None,
        });
        assert_eq!(told, Some(expected), "{how:o}");
    }
}

#[test]
fn a_compiler_and_what_it_starts_are_seen() {
    if !tool("gcc") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("a.c");
    std::fs::write(&source, "#include <stdio.h>\nint main(void) { puts(\"x\"); }\n").unwrap();
    let observed = same_with_and_without("gcc", &["-O2", "-S", "-o", "-", source.to_str().unwrap()]);
    assert!(observed.started().iter().any(|path| path.ends_with("cc1")));
    assert!(observed.has("/usr/include/stdio.h", Lookup::Open));
    assert_eq!(observed.received.len(), observed.started().len(), "each program sends its userfaultfd");
    assert!(observed.records.iter().all(|record| !matches!(
        record.event,
        Event::Started { arming: Arming::RefusedByKernel | Arming::NotAsked, .. }
    )));
}

#[test]
fn the_agent_goes_along_only_where_it_is_taken() {
    let observed =
        same_with_and_without("/bin/sh", &["-c", "/nowhere; su --version; ls / >/dev/null; exit 3"]);
    let carried = |name: &str| {
        observed.records.iter().find_map(|record| match &record.event {
            Event::Executed { path, carrying } if path.ends_with(name) => Some(*carrying),
            _ => None,
        })
    };
    assert_eq!(carried("nowhere"), Some(Carrying::NotFound));
    assert_eq!(carried("su"), Some(Carrying::Rights));
    assert_eq!(carried("ls"), Some(Carrying::Carried));
    assert_eq!(observed.started().len(), 2);
}

#[test]
fn nothing_is_logged_once_the_observation_has_ended() {
    let mut observation = Observation::new();
    observation.log().end().unwrap();
    let mut command = command("/bin/sh", &["-c", "ls / >/dev/null; env"]);
    let output = observation.enter(&mut command).output().unwrap();
    assert!(!String::from_utf8_lossy(&output.stdout).contains("PREPAGE_AGENT"));
    let observed = observation.take(output);
    assert!(observed.records.is_empty() && observed.received.is_empty());
}

#[test]
fn an_observer_that_is_gone_disturbs_nothing() {
    let mut plain = command("/bin/sh", &["-c", "env; ls /"]);
    let expected = plain.output().unwrap();
    let mut command = command("/bin/sh", &["-c", "env; ls /"]);
    let observation = Observation::new();
    observation.enter(&mut command);
    drop(observation);
    assert_eq!(command.output().unwrap(), expected);
    // Its number and descriptor may be another's by now: a file that is no log is left as it is.
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), vec![7; 8192]).unwrap();
    use std::os::fd::AsRawFd;
    let mut command = self::command("/bin/sh", &["-c", "env; ls /"]);
    let log = format!("1:{}:{}:{}:0:1", std::process::id(), file.as_file().as_raw_fd(), "07".repeat(16));
    command.env("PREPAGE_AGENT", log).env("LD_AUDIT", library());
    assert_eq!(command.output().unwrap(), expected);
    assert_eq!(std::fs::read(file.path()).unwrap(), vec![7; 8192]);
}

#[test]
fn files_of_two_file_systems_are_told_apart() {
    let source = r#"
        #include <fcntl.h>
        #include <sys/mman.h>
        int main(int argc, char **argv) {
            char *both = mmap(0, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            for (int i = 0; i < 2; i++) {
                char *at = both + 4096 * i;
                if (mmap(at, 4096, PROT_READ, MAP_PRIVATE | MAP_FIXED, open(argv[1 + i], O_RDONLY), 0) != at) return 1;
                (void)*(volatile char *)at;
            }
            return munmap(both, 8192);
        }"#;
    if !has(Need::Linux(6, 11)) || !has(Need::Mounts) {
        return;
    }
    let Some(program) = built(&[], source) else { return };
    // The first file of each has the same inode.
    let script = r#"cd "$1" && mkdir a b && mount -t tmpfs a a && mount -t tmpfs b b && echo > a/f && echo > b/f && exec "$0" a/f b/f"#;
    let mut observation = Observation::new();
    observation.log().ask_for(Last::Tell).unwrap();
    let words = [&*program, program.dir.path()].map(|path| path.to_str().unwrap());
    let mut command = command("unshare", &["--mount", "sh", "-c", script, words[0], words[1]]);
    let output = observation.enter(&mut command).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let observed = observation.take(output);
    let (mut last, mut told) = (None, Vec::new());
    for record in &observed.records {
        match &record.event {
            Event::Mapped { path } => last = Some(path),
            Event::Touched { device, inode, .. } => told.push((last.unwrap(), *device, *inode)),
            _ => {}
        }
    }
    told.retain(|(path, ..)| path.ends_with("f"));
    let of = |name: &str| told.iter().find(|(path, ..)| path.ends_with(name));
    let (Some(a), Some(b)) = (of("a/f"), of("b/f")) else { panic!("{told:?}") };
    assert!(a.1 != b.1 && a.2 == b.2, "{a:?} {b:?}");
}

#[test]
fn threads_may_have_directories_of_their_own() {
    let source = r#"
        #define _GNU_SOURCE
        #include <pthread.h>
        #include <sched.h>
        #include <unistd.h>
        static void *other(void *unused) {
            if (unshare(CLONE_FS) || chdir("/usr")) _exit(7);
            access("of_the_other", F_OK);
            return unused;
        }
        int main(void) {
            pthread_t thread;
            access("before", F_OK);
            pthread_create(&thread, 0, other, 0);
            pthread_join(thread, 0);
            access("afterwards", F_OK);
            return 0;
        }"#;
    let Some(program) = built(&["-pthread"], source) else { return };
    let observed = observe(command(program.to_str().unwrap(), &[]).current_dir("/etc"));
    assert!(observed.output.status.success());
    for name in ["/etc/before", "/usr/of_the_other", "/etc/afterwards"] {
        assert!(observed.has(name, Lookup::Metadata), "{name}: {:?}", observed.names());
    }
}

#[test]
fn later_mappings_are_registered_from_outside() {
    if !has(Need::Path("/usr/bin/python3".into())) {
        return;
    }
    // By a system call of the program's own, which the agent does not see. Not through huge folios, which come in whole: a file read in small pieces. By the name that /proc/PID/maps has for it.
    let file = std::fs::canonicalize("/usr/bin/python3").unwrap();
    let file = file.to_str().unwrap();
    let script = format!(
        "import ctypes, resource, sys\n\
         f = open('{file}', 'rb'); syscall = ctypes.CDLL(None).syscall; syscall.restype = ctypes.c_long\n\
         at = syscall(*map(ctypes.c_long, ({}, 0, 2 << 20, 1, 2, f.fileno(), 0)))\n\
         m = (ctypes.c_char * (2 << 20)).from_address(at); m[0]; import _decimal\n\
         print(open('/proc/self/maps').read(), flush=True); print('.', flush=True)\n\
         sys.stdin.readline(); before = resource.getrusage(0).ru_minflt\n\
         for at in range(0, 2 << 20, 4096): m[at]\n\
         print(resource.getrusage(0).ru_minflt - before, flush=True)",
        libc::SYS_mmap
    );
    let faults = |register: bool| -> u64 {
        use std::io::{BufRead, BufReader, Write};
        let mut observation = Observation::new();
        let mut command = command("/usr/bin/python3", &["-c", &script]);
        observation.enter(&mut command).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let maps: Vec<String> = lines.by_ref().take_while(|line| line != ".").collect();
        let two_megabytes = |line: &&String| {
            let (range, rest) = line.split_once(' ').unwrap();
            let (start, end) = range.split_once('-').unwrap();
            let number = |text| u64::from_str_radix(text, 16).unwrap();
            rest.ends_with(file) && number(end) - number(start) == 2 << 20
        };
        let line = maps.iter().find(two_megabytes).expect("the mapping");
        let start = u64::from_str_radix(line.split_once('-').unwrap().0, 16).unwrap();
        let touches = observation.receive().expect("python sends one before it runs");
        assert_eq!(touches.pid(), child.id());
        if register {
            touches.register(start, 2 << 20).unwrap();
        }
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        let count = lines.next().unwrap().parse().unwrap();
        assert!(child.wait().unwrap().success());
        count
    };
    let (plain, exact) = (faults(false), faults(true));
    // All but the pages that the first touch brought in.
    assert!(exact >= 480 && plain <= 128, "{plain} faults, {exact} when registered");
}
