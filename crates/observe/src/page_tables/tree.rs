//! A process and all that it has started, directly or not.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use prepage_sys::proc_file;
use prepage_sys::processes::threads_of;
use prepage_sys::session_id::session_id;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// How long a tree is believed to have no new process although the machine has: where /proc/loadavg is not the kernel's own
/// (lxcfs), it may come late.
const BELIEVED: Duration = Duration::from_millis(10);

/// The same where perf tells which processes are started: it may have had no room to.
const BELIEVED_TOLD: Duration = Duration::from_millis(250);

/// A process and its descendants.
#[derive(Debug)]
pub(crate) struct Tree {
    root: u32,
    /// Each with its parent, itself first.
    members: Vec<(u32, u32)>,
    /// /proc/loadavg, which ends with the number of the process or thread that was started last on the machine.
    started: Option<File>,
    last_started: Vec<u8>,
    /// Whether a process of it was started, or has ended, since it was walked; `None` where nobody tells that.
    has_changed: Option<bool>,
    walked: Instant,
    /// Processes known to belong to it that no walk has found, and what tells of their end.
    others: Vec<(u32, OwnedFd)>,
}

impl Tree {
    /// That of `root`, as it is now.
    pub(crate) fn of(root: u32) -> Self {
        let started = File::open("/proc/loadavg").ok();
        let (members, last_started, others) = (Vec::new(), Vec::new(), Vec::new());
        let walked = Instant::now();
        let mut tree = Self { root, members, started, last_started, has_changed: None, walked, others };
        tree.last_started = tree.last_started();
        tree.walk();
        tree
    }

    /// The process and its descendants, each with its parent, itself first. Some may have ended a moment ago.
    pub(crate) fn look(&mut self) -> &[(u32, u32)] {
        if let Some(has_changed) = self.has_changed {
            if has_changed || self.walked.elapsed() > BELIEVED_TOLD {
                self.walk();
            }
            return &self.members;
        }
        let last_started = self.last_started();
        if last_started.is_empty() || last_started != self.last_started || self.walked.elapsed() > BELIEVED {
            self.last_started = last_started;
            self.walk();
        }
        &self.members
    }

    /// Says whether a process of the tree was started or has ended. From the first call on only this counts: without it, whatever the machine starts
    /// makes the tree be walked again.
    pub(crate) fn tell_changed(&mut self, has_changed: bool) {
        self.has_changed = Some(self.has_changed.unwrap_or(true) || has_changed);
    }

    /// The same, whatever shows that no process was started.
    pub(crate) fn look_anew(&mut self) -> &[(u32, u32)] {
        self.last_started = self.last_started();
        self.walk();
        &self.members
    }

    /// Process `pid` is known to belong to it. That may not show: the kernel counts a process as started a moment before it is its parent's child,
    /// leaves out one whose sibling ends meanwhile (proc_pid_task_children(5)), and gives away those whose parent has ended.
    pub(crate) fn belongs(&mut self, pid: u32) {
        if self.has(pid) {
            return;
        }
        self.walk();
        if !self.has(pid)
            && let Some(Ok(end)) = Pid::from_raw(pid as i32).map(|pid| pidfd_open(pid, PidfdFlags::empty()))
        {
            self.others.push((pid, end));
            self.walk();
        }
    }

    fn has(&self, pid: u32) -> bool {
        self.members.iter().any(|(member, _)| *member == pid)
    }

    /// To list the threads of each process and the children of each thread takes ten calls and more a thread; to see that none was
    /// started takes one. Empty where that is not to be seen.
    fn last_started(&self) -> Vec<u8> {
        let mut text = [0; 64];
        let read = self.started.as_ref().and_then(|file| file.read_at(&mut text, 0).ok());
        let last = text[..read.unwrap_or(0)].rsplit(|&byte| byte == b' ').next();
        last.unwrap_or_default().to_vec()
    }

    fn walk(&mut self) {
        self.walked = Instant::now();
        self.has_changed = self.has_changed.map(|_| false);
        self.members.clear();
        self.members.push((self.root, 0));
        self.add_descendants(0);
        self.others.retain(|(_, end)| !has_ended(end));
        for at in 0..self.others.len() {
            let (pid, from) = (self.others[at].0, self.members.len());
            if !self.has(pid) {
                self.members.push((pid, 0));
                self.add_descendants(from);
            }
        }
    }

    /// Of the members from the one at `at` on. Whoever observes a program may be a child of the first process of a container, and is none
    /// that it has started: this process, and those beside other programs.
    fn add_descendants(&mut self, mut at: usize) {
        while let Some(&(pid, _)) = self.members.get(at) {
            at += 1;
            for thread in threads(pid) {
                let children = format!("/proc/{pid}/task/{thread}/children");
                let children = proc_file::read_text(&children).unwrap_or_default();
                for child in children.split_ascii_whitespace().filter_map(|child| child.parse().ok()) {
                    if !self.has(child) && !is_beside(child) {
                        self.members.push((child, pid));
                    }
                }
            }
        }
    }
}

