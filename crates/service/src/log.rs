//! The launch log: what each user starts when, in a file for each user that root alone can read.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use prepage_core::launches::{Expected, Launched, Launches};
use prepage_prefetch::clock::unix_s;
use rustix::time::{ClockId, clock_gettime};

use crate::pages::{Kept, Page, all_in, uids_in};

/// Users whose launches are remembered.
const USERS_MAX: usize = 32;
/// One who has launched nothing for so many seconds makes room for another. Sooner, whoever has many users' numbers at hand would have
/// all others forgotten.
const AWAY_S: u64 = 7 * 86_400;
/// A log that has changed is written after this long.
const WRITE_EVERY: Duration = Duration::from_secs(60);
/// Logins of a user that are told apart.
const SESSIONS_MAX: usize = 8;

/// The launches of all users.
#[derive(Debug)]
pub struct Log {
    directory: PathBuf,
    users: HashMap<u32, User>,
    /// Users whose files are to be removed.
    forgotten: Vec<u32>,
    /// At the last tick.
    utc_offset_s: i64,
}

#[derive(Debug, Default)]
struct User {
    launches: Launches,
    /// The last logins that launched something.
    sessions: Vec<u32>,
    /// What was read was written since the machine was started: the first login of which something is seen is going on already.
    is_of_this_boot: bool,
    /// When the user last launched something; before this run, when that was written. Seconds since 1970.
    last_unix_s: u64,
    has_changed: bool,
    written: Option<Instant>,
}

impl Log {
    /// What lies in `directory`, which need not exist. A file that makes no sense is passed over, and replaced some day.
    pub fn read(directory: PathBuf) -> Self {
        let mut log = Self { directory, users: HashMap::new(), forgotten: Vec::new(), utc_offset_s: 0 };
        let boot_unix_s = unix_s().saturating_sub(clock_gettime(ClockId::Boottime).tv_sec as u64);
        for Kept { uid, last_unix_s, bytes } in all_in(&log.directory, USERS_MAX) {
            if let Ok(launches) = Launches::decode(&bytes) {
                let is_of_this_boot = last_unix_s >= boot_unix_s;
                log.users.insert(uid, User { launches, last_unix_s, is_of_this_boot, ..User::default() });
            }
        }
        log
    }

    /// Removes what lies in `directory`, which need not exist: nothing of anybody is to be remembered.
    pub fn remove(directory: &Path) {
        uids_in(directory).into_iter().for_each(|(uid, _)| _ = Page { uid, bytes: None }.write(directory));
    }

    /// User `uid` has launched `what` in the login `session`, where it is in one.
    pub fn launched(&mut self, uid: u32, what: &Launched, session: Option<u32>, now_unix_s: u64) {
        if self.users.len() >= USERS_MAX && !self.users.contains_key(&uid) {
            let oldest = self.users.iter().min_by_key(|(_, user)| user.last_unix_s);
            let away = oldest.filter(|(_, user)| now_unix_s.abs_diff(user.last_unix_s) > AWAY_S);
            let Some((&away, _)) = away else { return };
            self.forget(away);
        }
        self.forgotten.retain(|forgotten| *forgotten != uid);
        let user = self.users.entry(uid).or_default();
        user.last_unix_s = now_unix_s;
        let is_new = session.is_some_and(|session| !user.sessions.contains(&session));
        let arrives = is_new && !(user.is_of_this_boot && user.sessions.is_empty());
        if is_new {
            user.sessions.truncate(SESSIONS_MAX - 1);
            user.sessions.splice(..0, session);
        }
        user.launches.set_zone(self.utc_offset_s);
        user.launches.launched(what, arrives, now_unix_s);
        user.has_changed = true;
    }

    /// It is `now_unix_s`, and clocks on the wall are `utc_offset_s` seconds ahead of UTC.
    pub fn tick(&mut self, now_unix_s: u64, utc_offset_s: i64) {
        self.utc_offset_s = utc_offset_s;
        for user in self.users.values_mut() {
            user.launches.set_zone(utc_offset_s);
            user.has_changed |= user.launches.tick(now_unix_s);
        }
    }

