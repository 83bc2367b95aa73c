//! The launch log: what each user starts when, in a file for each user that root alone can read.

use std::path::PathBuf;
use std::time::Duration;

use prepage_core::idle::worth::Worth;
use prepage_core::launches::{Expected, Launched, Launches, VISIT_S};
use prepage_sys::clock::unix_s;
use rustix::time::{ClockId, clock_gettime};

use crate::pages::{Keep, Kept, Users};
use crate::process::Login;

/// Logins of a user that are told apart.
const LOGINS_MAX: usize = 8;

/// A sleep of the machine that is shorter takes nothing of a visit that matters; two clocks are never read at one moment.
const SLEEP_MIN: Duration = Duration::from_secs(60);

/// The launches of all users.
#[derive(Debug)]
pub struct Log {
    users: Users<User>,
    /// At the last tick.
    utc_offset_s: i64,
    /// How long the machine had slept since it was started, when that was looked at last.
    asleep: Duration,
}

/// What one user launches.
#[derive(Debug, Default)]
pub struct User {
    launches: Launches,
    /// The last logins that launched something.
    logins: Vec<u32>,
    /// When a login last launched something; 0 where none has since this was read.
    last_unix_s: u64,
    /// Something was launched before this was read and since the machine was started: the first login of which something is seen is going on already.
    is_of_this_boot: bool,
}

impl Keep for User {
    fn encode(&self) -> Vec<u8> {
        self.launches.encode()
    }
}

impl AsMut<Users<User>> for Log {
    fn as_mut(&mut self) -> &mut Users<User> {
        &mut self.users
    }
}

impl Log {
    /// What lies in `directory`, which need not exist. A file that makes no sense is passed over, and replaced some day.
    pub fn read(directory: PathBuf) -> Self {
        let boot_unix_s = unix_s().saturating_sub(clock_gettime(ClockId::Boottime).tv_sec as u64);
        Self::read_on(directory, boot_unix_s)
    }

    /// The same on a machine that was started at `boot_unix_s`.
    fn read_on(directory: PathBuf, boot_unix_s: u64) -> Self {
        let decode = |file: &Kept| {
            let launches = Launches::decode(&file.bytes).ok()?;
            let is_of_this_boot = launches.last_launch_unix_s() >= boot_unix_s;
            // Its file is also written when the user was not there: what did not come counts as well.
            let last_unix_s = launches.last_unix_s();
            Some((User { launches, is_of_this_boot, ..User::default() }, last_unix_s))
        };
        Self { users: Users::read(directory, decode), utc_offset_s: 0, asleep: asleep() }
    }

    /// The machine has slept for `asleep` since it was started. To be called before [`Self::launched`] and [`Self::tick`]: neither knows whether time has
    /// passed in which nobody could start anything. Returns whether it has slept since the last call.
    pub fn see_sleep(&mut self, asleep: Duration) -> bool {
        let has_slept = asleep.saturating_sub(std::mem::replace(&mut self.asleep, asleep)) >= SLEEP_MIN;
        if has_slept {
            self.users.change_all(|user| {
                user.launches.slept();
                // Visits under way are not written.
                false
            });
        }
        has_slept
    }

    /// User `uid` has launched `what`, in this `login`.
    pub fn launched(&mut self, uid: u32, what: &Launched, login: Login, now_unix_s: u64) {
        let Some(user) = self.users.see(uid, now_unix_s) else { return };
        let login = match login {
            Login::Number(number) => Some(number),
            Login::Untold => None,
            Login::Job => {
                user.launches.set_zone(self.utc_offset_s);
                return user.launches.launched_by_job(what, now_unix_s);
            }
        };
        let is_new = login.is_some_and(|login| !user.logins.contains(&login));
        // Who works already has arrived: each `ssh HOST COMMAND` is a login.
        let is_at_work = now_unix_s.abs_diff(user.last_unix_s) <= VISIT_S;
        let arrives = is_new && !is_at_work && !(user.is_of_this_boot && user.logins.is_empty());
        if is_new {
            user.logins.truncate(LOGINS_MAX - 1);
            user.logins.splice(..0, login);
        }
        if login.is_some() {
            user.last_unix_s = now_unix_s;
        }
        user.launches.set_zone(self.utc_offset_s);
        user.launches.launched(what, arrives, now_unix_s);
    }

