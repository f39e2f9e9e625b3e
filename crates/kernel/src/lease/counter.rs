//! A counter of any strategy, to which leases are charged.

use serde::{Deserialize, Serialize};

use crate::rate::fixed_window::{FixedWindow, WindowCount};
use crate::rate::gcra::{Gcra, Tat};
use crate::rate::limit::{EXACT_BOUND, Tick};
use crate::rate::sliding_log::{ArrivalLog, SlidingLog};
use crate::rate::sliding_window::{SlidingWindow, WindowPair};
use crate::rate::{CounterDecision, Headroom};
use crate::units::{Hits, Nanos};

/// A limit and its counter state, by strategy.
#[derive(Debug)]
pub enum AnyCounter<'a> {
    /// GCRA, with a debt as state.
    Gcra(&'a Gcra, &'a mut Tat),
    /// A fixed window, with the count of the current window.
    FixedWindow(&'a FixedWindow, &'a mut WindowCount),
    /// A sliding window, with the counts of the current and the previous window.
    SlidingWindow(&'a SlidingWindow, &'a mut WindowPair),
    /// A sliding log, with the arrivals of the last period.
    SlidingLog(&'a SlidingLog, &'a mut ArrivalLog),
}

/// The location of a charge inside a counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ChargeLocation {
    /// The GCRA debt, which has no parts. Also the default, for no charge.
    #[default]
    Debt,
    /// The fixed window that starts at this instant.
    Window(Nanos),
    /// The sliding strategy's aligned window that starts at this instant.
    SlidingWindow(Nanos),
    /// The entry of the arrival log for this instant.
    LogEntry(Nanos),
}