    /// What is to be expected now, and of whom.
    pub fn expected(&self, probability_min: f64) -> Vec<(u32, Expected)> {
        let of = |(uid, user): (&u32, &User)| {
            let all = user.launches.expected(probability_min).into_iter();
            all.map(|expected| (*uid, expected)).collect::<Vec<_>>()
        };
        let mut all: Vec<(u32, Expected)> = self.users.iter().flat_map(of).collect();
        all.sort_by(|a, b| b.1.probability.total_cmp(&a.1.probability));
        all
    }

    /// How many users and programs are remembered.
    pub fn size(&self) -> (usize, usize) {
        (self.users.len(), self.users.values().map(|user| user.launches.programs()).sum())
    }

    /// What is to be written: all that has changed where `all` says so, else what was not written for a while.
    pub fn pages(&mut self, all: bool) -> Vec<Page> {
        let is_due = |user: &User| all || user.written.is_none_or(|written| written.elapsed() > WRITE_EVERY);
        let due = self.users.iter_mut().filter(|(_, user)| user.has_changed && is_due(user));
        let written = due.map(|(uid, user)| {
            (user.has_changed, user.written) = (false, Some(Instant::now()));
            Page { uid: *uid, bytes: Some(user.launches.encode()) }
        });
        let removed = self.forgotten.drain(..).map(|uid| Page { uid, bytes: None });
        written.chain(removed).collect()
    }

    /// A page could not be written: it is tried again.
    pub fn not_written(&mut self, page: &Page) {
        match page.bytes {
            Some(_) => self.users.get_mut(&page.uid).into_iter().for_each(|user| user.has_changed = true),
            None => self.forgotten.push(page.uid),
        }
    }

    /// Forgets user `uid`.
    pub fn forget(&mut self, uid: u32) {
        if self.users.remove(&uid).is_some() {
            self.forgotten.push(uid);
        }
    }

    /// Where the files lie.
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use prepage_testing::{Need, has};

    use super::*;

    const NOW: u64 = 20_000 * 86_400;

    fn what(name: &str) -> Launched {
        Launched { program: format!("/usr/bin/{name}"), role: name.into() }
    }

    /// User 7 starts a and then b in four logins, a day apart.
    fn four_days(log: &mut Log) {
        for day in 0..4 {
            let now = NOW + day * 86_400;
            log.launched(7, &what("a"), Some(day as u32), now);
            log.launched(7, &what("b"), Some(day as u32), now + 5);
            log.tick(now + 3599, 0);
        }
    }