    /// It is `now_unix_s`, and clocks on the wall are `utc_offset_s` seconds ahead of UTC.
    pub fn tick(&mut self, now_unix_s: u64, utc_offset_s: i64) {
        self.utc_offset_s = utc_offset_s;
        self.users.change_all(|user| {
            user.launches.set_zone(utc_offset_s);
            user.launches.tick(now_unix_s)
        });
    }

    /// What is to be expected now, and of whom.
    pub fn expected(&self, probability_min: f64) -> Vec<(u32, Expected)> {
        let of = |(uid, user): (u32, &User)| {
            let all = user.launches.expected(probability_min).into_iter();
            all.map(move |expected| (uid, expected))
        };
        let mut all: Vec<(u32, Expected)> = self.users.all().flat_map(of).collect();
        all.sort_by(|a, b| b.1.probability.total_cmp(&a.1.probability));
        all
    }

    /// What was brought in because user `uid` was expected to launch it, `brought_bytes`, was used as far as `used_bytes`.
    pub fn settle(&mut self, uid: u32, brought_bytes: u64, used_bytes: u64, now_unix_s: u64) {
        self.users.change(uid, |user| user.launches.worth.settle(brought_bytes, used_bytes, now_unix_s));
    }

    /// What it was worth to bring in what was expected, of each user.
    pub fn worths(&self) -> impl Iterator<Item = (u32, Worth)> {
        self.users.all().map(|(uid, user)| (uid, user.launches.worth))
    }

    /// How many users and programs are remembered.
    pub fn size(&self) -> (usize, usize) {
        (self.users.all().count(), self.users.all().map(|(_, user)| user.launches.programs()).sum())
    }

    pub fn forget(&mut self, uid: u32) {
        self.users.forget(uid);
    }
}

