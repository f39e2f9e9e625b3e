//! The store's state of one fleet-wide concurrency limit, which replies to each heartbeat with a
//! grant.
//!
//! The state is flat, public data, so it can be stored as the fields of one Redis hash. The store's
//! script `heartbeat.lua` is a transcription of this file, `grant.rs` and `split.rs`: the same
//! functions with the same names, in the same order.
//!
//! A heartbeat is *plain* if all share states are live, no vote is due and no replica is new, which
//! is the usual case.
//!
//! Guarantees:
//! - A grant never raises the sum of all replicas' exposures above the limit.
//! - Late and duplicated heartbeats change nothing.
//! - A plain heartbeat costs O(log replicas) if the limit covers all needs, others O(replicas).
//! - With classes or fair parts, a heartbeat costs O(replicas). With more than 16 replicas, the
//!   entitlements are computed at most eight times in a heartbeat interval.
//!
//! Not covered:
//! - Storage of the state.
//! - Deletion of the state: it is allowed after [`Coordinator::unused_from`].

use serde::{Deserialize, Serialize};

use super::aggregate::{FractionalLimit, LimitFactor};
use super::config::{CoordinatorConfig, ShareTiming};
use super::demand_curve::DemandCurve;
use super::entitlement::entitlements;
use super::incarnation::CoordinatorIncarnation;
use super::message::{Grant, GrantInUse, Heartbeat};
use super::running_sums::RunningSums;
use super::share_state::{GrantRecord, ShareState};
use crate::units::{Generation, Incarnation, Nanos, Share};

/// The largest number of share states of one limit, so that a faulty fleet cannot fill the store.
pub const MAX_SHARE_STATES: usize = 4_096;

/// The largest fleet in which each heartbeat computes all entitlements anew.
const MAX_EACH_ENTITLED: usize = 16;

/// The coordinator's state of one fleet-wide concurrency limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Coordinator {
    /// The coordinator incarnation that wrote this state. Any other incarnation discards the state.
    pub incarnation: Incarnation,
    /// The store's latest time so far. It does not go back if the store's clock does.
    pub latest_time: Nanos,
    /// The number of the last grant of this limit.
    pub generation: Generation,
    /// The concurrency limit; `None` before the first heartbeat.
    pub limit: Option<FractionalLimit>,
    /// Set if the limit was recovered from the replicas' heartbeats after a loss of state.
    pub is_recovered: bool,
    /// The instant of the last vote count.
    pub counted_at: Nanos,
    /// The instant of the last computation of entitlements.
    pub entitled_at: Nanos,
    /// The number of share states with a vote.
    pub vote_count: u64,
    /// The sums over all share states.
    pub sums: RunningSums,
    /// The share states, ordered by replica and incarnation.
    pub share_states: Vec<ShareState>,
}

/// The coordinator's result for one heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeartbeatReply {
    /// The grant to send to the replica.
    Grant(Grant),
    /// The replica left the fleet. Its share state is removed now, or after its last requests
    /// ended.
    Left,
    /// The heartbeat is late or duplicated: this or a later one has already arrived.
    Stale,
    /// The heartbeat is from an earlier incarnation of the replica than the latest known one.
    Superseded,
    /// The replica has a newer grant than this state, so the state is old: start a new incarnation.
    StateLost,
    /// The limit already has [`MAX_SHARE_STATES`] share states.
    TooManyReplicas,
}

/// One heartbeat with the values that its application needs.
pub(super) struct Arrival<'a> {
    pub(super) config: &'a CoordinatorConfig,
    pub(super) heartbeat: &'a Heartbeat,
    pub(super) now: Nanos,
    /// Set in the grace period, when other replicas may use shares that the store has lost.
    pub(super) grace: bool,
    /// The index of the replica's share state.
    pub(super) at: usize,
}

