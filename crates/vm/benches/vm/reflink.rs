//! Files that share their blocks: what a private copy of an image is without a VM.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::Command;

use prepage_core::PageRange;
use prepage_sys::mapping::FileMapping;

/// A file on an XFS of its own, on a loop device, which goes when this is dropped. Its pages are in memory.
pub struct Reflinks {
    image: File,
    len_bytes: u64,
    // Before the directory that it lies in.
    mounted: Mounted,
    _directory: tempfile::TempDir,
}

/// Unmounted with this.
struct Mounted(PathBuf);

impl Reflinks {
    /// Makes a file of `len_bytes`; says why it cannot.
    pub fn new(len_bytes: u64) -> Result<Self, String> {
        let directory = tempfile::tempdir_in(".").unwrap();
        let (device, mount) = (directory.path().join("xfs"), directory.path().join("mount"));
        std::fs::create_dir(&mount).unwrap();
        File::create(&device).and_then(|file| file.set_len(3 * len_bytes)).unwrap();
        run(Command::new("mkfs.xfs").arg("-q").arg(&device))?;
        run(Command::new("mount").args(["-o", "loop"]).arg(&device).arg(&mount))?;
        let mounted = Mounted(mount);
        let path = mounted.0.join("image");
        let mut image = File::create_new(&path).unwrap();
        std::io::copy(&mut std::io::Read::take(std::io::repeat(1), len_bytes), &mut image).unwrap();
        image.sync_all().unwrap();
        Ok(Self { image, len_bytes, mounted, _directory: directory })
    }

    /// A copy that shares its blocks, mapped.
    pub fn copy(&self) -> (File, FileMapping) {
        let copy = tempfile::tempfile_in(&self.mounted.0).unwrap();
        rustix::fs::ioctl_ficlone(&copy, &self.image).unwrap();
        let mapping = FileMapping::new(copy.as_fd(), PageRange::covering(0, self.len_bytes)).unwrap();
        (copy, mapping)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = run(Command::new("umount").arg("--lazy").arg(&self.0)) {
            println!("  {} stays mounted: {error}", self.0.display());
        }
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Err(format!("{name}: {error}")),
    }
}
