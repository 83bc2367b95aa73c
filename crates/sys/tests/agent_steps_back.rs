//! Where the agent must not be, or must not be noticed: sandboxes, debuggers, other roots, static programs, small limits.

mod support;

use std::process::Stdio;

use prepage_sys::agent::{Carrying, Event, Last, Log, Lookup, Record, variables};
use prepage_testing::{Need, has, skip};

use support::{
    Observation, Observed, built, command, compile, library, observe, same_with_and_without, tool,
};

/// How many execs are told to be `as_told`.
fn execs(records: &[Record], as_told: Carrying) -> usize {
    let is_it =
        |record: &&Record| matches!(record.event, Event::Executed { carrying, .. } if carrying == as_told);
    records.iter().filter(is_it).count()
}

fn carried(observed: &Observed, name: &str) -> Option<Carrying> {
    observed.records.iter().find_map(|record| match &record.event {
        Event::Executed { path, carrying } if path.ends_with(name) => Some(*carrying),
        _ => None,
    })
}

#[test]
fn a_static_program_is_started_as_it_is() {
    let source =
        "#include <stdio.h>\nint main(int c, char **v, char **e) { while (*e) puts(*e++); return 5; }";
    let Some(program) = built(&["-static"], source) else { return };
    let script = format!("{}; echo $?", program.display());
    let observed = same_with_and_without("/bin/sh", &["-c", &script]);
    assert_eq!(carried(&observed, "test"), Some(Carrying::NotDynamic));
}

/// ld.so ignores LD_AUDIT for a process with other effective ids than real ones, and leaves PREPAGE_AGENT to its program.
#[test]
fn a_process_with_other_effective_ids_passes_nothing_on() {
    if !has(Need::Root) || !tool("perl") {
        return;
    }
    for change in ["$< = 1000", "$> = 1000", "$( = 1000", "$) = 1000"] {
        let script = format!("{change}; exec '/usr/bin/env'");
        let observed = same_with_and_without("/usr/bin/perl", &["-e", &script]);
        assert_eq!(carried(&observed, "env"), Some(Carrying::Rights), "{change}");
    }
}

#[test]
fn an_agent_that_may_not_be_read_is_not_passed_on() {
    if !has(Need::Root) || !tool("setpriv") {
        return;
    }
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let copy = dir.path().join("libprepage-agent.so");
    std::fs::copy(library(), &copy).unwrap();
    std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o700)).unwrap();
    let mut log = Log::create(1 << 20).unwrap();
    let run = |with: bool| {
        let mut command =
            command("setpriv", &["--reuid=1000", "--regid=1000", "--clear-groups", "/usr/bin/env"]);
        if with {
            command.envs(variables(&copy, &log.variable(true), None));
        }
        command.output().unwrap()
    };
    assert_eq!(run(true), run(false));
    let records = log.read_last().unwrap();
    assert!(execs(&records, Carrying::LibraryOutOfReach) > 0, "{records:#?}");
}

/// Landlock lets a program look at what it may not open.
#[test]
fn a_program_that_may_not_open_the_agent_passes_nothing_on() {
    let source = r#"
        #define _GNU_SOURCE
        #include <fcntl.h>
        #include <linux/landlock.h>
        #include <stdio.h>
        #include <sys/prctl.h>
        #include <sys/syscall.h>
        #include <unistd.h>
        int main(void) {
            const char *all[] = {"/usr", "/lib", "/lib64", "/bin", "/etc", "/proc"};
            struct landlock_ruleset_attr rules = {LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_EXECUTE};
            int set = syscall(SYS_landlock_create_ruleset, &rules, sizeof rules, 0);
            if (set < 0) return 9;
            for (int i = 0; i < 6; i++) {
                struct landlock_path_beneath_attr below = {rules.handled_access_fs, open(all[i], O_PATH | O_CLOEXEC)};
                syscall(SYS_landlock_add_rule, set, LANDLOCK_RULE_PATH_BENEATH, &below, 0);
                close(below.parent_fd);
            }
            prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            if (syscall(SYS_landlock_restrict_self, set, 0)) return 7;
            execl("/usr/bin/env", "env", (char *)0);
            return 8;
        }"#;
    let Some(program) = built(&[], source) else { return };
    let observed = same_with_and_without(program.to_str().unwrap(), &[]);
    if observed.output.status.code() == Some(9) {
        return skip(Need::Landlock, "landlock_create_ruleset(2) fails");
    }
    assert_eq!(carried(&observed, "env"), Some(Carrying::LibraryOutOfReach));
}

/// The child changes its directory first: a relative name is another file there.
#[test]
fn a_spawn_that_changes_its_directory_passes_nothing_on() {
    if !tool("gcc") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let there = dir.path().join("there");
    std::fs::create_dir(&there).unwrap();
    let print = "#include <stdio.h>\nint main(int c, char **v, char **e) { while (*e) puts(*e++); }";
    let program = compile(dir.path(), &["-static"], print);
    std::fs::rename(program, there.join("tool")).unwrap();
    let program = compile(dir.path(), &[], print);
    std::fs::rename(program, dir.path().join("tool")).unwrap();
    let program = compile(
        dir.path(),
        &[],
        r#"
        #define _GNU_SOURCE
        #include <spawn.h>
        #include <stdlib.h>
        #include <string.h>
        #include <sys/wait.h>
        #include <unistd.h>
        extern char **environ;
        int main(int argc, char **argv) {
            posix_spawn_file_actions_t actions;
            char *args[] = {argv[2], NULL};
            int pid, error;
            chdir(argv[1]);
            posix_spawn_file_actions_init(&actions);
            posix_spawn_file_actions_addchdir_np(&actions, "there");
            if (strchr(argv[2], '/'))
                error = posix_spawn(&pid, argv[2], &actions, NULL, args, environ);
            else {
                setenv("PATH", argv[3], 1);
                error = posix_spawnp(&pid, argv[2], &actions, NULL, args, environ);
            }
            if (!error) waitpid(pid, NULL, 0);
            return error;
        }"#,
    );
    let here = dir.path().to_str().unwrap();
    let run = |args: &[&str]| same_with_and_without(program.to_str().unwrap(), &[&[here], args].concat());
    for args in [&["./tool"][..], &["tool", "."], &["tool", "/nowhere::/bin"]] {
        let observed = run(args);
        assert_eq!(carried(&observed, "tool"), Some(Carrying::Relative), "{args:?}");
    }
    // Not found here, but there.
    std::fs::remove_file(dir.path().join("tool")).unwrap();
    assert_eq!(carried(&run(&["tool", ".:/bin"]), "tool"), Some(Carrying::Relative));
    assert_eq!(carried(&run(&["env", "/bin:."]), "env"), Some(Carrying::Carried));
}