impl Coordinator {
    /// Applies `heartbeat` at `now` on the store's clock. A new incarnation discards the state.
    pub fn apply_heartbeat(
        &mut self,
        now: Nanos,
        current: &CoordinatorIncarnation,
        config: &CoordinatorConfig,
        heartbeat: &Heartbeat,
    ) -> HeartbeatReply {
        if self.incarnation != current.incarnation {
            *self = Self { incarnation: current.incarnation, counted_at: now, ..Self::default() };
        }
        self.latest_time = self.latest_time.max(now);
        let (now, timing) = (self.latest_time, &config.timing);
        let grace = current.is_in_grace(now, timing);
        let (mut at, mut before) = self.find_index(heartbeat);
        let must_read_all =
            before.is_none() || self.sums.valid_until <= now || heartbeat.is_leaving;
        let is_plain = !must_read_all && !grace && self.is_plain(now, config, heartbeat);
        if must_read_all {
            self.drop_unused(now, timing);
            (at, before) = self.find_index(heartbeat);
        }
        if let Some(refusal) = self.refuse(at, before.as_ref(), heartbeat) {
            return refusal;
        }
        let arrival = Arrival { config, heartbeat, now, grace, at };
        let mut own = self.store_heartbeat(&arrival, before);
        if heartbeat.is_leaving {
            self.drop_unused(now, timing);
            return HeartbeatReply::Left;
        }
        if !is_plain {
            self.update_limit(&arrival, &mut own);
        }
        if !own.curve.is_empty() {
            self.entitle(&arrival, &mut own);
        }
        HeartbeatReply::Grant(self.grant_share(&arrival, own))
    }

    /// The concurrency limit in whole permits; zero before the first heartbeat.
    #[must_use]
    pub fn limit(&self) -> Share {
        self.limit.map_or(Share(0), FractionalLimit::round_down)
    }

    /// The most permits that all replicas together may use without another grant.
    #[must_use]
    pub fn exposure(&self) -> Share {
        self.share_states.iter().fold(Share(0), |sum, state| sum.plus(state.exposure()))
    }

    /// The instant after which no share of this limit is in use, unless another heartbeat arrives.
    #[must_use]
    pub fn unused_from(&self, config: &CoordinatorConfig) -> Nanos {
        let unused_instants =
            self.share_states.iter().map(|state| state.unused_from(&config.timing));
        unused_instants.max().unwrap_or(self.latest_time)
    }

    /// Returns `true` if the limit stays, covers each replica, and is the limit of the sums.
    fn is_plain(&self, now: Nanos, config: &CoordinatorConfig, heartbeat: &Heartbeat) -> bool {
        let Some(limit) = self.limit else { return false };
        let has_votes = 0 < self.vote_count || heartbeat.vote.is_some();
        count(self.share_states.len()) <= self.limit().0
            && self.limit() == self.sums.limit
            && Nanos(0) < config.timing.share_lifetime
            && limit == limit.within(config.min, config.max)
            && !(has_votes && config.timing.vote_interval() <= now.since(self.counted_at))
    }

    /// Removes the share states of replicas that use no permit.
    fn drop_unused(&mut self, now: Nanos, timing: &ShareTiming) {
        let vote_count = &mut self.vote_count;
        self.share_states.retain(|state| {
            let is_unused = state.is_unused(now, timing);
            if is_unused && state.vote.is_some() {
                *vote_count = vote_count.saturating_sub(1);
            }
            !is_unused
        });
    }

    /// The index of the sender's share state and that state, or the index at which to insert it.
    fn find_index(&self, heartbeat: &Heartbeat) -> (usize, Option<ShareState>) {
        match self.share_states.binary_search_by_key(&heartbeat.sort_key(), ShareState::sort_key) {
            Ok(at) => (at, self.share_states.get(at).copied()),
            Err(at) => (at, None),
        }
    }

