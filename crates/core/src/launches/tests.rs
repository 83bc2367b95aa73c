use proptest::prelude::*;

use super::*;

const DAY_S: u64 = 24 * HOUR_S;
/// A Monday at eight.
const MONDAY: u64 = 20_000 * DAY_S + 8 * HOUR_S;

fn what(name: &str) -> Launched {
    Launched { program: format!("/usr/bin/{name}"), role: name.into() }
}

fn names(launches: &Launches, probability_min: f64) -> Vec<String> {
    launches.expected(probability_min).into_iter().map(|expected| expected.what.role).collect()
}

/// The clock goes on to `until`, a minute at a time, as the service's does.
fn pass(launches: &mut Launches, until: u64) {
    let from = launches.now_unix_s.max(until.saturating_sub(2 * DAY_S));
    for now in (from..until).step_by(60) {
        launches.tick(now);
    }
    launches.tick(until);
}

/// Someone who comes at eight, reads mail, and edits and compiles; and a report at eleven at night.
fn week(launches: &mut Launches, days: u64) {
    for day in 0..days {
        let came = MONDAY + day * DAY_S;
        pass(launches, came);
        launches.launched(&what("mail"), false, came);
        for round in 1..4 {
            pass(launches, came + round * 1800);
            launches.launched(&what("edit"), false, came + round * 1800);
            pass(launches, came + round * 1800 + 120);
            launches.launched(&what("compile"), false, came + round * 1800 + 120);
        }
        pass(launches, came + 15 * HOUR_S + 60);
        launches.launched(&what("report"), false, came + 15 * HOUR_S + 60);
    }
    pass(launches, MONDAY + days * DAY_S - 60);
}

#[test]
fn what_comes_on_arrival_after_a_program_and_at_an_hour_is_expected_then() {
    let mut launches = Launches::default();
    week(&mut launches, 5);
    assert_eq!(launches.programs(), 4);
    // Seven fifty-nine: away since the report.
    assert!(names(&launches, 0.7).contains(&"mail".to_owned()), "{:?}", launches.expected(0.0));
    assert!(!names(&launches, 0.7).contains(&"report".to_owned()));
    let came = MONDAY + 5 * DAY_S;
    launches.launched(&what("mail"), false, came);
    assert!(!names(&launches, 0.7).contains(&"mail".to_owned()), "it is there");
    pass(&mut launches, came + 1800);
    launches.launched(&what("edit"), false, came + 1800);
    assert!(names(&launches, 0.7).contains(&"compile".to_owned()));
    launches.launched(&what("compile"), false, came + 1860);
    pass(&mut launches, came + 4 * HOUR_S);
    assert_eq!(names(&launches, 0.7), [""; 0], "nothing is expected at noon");
    // Ten minutes before eleven at night.
    pass(&mut launches, came + 14 * HOUR_S + 3060);
    assert!(names(&launches, 0.7).contains(&"report".to_owned()), "{:?}", launches.expected(0.0));
}

/// Else what users expect who no longer come stays in memory for good, and leaves no room for anybody else.
#[test]
fn who_does_not_come_for_a_week_is_not_expected_until_the_next_arrival() {
    let mut launches = Launches::default();
    week(&mut launches, 5);
    let last = launches.last_launch_unix_s;
    let is_expected_after = |since_s: u64| {
        let mut launches = launches.clone();
        pass(&mut launches, last + since_s);
        names(&launches, 0.0).contains(&"mail".to_owned())
    };
    assert_eq!([12 * HOUR_S, GONE_S, GONE_S + 1].map(is_expected_after), [true, true, false]);
    // At eleven in the morning, when nothing ever came.
    let noon = MONDAY + 30 * DAY_S + 3 * HOUR_S;
    pass(&mut launches, noon);
    assert_eq!(launches.expected(0.0), []);
    launches.launched(&what("other"), false, noon);
    assert!(names(&launches, 0.0).contains(&"mail".to_owned()), "an arrival");
}

/// At half past five in the evening in London it is eleven at night in Delhi.
#[test]
fn hours_are_those_of_the_clock_on_the_wall_and_move_with_it() {
    const DELHI: i64 = 19_800;
    let eleven = |day: u64, offset_s: i64| {
        (MONDAY - 8 * HOUR_S + day * DAY_S + 23 * HOUR_S).checked_add_signed(-offset_s).unwrap()
    };
    let mut launches = Launches::default();
    launches.set_zone(DELHI);
    for day in 0..6 {
        pass(&mut launches, eleven(day, DELHI) + 60);
        launches.launched(&what("report"), false, eleven(day, DELHI) + 60);
        pass(&mut launches, eleven(day, DELHI) + HOUR_S);
    }
    // After four hours without a launch it would be expected on arrival as well: somebody else's program keeps that away.
    let expects = |unix_s: u64, offset_s: i64| {
        let mut launches = launches.clone();
        launches.set_zone(offset_s);
        pass(&mut launches, unix_s - 2 * HOUR_S);
        launches.launched(&what("other"), false, unix_s - 2 * HOUR_S);
        pass(&mut launches, unix_s);
        names(&launches, 0.7).contains(&"report".to_owned())
    };
    assert!(expects(eleven(6, DELHI) - 300, DELHI));
    assert!(!expects(eleven(6, DELHI) - HOUR_S - 300, DELHI), "an hour early");
    // Programs are expected at the same hour of another zone, or of summer time, and no longer at the old one.
    assert!(expects(eleven(5, 0) - 300, 0));
    assert!(!expects(eleven(6, DELHI) - 300, 0));
    assert!(expects(eleven(6, DELHI + 3600) - 300, DELHI + 3600));
}

