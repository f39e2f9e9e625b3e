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
use crate::units::{Nanos, Share};

/// The rule that divides a limit into shares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SplitMode {
    /// All replicas get equal shares.
    Equal,
    /// Shares rise evenly up to each replica's demand; the rest is divided evenly. An idle replica
    /// keeps one permit, if there is one for each replica.
    #[default]
    Demand,
}

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

impl SplitMode {
    /// The fair share of one replica, given the demands of all live replicas in the order of their
    /// share states.
    ///
    /// If replicas outnumber permits, each replica keeps its permit for one turn. The last
    /// parameter is an instant: a turn that began then or earlier is over. Cost: O(replicas) in a
    /// few iterations; O(replicas²) only if each iteration satisfies one replica.
    #[must_use]
    pub fn fair_share(
        self,
        ceiling: Share,
        wants: &[ReplicaDemand],
        me: usize,
        turned: Nanos,
    ) -> Share {
        match (self, self.split_rule(ceiling, wants)) {
            (_, SplitRule::Turns) => {
                let ahead_count = self.ahead(wants, me, turned).count();
                let has_permit = u64::try_from(ahead_count).is_ok_and(|ahead| ahead < ceiling.0);
                Share(u64::from(has_permit && me < wants.len()))
            }
            (Self::Equal, _) => divide_evenly(ceiling, wants.len(), me),
            (Self::Demand, SplitRule::All) => divide_by_need(ceiling, wants, me, Share(1)),
            (Self::Demand, SplitRule::WithDemand) => divide_by_need(ceiling, wants, me, Share(0)),
        }
    }

    /// The free permits that are reserved for replicas with a higher priority, while replicas take
    /// turns.
    ///
    /// Without this reservation, two replicas could pass permits to each other as long as the
    /// longest waiting replica sends its heartbeats at the wrong instants.
    #[must_use]
    pub fn reserved(
        self,
        ceiling: Share,
        wants: &[ReplicaDemand],
        me: usize,
        turned: Nanos,
    ) -> Share {
        match self.split_rule(ceiling, wants) {
            SplitRule::Turns => {
                let waiting_ahead = self.ahead(wants, me, turned).filter(|want| want.is_waiting);
                Share(u64::try_from(waiting_ahead.count()).unwrap_or(u64::MAX))
            }
            SplitRule::All | SplitRule::WithDemand => Share(0),
        }
    }

    fn split_rule(self, limit: Share, demands: &[ReplicaDemand]) -> SplitRule {
        let fits = |count: usize| u64::try_from(count).is_ok_and(|n| n <= limit.0);
        let with_demand = demands.iter().filter(|want| Share(0) < want.need).count();
        match self {
            _ if fits(demands.len()) => SplitRule::All,
            // Idle replicas show new demand by their denials, so they need no permit.
            Self::Demand if 0 < with_demand && fits(with_demand) => SplitRule::WithDemand,
            Self::Equal | Self::Demand => SplitRule::Turns,
        }
    }

    fn ahead(
        self,
        wants: &[ReplicaDemand],
        me: usize,
        turned: Nanos,
    ) -> impl Iterator<Item = &ReplicaDemand> {
        let rank = move |at: usize, want: &ReplicaDemand| {
            (self.priority_class(want, turned), want.changed_at, at)
        };
        let own_rank = wants.get(me).map(|want| rank(me, want));
        let before = move |at: usize, want: &ReplicaDemand| {
            own_rank.is_some_and(|mine| rank(at, want) < mine)
        };
        wants.iter().enumerate().filter(move |(at, want)| before(*at, want)).map(|(_, want)| want)
    }

    /// The priority class of a replica: 0 during its turn, 1 waiting, 2 after its turn, 3 idle.
    fn priority_class(self, demand: &ReplicaDemand, turn_cutoff: Nanos) -> u8 {
        let idle = self == Self::Demand && demand.need == Share(0);
        match (demand.is_waiting, turn_cutoff < demand.changed_at) {
            _ if idle => 3,
            (false, true) => 0,
            (true, _) => 1,
            (false, false) => 2,
        }
    }
}

/// The set of replicas that receive permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SplitRule {
    /// All replicas, because there is a permit for each.
    All,
    /// The replicas with demand, because there is a permit for each of these.
    WithDemand,
    /// As many replicas as there are permits, one permit each.
    Turns,
}

/// One of the `count` shares of `total`, which differ by at most one permit, larger ones first.
fn divide_evenly(total: Share, count: usize, index: usize) -> Share {
    let Some(count) = u64::try_from(count).ok().and_then(NonZeroU64::new) else {
        return Share(0);
    };
    let extra = u64::try_from(index).is_ok_and(|me| me < total.0 % count);
    Share(total.0 / count).plus(Share(u64::from(extra)))
}

/// One replica's share, if all shares rise evenly up to their needs and the rest is divided evenly.
///
/// A need below `floor` counts as `floor`. A replica with a need of zero receives nothing.
fn divide_by_need(limit: Share, demands: &[ReplicaDemand], index: usize, floor: Share) -> Share {
    let need = |want: &ReplicaDemand| want.need.max(floor);
    let own_need = demands.get(index).map_or(Share(0), need);
    if own_need == Share(0) {
        return Share(0);
    }
    let has_need = |want: &&ReplicaDemand| Share(0) < need(want);
    let level = fill_level(limit, || demands.iter().map(need));
    let filled = demands.iter().fold(Share(0), |sum, want| sum.plus(need(want).min(level)));
    // The rest goes to replicas below their need, or, once every need is met, to all with a need.
    let is_unmet = |want: &&ReplicaDemand| level < need(want);
    let any_unmet = demands.iter().any(|want| is_unmet(&want));
    let shares_rest =
        |want: &&ReplicaDemand| if any_unmet { is_unmet(want) } else { has_need(want) };
    let rest_receivers = demands.iter().filter(shares_rest).count();
    let receivers_before = demands.iter().take(index).filter(shares_rest).count();
    let receives_rest = demands.get(index).is_some_and(|want| shares_rest(&want));
    let rest = if receives_rest {
        divide_evenly(limit.less(filled), rest_receivers, receivers_before)
    } else {
        Share(0)
    };
    own_need.min(level).plus(rest)
}

/// The highest share, rounded down, that the limit covers for every replica that needs so much.
fn fill_level<N: Iterator<Item = Share>>(limit: Share, needs: impl Fn() -> N) -> Share {
    let mut level = Share(0);
    loop {
        let met_needs = needs().filter(|need| *need <= level);
        let rest = met_needs.fold(limit, Share::less);
        let unmet_count = u64::try_from(needs().filter(|need| level < *need).count());
        // Every need is met.
        let Some(short) = unmet_count.ok().and_then(NonZeroU64::new) else { return level };
        let next_level = Share(rest.0 / short);
        if next_level <= level {
            return level;
        }
        level = next_level;
    }
}
