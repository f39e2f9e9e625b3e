//! The store's state of one fleet-wide concurrency limit, which replies to each heartbeat with a
//! grant.
//!
//! The state is flat, public data. So it can be stored as the fields of one Redis hash, and the
//! code can be ported line by line to the store's Lua script.
//!
//! Guarantees:
//! - A grant never raises the sum of all replicas' exposures above the limit.
//! - Late and duplicated heartbeats change nothing.
//! - Applying one heartbeat costs O(replicas of this limit).
//!
//! Not covered:
//! - Storage of the state.
//! - Deletion of the state: it is allowed after [`Coordinator::unused_from`].

use super::aggregate::{FractionalLimit, LimitFactor};
use super::config::{CoordinatorConfig, ShareTiming};
use super::incarnation::CoordinatorIncarnation;
use super::message::{Grant, GrantInUse, Heartbeat};
use super::share_state::{GrantRecord, ShareState};
use super::split::{ReplicaDemand, SplitMode};
use crate::units::{Generation, Incarnation, Nanos, Share};

/// The largest number of share states of one limit, so that a faulty fleet cannot fill the store.
pub const MAX_SHARE_STATES: usize = 4_096;

/// The coordinator's state of one fleet-wide concurrency limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
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

impl Coordinator {
    /// Applies `heartbeat` at `now` on the store's clock. A new incarnation discards the state.
    pub fn apply_heartbeat(
        &mut self,
        now: Nanos,
        incarnation: &CoordinatorIncarnation,
        config: &CoordinatorConfig,
        heartbeat: &Heartbeat,
    ) -> HeartbeatReply {
        if self.incarnation != incarnation.incarnation {
            *self =
                Self { incarnation: incarnation.incarnation, counted_at: now, ..Self::default() };
        }
        self.latest_time = self.latest_time.max(now);
        let now = self.latest_time;
        self.share_states.retain(|seat| !seat.is_unused(now, &config.timing));
        let at = match self.find_index(heartbeat) {
            Ok(at) => at,
            Err(refused) => return refused,
        };
        let grace = incarnation.is_in_grace(now, &config.timing);
        let state = self.store_heartbeat(at, now, config, heartbeat, grace);
        if heartbeat.is_leaving {
            self.share_states.retain(|seat| !seat.is_unused(now, &config.timing));
            return HeartbeatReply::Left;
        }
        self.update_limit(now, config, heartbeat, grace);
        HeartbeatReply::Grant(self.grant_share(at, now, config, state, grace))
    }

    /// The concurrency limit in whole permits; zero before the first heartbeat.
    #[must_use]
    pub fn limit(&self) -> Share {
        self.limit.map_or(Share(0), FractionalLimit::round_down)
    }

    /// The most permits that all replicas together may use without another grant.
    #[must_use]
    pub fn exposure(&self) -> Share {
        self.share_states.iter().fold(Share(0), |sum, seat| sum.plus(seat.exposure()))
    }

    /// The instant after which no share of this limit is in use, unless another heartbeat arrives.
    #[must_use]
    pub fn unused_from(&self, config: &CoordinatorConfig) -> Nanos {
        let unused_instants = self.share_states.iter().map(|seat| seat.unused_from(&config.timing));
        unused_instants.max().unwrap_or(self.latest_time)
    }