    /// The reply to a heartbeat that must be rejected.
    fn refuse(
        &self,
        at: usize,
        before: Option<&ShareState>,
        heartbeat: &Heartbeat,
    ) -> Option<HeartbeatReply> {
        let later = self.share_states.get(at.saturating_add(usize::from(before.is_some())));
        let is_superseded = later.is_some_and(|later| later.replica == heartbeat.replica);
        let is_lost = |in_use: GrantInUse| {
            !heartbeat.is_claimed
                && in_use.coordinator_incarnation == self.incarnation
                && self.generation < in_use.generation
        };
        match before {
            _ if is_superseded => Some(HeartbeatReply::Superseded),
            _ if heartbeat.grant_in_use.is_some_and(is_lost) => Some(HeartbeatReply::StateLost),
            Some(before) if heartbeat.number <= before.number => Some(HeartbeatReply::Stale),
            None if MAX_SHARE_STATES <= self.share_states.len() => {
                Some(HeartbeatReply::TooManyReplicas)
            }
            _ => None,
        }
    }

    /// The grant that the replica had when it sent the heartbeat, identified by its generation.
    fn confirmed_grant(&self, arrival: &Arrival<'_>, before: Option<&ShareState>) -> GrantRecord {
        let in_use = arrival.heartbeat.grant_in_use.filter(|_| !arrival.heartbeat.is_leaving);
        let Some(in_use) = in_use else { return GrantRecord::default() };
        if in_use.coordinator_incarnation != self.incarnation {
            // A share from an earlier coordinator incarnation counts only in the grace period, in
            // which other replicas may not have reported yet.
            let counts = arrival.grace && !arrival.heartbeat.is_claimed;
            let share = if counts { in_use.share } else { Share(0) };
            return GrantRecord { generation: Generation(0), share };
        }
        let mut known_grants =
            before.into_iter().flat_map(|before| [before.confirmed, before.granted]);
        // Without a matching share state, the share has already expired at the replica, because
        // the replica's expiry is earlier than the store's.
        known_grants.find(|grant| grant.generation == in_use.generation).unwrap_or_default()
    }

    /// Returns the new vote of the replica, or its earlier vote if no round has counted that yet.
    ///
    /// `None` if the replica voted under another limit or is idle.
    fn valid_vote(
        &self,
        heartbeat: &Heartbeat,
        before: Option<&ShareState>,
    ) -> Option<LimitFactor> {
        let is_current_limit =
            heartbeat.grant_in_use.is_some_and(|in_use| in_use.limit == self.limit());
        let has_demand = Share(0) < heartbeat.demand;
        let uncounted_vote = before.and_then(|before| before.vote);
        heartbeat.vote.or(uncounted_vote).filter(|_| is_current_limit && has_demand)
    }

    /// Stores the heartbeat in the replica's share state, which leaves the sums until its grant.
    fn store_heartbeat(&mut self, arrival: &Arrival<'_>, before: Option<ShareState>) -> ShareState {
        let Arrival { config, heartbeat, now, at, .. } = *arrival;
        let confirmed = self.confirmed_grant(arrival, before.as_ref());
        let vote = self.valid_vote(heartbeat, before.as_ref());
        // Between two heartbeats, a replica admits no more requests than its exposure.
        let confirmable = before.as_ref().map_or(Share(0), ShareState::exposure);
        let in_flight = heartbeat.in_flight;
        let in_flight = if heartbeat.is_claimed { in_flight.min(confirmable) } else { in_flight };
        let mut own = before.unwrap_or_else(|| {
            let state = ShareState::new(heartbeat, confirmed, now, &config.timing);
            self.share_states.insert(at, state);
            self.sums.valid_until = Nanos(0);
            state
        });
        if now < self.sums.valid_until {
            self.sums.put(u64::saturating_sub, &own);
        }
        let votes = self.vote_count.saturating_add(u64::from(vote.is_some()));
        self.vote_count = votes.saturating_sub(u64::from(own.vote.is_some()));
        (own.number, own.confirmed, own.vote) = (heartbeat.number, confirmed, vote);
        (own.in_flight, own.curve) = (in_flight, heartbeat.curve);
        // With a curve, the demand is the entitlement, see `entitle`.
        if own.curve.is_empty() {
            own.demand = heartbeat.demand;
        }
        own.earlier_requests_end = own.previous_requests_end(now, &config.timing);
        own.max_duration = config.timing.max_duration;
        if heartbeat.is_leaving {
            (own.granted, own.expires_at) = (GrantRecord::default(), now);
        } else {
            own.expires_at = own.expires_at.max(now.plus(config.timing.share_lifetime));
        }
        self.sums.valid_until = self.sums.valid_until.min(own.expires_at);
        self.write(at, own);
        own
    }

