//! GCRA, the generic cell rate algorithm, exact in integers.
//!
//! N requests per period of P ticks, with burst B. The state is one instant, the theoretical
//! arrival time (TAT), at which the counter is empty. The debt is the time from now to the
//! TAT, in hit·ticks. A hit costs P, a tick frees N. The debt never exceeds B·P, or the
//! [`Gcra::max_debt`] of a limit that charges excess hits.
//!
//! | formula, for 3 per 10 s, burst 4 (N = 3, P = 10^7 µs) | worked row |
//! |---|---|
//! | debt = (whole − now)·N + frac, at most B·P | 4 hits on an empty counter: 4·10^7 |
//! | allow iff debt + hits·P ≤ B·P | a fifth hit: 5·10^7 > 4·10^7, denied |
//! | `retry_after` = ⌈(debt + hits·P − B·P) / N⌉ ticks | ⌈10^7 / 3⌉ = 3,333,334 µs |
//! | remaining = ⌊(B·P − debt) / P⌋ | 0 |
//! | `reset_after` = ⌈debt / N⌉ ticks | ⌈4·10^7 / 3⌉ = 13,333,334 µs |
//!
//! ```
//! use sluicegate_kernel::rate::gcra::{Gcra, Tat};
//! use sluicegate_kernel::rate::{CounterDecision, Headroom};
//! use sluicegate_kernel::units::{Hits, Nanos};
//!
//! let limit = Gcra::new(3, Nanos::from_secs(10), 4).unwrap();
//! let (mut tat, now) = (Tat::default(), Nanos::from_secs(1_000));
//! let spent = Headroom { remaining: Hits(0), reset_after: Nanos(13_333_334_000) };
//! assert_eq!(limit.charge(&mut tat, now, Hits(4)), CounterDecision::Allow(spent));
//! let denied = CounterDecision::Deny { retry_after: Nanos(3_333_334_000), headroom: spent };
//! assert_eq!(limit.charge(&mut tat, now, Hits(1)), denied);
//! ```
//!
//! Guarantees:
//! - At most B hits are allowed at one instant.
//! - In any t ticks, at most B + ⌊t·N/P⌋ hits are allowed.
//! - A denied check costs nothing, unless the limit charges excess hits.
//! - After the clock stepped back, the debt is at most `max_debt`.
//! - A clock that steps back allows no extra hits.

use std::num::{NonZeroU32, NonZeroU64};

use serde::{Deserialize, Serialize};

use super::counter_decision::{CounterDecision, Headroom};
use super::limit::{self, EXACT_BOUND, LimitError, RefillRate, Tick};
use super::on_excess::OnExcess;
use crate::units::{Hits, Nanos};

/// The largest debt of a limit that charges excess hits, in bursts.
const MAX_BURSTS_OWED: u32 = 1_000;

/// A limit that is counted by GCRA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Gcra {
    requests: NonZeroU32,
    period: NonZeroU64,
    burst: NonZeroU32,
    tick: Tick,
    /// B·P, in hit·ticks.
    capacity: u64,
    on_excess: OnExcess,
}

/// The state: the instant at which the counter is empty. The default is an empty counter.
// Packed to 12 bytes: the memory store has millions of these, and 8-byte alignment needs 16.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(C, packed(4))]
pub struct Tat {
    /// Whole ticks since the Unix epoch.
    pub whole: u64,
    /// The rest of the instant, in 1/N of a tick; less than N.
    pub frac: u32,
}

impl Gcra {
    /// Creates a limit of `requests` per `period`, at most `burst` at one instant.
    ///
    /// # Errors
    /// Fails for a zero, a period with a fraction of a microsecond, or a burst that does not fit.
    pub fn new(requests: u32, period: Nanos, burst: u32) -> Result<Self, LimitError> {
        Self::with_on_excess(requests, period, burst, OnExcess::ByStrategy)
    }