    /// The index of the sender's share state, or the index at which to insert it.
    ///
    /// The error is the reply to a heartbeat that must be rejected.
    fn find_index(&self, heartbeat: &Heartbeat) -> Result<usize, HeartbeatReply> {
        let later = |seat: &ShareState| {
            seat.replica == heartbeat.replica && heartbeat.incarnation < seat.incarnation
        };
        if self.share_states.iter().any(later) {
            return Err(HeartbeatReply::Superseded);
        }
        let is_current_incarnation =
            |holds: &GrantInUse| holds.coordinator_incarnation == self.incarnation;
        if heartbeat
            .grant_in_use
            .filter(is_current_incarnation)
            .is_some_and(|holds| self.generation < holds.generation)
        {
            return Err(HeartbeatReply::StateLost);
        }
        match self.share_states.binary_search_by_key(&heartbeat.sort_key(), ShareState::sort_key) {
            Ok(at)
                if self
                    .share_states
                    .get(at)
                    .is_some_and(|seat| heartbeat.number <= seat.number) =>
            {
                Err(HeartbeatReply::Stale)
            }
            Err(_) if MAX_SHARE_STATES <= self.share_states.len() => {
                Err(HeartbeatReply::TooManyReplicas)
            }
            Ok(at) | Err(at) => Ok(at),
        }
    }

    fn store_heartbeat(
        &mut self,
        at: usize,
        now: Nanos,
        config: &CoordinatorConfig,
        heartbeat: &Heartbeat,
        grace: bool,
    ) -> ShareState {
        let before = self
            .share_states
            .get(at)
            .filter(|seat| seat.sort_key() == heartbeat.sort_key())
            .copied();
        let confirmed = if heartbeat.is_leaving {
            GrantRecord::default()
        } else {
            self.confirmed_grant(before, heartbeat, grace)
        };
        let ShareTiming { share_lifetime, max_duration, .. } = config.timing;
        let expires_at = before.map_or(now, |seat| seat.expires_at).max(now.plus(share_lifetime));
        let requests_end = now.plus(max_duration);
        let state = ShareState {
            replica: heartbeat.replica,
            incarnation: heartbeat.incarnation,
            number: heartbeat.number,
            confirmed,
            // The heartbeat voided this grant. It stays until the new grant is computed, because
            // `demand` reads whether it was zero.
            granted: before
                .filter(|_| !heartbeat.is_leaving)
                .map_or(confirmed, |seat| seat.granted),
            replied_limit: before.map_or(Share(0), |seat| seat.replied_limit),
            in_flight: heartbeat.in_flight,
            demand: heartbeat.demand,
            vote: self.valid_vote(before, heartbeat),
            expires_at: if heartbeat.is_leaving { now } else { expires_at },
            earlier_requests_end: before
                .map_or(requests_end, |seat| seat.previous_requests_end(now, &config.timing)),
            max_duration,
            changed_at: before.map_or(now, |seat| seat.changed_at),
        };
        match self.share_states.get_mut(at).filter(|_| before.is_some()) {
            Some(kept) => *kept = state,
            None => self.share_states.insert(at, state),
        }
        state
    }

    /// The grant that the replica had when it sent `heartbeat`, identified by its generation.
    fn confirmed_grant(
        &self,
        before: Option<ShareState>,
        heartbeat: &Heartbeat,
        grace: bool,
    ) -> GrantRecord {
        let Some(grant_in_use) = heartbeat.grant_in_use else { return GrantRecord::default() };
        if grant_in_use.coordinator_incarnation == self.incarnation {
            let known_grants = before.into_iter().flat_map(|seat| [seat.confirmed, seat.granted]);
            let mut matching =
                known_grants.filter(|granted| granted.generation == grant_in_use.generation);
            // Without a matching share state, the share has already expired at the replica, because
            // the replica's expiry is earlier than the store's.
            return matching.next().unwrap_or_default();
        }
        // A share from an earlier coordinator incarnation counts only in the grace period, in which
        // other replicas may not have reported yet.
        let share = if grace { grant_in_use.share } else { Share(0) };
        GrantRecord { generation: Generation(0), share }
    }

    /// The replica's new vote, or its earlier one that is not counted yet.
    ///
    /// `None` if the replica voted under another limit or is idle.
    fn valid_vote(&self, before: Option<ShareState>, heartbeat: &Heartbeat) -> Option<LimitFactor> {
        let is_current_limit =
            heartbeat.grant_in_use.is_some_and(|holds| holds.limit == self.limit());
        let has_demand = Share(0) < heartbeat.demand;
        let uncounted_vote = before.and_then(|seat| seat.vote);
        heartbeat.vote.or(uncounted_vote).filter(|_| is_current_limit && has_demand)
    }

