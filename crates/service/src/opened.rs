//! The files and directories that are opened on the machine, in order, and what was used of them.
//!
//! The kernel tells of each open (fanotify) and keeps nothing in use because of it. What was used of a file is asked now and then and at the
//! end: the pages that are in memory and of which the kernel notes that somebody used them ([`prepage_sys::page_flags`]), so that what
//! read-ahead or a prefetch brought in for nothing does not count.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

use prepage_core::profile::observation::{Coverage, Observation, Order};
use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_observe::asks::Asks;
use prepage_observe::sightings::{PAGES_MAX, Sightings};
use prepage_profiles::elf::Elf;
use prepage_profiles::identity::{identity_at, identity_of, open_directory, open_to_read};
use prepage_sys::clock::now_ns;
use prepage_sys::exec_watch::{ExecWatch, Seen};
use prepage_sys::file_handle::FileHandle;
use prepage_sys::page_flags::PageFlags;
use prepage_sys::process_stat::ProcessStat;
use prepage_sys::rights::Rights;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FileType;

use crate::askers::{Askers, leave_to_ask};
use crate::process::{is_prepages, parents};
use crate::watch::Watch;

/// Files and directories that are remembered.
const OPENED_MAX: usize = 1 << 16;
/// Bytes of their paths.
const PATHS_BYTES_MAX: usize = 4 << 20;
/// Opens that were taken from the kernel and not noted yet: four times what it keeps itself.
const TAKEN_MAX: usize = 1 << 16;
/// Opens that are noted before the kernel is asked for more.
const NOTED_AT_ONCE: usize = 256;
/// Processes of which is remembered whether they count.
const PROCESSES_MAX: usize = 1 << 14;

/// Pages of one file that are noted, 256 MiB: one that is read as a whole, an image or a database, leaves room for all others.
const PAGES_OF_A_FILE_MAX: usize = PAGES_MAX / 8;

/// Looks at pages that show an order: after a second, after two, and one more.
const LOOKS_MIN: u32 = 3;

/// Whose opens count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// Everybody's.
    Everybody,
    /// This user's.
    User(u32),
    /// Those of this process and of what it starts.
    Start(u32),
}

/// A file or a directory that was opened.
#[derive(Clone, Debug)]
pub struct Open {
    /// When it was noted, first.
    pub time_ns: u64,
    pub path: PathBuf,
    pub file: FileHandle,
    pub is_directory: bool,
}

/// What is opened.
#[derive(Debug)]
pub struct Opened {
    watch: Watch,
    whose: Whose,
    seen: HashSet<FileHandle>,
    /// Opens that are to be noted: by which process, and of what.
    taken: Vec<(u32, FileHandle)>,
    opens: Vec<Open>,
    /// Opens that did not count.
    others: usize,
    /// Bytes of paths that may still be remembered.
    paths_bytes_left: usize,
    /// By file system: a directory on it. While it is open nobody can unmount the file system: none is between two looks.
    places: HashMap<u64, Option<File>>,
    /// Whether what a process opens counts, where that stays so.
    counts: HashMap<u32, bool>,
    /// Processes whose opens do not count in this look: each further open would take another look at the process.
    others_now: HashSet<u32>,
    is_lost: bool,
    /// When was last looked which pages are used, and how many times in all.
    pages_ns: u64,
    pages_looks: u32,
    /// How many are noted of each file.
    noted: HashMap<PathBuf, usize>,
    /// Files of which more were used.
    cut: HashSet<PathBuf>,
    pages_of_a_file_max: usize,
    taken_max: usize,
}

impl Opened {
    /// From now on.
    ///
    /// # Errors
    /// EPERM without the right to watch.
    pub fn watch(whose: Whose) -> io::Result<Self> {
        Self::over(ExecWatch::of_opens()?, whose)
    }

    /// From now on by the start of process `pid`, on the file systems of `watch`.
    ///
    /// # Errors
    /// As [`Self::watch`].
    pub fn of_start(pid: u32, watch: &Watch) -> io::Result<Self> {
        let (watch, is_whole) = watch.of_opens()?;
        Ok(Self { is_lost: !is_whole, ..Self::of(watch, Whose::Start(pid)) })
    }

