//! The division of a fleet-wide limit into the fair shares of its replicas.
//!
//! Guarantees:
//! - The fair shares sum exactly to the limit.
//! - If there are at least as many permits as replicas, no share is zero.
//! - Otherwise replicas take turns, longest waiting first, so none waits forever.
//! - Idle replicas lose permits first.
//!
//! Not covered:
//! - The instant at which a fair share is granted; see [`super::coordinator`].

use std::num::NonZeroU64;

use super::aggregate::FractionalLimit;
use super::config::MOST;
use super::share_state::ShareState;
use crate::units::{Nanos, Share};

/// The demand of one replica, with the state that decides its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReplicaDemand {
    /// The permits that the replica would use; zero if it is idle.
    pub need: Share,
    /// Set if the replica's last granted share is zero.
    pub is_waiting: bool,
    /// The instant at which `is_waiting` last changed.
    pub changed_at: Nanos,
}

impl From<&ShareState> for ReplicaDemand {
    fn from(state: &ShareState) -> Self {
        let is_waiting = state.granted.share == Share(0);
        Self { need: state.demand, is_waiting, changed_at: state.changed_at }
    }
}

/// The load of one replica, measured over about one heartbeat interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UsageSample {
    /// The duration of the measurement.
    pub window: Nanos,
    /// The mean number of requests in flight or queued.
    pub mean_in_use: FractionalLimit,
    /// The number of requests that arrived.
    pub arrived: u64,
    /// The number of requests that were denied.
    pub denied: u64,
    /// The mean duration of requests that ended.
    pub mean_duration: Option<Nanos>,
}

/// The permits that a replica would use without a
/// limit: by Little's law, and at least its mean use.
///
/// Peak use does not count, because permits that one replica reserves for its peak are missing at
/// others.
///
/// | 30 arrived in 1 s, each lasts 90 ms | worked row |
/// |---|---|
/// | ⌈arrived · mean duration / duration of the measurement⌉ | ⌈30·90 / 1,000⌉ = 3 |
///
/// ```
/// use sluicegate_kernel::coordinator::aggregate::FractionalLimit;
/// use sluicegate_kernel::coordinator::split::{demand, UsageSample};
/// use sluicegate_kernel::units::{Nanos, Share};
///
/// let usage = UsageSample {
///     window: Nanos::SECOND,
///     mean_in_use: FractionalLimit::from_share(Share(2)),
///     arrived: 30,
///     denied: 9,
///     mean_duration: Some(Nanos(90_000_000)),
/// };
/// assert_eq!(demand(&usage), Share(3));
/// ```
#[must_use]
pub fn demand(usage: &UsageSample) -> Share {
    let used = usage.mean_in_use.round_up();
    let Some(mean_duration) = usage.mean_duration else {
        // If no request has ended yet, a denial demands the most permits, because the need is
        // unknown.
        return if usage.denied == 0 { used } else { MOST };
    };
    let total_duration = u128::from(usage.arrived).saturating_mul(u128::from(mean_duration.0));
    let offered = total_duration.div_ceil(u128::from(usage.window.0.max(1)));
    // A denial shows demand for one permit, even if the ended requests took no measurable time.
    let least = Share(usage.denied.min(1));
    u64::try_from(offered).map_or(MOST, |offered| used.max(Share(offered)).max(least).min(MOST))
}

/// The division of a limit among its live replicas, for the reporting replica.
///
/// Shares rise evenly up to each replica's need; the rest is divided evenly. An idle replica keeps
/// one permit, if there is one for each replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// The limit in permits.
    pub limit: Share,
    /// The number of live replicas.
    pub live_count: u64,
    /// The index of the reporting replica among the live replicas.
    pub me: usize,
    /// The demand of the reporting replica, at most the limit.
    pub own_need: Share,
    /// The sum of the demands of all live replicas, each at most the limit.
    pub total_need: Share,
    /// The number of live replicas with demand.
    pub with_demand: u64,
    /// The number of idle replicas that count as if they needed one permit.
    pub idle: u64,
}

/// The fair share of the reporting replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FairShare {
    /// The share in permits, even if they are not free yet.
    pub share: Share,
    /// The free permits that are reserved for waiting replicas with a higher priority.
    ///
    /// Without this reservation, two replicas could pass permits to each other as long as the
    /// longest waiting replica sends its heartbeats at the wrong instants.
    pub reserved: Share,
}

/// The set of replicas that receive permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitRule {
    /// All replicas, because there is a permit for each.
    All,
    /// The replicas with demand, because there is a permit for each of these.
    WithDemand,
    /// As many replicas as there are permits, one permit each.
    Turns,
}

impl Split {
    /// The set of replicas that receive permits.
    #[must_use]
    pub const fn split_rule(&self) -> SplitRule {
        if self.live_count <= self.limit.0 {
            SplitRule::All
        } else if 0 < self.with_demand && self.with_demand <= self.limit.0 {
            // Idle replicas show new demand by their denials, so they need no permit.
            SplitRule::WithDemand
        } else {
            SplitRule::Turns
        }
    }