/// Somebody edits, and closes the laptop for lunch before the compilation.
#[test]
fn an_hour_s_sleep_in_the_middle_of_a_visit_says_nothing_of_what_comes_in_it() {
    let mut launches = Launches::default();
    week(&mut launches, 4);
    // At an hour of which nothing is expected.
    let came = MONDAY + 4 * DAY_S + 3 * HOUR_S;
    pass(&mut launches, came);
    launches.launched(&what("edit"), false, came);
    pass(&mut launches, came + 30);
    launches.slept();
    let woke = came + 30 + HOUR_S;
    launches.tick(woke);
    launches.launched(&what("edit"), false, woke);
    assert!(names(&launches, 0.75).contains(&"compile".to_owned()), "{:?}", launches.expected(0.0));
}

#[test]
fn little_is_not_enough_and_what_is_no_longer_done_is_forgotten() {
    let mut launches = Launches::default();
    week(&mut launches, 1);
    assert_eq!(names(&launches, 0.7), [""; 0]);
    let mut now = MONDAY + DAY_S;
    let mut visit = |launches: &mut Launches, follows: bool| {
        now += 3 * HOUR_S;
        pass(launches, now);
        launches.launched(&what("edit"), false, now);
        if follows {
            launches.launched(&what("print"), false, now + 5);
        }
        let expected = names(launches, 0.5).contains(&"print".to_owned());
        pass(launches, now + 700);
        launches.launched(&what("edit"), false, now + 700);
        let expected = expected || names(launches, 0.5).contains(&"print".to_owned());
        pass(launches, now + 1400);
        expected
    };
    for _ in 0..6 {
        visit(&mut launches, true);
    }
    for _ in 0..6 {
        visit(&mut launches, false);
    }
    assert!(!visit(&mut launches, false));
}

#[test]
fn what_comes_each_time_is_expected_among_many_that_come_once() {
    let mut launches = Launches::default();
    for round in 0..8 {
        let now = MONDAY + round * DAY_S;
        pass(&mut launches, now);
        launches.launched(&what("build"), false, now);
        for at in 0..3 * FOLLOWERS_MAX as u64 {
            launches.launched(&what(&format!("once{round}-{at}")), false, now + 1 + at);
        }
        launches.launched(&what("always"), false, now + 300);
        pass(&mut launches, now + HOUR_S);
    }
    launches.launched(&what("build"), false, MONDAY + 8 * DAY_S);
    assert_eq!(names(&launches, 0.75), ["always"]);
}

#[test]
fn what_is_done_each_day_is_remembered_beside_a_suite_of_tests_with_more_programs_than_are() {
    let mut launches = Launches::default();
    for day in 0..6 {
        let came = MONDAY + day * DAY_S;
        for hour in 0..2 {
            pass(&mut launches, came + hour * HOUR_S);
            launches.launched(&what("edit"), false, came + hour * HOUR_S);
            launches.launched(&what("compile"), false, came + hour * HOUR_S + 60);
        }
        pass(&mut launches, came + 3 * HOUR_S);
        for at in 0..2 * PROGRAMS_MAX as u64 {
            launches.launched(&what(&format!("test{at}")), false, came + 3 * HOUR_S + at);
        }
        pass(&mut launches, came + 5 * HOUR_S);
    }
    let now = MONDAY + 6 * DAY_S;
    pass(&mut launches, now);
    launches.launched(&what("edit"), false, now);
    assert!(names(&launches, 0.75).contains(&"compile".to_owned()), "{:?}", launches.expected(0.0));
    // They make room in turn, once they are not launched any more.
    for at in 0..PROGRAMS_MAX as u64 {
        launches.launched(&what(&format!("new{at}")), false, now + 2 * ONCE_S + at);
    }
    let is_there = |name| launches.programs.iter().flatten().any(|one| one.what == what(name));
    assert!(!is_there("edit") && is_there("new0"));
}

#[test]
fn time_in_which_nothing_comes_and_nothing_ever_came_changes_nothing() {
    let mut launches = Launches::default();
    week(&mut launches, 5);
    let last = MONDAY + 4 * DAY_S + 15 * HOUR_S + 60;
    assert_eq!((launches.last_launch_unix_s(), launches.last_unix_s()), (last, last));
    launches.launched_by_job(&what("job"), last + HOUR_S);
    assert_eq!((launches.last_launch_unix_s(), launches.last_unix_s()), (last, last + HOUR_S));
    let mut has_counted = Vec::new();
    for hour in 0..30 * 24 {
        let before = launches.encode();
        let counts = (0..60).fold(false, |counts, minute| {
            counts | launches.tick(last + 2 * HOUR_S + hour * HOUR_S + minute * 60)
        });
        assert_eq!(counts, launches.encode() != before, "hour {hour}");
        has_counted.extend(counts.then_some(hour));
    }
    assert!(
        has_counted.iter().all(|hour| *hour < 10 * 24),
        "what no longer comes is forgotten: {has_counted:?}"
    );
}

