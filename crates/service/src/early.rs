//! A boot that is followed from its initramfs on, before the manager of the machine begins: the root file system is mounted somewhere
//! below, and becomes the root of this process before it becomes everybody's.
//!
//! The initramfs waits for nobody. So what has to be asked of /proc, /sys and /dev is asked before anything waits for the disk: they move to the new
//! root some moments later, and what has moved already is asked there. And the new root moves itself, to where the old one was: it is held from
//! the beginning on. The process itself stays when the initramfs is emptied, and ends as one of a unit would.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use prepage_prefetch::memory::Budget;
use prepage_sys::exec_watch::ExecWatch;
use prepage_sys::fault_around::FaultAroundOff;
use rustix::fs::{Advice, Mode, OFlags};

use crate::blocks::{BlockDevice, willneed_pages};

/// What the initramfs still does takes moments; one that never ends leads to no boot either. Looks are counted and not time, which also
/// passes while a machine is suspended.
const LOOKS_MAX: u32 = 30_000;
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// The kernel ends whatever else before what the boot needs.
const OOM_SCORE: &str = "500";

/// The unit of a boot. Where an administrator has masked or disabled it, or the kernel's command line has [`OFF`], nothing is to
/// be done in the initramfs either.
const UNIT: &str = "prepage-boot.service";
/// What the unit's ConditionPathExists names: it is not begun where a boot is followed already, and nothing is read for it. It holds the number of
/// the process that does: no unit's, so that whoever removes prepage has no other way to end it.
const FOLLOWED: &str = "prepage-boot";
/// An administrator's units, and those of packages.
const UNITS: [&str; 2] = ["/etc/systemd/system", "/usr/lib/systemd/system"];
/// The target that wants it.
const WANTED_BY: &str = "sysinit.target.wants";
/// What the unit's ConditionKernelCommandLine names.
const OFF: &str = "prepage=off";

/// What is had from the initramfs.
#[derive(Debug)]
pub struct Early {
    /// Whether a boot is to be followed.
    pub is_wanted: bool,
    /// Whether /var is of the root file system, or what lies there is not what is to be read.
    pub var_is_there: bool,
    /// What there is to fetch with.
    pub budget: Budget,
    /// The root's device, where its file system reads through it.
    pub device: Option<BlockDevice>,
    /// What one WILLNEED loads of it ([`willneed_pages`]).
    pub willneed_pages: u64,
    /// Whether pages are noted as they are touched, for somebody who learns; `None` where that cannot be had.
    pub fault_around: Option<FaultAroundOff>,
    /// /run, which goes on to the new root.
    run: Option<File>,
    /// All that is opened on the root file system from now on.
    pub opens: io::Result<ExecWatch>,
}

impl Early {
    /// Makes `root` the root directory of this process. What `fault_around` sets is kept where a boot is to be followed. Meanwhile what lies at `next` below
    /// `root`, which is looked at next, comes into memory.
    ///
    /// # Errors
    /// As chroot(2).
    pub fn enter(
        root: &Path,
        next: Vec<PathBuf>,
        fault_around: impl FnOnce() -> Option<FaultAroundOff>,
    ) -> io::Result<Self> {
        // Wherever it moves to meanwhile.
        std::env::set_current_dir(root)?;
        let root = Path::new(".");
        // One that cannot be read says nothing.
        let command_line = read(root, "/proc/cmdline").unwrap_or_default();
        let is_off = is_switched_off(&command_line);
        // Before /dev moves: its guardian needs it.
        let fault_around = if is_off { None } else { fault_around() };
        if !is_off {
            bring_in(next);
        }
        // As a unit has it.
        let _ = first(root, Path::new("/proc/self/oom_score_adj"), |path| std::fs::write(path, OOM_SCORE));
        let budget = Budget::of_process();
        let device = BlockDevice::of(root).ok().flatten();
        let willneed_pages = willneed_pages(root);
        // Links on the disk.
        let is_wanted = !is_off && unit_is_enabled(root);
        let var_is_there =
            !std::fs::read_to_string(root.join("etc/fstab")).is_ok_and(|fstab| mounts_var(&fstab));
        let fault_around = fault_around.filter(|_| is_wanted);
        let run = run(root);
        rustix::process::chroot(root)?;
        std::env::set_current_dir("/")?;
        let opens = ExecWatch::of_opens().and_then(|opens| opens.add(Path::new("/")).map(|()| opens));
        Ok(Self { is_wanted, var_is_there, budget, device, willneed_pages, fault_around, run, opens })
    }