    /// The same of what `opens` has watched since before.
    ///
    /// # Errors
    /// When /proc is not mounted.
    pub fn over(opens: ExecWatch, whose: Whose) -> io::Result<Self> {
        Ok(Self::of(Watch::over(opens)?, whose))
    }

    fn of(watch: Watch, whose: Whose) -> Self {
        Self {
            watch,
            whose,
            seen: HashSet::new(),
            taken: Vec::new(),
            opens: Vec::new(),
            others: 0,
            paths_bytes_left: PATHS_BYTES_MAX,
            places: HashMap::new(),
            counts: HashMap::new(),
            others_now: HashSet::new(),
            is_lost: false,
            pages_ns: 0,
            pages_looks: 0,
            noted: HashMap::new(),
            cut: HashSet::new(),
            pages_of_a_file_max: PAGES_OF_A_FILE_MAX,
            taken_max: TAKEN_MAX,
        }
    }

    /// What a process needs that looks what is opened.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.watch.descriptors()
    }

    /// The regular files and directories that were opened, in order, each once.
    pub fn opens(&self) -> &[Open] {
        &self.opens
    }

    pub fn others(&self) -> usize {
        self.others
    }

    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Notes what was opened since the last call; directories as names, but for those of a start.
    pub fn look(&mut self, sightings: &mut Sightings) {
        let is_start = matches!(self.whose, Whose::Start(_));
        let mut changed = [PollFd::from_borrowed_fd(self.watch.mounts(), PollFlags::PRI)];
        // A start is over before what is mounted meanwhile matters.
        if !is_start && poll(&mut changed, Some(&Timespec::default())).is_ok_and(|changed| changed > 0) {
            // Without /proc nothing is new.
            let _ = self.watch.look_at_mounts();
        }
        self.take();
        // One after another, though all are looked at now. To note thousands takes a while.
        let mut time_ns = now_ns();
        let mut taken = std::mem::take(&mut self.taken).into_iter();
        while taken.len() > 0 {
            for (pid, file) in taken.by_ref().take(NOTED_AT_ONCE) {
                self.note(time_ns, pid, file, sightings);
                time_ns += 1;
            }
            self.take();
        }
        self.places.clear();
        self.others_now.clear();
    }

    /// Takes from the kernel what was opened: it keeps 16,384 of them (fs.fanotify.max_queued_events).
    fn take(&mut self) {
        let (own, seen, most) = (std::process::id(), &self.seen, self.taken_max);
        let (taken, is_lost) = (&mut self.taken, &mut self.is_lost);
        let mut take = |event| match event {
            Seen::Exec { pid, file } if pid == own || seen.contains(&file) => {}
            Seen::Exec { pid, file } if taken.len() < most => taken.push((pid, file)),
            Seen::Exec { .. } | Seen::Lost => *is_lost = true,
        };
        while self.watch.read(&mut take).unwrap_or(false) {}
    }

    fn note(&mut self, time_ns: u64, pid: u32, file: FileHandle, sightings: &mut Sightings) {
        if self.seen.contains(&file) {
            return;
        }
        if self.others_now.contains(&pid) || !self.is_counted(pid) {
            if self.others_now.len() < PROCESSES_MAX {
                self.others_now.insert(pid);
            }
            self.others += 1;
            return;
        }
        if self.seen.len() >= OPENED_MAX || self.paths_bytes_left == 0 {
            self.is_lost = true;
            return;
        }
        let Some(place) = self.place_of(file.file_system) else { return };
        let opened = match file.open(place.as_fd()) {
            Ok(opened) => opened,
            Err(error) => {
                // What is gone already is not there for the next time.
                self.is_lost |= matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
                return;
            }
        };
        self.seen.insert(file.clone());
        let Ok(path) = std::fs::read_link(format!("/proc/self/fd/{}", opened.as_raw_fd())) else { return };
        self.paths_bytes_left = self.paths_bytes_left.saturating_sub(path.as_os_str().len());
        let is_directory = match rustix::fs::fstat(&opened).map(|stat| FileType::from_raw_mode(stat.st_mode))
        {
            Ok(FileType::RegularFile) => false,
            Ok(FileType::Directory) => true,
            _ => return,
        };
        if is_directory && !matches!(self.whose, Whose::Start(_)) {
            sightings.lookup(time_ns, &path, true);
        }
        self.opens.push(Open { time_ns, path, file, is_directory });
    }

    /// What process `pid` opens is of no use to others.
    pub fn leave_out(&mut self, pid: u32) {
        self.counts.insert(pid, false);
    }

    /// Whether a process is another's than prepage's own, and of the user or the start that is meant. One that is gone counts for all alone.
    pub(crate) fn is_counted(&mut self, pid: u32) -> bool {
        if let Some(&counts) = self.counts.get(&pid) {
            return counts;
        }
        let is_meant = match self.whose {
            Whose::Everybody => true,
            Whose::User(uid) => Rights::of_process(pid).is_ok_and(|rights| rights.uid == uid),
            Whose::Start(start) => self.belongs_to(start, pid),
        };
        let counts = is_meant && !is_prepages(pid);
        let stays = match self.whose {
            // It may still execute prepage.
            Whose::Everybody => !counts,
            // One of another user may become the user's.
            Whose::User(_) => is_meant,
            Whose::Start(_) => true,
        };
        if stays {
            if self.counts.len() >= PROCESSES_MAX {
                self.counts.clear();
            }
            self.counts.insert(pid, counts);
        }
        counts
    }

    /// Whether process `pid` is `start`, or was started by it or by what it started. Of one that is gone that is not known, and what it
    /// opened is missed.
    fn belongs_to(&mut self, start: u32, pid: u32) -> bool {
        let known = |pid: u32| if pid == start { Some(true) } else { self.counts.get(&pid).copied() };
        let found = std::iter::once(pid).chain(parents(pid)).find_map(known);
        self.is_lost |= found.is_none() && ProcessStat::of(pid).is_err();
        found.unwrap_or(false)
    }

    /// A directory on the file system with this number.
    fn place_of(&mut self, file_system: u64) -> Option<&File> {
        let watch = &self.watch;
        let find = || {
            let point = watch.point_of(file_system)?;
            let _asking = Askers::of_machine().ask(&point).ok()?;
            open_directory(&point).ok()
        };
        self.places.entry(file_system).or_insert_with(find).as_ref()
    }

    /// Notes what was used of all that was opened since this was called last, as far as `rights` may read it: between then and now, as
    /// nobody can tell more. Where others look for too long, the rest counts as missed.
    ///
    /// # Errors
    /// Where the kernel keeps no notes of pages.
    pub fn look_at_pages(&mut self, sighted: &mut Sightings, rights: &Rights) -> io::Result<()> {
        // Whoever waits for a file system that does not answer is enough.
        let (flags, asks) = (PageFlags::open()?, Asks::by(Some(leave_to_ask)));
        let last_ns = std::mem::replace(&mut self.pages_ns, now_ns());
        self.pages_looks += 1;
        for at in 0..self.opens.len() {
            if self.opens[at].is_directory {
                continue;
            }
            // To look at some thousand files takes a while.
            self.take();
            let Open { time_ns, path, .. } = &self.opens[at];
            let opened = {
                let _assumed = rights.assume()?;
                asks.at(path, || {
                    // Before it is opened: opening a pipe lets go whoever waits at its other end.
                    identity_at(path).ok()?;
                    let file = open_to_read(path).ok()?;
                    Some((identity_of(&file).ok()?, file))
                })
            };
            let Some(Some((identity, file))) = opened else { continue };
            let Some(place) = sighted.place(path, Some((identity.device, identity.inode))) else {
                continue;
            };
            let pages = PageRange::covering(0, identity.size_bytes);
            let Ok((mut used, others)) = pages_of(&flags, &file, pages, &|page| !sighted.holds(place, page))
            else {
                self.is_lost = true;
                break;
            };
            if used.contains(&PageIndex(0)) || sighted.holds(place, PageIndex(0)) {
                used.extend(copied(&file, &others));
            }
            let noted = self.noted.entry(path.clone()).or_default();
            let left = self.pages_of_a_file_max - *noted;
            if used.len() > left {
                used.truncate(left);
                self.cut.insert(path.clone());
            }
            *noted += used.len();
            used.into_iter().for_each(|page| _ = sighted.touch((*time_ns).max(last_ns), place, page));
        }
        Ok(())
    }

    /// What was used of all that was opened, beside what was `sighted`, as [`Self::look_at_pages`] sees it.
    ///
    /// # Errors
    /// As there.
    pub fn observation(mut self, mut sighted: Sightings, rights: &Rights) -> io::Result<Observation> {
        self.look_at_pages(&mut sighted, rights)?;
        let mut observation = {
            let _assumed = rights.assume()?;
            sighted.ask_by(Some(leave_to_ask));
            sighted.observation()
        };
        (observation.unseen_below, observation.seen_below) = self.watch.unseen_and_seen()?;
        observation.order = match self.whose {
            Whose::Start(_) => Order::Rough,
            Whose::Everybody | Whose::User(_) => order_after(self.pages_looks),
        };
        let is_whole = !self.is_lost && !sighted.is_full() && observation.coverage != Coverage::Partial;
        observation.coverage = if is_whole { Coverage::Superset } else { Coverage::Partial };
        (observation.reads_coverage, observation.names_coverage) =
            (observation.coverage, observation.coverage);
        for file in &mut observation.files {
            let is_cut = self.cut.contains(Path::new(&file.path));
            file.coverage = if is_cut { Coverage::Partial } else { observation.coverage };
        }
        Ok(observation)
    }
}