    /// Creates a limit with this effect of excess hits. If the limit charges them, its tick may be
    /// coarser, so that a debt of 1,000 bursts fits below 2^53.
    ///
    /// # Errors
    /// As [`Gcra::new`].
    pub fn with_on_excess(
        requests: u32,
        period: Nanos,
        burst: u32,
        on_excess: OnExcess,
    ) -> Result<Self, LimitError> {
        let requests = NonZeroU32::new(requests).ok_or(LimitError::ZeroRequests)?;
        let burst = NonZeroU32::new(burst).ok_or(LimitError::ZeroBurst)?;
        let bursts_owed = if on_excess.is_charge() { MAX_BURSTS_OWED } else { 1 };
        let wanted = burst.get().saturating_mul(bursts_owed);
        let fit = limit::fit_rate(requests, period, burst.get(), wanted)?;
        // The product is below 2^53, because `fit_rate` rejects larger bursts.
        let capacity = u64::from(burst.get()).saturating_mul(fit.period.get());
        let (requests, period, tick) = (fit.requests, fit.period, fit.tick);
        Ok(Self { requests, period, burst, tick, capacity, on_excess })
    }

    /// The hits allowed at one instant.
    #[must_use]
    pub const fn burst(&self) -> u32 {
        self.burst.get()
    }

    /// The time unit of this limit.
    #[must_use]
    pub const fn tick(&self) -> Tick {
        self.tick
    }

    /// N hits per P ticks, in lowest terms.
    #[must_use]
    pub const fn refill_rate(&self) -> RefillRate {
        RefillRate { hits: self.requests.get(), ticks: self.period }
    }

    /// The largest debt that allowed hits cause, in hit·ticks.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The effect of a check for more hits than remain.
    #[must_use]
    pub const fn on_excess(&self) -> OnExcess {
        self.on_excess
    }

    /// The largest debt, in hit·ticks: the capacity, or 1,000 times the capacity for a limit that
    /// charges excess hits. Below 2^53.
    #[must_use]
    pub fn max_debt(&self) -> u64 {
        if !self.on_excess.is_charge() {
            return self.capacity;
        }
        let wanted = self.capacity.saturating_mul(u64::from(MAX_BURSTS_OWED));
        wanted.min(EXACT_BOUND.saturating_sub(1))
    }

    /// The debt in hit·ticks, at most `max_debt`.
    #[must_use]
    pub fn debt(&self, state: &Tat, now: Nanos) -> u64 {
        self.debt_at_tick(*state, self.tick.floor(now))
    }

    /// Returns the result that [`Gcra::charge`] would give; changes nothing.
    #[must_use]
    pub fn peek(&self, state: &Tat, now: Nanos, hits: Hits) -> CounterDecision {
        self.decide(*state, now, hits).1
    }

    /// Charges `hits` if they are allowed, or if the limit charges excess hits. Then the
    /// retry-after includes these hits. 0 hits charge nothing, and are always allowed unless the
    /// limit charges excess hits. Cost: no allocation.
    pub fn charge(&self, state: &mut Tat, now: Nanos, hits: Hits) -> CounterDecision {
        let (tat, result) = self.decide(*state, now, hits);
        *state = tat;
        result
    }

    /// Refunds `hits`; the debt does not fall below zero.
    pub fn refund(&self, state: &mut Tat, now: Nanos, hits: Hits) -> CounterDecision {
        let now = self.tick.floor(now);
        let debt = self.debt_at_tick(*state, now).saturating_sub(self.cost(hits));
        *state = self.state_with_debt(now, debt);
        CounterDecision::Allow(self.headroom(*state, now, self.free_hits(debt)))
    }

    /// Returns the hits that are certainly allowed if the counter is empty after `wait`.
    #[must_use]
    pub fn allowed_before_empty(&self, wait: Nanos) -> Hits {
        let ticks = wait.0.div_ceil(self.tick.size().0);
        let owed = ticks.saturating_mul(u64::from(self.requests.get())).min(self.capacity);
        Hits(self.free_hits(owed))
    }

