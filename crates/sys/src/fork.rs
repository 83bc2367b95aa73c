//! Telling a process from the parent that it was forked from, and keeping a child away from its parent's regions.
//!
//! A child of fork(2) inherits the VM's values and descriptors, but none of its regions and threads: what a value says of
//! memory is wrong there, and a call on an inherited userfaultfd reaches into the parent. One word that the kernel wipes in
//! children tells; it holds however the child was made. Where fork(3) made it, nothing can come to lie where a region of
//! the parent was: a touch dies of SIGSEGV as long as the child lives.

use std::cell::UnsafeCell;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use crate::given::{mapping, number};
use crate::raw_lock::RawLock;
use crate::reap::wait4;
use crate::signals::Masked;

/// A number of this process that no ancestor had; the same at each call until the process forks, when it stays that of the
/// parent and the child gets another. Takes one load.
pub fn generation() -> u64 {
    /// Ordinary memory: a child goes on counting where its parent was.
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let word = word();
    let now = word.load(Ordering::Relaxed);
    if now != 0 {
        return now;
    }
    let fresh = NEXT.fetch_add(1, Ordering::Relaxed);
    match word.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => fresh,
        Err(other) => other,
    }
}

/// Copies this process as fork(2) does, `None` in the copy, and no signal tells this one of the copy's end: where SIGCHLD is ignored, the
/// kernel keeps how it ended all the same. It is waited for with `__WALL`. Handlers of fork(3) do not run.
///
/// # Safety
/// The copy has one thread, and libc does not know that it is a copy: until it ends it calls no more than async-signal-safe functions,
/// or this process has one thread itself.
pub(crate) unsafe fn fork_unannounced() -> io::Result<Option<libc::pid_t>> {
    const NONE: libc::c_ulong = 0;
    // SAFETY: clone without CLONE_VM, here with no flag and no signal, copies the process; the caller answers for the copy.
    let child = number(unsafe { libc::syscall(libc::SYS_clone, NONE, NONE, NONE, NONE, NONE) })?;
    Ok((child != 0).then_some(child as libc::pid_t))
}

/// The stack of [`fork_orphan`]'s work, as large as that of a thread.
const ORPHANS_STACK_BYTES: usize = 2 << 20;

/// Does `work` in a copy of this process that is nobody's child here, and ends it there. The child in between, which makes the copy and ends,
/// shares this process's memory while this one waits: to copy that twice would take a tenth of a millisecond more.
///
/// # Errors
/// Those of mmap(2), clone(2) and fork(2).
///
/// # Safety
/// This process has one thread.
pub(crate) unsafe fn fork_orphan<W: FnOnce()>(work: W) -> io::Result<()> {
    extern "C" fn between<W: FnOnce()>(work: *mut libc::c_void) -> libc::c_int {
        // SAFETY: there is one thread. fork(3) leaves locks and handlers here as they were, and tells libc in the copy that it is one.
        match unsafe { libc::fork() } {
            0 => {
                // SAFETY: the copy has its own, which nobody else takes: the place holds one until `fork_orphan` returns.
                let work = unsafe { work.cast::<Option<W>>().as_mut() }.and_then(Option::take);
                work.expect("it is there")();
                // SAFETY: what lies further up the stack, and handlers of exit(3), are the original's.
                unsafe { libc::_exit(0) }
            }
            made => libc::c_int::from(made < 0),
        }
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, of which the lowest page keeps the stack from growing into others.
    let stack = unsafe { libc::mmap(std::ptr::null_mut(), ORPHANS_STACK_BYTES, protection, flags, -1, 0) };
    mapping(stack)?;
    let mut work = Some(work);
    // SAFETY: the stack is as large as it says. This thread, the only one, sleeps until the child in between has ended (CLONE_VFORK), so
    // nobody uses the memory they share at the same time, and what the child is given outlives it.
    let between = unsafe {
        libc::mprotect(stack, 4096, libc::PROT_NONE);
        let top = stack.byte_add(ORPHANS_STACK_BYTES);
        libc::clone(between::<W>, top, libc::CLONE_VM | libc::CLONE_VFORK, (&raw mut work).cast())
    };
    let ended = number(between).and_then(|between| wait4(between, libc::__WALL));
    // SAFETY: the child in between has ended, and the copy has a stack of its own.
    unsafe { libc::munmap(stack, ORPHANS_STACK_BYTES) };
    let ended = ended?.expect("a wait that blocks ends with a child");
    if ended.status == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EAGAIN)) }
}