    #[test]
    fn each_user_has_a_file_that_root_alone_reads_and_it_comes_back() {
        if !has(Need::Root) {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let mut log = Log::read(directory.path().join("launches"));
        four_days(&mut log);
        log.launched(8, &what("c"), None, NOW + 4 * 86_400);
        log.pages(false).iter().for_each(|page| page.write(log.directory()).unwrap());
        assert!(log.pages(true).is_empty(), "nothing has changed");
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(log.directory()), mode(&log.directory().join("7"))), (0o700, 0o600));
        let mut again = Log::read(log.directory().into());
        assert_eq!(again.size(), (2, 3));
        again.launched(7, &what("a"), Some(9), NOW + 5 * 86_400);
        let expected: Vec<_> = again.expected(0.7).into_iter().map(|(uid, one)| (uid, one.what)).collect();
        assert_eq!(expected, [(7, what("b"))]);
        again.forget(8);
        again.pages(true).iter().for_each(|page| page.write(again.directory()).unwrap());
        assert_eq!(
            Log::read(log.directory().into()).size(),
            (1, 2),
            "nothing is left of who does not want to be remembered"
        );
        log.not_written(&Page { uid: 8, bytes: Some(Vec::new()) });
        log.pages(true).iter().for_each(|page| page.write(log.directory()).unwrap());
        // A file that was cut off, one that somebody else may write, and one of no user.
        std::fs::write(log.directory().join("7"), &std::fs::read(log.directory().join("7")).unwrap()[..50])
            .unwrap();
        std::fs::set_permissions(log.directory().join("8"), std::fs::Permissions::from_mode(0o666)).unwrap();
        std::fs::write(log.directory().join("x"), "").unwrap();
        assert_eq!(Log::read(log.directory().into()).size(), (0, 0));
    }

    #[test]
    fn a_login_that_goes_on_while_the_service_is_restarted_is_no_arrival() {
        if !has(Need::Root) {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let mut log = Log::read(directory.path().join("launches"));
        four_days(&mut log);
        // At another hour of another day.
        let now = NOW + 4 * 86_400 + 8 * 3600;
        log.launched(7, &what("c"), Some(9), now);
        log.pages(true).iter().for_each(|page| page.write(log.directory()).unwrap());
        let is_expected_after = |session| {
            let mut again = Log::read(log.directory().into());
            // What has begun with the arrival is over.
            again.tick(now + 1000, 0);
            again.launched(7, &what("c"), Some(9), now + 1000);
            again.launched(7, &what("c"), Some(session), now + 1001);
            again.expected(0.7).iter().any(|(_, expected)| expected.what == what("a"))
        };
        assert!(!is_expected_after(9));
        assert!(is_expected_after(10), "another login");
        // Another boot.
        let page = std::fs::File::open(log.directory().join("7")).unwrap();
        page.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(1)).unwrap();
        assert!(is_expected_after(9));
    }

    #[test]
    fn a_clock_that_jumps_ten_years_and_back_forgets_nobody_and_nothing_that_is_expected() {
        const YEARS: u64 = 10 * 365 * 86_400;
        let mut log = Log::read("/no/such/directory".into());
        four_days(&mut log);
        let now = NOW + 4 * 86_400;
        for then in [now + YEARS, now, now - YEARS, now] {
            log.tick(then, 0);
            log.launched(7, &what("c"), Some(3), then + 1);
            log.tick(then + 2, 0);
        }
        log.launched(7, &what("a"), Some(4), now + 10);
        let expected: Vec<_> = log.expected(0.7).into_iter().map(|(uid, one)| (uid, one.what)).collect();
        assert_eq!(expected, [(7, what("b"))]);
    }

    #[test]
    fn a_log_that_cannot_be_written_is_kept_in_memory() {
        if !has(Need::Root) {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let in_the_way = directory.path().join("file");
        std::fs::write(&in_the_way, "").unwrap();
        let mut log = Log::read(in_the_way);
        four_days(&mut log);
        assert!(log.pages(true).iter().all(|page| page.write(log.directory()).is_err()));
        assert_eq!(log.size(), (1, 2));
    }

    #[test]
    fn who_is_away_for_long_makes_room_and_nothing_is_left_of_who_is_forgotten() {
        if !has(Need::Root) {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let mut log = Log::read(directory.path().join("launches"));
        let write =
            |log: &mut Log| log.pages(true).iter().for_each(|page| page.write(log.directory()).unwrap());
        let users = |log: &Log| {
            let mut users: Vec<u32> = uids_in(log.directory()).into_iter().map(|(uid, _)| uid).collect();
            users.sort_unstable();
            users
        };
        let most = USERS_MAX as u32;
        (0..most).for_each(|uid| log.launched(uid, &what("a"), None, NOW + u64::from(uid)));
        log.launched(most, &what("a"), None, NOW + AWAY_S);
        assert_eq!(log.size().0, USERS_MAX);
        log.launched(0, &what("a"), None, NOW + AWAY_S);
        write(&mut log);
        assert_eq!(users(&log), (0..most).collect::<Vec<_>>(), "nobody is away");
        log.launched(most, &what("a"), None, NOW + AWAY_S + 2);
        write(&mut log);
        assert_eq!(users(&log), (0..=most).filter(|uid| *uid != 1).collect::<Vec<_>>());
        // One who was forgotten and comes back before that is written.
        log.forget(0);
        log.launched(0, &what("a"), None, NOW + AWAY_S + 3);
        write(&mut log);
        assert!(users(&log).contains(&0));
        Log::remove(log.directory());
        assert!(users(&log).is_empty());
    }
}