    /// Keeps the limit within its bounds, recovers it after a loss of state, and counts votes if
    /// due.
    fn update_limit(&mut self, arrival: &Arrival<'_>, own: &mut ShareState) {
        let Arrival { config, heartbeat, now, grace, .. } = *arrival;
        let is_earlier = |in_use: &GrantInUse| {
            grace && !heartbeat.is_claimed && in_use.coordinator_incarnation != self.incarnation
        };
        let claim = heartbeat
            .grant_in_use
            .filter(is_earlier)
            .map(|in_use| FractionalLimit::from_share(in_use.limit));
        let limit = match (self.limit.filter(|_| self.is_recovered || claim.is_none()), claim) {
            (Some(limit), Some(claim)) => limit.min(claim),
            (limit, claim) => limit.or(claim).unwrap_or(FractionalLimit::from_share(config.start)),
        };
        self.is_recovered |= claim.is_some();
        self.limit = Some(limit.within(config.min, config.max));
        let is_due = config.timing.vote_interval() <= now.since(self.counted_at);
        if !grace && is_due && 0 < self.vote_count {
            self.count_votes(arrival, own);
        }
    }

    /// Replaces the demands of all live replicas by their entitlements, unless a large fleet did that
    /// just before.
    fn entitle(&mut self, arrival: &Arrival<'_>, own: &mut ShareState) {
        let Arrival { config, now, at, .. } = *arrival;
        let pause = config.timing.entitlement_pause();
        let is_small = self.share_states.len() <= MAX_EACH_ENTITLED;
        if !is_small && now.since(self.entitled_at) < pause {
            return;
        }
        let (live, curves): (Vec<usize>, Vec<DemandCurve>) = (0..)
            .zip(&self.share_states)
            .filter(|(index, state)| !state.curve.is_empty() && self.is_live(*index, now))
            .map(|(index, state)| (index, state.curve))
            .unzip();
        for (index, share) in
            live.into_iter().zip(entitlements(&curves, self.limit(), &config.classes))
        {
            if let Some(state) = self.share_states.get_mut(index) {
                state.demand = share;
            }
        }
        own.demand = self.share_states.get(at).map_or(own.demand, |state| state.demand);
        (self.entitled_at, self.sums.valid_until) = (now, Nanos(0));
    }

    fn count_votes(&mut self, arrival: &Arrival<'_>, own: &mut ShareState) {
        let Arrival { config, now, .. } = *arrival;
        let mut votes: Vec<LimitFactor> =
            self.live_replicas(now).filter_map(|state| state.vote).collect();
        let (Some(ratio), Some(limit)) = (config.aggregate.combine(&mut votes), self.limit) else {
            return;
        };
        self.limit = Some(limit.scaled(ratio, config.min, config.max));
        (self.counted_at, self.vote_count, own.vote) = (now, 0, None);
        for state in &mut self.share_states {
            state.vote = None;
        }
    }

    /// The replicas that may receive a share.
    pub(super) fn live_replicas(&self, now: Nanos) -> impl Iterator<Item = &ShareState> {
        let states = self.share_states.iter().enumerate();
        states.filter(move |(index, _)| self.is_live(*index, now)).map(|(_, state)| state)
    }

    pub(super) fn is_live(&self, index: usize, now: Nanos) -> bool {
        let later = self.share_states.get(index.saturating_add(1));
        self.share_states.get(index).is_some_and(|state| {
            now < state.expires_at && later.is_none_or(|later| later.replica != state.replica)
        })
    }

    pub(super) fn write(&mut self, at: usize, own: ShareState) {
        if let Some(state) = self.share_states.get_mut(at) {
            *state = own;
        }
    }
}

pub(super) fn count(states: usize) -> u64 {
    u64::try_from(states).unwrap_or(u64::MAX)
}