    /// Returns how long before the counter is empty `hits` are certainly allowed. `hits` is at most
    /// the burst.
    #[must_use]
    pub fn allowed_before_empty_by(&self, hits: Hits) -> Nanos {
        let spare = self.capacity.saturating_sub(self.cost(hits));
        self.tick.nanos(spare / NonZeroU64::from(self.requests))
    }

    /// Returns `true` if the counter is empty, so that its state can be deleted.
    #[must_use]
    pub fn is_empty(&self, state: &Tat, now: Nanos) -> bool {
        self.debt_at_tick(*state, self.tick.floor(now)) == 0
    }

    /// Converts a state of the limit `from` to this limit:
    /// the same debt in hits, rounded up, at most `max_debt`.
    #[must_use]
    pub fn convert(&self, state: &Tat, from: &Self, now: Nanos) -> Tat {
        let owed = from.debt_at_tick(*state, from.tick.floor(now)).div_ceil(from.period.get());
        self.state_with_debt(self.tick.floor(now), self.cost(Hits(owed)).min(self.max_debt()))
    }

    fn decide(&self, state: Tat, now: Nanos, hits: Hits) -> (Tat, CounterDecision) {
        let now = self.tick.floor(now);
        let debt = self.debt_at_tick(state, now);
        let free = self.free_hits(debt);
        let needed = self.on_excess.needed(hits);
        let fits = needed.0 <= free;
        let charged = if fits || self.on_excess.is_charge() { hits } else { Hits(0) };
        // Without excess, the new debt is at most the capacity: `hits` are at most the free hits.
        let debt = debt.saturating_add(self.cost(charged)).min(self.max_debt());
        // Written even if nothing is charged: after the clock stepped back, the capped debt must
        // drain from now on, and not be capped again at every check.
        let tat = self.state_with_debt(now, debt);
        let room = self.headroom(tat, now, free.saturating_sub(charged.0));
        if fits {
            return (tat, CounterDecision::Allow(room));
        }
        if u64::from(self.burst.get()) < needed.0 {
            return (tat, CounterDecision::ExceedsLimit(room));
        }
        let excess = debt.saturating_add(self.cost(needed)).saturating_sub(self.capacity);
        let wait = excess.div_ceil(u64::from(self.requests.get()));
        (tat, CounterDecision::Deny { retry_after: self.tick.nanos(wait), headroom: room })
    }

    fn debt_at_tick(&self, state: Tat, now: u64) -> u64 {
        // If the whole tick of the state is not after `now`, its fraction is past too. A product
        // that saturates exceeds `max_debt`, as after a clock that stepped back.
        state.whole.checked_sub(now).map_or(0, |ticks| {
            ticks
                .saturating_mul(u64::from(self.requests.get()))
                .saturating_add(u64::from(state.frac))
                .min(self.max_debt())
        })
    }

    /// Returns the state whose debt is `debt` hit·ticks at `now`.
    fn state_with_debt(&self, now: u64, debt: u64) -> Tat {
        if debt == 0 {
            return Tat::default();
        }
        let requests = NonZeroU64::from(self.requests);
        // The remainder is less than N, which is a u32.
        let frac = u32::try_from(debt % requests).unwrap_or(u32::MAX);
        Tat { whole: now.saturating_add(debt / requests), frac }
    }

    fn headroom(&self, tat: Tat, now: u64, remaining: u64) -> Headroom {
        let ticks = tat.whole.saturating_add(u64::from(0 < tat.frac)).saturating_sub(now);
        Headroom { remaining: Hits(remaining), reset_after: self.tick.nanos(ticks) }
    }

    fn free_hits(&self, debt: u64) -> u64 {
        self.capacity.saturating_sub(debt) / self.period
    }

    /// Returns the cost of `hits` in hit·ticks. Saturates, but is exact for all hits that can be
    /// allowed.
    fn cost(&self, hits: Hits) -> u64 {
        hits.0.saturating_mul(self.period.get())
    }
}