/// How long the machine has slept since it was started.
pub fn asleep() -> Duration {
    let [awake, all] = [ClockId::Monotonic, ClockId::Boottime].map(|clock| {
        let time = clock_gettime(clock);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    });
    all.saturating_sub(awake)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use prepage_testing::{Need, has};

    use super::*;
    use crate::pages::{AWAY_S, Page, USERS_MAX, remove_all, uids_in};
    use crate::process::login_in;

    const NOW: u64 = 20_000 * 86_400;

    fn what(name: &str) -> Launched {
        Launched { program: format!("/usr/bin/{name}"), role: name.into() }
    }

    #[test]
    fn a_sleep_ends_what_is_under_way_and_a_moment_between_two_clocks_does_not() {
        let mut log = Log::read("/no/such/directory".into());
        four_days(&mut log);
        let now = NOW + 4 * 86_400;
        log.launched(7, &what("a"), Login::Number(9), now);
        let is_expected = |log: &Log| log.expected(0.7).iter().any(|(_, one)| one.what == what("b"));
        let asleep = log.asleep;
        for (later_s, is_there) in [(0, true), (59, true), (118, true), (118 + 3600, false)] {
            log.see_sleep(asleep + Duration::from_secs(later_s));
            assert_eq!(is_expected(&log), is_there, "{later_s}");
        }
        log.launched(7, &what("a"), Login::Number(9), now + 3700);
        assert!(is_expected(&log), "it does not count as a time when nothing came");
    }

    /// User 7 starts a and then b in four logins, a day apart.
    fn four_days(log: &mut Log) {
        for day in 0..4 {
            let now = NOW + day * 86_400;
            log.launched(7, &what("a"), Login::Number(day as u32), now);
            log.launched(7, &what("b"), Login::Number(day as u32), now + 5);
            log.tick(now + 3599, 0);
        }
    }

    #[test]
    fn each_user_has_a_file_that_root_alone_reads_and_it_comes_back() {
        if !has(Need::Root) {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let above = directory.path().join("prepage");
        let mut log = Log::read(above.join("launches"));
        four_days(&mut log);
        log.launched(8, &what("c"), Login::Untold, NOW + 4 * 86_400);
        // Nothing of what was brought in for one of them was of use.
        (0..4).for_each(|_| log.settle(7, 1 << 20, 0, NOW));
        let paused = |log: &Log| {
            let worths = log.worths().filter(|(_, worth)| worth.is_paused(NOW + 1));
            worths.map(|(uid, _)| uid).collect::<Vec<_>>()
        };
        assert_eq!(paused(&log), [7]);
        log.users.pages(false).iter().for_each(|page| page.write(log.users.directory()).unwrap());
        assert!(log.users.pages(true).is_empty(), "nothing has changed");
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(log.users.directory()), mode(&log.users.directory().join("7"))), (0o700, 0o600));
        assert_eq!(mode(&above), 0o755, "the machine's profiles lie there");
        let mut again = Log::read(log.users.directory().into());
        assert_eq!((again.size(), paused(&again)), ((2, 3), vec![7]));
        again.launched(7, &what("a"), Login::Number(9), NOW + 5 * 86_400);
        let expected: Vec<_> = again.expected(0.7).into_iter().map(|(uid, one)| (uid, one.what)).collect();
        assert_eq!(expected, [(7, what("b"))]);
        again.forget(8);
        again.users.pages(true).iter().for_each(|page| page.write(again.users.directory()).unwrap());
        assert_eq!(
            Log::read(log.users.directory().into()).size(),
            (1, 2),
            "nothing is left of who does not want to be remembered"
        );
        log.users.not_written(&Page { uid: 8, bytes: Some(Vec::new()) });
        log.users.pages(true).iter().for_each(|page| page.write(log.users.directory()).unwrap());
        // A file that was cut off, one that somebody else may write, and one of no user.
        std::fs::write(
            log.users.directory().join("7"),
            &std::fs::read(log.users.directory().join("7")).unwrap()[..50],
        )
        .unwrap();
        std::fs::set_permissions(log.users.directory().join("8"), std::fs::Permissions::from_mode(0o666))
            .unwrap();
        std::fs::write(log.users.directory().join("x"), "").unwrap();
        assert_eq!(Log::read(log.users.directory().into()).size(), (0, 0));
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
        log.launched(7, &what("c"), Login::Number(9), now);
        log.users.pages(true).iter().for_each(|page| page.write(log.users.directory()).unwrap());
        let is_expected_after = |login, pause_s, boot_unix_s| {
            let mut again = Log::read_on(log.users.directory().into(), boot_unix_s);
            // What has begun with the arrival is over.
            again.tick(now + 1000, 0);
            again.launched(7, &what("c"), Login::Number(9), now + 1000);
            again.launched(7, &what("c"), Login::Number(login), now + 1000 + pause_s);
            again.expected(0.7).iter().any(|(_, expected)| expected.what == what("a"))
        };
        assert!(!is_expected_after(9, 1, now) && !is_expected_after(9, VISIT_S + 1, now));
        assert!(!is_expected_after(10, 1, now), "somebody is at work");
        assert!(is_expected_after(10, VISIT_S + 1, now), "another login");
        // The log may be written while nobody is there.
        assert!(is_expected_after(9, 1, now + 1), "another boot");
    }

    /// A user who logs in at another hour each day begins with something else each time. Beside that come jobs, each hour or each night, and each evening somebody
    /// who is at work has another machine run commands here.
    #[test]
    fn neither_jobs_nor_commands_of_somebody_at_work_are_arrivals() {
        const CRON: &str = "0::/system.slice/cron.service\n";
        // What systemd starts for it has no audit session.
        const TIMER: &str = "0::/system.slice/backup.service\n";
        const LOGIN: &str = "0::/user.slice/user-7.slice/session-3.scope\n";
        // One at night comes while nobody has been there for long.
        'jobs: for (jobs, unit) in [(0..24, CRON), (1..2, CRON), (0..24, TIMER), (1..2, TIMER)] {
            let mut log = Log::read("/no/such/directory".into());
            let mut session = 0;
            let mut in_login = |groups: &str| {
                session += 1;
                let number = if groups == TIMER { u32::MAX } else { session };
                login_in(&number.to_string(), groups)
            };
            for day in 0..5 {
                for hour in 0..24 {
                    let now = NOW + day * 86_400 + hour * 3600;
                    log.tick(now, 0);
                    if jobs.contains(&hour) {
                        log.launched(7, &what("job"), in_login(unit), now);
                    }
                    if hour == 3 * (day + 1) {
                        let (now, login) = (now + 1200, in_login(LOGIN));
                        log.launched(7, &what(&format!("first{day}")), login, now);
                        if day == 4 {
                            let expected = log.expected(0.7).into_iter().map(|(_, one)| one.what);
                            assert_eq!(expected.collect::<Vec<_>>(), [what("b")]);
                            continue 'jobs;
                        }
                        log.launched(7, &what("b"), login, now + 5);
                        for command in 1..10 {
                            let now = now + 404 + command * 200;
                            log.launched(7, &what("command"), in_login(LOGIN), now);
                            log.tick(now, 0);
                        }
                    }
                    log.tick(now + 3599, 0);
                }
            }
        }
    }

    #[test]
    fn a_clock_that_jumps_ten_years_and_back_forgets_nobody_and_nothing_that_is_expected() {
        const YEARS: u64 = 10 * 365 * 86_400;
        let mut log = Log::read("/no/such/directory".into());
        four_days(&mut log);
        let now = NOW + 4 * 86_400;
        for then in [now + YEARS, now, now - YEARS, now] {
            log.tick(then, 0);
            log.launched(7, &what("c"), Login::Number(3), then + 1);
            log.tick(then + 2, 0);
        }
        log.launched(7, &what("a"), Login::Number(4), now + 10);
        let expected: Vec<_> = log.expected(0.7).into_iter().map(|(uid, one)| (uid, one.what)).collect();
        assert_eq!(expected, [(7, what("b"))]);
    }

    /// As one of a later version, or of more users than are remembered.
    #[test]
    fn nothing_is_left_of_who_is_forgotten_whose_file_was_not_read() {
        if !has(Need::Root) {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("7");
        std::fs::write(&file, "of another version").unwrap();
        let mut log = Log::read(directory.path().into());
        let write = |log: &mut Log| {
            log.users.pages(true).iter().for_each(|page| page.write(log.users.directory()).unwrap())
        };
        write(&mut log);
        assert!(file.exists());
        log.forget(7);
        assert!(log.users.is_forgetting());
        write(&mut log);
        log.forget(7);
        assert!(!file.exists() && !log.users.is_forgetting());
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
        assert!(log.users.pages(true).iter().all(|page| page.write(log.users.directory()).is_err()));
        assert_eq!(log.size(), (1, 2));
    }

    #[test]
    fn who_is_away_for_long_makes_room_and_nothing_is_left_of_who_is_forgotten() {
        if !has(Need::Root) {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let mut log = Log::read(directory.path().join("launches"));
        let write = |log: &mut Log| {
            log.users.pages(true).iter().for_each(|page| page.write(log.users.directory()).unwrap())
        };
        let users = |log: &Log| {
            let mut users: Vec<u32> =
                uids_in(log.users.directory()).into_iter().map(|(uid, _)| uid).collect();
            users.sort_unstable();
            users
        };
        let most = USERS_MAX as u32;
        (0..most).for_each(|uid| log.launched(uid, &what("a"), Login::Untold, NOW + u64::from(uid)));
        log.launched(most, &what("a"), Login::Untold, NOW + AWAY_S);
        assert_eq!(log.size().0, USERS_MAX);
        log.launched(0, &what("a"), Login::Untold, NOW + AWAY_S);
        write(&mut log);
        assert_eq!(users(&log), (0..most).collect::<Vec<_>>(), "nobody is away");
        log.launched(most, &what("a"), Login::Untold, NOW + AWAY_S + 2);
        write(&mut log);
        assert_eq!(users(&log), (0..=most).filter(|uid| *uid != 1).collect::<Vec<_>>());
        // One who was forgotten and comes back before that is written.
        log.forget(0);
        log.launched(0, &what("a"), Login::Untold, NOW + AWAY_S + 3);
        write(&mut log);
        assert!(users(&log).contains(&0));
        remove_all(log.users.directory());
        assert!(users(&log).is_empty());
    }

    /// Files are also written when the hour ends in which a user mostly starts something.
    #[test]
    fn who_is_away_for_long_makes_room_also_after_a_restart_and_what_has_not_changed_is_not_written() {
        if !has(Need::Root) {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let mut log = Log::read(directory.path().into());
        let most = USERS_MAX as u32;
        (0..most).for_each(|uid| log.launched(uid, &what("a"), Login::Untold, NOW + u64::from(uid)));
        log.users.pages(true).iter().for_each(|page| page.write(log.users.directory()).unwrap());
        let mut again = Log::read(directory.path().into());
        again.launched(most, &what("a"), Login::Untold, NOW + AWAY_S);
        assert_eq!(again.users.all().filter(|(uid, _)| *uid == most).count(), 0, "nobody is away");
        again.launched(most, &what("a"), Login::Untold, NOW + AWAY_S + 2);
        assert_eq!(again.users.all().filter(|(uid, _)| *uid == most).count(), 1);
        // A day later.
        let mut again = Log::read(directory.path().into());
        (0..24 * 60).for_each(|minute| again.tick(NOW + 86_400 + minute * 60, 0));
        assert!(again.users.pages(true).is_empty());
    }
}
