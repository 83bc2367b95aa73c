//! Programs that are started with and without `prepage run`, and are to be the same.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Output};

use super::{Sandbox, text};

/// Says what a program can see of the world it was started in.
pub const LOOK: &str = "import os, resource, signal, sys\n\
    fds = sorted(int(fd) for fd in os.listdir('/proc/self/fd'))\n\
    def target(fd):\n\
    \x20   try: return os.readlink(f'/proc/self/fd/{fd}').split(':')[0]\n\
    \x20   except OSError: return None\n\
    print([(fd, target(fd)) for fd in fds if target(fd)])\n\
    for line in open('/proc/self/status'):\n\
    \x20   if line.startswith(('SigBlk', 'SigIgn', 'SigCgt', 'Cap', 'NoNew', 'Seccomp', 'Threads', 'TracerPid', 'Uid', 'Gid', 'Umask')): print(line, end='')\n\
    print(sorted((k, v) for k, v in os.environ.items() if k not in ('_',)))\n\
    print(os.getcwd(), os.getpid() == os.getsid(0), os.getpgrp() == os.getpid(), os.nice(0))\n\
    print([resource.getrlimit(limit) for limit in range(16)], os.sched_getaffinity(0))\n\
    print(open(f'/proc/{os.getpid()}/task/{os.getpid()}/children').read().split())\n\
    try: print(os.waitpid(-1, os.WNOHANG))\n\
    except ChildProcessError: print('no child')\n";

/// What is to be the same.
pub fn seen(output: &Output) -> (Option<i32>, Option<i32>, String, String) {
    // gdb says which process it was.
    let numbered = |word: &str| word.strip_suffix(')').is_some_and(|word| word.parse::<u32>().is_ok());
    let words = text(&output.stdout).split(' ').filter(|word| !numbered(word)).collect::<Vec<_>>().join(" ");
    (output.status.code(), output.status.signal(), words, text(&output.stderr))
}

/// Where programs are started: with `prefix` in front of them and `prepage` alike.
pub struct Place {
    pub sandbox: Sandbox,
    prefix: Vec<String>,
    pub prepage: PathBuf,
}

impl Place {
    pub fn new() -> Self {
        Self { sandbox: Sandbox::new(), prefix: Vec::new(), prepage: env!("CARGO_BIN_EXE_prepage").into() }
    }

    /// The same behind words that start what follows them.
    pub fn behind(self, prefix: &[&str]) -> Self {
        Self { prefix: prefix.iter().map(ToString::to_string).collect(), ..self }
    }

    /// The same in a shell, which does something before: `exec "$@"` starts the program.
    pub fn after(self, script: &str) -> Self {
        let script = format!("{script}\nexec \"$@\"");
        self.behind(&["sh", "-c", &script, "sh"])
    }

    pub fn start(&self, words: &[&str]) -> Command {
        let all: Vec<&str> = self.prefix.iter().map(String::as_str).chain(words.iter().copied()).collect();
        self.sandbox.command(all[0], &all[1..])
    }

    pub fn output(&self, words: &[&str]) -> Output {
        self.start(words).output().unwrap()
    }

    /// Starts `program` without, for the first time, when it is known, and from then on: always the same. Returns what the
    /// first start said with -v, where it is the program's streams and one line more.
    pub fn same(&self, program: &[&str]) {
        let plain = seen(&self.output(program));
        let prepage = self.prepage.to_str().unwrap();
        for start in 0..3 {
            let started = seen(&self.output(&[&[prepage, "run", "--"], program].concat()));
            assert_eq!(started, plain, "start {start} of {program:?}");
            self.sandbox.wait_for_helpers();
        }
        let unlearned = seen(&self.output(&[&[prepage, "run", "--no-learn", "--"], program].concat()));
        assert_eq!(unlearned, plain, "{program:?}");
    }

    /// What `run -v` says of a first start of `program`.
    pub fn said(&self, program: &[&str]) -> String {
        let prepage = self.prepage.to_str().unwrap();
        let start = || self.output(&[&[prepage, "run", "-v", "--"], program].concat());
        text(&self.sandbox.in_time(start).stderr)
    }
}
