//! How many frames a pool may hold while memory is short for others. Decides alone: nothing here looks at the machine.

/// While tasks wait for memory, so many idle frames are given back that one in so many of the frames that the pool holds are to spare. Where they
/// are, tasks wait for something that this pool cannot give.
const STEP_PART: u64 = 8;
/// More is given back only while at most one in so many frames that went since tasks waited before have come back.
const REFAULT_PART: u64 = 8;
/// After so many looks in a row that find enough memory the pool may grow again.
const CALM_LOOKS: u32 = 3;
/// Each time it may grow by one in so many frames, and by [`GROW_LEAST`].
const GROW_PART: u64 = 8;
pub(crate) const GROW_LEAST: u64 = 256;
/// Until memory is looked at again a pool takes no more than one in so many of the frames that are to spare: others may take as much meanwhile, and so may
/// what comes with the frames, as page tables and the page cache.
const SPARE_PART: u64 = 4;

/// What one look saw, in frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Look {
    /// What this pool is to give of what the machine and the control groups lack of their reserves.
    pub(crate) missing: u64,
    /// What they have beyond these: the least of them.
    pub(crate) spare: u64,
    /// Whether tasks waited for memory since the last look.
    pub(crate) stalled: bool,
    /// What the pool holds.
    pub(crate) resident: u64,
    /// What reads and snapshots that are under way are about to take, with what is to be free then.
    pub(crate) promised: u64,
    /// What cannot be taken from the pool: pinned and frozen pages.
    pub(crate) stuck: u64,
    /// What was read again since the last look soon after it was reclaimed.
    pub(crate) refaulted: u64,
}

/// How many frames a pool may hold now, and how many idle ones are to go.
#[derive(Debug)]
pub(crate) struct Allowance {
    now: u64,
    least: u64,
    most: u64,
    due: u64,
    /// What went, and what came back soon, since tasks waited or memory was missing.
    given: u64,
    refaulted: u64,
    calm: u32,
}

impl Allowance {
    /// Between `least` and `most`.
    pub(crate) fn new(least: u64, most: u64) -> Self {
        Self { now: most, least: least.min(most), most, due: 0, given: 0, refaulted: 0, calm: 0 }
    }

    /// How many idle frames are to go, as many as are found. Which are idle is seen from one look to the next: until then the limit stays.
    pub(crate) fn due(&self) -> u64 {
        self.due
    }

    /// How many frames there may be after `look`.
    pub(crate) fn after(&mut self, look: &Look) -> u64 {
        self.refaulted += look.refaulted;
        let lacking = (look.resident / STEP_PART).saturating_sub(look.spare);
        let lacking = lacking.min(look.resident.saturating_sub(self.floor(look)));
        match look {
            // Somebody is about to be killed: all that is missing, whoever needs it here.
            Look { missing: 1.., .. } => {
                (self.due, self.given, self.refaulted, self.calm) = (0, look.missing, 0, 0);
                self.keep(look, look.missing);
            }
            Look { stalled: true, .. } if lacking > 0 => {
                // What comes back at once only makes more work.
                let is_in_use = self.refaulted * REFAULT_PART > self.given;
                self.due = if is_in_use { 0 } else { lacking };
                (self.given, self.refaulted, self.calm) = (0, 0, 0);
                if is_in_use {
                    self.keep(look, 0);
                }
            }
            _ => {
                self.calm += 1;
                self.due = self.due.min(lacking);
                if self.calm >= CALM_LOOKS {
                    self.due = 0;
                    self.now = (self.now + self.now / GROW_PART + GROW_LEAST).min(self.most);
                }
            }
        }
        self.limit(look)
    }

    /// How many frames there may be while memory is as `look` saw it.
    pub(crate) fn limit(&self, look: &Look) -> u64 {
        self.now.min(room(look)).max(self.floor(look))
    }

    /// Whether there may be more frames as soon as memory is looked at again: these are not all that are to spare.
    pub(crate) fn may_rise(&self, look: &Look) -> bool {
        self.now > room(look) && look.spare / SPARE_PART >= GROW_LEAST
    }

    /// Whether so many more frames that are needed at once leave as many to spare.
    pub(crate) fn has_room_for(&self, look: &Look, pages: u64) -> bool {
        look.spare / 2 >= pages && self.now >= look.resident + pages
    }

