//! Threads of which no user takes all, whatever the users' work waits for: a file system that a hostile user answers for, or that user's own
//! end of a socket. What is of no user goes to the threads at once.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use prepage_sys::sync::Anyway;

use crate::crew::{Crew, Priority};

/// Pieces of work that wait, of all users.
const WAITING_MAX: usize = 512;
/// Those of one user, for each piece that may be under way. Of looks at starts this leaves most of the room to others; of reads, of which many are
/// under way and a prefetch lends dozens at once, one user may have all of it.
const WAITING_FOR_ONE: usize = 64;
/// Those of one user that are under way at once, where nothing else is said.
const OF_A_USER_MAX: usize = 2;
/// Of root's, one for so many threads: all that a boot starts is root's.
const THREADS_OF_ROOT: usize = 4;
const ROOT: u32 = 0;
/// A piece of work takes a millisecond. One that takes longer than this waits for somebody who may never answer.
const SLOW: Duration = Duration::from_secs(2);

/// A piece of work. It is under way until it drops what it is given, or [steps aside](AtWork::step_aside).
pub type Work = Box<dyn FnOnce(AtWork) + Send>;

/// The threads, and the work of each user. Lock order: none, `state` is not held while work is lent.
#[derive(Debug)]
pub struct FairCrew {
    crew: Crew,
    /// Pieces of one user that are under way at once, and of root: nobody knows of any of them whether it will ever end.
    of_a_user_max: usize,
    of_root_max: usize,
    state: Mutex<State>,
}

/// Protected by `FairCrew::state`.
#[derive(Debug, Default)]
struct State {
    /// Those with work under way.
    users: HashMap<u32, User>,
    /// Pieces of work that wait, of all users.
    waiting: usize,
}

/// The work of one user.
#[derive(Default)]
struct User {
    /// Pieces that have been lent to threads.
    under_way: usize,
    /// Of them, since when a thread is at each. How long it waited for one says nothing of the user.
    at_work: Vec<Instant>,
    /// Pieces that have [stepped aside](AtWork::step_aside): each still has its thread.
    aside: usize,
    /// The others, by [`Priority`], while as many are under way as may be.
    waiting: [VecDeque<Work>; 2],
}

impl User {
    /// Whether `all` that may be under way take so long that no others are waited with.
    fn is_slow(&self, all: usize, now: Instant) -> bool {
        let slow = self.at_work.iter().filter(|began| now.saturating_duration_since(**began) > SLOW);
        slow.count() >= all
    }

    fn waiting(&self) -> usize {
        self.waiting.iter().map(VecDeque::len).sum()
    }

    /// Whether no thread is, or will be, at any piece.
    fn is_idle(&self) -> bool {
        self.under_way == 0 && self.aside == 0
    }
}

impl std::fmt::Debug for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("User")
            .field("under_way", &self.under_way)
            .field("at_work", &self.at_work)
            .field("aside", &self.aside)
            .finish_non_exhaustive()
    }
}

/// A piece of work is under way, until this is dropped.
#[derive(Debug)]
pub struct AtWork {
    crew: Arc<FairCrew>,
    uid: u32,
    began: Instant,
}

/// A piece of work that goes on although another of the same user's has taken its place, until this is dropped.
#[derive(Debug)]
pub struct Aside {
    crew: Arc<FairCrew>,
    uid: u32,
}

impl FairCrew {
    /// At most `threads_max` threads, and as many again in place of those that hang; of each user two pieces of work are under way at once, and of root a
    /// quarter of what threads there are.
    pub fn new(name: &'static str, threads_max: usize) -> Self {
        let crew = Self::of(Crew::new(name, threads_max, WAITING_MAX), OF_A_USER_MAX);
        Self { of_root_max: OF_A_USER_MAX.max(threads_max / THREADS_OF_ROOT), ..crew }
    }

    /// The threads of `crew`; of each user `of_a_user_max` pieces of work are under way at once.
    pub fn of(crew: Crew, of_a_user_max: usize) -> Self {
        Self { crew, of_a_user_max, of_root_max: of_a_user_max, state: Mutex::default() }
    }

