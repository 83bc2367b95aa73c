//! How many frames a pool may hold while memory is short for others. Decides alone: nothing here looks at the machine.

/// While tasks wait for memory, so much is given back that one in so many of the frames that the pool holds are to spare. Where they
/// are, tasks wait for something that this pool cannot give.
const STEP_PART: u64 = 8;
/// More is given back only while at most one in so many frames that went comes back at once.
const REFAULT_PART: u64 = 8;
/// After so many looks in a row that find enough memory the pool may grow again.
const CALM_LOOKS: u32 = 3;
/// Each time it may grow by one in so many frames, and by [`GROW_LEAST`].
const GROW_PART: u64 = 8;
const GROW_LEAST: u64 = 256;
/// And by no more than one in so many of the frames that are to spare.
const SPARE_PART: u64 = 2;

/// What one look saw, in frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Look {
    /// What the machine and the control groups lack of their reserves: the most of them.
    pub(crate) missing: u64,
    /// What they have beyond these: the least of them.
    pub(crate) spare: u64,
    /// Whether tasks waited for memory since the last look.
    pub(crate) stalled: bool,
    /// What the pool holds.
    pub(crate) resident: u64,
    /// What was read again since the last look soon after it was reclaimed.
    pub(crate) refaulted: u64,
}

/// How many frames a pool may hold now.
#[derive(Debug)]
pub(crate) struct Allowance {
    now: u64,
    least: u64,
    most: u64,
    /// What the last look took.
    given: u64,
    calm: u32,
}

impl Allowance {
    /// Between `least` and `most`.
    pub(crate) fn new(least: u64, most: u64) -> Self {
        Self { now: most, least: least.min(most), most, given: 0, calm: 0 }
    }

    /// How many there may be after `look`.
    pub(crate) fn after(&mut self, look: &Look) -> u64 {
        let is_in_use = look.refaulted * REFAULT_PART > self.given;
        let enough = look.resident / STEP_PART;
        self.given = match look {
            // Somebody is about to be killed: all that is missing, whoever needs it here.
            Look { missing: 1.., .. } => look.missing,
            // What comes back at once only makes more work.
            Look { stalled: true, spare, .. } if *spare < enough && is_in_use => 0,
            Look { stalled: true, spare, .. } if *spare < enough => enough - spare,
            _ => {
                self.calm += 1;
                if self.calm >= CALM_LOOKS {
                    let more = (self.now / GROW_PART + GROW_LEAST).min(look.spare / SPARE_PART);
                    self.now = (self.now + more).min(self.most);
                }
                return self.now;
            }
        };
        self.calm = 0;
        // The pool keeps what it holds at least until it is calm again, and no more. What was to go before and has not gone yet is
        // part of what goes now.
        self.now = look.resident.saturating_sub(self.given).min(self.now).max(self.least);
        self.now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u64 = 100_000;

    fn calm(resident: u64) -> Look {
        Look { spare: 1 << 30, resident, ..Look::default() }
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
    }

    #[test]
    fn while_tasks_wait_idle_frames_go_step_by_step_and_used_ones_stay() {
        let mut allowance = Allowance::new(10, MOST);
        let stalled = |resident, refaulted| Look { stalled: true, resident, refaulted, ..Look::default() };
        assert_eq!(allowance.after(&stalled(80_000, 0)), 70_000);
        assert_eq!(allowance.after(&stalled(80_000, 0)), 70_000, "it has not gone yet");
        assert_eq!(allowance.after(&stalled(70_000, 100)), 61_250, "few come back");
        assert_eq!(allowance.after(&stalled(61_250, 5_000)), 61_250, "more than an eighth comes back");
        // Nothing was given, so anything that comes back is too much.
        assert_eq!(allowance.after(&stalled(61_250, 1)), 61_250);
        assert_eq!(allowance.after(&stalled(61_250, 0)), 53_594);
    }

    #[test]
    fn where_there_is_enough_nothing_goes_and_the_pool_may_grow_while_tasks_wait() {
        let mut allowance = Allowance::new(10, MOST);
        let stalled = |resident, spare| Look { stalled: true, spare, resident, ..Look::default() };
        assert_eq!(allowance.after(&stalled(80_000, 4_000)), 74_000, "an eighth is to spare then");
        // What the pool reads again, because it gave too much, makes tasks wait too.
        let reads_again = Look { refaulted: 1 << 20, ..stalled(74_000, 10_000) };
        assert_eq!([(); 3].map(|()| allowance.after(&reads_again)), [74_000, 74_000, 79_000]);
    }

    #[test]
    fn it_grows_again_after_a_while_into_half_of_what_is_to_spare() {
        let mut allowance = Allowance::new(10, MOST);
        assert_eq!(allowance.after(&Look { missing: 60_000, resident: 80_000, ..Look::default() }), 20_000);
        let spare = |spare| Look { spare, ..calm(20_000) };
        assert_eq!([(); 2].map(|()| allowance.after(&spare(1 << 30))), [20_000; 2]);
        assert_eq!(allowance.after(&spare(1 << 30)), 22_756);
        assert_eq!(allowance.after(&spare(100)), 22_806);
        assert_eq!(allowance.after(&spare(0)), 22_806);
        assert_eq!(allowance.after(&Look { missing: 10, ..calm(22_800) }), 22_790);
        assert_eq!(allowance.after(&spare(1 << 30)), 22_790, "a while begins anew");
        let last = (0..100).map(|_| allowance.after(&calm(22_790))).last();
        assert_eq!(last, Some(MOST));
    }
}