/// How well so many looks at a boot or a session show an order. A session of some moments has its pages at the beginning of a list that is long for others of the user.
fn order_after(looks: u32) -> Order {
    if looks < LOOKS_MIN { Order::Rough } else { Order::ByLooks }
}

/// Those `wanted` of `pages` of a file that somebody has used since they were read, and the others of them that are in memory.
///
/// # Errors
/// TimedOut as [`PageFlags::of`].
pub(crate) fn pages_of(
    flags: &PageFlags,
    file: &File,
    pages: PageRange,
    wanted: &dyn Fn(PageIndex) -> bool,
) -> io::Result<(Vec<PageIndex>, Vec<PageIndex>)> {
    let (mut used, mut others) = (Vec::new(), Vec::new());
    let looked_at = flags.of(file.as_fd(), pages, wanted, &mut |page, is_used| {
        if is_used { &mut used } else { &mut others }.push(page);
    });
    match looked_at {
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(error),
        // A file that cannot be mapped has no pages of its own.
        _ => Ok((used, others)),
    }
}

/// Those `others` of a file in use that a program has its own copies of: of what a loader writes to (relocations), the kernel notes no use
/// where it was written to before it was read. Of a program or library in use that is about all that there is.
fn copied(file: &File, others: &[PageIndex]) -> Vec<PageIndex> {
    if others.is_empty() {
        return Vec::new();
    }
    let Ok(elf) = Elf::parse(file) else { return Vec::new() };
    let written = elf.segments.iter().filter(|one| one.is_written());
    let written: Vec<_> = written
        .map(|one| {
            one.offset_bytes / PAGE_SIZE..one.offset_bytes.saturating_add(one.file_bytes).div_ceil(PAGE_SIZE)
        })
        .collect();
    others.iter().copied().filter(|page| written.iter().any(|range| range.contains(&page.0))).collect()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use prepage_core::profile::{FileIdentity, Lookup, Profile, ProfiledFile, Touches};
    use prepage_testing::{Need, has, unless_caches_dropped};

    use super::*;

    /// As login(1) and sshd do: what belongs to nobody opens files before it is the user's.
    #[test]
    fn a_process_that_becomes_one_of_the_user_counts_from_then_on() {
        const UID: u32 = 65534;
        if !has(Need::Root) {
            return;
        }
        let mut opened = Opened::watch(Whose::User(UID)).unwrap();
        let becomes = format!("read -r line; exec setpriv --reuid {UID} --clear-groups sleep 60");
        let mut child = Command::new("sh").args(["-c", &becomes]).stdin(Stdio::piped()).spawn().unwrap();
        let before = opened.is_counted(child.id());
        drop(child.stdin.take());
        let until = Instant::now() + Duration::from_secs(60);
        let is_counted = loop {
            if opened.is_counted(child.id()) || Instant::now() > until {
                break opened.is_counted(child.id());
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!((before, is_counted), (false, true));
    }

    #[test]
    fn what_was_looked_at_once_or_twice_shows_no_order() {
        assert_eq!([1, 2, 3].map(order_after), [Order::Rough, Order::Rough, Order::ByLooks]);
    }

    /// Of a user who builds something, say, while another logs in.
    #[test]
    fn a_process_of_another_user_is_looked_at_once_in_a_look_however_much_it_opens() {
        const FILES: usize = 4000;
        if !has(Need::Root) {
            return;
        }
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let names: Vec<PathBuf> =
            (0..FILES).map(|number| directory.path().join(number.to_string())).collect();
        names.iter().for_each(|name| std::fs::write(name, "").unwrap());
        std::fs::write(&names[FILES - 1], "end\n").unwrap();
        let mut opened = Opened::watch(Whose::User(65534)).unwrap();
        let mut cat = Command::new("cat");
        let cat = cat.args(&names).arg("-").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = cat.unwrap();
        // It has opened all, and is still there.
        let mut said = BufReader::new(child.stdout.take().unwrap());
        assert_eq!(said.read_line(&mut String::new()).unwrap(), 4);
        // Calls of read(2) by this thread (proc_pid_io(5)): of events, and of what is known of processes.
        let reads = || -> usize {
            let io = std::fs::read_to_string("/proc/thread-self/io").unwrap();
            io.lines().find_map(|line| line.strip_prefix("syscr: ")).unwrap().parse().unwrap()
        };
        let before = reads();
        opened.look(&mut Sightings::default());
        let reads = reads() - before;
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(opened.others() >= FILES && reads < FILES / 2, "{} opens, {reads} reads", opened.others());
    }

    /// The service is a child of the machine's manager before it is executed.
    #[test]
    fn a_process_that_becomes_one_of_prepage_counts_no_more() {
        if !has(Need::Root) {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("prepaged");
        assert!(Command::new("cp").arg("/bin/sleep").arg(&program).status().unwrap().success());
        let mut opened = Opened::watch(Whose::Everybody).unwrap();
        let becomes = format!("read -r line; exec {} 60", program.display());
        let mut child = Command::new("sh").args(["-c", &becomes]).stdin(Stdio::piped()).spawn().unwrap();
        let before = opened.is_counted(child.id());
        drop(child.stdin.take());
        let until = Instant::now() + Duration::from_secs(60);
        while opened.is_counted(child.id()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        let is_counted = opened.is_counted(child.id());
        // As when the initramfs is emptied that it was started from.
        std::fs::remove_file(&program).unwrap();
        let is_counted_then = Opened::watch(Whose::Everybody).unwrap().is_counted(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!((before, is_counted, is_counted_then), (true, false, false));
    }

    #[test]
    fn opens_that_nobody_has_noted_yet_are_bounded_and_those_beyond_are_told_as_lost() {
        if !has(Need::Root) {
            return;
        }
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let names: Vec<PathBuf> = (0..4).map(|number| directory.path().join(number.to_string())).collect();
        names.iter().for_each(|name| std::fs::write(name, "text").unwrap());
        let mut opened = Opened::watch(Whose::Everybody).unwrap();
        opened.taken_max = 2;
        assert!(Command::new("cat").args(&names).stdout(Stdio::null()).status().unwrap().success());
        [(), ()].iter().for_each(|()| opened.take());
        assert_eq!((opened.taken.len(), opened.is_lost), (2, true));
        opened.look(&mut Sightings::default());
        assert!(opened.taken.len() <= 2 && opened.opens.len() + opened.others >= 2, "they are noted");
    }

    /// A directory may be 4,000 bytes deep, and have many files.
    #[test]
    fn the_paths_of_what_was_opened_take_so_many_bytes_and_what_is_beyond_is_told_as_lost() {
        if !has(Need::Root) {
            return;
        }
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let names: Vec<PathBuf> = (0..4).map(|number| directory.path().join(number.to_string())).collect();
        names.iter().for_each(|name| std::fs::write(name, "text").unwrap());
        let until = Instant::now() + Duration::from_secs(60);
        // Who has opened something and is gone before anybody looks, wherever on the machine, may have been one of the start.
        while !are_within_the_bytes_and_lost_beyond(&names) {
            assert!(Instant::now() < until, "too many are noted, or some are lost each time");
        }
    }

    fn are_within_the_bytes_and_lost_beyond(names: &[PathBuf]) -> bool {
        let mut opened = Opened::watch(Whose::Start(std::process::id())).unwrap();
        let cat = |opened: &mut Opened, names: &[PathBuf]| {
            let mut child = Command::new("cat").args(names).arg("-").stdin(Stdio::piped()).spawn().unwrap();
            // It is known whose opens they are.
            assert!(opened.is_counted(child.id()));
            drop(child.stdin.take());
            child.wait().unwrap();
            opened.look(&mut Sightings::default());
            let is_noted = |name: &&PathBuf| opened.opens.iter().any(|open| open.path == **name);
            (names.iter().filter(is_noted).count(), opened.is_lost())
        };
        let within = cat(&mut opened, &names[..2]);
        opened.paths_bytes_left = 1;
        (within, cat(&mut opened, &names[2..])) == ((2, false), (1, true))
    }

    /// A start may be observed for half a minute, a boot for five.
    #[test]
    fn who_watches_opens_keeps_nobody_from_unmounting_what_was_opened() {
        if !has(Need::Root) || !has(Need::LoopDevice) {
            return;
        }
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let [image, point] = ["image", "mounted"].map(|name| directory.path().join(name));
        File::create(&image).unwrap().set_len(8 << 20).unwrap();
        std::fs::create_dir(&point).unwrap();
        let quiet = |command: &mut Command| assert!(command.status().unwrap().success(), "{command:?}");
        quiet(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image));
        quiet(Command::new("mount").args(["-o", "loop"]).args([&image, &point]));
        let mut opened = Opened::watch(Whose::Everybody).unwrap();
        let file = point.join("file");
        quiet(Command::new("cp").args([Path::new("/etc/passwd"), &file]));
        quiet(Command::new("cat").arg(&file).stdout(Stdio::null()));
        let until = Instant::now() + Duration::from_secs(60);
        while !opened.opens.iter().any(|open| open.path == file) && Instant::now() < until {
            opened.look(&mut Sightings::default());
        }
        let is_seen = opened.opens.iter().any(|open| open.path == file);
        let unmounted = Command::new("umount").arg(&point).status().unwrap();
        if !unmounted.success() {
            quiet(Command::new("umount").arg("--lazy").arg(&point));
        }
        assert!(is_seen && unmounted.success(), "{is_seen}, {unmounted}");
    }

    /// A compiler's driver may have started it.
    #[test]
    fn where_one_who_opened_something_is_gone_opens_of_a_start_were_missed() {
        if !has(Need::Root) {
            return;
        }
        let mut opened = Opened::watch(Whose::Start(std::process::id())).unwrap();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        assert!(opened.is_counted(child.id()) && !opened.is_counted(1) && !opened.is_lost());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(opened.is_counted(child.id()) && !opened.is_lost(), "whose it was is remembered");
        opened.counts.clear();
        assert!(!opened.is_counted(child.id()) && opened.is_lost());
    }

    #[test]
    fn of_a_file_so_many_pages_are_noted_and_others_are_seen_as_before() {
        if has(Need::Root) {
            unless_caches_dropped(so_many_pages_are_noted);
        }
    }

    fn so_many_pages_are_noted() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let paths = ["large", "small"].map(|name| directory.path().canonicalize().unwrap().join(name));
        paths.iter().zip([4, 2]).for_each(|(path, pages)| {
            std::fs::write(path, vec![1; pages * PAGE_SIZE as usize]).unwrap();
        });
        // What was made meanwhile is left out: the clock of files stands still for some milliseconds.
        std::thread::sleep(Duration::from_millis(50));
        let mut opened = Opened::watch(Whose::User(u32::MAX)).unwrap();
        opened.pages_of_a_file_max = 3;
        for (time_ns, path) in (1..).zip(&paths) {
            // Written, they are used once.
            std::fs::read(path).unwrap();
            let file = FileHandle::of(path).unwrap();
            opened.opens.push(Open { time_ns, path: path.clone(), file, is_directory: false });
        }
        let rights = Rights { uid: 0, gid: 0, groups: [].into() };
        let seen = opened.observation(Sightings::default(), &rights).unwrap();
        let seen = seen.files.iter().map(|file| {
            (PathBuf::from(&file.path), file.coverage, file.pages.iter().map(|used| used.range.len()).sum())
        });
        let [large, small] = paths;
        assert_eq!(
            seen.collect::<Vec<(PathBuf, Coverage, u64)>>(),
            [(large, Coverage::Partial, 3), (small, Coverage::Superset, 2)]
        );
    }

    /// As Btrfs subvolumes cannot, and overlays of older kernels.
    #[test]
    fn what_lies_on_a_file_system_that_cannot_be_watched_does_not_count_as_unused() {
        if !has(Need::Root) {
            return;
        }
        let mut touches = Touches::default();
        touches.touch(PageIndex(1), 0);
        let counts = touches.extents()[0].counts;
        let after_many = |is_refused: bool| {
            let opened = Opened::watch(Whose::User(u32::MAX)).unwrap();
            if is_refused {
                opened.watch.refuse_all();
            }
            let rights = Rights { uid: 0, gid: 0, groups: [].into() };
            let seen = opened.observation(Sightings::default(), &rights).unwrap();
            let file = ProfiledFile {
                path: "/var/tmp/file".into(),
                identity: FileIdentity { size_bytes: 2 * PAGE_SIZE, ..FileIdentity::default() },
                extents: touches.extents(),
                ..ProfiledFile::default()
            };
            let name = Lookup { path: "/var/tmp/name".into(), list: true, counts };
            let mut profile = Profile { files: vec![file], lookups: vec![name], ..Profile::default() };
            (0..20).for_each(|_| profile.observe(&seen));
            (profile.files.len(), profile.lookups.len())
        };
        assert_eq!([false, true].map(after_many), [(0, 0), (1, 1)]);
    }

    #[test]
    fn what_is_used_later_comes_later_in_the_order_of_need() {
        if has(Need::Root) && has(Need::Eviction("/var/tmp".into())) {
            unless_caches_dropped(what_is_used_later_comes_later);
        }
    }

    fn what_is_used_later_comes_later() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = directory.path().canonicalize().unwrap().join("library");
        std::fs::write(&path, vec![1; 8 * PAGE_SIZE as usize]).unwrap();
        let file = File::open(&path).unwrap();
        file.sync_all().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        prepage_sys::cachestat::evict(file.as_fd(), Duration::from_secs(60)).unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
        let read = |page: u64| {
            std::os::unix::fs::FileExt::read_exact_at(&file, &mut [0; PAGE_SIZE as usize], page * PAGE_SIZE)
                .unwrap();
        };
        let mut opened = Opened::watch(Whose::User(u32::MAX)).unwrap();
        let file = FileHandle::of(&path).unwrap();
        opened.opens.push(Open { time_ns: 1, path, file, is_directory: false });
        let rights = Rights { uid: 0, gid: 0, groups: [].into() };
        let mut sightings = Sightings::default();
        for page in [5, 2] {
            read(page);
            opened.look_at_pages(&mut sightings, &rights).unwrap();
        }
        read(7);
        let seen = opened.observation(sightings, &rights).unwrap();
        let mut pages: Vec<_> =
            seen.files[0].pages.iter().map(|used| (used.rank, used.range.start().0)).collect();
        pages.sort_unstable();
        assert_eq!(pages.iter().map(|(_, page)| *page).collect::<Vec<_>>(), [5, 2, 7]);
    }
}