    fn max_of(&self, uid: u32) -> usize {
        if uid == ROOT { self.of_root_max } else { self.of_a_user_max }
    }

    fn waiting_max_of(&self, uid: u32) -> usize {
        WAITING_FOR_ONE * self.max_of(uid)
    }

    /// The threads, for work that is of no user.
    pub fn of_nobody(&self) -> &Crew {
        &self.crew
    }

    /// Has `work` of user `uid` done as soon as a thread can and less of this user's is under way; what a start needs comes before this user's
    /// guesses. Returns whether it will be: it is dropped where what is under way takes too long, or too much waits, of this user or of all.
    pub fn lend(self: &Arc<Self>, uid: u32, priority: Priority, work: Work) -> bool {
        self.lend_at(uid, Some(priority), work, Instant::now())
    }

    /// Has `work` of user `uid` done only where less of this user's is under way than may be: it is of use now or not at all.
    pub fn lend_now(self: &Arc<Self>, uid: u32, work: Work) -> bool {
        self.lend_at(uid, None, work, Instant::now())
    }

    /// Work without a `priority` does not wait.
    fn lend_at(self: &Arc<Self>, uid: u32, priority: Option<Priority>, work: Work, now: Instant) -> bool {
        let mut state = self.state.lock().anyway();
        let may_wait = state.waiting < WAITING_MAX;
        let user = state.users.entry(uid).or_default();
        if user.under_way < self.max_of(uid) {
            user.under_way += 1;
            drop(state);
            let is_lent = self.hand_on(uid, work);
            if !is_lent {
                self.go_on(uid);
            }
            return is_lent;
        }
        let may_wait =
            may_wait && user.waiting() < self.waiting_max_of(uid) && !user.is_slow(self.max_of(uid), now);
        let Some(priority) = priority.filter(|_| may_wait) else { return false };
        user.waiting[priority as usize].push_back(work);
        state.waiting += 1;
        true
    }

    /// Takes away the work that waits at `now` for other work of the same user which takes too long: whose it is, and the work. To drop it may take as long,
    /// where it is the last that holds files.
    pub fn take_late(&self, now: Instant) -> Vec<(u32, Work)> {
        let mut state = self.state.lock().anyway();
        let slow = state.users.iter_mut().filter(|(uid, user)| user.is_slow(self.max_of(**uid), now));
        let mut late = Vec::new();
        for (uid, user) in slow {
            let waiting = user.waiting.iter_mut().flat_map(|line| line.drain(..));
            late.extend(waiting.map(|work| (*uid, work)));
        }
        state.waiting -= late.len();
        late
    }

    /// How many threads there are, and how many of them hang.
    pub fn threads(&self) -> (usize, usize) {
        self.crew.threads()
    }

    /// Lends `work` of user `uid`, which counts as under way, to a thread. Returns whether one will do it. Guesses have waited behind the
    /// user's starts; behind those of others they would keep a place of the user's that a start may want.
    fn hand_on(self: &Arc<Self>, uid: u32, work: Work) -> bool {
        let crew = self.clone();
        self.crew.lend(Priority::Start, Box::new(move || work(AtWork::begin(crew, uid))))
    }

    /// A piece of work of user `uid` that was under way is over: the next one that waits takes its place.
    fn go_on(self: &Arc<Self>, uid: u32) {
        loop {
            let mut state = self.state.lock().anyway();
            let Some(user) = state.users.get_mut(&uid) else { return };
            let next = [Priority::Start, Priority::Guess]
                .into_iter()
                .find_map(|priority| user.waiting[priority as usize].pop_front());
            let Some(next) = next else {
                user.under_way -= 1;
                if user.is_idle() {
                    state.users.remove(&uid);
                }
                return;
            };
            state.waiting -= 1;
            drop(state);
            if self.hand_on(uid, next) {
                return;
            }
        }
    }
}

impl AtWork {
    fn begin(crew: Arc<FairCrew>, uid: u32) -> Self {
        let began = Instant::now();
        crew.state.lock().anyway().users.entry(uid).or_default().at_work.push(began);
        Self { crew, uid, began }
    }