#[test]
fn another_root_without_the_agent_gets_no_word_of_it() {
    if !has(Need::Root) {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    for file in ["/bin/sh", "/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"] {
        if !has(Need::Path(file.into())) {
            return;
        }
        let to = root.path().join(&file[1..]);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(file, to).unwrap();
    }
    let root = root.path().to_str().unwrap();
    let observed = same_with_and_without("chroot", &[root, "/bin/sh", "-c", "echo inside; export"]);
    assert_eq!(carried(&observed, "sh"), Some(Carrying::LibraryOutOfReach));
}

#[test]
fn a_mount_without_exec_is_not_tried() {
    if !has(Need::Root) || !has(Need::Mounts) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().display().to_string();
    let copy = dir.path().join("libprepage-agent.so").display().to_string();
    let run = |agent: &str| {
        let script = format!(
            "mount -t tmpfs none {place} && cp {library} {copy} && {agent} exec sh -c '\
             mount -o remount,noexec {place}; /bin/sh -c \"echo child; export\"; true'",
            library = library().display(),
        );
        command("unshare", &["-m", "sh", "-c", &script]).output().unwrap()
    };
    let mut log = Log::create(1 << 20).unwrap();
    // The agent was loaded before its mount lost exec: its children are not given it.
    let with = run(&format!("LD_AUDIT={copy} PREPAGE_AGENT={}", log.variable(true)));
    assert_eq!(with, run(""));
    let records = log.read_last().unwrap();
    assert!(execs(&records, Carrying::LibraryOutOfReach) > 0, "{records:#?}");
}

#[test]
fn a_sandboxed_program_makes_only_its_own_calls() {
    // Kills whoever calls anything but what this program does afterwards.
    let source = r#"
        #include <fcntl.h>
        #include <linux/filter.h>
        #include <linux/seccomp.h>
        #include <stddef.h>
        #include <stdio.h>
        #include <sys/prctl.h>
        #include <sys/syscall.h>
        #include <unistd.h>
        #define ALLOW(nr) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
        int main(int argc, char **argv) {
            struct sock_filter filter[] = {
                BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
                ALLOW(SYS_openat), ALLOW(SYS_read), ALLOW(SYS_write), ALLOW(SYS_exit_group),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
            };
            struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
            prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            if (argc > 1) syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
            else prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
            char text[8] = "";
            int fd = open("/etc/hostname", O_RDONLY), here = open("relative", O_RDONLY);
            write(1, text, read(fd, text, 4));
            execl("/bin/true", "true", NULL);
            _exit(here < 0 ? 9 : 8);
        }"#;
    let Some(program) = built(&[], source) else { return };
    // The exec is not allowed: it ends there, with and without the agent.
    for args in [&[][..], &["syscall"]] {
        let observed = same_with_and_without(program.to_str().unwrap(), args);
        assert!(observed.has("/etc/hostname", Lookup::Open));
        assert!(!observed.output.stdout.is_empty(), "{:?}", observed.output);
        assert!(observed.lost.missed > 1, "the sandbox is counted, and the relative name");
    }
}

#[test]
fn a_program_that_answers_system_calls_itself_makes_only_its_own() {
    // From anywhere but libc they raise SIGSYS.
    let source = r#"
        #include <fcntl.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <string.h>
        #include <sys/mman.h>
        #include <sys/prctl.h>
        #include <unistd.h>
        int main(int argc, char **argv) {
            static char block = 1;
            unsigned long start = 0, end = 0;
            char line[512], mode[8], text[8];
            FILE *maps = fopen("/proc/self/maps", "r");
            while (fgets(line, sizeof line, maps) && !(strstr(line, "libc.so") && sscanf(line, "%lx-%lx %7s", &start, &end, mode) == 3 && mode[2] == 'x'));
            fclose(maps);
            if (prctl(59, 1, start, end - start, &block)) return 9;
            int fd = open("/etc/hostname", O_RDONLY);
            write(1, text, read(fd, text, 4));
            mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
            if (argc > 1 && *argv[1] == 'e') execl("/bin/true", "true", NULL);
            if (argc > 1) _exit(3);
            return 4;
        }"#;
    let Some(program) = built(&[], source) else { return };
    for args in [&[][..], &["_exit"], &["exec"]] {
        let observed = same_with_and_without(program.to_str().unwrap(), args);
        assert!(observed.output.status.code().is_some(), "{args:?}: {:?}", observed.output);
        assert!(observed.lost.missed > 0, "what is not seen from then on is counted");
    }
}

#[test]
fn who_asks_whether_there_are_filters_is_in_no_sandbox() {
    let source = r#"
        #include <linux/filter.h>
        #include <linux/seccomp.h>
        #include <stdlib.h>
        #include <sys/prctl.h>
        #include <sys/syscall.h>
        #include <unistd.h>
        int main(int argc, char **argv) {
            unsigned action = SECCOMP_RET_KILL_PROCESS;
            struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
            struct sock_fprog program = {1, &allow};
            prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, 0, 0, 0);
            syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, 0, 0, 0);
            syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 1, 0);
            syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, 0);
            syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action);
            access("relative", F_OK);
            if (argc == 1) return 0;
            prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
        }"#;
    let Some(program) = built(&[], source) else { return };
    let relative = std::env::current_dir().unwrap().join("relative");
    // What a program under a filter does is not seen, and that is counted.
    for (args, missed) in [(&[][..], 0), (&["filter"], 1)] {
        let observed = same_with_and_without(program.to_str().unwrap(), args);
        assert!(observed.has(relative.to_str().unwrap(), Lookup::Metadata), "{:?}", observed.names());
        assert_eq!(observed.lost.missed, missed, "{args:?}");
    }
}