/// The word that is 0 in a new child.
fn word() -> &'static AtomicU64 {
    static WORD: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
    let mut word = WORD.load(Ordering::Acquire);
    if word.is_null() {
        // It was called before main. Named here so that every program that has this function has the entry of .init_array, too.
        (*std::hint::black_box(&HANDLE_FORKS))();
        // No lock: a child that was forked while a thread had it would wait for ever.
        let made = new_word();
        word = match WORD.compare_exchange(word, made, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => made,
            Err(first) => {
                // SAFETY: this thread's own page, which nobody knows.
                unsafe { libc::munmap(made.cast(), 4096) };
                first
            }
        };
    }
    // SAFETY: the page stays for good.
    unsafe { &*word }
}

/// A page with such a word.
fn new_word() -> *mut AtomicU64 {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping; zeros are a valid word.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let page = libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0);
        assert!(page != libc::MAP_FAILED, "no memory for one page");
        assert_eq!(libc::madvise(page, 4096, libc::MADV_WIPEONFORK), 0, "Linux 4.14 has it");
        page.cast()
    }
}

/// Has the handlers below called, once for each fork.
///
/// They are registered first, before the program's own code can register others. So handlers that are registered later run before the lock
/// is taken and after it is given back, and may use regions. Those of libraries that were registered earlier may not.
extern "C" fn handle_forks() {
    static ARE_REGISTERED: AtomicBool = AtomicBool::new(false);
    if ARE_REGISTERED.swap(true, Ordering::Relaxed) {
        return;
    }
    // SAFETY: they do what is allowed before and after a fork.
    let kept = unsafe {
        libc::pthread_atfork(Some(before_fork), Some(after_fork_in_parent), Some(after_fork_in_child))
    };
    assert_eq!(kept, 0, "no memory for three addresses");
}

// SAFETY: .init_array holds pointers to functions of the C calling convention, which libc runs once: before main, or before dlopen(3)
// returns. The function touches nothing that needs an initialised runtime.
//
// Not `#[used]`: a program that never calls [`word`] has no handlers, and its start takes no longer.
#[unsafe(link_section = ".init_array")]
static HANDLE_FORKS: extern "C" fn() = handle_forks;

/// The regions that children do not inherit, under a lock that fork(3) takes.
///
/// Nobody allocates or frees under the lock. An allocator may have handlers of fork(3) that take its own locks: they run before
/// [`before_fork`], so a thread that waited for them here would wait for the thread that forks, and that thread for this one.
struct Kept {
    lock: RawLock,
    /// Changed under `lock`.
    places: UnsafeCell<Places>,
    /// Under `lock`: the signals of the thread that forks. A handler that maps, unmaps or forks would wait for its own thread.
    masked: UnsafeCell<Option<Masked>>,
}

// SAFETY: both cells are reached under the lock alone, and the mask by the thread that forks alone.
unsafe impl Sync for Kept {}

static KEPT: Kept = Kept {
    lock: RawLock::new(),
    places: UnsafeCell::new(Places { all: Vec::new(), free: 0 }),
    masked: UnsafeCell::new(None),
};

/// Where regions are.
struct Places {
    all: Vec<Place>,
    /// The first that is free; as many as there are where none is.
    free: usize,
}

#[derive(Clone, Copy)]
enum Place {
    Of {
        start: usize,
        len: usize,
    },
    /// And the next that is free.
    Free(usize),
}