    /// Gives up the place of this piece of work, which is about to wait for another of the same user's: what waits for a place is done meanwhile.
    ///
    /// # Errors
    /// The place is kept where as many pieces of the user have stepped aside as may be under way: each has a thread.
    pub fn step_aside(self) -> Result<Aside, Self> {
        let has_room = {
            let mut state = self.crew.state.lock().anyway();
            let user = state.users.entry(self.uid).or_default();
            let has_room = user.aside < self.crew.max_of(self.uid);
            user.aside += usize::from(has_room);
            has_room
        };
        if has_room { Ok(Aside { crew: self.crew.clone(), uid: self.uid }) } else { Err(self) }
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        let mut state = self.crew.state.lock().anyway();
        if let Some(user) = state.users.get_mut(&self.uid) {
            user.aside -= 1;
            if user.is_idle() {
                state.users.remove(&self.uid);
            }
        }
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        if let Some(user) = self.crew.state.lock().anyway().users.get_mut(&self.uid)
            && let Some(at) = user.at_work.iter().position(|began| *began == self.began)
        {
            user.at_work.swap_remove(at);
        }
        self.crew.go_on(self.uid);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use prepage_testing::{unless_late, wait_until};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);
    /// Work that has waited for so long behind what is under way may be taken to wait in vain.
    const IN_TIME: Duration = Duration::from_millis(1500);

    /// Work that says that it has begun, and ends when its gate is dropped.
    fn gated(begun: &Sender<u32>, what: u32) -> (Sender<()>, Work) {
        let (gate, closed) = channel();
        let begun = begun.clone();
        let work = move |_at_work: AtWork| {
            begun.send(what).unwrap();
            let _ = closed.recv();
        };
        (gate, Box::new(work))
    }

    fn next(begun: &Receiver<u32>) -> u32 {
        begun.recv_timeout(PATIENCE).unwrap()
    }

    #[test]
    fn a_burst_of_a_user_whose_work_hangs_takes_two_threads_and_others_are_served() {
        unless_late(IN_TIME, || {
            let crew = Arc::new(FairCrew::new("test", 8));
            let (began, begun) = channel();
            let (gates, burst): (Vec<_>, Vec<_>) = (0..40).map(|at| gated(&began, at)).unzip();
            for work in burst {
                assert!(crew.lend(7, Priority::Start, work), "nothing is known of them yet");
            }
            assert_eq!([next(&begun), next(&begun)].iter().sum::<u32>(), 1);
            for other in 100..120 {
                assert!(crew.lend(other, Priority::Start, gated(&began, other).1));
                assert_eq!(next(&begun), other);
            }
            assert_eq!(crew.take_late(Instant::now()).len(), 0, "they have just begun");
            let later = Instant::now() + 2 * SLOW;
            assert_eq!(crew.take_late(later).len(), 38);
            assert!(!crew.lend_at(7, Some(Priority::Start), gated(&began, 40).1, later));
            drop(gates);
            let again = gated(&began, 41).1;
            assert!(crew.lend(7, Priority::Start, again));
            assert_eq!(next(&begun), 41);
        });
    }

    /// As starts do that wait for a look at files of the same process, which hangs.
    #[test]
    fn a_user_whose_work_all_waits_aside_takes_no_thread_of_another_user() {
        unless_late(IN_TIME, || {
            let crew = Arc::new(FairCrew::new("test", 8));
            let (began, begun) = channel();
            let gates: Vec<_> = (0..20)
                .map(|what| {
                    let ((gate, closed), began) = (channel::<()>(), began.clone());
                    let waits = move |at_work: AtWork| {
                        let _place = at_work.step_aside();
                        began.send(what).unwrap();
                        let _ = closed.recv();
                    };
                    assert!(crew.lend(7, Priority::Start, Box::new(waits)));
                    gate
                })
                .collect();
            let mut waiting: Vec<_> = (0..2 * OF_A_USER_MAX).map(|_| next(&begun)).collect();
            waiting.sort_unstable();
            assert_eq!(waiting, [0, 1, 2, 3]);
            for other in 100..120 {
                assert!(crew.lend(other, Priority::Start, gated(&began, other).1));
                assert_eq!(next(&begun), other);
            }
            drop(gates);
            assert!((4..20).all(|_| next(&begun) < 20));
            wait_until(|| crew.state.lock().anyway().users.is_empty(), "somebody is left behind");
        });
    }