impl AnyCounter<'_> {
    /// Returns the result that [`AnyCounter::charge`] would give; changes nothing.
    #[must_use]
    pub fn peek(&self, now: Nanos, hits: Hits) -> CounterDecision {
        match self {
            Self::Gcra(limit, state) => limit.peek(state, now, hits),
            Self::FixedWindow(limit, state) => limit.peek(state, now, hits),
            Self::SlidingWindow(limit, state) => limit.peek(state, now, hits),
            Self::SlidingLog(limit, state) => limit.peek(state, now, hits),
        }
    }

    /// Charges `hits` as the strategy defines.
    pub fn charge(&mut self, now: Nanos, hits: Hits) -> CounterDecision {
        match self {
            Self::Gcra(limit, state) => limit.charge(state, now, hits),
            Self::FixedWindow(limit, state) => limit.charge(state, now, hits),
            Self::SlidingWindow(limit, state) => limit.charge(state, now, hits),
            Self::SlidingLog(limit, state) => limit.charge(state, now, hits),
        }
    }

    /// Charges `hits` beside `occupied` hits, which are outstanding and not charged. Decides as if the
    /// occupied hits were charged now. A denial charges nothing.
    ///
    /// If only occupied hits prevent the charge, the retry-after is `duration` plus the longest reset.
    pub fn charge_beside(
        &mut self,
        now: Nanos,
        (occupied, duration): (Hits, Nanos),
        hits: Hits,
    ) -> CounterDecision {
        let unchanged = self.charge(now, Hits(0));
        let step = match self.peek(now, occupied.plus(hits)) {
            _ if hits == Hits(0) => unchanged,
            CounterDecision::ExceedsLimit(headroom) if hits <= self.max_at_once() => {
                let (tick, longest) = self.tick_and_longest_reset();
                let ticks = duration.0.div_ceil(tick.size().0).saturating_add(tick.floor(longest));
                let retry_after = tick.nanos(ticks.min(EXACT_BOUND.saturating_sub(1)));
                CounterDecision::Deny { retry_after, headroom }
            }
            CounterDecision::Allow(_) => self.charge(now, hits),
            denial => denial,
        };
        with_headroom(step, self.headroom_beside(now, occupied))
    }

    /// Returns the headroom as if `occupied` hits were charged now.
    #[must_use]
    pub fn headroom_beside(&self, now: Nanos, occupied: Hits) -> Headroom {
        match self.peek(now, occupied) {
            CounterDecision::Allow(room) => room,
            // A reload lowered the limit.
            denial => Headroom { remaining: Hits(0), ..headroom_of(denial) },
        }
    }

    /// Charges hits that were spent already. After a reload that lowered the limit, only as many as
    /// remain: the counter is then full.
    pub fn charge_spent(&mut self, now: Nanos, hits: Hits) {
        if hits != Hits(0) {
            let remaining = headroom_of(self.peek(now, Hits(0))).remaining;
            self.charge(now, hits.min(remaining));
        }
    }

    /// The longest time until a full counter is empty; 0 for fixed windows.
    #[must_use]
    pub fn longest_reset(&self) -> Nanos {
        self.tick_and_longest_reset().1
    }

    fn tick_and_longest_reset(&self) -> (Tick, Nanos) {
        let (tick, ticks) = match self {
            Self::Gcra(limit, _) => {
                let hits = u64::from(limit.refill_rate().hits).max(1);
                (limit.tick(), limit.capacity().div_ceil(hits))
            }
            Self::FixedWindow(..) => (Tick::Micro, 0),
            Self::SlidingWindow(limit, _) => {
                (limit.tick(), limit.refill_rate().ticks.get().saturating_mul(2))
            }
            Self::SlidingLog(limit, _) => (Tick::Micro, Tick::Micro.floor(limit.period())),
        };
        (tick, tick.nanos(ticks))
    }

    fn max_at_once(&self) -> Hits {
        Hits(u64::from(match self {
            Self::Gcra(limit, _) => limit.burst(),
            Self::FixedWindow(limit, _) => limit.limit(),
            Self::SlidingWindow(limit, _) => limit.limit(),
            Self::SlidingLog(limit, _) => limit.limit(),
        }))
    }

    /// Refunds the newest `hits`, and returns the result of the strategy's refund.
    pub fn refund_newest(&mut self, now: Nanos, hits: Hits) -> CounterDecision {
        match self {
            Self::Gcra(limit, state) => limit.refund(state, now, hits),
            Self::FixedWindow(limit, state) => limit.refund(state, now, hits),
            Self::SlidingWindow(limit, state) => limit.refund(state, now, hits),
            Self::SlidingLog(limit, state) => limit.refund(state, now, hits),
        }
    }

    /// Returns the location of the charge just made at `now`.
    #[must_use]
    pub fn locate_charge(&self, now: Nanos) -> ChargeLocation {
        match self {
            Self::Gcra(..) => ChargeLocation::Debt,
            Self::FixedWindow(_, state) => ChargeLocation::Window(state.start),
            Self::SlidingWindow(_, state) => ChargeLocation::SlidingWindow(state.start),
            Self::SlidingLog(..) => ChargeLocation::LogEntry(now),
        }
    }

    /// Refunds `hits` of an earlier charge at `location`, unless the window of that charge is over.
    pub fn refund(&mut self, now: Nanos, location: ChargeLocation, hits: Hits) {
        // Moves the counter to its current window, so that the starts can be compared.
        self.charge(now, Hits(0));
        match (self, location) {
            (Self::Gcra(limit, state), ChargeLocation::Debt) => {
                limit.refund(state, now, hits);
            }
            (Self::FixedWindow(limit, state), ChargeLocation::Window(charged_at))
                if state.start == charged_at =>
            {
                limit.refund(state, now, hits);
            }
            (Self::SlidingWindow(limit, state), ChargeLocation::SlidingWindow(charged_at))
                if state.start == charged_at =>
            {
                limit.refund(state, now, hits);
            }
            (Self::SlidingLog(_, state), ChargeLocation::LogEntry(charged_at)) => {
                state.refund_at(charged_at, hits);
            }
            _ => {}
        }
    }

    /// Returns `true` if a lease can end with a window: only for fixed windows.
    #[must_use]
    pub const fn has_windows(&self) -> bool {
        matches!(self, Self::FixedWindow(..))
    }
}

/// Returns the headroom in a counter's result; zero outside the planned windows.
#[must_use]
pub fn headroom_of(result: CounterDecision) -> Headroom {
    match result {
        CounterDecision::Allow(room)
        | CounterDecision::Deny { headroom: room, .. }
        | CounterDecision::ExceedsLimit(room) => room,
        CounterDecision::OutsideWindows => Headroom::default(),
    }
}

pub(super) const fn with_headroom(step: CounterDecision, room: Headroom) -> CounterDecision {
    match step {
        CounterDecision::Allow(_) => CounterDecision::Allow(room),
        CounterDecision::Deny { retry_after, .. } => {
            CounterDecision::Deny { retry_after, headroom: room }
        }
        CounterDecision::ExceedsLimit(_) => CounterDecision::ExceedsLimit(room),
        CounterDecision::OutsideWindows => CounterDecision::OutsideWindows,
    }
}