impl Places {
    /// Puts `place` into a free entry, of which it returns the number. Where there is no room, takes that of `more`, and leaves its own there; an
    /// error says how much would do.
    fn put(&mut self, place: Place, more: &mut Vec<Place>) -> Result<usize, usize> {
        let (number, count) = (self.free, self.all.len());
        if number == count && count == self.all.capacity() {
            if more.capacity() <= count {
                return Err((2 * count).max(64));
            }
            more.extend_from_slice(&self.all);
            std::mem::swap(more, &mut self.all);
        }
        match self.all.get_mut(number) {
            None => {
                self.all.push(place);
                self.free = number + 1;
            }
            Some(free) => match std::mem::replace(free, place) {
                Place::Free(next) => self.free = next,
                Place::Of { .. } => unreachable!("a region keeps its entry until it goes"),
            },
        }
        Ok(number)
    }

    fn give_back(&mut self, number: usize) {
        self.all[number] = Place::Free(self.free);
        self.free = number;
    }
}

impl Kept {
    /// Does `work` while no other thread has the lock and nobody forks.
    fn locked<T>(&self, work: impl FnOnce() -> T) -> T {
        /// Gives the lock back, also where `work` panics: whoever forks would wait for good.
        struct Held<'a>(&'a Kept);
        impl Drop for Held<'_> {
            fn drop(&mut self) {
                self.0.lock.unlock();
            }
        }
        // A handler that maps or forks would wait for its own thread.
        let _masked = Masked::asynchronous();
        self.lock.lock();
        let _held = Held(self);
        work()
    }

    fn change<T>(&self, change: impl FnOnce(&mut Places) -> T) -> T {
        // SAFETY: this thread holds the lock.
        self.locked(|| change(unsafe { &mut *self.places.get() }))
    }
}

/// Does `work` while no thread forks by fork(3), without signals from outside. `work` may not allocate or free memory, nor fork, nor make or drop
/// regions, nor call this.
pub(crate) fn without_forks<T>(work: impl FnOnce() -> T) -> T {
    word();
    KEPT.locked(work)
}

/// The place of a region, kept free of anything else in children, which do not inherit the region.
#[derive(Debug)]
pub(crate) struct KeptPlace(AtomicUsize);

/// The number of no entry.
const NONE: usize = usize::MAX;

impl KeptPlace {
    pub(crate) fn new(start: usize, len: usize) -> Self {
        word();
        let mut more = Vec::new();
        loop {
            match KEPT.change(|places| places.put(Place::Of { start, len }, &mut more)) {
                Ok(number) => return Self(AtomicUsize::new(number)),
                Err(room) => more = Vec::with_capacity(room),
            }
        }
    }

    /// Of a region that is none of this process's.
    pub(crate) const fn none() -> Self {
        Self(AtomicUsize::new(NONE))
    }

    /// The region is about to go, or children inherit it from here on.
    pub(crate) fn let_go(&self) {
        let number = self.0.swap(NONE, Ordering::Relaxed);
        if number != NONE {
            KEPT.change(|places| places.give_back(number));
        }
    }
}

extern "C" fn before_fork() {
    let masked = Masked::asynchronous();
    KEPT.lock.lock();
    // SAFETY: this thread holds the lock.
    unsafe { *KEPT.masked.get() = Some(masked) };
}

extern "C" fn after_fork_in_parent() {
    unlock_after_fork();
}

/// In the thread that forked, of the parent and of the child.
fn unlock_after_fork() {
    // SAFETY: this thread has held the lock since before the fork.
    let masked = unsafe { (*KEPT.masked.get()).take() };
    KEPT.lock.unlock();
    drop(masked);
}

/// A pipe that children of fork(3) have one end of, and this process the other: -1 where there is none.
static LIFELINE: [AtomicI32; 2] = [const { AtomicI32::new(-1) }; 2];

/// The lowest number of this process's end, where it may have so many descriptors: a fork copies a table of as many, 8 KiB of it for these.
const LIFELINE_FROM: i32 = 1000;
/// So many of the highest numbers are left to others, or to the end's own moves.
const LEFT_TO_OTHERS: u64 = 16;

