//! The bound on the permits in use under a changing limit that some replicas do not know yet.

use super::run::{LONGEST, TERM, TICK};

/// Ticks until all shares and requests under an earlier limit have ended.
const OLD_LIMIT_TICKS: u64 = (TERM.0 + LONGEST.0).div_ceil(TICK.0);
/// Ticks until a loss of the store's state has no effect: a share in force is reported within its
/// lifetime, the grace period is as long as shares and requests last, and a share granted in it
/// lasts one more lifetime.
const LOST_STATE_TICKS: u64 = 2 * OLD_LIMIT_TICKS + TERM.0.div_ceil(TICK.0);

#[derive(Clone, Copy)]
pub struct Bound {
    most: u64,
    /// The highest limit that a running replica uses.
    known_limit: u64,
    /// The tick until which shares and requests of a higher limit may last.
    until: u64,
}

impl Bound {
    pub const fn new(ceiling: u64) -> Self {
        Self { most: ceiling, known_limit: ceiling, until: 0 }
    }

    /// Records that the store lost its state. Each replica may then keep its share, even if it was
    /// to be reduced.
    pub fn note_lost_state(&mut self, tick: u64) {
        self.until = self.until.max(tick + LOST_STATE_TICKS);
    }

    /// Returns the most permits that may be in use now. A higher limit applies as soon as one
    /// replica uses it. After all replicas use a lower limit, the use above it only shrinks, until
    /// the earlier shares and requests have ended.
    pub fn update(&mut self, tick: u64, known_limit: u64, in_use: u64) -> u64 {
        if known_limit != self.known_limit {
            (self.known_limit, self.until) = (known_limit, self.until.max(tick + OLD_LIMIT_TICKS));
        }
        let lingers = tick < self.until;
        let lower = if lingers { in_use.max(known_limit).min(self.most) } else { known_limit };
        self.most = lower.max(known_limit);
        self.most
    }
}
