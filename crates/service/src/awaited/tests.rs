use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::*;

/// A shell that says when it runs `script`, which waits for a line before it goes on.
struct Shell(Child);

impl Shell {
    fn new(script: &str) -> Self {
        let mut child = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        Self(child)
    }

    fn id(&self) -> u32 {
        self.0.id()
    }

    /// Lets it go on, and waits until what it executes then says a byte.
    fn go_on(&mut self) {
        self.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        self.0.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    }

    /// Lets it go on to its end.
    fn let_go(&mut self) {
        drop(self.0.stdin.take());
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Awaited {
    fn begin_now(&mut self, pid: u32, starter: impl FnOnce() -> Option<u32>, file: FileHandle) -> Begun {
        self.begin(pid, Moment::before_exec_of(pid), starter, file)
    }
}

fn root() -> Option<u32> {
    Some(0)
}

fn file(path: impl AsRef<Path>) -> FileHandle {
    FileHandle::of(&std::fs::canonicalize(path).unwrap()).unwrap()
}

/// Has all that is awaited be awaited for as long as the test takes.
fn wait_long(awaited: &mut Awaited) {
    awaited.all.iter_mut().for_each(|one| one.until += Duration::from_secs(3600));
}

/// What is found until nothing is awaited any more.
fn all_found(awaited: &mut Awaited) -> Vec<(u32, FileHandle)> {
    let mut found = Vec::new();
    while let Some(pause) = awaited.pause() {
        std::thread::sleep(pause);
        awaited.look(&mut |pid, _, file, _| found.push((pid, file)));
    }
    found
}

#[test]
fn an_exec_is_done_when_the_process_runs_the_file_and_a_script_never_is() {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("script");
    std::fs::write(&script, "").unwrap();
    let (script, sh, sleep) = (file(script), file("/bin/sh"), file("/bin/sleep"));
    let mut child = Shell::new("echo; read line; exec sleep 60");
    let mut awaited = Awaited::default();
    assert_eq!(awaited.begin_now(child.id(), root, script.clone()), Begun::Awaited);
    assert!(awaited.pause().is_some());
    assert_eq!(awaited.begin_now(child.id(), root, sh), Begun::Done);
    assert_eq!(awaited.pause(), None, "the script is what the shell reads");
    assert_eq!(awaited.begin_now(child.id(), root, sleep.clone()), Begun::Awaited);
    for _ in 0..10 {
        assert_eq!(awaited.begin_now(child.id(), root, script.clone()), Begun::Awaited);
    }
    assert_eq!(awaited.all.len(), OF_A_PROCESS_MAX);
    assert_eq!(awaited.begin_now(child.id(), root, sleep.clone()), Begun::Awaited);
    wait_long(&mut awaited);
    child.let_go();
    assert_eq!(all_found(&mut awaited), [(child.id(), sleep.clone())]);
    let id = child.id();
    drop(child);
    assert_eq!(awaited.begin_now(id, root, sleep), Begun::Gone);
}

#[test]
fn a_process_that_executes_two_programs_in_a_row_is_told_with_both() {
    let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let first = directory.path().join("first");
    // By a process of its own: what this one has open to write, a child of another test's has open too, and nobody can execute it.
    assert!(
        Command::new("cp")
            .arg("--dereference")
            .args([Path::new("/bin/sh"), &first])
            .status()
            .unwrap()
            .success()
    );
    let mut child =
        Shell::new(&format!("echo; read line; exec {} -c 'echo; read line; exec sleep 60'", first.display()));
    let (first, sleep) = (file(&first), file("/bin/sleep"));
    let mut awaited = Awaited::default();
    assert_eq!(awaited.begin_now(child.id(), root, first.clone()), Begun::Awaited);
    child.go_on();
    // The second exec arrives before anybody looks at the first one again.
    assert_eq!(awaited.begin_now(child.id(), root, sleep.clone()), Begun::Awaited);
    wait_long(&mut awaited);
    let mut found = None;
    while found.is_none() {
        std::thread::sleep(awaited.pause().expect("both are awaited"));
        awaited.look(&mut |pid, _, file, _| found = Some((pid, file)));
    }
    assert_eq!(found, Some((child.id(), first)));
    child.let_go();
    assert_eq!(all_found(&mut awaited), [(child.id(), sleep)]);
}

#[test]
fn the_same_program_executed_again_is_awaited_until_it_is() {
    let mut child = Shell::new("echo; read line; exec sh -c 'echo; read line'");
    let sh = file("/bin/sh");
    let mut awaited = Awaited::default();
    assert_eq!(awaited.begin_now(child.id(), root, sh.clone()), Begun::Done);
    assert_eq!(awaited.begin_now(child.id(), root, sh.clone()), Begun::Awaited, "it runs what it ran");
    wait_long(&mut awaited);
    child.go_on();
    assert_eq!(all_found(&mut awaited), [(child.id(), sh)]);
}

#[test]
fn a_user_whose_execs_fail_crowds_out_nobody_else() {
    let mut awaited = Awaited::default();
    let script = file("/bin/true");
    let children: Vec<Shell> =
        (0..=OF_A_USER_MAX.div_ceil(OF_A_PROCESS_MAX)).map(|_| Shell::new("echo; read line")).collect();
    let mut begin = |child: &Shell, uid| awaited.begin_now(child.id(), || Some(uid), script.clone());
    let (last, others) = children.split_last().unwrap();
    for child in others {
        (0..OF_A_PROCESS_MAX).for_each(|_| assert_eq!(begin(child, 7), Begun::Awaited));
    }
    assert_eq!(begin(last, 7), Begun::Crowded);
    assert_eq!([begin(last, 8), begin(last, 0)], [Begun::Awaited; 2]);
}