    /// How many frames there may be since `pages` of those that were [due](Self::due) after `look` went.
    pub(crate) fn after_giving(&mut self, look: &Look, pages: u64) -> u64 {
        self.due = self.due.saturating_sub(pages);
        self.given += pages;
        if pages > 0 {
            self.keep(look, pages);
        }
        self.limit(look)
    }

    /// The pool keeps what it holds less `given`, until it is calm again, and no more. What was to go before and has not gone yet is part of
    /// what goes now.
    fn keep(&mut self, look: &Look, given: u64) {
        self.now = look.resident.saturating_sub(given).min(self.now).max(self.floor(look));
    }

    /// The least beside what cannot be taken anyway.
    fn floor(&self, look: &Look) -> u64 {
        (self.least + look.stuck).min(self.most)
    }
}

/// What the pool holds, and its part of what is to spare, or what was promised of that: a snapshot may need [more](Allowance::has_room_for) at once.
fn room(look: &Look) -> u64 {
    look.resident.saturating_add((look.spare / SPARE_PART).max(look.promised.min(look.spare)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u64 = 100_000;

    fn calm(resident: u64) -> Look {
        Look { spare: 1 << 30, resident, ..Look::default() }
    }

    fn stalled(resident: u64, spare: u64) -> Look {
        Look { stalled: true, spare, resident, ..Look::default() }
    }

    #[test]
    fn what_is_missing_goes_at_once_and_down_to_the_least() {
        let mut allowance = Allowance::new(1_000, MOST);
        assert_eq!(allowance.after(&calm(40_000)), MOST);
        let missing = |missing, resident| Look { missing, resident, ..Look::default() };
        assert_eq!(allowance.after(&missing(500, 40_000)), 39_500);
        // It has not gone yet, and is not asked for a second time.
        assert_eq!(allowance.after(&missing(500, 40_000)), 39_500);
        assert_eq!(allowance.after(&missing(700, 40_000)), 39_300);
        assert_eq!(allowance.after(&missing(1 << 40, 39_000)), 1_000);
        assert_eq!(allowance.after(&missing(1, 1_000)), 1_000);
        // However much of it is in use.
        let mut allowance = Allowance::new(1_000, MOST);
        assert_eq!(allowance.after(&Look { refaulted: 1 << 20, ..missing(500, 40_000) }), 39_500);
        assert_eq!(allowance.due(), 0);
    }

    #[test]
    fn the_least_is_kept_beside_what_cannot_go() {
        let mut allowance = Allowance::new(1_000, MOST);
        let missing = |stuck| Look { missing: 1 << 40, resident: 40_000, stuck, ..Look::default() };
        assert_eq!(allowance.after(&missing(30_000)), 31_000);
        assert_eq!(allowance.after(&missing(0)), 1_000);
        assert_eq!(allowance.after(&Look { stuck: 5_000, ..calm(1_000) }), 6_000, "pinned since");
        let mut allowance = Allowance::new(1_000, MOST);
        allowance.after(&Look { stuck: 38_000, ..stalled(40_000, 0) });
        assert_eq!(allowance.due(), 1_000);
    }

    #[test]
    fn while_tasks_wait_idle_frames_go_step_by_step_and_used_ones_stay() {
        let mut allowance = Allowance::new(10, MOST);
        // Who is idle is not known yet.
        assert_eq!((allowance.after(&stalled(80_000, 0)), allowance.due()), (80_000, 10_000));
        assert_eq!(allowance.after_giving(&stalled(80_000, 0), 0), 80_000);
        // A part of it is found by the next look, whether tasks wait or not, and the rest by the one after.
        let short = |resident| Look { stalled: false, ..stalled(resident, 0) };
        assert_eq!((allowance.after(&short(80_000)), allowance.due()), (80_000, 10_000));
        assert_eq!((allowance.after_giving(&short(80_000), 8_000), allowance.due()), (72_000, 2_000));
        assert_eq!((allowance.after(&short(72_000)), allowance.due()), (72_000, 2_000));
        assert_eq!((allowance.after_giving(&short(72_000), 2_000), allowance.due()), (70_000, 0));
        let again = |resident, refaulted| Look { refaulted, ..stalled(resident, 0) };
        assert_eq!((allowance.after(&again(70_000, 100)), allowance.due()), (70_000, 8_750), "few come back");
        assert_eq!(allowance.after_giving(&again(70_000, 100), 8_750), 61_250);
        assert_eq!((allowance.after(&again(61_250, 5_000)), allowance.due()), (61_250, 0), "many come back");
        // Nothing was given, so anything that comes back is too much.
        assert_eq!((allowance.after(&again(61_250, 1)), allowance.due()), (61_250, 0));
        assert_eq!((allowance.after(&again(61_250, 0)), allowance.due()), (61_250, 7_656));
    }

    #[test]
    fn what_comes_back_between_two_stalls_counts_whichever_look_sees_it() {
        let mut allowance = Allowance::new(10, MOST);
        allowance.after(&stalled(80_000, 0));
        assert_eq!(allowance.after_giving(&stalled(80_000, 0), 10_000), 70_000);
        allowance.after(&Look { refaulted: 5_000, ..calm(70_000) });
        allowance.after(&stalled(70_000, 0));
        assert_eq!(allowance.due(), 0, "half of what went has come back");
    }

    #[test]
    fn where_too_few_are_idle_nothing_is_due_for_ever() {
        let mut allowance = Allowance::new(10, MOST);
        allowance.after(&stalled(80_000, 0));
        let short = |spare| Look { stalled: false, ..stalled(80_000, spare) };
        allowance.after(&short(4_000));
        assert_eq!(allowance.due(), 6_000, "others gave some");
        allowance.after(&short(0));
        assert_eq!(allowance.due(), 6_000);
        allowance.after(&short(0));
        assert_eq!(allowance.due(), 0);
    }

    #[test]
    fn where_there_is_enough_nothing_goes_and_the_pool_may_grow_while_tasks_wait() {
        let mut allowance = Allowance::new(10, MOST);
        assert_eq!((allowance.after(&stalled(80_000, 4_000)), allowance.due()), (81_000, 6_000));
        assert_eq!(
            allowance.after_giving(&stalled(80_000, 4_000), 6_000),
            74_000,
            "an eighth is to spare then"
        );
        // What the pool reads again, because it gave too much, makes tasks wait too.
        let reads_again = Look { refaulted: 1 << 20, ..stalled(74_000, 10_000) };
        assert_eq!([(); 3].map(|()| allowance.after(&reads_again)), [74_000, 74_000, 76_500]);
    }

    #[test]
    fn it_grows_again_after_a_while() {
        let mut allowance = Allowance::new(10, MOST);
        assert_eq!(allowance.after(&Look { missing: 60_000, resident: 80_000, ..Look::default() }), 20_000);
        let spare = |spare| Look { spare, ..calm(20_000) };
        assert_eq!([(); 2].map(|()| allowance.after(&spare(1 << 30))), [20_000; 2]);
        assert_eq!(allowance.after(&spare(1 << 30)), 22_756);
        assert_eq!(allowance.after(&Look { missing: 10, ..calm(22_700) }), 22_690);
        assert_eq!(allowance.after(&spare(1 << 30)), 22_690, "a while begins anew");
        let last = (0..100).map(|_| allowance.after(&calm(22_690))).last();
        assert_eq!(last, Some(MOST));
    }

    /// A second is long: a pool that was idle until now may fill all memory in it.
    #[test]
    fn it_takes_a_part_of_what_is_to_spare_until_memory_is_looked_at_again() {
        let mut allowance = Allowance::new(1_000, MOST);
        let spare = |resident, spare| Look { spare, ..calm(resident) };
        assert_eq!(allowance.after(&spare(0, 40_000)), 10_000);
        let may_rise = [(0, 40_000), (50_000, 1_024), (50_000, 1_000), (90_000, 40_000)];
        assert_eq!(
            may_rise.map(|(resident, all)| allowance.may_rise(&spare(resident, all))),
            [true, true, false, false]
        );
        assert_eq!(allowance.limit(&spare(10_000, 30_000)), 17_500, "as soon as it is asked again");
        assert!(allowance.has_room_for(&spare(10_000, 30_000), 15_000));
        assert!(!allowance.has_room_for(&spare(10_000, 30_000), 15_001));
        assert!(!allowance.has_room_for(&spare(90_000, 30_000), 15_000), "more than the pool may hold");
        let promised = |promised| Look { promised, ..spare(10_000, 30_000) };
        assert_eq!([14_000, 31_000].map(|pages| allowance.limit(&promised(pages))), [24_000, 40_000]);
        assert_eq!(allowance.after(&spare(30_000, 0)), 30_000);
        assert_eq!(allowance.after(&spare(30_000, 8_000)), 32_000, "no while begins: none was missing");
        assert_eq!(allowance.after(&spare(100, 0)), 1_000, "the least");
        assert_eq!(allowance.after(&Look { stuck: 30_000, ..spare(30_000, 0) }), 31_000);
    }
}
