//! Faults served by threads that read their messages.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use prepage_core::PAGE_SIZE;
use prepage_sys::userfaultfd::{Message, Userfaultfd};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::fault::{Context, Touch, now_ns, serve};
use crate::table;

/// The threads that serve one userfaultfd; they end when this is dropped.
#[derive(Debug)]
pub(crate) struct Handlers {
    uffd: Arc<Userfaultfd>,
    /// Readable for good once the threads have to end.
    stop: Arc<OwnedFd>,
}

impl Handlers {
    pub(crate) fn start(uffd: &Arc<Userfaultfd>, threads: usize, spin: Duration) -> io::Result<Self> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let handlers = Self { uffd: Arc::clone(uffd), stop };
        for index in 0..threads {
            let (uffd, stop) = (Arc::clone(&handlers.uffd), Arc::clone(&handlers.stop));
            // One that spins takes a CPU; more would take those of the program.
            let spin = if index == 0 { spin } else { Duration::ZERO };
            thread::Builder::new()
                .name("prepage-fault".to_owned())
                .spawn(move || work(&uffd, &stop, spin))?;
        }
        Ok(handlers)
    }

    pub(crate) fn userfaultfd(&self) -> Arc<Userfaultfd> {
        Arc::clone(&self.uffd)
    }
}

impl Drop for Handlers {
    fn drop(&mut self) {
        // Full or not, it is readable.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
    }
}

/// Ends the process with a thread that panics: those whose faults it no longer serves would sleep for ever.
struct Vital;

impl Drop for Vital {
    fn drop(&mut self) {
        if thread::panicking() {
            std::process::abort();
        }
    }
}

fn work(uffd: &Userfaultfd, stop: &OwnedFd, spin: Duration) {
    let _vital = Vital;
    let mut messages = [Message::default(); 16];
    loop {
        // Reading fails only for a descriptor that is none.
        let mut count = uffd.read(&mut messages).expect("a userfaultfd can be read");
        if count == 0 && !spin.is_zero() {
            let began = Instant::now();
            while count == 0 && began.elapsed() < spin {
                std::hint::spin_loop();
                count = uffd.read(&mut messages).expect("a userfaultfd can be read");
            }
        }
        if count == 0 {
            let mut ready = [PollFd::new(&uffd, PollFlags::IN), PollFd::new(&stop, PollFlags::IN)];
            // Interrupted or not: look.
            let _ = poll(&mut ready, None);
            if ready[1].revents().contains(PollFlags::IN) {
                return;
            }
            continue;
        }
        for message in &messages[..count] {
            serve_message(uffd, message);
        }
    }
}

fn serve_message(uffd: &Userfaultfd, message: &Message) {
    let start_ns = now_ns();
    let cpu = rustix::thread::sched_getcpu();
    let Some((map, at)) = table::find(message.address, cpu) else {
        // Unmapped meanwhile: whoever waits gets SIGSEGV on its next try.
        let _ = uffd.wake(message.address, PAGE_SIZE);
        return;
    };
    let touch = Touch {
        page: map.page_at(message.address),
        address: message.address,
        ip: 0,
        write: message.write,
        tid: message.tid,
        start_ns,
    };
    serve(&map, at, &touch, Context::Handler, cpu);
}

const _: () = {
    const fn borrowed<T: AsFd>() {}
    borrowed::<Userfaultfd>();
};
