//! The bound on the use of a changing limit, while some replicas do not know the change.

use super::world::{LONGEST, TERM, TICK};

/// Ticks until all shares and requests of an earlier limit have ended.
const OLD_LIMIT_TICKS: u64 = (TERM.0 + LONGEST.0).div_ceil(TICK.0);
/// Ticks until a loss of state has no effect. A share in force is reported within its lifetime,
/// recovery lasts as long as a share may be in use, and a share from recovery lasts one lifetime
/// more.
const LOST_STATE_TICKS: u64 = 2 * OLD_LIMIT_TICKS + TERM.0.div_ceil(TICK.0);

#[derive(Clone, Copy)]
pub struct Bound {
    most: u64,
    /// The highest limit that a running replica uses.
    known_limit: u64,
    /// The tick until which a higher limit may have effects.
    until: u64,
}

impl Bound {
    pub const fn new(ceiling: u64) -> Self {
        Self { most: ceiling, known_limit: ceiling, until: 0 }
    }

    /// Notes a loss of state. Each replica may then keep its share, even if a reduction was
    /// pending.
    pub fn note_lost_state(&mut self, tick: u64) {
        self.until = self.until.max(tick + LOST_STATE_TICKS);
    }

    /// Returns the most permits that may be in use now. A limit counts once one replica uses it.
    /// Once all replicas use a lower limit, the excess only shrinks, and ends with its shares and
    /// requests.
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