    /// Says that this boot is followed. Where that cannot be said, the unit finds it out by itself.
    pub fn take_the_units_turn(&self) {
        let Some(run) = &self.run else { return };
        let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY | OFlags::CLOEXEC;
        if let Ok(file) = rustix::fs::openat(run, FOLLOWED, flags, Mode::from_raw_mode(0o444)) {
            let _ = writeln!(File::from(file), "{}", std::process::id());
        }
    }
}

/// Has the kernel read what lies at `next`, below the current directory or the root that it becomes, while this thread looks at links and settings: both
/// wait for one inode or directory after the other. Where the unit turns out to be disabled, that was in vain. Whoever follows these files checks whose they
/// are; nobody waits for this.
fn bring_in(next: Vec<PathBuf>) {
    let bring_in = move || {
        for path in next {
            let below = Path::new(".").join(path.strip_prefix("/").unwrap_or(&path));
            if let Ok(file) = File::open(below) {
                let _ = rustix::fs::fadvise(file, 0, None, Advice::WillNeed);
            }
        }
    };
    let _ = std::thread::Builder::new().name("next".into()).spawn(bring_in);
}

/// Whether something is mounted over the place of profiles later.
fn mounts_var(fstab: &str) -> bool {
    let point =
        |line: &str| line.split_whitespace().nth(1).map(|point| point.trim_end_matches('/').to_owned());
    let lines = fstab.lines().filter(|line| !line.trim_start().starts_with('#'));
    lines.filter_map(point).any(|point| ["/var", "/var/lib", "/var/lib/prepage"].contains(&&*point))
}

/// /run, here or where it has moved to: below `root` there is an empty directory before.
fn run(root: &Path) -> Option<File> {
    let here = File::open("/run").ok();
    let device = |path: &Path| std::fs::metadata(path).ok().map(|metadata| metadata.dev());
    let moved = root.join("run");
    if device(&moved) == device(root) { here } else { File::open(moved).ok() }
}

fn is_switched_off(command_line: &str) -> bool {
    command_line.split_whitespace().any(|word| word == OFF)
}

/// Whether the manager of the machine whose root file system is at `root` would begin the unit.
fn unit_is_enabled(root: &Path) -> bool {
    let below = |units: &str| root.join(units.trim_start_matches('/'));
    let own = below(UNITS[0]).join(UNIT);
    // A link to /dev/null, or an empty file (systemd.unit(5)).
    let is_masked = std::fs::read_link(&own).is_ok_and(|target| target == Path::new("/dev/null"))
        || own.symlink_metadata().is_ok_and(|own| own.is_file() && own.len() == 0);
    !is_masked && UNITS.iter().any(|units| below(units).join(WANTED_BY).join(UNIT).symlink_metadata().is_ok())
}

/// What `open` makes of `path`, which the initramfs moves below `root` at any moment: where it is not here, of where it has moved to.
///
/// # Errors
/// That of the second.
pub fn first<T>(root: &Path, path: &Path, open: impl Fn(&Path) -> io::Result<T>) -> io::Result<T> {
    open(path).or_else(|_| open(&root.join(path.strip_prefix("/").unwrap_or(path))))
}

/// The text of such a file.
///
/// # Errors
/// As [`first`].
pub fn read(root: &Path, path: impl AsRef<Path>) -> io::Result<String> {
    first(root, path.as_ref(), |path| std::fs::read_to_string(path))
}