    /// The fair share of the reporting replica.
    ///
    /// `demands` returns the demands of all live replicas in the order of their share states. A
    /// turn that began at `turn_cutoff` or earlier is over. `fill_level` is the one of an earlier
    /// split, and becomes the one of this split. Cost: O(1) if all needs fit the limit. Otherwise
    /// O(replicas) in a few iterations; O(replicas²) only if each iteration satisfies one replica.
    pub fn fair_share<D: Iterator<Item = ReplicaDemand>>(
        self,
        turn_cutoff: Nanos,
        demands: impl Fn() -> D,
        fill_level: &mut Share,
    ) -> FairShare {
        let split = match self.split_rule() {
            SplitRule::Turns => return self.take_turns(turn_cutoff, demands),
            SplitRule::WithDemand => self,
            SplitRule::All => self.with_idle(),
        };
        let share = if split.total_need <= split.limit && split.with_demand == split.live_count {
            let rest = split.limit.less(split.total_need);
            split.own_need.plus(divide_evenly(rest, split.live_count, split.me))
        } else if split.own_need == Share(0) {
            Share(0)
        } else {
            split.divide_by_need(demands, fill_level)
        };
        FairShare { share, reserved: Share(0) }
    }

    /// Counts each idle replica as if it needed one permit.
    fn with_idle(self) -> Self {
        let idle = self.live_count.saturating_sub(self.with_demand);
        Self {
            own_need: self.own_need.max(Share(1)),
            total_need: self.total_need.plus(Share(idle)),
            with_demand: self.live_count,
            idle,
            ..self
        }
    }

    fn divide_by_need<D: Iterator<Item = ReplicaDemand>>(
        &self,
        demands: impl Fn() -> D,
        fill_level: &mut Share,
    ) -> Share {
        // Replicas that need more than the level share the permits left over. If no replica needs
        // more, all replicas of the split share them.
        let (mut share, mut level) = (self.own_need, Share(0));
        let (mut receivers, mut rest) = (self.with_demand, self.limit.less(self.total_need));
        if self.limit < self.total_need {
            (receivers, rest) = self.fill(&demands, fill_level);
            level = *fill_level;
            if share <= level {
                return share;
            }
            share = level;
        }
        let before = demands().take(self.me).filter(|demand| level < demand.need).count();
        share.plus(divide_evenly(rest, receivers, before))
    }

    /// Sets `level` to the fill level: the largest number of permits such that each replica can
    /// get its need up to this number.
    ///
    /// Returns the number of needs above the level, and the permits left over. The search starts at
    /// the earlier level, which is near. From a start that is too high, the first iteration goes to
    /// the level or below it. From below, each iteration goes up, and stops at the level.
    fn fill<D: Iterator<Item = ReplicaDemand>>(
        &self,
        demands: impl Fn() -> D,
        level: &mut Share,
    ) -> (u64, Share) {
        let mut is_first = true;
        loop {
            let (mut rest, mut short) = (self.limit.less(Share(self.idle)), 0_u64);
            for ReplicaDemand { need, .. } in demands() {
                if *level < need {
                    short = short.saturating_add(1);
                } else {
                    rest = rest.less(need);
                }
            }
            let next = Share(rest.0.checked_div(short).unwrap_or(0));
            // The level can only go down here if the sums do not belong to these demands. The
            // search must still end.
            if next == *level || !is_first && next < *level {
                return (short, rest.less(Share(level.0.saturating_mul(short))));
            }
            (*level, is_first) = (next, false);
        }
    }

    /// The fair share if replicas outnumber permits.
    fn take_turns<D: Iterator<Item = ReplicaDemand>>(
        &self,
        turn_cutoff: Nanos,
        demands: impl Fn() -> D,
    ) -> FairShare {
        let ahead = self.ahead(turn_cutoff, demands);
        let (ahead_count, waiting) = ahead.fold((0_u64, 0_u64), |(count, waiting), demand| {
            (count.saturating_add(1), waiting.saturating_add(u64::from(demand.is_waiting)))
        });
        let share = Share(u64::from(ahead_count < self.limit.0));
        FairShare { share, reserved: Share(waiting) }
    }

    /// The replicas that get a permit before the reporting replica.
    fn ahead<D: Iterator<Item = ReplicaDemand>>(
        &self,
        turn_cutoff: Nanos,
        demands: impl Fn() -> D,
    ) -> impl Iterator<Item = ReplicaDemand> {
        let rank = move |(index, demand): (usize, ReplicaDemand)| {
            (demand.priority_class(turn_cutoff), demand.changed_at, index)
        };
        let own_rank = demands().enumerate().nth(self.me).map(rank);
        demands()
            .enumerate()
            .filter(move |other| Some(rank(*other)) < own_rank)
            .map(|(_, demand)| demand)
    }
}

impl ReplicaDemand {
    /// The priority class of a replica: 0 during its turn, 1 waiting, 2 after its turn, 3 idle.
    fn priority_class(&self, turn_cutoff: Nanos) -> u8 {
        match (self.is_waiting, turn_cutoff < self.changed_at) {
            _ if self.need == Share(0) => 3,
            (true, _) => 1,
            (false, true) => 0,
            (false, false) => 2,
        }
    }
}

/// One of the `count` shares of `total`, which differ by at most one permit, larger ones first.
fn divide_evenly(total: Share, count: u64, index: usize) -> Share {
    let Some(count) = NonZeroU64::new(count) else { return Share(0) };
    let extra = u64::try_from(index).is_ok_and(|index| index < total.0 % count);
    Share(total.0 / count).plus(Share(u64::from(extra)))
}