#[test]
fn programs_under_other_filters_than_the_observer_get_none() {
    // Installed past libc, as a program without it does; harmless, and inherited.
    let source = r#"
        #include <linux/filter.h>
        #include <linux/seccomp.h>
        #include <sys/prctl.h>
        #include <sys/syscall.h>
        #include <unistd.h>
        int main(void) {
            struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
            struct sock_fprog program = {1, &allow};
            prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            long result;
            __asm__ volatile("syscall" : "=a"(result) : "a"((long)SYS_seccomp), "D"((long)SECCOMP_SET_MODE_FILTER), "S"(0l), "d"(&program) : "rcx", "r11", "memory");
            if (result) return 7;
            return execl("/usr/bin/env", "env", (char *)0);
        }"#;
    let Some(program) = built(&[], source) else { return };
    let observed = same_with_and_without(program.to_str().unwrap(), &[]);
    assert_eq!(carried(&observed, "env"), Some(Carrying::Sandboxed));
    assert_eq!(observed.started().len(), 1);
}

#[test]
fn a_tracer_in_the_tree_shows_what_it_shows_without() {
    if !tool("strace") {
        return;
    }
    let script = "strace -f -qq -e trace=openat,execve -e signal=none /bin/sh -c '/bin/true; /bin/true' 2>&1 | sed 's/0x[0-9a-f]*//g; s/[0-9]* vars//; s/^.pid *[0-9]*. //'";
    let observed = same_with_and_without("/bin/sh", &["-c", script]);
    assert_eq!(carried(&observed, "strace"), Some(Carrying::Carried));
    assert!(observed.started().iter().filter(|path| path.ends_with("true")).count() == 0);
}

#[test]
fn a_debugger_finds_its_program_as_it_is() {
    if !tool("gdb") {
        return;
    }
    let script = "gdb -batch -nx -ex run -ex 'info sharedlibrary' /bin/true 2>&1 | sed 's/process [0-9]*//'; \
                  gdb -batch -nx -ex 'break exit' -ex run -ex 'info sharedlibrary' -ex bt /bin/true 2>&1 | sed 's/process [0-9]*//'";
    same_with_and_without("/bin/sh", &["-c", script]);
}

#[test]
fn small_limits_are_left_to_the_program() {
    let observed = observe(&mut command(
        "/bin/sh",
        &["-c", "ulimit -v 200000; /bin/ls /; ulimit -n 10; /bin/ls / | /bin/cat"],
    ));
    let plain =
        command("/bin/sh", &["-c", "ulimit -v 200000; /bin/ls /; ulimit -n 10; /bin/ls / | /bin/cat"])
            .output()
            .unwrap();
    assert_eq!(observed.output, plain);
    assert!(plain.status.success());
    assert_eq!(observed.started().len(), 1, "a limited address space has no room for a log");
}

/// A program whose libraries need more static thread-local memory than ld.so has for them beside an auditing library runs
/// without the agent, under the same names and with the same arguments.
#[test]
fn libraries_with_much_static_thread_local_memory_find_room() {
    if !tool("gcc") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path().to_str().unwrap();
    let built = |name: &str, flags: &[&str], source: &str| {
        let built = compile(dir.path(), flags, source);
        std::fs::rename(built, dir.path().join(name)).unwrap();
        dir.path().join(name).display().to_string()
    };
    let thread_local = |bytes: u32| {
        format!(
            "__attribute__((tls_model(\"initial-exec\"))) static _Thread_local char all[{bytes}];\n\
             char *memory(void) {{ return all; }}"
        )
    };
    let shared = ["-shared", "-fPIC"];
    let large = built("liblarge.so", &shared, &thread_local(100_000));
    let middle = built("libmiddle.so", &shared, &thread_local(600));
    // Its program headers behind all else, as BOLT leaves them.
    let mut bytes = std::fs::read(&large).unwrap();
    let (at, count) =
        (u64::from_ne_bytes(bytes[32..40].try_into().unwrap()) as usize, usize::from(bytes[56]));
    let moved = bytes.len().next_multiple_of(8);
    bytes.resize(moved, 0);
    bytes.extend_from_within(at..at + 56 * count);
    bytes[32..40].copy_from_slice(&(moved as u64).to_ne_bytes());
    std::fs::write(dir.path().join("libmoved.so"), bytes).unwrap();
    // Of which only the program's own code knows that it is static.
    let dynamic = built(
        "libdynamic.so",
        &shared,
        "_Thread_local char all[100000]; char *other(void) { return all; } char *memory(void) { return all; }",
    );
    let at_run_time = built("libplugin.so", &shared, &thread_local(1300));
    let main = r#"
        #define _GNU_SOURCE
        #include <dlfcn.h>
        #include <stdio.h>
        #include <sys/auxv.h>
        #include <unistd.h>
        char *memory(void);
        int main(int argc, char **argv, char **environment) {
            char comm[32] = "", *executed = (char *)getauxval(AT_EXECFN);
            memory()[5] = 1;
            fgets(comm, sizeof comm, fopen("/proc/self/comm", "r"));
            printf("%s %s", executed, comm);
            for (; *argv; argv++) puts(*argv);
            for (; *environment; environment++) puts(*environment);
            puts(dlopen(getenv("PLUGIN"), RTLD_NOW) ? "loaded" : dlerror());
        }"#;
    let main = main.replace("#include <unistd.h>", "#include <stdlib.h>\n#include <unistd.h>");
    let with_large = built("with-large", &["-Wl,--no-as-needed", &large], &main);
    built("with-middle", &["-Wl,--no-as-needed", &middle], &main);
    let names = main
        .replace("char *memory(void);", "extern _Thread_local char all[100000];")
        .replace("memory()", "all");
    built("names-it", &["-Wl,--no-as-needed", &dynamic], &names);
    built("calls-it", &["-Wl,--no-as-needed", &dynamic], &main);
    let script = dir.path().join("script");
    std::fs::write(&script, format!("#!{with_large} first second\n")).unwrap();
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    for ran in [
        "./with-large a b",
        "exec ./with-large ./with-large",
        "./script c",
        "PATH=.:/bin script c",
        "./with-middle",
        "./names-it",
        "LD_PRELOAD=./liblarge.so env",
        "LD_PRELOAD=./libmoved.so env",
        "LD_PRELOAD=./liblarge.so sh -c 'env; env -i env; exit 3'",
    ] {
        let script = format!("cd {here}; export PLUGIN={at_run_time}; {ran}");
        let observed = same_with_and_without("/bin/sh", &["-c", &script]);
        assert_eq!(execs(&observed.records, Carrying::StaticTls), 1, "{ran}");
    }
    // Entered itself, not only a shell before it.
    let observed =
        observe(command(&with_large, &["a"]).env("PLUGIN", &at_run_time).env_remove("LD_LIBRARY_PATH"));
    let plain =
        command(&with_large, &["a"]).env("PLUGIN", &at_run_time).env_remove("LD_LIBRARY_PATH").output();
    assert_eq!(observed.output, plain.unwrap());
    assert_eq!(carried(&observed, "with-large"), Some(Carrying::StaticTls));
    // Not for libraries that have room, or need none at the start.
    let ran = format!("cd {here}; export PLUGIN={at_run_time}; ./calls-it; env; gcc --version");
    let observed = same_with_and_without("/bin/sh", &["-c", &ran]);
    assert_eq!(execs(&observed.records, Carrying::StaticTls), 0);
    assert!(observed.started().len() >= 4);
}