/// Waits until /proc has moved to the root.
///
/// # Errors
/// TimedOut where it does not.
pub fn wait_for_proc() -> io::Result<()> {
    for _ in 0..LOOKS_MAX {
        if Path::new("/proc/self/mountinfo").exists() {
            return Ok(());
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Err(io::ErrorKind::TimedOut.into())
}

#[cfg(test)]
mod tests {
    use std::fs::{create_dir_all, remove_file};
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::fs::symlink;

    use prepage_core::PageIndex;
    use prepage_sys::cachestat::{cached_pages, evict};
    use prepage_testing::{Need, has, wait_until};
    use rustix::mount::{MountFlags, mount, mount_move};

    use super::*;

    /// `ROOT` is set in the process that enters one.
    const ROOT: &str = "PREPAGE_TEST_ROOT";

    /// An initramfs moves it while its first reads still wait for the disk.
    #[test]
    fn a_root_that_moves_meanwhile_is_entered() {
        if let Some(root) = std::env::var_os(ROOT) {
            let mut entered = File::create(Path::new(&root).join("entered")).unwrap();
            let [before, after] = ["before", "after"].map(|name| Path::new(&root).join(name));
            mount("none", &before, "tmpfs", MountFlags::empty(), None).unwrap();
            std::fs::write(before.join("of-the-root"), "").unwrap();
            let moves = || {
                mount_move(&before, &after).unwrap();
                None
            };
            Early::enter(&before, vec!["/of-the-root".into()], moves).unwrap();
            assert!(Path::new("/of-the-root").exists());
            entered.write_all(b"yes").unwrap();
            return;
        }
        if !has(Need::Root) || !has(Need::Mounts) {
            return;
        }
        let root = tempfile::tempdir().unwrap();
        ["before", "after"].iter().for_each(|name| create_dir_all(root.path().join(name)).unwrap());
        // The root directory and the mounts of a process of its own.
        let status = std::process::Command::new("unshare")
            .arg("--mount")
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "early::tests::a_root_that_moves_meanwhile_is_entered"])
            .env(ROOT, root.path())
            .status();
        assert!(status.unwrap().success());
        // A process that finds no test of this name succeeds as well.
        assert_eq!(std::fs::read(root.path().join("entered")).unwrap(), b"yes");
    }

    #[test]
    fn what_is_looked_at_next_comes_in_and_what_is_not_there_is_passed_over() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        if !has(Need::Eviction(here.into())) {
            return;
        }
        // This is the current directory of tests.
        let place = tempfile::tempdir_in(here).unwrap();
        let path = place.path().join("next");
        std::fs::write(&path, [1; 8192]).unwrap();
        let file = File::open(&path).unwrap();
        let is_in_memory = || cached_pages(file.as_fd(), PageIndex(0).alone()).unwrap() > 0;
        evict(file.as_fd(), Duration::from_secs(60)).unwrap();
        assert!(!is_in_memory());
        let below = Path::new("/").join(path.strip_prefix(here).unwrap());
        bring_in(vec!["/no/such/file".into(), below]);
        wait_until(is_in_memory, "it does not come in");
    }

    #[test]
    fn who_follows_a_boot_says_which_process_it_is() {
        let run = tempfile::tempdir().unwrap();
        let early = Early {
            is_wanted: true,
            var_is_there: true,
            budget: Budget::of_process(),
            device: None,
            willneed_pages: 0,
            fault_around: None,
            run: Some(File::open(&run).unwrap()),
            opens: Err(io::ErrorKind::Unsupported.into()),
        };
        early.take_the_units_turn();
        let said = std::fs::read_to_string(run.path().join(FOLLOWED)).unwrap();
        assert_eq!(said, format!("{}\n", std::process::id()));
    }

    #[test]
    fn a_word_of_the_command_line_switches_a_boot_off() {
        assert!(is_switched_off("root=/dev/vda ro prepage=off quiet\n"));
        for others in ["", "root=/dev/vda ro quiet\n", "prepage=offline", "x.prepage=off", "prepage=on"] {
            assert!(!is_switched_off(others), "{others}");
        }
    }

    #[test]
    fn a_var_of_its_own_is_not_there_yet() {
        assert!(mounts_var("# a\n/dev/vda1 / ext4 defaults 0 1\n/dev/vdb /var/ xfs defaults 0 2\n"));
        for none in ["", "/dev/vda1 / ext4 defaults 0 1\n# /dev/vdb /var xfs\n", "tmpfs /var/tmp tmpfs\n"] {
            assert!(!mounts_var(none), "{none}");
        }
    }

    #[test]
    fn a_unit_that_is_disabled_or_masked_is_not_enabled_whoever_would_begin_it() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        for units in UNITS {
            let units = root.join(&units[1..]);
            create_dir_all(units.join(WANTED_BY)).unwrap();
            assert!(!unit_is_enabled(root), "disabled");
            // What it points to is not there while an image is made.
            let wanted = units.join(WANTED_BY).join(UNIT);
            symlink(Path::new("/usr/lib/systemd/system").join(UNIT), &wanted).unwrap();
            assert!(unit_is_enabled(root));
            let mask = root.join("etc/systemd/system").join(UNIT);
            symlink("/dev/null", &mask).unwrap();
            assert!(!unit_is_enabled(root), "masked");
            remove_file(&mask).unwrap();
            std::fs::write(&mask, "").unwrap();
            assert!(!unit_is_enabled(root), "masked by an empty unit");
            std::fs::write(&mask, "[Service]\n").unwrap();
            assert!(unit_is_enabled(root), "another unit");
            remove_file(mask).unwrap();
            remove_file(wanted).unwrap();
        }
    }
}