/// Whether process `pid` is one of this binary beside a program ([`prepage_sys::beside`]): unlike a starter, it leads a session.
fn is_beside(pid: u32) -> bool {
    let program = |pid: &str| std::fs::read_link(format!("/proc/{pid}/exe")).ok();
    session_id(pid) == Some(pid) && program("self").is_some_and(|own| program(&pid.to_string()) == Some(own))
}

fn has_ended(pidfd: &OwnedFd) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&at_once)).is_ok_and(|ready| ready > 0)
}

/// The threads of process `pid`; none where it has ended.
pub(crate) fn threads(pid: u32) -> impl Iterator<Item = u32> {
    threads_of(pid).into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::os::unix::net::UnixStream;
    use std::process::{Command, Stdio};

    use prepage_sys::beside::{adopt_orphans, run_beside_with};
    use prepage_sys::forked::Forked;

    use super::*;

    /// Like the first process of a container, which adopts the observers of all programs there.
    #[test]
    fn what_observes_programs_is_none_of_a_tree_that_adopts_it() {
        let adopting = Forked::new(|| {
            adopt_orphans().unwrap();
            let (mut here, there) = UnixStream::pair().unwrap();
            run_beside_with(vec![there.into()], |kept| {
                let mut there = UnixStream::from(kept.into_iter().next().unwrap());
                let _ = there.write_all(b"\n");
                let _ = there.read(&mut [0]);
            })
            .unwrap();
            here.read_exact(&mut [0]).unwrap();
            let mut child = Command::new("sleep").arg("100").spawn().unwrap();
            let own = std::process::id();
            let is_known = Tree::of(own).look() == [(own, 0), (child.id(), own)];
            child.kill().unwrap();
            child.wait().unwrap();
            i32::from(!is_known)
        });
        assert_eq!(adopting.unwrap().wait().unwrap().exit_status(), Some(0));
    }

    #[test]
    fn children_and_their_children_are_found_as_they_come() {
        let mut tree = Tree::of(std::process::id());
        let before = tree.look().to_vec();
        let mut child = Command::new("sh")
            .args(["-c", "sleep 100 & echo $!; read line; kill $!"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let grandchild: u32 = line.trim().parse().unwrap();
        let now = tree.look();
        assert_eq!(now[0], (std::process::id(), 0));
        assert!(now.contains(&(child.id(), std::process::id())) && now.contains(&(grandchild, child.id())));
        assert!(!before.iter().any(|(pid, _)| *pid == grandchild));
        drop(child.stdin.take());
        child.wait().unwrap();
        std::thread::sleep(2 * BELIEVED);
        assert!(!tree.look().iter().any(|(pid, _)| *pid == grandchild));
    }

    #[test]
    fn where_it_is_told_of_changes_no_other_process_has_it_walked() {
        let mut shell = Command::new("sh")
            .args(["-c", "read line; sleep 100 & echo $!; read line; kill $!; wait; echo over; read line"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = shell.stdin.take().unwrap();
        let mut output = BufReader::new(shell.stdout.take().unwrap());
        let mut go_on = || {
            let mut line = String::new();
            input.write_all(b"\n").unwrap();
            output.read_line(&mut line).unwrap();
            line
        };
        let mut tree = Tree::of(shell.id());
        let has = |tree: &mut Tree, pid| tree.look().iter().any(|(member, _)| *member == pid);
        tree.tell_changed(false);
        assert!(has(&mut tree, shell.id()));
        let sleep: u32 = go_on().trim().parse().unwrap();
        tree.tell_changed(false);
        // However long this thread has no processor.
        let never = Instant::now() + Duration::from_secs(3600);
        tree.walked = never;
        assert!(!has(&mut tree, sleep), "it was walked without being told of a start");
        tree.tell_changed(true);
        tree.tell_changed(false);
        assert!(has(&mut tree, sleep));
        assert_eq!(go_on(), "over\n");
        tree.walked = never;
        assert!(has(&mut tree, sleep), "it was walked without being told of an end");
        tree.walked = Instant::now();
        std::thread::sleep(2 * BELIEVED_TOLD);
        assert!(!has(&mut tree, sleep), "it is not believed for ever");
        drop(input);
        shell.wait().unwrap();
    }

    /// As one that was given away when its parent ended, or that the kernel leaves out.
    #[test]
    fn a_process_that_is_known_to_belong_to_a_tree_is_found_there_until_it_ends() {
        let sleep = || Command::new("sleep").arg("100").spawn().unwrap();
        let (mut root, mut other) = (sleep(), sleep());
        let mut tree = Tree::of(root.id());
        let pids = |tree: &mut Tree| tree.look().iter().map(|(pid, _)| *pid).collect::<Vec<_>>();
        assert_eq!(pids(&mut tree), [root.id()]);
        for _ in 0..2 {
            tree.belongs(other.id());
            tree.belongs(root.id());
            assert_eq!(pids(&mut tree), [root.id(), other.id()]);
        }
        std::thread::sleep(2 * BELIEVED);
        assert_eq!(pids(&mut tree), [root.id(), other.id()]);
        for child in [&mut other, &mut root] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        std::thread::sleep(2 * BELIEVED);
        assert_eq!(pids(&mut tree), [root.id()], "itself is always there");
    }
}