    /// Keeps the limit within its bounds, recovers it after a loss of state, and counts votes if
    /// due.
    fn update_limit(
        &mut self,
        now: Nanos,
        config: &CoordinatorConfig,
        heartbeat: &Heartbeat,
        grace: bool,
    ) {
        let earlier =
            |holds: &GrantInUse| grace && holds.coordinator_incarnation != self.incarnation;
        let reported_limit = heartbeat
            .grant_in_use
            .filter(earlier)
            .map(|holds| FractionalLimit::from_share(holds.limit));
        let level = match (
            self.limit.filter(|_| self.is_recovered || reported_limit.is_none()),
            reported_limit,
        ) {
            (Some(level), Some(claim)) => level.min(claim),
            (level, claim) => level.or(claim).unwrap_or(FractionalLimit::from_share(config.start)),
        };
        self.is_recovered |= reported_limit.is_some();
        self.limit = Some(level.within(config.min, config.max));
        if !grace && config.timing.vote_interval() <= now.since(self.counted_at) {
            self.count_votes(now, config);
        }
    }

    fn count_votes(&mut self, now: Nanos, config: &CoordinatorConfig) {
        let mut votes: Vec<LimitFactor> =
            self.live_replicas(now).filter_map(|(_, seat)| seat.vote).collect();
        let (Some(ratio), Some(level)) = (config.aggregate.combine(&mut votes), self.limit) else {
            return;
        };
        self.limit = Some(level.scaled(ratio, config.min, config.max));
        self.counted_at = now;
        for seat in &mut self.share_states {
            seat.vote = None;
        }
    }

    /// The replicas that may receive a share, with the indices of their share states.
    fn live_replicas(&self, now: Nanos) -> impl Iterator<Item = (usize, &ShareState)> {
        self.share_states.iter().enumerate().filter(move |(at, seat)| {
            let later = self.share_states.get(at.saturating_add(1));
            now < seat.expires_at && later.is_none_or(|later| later.replica != seat.replica)
        })
    }

    /// Grants the fair share, as far as the exposures of the other replicas leave permits free.
    fn grant_share(
        &mut self,
        at: usize,
        now: Nanos,
        config: &CoordinatorConfig,
        state: ShareState,
        grace: bool,
    ) -> Grant {
        let live: Vec<(usize, ReplicaDemand)> =
            self.live_replicas(now).map(|(at, seat)| (at, self.demand(seat))).collect();
        let (fair_share, reserved) = self.fair_share(&live, at, now, config);
        let share = self.grantable_share(&live, at, config, fair_share, reserved, grace);
        // An unchanged share keeps its generation, because a new one would carry no information.
        let is_unchanged =
            state.confirmed.share == share && state.confirmed.generation != Generation(0);
        let generation =
            if is_unchanged { state.confirmed.generation } else { self.generation.next() };
        self.generation = self.generation.max(generation);
        let is_transition = (share == Share(0)) != (state.granted.share == Share(0));
        let changed_at = if is_transition { now } else { state.changed_at };
        if let Some(kept) = self.share_states.get_mut(at) {
            let granted = GrantRecord { generation, share };
            let replied_limit = self.limit.map_or(Share(0), FractionalLimit::round_down);
            // `count_votes` may have removed the vote in the meantime, and it must not count twice.
            *kept = ShareState { granted, replied_limit, changed_at, vote: kept.vote, ..state };
        }
        Grant {
            replica: state.replica,
            incarnation: state.incarnation,
            heartbeat_number: state.number,
            coordinator_incarnation: self.incarnation,
            generation,
            share,
            fair_share,
            limit: self.limit(),
            replicas: u64::try_from(live.len()).unwrap_or(u64::MAX),
            is_recovering: grace,
        }
    }

