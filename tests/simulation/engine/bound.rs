//! How much may be in use of a ceiling that moves, while not all have heard of it.

use super::world::{LONGEST, TERM, TICK};

/// After that nothing is left of what somebody was granted, or admitted, under another ceiling.
const LETS_GO: u64 = (TERM.0 + LONGEST.0).div_ceil(TICK.0);
/// After that nothing is left of what a store that has forgotten believed: a share that was in force then is heard of within its
/// term, doubted for as long as one may be in use, and good for a term more from the end of the doubt.
const DOUBTS: u64 = 2 * LETS_GO + TERM.0.div_ceil(TICK.0);

/// The most that may be in use.
#[derive(Clone, Copy)]
pub struct Bound {
    most: u64,
    /// The highest ceiling that anybody alive goes by.
    goes_by: u64,
    /// Until when there may be something left of a higher one.
    until: u64,
}

impl Bound {
    pub const fn new(ceiling: u64) -> Self {
        Self { most: ceiling, goes_by: ceiling, until: 0 }
    }

    /// The store forgets: what each holds it may go on with, also where it was to be less.
    pub fn is_doubted(&mut self, tick: u64) {
        self.until = self.until.max(tick + DOUBTS);
    }

    /// A ceiling counts as soon as one goes by it. Once all go by a lower one, what is in use above that only becomes less, and
    /// is over when shares and requests are. The most that may be in use now.
    pub fn moves(&mut self, tick: u64, goes_by: u64, in_use: u64) -> u64 {
        if goes_by != self.goes_by {
            (self.goes_by, self.until) = (goes_by, self.until.max(tick + LETS_GO));
        }
        let lingers = tick < self.until;
        let lower = if lingers { in_use.max(goes_by).min(self.most) } else { goes_by };
        self.most = lower.max(goes_by);
        self.most
    }
}
