//! A file whose reads take as long as those of a network volume, for a loop device to stand on.
//!
//! ```text
//! slow_volume IMAGE DIRECTORY      shows IMAGE as DIRECTORY/image, and DIRECTORY/pace
//! echo 1000 0 0 >DIRECTORY/pace    1 ms a read, no other limit
//! echo 500 3000 125 >DIRECTORY/pace    0.5 ms a read, 3000 reads and 125 MB a second
//! ```
//! `bench/volume` mounts all of it in a mount namespace of its own, so that nothing stays on any way out. Writes go to the
//! image at once. Needs root. Ends when DIRECTORY is unmounted, or when killed.
#![forbid(unsafe_code)]

mod pace;

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite,
    Request, SessionACL, WriteFlags,
};

use pace::{Pace, Server};

const IMAGE: INodeNo = INodeNo(2);
const PACE: INodeNo = INodeNo(3);
/// Attributes stay as they are.
const FOR_LONG: Duration = Duration::from_secs(3600);
/// Threads that take reads from the kernel and fetch the bytes, which takes less time than the read is to take.
const THREADS: usize = 4;
/// Reads that may be under way at once; a loop device asks for 128 at most.
const UNDER_WAY_MAX: u16 = 512;

struct Volume {
    image: File,
    bytes: u64,
    server: Arc<Server<ReplyData>>,
}

impl Volume {
    fn attributes(&self, file: INodeNo) -> Option<FileAttr> {
        let (size, kind, perm) = match file {
            INodeNo::ROOT => (0, FileType::Directory, 0o700),
            IMAGE => (self.bytes, FileType::RegularFile, 0o600),
            PACE => (0, FileType::RegularFile, 0o200),
            _ => return None,
        };
        let time = SystemTime::UNIX_EPOCH;
        Some(FileAttr {
            ino: file,
            size,
            blocks: size.div_ceil(512),
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }
}

impl Filesystem for Volume {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Without either, the loop device's reads would be made one after the other, or sixteen at a time.
        let refused = |what: &str| io::Error::other(format!("this kernel's FUSE has no {what}"));
        config
            .add_capabilities(InitFlags::FUSE_ASYNC_DIO)
            .map_err(|_| refused("asynchronous direct reads"))?;
        config.set_max_background(UNDER_WAY_MAX).map_err(|_| refused("room for many reads at once"))?;
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let file = match name.to_str() {
            Some("image") => IMAGE,
            Some("pace") => PACE,
            _ => return reply.error(Errno::ENOENT),
        };
        match self.attributes(file).filter(|_| parent == INodeNo::ROOT) {
            Some(attributes) => reply.entry(&FOR_LONG, &attributes, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, file: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(file) {
            Some(attributes) => reply.attr(&FOR_LONG, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    /// `echo … >pace` empties the file first.
    fn setattr(
        &self,
        request: &Request,
        file: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u64>,
        _: Option<fuser::TimeOrNow>,
        _: Option<fuser::TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        self.getattr(request, file, None, reply);
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // Every read of the loop device comes here: nothing of the image is kept in memory on the way.
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        file: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let arrived = Instant::now();
        if file != IMAGE {
            return reply.error(Errno::EACCES);
        }
        let due = self.server.due(arrived, u64::from(size));
        let mut bytes = vec![0; size as usize];
        match read_up_to(&self.image, &mut bytes, offset) {
            Ok(read) => {
                bytes.truncate(read);
                self.server.answer_at(due, reply, bytes);
            }
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn write(
        &self,
        _: &Request,
        file: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let written = match file {
            IMAGE => self.image.write_all_at(data, offset).map_err(|_| Errno::EIO),
            PACE => match std::str::from_utf8(data).ok().and_then(Pace::parse) {
                Some(pace) => {
                    self.server.set(pace);
                    Ok(())
                }
                None => Err(Errno::EINVAL),
            },
            _ => Err(Errno::EACCES),
        };
        match written {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(error),
        }
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        // What is measured never depends on what survives a crash of this machine.
        reply.ok();
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }
}

fn read_up_to(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

fn run(image: &Path, directory: &Path) -> io::Result<()> {
    let image = OpenOptions::new().read(true).write(true).open(image)?;
    let bytes = image.metadata()?.len();
    let server = Arc::new(Server::new(|reply: ReplyData, bytes: &[u8]| reply.data(bytes)));
    let mut config = fuser::Config::default();
    config.acl = SessionACL::RootAndOwner;
    config.n_threads = Some(THREADS);
    config.clone_fd = true;
    fuser::mount(Volume { image, bytes, server }, directory, &config)
}

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let [image, directory] = args.as_slice() else {
        eprintln!("usage: slow_volume IMAGE DIRECTORY");
        return ExitCode::from(2);
    };
    match run(image.as_ref(), directory.as_ref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("slow_volume: {}: {error}", directory.display());
            ExitCode::FAILURE
        }
    }
}