    #[test]
    fn what_waits_for_other_work_of_the_same_user_is_done_in_order_and_leaves_nothing_behind() {
        unless_late(IN_TIME, || {
            let crew = Arc::new(FairCrew::new("test", 8));
            let (began, begun) = channel();
            let (gate, first) = gated(&began, 0);
            assert!(crew.lend(7, Priority::Start, first));
            assert!(crew.lend(7, Priority::Start, Box::new(|_| std::panic::resume_unwind(Box::new(())))));
            for what in 1..100 {
                assert!(crew.lend(7, Priority::Start, gated(&began, what).1));
            }
            assert!((0..100).all(|what| next(&begun) == what));
            drop(gate);
            wait_until(|| crew.state.lock().anyway().users.is_empty(), "somebody is left behind");
            assert_eq!(crew.state.lock().anyway().waiting, 0);
        });
    }

    #[test]
    fn a_start_of_a_user_comes_before_the_guesses_for_the_same_user() {
        unless_late(IN_TIME, || {
            let crew = Arc::new(FairCrew::new("test", 8));
            let (began, begun) = channel();
            let (gates, first): (Vec<_>, Vec<_>) = (0..2).map(|at| gated(&began, at)).unzip();
            first.into_iter().for_each(|work| assert!(crew.lend(7, Priority::Start, work)));
            assert_eq!([next(&begun), next(&begun)].iter().sum::<u32>(), 1);
            for (what, priority) in [(2, Priority::Guess), (3, Priority::Guess), (4, Priority::Start)] {
                assert!(crew.lend(7, priority, gated(&began, what).1));
            }
            assert!(!crew.lend_now(7, gated(&began, 5).1) && crew.lend_now(8, gated(&began, 6).1));
            assert_eq!(next(&begun), 6, "what is of use now alone does not wait");
            let mut gates = gates.into_iter();
            drop(gates.next());
            assert_eq!([next(&begun), next(&begun), next(&begun)], [4, 2, 3]);
            drop(gates);
        });
    }

    /// All that a boot starts is root's.
    #[test]
    fn more_of_roots_work_is_done_at_once_and_threads_are_left_for_others() {
        unless_late(IN_TIME, || {
            let crew = Arc::new(FairCrew::new("test", 16));
            let (began, begun) = channel();
            let (gates, work): (Vec<_>, Vec<_>) = (0..20).map(|at| gated(&began, at)).unzip();
            work.into_iter().for_each(|work| assert!(crew.lend(ROOT, Priority::Start, work)));
            assert_eq!((0..4).map(|_| next(&begun)).sum::<u32>(), 1 + 2 + 3);
            for other in 100..103 {
                assert!(crew.lend(other, Priority::Start, gated(&began, other).1));
                assert_eq!(next(&begun), other);
            }
            drop(gates);
        });
    }

    #[test]
    fn so_many_wait_and_no_more() {
        unless_late(IN_TIME, || {
            let crew = Arc::new(FairCrew::new("test", 8));
            let (began, _begun) = channel();
            let mut gates = Vec::new();
            let mut is_taken = |uid| {
                let (gate, work) = gated(&began, 0);
                gates.push(gate);
                crew.lend(uid, Priority::Start, work)
            };
            // Each of them has all that one may have: the others' starts still have room.
            for uid in [7, 8, 9, 10] {
                assert!((0..OF_A_USER_MAX * (1 + WAITING_FOR_ONE)).all(|_| is_taken(uid)));
                assert!(!is_taken(uid));
            }
            assert!((0..OF_A_USER_MAX).all(|_| is_taken(11)) && !is_taken(11), "that is all that wait");
            drop(gates);
        });
    }
}