/// Nobody can tell there which file runs.
#[test]
fn without_a_proc_a_program_with_much_static_thread_local_memory_starts() {
    if !has(Need::Mounts) || !tool("gcc") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let large = "__attribute__((tls_model(\"initial-exec\"))) static _Thread_local char all[100000];\n\
                 char *memory(void) { return all; }";
    let library = dir.path().join("liblarge.so");
    std::fs::rename(compile(dir.path(), &["-shared", "-fPIC"], large), &library).unwrap();
    let source = r#"
        #include <stdio.h>
        char *memory(void);
        int main(int argc, char **argv, char **environment) {
            memory()[5] = 1;
            for (; *argv; argv++) puts(*argv);
            for (; *environment; environment++) puts(*environment);
        }"#;
    let program = compile(dir.path(), &["-Wl,--no-as-needed", library.to_str().unwrap()], source);
    let run = |agent: &str| {
        let script = format!("umount -l /proc; {agent} exec {} a b", program.display());
        command("unshare", &["-m", "sh", "-c", &script]).output().unwrap()
    };
    let log = Log::create(1 << 20).unwrap();
    let agent = format!("LD_AUDIT={} PREPAGE_AGENT={}", self::library().display(), log.variable(true));
    let plain = run("");
    assert!(plain.status.success(), "{plain:?}");
    assert_eq!(run(&agent), plain);
}

/// Nobody can tell there whether a debugger looks on.
#[test]
fn without_a_proc_nothing_is_passed_on() {
    if !has(Need::Mounts) {
        return;
    }
    let observed =
        same_with_and_without("unshare", &["-m", "sh", "-c", "umount -l /proc; exec /usr/bin/env"]);
    assert_eq!(carried(&observed, "env"), Some(Carrying::Traced));
}

/// ld.so would tell of the agent.
#[test]
fn a_program_whose_loading_is_looked_at_gets_no_agent() {
    let script = "LD_DEBUG=libs /bin/true 2>&1 | sed 's/^ *[0-9]*//'; LD_DEBUG= /bin/true";
    let observed = same_with_and_without("/bin/sh", &["-c", script]);
    assert_eq!(observed.started().iter().filter(|path| path.ends_with("true")).count(), 1);

    // The names of a spawned one are not waited for.
    let source = r#"
        #include <spawn.h>
        #include <sys/wait.h>
        int main(int count, char **args) {
            char *environment[] = {args[1], 0}, *argv[] = {"true", 0};
            int child;
            return posix_spawn(&child, "/bin/true", 0, 0, argv, environment) || waitpid(child, 0, 0) != child;
        }"#;
    let Some(program) = built(&[], source) else { return };
    for (variable, carrying) in [
        ("LD_DEBUG=unused", Carrying::Environment),
        ("PREPAGE_AGENT=another", Carrying::Environment),
        ("LD_DEBUG=", Carrying::Carried),
    ] {
        let observed = observe(&mut command(program.to_str().unwrap(), &[variable]));
        assert!(observed.output.status.success(), "{variable}: {:?}", observed.output);
        assert_eq!(carried(&observed, "true"), Some(carrying), "{variable}");
    }
}

