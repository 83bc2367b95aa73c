//! A file system that never answers.

use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// A FUSE mount that nobody answers for, until this is dropped. Needs root and `/dev/fuse`.
#[derive(Debug)]
pub struct Hung {
    point: PathBuf,
    /// Whoever answers for it. Once it is closed, all calls that wait fail.
    device: Option<File>,
}

impl Hung {
    /// Mounts one at the directory `point`.
    ///
    /// # Panics
    /// When it cannot be mounted.
    pub fn mount(point: &Path) -> Self {
        let device = File::options().read(true).write(true).open("/dev/fuse").expect("/dev/fuse opens");
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
        let options = CString::new(options).expect("no zero in it");
        mount("hung", point, "fuse", MountFlags::empty(), Some(&*options)).expect("it can be mounted");
        Self { point: point.into(), device: Some(device) }
    }
}

/// A FUSE mount in which every name is an empty file that can be opened, but whose close is not answered until this is dropped. Needs as much.
#[derive(Debug)]
pub struct HungAtClose {
    hung: Hung,
    is_over: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

impl HungAtClose {
    /// Mounts one at the directory `point`.
    ///
    /// # Panics
    /// When it cannot be mounted.
    pub fn mount(point: &Path) -> Self {
        let mut hung = Hung::mount(point);
        let (device, is_over) = (hung.device.take().expect("just mounted"), Arc::new(AtomicBool::new(false)));
        let over = is_over.clone();
        let server = std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let mut ready = [PollFd::from_borrowed_fd(device.as_fd(), PollFlags::IN)];
                let round = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
                if poll(&mut ready, Some(&round)).is_ok_and(|ready| ready > 0) {
                    answer(&device);
                }
            }
        });
        Self { hung, is_over, server: Some(server) }
    }

    /// Where it is mounted.
    pub fn point(&self) -> &Path {
        &self.hung.point
    }
}

impl Drop for HungAtClose {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // With the thread the device is closed.
        let _ = self.server.take().map(JoinHandle::join);
    }
}

/// Answers one request (include/uapi/linux/fuse.h), unless it is made at a close.
fn answer(mut device: &File) {
    const LOOKUP: u32 = 1;
    const GETATTR: u32 = 3;
    const OPEN: u32 = 14;
    const FLUSH: u32 = 25;
    const INIT: u32 = 26;
    const EMPTY_FILE: u32 = 0o100_444;
    const ENOSYS: i32 = 38;
    let mut request = vec![0; 1 << 17];
    if device.read(&mut request).is_err() {
        return;
    }
    let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().expect("4 bytes"));
    // struct fuse_attr, whose mode is its 15th word.
    let attributes: Vec<u32> = (0..22).map(|at| if at == 15 { EMPTY_FILE } else { 0 }).collect();
    let body: Option<Vec<u32>> = match word(4) {
        FLUSH => return,
        INIT => Some([vec![7, 31], vec![0; 3], vec![4096], vec![0; 10]].concat()),
        // Inode 2, good for ever.
        LOOKUP => Some([vec![2, 0, 0, 0, u32::MAX, 0, u32::MAX, 0, 0, 0], attributes].concat()),
        GETATTR => Some([vec![u32::MAX, 0, 0, 0], attributes].concat()),
        OPEN => Some(vec![0; 4]),
        _ => None,
    };
    let error = if body.is_some() { 0 } else { -ENOSYS };
    let body: Vec<u8> = body.unwrap_or_default().iter().flat_map(|word| word.to_ne_bytes()).collect();
    let mut reply = (16 + body.len() as u32).to_ne_bytes().to_vec();
    reply.extend(error.to_ne_bytes());
    reply.extend(&request[8..16]);
    reply.extend(body);
    let _ = device.write(&reply);
}

impl Drop for Hung {
    fn drop(&mut self) {
        self.device.take();
        let _ = unmount(&self.point, UnmountFlags::DETACH);
    }
}
