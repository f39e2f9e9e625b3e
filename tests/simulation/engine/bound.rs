//! How much may be in use of a ceiling that moves, while not all have heard of it.

use super::world::{LONGEST, TERM, TICK};

/// After that nothing is left of what somebody was granted, or admitted, under another ceiling.
const LETS_GO: u64 = (TERM.0 + LONGEST.0).div_ceil(TICK.0);

/// The most that may be in use.
#[derive(Clone, Copy)]
pub struct Bound {
    most: u64,
    /// The highest ceiling that anybody alive goes by, and since when.
    goes_by: u64,
    since: u64,
}

impl Bound {
    pub const fn new(ceiling: u64) -> Self {
        Self { most: ceiling, goes_by: ceiling, since: 0 }
    }

    /// A ceiling counts as soon as one goes by it. Once all go by a lower one, what is in use above that only becomes less, and
    /// is over when shares and requests are. The most that may be in use now.
    pub fn moves(&mut self, tick: u64, goes_by: u64, in_use: u64) -> u64 {
        if goes_by != self.goes_by {
            (self.goes_by, self.since) = (goes_by, tick);
        }
        let lingers = tick < self.since + LETS_GO;
        let lower = if lingers { in_use.max(goes_by).min(self.most) } else { goes_by };
        self.most = lower.max(goes_by);
        self.most
    }
}
