//! Reports what this process's pools hold, to processes of the same user that ask: an abstract Unix socket, answered by one thread.
//!
//! Nobody has to know beforehand that a process will be looked at, so every process with a VM has the socket; a name without a file goes
//! with the process, however that ends. What cannot be had (no descriptor, no thread) is gone without: the process is not shown then.

use std::collections::BTreeMap;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use prepage_sys::fork;
use prepage_sys::signals::Masked;
use rustix::net::{SendFlags, send};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::sync::{Anyway, Ordering, spawn};
use crate::view::{PoolView, View};
use crate::viewed::{self, REFUSAL};
use crate::vm::VmCore;

/// One is answered after the other: who does not read holds up the others for no longer.
const PATIENCE: Duration = Duration::from_millis(500);
/// Names that are tried, and as many that are drawn by chance: other processes may have the same number where namespaces differ.
const NAMES: u32 = 8;

/// How often the lock is tried again, a millisecond apart: who holds it may have lost its processor for some of them. Only a child of fork(2) tries in vain, for each VM.
const TRIES: u32 = 100;

/// Lock legend: guards all of [`Shown`]; held to enter a VM and to list them, and no other lock is taken under it.
static SHOWN: Mutex<Shown> = Mutex::new(Shown { generation: 0, vms: Vec::new() });

/// The VMs of this process. A child of fork(2) may find their lock held for good by a thread that it does not have.
struct Shown {
    /// The process that opened the socket.
    generation: u64,
    vms: Vec<Weak<VmCore>>,
}

/// Has `vm` shown from here on.
pub(crate) fn enter(vm: &Arc<VmCore>) {
    // A model knows of no socket: a thread that waits at one would hold up all others.
    if cfg!(any(feature = "shuttle", feature = "loom")) {
        return;
    }
    let _masked = Masked::asynchronous();
    let Some(mut shown) = locked(TRIES) else { return };
    let generation = fork::generation();
    let is_first = shown.generation != generation;
    if is_first {
        // What the parent showed is no business of the child's.
        *shown = Shown { generation, vms: Vec::new() };
    }
    shown.vms.retain(|vm| vm.strong_count() > 0);
    shown.vms.push(Arc::downgrade(vm));
    drop(shown);
    if is_first && let Ok(listener) = open() {
        // Where there is no thread the listener closes.
        let _ = spawn("prepage-show", move || work(&listener));
    }
}

/// The list, once nobody else holds it; `None` if somebody still does after so many more `tries`.
fn locked(tries: u32) -> Option<MutexGuard<'static, Shown>> {
    SHOWN.try_lock().anyway().or_else(|| {
        (0..tries).find_map(|_| {
            std::thread::sleep(Duration::from_millis(1));
            SHOWN.try_lock().anyway()
        })
    })
}

fn open() -> io::Result<UnixListener> {
    let pid = std::process::id();
    let mut last = Err(io::ErrorKind::AddrInUse.into());
    for nth in (0..NAMES).chain((0..NAMES).map(|_| drawn())) {
        let name = viewed::socket_name(pid, nth);
        last = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?);
        if !matches!(&last, Err(error) if error.kind() == io::ErrorKind::AddrInUse) {
            break;
        }
    }
    last
}

/// A number that no other process draws.
fn drawn() -> u32 {
    let mut bytes = [0; 4];
    // Without one the name is taken, and the next is tried.
    let _ = getrandom(&mut bytes, GetRandomFlags::empty());
    u32::from_ne_bytes(bytes)
}

fn work(listener: &UnixListener) {
    for stream in listener.incoming() {
        match stream {
            // Who hangs up early hears nothing.
            Ok(stream) => drop(answer(&stream)),
            // No descriptor is left at the moment.
            Err(_) => std::thread::sleep(PATIENCE),
        }
    }
}

fn answer(stream: &UnixStream) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    if rustix::net::sockopt::socket_peercred(stream)?.uid != rustix::process::geteuid() {
        return write_all(stream, REFUSAL.as_bytes());
    }
    write_all(stream, now().encode().as_bytes())
}

/// Without SIGPIPE where nobody reads: the program may leave that as it is.
fn write_all(stream: &UnixStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let sent = send(stream, bytes, SendFlags::NOSIGNAL)?;
        bytes = &bytes[sent..];
    }
    Ok(())
}

/// The report, as of now.
fn now() -> View {
    let vms: Vec<Arc<VmCore>> = {
        let shown = SHOWN.lock().anyway();
        shown.vms.iter().filter_map(Weak::upgrade).collect()
    };
    let mut pools: BTreeMap<u64, PoolView> = BTreeMap::new();
    for vm in vms {
        let pool = pools.entry(vm.pool.core().number).or_insert_with(|| {
            let mut largest = vm.pool.objects();
            let objects = largest.len() as u64;
            largest.sort_by_key(|object| std::cmp::Reverse(object.resident_pages));
            largest.truncate(PoolView::LARGEST);
            PoolView {
                number: vm.pool.core().number,
                figures: vm.pool.figures(),
                objects,
                largest,
                ..PoolView::default()
            }
        });
        pool.vms += 1;
        pool.maps += vm.maps.load(Ordering::Acquire);
        vm.figures.add_to(&mut pool.counted);
    }
    let command = std::fs::read("/proc/self/comm").unwrap_or_default();
    View {
        pid: std::process::id(),
        command: String::from_utf8_lossy(&command).trim_end().to_owned(),
        pools: pools.into_values().collect(),
    }
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_waited_for_while_a_thread_holds_it_but_not_forever() {
        let held = SHOWN.lock().anyway();
        assert!(locked(1).is_none());
        let (begins, begun) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let waits = scope.spawn(move || {
                begins.send(()).unwrap();
                locked(60_000).is_some()
            });
            begun.recv().unwrap();
            // The other thread has tried by then.
            std::thread::sleep(Duration::from_millis(20));
            drop(held);
            assert!(waits.join().unwrap());
        });
    }
}
