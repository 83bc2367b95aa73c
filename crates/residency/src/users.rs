//! The processes that keep a file's pages in memory, because they have them mapped or locked.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use prepage_sys::device_number;
use prepage_sys::maps::parse_maps_line;
use prepage_sys::proc_file;
use prepage_sys::processes::processes;

use crate::target::Opened;

/// A process that has mapped a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Process id.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// Bytes of the file in its page tables; they cannot be evicted meanwhile.
    pub mapped_bytes: u64,
    /// Of these, locked by mlock(2) and the like.
    pub locked_bytes: u64,
}

/// Who has mapped which file, as /proc tells: of all processes to root, of one's own to others.
///
/// /proc/PID/maps has the files, and costs the kernel little. How much of them is in use /proc/PID/smaps has, for which the kernel walks through
/// the process's page tables, its anonymous memory included: it is read only of processes that have mapped a file that is asked about.
#[derive(Debug, Default)]
pub struct Users {
    mapped_by: HashMap<FileKey, Vec<u32>>,
    /// As far as it was asked about.
    by_file: HashMap<FileKey, Vec<User>>,
    /// Processes whose /proc/PID/smaps was read.
    read: HashSet<u32>,
}

/// A file in /proc/PID/maps (bytes of its path that are not UTF-8 are replaced): by device and inode, and by path, for file systems in layers show another device there
/// than stat(2).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum FileKey {
    Inode(u64, u64),
    Path(String),
}

impl Users {
    /// Looks at all processes.
    pub fn now() -> Self {
        let mut users = Self::default();
        for pid in processes() {
            // A process that ended meanwhile maps nothing.
            let Ok(maps) = proc_file::read_text(format!("/proc/{pid}/maps")) else { continue };
            let files: HashSet<FileKey> = maps.lines().filter_map(file_of).flatten().collect();
            files.into_iter().for_each(|file| users.mapped_by.entry(file).or_default().push(pid));
        }
        users
    }

    /// Who has mapped pages of `opened`: those with most first.
    pub fn of(&mut self, opened: &Opened) -> Vec<User> {
        let mut key = FileKey::Inode(opened.inode.0, opened.inode.1);
        let mut pids = self.mapped_by.get(&key).cloned().unwrap_or_default();
        if pids.is_empty() {
            let Ok(path) = Path::canonicalize(&opened.path) else { return Vec::new() };
            key = FileKey::Path(path.to_string_lossy().into_owned());
            pids = self.mapped_by.get(&key).cloned().unwrap_or_default();
            let ours = mount_namespace("self");
            // In a container another file may have the path.
            pids.retain(|pid| {
                mount_namespace(&pid.to_string()) == ours
                    || inode_as_seen_by(*pid, &path) == Some(opened.inode)
            });
        }
        pids.iter().for_each(|&pid| self.read(pid));
        let mut users = self.by_file.get(&key).cloned().unwrap_or_default();
        users.retain(|user| user.mapped_bytes > 0 && pids.contains(&user.pid));
        users.sort_by_key(|user| (std::cmp::Reverse(user.mapped_bytes), user.pid));
        users
    }

    /// Reads how much process `pid` uses of its files, unless that was read before.
    fn read(&mut self, pid: u32) {
        if self.read.insert(pid)
            && let Ok(smaps) = proc_file::read_text(format!("/proc/{pid}/smaps"))
        {
            let comm = proc_file::read_text(format!("/proc/{pid}/comm")).unwrap_or_default();
            self.add(pid, comm.trim_end(), &smaps);
        }
    }

    fn add(&mut self, pid: u32, comm: &str, smaps: &str) {
        let (mut keys, mut in_use_kib) = (None, 0);
        for line in smaps.lines() {
            let field = |name| -> Option<u64> {
                line.strip_prefix(name)?.trim().strip_suffix(" kB")?.trim().parse().ok()
            };
            if let Some(kib) = field("Rss:") {
                in_use_kib = kib;
            } else if let Some(kib) = field("Anonymous:") {
                // Copies of pages, which the process has written to, are not the file's.
                in_use_kib = in_use_kib.saturating_sub(kib);
            } else if let Some(flags) = line.strip_prefix("VmFlags:") {
                // The last line of each mapping. Its line `Locked:` divides each page among all that have it mapped.
                let locked_kib = if flags.split(' ').any(|flag| flag == "lo") { in_use_kib } else { 0 };
                self.count(&keys, pid, comm, |user| {
                    user.mapped_bytes += in_use_kib * 1024;
                    user.locked_bytes += locked_kib * 1024;
                });
            } else if line.starts_with(|first: char| first.is_ascii_digit() || matches!(first, 'a'..='f')) {
                keys = file_of(line);
            }
        }
    }

    fn count(&mut self, keys: &Option<[FileKey; 2]>, pid: u32, comm: &str, change: impl Fn(&mut User)) {
        for key in keys.iter().flatten() {
            let users = self.by_file.entry(key.clone()).or_default();
            if users.last().is_none_or(|last| last.pid != pid) {
                users.push(User { pid, comm: comm.to_owned(), mapped_bytes: 0, locked_bytes: 0 });
            }
            users.last_mut().into_iter().for_each(&change);
        }
    }
}

/// The mount namespace of a process, by its directory in /proc; `None` where it may not be seen.
fn mount_namespace(process: &str) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{process}/ns/mnt")).ok()
}

