//! What a process reports of its pools, and what becomes of those that cannot be asked.

mod support;

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::{Child, Stdio};
use std::time::Duration;

use prepage_testing::{Need, has, passes_as_child, this_test};
use prepage_vm::view::ViewError;
use prepage_vm::viewed::{AskError, Socket, sockets};
use prepage_vm::{MapOptions, Pool, Vm, VmOptions};
use support::{child_command, file, is_child, touch};

const LONG: Duration = Duration::from_secs(120);

fn sockets_of(pid: u32) -> Vec<Socket> {
    sockets().unwrap().into_iter().filter(|socket| socket.pid() == pid).collect()
}

/// A process with a VM, ended with this.
struct Shown(Child);

impl Drop for Shown {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Shown {
    fn start(name: &str) -> Self {
        let mut child =
            child_command(name, &[]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = Vec::new();
        while !said.ends_with(b"it is there\n") {
            let mut byte = [0];
            assert_eq!(child.stdout.as_mut().unwrap().read(&mut byte).unwrap(), 1, "the child ended");
            said.push(byte[0]);
        }
        Self(child)
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, signal).unwrap();
        if signal == rustix::process::Signal::STOP {
            // Once all its threads have.
            let stopped =
                rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::UNTRACED).unwrap();
            assert!(stopped.unwrap().1.stopped());
        }
    }
}

#[test]
fn child_is_shown() {
    if !is_child("child_is_shown") {
        return;
    }
    let pool = Pool::new(64 * 4096).unwrap();
    let vms = [(); 2].map(|()| Vm::new(VmOptions::default().pool(&pool)).unwrap());
    let hidden = Vm::new(VmOptions::default().shown(false)).unwrap();
    let file = file(32 * 4096);
    let object = vms[0].file(file.path()).unwrap();
    // This process is killed as a rule: the file goes while somebody can see to that.
    drop(file);
    let map = vms[0].map(&object, &MapOptions::shared().policy("none".parse().unwrap())).unwrap();
    (0..5).for_each(|page| _ = touch(&map, page));
    println!("it is there");
    let _ = std::io::stdin().read(&mut [0]);
    drop(hidden);
}

#[test]
fn a_process_tells_what_its_pools_hold_and_is_gone_with_its_end() {
    let child = Shown::start("child_is_shown");
    let pid = child.0.id();
    let socket = sockets_of(pid).remove(0);
    let view = socket.ask(LONG).unwrap();
    assert_eq!((view.pid, view.pools.len()), (pid, 1), "{view:?}");
    let command = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
    assert_eq!(view.command, command.trim_end());
    let pool = &view.pools[0];
    assert_eq!((pool.vms, pool.maps, pool.objects), (2, 1, 1));
    assert_eq!(
        (pool.figures.limit_pages, pool.figures.resident_pages, pool.figures.reserved_pages),
        (64, 5, 32)
    );
    assert_eq!((pool.counted.hard, pool.counted.pages_read), (5, 5));
    assert_eq!((pool.largest[0].pages, pool.largest[0].resident_pages), (32, 5));
    drop(child);
    assert!(matches!(socket.ask(LONG).unwrap_err(), AskError::Ended));
    assert!(sockets_of(pid).is_empty());
}

#[test]
fn a_process_that_is_stopped_keeps_nobody_waiting() {
    let child = Shown::start("child_is_shown");
    let socket = sockets_of(child.0.id()).remove(0);
    child.signal(rustix::process::Signal::STOP);
    // More than may wait for it: then connect(2) itself waits.
    for _ in 0..200 {
        let error = socket.ask(Duration::from_millis(5)).unwrap_err();
        assert!(matches!(error, AskError::Silent), "{error:?}");
    }
    child.signal(rustix::process::Signal::CONT);
    assert_eq!(socket.ask(LONG).unwrap().pid, child.0.id());
}

#[test]
fn an_answer_that_is_cut_off_or_foreign_is_told_so() {
    let pid = std::process::id();
    for (nth, (answer, error)) in
        [("prepage-vm 1\nproc", ViewError::CutOff), ("", ViewError::CutOff), ("hello\n", ViewError::Foreign)]
            .into_iter()
            .enumerate()
    {
        let name = format!("prepage-vm/{pid}/test-{nth}");
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let thread = std::thread::spawn(move || {
            listener.accept().unwrap().0.write_all(answer.as_bytes()).unwrap();
        });
        let of_name = |socket: &Socket| format!("{socket:?}").contains(&name);
        let socket = sockets_of(pid).into_iter().find(of_name).unwrap();
        match socket.ask(LONG).unwrap_err() {
            AskError::View(found) => assert_eq!(found, error),
            other => panic!("{other:?}"),
        }
        thread.join().unwrap();
    }
}

/// As in the ninth of containers that share a network, where each has a process of this number.
#[test]
fn a_process_whose_names_are_taken_is_shown_by_another() {
    if !is_child(&this_test()) {
        return passes_as_child(&[]);
    }
    let pid = std::process::id();
    let taken = |nth| SocketAddr::from_abstract_name(format!("prepage-vm/{pid}/{nth}")).unwrap();
    let _taken: Vec<_> = (0..8).map(|nth| UnixListener::bind_addr(&taken(nth)).unwrap()).collect();
    let _vm = Vm::new(VmOptions::default()).unwrap();
    let is_shown = |socket: &Socket| socket.ask(Duration::from_millis(500)).is_ok_and(|view| view.pid == pid);
    // It answers a moment later where the machine is busy.
    assert!((0..5).any(|_| sockets_of(pid).iter().any(is_shown)));
}

#[test]
fn another_user_is_refused_on_both_sides() {
    if !has(Need::Root) {
        return;
    }
    const NOBODY: u32 = 65534;
    let child = Shown::start("child_is_shown");
    let pid = child.0.id();
    let socket = sockets_of(pid).remove(0);
    let said = std::thread::spawn(move || {
        // SAFETY: the plain call changes the user of this thread alone, which ends soon.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) }, 0);
        assert!(matches!(socket.ask(LONG).unwrap_err(), AskError::OtherUser(0)));
        let name = SocketAddr::from_abstract_name(format!("prepage-vm/{pid}/0")).unwrap();
        let mut said = String::new();
        UnixStream::connect_addr(&name).unwrap().read_to_string(&mut said).unwrap();
        said
    });
    assert_eq!(said.join().unwrap(), "prepage-vm refuses\n");
}