#[test]
fn an_environment_that_grows_while_it_is_copied_is_passed_on_as_it_is() {
    let source = r#"
        #include <pthread.h>
        #include <spawn.h>
        #include <sys/wait.h>
        static char *variables[90], *args[] = {"true", 0};
        static int is_over;
        static void *changes(void *none) {
            while (!__atomic_load_n(&is_over, __ATOMIC_RELAXED)) {
                __atomic_store_n(&variables[1], NULL, __ATOMIC_RELAXED);
                for (volatile int n = 0; n < 300; n++);
                __atomic_store_n(&variables[1], "B=1", __ATOMIC_RELAXED);
                for (volatile int n = 0; n < 300; n++);
            }
            return none;
        }
        int main(void) {
            pthread_t thread;
            for (int n = 0; n < 89; n++) variables[n] = "A=1";
            if (pthread_create(&thread, 0, changes, 0)) return 9;
            for (int n = 0, pid; n < 300; n++)
                if (!posix_spawn(&pid, "/bin/true", 0, 0, args, variables)) waitpid(pid, 0, 0);
            __atomic_store_n(&is_over, 1, __ATOMIC_RELAXED);
            return pthread_join(thread, 0);
        }"#;
    let Some(program) = built(&["-pthread"], source) else { return };
    let observed = observe(&mut command(program.to_str().unwrap(), &[]));
    assert!(observed.output.status.success(), "{:?}", observed.output);
    assert_eq!(carried(&observed, "true"), Some(Carrying::Carried));
}

/// mlockall(2) counts every mapping: the log, too, as long as it is there.
#[test]
fn a_program_may_lock_its_memory() {
    if !has(Need::Root) || !tool("setpriv") {
        return;
    }
    let source = r#"
        #define _GNU_SOURCE
        #include <fcntl.h>
        #include <pthread.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <sys/mman.h>
        #include <sys/syscall.h>
        #include <unistd.h>
        static int begun, locked;
        static void *look_up(void *unused) {
            char name[32];
            for (int n = 0; n < 10 || !__atomic_load_n(&locked, __ATOMIC_ACQUIRE); n++) {
                sprintf(name, "/nowhere/%d", n);
                access(name, F_OK);
                __atomic_fetch_add(&begun, n == 0, __ATOMIC_RELEASE);
            }
            return unused;
        }
        int main(int argc, char **argv) {
            pthread_attr_t attributes;
            pthread_t threads[4];
            pthread_attr_init(&attributes);
            pthread_attr_setstacksize(&attributes, 65536);
            for (int n = 0; n < 4; n++) pthread_create(&threads[n], &attributes, look_up, NULL);
            /* Each name is told by one of those that look it up, which may have no processor for long. */
            while (__atomic_load_n(&begun, __ATOMIC_ACQUIRE) < 4) usleep(1000);
            int result = argc > 1 ? syscall(SYS_mlockall, MCL_CURRENT | MCL_FUTURE) : mlockall(MCL_CURRENT | MCL_FUTURE);
            __atomic_store_n(&locked, 1, __ATOMIC_RELEASE);
            for (int n = 0; n < 4; n++) pthread_join(threads[n], NULL);
            access("/nowhere/afterwards", F_OK);
            printf("%d\n", result);
            fflush(stdout);
            return execl("/bin/true", "true", (char *)0);
        }"#;
    let Some(program) = built(&["-pthread"], source) else { return };
    for way in ["", "syscall"] {
        let script = format!("ulimit -l 8192; MALLOC_ARENA_MAX=1 exec $0 {way}");
        let limited = ["--bounding-set=-ipc_lock", "/bin/sh", "-c", &script, program.to_str().unwrap()];
        let plain = command("setpriv", &limited).output().unwrap();
        let observed = observe(&mut command("setpriv", &limited));
        assert_eq!(plain.stdout, b"0\n");
        assert_eq!(observed.output, plain);
        assert!(observed.has("/nowhere/0", Lookup::Metadata));
        assert!(!observed.has("/nowhere/afterwards", Lookup::Metadata));
        assert!(observed.lost.dropped > 0, "what the process does afterwards is counted");
    }
}