/// The device and inode of the file that process `pid` finds at `path`.
fn inode_as_seen_by(pid: u32, path: &Path) -> Option<(u64, u64)> {
    let there = Path::new(&format!("/proc/{pid}/root")).join(path.strip_prefix("/").ok()?);
    fs::metadata(there).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// The file of a mapping's first line (proc_pid_maps(5)); `None` for memory of no file.
fn file_of(line: &str) -> Option<[FileKey; 2]> {
    let mapped = parse_maps_line(line)?;
    let (device, inode) = mapped.inode.filter(|(_, inode)| *inode != 0)?;
    Some([FileKey::Inode(device_number::of_stat(device), inode), FileKey::Path(mapped.path.to_string())])
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::ffi::OsStrExt;
    use std::process::{Command, Stdio};

    use prepage_sys::mapping::FileMapping;
    use prepage_testing::{Need, has};

    use super::*;
    use crate::target::Spot;

    #[test]
    fn who_has_touched_a_mapped_page_is_named_with_as_much() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        // A name that is not UTF-8 hides nobody.
        let path = dir.path().join(OsStr::from_bytes(b"mapped \xff file"));
        fs::write(&path, vec![1; 1 << 20]).unwrap();
        let opened = Spot::file(&path).open().unwrap();
        let me = |mut users: Users| users.of(&opened).into_iter().find(|user| user.pid == std::process::id());
        assert_eq!(me(Users::now()), None);
        let mapping = FileMapping::new(opened.file.as_fd(), opened.ranges[0]).unwrap();
        assert_eq!(me(Users::now()), None, "mapped, and nothing touched");
        assert_eq!(mapping.byte(0), 1);
        let user = me(Users::now()).expect("a page is in use");
        assert!(user.mapped_bytes >= 4096 && user.mapped_bytes <= 1 << 20 && user.locked_bytes == 0);
    }

    /// That of a database may take the kernel minutes.
    #[test]
    fn page_tables_are_walked_of_processes_that_have_mapped_the_file_alone() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let (mapped, other) = (dir.path().join("mapped"), dir.path().join("other"));
        for path in [&mapped, &other] {
            fs::write(path, vec![1; 4096]).unwrap();
        }
        let [opened, other] = [&mapped, &other].map(|path| Spot::file(path).open().unwrap());
        let _mapping = FileMapping::new(opened.file.as_fd(), opened.ranges[0]).unwrap();
        let mut users = Users::now();
        users.of(&other);
        assert!(users.read.is_empty(), "{:?}", users.read);
        users.of(&opened);
        assert_eq!(users.read, HashSet::from([std::process::id()]));
    }

    /// In a container another file may have the path, and is in use there. A service with a /tmp of its own uses the same files as others.
    #[test]
    fn who_has_mapped_a_file_of_the_path_in_another_namespace_is_named_if_it_is_the_same_file() {
        let tools = ["python3", "unshare"].map(|tool| Need::Tool(tool.into()));
        if !tools.into_iter().all(has) || !has(Need::Root) || !has(Need::Mounts) {
            return;
        }
        for is_same in [false, true] {
            let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
            let path = dir.path().join("file");
            fs::write(&path, vec![1; 4096]).unwrap();
            let mount = "mount -t tmpfs none \"$0\"; head -c 4096 /dev/zero >\"$0/file\"";
            let script = "exec python3 -c 'import mmap, sys, time
file = open(sys.argv[1])
memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
print(memory[0], flush=True)
time.sleep(60)' \"$0/file\"";
            let script = if is_same { script.to_owned() } else { format!("{mount}; {script}") };
            let mut container = Command::new("unshare");
            container.args(["--mount", "sh", "-ec", &script]).arg(dir.path()).stdout(Stdio::piped());
            let mut container = container.spawn().unwrap();
            // Kept: without a reader what is still to be written would end it.
            let mut said = container.stdout.take().unwrap();
            said.read_exact(&mut [0]).unwrap();
            let opened = Spot::file(&path).open().unwrap();
            let mut users = Users::now();
            // As where mappings have another device than stat(2).
            users.mapped_by.remove(&FileKey::Inode(opened.inode.0, opened.inode.1));
            let named: Vec<u32> = users.of(&opened).iter().map(|user| user.pid).collect();
            container.kill().unwrap();
            container.wait().unwrap();
            assert!(users.mapped_by.contains_key(&FileKey::Path(path.to_str().unwrap().into())));
            assert_eq!(named, if is_same { vec![container.id()] } else { vec![] });
        }
    }

    #[test]
    fn lines_of_no_file_belong_to_none() {
        let mut users = Users::default();
        users.add(
            7,
            "x",
            "7f00-7f10 rw-p 00000000 fe:00 12    /lib/a b\nRss:  12 kB\nAnonymous: 8 kB\nLocked:  6 kB\nVmFlags: rd wr lo \n\
             7f20-7f30 rw-p 00000000 00:00 0 \nRss:  64 kB\nAnonymous: 64 kB\nVmFlags: rd wr lo \n\
             7f40-7f50 r-xp 00001000 fe:00 12    /lib/a b\nRss:  8 kB\nAnonymous: 0 kB\nLocked: 0 kB\nVmFlags: rd ex \n",
        );
        // By its inode and by its path.
        assert_eq!(users.by_file.len(), 2);
        let expected = User { pid: 7, comm: "x".into(), mapped_bytes: 12 << 10, locked_bytes: 4 << 10 };
        for found in users.by_file.values() {
            assert_eq!(found, std::slice::from_ref(&expected));
        }
    }
}