#[test]
fn a_program_launched_a_thousand_times_in_a_visit_counts_once() {
    let mut launches = Launches::default();
    for day in 0..4 {
        let now = MONDAY + day * DAY_S;
        pass(&mut launches, now);
        launches.launched(&what("make"), false, now);
        for at in 0..1000 {
            launches.launched(&what("cc"), false, now + at / 10);
        }
        pass(&mut launches, now + HOUR_S);
    }
    let counted = &launches.counted[&Context::After(0)];
    assert_eq!(counted.visits, 4);
    assert!(counted.followers[&1].sixteenths().1 <= 4 * 16);
}

#[test]
fn a_clock_that_jumps_ends_visits_and_counts_nothing() {
    let mut launches = Launches::default();
    launches.launched(&what("edit"), true, MONDAY);
    launches.launched(&what("compile"), false, MONDAY + 5);
    for now in [MONDAY + 10 * DAY_S, 5, u64::MAX / 2, MONDAY] {
        launches.tick(now);
    }
    assert!(launches.counted.is_empty(), "{:?}", launches.counted);
    assert_eq!(launches.programs(), 2);
}

#[test]
fn programs_of_a_clock_that_was_ahead_make_room_for_others() {
    let mut ahead = Launches::default();
    for at in 0..PROGRAMS_MAX as u64 {
        ahead.launched(&what(&format!("tool{at}")), false, MONDAY + 3650 * DAY_S + at);
    }
    // The clock is set back while this runs, or between two runs.
    for mut launches in [Launches::decode(&ahead.encode()).unwrap(), ahead] {
        for day in 0..4 {
            let now = MONDAY + day * DAY_S;
            pass(&mut launches, now);
            launches.launched(&what("edit"), false, now);
            launches.launched(&what("compile"), false, now + 5);
            pass(&mut launches, now + HOUR_S);
        }
        launches.launched(&what("edit"), false, MONDAY + 4 * DAY_S);
        assert_eq!(names(&launches, 0.75), ["compile"]);
    }
}

#[test]
fn a_million_programs_take_bounded_memory() {
    let mut launches = Launches::default();
    let mut now = MONDAY;
    for at in 0..100_000u64 {
        now += 7;
        launches.launched(&what(&format!("tool{}", at % 50_000)), at % 1000 == 0, now);
    }
    assert!(launches.programs() <= PROGRAMS_MAX && launches.open.len() <= OPEN_MAX);
    assert!(launches.counted.len() <= PROGRAMS_MAX + 25);
    assert!(launches.counted.values().all(|counted| counted.followers.len() <= FOLLOWERS_MAX));
    assert!(launches.encode().len() < 256 << 10, "{}", launches.encode().len());
    launches.launched(&what(&"x".repeat(NAME_BYTES_MAX + 1)), false, now);
    assert!(launches.expected(0.0).iter().all(|expected| expected.what.role.len() < 20));
}

#[test]
fn what_was_counted_comes_back_and_what_is_damaged_is_refused() {
    let mut launches = Launches::default();
    week(&mut launches, 5);
    let bytes = launches.encode();
    let mut read = Launches::decode(&bytes).unwrap();
    assert_eq!((read.encode(), read.programs()), (bytes.clone(), 4));
    // An array of three fields, as all logs had before what guesses were worth was kept.
    assert_eq!((bytes[12], read.worth), (0x83, Worth::default()));
    read.worth.settle(1 << 20, 1 << 10, MONDAY);
    assert_eq!(Launches::decode(&read.encode()).unwrap().worth, read.worth);
    read.tick(MONDAY + 5 * DAY_S - 60);
    assert!(names(&read, 0.7).contains(&"mail".to_owned()));
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        assert!(Launches::decode(&damaged).is_err(), "{at}");
        assert!(Launches::decode(&bytes[..at]).is_err(), "{at}");
    }
    assert_eq!(Launches::decode(b"something else").unwrap_err(), SavedError::Foreign);
}

proptest! {
    #[test]
    fn no_history_leaves_the_bounds(history in prop::collection::vec((0u64..40_000, 0u8..40, any::<bool>()), 0..400)) {
        let mut launches = Launches::default();
        let mut now = MONDAY;
        for (pause, program, arrives) in history {
            now += pause;
            launches.launched(&what(&program.to_string()), arrives, now);
            for expected in launches.expected(0.0) {
                prop_assert!((0.0..1.0).contains(&expected.probability));
            }
        }
        prop_assert_eq!(Launches::decode(&launches.encode()).unwrap().encode(), launches.encode());
    }
}