/// From here on children of fork(3), and theirs, are killed when this process ends: for children whose memory it serves, which
/// would read zeros where nobody serves it. A child that executes another program is let go.
///
/// # Errors
/// EMFILE where no descriptor is left.
pub fn end_children_with_this() -> io::Result<()> {
    static MADE_BY: AtomicU64 = AtomicU64::new(0);
    let generation = generation();
    // No child has a part of it, or waits for who makes it.
    without_forks(|| {
        if MADE_BY.load(Ordering::Relaxed) != generation {
            let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
            let from = far_above(write.as_raw_fd());
            let write = rustix::io::fcntl_dupfd_cloexec(&write, from).unwrap_or(write);
            // This process has both ends until it ends. What a child had of its parent's stays its own.
            LIFELINE[0].store(read.into_raw_fd(), Ordering::SeqCst);
            LIFELINE[1].store(write.into_raw_fd(), Ordering::SeqCst);
            MADE_BY.store(generation, Ordering::Relaxed);
        }
        Ok(())
    })
}

/// Children are killed before `served` is closed, when this process ends: from then on their memory would read as zeros.
///
/// A process that ends closes its files from the highest number down: exit(2) goes through its descriptors in ascending order, and puts the end of each file
/// before those that wait already (`close_files`, `task_work_add`; since Linux 4.4). So this process's end of the pipe keeps a number far above that
/// of `served`. Where the limit of descriptors leaves none, it stays where it is.
pub fn end_children_before(served: BorrowedFd<'_>) {
    let number = served.as_raw_fd();
    let is_far_above = |write: i32| write < 0 || write / 2 > number;
    if is_far_above(LIFELINE[1].load(Ordering::SeqCst)) {
        return;
    }
    // No child has both.
    without_forks(|| {
        let (write, from) = (LIFELINE[1].load(Ordering::SeqCst), far_above(number));
        if is_far_above(write) || from <= write {
            return;
        }
        // SAFETY: it is open until it is closed here, under the lock.
        let lower = unsafe { BorrowedFd::borrow_raw(write) };
        if let Ok(higher) = rustix::io::fcntl_dupfd_cloexec(lower, from) {
            LIFELINE[1].store(higher.into_raw_fd(), Ordering::SeqCst);
            // SAFETY: nobody else knows it.
            unsafe { libc::close(write) };
        }
    });
}

/// The lowest number for a descriptor that is to be far above `number`, or as high as the limit lets it be.
fn far_above(number: i32) -> i32 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    let most = limit.min(i32::MAX as u64).saturating_sub(LEFT_TO_OTHERS) as i32;
    number.saturating_mul(4).max(LIFELINE_FROM).min(most).max(number + 1)
}

/// Has the kernel kill this process, a new child, once nobody has the other end of the pipe.
fn hold_on_to_parent() {
    let read = LIFELINE[0].load(Ordering::SeqCst);
    let write = LIFELINE[1].swap(-1, Ordering::SeqCst);
    if read < 0 {
        return;
    }
    if write >= 0 {
        // SAFETY: this process's copy, which nobody else knows.
        unsafe { libc::close(write) };
    }
    let mut path = [0_u8; 32];
    // Another opening of the pipe: who gets a signal is a property of that.
    let written = std::io::Write::write_fmt(&mut &mut path[..], format_args!("/proc/self/fd/{read}\0"));
    // SAFETY: plain calls that may be made in a child of a process with threads; the path ends with a zero.
    unsafe {
        let flags = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_CLOEXEC;
        let own = if written.is_ok() { libc::open(path.as_ptr().cast(), flags) } else { -1 };
        let is_held = own >= 0
            && libc::fcntl(own, libc::F_SETOWN, libc::getpid()) == 0
            && libc::fcntl(own, F_SETSIG, libc::SIGKILL) == 0
            && libc::fcntl(own, libc::F_SETFL, libc::O_ASYNC | libc::O_NONBLOCK) == 0;
        // It ended meanwhile: then there is an end of the pipe, not nothing to be read yet.
        let mut byte = 0_u8;
        if !is_held || libc::read(own, (&raw mut byte).cast(), 1) == 0 {
            libc::kill(libc::getpid(), libc::SIGKILL);
        }
    }
}

