//! The agent in programs whose files a server has: it does not make them ask that server more often.

mod support;

use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use prepage_testing::{Need, has};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use support::{built, command, observe};

/// Of include/uapi/linux/fuse.h.
const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const INIT: u32 = 26;
const BATCH_FORGET: u32 = 42;
const KEEP_CACHE: u64 = 2;
const NOT_SUPPORTED: i32 = -38;

const SIZE: u64 = 16 * 4096;

/// `struct fuse_attr` of the root, or of the one file.
fn attributes(node: u64) -> Vec<u8> {
    let mode: u32 = if node == 1 { 0o40755 } else { 0o100_644 };
    let (sizes, times) = ([node, SIZE, SIZE / 512, 0, 0, 0], [0; 3]);
    let rest = [mode, 1, 0, 0, 0, 4096, 0];
    let words = sizes.into_iter().flat_map(u64::to_ne_bytes);
    words.chain(times.into_iter().chain(rest).flat_map(u32::to_ne_bytes)).collect()
}

/// What is answered to a request.
fn answer(opcode: u32, node: u64, body: &[u8]) -> Result<Vec<u8>, i32> {
    let words = |words: &[u64]| -> Vec<u8> { words.iter().flat_map(|word| word.to_ne_bytes()).collect() };
    // Attributes are to be asked for anew each time.
    let stale = [0; 2];
    Ok(match opcode {
        INIT => words(&[7 | 31 << 32, 0, 4096 << 32, 0, 0, 0, 0, 0]),
        LOOKUP => [words(&[2, 0, 3600, 0, 0]), attributes(2)].concat(),
        GETATTR => [words(&stale), attributes(node)].concat(),
        OPEN => words(&[0, KEEP_CACHE]),
        READ => {
            let offset = u64::from_ne_bytes(body[8..16].try_into().unwrap());
            let len = u32::from_ne_bytes(body[16..20].try_into().unwrap());
            vec![1; u64::from(len).min(SIZE.saturating_sub(offset)) as usize]
        }
        _ => return Err(NOT_SUPPORTED),
    })
}

/// Answers until the file system is unmounted; counts how often attributes are asked for.
fn serve(mut device: &File, asked: &AtomicU64) {
    let mut request = vec![0; 1 << 17];
    while let Ok(len) = device.read(&mut request) {
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
        let node = u64::from_ne_bytes(request[16..24].try_into().unwrap());
        let opcode = word(4);
        asked.fetch_add(u64::from(opcode == GETATTR), Ordering::Relaxed);
        if [FORGET, BATCH_FORGET].contains(&opcode) {
            continue;
        }
        let (error, body) = match answer(opcode, node, &request[40..len]) {
            Ok(body) => (0, body),
            Err(error) => (error, Vec::new()),
        };
        let head = [(16 + body.len() as u32).to_ne_bytes(), error.to_ne_bytes()].concat();
        // Whoever asked may have been killed.
        let _ = device.write(&[&head, &request[8..16], &body].concat());
    }
}

/// Unmounts what is mounted there when it is dropped.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = unmount(self.0, UnmountFlags::DETACH);
    }
}

#[test]
fn reads_of_what_is_in_memory_ask_no_server() {
    if !has(Need::Root) || !has(Need::Mounts) || !has(Need::Path("/dev/fuse".into())) {
        return;
    }
    let source = r#"
        #include <fcntl.h>
        #include <unistd.h>
        int main(int argc, char **argv) {
            char bytes[512];
            int file = open(argv[1], O_RDONLY);
            for (int i = 0; i < 100; i++)
                if (read(file, bytes, sizeof bytes) != sizeof bytes) return 1;
            return 0;
        }"#;
    let Some(program) = built(&[], source) else { return };
    let point = tempfile::tempdir().unwrap();
    let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    let options = CString::new(options).unwrap();
    let asked = AtomicU64::new(0);
    std::thread::scope(|scope| {
        mount("served", point.path(), "fuse", MountFlags::empty(), Some(&*options)).unwrap();
        // Before the scope waits for the server.
        let _mounted = Mounted(point.path());
        scope.spawn(|| serve(&device, &asked));
        let file = point.path().join("file");
        let mut command = command(program.to_str().unwrap(), &[file.to_str().unwrap()]);
        assert!(command.status().unwrap().success());
        let without = asked.swap(0, Ordering::Relaxed);
        let observed = observe(&mut command);
        assert!(observed.output.status.success(), "{:?}", observed.output);
        let with = asked.load(Ordering::Relaxed);
        assert!(with < without + 10, "{without} requests without the agent, {with} with it");
    });
}
