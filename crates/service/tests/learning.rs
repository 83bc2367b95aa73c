//! What the service learns beside file systems that do not answer, and from users who put other files in the place of those that were used.

mod support;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use prepage_testing::{Hung, Need, has};

use support::*;

const A_USER: u32 = 54_321;

/// A shell of its own that does what it is told, for user `uid`.
struct Shell(Child);

impl Shell {
    fn start(shell: &Path, uid: u32) -> Self {
        let mut command = Command::new(shell);
        command
            .current_dir(shell.parent().unwrap())
            .uid(uid)
            .gid(uid)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.0.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Has it read `files`, for so long that whoever is about to observe it sees that, and waits until it has.
    fn read_all(&mut self, files: &[&Path]) {
        let reads = files.iter().map(|file| format!("read -r line <{};", file.display()));
        self.tell(&format!(
            "for i in 1 2 3 4 5; do {} sleep 0.1; done; echo done",
            reads.collect::<String>()
        ));
        let mut said = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "done\n");
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A shell of user `uid` that is being observed, while so many observations go on beside its own. One that came and went before this process looked is followed
/// by that of another shell.
fn observed_shell(place: &Place, service: &Prepaged, uid: u32, others: usize) -> Shell {
    let (mut observed, mut shells) = (None, 0);
    service.wait_until("it is being observed", || {
        shells += 1;
        let at = place.shell(&format!("shell-{uid}-{shells}"));
        let shell = Shell::start(&at, uid);
        let is_observed = is_so_within(Duration::from_secs(5), || observers(service).len() > others);
        observed = is_observed.then_some(shell);
        is_observed
    });
    observed.unwrap()
}

/// Has the service learn a program of its own.
fn learns_another(place: &Place, service: &Prepaged) {
    let (other, before) = (place.program("other"), service.count("learned"));
    let is_learned = || service.count("learned") > before;
    starts_until(service, "another program is learned", &other, Duration::from_millis(100), is_learned);
}

/// As where a server has died on which several users' programs look for something: each looks it up, waits, and is killed.
#[test]
fn one_observation_waits_for_a_file_system_that_does_not_answer_and_others_do_without() {
    let Some(place) = Place::new() else { return };
    if !has(Need::Path("/dev/fuse".into())) {
        return;
    }
    let [point, connections] = ["point", "connections"].map(|name| place.path(name));
    [&point, &connections].iter().for_each(|point| fs::create_dir(point).unwrap());
    rustix::mount::mount("none", &connections, "fusectl", rustix::mount::MountFlags::empty(), None).unwrap();
    let _mounted = Mounted(&connections);
    let hung = Hung::mount(&point);
    let service = Prepaged::start(&place, &[]);
    if let Some(why) = service.status()["names_unseen"].as_str() {
        return prepage_testing::skip(Need::Root, why);
    }
    // The kernel's own question, when it was mounted, is one.
    let unanswered = || waiting(&connections, &point) - 1;
    let start = |uid, others| {
        let before = unanswered();
        let mut shell = observed_shell(&place, &service, uid, others);
        // Itself: of two that look something up in it the kernel has one wait for the other, and nobody can kill that one.
        shell.tell(&format!("test -e {}", point.display()));
        service.wait_until("it waits", || unanswered() > before);
        shell.kill();
    };
    // Where the observation was over before it looked something up, another one is tried.
    let mut firsts = 64_000..;
    service.wait_until("an observation waits", || {
        start(firsts.next().unwrap(), 0);
        std::thread::sleep(Duration::from_secs(1));
        let unanswered = unanswered();
        assert!(unanswered <= 1, "{unanswered}");
        unanswered == 1
    });
    for uid in 65_000..65_002 {
        let observed = service.count("observed");
        start(uid, 1);
        service.wait_until("its observation has come to its end", || service.count("observed") > observed);
        assert_eq!(unanswered(), 1, "after the start of user {uid}");
    }
    learns_another(&place, &service);
    assert_eq!(unanswered(), 1);
    let observed = service.count("observed");
    drop(hung);
    service.wait_until("the one that waited goes on", || service.count("observed") > observed);
}

/// What it has read lies below a file system now that does not answer. Others look at pages in memory meanwhile.
#[test]
fn who_waits_for_a_file_system_keeps_nobody_from_looking_at_pages() {
    let Some(place) = Place::new() else { return };
    if !has(Need::Path("/dev/fuse".into())) {
        return;
    }
    let point = place.path("point");
    fs::create_dir(&point).unwrap();
    fs::write(point.join("read"), "a line\n").unwrap();
    let service = Prepaged::start(&place, &[]);
    let mut shell = observed_shell(&place, &service, A_USER, 0);
    // By a name that says nothing of where the file lies.
    shell.read_all(&[Path::new("/proc/self/cwd/point/read")]);
    let _hung = Hung::mount(&point);
    shell.kill();
    std::thread::sleep(Duration::from_secs(1));
    let flags = File::open("/proc/kpageflags").unwrap();
    let is_free = || rustix::fs::flock(&flags, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_ok();
    service.wait_until("pages can be looked at", is_free);
    drop(flags);
    learns_another(&place, &service);
}

/// Whoever opens a FIFO, or a link to one, lets go who waits at its other end.
#[test]
fn what_a_user_puts_in_the_place_of_files_that_a_start_has_used_is_not_opened() {
    let Some(place) = Place::new() else { return };
    let home = place.path("home");
    fs::create_dir(&home).unwrap();
    let [read, linked, mapped, trap] = ["read", "linked", "mapped", "trap"].map(|name| home.join(name));
    [&read, &linked].iter().for_each(|file| fs::write(file, "a line\n").unwrap());
    place.program("home/mapped");
    let fifo = |path: &Path| assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    fifo(&trap);
    let owned = Command::new("chown").args(["-R", &A_USER.to_string()]).arg(&home).status().unwrap();
    assert!(owned.success());
    let service = Prepaged::start(&place, &[]);
    let mut shell = observed_shell(&place, &service, A_USER, 0);
    let observed = service.count("observed");
    shell.tell(&format!("{} 0.5", mapped.display()));
    shell.read_all(&[&read, &linked]);
    [&read, &linked, &mapped].iter().for_each(|file| fs::remove_file(file).unwrap());
    [&read, &mapped].iter().for_each(|path| fifo(path));
    std::os::unix::fs::symlink(&trap, &linked).unwrap();
    let waits_at = |path: &Path| {
        let mut writer = Command::new("sh");
        Running(writer.args(["-c", "exec 3>\"$0\""]).arg(path).spawn().unwrap())
    };
    let mut writers = [&read, &mapped, &trap].map(|path| waits_at(path));
    shell.kill();
    service.wait_until("its observation has come to its end", || service.count("observed") > observed);
    for writer in &mut writers {
        assert!(writer.0.try_wait().unwrap().is_none(), "somebody has opened what it waits for");
    }
}