/// fcntl(2): which signal is sent; not in libc's list.
const F_SETSIG: libc::c_int = 10;

extern "C" fn after_fork_in_child() {
    hold_on_to_parent();
    // SAFETY: the lock is held by the thread that forked, which is the only one here.
    let places = unsafe { &*KEPT.places.get() };
    for place in &places.all {
        let &Place::Of { start, len } = place else { continue };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: replaces nothing: the parent's region is not mapped here, and what else may lie there stays.
        unsafe { libc::mmap(start as *mut libc::c_void, len, libc::PROT_NONE, flags, -1, 0) };
    }
    unlock_after_fork();
}

#[cfg(test)]
mod tests {
    use rustix::process::{Resource, Rlimit};

    use super::*;
    use crate::forked::Forked;

    #[test]
    fn places_are_kept_where_others_were_given_back() {
        let (mut places, mut more) = (Places { all: Vec::new(), free: 0 }, Vec::new());
        let of = |start| Place::Of { start, len: 1 };
        assert_eq!(places.put(of(0), &mut more), Err(64));
        more.reserve_exact(64);
        assert!((0..64).all(|number| places.put(of(number), &mut more) == Ok(number)));
        assert_eq!((places.put(of(64), &mut more), more.capacity()), (Err(128), 0));
        [3, 7].into_iter().for_each(|number| places.give_back(number));
        assert_eq!([100, 101].map(|start| places.put(of(start), &mut more)), [Ok(7), Ok(3)]);
        more.reserve_exact(128);
        assert_eq!((places.put(of(64), &mut more), more.capacity()), (Ok(64), 64));
        let starts = places.all.iter().map(|place| match place {
            Place::Of { start, .. } => *start,
            Place::Free(_) => unreachable!("all are used"),
        });
        let expected = (0..65).map(|number| {
            [(3, 101), (7, 100)].into_iter().find(|of| of.0 == number).map_or(number, |of| of.1)
        });
        assert!(starts.eq(expected));
    }

    #[test]
    fn handlers_are_registered_once_and_a_child_may_fork() {
        handle_forks();
        word();
        handle_forks();
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let child = Forked::new(|| {
                // SAFETY: a child that waits for itself is ended.
                unsafe { libc::alarm(30) };
                let grandchild = Forked::new(|| 7).unwrap();
                grandchild.wait().unwrap().exit_status().unwrap_or(1)
            });
            tell.send(child.unwrap().wait().unwrap().exit_status())
        });
        let limit = std::time::Duration::from_secs(60);
        assert_eq!(told.recv_timeout(limit), Ok(Some(7)), "it waits for the lock");
    }

    #[test]
    fn without_a_higher_number_the_end_of_the_pipe_stays_where_it_is() {
        let child = Forked::new(|| {
            let (_, end) = rustix::pipe::pipe().unwrap();
            let only = Some(end.as_raw_fd() as u64 + 1);
            drop(end);
            let limit = rustix::process::getrlimit(Resource::Nofile);
            rustix::process::setrlimit(Resource::Nofile, Rlimit { current: only, ..limit }).unwrap();
            i32::from(end_children_with_this().is_err())
        });
        assert_eq!(child.unwrap().wait().unwrap().exit_status(), Some(0));
    }

    #[test]
    fn who_panics_keeps_nobody_from_forking() {
        word();
        let panicked =
            std::thread::spawn(|| KEPT.locked(|| panic!("as what is done under the lock may"))).join();
        assert!(panicked.is_err());
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || tell.send(Forked::new(|| 0).unwrap().wait().unwrap().exit_status()));
        let limit = std::time::Duration::from_secs(60);
        assert_eq!(told.recv_timeout(limit), Ok(Some(0)), "it waits for the lock");
    }
}