    fn demand(&self, state: &ShareState) -> ReplicaDemand {
        let need = state.demand.min(self.limit());
        ReplicaDemand {
            need,
            is_waiting: state.granted.share == Share(0),
            changed_at: state.changed_at,
        }
    }

    /// The replica's fair share, even if its permits are not free yet, and the permits that are
    /// reserved for replicas ahead of it.
    fn fair_share(
        &self,
        live: &[(usize, ReplicaDemand)],
        at: usize,
        now: Nanos,
        config: &CoordinatorConfig,
    ) -> (Share, Share) {
        let demands: Vec<ReplicaDemand> = live.iter().map(|(_, want)| *want).collect();
        let own_index = live.iter().position(|(seat, _)| *seat == at);
        let turn_cutoff = now.since(config.timing.turn_duration());
        let ceiling = self.limit();
        own_index.map_or((Share(0), Share(0)), |me| {
            let fair = config.split.fair_share(ceiling, &demands, me, turn_cutoff);
            (fair, config.split.reserved(ceiling, &demands, me, turn_cutoff))
        })
    }

    fn grantable_share(
        &self,
        live: &[(usize, ReplicaDemand)],
        at: usize,
        config: &CoordinatorConfig,
        fair_share: Share,
        reserved: Share,
        grace: bool,
    ) -> Share {
        let others = self.other_states(at);
        let free = self.limit().less(others.fold(Share(0), |sum, seat| sum.plus(seat.exposure())));
        let own = self.share_states.get(at).map_or(Share(0), |seat| seat.confirmed.share);
        if free < own {
            // The limit fell below the sum of all exposures. If every share were cut to zero until
            // all replicas received the new limit, requests would be denied for nothing. So a
            // replica keeps its share while all shares that were granted since the decrease fit the
            // limit.
            return fair_share.min(own).min(self.room_after_decrease(live, at));
        }
        let floor = Share(u64::from(u64::try_from(live.len()).is_ok_and(|n| n <= self.limit().0)));
        let needs_more = |(other, want): &(usize, ReplicaDemand)| {
            let granted = self.share_states.get(*other).map_or(Share(0), |seat| seat.granted.share);
            *other != at && granted < want.need.max(floor)
        };
        // Do not take away permits that no other replica can use. In the grace period no other
        // replica may receive them; otherwise no other replica needs more.
        let keeps_surplus =
            grace || config.split == SplitMode::Demand && !live.iter().any(needs_more);
        let goal = if keeps_surplus { fair_share.max(own) } else { fair_share };
        goal.min(if grace { own } else { own.max(free.less(reserved)) })
    }

    /// The permits of a decreased limit that are left for the replica at index `at`.
    ///
    /// Replicas that received this limit count with their shares or requests in flight, dead
    /// replicas with their exposure, and all others with nothing.
    fn room_after_decrease(&self, live: &[(usize, ReplicaDemand)], at: usize) -> Share {
        let ceiling = self.limit();
        let is_live = |at: usize| live.binary_search_by_key(&at, |(other, _)| *other).is_ok();
        let used_permits = |(other, seat): (usize, &ShareState)| match is_live(other) {
            false => seat.exposure(),
            // Requests in flight above the share use permits that other replicas cannot have yet.
            true if seat.replied_limit <= ceiling => seat.granted.share.max(seat.in_flight),
            true => Share(0),
        };
        let others = self.share_states.iter().enumerate().filter(|(other, _)| *other != at);
        ceiling.less(others.map(used_permits).fold(Share(0), Share::plus))
    }

    fn other_states(&self, at: usize) -> impl Iterator<Item = &ShareState> {
        self.share_states
            .iter()
            .enumerate()
            .filter(move |(other, _)| *other != at)
            .map(|(_, seat)| seat)
    }
}