#[test]
fn a_program_may_limit_its_address_space() {
    let source = r#"
        #define _GNU_SOURCE
        #include <stdio.h>
        #include <string.h>
        #include <sys/mman.h>
        #include <sys/resource.h>
        #include <sys/syscall.h>
        #include <unistd.h>
        int main(int argc, char **argv) {
            struct rlimit limit = {40 << 20, 40 << 20};
            if (!strcmp(argv[1], "setrlimit")) setrlimit(RLIMIT_AS, &limit);
            if (!strcmp(argv[1], "prlimit")) prlimit(0, RLIMIT_AS, &limit, NULL);
            if (!strcmp(argv[1], "syscall")) syscall(SYS_prlimit64, 0, RLIMIT_AS, &limit, NULL);
            if (!strcmp(argv[1], "other")) {
                setrlimit(RLIMIT_CORE, &limit);
                prlimit(0, RLIMIT_AS, NULL, &limit);
                setrlimit(RLIMIT_AS, &limit);
            }
            access("/nowhere/afterwards", F_OK);
            void *mapped = mmap(0, 32 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            printf("%d\n", mapped != MAP_FAILED);
        }"#;
    let Some(program) = built(&[], source) else { return };
    for way in ["setrlimit", "prlimit", "syscall", "other"] {
        let observed = observe(&mut command(program.to_str().unwrap(), &[way]));
        assert_eq!(observed.output.stdout, b"1\n", "{way}");
        assert_eq!(observed.has("/nowhere/afterwards", Lookup::Metadata), way == "other");
        assert_eq!(observed.lost.dropped > 0, way != "other");
    }
}

#[test]
fn arguments_as_long_as_they_may_be_fit() {
    if !tool("python3") {
        return;
    }
    // Finds the longest argument list that the kernel takes, in steps smaller than what the agent adds.
    let script = "import os, subprocess\n\
        def fits(n, run):\n\
        \x20 try: return run(['/bin/true'] + ['x' * 50] * n, {'A': '1'})\n\
        \x20 except OSError as error: return error.errno\n\
        def spawn(args, env): return os.waitpid(os.posix_spawn(args[0], args, env), 0)[1]\n\
        def execute(args, env): return subprocess.run(args, env=env).returncode\n\
        for run in spawn, execute:\n\
        \x20 low, high = 0, 1 << 17\n\
        \x20 while high - low > 1:\n\
        \x20   middle = (low + high) // 2\n\
        \x20   low, high = (middle, high) if fits(middle, run) == 0 else (low, middle)\n\
        \x20 print(low, fits(high, run))";
    same_with_and_without("/usr/bin/python3", &["-c", script]);
}

/// A crash handler on its alternate stack, a thread with the smallest one: what the agent does takes little of it, however
/// large the environment is.
#[test]
fn small_stacks_have_room() {
    let source = r#"
        #define _GNU_SOURCE
        #include <pthread.h>
        #include <signal.h>
        #include <spawn.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <string.h>
        #include <sys/auxv.h>
        #include <sys/mman.h>
        #include <sys/wait.h>
        #include <unistd.h>
        extern char **environ;
        static const char *way;
        static void *start(void *unused) {
            char *args[] = {"sh", "-c", "env | wc -l", NULL};
            pid_t pid = 0;
            if (!strcmp(way, "execl")) execl("/bin/sh", "sh", "-c", "env | wc -l", (char *)0);
            if (!strcmp(way, "execlp")) execlp("sh", "sh", "-c", "env | wc -l", (char *)0);
            if (!strcmp(way, "spawn")) posix_spawn(&pid, "/bin/sh", NULL, NULL, args, environ);
            if (!strcmp(way, "spawnp")) posix_spawnp(&pid, "sh", NULL, NULL, args, environ);
            if (!strcmp(way, "vfork") && !(pid = vfork())) { execvp("sh", args); _exit(9); }
            waitpid(pid, NULL, 0);
            return unused;
        }
        static void handle(int signal) { start(NULL); _exit(3); }
        int main(int argc, char **argv) {
            way = argv[2];
            if (!strcmp(argv[1], "thread")) {
                pthread_attr_t attributes;
                pthread_t thread;
                pthread_attr_init(&attributes);
                pthread_attr_setstacksize(&attributes, 16384);
                pthread_create(&thread, &attributes, start, NULL);
                return pthread_join(thread, NULL);
            }
            /* What the kernel asks for where registers are many, and then what is left of 8192 bytes where they are few. */
            size_t least = getauxval(AT_MINSIGSTKSZ), size = least + 4096 > 8192 ? least + 4096 : 8192;
            char *memory = mmap(0, 65536 + size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            stack_t stack = {.ss_sp = memory + 65536, .ss_size = size};
            struct sigaction action = {.sa_handler = handle, .sa_flags = SA_ONSTACK};
            mprotect(memory, 65536, PROT_NONE);
            if (sigaltstack(&stack, NULL)) return 9;
            sigaction(SIGUSR1, &action, NULL);
            return raise(SIGUSR1);
        }"#;
    let Some(program) = built(&["-pthread"], source) else { return };
    for place in ["thread", "signal"] {
        for way in ["execl", "execlp", "spawn", "spawnp", "vfork"] {
            for more in [0, 900, 2000] {
                let run = |with: bool| {
                    let mut command = command(program.to_str().unwrap(), &[place, way]);
                    command.env_clear().env("PATH", "/nowhere:/usr/bin:/bin");
                    command.envs((0..more).map(|n| (format!("VARIABLE_{n}"), "value")));
                    match with {
                        true => observe(&mut command),
                        false => Observed {
                            output: command.output().unwrap(),
                            records: Vec::new(),
                            received: Vec::new(),
                            lost: Default::default(),
                        },
                    }
                };
                let observed = run(true);
                assert_eq!(observed.output, run(false).output, "{place} {way} {more}");
                // The array for an exec is the agent's own, of a limited size.
                let large = more == 2000 && !way.starts_with("spawn");
                let expected = if large { Carrying::TooLarge } else { Carrying::Carried };
                assert_eq!(carried(&observed, "sh"), Some(expected), "{place} {way} {more}");
            }
        }
    }
}

#[test]
fn a_process_may_start_many_with_a_large_environment() {
    let source = r#"
        #include <signal.h>
        #include <stdio.h>
        #include <sys/wait.h>
        #include <unistd.h>
        int main(void) {
            char *args[] = {"wc", "-c", "/proc/self/environ", NULL};
            fflush(stdout);
            for (int n = 0; n < 3; n++) {
                int pid = vfork();
                if (!pid) { execv("/nowhere", args); execvp("wc", args); _exit(9); }
                waitpid(pid, NULL, 0);
                pid = fork();
                if (!pid) { execvp("wc", args); _exit(9); }
                waitpid(pid, NULL, 0);
            }
            return execl("/usr/bin/env", "env", (char *)0);
        }"#;
    let Some(program) = built(&[], source) else { return };
    let run = |with: bool, own: bool| {
        let mut command = command(program.to_str().unwrap(), &[]);
        command.env_clear().env("PATH", "/usr/bin:/bin");
        if own {
            command.env("LD_AUDIT", "/nowhere/own.so");
        } else {
            command.envs((0..500).map(|n| (format!("VARIABLE_{n}"), "value")));
        }
        if with { Ok(observe(&mut command)) } else { Err(command.output().unwrap()) }
    };
    for own in [false, true] {
        let (Ok(observed), Err(plain)) = (run(true, own), run(false, own)) else { unreachable!() };
        let lines = |bytes: &[u8]| {
            let is_counted = |line: &&str| !line.ends_with("/proc/self/environ");
            let text = String::from_utf8_lossy(bytes);
            let mut lines: Vec<_> = text.lines().filter(is_counted).map(str::to_owned).collect();
            // The user's own LD_AUDIT comes last.
            lines.sort();
            lines
        };
        assert_eq!(lines(&observed.output.stdout), lines(&plain.stdout));
        assert_eq!(lines(&observed.output.stderr), lines(&plain.stderr));
        assert_eq!(observed.output.status, plain.status);
        assert_eq!(observed.started().iter().filter(|path| path.ends_with("wc")).count(), 6);
        assert!(observed.started().iter().any(|path| path.ends_with("env")));
    }
}

/// The agent's variables are in the environment of the process itself while libc starts a shell for it.
#[test]
fn who_jumps_out_of_system_finds_nothing_in_its_environment() {
    let source = r#"
        #include <setjmp.h>
        #include <signal.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <sys/time.h>
        #include <unistd.h>
        extern char **environ;
        static sigjmp_buf out, inside;
        static void leave(int signal) {
            if (!sigsetjmp(inside, 1)) siglongjmp(inside, signal);
            siglongjmp(out, signal);
        }
        static void stay(int signal) {
            if (!sigsetjmp(inside, 1)) siglongjmp(inside, signal);
        }
        static void shell(void (*handle)(int), const char *command) {
            struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};
            struct itimerval soon = {.it_value = {.tv_usec = 300000}};
            sigaction(SIGALRM, &action, NULL);
            setitimer(ITIMER_REAL, &soon, NULL);
            printf("%d\n", system(command));
        }
        int main(void) {
            for (int n = 0; n < 3; n++) {
                if (!sigsetjmp(out, 1)) shell(n < 2 ? leave : stay, "exec sleep 1 >/dev/null 2>&1");
                for (char **variable = environ; *variable; variable++) puts(*variable);
                fflush(stdout);
            }
            system("env");
            return execl("/usr/bin/env", "env", (char *)0);
        }"#;
    for flags in [&[][..], &["-O2", "-D_FORTIFY_SOURCE=2"]] {
        let Some(program) = built(flags, source) else { return };
        let observed = same_with_and_without(program.to_str().unwrap(), &[]);
        assert_eq!(carried(&observed, "sh"), Some(Carrying::Carried));
        let sleeps = observed.started().iter().filter(|path| path.ends_with("sleep")).count();
        assert_eq!(sleeps, 3);
    }
}

/// The agent has files of /proc open while a file is unmapped, and others before an exec.
#[test]
fn who_jumps_out_of_a_signals_handler_keeps_no_descriptor_of_the_agent() {
    let source = r#"
        #define _GNU_SOURCE
        #include <fcntl.h>
        #include <setjmp.h>
        #include <signal.h>
        #include <stdio.h>
        #include <sys/mman.h>
        #include <sys/time.h>
        #include <unistd.h>
        static sigjmp_buf back;
        static void handle(int number) { siglongjmp(back, number); }
        static void ring(int each_us) {
            struct itimerval timer = {{0, each_us}, {0, each_us}};
            setitimer(ITIMER_REAL, &timer, NULL);
        }
        int main(int argc, char **argv) {
            int file = open(argv[0], O_RDONLY);
            volatile int times = 0, first = dup(0);
            close(first);
            signal(SIGALRM, handle);
            sigsetjmp(back, 1);
            ring(70);
            /* What may not be executed. */
            char *none[] = {NULL};
            while (times++ < 1000) execv("/etc/passwd", none);
            while (times++ < 2000) {
                volatile char *at = mmap(NULL, 8192, PROT_READ, MAP_PRIVATE, file, 0);
                (void)(at[0] + at[4096]);
                munmap((void *)at, 8192);
            }
            ring(0);
            signal(SIGALRM, SIG_IGN);
            printf("%d\n", dup(0) - first);
            return 0;
        }"#;
    if !has(Need::Linux(6, 11)) {
        return;
    }
    let Some(program) = built(&[], source) else { return };
    let mut observation = Observation::new();
    observation.log().ask_for(Last::Tell).unwrap();
    let mut command = command(program.to_str().unwrap(), &[]);
    let output = observation.enter(&mut command).stdin(Stdio::null()).output().unwrap();
    let observed = observation.take(output);
    assert_eq!((observed.output.status.code(), &*observed.output.stdout), (Some(0), &b"0\n"[..]));
    let is_touched = |record: &Record| matches!(record.event, Event::Touched { .. });
    assert!(observed.records.iter().any(is_touched));
}

/// Other threads may look at the environment meanwhile, so the shell goes without the agent. The observer learns that there was one.
#[test]
fn a_shell_that_one_of_several_threads_starts_goes_without_the_agent_and_is_told() {
    let source = r#"
        #include <pthread.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <unistd.h>
        static void *waits(void *fd) { char byte; return read(*(int *)fd, &byte, 1) < 0 ? fd : NULL; }
        int main(void) {
            int ends[2];
            pthread_t thread;
            if (pipe(ends) || pthread_create(&thread, NULL, waits, ends) || system("env")) return 1;
            FILE *out = popen("env", "r");
            char line[4096];
            while (fgets(line, sizeof line, out)) fputs(line, stdout);
            pclose(out);
            close(ends[1]);
            return pthread_join(thread, NULL);
        }"#;
    let Some(program) = built(&["-pthread"], source) else { return };
    let observed = same_with_and_without(program.to_str().unwrap(), &[]);
    let is_shell = |record: &&Record| {
        let carrying = Carrying::SeveralThreads;
        record.event == Event::Executed { path: "/bin/sh".into(), carrying }
    };
    assert_eq!(observed.records.iter().filter(is_shell).count(), 2, "{:?}", observed.records);
}

#[test]
fn other_namespaces_and_interposers_keep_their_own_functions() {
    if !tool("gcc") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = r#"
        #define _GNU_SOURCE
        #include <dlfcn.h>
        #include <errno.h>
        #include <fcntl.h>
        #include <pthread.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <unistd.h>
        static void *blocked(void *fd) { char byte; read(*(int *)fd, &byte, 1); return NULL; }
        int main(void) {
            void *libc = dlmopen(LM_ID_NEWLM, "libc.so.6", RTLD_NOW);
            int (*other)(const char *, int) = (int (*)(const char *, int))dlsym(libc, "open");
            int *(*error)(void) = (int *(*)(void))dlsym(libc, "__errno_location");
            errno = 0;
            printf("%d %d %d\n", other("/nowhere", 0), *error(), errno);
            printf("%d %d\n", open("/nowhere", 0), errno);
            printf("%d\n", dlsym(RTLD_DEFAULT, "open") == (void *)open);
            printf("%d %d\n", open(NULL, 0), errno);
            int ends[2];
            pthread_t thread;
            void *result;
            pipe(ends);
            pthread_create(&thread, NULL, blocked, ends);
            pthread_cancel(thread);
            pthread_join(thread, &result);
            printf("%d\n", result == PTHREAD_CANCELED);
            fflush(stdout);
            setenv("ADDED", "1", 1);
            system("echo $ADDED; env | grep -c PREPAGE_AGENT");
            FILE *out = popen("echo popen; exit 3", "r");
            char line[64];
            while (fgets(line, sizeof line, out)) fputs(line, stdout);
            printf("%d\n", pclose(out));
            fflush(stdout);
            clearenv();
            return execlp("env", "env", (char *)0);
        }"#;
    let program = compile(dir.path(), &["-pthread"], source);
    let observed = same_with_and_without(program.to_str().unwrap(), &[]);
    assert!(observed.has("/nowhere", Lookup::Open));
    std::fs::rename(&program, dir.path().join("program")).unwrap();
    let interposer = compile(
        dir.path(),
        &["-shared", "-fPIC"],
        r#"
        #define _GNU_SOURCE
        #include <dlfcn.h>
        #include <unistd.h>
        int open(const char *path, int flags, int mode) {
            write(1, "interposed\n", 11);
            return ((int (*)(const char *, int, int))dlsym(RTLD_NEXT, "open"))(path, flags, mode);
        }"#,
    );
    let run = |with: bool| {
        let mut command = command(dir.path().join("program").to_str().unwrap(), &[]);
        command.env("LD_PRELOAD", &interposer).stdin(Stdio::null());
        if with { observe(&mut command).output } else { command.output().unwrap() }
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn programs_without_a_plt_are_seen_too() {
    let source =
        "#include <fcntl.h>\nint main(void) { return open(\"/nowhere/at/all\", O_RDONLY) == -1 ? 0 : 1; }";
    let Some(program) = built(&["-fno-plt", "-Wl,-z,now"], source) else { return };
    let observed = same_with_and_without(program.to_str().unwrap(), &[]);
    assert!(observed.has("/nowhere/at/all", Lookup::Open));
}

#[test]
fn children_that_only_fork_are_seen() {
    if !tool("python3") {
        return;
    }
    let script = "import os\nfor n in range(3):\n  if os.fork() == 0:\n    os.path.exists('/nowhere/%d' % n); os._exit(0)\n  os.wait()\nos.closerange(3, 4096)\nprint(os.open('/etc/hostname', os.O_RDONLY))";
    let observed = same_with_and_without("/usr/bin/python3", &["-c", script]);
    for n in 0..3 {
        assert!(observed.has(&format!("/nowhere/{n}"), Lookup::Metadata));
    }
    let pids: std::collections::BTreeSet<u32> = observed.records.iter().map(|record| record.pid).collect();
    assert_eq!(pids.len(), 4);
}

#[test]
fn real_programs_print_what_they_print_without() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a", "b", "c"] {
        std::fs::write(dir.path().join(format!("{name}.c")), format!("int {name}(void) {{ return 1; }}\n"))
            .unwrap();
    }
    let makefile = "all: a.o b.o c.o\n\tar t all.a 2>&1 || true\n%.o: %.c\n\tgcc -c $< -o $@\n\techo $@ $(shell echo shell)\n.PHONY: a.o b.o c.o\n";
    std::fs::write(dir.path().join("Makefile"), makefile).unwrap();
    let make = ["-j2", "-O", "-C", dir.path().to_str().unwrap()];
    let all: [(&str, &[&str]); 7] = [
        ("make", &make),
        (
            "perl",
            &[
                "-e",
                "print join ',', map { \"$_=$ENV{$_}\" } sort keys %ENV; print `env`, -e '/etc/passwd'; exit 4",
            ],
        ),
        (
            "/usr/bin/python3",
            &[
                "-c",
                "import os, subprocess, sys; print(dict(os.environ), subprocess.run(['env'], env={'A': '1'}, capture_output=True), os.listdir('/proc/self/fd')); sys.exit(5)",
            ],
        ),
        (
            "node",
            &[
                "-e",
                "console.log(process.env, require('child_process').execSync('env').toString(), require('fs').readdirSync('/'))",
            ],
        ),
        ("java", &["-XshowSettings:properties", "-version"]),
        (
            "emacs",
            &[
                "-Q",
                "--batch",
                "--eval",
                "(progn (print process-environment) (print (shell-command-to-string \"env; ls /\")))",
            ],
        ),
        ("php", &["-r", "echo json_encode(getenv()), shell_exec('env'); exit(6);"]),
    ];
    for (program, args) in all {
        if tool(program) {
            let settled = |text: &[u8]| {
                String::from_utf8_lossy(text)
                    .lines()
                    .filter(|line| !line.contains("[pid "))
                    .map(str::to_owned)
                    .collect::<Vec<_>>()
            };
            let plain = command(program, args).stdin(Stdio::null()).output().unwrap();
            let observed = observe(&mut command(program, args));
            assert_eq!(observed.output.status, plain.status, "{program}");
            let [with, without] = [&observed.output, &plain].map(|output| {
                let mut lines = settled(&output.stdout);
                lines.extend(settled(&output.stderr));
                // Jobs of make -j end in any order.
                lines.sort();
                lines
            });
            assert_eq!(with, without, "{program}");
            assert!(!observed.started().is_empty(), "{program}");
        }
    }
}
