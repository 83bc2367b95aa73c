//! A handler as most are written: one thread that polls, and resolves one page a fault.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use prepage_sys::userfaultfd::{Delivery, Message, Userfaultfd};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

pub struct Plain {
    uffd: Arc<Userfaultfd>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Plain {
    pub fn start() -> Self {
        let uffd = Arc::new(Userfaultfd::open(Delivery::Message).expect("userfaultfd for root"));
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        let (served, stopped) = (Arc::clone(&uffd), Arc::clone(&stop));
        let thread = thread::spawn(move || serve(&served, &stopped));
        Self { uffd, stop, thread: Some(thread) }
    }

    pub fn register(&self, start: u64, len: u64) {
        self.uffd.register(start, len, true).unwrap();
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        rustix::io::write(&self.stop, &1u64.to_ne_bytes()).unwrap();
        self.thread.take().map(JoinHandle::join);
    }
}

fn serve(uffd: &Userfaultfd, stop: &OwnedFd) {
    let mut messages = [Message::default(); 16];
    loop {
        let mut ready = [PollFd::new(&uffd, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        poll(&mut ready, None).unwrap();
        if !ready[1].revents().is_empty() {
            return;
        }
        let count = uffd.read(&mut messages).unwrap();
        for message in &messages[..count] {
            uffd.map_resident(message.address, 4096).unwrap();
        }
    }
}
